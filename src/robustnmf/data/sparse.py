"""Sparse matrices: what is stored stays sparse, and a few rows at a time are made dense where they are worked on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.engines.slices import cuts_of

Matrix = NDArray[Any]

# Entries, zeros included, of what is made dense at a time where no engine does it.
CHUNK_ENTRIES = 2**22


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
        matrix = self.matrix
        begin, end = int(matrix.indptr[start]), int(matrix.indptr[stop])
        rows = np.zeros((stop - start, matrix.shape[1]), dtype=matrix.dtype)
        in_row = np.repeat(np.arange(stop - start), np.diff(matrix.indptr[start : stop + 1]))
        rows[in_row, matrix.indices[begin:end]] = matrix.data[begin:end]
        return rows

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks of about so many bytes when they are dense."""
        cuts = cuts_of(*self.shape, max(1, block_bytes // self.dtype.itemsize))
        return [(rows.start, rows.stop) for rows in cuts]


def is_sparse(X: Any) -> bool:
    """Return whether X is a sparse matrix or array of SciPy."""
    return bool(sparse.issparse(X))


def as_rows(X: Any) -> Any:
    """Return a sparse matrix by rows, so that some of them can be taken; anything else as an array."""
    return X.tocsr() if is_sparse(X) else np.asarray(X)


def dense_chunks(X: Any, *like_X: Any) -> Iterator[tuple[Any, ...]]:
    """Yield a sparse matrix in a few dense parts, with the same rows of others that have its shape; else X as it is."""
    if not is_sparse(X):
        yield X, *like_X
        return
    matrices = [rows.tocsr() if is_sparse(rows) else rows for rows in (X, *like_X)]
    n_rows, n_columns = X.shape
    for cut in cuts_of(n_rows, n_columns, CHUNK_ENTRIES):
        parts: list[Any] = [None if rows is None else rows[cut] for rows in matrices]
        yield tuple(part.toarray() if is_sparse(part) else part for part in parts)


def canonical(X: Any) -> Any:
    """Return a sparse matrix by rows with sorted indices and without duplicates, which are summed; X is not changed."""
    X = X.tocsr()
    if X.has_canonical_format:
        return X
    X = X.copy()
    X.sum_duplicates()
    return X


def sparse_of(blocks: Any, dtype: Any) -> Any:
    """Return blocks of rows, dense or sparse, as one sparse matrix by rows."""
    return sparse.vstack([sparse.csr_array(block, dtype=dtype) for block in blocks], format="csr")
