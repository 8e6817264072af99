"""Single pictures: which are grey, which have colours, and what becomes of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.checks import check_size
from robustnmf.formats.errors import DataFileError, times
from robustnmf.formats.limits import check_expansion
from robustnmf.formats.options import ReadOptions


class Picture(NamedTuple):
    """An image that is open but not decoded."""

    file: Path
    name: str
    """What errors call it."""
    shape: tuple[int, ...]
    """(rows, columns), or (rows, columns, channels): grey, grey and alpha, colours, colours and alpha."""
    load: Callable[[], NDArray[Any]]
    """Decodes it, to an array of this shape."""
    by_palette: bool = False
    """Whether only its pixels tell if it has colours."""


class Pictures(NamedTuple):
    """Pictures of one size, and what was done with their colours."""

    array: NDArray[Any]
    """(n, rows, columns) or (n, rows, columns, 3)"""
    notes: tuple[str, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes."""
        return ("t", "y", "x", "c")[: self.array.ndim]


def stacked(path: Path, pictures: Iterator[Picture], count: int, stored: int, options: ReadOptions) -> Pictures:
    """Return pictures of one size, depth and number of colours in an array, in the type that they have.

    Parameters
    ----------
    path : Path
        The file or folder.
    pictures : iterator of Picture
    count : int
        Number of pictures.
    stored : int
        Bytes of all files.
    options : ReadOptions
        What becomes of colours, and how large the values may be.
    """
    first = next(pictures)
    # Twice as much as floats of 32 bits need, but images of them are rare.
    check_size(path, (count, *first.shape), 8, options.max_bytes)
    check_expansion(path, (count, *first.shape), 8, stored)
    pixels, alpha = _decoded(first, options)
    array = np.empty((count, *pixels.shape), pixels.dtype)
    array[0] = pixels
    for place, picture in enumerate(pictures, 1):
        if picture.shape[:2] != first.shape[:2]:
            given = f"{first.name} is {times(first.shape[:2])}, {picture.name} is {times(picture.shape[:2])}"
            raise DataFileError(path, "images of one size", given, "Crop them alike, or take others out.")
        pixels, has_alpha = _decoded(picture, options)
        alpha = alpha or has_alpha
        _check_alike(path, (first.name, array[0]), (picture.name, pixels))
        array[place] = pixels
    return _finished(array, first.by_palette, alpha)


def _check_alike(path: Path, one: tuple[str, NDArray[Any]], other: tuple[str, NDArray[Any]]) -> None:
    if one[1].dtype != other[1].dtype:
        given = f"{one[0]} is {one[1].dtype}, {other[0]} is {other[1].dtype}"
        raise DataFileError(path, "images of one depth", given, "Convert them alike.")
    if one[1].ndim != other[1].ndim:
        grey, colour = (one[0], other[0]) if one[1].ndim == 2 else (other[0], one[0])
        given = f"{grey} is grey, {colour} has colours"
        raise DataFileError(path, "images all grey or all in colour", given, "Set colour to 'grey'.")


def _finished(array: NDArray[Any], by_palette: bool, had_alpha: bool) -> Pictures:
    notes = ["The alpha channel is the same in all pixels and was left out."] if had_alpha else []
    if array.ndim == 4 and by_palette and is_grey(array):
        array = np.ascontiguousarray(array[..., 0])
    if array.ndim == 4:
        notes.append("Images are in colour: the three colours of a pixel are features; colour='grey' adds them.")
    return Pictures(array, tuple(notes))


def is_grey(array: NDArray[Any]) -> bool:
    """Return whether all three colours of all pixels are the same."""
    return all(bool((array[..., 0] == array[..., place]).all()) for place in (1, 2))


def _decoded(picture: Picture, options: ReadOptions) -> tuple[NDArray[Any], bool]:
    """Return pixels without alpha, their colours as they are asked for; and whether there was an alpha channel."""
    pixels = picture.load()
    has_alpha = pixels.ndim == 3 and pixels.shape[2] in (2, 4)
    if has_alpha:
        _check_alpha(picture, pixels[..., -1])
        pixels = pixels[..., 0] if pixels.shape[2] == 2 else pixels[..., :3]
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim == 3 and options.colour != "keep":
        if options.colour == "error" and not (picture.by_palette and is_grey(pixels)):
            advice = "Set colour to 'keep' or 'grey'."
            raise DataFileError(picture.file, "an image in grey", f"{picture.name} has colours", advice)
        pixels = grey(pixels)
    return pixels, has_alpha


def _check_alpha(picture: Picture, alpha: NDArray[Any]) -> None:
    if alpha.min() != alpha.max():
        expected, found = "an image without transparent pixels", f"the alpha channel of {picture.name} varies"
        advice = "Flatten it onto a background, or save the alpha channel as an image of its own."
        raise DataFileError(picture.file, expected, found, advice)


def grey(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return colours, (..., 3), as grey values by ITU-R 601, in the same type; of 8 bits as Pillow rounds them."""
    if pixels.dtype.kind == "f":
        return np.asarray(pixels @ np.array([0.299, 0.587, 0.114], pixels.dtype))
    # Parts of 65536, so that whole numbers of up to 32 bits are rounded right.
    parts = (pixels[..., place].astype(np.uint64) * np.uint64(w) for place, w in enumerate((19595, 38470, 7471)))
    return np.asarray((sum(parts, np.uint64(0x8000)) >> np.uint64(16)).astype(pixels.dtype))
