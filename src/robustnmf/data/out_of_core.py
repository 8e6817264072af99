"""Data that is not in memory: which engine works on it, and its blocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array

from robustnmf.data.sparse import canonical, checked, is_sparse
from robustnmf.data.validation import check_shape, weights_of_stored
from robustnmf.engines import DaskEngine, Engine, SparseEngine, StreamingEngine
from robustnmf.engines.lazy import read_blocks
from robustnmf.engines.protocol import block_function
from robustnmf.errors import IncompatibleError
from robustnmf.formats.alignment import values_of
from robustnmf.formats.device_rows import DeviceRows
from robustnmf.formats.registry import rows_of
from robustnmf.formats.rows import BLOCK_BYTES, FloatRows, Rows, is_dask, number_type, package_of, row_blocks
from robustnmf.formats.sparse_rows import Columns, SparseRows, StoredSparsely
from robustnmf.utils.arrays import (
    Array,
    Blocks,
    Namespace,
    device_name,
    is_on_host,
    is_sparse_tensor,
    subsample,
    to_host,
)
from robustnmf.utils.extras import optional
from robustnmf.utils.platforms import memory

Matrix = NDArray[Any]

# Data on disk is streamed if it is larger than this share of the machine's memory.
LARGE = 0.25


def is_out_of_core(X: Any, engine: Any) -> bool:
    """Return whether data is worked on block by block where it is, instead of in the memory of this process."""
    if isinstance(engine, SparseEngine):
        return False
    if isinstance(engine, DaskEngine | StreamingEngine) or engine in ("dask", "stream") or is_dask(X):
        return True
    rows = rows_of(X) if engine == "auto" else None
    return rows is not None and is_large(rows)


def is_large(rows: Rows) -> bool:
    """Return whether data on disk takes much of the memory; sparse data is taken into memory as it is."""
    n_rows, n_columns = rows.shape
    size = rows.nbytes if isinstance(rows, StoredSparsely) else n_rows * n_columns * rows.dtype.itemsize
    return bool(size > LARGE * memory())


def in_memory(X: Any, engine: Any) -> Any:
    """Return sparse data on disk, and chosen columns of any, as a matrix, unless they are worked on block by block."""
    if is_out_of_core(X, engine):
        return X
    rows = rows_of(X)
    if isinstance(rows, StoredSparsely | Columns):
        return rows.load()
    return X.to_memory() if package_of(X) == "anndata" and hasattr(X, "to_memory") else X


def engine_of(X: Any, engine: Any, device: Any, checkpoint: Any) -> Any:
    """Return the engine for such data; a `device` other than the CPU is that of each worker of a cluster."""
    if isinstance(engine, DaskEngine) and device is not None:
        raise ValueError("A DaskEngine knows its device: use DaskEngine(inside='torch', device=...) and device=None.")
    device = device_name(device)
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


def blocks_of(X: Any, engine: Engine, like: Blocks | None = None) -> Blocks:
    """Return the blocks of data, or of weights that are cut like data."""
    if is_dask(X):
        return _dask_blocks(as_dask(X), engine, like)
    rows = rows_of(X)
    if rows is not None:
        return engine.read(rows, like)
    return engine.split(as_data(X), like=like)


def as_data(X: Any) -> Any:
    """Return data of Dask, on disk and on a device where it is, and anything else as an array of numbers."""
    if X is None:
        return None
    if is_dask(X):
        return as_dask(X)
    X = values_of(X)
    if not is_on_host(X) and not is_sparse_tensor(X):
        return DeviceRows(X)
    X = to_host(X)
    if is_sparse(X):
        return SparseRows(canonical(checked(X).astype(_floating(X.dtype), copy=False)))
    rows = rows_of(X)
    if isinstance(rows, StoredSparsely):
        # Columns that are stored together are not read by rows: a little of such data is taken into memory.
        return rows if rows.is_by_rows or is_large(rows) else SparseRows(rows.load())
    if rows is not None:
        return X if number_type(rows.dtype) == rows.dtype else FloatRows(rows)
    if isinstance(getattr(X, "dtype", None), np.dtype):
        number_type(X.dtype)
    if isinstance(X, np.ma.MaskedArray):
        X = _plain(X, _floating(X.dtype))
    return check_array(X, dtype=(np.float64, np.float32), order="C", ensure_all_finite=False)


def _dask_blocks(X: Any, engine: Engine, like: Blocks | None) -> Blocks:
    """Return the chunks of a Dask array that have rows; of sparse ones, blocks that are made dense when needed."""
    from robustnmf.engines.dask.chunks import chunk_sources, dense_blocks, filled_chunks, holds_sparse

    X = filled_chunks(X)
    if like is not None:
        X = X.rechunk({0: tuple(len(block) for block in like), 1: -1})
    if isinstance(engine, DaskEngine):
        return engine.read_dask(X, whole=like is not None)
    X = X.rechunk({1: -1})
    chunks = chunk_sources(X)
    if chunks is None:
        raise IncompatibleError(
            "The chunks of this Dask array have work in common, which engine='stream' would repeat for each of them: "
            "use engine='dask', or store the array with to_zarr and pass that."
        )
    blocks = list(read_blocks(chunks, X.chunks[0], X.shape[1], np.dtype(X.dtype), None))
    return dense_blocks(blocks, None) if holds_sparse(X) else blocks


def stored_weights(X: Any, weights: Any) -> Any:
    """Return weights of the stored entries of sparse data, also of Dask; see `weights_of_stored`."""
    if not is_dask(X):
        return weights_of_stored(X, weights)
    X = as_dask(X)
    if not isinstance(X._meta, sparse.csr_array):
        raise TypeError(
            "zeros='missing' is for sparse data, of which entries that are not stored are missing; the chunks of this "
            "Dask array are dense. Set missing entries to NaN, or X.map_blocks(scipy.sparse.csr_array)."
        )
    if weights is not None:
        check_shape(weights, "weights", X)
    others = [] if weights is None else [as_dask(as_data(weights)).rechunk(X.chunks)]
    return X.map_blocks(_weights_of_chunk, *others, **_sparse_meta(np.float64))


def _weights_of_chunk(X: Any, weights: Any = None) -> Any:
    return weights_of_stored(X, weights)


def _sparse_meta(dtype: Any) -> dict[str, Any]:
    """Return what Dask is told of chunks that are sparse."""
    return {"dtype": dtype, "meta": sparse.csr_array((0, 0), dtype=dtype)}


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
    from robustnmf.engines.dask.chunks import as_csr, holds_sparse, with_known_chunks

    if hasattr(type(X), "to_dask_array"):
        X = X.to_dask_array(lengths=True)
    if not hasattr(type(X), "chunks"):  # what is delayed has all attributes, delayed
        raise TypeError(
            f"Data of Dask must be an array or a data frame; got {type(X).__name__}. dask.array.from_delayed makes an "
            "array of what is delayed."
        )
    if X.ndim != 2:
        raise ValueError(f"X must have two dimensions, samples and features; got {X.ndim}. X.reshape(n, -1) makes two.")
    is_plain = not isinstance(X._meta, np.ma.MaskedArray) and not holds_sparse(X)
    if number_type(X.dtype) == X.dtype and is_plain:
        return with_known_chunks(X)
    dtype = _floating(X.dtype)
    if holds_sparse(X):
        if isinstance(X._meta, sparse.csr_array) and dtype == X.dtype and len(X.chunks[1]) == 1:
            return with_known_chunks(X)
        return with_known_chunks(X).rechunk({1: -1}).map_blocks(as_csr, dtype, **_sparse_meta(dtype))
    return with_known_chunks(X).map_blocks(_plain, dtype, dtype=dtype, meta=np.empty((0, 0), dtype))


def _floating(dtype: Any) -> np.dtype[Any]:
    """Return float32 for entries of that type, and float64 for all other numbers."""
    return np.dtype(np.float32 if number_type(dtype) == np.float32 else np.float64)


def _plain(block: Any, dtype: Any) -> Matrix:
    """Return a chunk that is masked, or of objects, as an array of numbers; NaN where it is masked."""
    if isinstance(block, np.ma.MaskedArray):
        return np.asarray(np.ma.filled(block.astype(dtype), np.nan))
    return np.asarray(block, dtype=dtype)


def even_rows(matrices: Sequence[Any], n_rows: int, engine: Engine) -> list[Matrix | None]:
    """Return about so many rows of matrices that have the same number of them, evenly spread, in memory."""
    like: Blocks | None = None
    found: list[Matrix | None] = []
    for matrix in matrices:
        blocks = None if matrix is None else blocks_of(matrix, engine, like)
        like = blocks if like is None else like
        found.append(None if blocks is None else _even_rows(blocks, n_rows, engine))
    return found


def _even_rows(blocks: Blocks, n_rows: int, engine: Engine) -> Matrix:
    lengths = [len(block) for block in blocks]
    chosen = subsample(lengths, max(1, sum(lengths) // n_rows))
    return np.asarray(to_host(engine.join(engine.map(_some_rows, blocks, chosen))))


@block_function(on_host=True)
def _some_rows(Y: Array, rows: slice, *, xp: Namespace) -> Array:
    return xp.asarray(Y[rows], copy=True)  # a view would keep the whole block
