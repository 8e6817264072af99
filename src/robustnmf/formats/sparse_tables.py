"""Sparse matrices that are read from files: what is declared is checked before memory is taken, and then each index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.checks import check_size, float_type
from robustnmf.formats.errors import DataFileError, times
from robustnmf.formats.limits import check_expansion
from robustnmf.formats.sparse_structure import Lines, block_problem, compressed_problem, coordinate_problem

Vector = NDArray[Any]

_PER_ENTRY = 16
"""Bytes of an entry in memory: a float, and the place in its row."""


class Declared(NamedTuple):
    """What a file says of its sparse matrix."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """Type of the values; None if they are no numbers."""
    n_stored: int
    """Number of entries that are stored."""


def check_declared(path: Path, declared: Declared, max_bytes: int, file_size: int | None = None) -> None:
    """Raise unless a sparse matrix holds real numbers, has rows and columns, and fits.

    It fits if its stored entries do, and a number for each row and each column: that is how it is kept.
    """
    shape, dtype, n_stored = declared
    if float_type(dtype) is None:
        given = "not numeric" if dtype is None else f"of type {dtype}"
        raise DataFileError(path, "a table of real numbers", f"its values are {given}", "Convert them to floats.")
    if len(shape) != 2 or min(shape) < 1:
        expected = "a sparse matrix (samples, features)"
        raise DataFileError(path, expected, f"its shape is {shape}", "Check how it was written.")
    check_size(path, (n_stored,), _PER_ENTRY, max_bytes)
    check_size(path, (sum(shape) + 1,), 8, max_bytes)
    if file_size is not None:
        check_expansion(path, (sum(shape),), 8, file_size)


def assembled(path: Path, kind: str, shape: tuple[int, int], data: Vector, *indices: Vector) -> Any:
    """Return a sparse matrix by rows, duplicates summed, explicit zeros kept; DataFileError if an index is wrong.

    Parameters
    ----------
    kind : {"csr", "csc", "bsr", "coo"}
        How the matrix is stored.
    shape : (n_rows, n_columns)
    data : (n_stored,); of "bsr" (n_blocks, height, width)
    *indices
        Column of each entry (of "csc" its row) and where those of each row begin; of "coo" rows and columns.
    """
    problem = _PROBLEMS[kind](shape, data, *indices)
    if problem is not None:
        advice = "It is damaged, or was written by another program than it says: write it again."
        raise DataFileError(path, f"a sparse matrix of {times(shape)} whose indices fit together", problem, advice)
    values = np.asarray(data, dtype=float_type(data.dtype))  # before duplicates are summed, which could overflow
    make = getattr(sparse, f"{kind}_array")
    matrix = make((values, indices) if kind == "coo" else (values, *indices), shape=shape).tocsr()
    matrix.sum_duplicates()
    return matrix


_PROBLEMS: Mapping[str, Callable[..., str | None]] = {
    "csr": lambda shape, data, indices, indptr: compressed_problem(indptr, indices, len(data), Lines(*shape)),
    "csc": lambda shape, data, indices, indptr: compressed_problem(
        indptr, indices, len(data), Lines(shape[1], shape[0], "column", "row")
    ),
    "bsr": lambda shape, data, indices, indptr: block_problem(indptr, indices, data, shape),
    "coo": lambda shape, data, rows, columns: coordinate_problem(rows, columns, len(data), shape),
}
KINDS = frozenset(_PROBLEMS)
"""Ways to store a sparse matrix that are read."""
