"""Warnings of predictions that the accepted entries do not determine: given where it is so, and only there."""

import warnings

import numpy as np
import pytest
from numpy.linalg import lstsq, pinv
from sklearn.datasets import load_iris

from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.algorithm import leverage
from robustnmf.algorithm.least_squares import Comparison
from robustnmf.algorithm.leverage import UNBOUNDED, entry_leverages
from robustnmf.algorithm.undetermined import (
    Evidence,
    Factors,
    _probability_larger,
    self_explained,
    unbounded,
    unpredicted_zeros,
)
from robustnmf.data.quality import Sample
from robustnmf.datasets import load_orl
from robustnmf.errors import DataQualityWarning

ZEROS, SELF_EXPLAINED, UNDETERMINED = "as large as positive", "follow single entries", "not determined by the accepted"


def table(seed=0, shape=(200, 12), rank=3, spread=0.0):
    """Return data of low rank with small proportional noise, and sizes of samples over orders of magnitude."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(spread * rng.standard_normal((shape[0], 1)))
    clean = sizes * rng.gamma(1.0, size=(shape[0], rank)) @ rng.gamma(1.0, size=(rank, shape[1]))
    return rng, clean * np.exp(0.05 * rng.standard_normal(shape))


def fit_and_warnings(X, rank, **of_entries):
    """Return a fit, and the text of its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = TruncatedCauchyNMF(rank, random_state=0).fit(X, **of_entries)
    return model, " ".join(str(one.message) for one in found if one.category is DataQualityWarning)


def evidence(X, outliers, codes, components, every=1):
    return Evidence(Factors(Sample(X, every), outliers, codes, components))


# --- Leverages --------------------------------------------------------------------------------------------------------


def test_leverages_are_those_of_a_projection():
    rng = np.random.default_rng(0)
    A, accepted = rng.gamma(1.0, size=(20, 4)), rng.random((6, 20)) < 0.7
    for row, found in zip(accepted, entry_leverages(A, accepted), strict=True):
        of_accepted = np.diag(A[row] @ pinv(A[row]))
        np.testing.assert_allclose(found[row], of_accepted, rtol=1e-6)
        for j in np.flatnonzero(~row):  # an entry's own part, beside the others: h / (1 - h) of it with them
            with_it = A[row | (np.arange(20) == j)]
            place = np.count_nonzero(row[:j])
            h = (with_it @ pinv(with_it))[place, place]
            np.testing.assert_allclose(found[j], h / (1 - h), rtol=1e-4)


def test_what_nothing_determines_has_a_large_leverage():
    A, accepted = np.eye(3), np.array([[True, True, False], [False, False, False]])
    found = entry_leverages(A, accepted)
    np.testing.assert_allclose(found[0, :2], 1, rtol=1e-9)
    assert (found[0, 2] == UNBOUNDED) and (found[1] == UNBOUNDED).all()


def test_leverages_do_not_depend_on_the_size_of_a_component():
    rng = np.random.default_rng(0)
    A, accepted = rng.gamma(1.0, size=(20, 4)), rng.random((6, 20)) < 0.7
    np.testing.assert_allclose(
        entry_leverages(A * [1, 1e-9, 1e9, 0.1], accepted), entry_leverages(A, accepted), rtol=1e-6
    )


def test_leave_one_out_predictions_are_those_of_least_squares_without_the_entry():
    """The codes of one sample; its part in the components is nothing if there are many samples."""
    rng = np.random.default_rng(0)
    components, codes = rng.gamma(1.0, size=(3, 15)), rng.gamma(1.0, size=(5000, 3))
    X = codes @ components + 0.01 * rng.random((5000, 15))
    codes = lstsq(components.T, X.T, rcond=None)[0].T
    found = X.max() * evidence(X, np.zeros(X.shape, dtype=bool), codes, components).leave_one_out
    for j in (0, 7):
        rest = np.arange(15) != j
        expected = lstsq(components.T[rest], X[0, rest], rcond=None)[0] @ components[:, j]
        np.testing.assert_allclose(found[0, j], expected, rtol=1e-2)


def test_other_samples_count_where_some_are_looked_at():
    rng, X = table()
    codes, components = rng.gamma(1.0, size=(200, 3)), rng.gamma(1.0, size=(3, 12))
    outliers = np.zeros(X.shape, dtype=bool)
    by_sample, by_feature = evidence(X, outliers, codes, components, every=4).leverages
    expected = evidence(X, outliers, codes, components).leverages
    np.testing.assert_allclose(by_sample, expected[0])
    np.testing.assert_allclose(by_feature, expected[1] / 4)


def test_leverages_do_not_depend_on_how_many_are_found_at_a_time(monkeypatch):
    rng = np.random.default_rng(0)
    A, accepted = rng.gamma(1.0, size=(20, 4)), rng.random((30, 20)) < 0.7
    expected = entry_leverages(A, accepted)
    monkeypatch.setattr(leverage, "GRAM_ENTRIES", 50)
    np.testing.assert_allclose(entry_leverages(A, accepted), expected, rtol=1e-9)


def test_few_of_many_samples_do_not_tell_features():
    """A rejected entry would have a large leverage beside the few samples that are looked at, and has none in fact."""
    rng = np.random.default_rng(0)
    codes, components = rng.gamma(1.0, size=(14, 10)), rng.gamma(1.0, size=(10, 500))
    X, outliers = codes @ components, rng.random((14, 500)) < 0.05
    assert unbounded(evidence(X, outliers, codes, components)) != []
    assert unbounded(evidence(X, outliers, codes, components, every=20)) == []


def test_the_probability_of_a_larger_number_counts_pairs():
    rng = np.random.default_rng(0)
    some, others = rng.integers(0, 5, 30), rng.integers(0, 6, 40)
    pairs = np.subtract.outer(some, others)
    assert _probability_larger(some, others) == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


# --- Zeros ------------------------------------------------------------------------------------------------------------


def test_zeros_that_are_predicted_like_positive_entries_are_reported():
    rng, X = table()
    clean = X.copy()
    X[rng.random(X.shape) < 0.1] = 0
    found = unpredicted_zeros(evidence(X, np.zeros(X.shape, dtype=bool), *factors(clean)))
    assert len(found) == 1 and ZEROS in found[0].message
    assert "12 features" in found[0].message
    rejected = unpredicted_zeros(evidence(X, X == 0, *factors(clean)))
    assert rejected == []


def test_zeros_that_the_components_know_are_data():
    rng, _ = table()
    codes = rng.gamma(1.0, size=(200, 3)) * (rng.random((200, 3)) < 0.7)
    components = np.kron(np.eye(3), np.ones(4)) * rng.gamma(1.0, size=12)  # features of one component each
    X = codes @ components * np.exp(0.05 * rng.standard_normal((200, 12)))
    assert 0.2 < np.mean(X == 0) < 0.4
    assert unpredicted_zeros(evidence(X, np.zeros(X.shape, dtype=bool), codes, components)) == []
    _, message = fit_and_warnings(X, 3)
    assert ZEROS not in message


def test_zeros_among_counts_are_data():
    rng, X = table()
    _, message = fit_and_warnings(rng.poisson(2 * X / X.mean()).astype(float), 3)
    assert ZEROS not in message


def factors(X, rank=3):
    """Return codes and components of least squares."""
    model = RobustNMF(rank, method="l2", random_state=0)
    return model.fit_transform(X), model.components_


# --- Entries that explain themselves ----------------------------------------------------------------------------------


def test_components_that_follow_single_entries_are_reported():
    """Numbers that have nothing to do with each other: four components fit six features, and predict none."""
    X = np.exp(1.5 * np.random.default_rng(0).standard_normal((300, 6)))
    model, message = fit_and_warnings(X, 4)
    assert model.comparison_.takes_all and model.comparison_.rejected > 0.03
    assert SELF_EXPLAINED in message


def test_a_fit_that_predicts_gets_no_warning():
    for X, rank in ((load_iris().data, 2), (table()[1], 3), (load_orl().data[:100].astype(float), 10)):
        assert SELF_EXPLAINED not in fit_and_warnings(X, rank)[1]


# --- Predictions that nothing bounds ----------------------------------------------------------------------------------


def test_predictions_that_accepted_entries_do_not_determine_are_reported():
    _, X = table(shape=(60, 10))
    codes, components = factors(X)
    outliers = np.zeros(X.shape, dtype=bool)
    outliers[:3, 2:] = True  # two entries of these samples are left for three components
    codes[:3] *= 5
    found = unbounded(evidence(X, outliers, codes, components))
    assert len(found) == 1 and UNDETERMINED in found[0].message
    assert "3 samples (" in found[0].message


def test_missing_entries_count_as_rejected_ones_do():
    _, X = table(shape=(60, 10))
    codes, components = factors(X)
    X[:3, 2:] = np.nan
    codes[:3] *= 5
    assert UNDETERMINED in unbounded(evidence(X, np.zeros(X.shape, dtype=bool), codes, components))[0].message


@pytest.mark.parametrize("times, warns", [(1.0, False), (30.0, True)])
def test_a_single_sample_that_is_predicted_beyond_the_data_is_reported(times, warns):
    _, X = table(shape=(300, 10))
    codes, components = factors(X)
    outliers = np.zeros(X.shape, dtype=bool)
    outliers[7, 2:] = True
    codes[7] *= times
    found = unbounded(evidence(X, outliers, codes, components))
    assert [("1 sample (7)" in finding.message) for finding in found] == [True] * warns


@pytest.mark.parametrize("spike, warns", [(0.0, False), (100.0, True)])
def test_a_component_of_one_accepted_entry_is_reported(spike, warns):
    _, X = table(shape=(60, 10))
    codes, components = factors(X)
    X[5, 3] += spike * X.max()
    codes = np.column_stack([codes, 0.999 * X[5, 3] * (np.arange(60) == 5) * warns])
    components = np.vstack([components, np.arange(10) == 3])
    comparison = Comparison(1.0, 1.0, 1.0, 1.0, 0.01, 1.0, 0.1, 1.0)
    found = self_explained(evidence(X, np.zeros(X.shape, dtype=bool), codes, components), comparison)
    assert [SELF_EXPLAINED in finding.message for finding in found] == [True] * warns


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_errors_and_gaps_that_the_rest_predicts_get_no_warning(share):
    rng, X = table(shape=(200, 40))
    X[rng.random(X.shape) < share] = 100 * X.max()
    X[rng.random(X.shape) < 0.1] = np.nan
    model, message = fit_and_warnings(X, 3)
    assert model.outliers_.mean() == pytest.approx(0.9 * share, abs=0.02)
    assert not any(words in message for words in (ZEROS, SELF_EXPLAINED, UNDETERMINED))


def test_entries_of_unequal_weight_get_no_warning():
    """Leverages would depend on the weights."""
    X = np.exp(1.5 * np.random.default_rng(0).standard_normal((300, 6)))
    weights = np.full(X.shape, 0.5)
    assert SELF_EXPLAINED in fit_and_warnings(X, 4, weights=weights)[1]  # all alike
    weights[0, 0] = 1.0
    assert SELF_EXPLAINED not in fit_and_warnings(X, 4, weights=weights)[1]
    assert SELF_EXPLAINED not in fit_and_warnings(X, 4, uncertainties=0.1 * X + 0.1)[1]


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_the_size_of_the_data_does_not_matter(factor):
    X = np.exp(1.5 * np.random.default_rng(0).standard_normal((300, 6)))
    assert SELF_EXPLAINED in fit_and_warnings(factor * X, 4)[1]


def test_faces_under_squares_get_no_warning():
    X = load_orl().data[:200].astype(float)
    rng = np.random.default_rng(0)
    for face in X.reshape(-1, 32, 32):
        row, column = rng.integers(0, 24, 2)
        face[row : row + 8, column : column + 8] = 255
    _, message = fit_and_warnings(X, 20)
    assert not any(words in message for words in (ZEROS, SELF_EXPLAINED, UNDETERMINED))
