"""Table 1, Figure 1, Lemma 1 and Theorem 1 of the paper."""

import inspect
import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from robustnmf.model.losses import Absolute, Cauchy, Correntropy, Huber, Hypersurface, SampleNorm, Squared, Truncated
from robustnmf.paper.theory import (
    ROBUSTNESS_WEIGHTS,
    cauchy,
    code_norm_bound,
    decay_limit,
    decay_ratio,
    e0,
    e1,
    e2,
    generalization_bound,
    hypersurface,
    normalised_truncated_cauchy,
    optimal_generalization_bound,
    robustness_weight,
    truncated_cauchy,
)

FLOOR = 1e-6  # so small that the rounded tip of a norm shows in the eleventh digit only


def keywords(function):
    return [name for name, value in inspect.signature(function).parameters.items() if value.kind is value.KEYWORD_ONLY]


def soft_threshold(R, level):
    return np.sign(R) * np.maximum(np.abs(R) - level, 0)


@dataclass
class Row:
    """A row of Table 1: its objective as a function of R = V - WH, and f'(1) / sum(weight * c)."""

    objective: object
    constant: float
    parameters: dict = field(default_factory=dict)
    sample: bool = False  # whether the residual is the norm of a sample, a column of V


def rnmf_l1(R, penalty=0.6):
    S = soft_threshold(R, penalty / 2)
    return ((R - S) ** 2).sum() + penalty * np.abs(S).sum()


TABLE = {
    "l2": Row(lambda R: (R**2).sum(), 2),
    "hypersurface": Row(lambda R: (np.sqrt(1 + R**2) - 1).sum(), 1),
    "l21": Row(lambda R: np.linalg.norm(R, axis=0).sum(), 1 / FLOOR, {"floor": FLOOR}, sample=True),
    "capped": Row(
        lambda R: np.minimum(np.linalg.norm(R, axis=0), 1.5).sum(),
        1 / FLOOR,
        {"theta": 1.5, "floor": FLOOR},
        sample=True,
    ),
    "rnmf-l1": Row(rnmf_l1, 2, {"penalty": 0.6}),
    "l1": Row(lambda R: np.abs(R).sum(), 1 / FLOOR, {"floor": FLOOR}),
    "huber": Row(lambda R: np.where(np.abs(R) <= 0.4, R**2, 0.8 * np.abs(R) - 0.16).sum(), 2, {"cutoff": 0.4}),
    "cim": Row(
        lambda R: (1 - np.exp(-(R**2) / (2 * 0.7**2)) / (np.sqrt(2 * np.pi) * 0.7)).sum(),
        1 / (np.sqrt(2 * np.pi) * 0.7**3),
        {"width": 0.7},
    ),
    "cauchy": Row(lambda R: np.log(1 + (R / 0.3) ** 2).sum(), 2 / 0.3**2, {"gamma": 0.3}),
    "truncated-cauchy": Row(
        lambda R: np.log(1 + np.minimum((R / 0.3) ** 2, 6.0)).sum(), 2 / 0.3**2, {"gamma": 0.3, "sigma": 6.0}
    ),
}


@pytest.fixture
def factors():
    """V, W and H whose residuals lie on both sides of every cut above, none of them near a kink."""
    rng = np.random.default_rng(0)
    W, H = rng.random((7, 3)), rng.random((3, 9))
    R = rng.choice([-1, 1], (7, 9)) * rng.choice([0.05, 0.2, 0.5, 1.0], (7, 9)) * rng.uniform(0.9, 1.1, (7, 9))
    R[:, 5:] *= 0.2
    return W @ H + R, W, H


def slope_at_one(f, step=1e-6):
    """Central difference of fourth order."""
    return (8 * (f(1 + step) - f(1 - step)) - (f(1 + 2 * step) - f(1 - 2 * step))) / (12 * step)


def test_the_table_has_ten_rows():
    assert list(ROBUSTNESS_WEIGHTS) == list(TABLE)


@pytest.mark.parametrize("model", TABLE)
def test_weights_give_the_derivative_of_the_objective(model, factors):
    """f'(1) of f(t) = F(t WH) is the weighted sum of the contributions c = (V - WH)(-WH): Table 1."""
    V, W, H = factors
    WH, row = W @ H, TABLE[model]
    R = V - WH
    residual = np.linalg.norm(R, axis=0) if row.sample else R
    weights = robustness_weight(model, residual, **row.parameters)
    predicted = row.constant * (weights * R * -WH).sum()
    assert slope_at_one(lambda t: row.objective(V - t * WH)) == pytest.approx(predicted, rel=1e-7)


@pytest.mark.parametrize("model", TABLE)
def test_weights_give_the_part_of_every_sample(model, factors):
    """The same, sample by sample: errors cannot cancel in the sum, and cut samples count for exactly nothing."""
    V, W, H = factors
    WH, row = W @ H, TABLE[model]
    R = V - WH
    weights = robustness_weight(model, np.linalg.norm(R, axis=0) if row.sample else R, **row.parameters)
    predicted = row.constant * (weights * R * -WH).sum(axis=0)
    slopes = [
        slope_at_one(lambda t, j=j: row.objective(V[:, j : j + 1] - t * WH[:, j : j + 1])) for j in range(V.shape[1])
    ]
    np.testing.assert_allclose(slopes, predicted, rtol=1e-6, atol=1e-8)


def test_the_residuals_lie_on_both_sides_of_every_cut(factors):
    V, W, H = factors
    R = np.abs(V - W @ H)
    for residual, cut in [(R, 0.3), (R, 0.4), (R, 0.3 * math.sqrt(6)), (np.linalg.norm(R, axis=0), 1.5)]:
        assert (residual < 0.99 * cut).any()
        assert (residual > 1.01 * cut).any()
        assert not (np.abs(residual / cut - 1) < 1e-3).any()


def test_rnmf_l1_with_the_sparse_part_held_fixed_has_the_same_derivative(factors):
    """Table 1 differentiates at fixed S; at the best S that is the same thing."""
    V, W, H = factors
    WH = W @ H
    R, S = V - WH, soft_threshold(V - WH, 0.3)
    predicted = 2 * (robustness_weight("rnmf-l1", R, penalty=0.6) * R * -WH).sum()
    assert slope_at_one(lambda t: ((V - t * WH - S) ** 2).sum()) == pytest.approx(predicted, rel=1e-7)
    np.testing.assert_allclose(robustness_weight("rnmf-l1", R, penalty=0.6), 1 - S / R, rtol=1e-12)


def test_the_soft_threshold_is_the_best_sparse_part():
    S = np.linspace(-3, 3, 60_001)
    for r in (-2.0, -0.2, 0.0, 0.29, 0.31, 1.7):
        assert S[np.argmin((r - S) ** 2 + 0.6 * np.abs(S))] == pytest.approx(soft_threshold(r, 0.3), abs=1e-4)


def test_rnmf_l1_weighs_like_huber_with_half_the_penalty():
    r = np.linspace(-5, 5, 101)
    np.testing.assert_allclose(robustness_weight("rnmf-l1", r, penalty=1.4), robustness_weight("huber", r, cutoff=0.7))


@pytest.mark.parametrize(
    ("model", "loss", "scale", "parameters"),
    [
        ("l2", Squared(), 1.0, {}),
        ("hypersurface", Hypersurface(), 0.7, {"gamma": 0.7}),
        ("l21", SampleNorm(floor=0.1), 1.0, {"floor": 0.1}),
        ("capped", Truncated(SampleNorm(floor=0.1), 4.0), 1.0, {"floor": 0.1, "theta": 2.0}),
        ("rnmf-l1", Huber(), 0.7, {"penalty": 1.4}),
        ("l1", Absolute(floor=0.1), 1.0, {"floor": 0.1}),
        ("huber", Huber(), 0.7, {"cutoff": 0.7}),
        ("cim", Correntropy(), 0.7, {"width": 0.7}),
        ("cauchy", Cauchy(), 0.7, {"gamma": 0.7}),
        ("truncated-cauchy", Truncated(Cauchy(), 9.0), 0.7, {"gamma": 0.7, "sigma": 9.0}),
    ],
)
def test_weights_are_those_of_the_losses(model, loss, scale, parameters):
    """What is fitted and what is said about it agree; the losses are not normalised."""
    r = np.linspace(-4, 4, 801)
    weights = loss.weight((r / scale) ** 2, np) / loss.weight(np.zeros(1), np)
    np.testing.assert_allclose(robustness_weight(model, r, **parameters), weights, rtol=1e-12)


@pytest.mark.parametrize("model", ROBUSTNESS_WEIGHTS)
def test_weights_are_one_at_zero_and_fall_with_the_residual(model):
    r = np.concatenate([[0], np.geomspace(1e-9, 1e9, 500), [1e200, np.inf]])
    weights = robustness_weight(model, r)
    assert weights[0] == 1
    assert (np.diff(weights) <= 0).all()
    assert weights[-1] == (1 if model == "l2" else 0)
    np.testing.assert_array_equal(robustness_weight(model, -r), weights)


@pytest.mark.parametrize("model", ["hypersurface", "l21", "rnmf-l1", "l1", "huber"])
def test_weights_of_models_like_l1_are_of_order_one_over_the_residual(model):
    r = np.array([1e3, 1e6, 1e9])
    products = r * robustness_weight(model, r)
    np.testing.assert_allclose(products, products[-1], rtol=1e-6)
    assert products[-1] > 0


def test_weights_of_cim_fall_exponentially_and_those_of_cauchy_as_the_inverse_square():
    r = np.array([1.0, 2.0, 4.0, 8.0])
    np.testing.assert_allclose(np.log(robustness_weight("cim", r, width=2.0)), -(r**2) / 8)
    np.testing.assert_allclose(1e12 * robustness_weight("cauchy", [1e6], gamma=3.0), 9, rtol=1e-9)


def test_weights_beyond_a_truncation_are_exactly_zero():
    edge = 0.3 * math.sqrt(6.0)
    inside, outside = robustness_weight("truncated-cauchy", [edge, np.nextafter(edge, 9)], gamma=0.3, sigma=6.0)
    assert (inside, outside) == (pytest.approx(1 / 7), 0)
    inside, outside = robustness_weight("capped", [2.0, np.nextafter(2, 9)], theta=2.0, floor=0.1)
    assert (inside, outside) == (pytest.approx(0.1 / math.hypot(0.1, 2)), 0)


def test_weights_of_truncated_cauchy_without_truncation_are_those_of_cauchy():
    r = np.linspace(0, 100, 50)
    np.testing.assert_array_equal(
        robustness_weight("truncated-cauchy", r, sigma=math.inf), robustness_weight("cauchy", r)
    )


@pytest.mark.parametrize(("alias", "model"), [("nenmf", "l2"), ("mahnmf", "l1")])
def test_weights_know_other_names(alias, model):
    r = np.linspace(-2, 2, 9)
    np.testing.assert_array_equal(robustness_weight(alias, r), robustness_weight(model, r))


@pytest.mark.parametrize("model", ROBUSTNESS_WEIGHTS)
def test_weights_keep_shape_and_missing_values(model):
    weights = robustness_weight(model, [[0.0, 1.0], [2.0, np.nan]])
    assert weights.shape == (2, 2)
    assert np.isnan(weights[1, 1]) or model == "l2"
    assert np.shape(robustness_weight(model, 1.0)) == ()


def test_weights_refuse_unknown_models_and_parameters():
    with pytest.raises(ValueError, match=r"model must be one of 'l2', .*'mahnmf'; got 'l3'"):
        robustness_weight("l3", 1.0)
    with pytest.raises(TypeError, match=r"'huber' has the parameters \['cutoff'\]; got 'gamma'"):
        robustness_weight("huber", 1.0, gamma=2.0)


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model, weight in ROBUSTNESS_WEIGHTS.items() for name in keywords(weight)]
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_weights_refuse_parameters_that_are_not_positive(model, name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        robustness_weight(model, 1.0, **{name: value})


# Figure 1.


def test_truncated_cauchy_is_cauchy_up_to_the_truncation_and_constant_beyond():
    x = np.linspace(-12, 12, 241)
    expected = np.where(np.abs(x) <= 5, np.log(1 + x**2), np.log(26))
    np.testing.assert_allclose(truncated_cauchy(x, 1.0, 5.0), expected, rtol=1e-14)


def test_losses_of_figure_1_are_ordered_as_drawn():
    """e_t leaves e_2 for small errors, stays below e_1 and e_c for large ones, and is bounded as e_0 is."""
    small, large = np.array([1e-4, 1e-3]), np.array([6.0, 50.0, 1e6])
    np.testing.assert_allclose(truncated_cauchy(small, 1, 5), e2(small), rtol=1e-5)
    np.testing.assert_allclose(hypersurface(small), e2(small) / 2, rtol=1e-5)
    np.testing.assert_allclose(hypersurface(large), e1(large), rtol=0.2)
    assert (truncated_cauchy(large, 1, 5) < cauchy(large, 1)).all()
    assert (cauchy(large, 1) < e1(large)).all()
    assert (e1(large) < e2(large)).all()
    assert np.ptp(truncated_cauchy(large, 1, 5)) == np.ptp(e0(large)) == 0


@pytest.mark.parametrize(
    "loss",
    [e2, e1, e0, hypersurface, lambda x: cauchy(x, 0.5), lambda x: truncated_cauchy(x, 0.5, 2.0)],
    ids=["e2", "e1", "e0", "hypersurface", "cauchy", "truncated-cauchy"],
)
def test_losses_are_zero_at_zero_even_and_increasing(loss):
    x = np.concatenate([[0], np.geomspace(1e-12, 1e12, 200), [np.inf]])
    values = loss(x)
    assert values[0] == 0
    assert (np.diff(values) >= 0).all()
    np.testing.assert_array_equal(loss(-x), values)


def test_hypersurface_does_not_cancel_near_zero():
    np.testing.assert_allclose(hypersurface([1e-9]), [5e-19], rtol=1e-12)


def test_cauchy_survives_ratios_whose_square_overflows():
    assert cauchy(1.0, 1e-200) == pytest.approx(400 * math.log(10), rel=1e-14)
    np.testing.assert_allclose(cauchy([1e7, 1e8, 1e9], 1.0), 2 * np.log([1e7, 1e8, 1e9]), rtol=1e-14)


def test_normalised_truncated_cauchy_tends_to_e0_as_gamma_falls():
    x = np.array([0.0, 1e-3, 0.1, 1.0, 5.0, 100.0])
    gaps = [np.abs(normalised_truncated_cauchy(x, gamma, 5.0) - e0(x)) for gamma in 10.0 ** -np.arange(0, 301, 50)]
    assert (np.diff([gap.max() for gap in gaps]) < 0).all()
    assert gaps[-1].max() < 0.015
    for gap in gaps:
        np.testing.assert_allclose(gap[[0, 4, 5]], 0, atol=1e-15)  # at zero and from the truncation on it is exact


def test_the_gap_to_e0_is_logarithmic():
    x, gamma, epsilon = np.array([0.01, 0.5, 3.0]), 1e-30, 5.0
    gap = 1 - normalised_truncated_cauchy(x, gamma, epsilon)
    np.testing.assert_allclose(gap, np.log(epsilon / x) / math.log(epsilon / gamma), rtol=1e-10)


@pytest.mark.parametrize("loss", [lambda: cauchy(1, 0), lambda: truncated_cauchy(1, 1, -1)])
def test_losses_refuse_scales_that_are_not_positive(loss):
    with pytest.raises(ValueError, match="must be positive"):
        loss()


# Lemma 1 and Theorem 1.

SETTING = {"m": 12, "r": 3, "alpha": 1.3, "sigma": 4.0, "gamma": 0.4, "delta": 0.05}


def printed_bound(n, epsilon, m, r, alpha, sigma, gamma, delta, q):
    """The expression under the minimum of Theorem 1, letter by letter; q is what the denominators hold."""
    bracket = (
        (8 * r * alpha**2 + 2 * alpha**2) / q**2
        + sigma * alpha**2 / (math.sqrt(2) * q**3)
        + 2 * r * sigma**2 * alpha**2 / q**4
    )
    inside = (4 ** (1 / m) * math.pi**0.5 * bracket * m * r) / (math.gamma(m / 2) ** (1 / m) * 2 * epsilon)
    return 2 * epsilon + alpha**2 / gamma**2 * math.sqrt((m * r * math.log(inside) + math.log(2 / delta)) / (2 * n))


def best_code(sigma, a, angle):
    """The code that minimises the truncated loss (gamma = 1) of v = (0, a, a), on a fine grid."""
    w = np.array([math.cos(angle), math.sin(angle) / math.sqrt(2), math.sin(angle) / math.sqrt(2)])
    h = np.linspace(0, 2 * a / math.sin(angle), 400_001)
    residuals = np.array([0, a, a])[:, None] - w[:, None] * h
    return h[np.argmin(np.log1p(np.minimum(residuals**2, sigma)).sum(axis=0))]


def test_code_norm_bound_is_that_of_lemma_1():
    assert code_norm_bound(3.0, 2.0, 0.5) == pytest.approx(6 + 2 * 3 / (math.sqrt(2) * 0.5))


def test_code_norm_bound_does_not_hold_for_codes_that_give_up_entries():
    """The counterexample of the docstring: a third of the entries is given up for a code of norm alpha / sin(t)."""
    a, sigma, angle = 3.0, 1.0, 0.05
    alpha = math.sqrt(2) * a
    code = best_code(sigma, a, angle)
    assert code == pytest.approx(alpha / math.sin(angle), rel=1e-4)
    assert code > 5 * code_norm_bound(alpha, sigma, 1.0)


@pytest.mark.parametrize("angle", [0.05, 0.3, 0.8, 1.5])
def test_codes_that_give_up_nothing_are_bounded(angle):
    """The bound of the docstring, alpha (1 + sqrt(sigma / ln(1 + sigma))), where every entry is kept."""
    a, sigma = 0.5, 1.0
    code = best_code(sigma, a, angle)
    assert code * math.cos(angle) <= math.sqrt(sigma)
    assert code <= math.sqrt(2) * a * (1 + math.sqrt(sigma / math.log1p(sigma)))


@pytest.mark.parametrize("n", [10, 1000, 10**6])
@pytest.mark.parametrize(("reading", "q"), [("printed", SETTING["r"]), ("consistent", SETTING["gamma"])])
def test_generalization_bound_is_the_formula_of_theorem_1(n, reading, q):
    assert generalization_bound(n, **SETTING, reading=reading) == pytest.approx(
        printed_bound(n, 1 / n, **SETTING, q=q), rel=1e-13
    )
    assert generalization_bound(n, **SETTING, epsilon=0.03, reading=reading) == pytest.approx(
        printed_bound(n, 0.03, **SETTING, q=q), rel=1e-13
    )


@pytest.mark.parametrize("reading", ["printed", "consistent"])
def test_generalization_bound_falls_with_n_and_rises_with_the_rank(reading):
    by_n = [generalization_bound(n, **SETTING, reading=reading) for n in (2, 10, 100, 10**4, 10**8)]
    assert (np.diff(by_n) < 0).all()
    by_rank = [generalization_bound(1000, **(SETTING | {"r": r}), reading=reading) for r in (1, 2, 5, 10, 40, 200)]
    assert (np.diff(by_rank) > 0).all()


@pytest.mark.parametrize(("name", "larger"), [("m", 50), ("alpha", 2.0), ("sigma", 9.0)])
def test_generalization_bound_rises_with(name, larger):
    assert generalization_bound(1000, **(SETTING | {name: larger})) > generalization_bound(1000, **SETTING)


@pytest.mark.parametrize(("name", "larger"), [("gamma", 0.8), ("delta", 0.5)])
def test_generalization_bound_falls_with(name, larger):
    assert generalization_bound(1000, **(SETTING | {name: larger})) < generalization_bound(1000, **SETTING)


def test_generalization_bound_does_not_overflow_for_many_features():
    bound = generalization_bound(1e6, **(SETTING | {"m": 1_000_000, "gamma": 1e-80}), reading="consistent")
    assert math.isfinite(bound)
    assert math.isfinite(generalization_bound(1e6, **(SETTING | {"m": 1_000_000, "r": 1000})))


def test_generalization_bound_without_truncation_is_infinite():
    assert generalization_bound(1000, **(SETTING | {"sigma": math.inf})) == math.inf


def test_generalization_bound_takes_a_covering_to_have_at_least_one_element():
    setting = SETTING | {"alpha": 1e-9}
    assert generalization_bound(10, **setting, epsilon=1.0) == pytest.approx(2, rel=1e-12)


def test_the_consistent_reading_does_not_depend_on_the_unit_of_the_data_and_the_printed_one_does():
    def bounds(reading):
        return [
            generalization_bound(
                1000, m=12, r=3, alpha=1.3 * u, sigma=4 * u, gamma=0.4 * u, delta=0.05, reading=reading
            )
            for u in (1e-3, 1.0, 255.0)
        ]

    np.testing.assert_allclose(bounds("consistent"), bounds("consistent")[0], rtol=1e-12)
    assert np.ptp(bounds("printed")) > 0.1


@pytest.mark.parametrize("sigma", [0.01, 1.0, 30.0])
def test_the_consistent_constant_covers_the_lipschitz_constant_that_lemma_1_gives(sigma):
    """C with gamma is alpha b / gamma^2 exactly plus at least r b^2 / gamma^2, b the bound of Lemma 1."""
    m, r, alpha, gamma, delta, n, epsilon = 2, 3, 1.3, 0.4, 0.05, 10, 1e-3
    bound = generalization_bound(
        n, m=m, r=r, alpha=alpha, sigma=sigma, gamma=gamma, delta=delta, epsilon=epsilon, reading="consistent"
    )
    root = (bound - 2 * epsilon) * (gamma / alpha) ** 2
    log_ratio = (2 * n * root**2 - math.log(2 / delta)) / (m * r)
    constant = math.exp(log_ratio) * 2 * epsilon / (2 * math.sqrt(math.pi) * m * r)  # 4^(1/2) = 2, Gamma(1) = 1
    b = code_norm_bound(alpha, sigma, gamma)
    squares = 2 * (2 * alpha) ** 2 + 2 * (sigma * alpha / gamma) ** 2
    assert constant == pytest.approx((alpha * b + r * squares) / gamma**2, rel=1e-9)
    assert squares >= b**2


@pytest.mark.thinned(3)
@pytest.mark.parametrize("reading", ["printed", "consistent"])
@pytest.mark.parametrize("n", [1, 5, 100, 10**4, 10**9])
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.3, 50.0])
def test_optimal_generalization_bound_is_the_least_over_epsilon(n, alpha, reading):
    setting = SETTING | {"alpha": alpha, "reading": reading}
    best = optimal_generalization_bound(n, **setting)
    assert best.bound <= generalization_bound(n, **setting)
    assert best.bound == pytest.approx(generalization_bound(n, **setting, epsilon=best.epsilon), rel=1e-12)
    grid = [generalization_bound(n, **setting, epsilon=epsilon) for epsilon in np.geomspace(1e-14, 1e6, 4001)]
    assert best.bound <= min(grid) * (1 + 1e-12)
    assert best.bound == pytest.approx(min(grid), rel=1e-3)


def test_optimal_generalization_bound_finds_the_kink():
    """Where the loss is large and samples are few, the best covering is the coarsest: one element."""
    setting = SETTING | {"gamma": 1e-3}
    best = optimal_generalization_bound(5, **setting)
    one_element = (1.3 / 1e-3) ** 2 * math.sqrt(math.log(2 / 0.05) / 10)
    assert best.bound == pytest.approx(2 * best.epsilon + one_element, rel=1e-14)
    assert best.bound < generalization_bound(5, **setting, epsilon=0.99 * best.epsilon)
    assert best.bound < generalization_bound(5, **setting, epsilon=1.01 * best.epsilon)


@pytest.mark.parametrize("reading", ["printed", "consistent"])
def test_the_bound_decays_as_the_root_of_log_n_over_n(reading):
    n = 10.0 ** np.array([2, 5, 10, 30, 100, 200, 300])
    ratios = np.array([decay_ratio(x, **SETTING, reading=reading) for x in n])
    limit = decay_limit(m=12, r=3, alpha=1.3, gamma=0.4)
    assert limit == pytest.approx((1.3 / 0.4) ** 2 * math.sqrt(18))
    assert (np.diff(ratios) < 0).all()
    assert ratios[-1] == pytest.approx(limit, rel=0.01)
    # The rest of the logarithm does not depend on n: the squared ratio is limit^2 (1 + rest / ln n).
    rest = ((ratios / limit) ** 2 - 1) * np.log(n)
    np.testing.assert_allclose(rest[3:], rest[-1], rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n must be a finite number"),
        ({"n": math.inf}, "n must be a finite number"),
        ({"m": 0}, "m must be a positive integer"),
        ({"r": 2.5}, "r must be a positive integer"),
        ({"alpha": 0.0}, "alpha must be positive"),
        ({"alpha": math.inf}, "finite"),
        ({"sigma": -1.0}, "sigma must be positive"),
        ({"gamma": math.nan}, "gamma must be positive"),
        ({"delta": 1.0}, "delta must be a probability"),
        ({"reading": "other"}, "reading must be"),
    ],
)
@pytest.mark.parametrize("bound", [generalization_bound, optimal_generalization_bound])
def test_bounds_refuse_what_the_theorem_does_not_cover(bound, change, message):
    with pytest.raises(ValueError, match=message):
        bound(**({"n": 100} | SETTING | change))


def test_bounds_refuse_radii_and_sizes_without_meaning():
    with pytest.raises(ValueError, match="epsilon must be positive"):
        generalization_bound(100, **SETTING, epsilon=0.0)
    with pytest.raises(ValueError, match="sigma must be finite"):
        optimal_generalization_bound(100, **(SETTING | {"sigma": math.inf}))
    with pytest.raises(ValueError, match="n must be above 1"):
        decay_ratio(1, **SETTING)
    with pytest.raises(ValueError, match="alpha must be positive"):
        code_norm_bound(0.0, 1.0, 1.0)
