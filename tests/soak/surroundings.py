"""What a fit must leave as it was: its input, and the state of the process."""

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

HANDLED = [number for number in signal.valid_signals() if number != signal.SIGALRM]  # which is ours


class BrokenError(AssertionError):
    """An invariant that does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant, self.detail = invariant, detail


def content(value: Any) -> Any:
    """Return what an argument holds, to be compared."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, np.ascontiguousarray(value).tobytes()
    return value


_pools: list[ThreadpoolController] = []


def threads_of_libraries() -> list[Any]:
    """Return how many threads BLAS and OpenMP take; the libraries are looked for once, which takes its time."""
    if not _pools:
        _pools.append(ThreadpoolController())
    return [(pool["prefix"], pool["num_threads"]) for pool in _pools[0].info()]


def state() -> dict[str, Any]:
    """Return all that belongs to the process and not to a fit."""
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    return {
        "np.geterr()": np.geterr(),
        "warnings.filters": list(warnings.filters),
        "np.random": (kind, keys.tobytes(), place, has_gauss, gauss),
        "os.environ": dict(os.environ),
        "signal handlers": [signal.getsignal(number) for number in HANDLED],
        "threads of libraries": threads_of_libraries(),
    }


@contextmanager
def unchanged(given: dict[str, Any], parameters: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """Raise if what is given to a fit, or what belongs to the process, is another afterwards, or when asked."""
    before = {name: content(value) for name, value in (given | parameters).items()}
    was = state()

    def check() -> None:
        for name, value in (given | parameters).items():
            if content(value) != before[name]:
                raise BrokenError("unchanged", f"{name} was changed")
        for name, value in state().items():
            if value != was[name]:
                raise BrokenError("unchanged", f"{name} was {was[name]}, is {value}"[:300])

    yield check
    check()


class Used(NamedTuple):
    """What the process holds."""

    bytes: int
    files: int
    threads: int

    @classmethod
    def now(cls) -> "Used":
        gc.collect()
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        files, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), files, threads)

    def __str__(self) -> str:
        return f"{self.bytes / 2**20:.0f} MiB, {self.files} files, {self.threads} threads"

    def grown_since(self, before: "Used") -> bool:
        """Return whether it is more than chance: what allocators keep, and threads of pools that come and go."""
        return (
            self.bytes > 1.1 * before.bytes + 2**25
            or self.files > before.files + 4
            or self.threads > before.threads + 4
        )
