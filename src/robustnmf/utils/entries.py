"""Rows of a matrix of which only some entries are stored."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Vector = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Changes:
    """Entries of some rows that are replaced, by rows, and weights that differ from 1."""

    indptr: Vector
    """Where the entries of each row begin, (B + 1,)."""
    columns: Vector
    """(c,), and so are the following."""
    old: Vector
    """What is stored there; 0 for what is not."""
    new: Vector
    weights: Vector
    row_weights: Vector
    """What the weights of all entries of a row are multiplied by, (B,)."""


@dataclass(frozen=True, eq=False)
class Entries:
    """The stored entries of some rows, (B, m); those that are not stored are zero.

    Columns rise within a row, and none is there twice.
    """

    indptr: Vector
    """Where the entries of each row begin, (B + 1,)."""
    columns: Vector
    """(k,)."""
    values: Vector
    """(k,)."""
    n_columns: int
    changes: Changes | None = None
    """Entries that least squares replaces."""

    __array_ufunc__ = None  # arithmetic would look at what is stored alone

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, zeros included."""
        return len(self), self.n_columns

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""
        return self.values.dtype

    @property
    def rows(self) -> Vector:
        """Row of each stored entry, (k,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    @property
    def n_zeros(self) -> int:
        """Number of entries that are not stored."""
        return len(self) * self.n_columns - len(self.columns)

    def with_values(self, values: Vector) -> "Entries":
        """Return the same places with other values, (k,)."""
        return replace(self, values=values)

    @property
    def places(self) -> Vector:
        """Row and column of each stored entry, (k, 2)."""
        return np.stack([self.rows, self.columns], axis=1)

    def __getitem__(self, rows: Any) -> Any:
        """Return some of the rows, by their numbers or a slice; for rows and columns (c,) the entries there."""
        if isinstance(rows, tuple):
            return self.at(*rows)
        chosen = self.matrix()[rows]
        return Entries(chosen.indptr.astype(np.int64), chosen.indices, chosen.data, self.n_columns)

    def at(self, rows: Vector, columns: Vector) -> Vector:
        """Return the entries at some places, 0 where nothing is stored, (c,)."""
        found = self.find(rows, columns)
        values = np.zeros(len(rows), dtype=self.dtype)
        values[found >= 0] = self.values[found[found >= 0]]
        return values

    def find(self, rows: Vector, columns: Vector) -> Vector:
        """Return where the entries at some places are stored, -1 where they are not, (c,)."""
        keys = self.rows.astype(np.int64) * self.n_columns + self.columns
        wanted = rows.astype(np.int64) * self.n_columns + columns
        found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        return np.where(keys[found] == wanted, found, -1) if len(keys) else np.full(len(rows), -1)

    def where(self, chosen: Vector) -> "Entries":
        """Return those of the stored entries that are chosen, (k,) of bool."""
        return entries_at(self.rows[chosen], self.columns[chosen], self.values[chosen], self.shape)

    def matrix(self) -> Any:
        """Return the entries as a sparse matrix."""
        return sparse.csr_array((self.values, self.columns, self.indptr), shape=self.shape)

    def dense(self) -> Vector:
        """Return the rows with their zeros, (B, m)."""
        rows = np.zeros(self.shape, dtype=self.dtype)
        rows[self.rows, self.columns] = self.values
        return rows


def entries_at(rows: Vector, columns: Vector, values: Vector, shape: tuple[int, int]) -> Entries:
    """Return entries at some places, each of which is there once, in any order."""
    order = np.lexsort((columns, rows))
    columns = columns[order].astype(np.int32, copy=False)
    return Entries(starts_of(rows[order], shape[0]), columns, values[order], shape[1])


def starts_of(rows: Vector, n_rows: int) -> Vector:
    """Return where the entries of each row begin, (n_rows + 1,), for entries in the order of their rows."""
    return np.searchsorted(rows, np.arange(n_rows + 1)).astype(np.int64)
