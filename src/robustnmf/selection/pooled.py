"""Components that many fits have in common: pooled, freed of outlying ones, grouped and reduced to medians (cNMF)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances, silhouette_score

from robustnmf.algorithm.clones import at_least, given, quietly, variant, where_data_is, workers_for
from robustnmf.selection.rank import default_if_none
from robustnmf.utils.arrays import to_host
from robustnmf.utils.parallel import delayed, run_all
from robustnmf.utils.random_state import generator, seeds

Matrix = NDArray[Any]


@dataclass(frozen=True)
class Pooled:
    """Components of many fits.

    Parameters
    ----------
    components : ndarray (rank, n_features)
        Median of each group, with sum 1; pass them to `RobustNMF` as ``fixed_components`` for their codes. The group
        with most members is first.
    spectra : ndarray (n_init * rank, n_features)
        Components of all fits, each with norm 1.
    local_density : ndarray (n_init * rank,)
        Mean distance of each of them to its nearest neighbours: large if other fits have none like it.
    kept : ndarray of bool (n_init * rank,)
        Which are near enough to others.
    groups : ndarray of int (n_init * rank,)
        The component that each belongs to, -1 if it was not kept.
    silhouette : float
        Mean silhouette of the groups: 1 if they are apart. NaN with one group.
    """

    components: Matrix
    spectra: Matrix
    local_density: Matrix
    kept: Matrix
    groups: Matrix
    silhouette: float


def pool_components(
    X: Any,
    rank: int,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    n_init: int = 20,
    density_threshold: float = 0.5,
    neighbours: float = 0.3,
    estimator: Any = None,
    random_state: Any = None,
    n_jobs: int | None = None,
) -> Pooled:
    """Fit from several starts, and return the components that they have in common.

    All components are pooled. One whose mean distance to its nearest neighbours is above `density_threshold` is left
    out: few fits have it. The others are grouped by k-means, and the median of each group is a component.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        Non-negative data; NaN means missing.
    rank : int
        Number of components.
    weights, uncertainties : array-like (n_samples, n_features) or None
        As for `RobustNMF.fit`.
    n_init : int
        Number of fits, at least 2.
    density_threshold : float
        Largest mean distance to neighbours, between components of norm 1: from 0 to 2, which keeps all.
    neighbours : float
        Number of neighbours as a share of `n_init`, in (0, 1].
    estimator : estimator or None
        What is fitted, by default `TruncatedCauchyNMF`. Starts of ``init="random"`` differ more than its own.
    random_state : int, RandomState, Generator or None
        Seed of the starts and of the groups.
    n_jobs : int or None
        Number of fits that run in parallel, as in joblib; None means 1. For a GPU see the guide, *Many fits*.

    Returns
    -------
    Pooled
        The components, and what they come from.

    References
    ----------
    D. Kotliar et al., "Identifying gene expression programs of cell-type identity and cellular activity with
    single-cell RNA-Seq", eLife, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection.pooled import pool_components
    >>> rng = np.random.default_rng(0)
    >>> X = rng.gamma(1.0, size=(60, 2)) @ np.eye(2, 6) + 0.02 * rng.random((60, 6))
    >>> pooled = pool_components(X, 2, n_init=3, random_state=0)
    >>> pooled.components.shape, bool(pooled.kept.all()), bool(pooled.silhouette > 0.9)
    ((2, 6), True, True)
    """
    estimator, n_init = where_data_is(default_if_none(estimator), X), at_least("n_init", n_init, 2)
    if not 0 < density_threshold <= 2:
        raise ValueError(f"density_threshold must be above 0 and at most 2; got {density_threshold!r}.")
    if not 0 < neighbours <= 1:
        raise ValueError(f"neighbours must be a share in (0, 1]; got {neighbours!r}.")
    rng = generator(random_state)
    arrays = given(weights, uncertainties)
    calls = (delayed(_components)(estimator, X, arrays, rank, seed) for seed in seeds(rng, n_init))
    pool = np.concatenate(run_all(calls, n_jobs, workers_for(estimator, X, n_jobs, [rank], arrays)))
    norms = np.linalg.norm(pool, axis=1, keepdims=True)
    spectra = pool / np.where(norms > 0, norms, 1)
    density = _local_density(spectra, max(1, int(neighbours * n_init)))
    kept = np.asarray((density < density_threshold) & (norms[:, 0] > 0))
    if kept.sum() < rank:
        raise ValueError(
            f"Of {len(pool)} components {kept.sum()} are near others, which is too few for {rank} groups. Raise "
            "density_threshold, or take fewer components: these depend on the start."
        )
    return _grouped(spectra, density, kept, rank, seeds(rng, 1)[0])


def _local_density(spectra: Matrix, n_neighbours: int) -> Matrix:
    """Return the mean distance of each row to its nearest other rows, (n,)."""
    distances = pairwise_distances(spectra)
    nearest = np.partition(distances, n_neighbours, axis=1)[:, : n_neighbours + 1]  # itself is one of them
    return np.asarray(nearest.sum(axis=1) / n_neighbours)


def _components(estimator: Any, X: Any, arrays: dict[str, Any], rank: int, seed: int) -> Matrix:
    """Return the components of one fit."""
    with quietly():
        return np.asarray(to_host(variant(estimator, rank, seed).fit(X, **arrays).components_), dtype=np.float64)


def _grouped(spectra: Matrix, density: Matrix, kept: Matrix, rank: int, seed: int) -> Pooled:
    """Group the components that are kept, the largest group first, and return the medians."""
    means = KMeans(rank, n_init=10, random_state=seed % 2**32)
    found = means.fit_predict(spectra[kept])
    order = np.argsort(-np.bincount(found, minlength=rank), kind="stable")
    groups = np.full(len(spectra), -1)
    groups[kept] = np.argsort(order)[found]
    medians = np.array([np.median(spectra[groups == k], axis=0) for k in range(rank)])
    totals = medians.sum(axis=1, keepdims=True)
    apart = 1 < len(np.unique(found)) < len(found)
    silhouette = float(silhouette_score(spectra[kept], found)) if apart else float("nan")
    return Pooled(medians / np.where(totals > 0, totals, 1), spectra, density, kept, groups, silhouette)
