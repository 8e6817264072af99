"""How far long work has come: one line that changes on a terminal or in a notebook, a few lines elsewhere, or a log.

If `logging` is set up for messages of level INFO of the logger "robustnmf", they go there and nowhere else. Otherwise
they are shown if the user asks for it (``verbose=1``).
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from threading import RLock
from time import monotonic
from typing import Any, Protocol

from robustnmf.utils.process_state import hold_while_forking, no_fork

logger = logging.getLogger("robustnmf")
logger.addHandler(logging.NullHandler())  # a library leaves it to the user what becomes of its log
_silenced: ContextVar[bool] = ContextVar("robustnmf_silenced", default=False)
_shown: list[Any] = []
"""Lines that are shown now."""

# Lines of work whose length is known, where a line cannot change; and seconds after which there is one more.
LINES, SECONDS = 10, 30.0
# Seconds between changes of the line in a notebook.
BETWEEN_CHANGES = 0.2


class Show(Protocol):
    """Says how far the work has come."""

    def __call__(self, done: int, text: str, milestone: bool = False) -> None:
        """Show how many steps are done; a milestone is shown even where there are only a few lines."""


@contextmanager
def progress(name: str, total: int | None, step: str, *, shown: bool) -> Iterator[Show]:
    """Give a function that shows how far the work has come.

    Parameters
    ----------
    name : str
        What is at work.
    total : int or None
        Most steps, if that is known.
    step : str
        What one step is called.
    shown : bool
        Whether the user wants to see it, where there is no log.

    Examples
    --------
    >>> from contextlib import redirect_stderr
    >>> with redirect_stderr(sys.stdout), progress("Fit", 40, "iteration", shown=True) as show:
    ...     for done in range(41):
    ...         if done % 20 == 0:
    ...             show(done, f"objective {100 - done}")
    iteration 0 of 40: objective 100
    iteration 20 of 40: objective 80
    iteration 40 of 40: objective 60
    """
    line: Any = _line(name, total, step, shown)
    if not isinstance(line, _Nothing):
        _shown.append(line)
    try:
        yield line.show
    finally:
        line.close()
        _shown[:] = [other for other in _shown if other is not line]


def tell(text: str) -> None:
    """Write a decision to the log."""
    if not _silenced.get():
        logger.info("%s", text)


def announce(text: str) -> None:
    """Say what takes its time: in the log, or else between the lines of work that the user wants to see."""
    if is_logged():
        tell(text)
    elif _shown and not _silenced.get():
        _shown[-1].say(text)


def advise(text: str) -> None:
    """Say what the user should change: in the log, or to stderr where none is set up."""
    if _silenced.get():
        return
    if _has_listener():
        logger.warning("%s", text)
    else:
        _print(text)


@contextmanager
def without_progress() -> Iterator[None]:
    """Show nothing of what goes on inside, not even in the log: some of many fits, say."""
    before = _silenced.set(True)
    try:
        yield
    finally:
        _silenced.reset(before)


def is_silenced() -> bool:
    """Return whether nobody will be shown anything of what goes on now."""
    return _silenced.get()


def is_logged() -> bool:
    """Return whether somebody has set up a log for messages of level INFO."""
    return logger.isEnabledFor(logging.INFO) and _has_listener()


def _has_listener() -> bool:
    """Return whether a handler takes messages of the logger; `Logger.hasHandlers` counts those that drop them, too."""
    log: logging.Logger | None = logger
    while log is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in log.handlers):
            return True
        log = log.parent if log.propagate else None
    return False


def on_terminal() -> bool:
    """Return whether stderr is a terminal; a shell may have closed the stream."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _line(name: str, total: int | None, step: str, shown: bool) -> Any:
    if _silenced.get():
        return _Nothing()
    if is_logged():
        return _Lines(total, step, lambda text: logger.info("%s: %s", name, text))
    if not shown:
        return _Nothing()
    if in_notebook():
        return _Notebook(total, f"{name}: {step}")
    return _Terminal(name, total, step) if on_terminal() else _Lines(total, step, _print)


def _print(text: str) -> None:
    with suppress(OSError, ValueError):  # of a stream that was closed
        print(text, file=sys.stderr, flush=True)


def _words(step: str, done: int, total: int | None, text: str) -> str:
    return f"{step} {done}" + ("" if total is None else f" of {total}") + f": {text}"


class _Nothing:
    def show(self, done: int, text: str, milestone: bool = False) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class _Lines:
    """A few lines, one below the other."""

    def __init__(self, total: int | None, step: str, write: Callable[[str], None]) -> None:
        self.total, self.step, self.write = total, step, write
        self.every = None if total is None else max(1, total // LINES)
        self.next, self.time, self.waiting = 0, monotonic(), ""

    def show(self, done: int, text: str, milestone: bool = False) -> None:
        """Write a line if it is time for one, and else keep it: the last one is written in any case."""
        self.waiting = _words(self.step, done, self.total, text)
        is_due = self.every is not None and done >= self.next
        if milestone or is_due or monotonic() - self.time > SECONDS:
            self.next = done + (self.every or 1)
            self.close()

    def say(self, text: str) -> None:
        """Write a line of its own."""
        self.write(text)

    def close(self) -> None:
        """Write what was not written yet."""
        if self.waiting:
            self.write(self.waiting)
        self.time, self.waiting = monotonic(), ""


class _Notebook:
    """One line of a notebook, which needs no widgets to change."""

    def __init__(self, total: int | None, step: str) -> None:
        from IPython.display import display

        self.total, self.step, self.time, self.waiting = total, step, monotonic(), ""
        self.handle = display({"text/plain": step}, raw=True, display_id=True)

    def show(self, done: int, text: str, milestone: bool = False) -> None:
        """Change the line, if it was not changed just now."""
        self.waiting = _words(self.step, done, self.total, text)
        if monotonic() - self.time > BETWEEN_CHANGES:
            self.close()

    def say(self, text: str) -> None:
        """Write a line of its own."""
        _print(text)

    def close(self) -> None:
        """Show what was not shown yet."""
        if self.waiting:
            self.handle.update({"text/plain": self.waiting}, raw=True)
        self.time, self.waiting = monotonic(), ""


class _Terminal:
    """A bar with the time that is left."""

    def __init__(self, name: str, total: int | None, step: str) -> None:
        self.bar = _bar_class()(total=total, desc=name, unit=f" {step}s", file=sys.stderr)

    def show(self, done: int, text: str, milestone: bool = False) -> None:
        """Change the line."""
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(done - self.bar.n)

    def say(self, text: str) -> None:
        """Write a line above."""
        self.bar.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the line as it is."""
        self.bar.refresh()
        self.bar.close()


@cache
def _bar_class() -> Any:
    """Return tqdm's bar without what it shares with other processes.

    The lock of tqdm is one for all forked processes: if one of them is killed while it holds it, the others wait for
    ever. And its thread that looks at bars now and then would outlive the fit.
    """
    with no_fork:
        from tqdm import tqdm

    lock = RLock()
    bar: Any = type("Bar", (tqdm,), {"monitor_interval": 0})
    bar.set_lock(lock)
    hold_while_forking(lock)
    return bar
