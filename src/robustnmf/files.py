"""Files that are there in full or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` in one step, or vanishes on failure.

    Only a process that is killed leaves the temporary file behind, a hidden one beside `path`, which is as it was.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> with write_atomically(folder / "a.txt") as temporary:
    ...     _ = temporary.write_text("all of it")
    >>> (folder / "a.txt").read_text(), len(list(folder.iterdir()))
    ('all of it', 1)
    """
    # In the same folder: only within one file system is the last step atomic.
    temporary = path.with_name(f".{path.name}.{token_hex(6)}")
    # With the permissions that new files get. Who asks for the umask has to set it, for all threads of the process.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        if os.name == "posix":
            with suppress(OSError):  # some file systems know no order of writes; the file itself is there
                _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
