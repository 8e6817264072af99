"""The engine for sparse matrices on a device of Torch: blocks of rows are made dense there, where they are worked on.

The matrix is on the device by rows, and nothing that is as large as it is with its zeros but for a few tiles, the dense
blocks that are worked on. What the other engines keep of all entries, such as the data in its unit or the weights of
entries, is computed tile by tile wherever it is needed (`robustnmf.engines.lazy`).

Kernels that read the data of all blocks, or record it in a CUDA graph, need it in one place: here there are only those
that work on a tile.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from robustnmf.engines.lazy import LazyBlock, computed_blocks, is_lazy, read_blocks, resolve
from robustnmf.engines.protocol import traits_of
from robustnmf.engines.slices import cuts_of
from robustnmf.engines.streaming_engine import check_gathered
from robustnmf.engines.torch_engine import SORTED_ENTRIES, TorchEngine, floating_type
from robustnmf.engines.torch_tiles import TileRows
from robustnmf.formats.rows import Rows, row_blocks
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.interface import Kernels, Rule
from robustnmf.utils.arrays import Array, Blocks, is_sparse_tensor

# Entries of a tile, zeros included: enough to keep a GPU busy, and little beside its memory.
TILE_ENTRIES = {"cuda": 2**24, "cpu": 2**20}


class TorchSparseEngine(TorchEngine):
    """A sparse matrix on one device, and tensors beside it.

    Parameters
    ----------
    device : str or torch.device
        Where the work is done: "cuda", "cuda:1", "cpu".
    block_entries : int or None
        Entries of a tile, zeros included; None takes `TILE_ENTRIES`.
    use_triton : bool
        Whether to use kernels: in Triton on CUDA, where they can be, and of NumPy on the CPU.
    """

    gathers_features = False
    keeps_sparse = True

    def __init__(self, device: Any = "cuda", block_entries: int | None = None, *, use_triton: bool = True) -> None:
        kind = torch.device(device).type
        if kind not in TILE_ENTRIES:
            raise ValueError(
                f"Sparse data that stays sparse is worked on by the CPU or by CUDA; got device={str(device)!r}. "
                "engine='torch' makes it dense."
            )
        super().__init__(device, TILE_ENTRIES[kind] if block_entries is None else block_entries, use_triton=use_triton)
        self.kernels = _kernels_of_tiles(self.kernels)
        self._use_triton = use_triton

    def __deepcopy__(self, memo: dict[int, Any]) -> "TorchSparseEngine":
        """Return an engine with the same parameters: estimators that have one can be cloned."""
        return TorchSparseEngine(self.device, self.block_entries, use_triton=self._use_triton)

    def from_dlpack(self, X: Any) -> Any:
        """Return a sparse tensor as rows on this device, any other as a dense one."""
        if not is_sparse_tensor(X):
            return super().from_dlpack(X)
        tiles = TileRows.of(X, self.device)
        return tiles.floating(floating_type(X))

    def to_device(self, X: Any) -> Any:
        return TileRows.of(X.matrix, self.device) if isinstance(X, SparseRows) else super().to_device(X)

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        """Return blocks of rows that are made dense where they are worked on; data that is not sparse as it is."""
        if not isinstance(rows, TileRows | SparseRows):
            return super().read(rows, like)
        tiles = rows if isinstance(rows, TileRows) else self.to_device(rows)
        if like is None:
            n_rows, n_columns = tiles.shape
            like = [range(cut.start, cut.stop) for cut in cuts_of(n_rows, n_columns, self.block_entries)]
        found = row_blocks(tiles, 0, like)
        blocks: Blocks = read_blocks(found, [len(block) for block in found], tiles.n_columns, tiles.dtype, None)
        return blocks

    def split(self, X: Any, like: Blocks | None = None) -> Blocks:
        if isinstance(X, Rows):
            return self.read(X, like)
        if like is not None and self._is_away(X):  # dense weights that are too large for the device
            return list(torch.split(X, [len(block) for block in like]))
        return super().split(X, like)

    def join(self, blocks: Blocks) -> Array:
        return super().join([self._resolved(block, {}) for block in blocks])

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        if not isinstance(blocks[0], TileRows):
            return super().regroup(blocks, n_rows)
        rows = TileRows.concatenated(blocks)
        starts = range(0, rows.shape[0], n_rows)
        return self.read(rows, [range(start, min(start + n_rows, rows.shape[0])) for start in starts])

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        """Apply the function to every block, now or, if its result is as large as the data, where it is needed."""
        if not any(map(is_lazy, blocks)):
            return super().map(function, *blocks, **shared)
        if traits_of(function).recomputed:
            return computed_blocks(function, blocks, shared, as_dtype=_torch_dtype)
        if traits_of(function).selects_rows and is_lazy(blocks[0]):
            return super().map(partial(_sparse_result, function), *blocks, **shared)
        return super().map(function, *blocks, **shared)

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        """Apply the function to blocks of features, if the data is small."""
        if is_lazy(V) or is_lazy(M):
            check_gathered(V)
            V, M = [self.join(V)], None if M is None else [self.join(M)]
        return super().map_features(function, V, M, *rows, **shared)

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        n_entries = sum(len(block) for block in A) * int(A[0].shape[1])
        if (is_lazy(A) or is_lazy(M)) and n_entries <= SORTED_ENTRIES:
            A, M = [self.join(A)], None if M is None else [self.join(M)]
        return super().quantile(A, M, q, axis=axis)

    def _arriving(self, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments with tiles that are made dense one after the other, and tensors of the host here."""
        for block in arguments:
            loaded: dict[int, Any] = {}
            yield tuple(self._resolved(part, loaded) for part in block)

    def _resolved(self, block: Any, loaded: dict[int, Any]) -> Any:
        value = resolve(block, loaded, self)
        return value.to(self.device) if self._is_away(value) else value


def _sparse_result(function: Callable[..., Any], *block: Any, **shared: Any) -> TileRows:
    """Return some rows of a tile as sparse rows."""
    return TileRows.of_dense(function(*block, **shared))


def _torch_dtype(dtype: Any) -> torch.dtype:
    """Return a type of numbers as Torch calls it."""
    found: torch.dtype = dtype if isinstance(dtype, torch.dtype) else getattr(torch, np.dtype(dtype).name)
    return found


def _kernels_of_tiles(kernels: Kernels) -> Kernels:
    """Return those kernels that work on one tile."""
    rule_of = partial(_rule_of_tile, kernels.rule_of)
    return replace(kernels, rule_of=rule_of, sweep=None, iterate=None, prepare=None)


def _rule_of_tile(rule_of: Callable[..., Rule | None], weighting: Any, Y: Any, rank: int) -> Rule | None:
    """Return a rule for a tile; None for what is not dense yet, as kernels cannot read it."""
    return None if isinstance(Y, LazyBlock) else rule_of(weighting, Y, rank)
