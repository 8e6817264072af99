"""Predictions that the accepted entries do not determine: three ways to be wrong that residuals do not show.

By least squares an entry has a part in its own prediction, its leverage. Leave-one-out predictions, which follow from
it, say whether components describe the data or follow single entries. And where a rejected or missing entry would have
a large leverage, its prediction is an extrapolation that nothing bounds.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from robustnmf.algorithm.least_squares import Comparison
from robustnmf.algorithm.leverage import leverages_of_fit, own_parts
from robustnmf.data.quality import FEWEST_ENTRIES, Finding, Sample
from robustnmf.utils.cached import cached_property

Matrix = NDArray[Any]

# The numbers below were chosen on 69 sets of real data, clean and with ten kinds of errors and gaps, and checked on the
# 89 of `benchmarks/real_sets.py`.

# Zeros are looked at in features of which at most this share is zero, with so many zeros each and in all, if so many of
# the features have them. They are unpredicted if the leave-one-out prediction of a zero is larger than that of a
# positive entry with this probability, the area under a ROC curve, which is 0.5 by chance.
MOST_ZERO, FEWEST_ZEROS, ZEROS_IN_ALL, FEATURES_WITH_ZEROS, UNPREDICTED = 0.4, 3, 20, 0.1, 0.44
# If least squares takes all entries although so many looked wrong, components should predict better than means. In any
# case, squared errors of leave-one-out predictions should not be so many times the sum of squares.
LOOKED_WRONG, FAR_FROM_ZERO = 0.03, 1.5
# Rejected and missing entries whose leverage would exceed this, with this share of the sum of squares; and how many
# times they raise the root mean variance of predictions.
FULL_LEVERAGE, MUCH_OF_SQUARES, RAISES_VARIANCE = 1.0, 0.03, 1.2
# Or they are predicted to be so many times larger than any accepted entry of the feature, and of the data.
BEYOND_LARGEST = 2.0
# Of data with more gaps another warning says that there are too few entries.
MOST_UNKNOWN = 0.5
# The leave-one-out prediction of an entry of larger leverage would be a guess.
LARGEST_LEVERAGE = 1 - 1e-6
# Gram matrices of all samples and features take so many multiplications at most; more would take too long.
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
    """Leverages and leave-one-out predictions of the entries of some samples, in units of the largest entry."""

    def __init__(self, factors: Factors) -> None:
        self.sample, outliers, self.codes, self.components = factors
        largest = np.nanmax(self.sample.X, initial=0.0) or 1.0
        self.X = np.nan_to_num(self.sample.X / largest)
        self.accepted = ~outliers & ~np.isnan(self.sample.X)
        self.predicted = np.asarray((self.codes.astype(np.float64) / largest) @ self.components)

    @property
    def is_quick(self) -> bool:
        """Whether leverages are quick to compute."""
        return self.X.size * len(self.components) ** 2 <= MOST_PRODUCTS

    @cached_property
    def leverages(self) -> tuple[Matrix, Matrix]:
        """The leverage of each entry in the regression of its sample and in that of its feature, (n', m) each.

        That of an entry which is not accepted is what it would have beside the accepted ones.
        """
        return leverages_of_fit(self.codes, self.components, self.accepted, self.sample.every)

    @cached_property
    def leave_one_out(self) -> Matrix:
        """The prediction of each accepted entry by the others, (n', m), if coefficients that are zero stay so."""
        own = own_parts(self.codes, self.components, self.accepted, self.sample.every)
        found = self.X - (self.X - self.predicted) / (1 - np.minimum(own, LARGEST_LEVERAGE))
        return np.maximum(np.where(self.accepted, found, self.predicted), 0)


def undetermined_entries(factors: Factors, comparison: Comparison) -> list[Finding]:
    """Return what a user should know of predictions that the accepted entries do not determine."""
    evidence = Evidence(factors)
    if not evidence.is_quick:
        return []
    return [*unpredicted_zeros(evidence), *self_explained(evidence, comparison), *unbounded(evidence)]


def unpredicted_zeros(evidence: Evidence) -> list[Finding]:
    """Find zeros that were fitted like data, although the other entries predict them like positive ones.

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
    columns = [(evidence.leave_one_out[:, j], is_zero[:, j], sample.X[:, j] > 0) for j in features]
    probabilities = [_probability_larger(of[zero], of[positive]) for of, zero, positive in columns]
    if np.average(probabilities, weights=counts[features]) < UNPREDICTED:
        return []
    return [
        Finding(
            f"zeros, {n_zeros / np.count_nonzero(accepted):.1%} of the entries, of {sample.named(features)}, were "
            "fitted like data, but the other entries predict them to be as large as positive ones. If zero stands for "
            "missing, replace it by NaN before the fit.",
            features,
        )
    ]


def _probability_larger(some: Matrix, others: Matrix) -> float:
    """Return the probability that one of some numbers is larger than one of others (Mann and Whitney's statistic)."""
    ranks = rankdata(np.concatenate([some, others]))[: len(some)]
    return float((ranks.mean() - (len(some) + 1) / 2) / len(others))


def self_explained(evidence: Evidence, comparison: Comparison) -> list[Finding]:
    """Find a fit that accepts entries because it explains them, although the other entries do not predict them."""
    X, accepted = evidence.X, evidence.accepted
    accepted = accepted & (accepted.mean(axis=1, keepdims=True) > MOST_UNKNOWN)  # of the others there is a warning
    means = np.sum(X * accepted, axis=0) / np.maximum(accepted.sum(axis=0), 1)
    by_others, by_means, squares = (
        np.sum(np.where(accepted, X - other, 0) ** 2) for other in (evidence.leave_one_out, means, 0.0)
    )
    advice = (
        "components follow single entries, wrong ones included. Use fewer components, or give weight 0 to entries that "
        "you doubt."
    )
    if comparison.takes_all and comparison.rejected >= LOOKED_WRONG and by_others > by_means:
        return [
            Finding(
                f"{comparison.rejected:.1%} of the entries looked wrong, and were accepted because least squares on "
                "all entries explains them. But leave-one-out predictions are worse than the mean of each feature: "
                + advice
            )
        ]
    if by_others > FAR_FROM_ZERO * squares:
        return [Finding(f"leave-one-out predictions of accepted entries are worse than zeros would be: {advice}")]
    return []


def unbounded(evidence: Evidence) -> list[Finding]:
    """Find rejected or missing entries whose predictions the accepted ones of the sample, or feature, do not bound."""
    accepted, predicted = evidence.accepted, evidence.predicted
    n_unknown = accepted.size - np.count_nonzero(accepted)
    if not 0 < n_unknown <= MOST_UNKNOWN * accepted.size:
        return []
    largest = np.max(evidence.X, axis=0, where=accepted, initial=0.0)
    squares = np.where(accepted, 0.0, np.maximum(np.minimum(evidence.X, largest), predicted)) ** 2
    enough = MUCH_OF_SQUARES * np.sum(evidence.X**2, where=accepted)
    is_beyond = ~accepted & (predicted > BEYOND_LARGEST * largest.max(initial=0.0))
    if squares.sum() <= enough and not is_beyond.any():
        return []
    by_sample, by_feature = evidence.leverages
    squares = squares * (np.maximum(by_sample, by_feature) > FULL_LEVERAGE)
    added = np.sum(by_sample + by_feature, where=~accepted) / max(np.count_nonzero(accepted), 1)
    if squares.sum() <= enough or np.sqrt(1 + added) <= RAISES_VARIANCE:
        squares = squares * is_beyond
    if not squares.any():
        return []
    of_samples = squares.sum(axis=1)
    samples = evidence.sample.every * np.argsort(-of_samples, kind="stable")[: np.count_nonzero(of_samples)]
    return [
        Finding(
            f"predictions of rejected or missing entries of {evidence.sample.named_samples(samples)} are not "
            "determined by the accepted ones and may be far off: do not trust clean and inverse_transform there. Use "
            "fewer components. If the rejected entries are right, use RobustNMF(method='l2')."
        )
    ]
