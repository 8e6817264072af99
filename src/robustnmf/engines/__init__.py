"""WHERE arrays live: one file per engine, the protocol they share, and which is used for what."""

from typing import Any

from robustnmf.engines.dask.engine import DaskEngine
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import Engine
from robustnmf.engines.streaming_engine import StreamingEngine
from robustnmf.errors import MissingExtraError
from robustnmf.utils.arrays import is_on_host

__all__ = ["DaskEngine", "Engine", "NumPyEngine", "StreamingEngine", "engine_for"]

ENGINES = ("auto", "numpy", "torch", "stream", "dask")


def engine_for(X: Any, engine: str = "auto", device: Any = None) -> Any:
    """Return the engine for data X in memory, by name, or by where X is and where the work is to be done.

    Parameters
    ----------
    engine : {"auto", "numpy", "torch"}
        "auto" is Torch for data on a GPU and for a `device` other than the CPU, else NumPy. The others of `ENGINES` are
        for data that is not in memory.
    device : str or None
        Where the work is done: "cpu", "cuda", "cuda:1", "mps". None is where X is.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}; got {engine!r}.")
    if engine == "numpy" and device not in (None, "cpu"):
        raise ValueError(f"engine='numpy' works on the CPU; for device={device!r} use engine='torch' or 'auto'.")
    there = None if is_on_host(X) else X
    if engine == "numpy" or (engine == "auto" and (device == "cpu" if device is not None else there is None)):
        return NumPyEngine()
    try:
        from robustnmf.engines.torch_engine import TorchEngine, device_of
    except ImportError as error:
        raise MissingExtraError("Torch", "torch") from error
    return TorchEngine(device_of(there) if device is None else device)
