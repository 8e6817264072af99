"""What the commands share: errors as one line, progress, and results for people or for programs.

Names, paths and messages come from files that anybody may have made. `say`, `echo` and `show` are the only ways to the
terminal, and all of them make a text harmless first.
"""

import json
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from math import isfinite
from typing import IO, Any
from unicodedata import category

import typer

from robustnmf.formats import ReadOptions
from robustnmf.utils.progress import on_terminal

# Exit codes: 0 done; 1 some of many fits failed, or the output was closed; 2 wrong arguments or data; 3 done, but
# with a warning (--strict); 130 interrupted, as shells say.
FAILED, WRONG, DOUBTFUL, INTERRUPTED = 1, 2, 3, 130

# What data, arguments and the machine can cause. The last are numbers out of range, and what solvers, threads,
# processes and GPUs raise.
OF_THE_USER = (ValueError, TypeError, OSError, ImportError, MemoryError, ArithmeticError, RuntimeError)
# What parameters are called here; those of reading have the same names.
OPTIONS = {
    "n_components": "--components",
    "n_splits": "--splits",
    **{
        name: "--" + name.replace("_", "-")
        for name in (
            "feature_scaling",
            "max_iter",
            "method",
            "n_init",
            "repeated_values",
            "tol",
            "zeros",
            *(f.name for f in fields(ReadOptions)),
        )
    },
}
# A parameter with its value, or where it is to be set, as messages of the library write it.
_NAMES = r"\b(?P<name>" + "|".join(OPTIONS) + r")"
PARAMETER = re.compile(
    r"(?P<set>\b[Ss]et )?" + _NAMES + r"(?(set)(=| to )|=)(?P<quote>'?)(?P<value>[\w.+-]*\w)(?P=quote)"
)
NAMED = re.compile(rf"\b(?P<before>with|(?:as|set)(?= \w+_\w)) {_NAMES}(?=[.,; ])")
# Entries of data that is not worked on at once.
LARGE = 2**22
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


def with_options(text: str) -> str:
    """Return a message of the library with parameters as options.

    Examples
    --------
    >>> with_options("Set negative to 'clip', or missing_value=-999, or name it with key.")
    'Use --negative clip, or --missing-value -999, or name it with --key.'
    >>> with_options("units_row=False reads it as data.")
    '--no-units-row reads it as data.'
    >>> with_options("Give it as missing_value if it is missing. If it holds units, set units_row to true.")
    'Give it as --missing-value if it is missing. If it holds units, use --units-row.'
    """
    text = PARAMETER.sub(_as_option, text)
    return NAMED.sub(lambda found: f"{found['before']} {OPTIONS[found['name']]}", text)


def _as_option(found: re.Match[str]) -> str:
    verb = {"Set ": "Use ", "set ": "use "}.get(found["set"] or "", "")
    option, value = OPTIONS[found["name"]], found["value"]
    if value in ("True", "False", "true", "false"):
        return verb + (option if value.title() == "True" else option.replace("--", "--no-", 1))
    return f"{verb}{option} {value}"


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
        say(f"Error: {with_options(_words(error))}")
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
def warnings_in_one_line(told: set[str] | None = None) -> Iterator[list[str]]:
    """Print warnings without the place in the code, and yield them; those that were `told` are not printed again."""
    seen: list[str] = []
    told = set() if told is None else told
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield seen
        finally:
            seen += [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
            for message in dict.fromkeys(seen):
                if message not in told:
                    say(f"Warning: {with_options(message)}")
            told |= set(seen)


@contextmanager
def stage(text: str, *, quiet: bool, size: int = 0) -> Iterator[None]:
    """Say what is being done: on a terminal as long as it takes, elsewhere in a line if it is much work.

    Parameters
    ----------
    text : str
        What is being done.
    quiet : bool
        Say nothing.
    size : int
        Entries that are worked on.
    """
    seen = on_terminal() and not quiet
    if seen:
        sys.stderr.write(f"{harmless(text)} ...")
        sys.stderr.flush()
    elif size > LARGE and not quiet:
        say(text)
    try:
        yield
    finally:
        if seen:
            sys.stderr.write("\r" + " " * (len(harmless(text)) + 4) + "\r")
            sys.stderr.flush()


class Interruption:
    """The first Ctrl-C asks a fit to end after the present iteration, and keeps what it has; the second ends all.

    Before the first iteration there is nothing to keep.
    """

    def __init__(self) -> None:
        self.asked = False
        self._has_begun = False

    def watch(self, iteration: Any) -> bool:
        """Return whether the fit is to end; a callback of a fit."""
        self._has_begun = True
        return self.asked

    def _ask(self, *_: Any) -> None:
        if self.asked or not self._has_begun:
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
