"""What in a table may be no measurement: columns of dates and numbers of samples, rows of sums below the samples."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.errors import shortened
from robustnmf.formats.labelled_matrix import LabelledMatrix

# With fewer samples, whole numbers that rise by one may be measurements.
FEWEST_SAMPLES = 5
# So many rows may stand below the samples.
MOST_ROWS_BELOW = 10
# Names in a message.
NAMED = 5

_PARTS_OF_DATES = {
    "year": (1800, 2200),
    "month": (1, 12),
    "day": (1, 31),
    "doy": (1, 366),
    "week": (1, 53),
    "weekday": (1, 7),
}
"""Headings of whole numbers within some limits; zero is in none of them, so that counts of words are told apart."""

_NUMBERED = re.compile(r"(.*[ _-])?(date|time|datetime|timestamp|id|nr|no|number|index)\.?|.*[a-z]ID|.*[a-z]Id")
_DATE = re.compile(
    r"\W*\d[\d\s:./,+TZ-]*([AaPp]\.?[Mm]\.?)?|\d{1,2}\W?[^\W\d]{3,9}\W?\d{2,4}\b.*|[^\W\d]{3,9}\W\d{2,4}"
)
_SUMMARY = re.compile(
    r"(grand )?(mean|average|avg|median|min|minimum|max|maximum|sum|total|count|n|std|stdev|sd|cv)\.?:?"
    r"|(note|notes|source)\b.*",
    re.IGNORECASE,
)


def doubts(matrix: LabelledMatrix) -> list[str]:
    """Return what a user should look at in a table that was read, in words; nothing for most tables."""
    return [*_doubtful_columns(matrix), *_doubtful_rows(matrix.samples.names)]


# --- Columns ----------------------------------------------------------------------------------------------------------


def _doubtful_columns(matrix: LabelledMatrix) -> list[str]:
    n_samples, n_features = matrix.shape
    if n_samples < FEWEST_SAMPLES or n_features < 2:
        return []
    names = matrix.features.names or [""] * n_features
    found = [k for k in range(n_features) if _is_no_measurement(names[k].strip(), matrix.values[:, k])]
    if not found or len(found) == n_features:
        return []
    called = _shown([names[k] or f"column {k + 1}" for k in found])
    return [
        f"Columns of numbers look like dates or numbers of samples, and are features, {len(found)} in all: {called}. "
        "If they are no measurements, leave them out with drop_columns, or take one for the names with index_column."
    ]


def _is_no_measurement(name: str, column: NDArray[np.floating]) -> bool:
    """Return whether a column, (n_samples,), numbers or dates samples, by its heading and its values."""
    if not np.array_equal(column, np.floor(column)):  # NaN is not equal to itself
        return False
    if (np.diff(column) == 1).all() or _are_days(column):
        return True
    lowest, highest = _PARTS_OF_DATES.get(name.lower(), (1, 0))
    if lowest <= column.min() and column.max() <= highest:
        return True
    is_numbered = _NUMBERED.fullmatch(name) or _NUMBERED.fullmatch(name.lower())
    return is_numbered is not None and bool((np.diff(column) > 0).all())


def _are_days(column: NDArray[np.floating]) -> bool:
    """Return whether whole numbers are days such as 20040731."""
    if column.min() < 1800_01_01 or column.max() > 2200_12_31:
        return False
    months, days = column // 100 % 100, column % 100
    return bool(((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)).all())


# --- Rows -------------------------------------------------------------------------------------------------------------


def _doubtful_rows(names: Sequence[str] | None) -> list[str]:
    if names is None or len(names) < FEWEST_SAMPLES:
        return []
    last = names[-MOST_ROWS_BELOW - 1 :]
    # The last row that is like the others, by its date or because it is called like no summary.
    are_dated = sum(map(_is_date, names)) > len(names) - MOST_ROWS_BELOW - 1
    fits = [_is_date(name) if are_dated else _SUMMARY.fullmatch(name.strip()) is None for name in last]
    n_below = fits[::-1].index(True) if True in fits else 0
    if not n_below or 2 * n_below >= len(names):
        return []
    return [
        f"Rows at the end are called otherwise than the {len(names) - n_below} above them, and are samples, {n_below} "
        f"in all: {_shown(names[-n_below:])}. If they are sums or notes below the table, leave them out: "
        f"skip_footer={n_below} does so."
    ]


def _is_date(name: str) -> bool:
    return _DATE.fullmatch(name.strip()) is not None


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(shortened(name)) for name in names[:NAMED]) + (" ..." if len(names) > NAMED else "")
