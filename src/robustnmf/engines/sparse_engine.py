"""The engine for sparse matrices in memory: blocks of rows are made dense where they are worked on.

Zeros are data: they have predictions, residuals and weights like other entries. But they need not be stored. Each
thread has the dense block that it works on, and nothing else is as large as the data is with its zeros. Results agree
with those of dense data: blocks, kernels and the order of sums are the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from scipy import sparse

from robustnmf.engines.lazy import is_lazy
from robustnmf.engines.numpy_engine import BLOCK_ENTRIES
from robustnmf.engines.protocol import traits_of
from robustnmf.engines.slices import cuts_of
from robustnmf.engines.streaming_engine import StreamingEngine
from robustnmf.formats.rows import Rows
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.utils.arrays import Array, Blocks


class SparseEngine(StreamingEngine):
    """Arrays in memory beside data that is sparse.

    Parameters
    ----------
    n_threads : int or None
        Threads that work on the blocks, and so dense blocks at a time.
    block_entries : int
        Entries of a block, zeros included.
    """

    keeps_sparse = True

    def __init__(self, n_threads: int | None = None, block_entries: int = BLOCK_ENTRIES) -> None:
        super().__init__(n_threads)
        self.block_entries = block_entries

    def __deepcopy__(self, memo: dict[int, Any]) -> "SparseEngine":
        """Return an engine with the same parameters: estimators that have one can be cloned."""
        return SparseEngine(self.n_threads, self.block_entries)

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        if like is None:
            like = [range(cut.start, cut.stop) for cut in cuts_of(*rows.shape, self.block_entries)]
        return super().read(rows, like)

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        return self.read(X, like) if isinstance(X, Rows) else super().split(X, like)

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        if traits_of(function).selects_rows and is_lazy(blocks[0]):
            return super().map(partial(_sparse_result, function), *blocks, **shared)
        return super().map(function, *blocks, **shared)

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        if not sparse.issparse(blocks[0]):
            return super().regroup(blocks, n_rows)
        rows = SparseRows(sparse.vstack(list(blocks), format="csr"))
        starts = range(0, rows.shape[0], n_rows)
        return self.read(rows, [range(start, min(start + n_rows, rows.shape[0])) for start in starts])


def _sparse_result(function: Callable[..., Any], *block: Any, **shared: Any) -> Any:
    """Return some rows of a block that was made dense as a sparse matrix."""
    return sparse.csr_array(function(*block, **shared))
