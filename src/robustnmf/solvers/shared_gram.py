"""Coordinate descent with one Gram matrix for all problems."""

from dataclasses import dataclass
from typing import ClassVar

from robustnmf.arrays import Array
from robustnmf.engines.protocol import Engine
from robustnmf.solvers.problem import Problem


@dataclass(frozen=True, slots=True)
class SharedGram:
    """Some sweeps of coordinate descent on a model of the objective.

    Every problem has a Gram matrix A' D A of its own, and forming them all costs r times as much as reading the data.
    The model has the right gradient and the right curvature of every coordinate, two matrix products, but takes the
    correlations between coordinates from A' A, which is exact where the weights are equal. Robust weights are nearly so
    on clean entries: sweep for sweep it is as good as `HALS`, whose sweeps read the data each time, while here they
    work on r numbers. A step that would raise the objective is shortened.

    Parameters
    ----------
    max_iter : int
        Sweeps over the coordinates of the model. They are cheap, and four or eight need fewer iterations; but weights
        that are about to change should not be followed too far: with two, errors that cover half of a sample are
        kept out more often.
    """

    max_iter: int = 2

    name: ClassVar[str] = "shared-gram"

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        """Return the solutions after the sweeps, (B, r)."""
        xp, A, Q = engine.xp, problem.A, problem.Q
        R = problem.Y - X0 @ A.T if problem.residual is None else problem.residual
        descent = (R if Q is None else Q * R) @ A
        if problem.linear is not None:
            descent = descent - problem.linear
        G = A.T @ A
        curvature = xp.linalg.diagonal(G)
        # In the variables x * s every coordinate has the curvature of A' A.
        s = xp.ones_like(X0) * xp.astype(curvature > 0, X0.dtype)
        if Q is not None:
            s = xp.sqrt(Q @ (A * A) / xp.where(curvature > 0, curvature, 1))
        unseen = s == 0  # coordinates that no entry of positive weight depends on stay where they are
        s1 = xp.where(unseen, 1, s)
        kernel = engine.kernel("gram_descent") or _gram_descent
        Z = xp.asarray(X0 * s, copy=True)
        kernel(xp.asarray(G, order="C"), xp.where(unseen, 0, descent / s1), Z, self.max_iter)
        move = xp.where(unseen, 0, Z / s1 - X0)
        new = X0 + self._length(problem, descent, move, engine)[:, None] * move
        return xp.where(new > 0, new, 0)

    def _length(self, problem: Problem, descent: Array, move: Array, engine: Engine) -> Array:
        """Return 1 for each problem, or where the whole move would raise its objective, how far the lowest is, (B,)."""
        xp = engine.xp
        if problem.Q is None:
            return xp.ones(move.shape[0], dtype=move.dtype)
        along = move @ problem.A.T
        curvature = xp.sum(problem.Q * along * along, axis=1)
        slope = xp.sum(descent * move, axis=1)
        length = slope / xp.where(curvature > 0, curvature, 1)
        return xp.where((curvature > 0) & (length < 0.5), xp.where(length > 0, length, 0), 1)


def _gram_descent(G: Array, descent: Array, Z: Array, max_iter: int) -> None:
    """Sweep over the coordinates of min_z>=0 1/2 (z - z0)' G (z - z0) - descent' (z - z0), in place, for every row."""
    descent = descent + 0
    for _ in range(max_iter):
        for k in range(Z.shape[1]):
            if G[k, k] > 0:
                new = Z[:, k] + descent[:, k] / G[k, k]
                new = (new > 0) * new
                descent = descent - (new - Z[:, k])[:, None] * G[k]
                Z[:, k] = new
