"""The files that the commands write: in full or not at all, and never over others unasked."""

import csv
import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robustnmf.files import write_atomically
from robustnmf.reading import Table

Matrix = NDArray[Any]
Format = Literal["csv", "npy"]


@contextmanager
def new_folder(path: Path, force: bool) -> Iterator[Path]:
    """Give a folder to write to; it takes the place of `path` when all is written, or vanishes on failure."""
    check_free(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        _take_place(temporary, path)
    finally:
        _remove(temporary)


def check_free(path: Path, force: bool) -> None:
    """Refuse to replace what exists, unless told to."""
    if os.path.lexists(path) and not force:
        raise FileExistsError(f"{path} exists. Choose another name with --out, or pass --force to replace it.")
    if force and path.is_dir() and any(path.iterdir()) and not (path / "summary.json").is_file():
        raise FileExistsError(f"{path} is a folder that robustnmf did not write; --force does not replace it.")


def _take_place(new: Path, path: Path) -> None:
    """Put a folder in the place of an older one, if there is one; `new` then is the older, or nothing."""
    if not os.path.lexists(path):
        os.replace(new, path)
    elif not _exchange(new, path):
        _replace_in_two_steps(new, path)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, so that a kill leaves the old or the new; False if the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _replace_in_two_steps(new: Path, path: Path) -> None:
    """Put a folder in the place of an older one, which comes back if that fails or is interrupted."""
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        os.replace(path, aside / "old")
        os.replace(new, path)
    finally:
        if os.path.lexists(aside / "old") and not os.path.lexists(path):
            os.replace(aside / "old", path)
        _remove(aside)


def _remove(path: Path) -> None:
    """Remove a folder, or what a user has put in its place."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def format_of(path: Path) -> Format:
    """Return the format of results: text for text, else NumPy's."""
    return "csv" if path.suffix.lower() in (".csv", ".tsv", ".txt") else "npy"


def write_matrix(
    path: Path, values: Matrix, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> None:
    """Write a matrix as CSV, with its names, or as NumPy array, by the suffix of the path."""
    with write_atomically(path) as temporary:
        if path.suffix.lower() == ".npy":
            with temporary.open("wb") as file:
                np.save(file, values, allow_pickle=False)
            return
        if path.suffix.lower() not in (".csv", ".tsv"):
            raise ValueError(f"Results are written as .csv, .tsv or .npy; got {path.name}.")
        with temporary.open("w", newline="", encoding="utf-8") as text:
            writer = csv.writer(text, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", lineterminator="\n")
            if columns is not None:
                writer.writerow(([] if rows is None else [""]) + list(columns))
            for i, row in enumerate(values.astype(int) if values.dtype == bool else values):
                writer.writerow(([] if rows is None else [rows[i]]) + row.tolist())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON."""
    with write_atomically(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def component_names(count: int) -> list[str]:
    """Return names of components."""
    return [f"component {k + 1}" for k in range(count)]


def names(table: Table) -> tuple[list[str] | None, list[str] | None]:
    """Return the names of samples and features."""
    return table.sample_names, table.feature_names
