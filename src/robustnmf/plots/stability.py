"""How far several fits agree, and how far components can move."""

from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from robustnmf.plots.base import MOST_BARS, axes_of, colour_of, component_place, label


def consensus_map(consensus: Any, *, ax: Any = None) -> Any:
    """Draw the consensus matrix, its samples ordered by average linkage, and return the axes.

    Blocks along the diagonal are groups on which all fits agree.

    Parameters
    ----------
    consensus : Consensus, or array-like (n, n)
        What `robustnmf.selection.stability.consensus` returns, or its ``together``.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    shares = np.asarray(getattr(consensus, "together", consensus), dtype=float)
    if shares.ndim != 2 or shares.shape[0] != shares.shape[1] or len(shares) < 2:
        raise ValueError(f"consensus must be a Consensus or a square matrix; got an array of shape {shares.shape}.")
    order = leaves_list(linkage(squareform(1 - shares, checks=False), method="average"))
    ax = axes_of(ax)
    picture = ax.imshow(shares[np.ix_(order, order)], cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    ax.figure.colorbar(picture, ax=ax, label="share of fits that put both together")
    ax.set(xlabel="sample, in the order of the tree", ylabel="sample, in the order of the tree")
    return ax


def intervals(displacement: Any, component: int = 1, *, increase: float | None = None, ax: Any = None) -> Any:
    """Draw the entries of a component with their intervals, and return the axes.

    Parameters
    ----------
    displacement : Displacement or BootstrapDisplacement
        What `displace_components` or `bootstrap_displacement` of `robustnmf.refinement` returns.
    component : int
        Which component, from 1 on.
    increase : float or None
        Which increase of Q, by default the smallest.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    if not hasattr(displacement, "table"):
        raise ValueError(
            f"intervals draws what displace_components or bootstrap_displacement returns; got {displacement!r}."
        )
    place = component_place(component, len(displacement.components))
    rows = [row for row in displacement.table(increase) if row["component"] == component]
    values, low, high = (np.array([row[name] for row in rows]) for name in ("value", "low", "high"))
    ax = axes_of(ax)
    # Resampled data may have intervals beside the value of all samples.
    ax.vlines(range(len(rows)), low, high, color=colour_of(place), linewidth=5, alpha=0.4)
    ax.plot(values, "o", color=colour_of(place), markersize=4)
    label(ax, [row["feature"] for row in rows], max(1, len(rows) // MOST_BARS))
    grown = displacement.increases[0] if increase is None else increase
    ax.set(ylabel=f"component {component}", ylim=(0, None), title=f"Q may grow by {grown:g}")
    return ax
