"""Tables of Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.reading.errors import DataFileError, OversizedError, extra, shortened
from robustnmf.reading.table import Found, Options, Table, check_array, check_size, refuse_key

_MAX_NAMES = 2**28
"""How long the names of the samples may be together, in characters: 256 Mi."""


def read_parquet(path: Path, options: Options) -> Table:
    """Read the numeric columns of a Parquet file, one group of rows after the other."""
    refuse_key(path, options.key)
    pyarrow, parquet = extra("pyarrow", "pyarrow"), extra("pyarrow.parquet", "pyarrow")
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        labels, columns = _parquet_columns(path, pyarrow, schema)
    # Words are kept once: the same long one in each row needs a few bytes in the file, and gigabytes when written out.
    with parquet.ParquetFile(path, read_dictionary=[schema.names[i] for i in labels]) as file:
        rows = _checked_rows(path, file.metadata, options.max_bytes)
        dtype = np.float32 if all(str(schema.types[i]) in ("float", "halffloat") for i in columns) else np.float64
        check_array(path, "", Found((rows, len(columns)), np.dtype(dtype)), options.max_bytes)
        values = np.empty((rows, len(columns)), dtype)
        names = _Names()
        start = 0
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            block = values[start : start + len(group)]
            for place, column in enumerate(columns):
                # Not `safe`: integers beyond 2**53 are rounded, as everywhere else.
                block[:, place] = group.column(column).cast(pyarrow.float64(), safe=False).to_numpy()
            names.add([_words(pyarrow, group.column(label)) for label in labels])
            start += len(group)
    if start != rows:
        raise ValueError(f"{rows} rows are declared, {start} are there")
    return Table(values, names.all if labels else None, [schema.names[i] for i in columns])


def _checked_rows(path: Path, metadata: Any, max_bytes: int) -> int:
    """Return the number of rows, after a check of what is declared of the groups of rows."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for group in groups:
        check_size(path, (group.total_byte_size,), 1, max_bytes)
    rows = int(metadata.num_rows)
    if sum(group.num_rows for group in groups) != rows:
        raise ValueError(f"{rows} rows are declared, and another number in groups")
    return rows


class _Names:
    """Names of samples, as long as they are not too long together."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.length = 0

    def add(self, columns: Sequence[Sequence[str]]) -> None:
        """Add one name for each row, from one or more columns."""
        self.length += sum(len(word) for column in columns for word in column)
        if self.length > _MAX_NAMES:
            raise OversizedError(f"its names have more than {_MAX_NAMES} characters together, the most that is read")
        self.all += [" / ".join(row) for row in zip(*columns, strict=True)]


def _words(pyarrow: Any, column: Any) -> list[str]:
    """Return the entries of a column as words, each kept once."""
    words: list[str] = []
    for chunk in column.chunks:
        coded = chunk if pyarrow.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        known = ["" if word is None else str(word) for word in coded.dictionary.to_pylist()]
        words += ["" if code is None else known[code] for code in coded.indices.to_pylist()]
    return words


def _parquet_columns(path: Path, pyarrow: Any, schema: Any) -> tuple[list[int], list[int]]:
    """Return the places of the columns with names of samples, and those of the numeric ones."""
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
    labels = [i for i, name in enumerate(schema.names) if name in index]
    numeric = [_is_number(pyarrow.types, kind) for kind in schema.types]
    if not labels and numeric and not numeric[0]:
        labels = [0]
    columns = [i for i in range(len(numeric)) if i not in labels]
    for i in range(len(numeric)):
        is_word = i in labels and not pyarrow.types.is_nested(schema.types[i])
        if not numeric[i] and not is_word:
            raise DataFileError(
                path,
                "a table of numbers, but for names in the first column",
                f"column {shortened(schema.names[i])!r} is of type {shortened(str(schema.types[i]))}",
                "Remove the column or make it numeric.",
            )
    return labels, columns


def _is_number(types: Any, kind: Any) -> bool:
    """Return whether a column of this type becomes floats."""
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)
