"""One pass over the data in Numba: half-steps by one Gram matrix, the kernels of `robustnmf.solvers.SharedGram`.

All that a pass calls is in this file, because Numba compiles a cached function again only if its own file has changed.
"""

from math import inf
from threading import local
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from robustnmf.kernels.interface import CAUCHY, CORRENTROPY, HUBER, ROUNDED, Rule, form_of
from robustnmf.kernels.line_search import checked_features
from robustnmf.kernels.numba.options import FAST, contiguous, inputs

# Rows are worked on by tiles whose residuals and weights stay in the cache.
TILE_ENTRIES = 2**15
# What a few tiles say of the basis is summed up in one matrix product.
PANEL_ENTRIES = 2**17
# A matrix product with fewer rows is no faster; but of very wide data even so many rows would not fit.
SMALLEST_TILE, LARGEST_TILE_ENTRIES = 32, 2**20


@njit(**FAST)
def _propose(G: Any, descent: Any, curvature: Any, X: Any, max_iter: int) -> Any:
    """Coordinate descent with one Gram matrix for all rows; the kernel of ``shared_gram.propose``.

    Every step waits for the one before. Four rows are worked on side by side, so that the processor need not.
    """
    n_problems, r = X.shape
    zero, one = X.dtype.type(0), X.dtype.type(1)
    smallest = X.dtype.type(1e-31 if X.itemsize == 4 else 1e-292)  # see `smallest_curvature`
    dead = X.dtype.type(1.2e-38 if X.itemsize == 4 else 2.3e-308)
    for k in range(r):
        dead = max(dead, smallest * G[k, k])
    move = np.empty_like(X)
    g, s = np.empty((4, r), dtype=X.dtype), np.empty((4, r), dtype=X.dtype)
    z, step = np.empty((4, r), dtype=X.dtype), np.empty((4, r), dtype=X.dtype)
    for first in range(0, n_problems, 4):
        for lane in range(4):
            b = min(first + lane, n_problems - 1)
            for k in range(r):
                seen = G[k, k] > dead and curvature[b, k] > smallest * G[k, k]
                s[lane, k] = np.sqrt(min(curvature[b, k] / G[k, k], one / smallest)) if seen else one
                step[lane, k] = one / G[k, k] if seen else zero
                g[lane, k] = descent[b, k] / s[lane, k]
                z[lane, k] = X[b, k] * s[lane, k]
        for _ in range(max_iter):
            for k in range(r):
                new0, new1 = max(z[0, k] + g[0, k] * step[0, k], zero), max(z[1, k] + g[1, k] * step[1, k], zero)
                new2, new3 = max(z[2, k] + g[2, k] * step[2, k], zero), max(z[3, k] + g[3, k] * step[3, k], zero)
                change0, change1, change2, change3 = new0 - z[0, k], new1 - z[1, k], new2 - z[2, k], new3 - z[3, k]
                z[0, k], z[1, k], z[2, k], z[3, k] = new0, new1, new2, new3
                for i in range(r):
                    g[0, i] -= change0 * G[k, i]
                    g[1, i] -= change1 * G[k, i]
                    g[2, i] -= change2 * G[k, i]
                    g[3, i] -= change3 * G[k, i]
        for lane in range(min(4, n_problems - first)):
            for k in range(r):
                move[first + lane, k] = z[lane, k] / s[lane, k] - X[first + lane, k]
    return move


propose = contiguous(_propose)


class Shared(NamedTuple):
    """What all rows of Y ~ X A' have in common."""

    A: Any
    """(p, r)."""
    At: Any
    """A', (r, p)."""
    squares: Any
    """A * A, (p, r)."""
    G: Any
    """A' A, (r, r)."""
    total: Any
    """Its trace, or 1 if that is zero."""
    linear: Any
    """Penalty, (r,)."""
    ridge: Any
    """The same, its curvature."""
    run: int
    """A step is checked on so many consecutive columns"""
    skip: int
    """of every so many,"""
    n_checks: int
    """and so many in all."""


def rule_of(weighting: Any, Y: Any, rank: int) -> Rule | None:
    """Return a weighting of entries for data Y (B, p) as a rule, or None if it has none; any rank will do."""
    form, threshold = form_of(weighting.loss), weighting.threshold
    if form is None or weighting.is_spatial or np.ndim(threshold) > 1:
        return None
    (n_rows, p), dtype = Y.shape, Y.dtype
    scales = np.full(n_rows, np.ravel(weighting.scale), dtype=dtype)
    thresholds = np.full(p, inf if threshold is None else threshold, dtype=dtype)
    return Rule(form.form, form.constant, scales, thresholds, form.support)


@njit(**FAST)
def _reweight(R: Any, M: Any, rule: Any, hidden: Any, offset: int, Q: Any, S: Any) -> None:
    """Write the weights of residuals R to Q and their products to S, all (B, p); hidden entries have none."""
    n_rows, p = R.shape
    number = R.dtype.type
    zero, half, one, c = number(0), number(0.5), number(1), number(rule.constant)
    support = number(rule.support)
    for b in range(n_rows):
        inverse = one / rule.scale[offset + b]
        r, q, s = R[b], Q[b], S[b]
        if rule.form == CAUCHY:
            for i in range(p):
                ratio = r[i] * inverse
                q[i] = one / (one + ratio * ratio)
        elif rule.form == HUBER:
            for i in range(p):
                q[i] = one / max(abs(r[i] * inverse), one)
        elif rule.form == ROUNDED:
            for i in range(p):
                ratio = r[i] * inverse
                q[i] = half / np.sqrt(ratio * ratio + c)
        elif rule.form == CORRENTROPY:
            for i in range(p):
                ratio = r[i] * inverse
                q[i] = half * np.exp(-half * ratio * ratio)
        else:
            for i in range(p):
                q[i] = one
        for i in range(p):
            weight = q[i] if abs(r[i]) <= rule.threshold[i] and abs(r[i] * inverse) <= support else zero
            if M is not None:
                weight *= M[b, i]
            q[i] = weight
            s[i] = weight * r[i]
    for h in range(hidden.shape[0]):
        Q[hidden[h, 0] - offset, hidden[h, 1]] = zero
        S[hidden[h, 0] - offset, hidden[h, 1]] = zero


@njit(**FAST)
def _step(
    Y: Any,
    M: Any,
    X: Any,
    shared: Any,
    rule: Any,
    hidden: Any,
    offset: int,
    sweeps: int,
    R: Any,
    Q: Any,
    S: Any,
    new: Any,
    trust: Any,
) -> None:
    """Write X improved in Y ~ X A' to `new`, and the residuals it leaves to R; Q and S are work space.

    The rows are a tile of the problem: `offset` is the number of the first. How far each is trusted goes to `trust`.
    """
    n_rows, p = Y.shape
    r = X.shape[1]
    number = Y.dtype.type
    np.dot(X, shared.At, R)
    for b in range(n_rows):
        for i in range(p):
            R[b, i] = Y[b, i] - R[b, i]
    _reweight(R, M, rule, hidden, offset, Q, S)
    descent = np.dot(S, shared.A)
    for b in range(n_rows):
        for k in range(r):
            descent[b, k] -= shared.linear[k] + shared.ridge * X[b, k]
    curvature = np.dot(Q, shared.squares)
    for b in range(n_rows):
        trust[b] = number(0)
        for k in range(r):
            trust[b] += curvature[b, k] / shared.total
            curvature[b, k] += shared.ridge
    move = _propose(shared.G, descent, curvature, X, sweeps)
    np.dot(move, shared.At, S)
    for b in range(n_rows):
        slope = number(0)
        for k in range(r):
            slope += descent[b, k] * move[b, k]
        bend = number(0)
        for k in range(r):
            bend += shared.ridge * move[b, k] * move[b, k]
        if shared.n_checks == p or M is not None:  # of what is missing some entries might tell nothing
            for i in range(p):
                bend += Q[b, i] * S[b, i] * S[b, i]
        else:
            bend += _checked_bend(Q[b], S[b], shared, curvature[b])
        length = number(1)
        if not (np.isfinite(slope) and np.isfinite(bend)):  # a move out of the range of numbers is not made
            length = number(0)
        elif bend > 0 and slope < number(0.5) * bend:
            length = max(slope / bend, number(0))
        if length > 0:
            for i in range(p):
                R[b, i] -= length * S[b, i]
        for k in range(r):
            there = X[b, k] + length * move[b, k]
            new[b, k] = max(there, number(0)) if np.isfinite(there) else X[b, k]


@njit(**FAST)
def _checked_bend(q: Any, along: Any, shared: Any, curvature: Any) -> Any:
    """Return the curvature along a move, by some entries that stand for all; q, along : (p,), curvature : (r,)."""
    bend, seen, total = q.dtype.type(0), q.dtype.type(0), q.dtype.type(0)
    for check in range(shared.n_checks):
        i = check // shared.run * shared.skip + check % shared.run
        bend += q[i] * along[i] * along[i]
        for k in range(len(curvature)):
            seen += q[i] * shared.squares[i, k]
    for k in range(len(curvature)):
        total += curvature[k] - shared.ridge
    return bend * total / seen if seen > 0 else q.dtype.type(0)


@njit(**FAST)
def _square(A: Any, squares: Any) -> None:
    """Write A * A. As in `_add`, a loop takes a fraction of the time to compile that an expression of arrays does."""
    for i in range(A.shape[0]):
        for k in range(A.shape[1]):
            squares[i, k] = A[i, k] * A[i, k]


@njit(**FAST)
def _add(part: Any, total: Any) -> None:
    for i in range(part.shape[0]):
        for k in range(part.shape[1]):
            total[i, k] += part[i, k]


def _work_space(Y: Any) -> tuple[Any, Any, Any]:
    """Return arrays for the residuals of a tile, and for weights and their products in a panel of tiles.

    Every thread keeps its own from one call to the next: fresh memory of this size costs more than the work.
    """
    n_rows, p = Y.shape
    tile = min(n_rows, max(TILE_ENTRIES // p, min(SMALLEST_TILE, LARGEST_TILE_ENTRIES // p), 1))
    panel = min(n_rows, tile * max(1, PANEL_ENTRIES // (tile * p)))
    needed = (tile + 2 * panel) * p
    memory = getattr(_THREAD, "memory", None)
    if memory is None or memory.dtype != Y.dtype or memory.size < needed:
        memory = _THREAD.memory = np.empty(needed, dtype=Y.dtype)
    R, Q, S = np.split(memory[:needed], [tile * p, (tile + panel) * p])
    return R.reshape(tile, p), Q.reshape(panel, p), S.reshape(panel, p)


_THREAD = local()


def half_step(Y: Any, M: Any, X: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int) -> Any:
    """Reweight and improve X in Y ~ X A'; the kernel of `SharedGram.improve_rows`.

    Parameters
    ----------
    Y, M : (B, p), M may be None; X : (B, r); A : (p, r); linear : (r,) and ridge, the penalty.
    """
    Y, M, X, A, linear = inputs(Y, M, X, A, linear)
    ridge, work, how = Y.dtype.type(ridge), _work_space(Y), checked_features(Y.shape[1])
    nothing = np.empty((0, Y.shape[1]), dtype=Y.dtype)  # not a part of Y, which is read-only
    return _sweep_rows(
        Y, M, _NOTHING_HIDDEN, X, A, linear, ridge, rule, sweeps, how, _NO_CHECKS, nothing, False, *work
    )[0]


def sweep_block(
    Y: Any, M: Any, hidden: Any, X: Any, checks: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int
) -> tuple[Any, Any, Any, Any, Any]:
    """Improve the codes of a block and sum up what it says of the basis; the kernel of ``shared_gram._sweep_block``.

    Parameters
    ----------
    As in `half_step`, and hidden : (k, 2), row and column of entries that do not count, in the order of rows, or None;
    checks : (k,), the rows whose weights to return, in their order.

    Returns
    -------
    Codes (B, r); how far each row is trusted, (B,); weights of the checked rows; descent and curvature of the
    basis, (p, r).
    """
    Y, M, hidden, X, checks, A, linear = inputs(Y, M, hidden, X, checks, A, linear)
    hidden = _NOTHING_HIDDEN if hidden is None else hidden
    kept = np.empty((checks.size, Y.shape[1]), dtype=Y.dtype)
    ridge, work, how = Y.dtype.type(ridge), _work_space(Y), checked_features(Y.shape[1])
    new, trust, *sums = _sweep_rows(Y, M, hidden, X, A, linear, ridge, rule, sweeps, how, checks, kept, True, *work)
    return new, trust, kept, *sums


_NOTHING_HIDDEN, _NO_CHECKS = inputs(np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64))


@njit(**FAST)
def _sweep_rows(
    Y: Any,
    M: Any,
    hidden: Any,
    X: Any,
    A: Any,
    linear: Any,
    ridge: Any,
    rule: Any,
    sweeps: int,
    checked: Any,
    checks: Any,
    kept: Any,
    with_basis: bool,
    R: Any,
    Q: Any,
    S: Any,
) -> Any:
    """Improve X; if wanted, sum up what it says of the basis and keep the weights of some rows.

    Rows are worked on by tiles, as many as R has; a panel of tiles, as Q and S, is summed up at a time.
    """
    G = np.dot(A.T, A)
    total = np.trace(G)
    total = total if total > 0 else A.dtype.type(1)
    shared = Shared(A, np.ascontiguousarray(A.T), np.empty_like(A), G, total, linear, ridge, *checked)
    _square(A, shared.squares)
    new, squares, trust = np.empty_like(X), np.empty_like(X), np.empty_like(X[:, 0])
    descent, curvature, part = np.zeros_like(A), np.zeros_like(A), np.empty_like(A)
    n_kept = first = last = 0
    for start in range(0, len(Y), len(Q)):
        end = min(start + len(Q), len(Y))
        for a in range(start, end, len(R)):
            b = min(a + len(R), end)
            while last < len(hidden) and hidden[last, 0] < b:
                last += 1
            m = None if M is None else M[a:b]
            r, q, s = R[: b - a], Q[a - start : b - start], S[a - start : b - start]
            _step(Y[a:b], m, X[a:b], shared, rule, hidden[first:last], a, sweeps, r, q, s, new[a:b], trust[a:b])
            if with_basis:
                _reweight(r, m, rule, hidden[first:last], a, q, s)
            first = last
        if with_basis:
            _square(new[start:end], squares[start:end])
            np.dot(S[: end - start].T, new[start:end], part)
            _add(part, descent)
            np.dot(Q[: end - start].T, squares[start:end], part)
            _add(part, curvature)
        while n_kept < len(checks) and checks[n_kept] < end:
            for i in range(Q.shape[1]):
                kept[n_kept, i] = Q[checks[n_kept] - start, i]
            n_kept += 1
    return new, trust, descent, curvature
