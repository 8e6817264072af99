"""Features in different units: whether a fit should divide each by its typical size while it looks for what is wrong.

One scale for all residuals suits features of one kind. In a table with units the largest features would decide alone,
or be rejected as a whole. So the initial stages are tried both ways on some of the samples, and what leaves the
smaller residuals, in units of their features, is followed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.parts import Parts
from robustnmf.algorithm.trials import some_samples, trial_predictions
from robustnmf.data.blocks import Data
from robustnmf.engines import Engine
from robustnmf.model.mixture import SPARSE, median

Matrix = NDArray[Any]

# Features whose sizes differ less are of one kind: the ratio of the largest to the smallest, but for a tenth of each.
ONE_KIND = 8.0
# Features whose sizes differ by more than this factor are in different units: commands divide each by its own.
WIDELY_DIFFERENT = 30.0
# The level of a feature counts like so many entries of the typical one.
PRIOR_ENTRIES = 5
# No level is below this part of the largest: least squares could not tell such a feature.
SMALLEST_LEVEL = 1e-9
# Residuals below this part of the feature's level count as this.
RESOLUTION = 1e-3


def feature_levels(X: Matrix, M: Matrix | None) -> Matrix:
    """Return the median positive entry of each feature, (m,), shrunk to the typical one where there are few."""
    seen = X > 0 if M is None else (X > 0) & (M > 0)
    counts = seen.sum(axis=0)
    weights = np.ones_like(X) if M is None else M
    medians = np.array([median(X[rows, j], weights[rows, j]) for j, rows in enumerate(seen.T)], dtype=np.float64)
    if not counts.any():
        return np.ones(X.shape[1])
    typical = np.median(np.log(medians[counts > 0]))
    logarithms = np.log(np.where(counts > 0, medians, 1.0))
    levels = np.exp((counts * logarithms + PRIOR_ENTRIES * typical) / (counts + PRIOR_ENTRIES))
    return np.asarray(np.maximum(levels, SMALLEST_LEVEL * levels.max()))


def is_sparse(X: Matrix, M: Matrix | None) -> bool:
    """Return whether most entries are zero: a few errors would be the typical positive entry of some features."""
    weights = np.ones_like(X) if M is None else M
    return bool(weights[X > 0].sum() < SPARSE * weights.sum())


def are_of_one_kind(levels: Matrix) -> bool:
    """Return whether features have similar levels, (m,), but for a few."""
    smallest, largest = np.quantile(levels, [0.1, 0.9], method="nearest")
    return bool(largest <= ONE_KIND * smallest)


def size_ratio(values: Any) -> float:
    """Return by what factor the levels of features in memory differ, (n, m); NaN is missing."""
    X = np.asarray(values, dtype=np.float64)
    observed = np.isfinite(X) & (X >= 0)
    levels = feature_levels(np.where(observed, X, 0.0), observed.astype(np.float64))
    return float(levels.max() / levels.min())


def choose_levels(data: Data, rank: int, parts: Parts, max_iter: int, engine: Engine) -> Matrix | None:
    """Return what features should be divided by, (m,), or None if they are of one kind."""
    X, M = some_samples(data, rank, engine)
    levels = feature_levels(X, M)
    if are_of_one_kind(levels) or is_sparse(X, M):
        return None
    trials = (trial(X, M, by, levels, rank, parts, max_iter) for by in (np.ones_like(levels), levels))
    together, scaled = trials
    return levels if scaled < together else None


def trial(X: Matrix, M: Matrix | None, by: Matrix, levels: Matrix, rank: int, parts: Parts, max_iter: int) -> float:
    """Return how large typical residuals are after the initial stages, in units of the levels, as a logarithm.

    Features are divided by `by`, (m,), before.
    """
    predicted = trial_predictions(X, M, by, rank, parts, max_iter)
    ratios = np.abs(X - predicted) / levels
    seen = X > 0 if M is None else (X > 0) & (M > 0)
    return _typical(ratios, seen, rank) + _typical(ratios.T, seen.T, rank)


def _typical(ratios: Matrix, seen: Matrix, rank: int) -> float:
    """Return the mean over rows of the logarithm of their median, of which `rank` entries are fitted by any code."""
    medians = []
    for row, chosen in zip(ratios, seen, strict=True):
        values = np.sort(row[chosen])
        if len(values) > 2 * rank:
            medians.append(values[min((len(values) + rank - 1) // 2, len(values) - 1)])
    return float(np.mean(np.log(np.maximum(medians, RESOLUTION)))) if medians else 0.0
