"""Tables of Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.limits import SMALL, check_expansion, room_for_chunk
from robustnmf.formats.parquet_pages import page_sizes
from robustnmf.formats.table import Found, Options, Table, check_array, check_size, refuse_key
from robustnmf.utils.extras import optional

_MAX_NAMES = 2**28
"""How long the names of the samples may be together, in characters: 256 Mi."""


def read_parquet(path: Path, options: Options) -> Table:
    """Read the numeric columns of a Parquet file, one group of rows after the other."""
    refuse_key(path, options.key)
    pyarrow, parquet = optional("pyarrow", "io"), optional("pyarrow.parquet", "io")
    with parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        labels, columns = _parquet_columns(path, pyarrow, schema)
    named = [schema.names[i] for i in labels]
    numeric = list(dict.fromkeys(schema.names[i] for i in columns))
    # Words are kept once: the same long one in each row needs a few bytes in the file, and gigabytes when written out.
    with parquet.ParquetFile(path, read_dictionary=named) as file:
        rows = _checked_rows(file.metadata)
        dtype = np.float32 if all(str(schema.types[i]) in ("float", "halffloat") for i in columns) else np.float64
        found = Found((rows, len(columns)), np.dtype(dtype))
        check_array(path, "", found, options.max_bytes)
        check_expansion(path, found.shape, np.dtype(dtype).itemsize, path.stat().st_size)
        largest = _largest_name_page(path, file.metadata, labels, found, options.max_bytes)
        values = np.empty(found.shape, dtype)
        names = _Names()
        start = 0
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, columns=numeric)
            block = values[start : start + len(group)]
            for place in range(len(columns)):
                # Not `safe`: integers beyond 2**53 are rounded, as everywhere else.
                block[:, place] = group.column(place).cast(pyarrow.float64(), safe=False).to_numpy()
            if named:
                # A word may go on from the one before it, and all of them be as long as a page.
                at_a_time = max(1, min(1024, SMALL // max(1, largest)))
                for batch in file.iter_batches(at_a_time, row_groups=[number], columns=named):
                    names.add([_words(pyarrow, column) for column in batch.columns])
            start += len(group)
    if start != rows or (named and len(names.all) != rows):
        raise ValueError(f"{rows} rows are declared, {start} are there")
    return Table(values, names.all if labels else None, [schema.names[i] for i in columns])


def _checked_rows(metadata: Any) -> int:
    """Return the number of rows, after a check of what is declared of the groups of rows."""
    rows = int(metadata.num_rows)
    if sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)) != rows:
        raise ValueError(f"{rows} rows are declared, and another number in groups")
    return rows


def _largest_name_page(path: Path, metadata: Any, labels: Sequence[int], found: Found, max_bytes: int) -> int:
    """Return the size of the largest page of names when unpacked, after a check of all pages."""
    assert found.dtype is not None
    room, largest = room_for_chunk(found.shape, found.dtype.itemsize, max_bytes), 0
    with path.open("rb") as content:
        for number in range(metadata.num_row_groups):
            group, total = metadata.row_group(number), 0
            for place in range(group.num_columns):
                for size in page_sizes(content, group.column(place)):
                    most = min(max_bytes, room + _MAX_NAMES) if place in labels else room
                    if size > most:
                        raise OversizedError(f"it has a page that unpacks to {size} bytes, and the limit is {most}")
                    total += size
                    largest = max(largest, size) if place in labels else largest
            check_size(path, (total,), 1, max_bytes)
    return largest


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
    coded = column if pyarrow.types.is_dictionary(column.type) else column.dictionary_encode()
    used = coded.indices.unique().drop_null()
    known = {code: str(coded.dictionary[code]) for code in used.to_pylist() if coded.dictionary[code].is_valid}
    return [known.get(code, "") for code in coded.indices.to_pylist()]


def _parquet_columns(path: Path, pyarrow: Any, schema: Any) -> tuple[list[int], list[int]]:
    """Return the places of the columns with names of samples, and those of the numeric ones."""
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
    labels = [i for i, name in enumerate(schema.names) if name in index]
    numeric = [_is_number(pyarrow.types, kind) for kind in schema.types]
    if not labels and numeric and not numeric[0]:
        labels = [0]
    columns = [i for i in range(len(numeric)) if i not in labels]
    if {schema.names[i] for i in labels} & {schema.names[i] for i in columns} or len(set(labels)) < len(labels):
        found = f"two columns are named {shortened(schema.names[labels[0]])!r}"
        raise DataFileError(path, "a table whose names have a column of their own", found, "Rename one of them.")
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
