"""Images and cubes of FITS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.axes import SPACE, ArrayAxes, number_texts, role_of
from robustnmf.formats.checks import Found, as_matrix, choose
from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import COMPONENT, STORED_TYPE, LabelledMatrix
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.stored import array_in_file, in_type, names_in_file, unit_of_axis, vectors_in_file
from robustnmf.utils.extras import optional

SIGNATURE = b"SIMPLE  ="

MAX_HDUS = 4096
"""Parts of a file, each with a header and values."""

MAX_HEADER = 2**22
"""Bytes of a header: 4 MiB. Each card of it, of 80 bytes, takes time."""

_BLOCK = 2880
_TYPES = {8: "u1", 16: "i2", 32: "i4", 64: "i8", -32: "f4", -64: "f8"}
_AXES = {
    **dict.fromkeys(("WAVE", "AWAV", "VELO", "VRAD", "VOPT", "FREQ", "ENER", "WAVN", "ZOPT", "BETA", "FELO"), "band"),
    **dict.fromkeys(("RA", "GLON", "ELON", "HPLN", "X", "LINEAR"), "x"),
    **dict.fromkeys(("DEC", "GLAT", "ELAT", "HPLT", "Y"), "y"),
    **{"TIME": "t", "UTC": "t", "STOKES": "c"},
}
_BANDS = {"WAVE": "wavelength", "AWAV": "wavelength", "FREQ": "frequency", "ENER": "energy", "WAVN": "wavenumber"}
_OWN = frozenset({"SIMPLE", "BITPIX", "NAXIS", "EXTEND", "BSCALE", "BZERO", "BLANK", "XTENSION", "PCOUNT", "GCOUNT"})
"""Cards that follow from the values."""


def read_fits(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read an image, a cube or a table of numbers; key is the name of a part, or its number."""
    with path.open("rb") as file:
        # Astropy unpacks files of gzip and others that begin like them, to any size.
        if not file.read(len(SIGNATURE)) == SIGNATURE:
            raise ValueError("it begins with no SIMPLE card; unpack it if it is compressed")
    _check_headers(path)
    fits = optional("astropy.io.fits", "fits")
    with fits.open(path, mode="readonly", memmap=False, disable_image_compression=True) as hdus:
        parts = {_name(hdus, place): hdu for place, hdu in enumerate(hdus)}
        found = {name: _found(hdu) for name, hdu in parts.items()}
        if any("ZIMAGE" in hdu.header for hdu in hdus) and not any(
            entry.dtype for entry in found.values() if entry.shape
        ):
            expected, advice = "a FITS file that is not compressed", "Unpack it with funpack."
            raise DataFileError(path, expected, "its images are in compressed tiles", advice)
        name = choose(path, found, _with_name(options, list(parts)))
        hdu = parts[name]
        _check_stored(path, hdu, found[name])
        header = hdu.header.copy()
        blank = hdu.header.get("BLANK") if hdu.header["BITPIX"] > 0 else None
        array = np.asarray(hdu.data)
    about: dict[str, Any] = {"fits": header.tostring(sep="\n")}
    if blank is not None:  # numbers are scaled to floats, one of them to NaN
        about |= {STORED_TYPE: found[name].dtype, "blank": blank, "scale": _scale(header)}
    return as_matrix(path, array.astype(array.dtype.newbyteorder("=")), options, _axes(header, array), about=about)


def _check_headers(path: Path) -> None:
    """Raise if there are very many parts, or headers without end: Astropy reads each in full."""
    size = path.stat().st_size
    with path.open("rb") as file:
        place, count = 0, 0
        while place < size:
            file.seek(place)
            header = _header(file)
            count += 1
            if count > MAX_HDUS:
                raise OversizedError(f"it has more than {MAX_HDUS} parts, the most that is read")
            place = file.tell() + -(-_data_size(header) // _BLOCK) * _BLOCK


def _header(file: IO[bytes]) -> bytes:
    blocks: list[bytes] = []
    while block := file.read(_BLOCK):
        blocks.append(block)
        if any(block[at : at + 8] == b"END     " for at in range(0, len(block), 80)):
            return b"".join(blocks)
        if len(blocks) * _BLOCK > MAX_HEADER:
            raise OversizedError(f"it has a header of more than {MAX_HEADER} bytes")
    raise ValueError("a header without END")


def _data_size(header: bytes) -> int:
    """Return how many bytes of values a header declares."""
    cards = {header[at : at + 8].strip(): header[at + 10 : at + 30] for at in range(0, len(header), 80)}

    def number(name: bytes, default: int) -> int:
        text = cards.get(name, b"").strip()
        return int(text) if text and len(text) < 16 else default

    n_axes = number(b"NAXIS", 0)
    if not 0 <= n_axes <= 999:
        raise ValueError(f"NAXIS is {n_axes}")
    sizes = [number(b"NAXIS%d" % axis, 0) for axis in range(1, n_axes + 1)]
    values = 1
    for size in sizes:
        values *= max(size, 0)
    values = values if sizes else 0
    return abs(number(b"BITPIX", 8)) // 8 * number(b"GCOUNT", 1) * (number(b"PCOUNT", 0) + values)


def _name(hdus: Any, place: int) -> str:
    """Return what a part is called: its name, or its number if it has none or one that is taken."""
    names = [str(hdu.header.get("EXTNAME", "")).strip() for hdu in hdus]
    return names[place] if names[place] and names.count(names[place]) == 1 else str(place)


def _with_name(options: ReadOptions, names: list[str]) -> ReadOptions:
    """Return the options with the name of a part in place of its number."""
    key = options.key
    if key is None or key in names or not key.isdigit() or int(key) >= len(names):
        return options
    return replace(options, key=names[int(key)])


def _found(hdu: Any) -> Found:
    """Return shape and type of the values of a part; no type for tables of records."""
    header = hdu.header
    n_axes = int(header.get("NAXIS", 0))
    shape = tuple(int(header.get(f"NAXIS{axis}", 0)) for axis in range(n_axes, 0, -1))
    is_image = bool(getattr(hdu, "is_image", False)) and type(hdu).__name__ in ("PrimaryHDU", "ImageHDU")
    kind = _TYPES.get(header.get("BITPIX")) if is_image else None
    return Found(shape, None if kind is None else np.dtype(kind))


def _check_stored(path: Path, hdu: Any, found: Found) -> None:
    itemsize = 0 if found.dtype is None else found.dtype.itemsize
    needed = int(np.prod(np.array(found.shape, dtype=object))) * itemsize
    start = hdu.fileinfo()["datLoc"]
    if start + needed > path.stat().st_size:
        expected = f"a file with the {needed} bytes of values that its header declares"
        advice = "It was cut short: copy or write it again."
        raise DataFileError(path, expected, f"it has {max(path.stat().st_size - start, 0)}", advice)


def _scale(header: Any) -> tuple[float, float]:
    return float(header.get("BSCALE", 1)), float(header.get("BZERO", 0))


def _axes(header: Any, array: NDArray[Any]) -> ArrayAxes | None:
    """Return what the cards of coordinates tell about the axes, which come in reverse; None if they tell nothing."""
    numbers = range(array.ndim, 0, -1)
    names = _axis_names(header, array.ndim)
    if not any(names):
        return None
    points: dict[int, list[str]] = {}
    units: dict[int, str] = {}
    for axis, number in enumerate(numbers):
        step = header.get(f"CDELT{number}", header.get(f"CD{number}_{number}"))
        if role_of(names[axis]) == "band" and isinstance(step, float | int):
            first = float(header.get(f"CRVAL{number}", 0)) - (float(header.get(f"CRPIX{number}", 1)) - 1) * float(step)
            # To the digits that the header has: the last ones come from the sum.
            values = first + float(step) * np.arange(array.shape[axis])
            points[axis] = number_texts(float(f"{value:.12g}") for value in values)
            unit = shortened(str(header.get(f"CUNIT{number}", "")).strip(), 80)
            units |= {axis: unit} if unit else {}
    return ArrayAxes(names, points, units)


def _axis_names(header: Any, n_axes: int) -> tuple[str, ...]:
    """Return what the axes are, the last one of the header first; "" where unknown."""
    numbers = range(n_axes, 0, -1)
    kinds = [str(header.get(f"CTYPE{number}", "")).strip().upper().split("-")[0] for number in numbers]
    return tuple(_BANDS.get(kind, "spectral" if _AXES.get(kind) == "band" else _AXES.get(kind, "")) for kind in kinds)


def write_fits(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write an image or cube with the header that it was read with."""
    fits = optional("astropy.io.fits", "fits")
    about: Mapping[str, Any] = {} if matrix.source is None else matrix.source.about
    array = _scaled(matrix, about)
    header = fits.Header.fromstring(about["fits"], sep="\n") if about.get("fits") else fits.Header()
    is_same = _same_axes(header, array) and COMPONENT not in (names_in_file(matrix) or ())
    moved = {} if is_same else _moved(header, names_in_file(matrix) or (), array.shape)
    for name in list(header):
        is_other = not is_same and _WORLD.fullmatch(name) is not None
        if name in _OWN or name.startswith("NAXIS") or is_other or (matrix.is_result and name in _OF_VALUES):
            header.remove(name, ignore_missing=True, remove_all=True)
    header.update(moved)
    if not is_same or not about.get("fits"):
        _describe(header, matrix, array.ndim)
    hdu = fits.PrimaryHDU(array.astype(np.uint8) if array.dtype == bool else array, header=header)
    if _is_blank(about) and array.dtype != bool:
        hdu.header["BLANK"] = about["blank"]
        _keep_scale(hdu.header, about)
    with temporary.open("wb") as file:
        hdu.writeto(file, output_verify="silentfix")


_WORLD = re.compile(
    r"WCSAXES[A-Z]?|(?P<card>CTYPE|CRVAL|CRPIX|CDELT|CUNIT|CROTA|CNAME|PC|CD|PV|PS)(?P<axis>\d+)(_(?P<other>\d+))?(?P<version>[A-Z]?)"
)
"""Cards of coordinates, with the number of an axis, or of two."""

_OF_VALUES = frozenset({"BUNIT", "DATAMIN", "DATAMAX"})
"""Cards about the values of the data, which those of masks, codes and components are not."""


def _moved(header: Any, names: Sequence[str], shape: Sequence[int]) -> dict[str, tuple[Any, str]]:
    """Return the cards of the axes of space that values still have, with the numbers that these axes have now.

    Parameters
    ----------
    header : fits.Header
        The header of the data.
    names, shape : sequence
        Names and lengths of the axes of the values.

    Returns
    -------
    dict of str to (value, comment)
        Cards by their names.
    """
    old = _axis_names(header, int(header.get("NAXIS", 0)))
    numbers = {
        len(old) - old.index(name): len(names) - axis
        for axis, name in enumerate(names)
        if name in SPACE and old.count(name) == 1 and header.get(f"NAXIS{len(old) - old.index(name)}") == shape[axis]
    }
    renamed = ((_renumbered(card.keyword, numbers), card) for card in header.cards)
    return {name: (card.value, card.comment) for name, card in renamed if name is not None}


def _renumbered(name: str, numbers: Mapping[int, int]) -> str | None:
    """Return the name of a card of coordinates with other numbers of axes; None if an axis has none.

    Examples
    --------
    >>> [_renumbered(name, {2: 1, 3: 2}) for name in ("CRVAL3", "PC2_3", "PV2_3A", "PC1_2", "OBJECT")]
    ['CRVAL2', 'PC1_2', 'PV1_3A', None, None]
    """
    found = _WORLD.fullmatch(name)
    if found is None or found["card"] is None:
        return None
    # Behind PC and CD stand two axes, behind PV and PS an axis and the number of a parameter.
    axis, other = numbers.get(int(found["axis"])), found["other"]
    if other is not None and found["card"] in ("PC", "CD"):
        other = numbers.get(int(other), 0)
    if axis is None or other == 0:
        return None
    return f"{found['card']}{axis}{'' if other is None else f'_{other}'}{found['version']}"


def _same_axes(header: Any, array: NDArray[Any]) -> bool:
    sizes = tuple(header.get(f"NAXIS{number}") for number in range(array.ndim, 0, -1))
    return sizes == array.shape


def _scaled(matrix: LabelledMatrix, about: Mapping[str, Any]) -> NDArray[Any]:
    """Return the values as they are stored: if some may be missing, as whole numbers of which one stands for that."""
    values = np.asarray(matrix.array())
    if not _is_blank(about) or values.dtype == bool:
        return array_in_file(matrix)
    scale, zero = about["scale"]
    stored = (values - zero) / scale
    return in_type(np.where(np.isnan(stored), about["blank"], stored), about[STORED_TYPE])


def _is_blank(about: Mapping[str, Any]) -> bool:
    """Return whether values are stored as whole numbers of which one stands for what is missing."""
    return STORED_TYPE in about and about.get("blank") is not None


def _keep_scale(header: Any, about: Mapping[str, Any]) -> None:
    scale, zero = about["scale"]
    if (scale, zero) != (1, 0):
        header["BSCALE"], header["BZERO"] = scale, zero


_CARDS = {"y": "Y", "x": "X", "t": "TIME"}


def _describe(header: Any, matrix: LabelledMatrix, n_axes: int) -> None:
    """Add cards for the axes that are known: evenly spaced wavelengths, and which axes are space."""
    for axis, name in enumerate(names_in_file(matrix) or ()):
        number, role = n_axes - axis, role_of(name)
        if role in _CARDS and name != COMPONENT and f"CTYPE{number}" not in header:
            header[f"CTYPE{number}"] = _CARDS[role]
    for axis, (name, values) in vectors_in_file(matrix).items():
        number = n_axes - axis
        steps = np.diff(values)
        if len(values) < 2 or not np.allclose(steps, steps[0], rtol=1e-6):
            raise ValueError(
                f"the axis {name!r} must be evenly spaced to be written as FITS; steps are {steps.min():g} to "
                f"{steps.max():g}. Write .npz, .h5, .zarr or .hdr, which keep each number."
            )
        known = {title: kind for kind, title in _BANDS.items() if kind != "AWAV"}
        header[f"CTYPE{number}"] = known.get(name.lower(), "WAVE")
        header[f"CRPIX{number}"], header[f"CRVAL{number}"] = 1.0, float(values[0])
        header[f"CDELT{number}"] = float(f"{(values[-1] - values[0]) / (len(values) - 1):.12g}")
        if unit := unit_of_axis(matrix, axis):
            header[f"CUNIT{number}"] = unit


_WORDS = "a FITS file", "Write it with astropy.io.fits, or unpack it with funpack or gunzip."
FORMATS = (Format("fits", *_WORDS, read_fits, (".fits", ".fit", ".fts"), (SIGNATURE,), write=write_fits),)
