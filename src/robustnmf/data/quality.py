"""What is suspicious about data: codes for missing, saturation, stuck detectors, sizes, too few entries.

Every finding names what was seen and what to do. Good data must stay without findings, so each check asks for more than
repetition: counts, ratings, images of 8 bits and tables of zeros and ones repeat their values by nature. Nothing is
said twice: what one finding names, the next leaves out. Of large data some samples are looked at.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.data.blocks import Data
from robustnmf.engines.lazy import chosen_rows
from robustnmf.engines.protocol import Engine
from robustnmf.utils.arrays import Blocks, subsample, to_host
from robustnmf.utils.cached import cached_property

Matrix = NDArray[Any]
Places = NDArray[np.intp]

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
# Nearly all samples, features or entries.
NEARLY_ALL = 0.9
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


def share_of(count: Any, X: Matrix) -> str:
    """Return for which share of the observed entries something holds."""
    return f"{count / np.count_nonzero(~np.isnan(X)):.2%}"


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
                f"the value {value:g} is in {share_of(count, X)} of the entries, of {sample.named(features)}, and "
                f"{why}. If it stands for missing, replace it by NaN before the fit, or use missing_value={value:g} "
                "when the file is read.",
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
            f"{share_of(n_zeros[features].sum(), X)} of the entries are zero, in {sample.named(features)} whose other "
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
            f"the largest value, {values[-1]:g}, is in {share_of(counts[-1], X)} of the entries: a detector seems to "
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
            f"{share_of(n_common[features].sum(), X[:, features])} of their entries: detectors seem to saturate, or "
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
        share = share_of(np.count_nonzero(X[:, first] == value), X[:, first])
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
