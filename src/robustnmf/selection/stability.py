"""Whether components can be relied on: agreement over restarts, and intervals by the bootstrap."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from robustnmf.algorithm.clones import at_least, given, quietly, variant, where_data_is, workers_for
from robustnmf.data.blocks import check_observations
from robustnmf.metrics import cophenetic_correlation, dispersion, match_components
from robustnmf.selection.rank import default_if_none
from robustnmf.utils.arrays import to_host
from robustnmf.utils.parallel import delayed, run_all
from robustnmf.utils.random_state import generator, seeds

Matrix = NDArray[Any]

# Samples of which pairs are compared: their matrix is square.
MOST_PAIRED = 1000
# Bytes of data, times fits, up to which all fits are kept; of more, the one that is returned is made again.
MOST_KEPT = 2**28


@dataclass(frozen=True)
class Consensus:
    """What fits from several starts have in common.

    Parameters
    ----------
    model : estimator
        The fit that is most like the others (the medoid).
    medoid : int
        Which fit that is.
    components : ndarray (rank, n_features)
        Its components.
    stability : ndarray (rank,)
        Mean cosine between each of them and its counterparts in the other fits: 1 if every start finds it.
    similarity : ndarray (n_init, n_init)
        Mean cosine of matched components, of each pair of fits.
    together : ndarray (n, n)
        Share of fits in which two samples have the same largest code; of at most a thousand samples, evenly spread.
    dispersion : float
        How sure that is (Kim and Park 2007): 1 if all fits agree on every pair, 0 if all are in doubt.
    cophenetic : float
        Cophenetic correlation of `together` (Brunet et al. 2004): 1 if it falls into groups.
    """

    model: Any
    medoid: int
    components: Matrix
    stability: Matrix
    similarity: Matrix
    together: Matrix
    dispersion: float
    cophenetic: float

    @property
    def score(self) -> float:
        """Mean stability of the components."""
        return float(self.stability.mean())


@dataclass(frozen=True)
class Bootstrap:
    """How far components would move with other samples.

    Parameters
    ----------
    low, high : ndarray (rank, n_features)
        Ends of the percentile interval of each entry of ``components_``.
    stability : ndarray (rank,)
        Mean cosine between each component and its counterparts.
    level : float
        Level of the intervals.
    n_boot : int
        Number of resamplings.
    """

    low: Matrix
    high: Matrix
    stability: Matrix
    level: float
    n_boot: int


def consensus(
    X: Any,
    rank: int,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    n_init: int = 10,
    estimator: Any = None,
    random_state: Any = None,
    n_jobs: int | None = None,
) -> Consensus:
    """Fit from several starts and tell which components they agree on.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        Non-negative data; NaN means missing.
    rank : int
        Number of components.
    weights : array-like (n_samples, n_features) or None
        Non-negative weight of every entry.
    uncertainties : array-like (n_samples, n_features) or None
        Standard deviation of the noise of every entry, as for `RobustNMF.fit`.
    n_init : int
        Number of fits, at least 2.
    estimator : estimator or None
        What is fitted, by default `TruncatedCauchyNMF`. Its starts differ little; those of ``init="random"`` differ
        more.
    random_state : int, RandomState, Generator or None
        Seed of the starts.
    n_jobs : int or None
        Number of fits that run in parallel, as in joblib; None means 1. On a GPU, more than 2 pay
        for many fits of small data; see the guide, *Many fits*.

    Returns
    -------
    Consensus
        The medoid of the fits, and how far the others agree with it.

    References
    ----------
    H. Kim, H. Park, "Sparse non-negative matrix factorizations via alternating non-negativity-constrained least squares
    for microarray data analysis", Bioinformatics, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection.stability import consensus
    >>> rng = np.random.default_rng(0)
    >>> peaks = np.exp(-(((np.arange(40) - np.array([[8], [20], [32]])) / 6) ** 2))
    >>> X = (rng.random((60, 3)) * (rng.random((60, 3)) < 0.6)) @ peaks + 0.02 * rng.random((60, 40))
    >>> bool(consensus(X, 3, n_init=3, random_state=0).score > 0.99)
    True
    >>> bool(consensus(X, 5, n_init=3, random_state=0).score > 0.99)  # two of them are up to the start
    False
    """
    estimator, n_init = where_data_is(default_if_none(estimator), X), at_least("n_init", n_init, 2)
    starts = seeds(generator(random_state), n_init)
    arrays = given(weights, uncertainties)
    keep = n_init * getattr(X, "nbytes", inf) <= MOST_KEPT
    calls = (delayed(_fitted)(estimator, X, arrays, rank, s, keep=keep) for s in starts)
    fits = run_all(calls, n_jobs, workers_for(estimator, X, n_jobs, [rank], arrays))
    found = [fit.components for fit in fits]
    cosines = _matched_cosines(found)
    similarity = cosines.mean(axis=2)
    medoid = int(similarity.sum(axis=1).argmax())
    together = _together([fit.labels for fit in fits])
    model = fits[medoid].model
    if model is None:
        with quietly():
            model = variant(estimator, rank, starts[medoid]).fit(X, **arrays)
    return Consensus(
        model=model,
        medoid=medoid,
        components=found[medoid],
        stability=np.delete(cosines[medoid], medoid, axis=0).mean(axis=0),
        similarity=similarity,
        together=together,
        dispersion=dispersion(together),
        cophenetic=cophenetic_correlation(together),
    )


def bootstrap_components(
    X: Any,
    model: Any,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    n_boot: int = 50,
    level: float = 0.9,
    random_state: Any = None,
    n_jobs: int | None = None,
) -> Bootstrap:
    """Return percentile intervals of the components of a fit, by drawing its samples anew.

    A sample that is drawn twice counts twice, by its weight: a copy would reveal entries that the fit holds out.
    Each fit starts from the components of the model, which keeps their identity, and what it finds is matched with
    them in order and scale. The intervals tell how much depends on which samples there are; they do not
    cover other minima, for which see `consensus`.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        The data that the model was fitted to.
    model : RobustNMF
        A fitted model.
    weights : array-like (n_samples, n_features) or None
        The weights that it was fitted with.
    uncertainties : array-like (n_samples, n_features) or None
        The uncertainties that it was fitted with.
    n_boot : int
        Number of resamplings, at least 2.
    level : float
        Level of the intervals, in (0, 1).
    random_state : int, RandomState, Generator or None
        Seed of the resampling.
    n_jobs : int or None
        Number of fits that run in parallel, as in joblib; None means 1. On a GPU, more than 2 pay
        for many fits of small data; see the guide, *Many fits*.

    Returns
    -------
    Bootstrap
        The intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf import TruncatedCauchyNMF
    >>> from robustnmf.selection.stability import bootstrap_components
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((60, 2)) @ rng.random((2, 40)) + 0.02 * rng.random((60, 40))
    >>> model = TruncatedCauchyNMF(2, random_state=0).fit(X)
    >>> interval = bootstrap_components(X, model, n_boot=5, random_state=0)
    >>> bool(np.all(interval.low <= interval.high)), interval.low.shape
    (True, (2, 40))
    """
    check_is_fitted(model)
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"level must be a number in (0, 1), such as 0.9; got {level!r}.")
    if model._with_uncertainties and uncertainties is None:
        raise ValueError("The model was fitted with uncertainties, and others would follow without: pass them too.")
    rng, n_boot = generator(random_state), at_least("n_boot", n_boot, 2)
    data = check_observations(clone(model), X, weights, reset=True)
    M = np.ones_like(data.X) if data.M is None else data.M
    noise = None if uncertainties is None else np.asarray(to_host(uncertainties), dtype=np.float64)
    codes = np.asarray(to_host(model.transform(X, **given(weights, noise))))
    draws = [_draw(len(M), rng) for _ in range(n_boot)]
    like = where_data_is(model, X)
    calls = (
        delayed(_refit)(model, like, data.X, M, noise, codes, counts, seed)
        for counts, seed in zip(draws, seeds(rng, n_boot), strict=True)
    )
    refits = run_all(calls, n_jobs, workers_for(like, data.X, n_jobs, [model.n_components_]))
    low, high = np.quantile([components for components, _ in refits], [(1 - level) / 2, (1 + level) / 2], axis=0)
    stability = np.mean([similarities for _, similarities in refits], axis=0)
    return Bootstrap(low, high, stability, float(level), n_boot)


class _Match(NamedTuple):
    """Counterparts of reference components."""

    components: Matrix
    similarities: Matrix


def _match(reference: Matrix, components: Matrix) -> _Match:
    """Return components in the order and scale of a reference, with their cosines; a component of zeros has cosine 0.

    Two more features, in which only components of zeros differ from zero, give those a direction of their own.
    """
    of_reference = np.column_stack([reference, ~reference.any(axis=1), np.zeros(len(reference))])
    of_found = np.column_stack([components, np.zeros(len(components)), ~components.any(axis=1)])
    match = match_components(of_reference, of_found)
    return _Match(match.scales[:, None] * components[match.permutation], match.similarities)


def _matched_cosines(found: Sequence[Matrix]) -> Matrix:
    """Return the cosines between components of each fit and their counterparts in each other, (n, n, rank).

    It is `_match` of all pairs, in a product for each fit.
    """
    directions = [_directions(components) for components in found]
    everyone = np.concatenate(directions).T
    return np.array([[_best(part) for part in np.split(own @ everyone, len(found), axis=1)] for own in directions])


def _directions(components: Matrix) -> Matrix:
    """Return components with norm 1; one of zeros stays as it is."""
    peaks = components.max(axis=1, keepdims=True)  # without it, squares could overflow or vanish
    relative = components.astype(np.float64) / np.where(peaks > 0, peaks, 1)
    norms = np.linalg.norm(relative, axis=1, keepdims=True)
    return np.asarray(relative / np.where(norms > 0, norms, 1))


def _best(cosines: Matrix) -> Matrix:
    """Return the cosines of the best matching of rows with columns, (rank,)."""
    return np.clip(cosines[linear_sum_assignment(cosines, maximize=True)], -1, 1)


class _Fit(NamedTuple):
    """What one of many fits tells."""

    components: Matrix
    labels: Matrix
    """The largest code of each of at most a thousand samples."""
    model: Any
    """The fit itself, None if it is not kept."""


def _fitted(estimator: Any, X: Any, arrays: dict[str, Any], rank: int, seed: int, *, keep: bool) -> _Fit:
    """Return one of many fits."""
    model = variant(estimator, rank, seed)
    with quietly():
        codes = np.asarray(to_host(model.fit_transform(X, **arrays)))
    labels = codes[:: -(-len(codes) // MOST_PAIRED)].argmax(axis=1)
    return _Fit(model.components_, labels, model if keep else None)


def _together(labellings: Sequence[Matrix]) -> Matrix:
    """Return in which share of the labellings each pair of samples shares a label."""
    return np.asarray(np.mean([labels[:, None] == labels for labels in labellings], axis=0))


@dataclass(frozen=True, eq=False)
class _WarmStart:
    """Starts from known factors, at the level of the data that it gets: the fit works in a unit of its own."""

    components: Matrix
    codes: Matrix

    name: ClassVar[str] = "warm"

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return the factors; the level is the median ratio of larger entries to their reconstruction."""
        product = (self.codes @ self.components).T
        observed = product > 0 if M is None else (product > 0) & (M > 0)
        if not observed.any():
            return self.components.T, self.codes.T
        large = np.asarray(observed & (product >= np.median(product[observed])))
        return self.components.T, float(np.median(V[large] / product[large])) * self.codes.T


def _draw(n_samples: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return how often each sample is drawn, (n,)."""
    return np.bincount(rng.integers(n_samples, size=n_samples), minlength=n_samples)


def _refit(
    model: Any, like: Any, X: Matrix, M: Matrix, noise: Matrix | None, codes: Matrix, counts: NDArray[np.intp],
    seed: int,
) -> _Match:  # fmt: skip
    """Return the components of samples that count as often as they were drawn, matched with those of the model.

    What is fitted is `like` the model, and works where the data is.
    """
    drawn = counts > 0
    # A fit with uncertainties works on features in units of what is typical of them.
    components = model.components_ if noise is None else model.components_ / model._noise
    fit = variant(like, model.n_components_, seed).set_params(init=_WarmStart(components, codes[drawn]))
    with quietly():
        weights = M[drawn] * counts[drawn, None]
        fit.fit(X[drawn], **given(weights, None if noise is None else noise[drawn]))
    return _match(model.components_, fit.components_)
