"""What a Dask cluster is asked to do: tasks, their arguments and results.

A task is a function and a group of blocks. Blocks that workers have are handed over by Dask, in the order of the slots
that stand for them; all others the worker reads or computes. Everything here but the `Compiler` runs on workers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.engines.dask.files import Shaped
from robustnmf.engines.dask.workers import Inside
from robustnmf.engines.lazy import ComputedBlock, LazyBlock, ReadBlock, Shared, Slot, call, resolve
from robustnmf.utils.arrays import Array, add, moved, to_host
from robustnmf.utils.files import write_array

# Results of a task up to this size, and shared arguments, travel with what is said about them: it saves a round trip.
TINY_BYTES = 2**14


@dataclass(frozen=True, eq=False)
class FutureBlock(LazyBlock):
    """A block of results in the memory of the workers."""

    future: Any
    """A list with the results of a group, or if there is no index the block itself."""
    index: int | None
    part: int | None
    shape: tuple[int, ...]
    dtype: Any
    depth: int = 0
    """Length of the chain of results that it was made of, since it was last truncated."""
    keepers: frozenset[Any] = frozenset()
    """Keep the files that it can be made from again."""
    value: Any = None
    """A copy on the client, if it is tiny."""


def history(blocks: Iterable[Any]) -> tuple[int, frozenset[Any]]:
    """Return the longest chain of results behind some blocks, and what keeps the files that it begins with."""
    depth, keepers = 0, frozenset[Any]()
    for block in blocks:
        if isinstance(block, FutureBlock):
            depth, keepers = max(depth, block.depth), keepers | block.keepers
        elif isinstance(block, ReadBlock) and isinstance(block.source, Shaped):
            keepers |= {block.source.keeper}
        elif isinstance(block, ComputedBlock):
            behind, its_keepers = history(block.call.arguments)
            depth, keepers = max(depth, behind), keepers | its_keepers
    return depth, keepers


# --- Arguments --------------------------------------------------------------------------------------------------------


class Parcel:
    """Keeps Dask from looking for tasks inside of an argument."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def __getitem__(self, index: Any) -> Any:
        return self.content[index]


class Compiler:
    """Turns blocks into what a worker can resolve, and collects the futures that it needs for that."""

    def __init__(self, share: Callable[[Shared], Any]) -> None:
        self.futures: list[Any] = []
        self._share = share
        self._slots: dict[Any, int] = {}
        self._calls: dict[int, Any] = {}

    def slot(self, future: Any) -> Slot:
        """Return what stands for a future."""
        if future.key not in self._slots:
            self._slots[future.key] = len(self.futures)
            self.futures.append(future)
        return Slot(self._slots[future.key])

    def shared(self, shared: Shared) -> Any:
        """Return shared arguments, or what stands for them unless they are tiny."""
        return Shared(shared.values) if size_of(shared.values) <= TINY_BYTES else self.slot(self._share(shared))

    def reduce(self, block: Any) -> Any:
        """Return the block with slots in place of futures."""
        if isinstance(block, FutureBlock):
            return replace(self.slot(block.future), index=block.index, part=block.part)
        if isinstance(block, ComputedBlock):
            if id(block.call) not in self._calls:
                arguments = tuple(self.reduce(argument) for argument in block.call.arguments)
                shared = self.shared(block.call.shared)
                self._calls[id(block.call)] = replace(block.call, arguments=arguments, shared=shared)
            return replace(block, call=self._calls[id(block.call)])
        return block


def size_of(value: Any) -> int:
    """Return the bytes of the arrays in shared arguments, roughly."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return sum(size_of(getattr(value, name)) for name in getattr(value, "__dataclass_fields__", ()))


# --- On the worker ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A function and the blocks of a group that it is to be called on."""

    function: Callable[..., Any]
    arguments: list[tuple[Any, ...]]
    shared: Any
    """`Shared`, or the slot that stands for it."""
    start: int
    inside: Inside
    options: dict[str, Any]

    def results(self, futures: Sequence[Any]) -> Iterator[Any]:
        """Yield what the function returns for each block."""
        futures = [_opened(value) for value in futures]
        shared = self.shared.of(futures) if isinstance(self.shared, Slot) else self.shared
        with self.inside.engine() as engine:
            values = shared.at(engine).values
            loaded: dict[int, Any] = {}
            for row in self.arguments:
                sources = set(_sources(row))  # consecutive blocks may be parts of one chunk, which is read once
                loaded = {key: value for key, value in loaded.items() if key in sources}
                arguments = [resolve(argument, loaded, engine, futures) for argument in row]
                yield moved(call(self.function, arguments, values, engine), to_host)


def _sources(blocks: Iterable[Any]) -> Iterator[int]:
    """Yield the identity of each source that some blocks are read from."""
    for block in blocks:
        if isinstance(block, ReadBlock):
            yield id(block.source)
        elif isinstance(block, ComputedBlock):
            yield from _sources(block.call.arguments)


def _opened(value: Any) -> Any:
    """Return shared arguments out of their parcel; anything else as it is."""
    return value.content if isinstance(value, Parcel) and isinstance(value.content, Shared) else value


def arrays(task: Task, futures: list[Any]) -> list[Any]:
    """Return what the function makes of each block."""
    return list(task.results(futures))


def map_over_blocks(task: Task, futures: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return what the function makes of each block, and a report on that."""
    kept = list(task.results(futures))
    return kept, _report(kept)


def sum_over_blocks(task: Task, futures: list[Any]) -> Any:
    """Return the sum of what the function makes of the blocks."""
    return add_up(task.results(futures))


def map_and_sum_over_blocks(task: Task, futures: list[Any]) -> tuple[list[Any], list[Any], Any]:
    """Return the first of what the function makes of each block, a report on that, and the sum of the second."""
    kept, total = [], None
    for result, part in task.results(futures):
        kept.append(result)
        total = part if total is None else add(total, part)
    return kept, _report(kept), total


def write_blocks(task: Task, futures: list[Any]) -> int:
    """Write each block to a file of its own; one that is there already is the same."""
    written = 0
    for i, block in enumerate(task.results(futures)):
        path = Path(task.options["path"]) / f"{task.start + i}.npy"
        write_array(path, block)
        written += block.nbytes
    return written


def concatenate(parts: list[Any], futures: list[Any], skip: int, n_rows: int) -> Array:
    """Return some of the rows of consecutive blocks."""
    futures = [_opened(value) for value in futures]
    with Inside().engine() as engine:
        rows = np.concatenate([resolve(part, {}, engine, futures) for part in parts])
    return np.ascontiguousarray(rows[skip : skip + n_rows])


def add_up(parts: Any, _: Any = None) -> Any:
    """Return the sum of numbers, arrays, or tuples of them, in their order."""
    total = None
    for part in parts:
        total = part if total is None else add(total, part)
    return total


def take(made: tuple[Any, ...], which: int) -> Any:
    """Return a part of what a task has made, as a result of its own."""
    return made[which]


def _report(results: list[Any]) -> list[Any]:
    """Return shape and dtype of each result, or of each part of it, and those themselves that are tiny together."""
    n_parts = len(results[0]) if isinstance(results[0], tuple) else None
    if n_parts is None:
        return _about(results)
    return [list(about) for about in zip(*(_about([r[i] for r in results]) for i in range(n_parts)), strict=True)]


def _about(results: list[Any]) -> list[tuple[tuple[int, ...], Any, Any]]:
    is_tiny = sum(np.asarray(result).nbytes for result in results) <= TINY_BYTES
    return [(np.shape(r), np.asarray(r).dtype, r if is_tiny else None) for r in results]


def unwrap(parcel: Parcel) -> Any:
    """Return shared arguments, such that Dask keeps them."""
    return parcel.content
