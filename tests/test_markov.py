"""Graph cuts against enumeration and linear programming, and the majority filter against SciPy's median filter."""

from itertools import product

import numpy as np
import pytest
from scipy.ndimage import median_filter
from scipy.optimize import linprog

from robustnmf.model.markov import median_filtered_support, minimum_energy_labels

SHAPES = [(1, 1), (1, 7), (6, 1), (2, 2), (3, 3), (2, 5), (4, 3)]


def energy(labels, zero, one, smoothness):
    """The definition, for labels (..., height, width)."""
    labels = np.asarray(labels, dtype=bool)
    unequal = (labels[..., 1:, :] != labels[..., :-1, :]).sum(axis=(-2, -1))
    unequal = unequal + (labels[..., 1:] != labels[..., :-1]).sum(axis=(-2, -1))
    return np.where(labels, one, zero).sum(axis=(-2, -1)) + smoothness * unequal


def all_labellings(shape):
    return np.array(list(product([False, True], repeat=shape[0] * shape[1]))).reshape(-1, *shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("smoothness", [0.0, 0.1, 0.7, 5.0])
def test_energy_is_the_least_of_all_labellings(shape, smoothness):
    labellings = all_labellings(shape)
    for seed in range(15):
        rng = np.random.default_rng(seed)
        zero, one = rng.normal(size=(2, *shape))
        found = minimum_energy_labels(zero, one, smoothness)
        energies = energy(labellings, zero, one, smoothness)
        np.testing.assert_allclose(energy(found, zero, one, smoothness), energies.min(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_of_equal_energies_the_fewest_ones_are_taken(shape):
    """Whole numbers are exact, and tie often."""
    labellings = all_labellings(shape)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        zero, one = rng.integers(-2, 3, size=(2, *shape)).astype(float)
        energies = energy(labellings, zero, one, 1.0)
        best = labellings[energies == energies.min()]
        np.testing.assert_array_equal(minimum_energy_labels(zero, one, 1.0), best.all(axis=0))


@pytest.mark.parametrize("smoothness", [1e-9, 1e-3, 1.0, 1e3, 1e9])
def test_costs_of_very_different_size_are_minimised(smoothness):
    labellings = all_labellings((3, 4))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        zero, one = 10.0 ** rng.uniform(-6, 6, size=(2, 3, 4))
        energies = energy(labellings, zero, one, smoothness)
        excess = energy(minimum_energy_labels(zero, one, smoothness), zero, one, smoothness) - energies.min()
        assert excess <= 12 * 5 * smoothness / 2**30 + 1e-12 * np.abs(energies).max()


@pytest.mark.parametrize("smoothness", [0.2, 1.0])
def test_energy_of_a_larger_image_is_that_of_the_linear_programme(smoothness):
    """The relaxation to labels between 0 and 1 has the same minimum; it knows nothing of flows."""
    rng = np.random.default_rng(0)
    zero, one = rng.normal(size=(2, 12, 9))
    pixel = np.arange(zero.size).reshape(zero.shape)
    first = np.concatenate([pixel[1:].ravel(), pixel[:, 1:].ravel()])
    second = np.concatenate([pixel[:-1].ravel(), pixel[:, :-1].ravel()])
    pair, difference = np.arange(len(first)), np.zeros((len(first), zero.size))
    difference[pair, first], difference[pair, second] = 1, -1
    eye = np.eye(len(pair))
    relaxed = linprog(
        np.r_[(one - zero).ravel(), np.full(len(pair), smoothness)],
        A_ub=np.block([[difference, -eye], [-difference, -eye]]),
        b_ub=np.zeros(2 * len(pair)),
        bounds=[(0, 1)] * zero.size + [(0, None)] * len(pair),
    )
    found = energy(minimum_energy_labels(zero, one, smoothness), zero, one, smoothness)
    assert found == pytest.approx(relaxed.fun + zero.sum(), abs=1e-6)


@pytest.mark.parametrize("factor", [1e-290, 1e-6, 7.0, 1e290])
def test_labels_do_not_depend_on_the_unit_of_energy(factor):
    rng = np.random.default_rng(1)
    zero, one = rng.random((2, 8, 8))
    expected = minimum_energy_labels(zero, one, 0.2)
    np.testing.assert_array_equal(minimum_energy_labels(factor * zero, factor * one, factor * 0.2), expected)


def test_images_of_a_batch_are_labelled_separately():
    rng = np.random.default_rng(2)
    zero, one = rng.random((2, 5, 6, 7))
    each = [minimum_energy_labels(z, o, 0.3) for z, o in zip(zero, one, strict=True)]
    np.testing.assert_array_equal(minimum_energy_labels(zero, one, 0.3), each)


def test_empty_batch_is_labelled():
    assert minimum_energy_labels(np.ones((0, 3, 4)), np.ones((0, 3, 4)), 1.0).shape == (0, 3, 4)


@pytest.mark.parametrize("smoothness", [1e12, 1e300])
def test_great_smoothness_makes_all_labels_equal(smoothness):
    zero = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1e-3]])
    assert minimum_energy_labels(zero, np.full((2, 3), 0.1), smoothness).all()
    assert not minimum_energy_labels(zero, np.full((2, 3), 0.2), smoothness).any()


def test_infinite_cost_forbids_a_label():
    zero, one = np.zeros((3, 3)), np.full((3, 3), 0.1)
    zero[1, 1] = np.inf
    one[0, 0] = np.inf
    labels = minimum_energy_labels(zero, one, 10.0)
    assert labels[1, 1] and not labels[0, 0]


@pytest.mark.parametrize(
    ("zero", "one", "smoothness", "words"),
    [
        (np.ones(4), np.ones(4), 1.0, "height, width"),
        (np.ones((2, 2)), np.ones((2, 3)), 1.0, r"\(2, 2\) and \(2, 3\)"),
        (np.full((2, 2), np.nan), np.ones((2, 2)), 1.0, "NaN"),
        (np.full((2, 2), np.inf), np.full((2, 2), np.inf), 1.0, "finite cost"),
        (np.ones((2, 2)), np.ones((2, 2)), -1.0, "smoothness"),
        (np.ones((2, 2)), np.ones((2, 2)), np.nan, "smoothness"),
    ],
)
def test_bad_energies_are_refused_in_words(zero, one, smoothness, words):
    with pytest.raises(ValueError, match=words):
        minimum_energy_labels(zero, one, smoothness)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_filter_is_the_median_away_from_the_edge(size):
    mask = np.random.default_rng(0).random((12, 15)) < 0.5
    inner = slice(size // 2, -(size // 2) or None)
    expected = median_filter(mask.astype(np.uint8), size=size).astype(bool)
    np.testing.assert_array_equal(median_filtered_support(mask, size)[inner, inner], expected[inner, inner])


def by_counting(mask, size, observed):
    """The definition, pixel by pixel."""
    result = np.zeros_like(mask)
    reach = size // 2
    for i, j in np.argwhere(observed):
        window = np.s_[max(i - reach, 0) : i + reach + 1, max(j - reach, 0) : j + reach + 1]
        votes = mask[window][observed[window]]
        result[i, j] = mask[i, j] if 2 * votes.sum() == votes.size else 2 * votes.sum() > votes.size
    return result


@pytest.mark.parametrize("size", [1, 3, 7, 101])
def test_edges_and_missing_pixels_have_no_vote(size):
    rng = np.random.default_rng(1)
    mask, observed = rng.random((7, 6)) < 0.5, rng.random((7, 6)) < 0.7
    np.testing.assert_array_equal(median_filtered_support(mask, size, observed), by_counting(mask, size, observed))
    np.testing.assert_array_equal(median_filtered_support(mask, size), by_counting(mask, size, np.ones_like(mask)))


def test_images_of_a_batch_are_filtered_separately():
    masks = np.random.default_rng(2).random((4, 6, 5)) < 0.5
    np.testing.assert_array_equal(median_filtered_support(masks), [median_filtered_support(mask) for mask in masks])


@pytest.mark.parametrize("size", [0, 2, -3, 3.0, True, "3"])
def test_window_without_a_middle_is_refused(size):
    with pytest.raises(ValueError, match="odd positive integer"):
        median_filtered_support(np.ones((3, 3), dtype=bool), size)


def test_shapes_of_masks_are_checked():
    with pytest.raises(ValueError, match="height, width"):
        median_filtered_support(np.ones(3, dtype=bool))
    with pytest.raises(ValueError, match="observed must have the shape"):
        median_filtered_support(np.ones((3, 3), dtype=bool), observed=np.ones((3, 2), dtype=bool))
