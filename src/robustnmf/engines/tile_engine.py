"""The engine for data that takes much of the memory of this machine: blocks of rows, the tiles, are worked on.

What the `NumPyEngine` keeps of all entries, such as the data in its unit, is computed tile by tile where it is needed
(`robustnmf.engines.lazy`). So a fit takes the memory of a few tiles, of the codes, of some samples that the components
are learnt from, and of a mask or two. Tiles are cut like the blocks of the `NumPyEngine`, and results are the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from robustnmf.engines.lazy import read_blocks
from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.streaming_engine import StreamingEngine
from robustnmf.formats.device_rows import DeviceRows
from robustnmf.formats.rows import Rows, row_blocks
from robustnmf.utils.arrays import Array, Blocks
from robustnmf.utils.slices import cuts_of

# Features are gathered in so many parts: a part is what takes memory beside the data.
FEATURE_PARTS = 16


class TileEngine(StreamingEngine):
    """A matrix in memory of which tiles are worked on, and arrays beside it.

    Parameters
    ----------
    n_threads : int or None
        Threads; None is one for each core.
    block_bytes : int
        As that of `StreamingEngine`; tiles are cut by the number of their entries instead.
    """

    gathers_features = True
    has_tiles = True
    keeps_masks = True

    def __deepcopy__(self, memo: dict[int, Any]) -> "TileEngine":
        """Return an engine with the same parameters: estimators that have one can be cloned."""
        return TileEngine(self.n_threads, self.block_bytes)

    def to_device(self, X: Any) -> Any:
        """Return a matrix as rows of which tiles are taken."""
        return DeviceRows(X) if isinstance(X, np.ndarray) else super().to_device(X)

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        """Return tiles of rows, which are taken where they are worked on."""
        if like is None:
            like = [range(cut.start, cut.stop) for cut in self.cuts(*rows.shape)]
        found = row_blocks(rows, 0, like)
        blocks: Blocks = read_blocks(found, [len(block) for block in found], rows.shape[1], rows.dtype, None)
        return blocks

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        """Return tiles of rows, or views of the blocks of an array."""
        return self.read(X, like) if isinstance(X, Rows) else super().split(X, like)

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        """Apply the function to a part of the features at a time, for which all tiles are taken."""
        n_samples, n_features = sum(len(block) for block in V), int(V[0].shape[1])
        results = []
        for cut in cuts_of(n_features, n_samples, max(self.block_entries, n_samples * n_features // FEATURE_PARTS)):
            some = {"start": cut.start, "stop": cut.stop}
            columns = self.map(_columns, V, **some), None if M is None else self.map(_columns, M, **some)
            others = (None if array is None else array[cut] for array in rows)
            results.append(NumPyEngine.map_features(self, function, *columns, *others, **shared))
        return self.join(results)

    def fill(
        self, targets: Sequence[Blocks], function: Callable[..., Any], *blocks: Blocks | None, **shared: Any
    ) -> Any:
        return super().fill(targets, self._reading(function), *blocks, **shared)


def _columns(rows: Array, *, start: int, stop: int, xp: Any) -> Array:
    """Return a copy of some columns; a view would keep the whole block."""
    return rows[:, start:stop].copy()
