"""Checks of what is read from a file that hold for all formats, and arrays as matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.axes import ArrayAxes, sample_axes
from robustnmf.formats.errors import DataFileError, shortened, times
from robustnmf.formats.labelled_matrix import ArrayLayout, LabelledMatrix, Source
from robustnmf.formats.options import ReadOptions

MAX_AXES = 6
"""Most axes of an array that is read."""


class Found(NamedTuple):
    """An array in a file, not yet read; no dtype if it is not an array of numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None

    def __str__(self) -> str:
        return f"{times(self.shape) or 'scalar'} {shortened(str(self.dtype or 'not numbers'))}"


def float_type(dtype: np.dtype[Any] | None) -> type[np.float64] | type[np.float32] | None:
    """Return the dtype in which numbers are handed on, or None for what is not a real number."""
    if dtype is None or dtype.kind not in "buif":
        return None
    return np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64


def check_size(path: str | Path, shape: Sequence[int], itemsize: int, max_bytes: int) -> None:
    """Raise if values of a declared shape would not fit; to be called before memory is taken."""
    needed = math.prod(shape) * itemsize
    if needed > max_bytes:
        expected, found = (
            f"no larger than {max_bytes / 2**30:.3g} GiB",
            f"{times(shape)} values, {needed / 2**30:.3g} GiB",
        )
        advice = "Read a part of it, or raise max_bytes if the memory is there."
        raise DataFileError(path, expected, f"it declares {found}", advice)


def check_array(path: Path, name: str, found: Found, max_bytes: int) -> None:
    """Raise unless a declared array holds real numbers, has axes of which it is known which are samples, and fits."""
    what = f"the array {shortened(name)!r}" if name else "the array"
    kind = float_type(found.dtype)
    if kind is None:
        given = "not numeric" if found.dtype is None else f"of type {shortened(str(found.dtype))}"
        raise DataFileError(path, "a table of real numbers", f"{what} is {given}", "Convert it to floats.")
    if not 2 <= len(found.shape) <= MAX_AXES or min(found.shape) < 1:
        expected = "an array (samples, features) or a stack of images (n, rows, columns)"
        advice = "Reshape it, or name another array with key."
        raise DataFileError(path, expected, f"{what} has shape {found.shape}", advice)
    check_size(path, found.shape, np.dtype(kind).itemsize, max_bytes)


def choose(path: Path, found: Mapping[str, Found], options: ReadOptions) -> str:
    """Return the name of the array to read, which is checked: the one that was asked for, or the only table."""
    name = _only_table(path, found) if options.key is None else options.key
    if name not in found:
        raise _not_there(path, found, f"there is no {name!r}")
    check_array(path, name, found[name], options.max_bytes)
    return name


def _only_table(path: Path, found: Mapping[str, Found]) -> str:
    tables = [name for name, entry in found.items() if 2 <= len(entry.shape) <= MAX_AXES and float_type(entry.dtype)]
    # Beside a table, single rows and columns are labels and settings: in MATLAB every number is 1 x 1.
    names = [name for name in tables if min(found[name].shape) > 1] or tables
    if len(names) != 1:
        raise _not_there(path, found, f"there are {len(names)}" if names else "there is none")
    return names[0]


def _not_there(path: Path, found: Mapping[str, Found], problem: str) -> DataFileError:
    listed = [f"{shortened(name, 80)!r} ({entry})" for name, entry in islice(found.items(), 12)]
    more = f" and {len(found) - len(listed)} more" if len(found) > len(listed) else ""
    expected = "a file with one numeric array of two dimensions or more, or key must name one"
    holds = f"it holds {', '.join(listed) or 'no arrays'}{more}"
    return DataFileError(path, expected, f"{problem}; {holds}", "Name one of them with key.")


def as_matrix(
    path: Path,
    array: NDArray[Any],
    options: ReadOptions,
    axes: ArrayAxes | None = None,
    dtype: np.dtype[Any] | None = None,
    about: Mapping[str, Any] | None = None,
) -> LabelledMatrix:
    """Return an array that was read as a matrix; checked again, for a file may not hold what it declares.

    Parameters
    ----------
    path : Path
        The file.
    array : ndarray
        Its array, of two axes or more.
    options : ReadOptions
        They may say which axes are samples.
    axes : ArrayAxes or None
        What the file tells about the axes.
    dtype : dtype or None
        Type of the numbers in the file, if the array has another.
    about : mapping or None
        What the writer of this format needs, see `Source`.
    """
    check_array(path, "", Found(array.shape, array.dtype), options.max_bytes)
    chosen, notes = sample_axes(path, array.shape, options, axes)
    known = ArrayAxes(()) if axes is None else axes
    layout = ArrayLayout(array.shape, chosen, known.names or None, points=known.points, units=known.units)
    values = np.array(layout.matrix(array), dtype=float_type(array.dtype), order="C", copy=None)
    is_table = array.ndim == 2 and chosen == (0,)
    source = Source(dtype=dtype or array.dtype, layout=None if is_table else layout, about=about or {})
    samples, features = layout.samples, layout.features
    if is_table:  # rows and columns are no grids
        samples, features = (replace(axis, grid=None, grid_names=None) for axis in (samples, features))
    return LabelledMatrix(values, samples, features, source=source, notes=(*known.notes, *notes))


def refuse_key(path: Path, key: str | None) -> None:
    """Raise if an array is named where there is only one."""
    if key is not None:
        expected = "a file of named arrays if key is given"
        raise DataFileError(path, expected, f"it has none, and key is {key!r}", "Leave key out.")
