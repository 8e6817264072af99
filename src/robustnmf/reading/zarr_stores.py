"""Arrays of zarr, in folders and zip files."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.reading.errors import DataFileError, extra
from robustnmf.reading.folders import refuse_links_out
from robustnmf.reading.table import Found, Options, Table, as_table, check_array, check_size, choose, refuse_key

# Codecs of zarr that only compress or reorder numbers. Others are refused: among them is one that unpickles.
_CODECS = frozenset(
    {"blosc", "bytes", "bz2", "crc32c", "gzip", "lz4", "lzma", "sharding_indexed", "transpose", "zlib", "zstd"}
    | {"adler32", "astype", "bitround", "crc32", "delta", "fixedscaleoffset", "fletcher32", "jenkins_lookup3"}
    | {"packbits", "quantize", "shuffle"}
)

ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")


def read_zarr(path: Path, options: Options) -> Table:
    """Read an array of zarr, from a folder or a zip file."""
    zarr = extra("zarr", "zarr")
    if path.is_dir():
        refuse_links_out(path, path)
        return _read_zarr_node(path, zarr.open(path, mode="r"), options)
    with zipfile.ZipFile(path) as archive:
        largest = max((entry.file_size for entry in archive.infolist()), default=0)
    check_size(path, (largest,), 1, options.max_bytes)
    store = importlib.import_module("zarr.storage").ZipStore(path, mode="r")
    try:
        return _read_zarr_node(path, zarr.open(store, mode="r"), options)
    finally:
        store.close()


def _read_zarr_node(path: Path, node: Any, options: Options) -> Table:
    """Read an array of zarr, or the one that is asked for in a group."""
    if hasattr(node, "members"):
        arrays = {name: member for name, member in node.members(max_depth=None) if hasattr(member, "shape")}
        found = {name: Found(member.shape, member.dtype) for name, member in arrays.items()}
        name = choose(path, found, None if options.key is None else options.key.strip("/"))
        node = arrays[name]
    else:
        refuse_key(path, options.key)
        name = ""
    check_array(path, name, Found(node.shape, node.dtype), options.max_bytes)
    # A block is unpacked in full even where only a corner of it is needed.
    check_size(path, node.shards or node.chunks, node.dtype.itemsize, options.max_bytes)
    _check_codecs(path, node.metadata.to_dict())
    return as_table(path, np.asarray(node[...]), options.max_bytes)


def _check_codecs(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise if values went through anything but well-known codecs."""
    parts = [metadata.get(part) for part in ("codecs", "compressor", "filters", "storage_transformers")]
    names = {str(name).removeprefix("numcodecs.") for name in _codec_names(parts)}
    if not names <= _CODECS:
        raise DataFileError(
            path,
            "stored with the usual codecs of zarr",
            f"it uses {', '.join(sorted(names - _CODECS))}",
            "Store it anew, with zarr's default.",
        )


def _codec_names(value: Any) -> Iterator[Any]:
    """Yield the names of codecs, also of those inside others; what does not look like a codec is one without name."""
    if isinstance(value, Mapping):
        yield value.get("id", value.get("name"))
        configuration = value.get("configuration") or {}
        yield from _codec_names([configuration.get("codecs"), configuration.get("index_codecs")])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _codec_names(part)
    elif value is not None:
        yield getattr(value, "codec_id", type(value).__name__)
