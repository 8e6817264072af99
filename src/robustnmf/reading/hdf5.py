"""Datasets of HDF5: .h5, .hdf5, and .mat from version 7.3 on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robustnmf.reading.errors import DataFileError, OversizedError, extra
from robustnmf.reading.packed import DEFLATE_RATIO, unpacked_size
from robustnmf.reading.table import Found, Options, Table, as_table, check_array, check_size, choose

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

_DEFLATE = 1
_FILTERS = {
    **{_DEFLATE: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"},
    **{32001: "blosc", 32004: "lz4", 32008: "bitshuffle"},
}
"""Filters that HDF5 and h5py bring along, and plugins that do not make gigabytes of some bytes, as others do."""

_MAX_DEPTH = 100
"""How deep groups may be inside each other; HDF5 itself crashes over some thousands."""


def read_hdf5(path: Path, options: Options, matlab: bool = False) -> Table:
    """Read a dataset of HDF5."""
    h5py = extra("h5py", "h5py")
    with h5py.File(path, "r") as file:
        found = {name: _found(node, matlab) for name, node in _datasets(h5py, file)}
        # MATLAB keeps the contents of cells in #refs#.
        found = {name: entry for name, entry in found.items() if not (matlab and name.startswith("#"))}
        name = choose(path, found, None if options.key is None else options.key.strip("/"))
        check_array(path, name, found[name], options.max_bytes)
        dataset = file[name]
        if dataset.external or dataset.is_virtual:
            raise DataFileError(
                path, "a file that holds its values", f"those of {name!r} are in other files", "Read those instead."
            )
        _check_chunks(path, dataset, options.max_bytes)
        values = dataset[...]
    # MATLAB stores columns first, and so its axes come in reverse.
    return as_table(path, values.T if matlab else values, options.max_bytes)


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
    """Return what tells an object from all others, whatever its names."""
    about = h5py.h5o.get_info(node.id)
    return about.fileno, about.addr


def _found(node: Any, matlab: bool) -> Found:
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
    """Return the class that MATLAB notes beside an array: a short text, whatever else a file may have there."""
    if "MATLAB_class" not in node.attrs:
        return b""
    attribute = node.attrs.get_id("MATLAB_class")
    is_short = attribute.shape == () and attribute.dtype.kind == "S" and attribute.dtype.itemsize <= 64
    return bytes(node.attrs["MATLAB_class"]) if is_short else b""


def _check_chunks(path: Path, dataset: Any, max_bytes: int) -> None:
    """Raise if the chunks of a dataset are too large, or would be when unpacked: HDF5 unpacks whatever is there."""
    if dataset.chunks is None:
        return
    check_size(path, dataset.chunks, dataset.dtype.itemsize, max_bytes)
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    filters = _filters(path, dataset)
    # Compressed chunks are smaller than others, but for a checksum and the like.
    if not filters or dataset.id.get_storage_size() <= max_bytes // DEFLATE_RATIO:
        return
    deflated: list[tuple[int, ...]] = []

    def look(chunk: Any) -> None:
        if chunk.size > 2 * size + 4096:
            raise OversizedError(f"it has a chunk of {chunk.size} bytes that should unpack to {size}")
        # Each bit of the mask is a filter that this chunk was not given to.
        is_deflated = _DEFLATE in filters and not chunk.filter_mask >> filters.index(_DEFLATE) & 1
        if is_deflated and chunk.size > max_bytes // DEFLATE_RATIO:
            deflated.append(chunk.chunk_offset)

    dataset.id.chunk_iter(look)
    for place in deflated:
        if unpacked_size("zlib", dataset.id.read_direct_chunk(place)[1], size) > size:
            raise OversizedError(f"its chunk at {place} unpacks to more than the {size} bytes of a chunk")


def _filters(path: Path, dataset: Any) -> list[int]:
    """Return the numbers of the filters that chunks went through; only well-known ones, and each once."""
    plist = dataset.id.get_create_plist()
    numbers = [plist.get_filter(place)[0] for place in range(plist.get_nfilters())]
    unknown = sorted(set(numbers) - set(_FILTERS))
    if unknown or len(set(numbers)) < len(numbers):
        found = f"it uses filter {unknown[0]}" if unknown else "it uses a filter twice"
        advice = "Store it anew, for instance with gzip or lzf."
        raise DataFileError(path, f"stored with filters of HDF5 ({', '.join(_FILTERS.values())})", found, advice)
    return numbers
