"""The chunks of a Dask array as sources: each with the part of the graph that makes it."""

from dataclasses import dataclass
from math import isnan
from typing import Any

from scipy import sparse

from robustnmf.engines.lazy import Call, ComputedBlock, LazyBlock, Shared, Source
from robustnmf.engines.protocol import block_function
from robustnmf.formats.rows import row_cuts
from robustnmf.utils.arrays import Array, Namespace
from robustnmf.utils.extras import optional


@dataclass(frozen=True)
class ChunkSource:
    """A chunk; calling it runs the tasks that make it, in this thread."""

    graph: dict[Any, Any]
    key: Any
    is_sparse: bool = False
    """Whether the chunk is a sparse matrix."""

    def __call__(self) -> Array:
        return checked(optional("dask", "dask").get(self.graph, self.key), is_sparse=self.is_sparse)


def with_known_chunks(X: Any) -> Any:
    """Return a Dask array whose chunk sizes are known; if they are not, as after a filter, its chunks are computed."""
    return X.compute_chunk_sizes() if any(isnan(size) for sizes in X.chunks for size in sizes) else X


def filled_chunks(X: Any) -> Any:
    """Return a Dask array (n, m) without the chunks of no rows that a filter leaves."""
    filled = [i for i, n_rows in enumerate(X.chunks[0]) if n_rows]
    return X if len(filled) in (0, len(X.chunks[0])) else X.blocks[filled]


def chunk_sources(X: Any) -> list[Source] | None:
    """Return what makes each chunk of rows; None if chunks have work in common, or are persisted.

    Work that chunks have in common would be done again for each of them, in each iteration.
    """
    dask, tasks_of, optimization, distributed = (
        optional(name, "dask") for name in ("dask", "dask._task_spec", "dask.optimization", "distributed")
    )
    if distributed.futures_of(X):
        return None
    (X,) = dask.optimize(X)
    graph = tasks_of.convert_legacy_graph(dict(X.__dask_graph__()))
    chunks: list[Source] = []
    seen: set[Any] = set()
    for key, *_ in X.__dask_keys__():
        own, _ = optimization.cull(graph, [key])
        tasks = {k for k, node in own.items() if isinstance(node, tasks_of.Task)}
        if tasks & seen:
            return None
        seen |= tasks
        chunks.append(ChunkSource(own, key, holds_sparse(X)))
    return chunks


# --- Sparse chunks ----------------------------------------------------------------------------------------------------


def holds_sparse(X: Any) -> bool:
    """Return whether the chunks of a Dask array are sparse matrices, of SciPy or of the package sparse."""
    return hasattr(X._meta, "todense")


def checked(chunk: Any, *, is_sparse: bool) -> Any:
    """Return a chunk; refuse one that is sparse in an array that says that it is not."""
    if hasattr(chunk, "todense") and not is_sparse:
        raise TypeError(
            f"Chunks of this Dask array are sparse ({type(chunk).__name__}), but its meta says that they are dense. "
            "Say so where it is made: dask.array.from_delayed(..., meta=scipy.sparse.csr_array((0, 0))), or "
            "map_blocks(..., meta=scipy.sparse.csr_array((0, 0)))."
        )
    return chunk


def is_sparse_chunk(chunk: Any) -> bool:
    """Return whether a chunk is a sparse matrix, as a worker finds it."""
    return hasattr(chunk, "todense")


def as_csr(chunk: Any, dtype: Any) -> Any:
    """Return a sparse chunk of any kind as a sparse array of SciPy by rows."""
    if not hasattr(chunk, "tocsr"):
        return sparse.csr_array(chunk.todense(), dtype=dtype)
    return sparse.csr_array(chunk.tocsr()).astype(dtype, copy=False)


def stored_bytes(chunk: Any) -> int:
    """Return the bytes that a sparse chunk takes."""
    return int(sum(part.nbytes for part in (chunk.data, chunk.indices, chunk.indptr)))


def dense_blocks(chunks: list[LazyBlock], block_bytes: int | None) -> list[LazyBlock]:
    """Return blocks that are made of sparse chunks where they are worked on.

    Each has about so many bytes when it is dense: a chunk that is small as it is stored may be large then. None leaves
    chunks whole.
    """
    shared, blocks = Shared({}), list[LazyBlock]()
    for chunk in chunks:
        n_rows, n_columns = chunk.shape
        cuts = [(0, n_rows)] if block_bytes is None else row_cuts(n_rows, n_columns * chunk.dtype.itemsize, block_bytes)
        for start, stop in cuts:
            made = Call(dense_rows, (chunk, slice(start, stop)), shared)
            blocks.append(ComputedBlock(made, None, (stop - start, n_columns), chunk.dtype))
    return blocks


@block_function(recomputed=True, on_host=True)
def dense_rows(chunk: Any, rows: slice, *, xp: Namespace) -> Array:
    """Return some rows of a sparse chunk as an array."""
    return chunk[rows].toarray()
