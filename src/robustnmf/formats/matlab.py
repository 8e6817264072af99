"""Arrays of MATLAB: .mat of all versions."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from robustnmf.formats.axes import axes_beside
from robustnmf.formats.checks import Found, as_matrix, check_array, choose, float_type
from robustnmf.formats.errors import OversizedError, times
from robustnmf.formats.format import Format
from robustnmf.formats.hdf5 import HDF5_SIGNATURE, read_hdf5
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.limits import check_expansion
from robustnmf.formats.options import MAX_BYTES, ReadOptions
from robustnmf.formats.packed import Inflated
from robustnmf.formats.stored import array_in_file, key_in_file, sparse_in_file, vectors_in_file

# Numbers in MAT-files of version 5: types of parts, classes of arrays (sparse, double ... uint64, objects).
_ARRAY, _COMPRESSED, _SPARSE, _OPAQUE, _COMPLEX = 14, 15, 5, 17, 0x800
_NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13})
_CLASSES = frozenset(range(5, 16))
_CLASS_TYPES = {
    **{name: np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
    **{"double": np.dtype(float), "single": np.dtype(np.float32), "logical": np.dtype(bool), "sparse": np.dtype(float)},
}

# The same in version 4: bytes of a number, by its type (double, single, int32, int16, uint16, uint8).
_MAT4_SIZES = {0: 8, 1: 4, 2: 4, 3: 2, 4: 2, 5: 1}

_MAX_NAME = 1024
"""Longest name of an array, in bytes; in MATLAB it is 63."""

_SPARSE_EXPANSION = 16
"""How many times more than other files those of MATLAB may declare than they hold."""


def read_mat(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read an array of MATLAB: up to version 7 its own format, from 7.3 on HDF5."""
    with path.open("rb") as file:
        start = file.read(520)
    if start.startswith(HDF5_SIGNATURE) or start[512:] == HDF5_SIGNATURE or start.startswith(b"MATLAB 7.3"):
        return read_hdf5(path, options, matlab=True)
    return _read_mat5(path, options)


def _read_mat5(path: Path, options: ReadOptions) -> LabelledMatrix:
    from scipy.io import loadmat, whosmat

    _check_mat5(path)
    listed = whosmat(path, appendmat=False)
    found = {name: Found(tuple(map(int, shape)), _CLASS_TYPES.get(kind)) for name, shape, kind in listed}
    if len(found) < len(listed):
        raise ValueError("two arrays have the same name")
    name = choose(path, found, options)
    # Zeros of sparse arrays are left out on purpose, and those of others may be.
    check_expansion(path, found[name].shape, 8, _SPARSE_EXPANSION * path.stat().st_size)
    _check_mat5(path, name)
    values = loadmat(path, appendmat=False, variable_names=[name])[name]
    shapes = {key: entry.shape for key, entry in found.items() if float_type(entry.dtype)}
    axes = axes_beside(name, shapes, partial(_vector, path))
    return as_matrix(path, _dense(path, values, options.max_bytes), options, axes, about={"key": name})


def _vector(path: Path, name: str) -> tuple[Any, str]:
    """Return a vector, and that its unit is not known."""
    from scipy.io import loadmat

    _check_mat5(path, name)
    values = loadmat(path, appendmat=False, variable_names=[name])[name]
    return _dense(path, values, MAX_BYTES), ""


def write_mat(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write an array of MATLAB, with its wavelengths, in the format of versions 5 to 7."""
    from scipy.io import savemat

    vectors = dict(vectors_in_file(matrix).values())
    array = sparse_in_file(matrix).tocsc() if issparse(matrix.values) else array_in_file(matrix)
    arrays = {
        _matlab_name(key_in_file(matrix)): array,
        **{_matlab_name(name): values for name, values in vectors.items()},
    }
    savemat(temporary, arrays, appendmat=False, do_compression=True)


def _matlab_name(name: str) -> str:
    """Return a name that is one in MATLAB; in HDF5 it may have any signs."""
    return re.sub("[^A-Za-z0-9_]", "_", name if name[:1].isalpha() else f"X{name}")[:63]


class _Stored(NamedTuple):
    """An array of a MAT-file, read up to its values."""

    name: str
    flags: int
    shape: tuple[int, ...]
    values: Iterator[tuple[int, int]]
    """Type and length in bytes of each part of the values; one is passed over before the next is looked at."""


def _check_mat5(path: Path, name: str | None = None) -> None:
    """Raise ValueError where SciPy would crash or take memory without bound.

    Without a name the beginnings of all arrays are checked, which is what `whosmat` reads; with a name, the values of
    that array too.
    """
    with path.open("rb") as file:
        header = file.read(128)
        if 0 in header[:4]:  # version 4, where nothing is nested or compressed
            _check_mat4(file, path.stat().st_size)
            return
        count = 0
        for stored in _mat5_arrays(file, "<" if header[126:] == b"IM" else ">"):
            if stored.name == name:
                _check_values(stored)
                count += 1
    if name is not None and count != 1:
        raise ValueError(f"{count} arrays have the name {name!r}")


def _check_mat4(file: IO[bytes], size: int) -> None:
    """Raise ValueError if an array of version 4 is longer than the file: SciPy would take the memory and then look."""
    file.seek(0)
    # The type of an array is a number of up to four digits, of which the one for tens tells the type of its values.
    order = "<" if int.from_bytes(file.read(4), "little") < 10_000 else ">"
    file.seek(0)
    while len(head := file.read(20)) == 20:
        kind, rows, columns, is_complex, name = struct.unpack(f"{order}5I", head)
        itemsize = _MAT4_SIZES.get(kind // 10 % 10, 8)
        end = file.tell() + name + rows * columns * itemsize * (2 if is_complex else 1)
        if end > size:
            raise ValueError(f"an array should end at byte {end}, and the file has {size}")
        file.seek(end)


def _mat5_arrays(file: IO[bytes], order: str) -> Iterator[_Stored]:
    while len(tag := file.read(8)) == 8:
        kind, size = struct.unpack(f"{order}II", tag)
        end = file.tell() + size
        stream: IO[bytes] | Inflated = file
        if kind == _COMPRESSED:
            stream = Inflated(file, size)
            kind, size = struct.unpack(f"{order}II", stream.read(8))
        if kind == _ARRAY:
            yield _mat5_array(stream, size, order)
        file.seek(end)


def _mat5_array(stream: IO[bytes] | Inflated, size: int, order: str) -> _Stored:
    """Read flags, shape and name of an array, after checks of how long they are."""
    _, _, flags, _ = struct.unpack(f"{order}4I", stream.read(16))
    if flags & 0xFF == _OPAQUE:
        return _Stored("", flags, (), iter(()))
    shape = _short_part(stream, order, 4 * 32)  # SciPy reads up to 32 dimensions
    name = _short_part(stream, order, _MAX_NAME)
    left = size - 16 - shape.taken - name.taken
    sizes = struct.unpack(f"{order}{len(shape.content) // 4}i", shape.content)
    return _Stored(name.content.decode("latin-1"), flags, sizes, _parts(stream, left, order))


class _Part(NamedTuple):
    """A part of an array, and how many bytes it takes with tag and padding."""

    content: bytes
    taken: int


def _short_part(stream: IO[bytes] | Inflated, order: str, most: int) -> _Part:
    """Return a part that must be short."""
    tag = stream.read(8)
    kind, length = struct.unpack(f"{order}II", tag)
    if kind >> 16:  # up to four bytes stand in the tag itself
        return _Part(tag[4 : 4 + min(kind >> 16, 4)], 8)
    if length > most:
        raise OversizedError(f"it has a shape or name of {length} bytes, and the most that is read is {most}")
    padded = -(-length // 8) * 8
    return _Part(stream.read(padded)[:length], 8 + padded)


def _parts(stream: IO[bytes] | Inflated, size: int, order: str) -> Iterator[tuple[int, int]]:
    """Yield type and length of the parts in the next bytes, and pass over them."""
    while size > 0:
        kind, length = struct.unpack(f"{order}II", stream.read(8))
        size -= 8
        if kind >> 16:
            kind, length = kind & 0xFFFF, 0
        yield kind, length
        padded = -(-length // 8) * 8
        size -= padded
        _skip(stream, padded if size > 0 else length)


def _check_values(stored: _Stored) -> None:
    """Raise ValueError unless an array is numeric, with all its parts, and none larger than its shape."""
    if stored.flags & 0xFF not in _CLASSES:
        raise ValueError(f"array of class {stored.flags & 0xFF}")
    # Sparse arrays have no more values than dense ones, one start more than columns, and perhaps some room to grow.
    most = 8 * max(math.prod(stored.shape), 2**16) + 8
    count = 0
    for kind, length in stored.values:
        if kind not in _NUMBERS:
            raise ValueError(f"part of unknown type {kind}")
        if length > most:
            raise OversizedError(f"it has {length} bytes in a part of an array {times(stored.shape)}")
        count += 1
    # Sparse arrays have their indices before their values, complex ones the imaginary part after the real one.
    if count < (3 if stored.flags & 0xFF == _SPARSE else 1) + bool(stored.flags & _COMPLEX):
        raise ValueError(f"only {count} parts of values")


def _skip(stream: IO[bytes] | Inflated, length: int) -> None:
    while length > 0:
        piece = stream.read(min(length, 2**20))
        if not piece:
            raise ValueError("unexpected end")
        length -= len(piece)


def _dense(path: Path, values: Any, max_bytes: int) -> Any:
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


_WORDS = "a MAT-file", "Save it from MATLAB with save -v7, as numbers."
FORMATS = (Format("mat", *_WORDS, read_mat, (".mat",), (b"MATLAB ",), write=write_mat, holds_sparse=True),)
