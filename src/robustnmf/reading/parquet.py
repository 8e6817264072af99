"""Tables of Parquet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.reading.errors import DataFileError, extra
from robustnmf.reading.table import Found, Options, Table, check_array, check_size, refuse_key


def read_parquet(path: Path, options: Options) -> Table:
    """Read the numeric columns of a Parquet file, one group of rows after the other."""
    refuse_key(path, options.key)
    pyarrow, parquet = extra("pyarrow", "pyarrow"), extra("pyarrow.parquet", "pyarrow")
    with parquet.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        labels, columns = _parquet_columns(path, pyarrow, schema)
        dtype = np.float32 if all(str(schema.types[i]) in ("float", "halffloat") for i in columns) else np.float64
        check_array(path, "", Found((rows, len(columns)), np.dtype(dtype)), options.max_bytes)
        values = np.empty((rows, len(columns)), dtype)
        names: list[str] = []
        start = 0
        for number in range(file.num_row_groups):
            check_size(path, (file.metadata.row_group(number).total_byte_size,), 1, options.max_bytes)
            group = file.read_row_group(number)
            block = values[start : start + len(group)]
            for place, column in enumerate(columns):
                # Not `safe`: integers beyond 2**53 are rounded, as everywhere else.
                block[:, place] = group.column(column).cast(pyarrow.float64(), safe=False).to_numpy()
            names += _joined(group.column(label).to_pylist() for label in labels)
            start += len(group)
    if start != rows:
        raise ValueError(f"{rows} rows are declared, {start} are there")
    return Table(values, names if labels else None, [schema.names[i] for i in columns])


def _parquet_columns(path: Path, pyarrow: Any, schema: Any) -> tuple[list[int], list[int]]:
    """Return the places of the columns with names of samples, and those of the numeric ones."""
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
    labels = [i for i, name in enumerate(schema.names) if name in index]
    numeric = [_is_number(pyarrow.types, kind) for kind in schema.types]
    if not labels and numeric and not numeric[0]:
        labels = [0]
    columns = [i for i in range(len(numeric)) if i not in labels]
    for i in columns:
        if not numeric[i]:
            raise DataFileError(
                path,
                "a table of numbers, but for names in the first column",
                f"column {schema.names[i]!r} is of type {schema.types[i]}",
                "Remove the column or make it numeric.",
            )
    return labels, columns


def _is_number(types: Any, kind: Any) -> bool:
    """Return whether a column of this type becomes floats."""
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)


def _joined(columns: Iterable[list[Any]]) -> list[str]:
    """Return one name for each row, from one or more columns."""
    return [" / ".join("" if part is None else str(part) for part in row) for row in zip(*columns, strict=True)]
