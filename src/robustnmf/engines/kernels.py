"""Numba kernels: faster twins of reference functions, found by name through ``engine.kernel``.

They release the interpreter lock and run in one thread; the engine gives each thread its own block.
Reductions may be reordered (so that they vectorise), but infinities and NaN keep their meaning.
"""

from typing import Any

import numpy as np
from numba import njit

_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


@njit(cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")
def hals(At: Any, Y: Any, Q: Any, linear: Any, X: Any, max_iter: int, tol: float) -> Any:
    """Weighted coordinate descent in residual form; twin of ``robustnmf.solvers.hals``.

    Parameters
    ----------
    At : (r, p); Y, Q : (B, p); linear : (r,), the penalty; X : (B, r), overwritten by the solution; C-contiguous.

    Returns
    -------
    Sweeps made, (B,).
    """
    n_problems, p = Y.shape
    r = At.shape[0]
    sweeps = np.zeros(n_problems, dtype=np.int64)
    e = np.empty(p, dtype=Y.dtype)
    curvature = np.empty(r, dtype=Y.dtype)
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
            curvature[k] = total
        for sweep in range(max_iter):
            largest_change = Y.dtype.type(0)
            largest = Y.dtype.type(0)
            for k in range(r):
                if curvature[k] > 0:
                    a = At[k]
                    descent = -linear[k]
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


@njit(cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")
def gram_descent(G: Any, descent: Any, Z: Any, max_iter: int) -> None:
    """Coordinate descent with one Gram matrix for all rows; twin of ``robustnmf.solvers.shared_gram``.

    Parameters
    ----------
    G : (r, r); descent : (B, r), the negative gradient at Z; Z : (B, r), overwritten; C-contiguous.
    """
    n_problems, r = Z.shape
    g = np.empty(r, dtype=Z.dtype)
    for b in range(n_problems):
        z = Z[b]
        g[:] = descent[b]
        for _ in range(max_iter):
            for k in range(r):
                if G[k, k] > 0:
                    new = max(z[k] + g[k] / G[k, k], Z.dtype.type(0))
                    change = new - z[k]
                    if change != 0:
                        for i in range(r):
                            g[i] -= change * G[k, i]
                        z[k] = new


@njit(cache=True, nogil=True, error_model="numpy")
def weighted_medians(At: Any, Y: Any, M: Any, X: Any, max_iter: int) -> None:
    """Coordinate descent for weighted L1 regression; twin of ``robustnmf.solvers.absolute.WeightedMedian``.

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
