"""Datasets of HDF5: .h5, .hdf5, and .mat from version 7.3 on."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from robustnmf.formats.axes import ArrayAxes, axes_beside, number_texts
from robustnmf.formats.checks import MAX_AXES, Found, as_matrix, choose, float_type
from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.limits import check_count, check_expansion, n_chunks
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.packed import Inflated, unpacked_size
from robustnmf.formats.rows import ArrayRows, package_of
from robustnmf.formats.stored import (
    array_in_file,
    key_in_file,
    names_in_file,
    unit_of_axis,
    vectors_in_file,
)
from robustnmf.utils.extras import optional

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_DEFLATE, _CHECKSUM, _SZIP, _NBIT, _SCALEOFFSET = 1, 3, 4, 5, 6
_LZF, _BLOSC, _LZ4, _BITSHUFFLE = 32000, 32001, 32004, 32008
_FILTERS = {
    **{_DEFLATE: "gzip", 2: "shuffle", _CHECKSUM: "fletcher32", _SZIP: "szip", _NBIT: "nbit"},
    **{_SCALEOFFSET: "scaleoffset", _LZF: "lzf", _BLOSC: "blosc", _LZ4: "lz4", _BITSHUFFLE: "bitshuffle"},
}
"""Filters that HDF5 and h5py bring along, and plugins that do not make gigabytes of some bytes, as others do."""

_DECLARED: dict[int, Callable[[bytes], int]] = {
    _SZIP: lambda packed: int.from_bytes(packed[:4], "little"),
    _BLOSC: lambda packed: unpacked_size("blosc", packed[:32], 0),
    _LZ4: lambda packed: int.from_bytes(packed[:8], "big"),
    _BITSHUFFLE: lambda packed: int.from_bytes(packed[:8], "big"),
}
"""Filters that take the memory which the beginning of a chunk declares."""

_PACKERS = frozenset({_DEFLATE, _LZF, *_DECLARED})
"""Filters that compress."""

_SHRINKERS = frozenset({_NBIT, _SCALEOFFSET})
"""Filters that leave out bits of each number; their settings say how many numbers there are."""

_SLACK = 4096
"""Bytes that filters may add to a chunk: checksums and the like."""

_TEXT_REFERENCE = 16
"""Bytes that stand for a text of any length: HDF5 keeps the text elsewhere in the file."""

_FEW_CHUNKS = 2**20
"""Chunks that a dataset may have even if none is stored; HDF5 takes some seconds for so many."""

_MAX_DEPTH = 100
"""How deep groups may be inside each other; HDF5 itself crashes over some thousands."""


@dataclass(frozen=True)
class HDF5Rows(ArrayRows):
    """A dataset of an HDF5 file."""

    name: str

    @classmethod
    def of(cls, dataset: Any) -> HDF5Rows:
        """Return the rows of an open dataset."""
        return cls(dataset.file.filename, dataset.shape, dataset.dtype, dataset.chunks or (), dataset.name)

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the dataset."""
        with optional("h5py", "io").File(self.path, "r") as file:
            yield file[self.name]

    def check(self, max_bytes: int = sys.maxsize) -> None:
        """Raise if the dataset declares more than it holds, or its chunks cost more than they are worth."""
        super().check(max_bytes)
        count = n_chunks(self.sizes, self.chunks) if self.chunks else 1
        with self.opened() as dataset:
            if not _is_elsewhere(dataset):
                check_expansion(self.path, self.sizes, self.dtype.itemsize, Path(self.path).stat().st_size)
            if count > _FEW_CHUNKS:
                check_count(self.path, self.sizes, self.chunks, count, dataset.id.get_num_chunks(), _FEW_CHUNKS)


def _rows_of(X: Any) -> HDF5Rows | None:
    is_dataset = package_of(X) == "h5py" and type(X).__name__ == "Dataset"
    return HDF5Rows.of(X) if is_dataset and X.ndim == 2 else None


def _is_elsewhere(dataset: Any) -> bool:
    return bool(dataset.external) or dataset.is_virtual


def read_hdf5(path: Path, options: ReadOptions, matlab: bool = False) -> LabelledMatrix:
    """Read a dataset of HDF5."""
    h5py = optional("h5py", "io")
    with h5py.File(path, "r") as file:
        found = {name: found_dataset(node, matlab) for name, node in _datasets(h5py, file)}
        # MATLAB keeps the contents of cells in #refs#.
        found = {name: entry for name, entry in found.items() if not (matlab and name.startswith("#"))}
        name = choose(path, found, replace(options, key=options.key and options.key.strip("/")))
        dataset = file[name]
        values = checked_rows(path, dataset, options.max_bytes).floats()
        labelled = None if matlab else _labelled_axes(h5py, path, dataset, options.max_bytes)
        shapes = {key: entry.shape for key, entry in found.items() if float_type(entry.dtype)}

        def vector(key: str) -> tuple[Any, str]:
            return checked_rows(path, file[key], options.max_bytes).floats(), text_attribute(file[key], "units")

        axes = labelled or axes_beside(name, shapes, vector)
    # MATLAB stores columns first, and so its axes come in reverse.
    values = values.T if matlab else values
    return as_matrix(path, values, options, axes, found[name].dtype, {"key": name})


def _labelled_axes(h5py: Any, path: Path, dataset: Any, max_bytes: int) -> ArrayAxes | None:
    """Return what the labels and scales of a dataset tell about its axes, as netCDF and others store them."""
    scales = [_scale(h5py, dataset, axis) for axis in range(dataset.ndim)]
    labels = [
        short_text(label) or ("" if scale is None else short_text(scale.name.rsplit("/", 1)[-1]))
        for label, scale in zip(_labels(dataset), scales, strict=True)
    ]
    if not any(labels):
        return None
    read = {
        axis: number_texts(checked_rows(path, scale, max_bytes).floats())
        for axis, scale in enumerate(scales)
        if scale is not None and scale.shape == (dataset.shape[axis],) and float_type(found_dataset(scale).dtype)
    }
    units = {axis: text_attribute(scales[axis], "units") for axis in read}
    return ArrayAxes(tuple(labels), read, {axis: unit for axis, unit in units.items() if unit})


def _labels(dataset: Any) -> list[Any]:
    """Return the labels of the axes of a dataset, "" where there is none."""
    has = "DIMENSION_LABELS" in dataset.attrs
    labels = list(dataset.attrs["DIMENSION_LABELS"]) if has and _n_values(dataset, "DIMENSION_LABELS") else []
    return labels if len(labels) == dataset.ndim else [""] * dataset.ndim


def _n_values(node: Any, name: str) -> int:
    """Return how many values an attribute has, or 0 if they are more than any array has axes."""
    count = math.prod(node.attrs.get_id(name).shape)
    return count if count <= MAX_AXES else 0


def _scale(h5py: Any, dataset: Any, axis: int) -> Any:
    """Return the dataset in the same file with the points of an axis; None if there is none."""
    if "DIMENSION_LIST" not in dataset.attrs or not _n_values(dataset, "DIMENSION_LIST"):
        return None
    lists = dataset.attrs["DIMENSION_LIST"]
    if len(lists) != dataset.ndim or len(lists[axis]) < 1 or not isinstance(lists[axis][0], h5py.Reference):
        return None
    node = dataset.file[lists[axis][0]]
    return node if isinstance(node, h5py.Dataset) and not _is_elsewhere(node) else None


def text_attribute(node: Any, name: str) -> str:
    """Return an attribute that is a short text; empty if there is none."""
    if name not in node.attrs or node.attrs.get_id(name).shape not in ((), (1,)):
        return ""
    given = node.attrs[name]
    return short_text(given[0] if getattr(given, "shape", ()) == (1,) else given)


def short_text(given: Any) -> str:
    """Return a text of a file, cut short; empty if it is none."""
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    return shortened(text.strip(), 80) if isinstance(text, str) else ""


def write_hdf5(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write a dataset, with names and points of its axes as labels and scales."""
    h5py = optional("h5py", "io")
    with h5py.File(temporary, "w") as file:
        array = array_in_file(matrix)
        dataset = file.create_dataset(key_in_file(matrix), data=array)
        for axis, name in enumerate(names_in_file(matrix) or ()):
            if name:
                dataset.dims[axis].label = name
        for axis, (name, values) in vectors_in_file(matrix).items():
            scale = file.create_dataset(name, data=values)
            if unit := unit_of_axis(matrix, axis):
                scale.attrs["units"] = unit
            scale.make_scale(name)
            dataset.dims[axis].attach_scale(scale)


def checked_rows(path: Path, dataset: Any, max_bytes: int) -> HDF5Rows:
    """Return a dataset of a file that is not trusted, after a look at its chunks."""
    if _is_elsewhere(dataset):
        elsewhere = f"those of {dataset.name.strip('/')!r} are in other files"
        raise DataFileError(path, "a file that holds its values", elsewhere, "Read those instead.")
    rows = HDF5Rows.of(dataset)
    rows.check(max_bytes)
    if rows.chunks:
        # Not where rows are streamed: it takes as long as to read them, and people stream what they have stored
        # themselves, with plugins of their own.
        itemsize = _TEXT_REFERENCE if rows.dtype.kind == "O" else int(dataset.id.get_type().get_size())
        layout = _Layout(math.prod(rows.chunks), itemsize)
        _check_stored(path, dataset, _pipeline(path, dataset, layout), layout)
    return rows


def _datasets(h5py: Any, file: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is in an HDF5 file, each once. Links are not followed: they may lead to other files."""
    seen = {_place(h5py, file)}

    def below(group: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
        if depth > _MAX_DEPTH:
            raise OversizedError(f"its groups are more than {_MAX_DEPTH} deep inside each other")
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                continue
            node = group[name]
            if (place := _place(h5py, node)) in seen:
                continue
            seen.add(place)
            if isinstance(node, h5py.Dataset):
                yield prefix + name, node
            elif isinstance(node, h5py.Group):
                yield from below(node, f"{prefix}{name}/", depth + 1)

    return below(file, "", 1)


def _place(h5py: Any, node: Any) -> tuple[int, int]:
    """Return file and address of an object, which identify it: it may have several names."""
    about = h5py.h5o.get_info(node.id)
    return about.fileno, about.addr


def found_dataset(node: Any, matlab: bool = False) -> Found:
    """Return what a dataset declares; in MATLAB the axes come in reverse, and text is stored as numbers."""
    try:
        dtype = node.dtype
    except TypeError:  # a type that NumPy has not
        dtype = None
    shape = node.shape or ()
    if not matlab:
        return Found(shape, dtype)
    return Found(shape[::-1], None if _matlab_class(node) == b"char" else dtype)


def _matlab_class(node: Any) -> bytes:
    """Return the class of an array in MATLAB; empty if the attribute is not a short text."""
    if "MATLAB_class" not in node.attrs:
        return b""
    attribute = node.attrs.get_id("MATLAB_class")
    is_short = attribute.shape == () and attribute.dtype.kind == "S" and attribute.dtype.itemsize <= 64
    return bytes(node.attrs["MATLAB_class"]) if is_short else b""


class _Filter(NamedTuple):
    """A filter that chunks went through, and its settings."""

    number: int
    settings: tuple[int, ...]


class _Layout(NamedTuple):
    """What a chunk must become: so many numbers of so many bytes."""

    n_values: int
    itemsize: int

    @property
    def size(self) -> int:
        """Bytes of a chunk."""
        return self.n_values * self.itemsize


def _pipeline(path: Path, dataset: Any, layout: _Layout) -> list[_Filter]:
    """Return the filters that chunks went through: well-known ones, each once, and one that compresses, at the end."""
    plist = dataset.id.get_create_plist()
    pipeline = [_Filter(*plist.get_filter(place)[:3:2]) for place in range(plist.get_nfilters())]
    numbers = [filter_.number for filter_ in pipeline]
    unknown = sorted(set(numbers) - set(_FILTERS))
    packers = [number for number in numbers if number in _PACKERS]
    behind = numbers[numbers.index(packers[0]) + 1 :] if packers else []
    if unknown:
        found = f"it uses filter {unknown[0]}"
    elif len(set(numbers)) < len(numbers):
        found = "it uses a filter twice"
    elif len(packers) > 1 or set(behind) - {_CHECKSUM} or (set(packers) & _DECLARED.keys() and _SHRINKERS & {*numbers}):
        found = "it is compressed in several steps, or not in the last"
    elif not all(_has_right_settings(filter_, layout) for filter_ in pipeline):
        found = "the settings of a filter are not those of its chunks"
    else:
        return pipeline
    advice = "Store it anew, for instance with gzip or lzf."
    raise DataFileError(path, f"stored with filters of HDF5 ({', '.join(_FILTERS.values())})", found, advice)


def _has_right_settings(filter_: _Filter, layout: _Layout) -> bool:
    """Return whether the settings of a filter, which decide the size of its output, give the size of a chunk."""
    number, settings = filter_
    if number == _SCALEOFFSET:
        return len(settings) > 4 and (settings[2], settings[4]) == layout
    if number == _NBIT:
        is_atomic = len(settings) > 7 and settings[3] == 1
        return is_atomic and (settings[2], settings[4]) == layout and settings[6] <= 8 * layout.itemsize
    if number == _SZIP:  # it divides by them
        return len(settings) > 3 and min(settings[1:4]) > 0
    return number != _LZF or settings[2:3] == (layout.size,)


def _check_stored(path: Path, dataset: Any, pipeline: list[_Filter], layout: _Layout) -> None:
    """Raise if a chunk unpacks to more or less than its size: HDF5 would read memory behind a short one."""
    packed: list[tuple[tuple[int, ...], list[_Filter]]] = []

    def look(chunk: Any) -> None:
        if chunk.size > 2 * layout.size + _SLACK:
            raise OversizedError(f"it has a chunk of {chunk.size} bytes that should unpack to {layout.size}")
        # Each bit of the mask is a filter that this chunk was not given to.
        applied = [filter_ for place, filter_ in enumerate(pipeline) if not chunk.filter_mask >> place & 1]
        numbers = {filter_.number for filter_ in applied}
        if numbers & (_PACKERS | _SHRINKERS):
            packed.append((chunk.chunk_offset, applied))
        else:
            _check_length(path, chunk.chunk_offset, chunk.size - 4 * (_CHECKSUM in numbers), layout.size, layout)

    dataset.id.chunk_iter(look)
    for place, applied in packed:
        length, least = _unpacked(dataset.id.read_direct_chunk(place)[1], applied, layout)
        _check_length(path, place, length, least, layout)


def _check_length(path: Path, place: tuple[int, ...], length: int, least: int, layout: _Layout) -> None:
    if length > layout.size + _SLACK:
        raise OversizedError(f"its chunk at {place} unpacks to more than the {layout.size} bytes of a chunk")
    if length < least:
        found = f"the one at {place} has {length} bytes where {least} are needed"
        raise DataFileError(path, "a file with whole chunks", found, "It is damaged: copy or write it again.")


def _unpacked(chunk: bytes, applied: list[_Filter], layout: _Layout) -> tuple[int, int]:
    """Return how many bytes a chunk becomes when decompressed, without checksums, and how many it must have."""
    numbers = [filter_.number for filter_ in applied]
    length, head = len(chunk), chunk[:4]
    if _DEFLATE in numbers:
        length = unpacked_size("zlib", chunk, layout.size + _SLACK)
        head = Inflated(io.BytesIO(chunk), len(chunk)).read(4)
    elif _LZF in numbers:
        length, head = layout.size, b""  # that is what it gets, however much it fills
    elif declared := _DECLARED.keys() & set(numbers):
        length = _DECLARED[declared.pop()](chunk)
    last = numbers[-1:] == [_CHECKSUM] and not _PACKERS.isdisjoint(numbers)
    length -= 0 if last or _CHECKSUM not in numbers else 4
    shrinker = next((filter_ for filter_ in applied if filter_.number in _SHRINKERS), None)
    return length, layout.size if shrinker is None else _least(shrinker, head, layout)


def _least(shrinker: _Filter, head: bytes, layout: _Layout) -> int:
    """Return how many bytes numbers take of which some bits were left out; scaleoffset notes at the head how many."""
    if shrinker.number == _NBIT:
        bits = 8 * layout.itemsize if shrinker.settings[1] else shrinker.settings[6]
        return -(-layout.n_values * bits // 8)
    return 21 + -(-layout.n_values * int.from_bytes(head, "little") // 8) if head else 0


_WORDS = "an HDF5 file", "Write it with h5py."
FORMATS = (Format("hdf5", *_WORDS, read_hdf5, (".h5", ".hdf5"), (HDF5_SIGNATURE,), rows_of=_rows_of, write=write_hdf5),)
