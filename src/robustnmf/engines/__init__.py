"""WHERE arrays live: one file per engine, the protocol they share, and which is used for what."""

import sys
from math import prod
from typing import Any

from scipy import sparse

from robustnmf.engines.dask.engine import DaskEngine
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.observed_engine import ObservedEngine
from robustnmf.engines.protocol import Engine
from robustnmf.engines.sparse_engine import SparseEngine
from robustnmf.engines.streaming_engine import StreamingEngine
from robustnmf.engines.tile_engine import TileEngine
from robustnmf.errors import MissingExtraError
from robustnmf.utils.arrays import device_name, is_on_host, is_sparse_tensor

__all__ = [
    "DaskEngine",
    "Engine",
    "NumPyEngine",
    "ObservedEngine",
    "SparseEngine",
    "StreamingEngine",
    "TileEngine",
    "clear_cache",
    "engine_for",
]

ENGINES = ("auto", "numpy", "sparse", "torch", "stream", "dask")

# Sparse matrices of more entries, zeros included, of which at most this share is stored, are worked on as they are.
LARGE, SPARSE = 2**24, 0.3
# If what is not stored is missing, that is so for fewer entries: it is not visited at all.
LARGE_OF_MISSING = 2**21
# Dense data of so many entries is worked on by tiles, where that can be.
LARGE_OF_DENSE = 2**23


def engine_for(X: Any, engine: Any = "auto", device: Any = None, *, zeros: str = "data", by_tiles: bool = False) -> Any:
    """Return the engine for data X in memory, by name, or by where X is and where the work is to be done.

    Parameters
    ----------
    engine : {"auto", "numpy", "sparse", "torch"}
        "auto" is Torch for data on a GPU and for a `device` other than the CPU, and else NumPy; large sparse matrices
        stay sparse with both, others are made dense. "sparse" keeps any sparse matrix sparse. The others of `ENGINES`
        are for data that is not in memory.
    device : str, torch.device or None
        Where the work is done: "cpu", "cuda", "cuda:1", "mps". None is where X is.
    zeros : {"data", "missing"}
        What entries of a sparse X are that are not stored.
    by_tiles : bool
        Whether large data may be worked on by tiles on the CPU, where nothing but blocks of samples is asked for.
    """
    if getattr(engine, "keeps_sparse", False) or getattr(engine, "has_tiles", False):
        return engine
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}; got {engine!r}.")
    device = device_name(device)
    if engine == "numpy" and device not in (None, "cpu"):
        raise ValueError(f"engine='numpy' works on the CPU; for device={device!r} use engine='torch' or 'auto'.")
    is_sparse = sparse.issparse(X) or is_sparse_tensor(X)
    if engine == "sparse" and not is_sparse:
        raise ValueError(
            f"engine='sparse' works on sparse matrices of SciPy and on sparse tensors; got {type(X).__name__}. "
            "scipy.sparse.csr_array converts an array."
        )
    there = None if is_on_host(X) else X
    on_cpu = engine != "torch" and (device == "cpu" if device is not None else there is None)
    large = LARGE_OF_MISSING if zeros == "missing" else LARGE
    if on_cpu and is_sparse and (engine == "sparse" or (engine == "auto" and _is_worth_it(X, large))):
        return ObservedEngine() if zeros == "missing" else SparseEngine()
    if engine == "numpy" or on_cpu:
        is_large = not is_sparse and prod(getattr(X, "shape", ())) >= LARGE_OF_DENSE
        return TileEngine() if engine == "auto" and by_tiles and is_large else NumPyEngine()
    try:
        from robustnmf.engines.torch_engine import TorchEngine, device_of, takes_much
        from robustnmf.engines.torch_sparse_engine import TorchSparseEngine
        from robustnmf.engines.torch_tile_engine import TorchTileEngine
    except ImportError as error:
        raise MissingExtraError("Torch", "torch") from error
    made = TorchEngine(device_of(there) if device is None else device)
    if not is_sparse and takes_much(X, made.device):
        return TorchTileEngine(made.device)
    # What is one block anyway is made dense, for the sake of the kernels that read it as a whole.
    most = max(made.block_entries, LARGE)
    keeps = engine == "sparse" or (made.device.type != "mps" and _is_worth_it(X, most))
    return TorchSparseEngine(made.device) if is_sparse and keeps else made


def clear_cache() -> None:
    """Give back the memory of GPUs that fits keep for the next one.

    That is the memory of CUDA graphs, one piece for each fit that runs at a time: as much as the largest fit so far
    took for it. It is taken over by the next fit, so it does not grow with their number. Memory that Torch itself keeps
    is given back too, as by ``torch.cuda.empty_cache()``.
    """
    if "torch" in sys.modules:
        from robustnmf.kernels.cuda.graphs import clear_graph_memory

        clear_graph_memory()


def _is_worth_it(X: Any, most: int) -> bool:
    """Return whether a matrix is sparse, of more than so many entries, zeros included, and better not made dense."""
    n_entries = prod(X.shape) if hasattr(X, "shape") else 0
    n_stored = X._nnz() if is_sparse_tensor(X) else getattr(X, "nnz", n_entries)
    return bool(n_entries > most and n_stored <= SPARSE * n_entries)
