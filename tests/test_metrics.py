"""Measures of quality."""

from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from robustnmf.metrics import (
    clustering_accuracy,
    match_components,
    normalized_mutual_information,
    outlier_scores,
    relative_error,
    spectral_angle,
)

LABEL_SCORES = [clustering_accuracy, normalized_mutual_information]


def accuracy_by_brute_force(labels_true, labels_pred):
    """The best share of agreement over every way of naming the clusters after classes, or after nothing."""
    classes, clusters = sorted(set(labels_true)), sorted(set(labels_pred))
    names = classes + [None] * len(clusters)
    return max(
        np.mean(
            [dict(zip(clusters, naming, strict=True))[p] == t for t, p in zip(labels_true, labels_pred, strict=True)]
        )
        for naming in set(permutations(names, len(clusters)))
    )


def test_relative_error_is_the_ratio_of_frobenius_norms():
    rng = np.random.default_rng(0)
    A, B = rng.random((5, 4)), rng.random((5, 4))
    assert relative_error(A, B) == pytest.approx(np.sqrt(((A - B) ** 2).sum() / (A**2).sum()))
    assert relative_error(A, A) == 0


@pytest.mark.parametrize(
    ("clean", "estimate"), [(np.ones((2, 2)), np.ones((2, 3))), (np.zeros((2, 2)), np.ones((2, 2)))]
)
def test_relative_error_refuses_what_has_no_answer(clean, estimate):
    with pytest.raises(ValueError, match=r"same shape|not defined"):
        relative_error(clean, estimate)


def test_outlier_scores_count_hits():
    truth = np.array([1, 1, 1, 0, 0, 0], dtype=bool)
    mask = np.array([1, 1, 0, 1, 0, 0], dtype=bool)
    scores = outlier_scores(truth, mask)
    assert scores == pytest.approx((2 / 3, 2 / 3, 2 / 3))


def test_outlier_scores_of_an_empty_mask_are_zero():
    assert outlier_scores(np.ones(3, bool), np.zeros(3, bool)) == (0, 0, 0)


def test_outlier_scores_need_equal_shapes():
    with pytest.raises(ValueError, match="same shape"):
        outlier_scores(np.ones(3, bool), np.ones(4, bool))


@pytest.mark.parametrize("score", LABEL_SCORES)
def test_label_scores_of_the_same_partition_are_one(score):
    assert score([0, 0, 1, 2, 2], ["b", "b", "c", "a", "a"]) == pytest.approx(1)


@pytest.mark.parametrize("score", LABEL_SCORES)
def test_label_scores_do_not_depend_on_the_names_of_labels(score):
    rng = np.random.default_rng(1)
    labels_true, labels_pred = rng.integers(0, 4, 60), rng.integers(0, 5, 60)
    renamed = np.array(["u", "v", "w", "x", "y"])[rng.permutation(5)][labels_pred]
    assert score(labels_true, renamed) == pytest.approx(score(labels_true, labels_pred), rel=1e-12)
    assert score(list(map(str, labels_true)), labels_pred.astype(float)) == pytest.approx(
        score(labels_true, labels_pred), rel=1e-12
    )


@pytest.mark.parametrize("score", LABEL_SCORES)
def test_label_scores_are_symmetric(score):
    rng = np.random.default_rng(2)
    labels_true, labels_pred = rng.integers(0, 3, 40), rng.integers(0, 6, 40)
    assert score(labels_true, labels_pred) == pytest.approx(score(labels_pred, labels_true), rel=1e-12)


@pytest.mark.parametrize(("classes", "clusters"), [(2, 2), (3, 3), (4, 4), (3, 1), (1, 3), (2, 4), (4, 2)])
def test_clustering_accuracy_is_the_best_over_all_matchings(classes, clusters):
    rng = np.random.default_rng(10 * classes + clusters)
    for _ in range(5):
        labels_true, labels_pred = rng.integers(0, classes, 12), rng.integers(0, clusters, 12)
        expected = accuracy_by_brute_force(labels_true.tolist(), labels_pred.tolist())
        assert clustering_accuracy(labels_true, labels_pred) == pytest.approx(expected)


def test_clustering_accuracy_counts_left_over_clusters_as_wrong():
    assert clustering_accuracy([0, 0, 0, 0], [0, 1, 2, 3]) == 0.25
    assert clustering_accuracy([0, 1, 2, 3], [0, 0, 0, 0]) == 0.25


@pytest.mark.parametrize("score", LABEL_SCORES)
def test_label_scores_take_labels_of_any_type(score):
    assert score([(1, "a"), (1, "a"), None], [True, True, frozenset()]) == pytest.approx(1)
    assert score(iter("aab"), np.array(["x", "x", "y"], dtype=object)) == pytest.approx(1)


def test_normalized_mutual_information_is_that_of_scikit_learn():
    rng = np.random.default_rng(3)
    labels_true, labels_pred = rng.integers(0, 4, 50), rng.integers(0, 6, 50)
    expected = normalized_mutual_info_score(labels_true, labels_pred, average_method="arithmetic")
    assert normalized_mutual_information(labels_true, labels_pred) == pytest.approx(expected, rel=1e-12)


def test_normalized_mutual_information_of_independent_labels_is_zero():
    assert normalized_mutual_information([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("score", LABEL_SCORES)
@pytest.mark.parametrize(
    ("labels_true", "labels_pred", "message"),
    [
        ([0, 1], [0, 1, 1], "same length; got 2 and 3"),
        ([], [], "not be empty"),
        ([0.0, np.nan], [0, 1], "finite"),
        ([0, 1], np.array([0, np.inf], dtype=np.float32), "finite"),
        (np.zeros((2, 2)), [0, 1], "one label for each sample"),
        ([[0], [1]], [0, 1], "one-dimensional"),
        (3, [0], "one label for each sample"),
        ("ab", ["a", "b"], "one label for each sample"),
    ],
)
def test_label_scores_refuse_what_has_no_answer(score, labels_true, labels_pred, message):
    with pytest.raises(ValueError, match=message):
        score(labels_true, labels_pred)


@pytest.mark.parametrize("extra", [0, 2])
def test_match_components_recovers_order_and_scales(extra):
    rng = np.random.default_rng(4)
    true = rng.random((4, 30))
    order, scales = rng.permutation(4 + extra), rng.uniform(0.1, 10, 4)
    estimated = np.vstack([true / scales[:, None], rng.random((extra, 30))])[order]
    match = match_components(true, estimated)
    np.testing.assert_array_equal(order[match.permutation], np.arange(4))
    np.testing.assert_allclose(match.scales, scales)
    np.testing.assert_allclose(match.similarities, 1)


def test_match_components_maximises_the_sum_of_similarities():
    rng = np.random.default_rng(5)
    true, estimated = rng.random((4, 6)), rng.random((4, 6))
    cosines = (true @ estimated.T) / np.outer(np.linalg.norm(true, axis=1), np.linalg.norm(estimated, axis=1))
    match = match_components(true, estimated)
    np.testing.assert_allclose(match.similarities, cosines[np.arange(4), match.permutation])
    assert match.similarities.sum() == pytest.approx(
        max(cosines[np.arange(4), list(order)].sum() for order in permutations(range(4)))
    )


def test_match_components_scales_are_those_of_least_squares():
    rng = np.random.default_rng(6)
    true, estimated = rng.random((3, 8)), rng.random((3, 8))
    match = match_components(true, estimated)
    for component, partner, scale in zip(true, estimated[match.permutation], match.scales, strict=True):
        assert scale == pytest.approx(np.linalg.lstsq(partner[:, None], component)[0][0])


@pytest.mark.parametrize(
    ("true", "estimated", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "same number of features"),
        (np.ones((3, 3)), np.ones((2, 3)), "for every true one; got 2 for 3"),
        (np.ones(3), np.ones((1, 3)), "true must be a matrix"),
        (np.ones((2, 3)), np.empty((0, 3)), "estimated must not be empty"),
        (np.ones((1, 2)), [[1, np.nan]], "estimated must be finite"),
        (np.eye(2), [[1, 0], [0, 0]], "not defined"),
    ],
)
def test_match_components_refuses_what_has_no_answer(true, estimated, message):
    with pytest.raises(ValueError, match=message):
        match_components(true, estimated)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 7.0, 1e300])
def test_spectral_angle_ignores_scale(scale):
    rng = np.random.default_rng(7)
    a, b = rng.random((2, 20))
    assert spectral_angle(a, scale * a) == pytest.approx(0, abs=1e-15)
    assert spectral_angle(a, scale * b) == pytest.approx(spectral_angle(b, a), rel=1e-14)


def test_spectral_angle_of_orthogonal_and_opposite_spectra():
    assert spectral_angle([0, 3, 0], [2, 0, 1]) == pytest.approx(np.pi / 2, rel=1e-15)
    assert spectral_angle([1, 2], [-1, -2]) == pytest.approx(np.pi, rel=1e-15)


@pytest.mark.parametrize("angle", [1e-300, 1e-100, 1e-12, 1e-8, 1e-3, 0.5, 1.5, 3.0])
def test_spectral_angle_is_accurate_for_angles_of_any_size(angle):
    assert spectral_angle([1, 0], [np.cos(angle), np.sin(angle)]) == pytest.approx(angle, rel=1e-14)


def test_spectral_angle_of_matrices_goes_row_by_row():
    rng = np.random.default_rng(8)
    A, B = rng.random((2, 5, 9))
    angles = spectral_angle(A, B)
    np.testing.assert_allclose(angles, [spectral_angle(a, b) for a, b in zip(A, B, strict=True)])
    np.testing.assert_allclose(
        angles, np.arccos((A * B).sum(1) / np.linalg.norm(A, axis=1) / np.linalg.norm(B, axis=1)), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 2], [1, 2, 3], "same shape"),
        ([1, 2], [[1, 2]], "same shape"),
        ([], [], "empty"),
        (1.0, 1.0, "a vector, or a matrix"),
        ([1, np.inf], [1, 1], "finite"),
        ([[1, 1], [0, 0]], np.ones((2, 2)), "not defined"),
    ],
)
def test_spectral_angle_refuses_what_has_no_answer(a, b, message):
    with pytest.raises(ValueError, match=message):
        spectral_angle(a, b)
