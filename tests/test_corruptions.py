"""Claims about the seeded corruptions."""

import numpy as np
import pytest

from robustnmf.datasets import corruptions
from robustnmf.datasets.corruptions import block_occlusion, gaussian, laplace, salt_and_pepper

IMAGE_SHAPE = (6, 9)

CORRUPTIONS = {
    "salt_and_pepper": lambda X, **kwargs: salt_and_pepper(X, 0.3, **kwargs),
    "laplace": lambda X, **kwargs: laplace(X, 20.0, **kwargs),
    "gaussian": lambda X, **kwargs: gaussian(X, 20.0, **kwargs),
    "block_occlusion": lambda X, **kwargs: block_occlusion(X, 3, IMAGE_SHAPE, **kwargs),
}


@pytest.fixture(params=CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def corrupt(request):
    return request.param


@pytest.fixture
def X():
    return np.random.default_rng(0).uniform(1, 100, size=(40, 54))


# Claims that hold for every corruption.


def test_every_public_corruption_is_covered():
    assert set(corruptions.__all__) == {"Corrupted", *CORRUPTIONS}


def test_same_int_gives_same_result(corrupt, X):
    first, second = corrupt(X, random_state=3), corrupt(X, random_state=3)
    np.testing.assert_array_equal(first.data, second.data)
    np.testing.assert_array_equal(first.mask, second.mask)


def test_different_ints_give_different_results(corrupt, X):
    assert not np.array_equal(corrupt(X, random_state=3).data, corrupt(X, random_state=4).data)


def test_no_seed_gives_different_results(corrupt, X):
    assert not np.array_equal(corrupt(X).data, corrupt(X).data)


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_generator_objects_are_reproducible_and_move_on(corrupt, X, make):
    state = make(5)
    first, second = corrupt(X, random_state=state), corrupt(X, random_state=state)
    np.testing.assert_array_equal(first.data, corrupt(X, random_state=make(5)).data)
    assert not np.array_equal(first.data, second.data)


def test_input_is_neither_modified_nor_aliased(corrupt, X):
    before = X.copy()
    data, _ = corrupt(X, random_state=0)
    assert not np.shares_memory(data, X)
    data[:] = -1
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_order_does_not_matter(corrupt, X, order):
    expected = corrupt(X, random_state=0)
    result = corrupt(np.asarray(X, order=order), random_state=0)
    np.testing.assert_array_equal(result.data, expected.data)
    np.testing.assert_array_equal(result.mask, expected.mask)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("float32", "float32"), ("float64", "float64"), ("uint8", "float64"), ("int64", "float64")],
)
def test_floats_keep_their_dtype_and_integers_become_float64(corrupt, X, given, kept):
    data, mask = corrupt(X.astype(given), random_state=0)
    assert data.dtype == kept
    assert mask.dtype == bool


def test_unmarked_entries_are_unchanged(corrupt, X):
    data, mask = corrupt(X, random_state=0)
    assert data.shape == mask.shape == X.shape
    assert mask.any()
    np.testing.assert_array_equal(data[~mask], X[~mask])


def test_nan_stays_nan_and_unmarked(corrupt, X):
    X[::3, ::2] = np.nan
    data, mask = corrupt(X, random_state=0)
    np.testing.assert_array_equal(np.isnan(data), np.isnan(X))
    assert not mask[np.isnan(X)].any()
    assert mask.any()


@pytest.mark.parametrize("bad", [np.ones(54), np.ones((2, 3, 54))], ids=["1-D", "3-D"])
def test_data_that_is_no_matrix_is_refused(corrupt, bad):
    with pytest.raises(ValueError, match=r"2D array|dim 3"):
        corrupt(bad)


def test_infinite_data_is_refused(corrupt, X):
    X[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        corrupt(X)


# Salt and pepper.


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.333, 0.5, 1.0])
def test_salt_and_pepper_marks_the_exact_number_of_entries(X, fraction):
    _, mask = salt_and_pepper(X, fraction, random_state=0)
    assert mask.sum() == round(fraction * X.size)


def test_salt_and_pepper_marks_the_exact_share_of_observed_entries(X):
    X[:10] = np.nan
    _, mask = salt_and_pepper(X, 0.2, random_state=0)
    assert mask.sum() == round(0.2 * 30 * 54)


def test_salt_and_pepper_splits_evenly_into_maximum_and_zero(X):
    data, mask = salt_and_pepper(X, 0.5, random_state=0)
    assert (data[mask] == X.max()).sum() == 540
    assert (data[mask] == 0).sum() == 540


def test_salt_and_pepper_takes_values_from_the_caller(X):
    data, mask = salt_and_pepper(X, 0.5, salt=255.0, pepper=-1.0, random_state=0)
    assert set(data[mask]) == {255.0, -1.0}


def test_salt_and_pepper_marks_drawn_entries_that_keep_their_value():
    data, mask = salt_and_pepper(np.zeros((5, 8)), 0.5, random_state=0)
    assert mask.sum() == 20
    assert not data.any()


def test_salt_and_pepper_falls_everywhere_alike():
    """Every one of 20 entries is drawn 1000 times on average in 2000 draws; 5 standard deviations is 112."""
    generator = np.random.default_rng(0)
    counts = sum(salt_and_pepper(np.ones((4, 5)), 0.5, random_state=generator).mask.astype(int) for _ in range(2000))
    assert np.abs(counts - 1000).max() < 112


def test_salt_is_independent_of_position():
    """Among drawn entries, salt is as frequent in the first half of the samples as in the second."""
    data, mask = salt_and_pepper(np.ones((400, 100)), 0.5, salt=2.0, random_state=0)
    top = (data[:200][mask[:200]] == 2).mean()
    assert abs(top - 0.5) < 5 * 0.5 / np.sqrt(mask[:200].sum())


def test_salt_and_pepper_leaves_all_missing_data_alone():
    data, mask = salt_and_pepper(np.full((2, 3), np.nan), 0.5, random_state=0)
    assert np.isnan(data).all()
    assert not mask.any()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, np.nan, np.inf, "half"])
def test_salt_and_pepper_refuses_a_fraction_outside_the_unit_interval(X, fraction):
    with pytest.raises(ValueError, match=r"fraction must be a finite number in \[0, 1\]; got"):
        salt_and_pepper(X, fraction)


@pytest.mark.parametrize("name", ["salt", "pepper"])
def test_salt_and_pepper_refuses_infinite_values(X, name):
    with pytest.raises(ValueError, match=f"{name} must be a finite number; got inf"):
        salt_and_pepper(X, 0.1, **{name: np.inf})


# Dense noises.

# Excess kurtosis of each noise: it sets the sampling error of the standard deviation.
KURTOSIS = {"laplace": 3.0, "gaussian": 0.0}
DENSE = {"laplace": laplace, "gaussian": gaussian}


@pytest.fixture(params=DENSE)
def dense(request):
    return request.param, DENSE[request.param]


def test_noise_has_mean_zero_and_the_given_deviation(dense):
    """Within 5 standard errors: deviation / sqrt(n) and deviation * sqrt((kurtosis + 2) / 4n)."""
    name, noise = dense
    X = np.full((1000, 400), 1e4)
    residual = noise(X, 40.0, random_state=0).data - X
    assert abs(residual.mean()) < 5 * 40 / np.sqrt(X.size)
    assert abs(residual.std() - 40) < 5 * 40 * np.sqrt((KURTOSIS[name] + 2) / (4 * X.size))


def test_noise_has_the_shape_of_its_distribution(dense):
    """The fourth moment tells a Laplace variable (6) from a Gaussian one (3)."""
    name, noise = dense
    residual = noise(np.zeros((1000, 400)), 1.0, clip=False, random_state=0).data
    assert np.mean(residual**4) == pytest.approx(3 + KURTOSIS[name], rel=0.05)


def test_noise_is_clipped_at_zero_unless_told_otherwise(dense, X):
    _, noise = dense
    clipped, free = noise(X, 80.0, random_state=0), noise(X, 80.0, clip=False, random_state=0)
    assert clipped.data.min() == 0
    assert free.data.min() < 0
    np.testing.assert_array_equal(clipped.data, np.maximum(free.data, 0))


def test_noise_marks_exactly_the_changed_entries(dense):
    """Half of the zeros receive negative noise and are clipped back: they are not corrupted."""
    _, noise = dense
    X = np.zeros((100, 100))
    data, mask = noise(X, 1.0, random_state=0)
    np.testing.assert_array_equal(mask, data != X)
    assert abs(mask.mean() - 0.5) < 5 * 0.5 / 100


def test_noise_is_the_same_in_both_precisions(dense, X):
    _, noise = dense
    X = X.astype(np.float32)
    single, double = noise(X, 20.0, random_state=0), noise(X.astype(np.float64), 20.0, random_state=0)
    np.testing.assert_allclose(single.data, double.data, rtol=1e-6, atol=1e-5)


def test_noise_of_zero_deviation_changes_nothing(dense, X):
    _, noise = dense
    data, mask = noise(X, 0.0, random_state=0)
    np.testing.assert_array_equal(data, X)
    assert not mask.any()


@pytest.mark.parametrize("deviation", [-1.0, np.nan, np.inf, None])
def test_noise_refuses_a_bad_deviation(dense, X, deviation):
    _, noise = dense
    with pytest.raises(ValueError, match="deviation must be a finite number of at least 0; got"):
        noise(X, deviation)


# Block occlusion.


@pytest.mark.parametrize("size", [1, 3, 6])
def test_blocks_are_whole_squares_inside_the_image(X, size):
    """The marked rows and columns are runs of the given size, and every pixel of their product is marked."""
    _, mask = block_occlusion(X, size, IMAGE_SHAPE, random_state=0)
    for picture in mask.reshape(-1, *IMAGE_SHAPE):
        rows, columns = np.flatnonzero(picture.any(axis=1)), np.flatnonzero(picture.any(axis=0))
        np.testing.assert_array_equal(rows, np.arange(rows[0], rows[0] + size))
        np.testing.assert_array_equal(columns, np.arange(columns[0], columns[0] + size))
        assert picture.sum() == size**2


def test_blocks_reach_every_position_equally():
    """A 3 x 3 block has 4 x 7 positions in 6 x 9: 1000 of 28000 samples each, within 5 deviations."""
    _, mask = block_occlusion(np.ones((28_000, 54)), 3, IMAGE_SHAPE, random_state=0)
    corner = mask.argmax(axis=1)
    counts = np.bincount(corner, minlength=54).reshape(IMAGE_SHAPE)
    assert (counts[:4, :7] > 0).all()
    assert counts[4:].sum() == counts[:, 7:].sum() == 0
    assert np.abs(counts[:4, :7] - 1000).max() < 5 * np.sqrt(1000)


def test_blocks_have_the_given_value(X):
    data, mask = block_occlusion(X, 2, IMAGE_SHAPE, value=-7.0, random_state=0)
    assert (data[mask] == -7).all()


def test_blocks_are_550_by_default(X):
    data, mask = block_occlusion(X, 2, IMAGE_SHAPE, random_state=0)
    assert (data[mask] == 550).all()


def test_blocks_of_size_zero_change_nothing(X):
    data, mask = block_occlusion(X, 0, IMAGE_SHAPE, random_state=0)
    np.testing.assert_array_equal(data, X)
    assert not mask.any()


@pytest.mark.parametrize("size", [-1, 7, 2.0])
def test_blocks_refuse_a_size_that_does_not_fit(X, size):
    with pytest.raises(ValueError, match=r"size must be an integer in \[0, 6\] for images of 6 x 9; got"):
        block_occlusion(X, size, IMAGE_SHAPE)


@pytest.mark.parametrize("image_shape", [(6, 8), (54,), (6, 3, 3), (-6, -9)])
def test_blocks_refuse_an_image_shape_that_does_not_match(X, image_shape):
    with pytest.raises(ValueError, match=r"rows \* columns = n_features = 54; got"):
        block_occlusion(X, 2, image_shape)


def test_blocks_refuse_an_infinite_value(X):
    with pytest.raises(ValueError, match="value must be a finite number; got inf"):
        block_occlusion(X, 2, IMAGE_SHAPE, value=np.inf)
