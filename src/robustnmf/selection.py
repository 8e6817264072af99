"""How many components: cross-validation by held-out entries.

Some entries are hidden, a model of each rank is fitted to the others, and the hidden ones are predicted. Too few
components predict them badly, and too many as well, because those follow noise. Where entries are wrong nobody can
predict them, and under squared errors they decide: the score would tell which rank happens to lie closer to the
outliers. So the loss is bounded, at one scale for all ranks, and an entry that is far off for every rank counts alike
for all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from math import sqrt
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from robustnmf.arrays import to_host
from robustnmf.heldout import FEWEST_TELLING, LARGEST_SHARE, MOST, SUBSTANTIAL
from robustnmf.losses import Cauchy, squared_ratio
from robustnmf.mixture import fit_mixture, median
from robustnmf.process_state import unwatched_arithmetic
from robustnmf.trials import (
    at_least,
    generator,
    given,
    or_default,
    quietly,
    seeds,
    variant,
    where_data_is,
    works_on_device,
)
from robustnmf.validation import Observations, check_observations, check_rank, check_uncertainties
from robustnmf.workers import delayed, run_all

Matrix = NDArray[Any]

RULES = ("one-standard-error", "best")
SCORINGS = ("robust", "squared")
# The loss of a hidden entry is Cauchy's at so many widths of the clean residuals, and grows no more beyond so many
# scales. Capped squares or magnitudes, from one width to eight, find the same ranks; this is the loss of the fit.
JUDGED_AT, CAPPED_AT = 2.0, 5.0
# A width is at least this part of the typical entry: smaller residuals are those of a fit that still converges.
RESOLUTION = 1e-3
# Rungs in a row that predict worse than the best before a search gives up. Far below the true rank the score need not
# rise with each component: three ended the search too early in one of twenty simulated data sets, five in none of 60.
PATIENCE = 5
# A ladder takes every rank at first; then steps of a fifth.
STEP = 5


@dataclass(frozen=True)
class RankSelection:
    """How well each rank predicts hidden entries.

    Attributes
    ----------
    ranks : ndarray of int (n_ranks,)
        Ranks that were tried, in rising order.
    scores : ndarray (n_ranks, n_splits)
        Minus the mean loss of the hidden entries of each split; higher is better, as in scikit-learn.
    mean : ndarray (n_ranks,)
        Mean score of each rank.
    standard_error : ndarray (n_ranks,)
        Standard error of the difference between a rank's score and that of the best one on the same splits; 0 for the
        best. What all ranks miss alike does not count.
    best : int
        Rank of the highest mean score.
    chosen : int
        Rank that the rule chose.
    rule : str
        How it was chosen.
    scale : float
        Scale of the loss, in units of X, or of the noise if uncertainties were given; 1 for squared errors.
    """

    ranks: NDArray[np.intp]
    scores: Matrix
    mean: Matrix
    standard_error: Matrix
    best: int
    chosen: int
    rule: str
    scale: float


def select_rank(
    X: Any,
    ranks: Iterable[int],
    *,
    weights: Any = None,
    uncertainties: Any = None,
    n_splits: int = 5,
    estimator: Any = None,
    rule: str = "one-standard-error",
    scoring: str = "robust",
    random_state: Any = None,
    n_jobs: int | None = None,
) -> RankSelection:
    """Choose the number of components by how well hidden entries are predicted.

    In each split a tenth of the observed entries is missing to the fits; a sample's other entries give its code, and
    the code predicts what is hidden. Splits share no entries. The result does not depend on `n_jobs`.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        Non-negative data; NaN means missing.
    ranks : iterable of int
        Ranks to try, each in [1, min(n_samples, n_features)].
    weights : array-like (n_samples, n_features) or None
        Non-negative weight of every entry, in the fits and in the scores.
    uncertainties : array-like (n_samples, n_features) or None
        Standard deviation of the noise of every entry, positive, as for `RobustNMF.fit`. The estimator is fitted with
        them, and what it misses counts in units of them.
    n_splits : int
        Number of splits, at least 2.
    estimator : estimator or None
        What is fitted: it has ``n_components`` and ``components_`` and takes NaN for missing. By default
        `TruncatedCauchyNMF`.
    rule : {"one-standard-error", "best"}
        The smallest rank whose score is within one standard error of the best one, or the best.
    scoring : {"robust", "squared"}
        The loss: Cauchy's, capped, at the smallest scale of clean residuals that any rank reaches; or squared errors,
        which a few outliers dominate.
    random_state : int, RandomState, Generator or None
        Seed of splits and starts. Every rank starts from the same seeds.
    n_jobs : int or None
        Fits at a time, see joblib; None means 1. On a GPU they are threads, which gain little.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection import select_rank
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((60, 3)) @ rng.random((3, 40)) + 0.02 * rng.random((60, 40))
    >>> X[rng.random(X.shape) < 0.1] = 10.0
    >>> select_rank(X, range(1, 6), n_splits=3, random_state=0).chosen
    3
    """
    estimator = where_data_is(or_default(estimator), X)
    noise = _check_noise(uncertainties, X, weights, estimator)
    data = check_observations(clone(estimator), X, weights, reset=True)
    trial = _CrossValidation.of(
        data, weights is not None, noise, n_splits, estimator, rule, scoring, random_state, n_jobs
    )
    trial.add(_check_ranks(ranks, data.X))
    return trial.selection()


def auto_rank(
    X: Any,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    max_rank: int | None = None,
    n_splits: int = 5,
    estimator: Any = None,
    rule: str = "one-standard-error",
    scoring: str = "robust",
    random_state: Any = None,
    n_jobs: int | None = None,
) -> RankSelection:
    """Search the number of components: `select_rank` over ranks that need not be named.

    Climbs a ladder, 1, 2, 3, ... and from ten on in steps of a fifth, until five of them in a row predict worse than
    the best; then tries the ranks left out next to the best and the chosen one.

    Parameters
    ----------
    max_rank : int or None
        Highest rank to try. By default the highest at which there are as many entries as unknowns.
    X, weights, uncertainties, n_splits, estimator, rule, scoring, random_state, n_jobs
        See `select_rank`.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection import auto_rank
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((50, 2)) @ rng.random((2, 40)) + 0.02 * rng.random((50, 40))
    >>> auto_rank(X, n_splits=2, random_state=0).chosen
    2
    """
    estimator = where_data_is(or_default(estimator), X)
    noise = _check_noise(uncertainties, X, weights, estimator)
    data = check_observations(clone(estimator), X, weights, reset=True)
    limit = _highest_rank(data) if max_rank is None else check_rank(max_rank, data.X, "auto_rank (max_rank)")
    trial = _CrossValidation.of(
        data, weights is not None, noise, n_splits, estimator, rule, scoring, random_state, n_jobs
    )
    return _search(trial, limit)


class RobustNMFCV(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Non-negative matrix factorisation that finds its number of components by cross-validation.

    Parameters
    ----------
    ranks : "auto" or iterable of int
        Ranks to try; "auto" searches, see `auto_rank`.
    estimator : estimator or None
        What is fitted, a `RobustNMF` with any parameters; by default `TruncatedCauchyNMF`.
    n_splits : int
        Number of splits of the entries.
    rule : {"one-standard-error", "best"}
        How a rank is chosen, see `select_rank`.
    scoring : {"robust", "squared"}
        The loss of hidden entries, see `select_rank`.
    random_state : int, RandomState, Generator or None
        Seed of splits and starts.
    n_jobs : int or None
        Fits at a time.

    Attributes
    ----------
    best_estimator_ : estimator
        Fitted to all entries, with the rank that was chosen.
    best_rank_, n_components_ : int
        That rank.
    components_ : ndarray (n_components_, n_features)
        Its components.
    selection_ : RankSelection
        Scores of all ranks.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of str
        Names of the features, if X had any.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection import RobustNMFCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((60, 3)) @ rng.random((3, 40)) + 0.02 * rng.random((60, 40))
    >>> X[rng.random(X.shape) < 0.1] = 10.0
    >>> RobustNMFCV(ranks=(2, 3, 4), n_splits=3, random_state=0).fit_transform(X).shape
    (60, 3)
    """

    def __init__(
        self,
        ranks: Any = "auto",
        *,
        estimator: Any = None,
        n_splits: int = 5,
        rule: str = "one-standard-error",
        scoring: str = "robust",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.ranks = ranks
        self.estimator = estimator
        self.n_splits = n_splits
        self.rule = rule
        self.scoring = scoring
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Self:
        """Choose the rank and learn the components of X.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Non-negative data; NaN means missing.
        y : None
            Ignored.
        weights : array-like (n_samples, n_features) or None
            Non-negative weight of every entry.
        uncertainties : array-like (n_samples, n_features) or None
            Standard deviation of the noise of every entry, see `select_rank`.
        """
        self.fit_transform(X, weights=weights, uncertainties=uncertainties)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Choose the rank, learn the components of X and return its codes, (n_samples, n_components_)."""
        estimator, rng = where_data_is(or_default(self.estimator), X), generator(self.random_state)
        noise = _check_noise(uncertainties, X, weights, estimator)
        data = check_observations(self, X, weights, reset=True)
        trial = _CrossValidation.of(
            data, weights is not None, noise, self.n_splits, estimator, self.rule, self.scoring, rng, self.n_jobs
        )
        if isinstance(self.ranks, str) and self.ranks == "auto":
            selection = _search(trial, _highest_rank(data))
        else:
            trial.add(_check_ranks(self.ranks, data.X))
            selection = trial.selection()
        model = variant(estimator, selection.chosen, seeds(rng, 1)[0])
        codes = model.fit_transform(X, **given(weights, uncertainties))
        self.best_estimator_, self.selection_ = model, selection
        self.best_rank_ = self.n_components_ = selection.chosen
        self.components_ = model.components_
        return codes

    def transform(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return the codes of samples, (n_samples, n_components_)."""
        return self._fitted(X).transform(X, **given(weights, uncertainties))

    def inverse_transform(self, X: Any) -> Any:
        """Return the reconstruction of codes (n_samples, n_components_), in the space of the data."""
        return self._fitted().inverse_transform(X)

    def clean(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return X with outliers and missing entries replaced by the reconstruction, all others untouched."""
        return self._fitted(X).clean(X, **given(weights, uncertainties))

    def outlier_mask(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return True where an observed entry is an outlier, (n_samples, n_features)."""
        return self._fitted(X).outlier_mask(X, **given(weights, uncertainties))

    def score_samples(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return how well each sample fits, (n_samples,), see `RobustNMF.score_samples`."""
        return self._fitted(X).score_samples(X, **given(weights, uncertainties))

    def score(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> float:
        """Return the mean of `score_samples`."""
        return float(np.mean(self.score_samples(X, weights=weights, uncertainties=uncertainties)))

    def _fitted(self, X: Any = None) -> Any:
        """Return the estimator that was chosen, if X has the features that it knows."""
        check_is_fitted(self, "best_estimator_")
        if len(getattr(X, "shape", ())) == 2:  # anything else the estimator refuses, or makes a matrix of
            validate_data(self, X, reset=False, skip_check_array=True)
        return self.best_estimator_

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


# --------------------------------------------------------------------------------------------------- cross-validation


class _Hidden(NamedTuple):
    """Entries that one split hides."""

    positions: NDArray[np.intp]
    """In the flattened matrix, (k,)."""
    values: Matrix
    noise: Matrix
    """Uncertainties of the values, in the unit of which misses count; 1 if there are none."""
    weights: Matrix
    seed: int
    """Seed of all fits of the split."""


@dataclass
class _CrossValidation:
    """Fits of several ranks to the same splits, and the score of each."""

    X: Matrix
    """Data, NaN where missing."""
    weights: Matrix | None
    noise: Matrix | None
    """Uncertainty of every entry."""
    splits: Sequence[_Hidden]
    estimator: Any
    rule: str
    scoring: str
    n_jobs: int | None
    magnitudes: dict[int, list[Matrix]] = field(default_factory=dict)
    """Of each rank, the magnitudes of the residuals of each split."""

    @classmethod
    def of(
        cls,
        data: Observations,
        weighted: bool,
        noise: Matrix | None,
        n_splits: int,
        estimator: Any,
        rule: str,
        scoring: str,
        random_state: Any,
        n_jobs: int | None,
    ) -> Self:
        """Check the choices and draw the splits."""
        for name, value, known in (("rule", rule, RULES), ("scoring", scoring, SCORINGS)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
        splits = _split(data, at_least("n_splits", n_splits, 2), generator(random_state), noise)
        X = data.X if data.M is None else np.where(data.M > 0, data.X, np.nan)
        return cls(X, data.M if weighted else None, noise, splits, estimator, rule, scoring, n_jobs)

    def add(self, ranks: Sequence[int]) -> None:
        """Fit models of some ranks to all splits."""
        tasks = [(rank, split) for rank in ranks for split in self.splits]
        calls = (
            delayed(_misses)(self.estimator, self.X, self.weights, self.noise, rank, split) for rank, split in tasks
        )
        found = run_all(calls, self.n_jobs, on_device=works_on_device(self.estimator))
        for (rank, _), magnitudes in zip(tasks, found, strict=True):
            self.magnitudes.setdefault(rank, []).append(magnitudes)

    def selection(self) -> RankSelection:
        """Return the scores of all ranks so far, and the choice of the rule."""
        ranks = sorted(self.magnitudes)
        scale = 1.0 if self.scoring == "squared" else self._scale()
        scores = np.array([[self._score(*pair, scale) for pair in self._splits_of(rank)] for rank in ranks])
        mean = scores.mean(axis=1)
        if not np.isfinite(mean).all():
            raise ValueError(
                f"The scores of the ranks must be finite numbers, and of entries as large as {np.nanmax(self.X):.2g} "
                "they are not. Divide X by its largest entry."
            )
        best = int(mean.argmax())
        behind = scores[best] - scores
        error = behind.std(axis=1, ddof=1) / sqrt(len(self.splits))
        close = mean >= mean[best] - error if self.rule == "one-standard-error" else mean == mean[best]
        chosen = int(np.flatnonzero(close)[0])
        return RankSelection(np.array(ranks), scores, mean, error, ranks[best], ranks[chosen], self.rule, scale)

    def _splits_of(self, rank: int) -> Iterator[tuple[Matrix, Matrix]]:
        """Yield magnitudes and weights of each split."""
        return ((found, split.weights) for found, split in zip(self.magnitudes[rank], self.splits, strict=True))

    def _score(self, magnitudes: Matrix, weights: Matrix, scale: float) -> float:
        """Return minus the mean loss."""
        s = squared_ratio(magnitudes, scale, np)
        losses = s if self.scoring == "squared" else Cauchy().rho(np.minimum(s, CAPPED_AT**2), np)
        return -float(np.average(losses, weights=weights))

    def _scale(self) -> float:
        """Return the scale of the loss, from the smallest width of clean residuals that any rank reaches.

        A model that is too poor takes its misfit for noise, and a scale of its own would hide that. Zeros that are
        predicted as zeros say nothing of noise: entries near the typical one set the width, if there are enough.
        """
        values = np.concatenate([split.values / split.noise for split in self.splits])
        weights = np.concatenate([split.weights for split in self.splits])
        typical = median(values[values > 0], weights[values > 0])
        telling = values > SUBSTANTIAL * typical
        if np.count_nonzero(telling) < FEWEST_TELLING:
            telling[:] = True
        pooled = (np.concatenate(found) for found in self.magnitudes.values())
        width = min(fit_mixture(magnitudes[telling], weights[telling]).width for magnitudes in pooled)
        return JUDGED_AT * max(width, RESOLUTION * typical) or 1.0


def _search(trial: _CrossValidation, limit: int) -> RankSelection:
    """Climb the ladder of ranks up to a limit, then fill the gaps that matter."""
    tried: list[int] = []
    for rank in _ladder(limit):
        trial.add([rank])
        tried.append(rank)
        if len(tried) > PATIENCE and trial.selection().best <= tried[-1 - PATIENCE]:
            break
    selection = trial.selection()
    while gaps := sorted({*_between(tried, selection.best), *_between(tried, selection.chosen)}):
        trial.add(gaps)
        tried = sorted([*tried, *gaps])
        selection = trial.selection()
    return selection


def _ladder(limit: int) -> Iterator[int]:
    """Yield ranks that grow by one and later by a fifth; the limit is the last."""
    rank = 1
    while rank < limit:
        yield rank
        rank += max(1, rank // STEP)
    yield limit


def _between(tried: list[int], rank: int) -> Iterator[int]:
    """Yield the ranks half-way between one that was tried and its neighbours, where there are any."""
    here = tried.index(rank)
    for low, high in zip(tried[max(here - 1, 0) : here + 1], tried[max(here, 1) : here + 2], strict=False):
        if high - low > 1:
            yield (low + high) // 2


def _highest_rank(data: Observations) -> int:
    """Return the highest rank at which there are as many observed entries as numbers to be found, at least 1."""
    n_observed = data.X.size if data.M is None else np.count_nonzero(data.M)
    return int(max(1, min(*data.X.shape, n_observed // sum(data.X.shape))))


def _split(data: Observations, n_splits: int, rng: np.random.Generator, noise: Matrix | None = None) -> list[_Hidden]:
    """Draw the entries that each split hides: a tenth of the observed ones, and no entry twice."""
    observed = np.ones(data.X.shape, dtype=bool) if data.M is None else data.M > 0
    order = rng.permutation(np.flatnonzero(observed))
    size = int(min(order.size * min(LARGEST_SHARE, 1 / n_splits), MOST))
    drawn = seeds(rng, n_splits)
    splits = []
    for i, seed in enumerate(drawn):
        positions = _spared(order[i * size : (i + 1) * size], observed)
        values, weights, unit = (
            np.ones(positions.size) if array is None else array.flat[positions].astype(np.float64)
            for array in (data.X, data.M, noise)
        )
        splits.append(_Hidden(positions, values, unit, weights, seed))
    if min(split.positions.size for split in splits) == 0:
        n_samples, n_features = data.X.shape
        raise ValueError(
            f"Cross-validation with n_splits={n_splits} hides a tenth of the entries in each split and needs others in "
            f"the same samples and features; X with n_samples={n_samples} and n_features={n_features} has "
            f"{order.size} observed entries, which is too few. Choose the rank yourself, or use fewer splits."
        )
    return splits


def _spared(positions: NDArray[np.intp], observed: Matrix) -> NDArray[np.intp]:
    """Return positions to hide, less those of samples and features that would be left with nothing."""
    left: Matrix = observed.copy()
    left.flat[positions] = False
    per_sample, per_feature = np.count_nonzero(left, axis=1), np.count_nonzero(left, axis=0)
    rows, columns = np.divmod(positions, left.shape[1])
    return np.asarray(positions[(per_sample[rows] > 0) & (per_feature[columns] > 0)])


def _misses(
    estimator: Any, X: Matrix, weights: Matrix | None, noise: Matrix | None, rank: int, split: _Hidden
) -> Matrix:
    """Return by how much a model that is fitted without some entries misses them, in units of their noise, (k,)."""
    X = X.copy()
    X.flat[split.positions] = np.nan
    model = variant(estimator, rank, split.seed)
    with quietly():
        codes = np.asarray(model.fit_transform(X, **given(weights, noise)), dtype=np.float64)
    rows, columns = np.divmod(split.positions, X.shape[1])
    with unwatched_arithmetic():  # scores are looked at
        predicted = np.einsum("ij,ji->i", codes[rows], model.components_[:, columns])
        return np.asarray(np.abs(split.values - predicted) / split.noise)


def _check_noise(uncertainties: Any, X: Any, weights: Any, estimator: Any) -> Matrix | None:
    """Return the uncertainties as an array like X, or None if there are none."""
    if uncertainties is None:
        return None
    if "uncertainties" not in signature(estimator.fit_transform).parameters:
        raise ValueError(
            f"uncertainties need an estimator that is fitted with them, such as RobustNMF; {type(estimator).__name__} "
            "is not. Leave them out, or pass weights of 1 / uncertainties**2."
        )
    check_uncertainties(uncertainties, X, weights)
    return np.asarray(to_host(uncertainties), dtype=np.float64)


def _check_ranks(ranks: Any, X: Matrix) -> list[int]:
    """Return the ranks in rising order, each once."""
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        raise ValueError(f"ranks must be a sequence of integers, such as range(1, 11); got {ranks!r}.")
    checked = sorted({check_rank(rank, X, "each of the ranks") for rank in ranks})
    if not checked:
        raise ValueError("ranks must not be empty; give at least one, such as range(1, 11).")
    return checked
