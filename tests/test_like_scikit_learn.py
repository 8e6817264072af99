"""What scikit-learn demands of its own NMF, demanded of ours where it applies."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import NMF
from sklearn.decomposition._nmf import _initialize_nmf

from robustnmf import METHODS, RobustNMF, TruncatedCauchyNMF
from robustnmf.methods import INITIALIZERS
from robustnmf.metrics import relative_error
from robustnmf.utils.scikit_learn_words import WORDS

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


def test_wrong_ranks_and_shapes_are_refused(X):
    with pytest.raises(ValueError, match=r"n_components of RobustNMF must be an integer in \[1, 480\]"):
        RobustNMF(481).fit(X)
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


# --- Starts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nndsvd", "nndsvda"])
def test_singular_starts_are_those_of_scikit_learn(X, name):
    codes, components = _initialize_nmf(X, 4, init=name, eps=0, random_state=0)
    W, H = INITIALIZERS[name](X.T, None, 4, np.random.default_rng(0))
    np.testing.assert_allclose(H.T, codes, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(W.T, components, rtol=1e-6, atol=1e-9)


def test_singular_start_with_random_numbers_differs_only_where_there_were_zeros(X):
    plain, filled = (INITIALIZERS[name](X.T, None, 4, np.random.default_rng(0)) for name in ("nndsvd", "nndsvdar"))
    for before, after in zip(plain, filled, strict=True):
        np.testing.assert_array_equal(before[before > 0], after[before > 0])
        assert (before == 0).any() and (after[before == 0] > 0).all() and (after[before == 0] < X.mean()).all()


def test_singular_start_takes_a_missing_entry_for_the_mean_of_its_feature(X):
    M, means = np.ones_like(X), X.copy()
    M[3, 2] = 0
    means[3, 2] = np.delete(X[:, 2], 3).mean()
    ours = INITIALIZERS["nndsvd"](np.where(M > 0, X, 1e6).T, M.T, 3, np.random.default_rng(0))
    for left, right in zip(ours, INITIALIZERS["nndsvd"](means.T, None, 3, np.random.default_rng(0)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9)


def test_singular_start_of_more_components_than_there_are_vectors_is_refused(X):
    with pytest.raises(ValueError, match=r"init = 'nndsvda' can only be used when n_components <= min.*got 11"):
        RobustNMF(11, init="nndsvda").fit(X)


@pytest.mark.parametrize("options", [{}, {"feature_scaling": "robust"}, {"sample_scaling": "total"}], ids=str)
@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_a_start_that_is_given_is_where_a_fit_begins(options, unit):
    """From the factors of the data itself one iteration leaves no residual; from others it does."""
    rng = np.random.default_rng(0)
    codes, components = unit * rng.random((30, 3)), rng.random((3, 12)) * np.geomspace(1, 100, 12)
    A = codes @ components
    common = {"method": "l2", "solver": "hals", "max_iter": 1, "tol": 0, **options}
    given = RobustNMF(3, init=(codes, components), **common).fit(A)
    assert relative_error(A, given.transform(A) @ given.components_) < 0.02
    other = RobustNMF(3, init=(rng.random((30, 3)), rng.random((3, 12))), **common).fit(A)
    assert given.history_["objective"][0] < 1e-9 * other.history_["objective"][0]


def test_a_start_that_is_given_is_checked(X):
    codes, components = np.ones((48, 2)), np.ones((2, 10))
    for start, message in [
        ((codes[:5], components), r"codes of init=.*n_samples, n_components\), here \(48, 2\); got \(5, 2\)"),
        ((codes, components.T), r"components of init=.*here \(2, 10\); got \(10, 2\)"),
        ((-codes, components), "codes of init=.*non-negative"),
        ((codes, 0 * components), "components of init=.*full of zeros"),
        ((codes,), "two arrays"),
    ]:
        with pytest.raises(ValueError, match=message):
            RobustNMF(2, init=start).fit(X)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("heavy-noise", "near-separable")])
def test_there_may_be_more_components_than_samples_or_features(X, method):
    for data in (X, X[:6]):
        model = RobustNMF(12, method=method, random_state=0, max_iter=20)
        codes = model.fit_transform(data)
        assert codes.shape == (len(data), 12) and model.components_.shape == (12, 10)
        assert np.isfinite(codes).all() and np.isfinite(model.components_).all()
        assert (codes >= 0).all() and (model.components_ >= 0).all()


def test_more_components_may_be_known_than_there_are_samples(X):
    known = np.random.default_rng(0).random((14, 10))
    model = RobustNMF(14, fixed_components=known, random_state=0).fit(X[:5])
    np.testing.assert_array_equal(model.components_, known)


@pytest.mark.parametrize("method", ["truncated-cauchy", "l2"])
def test_a_known_component_that_is_zero_stays_so_and_the_others_are_learnt(method):
    rng = np.random.default_rng(0)
    A = rng.random((40, 2)) @ rng.random((2, 15))
    model = RobustNMF(3, method=method, fixed_components=np.zeros((1, 15)), random_state=0, max_iter=500, tol=1e-7)
    codes = model.fit_transform(A)
    assert not model.components_[0].any() and np.isfinite(codes).all()
    assert relative_error(A, codes @ model.components_) < 0.01


# --- Words of scikit-learn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("solver", "ours"), [("cd", "'hals'"), ("mu", "'multiplicative'")])
def test_solvers_of_scikit_learn_are_refused_with_the_name_they_have_here(X, solver, ours):
    with pytest.raises(ValueError, match=f"scikit-learn's '{solver}'.* is {ours} here|Scikit-learn's '{solver}'"):
        RobustNMF(2, solver=solver).fit(X)


@pytest.mark.parametrize("cls", [RobustNMF, TruncatedCauchyNMF])
@pytest.mark.parametrize("word", ["beta_loss", "shuffle", "batch_size"])
def test_parameters_of_scikit_learn_are_refused_with_advice(cls, word):
    with pytest.raises(TypeError, match=f"{word}= of scikit-learn's NMF.*{WORDS[word][:20]}"):
        cls(2, **{word: 1})


def test_factors_given_to_fit_are_refused_with_advice(X):
    for fit in (RobustNMF(2).fit, RobustNMF(2).fit_transform):
        with pytest.raises(TypeError, match=r"init=\(codes, components\)"):
            fit(X, W=X, H=X)


def test_batches_are_offered_only_by_methods_that_learn_from_them():
    offered = {method for method in METHODS if hasattr(RobustNMF(method=method), "partial_fit")}
    assert offered == {"l2", "nenmf", "l1", "cim", "huber", "cauchy", "truncated-cauchy", "rndl"}
