"""What the commands share: errors as one line, progress, and results for people or for programs.

Names, paths and messages come from files that anybody may have made. `say`, `echo` and `show` are the only ways to the
terminal, and all of them make a text harmless first.
"""

import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isfinite
from typing import IO, Any
from unicodedata import category

import typer

# Exit codes: 0 done; 1 some of many fits failed, or the output was closed; 2 wrong arguments or data; 3 done, but
# with a warning (--strict); 130 interrupted, as shells say.
FAILED, WRONG, DOUBTFUL, INTERRUPTED = 1, 2, 3, 130

# What data, arguments and the machine can cause. The last are numbers out of range, and what solvers, threads,
# processes and GPUs raise.
OF_THE_USER = (ValueError, TypeError, OSError, ImportError, MemoryError, ArithmeticError, RuntimeError)
# Letters of Persian and of Indian languages, and many emoji, are joined or parted by these.
JOINERS = "\u200c\u200d"


def harmless(text: str) -> str:
    r"""Return a text that a terminal can only show, in one line; signs that do something else are written as escapes.

    Those are control characters, which move the cursor or clear the screen, marks of the direction of writing, ends of
    lines, and halves of surrogate pairs, which stand for bytes of a path that are no text.

    Examples
    --------
    >>> harmless("S\u00e3o Paulo \x1b[2J\n")
    'São Paulo \\x1b[2J\\n'
    """
    return "".join(sign if _only_shows(sign) else sign.encode("unicode_escape").decode() for sign in text)


def _only_shows(sign: str) -> bool:
    return sign.isprintable() or sign in JOINERS or category(sign) == "Zs"


def encodable(text: str) -> str:
    r"""Return a text that can be written as UTF-8: halves of surrogate pairs become escapes.

    Examples
    --------
    >>> encodable("caf\udce9")
    'caf\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def json_text(content: Any, indent: int | None = None) -> str:
    r"""Return JSON that every program can read, in ASCII: it knows neither NaN nor infinity, which become null.

    Examples
    --------
    >>> print(json_text({"scale": float("nan"), "names": ["caf\udce9"]}))
    {"scale": null, "names": ["caf\\udce9"]}
    """
    return json.dumps(_plain(content), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value with nothing in it that JSON has no word for."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {encodable(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def say(text: str) -> None:
    """Print a message to stderr; if that is closed, the work goes on."""
    with suppress(OSError):
        _put(text, sys.stderr)


def echo(text: str) -> None:
    """Print a line of a result."""
    _put(text, sys.stdout)


def _put(text: str, stream: IO[str] | None) -> None:
    """Print a line; signs that the stream has no code for are written as escapes. Of a closed stream there is none."""
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(harmless(text).encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def show(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result: as one JSON object, or one line for each entry."""
    if as_json:
        echo(json_text(result))
        return
    width = max(map(len, result))
    for name, value in result.items():
        echo(f"{name:<{width}}  {value:.6g}" if isinstance(value, float) else f"{name:<{width}}  {value}")


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the command with a message instead of a traceback where the user, not the program, has to do something."""
    try:
        yield
    except KeyboardInterrupt:
        say("Interrupted; nothing was written.")
        raise typer.Exit(INTERRUPTED) from None
    except (typer.Exit, typer.Abort, BrokenPipeError):  # the last: the output was closed, which is no mistake
        raise
    except OF_THE_USER as error:
        say(f"Error: {_words(error)}")
        raise typer.Exit(WRONG) from None
    except Exception as error:
        # What Typer raises over wrong arguments, and prints by itself: it has a message that quotes them.
        if isinstance(message := getattr(error, "message", None), str):
            vars(error)["message"] = harmless(message)
        raise


def _words(error: BaseException) -> str:
    """Return what an error says, and what kind it is where the words alone do not tell."""
    words, kind = str(error), type(error).__name__
    if isinstance(error, MemoryError):
        return f"Out of memory. {words}".rstrip()
    if isinstance(error, ArithmeticError | RuntimeError) and not isinstance(error, ValueError):
        return f"{kind}: {words}"
    return words or kind


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


def on_terminal() -> bool:
    """Return whether what is said appears on a terminal; a shell may have closed the stream."""
    return sys.stderr is not None and sys.stderr.isatty()


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
    """Return a callback of a fit: it prints progress if stderr is no terminal, and ends the fit when asked to.

    On a terminal the estimator's own progress bar is shown.
    """
    every = max(1, max_iter // 10)

    def watch(iteration: Any) -> bool:
        if not (quiet or on_terminal()) and iteration.n_iter % every == 0:
            say(
                f"iteration {iteration.n_iter}: objective {iteration.objective:.6g}, scale {iteration.scale:.3g}, "
                f"outliers {iteration.outlier_share:.1%}"
            )
        return interruption.asked

    return watch
