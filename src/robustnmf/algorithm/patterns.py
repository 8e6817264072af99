"""Rejected entries that follow a pattern: they may be right.

Errors are in entries, samples or features at random. A group of samples that shares features with large entries, such
as the names of persons in the chapters of one novel, looks like errors one by one, but not together: samples that are
alike in what is rejected of the other features have the same feature rejected. So each entry has a score, the number of
rejected entries of its feature in other samples, each weighted by how much its sample is like this one in the other
features, beyond what the numbers of rejected entries of samples and features explain. Where rejected entries are spread
at random, their scores are those of any entry of the feature; a rank test (Mann and Whitney's) tells.

Where most entries are positive, rejected entries of one sample that is wrong as a whole would look so too. There a
group must be larger, its samples must be accepted in part, and numbers of rejected entries tell it: a material that a
tenth of the pixels show, bright in some of the bands.

Errors may follow a pattern too: something that covers neighbouring pixels. So entries with a pattern are accepted only
on trial, and stay so if the others bear it.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, sparse, stats

from robustnmf.algorithm.least_squares import DAMAGES, Judged, LeastSquares
from robustnmf.algorithm.leverage import MOST_LEVERAGE, inverse, leverages, without_own
from robustnmf.algorithm.singular_start import from_singular_vectors, singular_start
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.model.noise import NoiseModel
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host
from robustnmf.utils.entries import Entries

Matrix = NDArray[Any]

# Samples and features that are looked at, at most, and rejected entries that a feature needs.
MOST_SAMPLES, MOST_FEATURES, FEWEST_REJECTED = 1000, 2000, 5
# Features that are ranked at a time: that takes several times the memory of what is ranked.
RANKED_FEATURES = 100
# The chance that any feature is found although its rejected entries are spread at random, and how often the score of a
# rejected entry must be above that of another.
SIGNIFICANCE, PREDICTED = 0.01, 0.75
# An entry of a feature with a pattern is accepted up to so many times the typical one that follows the pattern.
WITHIN = 3.0
# The others bear it if a fit with those entries still explains this share of what was explained of them, and leaves at
# most so many times their squares; and it must predict this share of the squares of the entries in question.
STILL_EXPLAINED, BEARABLE, PREDICTABLE = 0.4, 1.6, 0.1
# Where most entries are positive a group is at least this share of the samples, of a sample at most this share of the
# features may be rejected, nearly all of the squares must be predicted and stay explained, and the others may become so
# many times worse. Days of fireworks, of which there are few, are what users want to be told of.
GROUP, REJECTED_OF_SAMPLE, NEARLY_ALL, WORSE = 0.05, 0.5, 0.95, 5.0


class Trial(NamedTuple):
    """What accepting entries with a pattern does."""

    still_explained: float
    """Share of what was explained of the other entries that still is."""
    damage: float
    """Squares of their residuals, relative to what they were."""
    predicted: float
    """Share of the squares of the entries in question that is predicted without them."""

    def is_good(self, is_sparse: bool) -> bool:
        """Whether the entries are right."""
        if not is_sparse:
            return min(self.predicted, self.still_explained) >= NEARLY_ALL and self.damage <= WORSE
        return self.predicted >= PREDICTABLE and self.still_explained >= STILL_EXPLAINED and self.damage <= BEARABLE

    def leaves_doubt(self, is_sparse: bool) -> bool:
        """Whether they may be, although the others do not bear them."""
        if not is_sparse:
            return not self.is_good(is_sparse) and self.predicted >= NEARLY_ALL
        return not self.is_good(is_sparse) and self.predicted >= PREDICTABLE and self.damage <= DAMAGES


class Pattern(NamedTuple):
    """Rejected entries that follow a pattern and may be right."""

    features: Matrix
    """The features that have them."""
    predicted: float
    """Share of their squares that other entries predict."""


def pattern_limits(squares: LeastSquares, judged: Judged, is_sparse: bool) -> Array:
    """Return by how much entries of each feature may exceed their prediction by the pattern of what is rejected.

    (m,), 0 where there is none; on the host.
    """
    every = -(-sum(len(block) for block in squares.V) // MOST_SAMPLES)
    limits = limits_of(rejected_excess(squares, judged, every), is_sparse)
    return limits if squares.few is None else np.where(to_host(squares.few), 0.0, limits)


def rejected_excess(squares: LeastSquares, judged: Judged, every: int = 1) -> Any:
    """Return by how much rejected entries exceed their predictions, a sparse matrix (n, m) on the host.

    It has `every` so many of the samples.
    """
    engine, n_samples = squares.engine, sum(len(block) for block in squares.V)
    shape = (-(-n_samples // every), len(judged.point.W))
    numbers = engine.split(engine.place(np.arange(n_samples)[:, None]), like=squares.V)
    shared = {"W": judged.point.W, "model": judged.model, "every": every, "engine": engine}
    blocks = engine.map(_excess, squares.V, squares.M, judged.point.Ht, numbers, **shared)
    samples, features, values = to_host(engine.join(blocks)).T
    return sparse.csr_array((values, (samples.astype(np.int64), features.astype(np.int64))), shape=shape)


def limits_of(excess: Any, is_sparse: bool = True) -> Matrix:
    """Return the limits for a sparse matrix (n, m) of what rejected entries exceed their predictions by, else 0.

    `is_sparse` says whether most entries of the data are zero.
    """
    rows, n_features, fewest = excess, excess.shape[1], FEWEST_REJECTED
    if not is_sparse:
        fewest = max(fewest, int(GROUP * rows.shape[0]))
        rows = rows[np.diff(rows.indptr) <= REJECTED_OF_SAMPLE * n_features]
    limits, counts = np.zeros(n_features), np.diff(rows.tocsc().indptr)
    features = np.flatnonzero((counts >= fewest) & (2 * counts <= rows.shape[0]))
    features = np.sort(features[np.argsort(-counts[features], kind="stable")[:MOST_FEATURES]])
    if features.size < 2:
        return limits
    residuals = rows[:, features].toarray()
    is_rejected = residuals > 0
    scored = scores(is_rejected) if is_sparse else _others(is_rejected)
    for first in range(0, features.size, RANKED_FEATURES):
        some = slice(first, first + RANKED_FEATURES)
        limits[features[some]] = _limits_by_rank(residuals[:, some], scored[:, some], SIGNIFICANCE / features.size)
    return limits


def _limits_by_rank(residuals: Matrix, scored: Matrix, significance: float) -> Matrix:
    """Return the limits of some features (k,), whose rejected entries have positive residuals (n, k), by their scores.

    Entries that are rejected have higher ranks than others if there is a pattern.
    """
    limits, is_rejected, ranks = np.zeros(residuals.shape[1]), residuals > 0, _ranks(scored)
    n_rejected = is_rejected.sum(axis=0)
    n_others = len(ranks) - n_rejected
    above = ((ranks * is_rejected).sum(axis=0) - n_rejected * (n_rejected + 1) / 2) / (n_rejected * n_others)
    deviations = (above - 0.5) * np.sqrt(12 * n_rejected * n_others / (len(ranks) + 1))
    for place in np.flatnonzero((above > PREDICTED) & (deviations > stats.norm.isf(significance))):
        follows = is_rejected[:, place] & (ranks[:, place] > PREDICTED * len(ranks))
        if follows.any():
            limits[place] = WITHIN * np.median(residuals[follows, place])
    return limits


def _ranks(scored: Matrix) -> Matrix:
    """Return ranks within each column (n, k), those that are equal having their mean, as `scipy.stats.rankdata`.

    Small integers are counted: to sort them takes ten times as long.
    """
    if scored.dtype.kind != "i":
        ranks: Matrix = stats.rankdata(scored, axis=0)
        return ranks
    size = int(scored.max()) + 1
    places = scored + size * np.arange(scored.shape[1])
    counts = np.bincount(places.reshape(-1), minlength=size * scored.shape[1]).reshape(-1, size)
    below = np.cumsum(counts, axis=1) - counts
    found: Matrix = (below + 0.5 * (counts + 1)).reshape(-1)[places]
    return found


def _others(is_rejected: Matrix) -> Matrix:
    """Return how many other entries of the sample are rejected, (n, m) as given."""
    others: Matrix = is_rejected.sum(axis=1, keepdims=True, dtype=np.int32) - is_rejected
    return others


def scores(is_rejected: Matrix) -> Matrix:
    """Return how much the other rejected entries say that an entry is, (n, m) as given.

    The score of entry (i, j) is a sum over the samples k but i of the likeness of i and k without feature j, times
    what is rejected of feature j in k beyond what is expected. Expected is the product of the numbers of rejected
    entries of the sample and of the feature, over that of all; without feature j too, or the number of a sample would
    tell.
    """
    B = is_rejected.astype(np.float64)
    of_features = B.sum(axis=0)
    of_samples = B.sum(axis=1, keepdims=True) - B
    rest = np.maximum(of_features.sum() - of_features, 1)
    target = B - of_samples * of_features / rest
    common = (B @ of_features)[:, None] - B * of_features
    squares = (of_features**2).sum() - of_features**2
    gram = B @ B.T
    # The likeness of i and k is a sum over the other features of products of what is beyond expectation:
    # gram - B B - (of_samples common + common of_samples) / rest + of_samples of_samples squares / rest**2.
    totals = {"B": (B * target).sum(axis=0), "n": (of_samples * target).sum(axis=0)}
    total_common = (common * target).sum(axis=0)
    found = gram @ target - B * totals["B"]
    found -= (of_samples * total_common + common * totals["n"]) / rest
    found += of_samples * totals["n"] * squares / rest**2
    own = np.diag(gram)[:, None] - B - 2 * of_samples * common / rest + of_samples**2 * squares / rest**2
    scored: Matrix = found - own * target
    return scored


def start_within(squares: LeastSquares, judged: Judged, rank: int) -> tuple[Array, Blocks]:
    """Return factors from singular vectors of data in which no entry is beyond what is accepted."""
    shared = {"W": judged.point.W, "model": judged.model, "engine": squares.engine}
    V = squares.engine.map(_limited, squares.V, squares.M, judged.point.Ht, **shared)
    return singular_start(V, rank, squares.engine)


def start_with_group(squares: LeastSquares, judged: Judged, limits: Matrix) -> tuple[Array, Blocks]:
    """Return factors of which one is for the entries with a pattern, in place of the one that the fit needs least."""
    engine, (W, Ht) = squares.engine, judged.point[:2]
    excess = rejected_excess(squares, judged).tocoo()
    limited = sparse.csr_array((np.minimum(excess.data, limits[excess.col]), excess.coords), shape=excess.shape)
    codes, components = from_singular_vectors(limited, 1)
    basis, H = (to_host(array).astype(np.float64) for array in (W, engine.join(Ht)))
    place, by_others = least_needed(basis, H)
    H = H + H[:, place, None] * by_others
    basis[:, place], H[:, place] = components[0], codes[:, 0]
    return engine.place(basis, W.dtype), engine.split(engine.place(H, W.dtype), like=squares.V)


def least_needed(W: Matrix, H: Matrix) -> tuple[int, Matrix]:
    """Return which component (m, r) the others replace best, and with what coefficients, (r,), 0 for itself."""
    best, found = np.inf, (0, np.zeros(W.shape[1]))
    for k in range(W.shape[1]):
        others = np.delete(np.arange(W.shape[1]), k)
        coefficients, left = (np.zeros(0), float(np.linalg.norm(W[:, k])))
        if others.size:
            # It raises where it has not converged, and its own limit is tight for components that are nearly alike.
            coefficients, left = optimize.nnls(W[:, others], W[:, k], maxiter=100 * W.shape[1])
        if left * np.linalg.norm(H[:, k]) < best:
            best, found = left * float(np.linalg.norm(H[:, k])), (k, np.zeros(W.shape[1]))
            found[1][others] = coefficients
    return found


def try_pattern(squares: LeastSquares, before: Judged, after: Judged) -> dict[str, float]:
    """Return the fields of a `Trial`: what a fit with more entries does to those that were accepted before.

    The others are compared with the new predictions times a factor for each feature: the mean of what is accepted has
    changed with what is. And what is explained is that beyond the mean of the feature.
    """
    engine, xp = squares.engine, squares.engine.xp
    shared: dict[str, Any] = {"W": before.point.W, "W_new": after.point.W}
    shared |= {"model": before.model, "model_new": after.model, "leverage": leverages(after.point.W, xp)}
    shared["inverted"] = inverse(engine.sum(_gram, after.point.Ht), xp)
    found = engine.sum(_trial_sums, squares.V, squares.M, before.point.Ht, after.point.Ht, **shared)
    units = 1.0 if squares.units is None else to_host(squares.units).astype(np.float64) ** 2
    weight, total, y_y, errors, y_p, p_p, left, doubtful = (to_host(part).astype(np.float64) for part in found)
    new_errors = y_y - np.where(p_p > 0, y_p**2 / np.where(p_p > 0, p_p, 1), 0)
    variance = y_y - total**2 / np.where(weight > 0, weight, 1)
    variance, errors, new_errors, left, doubtful = (
        float(np.sum(part * units)) for part in (variance, errors, new_errors, left, doubtful)
    )
    explained = max(variance - errors, 1e-3 * variance)
    return {
        "still_explained": (variance - new_errors) / explained if explained > 0 else 1.0,
        "damage": new_errors / errors if errors > 0 else 1.0,
        "predicted": 1 - left / doubtful if doubtful > 0 else 0.0,
    }


# --- On a block -------------------------------------------------------------------------------------------------------


def _excess_stored(
    Y: Entries, M: None, X: Array, numbers: Array, *, W: Array, model: NoiseModel, every: int, engine: Engine, xp: Any
) -> Any:
    kernels = engine.kernels.stored
    if kernels is None:
        return NotImplemented
    predicted = kernels.predict(Y.indptr, Y.columns, X, W)
    is_wrong = model.placed(lambda array: array[Y.columns]).ratios(Y.values, predicted, np) > 1
    places = np.flatnonzero(is_wrong & (Y.values > predicted))
    places = places[numbers[Y.rows[places], 0] % every == 0]
    parts = (numbers[Y.rows[places], 0] // every, Y.columns[places], (Y.values - predicted)[places])
    return np.stack([part.astype(np.float64) for part in parts], axis=1)


@block_function(stored=_excess_stored)
def _excess(
    Y: Array,
    M: Array | None,
    X: Array,
    numbers: Array,
    *,
    W: Array,
    model: NoiseModel,
    every: int,
    engine: Engine,
    xp: Namespace,
) -> Array:
    """Return by how much rejected entries of a block exceed their predictions: sample, feature, excess, (k, 3).

    Samples have numbers (B, 1), of which multiples of `every` are looked at.
    """
    if every > 1:
        chosen = xp.nonzero(numbers[:, 0] % every == 0)[0]
        Y, M, X, numbers = Y[chosen], None if M is None else M[chosen], X[chosen], numbers[chosen] // every
    predicted = X @ W.T
    is_wrong = (model.ratios(Y, predicted, xp) > 1) & (Y > predicted)
    is_wrong = is_wrong if M is None else is_wrong & (M > 0)
    rows, columns = xp.nonzero(is_wrong)
    parts = (numbers[rows, 0], columns, (Y - predicted)[rows, columns])
    return xp.stack([xp.astype(part, xp.float64) for part in parts], axis=1)


def _limited_stored(
    Y: Entries, M: None, X: Array, *, W: Array, model: NoiseModel, engine: Engine, xp: Namespace
) -> Any:
    kernels = engine.kernels.stored
    if kernels is None:
        return NotImplemented
    predicted = kernels.predict(Y.indptr, Y.columns, X, W)
    most = predicted + model.placed(lambda array: array[Y.columns]).limits(predicted, np)
    return Y.with_values(np.minimum(Y.values, most).astype(Y.dtype, copy=False))


@block_function(recomputed=True, rowwise=True, stored=_limited_stored, keeps_stored=True)
def _limited(
    Y: Array, M: Array | None, X: Array, *, W: Array, model: NoiseModel, engine: Engine, xp: Namespace
) -> Array:
    """Return a block in which no entry exceeds its prediction by more than is accepted; a missing one is predicted."""
    predicted = X @ W.T
    most = predicted + model.limits(predicted, xp)
    limited = xp.where(Y < most, Y, most)
    return limited if M is None else xp.where(M > 0, limited, predicted)


def _gram(X: Array, *, xp: Namespace) -> Array:
    return X.T @ X


@block_function(rowwise=True)
def _trial_sums(
    Y: Array,
    M: Array | None,
    X: Array,
    X_new: Array,
    *,
    W: Array,
    W_new: Array,
    model: NoiseModel,
    model_new: NoiseModel,
    leverage: Array,
    inverted: Array,
    xp: Namespace,
) -> tuple[Array, ...]:
    """Return sums over a block for each feature, (m,) each.

    Of entries that were accepted: weights, entries, their squares, squares of residuals, products of entries with new
    predictions, squares of those. Of entries that are accepted only now: squares of what the new fit leaves of them
    without their own part in it, and what the other fit left.
    """
    old, new, weights = X @ W.T, X_new @ W_new.T, xp.ones_like(Y) if M is None else M
    was_wrong = model.ratios(Y, old, xp) > 1
    kept = xp.where(was_wrong, 0, weights)
    doubtful = xp.where(was_wrong & (model_new.ratios(Y, new, xp) <= 1), weights, 0)
    own = leverage + xp.sum((X_new @ inverted) * X_new, axis=1)[:, None]
    # An entry that has a component to itself is not predicted.
    alone = xp.where(own < MOST_LEVERAGE, without_own(new, Y, own, xp), old)
    residuals = (Y - old) ** 2
    accepted = (kept, kept * Y, kept * (Y * Y), kept * residuals, kept * (Y * new), kept * (new * new))
    parts = (*accepted, doubtful * (Y - alone) ** 2, doubtful * residuals)
    return tuple(xp.sum(part, axis=0, dtype=xp.float64) for part in parts)
