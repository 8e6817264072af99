"""The pages of a Parquet file: how large each becomes, which Arrow believes and no metadata vouches for.

A page begins with a header, a struct in Thrift's compact protocol whose second and third fields are its size when
unpacked and in the file (https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

_UNPACKED, _PACKED = 2, 3
_MAX_HEADER = 2**16
"""Longest header of a page, in bytes; they have some dozens, but for examples of values."""
_MAX_DEPTH = 8

# Types of Thrift, by their numbers.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12


def page_sizes(file: IO[bytes], column: Any) -> Iterator[int]:
    """Yield the size of each page, when unpacked, of a column in a group of rows (a `ColumnChunkMetaData`)."""
    place, dictionary = int(column.data_page_offset), column.dictionary_page_offset
    if column.has_dictionary_page and dictionary:
        place = min(place, int(dictionary))
    end = place + int(column.total_compressed_size)
    while place < end:
        file.seek(place)
        header = _Header(file.read(_MAX_HEADER))
        sizes = header.struct()
        if min(sizes.get(_UNPACKED, -1), sizes.get(_PACKED, -1)) < 0:
            raise ValueError("page without a size")
        yield sizes[_UNPACKED]
        place += header.place + sizes[_PACKED]


class _Header:
    """Reads a header from the bytes that it begins with."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Return the whole numbers among the fields of a struct."""
        if depth > _MAX_DEPTH:
            raise ValueError("header of a page with too many parts inside each other")
        numbers: dict[int, int] = {}
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self._signed()
            if head & 15 in _INTEGERS:
                numbers[field] = self._signed()
            else:
                self._pass(head & 15, depth)
        return numbers

    def _pass(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE):  # of a field, the type is the value
            return
        if kind == _STRUCT:
            self.struct(depth + 1)
        elif kind in _INTEGERS:
            self._signed()
        elif kind in (_BYTE, _DOUBLE):
            self.place += 1 if kind == _BYTE else 8
        elif kind == _BINARY:
            length = self._number()  # which moves the place as well
            self.place += length
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(self._number() if head >> 4 == 15 else head >> 4):
                self._pass(_BYTE if head & 15 in (_TRUE, _FALSE) else head & 15, depth + 1)
        else:
            raise ValueError(f"header of a page with a part of unknown type {kind}")

    def _byte(self) -> int:
        if self.place >= len(self.content):
            raise ValueError("header of a page that does not end")
        self.place += 1
        return self.content[self.place - 1]

    def _number(self) -> int:
        """Return a number of seven bits in each byte, the low ones first."""
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def _signed(self) -> int:
        """Return a number whose lowest bit is its sign."""
        number = self._number()
        return (number >> 1) ^ -(number & 1)
