"""Coordinate descent with one Gram matrix for all problems, and both factors in one pass over the data.

Gradient and curvature of the basis are sums over samples. So a block of samples is visited once in an iteration: its
codes are improved, and what it then says of the basis is added up while its residuals and weights are at hand. They
are never kept for more than a block.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.kernels.line_search import FEWEST_SEEN, checked_features, checked_rows
from robustnmf.kernels.predictions import predictions
from robustnmf.model.penalties import Penalty
from robustnmf.model.weighting import Weighting, masked_out
from robustnmf.solvers.base import LeastSquaresSolver
from robustnmf.solvers.objective import Objective, Terms
from robustnmf.solvers.problem import Problem, smallest_curvature
from robustnmf.utils.arrays import Array, Blocks, Namespace, device
from robustnmf.utils.entries import Entries


@dataclass(frozen=True, slots=True)
class SharedGram(LeastSquaresSolver):
    """Some sweeps of coordinate descent on a model of the objective.

    Every problem has a Gram matrix A' D A of its own, and forming them all costs r times as much as reading the data.
    The model has the right gradient and the right curvature of every coordinate, two matrix products, but takes the
    correlations between coordinates from A' A, which is exact where the weights are equal. Robust weights are nearly so
    on clean entries: sweep for sweep it is as good as `HALS`, whose sweeps read the data each time, while here they
    work on r numbers. A step that would raise the objective is shortened. For the basis, samples count in A' A as far
    as they are trusted, that is by their mean weight.

    Parameters
    ----------
    max_iter : int
        Sweeps over the coordinates of the model. They are cheap beside reading the data, and more of them need fewer
        iterations; but while the weights still change a lot, they should not be followed too far.
    fills_in : bool
        Whether least squares with weights may move entries of small weight towards their predictions instead, where
        there is a kernel. That is faster if few entries have one, and slower to converge the more do.
    """

    max_iter: int = 8
    fills_in: bool = False

    name: ClassVar[str] = "shared-gram"
    keeps_fixed: ClassVar[bool] = True
    sweeps_by_kernel: ClassVar[bool] = True

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        xp, A, Q = engine.xp, problem.A, problem.Q
        R = problem.Y - predictions(X0, A, problem.Y) if problem.residual is None else problem.residual
        descent = (R if Q is None else Q * R) @ A
        G = A.T @ A
        curvature = xp.ones_like(X0) * xp.linalg.diagonal(G) if Q is None else Q @ (A * A)
        linear, ridge = problem.penalty or (0.0, 0.0)
        descent = descent - linear - ridge * X0
        move = propose(G, descent, curvature + ridge, X0, self.max_iter, engine)
        bend = _bend(A, Q, move, curvature, xp) + ridge * xp.sum(move * move, axis=1)
        return advance(X0, move, descent, bend, xp)

    def improve_rows(self, Y: Array, M: Array | None, X: Array, A: Array, terms: Terms, engine: Engine) -> Array:
        """Reweight by the current residuals and improve X, by a kernel if there is one."""
        kernel, rule = engine.kernels.half_step, engine.kernels.rule_of(terms.weighting, Y, X.shape[1])
        if kernel is None or rule is None or terms.fixed:
            # Not `super()`: a dataclass with slots is another class than the one that it would look for.
            return LeastSquaresSolver.improve_rows(self, Y, M, X, A, terms, engine)
        linear, ridge = terms.penalty or _no_penalty(X, engine.xp)
        return kernel(Y, M, X, A, linear, ridge, rule, self.max_iter)

    def sweep(
        self,
        V: Blocks,
        M: Blocks | None,
        W: Array,
        Ht: Blocks,
        objective: Objective,
        engine: Engine,
        hidden: Blocks | None = None,
    ) -> tuple[Array, Blocks]:
        """Return W and the codes after one iteration, in one pass over the data; see `Solver.sweep`."""
        weighting, penalties, fixed = objective
        xp, scale = engine.xp, weighting.scale
        penalty = penalties.of(penalties.codes, W, scale, xp)
        kernel, rule = engine.kernels.sweep, engine.kernels.rule_of(weighting, V[0], W.shape[1])
        fills_in = self.fills_in and engine.kernels.sweep_filled is not None
        if kernel is not None and rule is not None and not penalties.product and not fills_in:
            on_both = (penalty, penalties.of(penalties.basis, W, scale, xp))
            made = kernel(V, M, hidden, W, Ht, on_both, fixed, rule, self.max_iter)
            if made is not None:
                return made
        lengths = [len(block) for block in V]
        checks = [engine.place(np.arange(n)[rows]) for n, rows in zip(lengths, checked_rows(lengths), strict=True)]
        how = {"W": W, "penalty": penalty, "weighting": weighting, "solver": self, "engine": engine}
        (Ht, weights, codes), sums = engine.map_and_sum(_sweep_block, V, M, hidden, Ht, checks, **how)
        if fixed == W.shape[1]:
            return W, Ht
        descent, curvature, gram, total, *rest = sums
        if rest:
            descent = descent + W @ rest[0]
        some = engine.rows_at_a_time or len(W)
        features = np.array_split(np.arange(len(W)), range(some, len(W), some))
        parts = [engine.split(array, like=features) for array in (W, descent, curvature)]
        linear, ridge = penalties.given_sum(penalties.basis, total, W, scale, xp) or _no_penalty(W, xp)
        shared = {"gram": gram, "linear": linear, "ridge": ridge, "fixed": fixed, "max_iter": self.max_iter}
        moves, descents = engine.map(_basis_move, *parts, **shared, engine=engine)
        bends: Blocks
        checked, of_checks = engine.join(weights), engine.join(codes)
        if len(checked) == 0:
            bends = [xp.zeros_like(part[:, 0]) for part in parts[0]]
        elif _are_enough(checked, sum(lengths), xp):
            bends = engine.map(_checked_bend, features, moves, parts[2], weights=checked, codes=of_checks)
        else:
            along = {"W": W, "move": engine.join(moves), "weighting": weighting, "engine": engine}
            bends = engine.split(engine.sum(_bend_of_block, V, M, hidden, Ht, **along), like=features)
        return engine.join(engine.map(_moved_basis, parts[0], moves, descents, bends, ridge=ridge)), Ht

    def sweep_and_explain(
        self, V: Blocks, W: Array, Ht: Blocks, weighting: Weighting, engine: Engine
    ) -> tuple[Array, Blocks, float]:
        """Return what `sweep` does by least squares on all entries, and by how much the product of both lowers squares.

        Coordinate descent cannot raise these, so that no step needs to be checked.
        """
        xp = engine.xp
        checks = [engine.place(np.arange(0)) for _ in V]
        how = {"W": W, "penalty": None, "weighting": weighting, "solver": self, "engine": engine}
        (Ht, *_), (descent, curvature, gram, *_) = engine.map_and_sum(_sweep_block, V, None, None, Ht, checks, **how)
        products = xp.astype(descent, xp.float64) + W @ xp.astype(gram, xp.float64)  # X' Y, transposed
        some = engine.rows_at_a_time or len(W)
        features = np.array_split(np.arange(len(W)), range(some, len(W), some))
        parts = [engine.split(array, like=features) for array in (W, descent, curvature)]
        linear, ridge = _no_penalty(W, xp)
        shared = {"gram": gram, "linear": linear, "ridge": ridge, "fixed": 0, "max_iter": self.max_iter}
        moves, descents = engine.map(_basis_move, *parts, **shared, engine=engine)
        bends = [xp.zeros_like(part[:, 0]) for part in parts[0]]
        new = engine.join(engine.map(_moved_basis, parts[0], moves, descents, bends, ridge=ridge))
        explained = 2 * xp.sum(new * products) - xp.sum((new.T @ xp.astype(new, xp.float64)) * gram)
        return new, Ht, float(explained)


def _sweep_stored(
    Y: Entries,
    M: None,
    hidden: None,
    X: Array,
    checks: Array,
    *,
    W: Array,
    penalty: Penalty | None,
    weighting: Weighting,
    solver: SharedGram,
    engine: Engine,
    xp: Namespace,
) -> Any:
    """Return what `_sweep_block` does of a block with its zeros, if it is least squares on all entries."""
    kernels = engine.kernels.stored
    if kernels is None or hidden is not None or not weighting.is_least_squares:
        return NotImplemented
    checks = checks if Y.changes is not None else checks[:0]
    linear, ridge = penalty or _no_penalty(X, xp)
    X, trust, weights, descent, curvature = kernels.sweep(Y, X, checks, W, linear, ridge, solver.max_iter)
    return (X, weights, X[checks]), (descent, curvature, X.T @ (trust[:, None] * X), xp.sum(X, axis=0))


@block_function(stored=_sweep_stored)
def _sweep_block(
    Y: Array,
    M: Array | None,
    hidden: Array | None,
    X: Array,
    checks: Array,
    *,
    W: Array,
    penalty: Penalty | None,
    weighting: Weighting,
    solver: SharedGram,
    engine: Engine,
    xp: Namespace,
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    """Improve the codes of a block.

    Returns
    -------
    Codes (B, r), and weights and codes of the samples that check the step, (k, m) and (k, r). There are none for least
    squares on all entries: then the Gram matrix is the curvature, and coordinate descent cannot raise the objective.
    What is to be summed over the blocks: descent and curvature of the basis (m, r), X' T X (r, r) with T how far each
    sample is trusted, the sum of the codes (r,), and perhaps C (r, r), of which W C is to be added to the descent.
    """
    if M is None and hidden is None and weighting.is_least_squares:
        checks = checks[:0]
    kernel, rule = engine.kernels.sweep_block, engine.kernels.rule_of(weighting, Y, X.shape[1])
    filled, rest = engine.kernels.sweep_filled, list[Array]()
    if solver.fills_in and filled is not None and M is not None and hidden is None:
        linear, ridge = penalty or _no_penalty(X, xp)
        X, trust, weights, descent, curvature, *rest = filled(Y, M, X, checks, W, linear, ridge, solver.max_iter)
    elif rule is not None and kernel is not None:
        linear, ridge = penalty or _no_penalty(X, xp)
        X, trust, weights, descent, curvature = kernel(Y, M, hidden, X, checks, W, linear, ridge, rule, solver.max_iter)
    else:
        M = M if hidden is None else masked_out(Y, M, hidden, xp=xp)
        residual = Y - predictions(X, W, Y)
        Q = weighting.weights(residual, M, xp)
        trust = xp.ones_like(Y[:, 0]) if Q is None else _trust(Q, W, xp)
        X = solver.solve(Problem(W, Y, Q, xp, penalty, residual), X, engine)
        residual = Y - predictions(X, W, Y)
        Q = weighting.weights(residual, M, xp)
        Q = xp.ones_like(Y) if Q is None else Q
        weights, descent, curvature = Q[checks], (Q * residual).T @ X, Q.T @ (X * X)
    return (X, weights, X[checks]), (descent, curvature, X.T @ (trust[:, None] * X), xp.sum(X, axis=0), *rest)


def _trust(Q: Array, W: Array, xp: Namespace) -> Array:
    """Return the mean weight of each sample, where a feature counts by the squares of its row in W, (B,).

    A sample that is wrong as a whole, whatever its code, then has no part in the Gram matrix of the others.
    """
    squares = xp.sum(W * W, axis=1)
    total = xp.sum(squares)
    return Q @ squares / xp.where(total > 0, total, 1)


def _basis_move(
    W: Array,
    descent: Array,
    curvature: Array,
    *,
    gram: Array,
    linear: Array,
    ridge: float,
    fixed: int,
    max_iter: int,
    engine: Engine,
    xp: Namespace,
) -> tuple[Array, Array]:
    """Return the move of some rows of the basis, and their descent with the penalty, (f, r) each."""
    descent = descent - linear - ridge * W
    steepness = curvature + ridge
    if fixed:  # what has no curvature is not moved
        steepness = xp.where(xp.arange(W.shape[1], device=device(W)) < fixed, 0, steepness)
    return propose(gram, descent, steepness, W, max_iter, engine), descent


def _are_enough(weights: Array, n_samples: int, xp: Namespace) -> bool:
    """Return whether samples that check a step, whose weights are (k, m), tell enough of all.

    Where most entries are missing, features may have none in them.
    """
    n_checked = weights.shape[0]
    if n_checked == n_samples:
        return True
    return bool(xp.count_nonzero(weights) >= FEWEST_SEEN * n_checked * weights.shape[1])


def _checked_bend(
    features: Array, move: Array, curvature: Array, *, weights: Array, codes: Array, xp: Namespace
) -> Array:
    """Return the curvature along the move of some features, (f,), as some samples tell: their weights and codes."""
    first, last = int(features[0]), int(features[-1]) + 1
    bend, seen = _basis_bend(weights[:, first:last], codes, move, xp)
    return bend * (xp.sum(curvature, axis=1) / xp.where(seen > 0, seen, 1))  # the checked samples stand for all


def _bend_of_block(
    Y: Array,
    M: Array | None,
    hidden: Array | None,
    X: Array,
    *,
    W: Array,
    move: Array,
    weighting: Weighting,
    engine: Engine,
    xp: Namespace,
) -> Array:
    """Return what a block adds to the curvature along the moves of all features, (m,)."""
    kernel, rule = engine.kernels.basis_bend, engine.kernels.rule_of(weighting, Y, X.shape[1])
    if kernel is not None and rule is not None:
        return kernel(Y, M, hidden, X, W, move, rule)
    M = M if hidden is None else masked_out(Y, M, hidden, xp=xp)
    Q = weighting.weights(Y - predictions(X, W, Y), M, xp)
    along = predictions(X, move, Y)
    return xp.sum(along * along if Q is None else Q * (along * along), axis=0)


def _moved_basis(W: Array, move: Array, descent: Array, bend: Array, *, ridge: float, xp: Namespace) -> Array:
    """Return some rows of the basis after a step."""
    return advance(W, move, descent, bend + ridge * xp.sum(move * move, axis=1), xp)


def _basis_bend(Q: Array, X: Array, move: Array, xp: Namespace) -> tuple[Array, Array]:
    """Return the curvature along the move of some features, and that of all their coordinates together, (f,).

    Parameters
    ----------
    Q : (k, f), weights; X : (k, r), codes; move : (f, r).
    """
    along = X @ move.T
    along *= along
    along *= Q
    return xp.sum(along, axis=0), xp.sum(X * X, axis=1) @ Q


def _no_penalty(X: Array, xp: Namespace) -> Penalty:
    """Return a penalty of zero on the rows of X."""
    return Penalty(xp.zeros_like(X[0]))


def _bend(A: Array, Q: Array | None, move: Array, curvature: Array, xp: Namespace) -> Array:
    """Return the curvature of the objective along the move of every problem, (B,)."""
    p = A.shape[0]
    run, skip, count = checked_features(p)
    if count == p:
        along = move @ A.T
        return xp.sum(along * along if Q is None else Q * along * along, axis=1)
    checks = xp.arange(count, device=device(A))
    checks = checks // run * skip + checks % run
    A = A[checks]
    Q = xp.ones_like(move[:, :1] * A[None, :, 0]) if Q is None else Q[:, checks]
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
    xp, kernel = engine.xp, engine.kernels.propose
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
