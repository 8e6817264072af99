"""A value that many entries share and that the others do not predict: covers of one colour, codes, saturation."""

import copy
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import NMF

import robustnmf
from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.data.repeated_values import find_repeated_value
from robustnmf.datasets import load_orl
from robustnmf.errors import DataQualityWarning, IncompatibleError
from robustnmf.metrics import relative_error

SIDE, COVER = 16, 5


@pytest.fixture(scope="module")
def faces():
    """120 faces of 16 x 16 pixels."""
    images = load_orl().data[:120].reshape(-1, SIDE, 2, SIDE, 2).mean(axis=(2, 4))
    return np.rint(images).reshape(len(images), -1).astype(np.float64)


def covered(faces, value, share=1.0, seed=0):
    """Return faces with a square of one value each, and where it is."""
    rng, mask = np.random.default_rng(seed), np.zeros((len(faces), SIDE, SIDE), dtype=bool)
    for i in np.flatnonzero(rng.random(len(mask)) < share):
        row, column = rng.integers(0, SIDE - COVER + 1, size=2)
        mask[i, row : row + COVER, column : column + COVER] = True
    mask = mask.reshape(len(faces), -1)
    return np.where(mask, value, faces), mask


def default_fit(X, rank=10, **options):
    with pytest.warns(DataQualityWarning, match="do not predict it"):
        return TruncatedCauchyNMF(rank, random_state=0, **options).fit(X)


@pytest.fixture(scope="module", params=[0.0, 255.0], ids=["black", "white"])
def covers(request, faces):
    X, mask = covered(faces, request.param)
    return X, mask, default_fit(X)


def test_covers_of_one_colour_are_outliers(covers, faces):
    X, mask, model = covers
    assert model.outliers_[mask].all()
    assert np.mean(model.outliers_[~mask]) < 0.03
    plain = NMF(10, random_state=0, max_iter=300)
    ours = relative_error(faces, model.transform(X) @ model.components_)
    assert ours < 0.7 * relative_error(faces, plain.fit_transform(X) @ plain.components_)


def test_rejected_value_is_known_to_new_data(covers):
    X, mask, model = covers
    assert np.unique(model.rejected_values_).tolist() == [X[mask][0]]
    np.testing.assert_array_equal(model.outlier_mask(X), model.outliers_)
    cleaned = model.clean(X)
    assert not np.any(cleaned[mask] == X[mask])
    np.testing.assert_array_equal(cleaned[~model.outliers_], X[~model.outliers_])
    # The code of a covered sample is that of the sample with gaps in its place.
    np.testing.assert_allclose(model.transform(X), model.transform(np.where(mask, np.nan, X)), rtol=1e-9)


def test_rejected_value_is_stored(covers, tmp_path):
    X, _, model = covers
    model.save(tmp_path / "model.rnmf")
    stored = robustnmf.load(tmp_path / "model.rnmf")
    np.testing.assert_array_equal(stored.rejected_values_, model.rejected_values_)
    np.testing.assert_array_equal(stored.outlier_mask(X), model.outliers_)


def test_refit_keeps_the_rejected_value(covers):
    X, mask, model = covers
    again = robustnmf.RobustNMF.refit(default_fit(X), X)
    np.testing.assert_array_equal(again.rejected_values_, model.rejected_values_)
    assert again.outliers_[mask].all()


def test_repeated_values_may_be_data(faces):
    X, mask = covered(faces, 0.0)
    model = TruncatedCauchyNMF(10, random_state=0, repeated_values="data").fit(X)
    assert model.rejected_values_ is None
    assert model.outliers_[mask].mean() < 0.5  # which is why there is a rule


def test_cover_of_some_samples_and_gaps_elsewhere(faces):
    X, mask = covered(faces, 0.0, share=0.4)
    gaps = np.random.default_rng(1).random(X.shape) < 0.05
    model = default_fit(np.where(gaps, np.nan, X))
    assert model.outliers_[mask & ~gaps].all()
    assert not model.outliers_[gaps].any()  # what is missing is no outlier, though it is worked on as zero


@pytest.mark.parametrize("engine", ["numpy", "torch", "stream"])
def test_engines_reject_the_same_value(faces, engine):
    if engine == "torch":
        pytest.importorskip("torch")
    X, mask = covered(faces, 255.0)
    model = default_fit(X.astype(np.float32), engine=engine)
    assert np.asarray(model.outliers_)[mask].all()
    assert np.asarray(model.outliers_)[~mask].mean() < 0.03


def test_gross_errors_of_one_value_are_left_to_the_weights(faces):
    mask = np.random.default_rng(0).random(faces.shape) < 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataQualityWarning)
        model = TruncatedCauchyNMF(10, random_state=0).fit(np.where(mask, 600.0, faces))
    assert model.rejected_values_ is None
    assert model.outliers_[mask].all()


def test_saturation_does_not_make_a_fit_reject_the_largest_feature():
    rng = np.random.default_rng(0)
    codes, components = rng.gamma(1.0, size=(200, 4)), rng.gamma(1.0, size=(4, 60))
    components[0], components[:, 0] = 0, 0
    components[0, 0] = 20  # has a component of its own
    clean = codes @ components * rng.lognormal(sigma=0.05, size=(200, 60))
    hit = (np.arange(60) - rng.integers(48, size=(200, 1))) // 12 == 0
    hit &= rng.random((200, 1)) < 0.5
    model = default_fit(np.where(hit, 3 * clean.max(), clean), rank=4)
    np.testing.assert_array_equal(model.outliers_, hit)
    predicted = model.inverse_transform(model.transform(clean))
    assert relative_error(clean, np.where(hit, clean, predicted)) < 0.05


@pytest.mark.parametrize("largest", [9, 40])
def test_largest_of_many_counts_that_are_mostly_zero_is_suspected(largest):
    rng = np.random.default_rng(0)
    X = rng.poisson(rng.gamma(0.3, 2.0, (100, 1)) * rng.gamma(0.5, 2.0, (1, 50))).astype(float)
    X[X >= largest] = 0
    X[:, 10] = rng.integers(largest, size=100)  # all of the values occur
    assert find_repeated_value(X, None) is None
    X[rng.random(X.shape) < 0.05] = largest
    assert np.nanmax(find_repeated_value(X, None).of_features) == largest


def test_value_that_the_others_predict_is_data():
    rng = np.random.default_rng(0)
    X = rng.dirichlet(np.ones(4), size=200) @ rng.gamma(2.0, size=(4, 40))
    X *= rng.lognormal(sigma=0.3, size=X.shape)
    limit = np.quantile(X, 0.2)
    below = np.maximum(X, limit)  # a limit of detection
    assert np.nanmax(find_repeated_value(below, None).of_features) == limit
    model = TruncatedCauchyNMF(4, random_state=0).fit(below)
    assert model.rejected_values_ is None


@pytest.mark.parametrize("of", ["faces", "background", "frame", "ratings", "few"])
def test_value_is_not_suspected(of, faces):
    rng = np.random.default_rng(0)
    X = faces.copy()
    if of == "background":  # samples of which most is one value
        X[rng.random(len(X)) < 0.2] = 0.0
    elif of == "frame":  # features of which most is one value
        X.reshape(-1, SIDE, SIDE)[:, :3] = 0.0
    elif of == "ratings":
        X = rng.choice([1.0, 2.0, 3.0, 4.0, 5.0], p=[0.05, 0.05, 0.1, 0.3, 0.5], size=(100, 30))
    elif of == "few":
        X[rng.random(X.shape) < 0.005] = 0.0
    assert find_repeated_value(X, None) is None


def test_suspected_value_leaves_out_features_that_have_it_by_nature(faces):
    X, _ = covered(faces, 0.0)
    X[:, :20] = np.where(np.random.default_rng(0).random((len(X), 20)) < 0.7, 0.0, X[:, :20])
    values = find_repeated_value(X, None).of_features
    assert np.isnan(values[:20]).all()
    assert (values[20:] == 0).all()


def test_cover_of_the_same_place_of_some_samples(faces):
    mask = np.zeros((len(faces), SIDE, SIDE), dtype=bool)
    mask[::4, SIDE // 2 :] = True  # half of the image, in a quarter of them
    mask = mask.reshape(len(faces), -1)
    X = np.where(mask, 0.0, faces)
    assert not find_repeated_value(X, None).is_spread
    assert default_fit(X).outliers_[mask].all()


def test_values_that_were_set_to_a_limit_are_data(faces):
    X = np.maximum(faces - 60, 0)  # the black point of images
    assert find_repeated_value(X, None) is not None
    assert TruncatedCauchyNMF(10, random_state=0).fit(X).rejected_values_ is None


def test_sparse_engine_cannot_leave_out_a_value(covers):
    X, _, model = covers
    with pytest.raises(IncompatibleError, match=r"X must be dense: pass X\.toarray\(\)"):
        clone_with(model, engine="sparse").transform(sparse.csr_array(X))


def clone_with(model, **parameters):
    """Return a fitted copy with other parameters."""
    return copy.copy(model).set_params(**parameters)


def test_value_is_found_whatever_the_number_of_features():
    X = np.random.default_rng(0).random((30_000, 9)) + 1  # more entries than are looked at
    X[:3000, 4] = 0.0
    assert find_repeated_value(X, None).of_features.tolist() == [0.0] * 9


def test_repeated_values_must_be_known():
    with pytest.raises(ValueError, match="repeated_values must be 'auto' or 'data'; got 'none'"):
        RobustNMF(2, repeated_values="none").fit(np.ones((5, 4)))
