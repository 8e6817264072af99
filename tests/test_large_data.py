"""What is done faster for large data gives what is done for other data; sizes from which on it is done are lowered."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import nnls

from robustnmf import RobustNMF, engines
from robustnmf.algorithm import encoding, fit, halfquadratic, initializers, stage
from robustnmf.algorithm.encoding import Judge, without
from robustnmf.engines import NumPyEngine
from robustnmf.kernels.numba import functions
from robustnmf.kernels.numba.functions import least_squares, without_wrong
from robustnmf.model.noise import NoiseModel

RANK = 4


def data(noise=0.05, outliers=0.05, shape=(300, 90), seed=0):
    """Return data of low rank with proportional noise and gross errors."""
    rng = np.random.default_rng(seed)
    clean = rng.gamma(1.0, size=(shape[0], RANK)) @ rng.gamma(1.0, size=(RANK, shape[1]))
    noisy = np.maximum(clean * (1 + noise * rng.standard_normal(shape)), 0)
    return np.where(rng.random(shape) < outliers, 10 * clean.max() * rng.random(shape), noisy)


@pytest.fixture
def single(monkeypatch):
    """All data in double precision is large enough to be fitted in single precision; return the types of fits."""
    monkeypatch.setattr(fit, "SINGLE_ENTRIES", 0)
    monkeypatch.setattr(fit, "SINGLE_PRODUCTS", 0)
    types, fit_in = [], fit._fit_in
    monkeypatch.setattr(fit, "_fit_in", lambda working, *rest: [types.append(working.name), fit_in(working, *rest)][1])
    return types


def test_factors_in_single_precision_are_those_in_double_precision(single):
    X = data()
    quick = RobustNMF(RANK, random_state=0)
    codes = quick.fit_transform(X)
    assert single == ["float32"]
    assert codes.dtype == quick.components_.dtype == np.float64
    np.testing.assert_allclose(quick.transform(X), codes, rtol=1e-9, atol=1e-9 * codes.max())
    single.clear()
    usual = RobustNMF(RANK, random_state=0, checkpoint=None, callback=lambda iteration: False)
    fit.SINGLE_ENTRIES = X.size + 1
    usual.fit(X)
    assert single == ["float64"]
    np.testing.assert_allclose(quick.components_, usual.components_, atol=2e-3)
    assert np.mean(quick.outliers_ != usual.outliers_) < 1e-3


def test_data_with_hardly_any_noise_is_fitted_in_double_precision(single):
    X = data(noise=0.0, outliers=0.0)
    model = RobustNMF(RANK, random_state=0).fit(X)
    assert single == ["float32", "float64"]
    fit.SINGLE_ENTRIES = X.size + 1
    np.testing.assert_array_equal(model.components_, RobustNMF(RANK, random_state=0).fit(X).components_)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_rounding_of_large_predictions_is_not_taken_for_noise(size):
    rng = np.random.default_rng(0)
    codes, W = size * rng.random((300, RANK)), rng.random((90, RANK))
    shape, typical = (300, 90), max(1.0, float(np.sqrt(np.mean((codes @ W.T) ** 2))))
    for residual, is_far in ((0.9e-3, False), (1.1e-3, True)):
        squares = (residual * typical) ** 2 * codes.shape[0] * W.shape[0]
        fitted = SimpleNamespace(basis=SimpleNamespace(W=W), codes=codes, inlier_squares=squares)
        assert fit._is_far_from_rounding(fitted, shape, NumPyEngine()) == is_far


def test_few_entries_with_weight_do_not_hide_how_small_residuals_are(single):
    X = data(noise=1e-4, outliers=0.0)
    weights = np.full(X.shape, 0.01)
    weights[0] = 1.0
    RobustNMF(RANK, random_state=0).fit(X, weights=weights)
    assert single == ["float32", "float64"]


def test_known_components_are_not_rounded(single):
    X = data()
    known = np.random.default_rng(1).random((1, X.shape[1])) + 1e-9
    model = RobustNMF(RANK, random_state=0, fixed_components=known).fit(X)
    assert single == ["float64"]
    np.testing.assert_array_equal(model.components_[0], known[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_least_squares_of_large_data_knows_its_objective(monkeypatch, dtype):
    X = data(outliers=0.0).astype(dtype)
    usual = RobustNMF(RANK, method="l2", random_state=0).fit(X)
    monkeypatch.setattr(halfquadratic, "LARGE_SQUARES", 0)
    moves = []
    monkeypatch.setattr(halfquadratic.LargeSquares, "_moved", _noting(halfquadratic.LargeSquares._moved, moves))
    quick = RobustNMF(RANK, method="l2", random_state=0).fit(X)
    assert moves
    objective = quick.history_["objective"]
    assert (np.diff(objective) <= 1e-5 * objective[:-1]).all()
    # The objective is that of codes where the alternation ended; those of the fit are solved for, and a little better.
    left = np.sum((X - quick.transform(X) @ quick.components_).astype(np.float64) ** 2)
    assert abs(objective[-1] / (left / 2) - 1) < 2e-3
    assert quick.reconstruction_err_ <= 1.002 * usual.reconstruction_err_


def _noting(function, calls):
    def call(*arguments):
        calls.append(True)
        return function(*arguments)

    return call


def test_sweeps_begin_at_codes_of_some_features(monkeypatch):
    X = data(shape=(300, 700))
    model = RobustNMF(RANK, random_state=0).fit(X)
    judge = Judge(model._basis, NumPyEngine(n_threads=1))
    Y = X / model._unit
    codes = judge.start_of_sweeps(Y, 0.0)
    found = encoding.encode(Y, None, basis=model._basis, engine=judge.engine, max_iter=200, tol=1e-3, xp=np)
    assert np.abs(codes - found).max() < 0.1 * found.max()
    assert np.median(np.abs(codes - found)) < 0.01 * found.max()


def test_wrong_entries_are_replaced_as_by_the_reference():
    rng = np.random.default_rng(0)
    Y, wrong = rng.random((30, 20)), rng.random((30, 20)) < 0.2
    ones = np.ones(20)
    model = NoiseModel(ones, ones, ones, rng.random(20), 0.1 * rng.random(20), 0 * ones, 0.5, 5.0)
    for found, expected in zip(
        without_wrong(Y, wrong, model.centers, model.anchors), without(wrong, Y, None, None, model, np), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_codes_of_many_components_are_those_of_scipy(monkeypatch):
    rng = np.random.default_rng(0)
    A, Y, Q = rng.gamma(0.5, size=(40, 12)), rng.gamma(0.5, size=(25, 40)), rng.random((25, 40))
    A[:, 3] = A[:, 2]  # a singular Gram matrix
    for basis in (A, np.delete(A, 3, axis=1)):
        monkeypatch.setattr(functions, "PIVOTED_COORDINATES", 1)
        start = np.zeros((25, basis.shape[1]))
        found = least_squares(Y, Q, start, basis, np.zeros(basis.shape[1]), 0.0, 1000, 1e-12)
        for y, q, x in zip(Y, np.sqrt(Q), found, strict=True):
            expected = nnls(q[:, None] * basis, q * y)[0]
            np.testing.assert_allclose(basis @ x, basis @ expected, atol=1e-7)


def test_medians_of_features_do_not_depend_on_how_many_are_found_at_a_time(monkeypatch):
    X, rng = data(), np.random.default_rng
    engine = NumPyEngine(n_threads=2)
    expected = initializers.MedianStart().factors([X], None, RANK, rng(0), engine)
    monkeypatch.setattr(initializers, "_COPIED_ENTRIES", 10 * len(X))
    with engine.running():
        found = initializers.MedianStart().factors([X], None, RANK, rng(0), engine)
    np.testing.assert_array_equal(found[0], expected[0])


def test_level_of_large_data_is_that_of_some_entries(monkeypatch):
    X = data(shape=(2000, 90))
    exact = initializers._level([X], None, NumPyEngine(n_threads=1))
    monkeypatch.setattr(initializers, "_LEVEL_OF_ALL", 0)
    monkeypatch.setattr(initializers, "_LEVEL_ENTRIES", 2**14)
    assert initializers._level([X], None, NumPyEngine(n_threads=1)) == pytest.approx(exact, rel=0.05)


def test_tiles_start_with_the_samples_that_components_are_learnt_from(monkeypatch):
    monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 2**13)
    monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 10)
    X, rows = data(shape=(900, 60)), []
    factors = initializers.MedianStart.factors

    def noted(self, V, *rest):
        rows.append(sum(map(len, V)))
        return factors(self, V, *rest)

    monkeypatch.setattr(initializers.MedianStart, "factors", noted)
    monkeypatch.setattr(engines, "LARGE_OF_DENSE", 1)
    tiles = RobustNMF(RANK, random_state=0).fit(X)
    assert max(rows) < 300
    monkeypatch.setattr(engines, "LARGE_OF_DENSE", 2**23)
    whole = RobustNMF(RANK, random_state=0).fit(X)
    assert tiles.reconstruction_err_ == pytest.approx(whole.reconstruction_err_, rel=0.01)
    assert np.mean(tiles.outliers_ != whole.outliers_) < 2e-3


def test_warm_start_of_data_of_which_some_samples_are_learnt_from(monkeypatch):
    monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 2**12)
    monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 10)
    X = data()
    model = RobustNMF(RANK, random_state=0, warm_start=True).fit(X)
    components = model.components_
    again = model.fit(X).components_
    assert again is not components
    np.testing.assert_allclose(again, components, atol=0.05)


def test_pickle_leaves_out_what_is_computed_from_the_data():
    X = data()
    model = RobustNMF(RANK, random_state=0, engine="stream").fit(X)
    assert copy.copy(model).weights_ is model.weights_
    stored = pickle.dumps(model)
    assert len(stored) < X.nbytes / 2
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    with pytest.raises(AttributeError, match="pickles do if the data is large"):
        _ = again.weights_
