"""Where a table of cells has its headings, units, names and numbers; the same for text and for workbooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from robustnmf.formats.cells import Numbers, Row
from robustnmf.formats.errors import DataFileError, shortened
from robustnmf.formats.options import ReadOptions


@dataclass(frozen=True)
class Layout:
    """Where the parts of a table are.

    Parameters
    ----------
    headings, units : list of str or None
        A cell for each column.
    labels : tuple of int
        Columns of text, that of the names first.
    numeric : tuple of int
        Columns of numbers.
    width : int
        Cells in each row.
    first : int
        Rows above the first row of values, of those that were looked at.
    notes : tuple of str
        What was guessed, in words.
    """

    headings: list[str] | None
    units: list[str] | None
    labels: tuple[int, ...]
    numeric: tuple[int, ...]
    width: int
    first: int
    notes: tuple[str, ...] = ()

    def heading(self, column: int) -> str:
        """Return the heading of a column, "" if it has none."""
        return "" if self.headings is None else self.headings[column].strip()


def find_layout(
    path: Path, comments: Sequence[Row], opening: Sequence[Row], numbers: Numbers, options: ReadOptions
) -> Layout:
    """Return the layout of a table by its first rows.

    Parameters
    ----------
    path : Path
        The file.
    comments : sequence of Row
        Rows above the others that are comments; the last may hold the headings.
    opening : sequence of Row
        The first rows of the table, at least one.
    numbers : Numbers
        Tells numbers from words.
    options : ReadOptions
        What is known of the layout.
    """
    start = 0 if options.skip_rows is not None else _preamble(opening, numbers)
    notes = (_preamble_note(opening, start),) if start else ()
    layout = _parts(path, comments if not start else (), opening[start:], numbers, options)
    layout = _with_flags_last(layout, opening[start:])
    layout = _chosen(path, replace(layout, first=layout.first + start, notes=notes + layout.notes), options)
    if len(layout.labels) > 1:
        kept = ", ".join(repr(_called(layout, column)) for column in layout.labels[1:6])
        more = "..." if len(layout.labels) > 6 else ""
        text = f"Columns of text are no features, and are kept beside the names: {kept}{more}."
        layout = replace(layout, notes=(*layout.notes, text))
    return layout


def _with_flags_last(layout: Layout, rows: Sequence[Row]) -> Layout:
    """Return the layout with columns of truth values behind other texts: they are no names."""
    cells = {column: _column(rows[layout.first :], column) - {""} for column in layout.labels}
    flags = [column for column in layout.labels if cells[column] and cells[column] <= {"true", "false"}]
    others = [column for column in layout.labels if column not in flags]
    return replace(layout, labels=(*others, *flags))


def _column(rows: Sequence[Row], column: int) -> set[str]:
    return {row.cells[column].strip().lower() for row in rows if column < len(row.cells)}


# --- Above the table --------------------------------------------------------------------------------------------------


def _preamble(rows: Sequence[Row], numbers: Numbers) -> int:
    """Return how many rows are above the table: those of an instrument, say, that name it and its settings.

    They are no rows of numbers as wide as the table, and either headings stand below them or they are words.
    """
    width = _width(rows)
    numeric = _numeric_columns([row for row in _lower_part(rows) if len(row.cells) == width], width, numbers)
    data = next((i for i, row in enumerate(rows) if _is_data(row, width, numeric, numbers)), 0)
    headings = [i for i in range(max(0, data - 2), data) if _is_heading(rows[i], width, numeric, numbers)]
    if data - 1 in headings:
        top = data - 2 if len(headings) == 2 and not _is_group(rows[data - 2], rows[data - 1], numeric) else data - 1
        return top
    above = [row.cells for row in rows[:data]]
    odd = all(any(map(numbers.is_word, cells)) and 2 * _filled(cells) <= width for cells in above)
    short = len(above) == 1 and len(above[0]) == width - 1  # as R writes headings
    return data if odd and not short else 0


def _width(rows: Sequence[Row]) -> int:
    """Return the number of cells that most rows have; of several numbers that are as frequent, the last one."""
    counts = Counter(len(row.cells) for row in rows)
    most = max(counts.values())
    return next(len(row.cells) for row in reversed(rows) if counts[len(row.cells)] == most)


def _lower_part(rows: Sequence[Row]) -> Sequence[Row]:
    return rows[-max(1, len(rows) // 3) :]


def _numeric_columns(rows: Sequence[Row], width: int, numbers: Numbers) -> list[int]:
    """Return the columns of which at most half of what is not missing are words: fewer words are mistakes."""
    return [column for column in range(width) if not _is_text([row.cells[column] for row in rows], numbers)]


def _is_text(cells: Sequence[str], numbers: Numbers) -> bool:
    known = list(filter(numbers.is_known, cells))
    return 2 * sum(map(numbers.is_word, known)) > len(known)


def _is_data(row: Row, width: int, numeric: Sequence[int], numbers: Numbers) -> bool:
    if len(row.cells) != width:
        return False
    cells = [row.cells[column] for column in numeric]
    found = sum(map(numbers.is_number, cells))
    return found > 0 and found >= sum(map(numbers.is_word, cells))


def _is_heading(row: Row, width: int, numeric: Sequence[int], numbers: Numbers) -> bool:
    """Return whether a row may hold headings or units: words above at least half of the numbers."""
    if len(row.cells) not in (width, width - 1) or not numeric:
        return False
    shift = width - len(row.cells)
    cells = [row.cells[column - shift] for column in numeric if column >= shift]
    return 2 * sum(map(numbers.is_heading, cells)) >= max(2, len(cells))


def _is_group(upper: Row, lower: Row, numeric: Sequence[int]) -> bool:
    """Return whether of two rows of words the lower one has the headings, and the upper one names groups of them."""
    if len(upper.cells) != len(lower.cells):
        return True
    above, below = ([row.cells[column] for column in numeric if column < len(row.cells)] for row in (upper, lower))
    return len(set(above)) < len(above) and len(set(below)) == len(below)


def _filled(cells: Sequence[str]) -> int:
    return sum(1 for cell in cells if cell.strip())


def _preamble_note(rows: Sequence[Row], count: int) -> str:
    lines = rows[count - 1].line
    left = f"Line {rows[0].line} was" if count == 1 else f"Lines {rows[0].line} to {lines} were"
    return f"{left} left out, above the table, as skip_rows={lines} does; skip_rows=0 leaves out nothing."


# --- Headings, units, names -------------------------------------------------------------------------------------------


def _parts(path: Path, comments: Sequence[Row], body: Sequence[Row], numbers: Numbers, options: ReadOptions) -> Layout:
    top, rest, header = body[0], body[1:], options.header
    width = _width((rest or body)[::-1])  # of rows that differ, the later ones are wrong
    commented = fits_headings(comments, len(top.cells))
    if commented is not None:
        rest, header = body, header is not False
    headings = list(top.cells) if commented is None else commented
    same = [row for row in rest or body if len(row.cells) == width]
    numeric = _numeric_columns(same, width, numbers)
    named = 0 not in numeric
    short = len(headings) == width - 1  # as R writes tables: no heading above the names
    if header is None:
        header = short or _holds_headings(path, body, numeric, numbers)
    if not header:
        width = _width(body)
        numeric = _numeric_columns([row for row in body if len(row.cells) == width], width, numbers)
        return Layout(None, None, _others(numeric, width), tuple(numeric), width, 0)
    # pandas and R write their index without a heading.
    named = named or short or (not headings[0].strip() and any(map(str.strip, headings)))
    headings = ["", *headings] if short else headings
    width = width if rest else len(headings)
    first = 0 if commented is not None else 1
    units, notes = _units(body[first:], [column for column in numeric if column or not named], numbers, options)
    if units is not None:
        below = [row for row in body[first + 1 :] if len(row.cells) == width]
        numeric = _numeric_columns(below, width, numbers) if below else numeric
    kept = tuple(column for column in numeric if column < width and (column or not named))
    return Layout(headings, units, _others(kept, width), kept, width, first + (units is not None), notes)


def _others(numeric: Sequence[int], width: int) -> tuple[int, ...]:
    known = set(numeric)
    return tuple(column for column in range(width) if column not in known)


def _units(
    rows: Sequence[Row], numeric: Sequence[int], numbers: Numbers, options: ReadOptions
) -> tuple[list[str] | None, tuple[str, ...]]:
    """Return the cells of the row of units, the first of some rows, if it is one, and what was guessed."""
    if not rows or options.units_row is False:
        return None, ()
    cells = list(rows[0].cells)
    if options.units_row:
        return cells, ()
    if len(rows) < 2 or max(numeric, default=0) >= len(cells):
        return None, ()
    if len(numeric) == 1 and _filled(cells) > 1:  # a name, and a mistake
        return None, ()
    units = [cells[column].strip() for column in numeric]
    words = [unit for unit in units if unit]
    if not all(map(numbers.is_word, words)) or not words or 2 * len(words) < len(numeric):
        return None, ()
    below = {row.cells[column].strip() for row in rows[1:] for column in numeric if column < len(row.cells)}
    # What occurs among the numbers as well, such as "n.a.", says that they are missing.
    if below & set(words) or not any(map(numbers.is_number, below)):
        return None, ()
    shown = ", ".join(repr(shortened(word, 20)) for word in words[:3])
    return cells, (f"Line {rows[0].line} was read as units ({shown} ...); units_row=False reads it as data.",)


def fits_headings(comments: Sequence[Row], width: int) -> list[str] | None:
    """Return the cells of the last comment if they can be headings of a table of this width."""
    if not comments:
        return None
    first, *others = comments[-1].cells
    cells = [first.lstrip("#"), *others]
    if cells[0] == "" and len(others) == width:  # "# a b", as numpy.savetxt writes it
        return others
    return cells if len(cells) in (width, width - 1) and len(cells) > 1 else None


def _holds_headings(path: Path, body: Sequence[Row], numeric: Sequence[int], numbers: Numbers) -> bool:
    """Return whether the first row holds headings: words above at least half of the numbers."""
    row, named = body[0], 0 not in numeric
    above = [row.cells[column] for column in numeric if column < len(row.cells)]
    cells = above if above and len(body) > 1 else row.cells[named:]
    words = [numbers.is_heading(cell) for cell in cells if numbers.is_known(cell)]
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


# --- Columns that the user names --------------------------------------------------------------------------------------


def _chosen(path: Path, layout: Layout, options: ReadOptions) -> Layout:
    """Return the layout with the column of the names, and without the columns, that the user wants."""
    titles = [layout.heading(column) for column in range(layout.width)]
    dropped = {column_place(path, titles, place, "drop_columns") for place in options.drop_columns}
    labels = [column for column in layout.labels if column not in dropped]
    numeric = [column for column in layout.numeric if column not in dropped]
    if options.index_column is not None:
        names = column_place(path, titles, options.index_column, "index_column")
        labels = [names, *(column for column in labels if column != names)]
        numeric = [column for column in numeric if column != names]
    return replace(layout, labels=tuple(labels), numeric=tuple(numeric))


def column_place(path: Path, titles: Sequence[str], wanted: str | int, option: str) -> int:
    """Return the place of a column that is named by its heading, or by its number from 1 on."""
    if isinstance(wanted, str) and titles.count(wanted.strip()) == 1:
        return titles.index(wanted.strip())
    number = int(wanted) if isinstance(wanted, int) or (wanted.isdecimal() and len(wanted) < 10) else 0
    if titles.count(str(wanted).strip()) == 0 and 1 <= number <= len(titles):
        return number - 1
    problem = "several columns have that heading" if titles.count(str(wanted).strip()) > 1 else "there is none"
    shown = ", ".join(repr(shortened(title, 20)) for title in titles[:12]) + (" ..." if len(titles) > 12 else "")
    expected = f"a table with one column {shortened(str(wanted))!r}, as {option} says"
    advice = f"Name one of its {len(titles)} columns by its heading, or by its number from 1 on: {shown}."
    raise DataFileError(path, expected, problem, advice)


def _called(layout: Layout, column: int) -> str:
    return layout.heading(column) or f"column {column + 1}"


def label_titles(layout: Layout) -> list[str]:
    """Return what the columns of text beside the names are called, each by another name."""
    titles: dict[str, None] = {}
    for column in layout.labels[1:]:
        title = _called(layout, column)
        titles[title if title not in titles else f"{title} ({column + 1})"] = None
    return list(titles)
