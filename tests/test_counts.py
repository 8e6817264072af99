"""Counts: weights by expected variance, drop-outs, a second start, and samples of different sizes."""

import warnings

import numpy as np
import pytest
from numpy.linalg import norm
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import kl_div
from sklearn.decomposition import NMF
from sklearn.decomposition._nmf import _initialize_nmf

from robustnmf import RobustNMF, load
from robustnmf.algorithm.counts import GROSS, divergences, limited_counts
from robustnmf.algorithm.holdout import Point
from robustnmf.algorithm.least_squares import Judged, LeastSquares
from robustnmf.algorithm.singular_start import singular_start
from robustnmf.data.sample_scaling import SampleScaling
from robustnmf.engines import NumPyEngine, SparseEngine
from robustnmf.model.noise import COUNT_OFFSET, NOISES, NoiseModel


def planted(seed=0, shape=(300, 100), rank=4, mean=1.0, sizes=1.0):
    """Return counts, and the codes and components that they were drawn from."""
    rng = np.random.default_rng(seed)
    H, W = (rng.gamma(0.5, 1, of) * (rng.random(of) < 0.5) for of in ((shape[0], rank), (rank, shape[1])))
    H = H * np.exp(rng.uniform(0, np.log(sizes), (shape[0], 1)))
    H = H * mean / (H @ W).mean()
    X = rng.poisson(H @ W).astype(float)
    return X, H, W


def with_errors(X, share=0.01, seed=1):
    rng = np.random.default_rng(seed)
    Y, wrong = X.copy(), (X > 0) & (rng.random(X.shape) < share)
    Y[wrong] = rng.uniform(20, 200, wrong.sum()) * np.quantile(X[X > 0], 0.99)
    return Y, wrong


def cosine(found, components):
    """Return the median cosine of planted components with those that were found for them."""
    a, b = (F / np.maximum(norm(F, axis=1, keepdims=True), 1e-30) for F in (found, components))
    rows, columns = linear_sum_assignment(-(b @ a.T))
    return np.median((b @ a.T)[rows, columns])


def plain(X, rank, loss):
    solver = {"frobenius": "cd", "kullback-leibler": "mu"}[loss]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NMF(rank, init="nndsvda", beta_loss=loss, solver=solver, max_iter=1000, random_state=0).fit(X)


def fitted(X, rank=4, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RobustNMF(rank, noise="poisson", random_state=0, **parameters).fit(X)


def model_of_counts(centers, largest=1e9):
    ones = np.ones_like(centers)
    parts = (ones, ones, largest * ones, centers, ones, 0 * ones)
    return NoiseModel(*parts, 0.5, 6.0, weights_entries=True, of_counts=True)


# --- Weights ----------------------------------------------------------------------------------------------------------


def test_weights_of_counts_are_one_over_the_expected_value_and_an_offset():
    model = model_of_counts(np.array([1.0, 3.0]))  # the mean entry is 2
    offset = COUNT_OFFSET * 2
    predicted = np.array([[0.0, 2.0], [7.0, 100.0]])
    assert_allclose(model.weights(predicted, np), (2 + offset) / (predicted + offset))
    assert_array_equal(model_of_counts(np.zeros(2)).weights(np.zeros((1, 2)), np), [[11.0, 11.0]])


def test_a_step_has_the_gradient_of_the_divergence_and_bounds_it():
    model, offset = model_of_counts(np.ones(1)), COUNT_OFFSET
    for y, p in [(0.0, 3.0), (1.0, 0.0), (5.0, 0.01), (5.0, 4.0), (2.0, 2.0), (1.0, 30.0)]:
        (response,), (weight,) = (part[0] for part in model.working_response(np.array([[y]]), np.array([[p]]), np))
        weight /= 1 + COUNT_OFFSET  # what a weight of the mean entry, 1, is relative to
        assert_allclose(weight * (response - p), (y - p) / (p + offset))
        between = np.linspace(min(p, y), max(p, y), 50)
        exact = kl_div(y + offset, between + offset) - kl_div(y + offset, p + offset)
        bound = weight / 2 * ((response - between) ** 2 - (response - p) ** 2)
        assert (exact <= bound + 1e-12).all() if y > p else exact[0] <= bound[0] + 1e-12


def test_codes_have_the_smallest_divergence():
    X, _, _ = planted(mean=2.0)
    model = fitted(X)
    assert not model.outliers_.any()
    offset = COUNT_OFFSET * model.noise_.centers.mean()
    C = model.components_
    for sample, code in zip(X[:10], model.transform(X[:10]), strict=True):

        def divergence(h, y=sample):
            return kl_div(y + offset, h @ C + offset).sum()

        start = code + 0.1 * X.mean()
        best = minimize(divergence, start, bounds=[(0, None)] * 4, tol=1e-12, options={"maxfun": 100_000})
        assert divergence(code) <= best.fun + 1e-3 * divergence(start) + 1e-6


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mean", [0.05, 0.5, 10.0])
def test_fits_of_clean_counts_are_those_of_kullback_leibler(mean):
    X, _, W = planted(3, (500, 150), mean=mean, sizes=10)
    X = X[X.any(axis=1)]
    model, kl = fitted(X), plain(X, 4, "kullback-leibler")
    offset = COUNT_OFFSET * X.mean()
    ours = kl_div(X + offset, model.transform(X) @ model.components_ + offset).sum()
    theirs = kl_div(X + offset, kl.transform(X) @ kl.components_ + offset).sum()
    assert ours < 1.01 * theirs
    assert cosine(model.components_, W) > cosine(kl.components_, W) - 0.01
    assert cosine(model.components_, W) > cosine(plain(X, 4, "frobenius").components_, W) - 1e-3


def test_gross_errors_do_not_reach_the_components_of_counts():
    X, _, W = planted(4, (500, 150), mean=0.5, sizes=10)
    Y, wrong = with_errors(X)
    model = fitted(Y)
    assert cosine(model.components_, W) > cosine(plain(X, 4, "kullback-leibler").components_, W) - 0.005
    assert max(cosine(plain(Y, 4, loss).components_, W) for loss in ("frobenius", "kullback-leibler")) < 0.8
    assert model.outliers_[wrong].mean() > 0.98 and model.outliers_[~wrong].mean() < 1e-3


@pytest.mark.thinned(3)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("mean", [0.3, 5.0])
def test_drop_outs_are_tolerated(mean, share):
    X, _, W = planted(5, (500, 150), mean=mean, sizes=10)
    X[np.random.default_rng(0).random(X.shape) < share] = 0
    X = X[X.any(axis=1)]
    found = cosine(fitted(X).components_, W)
    assert found > cosine(plain(X, 4, "frobenius").components_, W) - 0.01
    assert found > cosine(plain(X, 4, "kullback-leibler").components_, W) - (0.01 if share < 0.5 else 0.06)


def test_weights_by_noise_are_on_for_counts_only():
    X, _, _ = planted(6, mean=5.0)
    assert fitted(X).noise_.weights_entries
    assert not fitted(X, weight_by_noise=False).noise_.weights_entries
    assert not RobustNMF(4, random_state=0).fit(X).noise_.weights_entries
    with_uncertainties = RobustNMF(4, noise="poisson", random_state=0).fit(X, uncertainties=np.sqrt(X + 1))
    assert not with_uncertainties.noise_.weights_entries
    assert NOISES["poisson"].of_counts and not NOISES["auto"].of_counts


def test_of_sparse_data_weights_by_noise_are_those_of_counts():
    X, _, W = planted(7, (500, 150), mean=0.1)
    X = X[X.any(axis=1)]
    model = RobustNMF(4, weight_by_noise=True, random_state=0).fit(X)
    assert model.noise_.of_counts
    assert cosine(model.components_, W) > cosine(plain(X, 4, "frobenius").components_, W) - 1e-3


def test_the_unit_of_counts_does_not_matter():
    X, _, _ = planted(8, mean=1.0)
    first, second = fitted(X), fitted(1024 * X)
    assert_allclose(second.components_, first.components_, atol=1e-6)
    assert_allclose(second.transform(1024 * X), 1024 * first.transform(X), atol=1e-3)


def test_sparse_counts_give_what_dense_ones_do():
    X, _, _ = planted(9, (200, 80), mean=0.3)
    X = X[X.any(axis=1)]
    dense, kept_sparse = fitted(X), fitted(sparse.csr_array(X), engine=SparseEngine(block_entries=4000))
    assert_allclose(kept_sparse.components_, dense.components_, atol=1e-5)
    assert_allclose(kept_sparse.transform(sparse.csr_array(X)), dense.transform(X), atol=1e-4)


def test_a_file_keeps_weights_of_counts(tmp_path):
    X, _, _ = planted(10, (150, 40), mean=1.0)
    model = fitted(X)
    model.save(tmp_path / "model.robustnmf")
    same = load(tmp_path / "model.robustnmf")
    assert same.noise_.of_counts and same.noise_.weights_entries
    assert_array_equal(same.transform(X), model.transform(X))


@pytest.mark.parametrize("X", [np.zeros((20, 10)), np.eye(20, 10), np.full((20, 10), 3.0)])
def test_degenerate_counts_have_finite_results(X):
    model = fitted(X, 2)
    assert np.isfinite(model.components_).all() and np.isfinite(model.transform(X)).all()


def test_a_checkpoint_of_counts_is_the_same_fit(tmp_path):
    X, _, _ = planted(11, (150, 60), mean=0.5)
    assert_array_equal(fitted(X, checkpoint=tmp_path).components_, fitted(X).components_)


# --- The second start -------------------------------------------------------------------------------------------------


def test_the_second_start_is_that_of_singular_vectors():
    X, _, _ = planted(12, (120, 60), mean=3.0)
    with NumPyEngine(n_threads=1).running() as engine:
        W, Ht = singular_start(engine.split(X), 4, engine)
        codes = engine.join(Ht)
    U, V = _initialize_nmf(X, 4, init="nndsvd")
    for found, expected in ((W.T, V), (codes.T, U.T)):
        a, b = (F / norm(F, axis=1, keepdims=True) for F in (found, expected))
        assert_allclose(a[:2], b[:2], atol=1e-3)
        assert (np.sum(a * b, axis=1) > 0.9).all()


def test_counts_without_gross_errors_are_so_many_times_what_is_typical():
    X, _, _ = planted(13, (50, 20), mean=2.0)
    X = X[:, X.any(axis=0)]
    Y, _ = with_errors(X, 0.05)
    with NumPyEngine(n_threads=1).running() as engine:
        found = engine.join(limited_counts(engine.split(Y), None, engine).V)
    levels = [np.sort(y[y > 0])[(np.sum(y > 0) - 1) // 2] for y in Y.T]
    for i, sample in enumerate(Y):
        ratios = np.sort((sample / levels)[sample > 0])
        size = ratios[(len(ratios) - 1) // 2] if len(ratios) else 0.0
        assert_allclose(found[i], [min(y, GROSS * size * level) for y, level in zip(sample, levels, strict=True)])


def test_the_better_of_two_fits_has_the_smaller_divergence():
    X, H, W = planted(14, (60, 30), mean=3.0)
    worse = np.roll(W, 1, axis=1)
    with NumPyEngine(n_threads=1).running() as engine:
        V = engine.split(X)
        squares, limited = LeastSquares(V, None, None, engine, 1e-4), limited_counts(V, None, engine)
        model = model_of_counts(X.mean(axis=0), X.max())
        first, second = (Judged(Point(F.T, engine.split(H, like=V), None), model) for F in (worse, W))
        found = divergences(squares, first, second, limited)
        near, offset = engine.join(limited.V), COUNT_OFFSET * X.mean()
    expected = [kl_div(near + offset, H @ F + offset).sum() for F in (worse, W)]
    assert_allclose(found["limited"], expected[1] / expected[0])
    assert found["capped"] < 1


# --- Sizes of samples -------------------------------------------------------------------------------------------------


def test_factors_of_samples_are_their_totals_relative_to_the_typical_one():
    X, _, _ = planted(15, (200, 50), mean=3.0, sizes=100)
    factors = SampleScaling.of(X, None).block_factors(X, None, np)
    totals = X.sum(axis=1)
    right = totals > 0
    ratios = factors[right] / (totals[right] / np.median(totals[right]))
    assert np.quantile(np.abs(np.log(ratios / np.median(ratios))), 0.9) < 0.1
    assert_allclose(np.median(factors[right]), 1)
    assert_array_equal(factors[~right], 1)


def test_factors_of_samples_hardly_see_gross_errors():
    X, _, _ = planted(16, (200, 80), mean=3.0, sizes=10)
    Y, _ = with_errors(X, 0.02)
    clean, wrong = (SampleScaling.of(Z, None).block_factors(Z, None, np) for Z in (X, Y))
    large = X.sum(axis=1) > np.quantile(X.sum(axis=1), 0.3)
    hit = large & (Y != X).any(axis=1)
    assert np.median(np.abs(np.log(wrong / clean))[hit]) < 0.5
    assert np.median(np.log(Y.sum(axis=1)[hit] / X.sum(axis=1)[hit])) > 2


def test_factors_of_samples_compare_what_is_observed():
    rng = np.random.default_rng(0)
    X = rng.gamma(1, 1, (1, 40)) * np.exp(rng.normal(size=(60, 1)))
    M = (rng.random(X.shape) < 0.7).astype(float)
    scaling = SampleScaling.of(X, None)
    assert_allclose(scaling.block_factors(X * M, M, np), scaling.block_factors(X, None, np), rtol=1e-9)


@pytest.mark.parametrize("noise", ["auto", "poisson"])
def test_a_scaled_sample_has_a_scaled_code_and_the_same_components(noise):
    X, _, _ = planted(17, (150, 60), mean=4.0)
    X = X[X.any(axis=1)]
    sizes = 2.0 ** np.random.default_rng(0).integers(-4, 5, (len(X), 1))
    models = []
    for Y in (X, sizes * X):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models.append(RobustNMF(4, noise=noise, sample_scaling="total", random_state=0).fit(Y))
    # Levels of features are those of other data, so factors agree but for a little.
    predicted = [model.inverse_transform(model.transform(s * X)) for model, s in zip(models, (1, sizes), strict=True)]
    assert norm(predicted[1] / sizes - predicted[0]) < 0.1 * norm(predicted[0])
    doubled = models[0].transform(2 * X[:20])
    assert_allclose(doubled, 2 * models[0].transform(X[:20]), rtol=1e-6, atol=1e-6)
    assert_array_equal(models[0].outlier_mask(2 * X[:20]), models[0].outlier_mask(X[:20]))


def test_samples_count_alike_and_codes_are_in_units_of_the_data():
    rng = np.random.default_rng(18)
    n = 100  # a component that small samples have and large ones do not
    H = np.abs(rng.normal(size=(3 * n, 3))) * np.repeat(np.eye(3), n, axis=0) + 0.1 * rng.random((3 * n, 3))
    H[2 * n :] *= 0.01
    H[: 2 * n, 2] = 0
    W = rng.gamma(0.5, 1, (3, 60))
    P = H @ W
    X = np.maximum(P * (1 + 0.1 * rng.normal(size=P.shape)), 0)
    fits = [RobustNMF(3, noise="constant", sample_scaling=how, random_state=0) for how in (None, "total")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codes = [model.fit_transform(X) for model in fits]
    errors = [
        norm((C @ model.components_ - P)[2 * n :]) / norm(P[2 * n :]) for C, model in zip(codes, fits, strict=True)
    ]
    assert errors[1] < 0.1 and errors[1] < 0.5 * errors[0]
    assert norm(codes[1] @ fits[1].components_ - X) < 0.15 * norm(X)
    assert_allclose(fits[1].transform(X), codes[1])
    assert_allclose(fits[1].clean(X)[~fits[1].outliers_], X[~fits[1].outliers_])


def test_sample_scaling_is_the_same_for_sparse_and_streamed_data(tmp_path):
    X, _, _ = planted(19, (200, 60), mean=0.6, sizes=30)
    X = X[X.any(axis=1)]
    model = fitted(X, sample_scaling="total")
    codes = model.transform(X)
    for Y, engine in ((sparse.csr_array(X), SparseEngine(block_entries=3000)), (X, "stream")):
        other = fitted(Y, sample_scaling="total", engine=engine)
        assert_allclose(other.components_, model.components_, atol=1e-4)
        assert_allclose(np.asarray(other.transform(Y)), codes, atol=1e-2 * codes.max())
    model.save(tmp_path / "model.robustnmf")
    assert_array_equal(load(tmp_path / "model.robustnmf").transform(X), codes)


def test_sample_scaling_works_with_missing_entries_weights_uncertainties_and_batches():
    X, _, _ = planted(20, (150, 40), mean=5.0, sizes=30)
    rng = np.random.default_rng(0)
    gaps = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    for options in ({}, {"weights": rng.uniform(0.5, 1, X.shape)}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = RobustNMF(4, sample_scaling="total", random_state=0)
            codes = model.fit_transform(gaps, **options)
            M = np.isfinite(gaps).astype(float)
            factors = SampleScaling.of(np.nan_to_num(gaps), M).block_factors(np.nan_to_num(gaps), M, np)[:, None]
            by_hand = RobustNMF(4, random_state=0)
            expected = factors * by_hand.fit_transform(gaps / factors, **options)
        assert_allclose(model.components_, by_hand.components_)
        assert_allclose(codes, expected)
        assert_allclose(model.transform(gaps, **options), codes)
        assert_array_equal(model.outliers_, by_hand.outliers_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = RobustNMF(4, sample_scaling="total", random_state=0).partial_fit(X[:100]).partial_fit(X[100:])
        known = {"uncertainties": np.sqrt(X + 1)}
        ways = (RobustNMF(4, sample_scaling=how, random_state=0).fit_transform(X, **known) for how in (None, "total"))
        assert_array_equal(*ways)
    assert norm(batches.inverse_transform(batches.transform(X)) - X) < 0.3 * norm(X)
    assert batches.n_samples_seen_ == 150


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"sample_scaling": "size"}, "sample_scaling must be"), ({"weight_by_noise": "yes"}, "weight_by_noise must be")],
)
def test_what_cannot_be_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        RobustNMF(2, **parameters).fit(np.ones((5, 4)))
