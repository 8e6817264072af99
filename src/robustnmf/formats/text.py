"""Tables of text: .csv, .tsv, .txt."""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from robustnmf.formats.checks import check_size, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix
from robustnmf.formats.options import ReadOptions

MISSING_WORDS = frozenset({"", "na", "nan", "null"})
"""Cells of a text table that are missing entries, in lower case."""

# Numbers that may have commas or spaces between thousands: to be refused, but not to be taken for names.
_LIKE_A_NUMBER = re.compile(r"[-+]?[0-9][0-9., ]*")

# Rows that are looked at to find the delimiter, the headings and the names; fewer if they are very long.
_OPENING = 50
_OPENING_CELLS = 2**17
_OPENING_CHARACTERS = 2**20

_MAX_ROW = 2**26
"""Longest row of a table, in characters: 64 Mi. Each cell takes many times the memory of its characters."""


class _Row(NamedTuple):
    """A row of a text table and the line of the file where it ends."""

    line: int
    cells: list[str]


class _Layout(NamedTuple):
    """Where headings and names are."""

    headings: list[str] | None
    named: bool
    width: int


class _Numbers:
    """Turns cells into numbers; `missing` are further words for a missing entry.

    Where the delimiter is the semicolon, the decimal mark may be a comma, the same in all cells.
    """

    def __init__(self, missing: Iterable[float | str], delimiter: str | None) -> None:
        self.missing = frozenset(word.strip() for word in missing if isinstance(word, str))
        self.commas = delimiter == ";"
        self.mark = ""

    def __call__(self, cell: str) -> float | None:
        """Return the number in a cell, NaN for a missing entry, None for anything else."""
        try:
            number = float(cell.replace(",", ".") if self.commas else cell)
        except ValueError:
            cell = cell.strip()
            return math.nan if cell.lower() in MISSING_WORDS or cell in self.missing else None
        # Python reads 1_000 as a number, other programs do not: it is a name.
        return None if "_" in cell or (self.commas and self._mixes_marks(cell)) else number

    def _mixes_marks(self, cell: str) -> bool:
        """Return whether a decimal mark is another one than before: then one of them parts thousands."""
        mark = "," if "," in cell else "." if "." in cell else ""
        self.mark = self.mark or mark
        return mark not in ("", self.mark)


class _Lines:
    """The lines of a text file, as long as rows are not too long."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.used = file, 0

    def __iter__(self) -> Iterator[str]:
        while line := self.file.readline(_MAX_ROW + 1):
            self.used += len(line)
            if self.used > _MAX_ROW:
                raise OversizedError(f"it has a row of more than {_MAX_ROW} characters, the most that is read")
            yield line

    def row_is_over(self) -> None:
        """Count from here on: a row may have several lines, with quotation marks around their ends."""
        self.used = 0


def read_text(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a table of text."""
    refuse_key(path, options.key)
    check_size(path, (path.stat().st_size,), 1, options.max_bytes)
    with path.open(encoding=_encoding(path), newline="") as file:
        lines = _Lines(file)
        opening = _opening_lines(lines)
        delimiter = _delimiter(opening, path.suffix.lower())
        widest = max((line.count(delimiter or " ") for line in opening), default=0)
        check_size(path, (widest,), 8, options.max_bytes)
        rows = _rows(path, opening, lines, delimiter)
        comments, first = _after_comments(path, rows)
        body = _opening_rows(first, rows)
        layout = _layout(path, comments, body, _Numbers(options.missing_values, delimiter), options.header)
        # A comment line with headings stands above the body, other headings are its first row.
        skipped = 1 if layout.headings is not None and not _fits(comments, len(first.cells)) else 0
        numbers = _Numbers(options.missing_values, delimiter)
        return _filled(path, chain(body[skipped:], rows), layout, numbers, options.max_bytes)


def _encoding(path: Path) -> str:
    """Return the encoding of a text: UTF-8 unless it starts with the mark of UTF-16, as Excel's "Unicode text" does."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _opening_lines(lines: _Lines) -> list[str]:
    """Return the first lines of a text, as many as there are comments and some more."""
    opening, seen, length = [], 0, 0
    for line in lines:
        lines.row_is_over()
        opening.append(line)
        length += len(line)
        seen += bool(line.strip()) and not line.startswith("#")
        if seen == _OPENING or (seen > 1 and length > _OPENING_CHARACTERS):
            break
    return opening


def _opening_rows(first: _Row, rows: Iterator[_Row]) -> list[_Row]:
    """Return the first rows of a table: the one that is given and some more, two at least if there are."""
    opening, cells = [first], len(first.cells)
    for row in islice(rows, _OPENING - 1):
        opening.append(row)
        cells += len(row.cells)
        if cells > _OPENING_CELLS:
            break
    return opening


def _delimiter(lines: Iterable[str], suffix: str) -> str | None:
    """Return what parts the cells of a table; None stands for spaces.

    The first of tab, semicolon, comma that is equally frequent in all lines; commas come last because they may be
    decimal marks. If lines differ, what is found in most of them.
    """
    texts = [re.sub('"[^"]*"', "", line) for line in lines if line.strip() and not line.startswith("#")]
    counts = {mark: [text.count(mark) for text in texts] for mark in "\t;,"}
    for mark, count in counts.items():
        if count and count[0] and len(set(count)) == 1:
            return mark
    frequent = max(counts, key=lambda mark: sum(map(bool, counts[mark])))
    if any(counts[frequent]):
        return frequent
    return {".csv": ",", ".tsv": "\t"}.get(suffix)


def _rows(path: Path, opening: Iterable[str], lines: _Lines, delimiter: str | None) -> Iterator[_Row]:
    """Yield the rows of a table, of which some lines are read already; empty lines are none."""
    texts = chain(opening, lines)
    if delimiter is None:
        for line, text in enumerate(texts, 1):
            lines.row_is_over()
            if cells := text.split():
                yield _Row(line, cells)
        return
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            lines.row_is_over()
            if len(cells) > 1 or any(map(str.strip, cells)):
                yield _Row(reader.line_num, cells)
    except csv.Error as error:
        found = f"line {reader.line_num} cannot be parted into cells ({error})"
        raise DataFileError(path, "a table of text", found, "Check the quotation marks in that line.") from error


def _after_comments(path: Path, rows: Iterator[_Row]) -> tuple[list[_Row], _Row]:
    """Return the rows at the top that are comments, and the first that is not."""
    comments: list[_Row] = []
    for row in rows:
        if not row.cells[0].startswith("#"):
            return comments, row
        comments.append(row)
    raise DataFileError(path, "a table of text", "it has no rows", "Check that it is the right file.")


def _fits(comments: Sequence[_Row], width: int) -> list[str] | None:
    """Return the cells of the last comment if they can be headings of a table of this width."""
    if not comments:
        return None
    first, *others = comments[-1].cells
    cells = [first.lstrip("#"), *others]
    if cells[0] == "" and len(others) == width:  # "# a b", as numpy.savetxt writes it
        return others
    return cells if len(cells) in (width, width - 1) and len(cells) > 1 else None


def _layout(
    path: Path, comments: Sequence[_Row], body: Sequence[_Row], numbers: _Numbers, header: bool | None
) -> _Layout:
    top, rest = body[0], body[1:]
    width = len((rest or body)[0].cells)
    headings = _fits(comments, len(top.cells))
    if headings is not None:
        rest = body
        header = header is not False
    else:
        headings = top.cells
    words = _words([row.cells[0] for row in rest or body], numbers)
    named = 2 * sum(words) > len(words)  # fewer words are mistakes, to be reported as such
    short = len(headings) == width - 1  # as R writes tables: no heading above the names
    if header is None:
        header = short or _holds_headings(path, body, named, numbers)
    if not header:
        return _Layout(None, named, len(body[0].cells))
    # pandas and R write their index without a heading.
    named = named or short or (not headings[0].strip() and any(map(str.strip, headings)))
    return _Layout(headings if short or not named else headings[1:], named, width if rest else len(headings))


def _words(cells: Iterable[str], numbers: _Numbers) -> list[bool]:
    """Return of each cell that is not missing whether it is a word; 1,234.5 is none even if it cannot be read."""
    known = [(cell, number) for cell in cells if (number := numbers(cell)) is None or not math.isnan(number)]
    return [number is None and not _LIKE_A_NUMBER.fullmatch(cell.strip()) for cell, number in known]


def _holds_headings(path: Path, body: Sequence[_Row], named: bool, numbers: _Numbers) -> bool:
    row = body[0]
    words = _words(row.cells[named:], numbers)
    if any(words):
        return 2 * sum(words) >= len(words)
    column = [below.cells[0] for below in body[1:]]
    if not row.cells[0].strip() and (named or _counts(column, 0) or _counts(column, 1)):
        return True
    values = [number for number in map(numbers, row.cells[named:]) if number is not None]
    rising = named and all(a < b for a, b in pairwise(values))
    if len(values) > 2 and (rising or _counts(row.cells, 0)):
        expected = "a table whose headings can be told from its values"
        found = f"line {row.line} has {'a name and rising numbers' if rising else 'the numbers from 0 on'}"
        advice = "Set header to true if they are headings, to false if they are values."
        raise DataFileError(path, expected, found, advice)
    return False


def _counts(cells: Sequence[str], start: int) -> bool:
    """Return whether cells are start, start + 1 ..., as pandas and R number what has no name."""
    return len(cells) > 0 and [cell.strip() for cell in cells] == [str(start + i) for i in range(len(cells))]


def _filled(path: Path, rows: Iterable[_Row], layout: _Layout, numbers: _Numbers, max_bytes: int) -> LabelledMatrix:
    first, width = int(layout.named), layout.width
    values = array("d")
    names = []
    for row in rows:
        if len(row.cells) != width:
            found = f"line {row.line} has {len(row.cells)}"
            raise DataFileError(path, f"a table with {width} cells in each line", found, "Correct the line.")
        if layout.named:
            names.append(row.cells[0].strip())
        for place in range(first, width):
            number = numbers(row.cells[place])
            if number is None:
                raise _not_a_number(path, row, place, layout, len(values) < width - first)
            values.append(number)
        check_size(path, (len(values),), values.itemsize, max_bytes)
    if not values:
        advice = "Check the file, and that commas, semicolons or tabs part its cells."
        raise DataFileError(path, "a table of numbers", "it has no values beside headings and names", advice)
    headings = None if layout.headings is None else [heading.strip() for heading in layout.headings]
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, width - first)
    return LabelledMatrix(table, Axis(names if layout.named else None), Axis(headings))


def _not_a_number(path: Path, row: _Row, place: int, layout: _Layout, is_first: bool) -> DataFileError:
    heading = f" ({shortened(layout.headings[place - layout.named].strip())!r})" if layout.headings else ""
    cell = shortened(row.cells[place].strip())
    advice = "Correct the cell, or give its text as missing_value if the entry is missing."
    if is_first and layout.headings is None:
        advice += " If the line holds headings, set header to true."
    if _LIKE_A_NUMBER.fullmatch(cell):
        advice += " Decimal commas are read where semicolons part the cells, and points and commas not together."
    found = f"the cell in line {row.line}, column {place + 1}{heading} is {cell!r}"
    return DataFileError(path, "a table of numbers", found, advice)


_WORDS = "a table of text in UTF-8", "Save it as comma-separated text in UTF-8."
FORMATS = (Format("text", *_WORDS, read_text, (".csv", ".tsv", ".txt"), has_words=True),)
