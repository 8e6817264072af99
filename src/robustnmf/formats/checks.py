"""Checks of what is read from a file that hold for all formats, and arrays as matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    axes: tuple[str, ...] | None = None,
    dtype: np.dtype[Any] | None = None,
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
    axes : tuple of str or None
        What the axes are, if the file tells: "t" time or number, "c" channel, "z", "y", "x", "band".
    dtype : dtype or None
        Type of the numbers in the file, if the array has another.
    """
    check_array(path, "", Found(array.shape, array.dtype), options.max_bytes)
    sample_axes, notes = _sample_axes(path, array.shape, options, axes)
    layout = ArrayLayout(array.shape, sample_axes, axes)
    values = np.array(layout.matrix(array), dtype=float_type(array.dtype), order="C", copy=None)
    if array.ndim == 2 and sample_axes == (0,):
        return LabelledMatrix(values, source=Source(dtype=dtype or array.dtype))
    source = Source(dtype=dtype or array.dtype, layout=layout)
    return LabelledMatrix(values, layout.samples, layout.features, source=source, notes=notes)


PIXELS = frozenset({"z", "y", "x"})
"""Axes of space."""


def _sample_axes(
    path: Path, shape: tuple[int, ...], options: ReadOptions, axes: tuple[str, ...] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the axes that are samples, and what was guessed."""
    n_axes = len(shape)
    if options.sample_axes is not None:
        return _checked_axes(path, options.sample_axes, shape), ()
    if options.samples == "pixels":
        in_space = [axis for axis, name in enumerate(axes or ()) if name in PIXELS]
        # Without names the last axis is that of the spectrum.
        pixels = tuple(in_space) or tuple(range(n_axes - 1))
        return _checked_axes(path, pixels, shape), ()
    if n_axes > 3 and axes is None and options.samples is None:
        expected = "an array of which it is known which axes are samples"
        advice = "Set samples to 'frames' (the first axis) or 'pixels' (all but the last), or name them in sample_axes."
        raise DataFileError(path, expected, f"it has shape {times(shape)}", advice)
    frames = axes.index("t") if axes is not None and "t" in axes else 0
    guess = f"{times(shape)} was read as {shape[frames]} frames, one sample each; samples='pixels' reads a cube."
    return (frames,), (guess,) if n_axes == 3 and axes is None and options.samples is None else ()


def _checked_axes(path: Path, given: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return axes of samples as numbers from 0 on, if they are some but not all axes of the array."""
    n_axes = len(shape)
    if all(-n_axes <= axis < n_axes for axis in given):
        axes = tuple(axis % n_axes for axis in given)
        if len(set(axes)) == len(axes) and 0 < len(axes) < n_axes:
            return axes
    expected = f"an array of which sample_axes names some of the axes, 0 to {n_axes - 1}, but not all"
    raise DataFileError(path, expected, f"it has shape {times(shape)}, and sample_axes is {given}", "Name others.")


def refuse_key(path: Path, key: str | None) -> None:
    """Raise if an array is named where there is only one."""
    if key is not None:
        expected = "a file of named arrays if key is given"
        raise DataFileError(path, expected, f"it has none, and key is {key!r}", "Leave key out.")
