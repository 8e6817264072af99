"""A whole iteration of a fit as one CUDA graph: momentum, sweep, predictions of held-out entries, and their statistics.

Launched one by one, the kernels of an iteration of small data take longer to launch than to run. The graph reads what
the host decides, momentum, scale and threshold, from three numbers on the device. Where a fit goes on from where the
last iteration led, nothing else is copied.
"""

from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any

import torch

from robustnmf.kernels.cuda.graphs import record
from robustnmf.kernels.cuda.statistics import Statistics
from robustnmf.kernels.cuda.steps import apart, joined
from robustnmf.kernels.interface import Rule

Sweep = Callable[..., tuple[Any, list[Any], list[Any]]]

_done: set[Hashable] = set()
"""Kinds of iterations that this process has made: only what was made once can be recorded."""


class Iteration:
    """An iteration of one kind, on the same data.

    Parameters
    ----------
    sweep : function
        Returns W, blocks of codes, and a list with the predictions of held-out entries, for a rule and the factors.
    rule : Rule
        Which has another scale and threshold in every iteration.
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
        self.best, self.losses = torch.empty_like(statistics.nothing), torch.empty_like(statistics.nothing)
        self.numbers = torch.empty(4, dtype=torch.float64, device=device)
        """1 + momentum, scale and threshold of the iteration, and the scale of the losses."""
        self.graph: Any = None
        self.outputs: Any = None
        self.led_to: tuple[Any, Any] = (None, None)
        """The basis that the last iteration led to, and the one before."""
        self.compared_with: Any = None
        """Losses of the best point, as the host knows them."""

    def make(
        self,
        now: Sequence[Any],
        before: Sequence[Any],
        momentum: float,
        scale: float,
        threshold: Any,
        best: Any,
        loss_scale: float,
    ) -> tuple[Any, list[Any], Any]:
        """Return W, blocks of codes and predictions after an iteration; the statistics then know what they tell.

        Parameters
        ----------
        now, before : W and blocks of codes, and what they were before the last iteration.
        threshold : (m,) or None; best : losses of the best point; loss_scale : their scale.
        """
        if self.led_to[0] is not now[0] or self.led_to[1] is not before[0]:
            joined(now, out=self.now)
            joined(before, out=self.before)
        if self.compared_with is not best:
            self.best.copy_(best)
        threshold = inf if threshold is None else threshold[:1].to(torch.float64)
        numbers = torch.tensor([1 + momentum, scale, inf, loss_scale], dtype=torch.float64, device="cpu")
        self.numbers.copy_(numbers, non_blocking=True)
        self.numbers[2:3] = threshold
        factors, losses, found = self._replay()
        W, *Ht, predictions = apart(joined(factors), factors)
        losses, numbers = losses.clone(), found.tolist()  # which waits for the device
        self.statistics.known.clear()
        self.statistics.know(predictions, losses, best, loss_scale, numbers)
        self.led_to, self.compared_with = (W, now[0]), best
        return W, Ht, predictions

    def _replay(self) -> tuple[list[Any], Any, Any]:
        """Make the iteration, as a graph if it can be one."""
        if self.graph is None and self.kind in _done and self.now.is_cuda:
            self.graph, self.outputs = record(self._iterate)
        if self.graph is None:
            self.outputs = self._iterate()
            _done.add(self.kind)
        else:
            self.graph.replay()
        outputs: tuple[list[Any], Any, Any] = self.outputs
        return outputs

    def _iterate(self) -> tuple[list[Any], Any, Any]:
        """Make one iteration from where the last one led."""
        step = self.numbers[:3].to(self.now.dtype)
        W, *Ht = apart(torch.lerp(self.before, self.now, step[0]).clamp_(min=0), self.like)
        W, Ht, (predictions,) = self.sweep(self.rule._replace(scale=step[1:2], threshold=step[2:3]), W, Ht)
        losses, found = self.statistics.measure(predictions, self.best, self.numbers[3:4], step[2:3])
        self.before.copy_(self.now)
        joined([W, *Ht], out=self.now)
        return [W, *Ht, predictions], losses, found
