"""Entries that are too far from what they should be, in data whose zeros are not stored."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from robustnmf.algorithm.leverage import MOST_LEVERAGE, without_own
from robustnmf.kernels.interface import PredictionBounds, StoredKernels
from robustnmf.model.noise import NoiseModel
from robustnmf.utils.arrays import Array
from robustnmf.utils.cached import cached_property
from robustnmf.utils.entries import Changes, Entries, entries_at

# Zeros with predictions above this part of their limit are looked at.
ALMOST = 0.999


@dataclass(frozen=True)
class Beyond:
    """Finds the entries of blocks whose zeros are not stored that are too far from what they should be.

    Entries are compared with their predictions; or with those without the entry itself, where its part in them is
    known, unless it was wrong before and had none.
    """

    W: Array
    noise: NoiseModel
    leverage: Array | None = None
    """That part, (m,)."""

    @cached_property
    def bounds(self) -> Any:
        """From which prediction on a zero may be too far, as a kernel wants it."""
        limits = ALMOST * self.noise.limits_of_zeros
        if self.leverage is not None:
            limits = limits * np.clip(1 - self.leverage, 1 - MOST_LEVERAGE, None)
        return PredictionBounds.of(self.W, limits)

    def __call__(self, Y: Entries, X: Array, kernels: StoredKernels, wrong: Entries | None = None) -> Entries:
        """Return the entries with their values, where it is known which were `wrong` before."""
        rows, columns = kernels.zeros_beyond(Y.indptr, Y.columns, X, self.W, self.bounds)
        zeros = np.zeros(len(rows), dtype=Y.dtype)
        of_zeros = kernels.predict_at(X, np.stack([rows, columns], axis=1), self.W)
        is_beyond = self._are_beyond(of_zeros, zeros, rows, columns, wrong)
        found = [(rows[is_beyond], columns[is_beyond], zeros[is_beyond])]
        predicted, rows = kernels.predict(Y.indptr, Y.columns, X, self.W), Y.rows
        is_beyond = self._are_beyond(predicted, Y.values, rows, Y.columns, wrong)
        found.append((rows[is_beyond], Y.columns[is_beyond], Y.values[is_beyond]))
        i, j, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return entries_at(i, j, values, Y.shape)

    def _are_beyond(self, predicted: Array, values: Array, rows: Array, columns: Array, wrong: Entries | None) -> Array:
        """Return which entries with these predictions are, (k,)."""
        if self.leverage is not None:
            alone = without_own(predicted, values, self.leverage[columns], np)
            had_no_part = False if wrong is None else wrong.find(rows, columns) >= 0
            predicted = np.where(had_no_part, predicted, alone)
        return self.noise.placed(lambda array: array[columns]).ratios(values, predicted, np) > 1


def replaced(wrong: Entries, noise: NoiseModel, units: Array | None) -> Changes:
    """Return wrong entries as the mean of their feature with the weight of an anchor, in the units of least squares."""
    by: Any = 1 if units is None else units[wrong.columns]
    new, weights = noise.centers[wrong.columns] * by, noise.anchors[wrong.columns]
    kind, ones = wrong.dtype, np.ones(len(wrong), dtype=wrong.dtype)
    old = (wrong.values * by).astype(kind)
    return Changes(wrong.indptr, wrong.columns, old, new.astype(kind), weights.astype(kind), ones)
