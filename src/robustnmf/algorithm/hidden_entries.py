"""Entries hidden from the fits of a cross-validation, and what it costs to predict them.

A hidden entry costs its squared error, which is what a fit makes small, but never more than an error at which the
entry counts as wrong. Wrong entries cannot be predicted, and uncapped they would decide. The caps are those of one
rank, the best, for all ranks: a model that is too poor takes its misfit for noise, and caps of its own would hide that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.model.losses import squared_ratio
from robustnmf.model.mixture import median
from robustnmf.model.noise import Noise, NoiseModel, Sampled, estimate
from robustnmf.utils.arrays import to_host

Vector = NDArray[Any]

# A width is at least this part of the typical entry: smaller residuals are those of a fit that still converges,
RESOLUTION = 1e-3
# and at least this part of the smallest difference between two values: the median error of rounding.
ROUNDING_ERROR = 0.25


class Predicted(NamedTuple):
    """What fits of one rank, one for each split, say of the hidden entries."""

    values: Vector
    """Predictions, (k,)."""
    noise: Sequence[NoiseModel | None]
    """The noise that each fit has found."""


class Losses(NamedTuple):
    """The loss of every hidden entry, for each of some ranks."""

    of_entries: Vector
    """(n_ranks, k)."""
    is_clean: Vector
    """Which entries the best rank does not take for wrong, (k,)."""
    scale: float
    """Root mean square of the residuals of those."""


@dataclass(frozen=True)
class HiddenEntries:
    """The hidden entries of all splits, one split after the other."""

    values: Vector
    """(k,)."""
    features: NDArray[np.intp]
    """Feature of each entry, (k,)."""
    weights: Vector
    """(k,)."""
    units: Vector
    """What an error of each entry is divided by, (k,)."""
    largest: Vector
    """Largest observed entry of each feature, (n_features,): no prediction counts as more."""
    sizes: Sequence[int]
    """Number of entries of each split."""

    def squared(self, predicted: Sequence[Predicted]) -> Losses:
        """Return the squared errors of each rank."""
        squares = [squared_ratio(np.abs(self.values - each.values) / self.units, 1.0, np) for each in predicted]
        return Losses(np.array(squares), np.ones(self.values.size, dtype=bool), 1.0)

    def capped(self, predicted: Sequence[Predicted]) -> Losses:
        """Return the squared errors of each rank, capped, in units of the noise."""
        errors = np.array([self._errors(each.values) for each in predicted])
        best, seen = 0, set[int]()
        while best not in seen:  # until the caps of the best rank are those that make it the best
            seen.add(best)
            reference, caps = best, self._caps(predicted[best])
            capped = np.minimum(errors, caps)
            losses = squared_ratio(capped, float(capped.max()) or 1.0, np)
            best = int(np.average(losses, axis=1, weights=self.weights).argmin())
        is_clean = errors[reference] <= caps
        scale = self._scale(errors[reference], is_clean)
        return Losses(squared_ratio(capped, scale, np), is_clean, scale)

    def mean_by_split(self, losses: Vector) -> Vector:
        """Return the weighted mean of something of each entry for each split, (n_ranks, n_splits) of (n_ranks, k)."""
        ends = np.cumsum(self.sizes)[:-1]
        parts = zip(np.split(losses, ends, axis=-1), np.split(self.weights, ends), strict=True)
        return np.stack([np.average(part, axis=-1, weights=weights) for part, weights in parts], axis=-1)

    def _errors(self, predictions: Vector) -> Vector:
        """Return how far predictions are off, at most the range of the feature, (k,)."""
        return np.asarray(np.abs(self.values - np.minimum(predictions, self.largest[self.features])) / self.units)

    def _caps(self, predicted: Predicted) -> Vector:
        """Return the errors beyond which entries are wrong, (k,)."""
        models = predicted.noise if all(model is not None for model in predicted.noise) else self._noise(predicted)
        ends, smallest = np.cumsum(self.sizes)[:-1], self._rounding_error()
        parts = zip(np.split(predicted.values, ends), np.split(self.features, ends), models, strict=True)
        caps = [_cap(model, values, features, smallest) for values, features, model in parts]
        return np.concatenate(caps) / self.units

    def _noise(self, predicted: Predicted) -> list[NoiseModel]:
        """Return the noise of predictions, the same for all splits, where the fits have found none."""
        zeros, all_clean = np.zeros(self.largest.shape), np.ones(self.values.size, dtype=bool)
        entries = Sampled(self.values, predicted.values, self.features, self.weights, all_clean, self.largest.size)
        model = estimate(entries, Noise(), self.largest, zeros, zeros, zeros, RESOLUTION)
        return [model] * len(self.sizes)

    def _rounding_error(self) -> float:
        """Return the smallest width of integers and other rounded entries; it is next to 0 for entries that are not."""
        distinct = np.unique(self.values)
        return ROUNDING_ERROR * float(np.diff(distinct).min()) if distinct.size > 1 else 0.0

    def _scale(self, errors: Vector, is_clean: Vector) -> float:
        """Return the root mean square of clean errors, or a small part of the typical entry if that is larger."""
        relative, positive = self.values / self.units, self.values > 0
        smallest = RESOLUTION * median(relative[positive], self.weights[positive])
        largest = float(errors[is_clean].max(initial=0.0))
        if largest > 0:  # squares of the errors themselves may overflow
            ratios = squared_ratio(errors[is_clean], largest, np)
            smallest = max(largest * sqrt(np.average(ratios, weights=self.weights[is_clean])), smallest)
        return smallest or 1.0


def _cap(model: NoiseModel | None, predictions: Vector, features: NDArray[np.intp], smallest: float) -> Vector:
    """Return the errors beyond which entries are wrong, (k,)."""
    assert model is not None
    of_entries = model.placed(lambda array: np.asarray(to_host(array), dtype=np.float64)[features])
    return np.asarray(np.maximum(of_entries.limits(predictions, np), model.threshold * smallest))
