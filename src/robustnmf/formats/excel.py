"""Workbooks: .xlsx and .xls of Excel, .ods of LibreOffice; one sheet is a table like one of text."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from robustnmf.formats.cells import Footer, Numbers, Row
from robustnmf.formats.checks import check_size, refuse_key
from robustnmf.formats.compound_files import MAGIC, check_compound
from robustnmf.formats.errors import DataFileError, shortened
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.table_layout import find_layout
from robustnmf.formats.table_values import filled
from robustnmf.formats.table_writing import table_rows
from robustnmf.formats.workbook_limits import CELL_BYTES, check_workbook
from robustnmf.utils.extras import optional

_OPENING, _OPENING_CELLS = 200, 2**17
"""Rows, and cells, that are looked at to find headings and names."""

MAX_XLS = (65_536, 256)
"""Rows and columns of a sheet in .xls."""

MAX_XLSX = (1_048_576, 16_384)
"""Rows and columns of a sheet in .xlsx."""

_ZIP = b"PK\x03\x04"

_ISO = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?)?")


def read_workbook(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a sheet of a workbook."""
    refuse_key(path, options.key)
    calamine = optional("python_calamine", "excel", "python-calamine")
    _check(path, options.max_bytes)
    with calamine.CalamineWorkbook.from_path(path) as book:
        name, rows = _sheet(path, book, options)
    check_size(path, (len(rows), len(rows[0])), 8, options.max_bytes)
    # Truth values beside numbers are flags; alone they are a mask.
    has_numbers = any(type(cell) in (int, float) for _, cells in rows for cell in cells)
    timed = {j for _, cells in rows for j, cell in enumerate(cells) if _has_time(cell)}
    kept = [Row(line, [_text(cell, j in timed, has_numbers) for j, cell in enumerate(cells)]) for line, cells in rows]
    footer = Footer(options.skip_footer)
    has_dates = any(isinstance(cell, datetime.date) for _, cells in rows for cell in cells)
    matrix = _matrix(path, list(footer.above(kept)), options).with_about(sheet=name, dates=has_dates)
    return replace(matrix, notes=matrix.notes + footer.notes)


def _check(path: Path, max_bytes: int) -> None:
    """Raise if a workbook is too large, or would become so; .xls has no room for more than `MAX_XLS`."""
    check_size(path, (path.stat().st_size,), 1, max_bytes)
    with path.open("rb") as file:
        is_zip = file.read(4) == _ZIP
    if is_zip:
        check_workbook(path, max_bytes)
    else:
        check_compound(path)


def _sheet(path: Path, book: Any, options: ReadOptions) -> tuple[str, list[tuple[int, list[Any]]]]:
    """Return the name of the sheet to read, and its rows that are not empty, with the number of each."""
    names = list(book.sheet_names)
    if options.sheet is not None:
        name = _named(path, names, options.sheet)
        return name, _rows(path, book.get_sheet_by_name(name), options) or _empty(path, name)
    found = {name: rows for name in names if (rows := _rows(path, book.get_sheet_by_name(name), options))}
    if len(found) != 1:
        expected = "a workbook with one sheet that is not empty, or sheet must name one"
        problem = f"there are {len(found)} ({_shown(list(found))})" if found else "there is none"
        raise DataFileError(path, expected, problem, "Name one of them with sheet, or give its number from 1 on.")
    return next(iter(found.items()))


def _named(path: Path, names: Sequence[str], wanted: str | int) -> str:
    if isinstance(wanted, str) and wanted in names:
        return wanted
    number = int(wanted) if isinstance(wanted, int) or (wanted.isdecimal() and len(wanted) < 10) else 0
    if 1 <= number <= len(names):
        return names[number - 1]
    expected = f"a workbook with the sheet {shortened(str(wanted))!r}"
    raise DataFileError(path, expected, f"it has {_shown(names)}", "Name one of them, or give its number from 1 on.")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(shortened(name)) for name in names[:12]) + (" ..." if len(names) > 12 else "")


def _empty(path: Path, name: str) -> Any:
    raise DataFileError(path, "a table of numbers", f"sheet {shortened(name)!r} is empty", "Name another sheet.")


def _rows(path: Path, sheet: Any, options: ReadOptions) -> list[tuple[int, list[Any]]]:
    """Return the rows of a sheet that are not empty, without those that are to be skipped."""
    check_size(path, (sheet.height, sheet.width), CELL_BYTES, options.max_bytes)
    start = 0 if sheet.start is None else sheet.start[0]
    rows = enumerate(sheet.to_python(skip_empty_area=True), start + 1)
    skipped = options.skip_rows or 0
    return [(line, cells) for line, cells in rows if line > skipped and any(cell != "" for cell in cells)]


def _has_time(cell: Any) -> bool:
    """Return whether a cell is a time that is not the beginning of a day."""
    return isinstance(cell, datetime.datetime) and cell.time() != datetime.time()


def _text(cell: Any, is_timed: bool, has_numbers: bool) -> str:
    """Return a cell as text: dates as ISO 8601 writes them, with the time where a column has some, whole numbers."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return str(cell) if has_numbers else str(int(cell))
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 2**53 else repr(cell)
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ") if is_timed else str(cell.date())
    if isinstance(cell, datetime.date) and is_timed:  # so midnight is read
        return f"{cell} {datetime.time()}"
    return str(cell)


def _matrix(path: Path, rows: list[Row], options: ReadOptions) -> LabelledMatrix:
    if not rows:
        found = f"all its rows are left out, as skip_footer={options.skip_footer} says"
        raise DataFileError(path, "a table of numbers", found, "Give a smaller number.")
    opening = list(islice(rows, max(2, min(_OPENING, _OPENING_CELLS // len(rows[0].cells)))))
    numbers = Numbers(options.missing_values, commas=False)
    layout = find_layout(path, (), opening, numbers, options)
    below = [*opening[layout.first :], *rows[len(opening) :]]
    n_empty = below[-1].line - below[0].line + 1 - len(below) if below else 0
    if n_empty:
        layout = replace(layout, notes=(*layout.notes, f"{n_empty} empty rows within the table were left out."))
    return filled(path, below, layout, numbers, options)


def write_xlsx(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a matrix as a workbook with one sheet, of the name that it had; dates are dates if some were."""
    openpyxl = optional("openpyxl", "excel")
    n_rows, n_columns = matrix.shape
    labels = len(matrix.samples.columns) + 1
    if n_rows + 2 > MAX_XLSX[0] or n_columns + labels > MAX_XLSX[1]:
        raise ValueError(
            f"A sheet of Excel has at most {MAX_XLSX[0]} rows and {MAX_XLSX[1]} columns; the table has {n_rows} and "
            f"{n_columns + labels}. Write it as .csv or .parquet."
        )
    book = openpyxl.Workbook(write_only=True)
    about: Any = {} if matrix.source is None else matrix.source.about
    sheet = book.create_sheet(about.get("sheet") or "Sheet1")
    for row in table_rows(matrix):
        cells = [_cell(openpyxl, sheet, value, about.get("dates", False)) for value in row]
        # An empty row is no sample.
        sheet.append(cells if any(cell is not None for cell in cells) else ["NA"])
    with temporary.open("wb") as file:
        book.save(file)


def _cell(openpyxl: Any, sheet: Any, value: Any, may_be_date: bool) -> Any:
    """Return what openpyxl is given; a text that begins with "=" is no formula."""
    if not isinstance(value, str):
        return None if math.isnan(value) else str(value) if math.isinf(value) else value
    if not value:
        return None
    if may_be_date and (date := _date(value)) is not None:
        return date
    cell = openpyxl.cell.WriteOnlyCell(sheet, value=value)
    cell.data_type = "s"
    return cell


def _date(text: str) -> datetime.date | None:
    """Return a text of ISO 8601 as a date, or a time of a day; None for other texts, and before the time of Excel."""
    if not _ISO.fullmatch(text):
        return None
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.year < 1900 else time if " " in text else time.date()


_WORDS = "a workbook of Excel or LibreOffice", "Save it as .xlsx, or the sheet as comma-separated text."
FORMATS = (
    Format(
        "excel",
        *_WORDS,
        read_workbook,
        (".xlsx", ".xlsm", ".xls", ".ods"),
        (MAGIC,),
        members=("xl/workbook.xml",),
        has_words=True,
        is_table=True,
        write=write_xlsx,
        suffix_written=".xlsx",
    ),
)
