"""Axes of arrays: what their names mean, what their points are called, and which of them are samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.formats.errors import DataFileError, times
from robustnmf.formats.options import ReadOptions

_UNIT = r"([ _-]?\(?(nm|um|µm|mm|m|ev|kev|mev|hz|ghz|thz|cm-?1|1/cm|angstrom)\)?)?"
_BAND = re.compile(
    rf"(wave[ _]?lengths?|wls?|wave|lambdas?|bands?|energ(y|ies)|wave[ _]?numbers?|freq(uency|uencies|s)?|"
    rf"raman[ _]?shifts?|energy[ _]?loss|mz|m/z|spectr(um|al)|spectral[ _]axis){_UNIT}",
    re.IGNORECASE,
)
_ROLES = {
    "t": {"t", "time", "times", "frame", "frames", "date", "scan", "component", "sample", "samples", "i", "q"},
    "z": {"z", "depth", "slice", "slices", "plane", "planes"},
    "y": {"y", "row", "rows", "line", "lines", "lat", "latitude", "height"},
    "x": {"x", "col", "column", "columns", "lon", "longitude", "width"},
    "c": {"c", "ch", "channel", "channels", "colour", "color", "rgb", "stokes"},
}
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}

MAX_CHANNELS = 64
"""Channels of a pixel; if there are more and nothing else says so, they are frames."""

SPACE = frozenset({"z", "y", "x"})
"""Roles of axes of space: their points are pixels."""


def role_of(name: str) -> str:
    """Return what an axis is, by its name: "t" time or number, "c" channel, "z", "y", "x", "band"; "" if unknown.

    Examples
    --------
    >>> [role_of(name) for name in ("Time", "wavelength_nm", "Energy", "channel", "dim_0")]
    ['t', 'band', 'band', 'c', '']
    """
    name = name.strip()
    return "band" if _BAND.fullmatch(name) else _ROLE_OF.get(name.lower(), "")


def is_image(names: Sequence[str] | None) -> bool:
    """Return whether two axes may be rows and columns of an image."""
    return names is None or {role_of(name) for name in names} <= {"", "y", "x"}


@dataclass(frozen=True)
class ArrayAxes:
    """What a file tells about the axes of an array.

    Parameters
    ----------
    names : tuple of str
        What they are called, "" where that is not known.
    points : mapping of int to sequence of str
        What the points of an axis are called, such as wavelengths.
    units : mapping of int to str
        Unit of these, or of the axis.
    samples : tuple of int or None
        Axes that are samples, if the file says so.
    notes : tuple of str
        What was guessed, in words.
    """

    names: tuple[str, ...]
    points: Mapping[int, Sequence[str]] = field(default_factory=dict)
    units: Mapping[int, str] = field(default_factory=dict)
    samples: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def roles(self) -> list[str]:
        """What each axis is, see `role_of`."""
        return [role_of(name) for name in self.names]


def number_texts(values: Iterable[Any]) -> list[str]:
    """Return numbers as texts, as short as they can be.

    Examples
    --------
    >>> number_texts(np.array([400.0, 400.5, 1e-9]))
    ['400', '400.5', '1e-09']
    >>> number_texts(np.float32([0.1]))
    ['0.1']
    """
    return [_number_text(value) for value in np.asarray(list(values)).ravel()]


def _number_text(value: Any) -> str:
    if isinstance(value, np.floating) and (value == 0 or 1e-4 <= abs(value) < 1e15):
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="-") if isinstance(value, np.floating) else str(value)


def sample_axes(
    path: Path, shape: tuple[int, ...], options: ReadOptions, axes: ArrayAxes | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the axes that are samples, and what was guessed in words."""
    roles = [""] * len(shape) if axes is None else axes.roles
    if options.sample_axes is not None:
        return _checked_axes(path, options.sample_axes, shape), ()
    if options.samples == "pixels":
        return _checked_axes(path, _pixels(roles), shape), ()
    if options.samples is not None:
        return ((_frames(roles) if options.samples == "frames" else 0),), ()
    if axes is not None and axes.samples is not None:
        return axes.samples, ()
    if len(shape) == 2:
        return (0,), ()
    return _default(path, shape, roles, axes)


def _default(
    path: Path, shape: tuple[int, ...], roles: list[str], axes: ArrayAxes | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return what is taken if the user does not say: spectra of pixels, frames, slices, channels of pixels."""
    named = times(shape) if axes is None else f"{times(shape)} ({', '.join(name or '?' for name in axes.names)})"
    # Programs that do not name the axes of a stack may call its frames channels.
    is_long = "c" in roles and shape[roles.index("c")] > MAX_CHANNELS
    is_stack = "t" in roles or "z" in roles or is_long
    if roles.count("band") == 1 or ("c" in roles and not is_stack):
        feature = roles.index("band" if "band" in roles else "c")
        pixels = tuple(axis for axis in range(len(shape)) if axis != feature)
        guess = f"{named} was read as pixels, {shape[feature]} features each; samples='frames' reads it as images."
        return pixels, (guess,)
    if not is_stack and len(shape) > 3:
        expected = "an array of which it is known which axes are samples"
        advice = "Set samples to 'frames' (the first axis) or 'pixels' (all but the last), or name them in sample_axes."
        raise DataFileError(path, expected, f"it has shape {named}", advice)
    frames = roles.index("c") if is_long and not {"t", "z"} & {*roles} else _frames(roles)
    guess = f"{named} was read as {shape[frames]} frames, one sample each; samples='pixels' reads a cube."
    return (frames,), () if is_stack and not is_long else (guess,)


def _frames(roles: list[str]) -> int:
    return next((roles.index(role) for role in ("t", "z") if role in roles), 0)


def _pixels(roles: list[str]) -> tuple[int, ...]:
    """Return the axes of space: those that say so, or those that are not known to be anything else."""
    in_space = tuple(axis for axis, role in enumerate(roles) if role in SPACE)
    if in_space:
        return in_space
    unknown = tuple(axis for axis, role in enumerate(roles) if not role)
    # Without names the last axis is that of the spectrum.
    return unknown if len(unknown) < len(roles) else tuple(range(len(roles) - 1))


def _checked_axes(path: Path, given: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return axes of samples as numbers from 0 on, if they are some but not all axes of the array."""
    n_axes = len(shape)
    if all(-n_axes <= axis < n_axes for axis in given):
        axes = tuple(axis % n_axes for axis in given)
        if len(set(axes)) == len(axes) and 0 < len(axes) < n_axes:
            return axes
    expected = f"an array of which some axes are samples, 0 to {n_axes - 1}, but not all"
    found = f"it has shape {times(shape)}, and sample_axes is {given}"
    raise DataFileError(path, expected, found, "Name others with sample_axes.")


def axes_beside(
    name: str, shapes: Mapping[str, tuple[int, ...]], load: Callable[[str], tuple[Any, str]]
) -> ArrayAxes | None:
    """Return what a vector of wavelengths beside an array tells about its axes; None if there is none.

    It is called like wavelengths, and its length is that of exactly one axis.

    Parameters
    ----------
    name : str
        Name of the array.
    shapes : mapping of str to tuple of int
        Shapes of all arrays of numbers in the file; those of vectors may have further axes of length 1.
    load : function (name) -> (values, unit)
        Reads a vector.
    """
    shape = shapes[name]
    notes: tuple[str, ...] = ()
    for other, sizes in shapes.items():
        if other == name or not _is_vector(other, sizes):
            continue
        fits = [axis for axis, size in enumerate(shape) if size == max(sizes)]
        if len(fits) == 1:
            values, unit = load(other)
            title = other.rsplit("/", 1)[-1]
            names = tuple(title if axis == fits[0] else "" for axis in range(len(shape)))
            points = {fits[0]: number_texts(np.asarray(values).ravel())}
            return ArrayAxes(names, points, {fits[0]: unit} if unit else {})
        if fits:
            guess = f"{other!r} has {max(sizes)} values, as many as axes {fits}: name the samples with sample_axes."
            notes = (*notes, guess)
    return ArrayAxes(("",) * len(shape), notes=notes) if notes else None


def _is_vector(name: str, sizes: tuple[int, ...]) -> bool:
    """Return whether an array is called like wavelengths, and has one axis that counts."""
    is_long = len(sizes) > 0 and sorted(sizes)[:-1] == [1] * (len(sizes) - 1)
    return is_long and _BAND.fullmatch(name.rsplit("/", 1)[-1]) is not None
