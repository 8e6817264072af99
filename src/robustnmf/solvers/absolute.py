"""Two solvers of L1 regression with x >= 0: the algorithms of Manhattan NMF (MahNMF, Guan et al. 2012)."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from robustnmf.engines.protocol import Engine
from robustnmf.model.losses import Absolute, Loss
from robustnmf.model.weighting import Weighting
from robustnmf.solvers.base import LossSolver
from robustnmf.utils.arrays import Array, Namespace


@dataclass(frozen=True, slots=True)
class Smoothing(LossSolver):
    """Nesterov's smoothing: |r| is rounded within mu of zero, and the smooth loss lowered by his optimal gradient.

    The rounded loss, r**2 / (2 mu) + mu / 2 within mu, differs from |r| by at most mu / 2 and has a gradient with
    Lipschitz constant ||A||**2 / mu. Each row takes mu as a share of its mean residual and keeps its start where the
    loss, whose tip is rounded too, did not fall.

    Parameters
    ----------
    smoothing : float
        mu as a share of the mean residual of the row.
    max_iter : int
        Gradient steps.
    """

    smoothing: float = 0.05
    max_iter: int = 30

    name: ClassVar[str] = "smoothing"

    def accepts(self, loss: Loss) -> bool:
        return isinstance(loss, Absolute)

    def improve(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, engine: Engine) -> Array:
        xp = engine.xp
        L = float(xp.linalg.matrix_norm(A, ord=2)) ** 2
        residual = Y - X @ A.T
        start = _row_norms(residual, M, xp)
        if L == 0:
            return xp.asarray(X, copy=True)
        mean = start / Y.shape[1] if M is None else start / xp.where(start > 0, xp.sum(M, axis=1), 1)
        # Below the rounding of the data, residuals carry no information.
        rounding = xp.finfo(Y.dtype).eps * xp.max(Y, axis=1)
        mu = xp.where(mean > 0, xp.maximum(self.smoothing * mean, rounding), 1)[:, None]
        h = z = X
        alpha = 1.0
        for _ in range(self.max_iter):
            sign = xp.clip((Y - z @ A.T) / mu, -1, 1)
            h_last, h = h, z + (mu / L) * ((sign if M is None else M * sign) @ A)
            h = xp.where(h > 0, h, 0)
            alpha_last, alpha = alpha, (1 + sqrt(4 * alpha**2 + 1)) / 2
            z = h + (alpha_last - 1) / alpha * (h - h_last)
        return _lower(X, h, residual, Y - h @ A.T, M, weighting, xp)


@dataclass(frozen=True, slots=True)
class WeightedMedian(LossSolver):
    """Rank-one residual iteration: each coordinate in turn to its exact minimiser, a weighted median.

    sum_i m_i |e_i - a_ik (x - x_k)| is least where x is the median of x_k + e_i / a_ik with weights m_i a_ik, or at
    zero if that is negative. No sweep raises the L1 norm.

    Parameters
    ----------
    max_iter : int
        Sweeps over the coordinates.
    """

    max_iter: int = 1

    name: ClassVar[str] = "weighted-median"

    def accepts(self, loss: Loss) -> bool:
        return isinstance(loss, Absolute)

    def improve(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, engine: Engine) -> Array:
        new = self._sweep(Y, M, X, A, engine)
        return _lower(X, new, Y - X @ A.T, Y - new @ A.T, M, weighting, engine.xp)

    def _sweep(self, Y: Array, M: Array | None, X: Array, A: Array, engine: Engine) -> Array:
        """Return X after the sweeps."""
        xp = engine.xp
        X = xp.asarray(X, copy=True)
        M = xp.ones_like(Y) if M is None else M
        kernel = engine.kernels.weighted_medians
        if kernel is not None:
            At, Y, M = (xp.asarray(a, order="C") for a in (A.T, Y, M))
            kernel(At, Y, M, X, self.max_iter)
            return X
        E = Y - X @ A.T
        for _ in range(self.max_iter):
            for k in range(A.shape[1]):
                a = A[:, k]
                used = a > 0
                if not xp.any(used):
                    continue
                points = X[:, k : k + 1] + E[:, used] / a[used]
                new, weighted = _weighted_medians(points, M[:, used] * a[used], xp)
                new = xp.where(weighted, xp.where(new > 0, new, 0), X[:, k])
                E = E - (new - X[:, k])[:, None] * a
                X[:, k] = new
        return X


def _lower(X: Array, new: Array, R: Array, R_new: Array, M: Array | None, weighting: Weighting, xp: Namespace) -> Array:
    """Return new rows where their loss is lower, those of X elsewhere; R and R_new are the residuals of both.

    The tip of the loss is rounded, so that what lowers the L1 norm may raise the loss.
    """
    before, after = (weighting.row_losses(residual, M, xp) for residual in (R, R_new))
    return xp.where((after < before)[:, None], new, X)


def _row_norms(R: Array, M: Array | None, xp: Namespace) -> Array:
    """Return the weighted L1 norm of each row, (B,)."""
    return xp.sum(xp.abs(R) if M is None else M * xp.abs(R), axis=1)


def _weighted_medians(points: Array, weights: Array, xp: Namespace) -> tuple[Array, Array]:
    """Return the weighted median of each row, and whether the row has any weight."""
    order = xp.argsort(points, axis=1)
    cumulated = xp.cumulative_sum(xp.take_along_axis(weights, order, axis=1), axis=1)
    total = cumulated[:, -1:]
    middle = xp.argmax(xp.astype(cumulated >= 0.5 * total, xp.int8), axis=1)[:, None]
    return xp.take_along_axis(points, xp.take_along_axis(order, middle, axis=1), axis=1)[:, 0], total[:, 0] > 0
