"""Fits that reject entries of few features: whether they predict the others, or only follow them."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.decomposition import NMF

from robustnmf import RobustNMF, TruncatedCauchyNMF, load
from robustnmf.algorithm import judging, overfitting
from robustnmf.algorithm.least_squares import Comparison
from robustnmf.algorithm.overfitting import leave_one_out_residuals

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def table(seed=0, shape=(200, 6), rank=2):
    """Return data of low rank with 10 % noise."""
    rng = np.random.default_rng(seed)
    clean = rng.gamma(1.0, size=(shape[0], rank)) @ rng.gamma(1.0, size=(rank, shape[1]))
    return rng, clean, clean * np.exp(0.1 * rng.standard_normal(shape))


def error_of(model, X, clean):
    return np.linalg.norm(clean - model.fit_transform(X) @ model.components_)


@pytest.fixture
def damages(monkeypatch):
    """Return the damages that fits find."""
    found, measure = [], overfitting.unseen_damage
    monkeypatch.setattr(judging, "unseen_damage", lambda *given: [found.append(measure(*given)), found[-1]][1])
    return found


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_iris_is_fitted_as_by_plain_nmf(engine):
    X = load_iris().data
    plain = NMF(2, init="nndsvda", tol=1e-6, max_iter=5000)
    expected = np.linalg.norm(X - plain.fit_transform(X) @ plain.components_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = TruncatedCauchyNMF(2, random_state=0, engine=engine)
        assert error_of(model, X, X) <= 1.01 * expected
    assert model.comparison_.takes_all and model.comparison_.unseen_damage < 2
    assert not model.outliers_.any()


def test_gross_errors_of_few_features_stay_rejected(damages):
    rng, clean, X = table(shape=(200, 8))
    wrong = rng.random(X.shape) < 0.1
    X[wrong] = rng.uniform(3, 10, wrong.sum()) * X.max()
    model = RobustNMF(2, random_state=0)
    error = error_of(model, X, clean)
    assert damages and min(damages) > 5
    assert model.outliers_[wrong].mean() > 0.97
    assert error < 0.1 * error_of(RobustNMF(2, method="l2", random_state=0), X, clean)


def test_residuals_are_those_of_least_squares_without_the_entry():
    """The codes of samples; an entry has hardly a part in the components if there are many samples."""
    rng, _, X = table(shape=(3000, 8))
    W, kept = rng.gamma(1.0, size=(8, 2)), rng.random((3000, 8)) < 0.9
    codes = np.array([np.linalg.lstsq(W[some], x[some], rcond=None)[0] for x, some in zip(X, kept, strict=True)])
    positive = (codes > 0).all(axis=1) & (kept.sum(axis=1) > 4)
    found = leave_one_out_residuals(X, kept, np.maximum(codes, 0), W, 1)
    for i in np.flatnonzero(positive)[:20]:
        for j in np.flatnonzero(kept[i]):
            rest = kept[i] & (np.arange(8) != j)
            expected = abs(X[i, j] - W[j] @ np.linalg.lstsq(W[rest], X[i, rest], rcond=None)[0])
            if found[i, j] < 5:  # what depends on the entry for the most part is predicted by the mean
                assert found[i, j] == pytest.approx(expected, rel=0.05, abs=0.01) or expected > 5


def test_entries_that_determine_their_prediction_are_predicted_by_the_mean():
    W, X = np.eye(3), np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 5.0]])
    found = leave_one_out_residuals(X, np.ones((2, 3), dtype=bool), X, W, 1)
    np.testing.assert_allclose(found, np.abs(X - X.mean(axis=0)))


def test_some_samples_tell_what_all_do(damages, monkeypatch):
    rng, _, X = table(shape=(2000, 8))
    X[rng.random(X.shape) < 0.05] = 10 * X.max()
    RobustNMF(2, random_state=0).fit(X)
    monkeypatch.setattr(overfitting, "MOST_PRODUCTS", 500 * 8 * 2**2)
    RobustNMF(2, random_state=0).fit(X)
    assert damages[1] != damages[0] and damages[1] == pytest.approx(damages[0], rel=0.2)


def test_entries_of_unequal_weight_and_many_features_are_judged_by_residuals_alone(damages):
    rng, _, X = table()
    X[rng.random(X.shape) < 0.05] = 10 * X.max()
    RobustNMF(2, random_state=0).fit(X, weights=rng.uniform(0.5, 1, X.shape))
    assert damages == [np.inf]
    wide = np.hstack([X] * 20)
    assert RobustNMF(60, random_state=0).fit(wide).comparison_.unseen_damage == np.inf
    assert len(damages) == 1


def test_much_that_is_rejected_may_be_damaged_more():
    robust = Comparison(1.5, 9.0, 0.9, 0.9, rejected=0.1, n_samples=100, residual=0.1, damage_as_judged=9.0)
    assert not robust.favours_all(100, 3)
    assert robust._replace(unseen_damage=1.1).favours_all(100, 3)
    assert not robust._replace(unseen_damage=1.9).favours_all(100, 3)
    assert robust._replace(unseen_damage=1.9, rejected=0.2).favours_all(100, 3)
    assert not robust._replace(unseen_damage=1.1, n_samples=2.0).favours_all(100, 3)


def test_the_damage_is_kept_in_files(tmp_path):
    model = TruncatedCauchyNMF(2, random_state=0).fit(load_iris().data)
    model.save(tmp_path / "iris.rnmf")
    assert load(tmp_path / "iris.rnmf").comparison_ == model.comparison_
