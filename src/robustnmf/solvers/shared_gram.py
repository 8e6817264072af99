"""Coordinate descent with one Gram matrix for all problems."""

from dataclasses import dataclass
from typing import ClassVar

from robustnmf.engines.protocol import Engine
from robustnmf.kernels.line_search import judging_features
from robustnmf.solvers.problem import Problem, smallest_curvature
from robustnmf.utils.arrays import Array, Namespace, device


@dataclass(frozen=True, slots=True)
class SharedGram:
    """Some sweeps of coordinate descent on a model of the objective.

    Every problem has a Gram matrix A' D A of its own, and forming them all costs r times as much as reading the data.
    The model has the right gradient and the right curvature of every coordinate, two matrix products, but takes the
    correlations between coordinates from A' A, which is exact where the weights are equal. Robust weights are nearly so
    on clean entries: sweep for sweep it is as good as `HALS`, whose sweeps read the data each time, while here they
    work on r numbers. A step that would raise the objective is shortened. For the basis, samples count in A' A as far
    as they are trusted, that is by their mean weight.

    Gradient and curvature of the basis are sums over samples, so that one pass over the data serves both factors: see
    `robustnmf.solvers.one_pass`.

    Parameters
    ----------
    max_iter : int
        Sweeps over the coordinates of the model. They are cheap beside reading the data, and more of them need fewer
        iterations; but while the weights still change a lot, they should not be followed too far.
    """

    max_iter: int = 8

    name: ClassVar[str] = "shared-gram"

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        """Return the solutions after the sweeps, (B, r)."""
        xp, A, Q = engine.xp, problem.A, problem.Q
        R = problem.Y - X0 @ A.T if problem.residual is None else problem.residual
        descent = (R if Q is None else Q * R) @ A
        G = A.T @ A
        curvature = xp.ones_like(X0) * xp.linalg.diagonal(G) if Q is None else Q @ (A * A)
        linear, ridge = problem.penalty or (0.0, 0.0)
        descent = descent - linear - ridge * X0
        move = propose(G, descent, curvature + ridge, X0, self.max_iter, engine)
        bend = _bend(A, Q, move, curvature, xp) + ridge * xp.sum(move * move, axis=1)
        return advance(X0, move, descent, bend, xp)


def _bend(A: Array, Q: Array | None, move: Array, curvature: Array, xp: Namespace) -> Array:
    """Return the curvature of the objective along the move of every problem, (B,)."""
    p = A.shape[0]
    run, skip, count = judging_features(p)
    if count == p:
        along = move @ A.T
        return xp.sum(along * along if Q is None else Q * along * along, axis=1)
    judges = xp.arange(count, device=device(A))
    judges = judges // run * skip + judges % run
    A = A[judges]
    Q = xp.ones_like(move[:, :1] * A[None, :, 0]) if Q is None else Q[:, judges]
    seen = Q @ xp.sum(A * A, axis=1)
    along = move @ A.T
    return xp.sum(Q * along * along, axis=1) * xp.sum(curvature, axis=1) / xp.where(seen > 0, seen, 1)


def propose(G: Array, descent: Array, curvature: Array, X0: Array, max_iter: int, engine: Engine) -> Array:
    """Return the move from X0 that sweeps over the coordinates of the model make, (B, r).

    Parameters
    ----------
    G : (r, r), A' A.
    descent, curvature : (B, r), the negative gradient and the curvature of each coordinate at X0.
    """
    xp, kernel = engine.xp, engine.kernel("propose")
    if kernel is not None:
        return kernel(G, descent, curvature, X0, max_iter)
    diagonal = xp.linalg.diagonal(G)
    # In the variables z = s * x every coordinate has the curvature of A' A.
    # Coordinates that no entry of positive weight depends on stay; so do those of components that have died out, beside
    # the others: to divide by what is left of them would overflow.
    smallest, tiny = smallest_curvature(X0, xp), float(xp.finfo(X0.dtype).tiny)
    dead = (diagonal <= tiny) | (diagonal <= smallest * xp.max(diagonal))
    steepness = xp.where(dead, 1, diagonal)
    unseen = dead | (curvature <= smallest * steepness)
    s = xp.where(unseen, 1, xp.sqrt(xp.clip(curvature / steepness, max=1 / smallest)))
    Z = xp.asarray(X0 * s, copy=True)
    descent = xp.where(unseen, 0, descent / s)
    for _ in range(max_iter):
        for k in range(Z.shape[1]):
            new = Z[:, k] + descent[:, k] / steepness[k]
            new = xp.where(unseen[:, k], Z[:, k], xp.where(new > 0, new, 0))
            descent = descent - (new - Z[:, k])[:, None] * G[k]
            Z[:, k] = new
    return xp.where(unseen, 0, Z / s - X0)


def advance(X0: Array, move: Array, descent: Array, bend: Array, xp: Namespace) -> Array:
    """Return X0 + move, with moves that would raise the objective shortened to where it is lowest.

    Parameters
    ----------
    X0, move, descent : (B, r)
    bend : (B,), curvature of the objective along the move.
    """
    slope = xp.sum(descent * move, axis=1)
    length = slope / xp.where(bend > 0, bend, 1)
    length = xp.where((bend > 0) & (length < 0.5), xp.where(length > 0, length, 0), 1)
    # A move out of the range of numbers is not made.
    new = X0 + xp.where(xp.isfinite(slope) & xp.isfinite(bend), length, 0)[:, None] * move
    return xp.where(xp.isfinite(new), xp.where(new > 0, new, 0), X0)
