"""Files of text, perhaps compressed: how they are encoded, and lines that are not too long."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from robustnmf.formats.errors import OversizedError
from robustnmf.formats.limits import SMALL
from robustnmf.utils.extras import optional

MAX_ROW = 2**26
"""Longest row of a table, in characters: 64 Mi. Each cell takes many times the memory of its characters."""

PACKED_TEXT = 256
"""Bytes of text that one byte of a compressed file may stand for, beyond `SMALL`."""

_GZIP = b"\x1f\x8b"
_SAMPLE, _PIECE = 2**18, 2**14
"""Bytes by which an encoding is guessed, from pieces that are not ASCII alone."""


class Unpacked(io.RawIOBase):
    """What a stream unpacks to, as long as it is not too much.

    Parameters
    ----------
    stream : binary stream
        Gives the bytes.
    most : int
        Number of bytes that it may give.
    """

    def __init__(self, stream: Any, most: int) -> None:
        self.stream, self.most, self.left = stream, most, most

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, target: object) -> int:
        """Read bytes into a buffer, and return their number."""
        view = memoryview(target)  # type: ignore[arg-type]
        content = self.stream.read(min(len(view), 2**16))
        self.left -= len(content)
        if self.left < 0:
            raise OversizedError(f"it unpacks to more than {self.most} bytes, the most for a file of its size")
        view[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the stream too."""
        self.stream.close()
        super().close()


def most_unpacked(size: int, max_bytes: int) -> int:
    """Return how many bytes of text a compressed file of some size may become."""
    return min(max_bytes, max(SMALL, PACKED_TEXT * size))


def opened(path: Path, max_bytes: int) -> IO[bytes]:
    """Open a file of text, compressed by gzip or not."""
    with path.open("rb") as file:
        is_packed = file.read(2) == _GZIP
    if not is_packed:
        return path.open("rb")
    unpacked = Unpacked(gzip.GzipFile(path), most_unpacked(path.stat().st_size, max_bytes))
    return cast(IO[bytes], io.BufferedReader(unpacked, 2**16))


@contextmanager
def decoded(path: Path, encoding: str, max_bytes: int) -> Iterator[IO[str]]:
    """Open a file of text to read characters."""
    with opened(path, max_bytes) as file, io.TextIOWrapper(file, encoding, newline="") as text:
        yield text


def known_encoding(path: Path, max_bytes: int) -> str:
    """Return the encoding of a text: UTF-8, with a mark or without, or UTF-16, as Excel's "Unicode text" has it."""
    with opened(path, max_bytes) as file:
        start = file.read(3)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    return "utf-8-sig" if start == b"\xef\xbb\xbf" else "utf-8"


def guessed_encoding(path: Path, max_bytes: int) -> str:
    """Return the likely encoding of a text that is not UTF-8.

    Letters of western Europe, and signs such as µ and °, stand alone or in pairs among ASCII; words of other
    alphabets do not, and are left to charset-normalizer.
    """
    sample = b""
    with opened(path, max_bytes) as file:
        while len(sample) < _SAMPLE and (piece := file.read(_PIECE)):
            sample += b"" if piece.isascii() else piece
    if not re.search(rb"[\x80-\xff]{3}|[\x81\x8d\x8f\x90\x9d]", sample):
        return "cp1252"
    best = optional("charset_normalizer", "io", "charset-normalizer").from_bytes(sample).best()
    return "cp1252" if best is None else str(best.encoding)


class Lines:
    """The lines of a text file, as long as rows are not too long."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.used = file, 0

    def __iter__(self) -> Iterator[str]:
        while line := self.file.readline(MAX_ROW + 1):
            self.used += len(line)
            if self.used > MAX_ROW:
                raise OversizedError(f"it has a row of more than {MAX_ROW} characters, the most that is read")
            yield line

    def row_is_over(self) -> None:
        """Count from here on: a row may have several lines, with quotation marks around their ends."""
        self.used = 0
