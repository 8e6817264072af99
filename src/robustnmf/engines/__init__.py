"""WHERE arrays live: one file per engine, and the protocol they share."""

from robustnmf.engines.dask_engine import DaskEngine
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import Engine
from robustnmf.engines.streaming_engine import StreamingEngine

__all__ = ["DaskEngine", "Engine", "NumPyEngine", "StreamingEngine"]
