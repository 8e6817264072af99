"""Blocks that are not in memory: read from their source, or computed, wherever a function needs them.

A block is one of

- an array,
- a `ReadBlock`: a source, which returns its array (or several, the block being one of them) when it is called,
- a `ComputedBlock`: a function of other blocks, one whose `Traits` are recomputed,
- a block of results that another engine keeps elsewhere.

`resolve` turns any of them into an array. The data itself is so never in memory but for the blocks that are worked on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import array_api_compat.numpy as numpy_xp
import numpy as np

from robustnmf.engines.protocol import Engine, block_function, traits_of
from robustnmf.utils.arrays import Array, Blocks, moved, to_host, zip_blocks
from robustnmf.utils.entries import Entries

Source: TypeAlias = Callable[[], Any]
"""Returns the arrays of a block; can be pickled, and returns the same whenever and wherever it is called."""


class LazyBlock:
    """A block that is not an array yet; what is known of it is its shape and dtype."""

    shape: Any
    dtype: Any

    def __len__(self) -> int:
        return int(self.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes that the block takes as an array."""
        size: int = self.dtype.itemsize
        for length in self.shape:
            size *= int(length)
        return size


@dataclass(frozen=True, eq=False)
class ReadBlock(LazyBlock):
    """A block that its source returns."""

    source: Source
    part: int | None
    """Which of the arrays that the source returns; None if it returns one."""
    shape: tuple[int, ...]
    dtype: Any


class Here:
    """Stands for the engine that works on a block, among shared arguments."""


class Shared:
    """Keyword arguments that a function is called with on every block."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def at(self, engine: Engine) -> "Shared":
        """Return them with an engine in its place."""
        return Shared({name: engine if value is Here else value for name, value in self.values.items()})


@dataclass(frozen=True, eq=False)
class Call:
    """A function and what it is to be called with; blocks that come from one call share it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    shared: Any
    """`Shared`, or the `Slot` that stands for it."""


@dataclass(frozen=True, eq=False)
class ComputedBlock(LazyBlock):
    """A block that a recomputed function makes of others."""

    call: Call
    part: int | None
    shape: tuple[int, ...]
    dtype: Any


def computed_blocks(
    function: Callable[..., Any],
    blocks: Sequence[Blocks | None],
    shared: dict[str, Any],
    as_dtype: Callable[[Any], Any] = np.dtype,
) -> Any:
    """Return blocks of what the function would return, a tuple of them if that is a tuple.

    `as_dtype` returns a type of numbers as the library of the engine calls it.
    """
    common = Shared(shared)
    lists: dict[int | None, list[ComputedBlock]] = {}
    n_parts = traits_of(function).parts
    for arguments in zip_blocks(blocks):
        call, first = Call(function, arguments, common), next(a for a in arguments if a is not None)
        dtype = as_dtype(shared.get("dtype", first.dtype))
        for part in [None] if n_parts is None else range(n_parts):
            lists.setdefault(part, []).append(ComputedBlock(call, part, tuple(first.shape), dtype))
    return lists[None] if n_parts is None else tuple(lists.values())


@dataclass(frozen=True)
class Slot:
    """What stands for a result, or for shared arguments, that are handed over together with a block."""

    number: int
    index: int | None = None
    part: int | None = None

    def of(self, results: Sequence[Any]) -> Any:
        """Return what it stands for."""
        value = results[self.number]
        value = value if self.index is None else value[self.index]
        return value if self.part is None else value[self.part]


def resolve(block: Any, loaded: dict[int, Any], engine: Engine, results: Sequence[Any] = ()) -> Any:
    """Return the array that a block stands for.

    Parameters
    ----------
    loaded : dict
        What has been read and computed for this block: data and weights may come from one source.
    engine : Engine
        The engine that works on the block.
    results : sequence
        What slots stand for.
    """
    if isinstance(block, Slot):
        return block.of(results)
    if isinstance(block, ReadBlock):
        if id(block.source) not in loaded:
            loaded[id(block.source)] = block.source()
        value = loaded[id(block.source)]
        return value if block.part is None else value[block.part]
    if isinstance(block, ComputedBlock):
        if id(block.call) not in loaded:
            function, shared = block.call.function, block.call.shared
            arguments = [resolve(argument, loaded, engine, results) for argument in block.call.arguments]
            shared = (shared.of(results) if isinstance(shared, Slot) else shared).at(engine)
            loaded[id(block.call)] = call(function, arguments, shared.values, engine)
        value = loaded[id(block.call)]
        return value if block.part is None else value[block.part]
    return block


def call(function: Callable[..., Any], arguments: Sequence[Any], shared: dict[str, Any], engine: Engine) -> Any:
    """Call a function of blocks with arrays where the engine works, or on the host if it is written for NumPy."""
    if engine.xp is numpy_xp:
        return function(*arguments, **shared, xp=numpy_xp)
    if traits_of(function).on_host and not engine.has_tiles:  # those are on the device already
        return function(*moved(arguments, to_host), **moved(shared, to_host), xp=numpy_xp)
    return function(*moved(arguments, engine.place), **moved(shared, engine.place), xp=engine.xp)


def is_lazy(blocks: Blocks | None) -> bool:
    """Return whether any of the blocks is not an array."""
    return blocks is not None and any(isinstance(block, LazyBlock) for block in blocks)


def read_blocks(sources: Sequence[Source], lengths: Sequence[int], n_columns: int, dtype: Any, part: int | None) -> Any:
    """Return a block for each source, with the part of what it returns."""
    return [
        ReadBlock(source, part, (length, n_columns), dtype) for source, length in zip(sources, lengths, strict=True)
    ]


def _chosen_of_stored(rows: Entries, chosen: slice, *, xp: Any) -> Array:
    return rows[chosen].dense()


@block_function(stored=_chosen_of_stored)
def chosen_rows(rows: Array, chosen: slice, *, xp: Any) -> Array:
    """Return a copy of some of the rows; a view would keep the whole block."""
    return xp.asarray(rows[chosen], copy=True)


@block_function(on_host=True)
def same(block: Array, *, xp: Any) -> Array:
    """Return the block: mapped over blocks that are read, it keeps them."""
    return block
