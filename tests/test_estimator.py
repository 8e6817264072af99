"""Claims about the scikit-learn face: conventions, containers, parts, interruption, transform, clean and score."""

import pickle
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted

from conftest import make_data
from robustnmf import METHODS, RobustNMF, TruncatedCauchyNMF, load
from robustnmf.algorithm.initializers import MedianStart, RandomStart
from robustnmf.errors import IncompatibleError
from robustnmf.methods import INITIALIZERS, OUTLIERS, SCALES, SOLVERS
from robustnmf.model.outliers import MADRule
from robustnmf.model.scales import MAD, FixedScale
from robustnmf.solvers import HALS, Nesterov

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RANK, N_SAMPLES, N_FEATURES = 3, 30, 20
NAMES = [f"channel {j}" for j in range(N_FEATURES)]
ROUNDING = {np.float64: 1e-9, np.float32: 1e-3}

each_class = pytest.mark.parametrize("cls", [RobustNMF, TruncatedCauchyNMF])
each_preset = pytest.mark.parametrize("preset", ["default", "published"])
each_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32])


class Data(NamedTuple):
    X: np.ndarray
    clean: np.ndarray
    outliers: np.ndarray


@pytest.fixture(scope="module")
def data():
    """Low-rank data with slight noise, one entry in ten far off."""
    rng = np.random.default_rng(0)
    clean = rng.random((N_SAMPLES, RANK)) @ rng.random((RANK, N_FEATURES))
    clean += 0.01 * rng.random(clean.shape)
    outliers = rng.random(clean.shape) < 0.1
    X = np.where(outliers, 2 + 5 * rng.random(clean.shape), clean)
    for array in (X, clean, outliers):
        array.setflags(write=False)  # shared by all tests
    return Data(X, clean, outliers)


@pytest.fixture(scope="module")
def X(data):
    return data.X


@pytest.fixture
def frame(X):
    return pd.DataFrame(X, columns=NAMES, index=[f"sample {i}" for i in range(N_SAMPLES)])


@pytest.fixture(scope="module")
def fitted(data):
    """A model whose basis is good: fitted long enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make(max_iter=100).fit(data.X)


def make(cls=RobustNMF, **parameters):
    return cls(**{"n_components": RANK, "random_state": 0, "max_iter": 15} | parameters)


def fitted_attributes(model):
    return {name: value for name, value in vars(model).items() if name.endswith("_") and not name.startswith("_")}


def assert_same_fit(first, second, rtol=0.0):
    """The outcome of two fits is the same, bit by bit if `rtol` is zero; times apart."""
    assert first.n_iter_ == second.n_iter_
    np.testing.assert_array_equal(first.outliers_, second.outliers_)
    for name in ("components_", "weights_", "thresholds_", "scale_", "objective_", "reconstruction_err_"):
        left, right = getattr(first, name), getattr(second, name)
        np.testing.assert_allclose(left, right, rtol=rtol, atol=rtol * np.max(np.abs(right)), err_msg=name)


# Conventions of scikit-learn.


@pytest.mark.thinned(2)  # the number of checks is odd: each is made of one of the two
@parametrize_with_checks([RobustNMF(max_iter=30), TruncatedCauchyNMF(max_iter=30)])
def test_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.thinned(9)
@parametrize_with_checks([RobustNMF(method=method, max_iter=30) for method in METHODS if method != "truncated-cauchy"])
def test_every_method_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@each_class
def test_parameters_are_stored_untouched(cls):
    given = {name: object() for name in cls().get_params()}
    assert cls(**given).get_params() == given


@each_class
@each_preset
def test_parameters_are_untouched_by_fit(cls, preset, X):
    model = make(cls, preset=preset, scale=0.1, init=MedianStart())
    before = dict(model.get_params())
    model.fit(X)
    assert all(model.get_params()[name] is value for name, value in before.items())


def test_data_and_weights_are_untouched_by_fit_and_transform(X):
    ours, weights = X.copy(), np.ones_like(X)
    ours[3, 4], weights[5, 6] = np.nan, 0
    before = ours.copy(), weights.copy()
    make().fit(ours, weights=weights).clean(ours, weights=weights)
    np.testing.assert_array_equal(ours, before[0])
    np.testing.assert_array_equal(weights, before[1])


@each_class
def test_clone_has_the_parameters_and_is_not_fitted(cls, X):
    model = make(cls, preset="published", solver=HALS(max_iter=2)).fit(X)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not fitted_attributes(copy)


def test_truncated_cauchy_is_the_method_of_that_name(X):
    assert_same_fit(make(TruncatedCauchyNMF).fit(X), make(RobustNMF, method="truncated-cauchy").fit(X))


@each_class
@each_dtype
def test_pickling_gives_the_same_transform(cls, dtype, X):
    X = X.astype(dtype)
    model = make(cls).fit(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.clean(X), model.clean(X))


@each_class
def test_pipeline_ends_with_the_codes(cls, X):
    model = make(cls)
    halved = FunctionTransformer(lambda X: X / 2)
    codes = make_pipeline(halved, model).fit_transform(X)
    np.testing.assert_array_equal(codes, clone(model).fit_transform(X / 2))


@each_class
def test_grid_search_finds_the_rank(cls, data):
    search = GridSearchCV(make(cls, max_iter=50), {"n_components": [1, 2, RANK]}, cv=3).fit(data.X)
    assert search.best_params_ == {"n_components": RANK}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# Metadata routing.


@pytest.fixture
def half_weights(X):
    """Weights that leave out every other feature of the first half of the samples."""
    weights = np.ones_like(X)
    weights[: N_SAMPLES // 2, ::2] = 0
    return weights


def test_routed_weights_reach_fit_in_a_pipeline(X, half_weights):
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = Pipeline([("scale", FunctionTransformer()), ("nmf", make().set_fit_request(weights=True))])
        pipeline.fit(X, weights=half_weights)
    assert_same_fit(pipeline["nmf"], make().fit(X, weights=half_weights))


def test_routed_weights_change_the_result(X, half_weights):
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(make().set_fit_request(weights=True)).fit(X, weights=half_weights)
    assert np.abs(pipeline[-1].components_ - make().fit(X).components_).max() > 1e-3


def test_routed_weights_reach_transform_in_a_pipeline(X, half_weights):
    with sklearn.config_context(enable_metadata_routing=True):
        model = make().set_fit_request(weights=True).set_transform_request(weights=True)
        pipeline = make_pipeline(model).fit(X, weights=half_weights)
        codes = pipeline.transform(X, weights=half_weights)
    np.testing.assert_array_equal(codes, pipeline[-1].transform(X, weights=half_weights))
    assert not np.array_equal(codes, pipeline[-1].transform(X))


def test_weights_that_were_not_requested_are_refused(X, half_weights):
    with (
        sklearn.config_context(enable_metadata_routing=True),
        pytest.raises(ValueError, match=r"\[weights\] are passed but are not explicitly set as requested"),
    ):
        make_pipeline(make()).fit(X, weights=half_weights)


# Data frames in and out.


@each_class
def test_feature_names_are_those_of_the_class(cls, X):
    names = make(cls).fit(X).get_feature_names_out()
    assert names.tolist() == [f"{cls.__name__.lower()}{k}" for k in range(RANK)]


@each_class
def test_set_output_pandas_keeps_the_index(cls, frame):
    codes = make(cls).set_output(transform="pandas").fit_transform(frame)
    assert codes.index.equals(frame.index)
    assert codes.columns.tolist() == [f"{cls.__name__.lower()}{k}" for k in range(RANK)]
    np.testing.assert_array_equal(codes, make(cls).fit_transform(frame))


@each_class
def test_set_output_polars_holds_the_codes(cls, frame):
    codes = make(cls).set_output(transform="polars").fit(frame).transform(frame)
    assert isinstance(codes, pl.DataFrame)
    assert codes.columns == [f"{cls.__name__.lower()}{k}" for k in range(RANK)]
    np.testing.assert_array_equal(codes.to_numpy(), make(cls).fit_transform(frame))


@pytest.fixture(params=["pandas", "polars"])
def table(request, frame):
    return frame if request.param == "pandas" else pl.DataFrame(frame.to_numpy(), schema=NAMES)


def test_data_frame_gives_the_fit_of_its_values(table, X):
    assert_same_fit(make().fit(table), make().fit(X))


def test_data_frame_leaves_its_feature_names(table):
    assert make().fit(table).feature_names_in_.tolist() == NAMES


def test_data_frame_with_other_feature_names_is_refused(table):
    model = make().fit(table)
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(table[NAMES[::-1]])


@pytest.mark.parametrize("method", ["clean", "outlier_mask"])
def test_data_frame_comes_back_with_its_labels(method, table, X):
    model = make().fit(table)
    result = getattr(model, method)(table)
    assert type(result) is type(table)
    assert list(result.columns) == NAMES
    if isinstance(table, pd.DataFrame):
        assert result.index.equals(table.index)
    np.testing.assert_array_equal(result.to_numpy(), getattr(make().fit(X), method)(X))


def test_weights_may_be_a_data_frame(frame, X, half_weights):
    weights = pd.DataFrame(half_weights, index=frame.index, columns=frame.columns)
    assert_same_fit(make().fit(frame, weights=weights), make().fit(X, weights=half_weights))


# Fitted attributes.


@each_class
@each_preset
@each_dtype
def test_fitted_attributes_have_the_documented_shapes_and_dtypes(cls, preset, dtype, X):
    model = make(cls, preset=preset).fit(X.astype(dtype))
    arrays = {name: value for name, value in fitted_attributes(model).items() if isinstance(value, np.ndarray)}
    assert {name: (array.shape, array.dtype.type) for name, array in arrays.items()} == {
        "components_": ((RANK, N_FEATURES), dtype),
        "thresholds_": ((N_FEATURES,), dtype),
        "outliers_": ((N_SAMPLES, N_FEATURES), np.bool_),
        "weights_": ((N_SAMPLES, N_FEATURES), dtype),
    }


@each_class
def test_fitted_attributes_are_those_of_the_docstring(cls, frame):
    documented = RobustNMF.__doc__.split("Attributes\n")[1].split("Notes\n")[0]
    names = {line.split(" : ")[0].strip() for line in documented.splitlines() if "_ : " in line}
    assert set(fitted_attributes(make(cls).fit(frame))) == names - {"sparse_errors_"}
    model = make(method="rnmf-l1").fit(frame)
    assert set(fitted_attributes(model)) == names
    assert set(fitted_attributes(model.set_params(method="l2").fit(frame))) == names - {"sparse_errors_"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("scale_", float),
        ("objective_", float),
        ("reconstruction_err_", float),
        ("n_iter_", int),
        ("n_components_", int),
        ("n_features_in_", int),
        ("converged_", bool),
    ],
)
def test_fitted_numbers_have_the_documented_type(name, kind, fitted):
    assert type(getattr(fitted, name)) is kind


def test_components_are_non_negative_with_maximum_one(fitted):
    assert fitted.components_.min() >= 0
    np.testing.assert_array_equal(fitted.components_.max(axis=1), 1)


def test_weights_are_between_zero_and_one(fitted):
    assert fitted.weights_.min() == 0
    assert fitted.weights_.max() <= 1


def test_outliers_are_the_entries_of_weight_zero(fitted):
    np.testing.assert_array_equal(fitted.outliers_, fitted.weights_ == 0)


def test_gross_errors_are_found(fitted, data):
    assert fitted.outliers_[data.outliers].all()
    assert fitted.outliers_[~data.outliers].mean() < 0.1


@pytest.mark.parametrize("outliers", ["auto", "mad-feature", "three-sigma", 4.0])
def test_outliers_are_the_residuals_beyond_the_thresholds(outliers, X):
    model = make(outliers=outliers, **({"noise": None} if outliers == "auto" else {}))
    residuals = np.abs(X - model.fit_transform(X) @ model.components_)
    np.testing.assert_array_equal(model.outliers_, residuals > model.thresholds_)


def test_thresholds_are_infinite_if_nothing_is_cut(X):
    assert np.isposinf(make(method="cauchy").fit(X).thresholds_).all()


def test_reconstruction_error_is_that_of_the_inliers(fitted, X):
    residuals = (X - fitted.transform(X) @ fitted.components_)[~fitted.outliers_]
    assert fitted.reconstruction_err_ == pytest.approx(np.linalg.norm(residuals))


def test_history_has_a_row_for_the_start_and_for_every_iteration(fitted):
    columns = {"objective", "scale", "outlier_share", "seconds", "relative_change"}
    assert set(fitted.history_) == columns
    assert {len(column) for column in fitted.history_.values()} == {fitted.n_iter_ + 1}


def test_history_ends_at_the_fitted_scale(fitted):
    assert fitted.history_["scale"][-1] == pytest.approx(fitted.scale_, rel=1e-2)


@each_dtype
def test_results_have_the_dtype_of_the_data(dtype, X):
    X = X.astype(dtype)
    model = make()
    results = {
        "fit_transform": model.fit_transform(X),
        "transform": model.transform(X),
        "inverse_transform": model.inverse_transform(model.transform(X)),
        "clean": model.clean(X),
    }
    assert {name: result.dtype.type for name, result in results.items()} == dict.fromkeys(results, dtype)


# Convergence, progress, callback, interruption.


@each_class
def test_reaching_max_iter_warns(cls, X):
    model = make(cls, max_iter=3, tol=1e-12)
    with pytest.warns(ConvergenceWarning, match=f"{cls.__name__} did not converge in 3 iterations") as caught:
        model.fit(X)
    assert "tol is 1.0e-12" in str(caught[0].message)
    assert not model.converged_


def test_warning_names_the_last_relative_change_that_is_known(X):
    model = make(max_iter=3, tol=1e-12, schedule="plain")
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(X)
    assert f"was still {model.history_['relative_change'][-1]:.1e}" in str(caught[0].message)


def test_one_small_change_ends_a_fit_as_published_alone():
    """With Huber's loss the scale is learnt in every iteration, and the objective hardly falls in some of them."""
    rng = np.random.default_rng(0)
    X = rng.gamma(1.0, size=(60, 3)) @ rng.gamma(1.0, size=(3, 40)) * (1 + 0.02 * rng.standard_normal((60, 40)))
    X[rng.random(X.shape) < 0.05] *= 20
    published, ours = (
        RobustNMF(3, method="huber", preset=preset, max_iter=4000, tol=1e-3, random_state=0).fit(X)
        for preset in ("published", "default")
    )
    changes = [model.history_["relative_change"] <= model.tol for model in (published, ours)]
    assert published.converged_ and np.flatnonzero(changes[0]).tolist() == [published.n_iter_]
    in_turn = np.convolve(changes[1], np.ones(3), mode="valid") == 3
    assert ours.converged_ and np.flatnonzero(in_turn).tolist() == [ours.n_iter_ - 2]
    assert ours.objective_ < 0.5 * published.objective_


def test_convergence_does_not_warn(X):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make(tol=0.1, max_iter=100).fit(X)
    assert model.converged_
    assert model.n_iter_ < model.max_iter
    assert model.history_["relative_change"].min() <= 0.1


def test_verbose_shows_objective_scale_and_outliers(X, capsys):
    model = make(max_iter=5, verbose=1).fit(X)
    shown = capsys.readouterr().err
    last = {name: column[-1] for name, column in model.history_.items()}
    share = f"outliers {last['outlier_share']:.1%}"
    assert f"objective {last['objective']:.6g}, scale {last['scale']:.3g}, {share}" in shown


def test_nothing_is_shown_by_default(X, capsys):
    make(max_iter=5).fit(X)
    assert capsys.readouterr() == ("", "")


def test_callback_sees_every_iteration(X):
    seen = []
    model = make(max_iter=7, tol=0, callback=seen.append).fit(X)
    assert [iteration.n_iter for iteration in seen] == list(range(model.n_iter_ + 1))
    assert [iteration.objective for iteration in seen] == model.history_["objective"].tolist()
    assert [iteration.scale for iteration in seen] == model.history_["scale"].tolist()


@pytest.mark.parametrize("last", [0, 1, 4])
def test_callback_stops_the_fit(last, X):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was the user's wish: no ConvergenceWarning
        model = make(callback=lambda iteration: iteration.n_iter == last).fit(X)
    assert (model.n_iter_, model.converged_) == (last, False)


def interrupt(iteration):
    if iteration.n_iter == 2:
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_failed_fit_leaves_an_unfitted_estimator_unfitted(error, frame):
    model = make(callback=interrupt) if error is KeyboardInterrupt else make(n_components=0)
    before = dict(vars(model))
    with pytest.raises(error):
        model.fit(frame)
    assert vars(model) == before
    with pytest.raises(NotFittedError):
        check_is_fitted(model)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_failed_fit_leaves_a_fitted_estimator_at_its_former_state(error, frame, X):
    model = make().fit(frame)
    before, codes = dict(vars(model)), model.transform(frame)
    if error is KeyboardInterrupt:
        model.set_params(callback=interrupt)
    with pytest.raises(error):
        model.fit(X[:, :5] if error is KeyboardInterrupt else -X[:, :5])
    model.set_params(callback=None)
    assert all(vars(model)[name] is value for name, value in before.items())
    assert vars(model).keys() == before.keys()
    np.testing.assert_array_equal(model.transform(frame), codes)


# Randomness.


@each_preset
@pytest.mark.parametrize("seed", [lambda: 7, lambda: np.random.RandomState(7), lambda: np.random.default_rng(7)])
def test_same_seed_gives_the_same_fit(seed, preset, X):
    fits = [make(preset=preset, random_state=seed(), max_iter=3).fit(X) for _ in range(2)]
    assert_same_fit(*fits)


@each_preset
def test_other_seed_gives_another_fit(preset, X):
    fits = [make(preset=preset, random_state=seed, max_iter=3).fit(X) for seed in (7, 8)]
    assert not np.array_equal(fits[0].components_, fits[1].components_)


def test_global_random_state_is_used_only_without_a_seed(X):
    state = np.random.get_state()
    make(max_iter=2).fit(X)
    assert np.array_equal(np.random.get_state()[1], state[1])


# Codes of samples.


@each_class
@each_preset
@each_dtype
def test_transform_of_the_training_data_is_fit_transform(cls, preset, dtype, X):
    X = X.astype(dtype)
    model = make(cls, preset=preset)
    codes = model.fit_transform(X)
    np.testing.assert_array_equal(model.transform(X), codes)


@each_preset
def test_transform_of_incomplete_weighted_data_is_fit_transform(preset, X, half_weights):
    X = X.copy()
    X[::7, ::3] = np.nan
    model = make(preset=preset)
    codes = model.fit_transform(X, weights=half_weights)
    np.testing.assert_array_equal(model.transform(X, weights=half_weights), codes)


def rows(name):
    order = np.random.default_rng(1).permutation(N_SAMPLES)
    return {"permuted": order, "subset": order[:7], "single": order[:1], "repeated": np.repeat(order, 2)}[name]


@pytest.mark.thinned(4)
@each_preset
@each_dtype
@pytest.mark.parametrize("batch", ["permuted", "subset", "single", "repeated"])
def test_code_of_a_sample_does_not_depend_on_the_batch(batch, preset, dtype, X):
    X = X.astype(dtype)
    model = make(preset=preset).fit(X)
    expected = model.transform(X)[rows(batch)]
    tolerance = {np.float64: 1e-10, np.float32: 1e-4}[dtype] * expected.max()
    np.testing.assert_allclose(model.transform(X[rows(batch)]), expected, rtol=0, atol=tolerance)


def test_code_of_a_corrupted_sample_is_nearly_that_of_its_clean_version(fitted, data):
    rng = np.random.default_rng(2)
    clean = data.clean[rng.permutation(N_SAMPLES)] * rng.uniform(0.5, 2, (N_SAMPLES, 1))
    corrupted = clean.copy()
    for sample in corrupted:
        sample[rng.choice(N_FEATURES, N_FEATURES // 5, replace=False)] = 20.0
    expected = fitted.transform(clean)
    error = np.linalg.norm(fitted.transform(corrupted) - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(error) < 0.02
    assert error.max() < 0.4


def test_inverse_transform_is_the_reconstruction(fitted, X):
    codes = fitted.transform(X)
    np.testing.assert_array_equal(fitted.inverse_transform(codes), codes @ fitted.components_)


def test_inverse_transform_takes_the_data_frame_of_transform(fitted, X):
    codes = clone(fitted).set_output(transform="pandas").fit_transform(X)
    np.testing.assert_array_equal(fitted.inverse_transform(codes), fitted.inverse_transform(codes.to_numpy()))


def test_inverse_transform_refuses_another_number_of_components(fitted):
    with pytest.raises(ValueError, match="must have 3 columns, one per component; got 5"):
        fitted.inverse_transform(np.ones((2, 5)))


# Clean, outlier_mask, score.


@pytest.fixture(scope="module")
def gaps(data):
    """Data in which one entry in ten is missing besides."""
    X = data.X.copy()
    X[np.random.default_rng(3).random(X.shape) < 0.1] = np.nan
    return X


def test_clean_leaves_inliers_untouched(fitted, gaps):
    kept = ~np.isnan(gaps) & ~fitted.outlier_mask(gaps)
    np.testing.assert_array_equal(fitted.clean(gaps)[kept], gaps[kept])


def test_clean_replaces_outliers_and_gaps_by_the_reconstruction(fitted, gaps):
    replaced = np.isnan(gaps) | fitted.outlier_mask(gaps)
    reconstruction = fitted.inverse_transform(fitted.transform(gaps))
    np.testing.assert_array_equal(fitted.clean(gaps)[replaced], reconstruction[replaced])


def test_clean_is_close_to_the_truth(fitted, gaps, data):
    assert np.linalg.norm(fitted.clean(gaps) - data.clean) < 0.05 * np.linalg.norm(data.clean)


def test_clean_replaces_entries_of_weight_zero(fitted, X):
    weights = np.ones_like(X)
    weights[3, 4] = 0
    expected = fitted.inverse_transform(fitted.transform(X, weights=weights))[3, 4]
    assert fitted.clean(X, weights=weights)[3, 4] == expected


@each_class
@each_preset
@each_dtype
def test_outlier_mask_of_the_training_data_is_outliers(cls, preset, dtype, X):
    X = X.astype(dtype)
    model = make(cls, preset=preset).fit(X)
    np.testing.assert_array_equal(model.outlier_mask(X), model.outliers_)


def test_missing_entries_are_no_outliers(gaps):
    assert not make().fit(gaps).outliers_[np.isnan(gaps)].any()


def test_score_samples_is_higher_for_clean_samples(fitted, data):
    corrupted = data.clean.copy()
    corrupted[:, ::5] = 10.0
    assert (fitted.score_samples(data.clean) > fitted.score_samples(corrupted)).all()


def test_score_is_the_mean_of_score_samples(fitted, X):
    assert fitted.score(X) == pytest.approx(fitted.score_samples(X).mean())


@each_preset
def test_score_falls_by_the_logarithm_of_the_unit(preset, X):
    """It is a density: data in units of one thousandth has a log-density lower by log(1000)."""
    scores = [make(preset=preset).fit(data).score_samples(data) for data in (X, 1000 * X)]
    np.testing.assert_allclose(scores[0] - scores[1], np.log(1000))


# Parts by name and as objects.


@each_preset
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_accepted_by_name(method, preset, X):
    model = make(method=method, preset=preset, max_iter=3).fit(X)
    assert model.parts_ == getattr(METHODS[method], preset)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, registry in {"init": INITIALIZERS, "scale": SCALES, "outliers": OUTLIERS, "solver": SOLVERS}.items()
        for name in registry
    ],
)
def test_every_part_is_accepted_by_name(kind, name, X):
    registry = {"init": INITIALIZERS, "scale": SCALES, "outliers": OUTLIERS, "solver": SOLVERS}[kind]
    method = {"smoothing": "l1", "weighted-median": "l1", "sparse-error": "huber"}.get(name, "truncated-cauchy")
    model = make(RobustNMF, method=method, max_iter=5, **{kind: name}).fit(X)
    assert getattr(model.parts_, kind) == registry[name]


@pytest.mark.parametrize(
    ("kind", "name", "part"),
    [
        ("init", "random", RandomStart()),
        ("scale", "mad", MAD()),
        ("scale", 0.2, FixedScale(0.2)),
        ("outliers", "mad-feature", MADRule(axis="feature")),
        ("solver", "nesterov", Nesterov()),
    ],
)
def test_name_and_object_give_the_same_fit(kind, name, part, X):
    assert_same_fit(make(**{kind: name}).fit(X), make(**{kind: part}).fit(X))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("method", METHODS),
        ("preset", ["default", "published"]),
        ("init", INITIALIZERS),
        ("scale", SCALES),
        ("outliers", OUTLIERS),
        ("solver", SOLVERS),
    ],
)
def test_unknown_name_gives_an_error_that_lists_the_choices(kind, names, X):
    with pytest.raises(ValueError, match=f"{kind} must be .*got 'unheard-of'") as caught:
        make(**{kind: "unheard-of"}).fit(X)
    assert all(repr(name) in str(caught.value) for name in names)


def test_fixed_scale_is_in_the_units_of_the_data(X):
    assert make(scale=100.0).fit(1000 * X).scale_ == 100.0


def test_number_for_outliers_cuts_beyond_its_root_times_the_scale(X):
    model = make(scale=0.1, outliers=9.0).fit(X)
    np.testing.assert_allclose(model.thresholds_, 0.3)


@dataclass(frozen=True)
class OwnScale:
    """A quarter of the largest magnitude."""

    name = "own"

    def __call__(self, magnitudes, M, previous, engine):
        return 0.25 * max(float(block.max()) for block in magnitudes)


@dataclass(frozen=True)
class OwnRule:
    """Cuts feature 0 wherever it does not fit exactly, and nothing else."""

    name = "own"

    def __call__(self, magnitudes, M, scale, engine):
        return np.where(np.arange(magnitudes[0].shape[1]) == 0, 0.0, np.inf)


@dataclass(frozen=True)
class OwnStart:
    """Starts from the first samples, whatever follows them, and from codes that the features of a sample give."""

    name = "own"

    def __call__(self, V, M, rank, rng):
        H = V[:rank] / rank
        return V[:, :rank].copy(), H if M is None else H * (M[:rank] > 0)


@dataclass(frozen=True)
class OwnSolver:
    """One multiplicative update."""

    name = "own"

    def solve(self, problem, X0, engine):
        denominator = (problem.gram @ X0[:, :, None])[:, :, 0]
        positive = denominator > 0
        return np.where(positive, X0 * problem.rhs / np.where(positive, denominator, 1), X0)


def test_own_scale_rule_is_used(X):
    model = make(scale=OwnScale(), outliers="none", max_iter=20).fit(X)
    residuals = X - model.fit_transform(X) @ model.components_
    assert model.scale_ == pytest.approx(0.25 * np.abs(residuals).max(), rel=0.05)


def test_own_outlier_rule_is_used(X):
    model = make(outliers=OwnRule()).fit(X)
    assert model.outliers_[:, 0].all()
    assert not model.outliers_[:, 1:].any()


def test_own_start_is_used(X):
    starts = []
    make(init=OwnStart(), callback=starts.append).fit(X)
    scale = RobustNMF(RANK, init=OwnStart(), callback=lambda _: True).fit(X).scale_
    assert starts[0].scale == scale
    assert starts[0].scale != make(callback=lambda _: True).fit(X).scale_


def test_own_solver_lowers_the_objective(X):
    model = make(solver=OwnSolver(), scale=0.1, outliers=9.0, schedule="plain").fit(X)
    assert model.parts_.solver == OwnSolver()
    assert np.all(np.diff(model.history_["objective"]) <= 0)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda V, M, rank, rng: (V[:, :1], V[:rank]), r"init must return W of shape \(20, 3\); got \(20, 1\)"),
        (lambda V, M, rank, rng: (V[:, :rank], V[:1]), r"init must return H of shape \(3, 30\); got \(1, 30\)"),
        (lambda V, M, rank, rng: (-V[:, :rank], V[:rank]), "finite, non-negative factors; W has other entries"),
        (lambda V, M, rank, rng: (V[:, :rank], V[:rank] * np.nan), "finite, non-negative factors; H has other entries"),
    ],
)
def test_unusable_start_of_an_own_initialiser_is_refused(start, message, X):
    with pytest.raises(ValueError, match=message):
        make(init=start).fit(X)


# Weights.


@each_preset
@each_dtype
@pytest.mark.parametrize("solver", ["hals", "nesterov"])
def test_integer_weights_count_as_copies_of_the_sample(solver, preset, dtype, X):
    X = X.astype(dtype)
    copies = 1 + np.arange(N_SAMPLES) % 3
    # The noise of a feature with few entries is shrunk, and a copy is an entry.
    noise = {"noise": None} if preset == "default" else {}
    settings = {"preset": preset, "init": OwnStart(), "solver": solver, "max_iter": 5, "tol": 0, **noise}
    weighted = make(**settings).fit(X, weights=np.repeat(copies[:, None], N_FEATURES, axis=1))
    # The copies follow behind, so that both start from the same samples.
    copied = make(**settings).fit(np.concatenate([X, *(X[copies > k] for k in (1, 2))]))
    # In single precision the histogram of the default's scale may count an entry in the next bin.
    tolerance = ROUNDING[dtype] * (50 if preset == "default" and dtype == np.float32 else 1)
    np.testing.assert_allclose(weighted.components_, copied.components_, rtol=0, atol=tolerance)
    np.testing.assert_allclose(weighted.scale_, copied.scale_, rtol=tolerance)
    np.testing.assert_allclose(weighted.thresholds_, copied.thresholds_, rtol=tolerance)
    np.testing.assert_allclose(weighted.transform(X), copied.transform(X), rtol=0, atol=10 * tolerance)


@each_preset
def test_samples_of_weight_zero_count_as_absent(preset, X):
    weights = np.ones_like(X)
    weights[20:] = 0
    settings = {"preset": preset, "init": OwnStart(), "max_iter": 5, "tol": 0}
    with pytest.warns(UserWarning, match=r"10 sample\(s\) have no observed entry"):
        weighted = make(**settings).fit(X, weights=weights)
    absent = make(**settings).fit(X[:20])
    np.testing.assert_allclose(weighted.components_, absent.components_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(weighted.transform(X), absent.transform(X), rtol=0, atol=1e-8)


@pytest.mark.parametrize("factor", [2.0**-700, 0.3, 7.0, 2.0**700])
def test_common_factor_of_the_weights_does_not_matter(factor, X):
    weights = np.random.default_rng(5).integers(1, 9, X.shape).astype(float)
    assert_same_fit(make(max_iter=10).fit(X, weights=factor * weights), make(max_iter=10).fit(X, weights=weights), 1e-9)


def test_equal_weights_are_no_weights(X):
    assert_same_fit(make(max_iter=10).fit(X, weights=np.full(X.shape, 3.0)), make(max_iter=10).fit(X), 1e-9)


@pytest.mark.parametrize("call", ["fit", "fit_transform"])
def test_warnings_point_at_the_line_of_the_user(call):
    model = RobustNMF(2, max_iter=2, random_state=0)
    with pytest.warns(ConvergenceWarning) as caught:
        getattr(model, call)(np.random.default_rng(0).random((20, 10)))
    assert {warning.filename for warning in caught} == {__file__}


# --- Going on from where a fit ended ----------------------------------------------------------------------------------


def test_refit_improves_the_components_and_is_saved_like_any_fit(tmp_path):
    data = make_data(60, 20, outliers=0.05)
    model = RobustNMF(3, random_state=0).fit(data.X)
    weights = np.ones(data.X.shape)
    weights[:2, :3] = 0
    before = model.components_.copy()
    assert model.refit(data.X, weights=weights) is model
    assert model.components_.shape == before.shape and not np.array_equal(model.components_, before)
    anew = RobustNMF(3, random_state=0).fit(data.X, weights=weights)
    kept = ~(model.outliers_ | anew.outliers_) & (weights > 0)
    squares = [
        ((data.X - m.transform(data.X, weights=weights) @ m.components_)[kept] ** 2).sum() for m in (model, anew)
    ]
    assert squares[0] <= 1.01 * squares[1]
    model.save(tmp_path / "m.robustnmf")
    again = load(tmp_path / "m.robustnmf")
    np.testing.assert_array_equal(again.transform(data.X), model.transform(data.X))
    again.refit(data.X)
    assert np.isfinite(again.components_).all()


def test_refit_of_what_cannot_be_gone_on_with_says_so():
    X = make_data(20, 8).X
    with pytest.raises(NotFittedError):
        RobustNMF(2).refit(X)
    model = RobustNMF(2, method="l2", max_iter=5, tol=1.0).fit(X)
    before = model.components_.copy()
    with pytest.raises(IncompatibleError, match="fit anew"):
        model.refit(X)
    np.testing.assert_array_equal(model.components_, before)
