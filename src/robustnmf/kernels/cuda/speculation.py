"""Iterations that a GPU makes ahead, by itself, while the host looks at those before.

After an iteration the host decides by a few numbers how to go on. To fetch them, decide and launch what follows takes
longer than an iteration of small data. But nearly always it decides what a simple rule says, the `Course` of the stage.
So the GPU follows that rule, several iterations at a time, and keeps what each leads to. The host goes through them one
by one, and as long as it decides the same, finds the next one made. Else what was made ahead is dropped.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import inf, isclose
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from robustnmf.kernels.cuda.functions import FUSED
from robustnmf.kernels.cuda.graphs import fetch_later, record
from robustnmf.kernels.cuda.statistics import N_NUMBERS, Statistics
from robustnmf.kernels.cuda.steps import apart, joined
from robustnmf.kernels.interface import Rule
from robustnmf.kernels.schedule_policy import Course, Stand

# Iterations that are launched, and later looked at, together; and how often as many are under way.
AT_ONCE, UNDER_WAY = 4, 2
N_COURSE = len(Course().numbers)

Sweep = Callable[..., tuple[Any, list[Any], list[Any]]]

_done: set[Hashable] = set()
"""Kinds of iterations that this process has made."""


@triton.jit
def _decide(found, state, course, step, row, N_NUMBERS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Decide how to go on, and write down what was found and what led there; one program.

    `found` holds width, share, plain and median of held-out residuals, and their mean loss; `state` momentum, width,
    scale, cut and loss; `course` whether it goes by the median, factor and power of the scale, and of the cut, lowest
    width and scale, and of momentum the first, the growth and the most; `step` what the next iteration reads, in single
    precision.
    """
    i = tl.arange(0, N_NUMBERS)
    tl.store(row + i, tl.load(found + i))
    momentum, last_width, scale, cut = tl.load(state), tl.load(state + 1), tl.load(state + 2), tl.load(state + 3)
    tl.store(row + N_NUMBERS, momentum)
    tl.store(row + N_NUMBERS + 1, scale)
    by_median = tl.load(course) > 0
    width = tl.minimum(tl.maximum(tl.load(found), tl.load(course + 5)), last_width)
    size = tl.where(by_median, tl.load(found + 3), width)
    log_share = tl.where(by_median, 0.0, tl.log(tl.load(found + 1)))
    factor, power = tl.load(course + 1), tl.load(course + 2)
    wanted = tl.maximum(factor * size * tl.exp(power * log_share), tl.load(course + 6))
    scale = tl.where(factor > 0, wanted, scale)
    factor, power = tl.load(course + 3), tl.load(course + 4)
    cut = tl.where(factor > 0, factor * size / tl.exp(power * log_share), cut)
    loss = tl.load(found + 4)
    grown = tl.minimum(tl.load(course + 8) * momentum, tl.load(course + 9))
    momentum = tl.where(loss < tl.load(state + 4), grown, tl.load(course + 7))
    tl.store(state, momentum)
    tl.store(state + 1, width)
    tl.store(state + 2, scale)
    tl.store(state + 3, cut)
    tl.store(state + 4, loss)
    tl.store(step, (1.0 + momentum).to(tl.float32))
    tl.store(step + 1, scale.to(tl.float32))
    tl.store(step + 2, cut.to(tl.float32))


class _Made(NamedTuple):
    """An iteration that was made ahead."""

    W: Any
    Ht: list[Any]
    predictions: Any
    losses: Any
    against: Any = None
    """The losses it was compared with."""
    momentum: float = 0.0
    scale: float = 0.0

    def suits(self, stand: Stand) -> bool:
        """Return whether it is the iteration that a fit wants, which stands where it began."""
        same = self.against is stand.best and self.momentum == stand.momentum
        return same and isclose(self.scale, stand.scale, rel_tol=1e-9)


class Ahead:
    """Iterations of one kind, on the same data.

    Parameters
    ----------
    sweep : function
        Returns W, blocks of codes, and a list with the predictions of held-out entries, for a rule and the factors.
    rule : Rule
        Which has another scale and cut in every iteration.
    statistics : Statistics
        Of the held-out entries.
    like : list of arrays
        W and blocks of codes, for their shapes.
    kind : hashable
        What has been done once in this process, with any data, can be recorded.
    """

    def __init__(self, sweep: Sweep, rule: Rule, statistics: Statistics, like: list[Any], kind: Hashable) -> None:
        self.sweep, self.rule, self.statistics, self.like, self.kind = sweep, rule, statistics, like, kind
        device = like[0].device
        self.now, self.before = joined(like), joined(like)
        self.best = torch.empty_like(statistics.nothing)
        self.state, self.judged_at, self.course, self.row = (
            torch.empty(size, dtype=torch.float64, device=device) for size in (5, 1, N_COURSE, N_NUMBERS + 2)
        )
        self.step = torch.empty(3, device=device)
        self.graph: Any = None
        self.outputs: Any = None
        self.under_way: deque[tuple[list[_Made], Callable[[], list[list[float]]]]] = deque()
        """Iterations that were launched together, and what waits for their numbers."""
        self.made: deque[_Made] = deque()
        """Those whose numbers are here."""
        self.left = 0
        """Iterations that may still be launched."""
        self.of: tuple[Any, ...] = (None,)
        """The basis that the next one starts from, the course, and the scale of the judge's loss."""
        self.against: Any = None
        """Losses that the next numbers compare with."""

    def next(self, stand: Stand, course: Course, most: int) -> tuple[Any, list[Any], Any]:
        """Return W, blocks of codes and predictions after the next iteration, of which so many may follow."""
        made = self._first() if self._goes_on(stand, course) else None
        if made is None or not made.suits(stand):
            self._begin(stand, course, most)
            made = self._first()
        assert made is not None
        self.made.popleft()
        self.of = (made.W, course, stand.judged_at)
        return made.W, made.Ht, made.predictions

    def _goes_on(self, stand: Stand, course: Course) -> bool:
        """Return whether the fit stands where the last iteration led, on the same course."""
        W, *others = self.of
        return W is stand.factors[0] and others == [course, stand.judged_at]

    def _begin(self, stand: Stand, course: Course, most: int) -> None:
        """Drop what was made ahead, and begin anew from where the fit stands."""
        self.under_way.clear()
        self.made.clear()
        joined(stand.factors, out=self.now)
        joined(stand.last, out=self.before)
        self.best.copy_(stand.best)
        cut = inf if stand.cut is None else float(stand.cut[0])
        _put([stand.momentum, stand.width, stand.scale, cut, stand.loss], self.state)
        _put([1 + stand.momentum, stand.scale, cut], self.step)
        _put([stand.judged_at], self.judged_at)
        _put(course.numbers, self.course)
        self.of, self.against, self.left = (stand.factors[0], course, stand.judged_at), stand.best, most

    def _first(self) -> _Made | None:
        """Return the first iteration that was made ahead, None if there is none."""
        if not self.made:
            while len(self.under_way) < UNDER_WAY and self.left:
                self._launch(min(AT_ONCE, self.left))
            if self.under_way:
                self._fetch(*self.under_way.popleft())
        return self.made[0] if self.made else None

    def _launch(self, times: int) -> None:
        """Launch some iterations, and the copy of their numbers to the host."""
        rows = torch.empty((times, len(self.row)), dtype=self.row.dtype, device=self.row.device)
        self.under_way.append(([self._make(row) for row in rows], fetch_later(rows)))
        self.left -= times

    def _make(self, row: Any) -> _Made:
        """Make one iteration; its numbers go into the row."""
        if self.graph is None and self.kind in _done and self.now.is_cuda:
            self.graph, self.outputs = record(self._iterate)
        if self.graph is None:
            self.outputs = self._iterate()
            _done.add(self.kind)
        else:
            self.graph.replay()
        factors, losses = self.outputs
        W, *Ht, predictions = apart(joined(factors), factors)
        row.copy_(self.row)
        return _Made(W, Ht, predictions, losses.clone())

    def _iterate(self) -> tuple[list[Any], Any]:
        """Make one iteration from where the last one led, and decide how to go on."""
        scale, cut = self.step[1:2], self.step[2:3]
        W, *Ht = apart(torch.lerp(self.before, self.now, self.step[0]).clamp_(min=0), self.like)
        W, Ht, (predictions,) = self.sweep(self.rule._replace(scale=scale, cut=cut), W, Ht)
        losses, found = self.statistics.measure(predictions, self.best, self.judged_at, cut)
        self.before.copy_(self.now)
        joined([W, *Ht], out=self.now)
        torch.where(found[5] < 0, losses, self.best, out=self.best)
        _decide[(1,)](found, self.state, self.course, self.step, self.row, N_NUMBERS=N_NUMBERS, **FUSED)
        return [W, *Ht, predictions], losses

    def _fetch(self, made: list[_Made], numbers: Callable[[], list[list[float]]]) -> None:
        """Wait for the numbers of some iterations."""
        self.statistics.known.clear()
        for one, (*found, momentum, scale) in zip(made, numbers(), strict=True):
            self.made.append(one._replace(against=self.against, momentum=momentum, scale=scale))
            self.statistics.know(one.predictions, one.losses, self.against, self.of[-1], found)
            if found[5] < 0:
                self.against = one.losses


def _put(numbers: Sequence[float], into: Any) -> None:
    """Write numbers of the host into an array, behind what is under way."""
    into.copy_(torch.tensor(numbers, dtype=into.dtype), non_blocking=True)
