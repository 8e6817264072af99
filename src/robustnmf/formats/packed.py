"""How large compressed bytes become, found out without taking the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

DEFLATE_RATIO = 1032
"""Deflate makes no more than this many bytes of one: a code of two bits stands for up to 258."""

_PIECE = 2**20


class Inflated:
    """The next bytes of a file, decompressed as far as they are asked for.

    Parameters
    ----------
    file : binary file
        Stands where a stream of zlib begins.
    size : int
        Number of compressed bytes, or more.
    """

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file = file
        self.left = size
        self.inflate = zlib.decompressobj()

    def read(self, length: int) -> bytes:
        """Return that many bytes, or fewer at the end."""
        content = b""
        while len(content) < length and not self.inflate.eof:
            packed = self.inflate.unconsumed_tail or self.file.read(min(self.left, 2**16))
            self.left -= 0 if self.inflate.unconsumed_tail else len(packed)
            if not packed:
                break
            content += self.inflate.decompress(packed, length - len(content))
        return content


def check_members(archive: zipfile.ZipFile) -> None:
    """Raise ValueError if files in a zip file are compressed by anything but Deflate.

    All else is unpacked without regard to the size that is declared, and is not what NumPy and zarr write.
    """
    for entry in archive.infolist():
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{entry.filename} is compressed in a way that NumPy and zarr do not write")


def unpacked_size(codec: str, packed: bytes, most: int) -> int:
    """Return how many bytes those of a block become; of codecs in `HEADERS` its first 32 are enough.

    Counting stops beyond ``most``: what is larger is given as any larger number.
    """
    if codec in HEADERS:
        return HEADERS[codec](packed)
    stream = _STREAMS[codec](io.BytesIO(packed))
    total = 0
    while total <= most and (piece := stream.read(_PIECE)):
        total += len(piece)
    return total


def _zstd_size(header: bytes) -> int:
    """Return the size that a frame of Zstandard declares (RFC 8878, section 3.1.1.1); those that do not are refused."""
    if header[:4] != b"\x28\xb5\x2f\xfd" or len(header) < 5:
        raise ValueError("no frame of Zstandard")
    descriptor = header[4]
    single = bool(descriptor & 0x20)
    length = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if length == 0:
        raise ValueError("frame of Zstandard that does not declare its size")
    start = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    return _little(header[start : start + length], length) + (256 if length == 2 else 0)


def _little(field: bytes, length: int) -> int:
    if len(field) < length:
        raise ValueError("unexpected end")
    return int.from_bytes(field, "little")


HEADERS: dict[str, Callable[[bytes], int]] = {
    "blosc": lambda header: _little(header[4:8], 4),
    "lz4": lambda header: _little(header[:4], 4),
    "zstd": _zstd_size,
}
"""Codecs whose blocks begin with their size, which their decoders do not exceed."""

_STREAMS: dict[str, Callable[[IO[bytes]], Any]] = {
    "bz2": bz2.BZ2File,
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "lzma": lzma.LZMAFile,
    "zlib": lambda file: Inflated(file, sys.maxsize),
}

PACKERS = frozenset(HEADERS) | frozenset(_STREAMS)
"""Codecs that compress."""
