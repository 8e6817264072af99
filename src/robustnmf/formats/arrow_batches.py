"""The batches of rows in a file of Arrow (Feather): how many rows each has, and how large its buffers become.

What is compressed begins with its size, which Arrow believes. The places of the buffers are in FlatBuffers, see
https://github.com/apache/arrow/blob/main/format/ (File.fbs, Message.fbs).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

MAGIC = b"ARROW1"
_MAX_METADATA = 2**26
"""Longest metadata of a batch, or of the file, in bytes."""
_DICTIONARY, _RECORDS = 2, 3


class Batch(NamedTuple):
    """A batch of rows, or of words that rows refer to."""

    n_rows: int
    sizes: tuple[int, ...]
    """Bytes of its buffers, unpacked."""
    is_dictionary: bool


def batches(path: Path) -> Iterator[Batch]:
    """Yield what is declared of each batch of a file."""
    with path.open("rb") as file:
        file.seek(-len(MAGIC) - 4, 2)
        end = file.tell()
        (length,) = struct.unpack("<i", file.read(4))
        if not 0 < length <= min(end, _MAX_METADATA) or file.read(len(MAGIC)) != MAGIC:
            raise ValueError("it does not end as a file of Arrow")
        file.seek(end - length)
        footer = _Table.root(file.read(length))
        for field in (2, 3):  # dictionaries, records
            for offset, metadata, body in footer.structs(field, "<qi4xq"):
                if min(offset, metadata, body) < 0 or metadata > _MAX_METADATA or offset + metadata + body > end:
                    raise ValueError("a batch lies outside of the file")
                yield _batch(file, offset, metadata)


def _batch(file: IO[bytes], offset: int, length: int) -> Batch:
    file.seek(offset)
    content = file.read(length)
    start = 8 if content[:4] == b"\xff\xff\xff\xff" else 4  # before version 0.15 without a mark
    message = _Table.root(content[start:])
    kind, records = message.number(1, "<B"), message.table(2)
    if kind == _DICTIONARY:
        records = None if records is None else records.table(1)
    if kind not in (_DICTIONARY, _RECORDS) or records is None:
        raise ValueError("a batch holds no records")
    buffers = list(records.structs(2, "<qq"))
    if records.table(3) is None:
        sizes = [size for _, size in buffers]
    else:
        sizes = [_unpacked(file, offset + length + place, size) for place, size in buffers]
    n_rows = records.number(0, "<q")
    if min([n_rows, *sizes]) < 0:
        raise ValueError("a batch with a negative size")
    return Batch(n_rows, tuple(sizes), kind == _DICTIONARY)


def _unpacked(file: IO[bytes], place: int, size: int) -> int:
    """Return the size that a compressed buffer declares; -1 is one that is not compressed."""
    if size < 8:
        return max(0, size)
    file.seek(place)
    (unpacked,) = struct.unpack("<q", file.read(8))
    return size - 8 if unpacked == -1 else int(unpacked)


class _Table:
    """A table of FlatBuffers: fields by their numbers."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place = content, place
        (back,) = struct.unpack_from("<i", content, place)
        self.fields = place - back
        if self.fields < 0:
            raise ValueError("metadata of Arrow that points before its beginning")
        (self.size,) = struct.unpack_from("<H", content, self.fields)

    @classmethod
    def root(cls, content: bytes) -> _Table:
        """Return the table that some bytes begin with."""
        return cls(content, struct.unpack_from("<I", content)[0])

    def _field(self, number: int) -> int | None:
        entry = 4 + 2 * number
        if entry + 2 > self.size:
            return None
        (offset,) = struct.unpack_from("<H", self.content, self.fields + entry)
        return self.place + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        """Return a number, 0 if it is not there."""
        place = self._field(field)
        return 0 if place is None else int(struct.unpack_from(kind, self.content, place)[0])

    def table(self, field: int) -> _Table | None:
        """Return a table inside, None if it is not there."""
        place = self._field(field)
        return None if place is None else _Table(self.content, place + self.number(field, "<I"))

    def structs(self, field: int, kind: str) -> Iterator[tuple[int, ...]]:
        """Yield the structs of a vector."""
        place = self._field(field)
        if place is None:
            return
        start = place + self.number(field, "<I")
        (count,) = struct.unpack_from("<I", self.content, start)
        size = struct.calcsize(kind)
        if start + 4 + count * size > len(self.content):
            raise ValueError("metadata of Arrow that is cut short")
        for i in range(count):
            yield struct.unpack_from(kind, self.content, start + 4 + i * size)
