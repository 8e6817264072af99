"""Writing of tables of text."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import IO, Any, cast

from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.table_writing import Cell, number_text, table_rows


def write_text(path: Path, matrix: LabelledMatrix) -> None:
    """Write a matrix as a table of text, with delimiter, decimal mark and encoding of the file that it comes from.

    What the encoding cannot hold makes it UTF-8. A path that ends in .gz is compressed.
    """
    about: Any = {} if matrix.source is None else matrix.source.about
    delimiter = about.get("delimiter", "," if ".csv" in path.suffixes else "\t")
    encoding = _encoding(about.get("encoding") or "utf-8", matrix)
    # An empty line is no row, and spaces part no empty cells.
    missing = "NA" if delimiter is None or (matrix.shape[1] == 1 and matrix.sample_names is None) else ""
    with _opened(path) as file, io.TextIOWrapper(file, encoding, newline="") as text:
        if delimiter is None and _has_spaces(matrix):
            delimiter = "\t"
        writer = csv.writer(text, delimiter=delimiter or " ", lineterminator="\n")
        for row in table_rows(matrix):
            writer.writerow(_cells(row, about.get("decimal", "."), missing))


def _cells(row: list[Cell], decimal: str, missing: str) -> list[str]:
    cells = [cell if isinstance(cell, str) else number_text(cell).replace(".", decimal) or missing for cell in row]
    return cells if any(cells) or len(cells) > 1 else ["NA"]


def _opened(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.GzipFile(path, "wb", mtime=0))
    return path.open("wb")


def _has_spaces(matrix: LabelledMatrix) -> bool:
    """Return whether texts have spaces, or are empty, so that spaces cannot part them."""
    samples, features = matrix.samples, matrix.features
    texts = [samples.title or "", *(samples.names or ()), *samples.columns, *(features.names or ())]
    texts += [text for column in samples.columns.values() for text in column]
    return any(not text or len(text.split()) != 1 for text in texts if samples.names or text)


def _encoding(encoding: str, matrix: LabelledMatrix) -> str:
    samples, features = matrix.samples, matrix.features
    texts = [*(samples.names or ()), samples.title or "", *(features.names or ()), *(features.units or ())]
    texts += [text for title, column in samples.columns.items() for text in (title, *column)]
    try:
        "".join(texts).encode(encoding)
    except UnicodeEncodeError:
        return "utf-8"
    return encoding
