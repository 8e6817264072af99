"""Arrays of zarr, in folders and zip files, and matrices of AnnData in them, sparse ones too."""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats.axes import ArrayAxes, axes_beside, number_texts
from robustnmf.formats.checks import Found, as_matrix, check_array, choose, float_type, refuse_key
from robustnmf.formats.errors import DataFileError, OversizedError, shortened
from robustnmf.formats.folders import check_tree
from robustnmf.formats.format import Format
from robustnmf.formats.labelled_matrix import LabelledMatrix, Source
from robustnmf.formats.limits import check_count, check_expansion, n_chunks, room_for_chunk
from robustnmf.formats.options import ReadOptions
from robustnmf.formats.packed import DEFLATE_RATIO, HEADERS, PACKERS, check_members, unpacked_size
from robustnmf.formats.rows import ArrayRows, package_of
from robustnmf.formats.sparse_tables import Declared, assembled, check_declared
from robustnmf.formats.stored import (
    array_in_file,
    key_in_file,
    names_in_file,
    unit_of_axis,
    vectors_in_file,
)
from robustnmf.utils.extras import optional

_SHARDS = frozenset({"sharding_indexed"})
_INDEX_CODECS = frozenset({"bytes", "crc32c"})

# Codecs of zarr that only compress or reorder numbers. Others are refused: among them is one that unpickles.
_CODECS = frozenset(
    {*PACKERS, *_SHARDS, "bytes", "crc32c", "transpose"}
    | {"adler32", "astype", "bitround", "crc32", "delta", "fixedscaleoffset", "fletcher32", "jenkins_lookup3"}
    | {"packbits", "quantize", "shuffle"}
)

ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")

_MAX_METADATA = 2**24
"""Bytes of all files of metadata together: 16 MiB. As objects of Python they take many times as much."""

_MAX_NODES = 4096
"""Arrays and groups in a store: zarr lists all names to find those below each of them."""

_SPARSE = {"csr_matrix": "csr", "csc_matrix": "csc"}
"""How AnnData calls the formats of sparse matrices."""

_TEXT, _MAX_NAMES = "vlen-utf8", 2**26
"""The codec of text, and the bytes that a block of names may have: 64 MiB."""

_FEW_CHUNKS = 2**14
"""Chunks that an array may have even if none is stored; zarr takes some seconds for so many."""

# Where blocks are, below an array: c/0/1, c.0.1, 0.1, 0/1; c alone if there is but one.
_BLOCK = r"(c|(c[./])?[0-9]+([./][0-9]+)*)"


@dataclass(frozen=True)
class ZarrRows(ArrayRows):
    """An array of zarr, in a store that other processes can open; what is read at least is a shard, or else a chunk."""

    array: Any

    @classmethod
    def of(cls, array: Any, path: Path | None = None) -> ZarrRows:
        """Return the rows of an open array."""
        outer = array.shards or array.chunks
        return cls(str(path or array.store), tuple(array.shape), np.dtype(array.dtype), tuple(outer), array)

    def opened(self) -> AbstractContextManager[Any]:
        """Return the array: zarr opens files only when it reads them."""
        return nullcontext(self.array)

    @property
    def smallest(self) -> tuple[int, ...]:
        """Shape of the chunks, also of those in shards."""
        return tuple(self.array.chunks)


def _rows_of(X: Any) -> ZarrRows | None:
    return ZarrRows.of(X) if package_of(X) == "zarr" and hasattr(X, "chunks") and X.ndim == 2 else None


class _Stored(NamedTuple):
    """A file of a store."""

    size: int
    open: Callable[[], Any]
    """Opens it in binary mode."""


def read_zarr(path: Path, options: ReadOptions) -> LabelledMatrix:
    """Read an array of zarr, from a folder or a zip file."""
    storage = optional("zarr.storage", "io")
    if path.is_dir():
        check_tree(path)
        files = _files(path)
        _check_metadata(files)
        return _read_store(path, path, files, options)
    with zipfile.ZipFile(path) as archive:
        check_members(archive)
        entries = (entry for entry in archive.infolist() if not entry.is_dir())
        files = {entry.filename: _Stored(entry.file_size, partial(archive.open, entry)) for entry in entries}
        _check_metadata(files)
        with closing(storage.ZipStore(path, mode="r")) as store:
            return _read_store(path, store, files, options)


def _files(folder: Path) -> dict[str, _Stored]:
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    sizes = {path: path.stat().st_size for path in paths}
    return {path.relative_to(folder).as_posix(): _Stored(sizes[path], partial(open, path, "rb")) for path in paths}


def _check_metadata(files: Mapping[str, _Stored]) -> None:
    """Raise if there is too much to read before the first value: zarr reads each file of metadata in full."""
    names = {name: PurePosixPath(name).name for name in files}
    described = [name for name, last in names.items() if last.startswith((".z", "zarr.json"))]
    total = sum(files[name].size for name in described)
    if total > _MAX_METADATA:
        largest = max(described, key=lambda name: files[name].size)
        raise OversizedError(
            f"its metadata have {total} bytes, {files[largest].size} of them in {largest}, and the most that is read "
            f"is {_MAX_METADATA}"
        )
    nodes = sum(names[name] in ZARR_METADATA for name in described)
    if nodes > _MAX_NODES:
        raise OversizedError(f"it has {nodes} arrays and groups, and the most that is read is {_MAX_NODES}")


def _read_store(path: Path, store: Any, files: Mapping[str, _Stored], options: ReadOptions) -> LabelledMatrix:
    """Read an array of zarr, or the one that is asked for in a group; of AnnData a matrix with names of both axes."""
    # What is consolidated may be stale, and may name what is not in the store.
    node = optional("zarr", "io").open(store, mode="r", use_consolidated=False)
    name = ""
    arrays: dict[str, Any] = {}
    if hasattr(node, "members"):
        members = dict(node.members(max_depth=None))
        chosen = replace(options, key=options.key and options.key.strip("/"))
        if node.attrs.get("encoding-type") == "anndata":
            return _read_anndata(path, members, files, chosen)
        arrays = {name: member for name, member in members.items() if hasattr(member, "shape")}
        found = {name: Found(member.shape, member.dtype) for name, member in arrays.items()}
        name = choose(path, found, chosen)
        node = arrays[name]
    else:
        refuse_key(path, options.key)
        check_array(path, "", Found(node.shape, node.dtype), options.max_bytes)
    values = _values(path, node, files, options)
    axes = _axes(path, node, name, arrays or {name: node}, files, options)
    return as_matrix(path, values, options, axes, np.dtype(node.dtype), {"key": name})


def _values(path: Path, node: Any, files: Mapping[str, _Stored], options: ReadOptions) -> NDArray[Any]:
    """Return the values of an array, after a look at what they cost."""
    return _checked(path, node, files, options.max_bytes).floats()


def _checked(path: Path, node: Any, files: Mapping[str, _Stored], max_bytes: int) -> ZarrRows:
    """Return the rows of an array that holds what it declares."""
    rows = ZarrRows.of(node, path)
    chain = _chain(node.metadata.to_dict())
    _check_codecs(path, chain)
    blocks = _blocks(node, files)
    rows.check(max_bytes)
    _check_stored(path, rows, blocks)
    _check_blocks(node, chain, blocks, room_for_chunk(rows.sizes, rows.dtype.itemsize, max_bytes))
    return rows


def _blocks(node: Any, files: Mapping[str, _Stored]) -> dict[str, _Stored]:
    """Return the files that hold the blocks of an array."""
    block = re.compile(re.escape(f"{node.path}/" if node.path else "") + _BLOCK)
    return {name: file for name, file in files.items() if block.fullmatch(name)}


def _axes(
    path: Path, node: Any, name: str, arrays: Mapping[str, Any], files: Mapping[str, _Stored], options: ReadOptions
) -> ArrayAxes | None:
    """Return what the names of dimensions, those of xarray included, and arrays beside tell about the axes."""
    shapes = {key: tuple(array.shape) for key, array in arrays.items() if float_type(np.dtype(array.dtype))}
    names = _dimensions(node)
    if names is None:
        return axes_beside(name, shapes, lambda key: (_values(path, arrays[key], files, options), _unit(arrays[key])))
    folder = name.rpartition("/")[0]
    beside_it = {axis: f"{folder}/{title}".strip("/") for axis, title in enumerate(names) if title}
    vectors = {axis: key for axis, key in beside_it.items() if shapes.get(key) == (node.shape[axis],)}
    points = {axis: number_texts(_values(path, arrays[key], files, options)) for axis, key in vectors.items()}
    units = {axis: unit for axis, key in vectors.items() if (unit := _unit(arrays[key]))}
    return ArrayAxes(names, points, units)


def _dimensions(node: Any) -> tuple[str, ...] | None:
    """Return the names of the axes of an array, "" where there is none; None if it has no names."""
    given = getattr(node.metadata, "dimension_names", None) or node.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(given, list | tuple) or len(given) != node.ndim:
        return None
    return tuple(shortened(name, 80) if isinstance(name, str) else "" for name in given)


def _unit(node: Any) -> str:
    unit = node.attrs.get("units", "")
    return shortened(unit, 80) if isinstance(unit, str) else ""


def write_zarr(temporary: Path, matrix: LabelledMatrix) -> None:
    """Write an array, in a group if it was read from one or its axes have points; with names as xarray reads them."""
    zarr = optional("zarr", "io")
    array = array_in_file(matrix)
    vectors = vectors_in_file(matrix)
    names = list(names_in_file(matrix) or ("",) * array.ndim)
    for axis, (name, _) in vectors.items():
        names[axis] = name
    dimensions = [name or None for name in names] if any(names) else None
    is_root = matrix.source is not None and matrix.source.about.get("key") == ""
    if is_root and not vectors:
        zarr.create_array(str(temporary), data=array, dimension_names=dimensions)
        return
    group = zarr.open_group(str(temporary), mode="w")
    key = key_in_file(matrix)
    group.create_array(key, data=array, dimension_names=dimensions)
    for axis, (name, values) in vectors.items():
        place = f"{key.rpartition('/')[0]}/{name}".strip("/")
        vector = group.create_array(place, data=values, dimension_names=[name])
        if unit := unit_of_axis(matrix, axis):
            vector.attrs["units"] = unit


# --- AnnData ----------------------------------------------------------------------------------------------------------


def _read_anndata(
    path: Path, members: Mapping[str, Any], files: Mapping[str, _Stored], options: ReadOptions
) -> LabelledMatrix:
    """Read X, or the layer that is asked for, with the names of its axes."""
    wanted = options.key or "X"
    name = next((name for name in (wanted, f"layers/{wanted}") if _is_matrix(members.get(name))), None)
    if name is None:
        held = [
            name for name, member in members.items() if name.split("/")[0] in ("X", "layers") and _is_matrix(member)
        ]
        found = f"there is no {shortened(wanted)!r}; it holds {shortened(', '.join(held) or 'no matrix', 200)}"
        expected = "a store of AnnData with a matrix X, or key must name a layer"
        raise DataFileError(path, expected, found, "Name one of them with key.")
    node = members[name]
    if hasattr(node, "members"):
        values = _sparse_matrix(path, node, members, files, options.max_bytes)
        table = LabelledMatrix(values, source=Source(dtype=values.dtype, about={"key": name}))
    else:
        check_array(path, name, Found(node.shape, node.dtype), options.max_bytes)
        values = _values(path, node, files, options)
        table = as_matrix(path, values, options, dtype=np.dtype(node.dtype), about={"key": name})
    variables = "raw/var" if name == "raw/X" else "var"
    axes = zip(("obs", variables), table.shape, strict=True)
    samples, features = (_names(path, members, files, axis, count) for axis, count in axes)
    return table.with_names(samples, features)


def _is_matrix(node: Any) -> bool:
    """Return whether a member of a store is an array of two dimensions, or says that it is a sparse matrix."""
    if hasattr(node, "members"):
        return node.attrs.get("encoding-type") in _SPARSE
    return node is not None and len(node.shape) == 2


def _sparse_matrix(
    path: Path, group: Any, members: Mapping[str, Any], files: Mapping[str, _Stored], max_bytes: int
) -> Any:
    """Return a sparse matrix of AnnData by rows."""
    arrays = [members.get(f"{group.path}/{name}") for name in ("data", "indices", "indptr")]
    shape = group.attrs.get("shape")
    lists = [array for array in arrays if array is not None and len(getattr(array, "shape", ())) == 1]
    is_shape = isinstance(shape, Sequence) and len(shape) == 2 and all(isinstance(size, int) for size in shape)
    if len(lists) < 3 or not is_shape or any(array.dtype.kind not in "iu" for array in lists[1:]):
        expected = (
            f"a store in which {group.path} has a shape and the lists data, indices and indptr of a sparse matrix"
        )
        raise DataFileError(path, expected, "it has not", "Write it with AnnData.write_zarr.")
    n_rows, n_columns = shape
    stored = sum(file.size for array in lists for file in _blocks(array, files).values())
    check_declared(path, Declared((n_rows, n_columns), lists[0].dtype, lists[0].shape[0]), max_bytes, stored)
    data, indices, indptr = (_checked(path, array, files, max_bytes) for array in lists)
    kind = _SPARSE[group.attrs["encoding-type"]]
    return assembled(path, kind, (n_rows, n_columns), data.floats(), indices.whole(), indptr.whole())


def _names(
    path: Path, members: Mapping[str, Any], files: Mapping[str, _Stored], axis: str, count: int
) -> list[str] | None:
    """Return the names of an axis; None if the store has none that are text."""
    frame = members.get(axis)
    index = frame.attrs.get("_index") if frame is not None else None
    node = members.get(f"{axis}/{index}") if isinstance(index, str) else None
    if hasattr(node, "members"):  # text that may be missing
        node = members.get(f"{axis}/{index}/values")
    if node is None or not hasattr(node, "shape") or np.dtype(node.dtype).kind not in "OTU":
        return None
    if node.shape != (count,):
        expected = f"a store with {count} names in {axis}, one for each line of the matrix"
        raise DataFileError(path, expected, f"it has {math.prod(node.shape)}", "It is damaged: write it again.")
    chain = [codec for codec in _chain(node.metadata.to_dict()) if _name(codec) != _TEXT]
    _check_codecs(path, chain)
    _check_blocks(node, chain, _blocks(node, files), _MAX_NAMES, most=_MAX_NAMES)
    return [str(name) for name in node[:]]


def _check_stored(path: Path, rows: ZarrRows, blocks: Mapping[str, _Stored]) -> None:
    """Raise if an array declares more than its store holds. Streams may come from stores that cannot be listed."""
    # In a shard, all chunks have a place.
    within = n_chunks(rows.chunks, rows.smallest)
    count = n_chunks(rows.sizes, rows.chunks) * within
    check_count(path, rows.sizes, rows.smallest, count, len(blocks) * within, _FEW_CHUNKS)
    # In a zip file, names and members are compressed together.
    stored = path.stat().st_size if path.is_file() else sum(file.size for file in blocks.values())
    check_expansion(path, rows.sizes, rows.dtype.itemsize, stored)


def _chain(metadata: Mapping[str, Any]) -> list[Any]:
    """Return the codecs that values went through, the last one last, if blocks are where they are looked for."""
    encoding = metadata.get("chunk_key_encoding", {"name": "v2"})
    if encoding["name"] not in ("default", "v2"):
        raise ValueError(f"blocks are not named in a usual way but by {encoding['name']}")
    if metadata.get("storage_transformers"):
        raise ValueError("storage transformers are not read")
    chain = [*(metadata.get("filters") or ()), metadata.get("compressor"), *(metadata.get("codecs") or ())]
    return [codec for codec in chain if codec is not None]


def _check_codecs(path: Path, chain: Sequence[Any]) -> None:
    """Raise if values went through anything but well-known codecs, or were compressed before the end.

    Few bytes that are compressed twice become very many, and how many cannot be found out without unpacking them.
    """
    inner, index = _parts(chain, "codecs"), _parts(chain, "index_codecs")
    unusual = {_name(codec) for codec in (*chain, *inner, *index)} - _CODECS
    packed_early = {_name(codec) for codec in (*_before_the_end(chain), *_before_the_end(inner))} & (PACKERS | _SHARDS)
    if unusual:
        found = f"it uses {', '.join(sorted(unusual))}"
    elif packed_early or not _SHARDS.isdisjoint(map(_name, inner)) or not _INDEX_CODECS.issuperset(map(_name, index)):
        found = "it is compressed in several steps"
    elif not all(_keeps_size(codec) for codec in (*chain, *inner)):
        found = "it makes numbers of a type that is none"
    else:
        return
    raise DataFileError(path, "stored with the usual codecs of zarr", found, "Store it anew, with zarr's default.")


def _before_the_end(chain: Sequence[Any]) -> Sequence[Any]:
    """Return all codecs but the last; zarr's own checksum does not count, as it stands behind the values."""
    has_checksum = len(chain) > 0 and isinstance(chain[-1], Mapping) and chain[-1].get("name") == "crc32c"
    return chain[:-2] if has_checksum else chain[:-1]


def _keeps_size(codec: Any) -> bool:
    """Return whether the types that a codec turns into each other are numbers: text could be of any length."""
    settings = dict(codec if isinstance(codec, Mapping) else codec.get_config())
    settings |= settings.get("configuration") or {}
    types = [np.dtype(settings[key]) for key in ("dtype", "astype", "encode_dtype", "decode_dtype") if key in settings]
    return all(dtype.kind in "biufc" and dtype.itemsize <= 16 for dtype in types)


def _name(codec: Any) -> str:
    """Return the name of a codec; what does not look like one has the name of its type."""
    if isinstance(codec, Mapping):
        return str(codec.get("id", codec.get("name"))).removeprefix("numcodecs.")
    return str(getattr(codec, "codec_id", type(codec).__name__))


def _parts(chain: Sequence[Any], what: str) -> Sequence[Any]:
    """Return the codecs that are applied inside of shards, or to their index; none if there are no shards."""
    return [part for codec in chain if _name(codec) in _SHARDS for part in codec["configuration"][what]]


def _check_blocks(
    node: Any, chain: Sequence[Any], blocks: Mapping[str, _Stored], room: int, most: int | None = None
) -> None:
    """Raise if blocks of an array are larger than they should be, or become so when they are unpacked."""
    packer = next((name for name in map(_name, [*chain, *_parts(chain, "codecs")]) if name in PACKERS), None)
    # Codecs before the compression may make of each number another of up to 16 bytes, and add a checksum.
    most = 16 * math.prod(node.chunks) + 4096 if most is None else most
    whole = most * (n_chunks(node.shards, node.chunks) if node.shards else 1)
    for name, file in blocks.items():
        if file.size > whole:  # zarr reads each in full
            raise OversizedError(f"its block {name} has {file.size} bytes, and the most that it may have is {whole}")
        if packer is None:
            continue
        with file.open() as stream:
            places = _places_in_shard(stream, file.size, node, chain) if node.shards else [(0, file.size)]
            for start, length in places:
                stream.seek(start)
                if _block_size(packer, stream, length, most, room) > most:
                    raise OversizedError(f"its block {name} unpacks to more than {most} bytes, the most it may have")


def _block_size(packer: str, stream: IO[bytes], length: int, most: int, room: int) -> int:
    """Return the size of a block when unpacked, or 0 if it is too small to do harm."""
    if packer in HEADERS:
        return unpacked_size(packer, stream.read(min(length, 32)), most)
    # Some blocks are unpacked at a time; zarr takes ten.
    if packer in ("gzip", "zlib") and length <= room // (16 * DEFLATE_RATIO):
        return 0
    return unpacked_size(packer, stream.read(length), most)


def _places_in_shard(stream: IO[bytes], size: int, node: Any, chain: Sequence[Any]) -> list[tuple[int, int]]:
    """Return where the blocks of a shard begin and how long they are."""
    (configuration,) = (codec["configuration"] for codec in chain if _name(codec) in _SHARDS)
    index_codecs = _parts(chain, "index_codecs")
    if any(codec.get("configuration", {}).get("endian", "little") != "little" for codec in index_codecs):
        raise ValueError("the index of a shard is not stored low bytes first")
    count = math.prod(outer // inner for outer, inner in zip(node.shards, node.chunks, strict=True))
    length = 16 * count + (4 if "crc32c" in map(_name, index_codecs) else 0)
    if length > size:
        raise ValueError("shard without an index")
    stream.seek(0 if str(configuration.get("index_location", "end")) == "start" else size - length)
    index = np.frombuffer(stream.read(16 * count), "<u8").reshape(-1, 2).tolist()
    # Where no block is stored, both numbers are the largest.
    places = [(start, extent) for start, extent in index if start != 2**64 - 1]
    if any(start + extent > size for start, extent in places):
        raise ValueError("block beyond the end of its shard")
    return places


def _owns_folder(folder: Path) -> bool:
    return folder.suffix.lower() == ".zarr" or any((folder / name).exists() for name in ZARR_METADATA)


_WORDS = "an array or group of zarr", "Write it with zarr.save."
FORMATS = (
    Format(
        "zarr",
        *_WORDS,
        read_zarr,
        (".zarr",),
        members=ZARR_METADATA,
        owns_folder=_owns_folder,
        rows_of=_rows_of,
        write=write_zarr,
        writes_folder=True,
    ),
)
