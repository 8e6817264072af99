"""Warnings of doubtful data: what is suspicious is named with its remedy, and good data gets none."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from robustnmf import RobustNMF, RobustNMFOutlierDetector, TruncatedCauchyNMF
from robustnmf.data.blocks import data_in_memory
from robustnmf.data.mask_quality import rejected
from robustnmf.data.quality import Finding, Sample, findings
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion
from robustnmf.engines import NumPyEngine
from robustnmf.errors import DataQualityWarning
from robustnmf.metrics import relative_error

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ENGINE = NumPyEngine(n_threads=1)


def found_in(X, rank=3, names=None, **options):
    """Return the findings of data, without a fit."""
    data = data_in_memory(TruncatedCauchyNMF(), X, None, engine=ENGINE, reset=True)
    found = findings(Sample.of(data, ENGINE, names), data, rank, **options)
    return [finding.message for finding in found]


def told(model, X, **given):
    """Return the DataQualityWarnings of a fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, **given)
    return [str(warning.message) for warning in caught if warning.category is DataQualityWarning]


@cache
def low_rank(n_samples=300, n_features=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n_samples, 4)) @ rng.random((4, n_features)) + 0.01 * rng.random((n_samples, n_features))
    X.setflags(write=False)
    return X


def some(share, shape=(300, 80), seed=1):
    return np.random.default_rng(seed).random(shape) < share


# --- Good data --------------------------------------------------------------------------------------------------------


def spectra():
    at = np.linspace(0, 1, 156)
    ends = [
        height * np.exp(-(((at - centre) / 0.3) ** 2)) + 0.05 for centre, height in ((0.2, 0.5), (0.6, 0.8), (0.9, 0.3))
    ]
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.ones(3), 1000) @ np.array(ends) + 0.002 * rng.random((1000, 156))


@cache
def good_data():
    rng, X = np.random.default_rng(0), low_rank()
    scaled = X / X.max()
    mixed = np.hstack([X / X.max(axis=0), np.eye(8)[rng.integers(0, 8, 300)]])
    ratings = rng.integers(1, 6, X.shape).astype(float)
    return {
        "digits": datasets.load_digits().data,
        "iris": datasets.load_iris().data,
        "exercises": datasets.load_linnerud().data,
        "measures": datasets.load_linnerud().target,
        "faces": load_orl().data,
        "photo": datasets.load_sample_images().images[0][:, :, 0].astype(float),
        "noise": X,
        "single precision": X.astype(np.float32),
        "few counts": rng.poisson(0.1 * X).astype(float),
        "counts": rng.poisson(3 * X).astype(float),
        "many counts": rng.poisson(500 * X).astype(float),
        "8 bits": np.round(255 * scaled),
        "8 bits, a little saturated": np.minimum(np.round(280 * scaled), 255),
        "8 bits, white in the middle": np.where(
            some(0.4) & (abs(np.arange(80) - 40) < 10), 300, np.round(255 * scaled)
        ),
        "8 bits, up to 1": np.round(255 * scaled) / 255,
        "ratings": ratings,
        "few ratings": np.where(some(0.6), np.nan, ratings),
        "one-hot": np.eye(10)[rng.integers(0, 10, 500)],
        "one-hot and numbers": mixed,
        "samples of maximum 1": X / X.max(axis=1, keepdims=True),
        "features of maximum 1": X / X.max(axis=0),
        "heavy tails": np.exp(rng.standard_normal((200, 50))),
        "spectra": spectra(),
        "thresholded": np.where(X < np.median(X), 0, X),
        "one value for all below detection": np.maximum(X, np.quantile(X, 0.2)),
        "drawn with replacement": X[rng.integers(0, 300, 300)],
        "spikes": np.where(some(0.1), 50.0, X),
        "a sample of zeros": np.where(np.arange(300)[:, None] == 5, 0, X),
    }


@pytest.mark.parametrize("name", good_data())
def test_good_data_has_no_findings(name):
    assert found_in(good_data()[name], rank=2) == []


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["digits", "noise", "counts", "8 bits", "spectra", "spikes"])
def test_fits_of_good_data_do_not_warn_of_it(name):
    messages = told(TruncatedCauchyNMF(4, random_state=0), good_data()[name][:200])
    said_by_the_fit = ("hardly better than by its start", "taken for wrong")
    assert [message for message in messages if not any(words in message for words in said_by_the_fit)] == []


# --- Doubtful data ----------------------------------------------------------------------------------------------------


def level():
    """Return data that is far from zero, such as temperatures."""
    return 280 + 10 * low_rank()


def one_message(X, **options):
    (message,) = found_in(X, **options)
    return message


@pytest.mark.parametrize("value", [999.0, 9999.0, 99999.0, 65535.0, 1e20])
def test_codes_for_missing_are_named(value):
    message = one_message(np.where(some(0.03), value, level()))
    assert f"the value {value:g} is in " in message
    assert "NaN" in message


def test_a_code_in_one_column_names_the_column():
    X = low_rank()[:, :5].copy()
    X[some(0.05, (300,)), 3] = 9999.0
    assert "1 feature ('d')" in one_message(X, names=list("abcde"), rank=1)


def test_zeros_that_stand_for_missing_are_named():
    message = one_message(np.where(some(0.03), 0.0, level()))
    assert "% of the entries are zero" in message and "NaN" in message


def test_saturation_is_named_with_its_value():
    X = low_rank()
    limit = float(np.quantile(X, 0.95))
    message = one_message(np.minimum(X, limit))
    assert "saturate" in message and f"weights=X < {limit!r}" in message


def test_saturation_of_each_feature_is_named():
    X = low_rank()
    message = one_message(np.minimum(X, np.quantile(X, 0.95, axis=0)))
    assert "the largest value of 80 features" in message and "5.00% of their entries" in message
    assert "weights=X < X.max(axis=0)" in message


def test_white_blocks_that_are_fitted_like_data_are_named_with_a_remedy_that_helps():
    faces = load_orl()
    X, _ = block_occlusion(faces.data, 8, faces.image_shape, value=255, random_state=0)
    (message,) = told(TruncatedCauchyNMF(10, random_state=0, repeated_values="data"), X)
    assert "the largest value, 255, is in 6.25% of the entries" in message and "weights=X < 255.0" in message
    model = TruncatedCauchyNMF(10, random_state=0)
    assert told(model, X, weights=X < 255.0) == []
    plain = TruncatedCauchyNMF(10, random_state=0).fit(faces.data)
    errors = [relative_error(faces.data, fit.transform(faces.data) @ fit.components_) for fit in (plain, model)]
    assert errors[1] < 1.05 * errors[0]


def test_white_pixels_that_are_rejected_are_not_named():
    X = np.round(200 * low_rank() / low_rank().max())
    white = some(0.1)
    covered = np.where(white, 230.0, X)
    assert told_of_rejected(covered, white) == []
    (message,) = told_of_rejected(covered, white & False)
    assert "the largest value, 230" in message


@pytest.mark.parametrize("share", [0.003, 0.6], ids=["few", "background"])
def test_white_pixels_that_are_few_or_a_background_are_not_named(share):
    white = some(share)
    X = np.where(white, 210.0, np.round(200 * low_rank() / low_rank().max()))
    assert told_of_rejected(X, white & False) == []


def test_more_components_than_the_data_has_features_are_named():
    assert any("are few for the" in message for message in found_in(low_rank(), rank=99))


def test_a_remedy_silences_its_warning():
    X = np.minimum(low_rank(), np.quantile(low_rank(), 0.95))
    data = data_in_memory(TruncatedCauchyNMF(), X, (X < X.max()).astype(float), engine=ENGINE, reset=True)
    assert findings(Sample.of(data, ENGINE), data, 3) == []


@pytest.mark.parametrize("stuck", [np.arange(100, 150), np.flatnonzero(some(0.5, (300,)))], ids=["run", "scattered"])
def test_a_detector_that_is_stuck_is_named(stuck):
    X = low_rank().copy()
    X[stuck, 7] = 1.25
    message = one_message(X)
    share = f"{len(stuck) / 300:.2%}"
    assert f"in 1 feature (7): 1.25 in {share} of the entries of feature 7" in message and "stuck" in message


def test_rounded_features_are_not_stuck():
    X = np.round(20 * low_rank())
    X[:, 7] = np.where(some(0.5, (300,)), 12.0, X[:, 7])
    assert found_in(X) == []


def test_a_code_within_the_range_of_the_data_is_named():
    message = one_message(np.where(some(0.05), 999.0, 3000 * low_rank()))
    assert "the value 999 is in 5." in message and "far more common than any other" in message


def test_identical_samples_are_named():
    X = low_rank().copy()
    X[40:80] = X[3]
    assert "41 samples (3, 40, 41, 42, 43, ...) are identical" in one_message(X)


@pytest.mark.parametrize("round_to", [6, 0], ids=["measurements", "integers"])
def test_constant_samples_are_named(round_to):
    X = np.round(20 * low_rank(), round_to)
    X[10:40] = np.arange(1, 31)[:, None]
    assert "30 samples (10, 11, 12, 13, 14, ...) have the same value" in one_message(X)


@pytest.mark.parametrize("load", [datasets.load_wine, datasets.load_breast_cancer])
def test_features_of_different_sizes_are_named_unless_they_are_scaled(load):
    table = load(as_frame=True)
    options = {"names": list(table.data.columns)}
    assert found_in(table.data.to_numpy(), **options) == []
    message = one_message(table.data.to_numpy(), features_are_scaled=False, **options)
    assert "feature_scaling='robust'" in message and repr(table.data.median().idxmax()) in message


def test_only_fits_without_scaling_warn_of_sizes():
    X = low_rank() * np.where(np.arange(80) < 40, 1.0, 1000.0)
    by_setting = {None: True, "auto": False, "robust": False}
    for setting, expected in by_setting.items():
        messages = told(RobustNMF(2, method="l2", feature_scaling=setting, max_iter=3), X)
        assert any("differ in size" in message for message in messages) is expected
    uncertainties = np.ones_like(X) * X.mean(axis=0)
    messages = told(RobustNMF(2, method="l2", feature_scaling=None, max_iter=3), X, uncertainties=uncertainties)
    assert not any("differ in size" in message for message in messages)


@pytest.mark.filterwarnings("ignore:.*no observed entry")
def test_too_few_entries_are_counted():
    X = np.where(some(0.95), np.nan, low_rank())
    n_observed = np.count_nonzero(~np.isnan(X))
    message = one_message(X)
    assert f"{n_observed} observed entries are few for the {3 * 377} parameters of 3 components" in message
    assert "mostly missing" in message
    assert "mostly missing" not in one_message(low_rank()[:, :10], rank=9)
    # Few missing entries ask for hardly more than none.
    few_missing = np.where(some(0.01, (300, 11)), np.nan, low_rank()[:, :11])
    assert found_in(few_missing, rank=4) == []


def test_large_data_is_subsampled_and_samples_keep_their_numbers():
    X = low_rank(6000, 100).copy()  # every second sample is looked at
    X[2001:3001] = X[7]
    (message,) = (message for message in found_in(X) if "identical" in message)
    assert "500 samples (2002, 2004, 2006, 2008, 2010, ...)" in message


# --- Warnings of fits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["numpy", "stream"])
def test_a_fit_warns_once_of_each_finding(engine):
    X = np.where(some(0.03), 9999.0, level())
    messages = told(TruncatedCauchyNMF(3, engine=engine, random_state=0, max_iter=5), X)
    assert sum("the value 9999" in message for message in messages) == 1
    assert all(message.startswith("TruncatedCauchyNMF: ") for message in messages)


def test_features_and_samples_that_are_mostly_rejected_are_named():
    X = pd.DataFrame(low_rank().copy(), index=[f"day {i}" for i in range(300)], columns=[f"c{j}" for j in range(80)])
    rng = np.random.default_rng(0)
    X.iloc[7] = rng.uniform(0, 60, 80)
    X["c11"] = rng.uniform(0, 60, 300)
    messages = told(TruncatedCauchyNMF(4, random_state=0), X)
    assert any("over half of the entries of 1 feature ('c11')" in message for message in messages)
    assert any("over half of the entries of 1 sample ('day 7')" in message for message in messages)


def test_a_detector_does_not_warn_of_what_it_finds():
    X = low_rank().copy()
    X[7] = np.random.default_rng(0).uniform(0, 60, 80)
    detector = RobustNMFOutlierDetector(4, random_state=0)
    assert told(detector, X) == []
    assert detector.predict(X)[7] == -1


def test_gross_errors_are_no_signal():
    X = np.where(some(0.2), 1000.0 * np.random.default_rng(2).random((300, 80)), low_rank())
    assert told(TruncatedCauchyNMF(4, random_state=0), X) == []


# --- What is rejected -------------------------------------------------------------------------------------------------


def told_of_rejected(X, outliers, found=(), **options):
    """Return what is said of a mask."""
    data = data_in_memory(TruncatedCauchyNMF(), X, None, engine=ENGINE, reset=True)
    told_of = rejected(Sample.of(data, ENGINE), data, outliers, ENGINE, found=list(found), **options)
    return [finding.message for finding in told_of]


def upper_half():
    """Return data and a mask of the large entries of each feature: half of the entries, and most of the signal."""
    X = 1 + np.random.default_rng(0).random((300, 80))
    return X, X >= np.median(X, axis=0)


def test_a_signal_that_is_mostly_rejected_is_told_unless_the_fit_says_so():
    (message,) = told_of_rejected(*upper_half())
    assert "of the signal" in message and "method='l2'" in message
    assert told_of_rejected(*upper_half(), fit_warns=True) == []


def test_features_and_their_signal_are_one_warning():
    X, outliers = upper_half()
    (message,) = told_of_rejected(X, outliers | (np.arange(80) < 3))
    assert "3 features (0, 1, 2) are rejected as outliers, and with them" in message and "of the signal" in message


def test_what_was_found_in_the_data_is_not_told_again():
    outliers = (np.arange(80) < 2) | (np.arange(300) < 5)[:, None]
    known = Finding("stuck", features=np.array([0]), samples=np.array([0, 1]))
    (message,) = told_of_rejected(low_rank(), outliers, [known])
    assert "1 feature (1)" in message
    assert len(told_of_rejected(low_rank(), outliers)) == 2


def test_what_is_predicted_well_is_not_named():
    """Where there is hardly any noise, small residuals are outliers too."""
    rng = np.random.default_rng(0)
    codes, components = rng.random((300, 4)), rng.random((4, 80))
    outliers = (np.arange(80) < 2) | (np.arange(300) < 5)[:, None]
    for error, n_warnings in ((0.01, 0), (0.5, 2)):
        X = codes @ components * np.where(outliers, 1 + error, 1.0)
        assert len(told_of_rejected(X, outliers, factors=(codes, components))) == n_warnings


def test_a_stuck_detector_is_told_once():
    X = low_rank().copy()
    X[some(0.6, (300,)), 11] = 30.0
    messages = told(TruncatedCauchyNMF(4, random_state=0), X)
    assert len(messages) == 1 and "30 in " in messages[0]


@pytest.mark.filterwarnings("ignore:.*no observed entry")
def test_missing_entries_are_not_counted():
    X = np.where(np.arange(80) < 40, np.nan, low_rank())
    outliers = (np.arange(300) == 7)[:, None] & (np.arange(80) >= 55)
    data = data_in_memory(TruncatedCauchyNMF(), X[:, 30:], None, engine=ENGINE, reset=True)
    (found,) = rejected(Sample.of(data, ENGINE), data, outliers[:, 30:], ENGINE, found=[])
    assert "1 sample (7)" in found.message


def mostly_wrong():
    """Return data of which so much is wrong that the fit warns."""
    rng = np.random.default_rng(0)
    X = rng.random((80, 3)) @ rng.random((3, 20))
    wrong = rng.random(X.shape) < 0.42
    X[wrong] = 5 * rng.random(wrong.sum())
    return X


def test_advice_that_is_followed_already_is_not_given():
    (message,) = told_of_rejected(*upper_half(), sizes_count_alike=True)
    assert "Use more components, or" in message and "feature_scaling" not in message
    for scaling, is_advised in ((None, True), ("robust", False)):
        messages = told(RobustNMF(3, random_state=0, feature_scaling=scaling), mostly_wrong())
        assert any("feature" in message and "If they are right, use" in message for message in messages)
        assert any("feature_scaling='robust'" in message for message in messages) == is_advised


def test_one_share_of_outliers_is_told():
    """What a warning says of the share of wrong entries is what the mask has."""
    model = RobustNMF(3, random_state=0)
    (message,) = (message for message in told(model, mostly_wrong()) if "taken for wrong" in message)
    share = model.outliers_.mean()
    assert f"{share:.0%} of" in message or f"{share:.1%} of" in message
    assert f"{share:.0%}" != f"{model.comparison_.rejected:.0%}"  # or nothing was tested


@pytest.mark.parametrize("factor", [1000.0, 0.01])
def test_part_of_a_feature_in_another_unit_is_named(factor):
    rng = np.random.default_rng(0)
    X = 5 + rng.random((200, 3)) @ rng.random((3, 20))
    X[:60, 7] *= factor
    assert "entries of 1 feature (7) are in two groups" in " ".join(told(TruncatedCauchyNMF(3, random_state=0), X))


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_data_of_one_value_is_named(value):
    X = np.full((60, 20), value)
    assert any(f"all entries are {value:g}" in message for message in told(TruncatedCauchyNMF(2), X))
    X[3, 4] = np.nan
    assert any(f"all entries are {value:g}" in message for message in told(TruncatedCauchyNMF(2), X))
    X[5, 6] = 7.0
    assert not any("all entries are" in message for message in told(TruncatedCauchyNMF(2), X))


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
def test_part_in_another_unit_is_nearer_where_features_vary_little(factor):
    rng = np.random.default_rng(0)
    X = 20 + rng.gamma(2, 1, (60, 2)) @ rng.gamma(2, 0.05, (2, 30))
    accepted = np.zeros(X.shape, dtype=bool)
    assert not any("two groups" in message for message in told_of_rejected(X, accepted))
    X[rng.permutation(60)[:7], :15] *= factor
    (message,) = (message for message in told_of_rejected(X, accepted) if "two groups" in message)
    assert "15 features" in message


def test_part_of_a_feature_that_is_rejected_is_not_named():
    X = 5 + np.random.default_rng(0).random((200, 20))
    wrong = np.zeros(X.shape, dtype=bool)
    wrong[:30, 7] = True
    X = np.where(wrong, 100 * X, X)
    assert any("two groups" in message for message in told_of_rejected(X, wrong & False))
    assert not any("two groups" in message for message in told_of_rejected(X, wrong))


@pytest.mark.parametrize("kind", ["wide", "zeros", "few", "close"])
def test_feature_of_one_unit_is_not_named(kind):
    rng = np.random.default_rng(0)
    X = rng.lognormal(sigma=1.5 if kind == "wide" else 0.1, size=(200, 20))
    some = rng.random(200) < 0.3
    X[some, 7] *= {"wide": 20.0, "zeros": 0.0, "few": 1.0, "close": 3.0}[kind]
    X[:4, 7] *= 1000.0 if kind == "few" else 1.0
    assert not any("two groups" in message for message in told_of_rejected(X, np.zeros(X.shape, dtype=bool)))


@pytest.mark.parametrize(("unexplained", "is_told"), [(0.7, True), (0.9, False)])
def test_squares_that_are_rejected_and_explained_in_part_are_told(unexplained, is_told):
    X = low_rank().copy()
    largest = X > np.quantile(X, 0.97)
    X[largest] *= 5
    messages = told_of_rejected(X, largest, unexplained=unexplained)
    assert any("of the sum of squares is rejected" in message for message in messages) == is_told
