"""Data that takes much of a device is worked on in tiles, with the same results; attributes follow one rule."""

import copy
import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from robustnmf import RobustNMF  # noqa: E402  (needs Torch)
from robustnmf.data.lazy_results import LazyMatrix  # noqa: E402
from robustnmf.engines import clear_cache, engine_for, torch_engine  # noqa: E402
from robustnmf.engines.torch_engine import TorchEngine, takes_much  # noqa: E402
from robustnmf.engines.torch_tile_engine import TorchTileEngine  # noqa: E402
from robustnmf.errors import ChangedDataError  # noqa: E402
from robustnmf.formats.device_rows import DeviceRows  # noqa: E402
from robustnmf.utils.arrays import to_host  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make(*, gaps=False, dtype="float64", shape=(300, 50)):
    """Return data of rank 4 with noise and 5 % gross errors."""
    rng = np.random.default_rng(0)
    X = rng.random((shape[0], 4)) @ rng.random((4, shape[1])) * (1 + 0.03 * rng.standard_normal(shape))
    X[rng.random(shape) < 0.05] = 9.0
    if gaps:
        X[::5, ::3] = np.nan
    return np.abs(X).astype(dtype)


def in_tiles(device, **options):
    return RobustNMF(4, random_state=0, engine=TorchTileEngine(device, block_entries=2000), **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("given", ["numpy", "host tensor", "tensor"])
def test_tiles_give_the_fit_of_the_whole(device, gaps, given):
    X = make(gaps=gaps)
    data = X if given == "numpy" else torch.asarray(X, device="cpu" if given == "host tensor" else device)
    whole = RobustNMF(4, random_state=0, engine="torch", device=device).fit(X)
    model = in_tiles(device).fit(data)
    np.testing.assert_allclose(model.components_, whole.components_, atol=1e-8)
    np.testing.assert_array_equal(to_host(model.outliers_), whole.outliers_)
    np.testing.assert_array_equal(to_host(model.outlier_mask(data)), whole.outlier_mask(X))
    np.testing.assert_allclose(to_host(model.transform(data)), whole.transform(X), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(to_host(model.clean(data)), whole.clean(X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["weights", "uncertainties"])
def test_tiles_take_weights_and_uncertainties(device, what):
    X = make()
    options = {what: np.random.default_rng(1).uniform(0.5, 1.5, X.shape)}
    whole = RobustNMF(4, random_state=0).fit(X, **options)
    model = in_tiles(device).fit(torch.asarray(X, device=device), **options)
    # On a GPU the scale comes from statistics in single precision.
    np.testing.assert_allclose(model.components_, whole.components_, rtol=1e-5, atol=1e-6)


def test_whole_numbers_stay_what_they_are_until_a_tile_is_read():
    X = np.random.default_rng(0).poisson(20 * make(shape=(80, 30))).astype(np.uint8)
    model = in_tiles("cpu", max_iter=20).fit(torch.asarray(X))
    expected = RobustNMF(4, random_state=0, max_iter=20).fit(X.astype(np.float64))
    np.testing.assert_allclose(model.components_, expected.components_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8"])
def test_weights_of_entries_in_tiles_are_computed_when_asked_for(device, dtype):
    X = (4 * make(shape=(80, 30))).astype(dtype)
    given = torch.asarray(X, device=device)
    model, whole = in_tiles(device).fit(given), RobustNMF(4, random_state=0).fit(X)
    assert isinstance(model.weights_, LazyMatrix)
    np.testing.assert_allclose(model.weights_[20:40], whole.weights_[20:40], atol=1e-3 if dtype == "float64" else 5e-3)
    given[25, 3] = 77
    with pytest.raises(ChangedDataError, match="changed since the fit"):
        model.weights_[20:40]


@pytest.mark.parametrize("kind", ["needs a gradient", "parameter", "sparse", "streamed"])
def test_a_report_takes_what_a_fit_takes(kind, tmp_path):
    pytest.importorskip("jinja2")
    X = torch.asarray(make(shape=(80, 30)))
    given = {
        "needs a gradient": X.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(X),
        "sparse": X.to_sparse_csr(),
        "streamed": X,
    }[kind]
    model = RobustNMF(4, random_state=0, engine="stream" if kind == "streamed" else "auto").fit(given)
    page = model.report(given, tmp_path / "report.html").read_text(encoding="utf-8")
    expected = RobustNMF(4, random_state=0).fit(X.numpy()).outliers_.mean()
    assert f"{100 * expected:.1f} % of the entries are outliers" in page.replace("\u00a0", " ").replace("\u202f", " ")


@pytest.mark.slow
def test_the_number_of_components_of_data_in_tiles_is_found():
    X = make(shape=(100, 20))
    model = in_tiles("cpu", max_iter=20).set_params(n_components="auto").fit(torch.asarray(X))
    assert model.n_components_ == RobustNMF("auto", random_state=0, max_iter=20).fit(X).n_components_


def test_tiles_refuse_what_the_whole_refuses():
    X = torch.asarray(make())
    X[17, 3] = -1.0
    with pytest.raises(ValueError, match=r"17.*3"):
        in_tiles("cpu").fit(X)
    with pytest.raises(ValueError, match="must have two dimensions, samples and features"):
        in_tiles("cpu").fit(torch.zeros((3, 4, 5)))


@pytest.mark.gpu
def test_results_stay_on_the_host_if_the_gpu_has_no_room(monkeypatch):
    X = torch.asarray(make(), device="cuda")
    whole = in_tiles("cuda").fit(X).outliers_
    assert whole.is_cuda
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (X.numel(), 2**40))
    outliers = in_tiles("cuda").fit(X).outliers_
    assert not outliers.is_cuda
    np.testing.assert_array_equal(outliers.numpy(), to_host(whole))


@pytest.mark.parametrize(("n_rows", "given", "n_tiles"), [(4800, None, 48), (10, None, 10), (6400, 2000, 640)])
def test_tiles_are_parts_of_the_data(n_rows, given, n_tiles):
    engine = TorchTileEngine("cpu", given)
    rows = engine.from_dlpack(torch.zeros((n_rows, 200)))
    assert [sum(map(len, tiles.read(rows))) for tiles in (engine, copy.deepcopy(engine))] == [n_rows] * 2
    assert [len(tiles.read(rows)) for tiles in (engine, copy.deepcopy(engine))] == [n_tiles] * 2


@pytest.mark.gpu
def test_pages_stay_locked_until_the_last_fit_has_ended():
    X, engines = torch.ones(2000, 1000), [in_tiles("cuda").engine for _ in range(2)]
    for engine in engines:
        engine._pin(X)
    engines[0]._unpin()
    assert X.is_pinned()
    engines[1]._unpin()
    assert not X.is_pinned()


def test_rows_of_a_device_are_read_to_the_host():
    X = make(dtype="float32")
    rows = DeviceRows(torch.asarray(X))
    assert (rows.shape, rows.dtype) == (X.shape, np.float32)
    np.testing.assert_array_equal(rows.read(3, 9), X[3:9])
    cuts = rows.cuts(1000)
    assert (cuts[0][0], cuts[-1][1]) == (0, len(X))


@pytest.mark.gpu
def test_data_of_much_memory_is_worked_on_in_tiles(monkeypatch):
    X = make()
    here = torch.asarray(X, device="cuda")
    assert not takes_much(here, here.device)
    assert type(engine_for(here)) is TorchEngine
    monkeypatch.setattr(torch_engine, "MUCH_OF_MEMORY", 0.0)
    assert isinstance(engine_for(here), TorchTileEngine)
    assert isinstance(engine_for(X, device="cuda"), TorchTileEngine)
    model = RobustNMF(4, random_state=0, device="cuda").fit(X)
    np.testing.assert_allclose(model.clean(X), RobustNMF(4, random_state=0).fit(X).clean(X), rtol=1e-3, atol=1e-6)


ON_GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("cuda", "cupy")]
LIBRARIES = ["numpy", "torch", "array_api_strict", "jax", *ON_GPU]


def array_of(library, X):
    """Return an array of a library, and its class."""
    if library in ("torch", "cuda"):
        return torch.asarray(X, device="cpu" if library == "torch" else "cuda"), torch.Tensor
    xp = pytest.importorskip("jax.numpy" if library == "jax" else library)
    array = xp.asarray(X)
    return array, type(array)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_as_large_as_the_data_is_of_its_kind_and_the_model_is_of_numpy(library):
    X, kind = array_of(library, make(dtype="float32"))
    model = RobustNMF(4, random_state=0)
    results = {"fit_transform": model.fit_transform(X)}
    results |= {name: getattr(model, name)(X) for name in ("transform", "clean", "outlier_mask")}
    results["inverse_transform"] = model.inverse_transform(results["transform"])
    results |= {name: getattr(model, name) for name in ("weights_", "outliers_")}
    others = {name: value for name, value in results.items() if not isinstance(value, kind)}
    assert others == {}
    if library == "cuda":
        assert {str(value.device) for value in results.values()} == {str(X.device)}
    for name in ("components_", "thresholds_"):
        assert isinstance(getattr(model, name), np.ndarray)
    assert isinstance(model.score_samples(X), np.ndarray)
    model.partial_fit(X)
    assert isinstance(model.outliers_, kind)
    assert isinstance(model.weights_, kind)


def test_sparse_errors_are_of_the_kind_of_the_data():
    X = torch.asarray(make())
    tensors, arrays = (RobustNMF(4, method="rnmf-l1", random_state=0).fit(A).sparse_errors_ for A in (X, X.numpy()))
    assert isinstance(tensors, torch.Tensor)
    np.testing.assert_allclose(tensors.numpy(), arrays, rtol=1e-9, atol=1e-12)


def test_a_model_of_tensors_is_saved_and_shown(tmp_path):
    import robustnmf

    X = torch.asarray(make())
    model = RobustNMF(4, random_state=0).fit(X)
    model.save(tmp_path / "m.robustnmf")
    np.testing.assert_array_equal(robustnmf.load(tmp_path / "m.robustnmf").components_, model.components_)
    assert "RobustNMF" in model._html_repr()


@pytest.mark.gpu
def test_memory_does_not_grow_with_the_number_of_fits():
    for n in (200, 230, 260):
        RobustNMF(4, random_state=0, max_iter=30).fit(torch.asarray(make(shape=(n, 60)), device="cuda"))
    gc.collect()
    before = torch.cuda.memory_reserved()
    for n in range(205, 245, 4):
        RobustNMF(4, random_state=0, max_iter=30).fit(torch.asarray(make(shape=(n, 60)), device="cuda"))
    gc.collect()
    assert torch.cuda.memory_reserved() <= before + 2**28  # workspaces of cuBLAS, one for each stream
    held = torch.cuda.memory_reserved()
    clear_cache()
    assert torch.cuda.memory_reserved() < held


@pytest.mark.gpu
@pytest.mark.parametrize("rank", [65, 100, 128])
def test_many_components_with_weights_fit_on_the_gpu(rank):
    X = make(shape=(400, 300), dtype="float32")
    codes = RobustNMF(rank, random_state=0, max_iter=30).fit_transform(torch.asarray(X, device="cuda"))
    assert codes.shape == (400, rank)


@pytest.mark.gpu
def test_other_default_types_of_torch_do_not_matter():
    X = torch.asarray(make(dtype="float32"), device="cuda")
    expected = RobustNMF(4, random_state=0).fit(X).components_
    torch.set_default_dtype(torch.float64)
    try:
        found = RobustNMF(4, random_state=0).fit(X).components_
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(found, expected)
