"""The chunks of a Dask array as sources: each with the part of the graph that makes it."""

from dataclasses import dataclass
from typing import Any

from robustnmf.arrays import Array
from robustnmf.engines.lazy import Source


@dataclass(frozen=True)
class ChunkSource:
    """A chunk; calling it runs the tasks that make it, in this thread."""

    graph: dict[Any, Any]
    key: Any

    def __call__(self) -> Array:
        import dask

        return dask.get(self.graph, self.key)


def chunk_sources(X: Any) -> list[Source] | None:
    """Return what makes each chunk of rows; None if chunks have work in common, or are persisted.

    Work that chunks have in common would be done again for each of them, in each iteration.
    """
    import dask
    from dask._task_spec import Task, convert_legacy_graph
    from dask.optimization import cull
    from distributed import futures_of

    if futures_of(X):
        return None
    (X,) = dask.optimize(X)
    graph = convert_legacy_graph(dict(X.__dask_graph__()))
    chunks: list[Source] = []
    seen: set[Any] = set()
    for key, *_ in X.__dask_keys__():
        own, _ = cull(graph, [key])
        tasks = {k for k, node in own.items() if isinstance(node, Task)}
        if tasks & seen:
            return None
        seen |= tasks
        chunks.append(ChunkSource(own, key))
    return chunks
