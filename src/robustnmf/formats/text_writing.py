"""Writing of tables of text."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.table_writing import Cell, number_text, table_rows


def write_text(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a matrix as a table of text, with delimiter, decimal mark and encoding of the file that it comes from.

    What the encoding cannot hold makes it UTF-8. A path that ends in .gz is compressed.
    """
    about: Any = {} if matrix.source is None else matrix.source.about
    delimiter = about.get("delimiter", "," if ".csv" in temporary.suffixes else "\t")
    delimiter = "\t" if delimiter is None and _has_empty_texts(matrix) else delimiter
    with _opened(temporary, _encoding(about.get("encoding") or "utf-8", matrix)) as text:
        writer = csv.writer(text, delimiter=delimiter or " ", lineterminator="\n")
        for row in table_rows(matrix):
            cells = _cells(row, about.get("decimal", "."), "NA" if delimiter is None else "")
            # Spaces part no empty cells: as in tables of R, nothing stands above names without a title.
            writer.writerow(cells[1:] if delimiter is None and cells[0] == "" else cells)


def _cells(row: list[Cell], decimal: str, missing: str) -> list[str]:
    cells = [cell if isinstance(cell, str) else number_text(cell).replace(".", decimal) or missing for cell in row]
    return cells if any(map(str.strip, cells)) else ["NA", *cells[1:]]  # an empty line is no row


@contextmanager
def _opened(temporary: Path, encoding: str) -> Iterator[IO[str]]:
    with ExitStack() as stack:
        file: Any = stack.enter_context(temporary.open("wb"))
        if temporary.suffix.lower() == ".gz":
            file = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        yield stack.enter_context(io.TextIOWrapper(cast(IO[bytes], file), encoding, newline=""))


def _has_empty_texts(matrix: LabelledMatrix) -> bool:
    """Return whether texts are empty, or hold ends of lines, so that spaces cannot part them."""
    samples, features = matrix.samples, matrix.features
    texts = [*(samples.names or ()), *samples.columns, *(features.names or ()), *(features.units or ())]
    texts += [text for column in samples.columns.values() for text in column]
    is_beside = matrix.source is not None and matrix.source.about.get("label_places", (0,))[:1] not in ((), (0,))
    return is_beside or features.units is not None or any(not text.strip() or not text.isprintable() for text in texts)


def _encoding(encoding: str, matrix: LabelledMatrix) -> str:
    samples, features = matrix.samples, matrix.features
    texts = [*(samples.names or ()), samples.title or "", *(features.names or ()), *(features.units or ())]
    texts += [text for title, column in samples.columns.items() for text in (title, *column)]
    try:
        "".join(texts).encode(encoding)
    except UnicodeEncodeError:
        return "utf-8"
    return encoding
