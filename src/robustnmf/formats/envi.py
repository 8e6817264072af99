"""Cubes of ENVI: a header (.hdr) and a file of numbers beside it; also its libraries of spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.axes import ArrayAxes, number_texts, role_of
from robustnmf.formats.checks import Found, as_matrix, check_array, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.folders import check_entry
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import COMPONENT, LabelledMatrix
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.stored import array_in_file, points_in_file, unit_of_axis, vectors_in_file
from robustnmf.utils.extras import optional

MAX_HEADER, MAX_HEADER_LINES = 2**22, 2**14
"""Bytes of a header, and lines of it: 4 MiB and 16384. Those of some hundred bands have some thousand bytes."""

_TYPES = {
    **{1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8"},
    **{6: "c8", 9: "c16"},
}
_DATA_SUFFIXES = (".img", ".dat", ".raw", ".bil", ".bip", ".bsq", ".sli", ".bin", "")
_ORDERS = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}
"""Axes in the order in which they are stored: 0 is the line, 1 the sample in it, 2 the band."""

_OWN = frozenset(
    {"samples", "lines", "bands", "header offset", "file type", "data type", "interleave", "byte order"}
    | {"wavelength", "wavelength units", "band names", "spectra names"}
)
"""Entries of a header that follow from the values."""

_OF_VALUES = frozenset(
    {"data ignore value", "reflectance scale factor", "data units", "default stretch", "z plot range", "z plot titles"}
    | {f"data {kind}{what} values" for kind in ("", "reflectance ") for what in ("gain", "offset")}
)
"""Entries of a header about the values of the data, which those of masks, codes and components are not."""


def read_envi(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a cube as pixels with their bands, or a library as spectra."""
    refuse_key(path, options.key)
    header_path, data_path = _pair(path)
    header = _header(header_path)
    shape = tuple(_whole(header, name) for name in ("lines", "samples", "bands"))
    interleave = str(header.get("interleave", "bsq")).lower()
    if interleave not in _ORDERS:
        raise ValueError(f"unknown interleave {shortened(interleave)!r}")
    number = _whole(header, "data type")
    kind = _TYPES.get(number)
    if kind is None:
        raise ValueError(f"unknown data type {number}")
    dtype = np.dtype(kind).newbyteorder(">" if str(header.get("byte order", "0")).strip() == "1" else "<")
    is_library = "library" in str(header.get("file type", "")).lower()
    check_array(path, "", Found(shape[:2] if is_library else shape, dtype), options.max_bytes)
    array = _values(path, data_path, header, dtype, tuple(shape[axis] for axis in _ORDERS[interleave]))
    array = array.transpose(np.argsort(_ORDERS[interleave]))
    array = array[..., 0] if is_library else array
    axes = _library_axes(header, array.shape) if is_library else _cube_axes(header, array.shape)
    about = {"envi": header, "interleave": interleave, "data_suffix": data_path.suffix}
    return as_matrix(path, _with_missing(array, header), options, axes, dtype.newbyteorder("="), about)


def _pair(path: Path) -> tuple[Path, Path]:
    """Return the files of header and numbers, if one of them is named; both are in the same folder."""
    if path.suffix.lower() != ".hdr":
        header = _header_beside(path)
        if header is None:
            expected, advice = "numbers of ENVI beside a header", f"Put {path.stem}.hdr into the same folder."
            raise DataFileError(path, expected, "there is no header beside it", advice)
        check_entry(path.parent, header)
        return header, path
    stems = [path.with_suffix(suffix) for suffix in (*_DATA_SUFFIXES, *map(str.upper, _DATA_SUFFIXES))]
    found = next((data for data in stems if data.is_file() and data != path), None)
    if found is None:
        expected = f"a header of ENVI beside its numbers ({' '.join(filter(None, _DATA_SUFFIXES))})"
        advice = "Put the file with the numbers into the same folder."
        raise DataFileError(path, expected, f"there is no file {path.stem} with one of these suffixes", advice)
    check_entry(path.parent, found)
    return path, found


def _header_beside(path: Path) -> Path | None:
    names = (path.with_suffix(".hdr"), path.with_suffix(".HDR"), path.with_name(f"{path.name}.hdr"))
    return next((header for header in names if header.is_file()), None)


def _owns_file(path: Path) -> bool:
    """Return whether a header of ENVI lies beside a file that has the suffix of its numbers."""
    header = _header_beside(path) if path.suffix.lower() in _DATA_SUFFIXES else None
    if header is None:
        return False
    with header.open("rb") as file:
        return file.read(4) == b"ENVI"


def _header(path: Path) -> dict[str, Any]:
    """Return the entries of a header as texts and lists of texts."""
    if path.stat().st_size > MAX_HEADER:
        found = f"its header has {path.stat().st_size} bytes, and the most that is read is {MAX_HEADER}"
        raise OversizedError(found)
    if path.read_bytes().count(b"\n") > MAX_HEADER_LINES:
        raise OversizedError(f"its header has more than {MAX_HEADER_LINES} lines")
    header = optional("spectral.io.envi", "envi").read_envi_header(str(path))
    if str(header.get("file compression", "0")).strip() not in ("0", ""):
        raise DataFileError(path, "a cube of ENVI that is not compressed", "it is", "Write it without compression.")
    return {str(name): value for name, value in header.items()}


def _whole(header: Mapping[str, Any], name: str) -> int:
    text = str(header.get(name, "")).strip()
    if not text.isdigit() or len(text) > 15:
        raise ValueError(f"{name} is {shortened(text)!r}")
    return int(text)


def _values(
    path: Path, data_path: Path, header: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return the numbers as they are stored, if the file has them all."""
    offset = _whole(header, "header offset") if "header offset" in header else 0
    needed, size = math.prod(shape) * dtype.itemsize, data_path.stat().st_size
    if offset + needed > size:
        expected = f"a cube with the {needed} bytes of values that its header declares"
        advice = "It was cut short: copy or write it again."
        raise DataFileError(path, expected, f"{data_path.name} has {max(size - offset, 0)}", advice)
    return np.fromfile(data_path, dtype, math.prod(shape), offset=offset).reshape(shape)


def _with_missing(array: NDArray[Any], header: Mapping[str, Any]) -> NDArray[Any]:
    """Return numbers as floats, NaN where the header says that they are to be ignored."""
    if "data ignore value" not in header:
        return array
    code = float(header["data ignore value"])
    is_missing = array == code
    if not is_missing.any():
        return array
    return np.where(is_missing, np.nan, array.astype(np.float32 if array.dtype.itemsize < 4 else np.float64))


def _names(header: Mapping[str, Any], name: str, count: int) -> list[str] | None:
    """Return a list of the header, if it has the right length."""
    given = header.get(name)
    texts = [shortened(str(text).strip(), 80) for text in given] if isinstance(given, list) else []
    return texts if len(texts) == count and count > 0 else None


def _band_axis(header: Mapping[str, Any], count: int) -> tuple[str, Sequence[str] | None, str]:
    """Return name, points and unit of the axis of the bands."""
    wavelengths = _names(header, "wavelength", count)
    if wavelengths is None:
        return "band", _names(header, "band names", count), ""
    unit = shortened(str(header.get("wavelength units", "")).strip(), 80)
    return "wavelength", number_texts(map(float, wavelengths)), "" if unit.lower() == "unknown" else unit


def _cube_axes(header: Mapping[str, Any], shape: tuple[int, ...]) -> ArrayAxes:
    title, points, unit = _band_axis(header, shape[2])
    known = {2: points} if points is not None else {}
    return ArrayAxes(("y", "x", title), known, {2: unit} if unit else {}, samples=(0, 1))


def _library_axes(header: Mapping[str, Any], shape: tuple[int, ...]) -> ArrayAxes:
    title, points, unit = _band_axis(header, shape[1])
    spectra = _names(header, "spectra names", shape[0])
    known = {place: names for place, names in enumerate((spectra, points)) if names is not None}
    return ArrayAxes(("spectrum name", title), known, {1: unit} if unit else {})


def write_envi(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a cube, or a table as a library of spectra: the header, and numbers beside it."""
    envi = optional("spectral.io.envi", "envi")
    about = {} if matrix.source is None else matrix.source.about
    kept = _kept(about.get("envi", {}), matrix)
    array, band = _cube(_coded(matrix, kept), matrix)
    header = kept | _described(matrix, band)
    place = temporary.with_suffix(".hdr")
    own = about.get("data_suffix") or (".sli" if array.ndim == 2 else ".img")
    data = temporary.with_suffix(own if temporary.suffix.lower() == ".hdr" else temporary.suffix)
    if array.ndim == 2:
        _write_library(envi, place, data, array, header, points_in_file(matrix).get(0))
        return
    interleave = about.get("interleave", "bip")
    envi.save_image(
        str(place), array, dtype=array.dtype, interleave=interleave, ext=data.suffix, metadata=header, force=True
    )


def _kept(header: Mapping[str, Any], matrix: LabelledMatrix) -> dict[str, Any]:
    """Return the entries of the header of the data that hold for these values too."""
    dropped = _OWN | _OF_VALUES if matrix.is_result else _OWN
    kept = {name: value for name, value in header.items() if name not in dropped}
    if matrix.features.title != COMPONENT:
        return kept
    # Bands of codes are components: what is known of wavelengths, such as their widths, is not known of them.
    n_bands = str(header.get("bands", ""))
    of_bands = {name for name, value in kept.items() if isinstance(value, list) and str(len(value)) == n_bands}
    return {name: value for name, value in kept.items() if name not in of_bands | {"default bands"}}


def _write_library(
    envi: Any,
    place: Path,
    data: Path,
    array: NDArray[Any],
    header: dict[str, Any],
    names: tuple[str, Sequence[str]] | None,
) -> None:
    """Write spectra as lines of one band, which is what a library of ENVI is."""
    number = next(number for number, kind in _TYPES.items() if np.dtype(kind) == array.dtype)
    header |= {"lines": array.shape[0], "samples": array.shape[1], "bands": 1, "header offset": 0}
    header |= {"data type": number, "interleave": "bsq", "byte order": 0}
    if names is not None:
        header["spectra names"] = [_plain(name) for name in names[1]]
    envi.write_envi_header(str(place), header, is_library=True)
    array.astype(array.dtype.newbyteorder("<")).tofile(data)


def _coded(matrix: LabelledMatrix, header: Mapping[str, Any]) -> NDArray[Any]:
    """Return the values in the type of the file; missing ones get the number that the header has for them."""
    values = matrix.values
    if "data ignore value" in header and values.dtype.kind == "f":
        matrix = matrix.with_values(np.where(np.isnan(values), float(header["data ignore value"]), values))
    array = array_in_file(matrix)
    return (
        array.astype({"b": np.uint8, "i": np.int16}[array.dtype.kind])
        if array.dtype.itemsize == 1 and (array.dtype.kind in "bi")
        else array
    )


def _cube(array: NDArray[Any], matrix: LabelledMatrix) -> tuple[NDArray[Any], int]:
    """Return an array as (lines, samples, bands), or a table as it is; and which of its axes has the bands."""
    if array.ndim not in (2, 3):
        raise ValueError(f"values must be a cube or a table to be written as ENVI; they have shape {array.shape}.")
    layout = None if matrix.source is None else matrix.source.layout
    roles = [role_of(name) for name in (layout.names or ())] if layout is not None else []
    band = next((axis for axis, role in enumerate(roles) if role in ("band", "c", "t")), array.ndim - 1)
    return (np.moveaxis(array, band, -1), band) if array.ndim == 3 else (array, 1)


def _described(matrix: LabelledMatrix, band: int) -> dict[str, Any]:
    vectors = vectors_in_file(matrix)
    if band in vectors:
        unit = unit_of_axis(matrix, band)
        numbers = number_texts(vectors[band][1])
        return {"wavelength": numbers, **({"wavelength units": unit} if unit else {})}
    names = points_in_file(matrix).get(band)
    return {} if names is None else {"band names": [_plain(name) for name in names[1]]}


def _plain(name: str) -> str:
    """Return a name without the signs that part entries of a header."""
    return "".join("_" if sign in "{},\n\r" else sign for sign in name)


_WORDS = "a cube of ENVI", "Write it with spectral.envi.save_image, uncompressed."
FORMATS = (
    Format(
        "envi",
        *_WORDS,
        read_envi,
        (".hdr", ".img", ".bil", ".bip", ".bsq", ".sli"),
        (b"ENVI\n", b"ENVI\r"),
        write=write_envi,
        owns_file=_owns_file,
    ),
)
