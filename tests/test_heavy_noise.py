"""NMF under heavy noise: every step against loops, recovery where noise averages out, degenerate data, errors."""

import warnings

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import NMF

from robustnmf.baselines.heavy_noise import _prune, _threshold, heavy_noise_nmf


def make_dominant(n, m=60, rank=4, spread=2.0, seed=0):
    """Return data of the model, and its basis.

    Half of every basis vector lies on five features of its own; most columns are dominated by one vector. The noise
    multiplies every entry by a log-normal variable of mean 1: of mean 0 itself, and on average larger than its column.
    """
    rng = np.random.default_rng(seed)
    shared = rng.dirichlet(np.ones(m - 5 * rank), rank).T
    basis = np.vstack([np.kron(np.eye(rank), np.full((5, 1), 0.1)), shared / 2])
    clean = basis @ rng.dirichlet(np.full(rank, 0.1), n).T
    return clean * rng.lognormal(-(spread**2) / 2, spread, clean.shape), basis, clean


def basis_error(W, basis):
    """Return the mean l1 distance of matched basis vectors, all of sum 1."""
    distances = np.abs((W / W.sum(axis=0))[:, :, None] - basis[:, None, :]).sum(axis=0)
    return distances[linear_sum_assignment(distances)].mean()


def mean_error(n, spread=2.0):
    errors = []
    for seed in range(3):
        V, basis, _ = make_dominant(n, spread=spread, seed=seed)
        errors.append(basis_error(heavy_noise_nmf(V, 4, np.random.default_rng(0)).W, basis))
    return np.mean(errors)


def test_the_noise_is_heavy_but_averages_out():
    V, _, clean = make_dominant(20_000)
    N = V - clean
    assert np.abs(N).sum(axis=0).mean() > 1.2 * clean.sum(axis=0).mean()
    assert np.abs(N.mean(axis=1)).sum() < 0.1


def test_error_falls_with_the_number_of_columns():
    errors = [mean_error(n) for n in (250, 1000, 4000)]
    assert errors[0] > errors[1] + 0.1
    assert errors[1] > errors[2] + 0.1
    assert errors[2] < 0.5


def test_error_is_smaller_than_that_of_least_squares():
    for seed in range(3):
        V, basis, _ = make_dominant(2000, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = NMF(4, init="nndsvda", max_iter=300, random_state=0).fit(V.T).components_.T
        assert basis_error(heavy_noise_nmf(V, 4, np.random.default_rng(0)).W, basis) < 0.6 * basis_error(plain, basis)


def test_clean_data_give_the_basis_and_its_features():
    V, basis, _ = make_dominant(1000, spread=0.0)
    result = heavy_noise_nmf(V, 4, np.random.default_rng(0))
    assert basis_error(result.W, basis) < 0.06
    assert np.all(result.features[:20].sum(axis=1) == 1)  # a feature of one vector alone dominates there alone
    assert np.allclose(result.W @ result.H, V, atol=0.02)


def test_clusters_are_the_dominant_vectors():
    V, _, clean = make_dominant(1000, spread=0.0)
    dominant = np.argmax([clean[5 * k] for k in range(4)], axis=0)
    result = heavy_noise_nmf(V, 4, np.random.default_rng(0), top_share=1 / 8)
    pure = clean[0:20:5].max(axis=0) > 0.09
    agreement = np.zeros((4, 4))
    np.add.at(agreement, (dominant[pure], result.clusters[pure]), 1)
    assert np.all(agreement.max(axis=1) == agreement.sum(axis=1))


def test_threshold_is_the_published_one():
    V = make_dominant(130)[0] * (np.random.default_rng(1).random((60, 130)) < 0.3)
    V[7, 4:] = 0
    D = _threshold(V, top_share=0.04, alpha=0.9)
    for i, row in enumerate(V):
        nu = sorted(row, reverse=True)[5]  # the ceil(0.04 * 130) = 6th
        if nu == 0:
            nu = min((v for v in row if v > 0), default=0)
        for j, v in enumerate(row):
            assert D[i, j] == pytest.approx(np.sqrt(0.9 * nu) if v >= 0.9 * nu else 0)


def test_prune_is_the_published_one():
    rng = np.random.default_rng(0)
    D = np.where(rng.random((12, 200)) < np.linspace(0.1, 0.9, 12)[:, None], np.arange(1.0, 13.0)[:, None], 0)
    D[8:, D[1] > 0] = 5.0  # these contain feature 1
    expected, support = D.copy(), [set(np.flatnonzero(row)) for row in D]
    alive = sorted(range(12), key=lambda i: len(support[i]))
    while alive:
        i = alive.pop(0)
        if len(support[i]) <= 2 * 3:
            continue
        for k in list(alive):
            if len(support[k]) >= len(support[i]) + 10 and len(support[i] - support[k]) <= 3:
                expected[k, sorted(support[k] - support[i])] = 0
                alive.remove(k)
    assert not np.array_equal(expected, D)
    assert np.array_equal(_prune(D, excess=10, tolerance=3), expected)


def test_basis_vectors_are_averages_of_columns():
    V, _, _ = make_dominant(300)
    result = heavy_noise_nmf(V, 4, np.random.default_rng(0))
    for k in range(4):
        assert np.allclose(result.W[:, k], V[:, result.members[:, k]].mean(axis=1))
        if result.features[:, k].any():
            assert result.members[:, k].sum() == int(1.1 * 300 / 8)


def test_same_generator_state_gives_the_same_result():
    V, _, _ = make_dominant(300)
    first, second = (heavy_noise_nmf(V, 4, np.random.default_rng(5)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a, b)


def test_units_of_the_data_do_not_matter():
    V, _, _ = make_dominant(300)
    small, large = (heavy_noise_nmf(unit * V, 4, np.random.default_rng(0)) for unit in (1.0, 1024.0))
    assert np.allclose(large.W, 1024 * small.W)
    assert np.array_equal(large.clusters, small.clusters)


@pytest.mark.parametrize("rank", [1, 2, 9, 10])
@pytest.mark.parametrize("kind", ["random", "constant", "zero columns", "zero rows", "one entry", "wide"])
def test_degenerate_data_have_an_answer(kind, rank):
    rng = np.random.default_rng(0)
    V = rng.random((20, 10))
    if kind == "constant":
        V[:] = 3.0
    elif kind == "zero columns":
        V[:, 1:7] = 0
    elif kind == "zero rows":
        V[::2] = 0
    elif kind == "one entry":
        V[:] = 0
        V[3, 4] = 1
    elif kind == "wide":
        V = rng.random((2, 10))
    result = heavy_noise_nmf(V, rank, rng)
    assert result.W.shape == (len(V), rank)
    assert result.H.shape == (rank, 10)
    for factor in (result.W, result.H):
        assert np.isfinite(factor).all()
        assert factor.min() >= 0
    assert set(range(rank)) <= set(result.clusters) <= set(range(-1, rank))
    assert result.members.any(axis=0).all()


def test_rank_one_is_the_mean_of_the_columns_that_reach_a_threshold():
    V = np.random.default_rng(0).random((20, 50))
    result = heavy_noise_nmf(V, 1, np.random.default_rng(0))
    reached = np.any(V >= 0.9 * np.sort(V, axis=1)[:, [-2]], axis=0)  # the ceil(0.04 * 50) = 2nd largest
    assert np.array_equal(result.clusters == 0, reached)
    assert np.allclose(result.W[:, 0], V[:, reached].mean(axis=1))


def test_single_precision_stays_single_precision():
    V, basis, _ = make_dominant(1000, spread=0.0)
    result = heavy_noise_nmf(V.astype(np.float32), 4, np.random.default_rng(0))
    assert result.W.dtype == result.H.dtype == np.float32
    assert basis_error(result.W, basis) < 0.06


@pytest.mark.parametrize(
    ("V", "arguments", "message"),
    [
        (np.full((3, 4), np.nan), {"rank": 2}, "must be finite"),
        (-np.ones((3, 4)), {"rank": 2}, "must be non-negative"),
        (np.zeros((3, 4)), {"rank": 2}, "positive entry; all 12 are zero"),
        (np.ones(3), {"rank": 2}, "features x samples"),
        (np.ones((3, 4)), {"rank": 5}, r"\[1, 4\].*got 5"),
        (np.ones((3, 4)), {"rank": True}, "got True"),
        (np.ones((3, 4)), {"rank": 2, "alpha": 0}, "alpha must be positive and finite; got 0"),
        (np.ones((3, 4)), {"rank": 2, "top_share": 1.5}, "top_share must be at most 1"),
        (np.ones((3, 4)), {"rank": 2, "n_starts": 0}, "n_starts at least 1"),
    ],
)
def test_errors_say_what_to_do(V, arguments, message):
    with pytest.raises(ValueError, match=message):
        heavy_noise_nmf(V, rng=np.random.default_rng(0), **arguments)
