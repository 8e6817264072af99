"""Outlier rules that judge whole images, inside a fit."""

import numpy as np
import pytest

from robustnmf import RobustNMF
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion
from robustnmf.errors import IncompatibleError
from robustnmf.metrics import outlier_scores

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

faces = load_orl()
X, truth = block_occlusion(faces.data[:60], 12, faces.image_shape, random_state=0)


def fit(outliers, **options):
    options = {"image_shape": faces.image_shape, "max_iter": 20} | options
    return RobustNMF(8, outliers=outliers, random_state=0, **options).fit(X)


@pytest.fixture(scope="module")
def models():
    return {rule: fit(rule, schedule="plain") for rule in ("mad", "median-filter", "mrf")}


@pytest.mark.parametrize("rule", ["median-filter", "mrf"])
def test_spatial_rules_find_blocks_better_than_thresholds(rule, models):
    f1 = {name: outlier_scores(truth, model.outliers_).f1 for name, model in models.items()}
    assert f1[rule] > f1["mad"] + 0.01


@pytest.mark.parametrize("rule", ["median-filter", "mrf"])
def test_masks_of_training_images_are_those_of_the_fit(rule, models):
    np.testing.assert_array_equal(models[rule].outlier_mask(X), models[rule].outliers_)


@pytest.mark.parametrize("rule", ["median-filter", "mrf"])
def test_missing_pixels_are_never_marked(rule):
    gaps = X.copy()
    gaps[1:, ::7] = np.nan
    model = RobustNMF(8, outliers=rule, image_shape=faces.image_shape, max_iter=3, random_state=0).fit(gaps)
    assert not model.outliers_[1:, ::7].any()


def test_image_shape_is_needed():
    with pytest.raises(ValueError, match=r"pass image_shape=\(rows, columns\)"):
        fit("mrf", image_shape=None)


def test_image_shape_must_fit_the_features():
    with pytest.raises(ValueError, match="n_features = 1024"):
        fit("mrf", image_shape=(10, 10))


def test_models_of_whole_samples_refuse_spatial_rules():
    with pytest.raises(IncompatibleError, match="weighs whole samples"):
        fit("mrf", method="l21")
