"""Losses and the weights that they give."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from robustnmf.model.losses import Loss
from robustnmf.plots.base import Matrix, axes_of


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

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    ax, ratio = axes_of(ax), _ratios(limit)
    for name, loss in _named(losses).items():
        ax.plot(ratio, loss.rho(ratio**2, np), label=name)
    ax.set(xlabel="residual / scale", ylabel="loss")
    ax.legend()
    return ax


def weight_curves(losses: Mapping[str, Loss] | Iterable[Loss], *, limit: float = 4.0, ax: Any = None) -> Any:
    """Draw the weights that losses give to a residual, in scales from -`limit` to `limit`, and return the axes.

    The weight of a norm is nearly infinite at zero: there the axis ends a little above the weight of a residual of half
    a scale. See `loss_curves` for the parameters.

    Parameters
    ----------
    losses : mapping of names to losses, or iterable of losses
        Losses, see `robustnmf.model.losses`.
    limit : float
        Where the axis ends.
    ax : matplotlib Axes or None
        Where to draw.

    Returns
    -------
    matplotlib Axes
        The axes that were drawn on.
    """
    ax, ratio = axes_of(ax), _ratios(limit)
    top = 0.0
    for name, loss in _named(losses).items():
        ax.plot(ratio, loss.weight(ratio**2, np), label=name)
        tip, half = loss.weight(np.array([0.0, 0.25]), np)
        top = max(top, float(tip if tip <= 4 * half or not half else half))
    ax.set(xlabel="residual / scale", ylabel="weight", ylim=(0, 1.1 * top))
    ax.legend()
    return ax


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
