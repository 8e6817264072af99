"""WHICH entries are rejected: outlier rules (paper section 3.3).

A rule looks at the magnitudes |R| of the residuals and returns one threshold per feature; entries beyond
it get weight zero. Entries are never rejected for fitting too well.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.model.mixture import Mixture, mixture_of
from robustnmf.model.scales import GAUSSIAN_MAD, Reads
from robustnmf.utils.arrays import Array, Blocks, Namespace


@runtime_checkable
class OutlierRule(Protocol):
    """Finds the threshold beyond which a residual is an outlier."""

    name: ClassVar[str]

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        """Return the thresholds of residuals of these `magnitudes`.

        Parameters
        ----------
        magnitudes : blocks
            Magnitudes |R| of the residuals, blocks of samples in rows, (n, m) in all; (n, 1) if the loss is of whole
            samples.
        M : blocks or None
            Weight of each magnitude, cut alike, 0 where an entry is missing; None if all are 1.
        scale : float
            The scale of the same residuals, as the scale rule found it.
        engine : Engine
            What takes sums and quantiles of blocks.

        Returns
        -------
        array (m,) or (), float, or None
            The magnitude beyond which an entry has weight zero, for each feature or for all; None if nothing is
            rejected. It is in the unit of the residuals.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRejection:
    """Reject nothing: the loss alone limits the influence of outliers."""

    name: ClassVar[str] = "none"
    reads: ClassVar[Reads] = "nothing"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        return None


@dataclass(frozen=True, slots=True)
class ThreeSigma:
    """The paper's rule: three deviations of the below-median half of the magnitudes.

    Let Gamma be the magnitudes not above the median, with mean mu and standard deviation delta. An entry
    is an outlier if its magnitude exceeds mu + 3 * delta. The text of section 3.3 takes the outliers from
    Gamma itself, which would find none; the authors' code takes them from all entries, as here.

    Fed with Gaussian residuals the rule rejects beyond 0.9 standard deviations, 37 % of clean entries.

    Parameters
    ----------
    axis : None or "feature"
        None takes one median, mean and deviation over all entries ("global view"); "feature" one for each
        feature ("local view"), for which there should be many samples.
    deviations : float
        The three of three-sigma.
    """

    axis: Literal["feature"] | None = None
    deviations: float = 3.0

    name: ClassVar[str] = "three-sigma"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        """Return mu + 3 * delta, one number or one per feature."""
        xp, axis = engine.xp, self.axis
        median = engine.quantile(magnitudes, M, 0.5, axis=axis)
        total, count = engine.sum(_half_moment, magnitudes, M, median=median, axis=axis)
        count = xp.where(count > 0, count, 1)  # a feature without observed entries rejects nothing it has
        mean = total / count
        squares, _ = engine.sum(_half_moment, magnitudes, M, median=median, centre=mean, axis=axis)
        return mean + self.deviations * xp.sqrt(squares / count)


@dataclass(frozen=True, slots=True)
class MADRule:
    """Reject beyond a multiple of the median magnitude of the residuals.

    Parameters
    ----------
    deviations : float
        The multiple. Hampel's identifier is 5.2, for Gaussian residuals; those of a good fit to real data have
        heavier tails (closer to Laplace's, for which 7 medians leave 0.8 % beyond), hence the default.
    axis : None or "feature"
        One threshold, or one per feature.
    """

    deviations: float = 7.0
    axis: Literal["feature"] | None = None

    name: ClassVar[str] = "mad"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        """Return deviations * median(|R|), one number or one per feature."""
        return self.deviations * engine.quantile(magnitudes, M, 0.5, axis=self.axis)


@dataclass(frozen=True, slots=True)
class SpreadRule:
    """Reject what lies far above the bulk: beyond the median by a number of robust standard deviations.

    For magnitudes that do not start from zero, such as norms of whole samples: the automatic threshold theta of the
    capped norm. The standard deviation is 1.4826 times the median distance to the median.

    Parameters
    ----------
    deviations : float
        Standard deviations above the median.
    """

    deviations: float = 3.0

    name: ClassVar[str] = "spread"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        """Return median + deviations * 1.4826 * median(|A - median|)."""
        median = engine.quantile(magnitudes, M, 0.5)
        distances = engine.map(_distances, magnitudes, centre=median)
        return median + self.deviations * GAUSSIAN_MAD * engine.quantile(distances, M, 0.5)


@dataclass(frozen=True, slots=True)
class MixtureRule:
    """Reject beyond a multiple of the width of clean residuals, which gross errors cannot move.

    threshold = factor * width / share**power. A Laplace residual is beyond eight widths once in three thousand times;
    real residuals have heavier tails, and of clean data a few entries in a thousand are lost. The more of the data is
    wrong, the higher the threshold: a poor fit would throw away what it does not fit yet, and an entry that is
    rejected has no way back. Meanwhile the scale of the loss falls and takes over.

    Parameters
    ----------
    factor : float
        Widths that the threshold is where all residuals are clean.
    power : float
        How fast it grows as the share of clean residuals falls.
    """

    factor: float = 8.0
    power: float = 1.5

    name: ClassVar[str] = "mixture"
    reads: ClassVar[Reads] = "mixture"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        """Return the threshold for the observed entries, from a sample of them if there are many."""
        return self.of(mixture_of(magnitudes, M, engine))

    def of(self, mixture: Mixture) -> float:
        """Return the threshold for residuals of a known mixture.

        Parameters
        ----------
        mixture : Mixture
            Width and share of clean residuals.

        Returns
        -------
        float
            The threshold, in the unit of the width.
        """
        return self.factor * mixture.width / float(mixture.share**self.power)


@block_function(recomputed=True)
def _distances(A: Array, *, centre: Array, xp: Namespace) -> Array:
    return xp.abs(A - centre)


def _half_moment(
    A: Array,
    M: Array | None,
    *,
    median: Array,
    axis: Literal["feature"] | None,
    xp: Namespace,
    centre: Array | None = None,
) -> tuple[Array, Array]:
    """Return the sum of A, or of (A - centre)**2, over the below-median half, and that half's weight."""
    half = xp.astype(A <= median, xp.float64)
    if M is not None:
        half = half * M
    values = xp.astype(A, xp.float64)
    if centre is not None:
        values = (values - centre) ** 2
    over = 0 if axis == "feature" else None
    return xp.sum(half * values, axis=over), xp.sum(half, axis=over)
