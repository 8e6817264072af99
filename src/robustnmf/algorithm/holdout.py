"""Entries that a fit does not see: how well it predicts them tells it from its noise."""

from dataclasses import dataclass
from functools import lru_cache, partial
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.model.losses import Cauchy, squared_ratio
from robustnmf.model.mixture import (
    SPARSE,
    Mixture,
    fit_mixture,
    fit_width,
    median,
    mixture_of_width,
    quantile,
    typical_positive,
)
from robustnmf.model.weighting import masked_out
from robustnmf.utils.arrays import Array, Blocks, Namespace, device, is_foreign, to_host
from robustnmf.utils.cached import cached_property
from robustnmf.utils.observed import count_observed, observed_places

Vector = NDArray[Any]

# Entries held out: this share, but at least and at most so many, and never more than a tenth. A few thousand give the
# width of the residuals to two per cent; what is held out is missing to the fit.
SHARE, FEWEST, MOST, LARGEST_SHARE = 0.02, 4000, 50_000, 0.1
# With fewer than this, nothing is held out and the residuals of the fit itself have to do.
TOO_FEW = 300
# With fewer than this, smaller entries have to tell of the noise as well.
FEWEST_INFORMATIVE = 200
# Entries that set the width are at least this part of the typical positive one.
SUBSTANTIAL = 0.5


class Point(NamedTuple):
    """Where the alternation stands."""

    W: Array
    Ht: Blocks
    predictions: Array
    """WH at the entries held out, where their statistics are computed."""
    step: int = -1
    """Number of the step that led here, in the journal of the fit."""


class Comparison(NamedTuple):
    """How a point compares with the best one before it."""

    loss: float
    """Mean loss of its residuals."""
    excess: float
    """By how much that exceeds the best one's."""
    deviation: float
    """Standard deviation of the difference between their losses, entry by entry."""
    share: float
    """Share of its residuals that are beyond a threshold."""


@dataclass(frozen=True)
class HeldOut:
    """Entries that the fit does not see, drawn by their position alone: no seed and no cut into blocks moves them.

    Their statistics are a matter of the host, unless the engine has kernels for them.
    """

    V: Blocks
    observed: Blocks | None
    """Weights of all entries."""
    positions: Blocks
    """Sample (within its block) and feature of each, (k, 2) in all."""
    values: Array
    """The entries themselves, (k,), in double precision."""
    weights: Array
    """Their weights, (k,), in double precision."""
    hidden: bool
    """Whether the fit does not see them; there may be too few entries to hide any."""
    n_observed: int
    """Number of all observed entries."""
    engine: Engine

    @classmethod
    def draw(cls, V: Blocks, M: Blocks | None, engine: Engine) -> "HeldOut":
        """Hold out entries of features that vary: a feature with one value in most samples says nothing of noise."""
        n_features = V[0].shape[1]
        n_entries = sum(len(block) for block in V) * n_features
        n_observed = n_entries if M is None else int(engine.sum(count_observed, M))
        wanted = min(max(SHARE * n_observed, FEWEST), MOST, LARGEST_SHARE * n_observed)
        some = some_positions(V, M, n_observed, int(wanted), engine)
        varying = _varies(V, M, engine)
        if not engine.xp.any(varying):
            varying = ~varying
        positions = engine.map(_usable, some, varies=varying)
        hidden = sum(len(block) for block in positions) >= TOO_FEW
        if not hidden:
            positions = some_positions(V, M, n_observed, n_observed, engine)
        values, weights = map(engine.join, engine.map(_take, V, M, positions))
        stays = engine.kernels.statistics is not None
        # The kernels do not know that errors may be the majority of what is positive in sparse data.
        stays = stays and (hidden or not _is_sparse(values, weights))
        values, weights = (
            engine.xp.astype(part, engine.xp.float64) if stays else to_host(part).astype(np.float64, copy=False)
            for part in (values, weights)
        )
        return cls(V, M, positions, values, weights, hidden, n_observed, engine)

    @property
    def xp(self) -> Namespace:
        """The library whose arrays the values are."""
        return self.engine.xp if is_foreign(self.values) else np

    @cached_property
    def statistics(self) -> Any:
        """The engine's kernels for the statistics of these entries, None on the host."""
        if not is_foreign(self.values):
            return None
        look = partial(_look, self.values, self.weights, xp=self.xp)
        return self.engine.kernels.statistics(self.weights, self.informative, self.hidden, look)  # type: ignore[misc]

    @cached_property
    def M(self) -> Blocks | None:
        """Weights of the entries for the fit, 0 for those held out."""
        return self.engine.map(masked_out, self.V, self.observed, self.positions) if self.hidden else self.observed

    def point(self, W: Array, Ht: Blocks) -> Point:
        """Return the factors with their predictions of these entries."""
        predictions = self.engine.join(self.engine.map(_predict, Ht, self.positions, W=W, engine=self.engine))
        if self.statistics is None:
            predictions = to_host(predictions).astype(np.float64, copy=False)
        return Point(W, Ht, predictions)

    def predictions(self, point: Point) -> Array:
        """Return the predictions of a point, where the values are."""
        there = self.statistics is not None and not is_foreign(point.predictions)  # of a fit that goes on
        return self.engine.place(point.predictions) if there else point.predictions

    def magnitudes(self, point: Point) -> Array:
        """Return the magnitudes of the residuals of these entries."""
        return self.xp.abs(self.values - self.predictions(point))

    @cached_property
    def shares(self) -> Array:
        """Their weights as parts of the total, (k,)."""
        return self.weights / self.weights.sum()

    def mean(self, values: Array) -> float:
        """Return the weighted mean of something of each entry, 0 if there is none."""
        return float(_mean(values, self.weights)) if len(values) else 0.0

    @cached_property
    def typical(self) -> float:
        """The typical positive entry, 0 if there are none."""
        return typical_positive(to_host(self.values), to_host(self.weights))

    @cached_property
    def informative(self) -> Array:
        """Which entries set the width of clean residuals: those not far below the typical positive entry.

        A zero that is predicted as zero says nothing of the noise, and a small entry little where noise grows with the
        value; where it does not, large entries have it as well. Where few entries are positive, those few still tell
        more than zeros: the width of zeros would reject all that is not zero.
        """
        positive, substantial = self.values > 0, self.values > SUBSTANTIAL * self.typical
        if self.xp.count_nonzero(substantial) >= FEWEST_INFORMATIVE:
            return substantial
        return positive if self.xp.any(positive) else ~positive

    @cached_property
    def informative_weights(self) -> Array:
        """Weights of informative entries."""
        return self.weights[self.informative]

    def median(self, point: Point) -> float:
        """Return the median magnitude of the residuals of informative entries."""
        if self.statistics is not None and len(self.values):
            return float(self.statistics.of(self.predictions(point)).median)
        return median(to_host(self.magnitudes(point)[self.informative]), to_host(self.informative_weights))

    def quantile(self, point: Point, q: float) -> float:
        """Return a quantile of the magnitudes of the residuals of informative entries."""
        magnitudes, informative = to_host(self.magnitudes(point)), to_host(self.informative)
        return quantile(magnitudes[informative], to_host(self.weights)[informative], q)

    def mixture(self, point: Point) -> Mixture:
        """Return the width of clean residuals, of informative entries, and the share of clean ones among all."""
        if not len(self.values):
            return Mixture(0.0, 1.0)
        if self.statistics is not None:
            return Mixture(*self.statistics.of(self.predictions(point))[:3])
        magnitudes = self.magnitudes(point)
        informative, weights = magnitudes[self.informative], self.informative_weights
        width = fit_width(informative, weights)
        if not self.hidden:  # a fit to few entries meets some of them exactly: the Laplace component is not the noise
            # Of sparse data, errors may be the majority of the informative entries.
            is_sparse = _is_sparse(self.values, self.weights)
            middle = fit_mixture(informative, weights).share / 2 if is_sparse else 0.5
            width = max(width, 0.5 * quantile(informative, weights, middle))
        return mixture_of_width(width, magnitudes, self.weights)

    def losses(self, point: Point, scale: float) -> Array:
        """Return Cauchy's loss of the residuals of these entries, at some scale."""
        return _losses(self.magnitudes(point), scale, self.xp)

    def compare(self, point: Point, best: Array, scale: float, threshold: Any) -> tuple[Array, Comparison]:
        """Return the losses of a point at some scale, and how they compare with the best ones.

        The threshold, a number or an array of one, is what its residuals may be beyond.
        """
        if not len(self.values):
            return best, Comparison(0.0, 0.0, 0.0, 0.0)
        predictions = self.predictions(point)
        if self.statistics is not None:
            losses, numbers = self.statistics.compare(predictions, best, scale, threshold)
        else:
            losses, numbers = self._compare_on_host(predictions, best, scale, threshold)
        return losses, Comparison(*numbers)

    def _compare_on_host(
        self, predictions: Vector, best: Vector, scale: float, threshold: Any
    ) -> tuple[Vector, tuple[float, ...]]:
        """Return the losses of predictions and the numbers of a `Comparison`, in few calls of NumPy."""
        magnitudes = np.abs(self.values - predictions)
        losses = _losses(magnitudes, scale, np)
        excess, n_entries = losses - best, len(losses)
        from_mean = excess - excess.sum() / n_entries
        deviation = sqrt(from_mean @ from_mean / n_entries)
        share = np.count_nonzero(magnitudes > threshold) / n_entries
        return losses, (float(losses @ self.shares), float(excess @ self.shares), deviation, share)


def _look(
    values: Array, weights: Array, predictions: Array, best: Array, scale: Any, threshold: Any, *, xp: Namespace
) -> tuple[Array, Array, Array]:
    """Return the magnitudes of residuals, their losses, and the numbers of a `Comparison`, to be fetched at once."""
    magnitudes = xp.abs(values - predictions)
    losses = _losses(magnitudes, scale, xp)
    excess = losses - best
    share = xp.sum(magnitudes > threshold, dtype=losses.dtype) / len(losses)
    return magnitudes, losses, xp.stack([_mean(losses, weights), _mean(excess, weights), xp.std(excess), share])


def _losses(magnitudes: Array, scale: Any, xp: Namespace) -> Array:
    return Cauchy().rho(squared_ratio(magnitudes, scale, xp), xp)


def _mean(values: Array, weights: Array) -> Any:
    """Return a weighted mean."""
    return values @ weights / weights.sum()


def _is_sparse(values: Array, weights: Array) -> bool:
    """Return whether most entries are zero."""
    return float(weights[values > 0].sum()) < SPARSE * float(weights.sum())


@lru_cache(maxsize=2)  # a fit asks for the same entries many times, and sorting them takes longer than their use
def some_of(n_entries: int, wanted: int) -> Vector:
    """Return about so many positions in a flattened matrix, chosen at random, in rising order, each once."""
    flat = np.sort(np.random.default_rng(0).integers(n_entries, size=wanted))
    chosen = np.asarray(flat[np.diff(flat, prepend=-1) > 0])
    chosen.setflags(write=False)
    return chosen


def positions_in_blocks(flat: Vector, V: Blocks, engine: Engine) -> Blocks:
    """Return sorted positions in the whole matrix as samples and features in each block."""
    n_features = V[0].shape[1]
    ends = n_features * np.cumsum([len(block) for block in V])
    parts = np.split(flat, np.searchsorted(flat, ends[:-1]))
    return [
        engine.place(np.stack(np.divmod(part - start, n_features), axis=1))
        for part, start in zip(parts, [0, *ends[:-1]], strict=True)
    ]


def some_positions(V: Blocks, M: Blocks | None, n_observed: int, wanted: int, engine: Engine) -> Blocks:
    """Return samples and features, in each block, of about so many observed entries, chosen at random; or of all."""
    flat = some_of(n_observed, wanted) if wanted < n_observed else np.arange(n_observed)
    if M is None:
        return positions_in_blocks(flat, V, engine)
    ends = np.cumsum(to_host(engine.join(engine.map(_n_observed_in, M))))
    parts = np.split(flat, np.searchsorted(flat, ends[:-1]))
    numbers = [engine.place(part - start) for part, start in zip(parts, [0, *ends[:-1]], strict=True)]
    positions: Blocks = engine.map(_observed_positions, M, numbers)
    return positions


def _varies(V: Blocks, M: Blocks | None, engine: Engine) -> Array:
    """Return which features do not have one value in most of their observed entries, (m,)."""
    medians = engine.quantile(V, M, 0.5, axis="feature")
    equal, observed = engine.sum(_equal, V, M, values=medians)
    return 2 * equal < observed


def _equal(Y: Array, M: Array | None, *, values: Array, xp: Namespace) -> tuple[Array, Array]:
    """Return, per feature, the weight of entries equal to a value and of all."""
    weights = xp.ones_like(Y) if M is None else M
    return xp.sum(xp.where(Y == values, weights, 0), axis=0), xp.sum(weights, axis=0)


def _n_observed_in(M: Array, *, xp: Namespace) -> Array:
    """Return the number of observed entries of a block, (1,)."""
    return xp.asarray([int(xp.count_nonzero(M))], device=device(M))


def _observed_positions(M: Array, numbers: Array, *, xp: Namespace) -> Array:
    """Return row and column of some of the observed entries, by their numbers (k,), row by row, (k, 2)."""
    return xp.stack([places[numbers] for places in observed_places(M, xp)], axis=1)


def _usable(positions: Array, *, varies: Array, xp: Namespace) -> Array:
    """Return the positions in features that vary."""
    return positions[varies[positions[:, 1]]]


def _take(Y: Array, M: Array | None, positions: Array, *, xp: Namespace) -> tuple[Array, Array]:
    """Return entries and their weights."""
    rows, columns = positions[:, 0], positions[:, 1]
    values = Y[rows, columns]
    return values, xp.ones_like(values) if M is None else M[rows, columns]


@block_function(light=True)
def _predict(X: Array, positions: Array, *, W: Array, engine: Engine, xp: Namespace) -> Array:
    """Return entries of X W'."""
    kernel = engine.kernels.predict
    if kernel is not None:
        return kernel(X, positions, W)
    return xp.sum(X[positions[:, 0]] * W[positions[:, 1]], axis=1)
