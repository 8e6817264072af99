"""Claims about files that were made to do harm: none fills the memory, leaves its folder or hangs the reader."""

import bz2
import gzip
import json
import lzma
import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_matrix

from corpus_tables import write_ods_rows
from robustnmf.formats import (
    DataFileError,
    arrow_tables,
    excel,
    h5ad,
    hdf5,
    images,
    limits,
    matlab,
    matrix_market,
    parquet_pages,
    read_table,
    text,
    text_files,
    tiff,
    workbook_limits,
    zarr_stores,
)
from robustnmf.formats.packed import HEADERS, PACKERS, unpacked_size

pytestmark = pytest.mark.filterwarnings("error")

X = np.random.default_rng(0).random((6, 5))
LIMIT = 2**20
# What a bomb of a few kilobytes becomes.
BLAST = 2**26


def refused(path, *words, **options):
    with pytest.raises(DataFileError) as caught:
        read_table(path, **options)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return message


@cache
def packed_zeros(length=BLAST):
    return zlib.compress(bytes(length), 1)


# --- Bombs ------------------------------------------------------------------------------------------------------------


def bomb_npz(path):
    """A header of NumPy that is longer than all that it could say."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("X.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", BLAST) + b" " * BLAST)


def mat5(flags, values):
    """Return a MAT-file with one compressed array X of 2 x 2, whose values are zeros behind the tag that is given."""

    def tag(kind, length):
        return struct.pack("<II", kind, length)

    head = tag(6, 8) + struct.pack("<II", flags, 0) + tag(5, 8) + struct.pack("<ii", 2, 2) + values
    packed = zlib.compress(tag(14, len(head) + BLAST) + head + bytes(BLAST), 1)
    return b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x100) + b"IM" + tag(15, len(packed)) + packed


def bomb_mat(path):
    """More values than the shape says."""
    path.write_bytes(mat5(6, struct.pack("<HH4s", 1, 1, b"X") + struct.pack("<II", 9, BLAST)))


def bomb_mat_name(path):
    """An endless name, here of a cell array, which is not read itself."""
    path.write_bytes(mat5(1, struct.pack("<II", 1, BLAST)))


def bomb_h5(path):
    """A chunk of gzip that becomes more than a chunk."""
    with pytest.importorskip("h5py").File(path, "w") as file:
        dataset = file.create_dataset("X", (200, 200), float, chunks=(200, 200), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), packed_zeros())


def bomb_small_h5(path):
    """A chunk of gzip that is larger than a chunk already."""
    with pytest.importorskip("h5py").File(path, "w") as file:
        dataset = file.create_dataset("X", (10, 10), float, chunks=(10, 10), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), packed_zeros())


def bomb_h5_twice(path):
    """Gzip within gzip."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10, 10))
        plist.set_deflate(9)
        plist.set_deflate(9)
        dataset = h5py.h5d.create(file.id, b"X", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((10, 10)), plist)
        dataset.write_direct_chunk((0, 0), zlib.compress(packed_zeros()))


def sparse_group(file, data, indices, indptr, **attributes):
    """Write a sparse matrix of 2 x 2 as AnnData does."""
    group = file.create_group("X")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": (2, 2)} | attributes)
    for name, values in (("data", data), ("indices", indices), ("indptr", indptr)):
        if values is not None:
            group[name] = values
    return group


def bomb_h5ad(path):
    """A chunk of gzip, in the values of a sparse matrix, that becomes more than a chunk."""
    with pytest.importorskip("h5py").File(path, "w") as file:
        group = sparse_group(file, None, np.arange(40_000) % 2, [0, 20_000, 40_000])
        data = group.create_dataset("data", (40_000,), float, chunks=(40_000,), compression="gzip")
        data.id.write_direct_chunk((0,), packed_zeros())


def bomb_h5ad_names(path, **settings):
    """Many names that are all the same long one, which is stored once."""
    h5py = pytest.importorskip("h5py")
    n_names = 2000
    with h5py.File(path, "w") as file:
        sparse_group(file, [1.0], [0], [0] + [1] * n_names, shape=(n_names, 2))
        file.create_group("obs").attrs["_index"] = "_index"
        names = file["obs"].create_dataset("_index", (n_names,), h5py.string_dtype(), **settings)
        names[0] = "x" * (BLAST // 64)
        names[1:] = "x"
        file.flush()
        offset = names.id.get_chunk_info(0).byte_offset if settings else names.id.get_offset()
    content = bytearray(path.read_bytes())
    content[offset : offset + 16 * n_names] = content[offset : offset + 16] * n_names
    path.write_bytes(content)


def bomb_h5ad_chunk_of_names(path):
    bomb_h5ad_names(path, chunks=(2000,))


def bomb_sparse_npz(path):
    """Indices that are longer than all that is in the file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        head = {"fortran_order": False}
        for name, descr, shape, content in (
            ("format", "|S3", (), b"csr"),
            ("shape", "<i8", (2,), struct.pack("<2q", 2, 2)),
            ("data", "<f8", (1,), bytes(8)),
            ("indptr", "<i8", (3,), bytes(24)),
            ("indices", "|i1", (BLAST,), bytes(BLAST)),
        ):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, head | {"descr": descr, "shape": shape})
                file.write(content)


def bomb_mtx(path):
    """Lines without entries."""
    content = b"%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1\n"
    path.write_bytes(gzip.compress(content + b"\n" * BLAST, 1))


def bomb_mtx_comment(path):
    """A comment without end."""
    content = b"%%MatrixMarket matrix coordinate real general\n%"
    path.write_bytes(gzip.compress(content + b" " * BLAST, 1))


def bomb_zarr(codec, configuration, block):
    def write(path):
        zarr = pytest.importorskip("zarr")
        zarr.create_array(path, shape=(200, 200), chunks=(200, 200), dtype=float, zarr_format=2, compressors=None)
        metadata = json.loads((path / ".zarray").read_text())
        (path / ".zarray").write_text(json.dumps(metadata | {"compressor": {"id": codec, **configuration}}))
        (path / "0.0").write_bytes(block())

    return write


def encoded(codec, **settings):
    """Return zeros as numcodecs compresses them."""
    return pytest.importorskip("numcodecs").get_codec({"id": codec, **settings}).encode(np.zeros(BLAST, np.uint8))


def bomb_sharded_zarr(path):
    """A block in a shard that becomes larger than the shard."""
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(path, shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype=float)
    array[...] = 1.0
    shard = path / "c" / "0" / "0"
    block = bytes(encoded("zstd"))
    index = np.full((4, 2), 2**64 - 1, "<u8")
    index[0] = 0, len(block)
    checked = bytes(pytest.importorskip("numcodecs").get_codec({"id": "crc32c"}).encode(index.tobytes()))
    shard.write_bytes(block + checked)


def bomb_zipped_zarr(path):
    """A zip file that is compressed by bzip2 and lies about the size."""
    zarr = pytest.importorskip("zarr")
    folder = path.with_suffix(".folder")
    zarr.create_array(folder, data=X, zarr_format=2, compressors=None)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(folder / ".zarray", ".zarray")
        archive.writestr("0.0", bytes(BLAST))
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", BLAST), struct.pack("<I", X.nbytes)))
    shutil.rmtree(folder)


def bomb_zarr_type(path):
    """A codec that makes long texts of numbers."""
    zarr = pytest.importorskip("zarr")
    zarr.create_array(path, data=X, zarr_format=2, compressors=None)
    metadata = json.loads((path / ".zarray").read_text())
    codec = {"id": "astype", "encode_dtype": "<f8", "decode_dtype": "<U1000000"}
    (path / ".zarray").write_text(json.dumps(metadata | {"filters": [codec]}))


def bomb_zarr_twice(path):
    """Bzip2 within bzip2."""
    zarr = pytest.importorskip("zarr")
    zarr.create_array(path, data=X, zarr_format=2, compressors=None)
    metadata = json.loads((path / ".zarray").read_text())
    codec = {"id": "bz2", "level": 9}
    (path / ".zarray").write_text(json.dumps(metadata | {"filters": [codec], "compressor": codec}))
    (path / "0.0").write_bytes(bz2.compress(bz2.compress(bytes(BLAST))))


def bomb_parquet(path):
    """One long name that all rows refer to."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = 4 * arrow_tables.MAX_NAMES // LIMIT
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * (LIMIT // 2)]))
    pq.write_table(pa.table({"id": names, "a": np.zeros(rows)}), path, compression="zstd")


def bomb_tiff(path):
    """One tile, of which the image is a corner."""
    tifffile = pytest.importorskip("tifffile")
    corner = np.zeros((10, 10), np.uint8)
    tifffile.imwrite(path, corner, tile=(8192, 8192), compression="zlib", photometric="minisblack")


def bomb_png(path):
    """More rows than the header says are not unpacked, and a header that says too much is refused."""
    pytest.importorskip("PIL")

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 8000, 8000, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed_zeros()))


def bomb_csv(path):
    """Compressed text that is much more than a table of its size."""
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * (BLAST // 4), 1))


def bomb_csv_row(path):
    """Compressed text in one line."""
    path.write_bytes(gzip.compress(b"1" * BLAST, 1))


def workbook(path, **parts):
    """Write a workbook of one cell, with other parts."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["a", 1.0])
    book.save(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in (content | parts).items():
            archive.writestr(name, part)


def sheet_of(cells):
    return f'<worksheet xmlns="http://x"><sheetData><row r="1">{cells}</row></sheetData></worksheet>'.encode()


SHEET = "xl/worksheets/sheet1.xml"


def bomb_xlsx(path):
    """A cell at the other end of the sheet: calamine would take memory for all between."""
    cells = '<c r="A1"><v>1</v></c><c r="XFD1048576"><v>2</v></c>'
    workbook(path, **{SHEET: sheet_of(cells)})


def bomb_xlsx_columns(path):
    """A wide sheet that is nearly empty, below the limit of bytes."""
    workbook(path, **{SHEET: sheet_of('<c r="A1"><v>1</v></c><c r="XFD200"><v>2</v></c>')})


def bomb_xlsx_texts(path):
    """One long text in many cells."""
    shared = f'<sst xmlns="http://x"><si><t>{"x" * 2**20}</t></si></sst>'.encode()
    cells = "".join('<c t="s"><v>0</v></c>' for _ in range(2000))
    workbook(path, **{SHEET: sheet_of(cells), "xl/sharedStrings.xml": shared})


def bomb_xlsx_size(path):
    """A part that unpacks to more than the zip file declares."""
    workbook(path, **{"xl/large.xml": bytes(BLAST)})
    content, size = path.read_bytes(), struct.pack("<I", BLAST)
    path.write_bytes(content.replace(size, struct.pack("<I", 1000)))


def bomb_xlsx_part(path):
    workbook(path, **{"xl/large.xml": bytes(BLAST)})


def bomb_xlsx_entities(path):
    """Entities that double in each step."""
    steps = "".join(f'<!ENTITY e{i + 1} "&e{i};&e{i};">' for i in range(40))
    sheet = sheet_of('<c r="A1" t="str"><v>&e40;</v></c>').decode()
    workbook(path, **{SHEET: f'<!DOCTYPE x [<!ENTITY e0 "lol">{steps}]>{sheet}'.encode()})


def bomb_ods(path):
    """A number that is repeated in all cells of a sheet."""
    cell = '<table:table-cell table:number-columns-repeated="16384" office:value-type="float" office:value="1"/>'
    write_ods_rows(path, f'<table:table-row table:number-rows-repeated="1048576">{cell}</table:table-row>')


def bomb_feather(path):
    """A buffer of Zstandard that becomes much more than the table."""
    pa, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    words = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), pa.array(["x" * BLAST]))
    feather.write_feather(pa.table({"id": words, "a": [1.0, 2.0]}), path, compression="zstd")


def bomb_feather_rows(path):
    """Rows of nothing, which need no bytes."""
    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch({"a": pa.nulls(2**31 - 1)})
    with pa.ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)


BOMBS = {
    "lines.csv.gz": (bomb_csv, "131074 values"),
    "row.csv.gz": (bomb_csv_row, "unpacks to more than 1048576 bytes"),
    "far.xlsx": (bomb_xlsx, "1048576 x 16384 values"),
    "texts.xlsx": (bomb_xlsx_texts, "unpacks to more than 1048576 bytes"),
    "size.xlsx": (bomb_xlsx_size, "unpacks to more than"),
    "part.xlsx": (bomb_xlsx_part, "unpacks to more than 1048576 bytes"),
    "entities.xlsx": (bomb_xlsx_entities, "defines entities"),
    "repeated.ods": (bomb_ods, "1048576 x 16384 values"),
    "words.feather": (bomb_feather, "unpacks to"),
    "rows.feather": (bomb_feather_rows, "2147483647 x 1 values"),
    "header.npz": (bomb_npz, "header of 67108864 bytes"),
    "values.mat": (bomb_mat, "67108864 bytes in a part of an array 2 x 2"),
    "name.mat": (bomb_mat_name, "name of 67108864 bytes"),
    "chunk.h5": (bomb_h5, "unpacks to more than the 320000 bytes"),
    "small.h5": (bomb_small_h5, "should unpack to 800"),
    "twice.h5": (bomb_h5_twice, "a filter twice"),
    "chunk.h5ad": (bomb_h5ad, "unpacks to more than the 320000 bytes"),
    "names.h5ad": (bomb_h5ad_names, "names have more than"),
    "chunked-names.h5ad": (bomb_h5ad_chunk_of_names, "names have more than"),
    "indices.npz": (bomb_sparse_npz, "no larger than"),
    "lines.mtx.gz": (bomb_mtx, "unpacks to more than 1048576 bytes"),
    "comment.mtx.gz": (bomb_mtx_comment, "a line of more than 65536 bytes"),
    "blosc.zarr": (bomb_zarr("blosc", {"cname": "zstd"}, lambda: encoded("blosc", cname="zstd")), "unpacks to more"),
    "lz4.zarr": (bomb_zarr("lz4", {}, lambda: encoded("lz4")), "unpacks to more"),
    "zstd.zarr": (bomb_zarr("zstd", {}, lambda: encoded("zstd")), "unpacks to more"),
    "bz2.zarr": (bomb_zarr("bz2", {}, lambda: bz2.compress(bytes(BLAST))), "unpacks to more"),
    "lzma.zarr": (bomb_zarr("lzma", {}, lambda: lzma.compress(bytes(BLAST), preset=0)), "unpacks to more"),
    "gzip.zarr": (bomb_zarr("gzip", {}, lambda: gzip.compress(bytes(BLAST), 1)), "unpacks to more"),
    "zlib.zarr": (bomb_zarr("zlib", {}, packed_zeros), "unpacks to more"),
    "shards.zarr": (bomb_sharded_zarr, "unpacks to more"),
    "zipped.zarr": (bomb_zipped_zarr, "do not write"),
    "type.zarr": (bomb_zarr_type, "a type that is none"),
    "twice.zarr": (bomb_zarr_twice, "in several steps"),
    "names.parquet": (bomb_parquet, "characters together"),
    "tile.tif": (bomb_tiff, "8192 x 8192"),
    "size.png": (bomb_png, "8000 x 8000"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_and_the_limit_named(tmp_path, name):
    write, words = BOMBS[name]
    write(tmp_path / name)
    refused(tmp_path / name, words, max_bytes=LIMIT)


READ_ALL = """
import resource, sys
from pathlib import Path
import h5py, numcodecs, openpyxl, PIL.Image, pyarrow.parquet, python_calamine, scipy.io, zarr
from robustnmf.formats import DataFileError, read_table
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    before = peak()
    try:
        read_table(path, max_bytes=int(sys.argv[2]))
    except DataFileError:
        print(path.name, (peak() - before) // (2**20 if sys.platform == "darwin" else 2**10))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the largest memory of a process")
def test_bombs_do_not_take_memory(tmp_path):
    for name, (write, _) in BOMBS.items():
        write(tmp_path / name)
    command = [sys.executable, "-c", READ_ALL, str(tmp_path), str(LIMIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken = dict(line.split() for line in done.stdout.splitlines())
    assert set(taken) == set(BOMBS)
    # Each would take 64 MiB or more. SciPy unpacks up to twice 64 MiB at a time on the way to the shape.
    allowed = {name: 150 if name.endswith(".mat") else 40 for name in BOMBS}
    assert all(int(taken[name]) < allowed[name] for name in BOMBS), taken


# --- Files of some bytes that are within the limit, and cost far more than they are worth -----------------------------


def h5(shape, chunks=None, dtype=float, **options):
    """Return what writes a dataset of which nothing is stored."""

    def write(path):
        resizable = {} if chunks is None else {"maxshape": (None,) * len(shape), "chunks": chunks}
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.create_dataset("X", shape, dtype, **resizable, **options)

    return write


def h5_with_settings(old, new, **options):
    """Return what writes filters that make as much of nothing as their settings say, not those of the chunk."""

    def write(path):
        h5((10, 10), (10, 10), **options)(path)
        content = path.read_bytes()
        assert content.count(struct.pack("<3I", *old)) == 1
        path.write_bytes(content.replace(struct.pack("<3I", *old), struct.pack("<3I", *new)))

    return write


def h5_with_filters(numbers, chunk, **others):
    """Return what writes a chunk that went through filters, which need not be installed."""
    count = 1000 * 1000
    settings = {1: (9,), 2: (8,), 4: (169, 8, 64, 1000), 5: (8, 0, count, 1, 8, 0, 64, 0), 32000: (4, 261, 8 * count)}
    settings |= {6: (0, 3, count, 1, 8, 0, 0, 1, *(0,) * 12)} | others.get("settings", {})

    def write(path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((1000, 1000))
            for number in numbers:
                plist.set_filter(number, h5py.h5z.FLAG_OPTIONAL, settings.get(number, ()))
            space = h5py.h5s.create_simple((1000, 1000))
            dataset = h5py.h5d.create(file.id, b"X", h5py.h5t.IEEE_F64LE, space, plist)
            dataset.write_direct_chunk((0, 0), chunk())

    return write


def zarr_array(shape, chunks, dtype=float, **options):
    """Return what writes an array of which nothing is stored."""

    def write(path):
        pytest.importorskip("zarr").create_array(path, shape=shape, chunks=chunks, dtype=dtype, **options)

    return write


def stored_zarr(path):
    """A block of a zip file that is not compressed by zarr, and larger than a block."""
    folder = path.with_suffix(".folder")
    pytest.importorskip("zarr").create_array(folder, data=X, zarr_format=2, compressors=None)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / ".zarray", ".zarray")
        archive.writestr("0.0", bytes(4 * BLAST))
    shutil.rmtree(folder)


def zipped_groups(n_groups, size):
    """Return what writes groups that say nothing, at length."""

    def write(path):
        attributes = {"attributes": {"a": "x" * size}}
        metadata = json.dumps({"zarr_format": 3, "node_type": "group", **attributes})
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("", *(f"{i}/" for i in range(n_groups))):
                archive.writestr(f"{name}zarr.json", metadata)

    return write


def repeated_parquet(path):
    """One number, many times."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": np.zeros(2**24)})
    pq.write_table(table, path, max_rows_per_page=2**31 - 1, write_statistics=False)


def varint(number, length=None):
    """Return a number as Thrift writes it, or longer than it must be."""
    groups = []
    while number or not groups:
        groups.append(number & 127)
        number >>= 7
    groups += [0] * ((length or len(groups)) - len(groups))
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])


def lying_parquet(path):
    """A page that becomes larger than its column and its group of rows declare."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": ["x" * 2 * BLAST, *("abc")], "a": np.arange(4.0)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    group = pq.read_metadata(path).row_group(0)
    content = path.read_bytes()
    for size in (group.total_byte_size, group.column(0).total_uncompressed_size):
        told = varint(2 * size)  # the lowest bit is the sign
        start = content.rindex(told)
        content = content[:start] + varint(2 * 100, len(told)) + content[start + len(told) :]
    path.write_bytes(content)
    assert pq.read_metadata(path).row_group(0).total_byte_size == 100


def delta_parquet(path):
    """Names that each go on from the one before: all but the first take some bytes."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": [f"{'x' * 2**19}{i}" for i in range(100)], "a": np.arange(100.0)})
    options = {"use_dictionary": False, "column_encoding": {"id": "DELTA_BYTE_ARRAY"}, "write_statistics": False}
    pq.write_table(table, path, compression="zstd", **options)


def scanned_jpeg(path):
    """Scans that go over all pixels and take some bytes each."""
    image = pytest.importorskip("PIL.Image").fromarray(np.zeros((2000, 2000), np.uint8))
    image.save(path, "JPEG", progressive=True)
    content = path.read_bytes()
    last = content[content.rindex(b"\xff\xda") : -2]
    path.write_bytes(content[:-2] + last * 20_000 + content[-2:])


def blank_gif(path):
    """A canvas with a dot on it."""
    head = b"GIF89a" + struct.pack("<HHBBB", 8000, 8000, 0x80, 0, 0) + bytes(6)
    dot = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    path.write_bytes(head + dot + b"\x3b")


def animated_png(path):
    """A header that declares very many frames."""
    Image = pytest.importorskip("PIL.Image")
    frames = [Image.fromarray(np.full((3, 3), i, np.uint8)) for i in range(2)]
    frames[0].save(path, "PNG", save_all=True, append_images=frames[1:])
    content = path.read_bytes()
    start = content.index(b"acTL")
    part = b"acTL" + struct.pack(">II", 2**28, 0)
    path.write_bytes(content[:start] + part + struct.pack(">I", zlib.crc32(part)) + content[start + len(part) + 4 :])


def tiff_in_pages(path, n_pages=3000):
    """Pages of one pixel, the same for all."""
    tags = [(256, 1), (257, 1), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 1)]
    length = 2 + 12 * len(tags) + 4
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    ends = [16 + length * (i + 1) for i in range(n_pages - 1)] + [0]
    pages = b"".join(directory + struct.pack("<I", end) for end in ends)
    path.write_bytes(b"II*\0" + struct.pack("<I", 16) + bytes(8) + pages)


def lying_npz(path):
    """An archive whose directory says that a few bytes are the 7 GiB that the array declares."""
    header = repr({"descr": "<f8", "fortran_order": False, "shape": (20_000, 20_000)}).encode().ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(5000)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", content)
    told = struct.pack("<I", len(content))
    path.write_bytes(path.read_bytes().replace(told, struct.pack("<I", 8 * 20_000**2 + 128)))


def sparse_mat(path):
    """An array of MATLAB with one value."""
    savemat(path, {"X": csc_matrix(([1.0], ([0], [0])), shape=(30_000, 30_000))}, do_compression=True)


GIB_4 = struct.pack(">Q", 2**32)
TINY, NOTHING = "4194304 chunks of 1 x 1", "a file that holds its values"
COSTLY = {
    "tiny.h5": (h5((2048, 2048), (1, 1)), TINY),
    "tiny stack.h5": (h5((200, 200, 100), (1, 1, 1)), "4000000 chunks of 1 x 1 x 1"),
    "tiny and empty.h5": (h5((30_000, 30_000), (1, 1)), NOTHING),
    "empty.h5": (h5((30_000, 30_000), (1000, 1000)), NOTHING),
    "empty in one piece.h5": (h5((30_000, 30_000)), NOTHING),
    "empty and filled.h5": (h5((30_000, 30_000), (1000, 1000), fillvalue=3.0, compression="gzip"), NOTHING),
    "huge.h5": (h5((10, 10), (8192, 16_384), compression="gzip"), "8192 x 16384 values, 1024 MiB"),
    "broad.h5": (h5((100_000, 1), (1, 2**20), compression="gzip"), "1 x 1048576 values have 781 GiB"),
    "settings.h5": (h5_with_settings((0, 3, 100), (0, 3, 2**28), scaleoffset=3), "not those of its chunks"),
    "nested.h5": (h5_with_filters([32000, 1], lambda: packed_zeros(100)), "compressed in several steps"),
    "early.h5": (h5_with_filters([1, 2], lambda: packed_zeros(100)), "or not in the last"),
    "chunk.h5": (h5_with_filters([1], lambda: packed_zeros(2**27)), "unpacks to more than the 8000000 bytes"),
    "blosc.h5": (h5_with_filters([32001], lambda: b"\2\1\1\x08" + struct.pack("<3I", 2**31 - 1, 64, 20)), "unpacks"),
    "lz4.h5": (h5_with_filters([32004], lambda: GIB_4 + bytes(8)), "unpacks to more"),
    "bitshuffle.h5": (h5_with_filters([2, 32008, 3], lambda: GIB_4 + bytes(8)), "unpacks to more"),
    "szip.h5": (h5_with_filters([4], lambda: struct.pack("<I", 2**32 - 1) + bytes(8)), "unpacks to more"),
    "szip divides.h5": (h5_with_filters([4], lambda: bytes(99), settings={4: (169, 0, 64, 0)}), "settings of a filter"),
    "lzf settings.h5": (h5_with_settings((4, 261, 800), (4, 261, 2**31), compression="lzf"), "not those of its chunks"),
    "bits and blosc.h5": (h5_with_filters([6, 32001], lambda: bytes(99)), "compressed in several steps"),
    # HDF5 reads on behind what is too short, and gives what it finds there or crashes.
    "short.h5": (h5_with_filters([], lambda: bytes(99)), "has 99 bytes where 8000000 are needed"),
    "short shuffled.h5": (h5_with_filters([2, 3], lambda: bytes(99)), "has 95 bytes where 8000000 are needed"),
    "short gzip.h5": (h5_with_filters([2, 1, 3], lambda: packed_zeros(99) + bytes(4)), "has 99 bytes where 8000000"),
    "short szip.h5": (h5_with_filters([4], lambda: struct.pack("<I", 99) + bytes(99)), "has 99 bytes where 8000000"),
    "short bits.h5": (h5_with_filters([5], lambda: bytes(99)), "has 99 bytes where 8000000 are needed"),
    "short offset.h5": (h5_with_filters([6], lambda: struct.pack("<I", 10) + bytes(95)), "where 1250021 are needed"),
    "short offset in gzip.h5": (
        h5_with_filters([6, 1], lambda: zlib.compress(struct.pack("<I", 10) + bytes(95))),
        "has 99 bytes where 1250021 are needed",
    ),
    "matlab.mat": (h5((30_000, 30_000), (1000, 1000)), NOTHING),
    "tiny.zarr": (zarr_array((2048, 2048), (1, 1)), TINY),
    "tiny 2.zarr": (zarr_array((2048, 2048), (1, 1), zarr_format=2), TINY),
    "tiny and empty.zarr": (zarr_array((30_000, 30_000), (1, 1)), "900000000 chunks of 1 x 1"),
    "empty.zarr": (zarr_array((30_000, 30_000), (1000, 1000)), NOTHING),
    "empty 2.zarr": (zarr_array((30_000, 30_000), (1000, 1000), zarr_format=2, fill_value=3.0), NOTHING),
    "huge.zarr": (zarr_array((10, 10), (30_000, 30_000)), "30000 x 30000 values"),
    "broad.zarr": (zarr_array((100_000, 1), (1, 2**20)), "1 x 1048576 values have 781 GiB"),
    "shards.zarr": (zarr_array((2048, 2048), (1, 1), shards=(2048, 2048)), TINY),
    "huge shard.zarr": (zarr_array((10, 10), (10, 10), shards=(30_000, 30_000)), "30000 x 30000 values"),
    "block.zarr": (stored_zarr, "0.0 has 268435456 bytes"),
    "metadata.zarr": (zipped_groups(20, 2**20), "its metadata have"),
    "groups.zarr": (zipped_groups(5000, 1), "5001 arrays and groups"),
    "repeated.parquet": (repeated_parquet, NOTHING),
    "lying.parquet": (lying_parquet, "unpacks to"),
    "delta.parquet": (delta_parquet, "must be a Parquet file"),
    "scans.jpg": (scanned_jpeg, "scans, and the most that is read is 100"),
    "canvas.gif": (blank_gif, NOTHING),
    "frames.png": (animated_png, "more than 2000 pages"),
    "pages.tif": (tiff_in_pages, "more than 2000 pages"),
    "lying.npz": (lying_npz, NOTHING),
    "sparse.mat": (sparse_mat, NOTHING),
}


MEASURE = """
import json, resource, sys, time
from pathlib import Path
import h5py, numcodecs, PIL.Image, pyarrow.parquet, scipy.io, scipy.sparse, zarr
from robustnmf.formats import DataFileError, arrow_tables, read_table, tiff
tiff.MAX_PAGES, arrow_tables.MAX_NAMES = 2000, 2**24  # so that files that reach them can be small
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)
resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))  # if all fails, this process does and not the machine
read_table(sys.argv[1])
for path in sorted(Path(sys.argv[2]).iterdir()):
    before, start, message = peak(), time.perf_counter(), "was read"
    try:
        read_table(path)
    except DataFileError as error:
        message = str(error)
    print(json.dumps([path.name, peak() - before, time.perf_counter() - start, message]), flush=True)
"""


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Memory in MiB and seconds that each file takes, and what is said of it."""
    folder = tmp_path_factory.mktemp("costly")
    (folder / "files").mkdir()
    for name, (write, _) in COSTLY.items():
        write(folder / "files" / name)
    pytest.importorskip("zarr").create_array(folder / "warm.zarr", data=X)
    command = [sys.executable, "-c", MEASURE, str(folder / "warm.zarr"), str(folder / "files")]
    done = subprocess.run(command, capture_output=True, text=True)
    measured = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert set(measured) == set(COSTLY), done.stderr
    return measured


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the largest memory of a process")
@pytest.mark.parametrize("name", COSTLY)
def test_file_within_the_limit_that_costs_more_than_it_is_worth_is_refused(costs, name):
    mebibytes, seconds, message = costs[name]
    assert COSTLY[name][1] in message
    assert message.endswith(".")
    assert mebibytes < 100
    assert seconds < 10


LAYOUTS = {
    "auto": {"chunks": True},
    "one row": {"chunks": (1, 70)},
    "one column": {"chunks": (90, 1)},
    "one value": {"chunks": (1, 1)},
    "all": {"chunks": (90, 70)},
    "uneven": {"chunks": (7, 11)},
}
FILTERS = [
    *({}, {"compression": "gzip"}, {"compression": "gzip", "fletcher32": True, "shuffle": True}),
    *({"compression": "lzf", "shuffle": True, "fletcher32": True}, {"compression": "szip"}, {"fletcher32": True}),
    *({"scaleoffset": 0}, {"scaleoffset": 0, "compression": "gzip"}, {"scaleoffset": 0, "compression": "lzf"}),
]
BYTES = np.random.default_rng(0).integers(0, 200, (90, 70))


@pytest.mark.parametrize("settings", FILTERS, ids=lambda settings: " ".join(settings) or "plain")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ordinary_chunks_of_hdf5_are_read(tmp_path, monkeypatch, layout, settings):
    monkeypatch.setattr(limits, "_AT_A_TIME", 50)
    if (layout, settings.get("compression")) == ("one value", "szip"):
        pytest.skip("szip does not take so little")
    with pytest.importorskip("h5py").File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("X", data=BYTES, maxshape=(None, None), **LAYOUTS[layout], **settings)
    np.testing.assert_array_equal(read_table(tmp_path / "a.h5", max_bytes=LIMIT).values, BYTES)


def test_other_ordinary_datasets_of_hdf5_are_read(tmp_path):
    """In one piece; resized to less than a chunk; with chunks that are not stored; a stack of images; nbit."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["whole"] = BYTES
        file.create_dataset("cut", data=BYTES, maxshape=(None, 70), chunks=(1000, 70)).resize((20, 70))
        file.create_dataset("gaps", (90, 70), chunks=(10, 10), fillvalue=3.0, dtype=float)[:10, :10] = 1.0
        file.create_dataset("stack", data=BYTES.reshape(9, 10, 70), chunks=(1, 10, 70))
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10, 10))
        plist.set_filter(5, h5py.h5z.FLAG_MANDATORY, ())
        kind, space = h5py.h5t.STD_I32LE, h5py.h5s.create_simple(BYTES.shape)
        h5py.Dataset(h5py.h5d.create(file.id, b"nbit", kind, space, plist))[...] = BYTES
    gaps = np.where((np.indices(BYTES.shape) < 10).all(axis=0), 1.0, 3.0)
    wanted = {"whole": BYTES, "cut": BYTES[:20], "gaps": gaps, "stack": BYTES.reshape(9, -1), "nbit": BYTES}
    for name, values in wanted.items():
        np.testing.assert_array_equal(read_table(tmp_path / "a.h5", key=name).values, values, err_msg=name)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ordinary_chunks_of_zarr_are_read(tmp_path, monkeypatch, layout, zarr_format):
    monkeypatch.setattr(limits, "_AT_A_TIME", 50)
    chunks = "auto" if layout == "auto" else LAYOUTS[layout]["chunks"]
    values = BYTES[:20, :20] if layout == "one value" else BYTES  # each has a file
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "a.zarr", data=values, chunks=chunks, zarr_format=zarr_format)
    np.testing.assert_array_equal(read_table(tmp_path / "a.zarr", max_bytes=LIMIT).values, values)


def test_other_ordinary_arrays_of_zarr_are_read(tmp_path):
    """Blocks of zeros, which zarr does not store; shards; a chunk larger than the array; what Dask writes."""
    zarr, da = pytest.importorskip("zarr"), pytest.importorskip("dask.array")
    gaps = np.zeros((90, 70))
    gaps[:10, :10] = 1.0
    zarr.create_array(tmp_path / "gaps.zarr", data=gaps, chunks=(10, 10))
    zarr.create_array(tmp_path / "shards.zarr", data=BYTES, chunks=(1, 10), shards=(30, 70))
    zarr.create_array(tmp_path / "large.zarr", shape=BYTES.shape, chunks=(1000, 1000), dtype=int)[...] = BYTES
    da.from_array(BYTES, chunks=(40, 30)).to_zarr(str(tmp_path / "dask.zarr"))
    np.testing.assert_array_equal(read_table(tmp_path / "gaps.zarr").values, gaps)
    for name in ("shards", "large", "dask"):
        np.testing.assert_array_equal(read_table(tmp_path / f"{name}.zarr").values, BYTES, err_msg=name)


@pytest.mark.parametrize("shape", [(5,), (5, 4), (3, 1, 4), (1, 1)])
@pytest.mark.parametrize("at_a_time", [1, 2, 5, 1000])
def test_slabs_cover_an_array_once(monkeypatch, shape, at_a_time):
    monkeypatch.setattr(limits, "_AT_A_TIME", at_a_time)
    for chunks in ((1,) * len(shape), (2, 3, 1)[: len(shape)], (100,) * len(shape)):
        seen = np.zeros(shape, int)
        for place in limits.slabs(shape, chunks, 8):
            seen[place] += 1
            assert limits.n_chunks(seen[place].shape, chunks) <= at_a_time
        assert (seen == 1).all()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
def test_sizes_of_parquet_pages_are_those_of_the_column(tmp_path, compression, version):
    """The metadata of honest files say how large pages are together, headers included."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    table = pa.table({"id": [f"name {i}" for i in range(5000)], "a": rng.random(5000), "b": rng.integers(0, 9, 5000)})
    options = {"data_page_size": 4096, "data_page_version": version, "write_batch_size": 100, "row_group_size": 3000}
    pq.write_table(table, tmp_path / "a.parquet", compression=compression, write_page_checksum=True, **options)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    with (tmp_path / "a.parquet").open("rb") as file:
        for number in range(metadata.num_row_groups):
            for place in range(3):
                column = metadata.row_group(number).column(place)
                sizes = list(parquet_pages.page_sizes(file, column))
                assert len(sizes) >= 2
                assert 0 <= column.total_uncompressed_size - sum(sizes) < 200 * len(sizes)
    read = read_table(tmp_path / "a.parquet")
    assert read.sample_names == table["id"].to_pylist()
    np.testing.assert_array_equal(read.values, np.column_stack([table["a"], table["b"]]))


def test_parquet_columns_of_one_name_are_read_unless_names_are_among_them(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    arrays = [pa.array(["x", "y"]), pa.array([1.0, 2.0]), pa.array([3.0, 4.0])]
    pq.write_table(pa.Table.from_arrays(arrays, names=["id", "a", "a"]), tmp_path / "a.parquet")
    np.testing.assert_array_equal(read_table(tmp_path / "a.parquet").values, [[1, 3], [2, 4]])
    pq.write_table(pa.Table.from_arrays(arrays, names=["a", "a", "b"]), tmp_path / "b.parquet")
    refused(tmp_path / "b.parquet", "two columns are named 'a'", "Rename")


def test_photographs_of_usual_scans_and_many_pages_are_read(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    Image.fromarray(BYTES.astype(np.uint8)).save(tmp_path / "a.jpg", progressive=True)
    assert read_table(tmp_path / "a.jpg").image_shape == (90, 70)
    tiff_in_pages(tmp_path / "a.tif", 500)
    assert read_table(tmp_path / "a.tif").values.shape == (500, 1)


# --- Parts of files ---------------------------------------------------------------------------------------------------


def test_deep_groups_of_hdf5_are_refused(tmp_path):
    """HDF5 itself crashes over some thousands when it visits all."""
    with pytest.importorskip("h5py").File(tmp_path / "a.h5", "w") as file:
        group = file
        for _ in range(150):
            group = group.create_group("g")
        group["X"] = X
    refused(tmp_path / "a.h5", "more than 100 deep")


def test_groups_of_hdf5_that_hold_each_other_are_read_once(tmp_path):
    with pytest.importorskip("h5py").File(tmp_path / "a.h5", "w") as file:
        file["g/X"] = X
        file["g/loop"] = file["g"]
        file["again"] = file["g"]
        file["again/Y"] = file["g/X"]
    np.testing.assert_array_equal(read_table(tmp_path / "a.h5").values, X)


def test_filters_of_hdf5_that_are_unknown_are_refused(tmp_path):
    path = tmp_path / "a.h5"
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=X.shape, compression="lzf")
    content = path.read_bytes()
    assert content.count(struct.pack("<H", 32000)) >= 1
    path.write_bytes(content.replace(struct.pack("<H", 32000), struct.pack("<H", 32015)))
    refused(path, "filter 32015", "gzip")


@pytest.mark.parametrize(
    "settings",
    [{"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"}, {"scaleoffset": 3}],
)
def test_chunks_of_hdf5_are_read_where_the_limit_makes_them_worth_a_look(tmp_path, settings):
    values = np.random.default_rng(0).integers(0, 2**12, (300, 300))
    with pytest.importorskip("h5py").File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("X", data=values.astype(float), chunks=(100, 100), **settings)
    np.testing.assert_allclose(read_table(tmp_path / "a.h5", max_bytes=LIMIT).values, values, atol=1e-3)


def test_chunk_of_hdf5_that_gzip_was_not_worth_is_read(tmp_path):
    """HDF5 notes beside a chunk that it left a filter out."""
    values = np.frombuffer(np.random.default_rng(0).bytes(80000), np.uint64).reshape(100, 100)
    with pytest.importorskip("h5py").File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("X", (100, 100), np.uint64, chunks=(100, 100), compression="gzip")
        dataset.id.write_direct_chunk((0, 0), values.tobytes(), 1)
    np.testing.assert_array_equal(read_table(tmp_path / "a.h5", max_bytes=LIMIT).values, values.astype(float))


@pytest.mark.parametrize("place", [4, 8, 16], ids=["rows", "columns", "name"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_array_of_mat_4_that_is_longer_than_the_file_is_refused(tmp_path, place, order):
    path = tmp_path / "a.mat"
    kind = 0 if order == "<" else 1000  # thousands tell the order of bytes
    head = struct.pack(f"{order}5I", kind, 2, 3, 0, 2)
    path.write_bytes(head + b"X\0" + np.arange(6.0).astype(f"{order}f8").tobytes())
    np.testing.assert_array_equal(read_table(path).values, [[0, 2, 4], [1, 3, 5]])
    content = bytearray(path.read_bytes())
    content[place : place + 4] = struct.pack(f"{order}I", 2**28)
    path.write_bytes(content)
    refused(path, "should end at byte", key="X")


def test_two_arrays_of_one_name_in_a_mat_file_are_refused(tmp_path):
    """SciPy would list the last and read the first."""
    savemat(tmp_path / "a.mat", {"X": X})
    savemat(tmp_path / "b.mat", {"X": X[:2]})
    both = (tmp_path / "a.mat").read_bytes() + (tmp_path / "b.mat").read_bytes()[128:]
    (tmp_path / "a.mat").write_bytes(both)
    refused(tmp_path / "a.mat", "same name")


@pytest.mark.parametrize("codec", sorted(PACKERS))
@pytest.mark.parametrize("length", [1, 100, 1000, 70_000, 2**20 + 1])
def test_unpacked_size_is_what_codecs_unpack(codec, length):
    numcodecs = pytest.importorskip("numcodecs")
    values = np.random.default_rng(0).integers(0, 9, length, dtype=np.uint8)
    packed = bytes(numcodecs.get_codec({"id": codec}).encode(values))
    assert unpacked_size(codec, packed[:32] if codec in HEADERS else packed, 2**21) == length
    if codec not in HEADERS:
        assert unpacked_size(codec, packed * 3, length // 2) > length // 2


@pytest.mark.parametrize("compressor", [{"id": name} for name in sorted(PACKERS)], ids=lambda codec: codec["id"])
def test_every_codec_of_zarr_is_read(tmp_path, compressor):
    zarr, numcodecs = pytest.importorskip("zarr"), pytest.importorskip("numcodecs")
    values = np.random.default_rng(0).integers(0, 9, (200, 300)).astype(float)
    filters = [numcodecs.Delta(dtype="<f8"), numcodecs.Shuffle(elementsize=8)]
    compressors = numcodecs.get_codec(compressor)
    zarr.create_array(
        tmp_path / "a.zarr", data=values, chunks=(60, 70), zarr_format=2, filters=filters, compressors=compressors
    )
    np.testing.assert_array_equal(read_table(tmp_path / "a.zarr", max_bytes=LIMIT).values, values)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("packer", ["gzip", "zstd"])
def test_shards_of_zarr_are_read_and_blocks_beyond_their_end_refused(tmp_path, location, packer):
    zarr = pytest.importorskip("zarr")
    codec = {"name": packer, "configuration": {"level": 1} | ({"checksum": True} if packer == "zstd" else {})}
    values = np.zeros((8, 8))
    values[:5] = np.arange(40.0).reshape(5, 8)  # the other blocks are not stored
    zarr.create_array(
        tmp_path / "a.zarr",
        data=values,
        shards={"shape": (4, 8), "index_location": location},
        chunks=(2, 2),
        compressors=[codec],
    )
    np.testing.assert_array_equal(read_table(tmp_path / "a.zarr", max_bytes=LIMIT).values, values)
    shard = tmp_path / "a.zarr" / "c" / "0" / "0"
    content = shard.read_bytes()
    place = 8 if location == "start" else len(content) - 4 - 8 * 16 + 8
    shard.write_bytes(content[:place] + struct.pack("<Q", 2**40) + content[place + 8 :])
    refused(tmp_path / "a.zarr", "beyond the end", max_bytes=LIMIT)


def test_metadata_of_zarr_has_a_limit(tmp_path, monkeypatch):
    pytest.importorskip("zarr").create_array(tmp_path / "a.zarr", data=X)
    monkeypatch.setattr(zarr_stores, "_MAX_METADATA", 100)
    refused(tmp_path / "a.zarr", "in zarr.json", "is read is 100")


def test_cells_far_apart_and_texts_in_many_cells_of_a_workbook_have_a_limit(tmp_path, monkeypatch):
    bomb_xlsx_columns(tmp_path / "a.xlsx")
    refused(tmp_path / "a.xlsx", "200 rows and 16384 columns, and 2 cells are not empty")
    bomb_xlsx_texts(tmp_path / "b.xlsx")
    refused(tmp_path / "b.xlsx", "268435456 characters of text together")
    monkeypatch.setattr(workbook_limits, "FEW_CELLS", 2**22)
    assert read_table(tmp_path / "a.xlsx", header=False).shape == (2, 16_384)


@pytest.mark.parametrize("place", range(0, 600, 5))
def test_feather_with_other_metadata_is_read_or_refused(tmp_path, place):
    pa, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    feather.write_feather(pa.table({"id": ["x", "y"], "a": [1.0, 2.0]}), tmp_path / "a.feather", compression="zstd")
    content = bytearray((tmp_path / "a.feather").read_bytes())
    content[-10 - place : -6 - place] = b"\xff\xff\xff\x7f"
    (tmp_path / "a.feather").write_bytes(content)
    with suppress(DataFileError):
        assert read_table(tmp_path / "a.feather").shape[1] <= 2


def test_rows_of_text_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_ROW", 100)
    path = tmp_path / "a.csv"
    path.write_text("1,2,3\n" * 200)
    assert read_table(path).values.shape == (200, 3)
    for row in ("1," * 100, '"1\n",' * 40):
        path.write_text("1,2,3\n" * 250 + row + "\n")
        refused(path, "row of more than 100 characters")
    path.with_suffix(".txt").write_text("1 2 3\n" * 250 + "1 " * 100)
    refused(path.with_suffix(".txt"), "row of more than 100 characters")


def test_wide_row_of_text_is_refused_before_it_is_parted(tmp_path):
    (tmp_path / "a.csv").write_text("1," * (LIMIT // 8 + 10) + "1\n")
    refused(tmp_path / "a.csv", "larger than", max_bytes=LIMIT)


def test_opening_of_wide_text_is_cut_short_and_read_all_the_same(tmp_path, monkeypatch):
    """Long lines: fewer are looked at to find delimiter, headings and names."""
    monkeypatch.setattr(text, "_OPENING_CELLS", 8)
    monkeypatch.setattr(text, "_OPENING_CHARACTERS", 20)
    (tmp_path / "a.csv").write_text("id,a,b\n" + "".join(f"s{i},{3 * i},{2 * i}\n" for i in range(60)))
    table = read_table(tmp_path / "a.csv")
    np.testing.assert_array_equal(table.values[:, 1], 2 * np.arange(60))
    assert table.feature_names == ["a", "b"] and table.sample_names[59] == "s59"


# --- Out of the folder ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secret", "/secret", "..\\secret", "a/../../secret"])
def test_names_in_an_npz_do_not_name_files(tmp_path, name):
    """Nothing is unpacked to disk: such names are but keys."""
    (tmp_path / "inside").mkdir()
    np.save(tmp_path / "secret.npy", X)
    np.savez(tmp_path / "inside" / "a.npz", X=2 * X)
    with zipfile.ZipFile(tmp_path / "inside" / "b.npz", "w") as archive:
        archive.writestr(f"{name}.npy", zipfile.ZipFile(tmp_path / "inside" / "a.npz").read("X.npy"))
    before = sorted(tmp_path.rglob("*"))
    np.testing.assert_array_equal(read_table(tmp_path / "inside" / "b.npz").values, 2 * X)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("key", ["../secret", "/secret", "a/../../secret", "./../secret"])
def test_arrays_outside_of_a_zarr_group_are_not_read(tmp_path, zarr_format, key):
    """Metadata of a group may list arrays, and those may be anywhere."""
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "secret", data=X, zarr_format=zarr_format)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=zarr_format)
    group.create_array("Y", data=2 * X)
    if zarr_format == 3:
        array = json.loads((tmp_path / "secret" / "zarr.json").read_text())
        metadata = json.loads((tmp_path / "a.zarr" / "zarr.json").read_text())
        metadata["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": {key: array}}
        (tmp_path / "a.zarr" / "zarr.json").write_text(json.dumps(metadata))
    else:
        array = json.loads((tmp_path / "secret" / ".zarray").read_text())
        metadata = {".zgroup": {"zarr_format": 2}, f"{key}/.zarray": array}
        consolidated = {"zarr_consolidated_format": 1, "metadata": metadata}
        (tmp_path / "a.zarr" / ".zmetadata").write_text(json.dumps(consolidated))
    np.testing.assert_array_equal(read_table(tmp_path / "a.zarr").values, 2 * X)
    refused(tmp_path / "a.zarr", key=key)


def test_arrays_outside_of_a_group_in_a_zarr_group_are_not_read(tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "secret", data=X)
    zarr.open_group(tmp_path / "a.zarr", mode="w").create_group("g")
    array = json.loads((tmp_path / "secret" / "zarr.json").read_text())
    inner = tmp_path / "a.zarr" / "g" / "zarr.json"
    listed = {"kind": "inline", "must_understand": False, "metadata": {"../../secret": array}}
    inner.write_text(json.dumps(json.loads(inner.read_text()) | {"consolidated_metadata": listed}))
    refused(tmp_path / "a.zarr", "no arrays")


def test_names_in_a_zipped_zarr_do_not_name_files(tmp_path):
    zarr = pytest.importorskip("zarr")
    (tmp_path / "inside").mkdir()
    zarr.create_array(tmp_path / "secret", data=X, zarr_format=2)
    with zipfile.ZipFile(tmp_path / "inside" / "a.zarr", "w") as archive:
        archive.writestr(".zgroup", json.dumps({"zarr_format": 2}))
        archive.writestr("../../secret/.zarray", (tmp_path / "secret" / ".zarray").read_text())
    refused(tmp_path / "inside" / "a.zarr")


def test_links_to_folders_in_zarr_are_refused(tmp_path):
    """One that leads back to a folder that it is in has no end."""
    group = pytest.importorskip("zarr").open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("X", data=X)
    (tmp_path / "a.zarr" / "loop").symlink_to(tmp_path / "a.zarr")
    refused(tmp_path / "a.zarr", "loop is a link to a folder")


@pytest.mark.parametrize("where", ["a.zarr/0.0", "a.zarr/.zattrs", "images/b.png"])
def test_pipes_in_folders_are_refused_and_not_waited_for(tmp_path, where):
    pytest.importorskip("zarr").create_array(tmp_path / "a.zarr", data=X, zarr_format=2)
    (tmp_path / "images").mkdir()
    pytest.importorskip("PIL.Image").fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "images" / "a.png")
    (tmp_path / where).unlink(missing_ok=True)
    os.mkfifo(tmp_path / where)
    refused((tmp_path / where).parent, "neither a file nor a folder")


def test_links_to_nothing_are_refused(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "a.png").symlink_to(tmp_path / "b.png")
    refused(tmp_path, "neither a file nor a folder")


# --- What errors say --------------------------------------------------------------------------------------------------


def test_errors_show_no_control_characters_of_a_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("\x1b[2J\rall is well", "b\u202e"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00")
    (tmp_path / "b.csv").write_text("a\x1b[2J,b\nx,y\nz,w\n")
    os.mkdir(tmp_path / "c")
    (tmp_path / "c" / "\x1b[2J.png").write_bytes(b"nothing")
    np.savez(tmp_path / "d.npz", **{"\x1b[2J": X, "Y": X})
    for name in ("a.npz", "b.csv", "c", "d.npz"):
        assert refused(tmp_path / name).isprintable()


def test_errors_stay_short_however_long_names_are(tmp_path):
    np.savez(tmp_path / "a.npz", **{letter * 60_000: X for letter in "abc"})
    (tmp_path / "b.csv").write_text("id," + "b" * 60_000 + "\nx,y\nz,1\n")
    np.save(tmp_path / "c.npy", np.zeros((2, 2), [(f"field{i}", float) for i in range(100)]))
    for name in ("a.npz", "b.csv", "c.npy"):
        assert len(refused(tmp_path / name)) < 1000 + len(str(tmp_path))


@pytest.mark.parametrize("path", ["a" * 5000, "~nobody-of-this-name/a.csv", "a\0b.csv"])
def test_names_that_no_file_has_are_not_found(path):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read_table(path)


@pytest.mark.parametrize("limit", [0, -1, True, "8GB", 1.5])
def test_limit_must_be_a_positive_integer(tmp_path, limit):
    np.save(tmp_path / "a.npy", X)
    with pytest.raises(ValueError, match="max_bytes must be a positive integer"):
        read_table(tmp_path / "a.npy", max_bytes=limit)
    assert read_table(tmp_path / "a.npy", max_bytes=np.int64(240)).values.shape == X.shape


def test_nested_names_of_parquet_are_refused(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"id": [[1, 2], [3]], "a": [1.0, 2.0]}), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "column 'id' is of type list")


def test_names_of_parquet_of_all_kinds_come_back(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    days = pa.array(np.array(["2020-01-01", "2020-01-02", "2020-01-01"], "M8[D]"))
    pq.write_table(pa.table({"day": days, "a": [1.0, 2.0, 3.0]}), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").sample_names == ["2020-01-01", "2020-01-02", "2020-01-01"]
    pd = pytest.importorskip("pandas")
    index = pd.MultiIndex.from_tuples([("x", 1), ("x", 2), ("y", 1)], names=["letter", "number"])
    pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=index).to_parquet(tmp_path / "b.parquet")
    assert read_table(tmp_path / "b.parquet").sample_names == ["x / 1", "x / 2", "y / 1"]


def test_limits_are_what_the_guide_says():
    """The numbers in docs/guide/files.md."""
    assert (text_files.MAX_ROW, zarr_stores._MAX_METADATA, arrow_tables.MAX_NAMES) == (2**26, 2**24, 2**28)
    assert (limits.SMALL, limits.EXPANSION, limits.PER_STORED, limits._ROOM) == (2**26, 16_384, 16, 4)
    assert (hdf5._FEW_CHUNKS, zarr_stores._FEW_CHUNKS, zarr_stores._MAX_NODES) == (2**20, 16_384, 4096)
    assert (tiff.MAX_PAGES, images._MAX_SCANS, matlab._SPARSE_EXPANSION) == (65_536, 100, 16)
    assert (limits.FEW_CHUNKS, limits.SMALLEST_CHUNK) == (16_384, 256)
    assert (h5ad.MAX_NAMES, matrix_market._MAX_LINE, matrix_market._MAX_ENTRY) == (2**28, 2**16, 1024)
    assert (workbook_limits.FEW_CELLS, workbook_limits.PER_CELL) == (2**21, 64)
    assert (workbook_limits.MAX_TEXT, text_files.PACKED_TEXT, excel.MAX_XLS) == (2**28, 256, (65_536, 256))
    assert matlab._MAX_NAME == 1024 and ".eps" not in images.IMAGE_SUFFIXES
