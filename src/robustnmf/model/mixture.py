"""How large clean residuals are, and how many are clean: a mixture of a Laplace and a uniform distribution.

Residuals of a good fit pile up around zero, roughly like Laplace's distribution; those of gross errors are spread over
a range so much wider that near zero their density is flat. So the magnitudes on [0, R] are taken for a share of a
Laplace distribution and a rest that is uniform, and R for six times the width of the former: beyond that there are
hardly any clean residuals, and what is there says nothing of them. However many errors there are and however far they
lie, they only raise the uniform component; the width of the Laplace component stays, until the other drowns it.
"""

from math import ceil, inf, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.engines.protocol import Engine
from robustnmf.kernels.mixture import laplace_and_uniform
from robustnmf.kernels.mixture_constants import ROUNDING, ROUNDS, SMALLEST_SHARE, SUPPORT, WIDEST
from robustnmf.utils.arrays import Array, Blocks, Namespace, device, size, subsample, to_host
from robustnmf.utils.medians import densest

Vector = NDArray[Any]

# Residuals in a sample: enough for a width to one per cent.
SAMPLE = 2**16
# Data is sparse if less than this share of its entries is positive.
SPARSE = 0.5
# Share of the positive entries of sparse data whose shortest interval is their densest part.
DENSEST = 0.25


class Mixture(NamedTuple):
    """Clean residuals among all.

    Parameters
    ----------
    width : float
        Scale b of the Laplace distribution of clean residuals: their mean magnitude.
    share : float
        Share of residuals that belong to it, above 0 and at most 1.
    uniform_density : float
        Density of the others where they are flat, per unit of magnitude.
    """

    width: float
    share: float
    uniform_density: float = 0.0

    @property
    def decision_threshold(self) -> float:
        """Magnitude at which it is as likely wrong as clean, at least three widths; infinite if none is wrong."""
        if self.uniform_density * self.width == 0:
            return inf
        return self.width * max(log(self.share / (self.uniform_density * self.width)), 3.0)


def fit_mixture(magnitudes: Vector, weights: Vector | None = None) -> Mixture:
    """Return width and share of the clean among residual magnitudes, by maximum likelihood.

    Parameters
    ----------
    magnitudes : (k,), non-negative
    weights : (k,) or None
        How often each counts.
    """
    width, stands_out = _fit(magnitudes, weights)
    return mixture_of_width(width, magnitudes, weights) if stands_out else Mixture(width, 1.0)


def fit_width(magnitudes: Vector, weights: Vector | None = None) -> float:
    """Return the width of the same mixture, whose share takes another pass."""
    return _fit(magnitudes, weights)[0]


def _fit(magnitudes: Vector, weights: Vector | None) -> tuple[float, bool]:
    """Return the width of clean residuals, and whether they stand out: else all are alike, and clean."""
    weights = np.ones_like(magnitudes) if weights is None else weights
    support = median(magnitudes, weights)
    if support == 0:
        positive = magnitudes > 0
        support = median(magnitudes[positive], weights[positive])
    if support == 0:
        return 0.0, False
    largest = float(magnitudes.max())
    width, _, _, support = laplace_and_uniform(magnitudes, weights, support, support, largest, ROUNDS)
    if width >= WIDEST * support:  # no Laplace component to be seen
        return float(np.average(magnitudes, weights=weights)), False
    return width, True


def mixture_of_width(width: float, magnitudes: Vector, weights: Vector | None = None) -> Mixture:
    """Return the mixture whose clean residuals have a known width, by maximum likelihood."""
    weights = np.ones_like(magnitudes) if weights is None else weights
    support = min(SUPPORT * width, float(magnitudes.max(initial=0.0)))
    if support == 0:
        return Mixture(width, 1.0)
    _, share, inside, _ = laplace_and_uniform(magnitudes, weights, support, width)
    if inside == 0:
        return Mixture(width, SMALLEST_SHARE)
    within = inside / weights.sum()
    clean = min(share * within / -np.expm1(-support / width), 1.0)
    return Mixture(width, max(float(clean), SMALLEST_SHARE), float((1 - share) * within / support))


def mixture_of(magnitudes: Blocks, M: Blocks | None, engine: Engine) -> Mixture:
    """Return the mixture of residuals: the one that they are known to have, else an estimate from a sample of them.

    Parameters
    ----------
    magnitudes : blocks
        Magnitudes |R| of the residuals, (n, m) in all.
    M : blocks or None
        Weight of each, 0 where missing; None if all are 1.
    engine : Engine
        What works on the blocks.

    Returns
    -------
    Mixture
        Width and share of clean residuals.
    """
    known: Mixture | None = getattr(magnitudes, "mixture", None)
    return fit_mixture(*sample(magnitudes, M, engine)) if known is None else known


def sample(magnitudes: Blocks, M: Blocks | None, engine: Engine) -> tuple[Vector, Vector]:
    """Return magnitudes of observed entries and their weights, at most `SAMPLE` of them, evenly spread."""
    counts = to_host(engine.join(engine.map(_count, magnitudes, M))).tolist()
    sampled = engine.map(_sampled, magnitudes, M, subsample(counts, max(1, ceil(sum(counts) / SAMPLE))))
    values, weights = (to_host(engine.join(blocks)).astype(np.float64, copy=False) for blocks in sampled)
    return values, weights


def _count(A: Array, M: Array | None, *, xp: Namespace) -> Array:
    """Return the number of entries of positive weight, (1,)."""
    return xp.asarray([size(A) if M is None else int(xp.count_nonzero(M))], device=device(A))


def _sampled(A: Array, M: Array | None, some: slice, *, xp: Namespace) -> tuple[Array, Array]:
    """Return some of the entries of positive weight, and their weights, as vectors."""
    if M is None:
        values = xp.reshape(A, (-1,))[some]
        return values, xp.ones_like(values)
    return A[M > 0][some], M[M > 0][some]


def median(values: Vector, weights: Vector) -> float:
    """Return a weighted median, 0 of nothing."""
    return quantile(values, weights, 0.5)


def typical_positive(values: Vector, weights: Vector) -> float:
    """Return the median of positive values, 0 of nothing; where most are zero, the middle of their densest part.

    Where most are zero, errors may be the majority of what is positive, but they are spread wider.
    """
    positive = values > 0
    is_sparse = weights[positive].sum() < SPARSE * weights.sum()
    return densest_part(values[positive]) if is_sparse else median(values[positive], weights[positive])


def densest_part(values: Vector) -> float:
    """Return the middle of the densest part of positive values, 0 of nothing."""
    return float(densest(values[None, :], DENSEST)[0]) if values.size else 0.0


def quantile(values: Vector, weights: Vector, q: float) -> float:
    """Return a weighted quantile, the smallest value at which the cumulated weight reaches a share q; 0 of nothing."""
    if values.size == 0:
        return 0.0
    if (weights == weights[0]).all():
        rank = max(ceil(q * values.size - ROUNDING) - 1, 0)
        return float(np.partition(values, rank)[rank])
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    part = (q - ROUNDING) * cumulated[-1]  # a sum of weights such as 1/3 that reaches the half but for rounding, does
    return float(values[order[np.searchsorted(cumulated, part)]])
