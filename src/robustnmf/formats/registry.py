"""All formats, and which of them a file or an open array has."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from robustnmf.formats import (
    envi,
    excel,
    feather,
    fits,
    h5ad,
    hdf5,
    hspy,
    images,
    matlab,
    matrix_market,
    numpy_files,
    parquet,
    text,
    video,
    zarr_stores,
)
from robustnmf.formats.errors import DataFileError, broken_is_data_file_error
from robustnmf.formats.format import Format
from robustnmf.formats.rows import Rows

# The first that knows a file reads it; folders of images come last, as any folder could be one.
MODULES = (
    *(text, excel, numpy_files, matlab, matrix_market, h5ad, hspy, hdf5, zarr_stores, parquet, feather),
    *(envi, fits, video, images),
)
"""Modules of this folder that have `FORMATS`."""

FORMATS: tuple[Format, ...] = tuple(known for module in MODULES for known in module.FORMATS)


def rows_of(X: Any) -> Rows | None:
    """Return the rows of an array on disk; None if it is in memory.

    Parameters
    ----------
    X : numpy.memmap, h5py.Dataset, h5py.Group of a sparse matrix, X of backed AnnData, zarr.Array, rows, or any other

    Returns
    -------
    Rows or None
        The rows.
    """
    if isinstance(X, Rows):
        return X
    return next((rows for known in FORMATS if (rows := known.rows_of(X)) is not None), None)


def format_of(path: Path) -> Format:
    """Return the format of a file by its suffix, or else by how it starts; raise DataFileError if it has none."""
    if path.is_dir():
        return next(known for known in FORMATS if known.owns_folder(path))
    suffixes = sorted(suffix for known in FORMATS for suffix in known.suffixes)
    expected = f"data in a known format ({' '.join(suffixes)}, or a folder of images)"
    if not path.is_file():
        raise DataFileError(path, expected, "it is neither a file nor a folder", "Check the path.")
    found = format_by_suffix(path) or next((known for known in FORMATS if known.owns_file(path)), None)
    found = found or _format_by_content(path)
    if found is None:
        words = f"its suffix is {path.suffix!r} and it starts like none of them"
        raise DataFileError(path, expected, words, "Convert it, or correct the suffix.")
    return found


def format_by_suffix(path: Path) -> Format | None:
    """Return the format that files of this name have; None if no format is known by it."""
    endings = {path.suffix.lower(), "".join(path.suffixes[-2:]).lower()}  # .mtx.gz is one of two parts
    return next((known for known in FORMATS if endings.intersection(known.suffixes)), None)


def _format_by_content(path: Path) -> Format | None:
    with path.open("rb") as file:
        start = file.read(16)
    if not start.startswith(b"PK\x03\x04"):
        return next((known for known in FORMATS if start.startswith(known.signatures)), None)
    with broken_is_data_file_error(path, "a zip file", "Copy or write it again."), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return next((known for known in FORMATS if any(name.endswith(known.members) for name in names)), None)
