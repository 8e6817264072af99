"""An iteration on data of one block, which is small: it must not cost more than its arithmetic.

The same as `robustnmf.solvers.SharedGram.sweep`, in as few calls as it takes.
"""

from typing import Any

import numpy as np

from robustnmf.kernels.interface import Rule
from robustnmf.kernels.line_search import FEWEST_SEEN, checked_rows
from robustnmf.kernels.numba.sweep import descended, propose, sweep_block


def sweep(
    V: Any, M: Any, hidden: Any, W: Any, Ht: Any, penalties: Any, fixed: int, rule: Rule, sweeps: int
) -> tuple[Any, Any] | None:
    """Return W and the codes after one iteration; None if that needs another way.

    Parameters
    ----------
    V, M, hidden, Ht : blocks, M and hidden may be None; W : (p, r).
    penalties : those on codes and on the basis, linear (r,) and ridge each, or None.
    fixed : components that stay; rule : how residuals become weights; sweeps : over the coordinates of the model.
    """
    if len(V) > 1 or type(V[0]) is not np.ndarray:
        return None
    (linear, ridge), on_basis = (_numbers(penalty, W) for penalty in penalties)
    if M is None and hidden is None and rule.counts_alike:
        return _plain(V[0], W, Ht[0], (linear, ridge), on_basis, fixed, sweeps)
    rows = checked_rows([len(V[0])])[0]
    checks = np.arange(len(V[0]))[rows]
    weights, positions = (None if blocks is None else blocks[0] for blocks in (M, hidden))
    how = (W, linear, ridge, rule, sweeps)
    X, trust, checked, descent, curvature = sweep_block(V[0], weights, positions, Ht[0], checks, *how)
    if fixed == W.shape[1]:
        return W, [X]
    if len(checks) < len(X) and np.count_nonzero(checked > 0) < FEWEST_SEEN * checked.size:
        return None
    linear, ridge = on_basis
    if ridge != 0 or linear.any():
        descent -= linear + ridge * W
    steepness = curvature + ridge
    steepness[:, :fixed] = 0  # what has no curvature is not moved
    move = propose(X.T @ (trust[:, None] * X), descent, steepness, W, sweeps)
    bend = _bend(checked, X[rows], move, None if len(checks) == len(X) else curvature)
    if ridge != 0:
        bend += ridge * _row_products(move, move)
    return _advance(W, move, _row_products(descent, move), bend), [X]


def _numbers(penalty: Any, W: Any) -> tuple[Any, Any]:
    """Return the linear part (r,) and the ridge of a penalty, zeros if there is none."""
    return (np.zeros_like(W[0]), W.dtype.type(0)) if penalty is None else (penalty[0], W.dtype.type(penalty[1]))


def _plain(Y: Any, W: Any, X: Any, on_codes: Any, on_basis: Any, fixed: int, sweeps: int) -> tuple[Any, Any]:
    """Return the same for least squares on all entries, which needs no residuals: Gram matrices tell all.

    Coordinate descent cannot raise the objective then, so that no step needs to be checked.
    """
    X = descended(W.T @ W, Y @ W - on_codes[0], X, on_codes[1], sweeps)
    if fixed < W.shape[1]:
        W = descended(X.T @ X, Y.T @ X - on_basis[0], W, on_basis[1], sweeps, fixed)
    return W, [X]


def _bend(Q: Any, X: Any, move: Any, curvature: Any) -> Any:
    """Return the curvature along the moves of all features, (p,), as some samples tell: weights (k, p), codes (k, r).

    They stand for all, of which the curvature of each coordinate is known, (p, r); it is None if they are all.
    """
    along = X @ move.T
    bend = np.einsum("ij,ij->j", along * Q, along)
    if curvature is None:
        return bend
    seen = _row_products(X, X) @ Q
    seen[seen <= 0] = 1
    return bend * curvature.sum(axis=1) / seen


def _row_products(A: Any, B: Any) -> Any:
    """Return the inner products of rows."""
    return np.einsum("ij,ij->i", A, B)


def _advance(W: Any, move: Any, slope: Any, bend: Any) -> Any:
    """Return W + move, with moves that would raise the objective shortened to where it is lowest."""
    length = np.ones_like(slope)
    short = (bend > 0) & (slope < 0.5 * bend)
    if short.any():
        length[short] = np.maximum(slope[short] / bend[short], 0)
    # A move out of the range of numbers is not made.
    length[~np.isfinite(slope + bend)] = 0
    new = W + length[:, None] * move
    if not np.isfinite(new.sum()):
        new = np.where(np.isfinite(new), new, W)
    return np.maximum(new, 0, out=new)
