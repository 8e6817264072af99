"""Multiplicative updates for WNLS (Lee and Seung 2001), with weights."""

from dataclasses import dataclass
from typing import ClassVar

from robustnmf.engines.protocol import Engine
from robustnmf.solvers.base import LeastSquaresSolver
from robustnmf.solvers.problem import Problem
from robustnmf.utils.arrays import Array


@dataclass(frozen=True, slots=True)
class Multiplicative(LeastSquaresSolver):
    """x <- x * (A' D y) / (A' D A x): slow, but what most of the literature uses.

    For a diagonal K with K_kk = (A' D A x)_k / x_k, K - A' D A is positive semi-definite, so the quadratic with K
    majorises the objective, and the update is its minimiser: the objective never rises. An entry that is zero stays
    zero.

    With components that are known, y is what they leave, and entries of A' D y may be negative. Their magnitude is then
    added to the denominator, as a linear penalty is, and the objective still never rises.

    Parameters
    ----------
    max_iter : int
        Updates of each problem; the published algorithms make one before they change the weights.
    """

    max_iter: int = 1

    name: ClassVar[str] = "multiplicative"
    keeps_fixed: ClassVar[bool] = True

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        xp, X = engine.xp, X0
        numerator = xp.where(problem.correlation > 0, problem.correlation, 0)
        negative = numerator - problem.correlation
        for _ in range(self.max_iter):
            denominator = problem.applied(X) + negative
            if problem.penalty is not None:
                denominator = denominator + problem.penalty.linear + problem.penalty.ridge * X
            # Where the denominator vanishes so does the weight of all that x could change.
            positive = denominator > 0
            X = xp.where(positive, X * numerator / xp.where(positive, denominator, 1), X)
        return X
