"""The engine for sparse matrices in memory whose other entries are missing: what is stored is visited.

Blocks of data and of weights are `robustnmf.utils.observed.Observed` arrays, and functions of blocks are called with
them. A function that needs entries which are missing gets dense rows, a few at a time, unless the data is too large.
"""

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, Literal

import numpy as np
from scipy import sparse

from robustnmf.engines.numpy_engine import NumPyEngine
from robustnmf.engines.protocol import traits_of
from robustnmf.errors import IncompatibleError
from robustnmf.formats.rows import Rows
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.interface import Kernels
from robustnmf.utils.arrays import Array, Blocks, add
from robustnmf.utils.entries import Entries
from robustnmf.utils.observed import Observed, Pattern, UnknownEntriesError
from robustnmf.utils.process_state import no_fork
from robustnmf.utils.slices import cuts_of

# Stored entries of a block, and rows at most: codes of a block are as many.
BLOCK_ENTRIES, BLOCK_ROWS = 2**17, 2**14
# Entries, missing ones included, of rows that are made dense at a time, and of data of which all rows may be.
DENSE_ENTRIES, MOST_DENSE_ENTRIES = 2**20, 2**30


class ObservedEngine(NumPyEngine):
    """Arrays in memory beside data of which most entries are missing.

    Parameters
    ----------
    n_threads : int or None
        Threads that work on the blocks.
    block_entries : int
        Stored entries of a block.
    """

    keeps_sparse = True

    most_sums = 4  # sums over blocks are as large as the basis

    def __init__(self, n_threads: int | None = None, block_entries: int = BLOCK_ENTRIES) -> None:
        super().__init__(n_threads, block_entries)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ObservedEngine":
        """Return an engine with the same parameters: estimators that have one can be cloned."""
        return ObservedEngine(self.n_threads, self.block_entries)

    @property
    def kernels(self) -> Kernels:
        with no_fork:
            from robustnmf.kernels.numba.observed import KERNELS  # imported late: Numba costs a third of a second

        return KERNELS

    def read(self, rows: Rows, like: Blocks | None = None) -> Blocks:
        if not isinstance(rows, SparseRows):
            return super().read(rows, like)
        if like is None:
            return [_block(rows, cut.start, cut.stop) for cut in self._cuts(rows)]
        ends = np.cumsum([len(block) for block in like])
        parts = [_block(rows, int(end) - len(block), int(end)) for end, block in zip(ends, like, strict=True)]
        if not isinstance(like[0], Observed):
            return parts
        return [block.weighted_with(part.matrix()) for block, part in zip(like, parts, strict=True)]

    def _cuts(self, rows: SparseRows) -> list[slice]:
        """Return blocks of rows by how much they store; by the shape and the numbers of entries alone."""
        n_rows, indptr = rows.shape[0], rows.matrix.indptr
        n_blocks = max(ceil(rows.matrix.nnz / self.block_entries), ceil(n_rows / BLOCK_ROWS), 1)
        places = np.searchsorted(indptr, np.linspace(0, indptr[-1], n_blocks + 1)[1:-1])
        ends = np.unique(np.concatenate([places, np.arange(BLOCK_ROWS, n_rows, BLOCK_ROWS), [n_rows]]))
        ends = ends[ends > 0]
        return [slice(int(start), int(end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        if isinstance(X, Rows):
            return self.read(X, like)
        if not isinstance(X, Observed):
            return super().split(X, like)
        assert like is not None
        return super().split(X, like)

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        return super().map(_or_dense(function, joined=True), *blocks, **shared)

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        return super().map_and_sum(_or_dense(function, joined=(True, False)), *blocks, **shared)

    def sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        call = _or_dense(function, joined=False)
        return super().map_and_sum(lambda *block, **options: (None, call(*block, **options)), *blocks, **shared)[1]

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        if not isinstance(V[0], Observed):
            return super().map_features(function, V, M, *rows, **shared)
        columns, weights = self.join(V).T, None if M is None else self.join(M).T
        cuts = self._cuts(SparseRows(columns.matrix()))
        call = _or_dense(function, joined=True)

        def apply(cut: slice) -> Array:
            sliced = [None if a is None else a[cut] for a in (columns, weights, *rows)]
            return call(*sliced, **shared, xp=self.xp)

        return self.join(self._each(apply, [(cut,) for cut in cuts]))

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        if not isinstance(A[0], Observed):
            return super().quantile(A, M, q, axis=axis)
        assert M is not None  # what is missing has a weight of zero
        if axis == "feature":
            return self.map_features(_row_quantiles, A, M, q=q)
        values, weights = (np.concatenate([block.values for block in blocks])[None, :] for blocks in (A, M))
        return super().quantile([values], [weights], q)


def _block(rows: SparseRows, start: int, stop: int) -> Observed:
    """Return some rows."""
    found = rows.entries(start, stop)
    return Observed(Pattern(found.indptr, found.columns, found.n_columns), found.values)


def _row_quantiles(A: Observed, M: Observed, *, q: float, xp: Any) -> Array:
    """Return the weighted quantile of each row, 0 where nothing is observed."""
    from robustnmf.kernels.numba.observed import row_quantiles

    return row_quantiles(A, M, q)


def _or_dense(function: Callable[..., Any], joined: Any) -> Callable[..., Any]:
    """Return a function of blocks that is called with dense rows, a few at a time, if it needs what is missing.

    Parameters
    ----------
    joined : bool or tuple of bool
        Whether what it returns for some rows is joined with that of others, or added; of a pair, each of both.
    """

    def call(*blocks: Any, **options: Any) -> Any:
        try:
            return function(*blocks, **options)
        except UnknownEntriesError as error:
            result = _of_entries(function, blocks, options)
            if result is not NotImplemented:
                return result
            results = [function(*some, **options) for some in _dense_rows(blocks, function, error)]
            if isinstance(joined, bool):
                return _merged(results, joined)
            return tuple(_merged(list(part), how) for part, how in zip(zip(*results, strict=True), joined, strict=True))

    return call


def _of_entries(function: Callable[..., Any], blocks: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what the same function of stored entries returns, whose others are zero; NotImplemented if there is none.

    Data is zero where it is missing, and where a function does not ask for weights, that is all it has to know.
    """
    stored, (data, *others) = traits_of(function).stored, blocks
    if stored is None or not isinstance(data, Observed) or any(isinstance(block, Observed) for block in others):
        return NotImplemented
    result = stored(data.entries, *others, **options)
    parts = result if isinstance(result, tuple) else (result,)
    found = tuple(Observed(data.pattern, p.values) if isinstance(p, Entries) else p for p in parts)
    return found if isinstance(result, tuple) else found[0]


def _dense_rows(blocks: tuple[Any, ...], function: Any, error: UnknownEntriesError) -> Iterator[list[Any]]:
    """Yield some rows of all blocks at a time, those of `Observed` ones dense."""
    some = [block for block in blocks if isinstance(block, Observed)]
    if not some:
        raise error
    n_rows, n_columns = some[0].shape
    if n_rows * n_columns > MOST_DENSE_ENTRIES:
        name = getattr(function, "__qualname__", repr(function))
        raise IncompatibleError(
            f"{name} works on dense data, and a block of this sparse data would have {n_rows} x {n_columns} entries. "
            "Use the default method and solver, which visit what is stored, or data of fewer samples and features."
        ) from error
    for cut in cuts_of(n_rows, n_columns, DENSE_ENTRIES):
        yield [_dense_part(block, cut, n_rows) for block in blocks]


def _dense_part(block: Any, cut: slice, n_rows: int) -> Any:
    if isinstance(block, Observed):
        return block[cut].dense()
    if isinstance(block, np.ndarray) and len(block) == n_rows:
        return block[cut]
    if block is None:
        return None
    raise IncompatibleError("Positions cannot be cut into dense rows.")


def _merged(results: list[Any], joined: bool) -> Any:
    """Return what a function gives for several runs of rows as one: arrays, tuples of them, or sums."""
    if isinstance(results[0], tuple):
        return tuple(_merged(list(part), joined) for part in zip(*results, strict=True))
    if joined:
        are_sparse = sparse.issparse(results[0])
        return sparse.vstack(results, format="csr") if are_sparse else np.concatenate(results)
    total = results[0]
    for part in results[1:]:
        total = add(total, part)
    return total
