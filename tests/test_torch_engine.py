"""The Torch engine gives the answers of the NumPy engine: on the CPU always, on a CUDA GPU where there is one."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from conftest import make_data
from robustnmf import METHODS, RobustNMF, TruncatedCauchyNMF, load
from robustnmf.algorithm.halfquadratic import run
from robustnmf.algorithm.initializers import MedianStart, RandomStart
from robustnmf.data import mask_quality, quality
from robustnmf.data.blocks import data_in_memory
from robustnmf.engines import NumPyEngine, clear_cache, engine_for
from robustnmf.engines.protocol import block_function
from robustnmf.methods import SOLVERS, resolve
from robustnmf.solvers import LossSolver
from robustnmf.utils import slices
from robustnmf.utils.arrays import to_host

torch = pytest.importorskip("torch")
from robustnmf.engines import torch_engine  # noqa: E402  (needs Torch)
from robustnmf.engines.torch_engine import TorchEngine  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ALTERNATING = [name for name in METHODS if name not in ("heavy-noise", "near-separable")]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def data(*, gaps=False, weighted=False, dtype="float64", shape=(60, 40), rank=4):
    """Return data with 10 % outliers, and weights."""
    rng = np.random.default_rng(1)
    X = rng.random((shape[0], rank)) @ rng.random((rank, shape[1])) + 0.01 * rng.random(shape)
    X[rng.random(shape) < 0.1] = 5.0
    if gaps:
        X[rng.random(shape) < 0.2] = np.nan
    return X.astype(dtype), rng.integers(0, 3, shape).astype(dtype) if weighted else None


def after(engine, method, X, M, *, n_iter, init=RandomStart(), rank=4, **options):  # noqa: B008  (immutable)
    """Return the result of some iterations on an engine, from the start that is the same on all."""
    parts = resolve(method, "default", schedule="plain", **options)
    W, H = init(X.T, None if M is None else M.T, rank, np.random.default_rng(0))
    with engine.running():
        V = engine.split(X)
        observed = None if M is None else engine.split(M, like=V)
        Ht = engine.split(np.ascontiguousarray(H.T), like=V)
        limits = {"max_iter": n_iter, "tol": 0.0, "scale_floor": float(np.finfo(X.dtype).eps)}
        return run(V, observed, engine.place(W), Ht, parts.method, engine, **limits)


def observed(gaps, weighted, dtype):
    X, weights = data(gaps=gaps, weighted=weighted, dtype=dtype)
    if not (gaps or weighted):
        return X, None
    M = (~np.isnan(X)).astype(dtype) * (1 if weights is None else weights)
    return np.nan_to_num(X), M


@block_function(rowwise=True)
def half_and_sum(x, none, row, *, xp):
    assert len(x) == len(row) <= 4
    return x / 2, xp.sum(x, axis=1) + row


@block_function(rowwise=True)
def total(x, row, *, xp):
    assert len(x) == len(row) <= 4
    return xp.sum(x, axis=0), len(x)


class TestPartsOfBlocks:
    """Functions that may be called for some rows of a block are, if the block is large."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(slices, "PART_ENTRIES", 80)

    def test_results_of_parts_are_those_of_blocks(self, device):
        X = make_data().X  # 30 x 20
        engine = TorchEngine(device, 300)
        V = engine.split(X)
        row = engine.split(X[:, 0], like=V)
        halves, sums = engine.map(half_and_sum, V, None, row)
        np.testing.assert_array_equal(to_host(engine.join(halves)), X / 2)
        np.testing.assert_allclose(to_host(engine.join(sums)), X.sum(axis=1) + X[:, 0])
        target = [torch.zeros_like(block) for block in V]
        (sums,) = engine.fill((target,), half_and_sum, V, None, row)
        np.testing.assert_array_equal(to_host(engine.join(target)), X / 2)
        np.testing.assert_allclose(to_host(engine.join(sums)), X.sum(axis=1) + X[:, 0])
        of_features, count = engine.sum(total, V, row)
        np.testing.assert_allclose(to_host(of_features), X.sum(axis=0))
        assert count == len(X)

    def test_a_block_without_rows_is_one_part(self, device):
        assert slices.parts_of(torch.empty((0, 5), device=device)) == [slice(None)]

    def test_other_functions_see_whole_blocks(self, device):
        engine = TorchEngine(device)
        (found,) = engine.map(lambda x, *, xp: xp.asarray([len(x)]), engine.split(make_data().X))
        assert int(found[0]) == 30

    @pytest.mark.parametrize("given", [{}, {"gaps": True}, {"weighted": True}], ids=["all", "gaps", "weights"])
    @pytest.mark.parametrize("noise", ["auto", "poisson"])
    def test_a_fit_is_the_same(self, device, monkeypatch, given, noise):
        X, weights = data(**given, shape=(120, 40))
        X = torch.asarray(20 * X if noise == "auto" else np.round(20 * X), device=device)
        options = {"random_state": 0, "noise": noise, "engine": "torch", "device": device}
        in_parts = RobustNMF(4, **options).fit(X, weights=weights)
        monkeypatch.setattr(slices, "PART_ENTRIES", 2**22)
        whole = RobustNMF(4, **options).fit(X, weights=weights)
        np.testing.assert_allclose(in_parts.components_, whole.components_, rtol=1e-6, atol=1e-9)
        assert (in_parts.outliers_ == whole.outliers_).all()
        np.testing.assert_allclose(to_host(in_parts.clean(X)), to_host(whole.clean(X)), rtol=1e-6, atol=1e-9)


@pytest.mark.gpu
def test_a_fit_takes_little_memory_beside_its_data():
    generator = torch.Generator("cuda").manual_seed(0)
    X = torch.rand((10_000, 10), generator=generator, device="cuda") @ torch.rand((10, 4_000), device="cuda")
    X[torch.rand(X.shape, generator=generator, device="cuda") < 0.05] = 20.0
    clear_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    TruncatedCauchyNMF(10, random_state=0).fit(X)
    assert torch.cuda.max_memory_allocated() - before < 6 * X.nbytes


class TestBlocks:
    X = make_data().X

    @pytest.mark.parametrize("block_entries", [1, 20, 50, 10**6])
    def test_join_undoes_split(self, device, block_entries):
        engine = TorchEngine(device, block_entries)
        np.testing.assert_array_equal(to_host(engine.join(engine.split(self.X))), self.X)

    @pytest.mark.parametrize("block_entries", [20, 10**6])
    def test_map_sum_and_fill_reach_every_block_once(self, device, block_entries):
        engine = TorchEngine(device, block_entries)
        V = engine.split(self.X)
        doubled, rows = engine.map(lambda x, none, *, by, xp: (x * by, xp.sum(x, axis=1)), V, None, by=2)
        np.testing.assert_array_equal(to_host(engine.join(doubled)), 2 * self.X)
        np.testing.assert_allclose(to_host(engine.join(rows)), self.X.sum(axis=1))
        kept, (total, count) = engine.map_and_sum(lambda x, *, xp: (x[:, 0], (xp.sum(x, axis=0), len(x))), V)
        np.testing.assert_allclose(to_host(total), self.X.sum(axis=0))
        np.testing.assert_array_equal(to_host(engine.join(kept)), self.X[:, 0])
        assert count == len(self.X)
        target = torch.zeros(self.X.shape, dtype=torch.float64, device=engine.device)
        (rest,) = engine.fill((engine.split(target, like=V),), lambda x, *, xp: (x + 1, x[:, 1]), V)
        np.testing.assert_array_equal(to_host(target), self.X + 1)
        np.testing.assert_array_equal(to_host(engine.join(rest)), self.X[:, 1])

    def test_map_features_sees_features_in_rows(self, device):
        engine = TorchEngine(device, 20)
        V, M = engine.split(self.X), engine.split(self.X + 1)
        offset = engine.place(np.arange(self.X.shape[1])[:, None])
        result = engine.map_features(lambda v, m, o, none, *, xp: v + m + o, V, M, offset, None)
        np.testing.assert_allclose(to_host(result), self.X.T + (self.X + 1).T + np.arange(self.X.shape[1])[:, None])

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("axis", [None, "feature"])
    @pytest.mark.parametrize("weights", [None, "gaps", "thirds", "nothing"])
    @pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 1.0])
    def test_quantiles_are_those_of_numpy(self, device, dtype, axis, weights, q):
        rng = np.random.default_rng(0)
        A = rng.random((37, 11)).astype(dtype)
        A[:, 2], A[5] = 0.0, A[6]
        M = {
            None: None,
            "gaps": (rng.random(A.shape) < 0.5).astype(dtype),
            "thirds": (rng.integers(0, 4, A.shape) / 3).astype(dtype),
            "nothing": np.zeros_like(A),
        }[weights]
        results = []
        for engine in (NumPyEngine(block_entries=50), TorchEngine(device, 50), TorchEngine(device)):
            V = engine.split(A)
            results.append(to_host(engine.quantile(V, None if M is None else engine.split(M, like=V), q, axis=axis)))
        np.testing.assert_array_equal(results[1], results[0])
        np.testing.assert_array_equal(results[2], results[0])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ALTERNATING)
@pytest.mark.parametrize(
    ("gaps", "weighted"), [*(pytest.param(gaps, False, marks=pytest.mark.slow) for gaps in (False, True)), (True, True)]
)
def test_every_method_gives_the_factors_of_numpy(device, method, gaps, weighted):
    X, M = observed(gaps, weighted, "float64")
    ours, theirs = (
        after(engine, method, X, M, n_iter=20) for engine in (TorchEngine(device, 700), NumPyEngine(block_entries=700))
    )
    np.testing.assert_allclose(to_host(ours.state.W), theirs.state.W, rtol=1e-4, atol=1e-6)
    # The weights of L1 losses are so steep that rounding grows from one iteration to the next.
    agree = 1e-6 if method in ("l1", "rndl", "mahnmf") else 1e-8
    assert ours.state.objective == pytest.approx(theirs.state.objective, rel=agree)
    assert ours.state.weighting.scale == pytest.approx(theirs.state.weighting.scale, rel=1e-8)


def test_the_path_without_kernels_gives_the_factors_of_numpy(device):
    X, M = observed(True, True, "float64")
    engines = (TorchEngine(device, use_triton=False), NumPyEngine())
    ours, theirs = (after(engine, "truncated-cauchy", X, M, n_iter=20) for engine in engines)
    np.testing.assert_allclose(to_host(ours.state.W), theirs.state.W, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("solver", [name for name, part in SOLVERS.items() if not isinstance(part, LossSolver)])
@pytest.mark.parametrize("method", ["truncated-cauchy", "l2"])
def test_every_solver_gives_the_factors_of_numpy(device, method, solver):
    X, M = observed(True, False, "float64")
    ours, theirs = (
        after(engine, method, X, M, n_iter=10, solver=solver) for engine in (TorchEngine(device), NumPyEngine())
    )
    np.testing.assert_allclose(to_host(ours.state.W), theirs.state.W, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("dtype", "agree"), [("float64", 1e-8), ("float32", 1e-4)])
@pytest.mark.parametrize(("gaps", "weighted"), [(False, False), (True, True)])
def test_the_objective_after_fifty_iterations_is_that_of_numpy_in_double_precision(
    device, dtype, agree, gaps, weighted
):
    X, M = observed(gaps, weighted, "float64")
    engine = TorchEngine(device)
    fixed = {"n_iter": 50, "init": MedianStart(), "scale": 0.05, "outliers": 16.0}
    exact = after(NumPyEngine(), "truncated-cauchy", X, M, **fixed)
    given = [None if a is None else a.astype(dtype) for a in (X, M)]
    ours = after(engine, "truncated-cauchy", *given, **fixed)
    assert ours.state.objective == pytest.approx(exact.state.objective, rel=agree)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_estimators_give_the_results_of_numpy(device, method, dtype):
    X, weights = data(gaps=method not in ("heavy-noise", "near-separable"), dtype=dtype)
    fits = [RobustNMF(4, method=method, random_state=0, engine=name, device=where, max_iter=60)
            for name, where in (("numpy", None), ("torch", device))]  # fmt: skip
    codes = [model.fit_transform(X, weights=weights) for model in fits]
    theirs, ours = fits
    assert all(isinstance(a, np.ndarray) for a in (codes[1], ours.components_, ours.weights_, ours.outliers_))
    # On a GPU the noise is estimated in single precision, by steps that end when they change little.
    exact = 1e-5 if device == "cpu" else 1e-3
    assert ours.scale_ == pytest.approx(theirs.scale_, rel=exact if dtype == "float64" else 0.02)
    assert np.mean(ours.outliers_ != theirs.outliers_) < (1e-9 if dtype == "float64" else 0.01)
    # Rounding grows over the iterations, at few entries by much: the typical difference is what counts.
    agree = 1e-4 if dtype == "float64" else 0.01 if method != "hypersurface" else 0.1
    for mine, other in (
        (codes[1] @ ours.components_, codes[0] @ theirs.components_),
        (ours.clean(X), theirs.clean(X)),
        (ours.score_samples(X), theirs.score_samples(X)),
    ):
        assert np.mean(np.abs(mine - other)) < agree * np.mean(np.abs(other))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_of_different_sizes_have_the_fit_of_numpy(device, dtype):
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.standard_normal(50))
    X = rng.gamma(1.0, size=(80, 3)) @ rng.gamma(1.0, size=(3, 50)) * sizes
    X = (X * np.exp(0.05 * rng.standard_normal(X.shape))).astype(dtype)
    theirs = RobustNMF(3, random_state=0).fit(X)
    assert theirs._basis.units is not None
    for given in (X, torch.asarray(X, device=device)):
        ours = RobustNMF(3, random_state=0, engine="torch", device=device).fit(given)
        assert np.mean(to_host(ours.outliers_) != theirs.outliers_) < 0.01
        np.testing.assert_allclose(ours.components_, theirs.components_, atol=0.01)
        assert str(ours.transform(given).dtype).endswith(dtype)
    assert theirs.transform(X).dtype == dtype


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_may_be_named_as_torch_does(name, tmp_path):
    X = data(gaps=False)[0]
    assert type(engine_for(X, device=name)) is NumPyEngine
    for engine in ("numpy", "stream"):
        model = RobustNMF(3, random_state=0, engine=engine, device=name, max_iter=20).fit(X)
    model.save(tmp_path / "model.robustnmf")
    assert load(tmp_path / "model.robustnmf").device == "cpu"


@pytest.mark.thinned(4)
@pytest.mark.parametrize("shape", [(60, 40), (200, 150)], ids=["nothing held out", "held out"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_are_found_in_sparse_counts(device, dtype, shape):
    rng = np.random.default_rng(0)
    H, W = (rng.gamma(1, 1, size) * (rng.random(size) < 0.3) for size in ((shape[0], 3), (3, shape[1])))
    X = rng.poisson(2 * H @ W).astype(dtype)
    wrong = rng.random(shape) < 0.2
    X[wrong] = rng.uniform(1, 10, wrong.sum()) * X.max()
    found = RobustNMF(3, random_state=0, engine="torch", device=device).fit(X).outliers_
    assert found[wrong].mean() > 0.98
    assert found[~wrong].mean() < 0.02


def test_tensors_of_a_device_come_back_as_such(device):
    X, weights = (torch.asarray(a, device=device) for a in data(gaps=True, weighted=True))
    model = RobustNMF(4, random_state=0, engine="torch")
    results = [model.fit_transform(X, weights=weights), model.transform(X), model.clean(X), model.outlier_mask(X)]
    assert all(isinstance(a, torch.Tensor) and a.device.type == device for a in results)
    plain = RobustNMF(4, random_state=0).fit(to_host(X), weights=to_host(weights))
    # Codes of data with gaps converge to the tolerance of the fit, on each device by another way.
    np.testing.assert_allclose(to_host(results[2]), plain.clean(to_host(X)), rtol=2e-4, atol=1e-7)
    assert isinstance(model.components_, np.ndarray)
    assert isinstance(model.weights_, torch.Tensor)


def test_a_model_of_a_device_can_be_saved_and_used_elsewhere(device, tmp_path):
    import robustnmf

    X = torch.asarray(data()[0], device=device)
    model = RobustNMF(4, random_state=0, engine="torch").fit(X)
    model.save(tmp_path / "model.robustnmf")
    model.report(X, tmp_path / "report.html")
    assert "RobustNMF" in model._repr_html_()
    loaded = robustnmf.load(tmp_path / "model.robustnmf").set_params(engine="auto")
    np.testing.assert_allclose(loaded.transform(to_host(X)), to_host(model.transform(X)), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "bool"])
def test_other_dtypes_are_widened(device, dtype):
    X = (torch.asarray(data()[0], device=device) * 10).to(getattr(torch, dtype))
    codes = RobustNMF(2, random_state=0, engine="torch").fit_transform(X)
    assert codes.dtype == (torch.float32 if "float" in dtype else torch.float64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X.fill_(float("nan")), "at least one observed"),
        (lambda X: X.neg_(), "Negative values"),
        (lambda X: X.fill_(float("inf")), "Infinite values"),
        (lambda X: X[0], "must be a matrix"),
        (lambda X: X[:0], "must be a matrix"),
        (lambda X: X.to(torch.complex64), "Complex data"),
    ],
)
def test_bad_tensors_get_a_clear_error(device, change, message):
    X = torch.asarray(data()[0], device=device)
    with pytest.raises(ValueError, match=message):
        RobustNMF(2, engine="torch").fit(change(X))


def test_bad_choices_get_a_clear_error():
    X = data()[0]
    with pytest.raises(ValueError, match="engine must be one of"):
        RobustNMF(2, engine="cuda").fit(X)
    with pytest.raises(ValueError, match="works on the CPU"):
        RobustNMF(2, engine="numpy", device="cuda").fit(X)
    with pytest.raises(ValueError, match="device must be"):
        RobustNMF(2, device="meta").fit(X)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="needs a CUDA GPU"):
            RobustNMF(2, device="cuda").fit(X)


def test_the_engine_follows_the_data():
    X = data()[0]
    assert isinstance(engine_for(X), NumPyEngine)
    assert isinstance(engine_for(torch.asarray(X)), NumPyEngine)
    assert isinstance(engine_for(torch.asarray(X), "torch"), TorchEngine)
    assert isinstance(engine_for(X, device="cpu"), NumPyEngine)
    if torch.cuda.is_available():
        there = torch.asarray(X, device="cuda")
        assert engine_for(there).device == there.device
        assert isinstance(engine_for(there, device="cpu"), NumPyEngine)


def test_a_fit_leaves_the_settings_of_torch_as_they_were():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        RobustNMF(2, engine="torch", device="cpu").fit(data()[0])
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.is_grad_enabled()
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_cupy_comes_back_as_cupy():
    cupy = pytest.importorskip("cupy")
    X = data(gaps=True)[0]
    model = RobustNMF(4, random_state=0)
    cleaned = model.fit(cupy.asarray(X)).clean(cupy.asarray(X))
    assert isinstance(cleaned, cupy.ndarray)
    plain = RobustNMF(4, random_state=0).fit(X)
    # Of a sample that is mostly rejected, several codes are nearly as good.
    told = plain.outliers_.mean(axis=1) < 0.5
    np.testing.assert_allclose(cupy.asnumpy(cleaned)[told], plain.clean(X)[told], rtol=2e-4, atol=1e-7)


def test_data_is_looked_at_for_doubtful_values(device):
    rng = np.random.default_rng(0)
    X = 280 + 10 * rng.random((100, 3)) @ rng.random((3, 30))
    X[rng.random(X.shape) < 0.03] = 9999.0
    engine = TorchEngine(device)
    given = data_in_memory(TruncatedCauchyNMF(), torch.asarray(X, device=device), None, engine=engine, reset=True)
    sample = quality.Sample.of(given, engine)
    found = quality.findings(sample, given, 3)
    outliers = torch.zeros(X.shape, dtype=torch.bool, device=device)
    outliers[7] = True
    found += mask_quality.rejected(sample, given, outliers, engine, found=found)
    assert ["the value 9999" in found[0].message, "1 sample (7)" in found[1].message] == [True, True]


@pytest.mark.parametrize("name", ["cpu:0", torch.device("cpu", 0)], ids=str)
def test_the_cpu_is_the_same_by_any_name(name):
    X = torch.asarray(37 * data(gaps=True)[0])
    expected, found = (RobustNMF(4, random_state=0, engine="torch", device=device).fit(X) for device in ("cpu", name))
    np.testing.assert_array_equal(found.components_, expected.components_)
    assert (found.outliers_ == expected.outliers_).all()
    assert (found.weights_ == expected.weights_).all()


@pytest.mark.parametrize("name", ["gpu", "meta", object()])
def test_unknown_devices_are_refused(name):
    with pytest.raises(ValueError, match=r"device must be 'cpu', 'cuda'"):
        RobustNMF(2, device=name, engine="torch").fit(data()[0])


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"device='cuda:2' is not there: Torch sees 2 CUDA GPU"):
        torch_engine._available("cuda:2")
    assert torch_engine._available("cuda:1") == torch.device("cuda", 1)


def test_autocast_does_not_change_a_fit(device):
    X = torch.asarray(data()[0], dtype=torch.float32, device=device)
    expected = RobustNMF(4, random_state=0, engine="torch", device=device).fit(X)
    codes = expected.transform(X)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = RobustNMF(4, random_state=0, engine="torch", device=device).fit(X)
        np.testing.assert_array_equal(to_host(expected.transform(X)), to_host(codes))
        assert (X @ X.T).dtype == torch.bfloat16
    np.testing.assert_array_equal(found.components_, expected.components_)


def test_the_default_device_of_torch_does_not_matter():
    """Any array that is made without a device would be on "meta", and have no numbers."""
    X, weights = data(gaps=True, weighted=True)
    fits = []
    for default in ("cpu", "meta"):
        torch.set_default_device(default)
        try:
            options = {"random_state": 0, "engine": "torch", "device": "cpu"}
            model = RobustNMF(4, **options).fit(torch.from_numpy(X), weights=weights)
            fits.append((model.components_, to_host(model.clean(torch.from_numpy(X), weights=weights))))
        finally:
            torch.set_default_device(None)
    for found, expected in zip(*fits, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_tensors_that_are_marked_negative_are_taken():
    X = torch.asarray(data()[0])
    marked = torch.complex(torch.zeros_like(X), -X).conj().imag
    assert marked.is_neg()
    found, expected = (RobustNMF(4, random_state=0).fit(A).components_ for A in (marked, X))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("capability", "reason"), [((9, 0), "Triton could not be imported"), ((7, 5), "is older")])
def test_a_gpu_without_kernels_is_told_once(monkeypatch, capability, reason):
    monkeypatch.setattr(torch_engine, "_told", set())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "An old GPU")
    monkeypatch.setitem(sys.modules, "robustnmf.kernels.cuda.kernels", None)  # an import of it fails
    with pytest.warns(RuntimeWarning, match=f"plain Torch.*slower.*{reason}"):
        assert torch_engine._kernels_for(torch.device("cuda")).sweep is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch_engine._kernels_for(torch.device("cuda")).sweep is None


NO_NUMBA = """
import sys, warnings
import torch
from robustnmf import RobustNMF
warnings.simplefilter("ignore")
rng = torch.Generator("cuda").manual_seed(0)
X = torch.rand((60, 4), generator=rng, device="cuda") @ torch.rand((4, 40), generator=rng, device="cuda")
RobustNMF(4, random_state=0).fit(X + 0.01 * torch.rand(X.shape, generator=rng, device="cuda"))
print("numba" in sys.modules)
"""


@pytest.mark.gpu
def test_a_fit_on_a_gpu_does_not_wait_for_numba():
    run = subprocess.run([sys.executable, "-c", NO_NUMBA], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False"]
