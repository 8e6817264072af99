"""What is suspicious about data: codes for missing, saturation, stuck detectors, sizes, too few or rejected entries.

Every finding names what was seen and what to do. Good data must stay without findings, so each check asks for more than
repetition: counts, ratings, images of 8 bits and tables of zeros and ones repeat their values by nature. Nothing is
said twice: what one finding names, the next leaves out. Of large data some samples are looked at.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, log, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.data.blocks import Data
from robustnmf.data.repeated_values import without_values
from robustnmf.data.sparse import is_sparse
from robustnmf.engines.lazy import chosen_rows
from robustnmf.engines.protocol import Engine
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.utils.arrays import Array, Blocks, Namespace, subsample, to_host
from robustnmf.utils.cached import cached_property
from robustnmf.utils.observed import count_observed
from robustnmf.utils.process_state import ignored_warnings
from robustnmf.utils.slices import cuts_of

Matrix = NDArray[Any]
Places = NDArray[np.intp]


class Gap(NamedTuple):
    """What lies between a feature's entries and a part of them in another unit."""

    fewest: int
    """Entries that the part has at least."""
    times: float
    """How many times smaller or larger the next of them is."""
    beyond: float
    """Width of the gap, relative to that of either group, in logarithms."""


# Entries that are looked at.
ENOUGH_ENTRIES = 2**18
# Data with no more different values is discrete: an image of 8 bits has 256.
MOST_LEVELS = 300
# A feature is continuous if this share of its positive entries are different from each other.
MOSTLY_DIFFERENT = 0.3
# What is said of a feature, or of a value, needs so many entries.
FEWEST_ENTRIES = 10
# A code for missing is so many times the next value, and is there so often;
FAR_ABOVE, FEWEST_CODES = 2.0, 3
# or it has so many digits and this share of the entries.
LONG_CODE, COMMON_CODE = 3, 0.005
FILL_VALUES = (2.0**15 - 1, 2.0**16 - 1, 2.0**31 - 1, 2.0**32 - 1, 1e20, 1e30, 9.969209968386869e36)
# A value piles up that is so many times as common as any other, in the data and in one feature.
PILED_UP, PILED_UP_IN_FEATURE = 20, 5
# Zero is a code where nearly all of many positive entries are above this part of their median, and zeros neither rare
# nor common.
AWAY_FROM_ZERO, FEWEST_POSITIVE, ZEROS = 0.7, 30, (0.005, 0.5)
# Where small entries have been set to zero there is no tail of small ones: the lowest of twenty is near the least.
TAIL = 0.2
# Saturation: the largest value piles up, has this share of the positive entries, and values near it occur.
SATURATED, NEAR, FEWEST_NEAR = 0.01, 0.9, 5
# In data of discrete values so many of them must occur, and the largest has at most this share of the entries.
FEWEST_LEVELS, MOST_COVERED = 30, 0.5
# The largest value is once in each sample, or feature, that has it, if it is no more often.
ONCE = 1.5
# Features saturate each at its own largest value if so many do, with this share and so many entries each.
MOST_FEATURES, SATURATED_FEATURE, FEWEST_SATURATED = 0.5, 0.02, 5
# A detector is stuck that repeats a value in so many consecutive samples, or this share of them; not one of the lowest.
LONGEST_RUN, STUCK, LOWEST = 10, 0.02, 0.1
# So is one of which this share is one value, so many times as common as the next.
STUCK_VALUE, BEYOND_THE_NEXT = 0.3, 10
# With fewer different values, repetition tells nothing.
FEWEST_VALUES = 10
# Samples that are identical, or have one value in all features, are suspicious if they are so many, and this share.
FEWEST_COPIES, FEWEST_CONSTANT, COPIED = 10, 3, 0.05
# A sample with fewer different values may be like others by chance.
FEWEST_DIFFERENT = 3
# The largest feature is too large beyond this many times the one at this quantile: weak features do no harm.
SIZE_RATIO, WEAK = 30.0, 0.25
# Observed entries per parameter, of complete data and where nearly all is missing: a full rank of complete data has 1.
PER_PARAMETER = (1.2, 3.0)
# Most of a feature, a sample or the signal is rejected; of a feature or sample so much more than of the others.
MOST, BEYOND_THE_REST = 0.5, 0.25
NEARLY_ALL = 0.9
# Truth values that are counted at a time.
COUNTED_ENTRIES = 2**22
# It is predicted well if its median residual is no more than this part of its median entry.
WELL_PREDICTED = 0.05
# A part of a feature is in another unit if it has at least this share of its entries, and such a gap to the others.
# Where a continuous feature varies little, a part in another unit is nearer.
FEWEST_OF_GROUP = 0.03
WIDE_GAP, GAP_OF_NARROW = Gap(FEWEST_ENTRIES, 5.0, 1.5), Gap(6, 1.5, 8.0)
# If so much of the sum of squares is rejected and least squares on all entries leaves at most this part of its
# residuals, the largest entries may be right: it leaves nearly all of those of errors.
MUCH_OF_SQUARES, IN_PART = 0.3, 0.8
# Names in a sentence, at most.
NAMED = 5
NOTHING: Places = np.zeros(0, dtype=np.intp)


class Finding(NamedTuple):
    """One thing that a user should know."""

    message: str
    """What was seen and what to do."""
    features: Places = NOTHING
    """Features that it names."""
    samples: Places = NOTHING
    """Samples that it names, of those that were looked at."""


def findings(sample: "Sample", data: Data, rank: int, *, features_are_scaled: bool = True) -> list[Finding]:
    """Return what a user should know of the data that is fitted; nothing for good data.

    Parameters
    ----------
    sample : Sample
        Some of the data.
    data : Data
        Checked, in units of X.
    rank : int
        Number of components.
    features_are_scaled : bool
        Whether the fit brings features to one size where it must.
    """
    found: list[Finding] = []
    for check in CHECKS:
        found += check(sample.without(found))
    if not features_are_scaled and data.noise is None:
        found += different_sizes(sample)
    return found + too_few_entries(data, rank)


@dataclass(frozen=True)
class Sample:
    """Some samples of the data, and what is known of its features."""

    X: Matrix
    """(n', m), on the host, NaN where missing."""
    every: int = 1
    """Every so many samples of the data are here."""
    names: Any = None
    """Names of the features."""
    sample_names: Any = None
    """Names of all samples of the data."""
    known: tuple[int, ...] = ()
    """Features of which something was found already."""

    @classmethod
    def of(cls, data: Data, engine: Engine, names: Any = None, sample_names: Any = None) -> "Sample":
        """Return some samples, evenly spread."""
        lengths, n_features = [len(block) for block in data.X], data.shape[1]
        every = max(1, sum(lengths) * n_features // ENOUGH_ENTRIES)
        chosen = subsample(lengths, every)

        def part(blocks: Blocks) -> Matrix:
            rows: Matrix = to_host(engine.join(engine.map(chosen_rows, blocks, chosen)))
            return rows.astype(np.float64, copy=False)

        X = part(data.X)
        return cls(X if data.M is None else np.where(part(data.M) > 0, X, np.nan), every, names, sample_names)

    def without(self, found: list[Finding]) -> "Sample":
        """Return what is left where samples that were named are missing, and features that were are known."""
        rows = [finding.samples // self.every for finding in found if finding.samples.size]
        known = tuple(place for finding in found for place in finding.features.tolist())
        if not rows:
            return replace(self, known=known) if known else self
        X = self.X.copy()
        X[np.concatenate(rows)] = np.nan
        return replace(self, X=X, known=known)

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
    def gaps(self) -> Matrix:
        """Differences between the logarithms of neighbours in `ordered`, (n' - 1, m)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.diff(np.log(self.ordered), axis=0)

    @cached_property
    def values(self) -> tuple[Matrix, Matrix]:
        """The positive values that occur, and how often."""
        values, counts = np.unique(self.X[self.X > 0], return_counts=True)
        return values, counts

    @cached_property
    def is_normalised(self) -> bool:
        """Whether samples, or features, were divided by their largest entry: then nearly all have the largest once."""
        values, counts = self.values
        is_largest = values[-1:].max(initial=-1.0) == self.X
        n_with = [(np.count_nonzero(is_largest.any(axis=axis)), self.X.shape[1 - axis]) for axis in (0, 1)]
        return any(counts[-1:].sum() <= ONCE * n and n >= NEARLY_ALL * n_all for n, n_all in n_with)

    @cached_property
    def common_codes(self) -> Matrix:
        """Values of many digits that are codes for missing by their look, and far more common than any other."""
        values, counts = self.values
        if len(values) < 2:
            return values[:0]
        place = counts.argmax()
        enough = max(COMMON_CODE * counts.sum(), PILED_UP * np.delete(counts, place).max(), FEWEST_ENTRIES)
        value, count = values[place], counts[place]
        return values[[place] if count >= enough and value > 10**LONG_CODE / 2 and is_code(value) else []]

    @cached_property
    def levels(self) -> Matrix:
        """The median of the positive entries of each feature, NaN where they are few, (m,)."""
        return np.where(self.n_positive >= FEWEST_ENTRIES, self.positive_quantile(0.5), np.nan)

    def positive_quantile(self, q: float) -> Matrix:
        """Return a quantile of the positive entries of each feature, (m,); something else where there are none."""
        place = np.minimum(self.n_zero + (q * self.n_positive).astype(int), len(self.X) - 1)
        return np.asarray(self.ordered[place, np.arange(self.X.shape[1])])

    @cached_property
    def repeats(self) -> Matrix:
        """Of each feature the most common positive value, how often it occurs, and how often the next one does, (3, m).

        Zero where there is none.
        """
        every, ordered = np.arange(self.X.shape[1]), self.ordered
        runs = np.where(ordered > 0, _runs(ordered), 0)
        place = runs.argmax(axis=0)
        common, n_common = np.nan_to_num(ordered[place, every]), runs[place, every]
        n_next = np.where(ordered == common, 0, runs).max(axis=0, initial=0)
        return np.stack([np.where(n_common > 0, common, 0.0), n_common, n_next])

    def new(self, are: Matrix) -> Places:
        """Return the features for which something holds, (m,) of bool, but for those of which something is known."""
        return np.array([place for place in np.flatnonzero(are) if place not in self.known], dtype=np.intp)

    def named(self, features: Matrix) -> str:
        """Return features, (k,) of int, by name or number."""
        return listed("feature", features, self.names)

    def named_samples(self, samples: Matrix) -> str:
        """Return samples of the data, (k,) of int, by name or number."""
        return listed("sample", samples, self.sample_names)


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


def repeated_samples(sample: Sample) -> Iterator[Finding]:
    """Find samples that are copies of each other, or have one value in all features."""
    X = np.nan_to_num(sample.X, nan=-1.0)
    n_samples, n_features = X.shape
    n_values = len(sample.values[0])
    if n_values < FEWEST_VALUES or n_features < (FEWEST_DIFFERENT if n_values > MOST_LEVELS else FEWEST_ENTRIES):
        return
    is_constant = (X[:, 0] > 0) & (X == X[:, :1]).all(axis=1)
    constant = sample.every * np.flatnonzero(is_constant)
    # If most samples are like that, it is the nature of the data.
    if max(FEWEST_CONSTANT, COPIED * n_samples) <= constant.size <= n_samples / 2:
        yield Finding(
            f"{sample.named_samples(constant)} have the same value in all features, {constant.size / n_samples:.1%} of "
            "those looked at. If nothing was measured there, remove them, or replace them by NaN.",
            samples=constant,
        )
    copies = sample.every * _copies(X, max(FEWEST_COPIES, COPIED * n_samples))
    if copies.size:
        yield Finding(
            f"{sample.named_samples(copies)} are identical, {copies.size / n_samples:.1%} of those looked at: a "
            "detector may be stuck, or samples may be repeated. Remove the copies, or give them weight 0.",
            samples=copies,
        )


def _copies(X: Matrix, fewest: float) -> Places:
    """Return the rows of X that are identical and so many, if any; rows with few different values are left out."""
    for content, count in Counter(row.tobytes() for row in X).most_common():
        row = np.frombuffer(content)
        if count < fewest:
            break
        if len(np.unique(row[row > 0])) >= FEWEST_DIFFERENT:
            return np.flatnonzero((X == row).all(axis=1))
    return NOTHING


def codes_for_missing(sample: Sample) -> Iterator[Finding]:
    """Find values such as 9999 that stand far above all others of their features, or are by far the most common."""
    X = sample.X
    top = np.fmax.reduce(X, axis=0, initial=0.0)
    next_below = np.fmax.reduce(np.where(top == X, np.nan, X), axis=0, initial=0.0)
    far_above = (top > FAR_ABOVE * next_below) & (next_below > 0)
    for value in np.union1d(top[far_above], sample.common_codes):
        is_value = X == value
        if value not in sample.common_codes:
            is_value &= far_above
        count, features = np.count_nonzero(is_value), np.flatnonzero(is_value.any(axis=0))
        if is_code(value) and count >= FEWEST_CODES:
            why = "far above all others there" if far_above[features].all() else "far more common than any other"
            yield Finding(
                f"the value {value:g} is in {_share(count, X)} of the entries, of {sample.named(features)}, and {why}. "
                f"If it stands for missing, replace it by NaN before the fit, or use missing_value={value:g} when the "
                "file is read.",
                features,
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


def zeros_for_missing(sample: Sample) -> Iterator[Finding]:
    """Find zeros in features whose other entries are all far from zero."""
    X = sample.X
    # Samples that are zero throughout are another matter.
    n_zeros = sample.n_zero - np.count_nonzero((X == 0).any(axis=1) & ~(X > 0).any(axis=1))
    share = n_zeros / np.maximum(sample.n_zero + sample.n_positive, 1)
    lowest, low = sample.positive_quantile(0.0), sample.positive_quantile(0.05)
    far = (low >= AWAY_FROM_ZERO * sample.levels) & (sample.n_positive >= FEWEST_POSITIVE)
    far &= low - lowest >= TAIL * (sample.levels - lowest)
    features = np.flatnonzero(sample.continuous & far & (share >= ZEROS[0]) & (share <= ZEROS[1]))
    # Where zeros are data, most features that have some have small entries too.
    if features.size and 2 * features.size >= np.count_nonzero(n_zeros) and n_zeros[features].sum() >= FEWEST_CODES:
        yield Finding(
            f"{_share(n_zeros[features].sum(), X)} of the entries are zero, in {sample.named(features)} whose other "
            "entries are far from zero. If zero stands for missing, replace it by NaN before the fit.",
            features,
        )


def saturation(sample: Sample) -> Iterator[Finding]:
    """Find a largest value at which measurements pile up."""
    X, (values, counts) = sample.X, sample.values
    if len(values) <= MOST_LEVELS:
        return
    n_near = np.count_nonzero(values >= NEAR * values[-1]) - 1
    enough = max(SATURATED * counts.sum(), PILED_UP * counts[:-1].max(), FEWEST_ENTRIES)
    if counts[-1] >= enough and n_near >= FEWEST_NEAR and not sample.is_normalised:
        yield Finding(
            f"the largest value, {values[-1]:g}, is in {_share(counts[-1], X)} of the entries: a detector seems to "
            f"saturate there. Give these entries weight 0 (weights=X < {float(values[-1])!r}), or NaN.",
            np.flatnonzero((values[-1] == X).any(axis=0)),
        )
    else:
        yield from saturation_of_features(sample)


def saturation_of_features(sample: Sample) -> Iterator[Finding]:
    """Find features that pile up each at its own largest value."""
    X, (common, n_common, n_next) = sample.X, sample.repeats
    largest = np.fmax.reduce(X, axis=0, initial=0.0)
    n_near = np.count_nonzero((X >= NEAR * largest) & (X < largest), axis=0)
    enough = np.maximum(SATURATED_FEATURE * sample.n_positive, FEWEST_SATURATED)
    piled_up = (common == largest) & (n_common >= enough) & (n_common >= PILED_UP_IN_FEATURE * n_next) & (n_near > 0)
    features, n_judged = sample.new(piled_up), np.count_nonzero(sample.n_positive >= FEWEST_ENTRIES)
    if features.size >= max(MOST_FEATURES * n_judged, 1) and n_common[features].sum() >= FEWEST_ENTRIES:
        yield Finding(
            f"the largest value of {sample.named(features)} is in "
            f"{_share(n_common[features].sum(), X[:, features])} of their entries: detectors seem to saturate, or "
            "values were clipped. Give these entries weight 0 (weights=X < X.max(axis=0)), or NaN.",
            features,
        )


def stuck_features(sample: Sample) -> Iterator[Finding]:
    """Find features that repeat one value in consecutive samples, or far more often than any other."""
    X, common = sample.X, sample.repeats[0]
    # What lies below a limit of detection is often set to one low value.
    low, high = sample.positive_quantile(LOWEST), sample.values[0].max(initial=0.0) if sample.is_normalised else np.inf
    runs = np.where((X > low) & (X < high), _runs(X), 0)
    is_run = sample.continuous & (runs.max(axis=0) >= max(LONGEST_RUN, STUCK * len(X)))
    is_common = _is_one_value(sample) & (common > low) & (common < high)
    features = sample.new(is_common | is_run)
    if features.size:
        first = features[0]
        value = common[first] if is_common[first] else X[runs[:, first].argmax(), first]
        share = _share(np.count_nonzero(X[:, first] == value), X[:, first])
        yield Finding(
            f"one value is repeated far too often in {sample.named(features)}: {value:g} in {share} of the entries of "
            f"{_one(sample, first)}. A detector seems to be stuck, or to saturate. Replace these entries by NaN, or "
            "give them weight 0.",
            features,
        )


def _is_one_value(sample: Sample) -> Matrix:
    """Return which features have one value far more often than any other, although they have many, (m,).

    Not of images of 8 bits: something white may cover part of them.
    """
    if len(sample.values[0]) <= MOST_LEVELS:
        return np.zeros(sample.X.shape[1], dtype=bool)
    _, n_common, n_next = sample.repeats
    n_values = np.count_nonzero(np.diff(sample.ordered, axis=0, prepend=0.0) > 0, axis=0)
    is_much = n_common >= np.maximum(STUCK_VALUE * sample.n_positive, FEWEST_ENTRIES)
    return np.asarray(is_much & (n_common >= BEYOND_THE_NEXT * n_next) & (n_values >= FEWEST_VALUES))


def _runs(X: Matrix) -> Matrix:
    """Return in how many consecutive samples, up to each, a feature has had its value, (n, m) as X."""
    place = np.arange(len(X), dtype=np.int32)[:, None]
    is_first = np.ones(X.shape, dtype=bool)
    is_first[1:] = X[1:] != X[:-1]
    first = np.where(is_first, place, np.int32(0))
    return np.asarray(1 + place - np.maximum.accumulate(first, axis=0, out=first))


def nothing_varies(sample: Sample) -> Iterator[Finding]:
    """Find data of which all entries are equal."""
    n_observed = np.count_nonzero(~np.isnan(sample.X))
    (values, counts), n_zero = sample.values, int(sample.n_zero.sum())
    if n_observed >= FEWEST_ENTRIES and max(n_zero, counts.max(initial=0)) == n_observed:
        value = 0.0 if n_zero else values[0]
        yield Finding(
            f"all entries are {value:g}: there is nothing to learn. Is this the right table, and in its unit?"
        )


CHECKS: tuple[Callable[[Sample], Iterator[Finding]], ...] = (
    nothing_varies,
    repeated_samples,
    codes_for_missing,
    zeros_for_missing,
    saturation,
    stuck_features,
)


def different_sizes(sample: Sample) -> list[Finding]:
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
    message = (
        f"features differ in size: the median of {larger} is {ratio:.3g} times that of {smaller}. Without scaling, the "
        "large ones decide the fit or are rejected. Use feature_scaling='robust' to let all count alike, or 'auto' to "
        "find what is wrong all the same, or pass uncertainties."
    )
    return [Finding(message)]


def _one(sample: Sample, feature: int) -> str:
    """Return the name of one feature for a sentence."""
    return f"feature {feature}" if sample.names is None else repr(str(sample.names[feature]))


def too_few_entries(data: Data, rank: int) -> list[Finding]:
    """Find data with too few observed entries for so many components."""
    n_samples, n_features = data.shape
    n_parameters = rank * (n_samples + n_features - min(rank, n_samples, n_features))
    n_observed = n_samples * n_features if data.seen is None else int(np.sum(data.seen))
    missing = 1 - n_observed / (n_samples * n_features)
    if missing == 0 and rank == 1:  # it is what it is: nothing is predicted
        return []
    if n_observed >= np.interp(missing, [0, 1], PER_PARAMETER) * n_parameters:
        return []
    consequence = "so many components can follow errors too. Use fewer components."
    if missing > 0:
        consequence = (
            "what is predicted where nothing is observed may be arbitrary. Use fewer components, or drop samples and "
            "features that are mostly missing."
        )
    few = f"{n_observed} observed entries are few for the {n_parameters} parameters of {rank} components"
    return [Finding(f"{few}: {consequence}")]


# --- After the fit ----------------------------------------------------------------------------------------------------


def rejected_with_pattern(sample: Sample, features: Places, predicted: float) -> Finding:
    """Return what a user should know of features whose rejected entries are predicted by others, to some share."""
    return Finding(
        f"entries of {sample.named(features)} are rejected as outliers, but follow a pattern: other rejected entries "
        f"predict {predicted:.0%} of them. They may be right, and belong to a group of samples that the components "
        "leave out. Look at outliers_. If they are right, use more components, or RobustNMF(method='l2') if there are "
        "no errors.",
        features,
    )


def rejected_values(values: Matrix, data: Data, engine: Engine) -> Finding:
    """Return what a user should know of values that are outliers wherever they occur, (k, m), NaN for none."""
    n_others, n_all = (
        engine.sum(count_observed, M) if M is not None else prod(data.shape)
        for M in (without_values(data, values, engine).M, data.M)
    )
    named = " and ".join(f"{value:g}" for value in np.nanmax(values, axis=1))
    several = len(values) > 1
    return Finding(
        f"the value{'s' if several else ''} {named} {'are' if several else 'is'} in {1 - n_others / n_all:.2%} of the "
        f"entries, and the others do not predict {'them' if several else 'it'}: these entries are outliers. Something "
        "may cover parts of the samples, a detector may saturate, or the value may stand for missing. If they are "
        "right, use repeated_values='data'."
    )


def accepted_cover(sample: Sample, outliers: Matrix) -> list[Finding]:
    """Find a largest value of discrete data that piles up beside the values near it, and was fitted like data.

    Something white covers parts of images of 8 bits, or a detector saturates. White backgrounds have more of the
    entries. The outliers are those of the sample, (n', m) of bool.
    """
    X, (values, counts) = sample.X, sample.values
    if not FEWEST_LEVELS <= len(values) <= MOST_LEVELS or sample.is_normalised:
        return []
    n_near, n_largest = counts[:-1][values[:-1] >= NEAR * values[-1]].max(initial=0), counts[-1]
    share = n_largest / np.count_nonzero(~np.isnan(X))
    if not SATURATED <= share <= MOST_COVERED or n_largest < PILED_UP * max(n_near, 1):
        return []
    is_largest = values[-1] == X
    if np.count_nonzero(outliers & is_largest) > n_largest / 2:
        return []
    return [
        Finding(
            f"the largest value, {values[-1]:g}, is in {_share(n_largest, X)} of the entries, values just below it are "
            "rare, and most of these entries were fitted like data. If something covers parts of the samples, or a "
            f"detector saturates, give them weight 0 (weights=X < {float(values[-1])!r}), or NaN."
        )
    ]


def accepted_units(sample: Sample, outliers: Matrix) -> list[Finding]:
    """Find features whose entries are in two groups far apart, both of which were fitted like data.

    A part of them may be in another unit: a component of its own explains it. The outliers are those of the sample.
    """
    found: dict[int, float] = {}
    for gap, where in ((WIDE_GAP, np.ones_like(sample.continuous)), (GAP_OF_NARROW, sample.continuous)):
        are_two, between = _two_groups(sample, gap)
        for j in np.flatnonzero(are_two & where).tolist():
            found[j] = found.get(j) or _accepted_ratio(sample.X[:, j], outliers[:, j], between[j])
    found = {j: found[j] for j in sorted(found) if found[j]}
    features = sample.new(np.isin(np.arange(sample.X.shape[1]), list(found)))
    if not features.size:
        return []
    return [
        Finding(
            f"entries of {sample.named(features)} are in two groups with nothing between, one about "
            f"{found[features[0]]:.3g} times the other, and both were fitted like data. If a part is in another unit, "
            "bring all to one, or give that part weight 0, or NaN.",
            features,
        )
    ]


def _two_groups(sample: Sample, gap: Gap) -> tuple[Matrix, Matrix]:
    """Return which features have two groups of positive entries, far apart for their widths, and what is between, (m,).

    Enough entries are on either side of the gap.
    """
    below = np.arange(1, len(sample.X))[:, None] - sample.n_zero  # positive entries below each gap
    fewest = np.maximum(FEWEST_OF_GROUP * sample.n_positive, gap.fewest)
    enough = np.minimum(below, sample.n_positive - below) >= fewest
    gaps = np.where(enough, sample.gaps, -np.inf)
    if not gaps.size:
        return np.zeros(sample.X.shape[1], dtype=bool), sample.n_positive
    place = gaps.argmax(axis=0)
    n_lower = np.clip(place + 1 - sample.n_zero, 0, sample.n_positive)
    widths = _widths(sample, sample.n_zero, n_lower), _widths(sample, place + 1, sample.n_positive - n_lower)
    every = np.arange(len(place))
    widest = gaps[place, every]
    are_two = (widest >= log(gap.times)) & (widest >= gap.beyond * np.maximum(*widths))  # NaN where there is no gap
    return are_two, np.sqrt(sample.ordered[place, every]) * np.sqrt(sample.ordered[place + 1, every])


def _widths(sample: Sample, first: Matrix, count: Matrix) -> Matrix:
    """Return between which factors 90 % of so many ordered entries are, from the first on, in logarithms, (m,)."""
    last, every = len(sample.X) - 1, np.arange(len(first))
    places = [np.minimum(first + np.rint(q * (count - 1)).astype(int), last) for q in (0.05, 0.95)]
    with np.errstate(divide="ignore", invalid="ignore"):
        lowest, highest = (np.log(sample.ordered[place, every]) for place in places)
        return np.asarray(np.abs(highest - lowest))


def _accepted_ratio(entries: Matrix, outliers: Matrix, between: float) -> float:
    """Return how many times the lower of two groups of a feature's entries, (n',), the upper is; else 0.

    It is 0 if most of either is rejected.
    """
    groups = entries > between, (entries > 0) & (entries < between)
    if any(outliers[group].mean() > MOST for group in groups):
        return 0.0
    upper, lower = (float(np.exp(np.median(np.log(entries[group])))) for group in groups)
    return upper / lower


def rejected(
    sample: Sample,
    data: Data,
    outliers: Array,
    engine: Engine,
    *,
    found: list[Finding],
    factors: tuple[Array, Matrix] | None = None,
    fit_warns: bool = False,
    sizes_count_alike: bool = False,
    unexplained: float = inf,
) -> list[Finding]:
    """Return what a user should know if most of a feature, of a sample or of the signal is rejected, or a cover is not.

    Parameters
    ----------
    outliers : (n_samples, n_features) of bool
        Where observed entries are rejected, where the engine works.
    found : list of Finding
        What was found in the data: features that it names are not named again, unless it names most of all, which does
        not say why one of them is rejected; nor are samples if it names any.
        Nothing is said of the signal then: what was found is the first thing to look at.
    factors : codes (n_samples, r) and components (r, n_features), or None
        In units of X. A feature, or sample, that they predict well is not named: where there is hardly any noise, small
        residuals are outliers too.
    fit_warns : bool
        Whether the fit itself warns that it should not be trusted; then nothing is said of the signal either.
    sizes_count_alike : bool
        Whether the fit divides features by their sizes already, so that it is no advice to do so.
    unexplained : float
        Part of the residuals of rejected entries that least squares on all entries leaves, if it hardly raises those of
        the others, else infinite.
    """
    some = outliers[:: sample.every]
    if is_sparse(outliers):  # what is far from its prediction is not looked up in sparse data
        outliers, some, factors = SparseRows(outliers), some.toarray(), None
    covers = accepted_cover(sample, to_host(some)) + accepted_units(sample.without(found), to_host(some))
    found = found + covers
    samples, features = _mostly_rejected(data, outliers, engine, factors)
    few = [finding for finding in found if finding.features.size <= MOST * sample.X.shape[1]]
    features = np.setdiff1d(features, sample.without(few).known)
    share = 0.0 if fit_warns or found else _rejected_signal(sample, to_host(some))
    signal = f"{share:.0%} of the signal (sum of squares, gross errors aside)" if share > MOST else ""
    advice = "more components" if sizes_count_alike else "feature_scaling='robust' or more components"
    told = []
    if features.size:
        also = f", and with them {signal}" if signal else ""
        told.append(
            f"over half of the entries of {sample.named(features)} are rejected as outliers{also}. Check their units "
            f"and values. If they are right, use {advice}; if not, drop them."
        )
    elif signal:
        told.append(
            f"{signal} is rejected as outliers: the components do not describe the strongest part of the data. Use "
            f"{advice}, or compare with RobustNMF(method='l2')."
        )
    squares = 0.0 if fit_warns or found or told or unexplained > IN_PART else _rejected_squares(sample, to_host(some))
    if squares > MUCH_OF_SQUARES:
        told.append(
            f"{squares:.0%} of the sum of squares is rejected as outliers, and least squares on all entries leaves "
            f"only {unexplained:.0%} of their residuals: the largest entries may be right. Look at outliers_. If they "
            "are, use RobustNMF(method='l2'), or more components."
        )
    if samples.size and not any(finding.samples.size for finding in found):
        told.append(
            f"over half of the entries of {sample.named_samples(samples)} are rejected as outliers: their "
            "codes rest on little. If they are right, use more components; if not, drop them."
        )
    return covers + [Finding(message) for message in told]


def _mostly_rejected(
    data: Data, outliers: Array, engine: Engine, factors: tuple[Array, Matrix] | None
) -> tuple[Places, Places]:
    """Return the samples and the features of which most is rejected, but for those that the factors predict well."""
    by_sample, by_feature = engine.map_and_sum(_count_rejected, data.M, engine.split(outliers, like=data.X))
    samples = np.flatnonzero(_is_mostly_rejected(*(to_host(engine.join(part)) for part in by_sample)))
    features = np.flatnonzero(_is_mostly_rejected(*map(to_host, by_feature)))
    if factors is None:
        return samples, features
    codes, components = to_host(factors[0]), factors[1]
    of_samples = _observed_entries(data, samples, np.arange(data.shape[1]), engine)
    of_features = _observed_entries(data, np.arange(data.shape[0]), features, engine)
    samples = samples[_is_missed(of_samples, codes[samples] @ components, axis=1)]
    return samples, features[_is_missed(of_features, codes @ components[:, features], axis=0)]


def _observed_entries(data: Data, rows: Places, columns: Places, engine: Engine) -> Matrix:
    """Return entries of some rows and columns on the host, NaN where they are missing."""
    ends = np.cumsum([len(block) for block in data.X])
    of_blocks = [
        engine.place(rows[(rows >= end - len(block)) & (rows < end)] - (end - len(block)))
        for block, end in zip(data.X, ends, strict=True)
    ]
    parts = engine.map(_chosen_entries, data.X, data.M, of_blocks, columns=engine.place(columns))
    return np.asarray(to_host(engine.join(parts)), dtype=np.float64)


def _is_missed(values: Matrix, predicted: Matrix, *, axis: int) -> Matrix:
    """Return for samples (axis 1) or features (axis 0) of some entries whether most are far from their prediction."""
    magnitudes = np.abs(values - predicted)
    with ignored_warnings((RuntimeWarning, "All-NaN slice")):
        typical = np.nanmedian(np.where(values > 0, values, np.nan), axis=axis)
        return np.asarray(~(np.nanmedian(magnitudes, axis=axis) <= WELL_PREDICTED * typical))


def _rejected_signal(sample: Sample, outliers: Matrix) -> float:
    """Return the share of the sum of squares that is rejected; the outliers are those of the sample, (n', m) of bool.

    Entries count up to the typical size of their feature, so that gross errors are not taken for signal.
    """
    levels = np.nan_to_num(sample.levels)
    limited = np.nan_to_num(np.minimum(sample.X, levels)) / (levels.max() or 1.0)
    total = float(np.sum(limited**2))
    return float(np.sum(limited[outliers] ** 2)) / total if total > 0 else 0.0


def _rejected_squares(sample: Sample, outliers: Matrix) -> float:
    """Return the share of the sum of squares that is rejected, gross errors included."""
    values = np.nan_to_num(sample.X) / (np.nanmax(sample.X, initial=0.0) or 1.0)
    total = float(np.sum(values**2))
    return float(np.sum(values[outliers] ** 2)) / total if total > 0 else 0.0


def _is_mostly_rejected(n_rejected: Matrix, n_observed: Matrix) -> Matrix:
    """Return for features, or samples, whether most entries are rejected, and clearly more than those of others."""
    limit = max(MOST, min(n_rejected.sum() / max(n_observed.sum(), 1) + BEYOND_THE_REST, NEARLY_ALL))
    return np.asarray((n_rejected > limit * n_observed) & (n_observed >= FEWEST_ENTRIES))


# --- On a block ---------------------------------------------------------------------------------------------------


def _chosen_entries(Y: Array, M: Array | None, rows: Array, *, columns: Array, xp: Namespace) -> Array:
    """Return entries of some rows and columns of a block, NaN where they are missing."""
    values = Y[rows][:, columns]
    return values if M is None else xp.where(M[rows][:, columns] > 0, values, xp.nan)


def _count_rejected(
    M: Array | None, outliers: Array, *, xp: Namespace
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return rejected and observed entries of each sample of a block, (B,) each, and those of each feature, (m,)."""

    def counts(axis: int) -> tuple[Array, Array]:
        n_rejected = _count_true(outliers, axis, xp)
        n_observed = xp.zeros_like(n_rejected) + outliers.shape[axis]
        return n_rejected, n_observed if M is None else _count_true(M > 0, axis, xp)

    return counts(1), counts(0)


def _count_true(A: Array, axis: int, xp: Namespace) -> Array:
    """Return sums of truth values along an axis; of some rows at a time, because Torch makes integers of them."""
    parts = [xp.sum(A[rows], axis=axis, dtype=xp.int64) for rows in cuts_of(len(A), A.shape[1], COUNTED_ENTRIES)]
    return xp.concat(parts) if axis == 1 else sum(parts[1:], start=parts[0])


def _share(count: Any, X: Matrix) -> str:
    """Return for which share of the observed entries something holds."""
    return f"{count / np.count_nonzero(~np.isnan(X)):.2%}"
