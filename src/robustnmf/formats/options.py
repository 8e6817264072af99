"""How a file is to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

MAX_BYTES = 8 * 2**30
"""Largest table that is read unless the caller says otherwise, in bytes: 8 GiB."""

Samples = Literal["rows", "frames", "pixels"]
Colour = Literal["keep", "grey", "error"]


@dataclass(frozen=True)
class ReadOptions:
    """How a file is to be read.

    Parameters
    ----------
    key : str or None
        Name of the array, in a file that may hold several. By default the only one of two dimensions or more; single
        rows and columns do not count beside larger arrays.
    missing_value : float, str, sequence of these, or None
        What stands for a missing entry besides NaN: numbers, and in text tables words.
    header : bool or None
        Whether the first line of a text table holds headings. By default it does if at least half of its cells are
        not numbers, or if the cell above the names is empty.
    transpose : bool
        Exchange samples and features.
    samples : {"rows", "frames", "pixels"} or None
        What the samples are, in an array of more than two axes: the points of the first axis ("rows"), of the axis of
        time, depth or else the first one ("frames"), or pixels with all that is known of them. Where a file does not
        say which axes are space, that is all but the last one. None takes pixels where wavelengths are known, else
        frames; what was guessed is in the notes.
    sample_axes : sequence of int or None
        Axes of the array that are samples, instead of `samples`.
    max_bytes : int or None
        Largest size of the values as floats (of a sparse matrix, of those that are stored), of a text file, and of
        whatever is unpacked on the way to the values; by default 8 GiB.
    colour : {"keep", "grey", "error"}
        What becomes of images and movies in colour: each colour of a pixel is a feature, they become grey by ITU-R
        601, or they are refused.
    """

    key: str | None = None
    missing_value: float | str | Sequence[float | str] | None = None
    header: bool | None = None
    transpose: bool = False
    samples: Samples | None = None
    sample_axes: tuple[int, ...] | None = None
    max_bytes: int = MAX_BYTES
    colour: Colour = "keep"

    def __post_init__(self) -> None:
        if self.max_bytes is None:
            object.__setattr__(self, "max_bytes", MAX_BYTES)
        if isinstance(self.max_bytes, bool) or not isinstance(self.max_bytes, Integral) or self.max_bytes < 1:
            raise ValueError(
                f"max_bytes must be a positive integer or None; got {self.max_bytes!r}. 2**30 stands for 1 GiB."
            )
        if self.samples is not None and self.samples not in get_args(Samples):
            raise ValueError(f"samples must be 'rows', 'frames', 'pixels' or None; got {self.samples!r}.")
        if self.colour not in get_args(Colour):
            raise ValueError(f"colour must be 'keep', 'grey' or 'error'; got {self.colour!r}.")
        if self.sample_axes is not None:
            object.__setattr__(self, "sample_axes", _axes(self.sample_axes))

    @property
    def missing_values(self) -> tuple[float | str, ...]:
        """All that stands for a missing entry."""
        given = self.missing_value
        if given is None:
            return ()
        return (given,) if isinstance(given, str | float | int) else tuple(given)


def _axes(given: int | Sequence[int]) -> tuple[int, ...]:
    axes = (given,) if isinstance(given, Integral) else tuple(given)  # type: ignore[arg-type]
    if not all(isinstance(axis, Integral) and not isinstance(axis, bool) for axis in axes):
        raise ValueError(f"sample_axes must be numbers of axes, such as (0, 1); got {given!r}.")
    return tuple(int(axis) for axis in axes)
