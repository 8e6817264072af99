"""Results of data that is not in memory, computed when they are asked for.

A result has a value for each entry, or a code for each sample. Each block of it depends on the same block of the data
and on the fitted model alone, so it is computed on demand: for data on a cluster it is a Dask array, for data that is
streamed a `LazyMatrix`.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.data.blocks import check_shapes
from robustnmf.data.out_of_core import as_dask, blocks_of
from robustnmf.data.sparse import is_sparse
from robustnmf.data.validation import weights_of_stored
from robustnmf.engines import Engine, StreamingEngine
from robustnmf.formats.rows import is_dask
from robustnmf.utils.extras import optional
from robustnmf.utils.process_state import ignored_warnings

Matrix = NDArray[Any]


class _Kind(NamedTuple):
    """A result: how a fitted model computes it, its columns and dtype."""

    compute: Callable[..., Any]
    columns: str | None
    """"entries", "components", or None for one number per sample."""
    dtype: np.dtype[Any] | None = None
    """By default that of the data."""
    stays_sparse: bool = False
    """Whether it is sparse for chunks of Dask that are."""

    def row_shape(self, model: Any, X: Any) -> tuple[int, ...]:
        """Return the shape of what belongs to one sample."""
        sizes = {"entries": (int(X.shape[1]),), "components": (int(model.n_components_),), None: ()}
        return sizes[self.columns]

    def dtype_for(self, X: Any) -> np.dtype[Any]:
        """Return the type of the numbers."""
        return self.dtype or np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


RESULTS: Mapping[str, _Kind] = MappingProxyType(
    {
        "codes": _Kind(lambda model, X, **options: model.transform(X, **options), "components"),
        "clean": _Kind(lambda model, X, **options: model.clean(X, **options), "entries", stays_sparse=True),
        "weights": _Kind(
            lambda model, X, **options: model._describe_entries(_dense(X), **options, with_weights=True).weights,
            "entries",
        ),
        "outliers": _Kind(
            lambda model, X, **options: model._describe_entries(X, **options).outliers,
            "entries",
            np.dtype(bool),
            stays_sparse=True,
        ),
        "scores": _Kind(lambda model, X, **options: model.score_samples(X, **options), None, np.dtype(np.float64)),
    }
)


def result(model: Any, what: str, X: Any, weights: Any, uncertainties: Any, engine: Engine) -> Any:
    """Return a result for data that is not in memory, one of `RESULTS`, to be computed when it is asked for."""
    fitted = _without_training(model)
    check_shapes(X, weights, uncertainties)
    if X.shape[1] != model.n_features_in_:
        raise ValueError(
            f"X has {X.shape[1]} features, but {type(model).__name__} is expecting {model.n_features_in_} features as "
            "input."
        )
    of_entries = {"weights": weights, "uncertainties": uncertainties}
    of_entries = {name: values for name, values in of_entries.items() if values is not None}
    if isinstance(engine, StreamingEngine):
        lazy = LazyMatrix(fitted, what, X, of_entries, engine)
        return lazy if what in ("clean", "weights", "outliers") else np.asarray(lazy)
    return _dask_result(fitted, what, X, of_entries, keeps_zeros=model.zeros == "missing")


def _without_training(model: Any) -> Any:
    """Return a copy of a fitted model that is small enough to be sent, and works on arrays in memory."""
    light = copy(model)
    # Blocks have no names, and features are in order.
    for name in ("weights_", "outliers_", "sparse_errors_", "feature_names_in_", "input_"):
        vars(light).pop(name, None)
    vars(light).update(zeros="data", callback=None, verbose=0, checkpoint=None, engine="auto", device=None)
    return light


def _dask_result(model: Any, what: str, X: Any, of_entries: dict[str, Any], *, keeps_zeros: bool) -> Any:
    X = as_dask(X).rechunk({1: -1})
    others = [as_dask(values).rechunk(X.chunks) for values in of_entries.values()]
    kind, dtype = RESULTS[what], RESULTS[what].dtype_for(X)
    row_shape = kind.row_shape(model, X)
    shape: dict[str, Any] = {"chunks": (X.chunks[0], *((size,) for size in row_shape))}
    empty: Any = np.empty((0, *(0 for _ in row_shape)), dtype=dtype)
    if kind.stays_sparse and is_sparse(X._meta):
        empty = sparse.csr_array((0, 0), dtype=dtype)
    return X.map_blocks(
        _of_chunk,
        *others,
        names=tuple(of_entries),
        model=optional("dask", "dask").delayed(model),
        what=what,
        keeps_zeros=keeps_zeros,
        name=None,
        token=f"robustnmf-{what}",
        dtype=dtype,
        meta=empty,
        **shape if row_shape else {**shape, "drop_axis": 1},
    )


def _of_chunk(
    X: Any, *of_entries: Any, names: tuple[str, ...], model: Any, what: str, keeps_zeros: bool = False
) -> Any:
    """Return the result for one chunk, and what its entries have: weights, uncertainties.

    Results that stay sparse are so for a sparse chunk; entries that are not stored stay zero if `keeps_zeros`.
    """
    kind = RESULTS[what]
    shape = (X.shape[0], *kind.row_shape(model, X))
    with ignored_warnings(
        (UserWarning, ".*have no observed entry")
    ):  # a chunk does not know the numbers of its samples
        found = (
            kind.compute(model, X, **dict(zip(names, of_entries, strict=True)))
            if X.shape[0]
            else np.empty(shape, dtype=kind.dtype_for(X))
        )
    if not (kind.stays_sparse and is_sparse(X)):
        return np.asarray(found)
    found = sparse.csr_array(found, dtype=kind.dtype_for(X))
    return found.multiply(weights_of_stored(X, None)).tocsr() if keeps_zeros and what == "clean" else found


def _dense(X: Any) -> Any:
    """Return a sparse chunk as an array: what has a value for each entry is as large."""
    return X.toarray() if is_sparse(X) else X


class LazyMatrix:
    """A matrix of which rows are computed when they are asked for, from data that is read then.

    Slices of rows, ``lazy[10:20]``, are arrays; ``numpy.asarray(lazy)`` is all of it; `to_zarr` writes it block by
    block. It can itself be fitted or transformed.

    Parameters
    ----------
    model : RobustNMF
        A fitted model.
    what : str
        One of `RESULTS`.
    X : array-like (n_samples, n_features)
        The data.
    of_entries : dict of array-like (n_samples, n_features)
        Weights and uncertainties of the entries, if they have any.
    """

    ndim = 2

    def __init__(self, model: Any, what: str, X: Any, of_entries: dict[str, Any], engine: StreamingEngine) -> None:
        self._model, self._what, self._engine = model, what, engine
        self._blocks = blocks_of(X, engine)
        self._of_entries = {name: blocks_of(values, engine, self._blocks) for name, values in of_entries.items()}
        self._ends = np.cumsum([len(block) for block in self._blocks])
        self.shape: Any = (int(self._ends[-1]), *RESULTS[what].row_shape(model, X))
        self.dtype = RESULTS[what].dtype_for(X)

    def __repr__(self) -> str:
        return f"LazyMatrix({self._what}, shape={self.shape}, dtype={self.dtype.name})"

    def __getattr__(self, name: str) -> NoReturn:
        advice = "; numpy.asarray(...) makes an array of it" if hasattr(np.ndarray, name) else ""
        raise AttributeError(f"a LazyMatrix, which is computed row by row, has no attribute {name!r}{advice}.")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        rows, *others = key if isinstance(key, tuple) else (key,)
        if not isinstance(rows, slice):
            row = range(len(self))[rows]
            return self.read(row, row + 1)[(0, *others)]
        start, stop, step = rows.indices(len(self))
        if step < 1:
            raise IndexError("Rows of a LazyMatrix are read forwards: use a positive step.")
        return self.read(start, max(start, stop))[(slice(None, None, step), *others)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Matrix:
        if copy is False:
            raise ValueError("A LazyMatrix has no array yet: it is computed, so copy=False cannot be kept.")
        return np.asarray(self.read(0, len(self)), dtype=dtype)

    def blocks(self) -> Iterator[tuple[int, Matrix]]:
        """Yield the first row of each block, and the block."""
        for i, (start, _) in enumerate(self.cuts(0)):
            yield start, self._block(i)

    def _block(self, i: int) -> Matrix:
        blocks = (self._engine.join([blocks[i]]) for blocks in (self._blocks, *self._of_entries.values()))
        rows: Matrix = _of_chunk(*blocks, names=tuple(self._of_entries), model=self._model, what=self._what)
        return rows

    def read(self, start: int, stop: int) -> Matrix:
        """Return some rows, as an array."""
        rows = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        for i in range(int(np.searchsorted(self._ends, start, side="right")), len(self._blocks)):
            first = int(self._ends[i]) - len(self._blocks[i])
            if first >= stop:
                break
            a, b = max(start, first), min(stop, int(self._ends[i]))
            rows[a - start : b - start] = self._block(i)[a - first : b - first]
        return rows

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of each block of the data."""
        return [(int(end) - len(block), int(end)) for end, block in zip(self._ends, self._blocks, strict=True)]

    def to_zarr(self, store: Any, **options: Any) -> Any:
        """Write all of it to a Zarr array, block by block, and return that."""
        zarr = optional("zarr", "io")
        chunks = (max(len(block) for block in self._blocks), *self.shape[1:])
        array = zarr.create_array(store, shape=self.shape, chunks=chunks, dtype=self.dtype, **options)
        for start, block in self.blocks():
            array[start : start + len(block)] = block
        return array


def is_lazy_result(value: Any) -> bool:
    """Return whether an attribute of a model is a result that is computed when asked for."""
    return isinstance(value, LazyMatrix) or is_dask(value)
