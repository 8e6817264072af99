"""Uncertainties of entries, and the number of components found by the data."""

import numpy as np
import pytest

from robustnmf import RobustNMF, TruncatedCauchyNMF, load
from robustnmf.datasets import load_baltimore
from robustnmf.metrics import relative_error

RANK = 3


def unequal_features(seed=0):
    """Data whose features differ by six decades, with uncertainties that differ within each, and a few outliers."""
    rng = np.random.default_rng(seed)
    units = np.logspace(-3, 3, 20)
    truth = (rng.random((200, RANK)) + 0.1) @ (rng.random((RANK, 20)) * units)
    uncertainties = 0.02 * units * np.exp(0.5 * rng.normal(size=truth.shape))
    X = np.maximum(truth + uncertainties * rng.normal(size=truth.shape), 0)
    outliers = rng.random(X.shape) < 0.05
    X[outliers] *= 20
    return X, truth, uncertainties, outliers


def misfit(model, X, truth, uncertainties):
    return relative_error(truth / uncertainties, (model.transform(X) @ model.components_) / uncertainties)


def test_small_features_count_when_their_uncertainties_are_small():
    X, truth, uncertainties, outliers = unequal_features()
    informed = TruncatedCauchyNMF(RANK, random_state=0).fit(X, uncertainties=uncertainties)
    assert misfit(informed, X, truth, uncertainties) < 0.02
    assert misfit(TruncatedCauchyNMF(RANK, random_state=0).fit(X), X, truth, uncertainties) > 0.05
    assert (informed.outliers_ & outliers).sum() > 0.99 * outliers.sum()


def test_one_uncertainty_per_feature_is_a_change_of_units():
    X, *_ = unequal_features()
    noise = np.logspace(-3, 3, 20)
    model = TruncatedCauchyNMF(RANK, random_state=0).fit(X, uncertainties=np.broadcast_to(noise, X.shape))
    scaled = TruncatedCauchyNMF(RANK, random_state=0).fit(X / noise)
    np.testing.assert_allclose(model.transform(X) @ model.components_ / noise,
                               scaled.transform(X / noise) @ scaled.components_, rtol=5e-3)  # fmt: skip
    np.testing.assert_array_equal(model.outliers_, scaled.outliers_)
    np.testing.assert_allclose(model.thresholds_ / noise, scaled.thresholds_, rtol=1e-9)
    assert model.scale_ == pytest.approx(scaled.scale_)


def test_least_squares_minimise_the_sum_of_squared_ratios():
    """With the squared loss, uncertainties are weights 1 / u**2, as in positive matrix factorisation."""
    X, _, uncertainties, _ = unequal_features()
    options = {"method": "l2", "random_state": 0, "max_iter": 2000, "tol": 1e-9}
    model = RobustNMF(RANK, **options).fit(X, uncertainties=uncertainties)
    weighted = RobustNMF(RANK, **options).fit(X / X.mean(axis=0), weights=(X.mean(axis=0) / uncertainties) ** 2)
    ours = model.transform(X, uncertainties=uncertainties) @ model.components_
    codes = weighted.transform(X / X.mean(axis=0), weights=(X.mean(axis=0) / uncertainties) ** 2)
    theirs = codes @ weighted.components_ * X.mean(axis=0)
    q = [np.sum(((X - product) / uncertainties) ** 2) for product in (ours, theirs)]
    assert q[0] == pytest.approx(q[1], rel=0.01)


def test_new_samples_may_have_uncertainties_of_their_own():
    X, _, uncertainties, _ = unequal_features()
    model = TruncatedCauchyNMF(RANK, random_state=0).fit(X, uncertainties=uncertainties)
    np.testing.assert_array_equal(model.outlier_mask(X, uncertainties=uncertainties), model.outliers_)
    useless = uncertainties.copy()
    useless[:, :3] *= 1e6
    spoiled = X.copy()
    spoiled[:, :3] *= 1.5
    codes = model.transform(X, uncertainties=useless)
    np.testing.assert_allclose(model.transform(spoiled, uncertainties=useless), codes, rtol=5e-2, atol=1e-2)


def test_a_model_with_uncertainties_comes_back_from_a_file(tmp_path):
    X, _, uncertainties, _ = unequal_features()
    model = TruncatedCauchyNMF(RANK, random_state=0).fit(X, uncertainties=uncertainties)
    model.save(tmp_path / "m.robustnmf")
    same = load(tmp_path / "m.robustnmf")
    for arguments in ({}, {"uncertainties": uncertainties}):
        np.testing.assert_array_equal(same.transform(X, **arguments), model.transform(X, **arguments))
    np.testing.assert_array_equal(same.clean(X), model.clean(X))


def test_batches_may_have_uncertainties():
    X, truth, uncertainties, _ = unequal_features()
    model = TruncatedCauchyNMF(RANK, random_state=0)
    for part in range(0, 200, 50):
        rows = slice(part, part + 50)
        model.partial_fit(X[rows], uncertainties=uncertainties[rows])
    assert misfit(model, X, truth, uncertainties) < 0.03


def test_missing_entries_need_no_uncertainty():
    X, _, uncertainties, _ = unequal_features()
    gaps = np.random.default_rng(0).random(X.shape) < 0.1
    holes = np.where(gaps, np.nan, X)
    one, other = (
        TruncatedCauchyNMF(RANK, random_state=0).fit(holes, uncertainties=np.where(gaps, filler, uncertainties))
        for filler in (np.nan, 1.0)
    )
    np.testing.assert_array_equal(one.components_, other.components_)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u: u[:, :-1], "uncertainties must have the shape of X"),
        (
            lambda u: np.where(np.arange(20) == 3, 0.0, u),
            "positive and finite where X is observed, .*; got 0.0 at sample 0",
        ),
        (lambda u: -u, "positive and finite"),
        (lambda u: np.where(np.arange(20) == 3, np.inf, u), "positive and finite"),
        (lambda u: np.where(np.arange(20) == 3, np.nan, u), "positive and finite"),
    ],
)
def test_bad_uncertainties_are_refused(change, message):
    X, _, uncertainties, _ = unequal_features()
    with pytest.raises(ValueError, match=message):
        TruncatedCauchyNMF(RANK).fit(X, uncertainties=change(uncertainties))


def test_a_model_without_uncertainties_does_not_take_them_later():
    X, _, uncertainties, _ = unequal_features()
    with pytest.raises(ValueError, match="was fitted without uncertainties"):
        TruncatedCauchyNMF(RANK, random_state=0).fit(X).transform(X, uncertainties=uncertainties)


def test_firework_days_are_outliers_of_potassium():
    """Baltimore: the days after New Year's Eve and around 4 July, found without being told."""
    air = load_baltimore()
    model = TruncatedCauchyNMF(6, random_state=0).fit(air.data, uncertainties=air.uncertainties)
    potassium = list(air.feature_names).index("Potassium Ion")
    days = [
        i for i, day in enumerate(air.dates) if str(day) in ("2005-01-01", "2003-07-05", "2006-07-04", "2005-07-03")
    ]
    assert len(days) == 4
    assert model.outliers_[days, potassium].all()


def test_the_number_of_components_can_be_left_to_the_data():
    rng = np.random.default_rng(0)
    X = rng.random((60, 3)) @ rng.random((3, 40)) + 0.02 * rng.random((60, 40))
    X[rng.random(X.shape) < 0.1] = 10.0
    model = TruncatedCauchyNMF("auto", random_state=0).fit(X)
    assert model.n_components_ == 3
    assert model.components_.shape == (3, 40)
