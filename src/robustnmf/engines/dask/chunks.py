"""The chunks of a Dask array as sources: each with the part of the graph that makes it."""

from dataclasses import dataclass
from math import isnan
from typing import Any

from robustnmf.engines.lazy import Source
from robustnmf.utils.arrays import Array
from robustnmf.utils.extras import optional


@dataclass(frozen=True)
class ChunkSource:
    """A chunk; calling it runs the tasks that make it, in this thread."""

    graph: dict[Any, Any]
    key: Any

    def __call__(self) -> Array:
        return optional("dask", "dask").get(self.graph, self.key)


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
        chunks.append(ChunkSource(own, key))
    return chunks
