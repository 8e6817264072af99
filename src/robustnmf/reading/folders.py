"""Files in folders: none outside is reached through them."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

from robustnmf.reading.errors import DataFileError


def refuse_links_out(path: Path, folder: Path) -> None:
    """Raise if a symbolic link in a folder, or below it, leads out of the folder."""
    for parent, folders, files in os.walk(folder):
        for name in chain(folders, files):
            refuse_link_out(path, Path(parent, name))


def refuse_link_out(folder: Path, entry: Path) -> None:
    """Raise if an entry is a symbolic link that leads out of the folder."""
    if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
        raise DataFileError(
            folder, "a folder that holds its files", f"{entry.name} is a link that leads out of it", "Copy the file."
        )
