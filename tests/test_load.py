"""Load: a thousand fits in one process, many at a time, in forked and spawned processes; and no word to the network."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_all_start_methods, get_context

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from conftest import make_data
from robustnmf import METHODS, RobustNMF

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
X = make_data().X


def python(program, *arguments, timeout=600, **variables):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=os.environ | variables)


MANY_FITS = """
import gc, os, sys, threading, warnings
import numpy as np
from robustnmf import METHODS, RobustNMF, load
warnings.simplefilter("ignore")
n_fits, path = int(sys.argv[1]), sys.argv[2]
rng = np.random.default_rng(0)
X = rng.random((60, 3)) @ rng.random((3, 40))
X[rng.random(X.shape) < 0.1] = 9.0
methods = [name for name in METHODS if name != "near-separable"]  # a linear programme takes its time

def fits(count):
    for k in range(count):
        model = RobustNMF(3, method=methods[k % len(methods)], random_state=k % 7, max_iter=5)
        model.transform(model.fit(X).clean(X))
        if k % 20 == 0:
            model.save(path, overwrite=True)
            load(path).transform(X)
    gc.collect()

def used():
    return int(open("/proc/self/statm").read().split()[1]), len(os.listdir("/proc/self/fd")), threading.active_count()

fits(n_fits // 5)  # until all is compiled and every pool has its size
before = used()
fits(n_fits)
print(*before, *used())
"""


@on_linux
@pytest.mark.parametrize("n_fits", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_many_fits_in_one_process_leak_nothing(n_fits, tmp_path):
    done = python(MANY_FITS, n_fits, tmp_path / "m")
    assert done.returncode == 0, done.stderr
    pages, files, threads, pages_after, files_after, threads_after = map(int, done.stdout.split())
    assert pages_after <= 1.05 * pages
    assert (files_after, threads_after) == (files, threads)


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def n_threads():
    """Return how many threads this process has, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


@on_linux
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_64_fits_at_a_time_do_not_disturb_each_other():
    """The same bits as alone, about one thread for each, and nothing left behind."""
    names = [name for name in METHODS if name != "near-separable"]
    work = [(name, seed) for seed in range(4) for name in names] + [(name, 9) for name in names]

    def fit(which):
        name, seed = which
        return RobustNMF(3, method=name, random_state=seed, max_iter=8).fit(X).components_

    alone = [fit(which) for which in work]
    before, blas, most = n_threads(), blas_threads(), 0
    with ThreadPoolExecutor(64) as pool:
        running = [pool.submit(fit, which) for which in work]
        while not all(future.done() for future in running):
            most = max(most, n_threads())
            time.sleep(0.001)
        together = [future.result() for future in running]
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    assert blas_threads() == blas
    # One thread of work and at most one helper of its own that waits: the first fits may have found BLAS not limited.
    assert most <= before + 2 * 64 + os.cpu_count()
    deadline = time.monotonic() + 10
    while n_threads() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert n_threads() <= before


def components_of(seed):
    return RobustNMF(3, random_state=seed, max_iter=20).fit(X).components_


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("method", get_all_start_methods())
def test_fits_in_other_processes_are_those_of_this_one(method):
    """Even while this process is fitting in another thread: no lock may be held in a child for ever."""
    expected = [components_of(seed) for seed in range(6)]
    end = threading.Event()

    def keep_fitting():
        while not end.is_set():
            components_of(0)

    thread = threading.Thread(target=keep_fitting)
    thread.start()
    try:
        for _ in range(3):
            with ProcessPoolExecutor(2, mp_context=get_context(method)) as pool:
                found = list(pool.map(components_of, range(6), timeout=120))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)
    finally:
        end.set()
        thread.join()


# --- The network ------------------------------------------------------------------------------------------------------

NO_NETWORK = """
import sys
def refuse(event, arguments):
    if event.startswith("socket.") and event != "socket.gethostname":
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(refuse)
import warnings
import numpy as np
warnings.simplefilter("ignore")
import robustnmf
from robustnmf import datasets, plots, report, selection
from robustnmf import labelled as ecosystem
from robustnmf import paper as experiments
from robustnmf import formats as reading
from robustnmf.selection import stability
from robustnmf.cli import app
X = datasets.load_orl().data[:30, ::16]
model = robustnmf.RobustNMF(3, random_state=0, max_iter=5)
model.fit(X).transform(X)
model.save(sys.argv[1] + "/m")
robustnmf.load(sys.argv[1] + "/m").clean(X)
np.savetxt(sys.argv[1] + "/x.csv", X, delimiter=",")
reading.read_table(sys.argv[1] + "/x.csv", header=False)
model.report(X, sys.argv[1] + "/r.html")
print("silent")
"""


def test_nothing_uses_the_network(tmp_path):
    """Neither import, nor fit, nor files, nor reports: a socket would end the process."""
    done = python(NO_NETWORK, tmp_path)
    assert done.stdout.strip() == "silent", done.stderr
