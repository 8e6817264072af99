"""What reading a file must never do, watched from inside: unpickle, leave its folder, connect, start a process, grow.

Python tells an audit hook of such acts before they happen. A hook cannot be removed, so there is one for the process,
which looks only while a `Guard` is open.
"""

import os
import sys
import sysconfig
import tempfile
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

# Where libraries keep modules and data that they load when first needed, and what the system tells of itself.
INSTALLED = tuple(
    {
        *(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())),
        *(os.path.realpath(path) for path in sys.path if path),
        *("/usr", "/etc", "/proc", "/sys", "/dev/null", "/dev/urandom", "/lib"),
    }
)
FORBIDDEN = {
    "pickle.find_class",
    "marshal.loads",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
}
FORBIDDEN |= {"socket.connect", "socket.bind", "socket.getaddrinfo", "ctypes.dlopen", "webbrowser.open"}
CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate"}


class Trespass(Exception):  # noqa: N818  (what was done, and not a failure of the reader)
    """Reading a file did what it must not."""


class _Hook:
    """The hook of this process."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is None:
            return
        if event in FORBIDDEN and not _is_import():
            self.seen.append(f"{event}{arguments!r:.200}")
        elif event in CHANGES or event == "open":
            self._look_at_path(event, arguments)

    def _look_at_path(self, event: str, arguments: tuple[object, ...]) -> None:
        path, mode = arguments[0], arguments[1] if len(arguments) > 1 else "r"
        if not isinstance(path, str | bytes | os.PathLike):
            return
        place = os.path.realpath(os.fsdecode(path))
        if place.startswith(str(self.folder)):
            return
        writes = event in CHANGES or (isinstance(mode, str) and set(mode) & set("wax+"))
        if (writes and not _is_import()) or not place.startswith(INSTALLED):
            self.seen.append(f"{event} {place} {mode}")


def _is_import() -> bool:
    """Return whether a module is being loaded: it is compiled code of the library, kept beside it."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_hook = _Hook()


@contextmanager
def guarded(most_bytes: int):
    """Give a folder to read from; raise Trespass if anything forbidden was done, or more memory taken, meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder = os.path.realpath(name)
        _hook.seen.clear()
        tracemalloc.start(1)
        try:
            yield Path(folder), _watching(folder)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    if _hook.seen:
        raise Trespass("; ".join(_hook.seen))
    if peak > most_bytes:
        raise Trespass(f"{peak / 2**20:.0f} MiB of memory were taken")


@contextmanager
def _watching(folder: str):
    """Watch while a file in the folder is read."""
    tracemalloc.reset_peak()
    _hook.folder = folder
    try:
        yield
    finally:
        _hook.folder = None
