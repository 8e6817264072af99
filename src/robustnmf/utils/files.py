"""Every file and folder that this package writes, replaces or removes. No other module does so.

Two rules hold for all of them:

- A file is there in full or not at all, and so is a folder of results.
- The package replaces and removes only what it wrote itself. The proof is a manifest in the folder, or beside it, with
  names and checksums, or a checksum in the file. What has none, or was changed since, is left alone, and an error names
  it.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.utils import platforms

MANIFEST = ".robustnmf-files.json"
"""Name of the manifest in a folder."""
# A scratch folder has this file, and nothing but arrays with the names that follow.
_SCRATCH = ".robustnmf-scratch"
_SCRATCH_NAME = re.compile(r"(array|codes)-[0-9a-f]{32}(\.npy)?|\.?\d+\.npy(\.[0-9a-f]{12})?|\.seen-[0-9a-f]{32}")


class ForeignFileError(FileExistsError):
    """A file or folder in the way that this package did not write."""


# --- Files ------------------------------------------------------------------------------------------------------------


@contextmanager
def write_atomically(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` in one step, or vanishes on failure.

    Only a process that is killed leaves the temporary file behind, a hidden one beside `path`, which is as it was.
    The caller has to own a file that it replaces; `write_owned` checks that.

    Parameters
    ----------
    path : path
    replace : bool
        If False, raise FileExistsError where `path` exists, even if another process has only just written it.

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
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    # With the permissions that new files get. To ask for the umask one has to set it, for all threads of the process.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        platforms.flush_file(temporary)
        if replace:
            _rename(temporary, path)
        else:
            _link(temporary, path)
        platforms.flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_owned(path: Path, *, replace: bool = True) -> AbstractContextManager[Path]:
    """Do the same for a result, which the manifest of its folder lists; replace only a file that it lists.

    Raises
    ------
    ForeignFileError
        If there is a file that this package did not write, or that was changed since.
    """
    return write_proven(path, _is_listed, replace=replace)


def _is_listed(path: Path) -> bool:
    return Manifest(path.parent).owns(path)


def check_owned(path: Path) -> None:
    """Raise ForeignFileError if there is something that this package may not replace."""
    if os.path.lexists(path) and not _is_listed(path):
        raise _foreign(path)


@contextmanager
def write_proven(path: Path, is_ours: Callable[[Path], bool], *, replace: bool = True) -> Iterator[Path]:
    """Do the same for a file whose content shows who wrote it, and that it was not changed since."""
    stamp = _stamp(path)
    if stamp is not None and (path.is_symlink() or not path.is_file() or not is_ours(path)):
        raise _foreign(path)
    with write_atomically(path, replace=replace) as temporary:
        yield temporary
        if _stamp(path) != stamp and os.path.lexists(path):  # it has come, or was changed, since
            raise _foreign(path)
        manifest = Manifest(path.parent)
        if is_ours is _is_listed or manifest.lists(path.name):  # it is part of a folder of results
            # Before the file takes its place: a kill between the two steps leaves the old file, which is still listed.
            manifest.add(path.name, _checksum(temporary))


def _foreign(path: Path) -> ForeignFileError:
    what = "is a folder" if path.is_dir() else "was not written by robustnmf, or was changed since"
    return ForeignFileError(f"{path} {what}, so it is not replaced. Choose another name, or remove it yourself.")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return numbers that change when another program writes a file; None if there is no file."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def sealed(page: bytes) -> bytes:
    """Return a page of HTML with a last line that has its checksum."""
    return page + _seal(page)


def is_sealed(path: Path) -> bool:
    """Return whether a file is a page with a right checksum in its last line."""
    content = path.read_bytes()
    page = content[: -len(_seal(b""))]
    return content == sealed(page)


def _seal(page: bytes) -> bytes:
    return f"<!-- robustnmf {hashlib.sha256(page).hexdigest()} -->\n".encode()


@contextmanager
def write_together(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Do the same as `write_owned` for what may be several files, all with the name that they will have.

    Gives a path of the name of `path` in a hidden folder beside it. All files that are written to that folder come to
    stand beside `path`, it as the last one: if the process is killed before, there is none of that name.
    """
    check_owned(path)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    temporary.mkdir()
    try:
        yield temporary / path.name
        written = sorted(temporary.iterdir(), key=lambda file: (file.name == path.name, file.name))
        if not written or written[-1].name != path.name:
            raise OSError(f"{path} was not written. Check that the disk is not full.")
        others = [path.with_name(file.name) for file in written[:-1]]
        for other in others:
            check_owned(other)
        if others and replace and os.path.lexists(path):
            check_owned(path)
            path.unlink()  # an old file beside new ones would be read with them
        for file in written:
            with write_owned(path.with_name(file.name), replace=replace) as place:
                _rename(file, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as npy file, in one step."""
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file of the caller's, and wait until it is on the disk; the first line is there in full or not.

    A link is refused: what it leads to may be anybody's.
    """
    if not os.path.lexists(path):
        with write_atomically(path, replace=False) as temporary:
            temporary.write_bytes(line + b"\n")
        return
    _refuse_link(path)
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, check: Callable[[int, bytes], object]) -> list[bytes]:
    """Return the lines of a file that `append_line` has written; a last one that a kill has cut short is removed.

    Each line, with its number, must pass the `check`, which raises ValueError, before anything is removed. The first
    line was written in one step: a file without a whole line is not ours.
    """
    _refuse_link(path)
    text = path.read_bytes()
    *lines, rest = text.split(b"\n")
    for number, line in enumerate(lines, start=1):
        check(number, line)
    if not rest:
        return lines
    try:
        check(len(lines) + 1, rest)
    except ValueError:
        if not lines or _is_json(rest):
            raise
        os.truncate(path, len(text) - len(rest))
        return lines
    append_line(path, b"")  # only the end of the line was missing
    return [*lines, rest]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ForeignFileError(f"{path} is a link, and what it leads to is not changed. Choose another folder.")


def remove_file(path: Path) -> None:
    """Remove a file that the caller has written, if it is still there; never a link or a folder."""
    if path.is_file() and not path.is_symlink():
        path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they exist."""
    path.mkdir(parents=True, exist_ok=True)


def _link(temporary: Path, path: Path) -> None:
    """Give a file a second name, or raise FileExistsError: of several writers, one succeeds."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        _rename(temporary, path)


def _rename(old: Path, new: Path) -> None:
    """Give a file or folder another name; a file of that name is replaced."""
    platforms.patiently(lambda: os.replace(old, new))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Manifests --------------------------------------------------------------------------------------------------------


class Manifest:
    """The files in a folder that this package wrote: for each name the checksums that it may have.

    A name has two checksums while its file is replaced: that of the old one and that of the new one.

    Parameters
    ----------
    folder : Path
    place : Path or None
        If the manifest beside the folder lists its files: where the folder stands, or stood or will stand.
    """

    def __init__(self, folder: Path, place: Path | None = None) -> None:
        self.folder = folder
        self._path = (folder if place is None else place.parent) / MANIFEST
        self._prefix = "" if place is None else f"{place.name}/"
        listed = self._read()
        inside = {name for name in listed if name.startswith(self._prefix)}
        self._checksums = {name.removeprefix(self._prefix): listed[name] for name in inside}
        self._beside = {name: listed[name] for name in listed if name not in inside}

    @classmethod
    def of(cls, folder: Path, place: Path) -> "Manifest":
        """Return the manifest in a folder, or if there is none, the one beside the place where the folder stood."""
        return cls(folder, None if os.path.lexists(folder / MANIFEST) else place)

    def _read(self) -> dict[str, list[str]]:
        path = self._path
        if not os.path.lexists(path):
            return {}
        try:
            if path.is_symlink():
                raise ValueError("it is a link")
            if not path.is_file():
                raise ValueError("it is no file")
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["written_by"] != "robustnmf":
                raise ValueError("another program wrote it")
            files = content["files"]
            return {str(name): [str(checksum) for checksum in checksums] for name, checksums in files.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ForeignFileError(f"{path} is no manifest of robustnmf. Remove it, or use another folder.") from error

    def lists(self, name: str) -> bool:
        """Return whether there is a file of this name that this package wrote, even if its content has changed."""
        return name in self._checksums

    def owns(self, path: Path) -> bool:
        """Return whether this package wrote a file of the folder, or of one in it, as it is now."""
        checksums = self._checksums.get(self._name(path), [])
        return bool(checksums) and path.is_file() and not path.is_symlink() and _checksum(path) in checksums

    def add(self, name: str, checksum: str) -> None:
        """List a file that is about to be written."""
        path = self.folder / name
        old = _checksum(path) if path.is_file() and not path.is_symlink() else ""
        known = [old] if old in self._checksums.get(name, []) else []
        self._checksums[name] = [*known, checksum]
        self._write()

    def add_all(self) -> None:
        """List every file of a folder that only this package knows of, beside those in the place that it will take."""
        for path in self._files():
            known, checksum = self._checksums.setdefault(self._name(path), []), _checksum(path)
            if checksum not in known:
                known.append(checksum)
        self._write()

    def forget_replaced(self) -> None:
        """List only what is there."""
        self._checksums = {self._name(path): [_checksum(path)] for path in self._files() if self.owns(path)}
        if self._checksums or self._beside:
            self._write()
        else:
            self._path.unlink(missing_ok=True)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _files(self) -> list[Path]:
        """Return all that is in the folder and in those below, without folders and the manifest itself."""
        found = (Path(parent, name) for parent, _, names in os.walk(self.folder) for name in names)
        links = (path for path in self.folder.rglob("*") if path.is_symlink() and path.is_dir())
        return sorted({*found, *links} - {self.folder / MANIFEST})

    def _write(self) -> None:
        files = self._beside | {self._prefix + name: checksums for name, checksums in self._checksums.items()}
        with write_atomically(self._path) as temporary:
            text = json.dumps({"written_by": "robustnmf", "files": files}, indent=1)
            temporary.write_text(text + "\n", encoding="utf-8")

    def strangers(self) -> list[str]:
        """Return what is in the folder and not owned, by name."""
        strange = [self._name(path) for path in self._files() if not self.owns(path)]
        return sorted([*strange, *self._foreign_folders()])

    def _own_folders(self) -> set[str]:
        """Return folders inside that hold, or held, files of ours."""
        return {parent.as_posix() for name in self._checksums for parent in PurePosixPath(name).parents} - {"."}

    def _foreign_folders(self) -> list[str]:
        """Return folders inside that no file of ours was ever in: somebody has made them."""
        ours = self._own_folders()
        below = (Path(parent, name) for parent, names, _ in os.walk(self.folder) for name in names)
        inside = (self._name(path) for path in below if not path.is_symlink())
        return [name for name in inside if name not in ours]

    def remove_folder(self) -> None:
        """Remove the files that are owned, and the folder if nothing else is left."""
        for path in self._files():
            if self.owns(path):
                path.unlink()
        for name in sorted(self._own_folders(), key=len, reverse=True):
            with suppress(OSError):  # it holds what is not ours
                (self.folder / name).rmdir()
        if not self.strangers():
            (self.folder / MANIFEST).unlink(missing_ok=True)
            self.folder.rmdir()


# --- Folders of results -----------------------------------------------------------------------------------------------


@contextmanager
def write_folder(path: Path, *, replace: bool = False, listed_beside: bool = False) -> Iterator[Path]:
    """Give a folder to write files to; it takes the place of `path` when all is written, or vanishes on failure.

    If it may not `replace` an earlier one, FileExistsError is raised where there is one, even if another process has
    only just written it. If its files are `listed_beside` it, nothing is in the folder but them.

    Raises
    ------
    ForeignFileError
        If `path` is anything but an empty folder, or one that an earlier call has written.
    """
    check_owned_folder(path)
    if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} cannot be written to, so it is not replaced. Choose another name.")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    temporary.mkdir()  # with the permissions that new folders get
    try:
        yield temporary
        Manifest(temporary, path if listed_beside else None).add_all()
    except BaseException:  # the writing failed: no other process uses this folder
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    try:
        if path.is_dir():
            shutil.copymode(path, temporary)
        _take_place(temporary, path, replace)
    finally:
        _remove_new_or_old(temporary, path)
        with suppress(OSError):  # to list too much does no harm
            if listed_beside:
                Manifest(path, path).forget_replaced()


def check_writable(path: Path) -> None:
    """Raise OSError if nothing can be written at a path: its folder, or the nearest one that exists, takes nothing."""
    place = next((parent for parent in path.absolute().parents if os.path.lexists(parent)), path)
    probe = place / f".robustnmf.{os.urandom(6).hex()}"
    probe.mkdir()
    probe.rmdir()


def check_owned_folder(path: Path, place: Path | None = None) -> None:
    """Raise ForeignFileError if there is something that a folder of results may not replace.

    `place` is where the folder stood if it was put aside.
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        raise ForeignFileError(f"{path} is not a folder, and is not replaced by one. Choose another name.")
    strangers = Manifest.of(path, place or path).strangers()
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise ForeignFileError(
            f"{path} holds {strangers[0]}{more}, which robustnmf did not write or which was changed since, so it is "
            "not replaced. Choose another name, or remove it yourself."
        )


def _take_place(new: Path, path: Path, replace: bool) -> None:
    """Put a folder in the place of an older one, if there is one; `new` then is the older, or nothing."""
    if not replace or not os.path.lexists(path):
        try:
            if path.is_dir() and not platforms.replaces_empty_folders():
                path.rmdir()
            _rename(new, path)  # which, as `rmdir`, fails if there is a folder that is not empty
        except OSError as error:
            raise FileExistsError(f"{path} exists. Choose another name.") from error
    elif not platforms.exchange(new, path):
        _replace_in_two_steps(new, path)
    else:
        try:
            check_owned_folder(new, path)  # once more: a file may have come since
        except ForeignFileError:
            platforms.exchange(new, path)
            raise


def _replace_in_two_steps(new: Path, path: Path) -> None:
    """Put a folder in the place of an older one, which comes back if that fails or is interrupted."""
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        _rename(path, aside / "old")
        check_owned_folder(aside / "old", path)
        _rename(new, path)
    finally:
        if os.path.lexists(aside / "old") and not os.path.lexists(path):
            _rename(aside / "old", path)
        if os.path.lexists(aside / "old"):
            Manifest.of(aside / "old", path).remove_folder()
        with suppress(OSError):  # it holds a file that this package did not write: that stays
            aside.rmdir()


def _remove_new_or_old(folder: Path, place: Path) -> None:
    """Remove the folder that could not take its place, or the older one whose place it has taken."""
    if folder.is_dir():
        Manifest.of(folder, place).remove_folder()


# --- Scratch folders --------------------------------------------------------------------------------------------------


def new_scratch_folder(parent: Path | None) -> Path:
    """Make a folder for arrays that are needed as long as the process runs."""
    if parent is not None:
        make_folder(parent)
    folder = Path(tempfile.mkdtemp(prefix="robustnmf-", dir=parent))
    made_by = f"process {os.getpid()} on {socket.gethostname()}"
    (folder / _SCRATCH).write_text(f"robustnmf scratch folder of {made_by}\n", encoding="utf-8")
    return folder


def _is_left(folder: Path) -> bool:
    """Return whether a scratch folder was made by a process of this machine that has ended."""
    marker = folder / _SCRATCH
    if folder.is_symlink() or not marker.is_file():
        return False
    text = marker.read_text(encoding="utf-8", errors="replace")
    found = re.fullmatch(r"robustnmf scratch folder of process (\d+) on (.*)\n", text)
    if found is None or found[2] != socket.gethostname():
        return False
    return not platforms.is_running(int(found[1]))


def remove_scratch_folder(folder: Path) -> None:
    """Remove a scratch folder; one that holds anything but our arrays stays as it is."""
    marker = folder / _SCRATCH
    if folder.is_symlink() or not marker.is_file() or not marker.read_bytes().startswith(b"robustnmf scratch folder"):
        return
    names = (path.name for path in folder.rglob("*"))
    if all(name == _SCRATCH or _SCRATCH_NAME.fullmatch(name) for name in names):
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_scratch_folders(parent: Path) -> None:
    """Remove the scratch folders of processes that were killed."""
    for folder in parent.glob("robustnmf-*"):
        if _is_left(folder):
            remove_scratch_folder(folder)


def remove_scratch(path: Path) -> None:
    """Remove a file or folder of a scratch folder."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(PermissionError):  # Windows, while it is open: it goes with its folder
            path.unlink(missing_ok=True)
