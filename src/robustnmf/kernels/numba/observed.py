"""Kernels for `robustnmf.utils.observed.Observed` rows, in Numba: what is stored is visited, and nothing else.

Entries that are not stored have no weight, or that of an anchor: a weight and a value of their feature, times a number
of their sample. All anchors of a row together are a Gram matrix that rows share; those of entries that are stored are
taken away from it.

For dense arrays the kernels are those of `robustnmf.kernels.numba.table`. Shapes are those of
`robustnmf.kernels.interface.Kernels`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from robustnmf.kernels.interface import CAUCHY, CORRENTROPY, HUBER, ROUNDED, Kernels, Rule
from robustnmf.kernels.numba import functions, table
from robustnmf.kernels.numba.functions import solve_rows
from robustnmf.kernels.numba.options import EXACT, FAST, inputs
from robustnmf.kernels.numba.sweep import propose
from robustnmf.utils.observed import Observed, Outer, UnknownEntriesError


class Rows(NamedTuple):
    """Stored entries of rows with their weights, and anchors where nothing is stored."""

    indptr: Any
    """(B + 1,)."""
    columns: Any
    """(k,), and so are values and weights."""
    values: Any
    weights: Any
    row_anchors: Any
    """What weights of anchors are multiplied by, (B,)."""
    anchors: Any
    """Weights of anchors, (m,)."""
    row_centers: Any
    """What values of anchors are multiplied by, (B,)."""
    centers: Any
    """Values of anchors, (m,)."""


def rows_of(Y: Observed, M: Observed | None) -> Rows:
    """Return data and weights as kernels read them."""
    weights = Observed(Y.pattern, np.ones_like(Y.values), 1) if M is None else M
    parts = (*_of_rank_one(weights, Y.dtype), *_of_rank_one(Y, Y.dtype))
    given = (Y.pattern.indptr, Y.pattern.columns, Y.values, weights.values.astype(Y.dtype, copy=False))
    return Rows(*inputs(*given, *parts))


def _of_rank_one(A: Observed, dtype: Any) -> tuple[Any, Any]:
    """Return what is not stored as a product of numbers of rows (B,) and columns (m,)."""
    rest = A.rest
    if rest is None:
        raise UnknownEntriesError("Entries that are missing must have the weight and the value of an anchor.")
    rows, columns = (rest.rows, rest.columns) if isinstance(rest, Outer) else (1, rest)
    if np.ndim(columns) and np.shape(columns)[0] != 1:
        rows, columns = columns, 1
    parts = zip(A.shape, (rows, columns), strict=True)
    found = [np.full(length, np.ravel(part), dtype=dtype) for length, part in parts]
    return found[0], found[1]


class Anchors(NamedTuple):
    """What all anchors together say of a code."""

    gram: Any
    """A' diag(anchors) A, (r, r)."""
    pull: Any
    """A' diag(anchors) centers, (r,)."""


def _anchors(rows: Rows, A: Any) -> Anchors:
    weighted = A * rows.anchors[:, None]
    return Anchors(*inputs(weighted.T @ A, weighted.T @ rows.centers))


@njit(**FAST)
def _weight(residual: Any, inverse: Any, threshold: Any, rule: Any) -> Any:
    """Return the weight of a residual; see `sweep._reweight`."""
    number = type(residual)
    ratio = residual * inverse
    if not (abs(residual) <= threshold and abs(ratio) <= rule.support):
        return number(0)
    if rule.form == CAUCHY:
        return number(1 / (1 + ratio * ratio))
    if rule.form == HUBER:
        return number(1 / max(abs(ratio), number(1)))
    if rule.form == ROUNDED:
        return number(0.5 / np.sqrt(ratio * ratio + rule.constant))
    if rule.form == CORRENTROPY:
        return number(0.5 * np.exp(-0.5 * ratio * ratio))
    return number(1)


@njit(**FAST)
def _reweight(rows: Any, X: Any, A: Any, rule: Any, Q: Any, R: Any) -> None:
    """Write the weights of stored entries to Q and their residuals to R, (k,) each."""
    one = X.dtype.type(1)
    for b in range(len(X)):
        x, inverse = X[b], one / rule.scale[b]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            j = rows.columns[i]
            predicted = X.dtype.type(0)
            for k in range(len(x)):
                predicted += x[k] * A[j, k]
            R[i] = rows.values[i] - predicted
            Q[i] = rows.weights[i] * _weight(R[i], inverse, rule.threshold[j], rule)


@njit(**FAST)
def _descent(rows: Any, X: Any, A: Any, anchors: Any, Q: Any, R: Any, linear: Any, ridge: Any) -> tuple[Any, Any]:
    """Return the negative gradient of the codes and the curvature of each coordinate, without the ridge, (B, r)."""
    n_rows, r = X.shape
    descent, curvature = np.empty_like(X), np.empty_like(X)
    for b in range(n_rows):
        x, d, c, u, level = X[b], descent[b], curvature[b], rows.row_anchors[b], rows.row_centers[b]
        for k in range(r):
            d[k] = u * level * anchors.pull[k] - linear[k] - ridge * x[k]
            c[k] = u * anchors.gram[k, k]
        if u != 0:
            for k in range(r):
                if x[k] != 0:
                    for i in range(r):
                        d[i] -= u * x[k] * anchors.gram[k, i]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            j = rows.columns[i]
            a, lost = A[j], u * rows.anchors[j]
            pull = Q[i] * R[i] - lost * (level * rows.centers[j] - (rows.values[i] - R[i]))
            for k in range(r):
                d[k] += pull * a[k]
                c[k] += (Q[i] - lost) * a[k] * a[k]
        for k in range(r):
            c[k] = max(c[k], X.dtype.type(0))
    return descent, curvature


@njit(**FAST)
def _advance(rows: Any, X: Any, A: Any, anchors: Any, Q: Any, descent: Any, move: Any, ridge: Any) -> Any:
    """Return the codes after a move, which is shortened where it would raise the objective; see `sweep._step`."""
    n_rows, r = X.shape
    number, new = X.dtype.type, np.empty_like(X)
    for b in range(n_rows):
        d, m, u = descent[b], move[b], rows.row_anchors[b]
        slope = bend = number(0)
        for k in range(r):
            slope += d[k] * m[k]
            bend += ridge * m[k] * m[k]
            if u != 0:
                for i in range(r):
                    bend += u * m[k] * anchors.gram[k, i] * m[i]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            j = rows.columns[i]
            along = number(0)
            for k in range(r):
                along += m[k] * A[j, k]
            bend += (Q[i] - u * rows.anchors[j]) * along * along
        length = number(1)
        if not (np.isfinite(slope) and np.isfinite(bend)):
            length = number(0)
        elif bend > 0 and slope < number(0.5) * bend:
            length = max(slope / bend, number(0))
        for k in range(r):
            there = X[b, k] + length * m[k]
            new[b, k] = max(there, number(0)) if np.isfinite(there) else X[b, k]
    return new


def _step(Y: Observed, M: Observed | None, X: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int) -> Any:
    """Return rows, codes after a step, how far each row is trusted, and space for weights and residuals."""
    X, A, linear = inputs(X, A, linear)
    rows, ridge = rows_of(Y, M), X.dtype.type(ridge)
    anchors, G = _anchors(rows, A), A.T @ A
    Q, R = np.empty_like(rows.values), np.empty_like(rows.values)
    _reweight(rows, X, A, rule, Q, R)
    descent, curvature = _descent(rows, X, A, anchors, Q, R, linear, ridge)
    total = np.trace(G)
    trust = curvature.sum(axis=1) / (total if total > 0 else 1)
    move = propose(G, descent, curvature + ridge, X, sweeps)
    new = _advance(rows, X, A, anchors, Q, descent, move, ridge)
    return rows, new, trust.astype(X.dtype, copy=False), Q, R


def half_step(Y: Any, M: Any, X: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int) -> Any:
    """Reweight and improve X in Y ~ X A', `SharedGram.improve_rows`."""
    return _step(Y, M, X, A, linear, ridge, rule, sweeps)[1]


def sweep_block(
    Y: Any, M: Any, hidden: Any, X: Any, checks: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int
) -> tuple[Any, Any, Any, Any, Any]:
    """Improve the codes of a block and sum up what it says of the basis; see `sweep.sweep_block`."""
    M = _without_hidden(Y, M, hidden)
    rows, new, trust, Q, R = _step(Y, M, X, A, linear, ridge, rule, sweeps)
    new, A = inputs(new, A)
    _reweight(rows, new, A, rule, Q, R)
    weighted = new * rows.row_anchors[:, None]
    pull = rows.centers[:, None] * (rows.row_centers @ weighted)
    descent = rows.anchors[:, None] * (pull - A @ (weighted.T @ new))
    curvature = rows.anchors[:, None] * (weighted * new).sum(axis=0)
    _add_to_basis(rows, new, Q, R, descent, curvature)
    kept = rows.row_anchors[checks][:, None] * rows.anchors
    _keep(rows, checks, Q, kept)
    return new, trust, kept, descent, curvature


def _without_hidden(Y: Observed, M: Observed | None, hidden: Any) -> Observed | None:
    """Return weights that are zero at some positions, (k, 2) or None."""
    if hidden is None:
        return M
    M = Observed(Y.pattern, np.ones_like(Y.values), 0) if M is None else M.copy()
    M[hidden[:, 0], hidden[:, 1]] = 0
    return M


def basis_bend(Y: Any, M: Any, hidden: Any, X: Any, A: Any, move: Any, rule: Rule) -> Any:
    """Return the curvature of each feature along its move, (m,)."""
    rows, (X, A, move) = rows_of(Y, _without_hidden(Y, M, hidden)), inputs(X, A, move)
    gram = (X * rows.row_anchors[:, None]).T @ X
    bend = rows.anchors * np.sum((move @ gram) * move, axis=1)
    Q, R = np.empty_like(rows.values), np.empty_like(rows.values)
    _reweight(rows, X, A, rule, Q, R)
    _add_bend(rows, X, move, Q, bend)
    return bend


@njit(**FAST)
def _add_bend(rows: Any, X: Any, move: Any, Q: Any, bend: Any) -> None:
    for b in range(len(X)):
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            j = rows.columns[i]
            along = X.dtype.type(0)
            for k in range(X.shape[1]):
                along += X[b, k] * move[j, k]
            bend[j] += (Q[i] - rows.row_anchors[b] * rows.anchors[j]) * along * along


@njit(**FAST)
def _add_to_basis(rows: Any, X: Any, Q: Any, R: Any, descent: Any, curvature: Any) -> None:
    """Add what stored entries say of the basis, instead of the anchors that would be there."""
    for b in range(len(X)):
        x, u, level = X[b], rows.row_anchors[b], rows.row_centers[b]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            j = rows.columns[i]
            d, c, lost = descent[j], curvature[j], u * rows.anchors[j]
            pull = Q[i] * R[i] - lost * (level * rows.centers[j] - (rows.values[i] - R[i]))
            for k in range(len(x)):
                d[k] += pull * x[k]
                c[k] += (Q[i] - lost) * x[k] * x[k]


@njit(**FAST)
def _keep(rows: Any, checks: Any, Q: Any, kept: Any) -> None:
    """Write the weights of stored entries of some rows, (k, m)."""
    for c in range(len(checks)):
        for i in range(rows.indptr[checks[c]], rows.indptr[checks[c] + 1]):
            kept[c, rows.columns[i]] = Q[i]


def least_squares(Y: Any, Q: Any, X: Any, A: Any, linear: Any, ridge: float, max_iter: int, tol: float) -> Any:
    """Return the codes of weighted non-negative least squares; see `functions.least_squares`."""
    dtype = Y.dtype
    rows, new = rows_of(Y, Q), np.array(X, dtype=dtype, order="C")
    linear = np.broadcast_to(np.asarray(linear, dtype=dtype), A.shape[1:])
    A, linear = inputs(A, linear)
    anchors = _anchors(rows, A)

    def set_up(some: slice, systems: Any) -> None:
        _set_up(rows, some.start, A, anchors, linear, dtype.type(ridge), systems)

    solve_rows(set_up, new, max_iter, tol)
    return new


@njit(**FAST)
def _set_up(rows: Any, first: int, A: Any, anchors: Any, linear: Any, ridge: Any, systems: Any) -> None:
    """Write the equations of rows from the first on; see `solve_rows`."""
    r = len(linear)
    for row in range(len(systems)):
        b, gram = first + row, systems[row]
        rhs, u, level = gram[r], rows.row_anchors[b], rows.row_centers[b]
        for k in range(r):
            rhs[k] = u * level * anchors.pull[k] - linear[k]
            for i in range(r):
                gram[k, i] = u * anchors.gram[k, i]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            j, q = rows.columns[i], rows.weights[i]
            a, lost = A[j], u * rows.anchors[j]
            pull = q * rows.values[i] - lost * level * rows.centers[j]
            for k in range(r):
                rhs[k] += pull * a[k]
                part = (q - lost) * a[k]
                for c in range(k + 1):
                    gram[k, c] += part * a[c]
        for k in range(r):
            for i in range(k):
                gram[i, k] = gram[k, i]
            gram[k, k] += ridge


def squares(Y: Any, M: Any, X: Any, A: Any) -> float:
    """Return the weighted sum of squared residuals."""
    if not isinstance(Y, Observed):
        R = Y - X @ A.T
        return float(np.sum(R * R if M is None else M * (R * R), dtype=np.float64))
    rows, (X, A) = rows_of(Y, M), inputs(X, A)
    anchors = _anchors(rows, A.astype(np.float64))
    at_zero = float(np.sum(rows.anchors * rows.centers.astype(np.float64) ** 2)) * rows.row_centers**2
    by_row = at_zero - 2 * rows.row_centers * (X @ anchors.pull) + np.sum((X @ anchors.gram) * X, axis=1)
    return float(rows.row_anchors @ by_row) + float(_squares(rows, X, A))


@njit(**FAST)
def _squares(rows: Any, X: Any, A: Any) -> float:
    """Return the same of stored entries, less that of anchors that would be there."""
    total = 0.0
    for b in range(len(X)):
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            j = rows.columns[i]
            predicted = X.dtype.type(0)
            for k in range(X.shape[1]):
                predicted += X[b, k] * A[j, k]
            left = float(rows.values[i] - predicted)
            lost = float(rows.row_centers[b] * rows.centers[j] - predicted)
            total += float(rows.weights[i]) * left * left
            total -= float(rows.row_anchors[b]) * float(rows.anchors[j]) * lost * lost
    return total


def order_statistics(A: Any, ranks: Any) -> Any:
    """Return the entry of a given rank of each row."""
    if isinstance(A, Observed):
        return A.row_order_statistics(ranks)
    return functions.order_statistics(A, ranks)


def cauchy_sum(A: Observed, M: Observed | None, scale: float) -> tuple[float, float]:
    """Return the sums of Nagy's iteration, of entries that have weights."""
    weights = None if M is None else M.values[None, :]
    return table.KERNELS.cauchy_sum(A.values[None, :], weights, scale)  # type: ignore[misc]


def row_quantiles(A: Observed, M: Observed, q: float) -> Any:
    """Return the weighted quantile of each row, 0 where nothing has a weight; see `numpy_engine._quantile`."""
    values, weights = inputs(A.values, M.values.astype(np.float64, copy=False))
    found = np.zeros(len(A), dtype=A.dtype)
    _row_quantiles(A.pattern.indptr, values, weights, q, 4 * float(np.finfo(M.dtype).eps), found)
    return found


@njit(**EXACT)
def _row_quantiles(indptr: Any, values: Any, weights: Any, q: float, rounding: float, found: Any) -> None:
    for b in range(len(found)):
        start, n = indptr[b], 0
        total, first, are_equal = 0.0, 0.0, True
        some = np.empty(indptr[b + 1] - start, np.int64)
        for i in range(start, indptr[b + 1]):
            if weights[i] > 0:
                some[n] = i
                n += 1
                total += weights[i]
                first = weights[some[0]]
                are_equal = are_equal and weights[i] == first
        if n == 0:
            continue
        order = some[:n][np.argsort(values[some[:n]], kind="mergesort")]
        if are_equal:
            found[b] = values[order[max(int(np.ceil(q * n)) - 1, 0)]]
            continue
        cumulated, wanted = 0.0, (q - rounding) * total
        for i in order:
            cumulated += weights[i]
            found[b] = values[i]
            if cumulated >= wanted:
                break


def _dense_bend(Y: Any, *others: Any) -> Any:
    raise UnknownEntriesError("Blocks of data must be `Observed`.")


def _by_kind(of_observed: Callable[..., Any], of_dense: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a kernel that is the first for `Observed` data, its first argument, and the second for dense arrays."""

    def kernel(Y: Any, *others: Any) -> Any:
        return (of_observed if isinstance(Y, Observed) else of_dense)(Y, *others)  # type: ignore[misc]

    return kernel


KERNELS: Kernels = replace(
    table.KERNELS,
    half_step=_by_kind(half_step, table.KERNELS.half_step),
    sweep_block=_by_kind(sweep_block, table.KERNELS.sweep_block),
    basis_bend=_by_kind(basis_bend, _dense_bend),
    least_squares=_by_kind(least_squares, table.KERNELS.least_squares),
    cauchy_sum=_by_kind(cauchy_sum, table.KERNELS.cauchy_sum),
    order_statistics=order_statistics,
    squares=squares,
    stored=None,
)
"""The kernels of the CPU for blocks that may be `Observed`."""
