"""Learning from batches: against a fit of all data, through bursts of corruption, and along a drift."""

import warnings

import numpy as np
import pytest

from robustnmf import RobustNMF, TruncatedCauchyNMF, load
from robustnmf.errors import DataQualityWarning
from robustnmf.metrics import match_components, relative_error

RANK, FEATURES, BATCH = 3, 40, 50


def components_of(seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((RANK, FEATURES)) * (rng.random((RANK, FEATURES)) < 0.6)


def batch(components, seed, outliers=0.1):
    rng = np.random.default_rng([1, seed])
    clean = rng.random((BATCH, RANK)) @ components + 0.01 * rng.random((BATCH, FEATURES))
    return np.where(rng.random(clean.shape) < outliers, 20 * rng.random(clean.shape), clean), clean


def garbage(seed):
    return 10 * np.random.default_rng([2, seed]).random((BATCH, FEATURES))


def stream(batches, **options):
    model = TruncatedCauchyNMF(RANK, random_state=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataQualityWarning)
        for X in batches:
            model.partial_fit(X)
    return model


def error(model, components):
    X, clean = batch(components, seed=999)
    return relative_error(clean, model.transform(X) @ model.components_)


def test_a_stream_comes_close_to_a_fit_of_all_batches():
    components = components_of(1)
    batches = [batch(components, seed)[0] for seed in range(40)]
    together = TruncatedCauchyNMF(RANK, random_state=0).fit(np.concatenate(batches))
    assert error(stream(batches), components) < 1.1 * error(together, components)


def test_more_batches_are_better_than_the_first_alone():
    components = components_of()
    batches = [batch(components, seed, outliers=0.3)[0] for seed in range(15)]
    assert error(stream(batches), components) < error(stream(batches[:1]), components)


def test_a_burst_of_corrupted_batches_leaves_no_trace():
    components = components_of()
    batches = [batch(components, seed)[0] for seed in range(10)]
    burst = [*batches[:5], *(garbage(seed) for seed in range(5)), *batches[5:]]
    undisturbed, disturbed = stream(batches), stream(burst)
    assert error(disturbed, components) < 1.05 * error(undisturbed, components)
    assert disturbed.scale_ == pytest.approx(undisturbed.scale_, rel=0.1)


def test_a_corrupted_batch_is_announced():
    components = components_of()
    model = stream([batch(components, seed)[0] for seed in range(3)])
    with pytest.warns(DataQualityWarning, match="samples of this batch are mostly outliers"):
        model.partial_fit(garbage(0))


def test_components_follow_a_drift():
    first, last = components_of(0), components_of(5)
    shares = np.linspace(0, 1, 60)
    batches = [batch((1 - share) * first + share * last, seed)[0] for seed, share in enumerate(shares)]
    followed, stayed = stream(batches, forget_factor=0.7), stream(batches[:1])
    assert error(followed, last) < 0.25 * error(stayed, last)
    assert match_components(last, followed.components_).similarities.min() > 0.98


def test_the_window_is_bounded_and_old_samples_leave_it(monkeypatch):
    monkeypatch.setattr("robustnmf.algorithm.streaming.MOST_SAMPLES", 120)
    monkeypatch.setattr("robustnmf.algorithm.streaming.MOST_PER_COMPONENT", 10)
    components = components_of(1)
    model = stream([batch(components, seed)[0] for seed in range(5)])
    assert len(model._stream.Y) == 120
    units = model._unit * (1.0 if model._noise is None else model._noise)
    np.testing.assert_allclose(model._stream.Y[-BATCH:] * units, batch(components, 4)[0])
    forgetful = stream([batch(components, seed)[0] for seed in range(5)], forget_factor=0.0)
    assert len(forgetful._stream.Y) == BATCH


def test_missing_entries_and_weights_have_no_influence():
    components = components_of()
    batches = [batch(components, seed)[0] for seed in range(4)]
    rng = np.random.default_rng(0)
    gaps = [rng.random(X.shape) < 0.2 for X in batches]
    by_nan, by_weight = (TruncatedCauchyNMF(RANK, random_state=0) for _ in range(2))
    for X, gap in zip(batches, gaps, strict=True):
        by_nan.partial_fit(np.where(gap, np.nan, X))
        by_weight.partial_fit(np.where(gap, 1e6, X), weights=np.where(gap, 0.0, 1.0))
    np.testing.assert_allclose(by_nan.components_, by_weight.components_, rtol=1e-9, atol=1e-12)


def test_known_components_stay_in_a_stream():
    components = components_of()
    batches = [batch(components, seed)[0] for seed in range(4)]
    model = stream(batches, fixed_components=components[:1])
    np.testing.assert_array_equal(model.components_[0], components[0])


def test_fit_begins_anew_and_samples_are_counted():
    components = components_of()
    batches = [batch(components, seed)[0] for seed in range(3)]
    model = stream(batches)
    assert model.n_samples_seen_ == 3 * BATCH
    model.fit(batches[0])
    assert model.n_samples_seen_ == BATCH
    alone = TruncatedCauchyNMF(RANK, random_state=0).fit(batches[0])
    np.testing.assert_array_equal(model.components_, alone.components_)


@pytest.mark.parametrize("n", [1, 5, BATCH])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_batch_after_a_fit_improves_it_and_does_not_replace_it(n, is_loaded, tmp_path):
    components = components_of()
    (first, _), (later, _) = (batch(components, seed) for seed in range(2))
    model = TruncatedCauchyNMF(RANK, random_state=0).fit(first)
    before = error(model, components)
    if is_loaded:
        model.save(tmp_path / "model.rnmf")
        model = load(tmp_path / "model.rnmf")
    model.partial_fit(later[:n])
    assert model.n_samples_seen_ == BATCH + n
    assert error(model, components) < 1.1 * before


def test_a_feature_that_the_fit_did_not_see_is_learnt_from_batches():
    components = components_of() + 0.1
    first, *later = (batch(components, seed, outliers=0.0)[0] for seed in range(6))
    first[:, 3] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = RobustNMF(RANK, method="l2", random_state=0).fit(first)  # the robust one would reject them
        for X in later:
            model.partial_fit(X)
    assert relative_error(later[-1][:, 3], model.inverse_transform(model.transform(later[-1]))[:, 3]) < 0.02


def test_the_number_of_components_cannot_change_in_a_stream():
    model = stream([batch(components_of(), 0)[0]])
    with pytest.raises(ValueError, match="partial_fit keeps their number"):
        model.set_params(n_components=RANK + 1).partial_fit(batch(components_of(), 1)[0])


def test_a_failed_batch_changes_nothing():
    components = components_of()
    model = stream([batch(components, 0)[0]])
    before = model.components_.copy()
    with pytest.raises(ValueError, match="40 features"):
        model.partial_fit(np.ones((5, 7)))
    np.testing.assert_array_equal(model.components_, before)
    assert model.n_samples_seen_ == BATCH


@pytest.mark.parametrize("method", ["l21", "mahnmf", "near-separable"])
def test_models_without_weights_of_entries_say_so(method):
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'"):
        RobustNMF(2, method=method).partial_fit(np.ones((5, 4)))


@pytest.mark.parametrize("factor", [-0.1, 1.1, "all", None])
def test_forget_factor_must_be_a_share(factor):
    with pytest.raises(ValueError, match="forget_factor must be a number, between 0 and 1"):
        TruncatedCauchyNMF(2, forget_factor=factor).partial_fit(np.ones((5, 4)))
