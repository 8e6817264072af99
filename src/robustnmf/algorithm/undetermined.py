"""What a fit says although its accepted entries do not tell it: three ways to be wrong that residuals do not show.

By least squares an entry has a part in its own prediction, its leverage. What the prediction without the entry is worth
tells whether components describe the data or follow single entries; and where accepted entries have a small leverage
but rejected or missing ones would have a large one, nothing bounds what is predicted there.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from robustnmf.algorithm.least_squares import Comparison
from robustnmf.algorithm.leverage import entry_leverages
from robustnmf.data.quality import FEWEST_ENTRIES, Finding, Sample
from robustnmf.utils.cached import cached_property

Matrix = NDArray[Any]

# The numbers below were chosen on 69 sets of real data, clean and with ten kinds of errors and gaps, and checked on the
# 89 of `benchmarks/real_sets.py`.

# Zeros count in features of which at most this share is zero, with so many zeros each and in all, if so many of the
# features have them. They are unpredicted if they are predicted to be as large as positive entries: of a zero and a
# positive entry, the zero has the larger prediction with this probability, which would be 0.5 by chance.
MOST_ZERO, FEWEST_ZEROS, ZEROS_IN_ALL, FEATURES_WITH_ZEROS, UNPREDICTED = 0.4, 3, 20, 0.1, 0.44
# If least squares takes all entries although so many looked wrong, components should predict more than means do.
LOOKED_WRONG = 0.03
# Rejected and missing entries that would have more than all of the weight in their prediction, with this share of the
# squares; and how many times they raise the root of the mean variance of predictions.
FULL_LEVERAGE, MUCH_OF_SQUARES, RAISES_VARIANCE = 1.0, 0.03, 1.2
# With more missing, a fit says whether there are too few entries.
MOST_UNKNOWN = 0.5
# The prediction without an entry of larger leverage would be a guess.
LARGEST_LEVERAGE = 1 - 1e-6
# Multiplications of a sum of products over all entries, beyond which it takes too long.
MOST_PRODUCTS = 2**31


class Factors(NamedTuple):
    """A fit to some samples: data in units of X, and what predicts it."""

    sample: Sample
    outliers: Matrix
    """Rejected entries of these samples, (n', m) of bool."""
    codes: Matrix
    """(n', r)"""
    components: Matrix
    """(r, m)"""


class Evidence:
    """What the accepted entries of some samples tell of each entry, in units of the largest."""

    def __init__(self, factors: Factors) -> None:
        self.sample, outliers, self.codes, self.components = factors
        largest = np.nanmax(self.sample.X, initial=0.0) or 1.0
        self.X = np.nan_to_num(self.sample.X / largest)
        self.accepted = ~outliers & ~np.isnan(self.sample.X)
        self.predicted = np.asarray((self.codes.astype(np.float64) / largest) @ self.components)

    @property
    def is_quick(self) -> bool:
        """Whether leverages are found quickly."""
        return self.X.size * len(self.components) ** 2 <= MOST_PRODUCTS

    @cached_property
    def leverages(self) -> tuple[Matrix, Matrix]:
        """The part that each entry has, or would have, in its prediction by its sample and by its feature, (n', m)."""
        by_sample = entry_leverages(self.components.T, self.accepted)
        by_feature = entry_leverages(self.codes, self.accepted.T).T
        return by_sample, by_feature / self.sample.every  # the other samples count as well

    @cached_property
    def alone(self) -> Matrix:
        """The prediction of each accepted entry without itself, (n', m)."""
        by_sample, by_feature = self.leverages
        both = np.clip(by_sample + by_feature - by_sample * by_feature, 0, LARGEST_LEVERAGE)
        alone = self.X - (self.X - self.predicted) / (1 - both)
        return np.maximum(np.where(self.accepted, alone, self.predicted), 0)


def undetermined_entries(factors: Factors, comparison: Comparison) -> list[Finding]:
    """Return what a user should know of a fit to data in memory that its accepted entries do not tell."""
    evidence = Evidence(factors)
    if not evidence.is_quick:
        return []
    return [*unpredicted_zeros(evidence), *self_explained(evidence, comparison), *unbounded(evidence)]


def unpredicted_zeros(evidence: Evidence) -> list[Finding]:
    """Find zeros that were fitted like data, although without them they are predicted like positive entries.

    One component describes sizes of samples and features, and is not meant to predict more.
    """
    sample, accepted = evidence.sample, evidence.accepted
    if len(evidence.components) == 1:
        return []
    is_zero = accepted & (sample.X == 0)
    counts, n_positive = is_zero.sum(axis=0), sample.n_positive
    have_some = (counts >= FEWEST_ZEROS) & (n_positive >= FEWEST_ENTRIES) & sample.continuous
    features = sample.new(have_some & (counts <= MOST_ZERO * (counts + n_positive)))
    n_zeros, n_features = counts[features].sum(), sample.X.shape[1]
    if n_zeros < ZEROS_IN_ALL or len(features) < FEATURES_WITH_ZEROS * n_features:
        return []
    chances = [_chance(evidence.alone[is_zero[:, j], j], evidence.alone[sample.X[:, j] > 0, j]) for j in features]
    if np.average(chances, weights=counts[features]) < UNPREDICTED:
        return []
    return [
        Finding(
            f"zeros, {n_zeros / np.count_nonzero(accepted):.1%} of the entries, of {sample.named(features)}, were "
            "fitted like data, but from the other entries they are predicted to be as large as positive ones. If zero "
            "stands for missing, replace it by NaN before the fit.",
            features,
        )
    ]


def _chance(some: Matrix, others: Matrix) -> float:
    """Return how likely one of some numbers is larger than one of others."""
    ranks = rankdata(np.concatenate([some, others]))[: len(some)]
    return float((ranks.mean() - (len(some) + 1) / 2) / len(others))


def self_explained(evidence: Evidence, comparison: Comparison) -> list[Finding]:
    """Find a fit that takes entries for right because it explains them, while nothing else does."""
    if not comparison.takes_all or comparison.rejected < LOOKED_WRONG:
        return []
    X, accepted = evidence.X, evidence.accepted
    means = np.sum(X * accepted, axis=0) / np.maximum(accepted.sum(axis=0), 1)
    unpredicted, varying = (np.sum((accepted * (X - other)) ** 2) for other in (evidence.alone, means))
    if unpredicted <= varying:
        return []
    return [
        Finding(
            f"{comparison.rejected:.1%} of the entries looked wrong, and were accepted because least squares on all "
            "entries explains them. But without themselves, entries are predicted worse than by the mean of their "
            "feature: components follow single entries, wrong ones too. Use fewer components, or give entries that "
            "you doubt weight 0."
        )
    ]


def unbounded(evidence: Evidence) -> list[Finding]:
    """Find rejected or missing entries of which the accepted ones of their sample, or feature, tell nothing."""
    accepted, predicted = evidence.accepted, evidence.predicted
    n_unknown = accepted.size - np.count_nonzero(accepted)
    if not 0 < n_unknown <= MOST_UNKNOWN * accepted.size:
        return []
    largest = np.max(evidence.X, axis=0, where=accepted, initial=0.0)
    squares = np.where(accepted, 0.0, np.maximum(np.minimum(evidence.X, largest), predicted)) ** 2
    enough = MUCH_OF_SQUARES * np.sum(evidence.X**2, where=accepted)
    if squares.sum() <= enough:
        return []
    by_sample, by_feature = evidence.leverages
    squares = squares * (np.maximum(by_sample, by_feature) > FULL_LEVERAGE)
    added = np.sum(by_sample + by_feature, where=~accepted) / max(np.count_nonzero(accepted), 1)
    if squares.sum() <= enough or np.sqrt(1 + added) <= RAISES_VARIANCE:
        return []
    of_samples = squares.sum(axis=1)
    samples = evidence.sample.every * np.argsort(-of_samples, kind="stable")[: np.count_nonzero(of_samples)]
    return [
        Finding(
            f"what is predicted for rejected or missing entries of {evidence.sample.named_samples(samples)} is not "
            "told by the accepted ones, and may be far off: do not trust clean and inverse_transform there. Use fewer "
            "components. If rejected entries are right, use method='l2'."
        )
    ]
