"""What samples are made of."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robustnmf.plots.base import (
    axes_of,
    codes_of,
    colour_of,
    feature_names_of,
    index_of,
    matrix_of,
    place_of,
    positions_of,
)

Matrix = NDArray[Any]

LONG_GAP = 20
"""Typical steps of time without a sample from which on nothing is drawn."""


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
    H = codes_of(model, X, None) if hasattr(model, "transform") else matrix_of(model, "", "codes")
    ax = axes_of(ax)
    edges = (0.5, H.shape[1] + 0.5, H.shape[0] - 0.5, -0.5)  # components are counted from 1
    picture = ax.imshow(H, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, extent=edges)
    ax.figure.colorbar(picture, ax=ax, label="code")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="component", ylabel="sample")
    return ax


def contributions(
    model: Any,
    X: Any = None,
    *,
    codes: Any = None,
    feature: int | str | None = None,
    index: Sequence[Any] | None = None,
    kind: Literal["stacked", "lines"] = "stacked",
    units: str = "",
    feature_names: Sequence[Any] | None = None,
    ax: Any = None,
) -> Any:
    """Draw how much each component gives to each sample, over the index of the samples, and return the axes.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features) or None
        Samples to encode, if `codes` are not given.
    codes : array-like (n_samples, n_components) or None
        Codes of samples, as `fit_transform` returns them.
    feature : int, str or None
        The feature to which components give, by its number or name; None is the sum of all features.
    index : sequence or None
        Where samples are: dates (ISO text, or dates themselves) are drawn on an axis of time, and rising numbers as
        such. By default the index of a data frame, or the names of a labelled matrix; other names are not drawn.
    kind : {"stacked", "lines"}
        Areas on top of each other, whose upper edge is the sum, or a line for each component.
    units : str
        Unit of the data, for the label.
    feature_names : sequence or None
        Names of the features, by default those of the fit.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    if kind not in ("stacked", "lines"):
        raise ValueError(f"kind must be 'stacked' or 'lines'; got {kind!r}.")
    H = codes_of(model, X, codes)
    names = feature_names_of(model, feature_names)
    place = None if feature is None else place_of(feature, names)
    sizes = model.components_.sum(axis=1) if place is None else model.components_[:, place]
    x, is_time = positions_of(index_of(X, index), len(H))
    order = np.argsort(x, kind="stable")
    (x, given), ax = _with_gaps(x[order], (H * sizes)[order], is_time), axes_of(ax)
    labels = [f"component {k + 1}" for k in range(given.shape[1])]
    colours = [colour_of(k) for k in range(given.shape[1])]
    if kind == "stacked":
        ax.stackplot(x, given.T, labels=labels, colors=colours, linewidth=0)
    else:
        for values, words, colour in zip(given.T, labels, colours, strict=True):
            ax.plot(x, values, label=words, color=colour, linewidth=1)
    unit = f" ({units})" if units else ""
    what = "all features" if place is None else names[place]
    ax.set(xlabel="" if is_time else "sample", ylim=(0, None))
    ax.set_ylabel(f"{what}{unit}", parse_math=False)
    ax.margins(x=0)
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize="small")
    return ax


def _with_gaps(times: Matrix, given: Matrix, is_time: bool) -> tuple[Matrix, Matrix]:
    """Return times and what is drawn over them, with nothing where the data has a long gap: no line leads across it."""
    if not is_time or len(times) < 3:
        return times, given
    steps = np.diff(times)
    seconds = steps.astype(np.int64)
    (before,) = np.nonzero(seconds > LONG_GAP * max(np.median(seconds), 1))
    given = np.insert(given.astype(np.float64), before + 1, np.nan, axis=0)
    return np.insert(times, before + 1, times[before] + steps[before] // 2), given
