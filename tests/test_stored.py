"""Functions of stored entries return what those of dense blocks return."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.optimize import nnls

from robustnmf.algorithm.beyond import Beyond, replaced
from robustnmf.algorithm.singular_start import from_singular_vectors, singular_start, winsorised
from robustnmf.engines import NumPyEngine, SparseEngine
from robustnmf.engines.protocol import block_function
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.interface import PredictionBounds
from robustnmf.kernels.numba.table import KERNELS
from robustnmf.model.noise import NoiseModel
from robustnmf.solvers.base import UNIFORM
from robustnmf.utils.entries import Changes, Entries, entries_at, starts_of

STORED = KERNELS.stored


def entries_of(Y, changes=None):
    matrix = sparse.csr_array(Y)
    return Entries(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data, Y.shape[1], changes)


def problem(m=60, n=40, rank=5, seed=0):
    """Return sparse counts, codes, a basis; data and weights in which some entries are replaced; the same stored."""
    rng = np.random.default_rng(seed)
    Y, X, W = rng.poisson(0.3, (n, m)).astype(float), rng.random((n, rank)), rng.random((m, rank))
    wrong = rng.random(Y.shape) < 0.03
    filled, weights = np.where(wrong, rng.random(m), Y), np.where(wrong, 0.1 * rng.random(m), 1.0)
    of_rows = np.where(rng.random(n) < 0.2, 1e-3, 1.0)
    rows, columns = np.nonzero(wrong)
    there = (rows, columns)
    parts = (Y[there], filled[there], weights[there], of_rows)
    entries = entries_of(Y, Changes(starts_of(rows, n), columns.astype(np.int32), *parts))
    return Y, X, W, filled, weights * of_rows[:, None], entries


def model_of(m, exponent, rng):
    positive = 0.5 + rng.random((6, m))
    widths, levels, largest, centers, anchors, least = positive
    return NoiseModel(0.2 * widths, levels, 3 * largest, centers, 0.01 * anchors, 0.3 * least, exponent, 4.0)


@pytest.mark.parametrize("m", [60, 3000], ids=["all features check", "some do"])
@pytest.mark.parametrize("penalty", [(0.0, 0.0), (0.01, 0.02)], ids=["plain", "penalised"])
def test_a_sweep_over_stored_entries_is_that_over_dense_rows(m, penalty):
    _, X, W, filled, weights, entries = problem(m)
    linear, ridge = np.full(5, penalty[0]), penalty[1]
    checks, rule = np.array([0, 5, 7]), KERNELS.rule_of(UNIFORM, filled, 5)
    dense = KERNELS.sweep_block(filled, weights, None, X, checks, W, linear, ridge, rule, 8)
    for expected, found in zip(dense, STORED.sweep(entries, X, checks, W, linear, ridge, 8), strict=True):
        assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_codes_of_stored_entries_solve_non_negative_least_squares():
    _, X, W, filled, weights, entries = problem()
    found = STORED.least_squares(entries, 0 * X, W, 0.0, 0.0, 1000, 1e-14)
    for y, q, x in zip(filled, weights, found, strict=True):
        assert_allclose(x, nnls(np.sqrt(q)[:, None] * W, np.sqrt(q) * y)[0], atol=1e-9)


def test_squares_of_stored_entries_count_zeros():
    _, X, W, filled, weights, entries = problem()
    assert STORED.squares(entries, X, W) == pytest.approx(np.sum(weights * (filled - X @ W.T) ** 2))


@pytest.mark.parametrize("m", [16, 61, 500])
def test_zeros_beyond_limits_are_all_found(m):
    Y, X, W, *_ = problem(m)
    limits = 1.0 + np.random.default_rng(1).random(m)
    limits[::7] = np.inf
    entries = entries_of(Y)
    rows, columns = STORED.zeros_beyond(entries.indptr, entries.columns, X, W, PredictionBounds.of(W, limits))
    expected = np.nonzero((X @ W.T > limits) & (Y == 0))
    assert len(rows) > 10
    assert_array_equal(rows, expected[0])
    assert_array_equal(columns, expected[1])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_what_is_beyond_is_found_among_stored_entries_and_zeros(exponent):
    rng = np.random.default_rng(0)
    Y, X, W, *_ = problem()
    model = model_of(60, exponent, rng)
    expected = model.ratios(Y, X @ W.T, np) > 1
    found = Beyond(W, model)(entries_of(Y), X, STORED)
    assert (expected & (Y == 0)).any() and (expected & (Y > 0)).any()
    assert_array_equal(found.with_values(np.ones(len(found.values))).dense() > 0, expected)
    assert_array_equal(found.values, Y[expected])
    changes = replaced(found, model, None)
    assert_array_equal(changes.new, np.broadcast_to(model.centers, Y.shape)[expected])
    assert_array_equal(changes.weights, np.broadcast_to(model.anchors, Y.shape)[expected])


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_zeros_are_right_up_to_their_limit_and_wrong_above_it(exponent):
    model = model_of(200, exponent, np.random.default_rng(2))
    limits = model.limits_of_zeros
    always = ~np.isfinite(limits)
    zeros, below = np.zeros(200), np.where(always, 1e6, limits)
    assert (model.ratios(zeros, below, np) <= 1).all()
    above = model.ratios(zeros, 1.0001 * limits + 1e-9, np)
    assert (above[~always] > 1).all()


def test_entries_can_be_looked_up_chosen_and_made_dense():
    rng = np.random.default_rng(0)
    Y = rng.poisson(0.4, (9, 7)).astype(np.float32)
    entries = entries_of(Y)
    assert_array_equal(entries.dense(), Y)
    assert_array_equal(entries[2:8:3].dense(), Y[2:8:3])
    assert_array_equal(entries[np.array([4, 1])].dense(), Y[[4, 1]])
    rows, columns = np.divmod(rng.permutation(63), 7)
    assert_array_equal(entries[rows, columns], Y[rows, columns])
    assert entries.n_zeros == np.sum(Y == 0)
    again = entries_at(rows, columns, Y[rows, columns], Y.shape)
    assert_array_equal(again.dense(), Y)
    with pytest.raises(TypeError):
        np.ones(7) * entries


def _kind_of_stored(Y, M, *, xp):
    return "stored" if isinstance(Y, Entries) else "neither"


@block_function(stored=_kind_of_stored)
def _kind(Y, M, *, xp):
    return "dense" if isinstance(Y, np.ndarray) else "neither"


def test_a_function_gets_stored_entries_from_the_sparse_engine_unless_there_are_weights():
    Y, engine = problem()[0], SparseEngine(1, block_entries=1000)
    blocks = engine.split(SparseRows(sparse.csr_array(Y)))
    weights = engine.split(np.ones_like(Y), like=blocks)
    assert len(blocks) > 1
    assert engine.map(_kind, blocks, None) == ["stored"] * len(blocks)
    assert engine.map(_kind, blocks, weights) == ["dense"] * len(blocks)
    assert NumPyEngine(1).map(_kind, [Y], None) == ["dense"]


@pytest.mark.parametrize("q", [0.1, 0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("density", [0.2, 0.7])
def test_quantiles_of_stored_data_count_its_zeros(q, density):
    rng = np.random.default_rng(3)
    Y = rng.gamma(1, 1, (301, 40)) * (rng.random((301, 40)) < density)
    dense, engine = NumPyEngine(1), SparseEngine(1, block_entries=2000)
    blocks = engine.split(SparseRows(sparse.csr_array(Y)))
    assert engine.quantile(blocks, None, q) == dense.quantile([Y], None, q)
    assert_array_equal(engine.quantile(blocks, None, q, axis="feature"), dense.quantile([Y], None, q, axis="feature"))


def test_singular_vectors_begin_near_the_components():
    rng = np.random.default_rng(0)
    H, W = rng.gamma(0.5, 1, (400, 5)), rng.gamma(0.2, 1, (5, 300))
    X = sparse.csr_array(rng.poisson(0.05 * H @ W).astype(float))
    codes, components = from_singular_vectors(X, 5)
    assert (codes >= 0).all() and (components >= 0).all()
    best = np.linalg.svd(X.toarray(), compute_uv=False)
    left = np.linalg.norm(X.toarray() - codes @ components) ** 2
    assert left < 1.2 * np.sum(best[5:] ** 2)


def test_a_start_from_singular_vectors_is_the_same_for_dense_and_sparse_data():
    rng = np.random.default_rng(0)
    Y, X, W, *_ = problem(seed=4)
    Y[rng.random(Y.shape) < 0.01] = 500.0
    found = []
    for engine, data in ((NumPyEngine(1), Y), (SparseEngine(1), SparseRows(sparse.csr_array(Y)))):
        V, Ht = engine.split(data), engine.split(X)
        limited = engine.map(winsorised, V, Ht, W=W, largest=1.0, beyond=2.0, engine=engine)
        assert max(engine.join(engine.map(_largest, limited))) <= 3.0
        W0, codes = singular_start(limited, 3, engine)
        found.append((W0, engine.join(codes)))
    for dense, stored in zip(*found, strict=True):
        assert_allclose(stored, dense, rtol=1e-9, atol=1e-12)


def _largest(Y, *, xp):
    return np.array([(Y.values if isinstance(Y, Entries) else Y).max()])
