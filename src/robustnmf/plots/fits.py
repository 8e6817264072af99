"""How a fit went, and how many components it should have."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robustnmf.plots.base import OUTLIER_COLOUR, axes_of, check_fitted, figure_of

# What the columns of `history_` mean.
HISTORY_LABELS = {
    "objective": "objective",
    "scale": "scale",
    "outlier_share": "share of outliers",
    "seconds": "seconds",
    "relative_change": "relative change",
}


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

    Returns
    -------
    matplotlib Figure
        The figure that was drawn on.
    """
    if not isinstance(model, Mapping):
        check_fitted(model)
    table = model if isinstance(model, Mapping) else model.history_
    unknown = [name for name in columns if name not in table]
    if unknown or not columns:
        raise ValueError(f"columns must be among {', '.join(table)}; got {', '.join(unknown) or 'none'}.")
    figure = figure_of(figure, (3.4 * len(columns), 2.8))
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
    ranks: Any,
    scores: ArrayLike | None = None,
    errors: ArrayLike | None = None,
    chosen: int | None = None,
    *,
    ax: Any = None,
) -> Any:
    """Draw the score of each rank, higher being better, and return the axes.

    Parameters
    ----------
    ranks : what `select_rank` returns, or array-like (n_ranks,)
        Ranks that were tried. What `select_rank` returns holds all the rest.
    scores : array-like (n_ranks,) or None
        Mean score of each.
    errors : array-like (n_ranks,) or None
        Standard error of each mean.
    chosen : int or None
        The rank to mark, one of `ranks`.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    if hasattr(ranks, "standard_error"):
        found = ranks
        ranks, scores, errors, chosen = found.ranks, found.mean, found.standard_error, found.chosen
    elif scores is None:
        raise ValueError("rank_curve needs what select_rank returns, or ranks and their scores; got no scores.")
    x, y = np.asarray(ranks), np.asarray(scores, dtype=float)
    spread = None if errors is None else np.asarray(errors, dtype=float)
    if x.ndim != 1 or y.shape != x.shape or (spread is not None and spread.shape != x.shape):
        given = [x.shape, y.shape] + ([] if spread is None else [spread.shape])
        raise ValueError(f"ranks, scores and errors must be lists of one length; got shapes {given}.")
    if chosen is not None and chosen not in x:
        raise ValueError(f"chosen must be one of the ranks {x.tolist()}; got {chosen!r}.")
    order = np.argsort(x)
    ax = axes_of(ax)
    ax.errorbar(x[order], y[order], yerr=None if spread is None else spread[order], marker="o", capsize=3)
    if chosen is not None:
        ax.axvline(chosen, color=OUTLIER_COLOUR, linestyle="--", label=f"chosen: {chosen}")
        ax.legend()
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="rank", ylabel="score")
    return ax
