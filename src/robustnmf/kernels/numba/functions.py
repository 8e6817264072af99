"""Kernels of solvers and of statistics, in Numba.

What a kernel calls is in its file, because Numba compiles a cached function again only if its own file has changed.
"""

from math import sqrt
from typing import Any

import numpy as np
from numba import njit

from robustnmf.kernels.numba.options import EXACT, FAST, contiguous

# If more than this share of the entries does not have weight 1, Gram matrices are formed by matrix products; so many
# numbers of them at a time, from so many products of features.
MANY_OTHERS, GRAM_ENTRIES, PRODUCT_COLUMNS = 0.04, 2**20, 256


@njit(**FAST)
def hals(At: Any, Y: Any, Q: Any, linear: Any, ridge: float, X: Any, max_iter: int, tol: float) -> Any:
    """Weighted coordinate descent in residual form; the kernel of `solvers.hals`.

    Parameters
    ----------
    At : (r, p); Y, Q : (B, p); linear : (r,) and ridge, the penalty; X : (B, r), overwritten by the solution;
    C-contiguous.

    Returns
    -------
    Sweeps made, (B,).
    """
    n_problems, p = Y.shape
    r = At.shape[0]
    sweeps = np.zeros(n_problems, dtype=np.int64)
    e = np.empty(p, dtype=Y.dtype)
    curvature = np.empty(r, dtype=Y.dtype)
    smallest = Y.dtype.type(1.2e-38 if Y.itemsize == 4 else 2.3e-308)  # less is not a normal number
    for b in range(n_problems):
        x, q = X[b], Q[b]
        e[:] = Y[b]
        for k in range(r):
            a = At[k]
            if x[k] != 0:
                for i in range(p):
                    e[i] -= x[k] * a[i]
        for k in range(r):
            a = At[k]
            total = Y.dtype.type(0)
            for i in range(p):
                total += q[i] * a[i] * a[i]
            curvature[k] = total + ridge
        for sweep in range(max_iter):
            largest_change = Y.dtype.type(0)
            largest = Y.dtype.type(0)
            for k in range(r):
                if curvature[k] > smallest:
                    a = At[k]
                    descent = -linear[k] - ridge * x[k]
                    for i in range(p):
                        descent += q[i] * a[i] * e[i]
                    new = max(x[k] + descent / curvature[k], Y.dtype.type(0))
                    change = new - x[k]
                    if change != 0:
                        for i in range(p):
                            e[i] -= change * a[i]
                        x[k] = new
                    largest_change = max(largest_change, abs(change))
                largest = max(largest, x[k])
            sweeps[b] = sweep + 1
            if largest_change <= tol * largest:
                break
    return sweeps


@contiguous
@njit(**FAST)
def nesterov(G: Any, rhs: Any, X0: Any, step: Any, tol: float, max_iter: int) -> Any:
    """Algorithm 1 for one problem after the other; the kernel of `solvers.nesterov._descend`.

    Parameters
    ----------
    G : (B, r, r) or (1, r, r); rhs, X0 : (B, r); step : (B,) or (1,).

    Returns
    -------
    The solutions, (B, r).
    """
    n_problems, r = X0.shape
    zero, one = X0.dtype.type(0), X0.dtype.type(1)
    X = X0.copy()
    z, gradient_z = np.empty(r, dtype=X0.dtype), np.empty(r, dtype=X0.dtype)
    h, gradient = np.empty(r, dtype=X0.dtype), np.empty(r, dtype=X0.dtype)
    for b in range(n_problems):
        Gb, length = G[b if len(G) > 1 else 0], step[b if len(step) > 1 else 0]
        h[:] = X0[b]
        z[:] = h
        _affine(Gb, rhs[b], h, gradient)
        gradient_z[:] = gradient
        target = tol * sqrt(_projected_square(gradient, h))
        if not (length > 0 and target > 0):
            continue
        alpha = 1.0
        for _ in range(max_iter):
            last_alpha, alpha = alpha, (1 + sqrt(4 * alpha**2 + 1)) / 2
            momentum = X0.dtype.type((last_alpha - 1) / alpha)
            for k in range(r):
                new = max(z[k] - length * gradient_z[k], zero)
                z[k] = new + momentum * (new - h[k])
                h[k] = new
                gradient_z[k] = -momentum * gradient[k]
            _affine(Gb, rhs[b], h, gradient)
            for k in range(r):
                gradient_z[k] += (one + momentum) * gradient[k]
            if sqrt(_projected_square(gradient, h)) <= target:
                break
        for k in range(r):
            X[b, k] = max(z[k], zero)
    return X


@njit(**FAST)
def _affine(G: Any, rhs: Any, x: Any, gradient: Any) -> None:
    """Set the gradient to G x - rhs; G is symmetric."""
    for k in range(len(x)):
        gradient[k] = -rhs[k]
    for k in range(len(x)):
        if x[k] != 0:
            for i in range(len(x)):
                gradient[i] += x[k] * G[k, i]


@njit(**FAST)
def _projected_square(gradient: Any, x: Any) -> Any:
    """Return the sum of squares of the gradient, components that point out of the feasible set left out."""
    total = gradient.dtype.type(0)
    for k in range(len(x)):
        if x[k] > 0 or gradient[k] < 0:
            total += gradient[k] * gradient[k]
    return total


def least_squares(Y: Any, Q: Any, X: Any, A: Any, linear: Any, ridge: float, max_iter: int, tol: float) -> Any:
    """Return the codes of weighted non-negative least squares, by coordinate descent; for `algorithm.encoding.settle`.

    The data is read once. Each row has a Gram matrix of its own, A' diag(q) A, which is A' A but for entries that do
    not have weight 1.

    Parameters
    ----------
    Y, Q : (B, p), Q None for ones; X : (B, r), where to begin; A : (p, r); linear : (r,) and ridge, the penalty.
    max_iter, tol : most sweeps, and the largest change relative to the largest coordinate that ends them.
    """
    A = np.ascontiguousarray(A)
    rhs = ((Y if Q is None else Q * Y) @ A - linear).astype(Y.dtype, copy=False)
    new = np.array(X, dtype=Y.dtype, order="C")
    how = (Y.dtype.type(ridge), max_iter, tol)
    if Q is not None and np.count_nonzero(Q != 1) > MANY_OTHERS * Q.size:
        n_rows = max(1, GRAM_ENTRIES // A.shape[1] ** 2)
        for rows in (slice(i, i + n_rows) for i in range(0, len(Y), n_rows)):
            _solve_rows(weighted_grams(Q[rows], A), rhs[rows], new[rows], *how)
        return new
    weights = np.empty((0, 0), dtype=Y.dtype) if Q is None else np.ascontiguousarray(Q)
    _least_squares(A.T @ A, rhs, weights, A, how[0], new, max_iter, tol)
    return new


def weighted_grams(Q: Any, A: Any) -> Any:
    """Return A' diag(q) A of each row q of Q (B, p), (B, r, r), by matrix products."""
    p, r = A.shape
    At, grams = np.ascontiguousarray(A.T), np.empty((len(Q), r, r), dtype=A.dtype)
    n_rows = max(1, min(r, PRODUCT_COLUMNS // r))
    for first in range(0, r, n_rows):  # coordinates of which the products with the later ones are formed at a time
        some = At[first : first + n_rows, None] * At[first:]
        found = (Q @ some.reshape(-1, p).T).reshape(len(Q), len(some), -1)
        grams[:, first : first + n_rows, first:] = found
        grams[:, first:, first : first + n_rows] = found.transpose(0, 2, 1)
    return grams


@njit(**FAST)
def solve_row(gram: Any, rhs: Any, x: Any, gradient: Any, L: Any, z: Any, max_iter: int, tol: float) -> None:
    """Overwrite x (r,) by the non-negative solution of gram x = rhs; the others are space to work in."""
    r = len(x)
    zero = x.dtype.type(0)
    dead = x.dtype.type(1e-30 if x.itemsize == 4 else 1e-290)
    for k in range(r):
        gradient[k] = rhs[k]
    for k in range(r):
        if x[k] != zero:
            for i in range(r):
                gradient[i] -= x[k] * gram[k, i]
    for sweep in range(max_iter):
        largest = change = zero
        for k in range(r):
            if gram[k, k] > dead:
                new = max(x[k] + gradient[k] / gram[k, k], zero)
                step = new - x[k]
                if step != zero:
                    for i in range(r):
                        gradient[i] -= step * gram[k, i]
                    x[k] = new
                    change = max(change, abs(step))
            largest = max(largest, x[k])
        if change <= tol * largest:
            break
        # Where coordinates are nearly alike, descent is slow. By now it may know which of them are positive.
        if sweep % 10 == 9 and _solve_positive(gram, rhs, x, gradient, L, z):
            break


@njit(**FAST)
def _least_squares(G: Any, rhs: Any, Q: Any, A: Any, ridge: Any, X: Any, max_iter: int, tol: float) -> None:
    """Overwrite X (B, r) by the solutions."""
    (n_rows, r), p = X.shape, len(A)
    zero, one = X.dtype.type(0), X.dtype.type(1)
    gram, gradient = np.empty_like(G), np.empty_like(G[0])
    L, z = np.empty_like(G), np.empty_like(G[0])
    for b in range(n_rows):
        x = X[b]
        n_other = 0
        if len(Q):
            for j in range(p):
                n_other += Q[b, j] != one
        from_nothing = 2 * n_other > p  # differences of sums that are nearly the same would not be exact
        for k in range(r):
            for i in range(r):
                gram[k, i] = zero if from_nothing else G[k, i]
        if n_other:
            for j in range(p):
                weight = Q[b, j] if from_nothing else Q[b, j] - one
                if weight != zero:
                    for k in range(r):
                        part = weight * A[j, k]
                        for i in range(k + 1):
                            gram[k, i] += part * A[j, i]
            for k in range(r):
                for i in range(k):
                    gram[i, k] = gram[k, i]
        for k in range(r):
            gram[k, k] += ridge
        solve_row(gram, rhs[b], x, gradient, L, z, max_iter, tol)


@njit(**FAST)
def _solve_rows(grams: Any, rhs: Any, X: Any, ridge: Any, max_iter: int, tol: float) -> None:
    """Overwrite X (B, r) by the solutions for rows with Gram matrices (B, r, r), which are changed."""
    r = X.shape[1]
    gradient, L, z = np.empty_like(rhs[0]), np.empty_like(grams[0]), np.empty_like(rhs[0])
    for b in range(len(X)):
        for k in range(r):
            grams[b, k, k] += ridge
        solve_row(grams[b], rhs[b], X[b], gradient, L, z, max_iter, tol)


@njit(**FAST)
def least_squares_of_rows(
    rows: Any, A: Any, G: Any, linear: Any, ridge: Any, X: Any, max_iter: int, tol: float
) -> None:
    """Overwrite X (B, r) by the solutions for rows whose zeros are not stored, see `kernels.numba.stored.Rows`."""
    n_rows, r = X.shape
    zero, one = X.dtype.type(0), X.dtype.type(1)
    gram, rhs, gradient = np.empty_like(G), np.empty_like(G[0]), np.empty_like(G[0])
    L, z = np.empty_like(G), np.empty_like(G[0])
    for b in range(n_rows):
        weight = rows.row_weights[b]
        for k in range(r):
            rhs[k] = zero
            for i in range(r):
                gram[k, i] = G[k, i]
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
                    gram[k, j] += part * a[j]
        for k in range(r):
            rhs[k] = weight * rhs[k] - linear[k]
            for j in range(r):
                gram[k, j] *= weight
            gram[k, k] += ridge
        solve_row(gram, rhs, X[b], gradient, L, z, max_iter, tol)


@njit(**FAST)
def _solve_positive(G: Any, rhs: Any, x: Any, gradient: Any, L: Any, z: Any) -> bool:
    """Solve for the coordinates that are positive; return whether that is the solution of the whole problem.

    x is moved there, or on the way to where the first of them vanishes, and its gradient is set to rhs - G x. L (r, r)
    and z (r,) are space to work in.
    """
    r = len(x)
    zero = x.dtype.type(0)
    eps = x.dtype.type(1e-6 if x.itemsize == 4 else 1e-13)
    for k in range(r):  # the decomposition of Cholesky; other coordinates are passed over
        if x[k] == zero:
            continue
        total = rhs[k]
        for i in range(k):
            if x[i] == zero:
                continue
            part = G[k, i]
            for j in range(i):
                if x[j] != zero:
                    part -= L[k, j] * L[i, j]
            L[k, i] = part / L[i, i]
            total -= L[k, i] * z[i]
        pivot = G[k, k]
        for j in range(k):
            if x[j] != zero:
                pivot -= L[k, j] * L[k, j]
        if not pivot > eps * G[k, k]:
            return False
        L[k, k] = np.sqrt(pivot)
        z[k] = total / L[k, k]
    share = x.dtype.type(1)
    for k in range(r - 1, -1, -1):
        if x[k] == zero:
            continue
        total = z[k]
        for i in range(k + 1, r):
            if x[i] != zero:
                total -= L[i, k] * z[i]
        z[k] = total / L[k, k]
        if z[k] <= zero:
            share = min(share, x[k] / (x[k] - z[k]))
    largest = zero
    for k in range(r):
        if x[k] != zero:
            reached = share * z[k] + (1 - share) * x[k]
            x[k] = reached if z[k] > zero or reached > eps * x[k] else zero
        largest = max(largest, abs(rhs[k]))
        gradient[k] = rhs[k]
    for k in range(r):
        if x[k] != zero:
            for i in range(r):
                gradient[i] -= x[k] * G[k, i]
    steepest = zero
    for k in range(r):
        if x[k] == zero:
            steepest = max(steepest, gradient[k])
    return bool(share == 1 and steepest <= eps * largest)


@contiguous
@njit(**FAST)
def predict(X: Any, positions: Any, W: Any) -> Any:
    """Return entries of X W'; positions : (k, 2)."""
    values = np.empty(len(positions), X.dtype)
    for i in range(len(positions)):
        values[i] = np.dot(X[positions[i, 0]], W[positions[i, 1]])
    return values


@contiguous
@njit(**FAST)
def cauchy_sum(A: Any, M: Any, scale: float) -> tuple[float, float]:
    """Return the weighted sum of 1 / (1 + (A / scale)**2) and that of the weights; for `model.scales`.

    Nagy's scale reads the residuals some thirty times an iteration, and arrays in between would take most of the time.
    """
    kernel = total = 0.0
    for b in range(A.shape[0]):
        for i in range(A.shape[1]):
            ratio = A[b, i] / scale
            weight = 1.0 if M is None else M[b, i]
            kernel += weight / (1.0 + ratio * ratio)
            total += weight
    return kernel, total


@njit(**FAST)
def histogram(values: Any, weights: Any, support: float, bins: int) -> Any:
    """Return the weights of values (k,) in bins of equal size on [0, support], (bins,)."""
    counts = np.zeros(bins)
    for i in range(len(values)):
        if values[i] <= support:
            counts[min(int(values[i] / support * bins), bins - 1)] += weights[i]
    return counts


@njit(**FAST)
def laplace_and_uniform(
    counts: Any, support: float, width: float, fixed: bool, widest: float, tolerance: float, max_steps: int
) -> tuple[float, float]:
    """Return width and share of the Laplace component in a histogram on [0, support], by expectation-maximisation.

    See `model.mixture`. The mean of the Laplace component is width - support / (exp(support / width) - 1), which is
    solved for the width by iteration; it approaches half of the support as the width grows, and a mean beyond that of
    the widest one is taken for it.
    """
    bins = len(counts)
    inside = counts.sum()
    share = 0.8
    for _ in range(max_steps):
        height = share / (width * -np.expm1(-support / width))
        uniform = (1 - share) / support
        belong, moment = 0.0, 0.0
        for i in range(bins):
            centre = (i + 0.5) * support / bins
            laplace = height * np.exp(-centre / width)
            part = counts[i] * laplace / (laplace + uniform)
            belong += part
            moment += part * centre
        last, share = share, belong / inside
        if not fixed:
            for _ in range(5):
                width = min(moment / belong + support / np.expm1(min(support / width, 50.0)), widest)
        if abs(share - last) <= tolerance:
            break
    return width, share


@njit(**EXACT)
def weighted_medians(At: Any, Y: Any, M: Any, X: Any, max_iter: int) -> None:
    """Coordinate descent for weighted L1 regression; the kernel of `solvers.absolute.WeightedMedian`.

    Parameters
    ----------
    At : (r, p); Y, M : (B, p); X : (B, r), overwritten by the solution; C-contiguous.
    """
    n_problems, p = Y.shape
    r = At.shape[0]
    e = np.empty(p, dtype=Y.dtype)
    points = np.empty(p, dtype=Y.dtype)
    weights = np.empty(p, dtype=Y.dtype)
    for b in range(n_problems):
        x, m = X[b], M[b]
        e[:] = Y[b]
        for k in range(r):
            for i in range(p):
                e[i] -= x[k] * At[k, i]
        for _ in range(max_iter):
            for k in range(r):
                a = At[k]
                n = 0
                total = 0.0
                for i in range(p):
                    if a[i] > 0 and m[i] > 0:
                        points[n] = x[k] + e[i] / a[i]
                        weights[n] = m[i] * a[i]
                        total += weights[n]
                        n += 1
                if total == 0:
                    continue
                order = np.argsort(points[:n])
                cumulated = 0.0
                new = x[k]
                for i in order:
                    cumulated += weights[i]
                    if cumulated >= 0.5 * total:
                        new = max(points[i], Y.dtype.type(0))
                        break
                change = new - x[k]
                if change != 0:
                    for i in range(p):
                        e[i] -= change * a[i]
                    x[k] = new


def row_medians(A: Any) -> Any:
    """Return the lower median of each row; the kernel of `algorithm.encoding.row_medians`."""
    middle = (A.shape[1] - 1) // 2
    return np.partition(A, middle, axis=1)[:, middle]
