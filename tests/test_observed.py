"""Data of which most entries are missing: what is stored is visited, and results are those of dense data."""

import array_api_compat.numpy as xp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from robustnmf import RobustNMF
from robustnmf.engines import NumPyEngine, ObservedEngine, observed_engine
from robustnmf.errors import IncompatibleError
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.interface import CAUCHY, SQUARED, Rule
from robustnmf.kernels.numba.observed import KERNELS, row_quantiles
from robustnmf.kernels.numba.table import KERNELS as DENSE
from robustnmf.utils.observed import Observed, Outer, Pattern, UnknownEntriesError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SHAPE, RANK = (30, 20), 3


def stored(density=0.4, seed=0, shape=SHAPE):
    """Return which entries are stored, as booleans and as a pattern."""
    is_stored = np.random.default_rng(seed).random(shape) < density
    matrix = sparse.csr_array(is_stored)
    return is_stored, Pattern(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), shape[1])


def pair(rest=0.0, seed=0):
    """Return an array as dense and as observed one; what is not stored is `rest`, (B, m) if dense."""
    is_stored, pattern = stored()
    values = np.random.default_rng(seed + 1).random(SHAPE)
    full = rest.rows * rest.columns if isinstance(rest, Outer) else rest
    return np.where(is_stored, values, full), Observed(pattern, values[is_stored], rest)


RESTS = {
    "zero": 0.0,
    "number": 2.0,
    "rows": np.linspace(1, 2, SHAPE[0])[:, None],
    "columns": np.linspace(3, 4, SHAPE[1])[None, :],
    "products": Outer(np.linspace(1, 2, SHAPE[0])[:, None], np.linspace(3, 4, SHAPE[1])[None, :]),
}


@pytest.mark.parametrize("rest", RESTS.values(), ids=RESTS)
def test_observed_arrays_compute_what_dense_ones_do(rest):
    dense, observed = pair(rest)
    by = np.arange(1.0, SHAPE[1] + 1)
    assert_allclose((observed * by).dense(), dense * by)
    assert_allclose(observed.T.dense(), dense.T)
    assert_allclose(observed[3:9].dense(), dense[3:9])
    assert_allclose(observed[:, by > 5].dense(), dense[:, by > 5])
    for axis in (None, 0, 1):
        assert_allclose(xp.sum(observed, axis=axis), dense.sum(axis=axis))
    F = np.random.default_rng(5).random((SHAPE[1], RANK))
    assert_allclose(observed @ F, dense @ F)
    assert_allclose(observed @ F[:, 0], dense @ F[:, 0])


def test_reductions_of_what_is_one_number_elsewhere():
    dense, observed = pair(0.0)
    assert_array_equal(xp.max(observed, axis=1), dense.max(axis=1))
    assert_array_equal(xp.any(observed > 0.9, axis=0), (dense > 0.9).any(axis=0))
    assert xp.count_nonzero(observed) == np.count_nonzero(dense)
    rows, columns = np.array([0, 4, 7]), np.array([1, 1, 19])
    assert_array_equal(observed[rows, columns], dense[rows, columns])


def test_weights_of_zero_make_unknown_entries_irrelevant_and_nothing_else_does():
    _, observed = pair(0.0)
    unknown = Observed(observed.pattern, observed.values, None)
    assert (observed * unknown).rest == 0
    with pytest.raises(UnknownEntriesError):
        xp.sum(unknown)
    with pytest.raises(UnknownEntriesError):
        np.asarray(unknown)


def problem(seed=0):
    """Return data and weights with anchors where nothing is stored, dense and observed; codes and basis."""
    rng = np.random.default_rng(seed)
    level, anchor = rng.random((SHAPE[0], 1)) + 0.5, rng.random((1, SHAPE[1])) * 0.1
    Y, OY = pair(Outer(level, rng.random((1, SHAPE[1]))))
    M, OM = pair(Outer(rng.random((SHAPE[0], 1)), anchor), seed=7)
    return (Y, M), (OY, OM), rng.random((SHAPE[0], RANK)), rng.random((SHAPE[1], RANK))


def rule(form):
    return Rule(form, 0.0, np.full(SHAPE[0], 0.7), np.full(SHAPE[1], np.inf), np.inf)


def test_sweeps_by_least_squares_are_those_of_dense_rows():
    (Y, M), (OY, OM), X, W = problem()
    rest = (X, np.array([0, 5]), W, np.full(RANK, 0.01), 0.02, rule(SQUARED), 4)
    for found, expected in zip(
        KERNELS.sweep_block(OY, OM, None, *rest), DENSE.sweep_block(Y, M, None, *rest), strict=True
    ):
        assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_robust_sweeps_are_those_of_dense_rows_and_do_not_see_hidden_entries():
    is_stored, pattern = stored()
    values = np.random.default_rng(3).random(SHAPE)
    Y, M = np.where(is_stored, values, 0), is_stored.astype(float)
    OY, OM = Observed(pattern, values[is_stored]), Observed(pattern, np.ones(is_stored.sum()))
    hidden = np.argwhere(is_stored)[::7]
    X, W = problem()[2:]
    rest = (X, np.array([2]), W, np.zeros(RANK), 0.0, rule(CAUCHY), 4)
    for found, expected in zip(
        KERNELS.sweep_block(OY, OM, hidden, *rest), DENSE.sweep_block(Y, M, hidden, *rest), strict=True
    ):
        assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_codes_by_least_squares_and_squares_are_those_of_dense_rows():
    (Y, M), (OY, OM), X, W = problem()
    rest = (X, W, np.zeros(RANK), 0.0, 500, 1e-12)
    assert_allclose(KERNELS.least_squares(OY, OM, *rest), DENSE.least_squares(Y, M, *rest), rtol=1e-7, atol=1e-9)
    assert KERNELS.squares(OY, OM, X, W) == pytest.approx(np.sum(M * (Y - X @ W.T) ** 2), rel=1e-12)
    move = np.random.default_rng(8).normal(size=W.shape)
    bend = KERNELS.basis_bend(OY, OM, None, X, W, move, rule(SQUARED))
    assert_allclose(bend, np.sum(M * (X @ move.T) ** 2, axis=0), rtol=1e-9)


@pytest.mark.parametrize("weights", [np.ones, lambda n: np.arange(n) % 3 * 0.5], ids=["equal", "different"])
def test_quantiles_of_rows_and_features_are_those_of_the_dense_engine(weights):
    is_stored, pattern = stored()
    values = np.random.default_rng(2).random(SHAPE)
    M = np.zeros(SHAPE)
    M[is_stored] = weights(is_stored.sum())
    A, OM = Observed(pattern, values[is_stored]), Observed(pattern, M[is_stored])
    for axis in (None, "feature"):
        found = ObservedEngine().quantile([A], [OM], 0.5, axis=axis)
        assert_array_equal(found, NumPyEngine().quantile([values], [M], 0.5, axis=axis))
    assert row_quantiles(A, OM, 0.5).shape == (SHAPE[0],)


def ratings(density, shape=(150, 60), rank=2, dtype=float):
    """Return data of which most is missing, a few entries wrong, sparse and dense; explicit zeros are data."""
    rng = np.random.default_rng(0)
    P = rng.gamma(1, 1, (shape[0], rank)) @ rng.gamma(1, 1, (rank, shape[1]))
    P = P * (1 + 0.1 * rng.standard_normal(shape)) * np.where(rng.random(shape) < 0.05, 10, 1)
    is_stored = rng.random(shape) < density
    i, j = np.nonzero(is_stored)
    values = np.clip(P[i, j], 0, None).astype(dtype)
    values[::50] = 0
    gaps = np.full(shape, np.nan, dtype)
    gaps[i, j] = values
    return sparse.csr_array((values, (i, j)), shape=shape), gaps


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("density", "options"),
    [
        (0.5, {}),
        (0.1, {}),
        (0.3, {"noise": None}),
        (0.3, {"method": "l21"}),
        (0.3, {"method": "l1"}),
        (0.3, {"alpha_W": 0.01}),
        (0.3, {"feature_scaling": "robust"}),
    ],
    ids=str,
)
def test_fits_are_those_of_dense_data_with_gaps(density, options):
    S, gaps = ratings(density)
    # Of sparse data no value is suspected; of this, zeros are.
    options = {"random_state": 0, "max_iter": 40, "repeated_values": "data"} | options
    dense = RobustNMF(2, engine="numpy", **options).fit(gaps)
    found = RobustNMF(2, engine="sparse", zeros="missing", **options).fit(S)
    assert_allclose(found.components_, dense.components_, rtol=1e-6, atol=1e-9)
    assert found.objective_ == pytest.approx(dense.objective_, rel=1e-6)
    assert_array_equal(found.outliers_.toarray(), dense.outliers_)
    assert_allclose(found.transform(S), dense.transform(gaps), rtol=1e-6, atol=1e-8)
    cleaned = found.clean(S)
    assert_allclose(cleaned.toarray(), np.where(np.isnan(gaps), 0, dense.clean(gaps)), rtol=1e-6, atol=1e-8)


def test_what_needs_missing_entries_is_dense_a_few_rows_at_a_time_or_refused(monkeypatch):
    S, _ = ratings(0.3)
    engine = ObservedEngine()
    V = engine.split(SparseRows(S))

    def total(Y, *, xp):
        return float(np.asarray(Y).sum())

    assert engine.sum(total, V) == pytest.approx(S.sum())
    monkeypatch.setattr(observed_engine, "MOST_DENSE_ENTRIES", 100)
    with pytest.raises(IncompatibleError, match="works on dense data"):
        engine.sum(total, V)


def test_a_default_fit_makes_nothing_dense(monkeypatch):
    S, _ = ratings(0.3)
    monkeypatch.setattr(observed_engine, "MOST_DENSE_ENTRIES", 0)
    model = RobustNMF(2, engine="sparse", zeros="missing", random_state=0, max_iter=30).fit(S)
    assert model.transform(S).shape == (150, 2)
