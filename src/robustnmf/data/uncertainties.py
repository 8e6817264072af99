"""Uncertainties of entries: the typical one of each feature, and weights that say how each entry differs from it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host
from robustnmf.utils.medians import median

Matrix = NDArray[Any]

# How much more, or less, certain an entry can be than is typical of its feature.
MOST_PRECISE = 1e9
DOUBLES = np.dtype(np.float64)


def is_observed(Y: Array, weights: Array | None, xp: Namespace) -> Array:
    """Return where an entry is neither NaN nor has weight zero, (B, m) of bool."""
    observed = ~xp.isnan(Y)
    return observed if weights is None else observed & (weights != 0)


def typical_uncertainties(
    X: Blocks, weights: Blocks | None, uncertainties: Blocks, engine: Engine, *, complete: bool
) -> Matrix:
    """Return the median uncertainty of the observed entries of each feature, (m,); 1 where nothing is observed.

    Parameters
    ----------
    X, weights, uncertainties : blocks, (n, m) in all.
    complete : bool
        Whether all entries are observed.
    """
    counts = None if complete else engine.map(_as_counts, X, weights, dtype=DOUBLES)
    given = engine.map(_as_doubles, uncertainties, dtype=DOUBLES)
    if engine.gathers_features:
        typical = to_host(engine.map_features(_medians, given, counts))
    else:
        # The median of an even number of entries is between the two in the middle. A quarter of an entry more than a
        # half reaches the upper one, however many entries of a feature are observed.
        middle = (0.5, 0.5 + 0.25 / sum(len(block) for block in X))
        lower, upper = (to_host(engine.quantile(given, counts, q, axis="feature")) for q in middle)
        typical = 0.5 * (lower + upper)
    return np.where(typical > 0, typical, 1.0)


@block_function(on_host=True)
def _medians(given: Array, counts: Array | None, *, xp: Namespace) -> Array:
    """Return the medians of features in rows, (m',)."""
    return median(given if counts is None else xp.where(counts > 0, given, np.nan), complete=counts is None)


@block_function(recomputed=True, on_host=True)
def _as_counts(Y: Array, weights: Array | None, *, dtype: Any, xp: Namespace) -> Array:
    """Return 1 where an entry is observed, else 0."""
    return xp.astype(is_observed(Y, weights, xp), xp.float64)


@block_function(recomputed=True, on_host=True)
def _as_doubles(Y: Array, *, dtype: Any, xp: Namespace) -> Array:
    return xp.astype(Y, xp.float64, copy=False)


def combined_weights(
    weights: Array | None, uncertainties: Array | None, observed: Array, noise: Array | None, xp: Namespace
) -> Array | None:
    """Return weights of entries by the user's weights and by their uncertainties, in doubles, (B, m); None if neither.

    An entry with half the uncertainty that is typical of its feature has four times the weight. The ratio is limited to
    1e-9 .. 1e9. Beyond that an entry decides alone, or has no influence, anyway; within it, weights stay in the range
    of single precision.

    Parameters
    ----------
    weights, uncertainties : (B, m) or None.
    observed : (B, m) of bool
        Where uncertainties are known to be positive.
    noise : (m,) or None
        The typical uncertainty of each feature.
    """
    if uncertainties is None:
        return None if weights is None else xp.astype(weights, xp.float64, copy=False)
    given = xp.astype(xp.where(observed, uncertainties, xp.ones_like(uncertainties)), xp.float64, copy=False)
    with np.errstate(over="ignore"):
        precision = xp.clip(noise / given, 1 / MOST_PRECISE, MOST_PRECISE) ** 2
    if weights is None:
        return precision
    largest = float(xp.finfo(xp.float64).max) / MOST_PRECISE**3  # a weight that can be multiplied by any precision
    doubles = xp.astype(weights, xp.float64, copy=False)
    return precision * xp.where(doubles > largest, largest, doubles)
