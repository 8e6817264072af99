"""Medians of rows that have gaps."""

from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robustnmf.utils.arrays import Array


def median(rows: Array, *, complete: bool = False) -> Array:
    """Return the median of each row (B, k), ignoring NaN, (B,); 0 where nothing is observed.

    It is found with fewer steps if rows are known to be complete, without NaN.

    Examples
    --------
    >>> median(np.array([[3.0, 1.0, 2.0], [1.0, np.nan, 2.0]]))
    array([2. , 1.5])
    """
    if isinstance(rows, np.ndarray):
        return _median_on_host(rows)
    xp = array_namespace(rows)
    if complete and rows.shape[1]:
        ordered = xp.sort(rows, axis=1)
        return (ordered[:, (rows.shape[1] - 1) // 2] + ordered[:, rows.shape[1] // 2]) / 2
    seen = ~xp.isnan(rows)
    ordered = xp.sort(xp.where(seen, rows, np.inf), axis=1)
    count = xp.sum(xp.astype(seen, xp.int64), axis=1)[:, None]
    below, above = (xp.where(count > 0, middle, 0) for middle in ((count - 1) // 2, count // 2))
    middles = [xp.take_along_axis(ordered, middle, axis=1)[:, 0] for middle in (below, above)]
    return xp.where(count[:, 0] > 0, (middles[0] + middles[1]) / 2, 0)


def _median_on_host(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the same for arrays of NumPy, which can do it without sorting."""
    rows = np.array(rows, order="C")
    missing = np.isnan(rows)
    if missing.any():
        rows[missing.all(axis=1)] = 0.0
        return np.asarray(np.nanmedian(rows, axis=1))
    middle = [(rows.shape[1] - 1) // 2, rows.shape[1] // 2]
    rows.partition(middle, axis=1)
    return np.asarray(rows[:, middle].mean(axis=1))
