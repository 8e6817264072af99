"""Weighted non-negative least squares against SciPy, and the contract of every solver."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from robustnmf.engines import NumPyEngine
from robustnmf.kernels.interface import NO_KERNELS
from robustnmf.kernels.line_search import checked_features
from robustnmf.model.losses import Absolute, Cauchy, Huber, Squared
from robustnmf.model.penalties import Penalty
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import (
    HALS,
    Multiplicative,
    Nesterov,
    Problem,
    SharedGram,
    Smoothing,
    SparseError,
    WeightedMedian,
)
from robustnmf.solvers.objective import Objective
from robustnmf.solvers.shared_gram import _bend

EXACT = [HALS(max_iter=20000, tol=1e-14), Nesterov(tol=1e-12, max_iter=100000)]
DEFAULT = [HALS(), Nesterov(), SharedGram(max_iter=4)]
by_name = {"ids": lambda solver: solver.name}


class ReferenceEngine(NumPyEngine):
    """An engine without kernels: solvers fall back on their reference."""

    kernels = NO_KERNELS


ENGINES = [NumPyEngine(), ReferenceEngine()]
by_type = {"ids": lambda engine: type(engine).__name__}


def make_problem(B=12, p=25, r=4, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    A = rng.random((p, r)).astype(dtype)
    Y = np.maximum(rng.standard_normal((B, r)) @ A.T + 0.1 * rng.standard_normal((B, p)), 0).astype(dtype)
    Q = np.where(rng.random((B, p)) < 0.2, 0, rng.random((B, p))).astype(dtype)
    return Problem(A, Y, Q, NumPyEngine().xp), rng.random((B, r)).astype(dtype)


def objective(problem, X):
    return 0.5 * np.sum(problem.Q * (problem.Y - X @ problem.A.T) ** 2, axis=1)


@pytest.mark.parametrize("engine", ENGINES, **by_type)
@pytest.mark.parametrize("solver", EXACT, **by_name)
def test_solutions_agree_with_scipy_nnls_on_the_weighted_problem(solver, engine):
    problem, X0 = make_problem()
    X = solver.solve(problem, X0, engine)
    for x, y, q in zip(X, problem.Y, problem.Q, strict=True):
        expected, _ = nnls(np.sqrt(q)[:, None] * problem.A, np.sqrt(q) * y)
        np.testing.assert_allclose(x, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("sweeps", [1, 3])
def test_hals_kernel_agrees_with_its_reference(sweeps):
    """Sweep by sweep: coordinate descent in residual form and on the normal equations are the same."""
    problem, X0 = make_problem()
    solver = HALS(max_iter=sweeps)
    fast, slow = (solver.solve(problem, X0, engine) for engine in ENGINES)
    np.testing.assert_allclose(fast, slow, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES, **by_type)
def test_steps_with_a_shared_gram_matrix_lead_to_the_solution_of_scipy_nnls(engine):
    problem, X = make_problem()
    for _ in range(2000):
        X = SharedGram().solve(problem, X, engine)
    for x, y, q in zip(X, problem.Y, problem.Q, strict=True):
        expected, _ = nnls(np.sqrt(q)[:, None] * problem.A, np.sqrt(q) * y)
        np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-8)


def test_a_shared_gram_matrix_is_exact_where_weights_are_equal():
    problem, X0 = make_problem()
    problem.Q[:] = 0.7
    sweeps, steps = HALS(max_iter=3), SharedGram(max_iter=3)
    np.testing.assert_allclose(
        steps.solve(problem, X0, ENGINES[0]), sweeps.solve(problem, X0, ENGINES[0]), rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize("engine", ENGINES, **by_type)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("solver", DEFAULT, **by_name)
class TestContract:
    def test_no_objective_rises_and_the_start_is_not_touched(self, solver, dtype, engine):
        problem, X0 = make_problem(dtype=dtype)
        before = X0.copy()
        X = solver.solve(problem, X0, engine)
        assert X.dtype == dtype
        assert np.all(X >= 0)
        assert np.all(objective(problem, X) <= objective(problem, X0) * (1 + 1e-6))
        assert np.sum(objective(problem, X)) < 0.9 * np.sum(objective(problem, X0))
        np.testing.assert_array_equal(X0, before)

    def test_a_problem_without_weights_keeps_its_start(self, solver, dtype, engine):
        problem, X0 = make_problem(dtype=dtype)
        problem.Q[3] = 0
        X = solver.solve(problem, X0, engine)
        np.testing.assert_array_equal(X[3], X0[3])
        assert np.all(np.isfinite(X))

    def test_a_coordinate_without_curvature_stays_finite(self, solver, dtype, engine):
        problem, X0 = make_problem(dtype=dtype)
        problem.A[:, 1] = 0
        assert np.all(np.isfinite(solver.solve(problem, X0, engine)))

    def test_vanishing_weights_stay_finite(self, solver, dtype, engine):
        problem, X0 = make_problem(dtype=dtype)
        problem.Q[2] *= np.finfo(dtype).tiny
        X = solver.solve(problem, X0, engine)
        assert np.all(np.isfinite(X))
        assert np.all(X >= 0)

    def test_a_solution_does_not_depend_on_the_rest_of_the_batch(self, solver, dtype, engine):
        problem, X0 = make_problem(dtype=dtype)
        together = solver.solve(problem, X0, engine)
        alone = np.concatenate([solver.solve(problem[i : i + 1], X0[i : i + 1], engine) for i in range(len(X0))])
        tol = 1e-12 if dtype == np.float64 else 1e-4
        np.testing.assert_allclose(together, alone, rtol=tol, atol=tol)


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "one-gram"])
@pytest.mark.parametrize("max_iter", [1, 7, 500])
def test_nesterov_kernel_agrees_with_its_reference(max_iter, weighted):
    problem, X0 = make_problem()
    if weighted:
        problem.Q[1] = 0  # nothing to solve
    else:
        problem = Problem(problem.A, problem.Y, None, problem.xp)
    kernel, reference = (Nesterov(tol=1e-6, max_iter=max_iter).solve(problem, X0, engine) for engine in ENGINES)
    np.testing.assert_allclose(kernel, reference, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("limit", [2**23, 1], ids=["khatri-rao", "batched"])
def test_gram_matrices_are_weighted_products(limit, monkeypatch):
    monkeypatch.setattr("robustnmf.solvers.problem._TEMPORARY_ENTRIES", limit)
    problem, _ = make_problem()
    expected = [problem.A.T @ np.diag(q) @ problem.A for q in problem.Q]
    np.testing.assert_allclose(problem.gram, expected, rtol=1e-12)


def test_bounded_chunks_do_not_change_the_solution(monkeypatch):
    problem, X0 = make_problem()
    expected = Nesterov().solve(problem, X0, ENGINES[0])
    monkeypatch.setattr("robustnmf.solvers.problem._TEMPORARY_ENTRIES", 50)
    assert len(problem.chunks()) > 1
    np.testing.assert_allclose(Nesterov().solve(problem, X0, ENGINES[0]), expected, rtol=1e-10, atol=1e-12)


# --- Problems of which sums are known ---------------------------------------------------------------------------------

BY_SUMS = [HALS(max_iter=5), Nesterov(max_iter=20), Multiplicative()]


@pytest.mark.parametrize("penalty", [None, Penalty(np.array([0.1, 0.2, 0.0, 0.3]), 0.4)], ids=["plain", "penalised"])
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "one-gram"])
@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("solver", BY_SUMS, **by_name)
def test_normal_equations_are_all_that_a_solution_needs(solver, rank, weighted, penalty):
    problem, X0 = make_problem(r=rank)
    penalty = None if penalty is None else penalty._replace(linear=penalty.linear[:rank])
    problem = replace(problem, Q=problem.Q if weighted else None, penalty=penalty)
    sums = replace(problem, penalty=None)
    known = Problem.normal(sums.gram, sums.correlation, problem.xp, penalty)
    np.testing.assert_allclose(known.applied(X0), problem.applied(X0), rtol=1e-10)
    for one, other, start in ((known, problem, X0), (known[2:5], problem[2:5], X0[2:5])):
        found, expected = (solver.solve(p, start, ENGINES[1]) for p in (one, other))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cut", [None, 1.5], ids=["", "cut"])
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "complete"])
@pytest.mark.parametrize(
    ("solver", "loss"), [(HALS(5), Cauchy()), (HALS(5), Squared()), (SparseError(), Huber())], ids=str
)
def test_a_basis_found_by_sums_over_samples_is_that_of_whole_features(solver, loss, weighted, cut):
    rng, engine = np.random.default_rng(0), ReferenceEngine(block_entries=60)
    X, W, Ht = rng.gamma(1.0, size=(30, 12)), rng.random((12, 3)), rng.random((30, 3))
    M = rng.integers(0, 3, X.shape) / 2 if weighted else None
    cuts = None if cut is None else np.linspace(0.5, cut, 12)
    V = engine.split(X)
    blocks = None if M is None else engine.split(M, like=V)
    weighting = Weighting(loss, 0.7, cuts)
    found = solver.basis_by_sums(V, blocks, W, engine.split(Ht, like=V), Objective(weighting), engine)
    parts = {"A": Ht, "weighting": weighting, "engine": engine, "xp": np}
    by_feature = None if cuts is None else cuts[:, None]
    expected = solver.half_step(X.T, None if M is None else M.T, W, by_feature, **parts)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_updates_of_a_sparse_error_stop_at_zero_and_where_nothing_counts():
    X, numerator = np.array([[2.0, 3.0, 4.0]]), np.array([[-1.0, 0.0, 5.0]])
    updated = SparseError().update(X, numerator, np.array([[1.0, 1.0, 2.0]]), np)
    np.testing.assert_array_equal(updated, [[0.0, 0.0, 10.0]])
    np.testing.assert_array_equal(SparseError().update(X, numerator, np.zeros((1, 3)), np), X)


# --- Judges, units, features that do not count ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.0, 2.0**-20], ids=["", "light"])
@pytest.mark.parametrize("weighted", [True, False])
def test_few_features_judge_a_step_as_all_would_where_they_are_alike(weighted, size):
    rng, p = np.random.default_rng(0), 3000
    assert checked_features(p)[2] < p
    A = np.tile(rng.random(3), (p, 1)) * size
    Q = size * np.tile(rng.uniform(0.5, 1, (5, 1)), p) if weighted else None
    move = rng.standard_normal((5, 3))
    curvature = np.tile((A * A).sum(axis=0), (5, 1)) if Q is None else Q @ (A * A)
    along = (move @ A.T) ** 2
    expected = (along if Q is None else Q * along).sum(axis=1)
    np.testing.assert_allclose(_bend(A, Q, move, curvature, np), expected, rtol=1e-10)


def test_judges_of_a_step_are_those_features_that_were_chosen():
    run, skip, count = checked_features(3000)
    judges = np.arange(count)
    judges = judges // run * skip + judges % run
    A, rng = np.zeros((3000, 2)), np.random.default_rng(0)
    A[judges] = rng.random((count, 2))  # all that there is
    move = rng.standard_normal((4, 2))
    curvature = np.tile((A * A).sum(axis=0), (4, 1))
    np.testing.assert_allclose(_bend(A, None, move, curvature, np), ((move @ A.T) ** 2).sum(axis=1), rtol=1e-10)
    assert judges.max() < 3000
    A[:16], A[skip - 1] = 0, 7.0  # a feature that was not chosen counts in the curvature alone
    bend, seen = ((move @ A[judges].T) ** 2).sum(axis=1), (A[judges] ** 2).sum()
    curvature = np.tile((A * A).sum(axis=0), (4, 1))
    np.testing.assert_allclose(_bend(A, None, move, curvature, np), bend * curvature[0].sum() / seen, rtol=1e-10)
    assert _bend(A[:, :1], None, move[:, :1], curvature[:, :1], np).shape == (4,)
    A[judges] = 0  # judges that see nothing
    np.testing.assert_array_equal(_bend(A, np.ones((4, 3000)), move, curvature, np), 0.0)


@pytest.mark.parametrize("solver", [HALS(max_iter=50, tol=1e-2), Nesterov(), SharedGram(3)], **by_name)
@pytest.mark.parametrize("engine", ENGINES, **by_type)
@pytest.mark.parametrize("power", [-30, 30])
def test_the_unit_of_the_data_does_not_change_a_bit(solver, engine, power):
    problem, X0 = make_problem()
    factor = 2.0**power
    scaled = replace(problem, Y=problem.Y * factor)
    expected = solver.solve(problem, X0, engine) * factor
    np.testing.assert_array_equal(solver.solve(scaled, X0 * factor, engine), expected)


def test_smoothing_leaves_codes_of_a_basis_of_zeros_as_they_are():
    Y, X = np.ones((3, 5)), np.ones((3, 2))
    with np.errstate(all="raise"):
        found = Smoothing().improve(Y, None, X, np.zeros((5, 2)), Weighting(Absolute(), 1.0), ENGINES[0])
    np.testing.assert_array_equal(found, X)


def test_weighted_medians_do_not_look_at_features_that_a_coordinate_does_not_reach():
    rng = np.random.default_rng(0)
    A = np.where(rng.random((20, 3)) < 0.4, 0, rng.random((20, 3)))
    Y, X = rng.random((6, 20)), rng.random((6, 3))
    Y[:, A[:, 0] == 0] = (X @ A.T)[:, A[:, 0] == 0]  # 0 / 0, were they looked at
    with np.errstate(all="raise"):
        fast, slow = (WeightedMedian().improve(Y, None, X, A, Weighting(Squared(), 1.0), engine) for engine in ENGINES)
    np.testing.assert_allclose(fast, slow, rtol=1e-10)
