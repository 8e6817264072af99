"""WHAT is added to the loss: penalties on the factors.

The loss in units of the data is 1/2 scale**2 * sum(rho), half the squared residual of an entry that fits. Penalties are
in the same units, so that with the squared loss at scale 1 they mean what they do in scikit-learn.
"""

from dataclasses import dataclass
from typing import NamedTuple

from robustnmf.utils.arrays import Array, Namespace


class ElasticNet(NamedTuple):
    """l1 * sum(x) + 1/2 * l2 * sum(x**2) of a non-negative factor."""

    l1: float = 0.0
    l2: float = 0.0

    def value(self, X: Array, xp: Namespace) -> float:
        """Return the penalty of a factor, or of a block of it."""
        if self == NOTHING:
            return 0.0
        X = xp.astype(X, xp.float64, copy=False)  # squares of single precision may overflow
        lasso = self.l1 * float(xp.sum(X)) if self.l1 else 0.0
        ridge = 0.5 * self.l2 * float(xp.sum(X * X)) if self.l2 else 0.0
        return lasso + ridge


NOTHING = ElasticNet()


class Penalty(NamedTuple):
    """Terms c' x + 1/2 ridge * ||x||**2 of a least-squares problem, the same for all problems of a batch."""

    linear: Array
    """c, (r,)."""
    ridge: float = 0.0


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of a model."""

    product: float = 0.0
    """Weight of sum_k ||w_k||_1 ||h_k||_1 times the scale, which sums the entries of WH: sparse codes of normalised
    components."""
    codes: ElasticNet = NOTHING
    basis: ElasticNet = NOTHING

    def __bool__(self) -> bool:
        return self != NO_PENALTIES

    def of(self, net: ElasticNet, A: Array, scale: float, xp: Namespace) -> Penalty | None:
        """Return what is added to the problems of one factor, given the other, A (p, r); None for nothing."""
        return self.given_sum(net, xp.sum(A, axis=0) if self.product else None, A, scale, xp)

    def given_sum(
        self, net: ElasticNet, total: Array | None, like: Array, scale: float, xp: Namespace
    ) -> Penalty | None:
        """Return the same, given the sum of the other factor, (r,)."""
        if not self.product and net == NOTHING:
            return None
        linear = xp.full_like(like[0], net.l1)
        if self.product and total is not None:
            linear = linear + self.product * scale * total
        return Penalty(linear, net.l2)


NO_PENALTIES = Penalties()
