"""Files in folders: none outside is reached through them, and nothing but files is opened."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

from robustnmf.formats.errors import DataFileError


def check_tree(folder: Path) -> None:
    """Raise unless all that is in a folder, and below it, are folders and files of its own."""
    for parent, folders, files in os.walk(folder):
        for name in chain(folders, files):
            check_entry(folder, Path(parent, name))
        for name in folders:
            # Such a link may lead back to a folder that it is in, and so without end.
            if Path(parent, name).is_symlink():
                raise _not_its_own(folder, f"{name} is a link to a folder")


def check_entry(folder: Path, entry: Path) -> None:
    """Raise if an entry is a symbolic link that leads out of the folder, or something that has no end, like a pipe."""
    if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
        raise _not_its_own(folder, f"{entry.name} is a link that leads out of it")
    if not entry.is_dir() and not entry.is_file():
        raise _not_its_own(folder, f"{entry.name} is neither a file nor a folder")


def _not_its_own(folder: Path, found: str) -> DataFileError:
    return DataFileError(folder, "a folder that holds its files", found, "Copy the files into it, or take it out.")
