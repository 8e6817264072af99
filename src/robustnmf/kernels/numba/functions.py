"""Kernels of solvers and of statistics, in Numba.

What a kernel calls is in its file, because Numba compiles a cached function again only if its own file has changed.
"""

from collections.abc import Callable
from math import exp, expm1, floor, sqrt
from typing import Any

import numpy as np
from numba import njit

from robustnmf.kernels.mixture_constants import BINS, MAX_STEPS, SETTLED, SUPPORT, TOLERANCE, WIDEST
from robustnmf.kernels.numba.options import EXACT, FAST, contiguous, inputs

# Entries of equations that are solved at a time, so that they stay in the cache.
SYSTEM_ENTRIES = 2**15

# If more than this share of the entries does not have weight 1, Gram matrices are formed by matrix products; so many
# numbers of them at a time, from so many products of features.
MANY_OTHERS, GRAM_ENTRIES, PRODUCT_COLUMNS = 0.04, 2**20, 256
# If a Gram matrix takes so many multiplications it is worth some calls of its own, unless most entries of most rows are
# others; of so many coordinates also then.
ROW_PRODUCTS, MOST_OTHERS, MANY_COORDINATES = 2**20, 0.5, 64

# Of rows in which entries of so few different ranks are wanted, only those are put in their place.
MOST_PARTITIONS = 8

# With so many coordinates, equations are solved by block principal pivoting after so many sweeps of coordinate descent.
PIVOTED_COORDINATES, PIVOTED_SWEEPS, PIVOT_CHANCES, MOST_PIVOTS = 128, 9, 3, 100


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
    dtype, new = Y.dtype, np.array(X, dtype=Y.dtype, order="C")
    rhs = (Y if Q is None else Q * Y) @ A - linear
    gram, ridges = A.T @ A, dtype.type(ridge) * np.eye(A.shape[1], dtype=dtype)
    A = np.ascontiguousarray(A)
    gram += ridges

    n_others = 0 if Q is None else np.count_nonzero(Q != 1)
    p, r = A.shape
    by_rows = p * r * r >= ROW_PRODUCTS and (n_others <= MOST_OTHERS * Y.size or r >= MANY_COORDINATES)
    by_products = not by_rows and n_others > MANY_OTHERS * Y.size

    def set_up(rows: slice, systems: Any) -> None:
        systems[:, :-1], systems[:, -1] = gram, rhs[rows]
        if by_rows and n_others:
            for q, system in zip(Q[rows], systems, strict=True):
                set_weighted_gram(q, A, gram, ridges, system[:-1])
        elif by_products:
            systems[:, :-1] = weighted_grams(Q[rows], A)
            systems[:, :-1] += ridges
        elif n_others:
            weights = np.subtract(Q[rows], 1, dtype=dtype)
            # Differences of sums that are nearly the same would not be exact.
            from_nothing = 2 * np.count_nonzero(weights, axis=1) > Y.shape[1]
            weights[from_nothing], systems[from_nothing, :-1] = Q[rows][from_nothing], ridges
            _add_to_grams(*inputs(weights, A), systems)

    solve_rows(set_up, new, max_iter, tol, at_a_time=GRAM_ENTRIES if by_products else SYSTEM_ENTRIES)
    return new


def set_weighted_gram(q: Any, A: Any, gram: Any, ridges: Any, found: Any) -> None:
    """Write A' diag(q) A + ridges to `found` (r, r), by a product of those rows of A whose weight is not 1.

    `gram` is the same for weights of 1. A product of a matrix with itself takes half the work of others.
    """
    others = np.flatnonzero(q != 1)
    weights = 1 - q[others]
    # Differences of sums that are nearly the same would not be exact.
    if 2 * len(others) > len(q) or (weights < 0).any():
        part = np.sqrt(q)[:, None] * A
        np.matmul(part.T, part, out=found)
        found += ridges
    else:
        part = np.sqrt(weights)[:, None] * A.take(others, axis=0)
        np.subtract(gram, part.T @ part, out=found)


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
def _add_to_grams(weights: Any, A: Any, systems: Any) -> None:
    """Add A' diag(w) A to the Gram matrix of each row; see `solve_rows`."""
    r = A.shape[1]
    for b in range(len(weights)):
        gram = systems[b]
        for j in range(len(A)):
            weight = weights[b, j]
            if weight != 0:
                for k in range(r):
                    part = weight * A[j, k]
                    for i in range(k + 1):
                        gram[k, i] += part * A[j, i]
        for k in range(r):
            for i in range(k):
                gram[i, k] = gram[k, i]


def solve_rows(
    set_up: Callable[[slice, Any], None], X: Any, max_iter: int, tol: float, *, at_a_time: int = SYSTEM_ENTRIES
) -> None:
    """Overwrite each row x of X (B, r) by the non-negative solution of its equations, gram x = rhs.

    ``set_up(rows, systems)`` writes those of some rows, (b, r + 1, r): the Gram matrix of each, and below it rhs;
    they have about `at_a_time` entries.
    """
    n_rows, r = X.shape
    some = min(n_rows, max(1, at_a_time // (r * (r + 1))))
    systems, space = np.empty((some, r + 1, r), dtype=X.dtype), np.empty((r + 2, r), dtype=X.dtype)
    for start in range(0, n_rows, max(some, 1)):
        rows = slice(start, min(start + some, n_rows))
        set_up(rows, systems[: rows.stop - start])
        if r < PIVOTED_COORDINATES or max_iter < PIVOTED_SWEEPS:
            _solve_systems(systems, X[rows], space, max_iter, X.dtype.type(tol))
            continue
        _solve_systems(systems, X[rows], space, PIVOTED_SWEEPS, X.dtype.type(tol))
        for system, row in zip(systems, range(start, rows.stop), strict=False):
            found = pivoted(system[:-1], system[-1], X[row], space)
            if found is None:
                _solve_systems(system[None], X[row : row + 1], space, max_iter, X.dtype.type(tol))
            else:
                X[row] = found


def pivoted(gram: Any, rhs: Any, x: Any, space: Any) -> Any:
    """Return the non-negative solution of gram x = rhs by block principal pivoting from x (r,), None if it fails.

    Coordinates that are positive are solved for; those that have the wrong sign then change sides, all at a time, and
    one at a time if that does not help three times in a row. There must be space for r + 1 rows of r numbers.

    References
    ----------
    J. Kim, H. Park, "Fast nonnegative matrix factorization: an active-set-like method and comparisons", SIAM Journal on
    Scientific Computing, 2011.
    """
    smallest = (1e-12 if x.itemsize == 8 else 2e-6) * np.abs(rhs).max()
    free, chances, fewest = x > 0, PIVOT_CHANCES, len(x) + 1
    for _ in range(MOST_PIVOTS):
        new = np.zeros_like(x)
        is_solved = _solve_some(*inputs(gram, rhs, np.flatnonzero(free)), space, new)
        if not (is_solved and np.isfinite(new).all()):
            return None
        is_wrong = np.where(free, new < 0, rhs - gram @ new > smallest)
        n_wrong = int(np.count_nonzero(is_wrong))
        if n_wrong == 0:
            return new
        if n_wrong < fewest:
            fewest, chances = n_wrong, PIVOT_CHANCES
        elif chances > 0:
            chances -= 1
        else:
            is_wrong[: np.flatnonzero(is_wrong)[-1]] = False
        free ^= is_wrong
    return None


@njit(**FAST)
def _solve_some(gram: Any, rhs: Any, places: Any, L: Any, x: Any) -> bool:
    """Write the solution of the equations of some coordinates to x (r,), and return whether their Gram matrix has one.

    It is found by the decomposition of Cholesky, with rhs as one more row of L (k + 1, k). Four rows at a time share
    what they are multiplied by, for which a few hundred coordinates are too few in a library.
    """
    n = len(places)
    eps = gram.dtype.type(1e-6 if gram.itemsize == 4 else 1e-13)
    for j in range(n):
        row = gram[places[j]]
        for i in range(j + 1):
            L[j, i] = row[places[i]]
        L[n, j] = rhs[places[j]]
    for j in range(n):
        pivot = L[j]
        total = pivot[j]
        for k in range(j):
            total -= pivot[k] * pivot[k]
        if not total > eps * pivot[j]:
            return False
        root = sqrt(total)
        pivot[j] = root
        i = j + 1
        while i + 3 <= n:
            row0, row1, row2, row3 = L[i], L[i + 1], L[i + 2], L[i + 3]
            part0, part1, part2, part3 = row0[j], row1[j], row2[j], row3[j]
            for k in range(j):
                part0 -= row0[k] * pivot[k]
                part1 -= row1[k] * pivot[k]
                part2 -= row2[k] * pivot[k]
                part3 -= row3[k] * pivot[k]
            row0[j], row1[j], row2[j], row3[j] = part0 / root, part1 / root, part2 / root, part3 / root
            i += 4
        while i <= n:
            total = L[i, j]
            for k in range(j):
                total -= L[i, k] * pivot[k]
            L[i, j] = total / root
            i += 1
    for back in range(1, n + 1):
        k = n - back
        found = L[n, k] / L[k, k]
        x[places[k]] = found
        for i in range(k):
            L[n, i] -= found * L[k, i]
    return True


@njit(**FAST)
def _solve_systems(systems: Any, X: Any, L: Any, max_iter: int, tol: Any) -> None:
    """Solve by coordinate descent; L (r + 2, r) is space to work in.

    Where coordinates are nearly alike, descent is slow. After every ten sweeps it may know which of them are positive:
    their equations are solved by the decomposition of Cholesky, of the Gram matrix with rhs as one more row, and x is
    moved there, or on the way to where the first of them vanishes. The turn after that computes the gradient anew, and
    finds out whether this is the solution of the whole problem.
    """
    n_rows, r = X.shape
    number = X.dtype.type
    zero, one = number(0), number(1)
    dead = number(1e-30 if X.itemsize == 4 else 1e-290)
    eps = number(1e-6 if X.itemsize == 4 else 1e-13)
    gradient = L[r + 1]
    for b in range(n_rows):
        x, system = X[b], systems[b]
        share = zero  # of the way to the solution for the positive coordinates
        for sweep in range(max_iter + (max_iter + 9) // 10):
            turn = sweep % 11
            change = largest = zero
            if turn == 0:
                for k in range(r):
                    gradient[k] = system[r, k]
                    largest = max(largest, abs(system[r, k]))
            for k in range(r):
                new = step = x[k]
                if turn > 0:
                    if system[k, k] > dead:
                        new = max(new + gradient[k] / system[k, k], zero)
                    step = new - x[k]
                    x[k] = new
                    change = max(change, abs(step))
                    largest = max(largest, new)
                if step != zero:
                    for i in range(r):
                        gradient[i] -= step * system[k, i]
            if turn > 0 and change <= tol * largest:
                break
            if turn == 0 and share == one:
                for k in range(r):
                    if x[k] == zero:
                        change = max(change, gradient[k])
                if change <= eps * largest:
                    break
            if turn < 10:
                continue
            share = one
            for k in range(r + 1):
                if k == r or x[k] != zero:
                    for i in range(min(k + 1, r)):
                        part = system[k, i]
                        for j in range(i):
                            part -= L[k, j] * L[i, j]
                        if i < k:
                            L[k, i] = part / L[i, i] if x[i] != zero else zero
                        else:
                            L[k, k] = sqrt(part)
                            if not part > eps * system[k, k]:
                                share = zero
            for back in range(1, r + 1):
                k = r - back
                if x[k] != zero and share != zero:
                    total = L[r, k]
                    for i in range(k + 1, r):
                        if x[i] != zero:
                            total -= L[i, k] * gradient[i]
                    gradient[k] = total / L[k, k]
                    if gradient[k] <= zero:
                        share = min(share, x[k] / (x[k] - gradient[k]))
            for k in range(r):
                if x[k] != zero and share != zero:
                    new = share * gradient[k] + (one - share) * x[k]
                    x[k] = new if gradient[k] > zero or new > eps * x[k] else zero


def without_wrong(Y: Any, wrong: Any, centers: Any, anchors: Any) -> tuple[Any, Any]:
    """Return entries and weights (B, p) in which a wrong entry is the center of its feature, with that of an anchor.

    It is what `algorithm.encoding.without` does of complete samples, in one pass; centers and anchors : (p,).
    """
    filled, weights = np.empty_like(Y), np.empty_like(Y)
    _without_wrong(*inputs(Y, wrong, centers, anchors), filled, weights)
    return filled, weights


@njit(**FAST)
def _without_wrong(Y: Any, wrong: Any, centers: Any, anchors: Any, filled: Any, weights: Any) -> None:
    one = Y.dtype.type(1)
    for b in range(Y.shape[0]):
        for i in range(Y.shape[1]):
            filled[b, i] = centers[i] if wrong[b, i] else Y[b, i]
            weights[b, i] = anchors[i] if wrong[b, i] else one


def predict(X: Any, positions: Any, W: Any) -> Any:
    """Return entries of X W'; positions : (k, 2)."""
    values = np.empty(len(positions), X.dtype)
    _predict(*inputs(X, positions, W), values)
    return values


@njit(**FAST)
def _predict(X: Any, positions: Any, W: Any, values: Any) -> None:
    for i in range(len(values)):
        row, column, total = positions[i, 0], positions[i, 1], X.dtype.type(0)
        for k in range(X.shape[1]):
            total += X[row, k] * W[column, k]
        values[i] = total


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


def laplace_and_uniform(
    values: Any, weights: Any, support: float, width: float, largest: float = 0.0, rounds: int = 0
) -> tuple[float, float, float, float]:
    """Return width and share of the Laplace component among values on [0, support], the weight of these, the support.

    It is that of highest likelihood of a histogram, by expectation-maximisation; see `model.mixture`. Values and
    weights : (k,). Without rounds the width stays. After each round the support follows the width, up to `largest`.
    """
    values, weights = (array.astype(np.float64, copy=False) for array in (values, weights))
    how = (np.empty(BINS), float(support), float(width), float(largest), rounds, MAX_STEPS)
    return _laplace_and_uniform(*inputs(values, weights), *how)  # type: ignore[no-any-return]


@njit(**FAST)
def _laplace_and_uniform(
    values: Any,
    weights: Any,
    counts: Any,
    support: float,
    width: float,
    largest: float,
    rounds: int,
    max_steps: int,
) -> tuple[float, float, float, float]:
    """Count the weights in bins of equal size, (b,) counts of any content, and maximise.

    The mean of the Laplace component is width - support / (exp(support / width) - 1), which is solved for the width by
    iteration; it approaches half of the support as the width grows, and a mean beyond that of the widest one is taken
    for it.
    """
    bins, inside, share = len(counts), 0.0, 0.8
    for _ in range(max(rounds, 1)):
        for i in range(bins):
            counts[i] = 0.0
        inside, share, widest = 0.0, 0.8, WIDEST * support
        for i in range(len(values)):
            if values[i] <= support:
                place = floor(values[i] / support * bins)
                counts[place if place < bins else bins - 1] += weights[i]
                inside += weights[i]
        if inside == 0:
            break
        for _ in range(max_steps):
            height = share / (width * -expm1(-support / width))
            uniform = (1 - share) / support
            belong, moment = 0.0, 0.0
            # From bin to bin the density falls by the same factor; 200 products are as exact as exponentials, and
            # faster.
            laplace, fall = height * exp(-0.5 * support / (bins * width)), exp(-support / (bins * width))
            for i in range(bins):
                part = counts[i] * laplace / (laplace + uniform)
                belong += part
                moment += part * (i + 0.5)
                laplace *= fall
            moment *= support / bins
            last, share = share, belong / inside
            if rounds > 0:
                for _ in range(5):  # without `min`, of which each kind takes a while to compile
                    ratio = support / width
                    width = moment / belong + support / expm1(ratio if ratio < 50.0 else 50.0)
                    width = width if width < widest else widest
            if abs(share - last) <= TOLERANCE:
                break
        if rounds == 0:
            break
        last = support
        support = SUPPORT * width if SUPPORT * width < largest else largest
        if abs(support - last) <= SETTLED * last:
            break
    return width, share, inside, support


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


def order_statistics(A: Any, ranks: Any) -> Any:
    """Return the entry of a given rank of each row; the kernel of `algorithm.encoding.order_statistics`."""
    different = np.unique(ranks)
    few = len(different) <= MOST_PARTITIONS
    ordered = np.partition(A, different, axis=1) if few else np.sort(A, axis=1)
    return np.take_along_axis(ordered, ranks[:, None], axis=1)[:, 0]


def row_medians(A: Any) -> Any:
    """Return the lower median of each row; the kernel of `algorithm.encoding.row_medians`."""
    middle = (A.shape[1] - 1) // 2
    return np.partition(A, middle, axis=1)[:, middle]
