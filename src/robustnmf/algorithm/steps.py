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


class Driver:
    """Runs stages, keeps the history and the clock, asks the callback, and saves the checkpoint.

    Parameters
    ----------
    callback : function or None
        It is told of every iteration once, and returns True to stop.
    journal : Journal
        Steps that a checkpoint holds, and where new ones go.
    """

    def __init__(self, callback: Callback | None, journal: Journal) -> None:
        self.callback, self.journal = callback, journal
        self.begin = perf_counter() - (journal.seconds[-1] if journal.seconds else 0.0)
        self.earlier = journal.seconds
        """When the iterations that a checkpoint holds were made."""
        self.history: list[Iteration] = []

    def run(self, stages: Generator[Any, Any, T]) -> T:
        """Return what the stages return."""
        answer = None
        while True:
            try:
                step = stages.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            answer = step.answer(self)


class Compute(NamedTuple):
    """The factors of a point, computed from those of others."""

    make: Callable[[], Point]
    begin: tuple[Point, ...] = ()

    def answer(self, driver: Driver) -> Point:
        """Return the point."""
        return driver.journal.point(self.make, *self.begin)


class Measure(NamedTuple):
    """Numbers and arrays that are computed from a point; those of a checkpoint must be valid."""

    make: Callable[[], dict[str, Any]]
    are_valid: Callable[[dict[str, Any]], bool]
    begin: Point

    def answer(self, driver: Driver) -> dict[str, Any]:
        """Return the numbers."""
        return driver.journal.values(self.make, self.are_valid, self.begin)


class Report(NamedTuple):
    """An iteration that has been made."""

    scale: float
    outlier_share: float
    objective: float
    change: float
    needed: tuple[Point, ...] = ()
    """Points that the fit may come back to."""

    def answer(self, driver: Driver) -> bool:
        """Return whether the callback wants to stop; the callback has already seen iterations of a checkpoint."""
        number = len(driver.history)
        is_earlier = number < len(driver.earlier)
        seconds = driver.earlier[number] if is_earlier else perf_counter() - driver.begin
        driver.history.append(Iteration(number, self.objective, self.scale, self.outlier_share, seconds, self.change))
        stops = not is_earlier and driver.callback is not None and bool(driver.callback(driver.history[-1]))
        if self.needed:
            driver.journal.save_if_due(self.needed, [iteration.seconds for iteration in driver.history])
        return stops
