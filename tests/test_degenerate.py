"""Data with nothing to learn, or next to nothing: fits give finite, bounded results or refuse the data clearly."""

import numpy as np
import pytest

from cleaned_data import assert_cleaned
from robustnmf import METHODS, RobustNMF, TruncatedCauchyNMF

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::robustnmf.errors.DataQualityWarning",
    "ignore:.*no observed entry",
)

# Predictions are at most so many times the largest entry.
SMALL_MULTIPLE = 3.0


def one_positive(n_samples, n_features):
    X = np.zeros((n_samples, n_features))
    X[n_samples // 2, n_features // 2] = 3.0
    return X


def mostly_missing(n_samples, n_features, seed):
    rng = np.random.default_rng(seed)
    X = 0.5 + rng.random((n_samples, n_features))
    return np.where(rng.random(X.shape) < 0.97, np.nan, X)


def sparse_counts(seed, density=0.05, shape=(60, 80)):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < density, rng.poisson(3.0, shape), 0).astype(float)


RNG = np.random.default_rng(0)
CASES = {
    "constant": np.ones((8, 6)),
    "larger constant": np.full((60, 80), 3.0),
    "one positive entry": one_positive(8, 6),
    "one positive entry of many": one_positive(60, 80),
    "zeros": np.zeros((8, 6)),
    "one row": RNG.random((1, 20)),
    "one constant row": np.ones((1, 5)),
    "one column": RNG.random((20, 1)),
    "one entry": np.array([[2.0]]),
    "integers of rank 1": np.outer(np.arange(1.0, 31), np.arange(1.0, 21)),
    "more integers of rank 1": np.outer(np.arange(1.0, 81), np.arange(1.0, 61)),
    "equal rows": np.tile(RNG.random(20), (30, 1)),
    "many equal rows": np.tile(RNG.random(80), (60, 1)),
    "equal columns": np.tile(RNG.random((60, 1)), (1, 80)),
    "97 % missing": mostly_missing(40, 30, 0),
    "97 % of more missing": mostly_missing(120, 100, 1),
    "all but one missing": np.where(one_positive(8, 6) > 0, 2.0, np.nan),
    "tiny": RNG.random((3, 2)),
    "identity": np.eye(30),
    "ones and zeros": sparse_counts(3) > 0,
}


def check_results(model, X, *, bounded_where):
    """Fit, and check that all that a user may ask for is finite, and predictions bounded."""
    codes = np.asarray(model.fit_transform(X))
    predictions = model.inverse_transform(codes)
    results = [codes, predictions, model.components_, model.score_samples(X), model.weights_]
    assert_cleaned(model.clean(X), codes, model.components_)
    assert all(np.isfinite(np.asarray(result)).all() for result in results)
    assert np.isfinite(model.scale_) and np.isfinite(model.objective_)
    bound = SMALL_MULTIPLE * max(np.nanmax(X), np.finfo(float).tiny)
    assert (predictions[bounded_where] <= bound).all()


def ranks(X):
    return [rank for rank in (1, 2, 5) if rank <= min(X.shape)]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("engine", ["numpy", "stream", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_the_default_gives_bounded_results(name, engine):
    if engine == "torch":
        pytest.importorskip("torch")
    X = CASES[name].astype(float)
    for rank in ranks(X) if engine == "numpy" else ranks(X)[-1:]:
        everywhere = np.ones(X.shape, dtype=bool)
        check_results(TruncatedCauchyNMF(rank, engine=engine, random_state=0), X, bounded_where=everywhere)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_finite_results_or_refuses(method):
    # Without the median start nothing determines what is missing: only observed entries are bounded.
    for X in CASES.values():
        X = X.astype(float)
        for rank in ranks(X)[-1:]:
            try:
                model = RobustNMF(rank, method=method, random_state=0, max_iter=30)
                check_results(model, X, bounded_where=~np.isnan(X))
            except ValueError as error:
                assert len(str(error)) > 40


@pytest.mark.thinned(2)
@pytest.mark.parametrize("rank", [2, 5, 10])
def test_small_sparse_counts_get_codes_and_keep_their_signal(rank):
    # With the width of zeros, all that is positive would be rejected and all codes be zero.
    for seed in range(6):
        X = sparse_counts(seed)
        model = TruncatedCauchyNMF(rank, random_state=seed)
        codes = model.fit_transform(X)
        used = model.components_.any(axis=0)  # no code explains a feature that no component has
        assert used[(X > 0).sum(axis=0) > 1].mean() > 0.9
        assert codes[(X[:, used] > 0).any(axis=1)].any(axis=1).all()
        assert model.outliers_[X > 0].mean() < 0.1
        assert (codes @ model.components_).max() < SMALL_MULTIPLE * X.max()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("density", [0.01, 0.02, 0.1])
def test_sparser_and_denser_counts_keep_most_of_their_codes(density):
    for seed in range(4):
        X = sparse_counts(seed, density)
        codes = TruncatedCauchyNMF(5, random_state=seed).fit_transform(X)
        assert codes[(X > 0).any(axis=1)].any(axis=1).mean() > 0.9


def test_codes_are_swept_at_least_once():
    found = [TruncatedCauchyNMF(r, random_state=0).fit(sparse_counts(s))._basis.sweeps for r in (5, 10) for s in (0, 2)]
    assert any(found) and 0 not in found
