"""Whether the arrays of a sparse matrix fit together.

SciPy does not look: it would read and write beyond the end of arrays, or raise an IndexError somewhere else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]


class Lines(NamedTuple):
    """What a compressed matrix is made of: so many lines, each with so many places."""

    number: int
    length: int
    name: str = "row"
    place: str = "column"
    first: int = 0
    """What errors call the first line, if it is one of many."""


def problem_of(X: Any) -> str | None:
    """Return what is wrong with the arrays of a sparse matrix of SciPy, (n, m), in words; None if nothing is.

    Formats that are not listed here are checked when they have been converted to one that is.
    """
    n_rows, n_columns = X.shape
    if X.format == "csr":
        return compressed_problem(X.indptr, X.indices, len(X.data), Lines(n_rows, n_columns))
    if X.format == "csc":
        return compressed_problem(X.indptr, X.indices, len(X.data), Lines(n_columns, n_rows, "column", "row"))
    if X.format == "bsr":
        return block_problem(X.indptr, X.indices, X.data, X.shape)
    if X.format == "coo":
        return coordinate_problem(X.row, X.col, len(X.data), X.shape)
    return None


def block_problem(indptr: Vector, indices: Vector, data: Vector, shape: tuple[int, int]) -> str | None:
    """Return what is wrong with a matrix of dense blocks, data (n_blocks, height, width)."""
    if data.ndim != 3 or 0 in data.shape[1:] or shape[0] % data.shape[1] or shape[1] % data.shape[2]:
        return f"blocks of shape {data.shape[1:]} do not fill a matrix of shape {tuple(shape)}"
    lines = Lines(shape[0] // data.shape[1], shape[1] // data.shape[2], "row of blocks", "column of blocks")
    return compressed_problem(indptr, indices, len(data), lines)


def compressed_problem(indptr: Vector, indices: Vector, n_values: int, lines: Lines) -> str | None:
    """Return what is wrong with the arrays of a matrix that is stored line by line, in words; None if nothing is.

    Parameters
    ----------
    indptr : (lines.number + 1,)
        Where the entries of each line begin, and where those of the last one end.
    indices : (n_values,)
        Place of each entry in its line.
    n_values : int
        Number of values.
    lines : Lines
        What is declared.
    """
    if (wrong := _not_indices(indptr=indptr, indices=indices)) is not None:
        return wrong
    if len(indptr) != lines.number + 1:
        return f"indptr has {len(indptr)} entries where {lines.number} {lines.name}s need {lines.number + 1}"
    if indptr[0] != 0:
        return f"indptr begins with {indptr[0]}, not with 0"
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falls):
        line = int(falls[0])
        return (
            f"indptr falls from {indptr[line]} to {indptr[line + 1]} at {lines.name} {lines.first + line}; where many "
            "entries are stored, 32-bit numbers overflow"
        )
    if not indptr[-1] == len(indices) == n_values:
        return f"indptr ends with {indptr[-1]}, and there are {len(indices)} indices and {n_values} values"
    place = _first_outside(indices, lines.length)
    if place is None:
        return None
    line = lines.first + int(np.searchsorted(indptr, place, side="right")) - 1
    return f"{lines.name} {line} has an entry in {lines.place} {indices[place]}, and there are {lines.length}"


def coordinate_problem(rows: Vector, columns: Vector, n_values: int, shape: tuple[int, int]) -> str | None:
    """Return what is wrong with a matrix of which each entry has a row and a column, in words; None if nothing is."""
    if (wrong := _not_indices(row=rows, col=columns)) is not None:
        return wrong
    if not len(rows) == len(columns) == n_values:
        return f"it has {len(rows)} rows, {len(columns)} columns and {n_values} values"
    for name, indices, length in (("row", rows, shape[0]), ("column", columns, shape[1])):
        place = _first_outside(indices, length)
        if place is not None:
            return f"entry {place} is in {name} {indices[place]}, and there are {length}"
    return None


def _not_indices(**arrays: Vector) -> str | None:
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            return f"{name} must be a list of integers, and is of type {array.dtype} and shape {array.shape}"
    return None


def _first_outside(indices: Vector, length: int) -> int | None:
    """Return where the first index is that is negative or too large, if there is one."""
    if not len(indices) or (indices.min() >= 0 and indices.max() < length):
        return None
    return int(np.flatnonzero((indices < 0) | (indices >= length))[0])
