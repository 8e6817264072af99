"""Rows of cells of a matrix, as they are written to text and to workbooks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from robustnmf.formats.labelled_matrix import LabelledMatrix

Cell = str | float
"""A text, or a number; NaN where an entry is missing."""


def labels_of(matrix: LabelledMatrix) -> dict[str, Sequence[str]]:
    """Return the columns of text of a matrix by their headings, the names first; "" is above names without a title."""
    names = {} if matrix.samples.names is None else {matrix.samples.title or "": matrix.samples.names}
    return {**names, **{title: column for title, column in matrix.samples.columns.items() if title not in names}}


def label_places(matrix: LabelledMatrix, n_labels: int) -> list[int]:
    """Return where the columns of text are among all: where they were in the file, else before the numbers."""
    about = {} if matrix.source is None else matrix.source.about
    places = list(about.get("label_places", ()))
    fits = len(places) == n_labels and all(place < n_labels + matrix.shape[1] for place in places)
    return places if fits else list(range(n_labels))


def arranged(labels: Sequence[Any], places: Sequence[int], features: Sequence[Any]) -> list[Any]:
    """Return a row of all columns."""
    row, rest = dict(zip(places, labels, strict=True)), iter(features)
    return [row[place] if place in row else next(rest) for place in range(len(labels) + len(features))]


def table_rows(matrix: LabelledMatrix) -> Iterator[list[Cell]]:
    """Yield the rows of a table: headings, units, and the samples."""
    labels = labels_of(matrix)
    places = label_places(matrix, len(labels))
    if matrix.features.names is not None:
        yield arranged(list(labels), places, list(matrix.features.names))
        if matrix.features.units is not None:
            about = {} if matrix.source is None else matrix.source.about
            given = tuple(about.get("label_units", ()))
            yield arranged(given if len(given) == len(labels) else [""] * len(labels), places, matrix.features.units)
    for i in range(matrix.shape[0]):
        yield arranged([column[i] for column in labels.values()], places, _numbers(matrix.values, i))


def _numbers(values: Any, row: int) -> list[float]:
    """Return a row of a matrix, dense or sparse, as numbers; truth values are 0 and 1."""
    numbers: Any = values[row] if isinstance(values, np.ndarray) else values[[row]].toarray()[0]
    if numbers.dtype.kind == "f":
        return [float(number) for number in numbers]
    return [int(number) for number in numbers]


def number_text(number: float) -> str:
    """Return the shortest text that is read as the same number; "" for NaN."""
    if math.isnan(number):
        return ""
    text = repr(number)
    return text[:-2] if text.endswith(".0") else text
