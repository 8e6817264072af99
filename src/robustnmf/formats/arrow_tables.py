"""Tables of Arrow, in files of Parquet and Feather: which columns are names, texts and numbers; and their writing."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix, Source
from robustnmf.formats.table_layout import column_place
from robustnmf.formats.table_writing import arranged, label_places, labels_of
from robustnmf.utils.extras import optional

MAX_NAMES = 2**28
"""How long the names of the samples, and other texts about them, may be together, in characters: 256 Mi."""

_UNITS = b"units"
_NO_TITLE = "__index_level_0__"
"""What pandas calls an index without a name."""

_MIDNIGHT = " 00:00:00"

_TYPES, _HAS_INDEX = "arrow_types", "arrow_index"
"""What of a file its writer needs: types of columns of text, and whether one of them is the index of pandas."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a table hold.

    Parameters
    ----------
    names : list of str
        Columns that name the samples; of several, the names are joined.
    texts : list of str
        Other columns that are not numeric.
    numeric : list of str
        Columns of numbers.
    dtype : dtype
        Type that has room for the numbers.
    units : list of str or None
        Units of the columns of numbers.
    places : tuple of int
        Where the columns of text are among all that are kept.
    types : dict
        Types of Arrow of the columns of text, by their names.
    has_index : bool
        Whether pandas takes some of the columns for the index.
    """

    names: list[str]
    texts: list[str]
    numeric: list[str]
    dtype: np.dtype[Any]
    units: list[str] | None
    places: tuple[int, ...]
    types: dict[str, Any]
    has_index: bool

    @property
    def labels(self) -> list[str]:
        """All columns of text."""
        return self.names + self.texts


def columns_of(
    path: str | Path, schema: Any, index_column: str | int | None = None, drop_columns: Sequence[str | int] = ()
) -> Columns:
    """Return the columns of a file: names are in the index of pandas, or else in the first column of text."""
    titles = list(schema.names)
    dropped = {column_place(Path(path), titles, column, "drop_columns") for column in drop_columns}
    kept = [i for i in range(len(titles)) if i not in dropped]
    is_numeric = {i for i in kept if _is_numeric(schema.types[i])}
    is_flag = {i for i in is_numeric if str(schema.types[i]) == "bool"}
    # Truth values beside numbers are flags; alone they are a mask.
    is_numeric -= is_flag if is_flag < is_numeric else set()
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
    names = [i for i in kept if titles[i] in index]
    if index_column is not None:
        names = [column_place(Path(path), titles, index_column, "index_column")]
    names = names or [i for i in kept if i not in is_numeric | is_flag][:1]
    numeric = [i for i in kept if i in is_numeric and i not in names]
    texts = [i for i in kept if i not in is_numeric and i not in names]
    labels = names + texts
    places = {i: place for place, i in enumerate(sorted(labels + numeric))}
    _check_labels(path, schema, labels, numeric)
    is_single = all(str(schema.types[i]) in ("float", "halffloat") for i in numeric)
    units = [(schema.field(i).metadata or {}).get(_UNITS, b"").decode(errors="replace") for i in numeric]
    return Columns(
        [titles[i] for i in names],
        [titles[i] for i in texts],
        [titles[i] for i in numeric],
        np.dtype(np.float32 if is_single else np.float64),
        units if any(units) else None,
        tuple(places[i] for i in (names[:1] + texts)),
        {titles[i]: schema.types[i] for i in labels},
        bool(index),
    )


def _is_numeric(kind: Any) -> bool:
    types = optional("pyarrow.types", "io")
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)


def _check_labels(path: str | Path, schema: Any, labels: Sequence[int], numeric: Sequence[int]) -> None:
    """Raise if a column of text has the name of another, or holds what is no text."""
    counts = Counter(schema.names[i] for i in labels)
    of_numbers = {schema.names[i] for i in numeric}
    repeated = [title for title, count in counts.items() if count > 1 or title in of_numbers]
    if repeated:
        found = f"two columns are named {shortened(repeated[0])!r}"
        raise DataFileError(path, "a table whose names have a column of their own", found, "Rename one of them.")
    for i in labels:
        if optional("pyarrow.types", "io").is_nested(schema.types[i]):
            name, kind = shortened(schema.names[i]), shortened(str(schema.types[i]))
            advice = f"Leave column {name!r} out with drop_columns, or make it numbers or text."
            raise DataFileError(path, "a table of numbers and texts", f"column {name!r} is of type {kind}", advice)


def picked(table: Any, names: Sequence[str]) -> list[Any]:
    """Return the columns of these names, which may repeat; where "a" is asked for, Arrow reads "a.1" as well."""
    found = defaultdict(list)
    for place, name in enumerate(table.schema.names):
        found[name].append(place)
    places = {name: iter(found[name]) for name in names}
    return [table.column(next(places[name])) for name in names]


def words(column: Any) -> list[str]:
    """Return the entries of a column as words, each kept once."""
    types = optional("pyarrow.types", "io")
    coded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    used = coded.indices.unique().drop_null()
    known = {code: str(coded.dictionary[code]) for code in used.to_pylist() if coded.dictionary[code].is_valid}
    return [known.get(code, "") for code in coded.indices.to_pylist()]


class Texts:
    """Collects the columns of text of a table, as long as they are not too long."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.found: list[list[str]] = [[] for _ in columns.labels]
        self.length = 0

    def add(self, batch: Any) -> None:
        """Take the next rows."""
        for found, column in zip(self.found, picked(batch, self.columns.labels), strict=True):
            new = words(column)
            self.length += sum(map(len, new))
            if self.length > MAX_NAMES:
                raise OversizedError(f"its names have more than {MAX_NAMES} characters together, the most read")
            found += new

    def axis(self) -> Axis:
        """Return what is known of the samples."""
        n_names = len(self.columns.names)
        texts = [_days(column) for column in self.found]
        title = " / ".join(self.columns.names)
        others = dict(zip(self.columns.texts, texts[n_names:], strict=True))
        if not n_names:
            return Axis(columns=others)
        names = texts[0] if n_names == 1 else [" / ".join(row) for row in zip(*texts[:n_names], strict=True)]
        return Axis(names, None if title in ("", _NO_TITLE) else title, columns=others)


def _days(texts: list[str]) -> list[str]:
    """Return times as days, as in text that pandas writes, if all are the beginning of one."""
    known = [text for text in texts if text]
    if not known or not all(text.endswith(_MIDNIGHT) for text in known):
        return texts
    return [text.removesuffix(_MIDNIGHT) for text in texts]


def labelled(values: Any, samples: Axis, columns: Columns) -> LabelledMatrix:
    """Return the matrix of a table."""
    about = {"label_places": columns.places, _TYPES: columns.types, _HAS_INDEX: columns.has_index}
    source = Source(dtype=columns.dtype, about=about)
    notes: tuple[str, ...] = ()
    if columns.texts:
        kept = ", ".join(repr(shortened(title)) for title in columns.texts[:5])
        more = " ..." if len(columns.texts) > 5 else ""
        notes = (f"Columns of text are no features, and are kept beside the names: {kept}{more}.",)
    return LabelledMatrix(values, samples, Axis(columns.numeric, units=columns.units), source=source, notes=notes)


def arrow_table(matrix: LabelledMatrix) -> Any:
    """Return a matrix as a table of Arrow; pandas takes its names for the index, unless the file had none.

    Dates and categories have the types that they had in the file.
    """
    arrow = optional("pyarrow", "io")
    labels = labels_of(matrix)
    values = matrix.values if isinstance(matrix.values, np.ndarray) else matrix.values.toarray()
    names = matrix.features.names or [str(place) for place in range(matrix.shape[1])]
    titles = [_title(title, names) for title in labels]
    about: Any = {} if matrix.source is None else matrix.source.about
    types = about.get(_TYPES, {})
    texts = [
        _typed(arrow.array(list(column), arrow.string()), types.get(title or _NO_TITLE))
        for title, column in labels.items()
    ]
    numbers = [arrow.array(np.ascontiguousarray(column), from_pandas=True) for column in values.T]
    units = matrix.features.units or [""] * len(names)
    fields = [arrow.field(title, column.type) for title, column in zip(titles, texts, strict=True)]
    of_features = [
        arrow.field(name, column.type, metadata={_UNITS: unit.encode()} if unit else None)
        for name, column, unit in zip(names, numbers, units, strict=True)
    ]
    places = label_places(matrix, len(labels))
    metadata = _pandas(fields[0], matrix) if about.get(_HAS_INDEX, True) and fields else None
    schema = arrow.schema(arranged(fields, places, of_features), metadata=metadata)
    return arrow.Table.from_arrays(arranged(texts, places, numbers), schema=schema)


def _title(title: str, names: Sequence[str]) -> str:
    return _NO_TITLE if title == "" or title in names else title


def _typed(texts: Any, kind: Any) -> Any:
    """Return a column of text in the type that it had, such as dates or categories, if all of it can be read so."""
    arrow, compute = optional("pyarrow", "io"), optional("pyarrow.compute", "io")
    if kind is None:
        return texts
    is_text = arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_dictionary(kind)
    known = texts if is_text else compute.if_else(compute.equal(texts, ""), None, texts)
    try:
        return (known.dictionary_encode() if arrow.types.is_dictionary(kind) else known).cast(kind)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        return texts


def _pandas(index: Any, matrix: LabelledMatrix) -> dict[bytes, bytes] | None:
    """Return what tells pandas that names, in the field `index`, are the index."""
    if matrix.sample_names is None:
        return None
    is_time = optional("pyarrow.types", "io").is_timestamp(index.type)
    kinds = {"pandas_type": "datetime", "numpy_type": "datetime64[ns]"} if is_time else {}
    name = None if index.name == _NO_TITLE else index.name
    about = {"name": name, "field_name": index.name, "metadata": None}
    column = about | {"pandas_type": "unicode", "numpy_type": "object"} | kinds
    known = {"index_columns": [index.name], "column_indexes": [], "columns": [column], "pandas_version": "2.2.0"}
    return {b"pandas": json.dumps(known).encode()}


def with_common_type(columns: Sequence[Columns]) -> Columns:
    """Return the columns of the first of several files, with a type that has room for the numbers of all."""
    return replace(columns[0], dtype=np.result_type(*(each.dtype for each in columns)))
