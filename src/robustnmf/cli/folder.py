"""The files that the commands write: results in the shape and format of the input."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from scipy import sparse

from robustnmf.cli.console import encodable, json_text
from robustnmf.formats import LabelledMatrix, Source, write_table
from robustnmf.formats.registry import FORMATS, format_by_suffix
from robustnmf.utils.files import check_owned, check_owned_folder, check_writable, is_sealed, write_owned

# Suffixes that stand behind that of the format.
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# Suffixes of formats that hold sparse matrices; without a suffix it is that of the data.
SPARSE = (".npz", ".mtx", ".gz", ".h5ad", "")
# Formats of pictures: they have no place for the names in a table.
PICTURES = ("envi", "image", "image-folder", "tiff", "video")


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
    try:
        check_writable(path)
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise type(error)(f"{path} cannot be written ({problem}). Choose another place with --out.") from error
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
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path} must be in a folder that exists; there is no {path.parent}. Make it first.")
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
    return _table_if_flat(table.other_features(codes, component_names(codes.shape[1])))


def components_of(table: LabelledMatrix, components: Any) -> LabelledMatrix:
    """Return components with the features of the data: of pixels, images."""
    return _table_if_flat(table.other_samples(components, component_names(len(components))))


def _table_if_flat(matrix: LabelledMatrix) -> LabelledMatrix:
    """Return a matrix that is written as text if it is no array, and what the data came in is for pictures."""
    source = matrix.source or Source()
    is_table = source.layout is None and source.format in PICTURES
    return changed(matrix, source=changed(source, format="text", about={})) if is_table else matrix


def entries_of(matrix: LabelledMatrix, values: Any, like: LabelledMatrix) -> LabelledMatrix:
    """Return a matrix with other values; sparse if the data that it is like is, which may be worked on densely."""
    is_as_data = sparse.issparse(values) or not sparse.issparse(like.values)
    return matrix.with_values(values if is_as_data else sparse.csr_array(values))


def mask_of(table: LabelledMatrix, outliers: Any) -> Any:
    """Return the outliers of data, sparse if the data is; those of data that is not in memory come in blocks."""
    if hasattr(outliers, "blocks"):
        return sparse.vstack([sparse.csr_array(block) for _, block in outliers.blocks()], format="csr")
    return entries_of(table, outliers, like=table).values


def dense(values: Any) -> Any:
    """Return an array of what may be a sparse matrix."""
    stored: Any = values
    return stored.toarray() if sparse.issparse(values) else values


# --- Writing ----------------------------------------------------------------------------------------------------------


def write_matrix(path: Path, matrix: LabelledMatrix, *, replace: bool = False) -> Path:
    """Write a matrix in the format that the suffix of the path says, or without one in that of its source.

    Samples are in columns if they were so in the file. What UTF-8 cannot hold of a name in a table, bytes of a path
    that are no text, is written as escapes.
    """
    if path.suffix and format_by_suffix(path) is None:
        suffixes = sorted(suffix for known in FORMATS if known.write is not None for suffix in known.suffixes)
        raise ValueError(f"Results are written as {' '.join(suffixes)}; got {path.name}. Choose another suffix.")
    source = matrix.source or Source()
    if source.format not in PICTURES:
        matrix = matrix.with_names(*(_encodable(names) for names in (matrix.sample_names, matrix.feature_names)))
    if source.options.transpose:
        options = changed(source.options, transpose=False)  # it is turned here, and by nobody else
        matrix = changed(matrix, source=changed(source, options=options)).transposed
    if path.suffix.lower() not in SPARSE:
        matrix = matrix.with_values(dense(matrix.values))
    return write_table(path, matrix, replace=replace)


def _encodable(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else [encodable(name) for name in names]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as JSON."""
    with write_owned(path) as temporary:
        temporary.write_text(json_text(content, indent=2) + "\n", encoding="utf-8")
