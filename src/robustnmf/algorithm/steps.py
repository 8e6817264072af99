"""The steps of a fit that works in stages, and what surrounds them: the history, the callback and the checkpoint.

A stage is a generator. It yields what it wants done, a `Compute`, `Measure` or `Report`, and is sent the answer; it
returns the state that it leads to. `Driver` answers: a step that a checkpoint holds is not made again. So the stages
know nothing of checkpoints, callbacks and clocks.
"""

from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from robustnmf.algorithm.checkpoint import Journal
from robustnmf.algorithm.halfquadratic import Callback, Iteration
from robustnmf.algorithm.holdout import Point

T = TypeVar("T")


class Compute(NamedTuple):
    """The factors of a point, computed from those of others."""

    make: Callable[[], Point]
    begin: tuple[Point, ...] = ()


class Measure(NamedTuple):
    """A number or an array that is computed from a point, or several by name; those of a checkpoint must be valid."""

    make: Callable[[], Any]
    is_valid: Callable[[Any], bool]
    begin: Point
    name: str | None = None
    """The name in checkpoints; None if the step makes several things that have names."""


class Report(NamedTuple):
    """An iteration that has been made."""

    scale: float
    outlier_share: float
    objective: float
    change: float
    needed: tuple[Point, ...] = ()
    """Points that the fit may come back to."""


class Driver:
    """Runs stages, keeps the history and the clock, asks the callback, and saves the checkpoint.

    Parameters
    ----------
    callback : function or None
        It is told of every iteration once, and returns True to stop.
    journal : Journal or None
        Steps that a checkpoint holds, and where new ones go.
    """

    def __init__(self, callback: Callback | None, journal: Journal | None) -> None:
        self.callback, self.journal = callback, journal
        self.earlier = [] if journal is None else journal.seconds
        """When the iterations that a checkpoint holds were made."""
        self.begin = perf_counter() - (self.earlier[-1] if self.earlier else 0.0)
        self.history: list[Iteration] = []

    def run(self, stages: Generator[Any, Any, T]) -> T:
        """Return what the stages return."""
        answer: Any = None
        while True:
            try:
                step = stages.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Report):
                answer = self._report(step)
            elif self.journal is None:
                answer = step.make()
            elif isinstance(step, Compute):
                answer = self.journal.point(step.make, *step.begin)
            else:
                answer = self.journal.values(*step)

    def _report(self, made: Report) -> bool:
        """Return whether the callback wants to stop; the callback has already seen iterations of a checkpoint."""
        number = len(self.history)
        is_earlier = number < len(self.earlier)
        seconds = self.earlier[number] if is_earlier else perf_counter() - self.begin
        self.history.append(Iteration(number, made.objective, made.scale, made.outlier_share, seconds, made.change))
        stops = not is_earlier and self.callback is not None and bool(self.callback(self.history[-1]))
        if made.needed and self.journal is not None:
            self.journal.save_if_due(made.needed, [iteration.seconds for iteration in self.history])
        return stops
