"""Sparse data gives what dense data gives, on every engine: processor, Torch, CUDA, Dask; all of it stays sparse."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from robustnmf import RobustNMF, load
from robustnmf.algorithm import stage
from robustnmf.data.out_of_core import as_data, stored_weights
from robustnmf.data.validation import check_matrix
from robustnmf.engines import DaskEngine, NumPyEngine, SparseEngine, engine_for
from robustnmf.engines.lazy import LazyBlock
from robustnmf.errors import IncompatibleError
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.utils.arrays import dtype_of, to_host

torch = pytest.importorskip("torch")
from robustnmf.engines import torch_engine, torch_tile_engine  # noqa: E402  (need Torch)
from robustnmf.engines.torch_engine import TorchEngine  # noqa: E402
from robustnmf.engines.torch_sparse_engine import TorchSparseEngine  # noqa: E402
from robustnmf.engines.torch_tiles import TileRows, csr_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

HALF_QUADRATIC = ["l2", "nenmf", "l1", "l21", "capped", "cim", "huber", "cauchy", "truncated-cauchy", "rndl"]
DENSE_ONLY = ["hypersurface", "mahnmf", "rnmf-l1", "heavy-noise", "near-separable"]
DENSITIES = [0.001, 0.01, 0.1, 0.5]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# Few enough for L1 weights, which make rounding grow by a factor of ten in five iterations.
FIT = {"n_components": 3, "random_state": 0, "max_iter": 8}
TILE = 1500


def counts(density, seed=0, shape=None, rank=3):
    """Return counts of low rank, about so many of them positive, 2 % of these 50 times too large."""
    shape = shape or ((90, 40) if density > 0.05 else (300, 100))  # or nearly nothing would be positive
    rng = np.random.default_rng(seed)
    P = rng.gamma(0.5, 1, (shape[0], rank)) @ rng.gamma(0.5, 1, (rank, shape[1]))
    X = rng.poisson(P * -np.log1p(-density) / P.mean()).astype(float)
    X[(X > 0) & (rng.random(X.shape) < 0.02)] *= 50
    return X


def tensor(X, layout=torch.sparse_csr, device="cpu", dtype=None):
    """Return a sparse tensor."""
    return torch.as_tensor(X, dtype=dtype, device=device).to_sparse(layout=layout)


def dense(values):
    """Return an array of NumPy of anything that a model returns."""
    values = values.compute() if hasattr(values, "compute") else values
    values = to_host(values)
    return values.toarray() if sparse.issparse(values) else np.asarray(values)


def assert_agree(found, expected, X, given, tolerance=1e-6):
    """Compare a model of sparse data `given` with one of dense data X: components, codes, objective and mask."""
    options = {"rtol": tolerance, "atol": tolerance * max(1.0, np.abs(expected.components_).max())}
    assert_allclose(dense(found.components_), dense(expected.components_), **options)
    codes = dense(expected.transform(X))
    assert_allclose(dense(found.transform(given)), codes, rtol=tolerance, atol=tolerance * max(1.0, codes.max()))
    assert found.objective_ == pytest.approx(expected.objective_, rel=tolerance, abs=1e-9)
    assert_array_equal(dense(found.outliers_), dense(expected.outliers_))
    assert_array_equal(dense(found.outlier_mask(given)), dense(expected.outlier_mask(X)))


def engines(kind, tile=TILE):
    """Return what keeps data sparse and, for dense data, what does the same work."""
    if kind == "numpy":
        return {"engine": SparseEngine(1, tile)}, {"engine": "numpy"}
    return {"engine": TorchSparseEngine(kind, tile)}, {"engine": "torch", "device": kind}


# --- Agreement --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "density", [pytest.param(density, marks=[pytest.mark.slow] * (density in (0.001, 0.1))) for density in DENSITIES]
)
@pytest.mark.parametrize("method", HALF_QUADRATIC)
@pytest.mark.parametrize("kind", ["numpy", *DEVICES])
def test_every_method_gives_what_it_gives_for_dense_data(kind, method, density):
    X = counts(density)
    there, here = engines(kind, X.size // 3)
    found = RobustNMF(method=method, **FIT, **there).fit(sparse.csr_array(X))
    assert sparse.issparse(found.outliers_)
    assert_agree(found, RobustNMF(method=method, **FIT, **here).fit(X), X, sparse.csr_array(X))


@pytest.mark.parametrize("method", DENSE_ONLY)
@pytest.mark.parametrize("kind", ["numpy", "cpu"])
def test_methods_that_need_dense_data_say_so(kind, method):
    with pytest.raises(IncompatibleError, match=r"needs dense data.*X\.toarray\(\)"):
        RobustNMF(method=method, **FIT, **engines(kind)[0]).fit(sparse.csr_array(counts(0.2)))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize(
    "options",
    [
        {"noise": "poisson", "weight_by_noise": True},
        pytest.param({"preset": "published"}, marks=pytest.mark.slow),
        {"alpha_W": 0.01, "l1_ratio": 0.5},
        {"fixed_components": np.ones((1, 40))},
        {"feature_scaling": "robust"},
        {"outliers": "three-sigma-feature", "schedule": "plain", "scale": "rms"},
        pytest.param({"n_components": "auto", "max_iter": 4}, marks=pytest.mark.slow),
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_do_what_they_do_for_dense_data_on_a_device(kind, options, monkeypatch):
    if "outliers" in options:
        monkeypatch.setattr(torch_tile_engine, "SORTED_ENTRIES", 0)  # quantiles are found tile by tile
    X = counts(0.3)
    there, here = engines(kind)
    found, expected = RobustNMF(**FIT | options | there), RobustNMF(**FIT | options | here)
    assert_agree(found.fit(sparse.csr_array(X)), expected.fit(X), X, sparse.csr_array(X))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("form", ["dense", "sparse", "tensor", "sparse tensor"])
def test_weights_and_uncertainties_count_whatever_they_are(kind, form):
    X, rng = counts(0.3), np.random.default_rng(1)
    there, here = engines(kind)
    make = {
        "dense": np.asarray,
        "sparse": sparse.csr_array,
        "tensor": lambda a: torch.as_tensor(a, device=kind),
        "sparse tensor": lambda a: tensor(a, device=kind),
    }[form]
    for name, values in (("weights", rng.choice([0.0, 0.5, 1.0], X.shape)), ("uncertainties", rng.random(X.shape) + 1)):
        given = {name: make(values)}
        found = RobustNMF(method="capped", **FIT, **there).fit(tensor(X, device=kind), **given)
        expected = RobustNMF(method="capped", **FIT, **here).fit(X, **{name: values})
        assert_allclose(found.components_, expected.components_, rtol=1e-6, atol=1e-9)
        codes = expected.transform(X, **{name: values})
        assert_allclose(dense(found.transform(tensor(X, device=kind), **given)), codes, rtol=1e-6, atol=1e-6)
        assert_allclose(np.asarray(found.weights_), expected.weights_, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", DEVICES)
def test_missing_entries_may_be_stored_or_not_stored(kind):
    X = counts(0.5) + (counts(0.5, seed=1) > 0)
    gaps, holes = np.where(X > 0, X, np.nan), X.copy()
    holes[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    there, here = engines(kind)
    for data, as_dense, zeros in ((X, gaps, "missing"), (holes, holes, "data")):
        found = RobustNMF(zeros=zeros, **FIT, **there).fit(tensor(data, device=kind))
        expected = RobustNMF(**FIT, **here).fit(as_dense)
        assert_allclose(found.components_, expected.components_, rtol=1e-6, atol=1e-9)
        cleaned, known = dense(found.clean(tensor(data, device=kind))), dense(expected.clean(as_dense))
        assert_allclose(cleaned, np.where(X > 0, known, 0) if zeros == "missing" else known, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", DEVICES)
def test_some_of_many_samples_are_chosen_and_stay_sparse_on_a_device(kind, monkeypatch):
    monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 1000)
    monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 5)
    X = counts(0.3, shape=(600, 40))
    there, here = engines(kind, 9000)
    S = sparse.csr_array(X)
    assert_agree(RobustNMF(**FIT, **there).fit(S), RobustNMF(**FIT, **here).fit(X), X, S)
    engine = there["engine"]
    V = engine.split(SparseRows(S))
    chosen = stage.AllSamples.of(V, None, 3, engine).part(V)
    assert_array_equal(dense(engine.join(chosen)), X[:: -(-len(X) // sum(map(len, chosen)))])
    assert all(isinstance(block, LazyBlock) for block in chosen)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_sparse_data_on_a_gpu_takes_little_memory(dtype):
    S = sparse.random_array((60_000, 6_000), density=0.01, rng=0, dtype=np.float64, format="csr")
    X = torch.sparse_csr_tensor(*(torch.from_numpy(a) for a in (S.indptr, S.indices, S.data)), size=S.shape)
    X = X.to("cuda", dtype)
    assert isinstance(engine_for(X), TorchSparseEngine)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()  # other tests may have left something
    model = RobustNMF(3, method="huber", max_iter=2, random_state=0).fit(X)
    as_dense = S.shape[0] * S.shape[1] * dtype.itemsize
    assert torch.cuda.max_memory_allocated() - before < as_dense
    assert model.outliers_.layout is torch.sparse_csr and model.outliers_.is_cuda


# --- Tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo], ids=str)
def test_results_are_of_the_kind_that_was_given(kind, layout):
    X = counts(0.2)
    given = tensor(X, layout, kind)
    expected = RobustNMF(**FIT, engine="numpy").fit(X)
    for engine in ("sparse", TorchSparseEngine(kind, TILE)):
        model = RobustNMF(**FIT, engine=engine)
        codes = model.fit_transform(given)
        cleaned, mask = model.clean(given), model.outlier_mask(given)
        assert codes.layout is torch.strided and {a.device.type for a in (codes, cleaned, mask)} == {kind}
        assert cleaned.layout is mask.layout is layout and mask.dtype is torch.bool
        assert_array_equal(dense(mask), expected.outliers_)
        assert_allclose(dense(cleaned), dense(expected.clean(X)), rtol=1e-6, atol=1e-6)
        assert isinstance(model.outliers_, torch.Tensor)
        assert isinstance(model.components_, np.ndarray)
        assert_array_equal(dense(model.outliers_), expected.outliers_)


def test_sparse_tensors_of_the_host_are_shared_and_not_copied():
    X = tensor(counts(0.2))
    S = to_host(X)
    assert np.shares_memory(S.data, X.values().numpy()) and np.shares_memory(S.indices, X.col_indices().numpy())
    assert isinstance(as_data(X), SparseRows)
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [2.0, 3.0], (2, 2))
    assert_array_equal(to_host(twice).toarray(), [[0, 5], [0, 0]])
    assert_array_equal(to_host(X.requires_grad_()).toarray(), X.detach().to_dense())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.uint8, torch.bool])
def test_tensors_of_all_types_are_taken(dtype):
    X = counts(0.2) > 0
    given = tensor(X, dtype=dtype)
    for engine in ({"engine": "sparse"}, {"engine": TorchSparseEngine("cpu", TILE)}, {"engine": "torch"}):
        if dtype is torch.float16 and engine == {"engine": "sparse"}:
            continue  # as NumPy has it, it is doubled in the fit: not the type that others use
        model = RobustNMF(method="l2", **FIT, **engine).fit(given)
        assert model.components_.dtype == (np.float32 if dtype.is_floating_point else np.float64)
        expected = RobustNMF(method="l2", **FIT, engine="numpy").fit(X.astype(model.components_.dtype))
        assert_allclose(model.components_, expected.components_, rtol=1e-3, atol=1e-4)


def test_tensors_that_cannot_be_worked_on_are_refused():
    with pytest.raises(ValueError, match=r"layout torch\.sparse_csr.*got sparse_bsr"):
        RobustNMF(2).fit(torch.ones(4, 4).to_sparse_bsr((2, 2)))
    with pytest.raises(ValueError, match="must have two dimensions"):
        RobustNMF(2).fit(torch.ones(4, 4, 2).to_sparse())
    with pytest.raises(ValueError, match="Complex data"):
        RobustNMF(2, engine=TorchSparseEngine("cpu")).fit(tensor(np.ones((4, 4)) * 1j))
    wrong = torch.sparse_csr_tensor([0, 1, 2], [0, 7], [1.0, 1.0], (2, 3), check_invariants=False)
    with pytest.raises(ValueError, match="from 0 to 2; got 0 to 7"):
        RobustNMF(2, engine=TorchSparseEngine("cpu")).fit(wrong)
    with pytest.raises(ValueError, match="by the CPU or by CUDA"):
        TorchSparseEngine("mps")
    X = counts(0.2)
    X[7, 5] = -1
    with pytest.raises(ValueError, match="at sample 7, feature 5"):
        RobustNMF(2, engine=TorchSparseEngine("cpu", TILE)).fit(tensor(X))


@pytest.mark.slow
def test_models_of_tensors_are_saved_cloned_and_go_on(tmp_path):
    from sklearn.base import clone

    X = tensor(counts(0.2))
    options = {**FIT, "max_iter": 15, "engine": TorchSparseEngine("cpu", TILE)}
    whole = RobustNMF(**options).fit(X)
    whole.save(tmp_path / "model")
    assert_array_equal(dense(load(tmp_path / "model").outliers_), dense(whole.outliers_))
    assert_array_equal(clone(whole).fit(X).components_, whole.components_)
    folder = tmp_path / "state"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        RobustNMF(**options, checkpoint=folder, callback=lambda iteration: iteration.n_iter == 6).fit(X)
    assert_array_equal(RobustNMF(**options, checkpoint=folder).fit(X).components_, whole.components_)
    batches = RobustNMF(**FIT).partial_fit(X)
    assert batches.n_samples_seen_ == len(X)


# --- Which engine -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_large_sparse_data_stays_sparse_and_small_is_made_dense(device, monkeypatch):
    large, small = sparse.random_array((5000, 5000), density=0.001, rng=0), sparse.csr_array(np.eye(20))
    monkeypatch.setitem(torch_engine.BLOCK_ENTRIES, "cuda", 2**24)
    assert isinstance(engine_for(large, "torch", device), TorchSparseEngine)
    assert type(engine_for(small, "torch", device)) is TorchEngine
    assert type(engine_for(sparse.random_array((4200, 4200), density=0.5, rng=0), "torch", device)) is TorchEngine
    if device == "cuda":
        assert isinstance(engine_for(small, "sparse", "cuda"), TorchSparseEngine)
        assert isinstance(engine_for(large, "auto", "cuda"), TorchSparseEngine)
        assert isinstance(engine_for(tensor(np.eye(20), device="cuda"), "sparse"), TorchSparseEngine)


def test_sparse_tensors_of_the_host_are_worked_on_by_the_processor():
    large = sparse.random_array((5000, 5000), density=0.001, rng=0, format="csr")
    X = torch.sparse_csr_tensor(*(torch.from_numpy(a) for a in (large.indptr, large.indices, large.data)), (5000, 5000))
    assert isinstance(engine_for(X), SparseEngine) and isinstance(engine_for(X, "sparse"), SparseEngine)
    assert type(engine_for(tensor(np.eye(20)))) is NumPyEngine
    with pytest.raises(ValueError, match="works on sparse matrices of SciPy and on sparse tensors; got Tensor"):
        RobustNMF(2, engine="sparse").fit(torch.eye(4))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_made_dense_is_made_so_on_the_device(device):
    X = counts(0.2)
    engine = TorchEngine(device)
    for given in (sparse.csc_array(X), tensor(X, device=device), tensor(X, torch.sparse_coo)):
        found = check_matrix(RobustNMF(), given, engine, reset=True)
        assert found.device.type == device and found.layout is torch.strided
        assert_array_equal(dense(found), X)


# --- Tiles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_tiles_hold_the_rows(device):
    X = counts(0.2)
    rows = TileRows.of(sparse.csr_array(X), torch.device(device))
    assert rows.shape == X.shape and rows.dtype is torch.float64 and dtype_of(rows) == np.float64
    assert_array_equal(dense(rows.read(3, 17)), X[3:17])
    again = TileRows.concatenated([TileRows.of_dense(rows.read(0, 30)), TileRows.of_dense(rows.read(30, 90))])
    assert_array_equal(dense(again.read(0, 90)), X)
    assert again.values.numel() == np.count_nonzero(X)
    assert_array_equal(csr_of(rows.read(0, 90) > 0).toarray(), X > 0)
    mask = TileRows.of(sparse.csr_array(X > 0), torch.device(device))
    assert_array_equal(dense(mask.read(0, 5)), X[:5] > 0)
    assert rows.cuts(40 * 8 * 30) == [(0, 30), (30, 60), (60, 90)]


def test_what_is_stored_twice_in_a_tile_is_summed():
    twice = TileRows.of(sparse.csr_array(([1.0, 2.0, 5.0], [2, 2, 0], [0, 2, 3]), shape=(2, 3)), torch.device("cpu"))
    assert_array_equal(dense(twice.read(0, 2)), [[0, 0, 3], [5, 0, 0]])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests for a GPU run the kernels themselves")
@pytest.mark.parametrize("method", ["huber", "truncated-cauchy"])
def test_kernels_of_a_gpu_work_on_tiles_in_the_interpreter(method):
    kernels = pytest.importorskip("robustnmf.kernels.cuda.kernels")
    X = counts(0.3, shape=(60, 24))
    engine = TorchSparseEngine("cpu", 700)
    engine.kernels = kernels.CudaKernels(engine.device).table
    options = {"n_components": 2, "random_state": 0, "max_iter": 3, "method": method}
    found = RobustNMF(engine=engine, **options).fit(sparse.csr_array(X))
    expected = RobustNMF(engine="torch", device="cpu", **options).fit(X)
    assert_allclose(found.components_, expected.components_, rtol=1e-6, atol=1e-9)
    assert found.objective_ == pytest.approx(expected.objective_, rel=1e-6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("axis", [None, "feature"])
@pytest.mark.parametrize("device", DEVICES)
def test_quantiles_of_tiles_are_exact(device, axis, monkeypatch):
    monkeypatch.setattr(torch_tile_engine, "SORTED_ENTRIES", 0)
    X = counts(0.5)
    engine = TorchSparseEngine(device, TILE)
    V = engine.split(SparseRows(sparse.csr_array(X)))
    M = engine.split(SparseRows(sparse.csr_array((X > 1).astype(float))), like=V)
    for weights, blocks in ((None, None), ([(X > 1).astype(float)], M)):
        for q in (0.1, 0.5, 0.95):
            expected = NumPyEngine(1).quantile([X], weights, q, axis=axis)
            assert_array_equal(dense(engine.quantile(V, blocks, q, axis=axis)), expected)


# --- Dask -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def few_tasks(monkeypatch):
    from robustnmf.engines.dask import engine as dask_engine

    monkeypatch.setattr(dask_engine, "TASKS_PER_THREAD", 1)


def in_chunks(X, kind=sparse.csr_array, chunks=(45, -1)):
    """Return a Dask array of sparse chunks, or of dense ones for None."""
    da = pytest.importorskip("dask.array")
    array = da.from_array(X, chunks=chunks)
    return array if kind is None else array.map_blocks(kind, meta=kind((0, 0)), dtype=X.dtype)


def assert_dask_agrees(method, density, **options):
    X = counts(density)
    options = {**FIT, "max_iter": 3, "method": method, **options}
    given, given_dense = (in_chunks(X, kind, (len(X) // 2, -1)) for kind in (sparse.csr_array, None))
    found, expected = RobustNMF(**options).fit(given), RobustNMF(**options).fit(given_dense)
    assert_agree(found, expected, given_dense, given)


# With the schedule of the default a fit is hundreds of tasks.
PLAIN = {"schedule": "plain", "scale": "rms"}
QUICK = {"l2": 0.001, "l1": 0.1, "l21": 0.5, "capped": 0.01, "truncated-cauchy": 0.1}


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.parametrize(
    ("method", "density"),
    [
        pytest.param(method, density, marks=[] if QUICK.get(method) == density else pytest.mark.slow)
        for method in HALF_QUADRATIC
        for density in DENSITIES
    ],
)
def test_every_method_gives_what_it_gives_for_dense_chunks(method, density, client, few_tasks):
    assert_dask_agrees(method, density, **PLAIN if "cauchy" in method else {})


@pytest.mark.dask
@pytest.mark.slow
@pytest.mark.parametrize("density", DENSITIES)
def test_the_default_gives_what_it_gives_for_dense_chunks(density, client):
    assert_dask_agrees("truncated-cauchy", density)


@pytest.mark.dask
@pytest.mark.parametrize("keep", [False, True])
def test_results_of_sparse_chunks_are_sparse_and_those_of_dense_data(keep, client, few_tasks):
    X, rng = counts(0.3), np.random.default_rng(1)
    weights = rng.choice([0.0, 0.5, 1.0], X.shape)
    options = {**FIT, "method": "huber"}
    given = in_chunks(X.astype(int), sparse.csr_matrix, (45, 20))  # whole numbers, and chunks of some features
    of_entries = in_chunks(weights, sparse.csc_array if keep else None, (30, -1))
    engine = DaskEngine(client, keep=keep, block_bytes=20 * 40 * 8)  # chunks are made dense in parts
    model = RobustNMF(engine=engine, **options).fit(given, weights=of_entries)
    expected = RobustNMF(engine="numpy", **options).fit(X, weights=weights)
    assert_allclose(model.components_, expected.components_, rtol=1e-6)
    for name in ("transform", "clean", "outlier_mask", "score_samples"):
        found = getattr(model, name)(given, weights=of_entries)
        stays = name in ("clean", "outlier_mask")
        assert isinstance(found._meta, sparse.csr_array if stays else np.ndarray)
        found = found.compute()
        assert sparse.issparse(found) == stays
        assert_allclose(dense(found), dense(getattr(expected, name)(X, weights=weights)), rtol=1e-6, atol=1e-6)
    assert_array_equal(dense(model.outliers_), expected.outliers_)
    assert_allclose(dense(model.weights_), expected.weights_, rtol=1e-6, atol=1e-9)


@pytest.mark.dask
def test_entries_of_chunks_that_are_not_stored_may_be_missing(client, few_tasks):
    X = counts(0.5)
    options = {**FIT, **PLAIN}
    given, gaps = in_chunks(X), np.where(X > 0, X, np.nan)
    model = RobustNMF(zeros="missing", **options).fit(given)
    expected = RobustNMF(engine="numpy", **options).fit(gaps)
    assert_allclose(model.components_, expected.components_, rtol=1e-6)
    cleaned = model.clean(given).compute()
    assert_allclose(cleaned.toarray(), np.where(X > 0, expected.clean(gaps), 0), rtol=1e-6, atol=1e-6)
    halves = np.full(X.shape, 0.5)
    for weights in (halves, sparse.csr_array(halves), in_chunks(halves, chunks=(90, -1))):
        assert_array_equal(dense(stored_weights(given, weights)), 0.5 * (X > 0))
    with pytest.raises(TypeError, match="chunks of this Dask array are dense"):
        RobustNMF(zeros="missing").fit(in_chunks(X, None))
    with pytest.raises(ValueError, match="weights must have the shape of X"):
        stored_weights(given, np.ones((3, 2)))


@pytest.mark.dask
def test_chunks_stay_sparse_and_are_made_dense_in_parts(client):
    X = counts(0.2)
    for keep in (False, True, None):
        with DaskEngine(client, keep=keep, block_bytes=10 * 40 * 8).running() as engine:
            blocks = engine.read_dask(in_chunks(X))
            assert [len(block) for block in blocks] == [9] * 10
            chunk = blocks[0].call.arguments[0]
            assert sparse.issparse(chunk.source() if keep is False else chunk.future.result())
            assert_array_equal(engine.join(blocks), X)


@pytest.mark.dask
def test_what_sparse_chunks_take_decides_whether_they_are_kept(client, monkeypatch):
    X = sparse.random_array((90, 400), density=0.01, rng=0, format="csr").toarray()
    monkeypatch.setattr(DaskEngine, "memory", 5 * 20_000)  # dense it takes 288000 bytes, and stored 4320 for entries
    with DaskEngine(client).running() as engine:
        for array, is_kept in ((in_chunks(X), True), (in_chunks(X, None), False)):
            block = engine.read_dask(array)[0]
            block = block.call.arguments[0] if hasattr(block, "call") else block
            assert hasattr(block, "future") == is_kept


LOADS = []


def load_part(part):
    LOADS.append(len(part))
    return sparse.csr_array(part)


@pytest.mark.dask
def test_a_chunk_is_read_once_for_all_its_parts(client, few_tasks):
    dask, da = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    X, meta = counts(0.2), sparse.csr_array((0, 0), dtype=float)
    parts = [dask.delayed(load_part)(X[i : i + 45]) for i in (0, 45)]
    array = da.concatenate([da.from_delayed(part, (45, 40), meta=meta) for part in parts])
    with DaskEngine(client, keep=False, block_bytes=10 * 40 * 8).running() as engine:
        blocks = engine.read_dask(array)
        LOADS.clear()
        assert_allclose(engine.sum(column_sums, blocks), X.sum(axis=0))
    assert len(blocks) == 10 and LOADS == [45, 45]


def column_sums(x, *, xp):
    return x.sum(axis=0)


@pytest.mark.dask
@pytest.mark.parametrize("keep", [False, True])
def test_chunks_that_are_not_what_their_array_says_are_refused(keep, client):
    array = in_chunks(counts(0.2), None).map_blocks(sparse.csr_array, meta=np.empty((0, 0)), dtype=float)
    with pytest.raises(TypeError, match=r"its meta says that they are dense.*from_delayed"):
        RobustNMF(2, engine=DaskEngine(client, keep=keep)).fit(array)


def test_other_sparse_chunks_are_converted():
    from robustnmf.engines.dask.chunks import as_csr

    class Coordinates:
        """What the package sparse offers."""

        def tocsr(self):
            return sparse.csr_matrix(np.eye(3, dtype=int))

    class Compressed:
        def todense(self):
            return np.eye(3)

    for chunk in (Coordinates(), Compressed(), sparse.csc_array(np.eye(3))):
        found = as_csr(chunk, np.float64)
        assert isinstance(found, sparse.csr_array) and found.dtype == np.float64
        assert_array_equal(found.toarray(), np.eye(3))
