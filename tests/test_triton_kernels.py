"""The Triton kernels agree with the reference: in Triton's interpreter on the CPU, as themselves on a CUDA GPU."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ON_GPU = torch.cuda.is_available()
triton = pytest.importorskip("triton")

from robustnmf import TruncatedCauchyNMF  # noqa: E402
from robustnmf.algorithm.encoding import Basis, Judge, order_statistics, settle  # noqa: E402
from robustnmf.algorithm.holdout import HeldOut, Point  # noqa: E402
from robustnmf.algorithm.monitor import Monitor  # noqa: E402
from robustnmf.algorithm.staged import extrapolate  # noqa: E402
from robustnmf.engines import NumPyEngine  # noqa: E402
from robustnmf.engines.torch_engine import TorchEngine  # noqa: E402
from robustnmf.kernels.cuda import graphs as cuda_graphs  # noqa: E402
from robustnmf.kernels.cuda import steps as triton_steps  # noqa: E402
from robustnmf.kernels.cuda.kernels import CudaKernels  # noqa: E402
from robustnmf.kernels.interface import NO_KERNELS, Rule  # noqa: E402
from robustnmf.model.losses import (  # noqa: E402
    Absolute,
    Cauchy,
    Correntropy,
    Huber,
    Hypersurface,
    SampleNorm,
    Squared,
    Truncated,
)
from robustnmf.model.noise import NoiseModel  # noqa: E402
from robustnmf.model.penalties import NO_PENALTIES, ElasticNet, Penalties  # noqa: E402
from robustnmf.model.weighting import Weighting  # noqa: E402
from robustnmf.selection import select_rank  # noqa: E402
from robustnmf.selection.stability import bootstrap_components, consensus  # noqa: E402
from robustnmf.solvers import SharedGram  # noqa: E402
from robustnmf.solvers.base import UNIFORM as SQUARES  # noqa: E402
from robustnmf.solvers.objective import Objective  # noqa: E402
from robustnmf.solvers.shared_gram import propose  # noqa: E402
from robustnmf.utils.arrays import to_host  # noqa: E402

# Where there is a GPU, it runs all tests here.
pytestmark = [pytest.mark.gpu] if ON_GPU else []


def triton_engine(block_entries=None):
    engine = TorchEngine("cuda" if ON_GPU else "cpu", block_entries)
    engine.kernels = CudaKernels(engine.device).table
    return engine


def factors(n=34, m=22, r=3):
    """Return data with 10 % outliers, and the factors to start from."""
    rng = np.random.default_rng(n + m + r)
    X = rng.random((n, r)) @ rng.random((r, m)) + 0.01 * rng.random((n, m))
    X[rng.random((n, m)) < 0.1] = 5.0
    return X, rng.random((m, r)), rng.random((n, r))


def swept(engine, dtype, X, W, H, *, loss, cut=None, M=None, hidden=(), penalties=NO_PENALTIES, fixed=0):
    """Return basis and codes after a sweep."""
    X, W, H = (a.astype(dtype) for a in (X, W, H))
    V = engine.split(X)
    weights = None if M is None else engine.split(M.astype(dtype), like=V)
    positions = [engine.place(np.array(hidden)) for _ in V] if hidden else None
    if isinstance(cut, float):  # as schedules make it: one number, made longer
        cut = engine.xp.broadcast_to(engine.place(cut, V[0].dtype), (X.shape[1],))
    elif cut is not None:
        cut = engine.place(np.asarray(cut, dtype))
    weighting = Weighting(loss, 0.3, cut)
    parts = {"weighting": weighting, "solver": SharedGram(), "penalties": penalties, "fixed": fixed, "engine": engine}
    with engine.running():
        W, Ht = one_pass(V, weights, positions, engine.place(W), engine.split(H, like=V), **parts)
        return to_host(W), to_host(engine.join(Ht))


NETS = Penalties(codes=ElasticNet(0.1, 0.2), basis=ElasticNet(0.2, 0.1))
CASES = {
    "cauchy": {"loss": Cauchy()},
    "cut": {"loss": Cauchy(), "cut": 0.8},
    "cuts": {"loss": Cauchy(), "cut": np.linspace(0.4, 1.2, 22)},
    "weights": {"loss": Cauchy(), "cut": 0.8, "M": "random"},
    "hidden": {"loss": Huber(), "hidden": [(0, 1), (0, 3), (5, 2)]},
    "blocks": {"loss": Hypersurface(), "block_entries": 400},
    "absolute": {"loss": Absolute(), "cut": 0.9},
    "correntropy": {"loss": Correntropy(), "rank": 17},
    "known": {"loss": Squared(), "fixed": 2},
    "all known": {"loss": Cauchy(), "fixed": 3},
    "penalties": {"loss": Truncated(Cauchy(), 4.0), "penalties": NETS},
    "aligned": {"loss": Cauchy(), "cut": 0.8, "shape": (20, 24)},
    "aligned weights": {"loss": Cauchy(), "M": "random", "shape": (20, 24)},
    "wide": {"loss": Cauchy(), "cut": 0.8, "shape": (6, 1100)},
}


PRECISIONS = [(np.float32, 1e-4), (np.float64, 1e-11)]
# The interpreter takes seconds for many features, and one precision shows that all of them are read.
SLOW = ("wide", np.float64)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        pytest.param(name, *precision, marks=[pytest.mark.slow] if (name, precision[0]) == SLOW else [])
        for name in CASES
        for precision in PRECISIONS
    ],
)
def test_a_sweep_is_that_of_numpy(name, dtype, tolerance):
    case = dict(CASES[name])
    X, W, H = factors(*case.pop("shape", (34, 22)), r=case.pop("rank", 3))
    if "M" in case:
        case["M"] = np.random.default_rng(0).integers(0, 3, X.shape) / 2
    block_entries = case.pop("block_entries", None)
    expected = swept(NumPyEngine(block_entries=block_entries), np.float64, X, W, H, **case)
    found = swept(triton_engine(block_entries), dtype, X, W, H, **case)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * theirs.max())


@pytest.mark.parametrize("kind", ["least squares", "most are missing"])
def test_steps_that_few_samples_tell_of_are_those_of_numpy(kind):
    """Of samples that are mostly zero or missing, those that check a step may hardly know the feature."""
    X, W, H = factors(600, 25)
    known = np.random.default_rng(0).random(X.shape) < 0.02
    if kind == "least squares":
        X, how = X * known, {"loss": Squared()}
        X[1::3, :20] *= 50  # these check nothing
    else:
        how = {"loss": Cauchy(), "M": known.astype(float)}
    expected, found = (swept(engine, np.float64, X, W, H, **how) for engine in (NumPyEngine(), triton_engine()))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_data_stored_by_columns_are_read_as_they_are():
    """As they are when the codes of features are improved: the copy engine reads them either way."""
    engine = triton_engine()
    X, W, H = (engine.place(a.astype(np.float32)) for a in factors(20, 24))
    parts = {"weighting": Weighting(Cauchy(), 0.3), "solver": SharedGram(), "penalties": NO_PENALTIES, "fixed": 3}
    found = []
    for Y in (X, X.T.contiguous().T):
        with engine.running():
            found.append(to_host(one_pass([Y], None, None, W, [H], engine=engine, **parts)[1][0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_codes_with_a_scale_of_their_own_are_those_of_numpy():
    X, W, H = factors()
    scales = np.linspace(0.1, 1.0, len(X))[:, None]
    results = []
    for engine, dtype in ((NumPyEngine(), np.float64), (triton_engine(), np.float32)):
        Y, codes, A, scale = (engine.place(a.astype(dtype)) for a in (X, H, W, scales))
        weighting = Weighting(Truncated(Cauchy(), 25.0), scale)
        new = improved(Y, None, codes, A, None, weighting=weighting, solver=SharedGram(), engine=engine)
        results.append(to_host(new))
    np.testing.assert_allclose(results[1], results[0], atol=1e-4 * results[0].max())


@pytest.mark.parametrize("rank", [1, 5, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_proposals_are_those_of_the_reference(rank, dtype):
    rng = np.random.default_rng(rank)
    A, X, descent = rng.random((40, rank)), rng.random((7, rank)), rng.standard_normal((7, rank))
    curvature = rng.random((7, rank)) * (rng.random((7, rank)) < 0.8)
    arrays = [a.astype(dtype) for a in (A.T @ A, descent, curvature, X)]
    expected = propose(*arrays, 3, TorchlessEngine())
    engine = triton_engine()
    found = propose(*map(engine.place, arrays), 3, engine)
    np.testing.assert_allclose(to_host(found), expected, rtol=1e-4 if dtype == "float32" else 1e-9, atol=1e-5)


def one_pass(V, M, hidden, W, Ht, *, solver, engine, **parts):
    """Return both factors after a sweep."""
    return solver.sweep(V, M, W, Ht, Objective(**parts), engine, hidden)


def improved(Y, M, X, A, penalty, *, solver, engine, **parts):
    """Return X after a half-step."""
    return solver.half_step(Y, M, X, A=A, penalty=penalty, engine=engine, xp=engine.xp, **parts)


class TorchlessEngine(NumPyEngine):
    """NumPy without its kernels: the reference itself."""

    kernels = NO_KERNELS


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_order_statistics_are_those_of_sorting(dtype):
    rng = np.random.default_rng(0)
    A = rng.random((9, 300)).astype(dtype)
    A[0], A[1, :200], A[2, 5:] = 0.0, np.inf, 1e-40
    ranks = rng.integers(0, 300, 9)
    engine = triton_engine()
    found = order_statistics(engine.place(A), engine.place(ranks), engine)
    np.testing.assert_array_equal(to_host(found), np.sort(A, axis=1)[np.arange(9), ranks])


def weights_of(E, form, scale, cut, support, constant):
    """Return the weights of residuals as the formulas say."""
    ratio = E / scale
    forms = (
        torch.ones_like(E),
        1 / (1 + ratio**2),
        1 / ratio.abs().clamp(min=1),
        0.5 / torch.sqrt(ratio**2 + constant),
        0.5 * torch.exp(-0.5 * ratio**2),
    )
    return torch.where((E.abs() <= cut) & (ratio.abs() <= support), forms[form], 0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("form", range(5))
@pytest.mark.parametrize(("n", "m", "r"), [(70, 34, 3), (1101, 1203, 30), (1100, 1200, 64)])
def test_sums_in_double_precision_are_what_they_stand_for(n, m, r, form):
    rng, support = torch.Generator("cuda").manual_seed(form), 2.0 if form == 1 else np.inf

    def draw(*shape):
        return torch.rand(shape, generator=rng, dtype=torch.float64, device="cuda")

    Y, X, A, scale = 4 * draw(n, m), draw(n, r), 4 / r * draw(m, r), torch.full_like(draw(1), 0.5)
    Y[3, 5] = torch.nan
    for M, cut, by_features in (
        (None, draw(1), False),
        (draw(n, m), 0.3 + draw(m), False),
        (draw(n, m), draw(m), True),
    ):
        data, (rows, columns) = triton_steps.Data(Y, M, scale, cut, gaps=True), (A, X) if by_features else (X, A)
        data = data.transposed if by_features else data
        of_rows, of_columns = triton_steps.split_factors(rows, columns, torch.float64)
        rule = Rule(form, 0.01, scale, cut, support)
        found = triton_steps._sums([data], of_rows, [of_columns], rule).sum(dim=1)[:, :, :r]
        E = data.Y - rows @ columns.T
        Q = weights_of(E, form, 0.5, cut[:, None] if by_features and len(cut) > 1 else cut, support, 0.01)
        Q = torch.where(torch.isnan(E), 0.0, Q if M is None else Q * data.M)
        expected = torch.stack([torch.where(Q > 0, Q * E, 0.0) @ columns, Q @ columns**2])
        assert float((found - expected).norm() / expected.norm()) < 1e-13


@pytest.mark.parametrize("at_a_time", [1, 264, 396])
@pytest.mark.parametrize(("n_rows", "n_columns"), [(1, 7), (400, 1024), (16384, 16384), (200_000, 2000), (999, 70_001)])
def test_sums_are_split_so_that_they_are_done_earliest(n_rows, n_columns, at_a_time):
    def end(width):
        """Give every program to the place that is free first; return when the last one is done."""
        free = [0] * at_a_time
        for _ in range(-(-n_rows // 64) * -(-n_columns // width)):
            heapq.heapreplace(free, free[0] + width + triton_steps.COLUMNS_TO_BEGIN)
        return max(free)

    n, width = triton_steps._fewest_waves(n_rows, n_columns, 64, 32, at_a_time)
    assert width % 32 == 0
    assert (n - 1) * width < n_columns <= n * width
    widths = {32 * -(-n_columns // (32 * parts)) for parts in range(1, triton_steps.MOST_SPLITS + 1)}
    assert width in widths
    assert end(width) == min(map(end, widths))


def test_tiles_are_narrower_where_memory_is_short(monkeypatch):
    parts = torch.empty((3, 1, 16), dtype=torch.bfloat16)
    assert triton_steps._tile_for(parts, False)[1] == triton_steps.TILES[torch.bfloat16][16][1]
    monkeypatch.setattr(triton_steps, "shared_memory", lambda device: 2**17)
    columns, with_weights = (triton_steps._tile_for(parts, weighted)[1] for weighted in (False, True))
    assert (columns, with_weights) == (64, 32)


def test_what_kernels_cannot_follow_is_left_to_torch():
    kernels = CudaKernels(triton_engine().device)
    Y = torch.ones((2, 3), device=kernels.device)
    assert kernels.rule_of(Weighting(Cauchy(), 1.0), Y, 2) is not None
    assert kernels.rule_of(Weighting(SampleNorm(), 1.0), Y, 2) is None
    assert kernels.rule_of(Weighting(Cauchy(), 1.0, torch.ones((2, 1))), Y, 2) is None
    assert kernels.rule_of(Weighting(Cauchy(), 1.0), Y.half(), 2) is None
    assert kernels.rule_of(Weighting(Cauchy(), 1.0), Y, 129) is None
    assert kernels.rule_of(Weighting(Cauchy(), 1.0), Y.double(), 65) is None


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1100, 1300), (1111, 1037)])
@pytest.mark.parametrize(("rank", "weighted"), [(3, False), (20, False), (50, False), (100, False), (3, True)])
def test_large_data_are_close_to_numpy(shape, rank, weighted):
    """Many components can stand in for each other: the objective is close, however far the factors are."""
    X, W, H = factors(*shape, r=rank)
    case = {"loss": Cauchy(), "cut": float(rank), "M": np.ones_like(X) if weighted else None}
    expected = swept(NumPyEngine(), np.float64, X, W, H, **case)
    found = swept(triton_engine(), np.float32, X, W, H, **case)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(theirs)
    before, theirs, ours = (mean_loss(X, *pair, rank) for pair in ((W, H), expected, found))
    assert abs(ours - theirs) < 1e-3 * (before - theirs)


def mean_loss(X, W, H, cut):
    """Return the truncated Cauchy loss of all entries, at the scale of `swept`."""
    E = np.minimum(np.abs(X - H.astype(np.float64) @ W.astype(np.float64).T), cut)
    return np.log1p((E / 0.3) ** 2).mean()


def test_a_graph_is_recorded_only_of_data_that_stay():
    """Rules for images make new weights in every iteration; a graph would go on reading the old ones."""
    kernels, known = CudaKernels(triton_engine().device), []
    for shape in ((3, 2), (3, 2), (4, 2), (4, 2)):
        for _ in range(2):
            V, M = [torch.ones(shape)], [torch.ones(shape)]  # new ones, though perhaps where others were
            known.append(kernels._is_done_again((id(V[0]), id(M[0])), (V, M)))
    assert not any(known)
    assert kernels._is_done_again((id(V[0]), id(M[0])), (V, M))
    assert not kernels._is_done_again((id(V[0]), id(M[0]), "another loss"), (V, M))


@pytest.mark.gpu
def test_a_step_of_codes_is_the_same_when_it_is_recorded():
    X, W, H = (a.astype(np.float32) for a in factors())
    engine = triton_engine()
    Y, codes, A = engine.place(X), engine.place(H), engine.place(W)
    scales = [0.3, *(torch.full((len(Y), 1), 0.3 / (k + 1), device=Y.device) for k in range(5)), 0.2, 0.2, 0.1]

    def path(bases, engine_of):
        found = [codes]
        for scale, basis in zip(scales, bases, strict=True):
            parts = {"weighting": Weighting(Cauchy(), scale), "solver": SharedGram(), "engine": engine_of()}
            found.append(improved(Y, None, found[-1], basis, None, **parts))
        return found

    with engine.running():
        for bases in ([A] * 9, [A, *[A.clone()] * 3, *[2 * A] * 5]):
            for recorded, alone in zip(path(bases, lambda: engine), path(bases, triton_engine), strict=True):
                torch.testing.assert_close(recorded, alone, rtol=1e-5, atol=1e-6)
        basis = Basis(A, codes[0], Weighting(Cauchy(), 0.3))
        first, second = (settle(Y, None, codes.clone(), basis, engine, 30, 1e-3) for _ in range(2))
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.gpu
def test_new_weights_are_seen_by_the_next_sweep():
    X, W, H = (a.astype(np.float32) for a in factors())
    engine, weighting = triton_engine(), Weighting(Cauchy(), 0.3)
    V, W, Ht = engine.split(X), engine.place(W), [engine.place(H)]
    parts = {"weighting": weighting, "solver": SharedGram(), "penalties": NO_PENALTIES, "fixed": 0, "engine": engine}
    ones = [torch.ones_like(V[0])]
    with engine.running():
        first = [one_pass(V, ones, None, W, Ht, **parts)[0] for _ in range(3)][-1]
        halves = [(torch.rand_like(V[0]) < 0.5).float()]
        second = one_pass(V, halves, None, W, Ht, **parts)[0]
        assert not torch.allclose(first, second)
        expected = one_pass(V, halves, None, W, Ht, **parts | {"engine": triton_engine()})[0]
    torch.testing.assert_close(second, expected)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["clean", "weighted", "visible", "zeros", "equal", "nothing"])
def test_mixtures_of_residuals_are_those_of_the_host(kind):
    rng = np.random.default_rng(0)
    k = 700
    weights = rng.integers(1, 4, k) / 4 if kind == "weighted" else np.ones(k)
    magnitudes = np.where(rng.random(k) < 0.2, 16 * rng.random(k), rng.exponential(0.3, k)).astype(np.float32)
    if kind == "zeros":
        magnitudes[rng.random(k) < 0.6] = 0.0
    if kind in ("equal", "nothing"):
        magnitudes[:] = {"equal": 2.0 + 1e-3 * rng.random(k), "nothing": 0.0}[kind]
    held = HeldOut([], None, [], np.zeros(k), weights, kind != "visible", k, NumPyEngine())
    engine, point = triton_engine(), Point(None, [], magnitudes)
    there = replace(held, values=engine.place(held.values), weights=engine.place(weights), engine=engine)
    expected, found = (h.mixture(point) for h in (held, there))
    assert there.median(point) == pytest.approx(held.median(point), rel=1e-6)
    assert found.share == pytest.approx(expected.share, rel=1e-3)
    if kind == "zeros":  # the peak is that of the zeros, and has no width
        assert max(found.width, expected.width) < 1e-15
    else:
        assert found.width == pytest.approx(expected.width, rel=1e-3)
        assert found.uniform_density == pytest.approx(expected.uniform_density, rel=0.02, abs=1e-6)


@pytest.mark.slow
def test_a_monitor_of_residuals_on_a_device_is_that_of_the_host():
    rng, k = np.random.default_rng(0), 300
    values, weights = rng.random(k), rng.integers(1, 4, k) / 4
    predictions = (values + rng.laplace(scale=scale, size=k) for scale in (0.3, 0.1, 0.2))
    points = [Point(None, [], some.astype(np.float32)) for some in predictions]
    engine = triton_engine()
    held = HeldOut([], None, [], values, weights, True, k, NumPyEngine())
    there = replace(held, values=engine.place(values), weights=engine.place(weights), engine=engine)
    (host, device), shares = (Monitor.begin(h, 0.3, points[0]) for h in (held, there)), []
    for i, point in enumerate(points[1:]):
        cut = 0.2 + 0.1 * i
        host, share = host.see(point, cut)
        device, there_share = device.see(point, engine.place(cut) if i % 2 else cut)
        shares.append([share, there_share])
        median, mixture = there.median(point), there.mixture(point)  # are known by then
        assert median == pytest.approx(held.median(point), rel=1e-6)
        assert mixture.width == pytest.approx(held.mixture(point).width, rel=1e-3)
    for theirs, ours in (zip(*shares, strict=True), (host.path, device.path)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(to_host(device.best), host.best, rtol=1e-6)
    assert host.kept is device.kept is points[1]


@pytest.mark.parametrize("block_entries", [None, pytest.param(400, marks=pytest.mark.slow)])
def test_hidden_entries_are_predicted_with_the_sweep(block_entries):
    engine = triton_engine(block_entries)
    X, W, H = (a.astype(np.float32) for a in factors())
    V = engine.split(X)
    hidden = [engine.place(np.array([[0, 1], [2, 3], [1, 5]])) for _ in V]
    parts = {"weighting": Weighting(Cauchy(), 0.3), "solver": SharedGram(), "penalties": NO_PENALTIES, "fixed": 0}
    W, Ht = engine.place(W), engine.split(H, like=V)
    with engine.running():
        for _ in range(3):  # the first is not recorded
            W, Ht = one_pass(V, None, hidden, W, Ht, engine=engine, **parts)
            assert len(engine.kernels.sweep.__self__.predicted) == len(V)
            for codes, positions in zip(Ht, hidden, strict=True):
                found = engine.kernels.predict(codes, positions, W)
                expected = (codes @ W.T)[positions[:, 0], positions[:, 1]]
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predictions_are_entries_of_the_product(dtype):
    rng = np.random.default_rng(0)
    X, W = rng.random((9, 5)).astype(dtype), rng.random((7, 5)).astype(dtype)
    positions = np.stack([rng.integers(9, size=600), rng.integers(7, size=600)], axis=1)
    engine = triton_engine()
    found = engine.kernels.predict(*map(engine.place, (X, positions, W)))
    np.testing.assert_allclose(to_host(found), (X @ W.T)[positions[:, 0], positions[:, 1]], rtol=1e-5)


@pytest.mark.slow
def test_codes_settle_as_those_of_the_reference(monkeypatch):
    """However seldom it is looked how many still move, and whichever are left behind."""
    monkeypatch.setattr(cuda_graphs, "FEW_ENOUGH", 4)
    X, W, H = factors(n=40, m=20)
    weighting = Weighting(Cauchy(), 0.3)
    results = []
    for engine, dtype in ((TorchlessEngine(), np.float64), (triton_engine(), np.float32)):
        Y, codes, A = (engine.place(a.astype(dtype)) for a in (X, H, W))
        with engine.running():
            results.append(to_host(settle(Y, None, codes, Basis(A, codes[0], weighting), engine, 30, 1e-3)))
    np.testing.assert_allclose(results[1], results[0], atol=5e-3 * results[0].max())


def test_codes_are_annealed_as_those_of_the_reference():
    """Steps that are recorded read each number anew."""
    X, W, H = factors(n=40, m=20)
    ones = np.ones(len(W))
    noise = NoiseModel(0.05 * ones, ones, 6 * ones, ones, 0.01 * ones, 0 * ones, exponent=0.5, threshold=4.0)
    results = []
    for engine, dtype in ((TorchlessEngine(), np.float64), (triton_engine(), np.float32)):
        Y, codes, A = (engine.place(a.astype(dtype)) for a in (X, H, W))
        there = noise.placed(lambda array, engine=engine, dtype=dtype: engine.place(array.astype(dtype)))
        with engine.running():
            judge = Judge(Basis(A, codes[0], SQUARES, noise=there), engine)
            results.append(to_host(judge.annealed(Y, None, codes)))
    np.testing.assert_allclose(results[1], results[0], atol=5e-3 * results[0].max())
    assert np.abs(results[0] - H).max() > 0.1


def test_momentum_is_that_of_the_reference():
    rng = np.random.default_rng(0)
    new, last = rng.random((2, 9, 4))
    engine, plain = triton_engine(), TorchlessEngine()
    expected = extrapolate(new, last, momentum=0.8, engine=plain, xp=plain.xp)
    found = extrapolate(engine.place(new), engine.place(last), momentum=0.8, engine=engine, xp=engine.xp)
    np.testing.assert_allclose(to_host(found), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
def test_fits_in_threads_are_those_one_after_the_other():
    X = torch.asarray(factors(n=200, m=100, r=4)[0], dtype=torch.float32, device="cuda")
    alone, together = (consensus(X, 4, n_init=6, random_state=0, n_jobs=n_jobs) for n_jobs in (1, 6))
    np.testing.assert_array_equal(together.components, alone.components)
    np.testing.assert_array_equal(together.similarity, alone.similarity)


@pytest.mark.gpu
def test_trial_fits_of_data_on_a_device_are_those_of_the_host():
    X = factors(n=60, m=40, r=3)[0].astype(np.float32)
    there = torch.asarray(X, device="cuda")
    ours, theirs = (select_rank(data, (2, 3), n_splits=2, random_state=0) for data in (there, X))
    assert ours.chosen == theirs.chosen == 3
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=0.05)
    model = TruncatedCauchyNMF(3, random_state=0).fit(there)
    assert bootstrap_components(there, model, n_boot=3, random_state=0).stability.min() > 0.9
