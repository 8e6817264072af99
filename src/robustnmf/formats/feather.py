"""Tables of Feather, which are files of Arrow: .feather, .arrow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robustnmf.formats.arrow_batches import MAGIC, batches
from robustnmf.formats.arrow_tables import MAX_NAMES, Texts, arrow_table, columns_of, labelled, picked
from robustnmf.formats.checks import Found, check_array, check_size, refuse_key
from robustnmf.formats.errors import OversizedError
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.limits import check_expansion, room_for_chunk
from robustnmf.formats.options import ReadOptions
from robustnmf.utils.extras import optional


def read_feather(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a file of Feather, one batch of rows after the other."""
    refuse_key(path, options.key)
    check_size(path, (path.stat().st_size,), 1, options.max_bytes)
    arrow, ipc = optional("pyarrow", "io"), optional("pyarrow.ipc", "io")
    with arrow.OSFile(str(path)) as file, ipc.open_file(file) as reader:
        columns = columns_of(path, reader.schema, options.index_column, options.drop_columns)
        n_rows = _check(path, len(columns.numeric), columns.dtype, options.max_bytes)
        values, texts = np.empty((n_rows, len(columns.numeric)), columns.dtype), Texts(columns)
        start = 0
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate(full=True)  # places of words may lie outside of the memory
            stop = start + batch.num_rows
            for k, column in enumerate(picked(batch, columns.numeric)):
                # Not `safe`: integers beyond 2**53 are rounded, as everywhere else.
                values[start:stop, k] = column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
            texts.add(batch)
            start = stop
    if start != n_rows:
        raise ValueError(f"{n_rows} rows are declared, {start} are there")
    return labelled(values, texts.axis(), columns)


def _check(path: Path, n_columns: int, dtype: np.dtype[np.generic], max_bytes: int) -> int:
    """Raise if a file holds less, or unpacks to more, than it may; return the number of its rows."""
    found = list(batches(path))
    n_rows = sum(batch.n_rows for batch in found if not batch.is_dictionary)
    shape = (n_rows, n_columns)
    check_array(path, "", Found(shape, np.dtype(dtype)), max_bytes)
    check_expansion(path, shape, dtype.itemsize, path.stat().st_size)
    most = min(max_bytes, room_for_chunk(shape, dtype.itemsize, max_bytes) + MAX_NAMES)
    for batch in found:
        largest = max(batch.sizes, default=0)
        if largest > most:
            raise OversizedError(f"it has a buffer that unpacks to {largest} bytes, and the limit is {most}")
        check_size(path, (sum(batch.sizes),), 1, max_bytes)
    return n_rows


def write_feather(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a matrix as a file of Feather."""
    table, ipc = arrow_table(matrix), optional("pyarrow.ipc", "io")
    with temporary.open("wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


_WORDS = "a Feather file of version 2", "Write it with pandas or pyarrow."
FORMATS = (
    Format("feather", *_WORDS, read_feather, (".feather", ".arrow"), (MAGIC,), is_table=True, write=write_feather),
)
