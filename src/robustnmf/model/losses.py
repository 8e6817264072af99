"""WHAT is minimised: every loss as rho and weight (paper section 2 and Table 1).

A loss acts on the squared ratio s = (|r| / scale)**2 of a residual to the noise scale; r is one entry of V - WH, or the
norm of a sample's residual where the loss says so (`group`). It is concave and non-decreasing in s with rho(0) = 0,
which is all that half-quadratic programming needs: the tangent

    rho(s) <= rho(s0) + weight(s0) * (s - s0),      weight = d rho / d s,

majorises it, so a weighted least-squares step never raises the objective.

A loss that kernels can compute says so by its ``kernel_form``; without it the reference functions are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from robustnmf.kernels.interface import CAUCHY, CORRENTROPY, HUBER, ROUNDED, SQUARED, Form, form_of
from robustnmf.utils.arrays import Array, Namespace

Group = Literal["entry", "sample"]


@runtime_checkable
class Loss(Protocol):
    """A concave, non-decreasing function of s = (|r| / scale)**2 with rho(0) = 0.

    A loss of your own derives from it and has at least `rho` and `weight`.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """What reports call it."""
        return type(self).__name__

    @property
    def is_quadratic(self) -> bool:
        """Whether the weight is 1 whatever the residual."""
        return False

    @property
    def group(self) -> Group:
        """Whether r is an entry of the residual or the norm of a sample's residual."""
        return "entry"

    @property
    def scale_power(self) -> float:
        """Return p such that scale**p * rho(s) is the loss in units of the data: 2 for squares, 1 for norms.

        It makes objectives of different scales comparable; 0 where the loss is a pure number.
        """
        return 0.0

    @property
    def log_scale_coef(self) -> float:
        """Return c such that rho(s) + c * log(scale) is a negative log-likelihood: 1 for Cauchy, 0 for the others."""
        return 0.0

    def rho(self, s: Array, xp: Namespace) -> Array:
        """Return the loss at `s`, elementwise.

        Parameters
        ----------
        s : array
            Squared ratios (|r| / scale)**2, of any shape.
        xp : namespace
            Array namespace of `s`: NumPy, or that of Torch.

        Returns
        -------
        array
            The loss of each, of the shape of `s`.
        """
        ...

    def weight(self, s: Array, xp: Namespace) -> Array:
        """Return d rho / d s at `s`, elementwise.

        Parameters
        ----------
        s : array
            Squared ratios (|r| / scale)**2, of any shape.
        xp : namespace
            Array namespace of `s`: NumPy, or that of Torch.

        Returns
        -------
        array
            The weight of each, of the shape of `s`; not negative.
        """
        ...


# Squared ratios at which a loss of the user's own is looked at.
_PROBES = (0.0, *(10.0**k for k in range(-6, 7)))


def check_loss(loss: Any) -> None:
    """Raise ValueError if a loss is not concave and non-decreasing, zero at zero, with its derivative as the weight.

    For a concave function the rise between two points lies between those of the tangents at both, so that the two
    functions can be compared without differences, and kinks do not matter.

    Parameters
    ----------
    loss : Loss
        The loss. It is evaluated at 14 squared ratios from 0 to 1e6.
    """
    s = np.array(_PROBES)
    for name in ("is_quadratic", "group", "scale_power", "log_scale_coef"):
        if not hasattr(loss, name):
            raise ValueError(f"A loss must have {name}; {loss!r} has not. Derive it from robustnmf.model.losses.Loss.")
    rho, weight = (np.asarray(function(s, np), dtype=np.float64) for function in (loss.rho, loss.weight))
    if rho.shape != s.shape or weight.shape != s.shape or not (np.isfinite(rho).all() and np.isfinite(weight).all()):
        raise ValueError(f"rho and weight of a loss must return a finite number for each s; those of {loss!r} do not.")
    rise, slack = np.diff(rho), 1e-6 * (1 + np.abs(rho[1:]))
    above, below = weight[:-1] * np.diff(s), weight[1:] * np.diff(s)
    if abs(rho[0]) > 1e-6 or (weight < 0).any() or (rise < below - slack).any() or (rise > above + slack).any():
        raise ValueError(
            "A loss must have rho(0) = 0, rho concave and non-decreasing in s = (|r| / scale)**2, and weight = d rho / "
            f"d s; for {loss!r} that does not hold between s = 0 and 1e6. Check that both are functions of s, not of r."
        )


@dataclass(frozen=True, slots=True)
class Squared(Loss):
    """Squared loss of ordinary NMF, rho(s) = s.

    Examples
    --------
    >>> import numpy as np
    >>> Squared().weight(np.array([0.0, 4.0]), np)
    array([1., 1.])
    """

    name: ClassVar[str] = "squared"
    is_quadratic: ClassVar[bool] = True
    scale_power: ClassVar[float] = 2.0

    def rho(self, s: Array, xp: Namespace) -> Array:
        return s

    def weight(self, s: Array, xp: Namespace) -> Array:
        return xp.ones_like(s)

    kernel_form: ClassVar[Form] = Form(SQUARED)


@dataclass(frozen=True, slots=True)
class Cauchy(Loss):
    """Cauchy loss, rho(s) = log(1 + s); the untruncated case of the paper (sigma = infinity).

    Its weight 1 / (1 + s) is the maximiser of Theorem 2 of the paper without its sign.

    Examples
    --------
    >>> import numpy as np
    >>> Cauchy().weight(np.array([0.0, 1.0, 3.0]), np)
    array([1.  , 0.5 , 0.25])
    """

    name: ClassVar[str] = "cauchy"
    log_scale_coef: ClassVar[float] = 1.0

    def rho(self, s: Array, xp: Namespace) -> Array:
        return xp.log1p(s)

    def weight(self, s: Array, xp: Namespace) -> Array:
        return 1 / (1 + s)

    kernel_form: ClassVar[Form] = Form(CAUCHY)


@dataclass(frozen=True, slots=True)
class Hypersurface(Loss):
    """Hypersurface cost of Hamza and Brady (2006), rho(s) = sqrt(1 + s) - 1.

    Examples
    --------
    >>> import numpy as np
    >>> Hypersurface().rho(np.array([0.0, 3.0]), np)
    array([0., 1.])
    """

    name: ClassVar[str] = "hypersurface"

    def rho(self, s: Array, xp: Namespace) -> Array:
        return s / (xp.sqrt(1 + s) + 1)  # sqrt(1 + s) - 1 without cancellation

    def weight(self, s: Array, xp: Namespace) -> Array:
        return 0.5 / xp.sqrt(1 + s)

    kernel_form: ClassVar[Form] = Form(ROUNDED, 1.0)


@dataclass(frozen=True, slots=True)
class _RoundedNorm(Loss):
    """rho(s) = sqrt(s + floor**2) - floor: a norm with a rounded tip."""

    floor: float = 1e-3

    scale_power: ClassVar[float] = 1.0

    def rho(self, s: Array, xp: Namespace) -> Array:
        return s / (xp.sqrt(s + self.floor**2) + self.floor)  # without cancellation

    def weight(self, s: Array, xp: Namespace) -> Array:
        return 0.5 / xp.sqrt(s + self.floor**2)


@dataclass(frozen=True, slots=True)
class Absolute(_RoundedNorm):
    """Absolute loss of L1-NMF with a rounded tip, rho(s) = sqrt(s + floor**2) - floor.

    Parameters
    ----------
    floor : float
        Radius of the rounding, in scales. The weight of a perfect fit is 1 / (2 * floor) instead of infinite.

    Examples
    --------
    >>> import numpy as np
    >>> Absolute(floor=1e-9).rho(np.array([0.0, 4.0]), np).round(6)
    array([0., 2.])
    """

    name: ClassVar[str] = "absolute"

    @property
    def kernel_form(self) -> Form:
        """What kernels compute in its place."""
        return Form(ROUNDED, self.floor**2)


@dataclass(frozen=True, slots=True)
class SampleNorm(_RoundedNorm):
    """The norm of each sample's residual, as in L2,1-NMF, with a rounded tip: `Absolute` of a whole sample.

    Parameters
    ----------
    floor : float
        Radius of the rounding, in scales: far below it the loss is quadratic in the norm.

    Examples
    --------
    >>> import numpy as np
    >>> SampleNorm(floor=1e-9).rho(np.array([4.0]), np).round(6)
    array([2.])
    """

    name: ClassVar[str] = "sample-norm"
    group: ClassVar[Group] = "sample"


@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """Huber's loss with its cutoff at one scale: s up to 1, 2 sqrt(s) - 1 beyond.

    Minimising (r - e)**2 + lambda * |e| over a sparse error e leaves this loss with the cutoff lambda / 2: the model of
    RNMF-L1 (Zhang et al. 2011).

    Examples
    --------
    >>> import numpy as np
    >>> Huber().rho(np.array([0.25, 1.0, 9.0]), np)
    array([0.25, 1.  , 5.  ])
    """

    name: ClassVar[str] = "huber"
    scale_power: ClassVar[float] = 2.0

    def rho(self, s: Array, xp: Namespace) -> Array:
        return xp.where(s <= 1, s, 2 * xp.sqrt(s) - 1)

    def weight(self, s: Array, xp: Namespace) -> Array:
        return 1 / xp.sqrt(xp.where(s <= 1, 1, s))

    kernel_form: ClassVar[Form] = Form(HUBER)


@dataclass(frozen=True, slots=True)
class Correntropy(Loss):
    """Correntropy-induced loss (CIM), rho(s) = 1 - exp(-s / 2), without its constant factor.

    The paper's Table 1 prints the exponential of its weight in the denominator; it belongs in the numerator.

    Examples
    --------
    >>> import numpy as np
    >>> Correntropy().weight(np.array([0.0]), np)
    array([0.5])
    """

    name: ClassVar[str] = "correntropy"

    def rho(self, s: Array, xp: Namespace) -> Array:
        return -xp.expm1(-0.5 * s)

    def weight(self, s: Array, xp: Namespace) -> Array:
        return 0.5 * xp.exp(-0.5 * s)

    kernel_form: ClassVar[Form] = Form(CORRENTROPY)


@dataclass(frozen=True, slots=True)
class Truncated(Loss):
    """Any loss, made constant beyond s = cap: outliers there have weight zero.

    ``Truncated(Cauchy(), cap)`` is g of eq. (2-4), and with ``SampleNorm`` the capped norm of Gao et al. (2015). It is
    concave like the loss itself.

    Parameters
    ----------
    loss : Loss
        The loss up to the cap.
    cap : float
        The paper's sigma. Residuals beyond ``scale * sqrt(cap)``, epsilon in eq. (2-1), have weight zero.

    Examples
    --------
    >>> import numpy as np
    >>> Truncated(Cauchy(), cap=4.0).weight(np.array([0.0, 1.0, 5.0]), np)
    array([1. , 0.5, 0. ])
    """

    loss: Loss
    cap: float

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise ValueError(f"The truncation (the paper's sigma) must be positive; got {self.cap!r}.")

    @property
    def name(self) -> str:
        return f"truncated-{getattr(self.loss, 'name', type(self.loss).__name__)}"

    @property
    def group(self) -> Group:
        return self.loss.group

    @property
    def scale_power(self) -> float:
        return self.loss.scale_power

    @property
    def log_scale_coef(self) -> float:
        return self.loss.log_scale_coef

    def rho(self, s: Array, xp: Namespace) -> Array:
        return self.loss.rho(xp.where(s <= self.cap, s, self.cap), xp)

    def weight(self, s: Array, xp: Namespace) -> Array:
        return xp.where(s <= self.cap, self.loss.weight(s, xp), 0)

    @property
    def kernel_form(self) -> Form | None:
        """What kernels compute in its place; None if they cannot."""
        form = form_of(self.loss)
        return None if form is None else form._replace(support=sqrt(self.cap))


def squared_ratio(A: Array, scale: Any, xp: Namespace) -> Array:
    """Return s = (A / scale)**2 of magnitudes A, kept finite."""
    largest = scale * (float(xp.finfo(A.dtype).max) ** 0.5 / 2)
    ratio = xp.where(A < largest, A, largest) / scale
    return ratio * ratio


LOSSES: Mapping[str, Any] = MappingProxyType(
    {
        loss.name: loss
        for loss in (Squared(), Absolute(), SampleNorm(), Huber(), Hypersurface(), Correntropy(), Cauchy())
    }
)
"""The losses that have a name."""
