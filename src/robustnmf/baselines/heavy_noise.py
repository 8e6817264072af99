"""NMF under heavy noise: thresholding, a truncated SVD, clusters of columns, averages (TSVDNMF).

The model is V = W H + N with columns of H that sum to about 1, and only averages of noise need be small:

    || (1 / |T|) sum_{j in T} n_j ||_1 <= epsilon        for every set T of at least epsilon n columns,

so that every single column of N may be far larger than that of W H. In exchange W and H must be dominant: every basis
vector l has features that are clearly larger in it than in the others, every column has a basis vector that outweighs
the rest, and some columns are nearly pure. An average over many columns dominated by the same basis vector then tells
that vector; the algorithm finds them, without ever trusting one column.

1. Threshold: zeta_i = alpha nu_i with nu_i the value that a share `top_share` of row i reaches, and
   d_ij = sqrt(zeta_i) if v_ij >= zeta_i, else 0. Then features in ascending order of support prune those whose support
   contains theirs and is larger by `prune_share` n columns, down to the smaller support.
2. Project D on its first r left singular vectors and cluster the projected columns; then Lloyd's algorithm on the
   columns of D itself, from the means of these clusters.
3. Dominant features of cluster l: g(i, l) is the floor(fractile n / 2r)-th largest v_ij within the cluster, and
   feature i is in J_l if g(i, l) > ratio * g(i, l') for all other l'.
4. w_l is the average of the floor(average n / 2r) columns of V with the largest sum over J_l.

Steps, order and default parameters are those of the authors' published program. What differs, and why:

- Step 2 clusters by k-means++ and Lloyd with restarts, the alternative their program keeps, where it calls BIRCH: the
  paper asks for any approximate k-means, and this one needs no further program.
- A cluster without dominant features takes the average of its members, as theirs; so does one whose dominant features
  hold almost nothing of the data, which is measured against the data's sum here, so that the units do not matter.
- Rows and columns of zeros, and ranks above the number of distinct columns, have answers here.

References
----------
C. Bhattacharyya, N. Goyal, R. Kannan and J. Pani, "Non-negative matrix factorization under heavy noise", ICML 2016,
PMLR 48:1426-1434: the method, and the authors' program, github.com/jagdeeppani/tsvdnmf.

T. Bansal, C. Bhattacharyya and R. Kannan, "A provable SVD-based algorithm for learning topics in dominant admixture
corpus", NIPS 2014: the thresholds and dominant features ("catchwords") that it builds on.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from robustnmf.baselines.near_separable import Matrix, check_data, check_rank, encode, floating

Labels = NDArray[np.intp]

# A cluster's dominant features must hold more than this share of the data's sum, divided by 2r (published).
_LEAST_SHARE = 0.001


class HeavyNoiseNMF(NamedTuple):
    """A factorisation whose basis vectors are averages of columns of the data."""

    W: Matrix
    """(m, r), averages of columns of V."""
    H: Matrix
    """(r, n), non-negative least squares coefficients of every column."""
    clusters: Labels
    """(n,), the basis vector that dominates a column; -1 for columns that lie below every threshold."""
    features: NDArray[np.bool_]
    """(m, r), the dominant features of every basis vector."""
    members: NDArray[np.bool_]
    """(n, r), the columns that every basis vector is the average of."""


def heavy_noise_nmf(
    V: ArrayLike,
    rank: int,
    rng: np.random.Generator,
    *,
    top_share: float = 0.04,
    alpha: float = 0.9,
    prune_share: float = 0.02,
    prune_tolerance: int = 15,
    fractile: float = 1 / 3,
    ratio: float = 1.05,
    average: float = 1.1,
    n_starts: int = 5,
) -> HeavyNoiseNMF:
    """Factorise V under noise that only averages out over many columns.

    The module's docstring gives the model and the steps. Columns of V should be of comparable size, because the
    largest are averaged; the paper's have sum 1.

    Parameters
    ----------
    V : array_like of shape (m, n)
        Non-negative data.
    rank : int
        Number of basis vectors r, at most n.
    rng : numpy.random.Generator
        Draws the starts of k-means: the same generator state gives the same result.
    top_share : float
        Share of the columns that reach the threshold of a feature before it is lowered by `alpha` (eps5 in the
        published program). The default was made for ranks of ten and more; for fewer, 1 / (2 rank) sets a threshold
        that half of the columns dominated by a feature's vector can reach, and the errors are smaller.
    alpha : float
        Factor of the thresholds (alpha5).
    prune_share : float
        A support is pruned if it is larger by this share of the columns than one that it contains (beta5).
    prune_tolerance : int
        So many columns of the smaller support may be missing in the larger; supports of at most twice as many columns
        prune nothing (tolerance).
    fractile : float
        Which order statistic g(i, l) is (eps2).
    ratio : float
        By how much a dominant feature is larger than in any other cluster (rho).
    average : float
        How many columns make up a basis vector (eps3).
    n_starts : int
        Starts of k-means, of which the best is used.

    Returns
    -------
    HeavyNoiseNMF
        W (m, r) and H (r, n) in the dtype of V, the clusters, dominant features and averaged columns.

    Notes
    -----
    Averages of at least n / 2r columns mix some of the other basis vectors into each, even without noise, unless so
    many columns are pure. Where the noise is of the same moderate size everywhere, least squares averages it out as
    well and has no such error; this method pays where a few entries or columns would dominate a sum of squares.

    Examples
    --------
    Every entry is kept with probability 0.3 only, and then magnified by 1 / 0.3.

    >>> rng = np.random.default_rng(0)
    >>> basis = np.kron(np.eye(2), np.full((3, 1), 1 / 3))
    >>> clean = basis @ rng.dirichlet([0.2, 0.2], 2000).T
    >>> V = clean * (rng.random(clean.shape) < 0.3) / 0.3
    >>> result = heavy_noise_nmf(V, rank=2, rng=rng)
    >>> W = result.W[:, np.argsort(-result.W[0])]
    >>> bool(np.abs(W / W.sum(axis=0) - basis).sum(axis=0).max() < 0.15)
    True
    """
    data = check_data(V, "heavy_noise_nmf")
    rank = check_rank(rank, data)
    for name, value in (("top_share", top_share), ("alpha", alpha), ("fractile", fractile), ("average", average)):
        if not 0 < value < np.inf:
            raise ValueError(f"{name} must be positive and finite; got {value!r}.")
    if top_share > 1 or n_starts < 1:
        raise ValueError(f"top_share must be at most 1 and n_starts at least 1; got {top_share!r} and {n_starts!r}.")
    if not data.any():
        raise ValueError(f"V of heavy_noise_nmf must have a positive entry; all {data.size} are zero.")
    n = data.shape[1]

    D = _prune(_threshold(data, top_share, alpha), prune_share * n, prune_tolerance)
    used = np.asarray(D.any(axis=0))
    if used.sum() < rank:  # too few columns reach a threshold to fill the clusters
        used[:] = True
    clusters = np.full(n, -1, dtype=np.intp)
    clusters[used] = _cluster(D[:, used], rank, rng, n_starts)

    features = _dominant_features(data, clusters, rank, fractile, ratio)
    members = _purest_columns(data, clusters, features, average)
    W = data @ (members / members.sum(axis=0))
    dtype = floating(V)
    return HeavyNoiseNMF(W.astype(dtype), encode(data, W).astype(dtype), clusters, features, members)


def _threshold(V: Matrix, top_share: float, alpha: float) -> Matrix:
    """Return D, with sqrt(zeta_i) where v_ij >= zeta_i and 0 elsewhere."""
    rank_of_nu = min(int(np.ceil(top_share * V.shape[1])), V.shape[1])
    nu = -np.partition(-V, rank_of_nu - 1, axis=1)[:, rank_of_nu - 1]
    smallest = np.min(V, axis=1, where=V > 0, initial=np.inf)  # of sparse rows, the smallest positive value
    zeta = alpha * np.where(nu > 0, nu, np.where(np.isfinite(smallest), smallest, 0.0))
    return np.where(V >= zeta[:, None], np.sqrt(zeta)[:, None], 0.0)


def _prune(D: Matrix, excess: float, tolerance: int) -> Matrix:
    """Return D with supports that contain a much smaller one cut down to it.

    Such a feature is large in several clusters at once and would blur them; cut down it speaks for one.
    """
    support = D > 0
    sizes = support.sum(axis=1)
    counts = support.astype(np.float64)
    common = counts @ counts.T
    features = np.argsort(sizes, kind="stable")
    features = features[sizes[features] > 2 * tolerance]
    D = D.copy()
    while features.size:
        small, features = features[0], features[1:]
        contains = (sizes[features] >= sizes[small] + excess) & (common[small, features] >= sizes[small] - tolerance)
        D[features[contains]] *= support[small]
        features = features[~contains]
    return D


def _cluster(D: Matrix, rank: int, rng: np.random.Generator, n_starts: int) -> Labels:
    """Return the cluster of every column of D, none of them empty."""
    points = _projection(D, rank).T
    runs = [_lloyd(points, _spread(points, rank, rng)) for _ in range(n_starts)]
    labels, _ = min(runs, key=lambda run: run[1])
    labels, _ = _lloyd(D.T, _means(D.T, labels, rank, _means(D.T, np.zeros_like(labels), rank)))
    sizes = np.bincount(labels, minlength=rank)
    for empty in np.flatnonzero(sizes == 0):  # published: the first column of the largest cluster moves over
        largest = int(np.argmax(np.bincount(labels, minlength=rank)))
        labels[np.flatnonzero(labels == largest)[0]] = empty
    return labels


def _projection(D: Matrix, rank: int) -> Matrix:
    """Return the coordinates of the columns of D in its first `rank` left singular vectors."""
    m, n = D.shape
    rank = min(rank, m, n)
    if m <= n:
        _, vectors = eigh(D @ D.T, subset_by_index=[m - rank, m - 1])
        return np.asarray(vectors.T @ D)
    values, vectors = eigh(D.T @ D, subset_by_index=[n - rank, n - 1])
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T)


def _spread(points: Matrix, count: int, rng: np.random.Generator) -> Matrix:
    """Return `count` of the points as centres, by k-means++."""
    centres = [points[rng.integers(len(points))]]
    squares = np.full(len(points), np.inf)
    while len(centres) < count:
        squares = np.minimum(squares, np.sum((points - centres[-1]) ** 2, axis=1))
        total = squares.sum()
        centres.append(points[rng.choice(len(points), p=squares / total if total > 0 else None)])
    return np.array(centres)


def _lloyd(points: Matrix, centres: Matrix, max_iter: int = 300) -> tuple[Labels, float]:
    """Return the clusters of the points and their squared distance from the centres, by Lloyd's algorithm."""
    labels = np.full(len(points), -1, dtype=np.intp)
    norms = np.sum(points**2, axis=1)
    cost = np.inf
    for _ in range(max_iter):
        squares = norms[:, None] - 2 * points @ centres.T + np.sum(centres**2, axis=1)
        new = np.argmin(squares, axis=1)
        cost = float(np.sum(np.take_along_axis(squares, new[:, None], axis=1)))
        if np.array_equal(new, labels):
            break
        labels = new
        centres = _means(points, labels, len(centres), centres)
    return labels, cost


def _means(points: Matrix, labels: Labels, count: int, otherwise: Matrix | None = None) -> Matrix:
    """Return the means of the clusters; of an empty one its row of `otherwise`, or zero."""
    one_hot = np.eye(count)[:, labels]
    sizes = one_hot.sum(axis=1, keepdims=True)
    means = one_hot @ points / np.maximum(sizes, 1)
    return means if otherwise is None else np.where(sizes > 0, means, otherwise)


def _dominant_features(V: Matrix, clusters: Labels, rank: int, fractile: float, ratio: float) -> NDArray[np.bool_]:
    """Return which features (m) are clearly larger in one cluster (r) than in all others."""
    count = max(int(fractile * V.shape[1] / (2 * rank)), 1)
    g = np.empty((V.shape[0], rank))
    for cluster in range(rank):
        part = V[:, clusters == cluster]
        position = part.shape[1] - min(count, part.shape[1])
        g[:, cluster] = np.partition(part, position, axis=1)[:, position]
    features = np.zeros(g.shape, dtype=np.bool_)
    for cluster in range(rank if rank > 1 else 0):
        others = np.delete(g, cluster, axis=1)
        features[:, cluster] = g[:, cluster] > ratio * others.max(axis=1)
    return features


def _purest_columns(V: Matrix, clusters: Labels, features: NDArray[np.bool_], average: float) -> NDArray[np.bool_]:
    """Return the columns (n) to average for every basis vector (r)."""
    n, rank = V.shape[1], features.shape[1]
    count = min(max(int(average * n / (2 * rank)), 1), n)
    members = np.zeros((n, rank), dtype=np.bool_)
    for cluster in range(rank):
        dominant = V[features[:, cluster]].sum(axis=0)
        if dominant.sum() > _LEAST_SHARE * V.sum() / (2 * rank):
            members[np.argsort(-dominant, kind="stable")[:count], cluster] = True
        else:
            members[clusters == cluster, cluster] = True
    return members
