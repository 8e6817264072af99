"""Weighted coordinate descent for WNLS (hierarchical alternating least squares)."""

from dataclasses import dataclass
from typing import ClassVar

from robustnmf.arrays import Array
from robustnmf.engines.protocol import Engine
from robustnmf.solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class HALS:
    """Exact minimisation of one coordinate after the other, O(p r) per problem and sweep.

    A few sweeps between two changes of the weights are enough: solving exactly for weights that are about to
    change is wasted work. No sweep raises the objective.

    Parameters
    ----------
    max_iter : int
        Sweeps over the coordinates of each problem.
    tol : float
        A problem stops when no coordinate moved by more than `tol` times its largest.
    """

    max_iter: int = 4
    tol: float = 0.0

    name: ClassVar[str] = "hals"

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        """Return the solutions after the sweeps, (B, r)."""
        xp = engine.xp
        kernel = engine.kernel("hals")
        X = xp.asarray(X0, copy=True)
        if kernel is None or problem.Q is None:
            for rows in problem.chunks():
                X[rows] = self._sweep(problem[rows], X[rows], engine)
        else:
            linear = xp.zeros(X.shape[1], dtype=X.dtype) if problem.linear is None else problem.linear
            At, Y, Q = (xp.asarray(a, order="C") for a in (problem.A.T, problem.Y, problem.Q))
            kernel(At, Y, Q, linear, X, self.max_iter, self.tol)
        return X

    def _sweep(self, problem: Problem, X: Array, engine: Engine) -> Array:
        """Coordinate descent on the normal equations: the reference of the kernel, for any array library."""
        xp, G, rhs = engine.xp, problem.gram, problem.rhs
        active = xp.ones(X.shape[0], dtype=xp.bool)
        for _ in range(self.max_iter):
            before = xp.asarray(X, copy=True)
            for k in range(X.shape[1]):
                curvature = G[:, k, k]
                moves = active & (curvature > 0)
                gradient = xp.sum(G[:, k, :] * X, axis=1) - rhs[:, k]
                new = X[:, k] - gradient / xp.where(moves, curvature, 1)
                X[:, k] = xp.where(moves, xp.where(new > 0, new, 0), X[:, k])
            active = active & (xp.max(xp.abs(X - before), axis=1) > self.tol * xp.max(X, axis=1))
            if not xp.any(active):
                break
        return X
