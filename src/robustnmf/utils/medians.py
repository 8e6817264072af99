"""Medians of rows that have gaps."""

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from robustnmf.utils.arrays import Array
from robustnmf.utils.observed import Observed


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
    if isinstance(rows, Observed):
        return rows.each_row(_median_on_host)
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


def densest(rows: Array, share: float) -> Array:
    """Return the middle entry of the shortest interval that holds a share of each row (B, k), ignoring NaN, (B,).

    More than half of a row may be wrong, as long as the wrong entries are spread wider than the others. 0 where nothing
    is observed.

    Examples
    --------
    >>> densest(np.array([[1.0, 30.0, 1.1, 50.0, 0.9, 80.0, 20.0]]), 0.4)
    array([1.])
    """
    if isinstance(rows, Observed):
        return rows.each_row(lambda dense: densest(dense, share))
    xp = array_namespace(rows)
    seen = ~xp.isnan(rows)
    ordered = xp.sort(xp.where(seen, rows, np.inf), axis=1)
    count = xp.sum(xp.astype(seen, xp.int64), axis=1)[:, None]
    length = xp.astype(xp.ceil(share * xp.astype(count, xp.float64)), xp.int64)
    length = xp.where(length > 1, length, 1)
    last = xp.arange(rows.shape[1], device=device(rows))[None, :] + length - 1
    ends = xp.take_along_axis(ordered, xp.where(last < rows.shape[1], last, rows.shape[1] - 1), axis=1)
    inside = last < count
    widths = xp.where(inside, xp.where(inside, ends, 0) - xp.where(inside, ordered, 0), np.inf)
    middle = xp.argmin(widths, axis=1)[:, None] + (length - 1) // 2
    return xp.where(count[:, 0] > 0, xp.take_along_axis(ordered, middle, axis=1)[:, 0], 0)


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
