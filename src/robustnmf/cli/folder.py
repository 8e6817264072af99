"""The files that the commands write: results in the shape and format of the input, if it has a writer."""

import csv
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from robustnmf.cli.console import json_text
from robustnmf.formats import ArrayLayout, Axis, LabelledMatrix, Source
from robustnmf.formats.format import Format
from robustnmf.formats.registry import FORMATS
from robustnmf.utils.files import check_owned, check_owned_folder, is_sealed, write_folder, write_owned

# Suffixes that stand behind that of the format.
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# What is written where the format of the input has no writer.
PLAIN = (".csv", ".tsv", ".npy", ".npz")


# --- Where results go -------------------------------------------------------------------------------------------------


def default_folder(data: Path) -> Path:
    """Return the folder of the results of data: its name without the suffix of its format.

    Examples
    --------
    >>> [str(default_folder(Path(name))) for name in ("site.2022.csv", "site.2023.csv.gz", "faces")]
    ['site.2022-robustnmf', 'site.2023-robustnmf', 'faces-robustnmf']
    """
    name = data.absolute().name
    for suffixes in (COMPRESSED, {suffix for known in FORMATS for suffix in known.suffixes}):
        stem, suffix = os.path.splitext(name)
        name = stem if suffix.lower() in suffixes and stem else name
    return Path(f"{name or 'data'}-robustnmf")


def check_free(path: Path, force: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse to replace what exists unless told to, what this package did not write, and what is read."""
    if not os.path.lexists(path):
        return
    for source in inputs:
        if source is not None and source.exists() and path.resolve() in (source.resolve(), *source.resolve().parents):
            raise FileExistsError(f"{path} holds the input {source}, so it is not replaced. Choose another name.")
    if not force:
        raise FileExistsError(f"{path} exists. Choose another name with --out, or pass --force to replace it.")


def check_result(path: Path | None, force: bool, inputs: Iterable[Path | None]) -> None:
    """Refuse a result that would replace a file, before the work begins."""
    if path is None:
        return
    check_free(path, force, inputs)
    if path.is_dir() and not path.is_symlink():
        check_owned_folder(path)
    elif not (path.is_file() and is_sealed(path)):  # a report says itself who wrote it
        check_owned(path)


# --- Results as matrices ----------------------------------------------------------------------------------------------


def component_names(count: int) -> list[str]:
    """Return names of components."""
    return [f"component {k + 1}" for k in range(count)]


def codes_of(table: LabelledMatrix, codes: Any) -> LabelledMatrix:
    """Return codes with the samples of the data: of pixels, maps."""
    return _related(table, codes, table.samples, Axis(component_names(codes.shape[1])))


def components_of(table: LabelledMatrix, components: Any) -> LabelledMatrix:
    """Return components with the features of the data: of pixels, images."""
    return _related(table, components, Axis(component_names(len(components)), "component"), table.features)


def entries_of(table: LabelledMatrix, values: Any) -> LabelledMatrix:
    """Return values of all entries of the data, as they lie in its file: cleaned data, or a mask of outliers."""
    if sparse.issparse(table.values) and not sparse.issparse(values):  # small sparse data is worked on densely
        values = sparse.csr_array(values)
    matrix = table.with_values(values)
    if matrix.source is not None and values.dtype == bool:
        matrix = changed(matrix, source=changed(matrix.source, dtype=np.dtype(bool)))
    is_turned = matrix.source is not None and matrix.source.options.transpose
    return matrix.transposed if is_turned else matrix


def _related(table: LabelledMatrix, values: Any, samples: Axis, features: Axis) -> LabelledMatrix:
    """Return values of other samples or features: an array if they are points of a grid, else a table."""
    values = np.asarray(values)
    grids = [axis.grid or (count,) for axis, count in zip((samples, features), values.shape, strict=True)]
    names = [axis.grid_names or (None,) * len(grid) for axis, grid in zip((samples, features), grids, strict=True)]
    source = table.source or Source()
    if max(map(len, grids)) > 1:
        axes = tuple(name or "component" for name in names[0] + names[1])
        source = changed(source, layout=ArrayLayout(grids[0] + grids[1], tuple(range(len(grids[0]))), axes))
    elif source.layout is not None:  # it is a table, whatever the data was
        source = Source()
    return LabelledMatrix(values, samples, features, source=changed(source, dtype=values.dtype))


# --- Writing ----------------------------------------------------------------------------------------------------------


def write_into(place: Path, name: str, matrix: LabelledMatrix) -> None:
    """Write a matrix into a new folder of results, in the format of its source."""
    source = matrix.source or Source()
    known = next((known for known in FORMATS if known.name == source.format and known.write is not None), None)
    if known is not None and known.write is not None:
        suffix = known.suffix_written or next(iter(known.suffixes), "")
        known.write(place / f"{name}{suffix}", matrix)
    else:
        write_matrix(place / f"{name}{_plain_suffix(matrix)}", matrix)


def _plain_suffix(matrix: LabelledMatrix) -> str:
    """Return the suffix of a matrix whose format has no writer: text for text and for tables with names."""
    if sparse.issparse(matrix.values):
        return ".npz"
    source = matrix.source or Source()
    is_text = any(known.has_words for known in FORMATS if known.name == source.format)
    is_named_table = not source.format and matrix.sample_names is not None and matrix.feature_names is not None
    return ".csv" if is_text or is_named_table else ".npy"


def write_matrix(path: Path, matrix: LabelledMatrix, *, replace: bool = False) -> None:
    """Write a matrix in the format that the suffix of the path says, or into a folder of the format that it is of.

    What UTF-8 cannot hold of a name, bytes of a path that are no text, is written as escapes.
    """
    known = _writer(path, matrix)
    if known is not None and known.write is not None and not path.suffix:
        with write_folder(path, replace=replace) as place:
            known.write(place, matrix)
        return
    with write_owned(path, replace=replace) as temporary:
        if known is not None and known.write is not None:
            known.write(temporary, matrix)
        elif path.suffix.lower() in PLAIN:
            _write_plainly(temporary, path.suffix.lower(), matrix)
        else:
            suffixes = sorted({*PLAIN, *(suffix for other in FORMATS if other.write for suffix in other.suffixes)})
            raise ValueError(f"Results are written as {' '.join(suffixes)}; got {path.name}. Choose another suffix.")


def _writer(path: Path, matrix: LabelledMatrix) -> Format | None:
    """Return the format that writes a file of this name; without a suffix, a folder of the format of the source."""
    suffix, source = path.suffix.lower(), matrix.source or Source()
    for known in FORMATS:
        if known.write is not None and (suffix in known.suffixes if suffix else known.name == source.format):
            return known
    return None


def _write_plainly(path: Path, suffix: str, matrix: LabelledMatrix) -> None:
    values, is_sparse = matrix.values, sparse.issparse(matrix.values)
    if suffix == ".npz" and not is_sparse:
        raise ValueError("Only sparse results are written as .npz; choose .npy.")
    if suffix != ".npz":
        values = dense(values)
    if suffix in (".npy", ".npz"):
        with path.open("wb") as file:
            if suffix == ".npz":
                sparse.save_npz(file, values)
            else:
                np.save(file, values if is_sparse else matrix.array(), allow_pickle=False)
        return
    rows, columns = matrix.sample_names, matrix.feature_names
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as text:
        writer = csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
        if columns is not None:
            writer.writerow(([] if rows is None else [matrix.samples.title or ""]) + list(columns))
        for i, row in enumerate(values.astype(int) if values.dtype == bool else values):
            writer.writerow(([] if rows is None else [rows[i]]) + row.tolist())


def dense(values: Any) -> Any:
    """Return an array of what may be a sparse matrix."""
    stored: Any = values
    return stored.toarray() if sparse.issparse(values) else values


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON."""
    with write_owned(path) as temporary:
        temporary.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")
