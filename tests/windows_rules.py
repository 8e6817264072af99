"""The rules of Windows, on Linux: what is refused there is refused, and what is missing there is missing.

`ROBUSTNMF_WINDOWS_RULES=1 pytest tests/test_persistence.py` runs any tests under these rules.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from robustnmf.utils import platforms

MEMORY = 2**34


def is_open(path):
    """Return whether this process has a file open, or mapped into its memory."""
    real = os.path.realpath(path)
    opened = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            opened.add(os.path.realpath(os.path.join("/proc/self/fd", name)))
    return real in opened or any(line.rstrip("\n").endswith(f" {real}") for line in open("/proc/self/maps"))


def refuse_open(*paths):
    for path in paths:
        if os.path.isfile(path) and is_open(path):
            raise PermissionError(errno.EACCES, "The process cannot access the file: it is in use", str(path))


class Kernel:
    """``kernel32``: this process runs, all others have ended."""

    def __init__(self, name, use_last_error=False):
        self.OpenProcess = lambda rights, inherits, process: 7 if process == os.getpid() else None
        self.WaitForSingleObject = lambda handle, milliseconds: 0x102
        self.CloseHandle = lambda handle: True

    @staticmethod
    def GlobalMemoryStatusEx(status):
        status._obj.total = MEMORY
        return status._obj.length == 64


class FunctionWithType:
    """A function of a library of C, whose type of result can be set."""

    def __init__(self, function):
        self.function, self.restype = function, None

    def __call__(self, *arguments):
        return self.function(*arguments)


def kernel(*arguments, **options):
    made = Kernel(*arguments, **options)
    made.OpenProcess = FunctionWithType(made.OpenProcess)
    return made


def impose(monkeypatch):
    """Let Windows' rules hold until `monkeypatch` is undone."""
    posix = SimpleNamespace(fsync=os.fsync, open=os.open, replace=os.replace, unlink=os.unlink, kill=os.kill)

    def fsync(handle):
        number = handle if isinstance(handle, int) else handle.fileno()
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        posix.fsync(handle)

    def open_file(path, *arguments, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return posix.open(path, *arguments, **options)

    def replace(old, new):
        refuse_open(old, new)
        if os.path.isdir(new) or (os.path.isdir(old) and os.path.exists(new)):
            raise PermissionError(errno.EACCES, "Access is denied", str(new))
        posix.replace(old, new)

    def unlink(path, **options):
        if not options:
            refuse_open(path)
        posix.unlink(path, **options)

    def kill(process, number):
        assert number != 0, "On Windows this is Ctrl-C for a group of processes."
        posix.kill(process, number)

    rules = {"fsync": fsync, "open": open_file, "replace": replace, "unlink": unlink, "remove": unlink, "kill": kill}
    for name, rule in rules.items():
        monkeypatch.setattr(os, name, rule)
    for name in ("sysconf", "fork", "register_at_fork"):
        monkeypatch.delattr(os, name)
    for name in ("resource", "fcntl"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(ctypes, "WinDLL", kernel, raising=False)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: 87, raising=False)
    monkeypatch.setattr(platforms, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(platforms, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # which open folders
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
