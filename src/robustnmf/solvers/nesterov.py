"""Nesterov's optimal gradient method for WNLS: Algorithm 1 of the paper."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from robustnmf.engines.protocol import Engine
from robustnmf.errors import OutOfRangeError
from robustnmf.solvers.base import LeastSquaresSolver
from robustnmf.solvers.problem import Problem, smallest_curvature
from robustnmf.utils.arrays import Array, Namespace


@dataclass(frozen=True, slots=True)
class Nesterov(LeastSquaresSolver):
    """Optimal gradient method with the step 1 / L_j of each problem (Algorithm 1).

    Each problem stops by itself when its projected gradient has fallen to `tol` of what it was at the start,
    eq. (3-8). Line 8 returns z, which may be negative: its projection is returned instead, or the start if that is
    better, so that no step raises the objective.

    Parameters
    ----------
    tol : float
        epsilon_1 of eq. (3-8). The paper takes max(epsilon_1, 1e-3).
    max_iter : int
        Most iterations for one problem.
    """

    tol: float = 1e-3
    max_iter: int = 500

    name: ClassVar[str] = "nesterov"
    keeps_fixed: ClassVar[bool] = True

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        solved = [self._solve(problem[rows], X0[rows], engine) for rows in problem.chunks()]
        return engine.xp.concat(solved, axis=0)

    def _solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        xp, G, rhs = engine.xp, problem.gram, problem.rhs
        if not xp.all(xp.isfinite(G)):
            raise OutOfRangeError("products of components", G.dtype)
        L = xp.linalg.eigvalsh(G)[:, -1]  # line 2: the spectral norm of A' D A
        # Where all weights are zero, or so small that 1 / L overflows, there is nothing to solve.
        usable = L > smallest_curvature(L, xp)
        step = xp.where(usable, 1 / xp.where(usable, L, 1), 0)
        kernel = engine.kernels.nesterov
        if kernel is None:
            X = _descend(G, rhs, X0, step, self.tol, self.max_iter, xp)
        else:
            X = kernel(G, rhs, X0, step, self.tol, self.max_iter)
        return _better(G, rhs, X, X0, xp)


def _descend(G: Array, rhs: Array, X0: Array, step: Array, tol: float, max_iter: int, xp: Namespace) -> Array:
    """Return what lines 1 to 8 make of every problem, (B, r); `step` is 1 / L_j, or 0 where nothing is to be solved."""
    X = xp.asarray(X0, copy=True)
    gradient = _gradient(G, rhs, X)
    target = tol * _projected_norm(gradient, X, xp)
    rows = xp.nonzero((step > 0) & (target > 0))[0]  # the problems still being solved
    G, step = (a if a.shape[0] == 1 else a[rows] for a in (G, step[:, None]))  # one for all if there are no weights
    rhs, target, h, gradient = rhs[rows], target[rows], X[rows], gradient[rows]
    z, gradient_z = h, gradient  # line 1
    alpha = 1.0
    for _ in range(max_iter):
        if rows.shape[0] == 0:
            break
        h_last, h = h, _positive(z - step * gradient_z, xp)  # lines 3 and 4
        alpha_last, alpha = alpha, (1 + sqrt(4 * alpha**2 + 1)) / 2  # line 5
        momentum = (alpha_last - 1) / alpha
        z = h + momentum * (h - h_last)  # line 6
        gradient_last, gradient = gradient, _gradient(G, rhs, h)
        gradient_z = gradient + momentum * (gradient - gradient_last)  # the gradient is affine
        done = _projected_norm(gradient, h, xp) <= target  # eq. (3-8)
        if xp.any(done):
            X[rows[done]] = _positive(z[done], xp)  # line 8
            go = ~done
            G, step = (a if a.shape[0] == 1 else a[go] for a in (G, step))
            rows, rhs, target, h, z, gradient, gradient_z = (
                a[go] for a in (rows, rhs, target, h, z, gradient, gradient_z)
            )
    X[rows] = _positive(z, xp)
    return X


def _gradient(G: Array, rhs: Array, X: Array) -> Array:
    """Return A' D A x - A' D y for every problem."""
    if G.shape[0] == 1:
        return X @ G[0] - rhs
    return (G @ X[:, :, None])[:, :, 0] - rhs


def _projected_norm(gradient: Array, X: Array, xp: Namespace) -> Array:
    """Return the norm of the gradient at X without the components that point out of the feasible set."""
    gradient = xp.where((X > 0) | (gradient < 0), gradient, 0)
    return xp.sqrt(xp.sum(gradient * gradient, axis=1))


def _positive(X: Array, xp: Namespace) -> Array:
    """Return the projection on the non-negative orthant."""
    return xp.where(X > 0, X, 0)


def _better(G: Array, rhs: Array, X: Array, start: Array, xp: Namespace) -> Array:
    """Return X where it lowers the quadratic objective, the start elsewhere."""
    # 1/2 (X + start)' G (X - start) - rhs' (X - start): the difference without cancellation.
    change = X - start
    mean_gradient = _gradient(G, rhs, (X + start) / 2)
    lower = xp.sum(mean_gradient * change, axis=1) <= 0
    return xp.where(lower[:, None], X, start)
