"""What the commands share: errors as one line, progress, and results for people or for programs."""

import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

# Exit codes: 0 done; 1 some of many fits failed; 2 wrong arguments or data; 3 done, but with a warning (--strict);
# 130 interrupted, as shells say.
FAILED, WRONG, DOUBTFUL, INTERRUPTED = 1, 2, 3, 130


def say(text: str) -> None:
    """Tell the user something that is no result."""
    typer.echo(text, err=True)


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result: as one JSON object, or one line for each entry."""
    if as_json:
        typer.echo(json.dumps(result))
        return
    width = max(map(len, result))
    for name, value in result.items():
        typer.echo(f"{name:<{width}}  {value:.6g}" if isinstance(value, float) else f"{name:<{width}}  {value}")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the command with a message instead of a traceback where the user, not the program, has to do something."""
    try:
        yield
    except KeyboardInterrupt:
        say("Interrupted; nothing was written.")
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        say(f"Error: {error}")
        raise typer.Exit(WRONG) from None


@contextmanager
def warnings_in_one_line() -> Iterator[list[str]]:
    """Print warnings without the place in the code, and yield them."""
    seen: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield seen
        finally:
            seen += [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
            for message in dict.fromkeys(seen):
                say(f"Warning: {message}")


class Interruption:
    """The first Ctrl-C asks a fit to end after the present iteration, and keeps what it has; the second ends all."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        say("Stopping after this iteration; press Ctrl-C again to stop at once and keep nothing.")

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Listen for Ctrl-C."""
        before = signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def watcher(interruption: Interruption, max_iter: int, quiet: bool) -> Callable[[Any], bool]:
    """Return a callback of a fit: a line now and then if nobody looks at a terminal, and an end when asked for.

    On a terminal the estimator's own progress bar is shown.
    """
    every = max(1, max_iter // 10)

    def watch(iteration: Any) -> bool:
        if not (quiet or sys.stderr.isatty()) and iteration.n_iter % every == 0:
            say(
                f"iteration {iteration.n_iter}: objective {iteration.objective:.6g}, scale {iteration.scale:.3g}, "
                f"outliers {iteration.outlier_share:.1%}"
            )
        return interruption.asked

    return watch
