"""Finite or refused: data, penalties and uncertainties at the ends of the range of numbers, and exact predictions."""

import numpy as np
import pytest

from cleaned_data import assert_cleaned
from robustnmf import RobustNMF, load
from robustnmf.engines import NumPyEngine
from robustnmf.errors import OutOfRangeError
from robustnmf.kernels.interface import NO_KERNELS

# Warnings of NumPy are failures; those of the package are documented.
pytestmark = pytest.mark.filterwarnings(
    "error",
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::robustnmf.errors.DataQualityWarning",
    "ignore:.*have no observed entry:UserWarning",
)
rng = np.random.default_rng(0)
A = rng.random((12, 9))
WIDE = (rng.random((14, 2)) @ rng.random((2, 7)) * 10.0 ** rng.uniform(-12, 12, (14, 1))).astype(np.float32)


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def one_positive(n, m):
    X = np.zeros((n, m))
    X[n // 2, m // 3] = 3.0
    return X


def mostly(share, value, shape=(60, 40)):
    """Return data of which a share is zero, or missing."""
    X = np.random.default_rng(1).random(shape)
    X[np.random.default_rng(2).random(shape) < share] = value
    return X


def check_fit(X, uncertainties=None, **options):
    options = {"n_components": 2, "random_state": 0} | options
    model = RobustNMF(**options)
    codes = model.fit_transform(X, uncertainties=uncertainties)
    for result in (codes, model.components_, model.weights_, model.scale_, model.reconstruction_err_):
        assert np.isfinite(result).all()
        assert np.min(result) >= 0
    assert np.isfinite(model.objective_)
    assert not np.isnan(model.thresholds_).any()
    assert_cleaned(model.clean(X, uncertainties=uncertainties), codes, model.components_)
    return model


# --- Entries that are predicted exactly -------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "X",
    [np.ones((8, 6)), one_positive(300, 200), mostly(0.97, np.nan), mostly(0.999, 0.0, (100, 80)), np.eye(7)],
    ids=["constant", "one positive entry", "97 % missing", "99.9 % zeros", "identity"],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_data_that_is_predicted_exactly_is_fitted(X, dtype):
    check_fit(X.astype(dtype))


# --- Penalties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1e-318, 1e-300, 1e-43, 1.0, 1e43, 1e300])
@pytest.mark.parametrize("alpha", [slow(1e-12), 1e-3, slow(1e12)])
@pytest.mark.parametrize("l1_ratio", [slow(0.0), 0.5, slow(1.0)])
def test_penalties_of_any_size_for_data_at_any_level(level, alpha, l1_ratio):
    check_fit(A * level, alpha_W=alpha, l1_ratio=l1_ratio, max_iter=20)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha_W": 0.7, "l1_ratio": 0.5, "method": "rnmf-l1", "solver": "hals"},
        {"alpha_W": 4e3, "l1_ratio": 0.5, "solver": "nesterov", "schedule": "plain"},
        {"alpha_W": 1e9, "engine": "torch", "device": "cpu"},
    ],
    ids=["a sparse error", "nesterov", "torch"],
)
def test_large_penalties_of_tiny_data_in_single_precision(options):
    if options.get("engine") == "torch":
        pytest.importorskip("torch")
    check_fit((A * 1e-43).astype(np.float32), max_iter=20, **options)


def test_a_penalty_on_the_components_alone_does_not_drive_the_codes_to_infinity():
    check_fit(one_positive(11, 18), n_components=1, method="cim", l1_ratio=1.0, alpha_H=1e-3, max_iter=1)


def test_codes_beyond_the_square_root_of_the_largest_number_have_an_objective():
    check_fit(WIDE, scale=5e-8)


# --- Uncertainties ----------------------------------------------------------------------------------------------------


def test_uncertainties_of_very_different_size_are_fitted():
    check_fit(A, uncertainties=10.0 ** rng.uniform(-140, 140, A.shape))


def test_an_uncertainty_far_beyond_all_others_is_that_of_an_entry_without_influence():
    """It is limited, so that no square leaves the range of numbers, and still counts for nothing."""
    uncertainties = np.full(A.shape, 0.1)
    uncertainties[3, 4] = 1e100
    wild, tame = A.copy(), A.copy()
    wild[3, 4], tame[3, 4] = 100.0, 1.0
    one, other = (check_fit(X, uncertainties=uncertainties, method="l2") for X in (wild, tame))
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-6)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("engine", ["auto", "stream"])
@pytest.mark.parametrize(("level", "noise"), [(1.0, 1e-60), (1.0, 1e60), (1e300, 1e-100), (1e-30, 1e-90)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uncertainties_far_from_the_level_of_the_data_are_fitted_or_refused(level, noise, dtype, engine, tmp_path):
    if dtype == np.float32 and level > 1e38:
        pytest.skip("no number of single precision")
    X = (A * level).astype(dtype)
    if engine == "stream":
        np.save(tmp_path / "x.npy", X)
        X = np.load(tmp_path / "x.npy", mmap_mode="r")
    try:
        RobustNMF(2, random_state=0, engine=engine).fit(X, uncertainties=np.full(A.shape, noise))
    except ValueError as error:
        assert "uncertaint" in str(error)


def test_weights_that_single_precision_cannot_hold_are_not_those_of_missing_entries():
    X, weights = A.astype(np.float32), np.ones(A.shape)
    weights[2, 3] = 1e-60
    model = RobustNMF(2, method="l2", random_state=0).fit(X, weights=weights)
    assert model.clean(X, weights=weights)[2, 3] == X[2, 3]
    X[2, 3] = -1.0
    with pytest.raises(ValueError, match="Negative values"):
        RobustNMF(2).fit(X, weights=weights)


# --- Beyond the range of numbers --------------------------------------------------------------------------------------


def test_codes_that_no_number_can_hold_are_refused_and_the_estimator_is_left_alone():
    model = RobustNMF(1, random_state=0).fit(A)
    before = dict(vars(model))
    model.set_params(fixed_components=np.full((1, 9), 1e-20))
    with pytest.raises(OutOfRangeError, match=r"codes would not be finite.*Scale X to about 1"):
        model.fit_transform(np.ones((12, 9)) * 1e300)
    assert all(vars(model)[name] is value for name, value in before.items() if name != "fixed_components")
    assert np.isfinite(model.set_params(fixed_components=None).transform(A)).all()


def test_new_samples_that_no_number_can_encode_are_refused():
    model = RobustNMF(1, fixed_components=np.full((1, 9), 1e-250), random_state=0).fit(np.ones((12, 9)))
    with pytest.raises(OutOfRangeError, match="codes"):
        model.transform(np.full((2, 9), 1e300))


def test_data_of_every_magnitude_in_single_precision_is_fitted_or_refused():
    for seed in range(8):
        draw = np.random.default_rng(seed)
        X = (10.0 ** draw.uniform(-37, 37, (15, 21))).astype(np.float32)
        try:
            check_fit(X, n_components=3, scale=5e4, schedule="staged", max_iter=30)
        except OutOfRangeError:
            continue


def test_the_error_norm_of_the_largest_data_is_limited_to_the_largest_number():
    X = np.full((40, 30), 1.0) * np.finfo(np.float64).max * rng.random((40, 30))
    assert check_fit(X, method="l2").reconstruction_err_ > 1e307


@pytest.mark.parametrize("level", [1e20, 1e-20])
def test_known_components_far_from_the_level_of_the_data_are_used_or_refused(level):
    X = A.astype(np.float32)
    for method, solver in (("nenmf", "nesterov"), ("l2", "hals"), ("truncated-cauchy", "auto")):
        known = np.full((1, 9), level)
        try:
            model = RobustNMF(2, method=method, solver=solver, fixed_components=known, random_state=0).fit(X)
        except OutOfRangeError:
            continue
        assert np.isfinite(model.transform(X)).all()


# --- Components that die out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["numpy", "reference", slow("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", ["l2", "huber"])
def test_components_that_nothing_is_left_for_do_not_take_the_others_with_them(method, dtype, engine, monkeypatch):
    """Their codes fall to 1e-100 and below. To divide by the squares of those gives infinity, then NaN, then zero."""
    options = {}
    if engine == "reference":
        monkeypatch.setattr(NumPyEngine, "kernels", NO_KERNELS)
    elif engine != "numpy":
        pytest.importorskip("torch")
        options = {"engine": "torch", "device": engine}
    X = one_positive(24, 27).astype(dtype)
    for seed in range(3):
        model = RobustNMF(10, method=method, scale=1.0, max_iter=60, tol=0.0, random_state=seed, **options).fit(X)
        history = model.history_["objective"]
        assert history[-1] <= 1e-6 * history[0]
        assert model.components_.any()


# --- Found on the way -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(700, 400), (2000, 132)])
def test_a_window_of_many_entries_is_learnt_from(shape):
    """Codes are cut into the blocks of the data, whatever their own size."""
    X = rng.random((shape[0], 2)) @ rng.random((2, shape[1]))
    model = RobustNMF(2, random_state=0, max_iter=10).partial_fit(X).partial_fit(X[:500])
    assert np.linalg.norm(model.inverse_transform(model.transform(X)) - X) < 0.05 * np.linalg.norm(X)


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_a_loaded_model_of_one_component_has_the_same_codes(engine, tmp_path):
    pytest.importorskip("torch")
    for seed in range(10):
        X = np.random.default_rng(seed).random((40, 31))
        model = RobustNMF(1, engine=engine, device="cpu", random_state=0, max_iter=9).fit(X)
        model.save(tmp_path / str(seed))
        np.testing.assert_array_equal(load(tmp_path / str(seed)).transform(X), model.transform(X))


@pytest.mark.parametrize("solver", ["smoothing", "weighted-median"])
def test_solvers_of_the_absolute_loss_lower_the_loss_and_not_only_the_norm(solver):
    """The tip of the loss is rounded: near a perfect fit the norm may fall while the loss rises."""
    for seed in range(60):
        draw = np.random.default_rng(seed)
        X = draw.integers(0, 255, (3, 3)).astype(float)
        model = RobustNMF(1, method="mahnmf", solver=solver, init="median", scale=4.2, max_iter=40, tol=1e-6).fit(X)
        history = model.history_["objective"]
        assert (np.diff(history) <= 1e-9 * np.abs(history[:-1])).all()
