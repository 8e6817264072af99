"""Sparse matrices in memory as rows that are made dense a block at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.rows import row_cuts
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
