"""Images that Pillow reads, alone, with several pages or in folders."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats import tiff
from robustnmf.formats.axes import ArrayAxes
from robustnmf.formats.checks import as_matrix, check_size, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, broken_is_data_file_error, shortened
from robustnmf.formats.folders import check_entry
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.pictures import Picture, stacked
from robustnmf.formats.stored import array_in_file, as_levels, points_in_file
from robustnmf.utils.extras import optional
from robustnmf.utils.files import make_folder

_PILLOW_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".webp"})
IMAGE_SUFFIXES = _PILLOW_SUFFIXES | frozenset(tiff.SUFFIXES)

# Only these: some of Pillow's other formats start programs (EPS calls Ghostscript).
_PILLOW_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

_LOSSLESS = frozenset({".bmp", ".pgm", ".ppm", ".pnm", ".png"})
"""Formats of single images that come back as they are; others become PNG."""

_SCAN, _MAX_SCANS = b"\xff\xda", 100
"""What each scan of a JPEG file begins with, and nothing else holds; programs write about ten."""

_WORDS = ("an image", "Save it as PNG, or as TIFF, uncompressed or with Deflate.")


# --- Folders ----------------------------------------------------------------------------------------------------------


def read_image_folder(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read the images of a folder and of those inside, one sample each."""
    refuse_key(path, options.key)
    files = _image_files(path)
    if not files:
        expected = f"a folder of images ({' '.join(sorted(IMAGE_SUFFIXES))})"
        advice = "Name the folder that holds them, or one above it."
        raise DataFileError(path, expected, "there are none in it", advice)
    stored = sum(file.stat().st_size for file in files)
    names = [file.relative_to(path).as_posix() for file in files]
    pictures = stacked(path, _single_images(files, names, options), len(files), stored, options)
    axes = ArrayAxes(pictures.axes, {0: names}, notes=pictures.notes)
    return as_matrix(path, pictures.array, options, axes, about={"names": names})


def _image_files(folder: Path) -> list[Path]:
    """Return the images of a folder, and of those inside, in natural order: 2 before 10."""
    files = []
    for parent, folders, names in os.walk(folder):
        # Hidden files are none of the user's: macOS puts a ._a.png beside a.png.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            check_entry(folder, Path(parent, name))
        images = (name for name in names if Path(name).suffix.lower() in IMAGE_SUFFIXES and not name.startswith("."))
        for entry in (Path(parent, name) for name in images):
            check_entry(folder, entry)
            files.append(entry)
    return sorted(files, key=lambda file: _natural(file.relative_to(folder)))


def _natural(path: Path) -> list[tuple[list[str | int], str]]:
    """Return what files are sorted by: the numbers in the names of folders and files are numbers."""
    return [(_parted(name), name) for name in path.parts]


def _parted(name: str) -> list[str | int]:
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", name.casefold()))]


def _single_images(files: Iterable[Path], names: Sequence[str], options: ReadOptions) -> Iterator[Picture]:
    for file, name in zip(files, names, strict=True):
        if (deep := _deep_tiff(file, options)) is not None:
            _check_single(file, tiff.n_pages(file))
            yield next(deep)._replace(name=name)
            continue
        with _open_image(file) as image:
            _check_single(file, _n_pages(file, image))
            yield _picture(file, name, image, options.max_bytes)


def _deep_tiff(file: Path, options: ReadOptions) -> Iterator[Picture] | None:
    """Return the pages of a TIFF file that tifffile reads; None if it is left to Pillow."""
    if not tiff.is_tiff(file):
        return None
    with broken_is_data_file_error(file, *_WORDS):
        return tiff.pages_of(file, options.max_bytes)


def _check_single(file: Path, count: int) -> None:
    if count > 1:
        expected = "a single image, as it stands in a folder of images"
        advice = "Name the file itself, or take it out of the folder."
        raise DataFileError(file, expected, f"it has {count} pages", advice)


def write_image_folder(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a folder of images with the names that they were read with, or those of the samples."""
    array = as_levels(array_in_file(matrix))
    for name, pixels in zip(_file_names(matrix, array), array, strict=True):
        place = temporary / name
        make_folder(place.parent)
        if place.suffix in tiff.SUFFIXES:
            tiff.write_page(place, pixels)
        else:
            _write_picture(place, pixels)


def _file_names(matrix: LabelledMatrix, array: NDArray[Any]) -> list[str]:
    """Return names of files, in folders perhaps; formats that lose something become PNG, or TIFF if they must."""
    count = len(array)
    if array.ndim not in (3, 4):
        raise ValueError(
            f"values must be images, (n, rows, columns); they have shape {array.shape}. Write another format."
        )
    given = points_in_file(matrix).get(0, ("", matrix.sample_names))[1]
    given = [str(place) for place in range(count)] if given is None or len(given) != count else given
    names = [_file_name(name, array) for name in given]
    if len(set(names)) < count:  # a.jpg and a.png both become a.png
        names = [f"{name}{_own_suffix(PurePosixPath(name), array)}" for name in given]
    return names


def _file_name(name: str, array: NDArray[Any]) -> str:
    path = PurePosixPath(name)
    # Names of samples may be anybody's: none leads out of the folder, or is hidden there.
    parts = [part for part in path.parts if part not in ("/", "..", ".")]
    safe = PurePosixPath(*(re.sub(r"[^\w .()+,=@-]", "_", part).lstrip(".") or "_" for part in parts or ["_"]))
    suffix = _own_suffix(path, array)
    return (safe.with_suffix(suffix) if path.suffix.lower() in IMAGE_SUFFIXES else f"{safe}{suffix}").__str__()


def _own_suffix(path: PurePosixPath, array: NDArray[Any]) -> str:
    suffix = path.suffix.lower()
    if suffix in tiff.SUFFIXES or not _fits_png(array):
        return suffix if suffix in tiff.SUFFIXES else ".tif"
    is_16_bit, is_colour = array.dtype == np.uint16, array.ndim == 4
    kept = {".png"} if is_16_bit else _LOSSLESS - ({".pgm"} if is_colour else {".ppm", ".pnm"})
    return suffix if suffix in kept else ".png"


def _fits_png(array: NDArray[Any]) -> bool:
    """Return whether images, (n, rows, columns) or (n, rows, columns, 3), can be written by Pillow."""
    return array.dtype == np.uint8 or (array.dtype == np.uint16 and array.ndim == 3)


def _write_picture(place: Path, pixels: NDArray[Any]) -> None:
    optional("PIL.Image", "io", "pillow").fromarray(np.ascontiguousarray(pixels)).save(place)


# --- Files ------------------------------------------------------------------------------------------------------------


def read_image_file(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read the pages of an image file, one sample each."""
    refuse_key(path, options.key)
    with _open_image(path) as image:
        count = _n_pages(path, image)
        pages = _pages(path, image, count, options.max_bytes)
        pictures = stacked(path, pages, count, path.stat().st_size, options)
    axes = ArrayAxes(pictures.axes, notes=pictures.notes)
    return as_matrix(path, pictures.array, options, axes, about={"suffix": path.suffix.lower()})


def read_tiff_file(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a TIFF file: its pages, or the axes that ImageJ, OME or tifffile have noted."""
    about = tiff.described(path)
    deep = tiff.read_series(path, options, about)
    if deep is not None:
        return deep
    # What tifffile does not decode, with LZW or JPEG or of single bits, Pillow may.
    refuse_key(path, options.key)
    with _open_image(path) as image:
        count = _n_pages(path, image)
        pages = _pages(path, image, count, options.max_bytes)
        pictures = stacked(path, pages, count, path.stat().st_size, options)
    return tiff.in_axes(path, pictures, options, about)


def _pages(path: Path, image: Any, count: int, max_bytes: int) -> Iterator[Picture]:
    for page in range(count):
        image.seek(page)
        yield _picture(path, f"page {page + 1}" if count > 1 else "the image", image, max_bytes)


def _picture(file: Path, name: str, image: Any, max_bytes: int) -> Picture:
    """Return what is declared of the page at which an image stands."""
    mode = _mode(image)
    channels = {"L": (), "LA": (2,), "RGB": (3,), "RGBA": (4,)}.get(mode, ())
    by_palette = image.mode[0] == "P" or image.format == "GIF"
    load = partial(_load, file, name, image, mode, max_bytes)
    return Picture(file, name, (image.height, image.width, *channels), load, by_palette)


def _mode(image: Any) -> str:
    """Return what an image is converted to; empty if it is kept as it is."""
    if image.mode[0] in "IF":
        return ""
    if image.format == "GIF" or image.mode in ("P", "PA"):
        return "RGBA" if image.mode == "RGBA" or image.has_transparency_data else "RGB"
    return {"1": "L", "L": "L", "LA": "LA", "La": "LA", "RGBA": "RGBA", "RGBa": "RGBA"}.get(image.mode, "RGB")


def _load(file: Path, name: str, image: Any, mode: str, max_bytes: int) -> NDArray[Any]:
    """Return the pixels of an image in the depth that it is stored in."""
    with broken_is_data_file_error(file, *_WORDS):
        tags = getattr(image, "tag_v2", {})
        # A tile is unpacked in full even where the image covers only a corner of it: 322 and 323 are its sides.
        check_size(file, (_side(tags, 322), _side(tags, 323)), 8, max_bytes)
        bits, signed = tuple(tags.get(258, ())), tuple(tags.get(339, ())) == (2,)
        # Pillow would cut 16 bits of colour down to 8, and take negative numbers of 8 bits for positive ones.
        if (image.mode[0] not in "IF" and ";16" in str(image.tile)) or (bits == (8,) and signed):
            found = f"{name} has {'signed values' if signed else 'colours of 16 bits'}"
            advice = "Save it as 16-bit grey, or as TIFF, uncompressed or with Deflate."
            raise DataFileError(file, "an image whose values can be kept", found, advice)
        if mode:
            return np.asarray(image.convert(mode))
        values: NDArray[Any] = np.asarray(image)
    # Pillow takes unsigned values of 32 bits for signed ones.
    return values.view(np.uint32) if bits == (32,) and values.dtype == np.int32 and not signed else values


def _side(tags: Any, tag: int) -> int:
    """Return a side of the tiles of a TIFF file; nothing if it has none."""
    value = tags.get(tag, 0)
    return int(value[0] if isinstance(value, tuple) else value)


def _n_pages(path: Path, image: Any) -> int:
    """Return the number of pages. Photographs in MPO format hold others of the same scene: only the first counts."""
    if image.format == "MPO":
        return 1
    count = tiff.n_pages(path) if image.format == "TIFF" else int(getattr(image, "n_frames", 1))
    if count > tiff.MAX_PAGES:
        raise OversizedError(f"{path.name} has more than {tiff.MAX_PAGES} pages, the most that is read")
    return count


def _open_image(path: Path) -> Any:
    pillow = optional("PIL.Image", "io", "pillow")
    # An image that unpacks to an extreme size is an error. The filter ends with the one of `read_table`.
    warnings.simplefilter("error", pillow.DecompressionBombWarning)
    with broken_is_data_file_error(path, *_WORDS):
        pillow.init()
        # Builds of Pillow differ in what they can read.
        image = pillow.open(path, formats=[name for name in _PILLOW_FORMATS if name in pillow.OPEN])
        if image.format in ("JPEG", "MPO"):
            _check_scans(path)
        return image


def _check_scans(path: Path) -> None:
    """Raise if a photograph was stored in very many scans: each goes over all pixels again, and may be a few bytes."""
    count, last = 0, b""
    with path.open("rb") as file:
        while piece := file.read(2**20):
            count += (last + piece).count(_SCAN)
            last = piece[-1:]
    if count > _MAX_SCANS:
        raise OversizedError(f"{path.name} has {count} scans, and the most that is read is {_MAX_SCANS}")


def write_image(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a single image."""
    array = as_levels(array_in_file(matrix))
    array = array[None] if array.ndim == 2 else array
    suffix = temporary.suffix.lower()
    if len(array) != 1 or array.ndim > 4 or not _fits_png(array) or suffix not in _LOSSLESS | {""}:
        what = f"{len(array)} of {shortened(str(array.shape[1:]))} {array.dtype}"
        raise ValueError(
            f"values must be one image of 8 bits, or of 16 in grey, and its suffix one of {sorted(_LOSSLESS)}; they "
            f"are {what}, for {suffix!r}. Write them as .tif, which is a stack, or as a folder of images."
        )
    _write_picture(temporary, array[0])


def _written_suffix(matrix: LabelledMatrix) -> str:
    """Return the suffix of an image that came from a file: its own if nothing is lost by it, else PNG or TIFF."""
    array = as_levels(array_in_file(matrix))
    own = "" if matrix.source is None else str(matrix.source.about.get("suffix", ""))
    is_single = matrix.shape[0] == 1 and array.ndim in (3, 4)
    return _own_suffix(PurePosixPath(f"a{own}"), array) if is_single else ".tif"


def write_any(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write an image, or a stack if the suffix is that of TIFF."""
    if temporary.suffix.lower() in tiff.SUFFIXES:
        tiff.write_tiff(temporary, matrix)
    else:
        write_image(temporary, matrix)


_SIGNATURES = b"\x89PNG", b"\xff\xd8\xff", b"GIF8"
FORMATS = (
    Format("tiff", *_WORDS, read_tiff_file, tiff.SUFFIXES, tiff.SIGNATURES, write=tiff.write_tiff),
    Format(
        "image",
        *_WORDS,
        read_image_file,
        tuple(sorted(_PILLOW_SUFFIXES)),
        _SIGNATURES,
        write=write_any,
        suffix_written=_written_suffix,
    ),
    # Last: any folder that is nothing else.
    Format(
        "image-folder",
        "a folder of images",
        "Save them as PNG or TIFF.",
        read_image_folder,
        owns_folder=Path.is_dir,
        write=write_image_folder,
        writes_folder=True,
    ),
)
