"""Many fits at a time: in other processes, or for large data on a GPU in threads.

Processes do not outlive the one that they work for. One that is killed cannot tell its workers: each would finish what
it has begun, for minutes or hours, and then have no process to return it to.

Processes that share a GPU each hold a copy of the data and load all that was compiled; until they have, this one works
too. Threads share both, and while one of them waits for the GPU, another decides what it is to do next; but Python lets
one of them decide at a time. So with small data, where the GPU waits for these decisions, processes are faster.
"""

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count, islice
from threading import Event, Thread
from typing import Any, NamedTuple

import joblib

from robustnmf.utils import gpu_sharing, platforms
from robustnmf.utils.process_state import set_environment

# Where the system does not end workers with their parent, they look so often whether it is still there, in seconds.
INTERVAL = 1.0
# Processes that NVIDIA's service serves at a time, on any GPU that it knows.
MOST_ON_GPU = 48

_parents: set[int] = set()
_compiled: set[Hashable] = set()
"""Kinds of work that was compiled for by this process."""


class Workers(NamedTuple):
    """Who does tasks at a time."""

    in_threads: bool = False
    """Threads of this process, or other processes."""
    kind: Hashable = None
    """What processes compile for, if they work on a GPU: they load from disk what was compiled, so that a first task of
    each kind is done here."""


def run_all(
    tasks: Iterable[Any],
    n_jobs: int | None,
    workers: Workers,
    after_each: Callable[[int], None] = lambda done: None,
) -> list[Any]:
    """Do what `delayed` has put off, so many tasks at a time, and return the results in their order.

    Parameters
    ----------
    n_jobs : int or None
        See joblib; None is 1.
    workers : Workers
        Who does them.
    after_each : function
        Called with the number of tasks that are done, in their order.

    Examples
    --------
    >>> run_all((delayed(pow)(2, exponent) for exponent in range(4)), None, Workers())
    [1, 2, 4, 8]
    """
    results = []
    for result in _results(iter(tasks), n_jobs, workers):
        results.append(result)
        after_each(len(results))
    return results


def _results(tasks: Iterator[Any], n_jobs: int | None, workers: Workers) -> Iterator[Any]:
    """Yield the results of tasks in their order."""
    if workers.kind is not None:
        yield from _on_gpu(tasks, n_jobs, workers.kind)
        return
    backend = "threading" if workers.in_threads else None
    yield from joblib.Parallel(n_jobs=n_jobs, backend=backend, return_as="generator")(tasks)


def _on_gpu(tasks: Iterator[Any], n_jobs: int | None, kind: Hashable) -> Iterator[Any]:
    """Yield the results of tasks that processes do on one GPU, if they can at the same time."""
    for first in islice(tasks, int(kind not in _compiled)):
        yield _now(first)
        _compiled.add(kind)
    shared = gpu_sharing.environment_of_workers()
    # It is set before a worker looks at its first task, which may have data on the GPU.
    options: dict[str, Any] = {"initializer": set_environment, "initargs": (shared,)} if shared else {}
    n_jobs = min(joblib.effective_n_jobs(n_jobs), MOST_ON_GPU)
    try:
        yield from _helped(tasks, n_jobs, options)
    except BaseException:
        # The workers were killed, in the middle of what they launched.
        gpu_sharing.end_service()
        raise


def _helped(tasks: Iterator[Any], n_jobs: int, options: dict[str, Any]) -> Iterator[Any]:
    """Yield the results of tasks that workers take from the front; until they have begun, some from the back here.

    Workers take ten seconds to load Torch, CUDA and the kernels.
    """
    waiting, have_begun = deque(tasks), Event()

    def for_workers() -> Iterator[Any]:
        for taken in count():
            if taken == n_jobs:  # one is asked for in place of one that is done
                have_begun.set()
            try:
                yield waiting.popleft()
            except IndexError:  # all are taken
                return

    done: deque[Any] = deque()
    parallel = joblib.Parallel(n_jobs, return_as="generator", pre_dispatch=n_jobs, batch_size=1, **options)
    with closing(parallel(for_workers())) as results:  # after an error here, workers would do all the rest
        try:
            # Workers that fail ask for nothing more. Their error is raised below.
            while not (have_begun.is_set() or getattr(parallel, "_aborting", False)):
                try:
                    task = waiting.pop()
                except IndexError:
                    break
                done.appendleft(_now(task))
            yield from results
        finally:
            waiting.clear()
    yield from done


def _now(task: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]) -> Any:
    """Do what was put off."""
    function, arguments, options = task
    return function(*arguments, **options)


def delayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `joblib.delayed` returns, for work that ends at once if this process is killed.

    Examples
    --------
    >>> from joblib import Parallel
    >>> Parallel(n_jobs=1)(delayed(pow)(2, exponent) for exponent in range(4))
    [1, 2, 4, 8]
    """
    work: Callable[..., Any] = joblib.delayed(partial(_work, os.getpid(), function))
    return work


def _work(employer: int, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with _ending_with(employer):
        return function(*arguments, **options)


@contextmanager
def _ending_with(employer: int) -> Iterator[None]:
    """End this process if its parent ends meanwhile, and the parent is the one that it works for.

    It may be the same process (work in threads), or one elsewhere (joblib's other backends): then nothing is done.
    """
    if os.getppid() == employer:
        _parents.add(employer)
    elif employer not in _parents:
        yield
        return
    if platforms.be_killed_with_parent(True):
        _end_without(employer)  # which may have been gone before
        try:
            yield
        finally:
            # Not for longer than the work: Linux does so also when the thread ends that has started this process.
            platforms.be_killed_with_parent(False)
    else:
        with _watching(employer):
            yield


@contextmanager
def _watching(employer: int) -> Iterator[None]:
    """Look now and then whether the parent is there, and end this process if it is not."""
    done = Event()

    def watch() -> None:
        while not done.wait(INTERVAL):
            _end_without(employer)

    _end_without(employer)
    Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _end_without(employer: int) -> None:
    """End this process if its parent has ended."""
    if platforms.has_lost_parent(employer):
        # Not `sys.exit`: there is nothing to clean up, and in a thread it would end only that thread.
        os._exit(1)
