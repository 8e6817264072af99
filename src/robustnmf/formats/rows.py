"""Data in files as rows that can be read a block at a time: what all formats have in common.

Rows can be pickled, so that other processes read the same ones: files are named by their path and opened where they are
read. `robustnmf.formats.rows_of` finds the rows of an open array.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.checks import float_type
from robustnmf.formats.limits import check_chunks, check_small_chunks, slabs

# Bytes of a block that is read at a time: large enough for a disk, small beside any memory.
BLOCK_BYTES = 2**24


@runtime_checkable
class Rows(Protocol):
    """A matrix of which some rows can be read at a time."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""
        ...

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows, (stop - start, m), as an array of its own."""
        ...

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks of about so many bytes, cut where the file is."""
        ...


@dataclass(frozen=True)
class RowBlock:
    """Some rows; calling it reads them."""

    rows: Rows
    start: int
    stop: int

    def __call__(self) -> NDArray[Any]:
        """Return the rows."""
        return self.rows.read(self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start


def row_blocks(rows: Rows, block_bytes: int, like: Sequence[Any] | None = None) -> list[RowBlock]:
    """Return blocks of about so many bytes, none of them empty, or of the lengths of other blocks if there are any."""
    if like is not None:
        return [RowBlock(rows, start, stop) for start, stop in cuts_like(like)]
    return [RowBlock(rows, start, stop) for start, stop in rows.cuts(block_bytes) if start < stop]


def cuts_like(blocks: Sequence[Any]) -> list[tuple[int, int]]:
    """Return first and last row of each block."""
    return list(pairwise(accumulate(map(len, blocks), initial=0)))


def row_cuts(n_rows: int, row_bytes: int, block_bytes: int, together: int = 1) -> list[tuple[int, int]]:
    """Return blocks of whole bundles of rows that are stored `together`, of nearly equal length."""
    bundles = -(-n_rows // together)
    per_block = max(1, block_bytes // max(1, together * row_bytes))
    n_blocks = max(1, -(-bundles // per_block))
    ends = [min(bundles * (i + 1) // n_blocks * together, n_rows) for i in range(n_blocks)]
    return list(pairwise([0, *ends]))


@dataclass(frozen=True)
class ArrayRows(ABC):
    """Rows of an array in a file, which is read a few chunks at a time; of three dimensions, each image is a row.

    Parameters
    ----------
    path : str
        What errors name.
    sizes : tuple of int
        Shape of the array.
    dtype : dtype
        Type of the numbers.
    chunks : tuple of int
        Shape of what is read at least; empty if any part can be read alone.
    """

    path: str
    sizes: tuple[int, ...]
    dtype: Any
    chunks: tuple[int, ...]

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """Open the array, for as long as parts of it are read."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.sizes[0], math.prod(self.sizes[1:])

    @property
    def smallest(self) -> tuple[int, ...]:
        """Shape of the smallest chunks: there may be some inside of others."""
        return self.chunks

    def check(self, max_bytes: int = sys.maxsize) -> None:
        """Raise DataFileError if the array costs more than it is worth."""
        if self.chunks:
            check_chunks(self.path, self.sizes, self.chunks, self.dtype.itemsize, max_bytes)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows."""
        return self._part(start, stop, self.dtype).reshape(stop - start, self.shape[1])

    def floats(self) -> NDArray[Any]:
        """Return the array as floats."""
        return self._part(0, self.sizes[0], float_type(self.dtype))

    def whole(self) -> NDArray[Any]:
        """Return the array in its type."""
        return self._part(0, self.sizes[0], self.dtype)

    def _part(self, start: int, stop: int, dtype: Any) -> NDArray[Any]:
        """Return a part of the array, read a few chunks at a time: for each that is read, libraries take memory."""
        sizes = (stop - start, *self.sizes[1:])
        places = list(slabs(sizes, self.chunks, self.dtype.itemsize)) if self.chunks else []
        with self.opened() as array:
            if len(places) < 2:
                return np.asarray(array[start:stop], dtype)
            values = np.empty(sizes, dtype)
            for rows, *others in places:
                values[(rows, *others)] = array[(slice(start + rows.start, min(start + rows.stop, stop)), *others)]
        return values

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return blocks of whole chunks, of nearly equal length, after a check of what they cost."""
        self.check()
        if self.smallest:
            check_small_chunks(self.path, self.sizes, self.smallest, self.dtype.itemsize)
        together = self.chunks[0] if self.chunks else 1
        return row_cuts(self.shape[0], self.shape[1] * self.dtype.itemsize, block_bytes, together)


def number_type(dtype: Any) -> np.dtype[Any]:
    """Return the type in which entries on disk, or of Dask, are worked on; refuse what cannot become real numbers.

    It is what scikit-learn makes of an array in memory: floats of other sizes, objects and text become float64. Whole
    numbers remain what they are until a block is worked on, as they take less room.
    """
    dtype = np.dtype(dtype)
    must = "X, weights and uncertainties must hold numbers"
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {must} that are real; got {dtype}. Pass the magnitude, abs(X).")
    if dtype.kind in "mM":
        raise TypeError(f"{must}; got {dtype}. Convert times to numbers in a unit of your choice.")
    if dtype.kind == "V":
        try:
            np.asarray(np.zeros(1, dtype), dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{must}; got {dtype}. Select one field of the records: X['name'].") from error
    is_known = dtype.kind in "biu" or dtype in (np.float32, np.float64)
    return dtype if is_known and dtype.isnative else np.dtype(np.float64)


@dataclass(frozen=True)
class FloatRows:
    """Rows whose entries become float64 when they are read."""

    rows: Rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.shape

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""
        return np.dtype(np.float64)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows."""
        return np.asarray(self.rows.read(start, stop), dtype=np.float64)

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return first and last row of blocks."""
        return self.rows.cuts(block_bytes)


def package_of(X: Any) -> str:
    """Return the name of the package that X is an object of; it need not be installed."""
    return type(X).__module__.split(".")[0]


def is_dask(X: Any) -> bool:
    """Return whether X is an array or data frame of Dask."""
    return package_of(X) in {"dask", "dask_expr"} and hasattr(X, "__dask_graph__")
