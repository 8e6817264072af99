"""Claims about reading: what a library wrote comes back equal, and whatever is wrong with a file is a DataFileError."""

import gzip
import io
import json
import os
import pickle
import struct
import sys
import warnings
import zipfile
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.io import mmread, mmwrite, savemat

from robustnmf.errors import MissingExtraError
from robustnmf.formats import Axis, DataFileError, LabelledMatrix, read_like, read_table

pytestmark = pytest.mark.filterwarnings("error")

X = np.random.default_rng(0).random((6, 5)).round(4)
SPARSE_X = np.where(X < 0.5, 0, X)
STACK = np.random.default_rng(1).random((4, 3, 2)).round(4)
FRAMES = np.random.default_rng(2).integers(0, 2**16, (3, 7, 5), dtype=np.uint16)
NAMES = [f"s{i}" for i in range(6)]
FEATURES = list("abcde")


def labels(matrix):
    return matrix.sample_names, matrix.feature_names, matrix.image_shape


def write_npy(path, values=X):
    np.save(path, values)


def write_npz(path, values=X):
    np.savez_compressed(path, X=values, labels=np.arange(len(values)))


def write_mat(path, values=X):
    savemat(path, {"X": values, "rank": 3, "title": "text"})


def write_compressed_mat(path, values=X):
    savemat(path, {"X": values}, do_compression=True)


def write_mat73(path, values=X):
    """Write as MATLAB does from version 7.3 on: HDF5 behind a header of its own, the axes in reverse."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", userblock_size=512) as file:
        file["X"] = values.T
        file["X"].attrs["MATLAB_class"] = np.bytes_("double")
        file["title"] = np.frombuffer(b"t\0e\0x\0t\0", np.uint16)[None].T.repeat(2, 1)
        file["title"].attrs["MATLAB_class"] = np.bytes_("char")
        file["#refs#/a"] = np.ones((2, 2))
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")


def write_h5(path, values=X):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("group/X", data=values, compression="gzip")
        file["labels"] = np.arange(3)


def write_zarr(path, values=X, zarr_format=3):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(path, data=np.asarray(values), zarr_format=zarr_format)


def write_zarr2(path, values=X):
    write_zarr(path, values, zarr_format=2)


def write_zipped_zarr(path, values=X):
    zarr = pytest.importorskip("zarr")
    with zarr.storage.ZipStore(path, mode="w") as store:
        zarr.save_array(store, values)


def write_sparse_npz(path, values=SPARSE_X):
    sparse.save_npz(path, sparse.csr_array(values))


def write_mtx(path, values=SPARSE_X):
    mmwrite(path, sparse.coo_array(values))


def write_packed_mtx(path, values=SPARSE_X):
    text = io.BytesIO()
    mmwrite(text, sparse.coo_array(values))
    path.write_bytes(gzip.compress(text.getvalue()))


def write_h5ad(path, values=SPARSE_X, kind="csr", **settings):
    """Write what AnnData writes: a sparse matrix, or a dense one if the kind is empty, with names and a layer."""
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        for name, matrix in (("X", values), ("layers/double", 2 * values)):
            if kind:
                write_sparse_group(file.create_group(name), getattr(sparse, f"{kind}_array")(matrix), **settings)
            else:
                file.create_dataset(name, data=matrix, **settings)
        for axis, names in (("obs", NAMES[: len(values)]), ("var", FEATURES[: values.shape[1]])):
            file.create_group(axis).attrs["_index"] = "_index"
            file[axis]["_index"] = names


def write_sparse_group(group, matrix, **settings):
    group.attrs["encoding-type"] = f"{matrix.format}_matrix"
    group.attrs["shape"] = matrix.shape
    for name in ("data", "indices", "indptr"):
        group.create_dataset(name, data=getattr(matrix, name), **settings)


def write_packed_h5ad(path, values=SPARSE_X):
    write_h5ad(path, values, compression="gzip")


def write_columns_h5ad(path, values=SPARSE_X):
    write_h5ad(path, values, "csc")


def write_dense_h5ad(path, values=X):
    write_h5ad(path, values, "")


def write_csv(path, values=X):
    frame(values).to_csv(path)


def write_parquet(path, values=X):
    pytest.importorskip("pyarrow")
    frame(values).to_parquet(path)


def write_feather(path, values=X):
    pytest.importorskip("pyarrow")
    frame(values).rename_axis("id").reset_index().to_feather(path)


def write_xlsx(path, values=X):
    pytest.importorskip("openpyxl")
    frame(values).to_excel(path)


def write_packed_csv(path, values=X):
    frame(values).to_csv(path)


def write_tiff(path, values=FRAMES, **options):
    first, *others = images(values)
    first.save(path, save_all=True, append_images=others, **options)


def write_png(path, values=FRAMES[0]):
    images([values])[0].save(path)


def frame(values):
    return pytest.importorskip("pandas").DataFrame(values, index=NAMES[: len(values)], columns=FEATURES)


def images(arrays):
    image = pytest.importorskip("PIL.Image")
    return [image.fromarray(array) for array in arrays]


ARRAYS = {
    "a.npy": write_npy,
    "a.npz": write_npz,
    "v5.mat": write_mat,
    "v7.mat": write_compressed_mat,
    "v73.mat": write_mat73,
    "a.h5": write_h5,
    "a.hdf5": write_h5,
    "v3.zarr": write_zarr,
    "v2.zarr": write_zarr2,
    "zip.zarr": write_zipped_zarr,
    "a.zarr.zip": write_zipped_zarr,
}
SPARSE = {
    "sparse.npz": write_sparse_npz,
    "a.mtx": write_mtx,
    "a.mtx.gz": write_packed_mtx,
    "a.h5ad": write_h5ad,
    "packed.h5ad": write_packed_h5ad,
    "columns.h5ad": write_columns_h5ad,
}
TABLES = {
    "a.csv": write_csv,
    "a.csv.gz": write_packed_csv,
    "a.parquet": write_parquet,
    "a.feather": write_feather,
    "a.xlsx": write_xlsx,
    "dense.h5ad": write_dense_h5ad,
}
IMAGES = {"a.tif": write_tiff, "a.png": write_png}
EVERYTHING = ARRAYS | SPARSE | TABLES | IMAGES

each_sparse = pytest.mark.parametrize("name", SPARSE)
each_array = pytest.mark.parametrize("name", ARRAYS)
each_file = pytest.mark.parametrize("name", EVERYTHING)


def written(folder, name, *values):
    path = folder / name
    EVERYTHING[name](path, *values)
    return path


def dense(values):
    """Return values as an array."""
    return values.toarray() if sparse.issparse(values) else values


def text(folder, content, name="a.csv", **options):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, **options)


def refused(path, *words, **options):
    """Read something that must be refused, and check what the error says."""
    with pytest.raises(DataFileError) as caught:
        read_table(path, **options)
    message = str(caught.value)
    assert os.fspath(path) in message
    for word in words:
        assert word in message, message
    return message


# --- Arrays -----------------------------------------------------------------------------------------------------------


@each_array
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_array_comes_back_as_it_was_written(tmp_path, name, dtype):
    table = read_table(written(tmp_path, name, X.astype(dtype)))
    np.testing.assert_array_equal(table.values, X.astype(dtype), strict=True)
    assert labels(table) == (None, None, None)


@each_array
def test_array_of_three_dimensions_is_a_stack_of_images(tmp_path, name):
    table = read_table(written(tmp_path, name, STACK))
    np.testing.assert_array_equal(table.values, STACK.reshape(4, 6), strict=True)
    assert table.image_shape == (3, 2)


@each_array
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool])
def test_integers_and_booleans_become_float64(tmp_path, name, dtype):
    values = np.arange(12).reshape(4, 3).astype(dtype)
    np.testing.assert_array_equal(read_table(written(tmp_path, name, values)).values, values.astype(float), strict=True)


@each_array
def test_complex_numbers_are_refused(tmp_path, name):
    refused(written(tmp_path, name, X * 1j))


@each_file
def test_transpose_exchanges_samples_and_features(tmp_path, name):
    path = written(tmp_path, name)
    table, turned = read_table(path), read_table(path, transpose=True)
    assert type(turned.values) is type(table.values)
    np.testing.assert_array_equal(dense(turned.values), dense(table.values).T)
    assert labels(turned) == (table.feature_names, table.sample_names, None)


@each_file
def test_missing_value_becomes_nan(tmp_path, name):
    path = written(tmp_path, name)
    values = dense(read_table(path).values)
    code = values[values > 0][1]
    expected = np.where(values == code, np.nan, values)
    np.testing.assert_array_equal(dense(read_table(path, missing_value=code).values), expected)
    np.testing.assert_array_equal(dense(read_table(path, missing_value=str(code)).values), expected)


def test_missing_value_is_compared_in_the_precision_of_the_data(tmp_path):
    path = written(tmp_path, "a.npy", np.array([[-99.9, 1.0]], np.float32))
    assert np.isnan(read_table(path, missing_value=-99.9).values[0, 0])


def test_missing_word_is_refused_where_there_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="must be a number, except for text"):
        read_table(written(tmp_path, "a.npy"), missing_value="n/a")


@each_file
def test_size_is_checked_against_the_limit(tmp_path, name):
    refused(written(tmp_path, name), "larger than", max_bytes=20)


@pytest.mark.parametrize(
    "values", [X[0], np.zeros((1,) * 7), np.zeros((0, 3)), np.float64(1)], ids=["1d", "7d", "empty", "0d"]
)
def test_array_of_other_dimensions_is_refused(tmp_path, values):
    refused(written(tmp_path, "a.npy", values), "stack of images", str(np.shape(values)))


CUBE = np.random.default_rng(4).random((3, 4, 2, 5))


def test_axes_of_samples_are_named_where_nobody_can_guess_them(tmp_path):
    path = written(tmp_path, "a.npy", CUBE)
    refused(path, "sample_axes", "3 x 4 x 2 x 5")
    refused(path, "sample_axes is (0, 4)", sample_axes=(0, 4))
    refused(path, "but not all", sample_axes=(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("options", "axes"),
    [({"samples": "frames"}, (0,)), ({"samples": "pixels"}, (0, 1, 2)), ({"sample_axes": (-1, 1)}, (3, 1))],
)
def test_axes_of_an_array_become_samples_and_features_and_come_back(tmp_path, options, axes):
    matrix = read_table(written(tmp_path, "a.npy", CUBE), **options)
    assert matrix.samples.grid == tuple(CUBE.shape[axis] for axis in axes)
    samples_first = np.moveaxis(CUBE, axes, range(len(axes)))
    np.testing.assert_array_equal(matrix.values, samples_first.reshape(matrix.shape))
    np.testing.assert_array_equal(matrix.array(), CUBE)
    np.testing.assert_array_equal(matrix.transposed.array(), CUBE)


def test_a_guess_of_axes_is_a_note(tmp_path):
    path = written(tmp_path, "a.npy", STACK)
    assert "4 frames" in read_table(path).notes[0] and "pixels" in read_table(path).notes[0]
    assert read_table(path, samples="frames").notes == ()


@pytest.mark.parametrize("values", [X.astype(">f8"), np.asfortranarray(X), X.astype(np.longdouble)])
def test_npy_byte_order_memory_order_and_precision_do_not_matter(tmp_path, values):
    table = read_table(written(tmp_path, "a.npy", values))
    np.testing.assert_array_equal(table.values, X, strict=True)
    assert table.values.dtype.isnative and table.values.flags.writeable


@pytest.mark.parametrize("values", [np.array([["a", "b"]]), np.zeros((2, 2), "M8[s]"), np.zeros((2, 2), "f8,f8")])
def test_npy_of_anything_but_numbers_is_refused(tmp_path, values):
    refused(written(tmp_path, "a.npy", values), "of type")


def test_npz_with_several_arrays_needs_a_key(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, first=X, second=2 * X, label=np.arange(6))
    refused(path, "there are 2", "'first' (6 x 5 float64)", "'second'", "'label' (6 int64)")
    refused(path, "no 'third'", "'first'", key="third")
    np.testing.assert_array_equal(read_table(path, key="second").values, 2 * X)


def test_key_is_refused_where_arrays_have_no_names(tmp_path):
    for name in ("a.npy", "a.csv", "v3.zarr", "a.tif"):
        refused(written(tmp_path, name), "Leave key out", key="X")


@pytest.mark.parametrize("name", ["v5.mat", "v73.mat"])
def test_mat_key_names_the_array(tmp_path, name):
    path = written(tmp_path, name)
    np.testing.assert_array_equal(read_table(path, key="X").values, X)
    refused(path, "numeric", key="title")
    refused(path, "no 'Y'", key="Y")


def test_mat_scalars_and_vectors_are_no_tables_beside_one(tmp_path):
    savemat(tmp_path / "a.mat", {"X": X, "labels": np.arange(6.0), "rank": 3.0})
    np.testing.assert_array_equal(read_table(tmp_path / "a.mat").values, X)
    savemat(tmp_path / "b.mat", {"labels": np.arange(6.0)})
    assert read_table(tmp_path / "b.mat").values.shape == (1, 6)


@pytest.mark.parametrize("mat_format", ["4", "5"])
def test_mat_sparse_array_becomes_dense(tmp_path, mat_format):
    values = np.where(X < 0.5, 0, X)
    savemat(tmp_path / "a.mat", {"X": sparse.csc_array(values)}, format=mat_format)
    np.testing.assert_array_equal(read_table(tmp_path / "a.mat").values, values)


@pytest.mark.parametrize("place", [20, 24, 52, 56], ids=["row", "next-row", "pointer", "next-pointer"])
@pytest.mark.parametrize("value", [-1, 2**30])
def test_mat_sparse_index_beyond_the_array_is_refused(tmp_path, place, value):
    """SciPy alone would write beyond the array."""
    path = tmp_path / "a.mat"
    savemat(path, {"X": sparse.csc_array(np.eye(6))})
    content = bytearray(path.read_bytes())
    indices = content.index(struct.pack("<7i", 0, 1, 2, 3, 4, 5, 5)) - 20  # rows, then the next part
    content[indices + place : indices + place + 4] = struct.pack("<i", value)
    path.write_bytes(content)
    refused(path)


def test_mat_part_of_unknown_type_is_refused(tmp_path):
    """SciPy alone would crash."""
    path = written(tmp_path, "v5.mat")
    content = path.read_bytes()
    values = content.index(struct.pack("<II", 9, X.nbytes))
    for kind in (8, 19, 200, 2**15):
        path.write_bytes(content[:values] + struct.pack("<I", kind) + content[values + 4 :])
        refused(path, "unknown type")


@each_sparse
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_sparse_matrix_comes_back_as_it_was_written_and_stays_sparse(tmp_path, name, dtype):
    values = np.where(SPARSE_X > 0, np.ceil(100 * SPARSE_X), 0).astype(dtype)
    table = read_table(written(tmp_path, name, values))
    assert isinstance(table.values, sparse.csr_array) and table.values.has_canonical_format
    assert table.values.nnz == np.count_nonzero(values)
    np.testing.assert_array_equal(table.values.toarray(), values)
    is_text = name.startswith("a.mtx")  # all digits are there
    assert table.values.dtype == (np.float32 if dtype == np.float32 and not is_text else np.float64)
    has_names = name.endswith(".h5ad")
    assert labels(table) == (NAMES if has_names else None, FEATURES if has_names else None, None)


@each_sparse
def test_sparse_complex_numbers_are_refused(tmp_path, name):
    refused(written(tmp_path, name, SPARSE_X * 1j))


@each_sparse
def test_sparse_entries_that_are_not_stored_have_no_code(tmp_path, name):
    with pytest.raises(ValueError, match="must not be 0 for sparse data"):
        read_table(written(tmp_path, name), missing_value=0)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("is_matrix", [False, True])
def test_npz_of_scipy_is_read_in_all_formats(tmp_path, kind, is_matrix):
    make = getattr(sparse, f"{kind}_{'matrix' if is_matrix else 'array'}")
    sparse.save_npz(tmp_path / "a.npz", make(SPARSE_X), compressed=is_matrix)
    np.testing.assert_array_equal(read_table(tmp_path / "a.npz").values.toarray(), SPARSE_X)


def test_npz_of_scipy_in_a_format_that_is_not_read_says_how_to_write_it(tmp_path):
    sparse.save_npz(tmp_path / "a.npz", sparse.dia_array(SPARSE_X))
    refused(tmp_path / "a.npz", "'dia'", "X.tocsr()")


def test_npz_that_only_looks_like_one_of_scipy_is_an_archive(tmp_path):
    np.savez(tmp_path / "a.npz", format=np.array(b"csr"), shape=np.array([6, 5]), data=X)
    np.testing.assert_array_equal(read_table(tmp_path / "a.npz").values, X)


def duplicates(path):
    """Write entries twice, in disorder, and an explicit zero: the sum is [[0, 300], [7, 0]]."""
    data, indices, indptr = np.array([200, 100, 0, 7], np.uint8), np.array([1, 1, 0, 0]), np.array([0, 3, 4])
    if path.suffix == ".npz":
        np.savez(path, format=np.array(b"csr"), shape=np.array([2, 2]), data=data, indices=indices, indptr=indptr)
    elif path.suffix == ".mtx":
        path.write_text(f"{MTX}2 2 4\n1 2 200\n1 2 100\n1 1 0\n2 1 7\n")
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            write_arrays(file, (2, 2), data, indices, indptr)


def write_arrays(file, shape, data, indices, indptr, kind="csr_matrix"):
    group = file.create_group("X")
    group.attrs["encoding-type"], group.attrs["shape"] = kind, shape
    group["data"], group["indices"], group["indptr"] = data, indices, indptr


MTX = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize("name", ["a.npz", "a.mtx", "a.h5ad"])
def test_sparse_duplicates_are_summed_and_explicit_zeros_kept(tmp_path, name):
    duplicates(tmp_path / name)
    values = read_table(tmp_path / name).values
    np.testing.assert_array_equal(values.toarray(), [[0, 300], [7, 0]])
    assert values.nnz == 3 and values.has_canonical_format


WRONG = {
    "index too large": ([1.0, 2.0], [0, 5], [0, 1, 2], "row 1 has an entry in column 5, and there are 2"),
    "negative index": ([1.0, 2.0], [0, -1], [0, 1, 2], "column -1"),
    "falling": ([1.0, 2.0], [0, 1], [0, 3, 2], "indptr falls from 3 to 2 at row 1"),
    "too long": ([1.0, 2.0], [0, 1], [0, 1, 9], "indptr ends with 9"),
    "too short": ([1.0, 2.0], [0, 1], [0, 1, 1], "indptr ends with 1"),
    "first": ([1.0, 2.0], [0, 1], [1, 1, 2], "indptr begins with 1"),
    "few rows": ([1.0, 2.0], [0, 1], [0, 2], "indptr has 2 entries"),
    "overflow": ([1.0, 2.0], [0, 1], [0, -(2**31), 2], "32-bit"),
    "values": ([1.0], [0, 1], [0, 1, 2], "1 values"),
    "unsigned": ([1.0, 2.0], np.array([0, 2**63], np.uint64), [0, 1, 2], "column 9223372036854775808"),
    "floats": ([1.0, 2.0], [0.0, 1.0], [0, 1, 2], "float64"),
    "text": (np.array([b"a", b"b"]), [0, 1], [0, 1, 2], "numeric"),
}


@pytest.mark.parametrize("harm", WRONG)
@pytest.mark.parametrize("name", ["a.npz", "a.h5ad"])
def test_sparse_indices_that_do_not_fit_together_are_refused(tmp_path, name, harm):
    *arrays, words = WRONG[harm]
    data, indices, indptr = map(np.asarray, arrays)
    if name == "a.npz":
        content = {"data": data, "indices": indices, "indptr": indptr}
        np.savez(tmp_path / name, format=np.array(b"csr"), shape=np.array([2, 2]), **content)
        words = words if harm != "text" else "|S1"
    else:
        with pytest.importorskip("h5py").File(tmp_path / name, "w") as file:
            write_arrays(file, (2, 2), data, indices, indptr)
        words = words if harm != "text" else "S1"
    refused(tmp_path / name, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (MTX + "2 2 1\n3 1 1\n", "entry 0 is in row 2, and there are 2"),
        (MTX + "2 2 1\n0 1 1\n", "entry 0 is in row -1"),
        (MTX + "2 2 2\n1 1 1\n", "declares 2 entries and has 1"),
        (MTX + "2 2 1\n1 1 1\n2 2 1\n", "declares 1 entries and has more"),
        (MTX + "2 2\n1 1 1\n", "line of the sizes"),
        (MTX + "-2 2 1\n1 1 1\n", "line of the sizes"),
        (MTX + "0 2 0\n", "shape is (0, 2)"),
        (MTX + "2 2 1\n1 1 x\n", "could not convert"),
        (MTX + "99999999999 2 1\n1 1 1\n", "larger than 8 GiB"),
        (MTX + "2 2 99999999999\n1 1 1\n", "larger than 8 GiB"),
        (MTX + "9999 9999 90000000\n1 1 1\n", "90000000 entries that it declares"),
        (MTX + "100000000 2 1\n1 1 1\n", "16384 bytes"),
        (MTX.replace("coordinate", "array") + "9999 9999\n1\n", "99980001 entries that it declares"),
        (MTX.replace("real", "complex") + "2 2 1\n1 1 1 1\n", "not numeric"),
        (MTX.replace("general", "hermitian") + "2 2 1\n1 1 1\n", "hermitian"),
        (MTX.replace("matrix", "vector") + "2 2 1\n1 1 1\n", "first line"),
        (MTX + "%" + "x" * 2**16, "line of more than 65536 bytes"),
        (MTX + 2**15 * ("%" + "x" * 40 + "\n"), "bytes of comments"),
        (MTX, "unexpected end"),
        (MTX + "2 2 1\n1 1 1" + "0" * 1024 + "\n", "an entry of more than 1024 bytes"),
        (MTX + "2 2 1\n1 1 9.351E", "could not convert"),
        (MTX + "2 2 1\n1 99999999999999999999 1\n", "could not convert"),
        (MTX + "2 2 1\n1 1 1 7\n", "columns"),
        (MTX.replace("general", "symmetric") + "2 3 1\n1 1 1\n", "2 rows and 3 columns"),
    ],
)
def test_mtx_that_is_not_what_it_declares_is_refused(tmp_path, content, words):
    (tmp_path / "a.mtx").write_text(content)
    refused(tmp_path / "a.mtx", words)


def test_mtx_of_other_kinds_is_read(tmp_path):
    cases = {
        MTX.replace("real", "pattern") + "2 2 1\n1 2\n": [[0, 1], [0, 0]],
        MTX.replace("general", "symmetric") + "% a\n\n2 2 2\n1 1 3\n2 1 4\n": [[3, 4], [4, 0]],
        MTX.replace("coordinate", "array") + "2 2\n1\n2\n3\n4\n": [[1, 3], [2, 4]],
        MTX.replace("coordinate", "array").replace("general", "symmetric") + "2 2\n1\n2\n3\n": [[1, 2], [2, 3]],
        MTX.replace("coordinate", "array").replace("general", "skew-symmetric") + "2 2\n2\n": [[0, -2], [2, 0]],
        MTX.replace("general", "skew-symmetric") + "2 2 1\n2 1 4\n": [[0, -4], [4, 0]],
        MTX.replace("real", "integer") + "2 2 1\n2 2 5\n": [[0, 0], [0, 5]],
    }
    for content, expected in cases.items():
        (tmp_path / "a.mtx").write_text(content)
        np.testing.assert_array_equal(dense(read_table(tmp_path / "a.mtx", negative=None).values), expected)


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_mtx_is_read_as_scipy_reads_it(tmp_path, symmetry, is_sparse):
    square = np.random.default_rng(0).normal(size=(6, 6)).round(3) * (np.random.default_rng(1).random((6, 6)) < 0.5)
    values = {"general": square, "symmetric": square + square.T, "skew-symmetric": square - square.T}[symmetry]
    mmwrite(tmp_path / "a.mtx", sparse.coo_array(values) if is_sparse else values, symmetry=symmetry)
    expected = dense(mmread(tmp_path / "a.mtx"))
    np.testing.assert_array_equal(dense(read_table(tmp_path / "a.mtx", negative=None).values), expected)
    np.testing.assert_array_equal(expected, values)


def test_mtx_that_unpacks_to_more_than_the_limit_is_refused(tmp_path):
    (tmp_path / "a.mtx.gz").write_bytes(gzip.compress((MTX + "2 2 1\n1 1 1\n").encode() + b"\n" * 2**21))
    refused(tmp_path / "a.mtx.gz", "unpacks to more than 1048576 bytes", max_bytes=2**20)


def test_h5ad_layers_are_named_by_key(tmp_path):
    for name in ("a.h5ad", "dense.h5ad"):
        path = written(tmp_path, name)
        expected = 2 * dense(read_table(path).values)
        for key in ("double", "layers/double", "/layers/double"):
            np.testing.assert_array_equal(dense(read_table(path, key=key).values), expected)
        refused(path, "no 'counts'", "X, layers/double", key="counts")
        refused(path, "no 'obs/../X'", key="obs/../X")


@pytest.mark.parametrize("settings", [{}, {"compression": "gzip"}, {"chunks": (100,)}])
@pytest.mark.parametrize("dtype", [None, "S12"])
def test_h5ad_names_of_many_samples_are_read(tmp_path, settings, dtype):
    h5py = pytest.importorskip("h5py")
    names = [
        f"Zelle {i} \N{LATIN SMALL LETTER U WITH DIAERESIS}" if dtype is None else f"cell {i}" for i in range(5000)
    ]
    with h5py.File(tmp_path / "a.h5ad", "w") as file:
        write_sparse_group(file.create_group("X"), sparse.csr_array(np.eye(5000, 3)))
        file.create_group("obs").attrs["_index"] = "name"
        texts = np.array(names, dtype=object if dtype is None else dtype)
        file["obs"].create_dataset("name", data=texts, dtype=dtype or h5py.string_dtype(), **settings)
    assert read_table(tmp_path / "a.h5ad").sample_names == names


def test_h5ad_names_must_be_as_many_as_lines(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = written(tmp_path, "a.h5ad")
    with h5py.File(path, "a") as file:
        del file["obs/_index"]
        file["obs/_index"] = NAMES[:-1]
    refused(path, "6 names in obs", "it has 5")
    with h5py.File(path, "a") as file:
        del file["obs"], file["var/_index"]
        file["var/_index"] = np.arange(5)
    assert labels(read_table(path)) == (None, None, None)


def test_h5ad_parts_in_other_files_are_not_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    written(tmp_path, "a.h5ad")
    with h5py.File(tmp_path / "b.h5ad", "w") as file:
        file["X"] = h5py.ExternalLink("a.h5ad", "X")
    refused(tmp_path / "b.h5ad", "no 'X'")
    with h5py.File(tmp_path / "c.h5ad", "w") as file:
        write_arrays(file, SPARSE_X.shape, *(getattr(sparse.csr_array(SPARSE_X), part) for part in PARTS))
        del file["X/data"]
        file["X/data"] = h5py.ExternalLink("a.h5ad", "X/data")
    refused(tmp_path / "c.h5ad", "data is not there")
    (tmp_path / "secret").write_bytes(bytes(800))
    with h5py.File(tmp_path / "d.h5ad", "w") as file:
        write_arrays(file, (2, 2), [1.0], [0], [0, 1, 1])
        del file["X/data"]
        file["X"].create_dataset("data", (1,), float, external=[(str(tmp_path / "secret"), 0, 8)])
    refused(tmp_path / "d.h5ad", "other files")


PARTS = ("data", "indices", "indptr")


@pytest.mark.parametrize("shape", [(10**12, 2), (2, 10**12), (10**8, 2), (2, 0), (2,), (2, 2, 2)])
@pytest.mark.parametrize("name", ["a.npz", "a.h5ad"])
def test_sparse_shape_is_checked_before_memory_is_taken(tmp_path, name, shape):
    """Each row, and each column, takes memory of its own, and costs the file nothing."""
    if name == "a.npz":
        content = {"data": np.ones(1), "row": np.zeros(1, int), "col": np.zeros(1, int)}
        np.savez(tmp_path / name, format=np.array(b"coo"), shape=np.array(shape), **content)
    else:
        with pytest.importorskip("h5py").File(tmp_path / name, "w") as file:
            write_arrays(file, shape, [1.0], [0], [0, 1, 1], "csc_matrix")
    refused(tmp_path / name)


@pytest.mark.parametrize("write", [write_h5, write_zarr])
def test_groups_are_searched_and_listed(tmp_path, write):
    path = tmp_path / ("a.h5" if write is write_h5 else "a.zarr")
    if write is write_h5:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["deep/X"], file["Y"] = X, 2 * X
    else:
        group = pytest.importorskip("zarr").open_group(path, mode="w")
        group.create_group("deep").create_array("X", data=X)
        group.create_array("Y", data=2 * X)
    refused(path, "there are 2", "'deep/X' (6 x 5 float64)", "'Y'")
    for key in ("deep/X", "/deep/X"):
        np.testing.assert_array_equal(read_table(path, key=key).values, X)


def test_hdf5_values_in_other_files_are_not_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    write_h5(tmp_path / "other.h5")
    (tmp_path / "secret").write_bytes(bytes(64))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink("other.h5", "group/X")
        file.create_dataset("raw", (2, 4), float, external=[(str(tmp_path / "secret"), 0, 64)])
        layout = h5py.VirtualLayout((6, 5), float)
        layout[...] = h5py.VirtualSource(str(tmp_path / "other.h5"), "group/X", (6, 5))
        file.create_virtual_dataset("virtual", layout)
    refused(tmp_path / "a.h5", "no 'link'", key="link")
    refused(tmp_path / "a.h5", "other files", key="raw")
    refused(tmp_path / "a.h5", "other files", key="virtual")


def test_zarr_with_shards_comes_back(tmp_path):
    array = pytest.importorskip("zarr").create_array(
        tmp_path / "a.zarr", shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype=float
    )
    array[...] = np.arange(64.0).reshape(8, 8)
    np.testing.assert_array_equal(read_table(tmp_path / "a.zarr").values, np.arange(64.0).reshape(8, 8))


def test_zarr_with_unusual_codecs_is_refused(tmp_path):
    write_zarr2(tmp_path / "a.zarr")
    metadata = tmp_path / "a.zarr" / ".zarray"
    for codec in ("base64", "pickle"):
        metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"filters": [{"id": codec}]}))
        refused(tmp_path / "a.zarr")


@pytest.mark.parametrize("suffix", ["", ".dat"])
@pytest.mark.parametrize(
    "name", ["a.npy", "a.npz", "v5.mat", "a.h5", "zip.zarr", "a.parquet", "a.feather", "a.xlsx", "a.tif", "a.png"]
)
def test_file_without_known_suffix_is_recognised_by_its_content(tmp_path, name, suffix):
    path = written(tmp_path, name)
    expected = read_table(path).values
    np.testing.assert_array_equal(read_table(path.rename(tmp_path / f"data{suffix}")).values, expected)


# --- Text -------------------------------------------------------------------------------------------------------------


def test_csv_with_headings_and_names(tmp_path):
    table = text(tmp_path, 'sample,"a, b",c\nx,1,2\n"y ""z""",3,4e1\n')
    np.testing.assert_array_equal(table.values, [[1, 2], [3, 40]])
    assert labels(table) == (["x", 'y "z"'], ["a, b", "c"], None)


@pytest.mark.parametrize(
    ("content", "names", "features"),
    [
        ("1,2\n3,4\n", None, None),
        ("a,b\n1,2\n3,4\n", None, ["a", "b"]),
        ("x,1,2\ny,3,4\n", ["x", "y"], None),
        (",a,b\n7,1,2\n9,3,4\n", ["7", "9"], ["a", "b"]),
        (",0,1\n0,1,2\n1,3,4\n", ["0", "1"], ["0", "1"]),
        (",400,500\nx,1,2\ny,3,4\n", ["x", "y"], ["400", "500"]),
        ("a,b\nx,1,2\ny,3,4\n", ["x", "y"], ["a", "b"]),
        ("# comment\n#id,a,b\nx,1,2\ny,3,4\n", ["x", "y"], ["a", "b"]),
        ("# one, two, and three, comment\n1,2\n3,4\n", None, None),
        ("a,b\r\n\r\n1,2\r\n3,4\r\n\r\n", None, ["a", "b"]),
        ("1_a,2\n1,2\n3,4", None, ["1_a", "2"]),
        (",a,b\nx,1,2\ny,3,4\n", ["x", "y"], ["a", "b"]),
        ("2020-01-01,1,2\n2020-01-02,3,4", ["2020-01-01", "2020-01-02"], None),
    ],
)
def test_csv_headings_and_names_are_found(tmp_path, content, names, features):
    table = text(tmp_path, content)
    np.testing.assert_array_equal(table.values, [[1, 2], [3, 4]])
    assert (table.sample_names, table.feature_names) == (names, features)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("columns", [FEATURES, range(5)])
def test_csv_of_pandas_comes_back(tmp_path, index, columns):
    pd = pytest.importorskip("pandas")
    pd.DataFrame(X, columns=columns).to_csv(tmp_path / "a.csv", index=index)
    if not index and columns == range(5):  # 0,1,2,3,4 could be values
        refused(tmp_path / "a.csv", "line 1", "numbers from 0 on", "header")
    table = read_table(tmp_path / "a.csv", header=True)
    np.testing.assert_array_equal(table.values, X)
    assert table.feature_names == list(map(str, columns))
    assert table.sample_names == (list("012345") if index else None)


def test_csv_rising_numbers_beside_a_name_may_be_headings(tmp_path):
    content = "region,2019,2020,2021\nnorth,1,2,3\nsouth,6,5,4\n"
    with pytest.raises(DataFileError, match=r"line 1 has a name and rising numbers.*Set header"):
        text(tmp_path, content)
    assert text(tmp_path, content, header=True).feature_names == ["2019", "2020", "2021"]
    assert text(tmp_path, content, header=False).sample_names == ["region", "north", "south"]


def test_csv_of_one_mistake_in_the_first_line_is_not_taken_for_headings(tmp_path):
    with pytest.raises(DataFileError, match=r"line 1, column 2 is '2.o'.*set header to true"):
        text(tmp_path, "1,2.o,3\n4,5,6\n")


def test_csv_missing_entries_are_nan(tmp_path):
    table = text(tmp_path, "a,b,c,d,e,f\n,NA,NaN,null, nan ,1\n1,2,3,4,5,6\n")
    assert np.isnan(table.values[0, :5]).all() and table.values[0, 5] == 1


@pytest.mark.parametrize(("code", "cell"), [(-999, "-999.0"), ("-999", "-999"), ("n/a", "n/a"), ("?", " ? ")])
def test_csv_missing_code_is_nan(tmp_path, code, cell):
    table = text(tmp_path, f"a,b\n{cell},1\n2,3\n", missing_value=code)
    np.testing.assert_array_equal(table.values, [[np.nan, 1], [2, 3]])
    assert table.sample_names is None


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_text_delimiter_is_found(tmp_path, name, delimiter):
    content = "id,a,b\nx,1.5,2\ny,3,4\n".replace(",", delimiter)
    table = text(tmp_path, content, name)
    np.testing.assert_array_equal(table.values, [[1.5, 2], [3, 4]])
    assert table.feature_names == ["a", "b"]


def test_text_of_numpy_comes_back(tmp_path):
    np.savetxt(tmp_path / "a.txt", X, header=" ".join(FEATURES))
    table = read_table(tmp_path / "a.txt")
    np.testing.assert_array_equal(table.values, X)
    assert table.feature_names == FEATURES


def test_text_decimal_commas_are_read_between_semicolons(tmp_path):
    table = text(tmp_path, "id;a;b\nx;1,5;2\ny;-3,25e1;0,5\n", negative=None)
    np.testing.assert_array_equal(table.values, [[1.5, 2], [-32.5, 0.5]])
    np.testing.assert_array_equal(
        text(tmp_path, "1,5;2,5;3,5\n4,5;5,5;6,5\n").values, [[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]]
    )
    np.testing.assert_array_equal(text(tmp_path, "a\tb\n1,5\t2\n").values, [[1.5, 2]])


@pytest.mark.parametrize("content", ["a;b\n1,5;2.5\n", "a;b\n1,234.5;2\n", "a;b\n1,234,567;2\n"])
def test_text_ambiguous_commas_are_refused(tmp_path, content):
    with pytest.raises(DataFileError, match=r"line 2, column .*points and commas"):
        text(tmp_path, content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_encodings_are_read(tmp_path, encoding):
    table = text(tmp_path, "µm,°C\n1,2\n3,4\n".encode(encoding))
    assert table.feature_names == ["µm", "°C"]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "iso8859-15"])
def test_text_of_western_europe_is_read_and_the_guess_is_a_note(tmp_path, encoding):
    content = "Größe µm,Température °C\n1,2\n3,4\n".encode(encoding)
    table = text(tmp_path, content)
    assert table.feature_names == ["Größe µm", "Température °C"]
    assert "cp1252" in table.notes[0] and "encoding" in table.notes[0]
    assert text(tmp_path, content, encoding=encoding).notes == ()


def test_text_of_other_alphabets_is_guessed_by_charset_normalizer(tmp_path):
    pytest.importorskip("charset_normalizer")
    names = ["сульфат", "нитрат", "железо", "кремний", "хлорид натрия", "температура воздуха"]
    days = "понедельник,1,2,3,4,5,6\nвторник,2,3,4,5,6,7\n"  # noqa: RUF001
    content = f"дата,{','.join(names)}\n{days}".encode("cp1251")
    assert text(tmp_path, content).feature_names == names
    with pytest.raises(DataFileError, match=r"bytes that are not ascii.*Name its encoding"):
        text(tmp_path, content, encoding="ascii")


@pytest.mark.parametrize("row", ["1", "1,2,3", "1,2,"])
def test_csv_ragged_line_is_named(tmp_path, row):
    with pytest.raises(DataFileError, match=f"2 cells in each line; line 4 has {row.count(',') + 1}"):
        text(tmp_path, f"a,b\n1,2\n\n{row}\n3,4\n")


def test_csv_cell_that_is_no_number_is_named(tmp_path):
    rows = "\n".join(f"s{i},{i},{i}" for i in range(200))
    with pytest.raises(DataFileError, match=r"line 202, column 3 \('b'\) is 'many'"):
        text(tmp_path, f"id,a,b\n{rows}\nlast,1,many\n")


def test_csv_few_words_in_a_numeric_first_column_are_mistakes(tmp_path):
    with pytest.raises(DataFileError, match=r"line 4, column 1 \('a'\) is 'x3'"):
        text(tmp_path, "a,b\n1,1\n2,2\nx3,3\n4,4\n")


@pytest.mark.parametrize("content", ["", "\n\n", "a,b\n", "# only\n", "x\ny\n", 'a,b\n"1,2\n', "1 2\n3 4\n"])
def test_csv_without_values_is_refused(tmp_path, content):
    with pytest.raises(DataFileError):
        text(tmp_path, content)


def test_csv_infinite_values_are_not_judged_and_negative_ones_only_if_asked(tmp_path):
    np.testing.assert_array_equal(text(tmp_path, "a,b\n-1,inf\n", negative=None).values, [[-1, np.inf]])


# --- Parquet ----------------------------------------------------------------------------------------------------------


def test_parquet_index_names_the_samples(tmp_path):
    table = read_table(written(tmp_path, "a.parquet"))
    np.testing.assert_array_equal(table.values, X, strict=True)
    assert (table.sample_names, table.feature_names) == (NAMES, FEATURES)


def test_parquet_columns_of_all_numeric_types(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "id": ["x", None, "z"],
        "int": pa.array([1, None, 3]),
        "bool": [True, False, None],
        "float": pa.array([0.5, None, 2.5], pa.float32()),
        "decimal": pa.array([1, 2, 3], pa.decimal128(5, 2)),
        "null": pa.nulls(3),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    table = read_table(tmp_path / "a.parquet")
    nan = np.nan
    np.testing.assert_array_equal(table.values, [[1, 0.5, 1, nan], [nan, nan, 2, nan], [3, 2.5, 3, nan]])
    assert (table.sample_names, table.feature_names) == (["x", "", "z"], ["int", "float", "decimal", "null"])
    assert table.samples.columns == {"bool": ["True", "False", ""]}


def test_parquet_keeps_single_precision(tmp_path):
    path = written(tmp_path, "a.parquet", X.astype(np.float32))
    np.testing.assert_array_equal(read_table(path).values, X.astype(np.float32), strict=True)


def test_parquet_columns_of_text_are_kept_and_named(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1.0], "kind": ["x"], "b": [2.0], "flag": ["good"]}), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    np.testing.assert_array_equal(table.values, [[1.0, 2.0]])
    assert (table.sample_names, table.samples.title) == (["x"], "kind")
    assert table.samples.columns == {"flag": ["good"]} and "'flag'" in table.notes[0]
    table = read_table(tmp_path / "a.parquet", index_column="flag", drop_columns=["kind", "a"])
    assert (table.sample_names, table.feature_names, table.samples.columns) == (["good"], ["b"], {})
    refused(tmp_path / "a.parquet", "drop_columns", "'kind'", drop_columns=["kinds"])


@pytest.mark.parametrize("names", [["a", "b", "a"], ["a", "b", "a.1", "b.1"], ["a.b", "a"], ["id", "id.1", "x"]])
def test_parquet_columns_keep_their_places_whatever_their_names(tmp_path, names):
    """Where "a" is asked for, Arrow reads "a.1" as well, the name that pandas gives to a second "a"."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [pa.array(["x"]) if name == "id" else pa.array([float(i)]) for i, name in enumerate(names)]
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    numeric = [i for i, name in enumerate(names) if name != "id"]
    assert table.feature_names == [names[i] for i in numeric]
    assert table.sample_names == (["x"] if "id" in names else None)
    np.testing.assert_array_equal(table.values, [numeric])


# --- Images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "tif", "bmp", "gif", "pgm"])
def test_image_folder_is_read_in_natural_order(tmp_path, suffix):
    frames = (FRAMES >> 8).astype(np.uint8)
    names = [f"frame{number}.{suffix}" for number in (2, 10, 100)]
    for name, image in zip(names, images(frames), strict=True):
        image.save(tmp_path / name)
    (tmp_path / "README").write_text("not an image")
    (tmp_path / f"._frame2.{suffix}").write_bytes(b"of macOS")
    table = read_table(tmp_path)
    np.testing.assert_array_equal(table.values, frames.reshape(3, -1).astype(float), strict=True)
    assert labels(table) == (names, None, (7, 5))


@pytest.mark.parametrize("suffix", ["tif", "png"])
def test_image_of_16_bits_keeps_its_depth(tmp_path, suffix):
    images(FRAMES)[0].save(tmp_path / f"a.{suffix}")
    np.testing.assert_array_equal(read_table(tmp_path).values, FRAMES[:1].reshape(1, -1))


def test_image_colour_becomes_grey_as_itu_r_601_says_if_asked(tmp_path):
    rgb = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    images([rgb])[0].save(tmp_path / "a.png")
    table = read_table(tmp_path, colour="grey")
    np.testing.assert_allclose(table.values[0], (rgb @ [0.299, 0.587, 0.114]).ravel(), atol=0.51)
    np.testing.assert_array_equal(table.values[0], np.asarray(images([rgb])[0].convert("L")).ravel())
    assert table.image_shape == (7, 5) and table.notes == ()


def test_image_colour_is_kept_and_said(tmp_path):
    rgb = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    images([rgb])[0].save(tmp_path / "a.png")
    table = read_table(tmp_path)
    np.testing.assert_array_equal(table.values[0], rgb.ravel())
    assert table.features.grid == (7, 5, 3) and table.image_shape is None
    assert "colour='grey'" in table.notes[0]
    refused(tmp_path / "a.png", "in grey", "'keep' or 'grey'", colour="error")
    with pytest.raises(ValueError, match="colour must be"):
        read_table(tmp_path, colour="red")


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_alpha_is_left_out_if_it_says_nothing_and_refused_if_it_varies(tmp_path, mode):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, len(mode)), dtype=np.uint8)
    pixels[..., -1] = 255
    image.fromarray(pixels, mode).save(tmp_path / "a.png")
    table = read_table(tmp_path / "a.png")
    np.testing.assert_array_equal(table.values[0], pixels[..., :-1].ravel())
    assert "alpha" in table.notes[0]
    pixels[2, 3, -1] = 7
    image.fromarray(pixels, mode).save(tmp_path / "a.png")
    refused(tmp_path / "a.png", "without transparent pixels", "alpha channel", "Flatten")


def test_images_in_grey_beside_some_in_colour_are_refused(tmp_path):
    rgb = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    images([rgb])[0].save(tmp_path / "b.png")
    write_png(tmp_path / "a.png", rgb[..., 0])
    refused(tmp_path, "a.png is grey, b.png has colours", "colour to 'grey'")
    assert read_table(tmp_path, colour="grey").shape == (2, 35)


def test_image_jpeg_is_close(tmp_path):
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8) * 8
    images([smooth])[0].save(tmp_path / "a.jpg", quality=95)
    np.testing.assert_allclose(read_table(tmp_path).values[0], smooth.ravel(), atol=4)


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float32])
def test_tiff_pages_are_samples(tmp_path, dtype, compression):
    frames = (FRAMES / 256).astype(dtype)
    write_tiff(tmp_path / "a.tif", frames, compression=compression)
    table = read_table(tmp_path / "a.tif")
    dtype = np.float32 if dtype == np.float32 else np.float64
    np.testing.assert_array_equal(table.values, frames.reshape(3, -1).astype(dtype), strict=True)
    assert labels(table) == (None, None, (7, 5))


@pytest.mark.parametrize("dtype", ["uint16", ">u2", "int16", "uint32", "int32", "float32"])
def test_tiff_of_tifffile_comes_back(tmp_path, dtype):
    tifffile = pytest.importorskip("tifffile")
    frames = np.array(FRAMES, dtype) if np.dtype(dtype).kind != "u" else FRAMES.astype(dtype)
    if dtype == "uint32":
        frames = frames * np.uint32(65537)  # beyond what is a positive signed number
    byteorder = ">" if dtype.startswith(">") else "<"
    tifffile.imwrite(tmp_path / "a.tif", frames, photometric="minisblack", byteorder=byteorder)
    np.testing.assert_array_equal(read_table(tmp_path / "a.tif").values, frames.reshape(3, -1))


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("predictor", [False, True])
def test_tiff_whose_values_pillow_would_change_is_read_by_tifffile(tmp_path, compression, predictor):
    tifffile = pytest.importorskip("tifffile")
    rgb = np.dstack(FRAMES)
    for name, values in {"signed": np.full((3, 7, 5), -1, np.int8), "rgb": rgb, "double": X}.items():
        kind = "rgb" if name == "rgb" else "minisblack"
        packed = {"predictor": predictor and values.dtype.kind != "f"} if compression else {}
        tifffile.imwrite(tmp_path / f"{name}.tif", values, photometric=kind, compression=compression, **packed)
        table = read_table(tmp_path / f"{name}.tif")
        np.testing.assert_array_equal(table.values.ravel(), values.ravel())
        assert table.source.dtype == values.dtype


def test_tiff_colours_of_16_bits_that_only_pillow_unpacks_are_refused(tmp_path):
    """It would cut them down to 8 bits."""
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", np.dstack(FRAMES), photometric="rgb", byteorder=">")
    content = (tmp_path / "a.tif").read_bytes()
    compression = struct.pack(">HHIHH", 259, 3, 1, 1, 0)
    assert compression in content
    (tmp_path / "a.tif").write_bytes(content.replace(compression, struct.pack(">HHIHH", 259, 3, 1, 32773, 0)))
    refused(tmp_path / "a.tif")


def png(width, height, depth, colour, rows):
    """Return the bytes of a PNG file."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_png_colours_of_16_bits_are_refused(tmp_path):
    pytest.importorskip("PIL")
    (tmp_path / "a.png").write_bytes(png(2, 1, 16, 2, bytes(13)))
    refused(tmp_path / "a.png", "colours of 16 bits")


@pytest.mark.parametrize("side", [10_000, 100_000])
def test_image_bomb_is_refused(tmp_path, side):
    """Pillow warns of the smaller one only."""
    pytest.importorskip("PIL")
    (tmp_path / "a.png").write_bytes(png(side, side, 8, 0, b""))
    refused(tmp_path / "a.png", "DecompressionBomb")


def test_images_of_different_sizes_are_refused(tmp_path):
    write_png(tmp_path / "a.png")
    write_png(tmp_path / "b.png", FRAMES[0, :6])
    refused(tmp_path, "one size", "7 x 5", "b.png is 6 x 5")


def test_images_of_different_depths_are_refused(tmp_path):
    write_png(tmp_path / "a.png")
    write_png(tmp_path / "b.png", FRAMES[0].astype(np.uint8))
    refused(tmp_path, "one depth", "uint16", "b.png is uint8")


def test_image_of_several_pages_is_refused_in_a_folder(tmp_path):
    write_png(tmp_path / "a.png")
    write_tiff(tmp_path / "b.tif")
    with pytest.raises(DataFileError, match=r"b\.tif must be a single image.*3 pages"):
        read_table(tmp_path)


def test_broken_image_in_a_folder_is_named(tmp_path):
    write_png(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:-30])
    with pytest.raises(DataFileError, match=r"b\.png must be an image"):
        read_table(tmp_path)


def test_folder_without_images_is_refused(tmp_path):
    (tmp_path / "deeper").mkdir()
    refused(tmp_path, "none in it", "one above it")


def test_links_that_lead_out_of_a_folder_are_refused(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    write_png(inside / "a.png")
    write_png(outside / "b.png")
    (inside / "b.png").symlink_to(inside / "a.png")
    assert len(read_table(inside).values) == 2
    (inside / "c.png").symlink_to(outside / "b.png")
    refused(inside, "c.png is a link")


def test_links_that_lead_out_of_zarr_are_refused(tmp_path):
    write_zarr(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "c").rename(tmp_path / "chunks")
    (tmp_path / "a.zarr" / "c").symlink_to(tmp_path / "chunks")
    refused(tmp_path / "a.zarr", "c is a link")


def test_reading_leaves_the_warning_filters_alone(tmp_path):
    write_png(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    before = list(warnings.filters)
    refused(tmp_path / "b.png")
    with pytest.raises(DataFileError):
        read_table(tmp_path)
    assert warnings.filters == before


# --- Files that are broken or hostile ---------------------------------------------------------------------------------


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_nothing_is_unpickled(tmp_path):
    trace = tmp_path / "trace"
    bomb = np.array([[Bomb(trace)] * 2] * 2)
    np.save(tmp_path / "a.npy", bomb, allow_pickle=True)
    np.savez(tmp_path / "a.npz", X=bomb)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(bomb))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(bomb))
    for name in ("a.npy", "a.npz", "b.npy", "b.npz"):
        refused(tmp_path / name)
    refused(tmp_path / "a.npz", "of type object", key="X")
    assert not trace.exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert trace.exists()  # the bomb would have gone off


def npy(shape, content=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**62, 2**62), (4, 5), (-4, -5)])
def test_declared_shape_is_checked_before_memory_is_taken(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(npy(shape, bytes(80)))
    refused(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("X.npy", npy(shape, bytes(80)))
    refused(tmp_path / "a.npz", key="X")


@pytest.mark.parametrize("name", ["a.h5", "a.zarr"])
def test_declared_shape_without_values_is_refused(tmp_path, name):
    shape = (10**6, 10**6)
    if name == "a.h5":
        with pytest.importorskip("h5py").File(tmp_path / name, "w") as file:
            file.create_dataset("X", shape, float, chunks=(10, 10))
    else:
        pytest.importorskip("zarr").create_array(tmp_path / name, shape=shape, dtype=float, chunks=(10, 10))
    refused(tmp_path / name, "1000000 x 1000000")


def test_zip_bomb_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.zeros((1000, 1000)))
    assert path.stat().st_size < 10_000
    refused(path, "1000 x 1000", max_bytes=10**6)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("X.npy", npy((2, 2), bytes(32)))
    refused(path, "do not write")


@each_file
def test_truncated_file_is_refused(tmp_path, name):
    path = written(tmp_path, name)
    if path.is_dir():
        (next(path.glob("*.json"), None) or path / ".zarray").write_bytes(b'{"zarr_format"')
        refused(path)
        return
    content = path.read_bytes()
    cuts = {0, 1, 10, len(content) // 3, len(content) // 2, 3 * len(content) // 4}
    # Values of HDF5 lie behind what describes them, and the names of AnnData are written last.
    cuts = cuts if not name.endswith(".h5ad") else {0, 1, 10, len(content) // 3}
    # A table that ends with a whole line, or whose last cell is too short, cannot be told from a smaller one.
    for cut in cuts if name != "a.csv" else {0, 10, content.index(b",", 60)}:
        path.write_bytes(content[:cut])
        refused(path)


@each_file
@pytest.mark.parametrize("content", [b"", bytes(600), np.random.default_rng(0).bytes(600), b"id,a\nx,y\n"])
def test_file_of_something_else_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name)


@each_file
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".parquet", ".h5", ".zarr", ".png"])
def test_file_with_the_wrong_suffix_is_refused(tmp_path, name, suffix):
    path = written(tmp_path, name)
    if path.is_file() and not name.endswith((suffix, f"{suffix}.zip")) and (name, suffix) not in SAME:
        refused(path.rename(tmp_path / f"wrong{suffix}"))


# HDF5 is HDF5, an image is an image and compressed text is text, whatever they are called.
SAME = {("a.csv.gz", ".csv"), ("v73.mat", ".h5"), ("a.hdf5", ".h5"), ("a.tif", ".png")}


@pytest.mark.parametrize("name", ["a.doc", "a.pkl", "a"])
def test_unknown_format_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(X))
    refused(tmp_path / name, ".csv", ".parquet", "folder of images")


def test_zip_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "1")
    refused(tmp_path / "a.zip", "starts like none")


def test_path_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read_table(tmp_path / "a.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    refused(tmp_path / "pipe.csv", "neither a file nor a folder")


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("a.h5", "h5py", "h5py"),
        ("v73.mat", "h5py", "h5py"),
        ("a.h5ad", "h5py", "h5py"),
        ("v3.zarr", "zarr", "zarr"),
        ("a.parquet", "pyarrow", "pyarrow"),
        ("a.tif", "tifffile", "tifffile"),
        ("a.png", "PIL.Image", "pillow"),
    ],
)
def test_absent_package_is_named(tmp_path, monkeypatch, name, module, package):
    path = written(tmp_path, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*robustnmf\[io\]"):
        read_table(path)


@cache
def content_of(name):
    """Return the bytes of a valid file."""
    with TemporaryDirectory() as folder:
        return written(Path(folder), name).read_bytes()


@st.composite
def mutations(draw):
    """Return a function that changes bytes here and there, cuts some out or cuts off the end."""
    place = st.floats(0, 1, exclude_max=True)
    changes = draw(
        st.lists(st.tuples(place, st.sampled_from(["set", "delete", "end"]), st.binary(min_size=1, max_size=4)))
    )

    def mutate(content):
        mutated = bytearray(content)
        for where, kind, value in changes[:6]:
            i = int(where * len(mutated))
            match kind:
                case "set":
                    mutated[i : i + len(value)] = value
                case "delete":
                    del mutated[i : i + value[0] % 16]
                case "end":
                    del mutated[len(mutated) - value[0] :]
        return bytes(mutated)

    return mutate


# Folders, and what differs little from others.
UNMUTATED = ("v2.zarr", "v3.zarr", "a.hdf5", "columns.h5ad")


# The same examples in every run: what is tested is this package, not whether the C libraries below it are free of bugs.
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "name", [name for name in EVERYTHING if name not in ("v2.zarr", "v3.zarr", "a.hdf5", "columns.h5ad")]
)
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(mutate=mutations())
def test_mutated_file_is_read_or_refused(name, mutate):
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(mutate(content_of(name)))
        try:
            table = read_table(path, max_bytes=2**26)
        except DataFileError:
            return
    assert table.values.ndim == 2 and table.values.dtype in (np.float32, np.float64)


# --- What belongs to the data -----------------------------------------------------------------------------------------


def test_read_like_returns_values_of_the_same_shape(tmp_path):
    table = LabelledMatrix(X, Axis(NAMES), Axis(FEATURES))
    np.testing.assert_array_equal(read_like(written(tmp_path, "a.npy", 2 * X), table), 2 * X)
    np.testing.assert_array_equal(read_like(written(tmp_path, "a.csv"), table), X)
    np.testing.assert_array_equal(read_like(written(tmp_path, "a.npy", X.T), table, transpose=True), X)


def test_read_like_names_both_shapes(tmp_path):
    with pytest.raises(DataFileError, match=r"6 x 5.*it is 5 x 6"):
        read_like(written(tmp_path, "a.npy", X.T), LabelledMatrix(X))


def test_read_like_puts_names_in_order_and_refuses_others(tmp_path):
    path = written(tmp_path, "a.csv")
    np.testing.assert_array_equal(read_like(path, LabelledMatrix(X, Axis(NAMES[::-1]), Axis(FEATURES))), X[::-1])
    turned = read_like(path, LabelledMatrix(X, Axis(NAMES), Axis(list("bacde"))))
    np.testing.assert_array_equal(turned, X[:, [1, 0, 2, 3, 4]])
    with pytest.raises(DataFileError, match=r"5 are missing \('v', 'w', 'x', 'y', 'z'\) and 5 are others \('a', 'b'"):
        read_like(path, LabelledMatrix(X, features=Axis(list("vwxyz"))))
    np.testing.assert_array_equal(read_like(path, LabelledMatrix(X, Axis(NAMES))), X)


def test_read_like_finds_uncertainties_whose_names_have_a_suffix(tmp_path):
    frame(X).rename(columns=lambda name: f"{name}_error").iloc[:, ::-1].to_csv(tmp_path / "a.csv")
    np.testing.assert_array_equal(read_like(tmp_path / "a.csv", LabelledMatrix(X, Axis(NAMES), Axis(FEATURES))), X)


def test_read_like_does_not_judge_negative_values(tmp_path):
    np.testing.assert_array_equal(read_like(written(tmp_path, "a.npy", -X), LabelledMatrix(X)), -X)


def write_anndata_zarr(path, matrix, zarr_format=2, names=("obs", "var")):
    """Write a sparse matrix as AnnData does, with names of both axes."""
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    root.attrs["encoding-type"] = "anndata"
    group = root.create_group("X")
    group.attrs.update({"encoding-type": f"{matrix.format}_matrix", "shape": list(matrix.shape)})
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(matrix, name))
    for axis, count in zip(names, matrix.shape, strict=False):
        frame = root.create_group(axis)
        frame.attrs["_index"] = "names"
        text = np.array([f"{axis}{i}" for i in range(count)], dtype=object)
        frame.create_array("names", shape=text.shape, dtype=str)[:] = text
    return group


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_zarr_of_anndata_is_read_as_sparse_with_names(tmp_path, kind, zarr_format):
    matrix = sparse.random_array((9, 5), density=0.4, rng=np.random.default_rng(0), format=kind)
    write_anndata_zarr(tmp_path / "a.zarr", matrix, zarr_format)
    table = read_table(tmp_path / "a.zarr")
    assert table.values.format == "csr"
    np.testing.assert_array_equal(table.values.toarray(), matrix.toarray())
    assert table.sample_names == [f"obs{i}" for i in range(9)]
    assert table.feature_names == [f"var{i}" for i in range(5)]


def test_zarr_of_anndata_that_is_damaged_is_refused(tmp_path):
    matrix = sparse.random_array((9, 5), density=0.4, rng=np.random.default_rng(0), format="csr")
    group = write_anndata_zarr(tmp_path / "a.zarr", matrix)
    with pytest.raises(DataFileError, match=r"there is no 'other'; it holds X"):
        read_table(tmp_path / "a.zarr", key="other")
    group["indices"][0] = 77
    with pytest.raises(DataFileError, match="77"):
        read_table(tmp_path / "a.zarr")
    group.attrs["shape"] = [9]
    with pytest.raises(DataFileError, match="a shape and the lists data, indices and indptr"):
        read_table(tmp_path / "a.zarr")
    write_anndata_zarr(tmp_path / "b.zarr", matrix, names=("var",))  # nine names of five features
    with pytest.raises(DataFileError, match="5 names in var"):
        read_table(tmp_path / "b.zarr")
