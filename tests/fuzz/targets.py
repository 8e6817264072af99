"""What is fuzzed: for every kind of file that is read, valid examples and ways to spoil them.

Bytes are changed anywhere; and where a format protects itself by checksums or compression, also inside, with the
protection made anew, so that what lies behind it is reached.
"""

import hashlib
import io
import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import h5py
import numpy as np
import pandas as pd
import zarr
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from robustnmf import RobustNMF, load
from robustnmf.datasets import load_ar, load_video_hall
from robustnmf.formats import DataFileError, read_table
from robustnmf.paper.results import Log
from robustnmf.paper.task import Outcome, Task
from robustnmf.persistence import ModelFileError

sys.path.append(str(Path(__file__).parents[1]))

import corpus_arrays

MOST_BYTES = 2**22
"""Values that may be read, in bytes; what a reader needs beside them is allowed for by the runner."""

X = np.random.default_rng(0).random((6, 5)).round(3)
Content = bytes | dict[str, bytes]
"""A file, or the files of a folder by name."""


class Target(NamedTuple):
    """A kind of file, how to spoil it, and what may come of it."""

    name: str
    """File or folder to write."""
    contents: st.SearchStrategy[Content]
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...]


# --- Spoiling ---------------------------------------------------------------------------------------------------------

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1]
extreme = st.builds(
    lambda number, form: struct.pack(form, number & (256 ** struct.calcsize(form) - 1)),
    st.sampled_from(NUMBERS),
    st.sampled_from(["<B", "<H", ">H", "<I", ">I", "<Q", ">Q"]),
)
change = st.tuples(
    st.sampled_from(["set", "set", "insert", "delete", "repeat", "end"]),
    st.floats(0, 1, exclude_max=True),
    extreme | st.binary(min_size=1, max_size=8),
    st.integers(1, 64),
)


def spoil(content: bytes, changes: list[Any]) -> bytes:
    """Return bytes after some changes."""
    spoilt = bytearray(content)
    for kind, where, value, length in changes:
        i = int(where * len(spoilt))
        if kind == "set":
            spoilt[i : i + len(value)] = value
        elif kind == "insert":
            spoilt[i:i] = value
        elif kind == "delete":
            del spoilt[i : i + length]
        elif kind == "repeat":
            spoilt[i:i] = spoilt[i : i + length]
        else:
            del spoilt[len(spoilt) - length :]
    return bytes(spoilt)


changes = st.lists(change, min_size=1, max_size=6)


def spoilt(content: bytes) -> st.SearchStrategy[bytes]:
    return st.builds(lambda how: spoil(content, how), changes)


json_values = st.recursive(
    st.none() | st.booleans() | st.sampled_from([*NUMBERS, -1, 0.5, -1e308, 1e999, "", "..", "/etc/passwd", "a" * 999]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["part", "number", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(leaf for key, item in inner for leaf in leaves(item, (*path, key)))]


@st.composite
def spoilt_documents(draw: Any, document: Any) -> Any:
    """Draw a document of JSON in which some values are others, or absent."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        if not document:
            return draw(json_values)
        *path, last = draw(st.sampled_from([leaf for leaf in leaves(document) if leaf]))
        place = document
        for key in path:
            place = place[key]
        if draw(st.booleans()) and isinstance(place, dict):
            del place[last]
        else:
            place[last] = draw(json_values)
    return document


@st.composite
def spoilt_members(draw: Any, members: dict[str, bytes]) -> dict[str, bytes]:
    """Draw the files of a folder or archive, one of them spoilt, and at times one of an evil name."""
    name = draw(st.sampled_from(sorted(members)))
    spoilt_one = members | {name: spoil(members[name], draw(changes))}
    if name.endswith((".json", ".zarray", ".zgroup", ".zattrs")) and draw(st.booleans()):
        spoilt_one[name] = json.dumps(draw(spoilt_documents(json.loads(members[name])))).encode()
    if draw(st.integers(0, 5)) == 0:
        evil = draw(
            st.sampled_from(["../out.npy", "/tmp/robustnmf-out.npy", "a/../../out.npy", "x\\..\\out.npy", "a\x00.npy"])
        )
        spoilt_one[evil] = members[name]
    return spoilt_one


def archive(members: dict[str, bytes]) -> bytes:
    """Return a zip file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return file.getvalue()


def members_of(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


# --- Valid files ------------------------------------------------------------------------------------------------------


def written(name: str, write: Callable[[Path], Any]) -> bytes:
    with TemporaryDirectory() as folder:
        write(Path(folder, name))
        return Path(folder, name).read_bytes()


def folder_of(write: Callable[[Path], Any]) -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        root = Path(name, "a.zarr")
        write(root)
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@cache
def model_file() -> bytes:
    model = RobustNMF(2, method="huber", random_state=0, max_iter=2, tol=1.0).fit(X)
    return written("m", model.save)


def forged(document: Any, arrays: bytes) -> bytes:
    """Return a model file whose checksum fits its text."""
    text = json.dumps(document).encode()
    return f"robustnmf-model 1 {len(text)} {hashlib.sha256(text).hexdigest()}\n".encode() + text + arrays


def spoilt_text() -> st.SearchStrategy[bytes]:
    document, arrays = model_parts()
    return spoilt_documents(document).map(lambda d: forged(d, arrays))


def spoilt_arrays() -> st.SearchStrategy[bytes]:
    document, arrays = model_parts()
    return changes.map(lambda how: forged_arrays(document, spoil(arrays, how)))


def model_parts() -> tuple[Any, bytes]:
    head, rest = model_file().split(b"\n", 1)
    length = int(head.split()[2])
    return json.loads(rest[:length]), rest[length:]


def npy(values: Any = X) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def mat(compressed: bool = False) -> bytes:
    return written("a.mat", lambda path: savemat(path, {"X": X, "n": 3, "t": "text"}, do_compression=compressed))


def mat_compressed_inside(how: list[Any]) -> bytes:
    """Return a MAT-file whose compressed part is spoilt inside."""
    content = mat(compressed=True)
    (length,) = struct.unpack("<I", content[132:136])
    inner = zlib.compress(spoil(zlib.decompress(content[136 : 136 + length]), how))
    return content[:128] + struct.pack("<II", 15, len(inner)) + inner


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("g/X", data=X, compression="gzip")
        file["labels"] = np.arange(3)


def parquet(path: Path) -> None:
    pd.DataFrame(X, columns=list("abcde")).to_parquet(path)


def image(name: str, frames: int = 1, dtype: str = "uint8") -> bytes:
    arrays = np.random.default_rng(1).integers(0, 200, (frames, 6, 5)).astype(dtype)
    first, *others = (Image.fromarray(a) for a in arrays)
    return written(
        name, lambda path: first.save(path, **({"save_all": True, "append_images": others} if others else {}))
    )


def of_corpus(name: str) -> bytes:
    """Return the bytes of a file of the corpus of arrays."""
    return written(name, next(case.make for case in corpus_arrays.CASES if case.name == name))


def log_file() -> bytes:
    with TemporaryDirectory() as folder:
        log = Log(Path(folder))
        for trial in range(3):
            log.add(Task("e", "s", 0.1, "l2", trial, {"a": 1}), "1", 0.1, Outcome({"error": 0.5}), None)
        return log.path.read_bytes()


CSV = pd.DataFrame(X, columns=list("abcde"), index=[f"s{i}" for i in range(6)]).to_csv().encode()
cells = st.sampled_from(
    ["1", "2.5", "-3e300", "1e999", "nan", "NA", "", " ", "x", '"', '"a,b"', "1,5", "1_000", "0x1", "#", "٣", "\x00"]
)
csv_tables = st.builds(
    lambda rows, mark, end: end.join(mark.join(row) for row in rows).encode(),
    st.lists(st.lists(cells, max_size=5), max_size=8),
    st.sampled_from([",", ";", "\t", " ", "|"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
headers = st.builds(
    lambda shape, dtype, order, rest: _npy_with_header(shape, dtype, order, rest),
    st.lists(st.sampled_from([0, 1, 2, 5, 6, 2**31, 2**62, -1]), max_size=4),
    st.sampled_from(["<f8", ">f4", "|O", "<U8", "<M8[s]", "|V8", "<c16", "|b1", "<i8", "<f2", "<f16", "|S5"]),
    st.booleans(),
    st.integers(0, 400),
)


def _npy_with_header(shape: list[int], dtype: str, order: bool, rest: int) -> bytes:
    """Return an array file that declares anything."""
    text = repr({"descr": dtype, "fortran_order": order, "shape": tuple(shape)}).encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(rest)


bombs = st.builds(
    lambda size: archive({"X.npy": _npy_with_header([size // 8, 1], "<f8", False, 0) + bytes(size)}),
    st.sampled_from([2**23, 2**25]),
)

sides = st.sampled_from([1, 2, 50, 5000, 2**20, 2**40])
chunk_sides = st.sampled_from([1, 3, 64, 2**13, 2**28])
dtypes = st.sampled_from(["float64", "float32", "uint8", "int16"])


@st.composite
def hdf5_layouts(draw: Any) -> bytes:
    """Draw a dataset of any shape and chunks, of which little or nothing is stored."""
    n_axes = draw(st.sampled_from([2, 2, 3]))
    shape, chunks = (draw(st.lists(side, min_size=n_axes, max_size=n_axes)) for side in (sides, chunk_sides))
    options = draw(st.sampled_from([{}, {"compression": "gzip"}, {"compression": "lzf"}, {"scaleoffset": 2}]))
    file = io.BytesIO()
    with h5py.File(file, "w") as store:
        try:
            limits = {"maxshape": (None,) * n_axes, "chunks": tuple(chunks)}
            dataset = store.create_dataset("X", shape, draw(dtypes), **limits, **options)
            if draw(st.booleans()) and max(chunks) < 2**13:
                dataset[(0,) * n_axes] = 3
        except (ValueError, OSError):  # larger than HDF5 can be told, or than it wants to hold
            store["Y"] = X
    return file.getvalue()


@st.composite
def zarr_layouts(draw: Any) -> dict[str, bytes]:
    """Draw an array of any shape, chunks and shards, of which nothing is stored, or a block of anything."""
    shape, chunks = ([draw(side), draw(side)] for side in (sides, chunk_sides))
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if draw(st.booleans()):
        inner = [draw(st.sampled_from([1, chunk, 64])) for chunk in chunks]
        index = [*codecs, {"name": "crc32c"}]
        configuration = {"chunk_shape": inner, "codecs": codecs, "index_codecs": index, "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
    elif draw(st.booleans()):
        codecs.append({"name": "gzip", "configuration": {"level": 1}})
    metadata = {
        **{"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": draw(dtypes), "fill_value": 0},
        **{"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}}, "codecs": codecs},
        **{"chunk_key_encoding": {"name": "default"}, "attributes": {}},
    }
    files = {"zarr.json": json.dumps(metadata).encode()}
    # If one of several blocks is broken, zarr goes on to read the others in its own thread, also after the error.
    if all(side <= chunk for side, chunk in zip(shape, chunks, strict=True)):
        files |= {"c/0/0": draw(st.sampled_from([b"", bytes(1000), zlib.compress(bytes(2**20))]))}
    return files


# --- The targets ------------------------------------------------------------------------------------------------------


def table(path: Path) -> Any:
    values = read_table(path, max_bytes=MOST_BYTES).values
    assert values.ndim == 2 and values.size > 0 and values.dtype in (np.float32, np.float64)
    return values


def transformed(path: Path) -> Any:
    """Load a model and use it: what is accepted must work, or refuse like any model."""
    model = load(path)
    try:
        codes = model.transform(np.ones((2, model.n_features_in_)))
    except ValueError:
        return None
    assert np.isfinite(codes).all()
    return codes


def opened(path: Path) -> Any:
    return [record.measures for record in Log(path).results().records]


def frames(n: int = 3) -> dict[str, bytes]:
    return {f"{k}.png": image(f"{k}.png") for k in range(n)}


def everything() -> dict[str, Target]:
    """Return all targets by name."""
    npz = archive({"X.npy": npy(), "labels.npy": npy(np.arange(6))})
    zipped_zarr = archive(folder_of(lambda path: zarr.create_array(path, data=X)))
    labels = {f"{name}.npy": npy(np.arange(4)) for name in ("labels", "shot", "session", "occlusion")}
    faces = {"images.npy": npy(np.zeros((4, 6, 5), np.uint8)), **labels}
    files: dict[str, tuple[str, st.SearchStrategy[Content]]] = {
        "csv bytes": ("a.csv", spoilt(CSV)),
        "csv": ("a.csv", csv_tables),
        "txt": ("a.txt", csv_tables | spoilt(CSV.replace(b",", b" "))),
        "utf-16": ("a.tsv", spoilt(CSV.decode().replace(",", "\t").encode("utf-16"))),
        "npy bytes": ("a.npy", spoilt(npy())),
        "npy headers": ("a.npy", headers),
        "npz bytes": ("a.npz", spoilt(npz)),
        "npz inside": ("a.npz", spoilt_members(members_of(npz)).map(archive)),
        "npz headers": ("a.npz", headers.map(lambda content: archive({"X.npy": content}))),
        "npz bombs": ("a.npz", bombs),
        "mat bytes": ("a.mat", spoilt(mat())),
        "mat compressed": ("a.mat", spoilt(mat(compressed=True))),
        "mat inside": ("a.mat", changes.map(mat_compressed_inside)),
        "hdf5": ("a.h5", spoilt(written("a.h5", hdf5))),
        "hdf5 layouts": ("a.h5", hdf5_layouts()),
        "zarr layouts": ("a.zarr", zarr_layouts()),
        "parquet": ("a.parquet", spoilt(written("a.parquet", parquet))),
        "zarr 3": ("a.zarr", spoilt_members(folder_of(lambda path: zarr.create_array(path, data=X)))),
        "zarr 2": ("a.zarr", spoilt_members(folder_of(lambda path: zarr.create_array(path, data=X, zarr_format=2)))),
        "zarr zip": ("a.zarr", spoilt(zipped_zarr)),
        "zarr zip inside": ("a.zarr", spoilt_members(members_of(zipped_zarr)).map(archive)),
        "png": ("a.png", spoilt(image("a.png"))),
        "jpeg": ("a.jpg", spoilt(image("a.jpg"))),
        "tiff": ("a.tif", spoilt(image("a.tif", frames=3, dtype="uint16"))),
        "imagej": ("a.tif", spoilt(of_corpus("imagej-tcyx.tif"))),
        "ome": ("a.tif", spoilt(of_corpus("ome.ome.tif"))),
        "fits": ("a.fits", spoilt(of_corpus("cube.fits"))),
        "hyperspy": ("a.hspy", spoilt(of_corpus("eels.hspy"))),
        "movie": ("a.avi", spoilt(of_corpus("ffv1.avi"))),
        "gif": ("a.gif", spoilt(image("a.gif", frames=2))),
        "bmp": ("a.bmp", spoilt(image("a.bmp"))),
        "image folder": ("folder", spoilt_members(frames())),
        "unknown": ("a.dat", st.binary(max_size=200) | spoilt(npy()) | spoilt(npz)),
    }
    targets = {name: Target(file, contents, table, (DataFileError,)) for name, (file, contents) in files.items()}
    # Deferred: a model is fitted when its files are drawn, not when tests are collected.
    models = {"bytes": lambda: spoilt(model_file()), "text": spoilt_text, "arrays": spoilt_arrays}
    for name, contents in models.items():
        targets[f"model {name}"] = Target("m", st.deferred(contents), transformed, (ModelFileError,))
    lines = st.builds(lambda how: {"runs.jsonl": spoil(log_file(), how)}, changes)
    targets["log of experiments"] = Target("log", lines, opened, (ValueError,))
    contents = spoilt(archive(faces)) | spoilt_members(faces).map(archive)
    contents |= headers.map(lambda content: archive(faces | {"images.npy": content}))
    for name, reader in (("video", load_video_hall), ("faces", load_ar)):
        targets[f"{name} archive"] = Target("v.npz", contents, reader, (ValueError,))
    return targets


def forged_arrays(document: Any, arrays: bytes) -> bytes:
    """Return a model file with other arrays whose checksums fit as far as they go."""
    document, place = json.loads(json.dumps(document)), 0
    for entry in document["arrays"]:
        size = int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize
        entry["sha256"] = hashlib.sha256(arrays[place : place + size]).hexdigest()
        place += size
    return forged(document, arrays[:place].ljust(place, b"\0"))
