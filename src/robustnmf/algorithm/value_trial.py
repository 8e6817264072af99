"""Whether entries that share one value are wrong: a fit that does not see them says what they should be.

Robust weights do not find what covers a part of every image: there are enough components to follow it, and held-out
entries of a cover are predicted by the rest of it. But its entries have one value. So the beginning of a fit leaves all
of them out, and some others at random. If most of them are further from their predictions than nearly all of the
others, the value is wrong.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.feature_scaling import are_of_one_kind, feature_levels
from robustnmf.algorithm.parts import Parts
from robustnmf.algorithm.staged import Staged
from robustnmf.algorithm.trials import some_rows, some_samples, trial_predictions
from robustnmf.data.blocks import Data
from robustnmf.data.repeated_values import find_repeated_value
from robustnmf.engines import Engine
from robustnmf.model.scales import reads
from robustnmf.utils.arrays import Array

Matrix = NDArray[Any]

# Values that are looked for, which a fit has not found if it takes less than this share of their entries for outliers.
MOST_VALUES, FOUND = 3, 0.5
# Others that are left out: as many, but at most this share of them.
LEFT_OUT = 0.05
# The value is wrong if this share of its entries are further from their predictions than this share of the others.
WRONG, OF_OTHERS = 2 / 3, 0.9


def rejected_values(
    estimator: Any, given: Data, rank: int, parts: Parts, engine: Engine, outliers: Array | None = None
) -> Matrix | None:
    """Return values that are wrong wherever they occur, (k, m), NaN for features where one is not; None for none.

    If it is known which entries a fit takes for outliers, (n, m) of bool, values of which most are, are left to it.
    """
    if not _are_looked_for(estimator, given, parts, engine):
        return None
    X, M = some_samples(given, rank, engine)
    suspects = _repeated_values(X, M)
    observed = np.ones(X.shape, dtype=bool) if M is None else M > 0
    if suspects and outliers is not None:
        known = some_rows(engine.split(outliers, like=given.X), rank, engine)
        suspects = [suspect for suspect in suspects if known[(suspect == X) & observed].mean() < FOUND]
    if not suspects:
        return None
    have = [(suspect == X) & observed for suspect in suspects]
    distances, limit = _distances(X, M, np.any(have, axis=0), observed, estimator, rank, parts)
    wrong = [
        suspect for suspect, has_it in zip(suspects, have, strict=True) if np.mean(distances[has_it] > limit) >= WRONG
    ]
    return np.stack(wrong) if wrong else None


def _repeated_values(X: Matrix, M: Matrix | None) -> list[Matrix]:
    """Return values that far too many observed entries share, (m,) each; see `find_repeated_value`."""
    found: list[Matrix] = []
    while len(found) < MOST_VALUES and (value := find_repeated_value(X, M)) is not None:
        found.append(value)
        M = np.where(value == X, 0.0, 1.0 if M is None else M)
    return found


def _are_looked_for(estimator: Any, given: Data, parts: Parts, engine: Engine) -> bool:
    """Return whether a fit decides what is wrong by the noise of entries, and nobody has said what that is."""
    by_noise = isinstance(parts.algorithm, Staged) and parts.algorithm.noise is not None
    by_noise = by_noise and reads(parts.outliers) == "mixture"
    return by_noise and estimator.repeated_values == "auto" and given.noise is None and not engine.keeps_sparse


def _distances(
    X: Matrix, M: Matrix | None, suspected: Matrix, observed: Matrix, estimator: Any, rank: int, parts: Parts
) -> tuple[Matrix, float]:
    """Return how far entries are from what others predict, in units of their features, (n, m), and what is far.

    The `suspected` and the `observed` entries are (n, m) of bool.
    """
    others = _some_of(observed & ~suspected, int(np.count_nonzero(suspected)))
    weights = np.where(suspected | others, 0.0, 1.0 if M is None else M)
    levels = feature_levels(X, weights)
    alike = estimator.feature_scaling is None or are_of_one_kind(levels)
    by = np.ones_like(levels) if alike else levels
    distances = np.abs(X - trial_predictions(X, weights, by, rank, parts, estimator.max_iter)) / levels
    return distances, float(np.quantile(distances[others], OF_OTHERS))


def _some_of(entries: Matrix, wanted: int) -> Matrix:
    """Return so many of some entries, (n, m) of bool, chosen at random, but at most a small share."""
    places = np.flatnonzero(entries)
    chosen = np.zeros(entries.size, dtype=bool)
    n_chosen = max(1, min(wanted, int(LEFT_OUT * len(places))))
    chosen[np.random.default_rng(0).choice(places, n_chosen, replace=False)] = True
    return chosen.reshape(entries.shape)
