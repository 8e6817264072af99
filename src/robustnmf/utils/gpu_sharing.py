"""One GPU for many processes at a time, by NVIDIA's Multi-Process Service (MPS).

A GPU serves processes in turn, however little of it each of them uses. With the service, what they launch runs side by
side. Where the user runs it, processes find it by themselves. Where not, and the driver of NVIDIA has brought the
program, one is started for the workers of this process alone: no other process sees it. It ends when this process
does, however that ends.
"""

import os
import subprocess
from pathlib import Path
from shutil import which
from threading import Lock
from typing import Any

from robustnmf.utils.process_state import hold_while_forking

COMMAND = "nvidia-cuda-mps-control"
# Seconds in which the service answers, or is not used.
PATIENCE = 10.0
# It is a shell that starts the service, since a process that is killed can end nothing. The shell reads until there is
# nothing more to come, which is when this process has ended or closed its end, and then ends the service. How long that
# waits for workers that still run is the number of seconds. A program that does not answer is not waited for.
SCRIPT = """
folder=$(mktemp -d) || exit 1
export CUDA_MPS_PIPE_DIRECTORY="$folder" CUDA_MPS_LOG_DIRECTORY="$folder"
if timeout -k 1 "$1" "$0" -d > /dev/null 2>&1; then
    echo "$folder"
    cat > /dev/null
    echo "quit -t 2" | timeout -k 1 "$1" "$0" > /dev/null 2>&1
fi
rm -r "$folder"
"""


class Service:
    """A service for the workers of this process.

    Parameters
    ----------
    command : str
        The program that controls it.
    """

    def __init__(self, command: str) -> None:
        # In a session of its own: Ctrl-C is for this process, and workers are to end before the service does.
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        arguments = ["sh", "-c", SCRIPT, command, str(PATIENCE)]
        self.shell = subprocess.Popen(arguments, **pipes, text=True, start_new_session=True)
        assert self.shell.stdout is not None
        self.folder = self.shell.stdout.readline().strip()
        """Where workers find it; empty if it has not started."""

    @property
    def is_running(self) -> bool:
        """Whether workers can use it."""
        return bool(self.folder) and self.shell.poll() is None

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process to use it, before it first uses the GPU."""
        return {"CUDA_MPS_PIPE_DIRECTORY": self.folder}

    def end(self) -> None:
        """End it, with what its clients have launched."""
        self.folder = ""
        for pipe in (self.shell.stdin, self.shell.stdout):
            assert pipe is not None
            pipe.close()
        self.shell.wait()


_lock = Lock()
hold_while_forking(_lock)
_services: list[Service] = []
"""That of this process, if it has one."""


def environment_of_workers(command: str = COMMAND, devices: Path = Path("/dev")) -> dict[str, str]:
    """Return the variables with which workers share the GPU; none if they cannot, or do so without.

    Parameters
    ----------
    command : str
        The program that controls the service.
    devices : Path
        Where the system lists its GPUs. Of several, a service would number them anew: then none is started.
    """
    if which(command) is None or "CUDA_VISIBLE_DEVICES" in os.environ or _n_gpus(devices) != 1:
        return {}
    with _lock:
        if _services and _services[0].folder and not _services[0].is_running:  # one that did not start never will
            _services.pop().end()
        if not _services and not _is_run_by_user(command):
            _services.append(Service(command))
        return _services[0].environment if _services and _services[0].is_running else {}


def end_service() -> None:
    """End the service of this process: workers that were killed may have left it in any state."""
    with _lock:
        while _services:
            _services.pop().end()


def _n_gpus(devices: Path) -> int:
    return len(list(devices.glob("nvidia[0-9]*")))


def _is_run_by_user(command: str) -> bool:
    """Return whether there is a service that all processes find."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": PATIENCE}
    try:
        return subprocess.run([command], input="get_server_list\n", text=True, **quiet).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return True  # nobody knows; so nothing is started
