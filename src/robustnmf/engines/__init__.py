"""WHERE arrays live: one file per engine, and the protocol they share."""

from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import Engine

__all__ = ["Engine", "NumPyEngine"]
