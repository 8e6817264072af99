"""Where configurations are fitted: an engine, blocks, files on disk, and warnings that are looked at."""

import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from drawing import Configuration
from sklearn.exceptions import ConvergenceWarning
from surroundings import BrokenError

import robustnmf
from robustnmf import RobustNMF
from robustnmf.engines import DaskEngine, NumPyEngine, StreamingEngine, numpy_engine
from robustnmf.errors import DataQualityWarning
from robustnmf.kernels.interface import NO_KERNELS

SOURCE = str(Path(robustnmf.__file__).parent)
# Checks of scikit-learn that an estimator relies on, and whose errors are refusals too.
CHECKS = ("sklearn/utils/validation.py", "sklearn/utils/_array_api.py")
SHORTEST_MESSAGE = 20
OWN_NAMES = ("RobustNMF", "TruncatedCauchyNMF")


class Refusal(NamedTuple):
    """An error that tells the user what is wrong."""

    kind: str
    message: str


class Fit(NamedTuple):
    """A model and the codes of its training data."""

    model: Any
    codes: Any


# A cluster of one worker, which says where it is and ends with its input. It is a process of its own: Dask keeps the
# scheduler of every local cluster that was closed, with a record of its last tasks.
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options, protocol="tcp://", host="127.0.0.1") as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


class Cluster(NamedTuple):
    """A cluster in another process, and the client that works with it."""

    process: subprocess.Popen[str]
    client: Any

    def close(self) -> None:
        """End it."""
        self.client.close()
        with self.process as process:
            process.communicate(timeout=60)


@cache
def cluster() -> Cluster:
    """Return a cluster, started when it is needed."""
    command = [sys.executable, "-c", CLUSTER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Cluster(process, import_module("distributed").Client(process.stdout.readline().strip()))


def close_cluster() -> None:
    """End the cluster, if there is one: as long as it runs, its scheduler remembers something of every task."""
    if cluster.cache_info().currsize:
        cluster().close()
        cluster.cache_clear()


def without_kernels() -> Any:
    return patch.object(NumPyEngine, "kernels", NO_KERNELS)


def blocks_of(entries: int, engine: str) -> Any:
    """Cut data in memory into blocks of so many entries."""
    if engine == "torch":
        from robustnmf.engines import torch_engine

        return patch.dict(torch_engine.BLOCK_ENTRIES, cpu=entries)
    return patch.object(numpy_engine, "BLOCK_ENTRIES", entries)


class Laboratory:
    """Fits data with the engine of a configuration; files go to a folder."""

    def __init__(self, engine: str, block_entries: int | None, folder: Path) -> None:
        missing = {"torch": "torch", "dask": "distributed"}.get(engine)
        self.engine = "numpy" if missing and not find_spec(missing) else engine
        if self.engine == "torch":
            import_module("torch")  # which adds filters of warnings, once
        self.block_entries, self.folder, self.n_files = block_entries, folder, 0

    @property
    def is_lazy(self) -> bool:
        return self.engine in ("stream", "dask")

    @contextmanager
    def open(self) -> Iterator["Laboratory"]:
        with ExitStack() as stack:
            if self.engine == "reference":
                stack.enter_context(without_kernels())
            if self.block_entries is not None and not self.is_lazy:
                stack.enter_context(blocks_of(self.block_entries, self.engine))
            yield self

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of an estimator that chooses the engine."""
        block_bytes = 8 * (self.block_entries or 200)
        if self.engine == "torch":
            return {"engine": "torch", "device": "cpu"}
        if self.engine == "stream":
            return {"engine": StreamingEngine(block_bytes=block_bytes) if self.block_entries else "stream"}
        if self.engine == "dask":
            return {"engine": DaskEngine(cluster().client, block_bytes=block_bytes)}
        return {}

    def house(self, array: Any) -> Any:
        """Return an array where the engine reads it: on disk for a stream."""
        if array is None or self.engine != "stream":
            return array
        self.n_files += 1
        path = self.folder / f"{self.n_files}.npy"
        np.save(path, array)
        return np.load(path, mmap_mode="r")

    def estimator(self, parameters: dict[str, Any]) -> Any:
        return RobustNMF(**parameters, **self.parameters())

    def given(self, case: Configuration) -> dict[str, Any]:
        """Return the data and what is known of its entries, as arguments."""
        arrays = {"X": case.X, "weights": case.weights, "uncertainties": case.uncertainties}
        return {name: self.house(array) for name, array in arrays.items()}

    def fit(self, case: Configuration, given: dict[str, Any] | None = None, **changes: Any) -> Fit:
        model = self.estimator(case.parameters | changes)
        codes = model.fit_transform(**(self.given(case) if given is None else given))
        return Fit(model, np.asarray(codes))


# --- Errors and warnings ----------------------------------------------------------------------------------------------


def place(stack: traceback.StackSummary) -> str:
    """Return the last place in the source of the package, if there is any."""
    frames = [frame for frame in stack if frame.filename.startswith(SOURCE)]
    return f"{Path(frames[-1].filename).relative_to(SOURCE)}:{frames[-1].lineno}" if frames else "outside"


def where(error: BaseException) -> str:
    """Return the last place in the source of the package that an error came through."""
    return place(traceback.extract_tb(error.__traceback__))


def is_deliberate(error: BaseException) -> bool:
    """Return whether an error was raised by a statement of the package, or by a check it relies on."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    if last.filename.endswith(CHECKS):
        return True
    return last.filename.startswith(SOURCE) and (last.line or "").startswith("raise")


def refusal(error: BaseException) -> Refusal:
    """Return an error as a refusal; raise `BrokenError` if it is none."""
    kind, message = type(error).__name__, " ".join(str(error).split())
    if not isinstance(error, ValueError | TypeError) or not is_deliberate(error):
        raise BrokenError("finite or refused", f"{kind} at {where(error)}: {message[:120]}") from error
    if len(message) <= SHORTEST_MESSAGE:
        raise BrokenError("finite or refused", f"{kind} at {where(error)} says only {message!r}") from error
    return Refusal(kind, message)


def is_expected(message: Any, category: type[Warning]) -> bool:
    """Return whether a warning is one of those that are documented."""
    own = str(message).startswith(OWN_NAMES)
    return own and category in (ConvergenceWarning, DataQualityWarning, UserWarning)


@contextmanager
def only_documented_warnings() -> Iterator[None]:
    """Raise if there was a warning that no user should see; say where in the package it arose."""
    stray: list[str] = []

    def note(message: Any, category: type[Warning], *about: Any, **more: Any) -> None:
        if not is_expected(message, category):
            stray.append(f"{category.__name__} at {place(traceback.extract_stack())}: {str(message)[:100]}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", module=r"distributed|dask|tornado|asyncio")
        warnings.showwarning = note
        yield
    if stray:
        raise BrokenError("no stray warning", stray[0])
