"""Both half-steps in one pass: against two half-steps, kernels against their reference, and what must not matter."""

import numpy as np
import pytest

from robustnmf.algorithm.halfquadratic import Method, sweep
from robustnmf.engines import NumPyEngine
from robustnmf.kernels.interface import NO_KERNELS
from robustnmf.kernels.line_search import MOST_ROWS, checked_features, checked_rows
from robustnmf.kernels.numba import one_block
from robustnmf.kernels.numba import sweep as numba_pass
from robustnmf.kernels.numba.functions import _laplace_and_uniform
from robustnmf.kernels.numba.sweep import rule_of
from robustnmf.model.losses import Absolute, Cauchy, Correntropy, Huber, Hypersurface, SampleNorm, Squared, Truncated
from robustnmf.model.outliers import NoRejection
from robustnmf.model.penalties import ElasticNet, Penalties
from robustnmf.model.scales import FixedScale
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import SharedGram
from robustnmf.solvers.objective import Objective
from robustnmf.solvers.shared_gram import advance, propose

LOSSES = [
    Squared(),
    Cauchy(),
    Huber(),
    Absolute(),
    Hypersurface(),
    Correntropy(),
    Truncated(Cauchy(), 4.0),
    Truncated(Squared(), 9.0),
]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: getattr(loss, "name", str(loss)))


def one_pass(V, M, hidden, W, Ht, *, solver, engine, **parts):
    """Return both factors after a sweep."""
    return solver.sweep(V, M, W, Ht, Objective(**parts), engine, hidden)


def improved(Y, M, X, A, penalty, *, solver, engine, **parts):
    """Return X after a half-step."""
    return solver.half_step(Y, M, X, A=A, penalty=penalty, engine=engine, xp=engine.xp, **parts)


class ReferenceEngine(NumPyEngine):
    """An engine without kernels."""

    kernels = NO_KERNELS


class State:
    """Random data and factors."""

    def __init__(self, n=37, m=23, r=4, dtype=np.float64, missing=False, seed=0):
        rng = np.random.default_rng(seed)
        self.X = (rng.random((n, r)) @ rng.random((r, m)) + 0.1 * rng.random((n, m))).astype(dtype)
        self.X[rng.random((n, m)) < 0.1] *= 20
        self.M = rng.integers(0, 3, (n, m)).astype(dtype) / 2 if missing else None
        self.W, self.Ht = rng.random((m, r)).astype(dtype), rng.random((n, r)).astype(dtype)
        flat = np.sort(rng.choice(n * m, n * m // 20, replace=False))
        self.hidden = np.stack(np.divmod(flat, m), axis=1)

    def sweep(self, weighting, engine, *, hidden=None, penalty=0.0, solver=None, X=None):
        """Return W and codes after one iteration."""
        V = engine.split(self.X if X is None else X)
        rows = np.cumsum([0, *(len(block) for block in V)])
        if hidden is not None:
            starts = np.searchsorted(hidden[:, 0], rows)
            hidden = [hidden[a:b] - [row, 0] for a, b, row in zip(starts, starts[1:], rows, strict=False)]
        M = None if self.M is None else engine.split(self.M, like=V)
        method = Method(
            weighting.loss, FixedScale(1.0), NoRejection(), solver or SharedGram(3), Penalties(product=penalty)
        )
        W, Ht = sweep(V, M, self.W, engine.split(self.Ht, like=V), weighting, method, engine, hidden)
        return W, np.concatenate(Ht)


def assert_close(found, expected, dtype=np.float64):
    tolerance = 1e-10 if dtype == np.float64 else 1e-3
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@each_loss
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "weighted"])
def test_kernels_agree_with_their_reference(loss, dtype, missing):
    state = State(dtype=dtype, missing=missing)
    cut = np.linspace(1.0, 3.0, 23, dtype=dtype)
    for weighting in (Weighting(loss, 0.5), Weighting(loss, 0.5, cut)):
        for hidden, penalty in ((None, 0.0), (state.hidden, 0.3)):
            options = {"hidden": hidden, "penalty": penalty}
            fast, slow = (state.sweep(weighting, engine, **options) for engine in (NumPyEngine(), ReferenceEngine()))
            assert_close(fast, slow, dtype)


@each_loss
@pytest.mark.parametrize(("n", "m"), [(37, 23), (40, 1100)], ids=["all features check", "some check"])
@pytest.mark.parametrize("missing", [False, True])
def test_tiles_of_features_agree_with_tiles_of_rows(loss, n, m, missing, monkeypatch):
    """With a large basis, tiles have all rows and some of the features: here seven."""
    state = State(n=n, m=m, missing=missing)
    weighting = Weighting(loss, 0.3, np.linspace(0.5, 2, m))
    expected = state.sweep(weighting, NumPyEngine(), hidden=state.hidden)
    monkeypatch.setattr(numba_pass, "LARGE_BASIS", 1)
    monkeypatch.setattr(numba_pass, "ROWS_OF_LARGE", 1)
    monkeypatch.setattr(numba_pass, "LARGE_TILE_ENTRIES", 7 * n)
    assert_close(state.sweep(weighting, NumPyEngine(), hidden=state.hidden), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("r", [8, 24, 25, 26, 27, 28, 99])
def test_coordinates_agree_with_the_reference(r, dtype):
    """Steps of four of many coordinates are taken together: ranks that four divides, and others; dead ones stay."""
    rng = np.random.default_rng(r)
    A, X = rng.gamma(1.0, size=(150, r)).astype(dtype), rng.gamma(1.0, size=(11, r)).astype(dtype)
    A[:, 5] = 0
    G, descent = A.T @ A, (rng.random((11, 150)).astype(dtype) - X @ A.T / r) @ A
    curvature = (np.diag(G) * rng.uniform(0.5, 1, (11, r))).astype(dtype)
    curvature[3, 7] = 0
    found = numba_pass.propose(G, descent, curvature, X, 3)
    expected = propose(G, descent, curvature, X, 3, ReferenceEngine())
    np.testing.assert_allclose(found, expected, rtol=0, atol=(1e-10 if dtype == np.float64 else 1e-4) * X.max())
    assert found[3, 7] == 0
    assert np.all(found[:, 5] == 0)
    assert np.abs(found).max() > 0.1


@each_loss
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "weighted"])
def test_one_pass_is_two_half_steps(loss, missing):
    """The codes by their samples, then the basis by its features, each with weights of its own residuals.

    In the Gram matrix of the codes a sample counts by the mean weight it had, features by their squares in W.
    """
    state, engine, weighting = State(missing=missing), NumPyEngine(), Weighting(loss, 0.5)
    squares = (state.W**2).sum(axis=1)
    trust = np.array([np.average(q, weights=squares) for q in weights_of(state, state.Ht, weighting)])
    Ht = improved(state.X, state.M, state.Ht, state.W, None, solver=SharedGram(3), weighting=weighting, engine=engine)
    Q, residual = weights_of(state, Ht, weighting), state.X - Ht @ state.W.T
    descent, gram = (Q * residual).T @ Ht, (Ht.T * trust) @ Ht
    move = propose(gram, descent, Q.T @ Ht**2, state.W, 3, engine)
    bend = (Q * (Ht @ move.T) ** 2).sum(axis=0)
    assert_close(state.sweep(weighting, engine), (advance(state.W, move, descent, bend, np), Ht))


def weights_of(state, Ht, weighting):
    """Return the weights of all entries for these codes."""
    Q = weighting.weights(state.X - Ht @ state.W.T, state.M, np)
    return np.ones_like(state.X) if Q is None else Q


def test_a_wrong_sample_has_no_part_in_the_gram_matrix():
    """However large its code: the basis moves as if it were not there."""
    state, engine = State(), NumPyEngine()
    weighting = Weighting(Cauchy(), 0.5, np.full(23, 2.0))
    expected, _ = state.sweep(weighting, engine)
    state.X = np.vstack([state.X, np.full((1, 23), 1e9)])
    state.Ht = np.vstack([state.Ht, [[1e4, 0, 0, 0]]])
    found, _ = state.sweep(weighting, engine)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("block_entries", [1, 100, 400])
def test_cut_into_blocks_does_not_matter(block_entries):
    state, weighting = State(missing=True), Weighting(Cauchy(), 0.5, np.full(23, 2.0))
    expected = state.sweep(weighting, NumPyEngine(), hidden=state.hidden)
    assert_close(state.sweep(weighting, NumPyEngine(block_entries=block_entries), hidden=state.hidden), expected)


@pytest.mark.parametrize("engine", [NumPyEngine(), ReferenceEngine()], ids=["kernels", "reference"])
def test_hidden_entries_have_no_influence_at_all(engine):
    state, weighting = State(), Weighting(Cauchy(), 0.5)
    X = state.X.copy()
    X[state.hidden[:, 0], state.hidden[:, 1]] = 1e3
    expected = state.sweep(weighting, engine, hidden=state.hidden)
    for a, b in zip(state.sweep(weighting, engine, hidden=state.hidden, X=X), expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("engine", [NumPyEngine(), ReferenceEngine()], ids=["kernels", "reference"])
@pytest.mark.parametrize("n", [40, 3 * MOST_ROWS])
def test_unit_of_the_weights_does_not_change_a_bit(engine, n):
    """However light all entries are: the checks of a step are compared with the samples that they stand for."""
    weighting, rng = Weighting(Cauchy(), 0.5), np.random.default_rng(1)
    states = State(n=n, missing=True), State(n=n, missing=True)
    # So uneven that some steps would go too far, and are shortened.
    states[0].M = rng.random(states[0].X.shape) ** 10 * (rng.random(states[0].X.shape) < 0.3)
    states[1].M = states[0].M * 2.0**-30
    for a, b in zip(*(state.sweep(weighting, engine) for state in states), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("missing", [False, True], ids=["complete", "weighted"])
@pytest.mark.parametrize("n", [40, 3 * MOST_ROWS])
@each_loss
def test_no_iteration_raises_the_objective(loss, n, missing):
    state, weighting, engine = State(n=n, missing=missing), Weighting(loss, 0.2), NumPyEngine()
    counts = 1 if state.M is None else state.M

    def objective():
        return np.sum(counts * weighting.losses(np.abs(state.X - state.Ht @ state.W.T), np))

    path = [objective()]
    for _ in range(30):
        state.W, state.Ht = state.sweep(weighting, engine, solver=SharedGram(8))
        path.append(objective())
    assert np.all(np.diff(path) <= 1e-12 * path[0])
    assert path[-1] < path[0]


def test_codes_and_basis_stay_where_nothing_counts():
    state = State(missing=True)
    state.M[3] = state.M[:, 5] = 0
    W, Ht = state.sweep(Weighting(Cauchy(), 0.5), NumPyEngine())
    np.testing.assert_array_equal(Ht[3], state.Ht[3])
    np.testing.assert_array_equal(W[5], state.W[5])


def test_weights_that_kernels_do_not_know_go_the_slow_way():
    class Own(Cauchy):
        pass

    assert rule_of(Weighting(Own(), 1.0), np.ones((2, 3)), 2) is None
    assert rule_of(Weighting(SampleNorm(), 1.0), np.ones((2, 3)), 2) is None
    assert rule_of(Weighting(Cauchy(), 1.0, np.ones((2, 1))), np.ones((2, 3)), 2) is None
    state = State()
    assert_close(*(state.sweep(Weighting(loss, 0.5), NumPyEngine()) for loss in (Own(), Cauchy())))


def test_arrays_of_any_layout_give_the_same():
    state, weighting = State(), Weighting(Cauchy(), 0.5)
    expected = state.sweep(weighting, NumPyEngine())
    state.X, state.W, state.Ht = (np.asfortranarray(a) for a in (state.X, state.W, state.Ht))
    for a, b in zip(state.sweep(weighting, NumPyEngine()), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_checked_rows_are_evenly_spread_and_few():
    for n in (1, 5, MOST_ROWS, MOST_ROWS + 1, 10_000):
        lengths = [n // 3, n - n // 3 - n // 2, n // 2]
        checks = np.arange(n)[checked_rows([n])[0]]
        first, *others = (np.arange(k)[rows] for k, rows in zip(lengths, checked_rows(lengths), strict=True))
        assert np.concatenate([first, others[0] + n // 3, others[1] + n - n // 2]).tolist() == checks.tolist()
        assert checks.size <= MOST_ROWS
        assert checks.size > min(n, MOST_ROWS) // 2
        assert len(set(np.diff(checks))) <= 1


@pytest.mark.parametrize("p", [1, 1024, 1025, 1260, 1535, 1536, 2000, 4096, 16384, 100_003])
def test_checked_features_are_spread_over_all(p):
    run, skip, count = checked_features(p)
    checks = np.arange(count) // run * skip + np.arange(count) % run
    assert count == p <= 1024 or 256 <= count <= 512
    assert np.all(np.diff(checks) > 0)
    assert checks[0] == 0
    assert p - skip <= checks[-1] < p


def test_histogram_is_that_of_numpy():
    rng = np.random.default_rng(0)
    values, weights, counts = rng.exponential(size=1000), rng.random(1000), np.zeros(40)
    expected, _ = np.histogram(values, 40, (0.0, 2.0), weights=weights)
    *_, inside, _ = _laplace_and_uniform(values, weights, counts, 2.0, 1.0, 0.0, 0, 1)
    np.testing.assert_allclose(counts, expected)
    assert inside == pytest.approx(weights[values <= 2.0].sum())


@pytest.mark.parametrize("engine", [NumPyEngine(), ReferenceEngine()], ids=["kernels", "reference"])
def test_a_single_feature(engine):
    X = np.array([[1.0], [2.0], [4.0]])
    shared = {"solver": SharedGram(), "penalties": Penalties(), "fixed": 0, "engine": engine}
    W, [Ht] = one_pass(
        [X], None, None, np.array([[2.0]]), [np.ones((3, 1))], weighting=Weighting(Squared(), 1.0), **shared
    )
    np.testing.assert_allclose(Ht @ W.T, X, rtol=1e-12)


@pytest.mark.parametrize("engine", [NumPyEngine(), ReferenceEngine()], ids=["kernels", "reference"])
@pytest.mark.parametrize("sweeps", [1, 2])
def test_a_basis_of_zeros_stays(sweeps, engine):
    X, W, Ht = np.arange(12.0).reshape(4, 3), np.zeros((3, 2)), np.ones((4, 2))
    shared = {"solver": SharedGram(max_iter=sweeps), "penalties": Penalties(), "fixed": 0, "engine": engine}
    new, [codes] = one_pass([X], None, None, W, [Ht], weighting=Weighting(Cauchy(), 1.0), **shared)
    np.testing.assert_array_equal(new, W)
    np.testing.assert_array_equal(codes, Ht)


def test_kernels_are_not_compiled_again_for_data_that_is_read_only():
    kernels = (numba_pass._reweight, numba_pass._propose, numba_pass._advance)
    if not hasattr(kernels[0], "signatures"):
        pytest.skip("nothing is compiled")
    numbers, engine = [], NumPyEngine()
    parts = {"weighting": Weighting(Cauchy(), 1.0), "solver": SharedGram(), "engine": engine}
    for writeable in (True, False):
        X, M, W, H = np.ones((4, 3)), np.ones((4, 3)), np.ones((3, 2)), np.ones((4, 2))
        for array in (X, M, W, H):
            array.flags.writeable = writeable
        for weights in (None, M):
            one_pass([X], None if weights is None else [weights], None, W, [H], penalties=Penalties(), fixed=0, **parts)
            improved(X, weights, H, W, None, **parts)
        numbers.append([len(kernel.signatures) for kernel in kernels])
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("n", [37, 300])
@pytest.mark.parametrize("fixed", [0, 2])
@pytest.mark.parametrize("net", [ElasticNet(), ElasticNet(0.2, 0.3)], ids=["plain", "penalised"])
def test_least_squares_on_one_block_needs_no_residuals(n, fixed, net):
    """Gram matrices tell the same as residuals in which all entries have a weight of 1, whatever the samples."""
    state, parts = State(n=n), {"weighting": Weighting(Squared(), 1.0), "fixed": fixed}
    parts["penalties"] = Penalties(codes=net, basis=net)
    blocks, ones = ([state.X], [state.Ht]), [np.ones_like(state.X)]
    found, expected = (
        one_pass(blocks[0], M, None, state.W, blocks[1], solver=SharedGram(3), engine=engine, **parts)
        for M, engine in ((None, NumPyEngine()), (ones, ReferenceEngine()))
    )
    assert_close((found[0], *found[1]), (expected[0], *expected[1]))


def test_one_block_leaves_others_several_blocks_and_makes_no_move_out_of_range():
    state, rule = State(), rule_of(Weighting(Cauchy(), 0.5), State().X, 4)
    how = ((None, None), 0, rule, 3)
    halves = [state.X[:20], state.X[20:]], None, None, state.W, [state.Ht[:20], state.Ht[20:]]
    assert one_block.sweep(*halves, *how) is None
    huge = [np.full_like(state.X, 1e308)], None, None, 1e300 * state.W, [state.Ht]
    with np.errstate(all="ignore"):
        W, (X,) = one_block.sweep(*huge, (None, None), 0, rule_of(Weighting(Squared(), 1.0), state.X, 4), 3)
    assert np.isfinite(W).all() and np.isfinite(X).all()
