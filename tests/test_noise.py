"""Entries are judged by their noise, and what is right is fitted by least squares."""

import warnings
from math import inf

import numpy as np
import pytest
from numpy.linalg import lstsq, norm
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_wine
from sklearn.decomposition import NMF

from conftest import make_data
from robustnmf import RobustNMF, load
from robustnmf.algorithm import judging, least_squares
from robustnmf.algorithm.encoding import leverages, without, without_own
from robustnmf.algorithm.feature_scaling import feature_levels
from robustnmf.algorithm.holdout import Point
from robustnmf.algorithm.least_squares import Comparison, Explained, LeastSquares
from robustnmf.engines import NumPyEngine
from robustnmf.errors import IncompatibleError
from robustnmf.model import noise as noise_module
from robustnmf.model.mixture import quantile
from robustnmf.model.noise import NOISES, OFFSET, Noise, NoiseModel, Sampled, _interpolated, estimate
from robustnmf.utils.medians import densest


def low_rank(seed=0, shape=(300, 100), rank=5):
    rng = np.random.default_rng(seed)
    return rng, rng.gamma(1, 1, (shape[0], rank)) @ rng.gamma(1, 1, (rank, shape[1]))


def noisy(kind, rng, P):
    return {
        "constant": lambda: np.maximum(P + 0.2 * rng.normal(size=P.shape), 0),
        "poisson": lambda: rng.poisson(20 * P) / 20.0,
        "proportional": lambda: P * np.maximum(1 + 0.1 * rng.normal(size=P.shape), 0),
    }[kind]()


def spiked(rng, X, share, factor=None):
    Y, wrong = X.copy(), rng.random(X.shape) < share
    Y[wrong] = rng.uniform(1, 10, wrong.sum()) * X.max() if factor is None else factor * X[wrong]
    return Y, wrong


def error(model, Y, X):
    return norm(model.inverse_transform(model.transform(Y)) - X) / norm(X)


def plain_error(X, rank):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = NMF(rank, init="nndsvda", max_iter=2000, tol=1e-6, random_state=0)
        return norm(plain.fit_transform(X) @ plain.components_ - X) / norm(X)


# --- The model of the noise -------------------------------------------------------------------------------------------


def sampled(values, predictions, clean=None):
    n, m = values.shape
    features = np.tile(np.arange(m), n)
    clean = np.ones(values.shape, dtype=bool) if clean is None else clean
    return Sampled(values.ravel(), predictions.ravel(), features, np.ones(values.size), clean.ravel(), m)


def estimated(values, predictions, noise=NOISES["auto"], clean=None):
    m = values.shape[1]
    return estimate(
        sampled(values, predictions, clean), noise, np.full(m, np.inf), np.ones(m), np.zeros(m), np.zeros(m), 1e-6
    )


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_width_and_exponent_are_found_among_errors(exponent, share):
    rng, P = low_rank(1)
    widths = rng.uniform(0.02, 0.1, P.shape[1]) * np.median(P, axis=0)
    sizes = (P / np.median(P, axis=0) + OFFSET) / (1 + OFFSET)
    X = P + widths * sizes**exponent * rng.normal(size=P.shape) / 0.6745
    X, wrong = spiked(rng, X, share)
    model = estimated(X, P, clean=~wrong)
    assert_allclose(model.exponent, exponent, atol=0.15)
    assert_allclose(model.widths / widths, 1, atol=0.5)
    assert_allclose(np.median(model.widths / widths), 1, atol=0.2)
    assert ((model.ratios(X, P, np) > 1) == wrong).mean() > 0.99


def test_some_of_very_many_entries_tell_what_features_have_in_common(monkeypatch):
    rng, P = low_rank(1)
    X, wrong = spiked(rng, noisy("poisson", rng, P), 0.2)
    by_all = estimated(X, P, clean=~wrong)
    monkeypatch.setattr(noise_module, "ENOUGH", 4000)
    by_some = estimated(X, P, clean=~wrong)
    assert by_some.exponent != by_all.exponent
    assert_allclose(by_some.exponent, by_all.exponent, atol=0.1)
    assert_allclose(by_some.widths, by_all.widths, rtol=0.2)
    assert_allclose(by_some.threshold, by_all.threshold, rtol=0.2)


def test_a_given_exponent_is_used():
    rng, P = low_rank(2)
    X = noisy("constant", rng, P)
    for name, exponent in (("constant", 0.0), ("poisson", 0.5), ("proportional", 1.0)):
        assert estimated(X, P, NOISES[name]).exponent == exponent


def test_features_with_few_entries_have_the_typical_relative_width():
    rng, P = low_rank(3, (200, 30))
    X = P * (1 + 0.1 * rng.normal(size=P.shape))
    X[3:, 0] = P[3:, 0] = 0.0  # three entries are left
    model = estimated(X, P)
    typical = np.median(model.widths[1:] / model.levels[1:])
    assert 0.3 * typical < model.widths[0] / model.levels[0] < 3 * typical


def test_in_other_units_the_width_is_too():
    rng, P = low_rank(4, (100, 20))
    model = estimated(noisy("proportional", rng, P), P)
    units = 10.0 ** np.arange(20)
    assert_allclose(model.in_units(units).width(P * units, np), model.width(P, np) * units)


@pytest.mark.parametrize("exponent", [-0.1, 1.1])
def test_impossible_exponents_are_refused(exponent):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Noise(exponent)


def test_prediction_without_an_entry_is_that_of_a_fit_without_it():
    rng = np.random.default_rng(0)
    W, y = rng.random((12, 3)), rng.random(12)
    predicted = W @ lstsq(W, y, rcond=None)[0]
    alone = without_own(predicted, y, leverages(W, np), np)
    for j in range(12):
        rest = np.arange(12) != j
        assert_allclose(alone[j], max(W[j] @ lstsq(W[rest], y[rest], rcond=None)[0], 0), rtol=1e-5, atol=1e-8)


def test_wrong_entries_count_as_the_mean_of_their_feature():
    ones = np.ones(2)
    model = NoiseModel(ones, ones, 9 * ones, np.array([3.0, 4.0]), np.array([0.5, 0.25]), 0 * ones, 0.0, 6.0)
    Y, weights = np.array([[1.0, 2.0]]), np.array([[1.0, 0.8]])
    filled, counted = without(np.array([[False, True]]), Y, weights, None, model, np)
    assert_array_equal(filled, [[1.0, 4.0]])
    assert_allclose(counted, [[1.0, 0.2]])


def test_the_densest_part_of_a_row_bears_more_than_half_of_errors():
    rng = np.random.default_rng(0)
    rows = 5 + 0.1 * rng.normal(size=(50, 100))
    rows[:, :60] = rng.uniform(10, 100, (50, 60))
    rows[:, 99] = np.nan
    assert_allclose(densest(rng.permuted(rows, axis=1), 0.3), 5, atol=0.3)
    assert densest(np.full((1, 4), np.nan), 0.3)[0] == 0


# --- Fits -------------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.4])
@pytest.mark.parametrize("kind", ["constant", "poisson", "proportional"])
def test_errors_are_found_whatever_the_noise(kind, share):
    rng, P = low_rank(5)
    X = noisy(kind, rng, P)
    Y, wrong = spiked(rng, X, share)
    model = RobustNMF(5, random_state=0).fit(Y)
    assert (model.outliers_ != wrong).mean() < 0.01
    assert error(model, Y, P) < 1.2 * error(RobustNMF(5, random_state=0).fit(X), X, P) + 0.2 * share
    assert_allclose(model.noise_.exponent, NOISES[kind].exponent, atol=0.2)


def test_errors_that_are_most_of_what_is_positive_are_found():
    rng = np.random.default_rng(0)
    H, W = (rng.gamma(1, 1, shape) * (rng.random(shape) < 0.25) for shape in ((200, 4), (4, 150)))
    X = rng.poisson(2 * H @ W).astype(float)
    Y, wrong = spiked(rng, X, 0.2)
    assert wrong[Y > 0].mean() > 0.5 > (Y > 0).mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RobustNMF(4, random_state=0).fit(Y)
    assert model.outliers_[wrong].mean() > 0.98
    assert model.outliers_[~wrong].mean() < 0.05
    assert norm(model.inverse_transform(model.transform(Y)) - X) < 1.5 * norm(X) * plain_error(X, 4)


def test_clean_data_gives_what_plain_nmf_gives():
    X = load_wine().data
    model = RobustNMF(3, random_state=0, max_iter=500).fit(X)
    assert not model.outliers_.any()
    assert error(model, X, X) < 1.15 * plain_error(X, 3)


def test_the_comparison_with_least_squares_says_which_fit_was_taken_and_why(tmp_path):
    rng, P = low_rank(5)
    X = noisy("constant", rng, P)
    Y, wrong = spiked(rng, X, 0.1)
    kept = RobustNMF(5, random_state=0).fit(Y)
    assert not kept.comparison_.takes_all
    assert_allclose(kept.comparison_.rejected, wrong.mean(), atol=0.01)
    assert kept.comparison_.damage > 1
    assert kept.comparison_.reason.startswith("What looked wrong is left out. 9.9%")
    kept.save(tmp_path / "model.rnmf")
    assert load(tmp_path / "model.rnmf").comparison_ == kept.comparison_
    with_all = RobustNMF(3, random_state=0, max_iter=500).fit(load_wine().data)
    assert with_all.comparison_.takes_all
    assert with_all.comparison_.reason.startswith("All entries are fitted by least squares")
    assert RobustNMF(3, method="l2").fit(X).comparison_ is None
    assert RobustNMF(3, noise=None).fit(X).comparison_ is None


def test_over_half_that_looked_wrong_and_was_accepted_is_told_if_the_others_bear_it_badly():
    taken = Comparison(0.6, 14.0, 0.3, 0.3, 0.55, n_samples=100, residual=0.1, damage_as_judged=9.0, takes_all=True)
    assert "55.0% of the entries looked wrong, and all were accepted" in taken.doubt
    for well in ({"damage": 2.0}, {"unseen_damage": 1.5}, {"rejected": 0.45}):
        assert taken._replace(**well).doubt is None


def test_hardly_any_is_not_called_none():
    few = Comparison(0.5, 1.0, 0.002, 0.0, 2e-4, n_samples=9, residual=0.1, damage_as_judged=1.0, unseen_damage=1.3)
    assert "less than 0.1% of the entries" in few.doubt and "less than 1% of" in few._replace(rejected=0.02).doubt
    assert few.reason.endswith("without itself, they are 1.3 times.")


def test_a_gain_that_accepted_entries_have_too_is_no_doubt():
    converging = Comparison(0.8, 0.8, 1.0, 1.0, rejected=0.01, n_samples=100, residual=0.1, damage_as_judged=0.8)
    assert converging.doubt is None
    assert "80% of all residuals" in converging._replace(damage=1.0).doubt


def test_much_that_is_rejected_is_told_unless_all_is_accepted_after_all():
    robust = Comparison(1.5, 3.0, 0.9, 0.9, rejected=0.4, n_samples=100, residual=0.1, damage_as_judged=3.0)
    assert robust.doubt is None
    assert "40% of the entries are taken for wrong" in robust.much_is_wrong
    assert robust._replace(rejected=0.2).much_is_wrong is None
    assert robust._replace(takes_all=True).much_is_wrong is None
    in_doubt = robust._replace(gain=0.5, damage=1.2, unexplained=0.3)
    assert "leaves 30% of their residuals" in in_doubt.doubt
    assert in_doubt._replace(takes_all=True).doubt is None


def test_entries_that_least_squares_explains_nearly_all_of_are_told_whatever_it_does_to_the_others():
    damaging = Comparison(0.6, 4.0, 0.02, 0.02, rejected=0.013, n_samples=100, residual=0.1, damage_as_judged=1.2)
    assert "leaves 2% of their residuals" in damaging.doubt
    assert damaging._replace(unexplained=0.2).doubt is None
    assert damaging._replace(rejected=0.001).doubt is None
    assert damaging._replace(takes_all=True).doubt is None
    assert damaging._replace(residual=1e-15).doubt is None


def test_samples_that_are_mostly_wrong_do_not_count_for_the_components():
    rng, P = low_rank(shape=(200, 100))
    X = noisy("constant", rng, P)
    right = RobustNMF(5, random_state=0).fit(X[20:])
    X[:20] = rng.uniform(0, 2 * P.max(), (20, 100))
    model = RobustNMF(5, random_state=0).fit(X)
    assert model.outliers_[:20].mean() > 0.85 and model.outliers_[20:].mean() < 0.001
    assert error(model, X[20:], P[20:]) < 1.1 * error(right, X[20:], P[20:])


def test_components_that_predict_nothing_are_told():
    rng, P = low_rank(shape=(150, 80))
    clean = rng.poisson(0.2 * P).astype(float)
    wrong, _ = spiked(rng, clean, 0.4)
    for X, is_told in ((clean, False), (wrong, True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            RobustNMF(5, random_state=0).fit(X)
        assert any("predict entries that they were not fitted to" in str(w.message) for w in caught) == is_told


def test_the_explained_share_is_that_of_the_accepted_entries():
    rng, P = low_rank(shape=(60, 40), rank=3)
    X, _ = spiked(rng, noisy("constant", rng, P), 0.05)
    with NumPyEngine(n_threads=1).running() as engine:
        V, ones = engine.split(X), np.ones(X.shape[1])
        squares = LeastSquares(V, None, None, engine, 1e-4)
        factors = NMF(3, init="nndsvda", max_iter=500).fit(P)
        W, Ht = factors.components_.T, factors.transform(P)
        judged = squares.judged(Point(W, [Ht], None), 2.0 * ones)
        found = squares.explained(judged)
    R = X - Ht @ W.T
    right = np.abs(R) <= 2
    means = np.array([x[r].mean() for x, r in zip(X.T, right.T, strict=True)])
    assert_allclose(found["fitted"], 1 - (R[right] ** 2).sum() / ((X - means)[right] ** 2).sum())
    assert_allclose(found["residual"], np.sqrt((R[right] ** 2).sum() / (X[right] ** 2).sum()))
    assert 0.5 < found["unseen"] < found["fitted"] < 1
    doubtful = Explained(0.1, -0.1, 0.8)
    assert "10% of the variance" in doubtful.doubt
    assert all(
        doubtful._replace(**other).doubt is None for other in ({"fitted": 0.5}, {"unseen": 0.1}, {"residual": 0.1})
    )


def test_errors_are_found_in_every_column_of_a_table_with_units():
    rng, P = low_rank(6, (300, 20), 4)
    X = noisy("proportional", rng, P) * 10.0 ** rng.uniform(-3, 3, 20)
    Y, wrong = spiked(rng, X, 0.03, factor=15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = RobustNMF(4, random_state=0).fit(Y).outliers_
    assert ((found & wrong).sum(axis=0) >= 0.9 * wrong.sum(axis=0)).all()
    assert (found & wrong).sum() >= 0.8 * found.sum()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("share", [0.1, 0.2])
@pytest.mark.parametrize("shape", [(300, 200), (1000, 50)])
def test_repeated_samples_do_not_cost_the_others_their_entries(shape, share):
    rng, P = low_rank(7, shape)
    X = np.maximum(P + 0.05 * P.mean() * rng.normal(size=shape), 0)
    n = int(share * shape[0])
    X[:n] = rng.gamma(1, 1, shape[1]) * X.mean()
    assert RobustNMF(5, random_state=0).fit(X).outliers_[n:].mean() < 0.02


def test_discrete_ratings_are_not_rejected():
    rng, P = low_rank(8)
    X = np.clip(np.round(2 * P / P.mean() + 0.7 * rng.normal(size=P.shape)), 1, 5)
    assert RobustNMF(5, random_state=0).fit(X).outliers_.mean() < 0.02


@pytest.mark.parametrize("noise", [1e-4, 1e-3])
def test_data_with_hardly_any_noise_is_fitted(noise):
    rng = np.random.default_rng(1)
    P = rng.random((100, 5)) @ rng.random((5, 60))
    X = np.maximum(P + noise * P.mean() * rng.normal(size=P.shape), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RobustNMF(5, random_state=0).fit(X)
    assert not model.outliers_.any()
    assert error(model, X, X) < 2 * plain_error(X, 5)


def test_outliers_are_so_many_widths_away():
    rng, P = low_rank(14)
    Y, _ = spiked(rng, noisy("proportional", rng, P), 0.1)
    model = RobustNMF(5, random_state=0).fit(Y)
    predicted = model.inverse_transform(model.transform(Y))
    assert model.outliers_.any()
    assert_array_equal(model.noise_.ratios(Y, predicted, np) > 1, model.outliers_)
    assert_allclose(model.thresholds_, model.noise_.threshold * model.noise_.widths)


def test_without_a_noise_model_entries_are_judged_by_the_loss():
    rng, P = low_rank(9)
    Y, wrong = spiked(rng, noisy("constant", rng, P), 0.1)
    model = RobustNMF(5, noise=None, random_state=0).fit(Y)
    assert model.noise_ is None
    residual = np.abs(Y - model.inverse_transform(model.transform(Y)))
    assert_array_equal(model.outliers_, residual > model.thresholds_)
    assert (model.outliers_ & wrong).sum() > 0.99 * wrong.sum()


def test_weights_by_noise_are_more_efficient_where_noise_differs():
    rng, P = low_rank(10)
    deviations = 10.0 ** rng.uniform(-1.5, 0, P.shape[1])
    X = np.maximum(P + deviations * P.mean() * rng.normal(size=P.shape), 0)
    fits = [RobustNMF(5, weight_by_noise=weighted, random_state=0).fit(X) for weighted in (False, True)]
    alike, weighted = (error(model, X, P) for model in fits)
    assert weighted < 0.9 * alike


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_predictions_of_missing_entries_stay_bounded(share):
    rng = np.random.default_rng(0)
    X = load_wine().data
    hidden = rng.random(X.shape) < share
    Y = np.where(hidden, np.nan, X)
    model = RobustNMF(4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted = model.inverse_transform(model.fit_transform(Y))
    means = np.broadcast_to(np.nanmean(Y, axis=0), X.shape)
    assert norm((predicted - X)[hidden]) < 1.2 * norm((means - X)[hidden])
    assert_allclose(model.inverse_transform(model.transform(Y)), predicted, rtol=1e-4, atol=1e-4 * X.max())
    few = Y[:20].copy()
    few[:, 2:] = np.nan  # a code of four numbers from two
    assert model.inverse_transform(model.transform(few)).max() < 2 * X.max()


def test_scaled_features_do_not_change_what_is_wrong():
    rng, P = low_rank(11, (200, 30))
    Y, _ = spiked(rng, noisy("proportional", rng, P), 0.05)
    units = 2.0 ** rng.integers(-8, 8, 30)
    first, second = (RobustNMF(5, feature_scaling="robust", random_state=0).fit(X) for X in (Y, Y * units))
    assert (first.outliers_ != second.outliers_).mean() < 1e-3
    one, other = first.inverse_transform(first.transform(Y)), second.inverse_transform(second.transform(Y * units))
    assert norm(other / units - one) < 1e-2 * norm(one)


def test_levels_of_features_are_medians_of_positive_entries():
    rng = np.random.default_rng(0)
    X = rng.gamma(2, 1, (4000, 3)) * [1.0, 100.0, 0.01]
    X[rng.random(X.shape) < 0.3] = 0
    expected = [np.median(column[column > 0]) for column in X.T]
    assert_allclose(feature_levels(X, None), expected, rtol=0.05)


@pytest.mark.parametrize("share_of_zeros", [0.0, 0.3, 0.95])
def test_levels_of_features_are_those_with_equal_weights(share_of_zeros):
    rng = np.random.default_rng(0)
    X = np.round(rng.random((9, 30)), 1) * (rng.random((9, 30)) >= share_of_zeros)
    np.testing.assert_array_equal(feature_levels(X, None), feature_levels(X, np.ones_like(X)))


def test_a_file_keeps_the_noise(tmp_path):
    rng, P = low_rank(12, (120, 15), 3)
    Y, _ = spiked(rng, noisy("proportional", rng, P) * 10.0 ** rng.uniform(-3, 3, 15), 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RobustNMF(3, random_state=0).fit(Y)
    model.save(tmp_path / "model.robustnmf")
    same = load(tmp_path / "model.robustnmf")
    assert_array_equal(same.outlier_mask(Y), model.outlier_mask(Y))
    assert_array_equal(same.transform(Y), model.transform(Y))
    assert_array_equal(same.noise_.width(P, np), model.noise_.width(P, np))
    assert same.noise_.exponent == model.noise_.exponent


def test_new_samples_are_judged_as_the_training_data_was():
    rng, P = low_rank(13)
    Y, wrong = spiked(rng, noisy("proportional", rng, P), 0.1)
    model = RobustNMF(5, random_state=0).fit(Y[:200])
    assert (model.outlier_mask(Y[200:]) != wrong[200:]).mean() < 0.01
    assert_array_equal(model.outlier_mask(Y[:200]), model.outliers_)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"noise": "gaussian"}, "noise must be one of"),
        ({"noise": "poisson", "method": "l2"}, "needs schedule='staged'"),
        ({"noise": None, "weight_by_noise": True}, "noise=None has none"),
        ({"weight_by_noise": 1}, "weight_by_noise must be .auto., True or False"),
        ({"feature_scaling": "max"}, "feature_scaling must be"),
    ],
)
def test_what_cannot_be_is_refused(parameters, message):
    with pytest.raises((ValueError, IncompatibleError), match=message):
        RobustNMF(2, **parameters).fit(np.ones((5, 4)))


@pytest.mark.parametrize("weighted", [False, True])
def test_quantiles_of_features_are_those_of_each_alone(weighted):
    rng = np.random.default_rng(0)
    features, values = rng.integers(0, 7, 200), rng.random(200)
    features[features == 3] = 2  # one feature has no entry
    weights = rng.integers(1, 4, 200) / 3 if weighted else np.ones(200)
    entries = Sampled(values, values, features, weights, np.ones(200, dtype=bool), 7)
    where, q = rng.random(200) < 0.7, rng.uniform(0.1, 0.9, 7)
    found = entries.quantiles(values, where, q)
    for j in range(7):
        chosen = where & (features == j)
        assert found[j] == quantile(values[chosen], weights[chosen], q[j])


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_entries_are_the_same_gathered_or_chosen_of_all(monkeypatch, gaps, share):
    rng, P = low_rank(shape=(60, 40))
    X, engine = P + 0.1 * rng.random(P.shape), NumPyEngine()
    M = rng.integers(0, 2, P.shape).astype(float) if gaps else None
    flat = np.flatnonzero(rng.random(P.size) < share)
    monkeypatch.setattr(least_squares, "some_positions", lambda *rest: [np.stack(np.divmod(flat, 40), axis=1)])
    squares = LeastSquares([X], None if M is None else [M], None, engine, 1e-4)
    point = Point(rng.random((40, 5)), [rng.random((60, 5))], None)
    judged = squares.judged(point, np.full(40, 2.0))
    found = []
    for part in (0.0, inf):
        monkeypatch.setattr(least_squares, "GOOD_PART", part)
        found.append(squares.sampled(point, judged.model, judged, judged.model.largest))
    assert len(found[0].values) == len(flat)
    assert_array_equal(found[0].values, X.ravel()[flat])
    for name in ("values", "predictions", "features", "weights", "is_clean"):
        assert_allclose(*(getattr(entries, name) for entries in found), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 41, 400])
def test_quantiles_between_two_entries_are_those_of_numpy(size):
    values = np.random.default_rng(size).random(size)
    for q in (0.0, 0.025, 0.37, 0.5, 1.0):
        assert_allclose(_interpolated(values, q), np.quantile(values, q), rtol=1e-14)


@pytest.mark.parametrize(("max_iter", "most"), [(50, 150), (200, 400), (1000, 2000)])
def test_more_iterations_allow_more_sweeps_of_least_squares(monkeypatch, max_iter, most):
    asked, improve = [], judging.improve

    def look(fit, squares, point, judged, sweeps, **options):
        asked.append(sweeps)
        return (yield from improve(fit, squares, point, judged, sweeps, **options))

    monkeypatch.setattr(judging, "improve", look)
    RobustNMF(3, random_state=0, max_iter=max_iter).fit(make_data().X)
    assert asked[-1] == most
