"""The hostile corpus: each case ends in a finite result or a clear error; no crash, hang, stray warning or NaN."""

import faulthandler
import re

import numpy as np
import pytest

from cleaned_data import assert_cleaned
from hostile_corpus import CORPUS, FITS, MISSING, PARAMETERS, SHAPES, VALUES, M, N, X
from robustnmf import METHODS, RobustNMF, RobustNMFCV, RobustNMFOutlierDetector, select_rank
from robustnmf.errors import IncompatibleError

pytestmark = pytest.mark.filterwarnings(
    "error",
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::robustnmf.errors.DataQualityWarning",
    "ignore:.*have no observed entry:UserWarning",
    "ignore:X has feature names:UserWarning",  # and that a fit without names cannot check them
    "ignore:pandas.DataFrame with sparse columns:UserWarning",  # scikit-learn tells the user what it costs
)

# Seconds after which a case counts as hanging; the longest takes a tenth of one.
PATIENCE = 60
by_name = {"ids": lambda case: case.name}


@pytest.fixture(autouse=True)
def no_hang():
    """End the process, and say where it is, if a case takes too long."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def numbers(values):
    return np.asarray(values, dtype=float)


def check(case, **options):
    """Fit a case and look at all that the model says of it."""
    parameters = {"n_components": 2, "random_state": 0, "max_iter": 5} | options | dict(case.parameters)
    model = RobustNMF(**parameters)
    if case.expected is not FITS:
        with pytest.raises((ValueError, TypeError, OverflowError)) as caught:
            model.fit(case.X, **case.fit)
        assert re.search(case.expected, " ".join(str(caught.value).split()))
        assert not hasattr(model, "components_")
        return
    codes = numbers(model.fit_transform(case.X, **case.fit))
    finite = {name: getattr(model, name) for name in ("components_", "weights_", "scale_", "objective_")}
    finite |= {"codes": codes, "reconstruction_err_": model.reconstruction_err_}
    finite |= {"scores": model.score_samples(case.X, **case.fit)}
    assert_cleaned(model.clean(case.X, **case.fit), codes, model.components_)
    for name, values in finite.items():
        assert np.isfinite(numbers(values)).all(), name
    assert (codes >= 0).all() and (model.components_ >= 0).all()
    np.testing.assert_array_equal(numbers(model.transform(case.X, **case.fit)), codes)
    np.testing.assert_array_equal(numbers(model.outlier_mask(case.X, **case.fit)), model.outliers_)


def test_corpus_has_distinct_cases_and_enough_of_them():
    assert len({case.name for case in CORPUS}) == len(CORPUS) >= 200


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", CORPUS, **by_name)
def test_case_ends_in_a_finite_result_or_a_clear_error(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["default", "published"])
@pytest.mark.parametrize("case", [*SHAPES, *VALUES, *MISSING], **by_name)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_in_a_finite_result_or_a_clear_error(method, case, preset):
    try:
        check(case, method=method, preset=preset)
    except IncompatibleError as error:
        assert "needs complete data" in str(error)
    except RuntimeError as error:  # numbers too far apart for a linear program
        assert method == "near-separable" and "was not solved" in str(error)


# --- A fitted model ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    return RobustNMF(2, random_state=0, max_iter=20).fit(X)


NEW = [case for case in CORPUS if case not in PARAMETERS and case not in SHAPES]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", NEW, **by_name)
def test_new_samples_get_finite_codes_or_a_clear_error(case, fitted):
    before = fitted.components_.copy()
    try:
        codes = fitted.transform(case.X, **case.fit)
    except (ValueError, TypeError, OverflowError) as error:
        assert str(error)
    else:
        assert np.isfinite(numbers(codes)).all()
        assert_cleaned(fitted.clean(case.X, **case.fit), codes, fitted.components_)
        assert np.isfinite(fitted.score_samples(case.X, **case.fit)).all()
    np.testing.assert_array_equal(fitted.components_, before)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", [*VALUES, *MISSING], **by_name)
def test_batch_of_a_stream_leaves_finite_components_or_a_clear_error(case):
    model = RobustNMF(2, random_state=0, max_iter=5).fit(X)
    before = model.components_.copy()
    try:
        model.partial_fit(case.X)
    except (ValueError, TypeError):
        np.testing.assert_array_equal(model.components_, before)
    assert np.isfinite(model.components_).all() and (model.components_ >= 0).all()
    assert np.isfinite(model.transform(X)).all()


# --- What is built on it ----------------------------------------------------------------------------------------------

WRONG_SEARCHES = [
    ({"ranks": []}, "ranks"),
    ({"ranks": [0]}, "ranks"),
    ({"ranks": [1.5]}, "ranks"),
    ({"ranks": "abc"}, "ranks"),
    ({"ranks": None}, "ranks"),
    ({"ranks": [1, 99]}, "ranks"),
    ({"ranks": [1], "n_splits": 1}, "n_splits"),
    ({"ranks": [1], "n_splits": "5"}, "n_splits"),
    ({"ranks": [1], "estimator": 3}, "estimator"),
    ({"ranks": [1], "weights": np.ones((M, N))}, "weights"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_SEARCHES, ids=str)
def test_search_for_a_rank_refuses_wrong_parameters(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        select_rank(X, **options)


@pytest.mark.parametrize("value", [-1, 2.0, "a", None, np.nan, [0.1]], ids=str)
def test_detector_refuses_a_wrong_contamination(value):
    with pytest.raises((ValueError, TypeError), match="contamination"):
        RobustNMFOutlierDetector(2, contamination=value).fit(X)


@pytest.mark.parametrize("name", ["inf", "negative", "empty", "text"])
@pytest.mark.parametrize("kind", [RobustNMFCV, RobustNMFOutlierDetector, select_rank], ids=lambda kind: kind.__name__)
def test_what_is_built_on_it_refuses_what_no_data_can_be(kind, name):
    wrong = {"inf": X + np.inf, "negative": -X, "empty": X[:0], "text": np.full((N, M), "a")}[name]
    with pytest.raises((ValueError, TypeError), match=r"Infinite|Negative|0 sample|could not convert"):
        select_rank(wrong, ranks=[1, 2]) if kind is select_rank else kind().fit(wrong)
