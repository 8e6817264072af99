"""The first fit compiles what it needs, once, and says so; nothing of the process is left changed by that."""

import gc
import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from robustnmf.kernels.numba import compilation
from robustnmf.utils.process_state import uncollected_garbage
from robustnmf.utils.progress import progress, without_progress

# The kernels of a default fit, and those of least squares with weights.
DEFAULT = {"_predict", "_laplace_and_uniform", "_reweight", "_propose", "_advance", "_solve_systems"}
WEIGHTED = DEFAULT | {"_add_to_grams"}

FIRST_FIT = """
import gc, json, sys, warnings
import numpy as np
warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="sklearn")
from robustnmf import RobustNMF
dtype, kind = sys.argv[1:]
rng = np.random.default_rng(0)
X = (rng.gamma(1, 1, (40, 3)) @ rng.gamma(1, 1, (3, 20)) * rng.uniform(0.95, 1.05, (40, 20))).astype(dtype)
given = {"weights": rng.uniform(0.2, 1, X.shape).astype(dtype)} if kind == "weights" else {}
if kind == "gaps":
    X[rng.random(X.shape) < 0.1] = np.nan
model = RobustNMF(3, random_state=0)
warnings.simplefilter("ignore")  # of convergence
model.fit(X, **given)
from numba.core.dispatcher import Dispatcher
found = [kernel for kernel in gc.get_objects() if isinstance(kernel, Dispatcher)]
ours = [kernel for kernel in found if kernel.py_func.__module__.startswith("robustnmf.") and kernel.signatures]
print(json.dumps([{kernel.py_func.__name__: len(kernel.signatures) for kernel in ours}, gc.isenabled()]))
"""


def first_fit(folder, *arguments):
    """Return what a first fit compiled, whether garbage is collected after it, and what it wrote to stderr."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", FIRST_FIT, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    return (*json.loads(done.stdout), done.stderr)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
@pytest.mark.parametrize("kind", ["dense", "gaps", "weights"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_first_fit_compiles_few_kernels_and_each_for_one_layout(dtype, kind, tmp_path):
    compiled, is_collected, said = first_fit(tmp_path, dtype, kind)
    assert set(compiled) == (DEFAULT if kind == "dense" else WEIGHTED)
    assert set(compiled.values()) == {1}
    assert is_collected
    assert said == ""


# --- What is said of it -----------------------------------------------------------------------------------------------


class Kernel:
    """Stands for a kernel that is compiled, of this package or of another."""

    def __init__(self, module):
        def function():
            """Do nothing."""

        function.__module__ = module
        self.py_func = function


class Event:
    def __init__(self, module):
        self.data = {"dispatcher": Kernel(module)}


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test can set."""
    now = [0.0]
    monkeypatch.setattr(compilation, "monotonic", lambda: now[0])
    return now


def compile_for(watch, clock, seconds, module="robustnmf.kernels.numba.sweep"):
    watch.on_start(Event(module))
    clock[0] += seconds
    watch.on_end(Event(module))


@pytest.mark.parametrize(("are_kept", "level"), [(True, logging.INFO), (False, logging.WARNING)])
def test_a_long_compilation_is_told_once(are_kept, level, clock, caplog):
    watch = compilation._Watch(are_kept)
    with caplog.at_level(logging.INFO, logger="robustnmf"):
        compile_for(watch, clock, 0.9)
        assert not caplog.records
        for _ in range(3):
            compile_for(watch, clock, 0.2)
    [record] = caplog.records
    assert record.levelno == level
    assert ("NUMBA_CACHE_DIR" in record.message) != are_kept


def test_nothing_is_said_of_kernels_of_others_or_in_silence(clock, caplog):
    with caplog.at_level(logging.INFO, logger="robustnmf"):
        compile_for(compilation._Watch(False), clock, 9.0, module="numba.cpython.builtins")
        with without_progress():
            compile_for(compilation._Watch(False), clock, 9.0)
    assert not caplog.records


def test_a_kernel_that_another_one_calls_is_not_counted_twice(clock, caplog):
    watch = compilation._Watch(True)
    with caplog.at_level(logging.INFO, logger="robustnmf"):
        watch.on_start(Event("robustnmf.outer"))
        compile_for(watch, clock, 0.6)
        watch.on_end(Event("robustnmf.outer"))
    assert watch.seconds == pytest.approx(0.6)
    assert not caplog.records


def test_whoever_wants_to_see_progress_sees_that_kernels_are_compiled(clock, capsys):
    with progress("Fit", 4, "iteration", shown=True):
        compile_for(compilation._Watch(True), clock, 2.0)
    compile_for(compilation._Watch(True), clock, 2.0)  # nobody wants to see it
    assert capsys.readouterr().err.splitlines() == [compilation.KEPT]


def test_garbage_is_collected_again_after_a_compilation_that_fails(clock):
    assert gc.isenabled()
    watch = compilation._Watch(True)
    watch.on_start(Event("robustnmf.kernels"))
    assert not gc.isenabled()
    watch.on_end(Event("robustnmf.kernels"))
    assert gc.isenabled()


def test_garbage_stays_uncollected_if_it_was():
    gc.disable()
    try:
        with uncollected_garbage():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_rows_of_equations_are_solved_whatever_fits_at_a_time(monkeypatch):
    """Against scipy's active-set method, with more coordinates than there are entries at a time."""
    from scipy.optimize import nnls

    from robustnmf.kernels.numba import functions

    rng = np.random.default_rng(0)
    A, Y = rng.random((30, 8)), rng.standard_normal((7, 30)) + 1.0
    Q = np.where(rng.random(Y.shape) < 0.3, rng.uniform(0, 2, Y.shape), 1.0)
    Q[3] = rng.uniform(0, 2, 30)
    expected = [nnls(A * np.sqrt(q)[:, None], y * np.sqrt(q))[0] for y, q in zip(Y, Q, strict=True)]
    for entries in (1, 200, functions.SYSTEM_ENTRIES):
        monkeypatch.setattr(functions, "SYSTEM_ENTRIES", entries)
        found = functions.least_squares(Y, Q, np.ones((7, 8)), A, 0.0, 0.0, 500, 1e-14)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
