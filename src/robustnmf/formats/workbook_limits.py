"""What a workbook becomes when it is read, found out before: calamine takes memory for whole rectangles of cells.

A cell far away from the others costs a file some bytes, and a long text is stored once for all cells that hold it.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from xml.parsers import expat

from robustnmf.formats.checks import check_size
from robustnmf.formats.errors import DataFileError, OversizedError
from robustnmf.formats.packed import check_members
from robustnmf.formats.text_files import most_unpacked

FEW_CELLS, PER_CELL = 2**21, 64
"""Cells of a sheet, empty ones included, that are never too many, and those for each that is not empty."""

CELL_BYTES = 32
"""What a cell takes in memory."""

MAX_TEXT = 2**28
"""How long the texts in the cells of a sheet may be together, in bytes: 256 MiB."""

_PIECE = 2**16
_REFERENCE = re.compile(r"([A-Z]{1,3})([0-9]{1,7})")


def check_workbook(path: Path, max_bytes: int) -> None:
    """Raise if a zipped workbook (.xlsx, .ods) unpacks to too much, or if its cells would take too much memory."""
    left = most_unpacked(path.stat().st_size, max_bytes)
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        check_members(archive)
        shared = _SharedTexts()
        # Texts that cells share come first, whatever the order in the file: sheets refer to them.
        for entry in sorted(archive.infolist(), key=lambda entry: "sharedstrings" not in entry.filename.lower()):
            if entry.file_size > left:
                raise OversizedError(f"it unpacks to more than {most_unpacked(path.stat().st_size, max_bytes)} bytes")
            left -= entry.file_size
            _check_part(path, _inflated(file, entry), entry.filename, shared, max_bytes)


def _inflated(file: IO[bytes], entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield what is in a part of a zip file, in pieces; raise if it is more than the zip file declares."""
    file.seek(entry.header_offset)
    head = file.read(30)
    file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little"), 1)
    packed, left = entry.compress_size, entry.file_size
    inflate = zlib.decompressobj(-15) if entry.compress_type == zipfile.ZIP_DEFLATED else None
    while packed > 0 and (content := file.read(min(packed, _PIECE))):
        packed -= len(content)
        while content:
            piece = content if inflate is None else inflate.decompress(content, _PIECE)
            content = b"" if inflate is None else inflate.unconsumed_tail
            left -= len(piece)
            if left < 0:
                raise OversizedError(f"{entry.filename} unpacks to more than the {entry.file_size} bytes it declares")
            yield piece


def _check_part(path: Path, pieces: Iterator[bytes], name: str, shared: _SharedTexts, max_bytes: int) -> None:
    """Read a part of a workbook, if it is one of XML, and raise if it holds a sheet that takes too much."""
    first = next(pieces, b"")
    parts: Any = [first, *([] if first.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") else pieces)]
    if len(parts) > 1 or not first.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        if any(b"sheetData" in piece for piece in parts):
            raise ValueError(f"{name} is no XML, and holds a sheet")
        return
    sheet = _Sheet(path, shared, max_bytes)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler, parser.EndElementHandler = sheet.start, sheet.end
    parser.CharacterDataHandler = sheet.text
    parser.EntityDeclHandler = _refuse_entity
    parser.Parse(first, False)
    for piece in pieces:
        parser.Parse(piece, False)
    parser.Parse(b"", True)
    sheet.check()


def _refuse_entity(*_: Any) -> None:
    raise ValueError("it defines entities, which workbooks do not")


class _SharedTexts:
    """Lengths of the texts that cells share."""

    def __init__(self) -> None:
        self.lengths: list[int] = []


class _Sheet:
    """Counts the cells of a sheet, empty ones included, and the length of their texts."""

    def __init__(self, path: Path, shared: _SharedTexts, max_bytes: int) -> None:
        self.path, self.shared, self.max_bytes = path, shared, max_bytes
        self.rows = self.columns = self.stored = self.length = 0
        self.row = self.column = 0
        self.is_shared = self.in_value = False
        self.repeats = self.copies = 1
        self.value = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take the beginning of an element; rows and cells of .xlsx and of .ods have different names."""
        tag = name.rsplit(" ", 1)[-1]
        if tag == "row":
            self.row, self.column = int(attributes.get("r", self.row + 1)), 0
        elif tag == "c":
            self._cell(attributes)
        elif tag == "v" or (tag == "is" and not self.is_shared):
            self.in_value, self.value = True, ""
        elif tag == "si":
            self.shared.lengths.append(0)
        elif tag == "t":
            self.in_value, self.value = True, ""
        elif tag == "table":
            self.row = self.column = 0
        elif tag == "table-row":
            self.copies = _repeated(attributes, "number-rows-repeated")
            self.column = 0
        elif tag in ("table-cell", "covered-table-cell"):
            self.repeats = _repeated(attributes, "number-columns-repeated")
            self.column += self.repeats
            if any(key.endswith("value-type") for key in attributes):
                self._store(self.row + self.copies, self.column, self.repeats * self.copies)
        elif tag == "p":
            self._store(self.row + self.copies, self.column, 0)
            self.in_value, self.value = True, ""

    def _cell(self, attributes: dict[str, str]) -> None:
        self.is_shared = attributes.get("t") == "s"
        found = _REFERENCE.fullmatch(attributes.get("r", ""))
        if found is not None:
            self.row, self.column = int(found[2]), 0
            for letter in found[1]:
                self.column = 26 * self.column + ord(letter) - 64
        elif "r" in attributes:
            raise ValueError(f"cell {attributes['r'][:20]!r}")
        else:
            self.column += 1
        self._store(self.row, self.column, 1)

    def _store(self, rows: int, columns: int, count: int) -> None:
        self.rows, self.columns = max(self.rows, rows), max(self.columns, columns)
        self.stored += count

    def end(self, name: str) -> None:
        """Take the end of an element."""
        tag = name.rsplit(" ", 1)[-1]
        if tag == "table-row":
            self.row += self.copies
        elif tag in ("v", "t", "p") and self.in_value:
            self.in_value = False
            self._add_text(tag)
        elif tag in ("sheetData", "table"):
            self.check()

    def _add_text(self, tag: str) -> None:
        length = len(self.value)
        if tag == "t" and self.shared.lengths:
            self.shared.lengths[-1] += length
        elif tag == "v" and self.is_shared:
            place = int(self.value)
            length = self.shared.lengths[place] if 0 <= place < len(self.shared.lengths) else 0
        elif tag == "p":
            length *= self.repeats * self.copies
        self.length += length
        if self.length > MAX_TEXT + 2 * self.path.stat().st_size:
            raise OversizedError(f"its cells have more than {MAX_TEXT} characters of text together, the most read")

    def text(self, content: str) -> None:
        """Take some characters."""
        if self.in_value:
            self.value += content

    def check(self) -> None:
        """Raise if the sheet takes too much memory."""
        check_size(self.path, (self.rows, self.columns), CELL_BYTES, self.max_bytes)
        if self.rows * self.columns > max(FEW_CELLS, PER_CELL * self.stored):
            raise DataFileError(
                self.path,
                f"a workbook whose sheets are tables: of {PER_CELL} cells at least one is not empty",
                f"one has {self.rows} rows and {self.columns} columns, and {self.stored} cells are not empty",
                "Remove what is far away from the table, or save the table as text.",
            )


def _repeated(attributes: dict[str, str], name: str) -> int:
    return max(1, next((int(value) for key, value in attributes.items() if key.endswith(name)), 1))
