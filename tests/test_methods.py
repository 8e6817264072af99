"""Every model of the literature, over the whole registry, and their agreement with independent solutions."""

import warnings

import numpy as np
import pytest
from scipy.optimize import linprog
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from conftest import make_data
from robustnmf import METHODS, RobustNMF
from robustnmf.engines import NumPyEngine
from robustnmf.errors import IncompatibleError
from robustnmf.kernels.interface import NO_KERNELS
from robustnmf.methods import resolve
from robustnmf.model.losses import Absolute
from robustnmf.model.weighting import Weighting
from robustnmf.paper.theory import ROBUSTNESS_WEIGHTS, robustness_weight
from robustnmf.solvers import Armijo, Smoothing, SparseError, WeightedMedian
from robustnmf.solvers.sparse_error import sparse_error

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ONE_SHOT = ["heavy-noise", "near-separable"]
ALTERNATING = [name for name in METHODS if name not in ONE_SHOT]
X = make_data(n=40, m=30, noise=0.05).X


class GivenStart:
    """The same start whatever the model."""

    def __init__(self, X=X, rank=3, seed=0):
        rng = np.random.default_rng(seed)
        level = 2 * np.sqrt(np.mean(X) / rank)
        self.W, self.H = level * rng.random((X.shape[1], rank)), level * rng.random((rank, X.shape[0]))

    def __call__(self, V, M, rank, rng):
        # The data arrives in a unit of its own; the start is meant in units of X.
        unit = X.max() / V.max()
        return self.W.astype(V.dtype), (self.H / unit).astype(V.dtype)


class SmallStart:
    """The same start whatever the outliers, close to the clean data."""

    def __call__(self, V, M, rank, rng):
        draw = np.random.default_rng(0)
        return draw.random((V.shape[0], rank)), draw.random((rank, V.shape[1]))


def fit(method, *, data=X, rank=3, max_iter=200, tol=0.0, init=None, **options):
    init = GivenStart(data, rank) if init is None else init
    if method in ONE_SHOT:
        init = "auto"
    model = RobustNMF(rank, method=method, init=init, max_iter=max_iter, tol=tol, random_state=0, **options)
    codes = model.fit_transform(data)
    return model, codes


def test_the_registry_names_every_model_of_the_paper():
    assert list(METHODS) == [
        "l2", "nenmf", "hypersurface", "l1", "mahnmf", "rnmf-l1", "l21", "capped", "cim", "huber", "cauchy",
        "truncated-cauchy", "heavy-noise", "rndl", "near-separable",
    ]  # fmt: skip
    for model in METHODS.values():
        assert model.title
        assert any(
            year in model.reference for year in ("2001", "2006", "2008", "2011", "2012", "2014", "2015", "2016", "2017")
        )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("gaps", [False, True], ids=["full", "gaps"])
@pytest.mark.parametrize("solver", ["auto", "nesterov", "hals", "multiplicative"])
@pytest.mark.parametrize("method", ALTERNATING)
def test_objective_never_rises_over_100_iterations(method, solver, gaps):
    """Scale and threshold fixed, as the theory demands; each model also under the common solvers."""
    data = X.copy()
    if gaps:
        data[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    # A cap in squared scales: a residual of 1.5 in one entry, of 15 in a sample.
    fixed = {"scale": 0.3, "outliers": {"truncated-cauchy": 25.0, "capped": 2500.0}.get(method, "none")}
    model, _ = fit(method, data=data, init="random", solver=solver, schedule="plain", max_iter=100, **fixed)
    objective = model.history_["objective"]
    assert np.all(np.diff(objective) <= 1e-10 * np.abs(objective[:-1]))
    assert objective[-1] < objective[0]


@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    def test_results_are_finite_and_non_negative(self, method):
        model, codes = fit(method, init="random", max_iter=30)
        for array in (model.components_, codes, model.weights_):
            assert np.all(np.isfinite(array))
            assert np.all(array >= 0)

    def test_float32_is_kept(self, method):
        model, codes = fit(method, data=X.astype(np.float32), init="random", max_iter=10)
        assert model.components_.dtype == codes.dtype == np.float32

    def test_is_deterministic_for_a_seed(self, method):
        one, two = (RobustNMF(3, method=method, random_state=3, max_iter=10).fit(X).components_ for _ in range(2))
        np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize("factor", [1e200, 1e-200])
    def test_extreme_units_give_finite_results_without_warnings(self, method, factor):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            model, codes = fit(method, data=X * factor, init="random", max_iter=5)
            assert np.isfinite(model.score(X * factor))
        assert np.isfinite(model.objective_)
        assert np.all(np.isfinite(codes))

    def test_transform_agrees_with_fit_transform(self, method):
        model, codes = fit(method, init="random", max_iter=20)
        np.testing.assert_array_equal(model.transform(X), codes)

    def test_scaling_the_data_scales_the_answer(self, method):
        # As published the hypersurface cost has a scale of one unit of the data.
        options = {"scale": "first"} if method == "hypersurface" else {}
        one, codes = fit(method, init="random", max_iter=20, **options)
        two, scaled = fit(method, data=8.0 * X, init="random", max_iter=20, **options)
        np.testing.assert_allclose(two.components_, one.components_, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(scaled, 8.0 * codes, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", ["l2", "nenmf"])
def test_least_squares_agrees_with_scikit_learn_from_the_same_start(method):
    start = GivenStart()
    model, codes = fit(method, init=start, max_iter=3000)
    nmf = NMF(3, init="custom", max_iter=3000, tol=0.0)
    W = nmf.fit_transform(X, W=start.H.T.copy(), H=start.W.T.copy())
    ours = np.linalg.norm(X - codes @ model.components_)
    assert ours == pytest.approx(np.linalg.norm(X - W @ nmf.components_), rel=0.01)
    assert model.objective_ == pytest.approx(0.5 * ours**2, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"solver": "weighted-median"}], ids=["smoothing", "weighted-median"])
def test_l1_and_manhattan_reach_the_same_objective(options):
    start = GivenStart()
    norms = []
    for method, chosen in (("l1", {}), ("mahnmf", options)):
        model, codes = fit(method, init=start, max_iter=500, **chosen)
        norms.append(np.abs(X - codes @ model.components_).sum())
    assert norms[1] == pytest.approx(norms[0], rel=0.01)


def l1_problem(seed=0, B=6, p=15, r=3):
    rng = np.random.default_rng(seed)
    A = rng.random((p, r))
    Y = np.maximum(rng.standard_normal((B, r)) @ A.T, 0)
    Y[rng.random(Y.shape) < 0.2] = 10.0
    M = np.where(rng.random((B, p)) < 0.2, 0.0, rng.uniform(0.5, 1, (B, p)))
    return A, Y, M, rng.random((B, r))


def l1_by_linprog(A, y, m):
    """Return the least sum m |y - A x| over x >= 0, as a linear programme."""
    p, r = A.shape
    cost = np.concatenate([np.zeros(r), m])
    bounds = np.block([[A, -np.eye(p)], [-A, -np.eye(p)]])
    return linprog(cost, A_ub=bounds, b_ub=np.concatenate([y, -y]), method="highs").fun


@pytest.mark.parametrize("weighted", [False, True])
def test_l1_codes_agree_with_a_linear_programme(weighted):
    """With the components fixed: the half-quadratic codes of `transform` against HiGHS."""
    model, _ = fit("l1", init="random", max_iter=50)
    model.set_params(max_iter=5000, tol=1e-9)
    M = np.random.default_rng(0).uniform(0.5, 1, X.shape) if weighted else np.ones_like(X)
    codes = model.transform(X[:8], weights=M[:8] if weighted else None)
    for x, y, m in zip(codes, X[:8], M, strict=False):
        found = np.sum(m * np.abs(y - x @ model.components_))
        assert found == pytest.approx(l1_by_linprog(model.components_.T, y, m), rel=2e-3)


@pytest.mark.parametrize("solver", [Smoothing(smoothing=1e-3, max_iter=20000), WeightedMedian(max_iter=300)])
def test_l1_solvers_agree_with_a_linear_programme(solver):
    A, Y, M, X0 = l1_problem()
    solution = solver.improve(Y, M, X0, A, Weighting(Absolute(), 1.0), NumPyEngine())
    losses = np.sum(M * np.abs(Y - solution @ A.T), axis=1)
    best = np.array([l1_by_linprog(A, y, m) for y, m in zip(Y, M, strict=True)])
    # Coordinate descent on a kinked function may stop short of the minimum.
    tolerance = 1e-2 if isinstance(solver, Smoothing) else 0.15
    assert np.all(losses >= best * (1 - 1e-9))
    assert np.all(losses <= best * (1 + tolerance))


def test_weighted_median_kernel_agrees_with_its_reference():
    class ReferenceEngine(NumPyEngine):
        kernels = NO_KERNELS

    A, Y, M, X0 = l1_problem(B=12)
    for weights in (M, None):
        fast, slow = (
            WeightedMedian(max_iter=3).improve(Y, weights, X0, A, Weighting(Absolute(), 1.0), engine)
            for engine in (NumPyEngine(), ReferenceEngine())
        )
        np.testing.assert_allclose(fast, slow, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("solver", [Armijo(), Smoothing(), WeightedMedian(), SparseError()], ids=lambda s: s.name)
def test_loss_solvers_treat_every_row_by_itself(solver):
    loss = resolve({"sparse-error": "huber"}.get(solver.name, "l1"), "default").loss
    A, Y, M, X0 = l1_problem()
    weighting, engine = Weighting(loss, 0.5), NumPyEngine()
    together = solver.improve(Y, M, X0, A, weighting, engine)
    alone = [solver.improve(Y[[i]], M[[i]], X0[[i]], A, weighting, engine)[0] for i in range(len(Y))]
    np.testing.assert_allclose(together, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "solver"),
    [("cauchy", "armijo"), ("l1", "smoothing"), ("l1", "weighted-median"), ("huber", "sparse-error"), ("l1", "hals")],
)
def test_entries_that_a_rule_cuts_have_no_influence_under_any_solver(method, solver):
    """An outlier may be as large as it likes: beyond the cut the fit is the same."""

    def cut_at_three(magnitudes, M, scale, engine):
        return 3.0

    fits = [
        fit(method, data=np.where(X == 10, value, X), init=SmallStart(), solver=solver, scale=0.3,
            outliers=cut_at_three, schedule="plain", max_iter=20)
        for value in (10.0, 1000.0)
    ]  # fmt: skip
    assert fits[0][0].outliers_[X == 10].all()
    np.testing.assert_allclose(fits[1][0].components_, fits[0][0].components_, rtol=1e-9, atol=1e-9)


def same(one, two, **tolerance):
    np.testing.assert_allclose(one[1] @ one[0].components_, two[1] @ two[0].components_, **tolerance)


def test_cauchy_with_a_huge_scale_tends_to_least_squares():
    same(fit("cauchy", scale=1e7, solver="hals", schedule="plain"), fit("l2", solver="hals"), rtol=1e-4, atol=1e-4)


def test_huber_with_a_huge_cutoff_is_least_squares():
    same(fit("huber", scale=1e7), fit("l2", preset="published"), rtol=1e-9, atol=1e-9)
    same(fit("rnmf-l1", scale=1e7), fit("l2", preset="published"), rtol=1e-9, atol=1e-9)


def test_correntropy_with_a_huge_width_tends_to_least_squares():
    same(fit("cim", scale=1e5), fit("l2", preset="published"), rtol=1e-6, atol=1e-6)


def test_hypersurface_with_a_huge_scale_tends_to_least_squares():
    same(fit("hypersurface", scale=1e5, solver="hals"), fit("l2", solver="hals"), rtol=1e-5, atol=1e-5)


def test_capped_without_threshold_is_l21():
    same(fit("capped", outliers="none"), fit("l21"), rtol=0, atol=0)
    same(fit("capped", outliers=1e12), fit("l21"), rtol=0, atol=0)


def test_truncated_cauchy_without_truncation_is_cauchy():
    same(fit("truncated-cauchy", outliers="none"), fit("cauchy"), rtol=0, atol=0)
    same(fit("truncated-cauchy", outliers=1e12), fit("cauchy"), rtol=0, atol=0)


def test_penalty_of_rndl_shrinks_the_reconstruction():
    start = GivenStart()
    sizes = []
    for method, options in (("l1", {"solver": "multiplicative"}), ("rndl", {})):
        model, codes = fit(method, init=start, max_iter=300, **options)
        sizes.append(float((codes @ model.components_).sum()))
    assert sizes[1] < 0.999 * sizes[0]


def test_capped_rejects_whole_samples_that_do_not_fit():
    data = make_data(n=60, m=30, noise=0.02, outliers=0.0).X
    data[:6] = 3 * np.random.default_rng(0).random((6, 30))
    model, _ = fit("capped", data=data, init="random", max_iter=500)
    assert model.outliers_[:6].all()
    assert model.outliers_[6:].mean() < 0.15
    assert model.weights_[:6].max() == 0


def test_sparse_error_of_rnmf_is_exposed_and_explains_the_outliers():
    data = make_data(n=60, m=30, noise=0.02, outliers=0.05)
    model, codes = fit("rnmf-l1", data=data.X, init="random", max_iter=500, scale=0.1)
    R = data.X - codes @ model.components_
    np.testing.assert_allclose(model.sparse_errors_, sparse_error(R, 0.1, np), atol=1e-12)
    assert np.mean(model.sparse_errors_ != 0) < 0.5
    assert np.all(np.abs(model.sparse_errors_[data.outliers & (data.X == 10)]) > 1)


def objective_of_s(R, S, penalty):
    return np.sum((R - S) ** 2) + penalty * np.abs(S).sum()


def test_sparse_error_minimises_the_model_of_zhang():
    rng = np.random.default_rng(0)
    R = rng.standard_normal((5, 4))
    best = objective_of_s(R, sparse_error(R, 0.3, np), 0.6)
    for _ in range(200):
        assert best <= objective_of_s(R, sparse_error(R, 0.3, np) + 0.1 * rng.standard_normal(R.shape), 0.6)


@pytest.mark.parametrize("name", [n for n in METHODS if n in ROBUSTNESS_WEIGHTS])
def test_weights_of_the_models_are_those_of_table_1(name):
    r = np.linspace(0, 4.5, 50)
    loss = resolve(name, "default").loss
    s = r**2
    ours = loss.weight(s, np) / loss.weight(np.zeros(1), np)
    if name in ("truncated-cauchy", "capped"):
        ours = np.where(r <= 3.0, ours, 0)
    parameters = {"truncated-cauchy": {"sigma": 9.0}, "capped": {"theta": 3.0}, "rnmf-l1": {"penalty": 2.0}}
    np.testing.assert_allclose(ours, robustness_weight(name, r, **parameters.get(name, {})), rtol=1e-12)


@pytest.mark.parametrize("method", ONE_SHOT)
def test_models_that_do_not_alternate_refuse_another_start_and_gaps(method):
    with pytest.raises(IncompatibleError, match="init must be 'auto'"):
        RobustNMF(3, method=method, init="random").fit(X)
    gaps = X.copy()
    gaps[0, 0] = np.nan
    with pytest.raises(IncompatibleError, match="needs complete data"):
        RobustNMF(3, method=method).fit(gaps)


def test_near_separable_recovers_planted_samples_exactly():
    rng = np.random.default_rng(0)
    basis = rng.random((3, 20))
    data = np.vstack([rng.dirichlet(np.ones(3), 15) @ basis, basis])
    model = RobustNMF(3, method="near-separable").fit(data)
    found = model.components_ / np.linalg.norm(model.components_, axis=1, keepdims=True)
    planted = basis / np.linalg.norm(basis, axis=1, keepdims=True)
    np.testing.assert_allclose(np.max(planted @ found.T, axis=1), 1, rtol=1e-12)
    assert model.reconstruction_err_ < 1e-3


def test_comparison_is_one_loop():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        errors = {
            name: np.linalg.norm(X - RobustNMF(3, method=name, random_state=0, max_iter=5).fit(X).clean(X))
            for name in METHODS
        }
    assert len(errors) == len(METHODS)
