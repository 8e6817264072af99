"""WHERE arrays live: one file per engine, the protocol they share, and which is used for what."""

from math import prod
from typing import Any

from scipy import sparse

from robustnmf.engines.dask.engine import DaskEngine
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import Engine
from robustnmf.engines.sparse_engine import SparseEngine
from robustnmf.engines.streaming_engine import StreamingEngine
from robustnmf.errors import MissingExtraError
from robustnmf.utils.arrays import is_on_host

__all__ = ["DaskEngine", "Engine", "NumPyEngine", "SparseEngine", "StreamingEngine", "engine_for"]

ENGINES = ("auto", "numpy", "sparse", "torch", "stream", "dask")

# Sparse matrices of more entries, zeros included, of which at most this share is stored, are worked on as they are.
LARGE, SPARSE = 2**24, 0.3


def engine_for(X: Any, engine: str = "auto", device: Any = None) -> Any:
    """Return the engine for data X in memory, by name, or by where X is and where the work is to be done.

    Parameters
    ----------
    engine : {"auto", "numpy", "sparse", "torch"}
        "auto" is Torch for data on a GPU and for a `device` other than the CPU, "sparse" for large sparse matrices, and
        else NumPy, which makes sparse matrices dense. The others of `ENGINES` are for data that is not in memory.
    device : str or None
        Where the work is done: "cpu", "cuda", "cuda:1", "mps". None is where X is.
    """
    if not isinstance(engine, SparseEngine) and engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}; got {engine!r}.")
    if engine == "numpy" and device not in (None, "cpu"):
        raise ValueError(f"engine='numpy' works on the CPU; for device={device!r} use engine='torch' or 'auto'.")
    if isinstance(engine, SparseEngine):
        return engine
    on_cpu = device in (None, "cpu")
    if engine == "sparse" and not (sparse.issparse(X) and on_cpu):
        raise ValueError(
            f"engine='sparse' works on sparse matrices of SciPy, on the CPU; got {type(X).__name__}, device={device!r}."
        )
    if engine == "sparse" or (engine == "auto" and on_cpu and sparse.issparse(X) and _is_worth_it(X)):
        return SparseEngine()
    there = None if is_on_host(X) else X
    if engine == "numpy" or (engine == "auto" and (device == "cpu" if device is not None else there is None)):
        return NumPyEngine()
    try:
        from robustnmf.engines.torch_engine import TorchEngine, device_of
    except ImportError as error:
        raise MissingExtraError("Torch", "torch") from error
    return TorchEngine(device_of(there) if device is None else device)


def _is_worth_it(X: Any) -> bool:
    """Return whether a sparse matrix is better not made dense."""
    n_entries = prod(X.shape)
    return bool(n_entries > LARGE and X.nnz <= SPARSE * n_entries)
