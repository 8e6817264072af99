"""Which entries are outliers."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robustnmf.plots.base import (
    MISSING_COLOUR,
    OUTLIER_COLOUR,
    Matrix,
    axes_of,
    check_fitted,
    check_image_shape,
    figure_of,
    matrix_of,
)
from robustnmf.plots.grids import check_picture_shape, image_of
from robustnmf.plots.shares import mask_of
from robustnmf.utils.arrays import to_host


def outlier_map(model: Any, *, ax: Any = None) -> Any:
    """Draw which entries are outliers, samples down and features across, and return the axes.

    Parameters
    ----------
    model : fitted estimator, or array of bool (n_samples, n_features)
        The mask of an estimator is that of the data it was fitted to; its missing entries are grey.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    mask = matrix_of(model, "outliers_", "mask", dtype=bool)
    missing = (np.asarray(to_host(model.weights_)) == 0) & ~mask if hasattr(model, "weights_") else np.zeros_like(mask)
    ax = axes_of(ax)
    ax.imshow(_coloured(mask, missing), aspect="auto", interpolation="nearest")
    observed = mask.size - missing.sum()
    ax.set(xlabel="feature", ylabel="sample", title=f"{mask.sum() / max(observed, 1):.1%} outliers")
    return ax


def outlier_image(
    model: Any,
    X: Any,
    sample: int,
    image_shape: tuple[int, ...] | None = None,
    *,
    mask: Any = None,
    vmax: float | None = None,
    ax: Any = None,
) -> Any:
    """Draw a sample as an image with its outliers in red, and return the axes.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features)
        Samples; missing pixels are grey.
    sample : int
        Which one to draw.
    image_shape : (height, width), (height, width, 3), (channels, height, width) or None
        Shape of the image, by default that of the model. A pixel in colour is red if one of its colours is an outlier;
        channels stand side by side.
    mask : array of bool (n_samples, n_features) or None
        Outliers of all samples, such as ``model.outliers_``; None asks the model for those of this sample.
    vmax : float or None
        Value drawn white; by default the largest pixel that is no outlier.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    check_fitted(model)
    rows = np.asarray(to_host(getattr(X, "values", X)))
    if not isinstance(sample, Integral) or isinstance(sample, bool) or not -len(rows) <= sample < len(rows):
        raise ValueError(f"sample must be a number below {len(rows)}; got {sample!r}.")
    values = np.asarray(rows[sample], dtype=float)
    shape = getattr(model, "image_shape", None) if image_shape is None else image_shape
    shape = check_picture_shape(shape, len(values))
    wrong = mask_of(model, rows[[sample]])[0] if mask is None else np.asarray(to_host(mask))[sample]
    kept = values[~wrong & np.isfinite(values)]
    top = float(kept.max(initial=0)) if vmax is None else vmax
    ax = axes_of(ax)
    red = image_of(wrong.astype(float), shape) == 1
    red = red.any(axis=-1) if red.ndim == 3 else red
    picture = np.where(red[..., None], _rgb(OUTLIER_COLOUR), _picture(image_of(values, shape), top))
    ax.imshow(picture, interpolation="nearest")
    ax.set(xticks=[], yticks=[], title=f"{wrong.mean():.1%} outliers")
    return ax


def weight_maps(
    weights: Iterable[ArrayLike],
    image_shape: tuple[int, int],
    *,
    titles: Sequence[str] | None = None,
    figure: Any = None,
) -> Any:
    """Draw weights of the pixels of images, one column for each iteration and one row for each image.

    Parameters
    ----------
    weights : sequence of arrays (n_images, n_pixels) or (n_pixels,)
        Weights between 0, black, and 1, white, such as ``weights_[:3]`` of fits with a rising ``max_iter``.
    image_shape : (height, width)
        Shape of one image.
    titles : sequence of str or None
        Title of each column.
    figure : matplotlib Figure or None
        Where to draw.

    Returns
    -------
    matplotlib Figure
        The figure that was drawn on.
    """
    columns = [np.atleast_2d(np.asarray(w)) for w in weights]
    if not columns or len({w.shape for w in columns}) != 1:
        raise ValueError(f"weights must be one or more arrays of one shape; got {[w.shape for w in columns]}.")
    height, width = check_image_shape(image_shape, columns[0].shape[-1])
    if titles is not None and len(titles) != len(columns):
        raise ValueError(f"titles must have {len(columns)} entries, one for each array; got {len(titles)}.")
    n_images = len(columns[0])
    figure = figure_of(figure, (0.4 + 1.3 * len(columns), 0.5 + 1.3 * n_images * height / width))
    axes = figure.subplots(n_images, len(columns), squeeze=False)
    for place, images in enumerate(columns):
        for axis, image in zip(axes[:, place], images, strict=True):
            axis.imshow(image.reshape(height, width), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        if titles is not None:
            axes[0, place].set_title(titles[place])
    return figure


def before_after(
    rows: Sequence[tuple[str, ArrayLike]],
    image_shape: tuple[int, int],
    *,
    vmax: float | None = None,
    title: str = "",
    figure: Any = None,
) -> Any:
    """Draw samples as images, one row for each stage, and return the figure.

    Parameters
    ----------
    rows : sequence of (label, array (n_images, n_pixels))
        What to show from top to bottom. Boolean arrays are drawn as masks; missing pixels are grey.
    image_shape : (height, width)
        Shape of one image.
    vmax : float or None
        Value drawn white; by default the maximum of the first row.
    title : str
        Title of the figure.
    figure : matplotlib Figure or None
        Where to draw.

    Returns
    -------
    matplotlib Figure
        The figure that was drawn on.
    """
    arrays = [np.asarray(images) for _, images in rows]
    if not arrays or arrays[0].ndim != 2 or len({images.shape for images in arrays}) != 1:
        shapes = [images.shape for images in arrays]
        raise ValueError(f"rows must hold arrays (n_images, n_pixels) of one shape; got {shapes}.")
    height, width = len(arrays), len(arrays[0])
    shape = check_image_shape(image_shape, arrays[0].shape[1])
    vmax = float(np.nanmax(arrays[0])) if vmax is None else vmax
    figure = figure_of(figure, (1.6 + 0.95 * width, 0.5 + 1.0 * height))
    axes = figure.subplots(height, width, squeeze=False)
    for line, (label, _), images in zip(axes, rows, arrays, strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(_picture(image.reshape(shape), vmax))
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.suptitle(title)
    return figure


def _coloured(mask: Matrix, missing: Matrix) -> Matrix:
    """Return a picture of outliers and missing entries on white, (..., 3)."""
    # A byte for each colour: the mask can be as large as the data.
    palette = np.array([(1.0, 1.0, 1.0), _rgb(OUTLIER_COLOUR), _rgb(MISSING_COLOUR)])
    bytes_ = np.round(255 * palette).astype(np.uint8)
    return np.asarray(bytes_[mask + 2 * missing.astype(np.uint8)])


def _picture(image: Any, vmax: float) -> Any:
    """Return an image as RGB: grey values or colours, or a mask in red on white."""
    if image.dtype == bool:
        return np.where(image[..., None], _rgb(OUTLIER_COLOUR), (1.0, 1.0, 1.0))
    levels = np.clip(image / (vmax or 1.0), 0, 1)
    colours = np.repeat(levels[..., None], 3, axis=2) if image.ndim == 2 else levels
    return np.where(np.isnan(colours).any(axis=-1, keepdims=True), _rgb(MISSING_COLOUR), colours)


def _rgb(colour: str) -> tuple[float, float, float]:
    return tuple(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))  # type: ignore[return-value]
