"""Reading of .npz archives with a check of what is in them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bytes of the largest array that is read.
LARGEST = 2**33

Axes = tuple[str | int, ...]
"""One entry per axis: a size, or a name that stands for the same size in every array."""


def read_arrays(path: str | os.PathLike[str], required: Mapping[str, Axes]) -> dict[str, NDArray[Any]]:
    """Return the required arrays of an .npz archive, their shapes checked.

    Parameters
    ----------
    path : str or path-like
        The archive; ``~`` stands for the home folder.
    required : mapping of str to tuple
        Name of each array and its axes, such as ``{"images": ("n", "rows", "columns"), "labels": ("n",)}``.

    Returns
    -------
    dict of str to ndarray
        The required arrays; others in the archive are not read.
    """
    path = Path(path).expanduser()
    wanted = f"an .npz archive with the arrays {', '.join(required)}"
    if not path.is_file():
        raise FileNotFoundError(f"path must name {wanted}; there is no file {path}. Check the path.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"path must name {wanted}; {path} is not one. Write it with numpy.savez_compressed.")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
            missing = [name for name in required if name not in members]
            arrays = {name: _read(archive, name) for name in required if not missing}
    # Libraries raise almost anything over a broken archive: BadZipFile, zlib.error, KeyError, NotImplementedError ...
    except Exception as error:
        raise ValueError(
            f"path must name {wanted}; reading {path} failed ({type(error).__name__}: {error}). Copy it again."
        ) from error
    if missing:
        raise ValueError(
            f"path must name {wanted}; {path} lacks {', '.join(missing)} and holds "
            f"{', '.join(sorted(members)) or 'nothing'}. Check that it is the right data set."
        )
    _check_shapes(arrays, required, path)
    return arrays


def image_fields(images: NDArray[Any]) -> dict[str, Any]:
    """Return what every set of images has: data, images and image_shape."""
    data = images.reshape(len(images), -1).astype(np.float64)
    return {"data": data, "images": images, "image_shape": images.shape[1:]}


def count_from_zero(labels: NDArray[Any]) -> NDArray[np.intp]:
    """Return labels, which the archives count from 1, counted from 0."""
    return labels.astype(np.intp) - 1


def _read(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Return an array, after a check that the archive holds as many bytes as it declares: no more memory is taken."""
    entry = archive.getinfo(f"{name}.npy")
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):  # others are for dtypes that no data set here has
            raise ValueError(f"{name} is of another version than 1.0 of the format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        size = prod(shape) * dtype.itemsize
        if dtype.hasobject or file.tell() + size != entry.file_size or size > LARGEST:
            raise ValueError(f"{name} declares {shape} of {dtype} and has {entry.file_size} bytes")
    with archive.open(entry) as file:
        values: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return values


def _check_shapes(arrays: Mapping[str, NDArray[Any]], required: Mapping[str, Axes], path: Path) -> None:
    """Raise ValueError unless every array has its axes and named axes agree between arrays."""
    sizes: dict[str | int, int] = {}
    for name, axes in required.items():
        shape = arrays[name].shape
        if len(shape) != len(axes) or any(
            # The first array that has a named axis fixes its size; an integer stands for itself.
            sizes.setdefault(axis, axis if isinstance(axis, int) else size) != size
            for axis, size in zip(axes, shape, strict=True)
        ):
            wanted = ", ".join(map(str, axes))
            known = "".join(f", {axis} = {size}" for axis, size in sizes.items() if isinstance(axis, str))
            raise ValueError(
                f"array {name} must have shape ({wanted}){known}; in {path} it has shape {shape}. "
                "Check that it is the right data set."
            )
