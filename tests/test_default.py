"""What the default achieves on small problems, so that no change makes it worse unnoticed.

Errors are relative to the clean data. Thresholds are the largest error measured (seeds 0 to 3), and a tenth more.
"""

import warnings
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from robustnmf import RobustNMF
from robustnmf.algorithm.initializers import MedianStart
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion, laplace, salt_and_pepper
from robustnmf.metrics import outlier_scores

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning"),
]

faces = load_orl()
FACES = faces.data[:100]
IMAGE_SHAPE = faces.image_shape


class Problem(NamedTuple):
    X: np.ndarray
    clean: np.ndarray
    outliers: np.ndarray
    rank: int


class Fit(NamedTuple):
    model: RobustNMF
    reconstruction: np.ndarray


def relative(A, B):
    return float(np.linalg.norm(A - B) / np.linalg.norm(B))


def fit(X, rank, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RobustNMF(rank, random_state=seed)
        return Fit(model, model.fit_transform(X) @ model.components_)


def error(problem, seed=0):
    return relative(fit(problem.X, problem.rank, seed).reconstruction, problem.clean)


def ordinary(X, rank, seed=0):
    """Return the reconstruction by scikit-learn's NMF."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = NMF(rank, init="random", random_state=seed, max_iter=1000, tol=1e-6)
        return model.fit_transform(X) @ model.components_


def simulated(shape=(120, 80), rank=4, outliers=0.0, values=None, missing=0.0, seed=0):
    """Return uniform factors, 2 % of noise, and gross errors: `values(rng, clean)`, or several times the largest."""
    rng = np.random.default_rng(seed)
    clean = rng.random((shape[0], rank)) @ rng.random((rank, shape[1]))
    noisy = np.maximum(clean + 0.02 * clean.mean() * rng.standard_normal(shape), 0)
    mask = rng.random(shape) < outliers
    wrong = clean.max() * rng.uniform(2, 6, shape) if values is None else values(rng, clean)
    X = np.where(mask, wrong, noisy)
    X[rng.random(shape) < missing] = np.nan
    return Problem(X, clean, mask, rank)


def extremes(rng, clean):
    return rng.choice([0, clean.max()], clean.shape)


def poisson(outliers=0.0, seed=0):
    rng = np.random.default_rng(seed)
    clean = rng.random((120, 4)) @ rng.random((4, 80))
    clean *= 20 / clean.mean()
    counts = rng.poisson(clean).astype(float)
    mask = rng.random(clean.shape) < outliers
    return Problem(np.where(mask, rng.integers(0, 1000, clean.shape), counts), clean, mask, 4)


def mostly_zero(spikes=0.03, seed=0):
    rng = np.random.default_rng(seed)
    factors = [rng.random(shape) * (rng.random(shape) < share) for shape, share in (((200, 4), 0.4), ((4, 80), 0.35))]
    clean = factors[0] @ factors[1]
    noisy = np.where(clean > 0, np.maximum(clean + 0.03 * rng.standard_normal(clean.shape), 0), 0)
    mask = rng.random(clean.shape) < spikes
    return Problem(np.where(mask, rng.uniform(3, 8, clean.shape), noisy), clean, mask, 4)


def families(minority, ground=0.0, outliers=0.0, seed=0):
    """Return spectra of two kinds that have no feature in common but a ground."""
    rng = np.random.default_rng(seed)
    clean = np.full((150, 80), float(ground))
    clean[minority:, :40] += rng.random((150 - minority, 2)) @ rng.random((2, 40))
    clean[:minority, 40:] += rng.random((minority, 2)) @ rng.random((2, 40))
    mask = rng.random(clean.shape) < outliers
    noisy = np.maximum(clean + 0.01 * rng.standard_normal(clean.shape), 0)
    return Problem(np.where(mask, 10.0, noisy), clean, mask, 5 if ground else 4)


def line(n_wrong, seed=0):
    """Return 180 points on y = 0.2 x, of which some have any y."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, 180)
    points = np.stack([x, np.maximum(0.2 * x + 0.01 * rng.standard_normal(180), 0)], axis=1)
    points[rng.choice(180, n_wrong, replace=False), 1] = rng.uniform(0, 10, n_wrong)
    return points


# Faces: 100 images, rank 10.


@cache
def speckled_faces(share):
    X, mask = salt_and_pepper(FACES, share, random_state=0)
    return Problem(X, FACES, mask, 10), fit(X, 10)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("share", "limit"), [(0.05, 0.131), (0.2, 0.142), (0.4, 0.172)])
def test_faces_under_salt_and_pepper(share, limit):
    assert relative(speckled_faces(share)[1].reconstruction, FACES) < limit


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("share", "precision", "recall"), [(0.05, 0.85, 0.6), (0.2, 0.85, 0.75), (0.4, 0.82, 0.83)])
def test_salt_and_pepper_on_faces_are_found(share, precision, recall):
    """Not all can be: where a face is dark or bright, they lie within the noise of the fit."""
    problem, found = speckled_faces(share)
    scores = outlier_scores(problem.outliers, found.model.outliers_)
    assert scores.precision > precision
    assert scores.recall > recall


@cache
def occluded_faces():
    X, mask = block_occlusion(FACES, 12, IMAGE_SHAPE, random_state=0)
    return Problem(X, FACES, mask, 10), fit(X, 10)


def test_faces_under_blocks_are_fitted_where_they_are_seen():
    problem, found = occluded_faces()
    seen = ~problem.outliers
    assert relative(found.reconstruction[seen], FACES[seen]) < 0.129


def test_faces_under_blocks_are_restored_where_they_are_not():
    problem, found = occluded_faces()
    hidden = problem.outliers
    assert relative(found.reconstruction[hidden], FACES[hidden]) < 0.16


def test_blocks_on_faces_are_found():
    problem, found = occluded_faces()
    assert found.model.outliers_[problem.outliers].mean() > 0.99
    assert found.model.outliers_[~problem.outliers].mean() < 0.02


def test_clean_faces_are_fitted_like_by_ordinary_nmf():
    assert relative(fit(FACES, 10).reconstruction, FACES) < 1.04 * relative(ordinary(FACES, 10), FACES)


@cache
def noisy_faces(deviation):
    X, mask = laplace(FACES, deviation, random_state=0)
    W, H = MedianStart(spread=0.0)(X.T, None, 1, np.random.default_rng(0))
    return error(Problem(X, FACES, mask, 10)), relative((W @ H).T, FACES), relative(ordinary(X, 10), FACES)


def test_faces_under_noise_that_drowns_them_are_no_worse_than_the_start():
    ours, start, _ = noisy_faces(120)
    assert ours < 1.02 * start


def test_faces_under_noise_that_drowns_them_are_better_than_by_ordinary_nmf():
    ours, _, theirs = noisy_faces(120)
    assert ours < 0.8 * theirs


def test_faces_under_some_noise_are_learnt():
    ours, start, theirs = noisy_faces(40)
    assert ours < 0.8 * start
    assert ours < 1.1 * theirs


# Simulated data.


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("share", "limit"), [(0.05, 0.0068), (0.2, 0.0073), (0.4, 0.0098)])
def test_low_rank_under_salt_and_pepper(share, limit, seed):
    assert error(simulated(outliers=share, values=extremes, seed=seed), seed) < limit


@pytest.mark.parametrize("seed", [0, 1])
def test_clean_low_rank_is_fitted_like_by_ordinary_nmf(seed):
    X = simulated(seed=seed).X
    assert relative(fit(X, 4, seed).reconstruction, X) < 1.03 * relative(ordinary(X, 4, seed), X)


def test_spread_between_starts_is_small():
    problem = simulated(outliers=0.2, values=extremes)
    errors = [error(problem, seed) for seed in range(5)]
    assert np.median(errors) < 1.1 * min(errors)
    assert max(errors) < 2 * min(errors)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("outliers", "limit"), [(0.0, 1.15), (0.1, 1.25)])
def test_counts_are_fitted_like_by_ordinary_nmf_without_outliers(outliers, limit, seed):
    problem, clean = poisson(outliers, seed), poisson(0.0, seed)
    assert error(problem, seed) < limit * relative(ordinary(clean.X, 4, seed), clean.clean)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("seed", "limit"), [(0, 0.0212), (1, 0.0202), (2, 0.0278), (3, 0.024)])
def test_mostly_zero_data_with_spikes(seed, limit):
    assert error(mostly_zero(seed=seed), seed) < limit


@pytest.mark.thinned(3)
@pytest.mark.parametrize("outliers", [0.0, 0.1])
@pytest.mark.parametrize(("minority", "seed", "limit"), [(75, 0, 0.0065), (75, 1, 0.0065), (45, 0, 0.0097)])
def test_unlike_groups_of_samples_on_a_common_ground(minority, seed, limit, outliers):
    assert error(families(minority, 0.25, outliers, seed), seed) < limit


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [0, 1])
def test_unlike_groups_of_samples_that_have_nothing_in_common(seed):
    assert error(families(45, seed=seed), seed) < 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_a_third_missing_and_a_fifth_wrong(seed):
    assert error(simulated(outliers=0.2, missing=0.3, seed=seed), seed) < 0.0094


def test_missing_entries_are_predicted():
    problem = simulated(outliers=0.2, missing=0.3)
    missing = np.isnan(problem.X)
    found = fit(problem.X, problem.rank).model.clean(problem.X)
    assert relative(found[missing], problem.clean[missing]) < 0.011


@cache
def tiny():
    problems = [simulated((20, 10), 2, 0.05, seed=seed) for seed in range(6)]
    return [(problem, fit(problem.X, 2, seed)) for seed, problem in enumerate(problems)]


def test_tiny_data():
    assert np.median([relative(found.reconstruction, problem.clean) for problem, found in tiny()]) < 0.0125


@pytest.mark.xfail(
    reason="nothing is held out: what the truncated L1 stage fits exactly is taken for the clean residuals"
)
def test_scale_of_tiny_data_is_that_of_its_noise():
    assert min(found.model.scale_ / (0.02 * problem.clean.mean()) for problem, found in tiny()) > 0.5


@pytest.mark.parametrize(("seed", "limit"), [(0, 0.0042), (1, 0.0042)])
def test_one_component(seed, limit):
    assert error(simulated((60, 40), 1, 0.2, seed=seed), seed) < limit


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shape", [(1000, 12), (12, 1000)], ids=["tall", "wide"])
def test_tall_and_wide_data(shape, seed):
    assert error(simulated(shape, 3, 0.05, seed=seed), seed) < 0.0107


@pytest.mark.parametrize("seed", [0, 1])
def test_mask_of_a_fifth_of_gross_errors_is_right(seed):
    problem = simulated((200, 100), 5, 0.2, seed=seed)
    found = fit(problem.X, 5, seed).model.outliers_
    assert problem.outliers[found].mean() > 0.95
    assert found[problem.outliers].mean() > 0.99


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("n_wrong", [20, 40, 80])
def test_slope_of_a_line_through_contaminated_points(n_wrong, seed):
    component = fit(line(n_wrong, seed), 1, seed).model.components_[0]
    assert component[1] / component[0] == pytest.approx(0.2, rel=0.02)


def test_ordinary_nmf_misses_the_slope():
    """The task is one: the mean of the contaminated points is not on the line."""
    points = line(40)
    reconstruction = ordinary(points, 1)
    assert reconstruction[0, 1] / reconstruction[0, 0] > 0.3


@pytest.mark.parametrize(("seed", "limit"), [(0, 0.0088), (2, 0.0066)])
def test_code_of_a_new_corrupted_sample_is_that_of_its_clean_part(seed, limit):
    problem = simulated((200, 80), 4, 0.2, seed=seed)
    model = fit(problem.X[:120], 4, seed).model
    reconstruction = model.transform(problem.X[120:]) @ model.components_
    assert relative(reconstruction, problem.clean[120:]) < limit
