"""How many components: cross-validation by held-out entries, of an estimator that is given.

Some entries are hidden, a model of each rank is fitted to the others, and the hidden ones are predicted. Too few
components predict them badly, and too many as well, because those follow noise. `robustnmf.algorithm.hidden_entries`
says what a prediction costs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from robustnmf.algorithm.clones import at_least, given, quietly, variant, where_data_is, workers_for
from robustnmf.algorithm.feature_scaling import are_of_one_kind, feature_levels, is_sparse
from robustnmf.algorithm.hidden_entries import HiddenEntries, Losses, Predicted
from robustnmf.algorithm.holdout import LARGEST_SHARE, MOST
from robustnmf.algorithm.progress import SearchProgress, search_progress
from robustnmf.data.blocks import Observations, check_observations
from robustnmf.data.sparse import is_sparse as is_sparse_matrix
from robustnmf.data.validation import check_rank, check_sparse
from robustnmf.errors import IncompatibleError
from robustnmf.formats.alignment import aligned_input
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.model.noise import NoiseModel
from robustnmf.utils.arrays import to_host
from robustnmf.utils.parallel import delayed, run_all
from robustnmf.utils.process_state import unwatched_arithmetic
from robustnmf.utils.progress import tell
from robustnmf.utils.random_state import generator, seeds

Matrix = NDArray[Any]
_Prediction: TypeAlias = tuple[Matrix, NoiseModel | None]
"""Of hidden entries, (k,), and the noise that the fit has found."""

RULES = ("one-standard-error", "best")
SCORINGS = ("robust", "squared")
# A rank whose loss is at most this part above the lowest predicts as well: real data has no last component, and each
# may help a little.
NEGLIGIBLE = 0.02
# A search tries at least this rank: where much is wrong, ranks far below the true one may all predict badly.
ALWAYS_TRIED = 8
# A sparse matrix with more entries, zeros included, is not made dense. Of each split at least so many samples are, or
# so many entries, as long as there are as many.
DENSE_ENTRIES = 2**22
HELD_SAMPLES, HELD_ENTRIES = 100, 2**19


@dataclass(frozen=True)
class RankSelection:
    """How well each rank predicts hidden entries.

    Parameters
    ----------
    ranks : ndarray of int (n_ranks,)
        Ranks that were tried, in rising order.
    scores : ndarray (n_ranks, n_splits)
        Minus the mean loss of the hidden entries of each split; higher is better, as in scikit-learn. The robust loss
        is relative: about 1 for predictions that miss by the noise alone.
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
        Root mean square of clean residuals, in units of X, or of the noise if uncertainties were given; in units of
        the typical entry of each feature if features differ much in size; 1 for squared errors.
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
    callback: Callable[[RankSelection], Any] | None = None,
) -> RankSelection:
    """Cross-validate some ranks, or `search` all up to `max_rank`.

    `robustnmf.selection.select_rank` explains the parameters. By default the highest rank is the one at which fits see
    as many positive entries as unknowns. The `learner` learns how many features X has, and their names.
    """
    estimator = where_data_is(estimator, X)
    model = type(estimator).__name__
    X, weights, uncertainties = aligned_input(X, weights, uncertainties, features=None, model=model, may_use_file=True)
    shown, estimator = bool(getattr(estimator, "verbose", 0)), _silent(estimator)
    for name, value, known in (("rule", rule, RULES), ("scoring", scoring, SCORINGS)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}.")
    learner = clone(estimator) if learner is None else learner
    of_splits, rng = at_least("n_splits", n_splits, 2), generator(random_state)
    if isinstance(X, LabelledMatrix) and is_sparse_matrix(X.values):
        X = X.values
    if is_sparse_matrix(X) and X.shape[0] * X.shape[1] > DENSE_ENTRIES:
        _check_stays_sparse(X, weights, uncertainties, estimator)
        X = check_sparse(learner, X)
        highest, found = _highest_rank_of(X.shape, int(np.count_nonzero(X.data > 0))), _of_samples(X, of_splits, rng)
    else:
        noise = _check_noise(uncertainties, X, weights, estimator)
        data = check_observations(learner, X, weights, reset=True)
        units = noise if scoring == "squared" or noise is not None else _feature_units(data, estimator)
        found = _of_entries(data, None if weights is None else data.M, noise, units, of_splits, rng)
        X, highest = data.X, _highest_rank(data)
    limit = highest if max_rank is None else check_rank(max_rank, X, "auto_rank (max_rank)")
    named = None if search else _check_ranks(ranks, X)
    with search_progress(None if named is None else len(named), of_splits, shown=shown) as shows:
        trial = _CrossValidation(*found, estimator, rule, scoring, n_jobs, shows, callback)
        selection = _search(trial, limit) if named is None else trial.add(named)
    tell(f"Rank {selection.chosen} is chosen, and {selection.best} predicts best, of {selection.ranks.tolist()}.")
    return selection


class _Split(NamedTuple):
    """Entries that are missing to some fits."""

    positions: NDArray[np.intp]
    """In the flattened matrix, (k,)."""
    seed: int
    """Seed of all fits of the split."""

    def predict(
        self, estimator: Any, X: Matrix, weights: Matrix | None, noise: Matrix | None, rank: int
    ) -> _Prediction:
        """Return what a model that is fitted without the entries predicts for them, and the noise that it found."""
        X = X.copy()
        X.flat[self.positions] = np.nan
        model = variant(estimator, rank, self.seed)
        with quietly():
            codes = np.asarray(model.fit_transform(X, **given(weights, noise)), dtype=np.float64)
        return _predicted_at(codes, model, self.positions)


class _SampleSplit(NamedTuple):
    """Samples that are missing to some fits, and entries of them that are hidden when they are encoded."""

    rows: NDArray[np.intp]
    """Numbers of the samples, (s,)."""
    positions: NDArray[np.intp]
    """In the flattened matrix of those samples, (k,)."""
    seed: int

    def predict(self, estimator: Any, X: Any, weights: None, noise: None, rank: int) -> _Prediction:
        """Return the same of a model that is fitted without the samples; X is a sparse matrix and stays so."""
        model = variant(estimator, rank, self.seed)
        others = np.ones(X.shape[0], dtype=bool)
        others[self.rows] = False
        some = X[self.rows].toarray()
        some.flat[self.positions] = np.nan
        with quietly():
            codes = np.asarray(model.fit(X[others]).transform(some), dtype=np.float64)
        return _predicted_at(codes, model, self.positions)


class _Prepared(NamedTuple):
    """Data of a cross-validation, see `_CrossValidation`."""

    X: Any
    weights: Matrix | None
    noise: Matrix | None
    splits: Sequence[_Split] | Sequence[_SampleSplit]
    hidden: HiddenEntries


@dataclass
class _CrossValidation:
    """Fits of several ranks to the same splits, and the score of each."""

    X: Any
    """Data, NaN where missing; sparse if splits are of samples."""
    weights: Matrix | None
    noise: Matrix | None
    """Uncertainty of every entry."""
    splits: Sequence[_Split] | Sequence[_SampleSplit]
    hidden: HiddenEntries
    estimator: Any
    rule: str
    scoring: str
    n_jobs: int | None
    shows: SearchProgress
    callback: Callable[[RankSelection], Any] | None = None
    """Is told what is found so far."""
    predicted: dict[int, Predicted] = field(default_factory=dict)
    """What each rank predicts."""

    def add(self, ranks: Sequence[int]) -> RankSelection:
        """Fit models of some ranks to all splits, and return what is found so far."""
        tasks = [(rank, split) for rank in ranks for split in self.splits]
        calls = (
            delayed(split.predict)(self.estimator, self.X, self.weights, self.noise, rank) for rank, split in tasks
        )
        workers = workers_for(self.estimator, self.X, self.n_jobs, ranks)
        found = run_all(calls, self.n_jobs, workers, partial(self.shows.fitted, list(ranks)))
        for i, rank in enumerate(ranks):
            values, models = zip(*found[i * len(self.splits) : (i + 1) * len(self.splits)], strict=True)
            self.predicted[rank] = Predicted(np.concatenate(values), models)
        selection = self.selection()
        self.shows.found(selection.ranks.tolist(), selection.chosen)
        if self.callback is not None:
            self.callback(selection)
        return selection

    def selection(self) -> RankSelection:
        """Return the scores of all ranks so far, and the choice of the rule."""
        ranks = sorted(self.predicted)
        losses = self._losses([self.predicted[rank] for rank in ranks])
        scores = -self.hidden.mean_by_split(losses.of_entries)
        mean = scores.mean(axis=1)
        if not np.isfinite(mean).all():
            largest = self.hidden.largest.max()
            raise ValueError(
                f"The scores of the ranks must be finite numbers, and of entries as large as {largest:.2g} they"
                " are not. Divide X by its largest entry."
            )
        best = int(mean.argmax())
        error = (scores[best] - scores).std(axis=1, ddof=1) / sqrt(len(self.splits))
        if self.rule == "best":
            chosen = best
        else:
            clean = float(self.hidden.mean_by_split(losses.of_entries[best] * losses.is_clean).mean())
            chosen = int(np.argmax(mean >= mean[best] - np.maximum(error, NEGLIGIBLE * clean)))
        return RankSelection(np.array(ranks), scores, mean, error, ranks[best], ranks[chosen], self.rule, losses.scale)

    def _losses(self, predicted: Sequence[Predicted]) -> Losses:
        """Return the losses of ranks."""
        return self.hidden.squared(predicted) if self.scoring == "squared" else self.hidden.capped(predicted)


def _search(trial: _CrossValidation, limit: int) -> RankSelection:
    """Double the rank while that helps, up to a limit; then halve the gaps beside the chosen rank till none is left."""
    for rank in _doublings(limit):
        selection = trial.add([rank])
        if rank >= ALWAYS_TRIED and selection.chosen < rank:
            break
    while (between := _next_rank(selection)) is not None:
        selection = trial.add([between])
    return selection


def _doublings(limit: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and the limit."""
    rank = 1
    while rank < limit:
        yield rank
        rank *= 2
    yield limit


def _next_rank(selection: RankSelection) -> int | None:
    """Return a rank half-way from the chosen one to the next below, or else above; None if both are known."""
    ranks = selection.ranks.tolist()
    here = ranks.index(selection.chosen)
    gaps = list(pairwise(ranks))[max(here - 1, 0) : here + 1]
    return next(((low + high) // 2 for low, high in gaps if high - low > 1), None)


def _highest_rank(data: Observations) -> int:
    """Return the highest rank at which fits see as many positive entries as there are unknowns, at least 1."""
    observed = data.X > 0 if data.M is None else (data.X > 0) & (data.M > 0)
    return _highest_rank_of(data.X.shape, int(np.count_nonzero(observed)))


def _highest_rank_of(shape: tuple[int, ...], n_positive: int) -> int:
    n_seen = int((1 - LARGEST_SHARE) * n_positive)
    return int(max(1, min(*shape, n_seen // sum(shape))))


def _of_entries(
    data: Observations,
    weights: Matrix | None,
    noise: Matrix | None,
    units: Matrix | None,
    n_splits: int,
    rng: np.random.Generator,
) -> _Prepared:
    """Return data, weights, noise, splits and hidden entries of a cross-validation that hides entries."""
    splits = _split(data, n_splits, rng)
    with_gaps = data.X if data.M is None else np.where(data.M > 0, data.X, np.nan)
    return _Prepared(with_gaps, weights, noise, splits, _hidden_entries(with_gaps, data.M, splits, units))


def _of_samples(X: Any, n_splits: int, rng: np.random.Generator) -> _Prepared:
    """Return the same for a sparse matrix of which some samples are left out: a tenth of their entries is hidden.

    So only those samples are made dense. What is missing in X is NaN.
    """
    n_samples, n_features = X.shape
    n_rows = min(max(HELD_SAMPLES, -(-HELD_ENTRIES // n_features)), n_samples // n_splits)
    order, drawn, splits, parts = rng.permutation(n_samples), seeds(rng, n_splits), [], []
    for i in range(n_splits):
        rows = np.sort(order[i * n_rows : (i + 1) * n_rows])
        some = X[rows].toarray()
        observed = rng.permutation(np.flatnonzero(~np.isnan(some)))
        positions = observed[: int(LARGEST_SHARE * observed.size)]
        splits.append(_SampleSplit(rows, positions, drawn[i]))
        parts.append((some.flat[positions].astype(np.float64), positions % n_features))
    values, features = (np.concatenate(part) for part in zip(*parts, strict=True))
    largest = np.nan_to_num(X.max(axis=0).toarray().ravel().astype(np.float64))
    ones, sizes = np.ones(values.size), [split.positions.size for split in splits]
    return _Prepared(X, None, None, splits, HiddenEntries(values, features, ones, ones, largest, sizes))


def _check_stays_sparse(X: Any, weights: Any, uncertainties: Any, estimator: Any) -> None:
    """Refuse what would make a large sparse matrix dense."""
    scaled, as_missing = getattr(estimator, "feature_scaling", None), getattr(estimator, "zeros", "data")
    reasons = {"weights": weights is not None, "uncertainties": uncertainties is not None}
    reasons |= {"feature_scaling='robust'": scaled == "robust", "zeros='missing'": as_missing == "missing"}
    reason = next((name for name, is_so in reasons.items() if is_so), None)
    if reason is not None:
        n_bytes = 8 * X.shape[0] * X.shape[1]
        raise IncompatibleError(
            f"The search of the rank keeps a sparse matrix sparse, but not with {reason}; this one has "
            f"{X.shape[0]} x {X.shape[1]} entries, {n_bytes / 2**30:.1f} GiB when dense, and at most "
            f"{DENSE_ENTRIES} entries are made dense. Search with some of the samples, or leave {reason} out."
        )


def _split(data: Observations, n_splits: int, rng: np.random.Generator) -> list[_Split]:
    """Draw the entries that each split hides: a tenth of the observed ones, and no entry twice."""
    observed = np.ones(data.X.shape, dtype=bool) if data.M is None else data.M > 0
    order = rng.permutation(np.flatnonzero(observed))
    size = int(min(order.size * min(LARGEST_SHARE, 1 / n_splits), MOST))
    drawn = seeds(rng, n_splits)
    parts = (order[i * size : (i + 1) * size] for i in range(n_splits))
    splits = [_Split(_spared(part, observed), seed) for part, seed in zip(parts, drawn, strict=True)]
    if min(split.positions.size for split in splits) == 0:
        n_samples, n_features = data.X.shape
        raise ValueError(
            f"Cross-validation with n_splits={n_splits} hides a tenth of the entries in each split and needs others in "
            f"the same samples and features; X with n_samples={n_samples} and n_features={n_features} has "
            f"{order.size} observed entries, which is too few. Choose the rank yourself, or use fewer splits."
        )
    return splits


def _hidden_entries(X: Matrix, M: Matrix | None, splits: Sequence[_Split], units: Matrix | None) -> HiddenEntries:
    """Return the hidden entries of all splits; NaN is missing, units are like X or None."""
    positions = np.concatenate([split.positions for split in splits])
    values, weights, of_entries = (
        np.ones(positions.size) if array is None else array.flat[positions].astype(np.float64)
        for array in (X, M, units)
    )
    largest = np.fmax.reduce(X, axis=0, initial=0.0).astype(np.float64)
    sizes = [split.positions.size for split in splits]
    return HiddenEntries(values, positions % X.shape[1], weights, of_entries, largest, sizes)


def _feature_units(data: Observations, estimator: Any) -> Matrix | None:
    """Return the level of the feature of each entry, (n, m), if features are to count alike, else None."""
    scaling = getattr(estimator, "feature_scaling", "auto")
    if scaling is None:
        return None
    levels = feature_levels(data.X, data.M)
    is_wanted = scaling == "robust" or not (are_of_one_kind(levels) or is_sparse(data.X, data.M))
    return np.broadcast_to(levels, data.X.shape) if is_wanted else None


def _spared(positions: NDArray[np.intp], observed: Matrix) -> NDArray[np.intp]:
    """Return positions to hide, less those of samples and features that would be left with nothing."""
    left: Matrix = observed.copy()
    left.flat[positions] = False
    per_sample, per_feature = np.count_nonzero(left, axis=1), np.count_nonzero(left, axis=0)
    rows, columns = np.divmod(positions, left.shape[1])
    return np.asarray(positions[(per_sample[rows] > 0) & (per_feature[columns] > 0)])


def _predicted_at(codes: Matrix, model: Any, positions: NDArray[np.intp]) -> _Prediction:
    """Return the predictions of a fitted model for some entries, by the codes of samples."""
    rows, columns = np.divmod(positions, model.components_.shape[1])
    with unwatched_arithmetic():  # scores are looked at
        predicted = np.einsum("ij,ji->i", codes[rows], model.components_[:, columns])
    return np.asarray(predicted), getattr(model, "noise_", None)


def _silent(estimator: Any) -> Any:
    """Return the estimator without a progress bar of its own: the search has one."""
    return clone(estimator).set_params(verbose=0) if getattr(estimator, "verbose", 0) else estimator


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
