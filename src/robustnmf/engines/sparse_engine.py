"""The engine for sparse matrices in memory: what is stored is visited, and zeros are data all the same.

Functions of blocks that know what to do with stored entries (`Traits.stored`) get those: least squares needs no zeros.
For the others, blocks of rows are made dense where they are worked on. Each thread has the dense block that it works
on, and nothing else is as large as the data is with its zeros. Results agree with those of dense data.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import array_api_compat.numpy as numpy_xp
from scipy import sparse

from robustnmf.engines.lazy import ComputedBlock, LazyBlock, ReadBlock, Shared, is_lazy
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import traits_of
from robustnmf.engines.quantiles import of_stored_features
from robustnmf.engines.streaming_engine import StreamingEngine
from robustnmf.formats.rows import RowBlock, Rows
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.utils.arrays import Array, Blocks
from robustnmf.utils.entries import Entries
from robustnmf.utils.slices import cuts_of

# Entries of a block, zeros included. Larger than those of dense data: there are fewer calls for what is stored.
BLOCK_ENTRIES = 2**20


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

    most_sums = 16  # sparse data often has many features, and what is stored of it takes little memory

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
        traits = traits_of(function)
        is_stored = traits.stored is not None and all(map(self._is_stored, blocks))
        if is_stored and not traits.recomputed:
            return NumPyEngine.map(self, self._reading(function), *blocks, **shared)
        if is_stored and traits.keeps_stored:
            found = NumPyEngine.map(self, partial(self._of_entries, function), *blocks, **shared)
            if found[0] is not NotImplemented:
                return found
        if traits.selects_rows and is_lazy(blocks[0]):
            return super().map(partial(_sparse_result, function), *blocks, **shared)
        return super().map(function, *blocks, **shared)

    def sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        read = self._reading(function)
        return NumPyEngine.map_and_sum(self, lambda *b, **options: (None, read(*b, **options)), *blocks, **shared)[1]

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        return NumPyEngine.map_and_sum(self, self._reading(function), *blocks, **shared)

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        if axis == "feature" and M is None and is_lazy(A) and self._is_stored(A):
            return of_stored_features(self, A, q)
        return super().quantile(A, M, q, axis=axis)

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        if isinstance(blocks[0], Entries):
            blocks = [block.matrix() for block in blocks]
        if not sparse.issparse(blocks[0]):
            return super().regroup(blocks, n_rows)
        rows = SparseRows(sparse.vstack(list(blocks), format="csr"))
        starts = range(0, rows.shape[0], n_rows)
        return self.read(rows, [range(start, min(start + n_rows, rows.shape[0])) for start in starts])

    def _is_stored(self, blocks: Blocks | None) -> bool:
        """Return whether blocks are in memory, or can be had as stored entries."""
        return blocks is None or blocks[0] is None or self.entries_of(blocks[0]) is not None

    def _reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        dense = super()._reading(function)

        def call(*blocks: Any, **options: Any) -> Any:
            result = self._of_entries(function, *blocks, **options)
            return dense(*blocks, **options) if result is NotImplemented else result

        return call

    def _of_entries(self, function: Callable[..., Any], *blocks: Any, **options: Any) -> Any:
        """Return what the function of stored entries returns; NotImplemented if there is none, or blocks are dense."""
        stored = traits_of(function).stored
        if stored is None:
            return NotImplemented
        found = [None if block is None else self.entries_of(block) for block in blocks]
        if any(entries is None and block is not None for entries, block in zip(found, blocks, strict=True)):
            return NotImplemented
        shape = getattr(found[0], "shape", None)
        has_weights = any(getattr(block, "shape", None) == shape for block in found[1:])
        return NotImplemented if has_weights else stored(*found, **options)

    def entries_of(self, block: Any) -> Any:
        """Return a block of data as what is stored of it, None if it has to be dense; an array as it is.

        Parameters
        ----------
        block : block or array
            A block of data, or an argument beside it.

        Returns
        -------
        Entries, array or None
            What is stored.
        """
        if not isinstance(block, LazyBlock):
            return block
        if isinstance(block, ReadBlock):
            source = block.source
            if isinstance(source, RowBlock) and isinstance(source.rows, SparseRows):
                return source.rows.entries(source.start, source.stop)
            return None
        assert isinstance(block, ComputedBlock)
        call = block.call
        assert isinstance(call.shared, Shared)
        found = self._of_entries(call.function, *call.arguments, **call.shared.at(self).values, xp=numpy_xp)
        if found is NotImplemented:
            return None
        return found if block.part is None else found[block.part]


def _sparse_result(function: Callable[..., Any], *block: Any, **shared: Any) -> Any:
    """Return some rows of a block that was made dense as a sparse matrix."""
    return sparse.csr_array(function(*block, **shared))
