"""Whether a fit that rejects entries predicts the others, or only follows them.

Of few features, a fit that rejects half of the entries of a sample passes through the others, whatever they are: small
residuals say nothing then, and least squares on all entries always seems to damage the fit. Leave-one-out predictions
tell. If least squares on all entries predicts the accepted ones as well as the fit to them does, each by the others,
nothing speaks for rejecting any.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.holdout import Point
from robustnmf.algorithm.least_squares import Judged, LeastSquares
from robustnmf.algorithm.leverage import MOST_LEVERAGE, own_parts
from robustnmf.engines.lazy import chosen_rows
from robustnmf.utils.arrays import Array, Blocks, subsample, to_host

Matrix = NDArray[np.float64]

# Multiplications for the Gram matrices of samples; of larger data some samples are looked at, if that leaves so many.
MOST_PRODUCTS, FEWEST_SAMPLES = 2**24, 64


def is_quick(n_features: int, rank: int) -> bool:
    """Return whether leave-one-out predictions of enough samples are quick to find.

    With more features, an entry has little part in its own prediction, and residuals tell.
    """
    return n_features * rank**2 * FEWEST_SAMPLES <= MOST_PRODUCTS


def unseen_damage(squares: LeastSquares, judged: Judged, some: Point, every: Point) -> float:
    """Return how many times larger leave-one-out residuals of accepted entries are after least squares on all entries.

    Features count alike. It is infinite if entries have different weights: leverages would depend on them.

    Parameters
    ----------
    judged : Judged
        What is accepted.
    some, every : Point
        Where least squares on the accepted entries stands, and that on all.
    """
    n_samples, (n_features, rank) = sum(len(block) for block in squares.V), some.W.shape
    number = -(-n_samples * n_features * rank**2 // MOST_PRODUCTS)

    def chosen(blocks: Blocks) -> Matrix:
        slices = subsample([len(block) for block in blocks], number)
        return _on_host(squares.engine.join(squares.engine.map(chosen_rows, blocks, slices)))

    X, codes_judged = chosen(squares.V), chosen(judged.point.Ht)
    weights = np.ones(X.shape) if squares.M is None else chosen(squares.M)
    if np.any((weights > 0) & (weights != weights.max())):
        return inf
    model = judged.model.placed(_on_host)
    observed = weights > 0
    accepted = observed & (model.ratios(X, codes_judged @ _on_host(judged.point.W).T, np) <= 1)
    if not accepted.any():
        return inf
    before, after = (
        leave_one_out_residuals(X, kept, chosen(point.Ht), _on_host(point.W), number)
        for point, kept in ((some, accepted), (every, observed))
    )
    counts = np.maximum(accepted.sum(axis=0), 1)
    means = np.sum(X, axis=0, where=accepted) / counts
    spreads = np.sum(np.abs(X - means), axis=0, where=accepted) / counts
    shares = np.where(accepted, 1 / np.where(spreads > 0, spreads, np.inf), 0)
    total_before, total_after = (float(np.sum(shares * np.minimum(R, model.largest))) for R in (before, after))
    return total_after / total_before if total_before > 0 else inf


def leave_one_out_residuals(X: Matrix, kept: NDArray[np.bool_], codes: Matrix, W: Matrix, number: int) -> Matrix:
    """Return the magnitudes of residuals of entries (n', m) that are predicted by the others which are kept.

    What has its prediction to itself is predicted by the mean of the feature. The samples are every so many of all.
    """
    own = own_parts(codes, W.T, kept, number)
    means = np.sum(X, axis=0, where=kept) / np.maximum(kept.sum(axis=0), 1)
    residuals = np.abs(X - codes @ W.T) / (1 - np.minimum(own, MOST_LEVERAGE))
    found: Matrix = np.where(own > MOST_LEVERAGE, np.abs(X - means), residuals)
    return found


def _on_host(array: Array) -> Matrix:
    return np.asarray(to_host(array), dtype=np.float64)
