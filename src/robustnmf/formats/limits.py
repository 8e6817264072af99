"""What an array in a file costs to read, bounded by what it is worth: chunks, what they unpack to, what is not stored.

A shape that fits says little. Chunks of one value each cost kilobytes for eight bytes, a chunk is unpacked in full even
where the array is a corner of it, and what is not stored at all may be declared in a hundred bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from robustnmf.formats.checks import check_size
from robustnmf.formats.errors import DataFileError, times

SMALL = 2**26
"""Bytes that are never worth an error: 64 MiB."""

EXPANSION = 2**14
"""Bytes of values that one byte of a file may stand for, beyond `SMALL`; Deflate makes up to 1032."""

PER_STORED = 16
"""Chunks that an array may have for each that is stored, beyond a number that depends on the format."""

FEW_CHUNKS, SMALLEST_CHUNK = 2**14, 256
"""Of so few chunks none is too small to be streamed; of more, each must have some bytes, as it takes 0.2 ms in zarr."""

_AT_A_TIME = 1024
"""Chunks that are read at a time: libraries take kilobytes for each."""

_ROOM = 4
_VOLUME = 8
"""A chunk may be so many times as large as the array; all chunks together, that reach beyond its edges, so many times.

Chunks that are no longer than the array on any side never are: each side is less than doubled, and there are three.
"""


def _badly_chunked(path: str | Path, expected: str, found: str) -> DataFileError:
    advice = "Store it anew, in chunks of about 1 MiB, none larger than the array."
    return DataFileError(path, f"cut into {expected}", found, advice)


def check_expansion(path: str | Path, shape: Sequence[int], itemsize: int, stored: int) -> None:
    """Raise if a file declares much more than it holds: what is not stored is made up when it is read."""
    needed = math.prod(shape) * itemsize
    if needed > max(SMALL, EXPANSION * stored):
        raise DataFileError(
            path,
            f"a file that holds its values: no more than {EXPANSION} bytes of them for each of its own",
            f"it declares {times(shape)} values, {needed / 2**20:.0f} MiB, in {stored} bytes",
            "It is nearly empty, or made to fill the memory: check how it was written.",
        )


def room_for_chunk(shape: Sequence[int], itemsize: int, max_bytes: int) -> int:
    """Return how many bytes a chunk of an array may take when it is unpacked."""
    return min(max_bytes, max(SMALL, _ROOM * itemsize * math.prod(shape)))


def check_chunks(path: str | Path, shape: Sequence[int], chunks: Sequence[int], itemsize: int, max_bytes: int) -> None:
    """Raise if chunks, which are unpacked in full, are much larger than the array that they are parts of."""
    check_size(path, chunks, itemsize, max_bytes)
    size, room = math.prod(chunks) * itemsize, room_for_chunk(shape, itemsize, max_bytes)
    count = n_chunks(shape, chunks)
    if size > room:
        expected = f"chunks of no more than {room / 2**20:.0f} MiB, as the array is {times(shape)}"
        found = f"it has {count} chunks of {times(chunks)} values, {size / 2**20:.0f} MiB"
        raise _badly_chunked(path, expected, found)
    most = max(max_bytes, _VOLUME * itemsize * math.prod(shape))
    if count * size > most:
        expected = f"chunks of no more than {most / 2**30:.3g} GiB together, as the array is {times(shape)}"
        found = f"chunks of {times(chunks)} values have {count * size / 2**30:.3g} GiB"
        raise _badly_chunked(path, expected, found)


def check_small_chunks(path: str | Path, shape: Sequence[int], chunks: Sequence[int], itemsize: int) -> None:
    """Raise if there are many small chunks, each of which costs time whenever the array is read."""
    count, size = n_chunks(shape, chunks), math.prod(chunks) * itemsize
    if count > FEW_CHUNKS and size < SMALLEST_CHUNK:
        expected = f"chunks of at least {SMALLEST_CHUNK} bytes where there are more than {FEW_CHUNKS}"
        raise _badly_chunked(path, expected, f"it has {count} chunks of {times(chunks)} values, {size} bytes")


def check_count(
    path: str | Path, shape: Sequence[int], chunks: Sequence[int], count: int, stored: int, few: int
) -> None:
    """Raise if there are very many chunks: each costs time, even if it is empty or not stored."""
    most = few + PER_STORED * stored
    if count > most:
        expected = f"no more than {most} chunks ({few}, and {PER_STORED} for each that is stored)"
        raise _badly_chunked(path, expected, f"its {times(shape)} values have {count} chunks of {times(chunks)}")


def n_chunks(shape: Sequence[int], chunks: Sequence[int]) -> int:
    """Return the number of chunks."""
    return math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))


def slabs(shape: Sequence[int], chunks: Sequence[int], itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Yield the parts of an array that are read at a time: whole chunks, neither too many nor too large together."""
    left = max(1, min(_AT_A_TIME, SMALL // max(1, math.prod(chunks) * itemsize)))
    steps: list[int] = []
    for size, chunk in zip(reversed(shape), reversed(chunks), strict=True):
        taken = min(left, -(-size // chunk))
        left //= taken
        steps.insert(0, taken * chunk)
    sides = [range(0, size, step) for size, step in zip(shape, steps, strict=True)]
    for starts in product(*sides):
        yield tuple(slice(start, start + step) for start, step in zip(starts, steps, strict=True))
