"""How large the noise of each entry is: a width for each feature, which may grow with the size of the entry.

Two things are kept apart. What is wrong is decided in units of the width: an entry whose residual is so many widths
that it is rather wrong than clean. What is right counts in least squares, every entry alike, as in ordinary NMF, or by
one over its expected variance.

The variance of a count is its expected value. Weighted least squares with weights 1 / (p + b), in which p follows the
fit and b is an offset, ends where the Kullback-Leibler divergence of Y + b from P + b has a stationary point: the
gradient of both is a sum of (y - p) / (p + b). So for counts it is Poisson regression, and KL-NMF if b vanishes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.kernels.mixture_constants import ROUNDING
from robustnmf.model.mixture import SPARSE, fit_mixture, quantile
from robustnmf.utils.arrays import Array, Namespace, to_host
from robustnmf.utils.cached import cached_property

Vector = NDArray[Any]

# Noise that grows with the size of an entry does not vanish with it: the width is that of an entry so much larger, in
# units of the feature's level.
OFFSET = 0.1
# Entries below this part of their feature's level, observed and predicted, say nothing of the noise.
INFORMATIVE = 0.05
# The width of a feature counts like so many entries that have the typical relative width.
PRIOR_ENTRIES = 10
# With fewer entries than this no exponent is found, nor if sizes vary less than this (as logarithm).
FEWEST_ENTRIES, SMALLEST_RANGE = 400, 0.3
# Bins of sizes in which the width is measured, and the fewest entries in one.
BINS, FEWEST_PER_BIN = 20, 40
# An exponent below this is zero: the noise has one size.
SMALLEST_EXPONENT = 0.15
# The most it is for sparse data: the residual of a zero is its prediction, so residuals seem to grow in proportion.
LARGEST_OF_SPARSE = 0.5
# Of counts, an entry that is expected to be zero has the variance of so much of the mean entry: its weight is finite.
# Components of simulated counts of all densities are found equally well from 0.01 to 0.3.
COUNT_OFFSET = 0.1
# Widths, medians of clean residuals, beyond which an entry is wrong are between these.
SMALLEST_THRESHOLD, LARGEST_THRESHOLD = 4.3, 12.0


# The smallest and the largest weight of an anchor.
ANCHOR = (1e-6, 0.03)
# No prediction counts as more than so many times the largest entry of its feature that was not rejected.
BEYOND_THE_LARGEST = 1.5
# At least this share of the entries of a feature is clean.
FEWEST_CLEAN = 0.05
# Quantiles of features are found in a table with a row for each, if that has at most so many places for each entry.
MOST_OF_TABLE = 4
# So many entries are enough to tell what all features have in common.
ENOUGH = 2**18
# Halvings of an interval that holds the prediction from which on a zero is wrong.
BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class Noise:
    """What is assumed of the noise.

    Parameters
    ----------
    exponent : float or None
        How the width grows with the size of an entry: 0 for not at all, 0.5 as for counts, 1 for in proportion. None
        finds it.
    weights_entries : bool
        Whether right entries are weighted by one over their squared width; otherwise they count alike, as in plain NMF.
    of_counts : bool
        Whether entries are counts: those weights are then one over the expected value, with the same factor for all
        features, as the variance of a count is. Otherwise each feature has a width of its own.
    """

    exponent: float | None = None
    weights_entries: bool = False
    of_counts: bool = False

    def __post_init__(self) -> None:
        if self.exponent is not None and not 0 <= self.exponent <= 1:
            raise ValueError(
                f"The exponent of noise must be between 0 and 1, or None to find it; got {self.exponent!r}."
            )


NOISES: Mapping[str, Noise] = MappingProxyType(
    {"auto": Noise(), "constant": Noise(0.0), "poisson": Noise(0.5, of_counts=True), "proportional": Noise(1.0)}
)


ARRAYS = ("widths", "levels", "largest", "centers", "anchors", "least")
"""Fields of a `NoiseModel` that have an entry for each feature."""


@dataclass(frozen=True, repr=False)
class NoiseModel:
    """The noise that a fit has found.

    Parameters
    ----------
    widths : array (m,)
        Width of an entry of typical size, for each feature.
    levels : array (m,)
        Typical size of an entry of each feature.
    largest : array (m,)
        Largest entry of each feature that was not rejected: predictions count as hardly more.
    centers : array (m,)
        Mean of the entries of each feature that were not rejected.
    anchors : array (m,)
        Weight with which a rejected entry counts as that mean: codes stay bounded where too few entries of a sample are
        accepted to tell. It is the share of the feature's variance that the fit does not explain.
    least : array (m,)
        What an entry may differ from its prediction without being wrong, however small its width.
    exponent : float
        How the width grows with the size of an entry.
    threshold : float
        Widths beyond which an entry is wrong.
    lenient : bool
        Whether nothing was wrong: then an entry is only if least squares with it does not explain it.
    weights_entries : bool
        Whether right entries are weighted by one over their squared width.
    of_counts : bool
        Whether those weights are one over the expected value instead, as of counts.
    softness : float
        Widths at which a right entry counts half, by Cauchy's weight; infinite if all count alike.
    level_prior : float
        Of a sample with gaps, what is rejected or missing counts as the mean of its feature times the level of the
        sample, its regression on these means. The level 1 counts like so many entries; infinite if all levels are 1.
    """

    widths: Array
    levels: Array
    largest: Array
    centers: Array
    anchors: Array
    least: Array
    exponent: float
    threshold: float
    lenient: bool = False
    weights_entries: bool = False
    of_counts: bool = False
    softness: float = np.inf
    level_prior: float = np.inf

    def __repr__(self) -> str:
        typical = float(np.median(to_host(self.relative_widths)))
        return (
            f"NoiseModel(exponent={self.exponent:.2g}, threshold={self.threshold:.3g}, widths of {len(self.widths)} "
            f"features, typically {typical:.2g} of an entry)"
        )

    @property
    def follows_predictions(self) -> bool:
        """Whether weights of right entries depend on predictions."""
        return self.weights_entries or self.softness < np.inf

    def soft_weights(self, Y: Array, predicted: Array, xp: Namespace) -> Array:
        """Return by what right entries (B, m) are weighted for their distance from predictions.

        Parameters
        ----------
        Y : array (B, m)
            Entries.
        predicted : array (B, m)
            Predictions WH, samples in rows, in the unit of the model.
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (B, m)
            Cauchy's weight of residuals in units of `softness` widths, at most 1.
        """
        ratios = (Y - predicted) / (self.softness * self.width(predicted, xp))
        return 1 / (1 + ratios * ratios)

    def placed(self, place: Callable[[Any], Array]) -> "NoiseModel":
        """Return the model with its arrays elsewhere.

        Parameters
        ----------
        place : callable
            What is applied to each array, such as `Engine.place`.

        Returns
        -------
        NoiseModel
            The same model.
        """
        return replace(self, **{name: place(getattr(self, name)) for name in ARRAYS})

    def width(self, predicted: Array, xp: Namespace) -> Array:
        """Return the width of entries (B, m), or one for each feature (m,) if their size does not matter.

        Parameters
        ----------
        predicted : array (B, m)
            Predictions WH, samples in rows, in the unit of the model.
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (B, m) or (m,)
            The widths.
        """
        if self.exponent == 0:
            return self.widths
        sizes = xp.minimum(predicted, self.largest) * (1 / ((1 + OFFSET) * self.levels))
        return self.widths * (sizes + OFFSET / (1 + OFFSET)) ** self.exponent

    @property
    def relative_widths(self) -> Array:
        """Width of an entry of typical size relative to that size, for each feature, (m,)."""
        return self.widths / self.levels

    def of_typical_features(self, relative_widths: Vector) -> "NoiseModel":
        """Return the noise of features of level 1 that have these relative widths, (k,), on the host.

        Parameters
        ----------
        relative_widths : ndarray (k,)
            Widths relative to levels.

        Returns
        -------
        NoiseModel
            A model of k features.
        """
        ones = np.ones_like(relative_widths)
        least = float(np.median(self.least / self.levels)) * ones
        widths, infinite = relative_widths, np.inf * ones
        return replace(self, widths=widths, levels=ones, largest=infinite, centers=ones, anchors=ones, least=least)

    def weights(self, predicted: Array, xp: Namespace) -> Array:
        """Return the weight of right entries, 1 for one of the typical width, (B, m) or (m,).

        Parameters
        ----------
        predicted : array (B, m)
            Predictions WH, samples in rows, in the unit of the model.
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (B, m) or (m,)
            The weights.
        """
        if self.of_counts:
            return self._weights_of_counts(predicted, xp)
        positive = self.widths[self.widths > 0]
        typical = xp.exp(xp.mean(xp.log(positive)))
        return (typical / self.width(predicted, xp)) ** 2

    def working_response(self, Y: Array, predicted: Array, xp: Namespace) -> tuple[Array, Array]:
        """Return entries and weights, (B, m) each, with which least squares takes a step from some predictions.

        Entries are as they are, and weighted by `weights`; but a count that is larger than its prediction is moved
        towards that, and its weight is larger, so that the gradient is the same and the step no longer than it may be:
        least squares would believe in the variance of a small prediction however large it becomes. With p and b as
        above, half the weight times the square then bounds the divergence between p and y.

        Parameters
        ----------
        Y : array (B, m)
            Entries.
        predicted : array (B, m)
            Predictions WH, samples in rows, in the unit of the model.
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (B, m), array (B, m)
            Entries and weights.
        """
        weights = self.weights(predicted, xp)
        if not self.of_counts:
            return Y, weights
        mean = self.mean_count(xp)
        shorter = (xp.where(predicted > 0, predicted, 0) + COUNT_OFFSET * mean) / (Y + COUNT_OFFSET * mean)
        shorter = xp.where(shorter < 1, shorter, 1)
        return predicted + shorter * (Y - predicted), weights / shorter

    def _weights_of_counts(self, predicted: Array, xp: Namespace) -> Array:
        """Return one over the expected value, to which an offset is added, relative to that of the mean entry, (B, m).

        It is at most 11.
        """
        mean = self.mean_count(xp)
        sizes = xp.where(predicted > 0, predicted, 0) / mean
        return (1 + COUNT_OFFSET) / (sizes + COUNT_OFFSET)

    def mean_count(self, xp: Namespace) -> Array:
        """Return the mean of all entries that were not rejected, 1 if all are zero.

        Parameters
        ----------
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array ()
            The mean.
        """
        mean = xp.mean(self.centers)
        return xp.where(mean > 0, mean, 1)

    def in_units(self, units: Array) -> "NoiseModel":
        """Return the model of data whose features are multiplied by units, (m,) or a number.

        Parameters
        ----------
        units : array (m,) or float
            What features are multiplied by.

        Returns
        -------
        NoiseModel
            Its widths, levels and limits in those units.
        """
        arrays = {name: getattr(self, name) * units for name in ARRAYS if name != "anchors"}
        return replace(self, **arrays)

    def sample_levels(self, Y: Array, kept: Array, xp: Namespace) -> Array:
        """Return by what factor entries of samples (B, m), weighted, differ from the means of features, (B, 1).

        Parameters
        ----------
        Y : array (B, m)
            Entries.
        kept : array (B, m)
            Weights, 0 for entries that do not count.
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (B, 1)
            The level of each sample; 1 where nothing tells.
        """
        with_means = xp.sum(kept * (Y * self.centers), axis=1, keepdims=True)
        squares = xp.sum(kept * self.centers**2, axis=1, keepdims=True)
        prior = self.level_prior * xp.mean(self.centers**2)
        positive = squares + prior > 0
        return xp.where(positive, with_means + prior, 1) / xp.where(positive, squares + prior, 1)

    def ratios(self, Y: Array, predicted: Array, xp: Namespace) -> Array:
        """Return the magnitude of residuals in units of the threshold, (B, m): an entry above 1 is wrong.

        Parameters
        ----------
        Y : array (B, m)
            Entries.
        predicted : array (B, m)
            Predictions WH, samples in rows, in the unit of the model.
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (B, m)
            Residuals over their limits.
        """
        predicted = xp.minimum(predicted, BEYOND_THE_LARGEST * self.largest)
        return xp.abs(Y - predicted) / self.limits(predicted, xp)

    def largest_right(self, xp: Namespace) -> Array:
        """Return the entry of each feature beyond which it is wrong whatever is predicted, (m,).

        Parameters
        ----------
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (m,)
            The largest prediction that counts, and the limit of residuals there.
        """
        most = BEYOND_THE_LARGEST * self.largest
        return most + self.limits(most, xp)

    @cached_property
    def limits_of_zeros(self) -> Vector:
        """Predictions up to which an entry of zero is right for sure, (m,), on the host; infinite if it always is.

        Relative to its limit, a residual grows with the prediction. So this is where they meet, by bisection.
        """
        model = self.placed(lambda array: to_host(array).astype(np.float64))
        low, high = np.zeros_like(model.widths), BEYOND_THE_LARGEST * model.largest
        zeros, always = np.zeros_like(low), model.ratios(np.zeros_like(low), high, np) <= 1
        high = np.where(np.isfinite(high), high, 2 * model.limits(np.minimum(high, np.finfo(np.float32).max), np))
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            is_right = model.ratios(zeros, middle, np) <= 1
            low, high = np.where(is_right, middle, low), np.where(is_right, high, middle)
        return np.where(always, np.inf, low)

    def limits(self, predicted: Array, xp: Namespace) -> Array:
        """Return the residual beyond which entries are wrong, (B, m), or one for each feature (m,).

        Parameters
        ----------
        predicted : array (B, m)
            Predictions WH, samples in rows, in the unit of the model.
        xp : namespace
            Of the arrays; ``numpy`` for `RobustNMF.noise_`.

        Returns
        -------
        array (B, m) or (m,)
            `threshold` widths, or `least` where that is more.
        """
        return xp.maximum(self.threshold * self.width(predicted, xp), self.least)


class Sampled:
    """Some entries of the data with predictions that they had no part in, on the host."""

    def __init__(
        self,
        values: Vector,
        predictions: Vector,
        features: Vector,
        weights: Vector,
        is_clean: Vector,
        n_features: int,
    ) -> None:
        self.values, self.predictions, self.weights = values, predictions, weights
        self.is_clean = is_clean
        """Which entries the robust fit accepted, (k,)."""
        self.features, self.n_features = features, n_features

    @cached_property
    def magnitudes(self) -> Vector:
        """The magnitudes of the residuals, (k,)."""
        return np.asarray(np.abs(self.values - self.predictions))

    @property
    def common_threshold(self) -> float:
        """Medians of clean residuals beyond which an entry is rather wrong, if all entries have one width."""
        mixture = fit_mixture(self.magnitudes, self.weights)
        return max(mixture.decision_threshold / (np.log(2) * mixture.width or 1.0), SMALLEST_THRESHOLD)

    def quantiles(self, of: Vector, where: Vector, q: Vector) -> Vector:
        """Return a weighted quantile for each feature of something of each entry where a condition holds, else 0, (m,).

        It is the smallest value at which the cumulated weight of the feature reaches its share q (m,).
        """
        if self.are_alike:
            return self._quantiles_of_alike(of, where, q)
        features, values, weights = self.features[where], of[where], self.weights[where]
        order = np.argsort(values)
        # Small integers are sorted by their digits, which is faster than a comparison of pairs.
        keys = features.astype(np.min_scalar_type(self.n_features))
        order = order[np.argsort(keys[order], kind="stable")]
        features, values, weights = features[order], values[order], weights[order]
        ends = np.searchsorted(features, np.arange(self.n_features), side="right")
        starts = np.searchsorted(features, np.arange(self.n_features), side="left")
        cumulated = np.concatenate([[0.0], np.cumsum(weights)])
        reached = cumulated[starts] + (q - ROUNDING) * (cumulated[ends] - cumulated[starts])
        found = np.clip(np.searchsorted(cumulated[1:], reached), starts, np.maximum(ends - 1, starts))
        padded = np.append(values, 0.0)
        return np.where(ends > starts, padded[np.minimum(found, len(values))], 0.0)

    def _quantiles_of_alike(self, of: Vector, where: Vector, q: Vector) -> Vector:
        """Return the same where all weights are equal: each feature is a row of a table, which is sorted."""
        table = np.full((self.n_features, max(self.most_of_feature, 1)), np.inf)
        table.reshape(-1)[self.places_in_table[where]] = of[where]
        table.sort(axis=1)
        counts = self.counts(where)
        numbers = np.ceil((q - ROUNDING) * counts).astype(np.intp) - 1
        found = np.take_along_axis(table, np.clip(numbers, 0, np.maximum(counts - 1, 0))[:, None], axis=1)[:, 0]
        return np.where(counts > 0, found, 0.0)

    @cached_property
    def are_alike(self) -> bool:
        """Whether all weights are equal, and features have about as many entries each."""
        is_even = self.most_of_feature * self.n_features <= MOST_OF_TABLE * len(self.features)
        return is_even and bool((self.weights == self.weights[0]).all())

    @cached_property
    def most_of_feature(self) -> int:
        """The largest number of entries of a feature."""
        return int(np.bincount(self.features, minlength=1).max())

    @cached_property
    def places_in_table(self) -> Vector:
        """Where entries are in a table that has a row for each feature, flat, (k,)."""
        order = np.argsort(self.features.astype(np.min_scalar_type(self.n_features)), kind="stable")
        features, places = self.features[order], np.empty(len(order), dtype=np.intp)
        starts = np.searchsorted(features, np.arange(self.n_features))
        places[order] = np.arange(len(order)) - starts[features] + self.most_of_feature * features
        return places

    def counts(self, where: Vector) -> Vector:
        """Return the number of entries of each feature where a condition holds, (m,)."""
        return np.asarray(np.bincount(self.features[where], minlength=self.n_features))


def estimate(
    entries: Sampled,
    noise: Noise,
    largest: Vector,
    centers: Vector,
    unexplained: Vector,
    least: Vector,
    floor: float,
) -> NoiseModel:
    """Return the noise model of entries, some of which are wrong.

    All entries count, wrong ones included: without them the width would shrink, and more would be wrong the next time.
    Widths are medians of what is clean, so quantiles at half the clean share of all, which the robust fit tells.

    Parameters
    ----------
    entries : entries with predictions that they had no part in: a width must not follow what an entry did to it.
    largest, centers, least : see `NoiseModel`.
    unexplained : (m,), share of the variance of each feature that the fit does not explain, rejected entries aside.
    floor : float
        Smallest width, relative to the level of a feature.
    """
    levels = _levels(entries)
    informative = np.maximum(entries.values, entries.predictions) > INFORMATIVE * levels[entries.features]
    counts, clean = entries.counts(informative), entries.counts(informative & entries.is_clean)
    typical_share = clean.sum() / max(counts.sum(), 1)
    shares = (clean + PRIOR_ENTRIES * typical_share) / (counts + PRIOR_ENTRIES)
    middle = max(typical_share, FEWEST_CLEAN) / 2
    # Where most entries of a feature are zero and most of the others are wrong, those say nothing of its width.
    everything = np.ones_like(informative)
    is_sparse = entries.counts(entries.values > 0) < SPARSE * entries.counts(everything)
    reliable = np.where(is_sparse & (clean < counts / 2), clean, counts)
    widths = _widths(entries, informative, reliable, levels, np.maximum(shares, FEWEST_CLEAN) / 2, floor)
    exponent, of_counts = noise.exponent, noise.of_counts
    # What all features have in common, fewer entries tell as well.
    common = _chosen(np.flatnonzero(informative))
    features, weights = entries.features[common], entries.weights[common]
    sizes = np.clip(entries.predictions[common], 0, largest[features]) / levels[features]
    ratios = entries.magnitudes[common] / widths[features]
    if exponent is None:
        exponent = _exponent(sizes, ratios, middle)
        if entries.weights[entries.values > 0].sum() < SPARSE * entries.weights.sum():
            # Where most entries are zero, widths of features tell no variance: what is positive is mostly counts.
            exponent, of_counts = min(exponent, LARGEST_OF_SPARSE), True
    ratios = ratios / ((sizes + OFFSET) / (1 + OFFSET)) ** exponent
    typical = quantile(ratios, weights, middle) or 1.0
    decision = fit_mixture(ratios / typical, weights).decision_threshold if ratios.size else LARGEST_THRESHOLD
    threshold = min(max(decision, SMALLEST_THRESHOLD), LARGEST_THRESHOLD)
    anchors = np.clip(unexplained, *ANCHOR)
    widths = np.maximum(widths * typical, floor * levels)
    model = NoiseModel(widths, levels, largest, centers, anchors, least, float(exponent), float(threshold))
    return replace(model, weights_entries=noise.weights_entries, of_counts=of_counts)


def _chosen(places: Vector) -> Vector:
    """Return places, of very many some at random; every n-th might be of a few features."""
    return places if len(places) <= ENOUGH else places[np.random.default_rng(0).integers(0, len(places), ENOUGH)]


def _levels(entries: Sampled) -> Vector:
    """Return the median positive prediction of each feature, (m,); that of the others where there is none."""
    levels = entries.quantiles(entries.predictions, entries.predictions > 0, np.full(entries.n_features, 0.5))
    positive = levels[levels > 0]
    return np.where(levels > 0, levels, np.median(positive) if positive.size else 1.0)


def _widths(
    entries: Sampled, informative: Vector, counts: Vector, levels: Vector, middle: Vector, floor: float
) -> Vector:
    """Return a quantile of the residuals of each feature, (m,), shrunk to the typical relative one of few entries.

    `counts` (m,) is the number of entries that tell it.
    """
    widths = entries.quantiles(entries.magnitudes, informative, middle)
    enough = (widths > 0) & (counts >= PRIOR_ENTRIES)
    relative = np.exp(np.median(np.log(widths[enough] / levels[enough]))) if enough.any() else floor
    relative = max(relative, floor)
    share = counts / (counts + PRIOR_ENTRIES)
    lowest = np.maximum(0.02 * relative, floor) * levels
    shrunk: Vector = np.exp(share * np.log(np.maximum(widths, lowest)) + (1 - share) * np.log(relative * levels))
    return shrunk


def _exponent(sizes: Vector, ratios: Vector, middle: float) -> float:
    """Return by what power residuals grow with the size of the entry, between 0 and 1.

    It is a weighted median of the slopes between bins of sizes, each with a quantile of its residuals.
    """
    chosen = sizes > INFORMATIVE
    logarithms, ratios = np.log(sizes[chosen]), ratios[chosen]
    if len(logarithms) < FEWEST_ENTRIES:
        return 0.0
    order = np.argsort(logarithms)
    n_bins = min(BINS, len(order) // FEWEST_PER_BIN)
    x = np.array([_interpolated(values, 0.5) for values in np.array_split(logarithms[order], n_bins)])
    y = np.array([_interpolated(values, middle) for values in np.array_split(ratios[order], n_bins)])
    y = np.log(np.maximum(y, 1e-6))
    first, second = np.triu_indices(n_bins, 1)
    distance, rise = x[second] - x[first], y[second] - y[first]
    apart = distance > 1e-3
    if x[-1] - x[0] < SMALLEST_RANGE or not apart.any():
        return 0.0
    slope = min(max(quantile(rise[apart] / distance[apart], distance[apart], 0.5), 0.0), 1.0)
    return slope if slope >= SMALLEST_EXPONENT else 0.0


def _interpolated(values: Vector, q: float) -> float:
    """Return a quantile of values, between two of them if need be; as `numpy.quantile`, which takes its time."""
    place = q * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    values = np.partition(values, (low, high))
    return float(values[low] + (place - low) * (values[high] - values[low]))
