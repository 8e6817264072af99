"""The mathematical core by numbers: every constant and every branch against a plain transcription of its definition.

Contracts over families stand elsewhere; this file is what notices a changed sign, constant or comparison
(`make mutants`). It runs without compiled kernels, the reference that they are tested against.
"""

from dataclasses import fields
from math import sqrt

import array_api_compat.numpy as xp
import numpy as np
import pytest

from robustnmf.engines import NumPyEngine, numpy_engine
from robustnmf.kernels import line_search
from robustnmf.kernels.interface import NO_KERNELS
from robustnmf.model.losses import (
    Absolute,
    Cauchy,
    Correntropy,
    Huber,
    Hypersurface,
    SampleNorm,
    Squared,
    Truncated,
    squared_ratio,
)
from robustnmf.model.mixture import Mixture
from robustnmf.model.outliers import MADRule, MixtureRule, NoRejection, SpreadRule, ThreeSigma
from robustnmf.model.penalties import ElasticNet, Penalties, Penalty
from robustnmf.model.scales import MAD, FirstScale, FixedScale, MixtureScale, Nagy, RootMeanSquare
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import (
    HALS,
    Armijo,
    Multiplicative,
    Nesterov,
    Problem,
    SharedGram,
    Smoothing,
    SparseError,
    WeightedMedian,
)
from robustnmf.solvers.nesterov import _better
from robustnmf.solvers.objective import Objective
from robustnmf.solvers.shared_gram import advance, propose
from robustnmf.solvers.sparse_error import sparse_error


def one_pass(V, M, hidden, W, Ht, *, solver, engine, **parts):
    """Return both factors after a sweep."""
    return solver.sweep(V, M, W, Ht, Objective(**parts), engine, hidden)


class Reference(NumPyEngine):
    """The engine without compiled kernels."""

    kernels = NO_KERNELS


engine = Reference()
exact = {"rtol": 1e-12, "atol": 1e-14}

# --- Losses -----------------------------------------------------------------------------------------------------------

# is_quadratic, group, scale_power, log_scale_coef
TRAITS = {
    Squared(): (True, "entry", 2.0, 0.0),
    Cauchy(): (False, "entry", 0.0, 1.0),
    Hypersurface(): (False, "entry", 0.0, 0.0),
    Absolute(): (False, "entry", 1.0, 0.0),
    SampleNorm(): (False, "sample", 1.0, 0.0),
    Huber(): (False, "entry", 2.0, 0.0),
    Correntropy(): (False, "entry", 0.0, 0.0),
    Truncated(Cauchy(), 4.0): (False, "entry", 0.0, 1.0),
    Truncated(Squared(), 4.0): (False, "entry", 2.0, 0.0),
    Truncated(SampleNorm(), 4.0): (False, "sample", 1.0, 0.0),
}


@pytest.mark.parametrize("loss", TRAITS, ids=lambda loss: loss.name)
def test_traits_of_losses(loss):
    assert (loss.is_quadratic, loss.group, loss.scale_power, loss.log_scale_coef) == TRAITS[loss]


S = np.array([0.0, 0.25, 1.0, 1.5, 4.0, 9.0])
VALUES = [
    (Squared(), S, np.ones(6)),
    (Cauchy(), np.log(1 + S), 1 / (1 + S)),
    (Hypersurface(), np.sqrt(1 + S) - 1, 0.5 / np.sqrt(1 + S)),
    (Absolute(floor=0.5), np.sqrt(S + 0.25) - 0.5, 0.5 / np.sqrt(S + 0.25)),
    (Absolute(), np.sqrt(S + 1e-6) - 1e-3, 0.5 / np.sqrt(S + 1e-6)),
    (SampleNorm(), np.sqrt(S + 1e-6) - 1e-3, 0.5 / np.sqrt(S + 1e-6)),
    (Huber(), np.array([0, 0.25, 1, 2 * sqrt(1.5) - 1, 3, 5]), np.array([1, 1, 1, 1 / sqrt(1.5), 0.5, 1 / 3])),
    (Correntropy(), 1 - np.exp(-S / 2), np.exp(-S / 2) / 2),
    # At the cap itself an entry still counts.
    (Truncated(Cauchy(), 4.0), np.log(1 + np.minimum(S, 4)), np.where(S <= 4, 1 / (1 + S), 0)),
]


@pytest.mark.parametrize(("loss", "rho", "weight"), VALUES, ids=lambda value: getattr(value, "name", ""))
def test_values_of_losses(loss, rho, weight):
    np.testing.assert_allclose(loss.rho(S, xp), rho, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(loss.weight(S, xp), weight, **exact)


@pytest.mark.parametrize("cap", [0.0, -1.0, np.nan])
def test_truncation_must_be_positive(cap):
    with pytest.raises(ValueError, match="must be positive"):
        Truncated(Cauchy(), cap)
    assert Truncated(Cauchy(), 0.5).cap == 0.5


def test_names_of_truncated_losses_tell_the_loss():
    assert Truncated(Cauchy(), 4.0).name == "truncated-cauchy"
    assert Truncated(VALUES, 4.0).name == "truncated-list"  # a loss of the user's own may have no name


def test_squared_ratios_are_exact_up_to_a_quarter_of_the_largest_number():
    largest = np.finfo(float).max
    A = np.array([0.0, 3.0, sqrt(largest) / 4, sqrt(largest) / 2, sqrt(largest), largest])
    found = squared_ratio(A, 1.0, xp)
    np.testing.assert_allclose(found[:4], [0, 9, largest / 16, largest / 4], rtol=1e-12)
    np.testing.assert_allclose(found[4:], largest / 4, rtol=1e-12)
    np.testing.assert_allclose(squared_ratio(np.array([3.0]), 2.0, xp), [2.25])
    np.testing.assert_allclose(squared_ratio(np.array([largest]), 1e-3, xp), [largest / 4], rtol=1e-12)


# --- Scales -----------------------------------------------------------------------------------------------------------

A = np.array([[1.0, 2.0, 4.0], [8.0, 0.5, 3.0]])
COUNTS = np.array([[1.0, 0.5, 0.25], [0.0, 1.0, 0.5]])


def test_fixed_scale_is_positive_and_finite():
    assert FixedScale(3.0)([A], None, 1.0, engine) == 3.0
    for value in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="positive and finite"):
            FixedScale(value)


def test_nagy_is_the_root_of_its_equation():
    """The mean of 1 / (1 + (R / gamma)**2) is one half, with weights and without."""
    for M, counts in ((None, np.ones_like(A)), ([COUNTS], COUNTS)):
        gamma = Nagy()([A], M, None, engine)
        assert np.average(1 / (1 + (A / gamma) ** 2), weights=counts) == pytest.approx(0.5, abs=1e-9)


def test_nagy_makes_the_passes_it_is_allowed():
    """From the last scale, or from the median magnitude; each pass is eq. (3-11)."""

    def update(gamma):
        return gamma * sqrt(1 / np.mean(1 / (1 + (A / gamma) ** 2)) - 1)

    assert Nagy(max_iter=1)([A], None, 5.0, engine) == pytest.approx(update(5.0), rel=1e-14)
    assert Nagy(max_iter=2)([A], None, None, engine) == pytest.approx(update(update(2.0)), rel=1e-14)
    assert Nagy(max_iter=0)([A], None, None, engine) == 2.0
    assert Nagy(max_iter=0)([0.1 * A], None, None, engine) == pytest.approx(0.2)
    assert (Nagy().tol, Nagy().max_iter) == (1e-10, 100)


def test_nagy_stops_when_the_scale_changes_by_less_than_its_tolerance():
    rough, fine = Nagy(tol=0.3)([A], None, 5.0, engine), Nagy()([A], None, None, engine)
    path = [5.0]
    while len(path) < 2 or abs(path[-1] - path[-2]) > 0.3 * path[-1]:
        path.append(path[-1] * sqrt(1 / np.mean(1 / (1 + (A / path[-1]) ** 2)) - 1))
    assert rough == pytest.approx(path[-1], rel=1e-14)
    assert abs(rough - fine) > 0.01 * fine


def test_nagy_of_mostly_zeros_falls_to_zero():
    mostly = np.array([[0.0, 0.0, 0.0, 1.0]])
    assert 0 < Nagy(max_iter=1000)([mostly], None, None, engine) < np.finfo(float).eps  # its start is the mean, 1/4
    # Every pass multiplies it by sqrt(1/3) or so: 66 passes to the smallest part that counts, and then no more.
    sums, engine_that_counts = [], Reference()
    engine_that_counts.sum = lambda *a, **k: sums.append(1) or engine.sum(*a, **k)
    Nagy(max_iter=1000)([mostly], None, None, engine_that_counts)
    assert 60 < len(sums) < 75
    assert Nagy()([np.zeros((2, 2))], None, None, engine) == 0.0
    assert Nagy()([np.full((2, 2), 1e-300)], None, 1.0, engine) == 0.0


def test_median_and_square_scales_by_hand():
    assert MAD()([A], None, None, engine) == pytest.approx(1.4826 * 2.0)
    assert MAD(factor=2.0)([A], [COUNTS], None, engine) == 2.0 * 1.0  # 0.5 and 1.0 have 2 of 3.25
    assert RootMeanSquare()([A], None, None, engine) == pytest.approx(sqrt(np.mean(A**2) / 2))
    assert RootMeanSquare(factor=1.0)([A], [COUNTS], None, engine) == pytest.approx(
        sqrt(np.average(A**2, weights=COUNTS))
    )


def test_mixture_scale_is_five_widths_times_the_share_squared():
    assert MixtureScale().of(Mixture(2.0, 0.5)) == 5.0 * 2.0 * 0.25
    assert MixtureScale(factor=1.0, power=1.0).of(Mixture(2.0, 0.5)) == 1.0
    residuals = np.abs(np.random.default_rng(0).laplace(scale=3.0, size=(200, 50)))
    assert MixtureScale()([residuals], None, None, engine) == pytest.approx(15.0, rel=0.1)


def test_first_scale_is_kept():
    assert FirstScale()([A], None, None, engine) == 2.0
    assert FirstScale()([A], None, 7.0, engine) == 7.0
    assert FirstScale(rule=FixedScale(4.0))([A], None, None, engine) == 4.0


# --- Outlier rules ----------------------------------------------------------------------------------------------------


def test_three_sigma_by_hand():
    """The below-median half is 0.5, 1, 2; with weights 0.5, 1 (the median is 1)."""
    half = np.array([0.5, 1.0, 2.0])
    assert float(ThreeSigma()([A], None, 1.0, engine)) == pytest.approx(half.mean() + 3 * half.std())
    assert float(ThreeSigma(deviations=1.0)([A], None, 1.0, engine)) == pytest.approx(half.mean() + half.std())
    mean = np.average([0.5, 1.0], weights=[1.0, 1.0])
    assert float(ThreeSigma()([A], [COUNTS], 1.0, engine)) == pytest.approx(mean + 3 * 0.25)
    by_feature = ThreeSigma(axis="feature")([A], None, 1.0, engine)
    np.testing.assert_allclose(by_feature, [1.0, 0.5, 3.0])  # of two, the lower is the half
    unseen = ThreeSigma(axis="feature")([A], [np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])], 1.0, engine)
    assert np.isfinite(unseen).all()
    # Weights count relative to each other, however small.
    np.testing.assert_allclose(ThreeSigma(axis="feature")([A], [np.full_like(A, 0.1)], 1.0, engine), by_feature)


def test_median_rules_by_hand():
    assert float(MADRule()([A], None, 1.0, engine)) == 7.0 * 2.0
    np.testing.assert_allclose(MADRule(deviations=2.0, axis="feature")([A], None, 1.0, engine), [2.0, 1.0, 6.0])
    distances = np.sort(np.abs(A.ravel() - 2.0))  # 0, 1, 1, 1.5, 2, 6
    assert float(SpreadRule()([A], None, 1.0, engine)) == pytest.approx(2.0 + 3.0 * 1.4826 * distances[2])
    assert float(SpreadRule(deviations=1.0)([A], None, 1.0, engine)) == pytest.approx(2.0 + 1.4826)
    assert float(SpreadRule()([4.0 * A], None, 1.0, engine)) == pytest.approx(4.0 * (2.0 + 3.0 * 1.4826 * distances[2]))
    assert NoRejection()([A], None, 1.0, engine) is None


def test_mixture_rule_is_eight_widths_over_the_share():
    assert MixtureRule().of(Mixture(2.0, 0.25)) == 8.0 * 2.0 / 0.125
    assert MixtureRule(factor=1.0, power=1.0).of(Mixture(2.0, 0.5)) == 4.0
    residuals = np.abs(np.random.default_rng(0).laplace(scale=3.0, size=(200, 50)))
    assert float(MixtureRule()([residuals], None, 1.0, engine)) == pytest.approx(24.0, rel=0.15)


# --- Weighting --------------------------------------------------------------------------------------------------------

R = np.array([[1.0, -2.0, 3.0], [-0.5, 4.0, 0.0]])


def test_weights_of_entries_by_hand():
    weighting = Weighting(Cauchy(), 2.0, np.array([10.0, 3.0, 3.0]))
    expected = np.where(np.abs(R) > [10, 3, 3], 0, 1 / (1 + (R / 2) ** 2))
    np.testing.assert_allclose(weighting.weights(R, None, xp), expected)
    np.testing.assert_allclose(weighting.weights(R, COUNTS, xp), COUNTS * expected)
    np.testing.assert_array_equal(weighting.outliers(np.abs(R), None, xp), [[0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(weighting.kept(R, None, xp), [[1, 1, 1], [1, 0, 1]])
    np.testing.assert_array_equal(weighting.kept(R, COUNTS, xp), COUNTS * [[1, 1, 1], [1, 0, 1]])
    np.testing.assert_allclose(weighting.losses(np.abs(R), xp), np.log(1 + (R / 2) ** 2))
    assert weighting.without_rule() == Weighting(Cauchy(), 2.0)
    assert not weighting.is_spatial


def test_quadratic_weights_without_a_cut_are_those_of_the_entries():
    assert Weighting(Squared(), 1.0).weights(R, None, xp) is None
    assert Weighting(Squared(), 1.0).weights(R, COUNTS, xp) is COUNTS
    cut = Weighting(Squared(), 1.0, np.array([2.0, 2.0, 2.0])).weights(R, None, xp)
    np.testing.assert_array_equal(cut, np.abs(R) <= 2)


def test_loss_itself_may_cut():
    weighting = Weighting(Truncated(Cauchy(), 4.0), 1.0)
    np.testing.assert_array_equal(weighting.outliers(np.abs(R), None, xp), np.abs(R) > 2)
    both = Weighting(Truncated(Cauchy(), 4.0), 1.0, np.array([0.6, 9.0, 9.0]))
    np.testing.assert_array_equal(both.outliers(np.abs(R), None, xp), [[1, 0, 1], [0, 1, 0]])


def test_weights_of_samples_by_hand():
    """A sample counts by its heaviest entry, and entries within it relative to that; Q has both."""
    weighting = Weighting(SampleNorm(floor=1e-9), 2.0, np.array([3.9]))
    norms = np.sqrt(np.sum(R**2, axis=1, keepdims=True))
    np.testing.assert_allclose(weighting.magnitudes(R, None, xp), norms)
    np.testing.assert_allclose(weighting.weights(R, None, xp), np.where(norms > 3.9, 0, 1 / norms) * np.ones((2, 3)))
    M = np.array([[0.5, 0.25, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(weighting.counts(M, xp), [[0.5], [0.0]])
    norm = sqrt(1.0 + 0.5 * 4.0)
    np.testing.assert_allclose(weighting.magnitudes(R, M, xp), [[norm], [0.0]])
    np.testing.assert_allclose(weighting.weights(R, M, xp)[0], M[0] / norm)
    assert Weighting(Cauchy(), 1.0).counts(M, xp) is M


def test_rule_with_a_mask_is_spatial_only_if_it_cuts():
    class Rule:
        def mask(self, A, M, cut, xp):
            return A > 3.5

    assert Weighting(Cauchy(), 1.0, np.array([1.0]), Rule()).is_spatial
    assert not Weighting(Cauchy(), 1.0, None, Rule()).is_spatial
    np.testing.assert_array_equal(
        Weighting(Cauchy(), 1.0, np.array([1.0]), Rule()).outliers(np.abs(R), None, xp), np.abs(R) > 3.5
    )


# --- Least squares ----------------------------------------------------------------------------------------------------


def make_problem(seed=0, weighted=True, penalty=None):
    rng = np.random.default_rng(seed)
    basis, Y = rng.random((7, 3)), rng.random((5, 7)) + 0.5
    Q = rng.random((5, 7)) if weighted else None
    return Problem(basis, Y, Q, xp, penalty), rng.random((5, 3))


PENALTY = Penalty(np.array([0.1, 0.2, 0.0]), 0.3)
each_problem = pytest.mark.parametrize(
    ("weighted", "penalty"), [(True, None), (False, None), (True, PENALTY), (False, PENALTY)]
)


def normal_equations(problem, i):
    """Return A' D A + ridge I and A' D y - c of one problem."""
    q = np.ones(problem.Y.shape[1]) if problem.Q is None else problem.Q[i]
    linear, ridge = problem.penalty or (0.0, 0.0)
    D = np.diag(q)
    return problem.A.T @ D @ problem.A + ridge * np.eye(3), problem.A.T @ D @ problem.Y[i] - linear


@each_problem
def test_normal_equations_of_problems(weighted, penalty, monkeypatch):
    problem, _ = make_problem(weighted=weighted, penalty=penalty)
    for limit in (2**23, 42, 41, 1):  # 7 * 3 * 4 / 2 entries of the Khatri-Rao square fit, or do not
        monkeypatch.setattr("robustnmf.solvers.problem._TEMPORARY_ENTRIES", limit)
        fresh = Problem(problem.A, problem.Y, problem.Q, xp, penalty)
        assert fresh._square_is_small == (limit >= 42)
        for i in range(5):
            G, rhs = normal_equations(problem, i)
            np.testing.assert_allclose(fresh.gram[i if weighted else 0], G, **exact)
            np.testing.assert_allclose(fresh.rhs[i], rhs, **exact)
        assert len(fresh.gram) == (5 if weighted else 1)


def test_chunks_of_problems_are_of_bounded_size(monkeypatch):
    problem, _ = make_problem()
    lengths = {2**23: [5], 42: [4, 1], 41: [1] * 5, 20: [1] * 5, 63: [5], 1: [1] * 5}
    for limit, expected in lengths.items():
        monkeypatch.setattr("robustnmf.solvers.problem._TEMPORARY_ENTRIES", limit)
        # 9 entries of each Gram matrix; 7 * 3 of what forms it where the square is too large.
        chunks = problem.chunks()
        assert [len(range(5)[rows]) for rows in chunks] == expected
        assert [i for rows in chunks for i in range(5)[rows]] == list(range(5))
    assert make_problem(weighted=False)[0].chunks() == [slice(0, 5)]
    assert problem[1:3].Y.shape == problem[1:3].Q.shape == (2, 7)
    assert make_problem(penalty=PENALTY)[0][1:3].penalty is PENALTY


@each_problem
@pytest.mark.parametrize("n_updates", [1, 3])
def test_multiplicative_updates_are_those_of_lee_and_seung(weighted, penalty, n_updates):
    problem, X0 = make_problem(weighted=weighted, penalty=penalty)
    X0[0, 1] = 0.0
    expected = X0.copy()
    linear, ridge = penalty or (np.zeros(3), 0.0)
    for i in range(5):
        q = problem.Q[i] if weighted else np.ones(7)
        for _ in range(n_updates):
            numerator = problem.A.T @ (q * problem.Y[i])
            denominator = problem.A.T @ (q * (problem.A @ expected[i])) + linear + ridge * expected[i]
            expected[i] *= numerator / denominator
    found = Multiplicative(max_iter=n_updates).solve(problem, X0, engine)
    np.testing.assert_allclose(found, expected, **exact)
    assert found[0, 1] == 0
    assert Multiplicative().max_iter == 1


def test_multiplicative_update_leaves_what_has_no_weight():
    problem, X0 = make_problem()
    problem.Q[2] = 0
    np.testing.assert_array_equal(Multiplicative().solve(problem, X0, engine)[2], X0[2])


@each_problem
@pytest.mark.parametrize("sweeps", [1, 4])
def test_sweeps_of_coordinate_descent_minimise_each_coordinate(weighted, penalty, sweeps):
    problem, X0 = make_problem(weighted=weighted, penalty=penalty)
    problem.Y[0] *= -1  # so that zero is the best for some
    expected = X0.copy()
    for i in range(5):
        G, rhs = normal_equations(problem, i)
        for _ in range(sweeps):
            for k in range(3):
                others = G[k] @ expected[i] - G[k, k] * expected[i, k]
                expected[i, k] = max(0.0, (rhs[k] - others) / G[k, k])
    np.testing.assert_allclose(HALS(max_iter=sweeps).solve(problem, X0, engine), expected, rtol=1e-10, atol=1e-13)
    assert (HALS().max_iter, HALS().tol) == (4, 0.0)
    assert not np.shares_memory(HALS().solve(problem, X0, engine), X0)


def test_coordinate_descent_stops_where_nothing_moves_by_more_than_its_tolerance():
    problem, X0 = make_problem()
    one, far = HALS(max_iter=1).solve(problem, X0, engine), HALS(max_iter=50).solve(problem, X0, engine)
    moved = np.max(np.abs(one - X0), axis=1) / np.max(one, axis=1)
    np.testing.assert_array_equal(HALS(max_iter=50, tol=1.01 * moved.max()).solve(problem, X0, engine), one)
    partly = HALS(max_iter=50, tol=np.median(moved)).solve(problem, X0, engine)
    np.testing.assert_array_equal(partly[moved <= np.median(moved)], one[moved <= np.median(moved)])
    assert not np.array_equal(partly, one)
    assert not np.array_equal(far, one)
    problem.A[:, 1] = 0
    np.testing.assert_array_equal(HALS().solve(problem, X0, engine)[:, 1], X0[:, 1])


def nesterov_by_hand(G, rhs, x, tol, max_iter):
    """Algorithm 1 of the paper for one problem, and where it ends the better of the end and the start."""
    start, L = x.copy(), np.linalg.eigvalsh(G)[-1]

    def projected(h):
        g = G @ h - rhs
        return np.linalg.norm(np.where((h > 0) | (g < 0), g, 0))

    target, h, z, alpha = tol * projected(x), x, x, 1.0
    if target > 0:
        for _ in range(max_iter):
            last, h = h, np.maximum(0, z - (G @ z - rhs) / L)
            last_alpha, alpha = alpha, (1 + sqrt(4 * alpha**2 + 1)) / 2
            z = h + (last_alpha - 1) / alpha * (h - last)
            if projected(h) <= target:
                break
    end = np.maximum(z, 0)

    def value(v):
        return 0.5 * v @ G @ v - rhs @ v

    return end if value(end) <= value(start) else start


@each_problem
@pytest.mark.parametrize(("tol", "max_iter"), [(0.0, 1), (0.0, 2), (0.0, 5), (1e-3, 500), (0.3, 500)])
def test_nesterov_is_algorithm_1(weighted, penalty, tol, max_iter):
    problem, X0 = make_problem(weighted=weighted, penalty=penalty)
    problem.Y[0] *= -1
    expected = [nesterov_by_hand(*normal_equations(problem, i), X0[i], tol, max_iter) for i in range(5)]
    if tol == 0.0:
        expected = [nesterov_by_hand(*normal_equations(problem, i), X0[i], 1e-300, max_iter) for i in range(5)]
        tol = 1e-300
    found = Nesterov(tol=tol, max_iter=max_iter).solve(problem, X0, engine)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert (Nesterov().tol, Nesterov().max_iter) == (1e-3, 500)


@pytest.mark.parametrize("weighted", [False, True])
def test_nesterov_of_a_single_component(weighted):
    """Then a Gram matrix is a number, of each problem its own."""
    problem, X0 = make_problem(weighted=weighted)
    single = Problem(problem.A[:, :1], problem.Y, problem.Q, xp)
    Q = problem.Q if weighted else np.ones((5, 7))
    expected = (Q * problem.Y) @ problem.A[:, 0] / (Q @ problem.A[:, 0] ** 2)
    found = Nesterov(tol=1e-12).solve(single, X0[:, :1], engine)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9)


def test_nesterov_leaves_what_cannot_be_solved_or_is_solved():
    problem, X0 = make_problem()
    problem.Q[1], problem.Q[2] = 0.0, np.finfo(float).tiny
    found = Nesterov().solve(problem, X0, engine)
    np.testing.assert_array_equal(found[1:3], X0[1:3])
    solved = Nesterov(tol=1e-13, max_iter=10**5).solve(problem, X0, engine)
    np.testing.assert_allclose(Nesterov().solve(problem, solved, engine), solved, rtol=1e-6)


# --- One Gram matrix for all ------------------------------------------------------------------------------------------


def propose_by_hand(G, descent, curvature, x0, sweeps):
    """Sweeps on 1/2 z' G z in the variables z = s x, in which each coordinate has the curvature of G."""
    s = np.sqrt(curvature / np.diag(G))
    z, d = s * x0, descent / s
    for _ in range(sweeps):
        for k in range(len(z)):
            new = max(0.0, z[k] + d[k] / G[k, k])
            d = d - (new - z[k]) * G[k]
            z[k] = new
    return z / s - x0


@each_problem
@pytest.mark.parametrize("sweeps", [1, 8])
def test_steps_with_a_shared_gram_matrix_by_hand(weighted, penalty, sweeps):
    problem, X0 = make_problem(weighted=weighted, penalty=penalty)
    problem.Y[0] *= -1
    ridge = 0.0 if penalty is None else penalty.ridge
    G, expected = problem.A.T @ problem.A, []
    for i in range(5):
        q = problem.Q[i] if weighted else np.ones(7)
        H, rhs = normal_equations(problem, i)
        descent = rhs - H @ X0[i]
        move = propose_by_hand(G, descent, q @ problem.A**2 + ridge, X0[i], sweeps)
        bend, slope = move @ H @ move, descent @ move
        length = slope / bend if slope / bend < 0.5 else 1.0
        expected.append(np.maximum(0, X0[i] + max(length, 0.0) * move))
    np.testing.assert_allclose(SharedGram(max_iter=sweeps).solve(problem, X0, engine), expected, rtol=1e-9, atol=1e-12)
    problem.residual = problem.Y - X0 @ problem.A.T
    np.testing.assert_allclose(SharedGram(max_iter=sweeps).solve(problem, X0, engine), expected, rtol=1e-9, atol=1e-12)
    assert SharedGram().max_iter == 8


def test_proposals_leave_unseen_coordinates():
    G = np.diag([2.0, 0.0, 3.0])
    descent, curvature, X0 = np.ones((2, 3)), np.array([[2.0, 1.0, 0.0], [2.0, 0.0, 3.0]]), np.ones((2, 3))
    move = propose(G, descent, curvature, X0, 2, engine)
    np.testing.assert_allclose(move, [[0.5, 0, 0], [0.5, 0, 1 / 3]])


@pytest.mark.parametrize("of_all", [False, True], ids=["of-each-row", "of-all-rows"])
@pytest.mark.parametrize(("n_rows", "rank"), [(1, 3), (64, 5), (131, 24), (7, 25), (130, 40)])
def test_proposals_of_many_rows_by_hand(n_rows, rank, of_all):
    rng = np.random.default_rng(rank)
    A, X0 = rng.random((50, rank)), rng.random((n_rows, rank))
    G, descent = A.T @ A, 5 * rng.standard_normal((n_rows, rank))
    curvature = np.diag(G) * (0.2 + rng.random((1 if of_all else n_rows, rank)))
    each = np.broadcast_to(curvature, X0.shape)
    expected = [propose_by_hand(G, *rows, 3) for rows in zip(descent, each, X0, strict=True)]
    kernel = NumPyEngine().kernels.propose
    np.testing.assert_allclose(kernel(G, descent, curvature, X0, 3), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("slope", "bend", "length"),
    [
        *((1.0, 1.0, 1.0), (1.0, 4.0, 0.25), (1.0, 2.0, 1.0), (1.0, 2.1, 1 / 2.1)),
        *((1.0, 0.0, 1.0), (0.3, 0.0, 1.0), (-1.0, 4.0, 0.0), (0.1, 0.5, 0.2), (0.4, 0.5, 1.0)),
    ],
)
def test_moves_that_would_raise_the_objective_are_shortened(slope, bend, length):
    X0, move = np.array([[5.0, 5.0]]), np.array([[1.0, 0.0]])
    new = advance(X0, move, np.array([[slope, 7.0]]), np.array([bend]), xp)
    np.testing.assert_allclose(new, [[5.0 + length, 5.0]])
    np.testing.assert_array_equal(advance(X0, -6 * move, -6 * move, np.array([0.0]), xp), [[0.0, 5.0]])


def test_a_solution_that_is_worse_than_the_start_is_not_taken():
    """The objective is 1/2 x^2 - x: at 1 it is -0.5, at 1.5 and at 0.5 it is -0.375."""
    G, rhs, one = np.ones((1, 1, 1)), np.ones((4, 1)), np.ones((4, 1))
    X = np.array([[1.5], [0.5], [1.0], [1.2]])
    np.testing.assert_array_equal(_better(G, rhs, X, one, xp), one)
    np.testing.assert_array_equal(_better(G, rhs, X, 2 * one, xp), X)


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("fixed", [0, 1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("level", "seed"), [(1.0, 3), (0.1, 3), (1.0, 52), (3.0, 9), (3.0, 13)])
def test_one_pass_over_the_data_by_hand(level, seed, weighted, fixed, penalised, monkeypatch):
    """Codes by one step each, then the basis by a step from the sums over samples, checked by some of them."""
    monkeypatch.setattr(line_search, "MOST_ROWS", 4)
    monkeypatch.setattr(numpy_engine, "ROWS", 3)
    rng = np.random.default_rng(seed)
    V, W, Ht = level * (rng.random((9, 7)) + 0.2), rng.random((7, 3)), level * rng.random((9, 3))
    M = rng.random((9, 7)) ** 8 if weighted else None  # so unlike that some steps have to be shortened
    hidden = np.array([[0, 1], [4, 6], [8, 0]])
    penalties = Penalties(0.1, ElasticNet(0.05, 0.2), ElasticNet(0.03, 0.4)) if penalised else Penalties()
    weighting, solver = Weighting(Cauchy(), 0.7, np.full(7, 1.5)), SharedGram(max_iter=2)
    blocks = Reference(block_entries=28)
    pieces = blocks.split(V)
    assert len(pieces) == 3
    in_blocks = [hidden[(hidden[:, 0] // 3) == b] - [3 * b, 0] for b in range(3)]
    found_W, found_Ht = one_pass(
        pieces,
        None if M is None else blocks.split(M, like=pieces),
        in_blocks,
        W,
        blocks.split(Ht, like=pieces),
        weighting=weighting,
        solver=solver,
        penalties=penalties,
        fixed=fixed,
        engine=blocks,
    )
    seen = np.ones_like(V) if M is None else M.copy()
    seen[hidden[:, 0], hidden[:, 1]] = 0
    Q = weighting.weights(V - Ht @ W.T, seen, xp)
    trust = Q @ (W**2).sum(axis=1)  # how far each sample counts in the Gram matrix, to a common factor
    linear = 0.05 + 0.1 * 0.7 * W.sum(axis=0)
    problem = Problem(W, V, Q, xp, Penalty(linear, 0.2) if penalised else None)
    X = solver.solve(problem, Ht, engine)
    np.testing.assert_allclose(np.concatenate(found_Ht), X, rtol=1e-10, atol=1e-13)
    residual = V - X @ W.T
    Q = weighting.weights(residual, seen, xp)
    linear, ridge = (0.03 + 0.1 * 0.7 * X.sum(axis=0), 0.4) if penalised else (0.0, 0.0)
    descent = (Q * residual).T @ X - linear - ridge * W
    curvature = Q.T @ X**2
    steepness = np.where(np.arange(3) < fixed, 0, curvature + ridge)
    move = propose((X.T * trust) @ X, descent, steepness, W, 2, engine)
    checks = np.arange(9) % 3 == 0  # one in three: nine samples, at most four checks
    along = (X[checks] @ move.T) ** 2
    bend = np.sum(Q[checks] * along, axis=0)
    seen_by_checks = np.sum(X[checks] ** 2, axis=1) @ Q[checks]
    stand_for = curvature.sum(axis=1) / np.where(seen_by_checks > 0, seen_by_checks, 1)
    expected = advance(W, move, descent, bend * stand_for + ridge * np.sum(move**2, axis=1), xp)
    np.testing.assert_allclose(found_W, W if fixed == 3 else expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(found_W[:, :fixed], W[:, :fixed])


def test_constants_of_the_one_pass():
    assert (line_search.MOST_ROWS, numpy_engine.ROWS) == (256, 256)
    for n, checks in ((100, 100), (256, 256), (257, 129), (1000, 250)):
        assert len(range(n)[line_search.checked_rows([n])[0]]) == checks


def test_rules_that_kernels_understand():
    Y = np.ones((2, 3))
    full = NumPyEngine()
    assert full.kernels.rule_of(Weighting(Cauchy(), 1.0), Y, 2) is not None
    assert full.kernels.rule_of(Weighting(SampleNorm(), 1.0), Y, 2) is None
    assert engine.kernels.rule_of(Weighting(Cauchy(), 1.0), Y, 2) is None


# --- Losses by themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Cauchy(), Squared()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("sufficient", [0.01, 0.6])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_armijo_by_hand(weighted, steps, sufficient, loss):
    problem, X0 = make_problem()
    M, solver = problem.Q if weighted else None, Armijo(max_iter=steps, sufficient=sufficient)
    rho, weight = (np.log1p, lambda s: 1 / (1 + s)) if loss == Cauchy() else (lambda s: s, np.ones_like)
    X0[0] *= 40.0  # far off, where the first step is too long
    expected = X0.copy()
    for i in range(5):
        m = M[i] if weighted else np.ones(7)

        def value(x, i=i, m=m):
            return 0.5 * 0.64 * m @ rho(((problem.Y[i] - problem.A @ x) / 0.8) ** 2)

        for _ in range(steps):
            x, r = expected[i], problem.Y[i] - problem.A @ expected[i]
            q = m * weight((r / 0.8) ** 2)
            gradient = -problem.A.T @ (q * r)
            direction = np.where((x > 0) | (gradient < 0), gradient, 0)
            alpha = 2 * direction @ direction / (q @ (problem.A @ direction) ** 2)
            for _ in range(30):
                trial = np.maximum(0, x - alpha * gradient)
                if value(x) - value(trial) >= -sufficient * gradient @ (trial - x):
                    expected[i] = trial
                    break
                alpha *= 0.5
    found = solver.improve(problem.Y, M, X0, problem.A, Weighting(loss, 0.8), engine)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert [field.default for field in fields(Armijo)] == [1, 0.01, 0.5, 30]
    assert solver.accepts(Cauchy()) and not solver.accepts(SampleNorm())


def test_armijo_gives_up_where_no_step_is_good_enough():
    problem, X0 = make_problem()
    stubborn = Armijo(sufficient=1e9).improve(problem.Y, None, X0, problem.A, Weighting(Squared(), 1.0), engine)
    np.testing.assert_array_equal(stubborn, X0)
    nothing = Armijo().improve(problem.Y, 0 * problem.Q, X0, problem.A, Weighting(Cauchy(), 1.0), engine)
    np.testing.assert_array_equal(nothing, X0)
    once = Armijo(max_backtracks=1).improve(problem.Y, None, 40 * X0, problem.A, Weighting(Cauchy(), 0.01), engine)
    assert np.isfinite(once).all()


def test_armijo_bears_gradients_whose_squares_overflow():
    problem, X0 = make_problem()
    with np.errstate(all="raise"):
        far = Armijo().improve(1e100 * problem.Y, None, X0, problem.A, Weighting(Squared(), 1.0), engine)
    np.testing.assert_allclose(
        far / 1e100, Armijo().improve(problem.Y, None, X0 / 1e100, problem.A, Weighting(Squared(), 1.0), engine)
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 30])
def test_smoothing_by_hand(weighted, steps):
    problem, X0 = make_problem()
    M = problem.Q if weighted else None
    L, expected = np.linalg.norm(problem.A, 2) ** 2, X0.copy()
    for i in range(5):
        m = M[i] if weighted else np.ones(7)

        def norm(x, i=i, m=m):
            return m @ np.abs(problem.Y[i] - problem.A @ x)

        mu = 0.05 * norm(X0[i]) / m.sum()
        h = z = X0[i]
        alpha = 1.0
        for _ in range(steps):
            sign = np.clip((problem.Y[i] - problem.A @ z) / mu, -1, 1)
            last, h = h, np.maximum(0, z + mu / L * (problem.A.T @ (m * sign)))
            last_alpha, alpha = alpha, (1 + sqrt(4 * alpha**2 + 1)) / 2
            z = h + (last_alpha - 1) / alpha * (h - last)
        if norm(h) < norm(X0[i]):
            expected[i] = h
    found = Smoothing(max_iter=steps).improve(problem.Y, M, X0, problem.A, Weighting(Absolute(), 1.0), engine)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert [field.default for field in fields(Smoothing)] == [0.05, 30]
    assert Smoothing().accepts(Absolute()) and not Smoothing().accepts(Cauchy())


def test_smoothing_leaves_what_cannot_be_improved():
    problem, X0 = make_problem()
    weighting = Weighting(Absolute(), 1.0)
    found = Smoothing().improve(problem.Y, None, X0, 0 * problem.A, weighting, engine)
    np.testing.assert_array_equal(found, X0)
    assert found is not X0
    exact_fit = X0 @ problem.A.T
    with np.errstate(all="raise"):
        found = Smoothing().improve(exact_fit, None, X0, problem.A, weighting, engine)
    np.testing.assert_array_equal(found, X0)
    np.testing.assert_array_equal(Smoothing().improve(problem.Y, 0 * problem.Q, X0, problem.A, weighting, engine), X0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sweeps", [1, 2])
def test_weighted_medians_minimise_each_coordinate(weighted, sweeps):
    problem, X0 = make_problem()
    M = problem.Q if weighted else None
    problem.A[:, 1], problem.A[2, 0] = 0.0, 0.0  # a component that is not used, an entry without
    problem.Y[0] *= -1
    expected = X0.copy()
    for i in range(5):
        m = M[i] if weighted else np.ones(7)
        for _ in range(sweeps):
            for k in (0, 2):
                a = problem.A[:, k]
                used = a > 0
                residual = problem.Y[i] - problem.A @ expected[i]
                points = expected[i, k] + residual[used] / a[used]
                # The loss is convex and bends only at these points: the best of them, or zero, is the minimiser.
                losses = [m[used] @ np.abs(residual[used] - a[used] * (p - expected[i, k])) for p in points]
                expected[i, k] = max(0.0, points[np.argmin(losses)])
    weighting = Weighting(Absolute(), 1.0)
    solver = WeightedMedian(max_iter=sweeps)
    found = solver.improve(problem.Y, M, X0, problem.A, weighting, engine)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    compiled = solver.improve(problem.Y, M, X0, problem.A, weighting, NumPyEngine())
    np.testing.assert_allclose(compiled, expected, rtol=1e-9, atol=1e-12)
    unweighted = solver.improve(problem.Y, 0 * problem.Q, X0, problem.A, weighting, engine)
    np.testing.assert_array_equal(unweighted, X0)
    assert WeightedMedian().max_iter == 1
    assert WeightedMedian().accepts(Absolute()) and not WeightedMedian().accepts(Cauchy())


@pytest.mark.parametrize("weighted", [False, True])
def test_updates_with_a_sparse_error_by_hand(weighted):
    problem, X0 = make_problem()
    M = problem.Q if weighted else None
    X0[0, 1] = 0.0
    problem.Y[1] = -5.0  # a target below zero
    product = X0 @ problem.A.T
    residual = problem.Y - product
    S = np.sign(residual) * np.maximum(np.abs(residual) - 0.3, 0)
    np.testing.assert_allclose(sparse_error(residual, 0.3, xp), S, **exact)
    m = M if weighted else 1.0
    numerator, denominator = (m * (problem.Y - S)) @ problem.A, (m * product) @ problem.A
    expected = X0 * np.maximum(0, numerator) / denominator
    solver = SparseError()
    weighting = Weighting(Huber(), 0.3)
    np.testing.assert_allclose(solver.improve(problem.Y, M, X0, problem.A, weighting, engine), expected, **exact)
    nothing = solver.improve(problem.Y, 0 * problem.Q, X0, problem.A, weighting, engine)
    np.testing.assert_array_equal(nothing, X0)
    assert solver.accepts(Huber()) and not solver.accepts(Squared())


def test_logarithm_of_the_cauchy_loss_is_natural():
    assert float(Cauchy().rho(np.array([np.e - 1]), xp)[0]) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["no weights", "some small", "most small", "any"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_codes_by_least_squares_are_those_of_scipy(kind, dtype):
    """Also where components are nearly alike, and of very different sizes."""
    from scipy.optimize import nnls

    from robustnmf.kernels.numba.functions import least_squares

    rng = np.random.default_rng(0)
    A = rng.gamma(0.5, 1, (40, 6))
    A[:, 1] = A[:, 0] * (1 + 1e-2 * rng.random(40))
    A *= np.array([1, 1, 100, 1, 0.01, 1])
    Y = np.maximum(rng.gamma(1, 1, (50, 6)) @ A.T * (1 + 0.3 * rng.normal(size=(50, 40))), 0)
    share = {"some small": 0.2, "most small": 0.8}.get(kind, 0)
    Q = rng.random(Y.shape) if kind == "any" else np.where(rng.random(Y.shape) < share, 0.03, 1.0)
    given = None if kind == "no weights" else Q.astype(dtype)
    X = least_squares(Y.astype(dtype), given, np.zeros((50, 6), dtype), A.astype(dtype), 0.0, 0.0, 1000, 1e-12)
    expected = np.array([nnls(np.sqrt(q)[:, None] * A, np.sqrt(q) * y)[0] for q, y in zip(Q, Y, strict=True)])
    found, best = ((Q * (Y - codes @ A.T) ** 2).sum(axis=1) for codes in (X.astype(float), expected))
    assert X.dtype == dtype and (X >= 0).all()
    np.testing.assert_allclose(found, best, rtol=1e-12 if dtype == np.float64 else 1e-4)


def test_penalties_count_in_codes_by_least_squares():
    from robustnmf.kernels.numba.functions import least_squares

    rng = np.random.default_rng(0)
    A, Y = rng.random((20, 3)), rng.random((10, 20))
    X = least_squares(Y, None, np.zeros((10, 3)), A, np.array([0.1, 0.2, 0.3]), 0.5, 1000, 1e-14)
    gradient = X @ (A.T @ A + 0.5 * np.eye(3)) - Y @ A + np.array([0.1, 0.2, 0.3])
    assert (gradient > -1e-10).all() and np.abs(gradient * X).max() < 1e-10
