"""Rejected entries that follow a pattern: found, accepted if that is right, and named if it is in doubt."""

import numpy as np
import pytest
from scipy import sparse, stats

from robustnmf import RobustNMF
from robustnmf.algorithm import judging, patterns
from robustnmf.algorithm.patterns import Trial, least_needed, limits_of, rejected_excess, scores
from robustnmf.errors import DataQualityWarning


def chapters(strength=0.2, n_samples=240, n_features=500, n_groups=5, n_own=15, seed=0):
    """Return shares of words in chapters of some novels, each of which has names of its own; and the novels."""
    rng = np.random.default_rng(seed)
    common = rng.gamma(0.5, 1, n_features)
    topics = rng.dirichlet(np.full(n_features, 0.05), 4)
    P = 0.6 * common / common.sum() + 0.4 * rng.dirichlet(np.full(4, 0.3), n_samples) @ topics
    novels = rng.integers(n_groups, size=n_samples)
    names = np.arange(n_groups * n_own).reshape(n_groups, n_own)
    P[:, names.ravel()] *= 0.02
    for novel in range(n_groups):
        rows = np.flatnonzero(novels == novel)
        sizes = rng.gamma(3, 1 / 3, (len(rows), 1)) * rng.gamma(0.7, 1 / 0.7, (len(rows), n_own))
        P[np.ix_(rows, names[novel])] += strength * rng.dirichlet(np.ones(n_own)) * sizes
    counts = rng.poisson(400 * P / P.sum(axis=1, keepdims=True))
    X = np.log1p(counts) / np.sqrt((np.log1p(counts) ** 2).sum(axis=1, keepdims=True))
    return X * np.log(n_samples / (counts > 0).sum(axis=0).clip(1)), novels


def slow_scores(is_rejected):
    """Return the scores by their definition, entry by entry."""
    B = is_rejected.astype(float)
    found = np.zeros(B.shape)
    for j in range(B.shape[1]):
        others = np.delete(B, j, axis=1)
        beyond = others - np.outer(others.sum(axis=1), others.sum(axis=0)) / others.sum()
        target = B[:, j] - others.sum(axis=1) * B[:, j].sum() / others.sum()
        likeness = beyond @ beyond.T
        np.fill_diagonal(likeness, 0)
        found[:, j] = likeness @ target
    return found


def test_scores_are_those_of_the_definition():
    is_rejected = np.random.default_rng(0).random((30, 12)) < 0.3
    np.testing.assert_allclose(scores(is_rejected), slow_scores(is_rejected), atol=1e-9)


def test_ranks_of_numbers_of_entries_are_those_of_scipy():
    scored = np.random.default_rng(0).integers(0, 9, (50, 7), dtype=np.int32)
    for numbers in (scored, np.zeros_like(scored), scored / 3):
        np.testing.assert_array_equal(patterns._ranks(numbers), stats.rankdata(numbers, axis=0))


@pytest.mark.parametrize("engine", ["numpy", "sparse"])
def test_some_samples_have_the_excess_that_they_have_among_all(monkeypatch, engine):
    found = []

    def look(squares, judged, is_sparse):
        found.append([rejected_excess(squares, judged, every).toarray() for every in (1, 7)])
        return patterns.pattern_limits(squares, judged, is_sparse)

    monkeypatch.setattr(judging, "pattern_limits", look)
    X, _ = chapters()
    RobustNMF(4, random_state=0, engine=engine).fit(sparse.csr_array(X) if engine == "sparse" else X)
    ((of_all, of_some),) = found
    assert np.count_nonzero(of_some) > 0
    np.testing.assert_array_equal(of_some, of_all[::7])


@pytest.mark.parametrize("share", [0.02, 0.2, 0.4])
def test_random_errors_have_no_pattern(share):
    rng = np.random.default_rng(0)
    found = [limits_of(sparse.csr_array(rng.random((150, 60)) * (rng.random((150, 60)) < share))) for _ in range(10)]
    assert np.count_nonzero(found) <= 1


@pytest.mark.parametrize("shape", [(400, 8), (150, 60)])
@pytest.mark.parametrize("wrong", [np.s_[:20], np.s_[:, :2]], ids=["samples", "features"])
def test_wrong_samples_or_features_have_no_pattern(shape, wrong):
    rng = np.random.default_rng(0)
    chances = np.full(shape, 0.02)
    chances[wrong] = 0.45
    assert not limits_of(sparse.csr_array((rng.random(shape) < chances).astype(float))).any()


def test_pattern_of_groups_is_found_among_random_errors():
    rng = np.random.default_rng(0)
    residuals = np.where(rng.random((200, 90)) < 0.02, 50.0, 0.0)
    for group in range(4):
        rows, columns = np.arange(group, 200, 4), np.arange(10 * group, 10 * group + 10)
        residuals[np.ix_(rows, columns)] = 2 * (rng.random((50, 10)) < 0.6)
    limits = limits_of(sparse.csr_array(residuals))
    assert np.all(limits[:40] == 6)  # three times what is typical, which errors do not change
    assert not limits[40:].any()


def test_trial_is_good_only_if_entries_are_predicted_and_others_bear_it():
    assert Trial(0.8, 1.05, 0.4).is_good(is_sparse=True)
    assert not Trial(0.99, 1.01, 0.01).is_good(is_sparse=True)  # errors nobody predicts
    blocks = Trial(0.9, 20.0, 0.9)
    assert not blocks.is_good(is_sparse=True)
    assert not blocks.leaves_doubt(is_sparse=True)
    assert Trial(0.3, 1.4, 0.4).leaves_doubt(is_sparse=True)


def test_where_most_entries_are_positive_nearly_all_must_be_predicted():
    assert Trial(0.98, 2.0, 0.99).is_good(is_sparse=False)
    white_blocks = Trial(0.99, 1.1, 0.5)
    assert not white_blocks.is_good(is_sparse=False)
    assert not white_blocks.leaves_doubt(is_sparse=False)
    too_few_components = Trial(0.8, 16.0, 0.99)
    assert not too_few_components.is_good(is_sparse=False)
    assert too_few_components.leaves_doubt(is_sparse=False)


def excess(group, seed=0, shape=(300, 40)):
    """Return what rejected entries exceed their predictions by: of few at random, and of a group."""
    residuals = np.where(np.random.default_rng(seed).random(shape) < 0.01, 5.0, 0.0)
    residuals[group] = 2.0
    return sparse.csr_array(residuals)


def test_group_that_is_large_enough_and_accepted_in_part_has_a_pattern():
    limits = limits_of(excess(np.s_[:40, :15]), is_sparse=False)
    assert np.all(limits[:15] == 6)
    assert not limits[15:].any()
    assert not limits_of(excess(np.s_[:8, :15]), is_sparse=False).any()  # days of fireworks
    assert not limits_of(excess(np.s_[:40]), is_sparse=False).any()  # samples that are wrong as a whole


def test_component_that_others_replace_is_least_needed():
    W = np.array([[1.0, 0, 1], [0, 1, 1], [0, 0, 0.1]])
    place, by_others = least_needed(W, np.ones((5, 3)))
    assert place == 2
    np.testing.assert_allclose(by_others, [1, 1, 0])
    assert least_needed(W[:, :1], np.ones((5, 1)))[0] == 0


def spectra(seed, n_pixels=900, n_bands=50):
    """Return spectra of dark water under haze, a tenth of which hold trees, with spikes: clean ones, spikes, trees."""
    rng = np.random.default_rng(seed)
    band = np.linspace(0, 1, n_bands)
    water, haze = 0.05 + 0.03 * np.exp(-band / 0.3), 0.02 + 0.04 * np.exp(-(((band - 0.3) / 0.2) ** 2))
    tree = np.where(band > 0.6, 0.6 + 0.1 * np.sin(6 * band), 0.05)
    trees = np.where(rng.random(n_pixels) < 0.15, rng.uniform(0.3, 1, n_pixels), 0)
    codes = np.c_[rng.uniform(0.8, 1.2, n_pixels), rng.gamma(1, 0.5, n_pixels), trees]
    clean = codes @ np.stack([water, haze, tree])
    X = np.abs(clean * (1 + 0.02 * rng.normal(size=clean.shape)) + 0.0005 * rng.normal(size=clean.shape))
    wrong = rng.random(X.shape) < 0.006
    return np.where(wrong, X + rng.uniform(0.5, 3, X.shape), X), clean, wrong, np.ix_(trees > 0, band > 0.6)


@pytest.mark.parametrize(("seed", "rank"), [(0, 3), (1, 3), (2, 4)])
def test_material_of_a_tenth_of_the_pixels_is_no_outlier_beside_spikes(seed, rank):
    X, clean, wrong, trees = spectra(seed)
    model = RobustNMF(rank, random_state=0).fit(X)
    assert model.outliers_[wrong].mean() > 0.99
    assert model.outliers_[trees].mean() < 0.05
    assert np.linalg.norm(model.clean(X) - clean) < 0.05 * np.linalg.norm(clean)


def test_material_that_too_few_components_leave_out_is_named():
    X = spectra(0)[0]
    with pytest.warns(DataQualityWarning, match="follow a pattern"):
        RobustNMF(2, random_state=0).fit(X)


@pytest.mark.parametrize("as_given", [sparse.csr_array, np.asarray])
def test_names_of_novels_are_accepted_and_errors_among_them_are_not(as_given):
    X, _ = chapters()
    rng = np.random.default_rng(1)
    wrong = (rng.random(X.shape) < 0.01) & (X > 0)
    damaged = np.where(wrong, rng.uniform(10, 100, X.shape) * X, X)
    model = RobustNMF(9, random_state=0)
    codes = model.fit_transform(as_given(damaged))
    rejected = sparse.csr_array(model.outliers_).toarray()
    assert rejected[wrong].mean() > 0.9
    assert np.square(X[rejected & ~wrong]).sum() < 0.15 * np.square(X).sum()
    assert np.linalg.norm(np.where(wrong, 0, X - codes @ model.components_)) < 0.85 * np.linalg.norm(X)


def test_doubtful_pattern_is_named():
    X, _ = chapters(strength=1.0)
    with pytest.warns(DataQualityWarning, match=r"features \(.*follow a pattern: .*method='l2'"):
        model = RobustNMF(4, random_state=0).fit(X)
    assert model.outliers_.any()
