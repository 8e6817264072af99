"""Numba kernels: faster twins of reference functions, found by name through ``engine.kernel``.

They release the interpreter lock and run in one thread; the engine gives each thread its own block.
Reductions may be reordered (so that they vectorise), but infinities and NaN keep their meaning.
"""

from typing import Any

import numpy as np
from numba import njit

_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


@njit(cache=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")
def hals(At: Any, Y: Any, Q: Any, X: Any, max_iter: int, tol: float) -> Any:
    """Weighted coordinate descent in residual form; twin of ``robustnmf.solvers.hals``.

    Parameters
    ----------
    At : (r, p); Y, Q : (B, p); X : (B, r), overwritten by the solution; all C-contiguous.

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
                    descent = Y.dtype.type(0)
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
