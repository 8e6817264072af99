"""Work that is launched again and again, as one CUDA graph: one by one, its launches may take longer than the work."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock, local
from typing import Any
from weakref import WeakSet

import torch

from robustnmf.utils.arrays import taken
from robustnmf.utils.process_state import deferred_interrupts, hold_while_forking

# Steps between two looks at how many rows still move: to look is to wait for the GPU.
UNSEEN_STEPS = 8
# With no more rows than this, fewer would not be faster.
FEW_ENOUGH = 256
# Bytes of data up to which a step is recorded: a graph has memory of its own, and beyond that launches do not matter.
MOST_RECORDED = 2**30
# The same of a few steps with many arrays of the size of the data, which it would keep.
MOST_REPEATED = 2**24


def record(work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return the launches of some work as a graph, and what the work returned: arrays that every replay writes anew.

    The work must have been done once before: what is compiled or set up on first use cannot be recorded. It is recorded
    on a stream aside, while other threads may go on. `torch.cuda.graph` would also collect garbage and empty the cache
    of device memory, which takes longer than to record. Ctrl-C waits until all is recorded: a recording that is left
    open would make every later one of the process fail.
    """
    owner: Captures | None = getattr(_THREAD, "owner", None)
    with deferred_interrupts():
        graph, results = _record(work, None if owner is None else owner.pool)
        if owner is not None:
            owner.graphs.add(graph)
    return graph, results


def _record(work: Callable[[], Any], pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    here, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
    with side_stream(here.device) as aside, _companion_for(aside):
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                results = work()
            except BaseException:
                with suppress(RuntimeError):  # the recording ends, and the error of the work is the one to tell
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(aside)
    return graph, results


@contextmanager
def beside(device: torch.device, work: Callable[[], None]) -> Iterator[None]:
    """Record some work on a stream aside, so that what is within goes on meanwhile; after that, both are done.

    The work must write into arrays that were made before: those that it made itself would belong to the stream aside.
    What is not recorded is done at once: to switch streams takes longer than it saves.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        work()
        yield
        return
    here = torch.cuda.current_stream(device)
    companion = _companions.get(here.cuda_stream)
    with side_stream(device) if companion is None else nullcontext(companion) as aside:
        aside.wait_stream(here)
        try:
            with torch.cuda.stream(aside):
                work()
            yield
        finally:  # after an error too: a recording cannot end while a stream is apart
            here.wait_stream(aside)


@contextmanager
def _companion_for(stream: torch.cuda.Stream) -> Iterator[None]:
    """Reserve a stream for what is done beside one that is being recorded: it is recorded too, until all is done."""
    with side_stream(stream.device) as companion:
        _companions[stream.cuda_stream] = companion
        try:
            yield
        finally:
            del _companions[stream.cuda_stream]


@contextmanager
def side_stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """Lend a stream that nobody else uses meanwhile: Torch has 32, and gives the same one out again and again."""
    with _lock:
        stream = _free[device].pop() if _free[device] else torch.cuda.Stream(device)
    try:
        yield stream
    finally:
        with _lock:
            _free[device].append(stream)


class Captures:
    """Owns the CUDA graphs that a thread records within it, and the memory that they share.

    Torch gives every graph memory of its own, at least 22 MB, and keeps it when the graph is gone. Graphs that share it
    must be launched one after the other, on one stream, and what they return must be copied before the next is. When
    it is left, after errors too, its graphs are gone, whoever refers to them, and the memory waits for the next owner.

    Parameters
    ----------
    device : torch.device
        On any but a CUDA GPU it does nothing, and neither within another owner of this thread and device.

    Examples
    --------
    >>> with Captures(torch.device("cpu")) as owner:
    ...     len(owner.graphs)
    0
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self.keeper: Any = None
        """A graph that does nothing but keep the memory of the others; None if this owns nothing."""
        self.outer: Captures | None = None

    @property
    def pool(self) -> Any:
        """The memory that the graphs share."""
        return None if self.keeper is None else self.keeper.pool()

    def __enter__(self) -> "Captures":
        outer: Captures | None = getattr(_THREAD, "owner", None)
        if self.device.type != "cuda" or (outer is not None and outer.device == self.device):
            return self
        with _lock:
            keeper = _keepers[self.device].pop() if _keepers[self.device] else None
        with deferred_interrupts():
            self.keeper = _record(lambda: torch.zeros(1, device=self.device), None)[0] if keeper is None else keeper
            self.outer, _THREAD.owner = outer, self
        return self

    def __exit__(self, *error: object) -> None:
        if self.keeper is None:
            return
        _THREAD.owner, keeper, self.keeper = self.outer, self.keeper, None
        torch.cuda.current_stream(self.device).synchronize()  # the next fit may be on another stream
        for graph in list(self.graphs):
            graph.reset()
        with _lock:
            _keepers[self.device].append(keeper)


def clear_graph_memory() -> None:
    """Give back the memory of graphs that no fit uses now."""
    with _lock:
        _keepers.clear()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


_THREAD = local()
_lock = Lock()
hold_while_forking(_lock)
_companions: dict[int, torch.cuda.Stream] = {}
_free: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)
_keepers: defaultdict[torch.device, list[torch.cuda.CUDAGraph]] = defaultdict(list)
"""Those of owners that are gone: one for each fit at a time."""


def converge(step: Callable[..., Any], Y: Any, M: Any, X: Any, *, max_iter: int, tol: float, few: float) -> Any:
    """Improve X until no row moves by more than `tol` times its largest coordinate; the kernel of `algorithm.encoding`.

    Parameters
    ----------
    step : function of Y, M and X, rows of the data, their weights and their codes, that makes a step and never waits
        for the GPU.
    few : float
        When no more than this share of the rows still moves, the others are left behind.
    """
    rows, left = torch.arange(len(X), device=X.device), max_iter
    while left > 0:
        codes, moving = X[rows], torch.ones_like(rows, dtype=torch.bool)
        recorded = _Step(step, taken(Y, rows), taken(M, rows), codes, moving, tol)
        while left > 0:
            steps = min(UNSEEN_STEPS, left)
            recorded.repeat(steps)
            left -= steps
            n_moving = int(torch.count_nonzero(moving))
            if n_moving == 0 or (n_moving <= few * len(rows) and len(rows) > FEW_ENOUGH):
                break
        X[rows] = codes
        rows = rows[moving]
        if len(rows) == 0:
            break
    return X


def repeat(step: Callable[..., Any], Y: Any, M: Any, X: Any, numbers: Sequence[float]) -> Any:
    """Return X after a step with each of some numbers; the kernel of `algorithm.encoding`.

    Parameters
    ----------
    step : function of Y, M, X and a number on the device, that returns X after a step and never waits for the GPU.
    """
    X, number, graph = X.clone(), torch.empty((), dtype=torch.float64, device=X.device), None

    def make() -> None:
        X.copy_(step(Y, M, X, number))

    for i, value in enumerate(numbers):
        number.fill_(value)
        if i == 1 and X.is_cuda and Y.nbytes <= MOST_REPEATED:
            graph, _ = record(make)
        make() if graph is None else graph.replay()
    return X


class _Step:
    """A step of some rows, recorded once it has been made."""

    def __init__(self, step: Callable[..., Any], Y: Any, M: Any, codes: Any, moving: Any, tol: float) -> None:
        self.step, self.Y, self.M, self.codes, self.moving, self.tol = step, Y, M, codes, moving, tol
        self.graph: Any = None

    def repeat(self, times: int) -> None:
        """Make the step some times."""
        if self.graph is None:
            self.make()
            times -= 1
            if self.codes.is_cuda and times and self.Y.nbytes <= MOST_RECORDED:
                self.graph, _ = record(self.make)
        for _ in range(times):
            self.make() if self.graph is None else self.graph.replay()

    def make(self) -> None:
        """Make the step: rows that have come to rest stay."""
        new = torch.where(self.moving[:, None], self.step(self.Y, self.M, self.codes), self.codes)
        self.moving &= torch.amax(torch.abs(new - self.codes), dim=1) > self.tol * torch.amax(new, dim=1)
        self.codes.copy_(new)
