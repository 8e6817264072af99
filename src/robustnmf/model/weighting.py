"""How residuals become weights: loss, scale and outlier rule together, at one moment of the iteration."""

from dataclasses import dataclass
from typing import Any

from robustnmf.engines.protocol import block_function
from robustnmf.model.losses import Loss, squared_ratio
from robustnmf.model.outliers import OutlierRule
from robustnmf.utils.arrays import Array, Namespace
from robustnmf.utils.observed import copied


@dataclass(frozen=True, slots=True)
class Weighting:
    """Gives every entry its weight Q: eq. (3-5), zero on outliers, times the entry's own weight M.

    Residuals R come with the samples in rows, (B, m). Where neither the loss nor the outlier rule looks at a sample as
    a whole (`group`, `is_spatial`), rows may as well be features, with `threshold` of shape (m, 1).
    """

    loss: Loss
    scale: Any
    """The paper's gamma, a number or one per row (B, 1)."""
    threshold: Array | None = None
    """Magnitude beyond which an entry is an outlier, (m,) or broadcastable; None if no rule rejects any."""
    rule: OutlierRule | None = None
    """The rule that `threshold` came from; a spatial rule makes a mask of it."""

    @property
    def is_spatial(self) -> bool:
        """Whether the rule looks at an entry together with others of its sample."""
        return self.threshold is not None and hasattr(self.rule, "mask")

    @property
    def is_least_squares(self) -> bool:
        """Whether all entries count alike, whatever their residuals."""
        return self.loss.is_quadratic and self.threshold is None

    def without_rule(self) -> "Weighting":
        """Return the weighting of the loss alone, for entries whose outliers have been taken out of M."""
        return Weighting(self.loss, self.scale)

    def magnitudes(self, R: Array, M: Array | None, xp: Namespace) -> Array:
        """Return |R|, or the norm of each row's observed residuals, (B, 1), if the loss takes samples as a whole.

        Within a sample entries count relative to the heaviest of them; how much the sample counts is in `counts`.
        """
        if self.loss.group == "entry":
            return xp.abs(R)
        if M is None:
            return xp.sqrt(xp.sum(R * R, axis=1, keepdims=True))
        heaviest = self.counts(M, xp)
        return xp.sqrt(xp.sum(M / xp.where(heaviest > 0, heaviest, 1) * (R * R), axis=1, keepdims=True))

    def counts(self, M: Array, xp: Namespace) -> Array:
        """Return the weight with which each magnitude counts in a sum or a quantile: a sample by its heaviest entry.

        So a sample of twice the weight counts like two samples, as it does where the loss is one of entries.
        """
        return M if self.loss.group == "entry" else xp.max(M, axis=1, keepdims=True)

    def outliers(self, A: Array, M: Array | None, xp: Namespace) -> Array:
        """Return where magnitudes A are rejected, by the rule or by the loss, boolean of the shape of A."""
        rejected = self.loss.weight(squared_ratio(A, self.scale, xp), xp) == 0
        return rejected if self.threshold is None else rejected | self._beyond(A, M, xp)

    def kept(self, R: Array, M: Array | None, xp: Namespace) -> Array:
        """Return M, or 1 where there is none, with outliers set to zero."""
        kept = xp.astype(~self.outliers(self.magnitudes(R, M, xp), M, xp), R.dtype)
        return kept if M is None else kept * M

    def weights(self, R: Array, M: Array | None, xp: Namespace) -> Array | None:
        """Return Q, of the shape of R; None if all weights are 1."""
        if self.loss.is_quadratic and self.threshold is None:
            return M
        A = self.magnitudes(R, M, xp)
        Q = self.loss.weight(squared_ratio(A, self.scale, xp), xp)
        if self.threshold is not None:
            Q = xp.where(self._beyond(A, M, xp), 0, Q)
        if M is not None:
            return Q * M
        return Q if Q.shape == R.shape else Q * xp.ones_like(R)

    def losses(self, A: Array, xp: Namespace) -> Array:
        """Return rho of magnitudes A."""
        return self.loss.rho(squared_ratio(A, self.scale, xp), xp)

    def row_losses(self, R: Array, M: Array | None, xp: Namespace) -> Array:
        """Return the sum of M * rho over each row, or rho of the whole row, (B,)."""
        rho = self.losses(self.magnitudes(R, M, xp), xp)
        return xp.sum(rho if M is None else self.counts(M, xp) * rho, axis=1, dtype=xp.float64)

    def _beyond(self, A: Array, M: Array | None, xp: Namespace) -> Array:
        mask = getattr(self.rule, "mask", None)
        return A > self.threshold if mask is None else mask(A, M, self.threshold, xp)


@block_function(recomputed=True)
def masked_out(Y: Array, M: Array | None, positions: Array, *, xp: Namespace) -> Array:
    """Return the weights of a block with those at some positions (k, 2) set to zero."""
    weights = xp.ones_like(Y) if M is None else copied(M, xp)
    weights[positions[:, 0], positions[:, 1]] = 0
    return weights
