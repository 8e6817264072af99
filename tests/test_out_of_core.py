"""Data that is read block by block: its sources, its checks and starts, fits by one process."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from conftest import make_data
from robustnmf import RobustNMF, load
from robustnmf.algorithm import fit as fitting
from robustnmf.algorithm.initializers import MedianStart, PublishedStart, RandomStart, initial_factors
from robustnmf.data.blocks import data_elsewhere, data_in_memory
from robustnmf.data.lazy_results import LazyMatrix
from robustnmf.data.out_of_core import even_rows
from robustnmf.data.units import unit_of
from robustnmf.engines import DaskEngine, NumPyEngine, StreamingEngine
from robustnmf.errors import IncompatibleError
from robustnmf.formats import DataFileError, ParquetRows, limits, read_table, rows_of
from robustnmf.formats.numpy_files import FileRows
from robustnmf.formats.rows import RowBlock, Rows, row_cuts
from robustnmf.formats.sparse_rows import some_columns

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = make_data(120, 40).X
GAPS = np.where(np.random.default_rng(2).random(X.shape) < 0.05, np.nan, X)
WEIGHTS = np.random.default_rng(1).integers(1, 4, X.shape).astype(float)


def mapped(folder, array, name="X.npy"):
    np.save(folder / name, array)
    return np.load(folder / name, mmap_mode="r")


# --- Sources ----------------------------------------------------------------------------------------------------------


def memory_map(folder):
    return mapped(folder, X), X


def part_of_a_map(folder):
    return mapped(folder, X)[10:100, 3:20], X[10:100, 3:20]


def map_in_columns(folder):
    return mapped(folder, np.asfortranarray(X)), X


def hdf5(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("group/x", data=X, chunks=(7, 10))
    return h5py.File(folder / "x.h5", "r")["group/x"], X


def zarr_array(folder):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(str(folder / "x.zarr"), shape=X.shape, chunks=(9, 11), dtype=X.dtype)
    array[:] = X
    return array, X


def parquet_folder(folder):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    for i, part in enumerate(np.split(GAPS, [50])):
        columns = {f"c{k}": pyarrow.array(column, from_pandas=True) for k, column in enumerate(part.T)}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{i}.parquet", row_group_size=13)
    return ParquetRows.of(folder), GAPS


def data_with_zeros():
    """Return data of rank 3 with noise and a few errors, 63 % of it zeros."""
    rng = np.random.default_rng(3)
    factors = [rng.gamma(2, 1, shape) * (rng.random(shape) < 0.37) for shape in ((120, 3), (3, 40))]
    product = factors[0] @ factors[1]
    product *= 1 + 0.05 * rng.random(product.shape)
    return np.where(rng.random(product.shape) < 0.01, 50, product)


ZEROS = data_with_zeros()


def sparse_group(folder, matrix=None, **arrays):
    """Return a sparse matrix as AnnData stores it, in which some arrays are replaced."""
    h5py = pytest.importorskip("h5py")
    matrix = sparse.csr_array(ZEROS) if matrix is None else matrix
    with h5py.File(folder / "x.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"], group.attrs["shape"] = f"{matrix.format}_matrix", matrix.shape
        for name in ("data", "indices", "indptr"):
            values = arrays.get(name, getattr(matrix, name))
            group.create_dataset(name, data=values, chunks=(-(-len(values) // 30),), compression="gzip")
    return h5py.File(folder / "x.h5ad", "r")["X"]


def sparse_hdf5(folder):
    return sparse_group(folder), ZEROS


def some_columns_of_sparse_hdf5(folder):
    return some_columns(rows_of(sparse_group(folder)), np.arange(3, 30, 2)), ZEROS[:, 3:30:2]


def some_columns_of_hdf5(folder):
    return some_columns(rows_of(hdf5(folder)[0]), np.arange(3, 30, 2)), X[:, 3:30:2]


SOURCES = [memory_map, part_of_a_map, map_in_columns, hdf5, zarr_array, parquet_folder]
SOURCES += [sparse_hdf5, some_columns_of_sparse_hdf5, some_columns_of_hdf5]


@pytest.mark.parametrize("make", SOURCES)
def test_rows_on_disk_are_those_of_the_data(make, tmp_path):
    stored, expected = make(tmp_path)
    rows = pickle.loads(pickle.dumps(rows_of(stored)))
    assert isinstance(rows, Rows)
    assert (rows.shape, rows.dtype) == (expected.shape, expected.dtype)
    cuts = rows.cuts(3000)
    assert len(cuts) > 3
    np.testing.assert_array_equal(np.concatenate([RowBlock(rows, *cut)() for cut in cuts]), expected)
    np.testing.assert_array_equal(rows.read(3, 31), expected[3:31])


@pytest.mark.parametrize("together", [1, 7, 200])
def test_cuts_cover_all_rows_and_keep_chunks_whole(together):
    cuts = row_cuts(100, row_bytes=8, block_bytes=160, together=together)
    assert [a for a, _ in cuts] == [0, *(b for _, b in cuts[:-1])]
    assert cuts[-1][1] == 100
    assert all(a % together == 0 for a, _ in cuts)


@pytest.mark.parametrize("in_memory", [X, X.tolist(), None, "X.npy"], ids=["array", "list", "None", "text"])
def test_what_is_in_memory_has_no_source(in_memory):
    assert rows_of(in_memory) is None


def test_a_file_that_has_become_shorter_is_an_error(tmp_path):
    rows = rows_of(mapped(tmp_path, X))
    (tmp_path / "X.npy").write_bytes(b"\0" * 1000)
    with pytest.raises(OSError, match="shorter"):
        rows.read(50, 60)


def test_columns_of_text_are_no_features_and_nested_ones_are_refused_by_name(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0], "b": ["text"]}), tmp_path / "x.parquet")
    assert ParquetRows.of(tmp_path).columns == ["a"]
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0], "b": [[1.0]]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="column 'b' is of type list"):
        _ = ParquetRows.of(tmp_path).dtype


def write_parquet(path, **columns):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("make", SOURCES)
def test_a_file_holds_the_same_table_for_streams_and_for_the_command_line(make, tmp_path):
    """Memory maps that are parts of a file, some columns, and folders of files, are none to the command line."""
    stored, expected = make(tmp_path)
    is_part = make in (part_of_a_map, some_columns_of_sparse_hdf5, some_columns_of_hdf5)
    files = [path for path in tmp_path.iterdir() if not is_part]
    if len(files) != 1:
        pytest.skip("not one file")
    values = read_table(files[0]).values
    np.testing.assert_array_equal(values.toarray() if sparse.issparse(values) else values, expected)
    np.testing.assert_array_equal(rows_of(stored).read(0, len(expected)), expected)


def test_names_of_samples_in_parquet_are_no_numbers(tmp_path):
    write_parquet(tmp_path / "x.parquet", id=["a", "b"], x=[1.0, 2.0], is_large=[False, True])
    rows = ParquetRows.of(tmp_path)
    assert rows.columns == ["x"]  # truth values beside numbers are flags
    np.testing.assert_array_equal(rows.read(0, 2), read_table(tmp_path / "x.parquet").values)


def test_parquet_files_of_a_folder_are_read_by_the_names_of_their_columns(tmp_path):
    write_parquet(tmp_path / "1.parquet", a=np.float32([1]), b=np.float32([2]))
    write_parquet(tmp_path / "2.parquet", c=[5.0], b=[4.0], a=[3.0])
    rows = ParquetRows.of(tmp_path)
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows.read(0, 2), [[1, 2], [3, 4]])
    write_parquet(tmp_path / "3.parquet", a=[1.0])
    with pytest.raises(DataFileError, match=r"3\.parquet must be a table with the columns of .*no numbers in 'b'"):
        _ = ParquetRows.of(tmp_path).shape


def test_streams_refuse_pages_of_parquet_that_unpack_to_extreme_sizes(tmp_path, monkeypatch):
    write_parquet(tmp_path / "x.parquet", a=np.random.default_rng(0).random(1000))
    monkeypatch.setattr(limits, "SMALL", 1000)
    monkeypatch.setattr(limits, "_ROOM", 0.1)
    with pytest.raises(DataFileError, match=r"x\.parquet must be a Parquet file without parts of extreme size"):
        ParquetRows.of(tmp_path).cuts(2**20)


def test_streams_refuse_datasets_that_are_declared_and_not_stored(tmp_path):
    file = pytest.importorskip("h5py").File(tmp_path / "x.h5", "w")
    with pytest.raises(DataFileError, match="must be a file that holds its values"):
        rows_of(file.create_dataset("X", (30_000, 30_000), float, chunks=(1000, 1000))).cuts(2**24)


def test_datasets_whose_values_are_in_other_files_are_streamed(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X"] = X
    layout = h5py.VirtualLayout(shape=X.shape, dtype=X.dtype)
    layout[...] = h5py.VirtualSource(tmp_path / "a.h5", "X", shape=X.shape)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_virtual_dataset("X", layout)
    with h5py.File(tmp_path / "b.h5") as file:
        rows = rows_of(file["X"])
    np.testing.assert_array_equal(np.concatenate([rows.read(*cut) for cut in rows.cuts(3000)]), X)


# --- Checks and starts ------------------------------------------------------------------------------------------------


def prepared(x, weights, engine, folder):
    """Return stored data in its unit."""
    stored = mapped(folder, x), None if weights is None else mapped(folder, weights, "M.npy")
    data = data_elsewhere(*stored, None, engine, "RobustNMF")
    unit = unit_of(data.X, None, engine)
    return data.in_unit(unit, None, x.dtype, engine), unit


@pytest.mark.parametrize("init", [RandomStart(), MedianStart(), MedianStart(enough=30), PublishedStart()], ids=repr)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_data_and_starts_are_those_of_data_in_memory(dtype, weights, init, tmp_path):
    x, engine = (37 * (X if weights is None else GAPS)).astype(dtype), StreamingEngine(block_bytes=3000)
    data, unit = prepared(x, weights, engine, tmp_path)
    assert len(data.X) > 3
    positive = np.sort(x[x > 0])
    assert unit == 2.0 ** np.floor(np.log2(positive[(positive.size - 1) // 2]))
    V, M = np.nan_to_num(x) / dtype(unit), None
    if weights is not None:
        M = (~np.isnan(x) * (weights / weights.max()).astype(dtype)).astype(dtype)
        np.testing.assert_array_equal(engine.join(data.M), M)
    np.testing.assert_array_equal(engine.join(data.X), V)
    W, Ht = initial_factors(init, data, 3, np.random.default_rng(0), engine)
    drawn = init(V.T, None if M is None else M.T, 3, np.random.default_rng(0))
    tolerance = {"rtol": 1e-12 if dtype == np.float64 else 1e-5}
    np.testing.assert_allclose(W, drawn[0], **tolerance)
    np.testing.assert_allclose(engine.join(Ht).T, drawn[1], **tolerance)
    assert W.dtype == engine.join(Ht).dtype == dtype


def test_generators_that_cannot_skip_start_the_same(tmp_path):
    engine = StreamingEngine(block_bytes=3000)
    data, _ = prepared(X, None, engine, tmp_path)
    seeds = (np.random.Generator(np.random.MT19937(0)) for _ in range(2))
    W, Ht = initial_factors(RandomStart(), data, 3, next(seeds), engine)
    drawn = RandomStart()(engine.join(data.X).T, None, 3, next(seeds))
    np.testing.assert_allclose(W, drawn[0])
    np.testing.assert_allclose(engine.join(Ht).T, drawn[1])


@pytest.mark.parametrize(("value", "what"), [(np.inf, "Infinite"), (-1.0, "Negative")])
def test_wrong_entries_are_named_by_their_place(value, what, tmp_path):
    x = X.copy()
    x[77, 5] = x[90, 1] = value
    with pytest.raises(ValueError, match=rf"{what} values .* 2 of 4800 .* {value} at sample 77, feature 5"):
        RobustNMF(3, engine="stream").fit(mapped(tmp_path, x))


def test_entries_without_weight_may_hold_anything(tmp_path):
    x, weights = X.copy(), np.ones_like(X)
    x[7, 5], weights[7, 5] = -np.inf, 0
    RobustNMF(3, engine="stream", max_iter=2).fit(mapped(tmp_path, x), weights=weights)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "near-separable"}, "needs all data in memory"),
        ({"method": "hypersurface"}, "works with sums over samples: 'hals'"),
        ({"init": lambda V, M, rank, rng: None}, "init='median'"),
    ],
)
def test_what_needs_all_data_is_refused_with_what_does_not(options, reason, tmp_path):
    with pytest.raises(IncompatibleError, match=reason):
        RobustNMF(**{"n_components": 3, "engine": "stream"} | options).fit(mapped(tmp_path, X))


def test_all_missing_is_refused_and_empty_samples_are_warned_of(tmp_path):
    with pytest.raises(ValueError, match="at least one observed"):
        RobustNMF(3, engine="stream").fit(mapped(tmp_path, np.full_like(X, np.nan)))
    x = X.copy()
    x[4] = np.nan
    for data, engine in ((mapped(tmp_path, x), "stream"), (x, "auto")):
        model = RobustNMF(3, engine=engine, max_iter=2)
        for method in (model.fit, model.fit_transform):
            with pytest.warns(UserWarning, match=r"1 sample\(s\) have no observed entry \(sample 4\)") as caught:
                method(data)
            assert caught[0].filename == __file__


# --- Fits -------------------------------------------------------------------------------------------------------------

STREAM = {"engine": StreamingEngine(block_bytes=3000)}


def fitted(x, weights=None, **options):
    return RobustNMF(**{"n_components": 3, "random_state": 0, "max_iter": 60} | options).fit(x, weights=weights)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "make",
    [
        *(memory_map, zarr_array, sparse_hdf5, some_columns_of_sparse_hdf5),
        *(pytest.param(make, marks=pytest.mark.slow) for make in (hdf5, parquet_folder)),
    ],
)
def test_streamed_fits_and_results_are_those_in_memory(make, tmp_path):
    stored, x = make(tmp_path)
    model, expected = fitted(stored, **STREAM), fitted(x)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-8)
    assert model.scale_ == pytest.approx(expected.scale_, rel=1e-8)
    assert model.objective_ == pytest.approx(expected.objective_, rel=1e-3)  # its codes are those of the fit itself
    np.testing.assert_allclose(model.transform(stored), expected.transform(x), atol=1e-6)
    np.testing.assert_allclose(model.score_samples(stored), expected.score_samples(x), atol=1e-6)
    np.testing.assert_allclose(np.asarray(model.clean(stored)), expected.clean(x), atol=1e-6)
    np.testing.assert_array_equal(np.asarray(model.outlier_mask(stored)), expected.outliers_)
    np.testing.assert_allclose(np.asarray(model.weights_), expected.weights_, atol=1e-6)
    assert model.n_features_in_ == x.shape[1]


def test_weights_of_entries_count_in_streamed_fits(tmp_path):
    stored = mapped(tmp_path, GAPS)
    for weights in (WEIGHTS, mapped(tmp_path, WEIGHTS, "M.npy")):
        model, expected = fitted(stored, weights, **STREAM), fitted(GAPS, WEIGHTS)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-8)
        found = model.transform(stored, weights=weights)
        np.testing.assert_allclose(found, expected.transform(GAPS, weights=WEIGHTS), atol=1e-6)


UNCERTAINTIES = np.random.default_rng(3).uniform(0.01, 0.05, X.shape) * np.linspace(0.5, 2, X.shape[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*1 feature:UserWarning")
@pytest.mark.parametrize(
    "weights",
    [
        pytest.param(None, id="", marks=pytest.mark.slow),
        pytest.param(WEIGHTS * (np.arange(X.shape[1]) != 7), id="weighted"),
    ],
)
def test_uncertainties_count_in_streamed_fits_as_in_memory(weights, tmp_path):
    stored = mapped(tmp_path, GAPS)
    expected = RobustNMF(3, random_state=0, max_iter=60).fit(GAPS, weights=weights, uncertainties=UNCERTAINTIES)
    for given in (UNCERTAINTIES, mapped(tmp_path, UNCERTAINTIES, "S.npy")):
        model = RobustNMF(3, random_state=0, max_iter=60, **STREAM).fit(stored, weights=weights, uncertainties=given)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-8)
        np.testing.assert_allclose(model.thresholds_, expected.thresholds_, rtol=1e-8)
        np.testing.assert_allclose(np.asarray(model.weights_), expected.weights_, atol=1e-6)
        options = {"weights": weights, "uncertainties": given}
        found = model.transform(stored, **options)
        wanted = expected.transform(GAPS, weights=weights, uncertainties=UNCERTAINTIES)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        np.testing.assert_array_equal(np.asarray(model.outlier_mask(stored, **options)), expected.outliers_)


@pytest.mark.parametrize("weights", [None, WEIGHTS * (np.arange(X.shape[1]) != 7)], ids=["", "weighted"])
@pytest.mark.parametrize("x", [X, X[:-1], GAPS], ids=["even", "odd", "gaps"])
@pytest.mark.filterwarnings("ignore:.*no observed entry")
def test_typical_uncertainties_are_medians_to_the_last_bit(x, weights, tmp_path):
    given, seen = np.where(np.isnan(x), np.nan, UNCERTAINTIES[: len(x)]), ~np.isnan(x)
    weights = None if weights is None else weights[: len(x)]
    seen = seen if weights is None else seen & (weights > 0)
    typical = np.array([np.median(given[s, j]) if s.any() else 1.0 for j, s in enumerate(seen.T)])
    expected = np.where(seen, (typical / np.where(seen, given, 1)) ** 2 * (1 if weights is None else weights), 0)
    expected /= expected.max()
    stored = [None if a is None else mapped(tmp_path, a, f"{i}.npy") for i, a in enumerate((x, weights, given))]
    stream, memory = StreamingEngine(block_bytes=3000), NumPyEngine(block_entries=500)
    for data, engine in (
        (data_elsewhere(*stored, stream, "RobustNMF"), stream),
        (data_in_memory(RobustNMF(3), x, weights, given, engine=memory, reset=True), memory),
    ):
        assert len(data.X) > 3
        np.testing.assert_array_equal(data.noise, typical)
        np.testing.assert_array_equal(engine.join(data.M), expected)


def test_uncertainties_that_cannot_be_used_are_named_by_their_place(tmp_path):
    given = UNCERTAINTIES.copy()
    given[77, 5] = given[90, 1] = 0
    stored, options = mapped(tmp_path, X), {"engine": StreamingEngine(block_bytes=3000)}
    with pytest.raises(ValueError, match=r"got 0.0 at sample 77, feature 5"):
        RobustNMF(3, **options).fit(stored, uncertainties=given)
    with pytest.raises(ValueError, match=r"uncertainties must have the shape of X, \(120, 40\)"):
        RobustNMF(3, **options).fit(stored, uncertainties=given[1:])
    model = fitted(stored, **options)
    with pytest.raises(ValueError, match="fitted without uncertainties"):
        model.transform(stored, uncertainties=UNCERTAINTIES)
    with pytest.raises(ValueError, match=r"weights must have the shape of X"):
        model.transform(stored, weights=WEIGHTS[1:])


@pytest.mark.parametrize("n_rows", [7, 30, 120, 1000])
def test_samples_for_a_rank_are_evenly_spread_whatever_the_blocks(n_rows, tmp_path):
    stored, weights = mapped(tmp_path, GAPS), mapped(tmp_path, WEIGHTS, "M.npy")
    found = even_rows((stored, weights, None), n_rows, StreamingEngine(block_bytes=3000))
    every = max(1, len(GAPS) // n_rows)
    np.testing.assert_array_equal(found[0], GAPS[::every])
    np.testing.assert_array_equal(found[1], WEIGHTS[::every])
    assert found[2] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({}, id="data alone"),
        pytest.param({"uncertainties": UNCERTAINTIES}, id="uncertainties"),
        pytest.param({"weights": WEIGHTS}, id="weights"),
    ],
)
def test_rank_of_streamed_data_is_found_with_some_samples(extra, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "RANK_ENTRIES", X.size // 2)
    stored = mapped(tmp_path, GAPS)
    model = RobustNMF("auto", random_state=0, **STREAM).fit(stored, **extra)
    some = RobustNMF("auto", random_state=0).fit(GAPS[::2], **{name: a[::2] for name, a in extra.items()})
    assert model.n_components_ == some.n_components_ == 3


def test_known_components_and_penalties_are_kept_in_streamed_fits(tmp_path):
    options = {"alpha_W": 1e-4, "l1_ratio": 0.5, "fixed_components": np.ones((1, 40)), "schedule": "plain"}
    model, expected = fitted(mapped(tmp_path, X), **STREAM, **options), fitted(X, **options)
    np.testing.assert_array_equal(model.components_[0], 1.0)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-6)


def test_estimators_with_an_engine_can_be_cloned():
    for engine in (StreamingEngine(3, 1234), DaskEngine(block_bytes=1234, keep=True, inside="torch", device="cpu")):
        copy = clone(RobustNMF(3, engine=engine)).engine
        assert copy is not engine
        assert (type(copy), copy.block_bytes) == (type(engine), 1234)
        assert getattr(copy, "inside", None) == getattr(engine, "inside", None)


def test_lazy_results_are_read_by_rows(tmp_path):
    model = fitted(mapped(tmp_path, X), **STREAM)
    lazy, all_of_it = model.outliers_, np.asarray(model.outliers_)
    assert isinstance(lazy, LazyMatrix)
    with pytest.raises(AttributeError, match=r"'mean'; numpy.asarray\(...\) makes an array of it"):
        lazy.mean()
    assert (lazy.shape, lazy.dtype, len(lazy)) == (X.shape, bool, len(X))
    np.testing.assert_array_equal(lazy[15:70:3, 4], all_of_it[15:70:3, 4])
    np.testing.assert_array_equal(lazy[-1], all_of_it[-1])
    np.testing.assert_array_equal(np.concatenate([block for _, block in lazy.blocks()]), all_of_it)
    with pytest.raises(IndexError):
        lazy[len(X)]
    with pytest.raises(IndexError, match="positive step"):
        lazy[::-1]


@pytest.mark.slow
def test_lazy_results_go_to_zarr_and_can_be_fitted(tmp_path):
    zarr = pytest.importorskip("zarr")
    stored = mapped(tmp_path, GAPS)
    model = fitted(stored, **STREAM)
    model.clean(stored).to_zarr(str(tmp_path / "clean.zarr"))
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "clean.zarr"))[:], np.asarray(model.clean(stored)))
    again = fitted(model.clean(stored), **STREAM)
    np.testing.assert_allclose(again.components_, fitted(np.asarray(model.clean(stored))).components_, atol=1e-8)


def test_streamed_models_are_saved_without_what_belongs_to_the_data(tmp_path):
    model = fitted(mapped(tmp_path, X), **STREAM)
    model.set_params(checkpoint=tmp_path / "state").save(tmp_path / "m.robustnmf")
    again = load(tmp_path / "m.robustnmf")
    assert (again.engine, again.checkpoint) == ("auto", None)
    np.testing.assert_allclose(again.transform(X), model.transform(X), rtol=1e-12)
    assert not hasattr(again, "weights_")


def test_data_on_disk_is_streamed_if_it_is_large_and_else_taken_into_memory(tmp_path, monkeypatch):
    stored = mapped(tmp_path, X)
    assert isinstance(fitted(stored).weights_, np.ndarray)
    monkeypatch.setattr("robustnmf.data.out_of_core.memory", lambda: 2 * X.nbytes)
    assert isinstance(fitted(stored).weights_, LazyMatrix)


MEMORY = """
import resource, sys
import numpy as np
from robustnmf import RobustNMF
from robustnmf.engines import StreamingEngine
from robustnmf.formats import rows_of
rows = rows_of(np.load(sys.argv[1], mmap_mode="r"))
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
engine = StreamingEngine(block_bytes=2**22, n_threads=1)
small = np.random.default_rng(0).random((500, rows.shape[1]), dtype=np.float32)
RobustNMF(4, max_iter=20, engine=engine, random_state=0).fit(small)
before = most()
model = RobustNMF(4, max_iter=20, engine=engine, random_state=0).fit(rows)
print(most() - before)
"""


# --- Sparse data in files ---------------------------------------------------------------------------------------------


def test_sparse_data_on_disk_is_streamed_if_what_is_stored_is_large(tmp_path, monkeypatch):
    stored = sparse_group(tmp_path)
    expected = fitted(ZEROS).components_
    n_bytes = rows_of(stored).nbytes
    assert n_bytes < 0.6 * ZEROS.nbytes
    for memory, is_streamed in ((5 * n_bytes, False), (3 * n_bytes, True)):
        monkeypatch.setattr("robustnmf.data.out_of_core.memory", lambda: memory)  # noqa: B023
        model = fitted(stored)
        assert isinstance(model.weights_, LazyMatrix) is is_streamed
        np.testing.assert_allclose(model.components_, expected, atol=1e-8)
    assert sparse.issparse(fitted(stored, engine="sparse").outliers_)


def test_rows_of_sparse_data_read_only_what_they_need(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    rows, read = rows_of(sparse_group(tmp_path)), []
    original = h5py.Dataset.__getitem__

    def noted(self, key):
        values = original(self, key)
        read.append(len(values))
        return values

    monkeypatch.setattr(h5py.Dataset, "__getitem__", noted)
    np.testing.assert_array_equal(rows.read(20, 25), ZEROS[20:25])
    assert read == [6, np.count_nonzero(ZEROS[20:25]), np.count_nonzero(ZEROS[20:25])]


def test_sparse_data_in_columns_is_taken_into_memory_or_refused(tmp_path, monkeypatch):
    stored = sparse_group(tmp_path, sparse.csc_array(ZEROS))
    expected = fitted(ZEROS).components_
    for engine in ("auto", "sparse", "stream"):
        np.testing.assert_allclose(fitted(stored, engine=engine).components_, expected, atol=1e-8)
    monkeypatch.setattr("robustnmf.data.out_of_core.LARGE", 0)
    for engine in ("auto", "stream"):
        with pytest.raises(DataFileError, match=r"stored by rows \(CSR\).*by columns \(CSC\).*tocsr"):
            fitted(stored, engine=engine)


@pytest.mark.slow
def test_duplicates_and_disorder_in_streamed_sparse_data_are_taken(tmp_path):
    tidy = sparse.csr_array(ZEROS)
    parts = [np.split(array, tidy.indptr[1:-1]) for array in (tidy.data / 2, tidy.indices)]
    data, indices = (np.concatenate([np.concatenate([row[::-1], row]) for row in part]) for part in parts)
    stored = sparse_group(tmp_path, data=data, indices=indices, indptr=2 * tidy.indptr)
    np.testing.assert_array_equal(rows_of(stored).read(0, len(ZEROS)), ZEROS)
    np.testing.assert_allclose(fitted(stored, **STREAM).components_, fitted(ZEROS).components_, atol=1e-8)


@pytest.mark.slow
def test_streamed_entries_that_are_not_stored_may_be_missing(tmp_path):
    matrix = sparse.csr_array(ZEROS)
    matrix.data[[3, 50, 200]] = 0  # explicit zeros are data
    stored = sparse_group(tmp_path, matrix)
    gaps = np.where(ZEROS > 0, matrix.toarray(), np.nan)
    model, expected = fitted(stored, zeros="missing", **STREAM), fitted(gaps)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-8)
    np.testing.assert_allclose(model.transform(stored), expected.transform(gaps), atol=1e-6)
    with pytest.raises(IncompatibleError, match="leaves no room for weights"):
        fitted(stored, np.ones(ZEROS.shape), zeros="missing", **STREAM)


def changed(values, place, value):
    values = np.array(values, dtype=np.float64 if values.dtype.kind == "f" else np.int64)
    values[place] = value
    return values


@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("indices", 700, 40, r"row \d+ has an entry in column 40, and there are 40"),
        ("indices", 700, -1, "in column -1"),
        ("indptr", 60, -5, "indptr falls|have entries"),
        ("indptr", 60, 10**9, "indptr falls|have entries"),
        ("indptr", 0, 3, "have entries 3"),
        ("indptr", -1, 5, "indptr ends with 5"),
    ],
)
@pytest.mark.parametrize("engine", [STREAM["engine"], "auto"], ids=["stream", "memory"])
def test_indices_of_sparse_data_in_files_are_checked_where_they_are_read(tmp_path, name, place, value, words, engine):
    arrays = {name: changed(getattr(sparse.csr_array(ZEROS), name), place, value)}
    words = words if engine != "auto" else "indices fit together"
    with pytest.raises(DataFileError, match=words):
        fitted(sparse_group(tmp_path, **arrays), engine=engine)


@pytest.mark.parametrize(("value", "what"), [(-1.0, "Negative"), (np.inf, "Infinite")])
def test_wrong_entries_of_streamed_sparse_data_are_named(tmp_path, value, what):
    x = ZEROS.copy()
    x[77, 31] = value
    with pytest.raises(ValueError, match=f"{what} values.*at sample 77, feature 31"):
        fitted(sparse_group(tmp_path, sparse.csr_array(x)), **STREAM)


def test_other_groups_of_hdf5_are_no_data(tmp_path):
    with pytest.raises(TypeError, match=r"got a group, with X\. Take what is in it"):
        fitted(sparse_group(tmp_path).file)


class BackedDataset:
    """What AnnData has for a sparse matrix in a file."""

    def __init__(self, group):
        self.group = group

    def to_memory(self):
        raise AssertionError("it is read by rows")


BackedDataset.__module__ = "anndata._core.sparse_dataset"


@pytest.mark.slow
def test_sparse_datasets_of_anndata_are_known_by_their_group(tmp_path):
    stored = BackedDataset(sparse_group(tmp_path))
    for options in (STREAM, {}):
        np.testing.assert_allclose(fitted(stored, **options).components_, fitted(ZEROS).components_, atol=1e-8)


SPARSE_MEMORY = MEMORY.replace(
    'rows_of(np.load(sys.argv[1], mmap_mode="r"))', 'rows_of(__import__("h5py").File(sys.argv[1])["X"])'
)


@pytest.mark.slow
def test_memory_of_a_streamed_fit_is_a_part_of_what_sparse_data_stores(tmp_path):
    rng = np.random.default_rng(0)
    x = sparse.random_array((100_000, 500), density=0.2, dtype=np.float32, rng=rng, format="csr")
    sparse_group(tmp_path, x)
    command = [sys.executable, "-W", "ignore", "-c", SPARSE_MEMORY, str(tmp_path / "x.h5ad")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 0.5 * (x.data.nbytes + x.indices.nbytes)


def test_other_numbers_of_features_are_refused(tmp_path):
    model = fitted(mapped(tmp_path, X), **STREAM)
    with pytest.raises(ValueError, match="X has 39 features, but RobustNMF is expecting 40"):
        model.transform(mapped(tmp_path, X[:, 1:], "other.npy"))


@pytest.mark.slow
def test_memory_of_a_streamed_fit_is_a_part_of_the_data(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random((200_000, 4), dtype=np.float32) @ rng.random((4, 500), dtype=np.float32)
    mapped(tmp_path, x)
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, str(tmp_path / "X.npy")]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 0.5 * x.nbytes


def test_batches_must_be_in_memory(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((20, 5)))
    batch = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.raises(IncompatibleError, match="batches in memory"):
        RobustNMF(1, engine="stream").partial_fit(batch)


def empty_hdf5(folder, shape):
    return (
        pytest.importorskip("h5py").File(folder / "x.h5", "w").create_dataset("X", shape, float, maxshape=(None, None))
    )


def empty_zarr(folder, shape):
    return pytest.importorskip("zarr").create_array(folder / "x.zarr", shape=shape, chunks=(4, 4), dtype=float)


def empty_parquet(folder, shape):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({f"c{i}": np.empty(shape[0]) for i in range(shape[1])}), folder / "x.parquet")
    return ParquetRows.of(folder / "x.parquet")


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
@pytest.mark.parametrize("make", [empty_hdf5, empty_zarr, empty_parquet])
def test_files_of_no_entries_are_refused(make, shape, tmp_path):
    if make is empty_parquet and shape[1] == 0:
        pytest.skip("a table without columns has no rows")
    with pytest.raises(ValueError, match=r"0 (sample|feature)\(s\) .* while a minimum of 1 is required"):
        RobustNMF(1, engine="stream").fit(make(tmp_path, shape))


def test_blocks_of_no_rows_are_passed_over(tmp_path):
    class Uneven(FileRows):
        def cuts(self, block_bytes):
            return [(0, 0), (0, 50), (50, 50), (50, 120), (120, 120)]

    rows = rows_of(mapped(tmp_path, X))
    uneven = Uneven(rows.path, rows.shape, rows.dtype, rows.offset, rows.strides)
    options = {"n_components": 3, "max_iter": 3, "tol": 0.0, "random_state": 0, "schedule": "plain"}
    found = RobustNMF(**options, engine="stream").fit(uneven)
    expected = RobustNMF(**options).fit(X)
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-8)
    assert np.asarray(found.weights_).shape == X.shape


@pytest.mark.parametrize("kind", ["hdf5", "zarr", "shards"])
@pytest.mark.parametrize(
    ("shape", "chunks", "words"),
    [
        ((200, 200), (1, 1), "40000 chunks of 1 x 1 values, 8 bytes"),
        ((20, 20), (4096, 4096), "1 chunks of 4096 x 4096 values"),
    ],
    ids=["tiny", "huge"],
)
def test_chunks_that_cost_more_than_they_are_worth_are_refused(shape, chunks, words, kind, tmp_path):
    if kind == "hdf5":
        file = pytest.importorskip("h5py").File(tmp_path / "x.h5", "w")
        array = file.create_dataset("X", shape, float, chunks=chunks, maxshape=(None, None))
    else:
        shards = None if kind == "zarr" else (chunks[0] * (200 if chunks[0] == 1 else 1), chunks[1])
        create = pytest.importorskip("zarr").create_array
        array = create(tmp_path / "x.zarr", shape=shape, chunks=chunks, shards=shards, dtype=float)
    with pytest.raises(ValueError, match=f"{words}.*Store it anew"):
        RobustNMF(2, engine="stream").fit(array)


@pytest.mark.parametrize("chunks", [(1, 40), (120, 1), (7, 11), (1, 1), (120, 40)])
@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
def test_rows_of_all_chunks_are_those_of_the_data(chunks, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_AT_A_TIME", 30)
    data = X[:, :8] if chunks == (1, 1) else X  # Zarr writes a file for each chunk
    if kind == "hdf5":
        array = pytest.importorskip("h5py").File(tmp_path / "x.h5", "w").create_dataset("X", data=data, chunks=chunks)
        array.file.flush()
    else:
        array = pytest.importorskip("zarr").create_array(tmp_path / "x.zarr", data=data, chunks=chunks)
    rows = rows_of(array)
    for start, stop in (*rows.cuts(3000), (3, 64), (119, 120)):
        np.testing.assert_array_equal(rows.read(start, stop), data[start:stop])
