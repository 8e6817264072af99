"""The service by which processes share a GPU: it is there while it is needed, and gone afterwards.

Where there is no GPU, a shell script stands in for the program that controls the service. It does what the program is
documented to do, as far as it is asked: start with ``-d``, answer or fail, and quit.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robustnmf.utils import gpu_sharing
from robustnmf.utils.gpu_sharing import COMMAND, end_service, environment_of_workers
from robustnmf.utils.parallel import Workers, delayed, run_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the service is one of Linux")

PROGRAM = """#!/bin/sh
control="${CUDA_MPS_PIPE_DIRECTORY:-$DEFAULT_FOLDER}/control"
if [ "$1" = -d ]; then
    [ -z "$BROKEN" ] && echo started >> "$JOURNAL" && touch "$control"
    exit
fi
read -r request
[ -e "$control" ] || exit 1
case "$request" in
    quit*) rm "$control"; echo "$request" >> "$JOURNAL";;
esac
"""
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """Yield the file in which the stand-in says what it was asked, while there is one GPU."""
    for folder in ("bin", "default", "dev"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dev/nvidia0").touch()
    program = tmp_path / "bin" / COMMAND
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DEFAULT_FOLDER", str(tmp_path / "default"))
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    for variable in (PIPE, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    end_service()
    yield tmp_path / "journal"
    end_service()


@pytest.fixture
def devices(tmp_path, journal):
    return tmp_path / "dev"


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_service_is_started_once_and_ended_with_its_folder(journal, devices):
    shared = environment_of_workers(devices=devices)
    folder = Path(shared[PIPE])
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0  # other users cannot use it
    assert environment_of_workers(devices=devices) == shared
    assert journal.read_text() == "started\n"
    end_service()
    assert journal.read_text() == "started\nquit -t 2\n"
    assert not folder.exists()
    assert environment_of_workers(devices=devices) != shared


def test_a_service_ends_with_a_process_that_is_killed(journal, devices):
    code = (
        "import pathlib, time\n"
        "from robustnmf.utils.gpu_sharing import environment_of_workers\n"
        f"print(environment_of_workers(devices=pathlib.Path({str(devices)!r}))[{PIPE!r}], flush=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_for(lambda: not folder.exists())
    assert "quit" in journal.read_text()


def test_that_of_the_user_is_left_alone(journal, devices, tmp_path):
    (tmp_path / "default/control").touch()
    assert environment_of_workers(devices=devices) == {}
    assert not journal.exists()


def test_a_program_that_hangs_is_not_waited_for(journal, devices, tmp_path, monkeypatch):
    (tmp_path / "bin" / COMMAND).write_text('#!/bin/sh\n[ "$1" != -d ] && exit 1\nsleep 100\n')
    monkeypatch.setattr(gpu_sharing, "PATIENCE", 0.2)
    begin = time.monotonic()
    assert environment_of_workers(devices=devices) == {}
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("change", ["two GPUs", "no GPU", "chosen GPUs", "no program", "it does not start"])
def test_no_service_is_used_where_there_may_be_none(journal, devices, monkeypatch, change):
    if change == "two GPUs":
        (devices / "nvidia1").touch()
    elif change == "no GPU":
        (devices / "nvidia0").unlink()
    elif change == "chosen GPUs":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    elif change == "it does not start":
        monkeypatch.setenv("BROKEN", "yes")
    command = "no-such-program" if change == "no program" else COMMAND
    assert environment_of_workers(command, devices) == {}
    assert not journal.exists()


def variable_of_worker():
    return os.environ.get(PIPE)


def test_workers_use_the_service_and_a_failure_ends_it(journal, devices, monkeypatch):
    monkeypatch.setattr(gpu_sharing, "_n_gpus", lambda folder: 1)
    workers = Workers(kind="shared")
    here, *found, _ = run_all((delayed(variable_of_worker)() for _ in range(4)), 2, workers)
    shared = environment_of_workers()
    assert here is None  # this process does not use it
    assert found == [shared[PIPE]] * 2
    with pytest.raises(ZeroDivisionError):
        run_all((delayed(divmod)(1, divisor) for divisor in (1, 1, 0, 1)), 2, workers)
    assert not Path(shared[PIPE]).exists()
    found = run_all((delayed(variable_of_worker)() for _ in range(2)), 2, workers)
    assert found == [environment_of_workers()[PIPE]] * 2
    assert set(found) != set(shared.values())
