"""Arrays and archives of NumPy: .npy, .npz (also those in which SciPy stores sparse matrices), and memory maps."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.axes import axes_beside
from robustnmf.formats.checks import Found, as_matrix, check_array, check_size, choose, float_type, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix, Source
from robustnmf.formats.limits import check_expansion
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.packed import check_members
from robustnmf.formats.rows import row_cuts
from robustnmf.formats.sparse_tables import KINDS, Declared, assembled, check_declared
from robustnmf.formats.stored import array_in_file, key_in_file, sparse_in_file, vectors_in_file

_MAX_HEADER = 10_000
"""Longest header of an array, in bytes: the limit of NumPy, which looks at it too late."""


@dataclass(frozen=True)
class FileRows:
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

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return blocks of nearly equal length."""
        return row_cuts(self.shape[0], self.shape[1] * self.dtype.itemsize, block_bytes)

    @classmethod
    def of(cls, X: np.memmap[Any, Any]) -> FileRows:
        """Return the rows of a memory map, or of a view of one."""
        root = X
        while isinstance(root.base, np.memmap):
            root = root.base
        offset = root.offset + X.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        return cls(fspath(X.filename), X.shape, X.dtype, offset, X.strides)  # type: ignore[arg-type]


def _rows_of(X: Any) -> FileRows | None:
    return FileRows.of(X) if isinstance(X, np.memmap) and X.filename is not None and X.ndim == 2 else None


def read_npy(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read an array of NumPy."""
    refuse_key(path, options.key)
    with path.open("rb") as file:
        found = _npy_header(file)
        check_array(path, "", found, options.max_bytes)
        _check_stored(path, found, path.stat().st_size - file.tell())
    mapped = np.load(path, mmap_mode="r")
    # The axes in the order in which the values lie.
    stored = mapped if mapped.flags.c_contiguous else mapped.T
    rows = FileRows.of(stored.reshape(len(stored), -1))
    values = rows.read(0, len(stored)).reshape(stored.shape)
    return as_matrix(path, values if mapped.flags.c_contiguous else values.T, options)


def read_npz(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read an array of an archive of NumPy, or a sparse matrix that SciPy stored in one."""
    with zipfile.ZipFile(path) as archive:
        check_members(archive)
        members = {
            entry.filename.removesuffix(".npy"): entry
            for entry in archive.infolist()
            if entry.filename.endswith(".npy")
        }
        headers = {}
        for name, entry in members.items():
            with archive.open(entry) as file:
                headers[name] = _npy_header(file)
        if options.key is None and _is_sparse(headers):
            return _read_sparse(path, archive, members, headers, options.max_bytes)
        name = choose(path, headers, options)
        shapes = {key: found.shape for key, found in headers.items() if float_type(found.dtype)}
        axes = axes_beside(name, shapes, lambda vector: (_member(path, archive, members[vector]), ""))
        return as_matrix(path, _member(path, archive, members[name]), options, axes, about={"key": name})


def _member(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array of an archive whose header has been checked."""
    with archive.open(entry) as file:
        found = _npy_header(file)
        check_expansion(path, found.shape, 8, path.stat().st_size)
        _check_stored(path, found, entry.file_size - file.tell())
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)


_COMPRESSED, _PLACES = ("indices", "indptr"), ("row", "col")
"""How `scipy.sparse.save_npz` calls what tells the places of the entries; of "coo" it may be one array, "coords"."""


def _is_sparse(headers: Mapping[str, Found]) -> bool:
    """Return whether the arrays of an archive are those of a sparse matrix."""
    text = headers.get("format", Found((), None))
    is_named = text.shape == () and text.dtype is not None and text.dtype.kind in "SU" and text.dtype.itemsize <= 64
    has_places = any(name in headers for name in (*_COMPRESSED, *_PLACES, "coords", "offsets"))
    return is_named and has_places and {"shape", "data"} <= headers.keys()


def _read_sparse(
    path: Path, archive: zipfile.ZipFile, members: Mapping[str, Any], headers: Mapping[str, Found], max_bytes: int
) -> LabelledMatrix:
    """Read a matrix that `scipy.sparse.save_npz` wrote, after a look at what its arrays declare."""
    kind = str(_member(path, archive, members["format"]).astype("U16"))
    together = kind == "coo" and "coords" in headers
    places = ("coords",) if together else _PLACES if kind == "coo" else _COMPRESSED
    if kind not in KINDS or not headers.keys() >= {*places}:
        found = f"it is in the format {kind!r}, with {shortened(', '.join(sorted(headers)), 200)}"
        advice = "Write it with scipy.sparse.save_npz(path, X.tocsr())."
        raise DataFileError(path, f"a sparse matrix in one of the formats {', '.join(sorted(KINDS))}", found, advice)
    n_axes = {"data": 3 if kind == "bsr" else 1, "shape": 1, **dict.fromkeys(places, 2 if together else 1)}
    for name, header in ((name, headers[name]) for name in n_axes):
        is_integer = name == "data" or getattr(header.dtype, "kind", "") in ("i", "u")
        if len(header.shape) != n_axes[name] or not is_integer or (name == "shape" and header.shape != (2,)):
            raise ValueError(f"{name} has {header}")
        check_size(path, header.shape, 8, max_bytes)
    n_rows, n_columns = map(int, _member(path, archive, members["shape"]))
    declared = Declared((n_rows, n_columns), headers["data"].dtype, math.prod(headers["data"].shape))
    check_declared(path, declared, max_bytes, path.stat().st_size)
    data, *indices = (_member(path, archive, members[name]) for name in ("data", *places))
    values = assembled(path, kind, (n_rows, n_columns), data, *(indices[0] if together else indices))
    return LabelledMatrix(values, source=Source(dtype=headers["data"].dtype))


def _npy_header(file: IO[bytes]) -> Found:
    """Return shape and dtype of an array of NumPy; the file then stands at its values."""
    version = np.lib.format.read_magic(file)
    start = file.tell()
    length = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
    # NumPy reads the header first and looks then: in an archive, few bytes may unpack to gigabytes of it.
    if length > _MAX_HEADER:
        raise OversizedError(f"it has a header of {length} bytes, and the most that is read is {_MAX_HEADER}")
    file.seek(start)
    # Version 3.0 differs only in the names of fields, which tables of numbers do not have.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if any(size < 0 for size in shape):
        raise ValueError(f"negative shape {shape}")
    return Found(shape, dtype)


def _check_stored(path: Path, found: Found, stored: int) -> None:
    declared = math.prod(found.shape) * (found.dtype.itemsize if found.dtype else 0)
    if declared > stored:
        expected = f"a file with the {declared} bytes of values that its header declares"
        raise DataFileError(path, expected, f"it has {stored}", "It was cut short: copy or write it again.")


def write_npy(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write an array."""
    with temporary.open("wb") as file:
        np.save(file, array_in_file(matrix), allow_pickle=False)


def write_npz(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write an array with its wavelengths, or a sparse matrix as SciPy does."""
    with temporary.open("wb") as file:
        if sparse.issparse(matrix.values):
            sparse.save_npz(file, sparse_in_file(matrix))
            return
        vectors = dict(vectors_in_file(matrix).values())
        arrays = {key_in_file(matrix): array_in_file(matrix), **vectors}
        np.savez_compressed(file, allow_pickle=False, **arrays)


_NPY = "an array of NumPy", "Write it with numpy.save, as numbers."
_NPZ = (
    "an archive of NumPy",
    "Write it with numpy.savez_compressed, as numbers, or a sparse matrix with scipy.sparse.save_npz.",
)
FORMATS = (
    Format("npy", *_NPY, read_npy, (".npy",), (b"\x93NUMPY",), rows_of=_rows_of, write=write_npy),
    Format("npz", *_NPZ, read_npz, (".npz",), members=(".npy",), write=write_npz, holds_sparse=True),
)
