"""How the default ends: decide what is wrong in units of its noise, and fit the rest by least squares.

The robust alternation finds the factors with one scale for all entries. Where noise grows with the value, or features
are in different units, it rejects the largest entries, and they are right. Here the width of the noise is estimated
for each entry (`robustnmf.model.noise`), from predictions that the entry itself had no part in, and entries are judged
anew.

Then least squares on all entries is compared with that. Two numbers tell whether anything is wrong at all. The total
absolute residual falls clearly if least squares explains what was rejected; it rises if errors pull, as long as less
than half of the entries are wrong. And the residuals of the accepted entries stay about as they were, unless errors
pull.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from robustnmf.algorithm.beyond import Beyond, replaced
from robustnmf.algorithm.encoding import Basis, can_solve, settle, solve_stored, without
from robustnmf.algorithm.halfquadratic import Method, extrapolate, magnitudes_of, penalty_value, sweep
from robustnmf.algorithm.holdout import Point, some_positions
from robustnmf.algorithm.leverage import inverse, leverages, sample_factors, without_own
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.kernels.predictions import predictions
from robustnmf.model.noise import PRIOR_ENTRIES, Noise, NoiseModel, Sampled, estimate
from robustnmf.model.outliers import NoRejection
from robustnmf.solvers import SharedGram
from robustnmf.solvers.base import UNIFORM as SQUARES
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host
from robustnmf.utils.cached import cached_property
from robustnmf.utils.entries import Changes, Entries, starts_of
from robustnmf.utils.observed import Observed, count_observed

# Sweeps between two looks at the objective.
CHECKED_EVERY = 5
# Share of the last move that is repeated before each sweep, until the objective rises.
MOMENTUM = 0.7
# If it rises with no more momentum than this, it has converged.
LITTLE_MOMENTUM = 0.05
# If entries have this share of the largest weight of their sample on average, what they lack is filled in; of data with
# so many entries, or multiplications in a product with the components, whose sweeps take long. Of less, sparse matrices
# and dense ones give the same to the last digits.
MOSTLY_ALIKE, FILLED_ENTRIES, FILLED_PRODUCTS = 0.75, 2**22, 2**28
# Of a feature of which the robust fit accepts less than this share it stays, unless least squares leaves typical
# residuals below this part of the distance of an entry from the median.
FEW_RIGHT, EXPLAINED = 0.3, 0.5
# The weight of a sample of which less than this share is accepted.
WRONG_SAMPLE = 1e-3
# With a larger share of observed entries, data counts as complete.
MOST_OBSERVED = 0.9
# Entries from which the noise is estimated: at least so many, and so many for each feature.
ENTRIES, ENTRIES_PER_FEATURE = 2**16, 64
# If they are at least this part of a block, it is faster to compute all of it than to gather what they need.
GOOD_PART = 0.25
# Least squares on all entries is right if it leaves at most this part of the residuals of what was rejected,
EXPLAINS = 0.6
# and where all features count alike at most this part of them, and raises those of the rest at most so many times,
EXPLAINS_ALL = ((0.7, inf), (0.75, 2.5), (0.82, 1.6))
# and raises those of the rest at most so many times; the more of the total it gains, the more it may damage. Spikes are
# not explained; white blocks on faces are, with gains of 0.2 to 0.6 and damages above 2.7.
GAIN_AND_DAMAGE = ((inf, 1.6), (0.35, 2.5))
# There is doubt if it gains so much of the total, or explains so much of what was rejected and that is not little.
# There is none if it damages the rest so much, unless it explains nearly all of what was rejected: where planted errors
# were found and the fit was good, it left 15 % and more (8 kinds of data and errors of `benchmarks/real_data.py`, white
# blocks on faces). Residuals of the size of rounding errors say nothing.
CLEAR_GAIN, IN_DOUBT, MANY_REJECTED, DAMAGES, HARDLY_LEFT, ROUNDING = 0.9, 0.6, 0.01, 2.5, 0.12, 1e-6
# Components explain little of the variance, and predict nothing, up to these shares; residuals below this part of the
# entries are small all the same.
EXPLAINS_LITTLE, PREDICTS_NOTHING, SMALL_RESIDUAL = 0.25, 0.03, 0.3
# If more than this share is rejected, the user is told.
MANY_WRONG = 0.35
# More than half of the data cannot be wrong, or nobody could tell: then any clear gain will do, and any at all if
# nearly all of it would be.
MOST_WRONG, NEARLY_ALL = 0.5, 0.7
TOO_MANY = ((NEARLY_ALL, 1.0), (MOST_WRONG, CLEAR_GAIN))
# Least squares on all entries is right if it raises leave-one-out residuals of the accepted ones at most so many times,
# where more than such a share is rejected. Chosen on 240 tables of few features and on `benchmarks/real_sets.py`.
UNSEEN_DAMAGES = ((0.0, 1.2), (0.15, 2.0))
# Whatever samples they are in, entries are right without which the accepted ones are predicted clearly worse.
LESS_DAMAGED = 0.95
# What is rejected must be spread over this share of the samples, and so many for each component: a few wrong samples
# would get components of their own.
SPREAD, SAMPLES_PER_COMPONENT = 0.05, 1


class Comparison(NamedTuple):
    """Least squares on all entries beside the fit to the accepted ones."""

    gain: float
    """Total absolute residual of all entries, relative to that of the fit to the accepted ones."""
    damage: float
    """The same of the accepted entries."""
    unexplained: float
    """The same of the rejected entries."""
    as_judged: float
    """The same in the units in which they were judged, in which features count alike."""
    rejected: float
    """Share of the entries that are rejected."""
    n_samples: float
    """Number of samples that they are spread over."""
    residual: float
    """Total absolute residual of the accepted entries after least squares, relative to the entries."""
    damage_as_judged: float
    """`damage` in those units."""
    takes_all: bool = False
    """Whether least squares on all entries was taken."""
    unseen_damage: float = inf
    """`damage_as_judged` by leave-one-out predictions; infinite if it was not measured."""

    def favours_all(self, n_samples: int, rank: int, overfit: float = 1.0) -> bool:
        """Return whether all entries are right; `overfit` is the gain that least squares has on nothing but noise."""
        gain = self.gain / overfit
        if self.rejected == 0:
            return True
        if self.unseen_damage <= LESS_DAMAGED:
            return True
        if self.n_samples < max(SPREAD * n_samples, SAMPLES_PER_COMPONENT * rank):
            return False
        if any(self.rejected > share and self.unseen_damage <= most for share, most in UNSEEN_DAMAGES):
            return True
        if gain <= next((most for share, most in TOO_MANY if self.rejected > share), 0.0):
            return True
        bearable = any(gain <= most and self.damage <= damage for most, damage in GAIN_AND_DAMAGE)
        explained = any(self.as_judged <= left and self.damage_as_judged <= most for left, most in EXPLAINS_ALL)
        return bearable and explained and self.unexplained <= EXPLAINS

    @property
    def reason(self) -> str:
        """Which fit was taken, and why."""
        if self.rejected == 0:
            return "All entries are fitted by least squares: none looked wrong."
        found = (
            f"{_share(self.rejected)} of the entries looked wrong. Least squares on all entries leaves "
            f"{_share(self.unexplained, 0)} of their residuals, and those of the others are {self.damage:.3g} times as "
            "large."
        )
        if self.unseen_damage < inf:
            found += f" Where each of the others is predicted without itself, they are {self.unseen_damage:.3g} times."
        if self.takes_all:
            return f"All entries are fitted by least squares. {found}"
        return f"What looked wrong is left out. {found}"

    @property
    def doubt(self) -> str | None:
        """What the user should know if entries stay rejected although least squares explains them."""
        is_explained = self.unexplained <= IN_DOUBT and self.rejected >= MANY_REJECTED
        # A gain that the accepted entries have too says that the fit had not converged, and nothing of the others.
        gains = self.gain <= CLEAR_GAIN * min(self.damage, 1.0)
        is_nearly_all = is_explained and self.unexplained <= HARDLY_LEFT and self.residual > ROUNDING
        damages = self.damage > DAMAGES and not is_nearly_all
        if self.takes_all:
            return self._all_doubt
        if damages or not (gains or is_explained):
            return None
        left, of = (self.unexplained, "their") if is_explained else (self.gain, "all")
        return (
            f"{_share(self.rejected)} of the entries are taken for wrong, but least squares on all entries leaves "
            f"{_share(left, 0)} of {of} residuals. Either large errors follow a pattern, or these entries are right. "
            "Look at outliers_; if they are right, use RobustNMF(method='l2')."
        )

    @property
    def _all_doubt(self) -> str | None:
        """What the user should know if all entries were taken because more than half of the data cannot be wrong."""
        if self.rejected <= MOST_WRONG or min(self.unseen_damage, self.damage) <= DAMAGES:
            return None
        return (
            f"{_share(self.rejected)} of the entries looked wrong, and all were accepted, since nobody can tell if "
            f"more than half is wrong. But the residuals of the others are {self.damage:.3g} times as large then: "
            "components may follow errors. Look for wrong samples and features."
        )

    @property
    def much_is_wrong(self) -> str | None:
        """What the user should know if so much is rejected that the rest may not tell."""
        if self.takes_all or self.rejected < MANY_WRONG:
            return None
        return (
            f"{self.rejected:.0%} of the entries are taken for wrong. With so many errors, samples and features of "
            "which more than half is wrong may be fitted to their errors: look at outliers_ by sample and by feature."
        )


def _share(part: float, digits: int = 1) -> str:
    """Return a share in per cent; what would be rounded to nothing is less than the least that is said."""
    least = 10.0**-digits
    return f"less than {least:g}%" if 0 < 100 * part < least else f"{part:.{digits}%}"


class Explained(NamedTuple):
    """How much of the accepted entries the fit explains."""

    fitted: float
    """Share of the variance around the means of features."""
    unseen: float
    """The same by predictions that each entry had no part in; below 0 if the means predict better."""
    residual: float
    """Root mean square of the residuals, relative to that of the entries."""

    @property
    def doubt(self) -> str | None:
        """What the user should know if the components explain nothing but what they were fitted to."""
        if self.fitted > EXPLAINS_LITTLE or self.unseen > PREDICTS_NOTHING or self.residual < SMALL_RESIDUAL:
            return None
        return (
            f"the components explain {max(self.fitted, 0):.0%} of the variance, and predict entries that they were not "
            "fitted to no better than the mean of each feature. Either most of the signal is wrong or noise, or the "
            "data is not of this form: the components mean little."
        )


MEASURED = tuple(name for name in Comparison._fields if name not in Comparison._field_defaults)
"""Fields of a `Comparison` that are always measured."""


class Judged(NamedTuple):
    """A point at which it is known which entries are wrong."""

    point: Point
    model: NoiseModel


class OfAccepted(NamedTuple):
    """The accepted entries of each feature, each (m,)."""

    largest: Array
    mean: Array
    squares: Array
    """Mean of their squares."""
    errors: Array
    """Mean of the squares of their residuals."""
    weight: Array
    """Total weight, 1 if there is none."""

    def shrunk_means(self, xp: Namespace) -> Array:
        """Return the means of features, (m,), of which those with few entries are nearer to that of all.

        How near is told by how much features differ, beside the entries of a feature: where they are in different
        units, hardly.
        """
        weight, total = self.weight, xp.sum(self.weight)
        typical = xp.sum(weight * self.mean) / total
        n_spare = xp.sum(xp.where(weight > 1, weight - 1, 0))
        within = xp.sum(weight * (self.squares - self.mean**2)) / xp.where(n_spare > 0, n_spare, 1)
        spread = xp.sum(weight * (self.mean - typical) ** 2) - (len(weight) - 1) * within
        between = spread / (total - xp.sum(weight**2) / total) if len(weight) > 1 else spread
        if not (between > 0 and within > 0):
            return self.mean
        prior = within / between
        return (weight * self.mean + prior * typical) / (weight + prior)

    def shrunk_largest(self, xp: Namespace) -> Array:
        """Return the largest entries of features, (m,); with few entries, what is the largest of a typical feature."""
        means, is_known = self.shrunk_means(xp), self.weight >= PRIOR_ENTRIES
        is_known = is_known & (means > 0)
        if not xp.any(is_known):
            return self.largest
        ratios = to_host(self.largest[is_known] / means[is_known])
        typical = float(np.median(ratios)) * means
        return xp.where(is_known | (self.largest > typical), self.largest, typical)

    def unexplained(self, xp: Namespace) -> Array:
        """Return the unexplained share of the variance."""
        variance = self.squares - self.mean**2
        return self.errors / xp.where(variance > 0, variance, 1)


class Accepted(NamedTuple):
    """Data in which what is wrong or missing is replaced, and has a small weight.

    It is in the units of least squares.
    """

    V: Blocks
    M: Blocks | None


@dataclass(frozen=True)
class LeastSquares:
    """Least squares on entries of some samples."""

    V: Blocks
    M: Blocks | None
    method: Method
    engine: Engine
    tol: float
    units: Array | None = None
    """What features are multiplied by, (m,): they may have been scaled, and squares are to count as before."""
    least: Array | None = None
    """What an entry may differ from its prediction without being wrong, (m,)."""
    robust: Judged | None = None
    """Where the robust fit ended."""
    few: Array | None = None
    """Features of which it accepts too few entries to tell them, (m,): there it stays."""
    anchor: float | None = None
    """Weight of the anchor of an entry that is rejected or missing; None takes what the fit does not explain."""
    softness: float = inf
    """See `NoiseModel`."""
    unseen: Sampled | None = None
    """Entries with predictions by a fit that did not see them; None takes those of this fit, and their part in it."""

    @cached_property
    def n_observed(self) -> int:
        """Number of observed entries."""
        if self.M is None:
            return sum(len(block) for block in self.V) * int(self.V[0].shape[1])
        return int(self.engine.sum(count_observed, self.M))

    @property
    def has_gaps(self) -> bool:
        """Whether a good part of the entries is missing, samples of which nothing is observed aside."""
        return self.n_observed < MOST_OBSERVED * self.n_present * int(self.V[0].shape[1])

    @cached_property
    def n_present(self) -> int:
        """Number of samples of which something is observed."""
        return sum(len(block) for block in self.V) if self.M is None else int(self.engine.sum(n_present_in, self.M))

    @classmethod
    def of(cls, fit: Any) -> "LeastSquares":
        """Return the problem of a fit."""
        return cls(fit.V, fit.M, fit.method, fit.engine, fit.tol)

    def everything(self) -> Accepted:
        """Return the data with all entries accepted."""
        return Accepted(self.in_units(self.V), self.M)

    def in_units(self, blocks: Blocks) -> Blocks:
        """Return the data in the units of least squares."""
        if self.units is None:
            return blocks
        scaled: Blocks = self.engine.map(_multiplied, blocks, units=self.units)
        return scaled

    def right(self, judged: Judged) -> Accepted:
        """Return the data in which what is wrong hardly counts; as it is, if nothing is wrong and it is complete."""
        if self.keeps_mask(judged) and judged.model.threshold < inf:
            wrong = self.wrong(judged)
            if self.M is not None or self.engine.xp.any(self.engine.join(self.engine.map(_has_any, wrong))):
                return self.without(wrong, judged)
            return self.everything()
        return self.everything() if self.is_plain(judged) else self.accepted(judged)

    def keeps_mask(self, judged: Judged) -> bool:
        """Return whether what is wrong is kept, and data without it computed wherever it is needed."""
        return self.engine.keeps_masks and self.few is None and not judged.model.follows_predictions

    def wrong(self, judged: Judged) -> Blocks:
        """Return which entries are wrong, in parts of one array: its memory is given back as a whole."""
        engine, n_samples = self.engine, sum(len(block) for block in self.V)
        masks = engine.split(engine.empty((n_samples, self.V[0].shape[1]), engine.xp.bool), like=self.V)
        engine.fill((masks,), _wrong, self.V, judged.point.Ht, W=judged.point.W, model=judged.model)
        return masks

    def without(self, wrong: Blocks, judged: Judged) -> Accepted:
        """Return the data without what is wrong."""
        shared: dict[str, Any] = {"model": judged.model, "units": self.units, "engine": self.engine}
        return Accepted(*self.engine.map(_without_wrong, self.V, self.M, wrong, **shared))

    def accepted(self, judged: Judged) -> Accepted:
        """Return the data in which what is wrong hardly counts."""
        if self.keeps_mask(judged):
            return self.without(self.wrong(judged), judged)
        shared: dict[str, Any] = {"W": judged.point.W, "model": judged.model, "units": self.units}
        shared |= {"engine": self.engine, "beyond": Beyond(judged.point.W, judged.model)}
        if self.robust is None or self.few is None:
            # Weights that follow predictions cost more than memory: without its traits, the function is called now.
            function = partial(_accepted) if self.engine.keeps_masks else _accepted
            return Accepted(*self.engine.map(function, self.V, self.M, judged.point.Ht, None, **shared))
        shared |= {"W_robust": self.robust.point.W, "first": self.robust.model, "few": self.few}
        shared["beyond_robust"] = Beyond(self.robust.point.W, self.robust.model)
        return Accepted(*self.engine.map(_accepted, self.V, self.M, judged.point.Ht, self.robust.point.Ht, **shared))

    def improved(
        self, data: Accepted, W: Array, Ht: Blocks, most: int, momentum: float = MOMENTUM
    ) -> tuple[Array, Blocks, bool]:
        """Return factors after so many sweeps, or fewer if the objective no longer falls, and whether that is so.

        They are the same if it rose.
        """
        method, engine = replace(self.method, loss=SQUARES.loss, outliers=NoRejection()), self.engine
        if isinstance(method.solver, SharedGram):
            method = replace(method, solver=replace(method.solver, fills_in=self.is_mostly_alike(data, W.shape[1])))
        W = W if self.units is None else W * self.units[:, None]
        last = best = (W, Ht)
        objective, is_steady = self.objective(data, W, Ht), False
        for k in range(most):
            how: dict[str, Any] = {"momentum": momentum, "engine": engine}
            begin = extrapolate(W, last[0], **how, xp=engine.xp), engine.map(extrapolate, Ht, last[1], **how)
            last = (W, Ht)
            W, Ht = sweep(data.V, data.M, *begin, SQUARES, method, engine)
            Ht = engine.truncate_lineage(Ht)
            if (k + 1) % CHECKED_EVERY and k + 1 < most:
                continue
            now = self.objective(data, W, Ht)
            if now > objective:  # the momentum was too much
                is_steady = momentum < LITTLE_MOMENTUM
                (W, Ht), last, momentum = best, best, momentum / 2
            else:
                is_steady = objective - now <= CHECKED_EVERY * self.tol * objective
                best, objective = (W, Ht), now
            if is_steady:
                break
        W, Ht = best
        return W if self.units is None else W / self.units[:, None], Ht, is_steady

    def is_mostly_alike(self, data: Accepted, rank: int) -> bool:
        """Return whether data is large, and most entries have the largest weight of their sample."""
        n_entries = sum(len(block) for block in self.V) * int(self.V[0].shape[1])
        if (
            (n_entries < FILLED_ENTRIES and n_entries * rank < FILLED_PRODUCTS)
            or data.M is None
            or self.engine.keeps_sparse
            or self.engine.kernels.sweep_filled is None
        ):
            return False
        total, most = self.engine.sum(_weight_sums, data.M)
        return bool(total >= MOSTLY_ALIKE * most)

    def solved(self, data: Accepted, W: Array, Ht: Blocks) -> Blocks:
        """Return the codes that fit best, as `transform` would find them; the same if the engine cannot solve."""
        if self.engine.kernels.least_squares is None:
            return Ht
        W = W if self.units is None else W * self.units[:, None]
        shared = {"basis": Basis(W, W[0], SQUARES, self.method.penalties), "engine": self.engine}
        codes: Blocks = self.engine.map(_solved, data.V, data.M, Ht, **shared)
        return codes

    def objective(self, data: Accepted, W: Array, Ht: Blocks) -> float:
        """Return half the sum of squared residuals, and the penalties."""
        squares = float(self.engine.sum(_squares, data.V, data.M, Ht, W=W, engine=self.engine)) / 2
        penalties = self.method.penalties
        return squares + penalty_value(penalties, W, Ht, 1.0, self.engine) if penalties else squares

    def accepted_entries(self, W: Array, Ht: Blocks, model: NoiseModel) -> "OfAccepted":
        """Return what is known of the accepted entries of each feature."""
        found = self.engine.map(_of_accepted, self.V, self.M, Ht, W=W, model=model)
        xp = self.engine.xp
        largest, *sums = (self.engine.join(part) for part in found)
        total, squares, errors, weight = (xp.sum(part, axis=0) for part in sums)
        weight = xp.where(weight > 0, weight, 1)
        mean = total / weight
        return OfAccepted(xp.max(largest, axis=0), mean, squares / weight, errors / weight, weight)

    def explained(self, judged: Judged) -> dict[str, float]:
        """Return the fields of `Explained` of a point at which it is known which entries are wrong."""
        (W, Ht, *_), model = judged
        found = self.accepted_entries(W, Ht, model)
        entries, units = self.sampled(judged.point, model, judged, found.largest), self.units
        mean, squares, errors, weight = (to_host(part).astype(np.float64) for part in found[1:])
        weight = weight if units is None else weight * to_host(units).astype(np.float64) ** 2
        variance = float(np.sum(weight * np.maximum(squares - mean**2, 0)))
        size, error = float(np.sum(weight * squares)), float(np.sum(weight * errors))
        counts, features = entries.weights * entries.is_clean, entries.features
        counts = counts if units is None else counts * (to_host(units).astype(np.float64) ** 2)[features]
        spread = float(np.sum(counts * (entries.values - mean[features]) ** 2))
        unseen = float(np.sum(counts * (entries.values - entries.predictions) ** 2))
        return {
            "fitted": 1 - error / variance if variance > 0 else 1.0,
            "unseen": 1 - unseen / spread if spread > 0 else 1.0,
            "residual": sqrt(error / size) if size > 0 else 0.0,
        }

    def with_robust(self, judged: Judged, point: Point) -> "LeastSquares":
        """Return the problem in which the robust fit, of which it is known what it accepts, tells some features.

        They are those that it rejects for the most part, and that least squares, which ended at a point, does not
        explain better than a constant: a stuck sensor, a wrong feature, a place that is hidden in most samples.
        """
        shared = {"W": judged.point.W, "model": judged.model}
        n_right, n_observed = self.engine.sum(_count_right, self.V, self.M, judged.point.Ht, **shared)
        few = n_right < FEW_RIGHT * n_observed
        if not self.engine.xp.any(few):
            return self
        few = few & (self.typical_residuals(point) >= EXPLAINED * self.spreads())
        return replace(self, robust=judged, few=few) if self.engine.xp.any(few) else self

    def typical_residuals(self, point: Point) -> Array:
        """Return the median magnitude of the residuals of each feature, (m,)."""
        magnitudes = magnitudes_of(self.V, self.M, point.W, point.Ht, SQUARES.loss, self.engine)
        return self.engine.quantile(magnitudes, self.M, 0.5, axis="feature")

    def spreads(self) -> Array:
        """Return the median distance of the entries of each feature from their median, (m,)."""
        middles = self.engine.quantile(self.V, self.M, 0.5, axis="feature")
        return self.engine.quantile(self.engine.map(_distances, self.V, middles=middles), self.M, 0.5, axis="feature")

    def rejected_share(self, judged: Judged) -> float:
        """Return the share of the observed entries that are wrong."""
        shared = {"W": judged.point.W, "model": judged.model}
        right, observed = self.engine.sum(_count_right, self.V, self.M, judged.point.Ht, **shared)
        total = float(self.engine.xp.sum(observed))
        return 1 - float(self.engine.xp.sum(right)) / total if total > 0 else 0.0

    def is_plain(self, judged: Judged) -> bool:
        """Return whether all entries are there, right, and count alike."""
        if self.M is not None or self.few is not None or judged.model.follows_predictions:
            return False
        return judged.model.threshold == inf or self.rejected_share(judged) == 0

    def judged(self, point: Point, threshold: Array, width: float | None = None) -> Judged:
        """Return a point at which all is wrong that is beyond the threshold of its feature, (m,).

        The typical magnitude of a right residual may be known.
        """
        ones = self.engine.xp.ones_like(threshold)
        by = 1.0 if width is None else float(threshold[0]) / width
        model = NoiseModel(threshold * ones / by, ones, inf * ones, ones, 0 * ones, 0 * ones, 0.0, by)
        found = self.accepted_entries(point.W, point.Ht, model)
        return Judged(point, self.with_anchors(point, replace(model, largest=found.largest, centers=found.mean), found))

    def with_anchors(self, point: Point, model: NoiseModel, found: OfAccepted) -> NoiseModel:
        """Return a model of data with gaps whose anchors are what is known of features and samples with few entries.

        It has found the accepted entries at a point.
        """
        if not self.has_gaps:
            return model
        xp, ones = self.engine.xp, self.engine.xp.ones_like(model.centers)
        model = replace(model, centers=found.shrunk_means(xp), largest=found.shrunk_largest(xp))
        model = replace(model, softness=self.softness)
        if self.anchor is not None:
            model = replace(model, anchors=self.anchor * ones)
        shared = {"W": point.W, "model": model}
        spread, errors, n_spare, n_levels, squares = map(
            float, self.engine.sum(_level_sums, self.V, self.M, point.Ht, **shared)
        )
        noise = errors / n_spare if n_spare > 0 else 0.0
        variance = (spread - n_levels * noise) / squares if squares > 0 else 0.0
        typical = float(xp.mean(model.centers**2))
        is_known = variance > 0 and typical > 0
        return replace(model, level_prior=noise / (variance * typical) if is_known else inf)

    def noise(self, point: Point, model: NoiseModel, robust: Judged, noise: Noise, floor: float) -> NoiseModel:
        """Return the noise at a point, at which the last model says what was accepted; and what the robust fit did."""
        found = self.accepted_entries(point.W, point.Ht, model)
        entries = self.sampled(point, model, robust, found.largest) if self.unseen is None else self.unseen
        parts = (found.largest, found.mean, found.unexplained(self.engine.xp))
        largest, centers, unexplained = (to_host(part).astype(np.float64) for part in parts)
        least = np.zeros_like(largest) if self.least is None else to_host(self.least).astype(np.float64)
        estimated = estimate(entries, noise, largest, centers, unexplained, least, floor)
        if self.unseen is not None:  # features of few entries: what they have in common tells more
            estimated = replace(estimated, threshold=min(estimated.threshold, entries.common_threshold))
        if not self.has_gaps:
            return estimated
        place, dtype = self.engine.place, point.W.dtype
        placed = estimated.placed(lambda array: place(array, dtype))
        known = self.with_anchors(point, replace(model, anchors=placed.anchors), found)
        names = ("centers", "largest", "anchors")
        arrays = {name: to_host(getattr(known, name)).astype(np.float64) for name in names}
        return replace(estimated, **arrays, level_prior=known.level_prior, softness=known.softness)

    def sampled(self, point: Point, model: NoiseModel, robust: Judged, largest: Array) -> Sampled:
        """Return some entries, evenly spread, with their predictions without them."""
        W, Ht = point.W, point.Ht
        engine, n_features = self.engine, self.V[0].shape[1]
        wanted = max(ENTRIES, ENTRIES_PER_FEATURE * n_features)
        positions = some_positions(self.V, self.M, self.n_observed, wanted, engine)
        gram = engine.sum(_gram, Ht)
        shared = {"W": W, "model": model, "inverted": inverse(gram, engine.xp), "largest": largest}
        shared |= {"leverage": leverages(W, engine.xp), "of_features": self.feature_factors(model)}
        shared |= {"W_robust": robust.point.W, "first": robust.model}
        found = engine.map(_sampled, self.V, self.M, Ht, robust.point.Ht, positions, **shared)
        found = (to_host(engine.join(part)).astype(np.float64, copy=False) for part in found)
        values, alone, features, weights, clean = found
        return Sampled(values, alone, features.astype(np.intp), weights, clean > 0, n_features)

    def feature_factors(self, model: NoiseModel) -> Array | None:
        """Return how many times larger the part of an entry in its feature is than that in a complete one, (m,)."""
        if self.M is None:
            return None
        counts = self.engine.sum(_feature_counts, self.M)
        return self.n_present / (counts + (self.n_present - counts) * model.anchors)

    def largest_ratio(self, judged: Judged) -> float:
        """Return the largest residual in units of the threshold."""
        shared = {"W": judged.point.W, "model": judged.model}
        return float(
            self.engine.xp.max(
                self.engine.join(self.engine.map(_largest_ratio, self.V, self.M, judged.point.Ht, **shared))
            )
        )

    def compare(self, judged: Judged, some: Point, every: Point, factor: float = inf) -> dict[str, float]:
        """Return the fields of a `Comparison` of a fit to some entries with one to all; it is known which are wrong.

        Entries beyond a factor of the threshold do not count.
        """
        shared = {"W": some.W, "W_all": every.W, "W_judged": judged.point.W, "model": judged.model, "units": self.units}
        shared["factor"] = factor
        blocks = (some.Ht, every.Ht, judged.point.Ht)
        sums = self.engine.sum(_absolute_sums, self.V, self.M, *blocks, **shared)
        before, after, accepted_before, accepted_after, accepted, rejected, total = sums[:7]
        by_sample, by_sample_squared, wrong_before, wrong_after, right_before, right_after = sums[7:]
        return {
            "gain": after / before if before > 0 else 1.0,
            "damage": accepted_after / accepted_before if accepted_before > 0 else inf,
            "unexplained": (after - accepted_after) / (before - accepted_before) if before > accepted_before else inf,
            "as_judged": wrong_after / wrong_before if wrong_before > 0 else inf,
            "rejected": rejected / total if total > 0 else 0.0,
            "n_samples": by_sample**2 / by_sample_squared if by_sample_squared > 0 else 0.0,
            "residual": accepted_after / accepted if accepted > 0 else 0.0,
            "damage_as_judged": right_after / right_before if right_before > 0 else inf,
        }

    def overfit(self, rank: int, n_observed: int) -> float:
        """Return what a fit leaves of nothing but noise, relative to what it was."""
        n_samples, n_features = sum(len(block) for block in self.V), self.V[0].shape[1]
        return sqrt(max(1 - rank * (n_samples + n_features) / max(n_observed, 1), 0.01))


# --- On a block -------------------------------------------------------------------------------------------------------


def n_present_in(M: Array, *, xp: Namespace) -> int:
    """Return the number of samples of a block of which something is observed."""
    return int(xp.count_nonzero(xp.any(M > 0, axis=1)))


def _weight_sums(M: Array, *, xp: Namespace) -> tuple[float, float]:
    """Return the sum of the weights of a block, and what it would be if all were the largest of their sample."""
    most = xp.sum(xp.max(M, axis=1), dtype=xp.float64)
    return float(xp.sum(xp.sum(M, axis=1), dtype=xp.float64)), M.shape[1] * float(most)


def _observed(Y: Array, M: Array | None, xp: Namespace) -> Array:
    return xp.ones_like(Y) if M is None else M


def _multiplied_stored(Y: Entries, *, units: Array, xp: Namespace) -> Entries:
    return Y.with_values(Y.values * units[Y.columns])


@block_function(recomputed=True, stored=_multiplied_stored)
def _multiplied(Y: Array, *, units: Array, xp: Namespace) -> Array:
    """Return a block with each feature multiplied."""
    return Y * units


def _accepted_stored(
    Y: Entries,
    M: None,
    X: Array,
    X_robust: Array | None,
    *,
    W: Array,
    model: NoiseModel,
    units: Array | None,
    engine: Engine,
    beyond: Beyond,
    beyond_robust: Beyond | None = None,
    W_robust: Array | None = None,
    first: NoiseModel | None = None,
    few: Array | None = None,
    xp: Namespace,
) -> Any:
    """Return the same of a block whose zeros are not stored: entries with changes, and None."""
    kernels = engine.kernels.stored
    if model.follows_predictions or kernels is None:
        return NotImplemented
    wrong = beyond(Y, X, kernels)
    changes = replaced(wrong, model, units)
    n_right = Y.n_columns - np.diff(wrong.indptr)
    row_weights = np.where(n_right < FEW_RIGHT * Y.n_columns, WRONG_SAMPLE, 1).astype(Y.dtype)
    if beyond_robust is not None and few is not None:
        told = beyond_robust(Y, X_robust, kernels)
        told = told.where(few[told.columns])
        changes = _told(changes, wrong, told, kernels.predict_at(X_robust, told.places, W_robust), units)
    Y = Y if units is None else _multiplied_stored(Y, units=units, xp=xp)
    return replace(Y, changes=replace(changes, row_weights=row_weights)), None


def _told(changes: Changes, wrong: Entries, told: Entries, predicted: Array, units: Array | None) -> Changes:
    """Return changes in which some entries are what the robust fit predicts (k,), and count like others."""
    by = 1 if units is None else units[told.columns]
    others = told.find(wrong.rows, wrong.columns) < 0
    ones = np.ones_like(predicted)
    rows = np.concatenate([told.rows, wrong.rows[others]])
    columns = np.concatenate([told.columns, wrong.columns[others]])
    order = np.lexsort((columns, rows))
    pairs = ((told.values * by, changes.old), (predicted * by, changes.new), (ones, changes.weights))
    parts = [np.concatenate([a, b[others]]).astype(b.dtype)[order] for a, b in pairs]
    return replace(
        changes,
        indptr=starts_of(rows[order], len(wrong)),
        columns=columns[order],
        **dict(zip(("old", "new", "weights"), parts, strict=True)),
    )


@block_function(recomputed=True, rowwise=True, parts=2, stored=_accepted_stored, keeps_stored=True)
def _accepted(
    Y: Array,
    M: Array | None,
    X: Array,
    X_robust: Array | None,
    *,
    W: Array,
    model: NoiseModel,
    units: Array | None,
    W_robust: Array | None = None,
    first: NoiseModel | None = None,
    few: Array | None = None,
    xp: Namespace,
    **of_stored: Any,
) -> tuple[Array, Array]:
    """Return a block in which wrong and missing entries are the mean of their feature, and its weights.

    Of features of which `few` entries are right, they are what the robust fit predicts, and count like others.
    """
    predicted, observed = predictions(X, W, Y), _observed(Y, M, xp)
    wrong = model.ratios(Y, predicted, xp) > 1
    filled, weights = without(wrong, Y, M, predicted, model, xp)
    weights = _without_samples(wrong, observed, weights, xp)
    if X_robust is not None and W_robust is not None and first is not None:
        predicted = predictions(X_robust, W_robust, Y)
        told = (first.ratios(Y, predicted, xp) > 1) & few & (observed > 0)
        filled, weights = xp.where(told, predicted, filled), xp.where(told, observed, weights)
    return filled if units is None else filled * units, weights


@block_function(rowwise=True)
def _wrong(Y: Array, X: Array, *, W: Array, model: NoiseModel, xp: Namespace) -> tuple[Array]:
    """Return which entries of a block are wrong, (B, m), for `Engine.fill`."""
    return (model.ratios(Y, predictions(X, W, Y), xp) > 1,)


@block_function(light=True)
def _has_any(wrong: Array, *, xp: Namespace) -> Array:
    """Return whether anything in a block is wrong, (1,)."""
    return xp.any(wrong)[None]


@block_function(recomputed=True, parts=2)
def _without_wrong(
    Y: Array, M: Array | None, wrong: Array, *, model: NoiseModel, units: Array | None, engine: Engine, xp: Namespace
) -> tuple[Array, Array]:
    """Return what `_accepted` does of a block of which it is known what is wrong."""
    kernel = engine.kernels.without_wrong if M is None else None
    if kernel is not None:
        filled, weights = kernel(Y, wrong, model.centers, model.anchors)
    else:
        filled, weights = without(wrong, Y, M, None, model, xp)
    # It is called in every sweep, and hardly ever are there samples of which most is wrong.
    n_features = wrong.shape[1]
    if M is not None or xp.any(n_features - xp.count_nonzero(wrong, axis=1) < FEW_RIGHT * n_features):
        weights = _without_samples(wrong, _observed(Y, M, xp), weights, xp)
    return filled if units is None else filled * units, weights


def _without_samples(wrong: Array, observed: Array, weights: Array, xp: Namespace) -> Array:
    """Return weights that are small for samples of which few entries are right: those may be so by chance.

    The code of a sample stays the same, but it hardly counts for the components.
    """
    is_observed = observed > 0
    n_right, n_observed = (
        xp.sum(xp.astype(A, weights.dtype), axis=1, keepdims=True) for A in (is_observed & ~wrong, is_observed)
    )
    return xp.where(n_right < FEW_RIGHT * n_observed, WRONG_SAMPLE * weights, weights)


def _largest_ratio(Y: Array, M: Array | None, X: Array, *, W: Array, model: NoiseModel, xp: Namespace) -> Array:
    """Return the largest observed residual of each feature of a block in units of the threshold, (1, m)."""
    return xp.max(
        xp.where(_observed(Y, M, xp) > 0, model.ratios(Y, predictions(X, W, Y), xp), 0), axis=0, keepdims=True
    )


@block_function(rowwise=True)
def _count_right(
    Y: Array, M: Array | None, X: Array, *, W: Array, model: NoiseModel, xp: Namespace
) -> tuple[Array, Array]:
    """Return the numbers of accepted and of observed entries of each feature of a block, (m,)."""
    if M is None and isinstance(Y, np.ndarray):
        n_wrong = np.count_nonzero(model.ratios(Y, predictions(X, W, Y), xp) > 1, axis=0)
        return len(Y) - n_wrong, np.full_like(n_wrong, len(Y))
    parts = (_kept(Y, M, X, W, model, xp), _observed(Y, M, xp))
    accepted, observed = (xp.sum(xp.astype(part > 0, xp.int64), axis=0) for part in parts)
    return accepted, observed


@block_function(recomputed=True)
def _distances(Y: Array, *, middles: Array, xp: Namespace) -> Array:
    """Return the distance of each entry from the median of its feature."""
    return xp.abs(Y - middles)


def _solved_stored(Y: Entries, M: None, X: Array, *, basis: Basis, engine: Engine, xp: Namespace) -> Any:
    kernels = engine.kernels.stored
    if kernels is None or not can_solve(basis.W, engine):
        return NotImplemented
    return solve_stored(Y, X, basis, kernels, 0.0)


@block_function(stored=_solved_stored)
def _solved(Y: Array, M: Array | None, X: Array, *, basis: Basis, engine: Engine, xp: Namespace) -> Array:
    """Return the codes of a block by least squares."""
    return settle(Y, M, X, basis, engine, max_iter=0, tol=0.0)


def _squares_stored(Y: Entries, M: None, X: Array, *, W: Array, engine: Engine, xp: Namespace) -> Any:
    return NotImplemented if engine.kernels.stored is None else engine.kernels.stored.squares(Y, X, W)


@block_function(rowwise=True, stored=_squares_stored)
def _squares(Y: Array, M: Array | None, X: Array, *, W: Array, engine: Engine | None = None, xp: Namespace) -> float:
    """Return the weighted sum of squared residuals of a block."""
    kernel = None if engine is None else engine.kernels.squares
    if kernel is not None:
        return kernel(Y, M, X, W)
    R = Y - predictions(X, W, Y)
    return float(xp.sum(R * R if M is None else M * (R * R), dtype=xp.float64))


def _feature_counts(M: Array, *, xp: Namespace) -> Array:
    """Return the number of observed entries of each feature, (m,)."""
    return xp.sum(xp.astype(M > 0, M.dtype), axis=0)


@block_function(rowwise=True)
def _level_sums(Y: Array, M: Array, X: Array, *, W: Array, model: NoiseModel, xp: Namespace) -> tuple[float, ...]:
    """Return sums over samples with at least two accepted entries, by regression on the means of features.

    Squares of levels less 1, times the weight of a level; squared residuals, and the entries beyond one for each
    sample; the number of samples, and the sum of the weights.
    """
    kept = xp.astype(_kept(Y, M, X, W, model, xp) > 0, Y.dtype)
    counts = xp.sum(kept, axis=1, dtype=xp.float64)
    weights = xp.sum(kept * model.centers**2, axis=1, dtype=xp.float64)
    products = xp.sum(kept * (Y * model.centers), axis=1, dtype=xp.float64)
    squares = xp.sum(kept * Y**2, axis=1, dtype=xp.float64)
    tells = (counts > 1) & (weights > 0)
    levels = xp.where(tells, products, 0) / xp.where(tells, weights, 1)
    errors = xp.where(tells, squares - levels * products, 0)
    parts = (xp.where(tells, (levels - 1) ** 2 * weights, 0), errors, xp.where(tells, counts - 1, 0), tells)
    return *(float(xp.sum(xp.astype(part, xp.float64))) for part in parts), float(xp.sum(xp.where(tells, weights, 0)))


def _gram(X: Array, *, xp: Namespace) -> Array:
    return X.T @ X


def _kept(Y: Array, M: Array | None, X: Array, W: Array, model: NoiseModel, xp: Namespace) -> Array:
    """Return the weights of a block, 0 for what is wrong."""
    return xp.where(model.ratios(Y, predictions(X, W, Y), xp) > 1, 0, _observed(Y, M, xp))


@block_function(parts=5)
def _of_accepted(
    Y: Array, M: Array | None, X: Array, *, W: Array, model: NoiseModel, xp: Namespace
) -> tuple[Array, ...]:
    """Return the largest accepted entry of each feature of a block, and sums over the accepted ones, each (1, m).

    Sums of the entries, of their squares, of the squares of their residuals, and of their weights.
    """

    def total(A: Array) -> Array:
        return xp.sum(A, axis=0, keepdims=True)

    kept, R = _kept(Y, M, X, W, model, xp), Y - predictions(X, W, Y)
    largest = xp.max(xp.where(kept > 0, Y, 0), axis=0, keepdims=True)
    return largest, total(kept * Y), total(kept * (Y * Y)), total(kept * (R * R)), total(kept)


class Somewhere(NamedTuple):
    """Some entries of a block, (k,): what is known of rows, columns and entries is gathered for each."""

    rows: Array
    columns: Array

    def of_rows(self, values: Array) -> Array:
        """Return what is known of rows (B,), for each entry."""
        return values[self.rows]

    def of_columns(self, values: Array) -> Array:
        """Return what is known of columns (m,), for each entry."""
        return values[self.columns]

    def predictions(self, X: Array, W: Array, Y: Any, xp: Namespace) -> Array:
        """Return predictions of the entries."""
        return xp.sum(X[self.rows] * W[self.columns], axis=1)

    def entries(self, Y: Any) -> Array:
        """Return entries of a block."""
        return Y[self.rows, self.columns]

    def chosen(self, values: Array, xp: Namespace) -> Array:
        """Return values of the entries as a vector, (k,)."""
        return values


class Everywhere(Somewhere):
    """The same if they are a good part of the block: all of it is computed (B, m), and then they are chosen."""

    def of_rows(self, values: Array) -> Array:
        """Return what is known of rows, to be broadcast."""
        return values[:, None]

    def of_columns(self, values: Array) -> Array:
        """Return what is known of columns, to be broadcast."""
        return values

    def predictions(self, X: Array, W: Array, Y: Any, xp: Namespace) -> Array:
        """Return predictions of the whole block."""
        return predictions(X, W, Y)

    def entries(self, Y: Any) -> Array:
        """Return the whole block."""
        return Y

    def chosen(self, values: Array, xp: Namespace) -> Array:
        """Return those of the entries, (k,)."""
        flat = xp.reshape(values, (-1,))
        return flat if len(flat) == len(self.rows) else flat[self.rows * values.shape[1] + self.columns]


def _places(Y: Any, positions: Array) -> Somewhere:
    """Return positions (k, 2) in a block as places, in the way that is faster."""
    is_stored = isinstance(Y, Entries | Observed)
    many = not is_stored and len(positions) >= GOOD_PART * Y.shape[0] * Y.shape[1]
    return (Everywhere if many else Somewhere)(positions[:, 0], positions[:, 1])


def _sampled_stored(Y: Entries, M: None, *rest: Any, xp: Namespace, **shared: Any) -> Any:
    """Return the same of a block whose zeros are not stored."""
    return _sampled(Y, None, *rest, **shared, xp=xp)


@block_function(stored=_sampled_stored)
def _sampled(
    Y: Array,
    M: Array | None,
    X: Array,
    X_robust: Array,
    positions: Array,
    *,
    W: Array,
    W_robust: Array,
    model: NoiseModel,
    first: NoiseModel,
    inverted: Array,
    leverage: Array,
    of_features: Array | None = None,
    largest: Array,
    xp: Namespace,
) -> tuple[Array, ...]:
    """Return values, predictions without the entry, features and weights of the entries at some positions (k, 2).

    And 1 for those that the robust fit accepted, else 0.
    """
    at = _places(Y, positions)
    values, predicted = at.entries(Y), at.predictions(X, W, Y, xp)
    in_feature, in_sample = at.of_rows(xp.sum((X @ inverted) * X, axis=1)), at.of_columns(leverage)
    if M is not None and of_features is not None:  # the fewer entries there are, the larger the part of each
        in_sample = in_sample * at.of_rows(sample_factors(M, model.anchors, Y.dtype, xp))
        in_feature = in_feature * at.of_columns(of_features)
    alone = without_own(predicted, values, in_sample + in_feature, xp)
    model, first = (noise.placed(at.of_columns) for noise in (model, first))
    # What was rejected had no part in its prediction.
    alone = xp.where(model.ratios(values, predicted, xp) > 1, predicted, alone)
    most = at.of_columns(largest)
    clean = first.ratios(values, at.predictions(X_robust, W_robust, Y, xp), xp) <= 1
    found = (values, xp.where(alone < most, alone, most), xp.astype(clean, Y.dtype))
    values, alone, clean = (at.chosen(part, xp) for part in found)
    weights = xp.ones_like(values) if M is None else M[at.rows, at.columns]
    return values, alone, xp.astype(at.columns, Y.dtype), weights, clean


@block_function(rowwise=True)
def _absolute_sums(
    Y: Array,
    M: Array | None,
    X: Array,
    X_all: Array,
    X_judged: Array,
    *,
    W: Array,
    W_all: Array,
    W_judged: Array,
    model: NoiseModel,
    units: Array | None,
    factor: float,
    xp: Namespace,
) -> tuple[float, ...]:
    """Return sums over a block: |R| of both fits, of all entries and of the accepted ones, and of weights.

    Of an entry that is wrong by far no more counts than the largest right one. The fifth is the sum of the accepted
    entries. Then come the weight of the rejected entries and that of all, sums over samples of the number of rejected
    entries and of its square, and |R| of both fits where features count alike, of the rejected and of the accepted
    entries.
    """
    counts, predicted = _observed(Y, M, xp), predictions(X, W, Y)
    ratios = model.ratios(Y, predictions(X_judged, W_judged, Y), xp)
    counts = xp.where(ratios > factor, 0, counts)
    kept = xp.where(ratios > 1, 0, counts)
    most = model.largest
    before = xp.abs(Y - xp.where((kept == 0) & (predicted > most), most * xp.ones_like(Y), predicted))
    before, after = (xp.where(A < most, A, most) for A in (before, xp.abs(Y - predictions(X_all, W_all, Y))))
    wrong_before, wrong_after = (xp.where(kept == 0, counts * A, 0) for A in (before, after))
    right_before, right_after = kept * before, kept * after
    if units is not None:
        before, after = before * units, after * units
    rejected = xp.sum(xp.astype((kept == 0) & (counts > 0), xp.float64), axis=1)
    size = Y if units is None else Y * units
    parts = (counts * before, counts * after, kept * before, kept * after, kept * size, counts - kept, counts)
    numbers = (*parts, rejected, rejected * rejected, wrong_before, wrong_after, right_before, right_after)
    return tuple(float(xp.sum(part, dtype=xp.float64)) for part in numbers)
