"""A value that far too many entries share.

Something of one colour may cover parts of images, a detector may saturate, or a number may stand for missing. But such
a value may be data as well: the background of an image, or what lies below a limit of detection. So what is found here
is a suspicion; `robustnmf.algorithm.value_trial` asks the other entries.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.data.blocks import Data, Observations, made_of
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.errors import IncompatibleError
from robustnmf.utils.arrays import Array, Namespace

Matrix = NDArray[Any]

# Entries in which the value is looked for.
ENOUGH_ENTRIES = 2**16
# The value has at least and at most this share of the entries.
FEWEST_SHARED, MOST_SHARED = 0.01, 0.5
# It is so many times as common as any value near it, that is within this part of the range of all values,
PILED_UP, NEARBY = 5, 0.1
# of which there must be so many. Of fewer only the largest is suspicious, if it is so many times as common as the next
# lower ones.
FEWEST_VALUES, NEXT_LOWER = 30, 3
# A background has the majority of some samples and features, and few entries elsewhere. A cover has so many of its
# entries elsewhere. If it is seen in so many features, it covers samples in many places.
ELSEWHERE, IN_FEATURES = 0.5, 0.8


class RepeatedValue(NamedTuple):
    """A suspicious value."""

    of_features: Matrix
    """The value, NaN for features of which it has the majority, which may be their nature, (m,)."""
    is_spread: bool
    """Whether it is seen in nearly all features."""


def find_repeated_value(X: Matrix, M: Matrix | None) -> RepeatedValue | None:
    """Return a value that far too many observed entries share, and that is not a background; None if there is none.

    Parameters
    ----------
    X, M : (n, m), data and weights on the host; M may be None.
    """
    observed = np.ones(X.shape, dtype=bool) if M is None else M > 0
    values = _piled_up(X.ravel() if M is None else X[observed])
    return next((found for value in values if (found := _suspicion(X, observed, value)) is not None), None)


def _suspicion(X: Matrix, observed: Matrix, value: float) -> RepeatedValue | None:
    """Return a value that far too many entries share, unless it is a background."""
    has_it = observed & (value == X)
    in_features, in_samples = (2 * has_it.sum(axis=axis) <= observed.sum(axis=axis) for axis in (0, 1))
    elsewhere = has_it & in_features & in_samples[:, None]
    n_elsewhere, n_features = np.count_nonzero(elsewhere), np.count_nonzero(elsewhere.any(axis=0))
    if n_elsewhere < max(1, ELSEWHERE * np.count_nonzero(has_it)):
        return None
    return RepeatedValue(np.where(in_features, value, np.nan), n_features >= IN_FEATURES * X.shape[1])


def _piled_up(entries: Matrix) -> list[float]:
    """Return the most common of the entries (k,) and the largest, if they are far more common than those near them.

    Some entries tell.
    """
    if len(entries) > ENOUGH_ENTRIES:  # at random: a regular choice might leave features out
        entries = entries[np.random.default_rng(0).integers(len(entries), size=ENOUGH_ENTRIES)]
    ordered = np.sort(entries)
    starts = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0)
    values, counts = ordered[starts], np.diff(starts, append=len(ordered))
    last = len(values) - 1

    def is_piled_up(place: int) -> bool:
        is_near = np.abs(values - values[place]) <= NEARBY * (values[-1] - values[0])
        if len(values) < FEWEST_VALUES:  # ratings and small counts repeat their values by nature, but not the largest
            if place < last or last < 2 * NEXT_LOWER:
                return False
            is_near[-1 - NEXT_LOWER :] = True
        is_near[place] = False
        enough = max(FEWEST_SHARED * len(entries), PILED_UP * counts[is_near].max(initial=0))
        return bool(enough <= counts[place] <= MOST_SHARED * len(entries))

    places = dict.fromkeys((int(counts.argmax()), last)) if len(values) else ()
    return [float(values[place]) for place in places if is_piled_up(place)]


def without_values(data: Data, values: Matrix | None, engine: Engine) -> Data:
    """Return data in which entries have weight 0 that have one of the values of their feature, (k, m), NaN for none."""
    if values is None:
        return data
    if engine.keeps_sparse:
        raise IncompatibleError(
            "This model rejects a value wherever it occurs, for which X must be dense: pass X.toarray(), or use "
            "engine='numpy'. repeated_values='data' fits a model that rejects none."
        )
    whole = None if data.arrays is None else data.arrays.X
    known = {"values": engine.place(values, engine.xp.float64)}
    ((M, all_M),) = made_of(_weights_of_others, [data.X, data.M], whole, engine, dtype=data.dtype, **known)
    return replace(data, M=M, arrays=None if whole is None else Observations(whole, all_M))


def mark_values(outliers: Array, data: Data, values: Matrix | None, engine: Engine) -> None:
    """Make observed entries outliers, (n, m) of bool, that have one of the values of their feature, (k, m)."""
    if values is None:
        return
    target = engine.split(outliers, like=data.X)
    known = {"values": engine.place(values, engine.xp.float64)}
    engine.fill((target,), _or_has_value, target, data.X, data.M, **known)


# --- On a block -------------------------------------------------------------------------------------------------------


def _has_value(Y: Array, M: Array | None, values: Array, xp: Namespace) -> Array:
    """Return which observed entries of a block have one of the values of their feature, (B, m)."""
    Y = xp.astype(Y, xp.float64, copy=False)
    has_one = Y == values[0]
    for k in range(1, values.shape[0]):
        has_one = has_one | (Y == values[k])
    return has_one if M is None else has_one & (M > 0)


@block_function(recomputed=True, parts=1, on_host=True)
def _weights_of_others(Y: Array, M: Array | None, *, values: Array, dtype: Any, xp: Namespace) -> tuple[Array]:
    kind = getattr(xp, np.dtype(dtype).name)
    weights = xp.ones_like(Y, dtype=kind) if M is None else xp.astype(M, kind, copy=False)
    return (xp.where(_has_value(Y, M, values, xp), xp.zeros_like(weights), weights),)


@block_function(rowwise=True)
def _or_has_value(outliers: Array, Y: Array, M: Array | None, *, values: Array, xp: Namespace) -> tuple[Array]:
    return (outliers | _has_value(Y, M, values, xp),)
