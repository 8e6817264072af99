"""The unit in which data is worked on: a power of two near its typical entry, and the noise of each feature."""

from math import frexp, inf, ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.utils.arrays import Array, Blocks, Namespace, device, size, subsample
from robustnmf.utils.entries import Entries

Matrix = NDArray[Any]

# Entries from which the unit of the data is taken.
UNIT_ENTRIES = 2**18


def unit_of(X: Blocks, noise: Matrix | None, engine: Engine) -> float:
    """Return the largest power of two that is not above the median of the positive entries, in units of the noise.

    Data is divided by it so that squares neither overflow nor vanish, whatever the unit of X. A power of two divides
    without rounding; a median is not moved by a minority of outliers, however large. Of many entries some will do.

    Parameters
    ----------
    X : blocks, (n, m) in all, 0 where missing.
    noise : (m,) or None
        What the features are divided by.
    """
    n_features, xp = X[0].shape[1], engine.xp
    sizes = [len(block) * n_features for block in X]
    every = max(1, sum(sizes) // UNIT_ENTRIES)
    by = None if noise is None else engine.place(noise, xp.float64)
    some = engine.join(engine.map(_some_entries, X, subsample(sizes, every), noise=by))
    positive = some[some > 0]
    if size(positive):
        median = float(engine.quantile([positive[:, None]], None, 0.5))
    else:
        all_entries, counts = engine.map(_all_positive, X, noise=by, dtype=np.dtype(np.float64))
        median = float(engine.quantile(all_entries, counts, 0.5))
        if median == 0:
            return 1.0
    return power_of_two_below(median)


def _some_of_stored(Y: Entries, chosen: slice, *, noise: Array | None, xp: Namespace) -> Array:
    places = np.arange(chosen.start, len(Y) * Y.n_columns, chosen.step)
    rows, columns = np.divmod(places, Y.n_columns)
    some = Y.at(rows, columns).astype(np.float64)
    return some if noise is None else some / noise[columns]


@block_function(on_host=True, stored=_some_of_stored)
def _some_entries(Y: Array, chosen: slice, *, noise: Array | None, xp: Namespace) -> Array:
    """Return some entries of a block, line by line, in units of the noise, as a vector of doubles."""
    some = xp.astype(xp.reshape(Y, (-1,))[chosen], xp.float64)
    if noise is None:
        return some
    features = (chosen.start + chosen.step * xp.arange(some.shape[0], device=device(Y))) % Y.shape[1]
    with np.errstate(over="ignore"):
        return some / noise[features]


@block_function(recomputed=True, parts=2, on_host=True)
def _all_positive(Y: Array, *, noise: Array | None, dtype: Any, xp: Namespace) -> tuple[Array, Array]:
    """Return all entries in units of the noise as doubles, and 1 where they are positive, else 0."""
    values = xp.astype(Y, xp.float64)
    with np.errstate(over="ignore"):
        values = values if noise is None else values / noise
    return values, xp.astype(values > 0, xp.float64)


def power_of_two_below(typical: float) -> float:
    """Return the largest power of two that is not above a typical entry of the data, in units of its noise.

    Examples
    --------
    >>> power_of_two_below(10.0)
    8.0
    """
    if not 0 < typical < inf:
        raise ValueError(
            f"X divided by its uncertainties must be finite and positive; its median is {typical:g}. Check the units "
            "of X and uncertainties."
        )
    return ldexp(1.0, frexp(typical)[1] - 1)


def in_range(values: Matrix, dtype: Any) -> Matrix:
    """Return positive numbers, limited to the range of a type, in that type: one may divide by them.

    Examples
    --------
    >>> in_range(np.array([1e-60, 2.0, 1e60]), np.float32)
    array([1.1754944e-38, 2.0000000e+00, 3.4028235e+38], dtype=float32)
    """
    number = np.finfo(dtype)
    return np.clip(values, float(number.tiny), float(number.max)).astype(dtype)


def largest_entry(dtype: Any) -> float:
    """Return the magnitude to which entries are limited, so that their squares in units of the scale do not overflow.

    It is 4e9 in single and 1e77 in double precision. The unit is a typical entry, so only gross outliers are limited.
    """
    return 2.0 ** (np.finfo(dtype).maxexp // 4)


def _divided_stored(Y: Entries, *, by: Any, xp: Namespace, **how: Any) -> tuple[Entries]:
    by = by if isinstance(by, float) else by[Y.columns]
    return (Y.with_values(divided(Y.values, by=by, **how, xp=xp)[0]),)


@block_function(recomputed=True, parts=1, on_host=True, stored=_divided_stored)
def divided(Y: Array, *, by: Any, wide: Any, limit: float, dtype: Any, xp: Namespace) -> tuple[Array]:
    """Return a block of data in its unit.

    Parameters
    ----------
    by : float or (m,)
        What entries are divided by, in precision `wide`.
    limit : float
        Their largest magnitude.
    dtype : numpy.dtype
        Type of the result.
    """
    with np.errstate(over="ignore"):
        V = xp.astype(Y, getattr(xp, np.dtype(wide).name), copy=False) / by
    if size(V) and xp.max(V) > limit:
        V = xp.where(V > limit, limit, V)
    return (xp.astype(V, getattr(xp, np.dtype(dtype).name), copy=False),)
