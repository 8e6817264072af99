"""Counts: a second start for the fit of what is right, and which of two fits to take.

The robust stages look for what most entries have in common. Of counts most entries are zero or small, so the stages may
miss a component, or believe in the zeros of data with drop-outs. The second start is plain: singular vectors of the
data, in which no count is larger than so many times what is typical of its sample and feature. Positive counts alone
say what is typical, so zeros do not matter, however many there are.
"""

from dataclasses import replace
from math import inf
from typing import NamedTuple

from robustnmf.algorithm.encoding import row_medians
from robustnmf.algorithm.least_squares import Judged, LeastSquares
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.kernels.predictions import predictions
from robustnmf.model.noise import COUNT_OFFSET, NoiseModel
from robustnmf.utils.arrays import Array, Blocks, Namespace

# No count is larger than so many times the typical positive one of its sample and feature.
GROSS = 10.0
# The second fit is taken if it leaves less than this part of the divergence, where no entry counts as more than beyond
# the threshold of the first; or of all divergence, which is so much that the first fit must have missed most counts.
CLEARLY_LESS, FAR_LESS = 0.99, 0.7


class Limited(NamedTuple):
    """Counts without gross errors."""

    V: Blocks
    levels: Array
    """Typical positive count of each feature, (m,)."""


def limited_counts(V: Blocks, M: Blocks | None, engine: Engine) -> Limited:
    """Return data in which no entry is far larger than is typical of its sample and feature."""
    xp = engine.xp
    positive = engine.map(_positive, V, M)
    levels = engine.quantile(V, positive, 0.5, axis="feature")
    levels = xp.where(levels > 0, levels, 1)
    return Limited(engine.map(_limited, V, M, levels=levels, engine=engine), levels)


def everything(squares: LeastSquares, W: Array, Ht: Blocks, model: NoiseModel) -> NoiseModel:
    """Return the noise model by which nothing is wrong, for data with some factors."""
    accepted = squares.accepted_entries(W, Ht, replace(model, threshold=inf))
    return replace(model, threshold=inf, largest=accepted.largest, centers=accepted.mean)


def divergences(squares: LeastSquares, first: Judged, second: Judged, limited: Limited) -> dict[str, float]:
    """Return the Kullback-Leibler divergence of counts from two fits, as parts of that from the first.

    "capped" is that of the counts, of which none counts as farther away than the threshold of the first fit;
    "limited" that of counts without gross errors.
    """
    engine, blocks = squares.engine, (squares.V, limited.V, squares.M)
    shared = {"model": first.model}
    sums = [
        engine.sum(_divergences, *blocks, judged.point.Ht, W=judged.point.W, **shared) for judged in (first, second)
    ]
    pairs = zip(*sums, strict=True)
    return dict(zip(("capped", "limited"), (b / a if a > 0 else 1.0 for a, b in pairs), strict=True))


def takes_second(found: dict[str, float]) -> bool:
    """Return whether the second of two fits is taken."""
    return found["capped"] < CLEARLY_LESS or found["limited"] < FAR_LESS


# --- On a block -------------------------------------------------------------------------------------------------------


@block_function(recomputed=True)
def _positive(Y: Array, M: Array | None, *, xp: Namespace) -> Array:
    """Return the weights of positive entries, 0 for the others."""
    return xp.where(Y > 0, xp.ones_like(Y) if M is None else M, 0)


@block_function(recomputed=True, rowwise=True)
def _limited(Y: Array, M: Array | None, *, levels: Array, engine: Engine, xp: Namespace) -> Array:
    """Return a block in which no entry is more than so many times what is typical of its sample and feature."""
    ratios = Y / levels
    sizes = row_medians(ratios, _positive(Y, M, xp=xp), engine)[:, None]
    most = xp.astype(GROSS * sizes * levels, Y.dtype)
    return xp.where(Y < most, Y, most)


@block_function(rowwise=True)
def _divergences(
    Y: Array, limited: Array, M: Array | None, X: Array, *, W: Array, model: NoiseModel, xp: Namespace
) -> tuple[float, float]:
    """Return the sums of `divergences` over a block."""
    predicted, offset = predictions(X, W, Y), COUNT_OFFSET * model.mean_count(xp)
    limits = model.limits(predicted, xp)
    near = xp.where(Y > predicted + limits, predicted + limits, Y)
    weights = 1 if M is None else M
    sums = (weights * _divergence(y + offset, predicted + offset, xp) for y in (near, limited))
    capped, total = (float(xp.sum(part, dtype=xp.float64)) for part in sums)
    return capped, total


def _divergence(y: Array, p: Array, xp: Namespace) -> Array:
    """Return the generalised Kullback-Leibler divergence of positive numbers, entry by entry."""
    return y * xp.log(y / p) - y + p
