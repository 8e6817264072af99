"""What works on the blocks of a Dask worker: NumPy on its processor, or Torch on a device of its own."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, Literal
from zlib import crc32

from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.utils.extras import optional
from robustnmf.utils.process_state import single_threaded_blas, unwatched_arithmetic

# Threads of a worker take turns at its device: each brings a block, and there is memory for one.
_turn = Lock()


@dataclass(frozen=True)
class Inside:
    """The choice that all workers are told; each finds its own device."""

    kind: Literal["numpy", "torch"] = "numpy"
    device: str | None = None
    """Device for Torch: "cuda" is a GPU of the worker, which must have one; None the same, or else its processor."""

    def __post_init__(self) -> None:
        if self.kind not in ("numpy", "torch"):
            raise ValueError(f"inside must be 'numpy' or 'torch'; got {self.kind!r}.")
        if self.kind == "numpy" and self.device not in (None, "cpu"):
            raise ValueError(f"inside='numpy' works on the CPU; for device={self.device!r} use inside='torch'.")

    @contextmanager
    def engine(self) -> Iterator[Any]:
        """Give the engine of this worker, for the length of a task."""
        if self.kind == "numpy":
            with single_threaded_blas(), unwatched_arithmetic():
                yield _numpy_engine()
        else:
            with _turn, _torch_engine(self.device).running() as engine:
                yield engine


@cache
def _numpy_engine() -> NumPyEngine:
    return NumPyEngine(n_threads=1)


@cache
def _torch_engine(device: str | None) -> Any:
    torch = optional("torch", "torch")
    from robustnmf.engines.torch_engine import TorchEngine

    name = optional("distributed", "dask").get_worker().name
    return TorchEngine(device_of(device, name, torch.cuda.device_count(), "dask_cuda" in sys.modules))


def device_of(device: str | None, worker: Any, n_gpus: int, first_is_its_own: bool) -> str:
    """Return the device that a worker is to use.

    Parameters
    ----------
    device : str or None
        What was asked for.
    worker : str or int
        Name of the worker: workers of a machine are told apart by the number that it ends with, as those of
        LocalCluster, of ``dask worker`` and of dask-jobqueue do.
    n_gpus : int
        GPUs that it sees.
    first_is_its_own : bool
        Whether the cluster shows each worker its own GPU as the first, as dask-cuda does.
    """
    if device not in (None, "cuda"):
        return str(device)
    if n_gpus == 0:
        if device == "cuda":
            raise ValueError(
                f"device='cuda' needs a CUDA GPU for each Dask worker, and a Torch built for it; worker {worker!r} "
                "sees none. DaskEngine(inside='torch') takes a GPU where there is one."
            )
        return "cpu"
    return f"cuda:{0 if first_is_its_own else _number(str(worker)) % n_gpus}"


def _number(name: str) -> int:
    """Return the number that a name ends with, or one made of it."""
    digits = re.search(r"\d+$", name)
    return int(digits[0]) if digits else crc32(name.encode())
