"""Projected gradient descent with Armijo's line search: the algorithm of HCNMF (Hamza and Brady 2006)."""

from dataclasses import dataclass
from typing import ClassVar

from robustnmf.engines.protocol import Engine
from robustnmf.model.losses import Loss
from robustnmf.model.weighting import Weighting
from robustnmf.solvers.base import LossSolver
from robustnmf.utils.arrays import Array, Namespace


@dataclass(frozen=True, slots=True)
class Armijo(LossSolver):
    """x <- max(0, x - alpha * gradient), with alpha shrunk until the loss falls by enough.

    The line search is made for every row by itself. It starts at twice the minimiser of the quadratic majoriser along
    the gradient and is given up after `max_backtracks`, where the row stays as it is: no loss rises.

    Parameters
    ----------
    max_iter : int
        Gradient steps.
    sufficient : float
        Share of the linear decrease that a step must reach.
    shrink : float
        Factor by which alpha shrinks.
    max_backtracks : int
        Most times that it does.
    """

    max_iter: int = 1
    sufficient: float = 0.01
    shrink: float = 0.5
    max_backtracks: int = 30

    name: ClassVar[str] = "armijo"

    def accepts(self, loss: Loss) -> bool:
        return loss.group == "entry"

    def improve(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, engine: Engine) -> Array:
        for _ in range(self.max_iter):
            X = self._descend(Y, M, X, A, weighting, engine.xp)
        return X

    def _descend(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, xp: Namespace) -> Array:
        R = Y - X @ A.T
        Q = weighting.weights(R, M, xp)
        gradient = -((R if Q is None else Q * R) @ A)
        direction = xp.where((X > 0) | (gradient < 0), gradient, 0)
        # Its length is of no account here, and squares of steep gradients overflow.
        steepest = xp.max(xp.abs(direction), axis=1, keepdims=True)
        direction = direction / xp.where(steepest > 0, steepest, 1)
        image = direction @ A.T
        curvature = xp.sum(image * image if Q is None else Q * image * image, axis=1)
        slope = xp.sum(direction * direction, axis=1)
        alpha = xp.where(curvature > 0, 2 * slope / xp.where(curvature > 0, curvature, 1), 0)
        # scale**2 / 2 times the loss has the gradient of the weighted squares.
        unit = 0.5 * weighting.scale**2
        now = unit * weighting.row_losses(R, M, xp)
        result = X
        open_rows = alpha > 0
        for _ in range(self.max_backtracks):
            trial = X - alpha[:, None] * gradient
            trial = xp.where(trial > 0, trial, 0)
            decrease = now - unit * weighting.row_losses(Y - trial @ A.T, M, xp)
            enough = decrease >= -self.sufficient * xp.sum(gradient * (trial - X), axis=1)
            result = xp.where((open_rows & enough)[:, None], trial, result)
            open_rows = open_rows & ~enough
            if not xp.any(open_rows):
                break
            alpha = alpha * self.shrink
        return result
