"""What the stages of a fit share: the data, what is known of it, and where the fit stands."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from robustnmf.algorithm.encoding import Basis, typical_code
from robustnmf.algorithm.halfquadratic import Method
from robustnmf.algorithm.holdout import HeldOut, Point
from robustnmf.algorithm.least_squares import MOST_OBSERVED, Comparison, n_present_in
from robustnmf.algorithm.monitor import Monitor
from robustnmf.algorithm.patterns import Pattern
from robustnmf.algorithm.steps import Compute
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.model.mixture import SPARSE, Mixture
from robustnmf.model.noise import Noise, NoiseModel
from robustnmf.model.scales import reads
from robustnmf.model.weighting import Weighting
from robustnmf.utils.arrays import Array, Blocks, Namespace, is_foreign, is_uniform, subsample, to_host
from robustnmf.utils.cached import cached_property
from robustnmf.utils.entries import Entries
from robustnmf.utils.observed import copied, count_observed

# With more than twice as many entries, and samples per component, some samples are enough to find the components.
ENOUGH_ENTRIES, ENOUGH_SAMPLES = 2**22, 50
# So many positive entries of each feature, for each component, are enough.
ENOUGH_POSITIVE = 5
# Residuals below this part of the typical entry are a fit that still converges, not noise.
RESOLUTION = 1e-3
# Those of sparse data are below this part: what is positive is mostly counts, and one may be met exactly by chance.
SPARSE_RESOLUTION = 0.5
# With fewer positive entries for each entry of the factors, least squares on all entries says nothing.
FEWEST_POSITIVE = 0.5
# With so many observed entries for each entry of the factors, codes need no anchors where something is missing.
ENOUGH_FOR_PARAMETERS = 10


def has_more_than_enough(n_samples: int, n_features: int, rank: int) -> bool:
    """Return whether some samples are enough to find the components, if nothing is missing and enough is positive."""
    return n_features > 0 and n_samples >= 2 * _enough_samples(n_features, rank)


def _enough_samples(n_features: int, rank: int) -> float:
    return max(ENOUGH_ENTRIES / n_features, ENOUGH_SAMPLES * rank)


@dataclass(frozen=True)
class AllSamples:
    """Data with more samples than it takes to find the components; some are chosen, evenly spread."""

    V: Blocks
    M: Blocks | None
    chosen: Blocks
    """Which samples are, a slice of each block."""
    engine: Engine

    @classmethod
    def of(cls, V: Blocks, M: Blocks | None, rank: int, engine: Engine) -> "AllSamples | None":
        """Return the data with a choice of samples, or None if all are needed."""
        n_samples, n_features = sum(len(block) for block in V), V[0].shape[1]
        enough = _enough_samples(n_features, rank)
        if n_samples >= 2 * enough and M is not None:  # what is missing does not count
            share = float(engine.sum(count_observed, M)) / (n_samples * n_features)
            enough = max(enough, ENOUGH_ENTRIES / (n_features * max(share, 1e-9)))
        if n_samples >= 2 * enough:  # each feature needs positive entries, of which sparse data has few
            share = float(engine.sum(_n_positive, V, M)) / (n_samples * n_features)
            enough = max(enough, ENOUGH_POSITIVE * rank / max(share, 1e-6))
        every = int(n_samples / enough)
        if every < 2:
            return None
        return cls(V, M, subsample([len(block) for block in V], every), engine)

    @cached_property
    def some(self) -> tuple[Blocks, Blocks | None]:
        """The samples that were chosen, and the weights of their entries."""
        return self.part(self.V), self.part(self.M)

    def part(self, blocks: Blocks | None) -> Any:
        """Return the rows of the samples that were chosen, in blocks of the size that the data has."""
        if blocks is None:
            return None
        return self.engine.regroup(self.engine.map(_choose, blocks, self.chosen), max(len(block) for block in self.V))


@dataclass(frozen=True)
class Fit:
    """What all stages of a fit share, and none of them changes."""

    V: Blocks
    M: Blocks | None
    method: Method
    engine: Engine
    held: HeldOut
    rank: int
    max_iter: int
    last_iter: int
    """Iterations of each of the last stages."""
    tol: float
    scale_floor: float
    whole: AllSamples | None = None
    """All samples, if V and M are some of them."""
    noise: Noise | None = None
    """What is assumed of the noise of each entry; None judges entries by the loss alone."""
    units: Array | None = None
    """What features are multiplied by in least squares, (m,)."""

    @property
    def floor(self) -> float:
        """The smallest width of clean residuals."""
        resolution = SPARSE_RESOLUTION if self.is_sparse else RESOLUTION
        return max(resolution * self.held.typical, self.scale_floor)

    @property
    def has_mixture_rules(self) -> bool:
        """Whether scale and threshold come from the mixture of residuals."""
        return reads(self.method.scale) == reads(self.method.outliers) == "mixture"

    @cached_property
    def judges_by_noise(self) -> bool:
        """Whether entries are judged by their noise: by the rules of the default, and with enough that is positive."""
        if self.noise is None or not self.has_mixture_rules or hasattr(self.method.outliers, "mask"):
            return False
        return self.is_anchored or self.n_positive_for_each_parameter > FEWEST_POSITIVE

    @property
    def is_anchored(self) -> bool:
        """Whether data has gaps and so few entries that anchors decide: their weight is then found by validation."""
        if self.M is None or not self.held.hidden or self.weights_counts:
            return False
        if self.held.n_observed >= MOST_OBSERVED * self.n_present * self.n_features:
            return False
        return self.held.n_observed < ENOUGH_FOR_PARAMETERS * self.rank * (self.n_present + self.n_features)

    @cached_property
    def n_present(self) -> int:
        """Number of samples of which something is observed."""
        return self.n_samples if self.M is None else int(self.engine.sum(n_present_in, self.M))

    @property
    def is_mostly_missing(self) -> bool:
        """Whether more entries are missing than there are."""
        return self.M is not None and 2 * self.held.n_observed < self.n_present * self.n_features

    @property
    def can_restart(self) -> bool:
        """Whether singular vectors may tell more than the robust fit: most entries are zero, and all are there.

        Weighted counts have a second start of their own.
        """
        is_plain = self.M is None and not self.method.fixed and not self.weights_counts
        return is_plain and self.is_sparse and self.judges_by_noise

    @property
    def weights_counts(self) -> bool:
        """Whether entries are weighted as counts are, by one over their expected value."""
        return self.noise is not None and self.noise.weights_entries and self.noise.of_counts

    @property
    def tells_noise(self) -> bool:
        """Whether enough is positive to tell noise from what a fit follows."""
        return self.is_anchored or self.n_positive_for_each_parameter > 1

    @property
    def n_positive_for_each_parameter(self) -> float:
        """Number of positive entries for each entry of the factors."""
        return self.n_positive / (self.rank * (self.n_samples + self.n_features))

    @property
    def n_samples(self) -> int:
        """Number of samples that the stages work with."""
        return sum(len(block) for block in self.V)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.V[0].shape[1])

    def mixture(self, point: Point, last: Mixture | None = None) -> Mixture:
        """Return the mixture of a point's held-out residuals; within a stage the width falls and never rises."""
        mixture = self.held.mixture(point)
        width = max(mixture.width, self.floor)
        return mixture._replace(width=width if last is None else min(width, last.width))

    @cached_property
    def is_sparse(self) -> bool:
        """Whether most entries are zero."""
        return self.n_positive < SPARSE * self.held.n_observed

    @cached_property
    def n_positive(self) -> int:
        """Number of positive entries."""
        return int(self.engine.sum(_n_positive, self.V, self.M))

    def median(self, point: Point) -> float:
        """Return the median magnitude of informative held-out residuals."""
        return max(self.held.median(point), self.scale_floor)

    def quantile(self, point: Point, q: float) -> float:
        """Return another quantile of them."""
        return max(self.held.quantile(point, q), self.scale_floor)

    def per_feature(self, threshold: float) -> Array:
        """Return a threshold as a vector, (m,), that is one number in memory."""
        one = self.engine.place(threshold, self.V[0].dtype)
        return self.engine.xp.broadcast_to(one, (self.n_features,))

    def typical_threshold(self, weighting: Weighting) -> Any:
        """Return the median threshold of all features; on a device, if what it is compared with is there too."""
        threshold = weighting.threshold
        if threshold is None:
            return inf
        if is_uniform(threshold):
            return threshold[0] if is_foreign(threshold) and is_foreign(self.held.values) else float(threshold[0])
        return float(np.median(to_host(threshold)))


class State(NamedTuple):
    """Where a fit stands: what the next iteration needs."""

    point: Point
    last: Point
    """The point before, for the momentum; the same one for none."""
    momentum: float
    mixture: Mixture
    """Of the held-out residuals of the point."""
    monitor: Monitor
    n_iter: int = 0
    stopped: bool = False
    """Whether the callback wants to stop."""
    needed: tuple[Point, ...] = ()
    """Points that the fit may come back to, beside the last ones and the one that the monitor keeps."""
    scales: tuple[float, float] | None = None
    """Last and first scale that a rule found for the residuals of all entries."""


class End(NamedTuple):
    """Where a fit ends."""

    point: Point
    weighting: Weighting
    converged: bool
    stopped: bool
    code_sweeps: int | None
    warning: str | None
    noise: NoiseModel | None = None
    judge: Basis | None = None
    comparison: Comparison | None = None
    pattern: Pattern | None = None


Steps: TypeAlias = Generator[Any, Any, State]


def encode_all_samples(
    fit: Fit,
    state: State,
    weighting: Weighting,
    code_sweeps: int | None = None,
    model: NoiseModel | None = None,
    judge: Basis | None = None,
) -> Steps:
    """Encode all samples, if the point has the codes of some."""
    whole, point = fit.whole, state.point
    if whole is None:
        return state

    def encode() -> Point:
        code = typical_code(point.W, point.Ht, None, fit.engine)
        basis = Basis(point.W, code, weighting, fit.method.penalties, code_sweeps, model, fit.units, judge)
        return point._replace(Ht=basis.encode(whole.V, whole.M, fit.engine, max_iter=0, tol=0.0))

    return state._replace(point=(yield Compute(encode, (point,))))


def final_weighting(fit: Fit, weighting: Weighting, mixture: Mixture) -> Weighting:
    """Return the weighting that rejects what is rather wrong than clean.

    While the factors move the threshold has to be generous; once they are found, it can be where it belongs. Residuals
    of the entries that were fitted do not say where that is.
    """
    if weighting.threshold is None or reads(fit.method.outliers) != "mixture" or not fit.held.hidden:
        return weighting
    return replace(weighting, threshold=fit.per_feature(min(float(weighting.threshold[0]), mixture.decision_threshold)))


# --- On a block -------------------------------------------------------------------------------------------------------


def _choose_stored(rows: Entries, chosen: slice, *, xp: Namespace) -> Any:
    return rows[chosen]


@block_function(light=True, selects_rows=True, stored=_choose_stored)
def _choose(rows: Array, chosen: slice, *, xp: Namespace) -> Array:
    """Return a copy of some of the rows."""
    return copied(rows[chosen], xp)


def _n_positive_stored(Y: Entries, M: None, *, xp: Namespace) -> int:
    return int(np.count_nonzero(Y.values > 0))


@block_function(stored=_n_positive_stored)
def _n_positive(Y: Array, M: Array | None, *, xp: Namespace) -> int:
    """Return the number of observed entries of a block that are positive."""
    return int(xp.count_nonzero(Y > 0 if M is None else (Y > 0) & (M > 0)))
