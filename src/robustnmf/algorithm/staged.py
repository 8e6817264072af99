"""HOW it gets there: the stages of the default.

The loss is not convex. Where the alternation ends depends on where it starts, on how soon it begins to ignore
entries, and on when it stops. `Staged` answers all three by measurement, on a few entries that it holds out:

1. Two initial stages from the same start, one with Huber's loss and one with the truncated L1 loss. A short trial of
   the main stage follows each, and the one that leaves the typical sample with the smaller residuals goes on.
2. The main stage lowers the loss of the model. Scale and threshold come from the entries held out: the fit has not seen
   them, so their residuals are those of new data. It ends when they are no longer predicted better.
3. Without a noise model, the fit may turn out to have been too strict: scale and threshold are doubled if that predicts
   the held-out entries clearly better.
4. What is wrong is decided in units of the noise of each entry, and the rest is fitted by least squares; see
   `robustnmf.algorithm.finish`. Held-out entries are used again. Of large data, all stages before work with some of the
   samples, and all of them come in here.

If the fit had begun to follow the noise, the best iterate stays as it is instead, and the codes of samples are stopped
early as well.

Each stage is a function of an immutable `State` and returns one; `robustnmf.algorithm.steps` says how it is run.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from robustnmf.algorithm import halfquadratic
from robustnmf.algorithm.checkpoint import Checkpoint, Journal, factor, is_finite, positive
from robustnmf.algorithm.encoding import Basis, order_statistics, typical_code
from robustnmf.algorithm.feature_recovery import encode_all_features, encode_rejected, rejected_features
from robustnmf.algorithm.finish import CLEAR_GAIN, MOST_WRONG, Comparison, Judged, LeastSquares
from robustnmf.algorithm.halfquadratic import (
    Callback,
    Method,
    Result,
    apply_rules,
    extrapolate,
    magnitudes_of,
    sweep,
)
from robustnmf.algorithm.holdout import HeldOut, Point
from robustnmf.algorithm.initializers import MedianStart
from robustnmf.algorithm.monitor import Monitor
from robustnmf.algorithm.steps import Compute, Driver, Measure, Report
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.model.losses import Absolute, Huber, Loss
from robustnmf.model.mixture import SPARSE, Mixture
from robustnmf.model.noise import ARRAYS, NOISES, Noise, NoiseModel
from robustnmf.model.outliers import NoRejection
from robustnmf.model.scales import reads
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import SharedGram
from robustnmf.utils.arrays import Array, Blocks, Namespace, is_foreign, is_uniform, mapped, subsample, to_host
from robustnmf.utils.cached import cached_property

__all__ = ["InitialStage", "Staged"]

# With more than twice as many entries, and samples per component, some samples are enough to find the components.
ENOUGH_ENTRIES, ENOUGH_SAMPLES = 2**22, 50
# Residuals below this part of the typical entry are a fit that still converges, not noise.
RESOLUTION = 1e-3
# Those of sparse data are below this part: what is positive is mostly counts, and one may be met exactly by chance.
SPARSE_RESOLUTION = 0.5
# The loss of held-out entries is Cauchy's, at so many widths of the clean residuals: it counts small improvements of
# clean entries and hardly sees the errors.
MONITORED_AT = 2.0
# During an initial stage the width is not known yet; then it is so many medians of the residuals of the start.
INITIALLY_MONITORED_AT = 0.3
# Momentum grows by this factor in each iteration, up to a limit.
MOMENTUM_GROWTH, MOST_MOMENTUM = 1.02, 0.9
# How much wider scale and threshold become where the tails of the residuals can be explained.
RELAXED = 2.0
# They become so at most so often,
MOST_RELAXATIONS = 2
# and only if squared residuals of held-out entries fall below this part of what they were: errors nobody can predict.
CLEARLY_BETTER = 0.99
# With so many samples per component, errors in some of them cannot mislead a feature.
FEW_SAMPLES = 8
# Sweeps over the codes that are tried, after a fit that had to be stopped.
MOST_CODE_SWEEPS = 12
# Entries are judged by their noise at least and at most so many times, as long as this share of them turns out to be
# right; and sweeps of least squares before each time.
FEWEST_ROUNDS, MOST_ROUNDS, SETTLED, NOISE_SWEEPS = 2, 10, 0.002, 8
# If the noise is below this part of the level of features, a threshold of this part is tried before all entries are.
HARDLY_ANY_NOISE, WIDEST = 0.005, 0.25
# Least squares that leaves so many times the total absolute residual after a few sweeps is not followed.
HOPELESS = 1.1
# If nothing is wrong, new entries are rejected beyond so many times the largest residual.
NOTHING_WRONG = 1.5
# Residuals above this part of the entries are dense noise, which a fit may follow; unless they grow with the entry, by
# at least this power, and hardly more than this share is rejected.
DENSE_NOISE, GROWING_NOISE, MUCH_REJECTED = 0.2, 0.8, 0.13
# Sweeps of least squares on all entries after which it is compared, and the most in all.
TRIAL_SWEEPS, MOST_SWEEPS = (5, 30, 100), 400
# Of sparse data, an entry counts as far off from so many scales on; and paths are compared by the loss of entries that
# they have fitted, so the one that follows fewer of them may have a loss larger by this factor.
BOUNDED_AT, CLEARLY_WORSE = 5.0, 1.04
# A fit has learnt something if the median residual of held-out entries fell below this part of that at the start.
LEARNT_NOTHING = 0.95


class InitialStage(NamedTuple):
    """Some first iterations, whose scale is the median magnitude of held-out residuals, or another quantile."""

    loss: Loss
    threshold: float | None = None
    """Scales beyond which an entry is ignored."""
    quantile: float = 0.5


HUBER = InitialStage(Huber())
"""Every entry pulls, however far. Samples unlike the majority get components of their own; but so does an error that
covers the same part of many samples."""
TRUNCATED_L1 = InitialStage(Absolute(), threshold=5.0)
"""What lies far from the start is ignored. It follows what most entries have in common: errors in up to half of each
sample do not reach it, and neither do samples unlike the majority."""


STRICT_L1 = InitialStage(Absolute(), threshold=3.0, quantile=0.2)
"""For data of which so much is wrong that the median residual is large."""
DENSEST_START = MedianStart(densest=0.3)
# If less than this share of the residuals is clean, medians of some samples and features may be wrong.
MUCH_IS_WRONG = 0.8


@dataclass(frozen=True)
class Staged:
    """Initial stages, main stage, last iterations; called like `robustnmf.algorithm.halfquadratic.run`.

    Parameters
    ----------
    initial_stages : tuple of InitialStage
        Ways to begin, of which the better is followed.
    initial_iter, trial_iter : int
        Iterations of each initial stage, and of the main stage before the choice between them.
    last_iter : int
        Iterations with all entries at the end.
    momentum : float
        Share of the last move that is repeated before each iteration, to need fewer of them. It grows while the loss of
        held-out entries falls, up to `MOST_MOMENTUM`, and begins anew when that rises.
    patience : int
        Iterations without a better prediction of the held-out entries after which the main stage ends.
    noise : Noise or None
        What is assumed of the noise of each entry where the fit ends; None judges and weights all entries by the loss
        alone.
    """

    initial_stages: tuple[InitialStage, ...] = (HUBER, TRUNCATED_L1)
    initial_iter: int = 12
    trial_iter: int = 4
    last_iter: int = 10
    momentum: float = 0.5
    patience: int = 20
    noise: Noise | None = NOISES["auto"]

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
        units: Array | None = None,
    ) -> Result:
        """Fit by stages, at most `max_iter` iterations in all, initial stages included.

        `units` (m,) are what features are multiplied by in least squares, if they were divided by something. With a
        `checkpoint` that holds the steps of an earlier fit it goes on from there.
        """
        given, whole = (V, M, Ht), AllSamples.of(V, M, W.shape[1], engine)
        if whole is not None:
            V, M, Ht = whole.part(V), whole.part(M), whole.part(Ht)
        if engine.kernels.prepare is not None and method.solver.sweeps_by_kernel:
            losses = [*(stage.loss for stage in self.initial_stages), method.loss]
            weightings = [Weighting(loss, 1.0) for loss in losses]
            engine.kernels.prepare(W, [(weightings[-1], *given), *((weighting, V, M, Ht) for weighting in weightings)])
        held = HeldOut.draw(V, M, engine)
        data = [V] if whole is None else [V, whole.V]
        journal = None if checkpoint is None else Journal(checkpoint, engine, data, W.shape[1], len(held.values))
        driver = Driver(callback, journal)
        fit = Fit(self, V, M, method, engine, held, whole, W.shape[1], max_iter, tol, scale_floor, units)
        end = driver.run(stages(fit, W, Ht))
        last = driver.history[-1]
        scale = float(end.weighting.scale)
        state = halfquadratic.State(end.point.W, end.point.Ht, end.weighting, last.objective, scale, last.outlier_share)
        stopped = end.stopped and not end.converged
        return Result(state, driver.history, end.converged, stopped, end.code_sweeps, end.warning, end.noise, end.judge)

    def opening(
        self,
        V: Blocks,
        M: Blocks | None,
        W: Array,
        Ht: Blocks,
        method: Method,
        engine: Engine,
        *,
        max_iter: int,
        scale_floor: float,
    ) -> tuple[Array, Blocks]:
        """Return the factors after the better of the initial stages."""
        held = HeldOut.draw(V, M, engine)
        fit = Fit(self, V, M, method, engine, held, None, W.shape[1], max_iter, 0.0, scale_floor)
        _, state, _ = Driver(None, None).run(opening(fit, W, Ht))
        return state.point.W, state.point.Ht

    def iterations_at_end(self, max_iter: int) -> int:
        """Return the iterations of each of the last stages."""
        return min(self.last_iter, max_iter // 10)

    def fewest_iter(self, max_iter: int) -> int:
        """Return the iterations that a fit which does not converge makes at least: it need not try all relaxations."""
        return max_iter - MOST_RELAXATIONS * self.iterations_at_end(max_iter)


@dataclass(frozen=True)
class AllSamples:
    """Data with more samples than it takes to find the components; some are chosen, evenly spread."""

    V: Blocks
    M: Blocks | None
    chosen: Blocks
    """Which samples are, a slice of each block."""
    engine: Engine

    @classmethod
    def of(cls, V: Blocks, M: Blocks | None, rank: int, engine: Engine) -> "AllSamples | None":
        """Return the data with a choice of samples, or None if all are needed."""
        n_samples, n_features = sum(len(block) for block in V), V[0].shape[1]
        every = int(n_samples / max(ENOUGH_ENTRIES / n_features, ENOUGH_SAMPLES * rank))
        if every < 2:
            return None
        return cls(V, M, subsample([len(block) for block in V], every), engine)

    def part(self, blocks: Blocks | None) -> Any:
        """Return the rows of the samples that were chosen, in blocks of the size that the data has."""
        if blocks is None:
            return None
        return self.engine.regroup(self.engine.map(_choose, blocks, self.chosen), max(len(block) for block in self.V))


@dataclass(frozen=True)
class Fit:
    """What all stages of a fit share, and none of them changes."""

    plan: Staged
    V: Blocks
    M: Blocks | None
    method: Method
    engine: Engine
    held: HeldOut
    whole: AllSamples | None
    """All samples, if V and M are some of them."""
    rank: int
    max_iter: int
    tol: float
    scale_floor: float
    units: Array | None = None
    """What features are multiplied by in least squares, (m,)."""

    @property
    def floor(self) -> float:
        """The smallest width of clean residuals."""
        resolution = SPARSE_RESOLUTION if self.is_sparse else RESOLUTION
        return max(resolution * self.held.typical, self.scale_floor)

    @property
    def has_mixture_rules(self) -> bool:
        """Whether scale and threshold come from the mixture of residuals."""
        return reads(self.method.scale) == reads(self.method.outliers) == "mixture"

    @cached_property
    def judges_by_noise(self) -> bool:
        """Whether entries are judged by their noise: by the rules of the default, and with enough that is positive."""
        if self.plan.noise is None or not self.has_mixture_rules or hasattr(self.method.outliers, "mask"):
            return False
        n_parameters = self.rank * (self.n_samples + self.n_features)
        return self.n_positive > n_parameters

    @property
    def n_samples(self) -> int:
        """Number of samples that the stages work with."""
        return sum(len(block) for block in self.V)

    @property
    def last_iter(self) -> int:
        """Iterations at the end."""
        return self.plan.iterations_at_end(self.max_iter)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.V[0].shape[1])

    def mixture(self, point: Point, last: Mixture | None = None) -> Mixture:
        """Return the mixture of a point's held-out residuals; within a stage the width falls and never rises."""
        mixture = self.held.mixture(point)
        width = max(mixture.width, self.floor)
        return mixture._replace(width=width if last is None else min(width, last.width))

    @cached_property
    def is_sparse(self) -> bool:
        """Whether most entries are zero."""
        return self.n_positive < SPARSE * self.held.n_observed

    @cached_property
    def n_positive(self) -> int:
        """Number of positive entries."""
        return int(self.engine.sum(_n_positive, self.V, self.M))

    def median(self, point: Point) -> float:
        """Return the median magnitude of informative held-out residuals."""
        return max(self.held.median(point), self.scale_floor)

    def quantile(self, point: Point, q: float) -> float:
        """Return another quantile of them."""
        return max(self.held.quantile(point, q), self.scale_floor)

    def per_feature(self, threshold: float) -> Array:
        """Return a threshold as a vector, (m,), that is one number in memory."""
        one = self.engine.place(threshold, self.V[0].dtype)
        return self.engine.xp.broadcast_to(one, (self.n_features,))

    def typical_threshold(self, weighting: Weighting) -> Any:
        """Return the median threshold of all features; on a device, if what it is compared with is there too."""
        threshold = weighting.threshold
        if threshold is None:
            return inf
        if is_uniform(threshold):
            return threshold[0] if is_foreign(threshold) and is_foreign(self.held.values) else float(threshold[0])
        return float(np.median(to_host(threshold)))


class State(NamedTuple):
    """Where a fit stands: what the next iteration needs."""

    point: Point
    last: Point
    """The point before, for the momentum; the same one for none."""
    momentum: float
    mixture: Mixture
    """Of the held-out residuals of the point."""
    monitor: Monitor
    n_iter: int = 0
    stopped: bool = False
    """Whether the callback wants to stop."""
    needed: tuple[Point, ...] = ()
    """Points that the fit may come back to, beside the last ones and the one that the monitor keeps."""
    scales: tuple[float, float] | None = None
    """Last and first scale that a rule found for the residuals of all entries."""


class Path(NamedTuple):
    """An initial stage and a trial of the main stage."""

    state: State
    best: Point
    """The point of the initial stage that predicts best."""
    misfit: float
    """How large the residuals of the typical sample are, as a logarithm."""


class End(NamedTuple):
    """Where a fit ends."""

    point: Point
    weighting: Weighting
    converged: bool
    stopped: bool
    code_sweeps: int | None
    warning: str | None
    noise: NoiseModel | None = None
    judge: Basis | None = None


class HeldOutMagnitudes(Sequence[Array]):
    """The magnitudes of all residuals, computed when a rule asks for them, with the mixture of those held out."""

    def __init__(self, fit: Fit, point: Point, mixture: Mixture) -> None:
        self.fit, self.point, self.mixture = fit, point, mixture

    @cached_property
    def blocks(self) -> Blocks:
        """The magnitudes."""
        fit, point = self.fit, self.point
        return magnitudes_of(fit.V, fit.held.M, point.W, point.Ht, fit.method.loss, fit.engine)

    def __len__(self) -> int:
        return len(self.fit.V)

    def __getitem__(self, index: Any) -> Any:
        return self.blocks[index]


Steps: TypeAlias = Generator[Any, Any, State]


# --- The stages -------------------------------------------------------------------------------------------------------


def stages(fit: Fit, W: Array, Ht: Blocks) -> Generator[Any, Any, End]:
    """Follow the better of the initial stages to the end."""
    start, state, best = yield from opening(fit, W, Ht)
    state, converged = yield from main_stage(fit, state, best)
    warning = None if state.stopped else learnt_nothing(fit, start, state)
    follows_noise = state.monitor.kept is not state.point
    if follows_noise:
        state = state._replace(point=state.monitor.kept, mixture=fit.mixture(state.monitor.kept))
        state, weighting = yield from weigh(fit, state)
    else:
        state, weighting = yield from refine(fit, state)
    if fit.judges_by_noise and not state.stopped:
        squares, point, judged, comparison = yield from judge(fit, state, weighting, follows_noise)
        nothing_wrong = judged is not None and judged.model.threshold == inf
        # Least squares on nearly all entries is plain NMF: it is no worse if one component does as well.
        warning = None if judged is not None and comparison.rejected < MUCH_REJECTED else warning
        warning = warning or (None if nothing_wrong else comparison.doubt or comparison.much_is_wrong)
        if judged is not None:
            return (yield from finish(fit, state._replace(point=point), weighting, squares, judged, converged, warning))
    if follows_noise:
        return (yield from early_stop(fit, state, weighting, warning))
    state, weighting = yield from last_stages(fit, state, weighting)
    return End(state.point, weighting, converged, state.stopped, None, warning)


def opening(fit: Fit, W: Array, Ht: Blocks) -> Generator[Any, Any, tuple[Point, State, Point]]:
    """Return the start, where the better of the initial stages leads, and the point of it that predicts best."""
    start = yield Compute(partial(fit.held.point, W, Ht))
    monitor = Monitor.begin(fit.held, INITIALLY_MONITORED_AT * fit.median(start), start)
    state = State(start, start, fit.plan.momentum, fit.mixture(start), monitor, needed=(start,))
    latest, paths = (yield from report_start(fit, state)), []
    for stage in fit.plan.initial_stages:
        # What the fit has counted and found goes on; where it stands is the start again.
        path = yield from initial_stage(fit, latest._replace(point=start, last=start, monitor=monitor), stage)
        latest = path.state
        paths.append(path)
    path = min(paths, key=lambda path: path.misfit)
    if (fit.is_sparse or path.state.mixture.share < MUCH_IS_WRONG) and not latest.stopped and not fit.method.fixed:
        begin = yield Compute(partial(start_of_densest, fit))
        again = Monitor.begin(fit.held, INITIALLY_MONITORED_AT * fit.median(begin), begin)
        other = yield from initial_stage(fit, latest._replace(point=begin, last=begin, monitor=again), STRICT_L1)
        latest, paths = other.state, [*paths, other]
        path = best_of_sparse(fit, paths) if fit.is_sparse else min(path, other, key=lambda path: path.misfit)
    state = path.state._replace(n_iter=latest.n_iter, stopped=latest.stopped, scales=latest.scales, needed=())
    return start, state, path.best


def best_of_sparse(fit: Fit, paths: list[Path]) -> Path:
    """Return the best path of sparse data: the last, which is the strictest, unless another is clearly better.

    Zeros count, and by how much an entry can count is bounded: errors may be most of what is positive.
    """
    width = min(path.state.mixture.width for path in paths)
    scale = max(MONITORED_AT * width, fit.held.typical)
    losses = []
    for path in paths:
        limit = BOUNDED_AT * scale
        losses.append(fit.held.mean(np.log1p((to_host(limited(fit, path.state.point, limit)) / scale) ** 2)))
    return paths[-1] if losses[-1] <= CLEARLY_WORSE * min(losses) else paths[int(np.argmin(losses))]


def start_of_densest(fit: Fit) -> Point:
    """Return a start that does not break where more than half of a sample or feature is wrong."""
    W, Ht = DENSEST_START.factors(fit.V, fit.M, fit.rank, np.random.default_rng(0), fit.engine)
    dtype = fit.V[0].dtype
    return fit.held.point(fit.engine.place(W, dtype), fit.engine.map(_as_type, Ht, dtype=dtype))


def initial_stage(fit: Fit, state: State, stage: InitialStage) -> Generator[Any, Any, Path]:
    """Follow one initial stage and a trial of the main stage."""
    method = replace(fit.method, loss=stage.loss, outliers=NoRejection(), solver=SharedGram(max_iter=1))
    for _ in range(min(fit.plan.initial_iter, fit.max_iter // 8)):
        if not state.stopped:
            scale = fit.median(state.point) if stage.quantile == 0.5 else fit.quantile(state.point, stage.quantile)
            threshold = None if stage.threshold is None else fit.per_feature(stage.threshold * scale)
            state = yield from advance(fit, state, Weighting(stage.loss, scale, threshold), method)
            state = state._replace(last=state.point)
    best = state.monitor.kept
    state = state._replace(momentum=fit.plan.momentum, mixture=fit.mixture(state.point), needed=(*state.needed, best))
    for _ in range(min(fit.plan.trial_iter, fit.max_iter // 20)):
        if not state.stopped:
            state = yield from iterate(fit, state)
    state = state._replace(needed=(*state.needed, state.point, state.last))
    found = yield Measure(partial(misfit, fit, state.point), is_finite, state.point, "misfit")
    return Path(state, best, found)


def report_start(fit: Fit, state: State) -> Steps:
    """Report the start as iteration 0."""
    state, weighting = yield from weigh(fit, state)
    beyond = fit.held.magnitudes(state.point) > fit.typical_threshold(weighting)
    share = float(fit.held.xp.count_nonzero(beyond)) / max(len(beyond), 1)
    stopped = yield Report(float(weighting.scale), share, state.monitor.path[0], inf)
    return state._replace(stopped=stopped)


def main_stage(fit: Fit, state: State, best: Point) -> Generator[Any, Any, tuple[State, bool]]:
    """Lower the loss of the model until the held-out entries are no longer predicted better."""
    scale = MONITORED_AT * state.mixture.width
    if reads(fit.method.scale) == "nothing":  # who fixes the scale says by which loss to compare
        scale = fit.method.scale([], None, None, fit.engine)
    monitor, _ = Monitor.begin(fit.held, scale, best).see(state.point)
    state = state._replace(monitor=monitor, momentum=fit.plan.momentum)
    at_end = 0 if fit.judges_by_noise else (1 + MOST_RELAXATIONS) * fit.last_iter
    most, converged = fit.max_iter - at_end, False
    while not (converged or state.stopped) and state.n_iter < most:
        state = yield from iterate(fit, state)
        monitor = state.monitor
        at_rest = monitor.change <= fit.tol and monitor.kept is state.point
        converged = at_rest or monitor.unimproved > fit.plan.patience
    return state, converged


def refine(fit: Fit, state: State) -> Generator[Any, Any, tuple[State, Weighting]]:
    """Return the fit with features found again, and with a scale and threshold that are as wide as they should be."""
    state, weighting = yield from weigh(fit, state)
    state = yield from recover_features(fit, state, weighting)
    for _ in range(0 if fit.judges_by_noise else MOST_RELAXATIONS):
        relaxed, wider = yield from relax(fit, state, weighting)
        state = state._replace(n_iter=relaxed.n_iter, stopped=relaxed.stopped, monitor=relaxed.monitor)
        state = state._replace(momentum=relaxed.momentum)
        if wider is weighting:
            break
        mixture = state.mixture._replace(width=RELAXED * state.mixture.width)
        state, weighting = relaxed._replace(mixture=mixture), wider
    return (yield from encode_features_again(fit, state, weighting)), weighting


def judge(
    fit: Fit, state: State, weighting: Weighting, follows_noise: bool
) -> Generator[Any, Any, tuple[LeastSquares, Point, Judged | None, Comparison]]:
    """Return least squares and its fit, a point at which it is known what is wrong, and a comparison with all entries.

    Where features were scaled, entries are judged by a fit that is scaled: an error in the largest feature may have a
    component of its own in the other. Nothing is judged if the fit begins to follow the noise: least squares would do
    so all the more, unless it shows that nothing is wrong.
    """
    squares = LeastSquares(fit.V, fit.M, fit.method, fit.engine, fit.tol)
    threshold = final_weighting(fit, weighting, state.mixture).threshold
    robust = squares.judged(state.point, threshold)
    # Of sparse data, most that is right is a count of which hardly anything was expected.
    squares = replace(squares, least=threshold if fit.is_sparse else None)
    trial, _ = yield from improve(fit, squares, robust.point, robust, NOISE_SWEEPS)
    squares, judged, overfit = squares.with_robust(robust, trial), robust, 1.0
    rejected = last = yield Measure(partial(squares.rejected_share, robust), is_finite, robust.point, "share")
    for n_rounds in range(1, MOST_ROUNDS + 1):
        point = trial
        if n_rounds > 1 or squares.few is not None:
            point, _ = yield from improve(fit, squares, judged.point, judged, NOISE_SWEEPS)
        model = yield from find_noise(fit, squares, point, judged.model, robust)
        judged = Judged(point, model)
        share = yield Measure(partial(squares.rejected_share, judged), is_finite, point, "share")
        if n_rounds >= FEWEST_ROUNDS and share > last - SETTLED:
            break
        last = share
    if follows_noise:
        overfit = squares.overfit(fit.rank, fit.held.n_observed)
        found = yield from compare(squares, robust, state.point, judged.point)
        grows = judged.model.exponent > GROWING_NOISE and found.rejected < MUCH_REJECTED
        is_dense = found.residual > DENSE_NOISE and not grows
        follows_noise = is_dense and found.damage > LEARNT_NOTHING * overfit
    if follows_noise:
        judged = robust._replace(point=state.point)
    else:
        judged = yield from widen(fit, squares, judged)
    squares, some = replace(squares, units=fit.units), judged.point
    if fit.units is not None:
        some, _ = yield from improve(fit, squares, some, judged, 2 * NOISE_SWEEPS)
    every, comparison = yield from try_wider(fit, squares, judged, some, inf)
    comparison = comparison._replace(rejected=max(comparison.rejected, rejected if rejected > MOST_WRONG else 0.0))
    if comparison.favours_all(fit.n_samples, fit.rank, overfit if follows_noise else 1.0):
        everything = Judged(every, replace(judged.model, threshold=inf))
        return replace(squares, few=None), every, everything, comparison
    return squares, some, None if follows_noise else judged, comparison


def widen(fit: Fit, squares: LeastSquares, judged: Judged) -> Generator[Any, Any, Judged]:
    """Return the fit with entries accepted that are not far beyond the threshold, if least squares explains them.

    Where there is hardly any noise, a fit that misses a part of the structure rejects it.
    """
    relative = float(np.median(to_host(judged.model.widths / judged.model.levels)))
    if relative > HARDLY_ANY_NOISE:
        return judged
    factor = WIDEST / (relative * judged.model.threshold)
    wider, comparison = yield from try_wider(fit, squares, judged, judged.point, factor)
    if comparison.rejected == 0 or not comparison.favours_all(fit.n_samples, fit.rank):
        return judged
    model = replace(judged.model, threshold=factor * judged.model.threshold)
    return Judged(wider, (yield from find_noise(fit, squares, wider, model, Judged(wider, model))))


def try_wider(
    fit: Fit, squares: LeastSquares, judged: Judged, some: Point, factor: float
) -> Generator[Any, Any, tuple[Point, Comparison]]:
    """Return least squares with a wider threshold, by a factor, and how it compares with a fit to some entries."""
    wider, limit = some, judged._replace(model=replace(judged.model, threshold=factor * judged.model.threshold))
    for sweeps in TRIAL_SWEEPS:
        wider, _ = yield from improve(fit, squares, wider, None if factor == inf else limit, sweeps)
        comparison = yield from compare(squares, judged, some, wider, factor)
        if comparison.gain > HOPELESS or comparison.favours_all(fit.n_samples, fit.rank):
            break
        if sweeps == TRIAL_SWEEPS[1] and comparison.gain > CLEAR_GAIN:
            break
    return wider, comparison


def compare(
    squares: LeastSquares, judged: Judged, some: Point, every: Point, factor: float = inf
) -> Generator[Any, Any, Comparison]:
    """Return how a fit to all entries, but for those far beyond the threshold, compares with one to some."""
    found = yield Measure(partial(squares.compare, judged, some, every, factor), is_comparison, every)
    return Comparison(**{name: float(found[name]) for name in Comparison._fields})


def improve(
    fit: Fit, squares: LeastSquares, point: Point, judged: Judged | None, sweeps: int
) -> Generator[Any, Any, tuple[Point, bool]]:
    """Return a point after some sweeps of least squares on what is right, and whether they have converged."""
    steady = [False]

    def make() -> Point:
        if judged is None or (squares.few is None and squares.rejects_nothing(judged)):
            data = squares.everything()
        else:
            data = squares.accepted(judged)
        W, Ht, steady[0] = squares.improved(data, point.W, point.Ht, sweeps)
        return fit.held.point(W, Ht)

    better = yield Compute(make, (point,))
    return better, bool((yield Measure(lambda: float(steady[0]), is_finite, better, "steady")))


def find_noise(
    fit: Fit, squares: LeastSquares, point: Point, model: NoiseModel, robust: Judged
) -> Generator[Any, Any, NoiseModel]:
    """Return the noise of a point, at which the last model says what was accepted."""
    noise = fit.plan.noise
    assert noise is not None

    def find() -> dict[str, Any]:
        found = squares.noise(point, model, robust, noise, RESOLUTION)
        return {name: getattr(found, name) for name in (*ARRAYS, "exponent", "threshold")}

    def are_valid(found: dict[str, Any]) -> bool:
        arrays = [factor(found[name], (fit.n_features,), bounded=False) for name in ARRAYS]
        return len(arrays) == len(ARRAYS) and 0 <= found["exponent"] <= 1 and found["threshold"] > 0

    found = yield Measure(find, are_valid, point)
    dtype = point.W.dtype
    fields = {name: found[name] for name in (*ARRAYS, "exponent", "threshold")}
    fields["weights_entries"] = noise.weights_entries
    found_model = NoiseModel(**fields).placed(lambda array: fit.engine.place(array, dtype))
    if squares.few is None or squares.robust is None:
        return found_model
    # Where the robust fit stays, so does its threshold.
    first = squares.robust.model
    widths = first.threshold * first.widths / found_model.threshold
    return replace(found_model, widths=fit.engine.xp.where(squares.few, widths, found_model.widths))


def finish(
    fit: Fit,
    state: State,
    weighting: Weighting,
    squares: LeastSquares,
    judged: Judged,
    converged: bool,
    warning: str | None,
) -> Generator[Any, Any, End]:
    """Return the end of a fit by least squares on what is right."""
    squares = replace(squares, units=fit.units)
    is_same = judged.point is state.point
    point, steady = yield from improve(fit, squares, state.point, judged, min(MOST_SWEEPS, 3 * fit.max_iter))
    if is_same:
        nothing_wrong = judged.model.threshold == inf
        model = yield from find_noise(fit, squares, point, judged.model, judged)
        judged = Judged(point, model)
        if nothing_wrong:
            largest = yield Measure(partial(squares.largest_ratio, judged), is_finite, point, "largest")
            threshold = NOTHING_WRONG * model.threshold * max(largest, 1.0)
            judged = Judged(point, replace(model, threshold=threshold, lenient=True))
    state, weighting = state._replace(point=point), final_weighting(fit, weighting, state.mixture)
    judge = None if is_same else Basis(judged.point.W, typical_code(*judged.point[:2], None, fit.engine), weighting)
    judge = None if judge is None else replace(judge, penalties=fit.method.penalties, noise=judged.model)
    if fit.whole is not None:
        state = yield from encode_all_samples(fit, state, weighting, model=judged.model, judge=judge)
        state = yield from finish_all_samples(
            fit, state, replace(squares, V=fit.whole.V, M=fit.whole.M, few=None), judge, judged
        )
    return End(state.point, weighting, converged and steady, state.stopped, None, warning, judged.model, judge)


def finish_all_samples(fit: Fit, state: State, squares: LeastSquares, judge: Basis | None, judged: Judged) -> Steps:
    """Return the fit after some sweeps of least squares on what is right in all samples."""
    whole, point = fit.whole, state.point
    assert whole is not None

    def make() -> Point:
        right = point
        if judge is not None:
            right = Point(judge.W, judge.encode(whole.V, whole.M, fit.engine, max_iter=0, tol=0.0), point.predictions)
        data = squares.accepted(Judged(right, judged.model))
        W, Ht, _ = squares.improved(data, point.W, point.Ht, fit.last_iter)
        return fit.held.point(W, whole.part(Ht))._replace(Ht=Ht)

    return state._replace(point=(yield Compute(make, (point,))))


def last_stages(fit: Fit, state: State, weighting: Weighting) -> Generator[Any, Any, tuple[State, Weighting]]:
    """Return the fit after its last iterations, with the scale and threshold that are to be used from then on."""
    state = yield from encode_all_samples(fit, state, weighting)
    state = yield from settle(fit, state, weighting, see_all=True)
    return state, final_weighting(fit, weighting, state.mixture)


def relax(fit: Fit, state: State, weighting: Weighting) -> Generator[Any, Any, tuple[State, Weighting]]:
    """Return the fit with scale and threshold twice as wide, if that predicts held-out entries clearly better.

    Tails of the residuals that are heavier than Laplace's may be errors, or something that the components explain as
    soon as they are allowed to. Squares tell, up to twice the threshold: beyond it are errors in any case.
    """
    if weighting.threshold is None or not fit.has_mixture_rules:
        return state, weighting
    limit = RELAXED * fit.typical_threshold(weighting)
    threshold = mapped(weighting.threshold, lambda threshold: RELAXED * threshold)
    wider = replace(weighting, scale=RELAXED * weighting.scale, threshold=threshold)
    relaxed = yield from settle(fit, state._replace(needed=(state.point,)), wider)
    before, after = (fit.held.mean(limited(fit, p, limit) ** 2) for p in (state.point, relaxed.point))
    return relaxed._replace(needed=()), wider if after < CLEARLY_BETTER * before else weighting


def early_stop(fit: Fit, state: State, weighting: Weighting, warning: str | None) -> Generator[Any, Any, End]:
    """Return the end of a fit that began to follow the noise and went back to its best iterate."""
    weighting = final_weighting(fit, weighting, state.mixture)
    sweeps = best_code_sweeps(fit, state, weighting)
    converged = not state.stopped
    state = yield from encode_all_samples(fit, state, weighting, sweeps)
    return End(state.point, weighting, converged, state.stopped, sweeps, warning)


def settle(fit: Fit, state: State, weighting: Weighting, *, see_all: bool = False) -> Steps:
    """Make a few iterations with fixed scale and threshold."""
    state = state._replace(last=state.point)
    for _ in range(min(fit.last_iter, fit.max_iter - state.n_iter)):
        if not state.stopped:
            state = yield from advance(fit, state, weighting, fit.method, see_all=see_all)
    return state


# --- An iteration -----------------------------------------------------------------------------------------------------


def iterate(fit: Fit, state: State) -> Steps:
    """Make one iteration of the main stage: weigh, sweep, and look at the held-out entries."""
    state, weighting = yield from weigh(fit, state)
    state = yield from advance(fit, state, weighting, fit.method)
    return state._replace(mixture=fit.mixture(state.point, state.mixture))


def weigh(fit: Fit, state: State) -> Generator[Any, Any, tuple[State, Weighting]]:
    """Return loss, scale and threshold of the model, by its rules.

    Rules that need no more than the mixture of residuals get that of the entries held out. For the others all residuals
    are computed, and what they find is a step of its own.
    """
    method, point = fit.method, state.point
    magnitudes = HeldOutMagnitudes(fit, point, state.mixture)
    last = None if state.scales is None else state.scales[0]
    if "residuals" not in (reads(method.scale), reads(method.outliers)):
        return state, apply_rules(magnitudes, None, last, method, fit.engine, fit.scale_floor, fit.V[0])

    def find() -> dict[str, Any]:
        weighting = apply_rules(magnitudes, fit.held.M, last, method, fit.engine, fit.scale_floor, fit.V[0])
        first = weighting.scale if state.scales is None else state.scales[1]
        numbers = {"scale": float(weighting.scale), "first": float(first)}
        return numbers | ({} if weighting.threshold is None else {"cut": to_host(weighting.threshold)})

    def are_valid(found: dict[str, Any]) -> bool:
        if "cut" in found:
            factor(found["cut"], (fit.n_features,), bounded=False)
        return positive(found["scale"]) > 0 and positive(found["first"]) > 0

    found = yield Measure(find, are_valid, point)
    threshold = fit.engine.place(found["cut"]) if "cut" in found else None
    weighting = Weighting(method.loss, found["scale"], threshold, method.outliers)
    return state._replace(scales=(found["scale"], found["first"])), weighting


def advance(fit: Fit, state: State, weighting: Weighting, method: Method, *, see_all: bool = False) -> Steps:
    """Make one sweep, with momentum from the last one, and compare the point that it leads to."""
    point, last, monitor = state.point, state.last, state.monitor
    new = yield Compute(partial(next_point, fit, state, weighting, method, see_all), (point, last))
    monitor, share = monitor.see(new, fit.typical_threshold(weighting))
    grown = min(MOMENTUM_GROWTH * state.momentum, MOST_MOMENTUM)
    needed = (*state.needed, new, point, monitor.kept)
    stopped = yield Report(float(weighting.scale), share, monitor.path[-1], monitor.change, needed)
    return state._replace(
        point=new,
        last=point,
        momentum=grown if monitor.is_falling else fit.plan.momentum,
        monitor=monitor,
        n_iter=state.n_iter + 1,
        stopped=stopped,
    )


def next_point(fit: Fit, state: State, weighting: Weighting, method: Method, see_all: bool) -> Point:
    """Return the point that one sweep leads to."""
    engine, held, (W, Ht, *_), last = fit.engine, fit.held, state.point, state.last
    hide, with_all = held.hidden and not see_all, see_all and fit.whole is not None
    if engine.kernels.iterate is not None and method.solver.sweeps_by_kernel and not with_all:
        momentum = 0.0 if last is state.point else state.momentum
        factors = [W, *Ht], [last.W, *last.Ht]
        made = engine.kernels.iterate(fit.V, fit.M, held, hide, method, *factors, momentum, weighting, state.monitor)
        if made is not None:
            return held.point(*made)
    if last is not state.point:
        W = extrapolate(W, last.W, momentum=state.momentum, engine=engine, xp=engine.xp)
        Ht = engine.map(extrapolate, Ht, last.Ht, momentum=state.momentum, engine=engine)
    if with_all:
        assert fit.whole is not None
        W, Ht = sweep(fit.whole.V, fit.whole.M, W, Ht, weighting, method, engine)
        Ht = engine.truncate_lineage(Ht)
        return held.point(W, fit.whole.part(Ht))._replace(Ht=Ht)
    W, Ht = sweep(fit.V, fit.M, W, Ht, weighting, method, engine, held.positions if hide else None)
    return held.point(W, engine.truncate_lineage(Ht))


# --- Between stages ---------------------------------------------------------------------------------------------------


def recover_features(fit: Fit, state: State, weighting: Weighting) -> Steps:
    """Encode features anew that are rejected far more than others, where the codes explain them.

    What is rejected no longer pulls: a feature far larger than the others, of which nothing was within the threshold
    when it had to be, would never come back.
    """
    method, point = fit.method, state.point
    if weighting.threshold is None or weighting.is_spatial or method.fixed or method.loss.group == "sample":
        return state
    find = partial(rejected_features, fit.V, fit.M, point.W, point.Ht, weighting, fit.engine)

    def are_features(found: Array) -> bool:
        return found.ndim == 1 and found.dtype.kind == "i" and bool(np.isin(found, np.arange(fit.n_features)).all())

    # The name "lost" is that of checkpoints of version 0.1.
    rejected = yield Measure(find, are_features, point, "lost")
    if not rejected.size:
        return state
    encode = partial(encode_rejected, fit.V, fit.M, point, rejected, weighting, fit.held, fit.engine)
    return state._replace(point=(yield Compute(encode, (point,))))


def encode_features_again(fit: Fit, state: State, weighting: Weighting) -> Steps:
    """Encode all features anew, where that gives a lower loss, if there are few samples.

    With few samples an error may have pulled a feature to where another of its entries looks wrong instead, and there
    it would stay. Samples are encoded anew in any case.
    """
    point = state.point
    enough = FEW_SAMPLES * fit.rank * fit.n_features
    if fit.held.n_observed > enough or weighting.is_spatial or fit.method.fixed:
        return state
    encode = partial(encode_all_features, fit.V, fit.M, point, weighting, fit.held, fit.engine)
    return state._replace(point=(yield Compute(encode, (point,))))


def encode_all_samples(
    fit: Fit,
    state: State,
    weighting: Weighting,
    code_sweeps: int | None = None,
    model: NoiseModel | None = None,
    judge: Basis | None = None,
) -> Steps:
    """Encode all samples, if the point has the codes of some."""
    whole, point = fit.whole, state.point
    if whole is None:
        return state

    def encode() -> Point:
        code = typical_code(point.W, point.Ht, None, fit.engine)
        basis = Basis(point.W, code, weighting, fit.method.penalties, code_sweeps, model, fit.units, judge)
        return point._replace(Ht=basis.encode(whole.V, whole.M, fit.engine, max_iter=0, tol=0.0))

    return state._replace(point=(yield Compute(encode, (point,))))


def final_weighting(fit: Fit, weighting: Weighting, mixture: Mixture) -> Weighting:
    """Return the weighting that rejects what is rather wrong than clean.

    While the factors move the threshold has to be generous; once they are found, it can be where it belongs. Residuals
    of the entries that were fitted do not say where that is.
    """
    if weighting.threshold is None or reads(fit.method.outliers) != "mixture" or not fit.held.hidden:
        return weighting
    return replace(weighting, threshold=fit.per_feature(min(float(weighting.threshold[0]), mixture.decision_threshold)))


def best_code_sweeps(fit: Fit, state: State, weighting: Weighting) -> int | None:
    """Return after how many sweeps, at least one, codes in the basis of this point predict held-out entries best.

    None if they do when they have converged. Without a sweep all codes are multiples of the typical code, or zero.
    """
    M, engine, point, monitor = fit.held.M, fit.engine, state.point, state.monitor
    basis = Basis(point.W, typical_code(point.W, point.Ht, None, engine), weighting)
    losses = []
    for Ht in basis.path_of_codes(fit.V, M, MOST_CODE_SWEEPS, engine):
        monitor, _ = monitor.see(fit.held.point(point.W, Ht))
        losses.append(monitor.path[-1])
    converged = basis.encode(fit.V, M, engine, max_iter=50, tol=1e-3)
    monitor, _ = monitor.see(fit.held.point(point.W, converged))
    return None if monitor.path[-1] <= min(losses[1:]) else 1 + int(np.argmin(losses[1:]))


def learnt_nothing(fit: Fit, start: Point, state: State) -> str | None:
    """Return what the user should know if the fit learnt nothing beyond its start."""
    end, plan, rank = state.monitor.kept, fit.plan, fit.rank
    hopeless = fit.median(end) > LEARNT_NOTHING * fit.median(start)
    had_time = state.n_iter >= len(plan.initial_stages) * (plan.initial_iter + plan.trial_iter)
    if rank == 1 or not fit.held.hidden or not had_time or not hopeless:
        return None
    return (
        "entries held out of the fit are predicted hardly better than by its start. For the median start, one "
        f"component does as well as {rank}: either it is enough, or too much of the data is wrong or too "
        "noisy to tell more, and then the components mean nothing."
    )


def is_comparison(found: dict[str, Any]) -> bool:
    """Return whether a checkpoint holds what least squares was compared by."""
    return all(not found[name] < 0 for name in Comparison._fields)


def misfit(fit: Fit, point: Point) -> float:
    """Return how large the residuals of the typical sample are, as a logarithm."""
    shared = {"W": point.W, "floor": fit.floor, "engine": fit.engine}
    total, n_samples = fit.engine.sum(_log_medians, fit.V, fit.M, point.Ht, **shared)
    return float(total / n_samples) if n_samples else 0.0


def limited(fit: Fit, point: Point, limit: Any) -> Array:
    """Return the magnitudes of held-out residuals, at most the limit."""
    magnitudes, xp = fit.held.magnitudes(point), fit.held.xp
    return xp.where(magnitudes > limit, limit, magnitudes)


# --- On a block -------------------------------------------------------------------------------------------------------


@block_function(light=True)
def _choose(rows: Array, chosen: slice, *, xp: Namespace) -> Array:
    """Return a copy of some of the rows."""
    return xp.asarray(rows[chosen], copy=True)


def _n_positive(Y: Array, M: Array | None, *, xp: Namespace) -> int:
    """Return the number of observed entries of a block that are positive."""
    return int(xp.count_nonzero(Y > 0 if M is None else (Y > 0) & (M > 0)))


@block_function(light=True)
def _as_type(X: Array, *, dtype: Any, xp: Namespace) -> Array:
    return xp.astype(X, dtype, copy=False)


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
