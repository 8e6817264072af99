"""Losses, scale rules, outlier rules and initialisers, each against an independent definition."""

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import cauchy

from conftest import make_data
from robustnmf.algorithm.initializers import MedianStart, PublishedStart, RandomStart, credible
from robustnmf.engines import NumPyEngine
from robustnmf.errors import IncompatibleError
from robustnmf.kernels.interface import NO_KERNELS
from robustnmf.methods import INITIALIZERS, METHODS, OUTLIERS, SCALES, SOLVERS, resolve
from robustnmf.model import losses
from robustnmf.model.losses import (
    Cauchy,
    Loss,
    SampleNorm,
    Truncated,
    squared_ratio,
)
from robustnmf.model.outliers import MADRule, ThreeSigma
from robustnmf.model.scales import MAD, FixedScale, Nagy

LOSSES = [*losses.LOSSES.values(), Truncated(Cauchy(), 4.0), Truncated(SampleNorm(), 4.0)]
by_name = {"ids": lambda part: part.name}
engine = NumPyEngine()


@pytest.mark.parametrize("loss", LOSSES, **by_name)
class TestLosses:
    def test_weight_is_the_derivative_of_rho(self, loss):
        s = np.array([1e-3, 0.1, 0.9, 1.1, 3.9, 4.1, 50.0])
        step = 1e-6 * s
        numerical = (loss.rho(s + step, np) - loss.rho(s - step, np)) / (2 * step)
        np.testing.assert_allclose(loss.weight(s, np), numerical, rtol=1e-7, atol=1e-12)

    def test_rho_is_zero_at_zero_concave_and_non_decreasing(self, loss):
        s = np.linspace(0, 10, 1001)
        slopes = np.diff(loss.rho(s, np))
        assert loss.rho(np.zeros(1), np)[0] == 0
        assert np.all(slopes >= 0)
        assert np.all(np.diff(slopes) <= 1e-12)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_dtype_is_kept(self, loss, dtype):
        s = np.ones(3, dtype=dtype)
        assert loss.rho(s, np).dtype == loss.weight(s, np).dtype == dtype

    def test_is_a_value(self, loss):
        assert isinstance(loss, Loss)
        assert pickle.loads(pickle.dumps(loss)) == loss
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            loss.cap = 3


def test_truncated_cauchy_is_equation_2_1():
    """With epsilon = gamma * sqrt(cap): constant beyond epsilon, the Cauchy loss up to it."""
    gamma, cap = 2.0, 9.0
    x = np.array([0.0, 1.0, 5.99, 6.01, 100.0])
    expected = np.log(1 + (np.minimum(x, gamma * 3) / gamma) ** 2)
    np.testing.assert_allclose(Truncated(Cauchy(), cap).rho(squared_ratio(x, gamma, np), np), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_squared_ratio_stays_finite(dtype):
    huge = np.array([np.finfo(dtype).max], dtype=dtype)
    assert np.isfinite(squared_ratio(huge, 1e-3, np))[0]


def magnitudes(n=4001, scale=3.0, seed=0):
    values = np.abs(cauchy.rvs(scale=scale, size=(n, 1), random_state=seed))
    return values, engine.split(values)


def test_nagy_is_the_maximum_likelihood_scale_of_a_cauchy_sample():
    values, blocks = magnitudes()
    found = Nagy()(blocks, None, None, engine)
    likelihood = minimize_scalar(
        lambda g: -cauchy.logpdf(values, scale=g).sum(), bounds=(0.1, 30), options={"xatol": 1e-10}
    )
    assert found == pytest.approx(likelihood.x, rel=1e-5)
    assert found == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("start", [1e-6, 0.1, 3.0, 1e6])
def test_nagy_does_not_depend_on_its_start(start):
    _, blocks = magnitudes()
    assert Nagy(max_iter=1000)(blocks, None, start, engine) == pytest.approx(
        Nagy()(blocks, None, None, engine), rel=1e-8
    )


def test_nagy_of_perfect_fits_is_zero():
    assert Nagy()([np.zeros((5, 4))], None, None, engine) == 0.0
    assert Nagy()([np.zeros((5, 4))], None, 1.0, engine) == 0.0


def test_mad_of_gaussian_residuals_is_their_standard_deviation():
    values = np.abs(2.0 * np.random.default_rng(0).standard_normal((20001, 1)))
    assert MAD()([values], None, None, engine) == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("rule", [Nagy(), MAD(), FixedScale(3.0)], **by_name)
def test_scale_rules_ignore_missing_entries(rule):
    values, _ = magnitudes(100)
    M = np.ones_like(values)
    M[::3] = 0
    spoiled = np.where(M == 0, 1e9, values)
    assert rule([spoiled], [M], None, engine) == pytest.approx(rule([values[M > 0][:, None]], None, None, engine))


def test_three_sigma_cuts_gaussian_residuals_at_nine_tenths_of_a_deviation():
    """A property of the published rule that its documentation states."""
    values = np.abs(np.random.default_rng(0).standard_normal((200_001, 1)))
    cut = float(ThreeSigma()([values], None, 1.0, engine))
    assert cut == pytest.approx(0.90, abs=0.01)
    assert np.mean(values > cut) == pytest.approx(0.37, abs=0.01)


@pytest.mark.parametrize("rule", [ThreeSigma(axis="feature"), MADRule(axis="feature")], **by_name)
def test_feature_rules_are_the_global_rule_on_each_feature(rule):
    A = np.abs(np.random.default_rng(0).standard_normal((50, 4))) * [1, 10, 100, 0]
    M = np.where(np.random.default_rng(1).random(A.shape) < 0.2, 0.0, 1.0)
    whole = type(rule)()
    expected = [float(whole([A[:, [k]]], [M[:, [k]]], 1.0, engine)) for k in range(4)]
    np.testing.assert_allclose(rule([A[:20], A[20:]], [M[:20], M[20:]], 1.0, engine), expected, rtol=1e-12)


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_quantile_counts_an_integer_weight_as_copies(q, weighted):
    rng = np.random.default_rng(0)
    A = rng.random((40, 5))
    copies = rng.integers(0, 4, A.shape) if weighted else np.ones(A.shape, dtype=int)
    expected = np.quantile(np.repeat(A.ravel(), copies.ravel()), q, method="inverted_cdf")
    M = engine.split(copies / 3.0) if weighted else None
    assert engine.quantile(engine.split(A), M, q) == expected


@pytest.mark.parametrize("init", INITIALIZERS.values(), **by_name)
@pytest.mark.parametrize("rank", [1, 3])
class TestInitializers:
    def test_factors_are_finite_non_negative_and_seeded(self, init, rank):
        V = make_data().X.T
        W, H = init(V, None, rank, np.random.default_rng(3))
        assert (W.shape, H.shape) == ((20, rank), (rank, 30))
        assert np.all(np.isfinite(W) & (W >= 0)) and np.all(np.isfinite(H) & (H >= 0))
        again = init(V, None, rank, np.random.default_rng(3))
        np.testing.assert_array_equal(W, again[0])
        np.testing.assert_array_equal(H, again[1])

    def test_missing_entries_have_no_influence_or_are_refused(self, init, rank):
        V = make_data().X.T
        M = np.where(np.random.default_rng(1).random(V.shape) < 0.2, 0.0, 1.0)
        if init.name in ("heavy-noise", "near-separable"):
            with pytest.raises(IncompatibleError, match="needs complete data"):
                init(V, M, rank, np.random.default_rng(3))
            return
        one = init(np.where(M == 0, 0, V), M, rank, np.random.default_rng(3))
        two = init(np.where(M == 0, 1e5, V), M, rank, np.random.default_rng(3))
        np.testing.assert_allclose(one[0], two[0], rtol=1e-9)
        np.testing.assert_allclose(one[1], two[1], rtol=1e-9)

    def test_zero_data_gives_finite_factors(self, init, rank):
        W, H = init(np.zeros((6, 5)), None, rank, np.random.default_rng(0))
        assert np.all(np.isfinite(W)) and np.all(np.isfinite(H))

    def test_dtype_is_kept(self, init, rank):
        W, H = init(make_data().X.T.astype(np.float32), None, rank, np.random.default_rng(0))
        assert W.dtype == H.dtype == np.float32


def test_random_start_has_the_level_of_the_data():
    V = make_data(n=300, m=200, outliers=0).X.T
    W, H = RandomStart()(V, None, 10, np.random.default_rng(0))
    assert np.mean(W @ H) == pytest.approx(np.median(V), rel=0.05)


def test_median_start_does_not_believe_in_samples_and_features_that_are_far_too_large():
    rng = np.random.default_rng(0)
    V = np.outer(rng.uniform(1, 2, 50), rng.uniform(1, 2, 80))
    plain = MedianStart(spread=0.0)(V, None, 1, rng)
    V[:3] *= 1e6 * rng.random((3, 80))
    V[:, :5] *= 1e5 * rng.random((50, 5))
    W, H = MedianStart(spread=0.0)(V, None, 1, rng)
    np.testing.assert_allclose((W @ H)[3:, 5:], (plain[0] @ plain[1])[3:, 5:], rtol=0.2)
    assert W.max() < 10 * np.median(W)
    assert H.max() <= 3.01 * np.median(H)


def test_levels_that_differ_widely_are_all_credible():
    levels = np.logspace(-2, 2, 41)
    np.testing.assert_array_equal(credible(levels), levels)
    np.testing.assert_array_equal(credible(np.zeros(3)), np.zeros(3))


@pytest.mark.parametrize(("n_far", "expected"), [(1, 1.0), (8, 1.0), (9, 50.0)])
def test_a_few_levels_far_above_the_others_are_replaced(n_far, expected):
    levels = np.concatenate([np.linspace(0.8, 1.2, 41 - n_far), np.full(n_far, 50.0)])
    np.testing.assert_allclose(credible(levels)[-n_far:], expected, atol=0.1)
    np.testing.assert_array_equal(credible(levels)[:-n_far], levels[:-n_far])


def test_median_start_recovers_a_rank_one_matrix_with_forty_percent_outliers():
    rng = np.random.default_rng(0)
    V = np.outer(rng.uniform(0.5, 1, 60), rng.uniform(0.5, 1, 50))
    spoiled = np.where(rng.random(V.shape) < 0.4, rng.choice([0, 50.0], V.shape), V)
    W, H = MedianStart(spread=0.0, n_iter=20)(spoiled, None, 2, rng)
    assert np.linalg.norm(W @ H - V) < 0.02 * np.linalg.norm(V)


def test_published_start_updates_a_low_random_start():
    V = make_data().X.T
    W, H = PublishedStart()(V, None, 3, np.random.default_rng(0))
    assert 0.3 < np.mean(W @ H) / np.mean(V) < 3


def test_every_method_resolves_under_both_presets():
    for name in METHODS:
        for preset in ("default", "published"):
            resolve(name, preset)


def test_published_preset_is_the_algorithm_of_the_paper():
    parts = resolve("truncated-cauchy", "published")
    assert [part.name for part in (parts.loss, parts.init, parts.scale, parts.outliers, parts.solver)] == [
        "cauchy",
        "published",
        "nagy",
        "three-sigma",
        "nesterov",
    ]


def test_named_parts_replace_those_of_the_preset():
    for kind, registry in {"init": INITIALIZERS, "scale": SCALES, "outliers": OUTLIERS, "solver": SOLVERS}.items():
        for name, part in registry.items():
            method = {"smoothing": "l1", "weighted-median": "l1", "sparse-error": "huber"}.get(name, "truncated-cauchy")
            assert getattr(resolve(method, "default", **{kind: name}), kind) is part


@pytest.mark.parametrize(
    ("method", "solver"), [("l2", "smoothing"), ("cauchy", "sparse-error"), ("l21", "armijo"), ("rndl", "smoothing")]
)
def test_a_solver_that_cannot_lower_the_loss_is_refused(method, solver):
    with pytest.raises(IncompatibleError, match=r"cannot lower the (penalised )?loss"):
        resolve(method, "default", solver=solver)


def test_numbers_fix_scale_and_truncation():
    parts = resolve("truncated-cauchy", "default", scale=2, outliers=9)
    assert parts.scale == FixedScale(2.0)
    assert parts.loss == Truncated(Cauchy(), 9.0)
    assert parts.outliers.name == "none"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("weighted", [False, True])
def test_kernel_of_nagys_scale_agrees_with_its_reference(dtype, weighted):
    class Reference(NumPyEngine):
        kernels = NO_KERNELS

    rng = np.random.default_rng(0)
    A = np.abs(rng.standard_cauchy((30, 40))).astype(dtype)
    A[0, :3] = np.finfo(dtype).max, 0, 1e-30
    M = rng.integers(0, 3, A.shape).astype(dtype)
    blocks, weights = [A[:13], A[13:]], [M[:13], M[13:]] if weighted else None
    fast, slow = (Nagy()(blocks, weights, None, engine) for engine in (NumPyEngine(), Reference()))
    assert fast == pytest.approx(slow, rel=1e-12 if dtype == np.float64 else 1e-6)
