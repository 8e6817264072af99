"""What an engine has to know to make iterations ahead: where a fit stands, and how it goes on from there."""

from typing import Any, NamedTuple


class Course(NamedTuple):
    """How scale, cut and momentum follow from what held-out residuals tell after an iteration.

    With x the width of clean residuals and s their share, or x the median of residuals and s = 1, the scale is
    factor * x * s**power, and the cut factor * x / s**power. The width never rises. While the loss of the residuals
    falls, momentum grows, and when it rises, begins anew.
    """

    by_median: bool = False
    scale: tuple[float, float] = (0.0, 0.0)
    """Factor and power; with a factor of 0 the scale stays."""
    cut: tuple[float, float] = (0.0, 0.0)
    """The same for the cut."""
    lowest_width: float = 0.0
    lowest_scale: float = 0.0
    first_momentum: float = 0.0
    growth: float = 1.0
    """Factor by which momentum grows."""
    most_momentum: float = 0.0

    @property
    def numbers(self) -> list[float]:
        """All of it, as numbers."""
        by_median, scale, cut, *others = self
        return [float(by_median), *scale, *cut, *others]


class Stand(NamedTuple):
    """Where a fit stands before an iteration."""

    factors: list[Any]
    """W and blocks of codes,"""
    last: list[Any]
    """and what they were before the last iteration."""
    momentum: float
    width: float
    scale: float
    cut: Any
    """(m,) or None."""
    best: Any
    """Losses of held-out residuals of the best point so far, (k,)."""
    loss: float
    """Their mean for this point."""
    judged_at: float
    """Scale of these losses."""
