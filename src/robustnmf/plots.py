"""Pictures of a factorisation, with Matplotlib (extra ``plots``).

A function that draws one picture takes the axes to draw on, ``ax=``, and returns them; one that draws a grid takes and
returns a figure. Without, a new figure is made. Nothing is shown or saved, and no setting of Matplotlib is changed.
Samples, features and components are counted from 0, as in the arrays.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, sqrt
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import NotFittedError

from robustnmf.algorithm.judged_entries import JudgedEntries, judged_entries
from robustnmf.data.blocks import check_observations
from robustnmf.data.sparse import is_sparse
from robustnmf.errors import MissingExtraError
from robustnmf.model.losses import Loss
from robustnmf.model.noise import INFORMATIVE, NoiseModel
from robustnmf.utils.arrays import to_host

Matrix = NDArray[Any]
Kind = Literal["auto", "images", "spectra", "bars"]

OUTLIER_COLOUR = "#d62728"
MISSING_COLOUR = "#8a8a8a"

# With more features than this, bars and their names are too narrow to be told apart.
MOST_BARS = 30
# Distance between the base lines of components drawn above each other; the largest entry has height 1.
SPACING = 1.1
# Names along an axis, at most.
MOST_TICKS = 12
# Residuals below this part of the typical width of the noise are drawn there.
SMALLEST_RESIDUAL = 0.01
# What the columns of `history_` mean.
HISTORY_LABELS = {
    "objective": "objective",
    "scale": "scale",
    "outlier_share": "share of outliers",
    "seconds": "seconds",
    "relative_change": "relative change",
}


def components(
    model: Any,
    *,
    kind: Kind = "auto",
    image_shape: tuple[int, int] | None = None,
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
    image_shape : (height, width) or None
        Shape of one image; by default that of the model.
    feature_names : sequence or None
        Names of the features, by default those that the model was fitted with. If all are numbers in rising or falling
        order, such as wavelengths, lines are drawn over them.
    ax : matplotlib Axes or None
        Where to draw.
    """
    C = _matrix(model, "components_", "components")
    image_shape = getattr(model, "image_shape", None) if image_shape is None else image_shape
    names = getattr(model, "feature_names_in_", None) if feature_names is None else feature_names
    names = None if names is None else check_names(names, C.shape[1], "feature")
    if kind == "auto":
        kind = "images" if image_shape is not None else "bars" if C.shape[1] <= MOST_BARS else "spectra"
    if kind not in ("images", "spectra", "bars"):
        raise ValueError(f"kind must be 'auto', 'images', 'spectra' or 'bars'; got {kind!r}.")
    if kind == "images":
        shape = check_image_shape(image_shape, C.shape[1])
        return _mosaic(C.reshape(-1, *shape), _axes(ax))
    return _ridges(C, kind, names, _axes(ax))


def codes(model: Any, X: Any = None, *, ax: Any = None) -> Any:
    """Draw the codes as a map, samples down and components across, and return the axes.

    Parameters
    ----------
    model : fitted estimator, or array (n_samples, n_components)
        An estimator encodes `X`; an array is drawn as it is.
    X : array-like (n_samples, n_features)
        Samples to encode.
    ax : matplotlib Axes or None
        Where to draw.
    """
    if hasattr(model, "transform"):
        check_fitted(model)
        if X is None:
            raise ValueError("Codes are not kept by the model: pass the samples too, codes(model, X).")
        # What set_output made of them is a matter of the caller's.
        H = np.asarray(model.transform(X))
    else:
        H = _matrix(model, "", "codes")
    ax = _axes(ax)
    picture = ax.imshow(H, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0)
    ax.figure.colorbar(picture, ax=ax, label="code")
    ax.set(xlabel="component", ylabel="sample")
    return ax


def residuals(model: Any, X: Any, *, kind: Literal["histogram", "map"] = "histogram", ax: Any = None) -> Any:
    """Draw what the model leaves of X, and return the axes.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features)
        Samples, those of the fit or others; NaN is missing.
    kind : {"histogram", "map"}
        A histogram of the magnitudes with the outliers in colour, the scale and the threshold; or a map of the signed
        residuals, samples down and features across, whose colours end at the threshold (without one, at five scales).
    ax : matplotlib Axes or None
        Where to draw.
    """
    check_fitted(model)
    if kind not in ("histogram", "map"):
        raise ValueError(f"kind must be 'histogram' or 'map'; got {kind!r}.")
    data = check_observations(model, X, None, reset=False)
    R = data.X - np.asarray(to_host(model.transform(X))) @ model.components_
    observed = np.ones(R.shape, dtype=bool) if data.M is None else data.M > 0
    if kind == "map":
        return _residual_map(np.where(observed, R, np.nan), model, _axes(ax))
    outliers = np.asarray(to_host(model.outlier_mask(X)), dtype=bool)
    return _residual_histogram(np.abs(R), observed, outliers, model, _axes(ax))


def noise_width(
    model: Any,
    X: Any,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    most_points: int = 4000,
    ax: Any = None,
) -> Any:
    """Draw how large residuals are beside the size of the prediction, with the noise of the model; return the axes.

    Both are in units of the level of the feature, its typical prediction, on logarithmic axes. Lines are the width of
    the noise of a typical feature, the median of clean residuals, and the threshold beyond which an entry is wrong. The
    band holds the widths of eight in ten features.

    Parameters
    ----------
    model : fitted estimator
        The model; it must have judged entries by their noise.
    X : array-like (n_samples, n_features)
        Samples, those of the fit or others; NaN is missing. Of large data some are drawn.
    weights, uncertainties : array-like (n_samples, n_features) or None
        As in the fit.
    most_points : int
        How many entries are drawn, at most, of those that are kept, and of the outliers.
    ax : matplotlib Axes or None
        Where to draw.
    """
    check_fitted(model)
    if getattr(model, "noise_", None) is None:
        raise ValueError("This model has no noise_: its entries were judged by the loss alone. Fit with noise='auto'.")
    if not isinstance(most_points, Integral) or most_points < 1:
        raise ValueError(f"most_points must be a positive integer; got {most_points!r}.")
    entries = judged_entries(model, X, weights, uncertainties).some(int(most_points))
    return _noise_width(entries, model.noise_, _axes(ax))


def outlier_map(model: Any, *, ax: Any = None) -> Any:
    """Draw which entries are outliers, samples down and features across, and return the axes.

    Parameters
    ----------
    model : fitted estimator, or array of bool (n_samples, n_features)
        The mask of an estimator is that of the data it was fitted to; its missing entries are grey.
    ax : matplotlib Axes or None
        Where to draw.
    """
    mask = _matrix(model, "outliers_", "mask", dtype=bool)
    missing = (np.asarray(to_host(model.weights_)) == 0) & ~mask if hasattr(model, "weights_") else np.zeros_like(mask)
    ax = _axes(ax)
    ax.imshow(_coloured(mask, missing), aspect="auto", interpolation="nearest")
    observed = mask.size - missing.sum()
    ax.set(xlabel="feature", ylabel="sample", title=f"{mask.sum() / max(observed, 1):.1%} outliers")
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
    """
    columns = [np.atleast_2d(np.asarray(w)) for w in weights]
    if not columns or len({w.shape for w in columns}) != 1:
        raise ValueError(f"weights must be one or more arrays of one shape; got {[w.shape for w in columns]}.")
    height, width = check_image_shape(image_shape, columns[0].shape[-1])
    if titles is not None and len(titles) != len(columns):
        raise ValueError(f"titles must have {len(columns)} entries, one for each array; got {len(titles)}.")
    n_images = len(columns[0])
    figure = _figure(figure, (0.4 + 1.3 * len(columns), 0.5 + 1.3 * n_images * height / width))
    axes = figure.subplots(n_images, len(columns), squeeze=False)
    for place, images in enumerate(columns):
        for axis, image in zip(axes[:, place], images, strict=True):
            axis.imshow(image.reshape(height, width), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        if titles is not None:
            axes[0, place].set_title(titles[place])
    return figure


def history(model: Any, *, columns: Sequence[str] = ("objective", "scale", "outlier_share"), figure: Any = None) -> Any:
    """Draw how the fit went, one panel for each column of ``history_``, and return the figure.

    Parameters
    ----------
    model : fitted estimator, or its ``history_``
        What to draw.
    columns : sequence of str
        Which columns.
    figure : matplotlib Figure or None
        Where to draw.
    """
    if not isinstance(model, Mapping):
        check_fitted(model)
    table = model if isinstance(model, Mapping) else model.history_
    unknown = [name for name in columns if name not in table]
    if unknown or not columns:
        raise ValueError(f"columns must be among {', '.join(table)}; got {', '.join(unknown) or 'none'}.")
    figure = _figure(figure, (3.4 * len(columns), 2.8))
    for axis, name in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        values = np.asarray(table[name], dtype=float)
        axis.plot(np.where(np.isfinite(values), values, np.nan), marker="." if values.size < 15 else "")
        axis.set(xlabel="iteration", ylabel=HISTORY_LABELS.get(name, name))
        if name == "scale" and np.all(values > 0) and values.max() > 10 * values.min():
            axis.set_yscale("log")  # it starts at the level of the data
        if name == "outlier_share":
            axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    return figure


def rank_curve(
    ranks: ArrayLike,
    scores: ArrayLike,
    errors: ArrayLike | None = None,
    chosen: int | None = None,
    *,
    ax: Any = None,
) -> Any:
    """Draw the score of each rank, higher being better, and return the axes.

    Parameters
    ----------
    ranks : array-like (n_ranks,)
        Ranks that were tried.
    scores : array-like (n_ranks,)
        Mean score of each.
    errors : array-like (n_ranks,) or None
        Standard error of each mean.
    chosen : int or None
        The rank to mark, one of `ranks`.
    ax : matplotlib Axes or None
        Where to draw.
    """
    x, y = np.asarray(ranks), np.asarray(scores, dtype=float)
    spread = None if errors is None else np.asarray(errors, dtype=float)
    if x.ndim != 1 or y.shape != x.shape or (spread is not None and spread.shape != x.shape):
        given = [x.shape, y.shape] + ([] if spread is None else [spread.shape])
        raise ValueError(f"ranks, scores and errors must be lists of one length; got shapes {given}.")
    if chosen is not None and chosen not in x:
        raise ValueError(f"chosen must be one of the ranks {x.tolist()}; got {chosen!r}.")
    order = np.argsort(x)
    ax = _axes(ax)
    ax.errorbar(x[order], y[order], yerr=None if spread is None else spread[order], marker="o", capsize=3)
    if chosen is not None:
        ax.axvline(chosen, color=OUTLIER_COLOUR, linestyle="--", label=f"chosen: {chosen}")
        ax.legend()
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="rank", ylabel="score")
    return ax


def loss_curves(losses: Mapping[str, Loss] | Iterable[Loss], *, limit: float = 4.0, ax: Any = None) -> Any:
    """Draw losses over the residual, in scales from -`limit` to `limit`, and return the axes.

    Parameters
    ----------
    losses : mapping of names to losses, or iterable of losses
        Losses, see `robustnmf.model.losses`.
    limit : float
        Where the axis ends.
    ax : matplotlib Axes or None
        Where to draw.
    """
    ax, ratio = _axes(ax), _ratios(limit)
    for name, loss in _named(losses).items():
        ax.plot(ratio, loss.rho(ratio**2, np), label=name)
    ax.set(xlabel="residual / scale", ylabel="loss")
    ax.legend()
    return ax


def weight_curves(losses: Mapping[str, Loss] | Iterable[Loss], *, limit: float = 4.0, ax: Any = None) -> Any:
    """Draw the weights that losses give to a residual, in scales from -`limit` to `limit`, and return the axes.

    The weight of a norm is nearly infinite at zero: there the axis ends a little above the weight of a residual of half
    a scale. See `loss_curves` for the parameters.
    """
    ax, ratio = _axes(ax), _ratios(limit)
    top = 0.0
    for name, loss in _named(losses).items():
        ax.plot(ratio, loss.weight(ratio**2, np), label=name)
        tip, half = loss.weight(np.array([0.0, 0.25]), np)
        top = max(top, float(tip if tip <= 4 * half or not half else half))
    ax.set(xlabel="residual / scale", ylabel="weight", ylim=(0, 1.1 * top))
    ax.legend()
    return ax


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
    """
    arrays = [np.asarray(images) for _, images in rows]
    if not arrays or arrays[0].ndim != 2 or len({images.shape for images in arrays}) != 1:
        shapes = [images.shape for images in arrays]
        raise ValueError(f"rows must hold arrays (n_images, n_pixels) of one shape; got {shapes}.")
    height, width = len(arrays), len(arrays[0])
    shape = check_image_shape(image_shape, arrays[0].shape[1])
    vmax = float(np.nanmax(arrays[0])) if vmax is None else vmax
    figure = _figure(figure, (1.6 + 0.95 * width, 0.5 + 1.0 * height))
    axes = figure.subplots(height, width, squeeze=False)
    for line, (label, _), images in zip(axes, rows, arrays, strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(_picture(image.reshape(shape), vmax))
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.suptitle(title)
    return figure


def check_fitted(model: Any) -> None:
    """Raise an error if an estimator is not fitted."""
    if not hasattr(model, "components_"):
        name = type(model).__name__
        if not hasattr(model, "fit"):
            raise ValueError(f"A fitted estimator is needed; got {name}.")
        raise NotFittedError(f"This {name} is not fitted yet: call fit(X) first.")


def check_image_shape(image_shape: Any, n_features: int) -> tuple[int, int]:
    """Return the shape of an image, or say what is wrong with it."""
    if image_shape is None:
        raise ValueError("Images need their shape: pass image_shape=(height, width).")
    shape = tuple(image_shape) if isinstance(image_shape, Iterable) else ()
    whole = all(isinstance(side, Integral) for side in shape)
    if len(shape) != 2 or not whole or min(shape) < 1 or shape[0] * shape[1] != n_features:
        raise ValueError(
            f"image_shape must be (height, width) with height * width = {n_features}, the number of features; "
            f"got {image_shape!r}."
        )
    return int(shape[0]), int(shape[1])


def check_names(names: Any, count: int, what: str) -> list[str]:
    """Return names of samples or features as text, or say that their number is wrong."""
    texts = [str(name) for name in names]
    if len(texts) != count:
        raise ValueError(f"{what}_names must have {count} entries, one for each {what}; got {len(texts)}.")
    return texts


def _matrix(model: Any, attribute: str, what: str, dtype: Any = None) -> Matrix:
    """Return the array of a fitted estimator, or the array given in its place."""
    if hasattr(model, "fit"):
        check_fitted(model)
        array = getattr(model, attribute)
        return array.toarray() if is_sparse(array) else np.asarray(to_host(array))
    array = np.asarray(to_host(model))
    if array.ndim != 2 or not array.size or (dtype is bool and array.dtype != bool):
        kind = "boolean " if dtype is bool else ""
        raise ValueError(
            f"{what} must be a fitted estimator or a {kind}matrix; got {array.dtype} of shape {array.shape}."
        )
    return array


def _mosaic(images: Matrix, ax: Any) -> Any:
    """Draw images side by side, row by row, about as high as wide."""
    count, height, width = images.shape
    n_columns = min(count, ceil(sqrt(count * height / width)))
    n_rows = ceil(count / n_columns)
    sheet = np.full((n_rows * (height + 1) - 1, n_columns * (width + 1) - 1), np.nan)
    for number, image in enumerate(images):
        top, left = number // n_columns * (height + 1), number % n_columns * (width + 1)
        sheet[top : top + height, left : left + width] = image
    ax.imshow(sheet, cmap="gray", vmin=0, interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    return ax


def _ridges(C: Matrix, kind: str, names: list[str] | None, ax: Any) -> Any:
    """Draw components as lines or bars above each other."""
    peak = float(C.max()) or 1.0
    positions = np.arange(C.shape[1], dtype=float)
    values = _numbers(names) if kind == "spectra" else None
    if values is not None:
        positions, names = values, None
    bases = SPACING * np.arange(len(C))[::-1]
    for number, (base, component) in enumerate(zip(bases, C, strict=True)):
        colour = f"C{number % 10}"
        if kind == "bars":
            ax.bar(positions, component / peak, bottom=base, color=colour)
        else:
            ax.plot(positions, base + component / peak, color=colour, linewidth=1)
            ax.fill_between(positions, base, base + component / peak, color=colour, alpha=0.25, linewidth=0)
    ax.set_yticks(bases, [str(number) for number in range(len(C))])
    ax.set(xlabel="feature", ylabel="component", ylim=(-0.03, bases[0] + SPACING))
    if names is not None:
        _label(ax, names, every=1 if kind == "bars" else ceil(len(names) / MOST_TICKS))
    return ax


def _label(ax: Any, names: list[str], every: int) -> None:
    """Write names below the axis; a dollar sign in them is no mathematics."""
    shown = range(0, len(names), every)
    ax.set_xticks(shown, [names[place] for place in shown], rotation=90, parse_math=False)
    ax.set_xlabel("")


def _numbers(names: list[str] | None) -> Matrix | None:
    """Return names as numbers, if they are numbers in order."""
    try:
        values = np.array([float(name) for name in names or ()])
    except ValueError:
        return None
    steps = np.diff(values)
    return values if values.size and np.isfinite(values).all() and (np.all(steps > 0) or np.all(steps < 0)) else None


def _residual_map(R: Matrix, model: Any, ax: Any) -> Any:
    """Draw signed residuals, NaN in grey."""
    thresholds = model.thresholds_[np.isfinite(model.thresholds_)]
    end = float(np.median(thresholds)) if thresholds.size else 5 * float(model.scale_)
    ax.set_facecolor(MISSING_COLOUR)
    picture = ax.imshow(R, aspect="auto", interpolation="nearest", cmap="RdBu_r", vmin=-end, vmax=end)
    ax.figure.colorbar(picture, ax=ax, label="residual", extend="both")
    ax.set(xlabel="feature", ylabel="sample")
    return ax


def _residual_histogram(A: Matrix, observed: Matrix, outliers: Matrix, model: Any, ax: Any) -> Any:
    """Draw magnitudes of residuals on a logarithmic axis: errors are far larger than noise."""
    tiny = max(float(np.max(A)) * 1e-9, float(np.finfo(float).tiny))
    magnitudes = np.maximum(A, tiny)  # a residual of zero has no logarithm
    kept, rejected = magnitudes[observed & ~outliers], magnitudes[outliers]
    both = np.concatenate([kept, rejected])
    if both.size:
        # From a thousandth on: how small a small residual is says nothing.
        lowest = max(float(both.min()), float(np.median(both)) * 1e-3)
        bins = np.geomspace(lowest, max(float(both.max()), 2 * lowest), 61)
        parts = [np.maximum(part, lowest) for part in (kept, rejected)]
        ax.hist(parts, bins=bins, stacked=True, color=["C0", OUTLIER_COLOUR], label=["kept", "outliers"])
    ax.axvline(model.scale_, color="black", linestyle=":", label="scale")
    threshold = float(np.median(model.thresholds_))
    if np.isfinite(threshold):
        ax.axvline(threshold, color="black", linestyle="--", label="threshold")
    ax.set(xscale="log", xlabel="magnitude of the residual", ylabel="entries")
    ax.legend()
    return ax


def _noise_width(entries: JudgedEntries, noise: NoiseModel, ax: Any) -> Any:
    """Draw residuals over predictions, with the width of the noise and the threshold."""
    from matplotlib import rcParams

    ink, relative = rcParams["text.color"], noise.relative_widths
    low, typical, high = np.quantile(relative, [0.1, 0.5, 0.9])
    # How small a small residual, or prediction, is says nothing.
    lowest, shortest = INFORMATIVE, SMALLEST_RESIDUAL * typical
    x, y = np.maximum(entries.sizes, lowest), np.maximum(entries.magnitudes, shortest)
    for wrong, label, style in ((False, "kept", ("C0", 0.4)), (True, "outliers", (OUTLIER_COLOUR, 0.7))):
        chosen = entries.is_wrong == wrong
        if chosen.any():
            ax.scatter(x[chosen], y[chosen], s=5, color=style, linewidths=0, label=label)
    sizes = np.geomspace(x.min(initial=1.0), x.max(initial=2.0), 100)
    features = noise.of_typical_features(np.array([low, typical, high]))
    width, limits = (of(sizes[:, None], np) + np.zeros((100, 3)) for of in (features.width, features.limits))
    ax.fill_between(sizes, width[:, 0], width[:, 2], color=ink, alpha=0.15, linewidth=0)
    ax.plot(sizes, width[:, 1], color=ink, label="width")
    if np.isfinite(noise.threshold):
        label = f"threshold, {noise.threshold:.3g} widths"
        ax.plot(sizes, limits[:, 1], color=ink, linestyle="--", label=label)
    ax.set(xscale="log", yscale="log", xlabel="prediction / level", ylabel="residual / level")
    ax.legend(markerscale=2)
    return ax


def _coloured(mask: Matrix, missing: Matrix) -> Matrix:
    """Return a picture of outliers and missing entries on white, (..., 3)."""
    from matplotlib.colors import to_rgb

    # A byte for each colour: the mask can be as large as the data.
    palette = np.array([[1.0] * 3, to_rgb(OUTLIER_COLOUR), to_rgb(MISSING_COLOUR)])
    bytes_ = np.round(255 * palette).astype(np.uint8)
    return np.asarray(bytes_[mask + 2 * missing.astype(np.uint8)])


def _picture(image: Any, vmax: float) -> Any:
    """Return an image as RGB: grey values, or a mask in colour on white."""
    from matplotlib.colors import to_rgb

    if image.dtype == bool:
        return np.where(image[..., None], to_rgb(OUTLIER_COLOUR), (1.0, 1.0, 1.0))
    grey = np.repeat(np.clip(image / (vmax or 1.0), 0, 1)[..., None], 3, axis=2)
    return np.where(np.isnan(grey), to_rgb(MISSING_COLOUR), grey)


def _ratios(limit: float) -> Matrix:
    """Return residuals in scales, zero among them."""
    if not 0 < limit < np.inf:
        raise ValueError(f"limit must be a positive number of scales; got {limit!r}.")
    return np.linspace(-limit, limit, 801)


def _named(losses: Mapping[str, Loss] | Iterable[Loss]) -> Mapping[str, Loss]:
    """Return losses with their names."""
    if not isinstance(losses, Mapping):
        losses = {str(getattr(loss, "name", type(loss).__name__)): loss for loss in losses}
    for name, loss in losses.items():
        if not isinstance(loss, Loss) or isinstance(loss, type):
            raise ValueError(f"losses must be objects like those of robustnmf.model.losses; got {loss!r} for {name!r}.")
    if not losses:
        raise ValueError("losses must hold at least one loss.")
    return losses


def _axes(ax: Any) -> Any:
    """Return the axes given, or new ones."""
    return _pyplot().subplots(layout="constrained")[1] if ax is None else ax


def _figure(figure: Any, size: tuple[float, float]) -> Any:
    """Return the figure given, or a new one."""
    return _pyplot().figure(figsize=size, layout="constrained") if figure is None else figure


def _pyplot() -> Any:
    """Import Matplotlib late: it is an extra."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return plt
