"""Matrices of the Matrix Market: .mtx, .mtx.gz; entry by entry, or as a dense array in columns."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.checks import Found, as_matrix, check_array, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, shortened, times
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix, Source
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.packed import DEFLATE_RATIO
from robustnmf.formats.sparse_tables import Declared, assembled, check_declared
from robustnmf.formats.stored import array_in_file, sparse_in_file

_SIGNATURE, _GZIP = b"%%MatrixMarket", b"\x1f\x8b"

_MAX_LINE, _MAX_COMMENTS = 2**16, 2**20
"""Longest line before the entries, and all of them together, in bytes."""

_MAX_ENTRY = 1024
"""Longest line of an entry, in bytes."""

_SHORTEST_ENTRY, _SHORTEST_NUMBER = 4, 2
"""Bytes of an entry such as "1 1", and of a number in a dense array, with the end of the line."""

_FIELDS = {"real": np.dtype(float), "double": np.dtype(float), "integer": np.dtype(np.int64), "pattern": np.dtype(bool)}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


class _Header(NamedTuple):
    """What a file declares."""

    is_sparse: bool
    has_values: bool
    """If not, entries are 1."""
    dtype: np.dtype[Any] | None
    symmetry: str
    shape: tuple[int, int]
    n_stored: int
    """Lines with entries."""


def read_matrix_market(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a matrix of the Matrix Market.

    Not with SciPy, whose reader ends the process over some files that were cut short.
    """
    refuse_key(path, options.key)
    with _opened(path) as file:
        header = _header(path, file)
        _check_header(path, header, options.max_bytes)
        entries = _entries(file, header, options.max_bytes)
    if not header.is_sparse:
        return as_matrix(path, _dense(entries["value"], header), options, dtype=header.dtype)
    rows, columns = entries["row"] - 1, entries["column"] - 1
    values = entries["value"] if header.has_values else np.ones(len(entries))
    if header.symmetry != "general":
        mirrored = rows != columns
        sign = -1 if header.symmetry == "skew-symmetric" else 1
        values = np.concatenate([values, sign * values[mirrored]])
        rows, columns = np.concatenate([rows, columns[mirrored]]), np.concatenate([columns, rows[mirrored]])
    matrix = assembled(path, "coo", header.shape, values, rows, columns)
    return LabelledMatrix(matrix, source=Source(dtype=header.dtype))


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_packed = file.read(2) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if is_packed else path.open("rb")


def _entries(file: IO[bytes], header: _Header, max_bytes: int) -> Any:
    """Return the entries, as many as are declared, in fields: row and column, which count from 1, and value."""
    places = [("row", np.int64), ("column", np.int64)] if header.is_sparse else []
    fields = [*places, *([("value", np.float64)] if header.has_values else [])]
    # One more than there should be is enough to tell that there are too many.
    lines = _lines(file, max_bytes)
    entries = np.loadtxt(lines, np.dtype(fields), comments=None, ndmin=1, max_rows=header.n_stored + 1)
    if len(entries) != header.n_stored:
        more = "more" if len(entries) > header.n_stored else str(len(entries))
        raise ValueError(f"it declares {header.n_stored} entries and has {more}")
    return entries


def _lines(file: IO[bytes], max_bytes: int) -> Iterator[str]:
    """Yield the lines of the entries, neither too long nor too many: compressed ones may become very many."""
    left = max_bytes
    while line := file.readline(_MAX_ENTRY):
        left -= len(line)
        if len(line) == _MAX_ENTRY:
            raise OversizedError(f"it has an entry of more than {_MAX_ENTRY} bytes")
        if left < 0:
            raise OversizedError(f"it unpacks to more than {max_bytes} bytes")
        yield line.decode("ascii")


def _dense(values: NDArray[Any], header: _Header) -> NDArray[Any]:
    """Return the values of columns, one after the other, as a matrix; of symmetric ones half is stored."""
    if header.symmetry == "general":
        return values.reshape(header.shape[::-1]).T
    is_skew = header.symmetry == "skew-symmetric"
    columns, rows = np.triu_indices(header.shape[0], int(is_skew))
    matrix = np.zeros(header.shape)
    matrix[columns, rows] = -values if is_skew else values
    matrix[rows, columns] = values
    return matrix


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
    n_rows, n_columns = sizes[:2]
    if symmetry != "general" and n_rows != n_columns:
        raise ValueError(f"it is {symmetry}, with {n_rows} rows and {n_columns} columns")
    diagonal = {"symmetric": 1, "skew-symmetric": -1}.get(symmetry)
    in_columns = n_rows * n_columns if diagonal is None else n_rows * (n_rows + diagonal) // 2
    n_stored = sizes[2] if is_sparse else in_columns
    return _Header(is_sparse, field != "pattern", _FIELDS.get(field), symmetry, (n_rows, n_columns), n_stored)


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
    size = path.stat().st_size
    if header.is_sparse:
        n_entries = header.n_stored * (1 if header.symmetry == "general" else 2)
        check_declared(path, Declared(header.shape, header.dtype, n_entries), max_bytes, size)
    else:
        check_array(path, "", Found(header.shape, header.dtype), max_bytes)
    shortest = _SHORTEST_ENTRY if header.is_sparse else _SHORTEST_NUMBER
    with path.open("rb") as file:
        most = size * (DEFLATE_RATIO if file.read(2) == _GZIP else 1)
    if shortest * header.n_stored > most + shortest:
        expected = f"a file with the {header.n_stored} entries that it declares"
        found = f"its {times(header.shape)} values cannot be in {size} bytes"
        raise DataFileError(path, expected, found, "It was cut short: copy or write it again.")


def write_matrix_market(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a matrix, sparse or dense; compressed if the name says so."""
    from scipy.io import mmwrite

    values = sparse_in_file(matrix).tocoo() if sparse.issparse(matrix.values) else array_in_file(matrix)
    # Numbers of single bytes and truth values are not known there.
    values = values.astype(np.int64) if values.dtype.kind in "biu" else values
    with temporary.open("wb") as file:
        if temporary.suffix == ".gz":
            with gzip.GzipFile(fileobj=file, mode="wb") as packed:
                mmwrite(cast(IO[bytes], packed), values, symmetry="general")
        else:
            mmwrite(file, values, symmetry="general")


_WORDS = "a matrix of the Matrix Market", "Write it with scipy.io.mmwrite, as numbers."
FORMATS = (
    Format(
        "mtx",
        *_WORDS,
        read_matrix_market,
        (".mtx", ".mtx.gz"),
        (_SIGNATURE,),
        write=write_matrix_market,
        holds_sparse=True,
    ),
)
