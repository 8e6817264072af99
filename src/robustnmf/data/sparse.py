"""Sparse matrices: what is stored stays sparse, and a few rows at a time are made dense where they are worked on."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.alignment import axes_of, values_of
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.sparse_structure import problem_of
from robustnmf.utils.observed import Observed
from robustnmf.utils.slices import cuts_of

Matrix = NDArray[Any]

# Entries, zeros included, of what is made dense at a time where no engine does it.
CHUNK_ENTRIES = 2**22


def is_sparse(X: Any) -> bool:
    """Return whether X is a sparse matrix or array of SciPy."""
    return bool(sparse.issparse(X))


def as_rows(X: Any) -> Any:
    """Return a sparse matrix by rows, so that some of them can be taken; anything else as an array."""
    return checked(X).tocsr() if is_sparse(X) else np.asarray(X)


def dense_chunks(X: Any, *like_X: Any) -> Iterator[tuple[Any, ...]]:
    """Yield a sparse matrix in a few dense parts, with the same rows of others that have its shape; else X as it is."""
    if not is_sparse(values_of(X)):
        yield X, *like_X
        return
    features, X = axes_of(X)[1], values_of(X)
    matrices = [checked(rows).tocsr() if is_sparse(rows) else rows for rows in (X, *like_X)]
    n_rows, n_columns = X.shape
    for cut in cuts_of(n_rows, n_columns, CHUNK_ENTRIES):
        parts: list[Any] = [None if rows is None else rows[cut] for rows in matrices]
        some, *others = (part.toarray() if is_sparse(part) else part for part in parts)
        yield some if features.names is None else LabelledMatrix(some, features=features), *others


def canonical(X: Any) -> Any:
    """Return a sparse matrix by rows with sorted indices and without duplicates, which are summed; X is not changed.

    Explicit zeros stay. The arrays of X are checked.
    """
    X = checked(X).tocsr()
    # A new matrix of the same arrays: SciPy remembers whether they were in order, also if they have changed since.
    X = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape)
    if X.has_canonical_format:
        return X
    X = X.copy()
    X.sum_duplicates()
    return X


def checked(X: Any, name: str = "X") -> Any:
    """Return a sparse matrix whose arrays fit together, integers as float64: duplicates could overflow in few bits."""
    if X.ndim != 2:  # others say so
        return X
    if X.format not in ("csr", "csc", "bsr", "coo"):
        X = X.tocsr()
    problem = problem_of(X)
    if problem is not None:
        raise ValueError(
            f"{name} must be a sparse matrix whose arrays fit together; {problem}. Build it anew: "
            "scipy.sparse.coo_array((values, (rows, columns)), shape) checks rows and columns."
        )
    return X.astype(np.float64) if X.dtype.kind in "biu" else X


def as_sparse(rows: Any) -> Any:
    """Return a block of dense rows (B, m), of NumPy or Torch, as a sparse array of SciPy."""
    if isinstance(rows, np.ndarray):
        return sparse.csr_array(rows)
    if isinstance(rows, Observed):
        found = rows.matrix().copy()  # the pattern is that of others too
        found.eliminate_zeros()
        return found
    from robustnmf.engines.torch_tiles import csr_of  # imported late: Torch need not be installed

    return csr_of(rows)


def sparse_of(blocks: Any, dtype: Any) -> Any:
    """Return blocks of rows, dense or sparse, as one sparse matrix by rows."""
    return sparse.vstack([sparse.csr_array(block, dtype=dtype) for block in blocks], format="csr")
