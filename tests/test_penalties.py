"""Penalties on the factors and known components: against scikit-learn, SciPy and closed forms."""

import numpy as np
import pytest
from scipy.optimize import nnls
from sklearn.decomposition import NMF

from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.errors import IncompatibleError
from robustnmf.metrics import relative_error
from robustnmf.model.penalties import Penalty
from robustnmf.solvers import HALS, Multiplicative, Nesterov, SharedGram
from test_solvers import ENGINES, by_name, by_type, make_problem

TIGHT = [HALS(max_iter=20000, tol=1e-14), Nesterov(tol=1e-12, max_iter=100000), SharedGram(), Multiplicative()]


@pytest.fixture
def low_rank():
    rng = np.random.default_rng(3)
    return rng.random((60, 4)) @ rng.random((4, 40))


def penalised(X, codes, components, alpha_W, alpha_H, l1_ratio):
    """The objective of scikit-learn's documentation."""
    n_samples, n_features = X.shape
    value = 0.5 * np.sum((X - codes @ components) ** 2)
    for factor, weight in ((codes, alpha_W * n_features), (components, alpha_H * n_samples)):
        value += weight * (l1_ratio * factor.sum() + 0.5 * (1 - l1_ratio) * (factor**2).sum())
    return value


@pytest.mark.parametrize("engine", ENGINES, **by_type)
@pytest.mark.parametrize("solver", TIGHT, **by_name)
def test_penalised_problems_are_solved_like_nnls_with_more_rows(solver, engine):
    """A ridge is r more equations sqrt(ridge) x = 0, and a linear term moves their right-hand side."""
    problem, X = make_problem()
    linear, ridge = np.array([0.3, 0.0, 0.1, 0.5]), 0.7
    problem.penalty = Penalty(linear, ridge)
    for _ in range(1 if solver in TIGHT[:2] else 3000):
        X = solver.solve(problem, X, engine)
    for x, y, q in zip(X, problem.Y, problem.Q, strict=True):
        matrix = np.vstack([np.sqrt(q)[:, None] * problem.A, np.sqrt(ridge) * np.eye(4)])
        expected, _ = nnls(matrix, np.concatenate([np.sqrt(q) * y, -linear / np.sqrt(ridge)]))
        np.testing.assert_allclose(x, expected, atol=1e-6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("solver", "l1_ratio", "alpha_W", "alpha_H"),
    [
        ("shared-gram", 0.0, 0.01, "same"),
        ("shared-gram", 0.5, 0.01, 0.02),
        ("shared-gram", 1.0, 0.01, "same"),
        ("shared-gram", 0.5, 0.0, 0.02),
        ("shared-gram", 0.5, 0.02, 0.0),
        ("hals", 0.5, 0.01, "same"),
        ("nesterov", 0.5, 0.01, "same"),
        ("multiplicative", 0.5, 0.01, "same"),
    ],
)
def test_least_squares_reach_the_penalised_objective_of_scikit_learn(low_rank, solver, l1_ratio, alpha_W, alpha_H):
    weights = {"alpha_W": alpha_W, "alpha_H": alpha_H, "l1_ratio": l1_ratio}
    theirs = NMF(4, init="random", random_state=0, max_iter=2000, tol=1e-8, **weights)
    expected = penalised(low_rank, theirs.fit_transform(low_rank), theirs.components_, *_numbers(weights))
    # A penalty on one factor alone can be made to vanish by making the other large: there is no minimum to agree on.
    has_minimum = 0.0 not in (alpha_W, alpha_H)
    limits = {"max_iter": 3000 if has_minimum else 300, "tol": 1e-9}
    ours = RobustNMF(4, method="l2", solver=solver, random_state=0, **limits, **weights)
    codes = ours.fit_transform(low_rank)
    value = penalised(low_rank, codes, ours.components_, *_numbers(weights))
    if has_minimum:
        assert value <= expected * 1.02  # from another start, so another local minimum
    assert ours.objective_ == pytest.approx(value, rel=2e-3)


def _numbers(weights):
    alpha_H = weights["alpha_W"] if weights["alpha_H"] == "same" else weights["alpha_H"]
    return weights["alpha_W"], alpha_H, weights["l1_ratio"]


@pytest.mark.parametrize("solver", ["shared-gram", "hals", "nesterov"])
def test_no_iteration_raises_the_penalised_objective_at_fixed_scale(low_rank, solver):
    model = RobustNMF(
        4, method="cauchy", schedule="plain", init="random", scale=0.2, solver=solver, alpha_W=1e-3, l1_ratio=0.5,
        random_state=0, tol=0, max_iter=40,
    )  # fmt: skip
    with pytest.warns(match="did not converge"):
        model.fit(low_rank)
    objective = model.history_["objective"]
    assert np.all(np.diff(objective) <= 1e-9 * objective[0])


def test_an_l1_penalty_makes_codes_sparse_and_a_ridge_makes_them_small(low_rank):
    plain = TruncatedCauchyNMF(6, random_state=0).fit_transform(low_rank)
    model = TruncatedCauchyNMF(6, random_state=0, alpha_W=2e-2, l1_ratio=1.0)
    assert (model.fit_transform(low_rank) == 0).mean() > (plain == 0).mean() + 0.1
    ridge = [TruncatedCauchyNMF(4, random_state=0, alpha_W=a).fit(low_rank) for a in (1e-4, 1e-2)]
    norms = [np.linalg.norm(m.transform(low_rank) @ m.components_) for m in ridge]
    assert norms[1] < norms[0]


def test_a_component_that_a_penalty_switches_off_has_codes_of_zero(low_rank):
    model = RobustNMF(8, random_state=0, alpha_W=0.02, l1_ratio=1.0)
    codes = model.fit_transform(low_rank)
    unused = ~model.components_.any(axis=1)
    assert unused.any()
    assert not codes[:, unused].any()
    np.testing.assert_array_equal(model.transform(low_rank), codes)


@pytest.mark.parametrize("unit", [2.0**-40, 8.0, 2.0**30])
def test_penalties_follow_the_unit_of_the_data(low_rank, unit):
    """With X in another unit, a penalty on codes of that unit means the same if its weight changes with it."""
    first = RobustNMF(3, random_state=0, alpha_W=1e-3, alpha_H=1e-3, l1_ratio=0.0)
    codes = first.fit_transform(low_rank)
    second = RobustNMF(3, random_state=0, alpha_W=1e-3, alpha_H=1e-3 * unit**2, l1_ratio=0.0)
    other = second.fit_transform(unit * low_rank)
    np.testing.assert_allclose(other @ second.components_, unit * (codes @ first.components_), rtol=1e-6)


def test_codes_of_new_samples_are_penalised_too(low_rank):
    strict = RobustNMF(4, method="l2", random_state=0, alpha_W=0.05, alpha_H=0.0, fixed_components=np.eye(40)[:4])
    loose = RobustNMF(4, method="l2", random_state=0, fixed_components=np.eye(40)[:4])
    ratio = strict.fit(low_rank).transform(low_rank) / loose.fit(low_rank).transform(low_rank)
    # With unit components every code is y / (1 + alpha_W n_features).
    np.testing.assert_allclose(ratio, 1 / (1 + 0.05 * 40), rtol=1e-3)


@pytest.mark.parametrize("solver", ["shared-gram", "hals", "nesterov", "multiplicative"])
def test_known_components_stay_as_they_are(low_rank, solver):
    rng = np.random.default_rng(0)
    components = 255 * rng.random((4, 40))
    X = rng.random((60, 4)) @ components
    X[rng.random(X.shape) < 0.1] = 5000.0
    model = TruncatedCauchyNMF(4, solver=solver, fixed_components=components[:2], random_state=0)
    codes = model.fit_transform(X)
    np.testing.assert_array_equal(model.components_[:2], components[:2])
    assert model.components_[2:].max() == pytest.approx(1)
    clean = np.where(X == 5000.0, np.nan, X)
    known = ~np.isnan(clean)
    assert relative_error(clean[known], (codes @ model.components_)[known]) < 0.05


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", ["numpy", "stream"])  # by rows, and by sums over samples
def test_multiplicative_updates_beside_known_components_never_raise_the_objective(engine):
    """What the known ones leave of the data may be negative."""
    rng = np.random.default_rng(0)
    known = 3 * rng.random((1, 40))  # its share of the data at the start is too much
    X = rng.random((60, 3)) @ np.concatenate([known / 3, rng.random((2, 40))])
    parameters = {"method": "l2", "fixed_components": known, "random_state": 0, "max_iter": 400, "tol": 0}
    model = RobustNMF(3, solver="multiplicative", engine=engine, **parameters).fit(X)
    objective = model.history_["objective"]
    assert np.all(np.diff(objective) <= 1e-12 * objective[0])
    assert objective[-1] < 1e-3 * objective[0]
    np.testing.assert_array_equal(model.components_[:1], known)


def test_with_all_components_known_only_codes_are_learnt(low_rank):
    rng = np.random.default_rng(1)
    components = rng.random((3, 40))
    truth = rng.random((50, 3))
    X = truth @ components
    X[rng.random(X.shape) < 0.2] = 40.0
    model = TruncatedCauchyNMF(3, fixed_components=components, random_state=0)
    np.testing.assert_allclose(model.fit_transform(X), truth, atol=0.02)
    np.testing.assert_array_equal(model.components_, components)


def test_known_components_help_where_data_alone_cannot_tell():
    """Two sources that always occur together cannot be separated, unless one of them is known."""
    rng = np.random.default_rng(2)
    components = rng.random((2, 30))
    codes = np.column_stack([rng.random(80), rng.random(80)]) + 0.5
    X = codes @ components
    model = TruncatedCauchyNMF(2, fixed_components=components[:1], random_state=0)
    found = model.fit_transform(X)
    assert relative_error(X, found @ model.components_) < 0.01
    np.testing.assert_array_equal(model.components_[0], components[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha_W": -1.0}, "alpha_W must be a number, non-negative"),
        ({"alpha_W": np.inf}, "alpha_W must be a number, non-negative"),
        ({"alpha_W": "same"}, "alpha_W must be a number"),
        ({"alpha_H": "all"}, "alpha_H must be a number, .* or 'same'"),
        ({"l1_ratio": 1.5}, "l1_ratio must be a number, between 0 and 1"),
        ({"l1_ratio": np.nan}, "l1_ratio must be a number"),
        ({"fixed_components": np.ones((1, 7))}, "must have 40 columns"),
        ({"fixed_components": np.ones((5, 40))}, "at most n_components=2; got 5"),
        ({"fixed_components": -np.ones((1, 40))}, "must be non-negative"),
        ({"fixed_components": np.full((1, 40), np.nan)}, "NaN"),
    ],
)
def test_bad_values_are_refused(low_rank, arguments, message):
    with pytest.raises(ValueError, match=message):
        TruncatedCauchyNMF(2, **arguments).fit(low_rank)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("mahnmf", {"alpha_W": 0.1}),
        ("near-separable", {"alpha_W": 0.1}),
        ("heavy-noise", {"fixed_components": np.ones((1, 40))}),
        ("hypersurface", {"fixed_components": np.ones((1, 40))}),
    ],
)
def test_models_that_cannot_do_it_say_so(low_rank, method, arguments):
    with pytest.raises(IncompatibleError):
        RobustNMF(2, method=method, **arguments).fit(low_rank)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", ["cim", "l21", "l2"])
def test_models_with_multiplicative_updates_keep_known_components(low_rank, method):
    known = low_rank[:1] / low_rank[0].max()
    model = RobustNMF(4, method=method, preset="published", fixed_components=known, random_state=0)
    codes = model.fit_transform(low_rank)
    np.testing.assert_array_equal(model.components_[:1], known)
    assert relative_error(low_rank, codes @ model.components_) < 0.1
