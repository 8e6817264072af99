"""Nesterov's optimal gradient method for WNLS: Algorithm 1 of the paper."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from robustnmf.arrays import Array, Namespace
from robustnmf.engines.protocol import Engine
from robustnmf.solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class Nesterov:
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

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        """Return the solutions of all problems, (B, r)."""
        solved = [self._solve(problem[rows], X0[rows], engine.xp) for rows in problem.chunks()]
        return engine.xp.concat(solved, axis=0)

    def _solve(self, problem: Problem, X0: Array, xp: Namespace) -> Array:
        G, rhs = problem.gram, problem.rhs
        L = xp.linalg.eigvalsh(G)[:, -1]  # line 2: the spectral norm of A' D A
        # Where all weights are zero, or so small that 1 / L overflows, there is nothing to solve.
        usable = L > xp.finfo(L.dtype).tiny / xp.finfo(L.dtype).eps
        step = xp.where(usable, 1 / xp.where(usable, L, 1), 0)[:, None]
        target = self.tol * _projected_gradient_norm(G, rhs, X0, xp)

        X = xp.asarray(X0, copy=True)
        rows = xp.nonzero(usable & (target > 0))[0]  # the problems still being solved
        G, step = (a if a.shape[0] == 1 else a[rows] for a in (G, step))  # one for all if there are no weights
        rhs, target, start = rhs[rows], target[rows], X0[rows]
        h = z = start  # line 1
        alpha = 1.0
        for _ in range(self.max_iter):
            if rows.shape[0] == 0:
                break
            h_last, h = h, _positive(z - step * _gradient(G, rhs, z), xp)  # lines 3 and 4
            alpha_last, alpha = alpha, (1 + sqrt(4 * alpha**2 + 1)) / 2  # line 5
            z = h + (alpha_last - 1) / alpha * (h - h_last)  # line 6
            done = _projected_gradient_norm(G, rhs, h, xp) <= target  # eq. (3-8)
            if xp.any(done):
                G_done = G if G.shape[0] == 1 else G[done]
                X[rows[done]] = _better(G_done, rhs[done], _positive(z[done], xp), start[done], xp)  # line 8
                go = ~done
                G, step = (a if a.shape[0] == 1 else a[go] for a in (G, step))
                rows, rhs, target, start, h, z = (a[go] for a in (rows, rhs, target, start, h, z))
        X[rows] = _better(G, rhs, _positive(z, xp), start, xp)
        return X


def _gradient(G: Array, rhs: Array, X: Array) -> Array:
    """Return A' D A x - A' D y for every problem."""
    if G.shape[0] == 1:
        return X @ G[0] - rhs
    return (G @ X[:, :, None])[:, :, 0] - rhs


def _projected_gradient_norm(G: Array, rhs: Array, X: Array, xp: Namespace) -> Array:
    """Return the norm of the gradient without the components that point out of the feasible set."""
    gradient = _gradient(G, rhs, X)
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
