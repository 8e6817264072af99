"""Files that workers of a cluster can read again, of arrays that could be lost with one of them."""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from robustnmf.utils import files
from robustnmf.utils.arrays import Array
from robustnmf.utils.extras import optional


class Files:
    """A folder for arrays that workers can read again when they are lost."""

    def __init__(self, client: Any, folder: Path | None) -> None:
        parent = folder or optional("dask", "dask").config.get("temporary-directory", None)
        if folder is not None:
            files.remove_left_scratch_folders(folder)
        self.folder = files.new_scratch_folder(None if parent is None else Path(parent))
        self.are_shared = all_see(client, self.folder)

    def new(self, name: str) -> tuple[Path, "Keeper"]:
        """Return a path, and what keeps it: when nothing refers to the latter, the file goes."""
        path = self.folder / f"{name}-{uuid4().hex}.npy"
        return path, Keeper(path)

    def close(self) -> None:
        """Remove the folder."""
        files.remove_scratch_folder(self.folder)


def all_see(client: Any, folder: Path) -> bool:
    """Return whether a file that is made in a folder here is there for every worker."""
    mark = folder / f".seen-{uuid4().hex}"
    with files.write_atomically(mark):
        pass  # an empty file
    seen = client.run(os.path.exists, str(mark))
    files.remove_file(mark)
    return bool(seen) and all(seen.values())


class Keeper:
    """Removes a file or folder when nobody needs it any more; of copies in other processes, none does."""

    def __init__(self, path: Path) -> None:
        weakref.finalize(self, files.remove_scratch, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


@dataclass(frozen=True)
class SavedBlock:
    """Reads a block that was written to a file."""

    path: str

    def __call__(self) -> Array:
        return np.load(self.path, allow_pickle=False)


@dataclass(frozen=True)
class Shaped:
    """Reads rows and gives them the shape that they had."""

    source: Callable[[], Array]
    shape: tuple[int, ...]
    keeper: Any = None

    def __call__(self) -> Array:
        rows = self.source()
        return rows.reshape(len(rows), *self.shape)
