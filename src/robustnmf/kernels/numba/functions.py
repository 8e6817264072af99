"""Kernels of solvers and of statistics, in Numba."""

from math import sqrt
from typing import Any

import numpy as np
from numba import njit

from robustnmf.kernels.numba.options import EXACT, FAST, contiguous


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
