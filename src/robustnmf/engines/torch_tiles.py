"""Matrices of Torch of which blocks of rows, the tiles, are worked on: sparse ones, and dense ones of any place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.rows import row_cuts
from robustnmf.utils.arrays import Array, check_layout, is_sparse_tensor
from robustnmf.utils.process_state import ignored_warnings


@dataclass(frozen=True, eq=False)
class TileRows:
    """A sparse matrix (n, m) by rows on a device; zeros that are not stored are data."""

    bounds: NDArray[np.int64]
    """Where the entries of each row begin and end, (n + 1,), on the host: to ask the device is to wait for it."""
    begins: Array
    """The same on the device."""
    columns: Array
    """Column of each entry, (k,)."""
    values: Array
    """The entries, (k,)."""
    n_columns: int

    ndim: ClassVar[int] = 2

    @classmethod
    def of(cls, matrix: Any, device: torch.device) -> "TileRows":
        """Return a sparse matrix of SciPy by rows, or a sparse tensor, on a device; what is there is not copied."""
        if is_sparse_tensor(matrix):
            return cls._of_tensor(matrix, device)
        parts = (matrix.indptr, matrix.indices, matrix.data)
        begins, columns, values = (torch.as_tensor(_writeable(part), device=device) for part in parts)
        return cls(matrix.indptr.astype(np.int64), begins, columns, values, matrix.shape[1])

    @classmethod
    def _of_tensor(cls, X: Any, device: torch.device) -> "TileRows":
        check_layout(X)
        X = X.detach().to(device)
        if X.layout is torch.sparse_coo:
            X = X.coalesce()  # what is stored twice is summed
        if X.layout is not torch.sparse_csr:
            with ignored_warnings((UserWarning, "Sparse CSR tensor support is in beta")):
                X = X.to_sparse_csr()
        begins, columns, values = X.crow_indices(), X.col_indices(), X.values()
        # Torch does not check tensors when they are made, and a wrong place would be written to.
        if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < X.shape[1]:
            raise ValueError(
                f"Columns of a sparse tensor with {X.shape[1]} features must be from 0 to {X.shape[1] - 1}; got "
                f"{int(columns.min())} to {int(columns.max())}. torch.sparse_csr_tensor(..., check_invariants=True) "
                "checks a tensor."
            )
        return cls(begins.cpu().numpy().astype(np.int64), begins, columns, values, int(X.shape[1]))

    @classmethod
    def of_dense(cls, rows: Array) -> "TileRows":
        """Return dense rows (B, m) of which only what is not zero is stored."""
        stored = rows != 0
        begins = torch.nn.functional.pad(torch.cumsum(torch.sum(stored, dim=1), dim=0), (1, 0))
        columns = torch.nonzero(stored, as_tuple=True)[1]
        return cls(begins.cpu().numpy(), begins, columns, rows[stored], int(rows.shape[1]))

    @classmethod
    def concatenated(cls, parts: Sequence["TileRows"]) -> "TileRows":
        """Return the rows of several matrices, one after the other."""
        counts = torch.cat([torch.diff(part.begins) for part in parts])
        begins = torch.nn.functional.pad(torch.cumsum(counts, dim=0), (1, 0))
        columns, values = (torch.cat([getattr(part, name) for part in parts]) for name in ("columns", "values"))
        return cls(begins.cpu().numpy().astype(np.int64), begins, columns, values, parts[0].n_columns)

    def floating(self, dtype: torch.dtype) -> "TileRows":
        """Return the same with entries of another type."""
        return TileRows(self.bounds, self.begins, self.columns, self.values.to(dtype), self.n_columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.bounds) - 1, self.n_columns

    @property
    def dtype(self) -> Any:
        """Type of the numbers, as Torch calls it."""
        return self.values.dtype

    def read(self, start: int, stop: int) -> Any:
        """Return some rows, (stop - start, m), as a dense tensor."""
        n_rows, begin, end = stop - start, int(self.bounds[start]), int(self.bounds[stop])
        device = self.values.device
        counts = torch.diff(self.begins[start : stop + 1])
        rows = torch.repeat_interleave(torch.arange(n_rows, device=device), counts, output_size=end - begin)
        places = rows * self.n_columns + self.columns[begin:end]
        tile = torch.zeros(n_rows * self.n_columns, dtype=self.dtype, device=device)
        # What is stored twice counts twice; of truth values there is no sum.
        write = tile.scatter_ if self.dtype is torch.bool else tile.scatter_add_
        return write(0, places, self.values[begin:end]).reshape(n_rows, self.n_columns)

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks of about so many bytes when they are dense."""
        return row_cuts(self.shape[0], self.n_columns * self.dtype.itemsize, block_bytes)


@dataclass(frozen=True, eq=False)
class TensorRows:
    """A matrix (n, m) of Torch of any type, of which rows are taken to a device as floats."""

    tensor: Any
    device: torch.device
    dtype: Any
    """Type of the numbers that rows have when they are read, as Torch calls it."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self.tensor.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return tuple(self.tensor.shape)

    def read(self, start: int, stop: int) -> Any:
        """Return some rows, (stop - start, m), on the device; a view if they are there in that type."""
        return self.tensor[start:stop].to(self.device, non_blocking=True).to(self.dtype).contiguous()

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks of about so many bytes."""
        return row_cuts(self.shape[0], self.shape[1] * self.dtype.itemsize, block_bytes)


def _writeable(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that Torch can share: it has no read-only tensors."""
    return array if array.flags.writeable else array.copy()


def csr_of(rows: Any) -> sparse.csr_array:
    """Return dense rows (B, m) of Torch as a sparse array of SciPy; what is zero does not leave the device."""
    tiles = TileRows.of_dense(rows)
    parts = tuple(part.cpu().numpy() for part in (tiles.values, tiles.columns))
    return sparse.csr_array((*parts, tiles.bounds), shape=tiles.shape)
