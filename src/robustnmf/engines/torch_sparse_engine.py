"""The engine for sparse matrices on a device of Torch: tiles are made dense there, where they are worked on.

The matrix is on the device by rows, and nothing that is as large as it is with its zeros but for a few tiles.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from robustnmf.engines.lazy import is_lazy
from robustnmf.engines.protocol import traits_of
from robustnmf.engines.torch_engine import floating_type
from robustnmf.engines.torch_tile_engine import TorchTileEngine
from robustnmf.engines.torch_tiles import TileRows
from robustnmf.formats.rows import Rows
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.utils.arrays import Blocks, is_sparse_tensor


class TorchSparseEngine(TorchTileEngine):
    """A sparse matrix on one device, and tensors beside it; parameters as those of `TorchTileEngine`."""

    keeps_sparse = True

    def from_dlpack(self, X: Any) -> Any:
        """Return a sparse tensor as sparse rows on this device, any other as rows of what is there."""
        if not is_sparse_tensor(X):
            return super().from_dlpack(X)
        return TileRows.of(X, self.device).floating(floating_type(X))

    def to_device(self, X: Any) -> Any:
        return TileRows.of(X.matrix, self.device) if isinstance(X, SparseRows) else super().to_device(X)

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        """Return blocks of rows that are made dense where they are worked on."""
        return super().read(self.to_device(rows) if isinstance(rows, SparseRows) else rows, like)

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        if not isinstance(blocks[0], TileRows):
            return super().regroup(blocks, n_rows)
        rows = TileRows.concatenated(blocks)
        starts = range(0, rows.shape[0], n_rows)
        return self.read(rows, [range(start, min(start + n_rows, rows.shape[0])) for start in starts])

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        """Apply the function as `TorchTileEngine` does; chosen rows of sparse data stay sparse."""
        if traits_of(function).selects_rows and is_lazy(blocks[0]):
            function = partial(_sparse_result, function)
        return super().map(function, *blocks, **shared)


def _sparse_result(function: Callable[..., Any], *block: Any, **shared: Any) -> TileRows:
    """Return some rows of a tile as sparse rows."""
    return TileRows.of_dense(function(*block, **shared))
