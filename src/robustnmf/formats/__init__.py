"""Reading and writing of data in files: tables, arrays, image folders, stacks, cubes and movies.

Files come from anywhere, so none is trusted. Sizes are checked before memory is taken, nothing is unpickled, links that
lead out of a folder or to another file are not followed, blocks that unpack to more than they may are refused, and
whatever is wrong with a file is a `DataFileError`. `docs/guide/files.md` lists the limits.
"""

from robustnmf.formats.cells import MISSING_WORDS as MISSING_WORDS
from robustnmf.formats.errors import DataFileError
from robustnmf.formats.images import IMAGE_SUFFIXES as IMAGE_SUFFIXES
from robustnmf.formats.labelled_matrix import ArrayLayout, Axis, Input, LabelledMatrix, Source
from robustnmf.formats.options import MAX_BYTES as MAX_BYTES
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.parquet import ParquetRows
from robustnmf.formats.reading import read_like, read_table
from robustnmf.formats.registry import rows_of
from robustnmf.formats.writing import write_table, written_suffix

__all__ = [
    "ArrayLayout",
    "Axis",
    "DataFileError",
    "Input",
    "LabelledMatrix",
    "ParquetRows",
    "ReadOptions",
    "Source",
    "read_like",
    "read_table",
    "rows_of",
    "write_table",
    "written_suffix",
]
