"""Warnings of doubtful data: what is suspicious is named with its remedy, and good data gets none."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from robustnmf import RobustNMF, RobustNMFOutlierDetector, TruncatedCauchyNMF
from robustnmf.data.blocks import data_in_memory
from robustnmf.data.quality import Sample, findings
from robustnmf.datasets import load_orl
from robustnmf.engines import NumPyEngine
from robustnmf.errors import DataQualityWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ENGINE = NumPyEngine(n_threads=1)


def found_in(X, rank=3, names=None):
    """Return the findings of data, without a fit."""
    data = data_in_memory(TruncatedCauchyNMF(), X, None, engine=ENGINE, reset=True)
    return findings(Sample.of(data, ENGINE, names), data, rank)


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


@pytest.mark.parametrize("name", ["iris", "noise", "counts", "8 bits", "spectra", "spikes"])
def test_fits_of_good_data_do_not_warn_of_it(name):
    X, model = good_data()[name], TruncatedCauchyNMF(2 if name == "iris" else 4, random_state=0)
    assert [message for message in told(model, X) if "hardly better than by its start" not in message] == []


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


def test_a_detector_that_is_stuck_is_named():
    X = low_rank().copy()
    X[100:150, 7] = 1.25
    message = one_message(X)
    assert "50 consecutive samples of 1 feature (7), 1.25" in message and "stuck" in message


def test_identical_samples_are_named():
    X = low_rank().copy()
    X[40:80] = X[3]
    messages = found_in(X)
    assert any("41 samples (3, 40, 41, 42, 43, ...) are identical" in message for message in messages)


def test_constant_samples_are_named():
    X = low_rank().copy()
    X[10:40] = np.linspace(0.2, 0.9, 30)[:, None]
    assert "30 samples (10, 11, 12, 13, 14, ...) have the same value" in one_message(X)


@pytest.mark.parametrize("load", [datasets.load_wine, datasets.load_breast_cancer])
def test_features_of_different_sizes_are_named(load):
    table = load(as_frame=True)
    message = one_message(table.data.to_numpy(), names=list(table.data.columns))
    assert "Divide each feature by its typical level" in message
    assert repr(table.data.median().idxmax()) in message


def test_sizes_do_not_matter_beside_uncertainties():
    X = low_rank() * np.where(np.arange(80) < 40, 1.0, 1000.0)
    assert any("differ in size" in message for message in told(RobustNMF(4, random_state=0), X))
    given = told(RobustNMF(4, random_state=0), X, uncertainties=0.02 * np.ones_like(X) * X.mean(axis=0))
    assert not any("differ in size" in message for message in given)


@pytest.mark.filterwarnings("ignore:.*no observed entry")
def test_too_few_entries_are_counted():
    X = np.where(some(0.95), np.nan, low_rank())
    n_observed = np.count_nonzero(~np.isnan(X))
    assert f"{n_observed} observed entries are few for the {3 * 377} parameters of 3 components" in one_message(X)


def test_large_data_is_subsampled_and_samples_keep_their_numbers():
    X = low_rank(6000, 100).copy()  # every second sample is looked at
    X[2001:3001] = X[7]
    (message,) = (message for message in found_in(X) if "identical" in message)
    assert "500 samples (2002, 2004, 2006, 2008, 2010, ...)" in message


# --- Warnings of fits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["numpy", "stream", "torch"])
def test_a_fit_warns_once_of_each_finding(engine):
    if engine == "torch":
        pytest.importorskip("torch")
    X = np.where(some(0.03), 9999.0, level())
    messages = told(TruncatedCauchyNMF(3, engine=engine, random_state=0, max_iter=20), X)
    assert sum("the value 9999" in message for message in messages) == 1
    assert all(message.startswith("TruncatedCauchyNMF: ") for message in messages)


def test_features_and_samples_that_are_mostly_rejected_are_named():
    X = pd.DataFrame(low_rank(), index=[f"day {i}" for i in range(300)], columns=[f"c{j}" for j in range(80)])
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


def test_a_signal_that_is_mostly_rejected_is_told():
    # A few features hold the signal and vary by more than the width that the others have: the default rejects them.
    table = datasets.load_wine().data
    messages = told(TruncatedCauchyNMF(3, random_state=0), table)
    assert any("of the signal" in message or "over half of the entries of" in message for message in messages)


def test_gross_errors_are_no_signal():
    X = np.where(some(0.2), 1000.0 * np.random.default_rng(2).random((300, 80)), low_rank())
    assert told(TruncatedCauchyNMF(4, random_state=0), X) == []
