"""Data on disk as rows that can be read a block at a time: memory maps, HDF5, Zarr, Parquet.

`rows_of` finds out what it was given. What it returns can be pickled, so that other processes read the same rows: files
are named by their path and opened where they are read.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.errors import times
from robustnmf.formats.limits import n_chunks, room_for_chunk, slabs
from robustnmf.utils.cached import cached_property
from robustnmf.utils.extras import optional

# Bytes of a block that is read at a time: large enough for a disk, small beside any memory.
BLOCK_BYTES = 2**24
# Of so few chunks none is too small; of more, each must have some bytes: reading one costs 0.2 ms by Zarr.
FEW_CHUNKS, SMALLEST_CHUNK = 2**14, 256


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


def row_cuts(n_rows: int, row_bytes: int, block_bytes: int, together: int = 1) -> list[tuple[int, int]]:
    """Return blocks of whole bundles of rows that are stored `together`, of nearly equal length."""
    bundles = -(-n_rows // together)
    per_block = max(1, block_bytes // max(1, together * row_bytes))
    n_blocks = max(1, -(-bundles // per_block))
    ends = [min(bundles * (i + 1) // n_blocks * together, n_rows) for i in range(n_blocks)]
    return list(pairwise([0, *ends]))


class _EvenlyCut:
    """Rows that are stored in bundles of one size."""

    shape: tuple[int, int]
    dtype: Any
    together = 1

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return blocks of nearly equal length."""
        self._check()
        return row_cuts(self.shape[0], self.shape[1] * np.dtype(self.dtype).itemsize, block_bytes, self.together)

    def _check(self) -> None:
        """Raise if it would cost too much to read them."""


def check_stored_chunks(what: str, shape: tuple[int, int], chunks: tuple[int, int], itemsize: int) -> None:
    """Raise ValueError if chunks, each of which is read in full and in every iteration, are too small or too large."""
    size, room = math.prod(chunks) * itemsize, room_for_chunk(shape, itemsize, sys.maxsize)
    count = n_chunks(shape, chunks)
    if size > room or (count > FEW_CHUNKS and size < SMALLEST_CHUNK):
        raise ValueError(
            f"{what} must be stored in chunks of at least {SMALLEST_CHUNK} bytes and no more than {room / 2**20:.0f} "
            f"MiB, as its shape is {times(shape)}; it has {count} chunks of {times(chunks)} values, {size} bytes. "
            "Store it anew, in chunks of some rows, of about 1 MiB."
        )


def _read_slabs(array: Any, start: int, stop: int, chunks: tuple[int, ...]) -> NDArray[Any]:
    """Return some rows of a chunked array, a few chunks at a time: libraries take kilobytes for each."""
    shape, dtype = (stop - start, array.shape[1]), np.dtype(array.dtype)
    parts = list(slabs(shape, chunks, dtype.itemsize))
    if len(parts) == 1:
        return np.asarray(array[start:stop])
    rows = np.empty(shape, dtype)
    for place in parts:
        rows[place] = array[start + place[0].start : min(start + place[0].stop, stop), place[1]]
    return rows


@dataclass(frozen=True)
class FileRows(_EvenlyCut):
    """A matrix in a file of numbers and nothing else, such as a memory map or the data of an npy file.

    Rows that lie together are read, not mapped: pages of a map would count as memory of the process.
    """

    path: str
    shape: tuple[int, int]
    dtype: Any
    offset: int
    strides: tuple[int, int]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows."""
        itemsize = self.dtype.itemsize
        if self.strides == (self.shape[1] * itemsize, itemsize):
            first = self.offset + start * self.strides[0]
            count = (stop - start) * self.shape[1]
            values = np.fromfile(self.path, self.dtype, count, offset=first)
            if values.size != count:
                raise OSError(f"{self.path} is shorter than the data it held: rows {start} to {stop} are not in it.")
            return values.reshape(-1, self.shape[1])
        mapped = np.memmap(self.path, np.uint8, "r")
        view: NDArray[Any] = np.ndarray(self.shape, self.dtype, mapped, self.offset, self.strides)
        return np.array(view[start:stop])

    @classmethod
    def of(cls, X: np.memmap[Any, Any]) -> "FileRows":
        """Return the rows of a memory map, or of a view of one."""
        root = X
        while isinstance(root.base, np.memmap):
            root = root.base
        offset = root.offset + X.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        return cls(fspath(X.filename), X.shape, X.dtype, offset, X.strides)  # type: ignore[arg-type]


@dataclass(frozen=True)
class HDF5Rows(_EvenlyCut):
    """A dataset of an HDF5 file."""

    path: str
    name: str
    shape: tuple[int, int]
    dtype: Any
    chunks: tuple[int, int] | None

    @property
    def together(self) -> int:  # type: ignore[override]
        """Rows of a chunk."""
        return self.chunks[0] if self.chunks else 1

    def _check(self) -> None:
        if self.chunks:
            check_stored_chunks(f"{self.name} in {self.path}", self.shape, self.chunks, self.dtype.itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows."""
        with optional("h5py", "io").File(self.path, "r") as file:
            dataset = file[self.name]
            return _read_slabs(dataset, start, stop, self.chunks) if self.chunks else np.asarray(dataset[start:stop])

    @classmethod
    def of(cls, X: Any) -> "HDF5Rows":
        """Return the rows of an open dataset."""
        return cls(X.file.filename, X.name, tuple(X.shape), X.dtype, X.chunks)


@dataclass(frozen=True)
class ZarrRows(_EvenlyCut):
    """A Zarr array in a store that other processes can open."""

    array: Any

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """Rows and columns."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""
        return np.dtype(self.array.dtype)

    @property
    def together(self) -> int:  # type: ignore[override]
        """Rows of a chunk, or of a shard of them."""
        return int(self._outer[0])

    @property
    def _outer(self) -> tuple[int, int]:
        """Rows and columns that are stored in one file."""
        return tuple(getattr(self.array, "shards", None) or self.array.chunks)

    def _check(self) -> None:
        itemsize = self.dtype.itemsize
        check_stored_chunks(f"A Zarr array in {self.array.store}", self.shape, self._outer, itemsize)
        check_stored_chunks(f"A Zarr array in {self.array.store}", self.shape, self.array.chunks, itemsize)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows."""
        return _read_slabs(self.array, start, stop, self._outer)


@dataclass(frozen=True)
class ParquetRows:
    """The columns of a Parquet file, or of all in a folder, as one matrix; what is null is NaN."""

    paths: tuple[str, ...]

    @cached_property
    def _groups(self) -> tuple[list[tuple[str, int]], list[int]]:
        """File and number of each row group, and the first row of each with the end of the last."""
        groups, starts = [], [0]
        for path in self.paths:
            with _parquet(path) as file:
                for i in range(file.metadata.num_row_groups):
                    groups.append((path, i))
                    starts.append(starts[-1] + file.metadata.row_group(i).num_rows)
        return groups, starts

    @cached_property
    def columns(self) -> list[str]:
        """Names of the columns."""
        with _parquet(self.paths[0]) as file:
            return list(file.schema_arrow.names)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows of all files, and columns."""
        return self._groups[1][-1], len(self.columns)

    @cached_property
    def dtype(self) -> Any:
        """float32 if all columns are, else float64."""
        with _parquet(self.paths[0]) as file:
            schema = file.schema_arrow
        for name in schema.names:
            if not _is_number(schema.field(name).type):
                raise ValueError(f"Column {name!r} of {self.paths[0]} must hold numbers; it has {schema.field(name)}.")
        is_single = all(str(schema.field(name).type) == "float" for name in schema.names)
        return np.dtype(np.float32 if is_single else np.float64)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows, from the row groups that have them."""
        groups, starts = self._groups
        values = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        for i in range(bisect_right(starts, start) - 1, len(groups)):
            if starts[i] >= stop:
                break
            path, number = groups[i]
            with _parquet(path) as file:
                table = file.read_row_group(number, columns=self.columns)
            first, last = max(start, starts[i]), min(stop, starts[i + 1])
            for k, column in enumerate(table.columns):
                values[first - start : last - start, k] = column.to_numpy()[first - starts[i] : last - starts[i]]
        return values

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return blocks that end where row groups do; a group larger than a block is one."""
        starts, row_bytes = self._groups[1], self.shape[1] * self.dtype.itemsize
        cuts, first = [], 0
        for end, after in pairwise([*starts[1:], starts[-1]]):
            if (after - first) * row_bytes > block_bytes or after == end:
                cuts.append((first, end))
                first = end
        return [(a, b) for a, b in cuts if a < b] or [(first, starts[-1])]

    @classmethod
    def of(cls, path: str | PathLike[str]) -> "ParquetRows":
        """Return the rows of a file, or of all files in a folder by the order of their names."""
        place = Path(path)
        paths = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
        if not paths:
            raise FileNotFoundError(f"{place} has no files that end in .parquet.")
        return cls(tuple(str(path) for path in paths))


def _parquet(path: str) -> Any:
    return optional("pyarrow.parquet", "io").ParquetFile(path)


def _is_number(kind: Any) -> bool:
    return str(kind) in {"float", "double", "halffloat", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))}


def rows_of(X: Any) -> Rows | None:
    """Return the rows of an array on disk, or of a path to one; None if it is in memory.

    Parameters
    ----------
    X : numpy.memmap, h5py.Dataset, zarr.Array, rows, or anything else
    """
    if isinstance(X, Rows):
        return X
    if isinstance(X, np.memmap) and X.filename is not None and X.ndim == 2:
        return FileRows.of(X)
    module = type(X).__module__.split(".")[0]
    if module == "h5py" and type(X).__name__ == "Dataset" and X.ndim == 2:
        return HDF5Rows.of(X)
    if module == "zarr" and hasattr(X, "chunks") and X.ndim == 2:
        return ZarrRows(X)
    return None


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


def filled_cuts(rows: Rows, block_bytes: int) -> list[tuple[int, int]]:
    """Return first and last row of the blocks that have any."""
    return [(start, stop) for start, stop in rows.cuts(block_bytes) if start < stop]


def is_dask(X: Any) -> bool:
    """Return whether X is an array or data frame of Dask, which need not be installed."""
    return type(X).__module__.split(".")[0] in {"dask", "dask_expr"} and hasattr(X, "__dask_graph__")


def sources(rows: Rows, cuts: Sequence[tuple[int, int]]) -> Iterator[RowBlock]:
    """Return what reads each block."""
    return (RowBlock(rows, start, stop) for start, stop in cuts)


def cuts_like(blocks: Sequence[Any]) -> list[tuple[int, int]]:
    """Return first and last row of each block."""
    ends = [int(end) for end in np.cumsum([len(block) for block in blocks])]
    return list(pairwise([0, *ends]))
