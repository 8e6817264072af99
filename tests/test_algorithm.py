"""Algorithms 1 and 2 against their literal transcription, and what they promise."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import cauchy

import paper_reference as paper
from conftest import make_data
from robustnmf.algorithm.halfquadratic import Method, run
from robustnmf.algorithm.initializers import RandomStart
from robustnmf.engines import NumPyEngine
from robustnmf.model.losses import Cauchy, Squared, Truncated
from robustnmf.model.outliers import MADRule, NoRejection, ThreeSigma
from robustnmf.model.scales import MAD, FixedScale, Nagy
from robustnmf.solvers import HALS, Nesterov

SOLVERS = [HALS(), Nesterov()]
by_name = {"ids": lambda part: part.name}
PUBLISHED = Method(Cauchy(), Nagy(tol=1e-13, max_iter=1000), ThreeSigma(), Nesterov())


def factorise(X, M=None, *, method, n_iter, rank=3, block_entries=2**18, seed=0, start=None, **options):
    """Run the driver on X (samples in rows) and return W, H and the result."""
    engine = NumPyEngine(block_entries=block_entries)
    W, H = start or RandomStart()(X.T, None if M is None else M.T, rank, np.random.default_rng(seed))
    V = engine.split(X)
    M = None if M is None else engine.split(M, like=V)
    options = {"tol": 0.0, "scale_floor": 1e-15} | options
    result = run(V, M, W, engine.split(H.T.copy(), like=V), method, engine, max_iter=n_iter, **options)
    return result.state.W, engine.join(result.state.Ht).T, result


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("rule", "reference"),
    [
        (ThreeSigma(), paper.three_sigma_outliers),
        (ThreeSigma(axis="feature"), paper.feature_outliers),
        (NoRejection(), paper.no_outliers),
    ],
    ids=["three-sigma", "three-sigma-feature", "cauchy"],
)
def test_ten_iterations_agree_with_the_transcription(seed, rule, reference):
    """Algorithm 2 with Nesterov, Nagy and each outlier rule, on data with outliers and missing values."""
    X = make_data(n=14, m=10, seed=seed).X
    missing = np.random.default_rng(seed + 100).random(X.shape) < 0.15
    M = np.where(missing, 0.0, 1.0)
    start = RandomStart()(X.T, M.T, 3, np.random.default_rng(seed))
    V = np.where(missing, np.nan, X).T

    W, H, result = factorise(
        np.where(missing, 0, X), M, method=replace(PUBLISHED, outliers=rule), n_iter=10, start=start
    )
    W_paper, H_paper, scales = paper.algorithm_2(V, *start, n_iter=10, outliers=reference)

    np.testing.assert_allclose(W, W_paper, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(H, H_paper, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose([i.scale for i in result.history[1:]], scales, rtol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS, **by_name)
@pytest.mark.parametrize("loss", [Squared(), Cauchy(), Truncated(Cauchy(), 9.0)], **by_name)
@pytest.mark.parametrize("gaps", [False, True])
def test_objective_falls_monotonically_at_fixed_scale_and_truncation(solver, loss, gaps):
    data = make_data(noise=0.05)
    rng = np.random.default_rng(1)
    M = np.where(rng.random(data.X.shape) < 0.2, 0.0, rng.random(data.X.shape)) if gaps else None
    method = Method(loss, FixedScale(0.1), NoRejection(), solver)
    _, _, result = factorise(data.X, M, method=method, n_iter=100)
    objective = np.array([i.objective for i in result.history])
    assert np.all(np.diff(objective) <= 1e-12 * np.abs(objective[:-1]))
    assert objective[-1] < 0.8 * objective[0]


def test_objective_is_equation_2_4():
    data = make_data()
    method = Method(Truncated(Cauchy(), 9.0), FixedScale(0.5), NoRejection(), HALS())
    W, H, result = factorise(data.X, method=method, n_iter=3)
    s = ((data.X.T - W @ H) / 0.5) ** 2
    g = np.where(s <= 9.0, np.log(1 + s), np.log(1 + 9.0))
    assert result.state.objective == pytest.approx(0.5 * g.sum(), rel=1e-12)


def test_objective_with_estimated_scale_is_the_likelihood_up_to_a_constant():
    data = make_data()
    _, _, result = factorise(data.X, method=METHODS[0], n_iter=3)
    W, H, scale = result.state.W, result.state.Ht[0].T, result.state.weighting.scale
    R0 = data.X.T - np.matmul(*RandomStart()(data.X.T, None, 3, np.random.default_rng(0)))
    first = -cauchy.logpdf(R0, scale=result.history[0].scale).sum()
    last = -cauchy.logpdf(data.X.T - W @ H, scale=scale).sum()
    fall = result.history[0].objective - result.history[-1].objective
    assert fall == pytest.approx((first - last) / 2, rel=1e-10)


@pytest.mark.parametrize("solver", SOLVERS, **by_name)
def test_truncation_far_beyond_every_residual_is_cauchy(solver):
    data = make_data()
    plain = Method(Cauchy(), FixedScale(0.1), NoRejection(), solver)
    truncated = replace(plain, loss=Truncated(Cauchy(), 1e12))
    for a, b in zip(
        factorise(data.X, method=plain, n_iter=20)[:2],
        factorise(data.X, method=truncated, n_iter=20)[:2],
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("solver", SOLVERS, **by_name)
def test_cauchy_with_a_huge_scale_tends_to_least_squares(solver):
    data = make_data()
    wide = Method(Cauchy(), FixedScale(1e6), NoRejection(), solver)
    W, H, _ = factorise(data.X, method=wide, n_iter=20)
    W2, H2, _ = factorise(data.X, method=replace(wide, loss=Squared()), n_iter=20)
    np.testing.assert_allclose(W @ H, W2 @ H2, rtol=1e-6, atol=1e-6)


METHODS = [
    Method(Cauchy(), Nagy(), NoRejection(), HALS()),
    Method(Cauchy(), Nagy(), ThreeSigma(), Nesterov()),
    Method(Cauchy(), MAD(), MADRule(), HALS()),
    Method(Cauchy(), Nagy(), ThreeSigma(axis="feature"), HALS()),
    Method(Cauchy(), Nagy(), MADRule(axis="feature"), Nesterov()),
]
by_parts = {"ids": lambda m: f"{m.scale.name}-{m.outliers.name}-{getattr(m.outliers, 'axis', None)}-{m.solver.name}"}


@pytest.mark.parametrize("method", METHODS, **by_parts)
def test_scaling_the_data_scales_the_answer(method):
    X = make_data().X
    W, H = RandomStart()(X.T, None, 3, np.random.default_rng(0))
    W1, H1, one = factorise(X, method=method, n_iter=8, start=(W, H))
    W2, H2, two = factorise(37.0 * X, method=method, n_iter=8, start=(W, 37.0 * H))
    np.testing.assert_allclose(W2, W1, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(H2, 37.0 * H1, rtol=1e-9, atol=1e-9)
    assert two.state.weighting.scale == pytest.approx(37.0 * one.state.weighting.scale, rel=1e-9)


@pytest.mark.parametrize("method", METHODS, **by_parts)
def test_permuting_samples_and_features_permutes_the_answer(method):
    X = make_data().X
    W, H = RandomStart()(X.T, None, 3, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    samples, features = rng.permutation(X.shape[0]), rng.permutation(X.shape[1])
    W1, H1, _ = factorise(X, method=method, n_iter=8, start=(W, H))
    W2, H2, _ = factorise(X[samples][:, features], method=method, n_iter=8, start=(W[features], H[:, samples]))
    np.testing.assert_allclose(W2, W1[features], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(H2, H1[:, samples], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS, **by_parts)
@pytest.mark.parametrize("block_entries", [1, 70, 200])
def test_the_answer_does_not_depend_on_how_the_data_is_cut(method, block_entries):
    X = make_data().X
    M = np.where(np.random.default_rng(1).random(X.shape) < 0.2, 0.0, 1.0)
    W1, H1, _ = factorise(X, M, method=method, n_iter=8)
    W2, H2, _ = factorise(X, M, method=method, n_iter=8, block_entries=block_entries)
    np.testing.assert_allclose(W2, W1, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(H2, H1, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS, **by_parts)
def test_an_entry_without_weight_has_no_influence(method):
    X = make_data().X
    M = np.where(np.random.default_rng(1).random(X.shape) < 0.2, 0.0, 1.0)
    start = RandomStart()(X.T, M.T, 3, np.random.default_rng(0))
    expected = factorise(X, M, method=method, n_iter=8, start=start)
    other = factorise(np.where(M == 0, 1e6, X), M, method=method, n_iter=8, start=start)
    # Residuals of the entry are subtracted and added again with weight zero: exact for HALS and Nesterov alike.
    np.testing.assert_allclose(other[0], expected[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(other[1], expected[1], rtol=1e-9, atol=1e-9)
    assert other[2].state.weighting.scale == pytest.approx(expected[2].state.weighting.scale, rel=1e-9)


@pytest.mark.parametrize("method", METHODS, **by_parts)
def test_integer_weights_equal_duplicated_samples(method):
    X = make_data().X
    copies = np.random.default_rng(1).integers(1, 4, X.shape[0])
    M = np.repeat(copies[:, None] / 3.0, X.shape[1], axis=1)
    W, H = RandomStart()(X.T, None, 3, np.random.default_rng(0))
    W1, H1, _ = factorise(X, M, method=method, n_iter=8, start=(W, H))
    W2, H2, _ = factorise(
        np.repeat(X, copies, axis=0), method=method, n_iter=8, start=(W, np.repeat(H, copies, axis=1))
    )
    np.testing.assert_allclose(W2, W1, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(H2, np.repeat(H1, copies, axis=1), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", METHODS, **by_parts)
def test_float32_follows_float64(method):
    X = make_data().X
    start = RandomStart()(X.T, None, 3, np.random.default_rng(0))
    W1, H1, _ = factorise(X, method=method, n_iter=5, start=start)
    W2, H2, _ = factorise(
        X.astype(np.float32), method=method, n_iter=5, start=tuple(f.astype(np.float32) for f in start)
    )
    assert W2.dtype == H2.dtype == np.float32
    np.testing.assert_allclose(W2 @ H2, W1 @ H1, rtol=2e-3, atol=2e-3)


def test_stopping_rule_is_equation_3_9():
    """As published: |F_t - F_(t-1)| / |F_0 - F_t| <= tol at the last iteration and at none before it."""
    _, _, result = factorise(make_data().X, method=METHODS[0], n_iter=500, tol=1e-3, as_published=True)
    F = np.array([i.objective for i in result.history])
    left = np.abs(np.diff(F)) / np.abs(F[0] - F[1:])
    assert result.converged
    assert left[-1] <= 1e-3
    assert np.all(left[:-1] > 1e-3)


def test_callback_sees_every_iteration_and_may_stop():
    seen = []

    def callback(iteration):
        seen.append(iteration.n_iter)
        return iteration.n_iter == 4

    _, _, result = factorise(make_data().X, method=METHODS[0], n_iter=50, callback=callback)
    assert seen == [0, 1, 2, 3, 4]
    assert not result.converged


@pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
def test_a_scale_rule_that_returns_nonsense_is_named(value):
    method = replace(METHODS[0], scale=lambda magnitudes, M, previous, engine: value)
    with pytest.raises(ValueError, match="scale rule must return a non-negative, finite number"):
        factorise(make_data().X, method=method, n_iter=1)


@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_an_outlier_rule_that_returns_nonsense_is_named(value):
    method = replace(METHODS[0], outliers=lambda magnitudes, M, scale, engine: value)
    with pytest.raises(ValueError, match="outlier rule must return non-negative thresholds"):
        factorise(make_data().X, method=method, n_iter=1)
