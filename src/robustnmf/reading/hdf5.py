"""Datasets of HDF5: .h5, .hdf5, and .mat from version 7.3 on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robustnmf.reading.errors import DataFileError, extra
from robustnmf.reading.table import Found, Options, Table, as_table, check_array, check_size, choose

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def read_hdf5(path: Path, options: Options, matlab: bool = False) -> Table:
    """Read a dataset of HDF5."""
    h5py = extra("h5py", "h5py")
    with h5py.File(path, "r") as file:
        found = _datasets(h5py, file, matlab)
        name = choose(path, found, None if options.key is None else options.key.strip("/"))
        check_array(path, name, found[name], options.max_bytes)
        dataset = file[name]
        if dataset.external or dataset.is_virtual:
            raise DataFileError(
                path, "a file that holds its values", f"those of {name!r} are in other files", "Read those instead."
            )
        check_size(path, dataset.chunks or (), dataset.dtype.itemsize, options.max_bytes)
        values = dataset[...]
    # MATLAB stores columns first, and so its axes come in reverse.
    return as_table(path, values.T if matlab else values, options.max_bytes)


def _datasets(h5py: Any, file: Any, matlab: bool) -> dict[str, Found]:
    """Return what is in an HDF5 file. Links are not followed: they may lead to other files."""
    found = {}

    def look(name: str, node: Any) -> None:
        # MATLAB keeps the contents of cells in #refs#, and text as numbers.
        if not isinstance(node, h5py.Dataset) or (matlab and name.startswith("#")):
            return
        kind = node.attrs.get("MATLAB_class", b"") if matlab else b""
        shape = tuple(reversed(node.shape or ())) if matlab else node.shape or ()
        found[name] = Found(shape, None if kind in (b"char", "char") else node.dtype)

    file.visititems(look)
    return found
