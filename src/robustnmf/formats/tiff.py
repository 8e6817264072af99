"""TIFF files: pages that tifffile decodes, and the axes and scales that ImageJ, OME and tifffile note in them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.axes import ArrayAxes, role_of
from robustnmf.formats.checks import MAX_AXES, as_matrix, check_size, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, shortened, times
from robustnmf.formats.labelled_matrix import COMPONENT, LabelledMatrix, Source
from robustnmf.formats.limits import room_for_chunk
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.packed import DEFLATE_RATIO, unpacked_size
from robustnmf.formats.pictures import Picture, Pictures, stacked
from robustnmf.formats.stored import array_in_file, as_levels, names_in_file, points_in_file
from robustnmf.utils.extras import optional

SUFFIXES = (".tif", ".tiff")
SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

MAX_PAGES = 2**16
"""Pages of an image file."""

MAX_PIXELS = 2**30 // 4 // 3
"""Pixels of a page: the limit of Pillow."""

MAX_SEGMENTS = 2**17
"""Strips or tiles of a page: each takes time."""

MAX_DESCRIPTION = 2**24
"""Bytes of the text about the axes: 16 MiB."""

_PLAIN, _DEFLATE = 1, frozenset({8, 32946})
_BLACK_IS_ZERO, _RGB = 1, 2
_SLACK = 4096

_IMAGEJ_TYPES = (np.uint8, np.uint16, np.float32)
_IMAGEJ_KEPT = ("unit", "yunit", "zunit", "spacing", "finterval", "fps", "loop", "min", "max", "mode")
_OME_KEPT = (
    *(f"PhysicalSize{axis}{unit}" for axis in "XYZ" for unit in ("", "Unit")),
    *("TimeIncrement", "TimeIncrementUnit"),
)


@dataclass(frozen=True)
class Described:
    """What a file tells about its pages: sizes and letters of the axes before rows and columns, and scales.

    Parameters
    ----------
    kind : {"imagej", "ome", "shaped", ""}
        Who tells it.
    letters : str
        A letter for each axis, as tifffile calls them: T, Z, C ...
    sizes : tuple of int
        Length of each of these axes.
    pages : sequence of int or None
        Pages in the order of these axes; None if they are as they come.
    scales : mapping
        Calibration.
    channels : tuple of str
        Names of the channels.
    """

    kind: str = ""
    letters: str = ""
    sizes: tuple[int, ...] = ()
    pages: Sequence[int] | None = None
    scales: Mapping[str, Any] = field(default_factory=dict)
    channels: tuple[str, ...] = ()


def is_tiff(path: Path) -> bool:
    """Return whether a file begins like TIFF."""
    with path.open("rb") as file:
        return file.read(4) in SIGNATURES


# --- Pages ------------------------------------------------------------------------------------------------------------


def n_pages(path: Path) -> int:
    """Return the number of pages; raise OversizedError if there are too many, as in a list that runs in a circle."""
    with path.open("rb") as file:
        head = file.read(16)
        order = "<" if head[:2] == b"II" else ">"
        is_big = head[2:4] in (b"+\0", b"\0+")
        # A directory is a number of entries, the entries, and where the next one is.
        sizes = ("Q", 20, "Q") if is_big else ("H", 12, "I")
        place = struct.unpack(f"{order}{sizes[2]}", head[8:16] if is_big else head[4:8])[0]
        count = 0
        while place:
            count += 1
            if count > MAX_PAGES:
                raise OversizedError(f"{path.name} has more than {MAX_PAGES} pages, the most that is read")
            place = _next_page(file, place, order, sizes)
    return count


def _next_page(file: IO[bytes], place: int, order: str, sizes: tuple[str, int, str]) -> int:
    file.seek(place)
    n_entries = _number(file, order + sizes[0])
    file.seek(n_entries * sizes[1], 1)
    return _number(file, order + sizes[2])


def _number(file: IO[bytes], form: str) -> int:
    content = file.read(struct.calcsize(form))
    if len(content) < struct.calcsize(form):
        return 0  # cut short: the pages before are there
    return int(struct.unpack(form, content)[0])


def pages_of(path: Path, max_bytes: int, order: Sequence[int] | None = None) -> Iterator[Picture] | None:
    """Return the pages of a file, each to be loaded before the next is taken; None if tifffile cannot decode them."""
    tifffile = optional("tifffile", "io")
    count = n_pages(path)
    with tifffile.TiffFile(path) as tif:
        if not _is_decodable(tif.pages[0]):
            return None
    return _pages(tifffile, path, range(count) if order is None else order, max_bytes)


def _pages(tifffile: Any, path: Path, order: Sequence[int], max_bytes: int) -> Iterator[Picture]:
    with tifffile.TiffFile(path) as tif:
        for number in order:
            page = tif.pages[number]
            name = f"page {number + 1}" if len(order) > 1 else "the image"
            shape = _check_page(path, name, page, max_bytes)
            yield Picture(path, name, shape, partial(_load, page, shape))


def _is_decodable(page: Any) -> bool:
    """Return whether tifffile alone decodes a page as it is stored: others are left to Pillow."""
    is_plain = int(page.compression) == _PLAIN and int(page.predictor) == 1
    is_deflated = int(page.compression) in _DEFLATE and int(page.predictor) in (1, 2)
    is_number = page.dtype is not None and page.dtype.kind in "uif" and page.bitspersample == 8 * page.dtype.itemsize
    is_usual = int(page.photometric) in (_BLACK_IS_ZERO, _RGB) and page.imagedepth == 1 and page.fillorder == 1
    return (is_plain or is_deflated) and is_number and is_usual


def _check_page(path: Path, name: str, page: Any, max_bytes: int) -> tuple[int, ...]:
    """Return the shape of a page, (rows, columns) or (rows, columns, samples), after a look at what it costs."""
    if not _is_decodable(page):
        raise DataFileError(path, "pages of one kind", f"{name} is stored in another way", "Convert them alike.")
    samples = int(page.samplesperpixel)
    rows, columns = int(page.imagelength), int(page.imagewidth)
    if rows * columns > MAX_PIXELS or min(rows, columns) < 1 or not 1 <= samples <= 2**16:
        raise OversizedError(
            f"{name} has {times((rows, columns, samples))} values, and the most is {MAX_PIXELS} pixels"
        )
    shape = (rows, columns, samples) if samples > 1 else (rows, columns)
    check_size(path, shape, 8, max_bytes)
    itemsize = int(page.dtype.itemsize)
    together = samples if int(page.planarconfig) == 1 else 1
    is_tiled = bool(page.is_tiled)
    height = int(page.tilelength) if is_tiled else min(int(page.rowsperstrip) or rows, rows)
    width = int(page.tilewidth) if is_tiled else columns
    segment = height * width * together * itemsize
    # A tile is unpacked in full even where the image covers only a corner of it.
    room = room_for_chunk(shape, itemsize, max_bytes)
    if segment > room:
        found = f"{name} has tiles of {height} x {width} pixels, {segment} bytes, and the most is {room}"
        raise OversizedError(found)
    if len(page.dataoffsets) > MAX_SEGMENTS:
        raise OversizedError(f"{name} has {len(page.dataoffsets)} strips or tiles, and the most is {MAX_SEGMENTS}")
    _check_segments(path, name, page, segment, room)
    return shape


def _check_segments(path: Path, name: str, page: Any, segment: int, room: int) -> None:
    """Raise if strips or tiles are larger than they should be, or unpack to more: tifffile unpacks each in full."""
    most = 2 * segment + _SLACK
    for place, length in zip(page.dataoffsets, page.databytecounts, strict=True):
        if length > most:
            raise OversizedError(f"a strip or tile of {name} has {length} bytes, and should unpack to {segment}")
        if int(page.compression) == _PLAIN or length * DEFLATE_RATIO <= room:
            continue
        with path.open("rb") as file:
            file.seek(place)
            if unpacked_size("zlib", file.read(length), segment + _SLACK) > segment + _SLACK:
                raise OversizedError(f"a strip or tile of {name} unpacks to more than the {segment} bytes that it has")


def _load(page: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    pixels = np.asarray(page.asarray(maxworkers=1))
    # Samples that are stored one after the other come first.
    return np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 and pixels.shape != shape else pixels


# --- Axes -------------------------------------------------------------------------------------------------------------


def described(path: Path) -> Described:
    """Return what a file tells about its axes; nothing is read from other files that it names."""
    tifffile = optional("tifffile", "io")
    count = n_pages(path)
    with tifffile.TiffFile(path) as tif:
        page = tif.pages[0]
        tag = page.tags.get(270)
        if tag is not None and tag.count > MAX_DESCRIPTION:
            raise OversizedError(
                f"its description has {tag.count} bytes, and the most that is read is {MAX_DESCRIPTION}"
            )
        text = page.description if isinstance(page.description, str) else ""
        resolution = _resolution(page)
        if text.startswith("ImageJ="):
            return _imagej(text, count, {**resolution, **_labels(page)})
        if text.lstrip().startswith("<") and text.rstrip().endswith("OME>"):
            return Described("ome", scales={"xml": text, **resolution})
        if text.startswith('{"shape":'):
            return _shaped(text, page.shape, count, resolution)
    return Described(scales=resolution)


def _resolution(page: Any) -> dict[str, Any]:
    """Return pixels for each unit of length, as fractions."""
    x, y = (page.tags.get(number) for number in (282, 283))
    values = [tuple(map(int, tag.value)) if tag is not None and len(tag.value) == 2 else () for tag in (x, y)]
    if not all(len(value) == 2 and value[1] > 0 for value in values):
        return {}
    unit = page.tags.get(296)
    return {"resolution": tuple(values), "resolutionunit": 1 if unit is None else int(unit.value)}


def _labels(page: Any) -> dict[str, Any]:
    """Return the labels that ImageJ gives to the images of a stack."""
    tag = page.tags.get(50839)
    if tag is None or tag.count > MAX_DESCRIPTION or not isinstance(tag.value, dict):
        return {}
    labels = tag.value.get("Labels")
    return {"labels": list(map(str, labels))} if isinstance(labels, list) else {}


def _imagej(text: str, count: int, resolution: Mapping[str, Any]) -> Described:
    """Return the axes of ImageJ: T, Z, C; a page for each, or one for all of them that lie behind it."""
    pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    sizes = {letter: _whole(pairs.get(name)) for letter, name in (("T", "frames"), ("Z", "slices"), ("C", "channels"))}
    n_images = max(_whole(pairs.get("images")), count)
    noted = pairs.get("robustnmf", "")
    letters = "".join(letter for letter in "TZC" if sizes[letter] > 1 or letter in noted)
    scales = {"imagej": {name: pairs[name] for name in _IMAGEJ_KEPT if name in pairs}, **resolution}
    if math.prod(sizes[letter] for letter in letters) != n_images:
        letters, sizes = ("T", {"T": n_images}) if n_images > 1 else ("", {})
    return Described("imagej", letters, tuple(sizes[letter] for letter in letters), scales=scales)


def _whole(text: str | None) -> int:
    """Return a number of pages; 1 if it is none."""
    return int(text) if text is not None and text.isdigit() and len(text) < 12 and int(text) > 0 else 1


def _shaped(text: str, page: tuple[int, ...], count: int, resolution: Mapping[str, Any]) -> Described:
    """Return the axes that tifffile notes in files of its own."""
    noted = json.loads(text)
    shape, letters = noted.get("shape"), noted.get("axes")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size > 0 for size in shape):
        return Described(scales=resolution)
    before = tuple(shape[: len(shape) - len(page)])
    if math.prod(before) != count or not 0 < len(before) <= MAX_AXES - 2:
        return Described(scales=resolution)
    usable = isinstance(letters, str) and len(letters) == len(shape)
    named = letters[: len(before)] if usable else ("T" if len(before) == 1 else "?" * len(before))
    return Described("shaped", named, before, scales=resolution)


def _chosen_ome(path: Path, about: Described, count: int, key: str | None) -> Described:
    """Return the axes of an image of OME; of several, key names one by name or number."""
    xml = about.scales["xml"]
    if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
        raise OversizedError("its description defines entities of XML, which may be of any size")
    images = [element for element in ElementTree.fromstring(xml) if _tag(element) == "Image"]
    names = [shortened(str(image.get("Name", "")), 80) for image in images]
    places = [place for place, name in enumerate(names) if key in (None, name, str(place))]
    if len(places) != 1:
        listed = shortened(", ".join(f"{place} ({name!r})" for place, name in enumerate(names)), 300)
        found = f"it has {len(images)}: {listed}"
        raise DataFileError(path, "a file with one image, or key must name one", found, "Set key to a number or name.")
    pixels = next(element for element in images[places[0]] if _tag(element) == "Pixels")
    return _ome_pixels(path, pixels, count, about.scales)


def _tag(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _ome_pixels(path: Path, pixels: Any, count: int, scales: Mapping[str, Any]) -> Described:
    channels = [element for element in pixels if _tag(element) == "Channel"]
    in_pixel = int(channels[0].get("SamplesPerPixel", 1)) if channels else 1
    letters = pixels.get("DimensionOrder", "XYZCT")[:1:-1]
    if sorted(letters) != ["C", "T", "Z"] or in_pixel < 1:
        raise ValueError(f"unknown order of axes {shortened(letters)!r}")
    sizes = tuple(int(pixels.get(f"Size{letter}", 1)) // (in_pixel if letter == "C" else 1) for letter in letters)
    n_planes = math.prod(sizes)
    if min(sizes) < 1 or n_planes > count:
        expected = f"a file with the {n_planes} pages that its description names ({letters}: {times(sizes)})"
        raise DataFileError(
            path, expected, f"it has {count}", "Parts in other files are not read: save it as one file."
        )
    order = _ome_order(path, pixels, letters, sizes)
    kept = {name: pixels.get(name) for name in _OME_KEPT if pixels.get(name) is not None}
    long = [place for place, size in enumerate(sizes) if size > 1]
    names = tuple(shortened(str(channel.get("Name", "")), 80) for channel in channels)
    return Described(
        "ome",
        "".join(letters[place] for place in long),
        tuple(sizes[place] for place in long),
        order,
        {"ome": kept, **{name: value for name, value in scales.items() if name != "xml"}},
        names if all(names) and in_pixel == 1 else (),
    )


def _ome_order(path: Path, pixels: Any, letters: str, sizes: tuple[int, ...]) -> list[int]:
    """Return the page of each plane."""
    n_planes = math.prod(sizes)
    order: list[int] = list(range(n_planes))
    for data in (element for element in pixels if _tag(element) == "TiffData"):
        names = {child.get("FileName", path.name) for child in data if _tag(child) == "UUID"}
        if names - {path.name} and len(names) > 0 and not _is_renamed(pixels, names):
            raise DataFileError(path, "a file that holds all its pages", "some are in others", "Save it as one file.")
        first = [
            min(max(int(data.get(f"First{letter}", 0)), 0), size - 1)
            for letter, size in zip(letters, sizes, strict=True)
        ]
        start, page = int(np.ravel_multi_index(first, sizes)), int(data.get("IFD", 0))
        length = int(data.get("PlaneCount", data.get("NumPlanes", 1 if "IFD" in data.attrib else n_planes)))
        for step in range(min(length, n_planes - start)):
            order[start + step] = page + step
    return order


def _is_renamed(pixels: Any, names: set[str]) -> bool:
    """Return whether all planes name the same file: then it is this one, under an older name."""
    found = {uuid.get("FileName") for data in pixels for uuid in data if _tag(uuid) == "UUID"}
    return len(found | names) == 1


def read_series(path: Path, options: ReadOptions, about: Described) -> LabelledMatrix | None:
    """Read a file that tifffile decodes, with its axes; None if it is left to Pillow."""
    count = n_pages(path)
    if about.kind == "ome":
        about = _chosen_ome(path, about, count, options.key)
    else:
        refuse_key(path, options.key)
    pages = pages_of(path, options.max_bytes, about.pages)
    if pages is None:
        return None
    n_planes = count if about.pages is None else len(about.pages)
    if about.kind == "imagej" and count == 1 and math.prod(about.sizes) > 1:
        pages, n_planes = _behind(path, pages, math.prod(about.sizes)), math.prod(about.sizes)
    channels = _as_channels(path, pages, n_planes, options)
    return in_axes(path, channels, options, about)


def _as_channels(path: Path, pages: Iterator[Picture], count: int, options: ReadOptions) -> Pictures:
    """Return pages as they are if their samples are no colours, but more than four channels of each pixel."""
    first = next(pages)
    shape = first.shape
    if len(shape) == 2 or shape[2] <= 4:
        return stacked(path, _chained(first, pages), count, path.stat().st_size, options)
    check_size(path, (count, *shape), 8, options.max_bytes)
    array = np.stack([first.load(), *(page.load() for page in pages if page.shape == shape)])
    if len(array) != count:
        raise DataFileError(path, "pages of one size", "they differ", "Crop them alike.")
    return Pictures(array, ())


def _chained(first: Picture, rest: Iterator[Picture]) -> Iterator[Picture]:
    yield first
    yield from rest


def _behind(path: Path, pages: Iterator[Picture], count: int) -> Iterator[Picture]:
    """Yield images of ImageJ that lie one after the other behind a single page, if the file has them all."""
    tifffile = optional("tifffile", "io")
    first = next(pages)
    with tifffile.TiffFile(path) as tif:
        page = tif.pages[0]
        start, dtype = int(page.dataoffsets[0]), page.dtype.newbyteorder(tif.byteorder)
        is_together = page.is_contiguous and int(page.compression) == _PLAIN
    length = math.prod(first.shape) * dtype.itemsize
    if not is_together or start + count * length > path.stat().st_size:
        found = f"it has not the {count} images that ImageJ has noted"
        raise DataFileError(path, "a whole stack of ImageJ", found, "It was cut short: copy or write it again.")
    for place in range(count):
        load = partial(_raw, path, dtype, first.shape, start + place * length)
        yield first._replace(name=f"image {place + 1}", load=load)


def _raw(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
    values = np.fromfile(path, dtype, math.prod(shape), offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def in_axes(path: Path, pictures: Pictures, options: ReadOptions, about: Described) -> LabelledMatrix:
    """Return pages as a matrix, in the axes that a file tells."""
    array = pictures.array
    if about.sizes and math.prod(about.sizes) == len(array):
        names = tuple(letter.lower().replace("?", "") for letter in about.letters)
        array = array.reshape(*about.sizes, *array.shape[1:])
    elif len(array) == 1 and array.ndim == 4 and array.shape[-1] > 4:
        names, array = (), array[0]
    else:
        names = ("t",)
    colour = "rgb" if "c" in names else "c"
    names = (*names, "y", "x", colour)[: array.ndim]
    channels = names.index("c") if "c" in names and about.channels else None
    fits = channels is not None and len(about.channels) == array.shape[channels]
    points = {channels: about.channels} if fits and channels is not None else {}
    axes = ArrayAxes(names, points, notes=pictures.notes)
    return as_matrix(path, array, options, axes, about={"tiff": about.kind, **about.scales})


# --- Writing ----------------------------------------------------------------------------------------------------------


def write_page(place: Path, pixels: NDArray[Any]) -> None:
    """Write a single image, (rows, columns) or (rows, columns, 3)."""
    tifffile = optional("tifffile", "io")
    tifffile.imwrite(place, pixels, photometric="rgb" if pixels.ndim == 3 else "minisblack", metadata=None)


def write_tiff(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a stack of images with its axes and scales, as ImageJ or OME note them."""
    tifffile = optional("tifffile", "io")
    array, letters = _lettered(matrix)
    about = {} if matrix.source is None else matrix.source.about
    options: dict[str, Any] = {"photometric": "rgb" if letters.endswith("S") else "minisblack"}
    if "resolution" in about:
        x, y = about["resolution"]
        options |= {"resolution": (x, y), "resolutionunit": about.get("resolutionunit", 1)}
    if about.get("tiff") == "ome":
        metadata = {"axes": letters, **_ome_scales(about.get("ome", {})), **_ome_channels(matrix, letters)}
        tifffile.imwrite(temporary, array, ome=True, metadata=metadata, **options)
    elif _suits_imagej(array, letters):
        kept = _numbers(about.get("imagej", {}))
        kept |= _labels_kept(
            about.get("labels"), array, letters, is_data=COMPONENT not in (names_in_file(matrix) or ())
        )
        if "C" not in letters:
            kept.pop("mode", None)  # it says how channels are shown
        metadata = {"axes": letters, **kept, "robustnmf": letters}
        tifffile.imwrite(temporary, array, imagej=True, metadata=metadata, **options)
    else:
        tifffile.imwrite(temporary, array, metadata={"axes": letters}, **options)


def _lettered(matrix: LabelledMatrix) -> tuple[NDArray[Any], str]:
    """Return the array in the order in which stacks are stored, and a letter for each axis."""
    array = as_levels(array_in_file(matrix))
    layout = (matrix.source or Source()).layout
    if layout is None or array.ndim < 3:
        raise ValueError(
            f"values must be images to be written as TIFF, an array (n, rows, columns); they have shape {array.shape}. "
            "Write them as .npy, or as a table."
        )
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    names = layout.names or ("t", "y", "x") if array.ndim == 3 else layout.names or ("",) * array.ndim
    letters = ["C" if role_of(name) == "band" else role_of(name).upper() or "?" for name in names]
    if letters[-1] == "C" and letters[-3:-1] == ["Y", "X"] and array.shape[-1] == 3:
        letters[-1] = "S"
    if "Y" not in letters or "X" not in letters:  # the last two are taken for rows and columns
        letters[-2:] = ["Y", "X"]
    for place, letter in enumerate(letters):
        if letter == "?" or letters.index(letter) != place:
            letters[place] = next(other for other in "TZCQRUVW" if other not in letters)
    stored = sorted(range(array.ndim), key=lambda axis: _STORED.index(letters[axis]))
    return np.ascontiguousarray(array.transpose(stored)), "".join(letters[axis] for axis in stored)


_STORED = "QRUVWTZCYXS"
"""Letters of axes in the order in which ImageJ stores them."""


def _suits_imagej(array: NDArray[Any], letters: str) -> bool:
    is_colour = letters.endswith("S")
    return array.dtype in _IMAGEJ_TYPES and set(letters) <= set("TZCYXS") and (not is_colour or array.dtype == np.uint8)


def _labels_kept(labels: list[str] | None, array: NDArray[Any], letters: str, is_data: bool) -> dict[str, Any]:
    """Return the labels of the images of a stack, if it still has the same ones."""
    planes = math.prod(size for size, letter in zip(array.shape, letters, strict=True) if letter in "TZC")
    return {"Labels": labels} if labels is not None and is_data and len(labels) == planes else {}


def _numbers(pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return settings of ImageJ, those that are numbers as numbers."""
    result: dict[str, Any] = dict(pairs)
    for name, value in pairs.items():
        with suppress(ValueError):
            result[name] = float(value)
    return {name: value for name, value in result.items() if name not in ("min", "max", "loop")}


def _ome_scales(kept: Mapping[str, str]) -> dict[str, Any]:
    return {name: value if name.endswith("Unit") else float(value) for name, value in kept.items()}


def _ome_channels(matrix: LabelledMatrix, letters: str) -> dict[str, Any]:
    channels = [list(points) for name, points in points_in_file(matrix).values() if role_of(name) == "c"]
    return {"Channel": {"Name": channels[0]}} if channels and "C" in letters else {}
