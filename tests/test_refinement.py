"""Displacement and constraints against SciPy's solver for general constraints."""

import numpy as np
import pytest
from scipy.optimize import minimize

from robustnmf import RobustNMF, plots
from robustnmf.datasets import load_baltimore
from robustnmf.refinement import (
    Constraint,
    bootstrap_displacement,
    bound,
    constrain,
    displace_components,
    fix,
    fix_code,
    newton,
    ratio,
)
from robustnmf.refinement.squares import Factors, Squares, squares_of

NOISE = 0.05


@pytest.fixture(scope="module")
def tiny():
    """A problem that is small enough for SLSQP: 12 samples, 5 features, 2 components."""
    rng = np.random.default_rng(1)
    basis = np.array([[1.0, 0.5, 0.1, 0.3, 0.2], [0.2, 0.6, 1.0, 0.1, 0.4]])
    clean = rng.gamma(1.0, size=(12, 2)) @ basis
    X = np.abs(clean + NOISE * rng.standard_normal(clean.shape))
    noise = np.full(X.shape, NOISE)
    return X, noise, RobustNMF(2, method="l2", random_state=0).fit(X, uncertainties=noise)


@pytest.fixture(scope="module")
def moved(tiny):
    X, noise, model = tiny
    return displace_components(X, model, uncertainties=noise, increases=[4.0, 1.0], features=[0, 3])


def by_slsqp(squares, base, goal, constraints=()):
    """Minimise a function of codes and components with the means of the codes held, by SLSQP."""
    shape, cut = base.codes.shape, base.codes.size

    def split(z):
        return z[:cut].reshape(shape), z[cut:].reshape(base.components.shape)

    held = {"type": "eq", "fun": lambda z: split(z)[0].mean(axis=0) - squares.means}
    others = [{"type": kind, "fun": lambda z, f=f: f(*split(z))} for kind, f in constraints]
    start = np.concatenate([base.codes, base.components], axis=None)
    found = minimize(
        lambda z: goal(*split(z)), start, method="SLSQP", bounds=[(0, None)] * len(start),
        constraints=[held, *others], options={"maxiter": 500, "ftol": 1e-10},
    )  # fmt: skip
    assert found.status in (0, 8), found.message  # 8: its differences cannot tell any more where down is
    return split(found.x)


def test_minimum_of_q_is_that_of_slsqp(tiny):
    X, noise, model = tiny
    squares, base = squares_of(model, X, None, noise)
    theirs = by_slsqp(squares, base, squares.Q)
    assert base.Q == pytest.approx(np.sum(((X - base.codes @ base.components) / noise) ** 2))
    assert base.Q == pytest.approx(squares.Q(*theirs), rel=1e-4)
    np.testing.assert_allclose(base.codes.mean(axis=0), squares.means)


@pytest.mark.parametrize(("k", "j", "up"), [(0, 0, True), (0, 3, False), (1, 3, True)])
def test_displacement_ends_where_slsqp_can_go_no_farther(tiny, moved, k, j, up):
    X, noise, model = tiny
    squares, base = squares_of(model, X, None, noise)
    sign = -1 if up else 1
    within = ("ineq", lambda codes, components: base.Q + 4 - squares.Q(codes, components))
    _, components = by_slsqp(squares, base, lambda codes, components: sign * components[k, j], [within])
    end = (moved.high if up else moved.low)[1, k, j]
    # Q may stop short by a twentieth of the increase, and so the end by a fortieth of the way.
    assert end == pytest.approx(components[k, j], abs=0.05 * abs(components[k, j] - base.components[k, j]) + 1e-4)


def test_displacement_grows_with_the_increase_and_holds_the_components(moved):
    assert moved.increases == (1.0, 4.0)
    shown = np.s_[:, :, [0, 3]]
    assert (moved.low[shown] <= moved.components[:, [0, 3]]).all()
    assert (moved.high[shown] >= moved.components[:, [0, 3]]).all()
    assert (moved.low[1] <= moved.low[0])[:, [0, 3]].all()
    assert (moved.high[1] >= moved.high[0])[:, [0, 3]].all()
    assert np.isnan(moved.low[:, :, 1]).all()
    assert moved.swaps.shape == (2, 2)
    assert 0 <= moved.largest_decrease < 0.01 * moved.Q


def test_displacement_has_a_table_and_a_picture(moved):
    rows = moved.table(4.0)
    assert [(row["component"], row["feature"]) for row in rows] == [(1, "0"), (1, "3"), (2, "0"), (2, "3")]
    assert rows[1]["high"] == moved.high[1, 0, 3]
    ax = plots.intervals(moved, 2, increase=4.0)
    segments = ax.collections[0].get_segments()
    np.testing.assert_allclose([s[:, 1] for s in segments], [[r["low"], r["high"]] for r in rows[2:]])
    with pytest.raises(ValueError, match=r"increase must be one of \(1.0, 4.0\)"):
        moved.table(3.0)


def test_bootstrap_displacement_is_wider_than_displacement(tiny):
    X, noise, model = tiny
    one = displace_components(X, model, uncertainties=noise, increases=[1.0], features=[0])
    both = bootstrap_displacement(
        X, model, uncertainties=noise, increases=[1.0], features=[0], n_boot=5, random_state=0, block_size=2
    )
    assert both.accepted + both.swaps_in_best_fit == both.n_boot == 5
    assert (both.high - both.low)[0, :, 0].sum() > (one.high - one.low)[0, :, 0].sum()
    assert len(both.table()) == 2


def test_swaps_count_components_that_have_changed_places():
    from robustnmf.refinement.displacement import _swapped

    codes = np.random.default_rng(0).random((20, 3))
    assert not _swapped(codes * [1, 2, 3], codes).any()
    assert _swapped(codes[:, [1, 0, 2]], codes).tolist() == [True, True, False]


def test_constraints_cost_as_much_as_with_slsqp(tiny):
    X, noise, model = tiny
    squares, base = squares_of(model, X, None, noise)
    found = constrain(X, model, [fix(1, 2, 0.0), ratio(2, 0, 1, 0.8)], uncertainties=noise)
    theirs = by_slsqp(
        squares, base, squares.Q,
        [("eq", lambda codes, F: F[0, 2]), ("eq", lambda codes, F: F[1, 0] - 0.8 * F[1, 1])],
    )  # fmt: skip
    assert found.components[0, 2] == 0
    assert found.components[1, 0] == pytest.approx(0.8 * found.components[1, 1], rel=1e-4)
    assert found.increase > 1
    assert found.Q == pytest.approx(squares.Q(*theirs), rel=1e-3)


def test_bounds_and_codes_are_kept(tiny):
    X, noise, model = tiny
    _, base = squares_of(model, X, None, noise)
    limit, code = 0.8 * base.components[0, 1], 1.3 * base.codes[4, 1]
    constraints = [bound(1, 1, high=limit), fix_code(3, 1, 0.0), fix_code(4, 2, code)]
    found = constrain(X, model, constraints, uncertainties=noise)
    assert found.components[0, 1] <= limit * (1 + 1e-9)
    assert found.codes[3, 0] == 0
    assert found.codes[4, 1] == pytest.approx(code, rel=1e-4)
    assert found.violations.max() < 1e-4


def test_constraint_that_holds_anyway_costs_nothing(tiny):
    X, noise, model = tiny
    found = constrain(X, model, [bound(1, 1, 0.0, 1e6)], uncertainties=noise)
    assert found.increase == pytest.approx(0, abs=1e-3)


def test_pull_spends_the_allowed_increase_and_comes_nearer(tiny):
    X, noise, model = tiny
    _, base = squares_of(model, X, None, noise)
    constraints = [ratio(2, 0, 1, 3.0)]
    exact = constrain(X, model, constraints, uncertainties=noise)
    pulled = constrain(X, model, constraints, uncertainties=noise, max_increase=exact.increase / 4)
    assert pulled.increase == pytest.approx(exact.increase / 4, rel=0.05)
    free = abs(base.components[1, 0] - 3 * base.components[1, 1])
    assert 0.01 * free < pulled.violations[0] < 0.9 * free


def test_pull_that_can_reach_its_end_meets_it(tiny):
    X, noise, model = tiny
    found = constrain(X, model, [fix(1, 2, 0.0)], uncertainties=noise, max_increase=1e6)
    assert found.components[0, 2] == 0


def test_constrained_components_can_be_those_of_a_model(tiny):
    X, noise, model = tiny
    found = constrain(X, model, [fix(1, 2, 0.0)], uncertainties=noise)
    fitted = RobustNMF(2, fixed_components=found.components, random_state=0).fit(X, uncertainties=noise)
    assert fitted.components_[0, 2] == 0


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([], "constraints must be a list"),
        ([fix(0, 1, 0.0)], "component must be a number from 1 to 2"),
        ([fix(1, "iron", 0.0)], "feature must be the name"),
        ([fix(1, 1, 1.0), bound(1, 1, high=0.5)], "No non-negative factors meet all"),
        ([fix(1, 1, -1.0)], "No non-negative factors meet all"),
        ([fix_code(12, 1, 0.0)], "sample from 0 to 11"),
    ],
)
def test_constraints_that_mean_nothing_are_refused(tiny, constraints, message):
    X, noise, model = tiny
    with pytest.raises(ValueError, match=message):
        constrain(X, model, constraints, uncertainties=noise)


def test_numbers_that_mean_nothing_are_refused(tiny):
    X, noise, model = tiny
    with pytest.raises(ValueError, match="low <= high"):
        Constraint((("component", 1, 0, 1.0),), 2.0, 1.0)
    with pytest.raises(ValueError, match="increases must be positive"):
        displace_components(X, model, uncertainties=noise, increases=[0.0])
    with pytest.raises(ValueError, match="pass them too"):
        displace_components(X, model)
    with pytest.raises(ValueError, match="block_size must be at most"):
        bootstrap_displacement(X, model, uncertainties=noise, block_size=13)


def test_noise_of_the_fit_takes_the_place_of_uncertainties():
    rng = np.random.default_rng(0)
    clean = rng.gamma(1.0, size=(80, 2)) @ rng.gamma(1.0, size=(2, 20))
    X = np.abs(clean + 0.1 * rng.standard_normal(clean.shape))
    model = RobustNMF(2, noise="constant", random_state=0).fit(X)
    squares, base = squares_of(model, X, None, None)
    # Each entry that counts has a squared residual of about 1, less what the parameters take.
    assert base.Q / (squares.precision > 0).sum() == pytest.approx(1, abs=0.25)


def test_rejected_and_missing_entries_do_not_count(tiny):
    rng = np.random.default_rng(0)
    clean = rng.gamma(1.0, size=(80, 2)) @ rng.gamma(1.0, size=(2, 20))
    X = np.abs(clean + 0.05 * rng.standard_normal(clean.shape))
    noise = np.full(X.shape, 0.05)
    X[3, 4], X[5, 6] = 500.0, np.nan
    model = RobustNMF(2, random_state=0).fit(X, uncertainties=noise)
    squares, _ = squares_of(model, X, None, noise)
    assert squares.precision[3, 4] == squares.precision[5, 6] == 0
    assert squares.precision[0, 0] == pytest.approx(400)


def test_sample_without_an_entry_that_counts_does_not_set_entries_free(tiny):
    X, noise, model = tiny
    with pytest.warns(UserWarning, match="no observed entry"):
        squares, base = squares_of(model, np.vstack([X, np.full(5, np.nan)]), None, np.vstack([noise, noise[:1]]))
    assert squares.shares[-1] == 0
    np.testing.assert_allclose(squares.means, squares.shares[:-1] @ base.codes[:-1])


# --- Newton's method --------------------------------------------------------------------------------------------------


def made_squares(seed, n=60, m=10, rank=3):
    """Return data with gaps and the minimum of its Q; one sample does not count, one has two entries."""
    rng = np.random.default_rng(seed)
    codes, components = rng.gamma(1.0, size=(n, rank)), rng.gamma(0.5, size=(rank, m))
    X = np.abs(codes @ components + 0.05 * rng.standard_normal((n, m)))
    precision = (rng.random((n, m)) > 0.1) / rng.uniform(0.03, 0.1, size=(n, m)) ** 2
    precision[0], precision[1, 2:] = 0, 0
    squares = Squares.of(X, precision, np.ones(n), codes)
    return squares, lowest(squares, Factors(codes, components, squares.Q(codes, components)))


def lowest(squares, start, **bounds):
    """Descend by L-BFGS until Q hardly falls."""
    for _ in range(10):
        start = squares.minimum(start, **bounds)
    return start


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("factor", [0.97, 1.0, 1.05])
def test_newton_and_l_bfgs_find_the_same_minimum(seed, factor):
    squares, base = made_squares(seed)
    low, high = np.zeros_like(base.components), np.full_like(base.components, np.inf)
    k, j = np.unravel_index(base.components.argmax(), low.shape)
    low[k, j] = high[k, j] = factor * base.components[k, j]
    found, slow = squares.refitted(base, low, high), lowest(squares, base, low=low, high=high)
    assert found.Q == pytest.approx(slow.Q, rel=1e-5)  # components may differ: some are hardly determined
    assert found.Q <= slow.Q * (1 + 1e-7)
    assert np.all((found.components >= low - 1e-12) & (found.components <= high + 1e-12))
    assert np.all(found.codes >= 0)
    np.testing.assert_allclose(squares.shares @ found.codes, squares.means, rtol=1e-10)


def test_hessian_of_the_components_is_the_derivative_of_the_gradient():
    squares, base = made_squares(0)
    problem = newton._Reduced.of(squares, base.components)
    inside = base.components + 0.05  # away from the bounds
    point, step = problem.at(inside, base.codes > 0), np.random.default_rng(1).standard_normal(inside.shape)
    ends = [problem.at(inside + h * step, point.codes > 0) for h in (-1e-6, 1e-6)]
    assert (ends[1].Q - ends[0].Q) / 2e-6 == pytest.approx(np.sum(problem.gradient(point) * step), rel=1e-5)
    change = (problem.gradient(ends[1]) - problem.gradient(ends[0])) / 2e-6
    np.testing.assert_allclose(
        problem.hessian(point) @ step.ravel(), change.ravel(), rtol=1e-4, atol=1e-4 * change.max()
    )


def test_many_entries_are_refitted_without_a_hessian(monkeypatch):
    squares, base = made_squares(0)
    monkeypatch.setattr(newton, "MOST_ENTRIES", 5)
    monkeypatch.setattr(newton, "minimum", None)
    assert squares.refitted(base).Q == pytest.approx(base.Q, rel=1e-6)


@pytest.mark.slow
def test_displacement_does_not_exchange_components():
    """The sulfate of the source of sulfate cannot go to zero, although another source has next to none."""
    air = load_baltimore()
    measured = ~air.filled_in.all(axis=1)
    X, uncertainties = air.data[measured], air.uncertainties[measured]
    model = RobustNMF(4, random_state=0).fit(X, uncertainties=uncertainties)
    sulfate = list(air.feature_names).index("Sulfate")
    moved = displace_components(X, model, uncertainties=uncertainties, increases=[4.0], features=[sulfate])
    largest = int(moved.components[:, sulfate].argmax())
    assert moved.low[0, largest, sulfate] > 0.9 * moved.components[largest, sulfate]
    assert moved.swaps.sum() == 0
