"""What scikit-learn demands of its own NMF, demanded of ours where it applies."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import NMF

from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.metrics import relative_error

SOLVERS = ["shared-gram", "hals", "nesterov", "multiplicative"]
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def X():
    return np.abs(np.random.default_rng(42).standard_normal((48, 10)))


@pytest.mark.parametrize("solver", SOLVERS)
def test_factors_are_not_negative(solver):
    A = 5.0 - np.add(*np.indices((10, 10))) / 4
    model = RobustNMF(2, method="l2", solver=solver, random_state=0)
    assert (model.fit_transform(A) >= 0).all()
    assert (model.components_ >= 0).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_data_of_low_rank_is_fitted_closely(solver):
    A = 5.0 - np.add(*np.indices((10, 10))) / 4
    model = RobustNMF(2, method="l2", solver=solver, random_state=0, max_iter=1000, tol=1e-9)
    assert relative_error(A, model.inverse_transform(model.fit_transform(A))) < 0.05


@pytest.mark.parametrize("solver", SOLVERS)
def test_least_squares_come_as_close_as_scikit_learn(X, solver):
    """From random starts: the best of three each."""
    theirs, ours = [], []
    for seed in range(3):
        model = NMF(4, init="random", random_state=seed, max_iter=2000, tol=1e-7)
        theirs.append(relative_error(X, model.inverse_transform(model.fit_transform(X))))
        model = RobustNMF(4, method="l2", solver=solver, random_state=seed, max_iter=600, tol=1e-8)
        ours.append(relative_error(X, model.inverse_transform(model.fit_transform(X))))
    assert min(ours) < 1.01 * min(theirs)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_objective_decreases_with_every_iteration(X, solver):
    model = RobustNMF(5, method="l2", solver=solver, random_state=0, max_iter=30, tol=0)
    model.fit(X)
    objective = model.history_["objective"]
    assert np.all(np.diff(objective) <= 1e-12 * objective[0])


@pytest.mark.parametrize("solver", SOLVERS)
def test_codes_of_the_training_data_are_those_of_transform(X, solver):
    model = RobustNMF(3, method="l2", solver=solver, random_state=0)
    np.testing.assert_allclose(model.fit_transform(X), model.transform(X), atol=1e-12)


@pytest.mark.parametrize("layout", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array])
def test_sparse_input_gives_what_dense_input_gives(X, layout):
    A = np.where(X > 1, X, 0)
    dense, thin = (TruncatedCauchyNMF(3, random_state=0).fit(data) for data in (A, layout(A)))
    np.testing.assert_array_equal(dense.components_, thin.components_)
    np.testing.assert_array_equal(dense.transform(A), thin.transform(layout(A)))


def test_tiny_values_do_not_vanish():
    """Products of such factors are below the smallest float."""
    rng = np.random.default_rng(0)
    A = rng.random((30, 5)) @ rng.random((5, 20)) * 1e-160
    model = RobustNMF(5, method="l2", random_state=0, max_iter=500)
    codes = model.fit_transform(A)
    assert np.isfinite(codes).all()
    assert relative_error(A * 1e160, codes * 1e160 @ model.components_) < 0.05


@pytest.mark.parametrize(("given", "expected"), [(np.float32, np.float32), (np.float64, np.float64),
                                                 (np.int32, np.float64), (np.int64, np.float64)])  # fmt: skip
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_dtype_is_kept(X, given, expected, solver):
    model = RobustNMF(2, method="l2", solver=solver, random_state=0)
    data = (10 * X).astype(given)
    assert model.fit_transform(data).dtype == expected
    assert model.transform(data).dtype == expected
    assert model.components_.dtype == expected


@pytest.mark.parametrize("solver", SOLVERS)
def test_single_precision_is_close_to_double(X, solver):
    models = [
        RobustNMF(2, method="l2", solver=solver, random_state=0).fit(X.astype(t)) for t in (np.float32, np.float64)
    ]
    np.testing.assert_allclose(models[0].components_, models[1].components_, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_l1_penalty_makes_factors_sparser_and_a_ridge_smaller(X, solver):
    options = {"method": "l2", "solver": solver, "random_state": 42, "max_iter": 300, "tol": 1e-6}
    plain, lasso, ridge = (
        RobustNMF(3, **options, **penalty)
        for penalty in ({}, {"alpha_W": 0.1, "l1_ratio": 1.0}, {"alpha_W": 0.1, "l1_ratio": 0.0})
    )
    codes = [model.fit_transform(X) for model in (plain, lasso, ridge)]
    tiny = 1e-6  # multiplicative updates approach zero without reaching it
    assert (codes[1] <= tiny).sum() > (codes[0] <= tiny).sum()
    product = [np.linalg.norm(c @ m.components_) for c, m in zip(codes, (plain, lasso, ridge), strict=True)]
    assert product[2] < product[0]


def test_names_of_the_codes(X):
    model = TruncatedCauchyNMF(3, random_state=0).fit(X)
    assert list(model.get_feature_names_out()) == [f"truncatedcauchynmf{k}" for k in range(3)]


def test_too_many_components_and_wrong_shapes_are_refused(X):
    with pytest.raises(ValueError, match="n_components"):
        RobustNMF(11).fit(X)
    model = RobustNMF(2, random_state=0).fit(X)
    with pytest.raises(ValueError, match="features"):
        model.transform(X[:, :5])
    with pytest.raises(ValueError, match="columns"):
        model.inverse_transform(np.ones((3, 5)))
    with pytest.raises(ValueError, match="Negative values"):
        model.transform(-X)


def test_iterations_end_at_the_limit(X):
    model = RobustNMF(5, method="l2", random_state=0, max_iter=7, tol=0).fit(X)
    assert model.n_iter_ == 7


def test_fits_can_be_repeated_and_cloned(X):
    model = TruncatedCauchyNMF(3, random_state=0)
    first = model.fit(X).components_.copy()
    np.testing.assert_array_equal(model.fit(X).components_, first)
    np.testing.assert_array_equal(clone(model).fit(X).components_, first)


def test_batches_of_a_stream_come_to_what_a_fit_does(X):
    """With all samples in every batch, as scikit-learn tests its mini-batches."""
    whole = TruncatedCauchyNMF(2, random_state=0).fit(X)
    stream = TruncatedCauchyNMF(2, random_state=0)
    for _ in range(20):
        stream.partial_fit(X)
    errors = [relative_error(X, model.transform(X) @ model.components_) for model in (whole, stream)]
    assert errors[1] < 1.25 * errors[0]
