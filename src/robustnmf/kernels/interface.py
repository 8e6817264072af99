"""Weightings in the form that kernels understand: a number for the loss, and arrays."""

from math import inf
from typing import Any, NamedTuple

# How kernels compute the weight of a ratio; `robustnmf.model.losses` has the formulas.
SQUARED, CAUCHY, HUBER, ROUNDED, CORRENTROPY = range(5)


class Form(NamedTuple):
    """What a rule says of the loss."""

    form: int
    constant: float = 0.0
    reach: float = inf
    """Ratio of a residual to the scale beyond which the weight is zero."""


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
    """Return what kernels have to know of a loss, its method ``kernel_form``; None if it has none.

    A subclass may compute something else than its base, so the method counts only if the class itself defines it.
    """
    describe = vars(type(loss)).get("kernel_form")
    form: Form | None = None if describe is None else describe(loss)
    return form
