"""Files that workers of a cluster can read again, of arrays that could be lost with one of them."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from robustnmf.arrays import Array
from robustnmf.engines.sources import optional


class Files:
    """A folder for arrays that workers can read again when they are lost."""

    def __init__(self, client: Any, folder: Path | None) -> None:
        parent = folder or optional("dask", "dask").config.get("temporary-directory", None)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob("robustnmf-*"):  # by a fit that was killed
                shutil.rmtree(left, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix="robustnmf-", dir=parent))
        self.are_shared = all_see(client, self.folder)

    def new(self, name: str) -> tuple[Path, "Keeper"]:
        """Return a path, and what keeps it: when nothing refers to the latter, the file goes."""
        path = self.folder / f"{name}-{uuid4().hex}.npy"
        return path, Keeper(path)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def all_see(client: Any, folder: Path) -> bool:
    """Return whether a file that is made in a folder here is there for every worker."""
    mark = folder / f".seen-{uuid4().hex}"
    mark.touch()
    seen = client.run(os.path.exists, str(mark))
    mark.unlink()
    return bool(seen) and all(seen.values())


class Keeper:
    """Removes a file or folder when nobody needs it any more; of copies in other processes, none does."""

    def __init__(self, path: Path) -> None:
        weakref.finalize(self, _remove, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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
