"""Claims about unusual and wrong input: a clear error or a defined, finite result; never NaN, never a stray warning."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from robustnmf import RobustNMF, load
from robustnmf.errors import DataQualityWarning

# Any warning from inside NumPy is a failure. Where a UserWarning is documented, the test expects it. Such unusual data
# has features of different sizes, few entries, more components than it can tell, or is mostly rejected, and the fit
# says so.
pytestmark = pytest.mark.filterwarnings(
    "error",
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore:.*(over half of|rejected as outliers|are few for|differ in size|follow single entries|not determined by"
    "|more than half is wrong|nothing to learn)"
    ":robustnmf.errors.DataQualityWarning",
)

RANK, N_SAMPLES, N_FEATURES = 3, 30, 20

each_preset = pytest.mark.parametrize("preset", ["default", "published"])
each_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32])
each_method = pytest.mark.parametrize("method", ["truncated-cauchy", "cauchy"])
# Every initialiser, scale rule, kind of outlier rule and solver occurs, with and without a truncated loss.
each_setting = pytest.mark.parametrize(
    "setting",
    [
        {},
        {"preset": "published"},
        {"method": "cauchy"},
        {"method": "cauchy", "preset": "published", "solver": "hals"},
        {"init": "random", "scale": "mad", "outliers": "mad-feature"},
        {"init": "published", "outliers": "three-sigma-feature"},
        {"scale": 0.05, "outliers": 9.0},
    ],
    ids=lambda setting: "-".join(map(str, setting.values())) or "default",
)


@pytest.fixture(scope="module")
def X():
    """Low-rank data with slight noise, one entry in ten far off."""
    rng = np.random.default_rng(0)
    X = rng.random((N_SAMPLES, RANK)) @ rng.random((RANK, N_FEATURES)) + 0.01 * rng.random((N_SAMPLES, N_FEATURES))
    X[rng.random(X.shape) < 0.1] = 4.0
    X.setflags(write=False)  # shared by all tests
    return X


@pytest.fixture(scope="module")
def fitted(X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make(max_iter=50).fit(X)


def make(**parameters):
    return RobustNMF(**{"n_components": RANK, "random_state": 0, "max_iter": 4} | parameters)


def changed(X, where, value):
    """Return a copy of X with a value somewhere."""
    X = X.copy()
    X[where] = value
    return X


def name_of(value):
    return value.__name__ if isinstance(value, type) else f"{value:.1e}"


def outcome(model, X, **weights):
    """Return all that a fit and its model say of the data."""
    codes = model.fit_transform(X, **weights)
    numbers = ("components_", "weights_", "outliers_", "scale_", "objective_", "reconstruction_err_", "n_iter_")
    return {name: np.asarray(getattr(model, name)) for name in numbers} | {
        "codes": codes,
        "thresholds_": model.thresholds_,
        "transform": model.transform(X, **weights),
        "clean": np.asarray(model.clean(X, **weights)),
        "mask": np.asarray(model.outlier_mask(X, **weights)),
        "score_samples": model.score_samples(X, **weights),
    }


def assert_finite(results, empty=((), ())):
    """All results are numbers; of samples and features that are empty, those of `clean` are missing."""
    samples, features = map(list, empty)
    for name, values in results.items():
        if name == "clean":
            assert np.isnan(values[samples]).all() and np.isnan(values[:, features]).all()
            values = np.delete(np.delete(values, samples, axis=0), features, axis=1)
        usable = ~np.isnan(values) if name == "thresholds_" else np.isfinite(values)  # infinite: nothing is cut
        assert np.all(usable), name


def assert_same(first, second):
    """Two outcomes are the same, bit by bit."""
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


# Values that are refused.


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            -1.0,
            "Negative values.*must be finite and non-negative.*1 of 600.*-1.0 at sample 3, feature 4.*Shift or clip",
        ),
        (-1e-300, "Negative values.*the first is -1e-300 at sample 3, feature 4"),
        (
            np.inf,
            "Infinite values.*must be finite and non-negative.*inf at sample 3, feature 4.*NaN if it means missing",
        ),
        (-np.inf, "Infinite values.*must be finite.*-inf at sample 3, feature 4"),
    ],
)
@pytest.mark.parametrize("name", ["fit", "fit_transform", "transform", "clean", "outlier_mask", "score_samples"])
def test_value_that_no_data_can_have_is_refused(name, value, message, X, fitted):
    model = make() if name.startswith("fit") else fitted
    with pytest.raises(ValueError, match=message):
        getattr(model, name)(changed(X, (3, 4), value))


def test_data_without_any_observed_entry_is_refused():
    with pytest.raises(ValueError, match=r"at least one observed entry; all 600 entries of X are missing \(NaN\)"):
        make().fit(np.full((N_SAMPLES, N_FEATURES), np.nan))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 20), r"0 sample\(s\) \(shape=\(0, 20\)\) while a minimum of 1 is required by RobustNMF"),
        ((30, 0), r"0 feature\(s\) \(shape=\(30, 0\)\) while a minimum of 1 is required by RobustNMF"),
        ((), "Expected 2D array, got scalar array"),
        ((20,), "Expected 2D array, got 1D array"),
        ((1, 30, 20), "two dimensions, samples and features; got 3"),
    ],
)
def test_data_that_is_no_matrix_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        make().fit(np.ones(shape))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([["a", "b"], ["c", "d"]], ValueError, "could not convert string to float: 'a'"),
        (np.array([[1.0, "b"], [2.0, 3.0]], dtype=object), ValueError, "could not convert string to float: 'b'"),
        (np.array([[1.0, {}], [2.0, 3.0]], dtype=object), TypeError, "a string or a real number, not 'dict'"),
        (np.ones((3, 2)) * 1j, ValueError, "Complex data not supported"),
        (np.ma.masked_array(np.ones((3, 2)) * 1j, False), ValueError, "Complex data not supported"),
        (pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), ValueError, "could not convert string to float: 'x'"),
        ([[1.0, 2.0], [3.0]], ValueError, "inhomogeneous shape"),
        (None, TypeError, "must be a matrix of samples and features.*got NoneType"),
    ],
    ids=["strings", "object", "dict", "complex", "masked", "frame", "ragged", "none"],
)
def test_data_that_is_not_numeric_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        make(n_components=1).fit(data)


@pytest.mark.parametrize("rank", [0, -1, 2.0, np.float64(2), True, "2", None, 601, 10**6], ids=repr)
def test_rank_that_the_data_does_not_allow_is_refused(rank, X):
    message = r"n_components of RobustNMF must be an integer in \[1, 600\] .*n_samples=30 and n_features=20; got "
    with pytest.raises(ValueError, match=message) as caught:
        make(n_components=rank).fit(X)
    assert str(caught.value).endswith(f"got {rank!r}.")


@pytest.mark.parametrize("rank", [1, 20, np.int8(2)], ids=repr)
@each_preset
def test_every_rank_up_to_the_smaller_dimension_works(rank, preset, X):
    model = make(n_components=rank, preset=preset, max_iter=2, repeated_values="data")
    assert_finite(outcome(model, X))


# Parameters that are refused.

WRONG_PARAMETERS = [
    ("max_iter", [0, -1, 1.5, True, None, "5"], "max_iter must be a positive integer; got "),
    (
        "tol",
        [-1e-9, np.nan, np.inf, "a", None, 1j, np.complex128(1), True],
        "tol must be a finite, non-negative number",
    ),
    ("method", ["nmf", None, 3, ["cauchy"]], "method must be one of 'l2', .*'truncated-cauchy'.*; got "),
    ("preset", ["fast", None, 3], "preset must be 'default' or 'published'; got "),
    (
        "init",
        ["svd", None, 3, type],
        "init must be one of 'auto', 'random', 'median', 'published', .* or an object like",
    ),
    ("scale", ["std", None, True, [1.0], 1j], "scale must be one of 'auto', 'nagy', 'mad', .* a number"),
    ("scale", [0, -1, np.nan, np.inf], "scale .* must be positive and finite; got "),
    ("outliers", ["iqr", None, True, [1.0]], "outliers must be one of 'auto', 'none', .* a number"),
    ("outliers", [0, -1.0, np.nan], "truncation .* must be positive; got "),
    ("solver", ["cd", None, 3, {}], "solver must be one of 'auto', 'hals', 'shared-gram'"),
    ("callback", [3, "print"], "callback must be a function of one iteration, or None; got "),
    ("random_state", ["seed", 1.5], "cannot be used to seed"),
]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [(name, value, message) for name, values, message in WRONG_PARAMETERS for value in values],
    ids=str,
)
def test_wrong_parameter_is_refused(name, value, message, X):
    with pytest.raises(ValueError, match=message):
        make(**{name: value}).fit(X)


def test_infinite_truncation_is_the_untruncated_loss(X):
    assert_same(outcome(make(outliers=np.inf), X), outcome(make(method="cauchy"), X))


# Weights that are refused, and weights that are not.


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.ones((5, 20)), ValueError, r"weights must have the shape of X, \(30, 20\); got \(5, 20\)"),
        (np.ones((20, 30)), ValueError, r"weights must have the shape of X, \(30, 20\); got \(20, 30\)"),
        (np.ones(20), ValueError, r"weights must have the shape of X, \(30, 20\); got \(20,\)"),
        (np.ones(30), ValueError, r"weights must have the shape of X, \(30, 20\); got \(30,\)"),
        (np.ones((1, 30, 20)), ValueError, r"weights must have the shape of X, \(30, 20\); got \(1, 30, 20\)"),
        (np.ones((0, 20)), ValueError, r"weights must have the shape of X, \(30, 20\); got \(0, 20\)"),
        (2.0, ValueError, r"weights must have the shape of X, \(30, 20\); got \(\)"),
        (changed(np.ones((30, 20)), (3, 4), -0.5), ValueError, "non-negative; got -0.5 at sample 3, feature 4. Use 0"),
        (changed(np.ones((30, 20)), (3, 4), np.nan), ValueError, "Input weights contains NaN"),
        (changed(np.ones((30, 20)), (3, 4), np.inf), ValueError, "Input weights contains infinity"),
        (np.zeros((30, 20)), ValueError, "weights must not all be zero: no entry of X would count"),
        (np.ones((30, 20)) * 1j, ValueError, "Complex data not supported"),
        (np.full((30, 20), "heavy"), ValueError, "could not convert string to float"),
    ],
    ids=[
        *("rows", "transposed", "1-D", "samples", "3-D", "empty", "scalar"),
        *("negative", "nan", "inf", "zero", "complex", "strings"),
    ],
)
def test_wrong_weights_are_refused(weights, error, message, X):
    with pytest.raises(error, match=message):
        make().fit(X, weights=weights)


def test_weights_are_refused_by_transform_as_by_fit(X, fitted):
    with pytest.raises(ValueError, match=r"weights must have the shape of X, \(30, 20\); got \(20,\)"):
        fitted.transform(X, weights=np.ones(20))


@pytest.mark.thinned(2)
@each_setting
@pytest.mark.parametrize("axis", [0, 1], ids=["samples", "features"])
def test_samples_and_features_of_weight_zero_give_zeros_and_a_warning(axis, setting, X):
    weights = np.ones_like(X)
    np.moveaxis(weights, axis, 0)[[2, 5]] = 0
    model = make(**setting)
    with pytest.warns(UserWarning, match=r"2 (sample|feature)\(s\) have no observed entry \(\w+ 2, 5\); their"):
        results = outcome(model, X, weights=weights)
    assert_finite(results, ([2, 5], []) if axis == 0 else ([], [2, 5]))
    assert not (results["codes"][[2, 5]] if axis == 0 else results["components_"][:, [2, 5]]).any()


def test_masked_weights_count_as_zero(X):
    mask = np.zeros(X.shape, dtype=bool)
    mask[3:9, 4] = True
    masked = np.ma.masked_array(np.ones_like(X), mask)
    assert_same(outcome(make(), X, weights=masked), outcome(make(), X, weights=~mask))


@pytest.mark.parametrize(("dtype", "decades"), [(np.float64, 300), (np.float32, 30)])
def test_weights_of_very_different_magnitude_work(dtype, decades, X):
    weights = 10.0 ** np.random.default_rng(1).uniform(-decades / 2, decades / 2, X.shape)
    assert_finite(outcome(make(repeated_values="data"), X.astype(dtype), weights=weights))


# Missing entries.


@each_setting
def test_empty_sample_gets_the_code_zero_and_a_warning(setting, X):
    model = make(**setting)
    with pytest.warns(UserWarning, match=r"1 sample\(s\) have no observed entry \(sample 3\); their codes are set to"):
        results = outcome(model, changed(X, 3, np.nan))
    assert_finite(results, ([3], []))
    assert not results["codes"][3].any()


@each_setting
def test_empty_feature_gets_components_zero_and_a_warning(setting, X):
    model = make(**setting)
    with pytest.warns(UserWarning, match=r"1 feature\(s\) have no observed entry \(feature 4\); their components are"):
        results = outcome(model, changed(X, (slice(None), 4), np.nan))
    assert_finite(results, ([], [4]))
    assert not results["components_"][:, 4].any()


@each_setting
def test_single_observed_entry_is_enough(setting):
    X = changed(np.full((N_SAMPLES, N_FEATURES), np.nan), (3, 4), 2.0)
    with pytest.warns(UserWarning, match=r"(29 sample|19 feature)\(s\) have no observed entry"):
        results = outcome(make(**setting), X)
    assert_finite(results, (np.delete(np.arange(N_SAMPLES), 3), np.delete(np.arange(N_FEATURES), 4)))


@pytest.fixture(scope="module")
def nowhere():
    """One entry in ten, to be left out."""
    return np.random.default_rng(1).random((N_SAMPLES, N_FEATURES)) < 0.1


@pytest.fixture(scope="module")
def with_weights(X, nowhere):
    """Return the outcome for X with weight zero at some entries, by preset."""
    return cache(lambda preset: outcome(make(preset=preset), X, weights=~nowhere))


@pytest.mark.thinned(3)
@each_preset
@pytest.mark.parametrize("held", [0.0, 1e300, np.nan, np.inf, -np.inf, -5.0])
def test_entry_of_weight_zero_has_no_influence(held, preset, X, nowhere, with_weights):
    results = outcome(make(preset=preset), changed(X, nowhere, held), weights=~nowhere)
    assert_same(results, with_weights(preset))


@each_preset
def test_missing_is_the_same_as_weight_zero(preset, X, nowhere, with_weights):
    assert_same(outcome(make(preset=preset), changed(X, nowhere, np.nan)), with_weights(preset))


# Degenerate data: a defined, finite result.


@pytest.mark.thinned(3)
@each_setting
@each_dtype
@pytest.mark.parametrize("shape", [(1, 1), (1, 20), (30, 1), (2, 2)], ids=str)
def test_smallest_shapes_work(shape, dtype, setting, X):
    X = X[: shape[0], : shape[1]].astype(dtype)
    assert_finite(outcome(make(n_components=1, **setting), X))


@pytest.mark.parametrize("shape", [(1, 20), (30, 1)], ids=["sample", "feature"])
def test_single_sample_or_feature_is_reproduced(shape, X):
    X = X[: shape[0], : shape[1]]
    model = make(n_components=1)
    np.testing.assert_allclose(model.inverse_transform(model.fit_transform(X)), X, rtol=1e-6)


@pytest.mark.thinned(3)
@each_setting
@each_dtype
@pytest.mark.parametrize("value", [0.0, 1e-3, 7.0])
def test_constant_matrix_works(value, dtype, setting):
    X = np.full((N_SAMPLES, N_FEATURES), value, dtype=dtype)
    assert_finite(outcome(make(**setting), X))


@pytest.mark.thinned(3)
@each_dtype
@each_method
@pytest.mark.parametrize("value", [0.0, 1e-3, 7.0])
def test_constant_matrix_is_reproduced(value, method, dtype):
    X = np.full((N_SAMPLES, N_FEATURES), value, dtype=dtype)
    model = make(method=method, max_iter=50)
    np.testing.assert_allclose(model.inverse_transform(model.fit_transform(X)), X, rtol=0.01)


@pytest.mark.thinned(3)
@each_setting
@pytest.mark.parametrize("where", [3, (slice(None), 4), (slice(0, 20), slice(0, 15))], ids=["row", "column", "block"])
def test_zeros_are_data(where, setting, X):
    results = outcome(make(**setting), changed(X, where, 0.0))
    assert_finite(results)
    assert results["codes"].any()


def test_code_of_a_zero_sample_is_zero(X):
    model = make(max_iter=50)
    codes = model.fit_transform(changed(X, 3, 0.0))
    assert codes[3].max() < 1e-6 * codes.max()


def test_components_of_a_zero_feature_are_zero(X):
    model = make(max_iter=50).fit(changed(X, (slice(None), 4), 0.0))
    assert model.components_[:, 4].max() < 1e-6


@each_setting
def test_mostly_zero_data_works(setting, X):
    assert_finite(outcome(make(**setting), np.where(np.arange(X.size).reshape(X.shape) % 7, 0, X)))


@each_setting
def test_single_positive_entry_works(setting):
    assert_finite(outcome(make(**setting), changed(np.zeros((N_SAMPLES, N_FEATURES)), (3, 4), 1.0)))


@pytest.mark.thinned(3)
@each_setting
@pytest.mark.parametrize("value", [50.0, 1e30, 1e300])
def test_sample_of_outliers_only_gets_a_finite_code(value, setting, X):
    assert_finite(outcome(make(**setting), changed(X, 3, value * np.random.default_rng(1).random(N_FEATURES))))


@pytest.mark.parametrize("value", [50.0, 1e30, 1e300])
def test_new_sample_of_outliers_only_gets_a_finite_code(value, fitted):
    X = value * np.random.default_rng(1).random((4, N_FEATURES)) ** 8
    assert np.isfinite(fitted.transform(X)).all()
    assert np.isfinite(fitted.clean(X)).all()


# Magnitude.

FACTORS = [
    *((np.float64, factor) for factor in (2.0**-990, 2.0**-10, 2.0**990, 3.7, 1e-300, 1e-200, 1e200, 1e300)),
    *((np.float32, factor) for factor in (2.0**-100, 2.0**-10, 2.0**100, 1e-30, 1e30)),
]


@pytest.fixture(scope="module")
def without_factor(X):
    """Return the outcome for X itself, by dtype and parameters."""
    return cache(lambda dtype, method, preset: outcome(make(method=method, preset=preset), X.astype(dtype)))


@pytest.mark.thinned(3)
@each_preset
@each_method
@pytest.mark.parametrize(("dtype", "factor"), FACTORS, ids=name_of)
def test_factor_of_the_data_is_a_factor_of_the_result(dtype, factor, method, preset, X, without_factor):
    expected = without_factor(dtype, method, preset)
    results = outcome(make(method=method, preset=preset), X.astype(dtype) * dtype(factor))
    assert_finite(results)
    # A power of two rounds nothing; another factor rounds the data, and a few iterations magnify that.
    exact = np.log2(factor).is_integer()
    # The default's scale comes from a histogram: an entry that is rounded into the next bin moves it.
    single = 0.1 if preset == "default" and "cauchy" in method else 5e-3
    tolerance = 0 if exact else 1e-10 if dtype is np.float64 else single
    assert results["n_iter_"] == expected["n_iter_"]
    for name in ("outliers_", "mask"):  # in single precision a residual may be rounded across the threshold
        assert np.mean(results[name] != expected[name]) <= tolerance, name
    for name in ("components_", "weights_"):
        np.testing.assert_allclose(results[name], expected[name], rtol=0, atol=tolerance, err_msg=name)
    for name in ("codes", "transform", "scale_", "thresholds_", "reconstruction_err_", "clean"):
        reached, wanted = results[name] / factor, expected[name]
        largest = np.max(wanted, initial=0, where=np.isfinite(wanted))  # thresholds may be infinite
        np.testing.assert_allclose(reached, wanted, rtol=tolerance, atol=tolerance * largest, err_msg=name)


@pytest.mark.parametrize("factor", [2.0**-990, 2.0**-10, 2.0**990])
def test_factor_of_data_and_fixed_scale_is_a_factor_of_the_result(factor, X):
    expected = outcome(make(scale=0.125, outliers=4.0), X)
    results = outcome(make(scale=0.125 * factor, outliers=4.0), X * factor)
    for name in ("components_", "weights_", "outliers_", "objective_", "n_iter_"):
        np.testing.assert_array_equal(results[name], expected[name], err_msg=name)
    for name in ("codes", "scale_", "thresholds_"):
        np.testing.assert_array_equal(results[name] / factor, expected[name], err_msg=name)


@pytest.mark.thinned(3)
@each_setting
@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.float64, 1e200), (np.float64, 1.7e308), (np.float64, 1e-300), (np.float32, 1e30), (np.float32, 3.4e38)],
    ids=name_of,
)
def test_single_entry_of_another_magnitude_works(dtype, value, setting, X):
    assert_finite(outcome(make(**setting), changed(X.astype(dtype), (3, 4), value)))


@pytest.mark.parametrize("value", [1e6, 1e100, 1e200, 1.7e308])
def test_size_of_a_gross_error_does_not_matter(value, X):
    """One entry in twenty is off; however far, it is found and the rest fitted as if it were near."""
    wrong = np.random.default_rng(1).random(X.shape) < 0.05
    expected = make(max_iter=500, tol=1e-7).fit(changed(X, wrong, 1e3))
    model = make(max_iter=500, tol=1e-7).fit(changed(X, wrong, value))
    assert model.outliers_[wrong].all()
    np.testing.assert_allclose(model.components_, expected.components_, rtol=0, atol=0.02)


@each_preset
@pytest.mark.parametrize("axis", [0, 1], ids=["samples", "features"])
def test_samples_and_features_of_very_different_magnitude_work(axis, preset, X):
    length = X.shape[axis]
    sizes = np.logspace(-200, 200, length).reshape((-1, 1) if axis == 0 else (1, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataQualityWarning)
        assert_finite(outcome(make(preset=preset), X * sizes))


@pytest.mark.thinned(2)
@each_setting
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_denormal_data_works(dtype, setting, X):
    assert_finite(outcome(make(**setting), (X * 8).astype(dtype) * np.finfo(dtype).smallest_subnormal * 4))


@pytest.mark.parametrize("setting", [{"scale": 1e-300}, {"scale": 1e300}], ids=str)
@each_dtype
@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_fixed_scale_of_another_magnitude_works(setting, dtype, factor, X):
    assert_finite(outcome(make(**setting), (X * factor).astype(dtype)))


def test_negative_zero_is_zero(X):
    zeros = np.arange(X.size).reshape(X.shape) % 5 == 0
    results = outcome(make(), changed(X, zeros, -0.0))
    assert_same(results, outcome(make(), changed(X, zeros, 0.0)))
    assert not any(np.signbit(results[name]).any() for name in ("components_", "codes"))


# Containers and dtypes: the same result as from a plain array.


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint64", "bool", "float16", "longdouble"]
)
def test_every_real_dtype_is_worked_on_in_double_precision(dtype, X):
    X = (10 * X).astype(dtype)
    results = outcome(make(), X)
    assert results["components_"].dtype == np.float64
    assert_same(results, outcome(make(), X.astype(np.float64)))


def read_only(X, tmp_path):
    X = X.copy()
    X.setflags(write=False)
    return X


def strided(X, tmp_path):
    return np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3]


def memory_mapped(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    return np.load(tmp_path / "X.npy", mmap_mode="r")


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "contain",
    [
        read_only,
        strided,
        memory_mapped,
        lambda X, _: np.asfortranarray(X),
        lambda X, _: X[::-1, ::-1].copy()[::-1, ::-1],
        lambda X, _: X.astype(">f8"),
        lambda X, _: X.tolist(),
        lambda X, _: X.astype(object),
        lambda X, _: np.ma.masked_array(X),
        lambda X, _: pd.DataFrame(X),
        lambda X, _: sparse.csr_matrix(X),
        lambda X, _: sparse.csr_array(X),
        lambda X, _: sparse.csc_array(X),
        lambda X, _: sparse.coo_array(X),
    ],
    ids=[
        *("read-only", "strided", "memmap", "fortran", "reversed", "bytes", "list", "object", "masked", "frame"),
        *("csr_matrix", "csr", "csc", "coo"),
    ],
)
def test_container_does_not_matter(contain, X, tmp_path):
    X = np.where(X < 0.3, 0.0, X)  # so that there is something sparse about it
    results = outcome(make(), contain(X, tmp_path))
    assert_same(results, outcome(make(), X))


@each_dtype
@pytest.mark.parametrize("convert", [sparse.csr_array, sparse.csc_array, sparse.coo_array])
def test_dtype_of_sparse_data_is_kept(convert, dtype, X):
    assert make().fit_transform(convert(X.astype(dtype))).dtype == dtype


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_masked_entries_are_missing(dtype, X):
    X = (10 * X).astype(dtype)
    mask = np.random.default_rng(1).random(X.shape) < 0.1
    masked = np.ma.masked_array(changed(X, mask, 99), mask)
    floating = X if dtype == "float32" else X.astype(np.float64)
    assert_same(outcome(make(), masked), outcome(make(), changed(floating, mask, np.nan)))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", ["Float64", "Float32", "Int64", "UInt8", "boolean", "float64[pyarrow]", "object"])
def test_missing_values_of_pandas_are_missing(dtype, X):
    values = X > 0.5 if dtype == "boolean" else 10 * X if "loat" in dtype else (10 * X).round()
    frame = pd.DataFrame(values, columns=[f"f{j}" for j in range(N_FEATURES)]).astype(dtype)
    expected = changed(frame.to_numpy(dtype=np.float64), (3, 4), np.nan)
    frame.iloc[3, 4] = None if dtype == "object" else pd.NA
    assert_same(outcome(make(), frame), outcome(make(), expected))


# Transform of other data.


@pytest.mark.parametrize("name", ["transform", "clean", "outlier_mask", "score_samples", "score", "inverse_transform"])
def test_estimator_that_is_not_fitted_says_so(name, X):
    with pytest.raises(NotFittedError, match="RobustNMF instance is not fitted yet"):
        getattr(make(), name)(X)


@pytest.mark.parametrize("name", ["transform", "clean", "outlier_mask", "score_samples", "score"])
def test_another_number_of_features_is_refused(name, X, fitted):
    with pytest.raises(ValueError, match="X has 5 features, but RobustNMF is expecting 20 features"):
        getattr(fitted, name)(X[:, :5])


def test_transform_of_incomplete_samples_ignores_the_gaps(X, fitted):
    """Fitted on outliers or not, a sample keeps its code when a few of its clean entries are hidden."""
    clean = fitted.clean(X)
    hidden = changed(clean, np.random.default_rng(1).random(X.shape) < 0.1, np.nan)
    codes = fitted.transform(clean)
    error = np.linalg.norm(fitted.transform(hidden) - codes, axis=1) / np.linalg.norm(codes, axis=1)
    assert np.median(error) < 0.01


@pytest.mark.parametrize("n_others", [0, 5])
def test_new_sample_without_observed_entries_gets_the_code_zero_and_stays_missing(n_others, X, fitted):
    X = changed(X[: 1 + n_others], 0, np.nan)
    with pytest.warns(
        UserWarning, match=r"1 sample\(s\) have no observed entry \(sample 0\).*`clean` leaves them missing"
    ):
        assert not fitted.transform(X)[0].any()
    with pytest.warns(UserWarning, match=r"no observed entry \(sample 0\)"):
        np.testing.assert_array_equal(np.isnan(fitted.clean(X)).all(axis=1), [True] + [False] * n_others)
    assert not fitted.outlier_mask(X)[0].any()
    assert fitted.score_samples(X)[0] == 0


def test_features_that_a_fit_never_saw_stay_missing(tmp_path, X):
    """Also by a model from a file, until a batch has them; a feature of which only new data has nothing is filled."""
    with pytest.warns(UserWarning, match="1 feature.s. have no observed entry"):
        model = make().fit(changed(X, (slice(None), 4), np.nan))
    new = changed(changed(X[:6], (slice(None), 2), np.nan), (0, 4), np.nan)
    model.save(tmp_path / "a.robustnmf")
    for known in (model, load(tmp_path / "a.robustnmf")):
        np.testing.assert_array_equal(np.argwhere(np.isnan(known.clean(new))), [[0, 4]])
    model.partial_fit(X)
    assert np.isfinite(model.clean(new)).all()


@pytest.mark.parametrize("n_others", [0, 5])
def test_new_sample_of_weight_zero_gets_the_code_zero(n_others, X, fitted):
    weights = changed(np.ones((1 + n_others, N_FEATURES)), 0, 0.0)
    with pytest.warns(UserWarning, match=r"no observed entry \(sample 0\)"):
        assert not fitted.transform(X[: 1 + n_others], weights=weights)[0].any()


@pytest.mark.parametrize(("of_fit", "of_new"), [(np.float64, np.float32), (np.float32, np.float64)])
def test_new_samples_are_worked_on_in_the_dtype_of_the_fit(of_fit, of_new, X):
    model = make().fit(X.astype(of_fit))
    new = X.astype(of_new)
    codes = model.transform(new, weights=np.ones_like(new))
    assert codes.dtype == of_fit
    np.testing.assert_allclose(codes, model.transform(X.astype(of_fit)), rtol=0, atol=1e-3 * codes.max())


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_new_samples_of_another_magnitude_get_finite_codes(factor, X, fitted):
    for result in (fitted.transform(factor * X), fitted.clean(factor * X), fitted.score_samples(factor * X)):
        assert np.isfinite(result).all()


def test_new_samples_in_single_precision_of_a_fit_out_of_its_range_get_finite_codes(X):
    model = make().fit(1e-200 * X)
    assert np.isfinite(model.transform(X.astype(np.float32))).all()


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.ones((2, 4)), "Codes must have 3 columns, one per component; got 4"),
        (np.full((2, 3), np.nan), "contains NaN"),
        (np.ones(3), "Expected 2D array, got 1D array"),
        (np.ones((2, 3)) * 1j, "Complex data not supported"),
    ],
    ids=["columns", "nan", "1-D", "complex"],
)
def test_inverse_transform_refuses_what_are_no_codes(codes, message, fitted):
    with pytest.raises(ValueError, match=message):
        fitted.inverse_transform(codes)
