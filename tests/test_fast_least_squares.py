"""Least squares by fewer passes over the data: against direct formulas and SciPy's non-negative least squares."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import nnls

from robustnmf import RobustNMF
from robustnmf.algorithm import least_squares as least_squares_stage
from robustnmf.algorithm.encoding import Judge
from robustnmf.engines import NumPyEngine, SparseEngine, numpy_engine
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.interface import NO_KERNELS
from robustnmf.kernels.numba import functions, table
from robustnmf.kernels.numba.functions import least_squares, set_weighted_gram, weighted_grams
from robustnmf.kernels.numba.sweep import rule_of, squares, sweep_block, sweep_filled
from robustnmf.model.losses import Squared
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import SharedGram
from robustnmf.solvers.objective import Objective

SIZE, N_FEATURES, RANK = 40, 60, 5


class ReferenceEngine(NumPyEngine):
    """An engine without kernels."""

    kernels = NO_KERNELS


@pytest.fixture
def problem():
    """Return data with noise, weights of which a tenth is small, and factors from which to begin."""
    rng = np.random.default_rng(0)
    Y = rng.gamma(1.0, size=(SIZE, RANK)) @ rng.gamma(1.0, size=(RANK, N_FEATURES))
    Y = np.abs(Y + 0.3 * rng.standard_normal(Y.shape))
    Q = np.where(rng.random(Y.shape) < 0.1, 0.01, 1.0)
    Q[3] *= 1e-3  # a sample that hardly counts
    return Y, Q, rng.random((SIZE, RANK)), rng.random((N_FEATURES, RANK))


def swept(Y, Q, X, W):
    """Return both factors after a sweep by least squares."""
    objective = Objective(Weighting(Squared(), 1.0))
    M, engine = None if Q is None else [Q], NumPyEngine(n_threads=1)
    W, (X,) = SharedGram(fills_in=True).sweep([Y], M, W, [X], objective, engine)
    return X, W


def objective(Y, Q, X, W):
    """Return the weighted sum of squares."""
    return float(np.sum((1.0 if Q is None else Q) * (Y - X @ W.T) ** 2))


def test_least_squares_on_all_entries_is_the_same_with_kernels_without_and_on_sparse_data():
    """Counts of which one in a hundred is positive: some samples tell little of the curvature of all."""
    rng = np.random.default_rng(4)
    P = rng.gamma(0.5, 1, (300, 3)) @ rng.gamma(0.5, 1, (3, 100))
    Y = rng.poisson(0.01 * P / P.mean()).astype(float)
    Y[(Y > 0) & (rng.random(Y.shape) < 0.02)] *= 50
    X, W = 0.1 * rng.random((300, 3)), 0.1 * rng.random((100, 3))
    expected = coordinate_descent(Y, X, W)
    engines = NumPyEngine(1), NumPyEngine(1, 5000), ReferenceEngine(1), SparseEngine(1, 5000)
    for engine in engines:
        V = engine.split(SparseRows(sparse.csr_array(Y)) if engine.keeps_sparse else Y)
        found_W, found_X = SharedGram().sweep(
            V, None, W, engine.split(X, like=V), Objective(Weighting(Squared(), 1.0)), engine
        )
        np.testing.assert_allclose(engine.join(found_X), expected[0], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found_W, expected[1], rtol=1e-9, atol=1e-12)


def coordinate_descent(Y, X, W):
    """Return codes after sweeps of coordinate descent, then the basis, entry by entry, as the equations say."""
    X, W = X.copy(), W.copy()
    for data, factor, other in ((Y, X, W), (Y.T, W, X)):
        gram, products = other.T @ other, data @ other
        for _ in range(SharedGram().max_iter):
            for k in range(gram.shape[0]):
                step = (products[:, k] - factor @ gram[:, k]) / gram[k, k]
                factor[:, k] = np.maximum(factor[:, k] + step, 0)
    return X, W


@pytest.mark.parametrize("weighted", [False, True])
def test_no_sweep_raises_the_objective_and_the_gradient_vanishes(problem, weighted):
    Y, Q, X, W = problem
    Q = Q if weighted else None
    before = objective(Y, Q, X, W)
    for _ in range(1000):
        X, W = swept(Y, Q, X, W)
        after = objective(Y, Q, X, W)
        assert after <= before * (1 + 1e-12)
        before = after
    residual = (1.0 if Q is None else Q) * (Y - X @ W.T)
    for gradient, factor in ((residual @ W, X), (residual.T @ X, W)):
        # Where a factor is positive the gradient is zero, and elsewhere it does not point inside.
        violation = np.where(factor > 0, np.abs(gradient), np.maximum(gradient, 0))
        assert violation.max() < 1e-3 * np.abs(Y).max() * SIZE**0.5


def test_weights_that_are_the_same_are_none(problem):
    Y, _, X, W = problem
    rule = rule_of(Weighting(Squared(), 1.0), Y, RANK)
    assert rule.counts_alike
    linear, checks = np.zeros(RANK), np.arange(SIZE)
    none = sweep_block(Y, None, None, X, checks, W, linear, 0.0, rule, 8)
    ones = sweep_block(Y, np.ones_like(Y), None, X, checks, W, linear, 0.0, rule, 8)
    *filled, cross = sweep_filled(Y, np.ones_like(Y), X, checks, W, linear, 0.0, 8)
    filled[3] = filled[3] + W @ cross
    for a, b in [*zip(ones, none, strict=True), *zip(filled, none, strict=True)]:
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


def test_large_data_is_filled_in_and_ends_where_other_data_does(monkeypatch):
    """Both ways lower the same objective: components are the same but for what is left to converge."""
    rng = np.random.default_rng(3)
    X = rng.gamma(1.0, size=(200, 4)) @ rng.gamma(1.0, size=(4, 50)) * (1 + 0.05 * rng.standard_normal((200, 50)))
    X[rng.random(X.shape) < 0.05] *= 20
    as_usual = RobustNMF(4, random_state=0).fit(X)
    calls = []
    monkeypatch.setattr(least_squares_stage, "FILLED_ENTRIES", 0)
    kernels = replace(table.KERNELS, sweep_filled=_noting(sweep_filled, calls))
    monkeypatch.setattr(numpy_engine, "_compiled_kernels", lambda: kernels)
    filled = RobustNMF(4, random_state=0).fit(X)
    assert calls
    np.testing.assert_allclose(filled.components_, as_usual.components_, atol=2e-3)
    assert np.mean(filled.outliers_ != as_usual.outliers_) < 1e-3


def _noting(function, calls):
    """Return a function that notes that it was called."""

    def call(*arguments):
        calls.append(True)
        return function(*arguments)

    return call


def test_a_threshold_does_not_count_alike(problem):
    Y = problem[0]
    assert not rule_of(Weighting(Squared(), 1.0, np.ones(N_FEATURES)), Y, RANK).counts_alike


def test_gram_matrices_by_products(problem):
    _, Q, _, W = problem
    expected = np.einsum("bj,jk,ji->bki", Q, W, W)
    np.testing.assert_allclose(weighted_grams(Q, W), expected, rtol=1e-10)


@pytest.mark.parametrize("most", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_gram_matrices_of_rows(problem, share, most):
    W, rng = problem[3], np.random.default_rng(2)
    q = np.where(rng.random(len(W)) < share, most * rng.random(len(W)), 1.0)
    ridges = 0.3 * np.eye(RANK)
    found = np.empty((RANK, RANK))
    set_weighted_gram(q, W, W.T @ W + ridges, ridges, found)
    np.testing.assert_allclose(found, np.einsum("j,jk,ji->ki", q, W, W) + ridges, rtol=1e-10)


@pytest.mark.parametrize("smallest", [0, 2**20])
def test_codes_with_many_weights_are_those_of_scipy(problem, smallest, monkeypatch):
    monkeypatch.setattr(functions, "ROW_PRODUCTS", smallest)
    Y, Q, X, W = problem
    found = least_squares(Y, Q, X, W, np.zeros(RANK), 0.0, 1000, 1e-12)
    root = np.sqrt(Q)
    expected = np.array([nnls(q[:, None] * W, q * y)[0] for q, y in zip(root, Y, strict=True)])
    np.testing.assert_allclose(found, expected, atol=1e-6 * expected.max())


def test_sum_of_squares(problem):
    Y, Q, X, W = problem
    for M in (None, Q):
        assert squares(Y, M, X, W) == pytest.approx(objective(Y, M, X, W), rel=1e-12)


def test_codes_of_l2_are_those_of_scipy(problem):
    Y = problem[0]
    model = RobustNMF(RANK, method="l2", random_state=0).fit(Y)
    expected = np.array([nnls(model.components_.T, y)[0] for y in Y])
    np.testing.assert_allclose(model.transform(Y), expected, atol=1e-5 * expected.max())


def test_l2_goes_on_until_little_of_what_is_left_changes(problem):
    """Noise leaves a small part of the first objective; a change that is small beside that may be large beside this."""
    rng = np.random.default_rng(1)
    Y = rng.gamma(1.0, size=(300, RANK)) @ rng.gamma(1.0, size=(RANK, 80))
    Y = Y * (1 + 0.05 * rng.standard_normal(Y.shape))
    default = RobustNMF(RANK, method="l2", random_state=0).fit(Y)
    long = RobustNMF(RANK, method="l2", random_state=0, tol=0.0, max_iter=1000).fit(Y)
    assert default.reconstruction_err_ < 1.01 * long.reconstruction_err_
    assert default.n_iter_ < 300


@pytest.mark.parametrize("share", [0.1, 0.45])
def test_codes_of_wide_samples_are_those_of_their_clean_part(monkeypatch, share):
    """With few gross errors no annealing is needed, with many it is: codes are as if the errors were not there."""
    rng = np.random.default_rng(2)
    X = rng.gamma(1.0, size=(200, 4)) @ rng.gamma(1.0, size=(4, 600))
    X = X * (1 + 0.03 * rng.standard_normal(X.shape))
    model = RobustNMF(4, random_state=0).fit(X)
    new = X[:20].copy()
    wrong = rng.random(new.shape) < share
    new[wrong] = rng.uniform(0, 2 * X.max(), size=np.count_nonzero(wrong))
    annealed = []
    monkeypatch.setattr(Judge, "annealed", _counting(Judge.annealed, annealed))
    codes = model.transform(new)
    clean = [nnls(model.components_.T[~w], x[~w])[0] for w, x in zip(wrong, new, strict=True)]
    np.testing.assert_allclose(codes, np.array(clean), atol=0.05 * np.max(clean))
    assert (sum(annealed) > 0) == (share > 0.4)


def _counting(method, counts):
    """Return a method that notes how many samples it was called with."""

    def call(self, Y, *rest):
        counts.append(len(Y))
        return method(self, Y, *rest)

    return call


def test_samples_that_are_surely_wrong_need_no_code_with_all_entries(monkeypatch):
    """No code makes their largest entries right, and codes without those that are wrong are the same."""
    rng = np.random.default_rng(5)
    clean = rng.gamma(1.0, size=(80, 3)) @ rng.gamma(1.0, size=(3, 600)) * (1 + 0.05 * rng.standard_normal((80, 600)))
    X = np.abs(clean)
    X[:60][rng.random((60, 600)) < 0.1] = 20 * X.max()
    model = RobustNMF(3, random_state=0).fit(X)
    noise = model.noise_
    limits = noise.largest_right(np)
    for predicted in (0.0, 1.0, 1e3, 1e6):
        assert np.all(noise.ratios(1.0001 * limits, predicted + np.zeros(600), np) > 1)
    found, seen = [], []
    are_surely_wrong = Judge.are_surely_wrong

    def note(self, Y, M):
        seen.append(are_surely_wrong(self, Y, M))
        return seen[-1]

    for rule in (note, lambda self, Y, M: np.zeros(len(Y), dtype=bool)):
        monkeypatch.setattr(Judge, "are_surely_wrong", rule)
        found.append((model.transform(X), model.outlier_mask(X)))
    np.testing.assert_array_equal(seen[0], np.arange(80) < 60)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("ranks", [np.full(6, 4), np.array([0, 3, 3, 8, 5, 1])], ids=["alike", "different"])
def test_order_statistics_are_those_of_sorted_rows(ranks):
    A = np.random.default_rng(0).random((6, 9))
    A[2] = 1.0
    np.testing.assert_array_equal(functions.order_statistics(A, ranks), np.sort(A, axis=1)[np.arange(6), ranks])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_coordinates_are_solved_for_as_scipy_does(dtype):
    """Block principal pivoting with a decomposition of our own; a Gram matrix that has none is refused."""
    rng = np.random.default_rng(1)
    A, y = rng.gamma(1.0, size=(300, 130)), rng.standard_normal(300) + 3
    gram, rhs, space = (A.T @ A).astype(dtype), (A.T @ y).astype(dtype), np.empty((132, 130), dtype=dtype)
    found = functions.pivoted(gram, rhs, np.ones(130, dtype=dtype), space)
    expected = nnls(A, y)[0]
    assert 0 < np.count_nonzero(expected) < 130
    np.testing.assert_allclose(found, expected, atol=1e-9 if dtype == np.float64 else 1e-3)
    alike = np.ones((130, 130), dtype=dtype)
    assert functions.pivoted(alike, alike[0], np.ones(130, dtype=dtype), space) is None
