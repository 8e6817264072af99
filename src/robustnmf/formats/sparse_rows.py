"""Sparse matrices as rows that are made dense a block at a time, and some columns of rows."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.rows import FloatRows, Rows, row_cuts
from robustnmf.utils.entries import Entries

Matrix = NDArray[Any]


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix as rows that can be read a block at a time; zeros that are not stored are data.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array or csr_matrix
        Without duplicates, floating.
    """

    matrix: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        n_rows, n_columns = self.matrix.shape
        return int(n_rows), int(n_columns)

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""
        return self.matrix.dtype

    def read(self, start: int, stop: int) -> Matrix:
        """Return some rows, (stop - start, m), as an array."""
        return self.entries(start, stop).dense()

    def entries(self, start: int, stop: int) -> Entries:
        """Return what is stored of some rows."""
        matrix = self.matrix
        begin, end = int(matrix.indptr[start]), int(matrix.indptr[stop])
        indptr = matrix.indptr[start : stop + 1].astype(np.int64) - begin
        columns = matrix.indices[begin:end].astype(np.int32, copy=False)  # kernels are compiled for one type of index
        return Entries(indptr, columns, matrix.data[begin:end], self.shape[1])

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks of about so many bytes when they are dense."""
        n_rows, n_columns = self.shape
        return row_cuts(n_rows, n_columns * self.dtype.itemsize, block_bytes)


@runtime_checkable
class StoredSparsely(Rows, Protocol):
    """Rows of a sparse matrix that is not in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in memory, sparse."""
        ...

    @property
    def is_by_rows(self) -> bool:
        """Whether rows can be read without reading the whole matrix."""
        ...

    def stored(self, start: int, stop: int) -> Any:
        """Return some rows, (stop - start, m), as a `scipy.sparse.csr_array`."""
        ...

    def load(self) -> Any:
        """Return the whole matrix as a `scipy.sparse.csr_array`."""
        ...


@dataclass(frozen=True)
class Pattern(FloatRows):
    """Which entries of a sparse matrix are stored, explicit zeros included: 1 for these, and 0 for all others."""

    rows: StoredSparsely

    def read(self, start: int, stop: int) -> Matrix:
        """Return some rows."""
        found = self.rows.stored(start, stop)
        ones = sparse.csr_array((np.ones(found.nnz), found.indices, found.indptr), shape=found.shape)
        return np.asarray(ones.toarray())


@dataclass(frozen=True)
class Columns:
    """Some columns of a matrix that is read by rows.

    Parameters
    ----------
    rows : Rows
        The matrix.
    chosen : ndarray of int
        The columns.
    """

    rows: Rows
    chosen: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.shape[0], len(self.chosen)

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""
        return self.rows.dtype

    def read(self, start: int, stop: int) -> Matrix:
        """Return some rows."""
        return self.rows.read(start, stop)[:, self.chosen]

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks of about so many bytes when they are read, with all columns."""
        return self.rows.cuts(block_bytes)

    def load(self) -> Any:
        """Return all rows."""
        return self.read(0, self.shape[0])


@dataclass(frozen=True)
class SparseColumns(Columns):
    """Some columns of a sparse matrix."""

    rows: StoredSparsely

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in memory, as if entries were spread evenly over all columns."""
        return self.rows.nbytes * len(self.chosen) // max(1, self.rows.shape[1])

    @property
    def is_by_rows(self) -> bool:
        """Whether rows can be read without reading the whole matrix."""
        return self.rows.is_by_rows

    def stored(self, start: int, stop: int) -> Any:
        """Return some rows as a sparse matrix."""
        return self.rows.stored(start, stop)[:, self.chosen]

    def read(self, start: int, stop: int) -> Matrix:
        """Return some rows."""
        return np.asarray(self.stored(start, stop).toarray())

    def load(self) -> Any:
        """Return the whole matrix, read some rows at a time: all columns need not fit in memory."""
        if not self.is_by_rows:
            return self.rows.load()[:, self.chosen]
        return sparse.vstack([self.stored(*cut) for cut in self.cuts(_LOADED_BYTES)], format="csr")


_LOADED_BYTES = 2**28
"""Bytes, zeros included, of the rows of which some columns are taken at a time: 256 MiB."""


def some_columns(rows: Rows, chosen: Matrix) -> Columns:
    """Return some columns of rows, sparse if the rows are."""
    return SparseColumns(rows, chosen) if isinstance(rows, StoredSparsely) else Columns(rows, chosen)
