"""Estimators on data that is not in memory: which engine works on it, and results that are computed when asked for.

A result has a value for each entry, or a code for each sample. Each block of it depends on the same block of the data
and on the fitted model alone, so it is left to whoever asks: for data on a cluster it is a Dask array, for data that is
streamed a `LazyMatrix`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array

from robustnmf.data import blockwise
from robustnmf.engines import DaskEngine, StreamingEngine
from robustnmf.engines.lazy import read_blocks
from robustnmf.errors import IncompatibleError
from robustnmf.formats.registry import rows_of
from robustnmf.formats.rows import BLOCK_BYTES, FloatRows, is_dask, number_type, row_blocks
from robustnmf.model.losses import squared_ratio
from robustnmf.model.weighting import Weighting
from robustnmf.utils.arrays import Array, Blocks, Namespace
from robustnmf.utils.extras import optional

Matrix = NDArray[Any]

# Data on disk is streamed if it is larger than this share of the machine's memory.
LARGE = 0.25


# --- Which data, which engine -----------------------------------------------------------------------------------------


def is_out_of_core(X: Any, engine: Any) -> bool:
    """Return whether data is worked on block by block where it is, instead of in the memory of this process."""
    if isinstance(engine, DaskEngine | StreamingEngine) or engine in ("dask", "stream") or is_dask(X):
        return True
    rows = rows_of(X) if engine == "auto" else None
    return rows is not None and rows.shape[0] * rows.shape[1] * rows.dtype.itemsize > LARGE * _memory()


def _memory() -> int:
    """Return the bytes of memory of this machine."""
    from os import sysconf

    return int(sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES"))


def engine_of(X: Any, engine: Any, device: Any, checkpoint: Any) -> Any:
    """Return the engine for such data; a `device` other than the CPU is that of each worker of a cluster."""
    if isinstance(engine, DaskEngine) and device is not None:
        raise ValueError("A DaskEngine knows its device: use DaskEngine(inside='torch', device=...) and device=None.")
    streams = isinstance(engine, StreamingEngine) or engine == "stream" or (engine == "auto" and not is_dask(X))
    if streams and device not in (None, "cpu"):
        raise ValueError(
            f"Data that is read block by block is worked on by the CPU; for device={device!r} use "
            "engine='dask', or take the data into memory."
        )
    if isinstance(engine, DaskEngine | StreamingEngine):
        return engine
    if streams:
        return StreamingEngine()
    if engine not in ("auto", "dask"):
        raise ValueError(f"A Dask array is worked on by engine='dask' (or 'auto'), or 'stream'; got {engine!r}.")
    inside = "numpy" if device in (None, "cpu") else "torch"
    return DaskEngine(folder=checkpoint, inside=inside, device=device)


def blocks_of(X: Any, engine: Any, like: Blocks | None = None) -> Blocks:
    """Return the blocks of data, or of weights that are cut like data."""
    if is_dask(X):
        return _dask_blocks(as_dask(X), engine, like)
    rows = rows_of(X)
    if rows is not None:
        read: Blocks = engine.read(rows, like)
        return read
    split: Blocks = engine.split(as_data(X), like=like)
    return split


def as_data(X: Any) -> Any:
    """Return data of Dask and on disk where it is, and anything else as an array; each as numbers of a known shape."""
    if X is None:
        return None
    if is_dask(X):
        return as_dask(X)
    rows = rows_of(X)
    if rows is not None:
        return X if number_type(rows.dtype) == rows.dtype else FloatRows(rows)
    if isinstance(getattr(X, "dtype", None), np.dtype):
        number_type(X.dtype)
    if isinstance(X, np.ma.MaskedArray):
        X = _plain(X, _floating(X.dtype))
    return check_array(X, dtype=(np.float64, np.float32), order="C", ensure_all_finite=False)


def _dask_blocks(X: Any, engine: Any, like: Blocks | None) -> Blocks:
    """Return the chunks of a Dask array that have rows."""
    from robustnmf.engines.dask.chunks import chunk_sources, filled_chunks

    X = filled_chunks(X)
    if like is not None:
        X = X.rechunk({0: tuple(len(block) for block in like), 1: -1})
    if isinstance(engine, DaskEngine):
        return engine.read_dask(X)
    X = X.rechunk({1: -1})
    chunks = chunk_sources(X)
    if chunks is None:
        raise IncompatibleError(
            "The chunks of this Dask array have work in common, which engine='stream' would repeat for each of them: "
            "use engine='dask', or store the array with to_zarr and pass that."
        )
    return list(read_blocks(chunks, X.chunks[0], X.shape[1], np.dtype(X.dtype), None))


def as_dask(X: Any) -> Any:
    """Return data of any kind as a Dask array (n, m)."""
    dask, da = optional("dask", "dask"), optional("dask.array", "dask")
    if is_dask(X):
        return _numeric(X)
    rows = rows_of(X)
    if rows is None:
        X = np.asarray(X)
        return da.from_array(X, chunks=(max(1, BLOCK_BYTES // max(1, X[:1].nbytes)), -1))
    blocks = [
        da.from_delayed(dask.delayed(block)(), (len(block), rows.shape[1]), rows.dtype)
        for block in row_blocks(rows, BLOCK_BYTES)
    ]
    return da.concatenate(blocks)


def _numeric(X: Any) -> Any:
    """Return an array or data frame of Dask as an array of numbers whose chunk sizes are known."""
    from robustnmf.engines.dask.chunks import with_known_chunks

    if hasattr(type(X), "to_dask_array"):
        X = X.to_dask_array(lengths=True)
    if not hasattr(type(X), "chunks"):  # what is delayed has all attributes, delayed
        raise TypeError(
            f"Data of Dask must be an array or a data frame; got {type(X).__name__}. dask.array.from_delayed makes an "
            "array of what is delayed."
        )
    if X.ndim != 2:
        raise ValueError(f"X must have two dimensions, samples and features; got {X.ndim}. X.reshape(n, -1) makes two.")
    is_plain = not isinstance(X._meta, np.ma.MaskedArray) and not hasattr(X._meta, "todense")
    if number_type(X.dtype) == X.dtype and is_plain:
        return with_known_chunks(X)
    dtype = _floating(X.dtype)
    return with_known_chunks(X).map_blocks(_plain, dtype, dtype=dtype, meta=np.empty((0, 0), dtype))


def _floating(dtype: Any) -> np.dtype[Any]:
    """Return float32 for entries of that type, and float64 for all other numbers."""
    return np.dtype(np.float32 if number_type(dtype) == np.float32 else np.float64)


def _plain(block: Any, dtype: Any) -> Matrix:
    """Return a chunk that is masked, sparse, or of objects as an array of numbers; NaN where it is masked."""
    if isinstance(block, np.ma.MaskedArray):
        return np.asarray(np.ma.filled(block.astype(dtype), np.nan))
    return np.asarray(block.todense() if hasattr(block, "todense") else block, dtype=dtype)


# --- Into a fit -------------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """Data that is ready to be worked on, in blocks."""

    V: Blocks
    """In its unit, 0 where missing."""
    M: Blocks | None
    """Weights of the entries, None if all are 1."""
    shape: tuple[int, int]
    dtype: Any
    unit: float
    seen: Matrix
    """Observed entries of each feature, (m,)."""
    n_empty: int
    """Samples of which nothing is observed."""
    noise: Matrix | None
    """Typical uncertainty of each feature, (m,), in units of which the data is."""

    @classmethod
    def of(cls, X: Any, weights: Any, uncertainties: Any, engine: Any, name: str) -> "Data":
        """Look at all entries once, and prepare them; `name` is that of the estimator."""
        shape = _checked_shape(X, weights, uncertainties)
        raw = blocks_of(X, engine)
        its_weights = None if weights is None else blocks_of(weights, engine, like=raw)
        dtype = np.dtype(np.float32 if raw[0].dtype == np.float32 else np.float64)
        noise, in_noise = None, raw
        if uncertainties is not None:
            given = blocks_of(uncertainties, engine, like=raw)
            noise, its_weights = blockwise.noise_of(raw, its_weights, given, engine)
            in_noise = engine.map(blockwise.divided, raw, by=noise, dtype=dtype)
        about = blockwise.survey(raw, its_weights, engine, name)
        unit = blockwise.unit_of(in_noise, its_weights, engine)
        V, M = blockwise.prepared(raw, its_weights, about, unit, dtype, engine, noise)
        return cls(V, M, shape, dtype, unit, about.seen, about.n_empty, noise)


def _checked_shape(X: Any, weights: Any, uncertainties: Any) -> tuple[int, int]:
    """Return the shape of data, which must not be empty, and be that of what its entries have."""
    shape = (int(X.shape[0]), int(X.shape[1]))
    for size, what in zip(shape, ("sample", "feature"), strict=True):
        if size == 0:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={shape}) while a minimum of 1 is required. Check the filter or "
                "the file that X comes from."
            )
    for name, values in (("weights", weights), ("uncertainties", uncertainties)):
        if values is not None and tuple(values.shape) != shape:
            raise ValueError(f"{name} must have the shape of X, {shape}; got {tuple(values.shape)}.")
    return shape


def even_rows(matrices: Sequence[Any], n_rows: int, engine: Any) -> list[Matrix | None]:
    """Return about so many rows of matrices that have the same number of them, evenly spread, in memory."""
    like: Blocks | None = None
    found: list[Matrix | None] = []
    for matrix in matrices:
        blocks = None if matrix is None else blocks_of(matrix, engine, like)
        like = blocks if like is None else like
        found.append(None if blocks is None else blockwise.even_rows(blocks, n_rows, engine))
    return found


def row_totals(M: Array, *, xp: Namespace) -> Array:
    """Return the total weight of each sample of a block, (B,)."""
    return xp.sum(M, axis=1, dtype=xp.float64)


def totals(
    Y: Array, M: Array | None, X: Array, *, W: Array, weighting: Weighting, xp: Namespace
) -> tuple[float, float, float]:
    """Return the sum of M * rho, that of M, and of squared residuals of observed entries that are no outliers."""
    R = Y - X @ W.T
    A = weighting.magnitudes(R, M, xp)
    counts = xp.ones_like(A) if M is None else weighting.counts(M, xp)
    inlier = ~weighting.outliers(A, M, xp) if M is None else ~weighting.outliers(A, M, xp) & (M > 0)
    rho = weighting.loss.rho(squared_ratio(A, weighting.scale, xp), xp)
    return (
        float(xp.sum(counts * rho, dtype=xp.float64)),
        float(xp.sum(counts, dtype=xp.float64)),
        float(xp.sum(xp.where(inlier, R, 0) ** 2, dtype=xp.float64)),
    )


# --- Results ----------------------------------------------------------------------------------------------------------


def _weights(model: Any, X: Matrix, **options: Any) -> Matrix:
    return np.asarray(model._describe_entries(X, **options).weights)


def _outliers(model: Any, X: Matrix, **options: Any) -> Matrix:
    return np.asarray(model._describe_entries(X, **options).outliers)


def _codes(model: Any, X: Matrix, **options: Any) -> Matrix:
    return np.asarray(model.transform(X, **options))


def _clean(model: Any, X: Matrix, **options: Any) -> Matrix:
    return np.asarray(model.clean(X, **options))


def _scores(model: Any, X: Matrix, **options: Any) -> Matrix:
    return np.asarray(model.score_samples(X, **options))


class _Kind(NamedTuple):
    """A result: the function of a fitted model that computes it, its columns and dtype."""

    compute: Callable[..., Matrix]
    columns: str | None
    """"entries", "components", or None for one number per sample."""
    dtype: Any


RESULTS: Mapping[str, _Kind] = MappingProxyType(
    {
        "codes": _Kind(_codes, "components", None),
        "clean": _Kind(_clean, "entries", None),
        "weights": _Kind(_weights, "entries", None),
        "outliers": _Kind(_outliers, "entries", np.dtype(bool)),
        "scores": _Kind(_scores, None, np.dtype(np.float64)),
    }
)


def result(model: Any, what: str, X: Any, weights: Any, uncertainties: Any, engine: Any) -> Any:
    """Return a result for data that is not in memory, one of `RESULTS`, to be computed when it is asked for."""
    fitted = _without_training(model)
    _, n_features = _checked_shape(X, weights, uncertainties)
    if n_features != model.n_features_in_:
        raise ValueError(
            f"X has {n_features} features, but {type(model).__name__} is expecting {model.n_features_in_} features as "
            "input."
        )
    of_entries = {"weights": weights, "uncertainties": uncertainties}
    of_entries = {name: values for name, values in of_entries.items() if values is not None}
    if isinstance(engine, StreamingEngine):
        lazy = LazyMatrix(fitted, what, X, of_entries, engine)
        return lazy if what in ("clean", "weights", "outliers") else np.asarray(lazy)
    return _dask_result(fitted, what, X, of_entries)


def _without_training(model: Any) -> Any:
    """Return a copy of a fitted model that is small enough to be sent, and works on arrays in memory."""
    light = copy(model)
    for name in ("weights_", "outliers_", "sparse_errors_"):
        vars(light).pop(name, None)
    vars(light).update(callback=None, verbose=0, checkpoint=None, engine="auto", device=None)
    return light


def _dtype(model: Any, what: str, X: Any) -> Any:
    return RESULTS[what].dtype or np.dtype(np.float32 if X.dtype == np.float32 else np.float64)


def _dask_result(model: Any, what: str, X: Any, of_entries: dict[str, Any]) -> Any:
    X = as_dask(X).rechunk({1: -1})
    others = [as_dask(values).rechunk(X.chunks) for values in of_entries.values()]
    columns = RESULTS[what].columns
    shape: dict[str, Any] = {"chunks": (X.chunks[0], (model.n_components_,))} if columns == "components" else {}
    if columns is None:
        shape = {"drop_axis": 1, "chunks": (X.chunks[0],)}
    return X.map_blocks(
        _of_chunk,
        *others,
        names=tuple(of_entries),
        model=optional("dask", "dask").delayed(model),
        what=what,
        name=None,
        token=f"robustnmf-{what}",
        dtype=_dtype(model, what, X),
        meta=np.empty((0,) * (1 if columns is None else 2), dtype=_dtype(model, what, X)),
        **shape,
    )


def _of_chunk(X: Matrix, *of_entries: Matrix, names: tuple[str, ...], model: Any, what: str) -> Matrix:
    """Return the result for one chunk, and what its entries have: weights, uncertainties."""
    options = dict(zip(names, of_entries, strict=True))
    if not len(X):
        columns = {"entries": X.shape[1], "components": model.n_components_, None: None}[RESULTS[what].columns]
        return np.empty((0,) if columns is None else (0, columns), dtype=_dtype(model, what, X))
    return RESULTS[what].compute(model, X, **options)


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
        n_samples = sum(len(block) for block in self._blocks)
        columns = {"entries": X.shape[1], "components": model.n_components_, None: None}[RESULTS[what].columns]
        self.shape: Any = (n_samples,) if columns is None else (n_samples, columns)
        self.dtype = _dtype(model, what, X)
        self._ends = np.cumsum([len(block) for block in self._blocks])

    def __repr__(self) -> str:
        return f"LazyMatrix({self._what}, shape={self.shape}, dtype={self.dtype.name})"

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
        start = 0
        for i, end in enumerate(self._ends):
            yield start, self._block(i)
            start = int(end)

    def _block(self, i: int) -> Matrix:
        blocks = (self._engine.join([blocks[i]]) for blocks in (self._blocks, *self._of_entries.values()))
        return _of_chunk(*blocks, names=tuple(self._of_entries), model=self._model, what=self._what)

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
