"""The part that entries have in their own predictions by least squares."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.utils.arrays import Array, Namespace, device
from robustnmf.utils.slices import cuts_of

# The part that an entry has in its own prediction is limited: beyond this, the prediction without it would be a guess.
MOST_LEVERAGE = 0.9
# An entry whose prediction is told by nothing would have an infinite leverage; so much is enough.
UNBOUNDED = 1e4
# Of data of which some samples are looked at, they tell the regressions of features if there are so many of them.
ENOUGH_SAMPLES = 5
# Numbers of Gram matrices, or products of columns, that are worked on at a time.
GRAM_ENTRIES = 2**22


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


def entry_leverages(A: NDArray[Any], accepted: NDArray[Any], positive: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the part that entries have in their predictions by least squares of the accepted ones of each row, (n, p).

    That of an entry which is not accepted is what it would have beside the others, and may exceed 1.

    Parameters
    ----------
    A : (p, r), not negative; accepted : (n, p) of bool.
    positive : (n, r) of bool or None
        Coefficients of each row that are positive, if those that are zero are to stay so; None lets all of them vary.
    """
    sizes = np.max(A, axis=0, initial=0)
    A = A.astype(np.float64) / np.where(sizes > 0, sizes, 1)
    found = np.empty(accepted.shape)
    for rows in cuts_of(len(accepted), A.shape[1] ** 2, GRAM_ENTRIES):
        found[rows] = _leverages_in_rows(A, accepted[rows], None if positive is None else positive[rows])
    return found


def leverages_of_fit(
    codes: NDArray[Any], components: NDArray[Any], accepted: NDArray[Any], every: int = 1, *, positive: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the leverage of each entry in the regression of its sample and in that of its feature, (n', m) each.

    Few of many samples do not tell the regression of a feature; that has many entries then, and little leverage.

    Parameters
    ----------
    codes : (n', r); components : (r, m); accepted : (n', m) of bool.
    every : int
        The samples are every so many of the data; the others count as well.
    positive : bool
        Whether coefficients that are zero stay so.
    """
    by_sample = entry_leverages(components.T, accepted, codes > 0 if positive else None)
    if every > 1 and len(codes) < ENOUGH_SAMPLES * len(components):
        return by_sample, np.zeros_like(by_sample)
    by_feature = entry_leverages(codes, accepted.T, components.T > 0 if positive else None).T
    return by_sample, by_feature / every


def own_parts(codes: NDArray[Any], components: NDArray[Any], kept: NDArray[Any], every: int = 1) -> NDArray[Any]:
    """Return the part that entries have in their predictions, by their samples and features together, (n', m).

    Coefficients that are zero stay so. The parameters are those of `leverages_of_fit`.
    """
    by_sample, by_feature = leverages_of_fit(codes, components, kept, every, positive=True)
    return np.asarray(by_sample + by_feature - by_sample * by_feature)


def _leverages_in_rows(A: NDArray[Any], accepted: NDArray[Any], positive: NDArray[Any] | None) -> NDArray[Any]:
    """Return the same of so few rows that their Gram matrices, and some more of that size, take little memory."""
    (p, r), (i, j) = A.shape, np.triu_indices(A.shape[1])
    pairs = [(i[some], j[some]) for some in cuts_of(len(i), p, GRAM_ENTRIES)]
    kept = accepted.astype(A.dtype)
    grams = np.empty((len(kept), r, r))
    for a, b in pairs:
        grams[:, a, b] = grams[:, b, a] = kept @ (A[:, a] * A[:, b])
    traces = np.trace(grams, axis1=1, axis2=2)
    grams[:, range(r), range(r)] += np.where(traces > 0, traces * (1e-10 / r), 1)[:, None]
    varies = True if positive is None else positive[:, :, None] & positive[:, None, :]
    inverses = np.where(varies, np.linalg.inv(np.where(varies, grams, np.eye(r))), 0)
    found = np.zeros(kept.shape)
    for a, b in pairs:
        found += (inverses[:, a, b] * np.where(a == b, 1, 2)) @ (A[:, a] * A[:, b]).T
    leverages: NDArray[Any] = np.where(traces[:, None] > 0, np.clip(found, 0, UNBOUNDED), UNBOUNDED)
    return leverages
