"""Components of many fits, consensus matrices and what is measured of them."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import cophenet, linkage

from robustnmf import RobustNMF, plots
from robustnmf.metrics import (
    cophenetic_correlation,
    dispersion,
    feature_scores,
    match_components,
    specific_features,
)
from robustnmf.selection.pooled import _local_density, pool_components
from robustnmf.selection.stability import consensus

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, (8, 30))
TOGETHER = np.mean([labels[:, None] == labels for labels in LABELS], axis=0)


def test_cophenetic_correlation_is_that_of_the_formula():
    distances = [1 - TOGETHER[i, j] for i in range(30) for j in range(i + 1, 30)]
    theirs = cophenet(linkage(distances, "average"))
    assert cophenetic_correlation(TOGETHER) == pytest.approx(np.corrcoef(theirs, distances)[0, 1])
    assert cophenetic_correlation(np.ones((4, 4))) == 1


def test_dispersion_is_that_of_the_formula():
    assert dispersion(TOGETHER) == pytest.approx(sum(4 * (x - 0.5) ** 2 for x in TOGETHER.flat) / 900)


def test_feature_scores_are_those_of_the_formula():
    H = RNG.gamma(0.5, size=(3, 12))
    expected = []
    for column in H.T:
        p = column / column.sum()
        expected.append(1 + sum(x * np.log2(x) for x in p) / np.log2(3))
    np.testing.assert_allclose(feature_scores(H), expected)
    scores = np.array(expected)
    limit = np.median(scores) + 3 * np.median(abs(scores - np.median(scores)))
    chosen = [s > limit and max(column) > np.median(H) for s, column in zip(scores, H.T, strict=True)]
    assert specific_features(H).tolist() == chosen


def test_specific_features_are_those_of_one_component():
    H = np.ones((3, 20)) + 0.01 * RNG.random((3, 20))
    H[:, 5] = [3, 0, 0]
    assert np.flatnonzero(specific_features(H)).tolist() == [5]


@pytest.mark.filterwarnings("ignore")
def test_measures_are_those_of_nimfa():
    nimfa = pytest.importorskip("nimfa")

    class Fit(nimfa.models.nmf_std.Nmf_std):
        def __init__(self, W):
            self.W = W

        def basis(self):
            return self.W

        def consensus(self, idx=None):
            return TOGETHER

    H = RNG.gamma(0.5, size=(3, 12))
    theirs = Fit(H.T)
    np.testing.assert_allclose(feature_scores(H), theirs.score_features(), atol=1e-12)
    assert specific_features(H).tolist() == theirs.select_features().tolist()
    assert cophenetic_correlation(TOGETHER) == pytest.approx(theirs.coph_cor())
    assert dispersion(TOGETHER) == pytest.approx(theirs.dispersion())


@pytest.mark.parametrize("wrong", [np.ones((2, 3)), [[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.2], [0.4, 1.0]], [[1.0]]])
def test_what_is_no_consensus_matrix_is_refused(wrong):
    with pytest.raises(ValueError, match="together must be"):
        cophenetic_correlation(wrong)


@pytest.mark.parametrize("wrong", [np.ones((1, 3)), np.ones(3), [[1.0, -1.0], [1.0, 1.0]], [[np.nan], [1.0]]])
def test_what_are_no_components_is_refused(wrong):
    with pytest.raises(ValueError, match="components must be"):
        feature_scores(wrong)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    basis = rng.gamma(0.5, size=(3, 25))
    X = (rng.gamma(1.0, size=(60, 3)) * (rng.random((60, 3)) < 0.6)) @ basis + 0.02 * rng.random((60, 25))
    return X, basis


def test_consensus_has_the_measures_of_its_matrix_and_a_picture(data):
    found = consensus(data[0], 3, n_init=3, estimator=RobustNMF(init="random", max_iter=30), random_state=0)
    assert found.cophenetic == cophenetic_correlation(found.together)
    assert found.dispersion == dispersion(found.together)
    shown = plots.consensus_map(found).images[0].get_array()
    assert sorted(np.asarray(shown).ravel()) == sorted(found.together.ravel())
    # Neighbours in the order of the tree are at least as often together as neighbours in the order of the data.
    assert np.diag(shown, 1).mean() >= np.diag(found.together, 1).mean()


def test_pooled_components_are_the_true_ones(data):
    X, basis = data
    pooled = pool_components(X, 3, n_init=4, estimator=RobustNMF(init="random"), random_state=0)
    assert match_components(basis, pooled.components).similarities.min() > 0.97
    np.testing.assert_allclose(pooled.components.sum(axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(pooled.spectra, axis=1), 1)
    for k in range(3):
        median = np.median(pooled.spectra[pooled.groups == k], axis=0)
        np.testing.assert_allclose(pooled.components[k], median / median.sum())
    assert pooled.silhouette > 0.8
    assert (np.diff(np.bincount(pooled.groups[pooled.kept])) <= 0).all()


def test_local_density_is_the_mean_distance_to_neighbours():
    spectra = RNG.random((9, 4))
    distances = np.sort(np.linalg.norm(spectra[:, None] - spectra, axis=2), axis=1)
    np.testing.assert_allclose(_local_density(spectra, 3), distances[:, 1:4].mean(axis=1), atol=1e-7)


def test_pooling_leaves_out_what_few_fits_have(data):
    X, _ = data
    pooled = pool_components(X, 3, n_init=4, density_threshold=2.0, random_state=0)
    spectra = np.concatenate([pooled.spectra, np.eye(25)[:1]])
    assert _local_density(spectra, 1)[-1] > 0.5 > np.median(_local_density(spectra, 1))
    assert pooled.kept.all()
    with pytest.raises(ValueError, match="Raise density_threshold"):
        pool_components(X, 3, n_init=2, density_threshold=1e-12, estimator=RobustNMF(init="random", max_iter=3))
    with pytest.raises(ValueError, match="neighbours must be a share"):
        pool_components(X, 3, neighbours=0)
