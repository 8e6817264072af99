"""What every solver looks like."""

from typing import Protocol, runtime_checkable

from robustnmf.engines.protocol import Engine
from robustnmf.model.losses import Loss
from robustnmf.model.weighting import Weighting
from robustnmf.solvers.problem import Problem
from robustnmf.utils.arrays import Array


@runtime_checkable
class Solver(Protocol):
    """Improves the solutions of a batch of weighted least-squares problems; serves every loss."""

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        """Return better solutions than `X0`, shape (B, r), non-negative, a new array.

        No objective rises. Every problem is solved by itself: neither the other problems of the batch nor their number
        may change its solution. A problem whose weights are all zero keeps its start.
        """
        ...


@runtime_checkable
class LossSolver(Protocol):
    """Lowers a loss itself instead of its quadratic majoriser; the way of some published models."""

    def accepts(self, loss: Loss) -> bool:
        """Return whether this solver can lower that loss."""
        ...

    def improve(self, Y: Array, M: Array | None, X: Array, A: Array, weighting: Weighting, engine: Engine) -> Array:
        """Return X (B, r) with a lower loss of Y - X A' in every row, as a new array.

        Outliers have been taken out of the weights M: `weighting` is that of the loss alone.
        """
        ...
