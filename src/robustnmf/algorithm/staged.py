"""HOW it gets there: the stages of the default.

The loss is not convex. Where the alternation ends depends on where it starts, on how soon it begins to ignore
entries, and on when it stops. `Staged` answers all three by measurement, on a few entries that it holds out:

1. Two initial stages from the same start, one with Huber's loss and one with the truncated L1 loss. A short trial of
   the main stage follows each, and the one that leaves the typical sample with the smaller residuals goes on.
2. The main stage lowers the loss of the model. Scale and threshold come from the entries held out: the fit has not seen
   them, so their residuals are those of new data. It ends when they are no longer predicted better.
3. Of data of which most entries are zero, least squares from singular vectors is tried, which may find components that
   a random start has left out.
4. Without a noise model, the fit may turn out to have been too strict: scale and threshold are doubled if that predicts
   the held-out entries clearly better.
5. What is wrong is decided in units of the noise of each entry, and the rest is fitted by least squares; see
   `robustnmf.algorithm.judging`. Held-out entries are used again. Of large data, all stages before work with some of
   the samples, and all of them come in here.

If the fit had begun to follow the noise, the best iterate stays as it is instead, and the codes of samples are stopped
early as well.

Each stage is a function of an immutable `State` and returns one; `robustnmf.algorithm.steps` says how it is run.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf
from typing import Any, NamedTuple

import numpy as np

from robustnmf.algorithm import halfquadratic
from robustnmf.algorithm.checkpoint import Checkpoint, Journal, factor, is_finite, positive
from robustnmf.algorithm.encoding import Basis, n_features_of_start, order_statistics, typical_code
from robustnmf.algorithm.feature_recovery import encode_all_features, encode_rejected, rejected_features
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
from robustnmf.algorithm.judging import LEARNT_NOTHING, MUCH_REJECTED, finish, judge
from robustnmf.algorithm.least_squares import Accepted, LeastSquares
from robustnmf.algorithm.monitor import Monitor
from robustnmf.algorithm.singular_start import singular_start, winsorised
from robustnmf.algorithm.stage import AllSamples, End, Fit, State, Steps, encode_all_samples, final_weighting
from robustnmf.algorithm.steps import Compute, Driver, Measure, Report
from robustnmf.engines.lazy import is_lazy, same
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.kernels.interface import Planned
from robustnmf.kernels.predictions import predictions
from robustnmf.model.losses import Absolute, Cauchy, Huber, Loss
from robustnmf.model.mixture import Mixture
from robustnmf.model.noise import NOISES, Noise
from robustnmf.model.outliers import NoRejection
from robustnmf.model.scales import reads
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import SharedGram
from robustnmf.solvers.base import UNIFORM as SQUARES
from robustnmf.utils.arrays import Array, Blocks, Namespace, mapped, to_host
from robustnmf.utils.cached import cached_property

__all__ = ["InitialStage", "Staged"]

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
# Sweeps of least squares from singular vectors, which are followed if they leave at most this part of the loss; so many
# times, as long as that helps.
RESTART_SWEEPS, BETTER_START, MOST_RESTARTS = 30, 0.9995, 3
# In their data an entry exceeds its prediction by at most so many times the typical positive entry, and no prediction
# counts as more than so many times it: an error may have a component of its own.
FAR_BEYOND, LARGE_ENTRY = 2.0, 10.0
# Of sparse data, an entry counts as far off from so many scales on; and paths are compared by the loss of entries that
# they have fitted, so the one that follows fewer of them may have a loss larger by this factor.
BOUNDED_AT, CLEARLY_WORSE = 5.0, 1.04


class InitialStage(NamedTuple):
    """Some first iterations, whose scale is the median magnitude of held-out residuals, or another quantile.

    Parameters
    ----------
    loss : Loss
        What is minimised.
    threshold : float or None
        Scales beyond which an entry is ignored; None ignores none.
    quantile : float
        Which quantile of the magnitudes the scale is.
    """

    loss: Loss
    threshold: float | None = None
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
        whole: AllSamples | None = None,
        codes_dtype: Any = None,
    ) -> Result:
        """Fit by stages, at most `max_iter` iterations in all, initial stages included.

        `units` (m,) are what features are multiplied by in least squares, if they were divided by something. If samples
        to learn from have been chosen, `whole` has them, and the initial codes are theirs. With a `checkpoint` that
        holds the steps of an earlier fit it goes on from there. `codes_dtype` is that in which the samples will be
        encoded, if it is not that of V.
        """
        if whole is None:
            whole = AllSamples.of(V, M, W.shape[1], engine)
            Ht = Ht if whole is None else whole.part(Ht)
        if whole is not None:
            V, M = whole.some
        elif engine.keeps_masks:  # all samples are needed in every iteration
            V, M = engine.map(same, V), None if M is None else engine.map(same, M)
        limits = {"max_iter": max_iter, "tol": tol, "scale_floor": scale_floor}
        fit = StagedFit.of(self, V, M, W.shape[1], method, engine, **limits, whole=whole, units=units)
        if engine.kernels.prepare is not None and method.solver.sweeps_by_kernel:
            engine.kernels.prepare(W.shape[1], planned(fit, W.dtype, codes_dtype))
        data = [V] if whole is None else [V, whole.V]
        n_held = len(fit.held.values)
        journal = None if checkpoint is None else Journal(checkpoint, engine, data, W.shape[1], n_held)
        driver = Driver(callback, journal)
        end = driver.run(stages(fit, W, Ht))
        last = driver.history[-1]
        scale = float(end.weighting.scale)
        state = halfquadratic.State(end.point.W, end.point.Ht, end.weighting, last.objective, scale, last.outlier_share)
        stopped = end.stopped and not end.converged
        about = (end.code_sweeps, end.warning, end.noise, end.judge, end.comparison, end.pattern)
        return Result(state, driver.history, end.converged, stopped, *about)

    def opening(
        self, V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, *how: Any, **limits: Any
    ) -> tuple[Array, Blocks]:
        """Return the factors after the better of the initial stages; the arguments are those of a whole fit.

        It is to compare data in several units, for which the stage that needs a start of its own is not worth its time.

        Parameters
        ----------
        V : blocks
            Data, blocks of samples in rows, (n, m) in all; 0 where missing.
        M : blocks or None
            Weights, cut alike, 0 where missing; None if all are 1.
        W : array (m, r)
            Basis.
        Ht : blocks
            Codes, (n, r) in all, cut as V.
        *how : Method, Engine
            As in a call of the schedule.
        **limits : int and float
            `max_iter` and `scale_floor`, as in a call of the schedule.

        Returns
        -------
        W, Ht : array (m, r), blocks
            The factors.
        """
        fit = StagedFit.of(self, V, M, W.shape[1], *how, **limits, tol=0.0)
        _, state, _ = Driver(None, None).run(opening(fit, W, Ht, from_densest=False))
        return state.point.W, state.point.Ht

    def iterations_at_end(self, max_iter: int) -> int:
        """Return the iterations of each of the last stages.

        Parameters
        ----------
        max_iter : int
            Most iterations of the fit.

        Returns
        -------
        int
            `last_iter`, or a tenth of all, if that is less.
        """
        return min(self.last_iter, max_iter // 10)

    def fewest_iter(self, max_iter: int) -> int:
        """Return the iterations that a fit which does not converge makes at least: it need not try all relaxations.

        Parameters
        ----------
        max_iter : int
            Most iterations of the fit.

        Returns
        -------
        int
            The iterations.
        """
        return max_iter - MOST_RELAXATIONS * self.iterations_at_end(max_iter)


@dataclass(frozen=True, kw_only=True)
class StagedFit(Fit):
    """What all stages share."""

    plan: Staged

    @classmethod
    def of(
        cls, plan: Staged, V: Blocks, M: Blocks | None, rank: int, method: Method, engine: Engine, **options: Any
    ) -> "StagedFit":
        """Return it for some data, with entries held out."""
        options |= {"last_iter": plan.iterations_at_end(options["max_iter"]), "noise": plan.noise, "plan": plan}
        return cls(V=V, M=M, method=method, engine=engine, held=HeldOut.draw(V, M, engine), rank=rank, **options)


def planned(fit: StagedFit, dtype: Any, codes_dtype: Any = None) -> list[Planned]:
    """Return what a fit will do, for kernels that are compiled ahead."""
    m, weighted, blocks = fit.n_features, fit.M is not None, fit.V if fit.whole is None else fit.whole.V
    losses = [*(stage.loss for stage in fit.plan.initial_stages), fit.method.loss]
    work = [Planned(loss, (fit.n_samples, m), dtype, weighted, fit.held.hidden) for loss in losses]
    at_end = [(fit.method.loss, weighted), (Huber(), weighted)]
    if fit.judges_by_noise:
        at_end = [(SQUARES.loss, True), (SQUARES.loss, weighted)]
    sizes = {fit.n_samples, fit.n_samples if is_lazy(blocks) else sum(len(block) for block in blocks)}
    work += [Planned(loss, (n, m), dtype, with_weights) for loss, with_weights in at_end for n in sizes]
    # Codes of a block of samples, or of few of them, by all features or by some.
    shapes = [(len(blocks[0]), m), (1, m), (1, n_features_of_start(m, fit.rank) or m)]
    dtypes = [dtype] if codes_dtype is None else [dtype, codes_dtype]
    of_codes = product(at_end, shapes, dtypes)
    return work + [Planned(loss, shape, kind, on, of_codes=True) for (loss, on), shape, kind in of_codes]


class Path(NamedTuple):
    """An initial stage and a trial of the main stage."""

    state: State
    best: Point
    """The point of the initial stage that predicts best."""
    misfit: float
    """How large the residuals of the typical sample are, as a logarithm."""


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


# --- The stages -------------------------------------------------------------------------------------------------------


def stages(fit: StagedFit, W: Array, Ht: Blocks) -> Generator[Any, Any, End]:
    """Follow the better of the initial stages to the end."""
    start, state, best = yield from opening(fit, W, Ht)
    state, converged = yield from main_stage(fit, state, best)
    if fit.can_restart and not state.stopped:
        for _ in range(MOST_RESTARTS):  # a component that was missing had its entries rejected
            before, state = state, (yield from restart(fit, state))
            if state.point is before.point:
                break
    warning = None if state.stopped else learnt_nothing(fit, start, state)
    follows_noise = state.monitor.kept is not state.point
    if follows_noise:
        state = state._replace(point=state.monitor.kept, mixture=fit.mixture(state.monitor.kept))
        state, weighting = yield from weigh(fit, state)
    else:
        state, weighting = yield from refine(fit, state)
    comparison = pattern = None
    if fit.judges_by_noise and not state.stopped:
        judgement = yield from judge(fit, state, weighting, follows_noise)
        comparison, pattern = judgement.comparison, judgement.pattern
        is_judged = judgement.judged is not None
        # Least squares on nearly all entries is plain NMF: it is no worse if one component does as well.
        is_plain = is_judged and (comparison.takes_all or comparison.rejected < MUCH_REJECTED)
        warning = None if is_plain else warning
        warning = warning or comparison.doubt or comparison.much_is_wrong
        if is_judged:
            return (yield from finish(fit, state, weighting, judgement, converged, warning))
    if follows_noise:
        end = yield from early_stop(fit, state, weighting, warning)
        return end._replace(comparison=comparison, pattern=pattern)
    state, weighting = yield from last_stages(fit, state, weighting)
    return End(state.point, weighting, converged, state.stopped, None, warning, comparison=comparison, pattern=pattern)


def opening(
    fit: StagedFit, W: Array, Ht: Blocks, *, from_densest: bool = True
) -> Generator[Any, Any, tuple[Point, State, Point]]:
    """Return the start, where the better of the initial stages leads, and the point of it that predicts best.

    If much seems wrong, a stage from another start may be tried too.
    """
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
    much_is_wrong = fit.is_sparse or path.state.mixture.share < MUCH_IS_WRONG
    if from_densest and much_is_wrong and not latest.stopped and not fit.method.fixed:
        begin = yield Compute(partial(start_of_densest, fit))
        again = Monitor.begin(fit.held, INITIALLY_MONITORED_AT * fit.median(begin), begin)
        other = yield from initial_stage(fit, latest._replace(point=begin, last=begin, monitor=again), STRICT_L1)
        latest, paths = other.state, [*paths, other]
        path = best_of_sparse(fit, paths) if fit.is_sparse else min(path, other, key=lambda path: path.misfit)
    state = path.state._replace(n_iter=latest.n_iter, stopped=latest.stopped, scales=latest.scales, needed=())
    return start, state, path.best


def best_of_sparse(fit: StagedFit, paths: list[Path]) -> Path:
    """Return the best path of sparse data: the last, which is the strictest, unless another is clearly better.

    Zeros count, and by how much an entry can count is bounded: errors may be most of what is positive.
    """
    width = min(path.state.mixture.width for path in paths)
    scale = max(MONITORED_AT * width, fit.held.typical)
    ratios = [limited(fit, path.state.point, BOUNDED_AT * scale) / scale for path in paths]
    losses = [fit.held.mean(fit.held.xp.log1p(ratio * ratio)) for ratio in ratios]
    return paths[-1] if losses[-1] <= CLEARLY_WORSE * min(losses) else paths[int(np.argmin(losses))]


def start_of_densest(fit: StagedFit) -> Point:
    """Return a start that does not break where more than half of a sample or feature is wrong."""
    W, Ht = DENSEST_START.factors(fit.V, fit.M, fit.rank, np.random.default_rng(0), fit.engine)
    dtype = fit.V[0].dtype
    return fit.held.point(fit.engine.place(W, dtype), fit.engine.map(_as_type, Ht, dtype=dtype))


def initial_stage(fit: StagedFit, state: State, stage: InitialStage) -> Generator[Any, Any, Path]:
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


def report_start(fit: StagedFit, state: State) -> Steps:
    """Report the start as iteration 0."""
    state, weighting = yield from weigh(fit, state)
    beyond = fit.held.magnitudes(state.point) > fit.typical_threshold(weighting)
    share = float(fit.held.xp.count_nonzero(beyond)) / max(len(beyond), 1)
    stopped = yield Report(float(weighting.scale), share, state.monitor.path[0], inf)
    return state._replace(stopped=stopped)


def main_stage(fit: StagedFit, state: State, best: Point) -> Generator[Any, Any, tuple[State, bool]]:
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


def restart(fit: StagedFit, state: State) -> Steps:
    """Return the fit from singular vectors of data in which errors count little, if it has the lower loss."""
    point, typical, squares = state.point, fit.held.typical, LeastSquares.of(fit)

    def make() -> Point:
        limits = {"largest": LARGE_ENTRY * typical, "beyond": FAR_BEYOND * typical}
        data = Accepted(fit.engine.map(winsorised, fit.V, point.Ht, W=point.W, **limits, engine=fit.engine), None)
        start = singular_start(data.V, fit.rank, fit.engine)
        return fit.held.point(*squares.improved(data, *start, RESTART_SWEEPS)[:2])

    def gain() -> float:
        losses = [total_loss(fit, found, state.monitor.scale) for found in (point, new)]
        return losses[1] / losses[0] if losses[0] > 0 else 1.0

    new = yield Compute(make, (point,))
    if (yield Measure(gain, is_finite, new, "gain")) > BETTER_START:
        return state
    monitor = Monitor.begin(fit.held, state.monitor.scale, new)
    return state._replace(point=new, last=new, mixture=fit.mixture(new), monitor=monitor)


def total_loss(fit: Fit, point: Point, scale: float) -> float:
    """Return the sum of Cauchy's loss of all entries, at some scale."""
    return float(fit.engine.sum(_total_loss, fit.V, fit.M, point.Ht, W=point.W, weighting=Weighting(Cauchy(), scale)))


def refine(fit: StagedFit, state: State) -> Generator[Any, Any, tuple[State, Weighting]]:
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


def last_stages(fit: StagedFit, state: State, weighting: Weighting) -> Generator[Any, Any, tuple[State, Weighting]]:
    """Return the fit after its last iterations, with the scale and threshold that are to be used from then on."""
    state = yield from encode_all_samples(fit, state, weighting)
    state = yield from settle(fit, state, weighting, see_all=True)
    return state, final_weighting(fit, weighting, state.mixture)


def relax(fit: StagedFit, state: State, weighting: Weighting) -> Generator[Any, Any, tuple[State, Weighting]]:
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


def early_stop(fit: StagedFit, state: State, weighting: Weighting, warning: str | None) -> Generator[Any, Any, End]:
    """Return the end of a fit that began to follow the noise and went back to its best iterate."""
    weighting = final_weighting(fit, weighting, state.mixture)
    sweeps = best_code_sweeps(fit, state, weighting)
    converged = not state.stopped
    state = yield from encode_all_samples(fit, state, weighting, sweeps)
    return End(state.point, weighting, converged, state.stopped, sweeps, warning)


def settle(fit: StagedFit, state: State, weighting: Weighting, *, see_all: bool = False) -> Steps:
    """Make a few iterations with fixed scale and threshold."""
    state = state._replace(last=state.point)
    for _ in range(min(fit.last_iter, fit.max_iter - state.n_iter)):
        if not state.stopped:
            state = yield from advance(fit, state, weighting, fit.method, see_all=see_all)
    return state


# --- An iteration -----------------------------------------------------------------------------------------------------


def iterate(fit: StagedFit, state: State) -> Steps:
    """Make one iteration of the main stage: weigh, sweep, and look at the held-out entries."""
    state, weighting = yield from weigh(fit, state)
    state = yield from advance(fit, state, weighting, fit.method)
    return state._replace(mixture=fit.mixture(state.point, state.mixture))


def weigh(fit: StagedFit, state: State) -> Generator[Any, Any, tuple[State, Weighting]]:
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


def advance(fit: StagedFit, state: State, weighting: Weighting, method: Method, *, see_all: bool = False) -> Steps:
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


def next_point(fit: StagedFit, state: State, weighting: Weighting, method: Method, see_all: bool) -> Point:
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


def recover_features(fit: StagedFit, state: State, weighting: Weighting) -> Steps:
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


def encode_features_again(fit: StagedFit, state: State, weighting: Weighting) -> Steps:
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


def best_code_sweeps(fit: StagedFit, state: State, weighting: Weighting) -> int | None:
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


def learnt_nothing(fit: StagedFit, start: Point, state: State) -> str | None:
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


def misfit(fit: StagedFit, point: Point) -> float:
    """Return how large the residuals of the typical sample are, as a logarithm."""
    shared = {"W": point.W, "floor": fit.floor, "engine": fit.engine}
    total, n_samples = fit.engine.sum(_log_medians, fit.V, fit.M, point.Ht, **shared)
    return float(total / n_samples) if n_samples else 0.0


def limited(fit: StagedFit, point: Point, limit: Any) -> Array:
    """Return the magnitudes of held-out residuals, at most the limit."""
    magnitudes, xp = fit.held.magnitudes(point), fit.held.xp
    return xp.where(magnitudes > limit, limit, magnitudes)


# --- On a block -------------------------------------------------------------------------------------------------------


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
    medians = order_statistics(xp.where(counts > 0, xp.abs(Y - predictions(X, W, Y)), inf), middle, engine)
    weights = xp.max(counts, axis=1)
    logarithms = xp.log(xp.where((weights > 0) & (medians > floor), medians, floor))
    return float(xp.sum(weights * logarithms, dtype=xp.float64)), float(xp.sum(weights, dtype=xp.float64))


@block_function(rowwise=True)
def _total_loss(Y: Array, M: Array | None, X: Array, *, W: Array, weighting: Weighting, xp: Namespace) -> float:
    """Return the sum of the losses of a block."""
    return float(xp.sum(weighting.row_losses(Y - predictions(X, W, Y), M, xp)))
