"""How a file is to be read."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

MAX_BYTES = 8 * 2**30
"""Largest table that is read unless the caller says otherwise, in bytes: 8 GiB."""

Samples = Literal["rows", "frames", "pixels"]
BelowLimit = Literal["error", "half", "missing"]
Negative = Literal["error", "clip", "missing"]
Colour = Literal["keep", "grey", "error"]


@dataclass(frozen=True)
class ReadOptions:
    """How a file is to be read.

    Parameters
    ----------
    key : str or None
        Name of the array, in a file that may hold several. By default the only one of two dimensions or more; single
        rows and columns do not count beside larger arrays.
    missing_value : float, str, sequence of these, or None
        What stands for a missing entry besides NaN: numbers, and in text tables words.
    header : bool or None
        Whether the first line of a text table holds headings. By default it does if at least half of its cells are
        not numbers, or if the cell above the names is empty.
    transpose : bool
        Exchange samples and features.
    samples : {"rows", "frames", "pixels"} or None
        What the samples are, in an array of more than two axes: the points of the first axis ("rows"), of the axis of
        time, depth or else the first one ("frames"), or pixels with all that is known of them. Where a file does not
        say which axes are space, that is all but the last one. None takes pixels where wavelengths are known, else
        frames; what was guessed is in the notes.
    sample_axes : sequence of int or None
        Axes of the array that are samples, instead of `samples`.
    max_bytes : int or None
        Largest size of the values as floats (of a sparse matrix, of those that are stored), of a text file, and of
        whatever is unpacked on the way to the values; by default 8 GiB.
    encoding : str or None
        Encoding of a text table, such as "latin-1". By default UTF-8, or UTF-16 if the file begins with its mark; for
        what is neither it is guessed.
    skip_rows : int or None
        Rows above the table, empty ones and comments included, that are left out. By default rows above the headings
        that do not look like a part of the table.
    skip_footer : int
        Rows below the table that are left out: sums and notes. A model does not remember it.
    units_row : bool or None
        Whether the row below the headings holds units. By default it does if none of its cells is a number and the
        rows below have numbers.
    index_column : str, int or None
        Heading, or number from 1 on, of the column that holds the names of the samples. By default the first column of
        text, or one without a heading.
    drop_columns : sequence of str and int
        Headings, or numbers from 1 on, of columns that are left out.
    below_limit : {"error", "half", "missing"}
        What becomes of entries below the limit of detection, such as "<0.05" or "BDL". "half" is half the limit, with
        an uncertainty of 5/6 of the limit (Polissar et al., J. Geophys. Res. 103, 1998); a word has the smallest limit
        of its column.
    negative : {"error", "clip", "missing"} or None
        What becomes of negative entries, of blank-corrected data, say: "clip" sets them to zero. None leaves them as
        they are: a fit refuses them, unless their weight is zero.
    sheet : str, int or None
        Name, or number from 1 on, of a sheet in a workbook. By default the only one that is not empty.
    colour : {"keep", "grey", "error"}
        What becomes of images and movies in colour: each colour of a pixel is a feature, they become grey by ITU-R
        601, or they are refused.
    """

    key: str | None = None
    missing_value: float | str | Sequence[float | str] | None = None
    header: bool | None = None
    transpose: bool = False
    samples: Samples | None = None
    sample_axes: tuple[int, ...] | None = None
    max_bytes: int = MAX_BYTES
    encoding: str | None = None
    skip_rows: int | None = None
    skip_footer: int = 0
    units_row: bool | None = None
    index_column: str | int | None = None
    drop_columns: Sequence[str | int] = ()
    below_limit: BelowLimit = "error"
    negative: Negative | None = None
    sheet: str | int | None = None
    colour: Colour = "keep"

    def __post_init__(self) -> None:
        if self.max_bytes is None:
            object.__setattr__(self, "max_bytes", MAX_BYTES)
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, Integral) or self.max_bytes < 1:
            raise ValueError(
                f"max_bytes must be a positive integer or None; got {self.max_bytes!r}. 2**30 stands for 1 GiB."
            )
        if self.samples is not None and self.samples not in get_args(Samples):
            raise ValueError(f"samples must be 'rows', 'frames', 'pixels' or None; got {self.samples!r}.")
        if self.colour not in get_args(Colour):
            raise ValueError(f"colour must be 'keep', 'grey' or 'error'; got {self.colour!r}.")
        if self.sample_axes is not None:
            object.__setattr__(self, "sample_axes", _axes(self.sample_axes))
        self._check_missing_value()
        self._check_tables()

    def _check_missing_value(self) -> None:
        for value in self.missing_values:
            if isinstance(value, bool) or not isinstance(value, str | Real):
                raise ValueError(f"missing_value must be a number, a text, or several of them; got {value!r}.")

    def _check_tables(self) -> None:
        """Check what concerns tables of text and workbooks, and negative entries."""
        _check_choice("below_limit", self.below_limit, get_args(BelowLimit))
        _check_choice("negative", self.negative, (*get_args(Negative), None))
        for name in ("header", "units_row"):
            _check_choice(name, getattr(self, name), (True, False, None))
        if self.skip_rows is not None and not (_is_whole(self.skip_rows) and self.skip_rows >= 0):
            raise ValueError(f"skip_rows must be a number of rows, 0 or more, or None; got {self.skip_rows!r}.")
        if not (_is_whole(self.skip_footer) and self.skip_footer >= 0):
            raise ValueError(f"skip_footer must be a number of rows, 0 or more; got {self.skip_footer!r}.")
        if self.encoding is not None:
            _check_encoding(self.encoding)
        dropped = (self.drop_columns,) if isinstance(self.drop_columns, str | int) else tuple(self.drop_columns or ())
        object.__setattr__(self, "drop_columns", dropped)
        places = {"index_column": (self.index_column,), "sheet": (self.sheet,), "drop_columns": dropped}
        for name, given in places.items():
            for place in given:
                if not (place is None or isinstance(place, str) or (_is_whole(place) and place >= 1)):
                    raise ValueError(f"{name} must be a name, or a number from 1 on; got {place!r}.")

    @property
    def missing_values(self) -> tuple[float | str, ...]:
        """All that stands for a missing entry."""
        given = self.missing_value
        if given is None:
            return ()
        return (given,) if isinstance(given, str | float | int) else tuple(given)


def _axes(given: int | Sequence[int]) -> tuple[int, ...]:
    axes = (given,) if isinstance(given, Integral) else tuple(given)  # type: ignore[arg-type]
    if not all(isinstance(axis, Integral) and not isinstance(axis, bool) for axis in axes):
        raise ValueError(f"sample_axes must be numbers of axes, such as (0, 1); got {given!r}.")
    return tuple(int(axis) for axis in axes)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def _check_encoding(encoding: Any) -> None:
    try:
        # Others, such as "rot13" and "zip", turn text into text, or unpack bytes.
        is_known = codecs.lookup(encoding)._is_text_encoding
    except (LookupError, TypeError, ValueError):
        is_known = False
    if not is_known:
        raise ValueError(f"encoding must be one that Python knows, such as 'latin-1' or 'cp1252'; got {encoding!r}.")
