"""Signals of HyperSpy: .hspy files, which are HDF5.

Axes of navigation are samples, axes of the signal are features. Formats of microscopes, such as dm3 and dm4, are read
by HyperSpy itself, on the side of the user: ``hyperspy.api.load(path).save("signal.hspy")``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.axes import ArrayAxes, number_texts
from robustnmf.formats.checks import MAX_AXES, as_matrix, choose
from robustnmf.formats.format import Format
from robustnmf.formats.hdf5 import checked_rows, found_dataset, text_attribute
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.stored import array_in_file, names_in_file, points_in_file, unit_of_axis
from robustnmf.utils.extras import optional

_GROUP = "Experiments"
_UNDEFINED = ("", "<undefined>", "None")


def read_hspy(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read a signal; key is its name, if there are several."""
    h5py = optional("h5py", "io")
    with h5py.File(path, "r") as file:
        signals = _signals(h5py, file)
        found = {name: found_dataset(group["data"]) for name, group in signals.items()}
        if not found:
            raise ValueError(f"it has no signal in {_GROUP}")
        name = choose(path, found, options)
        group = signals[name]
        array = checked_rows(path, group["data"], options.max_bytes).floats()
        axes, kinds = _axes(h5py, path, group, array.shape, options.max_bytes)
        about = {"key": name, "axes": kinds, "signal": _signal_type(h5py, group)}
        return as_matrix(path, array, options, axes, found[name].dtype, about)


def _signals(h5py: Any, file: Any) -> dict[str, Any]:
    """Return the groups of signals, by name; links are not followed."""
    experiments = _own(h5py, file, _GROUP, h5py.Group)
    if experiments is None:
        return {}
    groups = {name: _own(h5py, experiments, name, h5py.Group) for name in experiments}
    return {name: group for name, group in groups.items() if group and _own(h5py, group, "data", h5py.Dataset)}


def _own(h5py: Any, group: Any, name: str, kind: Any) -> Any:
    """Return what a group itself holds under a name; None if it is a link elsewhere or of another kind."""
    if name not in group or not isinstance(group.get(name, getlink=True), h5py.HardLink):
        return None
    node = group[name]
    return node if isinstance(node, kind) else None


def _axes(
    h5py: Any, path: Path, group: Any, shape: tuple[int, ...], max_bytes: int
) -> tuple[ArrayAxes, tuple[Mapping[str, Any], ...]]:
    """Return what is told of the axes, and the attributes that are needed to write them again."""
    nodes = [_own(h5py, group, f"axis-{axis}", h5py.Group) for axis in range(len(shape))]
    nodes = nodes if all(nodes) else [_own(h5py, group, f"_axis-{axis}", h5py.Group) for axis in range(len(shape))]
    if not all(nodes):
        return ArrayAxes(("",) * len(shape)), ()
    kinds = tuple(_axis(h5py, path, node, size, max_bytes) for node, size in zip(nodes, shape, strict=True))
    moving = tuple(axis for axis, kind in enumerate(kinds) if kind["navigate"])
    known = {axis: kind["points"] for axis, kind in enumerate(kinds) if kind["points"] is not None}
    units = {axis: kind["units"] for axis, kind in enumerate(kinds) if kind["units"]}
    samples = moving if 0 < len(moving) < len(shape) else None
    return ArrayAxes(tuple(kind["name"] for kind in kinds), known, units, samples), kinds


def _axis(h5py: Any, path: Path, node: Any, size: int, max_bytes: int) -> dict[str, Any]:
    name, units = (text_attribute(node, attribute) for attribute in ("name", "units"))
    scale, offset = (_number(node, attribute) for attribute in ("scale", "offset"))
    values = _own(h5py, node, "axis", h5py.Dataset)
    points = None
    if values is not None and values.shape == (size,) and values.dtype.kind in "iuf":
        points = number_texts(checked_rows(path, values, max_bytes).floats())
    elif scale is not None:
        points = number_texts(float(f"{(offset or 0.0) + scale * place:.12g}") for place in range(size))
    return {
        "name": "" if name in _UNDEFINED else name,
        "units": "" if units in _UNDEFINED else units,
        "scale": scale,
        "offset": offset,
        "navigate": bool(_number(node, "navigate")),
        "points": points,
    }


def _number(node: Any, name: str) -> float | None:
    """Return an attribute that is one finite number; None if it is not."""
    if name not in node.attrs:
        return None
    attribute = node.attrs.get_id(name)
    if attribute.shape != () or attribute.dtype.kind not in "biuf":
        return None
    value = float(node.attrs[name])
    return value if math.isfinite(value) else None


def _signal_type(h5py: Any, group: Any) -> str:
    node = group
    for name in ("metadata", "Signal"):
        node = None if node is None else _own(h5py, node, name, h5py.Group)
    return "" if node is None else text_attribute(node, "signal_type")


def write_hspy(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a signal that HyperSpy loads: samples are navigation, features the signal."""
    h5py = optional("h5py", "io")
    array = array_in_file(matrix)
    if array.ndim > MAX_AXES:
        raise ValueError(f"values must have at most {MAX_AXES} axes; they have shape {array.shape}.")
    about = {} if matrix.source is None else matrix.source.about
    layout = None if matrix.source is None else matrix.source.layout
    moving = (0,) if layout is None else layout.sample_axes
    with h5py.File(temporary, "w") as file:
        file.attrs["file_format"], file.attrs["file_format_version"] = "HyperSpy", "3.3"
        name = str(about.get("key") or "signal").replace("/", " ")
        group = file.create_group(_GROUP).create_group(name)
        group.create_dataset("data", data=array)
        for axis in range(array.ndim):
            _write_axis(group.create_group(f"axis-{axis}"), matrix, array, axis, axis in moving)
        metadata = group.create_group("metadata")
        general, signal = metadata.create_group("General"), metadata.create_group("Signal")
        general.attrs["title"] = name
        signal.attrs["signal_type"] = str(about.get("signal") or "")
        group.create_group("original_metadata")


def _write_axis(node: Any, matrix: LabelledMatrix, array: NDArray[Any], axis: int, navigate: bool) -> None:
    """Write name, unit and points of an axis: a first one and a step, or all of them."""
    names = names_in_file(matrix) or ("",) * array.ndim
    unit = unit_of_axis(matrix, axis)
    node.attrs["name"], node.attrs["units"] = names[axis] or "<undefined>", unit or "<undefined>"
    node.attrs["size"], node.attrs["navigate"], node.attrs["is_binned"] = array.shape[axis], navigate, False
    known = points_in_file(matrix).get(axis)
    values = None if known is None else _floats(known[1])
    if values is not None and len(values) > 1 and not np.allclose(np.diff(values), values[1] - values[0], rtol=1e-6):
        node.attrs["_type"] = "DataAxis"
        node.create_dataset("axis", data=values)
        return
    node.attrs["_type"] = "UniformDataAxis"
    if values is None:
        return
    node.attrs["offset"] = values[0]
    step = (values[-1] - values[0]) / max(len(values) - 1, 1)
    node.attrs["scale"] = float(f"{step:.12g}") or 1.0


def _floats(points: Any) -> NDArray[Any] | None:
    try:
        return np.array([float(point) for point in points])
    except ValueError:
        return None


_WORDS = "a signal of HyperSpy", "Write it with signal.save('name.hspy') in HyperSpy."
FORMATS = (Format("hspy", *_WORDS, read_hspy, (".hspy",), write=write_hspy),)
