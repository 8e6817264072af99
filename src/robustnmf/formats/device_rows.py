"""Arrays on a device, or on the host, as rows that are read to the host a block at a time."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.rows import number_type, row_cuts
from robustnmf.utils.arrays import dtype_of, to_host


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
