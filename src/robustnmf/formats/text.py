"""Tables of text: .csv, .tsv, .txt, also compressed by gzip."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import IO

from robustnmf.formats.cells import Footer, Numbers, Row
from robustnmf.formats.checks import check_size, refuse_key
from robustnmf.formats.errors import DataFileError
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.table_layout import find_layout
from robustnmf.formats.table_values import filled
from robustnmf.formats.text_files import Lines, decoded, guessed_encoding, known_encoding
from robustnmf.formats.text_writing import write_text

# Rows that are looked at to find the delimiter, the headings and the names; fewer if they are very long.
_OPENING = 200
_OPENING_CELLS = 2**17
_OPENING_CHARACTERS = 2**20

_WITH_COMMA = re.compile(r"[-+<]?\s*[0-9]+,[0-9]+([eE][-+]?[0-9]+)?")
_THOUSANDS = re.compile(r"[-+<]?\s*[1-9][0-9]{0,2}(,[0-9]{3})+")

_SUFFIXES = (".csv", ".tsv", ".txt")


def read_text(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a table of text."""
    refuse_key(path, options.key)
    check_size(path, (path.stat().st_size,), 1, options.max_bytes)
    encoding = options.encoding or known_encoding(path, options.max_bytes)
    try:
        with decoded(path, encoding, options.max_bytes) as file:
            return _read(path, file, encoding, (), options)
    except UnicodeDecodeError as error:
        if options.encoding is not None or encoding == "utf-16":
            found = f"it has bytes that are not {encoding} ({error.reason})"
            raise DataFileError(path, "a table of text", found, "Name its encoding with encoding.") from error
    guess = guessed_encoding(path, options.max_bytes)
    note = f"The text is not UTF-8 and was read as {guess}; encoding='latin-1', say, reads it otherwise."
    with decoded(path, guess, options.max_bytes) as file:
        return _read(path, file, guess, (note,), options)


def _read(path: Path, file: IO[str], encoding: str, notes: tuple[str, ...], options: ReadOptions) -> LabelledMatrix:
    lines = Lines(file)
    skipped = options.skip_rows or 0
    for _ in islice(lines, skipped):
        lines.row_is_over()
    opening = _opening_lines(lines)
    delimiter = _delimiter(opening, _suffix(path))
    widest = max((line.count(delimiter or " ") for line in opening), default=0)
    check_size(path, (widest,), 8, options.max_bytes)
    empty: list[int] = []
    rows, footer = _rows(path, opening, lines, delimiter, skipped, empty), Footer(options.skip_footer)
    rows = footer.above(rows)
    comments, first = _after_comments(path, rows)
    body = _opening_rows(first, rows)
    commas = delimiter == ";" or (delimiter != "," and _has_decimal_commas(body))
    layout = find_layout(path, comments, body, Numbers(options.missing_values, commas), options)
    numbers = Numbers(options.missing_values, commas)
    layout = replace(layout, notes=notes + layout.notes)
    matrix = filled(path, chain(body[layout.first :], rows), layout, numbers, options)
    n_empty = sum(line > body[layout.first].line for line in empty)
    notes = (f"{n_empty} empty rows within the table were left out.",) if n_empty else ()
    matrix = replace(matrix, notes=matrix.notes + notes + footer.notes)
    return matrix.with_about(delimiter=delimiter, encoding=encoding, decimal=numbers.mark or ".")


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _opening_lines(lines: Lines) -> list[str]:
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


def _opening_rows(first: Row, rows: Iterator[Row]) -> list[Row]:
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

    Of tab, semicolon and comma that which most lines have equally often; the first of them, if several do: commas come
    last because they may be decimal marks.
    """
    texts = [re.sub('"[^"]*"', "", line) for line in lines if line.strip() and not line.startswith("#")]
    counts = {mark: Counter(filter(None, (text.count(mark) for text in texts))) for mark in "\t;,"}
    frequent = max(counts, key=lambda mark: max(counts[mark].values(), default=0))
    if counts[frequent]:
        return frequent
    return {".csv": ",", ".tsv": "\t"}.get(suffix)


def _rows(
    path: Path, opening: Iterable[str], lines: Lines, delimiter: str | None, skipped: int, empty: list[int]
) -> Iterator[Row]:
    """Yield the rows of a table, of which some lines are read already; empty lines are none.

    Nor are delimiters with nothing between them, as workbooks write empty rows: their lines are added to `empty`.
    """
    texts = chain(opening, lines)
    if delimiter is None:
        for line, text in enumerate(texts, skipped + 1):
            lines.row_is_over()
            if cells := _between_spaces(text):
                yield Row(line, cells)
        return
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            lines.row_is_over()
            if any(map(str.strip, cells)):
                yield Row(skipped + reader.line_num, cells)
            elif len(cells) > 1:
                empty.append(skipped + reader.line_num)
    except csv.Error as error:
        found = f"line {skipped + reader.line_num} cannot be parted into cells ({error})"
        raise DataFileError(path, "a table of text", found, "Check the quotation marks in that line.") from error


def _has_decimal_commas(rows: Iterable[Row]) -> bool:
    """Return whether commas are decimal marks where nothing else says so: not all of them part thousands."""
    cells = {cell.strip() for row in rows for cell in row.cells if "," in cell}
    return any(_WITH_COMMA.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in cells)


def _between_spaces(text: str) -> list[str]:
    """Return the cells of a line between spaces; quotation marks hold together what they enclose, as R writes it."""
    if '"' not in text:
        return text.split()
    found = re.findall(r'"((?:[^"\\]|\\.|"")*)"(?=\s|$)|(\S+)', text)
    return [plain or re.sub(r'\\(.)|"(")', r"\1\2", quoted) for quoted, plain in found]


def _after_comments(path: Path, rows: Iterator[Row]) -> tuple[list[Row], Row]:
    """Return the rows at the top that are comments, and the first that is not."""
    comments: list[Row] = []
    for row in rows:
        if not row.cells[0].startswith("#"):
            return comments, row
        comments.append(row)
    raise DataFileError(path, "a table of text", "it has no rows", "Check that it is the right file.")


_WORDS = "a table of text", "Save it as comma-separated text in UTF-8."
FORMATS = (
    Format(
        "text",
        *_WORDS,
        read_text,
        tuple(f"{suffix}{packed}" for packed in ("", ".gz") for suffix in _SUFFIXES),
        has_words=True,
        is_table=True,
        write=write_text,
    ),
)
