"""Drawings of a page: Matplotlib figures as SVG in the colour of the text around them, arrays as PNG."""

import io
import re
from base64 import b64encode
from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.utils.extras import optional
from robustnmf.utils.process_state import SharedSetting, ignored_warnings

Matrix = NDArray[Any]

# Drawn in this colour, which nothing else has, and replaced by that of the text around the figure.
INK = "#0a0b0c"

# Grey from black to white.
GREYS = np.stack([*[np.arange(256, dtype=np.uint8)] * 3, np.full(256, 255, dtype=np.uint8)], axis=1)


def style() -> dict[str, Any]:
    """Return Matplotlib settings of all figures."""
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(ink, INK),
        "font.family": "sans-serif",
        "font.size": 9,
        "svg.fonttype": "none",  # letters stay letters: they can be searched, and take the font of the page
        "svg.hashsalt": "robustnmf",
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "legend.frameon": False,
        "legend.labelcolor": INK,
    }


# The context in which Matplotlib has these settings.
_style = SharedSetting(lambda: optional("matplotlib", "report").rc_context(style()))


def draw(
    paint: Callable[[Any], Any], name: str, size: tuple[float, float], *, layout: str | None = "constrained"
) -> str:
    """Return what `paint` draws on a new figure of this size in inches, as an SVG element; see `to_svg`.

    Without a `layout` the margins are those that `paint` sets, which takes half the time.
    """
    Figure = optional("matplotlib.figure", "report").Figure
    # Neither pyplot nor a backend: the caller may have open windows.
    # The font of the page has letters that Matplotlib's has not.
    with _style.changed(), ignored_warnings((UserWarning, "Glyph .* missing from")):
        figure = Figure(figsize=size, layout=layout)
        paint(figure)
        return to_svg(figure, name)


def to_svg(figure: Any, name: str) -> str:
    """Return a figure as an SVG element.

    Identifiers inside get a prefix: two figures on one page must not use each other's.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{name}-\2"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    # The page decides how wide it is; the box keeps its proportions.
    for side in ("height", "width"):
        svg = re.sub(rf'(<svg[^>]*?) {side}="[^"]*"', r"\1", svg, count=1)
    return svg


def natural_width(svg: str) -> float:
    """Return how wide a drawing was made, in points: shown wider, its letters would be larger than the text."""
    box = re.search(r'viewBox="([^"]*)"', svg)
    return float(box[1].replace(",", " ").split()[2]) if box else 480.0


def png(indices: Matrix, palette: Matrix) -> str:
    """Return a picture as a data URI.

    Parameters
    ----------
    indices : (height, width), uint8
        Place in the palette of each pixel.
    palette : (n_colours, 4), uint8
        Red, green, blue and opacity.
    """
    picture = optional("PIL.Image", "report", "pillow").fromarray(indices.astype(np.uint8))
    picture.putpalette(palette[:, :3].tobytes())
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True, transparency=palette[:, 3].tobytes())
    return "data:image/png;base64," + b64encode(content.getvalue()).decode("ascii")


def grey(image: Matrix, top: float) -> str:
    """Return an image as PNG, black at 0 and white at `top`; NaN is transparent."""
    level = np.clip(np.nan_to_num(image / (top or 1.0)), 0, 1)
    palette = GREYS.copy()
    # Pure black and the grey next to it look the same: one of them can stand for what is missing.
    palette[0, 3] = 0
    return png(np.where(np.isnan(image), 0, np.maximum(np.round(255 * level), 1)), palette)


def picture(image: Matrix, top: float) -> str:
    """Return an image as PNG, (height, width) in grey or (height, width, 3) in colour, brightest at `top`."""
    if image.ndim == 2:
        return grey(image, top)
    level = np.round(255 * np.clip(np.nan_to_num(image / (top or 1.0)), 0, 1))
    opacity = np.where(np.isnan(image).any(axis=-1, keepdims=True), 0, 255)
    content = io.BytesIO()
    pixels = np.concatenate([level, opacity], axis=-1).astype(np.uint8)
    optional("PIL.Image", "report", "pillow").fromarray(pixels).save(content, "PNG", optimize=True)
    return "data:image/png;base64," + b64encode(content.getvalue()).decode("ascii")


def shrunk(image: Matrix, longest: int) -> Matrix:
    """Return an image whose sides have at most `longest` pixels, in its proportions: squares of pixels are averaged.

    Examples
    --------
    >>> shrunk(np.ones((90, 100)), 96).shape
    (45, 50)
    """
    step = ceil(max(image.shape[:2]) / longest)
    return pool(image, (ceil(image.shape[0] / step), ceil(image.shape[1] / step)), np.mean)


def pool(X: Matrix, limit: tuple[int, int], how: Callable[..., Matrix]) -> Matrix:
    """Return a matrix of at most `limit` rows and columns; `how` joins entries that share a cell, such as ``np.mean``.

    Cells at the far edges may hold fewer entries than the others.

    Examples
    --------
    >>> pool(np.arange(6.0).reshape(1, 6), (4, 3), np.max)
    array([[1., 3., 5.]])
    """
    for axis, most in enumerate(limit):
        step = ceil(X.shape[axis] / most)
        if step > 1:
            starts = range(0, X.shape[axis], step)
            X = np.stack([how(X.take(range(s, min(s + step, X.shape[axis])), axis), axis=axis) for s in starts], axis)
    return X
