"""What goes on while Numba compiles a kernel: garbage is not collected, and whoever waits is told why."""

from contextlib import ExitStack
from time import monotonic
from typing import Any

from numba.core.event import Event, Listener, register

from robustnmf.utils.process_state import uncollected_garbage
from robustnmf.utils.progress import advise, announce

# Seconds that kernels take to compile in a process before the user is told of it.
PATIENCE = 1.0
KEPT = "Kernels are being compiled. This is done once: they are kept for later fits."
NOT_KEPT = (
    "Kernels are being compiled, and will be in every process: no folder where they could be kept is writable. Set the "
    "environment variable NUMBA_CACHE_DIR to one that is."
)


class _Watch(Listener):
    """Hears of every compilation of the process, while the lock of the compiler is held."""

    def __init__(self, are_kept: bool) -> None:
        self.are_kept, self.is_told, self.seconds, self.running = are_kept, False, 0.0, list[_Compilation]()

    def on_start(self, event: Event) -> None:
        if _is_ours(event):
            self.running.append(_Compilation())

    def on_end(self, event: Event) -> None:
        if not _is_ours(event) or not self.running:
            return
        seconds = self.running.pop().end()
        if not self.running:  # else it is a kernel that another one calls
            self.seconds += seconds
        if self.seconds > PATIENCE and not self.is_told:
            self.is_told = True
            announce(KEPT) if self.are_kept else advise(NOT_KEPT)


class _Compilation:
    """The compilation of a kernel, from when this is made.

    It makes many objects that stay, and little garbage: to look for it would take a sixth of the time.
    """

    def __init__(self) -> None:
        self.start, self.context = monotonic(), ExitStack()
        self.context.enter_context(uncollected_garbage())

    def end(self) -> float:
        """Return the seconds that it took."""
        self.context.close()
        return monotonic() - self.start


def _is_ours(event: Event) -> bool:
    function: Any = getattr(event.data["dispatcher"], "py_func", None)
    return str(getattr(function, "__module__", None)).startswith("robustnmf.")


def watch_compilation(*, are_kept: bool) -> None:
    """Look after every compilation of a kernel from now on.

    Parameters
    ----------
    are_kept : bool
        Whether there is a folder where compiled kernels are kept.
    """
    register("numba:compile", _Watch(are_kept))  # type: ignore[no-untyped-call]
