"""Nothing of the process is left changed by a fit: not by success, errors, interrupts, forks, or fits that overlap."""

import ast
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import robustnmf
from robustnmf.algorithm.clones import quietly
from robustnmf.engines import NumPyEngine
from robustnmf.utils import process_state
from robustnmf.utils.cached import cached_property
from robustnmf.utils.process_state import (
    SharedSetting,
    blas_threads,
    deferred_interrupts,
    ignored_warnings,
    single_threaded_blas,
)

on_posix = pytest.mark.skipif(os.name != "posix", reason="signals and forks of POSIX")


def blas():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def python(program, *arguments, timeout=600, **variables):
    """Run a program with as many threads as BLAS wants, and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment |= {"OPENBLAS_NUM_THREADS": "2", **variables}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- The source -------------------------------------------------------------------------------------------------------

CHANGES = {
    *("catch_warnings", "simplefilter", "filterwarnings", "resetwarnings", "seterr", "set_num_threads"),
    *("threadpool_limits", "setlocale", "putenv", "unsetenv", "chdir", "umask", "set_float32_matmul_precision"),
    *("manual_seed", "seed", "rc_context", "setrecursionlimit", "set_start_method", "set_grad_enabled", "setitimer"),
}
# Commands and experiments are programs of their own; a setting that an extra brings is declared where that is imported.
PROGRAMS = ("cli/", "paper/", "view/")
DECLARED = {"engines/torch_engine.py": {"set_float32_matmul_precision"}, "report/drawing.py": {"rc_context"}}
# Within the filters of `read_table`, which are restored.
DECLARED["formats/images.py"] = {"simplefilter"}


def changes_of(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    called = {node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and hasattr(node.func, "attr")}
    handlers = {"signal.signal"} if "signal.signal(" in path.read_text(encoding="utf-8") else set()
    return (called & CHANGES) | handlers


def test_only_one_module_changes_settings_of_the_process():
    root = Path(robustnmf.__file__).parent
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name != "utils/process_state.py" and not name.startswith(PROGRAMS):
            assert changes_of(path) <= DECLARED.get(name, set()), name


# --- Settings ---------------------------------------------------------------------------------------------------------


class Switch:
    """A setting that counts how often it is changed and restored."""

    def __init__(self):
        self.is_on, self.n_changes = False, 0
        self.setting = SharedSetting(self.change)

    @contextmanager
    def change(self):
        assert not self.is_on
        self.is_on, self.n_changes = True, self.n_changes + 1
        yield
        assert self.is_on
        self.is_on = False


def test_a_setting_is_changed_while_any_of_many_threads_needs_it():
    switch, rng = Switch(), np.random.default_rng(0)

    def use(seconds):
        with switch.setting.changed():
            time.sleep(seconds)
            assert switch.is_on
            time.sleep(seconds)
            assert switch.is_on

    for _ in range(20):
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(use, rng.random(64) * 0.002))
        assert not switch.is_on


def test_a_setting_is_restored_at_once_and_after_errors():
    switch = Switch()
    for k in range(200):
        with pytest.raises(ZeroDivisionError), switch.setting.changed():
            assert switch.is_on
            raise ZeroDivisionError
        assert not switch.is_on
        assert switch.n_changes == k + 1


def test_a_setting_that_cannot_be_changed_raises_its_error_in_the_thread_that_asked():
    @contextmanager
    def fail():
        raise OSError("no such setting")
        yield

    setting = SharedSetting(fail)
    for _ in range(3):
        with pytest.raises(OSError, match="no such setting"), setting.changed():
            pass


def test_a_thread_that_cannot_be_started_is_an_error_and_not_a_wait_for_ever(monkeypatch):
    switch = Switch()

    def fail(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(process_state.Thread, "start", fail)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="new thread"), switch.setting.changed():
                pass
    with switch.setting.changed():
        assert switch.is_on
    assert not switch.is_on


def test_nested_and_overlapping_filters_of_warnings_are_restored():
    before = list(warnings.filters)

    def use(k):
        category = [UserWarning, RuntimeWarning, DeprecationWarning][k % 3]
        with ignored_warnings((category, f"number {k}")), quietly():
            time.sleep(0.001 * (k % 5))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(use, range(64)))
    assert warnings.filters == before


def test_blas_is_limited_inside_limits_of_others_and_left_as_they_set_it():
    """Since threadpoolctl 3.8, only the first thread that sets a limit of OpenBLAS may set others."""
    before = blas()
    for limit in (1, 2):
        with threadpool_limits(limits=limit, user_api="blas"):
            within = blas()
            with single_threaded_blas():
                assert blas_threads() == 1
            assert blas() == within
    assert blas() == before
    with single_threaded_blas(), threadpool_limits(limits=2, user_api="blas"):
        pass
    assert blas() == before
    with single_threaded_blas():
        thread = threading.Thread(target=lambda: threadpool_limits(limits=1, user_api="blas"))
        thread.start()
        thread.join()
    assert blas() == before


class PerThread:
    """A BLAS library with OpenMP, as threadpoolctl sees it: every thread has a limit of its own."""

    user_api, threading_layer = "blas", "openmp"

    def __init__(self):
        self.local = threading.local()

    @property
    def num_threads(self):
        return getattr(self.local, "value", 4)

    def set_num_threads(self, n_threads):
        self.local.value = n_threads


def test_every_thread_of_a_fit_is_limited_where_limits_are_those_of_threads(monkeypatch):
    library, seen = PerThread(), []
    monkeypatch.setattr(process_state, "_blas_libraries", lambda: [library])

    def look(block, *, xp):
        seen.append((threading.get_ident(), library.num_threads))
        time.sleep(0.01)
        return block

    with NumPyEngine(n_threads=3).running() as engine:
        engine.map(look, [np.ones((1, 1))] * 9)
    assert len({thread for thread, _ in seen}) > 1
    assert {n_threads for _, n_threads in seen} == {1}
    assert library.num_threads == 4


# --- Fits that overlap ------------------------------------------------------------------------------------------------

OVERLAP = """
import signal, sys, warnings, os, locale, random
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from threadpoolctl import threadpool_info
warnings.simplefilter("ignore")
import torch
import robustnmf
from robustnmf import RobustNMF, select_rank
rng = np.random.default_rng(0)
X = rng.random((40, 3)) @ rng.random((3, 25))

def state():
    blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    rest = np.random.get_state()[1].tobytes(), random.getstate(), dict(os.environ), locale.setlocale(locale.LC_ALL)
    of_torch = torch.is_grad_enabled(), torch.get_float32_matmul_precision(), torch.get_rng_state().tolist()
    return blas, list(warnings.filters), np.geterr(), handlers, rest, of_torch, os.getcwd(), os.umask(0o022)

def work(k):
    kind = ["fit", "torch", "error", "rank"][k % 4] if k % 8 else "fit"
    options = {"n_components": 2, "random_state": k, "max_iter": 6}
    if kind == "fit":
        RobustNMF(**options).fit(X)
    elif kind == "torch":
        RobustNMF(**options, engine="torch", device="cpu").fit(X)
    elif kind == "rank":
        select_rank(X, ranks=[1], n_splits=2, random_state=0, estimator=RobustNMF(max_iter=3))
    else:
        def fail(iteration):
            raise ZeroDivisionError
        try:
            RobustNMF(**options, callback=fail).fit(X)
        except ZeroDivisionError:
            pass

for k in range(4):
    work(k)
before = state()
assert max(before[0]) == 2, before[0]
for _ in range(int(sys.argv[1])):
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))
    for name, (one, other) in enumerate(zip(before, state())):
        assert one == other, (name, one, other)
print("as before")
"""


@pytest.mark.slow
@pytest.mark.parametrize("n_rounds", [1, 20])
def test_32_fits_at_a_time_leave_the_process_as_it_was(n_rounds):
    pytest.importorskip("torch")
    assert python(OVERLAP, n_rounds).strip() == "as before"


# --- Interrupts -------------------------------------------------------------------------------------------------------

INTERRUPTS = """
import os, random, signal, sys, threading, time, warnings
import numpy as np
from threadpoolctl import threadpool_info
warnings.simplefilter("ignore")
from robustnmf import RobustNMF
n_interrupts, options = int(sys.argv[1]), eval(sys.argv[2])
rng, clock = np.random.default_rng(0), random.Random(0)
X = rng.random((60, 3)) @ rng.random((3, 40))

def fit():
    return RobustNMF(3, random_state=0, **{"max_iter": 8} | options).fit(X).components_

def state():
    blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    torch = sys.modules.get("torch")
    of_torch = torch and (torch.is_grad_enabled(), torch.get_float32_matmul_precision())
    return blas, list(warnings.filters), np.geterr(), signal.getsignal(signal.SIGINT), of_torch

expected = fit()
begin = time.perf_counter()
fit()
longest, before, n_struck = 1.2 * (time.perf_counter() - begin), state(), 0
for _ in range(n_interrupts):
    timer = threading.Timer(clock.uniform(0, longest), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        fit()
        n_struck -= 1
        while True:
            time.sleep(0.01)
    except KeyboardInterrupt:
        n_struck += 1
    timer.join()
    deadline = time.monotonic() + 1  # what Ctrl-C has left to others to restore
    while state() != before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert state() == before, (state(), before)
    np.testing.assert_array_equal(fit(), expected)
print(n_struck)
"""


@on_posix
@pytest.mark.parametrize(
    ("n_interrupts", "options"),
    [
        (6, {}),
        pytest.param(1200, {}, marks=pytest.mark.slow),
        pytest.param(200, {"engine": "torch", "device": "cpu"}, marks=pytest.mark.slow),
    ],
)
def test_interrupts_at_random_moments_leave_the_process_as_it_was(n_interrupts, options):
    struck = int(python(INTERRUPTS, n_interrupts, options, timeout=3600))
    assert struck >= 0.2 * n_interrupts


@pytest.mark.gpu
@on_posix
def test_interrupts_leave_a_gpu_as_it_was():
    """A recording of CUDA that is left open would make every later fit of the process fail."""
    assert int(python(INTERRUPTS, 50, {"device": "cuda", "max_iter": 60})) >= 10


@on_posix
def test_an_interrupt_waits_for_the_end_of_what_must_not_be_left_halfway():
    done, before = [], signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is before
    with deferred_interrupts():
        pass
    thread = threading.Thread(target=lambda: deferred_interrupts().__enter__())
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


# --- Forks ------------------------------------------------------------------------------------------------------------

FORKS = """
import os, random, sys, threading, time, warnings
import numpy as np
from threadpoolctl import threadpool_info
warnings.simplefilter("ignore")
from robustnmf import RobustNMF
n_forks, longest, patience = int(sys.argv[1]), float(sys.argv[2]), 120
rng, clock = np.random.default_rng(0), random.Random(int(sys.argv[3]))
X = rng.random((60, 3)) @ rng.random((3, 40))
end = threading.Event()

def fit():
    return RobustNMF(3, random_state=0, max_iter=8).fit(X).components_.tobytes()

def keep_fitting():
    while not end.is_set():
        fit()

def blas():
    return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")

def child():
    return 0 if blas() == 2 and fit() and blas() == 2 else 1

def outcome(process):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(process, 9)
    os.waitpid(process, 0)
    return "it hangs"

thread = threading.Thread(target=keep_fitting)
thread.start()
for _ in range(n_forks):
    time.sleep(clock.uniform(0, longest))
    process = os.fork()
    if process == 0:
        os._exit(child())
    print(outcome(process))
end.set()
thread.join()
"""


@pytest.mark.slow
@on_posix
@pytest.mark.parametrize("n_forks", [5, pytest.param(500, marks=pytest.mark.slow)])
def test_processes_forked_during_fits_do_not_hang_and_have_settings_restored(n_forks):
    assert python(FORKS, n_forks, 0.03, 0, timeout=3600).split() == ["0"] * n_forks


@on_posix
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_processes_forked_during_a_first_fit_do_not_hang(seed, tmp_path):
    """While Numba is imported and compiles, with locks that a child could never release."""
    assert python(FORKS, 3, 6, seed, NUMBA_CACHE_DIR=str(tmp_path)).split() == ["0"] * 3


@on_posix
def test_no_property_holds_a_lock_that_a_forked_process_inherits():
    """As `functools.cached_property` does on Python 3.11, for all instances of a class."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        @cached_property
        def value(self):
            begun.set()
            may_end.wait()
            return 1

    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    begun.wait()
    process = os.fork()
    if process == 0:
        may_end.set()
        os._exit(0 if Slow().value == 1 else 1)
    deadline = time.monotonic() + 20
    status = (0, 0)
    while status[0] == 0 and time.monotonic() < deadline:
        status = os.waitpid(process, os.WNOHANG)
        time.sleep(0.01)
    may_end.set()
    thread.join()
    if status[0] == 0:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert status == (process, 0)


KILLED = """
import os, signal, sys, threading, time, warnings
import numpy as np
warnings.simplefilter("ignore")
from robustnmf import RobustNMF
X = np.random.default_rng(0).random((30, 20))
def fit(callback=None):
    RobustNMF(2, random_state=0, max_iter=8, callback=callback, verbose=int(sys.argv[1])).fit(X)
fit()
if int(sys.argv[1]):
    from robustnmf.utils.progress import _bar_class
    lock = _bar_class().get_lock()  # that of the line on a terminal
else:
    from tqdm import tqdm
    lock = tqdm.get_lock()
child = os.fork()
if child == 0:
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
fit()
time.sleep(0.1)
print([thread.name for thread in threading.enumerate()])
"""


@pytest.mark.slow
@on_posix
@pytest.mark.parametrize("verbose", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_is_killed_does_not_block_fits_of_its_parent(verbose):
    """The lock of tqdm is one for all forked processes, and its monitor a thread that outlives a fit."""
    assert python(KILLED, verbose, timeout=120).strip() == "['MainThread']"


@pytest.mark.slow
def test_a_fit_in_a_callback_that_forks_ends_in_both_processes():
    """The child has no thread that could restore a setting for it, and must not wait for one."""
    if os.name != "posix":
        pytest.skip("no fork")
    program = """
import os, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from robustnmf import RobustNMF
children = []
def fork_once(iteration):
    if not children:
        children.append(os.fork())
X = np.random.default_rng(0).random((30, 20))
model = RobustNMF(2, random_state=0, max_iter=5, callback=fork_once).fit(X)
if children[0] == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""
    assert python(program, timeout=120).strip() == "0"


# --- Memory -----------------------------------------------------------------------------------------------------------

FAULTS = """
import resource, sys
import numpy as np
from robustnmf.engines import NumPyEngine

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        np.abs(A - B)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

A, B = np.ones((2, 500_000))
alone = faults()
with NumPyEngine(1).running():
    np.abs(A - B)
    print(alone, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library of Linux")
def test_memory_of_freed_arrays_is_kept_for_the_next_ones():
    """Each of two arrays has some 1000 pages; without it the system gives them anew every time."""
    alone, running = map(int, python(FAULTS).split())
    assert alone > 100 * 100
    assert running < 0.1 * alone
