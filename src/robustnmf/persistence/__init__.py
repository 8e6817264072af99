"""A fitted model in a file: text, numbers and arrays, of which nothing is ever run.

A model file has three sections, one right after the other:

    a line      ``robustnmf-model FORMAT LENGTH SHA256``: number of the format, bytes and checksum of the text
    a text      JSON: class, parameters, attributes; name, dtype, shape and checksum of each array
    arrays      in the order of the text, row by row, little-endian

Every byte is covered by a checksum, and the size of the file is known from its text before memory is taken for an
array. Classes and parts are looked up in tables of this package, so a file can name nothing else; their fields, the
shapes and the values are checked. An untrusted file is therefore safe to open, though it may hold a useless model:
checksums tell damage, not intent.
"""

from robustnmf.persistence.contents import FORMAT as FORMAT
from robustnmf.persistence.contents import ModelFileError
from robustnmf.persistence.reading import load
from robustnmf.persistence.writing import save

__all__ = ["ModelFileError", "load", "save"]
