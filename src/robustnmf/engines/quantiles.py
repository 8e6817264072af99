"""Exact weighted quantiles by counting, for blocks that cannot be gathered.

Numbers of a floating type have the order of their bits, once those are arranged so that negative ones come first. So
an interval of numbers is an interval of integers, which is cut into bins of equal size; a pass over the blocks counts
the weight in each bin, and the next looks only into the bin that the quantile lies in. Two to four passes find it, to
the last bit; or as soon as few enough entries are left, they are looked at one by one. What travels is a histogram.
"""

from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.utils.arrays import Array, Blocks, Namespace
from robustnmf.utils.entries import Entries

# Bits that a pass decides about: 2**16 bins.
BITS = 16
# Bins of a pass that looks at every feature by itself, in all: 32 MiB.
FEATURE_BINS = 2**22
# So few entries are gathered and sorted.
FEW = 2**14

# A share of nothing is reached by the first entry.
SMALLEST = float(np.nextafter(0, 1))

Counts = NDArray[np.float64]


def quantile(engine: Engine, A: Blocks, M: Blocks | None, q: float, axis: Literal["feature"] | None) -> Any:
    """Return what `Engine.quantile` promises."""
    return _of_features(engine, A, M, q) if axis == "feature" else _of_all(engine, A, M, q)


def _of_all(engine: Engine, A: Blocks, M: Blocks | None, q: float) -> Any:
    dtype = np.dtype(A[0].dtype)
    width = 8 * dtype.itemsize
    low, shift, below = 0, width - BITS, 0.0
    ranges, (counts, weights) = engine.map_and_sum(_first_counts, A, M, shift=shift)
    if counts.sum() == 0:
        return dtype.type(0)
    wanted, weights = _wanted(q, counts, weights, None if M is None else engine.join(ranges))
    while True:
        bin_ = int(np.searchsorted(below + np.cumsum(weights), wanted))
        bin_ = min(bin_, int(np.flatnonzero(counts)[-1]))  # a sum of all weights that rounding leaves below the share
        below += float(weights[:bin_].sum())
        low += bin_ << shift
        if shift == 0:
            return _number(low, dtype)
        if counts[bin_] <= FEW:
            return _one_by_one(engine, A, M, low, low + (1 << shift), below, wanted, weights is counts)
        bits = min(BITS, shift)
        shift -= bits
        counts, weighed = engine.sum(_counts, A, M, low=low, shift=shift, bits=bits)
        weights = counts if weights is counts else weighed


def _wanted(q: float, counts: Counts, weights: Counts, ranges: Array | None) -> tuple[float, Counts]:
    """Return the cumulated weight that is looked for, and the weights in the bins; the counts if all weigh the same."""
    if ranges is None or ranges[:, 0].min() == ranges[:, 1].max():
        return max(ceil(q * int(counts.sum())), 1), counts
    # Weights such as 1/3 are rounded: a sum that reaches the share to within that rounding has reached it.
    return max(float((q - 4 * np.finfo(ranges.dtype).eps) * weights.sum()), SMALLEST), weights


def _one_by_one(
    engine: Engine, A: Blocks, M: Blocks | None, low: int, high: int, below: float, wanted: float, counted: bool
) -> Any:
    """Return the quantile, which is one of few entries in an interval."""
    values, weights = (engine.join(blocks) for blocks in engine.map(_inside, A, M, low=low, high=high))
    order = np.argsort(values, kind="stable")
    steps = np.ones(values.size) if counted else weights[order].astype(np.float64)
    found = int(np.searchsorted(below + np.cumsum(steps), wanted))
    return values[order[min(found, values.size - 1)]]


def of_stored_features(engine: Engine, A: Blocks, q: float) -> Any:
    """Return the quantile of each feature of non-negative data whose zeros are not stored, (m,).

    Zeros come first, so most features of sparse data have a quantile of zero; those of the others are gathered.
    """
    dtype, n_rows = np.dtype(A[0].dtype), sum(len(block) for block in A)
    n_positive = engine.sum(_count_positive, A)
    ranks = max(ceil(q * n_rows), 1) - (n_rows - n_positive)
    wanted = ranks > 0
    found = np.zeros(len(ranks), dtype=dtype)
    if not wanted.any():
        return found
    columns, values = (engine.join(part) for part in engine.map(_positive_of_features, A, wanted=wanted))
    order = np.lexsort((values, columns))
    starts = np.searchsorted(columns[order], np.flatnonzero(wanted))
    found[wanted] = values[order][starts + ranks[wanted] - 1]
    return found


def _of_features(engine: Engine, A: Blocks, M: Blocks | None, q: float) -> Any:
    dtype = np.dtype(A[0].dtype)
    width = 8 * dtype.itemsize
    total = engine.sum(_feature_weights, A, M)
    n_features = len(total[0])
    bits = max(1, min(8, (FEATURE_BINS // n_features).bit_length() - 1))
    equal = M is None or _all_equal(engine, M)
    counts = total[0] if equal else total[1]
    eps = 0.0 if equal else 4 * np.finfo(M[0].dtype).eps  # type: ignore[index]
    wanted = np.maximum(np.ceil(q * counts), 1) if equal else np.maximum((q - eps) * counts, SMALLEST)
    low, below = np.zeros(n_features, dtype=np.uint64), np.zeros(n_features)
    shift = width
    while shift > 0:
        step = min(bits, shift)
        shift -= step
        found = engine.sum(_counts_by_feature, A, M, low=low, shift=shift, bits=step, counted=equal)
        cumulated = below[:, None] + np.cumsum(found, axis=1)
        bin_ = np.minimum((cumulated < wanted[:, None]).sum(axis=1), _last(found))
        below += np.where(np.arange(found.shape[1]) < bin_[:, None], found, 0).sum(axis=1)
        low += bin_.astype(np.uint64) << np.uint64(shift)
    return np.where(total[0] > 0, _numbers(low, dtype), dtype.type(0))


def _last(found: Counts) -> NDArray[np.intp]:
    """Return the last bin of each feature that has weight, 0 if none has."""
    filled = found > 0
    return np.where(filled.any(axis=1), found.shape[1] - 1 - filled[:, ::-1].argmax(axis=1), 0)


def _all_equal(engine: Engine, M: Blocks) -> bool:
    """Return whether all positive weights are the same."""
    ranges = engine.join(engine.map(_range, M))
    return bool(ranges[:, 0].min() == ranges[:, 1].max())


# --- On a block -------------------------------------------------------------------------------------------------------


def _keys(A: Array) -> NDArray[np.uint64]:
    """Return integers that have the order of the numbers."""
    kind = np.uint32 if A.dtype.itemsize == 4 else np.uint64
    bits = (A + A.dtype.type(0)).view(kind)  # -0 becomes 0
    sign = kind(1) << kind(8 * A.dtype.itemsize - 1)
    return np.asarray(np.where(bits & sign, ~bits, bits | sign), dtype=np.uint64)


def _numbers(keys: NDArray[np.uint64], dtype: Any) -> Array:
    """Return the numbers of integers: undo `_keys`."""
    kind = np.uint32 if dtype.itemsize == 4 else np.uint64
    keys = keys.astype(kind)
    sign = kind(1) << kind(8 * dtype.itemsize - 1)
    return np.where(keys & sign, keys ^ sign, ~keys).astype(kind).view(dtype)


def _number(key: int, dtype: Any) -> Any:
    return _numbers(np.array([key], dtype=np.uint64), dtype)[0]


def _observed(A: Array, M: Array | None) -> tuple[Array, Array | None]:
    """Return entries of positive weight and their weights, as vectors."""
    A = np.ascontiguousarray(A)
    if M is None:
        return A.ravel(), None
    M = np.broadcast_to(M, A.shape)
    return A[M > 0], M[M > 0]


@block_function(on_host=True)
def _range(M: Array, *, xp: Namespace) -> Array:
    """Return the smallest and the largest positive weight, (1, 2)."""
    positive = M[M > 0]
    if positive.size == 0:
        return np.array([[np.inf, -np.inf]], dtype=M.dtype)
    return np.array([[positive.min(), positive.max()]], dtype=M.dtype)


def _first_counts_stored(A: Entries, M: None, *, shift: int, xp: Namespace) -> tuple[Array, tuple[Counts, Counts]]:
    return np.zeros((1, 2)), _counts_stored(A, M, low=0, shift=shift, bits=BITS, xp=xp)


def _counts_stored(A: Entries, M: None, *, low: int, shift: int, bits: int, xp: Namespace) -> tuple[Counts, Counts]:
    counts, _ = _counts(A.values, None, low=low, shift=shift, bits=bits, xp=xp)
    zeros, _ = _counts(np.zeros(1, dtype=A.dtype), None, low=low, shift=shift, bits=bits, xp=xp)
    counts = counts + (A.n_zeros * zeros)
    return counts, counts


def _inside_stored(A: Entries, M: None, *, low: int, high: int, xp: Namespace) -> tuple[Array, Array]:
    values, _ = _inside(A.values, None, low=low, high=high, xp=xp)
    zeros, _ = _inside(np.zeros(1, dtype=A.dtype), None, low=low, high=high, xp=xp)
    if zeros.size:
        values = np.concatenate([values, np.zeros(A.n_zeros, dtype=A.dtype)])
    return values, np.ones_like(values)


def _count_positive_stored(A: Entries, *, xp: Namespace) -> Array:
    return np.bincount(A.columns[A.values > 0], minlength=A.n_columns)


@block_function(on_host=True, stored=_count_positive_stored)
def _count_positive(A: Array, *, xp: Namespace) -> Array:
    """Return the number of positive entries of each feature, (m,)."""
    return np.count_nonzero(A > 0, axis=0)


def _positive_of_stored_features(A: Entries, *, wanted: Array, xp: Namespace) -> tuple[Array, Array]:
    chosen = wanted[A.columns] & (A.values > 0)
    return A.columns[chosen], A.values[chosen]


@block_function(on_host=True, stored=_positive_of_stored_features)
def _positive_of_features(A: Array, *, wanted: Array, xp: Namespace) -> tuple[Array, Array]:
    """Return features and values of the positive entries of some features, (k,) each."""
    _, columns = np.nonzero((A > 0) & wanted)
    return columns, A[(A > 0) & wanted]


@block_function(on_host=True, stored=_first_counts_stored)
def _first_counts(A: Array, M: Array | None, *, shift: int, xp: Namespace) -> tuple[Array, tuple[Counts, Counts]]:
    """Return the range of the weights, and the histogram of all entries."""
    counts = _counts(A, M, low=0, shift=shift, bits=BITS, xp=xp)
    return np.zeros((1, 2)) if M is None else _range(M, xp=xp), counts


@block_function(on_host=True, stored=_counts_stored)
def _counts(A: Array, M: Array | None, *, low: int, shift: int, bits: int, xp: Namespace) -> tuple[Counts, Counts]:
    """Return the numbers of entries in bins from `low` on, each of 2**shift integers, and their weights."""
    values, weights = _observed(A, M)
    keys = _keys(values)
    first, n_bins = np.uint64(low), 1 << bits
    bins = (keys - first) >> np.uint64(shift)  # what lies below wraps around, and is far above
    inside = bins < n_bins
    bins = bins[inside].astype(np.int64)
    counts = np.bincount(bins, minlength=n_bins).astype(np.float64)
    if weights is None:
        return counts, counts
    return counts, np.bincount(bins, weights=weights[inside], minlength=n_bins).astype(np.float64)


@block_function(on_host=True, stored=_inside_stored)
def _inside(A: Array, M: Array | None, *, low: int, high: int, xp: Namespace) -> tuple[Array, Array]:
    """Return the entries in an interval of integers, and their weights."""
    values, weights = _observed(A, M)
    inside = _keys(values) - np.uint64(low) < np.uint64(high - low)
    values = values[inside]
    return values, np.ones_like(values) if weights is None else weights[inside]


@block_function(on_host=True)
def _feature_weights(A: Array, M: Array | None, *, xp: Namespace) -> tuple[Counts, Counts]:
    """Return the number of observed entries of each feature, and their weight."""
    if M is None:
        counts = np.full(A.shape[1], float(len(A)))
        return counts, counts
    return np.count_nonzero(M > 0, axis=0).astype(np.float64), M.sum(axis=0, dtype=np.float64)


@block_function(on_host=True)
def _counts_by_feature(
    A: Array, M: Array | None, *, low: NDArray[np.uint64], shift: int, bits: int, counted: bool, xp: Namespace
) -> Counts:
    """Return the weight of entries in the bins of each feature, (m, 2**bits)."""
    n_bins = 1 << bits
    bins = (_keys(np.ascontiguousarray(A)) - low) >> np.uint64(shift)
    inside = bins < n_bins
    if M is not None:
        inside &= M > 0
    rows, columns = np.nonzero(inside)
    flat = columns * n_bins + bins[rows, columns].astype(np.int64)
    weights = None if counted or M is None else M[rows, columns]
    size = A.shape[1] * n_bins
    return np.bincount(flat, weights=weights, minlength=size).astype(np.float64).reshape(-1, n_bins)
