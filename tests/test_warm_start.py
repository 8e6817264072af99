"""A fit with warm_start=True starts where the last one ended."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

from robustnmf import RobustNMF, TruncatedCauchyNMF, load
from robustnmf.errors import CheckpointError, IncompatibleError
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix
from robustnmf.metrics import relative_error

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def made(n_samples=60, seed=0):
    """Return samples of one and the same three components, some entries of which are wrong."""
    components = np.random.default_rng(99).gamma(1.0, size=(3, 20))
    rng = np.random.default_rng(seed)
    X = rng.gamma(1.0, size=(n_samples, 3)) @ components * (1 + 0.02 * rng.standard_normal((n_samples, 20)))
    X[rng.random(X.shape) < 0.05] *= 10
    return X


def plain(**parameters):
    """Return a fit whose start can be told from its first objective: least squares with one iteration."""
    return RobustNMF(3, method="l2", random_state=0, max_iter=1, tol=0, **parameters)


@pytest.fixture(scope="module")
def X():
    return made()


def half_squares(X, codes, components):
    return 0.5 * np.sum((X - codes @ components) ** 2)


def test_a_second_fit_starts_from_components_and_codes(X):
    model = plain(warm_start=True, sample_scaling=None)
    codes = model.fit_transform(X)
    explicit = plain(init=(codes, model.components_)).fit(X)
    model.fit(X)
    np.testing.assert_allclose(model.components_, explicit.components_, rtol=1e-12)
    np.testing.assert_allclose(model.history_["objective"], explicit.history_["objective"], rtol=1e-12)


def test_fits_of_one_iteration_come_down_one_after_the_other(X):
    model = plain(warm_start=True)
    errors = []
    for _ in range(8):
        codes = model.fit_transform(X)
        errors.append(half_squares(X, codes, model.components_))
    assert np.all(np.diff(errors) < 0)
    cold = plain()
    assert half_squares(X, cold.fit_transform(X), cold.components_) == errors[0]


@pytest.mark.parametrize("n_samples", [25, 100])
def test_samples_may_be_others_and_of_another_number(n_samples):
    model = plain(warm_start=True).fit(made())
    new = made(n_samples, seed=1)
    explicit = plain(init=(model.transform(new), model.components_)).fit(new)
    model.fit(new)
    np.testing.assert_allclose(model.components_, explicit.components_, rtol=1e-10)


@pytest.mark.parametrize(
    "parameters",
    [{"feature_scaling": "robust"}, {"sample_scaling": "total"}, {"alpha_W": 0.001}, {"noise": "poisson"}],
    ids=str,
)
def test_the_start_is_in_units_of_the_new_data(parameters):
    """Data in another unit is divided by another one: the fit must begin at the same place."""
    X = made()
    model = RobustNMF(3, random_state=0, warm_start=True, **parameters).fit(X)
    codes = model.transform(100 * X)
    explicit = clone(model).set_params(init=(codes, model.components_), warm_start=False).fit(100 * X)
    model.fit(100 * X)
    np.testing.assert_allclose(model.components_, explicit.components_, rtol=1e-5, atol=1e-7)


def test_a_robust_fit_of_more_samples_is_as_good_as_a_cold_one():
    model = RobustNMF(3, random_state=0, warm_start=True).fit(made())
    new = made(120, seed=2)
    cold = RobustNMF(3, random_state=0).fit(new)
    model.fit(new)
    assert relative_error(cold.clean(new), model.clean(new)) < 0.01


def test_the_method_may_change(X):
    model = TruncatedCauchyNMF(3, random_state=0, warm_start=True).fit(X)
    before = RobustNMF(3, method="l1", random_state=0, warm_start=True).fit(X)
    before.set_params(method="truncated-cauchy").fit(X)
    assert relative_error(model.clean(X), before.clean(X)) < 0.01


def test_methods_without_iterations_refuse_it(X):
    model = RobustNMF(3, method="near-separable", warm_start=True)
    with pytest.raises(IncompatibleError, match=r"does not iterate: warm_start must be False"):
        model.fit(X)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_other_values_are_refused(value, X):
    with pytest.raises(ValueError, match="warm_start must be True or False"):
        RobustNMF(3, warm_start=value).fit(X)


def test_another_shape_is_refused_and_leaves_the_model_as_it_was(X):
    model = plain(warm_start=True).fit(X)
    before = model.components_.copy()
    with pytest.raises(ValueError, match=r"the number of features was 20 there; got 19.*warm_start=False"):
        model.fit(X[:, 1:])
    with pytest.raises(ValueError, match=r"n_components was 3 there; got 4"):
        model.set_params(n_components=4).fit(X)
    model.set_params(n_components=3)
    assert model.n_features_in_ == 20
    np.testing.assert_array_equal(model.components_, before)
    model.set_params(n_components=4, warm_start=False).fit(X)
    assert model.components_.shape == (4, 20)


def test_a_rank_that_was_found_is_kept(X, monkeypatch):
    monkeypatch.setattr("robustnmf.algorithm.fit.find_rank", lambda *_, **__: SimpleNamespace(chosen=4))
    model = RobustNMF("auto", random_state=0, warm_start=True).fit(X)
    monkeypatch.setattr("robustnmf.algorithm.fit.find_rank", None)  # it is not searched for again
    assert model.fit(X).n_components_ == 4


def test_features_are_found_by_name(X):
    names = [f"f{i}" for i in range(20)]
    frame = pd.DataFrame(X, columns=names)
    model = plain(warm_start=True).fit(frame)
    with pytest.raises(ValueError, match=r"same names in the same order; feature 0 was 'f0', and is 'f19' now"):
        model.fit(frame[names[::-1]])
    labelled = plain(warm_start=True).fit(LabelledMatrix(X, features=Axis(names)))
    labelled.fit(LabelledMatrix(X[:, ::-1], features=Axis(names[::-1])))
    assert list(labelled.feature_names_in_) == names
    model.fit(frame)
    np.testing.assert_allclose(labelled.components_, model.components_, rtol=1e-12)


def test_clones_start_anew_and_keep_the_parameter(X):
    model = plain(warm_start=True).fit(X)
    first = model.components_.copy()
    model.fit(X)
    again = clone(model)
    assert again.get_params()["warm_start"] is True
    np.testing.assert_array_equal(again.fit(X).components_, first)
    assert not np.allclose(model.components_, first)


def test_saved_and_compact_models_go_on(X, tmp_path):
    model = plain(warm_start=True).fit(X)
    model.save(tmp_path / "model.robustnmf")
    loaded, light = load(tmp_path / "model.robustnmf"), model.compact()
    assert loaded.warm_start is True
    for each in (model, loaded, light):
        each.fit(X)
    np.testing.assert_array_equal(loaded.components_, model.components_)
    np.testing.assert_array_equal(light.components_, model.components_)


def test_fixed_components_stay_as_they_are(X):
    known = np.random.default_rng(5).random((1, 20))
    model = plain(warm_start=True, fixed_components=known).fit(X)
    errors = [model.reconstruction_err_]
    for _ in range(3):
        errors.append(model.fit(X).reconstruction_err_)
        np.testing.assert_array_equal(model.components_[:1], known)
    assert np.all(np.diff(errors) < 0)


def test_a_fit_after_batches_starts_from_their_components(X):
    model = TruncatedCauchyNMF(3, random_state=0, warm_start=True).partial_fit(X[:30]).partial_fit(X[30:])
    codes, components = model.transform(X), model.components_.copy()
    explicit = TruncatedCauchyNMF(3, random_state=0, init=(codes, components)).fit(X)
    model.fit(X)
    np.testing.assert_allclose(model.components_, explicit.components_, rtol=1e-6, atol=1e-9)


def test_there_is_one_start(X):
    model = plain(warm_start=True, n_init=3).fit(X)
    one = plain(warm_start=True).fit(X)
    one.components_, one._basis = model.components_, model._basis
    np.testing.assert_array_equal(model.fit(X).components_, one.fit(X).components_)


@pytest.mark.parametrize("kind", [np.float32, sparse.csr_array])
def test_data_of_another_kind_goes_on_too(X, kind):
    new = X.astype(kind) if kind is np.float32 else kind(X)
    model, expected = plain(warm_start=True).fit(X), plain(warm_start=True).fit(X)
    model.fit(new)
    assert model.components_.dtype == new.dtype
    np.testing.assert_allclose(model.components_, expected.fit(X).components_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ["stream", "sparse"])
def test_engines_that_work_by_blocks_start_there_too(X, engine):
    model, expected = plain(warm_start=True, engine=engine), plain(warm_start=True)
    given = sparse.csr_array(X) if engine == "sparse" else X
    for _ in range(2):
        model.fit(given)
        expected.fit(X)
    np.testing.assert_allclose(model.components_, expected.components_, rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match="the number of features was 20 there"):
        model.fit(given[:, 1:])


def test_a_checkpoint_is_that_of_its_start(X, tmp_path):
    model = RobustNMF(3, random_state=0, warm_start=True, checkpoint=tmp_path / "one").fit(X)
    cold = RobustNMF(3, random_state=0, checkpoint=tmp_path / "one").fit(X)  # the same fit
    np.testing.assert_array_equal(cold.components_, model.components_)
    with pytest.raises(CheckpointError, match="components of the last fit"):
        model.fit(X)
    model.save(tmp_path / "model.robustnmf")
    resumed = load(tmp_path / "model.robustnmf").set_params(checkpoint=tmp_path / "two")
    model.set_params(checkpoint=tmp_path / "two").fit(X)
    np.testing.assert_array_equal(resumed.fit(X).components_, model.components_)


def test_uncertainties_and_weights_may_come_and_go(X):
    model = RobustNMF(3, random_state=0, warm_start=True).fit(X)
    model.fit(X, uncertainties=np.full(X.shape, 0.5))
    model.fit(X, weights=np.ones(X.shape))
    cold = RobustNMF(3, random_state=0).fit(X)
    assert relative_error(cold.clean(X), model.clean(X)) < 0.01
