"""How good a factorisation is: against the truth where that is known, and by how far several fits agree."""

import math
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from robustnmf.utils.arrays import Array


class MaskScores(NamedTuple):
    """How well an outlier mask agrees with the true one.

    Parameters
    ----------
    precision : float
        Share of the marked entries that are outliers.
    recall : float
        Share of the outliers that are marked.
    f1 : float
        Harmonic mean of both.
    """

    precision: float
    recall: float
    f1: float


class ComponentMatch(NamedTuple):
    """Which estimated component stands for which true one: true[k] is about scales[k] * estimated[permutation[k]].

    Parameters
    ----------
    permutation : ndarray of int (n_components,)
        The estimated component of each true one.
    scales : ndarray (n_components,)
        Factors by which estimated components are multiplied.
    similarities : ndarray (n_components,)
        Cosines of matched components.
    """

    permutation: NDArray[np.intp]
    scales: NDArray[np.float64]
    similarities: NDArray[np.float64]


def relative_error(clean: ArrayLike, estimate: ArrayLike) -> float:
    """Return ||clean - estimate|| / ||clean|| in the Frobenius norm, the error of the paper's tables.

    Parameters
    ----------
    clean : array-like (n_samples, n_features)
        The true matrix, not zero.
    estimate : array-like (n_samples, n_features)
        What was found.

    Returns
    -------
    float
        The relative error.

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

    Parameters
    ----------
    truth : array-like of bool
        True where an entry is an outlier.
    mask : array-like of bool
        True where one was found; of the same shape.

    Returns
    -------
    MaskScores
        Precision, recall and F1.

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


def clustering_accuracy(labels_true: Iterable[Hashable], labels_pred: Iterable[Hashable]) -> float:
    """Return the share of samples whose cluster is matched with their class, for the best matching.

    Every cluster is matched with at most one class and every class with at most one cluster (Hungarian method). Where
    there are more clusters than classes, or fewer, samples of those left over count as wrong.

    Parameters
    ----------
    labels_true, labels_pred : iterable of hashable, length n
        Class and cluster of each sample; names do not matter, only which samples share one.

    Returns
    -------
    float
        The share, from 0 to 1.

    Examples
    --------
    >>> clustering_accuracy(["cat", "cat", "dog", "dog"], [1, 1, 0, 1])
    0.75
    """
    table = contingency_matrix(*_label_codes(labels_true, labels_pred))
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / table.sum())


def normalized_mutual_information(labels_true: Iterable[Hashable], labels_pred: Iterable[Hashable]) -> float:
    """Return the mutual information of two labellings over the arithmetic mean of their entropies.

    This is scikit-learn's ``normalized_mutual_info_score``, for labels of any type: 1 for the same partition, and 0 for
    independent ones.

    Parameters
    ----------
    labels_true, labels_pred : iterable of hashable, length n
        Class and cluster of each sample; names do not matter, only which samples share one.

    Returns
    -------
    float
        The normalised information, from 0 to 1.

    Examples
    --------
    >>> normalized_mutual_information(["cat", "cat", "dog", "dog"], [1, 1, 0, 0])
    1.0
    """
    return float(normalized_mutual_info_score(*_label_codes(labels_true, labels_pred), average_method="arithmetic"))


def match_components(true: ArrayLike, estimated: ArrayLike) -> ComponentMatch:
    """Return which estimated component belongs to each true one, with scales and cosine similarities.

    A factorisation fixes its components only up to order and scale. The matching maximises the sum of the cosine
    similarities (Hungarian method); the scale is the best one in the sense of least squares.

    Parameters
    ----------
    true : array-like of shape (n_components, n_features)
        The components to be found, in rows like ``components_``.
    estimated : array-like of shape (n_estimated, n_features)
        The components found, at least as many.

    Returns
    -------
    ComponentMatch
        The matching.

    Examples
    --------
    >>> match = match_components([[1.0, 0.0], [0.0, 3.0]], [[0.0, 1.0], [2.0, 0.0]])
    >>> match.permutation, match.scales, match.similarities
    (array([1, 0]), array([0.5, 3. ]), array([1., 1.]))
    """
    true, estimated = _spectra(true, "true", ndim=(2,)), _spectra(estimated, "estimated", ndim=(2,))
    if true.shape[1] != estimated.shape[1]:
        raise ValueError(
            f"Both must have the same number of features (columns); got {true.shape[1]} and {estimated.shape[1]}."
        )
    if len(true) > len(estimated):
        raise ValueError(
            f"There must be an estimated component for every true one; got {len(estimated)} for {len(true)}."
        )
    (directions_true, norms_true), (directions, norms) = _polar(true), _polar(estimated)
    cosines = directions_true @ directions.T
    rows, permutation = linear_sum_assignment(cosines, maximize=True)
    similarities = np.clip(cosines[rows, permutation], -1, 1)
    return ComponentMatch(permutation, similarities * norms_true / norms[permutation], similarities)


def spectral_angle(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the angle between two spectra, in radians, or between the rows of two matrices.

    The angle is 0 for spectra that differ by a positive factor and pi / 2 for orthogonal ones.

    Parameters
    ----------
    a, b : array-like of shape (n_features,) or (n_spectra, n_features)
        Spectra of the same shape, none of them zero.

    Returns
    -------
    float or ndarray of shape (n_spectra,)
        A number for two vectors, one number for each row of two matrices.

    Examples
    --------
    >>> round(spectral_angle([1.0, 0.0], [2.0, 2.0]), 6)
    0.785398
    >>> spectral_angle([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1e-12], [0.0, 5.0]])
    array([1.e-12, 0.e+00])
    """
    a, b = _spectra(a, "a", ndim=(1, 2)), _spectra(b, "b", ndim=(1, 2))
    if a.shape != b.shape:
        raise ValueError(f"Both spectra must have the same shape; got {a.shape} and {b.shape}.")
    (a, _), (b, _) = _polar(a), _polar(b)
    # Half of the angle has this tangent (Kahan); the arc cosine of a.b would lose all angles below 1e-8.
    angle = 2 * np.arctan2(np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1))
    return angle if np.ndim(angle) else float(angle)


def cophenetic_correlation(together: ArrayLike) -> float:
    """Return how well a consensus matrix falls into groups (Brunet et al. 2004): 1 if all fits agree on them.

    It is the correlation of the distances ``1 - together`` with those in the tree of their average linkage. Brunet et
    al. take the rank at which it begins to fall.

    Parameters
    ----------
    together : array-like (n, n)
        Share of fits in which two samples are in the same group, as in `robustnmf.selection.stability.Consensus`.

    Returns
    -------
    float
        The correlation.

    References
    ----------
    J.-P. Brunet, P. Tamayo, T. R. Golub, J. P. Mesirov, "Metagenes and molecular pattern discovery using matrix
    factorization", PNAS, 2004.

    Examples
    --------
    >>> cophenetic_correlation([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    1.0
    """
    shares = _consensus_matrix(together)
    distances = squareform(1 - shares, checks=False)
    if np.ptp(distances) < 1e-12:  # one group, or none: a correlation with a constant is not defined
        return 1.0
    return float(cophenet(linkage(distances, method="average"), distances)[0])


def dispersion(together: ArrayLike) -> float:
    """Return how sure a consensus matrix is (Kim and Park 2007): 1 if all its entries are 0 or 1, 0 if all are 1/2.

    Parameters
    ----------
    together : array-like (n, n)
        Share of fits in which two samples are in the same group.

    Returns
    -------
    float
        The dispersion, from 0 to 1.

    References
    ----------
    H. Kim, H. Park, "Sparse non-negative matrix factorizations via alternating non-negativity-constrained least squares
    for microarray data analysis", Bioinformatics, 2007.

    Examples
    --------
    >>> dispersion([[1.0, 0.5], [0.5, 1.0]])
    0.5
    """
    return float(np.mean(4 * (_consensus_matrix(together) - 0.5) ** 2))


def feature_scores(components: ArrayLike) -> NDArray[np.float64]:
    """Return how specific each feature is to one component (Kim and Park 2007), (n_features,).

    The score is one minus the entropy of the feature's shares in the components, relative to the largest possible: 1
    for a feature of one component, 0 for one that is equal in all, and 0 for one that is zero in all.

    Parameters
    ----------
    components : array-like (n_components, n_features)
        At least two components, such as ``components_``.

    Returns
    -------
    ndarray (n_features,)
        The scores, from 0 to 1.

    Examples
    --------
    >>> feature_scores([[1.0, 0.5, 0.0], [1.0, 0.0, 0.0]])
    array([0., 1., 0.])
    """
    values = _components(components)
    totals = values.sum(axis=0)
    shares = values / np.where(totals > 0, totals, 1)
    logarithms = np.log2(np.where(shares > 0, shares, 1))
    scores = 1 + (shares * logarithms).sum(axis=0) / np.log2(len(values))
    return np.where(totals > 0, np.clip(scores, 0, 1), 0.0)


def specific_features(components: ArrayLike) -> NDArray[np.bool_]:
    """Return which features are specific to one component (Kim and Park 2007), (n_features,).

    They have a score above the median by more than three median absolute deviations, and a largest entry above the
    median entry of the components.

    Parameters
    ----------
    components : array-like (n_components, n_features)
        At least two components, such as ``components_``.

    Returns
    -------
    ndarray of bool (n_features,)
        True for specific features.
    """
    values, scores = _components(components), feature_scores(components)
    middle = np.median(scores)
    high = scores > middle + 3 * np.median(np.abs(scores - middle))
    return np.asarray(high & (values.max(axis=0) > np.median(values)))


def _consensus_matrix(together: ArrayLike) -> NDArray[np.float64]:
    """Return a consensus matrix, if it is one."""
    shares = np.asarray(together, dtype=np.float64)
    if shares.ndim != 2 or shares.shape[0] != shares.shape[1] or len(shares) < 2:
        raise ValueError(f"together must be a square matrix of two samples or more; got shape {shares.shape}.")
    if not (np.isfinite(shares).all() and shares.min() >= 0 and shares.max() <= 1 and np.allclose(shares, shares.T)):
        raise ValueError("together must be symmetric, with shares of fits from 0 to 1.")
    return shares


def _components(components: ArrayLike) -> NDArray[np.float64]:
    """Return two or more non-negative components."""
    values = np.asarray(components, dtype=np.float64)
    if values.ndim != 2 or len(values) < 2 or not values.size:
        raise ValueError(f"components must be a matrix with two rows or more; got shape {values.shape}.")
    if not (np.isfinite(values).all() and values.min() >= 0):
        raise ValueError("components must be finite and non-negative; got NaN, infinity or a negative number.")
    return values


def _spectra(values: ArrayLike, name: str, ndim: tuple[int, ...]) -> NDArray[np.float64]:
    """Return vectors along the last axis as an array, if every one of them has a direction."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in ndim:
        kind = "a matrix with a vector in each row" if ndim == (2,) else "a vector, or a matrix with one in each row"
        raise ValueError(f"{name} must be {kind}; got an array of shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty; got an array of shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got NaN or infinity.")
    if not array.any(axis=-1).all():
        raise ValueError(f"{name} holds a vector of zeros, whose angle to another is not defined.")
    return array


def _polar(array: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return vectors along the last axis as vectors of norm 1 and their norms, whatever their magnitude."""
    peak = np.abs(array).max(axis=-1, keepdims=True)  # without it, squares could overflow or vanish
    norm = np.linalg.norm(array / peak, axis=-1, keepdims=True)
    return array / peak / norm, (peak * norm)[..., 0]


def _label_codes(*labellings: Iterable[Hashable]) -> tuple[NDArray[np.intp], ...]:
    """Return each labelling with its labels replaced by 0, 1, ... in order of appearance."""
    lists = [_label_list(labels) for labels in labellings]
    if len({len(labels) for labels in lists}) > 1:
        raise ValueError(f"Both labellings must have the same length; got {' and '.join(str(len(x)) for x in lists)}.")
    if not lists[0]:
        raise ValueError("Labels must not be empty; got none.")
    numbers = [{label: code for code, label in enumerate(dict.fromkeys(labels))} for labels in lists]
    return tuple(
        np.array([code[x] for x in labels], dtype=np.intp) for code, labels in zip(numbers, lists, strict=True)
    )


def _label_list(labels: Iterable[Hashable]) -> list[Hashable]:
    """Return labels as a list, if each can be told apart from the others."""
    if isinstance(labels, str) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) != 1:
        raise ValueError(f"Labels must be a sequence with one label for each sample; got {labels!r}.")
    # Elements of a tensor are tensors, no two of which are equal as keys; of an array, tolist is faster.
    items = list(labels.tolist() if hasattr(labels, "tolist") else labels)
    for item in items:
        if not isinstance(item, Hashable):
            raise ValueError(f"Labels must be one-dimensional, one for each sample; got {item!r}.")
        if isinstance(item, float | np.floating) and not math.isfinite(item):
            raise ValueError(f"Labels must be finite; got {item!r}.")
    return items
