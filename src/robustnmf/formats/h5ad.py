"""Files of AnnData (.h5ad), which are HDF5: a matrix X or a layer, dense or sparse, with names of both axes.

https://anndata.readthedocs.io/en/stable/fileformat-prose.html describes the format. AnnData itself is not needed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.checks import Found, as_matrix, check_array, float_type
from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.format import Format
from robustnmf.formats.hdf5 import HDF5Rows, checked_rows, found_dataset
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix, Source
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.rows import package_of, row_cuts
from robustnmf.formats.sparse_structure import Lines, compressed_problem
from robustnmf.formats.sparse_tables import Declared, assembled, check_declared
from robustnmf.formats.stored import array_in_file, sparse_in_file
from robustnmf.utils.extras import optional

_FORMATS = {"csr_matrix": "csr", "csc_matrix": "csc", "csr": "csr", "csc": "csc"}
"""How attributes of a group call its format; the short names are those of AnnData before 0.7."""

_ARRAYS = ("data", "indices", "indptr")

MAX_NAMES = 2**28
"""Bytes of all names of samples, or of features: 256 Mi, as in Parquet, and no more than the file has."""

_MOST_AT_A_TIME, _PIECE = 4096, 2**24
"""Names that are read at a time, and bytes that they may have together."""


@dataclass(frozen=True)
class SparseHDF5Rows:
    """A sparse matrix in a group of HDF5, as AnnData stores it; its rows are read if it is stored by rows (CSR).

    Parameters
    ----------
    path, name : str
        The file, and the group in it.
    kind : {"csr", "csc"}
        How it is stored.
    shape : (n_rows, n_columns)
    dtype : dtype
        Type in which the numbers are handed on, a floating one.
    n_stored : int
        Number of stored entries.
    """

    path: str
    name: str
    kind: str
    shape: tuple[int, int]
    dtype: Any
    n_stored: int

    @classmethod
    def of(cls, group: Any) -> SparseHDF5Rows:
        """Return the rows of an open group that `is_sparse_group`; DataFileError if it is not what it says."""
        path = str(group.file.filename)
        declared = _declared(Path(path), group)
        check_declared(Path(path), declared, sys.maxsize)
        n_rows, n_columns = declared.shape
        kind, dtype = _kind(group), np.dtype(float_type(declared.dtype))
        return cls(path, group.name, kind, (n_rows, n_columns), dtype, declared.n_stored)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        with optional("h5py", "io").File(self.path, "r") as file:
            yield file[self.name]

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in memory, sparse."""
        index = 4 if max(self.n_stored, *self.shape) < 2**31 else 8
        return self.n_stored * (int(self.dtype.itemsize) + index) + (self.shape[0] + 1) * index

    @property
    def is_by_rows(self) -> bool:
        """Whether rows can be read without reading the whole matrix."""
        return self.kind == "csr"

    def stored(self, start: int, stop: int) -> Any:
        """Return some rows, (stop - start, m), as a sparse matrix; duplicates are summed."""
        self._check_by_rows()
        with self._opened() as group:
            indptr = group["indptr"][start : stop + 1].astype(np.int64)
            self._check_pointers(indptr, start, stop)
            entries = slice(int(indptr[0]), int(indptr[-1]))
            data, indices = (group[name][entries] for name in ("data", "indices"))
        indptr -= indptr[0]
        lines = Lines(stop - start, self.shape[1], first=start)
        self._refuse(compressed_problem(indptr, indices, len(data), lines))
        rows = sparse.csr_array((data.astype(self.dtype), indices, indptr), shape=(stop - start, self.shape[1]))
        rows.sum_duplicates()
        return rows

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some rows."""
        return np.asarray(self.stored(start, stop).toarray())

    def load(self) -> Any:
        """Return the whole matrix by rows."""
        with self._opened() as group:
            return _loaded(Path(self.path), group, *(HDF5Rows.of(group[name]) for name in _ARRAYS))

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        """Return blocks of nearly equal length, of about so many bytes when they are dense."""
        self._check_by_rows()
        with self._opened() as group:
            arrays = [HDF5Rows.of(group[name]) for name in _ARRAYS]
        for array in arrays:
            array.check()
        return row_cuts(self.shape[0], self.shape[1] * self.dtype.itemsize, block_bytes)

    def _check_by_rows(self) -> None:
        if not self.is_by_rows:
            raise DataFileError(
                self.path,
                f"a file whose matrix {self.name} is stored by rows (CSR) if it is read block by block",
                "it is stored by columns (CSC)",
                "Store it anew once, adata.X = adata.X.tocsr() before write_h5ad, or take it into memory.",
            )

    def _check_pointers(self, indptr: NDArray[Any], start: int, stop: int) -> None:
        """Raise unless the entries of these rows are where there are some."""
        if len(indptr) != stop - start + 1:
            self._refuse(f"indptr ends before row {stop}")
        if indptr[0] < 0 or indptr[-1] > self.n_stored or (start == 0 and indptr[0] != 0):
            self._refuse(f"rows {start} to {stop} have entries {indptr[0]} to {indptr[-1]} of {self.n_stored}")
        if stop == self.shape[0] and indptr[-1] != self.n_stored:
            self._refuse(f"indptr ends with {indptr[-1]}, and there are {self.n_stored} values")

    def _refuse(self, problem: str | None) -> None:
        if problem is not None:
            advice = "It is damaged: write it again."
            raise DataFileError(self.path, "a sparse matrix whose indices fit together", problem, advice)


def is_sparse_group(group: Any) -> bool:
    """Return whether a group of HDF5 says that it is a sparse matrix of AnnData."""
    return _kind(group) != ""


def _kind(group: Any) -> str:
    """Return how a sparse matrix is stored; an empty text if the group is none."""
    for name in ("encoding-type", "h5sparse_format"):
        if name in group.attrs:
            given = group.attrs[name]
            text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
            return _FORMATS.get(text, "") if isinstance(text, str) else ""
    return ""


def _declared(path: Path, group: Any) -> Declared:
    """Return what a group says of its sparse matrix, after a look at the kinds of its arrays."""
    data, indices, _ = (_list(path, group, name) for name in _ARRAYS)
    if data.shape != indices.shape:
        expected = "a sparse matrix with an index for each value"
        found = f"it has {data.shape[0]} values and {indices.shape[0]} indices"
        raise DataFileError(path, expected, found, "It is damaged: write it again.")
    return Declared(_shape(group), data.dtype, data.shape[0])


def _list(path: Path, group: Any, name: str) -> Found:
    """Return what is declared of one of the arrays of a sparse matrix, if it is of one dimension and indices are."""
    h5py = optional("h5py", "io")
    node = _member(h5py, group, name)
    found = found_dataset(node) if isinstance(node, h5py.Dataset) else None
    is_integer = found is not None and found.dtype is not None and found.dtype.kind in "iu"
    if found is None or len(found.shape) != 1 or not (is_integer or name == "data"):
        expected = f"a file in which {group.name} has the lists data, indices and indptr, the last two of integers"
        given = "is not there" if found is None else f"is {found}"
        raise DataFileError(path, expected, f"{name} {given}", "Write it with AnnData.write_h5ad.")
    return found


def _shape(group: Any) -> tuple[int, ...]:
    for name in ("shape", "h5sparse_shape"):
        if name in group.attrs:
            attribute = group.attrs.get_id(name)
            if attribute.shape == (2,) and attribute.dtype.kind in "iu":
                return tuple(int(size) for size in group.attrs[name])
    raise ValueError(f"{group.name} has no shape")


def _loaded(path: Path, group: Any, data: HDF5Rows, indices: HDF5Rows, indptr: HDF5Rows) -> Any:
    n_rows, n_columns = _shape(group)
    return assembled(path, _kind(group), (n_rows, n_columns), data.floats(), indices.whole(), indptr.whole())


def read_h5ad(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read X, or the layer that is asked for, with the names of its axes."""
    h5py = optional("h5py", "io")
    with h5py.File(path, "r") as file:
        name, node = _chosen(h5py, path, file, options.key)
        if isinstance(node, h5py.Group):
            declared = _declared(path, node)
            check_declared(path, declared, options.max_bytes, path.stat().st_size)
            arrays = [checked_rows(path, node[array], options.max_bytes) for array in _ARRAYS]
            source = Source(dtype=declared.dtype, about={"key": name})
            table = LabelledMatrix(_loaded(path, node, *arrays), source=source)
        else:
            check_array(path, name, found_dataset(node), options.max_bytes)
            values = checked_rows(path, node, options.max_bytes).floats()
            table = as_matrix(path, values, options, dtype=found_dataset(node).dtype, about={"key": name})
        return _with_names(h5py, path, file, name, table)


def open_h5ad(path: Path, key: str | None) -> LabelledMatrix | None:
    """Return X, or a layer, as rows that are read when they are needed; None unless it is sparse and stored by rows."""
    h5py = optional("h5py", "io")
    with h5py.File(path, "r") as file:
        name, node = _chosen(h5py, path, file, key)
        rows = SparseHDF5Rows.of(node) if isinstance(node, h5py.Group) else None
        if rows is None or not rows.is_by_rows:
            return None
        source = Source("h5ad", dtype=rows.dtype, about={"key": name})
        return _with_names(h5py, path, file, name, LabelledMatrix(rows, source=source))


def _with_names(h5py: Any, path: Path, file: Any, name: str, table: LabelledMatrix) -> LabelledMatrix:
    n_samples, n_features = table.shape
    variables = "raw/var" if name == "raw/X" else "var"
    return table.with_names(
        samples=_names(h5py, path, file, "obs", n_samples),
        features=_names(h5py, path, file, variables, n_features),
    )


def _chosen(h5py: Any, path: Path, file: Any, key: str | None) -> tuple[str, Any]:
    """Return name and node of the matrix to read: X, or a layer by its name."""
    wanted = "X" if key is None else key.strip("/")
    for name in (wanted, f"layers/{wanted}"):
        node = _member(h5py, file, name)
        if isinstance(node, h5py.Dataset) or (isinstance(node, h5py.Group) and is_sparse_group(node)):
            return name, node
    layers = _member(h5py, file, "layers")
    held = ["X"] if _member(h5py, file, "X") is not None else []
    held += [f"layers/{name}" for name in (layers if isinstance(layers, h5py.Group) else ())]
    holds = f"it holds {shortened(', '.join(held) or 'no matrix', 200)}"
    expected = "a file of AnnData with a matrix X, or key must name a layer"
    raise DataFileError(path, expected, f"there is no {shortened(wanted)!r}; {holds}", "Name one of them with key.")


def _member(h5py: Any, group: Any, name: str) -> Any:
    """Return what a group holds under a name, also of several parts; None if there is nothing, or a link elsewhere."""
    node = group
    for part in name.split("/"):
        is_there = isinstance(node, h5py.Group) and part not in ("", ".", "..") and part in node
        if not is_there or not isinstance(node.get(part, getlink=True), h5py.HardLink):
            return None
        node = node[part]
    return node


def _names(h5py: Any, path: Path, file: Any, axis: str, count: int) -> list[str] | None:
    """Return the names of an axis; None if the file has none that are text."""
    frame = _member(h5py, file, axis)
    if isinstance(frame, h5py.Dataset):  # a table of records, before AnnData 0.7
        return None
    index = frame.attrs.get("_index") if isinstance(frame, h5py.Group) else None
    node = _member(h5py, frame, index) if isinstance(index, str) else None
    if isinstance(node, h5py.Group):  # text that may be missing
        node = _member(h5py, node, "values")
    if not isinstance(node, h5py.Dataset) or h5py.check_string_dtype(node.dtype) is None:
        return None
    if node.shape != (count,):
        expected = f"a file with {count} names in {axis}, one for each line of the matrix"
        raise DataFileError(path, expected, f"it has {math.prod(node.shape)}", "It is damaged: write it again.")
    checked_rows(path, node, sys.maxsize)
    return _texts(path, node, count)


def _texts(path: Path, dataset: Any, count: int) -> list[str]:
    """Return the texts of a dataset; all may refer to one that is as long as the file."""
    size = path.stat().st_size
    most = min(MAX_NAMES, size) if dataset.dtype.kind == "O" else MAX_NAMES
    lengths = _lengths(path, dataset, count)
    longest = size if lengths is None else int(lengths.max(initial=0))
    left = most - (0 if lengths is None else int(lengths.sum()))
    names: list[str] = []
    text = dataset.asstr(errors="replace")
    at_a_time = max(1, min(_MOST_AT_A_TIME, _PIECE // max(1, longest)))
    for start in range(0, count, at_a_time):
        if left < 0:
            raise OversizedError(f"its names have more than {most} bytes together")
        piece = list(map(str, text[start : start + at_a_time]))
        left -= sum(map(len, piece)) if lengths is None else 0
        names += piece
    return names


def _lengths(path: Path, dataset: Any, count: int) -> NDArray[Any] | None:
    """Return how many bytes the texts of a dataset have, (count,); None if that is not known before they are read."""
    if dataset.dtype.kind != "O":
        return np.full(count, dataset.dtype.itemsize)
    start = dataset.id.get_offset()
    if start is None:  # in chunks, which may be compressed
        return None
    # Length, place and number of each text, in 4, 8 and 4 bytes.
    places = np.fromfile(path, np.dtype([("length", "<u4"), ("place", "V12")]), count, offset=start)
    return places["length"].astype(np.int64)


def write_h5ad(temporary: Path, matrix: LabelledMatrix, layers: Mapping[str, Any] | None = None) -> None:
    """Write a matrix, dense or sparse, with the names of its axes, as AnnData does.

    Parameters
    ----------
    temporary : Path
        A new file.
    matrix : LabelledMatrix
        It becomes X.
    layers : mapping of str to array of shape (n_samples, n_features), or None
        Further values of the same samples and features, such as a mask of outliers.
    """
    h5py = optional("h5py", "io")
    values = sparse_in_file(matrix) if sparse.issparse(matrix.values) else array_in_file(matrix)
    with h5py.File(temporary, "w") as file:
        _describe(file, "anndata", "0.1.0")
        _write_matrix(file, "X", values)
        _write_names(h5py, file, "obs", matrix.samples, matrix.shape[0])
        _write_names(h5py, file, "var", matrix.features, matrix.shape[1])
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            _describe(file.create_group(name), "dict", "0.1.0")
        for name, layer in (layers or {}).items():
            _write_matrix(file["layers"], name, layer.tocsr() if hasattr(layer, "tocsr") else layer)


def _describe(node: Any, kind: str, version: str) -> None:
    node.attrs["encoding-type"], node.attrs["encoding-version"] = kind, version


def _write_matrix(group: Any, name: str, values: Any) -> None:
    if not hasattr(values, "indptr"):
        _describe(group.create_dataset(name, data=values), "array", "0.2.0")
        return
    stored = group.create_group(name)
    _describe(stored, "csr_matrix", "0.1.0")
    stored.attrs["shape"] = np.array(values.shape, np.int64)
    for part in _ARRAYS:
        stored.create_dataset(part, data=getattr(values, part))


def _write_names(h5py: Any, file: Any, name: str, axis: Axis, count: int) -> None:
    """Write the names of an axis, from 0 on if it has none, and what else is known of each, as a table of AnnData."""
    frame = file.create_group(name)
    _describe(frame, "dataframe", "0.2.0")
    columns = {"_index": axis.names or list(map(str, range(count))), **axis.columns}
    frame.attrs["_index"] = "_index"
    frame.attrs.create("column-order", list(axis.columns), dtype=h5py.string_dtype())
    for title, texts in columns.items():
        _describe(frame.create_dataset(title, data=list(texts), dtype=h5py.string_dtype()), "string-array", "0.2.0")


def _rows_of(X: Any) -> SparseHDF5Rows | None:
    """Return the rows of a sparse group of HDF5, or of AnnData's own object for one, which has it as `group`."""
    if package_of(X) == "anndata" and hasattr(X, "to_memory"):
        X = getattr(X, "group", None)
    is_group = package_of(X) == "h5py" and type(X).__name__ == "Group"
    return SparseHDF5Rows.of(X) if is_group and is_sparse_group(X) else None


_WORDS = "a file of AnnData", "Write it with AnnData.write_h5ad."
FORMATS = (Format("h5ad", *_WORDS, read_h5ad, (".h5ad",), rows_of=_rows_of, write=write_h5ad, holds_sparse=True),)
