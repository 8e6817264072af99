"""Is anything wrong at all? Least squares on all entries, from where a robust fit ended, and how the two compare.

A robust fit takes entries for wrong that the majority does not explain. That is a mistake where noise grows with the
value, or where features are in different units: then the largest entries are rejected, and they are right. Two numbers
tell. The total absolute residual of all entries, wrong ones included, falls clearly if least squares explains what was
rejected; it rises if errors pull, as long as less than half of the entries are wrong. And the residuals of the entries
that the robust fit accepts stay about as they were, unless errors pull.
"""

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import NamedTuple

from robustnmf.algorithm.halfquadratic import Method, extrapolate, sweep
from robustnmf.algorithm.holdout import Point
from robustnmf.engines.protocol import Engine
from robustnmf.model.losses import Squared
from robustnmf.model.outliers import NoRejection
from robustnmf.model.weighting import Weighting
from robustnmf.utils.arrays import Array, Blocks, Namespace

# Sweeps between two looks at the sum of squares.
CHECKED_EVERY = 5
# Share of the last move that is repeated before each sweep, until the sum of squares rises.
MOMENTUM = 0.7
# Least squares is right if it leaves at most this part of the total absolute residual, and raises that of the accepted
# entries at most so many times. The more it gains, the more it may damage: residuals of a fit that ignored structure
# were too small. White blocks on faces, which components can explain, have gains of 0.2 to 0.6 and damages above 2.7.
GAIN_AND_DAMAGE = ((0.9, 1.5), (0.35, 2.5))
# More than half of the data cannot be wrong, or nobody could tell: then any clear gain will do.
MOST_WRONG = 0.5
# A new entry is rejected beyond the largest residual of its feature and so much more,
MARGIN = 1.1
# or beyond this part of the feature's mean, if that is larger.
SMALLEST_THRESHOLD = 0.5

SQUARES = Weighting(Squared(), 1.0)


class Comparison(NamedTuple):
    """Least squares beside a robust fit."""

    gain: float
    """Total absolute residual of all entries, relative to that of the robust fit."""
    damage: float
    """The same of the entries that the robust fit accepts."""
    rejected: float
    """Share of the entries that the robust fit rejects."""

    def favours_squares(self, overfit: float) -> bool:
        """Return whether least squares is right; `overfit` is the gain that it would have on nothing but noise."""
        gain = self.gain / overfit
        if self.rejected > MOST_WRONG and gain <= GAIN_AND_DAMAGE[0][0]:
            return True
        return any(gain <= most and self.damage <= damage for most, damage in GAIN_AND_DAMAGE)

    @property
    def doubt(self) -> str | None:
        """What the user should know if the robust fit stays although least squares explains the data better."""
        if self.gain > GAIN_AND_DAMAGE[0][0]:
            return None
        return (
            f"{self.rejected:.1%} of the entries are taken for wrong, but least squares on all entries leaves only "
            f"{self.gain:.0%} of the total absolute residual. Either large errors follow a pattern, or the rejected "
            "entries are right. Look at outliers_; if they are right, use method='l2', or divide each feature by its "
            "typical size."
        )


@dataclass(frozen=True)
class LeastSquares:
    """Least squares on all entries of some samples."""

    V: Blocks
    M: Blocks | None
    method: Method
    engine: Engine
    tol: float

    def improved(self, W: Array, Ht: Blocks, most: int) -> tuple[Array, Blocks]:
        """Return factors after so many sweeps, or fewer if the sum of squares no longer falls."""
        method, engine = replace(self.method, loss=SQUARES.loss, outliers=NoRejection()), self.engine
        last = best = (W, Ht)
        squares, momentum = self.squares(W, Ht), MOMENTUM
        for k in range(most):
            how = {"momentum": momentum, "engine": engine}
            begin = extrapolate(W, last[0], **how, xp=engine.xp), engine.map(extrapolate, Ht, last[1], **how)
            last = (W, Ht)
            W, Ht = sweep(self.V, self.M, *begin, SQUARES, method, engine)
            Ht = engine.truncate_lineage(Ht)
            if (k + 1) % CHECKED_EVERY and k + 1 < most:
                continue
            now = self.squares(W, Ht)
            if now > squares:  # the momentum was too much
                (W, Ht), last, momentum = best, best, momentum / 2
                continue
            is_steady = squares - now <= CHECKED_EVERY * self.tol * squares / 10
            best, squares = (W, Ht), now
            if is_steady:
                break
        return best

    def squares(self, W: Array, Ht: Blocks) -> float:
        """Return the sum of squared residuals."""
        return float(self.engine.sum(_squares, self.V, self.M, Ht, W=W))

    def compare(self, robust: Point, plain: Point, weighting: Weighting) -> dict[str, float]:
        """Return the fields of a `Comparison` of two points; the weighting says what the robust one rejects."""
        xp, engine = self.engine.xp, self.engine
        shared = {"W": robust.W, "weighting": weighting}
        # Nothing holds the predictions of rejected entries. They count as no more than what the feature may be.
        most = xp.max(engine.join(engine.map(_largest_accepted, self.V, self.M, robust.Ht, **shared)), axis=0)
        shared |= {"most": most, "W_plain": plain.W}
        sums = engine.sum(_absolute_sums, self.V, self.M, robust.Ht, plain.Ht, **shared)
        before, after, accepted_before, accepted_after, rejected, total = sums
        return {
            "gain": after / before if before > 0 else 1.0,
            "damage": accepted_after / accepted_before if accepted_before > 0 else inf,
            "rejected": rejected / total if total > 0 else 0.0,
        }

    def overfit(self, rank: int, n_observed: int) -> float:
        """Return what a fit leaves of nothing but noise, relative to what it was."""
        n_samples, n_features = sum(len(block) for block in self.V), self.V[0].shape[1]
        return sqrt(max(1 - rank * (n_samples + n_features) / max(n_observed, 1), 0.01))


def thresholds(V: Blocks, M: Blocks | None, point: Point, engine: Engine) -> Array:
    """Return the magnitude beyond which an entry of each feature is unlike all that a fit has seen, (m,)."""
    xp = engine.xp
    largest = xp.max(engine.join(engine.map(_largest, V, M, point.Ht, W=point.W)), axis=0)
    total, weight = engine.sum(_column_sums, V, M)
    typical = total / xp.where(weight > 0, weight, 1)
    return xp.maximum(MARGIN * largest, xp.astype(SMALLEST_THRESHOLD * typical, largest.dtype))


def _squares(Y: Array, M: Array | None, X: Array, *, W: Array, xp: Namespace) -> float:
    """Return the sum of squared residuals of a block."""
    R = Y - X @ W.T
    return float(xp.sum(R * R if M is None else M * (R * R), dtype=xp.float64))


def _largest_accepted(Y: Array, M: Array | None, X: Array, *, W: Array, weighting: Weighting, xp: Namespace) -> Array:
    """Return the largest entry of each feature of a block that is observed and not rejected, (1, m)."""
    accepted = weighting.kept(Y - X @ W.T, M, xp)
    return xp.max(xp.where(accepted > 0, Y, 0), axis=0, keepdims=True)


def _absolute_sums(
    Y: Array,
    M: Array | None,
    X: Array,
    X_plain: Array,
    *,
    W: Array,
    W_plain: Array,
    weighting: Weighting,
    most: Array,
    xp: Namespace,
) -> tuple[float, ...]:
    """Return sums over a block: |R| of both fits, of all entries and of those that the robust one accepts, and weights.

    The last two are the weight of the rejected entries and that of all.
    """
    predicted = X @ W.T
    counts = xp.ones_like(Y) if M is None else M
    accepted = weighting.kept(Y - predicted, M, xp)
    before = xp.abs(Y - xp.where((accepted == 0) & (predicted > most), most * xp.ones_like(Y), predicted))
    after = xp.abs(Y - X_plain @ W_plain.T)
    parts = (counts * before, counts * after, accepted * before, accepted * after, counts - accepted, counts)
    return tuple(float(xp.sum(part, dtype=xp.float64)) for part in parts)


def _largest(Y: Array, M: Array | None, X: Array, *, W: Array, xp: Namespace) -> Array:
    """Return the largest magnitude of the observed residuals of each feature of a block, (1, m)."""
    A = xp.abs(Y - X @ W.T)
    return xp.max(A if M is None else xp.where(M > 0, A, 0), axis=0, keepdims=True)


def _column_sums(Y: Array, M: Array | None, *, xp: Namespace) -> tuple[Array, Array]:
    """Return the sum of the observed entries of each feature of a block, and their weight, (m,)."""
    counts = xp.ones_like(Y) if M is None else M
    return xp.sum(counts * Y, axis=0), xp.sum(counts, axis=0)
