"""Iterations that are made ahead are those that the host would have made: in Triton's interpreter, or on a CUDA GPU."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ON_GPU = torch.cuda.is_available()
pytest.importorskip("triton")

from robustnmf import TruncatedCauchyNMF  # noqa: E402
from robustnmf.algorithm.checkpoint import Journal  # noqa: E402
from robustnmf.algorithm.holdout import HeldOut, Judge  # noqa: E402
from robustnmf.algorithm.staged import TRUSTING, WARY, Staged, _Log, _Walk  # noqa: E402
from robustnmf.engines.torch_engine import TorchEngine  # noqa: E402
from robustnmf.kernels.cuda import kernels as triton_twins  # noqa: E402
from robustnmf.kernels.cuda import speculation as triton_ahead  # noqa: E402
from robustnmf.methods import resolve  # noqa: E402
from robustnmf.utils.arrays import to_host  # noqa: E402


def data(n, m, rank=3, seed=0):
    """Return data with 10 % outliers."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, rank)) @ rng.random((rank, m)) + 0.01 * rng.random((n, m))
    X[rng.random((n, m)) < 0.1] = 5.0
    return X.astype(np.float32)


@pytest.fixture
def counted(monkeypatch):
    """Count the iterations that are made ahead, and how often that begins anew."""
    counts = {"made": 0, "begun": 0}

    def counting(name, method):
        def counted(self, *arguments):
            counts[name] += 1
            return method(self, *arguments)

        return counted

    for name, method in (("made", "_make"), ("begun", "_begin")):
        monkeypatch.setattr(triton_ahead.Ahead, method, counting(name, getattr(triton_ahead.Ahead, method)))
    return counts


class _QuickWalk(_Walk):
    """A walk that does not ask which path is better: that takes long in the interpreter."""

    def _misfit(self, point):
        return 0.0


def walk_through(X, M, opening, *, ahead):
    """Return points after an opening and a trial, after iterations that go on otherwise than expected, and the log."""
    engine = TorchEngine("cuda" if ON_GPU else "cpu")
    engine.kernels = triton_twins.CudaKernels(engine.device).table
    if not ahead:
        engine.kernels = replace(engine.kernels, iterate=None)
    plan = Staged(opening_iter=2, trial_iter=2, last_iter=2)
    parts = resolve("truncated-cauchy", "default")
    with engine.running():
        V = engine.split(engine.place(X))
        weights = None if M is None else engine.split(engine.place(M), like=V)
        W, H = parts.init(X.T, None if M is None else M.T, 3, np.random.default_rng(0))
        held = HeldOut.draw(V, weights, engine)
        journal = Journal(None, engine, [V], 3, len(held.values))
        log = _Log(None, journal)
        walk = _QuickWalk(plan, V, weights, parts.method, engine, held, log, journal, 3, 60, 1e-4, 1e-7, None)
        start = held.point(engine.place(W), engine.split(engine.place(H.T.copy()), like=V))
        path = walk.open(start, opening)
        judge, weighting = Judge(held, 0.1, path.best), walk.weigh(path.point, path.mixture)
        walk.momentum = 0.7
        settled = walk._settle(path.point, weighting, judge)
        stage = walk._main_stage(judge)
        once = walk._advance(settled, path.point, weighting, stage, 3)
        walk.momentum = 0.1  # nobody could expect that
        twice = walk._advance(once, settled, weighting, stage, 2)
    points = [to_host(a) for point in (path.point, settled, once, twice) for a in (point.W, *point.Ht)]
    return points, [iteration[:4] for iteration in log.history]


# 20 x 15 entries are too few to hide any; with 100 x 60 some are hidden, and given weights they are NaN besides.
@pytest.mark.parametrize(
    ("shape", "weighted", "opening"),
    [((20, 15), False, TRUSTING), pytest.param((100, 60), True, WARY, marks=pytest.mark.slow)],
)
def test_iterations_made_ahead_are_those_of_the_host(shape, weighted, opening, counted):
    X = data(*shape)
    M = (np.random.default_rng(1).random(shape) < 0.9).astype(np.float32) if weighted else None
    (points, history), (expected, expected_history) = (walk_through(X, M, opening, ahead=way) for way in (True, False))
    assert history == expected_history
    for found, wanted in zip(points, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    # An opening, a trial, last iterations, and two that were not what was expected: of those, more were made than used.
    assert counted == {"made": 2 + 2 + 2 + 3 + 2, "begun": 5}


def test_data_that_lies_otherwise_in_memory_is_of_another_kind():
    """Kernels may have to be compiled for it, which is not possible while they are recorded."""
    numbers = torch.zeros(40)
    layouts = [triton_twins._layout(a.reshape(6, -1)) for a in (numbers[:36], numbers[4:40], numbers[1:37])]
    assert layouts[0] == layouts[1] != layouts[2]
    assert triton_twins._layout(torch.zeros(6, 6).T[:, :5]) != triton_twins._layout(torch.zeros(6, 5))


@pytest.mark.skipif(not ON_GPU, reason="whole fits take long in the interpreter")
@pytest.mark.parametrize("options", [{}, {"weights": True}, {"fixed": 1}, {"alpha_W": 0.01}, {"scale": 0.1}])
def test_fits_are_the_same_when_they_look_ahead(options, counted, monkeypatch):
    X = data(200, 120)
    weights = np.random.default_rng(1).random(X.shape).astype(np.float32) if options.pop("weights", False) else None
    if options.pop("fixed", False):
        options["fixed_components"] = X[:1]
    model = TruncatedCauchyNMF(4, random_state=0, device="cuda", **options)
    ours = model.fit(X, weights=weights)
    found, n_iter = ours.components_, ours.n_iter_
    assert n_iter <= counted["made"] <= n_iter + triton_ahead.AT_ONCE * triton_ahead.UNDER_WAY
    monkeypatch.setattr(triton_twins.CudaKernels, "iterate", lambda *_: None)
    np.testing.assert_array_equal(model.fit(X, weights=weights).components_, found)
    assert model.n_iter_ == n_iter
