"""Weightings in the form that kernels understand: a number for the loss, and arrays."""

from collections.abc import Callable
from math import inf, sqrt
from typing import Any, NamedTuple

from robustnmf.losses import Absolute, Cauchy, Correntropy, Huber, Hypersurface, Squared, Truncated

# How kernels compute the weight of a ratio; `robustnmf.losses` has the formulas.
SQUARED, CAUCHY, HUBER, ROUNDED, CORRENTROPY = range(5)


class Form(NamedTuple):
    """What a rule says of the loss."""

    form: int
    constant: float
    reach: float


class Rule(NamedTuple):
    """How residuals become weights."""

    form: int
    constant: float
    scale: Any
    """(B,), or (1,) for all rows."""
    cut: Any
    """Magnitudes beyond which the weight is zero, (p,), or (1,) for all columns,"""
    reach: float
    """and ratios to the scale."""

    @property
    def loss(self) -> Form:
        """What it says of the loss."""
        return Form(self.form, self.constant, self.reach)


def form_of(loss: Any) -> Form | None:
    """Return the form of a loss, or None if kernels do not know it."""
    cap = inf
    if isinstance(loss, Truncated):
        loss, cap = loss.loss, loss.cap
    if type(loss) not in _FORMS:
        return None
    return Form(*_FORMS[type(loss)](loss), sqrt(cap))


_FORMS: dict[type, Callable[[Any], tuple[int, float]]] = {
    Squared: lambda loss: (SQUARED, 0.0),
    Cauchy: lambda loss: (CAUCHY, 0.0),
    Huber: lambda loss: (HUBER, 0.0),
    Absolute: lambda loss: (ROUNDED, loss.floor**2),
    Hypersurface: lambda loss: (ROUNDED, 1.0),
    Correntropy: lambda loss: (CORRENTROPY, 0.0),
}
