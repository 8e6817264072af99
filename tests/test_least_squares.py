"""The end of the default where nothing is wrong: least squares on all entries, if it explains what was rejected."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.decomposition import NMF

from robustnmf import TruncatedCauchyNMF, load
from robustnmf.algorithm.least_squares import Comparison, LeastSquares
from robustnmf.engines import NumPyEngine
from robustnmf.errors import DataQualityWarning
from robustnmf.methods import resolve
from robustnmf.model.losses import Squared

WINE = load_wine().data


def fitted(X, **options):
    return TruncatedCauchyNMF(3, random_state=0, **options).fit(X)


def error(model, X):
    return np.linalg.norm(X - model.transform(X) @ model.components_)


@pytest.fixture(scope="module")
def wine():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataQualityWarning)
        return fitted(WINE)


def test_a_clean_table_in_different_units_is_fitted_as_by_plain_nmf(wine):
    plain = NMF(3, init="nndsvda", max_iter=2000, tol=1e-6)
    reference = np.linalg.norm(WINE - plain.fit_transform(WINE) @ plain.components_)
    assert error(wine, WINE) < 1.05 * reference
    assert not wine.outliers_.any()
    np.testing.assert_array_equal(wine.weights_, 1)
    assert isinstance(wine._basis.weighting.loss, Squared)
    assert wine.converged_


def test_codes_of_the_training_data_are_those_of_transform(wine):
    codes = TruncatedCauchyNMF(3, random_state=0).fit_transform(WINE)
    np.testing.assert_array_equal(wine.transform(WINE), codes)


@pytest.mark.parametrize("feature", [7, 10])
def test_what_is_unlike_the_training_data_is_rejected_later(wine, feature):
    X = WINE[:20].copy()
    X[:, feature] *= 20
    found = wine.outlier_mask(X)
    assert found[:, feature].all()
    assert not np.delete(found, feature, axis=1).any()
    np.testing.assert_allclose((wine.transform(X) @ wine.components_)[:, -1], WINE[:20, -1], rtol=0.01)


def test_a_saved_model_encodes_alike(wine, tmp_path):
    wine.save(tmp_path / "wine.robustnmf")
    np.testing.assert_array_equal(load(tmp_path / "wine.robustnmf").transform(WINE), wine.transform(WINE))


def test_score_samples_has_the_loss_of_the_fit(wine):
    residuals = WINE - wine.transform(WINE) @ wine.components_
    np.testing.assert_allclose(wine.score_samples(WINE), -(residuals**2).mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize("engine", ["stream", "torch", "dask"])
def test_every_engine_decides_alike(wine, engine, tmp_path):
    if engine != "stream":
        pytest.importorskip("torch" if engine == "torch" else "dask.array")
    X = WINE
    if engine == "stream":
        np.save(tmp_path / "wine.npy", WINE)
        X = np.load(tmp_path / "wine.npy", mmap_mode="r")
    elif engine == "dask":
        import dask.array as da

        X = da.from_array(WINE, chunks=(100, -1))
    other = fitted(X, engine=engine)
    np.testing.assert_allclose(other.components_, wine.components_, rtol=1e-4, atol=1e-6 * wine.components_.max())


def test_gross_errors_keep_the_robust_fit():
    rng = np.random.default_rng(0)
    X = rng.gamma(1.0, 1.0, (120, 3)) @ rng.gamma(1.0, 1.0, (3, 40)) * (1 + 0.05 * rng.standard_normal((120, 40)))
    wrong = rng.random(X.shape) < 0.1
    spoiled = np.where(wrong, 20 * X.max(), np.maximum(X, 0))
    model = fitted(spoiled)
    assert not isinstance(model._basis.weighting.loss, Squared)
    assert (model.outliers_ & wrong).sum() > 0.99 * wrong.sum()


def test_a_doubtful_fit_says_so():
    # A pattern that components can explain, in a fifth of the features and half of the samples, beside small noise.
    rng = np.random.default_rng(0)
    X = 1 + 0.5 * rng.random((200, 2)) @ rng.random((2, 50)) + 0.005 * rng.standard_normal((200, 50))
    X[:90, :10] = 60
    with pytest.warns(DataQualityWarning, match="least squares on all entries leaves only"):
        fitted(X)


@pytest.mark.parametrize(
    ("gain", "damage", "rejected", "expected"),
    [
        (0.01, 2.1, 0.15, True),  # wine
        (0.7, 1.2, 0.03, True),
        (0.95, 1.0, 0.1, False),  # nothing to gain
        (1.3, 30.0, 0.2, False),  # spikes
        (0.3, 3.5, 0.26, False),  # white blocks on faces
        (0.05, 6.0, 0.08, False),  # features stuck at one value
        (0.7, 200.0, 0.77, True),  # more than half of the data cannot be wrong
    ],
)
def test_gain_and_damage_decide(gain, damage, rejected, expected):
    assert Comparison(gain, damage, rejected).favours_squares(overfit=1.0) is expected


def test_what_follows_the_noise_has_to_gain_more():
    comparison = Comparison(0.8, 1.0, 0.0)
    assert comparison.favours_squares(overfit=1.0)
    assert not comparison.favours_squares(overfit=0.8)


def test_sweeps_never_raise_the_sum_of_squares():
    rng = np.random.default_rng(0)
    X, engine = rng.random((30, 20)), NumPyEngine()
    method = resolve("truncated-cauchy", "default").method
    squares = LeastSquares([X], None, method, engine, 1e-4)
    factors, values = (rng.random((20, 3)), [rng.random((30, 3))]), []
    for _ in range(6):
        values.append(squares.squares(*factors))
        factors = squares.improved(*factors, 5)
    assert (np.diff(values) <= 0).all()
    residuals = X - factors[1][0] @ factors[0].T
    assert squares.squares(*factors) == pytest.approx((residuals**2).sum())
