"""Weighted coordinate descent for WNLS (hierarchical alternating least squares)."""

from dataclasses import dataclass
from typing import ClassVar

from robustnmf.engines.protocol import Engine
from robustnmf.solvers.base import LeastSquaresSolver
from robustnmf.solvers.problem import Problem
from robustnmf.utils.arrays import Array, Namespace


@dataclass(frozen=True, slots=True)
class HALS(LeastSquaresSolver):
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
    keeps_fixed: ClassVar[bool] = True

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        xp = engine.xp
        kernel = engine.kernels.hals
        X = xp.asarray(X0, copy=True)
        if kernel is None or problem.Q is None:
            for rows in problem.chunks():
                X[rows] = self._sweep(problem[rows], X[rows], engine)
        else:
            linear, ridge = problem.penalty or (xp.zeros_like(X[0]), 0.0)
            At, Y, Q = (xp.asarray(a, order="C") for a in (problem.A.T, problem.Y, problem.Q))
            kernel(At, Y, Q, linear, X.dtype.type(ridge), X, self.max_iter, self.tol)
        return X

    def _sweep(self, problem: Problem, X: Array, engine: Engine) -> Array:
        """Coordinate descent on the normal equations: the reference of the kernel, for any array library."""
        return coordinate_descent(problem.gram, problem.rhs, X, self.max_iter, self.tol, engine.xp)


def coordinate_descent(
    G: Array, rhs: Array, X: Array, max_iter: int, tol: float, xp: Namespace, *, first: int = 0
) -> Array:
    """Lower 1/2 x' G x - rhs' x over x >= 0 by sweeps over the coordinates from `first` on; X (B, r) is overwritten.

    Parameters
    ----------
    G : (B, r, r) or (1, r, r); rhs : (B, r).
    """
    active, smallest = xp.ones_like(X[:, 0], dtype=xp.bool), float(xp.finfo(X.dtype).tiny)
    for _ in range(max_iter):
        before = xp.asarray(X, copy=True)
        for k in range(first, X.shape[1]):
            curvature = G[:, k, k]
            moves = active & (curvature > smallest)
            gradient = xp.sum(G[:, k, :] * X, axis=1) - rhs[:, k]
            new = X[:, k] - gradient / xp.where(moves, curvature, 1)
            X[:, k] = xp.where(moves, xp.where(new > 0, new, 0), X[:, k])
        active = active & (xp.max(xp.abs(X - before), axis=1) > tol * xp.max(X, axis=1))
        if not xp.any(active):
            break
    return X
