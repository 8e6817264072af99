"""WHAT is minimised: every loss as rho and weight (paper section 2 and Table 1).

A loss acts on the squared ratio s = (|r| / scale)**2 of a residual to the noise scale. It is concave and
non-decreasing in s with rho(0) = 0, which is all that half-quadratic programming needs: the tangent

    rho(s) <= rho(s0) + weight(s0) * (s - s0),      weight = d rho / d s,

majorises it, so a weighted least-squares step never raises the objective.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from robustnmf.arrays import Array, Namespace


@runtime_checkable
class Loss(Protocol):
    """A concave, non-decreasing function of s = (|r| / scale)**2 with rho(0) = 0."""

    name: ClassVar[str]
    log_scale_coef: ClassVar[float]
    """c in: rho(s) + c * log(scale), the negative log-likelihood that makes objectives of different scales
    comparable. 1 for Cauchy; 0 where the scale is not a likelihood parameter."""

    def rho(self, s: Array, xp: Namespace) -> Array:
        """Return the loss at `s`, elementwise."""
        ...

    def weight(self, s: Array, xp: Namespace) -> Array:
        """Return d rho / d s at `s`, elementwise."""
        ...


@dataclass(frozen=True, slots=True)
class Squared:
    """Squared loss of ordinary NMF, rho(s) = s.

    Examples
    --------
    >>> import numpy as np
    >>> Squared().weight(np.array([0.0, 4.0]), np)
    array([1., 1.])
    """

    name: ClassVar[str] = "squared"
    log_scale_coef: ClassVar[float] = 0.0

    def rho(self, s: Array, xp: Namespace) -> Array:
        """Return s."""
        return s

    def weight(self, s: Array, xp: Namespace) -> Array:
        """Return 1 everywhere."""
        return xp.ones_like(s)


@dataclass(frozen=True, slots=True)
class Cauchy:
    """Cauchy loss, rho(s) = log(1 + s); the untruncated case of the paper (sigma = infinity).

    Examples
    --------
    >>> import numpy as np
    >>> Cauchy().weight(np.array([0.0, 1.0, 3.0]), np)
    array([1.  , 0.5 , 0.25])
    """

    name: ClassVar[str] = "cauchy"
    log_scale_coef: ClassVar[float] = 1.0

    def rho(self, s: Array, xp: Namespace) -> Array:
        """Return log(1 + s)."""
        return xp.log1p(s)

    def weight(self, s: Array, xp: Namespace) -> Array:
        """Return 1 / (1 + s), Theorem 2 of the paper without its sign."""
        return 1 / (1 + s)


@dataclass(frozen=True, slots=True)
class TruncatedCauchy:
    """Truncated Cauchy loss g of eq. (2-4): log(1 + s) up to s = cap, constant beyond.

    Parameters
    ----------
    cap : float
        The paper's sigma. Residuals beyond ``scale * sqrt(cap)`` have weight zero; in eq. (2-1) that
        point is called epsilon.

    Examples
    --------
    >>> import numpy as np
    >>> TruncatedCauchy(cap=4.0).weight(np.array([0.0, 1.0, 5.0]), np)
    array([1. , 0.5, 0. ])
    """

    cap: float

    name: ClassVar[str] = "truncated-cauchy"
    log_scale_coef: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise ValueError(f"The truncation (the paper's sigma) must be positive; got {self.cap!r}.")

    def rho(self, s: Array, xp: Namespace) -> Array:
        """Return log(1 + min(s, cap))."""
        return xp.log1p(xp.where(s <= self.cap, s, self.cap))

    def weight(self, s: Array, xp: Namespace) -> Array:
        """Return 1 / (1 + s) up to the cap and 0 beyond, Theorem 2 of the paper without its sign."""
        return xp.where(s <= self.cap, 1 / (1 + s), 0)
