"""The part that entries have in their own predictions by least squares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.utils.arrays import Array, Namespace, device

# The part that an entry has in its own prediction is limited: beyond this, the prediction without it would be a guess.
MOST_LEVERAGE = 0.9
# An entry whose prediction is told by nothing would have an infinite leverage; so much is enough.
UNBOUNDED = 1e4


def leverages(W: Array, xp: Namespace) -> Array:
    """Return the part that an entry of each feature has in its own prediction by least squares, (m,)."""
    return xp.sum((W @ inverse(W.T @ W, xp)) * W, axis=1)


def without_own(predicted: Array, Y: Array, leverage: Array, xp: Namespace) -> Array:
    """Return predictions of entries that had a part in them, its leverage, without that part; not negative."""
    leverage = xp.where(leverage < MOST_LEVERAGE, leverage, MOST_LEVERAGE)
    odds = leverage / (1 - leverage)
    alone = predicted * (1 + odds) - odds * Y
    return xp.maximum(alone, xp.zeros_like(odds))


def inverse(gram: Array, xp: Namespace) -> Array:
    """Return the inverse of a Gram matrix (r, r), to which a little is added: it may be singular."""
    diagonal = xp.linalg.diagonal(gram)
    little = float(xp.finfo(gram.dtype).eps) ** 0.6 * xp.sum(diagonal)
    eye = xp.eye(gram.shape[0], dtype=gram.dtype, device=device(gram))
    return xp.linalg.inv(gram + xp.where(little > 0, little, 1) * eye)


def sample_factors(M: Array, anchors: Array, dtype: Any, xp: Namespace) -> Array:
    """Return how many times larger the part of an entry in its sample is than that in a complete one, (B,).

    Entries that are missing count with the weight of their anchors, (m,).
    """
    observed = xp.astype(M > 0, dtype)
    counts = xp.sum(observed, axis=1) + xp.sum(anchors) - xp.sum(observed * anchors, axis=1)
    return M.shape[1] / xp.where(counts > 0, counts, 1)


def entry_leverages(A: NDArray[Any], accepted: NDArray[Any]) -> NDArray[Any]:
    """Return the part that entries have in their predictions by least squares of the accepted ones of each row, (n, p).

    That of an entry which is not accepted is what it would have beside the others, and may exceed 1.

    Parameters
    ----------
    A : (p, r), not negative; accepted : (n, p) of bool.
    """
    sizes = np.max(A, axis=0, initial=0)
    A = A.astype(np.float64) / np.where(sizes > 0, sizes, 1)
    r = A.shape[1]
    i, j = np.triu_indices(r)
    products = A[:, i] * A[:, j]
    upper = accepted.astype(A.dtype) @ products
    grams = np.empty((len(accepted), r, r), dtype=A.dtype)
    grams[:, i, j] = grams[:, j, i] = upper
    traces = np.trace(grams, axis1=1, axis2=2)
    grams += np.where(traces > 0, traces * (1e-10 / r), 1)[:, None, None] * np.eye(r)
    inverses = np.linalg.inv(grams)[:, i, j] * np.where(i == j, 1, 2)
    found = np.where(traces[:, None] > 0, inverses @ products.T, UNBOUNDED)
    leverages: NDArray[Any] = np.clip(found, 0, UNBOUNDED)
    return leverages
