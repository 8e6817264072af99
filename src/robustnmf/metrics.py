"""How good a factorisation is, where the truth is known."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class MaskScores(NamedTuple):
    """How well an outlier mask agrees with the true one."""

    precision: float
    recall: float
    f1: float


def relative_error(clean: ArrayLike, estimate: ArrayLike) -> float:
    """Return ||clean - estimate|| / ||clean|| in the Frobenius norm, the error of the paper's tables.

    Examples
    --------
    >>> relative_error([[3.0, 4.0]], [[3.0, 3.0]])
    0.2
    """
    clean, estimate = np.asarray(clean, dtype=np.float64), np.asarray(estimate, dtype=np.float64)
    if clean.shape != estimate.shape:
        raise ValueError(f"Both matrices must have the same shape; got {clean.shape} and {estimate.shape}.")
    norm = np.linalg.norm(clean)
    if norm == 0:
        raise ValueError("The relative error to a clean matrix of zeros is not defined.")
    return float(np.linalg.norm(clean - estimate) / norm)


def outlier_scores(truth: ArrayLike, mask: ArrayLike) -> MaskScores:
    """Return precision, recall and F1 of an outlier mask; 0 where nothing was, or should have been, found.

    Examples
    --------
    >>> outlier_scores([True, True, False, False], [True, False, True, False])
    MaskScores(precision=0.5, recall=0.5, f1=0.5)
    """
    truth, mask = np.asarray(truth, dtype=bool), np.asarray(mask, dtype=bool)
    if truth.shape != mask.shape:
        raise ValueError(f"Both masks must have the same shape; got {truth.shape} and {mask.shape}.")
    hits, found, there = int((truth & mask).sum()), int(mask.sum()), int(truth.sum())
    return MaskScores(hits / max(found, 1), hits / max(there, 1), 2 * hits / max(found + there, 1))
