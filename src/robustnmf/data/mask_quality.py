"""What is suspicious about a mask: most of a feature, a sample or the signal is rejected, or what looks wrong is not.

Findings are those of `robustnmf.data.quality`, made when a fit has ended.
"""

from math import inf, log, prod
from typing import NamedTuple

import numpy as np

from robustnmf.data.blocks import Data
from robustnmf.data.quality import (
    FEWEST_ENTRIES,
    MOST_LEVELS,
    NEAR,
    NEARLY_ALL,
    PILED_UP,
    SATURATED,
    Finding,
    Matrix,
    Places,
    Sample,
    share_of,
)
from robustnmf.data.repeated_values import without_values
from robustnmf.data.sparse import is_sparse
from robustnmf.engines.protocol import Engine
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.utils.arrays import Array, Namespace, to_host
from robustnmf.utils.observed import count_observed
from robustnmf.utils.process_state import ignored_warnings
from robustnmf.utils.slices import cuts_of


class Gap(NamedTuple):
    """What lies between a feature's entries and a part of them in another unit."""

    fewest: int
    """Entries that the part has at least."""
    times: float
    """How many times smaller or larger the next of them is."""
    beyond: float
    """Width of the gap, relative to that of either group, in logarithms."""


# In data of discrete values so many of them must occur, and the largest has at most this share of the entries.
FEWEST_LEVELS, MOST_COVERED = 30, 0.5
# Most of a feature, a sample or the signal is rejected; of a feature or sample so much more than of the others.
MOST, BEYOND_THE_REST = 0.5, 0.25
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
            f"the largest value, {values[-1]:g}, is in {share_of(n_largest, X)} of the entries, values just below it "
            "are rare, and most of these entries were fitted like data. If something covers parts of the samples, or a "
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
