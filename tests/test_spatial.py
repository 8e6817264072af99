"""Spatial outlier rules: what they mark, compared with thresholds pixel by pixel."""

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from robustnmf.engines import NumPyEngine
from robustnmf.model.outliers import MADRule, NoRejection, OutlierRule, ThreeSigma
from robustnmf.model.spatial import MedianFilterRule, MRFRule

SHAPE = (20, 18)
N_PIXELS = SHAPE[0] * SHAPE[1]
RULES = [MRFRule(SHAPE), MedianFilterRule(SHAPE)]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
engine = NumPyEngine()


def f1(found, truth):
    return 2 * np.sum(found & truth) / (found.sum() + truth.sum())


@pytest.fixture
def occluded():
    """Residual magnitudes of 10 images with a block that has holes, and specks around it; and the block."""
    rng = np.random.default_rng(0)
    truth = np.zeros((10, *SHAPE), dtype=bool)
    for image in truth:
        top, left = rng.integers(1, 10), rng.integers(1, 8)
        image[top : top + 9, left : left + 9] = True
    magnitudes = np.abs(rng.laplace(size=truth.shape))
    hole, speck = rng.random((2, *truth.shape))
    magnitudes = np.where(truth & (hole > 0.15), 8 + 20 * rng.random(truth.shape), magnitudes)
    magnitudes = np.where(~truth & (speck < 0.04), 6 + 4 * rng.random(truth.shape), magnitudes)
    return magnitudes.reshape(10, N_PIXELS), truth.reshape(10, N_PIXELS)


def blocks(magnitudes):
    return [magnitudes[:4], magnitudes[4:]]


@each_rule
class TestEachRule:
    def test_is_an_outlier_rule_and_a_value(self, rule):
        assert isinstance(rule, OutlierRule)
        assert pickle.loads(pickle.dumps(rule)) == rule
        assert hash(rule) == hash(type(rule)(SHAPE))
        with pytest.raises((FrozenInstanceError, AttributeError)):
            rule.image_shape = (1, 1)

    def test_thresholds_are_those_of_the_base(self, rule, occluded):
        for base in (MADRule(), ThreeSigma(axis="feature")):
            A = blocks(occluded[0])
            np.testing.assert_array_equal(type(rule)(SHAPE, base)(A, None, 1.0, engine), base(A, None, 1.0, engine))
        assert type(rule)(SHAPE, NoRejection())(A, None, 1.0, engine) is None

    def test_occlusion_with_holes_and_specks_is_found_better_than_by_the_threshold(self, rule, occluded):
        magnitudes, truth = occluded
        thresholds = rule(blocks(magnitudes), None, 1.0, engine)
        assert f1(rule.mask(magnitudes, None, thresholds, np), truth) > 0.05 + f1(magnitudes > thresholds, truth)

    def test_scaling_magnitudes_and_thresholds_together_changes_nothing(self, rule, occluded):
        magnitudes = occluded[0]
        thresholds = np.random.default_rng(1).uniform(3, 8, N_PIXELS)
        expected = rule.mask(magnitudes, None, thresholds, np)
        assert 0 < expected.mean() < 1
        for factor in (2.0**-600, 0.25, 2.0**900):
            found = rule.mask(factor * magnitudes, None, factor * thresholds, np)
            np.testing.assert_array_equal(found, expected)

    def test_missing_entries_are_never_marked_and_do_not_count(self, rule, occluded):
        magnitudes, _ = occluded
        M = (np.random.default_rng(2).random(magnitudes.shape) < 0.6).astype(float)
        found = rule.mask(magnitudes, M, 5.0, np)
        assert found.any() and not found[M == 0].any()
        for garbage in (0.0, 1e6, np.nan):
            np.testing.assert_array_equal(rule.mask(np.where(M == 0, garbage, magnitudes), 3 * M, 5.0, np), found)

    def test_cutting_the_block_of_samples_changes_nothing(self, rule, occluded):
        magnitudes = occluded[0]
        parts = [rule.mask(part, None, 5.0, np) for part in blocks(magnitudes)]
        np.testing.assert_array_equal(np.concatenate(parts), rule.mask(magnitudes, None, 5.0, np))

    def test_engine_maps_the_mask_over_blocks(self, rule, occluded):
        magnitudes = occluded[0]
        masks = engine.map(rule.mask, blocks(magnitudes), None, thresholds=5.0)
        np.testing.assert_array_equal(engine.join(masks), rule.mask(magnitudes, None, 5.0, np))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_mask_is_boolean_and_shaped_like_the_block(self, rule, occluded, dtype):
        found = rule.mask(occluded[0].astype(dtype), None, np.full(N_PIXELS, 5, dtype=dtype), np)
        assert found.dtype == bool and found.shape == occluded[0].shape

    @pytest.mark.parametrize("thresholds", [None, np.inf])
    def test_nothing_is_cut_without_thresholds(self, rule, occluded, thresholds):
        assert not rule.mask(occluded[0], None, thresholds, np).any()

    def test_threshold_zero_cuts_all_that_is_not_zero(self, rule):
        magnitudes = np.ones((1, N_PIXELS))
        assert rule.mask(magnitudes, None, 0.0, np).all()
        assert not rule.mask(0 * magnitudes, None, 0.0, np).any()

    def test_shape_that_does_not_fit_is_refused(self, rule):
        with pytest.raises(ValueError, match=r"n_features = 7; got \(20, 18\)"):
            rule.mask(np.ones((2, 7)), None, 1.0, np)

    @pytest.mark.parametrize("shape", [(3,), (3, 0), (3, -2), (2.0, 3), 6, [2, 3], None])
    def test_bad_shape_is_refused(self, rule, shape):
        with pytest.raises(ValueError, match="image_shape must be"):
            type(rule)(shape)

    def test_base_that_is_no_rule_is_refused(self, rule):
        with pytest.raises(TypeError, match="base must be an outlier rule"):
            type(rule)(SHAPE, "mad")


def test_mask_of_the_random_field_without_smoothness_is_the_threshold(occluded):
    magnitudes = occluded[0]
    np.testing.assert_array_equal(MRFRule(SHAPE, smoothness=0.0).mask(magnitudes, None, 5.0, np), magnitudes > 5.0)


def test_mask_of_a_window_of_one_pixel_is_the_threshold(occluded):
    magnitudes = occluded[0]
    np.testing.assert_array_equal(MedianFilterRule(SHAPE, size=1).mask(magnitudes, None, 5.0, np), magnitudes > 5.0)


@pytest.mark.parametrize("smoothness", [0.3, 0.5, 2.0])
def test_lone_pixel_is_cut_beyond_1_plus_4_smoothness_thresholds(smoothness):
    rule, limit = MRFRule((5, 5), smoothness=smoothness), 2.0 * (1 + 4 * smoothness)
    magnitudes = np.zeros((2, 25))
    magnitudes[:, 12] = limit * np.array([0.999, 1.001])
    expected = np.zeros((2, 25), dtype=bool)
    expected[1, 12] = True
    np.testing.assert_array_equal(rule.mask(magnitudes, None, 2.0, np), expected)


def test_weights_that_are_not_zero_do_not_matter(occluded):
    magnitudes = occluded[0]
    M = np.random.default_rng(3).uniform(0.1, 5, magnitudes.shape)
    for rule in RULES:
        np.testing.assert_array_equal(rule.mask(magnitudes, M, 5.0, np), rule.mask(magnitudes, None, 5.0, np))


@pytest.mark.parametrize("smoothness", [-1.0, np.inf, np.nan, True])
def test_bad_smoothness_is_refused(smoothness):
    with pytest.raises(ValueError, match="smoothness must be"):
        MRFRule(SHAPE, smoothness=smoothness)


@pytest.mark.parametrize("size", [0, 4, 3.0, True])
def test_bad_size_is_refused(size):
    with pytest.raises(ValueError, match="size must be"):
        MedianFilterRule(SHAPE, size=size)


def test_torch_arrays_give_torch_masks(occluded):
    torch = pytest.importorskip("torch")
    import array_api_compat.torch as xp

    for rule in RULES:
        found = rule.mask(torch.tensor(occluded[0]), None, torch.tensor(5.0), xp)
        np.testing.assert_array_equal(found.numpy(), rule.mask(occluded[0], None, 5.0, np))
