"""The updates of L1-regularised robust NMF (RNMF-L1, Zhang et al. 2011)."""

from dataclasses import dataclass
from typing import ClassVar

from robustnmf.engines.protocol import Engine
from robustnmf.model.losses import Huber, Loss
from robustnmf.model.weighting import Weighting
from robustnmf.solvers.base import LossSolver
from robustnmf.solvers.objective import Objective
from robustnmf.utils.arrays import Array, Blocks, Namespace


@dataclass(frozen=True, slots=True)
class SparseError(LossSolver):
    """Alternates a sparse error S and multiplicative updates for V - S ~ WH.

    The model is min ||V - WH - S||**2 + lambda * ||S||_1; its minimum over S is the Huber loss with cutoff lambda / 2,
    the scale here. For given W and H, S is the residual, shrunk by the cutoff. For given S the update is
    x <- x * max(0, A' t) / (A' A x) with the target t = y - s, which may have negative entries: it is the minimiser
    over x >= 0 of Lee and Seung's auxiliary function, whose proof does not need t >= 0, so the objective never rises.
    """

    name: ClassVar[str] = "sparse-error"
    works_by_sums: ClassVar[bool] = True
    models_sparse_errors: ClassVar[bool] = True

    def accepts(self, loss: Loss) -> bool:
        """Return True for Huber's loss, which is this model's without S."""
        return isinstance(loss, Huber)

    def improve(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, engine: Engine) -> Array:
        """Return X after the update of S and one of X."""
        numerator, denominator = _terms(Y, M, X @ A.T, A, weighting, engine.xp)
        return self.update(X, numerator, denominator, engine.xp)

    def basis_by_sums(
        self, V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, objective: Objective, engine: Engine
    ) -> Array:
        """Return the basis improved from both products of its update, which are sums over samples."""
        numerator, denominator = engine.sum(_sums, V, M, Ht, W=W, weighting=objective.weighting)
        return self.update(W, numerator, denominator, engine.xp)

    def update(self, X: Array, numerator: Array, denominator: Array, xp: Namespace) -> Array:
        """Return X * max(0, A' t) / (A' A x), given both products, (B, r).

        Parameters
        ----------
        X : array (B, r)
            The factor.
        numerator : array (B, r)
            A' t, of any sign.
        denominator : array (B, r)
            A' A x, not negative.
        xp : namespace
            Of the arrays.

        Returns
        -------
        array (B, r)
            The factor after the update; as it was where the denominator is zero.
        """
        positive = denominator > 0
        update = xp.where(numerator > 0, numerator, 0) / xp.where(positive, denominator, 1)
        return xp.where(positive, X * update, X)


def _terms(
    Y: Array, M: Array | None, product: Array, A: Array, weighting: Weighting, xp: Namespace
) -> tuple[Array, Array]:
    """Return A' t and A' A x, given A x."""
    target = Y - sparse_error(Y - product, weighting.scale, xp)
    if M is not None:
        target, product = M * target, M * product
    return target @ A, product @ A


def _sums(Y: Array, M: Array | None, X: Array, *, W: Array, weighting: Weighting, xp: Namespace) -> tuple[Array, Array]:
    """Return what a block of samples adds to both products of the update of W, (m, r)."""
    if weighting.threshold is not None:
        M, weighting = weighting.kept(Y - X @ W.T, M, xp), weighting.without_rule()
    return _terms(Y.T, None if M is None else M.T, W @ X.T, X, weighting, xp)


def sparse_error(R: Array, cutoff: float, xp: Namespace) -> Array:
    """Return S, the minimiser of (R - S)**2 + 2 * cutoff * |S|: residuals shrunk towards zero by the cutoff."""
    excess = xp.abs(R) - cutoff
    return xp.sign(R) * xp.where(excess > 0, excess, 0)
