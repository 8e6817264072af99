"""The number of components, stability over restarts, bootstrap intervals."""

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from conftest import make_data
from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.algorithm import rank_search
from robustnmf.algorithm.rank_search import ALWAYS_TRIED, _check_ranks, _doublings, _next_rank, _split
from robustnmf.data.blocks import Observations
from robustnmf.errors import IncompatibleError
from robustnmf.metrics import match_components
from robustnmf.selection import RankSelection, RobustNMFCV, auto_rank, select_rank, stability
from robustnmf.selection.stability import _match, _matched_cosines, bootstrap_components, consensus

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from rank_selection import ImputedNMF, simulate

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RANK = 3
data = make_data(60, 40, RANK)


@pytest.fixture(scope="module")
def chosen_model():
    return RobustNMFCV(ranks=(2, RANK, 4), n_splits=2, random_state=0).fit(data.X)


class Constant(BaseEstimator):
    """Predicts one value everywhere, and remembers what it was given."""

    seen: list = []  # noqa: RUF012

    def __init__(self, n_components=1, value=1.0, random_state=None):
        self.n_components = n_components
        self.value = value
        self.random_state = random_state

    def fit_transform(self, X, y=None, weights=None):
        self.seen.append((self.n_components, self.random_state, np.isnan(X), weights))
        self.components_ = np.full((self.n_components, X.shape[1]), self.value)
        return np.full((len(X), self.n_components), 1 / self.n_components)


class Predicts(BaseEstimator):
    """Predicts the truth plus an error that depends on the rank alone: that of the highest rank not above its own."""

    def __init__(self, n_components=1, truth=None, errors=None):
        self.n_components = n_components
        self.truth = truth
        self.errors = errors

    def fit_transform(self, X, y=None):
        rank = max(rank for rank in self.errors if rank <= self.n_components)
        self.components_ = np.eye(X.shape[1])
        return self.truth + self.errors[rank]


# Which rank.


def test_integers_that_one_component_hits_exactly_do_not_decide():
    rng = np.random.default_rng(0)
    X = np.clip(np.round(3 + rng.standard_normal((100, 20))), 1, 5)
    errors = {1: 3 - X, 2: rng.uniform(-0.6, 0.6, X.shape)}
    assert np.median(np.abs(errors[1])) <= 1
    assert select_rank(X, [1, 2], estimator=Predicts(truth=X, errors=errors), random_state=0).chosen == 2


def test_rank_of_ratings_is_found():
    simulated = simulate("ratings", 3)
    assert select_rank(simulated.X, [1, simulated.rank], n_splits=2, random_state=0).chosen == simulated.rank


def test_small_features_count_where_features_differ_in_size():
    rng = np.random.default_rng(0)
    units = np.logspace(0, 4, 20)
    noise, misfit = 0.05 * rng.standard_normal((2, 100, 20)) * units
    truth = rng.uniform(1, 2, (100, 20)) * units
    errors = {1: np.where(units < 10, 10 * misfit, 0.9 * misfit), 2: misfit}
    assert (
        select_rank(truth + noise, [1, 2], estimator=Predicts(truth=truth, errors=errors), random_state=0).chosen == 2
    )


def test_large_entries_count_where_noise_is_proportional():
    rng = np.random.default_rng(0)
    truth = rng.lognormal(sigma=1.5, size=(100, 20))
    noise, misfit = 0.05 * rng.standard_normal((2, 100, 20)) * truth
    errors = {1: np.where(truth > 20, 4 * misfit, 0.9 * misfit), 2: misfit}
    assert (
        select_rank(truth + noise, [1, 2], estimator=Predicts(truth=truth, errors=errors), random_state=0).chosen == 2
    )


def test_rank_that_predicts_hardly_better_is_not_chosen():
    rng = np.random.default_rng(0)
    truth = rng.uniform(1, 2, (200, 50))
    noise = 0.1 * rng.standard_normal(truth.shape)
    errors = {rank: -0.001 * (16 - rank) * noise for rank in range(1, 17)}  # losses rise by 2 % from 16 to 6
    found = select_rank(truth + noise, range(1, 17), estimator=Predicts(truth=truth, errors=errors), random_state=0)
    assert found.best == 16
    assert found.chosen in (6, 7)


def test_predictions_out_of_all_bounds_cost_no_more_than_wrong_entries():
    rng = np.random.default_rng(0)
    truth = rng.uniform(1, 2, (100, 20))
    noise = 0.1 * rng.standard_normal(truth.shape)
    errors = {1: 3 * noise, 2: np.where(rng.random(truth.shape) < 0.01, 1e30, 0)}
    found = select_rank(truth - noise, [1, 2], estimator=Predicts(truth=truth, errors=errors), random_state=0)
    assert found.chosen == 2
    assert found.scale == pytest.approx(0.1, rel=0.1)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["constant noise", "constant noise, 20 % spikes", "counts, 5 % spikes"])
def test_rank_is_found_in_simulated_data(kind):
    simulated = simulate(kind, 3)
    near = range(simulated.rank - 1, simulated.rank + 2)
    assert select_rank(simulated.X, near, n_splits=3, random_state=0).chosen == simulated.rank


def test_squared_errors_do_not_find_it_among_outliers():
    simulated = simulate("constant noise, 20 % spikes", 3)
    near = range(simulated.rank - 1, simulated.rank + 2)
    selection = select_rank(simulated.X, near, n_splits=3, estimator=ImputedNMF(), scoring="squared", random_state=0)
    assert selection.chosen != simulated.rank


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["constant noise", "counts", "ratings"])
def test_rank_is_found_within_one_in_nine_of_ten_data_sets(kind):
    simulated = [simulate(kind, seed) for seed in range(10)]
    chosen = [auto_rank(each.X, random_state=0).chosen for each in simulated]
    assert np.sum(np.abs(np.subtract(chosen, [each.rank for each in simulated])) <= 1) >= 9


def test_selection_describes_itself():
    selection = select_rank(data.X, [4, 2, RANK, 2], n_splits=3, random_state=0)
    assert selection.ranks.tolist() == [2, RANK, 4]
    assert selection.scores.shape == (3, 3)
    np.testing.assert_allclose(selection.mean, selection.scores.mean(axis=1))
    best = int(selection.mean.argmax())
    assert selection.best == selection.ranks[best]
    difference = selection.scores - selection.scores[best]
    np.testing.assert_allclose(selection.standard_error, difference.std(axis=1, ddof=1) / np.sqrt(3))
    assert selection.chosen == RANK <= selection.best
    assert selection.mean[best] < -1  # 1 is the noise; outliers come on top
    assert selection.scale > 0


def test_rule_best_takes_the_highest_score():
    selection = select_rank(data.X, [2, 3, 4, 5], n_splits=2, rule="best", random_state=0)
    assert selection.chosen == selection.best == selection.ranks[selection.mean.argmax()]


@pytest.mark.slow
def test_selection_is_the_same_for_a_seed_whatever_the_number_of_jobs():
    one, two = (select_rank(data.X, [2, 3], n_splits=2, random_state=0, n_jobs=jobs) for jobs in (None, 2))
    np.testing.assert_array_equal(one.scores, two.scores)
    assert one.chosen == two.chosen
    other = select_rank(data.X, [2, 3], n_splits=2, random_state=1)
    assert not np.array_equal(one.scores, other.scores)


def test_scores_do_not_depend_on_how_far_off_outliers_are():
    selections = [
        select_rank(np.where(data.outliers, size, data.X), [1, 2, 3], n_splits=2, random_state=0) for size in (20, 1e6)
    ]
    np.testing.assert_allclose(selections[0].mean, selections[1].mean, rtol=0.02)


def test_unit_of_the_data_does_not_matter():
    one, two = (select_rank(unit * data.X, [2, 3], n_splits=2, random_state=0) for unit in (1.0, 2.0**20))
    np.testing.assert_allclose(one.scores, two.scores)
    assert two.scale == pytest.approx(2.0**20 * one.scale)


def test_missing_entries_and_those_without_weight_are_never_scored():
    gaps = np.random.default_rng(0).random(data.X.shape) < 0.3
    wild = np.where(gaps, 1e9, data.X)
    as_nan = select_rank(np.where(gaps, np.nan, data.X), [2, 3], n_splits=2, random_state=0)
    by_weight = select_rank(wild, [2, 3], weights=~gaps, n_splits=2, random_state=0)
    np.testing.assert_allclose(as_nan.scores, by_weight.scores)


def test_fit_sees_neither_hidden_nor_missing_entries_and_all_ranks_the_same_splits():
    X = data.X.copy()
    X[0, :5] = np.nan
    Constant.seen.clear()
    select_rank(X, [1, 2], n_splits=3, estimator=Constant(), random_state=0)
    assert [call[0] for call in Constant.seen] == [1, 1, 1, 2, 2, 2]
    hidden = [gaps & ~np.isnan(X) for _, _, gaps, _ in Constant.seen]
    assert all(mask.sum() == np.count_nonzero(~np.isnan(X)) // 10 for mask in hidden)
    assert np.sum(hidden[:3], axis=0).max() == 1  # splits share no entry
    for first, second in zip(Constant.seen[:3], Constant.seen[3:], strict=True):
        assert first[1] == second[1]
        np.testing.assert_array_equal(first[2], second[2])


def test_squared_score_is_the_weighted_mean_square_of_the_hidden_entries():
    weights = np.random.default_rng(0).integers(1, 4, data.X.shape)
    Constant.seen.clear()
    selection = select_rank(
        data.X, [1], weights=weights, n_splits=2, estimator=Constant(value=2.0), scoring="squared", random_state=0
    )
    for score, (_, _, hidden, seen) in zip(selection.scores[0], Constant.seen, strict=True):
        assert score == pytest.approx(-np.average((data.X[hidden] - 2.0) ** 2, weights=weights[hidden]))
        np.testing.assert_allclose(seen, weights / 3)


def test_splits_leave_something_of_every_sample_and_feature():
    X = np.zeros((30, 20))
    X[0, 0] = X[np.arange(1, 30), 0] = 1.0
    X[1:, 1:3] = 1.0
    X[0, 3:] = 1.0
    splits = _split(Observations(X, (X > 0).astype(float)), 5, np.random.default_rng(0))
    for split in splits:
        left = X > 0
        left.flat[split.positions] = False
        assert left.any(axis=1).all()
        assert left.any(axis=0).all()


def test_trial_fits_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        select_rank(data.X, [1, 5], n_splits=2, estimator=TruncatedCauchyNMF(max_iter=5), random_state=0)


# What is refused.


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "must not be empty"),
        ([1.5], "must be an integer"),
        ([True], "must be an integer"),
        ([0, 1], r"in \[1, 40\]"),
        ([2, 41], r"in \[1, 40\].*got 41"),
        (3, "sequence of integers"),
        ("auto", "sequence of integers"),
    ],
)
def test_bad_ranks_are_refused(ranks, message):
    with pytest.raises(ValueError, match=message):
        select_rank(data.X, ranks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_splits": 1}, "n_splits must be an integer of at least 2"),
        ({"rule": "worst"}, "rule must be one of one-standard-error, best"),
        ({"scoring": "r2"}, "scoring must be one of robust, squared"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        select_rank(data.X, [1, 2], **options)


def test_data_too_small_to_hide_anything_is_refused():
    with pytest.raises(ValueError, match=r"n_samples=3 and n_features=2.*too few"):
        select_rank(np.ones((3, 2)), [1])


def test_ranks_come_back_sorted_and_once():
    assert _check_ranks(np.array([5, 2, 5, 3]), data.X) == [2, 3, 5]


# The search.


def test_search_finds_the_rank_and_stops_soon_after():
    selection = auto_rank(data.X, n_splits=2, random_state=0)
    assert selection.chosen == RANK
    assert selection.ranks.tolist() == [1, 2, RANK, 4, ALWAYS_TRIED]


def test_search_keeps_to_its_limit():
    assert auto_rank(data.X, n_splits=2, max_rank=2, random_state=0).ranks.tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"max_rank.*\[1, 40\]"):
        auto_rank(data.X, max_rank=41)


def test_search_scores_like_a_selection_of_the_same_ranks():
    searched = auto_rank(data.X, n_splits=2, max_rank=3, random_state=0)
    selected = select_rank(data.X, searched.ranks, n_splits=2, random_state=0)
    np.testing.assert_array_equal(searched.scores, selected.scores)


def test_search_finds_a_rank_below_which_nothing_helps():
    rng = np.random.default_rng(0)
    truth = rng.uniform(1, 2, (60, 40))
    noise = 0.1 * rng.standard_normal(truth.shape)
    errors = {1: 5 * noise, **dict.fromkeys(range(2, 7), 5.1 * noise), 7: 0 * noise, 9: 0.5 * noise}
    assert auto_rank(truth - noise, estimator=Predicts(truth=truth, errors=errors), random_state=0).chosen == 7


def test_search_ends_where_positive_entries_are_fewer_than_unknowns():
    rng = np.random.default_rng(0)
    truth = rng.uniform(1, 2, (60, 40)) * (rng.random((60, 40)) < 0.3)
    noise = 0.1 * rng.standard_normal(truth.shape)
    errors = {rank: noise / rank for rank in range(1, 41)}
    found = auto_rank(truth, estimator=Predicts(truth=truth, errors=errors), random_state=0)
    assert found.chosen == found.ranks.max() == int(0.9 * np.count_nonzero(truth)) // 100


def test_rank_is_doubled_up_to_the_limit():
    assert list(_doublings(1)) == [1]
    assert list(_doublings(8)) == [1, 2, 4, 8]
    assert list(_doublings(25)) == [1, 2, 4, 8, 16, 25]


def test_gaps_beside_the_chosen_rank_are_halved():
    def next_rank(ranks, chosen):
        nothing = np.zeros(len(ranks))
        return _next_rank(RankSelection(np.array(ranks), nothing, nothing, nothing, chosen, chosen, "best", 1.0))

    assert next_rank([1, 2, 4, 8, 16], 16) == 12
    assert next_rank([1, 2, 4, 8, 16], 8) == 6
    assert next_rank([1, 2, 4, 7, 8, 16], 8) == 12
    assert next_rank([1, 2, 4, 8], 2) == 3
    assert next_rank([1, 2, 4, 8], 1) is None
    assert next_rank([3], 3) is None


def test_search_shows_its_progress_and_fits_do_not(capsys):
    auto_rank(data.X, n_splits=2, max_rank=2, estimator=TruncatedCauchyNMF(max_iter=5, verbose=1), random_state=0)
    shown = capsys.readouterr().err
    assert "chosen so far" in shown
    assert "objective" not in shown


# The estimator.


@pytest.mark.slow
@parametrize_with_checks([RobustNMFCV(ranks=(1, 2), n_splits=2, estimator=TruncatedCauchyNMF(max_iter=5))])
def test_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_estimator_is_the_model_of_the_rank_that_was_chosen(chosen_model):
    assert chosen_model.best_rank_ == chosen_model.n_components_ == chosen_model.selection_.chosen == RANK
    model = chosen_model.best_estimator_
    assert model.n_components_ == RANK
    for method in ("transform", "clean", "outlier_mask", "score_samples"):
        np.testing.assert_array_equal(getattr(chosen_model, method)(data.X), getattr(model, method)(data.X))
    codes = chosen_model.transform(data.X)
    np.testing.assert_array_equal(chosen_model.inverse_transform(codes), codes @ model.components_)
    assert chosen_model.score(data.X) == pytest.approx(model.score(data.X))


def test_estimator_searches_by_itself():
    model = RobustNMFCV(n_splits=2, random_state=0).fit(data.X)
    assert model.best_rank_ == RANK


def test_estimator_works_in_a_pipeline_and_with_gaps():
    X = data.X.copy()
    X[::7, ::5] = np.nan
    model = RobustNMFCV(ranks=(2, RANK), n_splits=2, random_state=0)
    codes = make_pipeline(FunctionTransformer(), model).fit_transform(X)
    assert codes.shape == (60, RANK)
    np.testing.assert_array_equal(codes, clone(model).fit_transform(X))


def test_estimator_keeps_names_of_a_data_frame():
    frame = pd.DataFrame(data.X, columns=[f"channel {j}" for j in range(40)])
    model = RobustNMFCV(ranks=(2,), n_splits=2, random_state=0).set_output(transform="pandas").fit(frame)
    assert model.transform(frame).columns.tolist() == ["robustnmfcv0", "robustnmfcv1"]
    assert model.feature_names_in_.tolist() == frame.columns.tolist()
    assert isinstance(model.clean(frame), pd.DataFrame)


def test_parameters_of_the_estimator_inside_can_be_set():
    model = RobustNMFCV(estimator=RobustNMF(method="huber")).set_params(estimator__max_iter=7)
    assert clone(model).get_params()["estimator__max_iter"] == 7


def test_estimator_pickles(chosen_model):
    again = pickle.loads(pickle.dumps(chosen_model))
    np.testing.assert_array_equal(again.transform(data.X), chosen_model.transform(data.X))


def test_estimator_that_is_not_fitted_says_so():
    with pytest.raises(NotFittedError):
        RobustNMFCV().transform(data.X)
    with pytest.raises(ValueError, match="sequence of integers"):
        RobustNMFCV(ranks="all").fit(data.X)


# Restarts.


def peaks(n=60, m=40, seed=0):
    """Return codes and components that a factorisation can tell apart: there are samples without each of them."""
    rng = np.random.default_rng(seed)
    components = np.exp(-(((np.arange(m) - m * np.array([[0.2], [0.5], [0.8]])) / (0.15 * m)) ** 2))
    return rng.random((n, 3)) * (rng.random((n, 3)) < 0.6), components


@pytest.fixture(scope="module")
def peaked():
    codes, components = peaks()
    rng = np.random.default_rng(1)
    X = np.maximum(codes @ components + 0.02 * rng.standard_normal((60, 40)), 0)
    return np.where(rng.random(X.shape) < 0.1, 10.0, X)


def test_consensus_is_sure_of_components_that_every_start_finds(peaked):
    result = consensus(peaked, 3, n_init=3, estimator=TruncatedCauchyNMF(init="random"), random_state=0)
    assert result.score > 0.99
    assert result.dispersion > 0.9
    assert match_components(peaks()[1], result.components).similarities.min() > 0.99
    np.testing.assert_array_equal(result.model.components_, result.components)
    assert result.similarity.shape == (3, 3)
    np.testing.assert_allclose(np.diag(result.similarity), 1)
    assert result.similarity.sum(axis=1).argmax() == result.medoid
    assert result.together.shape == (60, 60)


def test_consensus_is_less_sure_of_too_many_components(peaked):
    random_starts = TruncatedCauchyNMF(init="random")
    right, many = (consensus(peaked, rank, n_init=3, estimator=random_starts, random_state=0) for rank in (3, 6))
    assert many.score < right.score - 0.02
    assert many.dispersion < right.dispersion


@pytest.mark.slow
def test_consensus_is_the_same_for_a_seed(peaked):
    one, two = (consensus(peaked, 3, n_init=2, random_state=0, n_jobs=jobs) for jobs in (None, 2))
    np.testing.assert_array_equal(one.components, two.components)
    np.testing.assert_array_equal(one.similarity, two.similarity)


def test_components_of_zeros_match_nothing():
    reference = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    match = _match(reference, np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert match.similarities.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(match.components, [[0, 0, 0], [0, 2, 0], [0, 0, 0]])


def test_cosines_of_many_fits_are_those_of_each_pair():
    rng = np.random.default_rng(0)
    fits = rng.random((4, 3, 7)) * (rng.random((4, 3, 7)) < 0.5) * [[[1e200]], [[1.0]], [[1e-200]], [[0.0]]]
    fits[1, 2] = 0
    pairs = [[_match(one, other).similarities for other in fits] for one in fits]
    np.testing.assert_allclose(_matched_cosines(list(fits)), pairs, atol=1e-12)


def test_consensus_returns_the_same_fit_whether_it_is_kept_or_made_again(peaked, monkeypatch):
    kept = consensus(peaked, 3, n_init=3, random_state=0).model
    monkeypatch.setattr(stability, "MOST_KEPT", 0)
    again = consensus(peaked, 3, n_init=3, random_state=0).model
    np.testing.assert_array_equal(kept.components_, again.components_)
    np.testing.assert_array_equal(kept.outliers_, again.outliers_)


@pytest.mark.parametrize("function", [lambda X: consensus(X, 2, n_init=1), lambda X: consensus(X, 0)])
def test_consensus_refuses_what_makes_no_sense(function):
    with pytest.raises(ValueError, match=r"n_init must be|n_components"):
        function(data.X)


# Bootstrap.


@pytest.fixture(scope="module")
def fitted(peaked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return TruncatedCauchyNMF(3, random_state=0).fit(peaked)


def test_intervals_hold_the_components_and_are_narrow(fitted, peaked):
    result = bootstrap_components(peaked, fitted, n_boot=12, random_state=0)
    assert result.low.shape == result.high.shape == (3, 40)
    inside = (result.low <= fitted.components_) & (fitted.components_ <= result.high)
    assert inside.mean() > 0.7
    assert np.median(result.high - result.low) < 0.1
    assert result.stability.min() > 0.99


@pytest.mark.slow
def test_intervals_are_wider_at_a_higher_level_and_with_more_noise(fitted, peaked):
    options = {"n_boot": 8, "random_state": 0}
    narrow, wide = (bootstrap_components(peaked, fitted, level=level, **options) for level in (0.5, 0.95))
    assert np.all(wide.high - wide.low >= narrow.high - narrow.low)
    noisy = peaked + 0.2 * np.random.default_rng(0).random(peaked.shape)
    model = clone(fitted).fit(noisy)
    noise = bootstrap_components(noisy, model, level=0.5, **options)
    assert np.mean(noise.high - noise.low) > np.mean(narrow.high - narrow.low)


@pytest.mark.slow
def test_bootstrap_is_the_same_for_a_seed_and_takes_gaps_and_weights(fitted, peaked):
    X = peaked.copy()
    X[::7, ::5] = np.nan
    weights = np.random.default_rng(0).integers(1, 3, X.shape)
    one, two = (
        bootstrap_components(X, fitted, weights=weights, n_boot=2, random_state=0, n_jobs=jobs) for jobs in (1, 2)
    )
    np.testing.assert_array_equal(one.low, two.low)
    assert np.isfinite(one.high).all()


def test_bootstrap_refuses_what_makes_no_sense(fitted, peaked):
    with pytest.raises(ValueError, match="level must be"):
        bootstrap_components(peaked, fitted, level=90)
    with pytest.raises(ValueError, match="n_boot must be"):
        bootstrap_components(peaked, fitted, n_boot=0)
    with pytest.raises(NotFittedError):
        bootstrap_components(peaked, TruncatedCauchyNMF(3))


def counts_of(rank, shape=(300, 120), seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.gamma(0.3, 1, (shape[0], rank))
    return sparse.csr_array(rng.poisson(40 * codes @ rng.dirichlet(np.full(shape[1], 0.1), rank)).astype(float))


def test_rank_of_large_sparse_data_is_found_without_making_it_dense(monkeypatch):
    X, made_dense = counts_of(3, (200, 100)), []
    monkeypatch.setattr(rank_search, "DENSE_ENTRIES", X.shape[0] * X.shape[1] - 1)
    toarray = sparse.csr_array.toarray
    monkeypatch.setattr(
        sparse.csr_array, "toarray", lambda self, *args, **kwargs: made_dense.append(self.shape) or toarray(self)
    )
    found = select_rank(X, (1, 3, 6), n_splits=2, random_state=0)
    assert found.chosen == 3
    assert made_dense
    assert max(rows for rows, _ in made_dense) < len(X.toarray())


def test_rank_of_large_sparse_data_with_weights_is_refused(monkeypatch):
    X = counts_of(2, (40, 30))
    monkeypatch.setattr(rank_search, "DENSE_ENTRIES", 100)
    with pytest.raises(IncompatibleError, match=r"not with weights; this one has 40 x 30 entries"):
        select_rank(X, (1, 2), weights=np.ones(X.shape))


def test_auto_components_of_sparse_data_search_sparse_rows(monkeypatch):
    X, seen = counts_of(2, (80, 30)), []
    monkeypatch.setattr(rank_search, "DENSE_ENTRIES", 1000)
    predict = rank_search._SampleSplit.predict
    monkeypatch.setattr(rank_search._SampleSplit, "predict", lambda *given: seen.append(given[2]) or predict(*given))
    assert RobustNMF("auto", random_state=0, max_iter=3).fit(X).n_components_ >= 1
    assert all(sparse.issparse(rows) for rows in seen)
    assert len(seen) > 0
