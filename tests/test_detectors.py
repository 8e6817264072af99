"""The detector of samples that are wrong."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from robustnmf import RobustNMF
from robustnmf.detectors import RobustNMFOutlierDetector, _scores, _share, _threshold

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RANK, N_SAMPLES, N_FEATURES = 4, 150, 50
# These checks fit data with negative entries, whatever the tags say; below are their like for other data.
NEEDS_NEGATIVE = dict.fromkeys(("check_outliers_train", "check_outliers_fit_predict"), "fits negative data")


def planted(seed=0, low=0.0, high=3.0):
    """Return data of which a tenth of the samples has 30 % wrong entries, and which samples those are."""
    rng = np.random.default_rng(seed)
    X = rng.random((N_SAMPLES, RANK)) @ rng.random((RANK, N_FEATURES))
    X += 0.05 * X.mean() * rng.random(X.shape)
    wrong = np.arange(N_SAMPLES) < N_SAMPLES // 10
    hit = (rng.random(X.shape) < 0.3) & wrong[:, None]
    return np.where(hit, X.mean() * rng.uniform(low, high, X.shape), X), wrong


@pytest.fixture(scope="module")
def data():
    X, wrong = planted()
    return X, wrong


@pytest.fixture(scope="module")
def fitted(data):
    return make().fit(data[0])


def make(**parameters):
    return RobustNMFOutlierDetector(**{"n_components": RANK, "random_state": 0} | parameters)


@parametrize_with_checks(
    [RobustNMFOutlierDetector(estimator=RobustNMF(max_iter=30))],
    expected_failed_checks=lambda estimator: NEEDS_NEGATIVE,
)
def test_detector_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_detector_keeps_the_conventions_on_non_negative_data():
    X, _ = make_blobs(300, n_features=6, random_state=0)
    X = X - X.min()
    detector = RobustNMFOutlierDetector(2, contamination=0.1, random_state=0)
    predicted = detector.fit_predict(X)
    assert predicted.dtype.kind == "i"
    assert np.sum(predicted == -1) == 30
    np.testing.assert_array_equal(predicted, detector.predict(X))
    decision = detector.decision_function(X)
    np.testing.assert_allclose(decision, detector.score_samples(X) - detector.offset_)
    np.testing.assert_array_equal(predicted == 1, decision >= 0)
    assert decision.dtype == np.float64
    with pytest.raises(ValueError, match="features"):
        detector.predict(X.T)


@pytest.mark.parametrize(("low", "high"), [(0.0, 3.0), (3.0, 6.0)])
def test_wrong_samples_rank_first(low, high):
    X, wrong = planted(1, low, high)
    ours = roc_auc_score(wrong, -make().fit(X).score_samples(X))
    forest = roc_auc_score(wrong, -IsolationForest(random_state=0).fit(X).score_samples(X))
    assert ours >= 0.99
    assert ours >= forest


def test_auto_finds_the_wrong_samples_and_no_others(data, fitted):
    X, wrong = data
    np.testing.assert_array_equal(fitted.predict(X) == -1, wrong)


def test_auto_finds_next_to_nothing_where_nothing_is_wrong(data):
    X, wrong = data
    good = X[~wrong]
    assert np.mean(make().fit_predict(good) == -1) <= 0.02


def test_auto_finds_nothing_where_all_samples_are_equally_wrong():
    rng = np.random.default_rng(0)
    X = rng.random((N_SAMPLES, RANK)) @ rng.random((RANK, N_FEATURES))
    X += 0.05 * X.mean() * rng.random(X.shape)
    X[rng.random(X.shape) < 0.15] = 10.0
    assert np.mean(make().fit_predict(X) == -1) <= 0.02


def test_new_samples_are_judged_one_by_one(data, fitted):
    scores = fitted.score_samples(data[0])
    np.testing.assert_allclose(fitted.score_samples(data[0][:7]), scores[:7])
    spoilt = np.where(np.arange(N_FEATURES) % 3 == 0, 20.0, data[0][-1:])
    assert fitted.predict(data[0][-1:]) == 1
    assert fitted.predict(spoilt) == -1


def test_float_contamination_flags_that_share(data):
    assert np.mean(make(contamination=0.2).fit_predict(data[0]) == -1) == pytest.approx(0.2)


def test_score_is_the_share_of_cut_entries_and_then_the_misfit(data, fitted):
    X = data[0]
    share = fitted.model_.outlier_mask(X).mean(axis=1)
    rest = -fitted.score_samples(X) - share
    assert np.all(rest >= 0)
    assert np.all(rest <= 0.5 / N_FEATURES)
    good = np.flatnonzero(share == 0)
    residuals = np.abs(X - fitted.model_.inverse_transform(fitted.model_.transform(X)))[good]
    weights = 1 / (1 + (residuals / fitted.model_.scale_) ** 2)
    np.testing.assert_allclose(rest[good], 0.5 / N_FEATURES * (1 - weights).mean(axis=1), rtol=1e-6)


def test_missing_entries_do_not_count_and_those_without_weight_neither(data):
    X, wrong = data
    gaps = np.random.default_rng(0).random(X.shape) < 0.3
    with_gaps = np.where(gaps, np.nan, X)
    as_nan = make().fit(with_gaps)
    by_weight = make().fit(np.where(gaps, 1e6, X), weights=~gaps)
    scores = as_nan.score_samples(with_gaps)
    assert roc_auc_score(wrong, -scores) >= 0.99
    np.testing.assert_allclose(by_weight.score_samples(np.where(gaps, 7.0, X), weights=~gaps), scores)


def test_sample_without_entries_scores_zero(fitted):
    assert fitted.score_samples(np.full((1, N_FEATURES), np.nan)).tolist() == [0]


def test_weighted_share_is_a_mean_by_weight():
    M = np.array([[1.0, 0.5, 0.5], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(_share(np.array([[1, 0, 1], [1, 1, 1]]), M), [0.75, 0])


def test_misfit_never_outweighs_an_entry_that_is_cut():
    best_of_worse, worst_of_better = _scores(np.array([0.06, 0.04]), np.array([0.0, 1.0]), N_FEATURES)
    assert best_of_worse < worst_of_better


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2])
def test_threshold_is_exceeded_by_one_normal_sample_in_a_thousand_at_most(share):
    rng = np.random.default_rng(0)
    shares = rng.binomial(100, share, size=20_000) / 100
    assert np.mean(shares > _threshold(shares[:200], 100)) <= 0.002


def test_threshold_follows_samples_that_differ_more_than_by_chance():
    rng = np.random.default_rng(0)
    shares = np.clip(rng.normal(0.3, 0.1, 20_000), 0, 1)
    assert np.mean(shares > _threshold(shares[:500], 1000)) <= 0.005


def test_threshold_bears_a_minority_of_wrong_samples():
    shares = np.where(np.arange(100) < 40, 0.9, 0.0)
    assert _threshold(shares, 50) < 0.2


@pytest.mark.parametrize("contamination", [0, 0.6, -0.1, "some", None, True])
def test_bad_contamination_is_refused(contamination, data):
    with pytest.raises(ValueError, match=r'contamination must be "auto" or a share in \(0, 0.5\]'):
        make(contamination=contamination).fit(data[0])


def test_detector_fits_the_estimator_given_and_leaves_it_alone(data):
    estimator = RobustNMF(2, method="cauchy", outliers="mad", max_iter=20, random_state=3)
    detector = RobustNMFOutlierDetector(estimator=estimator).fit(data[0])
    assert detector.model_.get_params() == estimator.get_params()
    assert detector.model_ is not estimator
    assert make(estimator=estimator).fit(data[0]).n_components_ == RANK
    assert detector.n_components_ == estimator.n_components == 2
    assert clone(detector).get_params()["estimator__max_iter"] == 20


def test_detector_takes_data_frames_and_pickles(data, fitted):
    frame = pd.DataFrame(data[0], columns=[f"channel {j}" for j in range(N_FEATURES)])
    detector = pickle.loads(pickle.dumps(make().fit(frame)))
    assert detector.feature_names_in_.tolist() == frame.columns.tolist()
    np.testing.assert_array_equal(detector.score_samples(frame), fitted.score_samples(data[0]))


def test_detector_that_is_not_fitted_says_so(data):
    with pytest.raises(NotFittedError):
        make().predict(data[0])
