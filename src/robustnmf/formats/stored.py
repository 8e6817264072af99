"""A matrix as files hold it: the shape and the type of the file that it came from, and the vectors beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.formats.axes import role_of
from robustnmf.formats.labelled_matrix import LabelledMatrix, Source
from robustnmf.formats.options import ReadOptions

KEY = "X"
"""Name of an array in files that need one."""


def array_in_file(matrix: LabelledMatrix) -> NDArray[Any]:
    """Return the values in the shape and the type of the file: rounded and clipped if these are whole numbers.

    Truth values stay what they are: a mask has no other type.
    """
    array: NDArray[Any] = np.asarray(matrix.array())
    source = matrix.source or Source()
    return array if array.dtype == bool else in_type(array, source.dtype or array.dtype, source.options)


def sparse_in_file(matrix: LabelledMatrix) -> Any:
    """Return a sparse matrix in the type of the file."""
    values = sparse.csr_array(matrix.values)
    source = matrix.source or Source()
    data = values.data if values.dtype == bool else in_type(values.data, source.dtype or values.dtype, source.options)
    return sparse.csr_array((data, values.indices, values.indptr), shape=values.shape)


def in_type(array: NDArray[Any], dtype: np.dtype[Any], options: ReadOptions | None = None) -> NDArray[Any]:
    """Return values as numbers of a type, in its native byte order; of whole numbers, what is missing gets its code.

    Raises
    ------
    ValueError
        If values are missing and the type has nothing for them.
    """
    dtype = dtype.newbyteorder("=")
    if dtype.kind not in "biu":
        return np.asarray(array, dtype)
    missing = np.isnan(array) if array.dtype.kind == "f" else np.zeros((), bool)
    if missing.any():
        array = np.where(missing, _code(dtype, options), array)
    if dtype.kind == "b":
        return np.asarray(array >= 0.5)
    if array.dtype.kind != "f":
        return np.asarray(array, dtype)
    limits = np.iinfo(dtype)
    rounded = np.rint(array)
    whole = np.clip(rounded, float(limits.min), float(limits.max))
    # The largest numbers of 64 bits are no floats, and the next float is beyond them.
    beyond = rounded >= float(limits.max)
    return np.where(beyond, limits.max, np.where(beyond, 0, whole).astype(dtype))


def _code(dtype: np.dtype[Any], options: ReadOptions | None) -> float:
    limits = None if dtype.kind == "b" else np.iinfo(dtype)
    for code in () if options is None else options.missing_values:
        if limits is not None and _is_number(code) and limits.min <= float(code) <= limits.max:
            return float(code)
    raise ValueError(
        f"values must all be there to be written as {dtype}; some are missing. Pass dtype='float32', or read the data "
        "with a missing_value that stands for them."
    )


def _is_number(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def key_in_file(matrix: LabelledMatrix) -> str:
    """Return the name of the array in the file."""
    return str((matrix.source or Source()).about.get("key") or KEY)


def points_in_file(matrix: LabelledMatrix) -> dict[int, tuple[str, Sequence[str]]]:
    """Return name and points of the axes of which these are known, by the number of the axis."""
    layout = matrix.source.layout if matrix.source is not None else None
    if layout is not None:
        names = layout.names or ("",) * len(layout.shape)
        return {axis: (names[axis], points) for axis, points in layout.points.items()}
    axes = enumerate((matrix.samples, matrix.features))
    return {place: (axis.title or "", axis.names) for place, axis in axes if axis.names is not None}


def vectors_in_file(matrix: LabelledMatrix) -> dict[int, tuple[str, NDArray[Any]]]:
    """Return name and numbers of the axes that are wavelengths or the like, by the number of the axis."""
    found = {axis: pair for axis, pair in points_in_file(matrix).items() if role_of(pair[0]) == "band"}
    return {
        axis: (name, np.array([float(point) for point in points]))
        for axis, (name, points) in found.items()
        if all(map(_is_number, points))
    }


def names_in_file(matrix: LabelledMatrix) -> tuple[str, ...] | None:
    """Return names of the axes of the array, "" where unknown; None if there are none."""
    layout = matrix.source.layout if matrix.source is not None else None
    if layout is not None:
        return layout.names
    titles = (matrix.samples.title or "", matrix.features.title or "")
    return titles if any(titles) else None


def unit_of_axis(matrix: LabelledMatrix, axis: int) -> str:
    """Return the unit of an axis of the array, "" if unknown."""
    layout = matrix.source.layout if matrix.source is not None else None
    if layout is not None:
        return layout.units.get(axis, "")
    units = (matrix.samples, matrix.features)[axis].units
    return units[0] if units and len(set(units)) == 1 else ""


def as_levels(array: NDArray[Any]) -> NDArray[Any]:
    """Return a mask as programs for images show it: 0 and 255; other values as they are."""
    return array.astype(np.uint8) * np.uint8(255) if array.dtype == bool else array
