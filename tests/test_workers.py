"""Worker processes end with the one that they work for, however that ends."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import pytest
from joblib import Parallel

from robustnmf.utils.parallel import delayed

PATIENCE = 120  # seconds; a busy machine is slow
# What a fit takes if nobody ends it: longer than the test.
LONG = 600

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


def wait_until(true, patience=PATIENCE):
    limit = time.monotonic() + patience
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_running(pid):
    """Return whether a process is there and not only waits for its exit code to be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def session(leader):
    """Return the processes of a session that are running."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == leader and is_running(entry.name):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


# A reproduction of one item that takes hours: the command as it is, with an experiment of our own.
REPRODUCTION = f"""
import os, sys, time
from pathlib import Path
import numpy as np
from robustnmf import RobustNMF
from robustnmf.cli import main
from robustnmf.paper import reproduce
from robustnmf.paper.task import Experiment, Outcome, Task

def plan(choices):
    return [Task("long", "all", 0, "nenmf", trial, {{}}) for trial in range(6)]

def run(task, data):
    Path(f"began-{{task.trial}}").write_text(str(os.getpid()))
    end = time.monotonic() + {LONG}
    while time.monotonic() < end:
        RobustNMF(4, max_iter=1000, tol=0, schedule="plain").fit(np.random.default_rng(0).random((200, 100)))
    return Outcome({{"error": 0.0}})

reproduce.EXPERIMENTS = {{"long": Experiment("long", {{"item": "hours"}}, plan, run, None)}}
reproduce.protocol = lambda scale: {{"long": {{}}}}
sys.argv = ["robustnmf", "reproduce", "item", "--out", "out", "--jobs", "2"]
main()
"""


@pytest.mark.slow
@on_linux
def test_workers_of_a_reproduction_that_is_killed_end_at_once(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", REPRODUCTION],
        cwd=tmp_path,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 2 or process.poll() is not None)
        workers = [int(path.read_text()) for path in tmp_path.glob("began-*")]
        assert len(set(workers) - {process.pid}) == 2
        assert all(map(is_running, workers))
        os.kill(process.pid, signal.SIGKILL)  # it alone, and not its group
        process.wait(PATIENCE)
        wait_until(lambda: not session(process.pid), patience=20)
    finally:
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)
    # Tasks that were in the queue were not begun.
    assert len(list(tmp_path.glob("began-*"))) == 2


# The same where the system does not tell: a process that starts a worker, and the worker.
EMPLOYER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
time.sleep(600)
"""
WORKER = """
import os, sys, time
from pathlib import Path
from robustnmf.utils import parallel as workers
sys.platform = "other"
def work():
    Path("began").write_text(str(os.getpid()))
    end = time.monotonic() + 600
    while time.monotonic() < end:
        sum(range(1000))
workers._work(os.getppid(), work)
"""


@on_linux
@pytest.mark.slow
def test_workers_look_for_their_parent_where_the_system_does_not_tell(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", EMPLOYER, WORKER], cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "began").exists() and (tmp_path / "began").read_text())
        worker = int((tmp_path / "began").read_text())
        assert is_running(worker)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
        wait_until(lambda: not is_running(worker), patience=20)
    finally:
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)


def signal_of_the_parents_end():
    """Return which signal this process gets when its parent ends."""
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)  # PR_GET_PDEATHSIG
    return os.getpid(), number.value


def fail():
    raise KeyError("of the work")


@pytest.mark.slow
@on_linux
def test_the_signal_is_asked_for_as_long_as_the_work_lasts():
    with Parallel(n_jobs=1, backend="loky") as parallel:
        assert parallel([delayed(signal_of_the_parents_end)()])[0] == (os.getpid(), 0)  # no other process, no signal
    with Parallel(n_jobs=2) as parallel:
        during = parallel(delayed(signal_of_the_parents_end)() for _ in range(4))
        with pytest.raises(KeyError, match="of the work"):
            parallel([delayed(fail)()])
        after = parallel(joblib.delayed(signal_of_the_parents_end)() for _ in range(4))
    assert os.getpid() not in dict(during)
    assert {number for _, number in during} == {signal.SIGKILL}
    assert {number for _, number in after} == {0}


@pytest.mark.parametrize("options", [{"n_jobs": 1}, {"n_jobs": 2, "backend": "threading"}])
def test_work_in_the_same_process_is_left_alone(options):
    assert Parallel(**options)(delayed(divmod)(n, 4) for n in (5, 11)) == [(1, 1), (2, 3)]
    with pytest.raises(KeyError, match="of the work"):
        Parallel(**options)([delayed(fail)()])
