"""The end of a fit: what is wrong is decided by noise, and the rest is fitted by least squares.

The robust stages reject with one scale for all entries. Here each is judged in units of its own noise, from where the
robust fit stands; then least squares on all entries is compared with that on the accepted ones
(`robustnmf.algorithm.least_squares`), and taken if it shows that nothing is wrong.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from math import inf, log
from typing import Any, NamedTuple

import numpy as np

from robustnmf.algorithm.checkpoint import factor, is_finite
from robustnmf.algorithm.counts import divergences, everything, limited_counts, takes_second
from robustnmf.algorithm.encoding import Basis, typical_code
from robustnmf.algorithm.holdout import Point
from robustnmf.algorithm.least_squares import (
    CLEAR_GAIN,
    LITTLE_MOMENTUM,
    MEASURED,
    MOMENTUM,
    MOST_WRONG,
    Accepted,
    Comparison,
    Explained,
    Judged,
    LeastSquares,
)
from robustnmf.algorithm.overfitting import is_quick, unseen_damage
from robustnmf.algorithm.patterns import Pattern, Trial, pattern_limits, start_with_group, start_within, try_pattern
from robustnmf.algorithm.singular_start import singular_start
from robustnmf.algorithm.stage import RESOLUTION, End, Fit, State, Steps, encode_all_samples, final_weighting
from robustnmf.algorithm.steps import Compute, Measure
from robustnmf.model.noise import ARRAYS, NoiseModel, Sampled
from robustnmf.model.weighting import Weighting
from robustnmf.utils.arrays import Array, Blocks, to_host
from robustnmf.utils.platforms import give_back_freed_memory

# Entries are judged by their noise at least and at most so many times, as long as this share of them turns out to be
# right; and sweeps of least squares before each time.
FEWEST_ROUNDS, MOST_ROUNDS, SETTLED, NOISE_SWEEPS = 2, 10, 0.002, 8
# If the noise is below this part of the level of features, a threshold of this part is tried before all entries are, so
# many times, and followed by so many sweeps.
HARDLY_ANY_NOISE, WIDEST, MOST_WIDENINGS, WIDENED_SWEEPS = 0.005, 0.25, 4, 100
# Least squares that leaves so many times the total absolute residual after a few sweeps is not followed.
HOPELESS = 1.1
# If nothing is wrong, new entries are rejected beyond so many times the largest residual.
NOTHING_WRONG = 1.5
# Residuals above this part of the entries are dense noise, which a fit may follow; unless they grow with the entry, by
# at least this power, and hardly more than this share is rejected.
DENSE_NOISE, GROWING_NOISE, MUCH_REJECTED = 0.2, 0.8, 0.13
# Sweeps of least squares on all entries after which it is compared, and the most in all with the usual `max_iter`.
TRIAL_SWEEPS, MOST_SWEEPS = (5, 30, 100), 400
# Sweeps before leave-one-out predictions of the accepted entries are compared.
UNSEEN_SWEEPS = 30
# With fewer parameters than this part of the accepted entries, these have little part in their own predictions. Where
# their residuals are so many times larger, those of leave-one-out predictions are too.
FEW_PARAMETERS, CLEAR_DAMAGE = 0.1, 5.0
# A fit has learnt something if the median residual of held-out entries fell below this part of that at the start.
LEARNT_NOTHING = 0.95
# Sweeps of least squares after which weights that follow the predictions are computed anew; it has converged if the
# objective was steady so many times in a row.
REWEIGHTED_EVERY, AT_REST = 5, 2
# Sweeps of least squares from the second start of counts, and times that entries are then judged by their noise.
SECOND_SWEEPS, SECOND_ROUNDS = 60, 3
# Share of the limits of a pattern within which an entry is near the component that begins it.
NEAR = 1 / 3
# Anchors of a sample together count like so many entries for each component; the one in the middle is tried first, with
# so many times so many sweeps of least squares, in which an entry counts half at so many medians of clean residuals.
ANCHORED_AS, ANCHORED_ROUNDS, ANCHORED_SWEEPS, SOFTNESS = (64.0, 16.0, 4.0, 1.0, 0.25), 3, 8, 3.0
# Held-out residuals count by Cauchy's loss, at so many widths of the clean ones.
MONITORED_AT = 2.0
# What a noise model is made of beside its arrays, as a checkpoint holds it.
NUMBERS = ("exponent", "threshold", "of_counts", "level_prior")


class Judgement(NamedTuple):
    """What is wrong, and least squares on the rest."""

    squares: LeastSquares
    point: Point
    """Where least squares stands."""
    judged: Judged | None
    """What is wrong; None if the robust fit is to stay as it is."""
    comparison: Comparison
    """With least squares on all entries."""
    pattern: Pattern | None = None
    """What is rejected with a pattern, if that leaves doubt."""


def judge(fit: Fit, state: State, weighting: Weighting, follows_noise: bool) -> Generator[Any, Any, Judgement]:
    """Decide what is wrong, and whether anything is.

    Where features were scaled, entries are judged by a fit that is scaled: an error in the largest feature may have a
    component of its own in the other. The robust fit stays as it is if too little is positive to tell the noise, or if
    it begins to follow dense noise, which least squares would do all the more; unless that shows that nothing is wrong.
    """
    threshold = final_weighting(fit, weighting, state.mixture).threshold
    squares, begin = yield from choose_anchors(fit, state, threshold)
    width = log(2) * state.mixture.width if fit.is_anchored else None
    robust = _weighted(fit, squares.judged(begin, threshold, width))
    # Of sparse data, most that is right is a count of which hardly anything was expected.
    squares = replace(squares, least=threshold if fit.is_sparse else None)
    rejected = yield Measure(partial(squares.rejected_share, robust), is_finite, robust.point, "share")
    judged, overfit, stays, pattern = robust, 1.0, not fit.tells_noise, None
    if not stays:
        squares, judged = yield from judge_by_noise(fit, squares, robust, rejected)
        # The noise of counts is dense, and their weights know it.
        doubtful = follows_noise and not fit.weights_counts and not fit.is_anchored
        wider, accepted, pattern = yield from accept_patterns(fit, squares, judged)
        stays = doubtful and accepted is judged and (yield from is_dense_noise(fit, squares, robust, judged))
        if stays:
            judged, overfit = robust, squares.overfit(fit.rank, fit.held.n_observed)
        else:
            squares, judged = wider, (yield from widen(fit, wider, accepted))
        if fit.weights_counts:
            squares, judged = yield from with_second_start(fit, squares, judged)
    squares, some = replace(squares, units=fit.units), judged.point
    if fit.units is not None:
        some, _ = yield from improve(fit, squares, some, judged, 2 * NOISE_SWEEPS)
    every, comparison = yield from try_wider(fit, squares, judged, some, inf)
    if not (stays or comparison.favours_all(fit.n_samples, fit.rank)):
        every, comparison = yield from predict_unseen(fit, squares, judged, some, every, comparison)
    comparison = comparison._replace(rejected=max(comparison.rejected, rejected if rejected > MOST_WRONG else 0.0))
    if comparison.favours_all(fit.n_samples, fit.rank, overfit):
        everything = Judged(every, replace(judged.model, threshold=inf))
        return Judgement(replace(squares, few=None), every, everything, comparison._replace(takes_all=True))
    return Judgement(squares, some, None if stays and not fit.weights_counts else judged, comparison, pattern)


class Anchoring(NamedTuple):
    """Least squares with anchors, as entries that it does not see tell."""

    squares: LeastSquares
    point: Point
    """Where it leads."""
    loss: float
    """How well that predicts the held-out entries."""


def choose_anchors(fit: Fit, state: State, threshold: Array) -> Generator[Any, Any, tuple[LeastSquares, Point]]:
    """Return least squares with anchors that predict held-out entries best, and where it leads.

    Where samples have few entries, their codes are told by these and by what is known of all samples. How much the
    latter should count depends on how much samples differ, beside the noise, and entries that are held out tell it. So
    do they whether entries far from their predictions should count less.
    """
    squares = LeastSquares.of(fit)
    if not fit.is_anchored:
        return squares, state.point
    tried: dict[int, Anchoring] = {}
    number = len(ANCHORED_AS) // 2
    for step in (1, -1):
        while 0 <= number < len(ANCHORED_AS) and number not in tried:
            soft = replace(squares, anchor=ANCHORED_AS[number] * fit.rank / fit.n_features, softness=SOFTNESS)
            tried[number] = yield from try_anchors(fit, soft, state, threshold)
            number = min(tried, key=lambda k: tried[k].loss) + step
        number = min(tried, key=lambda k: tried[k].loss) - step
    best = min(tried.values(), key=lambda trial: trial.loss)
    plain = yield from try_anchors(fit, replace(best.squares, softness=inf), state, threshold)
    best = min(plain, best, key=lambda trial: trial.loss)
    return replace(best.squares, unseen=held_out_entries(fit, best.point, threshold)), best.point


def held_out_entries(fit: Fit, point: Point, threshold: Array) -> Sampled:
    """Return the entries that a fit did not see, with its predictions."""
    held = fit.held
    values, weights, alone = (
        to_host(part).astype(np.float64) for part in (held.values, held.weights, point.predictions)
    )
    features = to_host(fit.engine.join(held.positions))[:, 1].astype(np.intp)
    is_clean = np.abs(values - alone) <= float(threshold[0])
    return Sampled(values, alone, features, weights, is_clean, fit.n_features)


def try_anchors(fit: Fit, squares: LeastSquares, state: State, threshold: Array) -> Generator[Any, Any, Anchoring]:
    """Return where least squares leads from the robust fit, without the held-out entries."""
    hidden, point = replace(squares, M=fit.held.M), state.point
    judged = hidden.judged(point, threshold, log(2) * state.mixture.width)
    trials = []
    for _ in range(ANCHORED_ROUNDS):
        point, _ = yield from improve(fit, hidden, point, judged, ANCHORED_SWEEPS)
        judged = judged._replace(point=point)
        trials.append(Anchoring(squares, point, _held_out_loss(fit, state, point)))
    return min(trials, key=lambda trial: trial.loss)


def _held_out_loss(fit: Fit, state: State, point: Point) -> float:
    """Return how well a point predicts the entries held out."""
    return fit.held.mean(fit.held.losses(point, MONITORED_AT * state.mixture.width))


def _weighted(fit: Fit, robust: Judged) -> Judged:
    """Return what the robust fit judges with entries that are weighted as counts are, if they are to be.

    Other weights need the widths of features, which are not known yet.
    """
    if not fit.weights_counts:
        return robust
    return robust._replace(model=replace(robust.model, of_counts=True, weights_entries=True))


def judge_by_noise(
    fit: Fit, squares: LeastSquares, robust: Judged, rejected: float
) -> Generator[Any, Any, tuple[LeastSquares, Judged]]:
    """Return the fit with entries judged by their noise, until hardly one more turns out to be right.

    `rejected` is the share that the robust fit rejects.
    """
    point, _ = yield from improve(fit, squares, robust.point, robust, NOISE_SWEEPS)
    squares, judged, last = squares.with_robust(robust, point), robust, rejected
    for n_rounds in range(1, MOST_ROUNDS + 1):
        if n_rounds > 1 or squares.few is not None:
            point, _ = yield from improve(fit, squares, judged.point, judged, NOISE_SWEEPS)
        judged = Judged(point, (yield from find_noise(fit, squares, point, judged.model, robust)))
        share = yield Measure(partial(squares.rejected_share, judged), is_finite, point, "share")
        if n_rounds >= FEWEST_ROUNDS and share > last - SETTLED:
            break
        last = share
    return squares, judged


def accept_patterns(
    fit: Fit, squares: LeastSquares, judged: Judged
) -> Generator[Any, Any, tuple[LeastSquares, Judged, Pattern | None]]:
    """Return the fit with entries accepted that follow a pattern, if they are predicted and the others bear it.

    And the pattern, if that is in doubt.
    """
    # Samples that have few entries in common cannot be alike in what is rejected of them.
    if fit.method.fixed or fit.weights_counts or fit.is_anchored or fit.is_mostly_missing:
        return squares, judged, None
    find = partial(pattern_limits, squares, judged, fit.is_sparse)
    limits = yield Measure(find, are_limits(fit.n_features), judged.point, "limits")
    if not limits.any():
        return squares, judged, None
    if fit.is_sparse:
        squares_after, found = yield from fit_within(fit, squares, judged, limits)
    else:
        squares_after, found = squares, (yield from fit_with_group(fit, squares, judged, limits))
    point = found.point
    measured = yield Measure(partial(try_pattern, squares, judged, found), is_trial, point)
    trial = Trial._make(float(measured[name]) for name in Trial._fields)
    if trial.is_good(fit.is_sparse):
        return squares_after, found, None
    doubtful = trial.leaves_doubt(fit.is_sparse)
    return squares, judged, Pattern(np.flatnonzero(limits), trial.predicted) if doubtful else None


def fit_within(
    fit: Fit, squares: LeastSquares, judged: Judged, limits: Any
) -> Generator[Any, Any, tuple[LeastSquares, Judged]]:
    """Return the fit to entries that are accepted up to limits of features, (m,), from singular vectors."""
    least = fit.engine.place(limits, judged.point.W.dtype)
    least = least if squares.least is None else fit.engine.xp.where(least > squares.least, least, squares.least)
    wider, within = replace(squares, least=least), Judged(judged.point, replace(judged.model, least=least))
    point = yield Compute(lambda: fit.held.point(*start_within(wider, within, fit.rank)), (judged.point,))
    point, _ = yield from improve(fit, wider, point, within, SECOND_SWEEPS)
    found = Judged(point, (yield from find_noise(fit, wider, point, within.model, within)))
    return wider, (yield from judge_again(fit, wider, found))


def fit_with_group(fit: Fit, squares: LeastSquares, judged: Judged, limits: Any) -> Generator[Any, Any, Judged]:
    """Return the fit with a component for a group of samples, whose entries are then judged like others."""
    point = yield Compute(lambda: fit.held.point(*start_with_group(squares, judged, limits)), (judged.point,))
    # The component begins as a product of rank one, to which not all of its entries are near.
    near = Judged(point, replace(judged.model, least=fit.engine.place(NEAR * limits, point.W.dtype)))
    point, _ = yield from improve(fit, squares, point, near, SECOND_SWEEPS)
    found = Judged(point, (yield from find_noise(fit, squares, point, near.model, near)))
    return (yield from judge_again(fit, squares, found))


def judge_again(fit: Fit, squares: LeastSquares, found: Judged) -> Generator[Any, Any, Judged]:
    """Return the fit after some more rounds."""
    for _ in range(SECOND_ROUNDS - 1):
        point, _ = yield from improve(fit, squares, found.point, found, NOISE_SWEEPS)
        found = Judged(point, (yield from find_noise(fit, squares, point, found.model, found)))
    return found


def with_second_start(
    fit: Fit, squares: LeastSquares, judged: Judged
) -> Generator[Any, Any, tuple[LeastSquares, Judged]]:
    """Return the fit of counts, or that from a second start, if it leaves clearly less of the divergence."""
    if fit.method.fixed:
        return squares, judged
    limited = limited_counts(squares.V, squares.M, fit.engine)
    plain = replace(squares, V=limited.V, few=None, robust=None)

    def begin() -> Point:
        return fit.held.point(*singular_start(limited.V, fit.rank, fit.engine))

    point = yield Compute(begin)
    nothing_wrong = everything(plain, point.W, point.Ht, judged.model)
    point, _ = yield from improve(fit, plain, point, Judged(point, nothing_wrong), SECOND_SWEEPS)
    other, rest = Judged(point, nothing_wrong), replace(squares, few=None, robust=None)
    for n_rounds in range(SECOND_ROUNDS):
        if n_rounds:
            point, _ = yield from improve(fit, rest, point, other, NOISE_SWEEPS)
        other = Judged(point, (yield from find_noise(fit, rest, point, other.model, other)))
    found = yield Measure(partial(divergences, squares, judged, other, limited), is_divergence, point)
    return (rest, other) if takes_second(found) else (squares, judged)


def is_dense_noise(fit: Fit, squares: LeastSquares, robust: Judged, judged: Judged) -> Generator[Any, Any, bool]:
    """Return whether residuals are so large that least squares gains no more than it would on nothing but noise."""
    found = yield from compare(squares, robust, robust.point, judged.point)
    grows = judged.model.exponent > GROWING_NOISE and found.rejected < MUCH_REJECTED
    overfit = squares.overfit(fit.rank, fit.held.n_observed)
    return bool(found.residual > DENSE_NOISE and not grows and found.damage > LEARNT_NOTHING * overfit)


def widen(fit: Fit, squares: LeastSquares, judged: Judged) -> Generator[Any, Any, Judged]:
    """Return the fit with entries accepted that are not far beyond the threshold, if least squares explains them.

    Where there is hardly any noise, a fit that misses a part of the structure rejects it; the more it accepts, the more
    of it it finds.
    """
    if _relative_width(judged.model) > HARDLY_ANY_NOISE:
        return judged
    for _ in range(MOST_WIDENINGS):
        factor = WIDEST / (_relative_width(judged.model) * judged.model.threshold)
        wider, comparison = yield from try_wider(fit, squares, judged, judged.point, factor)
        if comparison.rejected == 0 or not comparison.favours_all(fit.n_samples, fit.rank):
            break
        model = replace(judged.model, threshold=factor * judged.model.threshold)
        wider, _ = yield from improve(fit, squares, wider, Judged(judged.point, model), WIDENED_SWEEPS)
        judged = Judged(wider, (yield from find_noise(fit, squares, wider, model, Judged(wider, model))))
    return judged


def _relative_width(model: NoiseModel) -> float:
    """Return the width of the noise of a typical feature, relative to its level."""
    return float(np.median(to_host(model.relative_widths)))


def try_wider(
    fit: Fit, squares: LeastSquares, judged: Judged, some: Point, factor: float
) -> Generator[Any, Any, tuple[Point, Comparison]]:
    """Return least squares with a wider threshold, by a factor, and how it compares with a fit to some entries."""
    wider, limit = some, judged._replace(model=replace(judged.model, threshold=factor * judged.model.threshold))
    trial = replace(squares, few=None) if factor == inf else squares
    limit = limit if factor < inf else limit._replace(model=replace(limit.model, softness=inf))
    for sweeps in TRIAL_SWEEPS:
        wider, _ = yield from improve(fit, trial, wider, limit, sweeps)
        comparison = yield from compare(squares, judged, some, wider, factor)
        if comparison.gain > HOPELESS or comparison.favours_all(fit.n_samples, fit.rank):
            break
        if sweeps == TRIAL_SWEEPS[1] and comparison.gain > CLEAR_GAIN:
            break
    return wider, comparison


def predict_unseen(
    fit: Fit, squares: LeastSquares, judged: Judged, some: Point, every: Point, comparison: Comparison
) -> Generator[Any, Any, tuple[Point, Comparison]]:
    """Return least squares on all entries after more sweeps, and the comparison by leave-one-out predictions too.

    Residuals favour the fit to some entries, but it may only follow these.
    """
    n_parameters, n_accepted = (
        fit.rank * (fit.n_samples + fit.n_features),
        (1 - comparison.rejected) * fit.held.n_observed,
    )
    is_clear = n_parameters < FEW_PARAMETERS * n_accepted and comparison.damage_as_judged > CLEAR_DAMAGE
    if is_clear or fit.is_sparse or fit.engine.keeps_sparse or not is_quick(fit.n_features, fit.rank):
        return every, comparison
    everything = judged._replace(model=replace(judged.model, threshold=inf, softness=inf))
    every, _ = yield from improve(fit, replace(squares, few=None), every, everything, UNSEEN_SWEEPS)
    damage = yield Measure(partial(unseen_damage, squares, judged, some, every), is_damage, every, "damage")
    return every, comparison._replace(unseen_damage=damage)


def compare(
    squares: LeastSquares, judged: Judged, some: Point, every: Point, factor: float = inf
) -> Generator[Any, Any, Comparison]:
    """Return how a fit to all entries, but for those far beyond the threshold, compares with one to some."""
    found = yield Measure(partial(squares.compare, judged, some, every, factor), is_comparison, every)
    return Comparison._make([*(float(found[name]) for name in MEASURED), False, inf])


def improve(
    fit: Fit, squares: LeastSquares, point: Point, judged: Judged, sweeps: int, *, solve: bool = False
) -> Generator[Any, Any, tuple[Point, bool]]:
    """Return a point after some sweeps of least squares on what is right, and whether they have converged.

    In the end codes may be solved for, as those of new samples are. Weights by noise follow the predictions, so they
    are computed anew every few sweeps, and entries are judged anew with them.
    """
    steady = [False]

    def make() -> Point:
        if not judged.model.follows_predictions:
            data = squares.right(judged)
            W, Ht, steady[0] = squares.improved(data, point.W, point.Ht, sweeps)
        else:
            data, W, Ht, steady[0] = reweighted(squares, point, judged, sweeps)
        return fit.held.point(W, squares.solved(data, W, Ht) if solve else Ht)

    better = yield Compute(make, (point,))
    return better, bool((yield Measure(lambda: float(steady[0]), is_finite, better, "steady")))


def reweighted(
    squares: LeastSquares, point: Point, judged: Judged, sweeps: int
) -> tuple[Accepted, Array, Blocks, bool]:
    """Return the data with its last weights, factors after some sweeps, and whether they have converged.

    Weights are those of the point at which entries are judged, then those of the factors.
    """
    (W, Ht, *_), at_rest, momentum = point, 0, MOMENTUM
    for done in range(0, sweeps, REWEIGHTED_EVERY):
        data, before = squares.accepted(judged), Ht
        W, Ht, is_steady = squares.improved(data, W, Ht, min(REWEIGHTED_EVERY, sweeps - done), momentum)
        judged = judged._replace(point=judged.point._replace(W=W, Ht=Ht))
        if Ht is before:  # with the same momentum it would rise again
            momentum = momentum / 2 if momentum >= LITTLE_MOMENTUM else 0.0
        at_rest = at_rest + 1 if is_steady else 0
        if at_rest == AT_REST:
            break
    return data, W, Ht, at_rest == AT_REST


def find_noise(
    fit: Fit, squares: LeastSquares, point: Point, model: NoiseModel, robust: Judged
) -> Generator[Any, Any, NoiseModel]:
    """Return the noise of a point, at which the last model says what was accepted."""
    noise = fit.noise
    assert noise is not None

    def find() -> dict[str, Any]:
        found = squares.noise(point, model, robust, noise, RESOLUTION)
        numbers = {name: float(getattr(found, name)) for name in NUMBERS}
        return {name: getattr(found, name) for name in ARRAYS} | numbers

    def are_valid(found: dict[str, Any]) -> bool:
        arrays = [factor(found[name], (fit.n_features,), bounded=False) for name in ARRAYS]
        return len(arrays) == len(ARRAYS) and 0 <= found["exponent"] <= 1 and found["threshold"] > 0

    found = yield Measure(find, are_valid, point)
    dtype = point.W.dtype
    fields = {name: found[name] for name in (*ARRAYS, *NUMBERS)}
    fields |= {"weights_entries": noise.weights_entries, "of_counts": bool(found["of_counts"])}
    fields["softness"] = squares.softness
    found_model = NoiseModel(**fields).placed(lambda array: fit.engine.place(array, dtype))
    if squares.few is None or squares.robust is None:
        return found_model
    # Where the robust fit stays, so does its threshold.
    first = squares.robust.model
    widths = first.threshold * first.widths / found_model.threshold
    return replace(found_model, widths=fit.engine.xp.where(squares.few, widths, found_model.widths))


def finish(
    fit: Fit, state: State, weighting: Weighting, judgement: Judgement, converged: bool, warning: str | None
) -> Generator[Any, Any, End]:
    """Return the end of a fit by least squares on what is right."""
    squares, judged = replace(judgement.squares, units=fit.units), judgement.judged
    assert judged is not None
    sweeps = max(min(MOST_SWEEPS, 3 * fit.max_iter), 2 * fit.max_iter)
    point, steady = yield from improve(fit, squares, judgement.point, judged, sweeps, solve=True)
    is_same = judged.point is judgement.point
    if is_same:
        judged = yield from judge_at_end(fit, squares, judged, point)
    explained = yield Measure(partial(squares.explained, judged), is_explained, judged.point)
    warning = warning or Explained._make(float(explained[name]) for name in Explained._fields).doubt
    state, weighting = state._replace(point=point), final_weighting(fit, weighting, state.mixture)
    judge = None if is_same else Basis(judged.point.W, typical_code(*judged.point[:2], None, fit.engine), weighting)
    judge = None if judge is None else replace(judge, penalties=fit.method.penalties, noise=judged.model)
    if fit.whole is not None:
        state = yield from encode_all_samples(fit, state, weighting, model=judged.model, judge=judge)
        squares = replace(squares, V=fit.whole.V, M=fit.whole.M, few=None)
        state = yield from finish_all_samples(fit, state, squares, judge, judged)
    about = (warning, judged.model, judge, judgement.comparison, judgement.pattern)
    converged = steady and (converged or fit.is_anchored)  # of few entries the robust fit follows the noise
    return End(state.point, weighting, converged, state.stopped, None, *about)


def judge_at_end(fit: Fit, squares: LeastSquares, judged: Judged, point: Point) -> Generator[Any, Any, Judged]:
    """Return the noise where least squares ended; if nothing is wrong, only what is beyond all residuals will be."""
    model = yield from find_noise(fit, squares, point, judged.model, judged)
    if judged.model.threshold < inf:
        return Judged(point, model)
    largest = yield Measure(partial(squares.largest_ratio, Judged(point, model)), is_finite, point, "largest")
    threshold = NOTHING_WRONG * model.threshold * max(largest, 1.0)
    return Judged(point, replace(model, threshold=threshold, lenient=True))


def finish_all_samples(fit: Fit, state: State, squares: LeastSquares, judge: Basis | None, judged: Judged) -> Steps:
    """Return the fit after some sweeps of least squares on what is right in all samples."""
    whole, point = fit.whole, state.point
    assert whole is not None

    def make() -> Point:
        right = point
        if judge is not None:
            right = Point(judge.W, judge.encode(whole.V, whole.M, fit.engine, max_iter=0, tol=0.0), point.predictions)
        if fit.engine.has_tiles:  # a mask of all entries comes next
            give_back_freed_memory()
        data = squares.right(Judged(right, judged.model))
        W, Ht, _ = squares.improved(data, point.W, point.Ht, fit.last_iter)
        return fit.held.point(W, whole.part(Ht))._replace(Ht=Ht)

    return state._replace(point=(yield Compute(make, (point,))))


def are_limits(n_features: int) -> Callable[[Array], bool]:
    """Return a check that a checkpoint holds a limit for each feature."""
    return lambda limits: limits.shape == (n_features,) and bool((limits >= 0).all())


def is_trial(found: dict[str, Any]) -> bool:
    """Return whether a checkpoint holds what a trial with more entries has found."""
    return found["damage"] >= 0 and all(found[name] <= inf for name in Trial._fields)


def is_divergence(found: dict[str, Any]) -> bool:
    """Return whether a checkpoint holds how much of the divergence a second fit leaves."""
    return all(found[name] >= 0 for name in ("capped", "limited"))


def is_comparison(found: dict[str, Any]) -> bool:
    """Return whether a checkpoint holds what least squares was compared by."""
    return all(not found[name] < 0 for name in MEASURED)


def is_damage(found: float) -> bool:
    """Return whether a checkpoint holds a ratio of residuals."""
    return found >= 0


def is_explained(found: dict[str, Any]) -> bool:
    """Return whether a checkpoint holds how much a fit explains."""
    return all(found[name] <= 1 for name in Explained._fields[:2]) and found["residual"] >= 0
