"""Large data in memory is worked on by tiles, with the same results."""

import numpy as np
import pytest

from robustnmf import RobustNMF, engines
from robustnmf.algorithm import stage
from robustnmf.data.lazy_results import LazyMatrix
from robustnmf.engines import NumPyEngine, TileEngine, engine_for
from robustnmf.errors import ChangedDataError
from robustnmf.formats.device_rows import DeviceRows


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(engines, "LARGE_OF_DENSE", 1)
    monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 2000)
    monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 10)


def data(kind):
    rng = np.random.default_rng(0)
    X = rng.gamma(1.0, size=(240, 4)) @ rng.gamma(1.0, size=(4, 40)) * rng.uniform(0.95, 1.05, (240, 40))
    X[rng.random(X.shape) < 0.05] = 50
    given = {}
    if kind == "gaps":
        X[rng.random(X.shape) < 0.1] = np.nan
    if kind == "weights":
        given["weights"] = rng.uniform(0.2, 1, X.shape).astype(np.float32)
    if kind == "uncertainties":
        given["uncertainties"] = rng.uniform(0.05, 0.1, X.shape)
    if kind == "units":
        X *= np.logspace(0, 3, 40)
    if kind == "integers":
        X = (100 * X).astype(np.int32)
    if kind == "by columns":
        X = np.asfortranarray(X)
    if kind == "single":
        X = X.astype(np.float32)
    return X, given


KINDS = ["plain", "gaps", "weights", "uncertainties", "units", "integers", "by columns", "single"]


def fitted(X, given, **changes):
    model = RobustNMF(4, random_state=0, **changes)
    codes = model.fit_transform(X, **given)
    new = {name: values[:50] for name, values in given.items()}
    results = [getattr(model, name)(X[:50], **new) for name in ("transform", "clean", "outlier_mask", "score_samples")]
    return model, [codes, model.components_, model.outliers_, np.asarray(model.weights_), model.objective_, *results]


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_give_the_same_results(kind, everything_is_large, monkeypatch):
    X, given = data(kind)
    model, by_tiles = fitted(X, given)
    assert isinstance(model.weights_, LazyMatrix)
    monkeypatch.setattr(engines, "LARGE_OF_DENSE", 2**23)
    other, whole = fitted(X, given)
    assert isinstance(other.weights_, np.ndarray)
    for ours, theirs in zip(by_tiles, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
@pytest.mark.parametrize("changes", [{"weight_by_noise": True}, {"sample_scaling": "total"}, {"method": "l2"}], ids=str)
def test_tiles_give_the_same_results_of_other_models(changes, everything_is_large, monkeypatch):
    X, given = data("plain")
    _, by_tiles = fitted(X, given, **changes)
    monkeypatch.setattr(engines, "LARGE_OF_DENSE", 2**23)
    for ours, theirs in zip(by_tiles, fitted(X, given, **changes)[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
def test_the_engine_numpy_takes_memory_and_gives_the_same(everything_is_large):
    X, given = data("plain")
    _, by_tiles = fitted(X, given)
    model, whole = fitted(X, given, engine="numpy")
    assert isinstance(model.weights_, np.ndarray)
    for ours, theirs in zip(by_tiles, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_tiles_are_not_those_of_data_that_is_small_or_fitted_by_other_algorithms():
    assert type(engine_for(np.ones((10, 10)), by_tiles=True)) is NumPyEngine
    large = np.broadcast_to(np.float32(1), (5000, 2000))
    assert type(engine_for(large)) is NumPyEngine
    assert type(engine_for(large, by_tiles=True)) is TileEngine


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "changes", [{"preset": "published", "max_iter": 2}, {"n_init": 2}, {"init": "random"}], ids=str
)
def test_tiles_leave_no_configuration_out(changes, everything_is_large):
    X, _ = data("plain")
    model = RobustNMF(4, random_state=0, **changes).fit(X)
    assert np.isfinite(model.components_).all()


def test_tile_engine_gathers_features_in_parts():
    X = np.arange(60.0).reshape(20, 3)
    engine = TileEngine(n_threads=1)
    engine.block_entries = 12
    blocks = engine.split(DeviceRows(X))
    assert len(blocks) > 1
    found = engine.map_features(lambda Y, M, *, xp: Y.max(axis=1), blocks, None)
    np.testing.assert_array_equal(found, X.max(axis=0))
    with engine.running():
        target = np.empty_like(X)
        engine.fill((engine.split(target, like=blocks),), lambda Y, *, xp: (2 * Y,), blocks)
    np.testing.assert_array_equal(target, 2 * X)


def test_refused_weights_of_large_data_are_named(everything_is_large):
    X, _ = data("plain")
    with pytest.raises(ValueError, match="weights must have the shape of X"):
        RobustNMF(4).fit(X, weights=np.ones(40))


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
@pytest.mark.parametrize("kind", ["plain", "gaps", "integers", "by columns", "weights"])
def test_lazy_weights_of_data_that_was_changed_since_are_refused(kind, everything_is_large):
    X, given = data(kind)
    model = RobustNMF(4, random_state=0).fit(X, **given)
    before = np.asarray(model.weights_)
    np.testing.assert_array_equal(model.weights_[7:9], before[7:9])
    changed = given.get("weights", X)
    changed[8, 3] = 77
    with pytest.raises(ChangedDataError, match="changed since the fit"):
        model.weights_[7:9]
