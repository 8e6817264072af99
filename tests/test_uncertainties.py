"""Uncertainties of entries, and the number of components found by the data."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

from robustnmf import RobustNMF, TruncatedCauchyNMF, load
from robustnmf.algorithm import fit
from robustnmf.algorithm.rank_search import find_rank
from robustnmf.datasets import load_baltimore
from robustnmf.detectors import RobustNMFOutlierDetector
from robustnmf.metrics import relative_error
from robustnmf.selection import RobustNMFCV, auto_rank, select_rank
from robustnmf.selection.stability import bootstrap_components, consensus

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
    np.testing.assert_allclose(model.transform(spoiled, uncertainties=useless), codes, rtol=0.1, atol=1e-2)


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


@pytest.mark.slow
def test_the_number_of_components_can_be_left_to_the_data():
    rng = np.random.default_rng(0)
    X = rng.random((60, 3)) @ rng.random((3, 40)) + 0.02 * rng.random((60, 40))
    X[rng.random(X.shape) < 0.1] = 10.0
    model = TruncatedCauchyNMF("auto", random_state=0).fit(X)
    assert model.n_components_ == 3
    assert model.components_.shape == (3, 40)


# --- Ranks ------------------------------------------------------------------------------------------------------------


def small(seed=0):
    """Return data of rank two with unequal features, its uncertainties and its components."""
    rng = np.random.default_rng(seed)
    units = np.logspace(-2, 2, 15)
    components = rng.random((2, 15)) * units
    truth = (rng.random((60, 2)) + 0.1) @ components
    uncertainties = 0.02 * units * np.exp(0.4 * rng.normal(size=truth.shape))
    return np.maximum(truth + uncertainties * rng.normal(size=truth.shape), 0), uncertainties, components


class Constant(BaseEstimator):
    """Predicts one value everywhere, and remembers the uncertainties that it was given."""

    seen: list = []  # noqa: RUF012

    def __init__(self, n_components=1):
        self.n_components = n_components

    def fit_transform(self, X, y=None, weights=None, uncertainties=None):
        self.seen.append((np.isnan(X), uncertainties))
        self.components_ = np.ones((self.n_components, X.shape[1]))
        return np.full((len(X), self.n_components), 1 / self.n_components)


@pytest.mark.slow
def test_rank_of_unequal_features_is_found_in_units_of_the_noise():
    X, _, uncertainties, _ = unequal_features()
    options = {"ranks": range(1, 6), "n_splits": 3, "random_state": 0}
    informed = select_rank(X, uncertainties=uncertainties, **options)
    assert informed.chosen == RANK
    assert select_rank(X, **options).chosen != RANK
    # What is hidden and clean is missed by its uncertainty: the noise of this data is what they say.
    assert informed.scale == pytest.approx(1, rel=0.2)


@pytest.mark.slow
def test_uniform_uncertainties_are_none_for_the_choice_of_a_rank():
    X, value = small()[0], 0.25
    uniform = np.full(X.shape, value)
    # Without uncertainties features may be scaled by their size.
    options = {"n_splits": 2, "random_state": 0, "estimator": TruncatedCauchyNMF(feature_scaling=None)}
    for choose, more in ((select_rank, {"ranks": [1, 2, 3]}), (auto_rank, {"max_rank": 2})):
        none, same = choose(X, **more, **options), choose(X, uncertainties=uniform, **more, **options)
        np.testing.assert_allclose(same.scores, none.scores, rtol=1e-9)
        assert (same.chosen, same.best) == (none.chosen, none.best)
        assert same.scale * value == pytest.approx(none.scale)


def test_one_uncertainty_per_feature_is_a_change_of_units_for_the_choice_of_a_rank():
    X, uncertainties, _ = small()
    noise = 2.0 ** np.round(np.log2(np.median(uncertainties, axis=0)))
    options = {"ranks": [1, 2, 3], "n_splits": 2, "random_state": 0}
    with_noise = select_rank(X, uncertainties=np.broadcast_to(noise, X.shape), **options)
    scaled = select_rank(X / noise, **options)
    np.testing.assert_allclose(with_noise.scores, scaled.scores, rtol=1e-2)
    assert with_noise.scale == pytest.approx(scaled.scale, rel=1e-2)


def test_squared_score_is_the_mean_square_in_units_of_the_noise():
    X, uncertainties, _ = small()
    weights = np.random.default_rng(0).integers(1, 4, X.shape)
    Constant.seen.clear()
    found = select_rank(
        X,
        [1],
        weights=weights,
        uncertainties=uncertainties,
        n_splits=2,
        estimator=Constant(),
        scoring="squared",
        random_state=0,
    )
    assert found.scale == 1.0
    for score, (hidden, seen) in zip(found.scores[0], Constant.seen, strict=True):
        squares = ((X - 1.0) / uncertainties)[hidden] ** 2
        assert score == pytest.approx(-np.average(squares, weights=weights[hidden]))
        np.testing.assert_array_equal(seen, uncertainties)


def test_missing_entries_need_no_uncertainty_for_the_choice_of_a_rank():
    X, uncertainties, _ = small()
    X[::7, ::4] = np.nan
    one, other = (
        select_rank(X, [2], uncertainties=np.where(np.isnan(X), filler, uncertainties), n_splits=2, random_state=0)
        for filler in (np.nan, 1.0)
    )
    np.testing.assert_array_equal(one.scores, other.scores)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_rank_auto_is_found_by_auto_rank_with_the_same_uncertainties(monkeypatch, weighted):
    X, uncertainties, _ = small()
    weights = np.where(np.arange(15) < 13, 1.0, 0.2) * np.ones_like(X) if weighted else None
    fewer = {"n_splits": 2, "max_rank": 3}
    seen = []

    def spy(X, estimator, **arguments):
        seen.append((arguments, find_rank(X, estimator, **arguments, **fewer)))
        return seen[-1][1]

    monkeypatch.setattr(fit, "find_rank", spy)
    model = TruncatedCauchyNMF("auto", random_state=0).fit(X, weights=weights, uncertainties=uncertainties)
    ((arguments, found),) = seen
    assert arguments["uncertainties"] is uncertainties
    assert model.n_components_ == found.chosen == 2
    arrays = {"weights": weights, "uncertainties": uncertainties}
    asked = auto_rank(X, estimator=TruncatedCauchyNMF(1), random_state=0, **arrays, **fewer)
    np.testing.assert_array_equal(asked.scores, found.scores)


@pytest.mark.slow
def test_rank_with_known_components_is_found_in_units_of_the_data():
    """Dividing the data by the noise beforehand would leave them behind."""
    X, uncertainties, components = small()
    estimator = TruncatedCauchyNMF(fixed_components=components[:1], random_state=0)
    options = {"n_splits": 2, "estimator": estimator, "random_state": 0}
    assert select_rank(X, [1, 2, 3], uncertainties=uncertainties, **options).chosen == 2
    noise = np.median(uncertainties, axis=0)
    divided = select_rank(X / noise, [1, 2, 3], weights=(noise / uncertainties) ** 2, **options)
    assert divided.chosen > 2


def test_estimator_that_chooses_takes_uncertainties_everywhere():
    X, uncertainties, _ = small()
    model = RobustNMFCV(ranks=(1, 2, 3), n_splits=2, random_state=0)
    codes = model.fit_transform(X, uncertainties=uncertainties)
    assert model.best_rank_ == 2
    chosen = select_rank(X, (1, 2, 3), uncertainties=uncertainties, n_splits=2, random_state=0)
    np.testing.assert_array_equal(model.selection_.scores, chosen.scores)
    inner = model.best_estimator_
    again = clone(inner).fit(X, uncertainties=uncertainties)
    np.testing.assert_array_equal(again.components_, model.components_)
    np.testing.assert_allclose(model.transform(X, uncertainties=uncertainties), codes)
    for method in ("transform", "clean", "outlier_mask", "score_samples", "score"):
        ours, theirs = (getattr(m, method)(X, uncertainties=uncertainties) for m in (model, inner))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "function",
    [
        lambda X, u: select_rank(X, [1], uncertainties=u),
        lambda X, u: auto_rank(X, uncertainties=u),
        lambda X, u: RobustNMFCV(ranks=[1]).fit(X, uncertainties=u),
        lambda X, u: TruncatedCauchyNMF("auto").fit(X, uncertainties=u),
        lambda X, u: RobustNMFOutlierDetector(2).fit(X, uncertainties=u),
        lambda X, u: consensus(X, 2, uncertainties=u),
    ],
)
def test_bad_uncertainties_are_refused_by_all_that_take_them(function):
    X, uncertainties, _ = small()
    with pytest.raises(ValueError, match="shape of X"):
        function(X, uncertainties[:, 1:])
    with pytest.raises(ValueError, match=r"positive and finite where X is.*; got 0\.0 at sample 3, feature 4"):
        function(X, np.where((np.arange(60)[:, None] == 3) & (np.arange(15) == 4), 0.0, uncertainties))


def test_estimator_that_knows_no_uncertainties_is_refused():
    class Ignorant(Constant):
        def fit_transform(self, X, y=None, weights=None):
            return super().fit_transform(X)

    X, uncertainties, _ = small()
    with pytest.raises(ValueError, match=r"need an estimator that is fitted with them.*Ignorant is not"):
        select_rank(X, [1], uncertainties=uncertainties, estimator=Ignorant())


# --- Samples ----------------------------------------------------------------------------------------------------------


def measured_badly(seed=0):
    """Return data of which some samples are wrong, and others known to be measured ten times as badly."""
    rng = np.random.default_rng(seed)
    units = np.logspace(-2, 2, 30)
    truth = (rng.random((150, RANK)) + 0.1) @ (rng.random((RANK, 30)) * units)
    wrong, bad = np.arange(150) < 8, (np.arange(150) >= 8) & (np.arange(150) < 25)
    uncertainties = 0.02 * units * np.where(bad, 10.0, 1.0)[:, None]
    X = np.maximum(truth + uncertainties * rng.normal(size=truth.shape), 0)
    X += np.where(wrong[:, None] & (rng.random(X.shape) < 0.4), units * rng.uniform(1, 3, X.shape), 0)
    return X, uncertainties, wrong, bad


def test_detector_forgives_what_uncertainties_explain():
    X, uncertainties, wrong, bad = measured_badly()
    detector = RobustNMFOutlierDetector(RANK, random_state=0)
    found = detector.fit_predict(X, uncertainties=uncertainties) == -1
    np.testing.assert_array_equal(found, wrong)
    # Taken for typical measurements, the bad ones are wrong.
    assert (detector.predict(X) == -1)[bad].mean() > 0.5
    # Without uncertainties it takes the bad ones for wrong as well.
    found = clone(detector).fit_predict(X) == -1
    assert found[wrong].all() and found[bad].mean() > 0.5


def test_detector_judges_new_samples_by_their_own_uncertainties():
    X, uncertainties, wrong, bad = measured_badly()
    detector = RobustNMFOutlierDetector(RANK, random_state=0).fit(X, uncertainties=uncertainties)
    some = slice(None, None, 3)
    predicted = detector.predict(X[some], uncertainties=uncertainties[some]) == -1
    np.testing.assert_array_equal(predicted, wrong[some])
    scores = detector.score_samples(X, uncertainties=uncertainties)
    assert scores[wrong].max() < scores[bad].min()
    np.testing.assert_array_equal(detector.decision_function(X, uncertainties=uncertainties), scores - detector.offset_)


def test_uniform_uncertainties_are_none_for_the_detector():
    X, *_ = measured_badly()
    one = RobustNMFOutlierDetector(estimator=RobustNMF(RANK, random_state=0, feature_scaling=None)).fit(X)
    other = RobustNMFOutlierDetector(estimator=RobustNMF(RANK, random_state=0, feature_scaling=None)).fit(
        X, uncertainties=np.full(X.shape, 0.5)
    )
    assert other.offset_ == pytest.approx(one.offset_)
    uniform = np.full(X.shape, 0.5)
    np.testing.assert_allclose(other.score_samples(X, uncertainties=uniform), one.score_samples(X), atol=1e-9)


def test_detector_without_uncertainties_does_not_take_them_later():
    X, uncertainties, *_ = measured_badly()
    detector = RobustNMFOutlierDetector(RANK, random_state=0).fit(X)
    with pytest.raises(ValueError, match="was fitted without uncertainties"):
        detector.predict(X, uncertainties=uncertainties)


# --- Stability --------------------------------------------------------------------------------------------------------


def test_consensus_with_uncertainties_is_that_of_informed_fits():
    X, _, uncertainties, _ = unequal_features()
    found = consensus(X, RANK, uncertainties=uncertainties, n_init=2, random_state=0)
    again = clone(found.model).fit(X, uncertainties=uncertainties)
    np.testing.assert_array_equal(found.components, again.components_)
    assert found.score > 0.99


@pytest.mark.slow
def test_bootstrap_with_uncertainties_starts_where_the_model_is():
    X, _, uncertainties, _ = unequal_features()
    model = TruncatedCauchyNMF(RANK, random_state=0).fit(X, uncertainties=uncertainties)
    # One iteration: what it finds is as near to the model as its start.
    model.max_iter = 1
    first = bootstrap_components(X, model, uncertainties=uncertainties, n_boot=3, random_state=0)
    units = np.logspace(-3, 3, 20)
    assert np.median(np.abs(first.high - model.components_) / units) * 1e3 < 0.1
    model.max_iter = 200
    found = bootstrap_components(X, model, uncertainties=uncertainties, n_boot=6, random_state=0)
    assert found.stability.min() > 0.99
    width = np.median((found.high - found.low) / model.components_.clip(min=1e-12), axis=0)
    assert width.max() < 0.2  # of small features as of large ones


def test_uniform_uncertainties_are_none_for_the_bootstrap():
    X = small()[0]
    uniform = np.full(X.shape, 0.5)
    options = {"n_boot": 2, "random_state": 0}
    none = bootstrap_components(X, TruncatedCauchyNMF(2, random_state=0, feature_scaling=None).fit(X), **options)
    model = TruncatedCauchyNMF(2, random_state=0, feature_scaling=None).fit(X, uncertainties=uniform)
    same = bootstrap_components(X, model, uncertainties=uniform, **options)
    np.testing.assert_allclose(same.low, none.low, atol=1e-6)
    with pytest.raises(ValueError, match=r"fitted with uncertainties.*pass them too"):
        bootstrap_components(X, model, **options)
