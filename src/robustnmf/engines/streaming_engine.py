"""The engine for data that is larger than the memory of one machine: blocks are read each time they are needed.

Codes, weights of the basis and all that is small stay in memory; what is as large as the data is computed from it block
by block (`robustnmf.engines.lazy`). Threads, kernels and the order of sums are those of the `NumPyEngine`.
"""

from collections.abc import Callable
from typing import Any, Literal

from robustnmf.engines import quantiles as counting
from robustnmf.engines.lazy import computed_blocks, is_lazy, read_blocks, resolve
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import traits_of
from robustnmf.errors import IncompatibleError
from robustnmf.formats.rows import BLOCK_BYTES, Rows, row_blocks
from robustnmf.utils.arrays import Array, Blocks

# Data of so few entries is gathered where features are asked for: fewer than 16 MiB.
GATHERED_ENTRIES = 2**21


class StreamingEngine(NumPyEngine):
    """Arrays in memory beside data that is read from disk block by block.

    Parameters
    ----------
    n_threads : int or None
        Threads that work on the blocks, and so blocks in memory at a time.
    block_bytes : int
        Bytes that are read at a time.
    """

    gathers_features = False

    def __init__(self, n_threads: int | None = None, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(n_threads)
        self.block_bytes = block_bytes

    def __deepcopy__(self, memo: dict[int, Any]) -> "StreamingEngine":
        """Return an engine with the same parameters: estimators that have one can be cloned."""
        return StreamingEngine(self.n_threads, self.block_bytes)

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        found = row_blocks(rows, self.block_bytes, like)
        blocks: Blocks = read_blocks(found, [len(block) for block in found], rows.shape[1], rows.dtype, None)
        return blocks

    def join(self, blocks: Blocks) -> Array:
        return super().join([resolve(block, {}, self) for block in blocks])

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        """Apply the function to every block, now or, if its result is as large as the data, where it is needed."""
        if not any(map(is_lazy, blocks)):
            return super().map(function, *blocks, **shared)
        if traits_of(function).recomputed:
            return computed_blocks(function, blocks, shared)
        return super().map(self._reading(function), *blocks, **shared)

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        return super().map_and_sum(self._reading(function), *blocks, **shared)

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        """Apply the function to blocks of features, if the data is in memory or small."""
        if is_lazy(V) or is_lazy(M):
            check_gathered(V)
            V = [resolve(block, {}, self) for block in V]
            M = None if M is None else [resolve(block, {}, self) for block in M]
        return super().map_features(function, V, M, *rows, **shared)

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        """Return an exact weighted quantile, by counting if the blocks are not in memory."""
        if is_lazy(A) or is_lazy(M):
            return counting.quantile(self, A, M, q, axis)
        return super().quantile(A, M, q, axis=axis)

    def _reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of blocks that reads or computes them first."""

        def call(*blocks: Any, **options: Any) -> Any:
            loaded: dict[int, Any] = {}
            return function(*(resolve(block, loaded, self) for block in blocks), **options)

        return call


def check_gathered(V: Blocks) -> None:
    """Refuse to gather the features of more than a little data."""
    n_entries = sum(len(block) for block in V) * V[0].shape[1]
    if n_entries > GATHERED_ENTRIES:
        raise IncompatibleError(
            f"Data of {n_entries} entries that is not in memory cannot be gathered by features. Use a solver "
            "that works with sums over samples, such as the default, 'shared-gram'."
        )
