"""The Triton kernels compile for GPUs, also where there is none: the interpreter allows what the compiler does not.

Launches go to a driver that names a GPU and runs nothing, so that what is compiled is what a fit would launch.
"""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

SET_UP = """
import sys
from math import inf

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from robustnmf.kernels.cuda.iteration import Iteration
from robustnmf.kernels.cuda import steps as triton_steps
from robustnmf.kernels.cuda.kernels import CudaKernels
from robustnmf.kernels.cuda.statistics import Statistics, predict
from robustnmf.kernels.interface import CAUCHY, CORRENTROPY, HUBER, ROUNDED, Rule

capability = int(sys.argv[1])


class Driver:
    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


triton.runtime.driver.set_active(Driver())
triton_steps._has_copy_engine = lambda A: capability >= 90
compiled, variants = set(), set()
run = JITFunction.run


def compile_only(self, *args, grid, warmup, **options):
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    assert "cubin" in kernel.asm
    compiled.add(self.fn.__name__)
    variants.add(kernel.hash)


JITFunction.run = compile_only
HALF = [slice(None, None, 2)]


def sweep(shape, rank, form=CAUCHY, reach=inf, cuts=1, weighted=False, gaps=False, by_columns=False, dtype=None):
    def draw(*sides):
        return torch.rand(sides, dtype=dtype)

    Y, W, H = draw(*shape), draw(shape[1], rank), draw(shape[0], rank)
    if by_columns:
        Y = Y.T.contiguous().T
    rule = Rule(form, 0.0, draw(1), draw(cuts), reach)
    penalties = (triton_steps.as_array(None, W),) * 2
    triton_steps.sweep([Y], [draw(*shape) if weighted else None], W, [H], rule, penalties, 0, 3, gaps, HALF)
"""

OF_EVERY_KIND = """
sweep((400, 1024), 40)  # single precision
sweep((1100, 1200), 16, by_columns=True)
sweep((1100, 1201), 5, form=HUBER, cuts=1201)  # not aligned
sweep((5000, 1200), 30, form=CORRENTROPY, weighted=True)
sweep((1100, 1200), 60, form=ROUNDED, reach=3.0, gaps=True)
sweep((1100, 1200), 100)
for rank, weighted in ((16, True), (30, False), (64, True)):
    sweep((1100, 1201), rank, weighted=weighted, dtype=torch.float64)
kernels = CudaKernels(torch.device("cpu"))
for dtype in (torch.float32, torch.float64):
    kernels.order_statistics(torch.rand((2, 100), dtype=dtype), torch.tensor([5, 50]))
look = lambda values, *_: (values, values, torch.ones(4))
statistics = Statistics(torch.ones(50), torch.ones(50) > 0, True, look)
statistics.of(torch.rand(50))
iteration, rule = lambda rule, W, Ht: (W, Ht, [torch.rand(50)]), Rule(CAUCHY, 0.0, None, None, inf)
Iteration(iteration, rule, statistics, [torch.rand(20, 3), torch.rand(10, 3)], "kind")._iterate()
predict(torch.rand(10, 3), torch.tensor([[1, 2]]), torch.rand(20, 3))
print(*sorted(compiled))
"""


WHAT_VARIES = """
def improve(n_rows, rank, scales=1):
    scale, cut = torch.rand(scales), torch.full((1,), 2.0)
    arguments = torch.zeros(rank), 0.0, Rule(CAUCHY, 0.0, scale, cut, inf), 3
    kernels.half_step(Y[:n_rows], None, torch.rand(n_rows, rank), torch.rand(1024, rank), *arguments)


def recorded(rank):  # scale and cut lie behind other numbers
    *_, cut, scale = triton_steps.apart(torch.rand(9), [torch.rand(7), torch.rand(1), torch.rand(1)])
    penalties = (torch.zeros(rank + 1),) * 2
    factors = torch.rand(1024, rank), [torch.rand(400, rank)]
    triton_steps.sweep([Y], [None], *factors, Rule(CAUCHY, 0.0, scale, cut, inf), penalties, 0, 3, True, HALF)


kernels, Y = CudaKernels(torch.device("cpu")), torch.rand(400, 1024)
sweep((400, 1024), 10)
print(len(variants))
improve(400, 10, scales=400)
improve(397, 11)
improve(1, 16, scales=1)
improve(9, 1, scales=9)
recorded(10)
print(len(variants))
for n in (50, 64, 1):
    predict(torch.rand(10, 3), torch.zeros((n, 2), dtype=torch.int64), torch.rand(20, 3))
print(len(variants))
"""


AS_PLANNED = """
from robustnmf.kernels.cuda.compilation import _signature
from robustnmf.kernels.interface import Planned
from robustnmf.model.losses import Cauchy, Squared

launched = set()


def note(self, *args, grid, warmup, **options):
    options.pop("debug", None)
    launched.add((kernels.device, _signature(self, args, options)))


JITFunction.run = note
kernels = CudaKernels(torch.device("cpu"))
for shape in ((400, 1024), (1100, 1200), (1100, 1201), (5000, 1200)):
    for dtype in (torch.float32, torch.float64):
        works = [Planned(Cauchy(), shape, dtype, False, True), Planned(Squared(), shape, dtype, True)]
        works += [Planned(Squared(), (n, 256), dtype, on, of_codes=True) for n in (1, 5000) for on in (True, False)]
        planned = set(kernels.plan(10, works).jobs)
        launched.clear()
        sweep(shape, 10, gaps=True, dtype=dtype)
        sweep(shape, 10, form=0, weighted=True, dtype=dtype)
        Y, X, W = (torch.rand(sizes, dtype=dtype) for sizes in ((5000, 256), (5000, 10), (256, 10)))
        rule = Rule(0, 0.0, torch.ones(1, dtype=dtype), torch.ones(1, dtype=dtype), inf)
        for n in (5000, 3, 1):
            for M in (Y[:n], None):
                kernels.half_step(Y[:n], M, X[:n], W, torch.zeros(10, dtype=dtype), 0.0, rule, 50)
        kernels.order_statistics(Y, torch.zeros(5000, dtype=torch.int64))
        predict(X, torch.zeros((7, 2), dtype=torch.int64), W)
        print(len(launched - planned), len(launched) > 9)
"""


def printed(monkeypatch, code, capability):
    """Return what the code prints that compiles kernels for GPUs of some capability."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = [sys.executable, "-c", SET_UP + code, str(capability)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_without_a_gpu(capability, monkeypatch):
    kernels = {"_fit", "_products", "accumulate", "advance", "check", "descend", "select", "split"}
    assert set(printed(monkeypatch, OF_EVERY_KIND, capability)) == kernels


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_what_varies_within_a_fit_needs_no_other_kernels(capability, monkeypatch):
    numbers = [int(number) for number in printed(monkeypatch, WHAT_VARIES, capability)]
    # Both roles of accumulate and check; one of split, descend and advance; and later, one for predictions.
    assert numbers == [7, 7, 8]


def test_what_a_fit_launches_was_planned(monkeypatch):
    assert printed(monkeypatch, AS_PLANNED, 90) == ["0", "True"] * 8
