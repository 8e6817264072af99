"""Movies: .mp4, .avi, .mkv, .mov and .webm, decoded by FFmpeg through OpenCV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.axes import ArrayAxes, role_of
from robustnmf.formats.checks import as_matrix, check_size, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, times
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix, Source
from robustnmf.formats.limits import check_expansion
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.pictures import grey, is_grey
from robustnmf.formats.stored import array_in_file, as_levels, in_type
from robustnmf.formats.tiff import MAX_PIXELS
from robustnmf.utils.extras import optional

SUFFIXES = (".mkv", ".avi", ".mp4", ".mov", ".webm")

MAX_FRAMES = 2**20
"""Frames of a movie: twelve hours at 24 a second."""

_LOSSLESS = (".mkv", ".avi")
"""Containers that hold movies without loss (FFV1)."""

_WHOLE = 0.9
"""Share of the frames that a movie declares which must be there."""

_FPS = 25.0
"""Frames per second if a movie does not say."""

_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


def read_video(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read the frames of a movie, one sample each."""
    refuse_key(path, options.key)
    _check_kind(path)
    with _opened(path) as (cv2, movie):
        shape = int(movie.get(cv2.CAP_PROP_FRAME_HEIGHT)), int(movie.get(cv2.CAP_PROP_FRAME_WIDTH))
        count, fps = int(movie.get(cv2.CAP_PROP_FRAME_COUNT)), float(movie.get(cv2.CAP_PROP_FPS))
        if min(shape) < 1 or shape[0] * shape[1] > MAX_PIXELS:
            raise OversizedError(f"its frames have {times(shape)} pixels, and the most that is read is {MAX_PIXELS}")
        declared = (max(count, 1), *shape) if options.colour == "grey" else (max(count, 1), *shape, 3)
        check_size(path, declared[1:] if options.colour == "keep" else declared, 8, options.max_bytes)
        array = _frames(path, movie, shape, options)
    _check_whole(path, len(array), count)
    notes = []
    if array.ndim == 4:
        notes.append("The movie is in colour: the three colours of a pixel are features; colour='grey' adds them.")
    if len(array) < count:
        notes.append(f"The movie declares {count} frames, which may be an estimate; {len(array)} were read.")
    axes = ArrayAxes(("t", "y", "x", "c")[: array.ndim], notes=tuple(notes))
    return as_matrix(path, array, options, axes, about={"fps": fps if 0 < fps < 1e5 else _FPS})


def _check_whole(path: Path, n_read: int, declared: int) -> None:
    """Raise if many frames are not there; some may be, as containers tell their number by duration and rate."""
    if n_read < _WHOLE * declared:
        found = f"it declares {declared} frames, and {n_read} can be decoded"
        raise DataFileError(path, "a whole movie", found, "It was cut short: copy or write it again.")


def _check_kind(path: Path) -> None:
    """Raise unless a file begins like a movie: FFmpeg also reads lists of other files and addresses."""
    with path.open("rb") as file:
        start = file.read(12)
    is_matroska, is_avi = start[:4] == b"\x1a\x45\xdf\xa3", start[:4] == b"RIFF" and start[8:] == b"AVI "
    if not (is_matroska or is_avi or start[4:8] in _BOXES):
        raise ValueError("it begins like none of them")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    cv2 = optional("cv2", "video", "opencv-python-headless")
    # From the root on: FFmpeg takes other names for addresses. One thread takes less memory than many.
    movie = cv2.VideoCapture(str(path.resolve()), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    try:
        if not movie.isOpened():
            raise ValueError("FFmpeg finds no movie in it")
        yield cv2, movie
    finally:
        movie.release()


def _frames(path: Path, movie: Any, shape: tuple[int, int], options: ReadOptions) -> NDArray[Any]:
    """Return the frames, (n, rows, columns) if all are grey or that is asked for, else (n, rows, columns, 3)."""
    frames: list[NDArray[Any]] = []
    has_colour = False
    while True:
        is_there, pixels = movie.read()
        if not is_there:
            break
        if pixels.shape[:2] != shape or pixels.dtype != np.uint8:
            raise ValueError(f"frame {len(frames)} is {times(pixels.shape[:2])}, and the first is {times(shape)}")
        frame, is_colour = _frame(path, pixels, len(frames), options)
        has_colour = has_colour or is_colour
        frames.append(frame)
        n_values = (len(frames), *shape, 3) if has_colour else (len(frames), *shape)
        check_size(path, n_values, 8, options.max_bytes)
        if len(frames) > MAX_FRAMES:
            raise OversizedError(f"it has more than {MAX_FRAMES} frames, the most that is read")
        check_expansion(path, n_values, 1, path.stat().st_size)
    if not frames:
        raise ValueError("no frame can be decoded")
    if has_colour:
        frames = [frame if frame.ndim == 3 else np.repeat(frame[..., None], 3, axis=2) for frame in frames]
    return np.stack(frames)


def _frame(path: Path, pixels: NDArray[Any], number: int, options: ReadOptions) -> tuple[NDArray[Any], bool]:
    """Return a frame, grey if it has no colours or that is asked for; and whether it has colours."""
    if pixels.ndim == 2 or is_grey(pixels):
        return (pixels if pixels.ndim == 2 else pixels[..., 0].copy()), False
    if options.colour == "error":
        advice = "Set colour to 'keep' or 'grey'."
        raise DataFileError(path, "a movie in grey", f"frame {number} has colours", advice)
    colours = np.ascontiguousarray(pixels[..., ::-1])  # OpenCV has blue first
    return (grey(colours), False) if options.colour == "grey" else (colours, True)


def write_video(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write frames without loss, as whole numbers of 8 bits: grey or in colour."""
    cv2 = optional("cv2", "video", "opencv-python-headless")
    suffix = temporary.suffix.lower()
    if suffix not in _LOSSLESS:
        raise ValueError(f"movies are written without loss, as {' or '.join(_LOSSLESS)}; got {suffix!r}. Rename it.")
    frames = _levels(matrix)
    rows, columns = frames.shape[1:3]
    fps = float((matrix.source or Source()).about.get("fps", _FPS))
    is_colour = frames.ndim == 4
    code = cv2.VideoWriter_fourcc(*"FFV1")
    movie = cv2.VideoWriter(str(temporary.resolve()), cv2.CAP_FFMPEG, code, fps, (columns, rows), is_colour)
    try:
        if not movie.isOpened():
            raise OSError(f"FFmpeg cannot write {rows} x {columns} pixels to {temporary}. Write .tif instead.")
        for frame in frames:
            movie.write(np.ascontiguousarray(frame[..., ::-1] if is_colour else frame))
    finally:
        movie.release()


def _levels(matrix: LabelledMatrix) -> NDArray[Any]:
    """Return frames as numbers of 8 bits, (n, rows, columns) or (n, rows, columns, 3); time comes first."""
    array = array_in_file(matrix)
    layout = (matrix.source or Source()).layout
    roles = [role_of(name) for name in (layout.names if layout is not None and layout.names else ())]
    if "t" in roles:
        array = np.moveaxis(array, roles.index("t"), 0)
    if array.ndim != 3 and (array.ndim != 4 or array.shape[-1] != 3):
        raise ValueError(f"values must be frames, (n, rows, columns) or with 3 colours; they have shape {array.shape}.")
    if array.dtype != bool and array.dtype.kind == "f":
        raise ValueError(
            f"a movie has whole numbers from 0 to 255; values are {array.dtype}. Pass dtype='uint8' to round them, or "
            "write them as .tif or .npy."
        )
    return as_levels(array) if array.dtype == bool else in_type(array.astype(np.float64), np.dtype(np.uint8))


def _written_suffix(matrix: LabelledMatrix) -> str:
    """Return the suffix of a movie, or of a stack if the values are no whole numbers, such as those of components."""
    dtype = matrix.values.dtype if matrix.source is None else matrix.source.dtype
    is_whole = matrix.values.dtype == bool or (dtype is not None and dtype.kind in "biu")
    return ".mkv" if is_whole else ".tif"


def write_any(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a movie, or a stack if the suffix is that of TIFF."""
    from robustnmf.formats import tiff

    (tiff.write_tiff if temporary.suffix in tiff.SUFFIXES else write_video)(temporary, matrix)


_WORDS = "a movie (mp4, avi, mkv, mov, webm)", "Convert it with ffmpeg, for instance to H.264 in mp4."
FORMATS = (Format("video", *_WORDS, read_video, SUFFIXES, (), write=write_any, suffix_written=_written_suffix),)
