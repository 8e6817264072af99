"""Data in blocks of samples, ready for a fit: checked, missing entries and weights in one matrix, in its unit.

The steps are the same for data in memory, on disk and on a cluster: functions of blocks, which an engine applies where
the blocks are. What they make of data in memory is one array, of which the blocks are views; of other data it is
computed whenever a block is needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.data.out_of_core import blocks_of
from robustnmf.data.uncertainties import combined_weights, is_observed, typical_uncertainties
from robustnmf.data.units import divided, in_range, largest_entry
from robustnmf.data.validation import (
    check_like,
    check_matrix,
    check_shape,
    survey,
    warn_of_empty,
    weights_of_stored,
)
from robustnmf.engines import Engine, NumPyEngine
from robustnmf.engines.protocol import block_function, traits_of
from robustnmf.formats.alignment import aligned_input, features_of
from robustnmf.formats.rows import Rows
from robustnmf.utils.arrays import Array, Blocks, Namespace, dtype_of

Matrix = NDArray[Any]


class Observations(NamedTuple):
    """Data in memory that is ready to be worked on, samples in rows."""

    X: Array
    """(n_samples, n_features), floating, C-contiguous, finite, non-negative; 0 where missing."""
    M: Array | None
    """Weight of every entry, at most 1 and 0 where missing; None if all are 1."""


@dataclass(frozen=True)
class Data:
    """Data that is ready to be worked on, in blocks of samples in rows."""

    X: Blocks
    """(n, m) in all, finite, non-negative; 0 where missing."""
    M: Blocks | None
    """Weight of every entry, at most 1 and 0 where missing; None if all are 1."""
    arrays: Observations | None = None
    """The same in one array each, if it is in memory."""
    noise: Matrix | None = None
    """Typical uncertainty of each feature, (m,), if uncertainties were given."""
    seen: Matrix | None = None
    """Observed entries of each feature, (m,); None if they were not counted."""

    @classmethod
    def of(cls, arrays: Observations, engine: Engine) -> "Data":
        """Return blocks of arrays in memory."""
        X = engine.split(arrays.X)
        return cls(X, None if arrays.M is None else engine.split(arrays.M, like=X), arrays)

    @property
    def whole(self) -> Observations:
        """The `arrays` of data in memory."""
        assert self.arrays is not None
        return self.arrays

    def counts_alike(self, engine: Engine) -> bool:
        """Return whether all observed entries have one weight, and one uncertainty."""
        return self.noise is None and (self.M is None or engine.sum(_n_below_one, self.M) == 0)

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return sum(len(block) for block in self.X), int(self.X[0].shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the factors of this data: single precision for data in that, else double precision."""
        return np.dtype(np.float32 if dtype_of(self.X[0]) == np.float32 else np.float64)

    def in_unit(self, unit: float, noise: Matrix | None, dtype: Any, engine: Engine) -> "Data":
        """Return the data divided by a unit, and by the `noise` (m,) if there is one, in the dtype of the fit.

        Entries are limited to `robustnmf.data.units.largest_entry`.
        """
        given, limit = dtype_of(self.X[0]), largest_entry(dtype)
        wide = np.result_type(given, dtype)
        whole = None if self.arrays is None else self.arrays.X
        is_in_unit = whole is not None and noise is None and unit == 1.0 and given == dtype
        if is_in_unit and engine.xp.max(engine.join(engine.map(_largest, self.X))) <= limit:
            return self  # without a copy: data may be as large as memory allows
        by = unit if noise is None else engine.place(in_range(noise * unit, wide))
        ((X, whole),) = made_of(divided, [self.X], whole, engine, by=by, wide=wide, limit=limit, dtype=np.dtype(dtype))
        if whole is None:
            is_other = self.M is not None and dtype_of(self.M[0]) != dtype
            return replace(self, X=X, M=engine.map(_as_type, self.M, dtype=np.dtype(dtype)) if is_other else self.M)
        M = self.whole.M if self.whole.M is None else engine.xp.astype(self.whole.M, whole.dtype, copy=False)
        return replace(self, X=X, M=None if M is None else engine.split(M, like=X), arrays=Observations(whole, M))

    def with_entries(self, X: Blocks, arrays: Observations | None) -> "Data":
        """Return the data with other entries, in blocks and, if they are in memory, as arrays."""
        return replace(self, X=X, arrays=arrays)


def check_observations(
    estimator: Any, X: Any, weights: Any, engine: Engine | None = None, **options: Any
) -> Observations:
    """Return what `data_in_memory` returns as arrays where the engine works; without an engine, as arrays of NumPy."""
    engine = NumPyEngine(n_threads=1) if engine is None else engine
    return data_in_memory(estimator, X, weights, engine=engine, **options).whole


def data_in_memory(
    estimator: Any,
    X: Any,
    weights: Any,
    uncertainties: Any = None,
    *,
    engine: Engine,
    noise: Matrix | None = None,
    reset: bool,
    tells_empty: bool = False,
) -> Data:
    """Return the data of an estimator's method, checked.

    Parameters
    ----------
    X, weights, uncertainties : LabelledMatrix, data frame or array-like (n_samples, n_features)
        As the user has passed them; weights and uncertainties may be None. They are aligned by name.
    noise : (n_features,) or None
        The typical uncertainties of a fitted model; None finds those of this data.
    reset : bool
        Whether the data is to be learnt from.
    tells_empty : bool
        Whether new data is warned of if it has samples without observed entries.
    """
    features = None if reset else features_of(estimator)
    known: dict[str, Any] = {"features": features, "model": type(estimator).__name__}
    X, weights, uncertainties = aligned_input(X, weights, uncertainties, **known)
    labelled = X
    if getattr(estimator, "zeros", "data") == "missing":
        weights = weights_of_stored(X, weights)
    X = check_matrix(estimator, X, engine, reset=reset)
    like_X = (check_like(*values, X, engine) for values in ((weights, "weights"), (uncertainties, "uncertainties")))
    blocks = engine.split(X)
    given = _Given(blocks, *(None if values is None else engine.split(values, like=blocks) for values in like_X))
    whole = None if isinstance(X, Rows) else X
    name = type(estimator).__name__
    return _observed(given, whole, noise, engine, name, labelled, training=reset, tells_empty=tells_empty)


def data_elsewhere(X: Any, weights: Any, uncertainties: Any, engine: Engine, name: str, labelled: Any = None) -> Data:
    """Return data that is not in memory, or lies on a cluster, checked.

    `name` is that of the estimator, and `labelled` may tell the names of samples and features.
    """
    check_shapes(X, weights, uncertainties)
    blocks = blocks_of(X, engine)
    others = (None if values is None else blocks_of(values, engine, blocks) for values in (weights, uncertainties))
    return _observed(_Given(blocks, *others), None, None, engine, name, labelled, training=True)


def check_shapes(X: Any, weights: Any, uncertainties: Any) -> None:
    """Refuse data that is empty, and weights and uncertainties that are not those of its entries."""
    shape = (int(X.shape[0]), int(X.shape[1]))
    for size, what in zip(shape, ("sample", "feature"), strict=True):
        if size == 0:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={shape}) while a minimum of 1 is required. Check the filter or "
                "the file that X comes from."
            )
    for name, values in (("weights", weights), ("uncertainties", uncertainties)):
        if values is not None:
            check_shape(values, name, X)


class _Given(NamedTuple):
    """What the user has passed, in blocks, (n, m) in all."""

    X: Blocks
    weights: Blocks | None
    uncertainties: Blocks | None


def _observed(
    given: _Given,
    whole: Array | None,
    noise: Matrix | None,
    engine: Engine,
    name: str,
    labelled: Any = None,
    *,
    training: bool,
    tells_empty: bool = False,
) -> Data:
    """Look at the entries of X, their weights and uncertainties, and return them as `Data`.

    `whole` is X as one array, if it is in memory; `noise` the typical uncertainties, if they are known; `labelled` X as
    it was given, which may have names.
    """
    X, weights, uncertainties = given
    found = survey(X, weights, uncertainties, engine, name, labelled=labelled, training=training)
    if training or tells_empty:
        warn_of_empty(found, name, labelled, training=training)
    if weights is None and uncertainties is None and not found.n_missing:
        return Data(X, None, None if whole is None else Observations(whole, None), seen=found.seen)
    shared: dict[str, Any] = {"noise": None, "largest": found.largest_weight}
    if uncertainties is not None:
        if noise is None:
            noise = typical_uncertainties(X, weights, uncertainties, engine, complete=not found.n_missing)
        shared["noise"] = engine.place(noise, engine.xp.float64)
        largest = engine.join(engine.map(_largest_weight, *given, noise=shared["noise"]))
        shared["largest"] = float(engine.xp.max(largest)) or 1.0
    function = _values_and_weights if found.n_missing else _weights  # of complete data no copy is made
    made = made_of(function, given, whole, engine, **shared, dtype=Data(X, None).dtype)
    (V, all_V), (M, all_M) = made if found.n_missing else [(X, whole), *made]
    arrays = None if whole is None else Observations(all_V, all_M)
    return Data(V, M, arrays, noise if uncertainties is not None else None, found.seen)


def made_of(
    function: Callable[..., Any],
    blocks: Sequence[Blocks | None],
    whole: Array | None,
    engine: Engine,
    *,
    dtype: np.dtype[Any],
    **shared: Any,
) -> list[tuple[Blocks, Array | None]]:
    """Return the matrices that a recomputed function makes, each in blocks and, of data in memory, as array.

    `whole` is the data as one array, if it is in memory.
    """
    if whole is None:
        return [(made, None) for made in engine.map(function, *blocks, dtype=dtype, **shared)]
    n_parts = traits_of(function).parts or 1
    arrays = [engine.xp.empty_like(whole, dtype=getattr(engine.xp, dtype.name)) for _ in range(n_parts)]
    targets = [engine.split(array, like=blocks[0]) for array in arrays]
    engine.fill(targets, function, *blocks, dtype=dtype, **shared)
    return list(zip(targets, arrays, strict=True))


# --- On a block -------------------------------------------------------------------------------------------------------


@block_function(recomputed=True)
def _as_type(M: Array, *, dtype: Any, xp: Namespace) -> Array:
    return xp.astype(M, getattr(xp, np.dtype(dtype).name), copy=False)


@block_function(rowwise=True, on_host=True)
def _n_below_one(M: Array, *, xp: Namespace) -> int:
    """Return how many observed entries of a block have less than the largest weight."""
    return int(xp.count_nonzero((M > 0) & (M < 1)))


@block_function(on_host=True)
def _largest(Y: Array, *, xp: Namespace) -> Array:
    return xp.max(Y)[None]


@block_function(on_host=True)
def _largest_weight(
    Y: Array, weights: Array | None, uncertainties: Array | None, *, noise: Array | None, xp: Namespace
) -> Array:
    """Return the largest weight of an observed entry, by weights and uncertainties; 0 if none is observed, (1,)."""
    observed = is_observed(Y, weights, xp)
    return xp.max(xp.where(observed, combined_weights(weights, uncertainties, observed, noise, xp), 0))[None]


@block_function(recomputed=True, parts=1, on_host=True)
def _weights(
    Y: Array,
    weights: Array | None,
    uncertainties: Array | None,
    *,
    noise: Array | None,
    largest: float,
    dtype: Any,
    xp: Namespace,
) -> tuple[Array]:
    """Return weights of entries, at most 1, and 0 where missing."""
    observed, kind = is_observed(Y, weights, xp), getattr(xp, np.dtype(dtype).name)
    given = combined_weights(weights, uncertainties, observed, noise, xp)
    if given is None:
        return (xp.astype(observed, kind),)
    tiny = float(xp.finfo(kind).tiny)  # a small weight is not that of a missing entry
    relative = xp.astype(given / largest, kind)
    return (xp.where(observed, xp.where(relative < tiny, tiny, relative), 0),)


@block_function(recomputed=True, parts=2, on_host=True)
def _values_and_weights(
    Y: Array, weights: Array | None, uncertainties: Array | None, *, dtype: Any, xp: Namespace, **shared: Any
) -> tuple[Array, Array]:
    """Return entries, 0 where missing, and their weights."""
    values = xp.where(is_observed(Y, weights, xp), Y, xp.zeros_like(Y))
    (M,) = _weights(Y, weights, uncertainties, dtype=dtype, xp=xp, **shared)
    return xp.astype(values, getattr(xp, np.dtype(dtype).name), copy=False), M
