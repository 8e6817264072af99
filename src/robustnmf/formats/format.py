"""What a format of files is to those who read files of any format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.rows import Rows


@dataclass(frozen=True)
class Format:
    """A kind of file: what to call it, how to make one, how to read one and how to know one.

    Parameters
    ----------
    name : str
        What it is called in `Source.format`, and in files that this package writes.
    expected : str
        What errors call it.
    advice : str
        How to make a file that can be read.
    read : function (path, options) -> LabelledMatrix
        Reads a file; the caller adds format and options to its `source`. Whatever it raises becomes a `DataFileError`.
    suffixes : tuple of str
        How the names of such files end, in lower case.
    signatures : tuple of bytes
        What such files begin with; it tells the format of files with other suffixes.
    members : tuple of str
        If such files may be zip files, how the name of a file inside ends.
    owns_folder : function (path) -> bool
        Tells folders of this format from others.
    rows_of : function (X) -> Rows or None
        Returns the rows of an open array of this format, so that it can be streamed; None for anything else.
    has_words : bool
        Whether a missing entry may be a word.
    is_table : bool
        Whether it holds columns with headings, of which some may be no measurements.
    write : function (path, matrix) or None
        Writes a matrix in this format, so that `read` returns the same; None where nothing is written in it. The path
        is a new file, or for formats that are folders a new folder.
    holds_sparse : bool
        Whether `write` takes sparse values; for others they are made dense.
    suffix_written : str or function (matrix) -> str
        Suffix of what `write` writes; "" is the first one of `suffixes`.
    writes_folder : bool
        Whether `write` writes a folder.
    owns_file : function (path) -> bool
        Tells files of this format that have another suffix by what lies beside them.
    """

    name: str
    expected: str
    advice: str
    read: Callable[[Path, ReadOptions], LabelledMatrix]
    suffixes: tuple[str, ...] = ()
    signatures: tuple[bytes, ...] = ()
    members: tuple[str, ...] = ()
    owns_folder: Callable[[Path], bool] = lambda path: False
    rows_of: Callable[[Any], Rows | None] = lambda X: None
    has_words: bool = False
    is_table: bool = False
    write: Callable[[Path, LabelledMatrix], None] | None = None
    holds_sparse: bool = False
    suffix_written: str | Callable[[LabelledMatrix], str] = ""
    writes_folder: bool = False
    owns_file: Callable[[Path], bool] = lambda path: False
