"""Kernels of a CUDA GPU are compiled ahead, side by side: one by one, where a fit meets them, they take 20 seconds.

What is to be compiled is found out by doing the work with tensors that have no memory, of Torch's device "meta". While
it is planned, `launch` notes a kernel and what it is called with instead of launching it. Then threads compile what was
noted; the compiler holds Python's lock for a tenth of its time.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from math import inf
from threading import Lock, local
from typing import Any

import torch
import triton

from robustnmf.utils.process_state import hold_while_forking

# An option of all launches: a product is added in one instruction. Which of the two is the default depends on Triton.
FUSED = {"enable_fp_fusion": True}

_THREAD = local()
_lock = Lock()
hold_while_forking(_lock)
_compiled: set[Any] = set()
"""What this process has compiled, or found on disk: devices and signatures."""


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Any, job: Callable[[], Any] | None = None, **options: Any
) -> None:
    """Launch a Triton kernel, or compile it, or note that it is to be compiled.

    Parameters
    ----------
    job : function or None
        What compiles it, if that may take several attempts; None compiles it for these arguments.
    """
    ahead, options = getattr(_THREAD, "ahead", None), options | FUSED
    if ahead is None:
        kernel[grid](*arguments, **options)
    elif isinstance(ahead, Plan):
        ahead.note(_signature(kernel, arguments, options), job or partial(launch, kernel, grid, *arguments, **options))
    else:
        compiled = kernel.warmup(*arguments, grid=grid, **options)
        if ahead.type == "cuda":
            compiled.run  # noqa: B018, what launches it is compiled too; and it fails if memory is short


def worked_on(A: Any) -> torch.device:
    """Return the device of a tensor, or the one that is planned for."""
    ahead = getattr(_THREAD, "ahead", None)
    if ahead is None:
        device: torch.device = A.device
        return device
    return ahead.device if isinstance(ahead, Plan) else ahead


def plan() -> "Plan | None":
    """Return the plan of this thread, None while it does not plan."""
    ahead = getattr(_THREAD, "ahead", None)
    return ahead if isinstance(ahead, Plan) else None


def is_ahead() -> bool:
    """Return whether this thread plans or compiles what others will launch."""
    return getattr(_THREAD, "ahead", None) is not None


@cache
def shared_memory(device: torch.device) -> float:
    """Return the bytes of memory that programs on a multiprocessor can use; any number in the interpreter."""
    if device.type != "cuda":
        return inf
    return float(triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


class Plan:
    """What is to be compiled for a device.

    Work within `planning` is not done but noted; its tensors must be on the device "meta".
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.jobs: dict[Any, Callable[[], Any]] = {}

    def note(self, signature: Any, job: Callable[[], Any]) -> None:
        """Note what compiles something, once."""
        self.jobs.setdefault((self.device, signature), job)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Note what this thread would launch."""
        with _ahead(self):
            yield

    def compile(self) -> None:
        """Compile what this process has not compiled yet, side by side; errors are for who launches it."""
        with _lock:
            new = {key: job for key, job in self.jobs.items() if key not in _compiled}
            if not new:
                return
            for started in _starting[:1]:
                started.exception()
            with ThreadPoolExecutor(min(len(new), 2 * (os.cpu_count() or 1))) as pool:
                for attempt in [pool.submit(_compile_for, self.device, job) for job in new.values()]:
                    attempt.exception()
            _compiled.update(new)


@contextmanager
def _ahead(what: Any) -> Iterator[None]:
    """Let this thread plan, for a `Plan`, or compile, for a device."""
    before, _THREAD.ahead = getattr(_THREAD, "ahead", None), what
    try:
        yield
    finally:
        _THREAD.ahead = before


def _signature(kernel: Any, arguments: Sequence[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    """Return what Triton compiles a kernel for, as far as that can be told: too much does no harm."""
    kinds = [_kind(argument, parameter) for argument, parameter in zip(arguments, kernel.params, strict=False)]
    return kernel.fn.__name__, *kinds, *sorted(options.items())


def _kind(argument: Any, parameter: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.dtype, parameter.do_not_specialize or argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return None if parameter.do_not_specialize else (argument == 1, argument % 16 == 0)
    return argument.base.dtype, tuple(argument.block_shape)


_starting: list[Future[Any]] = []
"""What the first engine of the process has begun."""


def start_up(device: torch.device, *work: Sequence[Callable[[], Any]]) -> None:
    """Begin, once in a process and beside what else it does, with what its first fit will wait for.

    Functions of each sequence are called one after the other. The first should compile a small kernel: that is to load
    Triton's compiler, which reads all of its own files.
    """
    with _lock:
        if _starting:
            return
        for sequence in work:
            pool = ThreadPoolExecutor(1)
            _starting.extend(pool.submit(_compile_for, device, function) for function in sequence)
            pool.shutdown(wait=False)


def _compile_for(device: torch.device, job: Callable[[], Any]) -> None:
    """Do some work of which kernels are compiled and not launched."""
    with _ahead(device), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        if device.type == "cuda":
            torch.cuda.current_stream(device).query()  # a new thread has no context until it asks for something
        job()
