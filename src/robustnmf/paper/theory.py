"""WHY it is robust and generalises: Table 1, Figure 1, Lemma 1 and Theorem 1 of the paper, as formulas.

Nothing here fits anything. The weights are written down a second time, from Table 1 and not from `model.losses`, so
that each can be checked against the other. Letters are the paper's: gamma is the scale of the Cauchy loss, sigma its
truncation in eq. (2-4), epsilon its truncation in eq. (2-1), alpha the largest norm of a sample.

The paper's proofs are in a supplement that was not at hand; what is said here about printed constants was worked out
from the statements.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from robustnmf.utils.arrays import Array

Reading = Literal["printed", "consistent"]


# Table 1: how much an entry counts, given its residual.


def _norm_weight(residual: Array, *, floor: float = 1e-3) -> Array:
    return floor / np.hypot(floor, residual)


def _cauchy_weight(residual: Array, *, gamma: float = 1.0) -> Array:
    return 1 / (1 + (residual / gamma) ** 2)


# Table 1 gives both of its values to a norm of exactly theta; it is kept, like an entry at the last row's truncation.
ROBUSTNESS_WEIGHTS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "l2": lambda r: np.ones_like(r),
        "hypersurface": lambda r, *, gamma=1.0: 1 / np.hypot(1, r / gamma),
        "l21": _norm_weight,
        "capped": lambda r, *, theta=5.0, floor=1e-3: np.where(r > theta, 0.0, _norm_weight(r, floor=floor)),
        "rnmf-l1": lambda r, *, penalty=2.0: (penalty / 2) / np.maximum(r, penalty / 2),
        "l1": _norm_weight,
        "huber": lambda r, *, cutoff=1.0: cutoff / np.maximum(r, cutoff),
        "cim": lambda r, *, width=1.0: np.exp(-0.5 * (r / width) ** 2),
        "cauchy": _cauchy_weight,
        "truncated-cauchy": lambda r, *, gamma=1.0, sigma=25.0: np.where(
            r > gamma * math.sqrt(sigma), 0.0, _cauchy_weight(r, gamma=gamma)
        ),
    }
)
"""The rows of Table 1, in its order: weights as functions of |r|, with their parameters as keywords."""

_ALIASES: Mapping[str, str] = MappingProxyType({"nenmf": "l2", "mahnmf": "l1"})


def robustness_weight(model: str, residual: ArrayLike, **parameters: float) -> Array:
    """Return the weight that a model of Table 1 gives to an entry with this residual.

    Along f(t) = F(t WH) every model of the paper has a derivative of the form

        f'(1) = constant * sum_ij weight(|V - WH|_ij) * (V - WH)_ij * (-WH)_ij,

    so an entry counts for as much as its weight. The weight is 1 at residual 0, which fixes the constant.

    Parameters
    ----------
    model : str
        Name of a row, or "nenmf" (that is "l2") or "mahnmf" (that is "l1"):

        ==================== ================================================ ========================
        model                weight                                           parameters
        ==================== ================================================ ========================
        ``l2``               1
        ``hypersurface``     1 / sqrt(1 + (r / gamma)^2)                      ``gamma``
        ``l21``              floor / sqrt(floor^2 + r^2)                      ``floor``
        ``capped``           as ``l21`` up to r = theta, 0 beyond             ``theta``, ``floor``
        ``rnmf-l1``          min(1, penalty / (2 |r|))                        ``penalty`` (lambda)
        ``l1``               floor / sqrt(floor^2 + r^2)                      ``floor``
        ``huber``            min(1, cutoff / |r|)                             ``cutoff`` (sigma, c)
        ``cim``              exp(-r^2 / (2 width^2))                          ``width`` (sigma, delta)
        ``cauchy``           1 / (1 + (r / gamma)^2)                          ``gamma``
        ``truncated-cauchy`` as ``cauchy`` up to |r| = gamma sqrt(sigma), 0   ``gamma``, ``sigma``
                             beyond
        ==================== ================================================ ========================
    residual : array-like
        Residuals; for ``l21`` and ``capped``, norms of the residuals of whole samples. NaN stays NaN.
    **parameters : float
        Positive parameters of that model. The defaults are scales of 1, and cuts at 5, as in Figure 1 (a).

    Returns
    -------
    ndarray
        Weights in [0, 1], of the shape of `residual`.

    Raises
    ------
    ValueError
        For an unknown model, or a parameter that is not positive.
    TypeError
        For a parameter that the model does not have.

    Notes
    -----
    Three rows differ from the printed table:

    - ``cim``: the exponential is printed in the denominator, where the weight would grow with the noise.
    - ``cauchy``: the loss is printed as ln(1 + r / gamma); the printed derivative is that of ln(1 + (r / gamma)^2).
    - ``rnmf-l1``: the table leaves S in the weight 1 - S / r. The S that minimises (r - S)^2 + lambda |S| is the
      soft-thresholded residual sign(r) max(|r| - lambda / 2, 0). With it, RNMF-L1 weighs entries as HuberNMF with the
      cutoff lambda / 2 does.

    The weight 1 / |r| of ``l1``, ``l21`` and ``capped`` has no value at 0 that could be made 1. Their tip is rounded
    at the radius `floor`: weight / floor is 1 / |r| up to a relative error of (floor / r)^2 / 2.

    References
    ----------
    Section 2.2 and Table 1 of the paper.

    Examples
    --------
    >>> robustness_weight("truncated-cauchy", [0.0, 1.0, 3.0, 10.0])
    array([1. , 0.5, 0.1, 0. ])
    >>> robustness_weight("huber", [0.0, -1.0, 4.0], cutoff=2.0)
    array([1. , 1. , 0.5])
    """
    name = _ALIASES.get(model, model)
    if name not in ROBUSTNESS_WEIGHTS:
        accepted = ", ".join(repr(known) for known in (*ROBUSTNESS_WEIGHTS, *_ALIASES))
        raise ValueError(f"model must be one of {accepted}; got {model!r}.")
    weight = ROBUSTNESS_WEIGHTS[name]
    has = [key for key, value in inspect.signature(weight).parameters.items() if value.kind is value.KEYWORD_ONLY]
    for key in parameters:
        if key not in has:
            raise TypeError(f"The model {model!r} has the parameters {has}; got {key!r}.")
    _require_positive(**parameters)
    with np.errstate(over="ignore"):  # the square of a huge residual is infinite, and its weight 0, as it should be
        return weight(np.abs(np.asarray(residual, dtype=np.float64)), **parameters)


# Figure 1: the losses of section 2.


def e2(x: ArrayLike) -> Array:
    """Return x^2, the loss of NMF.

    Parameters
    ----------
    x : array-like
        Residuals.

    Returns
    -------
    ndarray
        The loss of each residual.

    Examples
    --------
    >>> e2([-2.0, 3.0])
    array([4., 9.])
    """
    return np.asarray(x, dtype=np.float64) ** 2


def e1(x: ArrayLike) -> Array:
    """Return |x|, the loss of L1-NMF.

    Parameters
    ----------
    x : array-like
        Residuals.

    Returns
    -------
    ndarray
        The loss of each residual.

    Examples
    --------
    >>> e1([-2.0, 3.0])
    array([2., 3.])
    """
    return np.abs(np.asarray(x, dtype=np.float64))


def e0(x: ArrayLike) -> Array:
    """Return 0 where x is 0, else 1: the loss of the L0 norm.

    Parameters
    ----------
    x : array-like
        Residuals.

    Returns
    -------
    ndarray
        The loss of each residual.

    Examples
    --------
    >>> e0([-2.0, 0.0, 1e-9])
    array([1., 0., 1.])
    """
    return np.where(np.asarray(x, dtype=np.float64) == 0, 0.0, 1.0)


def hypersurface(x: ArrayLike) -> Array:
    """Return sqrt(1 + x^2) - 1, the hypersurface cost.

    Parameters
    ----------
    x : array-like
        Residuals.

    Returns
    -------
    ndarray
        The loss of each residual.

    Examples
    --------
    >>> hypersurface([0.0, -0.75])
    array([0.  , 0.25])
    """
    x = np.abs(np.asarray(x, dtype=np.float64))
    with np.errstate(invalid="ignore"):  # infinity / infinity, replaced below
        near = x * (x / (1 + np.hypot(1, x)))  # without the cancellation of sqrt(1 + x^2) - 1 near zero
    return np.where(np.isinf(x), x, near)


def cauchy(x: ArrayLike, gamma: float) -> Array:
    """Return ln(1 + (x / gamma)^2), the Cauchy loss.

    Parameters
    ----------
    x : array-like
        Residuals.
    gamma : float
        Scale of the loss, positive.

    Returns
    -------
    ndarray
        The loss of each residual.

    Examples
    --------
    >>> cauchy([0.0, 2.0], gamma=2.0)
    array([0.        , 0.69314718])
    """
    _require_positive(gamma=gamma)
    return _log_one_plus_square(np.abs(np.asarray(x, dtype=np.float64)) / gamma)


def truncated_cauchy(x: ArrayLike, gamma: float, epsilon: float) -> Array:
    """Return the Cauchy loss of x, constant beyond |x| = epsilon: eq. (2-1).

    Eq. (2-4) writes the same loss with sigma = (epsilon / gamma)^2.

    Parameters
    ----------
    x : array-like
        Residuals.
    gamma : float
        Scale of the loss, positive.
    epsilon : float
        Where the loss becomes constant, positive.

    Returns
    -------
    ndarray
        The loss of each residual.

    Examples
    --------
    >>> truncated_cauchy([1.0, 5.0, 6.0], gamma=1.0, epsilon=5.0)
    array([0.69314718, 3.25809654, 3.25809654])
    """
    _require_positive(epsilon=epsilon)
    return cauchy(np.minimum(np.abs(np.asarray(x, dtype=np.float64)), epsilon), gamma)


def normalised_truncated_cauchy(x: ArrayLike, gamma: float, epsilon: float) -> Array:
    """Return the truncated Cauchy loss divided by its largest value, which tends to `e0` as gamma falls.

    The loss itself grows without bound as gamma falls; only its shape tends to the L0 norm, and slowly: for
    gamma << |x| <= epsilon,

        1 - e_t(x) / ln(1 + (epsilon / gamma)^2)  is about  ln(epsilon / |x|) / ln(epsilon / gamma).

    Parameters
    ----------
    x : array-like
        Residuals.
    gamma : float
        Scale of the loss, positive.
    epsilon : float
        Where the loss becomes constant, positive.

    Returns
    -------
    ndarray
        The loss of each residual.

    Examples
    --------
    >>> [float(normalised_truncated_cauchy(1.0, gamma, epsilon=5.0).round(3)) for gamma in (1.0, 1e-3, 1e-99)]
    [0.213, 0.811, 0.993]
    """
    return truncated_cauchy(x, gamma, epsilon) / cauchy(epsilon, gamma)


def _log_one_plus_square(ratio: Array) -> Array:
    """Return ln(1 + ratio^2) for ratio >= 0, also where the square overflows."""
    big = 1e8  # from here on 1 + ratio^2 and ratio^2 are the same number in double precision
    return np.log1p(np.minimum(ratio, big) ** 2) + 2 * np.log(np.maximum(ratio, big) / big)


# Lemma 1 and Theorem 1: how well it generalises.


class OptimalBound(NamedTuple):
    """The smallest value of a bound over epsilon, and the epsilon that gives it.

    Parameters
    ----------
    bound : float
        The bound.
    epsilon : float
        Radius of the covering.
    """

    bound: float
    epsilon: float


def code_norm_bound(alpha: float, sigma: float, gamma: float) -> float:
    """Return the bound of Lemma 1 on the norm of a code, 2 alpha + sigma alpha / (sqrt(2) gamma).

    Parameters
    ----------
    alpha : float
        Largest norm of a sample: ||v|| <= alpha.
    sigma : float
        Truncation parameter.
    gamma : float
        Scale of the Cauchy loss.

    Returns
    -------
    float
        The bound.

    Notes
    -----
    The lemma assumes basis vectors of norm 1 and bounded samples. Two reservations about it as printed:

    - *Units.* alpha and gamma are in the unit of the data. If sigma is the pure number of eq. (2-4), the two terms
      have different units, and by counting in ever smaller units the bound could be brought down to 2 alpha. They
      agree if sigma stands for a truncation in the unit of the data, like epsilon of eq. (2-1).
    - *Truncated entries.* A code that minimises the loss may give up an entry for good, and nothing holds it back
      then. Let W have the one column (cos t, sin t / sqrt(2), sin t / sqrt(2)), and v = (0, a, a), where a > gamma
      sqrt(sigma) (1 + tan(t) / sqrt(2)). No code fits the first entry and one of the others; giving up the first
      costs ln(1 + sigma), giving up the others 2 ln(1 + sigma). The minimiser is h = ||v|| / sin(t), which for small
      t exceeds any bound. Where the minimiser truncates no entry, ||h|| <= alpha (1 + sqrt(sigma / ln(1 + sigma)))
      holds.

    References
    ----------
    Lemma 1 of the paper.

    Examples
    --------
    >>> round(code_norm_bound(alpha=1.0, sigma=4.0, gamma=2.0), 6)
    3.414214
    """
    _require_positive(alpha=alpha, sigma=sigma, gamma=gamma)
    return 2 * alpha + sigma * alpha / (math.sqrt(2) * gamma)


def generalization_bound(
    n: float,
    *,
    m: int,
    r: int,
    alpha: float,
    sigma: float,
    gamma: float,
    delta: float,
    epsilon: float | None = None,
    reading: Reading = "printed",
) -> float:
    """Return the bound of Theorem 1 on the excess risk of the basis learned from n samples.

    With probability at least 1 - delta, R(f_Wn) - R(f_W*) is at most

        2 epsilon + (alpha^2 / gamma^2) sqrt((m r ln(K / epsilon) + ln(2 / delta)) / (2 n)),

        K = 4^(1/m) sqrt(pi) C m r / (2 Gamma(m/2)^(1/m)),

        C = (8 r + 2) alpha^2 / q^2 + sigma alpha^2 / (sqrt(2) q^3) + 2 r sigma^2 alpha^2 / q^4,

    for every epsilon > 0, where q is r as printed, and gamma in the consistent reading.

    Parameters
    ----------
    n : float
        Number of samples, independent and identically distributed; a float, so that limits can be taken.
    m, r : int
        Numbers of features and of components.
    alpha : float
        Largest norm of a sample.
    sigma, gamma : float
        Truncation and scale of the loss.
    delta : float
        Probability that the bound fails, in (0, 1).
    epsilon : float, optional
        Radius of the covering. Without it, 1 / n: the last line of the theorem.
    reading : {"printed", "consistent"}
        What stands in the denominators of C; see the notes.

    Returns
    -------
    float
        The bound.

    Notes
    -----
    *Where the terms come from.* f_W lies between 0 and its value at h = 0, which is at most sum_j ln(1 + (v_j /
    gamma)^2) <= alpha^2 / gamma^2: the range in Hoeffding's inequality. 2 epsilon pays for replacing W by the nearest
    of (K / epsilon)^(m r) matrices, the covering number; 4 pi^(m/2) / Gamma(m/2) in it is twice the area of the unit
    sphere that the basis vectors lie on. C says how fast f_W changes with W. A covering has at least one element, so
    a negative ln(K / epsilon) counts as 0.

    *Denominators of C.* They are printed as r^2, r^3, r^4; all signs are that gamma was meant. With gamma, and b the
    bound of Lemma 1, the terms 2 alpha^2 / gamma^2 + sigma alpha^2 / (sqrt(2) gamma^3) are exactly alpha b / gamma^2,
    and the two others are at least r b^2 / gamma^2, by (x + y)^2 <= 2 x^2 + 2 y^2. This is what a proof needs: for
    codes of norm b, half of ||v - W h||^2 / gamma^2 changes by at most (alpha b + sqrt(r) b^2) / gamma^2 times the
    Frobenius norm of the change of W. With gamma, C depends only on ratios to gamma, as it must for a loss without a
    unit (sigma in the unit of the data, as for Lemma 1); with r it has a unit inside a logarithm, and 2 r / r^4
    stands uncancelled. The default is the printed form. Either changes a logarithm only, so both have the same limit
    (`decay_limit`).

    *Other constants.* By the same inequality 2 r sigma^2 could be r sigma^2; the larger constant does no harm. The
    text bounds the excess risk by 2 sup |R - R_n|, where R is the mean of f_W; the first line of the theorem has sup
    without the 2, for half of f_W. As alpha^2 / gamma^2 is the range of f_W itself, the right-hand side fits sup for
    f_W, or 2 sup for half of it; the excess risk in the text's own R is then bounded by twice the value returned. And
    C rests on Lemma 1, which fails for codes that give up entries; see `code_norm_bound`.

    References
    ----------
    Theorem 1 of the paper.

    Examples
    --------
    >>> setting = dict(m=16, r=2, alpha=1.0, sigma=4.0, gamma=0.5, delta=0.05)
    >>> [round(generalization_bound(n, **setting), 3) for n in (100, 10_000, 1_000_000)]
    [5.029, 0.607, 0.07]
    """
    theorem = _Theorem(n, m, r, alpha, sigma, gamma, delta, reading)
    epsilon = 1 / n if epsilon is None else epsilon
    _require_positive(epsilon=epsilon)
    return theorem.bound(math.log(epsilon))


def optimal_generalization_bound(n: float, **setting: Any) -> OptimalBound:
    """Return the least bound of Theorem 1 over epsilon: its second line, with the epsilon that attains it.

    `setting` holds the other parameters of `generalization_bound`, except epsilon; sigma must be finite.

    Parameters
    ----------
    n : float
        Number of samples.
    **setting
        Others of `generalization_bound`, except epsilon.

    Returns
    -------
    OptimalBound
        The bound and its epsilon.

    Examples
    --------
    >>> setting = dict(m=16, r=2, alpha=1.0, sigma=4.0, gamma=0.5, delta=0.05)
    >>> best = optimal_generalization_bound(100, **setting)
    >>> round(best.bound, 3), round(best.epsilon, 3)
    (4.561, 0.15)
    """
    theorem = _Theorem(n, **setting)
    bound, log_k = theorem.bound, theorem.log_covering_constant
    if not math.isfinite(log_k):
        raise ValueError(
            f"sigma must be finite: the bound is infinite for every epsilon otherwise; got {theorem.sigma!r}."
        )
    # With S under the root, the slope is zero where epsilon sqrt(S) = alpha^2 m r / (8 n gamma^2). epsilon sqrt(S)
    # rises up to `peak`, where ln(K / epsilon) + ln(2 / delta) / (m r) = 1/2, so below it the bound has one minimum.
    # Above it the bound may fall once more, to where the covering number is 1.
    peak = min(log_k, log_k + math.log(2 / theorem.delta) / theorem.dimension - 0.5)
    useless = math.log(bound(-math.log(n)) / 2)  # from here on 2 epsilon alone exceeds the bound for 1 / n
    flat = math.log(theorem.loss_range * theorem.dimension / (8 * n))
    lowest = min(peak, flat, -math.log(n)) - 20  # below the zero of the slope for any S < e^40
    found = minimize_scalar(bound, bounds=(lowest, min(peak, useless)), method="bounded", options={"xatol": 1e-9})
    best = min((float(found.x), min(log_k, useless), -math.log(n)), key=bound)
    return OptimalBound(bound(best), math.exp(best))


def decay_ratio(n: float, **setting: Any) -> float:
    """Return the bound of Theorem 1 divided by sqrt(ln(n) / n), the rate of Remark 1.

    It tends to `decay_limit` as n grows, but only as 1 + constant / ln(n) does. `setting` holds the other parameters
    of `generalization_bound`, except epsilon, which is 1 / n; n must be above 1.

    Parameters
    ----------
    n : float
        Number of samples.
    **setting
        Others of `generalization_bound`, except epsilon.

    Returns
    -------
    float
        The ratio.

    Examples
    --------
    >>> setting = dict(m=16, r=2, alpha=1.0, sigma=4.0, gamma=0.5, delta=0.05)
    >>> [round(decay_ratio(n, **setting), 2) for n in (1e2, 1e10, 1e100, 1e300)]
    [23.43, 17.71, 16.18, 16.06]
    """
    if not n > 1:
        raise ValueError(f"n must be above 1, where ln(n) / n is positive; got {n!r}.")
    return generalization_bound(n, epsilon=None, **setting) / math.sqrt(math.log(n) / n)


def decay_limit(*, m: int, r: int, alpha: float, gamma: float) -> float:
    """Return the limit of `decay_ratio` for n to infinity, (alpha^2 / gamma^2) sqrt(m r / 2).

    Neither sigma nor delta matters in the end, nor the reading of the theorem.

    Parameters
    ----------
    m, r : int
        Numbers of features and of components.
    alpha : float
        Largest norm of a sample.
    gamma : float
        Scale of the loss, positive.

    Returns
    -------
    float
        The limit.

    Examples
    --------
    >>> decay_limit(m=16, r=2, alpha=1.0, gamma=0.5)
    16.0
    """
    _require_counts(m=m, r=r)
    _require_positive(alpha=alpha, gamma=gamma)
    return (alpha / gamma) ** 2 * math.sqrt(m * r / 2)


@dataclass(frozen=True)
class _Theorem:
    """Theorem 1 in one setting; the fields are the parameters of `generalization_bound`."""

    n: float
    m: int
    r: int
    alpha: float
    sigma: float
    gamma: float
    delta: float
    reading: Reading = "printed"

    def __post_init__(self) -> None:
        if not 1 <= self.n < math.inf:
            raise ValueError(f"n must be a finite number of samples, at least 1; got {self.n!r}.")
        _require_counts(m=self.m, r=self.r)
        _require_positive(alpha=self.alpha, sigma=self.sigma, gamma=self.gamma)
        if math.isinf(self.alpha) or math.isinf(self.gamma):
            raise ValueError(f"alpha and gamma must be finite; got {self.alpha!r} and {self.gamma!r}.")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be a probability strictly between 0 and 1; got {self.delta!r}.")
        if self.reading not in ("printed", "consistent"):
            raise ValueError(f"reading must be 'printed' or 'consistent'; got {self.reading!r}.")

    @property
    def dimension(self) -> int:
        return self.m * self.r

    @property
    def loss_range(self) -> float:
        return (self.alpha / self.gamma) ** 2

    @property
    def log_covering_constant(self) -> float:
        """Return ln K, by log-gamma: Gamma(m / 2) overflows from m = 344 on."""
        m, r, log_sigma = self.m, self.r, math.log(self.sigma)
        log_q = math.log(r if self.reading == "printed" else self.gamma)
        log_terms = (
            math.log(8 * r + 2) - 2 * log_q,
            log_sigma - math.log(2) / 2 - 3 * log_q,
            math.log(2 * r) + 2 * log_sigma - 4 * log_q,
        )
        log_c = float(np.logaddexp.reduce(log_terms)) + 2 * math.log(self.alpha)
        volume = (math.log(4) - math.lgamma(m / 2)) / m + math.log(math.pi) / 2
        return volume + log_c + math.log(m * r / 2)

    def bound(self, log_epsilon: float) -> float:
        """Return the expression of the theorem under its minimum."""
        log_covering_number = self.dimension * max(self.log_covering_constant - log_epsilon, 0.0)
        root = math.sqrt((log_covering_number + math.log(2 / self.delta)) / (2 * self.n))
        return 2 * math.exp(log_epsilon) + self.loss_range * root


def _require_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, Integral) or count < 1:
            raise ValueError(f"{name} must be a positive integer; got {count!r}.")


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive; got {value!r}.")
