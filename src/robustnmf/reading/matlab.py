"""Arrays of MATLAB: .mat of all versions."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from robustnmf.reading.hdf5 import HDF5_SIGNATURE, read_hdf5
from robustnmf.reading.table import Found, Options, Table, as_table, check_array, choose

# Numbers in MAT-files of version 5: types of parts, classes of arrays (sparse, double ... uint64).
_ARRAY, _COMPRESSED, _SPARSE, _COMPLEX = 14, 15, 5, 0x800
_NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13})
_CLASSES = frozenset(range(5, 16))
_CLASS_TYPES = {
    **{name: np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
    **{"double": np.dtype(float), "single": np.dtype(np.float32), "logical": np.dtype(bool), "sparse": np.dtype(float)},
}


def read_mat(path: Path, options: Options) -> Table:
    """Read an array of MATLAB: up to version 7 its own format, from 7.3 on HDF5."""
    with path.open("rb") as file:
        start = file.read(520)
    if start.startswith(HDF5_SIGNATURE) or start[512:] == HDF5_SIGNATURE or start.startswith(b"MATLAB 7.3"):
        return read_hdf5(path, options, matlab=True)
    return _read_mat5(path, options)


def _read_mat5(path: Path, options: Options) -> Table:
    """Read an array of MATLAB's own format, dense or sparse."""
    from scipy.io import loadmat, whosmat

    _check_mat5(path)
    listed = whosmat(path, appendmat=False)
    found = {name: Found(tuple(map(int, shape)), _CLASS_TYPES.get(kind)) for name, shape, kind in listed}
    name = choose(path, found, options.key)
    check_array(path, name, found[name], options.max_bytes)
    values = loadmat(path, appendmat=False, variable_names=[name])[name]
    return as_table(path, _dense(path, values, options.max_bytes), options.max_bytes)


def _check_mat5(path: Path) -> None:
    """Raise ValueError if a part of a numeric array is of an unknown type: SciPy would crash over it."""
    with path.open("rb") as file:
        header = file.read(128)
        if 0 in header[:4]:  # version 4, where nothing is nested
            return
        order = "<" if header[126:] == b"IM" else ">"
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            end = file.tell() + size
            stream: IO[bytes] | _Inflated = file
            if kind == _COMPRESSED:
                stream = _Inflated(file, size)
                kind, size = struct.unpack(f"{order}II", stream.read(8))
            if kind == _ARRAY:
                _check_mat5_parts(stream, size, order)
            file.seek(end)


def _check_mat5_parts(stream: IO[bytes] | _Inflated, size: int, order: str) -> None:
    """Raise ValueError if an array is numeric and its parts are not: flags, shape, name and one or more of values."""
    flags, parts = 0, 0
    while size > 0:
        kind, length = struct.unpack(f"{order}II", stream.read(8))
        size -= 8
        if kind >> 16:  # up to four bytes of values stand in the tag itself
            kind, length = kind & 0xFFFF, 0
        if parts > 2 and kind not in _NUMBERS:
            raise ValueError(f"part of unknown type {kind}")
        padded = -(-length // 8) * 8
        size -= padded
        start = _skip(stream, padded if size > 0 else length)
        if parts == 0:
            (flags,) = struct.unpack(f"{order}I", start[:4])
            if flags & 0xFF not in _CLASSES:  # cells, structures, text, objects: they are not read
                return
        parts += 1
    # Sparse arrays have their indices before their values, complex ones the imaginary part after the real one.
    if parts < 3 + (3 if flags & 0xFF == _SPARSE else 1) + bool(flags & _COMPLEX):
        raise ValueError(f"only {parts} parts")


def _skip(stream: IO[bytes] | _Inflated, length: int) -> bytes:
    """Pass over some bytes and return the first of them."""
    start = b""
    while length > 0:
        piece = stream.read(min(length, 2**20))
        if not piece:
            raise ValueError("unexpected end")
        start = start or piece
        length -= len(piece)
    return start


class _Inflated:
    """The next bytes of a file, decompressed as far as they are asked for."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file = file
        self.left = size
        self.inflate = zlib.decompressobj()

    def read(self, length: int) -> bytes:
        """Return that many bytes, or fewer at the end."""
        content = b""
        while len(content) < length and not self.inflate.eof:
            packed = self.inflate.unconsumed_tail or self.file.read(min(self.left, 2**16))
            self.left -= 0 if self.inflate.unconsumed_tail else len(packed)
            if not packed:
                break
            content += self.inflate.decompress(packed, length - len(content))
        return content


def _dense(path: Path, values: Any, max_bytes: int) -> Any:
    """Return an array of MATLAB that may be sparse as a dense one."""
    if not hasattr(values, "toarray"):
        return values
    check_array(path, "", Found(values.shape, values.dtype), max_bytes)
    if values.format != "csc":
        return values.toarray()
    # Not `toarray`: it trusts the indices and would write beyond the array. NumPy checks all but negative ones.
    counts = np.diff(values.indptr)
    if values.indptr[0] != 0 or min(counts.min(), values.indices.min(initial=0)) < 0:
        raise ValueError("negative index")
    columns = np.repeat(np.arange(len(counts)), counts)
    dense = np.zeros(values.shape, values.dtype)
    dense[values.indices[: len(columns)], columns] = values.data[: len(columns)]
    return dense
