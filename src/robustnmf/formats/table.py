"""What is read from a file, and the checks that hold for all formats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.errors import DataFileError, shortened, times

MAX_BYTES = 8 * 2**30
"""Largest table that is read unless the caller says otherwise, in bytes: 8 GiB."""


class Table(NamedTuple):
    """Data from a file, one sample in each row."""

    values: Any
    """Array of shape (n_samples, n_features), float64 or float32; NaN where missing. A sparse matrix in a file stays
    one: `scipy.sparse.csr_array`, without duplicates."""
    sample_names: list[str] | None = None
    feature_names: list[str] | None = None
    image_shape: tuple[int, int] | None = None
    """(rows, columns) if each sample is an image; its features are the pixels, line by line."""


class Options(NamedTuple):
    """What the caller asked for."""

    key: str | None
    missing_value: float | str | None
    header: bool | None
    max_bytes: int


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
    """Raise unless a declared array holds real numbers, has two or three dimensions, and fits."""
    what = f"the array {shortened(name)!r}" if name else "the array"
    kind = float_type(found.dtype)
    if kind is None:
        given = "not numeric" if found.dtype is None else f"of type {shortened(str(found.dtype))}"
        raise DataFileError(path, "a table of real numbers", f"{what} is {given}", "Convert it to floats.")
    if len(found.shape) not in (2, 3) or min(found.shape) < 1:
        expected = "an array (samples, features) or a stack of images (n, rows, columns)"
        advice = "Reshape it, or name another array with key."
        raise DataFileError(path, expected, f"{what} has shape {found.shape}", advice)
    check_size(path, found.shape, np.dtype(kind).itemsize, max_bytes)


def choose(path: Path, found: Mapping[str, Found], options: Options) -> str:
    """Return the name of the array to read, which is checked: the one that was asked for, or the only table."""
    name = _only_table(path, found) if options.key is None else options.key
    if name not in found:
        raise _not_there(path, found, f"there is no {name!r}")
    check_array(path, name, found[name], options.max_bytes)
    return name


def _only_table(path: Path, found: Mapping[str, Found]) -> str:
    tables = [name for name, entry in found.items() if len(entry.shape) in (2, 3) and float_type(entry.dtype)]
    # Beside a table, single rows and columns are labels and settings: in MATLAB every number is 1 x 1.
    names = [name for name in tables if min(found[name].shape) > 1] or tables
    if len(names) != 1:
        raise _not_there(path, found, f"there are {len(names)}" if names else "there is none")
    return names[0]


def _not_there(path: Path, found: Mapping[str, Found], problem: str) -> DataFileError:
    listed = [f"{shortened(name, 80)!r} ({entry})" for name, entry in islice(found.items(), 12)]
    more = f" and {len(found) - len(listed)} more" if len(found) > len(listed) else ""
    expected = "a file with one numeric array of two or three dimensions, or key must name one"
    holds = f"it holds {', '.join(listed) or 'no arrays'}{more}"
    return DataFileError(path, expected, f"{problem}; {holds}", "Name one of them with key.")


def as_table(path: Path, values: NDArray[Any], max_bytes: int) -> Table:
    """Return an array that was read as a table; checked again, for a file may not hold what it declares."""
    check_array(path, "", Found(values.shape, values.dtype), max_bytes)
    image_shape = (values.shape[1], values.shape[2]) if values.ndim == 3 else None
    floats = np.array(values, dtype=float_type(values.dtype), order="C", copy=None)
    return Table(floats.reshape(len(floats), -1), image_shape=image_shape)


def refuse_key(path: Path, key: str | None) -> None:
    """Raise if an array is named where there is only one."""
    if key is not None:
        expected = "a file of named arrays if key is given"
        raise DataFileError(path, expected, f"it has none, and key is {key!r}", "Leave key out.")
