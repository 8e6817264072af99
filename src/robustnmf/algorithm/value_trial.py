"""Whether entries that share one value are wrong: a fit that does not see them says what they should be.

Robust weights do not find what covers a part of every image: there are enough components to follow it, and held-out
entries of a cover are predicted by the rest of it. But its entries have one value. So the beginning of a fit leaves all
of them out, and some others at random. If most of them are further from their predictions than nearly all of the
others, the value is wrong; unless what is predicted there is nearer to the value than elsewhere: then entries beyond it
have been set to it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.feature_scaling import are_of_one_kind, feature_levels
from robustnmf.algorithm.parts import Parts
from robustnmf.algorithm.staged import Staged
from robustnmf.algorithm.trials import some_samples, trial_predictions
from robustnmf.data.blocks import Data
from robustnmf.data.repeated_values import RepeatedValue, find_repeated_value
from robustnmf.engines import Engine
from robustnmf.model.scales import reads

Matrix = NDArray[Any]

# Values that are looked for. They are left to a fit that takes this share of their entries for outliers, and no more
# than this one of the others of any feature: it may reject large features along with them.
MOST_VALUES, FOUND, OF_FEATURE = 3, 0.95, 0.5
# Others that are left out: as many, but at most this share of them.
LEFT_OUT = 0.05
# The value is wrong if at least this share of its entries are further from their predictions than this share of the
# others; the stricter pair holds for a value that is in some features only, as a background may be.
IN_MOST_FEATURES, IN_SOME_FEATURES = (2 / 3, 0.9), (0.9, 0.99)
# And if the chance that its prediction is further from it than that of another entry is not below this.
AS_FAR = 1 / 3


def rejected_values(
    estimator: Any,
    given: Data,
    rank: int,
    parts: Parts,
    engine: Engine,
    find_outliers: Callable[[Matrix, Matrix | None], Matrix],
) -> Matrix | None:
    """Return values that are wrong wherever they occur, (k, m), NaN for features where one is not; None for none.

    `find_outliers` returns which entries of some samples and their weights a fit takes for outliers: values of which
    nearly all are, and hardly anything else, are left to it.
    """
    if not _are_looked_for(estimator, given, parts, engine):
        return None
    X, M = some_samples(given, rank, engine)
    observed = np.ones(X.shape, dtype=bool) if M is None else M > 0
    suspects = _repeated_values(X, M)
    have = [(suspect.of_features == X) & observed for suspect in suspects]
    if suspects:
        known = find_outliers(X, M)
        others = observed & ~np.any(have, axis=0)
        is_left = np.all(np.sum(known & others, axis=0) <= OF_FEATURE * np.sum(others, axis=0))
        left = [i for i, has_it in enumerate(have) if not (is_left and known[has_it].mean() >= FOUND)]
        suspects, have = [suspects[i] for i in left], [have[i] for i in left]
    if not suspects:
        return None
    trial = Trial.of(X, M, np.any(have, axis=0), observed, estimator, rank, parts)
    pairs = zip(suspects, have, strict=True)
    wrong = [suspect.of_features for suspect, has_it in pairs if trial.refutes(suspect, has_it)]
    return np.stack(wrong) if wrong else None


class Trial(NamedTuple):
    """What the beginning of a fit predicts for entries that it has not seen, in units of their features."""

    X: Matrix
    predicted: Matrix
    others: Matrix
    """Entries at random that it has not seen either, (n, m) of bool."""
    levels: Matrix
    """The units of features, (m,)."""

    @classmethod
    def of(
        cls, X: Matrix, M: Matrix | None, suspected: Matrix, observed: Matrix, estimator: Any, rank: int, parts: Parts
    ) -> Self:
        """Return the trial of data (n, m) that leaves out what is suspected, (n, m) of bool."""
        others = _some_of(observed & ~suspected, int(np.count_nonzero(suspected)))
        weights = np.where(suspected | others, 0.0, 1.0 if M is None else M)
        levels = feature_levels(X, weights)
        alike = estimator.feature_scaling is None or are_of_one_kind(levels)
        by = np.ones_like(levels) if alike else levels
        predicted = trial_predictions(X, weights, by, rank, parts, estimator.max_iter)
        return cls(X / levels, predicted / levels, others, levels)

    def refutes(self, suspect: RepeatedValue, has_it: Matrix) -> bool:
        """Return whether a value is wrong that entries have, (n, m) of bool."""
        distances = np.abs(self.X - self.predicted)
        share, of_others = IN_MOST_FEATURES if suspect.is_spread else IN_SOME_FEATURES
        if np.mean(distances[has_it] > np.quantile(distances[self.others], of_others)) < share:
            return False
        value = np.nanmax(suspect.of_features) / self.levels
        here, elsewhere = (np.abs(self.predicted - value)[where] for where in (has_it, self.others))
        return bool(np.mean(np.searchsorted(np.sort(elsewhere), here)) >= AS_FAR * len(elsewhere))


def _repeated_values(X: Matrix, M: Matrix | None) -> list[RepeatedValue]:
    """Return values that far too many observed entries share; see `find_repeated_value`."""
    found: list[RepeatedValue] = []
    while len(found) < MOST_VALUES and (suspect := find_repeated_value(X, M)) is not None:
        found.append(suspect)
        M = np.where(suspect.of_features == X, 0.0, 1.0 if M is None else M)
    return found


def _are_looked_for(estimator: Any, given: Data, parts: Parts, engine: Engine) -> bool:
    """Return whether a fit decides what is wrong by the noise of entries, and nobody has said what that is."""
    by_noise = isinstance(parts.algorithm, Staged) and parts.algorithm.noise is not None
    by_noise = by_noise and reads(parts.outliers) == "mixture"
    return by_noise and estimator.repeated_values == "auto" and given.noise is None and not engine.keeps_sparse


def _some_of(entries: Matrix, wanted: int) -> Matrix:
    """Return so many of some entries, (n, m) of bool, chosen at random, but at most a small share."""
    places = np.flatnonzero(entries)
    chosen = np.zeros(entries.size, dtype=bool)
    n_chosen = max(1, min(wanted, int(LEFT_OUT * len(places))))
    chosen[np.random.default_rng(0).choice(places, n_chosen, replace=False)] = True
    return chosen.reshape(entries.shape)
