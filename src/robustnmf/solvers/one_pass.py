"""Both half-steps of `SharedGram` in one pass over the data.

Gradient and curvature of the basis are sums over samples. So a block of samples is visited once in an iteration: its
codes are improved, and what it then says of the basis is added up while its residuals and weights are at hand. They
are never kept for more than a block.
"""

from typing import Any

import numpy as np

from robustnmf.engines.protocol import Engine
from robustnmf.kernels.line_search import judging_rows
from robustnmf.model.penalties import Penalties, Penalty
from robustnmf.model.weighting import Weighting, masked_out
from robustnmf.solvers.problem import Problem
from robustnmf.solvers.shared_gram import SharedGram, advance, propose
from robustnmf.utils.arrays import Array, Blocks, Namespace, device


def sweep(
    V: Blocks,
    M: Blocks | None,
    hidden: Blocks | None,
    W: Array,
    Ht: Blocks,
    *,
    weighting: Weighting,
    solver: SharedGram,
    penalties: Penalties,
    fixed: int,
    engine: Engine,
) -> tuple[Array, Blocks]:
    """Return W and the codes after one iteration of Algorithm 2.

    Parameters
    ----------
    hidden : blocks of positions, (k, 2) in all, or None
        Sample (within its block) and feature of entries that do not count, in the order of samples.
    fixed : int
        Columns of W, the first ones, that stay as they are.
    """
    xp, scale = engine.xp, weighting.scale
    penalty = penalties.of(penalties.codes, W, scale, xp)
    kernel, rule = engine.kernel("sweep"), _rule(weighting, V[0], W.shape[1], engine)
    if kernel is not None and rule is not None and not penalties.product:
        on_both = (penalty, penalties.of(penalties.basis, W, scale, xp))
        new: tuple[Array, Blocks] = kernel(V, M, hidden, W, Ht, on_both, fixed, rule, solver.max_iter)
        return new
    lengths = [len(block) for block in V]
    judges = [engine.place(np.arange(n)[rows]) for n, rows in zip(lengths, judging_rows(lengths), strict=True)]
    (Ht, weights, codes), sums = engine.map_and_sum(
        _visit, V, M, hidden, Ht, judges, W=W, penalty=penalty, weighting=weighting, solver=solver, engine=engine
    )
    if fixed == W.shape[1]:
        return W, Ht
    descent, curvature, gram, total = sums
    some = engine.rows_at_a_time or len(W)
    features = np.array_split(np.arange(len(W)), range(some, len(W), some))
    parts = (engine.split(array, like=features) for array in (W, descent, curvature))
    shared = {
        "gram": gram,
        "weights": engine.join(weights),
        "codes": engine.join(codes),
        "penalty": penalties.given_sum(penalties.basis, total, W, scale, xp),
        "fixed": fixed,
        "max_iter": solver.max_iter,
        "engine": engine,
    }
    return engine.join(engine.map(_improve_basis, features, *parts, **shared)), Ht


def improve(
    Y: Array,
    M: Array | None,
    X: Array,
    A: Array,
    penalty: Penalty | None,
    *,
    weighting: Weighting,
    solver: SharedGram,
    engine: Engine,
) -> Array:
    """Reweight by the current residuals and improve X in Y ~ X A', row by row."""
    xp = engine.xp
    rule, kernel = _rule(weighting, Y, X.shape[1], engine), engine.kernel("improve")
    if rule is not None and kernel is not None:
        linear, ridge = penalty or _no_penalty(X, xp)
        return kernel(Y, M, X, A, linear, ridge, rule, solver.max_iter)
    residual = Y - X @ A.T
    return solver.solve(Problem(A, Y, weighting.weights(residual, M, xp), xp, penalty, residual), X, engine)


def _visit(
    Y: Array,
    M: Array | None,
    hidden: Array | None,
    X: Array,
    judges: Array,
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
    Codes (B, r), and weights and codes of those samples that judge, (judges, m) and (judges, r); what is to be summed
    over the blocks: descent and curvature of the basis (m, r), X' T X (r, r) with T how far each sample is trusted, and
    the sum of the codes (r,).
    """
    rule, kernel = _rule(weighting, Y, X.shape[1], engine), engine.kernel("visit")
    if rule is not None and kernel is not None:
        linear, ridge = penalty or _no_penalty(X, xp)
        X, trust, weights, descent, curvature = kernel(Y, M, hidden, X, judges, W, linear, ridge, rule, solver.max_iter)
    else:
        M = M if hidden is None else masked_out(Y, M, hidden, xp=xp)
        residual = Y - X @ W.T
        Q = weighting.weights(residual, M, xp)
        trust = xp.ones_like(Y[:, 0]) if Q is None else _trust(Q, W, xp)
        X = solver.solve(Problem(W, Y, Q, xp, penalty, residual), X, engine)
        residual = Y - X @ W.T
        Q = weighting.weights(residual, M, xp)
        Q = xp.ones_like(Y) if Q is None else Q
        weights, descent, curvature = Q[judges], (Q * residual).T @ X, Q.T @ (X * X)
    return (X, weights, X[judges]), (descent, curvature, X.T @ (trust[:, None] * X), xp.sum(X, axis=0))


def _trust(Q: Array, W: Array, xp: Namespace) -> Array:
    """Return the mean weight of each sample, where a feature counts by the squares of its row in W, (B,).

    A sample that is wrong as a whole, whatever its code, then has no part in the Gram matrix of the others.
    """
    squares = xp.sum(W * W, axis=1)
    total = xp.sum(squares)
    return Q @ squares / xp.where(total > 0, total, 1)


def _improve_basis(
    features: Array,
    W: Array,
    descent: Array,
    curvature: Array,
    *,
    gram: Array,
    weights: Array,
    codes: Array,
    penalty: Penalty | None,
    fixed: int,
    max_iter: int,
    engine: Engine,
    xp: Namespace,
) -> Array:
    """Return some rows of the basis after a step, whose length the judges decide: their weights and codes."""
    linear, ridge = penalty or _no_penalty(W, xp)
    descent = descent - linear - ridge * W
    steepness = curvature + ridge
    if fixed:  # what has no curvature is not moved
        steepness = xp.where(xp.arange(W.shape[1], device=device(W)) < fixed, 0, steepness)
    move = propose(gram, descent, steepness, W, max_iter, engine)
    first, last = int(features[0]), int(features[-1]) + 1
    bend, seen = _bend(weights[:, first:last], codes, move, xp)
    unseen_too = xp.sum(curvature, axis=1) / xp.where(seen > 0, seen, 1)  # the judges stand for all samples
    return advance(W, move, descent, bend * unseen_too + ridge * xp.sum(move * move, axis=1), xp)


def _bend(Q: Array, X: Array, move: Array, xp: Namespace) -> tuple[Array, Array]:
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


def _rule(weighting: Weighting, Y: Array, rank: int, engine: Engine) -> Any:
    """Return the weighting in the form that kernels understand, or None if they do not."""
    make = engine.kernel("rule_of")
    if make is None or weighting.is_spatial or weighting.loss.group == "sample":
        return None
    return make(weighting.loss, weighting.scale, weighting.cut, Y, rank)
