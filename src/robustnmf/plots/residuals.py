"""What a model leaves of the data, in the units in which it was judged."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import numpy as np

from robustnmf.algorithm.judged_entries import JudgedEntries, judged_entries, judged_samples
from robustnmf.data.blocks import check_observations
from robustnmf.model.noise import INFORMATIVE, NoiseModel
from robustnmf.plots.base import (
    MISSING_COLOUR,
    OUTLIER_COLOUR,
    Matrix,
    axes_of,
    check_fitted,
    codes_of,
    feature_names_of,
    label,
    place_of,
    plain_numbers,
)
from robustnmf.plots.shares import mask_of

# Residuals below this part of the typical width of the noise are drawn there.
SMALLEST_RESIDUAL = 0.01
# A histogram, and the colours of a map, end at so many thresholds; without a threshold, at so many widths.
MOST_THRESHOLDS, MOST_WIDTHS = 3.0, 15.0
# With a larger ratio of the largest to a typical entry, axes are logarithmic.
WIDE_RANGE = 30.0
# Features that are named along an axis, at most.
MOST_NAMED = 60


def residuals(
    model: Any,
    X: Any,
    *,
    kind: Literal["histogram", "features", "map"] = "histogram",
    weights: Any = None,
    uncertainties: Any = None,
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Draw what the model leaves of X, in the units in which entries were judged, and return the axes.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features)
        Samples, those of the fit or others; NaN is missing. Of large data every few samples are drawn.
    kind : {"histogram", "features", "map"}
        "histogram": see `residual_histogram`. "features": a histogram of each feature, upright, whose colours are
        shares of its entries. "map": the residuals themselves, samples down and features across, whose colours end at
        the threshold (without one, at five widths).
    weights, uncertainties : array-like (n_samples, n_features) or None
        As in the fit.
    feature_names : sequence or None
        Names of the features, by default those of the fit; for kind "features".
    ax : matplotlib Axes or None
        Where to draw.
    """
    if kind not in ("histogram", "features", "map"):
        raise ValueError(f"kind must be 'histogram', 'features' or 'map'; got {kind!r}.")
    if kind == "histogram":
        return residual_histogram(model, X, weights=weights, uncertainties=uncertainties, ax=ax)
    check_fitted(model)
    judged = judged_samples(model, X, weights, uncertainties)
    if kind == "features":
        return _histograms(judged, feature_names_of(model, feature_names), model, axes_of(ax))
    end = _typical_limit(judged.limits, otherwise=5.0)
    ax = axes_of(ax)
    ax.set_facecolor(MISSING_COLOUR)
    values = np.where(judged.is_observed, judged.ratios, np.nan)
    edges = (-0.5, values.shape[1] - 0.5, judged.step * len(values) - 0.5, -0.5)
    options = {"aspect": "auto", "interpolation": "nearest", "cmap": "RdBu_r", "extent": edges}
    picture = ax.imshow(values, vmin=-end, vmax=end, **options)
    ax.figure.colorbar(picture, ax=ax, label=_unit(model), extend="both")
    ax.set(xlabel="feature", ylabel="sample")
    return ax


def residual_histogram(
    model: Any,
    X: Any,
    *,
    feature: int | str | None = None,
    weights: Any = None,
    uncertainties: Any = None,
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Draw a histogram of residuals in the units in which they were judged, and return the axes.

    The unit is the width of the noise at the prediction, or without a noise model the scale (of residuals divided by
    the typical uncertainty of their feature, where uncertainties were given). Outliers are in colour; lines are the
    thresholds. What is beyond the ends of the axis is counted in the last bars.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features)
        Samples, those of the fit or others; NaN is missing. Of large data every few samples are drawn.
    feature : int, str or None
        The feature to draw, by its number or name; None is all.
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
    check_fitted(model)
    names = feature_names_of(model, feature_names)
    place = None if feature is None else place_of(feature, names)
    judged = judged_samples(model, X, weights, uncertainties)
    columns = slice(None) if place is None else slice(place, place + 1)
    ratios, is_wrong = judged.ratios[:, columns], judged.is_wrong[:, columns]
    observed = judged.is_observed[:, columns]
    limits = np.broadcast_to(judged.limits, judged.ratios.shape)[0, columns]
    return _histogram(ratios[observed], is_wrong[observed], limits, model, axes_of(ax))


def observed_vs_explained(
    model: Any,
    X: Any,
    *,
    feature: int | str | None = None,
    codes: Any = None,
    weights: Any = None,
    uncertainties: Any = None,
    most_points: int = 4000,
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Draw entries over what the model makes of them, outliers in colour, and return the axes.

    Axes are logarithmic where the data has a wide range.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features)
        Samples, those of the fit or others; NaN is missing.
    feature : int, str or None
        The feature to draw, by its number or name; None is all.
    codes : array-like (n_samples, n_components) or None
        Their codes, if they are known.
    weights, uncertainties : array-like (n_samples, n_features) or None
        As in the fit.
    most_points : int
        How many entries are drawn, at most, of those that are kept, and of the outliers.
    feature_names : sequence or None
        Names of the features, by default those of the fit.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    most = _checked_points(most_points)
    H = codes_of(model, X, codes, weights, uncertainties)
    names = feature_names_of(model, feature_names)
    columns = slice(None) if feature is None else [place_of(feature, names)]
    data = check_observations(model, X, weights, reset=False)
    wrong = mask_of(model, X, weights, uncertainties)[:, columns]
    seen = np.isfinite(data.X[:, columns]) if data.M is None else data.M[:, columns] > 0
    explained, measured = (H @ model.components_[:, columns])[seen], data.X[:, columns][seen]
    return _points(explained, measured, wrong[seen], most, axes_of(ax))


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

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    check_fitted(model)
    if getattr(model, "noise_", None) is None:
        raise ValueError("This model has no noise_: its entries were judged by the loss alone. Fit with noise='auto'.")
    entries = judged_entries(model, X, weights, uncertainties).some(_checked_points(most_points))
    return _noise_width(entries, model.noise_, axes_of(ax))


def _checked_points(most_points: Any) -> int:
    if not isinstance(most_points, Integral) or isinstance(most_points, bool) or most_points < 1:
        raise ValueError(f"most_points must be a positive integer; got {most_points!r}.")
    return int(most_points)


def _unit(model: Any) -> str:
    return "residual / scale" if getattr(model, "noise_", None) is None else "residual / width of the noise"


def _typical_limit(limits: Matrix, otherwise: float) -> float:
    finite = limits[np.isfinite(limits)]
    return float(np.median(finite)) if finite.size else otherwise


def _histogram(ratios: Matrix, is_wrong: Matrix, limits: Matrix, model: Any, ax: Any) -> Any:
    """Draw signed residuals; their number on a logarithmic axis, because outliers are few."""
    limit = _typical_limit(limits, otherwise=MOST_WIDTHS / MOST_THRESHOLDS)
    end = MOST_THRESHOLDS * limit
    inside = np.clip(ratios, -end, end)
    parts = [inside[~is_wrong], inside[is_wrong]]
    bins = np.linspace(-end, end, 91)
    ax.hist(parts, bins=bins, stacked=True, color=["C0", OUTLIER_COLOUR], label=["kept", "outliers"], log=True)
    if np.isfinite(limits).any():
        for sign in (-1, 1):
            ax.axvline(sign * limit, color="black", linestyle="--", label="threshold" if sign > 0 else None)
    ax.set(xlabel=_unit(model), ylabel="entries", xlim=(-end, end))
    plain_numbers(ax.yaxis)
    ax.legend()
    return ax


def _histograms(judged: Any, names: list[str], model: Any, ax: Any) -> Any:
    """Draw a histogram of each feature as a column of cells; colours are logarithmic, because outliers are few."""
    from matplotlib.colors import LogNorm

    limit = _typical_limit(judged.limits, otherwise=MOST_WIDTHS / MOST_THRESHOLDS)
    end, columns = MOST_THRESHOLDS * limit, range(len(names))
    inside, edges = np.clip(judged.ratios, -end, end), np.linspace(-end, end, 61)
    counts = np.stack([np.histogram(inside[judged.is_observed[:, j], j], edges)[0] for j in columns], axis=1)
    percent = 100 * counts / np.maximum(counts.sum(axis=0), 1)
    cells = np.where(counts > 0, percent, np.nan)
    how = {
        "aspect": "auto",
        "interpolation": "nearest",
        "origin": "lower",
        "extent": (-0.5, len(names) - 0.5, -end, end),
    }
    lowest = float(np.nanmin(cells)) if counts.any() else 1.0
    picture = ax.imshow(cells, norm=LogNorm(lowest, 100), cmap="viridis", **how)
    bar = ax.figure.colorbar(picture, ax=ax, label="% of the feature's entries")
    plain_numbers(bar.ax.yaxis)
    if np.isfinite(judged.limits).any():
        for sign in (-1, 1):
            ax.axhline(sign * limit, color=OUTLIER_COLOUR, linestyle="--", linewidth=1)
    ax.set_ylabel(_unit(model))
    label(ax, names, -(-len(names) // MOST_NAMED))
    return ax


def _points(explained: Matrix, measured: Matrix, is_wrong: Matrix, most: int, ax: Any) -> Any:
    """Draw measured over explained entries, with the line on which they are equal."""
    rng = np.random.default_rng(0)
    for wrong, words, style in ((False, "kept", ("C0", 0.4)), (True, "outliers", (OUTLIER_COLOUR, 0.7))):
        chosen = rng.permutation(np.flatnonzero(is_wrong == wrong))[:most]
        if chosen.size:
            ax.scatter(explained[chosen], measured[chosen], s=6, color=style, linewidths=0, label=words)
    ends = float(explained.max(initial=0)) or 1.0
    positive = measured[measured > 0]
    if positive.size and float(measured.max()) > WIDE_RANGE * float(np.median(positive)):
        # What is small beside the typical entry is drawn on a linear part of the axis, zeros among it.
        linear = 0.1 * float(np.median(positive))
        ax.set_xscale("symlog", linthresh=linear)
        ax.set_yscale("symlog", linthresh=linear)
        plain_numbers(ax.xaxis, ax.yaxis)
    from matplotlib import rcParams

    line = np.linspace(0, ends, 200)
    ax.plot(line, line, color=rcParams["text.color"], linewidth=1, label="equal")
    ax.set(xlabel="explained", ylabel="measured")
    ax.legend(markerscale=2)
    return ax


def _noise_width(entries: JudgedEntries, noise: NoiseModel, ax: Any) -> Any:
    """Draw residuals over predictions, with the width of the noise and the threshold."""
    from matplotlib import rcParams

    ink, relative = rcParams["text.color"], noise.relative_widths
    low, typical, high = np.quantile(relative, [0.1, 0.5, 0.9])
    # How small a small residual, or prediction, is says nothing.
    lowest, shortest = INFORMATIVE, SMALLEST_RESIDUAL * typical
    x, y = np.maximum(entries.sizes, lowest), np.maximum(entries.magnitudes, shortest)
    for wrong, words, style in ((False, "kept", ("C0", 0.4)), (True, "outliers", (OUTLIER_COLOUR, 0.7))):
        chosen = entries.is_wrong == wrong
        if chosen.any():
            ax.scatter(x[chosen], y[chosen], s=5, color=style, linewidths=0, label=words)
    sizes = np.geomspace(x.min(initial=1.0), x.max(initial=2.0), 100)
    features = noise.of_typical_features(np.array([low, typical, high]))
    width, limits = (of(sizes[:, None], np) + np.zeros((100, 3)) for of in (features.width, features.limits))
    ax.fill_between(sizes, width[:, 0], width[:, 2], color=ink, alpha=0.15, linewidth=0)
    ax.plot(sizes, width[:, 1], color=ink, label="width")
    if np.isfinite(noise.threshold):
        words = f"threshold, {noise.threshold:.3g} widths"
        ax.plot(sizes, limits[:, 1], color=ink, linestyle="--", label=words)
    ax.set(xscale="log", yscale="log", xlabel="prediction / level", ylabel="residual / level")
    plain_numbers(ax.xaxis, ax.yaxis)
    ax.legend(markerscale=2)
    return ax
