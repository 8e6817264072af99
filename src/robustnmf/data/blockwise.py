"""Data that is not in memory, on its way into a fit: checked and brought to its unit, block by block.

Everything here gives what `robustnmf.data.validation` gives for the same data in memory, to rounding: sums, counts and
a sample of bounded size travel, never the data.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.data.units import in_range, power_of_two_below, precise
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.errors import SMALLEST_UNCERTAINTY, uncertainty_error
from robustnmf.utils.arrays import Array, Blocks, Namespace, evenly

Matrix = NDArray[Any]

# Entries from which the unit of the data is taken.
UNIT_ENTRIES = 2**18


# --- What the data is like --------------------------------------------------------------------------------------------


class Survey(NamedTuple):
    """What one look at all entries tells."""

    seen: Matrix
    """Observed entries of each feature, (m,)."""
    n_empty: int
    """Samples of which nothing is observed."""
    has_gaps: bool
    """Whether anything is missing."""
    largest_weight: float


_WRONG = (
    ("Infinite values", "Replace infinity by NaN if it means missing."),
    ("Negative values", "Shift or clip the data, or set them to NaN if they are missing."),
)


def survey(raw: Blocks, weights: Blocks | None, engine: Engine, name: str) -> Survey:
    """Look at all entries once, and refuse data that cannot be fitted; `name` is that of the estimator."""
    found, (seen, n_empty, n_gaps) = engine.map_and_sum(_look, raw, weights)
    found = engine.join(found)
    _check(found, [len(block) for block in raw], raw[0].shape[1], name)
    largest = float(found[:, -1].max())
    if weights is not None and largest == 0:
        raise ValueError("weights must not all be zero: no entry of X would count.")
    if not seen.any():
        n_entries = sum(len(block) for block in raw) * raw[0].shape[1]
        raise ValueError(f"{name} needs at least one observed entry; all {n_entries} entries of X are missing (NaN).")
    return Survey(seen, int(n_empty), bool(n_gaps), largest)


def _check(found: Matrix, lengths: list[int], n_features: int, name: str) -> None:
    """Raise an error for what the survey found wrong."""
    firsts, size = np.cumsum([0, *lengths[:-1]]), sum(lengths) * n_features
    for i, (what, advice) in enumerate(_WRONG):
        count, place, value = found[:, 3 * i], found[:, 3 * i + 1], found[:, 3 * i + 2]
        if count.any():
            block = int(np.flatnonzero(count)[0])
            row, column = divmod(int(place[block]), n_features)
            raise ValueError(
                f"{what} in data passed to {name}: X must be finite and non-negative (NaN means missing, inf is not "
                f"allowed); {int(count.sum())} of {size} entries are not, the first is {value[block]} at sample "
                f"{row + firsts[block]}, feature {column}. {advice}"
            )
    if found[:, 6].min() < 0 or not np.isfinite(found[:, 6:]).all():
        raise ValueError("weights must be non-negative and finite. Use 0 for entries that should not count.")


@block_function(on_host=True)
def _look(Y: Array, weights: Array | None, *, xp: Namespace) -> tuple[Matrix, tuple[Matrix, int, int]]:
    """Return number, place and value of what is wrong in a block and the range of its weights; and what to add up."""
    missing = _missing(Y, weights)
    row: list[float] = []
    for wrong in (np.isinf(Y), Y < 0):
        wrong &= ~missing
        first = int(wrong.argmax()) if wrong.any() else 0
        row += [float(np.count_nonzero(wrong)), first, float(Y.flat[first]) if Y.size else 0.0]
    if weights is None:
        row += [0.0, 1.0]
    else:
        row += [float(weights.min(initial=0.0)), float(weights.max(initial=0.0))]
    seen = np.count_nonzero(~missing, axis=0)
    return np.array([row]), (seen, int(missing.all(axis=1).sum()), int(np.count_nonzero(missing)))


def _missing(Y: Array, weights: Array | None) -> Array:
    missing = np.isnan(Y) if Y.dtype.kind == "f" else np.zeros(Y.shape, dtype=bool)
    return missing if weights is None else missing | (weights == 0)


def unit_of(raw: Blocks, weights: Blocks | None, engine: Engine) -> float:
    """Return the largest power of two not above the median of positive entries, as `algorithm.fit.data_unit`."""
    n_features = raw[0].shape[1]
    sizes = [len(block) * n_features for block in raw]
    every = max(1, sum(sizes) // UNIT_ENTRIES)
    firsts = [np.array([-before % every]) for before in np.cumsum([0, *sizes[:-1]])]
    some = engine.join(engine.map(_every_so_many, raw, weights, firsts, every=every))
    positive = some[some > 0]
    if positive.size:
        middle = (positive.size - 1) // 2
        positive.partition(middle)
        median = float(positive[middle])
    else:
        doubles = engine.map(_times_as, raw, factor=1.0, dtype=np.dtype(np.float64))  # whole numbers are not counted
        median = float(engine.quantile(doubles, engine.map(_is_positive, raw, weights), 0.5))
    return power_of_two_below(median) if median > 0 else 1.0


@block_function(on_host=True)
def _every_so_many(Y: Array, weights: Array | None, first: Array, *, every: int, xp: Namespace) -> Array:
    """Return some entries, 0 where missing."""
    some = slice(int(first[0]), None, every)
    values = Y.reshape(-1)[some]
    missing = _missing(values, None if weights is None else weights.reshape(-1)[some])
    return np.where(missing, 0, values)


@block_function(recomputed=True, on_host=True)
def _is_positive(Y: Array, weights: Array | None, *, xp: Namespace) -> Array:
    """Return 1 where an observed entry is positive, else 0."""
    return (~_missing(Y, weights) & (Y > 0)).astype(Y.dtype if Y.dtype.kind == "f" else np.float64)


def noise_of(raw: Blocks, weights: Blocks | None, given: Blocks, engine: Engine) -> tuple[Matrix, Blocks]:
    """Return the typical uncertainty of each feature, (m,), and weights that say how each entry differs.

    As `robustnmf.data.validation.check_uncertainties`, for the uncertainties `given` of each entry.
    """
    found = engine.join(engine.map(_look_at_uncertainties, raw, weights, given))
    if found[:, 0].any():
        block = int(np.flatnonzero(found[:, 0])[0])
        row, column = divmod(int(found[block, 1]), raw[0].shape[1])
        raise uncertainty_error(found[block, 2], row + sum(len(b) for b in raw[:block]), column)
    doubles = np.dtype(np.float64)
    observed = engine.map(_as_observed, raw, weights, dtype=doubles)
    # Of an even number of entries the median is between the two in the middle: the lower of them in both directions.
    ways = (engine.map(_times_as, given, factor=factor, dtype=doubles) for factor in (1.0, -1.0))
    lower, upper = (engine.quantile(way, observed, 0.5, axis="feature") for way in ways)
    typical = 0.5 * (lower - upper)
    typical[typical == 0] = 1.0  # nothing of the feature is observed
    return typical, engine.map(_precise, raw, weights, given, typical=typical, dtype=doubles)


@block_function(on_host=True)
def _look_at_uncertainties(Y: Array, weights: Array | None, given: Array, *, xp: Namespace) -> Matrix:
    """Return the number of uncertainties that cannot be used, and place and value of the first."""
    usable = (given > SMALLEST_UNCERTAINTY) & (given < 1 / SMALLEST_UNCERTAINTY)
    wrong = ~_missing(Y, weights) & ~usable
    first = int(wrong.argmax()) if wrong.any() else 0
    return np.array([[float(np.count_nonzero(wrong)), first, float(given.flat[first]) if given.size else 0.0]])


@block_function(recomputed=True, on_host=True)
def _as_observed(Y: Array, weights: Array | None, *, dtype: Any, xp: Namespace) -> Array:
    """Return 1 where an entry is observed, else 0."""
    return (~_missing(Y, weights)).astype(dtype)


@block_function(recomputed=True, on_host=True)
def _times_as(Y: Array, *, factor: float, dtype: Any, xp: Namespace) -> Array:
    return factor * Y.astype(dtype, copy=False)


@block_function(recomputed=True, on_host=True)
def _precise(Y: Array, weights: Array | None, given: Array, *, typical: Array, dtype: Any, xp: Namespace) -> Array:
    """Return weights of entries by their uncertainties and the weights that they have, 0 where missing."""
    observed = ~_missing(Y, weights)
    return precise(typical, np.where(observed, given, 1.0).astype(dtype), observed, weights)


@block_function(recomputed=True, on_host=True)
def divided(Y: Array, *, by: Array, dtype: Any, xp: Namespace) -> Array:
    """Return entries divided by a number for each feature, in a floating type."""
    with np.errstate(over="ignore"):
        return Y.astype(dtype, copy=False) / in_range(by, dtype)


def even_rows(blocks: Blocks, n_rows: int, engine: Engine) -> Matrix:
    """Return about so many rows, evenly spread over all blocks."""
    lengths = [len(block) for block in blocks]
    every = max(1, sum(lengths) // n_rows)
    return np.asarray(engine.join(engine.map(_rows, blocks, evenly(lengths, every))))


@block_function(on_host=True)
def _rows(Y: Array, chosen: Array, *, xp: Namespace) -> Array:
    return Y[chosen]


def prepared(
    raw: Blocks,
    weights: Blocks | None,
    about: Survey,
    unit: float,
    dtype: Any,
    engine: Engine,
    noise: Matrix | None = None,
) -> tuple[Blocks, Blocks | None]:
    """Return data in its unit and the weights of its entries, None if all are 1; see `Observations.in_unit`."""
    dtype = np.dtype(dtype)
    parts = {"unit": unit, "noise": noise, "dtype": dtype, "limit": 2.0 ** (np.finfo(dtype).maxexp // 4)}
    if weights is None and not about.has_gaps:
        return engine.map(_in_unit, raw, **parts), None
    V, M = engine.map(_in_unit_with_weights, raw, weights, largest=about.largest_weight, **parts)
    return V, M


@block_function(recomputed=True, on_host=True)
def _in_unit(Y: Array, *, unit: float, noise: Array | None, dtype: Any, limit: float, xp: Namespace) -> Array:
    """Return entries in their unit, and that of the noise, limited to a magnitude whose square does not overflow."""
    V = Y.astype(np.result_type(Y, dtype), copy=False)
    with np.errstate(over="ignore"):
        V = V / (V.dtype.type(unit) if noise is None else in_range(noise * unit, V.dtype))
    return np.minimum(V, limit).astype(dtype, copy=False)


@block_function(recomputed=True, parts=2, on_host=True)
def _in_unit_with_weights(
    Y: Array, weights: Array | None, *, dtype: Any, largest: float, xp: Namespace, **unit: Any
) -> tuple[Array, Array]:
    """Return entries in their unit, 0 where missing, and their weights, at most 1."""
    missing = _missing(Y, weights)
    M = (~missing).astype(dtype)
    if weights is not None:
        scaled = (np.asarray(weights, dtype=np.float64) / largest).astype(dtype)
        M *= np.where(weights > 0, np.maximum(scaled, np.finfo(dtype).tiny), scaled)  # small is not missing
    return _in_unit(np.where(missing, 0, Y), dtype=dtype, xp=xp, **unit), M
