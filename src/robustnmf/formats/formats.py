"""Which format a file has; reading of any of them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.errors import DataFileError, broken_is_data_file_error, times
from robustnmf.formats.hdf5 import HDF5_SIGNATURE, read_hdf5
from robustnmf.formats.images import IMAGE_SUFFIXES, IMAGE_WORDS, read_image_file, read_image_folder
from robustnmf.formats.matlab import read_mat
from robustnmf.formats.numpy_files import read_npy, read_npz
from robustnmf.formats.parquet import read_parquet
from robustnmf.formats.table import MAX_BYTES, Options, Table
from robustnmf.formats.text import read_text
from robustnmf.formats.zarr_stores import ZARR_METADATA, read_zarr
from robustnmf.utils.process_state import ignored_warnings


class _Format(NamedTuple):
    """A kind of file: what to call it, how to make one, how to read one."""

    expected: str
    advice: str
    read: Callable[[Path, Options], Table]


_FORMATS = {
    "text": _Format("a table of text in UTF-8", "Save it as comma-separated text in UTF-8.", read_text),
    "npy": _Format("an array of NumPy", "Write it with numpy.save, as numbers.", read_npy),
    "npz": _Format("an archive of NumPy", "Write it with numpy.savez_compressed, as numbers.", read_npz),
    "mat": _Format("a MAT-file", "Save it from MATLAB with save -v7, as numbers.", read_mat),
    "hdf5": _Format("an HDF5 file", "Write it with h5py.", read_hdf5),
    "zarr": _Format("an array or group of zarr", "Write it with zarr.save.", read_zarr),
    "parquet": _Format("a Parquet file", "Write it with pandas or pyarrow.", read_parquet),
    "image": _Format(*IMAGE_WORDS, read_image_file),
    "folder": _Format("a folder of images", "Save them as PNG or TIFF.", read_image_folder),
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
    HDF5_SIGNATURE: "hdf5",
    b"MATLAB ": "mat",
    b"PAR1": "parquet",
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"GIF8"), "image"),
}


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
        Largest size of the values as floats, of a text file, and of whatever is unpacked on the way to the values; by
        default 8 GiB.

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
    path = Path(os.path.expanduser(path))
    # Not `path.exists`: it raises over names that no file can have.
    if not os.path.exists(path):
        raise FileNotFoundError(f"path must name data; there is no file or folder {path}. Check the path.")
    max_bytes = _checked_limit(max_bytes)
    kind = _format_of(path)
    code = _missing_number(missing_value, words=kind is _FORMATS["text"])
    options = Options(key, missing_value, header, max_bytes)
    # Libraries warn about oddities in files that say nothing to the user: either it can be read or it cannot.
    with ignored_warnings((Warning, "")), broken_is_data_file_error(path, kind.expected, kind.advice):
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
        wanted, given = times(table.values.shape), times(other.values.shape)
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


def _checked_limit(max_bytes: int | None) -> int:
    """Return the largest size to read, in bytes."""
    if max_bytes is None:
        return MAX_BYTES
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, Integral) or max_bytes < 1:
        raise ValueError(f"max_bytes must be a positive integer or None; got {max_bytes!r}. 2**30 stands for 1 GiB.")
    return int(max_bytes)


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


def _format_of(path: Path) -> _Format:
    """Return the format of a file by its suffix, or else by how it starts."""
    if path.is_dir():
        is_zarr = path.suffix.lower() == ".zarr" or any((path / name).exists() for name in ZARR_METADATA)
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
    with broken_is_data_file_error(path, "a zip file", "Copy or write it again."), zipfile.ZipFile(path) as archive:
        members = archive.namelist()
    if any(member.endswith(".npy") for member in members):
        return "npz"
    return "zarr" if any(member.endswith(ZARR_METADATA) for member in members) else None
