"""Tables of Parquet: numeric columns, beside which others may hold the names of the samples."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise, takewhile
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.arrow_tables import (
    MAX_NAMES,
    Columns,
    Texts,
    arrow_table,
    columns_of,
    labelled,
    picked,
    with_common_type,
)
from robustnmf.formats.checks import Found, check_array, check_size, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, broken_is_data_file_error, shortened
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix
from robustnmf.formats.limits import SMALL, check_expansion, room_for_chunk
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.parquet_pages import page_sizes
from robustnmf.utils.cached import cached_property
from robustnmf.utils.extras import optional

_WORDS = "a Parquet file", "Write it with pandas or pyarrow."


def read_parquet(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a Parquet file, one group of rows after the other."""
    refuse_key(path, options.key)
    rows = ParquetRows((str(path),), options.max_bytes, options.index_column, tuple(options.drop_columns))
    check_array(path, "", Found(rows.shape, rows.dtype), options.max_bytes)
    largest = rows.check()
    values = rows.read(0, rows.shape[0])
    return labelled(values, rows.samples(largest), rows.all_columns)


def write_parquet(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a matrix as a Parquet file."""
    with temporary.open("wb") as file:
        optional("pyarrow.parquet", "io").write_table(arrow_table(matrix), file)


class _Group(NamedTuple):
    """A group of rows in a file: the first of them, and the one behind the last."""

    path: str
    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class ParquetRows:
    """The numeric columns of Parquet files as one matrix, with NaN for nulls; no fit has to hold all of it in memory.

    Parameters
    ----------
    paths : tuple of str
        Files with the same columns. `of` finds those of a folder.
    max_bytes : int
        Most bytes that a group of rows may take when it is unpacked.
    index_column : str, int or None
        Column that names the samples, see `ReadOptions`.
    drop_columns : tuple of str and int
        Columns that are left out.
    """

    paths: tuple[str, ...]
    max_bytes: int = sys.maxsize
    index_column: str | int | None = None
    drop_columns: tuple[str | int, ...] = ()

    @classmethod
    def of(cls, path: str | PathLike[str]) -> ParquetRows:
        """Return the rows of a file, or of all files in a folder by the order of their names.

        Parameters
        ----------
        path : path-like
            The file or folder.

        Returns
        -------
        ParquetRows
            The rows.
        """
        place = Path(path)
        paths = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
        if not paths:
            raise FileNotFoundError(f"{place} has no files that end in .parquet.")
        return cls(tuple(str(path) for path in paths))

    @cached_property
    def _stored(self) -> tuple[Columns, list[_Group]]:
        columns, groups = [], list[_Group]()
        for path in self.paths:
            with _opened(path) as file:
                columns.append(columns_of(path, file.schema_arrow, self.index_column, self.drop_columns))
                counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
                if sum(counts) != file.metadata.num_rows:
                    raise ValueError(f"{file.metadata.num_rows} rows are declared, and another number in groups")
            if absent := Counter(columns[0].numeric) - Counter(columns[-1].numeric):
                found = f"it has no numbers in {shortened(next(iter(absent)))!r}"
                raise DataFileError(path, f"a table with the columns of {self.paths[0]}", found, "Add the column.")
            starts = pairwise(accumulate(counts, initial=groups[-1].stop if groups else 0))
            groups += [_Group(path, i, *ends) for i, ends in enumerate(starts)]
        return with_common_type(columns), groups

    @property
    def all_columns(self) -> Columns:
        """What the columns hold, those of text included."""
        return self._stored[0]

    @property
    def columns(self) -> list[str]:
        """Names of the numeric columns."""
        return self._stored[0].numeric

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of all files, and numeric columns."""
        columns, groups = self._stored
        return groups[-1].stop if groups else 0, len(columns.numeric)

    @property
    def dtype(self) -> Any:
        """float32 if all columns fit into it, else float64."""
        return self._stored[0].dtype

    def check(self) -> int:
        """Raise if files hold less, or unpack to more, than they may; return the size of the largest page of names.

        Returns
        -------
        int
            Size of the largest page of names, in bytes.
        """
        stored = sum(Path(path).stat().st_size for path in self.paths)
        check_expansion(self.paths[0], self.shape, self.dtype.itemsize, stored)
        labels, room = self._stored[0].labels, room_for_chunk(self.shape, self.dtype.itemsize, self.max_bytes)
        largest = 0
        for file, group in self._opened_groups(0, self.shape[0]):
            metadata, total = file.metadata.row_group(group.number), 0
            with Path(group.path).open("rb") as content:
                for column in map(metadata.column, range(metadata.num_columns)):
                    is_label = column.path_in_schema in labels
                    most = min(self.max_bytes, room + MAX_NAMES) if is_label else room
                    for size in page_sizes(content, column):
                        if size > most:
                            raise OversizedError(f"it has a page that unpacks to {size} bytes, and the limit is {most}")
                        total += size
                        largest = max(largest, size) if is_label else largest
            check_size(group.path, (total,), 1, self.max_bytes)
        return largest

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows, from the row groups that have them.

        Parameters
        ----------
        start, stop : int
            The first row, and the one after the last.

        Returns
        -------
        ndarray (stop - start, n_features)
            The rows.
        """
        number = optional("pyarrow", "io").float64()
        values = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        for file, group in self._opened_groups(start, stop):
            table = file.read_row_group(group.number, columns=list(dict.fromkeys(self.columns)))
            if len(table) != group.stop - group.start:
                raise ValueError(f"{group.stop - group.start} rows are declared, {len(table)} are there")
            first, last = max(start, group.start), min(stop, group.stop)
            for k, column in enumerate(picked(table.slice(first - group.start, last - first), self.columns)):
                # Not `safe`: integers beyond 2**53 are rounded, as everywhere else.
                values[first - start : last - start, k] = column.cast(number, safe=False).to_numpy()
        return values

    def samples(self, largest: int) -> Axis:
        """Return what is known of the samples; no page of it is larger than so many bytes.

        Parameters
        ----------
        largest : int
            Size of the largest page of names, in bytes, as `check` returns it.

        Returns
        -------
        Axis
            What is known of the samples.
        """
        columns, texts = self._stored[0], Texts(self._stored[0])
        if not columns.labels:
            return Axis()
        # A word may go on from the one before it, and all of them be as long as a page.
        at_a_time = max(1, min(1024, SMALL // max(1, largest)))
        for file, group in self._opened_groups(0, self.shape[0]):
            for batch in file.iter_batches(at_a_time, row_groups=[group.number], columns=columns.labels):
                texts.add(batch)
        if len(texts.found[0]) != self.shape[0]:
            raise ValueError(f"{self.shape[0]} rows are declared, {len(texts.found[0])} have a name")
        return texts.axis()

    def _opened_groups(self, start: int, stop: int) -> Iterator[tuple[Any, _Group]]:
        """Yield the row groups that have some rows, each with its file, which is opened once for all of them."""
        columns, groups = self._stored
        first = bisect_right(groups, start, key=lambda group: group.stop)
        wanted = takewhile(lambda group: group.start < stop, groups[first:])
        for path, of_file in groupby(wanted, key=lambda group: group.path):
            with _opened(path, columns.labels) as file:
                yield from ((file, group) for group in of_file)

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return blocks that end where row groups do; a group larger than a block is one.

        Parameters
        ----------
        block_bytes : int
            Size of a block.

        Returns
        -------
        list of (int, int)
            The first row of each block, and the one after its last.
        """
        with broken_is_data_file_error(Path(self.paths[0]), *_WORDS):
            self.check()
        ends, row_bytes = [group.stop for group in self._stored[1]], self.shape[1] * self.dtype.itemsize
        cuts, first = [], 0
        for end, after in pairwise([*ends, self.shape[0]]):
            if (after - first) * row_bytes > block_bytes or after == end:
                cuts.append((first, end))
                first = end
        return [(a, b) for a, b in cuts if a < b] or [(first, self.shape[0])]


def _opened(path: str, words: Sequence[str] = ()) -> Any:
    """Open a file. Words are kept once: the same long one in each row needs gigabytes when it is written out."""
    return optional("pyarrow.parquet", "io").ParquetFile(path, read_dictionary=list(words))


FORMATS = (Format("parquet", *_WORDS, read_parquet, (".parquet",), (b"PAR1",), is_table=True, write=write_parquet),)
