"""One pass over the data: half-steps by one Gram matrix, the kernels of `robustnmf.solvers.SharedGram`.

Rows are worked on by tiles that stay in the cache. Matrix products are those of NumPy; between them are a few short
loops in Numba. One compiled function for the whole would take several times as long to compile, and is no faster.
"""

from collections.abc import Iterator
from math import exp, inf, isfinite, prod, sqrt
from threading import local
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from robustnmf.kernels.interface import CAUCHY, CORRENTROPY, HUBER, ROUNDED, Rule, form_of
from robustnmf.kernels.line_search import checked_features
from robustnmf.kernels.numba.options import FAST, inputs

# Rows are worked on by tiles whose residuals and weights stay in the cache.
TILE_ENTRIES = 2**16
# What a few tiles say of the basis is summed up in one matrix product.
PANEL_ENTRIES = 2**17
# A matrix product with fewer rows is no faster; but of very wide data even so many rows would not fit.
SMALLEST_TILE, LARGEST_TILE_ENTRIES = 32, 2**20
# Rows of coordinate descent that are worked on side by side, up to so many components.
LANES, FEW_COMPONENTS = 64, 24
# Entries that are filled in at a time: matrix products are faster with more rows, and there is little else to do.
FILLED_ENTRIES = 2**20
# If the basis has so many entries, and there are so many rows, tiles of so many entries have all rows and some of the
# features: with few rows, a matrix product takes as long to arrange its factors as to multiply them.
LARGE_BASIS, ROWS_OF_LARGE, LARGE_TILE_ENTRIES = 2**17, 64, 2**17
# Bytes that the cache reads together.
CACHE_LINE = 64

_THREAD = local()
"""Memory that each thread keeps."""


@njit(**FAST)
def _propose(G: Any, descent: Any, curvature: Any, X: Any, max_iter: int, space: Any, move: Any) -> None:
    """Coordinate descent with one Gram matrix for all rows; the kernel of ``shared_gram.propose``.

    The curvature may be that of all rows, (1, r). Every step waits for the one before. As many rows as space (5, r,
    lanes) has lanes are worked on side by side, and each loop over them is one over vectors.
    """
    n_problems, r = X.shape
    number = X.dtype.type
    zero, one = number(0), number(1)
    smallest = number(1e-31 if X.itemsize == 4 else 1e-292)  # see `smallest_curvature`
    dead, largest = number(1.2e-38 if X.itemsize == 4 else 2.3e-308), one / smallest
    change = space[4, 0]
    for k in range(r):
        dead = max(dead, smallest * G[k, k])
    for first in range(0, n_problems, space.shape[2]):
        n = min(space.shape[2], n_problems - first)
        for lane in range(n):
            row = first + lane if len(curvature) > 1 else 0
            for k in range(r):
                space[0, k, lane] = descent[first + lane, k]
                space[1, k, lane] = curvature[row, k]
                space[2, k, lane] = X[first + lane, k]
        for k in range(r):
            g, s, z, step, steepness = space[0, k], space[1, k], space[2, k], space[3, k], G[k, k]
            alive = steepness > dead
            for lane in range(n):
                seen = alive and s[lane] > smallest * steepness
                s[lane] = sqrt(min(s[lane] / steepness, largest)) if seen else one
                step[lane] = one / steepness if seen else zero
                g[lane] /= s[lane]
                z[lane] *= s[lane]
        for _ in range(max_iter):
            for k in range(r):
                g, z, step = space[0, k], space[2, k], space[3, k]
                for lane in range(n):
                    there = max(z[lane] + g[lane] * step[lane], zero)
                    change[lane] = there - z[lane]
                    z[lane] = there
                for i in range(r):
                    g, weight = space[0, i], G[k, i]
                    for lane in range(n):
                        g[lane] -= change[lane] * weight
        for lane in range(n):
            for k in range(r):
                move[first + lane, k] = space[2, k, lane] / space[1, k, lane] - X[first + lane, k]


@njit(**FAST)
def _propose_many(G: Any, descent: Any, curvature: Any, X: Any, max_iter: int, space: Any, move: Any) -> None:
    """Do the same for many components: four of them at a time, for eight rows; space (5, 8, r) is for them.

    The steps of four coordinates follow from their gradient and their part of the Gram matrix, one after the other.
    Then they are taken from the gradient of all together, so that it is read and written a quarter as often.
    """
    n_problems, r = X.shape
    number = X.dtype.type
    zero, one = number(0), number(1)
    smallest = number(1e-31 if X.itemsize == 4 else 1e-292)  # see `smallest_curvature`
    dead = number(1.2e-38 if X.itemsize == 4 else 2.3e-308)
    g, s, z, step, change = space[0], space[1], space[2], space[3], space[4]
    for k in range(r):
        dead = max(dead, smallest * G[k, k])
    for first in range(0, n_problems, 8):
        for lane in range(8):
            b = min(first + lane, n_problems - 1)
            row = b if len(curvature) > 1 else 0
            for k in range(r):
                seen = G[k, k] > dead and curvature[row, k] > smallest * G[k, k]
                s[lane, k] = sqrt(min(curvature[row, k] / G[k, k], one / smallest)) if seen else one
                step[lane, k] = one / G[k, k] if seen else zero
                g[lane, k] = descent[b, k] / s[lane, k]
                z[lane, k] = X[b, k] * s[lane, k]
        for _ in range(max_iter):
            for k in range(0, r, 4):
                k1, k2, k3 = min(k + 1, r - 1), min(k + 2, r - 1), min(k + 3, r - 1)
                # Coordinates beyond the last do not move.
                has1, has2, has3 = number(k + 1 < r), number(k + 2 < r), number(k + 3 < r)
                for lane in range(8):
                    d0 = max(z[lane, k] + g[lane, k] * step[lane, k], zero) - z[lane, k]
                    z[lane, k] += d0
                    gradient = g[lane, k1] - d0 * G[k, k1]
                    d1 = has1 * (max(z[lane, k1] + gradient * step[lane, k1], zero) - z[lane, k1])
                    z[lane, k1] += d1
                    gradient = g[lane, k2] - d0 * G[k, k2] - d1 * G[k1, k2]
                    d2 = has2 * (max(z[lane, k2] + gradient * step[lane, k2], zero) - z[lane, k2])
                    z[lane, k2] += d2
                    gradient = g[lane, k3] - d0 * G[k, k3] - d1 * G[k1, k3] - d2 * G[k2, k3]
                    d3 = has3 * (max(z[lane, k3] + gradient * step[lane, k3], zero) - z[lane, k3])
                    z[lane, k3] += d3
                    change[lane, 0], change[lane, 1], change[lane, 2], change[lane, 3] = d0, d1, d2, d3
                for lane in range(0, 8, 2):  # of more rows at a time the loop is not vectorised
                    a0, a1, a2, a3 = change[lane, 0], change[lane, 1], change[lane, 2], change[lane, 3]
                    b0, b1, b2, b3 = change[lane + 1, 0], change[lane + 1, 1], change[lane + 1, 2], change[lane + 1, 3]
                    for i in range(r):
                        g0, g1, g2, g3 = G[k, i], G[k1, i], G[k2, i], G[k3, i]
                        g[lane, i] -= a0 * g0 + a1 * g1 + a2 * g2 + a3 * g3
                        g[lane + 1, i] -= b0 * g0 + b1 * g1 + b2 * g2 + b3 * g3
        for lane in range(min(8, n_problems - first)):
            for k in range(r):
                move[first + lane, k] = z[lane, k] / s[lane, k] - X[first + lane, k]


def propose(G: Any, descent: Any, curvature: Any, X: Any, max_iter: int) -> Any:
    """Return the moves (B, r) of coordinate descent with one Gram matrix; the kernel of ``shared_gram.propose``.

    The curvature is that of each row, (B, r), or of all, (1, r).
    """
    move = np.empty(X.shape, dtype=X.dtype)
    few = len(G) <= FEW_COMPONENTS
    kernel, shape = (_propose, (5, len(G), LANES)) if few else (_propose_many, (5, 8, len(G)))
    kernel(*inputs(G, descent, curvature, X), max_iter, _space(shape, X.dtype), move)
    return move


def _space(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return space for rows of `_propose`, which every thread keeps.

    It begins where a line of the cache does: vectors that lie in two of them take a fifth longer.
    """
    space = getattr(_THREAD, "space", None)
    if space is None or space.dtype != dtype or space.shape != shape:
        size = prod(shape)
        memory = np.empty(size + CACHE_LINE // dtype.itemsize, dtype=dtype)
        start = -memory.ctypes.data % CACHE_LINE // dtype.itemsize
        space = _THREAD.space = memory[start : start + size].reshape(shape)
    return space


def rule_of(weighting: Any, Y: Any, rank: int) -> Rule | None:
    """Return a weighting of entries for data Y (B, p) as a rule, or None if it has none; any rank will do."""
    form, threshold = form_of(weighting.loss), weighting.threshold
    if form is None or weighting.is_spatial or np.ndim(threshold) > 1:
        return None
    (n_rows, p), dtype = Y.shape, Y.dtype
    scales = np.full(n_rows, np.ravel(weighting.scale), dtype=dtype)
    thresholds = np.full(p, inf if threshold is None else threshold, dtype=dtype)
    return Rule(form.form, form.constant, scales, thresholds, form.support, weighting.is_least_squares)


@njit(**FAST)
def _reweight(
    Y: Any,
    R: Any,
    M: Any,
    start: int,
    form: int,
    constant: Any,
    support: Any,
    scale: Any,
    threshold: Any,
    Q: Any,
    S: Any,
) -> None:
    """Write the weights of residuals R to Q and their products to S, all (B, k), of k features from `start` on.

    Y and M have all features, or no rows: if Y has rows, R are predictions of it, and become residuals.
    """
    n_rows, p = R.shape
    number = R.dtype.type
    zero, half, one, weighted = number(0), number(0.5), number(1), len(M) > 0
    limits = threshold[start : start + p]
    for b in range(n_rows):
        inverse = one / scale[b]
        r, q, s = R[b], Q[b], S[b]
        if len(Y) > 0:
            y = Y[b, start : start + p]
            for i in range(p):
                r[i] = y[i] - r[i]
        if form == CAUCHY:
            for i in range(p):
                ratio = r[i] * inverse
                q[i] = one / (one + ratio * ratio)
        elif form == HUBER:
            for i in range(p):
                q[i] = one / max(abs(r[i] * inverse), one)
        elif form == ROUNDED:
            for i in range(p):
                ratio = r[i] * inverse
                q[i] = half / sqrt(ratio * ratio + constant)
        elif form == CORRENTROPY:
            for i in range(p):
                ratio = r[i] * inverse
                q[i] = half * exp(-half * ratio * ratio)
        else:
            for i in range(p):
                q[i] = one
        for i in range(p):
            weight = q[i] if abs(r[i]) <= limits[i] and abs(r[i] * inverse) <= support else zero
            if weighted:
                weight *= M[b, start + i]
            q[i] = weight
            s[i] = weight * r[i]


@njit(**FAST)
def _advance(
    X: Any,
    move: Any,
    descent: Any,
    curvature: Any,
    ridge: Any,
    squares: Any,
    run: int,
    skip: int,
    n_checks: int,
    Q: Any,
    S: Any,
    R: Any,
    new: Any,
) -> None:
    """Write X after its move, which is shortened where it would raise the objective, and take its part S from R.

    Parameters
    ----------
    X, move, descent, curvature, new : (B, r); Q, S, R : (B, p), weights, what the move changes, and residuals.
    squares : (p,), the sums of squares of the rows of A.
    run, skip, n_checks : the entries on which a move is checked, `checked_features`.
    """
    (n_rows, p), r = R.shape, X.shape[1]
    number = R.dtype.type
    zero, one = number(0), number(1)
    for b in range(n_rows):
        slope = along = total = bend = seen = zero
        for k in range(r):
            slope += descent[b, k] * move[b, k]
            along += move[b, k] * move[b, k]
            total += curvature[b, k] - ridge
        if n_checks == p:
            for i in range(p):
                bend += Q[b, i] * S[b, i] * S[b, i]
        else:  # some entries stand for all
            for first in range(0, n_checks // run * skip, skip):
                for i in range(first, first + run):
                    bend += Q[b, i] * S[b, i] * S[b, i]
                    seen += Q[b, i] * squares[i]
            bend = bend * total / seen if seen > zero else zero
        bend += ridge * along
        length = one
        if not (isfinite(slope) and isfinite(bend)):  # a move out of the range of numbers is not made
            length = zero
        elif bend > zero and slope + slope < bend:
            length = max(slope / bend, zero)
        if length > zero:
            for i in range(p):
                R[b, i] -= length * S[b, i]
        for k in range(r):
            there = X[b, k] + length * move[b, k]
            new[b, k] = max(there, zero) if isfinite(there) else X[b, k]


class Panel(NamedTuple):
    """Space to work in."""

    R: Any
    """Residuals of a tile, (rows of a tile, p)."""
    Q: Any
    """Weights of a few tiles, (rows of a panel, p)."""
    S: Any
    """Their products with residuals."""

    @classmethod
    def of(cls, Y: Any) -> "Panel":
        """Return that for a block of rows.

        Every thread keeps its own from one call to the next: fresh memory of this size costs more than the work.
        """
        n_rows, p = Y.shape
        tile = min(n_rows, max(TILE_ENTRIES // p, min(SMALLEST_TILE, LARGEST_TILE_ENTRIES // p), 1))
        panel = min(n_rows, tile * max(1, PANEL_ENTRIES // (tile * p)))
        R, Q, S = _memory(Y.dtype, tile * p, panel * p, panel * p)
        return cls(R.reshape(tile, p), Q.reshape(panel, p), S.reshape(panel, p))


def _memory(dtype: Any, *sizes: int) -> list[Any]:
    """Return vectors of these sizes in the memory that this thread keeps."""
    ends = np.cumsum(sizes)
    memory = getattr(_THREAD, "memory", None)
    if memory is None or memory.dtype != dtype or memory.size < ends[-1]:
        memory = _THREAD.memory = np.empty(ends[-1], dtype=dtype)
    return [memory[end - size : end] for size, end in zip(sizes, ends, strict=True)]


class BasisParts(NamedTuple):
    """What is computed of a basis A (p, r) once for all blocks of rows."""

    A: Any
    At: Any
    """Its transpose, contiguous."""
    squares: Any
    """(p, r)."""
    of_features: Any
    """Their sums, (p,)."""
    gram: Any
    """A' A, (r, r)."""


def basis_of(A: Any) -> BasisParts:
    """Return the parts of a basis; every thread keeps those of the last one, for the next block of the same sweep."""
    kept: BasisParts | None = getattr(_THREAD, "basis", None)
    if kept is not None and kept.A.dtype == A.dtype and np.array_equal(kept.A, A):  # cheap beside its Gram matrix
        return kept
    At, squares = np.ascontiguousarray(A.T), A * A
    found = _THREAD.basis = BasisParts(A.copy(), At, squares, squares.sum(axis=1), At @ A)
    return found


class Pass:
    """What all rows of Y ~ X A' have in common in a pass over them."""

    def __init__(self, Y: Any, M: Any, hidden: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int) -> None:
        number = Y.dtype.type
        self.Y, self.A = inputs(Y, A)
        (self.none,) = inputs(np.empty((0, 0), dtype=Y.dtype))
        self.M = self.none if M is None else inputs(M)[0]
        self.hidden = None if hidden is None else hidden[:, 0] * Y.shape[1] + hidden[:, 1]
        self.linear, self.ridge, self.sweeps = linear, number(ridge), sweeps
        self.has_penalty = ridge != 0 or linear.any()
        self.form = (rule.form, number(rule.constant), number(rule.support))
        self.scale, self.threshold = inputs(rule.scale, rule.threshold)
        basis = basis_of(self.A)
        self.At, self.squares, self.of_features, self.G = basis.At, basis.squares, basis.of_features, basis.gram
        self.shares = np.full(A.shape[1], 1 / (self.of_features.sum() or 1), dtype=Y.dtype)
        # Of what is missing some entries might tell nothing.
        p = Y.shape[1]
        self.checked = checked_features(p) if M is None else (p, p, p)

    def hidden_in(self, rows: slice) -> Any:
        """Return where hidden entries are in a tile of some rows, flattened."""
        if self.hidden is None:
            return None
        p = self.Y.shape[1]
        first, last = self.hidden.searchsorted((rows.start * p, rows.stop * p))
        return self.hidden[first:last] - rows.start * p

    def visit(self, rows: slice, X: Any, R: Any, Q: Any, S: Any) -> tuple[Any, Any]:
        """Return improved codes of some rows, and how far each row is trusted.

        Write the residuals that they leave, weights, and products of both.
        """
        hidden = self.hidden_in(rows)
        new, trust = self.step(rows, X, hidden, R, Q, S)
        self.reweight(rows, self.none, hidden, R, Q, S)
        return new, trust

    def reweight(self, rows: slice, Y: Any, hidden: Any, R: Any, Q: Any, S: Any) -> None:
        """Write weights of residuals of some rows and their products; hidden entries have none. Y as in `_reweight`."""
        self.weigh(Y, rows, 0, R, Q, S)
        if hidden is not None:
            Q.reshape(-1)[hidden] = 0
            S.reshape(-1)[hidden] = 0

    def weigh(self, Y: Any, rows: slice, start: int, R: Any, Q: Any, S: Any) -> None:
        """Write weights of residuals of some rows, and features from `start` on, and their products."""
        _reweight(Y, R, self.M[rows], start, *self.form, self.scale[rows], self.threshold, Q, S)

    def step(self, rows: slice, X: Any, hidden: Any, R: Any, Q: Any, S: Any) -> tuple[Any, Any]:
        """Return improved codes of some rows, and how far each row is trusted; write the residuals that they leave."""
        np.matmul(X, self.At, out=R)
        self.reweight(rows, self.Y[rows], hidden, R, Q, S)
        descent = S @ self.A
        curvature = Q @ self.squares
        trust = curvature @ self.shares
        if self.has_penalty:
            descent -= self.linear + self.ridge * X
            curvature += self.ridge
        move = propose(self.G, descent, curvature, X, self.sweeps)
        np.matmul(move, self.At, out=S)
        new = np.empty_like(move)
        _advance(*inputs(X, move, descent, curvature), self.ridge, self.of_features, *self.checked, Q, S, R, new)
        return new, trust


def half_step(Y: Any, M: Any, X: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int) -> Any:
    """Reweight and improve X in Y ~ X A'; the kernel of `SharedGram.improve_rows`.

    Parameters
    ----------
    Y, M : (B, p), M may be None; X : (B, r); A : (p, r); linear : (r,) and ridge, the penalty.
    """
    (X,), over, panel = inputs(X), Pass(Y, M, None, A, linear, ridge, rule, sweeps), Panel.of(Y)
    new = np.empty_like(X)
    for start in range(0, len(Y), len(panel.R)):
        rows = slice(start, min(start + len(panel.R), len(Y)))
        n = rows.stop - rows.start
        new[rows], _ = over.step(rows, X[rows], None, panel.R[:n], panel.Q[:n], panel.S[:n])
    return new


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
    if M is None and hidden is None and rule.counts_alike:
        return _sweep_alike(Y, X, checks, A, linear, ridge, sweeps)
    (X,), over = inputs(X), Pass(Y, M, hidden, A, linear, ridge, rule, sweeps)
    if A.size >= LARGE_BASIS and len(Y) >= ROWS_OF_LARGE:
        return _sweep_by_features(over, hidden, X, checks)
    panel = Panel.of(Y)
    new, trust = np.empty_like(X), np.empty_like(X[:, 0])
    kept = np.empty((checks.size, Y.shape[1]), dtype=Y.dtype)
    descent, curvature = np.zeros_like(over.At), np.zeros_like(over.At)  # so these products are faster
    for start in range(0, len(Y), len(panel.Q)):
        end = min(start + len(panel.Q), len(Y))
        Q, S = kept[start:end] if len(kept) == len(Y) else panel.Q[: end - start], panel.S[: end - start]
        for a in range(start, end, len(panel.R)):
            rows = slice(a, min(a + len(panel.R), end))
            part = slice(a - start, rows.stop - start)
            new[rows], trust[rows] = over.visit(rows, X[rows], panel.R[: rows.stop - a], Q[part], S[part])
        codes = new[start:end]
        descent += codes.T @ S
        curvature += (codes * codes).T @ Q
        if len(kept) < len(Y):
            first, last = np.searchsorted(checks, [start, end])
            kept[first:last] = Q[checks[first:last] - start]
    return new, trust, kept, np.ascontiguousarray(descent.T), np.ascontiguousarray(curvature.T)


def _sweep_by_features(over: Pass, hidden: Any, X: Any, checks: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return what `sweep_block` does with a large basis, by tiles that have all rows and some of the features."""
    tiles = FeatureTiles(over, hidden)
    descent, curvature = np.zeros_like(X), np.zeros_like(X)
    run, skip, n_checks = over.checked
    checked = (np.arange(0, n_checks // run * skip, skip)[:, None] + np.arange(run)).ravel()
    seen = np.empty((len(X), n_checks), dtype=X.dtype)
    for columns, Q, S in tiles.weighted(X):
        descent += S @ over.A[columns]
        curvature += Q @ over.squares[columns]
        first, last = np.searchsorted(checked, [columns.start, columns.stop])
        seen[:, first:last] = Q[:, checked[first:last] - columns.start]
    descent -= over.linear + over.ridge * X
    total = curvature.sum(axis=1)
    if n_checks < over.Y.shape[1]:  # some entries stand for all
        of_seen = seen @ over.of_features[checked]
        seen *= (total / np.where(of_seen > 0, of_seen, np.inf))[:, None]
    curvature += over.ridge
    move = propose(over.G, descent, curvature, X, over.sweeps)
    along, new = move @ over.At[:, checked], np.empty_like(X)
    # Of the residuals that it would change here nothing is kept.
    of_all = (n_checks, n_checks, n_checks, seen, along, seen)
    _advance(*inputs(X, move, descent, curvature), over.ridge, over.of_features, *of_all, new)
    squares, kept = new * new, np.empty((checks.size, over.Y.shape[1]), dtype=X.dtype)
    of_basis, bend = np.empty_like(over.A), np.empty_like(over.A)
    for columns, Q, S in tiles.weighted(new):
        np.matmul(S.T, new, out=of_basis[columns])
        np.matmul(Q.T, squares, out=bend[columns])
        kept[:, columns] = Q[checks]
    return new, total * over.shares[0], kept, of_basis, bend


class FeatureTiles:
    """Tiles of a block that have all rows and some of the features."""

    def __init__(self, over: Pass, hidden: Any) -> None:
        self.over = over
        n_rows, p = over.Y.shape
        width = min(max(LARGE_TILE_ENTRIES // n_rows, 1), p)
        self.columns = [slice(first, min(first + width, p)) for first in range(0, p, width)]
        self.hidden = np.empty((0, 2), dtype=np.intp) if hidden is None else hidden[np.argsort(hidden[:, 1])]

    def weighted(self, X: Any) -> Iterator[tuple[slice, Any, Any]]:
        """Yield features with their weights and the products of these with residuals, (B, k), for codes X (B, r)."""
        over, n_rows = self.over, len(X)
        for columns in self.columns:
            width = columns.stop - columns.start
            R, Q, S = (space.reshape(n_rows, width) for space in _memory(X.dtype, *[n_rows * width] * 3))
            np.matmul(X, over.At[:, columns], out=R)
            over.weigh(over.Y, slice(None), columns.start, R, Q, S)
            first, last = np.searchsorted(self.hidden[:, 1], [columns.start, columns.stop])
            rows, places = self.hidden[first:last].T
            Q[rows, places - columns.start] = S[rows, places - columns.start] = 0
            yield columns, Q, S


def _sweep_alike(
    Y: Any, X: Any, checks: Any, A: Any, linear: Any, ridge: float, sweeps: int
) -> tuple[Any, Any, Any, Any, Any]:
    """Return what `sweep_block` does, where all entries count alike: two products with the data, and no residuals."""
    gram = A.T @ A
    pull = Y @ A
    pull -= linear
    new = descended(gram, pull, X, ridge, sweeps)
    descent = np.ascontiguousarray((new.T @ Y).T)
    of_codes = new.T @ new
    descent -= A @ of_codes
    curvature = np.broadcast_to(np.diag(of_codes), A.shape)
    kept = np.ones((checks.size, Y.shape[1]), dtype=Y.dtype)
    return new, np.ones_like(new[:, 0]), kept, descent, curvature


def sweep_filled(
    Y: Any, Q: Any, X: Any, checks: Any, A: Any, linear: Any, ridge: float, sweeps: int
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Return what `sweep_block` does by least squares with weights Q that are mostly the largest of their row.

    An entry of less weight counts like the others of its row and is moved towards its prediction instead. The objective
    with it is an upper bound that touches at the prediction, as in expectation-maximisation with missing entries, and
    needs no weighted curvature: three products with the data. The sixth result is a matrix C (r, r): A C is to be added
    to the descent, once for the sum over all blocks.
    """
    Y, Q, A, X = inputs(Y, Q, A, X)
    (n_rows, p), ridge = Y.shape, X.dtype.type(ridge)
    basis, new, most = basis_of(A), np.empty_like(X), np.empty_like(X[:, 0])
    gram, steepness, descent = basis.gram, np.diag(basis.gram), np.zeros_like(A)
    some = max(FILLED_ENTRIES // p, 1)
    for start in range(0, n_rows, some):
        rows = slice(start, min(start + some, n_rows))
        codes, n = X[rows], rows.stop - start
        (S,) = _memory(X.dtype, n * p)
        S = S.reshape(n, p)
        np.matmul(codes, basis.At, out=S)
        _weigh_residuals(Y[rows], Q[rows], S, most[rows])
        pull = S @ A - (linear + ridge * codes)
        new[rows] = _moved(codes, propose(gram, pull, most[rows, None] * steepness + ridge, codes, sweeps))
        descent += S.T @ new[rows]
    weighted = most[:, None] * new
    curvature = np.broadcast_to(np.sum(weighted * new, axis=0), A.shape)
    return new, most, Q[checks], descent, curvature, (X - new).T @ weighted


@njit(**FAST)
def _weigh_residuals(Y: Any, Q: Any, S: Any, most: Any) -> None:
    """Overwrite predictions S (B, p) by residuals times their weights Q, and write the largest weight of each row."""
    n_rows, p = S.shape
    for b in range(n_rows):
        y, q, s = Y[b], Q[b], S[b]
        largest = q[0]
        for i in range(p):
            s[i] = q[i] * (y[i] - s[i])
            largest = max(largest, q[i])
        most[b] = largest


def descended(gram: Any, pull: Any, X: Any, ridge: float, sweeps: int, fixed: int = 0) -> Any:
    """Return X (B, r) after some sweeps of coordinate descent on the squares of Y - X A'; the Gram matrix is A' A.

    `pull` (B, r) is Y A less the linear penalty; the first `fixed` coordinates stay.
    """
    ridge = X.dtype.type(ridge)
    descent = pull - X @ gram
    if ridge != 0:
        descent -= ridge * X
    steepness = gram.diagonal() + ridge
    steepness[:fixed] = 0  # what has no curvature is not moved
    return _moved(X, propose(gram, descent, steepness[None], X, sweeps))


def _moved(X: Any, move: Any) -> Any:
    """Return codes after a move, which is not made where it is out of the range of numbers."""
    new = X + move
    if not np.isfinite(new.sum()):
        new = np.where(np.isfinite(new), new, X)
    return np.maximum(new, 0, out=new)


def squares(Y: Any, M: Any, X: Any, W: Any) -> float:
    """Return the weighted sum of squared residuals, tile by tile; the kernel of `algorithm.least_squares`."""
    Wt, panel, total = np.ascontiguousarray(W.T), Panel.of(Y), 0.0
    for start in range(0, len(Y), len(panel.S)):
        rows = slice(start, min(start + len(panel.S), len(Y)))
        R = panel.S[: rows.stop - start]
        np.matmul(X[rows], Wt, out=R)
        np.subtract(Y[rows], R, out=R)
        np.multiply(R, R, out=R)
        if M is not None:
            np.multiply(R, M[rows], out=R)
        total += float(np.sum(np.sum(R, axis=1), dtype=np.float64))
    return total
