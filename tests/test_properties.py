"""What holds for every model, whatever the data: each claim over all of `METHODS`, on data that Hypothesis draws.

`make test` tries a few examples of each claim, the same in every run; `make test-all` tries many more. A new method is
covered as soon as it is a row of `METHODS`, a new engine when it is added to `ENGINES`.
"""

from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robustnmf import METHODS, RobustNMF, load
from robustnmf.algorithm.halfquadratic import take_start
from robustnmf.engines import DaskEngine, NumPyEngine, StreamingEngine, numpy_engine
from robustnmf.kernels.interface import NO_KERNELS
from robustnmf.model.scales import FixedScale, MixtureScale
from robustnmf.solvers import LossSolver, SharedGram, Smoothing

# Any other warning than these, which are documented, is a failure.
pytestmark = pytest.mark.filterwarnings(
    "error",
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::robustnmf.errors.DataQualityWarning",
    "ignore:.*have no observed entry:UserWarning",
)

common = {"derandomize": True, "deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
each_effort = pytest.mark.parametrize(
    "effort",
    [
        pytest.param(settings(max_examples=4, **common), id="few"),
        pytest.param(settings(max_examples=60, **common), id="many", marks=pytest.mark.slow),
    ],
)
each_method = pytest.mark.parametrize("method", METHODS)
ALTERNATING = [name for name, row in METHODS.items() if row.default.algorithm is not take_start]
each_alternating = pytest.mark.parametrize("method", ALTERNATING)


@contextmanager
def reference():
    """The engine for NumPy without its compiled kernels."""
    with patch.object(NumPyEngine, "kernels", NO_KERNELS):
        yield


# What a fit can run on: a context, and the parameters of the estimator.
ENGINES = {"numpy": (nullcontext, {}), "reference": (reference, {})}
if find_spec("torch"):
    ENGINES["torch"] = (nullcontext, {"engine": "torch", "device": "cpu"})
each_engine = st.sampled_from(sorted(ENGINES))


def blocks_of(block_entries, engine):
    """Cut data in memory into blocks of so many entries."""
    if engine == "torch":
        from robustnmf.engines import torch_engine

        return patch.dict(torch_engine.BLOCK_ENTRIES, cpu=block_entries)
    return patch.object(numpy_engine, "BLOCK_ENTRIES", block_entries)


# Those that serve every loss.
SOLVERS = ["auto", "hals", "shared-gram", "nesterov", "multiplicative"]

LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "strided": lambda X: np.repeat(np.repeat(X, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda X: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "list": lambda X: X.tolist() if X.dtype == np.float64 else X,
}


class Case(NamedTuple):
    """Data and how to fit it."""

    X: Any
    weights: Any
    rank: int
    seed: int

    def given(self, **changes):
        return self._replace(**changes)

    @property
    def observed(self):
        return ~np.isnan(self.X) & (True if self.weights is None else self.weights > 0)


@st.composite
def cases(draw, gaps=True, weights=True, well_posed=False):
    """Draw low-rank data with noise, gross errors, zeros, gaps and weights, of any level.

    Data that is `well_posed` has noise, and many more entries than the factors: in a perfect fit of 2 x 2 entries
    rounding decides what the code of a sample is.
    """
    n, m = (
        draw(st.integers(10, 20) if well_posed else st.integers(2, 14)),
        draw(st.integers(10 if well_posed else 2, 15)),
    )
    rank = draw(st.integers(1, min(n, m, 2 if well_posed else 4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    X = rng.random((n, rank)) @ rng.random((rank, m))
    X += draw(st.sampled_from([0.02, 0.3] if well_posed else [0.0, 0.02, 0.3])) * rng.random(X.shape)
    errors = rng.random(X.shape) < draw(st.sampled_from([0.0, 0.1] if well_posed else [0.0, 0.1, 0.4]))
    X[errors] = draw(st.sampled_from([0.0, 8.0, 1e4]))
    X *= draw(st.sampled_from([1.0, 3e-5, 7e4]))
    if gaps:
        X[rng.random(X.shape) < draw(st.sampled_from([0.0, 0.0, 0.2]))] = np.nan
    its_weights = None
    if weights and draw(st.booleans()):
        lightest = 0.3 if well_posed else 0.0
        its_weights = rng.uniform(lightest, 1, X.shape) * (rng.random(X.shape) > 0.1)
    case = Case(X, its_weights, rank, draw(st.integers(0, 99)))
    return case if case.observed.any() else case.given(X=np.ones_like(X), weights=None)


def cases_for(method, weights=True, **options):
    """Return cases that a method accepts; what it refuses is tested elsewhere."""
    incomplete = METHODS[method].default.algorithm is not take_start
    return cases(gaps=incomplete, weights=incomplete and weights, **options)


class GivenStart:
    """The same start in units of X, whatever the unit of the fit and the order or number of samples and features."""

    def __init__(self, case, samples=None, features=None):
        n, m = case.X.shape
        rng = np.random.default_rng(case.seed)
        values = case.X[case.observed]
        self.largest = values.max()
        level = 2 * np.median(values) / case.rank
        W, H = rng.random((m, case.rank)), level * rng.random((case.rank, n))
        self.W = W if features is None else W[features]
        self.H = H if samples is None else H[:, samples]

    def __call__(self, V, M, rank, rng):
        unit = self.largest / V.max() if V.max() > 0 else 1.0
        return self.W.astype(V.dtype), (self.H / unit).astype(V.dtype)


def fit(method, case, *, max_iter=6, **options):
    options = {"tol": 0.0, "random_state": case.seed} | options
    model = RobustNMF(case.rank, method=method, max_iter=max_iter, **options)
    return model, model.fit_transform(case.X, weights=case.weights)


def plain(method):
    """Return options under which a method alternates from a start that is given."""
    return {} if method not in ALTERNATING else {"schedule": "plain"}


def numbers_of(model, codes):
    names = ("components_", "weights_", "outliers_", "scale_", "objective_", "reconstruction_err_")
    return {name: np.asarray(getattr(model, name)) for name in names} | {"codes": np.asarray(codes)}


def assert_bitwise(one, two):
    for name, expected in numbers_of(*one).items():
        np.testing.assert_array_equal(numbers_of(*two)[name], expected, err_msg=name)


def assert_close(found, wanted, tolerance, share=0.7):
    """Most entries agree, relative to the largest.

    The problems are not convex: where two codes of a sample, or two values of a feature, are equally good, rounding
    decides between them. A claim that does not hold moves all entries.
    """
    difference = np.abs(found - wanted) / np.abs(wanted).max(initial=np.finfo(float).tiny)
    assert np.mean(difference <= tolerance) >= share


def reconstruction(outcome):
    model, codes = outcome
    return np.asarray(codes) @ np.asarray(model.components_)


# --- Any data ---------------------------------------------------------------------------------------------------------


def assert_sound(case, dtype, model, codes):
    """Results are finite, non-negative, of the right shape and dtype, and say nothing of what is missing."""
    n, m = case.X.shape
    shapes = {"components_": (case.rank, m), "weights_": (n, m), "codes": (n, case.rank), "outliers_": (n, m)}
    found = numbers_of(model, codes)
    for name, shape in shapes.items():
        assert found[name].shape == shape, name
        assert found[name].dtype == (bool if name == "outliers_" else dtype), name
    for name, values in found.items():
        assert np.isfinite(values).all(), name
        assert name == "objective_" or (values >= 0).all(), name
    assert found["components_"].max() <= 1
    assert found["weights_"].max() <= 1
    assert not found["outliers_"][~case.observed].any()
    assert not found["weights_"][~case.observed].any()


@pytest.mark.thinned(8)
@each_effort
@each_method
def test_results_are_finite_non_negative_and_keep_shape_and_dtype(method, effort):
    @effort
    @given(
        case=cases_for(method),
        dtype=st.sampled_from([np.float64, np.float32]),
        layout=st.sampled_from(sorted(LAYOUTS)),
        engine=each_engine,
        solver=st.sampled_from(SOLVERS),
        preset=st.sampled_from(["default", "published"]),
    )
    def holds(case, dtype, layout, engine, solver, preset):
        context, options = ENGINES[engine]
        X = LAYOUTS[layout](case.X.astype(dtype))
        solver = "auto" if method not in ALTERNATING else solver
        with context():
            model, codes = fit(method, case.given(X=X), solver=solver, preset=preset, **options)
            again = np.asarray(model.transform(X, weights=case.weights))
        assert_sound(case, dtype, model, codes)
        np.testing.assert_array_equal(again, codes)

    holds()


@pytest.fixture(scope="module")
def cluster():
    """Workers of Dask that are threads of this process."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending large graph", "ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["stream", "dask"])
@each_alternating
def test_engines_for_large_data_give_sound_results_that_are_those_of_numpy(method, kind, cluster):
    """From the same start, to 1e-6; and what they hold of a sample is what they say of it when asked again."""
    serves_all = isinstance(METHODS[method].default.solver, LossSolver) and method != "rnmf-l1"

    @settings(max_examples=40 if kind == "stream" else 4, **common)
    @given(
        case=cases_for(method, well_posed=True),
        dtype=st.sampled_from([np.float64, np.float32]),
        block_bytes=st.sampled_from([100, 1000]),
        solver=st.sampled_from(["hals", "nesterov", "multiplicative"] if serves_all else SOLVERS),
    )
    def holds(case, dtype, block_bytes, solver):
        case = case.given(X=case.X.astype(dtype))
        engine = StreamingEngine(block_bytes=block_bytes) if kind == "stream" else DaskEngine(block_bytes=block_bytes)
        options = {"schedule": "plain", "init": "random", "solver": solver, "max_iter": 3}
        model, codes = fit(method, case, engine=engine, **options)
        assert_sound(case, dtype, model, codes)
        again = np.asarray(model.transform(case.X, weights=case.weights))
        np.testing.assert_array_equal(again, np.asarray(codes))
        expected = fit(method, case, **options)
        if dtype == np.float64:
            assert_close(reconstruction((model, codes)), reconstruction(expected), 1e-6)

    holds()


@each_effort
@each_alternating
def test_objective_never_rises_at_fixed_scale(method, effort):
    @effort
    @given(case=cases_for(method), solver=st.sampled_from(SOLVERS), cap=st.sampled_from([None, 4.0]))
    def holds(case, solver, cap):
        scale = np.median(case.X[case.observed & (case.X > 0)]) if (case.X > 0).any() else 1.0
        outliers = cap if cap and not isinstance(METHODS[method].default.solver, LossSolver) else "none"
        model, _ = fit(method, case, solver=solver, schedule="plain", scale=scale, outliers=outliers, max_iter=20)
        objective = model.history_["objective"]
        assert np.all(np.diff(objective) <= 1e-9 * np.abs(objective[:-1]) + 1e-12)

    holds()


# --- What must not matter ---------------------------------------------------------------------------------------------


@pytest.mark.thinned(8)
@each_effort
@each_method
def test_unit_of_the_data_does_not_matter(method, effort):
    """A power of two rounds nothing, so the answer is the same bit by bit, in that unit."""

    @effort
    @given(case=cases_for(method), power=st.sampled_from([-200, -3, 1, 40, 300]), engine=each_engine)
    def holds(case, power, engine):
        context, options = ENGINES[engine]
        factor = 2.0**power
        # The hypersurface cost, as published, has a scale of one unit of the data.
        has_unit = isinstance(METHODS[method].default.scale, FixedScale)
        other = case.given(X=case.X * factor)
        with context():
            one, codes = fit(method, case, **options, **({"scale": 1.0} if has_unit else {}))
            two, scaled = fit(method, other, **options, **({"scale": factor} if has_unit else {}))
        np.testing.assert_array_equal(two.components_, one.components_)
        np.testing.assert_array_equal(two.outliers_, one.outliers_)
        np.testing.assert_array_equal(scaled, codes * factor)

    holds()


@pytest.mark.thinned(8)
@each_effort
@each_alternating
def test_unit_of_the_weights_does_not_matter(method, effort):
    @effort
    @given(case=cases_for(method), power=st.sampled_from([-300, -1, 5, 300]), engine=each_engine)
    def holds(case, power, engine):
        context, options = ENGINES[engine]
        if case.weights is not None:
            with context():
                other = case.given(weights=case.weights * 2.0**power)
                assert_bitwise(fit(method, case, **options), fit(method, other, **options))

    holds()


@each_effort
@each_alternating
def test_order_of_samples_and_features_does_not_matter(method, effort):
    @effort
    @given(case=cases_for(method, well_posed=True), seed=st.integers(0, 99), solver=st.sampled_from(SOLVERS))
    def holds(case, seed, solver):
        rng = np.random.default_rng(seed)
        rows, columns = rng.permutation(case.X.shape[0]), rng.permutation(case.X.shape[1])
        weights = None if case.weights is None else case.weights[rows][:, columns]
        other = case.given(X=case.X[rows][:, columns], weights=weights)
        options = plain(method) | {"solver": solver, "max_iter": 3}
        one = fit(method, case, init=GivenStart(case), **options)
        two = fit(method, other, init=GivenStart(case, rows, columns), **options)
        assert_close(reconstruction(two), reconstruction(one)[rows][:, columns], 1e-6)

    holds()


@pytest.mark.thinned(8)
@each_effort
@each_method
def test_cut_into_blocks_does_not_matter(method, effort):
    @effort
    @given(
        case=cases_for(method, well_posed=True),
        block_entries=st.sampled_from([1, 7, 40]),
        solver=st.sampled_from(SOLVERS),
        engine=each_engine,
    )
    def holds(case, block_entries, solver, engine):
        context, options = ENGINES[engine]
        options = options | plain(method) | ({"solver": solver} if method in ALTERNATING else {})
        with context():
            whole = fit(method, case, **options, max_iter=3)
            with blocks_of(block_entries, engine):
                cut = fit(method, case, **options, max_iter=3)
        assert_close(reconstruction(cut), reconstruction(whole), 1e-6)

    holds()


@pytest.mark.thinned(8)
@each_effort
@each_method
def test_number_of_threads_does_not_change_a_bit(method, effort):
    @effort
    @given(case=cases_for(method), threads=st.sampled_from([2, 5]), block_entries=st.sampled_from([1, 20]))
    def holds(case, threads, block_entries):
        outcomes = []
        for n_threads in (1, threads):
            with (
                patch.object(numpy_engine, "BLOCK_ENTRIES", block_entries),
                patch.object(numpy_engine, "_default_threads", lambda n=n_threads: n),
            ):
                outcomes.append(fit(method, case))
        assert_bitwise(*outcomes)

    holds()


@pytest.mark.thinned(8)
@each_effort
@each_alternating
def test_entry_of_weight_zero_has_no_influence(method, effort):
    values = st.sampled_from([0.0, 1e300, 5e-324, -1.0, np.nan, np.inf, -np.inf])

    @effort
    @given(
        case=cases_for(method),
        held=values,
        seed=st.integers(0, 99),
        preset=st.sampled_from(["default", "published"]),
        engine=each_engine,
    )
    def holds(case, held, seed, preset, engine):
        context, options = ENGINES[engine]
        nowhere = np.random.default_rng(seed).random(case.X.shape) < 0.3
        nowhere &= np.arange(nowhere.size).reshape(nowhere.shape) != np.argmax(case.observed)  # one entry must stay
        weights = (np.ones_like(case.X) if case.weights is None else case.weights) * ~nowhere
        with context():
            one, two = (
                fit(method, case.given(X=np.where(nowhere, value, case.X), weights=weights), preset=preset, **options)
                for value in (1.0, held)
            )
        assert_bitwise(one, two)

    holds()


# Steps of these depend on a bound that takes samples as equals, so that only the end of the way is the same; and a
# penalty on codes is one per sample, whatever the weight of the sample.
OTHER_WAYS = SharedGram | Smoothing
UNPENALISED = [name for name in ALTERNATING if not METHODS[name].default.penalties]


@each_effort
@pytest.mark.parametrize("method", UNPENALISED)
def test_integer_weights_are_copies_of_samples(method, effort):
    solvers = ["hals", "nesterov", "multiplicative"]
    if not isinstance(METHODS[method].default.solver, OTHER_WAYS):
        solvers.append("auto")

    @effort
    @given(case=cases(weights=False, well_posed=True), seed=st.integers(0, 99), solver=st.sampled_from(solvers))
    def holds(case, seed, solver):
        copies = np.random.default_rng(seed).integers(1, 4, len(case.X))
        samples = np.repeat(np.arange(len(copies)), copies)
        weighted = case.given(weights=np.repeat(copies[:, None], case.X.shape[1], axis=1).astype(float))
        options = {"schedule": "plain", "max_iter": 3, "solver": solver}
        one = fit(method, weighted, init=GivenStart(case), **options)
        two = fit(method, case.given(X=case.X[samples]), init=GivenStart(case, samples), **options)
        assert_close(reconstruction(two), reconstruction(one)[samples], 1e-6)

    holds()


@pytest.mark.thinned(8)
@each_effort
@each_method
def test_single_precision_is_close_to_double(method, effort):
    @effort
    @given(case=cases_for(method, well_posed=True))
    def holds(case):
        case = case.given(X=case.X.astype(np.float32).astype(np.float64))
        options = {"max_iter": 3}
        if method in ALTERNATING:
            options |= {"schedule": "plain", "init": GivenStart(case)}
        if method == "hypersurface":  # of one unit of the data, whatever that is, with losses that vanish beside it
            options["scale"] = "first"
        double = reconstruction(fit(method, case, **options))
        single = reconstruction(fit(method, case.given(X=case.X.astype(np.float32)), **options))
        # A scale that comes from a histogram moves when an entry is rounded into the next bin.
        assert_close(single, double, 0.05 if isinstance(METHODS[method].default.scale, MixtureScale) else 1e-3)

    holds()


@pytest.mark.thinned(8)
@each_effort
@each_method
def test_samples_are_encoded_by_themselves(method, effort):
    @effort
    @given(case=cases_for(method, weights=False, well_posed=True))
    def holds(case):
        model, _ = fit(method, case)
        alone = np.concatenate([model.transform(sample[None]) for sample in case.X])
        assert_close(alone, model.transform(case.X), 1e-6)

    holds()


@pytest.mark.thinned(8)
@each_effort
@each_method
def test_saved_model_says_the_same(method, effort):
    @effort
    @given(case=cases_for(method), dtype=st.sampled_from([np.float64, np.float32]))
    def holds(case, dtype):
        model, codes = fit(method, case.given(X=case.X.astype(dtype)))
        with TemporaryDirectory() as folder:
            model.save(f"{folder}/m")
            same = load(f"{folder}/m")
        X = case.X.astype(dtype)
        np.testing.assert_array_equal(same.transform(X, weights=case.weights), codes)
        np.testing.assert_array_equal(same.clean(X), model.clean(X))

    holds()
