"""What fails in the middle of a fit with Torch leaves the device usable, its memory free, and the next fit the same."""

import gc
import multiprocessing
import os
import signal
from shutil import which

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from robustnmf import RobustNMF  # noqa: E402  (needs Torch)
from robustnmf.engines import clear_cache  # noqa: E402
from robustnmf.engines.torch_engine import TorchEngine  # noqa: E402
from robustnmf.kernels.cuda.graphs import Captures, record  # noqa: E402
from robustnmf.selection.stability import consensus  # noqa: E402
from robustnmf.utils.gpu_sharing import COMMAND, environment_of_workers  # noqa: E402
from robustnmf.utils.parallel import Workers, delayed, run_all  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class FailsAt:
    """A function that runs out of memory when it is called for the n-th time."""

    def __init__(self, function, n=None):
        self.function, self.n, self.calls = function, n, 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls == self.n:
            raise torch.OutOfMemoryError("no memory is left, says the test")
        return self.function(*arguments, **options)

    def __get__(self, engine, owner=None):  # a method of an engine
        return lambda *arguments, **options: self(engine, *arguments, **options)


def make(device, shape=(120, 60)):
    """Return data of rank 3 with noise and 5 % gross errors."""
    rng = np.random.default_rng(0)
    X = rng.random((shape[0], 3)) @ rng.random((3, shape[1])) * (1 + 0.03 * rng.standard_normal(shape))
    X[rng.random(shape) < 0.05] = 9.0
    return torch.asarray(np.abs(X), dtype=torch.float32, device=device)


def fit(X, **options):
    return RobustNMF(3, random_state=0, engine="torch", device=X.device.type, **options).fit(X)


def memory(device):
    gc.collect()
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def check_same(X, reference, held, device):
    """Fit again: bit for bit the same, with no more memory held than before the failure."""
    assert memory(device) <= held
    np.testing.assert_array_equal(fit(X).components_, reference)
    assert memory(device) <= held


def moments(counted, n=3):
    """Return some of the calls of a function, from the first to the last."""
    return sorted({round(k) for k in np.linspace(1, counted, n)})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["map", "map_and_sum", "place"])
def test_a_fit_that_runs_out_of_memory_leaves_the_next_as_it_was(device, name, monkeypatch):
    X = make(device)
    fit(X)
    precision = torch.get_float32_matmul_precision()
    original = getattr(TorchEngine, name)
    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, name, counting := FailsAt(original))
        reference = fit(X).components_
    held = memory(device)
    assert counting.calls > 3
    for n in moments(counting.calls):
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError, match="says the test"):
            patch.setattr(TorchEngine, name, FailsAt(original, n))
            fit(X)
        assert torch.get_float32_matmul_precision() == precision
        check_same(X, reference, held, device)


@pytest.mark.gpu
def test_a_kernel_that_fails_while_it_is_recorded_leaves_the_next_fit_as_it_was(monkeypatch):
    from robustnmf.kernels.cuda import steps

    X, original = make("cuda"), steps.half_step
    fit(X)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "half_step", counting := FailsAt(original))
        reference = fit(X).components_
    held = memory("cuda")
    for n in range(1, counting.calls + 1):
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError, match="says the test"):
            patch.setattr(steps, "half_step", FailsAt(original, n))
            fit(X)
        check_same(X, reference, held, "cuda")


@pytest.mark.gpu
def test_graphs_are_gone_with_their_owner():
    device = torch.device("cuda", 0)
    A = torch.ones(4, device=device) + 1
    with Captures(device) as owner:
        graph, result = record(lambda: A + 1)
        with Captures(device) as inner:
            record(lambda: A + 2)
        assert (len(inner.graphs), inner.pool) == (0, None)
        graph.replay()
        assert result.tolist() == [3.0] * 4
        pool = owner.pool
    with pytest.raises(RuntimeError):
        graph.replay()
    with pytest.raises(LookupError), Captures(device) as again:
        assert again.pool == pool
        raise LookupError("as the test wants")
    with Captures(device) as again:
        assert again.pool == pool


@pytest.mark.parametrize("device", DEVICES)
def test_a_callback_that_raises_leaves_the_next_fit_as_it_was(device):
    X = make(device)
    fit(X)
    reference = fit(X)
    held, n_iter = memory(device), reference.n_iter_

    def failing(at):
        def callback(iteration):
            if iteration.n_iter == at:
                raise LookupError("as the test wants")

        return callback

    for number in moments(n_iter - 1):
        with pytest.raises(LookupError, match="as the test wants"):
            fit(X, callback=failing(number))
        check_same(X, reference.components_, held, device)


@pytest.mark.gpu
def test_memory_that_runs_out_is_an_error_and_comes_back():
    X = make("cuda", shape=(6000, 1500))
    reference = fit(X).components_
    clear_cache()
    held = memory("cuda")
    total = torch.cuda.get_device_properties(X.device).total_memory
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2 * X.nbytes) / total)
        with pytest.raises(torch.OutOfMemoryError):
            fit(X)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    clear_cache()
    check_same(X, reference, held + 2**25, "cuda")  # what graphs keep for the next fit


def _in_fork(found):
    try:
        fit(torch.ones((4, 4)).to("cuda"))
        found.put("fitted on a GPU")
    except RuntimeError as error:
        found.put(str(error))
    clear_cache()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_is_told_to_spawn_and_the_gpu_stays_usable():
    X = make("cuda")
    reference, context = fit(X).components_, multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=_in_fork, args=(found,))
    child.start()
    assert "spawn" in found.get(timeout=60)
    child.join(timeout=60)
    assert child.exitcode == 0
    np.testing.assert_array_equal(fit(X).components_, reference)


@pytest.mark.gpu
def test_fits_in_processes_on_a_gpu_are_those_of_one():
    X = make("cuda")
    one, many = (consensus(X, 3, n_init=4, random_state=0, n_jobs=n_jobs) for n_jobs in (1, 3))
    np.testing.assert_array_equal(one.components, many.components)
    np.testing.assert_array_equal(one.similarity, many.similarity)
    assert (one.model.outliers_ == many.model.outliers_).all()


@pytest.mark.gpu
@pytest.mark.skipif(which(COMMAND) is None, reason="needs NVIDIA's Multi-Process Service")
def test_processes_share_a_gpu_after_workers_were_killed():
    X, reference = make("cuda"), fit(make("cuda")).components_
    for _ in range(2):
        consensus(X, 3, n_init=4, random_state=0, n_jobs=3)
        assert environment_of_workers()
        with pytest.raises(Exception, match="terminated"):
            run_all((delayed(_die)(os.getpid()) for _ in range(6)), 3, Workers(kind="deadly"))
    np.testing.assert_array_equal(fit(X).components_, reference)


def _die(employer):
    if os.getpid() != employer:  # which does some of the work itself
        os.kill(os.getpid(), signal.SIGKILL)
