"""An iteration that is made as a whole is the one of single kernels: in Triton's interpreter, or on a CUDA GPU."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ON_GPU = torch.cuda.is_available()
pytest.importorskip("triton")

from robustnmf import TruncatedCauchyNMF  # noqa: E402
from robustnmf.algorithm import staged  # noqa: E402
from robustnmf.algorithm.staged import HUBER, TRUNCATED_L1, Staged  # noqa: E402
from robustnmf.engines.torch_engine import TorchEngine  # noqa: E402
from robustnmf.kernels.cuda import kernels  # noqa: E402
from robustnmf.kernels.cuda.iteration import Iteration  # noqa: E402
from robustnmf.methods import resolve  # noqa: E402
from robustnmf.utils.arrays import to_host  # noqa: E402

# Where there is a GPU, it runs all tests here.
pytestmark = [pytest.mark.gpu] if ON_GPU else []


def data(n, m, rank=3, seed=0, dtype="float32"):
    """Return data with 10 % outliers."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, rank)) @ rng.random((rank, m)) + 0.01 * rng.random((n, m))
    X[rng.random((n, m)) < 0.1] = 5.0
    return X.astype(dtype)


@pytest.fixture
def counted(monkeypatch):
    """Count the iterations that are made as a whole."""
    counts = []
    make = Iteration.make

    def counting(self, *arguments):
        counts.append(self.led_to[0] is arguments[0][0])
        return make(self, *arguments)

    monkeypatch.setattr(Iteration, "make", counting)
    return counts


def fit(X, M, stage, *, whole):
    """Return the factors after a short fit, and its history."""
    engine = TorchEngine("cuda" if ON_GPU else "cpu")
    engine.kernels = kernels.CudaKernels(engine.device).table
    if not whole:
        engine.kernels = replace(engine.kernels, iterate=None)
    parts = resolve("truncated-cauchy", "default")
    plan = Staged((stage,), initial_iter=2, trial_iter=2, last_iter=2)
    with engine.running():
        V = engine.split(engine.place(X))
        weights = None if M is None else engine.split(engine.place(M), like=V)
        W, H = parts.init(X.T, None if M is None else M.T, 3, np.random.default_rng(0))
        Ht = engine.split(engine.place(H.T.copy()), like=V)
        options = {"max_iter": 40, "tol": 1e-4, "scale_floor": 1e-7, "callback": lambda i: i.n_iter == 7}
        result = plan(V, weights, engine.place(W), Ht, parts.method, engine, **options)
    factors = [to_host(a) for a in (result.state.W, *result.state.Ht)]
    return factors, [iteration[:4] for iteration in result.history]


# 20 x 15 entries are too few to hide any; with 100 x 60 some are hidden, and given weights they are NaN besides.
@pytest.mark.parametrize(
    ("shape", "weighted", "stage", "dtype"),
    [
        pytest.param((20, 15), False, HUBER, "float32", marks=() if ON_GPU else pytest.mark.slow),
        pytest.param((20, 15), False, HUBER, "float64", marks=() if ON_GPU else pytest.mark.slow),
        pytest.param((100, 60), True, TRUNCATED_L1, "float32", marks=pytest.mark.slow),
    ],
)
def test_whole_iterations_are_those_of_single_kernels(shape, weighted, stage, dtype, counted, monkeypatch):
    monkeypatch.setattr(staged, "misfit", lambda fit, point: 0.0)  # which takes long in the interpreter
    X = data(*shape, dtype=dtype)
    M = (np.random.default_rng(1).random(shape) < 0.9).astype(dtype) if weighted else None
    (factors, history), (expected, expected_history) = (fit(X, M, stage, whole=way) for way in (True, False))
    assert history == expected_history
    for found, wanted in zip(factors, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(counted) >= len(history) - 1
    # Only where a stage begins, the factors are copied to where the iteration reads them.
    assert counted.count(False) <= 4


def test_data_that_lies_otherwise_in_memory_is_of_another_kind():
    """Kernels may have to be compiled for it, which is not possible while they are recorded."""
    numbers = torch.zeros(40)
    layouts = [kernels._layout(a.reshape(6, -1)) for a in (numbers[:36], numbers[4:40], numbers[1:37])]
    assert layouts[0] == layouts[1] != layouts[2]
    assert kernels._layout(torch.zeros(6, 6).T[:, :5]) != kernels._layout(torch.zeros(6, 5))
    assert kernels._layout(torch.zeros(6, 6)) != kernels._layout(torch.zeros(6, 6, dtype=torch.float64))


@pytest.mark.gpu  # whole fits take long in the interpreter
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"weights": True}, {"fixed": 1}, {"alpha_W": 0.01}, {"scale": 0.1}])
def test_fits_are_the_same_without_whole_iterations(options, dtype, counted, monkeypatch):
    X, options = data(200, 120, dtype=dtype), dict(options)
    weights = np.random.default_rng(1).random(X.shape).astype(dtype) if options.pop("weights", False) else None
    if options.pop("fixed", False):
        options["fixed_components"] = X[:1]
    model = TruncatedCauchyNMF(4, random_state=0, device="cuda", **options)
    ours = model.fit(X, weights=weights)
    found, n_iter = ours.components_, ours.n_iter_
    assert len(counted) == n_iter
    monkeypatch.setattr(kernels.CudaKernels, "iterate", lambda *_: None)
    np.testing.assert_array_equal(model.fit(X, weights=weights).components_, found)
    assert model.n_iter_ == n_iter
