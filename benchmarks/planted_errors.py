"""Errors of eleven kinds, planted in clean data from a seed.

``ERRORS[name](X, seed)`` gives the data with errors, which entries are wrong, and over which entries a fit is judged:
not over samples and features of which nothing is left.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
Generator = np.random.Generator


class Planted(NamedTuple):
    """Data with errors, (n_samples, n_features) each."""

    X: Matrix
    wrong: Mask
    """Entries that an error has changed. Noise is no error."""
    judged: Mask


Errors = Callable[[Matrix, Any], Planted]


def in_entries(share: float, replace: Callable[[Matrix, Generator], Any]) -> Errors:
    """Return errors in single entries, here and there."""

    def plant(X: Matrix, seed: Any) -> Planted:
        rng = np.random.default_rng(seed)
        return planted(X, np.where(rng.random(X.shape) < share, replace(X, rng), X))

    return plant


def in_samples(replace: Callable[[Matrix, int, Generator], Matrix], share: float = 0.1) -> Errors:
    """Return errors in whole samples; `replace` makes n samples out of the data."""

    def plant(X: Matrix, seed: Any) -> Planted:
        rng = np.random.default_rng(seed)
        rows = rng.choice(len(X), max(1, round(share * len(X))), replace=False)
        damaged, judged = X.copy(), np.ones(X.shape, dtype=bool)
        damaged[rows], judged[rows] = replace(X[rows], len(rows), rng), False
        return planted(X, damaged, judged)

    return plant


def in_features(errors: Errors) -> Errors:
    """Return errors in whole features, as others are in whole samples."""

    def plant(X: Matrix, seed: Any) -> Planted:
        damaged = errors(X.T, seed)
        return Planted(*(np.ascontiguousarray(part.T) for part in damaged))

    return plant


def planted(X: Matrix, damaged: Matrix, judged: Mask | None = None) -> Planted:
    return Planted(damaged, damaged != X, np.ones(X.shape, dtype=bool) if judged is None else judged)


def spikes(X: Matrix, rng: Generator) -> Matrix:
    return X.max() * rng.uniform(1, 10, X.shape)


def shuffled(samples: Matrix, n: int, rng: Generator) -> Matrix:
    return rng.permuted(samples, axis=1)


def one_sample_again(samples: Matrix, n: int, rng: Generator) -> Matrix:
    """Return n times one sample, which is not like the others: a stuck detector."""
    return np.tile(rng.permutation(samples[0]), (n, 1))


def nothing(X: Matrix, seed: Any) -> Planted:
    return planted(X, X.copy())


def saturated_runs(X: Matrix, seed: Any) -> Planted:
    """Plant a run of a fifth of the features at the maximum, elsewhere in each sample, in half of the samples."""
    (n, m), rng = X.shape, np.random.default_rng(seed)
    length = max(1, round(0.2 * m))
    first = rng.integers(m - length + 1, size=(n, 1))
    after = np.arange(m) - first
    hit = (rng.random((n, 1)) < 0.5) & (after >= 0) & (after < length)
    return planted(X, np.where(hit, X.max(), X))


def laplace_noise(X: Matrix, seed: Any) -> Planted:
    noise = np.random.default_rng(seed).laplace(scale=0.2 * X.mean(), size=X.shape)
    return Planted(np.maximum(X + noise, 0), np.zeros(X.shape, dtype=bool), np.ones(X.shape, dtype=bool))


CLEAN = "clean"
ERRORS: dict[str, Errors] = {
    CLEAN: nothing,
    "spikes-2": in_entries(0.02, spikes),
    "spikes-20": in_entries(0.2, spikes),
    "spikes-40": in_entries(0.4, spikes),
    "dead-10": in_entries(0.1, lambda X, rng: 0.0),
    "doubled-10": in_entries(0.1, lambda X, rng: 2 * X),
    "halved-10": in_entries(0.1, lambda X, rng: X / 2),
    "samples-10": in_samples(lambda samples, n, rng: 3 * shuffled(samples, n, rng)),
    "features-10": in_features(in_samples(shuffled)),
    "blocks": saturated_runs,
    "stuck-10": in_samples(one_sample_again),
    "laplace-20": laplace_noise,
}
"""The number is the share of the entries, samples or features in per cent; for Laplace noise it is its scale, in per
cent of the mean."""
