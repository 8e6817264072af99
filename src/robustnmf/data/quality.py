"""What is suspicious about data: codes for missing, saturation, stuck detectors, units, too few or rejected entries.

Every finding names what was seen and what to do. Good data must stay without findings, so each check asks for more than
repetition: counts, ratings, images of 8 bits and tables of zeros and ones repeat their values by nature. Of large data
some samples are looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.data.blocks import Data
from robustnmf.engines.protocol import Engine
from robustnmf.utils.arrays import Array, Blocks, Namespace, subsample, to_host
from robustnmf.utils.cached import cached_property

Matrix = NDArray[Any]

# Entries that are looked at.
ENOUGH_ENTRIES = 2**18
# Data with no more different values is discrete: an image of 8 bits has 256.
MOST_LEVELS = 300
# A feature is continuous if this share of its positive entries are different from each other.
MOSTLY_DIFFERENT = 0.3
# What is said of a feature needs so many entries.
FEWEST_ENTRIES = 10
# A code for missing is so many times the next value, and is there so often.
FAR_ABOVE, FEWEST_CODES = 2.0, 3
FILL_VALUES = (2.0**15 - 1, 2.0**16 - 1, 2.0**31 - 1, 2.0**32 - 1, 1e20, 1e30, 9.969209968386869e36)
# Zero is a code where nearly all of many positive entries are above this part of their median, and zeros neither rare
# nor common.
AWAY_FROM_ZERO, FEWEST_POSITIVE, ZEROS = 0.7, 30, (0.005, 0.5)
# Where small entries have been set to zero there is no tail of small ones: the lowest of twenty is near the least.
TAIL = 0.2
# Saturation: the largest value has this share, is so many times as common as any other, and values near it occur.
SATURATED, PILED_UP, NEAR, FEWEST_NEAR = 0.01, 20, 0.9, 5
# A detector is stuck that repeats a value in so many consecutive samples, or this share of them; not one of the lowest.
LONGEST_RUN, STUCK, LOWEST = 10, 0.02, 0.1
# Identical samples are suspicious if they are this many, and this share.
FEWEST_COPIES, COPIED = 10, 0.05
# The largest feature is too large beyond this many times the one at this quantile: weak features do no harm.
SIZE_RATIO, WEAK = 30.0, 0.25
# Observed entries per parameter: of complete data, a full rank has 1.
PER_PARAMETER, PER_PARAMETER_OF_COMPLETE = 3.0, 1.2
# Most of a feature, a sample or the signal is rejected; of a feature or sample so much more than of the others.
MOST, BEYOND_THE_REST, NEARLY_ALL = 0.5, 0.25, 0.9
# Names in a sentence, at most.
NAMED = 5


def findings(sample: "Sample", data: Data, rank: int) -> list[str]:
    """Return what a user should know of the data that is fitted, in sentences; nothing for good data.

    Parameters
    ----------
    sample : Sample
        Some of the data.
    data : Data
        Checked, in units of X.
    rank : int
        Number of components.
    """
    found = [*codes_for_missing(sample), *zeros_for_missing(sample), *saturation(sample)]
    found += [*stuck_features(sample), *repeated_samples(sample)]
    found += different_sizes(sample) if data.noise is None else []
    return [*found, *too_few_entries(data, rank)]


@dataclass(frozen=True)
class Sample:
    """Some samples of the data, and what is known of its features."""

    X: Matrix
    """(n', m), on the host, NaN where missing."""
    every: int = 1
    """Every so many samples of the data are here."""
    names: Any = None
    """Names of the features."""

    @classmethod
    def of(cls, data: Data, engine: Engine, names: Any = None) -> "Sample":
        """Return some samples, evenly spread."""
        lengths, n_features = [len(block) for block in data.X], data.shape[1]
        every = max(1, sum(lengths) * n_features // ENOUGH_ENTRIES)
        chosen = subsample(lengths, every)

        def part(blocks: Blocks) -> Matrix:
            rows: Matrix = to_host(engine.join(engine.map(_chosen_rows, blocks, chosen)))
            return rows.astype(np.float64, copy=False)

        X = part(data.X)
        return cls(X if data.M is None else np.where(part(data.M) > 0, X, np.nan), every, names)

    @cached_property
    def ordered(self) -> Matrix:
        """The entries of each feature in ascending order, missing ones last."""
        return np.sort(self.X, axis=0)

    @cached_property
    def n_positive(self) -> Matrix:
        """Positive entries of each feature, (m,)."""
        return np.asarray(np.count_nonzero(self.X > 0, axis=0))

    @cached_property
    def n_zero(self) -> Matrix:
        """Zeros of each feature, (m,)."""
        return np.asarray(np.count_nonzero(self.X == 0, axis=0))

    @cached_property
    def continuous(self) -> Matrix:
        """Which features have values that repeat no more than those of measurements do, (m,)."""
        if len(self.values[0]) <= MOST_LEVELS:
            return np.zeros(self.X.shape[1], dtype=bool)
        different = np.count_nonzero(np.diff(self.ordered, axis=0, prepend=0.0) > 0, axis=0)
        return np.asarray((self.n_positive >= FEWEST_ENTRIES) & (different >= MOSTLY_DIFFERENT * self.n_positive))

    @cached_property
    def values(self) -> tuple[Matrix, Matrix]:
        """The positive values that occur, and how often."""
        values, counts = np.unique(self.X[self.X > 0], return_counts=True)
        return values, counts

    @cached_property
    def levels(self) -> Matrix:
        """The median of the positive entries of each feature, NaN where they are few, (m,)."""
        return np.where(self.n_positive >= FEWEST_ENTRIES, self.positive_quantile(0.5), np.nan)

    def positive_quantile(self, q: float) -> Matrix:
        """Return a quantile of the positive entries of each feature, (m,); something else where there are none."""
        place = np.minimum(self.n_zero + (q * self.n_positive).astype(int), len(self.X) - 1)
        return np.asarray(self.ordered[place, np.arange(self.X.shape[1])])

    def named(self, features: Matrix) -> str:
        """Return features, (k,) of int, by name or number."""
        return listed("feature", features, self.names)


def listed(what: str, places: Matrix, names: Any = None) -> str:
    """Return features or samples by name, or by number if they have none, for a sentence.

    Examples
    --------
    >>> listed("feature", np.array([2, 0]), ["a", "b", "c"])
    "2 features ('c', 'a')"
    """
    shown = [repr(str(names[place])) if names is not None else str(place) for place in places[:NAMED].tolist()]
    more = ", ..." if len(places) > NAMED else ""
    return f"{len(places)} {what}{'s' if len(places) > 1 else ''} ({', '.join(shown)}{more})"


# --- The checks -------------------------------------------------------------------------------------------------------


def codes_for_missing(sample: Sample) -> Iterator[str]:
    """Find values such as 9999 that stand far above all others of their features."""
    X = sample.X
    top = np.fmax.reduce(X, axis=0, initial=0.0)
    is_top = top == X
    next_below = np.fmax.reduce(np.where(is_top, np.nan, X), axis=0, initial=0.0)
    counts = np.count_nonzero(is_top, axis=0)
    for value in np.unique(top[(top > FAR_ABOVE * next_below) & (next_below > 0)]):
        features = np.flatnonzero((top == value) & (value > FAR_ABOVE * next_below))
        if is_code(value) and counts[features].sum() >= FEWEST_CODES:
            yield (
                f"the value {value:g} is in {_share(counts[features].sum(), X)} of the entries, of "
                f"{sample.named(features)}, and far above all others there. If it stands for missing, replace it by "
                "NaN before the fit."
            )


def is_code(value: float) -> bool:
    """Return whether a number is used as a code for missing: nines, or a fill value of a file format.

    Examples
    --------
    >>> [is_code(value) for value in (9999.0, 99.9, 65535.0, 50.0, 9.0)]
    [True, True, True, False, False]
    """
    digits = f"{value:g}".replace(".", "")
    return value in FILL_VALUES or (len(digits) > 1 and set(digits) == {"9"})


def zeros_for_missing(sample: Sample) -> Iterator[str]:
    """Find zeros in features whose other entries are all far from zero."""
    X = sample.X
    n_zeros = sample.n_zero - np.count_nonzero(
        ~(X > 0).any(axis=1)
    )  # samples that are zero throughout are another matter
    share = n_zeros / np.maximum(sample.n_zero + sample.n_positive, 1)
    lowest, low = sample.positive_quantile(0.0), sample.positive_quantile(0.05)
    far = (low >= AWAY_FROM_ZERO * sample.levels) & (sample.n_positive >= FEWEST_POSITIVE)
    far &= low - lowest >= TAIL * (sample.levels - lowest)
    features = np.flatnonzero(sample.continuous & far & (share >= ZEROS[0]) & (share <= ZEROS[1]))
    # Where zeros are data, most features that have some have small entries too.
    if features.size and 2 * features.size >= np.count_nonzero(n_zeros) and n_zeros[features].sum() >= FEWEST_CODES:
        yield (
            f"{_share(n_zeros[features].sum(), X)} of the entries are zero, in {sample.named(features)} whose other "
            "entries are far from zero. If zero stands for missing, replace it by NaN before the fit."
        )


def saturation(sample: Sample) -> Iterator[str]:
    """Find a largest value at which measurements pile up."""
    X = sample.X[:, sample.continuous]
    values, counts = sample.values
    if not X.size:
        return
    largest = np.nanmax(X)
    is_largest = largest == X
    n_largest, n_near = np.count_nonzero(is_largest), np.count_nonzero((X >= NEAR * largest) & ~is_largest)
    others = counts[values != largest].max(initial=1)
    # Samples that were divided by their largest entry have it once each, and so have features.
    once = any(n_largest <= 1.5 * np.count_nonzero(is_largest.any(axis=axis)) for axis in (0, 1))
    enough = max(SATURATED * np.count_nonzero(X > 0), PILED_UP * others, FEWEST_ENTRIES)
    if n_largest >= enough and n_near >= FEWEST_NEAR and not once:
        yield (
            f"the largest value, {largest:g}, is in {_share(n_largest, sample.X)} of the entries: a detector seems to "
            f"saturate there. Give these entries weight 0 (weights=X < {float(largest)!r}), or NaN."
        )


def stuck_features(sample: Sample) -> Iterator[str]:
    """Find features that repeat one value in many consecutive samples."""
    X, n_samples = sample.X, len(sample.X)
    if n_samples < 2 or not sample.continuous.any():
        return
    # What lies below a limit of detection is often set to one low value, and what is above the range to a high one.
    low = sample.positive_quantile(LOWEST)
    repeats = (X[1:] == X[:-1]) & (X[1:] > low) & (X[1:] < np.nanmax(X[:, sample.continuous]))
    place = np.arange(1, n_samples)[:, None]
    runs = 1 + place - np.maximum.accumulate(np.where(repeats, 0, place), axis=0)
    longest = runs.max(axis=0)
    features = np.flatnonzero(sample.continuous & (longest >= max(LONGEST_RUN, STUCK * n_samples)))
    if features.size:
        value = X[1 + runs[:, features[0]].argmax(), features[0]]
        yield (
            f"one value is repeated in up to {sample.every * longest[features].max()} consecutive samples of "
            f"{sample.named(features)}, {value:g} in the first of them: a detector seems to be stuck. Replace these "
            "entries by NaN, or give them weight 0."
        )


def repeated_samples(sample: Sample) -> Iterator[str]:
    """Find samples that are copies of each other, or have one value in all features."""
    X = np.nan_to_num(sample.X[:, sample.continuous], nan=-1.0)
    n_samples, n_features = X.shape
    if n_features < 3:
        return
    enough = max(FEWEST_COPIES, COPIED * n_samples)
    has_signal = X.max(axis=1) > 0
    _, groups, counts = np.unique(X[has_signal], axis=0, return_inverse=True, return_counts=True)
    if counts.max(initial=0) >= enough:
        copies = np.flatnonzero(has_signal)[groups.ravel() == counts.argmax()]
        yield (
            f"{listed('sample', sample.every * copies)} are identical, {copies.size / n_samples:.1%} of those looked "
            "at: a detector may be stuck, or samples may be repeated. Remove the copies, or give them weight 0."
        )
    constant = np.flatnonzero(has_signal & (X == X[:, :1]).all(axis=1))
    if constant.size >= max(FEWEST_CODES, STUCK * n_samples):
        yield (
            f"{listed('sample', sample.every * constant)} have the same value in all features, "
            f"{constant.size / n_samples:.1%} of those looked at. If nothing was measured there, remove them, or "
            "replace them by NaN."
        )


def different_sizes(sample: Sample) -> list[str]:
    """Find features whose typical entries differ by a large factor."""
    levels = sample.levels
    known = np.flatnonzero(levels > 0)
    if known.size < 2:
        return []
    order = known[np.argsort(levels[known], kind="stable")]
    low, high = order[int(WEAK * (order.size - 1))], order[-1]
    if levels[high] / SIZE_RATIO <= levels[low]:
        return []
    ratio, (smaller, larger) = min(levels[high] / levels[low], 1e300), (_one(sample, place) for place in (low, high))
    return [
        f"features differ in size: the median of {larger} is {ratio:.3g} times that of {smaller}, and one noise level "
        "is assumed for all, so that the large features decide the fit or are rejected. Divide each feature by its "
        "typical level, such as its median, before the fit, or pass uncertainties."
    ]


def _one(sample: Sample, feature: int) -> str:
    """Return the name of one feature for a sentence."""
    return f"feature {feature}" if sample.names is None else repr(str(sample.names[feature]))


def too_few_entries(data: Data, rank: int) -> list[str]:
    """Find data with too few observed entries for so many components."""
    n_samples, n_features = data.shape
    n_parameters = rank * (n_samples + n_features - rank)
    n_observed = n_samples * n_features if data.seen is None else int(np.sum(data.seen))
    is_complete = n_observed == n_samples * n_features
    if is_complete and rank == 1:  # it is what it is: nothing is predicted
        return []
    if n_observed >= (PER_PARAMETER_OF_COMPLETE if is_complete else PER_PARAMETER) * n_parameters:
        return []
    return [
        f"{n_observed} observed entries are few for the {n_parameters} parameters of {rank} components: what is "
        "predicted where nothing is observed may be arbitrary. Use fewer components, or drop samples and features "
        "that are mostly missing."
    ]


# --- After the fit ----------------------------------------------------------------------------------------------------


def rejected(sample: Sample, data: Data, outliers: Array, engine: Engine, sample_names: Any = None) -> list[str]:
    """Return what a user should know if most of a feature, of a sample or of the signal is rejected, in sentences.

    The signal is the sum of squares. Entries count in it up to the typical size of their feature, so that gross errors
    are not taken for signal.

    Parameters
    ----------
    outliers : (n_samples, n_features) of bool
        Where observed entries are rejected, where the engine works.
    sample_names : sequence or None
        Names of the samples.
    """
    levels = engine.place(np.nan_to_num(sample.levels))
    blocks = (data.X, data.M, engine.split(outliers, like=data.X))
    counted, sums = engine.map_and_sum(_count_rejected, *blocks, levels=levels)
    by_sample = [to_host(engine.join(part)) for part in counted]
    *by_feature, squares = (to_host(part) for part in sums)
    features, samples = (_mostly_rejected(*counts) for counts in (by_feature, by_sample))
    found = []
    if features.size:
        found.append(
            f"over half of the entries of {sample.named(features)} are rejected as outliers. Check their units and "
            "values. If they are right, divide each feature by its typical level before the fit, or use more "
            "components; if not, drop them."
        )
    if samples.size:
        found.append(
            f"over half of the entries of {listed('sample', samples, sample_names)} are rejected as outliers: their "
            "codes rest on little. If they are right, use more components; if not, drop them."
        )
    if squares[0] > MOST * squares[1]:
        found.append(
            f"{squares[0] / squares[1]:.0%} of the signal (sum of squares, gross errors aside) is rejected as "
            "outliers: the components do not describe the strongest part of the data. Divide each feature by its "
            "typical level before the fit, use more components, or compare with method='l2'."
        )
    return found


def _mostly_rejected(n_rejected: Matrix, n_observed: Matrix) -> NDArray[np.intp]:
    """Return the features, or samples, most of whose entries are rejected, and clearly more than those of others."""
    limit = max(MOST, min(n_rejected.sum() / n_observed.sum() + BEYOND_THE_REST, NEARLY_ALL))
    return np.flatnonzero((n_rejected > limit * n_observed) & (n_observed >= FEWEST_ENTRIES))


# --- On a block ---------------------------------------------------------------------------------------------------


def _chosen_rows(Y: Array, chosen: slice, *, xp: Namespace) -> Array:
    return xp.asarray(Y[chosen], copy=True)  # a view would keep the whole block


def _count_rejected(
    Y: Array, M: Array | None, outliers: Array, *, levels: Array, xp: Namespace
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
    """Return rejected and observed entries of each sample; those of each feature, and rejected and all squares."""
    observed = xp.ones_like(outliers) if M is None else M > 0
    limit = xp.astype(levels, Y.dtype)
    limited = xp.where(Y < limit, Y, limit) / xp.max(limit) if xp.any(limit > 0) else xp.zeros_like(Y)
    squares = xp.where(observed, limited * limited, 0)
    both = [xp.sum(part, dtype=xp.float64) for part in (xp.where(outliers, squares, 0), squares)]
    by_sample, by_feature = (
        tuple(xp.sum(part, axis=axis, dtype=xp.int64) for part in (outliers, observed)) for axis in (1, 0)
    )
    return by_sample, (*by_feature, xp.stack(both))


def _share(count: Any, X: Matrix) -> str:
    """Return for which share of the observed entries something holds."""
    return f"{count / np.count_nonzero(~np.isnan(X)):.2%}"
