"""The mixture of a peak and a plain, and the scale and the cut that follow from it, against independent truths."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from conftest import make_data
from robustnmf import RobustNMF
from robustnmf.engines import NumPyEngine
from robustnmf.kernels.mixture import laplace_and_uniform, without_numba
from robustnmf.model.mixture import SAMPLE, SUPPORT, Mixture, fit_mixture, median, mixture_of_width, sample
from robustnmf.model.outliers import MixtureRule
from robustnmf.model.scales import MixtureScale

WIDTH = 2.0
engine = NumPyEngine()

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def residuals(share, spread=(0.0, 50 * WIDTH), n=20_000, seed=0):
    """Return magnitudes of which a share is Laplace's and the rest is uniform on `spread`, and which are clean."""
    rng = np.random.default_rng(seed)
    clean = rng.random(n) < share
    return np.where(clean, np.abs(rng.laplace(0, WIDTH, n)), rng.uniform(*spread, n)), clean


def minus_log_likelihood(magnitudes, support, width, share):
    """Return it for the magnitudes on [0, reach], of which a share is Laplace's, truncated there."""
    inside = magnitudes[magnitudes <= support]
    peak = np.exp(-inside / width) / (width * -np.expm1(-support / width))
    return -np.sum(np.log(share * peak + (1 - share) / support))


def of_all(share, width, support, magnitudes):
    """Return the share of all magnitudes that belong to a peak which has this share of those inside."""
    return share * np.mean(magnitudes <= support) / -np.expm1(-support / width)


# Truth.


@pytest.mark.parametrize("share", [1.0, 0.9, 0.8, 0.6, 0.5, 0.4, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
def test_width_and_share_are_those_of_simulated_data_on_a_plain(share, seed):
    found = fit_mixture(residuals(share, seed=seed)[0])
    assert found.width == pytest.approx(WIDTH, rel=0.05)
    assert found.share == pytest.approx(share, rel=0.04)


@pytest.mark.parametrize("share", [1.0, 0.9, 0.8, 0.6, 0.52])
@pytest.mark.parametrize("seed", [0, 1])
def test_width_and_share_are_those_of_simulated_data_with_gross_errors(share, seed):
    found = fit_mixture(residuals(share, (100, 200), seed=seed)[0])
    assert found.width == pytest.approx(WIDTH, rel=0.05)
    assert found.share == pytest.approx(share, rel=0.04)


@pytest.mark.parametrize("share", [0.4, 0.3])
@pytest.mark.parametrize("far", [1e3, 1e4])
def test_width_is_that_of_simulated_data_where_most_are_gross_errors(far, share):
    assert fit_mixture(residuals(share, (far, 2 * far))[0]).width == pytest.approx(WIDTH, rel=0.05)


@pytest.mark.parametrize("share", [0.4, 0.3])
@pytest.mark.parametrize("far", [1e3, 1e4])
def test_share_is_that_of_simulated_data_where_most_are_gross_errors(far, share):
    magnitudes, clean = residuals(share, (far, 2 * far))
    assert fit_mixture(magnitudes).share == pytest.approx(clean.mean(), rel=0.03)


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
def test_mixture_is_the_maximum_of_the_likelihood_on_its_window(share):
    magnitudes, _ = residuals(share)
    found = fit_mixture(magnitudes)
    support = SUPPORT * found.width
    best = minimize(
        lambda x: minus_log_likelihood(magnitudes, support, np.exp(x[0]), 1 / (1 + np.exp(-x[1]))),
        (np.log(WIDTH), 1.0),
        method="Nelder-Mead",
    )
    width, inside = np.exp(best.x[0]), 1 / (1 + np.exp(-best.x[1]))
    assert found.width == pytest.approx(width, rel=0.02)
    assert found.share == pytest.approx(of_all(inside, width, support, magnitudes), rel=0.01)


@pytest.mark.parametrize("width", [0.5 * WIDTH, WIDTH, 1.5 * WIDTH])
def test_share_is_the_maximum_of_the_likelihood_at_a_known_width(width):
    magnitudes, _ = residuals(0.7)
    support = SUPPORT * width
    best = minimize_scalar(lambda s: minus_log_likelihood(magnitudes, support, width, s), bounds=(1e-6, 1 - 1e-6))
    found = mixture_of_width(width, magnitudes)
    assert found.width == width
    assert found.share == pytest.approx(of_all(best.x, width, support, magnitudes), rel=0.01)


def test_share_is_at_most_one():
    magnitudes = np.abs(np.random.default_rng(0).laplace(0, WIDTH, 2000))
    assert mixture_of_width(2 * WIDTH, magnitudes).share == 1.0


def test_share_is_hardly_anything_where_nothing_is_within_reach():
    assert 0 < mixture_of_width(1.0, np.full(10, 100.0)).share < 0.1


@pytest.mark.parametrize(("share", "tolerance"), [(0.9, 0.5), (0.6, 0.1), (0.3, 0.1)])
def test_plain_is_the_density_of_the_others(share, tolerance):
    magnitudes, clean = residuals(share)
    assert fit_mixture(magnitudes).uniform_density == pytest.approx(np.mean(~clean) / (50 * WIDTH), rel=tolerance)


@pytest.mark.parametrize("share", [0.9, 0.6])
def test_half_of_the_residuals_at_the_verdict_are_clean(share):
    magnitudes, clean = residuals(share, n=200_000)
    at = np.abs(magnitudes - fit_mixture(magnitudes).decision_threshold) < 0.3 * WIDTH
    assert at.sum() > 300
    assert clean[at].mean() == pytest.approx(0.5, abs=0.08)


def test_verdict_is_at_least_three_widths():
    assert Mixture(2.0, 0.1, 0.04).decision_threshold == 3 * 2.0


@pytest.mark.parametrize("mixture", [Mixture(2.0, 1.0), Mixture(0.0, 1.0, 0.1)], ids=["no plain", "no width"])
def test_verdict_is_infinite_where_none_is_wrong(mixture):
    assert mixture.decision_threshold == np.inf


def test_width_is_to_one_per_cent_at_the_size_of_a_sample():
    widths = [fit_mixture(residuals(0.8, n=SAMPLE, seed=seed)[0]).width for seed in range(5)]
    assert np.std(widths) < 0.01 * WIDTH


# Invariance.


@pytest.mark.parametrize("factor", [2.0**-900, 2.0**-3, 2.0, 2.0**900])
def test_width_is_equivariant_to_the_last_bit(factor):
    magnitudes, _ = residuals(0.7, n=5000)
    expected, found = fit_mixture(magnitudes), fit_mixture(factor * magnitudes)
    assert found == (factor * expected.width, expected.share, expected.uniform_density / factor)


def test_integer_weights_count_as_copies():
    magnitudes, _ = residuals(0.7, n=5000)
    copies = np.random.default_rng(1).integers(0, 4, magnitudes.size)
    weighted = fit_mixture(magnitudes, copies.astype(float))
    assert weighted == pytest.approx(fit_mixture(np.repeat(magnitudes, copies)), rel=1e-12)
    assert weighted.width != pytest.approx(fit_mixture(magnitudes).width, rel=1e-6)


def test_common_factor_of_the_weights_does_not_matter():
    magnitudes, _ = residuals(0.7, n=5000)
    weights = np.random.default_rng(1).integers(1, 4, magnitudes.size).astype(float)
    assert fit_mixture(magnitudes, weights / 3) == pytest.approx(fit_mixture(magnitudes, weights), rel=1e-9)


def test_order_does_not_matter():
    magnitudes, _ = residuals(0.7, n=5000)
    assert fit_mixture(magnitudes[::-1]) == fit_mixture(magnitudes)


@pytest.mark.parametrize("share", [0.9, 0.55])
def test_size_of_gross_errors_does_not_matter(share):
    magnitudes, clean = residuals(share)
    near, far = (fit_mixture(np.where(clean, magnitudes, size)) for size in (1e2, 1e300))
    assert near == far


def test_size_of_gross_errors_does_not_matter_where_most_residuals_are_zero():
    magnitudes, _ = residuals(1.0)
    magnitudes[:11_000] = 0
    near, far = (fit_mixture(np.append(magnitudes, size)) for size in (1e2, 1e10))
    assert far.width == pytest.approx(near.width, rel=0.1)


# The edge of the possible.


@pytest.mark.parametrize("magnitudes", [[], [0.0], [0.0] * 10], ids=["empty", "one zero", "zeros"])
def test_perfect_fit_has_no_width_and_is_clean(magnitudes):
    assert fit_mixture(np.array(magnitudes)) == Mixture(0.0, 1.0)
    assert mixture_of_width(1.0, np.array(magnitudes)).share == 1.0


@pytest.mark.parametrize("n", [1, 10])
def test_width_of_a_single_value_is_of_its_size(n):
    found = fit_mixture(np.full(n, 3.0))
    assert 1 < found.width < 9
    assert found.share > 0.5


@pytest.mark.parametrize("values", [[3.0], [3.0] * 10, [0.0, 3.0], [0.0, 0.0, 3.0], [1e-300, 1e300]])
def test_width_and_share_are_positive_and_finite_whatever_the_values(values):
    found = fit_mixture(np.array(values))
    assert 0 < found.width < np.inf
    assert 0 < found.share <= 1


@pytest.mark.parametrize(
    ("values", "weights", "expected"),
    [
        ([], [], 0.0),
        ([5.0], [2.0], 5.0),
        ([3.0, 1.0, 2.0], [1.0, 1.0, 1.0], 2.0),
        ([3.0, 1.0, 2.0], [5.0, 1.0, 1.0], 3.0),
        ([3.0, 1.0, 2.0], [0.0, 1.0, 0.0], 1.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1 / 3] * 6, 3.0),
    ],
)
def test_median_is_the_first_value_at_half_of_the_weight(values, weights, expected):
    assert median(np.array(values), np.array(weights)) == expected


# A sample of the residuals.


@pytest.mark.parametrize("n", [1000, SAMPLE, SAMPLE + 1, 3 * SAMPLE + 5])
def test_sample_is_bounded_and_spread_over_all_entries(n):
    values, weights = sample([np.arange(n, dtype=float)[:, None]], None, engine)
    assert min(n, SAMPLE // 2) <= values.size <= SAMPLE
    assert np.all(np.diff(values, n=2) == 0)  # evenly
    assert values[-1] >= n - 5
    assert np.all(weights == 1)


def test_sample_holds_only_observed_entries_with_their_weights():
    rng = np.random.default_rng(0)
    A, M = rng.random((400, 300)), rng.integers(0, 3, (400, 300)) / 2.0
    values, weights = sample([A], [M], engine)
    assert values.size <= SAMPLE
    weight_of = dict(zip(A.ravel(), M.ravel(), strict=True))
    assert [weight_of[value] for value in values] == weights.tolist()
    assert weights.min() == 0.5


def test_sample_does_not_depend_on_the_blocks():
    rng = np.random.default_rng(0)
    A, M = rng.random((400, 300)), rng.integers(0, 2, (400, 300)).astype(float)
    whole = sample([A], [M], engine)
    cut = NumPyEngine(block_entries=1000)
    blocks = cut.split(A)
    assert len(blocks) > 50
    np.testing.assert_array_equal(sample(blocks, cut.split(M, like=blocks), cut), whole)


# The scale and the cut.


@pytest.mark.parametrize(("factor", "power"), [(5.0, 2.0), (3.0, 0.0), (1.0, 1.0)])
def test_scale_is_a_multiple_of_the_width_times_a_power_of_the_share(factor, power):
    magnitudes, _ = residuals(0.7)
    width, share, _ = fit_mixture(magnitudes)
    found = MixtureScale(factor, power)([magnitudes[:, None]], None, None, engine)
    assert found == pytest.approx(factor * width * share**power, rel=1e-12)


@pytest.mark.parametrize(("factor", "power"), [(8.0, 1.5), (3.0, 0.0), (1.0, 1.0)])
def test_cut_is_a_multiple_of_the_width_over_a_power_of_the_share(factor, power):
    magnitudes, _ = residuals(0.7)
    width, share, _ = fit_mixture(magnitudes)
    found = MixtureRule(factor, power)([magnitudes[:, None]], None, 1.0, engine)
    assert float(found) == pytest.approx(factor * width / share**power, rel=1e-12)


def test_scale_and_cut_of_a_known_mixture_are_those_of_the_documentation():
    assert MixtureScale().of(Mixture(2.0, 0.5)) == 5 * 2.0 * 0.5**2
    assert MixtureRule().of(Mixture(2.0, 0.25)) == 8 * 2.0 / 0.25**1.5


def test_cut_loses_one_clean_laplace_residual_in_three_thousand():
    magnitudes, _ = residuals(1.0, n=SAMPLE)
    cut = float(MixtureRule()([magnitudes[:, None]], None, 1.0, engine))
    assert 1 / 6000 < np.mean(magnitudes > cut) < 1 / 1500


@pytest.mark.parametrize("rule", [MixtureScale(), MixtureRule()], ids=["scale", "cut"])
def test_missing_entries_are_ignored(rule):
    magnitudes, _ = residuals(0.7, n=3000)
    M = np.ones((3000, 1))
    M[::3] = 0
    spoiled = np.where(M == 0, 1e9, magnitudes[:, None])
    expected = rule([magnitudes[M[:, 0] > 0][:, None]], None, 1.0, engine)
    assert float(rule([spoiled], [M], 1.0, engine)) == float(expected)


def test_plain_fit_uses_the_mixture_of_its_own_residuals():
    data = make_data(n=60, m=40, outliers=0.2)
    model = RobustNMF(3, schedule="plain", scale="mixture", outliers="mixture", random_state=0, max_iter=100)
    residual = np.abs(data.X - model.fit_transform(data.X) @ model.components_)
    width, share, _ = fit_mixture(residual.ravel())
    assert model.scale_ == pytest.approx(5 * width * share**2, rel=0.05)
    assert model.thresholds_ == pytest.approx(np.full(40, 8 * width / share**1.5), rel=0.05)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.3])
def test_plain_fit_with_the_mixture_finds_gross_errors(share):
    data = make_data(n=100, m=60, outliers=share)
    model = RobustNMF(3, schedule="plain", scale="mixture", outliers="mixture", random_state=0)
    reconstruction = model.fit_transform(data.X) @ model.components_
    high = data.outliers & (data.X == 10)
    assert model.outliers_[high].all()
    assert model.outliers_[~data.outliers].mean() < 0.01
    assert np.linalg.norm(reconstruction - data.clean) < 0.03 * np.linalg.norm(data.clean)


@pytest.mark.parametrize("rounds", [0, 1, 20])
@pytest.mark.parametrize("n", [1, 3, 200, 20_000])
def test_numpy_fits_the_mixture_that_numba_fits(n, rounds):
    rng = np.random.default_rng(n)
    values = np.where(rng.random(n) < 0.7, rng.exponential(0.1, n), 3 * rng.random(n))
    values[-1] = 0.6  # the edge of the last bin
    for weights in (np.ones(n), rng.random(n), np.zeros(n)):
        for support, width in ((0.6, 0.1), (0.6, 2.0), (4.0, 0.3), (1e-9, 1e-9)):
            how = (support, width, float(values.max()), rounds)
            expected = laplace_and_uniform(values, weights, *how)
            with without_numba():
                found = laplace_and_uniform(values, weights, *how)
            np.testing.assert_allclose(found, expected, rtol=1e-9)
