"""Matrices of the Matrix Market: .mtx, .mtx.gz; entry by entry, or as a dense array in columns."""

from __future__ import annotations

import gzip
import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from robustnmf.formats.errors import DataFileError, OversizedError, shortened, times
from robustnmf.formats.format import Format
from robustnmf.formats.packed import DEFLATE_RATIO
from robustnmf.formats.sparse_tables import Declared, assembled, check_declared
from robustnmf.formats.table import Found, Options, Table, as_table, check_array, refuse_key

_SIGNATURE, _GZIP = b"%%MatrixMarket", b"\x1f\x8b"

_MAX_LINE, _MAX_COMMENTS = 2**16, 2**20
"""Longest line before the entries, and all of them together, in bytes."""

_SHORTEST_ENTRY, _SHORTEST_NUMBER = 4, 2
"""Bytes of an entry such as "1 1", and of a number in a dense array, with the end of the line."""

_FIELDS = {"real": np.dtype(float), "double": np.dtype(float), "integer": np.dtype(np.int64), "pattern": np.dtype(bool)}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


class _Header(NamedTuple):
    """What a file declares."""

    is_sparse: bool
    dtype: np.dtype[Any] | None
    symmetry: str
    shape: tuple[int, int]
    n_stored: int


def read_matrix_market(path: Path, options: Options) -> Table:
    """Read a matrix of the Matrix Market."""
    from scipy.io import mmread

    refuse_key(path, options.key)
    with _opened(path) as file:
        header = _header(path, file)
    _check_header(path, header, options.max_bytes)
    with _opened(path) as file:
        matrix: Any = mmread(cast(IO[bytes], _Limited(file, options.max_bytes)))
    if not header.is_sparse:
        return as_table(path, matrix, options.max_bytes)
    return Table(assembled(path, "coo", header.shape, matrix.data, matrix.row, matrix.col))


def _opened(path: Path) -> AbstractContextManager[IO[bytes]]:
    with path.open("rb") as file:
        is_packed = file.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if is_packed else path.open("rb")


def _header(path: Path, file: IO[bytes]) -> _Header:
    """Read the lines before the entries."""
    words = _line(file).decode("ascii").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in ("coordinate", "array"):
        raise ValueError(f"the first line is {shortened(' '.join(words))!r}")
    is_sparse, field, symmetry = words[2] == "coordinate", *words[3:]
    if symmetry not in _SYMMETRIES:
        raise DataFileError(path, "a table of real numbers", f"it is {symmetry}", "Convert it to floats.")
    sizes = _sizes(file)
    if len(sizes) != (3 if is_sparse else 2) or min(sizes) < 0:
        raise ValueError(f"the line of the sizes is {sizes}")
    n_rows, n_columns, n_stored = *sizes[:2], sizes[2] if is_sparse else sizes[0] * sizes[1]
    return _Header(is_sparse, _FIELDS.get(field), symmetry, (n_rows, n_columns), n_stored)


def _sizes(file: IO[bytes]) -> list[int]:
    """Return the numbers of the first line that is neither empty nor a comment."""
    left = _MAX_COMMENTS
    while left > 0:
        line = _line(file)
        left -= len(line)
        if line.strip() and not line.startswith(b"%"):
            return [int(word) for word in line.split()]
    raise OversizedError(f"it has more than {_MAX_COMMENTS} bytes of comments")


def _line(file: IO[bytes]) -> bytes:
    line = file.readline(_MAX_LINE)
    if not line:
        raise ValueError("unexpected end")
    if len(line) == _MAX_LINE:
        raise OversizedError(f"it has a line of more than {_MAX_LINE} bytes before its entries")
    return line


def _check_header(path: Path, header: _Header, max_bytes: int) -> None:
    """Raise if a matrix does not fit, or has more entries than the file can hold."""
    if header.is_sparse:
        n_entries = header.n_stored * (1 if header.symmetry == "general" else 2)
        declared = Declared(header.shape, header.dtype, n_entries)
        check_declared(path, declared, max_bytes, path.stat().st_size)
    else:
        check_array(path, "", Found(header.shape, header.dtype), max_bytes)
    shortest = _SHORTEST_ENTRY if header.is_sparse else _SHORTEST_NUMBER
    with path.open("rb") as file:
        most = path.stat().st_size * (DEFLATE_RATIO if file.read(2) == _GZIP else 1)
    # Of symmetric arrays, half is stored.
    n_stored = header.n_stored if header.is_sparse or header.symmetry == "general" else header.n_stored // 4
    if shortest * n_stored > most + shortest:
        expected = f"a file with the {n_stored} entries that it declares"
        found = f"its {times(header.shape)} values cannot be in {path.stat().st_size} bytes"
        raise DataFileError(path, expected, found, "It was cut short: copy or write it again.")


class _Limited(io.RawIOBase):
    """The bytes of a file, up to a limit: compressed ones may become very many."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self.file, self.most, self.left = file, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        content = self.file.read(len(target))
        self.left -= len(content)
        if self.left < 0:
            raise OversizedError(f"it unpacks to more than {self.most} bytes")
        target[: len(content)] = content
        return len(content)


_WORDS = "a matrix of the Matrix Market", "Write it with scipy.io.mmwrite, as numbers."
FORMATS = (Format(*_WORDS, read_matrix_market, (".mtx", ".mtx.gz"), (_SIGNATURE,)),)
