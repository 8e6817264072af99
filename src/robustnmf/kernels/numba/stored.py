"""Kernels for rows of which only some entries are stored, in Numba; the others are zero, and count.

By least squares they count without being visited: what all entries of a row say of its code is ``A' A``, and what is
stored, or differs from that otherwise, is added. Shapes are those of `robustnmf.kernels.interface.Kernels`.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from robustnmf.kernels.interface import FEATURES_OF_TILE as TILE
from robustnmf.kernels.interface import PredictionBounds
from robustnmf.kernels.line_search import checked_features
from robustnmf.kernels.numba.functions import solve_rows
from robustnmf.kernels.numba.options import FAST, inputs
from robustnmf.kernels.numba.sweep import propose


class Rows(NamedTuple):
    """Stored entries of rows, and entries that are replaced by others with weights of their own."""

    indptr: Any
    """(B + 1,)."""
    columns: Any
    """(k,), and so are the values."""
    values: Any
    changed_indptr: Any
    """(B + 1,), of the replaced entries."""
    changed_columns: Any
    """(c,), and so are the following."""
    old: Any
    """What is stored there; 0 for what is not."""
    new: Any
    weights: Any
    row_weights: Any
    """Weight of each row, (B,), by which those of its entries are multiplied."""


def rows_of(entries: Any) -> Rows:
    """Return entries as kernels read them; see `robustnmf.utils.entries`."""
    changes, dtype = entries.changes, entries.values.dtype
    if changes is None:
        none, n_rows = np.zeros(0, dtype=dtype), len(entries)
        parts: tuple[Any, ...] = (np.zeros(n_rows + 1, np.int64), np.zeros(0, np.int32), none, none, none)
        parts = (*parts, np.ones(n_rows, dtype=dtype))
    else:
        parts = (changes.indptr, changes.columns, changes.old, changes.new, changes.weights, changes.row_weights)
    return Rows(*inputs(entries.indptr, entries.columns, entries.values, *parts))


def predict(indptr: Any, columns: Any, X: Any, W: Any) -> Any:
    """Return the entries of X W' that are stored, (k,)."""
    return _predict(*inputs(indptr, columns, X, W))


@njit(**FAST)
def _predict(indptr: Any, columns: Any, X: Any, W: Any) -> Any:
    values = np.empty(len(columns), X.dtype)
    for b in range(len(X)):
        x = X[b]
        for i in range(indptr[b], indptr[b + 1]):
            w = W[columns[i]]
            total = X.dtype.type(0)
            for k in range(len(x)):
                total += x[k] * w[k]
            values[i] = total
    return values


def zeros_beyond(indptr: Any, columns: Any, X: Any, W: Any, bounds: PredictionBounds) -> tuple[Any, Any]:
    """Return rows and columns of entries that are not stored and whose prediction X W' is above its limit.

    Few are. Predictions are computed only where their bound is not below the limit.
    """
    rows, found = _zeros_beyond(*inputs(indptr, columns, X, W, *bounds))
    return rows, found


@njit(**FAST)
def _zeros_beyond(indptr: Any, columns: Any, X: Any, W: Any, limits: Any, bounds: Any) -> tuple[Any, Any]:
    (m, r), n_found = W.shape, 0
    rows, found = np.empty(64, np.int64), np.empty(64, np.int32)
    is_stored = np.zeros(m, np.bool_)
    almost = X.dtype.type(0.999)  # a bound must hold in spite of rounding
    for b in range(len(X)):
        x = X[b]
        marked = False
        for tile in range(len(bounds)):
            bound = X.dtype.type(0)
            for k in range(r):
                bound += x[k] * bounds[tile, k]
            if bound < almost:
                continue
            if not marked:
                for i in range(indptr[b], indptr[b + 1]):
                    is_stored[columns[i]] = True
                marked = True
            for j in range(tile * TILE, min((tile + 1) * TILE, m)):
                total = X.dtype.type(0)
                for k in range(r):
                    total += x[k] * W[j, k]
                if total > limits[j] and not is_stored[j]:
                    if n_found == len(rows):
                        rows, found = np.append(rows, np.empty_like(rows)), np.append(found, np.empty_like(found))
                    rows[n_found], found[n_found] = b, j
                    n_found += 1
        if marked:
            for i in range(indptr[b], indptr[b + 1]):
                is_stored[columns[i]] = False
    return rows[:n_found], found[:n_found]


def sweep(
    entries: Any, X: Any, checks: Any, A: Any, linear: Any, ridge: float, sweeps: int
) -> tuple[Any, Any, Any, Any, Any]:
    """Improve the codes of a block by least squares and sum up what it says of the basis.

    It is what the kernel `sweep_block` does of the same rows with their zeros, where all weights are 1 but for those of
    replaced entries.
    """
    X, checks, A, linear = inputs(X, checks, A, linear)
    rows = rows_of(entries)
    run, skip, n_checks = checked_features(len(A))
    is_checked = np.zeros(len(A), dtype=np.bool_)
    which = np.arange(n_checks)
    is_checked[which // run * skip + which % run] = True
    G = A.T @ A
    of_checks = G if n_checks == len(A) else A[is_checked].T @ A[is_checked]
    descent, curvature = _descent(rows, X, A, G, linear, X.dtype.type(ridge))
    move = propose(G, descent, curvature, X, sweeps)
    new = _advance(rows, X, A, descent, curvature, move, of_checks, is_checked, X.dtype.type(ridge), n_checks < len(A))
    total = np.trace(G)
    trust = (curvature - X.dtype.type(ridge)).sum(axis=1) / (total if total > 0 else 1)
    weighted = new * rows.row_weights[:, None]
    to_basis = _to_basis(rows, new, weighted, A) - A @ (weighted.T @ new)
    of_basis = np.repeat((weighted * new).sum(axis=0)[None, :], len(A), axis=0)
    _add_changes_to_basis(rows, new, weighted, A, to_basis, of_basis)
    kept = np.empty((len(checks), len(A)), dtype=X.dtype)
    _checked_weights(rows, checks, kept)
    return new, trust.astype(X.dtype, copy=False), kept, to_basis, of_basis


@njit(**FAST)
def _descent(rows: Any, X: Any, A: Any, G: Any, linear: Any, ridge: Any) -> tuple[Any, Any]:
    """Return the negative gradient of the codes and the curvature of each coordinate, (B, r) each."""
    n_rows, r = X.shape
    descent, curvature = np.empty_like(X), np.empty_like(X)
    one = X.dtype.type(1)
    for b in range(n_rows):
        x, d, c, weight = X[b], descent[b], curvature[b], rows.row_weights[b]
        for k in range(r):
            d[k] = X.dtype.type(0)
            c[k] = G[k, k]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            a, value = A[rows.columns[i]], rows.values[i]
            for k in range(r):
                d[k] += value * a[k]
        for k in range(r):
            if x[k] != 0:
                for i in range(r):
                    d[i] -= x[k] * G[k, i]
        for i in range(rows.changed_indptr[b], rows.changed_indptr[b + 1]):
            a, q = A[rows.changed_columns[i]], rows.weights[i]
            predicted = X.dtype.type(0)
            for k in range(r):
                predicted += x[k] * a[k]
            pull = q * (rows.new[i] - predicted) - (rows.old[i] - predicted)
            for k in range(r):
                d[k] += pull * a[k]
                c[k] += (q - one) * a[k] * a[k]
        for k in range(r):
            d[k] = weight * d[k] - linear[k] - ridge * x[k]
            c[k] = weight * max(c[k], X.dtype.type(0)) + ridge
    return descent, curvature


@njit(**FAST)
def _advance(
    rows: Any,
    X: Any,
    A: Any,
    descent: Any,
    curvature: Any,
    move: Any,
    of_checks: Any,
    is_checked: Any,
    ridge: Any,
    by_some: bool,
) -> Any:
    """Return the codes after a move, which is shortened where it would raise the objective; see `sweep._step`."""
    n_rows, r = X.shape
    number, new = X.dtype.type, np.empty_like(X)
    squares = number(0)
    for k in range(r):
        squares += of_checks[k, k]
    for b in range(n_rows):
        d, m, weight = descent[b], move[b], rows.row_weights[b]
        slope = bend = steep = number(0)
        seen = squares
        for k in range(r):
            slope += d[k] * m[k]
            steep += ridge * m[k] * m[k]
            for i in range(r):
                bend += m[k] * of_checks[k, i] * m[i]
        for i in range(rows.changed_indptr[b], rows.changed_indptr[b + 1]):
            j = rows.changed_columns[i]
            if is_checked[j]:
                along = size = number(0)
                for k in range(r):
                    along += m[k] * A[j, k]
                    size += A[j, k] * A[j, k]
                bend += (rows.weights[i] - number(1)) * along * along
                seen += (rows.weights[i] - number(1)) * size
        bend *= weight
        if by_some:
            total = number(0)
            for k in range(r):
                total += curvature[b, k] - ridge
            bend = bend * total / (weight * seen) if weight * seen > 0 else number(0)
        bend = max(bend, number(0)) + steep
        length = number(1)
        if not (np.isfinite(slope) and np.isfinite(bend)):
            length = number(0)
        elif bend > 0 and slope < number(0.5) * bend:
            length = max(slope / bend, number(0))
        for k in range(r):
            there = X[b, k] + length * m[k]
            new[b, k] = max(there, number(0)) if np.isfinite(there) else X[b, k]
    return new


@njit(**FAST)
def _to_basis(rows: Any, X: Any, weighted: Any, A: Any) -> Any:
    """Return the sum over rows of their stored entries times their codes, (m, r)."""
    total = np.zeros_like(A)
    for b in range(len(X)):
        x = weighted[b]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            t, value = total[rows.columns[i]], rows.values[i]
            for k in range(len(x)):
                t[k] += value * x[k]
    return total


@njit(**FAST)
def _add_changes_to_basis(rows: Any, X: Any, weighted: Any, A: Any, descent: Any, curvature: Any) -> None:
    """Add what replaced entries say of the basis to what it would be without them."""
    r = X.shape[1]
    one = X.dtype.type(1)
    for b in range(len(X)):
        x, w = X[b], weighted[b]
        for i in range(rows.changed_indptr[b], rows.changed_indptr[b + 1]):
            j, q = rows.changed_columns[i], rows.weights[i]
            predicted = X.dtype.type(0)
            for k in range(r):
                predicted += x[k] * A[j, k]
            pull = q * (rows.new[i] - predicted) - (rows.old[i] - predicted)
            for k in range(r):
                descent[j, k] += pull * w[k]
                curvature[j, k] += (q - one) * w[k] * x[k]


@njit(**FAST)
def _checked_weights(rows: Any, checks: Any, kept: Any) -> None:
    """Write the weights of all entries of some rows, (k, m)."""
    for i in range(len(checks)):
        b = checks[i]
        for j in range(kept.shape[1]):
            kept[i, j] = rows.row_weights[b]
        for j in range(rows.changed_indptr[b], rows.changed_indptr[b + 1]):
            kept[i, rows.changed_columns[j]] = rows.row_weights[b] * rows.weights[j]


def least_squares(entries: Any, X: Any, A: Any, linear: Any, ridge: float, max_iter: int, tol: float) -> Any:
    """Return the codes of least squares; what the kernel `least_squares` returns for rows with their zeros."""
    dtype = entries.values.dtype
    rows, new = rows_of(entries), np.array(X, dtype=dtype, order="C")
    linear = np.broadcast_to(np.asarray(linear, dtype=dtype), A.shape[1:])
    A, gram, linear = inputs(A, A.T @ A, linear)

    def set_up(some: slice, systems: Any) -> None:
        _set_up(rows, some.start, A, gram, linear, dtype.type(ridge), systems)

    solve_rows(set_up, new, max_iter, tol)
    return new


@njit(**FAST)
def _set_up(rows: Any, first: int, A: Any, G: Any, linear: Any, ridge: Any, systems: Any) -> None:
    """Write the equations of rows from the first on; see `solve_rows`."""
    r, one = len(G), A.dtype.type(1)
    for row in range(len(systems)):
        b, system, weight = first + row, systems[row], rows.row_weights[first + row]
        rhs = system[r]
        for k in range(r):
            rhs[k] = 0
            for i in range(r):
                system[k, i] = G[k, i]
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            a, value = A[rows.columns[i]], rows.values[i]
            for k in range(r):
                rhs[k] += value * a[k]
        for i in range(rows.changed_indptr[b], rows.changed_indptr[b + 1]):
            a, q = A[rows.changed_columns[i]], rows.weights[i]
            pull = q * rows.new[i] - rows.old[i]
            for k in range(r):
                rhs[k] += pull * a[k]
                part = (q - one) * a[k]
                for j in range(r):
                    system[k, j] += part * a[j]
        for k in range(r):
            rhs[k] = weight * rhs[k] - linear[k]
            for j in range(r):
                system[k, j] *= weight
            system[k, k] += ridge


def squares(entries: Any, X: Any, W: Any) -> float:
    """Return the weighted sum of squared residuals of a block, zeros included."""
    rows, (X, W) = rows_of(entries), inputs(X, W)
    weighted = X * rows.row_weights[:, None]
    gram = W.T.astype(np.float64) @ W
    # All entries as if they were zero, and what is stored or replaced instead of that.
    everything = float(np.sum((weighted.T.astype(np.float64) @ X) * gram))
    return everything + float(_squares(rows, X, W))


@njit(**FAST)
def _squares(rows: Any, X: Any, W: Any) -> float:
    total = 0.0
    for b in range(len(X)):
        x, of_row = X[b], 0.0
        for i in range(rows.indptr[b], rows.indptr[b + 1]):
            w = W[rows.columns[i]]
            predicted = X.dtype.type(0)
            for k in range(len(x)):
                predicted += x[k] * w[k]
            of_row += float(rows.values[i]) * (float(rows.values[i]) - 2.0 * float(predicted))
        for i in range(rows.changed_indptr[b], rows.changed_indptr[b + 1]):
            w = W[rows.changed_columns[i]]
            predicted = X.dtype.type(0)
            for k in range(len(x)):
                predicted += x[k] * w[k]
            left, was = float(rows.new[i] - predicted), float(rows.old[i] - predicted)
            of_row += float(rows.weights[i]) * left * left - was * was
        total += float(rows.row_weights[b]) * of_row
    return total
