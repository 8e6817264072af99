"""What differs between Linux, macOS and Windows. No other module asks which system it runs on.

Where a system cannot do something, the functions here do what comes nearest and say so in their docstrings.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

Result = TypeVar("Result")

# Number of the request "send me this signal when my parent ends" of Linux.
PR_SET_PDEATHSIG = 1
# Seconds between attempts to replace a file that another program has open, on Windows; a virus scanner, say.
PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
# Bytes that are assumed where the system does not tell how much memory there is.
ASSUMED_MEMORY = 2**33


def is_windows() -> bool:
    """Return whether this is Windows."""
    return sys.platform == "win32"


# --- Files ------------------------------------------------------------------------------------------------------------


def flush_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("r+b") as file:  # Windows flushes only what is open for writing
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can: Windows cannot open folders."""
    with suppress(OSError):  # some file systems know no order of writes
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def patiently(change: Callable[[], Result]) -> Result:
    """Return what a change of names returns; on Windows, try again while another program has the file open."""
    for pause in PAUSES if is_windows() else ():
        try:
            return change()
        except PermissionError:
            sleep(pause)
    return change()


def replaces_empty_folders() -> bool:
    """Return whether renaming a folder to the name of an empty one replaces that, as POSIX says."""
    return not is_windows()


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, so that a kill leaves the old or the new; False if the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


# --- Processes --------------------------------------------------------------------------------------------------------


def is_running(process: int) -> bool:
    """Return whether a process of this machine runs; True if that cannot be told."""
    if is_windows():  # where `os.kill(process, 0)` is Ctrl-C
        return _is_running_on_windows(process)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _is_running_on_windows(process: int) -> bool:
    synchronize, invalid_parameter, timeout = 0x00100000, 87, 0x102
    kernel: Any = vars(ctypes)["WinDLL"]("kernel32", use_last_error=True)
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(synchronize, False, process & 0xFFFFFFFF)
    if not handle:
        return bool(vars(ctypes)["get_last_error"]() != invalid_parameter)  # else it is another user's
    try:
        return bool(kernel.WaitForSingleObject(ctypes.c_void_p(handle), 0) == timeout)
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


def has_lost_parent(parent: int) -> bool:
    """Return whether the process that started this one has ended.

    POSIX gives an orphan another parent. Windows keeps the number of the one that is gone.
    """
    return os.getppid() != parent or (is_windows() and not is_running(parent))


def be_killed_with_parent(wanted: bool) -> bool:
    """Have Linux kill this process when its parent ends, or not; return whether the system does that."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL if wanted else 0, 0, 0, 0) == 0)


def at_fork(before: Callable[[], Any], after_in_parent: Callable[[], Any], after_in_child: Callable[[], Any]) -> None:
    """Call functions whenever this process is forked; Windows never does that."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)


# --- Memory -----------------------------------------------------------------------------------------------------------


def memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may use: those of the machine, or of its container if fewer.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    return min([_machine_memory(), *_container_limits(root)])


def give_back_freed_memory() -> None:
    """Let the C library give memory of freed arrays back to the system, if it can: that of Linux.

    For large data that is worth some milliseconds after a stage that took more than those which follow.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or a system on which it has no such handle
        ctypes.CDLL(None).malloc_trim(0)


def _machine_memory() -> int:
    if is_windows():
        return _windows_memory()
    try:
        ask = vars(os)["sysconf"]
        return int(ask("SC_PAGE_SIZE") * ask("SC_PHYS_PAGES"))
    except (KeyError, OSError, ValueError):  # a system without one of the names
        return ASSUMED_MEMORY


class _MemoryStatus(ctypes.Structure):
    """``MEMORYSTATUSEX`` of Windows."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 6),
    )


def _windows_memory() -> int:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    found = vars(ctypes)["WinDLL"]("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.total) if found else ASSUMED_MEMORY


def _container_limits(root: Path) -> list[int]:
    """Return the limits of the control groups of Linux that this process is in, versions 1 and 2.

    A group is limited by those above it. A container may see its own group as the topmost.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # there are no control groups
        return []
    limits = []
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", "", ""][:3]
        if controllers == "":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        inside = Path(group.lstrip("/"))
        limits += [_number_in(top / folder / name) for folder in (inside, *inside.parents)]
    return [limit for limit in limits if limit is not None and limit > 0]


def _number_in(path: Path) -> int | None:
    """Return the number in a file; None if there is no file, or a word: "max" is no limit."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
