"""Arrays on a device, or on the host, as rows that are read to the host a block at a time."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from array_api_compat import is_torch_array
from numpy.typing import NDArray

from robustnmf.errors import ChangedDataError
from robustnmf.formats.rows import number_type, row_cuts
from robustnmf.utils.arrays import dtype_of, to_host

# Rows are summed up so many bytes at a time.
BLOCK_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """A matrix (n, m) of any library, on any device."""

    array: Any

    ndim: ClassVar[int] = 2

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        n_rows, n_columns = self.array.shape
        return int(n_rows), int(n_columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return number_type(dtype_of(self.array))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows, (stop - start, m), on the host."""
        rows: NDArray[Any] = to_host(self.array[start:stop]).astype(self.dtype, order="C", copy=False)
        return rows

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks of about so many bytes."""
        return row_cuts(self.shape[0], self.shape[1] * self.dtype.itemsize, block_bytes)


@dataclass(frozen=True, eq=False)
class UnchangedRows(DeviceRows):
    """A matrix in memory that must not be changed before it is read: that raises an error."""

    sums: NDArray[np.uint64] = field(init=False, repr=False)
    """Of each row the sum of its bits, (n,)."""

    def __post_init__(self) -> None:
        parts = [_sums_of_bits(self.array[start:stop]) for start, stop in self.cuts(BLOCK_BYTES)]
        object.__setattr__(self, "sums", np.concatenate(parts))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows, (stop - start, m)."""
        if not np.array_equal(_sums_of_bits(self.array[start:stop]), self.sums[start:stop]):
            raise ChangedDataError
        return super().read(start, stop)


def _sums_of_bits(rows: Any) -> NDArray[Any]:
    """Return the sum of the numbers in each row, read as integers: exact in any order, and defined for NaN.

    Those of a tensor are summed up where it is.
    """
    if is_torch_array(rows):
        import torch

        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        sums: NDArray[Any] = to_host(torch.sum(rows.detach().view(integers[rows.itemsize]), dim=1, dtype=torch.int64))
        return sums
    rows = to_host(rows)
    rows = rows if rows.dtype.kind in "biuf" and rows.itemsize <= 8 else rows.astype(np.float64)
    return np.asarray(rows.view(f"u{rows.itemsize}").sum(axis=1, dtype=np.uint64))
