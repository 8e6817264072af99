"""From the rows of a table to a matrix, once it is known where its parts are; the same for text and for workbooks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.cells import LIKE_A_NUMBER, Numbers, Row
from robustnmf.formats.checks import check_size
from robustnmf.formats.errors import DataFileError, shortened
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix, Source
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.table_layout import Layout, label_titles

HALF_LIMIT_UNCERTAINTY = 5 / 6
"""Uncertainty of an entry that is set to half its limit of detection, in units of the limit."""


class _Below(NamedTuple):
    """An entry below a limit of detection: its place among the values, the limit, and the line of the file."""

    place: int
    limit: float
    line: int


def filled(path: Path, rows: Iterable[Row], layout: Layout, numbers: Numbers, options: ReadOptions) -> LabelledMatrix:
    """Return the matrix of a table.

    Parameters
    ----------
    path : Path
        The file.
    rows : iterable of Row
        All rows of values.
    layout : Layout
        Which columns hold what.
    numbers : Numbers
        Turns cells into numbers.
    options : ReadOptions
        What becomes of entries below a limit, and how large the values may be.
    """
    values, below, texts = array("d"), list[_Below](), [list[str]() for _ in layout.labels]
    for row in rows:
        if len(row.cells) != layout.width:
            found = f"line {row.line} has {len(row.cells)}"
            advice = (
                "Correct the line, or leave it out: if it is above the table with skip_rows, below it with skip_footer."
            )
            raise DataFileError(path, f"a table with {layout.width} cells in each line", found, advice)
        for column, text in zip(layout.labels, texts, strict=True):
            text.append(row.cells[column].strip())
        for column in layout.numeric:
            number = numbers(row.cells[column])
            if number is None:
                limit = numbers.limit(row.cells[column])
                if limit is None:
                    raise _not_a_number(path, row, column, layout, len(values) < len(layout.numeric))
                below.append(_Below(len(values), limit, row.line))
                number = math.nan
            values.append(number)
        check_size(path, (len(values),), values.itemsize, options.max_bytes)
    if not values:
        advice = "Check the file, and that commas, semicolons or tabs part its cells."
        raise DataFileError(path, "a table of numbers", "it has no values beside headings and names", advice)
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, len(layout.numeric))
    uncertainties, notes = _below_limit(path, table, below, layout, options)
    source = Source(dtype=np.dtype(float), about=_written_again(layout))
    return LabelledMatrix(table, *_axes(layout, texts), uncertainties, source, layout.notes + notes)


def _axes(layout: Layout, texts: list[list[str]]) -> tuple[Axis, Axis]:
    """Return what is known of samples and features."""
    columns = dict(zip(label_titles(layout), texts[1:], strict=True))
    title = (layout.heading(layout.labels[0]) or None) if layout.labels else None
    headings = None if layout.headings is None else [layout.heading(column) for column in layout.numeric]
    units = None if layout.units is None else [layout.units[column].strip() for column in layout.numeric]
    return Axis(texts[0] if texts else None, title, columns=columns), Axis(headings, units=units)


def _written_again(layout: Layout) -> dict[str, Any]:
    """Return where the columns of text are among all that are kept, and what the row of units has there."""
    kept = {column: place for place, column in enumerate(sorted((*layout.labels, *layout.numeric)))}
    places = tuple(kept[column] for column in layout.labels)
    units = () if layout.units is None else tuple(layout.units[column].strip() for column in layout.labels)
    return {"label_places": places, "label_units": units}


def _not_a_number(path: Path, row: Row, column: int, layout: Layout, is_first: bool) -> DataFileError:
    heading = f" ({shortened(layout.heading(column))!r})" if layout.headings else ""
    cell = shortened(row.cells[column].strip())
    advice = "Correct the cell, or give its text as missing_value if the entry is missing."
    if is_first and layout.headings is None:
        advice += " If the line holds headings, set header to true."
    if is_first and layout.units is None:
        advice += " If it holds units, set units_row to true; if it is above the table, set skip_rows."
    if LIKE_A_NUMBER.fullmatch(cell):
        advice += " Decimal commas are read where no commas part the cells, and points and commas not together."
    found = f"the cell in line {row.line}, column {column + 1}{heading} is {cell!r}"
    return DataFileError(path, "a table of numbers", found, advice)


# --- Entries below a limit of detection -------------------------------------------------------------------------------


def _below_limit(
    path: Path, table: NDArray[Any], below: list[_Below], layout: Layout, options: ReadOptions
) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """Set entries below a limit in a table where they are NaN; return their uncertainties, and what was done."""
    if not below:
        return None, ()
    if options.below_limit == "error":
        raise _not_decided(path, below, layout)
    if options.below_limit == "missing":
        return None, (f"{len(below)} entries below a limit of detection are missing.",)
    places = np.array([entry.place for entry in below])
    limits = _known_limits(path, np.array([entry.limit for entry in below]), places % table.shape[1], layout)
    uncertainties = np.full(table.shape, np.nan)
    table.reshape(-1)[places] = limits / 2
    uncertainties.reshape(-1)[places] = HALF_LIMIT_UNCERTAINTY * limits
    return uncertainties, (f"{len(below)} entries below a limit of detection were set to half of it.",)


def _known_limits(path: Path, limits: NDArray[Any], features: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return limits, where a word tells none the smallest of its feature."""
    smallest = np.full(len(layout.numeric), np.inf)
    np.fmin.at(smallest, features, limits)
    known = np.where(np.isnan(limits), smallest[features], limits)
    unknown = np.unique(features[np.isinf(known)])
    if unknown.size:
        shown = ", ".join(_heading(layout, int(feature)) for feature in unknown[:5]) + (" ..." * (unknown.size > 5))
        expected = "a table that tells the limit of each entry below one, if below_limit is 'half'"
        found = (
            f"{np.isinf(known).sum()} entries such as BDL have no limit, and no '<0.05' is in their column ({shown})"
        )
        advice = "Write the limit into the cells, such as '<0.05', or set below_limit to 'missing'."
        raise DataFileError(path, expected, found, advice)
    return known


def _heading(layout: Layout, feature: int) -> str:
    column = layout.numeric[feature]
    return repr(shortened(layout.heading(column) or f"column {column + 1}"))


def _not_decided(path: Path, below: list[_Below], layout: Layout) -> DataFileError:
    feature = below[0].place % len(layout.numeric)
    where = f"the first in line {below[0].line}, column {layout.numeric[feature] + 1} ({_heading(layout, feature)})"
    found = f"{len(below)} entries are below a limit of detection, such as '<0.05' or 'BDL', {where}"
    advice = (
        "Set below_limit to 'half' (half the limit, with an uncertainty), or set below_limit to 'missing'; if their "
        "text means something else, give it as missing_value."
    )
    return DataFileError(path, "a table of numbers", found, advice)
