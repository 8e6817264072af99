"""Reading of a file of any format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from robustnmf.errors import LARGEST_CODE, DataQualityWarning
from robustnmf.formats.alignment import UnalignedError, aligned_values
from robustnmf.formats.errors import DataFileError, broken_is_data_file_error, times
from robustnmf.formats.labelled_matrix import CLIPPED, LabelledMatrix, Source
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.registry import format_of
from robustnmf.formats.table_doubts import doubts
from robustnmf.utils.process_state import ignored_warnings
from robustnmf.utils.user_warnings import warn_user


def read_table(path: str | os.PathLike[str], options: ReadOptions | None = None, **changes: Any) -> LabelledMatrix:
    r"""Return the data in a file or folder.

    Parameters
    ----------
    path : str or path-like
        What to read; ``~`` stands for the home folder.

        - ``.csv``, ``.tsv``, ``.txt``, also with ``.gz``: text, cells parted by comma, semicolon, tab or, in ``.txt``,
          spaces. Empty cells, NA, NaN and null are missing. Where no commas part the cells, numbers may have decimal
          commas. A first column that is not numeric, or has no heading, holds the names of the samples. Lines above the
          table, a row of units and other encodings are found out.
        - ``.xlsx``, ``.xls``, ``.ods``: a sheet of a workbook, which is read like text.
        - ``.npy``, ``.npz``, ``.mat``, ``.h5``, ``.hdf5``, ``.zarr`` (folder or zip): an array of two axes, or of more:
          images (n, rows, columns), or pixels with a spectrum each if there is a vector of wavelengths beside it, or
          names of axes say so (dimension scales of HDF5, dimension names of zarr).
        - ``.npz`` of `scipy.sparse.save_npz`, ``.mtx`` and ``.mtx.gz`` (Matrix Market): a sparse matrix, which stays
          one.
        - ``.h5ad`` (AnnData): X, dense or sparse, with the names of observations and variables; a layer by `key`.
        - ``.parquet``, ``.feather``, ``.arrow``: numeric columns; the index of pandas, or the first column that is not
          numeric, holds the names of the samples.
        - ``.tif``, ``.tiff``: pages, or the axes of ImageJ and OME: frames, depth, channels.
        - other images, and folders of images of one size, those in folders inside included, in natural order of their
          names. Grey images keep their depth; see ``colour`` for others.
        - ``.hdr`` (ENVI, beside its numbers), ``.fits``, ``.hspy`` (HyperSpy): images and cubes with their wavelengths.
        - ``.mp4``, ``.avi``, ``.mkv``, ``.mov``, ``.webm``: the frames of a movie.

        Files with other suffixes are recognised by their first bytes.
    options : ReadOptions or None
        How to read it.
    **changes
        Fields of `ReadOptions`, such as ``missing_value=-999``; others are those of `options`.

    Returns
    -------
    LabelledMatrix
        The values and what is known of samples and features. Integers become float64; truth values beside numbers are
        texts, and alone numbers.

    Warns
    -----
    DataQualityWarning
        If columns of numbers look like dates or numbers of samples, or the last rows like sums or notes.

    Raises
    ------
    DataFileError
        If the file is broken, too large or not what it should be.
    MissingExtraError
        If the format needs a package that is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "flowers.csv"
    >>> _ = path.write_text("flower,petal,sepal\nrose,1.5,2\nlily,NA,4\n")
    >>> table = read_table(path)
    >>> table.values
    array([[1.5, 2. ],
           [nan, 4. ]])
    >>> table.sample_names, table.feature_names
    (['rose', 'lily'], ['petal', 'sepal'])
    """
    path = Path(os.path.expanduser(path))
    # Not `path.exists`: it raises over names that no file can have.
    if not os.path.exists(path):
        raise FileNotFoundError(f"path must name data; there is no file or folder {path}. Check the path.")
    options = replace(options or ReadOptions(), **changes)
    kind = format_of(path)
    codes = _missing_numbers(options.missing_values, words=kind.has_words)
    # Libraries warn about oddities in files that say nothing to the user: either it can be read or it cannot.
    with ignored_warnings((Warning, "")), broken_is_data_file_error(path, kind.expected, kind.advice):
        matrix = kind.read(path, options)
    for code in codes:
        _mark_missing(matrix.values, code)
    matrix = _without_negative(path, matrix, options)
    matrix = replace(matrix, source=replace(matrix.source or Source(), format=kind.name, options=options))
    for doubt in doubts(matrix) if kind.is_table and not options.transpose else ():
        warn_user(doubt, DataQualityWarning)
    return matrix.transposed if options.transpose else matrix


def _without_negative(path: Path, matrix: LabelledMatrix, options: ReadOptions) -> LabelledMatrix:
    """Return a matrix whose negative entries have become what the options say."""
    is_sparse = sparse.issparse(matrix.values)
    stored: Any = matrix.values.data if is_sparse else matrix.values
    negative = stored < 0
    count = int(negative.sum())
    if options.negative is None or not count:
        return matrix
    if options.negative == "error":
        raise _negative_error(path, matrix, stored[negative])
    is_clipped = options.negative == "clip"
    if is_clipped:
        places = (matrix.values < 0).nonzero()
        clipped = sparse.csr_array((np.asarray(matrix.values[places]).ravel(), places), shape=matrix.shape)
        matrix = matrix.with_about(**{CLIPPED: clipped})
    stored[negative] = 0 if is_clipped else np.nan
    became = "were set to zero" if is_clipped else "are missing"
    return replace(matrix, notes=(*matrix.notes, f"{count} negative entries {became}."))


def _negative_error(path: Path, matrix: LabelledMatrix, negative: Any) -> DataFileError:
    """Return the error for negative entries; it names the first, and the code that they may be."""
    rows, columns = (matrix.values < 0).nonzero()
    sample, feature = int(rows[0]), int(columns[0])
    value = matrix.values[sample, feature]
    found = f"{len(negative)} of {matrix.shape[0] * matrix.shape[1]} entries are negative, the first is {value:g} at "
    codes, counts = np.unique(negative, return_counts=True)
    code, count = codes[counts.argmax()], int(counts.max())
    # Blank-corrected entries differ; what is far below zero and repeated is no measurement.
    is_code = count > 1 and code <= LARGEST_CODE
    advice = f"{count} are exactly {code:g}: if they are missing, set missing_value to {code:g}. " if is_code else ""
    advice += "Set negative to 'clip' to set small ones to zero, or to 'missing'."
    return DataFileError(path, "a table of non-negative numbers", found + matrix.place(sample, feature), advice)


def _mark_missing(values: Any, code: float) -> None:
    """Set entries that have a code to NaN; of sparse values, those that are stored."""
    is_sparse = sparse.issparse(values)
    if is_sparse and code == 0:
        raise ValueError(
            "missing_value must not be 0 for sparse data: all entries that are not stored would be missing. "
            "RobustNMF(zeros='missing') takes them for that."
        )
    stored: Any = values.data if is_sparse else values
    # The code in the precision of the data: -99.9 is stored as another number in float32.
    stored[stored == stored.dtype.type(code)] = np.nan


def read_like(path: str | os.PathLike[str], table: LabelledMatrix, *, has_units: bool = True, **options: Any) -> Any:
    """Return values that belong to those of a table, entry by entry, such as weights or uncertainties.

    Parameters
    ----------
    path : str or path-like
        What to read, as for `read_table`. Where file and table have names, its samples and features may be in another
        order. Names of features may end in what all of them end in, such as "_error".
    table : LabelledMatrix
        The data.
    has_units : bool
        Whether units in the file must be those of the data; those of weights need not.
    **options
        Fields of `ReadOptions`. Negative values are not judged.

    Returns
    -------
    ndarray or csr_array of shape (n_samples, n_features)
        The values, in the order of the table.

    Raises
    ------
    DataFileError
        As for `read_table`; also if the shape is not that of the data, or the names are others.
    """
    other = read_table(path, **{**options, "negative": None})
    try:
        values = aligned_values(other, "it", table, has_units=has_units)
    except UnalignedError as error:
        expected = "a table with the samples, features and units of the data"
        raise DataFileError(path, expected, error.problem, error.advice) from error
    if values.shape != table.values.shape:
        expected = f"of the same shape as the data, {times(table.values.shape)} (samples x features)"
        advice = "Check that it belongs to the data, and whether one of the two is transposed."
        raise DataFileError(path, expected, f"it is {times(values.shape)}", advice)
    return values


def _missing_numbers(values: Sequence[float | str], words: bool) -> list[float]:
    """Return the numbers among what stands for a missing entry."""
    numbers = []
    for value in values:
        try:
            numbers.append(float(value))
        except ValueError:
            if not words:
                raise ValueError(
                    f"missing_value must be a number, except for text tables; it is {value!r}. Give a number such as "
                    "-999."
                ) from None
    return numbers
