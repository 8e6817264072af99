"""What the components are, and how much of each feature they explain."""

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any, Literal

import numpy as np

from robustnmf.plots.base import (
    MISSING_COLOUR,
    MOST_BARS,
    MOST_TICKS,
    OUTLIER_COLOUR,
    Matrix,
    axes_of,
    check_names,
    codes_of,
    colour_of,
    component_place,
    feature_names_of,
    figure_of,
    label,
    matrix_of,
    numbers_of,
    plain_numbers,
)
from robustnmf.plots.grids import check_picture_shape, image_of
from robustnmf.plots.shares import explained_shares

Kind = Literal["auto", "images", "spectra", "bars"]

# Distance between the base lines of components drawn above each other; the largest entry has height 1.
SPACING = 1.1


def components(
    model: Any,
    *,
    kind: Kind = "auto",
    image_shape: tuple[int, ...] | None = None,
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Draw the components and return the axes.

    Parameters
    ----------
    model : fitted estimator, or array (n_components, n_features)
        Whose components to draw.
    kind : {"auto", "images", "spectra", "bars"}
        Images are laid out in a mosaic, row by row; lines and bars above each other, the first on top. "auto" draws
        images if there is an `image_shape`, bars for up to 30 features, and lines for more.
    image_shape : (height, width), (height, width, 3), (channels, height, width) or None
        Shape of one image; by default that of the model. Colours are drawn as such, and channels side by side.
    feature_names : sequence or None
        Names of the features, by default those that the model was fitted with. If all are numbers in rising or falling
        order, such as wavelengths, lines are drawn over them.
    ax : matplotlib Axes or None
        Where to draw.
    """
    C = matrix_of(model, "components_", "components")
    image_shape = getattr(model, "image_shape", None) if image_shape is None else image_shape
    names = getattr(model, "feature_names_in_", None) if feature_names is None else feature_names
    names = None if names is None else check_names(names, C.shape[1], "feature")
    if kind == "auto":
        kind = "images" if image_shape is not None else "bars" if C.shape[1] <= MOST_BARS else "spectra"
    if kind not in ("images", "spectra", "bars"):
        raise ValueError(f"kind must be 'auto', 'images', 'spectra' or 'bars'; got {kind!r}.")
    if kind == "images":
        ax = axes_of(ax)
        _mosaic(_images(C, image_shape), ax)
        return ax
    return _ridges(C, kind, names, axes_of(ax))


def component_images(
    model: Any, image_shape: tuple[int, ...] | None = None, *, codes: Any = None, ax: Any = None
) -> Any:
    """Draw the components as images, numbered from 1, and return the axes.

    Parameters
    ----------
    model : fitted estimator, or array (n_components, n_features)
        Whose components to draw.
    image_shape : (height, width), (height, width, 3), (channels, height, width) or None
        Shape of one image; by default that of the model. Colours are drawn as such, and channels side by side.
    codes : array-like (n_samples, n_components) or None
        Codes of samples. With them a component is drawn as bright as it is in the typical sample that has it.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    C = matrix_of(model, "components_", "components")
    image_shape = getattr(model, "image_shape", None) if image_shape is None else image_shape
    if codes is not None:
        H = codes_of(model, None, codes) if hasattr(model, "components_") else np.asarray(codes)
        C = C * np.array([np.median(h[h > 0]) if (h > 0).any() else 0.0 for h in H.T])[:, None]
    images, ax = _images(C, image_shape), axes_of(ax)
    picture = _mosaic(images, ax)
    if images.ndim == 3:
        ax.figure.colorbar(picture, ax=ax, shrink=0.8)
    for number in range(len(C)):
        top, left = _corner(number, len(C), images.shape[1:3])
        ax.text(left, top, str(number + 1), color=OUTLIER_COLOUR, ha="left", va="top", fontweight="bold")
    return ax


def profiles(
    model: Any,
    X: Any = None,
    *,
    codes: Any = None,
    component: int | None = None,
    feature_names: Sequence[Any] | None = None,
    units: str = "",
    figure: Any = None,
    ax: Any = None,
) -> Any:
    """Draw what each component gives to the features of an average sample, and its share of each; return the axes.

    Bars are in units of the data, on a logarithmic axis. Dots, on an axis of their own, are the percentage of what all
    components together give to the feature.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features) or None
        Samples to encode, if `codes` are not given.
    codes : array-like (n_samples, n_components) or None
        Codes of samples, as `fit_transform` returns them.
    component : int or None
        The component to draw, from 1 on. None draws all, each on axes of its own, and returns a list of axes.
    feature_names : sequence or None
        Names of the features, by default those of the fit.
    units : str
        Unit of the data, for the label.
    figure : matplotlib Figure or None
        Where to draw all components.
    ax : matplotlib Axes or None
        Where to draw a single component.

    Returns
    -------
    matplotlib Axes or list of them
        The axes that were drawn on.
    """
    H = codes_of(model, X, codes)
    names = feature_names_of(model, feature_names)
    given = H.mean(axis=0)[:, None] * model.components_
    total = given.sum(axis=0)
    percent = 100 * given / np.where(total > 0, total, 1)
    if component is not None:
        place = component_place(component, len(given))
        return _profile(given[place], percent[place], place, names, units, axes_of(ax))
    if ax is not None:
        raise ValueError("ax is for a single component: pass component too, or leave ax out.")
    figure = figure_of(figure, (max(4.0, 1.5 + 0.28 * min(len(names), 60)), 1.3 * len(given) + 0.9))
    panels = figure.subplots(len(given), 1, sharex=True, squeeze=False)[:, 0]
    for place, panel in enumerate(panels):
        _profile(given[place], percent[place], place, names, units, panel)
        panel.tick_params(labelbottom=place == len(given) - 1)
    return list(panels)


def explained_share(
    model: Any,
    X: Any,
    *,
    codes: Any = None,
    weights: Any = None,
    uncertainties: Any = None,
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Draw which part of the total of each feature each component explains, and return the axes.

    The total is that of the observed entries that are no outliers. Grey is what no component explains. Where components
    give more than there is, bars end above 100 %.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features)
        Samples, those of the fit or others; NaN is missing.
    codes : array-like (n_samples, n_components) or None
        Their codes, if they are known.
    weights, uncertainties : array-like (n_samples, n_features) or None
        As in the fit.
    feature_names : sequence or None
        Names of the features, by default those of the fit.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    shares = 100 * explained_shares(model, X, codes=codes, weights=weights, uncertainties=uncertainties)
    names, ax = feature_names_of(model, feature_names), axes_of(ax)
    rest = np.maximum(100 - shares.sum(axis=0), 0)
    places = np.arange(len(names))
    bases = np.vstack([np.zeros(len(names)), np.cumsum(shares, axis=0)])
    parts = [(part, colour_of(k), f"component {k + 1}") for k, part in enumerate(shares)]
    for (part, colour, words), base in zip([*parts, (rest, MISSING_COLOUR, "not explained")], bases, strict=True):
        if len(names) <= MOST_BARS:
            ax.bar(places, part, bottom=base, color=colour, label=words)
        else:
            ax.fill_between(places, base, base + part, color=colour, label=words, linewidth=0, step="mid")
    ax.set(ylabel="% of the feature", ylim=(0, max(100.0, 1.02 * float((shares.sum(axis=0)).max(initial=0)))))
    label(ax, names, every=1 if len(names) <= MOST_BARS else ceil(len(names) / MOST_TICKS))
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize="small")
    return ax


def _profile(given: Matrix, percent: Matrix, place: int, names: list[str], units: str, ax: Any) -> Any:
    """Draw one component: bars of what it gives, and dots of its share of each feature."""
    places = np.arange(len(given))
    positive = given[given > 0]
    ax.bar(places, given, color=colour_of(place), alpha=0.6)
    if positive.size:
        # A bar has no end on a logarithmic axis: what is far below the largest is drawn at the bottom.
        lowest = max(float(positive.min()), 1e-5 * float(positive.max()))
        ax.set(yscale="log", ylim=(lowest / 2, 2 * float(positive.max())))
        plain_numbers(ax.yaxis)
    label(ax, names, every=1 if len(names) <= 2 * MOST_BARS else ceil(len(names) / MOST_TICKS))
    ax.set_ylabel(f"{place + 1}" + (f"\n{units}" if units else ""))
    right = ax.twinx()
    right.plot(places, percent, "o", color=OUTLIER_COLOUR, markersize=3)
    right.set(ylim=(0, 105), ylabel="%")
    return ax


def _images(C: Matrix, image_shape: tuple[int, ...] | None) -> Matrix:
    """Return components as images, (n_components, height, width), or (n_components, height, width, 3) in colour."""
    shape = check_picture_shape(image_shape, C.shape[1])
    return np.stack([image_of(component, shape) for component in C])


def _corner(number: int, count: int, shape: Sequence[int]) -> tuple[int, int]:
    """Return the upper left corner of an image in the mosaic."""
    height, width = shape
    n_columns = min(count, ceil(sqrt(count * height / width)))
    return number // n_columns * (height + 1), number % n_columns * (width + 1)


def _mosaic(images: Matrix, ax: Any) -> Any:
    """Draw images side by side, row by row, about as high as wide."""
    count, height, width, *colours = images.shape
    n_columns = min(count, ceil(sqrt(count * height / width)))
    n_rows = ceil(count / n_columns)
    # Numbers of colours are drawn as they are: 1 is the largest. What lies between is white.
    images, ground = (images / (float(images.max()) or 1.0), 1.0) if colours else (images, np.nan)
    sheet = np.full((n_rows * (height + 1) - 1, n_columns * (width + 1) - 1, *colours), ground)
    for number, image in enumerate(images):
        top, left = _corner(number, count, (height, width))
        sheet[top : top + height, left : left + width] = image
    picture = ax.imshow(sheet, cmap="gray", vmin=0, interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    return picture


def _ridges(C: Matrix, kind: str, names: list[str] | None, ax: Any) -> Any:
    """Draw components as lines or bars above each other."""
    peak = float(C.max()) or 1.0
    positions = np.arange(C.shape[1], dtype=float)
    values = numbers_of(names) if kind == "spectra" else None
    if values is not None:
        positions, names = values, None
    bases = SPACING * np.arange(len(C))[::-1]
    for number, (base, component) in enumerate(zip(bases, C, strict=True)):
        colour = colour_of(number)
        if kind == "bars":
            ax.bar(positions, component / peak, bottom=base, color=colour)
        else:
            ax.plot(positions, base + component / peak, color=colour, linewidth=1)
            ax.fill_between(positions, base, base + component / peak, color=colour, alpha=0.25, linewidth=0)
    ax.set_yticks(bases, [str(number + 1) for number in range(len(C))])
    ax.set(xlabel="feature", ylabel="component", ylim=(-0.03, bases[0] + SPACING))
    if names is not None:
        label(ax, names, every=1 if kind == "bars" else ceil(len(names) / MOST_TICKS))
    return ax
