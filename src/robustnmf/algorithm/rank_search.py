"""How many components: cross-validation by held-out entries, of an estimator that is given.

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from robustnmf.algorithm.clones import at_least, given, quietly, variant, where_data_is, works_on_device
from robustnmf.algorithm.holdout import FEWEST_INFORMATIVE, LARGEST_SHARE, MOST, SUBSTANTIAL
from robustnmf.data.blocks import Observations, check_observations
from robustnmf.data.validation import check_rank
from robustnmf.model.losses import Cauchy, squared_ratio
from robustnmf.model.mixture import fit_mixture, median
from robustnmf.utils.arrays import to_host
from robustnmf.utils.parallel import delayed, run_all
from robustnmf.utils.process_state import unwatched_arithmetic
from robustnmf.utils.random_state import generator, seeds

Matrix = NDArray[Any]

RULES = ("one-standard-error", "best")
SCORINGS = ("robust", "squared")
# The loss of a hidden entry is Cauchy's at so many widths of the clean residuals, and grows no more beyond so many
# scales. Capped squares or magnitudes, from one width to eight, find the same ranks; this is the loss of the fit.
MONITORED_AT, CAPPED_AT = 2.0, 5.0
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


def find_rank(
    X: Any,
    estimator: Any,
    *,
    ranks: Any = None,
    search: bool = False,
    max_rank: int | None = None,
    weights: Any = None,
    uncertainties: Any = None,
    n_splits: int = 5,
    rule: str = "one-standard-error",
    scoring: str = "robust",
    random_state: Any = None,
    n_jobs: int | None = None,
    learner: Any = None,
) -> RankSelection:
    """Cross-validate some ranks, or `search` all up to `max_rank`.

    `robustnmf.selection.select_rank` explains the parameters. By default the highest rank is the one at which there
    are as many entries as unknowns. The `learner` learns how many features X has, and their names.
    """
    estimator = where_data_is(estimator, X)
    noise = _check_noise(uncertainties, X, weights, estimator)
    data = check_observations(clone(estimator) if learner is None else learner, X, weights, reset=True)
    limit = _highest_rank(data) if max_rank is None else check_rank(max_rank, data.X, "auto_rank (max_rank)")
    for name, value, known in (("rule", rule, RULES), ("scoring", scoring, SCORINGS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
    splits = _split(data, at_least("n_splits", n_splits, 2), generator(random_state), noise)
    with_gaps = data.X if data.M is None else np.where(data.M > 0, data.X, np.nan)
    M = None if weights is None else data.M
    trial = _CrossValidation(with_gaps, M, noise, splits, estimator, rule, scoring, n_jobs)
    if search:
        return _search(trial, limit)
    trial.add(_check_ranks(ranks, data.X))
    return trial.selection()


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
        informative = values > SUBSTANTIAL * typical
        if np.count_nonzero(informative) < FEWEST_INFORMATIVE:
            informative[:] = True
        pooled = (np.concatenate(found) for found in self.magnitudes.values())
        width = min(fit_mixture(magnitudes[informative], weights[informative]).width for magnitudes in pooled)
        return MONITORED_AT * max(width, RESOLUTION * typical) or 1.0


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
    check_observations(clone(estimator), X, weights, uncertainties=uncertainties, reset=False)
    return np.asarray(to_host(uncertainties), dtype=np.float64)


def _check_ranks(ranks: Any, X: Matrix) -> list[int]:
    """Return the ranks in rising order, each once."""
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        raise ValueError(f"ranks must be a sequence of integers, such as range(1, 11); got {ranks!r}.")
    checked = sorted({check_rank(rank, X, "each of the ranks") for rank in ranks})
    if not checked:
        raise ValueError("ranks must not be empty; give at least one, such as range(1, 11).")
    return checked
