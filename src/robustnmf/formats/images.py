"""Image folders and image stacks."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.checks import check_size, float_type, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, broken_is_data_file_error, times
from robustnmf.formats.folders import check_entry
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix
from robustnmf.formats.limits import check_expansion
from robustnmf.formats.options import ReadOptions
from robustnmf.utils.extras import optional

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"}
)

# Only these: some of Pillow's other formats start programs (EPS calls Ghostscript).
_PILLOW_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")

_MAX_PAGES = 2**16
"""Pages of an image file."""

_SCAN, _MAX_SCANS = b"\xff\xda", 100
"""What each scan of a JPEG file begins with, and nothing else holds; programs write about ten."""

_WORDS = ("an image", "Save it as PNG, or as grey TIFF with 8, 16 or 32 bits per pixel.")


def read_image_folder(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read the images of a folder, one sample each."""
    refuse_key(path, options.key)
    files = _image_files(path)
    if not files:
        expected = f"a folder of images ({' '.join(sorted(IMAGE_SUFFIXES))})"
        advice = "Name the folder that holds them; folders inside are not searched."
        raise DataFileError(path, expected, "there are none in it", advice)
    stored = sum(file.stat().st_size for file in files)
    values, image_shape = _stack(path, _single_images(files), len(files), stored, options.max_bytes)
    return LabelledMatrix(values, Axis([file.name for file in files]), Axis(grid=image_shape, grid_names=("y", "x")))


def _image_files(folder: Path) -> list[Path]:
    """Return the images of a folder in natural order: 2 before 10."""
    files = []
    for entry in folder.iterdir():
        # Hidden files are none of the user's: macOS puts a ._a.png beside a.png.
        if entry.suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith("."):
            check_entry(folder, entry)
            if not entry.is_dir():
                files.append(entry)
    return sorted(files, key=lambda file: (_natural(file.name), file.name))


def _natural(name: str) -> list[str | int]:
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", name.casefold()))]


class _Page(NamedTuple):
    """An image that is open but not decoded, and what to call it."""

    file: Path
    name: str
    image: Any


def _single_images(files: Iterable[Path]) -> Iterator[_Page]:
    for file in files:
        with _open_image(file) as image:
            count = _n_pages(file, image)
            if count > 1:
                expected = "a single image, as it stands in a folder of images"
                advice = "Name the file itself, or take it out of the folder."
                raise DataFileError(file, expected, f"it has {count} pages", advice)
            yield _Page(file, file.name, image)


def read_image_file(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read the pages of an image file, one sample each."""
    refuse_key(path, options.key)
    with _open_image(path) as image:
        count = _n_pages(path, image)
        values, image_shape = _stack(path, _pages(path, image, count), count, path.stat().st_size, options.max_bytes)
    return LabelledMatrix(values, features=Axis(grid=image_shape, grid_names=("y", "x")))


def _pages(path: Path, image: Any, count: int) -> Iterator[_Page]:
    for page in range(count):
        image.seek(page)
        yield _Page(path, f"page {page + 1}", image)


def _n_pages(path: Path, image: Any) -> int:
    """Return the number of pages. Photographs in MPO format hold others of the same scene: only the first counts."""
    if image.format == "MPO":
        return 1
    count = _n_tiff_pages(image) if image.format == "TIFF" else int(getattr(image, "n_frames", 1))
    if count > _MAX_PAGES:
        raise OversizedError(f"{path.name} has more than {_MAX_PAGES} pages, the most that is read")
    return count


def _n_tiff_pages(image: Any) -> int:
    """Return the number of pages, or one more than the limit: Pillow looks for each of them among all before it."""
    count = 1
    try:
        while count <= _MAX_PAGES:
            image.seek(count)
            count += 1
    except EOFError:
        pass
    image.seek(0)
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


def _stack(
    path: Path, pages: Iterator[_Page], count: int, stored: int, max_bytes: int
) -> tuple[NDArray[np.floating[Any]], tuple[int, int]]:
    """Return images of one size and depth as rows, and their shape."""
    page = next(pages)
    shape = (page.image.height, page.image.width)
    # Twice as much as floats of 32 bits need, but images of them are rare.
    check_size(path, (count, *shape), 8, max_bytes)
    check_expansion(path, (count, *shape), 8, stored)
    first = _grey(page, max_bytes)
    values = np.empty((count, first.size), float_type(first.dtype))
    values[0] = first.ravel()
    for place, page in enumerate(pages, 1):
        if (page.image.height, page.image.width) != shape:
            given = f"the first is {times(shape)}, {page.name} is {page.image.height} x {page.image.width}"
            raise DataFileError(path, "images of one size", given, "Crop them alike, or take others out.")
        grey = _grey(page, max_bytes)
        if grey.dtype != first.dtype:
            given = f"the first is {first.dtype}, {page.name} is {grey.dtype}"
            raise DataFileError(path, "images of one depth", given, "Convert them alike.")
        values[place] = grey.ravel()
    return values, shape


def _grey(page: _Page, max_bytes: int) -> NDArray[Any]:
    """Return the grey values of an image in the depth that it is stored in."""
    image = page.image
    with broken_is_data_file_error(page.file, *_WORDS):
        tags = getattr(image, "tag_v2", {})
        # A tile is unpacked in full even where the image covers only a corner of it: 322 and 323 are its sides.
        check_size(page.file, (_side(tags, 322), _side(tags, 323)), 8, max_bytes)
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


def _side(tags: Any, tag: int) -> int:
    """Return a side of the tiles of a TIFF file; nothing if it has none."""
    value = tags.get(tag, 0)
    return int(value[0] if isinstance(value, tuple) else value)


_SIGNATURES = b"\x89PNG", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"GIF8"
FORMATS = (
    Format("image", *_WORDS, read_image_file, tuple(IMAGE_SUFFIXES), _SIGNATURES),
    # Last: any folder that is nothing else.
    Format(
        "image-folder", "a folder of images", "Save them as PNG or TIFF.", read_image_folder, owns_folder=Path.is_dir
    ),
)
