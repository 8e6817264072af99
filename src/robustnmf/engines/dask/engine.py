"""The engine for clusters of Dask.

Blocks of samples are spread over the workers. A task works on a *group* of consecutive blocks, one after the other, so
that a block may be small, for the memory, and a task long, beside what a scheduler needs for it. What tasks share, such
as the basis, is sent once for each call; their sums are added up within the group and then in a tree, in an order that
does not depend on who is ready first. The graph of a call is forgotten after it.

What is lost with a worker is computed again by Dask, from how it was made: data from its source, codes from the codes
before. So that this does not reach back to the start, `truncate_lineage` writes codes to disk every few iterations
(where all workers see the same folder, else it takes them through the client) and lets Dask forget what was before.
"""

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from robustnmf.engines import quantiles as counting
from robustnmf.engines.dask import files as dask_files
from robustnmf.engines.dask import tasks as dask_tasks
from robustnmf.engines.dask.chunks import (
    checked,
    chunk_sources,
    dense_blocks,
    filled_chunks,
    holds_sparse,
    is_sparse_chunk,
    stored_bytes,
    with_known_chunks,
)
from robustnmf.engines.dask.files import Files, SavedBlock, Shaped
from robustnmf.engines.dask.tasks import Compiler, FutureBlock, Parcel, Task, add_up, history, size_of
from robustnmf.engines.dask.workers import Inside
from robustnmf.engines.lazy import (
    ComputedBlock,
    Here,
    LazyBlock,
    ReadBlock,
    Shared,
    computed_blocks,
    is_lazy,
    read_blocks,
    same,
)
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import traits_of
from robustnmf.engines.streaming_engine import check_gathered
from robustnmf.formats.numpy_files import FileRows
from robustnmf.formats.rows import BLOCK_BYTES, RowBlock, Rows, cuts_like, row_blocks
from robustnmf.utils import platforms
from robustnmf.utils.arrays import Array, Blocks, zip_blocks
from robustnmf.utils.extras import optional
from robustnmf.utils.files import make_folder, write_array

# Tasks for each thread of the cluster, if there are blocks enough, so that a slow one does not keep the others waiting;
# but whatever the size of the data so few in all, at least one for each thread, that the scheduler does not.
TASKS_PER_THREAD, ENOUGH_TASKS = 4, 4000
# Sums that are added up by one task.
FAN_IN = 8
# Iterations of codes that Dask remembers, and so at most repeats where a worker is lost.
REMEMBERED = 5
# Data is kept in the memory of the workers if this many times its size fits there: weights and residuals come with it.
ROOM = 5
# Shared arguments up to this size travel in the graph, so that Dask can send them again; larger ones are scattered.
IN_GRAPH_BYTES = 2**22
# Arrays up to this size, in all blocks together, travel in the graph.
SMALL_BYTES = 2**20
# Seconds after which it is asked whether there are workers at all, and what is said if not; and whether they work.
LONG_WAIT = 60.0
NO_WORKERS = (
    "The Dask cluster has no workers left, and the fit waits for some. Start workers to go on; with a checkpoint "
    "folder it can be interrupted, and goes on when fit is called again."
)


class AllPausedError(Exception):
    """Dask has paused all workers, because their memory is nearly full, and none will free any."""


class DaskEngine(NumPyEngine):
    """Blocks on the workers of a Dask cluster; what is small is an array of the client, which works on it itself.

    Parameters
    ----------
    client : distributed.Client or None
        None takes the client that is active; if there is none, threads of this process work for the length of a fit.
    block_bytes : int
        Bytes of data in a block.
    keep : bool or None
        Whether workers keep the data in memory, instead of reading it in each iteration; None does so where it fits.
    folder : path or None
        Where codes are written to that could be lost with a worker: a folder that all workers see, such as that of the
        checkpoint. None takes a temporary one.
    inside : {"numpy", "torch"}
        What works on a block: NumPy and Numba on the processor of the worker, or Torch.
    device : str or None
        Where Torch does so: "cuda" is the GPU of each worker, which must have one; None is the same where there is one,
        else the processor; "cpu" and "cuda:1" are the same for all.
    """

    gathers_features = False

    def __init__(
        self,
        client: Any = None,
        *,
        block_bytes: int = BLOCK_BYTES,
        keep: bool | None = None,
        folder: str | os.PathLike[str] | None = None,
        inside: Any = "numpy",
        device: str | None = None,
    ) -> None:
        super().__init__()
        self.inside = Inside(inside, device)
        self.block_bytes = block_bytes
        self.keep = keep
        self.n_groups = 1
        self._memory_limit = 0
        self._client = client
        self._folder = None if folder is None else Path(folder)
        self._files: Files | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "DaskEngine":
        """Return an engine with the same client and parameters: estimators that have one can be cloned."""
        options: dict[str, Any] = {"inside": self.inside.kind, "device": self.inside.device, "folder": self._folder}
        return DaskEngine(self._client, block_bytes=self.block_bytes, keep=self.keep, **options)

    @contextmanager
    def running(self) -> Iterator["DaskEngine"]:
        """Use the client that is given or active, or threads of this process; leave nothing behind."""
        with self._connected(), super().running():
            self.n_groups = n_groups(max(1, sum(int(n) for n in self.client.nthreads().values())))
            self._memory_limit = min((limit for limit in self._limits if limit), default=0)
            self._files = Files(self.client, self._folder)
            try:
                yield self
            finally:
                self._files.close()
                self._files = None

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self._client is not None:
            self.client = self._client
            yield
            return
        distributed = _distributed()
        try:
            self.client = distributed.get_client()
        except ValueError:
            # Of threads: processes would import the user's script, and fail where it has no guard of ``__main__``.
            made = distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None)
            with made as cluster, distributed.Client(cluster) as self.client:
                yield
            return
        yield

    # --- Data ---------------------------------------------------------------------------------------------------------

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        """Return the blocks of data that all workers can read, kept by them if it fits; cut as `like` if given."""
        found = row_blocks(rows, self.block_bytes, like)
        return self._placed(read_blocks(found, [len(block) for block in found], rows.shape[1], rows.dtype, None))

    def read_dask(self, X: Any, *, whole: bool = False) -> Blocks:
        """Return the chunks of a Dask array (n, m) that have rows as blocks.

        Chunks that are made independently of each other are made in each iteration, unless they fit in the memory of
        the workers. Others, and what is persisted already, are left to Dask to keep. Sparse chunks are kept as they
        are; parts of them, or for `whole` all rows, are made dense where they are worked on.

        Parameters
        ----------
        X : dask.array.Array (n, m)
            Dense, or with sparse chunks.
        whole : bool
            Whether all rows of a sparse chunk are made dense at a time.

        Returns
        -------
        blocks
            Its samples, in order.
        """
        X = filled_chunks(with_known_chunks(X)).rechunk({1: -1})
        if not holds_sparse(X):
            return self._chunks(X, X.nbytes)
        return dense_blocks(self._chunks(X, self._bytes_of_sparse(X)), None if whole else self.block_bytes)

    def _chunks(self, X: Any, n_bytes: int) -> list[LazyBlock]:
        """Return each chunk of a Dask array of so many bytes, whatever it holds."""
        lengths, dtype = [int(size) for size in X.chunks[0]], np.dtype(X.dtype)
        chunks = None if self._keeps(n_bytes) else chunk_sources(X)
        if chunks is not None:
            return list(read_blocks(chunks, lengths, X.shape[1], dtype, None))
        X = self.client.persist(X)
        futures = {future.key: future for future in self.client.futures_of(X)}
        held = [futures[key] for key, *_ in X.__dask_keys__()]
        if not holds_sparse(X) and self._gather([self.client.submit(is_sparse_chunk, held[0], pure=False)])[0]:
            checked(held[0].result(), is_sparse=False)
        return [FutureBlock(f, None, None, (n, X.shape[1]), dtype) for f, n in zip(held, lengths, strict=True)]

    def _bytes_of_sparse(self, X: Any) -> int:
        """Return the bytes that sparse chunks take, if it matters: to know it, they have to be made once."""
        if self.keep is not None or self._keeps(X.nbytes):
            return int(X.nbytes)
        delayed = optional("dask", "dask").delayed
        return sum(self._gather(self.client.compute([delayed(stored_bytes)(c) for c in X.to_delayed().ravel()])))

    def _placed(self, blocks: Sequence[LazyBlock]) -> Blocks:
        """Return blocks that are read, kept by the workers if they have the room."""
        kept: Blocks = self.map(same, blocks) if self._keeps(sum(block.nbytes for block in blocks)) else blocks
        return kept

    def _keeps(self, n_bytes: int) -> bool:
        return ROOM * n_bytes <= self.memory if self.keep is None else self.keep

    @property
    def memory(self) -> int:
        """Bytes that all workers may use."""
        limits = self._limits
        return sum(limits) if all(limits) else platforms.memory()

    @property
    def _limits(self) -> list[int]:
        """Bytes that each worker may use, 0 if it has no limit."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        return [int(worker["memory_limit"] or 0) for worker in workers]

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        """Spread an array of the client over the workers, or cut a small one."""
        if like is not None and not is_lazy(like):
            return super().split(X, like)
        if like is None:
            row_bytes = max(1, X.nbytes // max(1, len(X)))
            n_blocks = max(1, min(len(X), max(self.n_groups, ceil(len(X) * row_bytes / self.block_bytes))))
            cuts = list(pairwise(len(X) * i // n_blocks for i in range(n_blocks + 1)))
        else:
            cuts = cuts_like(like)
        if like is not None and X.nbytes <= SMALL_BYTES:
            return [X[a:b] for a, b in cuts]
        return self._placed(self._store(X, cuts))

    def _store(self, X: Array, cuts: list[tuple[int, int]]) -> Sequence[LazyBlock]:
        """Return blocks that read an array of the client from a file, or were scattered if workers see none."""
        shape, files = X.shape, self._open_files
        if files.are_shared:
            path, keeper = files.new("array")
            write_array(path, np.ascontiguousarray(X))
            rows = FileRows.of(np.load(path, mmap_mode="r").reshape(len(X), -1))
            return [
                ReadBlock(Shaped(RowBlock(rows, a, b), shape[1:], keeper), None, (b - a, *shape[1:]), X.dtype)
                for a, b in cuts
            ]
        futures = self.client.scatter([np.ascontiguousarray(X[a:b]) for a, b in cuts], hash=False)
        if len(self.client.nthreads()) > 1:
            self.client.replicate(futures, n=2)
        blocks = zip(futures, cuts, strict=True)
        return [FutureBlock(f, None, None, (b - a, *shape[1:]), X.dtype) for f, (a, b) in blocks]

    def join(self, blocks: Blocks) -> Array:
        return super().join(self._fetch(blocks) if is_lazy(blocks) else blocks)

    def _fetch(self, blocks: Blocks) -> list[Array]:
        """Return arrays of the client."""
        values = [getattr(block, "value", None) for block in blocks]
        if any(value is None for value in values):
            results = self._submit("join", dask_tasks.arrays, [blocks], {}, same)
            values = [block for group in self._gather(results) for block in group]
        return values

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        """Return the same rows in blocks of `n_rows`: a small part of the data, which is moved between workers."""
        if not is_lazy(blocks):
            return super().regroup(blocks, n_rows)
        ends = np.cumsum([len(block) for block in blocks])
        total, name = int(ends[-1]), f"regroup-{uuid4().hex}"
        made = []
        for start in range(0, total, n_rows):
            stop = min(start + n_rows, total)
            first, last = int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(ends, stop))
            compiler = Compiler(self._share)
            parts = [compiler.reduce(block) for block in blocks[first : last + 1]]
            skip = start - int(ends[first] - len(blocks[first]))
            what = (dask_tasks.concatenate, parts, compiler.futures, skip, stop - start)
            future = self.client.submit(*what, key=(name, start), pure=False)
            depth, keepers = history(blocks[first : last + 1])
            shape = (stop - start, *blocks[0].shape[1:])
            made.append(FutureBlock(future, None, None, shape, blocks[0].dtype, depth + 1, keepers))
        return made

    def truncate_lineage(self, blocks: Blocks) -> Blocks:
        """Return the blocks; now and then, such that Dask need not remember what they were made of."""
        if not is_lazy(blocks) or history(blocks)[0] < REMEMBERED:
            return blocks
        files = self._open_files
        if not files.are_shared:
            return self._relay(blocks)
        path, keeper = files.new("codes")
        make_folder(path)
        self._gather(self._submit("write", dask_tasks.write_blocks, [blocks], {}, same, path=str(path)))
        saved = (Shaped(SavedBlock(str(path / f"{i}.npy")), block.shape[1:], keeper) for i, block in enumerate(blocks))
        read = [ReadBlock(s, None, block.shape, block.dtype) for s, block in zip(saved, blocks, strict=True)]
        return [replace(block, depth=0) for block in self.persist(read)]

    def persist(self, blocks: Blocks) -> Blocks:
        """Return blocks in the memory of the workers."""
        persisted: Blocks = self.map(same, blocks)
        return persisted

    def reaches(self, folder: Path) -> bool:
        """Return whether all workers see a folder of the client."""
        return dask_files.all_see(self.client, folder)

    def _relay(self, blocks: Blocks) -> Blocks:
        """Return copies of the blocks that came through the client, a group at a time, each on two workers."""
        relayed: list[FutureBlock] = []
        n_copies = min(2, len(self.client.nthreads()))
        for start, stop in self._groups(len(blocks)):
            arrays = self._fetch(blocks[start:stop])
            future = self.client.scatter(Parcel(arrays), hash=False)
            if n_copies > 1:
                self.client.replicate([future], n=n_copies)
            relayed += [FutureBlock(future, i, None, a.shape, a.dtype) for i, a in enumerate(arrays)]
        return relayed

    # --- Functions of blocks ------------------------------------------------------------------------------------------

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        if not any(map(is_lazy, blocks)):
            return super().map(function, *blocks, **shared)
        if traits_of(function).recomputed and not self._are_computed(blocks):
            return computed_blocks(function, blocks, self._with_here(shared))
        made = self._submit(_name(function), dask_tasks.map_over_blocks, blocks, shared, function)
        return self._kept(_name(function), made, blocks)[0]

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        """Apply the function to blocks of features, on the client, if the data is small."""
        if is_lazy(V):
            check_gathered(V)
            V, M = self._fetch(V), None if M is None else self._fetch(M)
        return super().map_features(function, V, M, *rows, **shared)

    def sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        if not any(map(is_lazy, blocks)):
            return super().sum(function, *blocks, **shared)
        name = _name(function)
        return self._added_up(name, self._submit(name, dask_tasks.sum_over_blocks, blocks, shared, function))

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        if not any(map(is_lazy, blocks)):
            return super().map_and_sum(function, *blocks, **shared)
        name = _name(function)
        made = self._submit(name, dask_tasks.map_and_sum_over_blocks, blocks, shared, function)
        return self._kept(name, made, blocks, with_sums=True)

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        """Return an exact weighted quantile, by counting if the blocks are not on the client."""
        if is_lazy(A) or is_lazy(M):
            return counting.quantile(self, A, M, q, axis)
        return super().quantile(A, M, q, axis=axis)

    # --- Tasks --------------------------------------------------------------------------------------------------------

    def _groups(self, n_blocks: int) -> list[tuple[int, int]]:
        """Return first and last block of each task."""
        n_groups = min(self.n_groups, n_blocks)
        return list(pairwise(n_blocks * i // n_groups for i in range(n_groups + 1)))

    def _submit(
        self,
        name: str,
        work: Callable[..., Any],
        blocks: Sequence[Blocks | None],
        shared: dict[str, Any],
        function: Callable[..., Any],
        **options: Any,
    ) -> list[Any]:
        """Return futures of a function's work on groups of blocks."""
        arguments = zip_blocks(blocks)
        common = Shared(self._with_here(shared))
        tasks, futures = [], []
        for start, stop in self._groups(len(arguments)):
            compiler = Compiler(self._share)
            given = compiler.shared(common)
            reduced = [tuple(compiler.reduce(block) for block in row) for row in arguments[start:stop]]
            tasks.append(Task(function, reduced, given, start, self.inside, options))
            futures.append(compiler.futures)
        return self._futures(name, work, tasks, futures)

    def _futures(self, name: str, work: Callable[..., Any], items: Sequence[Any], others: Any) -> list[Any]:
        """Return a future for each item, with a name for the dashboard."""
        others = others if isinstance(others, list) else [others] * len(items)
        keys = [(f"{name}-{uuid4().hex}", i) for i in range(len(items))]
        futures: list[Any] = self.client.map(work, list(items), others, key=keys, pure=False)
        return futures

    def _added_up(self, name: str, sums: list[Any]) -> Any:
        """Return the sum of what futures hold, by a tree of tasks."""
        while len(sums) > FAN_IN:
            groups = [sums[i : i + FAN_IN] for i in range(0, len(sums), FAN_IN)]
            sums = self._futures(f"{name}-total", add_up, groups, None)
        return add_up(self._gather(sums))

    def _kept(
        self, name: str, made: list[Any], blocks: Sequence[Blocks | None], *, with_sums: bool = False
    ) -> tuple[Any, Any]:
        """Return the blocks of results that tasks have made, and their sum.

        This waits for them, so that an error shows where it was made.
        """
        kept, reports = (
            self._futures(f"{name}-{what}", dask_tasks.take, made, i) for i, what in enumerate(("kept", "report"))
        )
        sums = self._futures(f"{name}-sum", dask_tasks.take, made, 2) if with_sums else []
        del made  # what is not kept is free as soon as it has been taken apart
        depth, keepers = history(block for b in blocks if b is not None for block in b)
        found: list[tuple[FutureBlock, ...]] = []
        is_tuple = False
        for future, report in zip(kept, self._gather(reports), strict=True):
            for i, about in enumerate(report):
                is_tuple = isinstance(about, list)
                parts = list(enumerate(about)) if is_tuple else [(None, about)]
                found.append(tuple(FutureBlock(future, i, p, s, t, depth + 1, keepers, v) for p, (s, t, v) in parts))
        lists = tuple(map(list, zip(*found, strict=True)))
        return lists if is_tuple else lists[0], self._added_up(name, sums) if with_sums else None

    def _gather(self, futures: list[Any]) -> list[Any]:
        """Return what futures hold, or say what to do about what went wrong."""
        distributed = _distributed()
        try:
            self._wait_for(futures)
            results: list[Any] = self.client.gather(futures)
        except distributed.KilledWorker as error:
            raise MemoryError(self._advice("were killed several times in a task, most likely because they ")) from error
        except AllPausedError as error:
            raise MemoryError(self._advice("are all paused, and none works on anything: they ")) from error
        except MemoryError as error:
            raise MemoryError(self._advice("")) from error
        except (distributed.client.FutureCancelledError, distributed.comm.core.CommClosedError, OSError) as error:
            if isinstance(error, OSError) and self.client.status == "running":
                raise
            raise ConnectionError(
                "The Dask cluster lost the fit: its scheduler has gone, or all workers that held a part of it. Connect "
                "again and call fit with the same checkpoint folder to go on from the last checkpoint."
            ) from error
        return results

    def _wait_for(self, futures: list[Any]) -> None:
        """Wait until futures are done; if there is nobody to do them, warn: workers may come, or not.

        Workers whose memory is nearly full take no tasks. If none of them works on anything, none will ever free some.
        """
        distributed, told, was_full = _distributed(), False, False
        while True:
            try:
                with self.client.as_current():
                    distributed.wait(futures, timeout=LONG_WAIT)
                return
            except distributed.CancelledError:  # who gathers them is told why
                return
            except TimeoutError:
                if not told and not self.client.nthreads():
                    warnings.warn(NO_WORKERS, RuntimeWarning, stacklevel=2)
                    told = True
                is_full = self._is_full
                if is_full and was_full:
                    raise AllPausedError from None
                was_full = is_full

    @property
    def _is_full(self) -> bool:
        """Whether all workers are paused, and none is at work."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        at_work = (worker["metrics"].get("task_counts", {}).get("executing", 0) for worker in workers)
        return bool(workers) and all(worker["status"] == "paused" for worker in workers) and not any(at_work)

    def _advice(self, killed: str) -> str:
        limit = self._memory_limit
        size = max(2**20, min(self.block_bytes // 4, limit // 40 if limit else self.block_bytes))
        each = f" ({limit / 2**30:.2f} GiB each)" if limit else ""
        return (
            f"Dask's workers {killed}ran out of memory{each}. Use smaller chunks, of about {size / 2**20:.0f} MiB: "
            f"X.rechunk({{0: 'auto', 1: -1}}, block_size_limit={size}) for a Dask array, or better where it is made or "
            f"stored, for to cut a large chunk it has to be held; DaskEngine(block_bytes={size}) for other data; or "
            "fewer threads for each worker, or a higher memory_limit of the workers."
        )

    def _share(self, shared: Shared) -> Any:
        """Return a future of shared arguments, the same for all blocks that come from one call."""
        known = getattr(shared, "future", None)
        if known is not None and known[0]() is self.client:
            return known[1]
        key, size = f"shared-{uuid4().hex}", size_of(shared.values)
        if size <= IN_GRAPH_BYTES:
            future = self.client.submit(dask_tasks.unwrap, Parcel(shared), key=key, pure=False)
        else:
            future = self.client.scatter(Parcel(shared), hash=False, broadcast=True)
        shared.future = (weakref.ref(self.client), future)  # type: ignore[attr-defined]
        return future

    def _with_here(self, shared: dict[str, Any]) -> dict[str, Any]:
        return {name: Here if value is self else value for name, value in shared.items()}

    @staticmethod
    def _are_computed(blocks: Sequence[Blocks | None]) -> bool:
        return not any(isinstance(block, ReadBlock | ComputedBlock) for b in blocks if b is not None for block in b)

    @property
    def _open_files(self) -> Files:
        if self._files is None:
            raise RuntimeError("A DaskEngine works within `with engine.running()`.")
        return self._files


def n_groups(n_threads: int) -> int:
    """Return how many tasks a function's work on all blocks is cut into."""
    return max(n_threads, min(TASKS_PER_THREAD * n_threads, ENOUGH_TASKS))


def _name(function: Callable[..., Any]) -> str:
    """Return the name under which the dashboard shows the work of a function."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("_<>").replace("_", "-")


def _distributed() -> Any:
    return optional("distributed", "dask")
