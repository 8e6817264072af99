"""Features that errors have pulled away, found again: encoded anew, the codes of samples being their basis.

The alternation cannot do that by itself: what is rejected no longer pulls, and where an error has pulled a feature to
itself, others of its entries are what looks wrong.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.encoding import Basis, encode, losses, row_medians, typical_code
from robustnmf.algorithm.holdout import HeldOut, Point
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.kernels.predictions import predictions
from robustnmf.model.weighting import Weighting
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host

# If more of a feature is rejected than this, and than twice as much as of the typical one, that may be a mistake.
REJECTED = 0.25
# It is found again if the codes leave residuals below this part of its spread.
EXPLAINED = 0.5


def rejected_features(
    V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, weighting: Weighting, engine: Engine
) -> NDArray[np.intp]:
    """Return the features that are rejected far more than others, by their numbers."""
    rejected, observed = (to_host(count) for count in engine.sum(_rejected_and_all, V, M, Ht, W=W, weighting=weighting))
    share = rejected / np.where(observed > 0, observed, 1)
    return np.flatnonzero(share > max(REJECTED, 2 * np.median(share)))


def encode_rejected(
    V: Blocks,
    M: Blocks | None,
    point: Point,
    rejected: NDArray[np.intp],
    weighting: Weighting,
    held: HeldOut,
    engine: Engine,
) -> Point:
    """Return the point with some features encoded anew, where the codes explain them."""
    W, Ht, *_ = point
    features = engine.place(rejected)
    some = engine.map(_some_features, V, features=features)
    weights = None if M is None else engine.map(_some_features, M, features=features)
    new = engine.xp.asarray(W, copy=True)
    shared: dict[str, Any] = {"basis": _codes_as_basis(W, Ht, weighting, engine), "engine": engine}
    new[features] = engine.map_features(_encode_if_explained, some, weights, W[features], **shared)
    return held.point(new, Ht)


def encode_all_features(
    V: Blocks, M: Blocks | None, point: Point, weighting: Weighting, held: HeldOut, engine: Engine
) -> Point:
    """Return the point with all features encoded anew, where that gives a lower loss."""
    W, Ht, *_ = point
    shared: dict[str, Any] = {"basis": _codes_as_basis(W, Ht, weighting, engine), "engine": engine}
    return held.point(engine.map_features(_encode_if_better, V, M, W, **shared), Ht)


def _codes_as_basis(W: Array, Ht: Blocks, weighting: Weighting, engine: Engine) -> Basis:
    """Return the codes in the role of the basis, to encode features."""
    codes = engine.join(Ht)
    weighting = replace(weighting, threshold=None if weighting.threshold is None else weighting.threshold[:1])
    return Basis(codes, typical_code(codes, [W], None, engine), weighting)


def _encode_if_better(Y: Array, M: Array | None, X: Array, *, basis: Basis, engine: Engine, xp: Namespace) -> Array:
    """Return new codes of some rows where they have a lower loss, and X elsewhere."""
    new = encode(Y, M, basis=basis, engine=engine, max_iter=50, tol=1e-3, xp=xp)
    better = losses(Y, M, new, basis, xp) < losses(Y, M, X, basis, xp)
    return xp.where(better[:, None], new, X)


def _encode_if_explained(Y: Array, M: Array | None, X: Array, *, basis: Basis, engine: Engine, xp: Namespace) -> Array:
    """Return new codes of rows that they explain clearly better than a constant does, and X elsewhere.

    What is stuck at one value, or hidden behind the same thing in most samples, is a constant; what is wrong at random
    is explained by nothing.
    """
    new = encode(Y, M, basis=basis, engine=engine, max_iter=50, tol=1e-3, xp=xp)
    residual = row_medians(xp.abs(Y - predictions(new, basis.W, Y)), M, engine)
    spread = row_medians(xp.abs(Y - row_medians(Y, M, engine)[:, None]), M, engine)
    return xp.where((residual < EXPLAINED * spread)[:, None], new, X)


@block_function(rowwise=True)
def _rejected_and_all(
    Y: Array, M: Array | None, X: Array, *, W: Array, weighting: Weighting, xp: Namespace
) -> tuple[Array, Array]:
    """Return the weight of the entries of each feature that are rejected, and that of all, (m,)."""
    everything = xp.ones_like(Y) if M is None else M
    rejected = everything - weighting.kept(Y - predictions(X, W, Y), M, xp)
    return xp.sum(rejected, axis=0), xp.sum(everything, axis=0)


def _some_features(Y: Array, *, features: Array, xp: Namespace) -> Array:
    """Return some columns."""
    return Y[:, features]
