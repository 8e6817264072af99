"""Compound files, in which .xls lies: that their chains of sectors end, for calamine follows them wherever they lead.

See [MS-CFB], https://learn.microsoft.com/openspecs/windows_protocols/ms-cfb.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_END = 0xFFFFFFFE
_MINI_SECTOR = 64
_STREAM, _ROOT = 2, 5


def check_compound(path: Path) -> None:
    """Raise ValueError if a chain of sectors has no end, leads out of the file, or is shorter than its stream."""
    with path.open("rb") as file:
        header = file.read(512)
        (shift,) = struct.unpack_from("<H", header, 30)
        if header[:8] != MAGIC or shift not in (9, 12):
            raise ValueError("no compound file")
        sectors = _Sectors(file, 1 << shift, path.stat().st_size)
        n_tables, folder = struct.unpack_from("<II", header, 44)
        cutoff, mini, _, further, n_further = struct.unpack_from("<IIIII", header, 56)
        if n_further or n_tables > 109 or further < _END - 4:
            raise ValueError("a compound file of more than 109 tables of sectors")
        table = sectors.numbers(struct.unpack_from(f"<{n_tables}I", header, 76))
        mini_table = sectors.numbers(chain(table, mini))
        content = sectors.content(chain(table, folder))
    for entry in range(0, len(content) - 127, 128):
        (kind,) = struct.unpack_from("<B", content, entry + 66)
        start, size = struct.unpack_from("<IQ", content, entry + 116)
        if kind not in (_STREAM, _ROOT) or not size:
            continue
        is_mini = kind == _STREAM and size < cutoff
        room = _MINI_SECTOR if is_mini else sectors.size
        if room * len(chain(mini_table if is_mini else table, start)) < size % 2**32:
            raise ValueError("a stream that is shorter than it declares")


def chain(table: Sequence[int], start: int) -> list[int]:
    """Return the sectors of a chain; raise ValueError if it has no end."""
    found: list[int] = []
    seen = set[int]()
    while start < _END:
        if start in seen or start >= len(table):
            raise ValueError("a chain of sectors without an end")
        seen.add(start)
        found.append(start)
        start = table[start]
    return found


class _Sectors:
    """The sectors of a file."""

    def __init__(self, file: IO[bytes], size: int, length: int) -> None:
        self.file, self.size, self.length = file, size, length

    def content(self, places: Sequence[int]) -> bytes:
        """Return the bytes of some sectors."""
        parts = []
        for place in places:
            start = max(512, self.size) + place * self.size
            if start >= self.length:
                raise ValueError("a sector outside of the file")
            self.file.seek(start)
            parts.append(self.file.read(self.size))
        return b"".join(parts)

    def numbers(self, places: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers in some sectors."""
        content = self.content(places)
        return struct.unpack(f"<{len(content) // 4}I", content[: len(content) // 4 * 4])
