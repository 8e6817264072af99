"""Near-separable NMF: linear programs against an independent formulation, recovery of planted columns, errors."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import OptimizeResult, linprog, nnls

from robustnmf import RobustNMF
from robustnmf.baselines import near_separable
from robustnmf.baselines.near_separable import (
    near_separable_nmf,
    select_columns,
    self_dictionary,
    self_dictionary_of_rank,
)
from robustnmf.errors import UnsolvedError


def make_separable(m=12, n=30, rank=4, noise=0.0, copies=1, spread=1.0, seed=0):
    """Return V and, for every column, the basis vector that it is a copy of (-1 for mixtures).

    `noise` is the l1 norm of every column's noise relative to its own; norms of columns differ by a factor `spread`.
    """
    rng = np.random.default_rng(seed)
    basis = rng.random((m, rank))
    mixtures = rng.dirichlet(np.full(rank, 2.0), n - rank * copies).T
    codes = np.hstack([np.eye(rank)] * copies + [mixtures])
    labels = np.concatenate([np.tile(np.arange(rank), copies), np.full(mixtures.shape[1], -1)])
    order = rng.permutation(n)
    V = basis @ codes[:, order]
    V /= V.sum(axis=0)
    N = rng.standard_normal(V.shape)
    V = np.maximum(V + noise * N / np.abs(N).sum(axis=0), 0)
    return V * spread ** rng.random(n), labels[order]


def are_the_basis(columns, labels, rank=4):
    return sorted(labels[columns]) == list(range(rank))


def solve_independently(V, p=None, epsilon=None, rank=None):
    """The linear program in X itself, dense, with both signs of the residual as variables."""
    m, n = V.shape
    w = V.sum(axis=0)
    size = n * n + 2 * m * n + 1
    position = np.arange(n * n).reshape(n, n)  # x_ij, row by row
    plus, minus = n * n + np.arange(m * n).reshape(m, n), n * n + m * n + np.arange(m * n).reshape(m, n)
    equal, right, below, limit = [], [], [], []
    for k in range(m):
        for j in range(n):
            row = np.zeros(size)
            row[position[:, j]], row[plus[k, j]], row[minus[k, j]] = V[k], 1, -1
            equal.append(row)
            right.append(V[k, j])
    for j in range(n):
        row = np.zeros(size)
        row[plus[:, j]] = row[minus[:, j]] = 1
        row[-1] = -1
        below.append(row)
        limit.append(0)
    for i in range(n):
        for j in range(n):
            row = np.zeros(size)
            row[position[i, j]] += w[i]
            row[position[i, i]] -= w[j]
            below.append(row)
            limit.append(0)
    cost = np.zeros(size)
    bounds = np.array([[0.0, np.inf]] * size)
    bounds[np.diagonal(position), 1] = 1
    if rank is None:
        cost[np.diagonal(position)] = p
        bounds[-1] = epsilon
    else:
        cost[-1] = 1
        row = np.zeros(size)
        row[np.diagonal(position)] = 1
        equal.append(row)
        right.append(rank)
    return linprog(cost, A_ub=below, b_ub=limit, A_eq=equal, b_eq=right, bounds=bounds)


@pytest.mark.parametrize("noise", ["absolute", "relative"])
def test_self_dictionary_is_feasible(noise):
    V, _ = make_separable(n=16, noise=0.1, spread=5.0)
    epsilon = 0.1
    X = self_dictionary(V, epsilon, noise=noise)
    w = V.sum(axis=0)
    errors = np.abs(V - V @ X).sum(axis=0) / (1 if noise == "absolute" else w)
    assert errors.max() <= epsilon * (1 + 1e-5)
    assert X.min() >= 0
    assert X.diagonal().max() <= 1 + 1e-6
    assert np.all(w[:, None] * X <= w * X.diagonal()[:, None] + 1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3, 2.0])
def test_self_dictionary_reaches_the_value_of_an_independent_program(epsilon):
    V, _ = make_separable(m=6, n=9, rank=3, noise=0.1, spread=4.0)
    p = 1 + 0.01 * (np.random.default_rng(7).random(9) - 0.5)
    X = self_dictionary(V, epsilon, rng=np.random.default_rng(7))
    assert p @ X.diagonal() == pytest.approx(solve_independently(V, p=p, epsilon=epsilon).fun, abs=1e-6)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_self_dictionary_of_rank_reaches_the_value_of_an_independent_program(rank):
    V, _ = make_separable(m=6, n=9, rank=3, noise=0.1, spread=4.0)
    X, epsilon = self_dictionary_of_rank(V, rank)
    assert epsilon == pytest.approx(solve_independently(V, rank=rank).fun, abs=1e-6)
    assert X.diagonal().sum() == pytest.approx(rank, abs=1e-5)
    assert np.abs(V - V @ X).sum(axis=0).max() == pytest.approx(epsilon, abs=1e-5)


def test_the_two_programs_are_inverse_to_each_other():
    V, _ = make_separable(n=16, noise=0.1)
    _, epsilon = self_dictionary_of_rank(V, 4)
    assert self_dictionary(V, epsilon).diagonal().sum() == pytest.approx(4, abs=0.01)  # p is within 0.5 % of 1


@pytest.mark.parametrize("rho", [1.0, 2.0])
def test_rho_multiplies_the_noise_level(rho):
    V, _ = make_separable(n=12, noise=0.1)
    assert np.allclose(self_dictionary(V, 0.05, rho=rho), self_dictionary(V, 0.05 * rho), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("copies", [1, 3])
def test_planted_columns_are_recovered_without_noise(seed, copies):
    V, labels = make_separable(copies=copies, spread=10.0, seed=seed)
    by_rank = near_separable_nmf(V, rank=4)
    assert are_the_basis(by_rank.columns, labels)
    assert by_rank.epsilon == pytest.approx(0, abs=1e-6)
    assert np.allclose(by_rank.W @ by_rank.H, V)
    assert are_the_basis(near_separable_nmf(V, rank=4, epsilon=0.0).columns, labels)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("copies", [1, 2])
def test_rank_is_detected_at_small_noise(seed, noise, copies):
    V, labels = make_separable(noise=noise, copies=copies, spread=3.0, seed=seed)
    result = near_separable_nmf(V, epsilon=noise, noise="relative")
    assert result.rank == 4
    assert are_the_basis(result.columns, labels)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1])
def test_small_noise_does_not_change_the_columns(seed, noise):
    clean, labels = make_separable(spread=3.0, seed=seed)
    noisy, _ = make_separable(noise=noise, spread=3.0, seed=seed)
    expected = select_columns(clean, rank=4)
    assert are_the_basis(expected, labels)
    assert np.array_equal(select_columns(noisy, rank=4, noise="relative"), expected)


def test_near_duplicates_share_the_weight_and_are_found_by_clusters():
    """Many noisy copies of every basis vector: no single weight need be large."""
    V, labels = make_separable(n=40, copies=6, noise=0.05)
    assert are_the_basis(select_columns(V, rank=4), labels)
    assert are_the_basis(select_columns(V, 0.05), labels)


def test_middle_points_moved_outwards_are_not_taken_for_the_basis():
    """The hard case of the source: noise pushes the middles of all pairs away from the centre."""
    rng = np.random.default_rng(0)
    basis = rng.random((20, 5))
    basis /= basis.sum(axis=0)
    middles = np.stack([basis[:, list(pair)].mean(axis=1) for pair in combinations(range(5), 2)], axis=1)
    away = middles - basis.mean(axis=1, keepdims=True)
    V = np.maximum(np.hstack([basis, middles + 0.08 * away / np.abs(away).sum(axis=0)]), 0)
    assert select_columns(V, rank=5).tolist() == [0, 1, 2, 3, 4]


def test_trace_rule_counts_the_planted_rank_without_noise():
    V, _ = make_separable()
    assert select_columns(V, 0.0, threshold=None).size == 4


def test_units_of_columns_do_not_matter():
    V, labels = make_separable(spread=1e8)
    assert are_the_basis(select_columns(V, rank=4), labels)
    assert are_the_basis(select_columns(V, 0.0), labels)


def test_units_of_the_data_do_not_matter():
    V, _ = make_separable(noise=0.1, spread=3.0)
    small, large = near_separable_nmf(V, rank=4), near_separable_nmf(1e6 * V, rank=4)
    assert np.array_equal(small.columns, large.columns)
    assert large.epsilon == pytest.approx(1e6 * small.epsilon, rel=1e-5)


def test_many_columns_are_reduced_to_candidates():
    V, labels = make_separable(m=20, n=300, noise=0.05)
    assert are_the_basis(select_columns(V, rank=4, max_columns=40), labels)
    assert are_the_basis(select_columns(V, 0.05, max_columns=40), labels)


def test_limits_leave_room_for_the_rank():
    V, labels = make_separable(m=20, n=60)
    assert are_the_basis(select_columns(V, rank=4, max_columns=1, max_features=1), labels)


def test_many_features_are_summed():
    V, labels = make_separable(m=400, n=25, noise=0.02)
    assert are_the_basis(select_columns(V, rank=4, max_features=20), labels)


def test_outliers_are_dropped():
    """Columns that nothing else is made of are extreme, too; they are selected and then left out."""
    V, labels = make_separable(noise=0.01)
    rng = np.random.default_rng(1)
    V = np.hstack([V, rng.random((12, 2)) ** 4])
    labels = np.append(labels, [-1, -1])
    assert not are_the_basis(select_columns(V, rank=4), labels)
    assert are_the_basis(select_columns(V, rank=4, n_outliers=2), labels)
    assert are_the_basis(select_columns(V, 0.02, n_outliers=2), labels)


def test_coefficients_are_non_negative_least_squares():
    V, _ = make_separable(noise=0.1)
    result = near_separable_nmf(V, rank=4)
    assert np.array_equal(result.W, V[:, result.columns])
    assert np.allclose(result.H[:, 5], nnls(result.W, V[:, 5])[0])


def test_single_precision_stays_single_precision():
    V, labels = make_separable(spread=5.0)
    result = near_separable_nmf(V.astype(np.float32), rank=4)
    assert result.W.dtype == result.H.dtype == np.float32
    assert are_the_basis(result.columns, labels)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_more_columns_than_directions_can_be_selected(rank):
    """Five equal columns are one direction; any rank up to the number of columns has an answer."""
    result = near_separable_nmf(np.ones((3, 5)), rank=rank)
    assert result.columns.size == result.rank == rank
    assert np.allclose(result.W @ result.H, 1)


def test_one_column_is_its_own_basis():
    assert near_separable_nmf([[1.0], [2.0]], rank=1).columns.tolist() == [0]
    assert near_separable_nmf([[1.0], [2.0]], epsilon=0.1).columns.tolist() == [0]


def test_results_are_reproducible():
    V, _ = make_separable(m=80, n=30, noise=0.1)
    first, second = near_separable_nmf(V, rank=4), near_separable_nmf(V, rank=4)
    assert np.array_equal(first.columns, second.columns)
    assert np.array_equal(first.H, second.H)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (lambda V: V * np.nan, {"rank": 2}, r"must be finite; 360 of 360.*feature 0, sample 0"),
        (lambda V: V - 1, {"rank": 2}, r"must be non-negative.*Shift or clip"),
        (lambda V: V * (np.arange(30) != 3), {"rank": 2}, r"positive entry.*1 of 30 are zero.*column 3\. Drop them"),
        (lambda V: V[0], {"rank": 2}, r"features x samples.*\(30,\)"),
        (lambda V: V[:, :0], {"rank": 2}, r"neither of them none.*\(12, 0\)"),
        (lambda V: V[:, :3], {"rank": 4}, r"\[1, 3\].*got 4"),
        (lambda V: V, {"rank": 0}, r"\[1, 30\].*got 0"),
        (lambda V: V, {"rank": 2.5}, r"integer.*got 2\.5"),
        (lambda V: V, {}, "rank or epsilon must be given"),
        (lambda V: V, {"epsilon": -1.0}, r"epsilon must be a finite number of at least 0; got -1\.0"),
        (lambda V: V, {"epsilon": "small"}, "epsilon must be a finite number of at least 0; got 'small'"),
        (lambda V: V, {"epsilon": 0.1, "noise": "gaussian"}, '"absolute" or "relative"'),
        (lambda V: V, {"rank": 29, "n_outliers": 2}, "at most the 30 columns"),
        (lambda V: V, {"rank": 4, "max_columns": 0}, "max_columns and max_features must be at least 1; got 0 and 50"),
    ],
)
def test_errors_say_what_to_do(change, arguments, message):
    V, _ = make_separable()
    with pytest.raises(ValueError, match=message):
        near_separable_nmf(change(V), **arguments)


def test_samples_of_too_different_sizes_are_a_clear_error():
    V, _ = make_separable()
    sizes = np.logspace(-40, 40, V.shape[1])
    with pytest.raises(UnsolvedError, match=r"30 columns and 12 features was not solved.*divide each by its sum"):
        near_separable_nmf(V * sizes, rank=4)
    with pytest.raises(ValueError, match="use another method"):  # as of everything else that is wrong with data
        RobustNMF(4, method="near-separable").fit((V * sizes).T)
    assert near_separable_nmf(V * sizes, rank=4, noise="relative").rank == 4
    with pytest.raises(ValueError, match=r"finite number; 30 of 30.*Divide V"):
        near_separable_nmf(np.full((12, 30), 1.7e308), rank=4)


@pytest.mark.parametrize("status", [1, 2, 3, 4])
def test_program_that_the_solver_gives_up_is_a_clear_error(status, monkeypatch):
    given_up = OptimizeResult(status=status, x=None, message="Gave up.")
    monkeypatch.setattr(near_separable, "linprog", lambda *_, **__: given_up)
    V, _ = make_separable()
    for arguments in ({"rank": 4}, {"epsilon": 0.1}):
        with pytest.raises(UnsolvedError, match=r"was not solved: Gave up\. .*lower max_columns"):
            near_separable_nmf(V, **arguments)


def test_least_squares_that_do_not_end_are_a_clear_error(monkeypatch):
    def endless(*_, **__):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(near_separable, "nnls", endless)
    with pytest.raises(UnsolvedError, match=r"30 samples in 4 components were not solved: Maximum.*fewer components"):
        near_separable_nmf(make_separable()[0], rank=4)
