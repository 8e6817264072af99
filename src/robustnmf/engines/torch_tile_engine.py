"""The engine for data that takes much of a device of Torch: blocks of rows, the tiles, are worked on one by one.

The data stays where it is, on the device or, if it is too large for that, on the host. What the other engines keep of
all entries, such as the data in its unit or the weights of entries, is computed tile by tile wherever it is needed
(`robustnmf.engines.lazy`). So a fit takes the memory of a few tiles, of the codes, and of the mask of outliers.

Kernels that read the data of all blocks, or record it in a CUDA graph, need it in one place. They work on the
subsample that large data is learnt from; tiles have those that work on a tile.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, prod
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch

from robustnmf.engines.lazy import ComputedBlock, ReadBlock, computed_blocks, is_lazy, read_blocks, resolve
from robustnmf.engines.protocol import traits_of
from robustnmf.engines.streaming_engine import check_gathered
from robustnmf.engines.torch_engine import SORTED_ENTRIES, TorchEngine, floating_type
from robustnmf.engines.torch_tiles import TensorRows
from robustnmf.formats.rows import Rows, row_blocks
from robustnmf.utils.arrays import (
    ROOM_FOR_RESULTS,
    Array,
    Blocks,
    is_foreign,
    is_on_host,
    is_sparse_tensor,
)
from robustnmf.utils.cached import cached_property
from robustnmf.utils.process_state import hold_while_forking
from robustnmf.utils.slices import cuts_of

# Most entries of a tile, and on CUDA fewer if the device has less than so many bytes for each.
TILE_ENTRIES = {"cuda": 2**28, "cpu": 2**20}
BYTES_PER_TILED_ENTRY = 2**9
# A fit takes the memory of some tiles beside the data, which is cut into so many at least. More would take longer:
# the host launches as much for a small tile as for a large one.
FEWEST_TILES = 48


class TorchTileEngine(TorchEngine):
    """A matrix of which tiles are worked on by one device, and tensors beside it.

    Parameters
    ----------
    device : str or torch.device
        Where the work is done: "cuda", "cuda:1", "cpu".
    block_entries : int or None
        Entries of a tile; None takes a part of the data, at most `TILE_ENTRIES`.
    use_triton : bool
        Whether to use kernels: in Triton on CUDA, where they can be, and of NumPy on the CPU.
    """

    most_entries, bytes_per_entry = TILE_ENTRIES, BYTES_PER_TILED_ENTRY
    gathers_features = False
    has_tiles = True

    def __init__(self, device: Any = "cuda", block_entries: int | None = None, *, use_triton: bool = True) -> None:
        kind = torch.device(device).type
        if kind not in TILE_ENTRIES:
            raise ValueError(
                f"Data in tiles is worked on by the CPU or by CUDA; got device={str(device)!r}. engine='torch' takes "
                "all of it, sparse data as dense, to the device."
            )
        super().__init__(device, block_entries, use_triton=use_triton)
        self._given, self._use_triton = block_entries, use_triton
        self._pinned: list[tuple[int, int]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "TorchTileEngine":
        """Return an engine with the same parameters: estimators that have one can be cloned."""
        return type(self)(self.device, self._given, use_triton=self._use_triton)

    def from_dlpack(self, X: Any) -> Any:
        """Return a tensor, or an array of another library on a device, as rows of a tensor that stays where it is."""
        if not is_foreign(X) or is_sparse_tensor(X):
            return super().from_dlpack(X)
        if not isinstance(X, torch.Tensor):
            if is_on_host(X):
                return None
            X = torch.utils.dlpack.from_dlpack(X)
        return TensorRows(X.detach(), self.device, floating_type(X))

    def to_device(self, X: Any) -> Any:
        """Return a matrix of the host as rows that are taken to the device tile by tile."""
        if isinstance(X, np.ndarray):
            X = torch.from_numpy(X if X.flags.writeable else X.copy())  # Torch has no read-only tensors
        elif not self._is_away(X):
            return super().to_device(X)
        return TensorRows(X, self.device, floating_type(X))

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        """Return tiles that are taken to the device where they are worked on."""
        if isinstance(rows, TensorRows):
            self._pin(rows.tensor)
        if like is None:
            most = ceil(prod(rows.shape) / FEWEST_TILES) if self._given is None else self.block_entries
            cuts = cuts_of(*rows.shape, max(1, min(most, self.block_entries)))
            like = [range(cut.start, cut.stop) for cut in cuts]
        found = row_blocks(rows, 0, like)
        blocks: Blocks = read_blocks(found, [len(block) for block in found], rows.shape[1], rows.dtype, None)
        return blocks

    def split(self, X: Any, like: Blocks | None = None) -> Blocks:
        X = self.to_device(X) if like is None and not isinstance(X, Rows) else X
        if isinstance(X, Rows):
            return self.read(X, like)
        if like is not None and self._is_away(X):  # it is too large for the device
            return list(torch.split(X, [len(block) for block in like]))
        return super().split(X, like)

    def join(self, blocks: Blocks) -> Array:
        return super().join([self._resolved(block, {}) for block in blocks])

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        """Apply the function to every block, now or, if its result is as large as the data, where it is needed."""
        if any(map(is_lazy, blocks)) and traits_of(function).recomputed:
            return computed_blocks(function, blocks, shared, as_dtype=_torch_dtype)
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

    def empty(self, shape: tuple[int, int], dtype: Any) -> Array:
        """Return a matrix to write results for all entries into: on the device, or on the host if it is too large."""
        size = shape[0] * shape[1] * torch.empty((), dtype=dtype).element_size()
        fits = self.device.type != "cuda" or size <= ROOM_FOR_RESULTS * torch.cuda.mem_get_info(self.device)[0]
        return torch.empty(shape, dtype=dtype, device=self.device if fits else "cpu")

    @contextmanager
    def running(self) -> Iterator["TorchTileEngine"]:
        """Work on tiles for the length of a fit; pages of the host that copies are made from are locked meanwhile."""
        with super().running():
            try:
                yield self
            finally:
                self._unpin()

    def _arriving(self, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments as tensors here, read or computed one block after the other.

        What has to come from the host is copied while the block before is worked on.
        """
        coming, before = self._fetch(arguments[0]), None
        for block, following in zip(arguments, [*arguments[1:], None], strict=True):
            loaded = dict(coming)
            if coming:
                torch.cuda.current_stream(self.device).wait_stream(self._arrivals)
            coming, copies = {} if following is None else self._fetch(following), list(loaded.values())
            yield tuple(self._resolved(part, loaded) for part in block)
            if copies:
                here = torch.cuda.current_stream(self.device)
                for copy in copies:
                    copy.record_stream(here)
                if before is not None:  # or the host would run ahead, and all tiles come to lie on the device
                    before.synchronize()
                before = here.record_event()

    def _fetch(self, block: tuple[Any, ...]) -> dict[int, Any]:
        """Begin to copy the tiles that a block is made of from the host, behind what is worked on now."""
        if self.device.type != "cuda":
            return {}
        sources = {id(source): source for part in block for source in _sources(part) if self._is_away(source)}
        if not sources:
            return {}
        with torch.cuda.stream(self._arrivals):
            return {key: source() for key, source in sources.items()}

    @cached_property
    def _arrivals(self) -> torch.cuda.Stream:
        """Where data of the host is copied."""
        return torch.cuda.Stream(self.device)

    def _is_away(self, value: Any) -> bool:
        """Return whether a tensor, or what a tile is read from, is not on the device."""
        tensor = getattr(getattr(value, "rows", None), "tensor", value)
        return isinstance(tensor, torch.Tensor) and tensor.device.type != self.device.type

    def _resolved(self, block: Any, loaded: dict[int, Any]) -> Any:
        value = resolve(block, loaded, self)
        if isinstance(value, np.ndarray):
            return self.place(value)
        return value.to(self.device) if self._is_away(value) else value

    def _pin(self, X: Array) -> None:
        """Lock the pages of host data, so that copies do not wait for the processor; without, they are slower."""
        if self.device.type != "cuda" or X.is_cuda or not X.is_contiguous():
            return
        pages, driver = (X.data_ptr(), X.nbytes), torch.cuda.cudart()
        with _lock:
            if not _users[pages] and (X.is_pinned() or driver.cudaHostRegister(*pages, 0).value != 0):
                return
            _users[pages] += 1
        self._pinned.append(pages)

    def _unpin(self) -> None:
        while self._pinned:
            pages = self._pinned.pop()
            with _lock:
                _users[pages] -= 1
                if not _users[pages]:
                    torch.cuda.cudart().cudaHostUnregister(pages[0])


_users: Counter[tuple[int, int]] = Counter()
"""How many fits, in as many threads, use pages that they have locked, by address and number of bytes."""
_lock = Lock()
hold_while_forking(_lock)


def _sources(block: Any) -> list[Any]:
    """Return the sources that a block is read from, or computed of."""
    if isinstance(block, ComputedBlock):
        return [source for part in block.call.arguments for source in _sources(part)]
    return [block.source] if isinstance(block, ReadBlock) else []


def _torch_dtype(dtype: Any) -> torch.dtype:
    """Return a type of numbers as Torch calls it."""
    found: torch.dtype = dtype if isinstance(dtype, torch.dtype) else getattr(torch, np.dtype(dtype).name)
    return found
