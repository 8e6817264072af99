"""Weighted non-negative least squares against SciPy, and the contract of every solver."""

import numpy as np
import pytest
from scipy.optimize import nnls

from robustnmf.engines import NumPyEngine
from robustnmf.solvers import HALS, Nesterov, Problem, SharedGram

EXACT = [HALS(max_iter=20000, tol=1e-14), Nesterov(tol=1e-12, max_iter=100000)]
DEFAULT = [HALS(), Nesterov(), SharedGram(max_iter=4)]
by_name = {"ids": lambda solver: solver.name}


class ReferenceEngine(NumPyEngine):
    """An engine without kernels: solvers fall back on their reference."""

    def kernel(self, name):
        return None


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
