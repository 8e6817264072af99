"""Writing of a matrix in the format of the file that it came from, or another one."""

from __future__ import annotations

import os
from dataclasses import replace as changed
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix, Source
from robustnmf.formats.registry import FORMATS, format_by_suffix
from robustnmf.utils.files import write_folder, write_together
from robustnmf.utils.process_state import ignored_warnings


def write_table(
    path: str | os.PathLike[str],
    matrix: LabelledMatrix,
    format: str | None = None,
    dtype: Any = None,
    replace: bool = True,
) -> Path:
    """Write a matrix so that `read_table` returns the same: a stack as a stack, a cube as a cube, a folder as a folder.

    Values are written in the type that they had in the file: numbers are rounded and clipped if it is one of whole
    numbers. A mask, which is a matrix of truth values, becomes 0 and 255 in images and movies.

    Parameters
    ----------
    path : str or path-like
        Where to write. It is there in full or not at all. Only what this package wrote is replaced.
    matrix : LabelledMatrix
        What `read_table` returned, with other values perhaps: ``table.with_values(cleaned)``,
        ``table.other_samples(model.components_)``.
    format : str or None
        Name of the format. None takes that of the suffix, or if there is none that of the file that was read.
    dtype : dtype or None
        Type of the numbers instead of that of the file, such as "float32".
    replace : bool
        Whether a file that this package wrote before may be replaced; FileExistsError if not.

    Returns
    -------
    Path
        What was written: the path, with a suffix if it had none that is known.

    Raises
    ------
    ValueError
        If nothing is written in the format, or it cannot hold the values.
    ForeignFileError
        If there is a file or folder that this package did not write.

    Examples
    --------
    >>> import tempfile
    >>> from robustnmf.formats import read_table
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "cube.npy", np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    >>> table = read_table(folder / "cube.npy", samples="pixels")
    >>> table.shape
    (6, 4)
    >>> written = write_table(folder / "more.npy", table.with_values(table.values * 20))
    >>> cube = np.load(written)
    >>> cube.shape, cube.dtype, int(cube.max())
    ((2, 3, 4), dtype('uint8'), 255)
    """
    path = Path(os.path.expanduser(path))
    kind = _format(path, matrix, format)
    source = matrix.source or Source()
    # Writers get what is in the file, not what is made of it.
    matrix = matrix.transposed if source.options.transpose else matrix
    if dtype is not None:
        matrix = changed(matrix, source=(matrix.source or Source()).with_type(np.dtype(dtype)))
    if format_by_suffix(path) is None:  # site.2022 has no suffix
        path = path.with_name(path.name + _suffix(kind, matrix))
    if sparse.issparse(matrix.values) and not kind.holds_sparse:
        stored: Any = matrix.values
        matrix = matrix.with_values(stored.toarray())
    assert kind.write is not None
    # Other programs read such a folder: nothing is in it but what its format has.
    writing = partial(write_folder, listed_beside=True) if kind.writes_folder else write_together
    with ignored_warnings((Warning, "")), writing(path, replace=replace) as temporary:
        kind.write(temporary, matrix)
    return path


def written_suffix(matrix: LabelledMatrix) -> str:
    """Return the suffix of what `write_table` makes of a matrix in its own format; "" for a folder of images.

    Parameters
    ----------
    matrix : LabelledMatrix
        What is to be written.

    Returns
    -------
    str
        The suffix, with its dot.

    Raises
    ------
    ValueError
        If nothing is written in its format.
    """
    return _suffix(_format(Path(), matrix, None), matrix)


def _suffix(kind: Format, matrix: LabelledMatrix) -> str:
    given = kind.suffix_written
    suffix = given if isinstance(given, str) else given(matrix)
    return suffix or (kind.suffixes[0] if kind.suffixes else "")


def _format(path: Path, matrix: LabelledMatrix, name: str | None) -> Format:
    """Return the format to write: the one that is named, that of the suffix, or that of the file that was read."""
    own = "" if matrix.source is None else matrix.source.format
    found = format_by_suffix(path) if name is None and path.suffix else None
    wanted = found.name if found is not None else name or own
    kind = next((known for known in FORMATS if known.name == wanted), None)
    if kind is None or kind.write is None:
        names = ", ".join(known.name for known in FORMATS if known.write is not None)
        given = repr(wanted) if wanted else f"{str(path)!r}, which has no known suffix"
        raise ValueError(
            f"format must be one that is written ({names}), or the path must have its suffix; got {given}."
        )
    return kind
