"""The Triton kernels compile for GPUs, also where there is none: the interpreter allows what the compiler does not.

Launches go to a driver that names a GPU and runs nothing, so that what is compiled is what a fit would launch.
"""

import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

CODE = """
import sys
from math import inf

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from robustnmf.engines import triton_steps, triton_twins
from robustnmf.engines.rules import CAUCHY, CORRENTROPY, HUBER, ROUNDED, Rule

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
compiled = set()
run = JITFunction.run


def compile_only(self, *args, grid, warmup, **options):
    kernel = run(self, *args, grid=grid, warmup=True, **options)
    assert "cubin" in kernel.asm
    compiled.add(self.fn.__name__)


JITFunction.run = compile_only


def sweep(shape, rank, form=CAUCHY, reach=inf, cuts=1, weighted=False, gaps=False, by_columns=False):
    Y, W, H = torch.rand(shape), torch.rand(shape[1], rank), torch.rand(shape[0], rank)
    if by_columns:
        Y = Y.T.contiguous().T
    rule = Rule(form, 0.0, torch.ones(1), torch.full((cuts,), 2.0), reach)
    penalties = triton_steps.given_penalties((None, None), W)
    triton_steps.sweep([Y], [torch.rand(shape) if weighted else None], W, [H], rule, penalties, 0, 3, gaps)


sweep((400, 1024), 40)  # single precision
sweep((1100, 1200), 16, by_columns=True)
sweep((1100, 1201), 5, form=HUBER, cuts=1201)  # not aligned
sweep((5000, 1200), 30, form=CORRENTROPY, weighted=True)
sweep((1100, 1200), 60, form=ROUNDED, reach=3.0, gaps=True)
sweep((1100, 1200), 100)
twins = triton_twins.Twins(torch.device("cpu"))
twins.order_statistics(torch.rand(2, 100), torch.tensor([5, 50]))
look = lambda values, *_: (values, values, torch.ones(4))
twins.statistics(torch.ones(50), torch.ones(50) > 0, True, look).of(torch.rand(50))
twins.predict(torch.rand(10, 3), torch.tensor([[1, 2]]), torch.rand(20, 3))
print(*sorted(compiled))
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_without_a_gpu(capability, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    run = subprocess.run([sys.executable, "-c", CODE, str(capability)], capture_output=True, text=True, timeout=600)
    assert (run.returncode, run.stderr) == (0, "")
    kernels = {"_fit", "_products", "accumulate", "advance", "descend", "judge", "select", "split"}
    assert set(run.stdout.split()) == kernels
