"""HOW LARGE a clean residual is: the scale gamma of the loss (paper section 3.2).

A scale rule sees the magnitudes |R| of all residuals, block by block, with the weight of every entry (0 where
it is missing), and the scale of the last iteration to start from. It returns a new scale; zero means that
every residual that counts is zero, and the caller puts a floor under it.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from robustnmf.engines.protocol import Engine
from robustnmf.model.losses import Cauchy, squared_ratio
from robustnmf.model.mixture import Mixture, mixture_of
from robustnmf.utils.arrays import Array, Blocks, Namespace, size

Reads = Literal["nothing", "mixture", "residuals"]
"""What a rule reads: nothing, the mixture that residuals have, or the residuals themselves."""


def reads(rule: Any) -> Reads:
    """Return what a rule of scales or outliers reads: its attribute ``reads``, or all residuals if it has none."""
    read: Reads = getattr(rule, "reads", "residuals")
    return read


def in_unit(rule: Any, unit: float, dtype: Any) -> Any:
    """Return the rule for data that was divided by a unit: its method ``in_unit``, or itself if it has none."""
    convert = getattr(rule, "in_unit", None)
    return rule if convert is None else convert(unit, dtype)


# 1 / Phi^-1(3/4): the median magnitude of a Gaussian becomes its standard deviation.
GAUSSIAN_MAD = 1.4826


@runtime_checkable
class ScaleRule(Protocol):
    """Estimates the scale of clean residuals."""

    name: ClassVar[str]

    def __call__(self, magnitudes: Blocks, M: Blocks | None, previous: float | None, engine: Engine) -> float:
        """Return the scale of residuals of these `magnitudes`.

        Parameters
        ----------
        magnitudes : blocks
            Magnitudes |R| of the residuals, blocks of samples in rows, (n, m) in all; (n, 1) if the loss is of whole
            samples.
        M : blocks or None
            Weight of each magnitude, cut alike, 0 where an entry is missing; None if all are 1.
        previous : float or None
            The scale of the last iteration; None in the first.
        engine : Engine
            What takes sums and quantiles of blocks.

        Returns
        -------
        float
            The scale, not negative; 0 means that every residual which counts is zero. It is in the unit of the
            residuals: if they are multiplied by a factor, so is the scale.
        """
        ...


@dataclass(frozen=True, slots=True)
class FixedScale:
    """The scale the user knows: the paper's gamma, in the units of the data.

    Parameters
    ----------
    value : float
        The scale, positive, in units of X.
    """

    value: float

    name: ClassVar[str] = "fixed"
    reads: ClassVar[Reads] = "nothing"

    def __post_init__(self) -> None:
        if not 0 < self.value < float("inf"):
            raise ValueError(f"A fixed scale (the paper's gamma) must be positive and finite; got {self.value!r}.")

    def __call__(self, magnitudes: Blocks, M: Blocks | None, previous: float | None, engine: Engine) -> float:
        return self.value

    def in_unit(self, unit: float, dtype: Any) -> "FixedScale":
        """Return the scale of data that was divided by a unit, within the range of its numbers.

        So far out the weights are all 1, or the floor counts.

        Parameters
        ----------
        unit : float
            What the data was divided by.
        dtype : dtype
            That of the factors.

        Returns
        -------
        FixedScale
            The scale in that unit.
        """
        number = np.finfo(dtype)
        return FixedScale(min(max(self.value / unit, float(number.tiny)), float(number.max) ** 0.5))


@dataclass(frozen=True, slots=True)
class Nagy:
    """Nagy's maximum-likelihood scale of a Cauchy distribution, eq. (3-11).

    Iterates gamma <- gamma * sqrt(1 / e - 1), where e is the mean of 1 / (1 + (R / gamma)**2), to its
    unique fixed point e = 1/2. Each iteration is one pass over the residuals, and the error halves each
    time for Cauchy residuals; it starts from the last scale, or from the median magnitude, which is gamma
    for a Cauchy distribution.

    Parameters
    ----------
    tol : float
        Relative change of gamma at which to stop.
    max_iter : int
        Most passes over the data.
    """

    tol: float = 1e-10
    max_iter: int = 100

    name: ClassVar[str] = "nagy"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, previous: float | None, engine: Engine) -> float:
        """Return the fixed point of eq. (3-11)."""
        scale = previous or _central_magnitude(magnitudes, M, engine)
        if scale == 0.0:
            return 0.0
        vanishing = scale * float(engine.xp.finfo(magnitudes[0].dtype).eps)
        for _ in range(self.max_iter):
            kernel_sum, total = engine.sum(_cauchy_kernel, magnitudes, M, scale=scale, engine=engine)
            mean_kernel = kernel_sum / total
            if mean_kernel >= 1.0:  # every residual is zero to rounding
                return 0.0
            last, scale = scale, scale * sqrt(1.0 / mean_kernel - 1.0)
            if abs(scale - last) <= self.tol * scale or scale < vanishing:  # more than half are zero: it falls to zero
                break
        return scale


@dataclass(frozen=True, slots=True)
class MAD:
    """The median magnitude of the residuals, times a constant that makes it a standard deviation.

    Parameters
    ----------
    factor : float
        The constant; 1.4826 makes it the standard deviation of Gaussian residuals.
    """

    factor: float = GAUSSIAN_MAD

    name: ClassVar[str] = "mad"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, previous: float | None, engine: Engine) -> float:
        """Return factor * median(|R|) over the observed entries."""
        return self.factor * float(engine.quantile(magnitudes, M, 0.5))


@dataclass(frozen=True, slots=True)
class RootMeanSquare:
    """The root mean square of the residuals, times a constant; outliers move it.

    The default constant makes it the kernel width of Du et al. (2012): its square is half the mean square.

    Parameters
    ----------
    factor : float
        The constant.
    """

    factor: float = 0.5**0.5

    name: ClassVar[str] = "rms"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, previous: float | None, engine: Engine) -> float:
        """Return factor * sqrt(mean(R**2)) over the observed entries."""
        squares, total = engine.sum(_square_sum, magnitudes, M)
        return self.factor * sqrt(squares / total)


@dataclass(frozen=True, slots=True)
class MixtureScale:
    """A multiple of the width of clean residuals, which gross errors cannot move (see `robustnmf.model.mixture`).

    gamma = factor * width * share**power: the more of the data is wrong, the less an entry far from the fit is to be
    trusted. The constants were chosen by trial on the ORL faces under 0 to 60 % salt and pepper; docs/default.md says
    what they give there and on other data.

    Residuals of the entries that a fit was made to look small: at high rank the width is far too small when it is taken
    from them. The schedule of the default takes it from entries that it holds out.

    Parameters
    ----------
    factor : float
        Widths that the scale is where all residuals are clean.
    power : float
        How fast it falls with the share of clean residuals.
    """

    factor: float = 5.0
    power: float = 2.0

    name: ClassVar[str] = "mixture"
    reads: ClassVar[Reads] = "mixture"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, previous: float | None, engine: Engine) -> float:
        """Return gamma of the observed entries, of a sample of them if there are many."""
        return self.of(mixture_of(magnitudes, M, engine))

    def of(self, mixture: Mixture) -> float:
        """Return gamma for residuals of a known mixture.

        Parameters
        ----------
        mixture : Mixture
            Width and share of clean residuals.

        Returns
        -------
        float
            The scale, in the unit of the width.
        """
        return self.factor * mixture.width * float(mixture.share**self.power)


@dataclass(frozen=True, slots=True)
class FirstScale:
    """Another rule's scale at the start, kept ever after: the objective is then the same in all iterations.

    Parameters
    ----------
    rule : ScaleRule
        The rule that finds the scale of the start.
    """

    rule: ScaleRule = MAD(factor=1.0)

    name: ClassVar[str] = "first"

    def __call__(self, magnitudes: Blocks, M: Blocks | None, previous: float | None, engine: Engine) -> float:
        """Return the scale of the last iteration, or the rule's if this is the first."""
        return self.rule(magnitudes, M, None, engine) if previous is None else previous


def _central_magnitude(magnitudes: Blocks, M: Blocks | None, engine: Engine) -> float:
    """Return the median magnitude, or the mean where more than half of the residuals are zero."""
    median = float(engine.quantile(magnitudes, M, 0.5))
    if median > 0.0:
        return median
    total, count = engine.sum(_magnitude_sum, magnitudes, M)
    return float(total / count)


def _cauchy_kernel(A: Array, M: Array | None, *, scale: float, engine: Engine, xp: Namespace) -> tuple[float, float]:
    """Return the weighted sum of 1 / (1 + (A / scale)**2) and the sum of the weights."""
    kernel = engine.kernels.cauchy_sum
    if kernel is not None:
        return kernel(A, M, scale)
    return weighted_sum(Cauchy().weight(squared_ratio(A, scale, xp), xp), M, xp)


def _magnitude_sum(A: Array, M: Array | None, *, xp: Namespace) -> tuple[float, float]:
    """Return the weighted sum of magnitudes and the sum of the weights."""
    return weighted_sum(A, M, xp)


def _square_sum(A: Array, M: Array | None, *, xp: Namespace) -> tuple[float, float]:
    """Return the weighted sum of squared magnitudes and the sum of the weights."""
    return weighted_sum(A * A, M, xp)


def weighted_sum(values: Array, M: Array | None, xp: Namespace) -> tuple[float, float]:
    """Return the sum of M * values and the sum of M, accumulated in double precision."""
    if M is None:
        return float(xp.sum(values, dtype=xp.float64)), float(size(values))
    return float(xp.sum(M * values, dtype=xp.float64)), float(xp.sum(M, dtype=xp.float64))
