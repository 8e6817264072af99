"""Vectors of pixels as images: in grey, in colour, or with their channels side by side."""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, prod, sqrt
from numbers import Integral
from typing import Any

import numpy as np

from robustnmf.plots.base import Matrix

# Panels that stand in one row; more are laid out about as high as wide.
MOST_IN_A_ROW = 4


def check_picture_shape(shape: Any, n_pixels: int, name: str = "image_shape") -> tuple[int, ...]:
    """Return the shape of a picture, or say what is wrong with it."""
    if shape is None:
        raise ValueError(f"Images need their shape: pass {name}=(height, width).")
    sides = tuple(shape) if isinstance(shape, Iterable) else ()
    whole = all(isinstance(side, Integral) for side in sides)
    if len(sides) < 2 or not whole or min(sides) < 1 or prod(sides) != n_pixels:
        raise ValueError(
            f"{name} must be (height, width), (height, width, 3) for colours, or (channels, height, width), {n_pixels} "
            f"pixels in all; got {shape!r}."
        )
    return tuple(int(side) for side in sides)


def is_colour(shape: Sequence[int]) -> bool:
    """Return whether a picture of a shape has red, green and blue, (height, width, 3)."""
    return len(shape) == 3 and shape[-1] == 3


def panel_columns(shape: Sequence[int]) -> int:
    """Return how many panels stand side by side in a picture of a shape."""
    count = 1 if is_colour(shape) else prod(shape[:-2])
    return count if count <= MOST_IN_A_ROW else ceil(sqrt(count))


def image_of(values: Matrix, shape: tuple[int, ...], shrink: Callable[[Matrix], Matrix] | None = None) -> Matrix:
    """Return pixels as an image, (height, width), or (height, width, 3) in colour.

    Parameters
    ----------
    values : (n_pixels,)
    shape : tuple of int
        See `check_picture_shape`. Channels become panels side by side, with NaN between them.
    shrink : function or None
        Makes an image smaller, each panel by itself.

    Examples
    --------
    >>> image_of(np.arange(8.0), (2, 2, 2))
    array([[ 0.,  1., nan,  4.,  5.],
           [ 2.,  3., nan,  6.,  7.]])
    """
    array = values.reshape(shape)
    is_single = len(shape) == 2 or is_colour(shape)
    panels = [array] if is_single else list(array.reshape(-1, *shape[-2:]))
    panels = panels if shrink is None else [shrink(panel) for panel in panels]
    if len(panels) == 1:
        return panels[0]
    n_columns = panel_columns(shape)
    height, width = panels[0].shape
    sheet = np.full((ceil(len(panels) / n_columns) * (height + 1) - 1, n_columns * (width + 1) - 1), np.nan)
    for number, panel in enumerate(panels):
        top, left = number // n_columns * (height + 1), number % n_columns * (width + 1)
        sheet[top : top + height, left : left + width] = panel
    return sheet
