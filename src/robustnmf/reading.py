"""Reading of data from files: tables, arrays, image folders and image stacks.

Files come from anywhere, so none is trusted. Sizes are checked before memory is taken, nothing is unpickled, links that
lead out of a folder or to another file are not followed, and whatever is wrong with a file is a `DataFileError`.
"""

from __future__ import annotations

import csv
import importlib
import math
import os
import re
import struct
import warnings
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.errors import MissingExtraError

MAX_BYTES = 8 * 2**30
"""Largest table that is read unless the caller says otherwise, in bytes: 8 GiB."""

MISSING_WORDS = frozenset({"", "na", "nan", "null"})
"""Cells of a text table that are missing entries, in lower case."""

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)

# Only these: some of Pillow's other formats start programs (EPS calls Ghostscript).
_PILLOW_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_IMAGE = ("an image", "Save it as PNG, or as grey TIFF with 8, 16 or 32 bits per pixel.")

# Codecs of zarr that only compress or reorder numbers. Others are refused: among them is one that unpickles.
_ZARR_CODECS = frozenset(
    {"blosc", "bytes", "bz2", "crc32c", "gzip", "lz4", "lzma", "sharding_indexed", "transpose", "zlib", "zstd"}
    | {"adler32", "astype", "bitround", "crc32", "delta", "fixedscaleoffset", "fletcher32", "jenkins_lookup3"}
    | {"packbits", "quantize", "shuffle"}
)
_ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

# Numbers in MAT-files of version 5: types of parts, classes of arrays (sparse, double ... uint64).
_MAT_ARRAY, _MAT_COMPRESSED, _MAT_SPARSE, _MAT_COMPLEX = 14, 15, 5, 0x800
_MAT_NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 12, 13})
_MAT_CLASSES = frozenset(range(5, 16))
_MATLAB_CLASSES = {
    **{name: np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
    **{"double": np.dtype(float), "single": np.dtype(np.float32), "logical": np.dtype(bool), "sparse": np.dtype(float)},
}

# Numbers that may have commas or spaces between thousands: to be refused, but not to be taken for names.
_LIKE_A_NUMBER = re.compile(r"[-+]?[0-9][0-9., ]*")

# Bytes; NumPy parses no longer ones either.
_LONGEST_NPY_HEADER = 10_000

# Rows that are looked at to find the delimiter, the headings and the names.
_OPENING = 50


class DataFileError(ValueError):
    """A data file that cannot be read, or is not what it should be.

    Parameters
    ----------
    path : path-like
        The file.
    expected : str
        What the file must be.
    found : str
        What is there instead.
    advice : str
        What to do.
    """

    def __init__(self, path: str | os.PathLike[str], expected: str, found: str, advice: str) -> None:
        super().__init__(f"{os.fspath(path)} must be {expected}; {found}. {advice}")


class Table(NamedTuple):
    """Data from a file, one sample in each row."""

    values: NDArray[np.floating[Any]]
    """Array of shape (n_samples, n_features), float64 or float32; NaN where missing."""
    sample_names: list[str] | None = None
    feature_names: list[str] | None = None
    image_shape: tuple[int, int] | None = None
    """(rows, columns) if each sample is an image; its features are the pixels, line by line."""


def read_table(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    missing_value: float | str | None = None,
    transpose: bool = False,
    header: bool | None = None,
    max_bytes: int | None = None,
) -> Table:
    r"""Return the data in a file or folder.

    Parameters
    ----------
    path : str or path-like
        What to read; ``~`` stands for the home folder.

        - ``.csv``, ``.tsv``, ``.txt``: text in UTF-8, cells parted by comma, semicolon, tab or, in ``.txt``, spaces.
          Empty cells, NA, NaN and null are missing. Where semicolons part the cells, numbers may have decimal commas.
          A first column that is not numeric, or has no heading, holds the names of the samples.
        - ``.npy``, ``.npz``, ``.mat``, ``.h5``, ``.hdf5``, ``.zarr`` (folder or zip): an array of two dimensions, or
          of three: an image stack (n, rows, columns).
        - ``.parquet``: numeric columns; the index of pandas, or a first column that is not numeric, holds the names of
          the samples.
        - a folder of images of one size, in natural order of their names, or an image file with several pages. Colour
          becomes grey by ITU-R 601; grey images keep their depth.

        Files with other suffixes are recognised by their first bytes.
    key : str or None
        Name of the array, in a file that may hold several. By default the only one of two or three dimensions; single
        rows and columns do not count beside larger arrays.
    missing_value : float, str or None
        Stands for a missing entry besides NaN: a number, or in text tables any word.
    transpose : bool
        Exchange samples and features. Of an image stack, pixels then are the samples.
    header : bool or None
        Whether the first line of a text table holds headings. By default it does if at least half of its cells are
        not numbers, or if the cell above the names is empty.
    max_bytes : int or None
        Largest size of the values as floats, and of a text file; by default 8 GiB.

    Returns
    -------
    Table
        The values and what is known of samples and features. Integers and booleans become float64.

    Raises
    ------
    DataFileError
        If the file is broken, too large or not what it should be.
    MissingExtraError
        If the format needs a package that is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "flowers.csv"
    >>> _ = path.write_text("flower,petal,sepal\nrose,1.5,2\nlily,NA,4\n")
    >>> table = read_table(path)
    >>> table.values
    array([[1.5, 2. ],
           [nan, 4. ]])
    >>> table.sample_names, table.feature_names
    (['rose', 'lily'], ['petal', 'sepal'])
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"path must name data; there is no file or folder {path}. Check the path.")
    kind = _format_of(path)
    code = _missing_number(missing_value, words=kind is _FORMATS["text"])
    options = _Options(key, missing_value, header, MAX_BYTES if max_bytes is None else max_bytes)
    with warnings.catch_warnings(), _broken_is_data_file_error(path, kind.expected, kind.advice):
        # Libraries warn about oddities in files that say nothing to the user: either it can be read or it cannot.
        warnings.simplefilter("ignore")
        table = kind.read(path, options)
    if code is not None:
        # The code in the precision of the data: -99.9 is stored as another number in float32.
        table.values[table.values == table.values.dtype.type(code)] = np.nan
    return _transposed(table) if transpose else table


def read_like(
    path: str | os.PathLike[str],
    table: Table,
    *,
    key: str | None = None,
    missing_value: float | str | None = None,
    transpose: bool = False,
    header: bool | None = None,
    max_bytes: int | None = None,
) -> NDArray[np.floating[Any]]:
    """Return values that belong to those of a table, entry by entry, such as weights or uncertainties.

    Parameters
    ----------
    path : str or path-like
        What to read, as for `read_table`.
    table : Table
        The data.
    key, missing_value, transpose, header, max_bytes
        As for `read_table`.

    Returns
    -------
    ndarray of shape (n_samples, n_features)
        The values.

    Raises
    ------
    DataFileError
        As for `read_table`; also if the shape is not that of the data, or the names are in another order.
    """
    other = read_table(
        path, key=key, missing_value=missing_value, transpose=transpose, header=header, max_bytes=max_bytes
    )
    if other.values.shape != table.values.shape:
        wanted, given = _times(table.values.shape), _times(other.values.shape)
        raise DataFileError(
            path,
            f"of the same shape as the data, {wanted} (samples x features)",
            f"it is {given}",
            "Check that it belongs to the data, and whether one of the two is transposed.",
        )
    _check_order(path, "samples", table.sample_names, other.sample_names)
    _check_order(path, "features", table.feature_names, other.feature_names)
    return other.values


def _check_order(path: str | os.PathLike[str], what: str, wanted: list[str] | None, given: list[str] | None) -> None:
    """Raise if the same names come in another order; other names may be right, such as "Al_error" for "Al"."""
    if wanted is None or given is None or wanted == given or sorted(wanted) != sorted(given):
        return
    place = next(i for i, (a, b) in enumerate(zip(wanted, given, strict=True)) if a != b)
    raise DataFileError(
        path,
        f"in the same order as the data, where {what[:-1]} {place + 1} is {wanted[place]!r}",
        f"here it is {given[place]!r}",
        f"Sort the {what} of one of the two.",
    )


class _Options(NamedTuple):
    """What the caller asked for."""

    key: str | None
    missing_value: float | str | None
    header: bool | None
    max_bytes: int


class _Format(NamedTuple):
    """A kind of file: what to call it, how to make one, how to read one."""

    expected: str
    advice: str
    read: Callable[[Path, _Options], Table]


class _Found(NamedTuple):
    """An array in a file, not yet read; no dtype if it is not an array of numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None

    def __str__(self) -> str:
        return f"{_times(self.shape) or 'scalar'} {self.dtype or 'not numbers'}"


@contextmanager
def _broken_is_data_file_error(path: Path, expected: str, advice: str) -> Iterator[None]:
    """Turn whatever a library raises over a broken file into a DataFileError."""
    try:
        yield
    except (DataFileError, MissingExtraError, PermissionError):
        raise
    # Readers raise almost anything over broken files: KeyError, struct.error, MemoryError, RecursionError ...
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataFileError(path, expected, f"reading it failed ({_shortened(words, 200)})", advice) from error


def _extra(module: str, package: str) -> Any:
    """Import a module of the extra ``io``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, "io") from error


def _shortened(text: str, length: int = 40) -> str:
    """Return a text, or its beginning."""
    return text if len(text) <= length else text[: length - 3] + "..."


def _times(shape: Iterable[int]) -> str:
    """Return a shape in words."""
    return " x ".join(map(str, shape))


def _missing_number(value: float | str | None, words: bool) -> float | None:
    """Return the number that stands for a missing entry, if it is one."""
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        if words:
            return None
        raise ValueError(
            f"missing_value must be a number, except for text tables; it is {value!r}. Give a number such as -999."
        ) from None


def _transposed(table: Table) -> Table:
    """Return a table with samples and features exchanged; the features then are not pixels any more."""
    return Table(np.ascontiguousarray(table.values.T), table.feature_names, table.sample_names)


def _float_type(dtype: np.dtype[Any] | None) -> type[np.float64] | type[np.float32] | None:
    """Return the dtype in which numbers are handed on, or None for what is not a real number."""
    if dtype is None or dtype.kind not in "buif":
        return None
    return np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64


def _check_size(path: Path, shape: Sequence[int], itemsize: int, max_bytes: int) -> None:
    """Raise if values of a declared shape would not fit; to be called before memory is taken."""
    needed = math.prod(shape) * itemsize
    if needed > max_bytes:
        raise DataFileError(
            path,
            f"no larger than {max_bytes / 2**30:.3g} GiB",
            f"it declares {_times(shape)} values, {needed / 2**30:.3g} GiB",
            "Read a part of it, or raise max_bytes if the memory is there.",
        )


def _check_array(path: Path, name: str, found: _Found, max_bytes: int) -> None:
    """Raise unless a declared array holds real numbers, has two or three dimensions, and fits."""
    what = f"the array {name!r}" if name else "the array"
    kind = _float_type(found.dtype)
    if kind is None:
        given = "not numeric" if found.dtype is None else f"of type {found.dtype}"
        raise DataFileError(path, "a table of real numbers", f"{what} is {given}", "Convert it to floats.")
    if len(found.shape) not in (2, 3) or min(found.shape) < 1:
        raise DataFileError(
            path,
            "an array (samples, features) or a stack of images (n, rows, columns)",
            f"{what} has shape {found.shape}",
            "Reshape it, or name another array with key.",
        )
    _check_size(path, found.shape, np.dtype(kind).itemsize, max_bytes)


def _choose(path: Path, found: Mapping[str, _Found], key: str | None) -> str:
    """Return the name of the array to read."""
    if key is not None:
        if key in found:
            return key
        problem = f"there is no {key!r}"
    else:
        tables = [name for name, entry in found.items() if _is_table(entry)]
        # Beside a table, single rows and columns are labels and settings: in MATLAB every number is 1 x 1.
        names = [name for name in tables if min(found[name].shape) > 1] or tables
        if len(names) == 1:
            return names[0]
        problem = f"there are {len(names)}" if names else "there is none"
    listed = [f"{name!r} ({entry})" for name, entry in islice(found.items(), 12)]
    more = f" and {len(found) - len(listed)} more" if len(found) > len(listed) else ""
    raise DataFileError(
        path,
        "a file with one numeric array of two or three dimensions, or key must name one",
        f"{problem}; it holds {', '.join(listed) or 'no arrays'}{more}",
        "Name one of them with key.",
    )


def _is_table(found: _Found) -> bool:
    """Return whether an array could be data."""
    return len(found.shape) in (2, 3) and _float_type(found.dtype) is not None


def _as_table(path: Path, values: NDArray[Any], max_bytes: int) -> Table:
    """Return an array that was read as a table; checked again, for a file may not hold what it declares."""
    _check_array(path, "", _Found(values.shape, values.dtype), max_bytes)
    image_shape = (values.shape[1], values.shape[2]) if values.ndim == 3 else None
    floats = np.array(values, dtype=_float_type(values.dtype), order="C", copy=None)
    return Table(floats.reshape(len(floats), -1), image_shape=image_shape)


def _refuse_key(path: Path, key: str | None) -> None:
    """Raise if an array is named where there is only one."""
    if key is not None:
        raise DataFileError(
            path, "a file of named arrays if key is given", f"it has none, and key is {key!r}", "Leave key out."
        )


# --- NumPy ------------------------------------------------------------------------------------------------------------


def _read_npy(path: Path, options: _Options) -> Table:
    """Read an array of NumPy."""
    _refuse_key(path, options.key)
    with path.open("rb") as file:
        found = _npy_header(file)
        _check_array(path, "", found, options.max_bytes)
        _check_stored(path, found, path.stat().st_size - file.tell())
        file.seek(0)
        return _as_table(path, np.lib.format.read_array(file, allow_pickle=False), options.max_bytes)


def _read_npz(path: Path, options: _Options) -> Table:
    """Read an array of an archive of NumPy."""
    with zipfile.ZipFile(path) as archive:
        members = {
            entry.filename.removesuffix(".npy"): entry
            for entry in archive.infolist()
            if entry.filename.endswith(".npy")
        }
        headers = {name: _member_header(archive, entry) for name, entry in members.items()}
        name = _choose(path, {name: found for name, (found, _) in headers.items()}, options.key)
        found, stored = headers[name]
        _check_array(path, name, found, options.max_bytes)
        _check_stored(path, found, stored)
        with archive.open(members[name]) as file:
            return _as_table(path, np.lib.format.read_array(file, allow_pickle=False), options.max_bytes)


def _member_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> tuple[_Found, int]:
    """Return what a member of an archive declares, and how many bytes of values it has."""
    # NumPy writes no others, and the others can grow without bound between two looks at their size.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename} is compressed in a way that NumPy does not write")
    with archive.open(entry) as file:
        found = _npy_header(file)
        return found, entry.file_size - file.tell()


def _npy_header(file: IO[bytes]) -> _Found:
    """Return shape and dtype of an array of NumPy; the file then stands at its values."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"unknown version {version}")
    length = file.read(2 if version == (1, 0) else 4)
    if int.from_bytes(length, "little") > _LONGEST_NPY_HEADER:  # NumPy would take the memory before it looks
        raise ValueError("its header is too long")
    file.seek(-len(length), os.SEEK_CUR)
    # Version 3.0 differs only in the names of fields, which tables of numbers do not have.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if any(size < 0 for size in shape):
        raise ValueError(f"negative shape {shape}")
    return _Found(shape, dtype)


def _check_stored(path: Path, found: _Found, stored: int) -> None:
    """Raise if a file has fewer bytes than the array that it declares."""
    declared = math.prod(found.shape) * (found.dtype.itemsize if found.dtype else 0)
    if declared > stored:
        raise DataFileError(
            path,
            f"a file with the {declared} bytes of values that its header declares",
            f"it has {stored}",
            "It was cut short: copy or write it again.",
        )


# --- MATLAB and HDF5 --------------------------------------------------------------------------------------------------


def _read_mat(path: Path, options: _Options) -> Table:
    """Read an array of MATLAB: up to version 7 its own format, from 7.3 on HDF5."""
    with path.open("rb") as file:
        start = file.read(520)
    if start.startswith(_HDF5_SIGNATURE) or start[512:] == _HDF5_SIGNATURE or start.startswith(b"MATLAB 7.3"):
        return _read_hdf5(path, options, matlab=True)
    return _read_mat5(path, options)


def _read_mat5(path: Path, options: _Options) -> Table:
    """Read an array of MATLAB's own format, dense or sparse."""
    from scipy.io import loadmat, whosmat

    _check_mat5(path)
    listed = whosmat(path, appendmat=False)
    found = {name: _Found(tuple(map(int, shape)), _MATLAB_CLASSES.get(kind)) for name, shape, kind in listed}
    name = _choose(path, found, options.key)
    _check_array(path, name, found[name], options.max_bytes)
    values = loadmat(path, appendmat=False, variable_names=[name])[name]
    return _as_table(path, _dense(path, values, options.max_bytes), options.max_bytes)


def _check_mat5(path: Path) -> None:
    """Raise ValueError if a part of a numeric array is of an unknown type: SciPy would crash over it."""
    with path.open("rb") as file:
        header = file.read(128)
        if 0 in header[:4]:  # version 4, where nothing is nested
            _check_mat4(file)
            return
        order = "<" if header[126:] == b"IM" else ">"
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            end = file.tell() + size
            stream: IO[bytes] | _Inflated = file
            if kind == _MAT_COMPRESSED:
                stream = _Inflated(file, size)
                kind, size = struct.unpack(f"{order}II", stream.read(8))
            if kind == _MAT_ARRAY:
                _check_mat5_parts(stream, size, order)
            file.seek(end)


def _check_mat4(file: IO[bytes]) -> None:
    """Raise ValueError if a name or array of version 4 is longer than the file: SciPy would take memory for it."""
    length = file.seek(0, os.SEEK_END)
    file.seek(0)
    order = "<" if struct.unpack("<I", file.read(4))[0] < 5000 else ">"  # the type of an array is a small number
    file.seek(0)
    while len(head := file.read(20)) == 20:
        kind, rows, columns, imaginary, name = struct.unpack(f"{order}5I", head)
        itemsize = {0: 8, 1: 4, 2: 4, 3: 2, 4: 2, 5: 1}.get(kind // 10 % 10, 8)
        end = file.tell() + name + rows * columns * itemsize * (2 if imaginary else 1)
        if end > length:
            raise ValueError(f"an array should end at byte {end}; the file has {length}")
        file.seek(end)


def _check_mat5_parts(stream: IO[bytes] | _Inflated, size: int, order: str) -> None:
    """Raise ValueError if an array is numeric and its parts are not: flags, shape, name and one or more of values."""
    flags, parts = 0, 0
    while size > 0:
        kind, length = struct.unpack(f"{order}II", stream.read(8))
        size -= 8
        if kind >> 16:  # up to four bytes of values stand in the tag itself
            kind, length = kind & 0xFFFF, 0
        if parts > 2 and kind not in _MAT_NUMBERS:
            raise ValueError(f"part of unknown type {kind}")
        padded = -(-length // 8) * 8
        size -= padded
        start = _skip(stream, padded if size > 0 else length)
        if parts == 0:
            (flags,) = struct.unpack(f"{order}I", start[:4])
            if flags & 0xFF not in _MAT_CLASSES:  # cells, structures, text, objects: they are not read
                return
        parts += 1
    # Sparse arrays have their indices before their values, complex ones the imaginary part after the real one.
    if parts < 3 + (3 if flags & 0xFF == _MAT_SPARSE else 1) + bool(flags & _MAT_COMPLEX):
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
    _check_array(path, "", _Found(values.shape, values.dtype), max_bytes)
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


def _read_hdf5(path: Path, options: _Options, matlab: bool = False) -> Table:
    """Read a dataset of HDF5."""
    h5py = _extra("h5py", "h5py")
    with h5py.File(path, "r") as file:
        found = _datasets(h5py, file, matlab)
        name = _choose(path, found, None if options.key is None else options.key.strip("/"))
        _check_array(path, name, found[name], options.max_bytes)
        dataset = file[name]
        if dataset.external or dataset.is_virtual:
            raise DataFileError(
                path, "a file that holds its values", f"those of {name!r} are in other files", "Read those instead."
            )
        _check_size(path, dataset.chunks or (), dataset.dtype.itemsize, options.max_bytes)
        values = dataset[...]
    # MATLAB stores columns first, and so its axes come in reverse.
    return _as_table(path, values.T if matlab else values, options.max_bytes)


def _datasets(h5py: Any, file: Any, matlab: bool) -> dict[str, _Found]:
    """Return what is in an HDF5 file. Links are not followed: they may lead to other files."""
    found = {}

    def look(name: str, node: Any) -> None:
        # MATLAB keeps the contents of cells in #refs#, and text as numbers.
        if not isinstance(node, h5py.Dataset) or (matlab and name.startswith("#")):
            return
        kind = node.attrs.get("MATLAB_class", b"") if matlab else b""
        shape = tuple(reversed(node.shape or ())) if matlab else node.shape or ()
        found[name] = _Found(shape, None if kind in (b"char", "char") else node.dtype)

    file.visititems(look)
    return found


# --- zarr -------------------------------------------------------------------------------------------------------------


def _read_zarr(path: Path, options: _Options) -> Table:
    """Read an array of zarr, from a folder or a zip file."""
    zarr = _extra("zarr", "zarr")
    if path.is_dir():
        _refuse_links_out(path, path)
        return _read_zarr_node(path, zarr.open(path, mode="r"), options)
    with zipfile.ZipFile(path) as archive:
        largest = max((entry.file_size for entry in archive.infolist()), default=0)
    _check_size(path, (largest,), 1, options.max_bytes)
    store = importlib.import_module("zarr.storage").ZipStore(path, mode="r")
    try:
        return _read_zarr_node(path, zarr.open(store, mode="r"), options)
    finally:
        store.close()


def _read_zarr_node(path: Path, node: Any, options: _Options) -> Table:
    """Read an array of zarr, or the one that is asked for in a group."""
    if hasattr(node, "members"):
        arrays = {name: member for name, member in node.members(max_depth=None) if hasattr(member, "shape")}
        found = {name: _Found(member.shape, member.dtype) for name, member in arrays.items()}
        name = _choose(path, found, None if options.key is None else options.key.strip("/"))
        node = arrays[name]
    else:
        _refuse_key(path, options.key)
        name = ""
    _check_array(path, name, _Found(node.shape, node.dtype), options.max_bytes)
    # A block is unpacked in full even where only a corner of it is needed.
    _check_size(path, node.shards or node.chunks, node.dtype.itemsize, options.max_bytes)
    _check_codecs(path, node.metadata.to_dict())
    return _as_table(path, np.asarray(node[...]), options.max_bytes)


def _check_codecs(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise if values went through anything but well-known codecs."""
    parts = [metadata.get(part) for part in ("codecs", "compressor", "filters", "storage_transformers")]
    names = {str(name).removeprefix("numcodecs.") for name in _codec_names(parts)}
    if not names <= _ZARR_CODECS:
        raise DataFileError(
            path,
            "stored with the usual codecs of zarr",
            f"it uses {', '.join(sorted(names - _ZARR_CODECS))}",
            "Store it anew, with zarr's default.",
        )


def _codec_names(value: Any) -> Iterator[Any]:
    """Yield the names of codecs, also of those inside others; what does not look like a codec is one without name."""
    if isinstance(value, Mapping):
        yield value.get("id", value.get("name"))
        configuration = value.get("configuration") or {}
        yield from _codec_names([configuration.get("codecs"), configuration.get("index_codecs")])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _codec_names(part)
    elif value is not None:
        yield getattr(value, "codec_id", type(value).__name__)


def _refuse_links_out(path: Path, folder: Path) -> None:
    """Raise if a symbolic link in a folder, or below it, leads out of the folder."""
    for parent, folders, files in os.walk(folder):
        for name in chain(folders, files):
            _refuse_link_out(path, Path(parent, name))


def _refuse_link_out(folder: Path, entry: Path) -> None:
    """Raise if an entry is a symbolic link that leads out of the folder."""
    if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
        raise DataFileError(
            folder, "a folder that holds its files", f"{entry.name} is a link that leads out of it", "Copy the file."
        )


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, options: _Options) -> Table:
    """Read the numeric columns of a Parquet file, one group of rows after the other."""
    _refuse_key(path, options.key)
    pyarrow, parquet = _extra("pyarrow", "pyarrow"), _extra("pyarrow.parquet", "pyarrow")
    with parquet.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        labels, columns = _parquet_columns(path, pyarrow, schema)
        dtype = np.float32 if all(str(schema.types[i]) in ("float", "halffloat") for i in columns) else np.float64
        _check_array(path, "", _Found((rows, len(columns)), np.dtype(dtype)), options.max_bytes)
        values = np.empty((rows, len(columns)), dtype)
        names: list[str] = []
        start = 0
        for number in range(file.num_row_groups):
            _check_size(path, (file.metadata.row_group(number).total_byte_size,), 1, options.max_bytes)
            group = file.read_row_group(number)
            block = values[start : start + len(group)]
            for place, column in enumerate(columns):
                # Not `safe`: integers beyond 2**53 are rounded, as everywhere else.
                block[:, place] = group.column(column).cast(pyarrow.float64(), safe=False).to_numpy()
            names += _joined(group.column(label).to_pylist() for label in labels)
            start += len(group)
    if start != rows:
        raise ValueError(f"{rows} rows are declared, {start} are there")
    return Table(values, names if labels else None, [schema.names[i] for i in columns])


def _parquet_columns(path: Path, pyarrow: Any, schema: Any) -> tuple[list[int], list[int]]:
    """Return the places of the columns with names of samples, and those of the numeric ones."""
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
    labels = [i for i, name in enumerate(schema.names) if name in index]
    numeric = [_is_number(pyarrow.types, kind) for kind in schema.types]
    if not labels and numeric and not numeric[0]:
        labels = [0]
    columns = [i for i in range(len(numeric)) if i not in labels]
    for i in columns:
        if not numeric[i]:
            raise DataFileError(
                path,
                "a table of numbers, but for names in the first column",
                f"column {schema.names[i]!r} is of type {schema.types[i]}",
                "Remove the column or make it numeric.",
            )
    return labels, columns


def _is_number(types: Any, kind: Any) -> bool:
    """Return whether a column of this type becomes floats."""
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)


def _joined(columns: Iterable[list[Any]]) -> list[str]:
    """Return one name for each row, from one or more columns."""
    return [" / ".join("" if part is None else str(part) for part in row) for row in zip(*columns, strict=True)]


# --- Images -----------------------------------------------------------------------------------------------------------


def _read_image_folder(path: Path, options: _Options) -> Table:
    """Read the images of a folder, one sample each."""
    _refuse_key(path, options.key)
    files = _image_files(path)
    if not files:
        raise DataFileError(
            path,
            f"a folder of images ({' '.join(sorted(IMAGE_SUFFIXES))})",
            "there are none in it",
            "Name the folder that holds them; folders inside are not searched.",
        )
    values, image_shape = _stack(path, _single_images(files), len(files), options.max_bytes)
    return Table(values, [file.name for file in files], None, image_shape)


def _image_files(folder: Path) -> list[Path]:
    """Return the images of a folder in natural order: 2 before 10."""
    files = []
    for entry in folder.iterdir():
        # Hidden files are none of the user's: macOS puts a ._a.png beside a.png.
        if entry.suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith("."):
            _refuse_link_out(folder, entry)
            if not entry.is_dir():
                files.append(entry)
    return sorted(files, key=lambda file: (_natural(file.name), file.name))


def _natural(name: str) -> list[str | int]:
    """Return a key that sorts numbers inside names by their size."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", name.casefold()))]


class _Page(NamedTuple):
    """An image that is open but not decoded, and what to call it."""

    file: Path
    name: str
    image: Any


def _single_images(files: Iterable[Path]) -> Iterator[_Page]:
    """Yield images that have a file each."""
    for file in files:
        with _open_image(file) as image:
            if _n_pages(image) > 1:
                raise DataFileError(
                    file,
                    "a single image, as it stands in a folder of images",
                    f"it has {_n_pages(image)} pages",
                    "Name the file itself, or take it out of the folder.",
                )
            yield _Page(file, file.name, image)


def _read_image_file(path: Path, options: _Options) -> Table:
    """Read the pages of an image file, one sample each."""
    _refuse_key(path, options.key)
    with _open_image(path) as image:
        count = _n_pages(image)
        values, image_shape = _stack(path, _pages(path, image, count), count, options.max_bytes)
    return Table(values, None, None, image_shape)


def _pages(path: Path, image: Any, count: int) -> Iterator[_Page]:
    """Yield the pages of an image file."""
    for page in range(count):
        image.seek(page)
        yield _Page(path, f"page {page + 1}", image)


def _n_pages(image: Any) -> int:
    """Return the number of pages. Photographs in MPO format hold others of the same scene: only the first counts."""
    return 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))


def _open_image(path: Path) -> Any:
    """Open an image."""
    pillow = _extra("PIL.Image", "pillow")
    # An image that unpacks to an extreme size is an error. The filter ends with the one of `read_table`.
    warnings.simplefilter("error", pillow.DecompressionBombWarning)
    with _broken_is_data_file_error(path, *_IMAGE):
        pillow.init()
        # Builds of Pillow differ in what they can read.
        return pillow.open(path, formats=[name for name in _PILLOW_FORMATS if name in pillow.OPEN])


def _stack(
    path: Path, pages: Iterator[_Page], count: int, max_bytes: int
) -> tuple[NDArray[np.floating[Any]], tuple[int, int]]:
    """Return images of one size and depth as rows, and their shape."""
    page = next(pages)
    shape = (page.image.height, page.image.width)
    # Twice as much as floats of 32 bits need, but images of them are rare.
    _check_size(path, (count, *shape), 8, max_bytes)
    first = _grey(page)
    values = np.empty((count, first.size), _float_type(first.dtype))
    values[0] = first.ravel()
    for place, page in enumerate(pages, 1):
        if (page.image.height, page.image.width) != shape:
            given = f"the first is {_times(shape)}, {page.name} is {page.image.height} x {page.image.width}"
            raise DataFileError(path, "images of one size", given, "Crop them alike, or take others out.")
        grey = _grey(page)
        if grey.dtype != first.dtype:
            given = f"the first is {first.dtype}, {page.name} is {grey.dtype}"
            raise DataFileError(path, "images of one depth", given, "Convert them alike.")
        values[place] = grey.ravel()
    return values, shape


def _grey(page: _Page) -> NDArray[Any]:
    """Return the grey values of an image in the depth that it is stored in."""
    image = page.image
    with _broken_is_data_file_error(page.file, *_IMAGE):
        tags = getattr(image, "tag_v2", {})
        bits, signed = tuple(tags.get(258, ())), tuple(tags.get(339, ())) == (2,)
        # Pillow would cut 16 bits of colour down to 8, and take negative numbers of 8 bits for positive ones.
        if (image.mode[0] not in "IF" and ";16" in str(image.tile)) or (bits == (8,) and signed):
            found = f"{page.name} has {'signed values' if signed else 'colours of 16 bits'}"
            raise DataFileError(page.file, "an image whose values can be kept", found, "Save it as 16-bit grey.")
        if image.mode[0] not in "IF":
            return np.asarray(image.convert("L"))
        values: NDArray[Any] = np.asarray(image)
    # Pillow takes unsigned values of 32 bits for signed ones.
    return values.view(np.uint32) if bits == (32,) and values.dtype == np.int32 and not signed else values


# --- Text -------------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A row of a text table and the line of the file where it ends."""

    line: int
    cells: list[str]


class _Layout(NamedTuple):
    """Where headings and names are."""

    headings: list[str] | None
    named: bool
    width: int


class _Numbers:
    """Turns cells into numbers.

    Parameters
    ----------
    missing : float, str or None
        A further word for a missing entry.
    delimiter : str or None
        What parts the cells. Where it is the semicolon, the decimal mark may be a comma, the same in all cells.
    """

    def __init__(self, missing: float | str | None, delimiter: str | None) -> None:
        self.missing = missing.strip() if isinstance(missing, str) else None
        self.commas = delimiter == ";"
        self.mark = ""

    def __call__(self, cell: str) -> float | None:
        """Return the number in a cell, NaN for a missing entry, None for anything else."""
        try:
            number = float(cell.replace(",", ".") if self.commas else cell)
        except ValueError:
            cell = cell.strip()
            return math.nan if cell.lower() in MISSING_WORDS or cell == self.missing else None
        # Python reads 1_000 as a number, other programs do not: it is a name.
        return None if "_" in cell or (self.commas and self._mixes_marks(cell)) else number

    def _mixes_marks(self, cell: str) -> bool:
        """Return whether a decimal mark is another one than before: then one of them parts thousands."""
        mark = "," if "," in cell else "." if "." in cell else ""
        self.mark = self.mark or mark
        return mark not in ("", self.mark)


def _read_text(path: Path, options: _Options) -> Table:
    """Read a table of text."""
    _refuse_key(path, options.key)
    _check_size(path, (path.stat().st_size,), 1, options.max_bytes)
    with path.open(encoding=_encoding(path), newline="") as file:
        opening = _opening_lines(file)
        delimiter = _delimiter(opening, path.suffix.lower())
        rows = _rows(path, chain(opening, file), delimiter)
        comments, first = _after_comments(path, rows)
        body = [first, *islice(rows, _OPENING - 1)]
        layout = _layout(path, comments, body, _Numbers(options.missing_value, delimiter), options.header)
        # A comment line with headings stands above the body, other headings are its first row.
        skipped = 1 if layout.headings is not None and not _fits(comments, len(first.cells)) else 0
        numbers = _Numbers(options.missing_value, delimiter)
        return _filled(path, chain(body[skipped:], rows), layout, numbers, options.max_bytes)


def _encoding(path: Path) -> str:
    """Return the encoding of a text: UTF-8 unless it starts with the mark of UTF-16, as Excel's "Unicode text" does."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _opening_lines(file: Iterable[str]) -> list[str]:
    """Return the first lines of a text, as many as there are comments and some more."""
    lines, seen = [], 0
    for line in file:
        lines.append(line)
        seen += bool(line.strip()) and not line.startswith("#")
        if seen == _OPENING:
            break
    return lines


def _delimiter(lines: Iterable[str], suffix: str) -> str | None:
    """Return what parts the cells of a table; None stands for spaces.

    The first of tab, semicolon, comma that is equally frequent in all lines; commas come last because they may be
    decimal marks. If lines differ, what is found in most of them.
    """
    texts = [re.sub('"[^"]*"', "", line) for line in lines if line.strip() and not line.startswith("#")]
    counts = {mark: [text.count(mark) for text in texts] for mark in "\t;,"}
    for mark, count in counts.items():
        if count and count[0] and len(set(count)) == 1:
            return mark
    frequent = max(counts, key=lambda mark: sum(map(bool, counts[mark])))
    if any(counts[frequent]):
        return frequent
    return {".csv": ",", ".tsv": "\t"}.get(suffix)


def _rows(path: Path, lines: Iterable[str], delimiter: str | None) -> Iterator[_Row]:
    """Yield the rows of a table; empty lines are none."""
    if delimiter is None:
        yield from (_Row(line, cells) for line, text in enumerate(lines, 1) if (cells := text.split()))
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        yield from (_Row(reader.line_num, cells) for cells in reader if len(cells) > 1 or any(map(str.strip, cells)))
    except csv.Error as error:
        found = f"line {reader.line_num} cannot be parted into cells ({error})"
        raise DataFileError(path, "a table of text", found, "Check the quotation marks in that line.") from error


def _after_comments(path: Path, rows: Iterator[_Row]) -> tuple[list[_Row], _Row]:
    """Return the rows at the top that are comments, and the first that is not."""
    comments: list[_Row] = []
    for row in rows:
        if not row.cells[0].startswith("#"):
            return comments, row
        comments.append(row)
    raise DataFileError(path, "a table of text", "it has no rows", "Check that it is the right file.")


def _fits(comments: Sequence[_Row], width: int) -> list[str] | None:
    """Return the cells of the last comment if they can be headings of a table of this width."""
    if not comments:
        return None
    first, *others = comments[-1].cells
    cells = [first.lstrip("#"), *others]
    if cells[0] == "" and len(others) == width:  # "# a b", as numpy.savetxt writes it
        return others
    return cells if len(cells) in (width, width - 1) and len(cells) > 1 else None


def _layout(
    path: Path, comments: Sequence[_Row], body: Sequence[_Row], numbers: _Numbers, header: bool | None
) -> _Layout:
    """Find out whether a table has headings and names."""
    top, rest = body[0], body[1:]
    width = len((rest or body)[0].cells)
    headings = _fits(comments, len(top.cells))
    if headings is not None:
        rest = body
        header = header is not False
    else:
        headings = top.cells
    named = _holds_names([row.cells[0] for row in rest or body], numbers)
    short = len(headings) == width - 1  # as R writes tables: no heading above the names
    if header is None:
        header = short or _holds_headings(path, body, named, numbers)
    if not header:
        return _Layout(None, named, len(body[0].cells))
    # pandas and R write their index without a heading.
    named = named or short or (not headings[0].strip() and any(map(str.strip, headings)))
    return _Layout(headings if short or not named else headings[1:], named, width if rest else len(headings))


def _words(cells: Iterable[str], numbers: _Numbers) -> list[bool]:
    """Return of each cell that is not missing whether it is a word; 1,234.5 is none even if it cannot be read."""
    known = [(cell, number) for cell in cells if (number := numbers(cell)) is None or not math.isnan(number)]
    return [number is None and not _LIKE_A_NUMBER.fullmatch(cell.strip()) for cell, number in known]


def _holds_names(cells: Iterable[str], numbers: _Numbers) -> bool:
    """Return whether most cells of a first column are names; fewer are mistakes, to be reported as such."""
    words = _words(cells, numbers)
    return 2 * sum(words) > len(words)


def _holds_headings(path: Path, body: Sequence[_Row], named: bool, numbers: _Numbers) -> bool:
    """Return whether the first row holds headings."""
    row = body[0]
    words = _words(row.cells[named:], numbers)
    if any(words):
        return 2 * sum(words) >= len(words)
    column = [below.cells[0] for below in body[1:]]
    if not row.cells[0].strip() and (named or _counts(column, 0) or _counts(column, 1)):
        return True
    values = [number for number in map(numbers, row.cells[named:]) if number is not None]
    rising = named and all(a < b for a, b in pairwise(values))
    if len(values) > 2 and (rising or _counts(row.cells, 0)):
        raise DataFileError(
            path,
            "a table whose headings can be told from its values",
            f"line {row.line} has {'a name and rising numbers' if rising else 'the numbers from 0 on'}",
            "Set header to true if they are headings, to false if they are values.",
        )
    return False


def _counts(cells: Sequence[str], start: int) -> bool:
    """Return whether cells are start, start + 1 ..., as pandas and R number what has no name."""
    return len(cells) > 0 and [cell.strip() for cell in cells] == [str(start + i) for i in range(len(cells))]


def _filled(path: Path, rows: Iterable[_Row], layout: _Layout, numbers: _Numbers, max_bytes: int) -> Table:
    """Read the rows of a table."""
    first, width = int(layout.named), layout.width
    values = array("d")
    names = []
    for row in rows:
        if len(row.cells) != width:
            found = f"line {row.line} has {len(row.cells)}"
            raise DataFileError(path, f"a table with {width} cells in each line", found, "Correct the line.")
        if layout.named:
            names.append(row.cells[0].strip())
        for place in range(first, width):
            number = numbers(row.cells[place])
            if number is None:
                raise _not_a_number(path, row, place, layout, len(values) < width - first)
            values.append(number)
        _check_size(path, (len(values),), values.itemsize, max_bytes)
    if not values:
        advice = "Check the file, and that commas, semicolons or tabs part its cells."
        raise DataFileError(path, "a table of numbers", "it has no values beside headings and names", advice)
    headings = None if layout.headings is None else [heading.strip() for heading in layout.headings]
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, width - first)
    return Table(table, names if layout.named else None, headings)


def _not_a_number(path: Path, row: _Row, place: int, layout: _Layout, is_first: bool) -> DataFileError:
    """Return the error for a cell that is not a number."""
    heading = f" ({layout.headings[place - layout.named].strip()!r})" if layout.headings else ""
    cell = _shortened(row.cells[place].strip())
    advice = "Correct the cell, or give its text as missing_value if the entry is missing."
    if is_first and layout.headings is None:
        advice += " If the line holds headings, set header to true."
    if _LIKE_A_NUMBER.fullmatch(cell):
        advice += " Decimal commas are read where semicolons part the cells, and points and commas not together."
    return DataFileError(
        path,
        "a table of numbers",
        f"the cell in line {row.line}, column {place + 1}{heading} is {cell!r}",
        advice,
    )


# --- Which is which ---------------------------------------------------------------------------------------------------

_FORMATS = {
    "text": _Format("a table of text in UTF-8", "Save it as comma-separated text in UTF-8.", _read_text),
    "npy": _Format("an array of NumPy", "Write it with numpy.save, as numbers.", _read_npy),
    "npz": _Format("an archive of NumPy", "Write it with numpy.savez_compressed, as numbers.", _read_npz),
    "mat": _Format("a MAT-file", "Save it from MATLAB with save -v7, as numbers.", _read_mat),
    "hdf5": _Format("an HDF5 file", "Write it with h5py.", _read_hdf5),
    "zarr": _Format("an array or group of zarr", "Write it with zarr.save.", _read_zarr),
    "parquet": _Format("a Parquet file", "Write it with pandas or pyarrow.", _read_parquet),
    "image": _Format(*_IMAGE, _read_image_file),
    "folder": _Format("a folder of images", "Save them as PNG or TIFF.", _read_image_folder),
}

_SUFFIXES = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), "text"),
    **dict.fromkeys((".h5", ".hdf5"), "hdf5"),
    **{f".{name}": name for name in ("npy", "npz", "mat", "zarr", "parquet")},
    **dict.fromkeys(IMAGE_SUFFIXES, "image"),
}

_SIGNATURES = {
    b"\x93NUMPY": "npy",
    b"PK\x03\x04": "zip",
    _HDF5_SIGNATURE: "hdf5",
    b"MATLAB ": "mat",
    b"PAR1": "parquet",
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"GIF8"), "image"),
}


def _format_of(path: Path) -> _Format:
    """Return the format of a file by its suffix, or else by how it starts."""
    if path.is_dir():
        is_zarr = path.suffix.lower() == ".zarr" or any((path / name).exists() for name in _ZARR_METADATA)
        return _FORMATS["zarr" if is_zarr else "folder"]
    known = f"data in a known format ({' '.join(sorted(_SUFFIXES))}, or a folder of images)"
    if not path.is_file():
        raise DataFileError(path, known, "it is neither a file nor a folder", "Check the path.")
    name = _SUFFIXES.get(path.suffix.lower()) or _format_by_content(path)
    if name is None:
        found = f"its suffix is {path.suffix!r} and it starts like none of them"
        raise DataFileError(path, known, found, "Convert it, or correct the suffix.")
    return _FORMATS[name]


def _format_by_content(path: Path) -> str | None:
    """Return the name of the format that a file starts like."""
    with path.open("rb") as file:
        start = file.read(16)
    name = next((name for signature, name in _SIGNATURES.items() if start.startswith(signature)), None)
    if name != "zip":
        return name
    with _broken_is_data_file_error(path, "a zip file", "Copy or write it again."), zipfile.ZipFile(path) as archive:
        members = archive.namelist()
    if any(member.endswith(".npy") for member in members):
        return "npz"
    return "zarr" if any(member.endswith(_ZARR_METADATA) for member in members) else None
