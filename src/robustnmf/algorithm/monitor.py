"""The validation monitor: which point to keep, and when to stop, by entries that the fit does not see."""

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

from robustnmf.algorithm.holdout import HeldOut, Point
from robustnmf.utils.arrays import Array

# Iterations over which the change of the loss is averaged.
SMOOTHED = 10
# A point is kept if it is worse than the best by less than this part of what has been gained, or one standard error.
SLIGHT = 0.05


@dataclass(frozen=True)
class Monitor:
    """How well points predict the entries held out.

    A point's loss is Cauchy's, at a fixed scale. Kept is the latest point that is no worse than the best by more than
    one standard error or a twentieth of what has been gained. The error is that of the difference, entry by entry, so
    that what both miss alike does not count.
    """

    held: HeldOut
    scale: float
    """Scale of the loss."""
    best: Array
    """Losses of the best point, (k,)."""
    kept: Point
    path: tuple[float, ...]
    """Mean loss of each point."""
    lowest: tuple[float, ...]
    """Lowest mean loss up to each point."""
    unimproved: int = 0
    """Points since the best."""

    @classmethod
    def begin(cls, held: HeldOut, scale: float, start: Point) -> "Monitor":
        """Return the monitor that has seen one point."""
        best = held.losses(start, scale)
        loss = held.mean(best)
        return cls(held, scale, best, start, (loss,), (loss,))

    def see(self, point: Point, threshold: Any = inf) -> tuple["Monitor", float]:
        """Return the monitor after a point, and the share of its residuals that are beyond a threshold."""
        losses, found = self.held.compare(point, self.best, self.scale, threshold)
        seen = replace(
            self,
            path=(*self.path, found.loss),
            lowest=(*self.lowest, min(self.lowest[-1], found.loss)),
            unimproved=self.unimproved + 1,
        )
        if found.excess < 0:
            return replace(seen, best=losses, kept=point, unimproved=0), found.share
        error = found.deviation / sqrt(max(len(losses), 1))
        if not self.held.hidden or found.excess <= max(error, SLIGHT * (self.path[0] - self.lowest_loss)):
            seen = replace(seen, kept=point)
        return seen, found.share

    @property
    def lowest_loss(self) -> float:
        """Mean loss of the best point."""
        return self.path[-1 - self.unimproved]

    @property
    def is_falling(self) -> bool:
        """Whether the last point has a lower loss than the one before."""
        return self.path[-1] < self.path[-2]

    @property
    def change(self) -> float:
        """Fall of the lowest loss per iteration, as a share of itself, over a few iterations.

        Momentum makes single changes uneven. Infinite while it is not known: at first, and where the loss has been
        rising, which may be noise that is followed, or may pass.
        """
        if len(self.lowest) <= SMOOTHED or self.unimproved >= SMOOTHED:
            return inf
        fall = (self.lowest[-1 - SMOOTHED] - self.lowest[-1]) / SMOOTHED
        return fall / self.lowest[-1] if fall > 0 and self.lowest[-1] > 0 else 0.0  # what is predicted exactly, stays
