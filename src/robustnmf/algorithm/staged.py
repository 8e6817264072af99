"""HOW it gets there: the schedule of the default.

The loss is not convex. Where the alternation ends depends on where it starts, on how soon it begins to disbelieve
entries, and on when it stops. `Staged` answers all three by measurement, on a few entries that it holds out:

1. Two openings from the same start, one that trusts every entry and one that is wary. A short trial of the main stage
   follows each, and the one that leaves the typical sample with the smaller residuals goes on.
2. The main stage lowers the loss of the model, with scale and cut taken from the entries held out: the fit has not seen
   them, so their residuals are those of new data. It ends when they are no longer predicted better.
3. The fit may turn out to have been too strict: scale and cut are doubled if that predicts the held-out entries
   clearly better.
4. The entries held out are given back for a few last iterations. Of large data, all stages before work with some of
   the samples, and all of them come in here.

If the fit had begun to follow the noise, the best iterate stays as it is instead, and the codes of samples are stopped
early as well.
"""

from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from robustnmf.algorithm.checkpoint import Checkpoint, Journal, factor, is_finite, positive
from robustnmf.algorithm.encoding import Basis, order_statistics, typical_code
from robustnmf.algorithm.feature_recovery import encode_all_features, encode_lost, lost_features
from robustnmf.algorithm.halfquadratic import Callback, Iteration, Method, Result, State, assess, sweep
from robustnmf.algorithm.holdout import HeldOut, Judge, Point
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.kernels.schedule_policy import Course, Stand
from robustnmf.model.losses import Absolute, Huber, Loss
from robustnmf.model.mixture import Mixture
from robustnmf.model.outliers import MixtureRule, NoRejection
from robustnmf.model.scales import FixedScale, MixtureScale
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import SharedGram
from robustnmf.utils.arrays import Array, Blocks, Namespace, evenly, is_foreign, is_uniform, mapped, to_host

# With more than twice as many entries, and samples per component, some samples are enough to find the components.
ENOUGH_ENTRIES, ENOUGH_SAMPLES = 2**22, 50
# Residuals below this part of the typical entry are a fit that still converges, not noise.
RESOLUTION = 1e-3
# The loss of held-out entries is Cauchy's, at so many widths of the clean residuals: it counts small improvements of
# clean entries and hardly sees the errors.
JUDGED_AT = 2.0
# During the opening the width is not known yet; then it is so many medians of the residuals of the start.
OPENING_JUDGED_AT = 0.3
# Momentum grows by this factor in each iteration, up to a limit.
MOMENTUM_GROWTH, MOST_MOMENTUM = 1.02, 0.9
# How much wider scale and cut become where the tails of the residuals can be explained.
RELAXED = 2.0
# They become so at most so often,
MOST_RELAXATIONS = 2
# and only if squared residuals of held-out entries fall below this part of what they were: errors nobody can predict.
CLEARLY_BETTER = 0.99
# With so many samples per component, errors in some of them cannot mislead a feature.
FEW_SAMPLES = 8
# Sweeps over the codes that are tried, after a fit that had to be stopped.
MOST_CODE_SWEEPS = 12
# A fit has learnt something if the median residual of held-out entries fell below this part of that at the start.
LEARNT_NOTHING = 0.95


class Opening(NamedTuple):
    """Some first iterations, whose scale is the median magnitude of held-out residuals."""

    loss: Loss
    cut: float | None = None
    """Medians beyond which an entry is ignored."""


TRUSTING = Opening(Huber())
"""Every entry pulls, however far. Samples unlike the majority get components of their own; but so does an error that
covers the same part of many samples."""
WARY = Opening(Absolute(), cut=5.0)
"""What lies far from the start is ignored. It follows what most entries have in common: errors in up to half of each
sample do not reach it, and neither do samples unlike the majority."""


@dataclass(frozen=True)
class Staged:
    """Opening, main stage, last iterations; called like `robustnmf.algorithm.halfquadratic.run`.

    Parameters
    ----------
    openings : tuple of Opening
        Ways to begin, of which the better is followed.
    opening_iter, trial_iter : int
        Iterations of each opening, and of the main stage before the choice between them.
    last_iter : int
        Iterations with all entries at the end.
    momentum : float
        Share of the last move that is repeated before each iteration, to need fewer of them. It grows while the loss of
        held-out entries falls, up to `MOST_MOMENTUM`, and begins anew when that rises.
    patience : int
        Iterations without a better prediction of the held-out entries after which the main stage ends.
    """

    openings: tuple[Opening, ...] = (TRUSTING, WARY)
    opening_iter: int = 12
    trial_iter: int = 4
    last_iter: int = 10
    momentum: float = 0.5
    patience: int = 20

    def __call__(
        self,
        V: Blocks,
        M: Blocks | None,
        W: Array,
        Ht: Blocks,
        method: Method,
        engine: Engine,
        *,
        max_iter: int,
        tol: float,
        scale_floor: float,
        callback: Callback | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Result:
        """Fit by stages, at most `max_iter` iterations in all, openings included.

        With a `checkpoint` that holds the steps of an earlier fit it goes on from there.
        """
        given, whole = (V, M, Ht), _Whole.of(V, M, W.shape[1], engine)
        if whole is not None:
            V, M, Ht = whole.part(V), whole.part(M), whole.part(Ht)
        prepare = engine.kernels.prepare
        if prepare is not None and isinstance(method.solver, SharedGram):
            early = [opening.loss for opening in self.openings]
            prepare(W, [(method.loss, *given), *((loss, V, M, Ht) for loss in [*early, method.loss])])
        held = HeldOut.draw(V, M, engine)
        data = [V] if whole is None else [V, whole.V]
        journal = Journal(checkpoint, engine, data, W.shape[1], len(held.values))
        log = _Log(callback, journal)
        walk = _Walk(self, V, M, method, engine, held, log, journal, W.shape[1], max_iter, tol, scale_floor, whole)
        start = journal.point(lambda: held.point(W, Ht))
        walk.needed = [start]
        paths = [walk.open(start, opening) for opening in self.openings]
        return walk.finish(min(paths, key=lambda path: path.misfit))


@dataclass(frozen=True)
class _Whole:
    """Data with more samples than it takes to find the components; some are chosen, evenly spread."""

    V: Blocks
    M: Blocks | None
    chosen: Blocks
    """Which samples are, by their number in the block."""
    engine: Engine

    @classmethod
    def of(cls, V: Blocks, M: Blocks | None, rank: int, engine: Engine) -> "_Whole | None":
        """Return the data with a choice of samples, or None if all are needed."""
        n_samples, n_features = sum(len(block) for block in V), V[0].shape[1]
        every = int(n_samples / max(ENOUGH_ENTRIES / n_features, ENOUGH_SAMPLES * rank))
        if every < 2:
            return None
        chosen = evenly([len(block) for block in V], every)
        return cls(V, M, [engine.place(rows) for rows in chosen], engine)

    def part(self, blocks: Blocks | None) -> Any:
        """Return the rows of the samples that were chosen, in blocks of the size that the data has."""
        if blocks is None:
            return None
        return self.engine.regroup(self.engine.map(_choose, blocks, self.chosen), max(len(block) for block in self.V))


class _Log:
    """Keeps the history and the clock, and asks the callback."""

    def __init__(self, callback: Callback | None, journal: Journal) -> None:
        self.begin = perf_counter() - (journal.seconds[-1] if journal.seconds else 0.0)
        self.earlier = journal.seconds
        """When the iterations of an earlier fit, which goes on, were made."""
        self.history: list[Iteration] = []
        self.callback = callback
        self.stopped = False

    @property
    def n_iter(self) -> int:
        """Iterations made so far."""
        return len(self.history) - 1

    def add(self, scale: float, outlier_share: float, objective: float, change: float) -> None:
        """Add an iteration and ask the callback whether to stop."""
        number = len(self.history)
        is_earlier = number < len(self.earlier)
        seconds = self.earlier[number] if is_earlier else perf_counter() - self.begin
        self.history.append(Iteration(number, objective, scale, outlier_share, seconds, change))
        # Of an earlier iteration the callback has been told.
        self.stopped = not is_earlier and self.callback is not None and bool(self.callback(self.history[-1]))


class _Path(NamedTuple):
    """An opening and a trial of the main stage."""

    opening: Opening
    start: Point
    point: Point
    last: Point
    """The point before, for the momentum."""
    best: Point
    """The one of the opening that predicts best."""
    mixture: Mixture
    misfit: float
    """How large the residuals of the typical sample are."""


class _Stage(NamedTuple):
    """What the iterations of a stage have in common."""

    method: Method
    judge: Judge
    course: Course | None
    """How weightings and momentum follow from what the judge sees; None if they depend on more than that."""
    see_all: bool = False
    """Whether the entries held out are given back."""


@dataclass
class _Walk:
    """One fit: what its stages share."""

    plan: Staged
    V: Blocks
    M: Blocks | None
    method: Method
    engine: Engine
    held: HeldOut
    log: _Log
    journal: Journal
    rank: int
    max_iter: int
    tol: float
    scale_floor: float
    whole: _Whole | None
    """All samples, if V and M are some of them."""
    assessed: State | None = None
    """The last assessment by rules that look at all entries."""

    def __post_init__(self) -> None:
        self.floor = max(RESOLUTION * self.held.typical, self.scale_floor)
        self.momentum = self.plan.momentum
        self.last_iter = min(self.plan.last_iter, self.max_iter // 10)
        self.needed: list[Point] = []
        """Points that the fit may come back to, beside the last ones and those that a judge keeps."""

    def open(self, start: Point, opening: Opening) -> _Path:
        """Follow one opening and a trial of the main stage."""
        judge = Judge(self.held, OPENING_JUDGED_AT * self._median(start), start)
        if not self.log.history:
            weighting = self.weigh(start, self._mixture(start))
            beyond = self.held.magnitudes(start) > self._typical_cut(weighting)
            share = float(self.held.xp.count_nonzero(beyond)) / max(len(beyond), 1)
            self.log.add(float(weighting.scale), share, judge.path[0], inf)
        method = replace(self.method, loss=opening.loss, outliers=NoRejection(), solver=SharedGram(max_iter=1))
        course = Course(by_median=True, scale=(1.0, 0.0), cut=(opening.cut or 0.0, 0.0), lowest_scale=self.scale_floor)
        stage, point = _Stage(method, judge, course), start
        for left in range(min(self.plan.opening_iter, self.max_iter // 8), 0, -1):
            if not self.log.stopped:
                scale = self._median(point)
                cut = None if opening.cut is None else self._per_feature(opening.cut * scale)
                point = self._advance(point, point, Weighting(opening.loss, scale, cut), stage, left)
        last, mixture, best = point, self._mixture(point), judge.kept
        self.needed.append(best)
        self.momentum = self.plan.momentum
        stage = self._main_stage(judge)
        for left in range(min(self.plan.trial_iter, self.max_iter // 20), 0, -1):
            if not self.log.stopped:
                weighting = self.weigh(point, mixture)
                last, point = point, self._advance(point, last, weighting, stage, left, mixture.width)
                mixture = self._mixture(point, mixture)
        self.needed += [point, last]
        found = self.journal.values(
            lambda: {"misfit": self._misfit(point)}, lambda found: is_finite(found["misfit"]), point
        )
        return _Path(opening, start, point, last, best, mixture, found["misfit"])

    def _misfit(self, point: Point) -> float:
        """Return how large the residuals of the typical sample are, as a logarithm."""
        shared = {"W": point.W, "floor": self.floor, "engine": self.engine}
        total, n_samples = self.engine.sum(_log_medians, self.V, self.M, point.Ht, **shared)
        return float(total / n_samples) if n_samples else 0.0

    def finish(self, path: _Path) -> Result:
        """Go on with the main stage, and end as the held-out entries say."""
        rule = self.method.scale  # who fixes the scale says by which loss to judge
        scale = rule.value if isinstance(rule, FixedScale) else JUDGED_AT * path.mixture.width
        judge = Judge(self.held, scale, path.best)
        judge.offer(path.point)
        point, last, mixture, converged = path.point, path.last, path.mixture, False
        self.momentum = self.plan.momentum
        self.needed = []
        stage, most = self._main_stage(judge), self.max_iter - (1 + MOST_RELAXATIONS) * self.last_iter
        while not (converged or self.log.stopped) and self.log.n_iter < most:
            weighting = self.weigh(point, mixture)
            left = most - self.log.n_iter
            last, point = point, self._advance(point, last, weighting, stage, left, mixture.width)
            mixture = self._mixture(point, mixture)
            at_rest = judge.change <= self.tol and judge.kept is point
            converged = at_rest or judge.unimproved > self.plan.patience
        warning = None if self.log.stopped else self._warning(path.start, judge.kept)
        code_sweeps = None
        if judge.kept is point:
            point, weighting = self._complete(point, mixture, judge)
        else:  # it began to follow the noise
            point, converged = judge.kept, not self.log.stopped
            mixture = self._mixture(point)
            weighting = self._decide(self.weigh(point, mixture), mixture)
            code_sweeps = self._code_sweeps(point, weighting, judge)
            point = self._with_all_samples(point, weighting, code_sweeps)
        end = self.log.history[-1]
        state = State(point.W, point.Ht, weighting, end.objective, float(weighting.scale), end.outlier_share)
        return Result(state, self.log.history, converged, self.log.stopped and not converged, code_sweeps, warning)

    def _complete(self, point: Point, mixture: Mixture, judge: Judge) -> tuple[Point, Weighting]:
        """Return the fit after its last iterations, with the scale and cut that are to be used from then on."""
        weighting = self.weigh(point, mixture)
        point = self._find_lost(point, weighting)
        for _ in range(MOST_RELAXATIONS):
            relaxed, wider = self._relax(point, weighting, judge)
            if relaxed is point:
                break
            point, weighting, mixture = relaxed, wider, mixture._replace(width=RELAXED * mixture.width)
        point = self._with_all_samples(self._look_again(point, weighting), weighting)
        point = self._settle(point, weighting, judge, see_all=True)
        return point, self._decide(weighting, mixture)

    def _relax(self, point: Point, weighting: Weighting, judge: Judge) -> tuple[Point, Weighting]:
        """Return the fit with scale and cut twice as wide, if that predicts held-out entries clearly better.

        Tails of the residuals that are heavier than Laplace's may be errors, or something that the components explain
        as soon as they are allowed to. Squares tell, up to twice the cut: beyond it are errors in any case.
        """
        held_out = isinstance(self.method.scale, MixtureScale) and isinstance(self.method.outliers, MixtureRule)
        if weighting.cut is None or not held_out:
            return point, weighting
        limit = RELAXED * self._typical_cut(weighting)
        cut = mapped(weighting.cut, lambda cut: RELAXED * cut)
        wider = replace(weighting, scale=RELAXED * weighting.scale, cut=cut)
        self.needed = [point]
        relaxed = self._settle(point, wider, judge)
        self.needed = []
        before, after = (self.held.mean(self._limited(p, limit) ** 2) for p in (point, relaxed))
        return (relaxed, wider) if after < CLEARLY_BETTER * before else (point, weighting)

    def _limited(self, point: Point, limit: Any) -> Array:
        """Return the magnitudes of held-out residuals, at most the limit."""
        magnitudes, xp = self.held.magnitudes(point), self.held.xp
        return xp.where(magnitudes > limit, limit, magnitudes)

    def _look_again(self, point: Point, weighting: Weighting) -> Point:
        """Return the point with its features encoded anew, where that gives a lower loss, if there are few samples.

        With few samples an error may have pulled a feature to where another of its entries looks wrong instead, and
        there it would stay. Samples are encoded anew in any case.
        """
        enough = FEW_SAMPLES * self.rank * self.V[0].shape[1]
        if self.held.n_observed > enough or weighting.is_spatial or self.method.fixed:
            return point
        parts = (self.V, self.M, point.W, point.Ht, weighting, self.engine)
        return self.journal.point(lambda: self.held.point(encode_all_features(*parts), point.Ht), point)

    def _find_lost(self, point: Point, weighting: Weighting) -> Point:
        """Return the point with features encoded anew that are cut far more than others, where the codes explain them.

        What is cut no longer pulls: a feature far larger than the others, of which nothing was within the cut when it
        had to be, would never come back.
        """
        if weighting.cut is None or weighting.is_spatial or self.method.fixed or self.method.loss.group == "sample":
            return point
        now, how = (self.V, self.M, point.W, point.Ht), (weighting, self.engine)
        found = self.journal.values(lambda: {"lost": lost_features(*now, *how)}, self._are_features, point)
        lost = found["lost"]
        if not lost.size:
            return point
        return self.journal.point(lambda: self.held.point(encode_lost(*now, lost, *how), point.Ht), point)

    def _are_features(self, found: dict[str, Any]) -> bool:
        """Return whether a checkpoint has numbers of features."""
        lost = found["lost"]
        return lost.ndim == 1 and lost.dtype.kind == "i" and bool(np.isin(lost, np.arange(self.V[0].shape[1])).all())

    def _with_all_samples(self, point: Point, weighting: Weighting, code_sweeps: int | None = None) -> Point:
        """Return the point with the codes of all samples, if it has those of some."""
        if self.whole is None:
            return point
        return self.journal.point(lambda: self._encode_all(point, weighting, code_sweeps), point)

    def _encode_all(self, point: Point, weighting: Weighting, code_sweeps: int | None) -> Point:
        """Return the point with the codes of all samples."""
        assert self.whole is not None
        code = typical_code(point.W, point.Ht, None, self.engine)
        basis = Basis(point.W, code, weighting, self.method.penalties, code_sweeps)
        Ht = basis.encode(self.whole.V, self.whole.M, self.engine, max_iter=0, tol=0.0)
        return point._replace(Ht=Ht)

    def _decide(self, weighting: Weighting, mixture: Mixture) -> Weighting:
        """Return the weighting that cuts what is rather wrong than clean.

        While the factors move the cut has to be generous; once they are found, it can be where it belongs. Residuals of
        the entries that were fitted do not say where that is.
        """
        if weighting.cut is None or not isinstance(self.method.outliers, MixtureRule) or not self.held.hidden:
            return weighting
        return replace(weighting, cut=self._per_feature(min(float(weighting.cut[0]), mixture.verdict)))

    def _settle(self, point: Point, weighting: Weighting, judge: Judge, *, see_all: bool = False) -> Point:
        """Return the point after a few iterations with fixed scale and cut."""
        last, stage = point, _Stage(self.method, judge, self._with_momentum(Course()), see_all)
        for left in range(min(self.last_iter, self.max_iter - self.log.n_iter), 0, -1):
            if not self.log.stopped:
                last, point = point, self._advance(point, last, weighting, stage, left)
        return point

    def _main_stage(self, judge: Judge) -> _Stage:
        """Return the main stage; its weightings are those of `weigh`."""
        scale_rule, cut_rule = self.method.scale, self.method.outliers
        if not self._weighs_by_held_out:
            return _Stage(self.method, judge, None)
        course = Course(lowest_width=self.floor, lowest_scale=self.scale_floor)
        if isinstance(scale_rule, MixtureScale):
            course = course._replace(scale=(scale_rule.factor, scale_rule.power))
        if isinstance(cut_rule, MixtureRule):
            course = course._replace(cut=(cut_rule.factor, cut_rule.power))
        return _Stage(self.method, judge, self._with_momentum(course))

    def _with_momentum(self, course: Course) -> Course:
        return course._replace(first_momentum=self.plan.momentum, growth=MOMENTUM_GROWTH, most_momentum=MOST_MOMENTUM)

    @property
    def _weighs_by_held_out(self) -> bool:
        """Whether scale and cut are known from entries held out."""
        rules = self.method.scale, self.method.outliers
        return isinstance(rules[0], MixtureScale | FixedScale) and isinstance(rules[1], MixtureRule | NoRejection)

    def weigh(self, point: Point, mixture: Mixture) -> Weighting:
        """Return loss, scale and cut of the model: those of a mixture by held-out entries, others by those fitted."""
        scale_rule, cut_rule = self.method.scale, self.method.outliers
        if self._weighs_by_held_out:
            weighting = Weighting(self.method.loss, self.scale_floor, None, cut_rule)
        else:
            weighting = self._assessed(point)
        if isinstance(scale_rule, FixedScale):
            weighting = replace(weighting, scale=max(scale_rule.value, self.scale_floor))
        elif isinstance(scale_rule, MixtureScale):
            weighting = replace(weighting, scale=max(scale_rule.of(mixture), self.scale_floor))
        if isinstance(cut_rule, MixtureRule):
            weighting = replace(weighting, cut=self._per_feature(cut_rule.of(mixture)))
        return weighting

    def _assessed(self, point: Point) -> Weighting:
        """Return scale and cut that the rules of the method find for all residuals."""

        def by_rules() -> dict[str, Any]:
            W, Ht, method, floor = point.W, point.Ht, self.method, self.scale_floor
            state = assess(self.V, self.held.M, W, Ht, self.assessed, method, self.engine, floor)
            cut = state.weighting.cut
            numbers = {"scale": state.weighting.scale, "first": state.first_scale}
            return numbers | ({} if cut is None else {"cut": to_host(cut)})

        found = self.journal.values(by_rules, self._are_rules, point)
        cut = self.engine.place(found["cut"]) if "cut" in found else None
        weighting = Weighting(self.method.loss, found["scale"], cut, self.method.outliers)
        self.assessed = State(point.W, point.Ht, weighting, 0.0, found["first"], 0.0)
        return weighting

    def _are_rules(self, found: dict[str, Any]) -> bool:
        """Return whether a checkpoint has a scale and cuts."""
        n_cuts = 1 if self.method.loss.group == "sample" else self.V[0].shape[1]
        if "cut" in found:
            factor(found["cut"], (n_cuts,), bounded=False)
        return positive(found["scale"]) > 0 and positive(found["first"]) > 0

    def _mixture(self, point: Point, last: Mixture | None = None) -> Mixture:
        """Return the mixture of a point's residuals; within a stage the width falls and never rises."""
        mixture = self.held.mixture(point)
        width = max(mixture.width, self.floor)
        return mixture._replace(width=width if last is None else min(width, last.width))

    def _median(self, point: Point) -> float:
        """Return the median magnitude of held-out residuals that tell of noise."""
        return max(self.held.median(point), self.scale_floor)

    def _per_feature(self, cut: float) -> Array:
        n_features = self.V[0].shape[1]
        return self.engine.xp.broadcast_to(self.engine.place(cut, self.V[0].dtype), (n_features,))

    def _typical_cut(self, weighting: Weighting) -> Any:
        """Return the median of the cuts of all features; if it is on a device, and so is what it cuts, it stays."""
        cut = weighting.cut
        if cut is None:
            return inf
        if is_uniform(cut):
            return cut[0] if is_foreign(cut) and is_foreign(self.held.values) else float(cut[0])
        return float(np.median(to_host(cut)))

    def _advance(
        self, point: Point, last: Point, weighting: Weighting, stage: _Stage, left: int, width: float = inf
    ) -> Point:
        """Return the point after one iteration, with momentum from the last one.

        `left` are the iterations that the stage may still make, this one included; `width` is that of the mixture by
        which the weighting was found.
        """
        judge = stage.judge
        new = self.journal.point(lambda: self._next(point, last, weighting, stage, left, width), point, last)
        share = judge.offer(new, self._typical_cut(weighting))
        falls = judge.path[-1] < judge.path[-2]
        self.momentum = min(MOMENTUM_GROWTH * self.momentum, MOST_MOMENTUM) if falls else self.plan.momentum
        self.log.add(float(weighting.scale), share, judge.path[-1], judge.change)
        needed = [*self.needed, new, point, judge.kept]
        self.journal.save_if_due(needed, [iteration.seconds for iteration in self.log.history])
        return new

    def _next(self, point: Point, last: Point, weighting: Weighting, stage: _Stage, left: int, width: float) -> Point:
        """Return the point that one iteration leads to."""
        foreseen = self._foreseen(point, last, weighting, stage, left, width)
        if foreseen is not None:
            return foreseen
        W, Ht, engine, method = point.W, point.Ht, self.engine, stage.method
        if last is not point:
            W = _onward(W, last.W, momentum=self.momentum, engine=engine, xp=engine.xp)
            Ht = engine.map(_onward, Ht, last.Ht, momentum=self.momentum, engine=engine)
        if stage.see_all and self.whole is not None:
            W, Ht = sweep(self.whole.V, self.whole.M, W, Ht, weighting, method, engine)
            Ht = engine.anchor(Ht)
            return self.held.point(W, self.whole.part(Ht))._replace(Ht=Ht)
        hidden = self.held.positions if self.held.hidden and not stage.see_all else None
        W, Ht = sweep(self.V, self.M, W, Ht, weighting, method, engine, hidden)
        return self.held.point(W, engine.anchor(Ht))

    def _foreseen(
        self, point: Point, last: Point, weighting: Weighting, stage: _Stage, left: int, width: float
    ) -> Point | None:
        """Return the point that one iteration leads to, if the engine makes iterations ahead."""
        kernel = self.engine.kernels.iterate
        method, judge, course, see_all = stage
        if kernel is None or course is None or not isinstance(method.solver, SharedGram):
            return None
        if weighting.is_spatial or (see_all and self.whole is not None):
            return None
        now, before = ([p.W, *p.Ht] for p in (point, last))
        momentum, scale = min(self.momentum, course.most_momentum), float(weighting.scale)
        judged = (judge.best, judge.path[-1], judge.scale)
        stand = Stand(now, before, momentum, width, scale, weighting.cut, *judged)
        hide = self.held.hidden and not see_all
        new = kernel(self.V, self.M, self.held, hide, method, stand, course, left)
        return None if new is None else self.held.point(*new)

    def _code_sweeps(self, point: Point, weighting: Weighting, judge: Judge) -> int | None:
        """Return after how many sweeps codes in the basis of this point predict held-out entries best.

        None if they do when they have converged.
        """
        M, engine = self.held.M, self.engine
        basis = Basis(point.W, typical_code(point.W, point.Ht, None, engine), weighting)
        losses = []
        for Ht in basis.path_of_codes(self.V, M, MOST_CODE_SWEEPS, engine):
            judge.offer(self.held.point(point.W, Ht))
            losses.append(judge.path[-1])
        judge.offer(self.held.point(point.W, basis.encode(self.V, M, engine, max_iter=50, tol=1e-3)))
        return None if judge.path[-1] <= min(losses) else int(np.argmin(losses))

    def _warning(self, start: Point, end: Point) -> str | None:
        """Return what the user should know if the fit learnt nothing beyond its start."""
        hopeless = self._median(end) > LEARNT_NOTHING * self._median(start)
        had_time = self.log.n_iter >= len(self.plan.openings) * (self.plan.opening_iter + self.plan.trial_iter)
        if self.rank == 1 or not self.held.hidden or not had_time or not hopeless:
            return None
        return (
            "entries held out of the fit are predicted hardly better than by its start. For the median start, one "
            f"component does as well as {self.rank}: either it is enough, or too much of the data is wrong or too "
            "noisy to tell more, and then the components mean nothing."
        )


@block_function(light=True)
def _choose(rows: Array, chosen: Array, *, xp: Namespace) -> Array:
    """Return some of the rows."""
    return rows[chosen]


@block_function(light=True)
def _onward(new: Array, last: Array, *, momentum: float, engine: Engine, xp: Namespace) -> Array:
    """Return a factor moved on by a share of its last move, non-negative."""
    kernel = engine.kernels.extrapolate
    if kernel is not None:
        return kernel(new, last, momentum)
    moved = new + momentum * (new - last)
    return xp.where(moved > 0, moved, 0)


def _log_medians(
    Y: Array, M: Array | None, X: Array, *, W: Array, floor: float, engine: Engine, xp: Namespace
) -> tuple[float, float]:
    """Return the sum over samples of the logarithm of their median residual, and the number of samples.

    Half of a sample may be wrong and its median still tells how well the rest is fitted; and a logarithm lets no sample
    weigh more than others. As r entries are fitted by any code, the median is that of least-median regression: the
    residual at rank (m + r + 1) / 2. Zeros do not count: those of a sparse sample are fitted by any model. A sample
    counts by the largest weight of its entries.
    """
    counts = xp.astype(Y > 0, Y.dtype) if M is None else xp.where(Y > 0, M, 0)
    n_counted = xp.sum(xp.astype(counts > 0, xp.int64), axis=1)
    middle = xp.minimum((n_counted + W.shape[1] - 1) // 2, xp.maximum(n_counted - 1, 0))
    medians = order_statistics(xp.where(counts > 0, xp.abs(Y - X @ W.T), inf), middle, engine)
    weights = xp.max(counts, axis=1)
    logarithms = xp.log(xp.where((weights > 0) & (medians > floor), medians, floor))
    return float(xp.sum(weights * logarithms, dtype=xp.float64)), float(xp.sum(weights, dtype=xp.float64))
