"""The files that the commands write."""

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.cli.console import json_text
from robustnmf.formats import LabelledMatrix
from robustnmf.utils.files import write_owned

Matrix = NDArray[Any]
Format = Literal["csv", "npy"]


def check_free(path: Path, force: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse to replace what exists unless told to, what this package did not write, and what is read."""
    if not os.path.lexists(path):
        return
    for source in inputs:
        if source is not None and source.exists() and path.resolve() in (source.resolve(), *source.resolve().parents):
            raise FileExistsError(f"{path} holds the input {source}, so it is not replaced. Choose another name.")
    if not force:
        raise FileExistsError(f"{path} exists. Choose another name with --out, or pass --force to replace it.")


def format_of(path: Path) -> Format:
    """Return the format of results: text for text, else NumPy's."""
    return "csv" if path.suffix.lower() in (".csv", ".tsv", ".txt") else "npy"


def write_matrix(
    path: Path,
    values: Any,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Write a matrix as CSV, with its names, as NumPy array, or as sparse matrix of SciPy, by the suffix of the path.

    What UTF-8 cannot hold of a name, bytes of a path that are no text, is written as escapes.
    """
    is_sparse = sparse.issparse(values)
    with write_owned(path, replace=replace) as temporary:
        if is_sparse and path.suffix.lower() == ".npz":
            with temporary.open("wb") as file:
                sparse.save_npz(file, values)
            return
        if is_sparse:
            values = values.toarray()
        if path.suffix.lower() == ".npy":
            with temporary.open("wb") as file:
                np.save(file, values, allow_pickle=False)
            return
        if path.suffix.lower() not in (".csv", ".tsv"):
            raise ValueError(f"Results are written as .csv, .tsv or .npy, sparse ones also as .npz; got {path.name}.")
        with temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as text:
            writer = csv.writer(text, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
            if columns is not None:
                writer.writerow(([] if rows is None else [""]) + list(columns))
            for i, row in enumerate(values.astype(int) if values.dtype == bool else values):
                writer.writerow(([] if rows is None else [rows[i]]) + row.tolist())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON."""
    with write_owned(path) as temporary:
        temporary.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")


def component_names(count: int) -> list[str]:
    """Return names of components."""
    return [f"component {k + 1}" for k in range(count)]


def names(table: LabelledMatrix) -> tuple[Sequence[str] | None, Sequence[str] | None]:
    """Return the names of samples and features."""
    return table.sample_names, table.feature_names
