"""What every solver of weighted non-negative least squares looks like."""

from typing import ClassVar, Protocol, runtime_checkable

from robustnmf.arrays import Array
from robustnmf.engines.protocol import Engine
from robustnmf.solvers.problem import Problem


@runtime_checkable
class Solver(Protocol):
    """Improves the solutions of a batch of problems without raising any of their objectives."""

    name: ClassVar[str]

    def solve(self, problem: Problem, X0: Array, engine: Engine) -> Array:
        """Return better solutions than `X0`, shape (B, r), non-negative, a new array.

        Every problem is solved by itself: neither the other problems of the batch nor their number may change
        its solution. A problem whose weights are all zero keeps its start.
        """
        ...
