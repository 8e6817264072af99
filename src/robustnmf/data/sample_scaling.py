"""Samples of different sizes, as cells with libraries of different sizes: a factor for each that it is divided by.

The factor of a sample is its total relative to that of the typical sample, over the features that are observed. No
entry counts in the total with more than so many times what is typical of its sample and feature, so gross errors hardly
change it. It depends on the sample alone and on numbers of the features that the fit has found: new samples, and
samples of a stream, have factors like those of the training data.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.data.blocks import Data, Observations, made_of
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.utils.arrays import Array, Namespace

Matrix = NDArray[Any]

# No entry counts with more than so many times the typical positive one of its sample and feature.
GROSS = 10.0
# Factors are at least and at most this: beyond it, numbers of single precision would lose their digits.
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-12, 1e12


class SampleScaling(NamedTuple):
    """What factors of samples are computed from."""

    levels: Matrix
    """Typical positive entry of each feature, (m,)."""
    means: Matrix
    """Entries of a sample whose factor is 1, (m,), in the mean; gross errors aside."""

    @classmethod
    def of(cls, X: Matrix, M: Matrix | None) -> "SampleScaling":
        """Return it for data of which some samples are known, on the host, (n, m); their median factor is 1."""
        levels = median_positive(X.T, None if M is None else M.T, np)
        levels = np.where(levels > 0, levels, np.median(levels[levels > 0]) if (levels > 0).any() else 1.0)
        observed = np.ones_like(X) if M is None else (M > 0).astype(X.dtype)
        counts = observed.sum(axis=0)
        means = (observed * limited(X, M, levels, np)).sum(axis=0) / np.maximum(counts, 1)
        found = cls(levels, means)
        factors = found.block_factors(X, M, np)[X.any(axis=1)]
        return found._replace(means=means * (np.median(factors) if factors.size else 1.0))

    def block_factors(self, Y: Array, M: Array | None, xp: Namespace) -> Array:
        """Return the factors of the samples of a block, (B,) doubles; 1 where nothing tells."""
        return _factors(Y, M, levels=self.levels, means=self.means, xp=xp)

    def factors(self, data: Data, engine: Engine) -> Array:
        """Return the factors of all samples, (n, 1), where the engine works."""
        return engine.join(engine.map(_factor_column, data.X, data.M, **self._placed(engine)))

    def divided(self, data: Data, engine: Engine) -> Data:
        """Return data with each sample divided by its factor."""
        whole = None if data.arrays is None else data.arrays.X
        blocks = [data.X, data.M]
        ((X, all_X),) = made_of(_divided, blocks, whole, engine, dtype=data.dtype, **self._placed(engine))
        arrays = None if data.arrays is None else Observations(all_X, data.arrays.M)
        return data.with_entries(X, arrays)

    def _placed(self, engine: Engine) -> dict[str, Array]:
        return {name: engine.place(array, engine.xp.float64) for name, array in self._asdict().items()}


def limited(Y: Array, M: Array | None, levels: Array, xp: Namespace) -> Array:
    """Return entries (B, m), none of which is more than so many times what is typical of its sample and feature."""
    most = GROSS * median_positive(Y / levels, M, xp)[:, None] * levels
    return xp.where(Y < most, Y, most)


def median_positive(A: Array, M: Array | None, xp: Namespace) -> Array:
    """Return the median of the positive observed entries of each row, the lower one of two, 0 where none is, (B,)."""
    seen = A > 0 if M is None else (A > 0) & (M > 0)
    count = xp.sum(xp.astype(seen, xp.int64), axis=1, keepdims=True)
    middle = xp.where(count > 0, (count - 1) // 2, 0)
    values = xp.take_along_axis(xp.sort(xp.where(seen, A, np.inf), axis=1), middle, axis=1)
    return xp.where(count > 0, values, 0)[:, 0]


# --- On a block -------------------------------------------------------------------------------------------------------


def _factors(Y: Array, M: Array | None, *, levels: Array, means: Array, xp: Namespace) -> Array:
    """Return the factors of the samples of a block, (B,)."""
    Y = xp.astype(Y, xp.float64, copy=False)
    near = limited(Y, M, levels, xp)
    if M is None:
        total, typical = xp.sum(near, axis=1), xp.sum(means) * xp.ones_like(Y[:, 0])
    else:
        observed = xp.astype(M > 0, xp.float64)
        total, typical = xp.sum(observed * near, axis=1), observed @ means
    known = (total > 0) & (typical > 0)
    factors = xp.where(known, total, 1) / xp.where(known, typical, 1)
    return xp.clip(factors, SMALLEST_FACTOR, LARGEST_FACTOR)


@block_function(on_host=True)
def _factor_column(Y: Array, M: Array | None, *, xp: Namespace, **known: Array) -> Array:
    return _factors(Y, M, xp=xp, **known)[:, None]


@block_function(recomputed=True, parts=1, on_host=True)
def _divided(Y: Array, M: Array | None, *, dtype: Any, xp: Namespace, **known: Array) -> tuple[Array]:
    """Return a block with each sample divided by its factor."""
    with np.errstate(over="ignore"):
        scaled = xp.astype(Y, xp.float64, copy=False) / _factors(Y, M, xp=xp, **known)[:, None]
    scaled = xp.clip(scaled, max=float(np.finfo(dtype).max))
    return (xp.astype(scaled, getattr(xp, np.dtype(dtype).name), copy=False),)
