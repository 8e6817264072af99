"""What goes wrong with data files, in words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from robustnmf.errors import MissingExtraError


class DataFileError(ValueError):
    """A data file that cannot be read, or is not what it should be.

    Parameters
    ----------
    path : path-like
        The file.
    expected : str
        What the file must be.
    found : str
        What is there instead.
    advice : str
        What to do.
    """

    def __init__(self, path: str | os.PathLike[str], expected: str, found: str, advice: str) -> None:
        message = f"{os.fspath(path)} must be {expected}; {found}. {advice}"
        # Names in files may hold what moves the cursor of a terminal or hides the rest of the message.
        super().__init__("".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in message))


class OversizedError(ValueError):
    """Something in a file is larger than it declares, or than anybody needs; says what, how large, and the limit."""


@contextmanager
def broken_is_data_file_error(path: Path, expected: str, advice: str) -> Iterator[None]:
    """Turn whatever a library raises over a broken file into a DataFileError."""
    try:
        yield
    except (DataFileError, MissingExtraError, PermissionError):
        raise
    except OversizedError as error:
        advice = "It is damaged, or made to fill the memory: do not trust it, and get it anew from its source."
        raise DataFileError(path, f"{expected} without parts of extreme size", str(error), advice) from error
    # Readers raise almost anything over broken files: KeyError, struct.error, MemoryError, RecursionError ...
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataFileError(path, expected, f"reading it failed ({shortened(words, 200)})", advice) from error


def shortened(text: str, length: int = 40) -> str:
    """Return a text, or its beginning."""
    return text if len(text) <= length else text[: length - 3] + "..."


def times(shape: Iterable[int]) -> str:
    """Return a shape in words."""
    return " x ".join(map(str, shape))
