"""The engine for NumPy arrays in the memory of one machine, with Numba kernels.

Blocks are worked on by a few threads (NumPy, BLAS and the kernels release the interpreter lock), each with
single-threaded BLAS. How the data is cut depends on its shape alone, so the number of threads does not change
a single bit of the answer.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import cache, reduce
from math import ceil
from threading import Event
from typing import Any, Literal

import array_api_compat.numpy as xp
import numpy as np

from robustnmf.engines.lazy import resolve
from robustnmf.engines.protocol import InMemoryEngine, traits_of
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.interface import Kernels
from robustnmf.utils.arrays import Array, Blocks, Namespace, add, transposed, zip_blocks
from robustnmf.utils.process_state import (
    blas_threads,
    keep_freed_memory,
    limit_blas_of_thread,
    no_fork,
    single_threaded_blas,
    uncollected_garbage,
    unwatched_arithmetic,
)
from robustnmf.utils.slices import cuts_of

# Entries of X in a block: 2 MiB in float64, so that a block's residuals and weights stay in the cache.
BLOCK_ENTRIES = 2**18
# But of so many rows, if that leaves so many blocks: what a block says of the basis has the size of the basis, and with
# few rows it would take longer to add up than the rows themselves.
BLOCK_ROWS, FEWEST_BLOCKS = 128, 16
# Rows of a factor that a thread works on at a time.
ROWS = 256


@cache
def _compiled_kernels() -> Kernels:
    """Return the kernels of Numba, which costs a third of a second to import."""
    with no_fork:
        from robustnmf.kernels.numba.table import KERNELS

    return KERNELS


class NumPyEngine(InMemoryEngine):
    """Arrays in memory, cut into blocks that a few threads work on.

    Parameters
    ----------
    n_threads : int or None
        Threads that work on the blocks; None takes what Numba and BLAS are allowed.
    block_entries : int or None
        Entries of the data matrix in one block; None takes `BLOCK_ENTRIES`, or `BLOCK_ROWS` of wide data.
    """

    most_sums = 32
    """Partial sums over blocks that exist at a time."""

    def __init__(self, n_threads: int | None = None, block_entries: int | None = None) -> None:
        self.xp: Namespace = xp
        self.n_threads = _default_threads() if n_threads is None else n_threads
        self.block_entries = BLOCK_ENTRIES if block_entries is None else block_entries
        self.block_rows = BLOCK_ROWS if block_entries is None else 1
        self.rows_at_a_time: int | None = ROWS
        self.few_rows = 1.0
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator["NumPyEngine"]:
        """Hold a pool of threads and single-threaded BLAS for the length of a fit."""
        keep_freed_memory()
        helpers = ThreadPoolExecutor(max(self.n_threads - 1, 1), "robustnmf", _begin_helper)
        with single_threaded_blas(), unwatched_arithmetic(), helpers as self._pool:
            try:
                yield self
            except SystemError as error:
                if _is_interrupt(error):
                    raise KeyboardInterrupt from None
                raise
            finally:
                self._pool = None

    def place(self, values: Any, dtype: Any = None) -> Array:
        return np.asarray(values, dtype=dtype)

    def from_dlpack(self, X: Any) -> Array | None:
        return None  # scikit-learn looks at all that comes to the host

    def to_device(self, X: Any) -> Array:
        return X.read(0, X.shape[0]) if isinstance(X, SparseRows) and not self.keeps_sparse else X

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        """Return views of blocks of rows, cut by the number of columns of X or as the blocks `like`."""
        if like is None:
            return [X[rows] for rows in self.cuts(*X.shape)]
        ends = np.cumsum([len(block) for block in like])
        return [X[end - len(block) : end] for end, block in zip(ends, like, strict=True)]

    def cuts(self, n_rows: int, n_columns: int) -> list[slice]:
        """Return how a matrix is cut into blocks of rows.

        Parameters
        ----------
        n_rows : int
            Samples.
        n_columns : int
            Features.

        Returns
        -------
        list of slice
            Rows of each block.
        """
        rows = min(self.block_rows, n_rows // FEWEST_BLOCKS)
        return cuts_of(n_rows, n_columns, max(self.block_entries, rows * n_columns))

    def join(self, blocks: Blocks) -> Array:
        return blocks[0] if len(blocks) == 1 else np.concatenate(list(blocks))

    def empty(self, shape: tuple[int, int], dtype: Any) -> Array:
        return np.empty(shape, dtype=dtype)

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        rows = self.join(blocks)
        return [rows[i : i + n_rows] for i in range(0, len(rows), n_rows)]

    def persist(self, blocks: Blocks) -> Blocks:
        return [resolve(block, {}, self) for block in blocks]

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        arguments = zip_blocks(blocks)
        if traits_of(function).light:
            return transposed([function(*block, **shared, xp=xp) for block in arguments])
        return transposed(self._each(lambda *block: function(*block, **shared, xp=xp), arguments))

    def fill(
        self, targets: Sequence[Blocks], function: Callable[..., Any], *blocks: Blocks | None, **shared: Any
    ) -> Any:
        def apply(into: tuple[Array, ...], block: tuple[Any, ...]) -> Any:
            results = function(*block, **shared, xp=xp)
            for target, result in zip(into, results, strict=False):
                target[...] = result
            return results[len(into) :]

        return transposed(self._each(apply, list(zip(zip(*targets, strict=True), zip_blocks(blocks), strict=True))))

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        def apply(cut: slice) -> Array:
            sliced = [None if a is None else a[cut] for a in rows]
            observed = None if M is None else _feature_rows(M, cut)
            return function(_feature_rows(V, cut), observed, *sliced, **shared, xp=xp)

        n_samples, n_features = sum(len(block) for block in V), V[0].shape[1]
        return self.join(self._each(apply, [(cut,) for cut in cuts_of(n_features, n_samples, self.block_entries)]))

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        """Apply the function to every block, keep the first of its results and add up the second.

        Sums are taken over a few runs of consecutive blocks, then over the runs: no more of them exist at a time.
        """
        arguments = zip_blocks(blocks)

        def run(start: int, end: int) -> tuple[list[Any], Any]:
            mapped, total = [], None
            for i in range(start, end):
                kept, part = function(*arguments[i], **shared, xp=xp)
                mapped.append(kept)
                total = part if total is None else add(total, part)
            return mapped, total

        n_runs = min(len(arguments), self.most_sums)
        ends = [len(arguments) * (i + 1) // n_runs for i in range(n_runs)]
        results = self._each(run, list(zip([0, *ends[:-1]], ends, strict=True)))
        return transposed([kept for mapped, _ in results for kept in mapped]), reduce(
            add, [part for _, part in results]
        )

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        """Return an exact weighted quantile, by partial sorting where the weights are 0 and 1."""
        if axis == "feature":
            return self.map_features(_row_quantiles, A, M, q=q)
        if M is None:
            return _quantile(np.concatenate([block.ravel() for block in A]), None, q)
        observed = [block > 0 for block in M]
        values, weights = _gathered(A, observed), None if _are_equal(M, observed) else _gathered(M, observed)
        return _quantile(values, weights, q)

    @property
    def kernels(self) -> Kernels:
        return _compiled_kernels()

    def _each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results for every tuple of arguments; this thread works on them and the pool, if any, helps."""
        if len(arguments) == 1:
            return [function(*arguments[0])]
        results: list[Any] = [None] * len(arguments)
        waiting = iter(range(len(arguments)))  # `next` on it is atomic: every index goes to one thread
        failed = Event()

        def work() -> None:
            try:
                for i in waiting:
                    if failed.is_set():
                        break
                    results[i] = function(*arguments[i])
            except BaseException:
                failed.set()
                raise

        n_helpers = 0 if self._pool is None else min(self.n_threads, len(arguments)) - 1
        helpers = [self._pool.submit(work) for _ in range(n_helpers)] if self._pool is not None else []
        try:
            work()
        finally:
            wait(helpers)  # an array that is still worked on must not be left behind
        for helper in helpers:
            helper.result()
        return results


def _begin_helper() -> None:
    """Set what holds for one thread, in a thread that ends with the fit."""
    limit_blas_of_thread()
    unwatched_arithmetic().__enter__()


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is behind an error: while a kernel is called, Numba makes SystemErrors of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _default_threads() -> int:
    """Return how many threads may be used: what Numba has (``NUMBA_NUM_THREADS``, the cores), but no more than BLAS.

    So `threadpoolctl`, ``OMP_NUM_THREADS`` and joblib's workers limit a fit as they limit scikit-learn; and fits that
    run side by side in threads, which find BLAS limited to one by the first, do not fight for the cores.
    """
    rest = nullcontext() if "numba" in sys.modules else uncollected_garbage()  # of its import, a third would be that
    with no_fork, rest:  # the first call starts threads of Numba, and holds a lock meanwhile
        from numba import get_num_threads

        n_threads = int(get_num_threads())
    return min(n_threads, blas_threads() or n_threads)


def _feature_rows(blocks: Blocks, cut: slice) -> Array:
    """Return features `cut` of all samples, features in contiguous rows."""
    return np.ascontiguousarray(np.concatenate([block[:, cut].T for block in blocks], axis=1))


def _gathered(blocks: Blocks, chosen: Blocks) -> Array:
    """Return the chosen entries of all blocks as a vector, with no other copy of them on the way."""
    ends = np.cumsum([np.count_nonzero(c) for c in chosen])
    values = np.empty(ends[-1], dtype=blocks[0].dtype)
    for block, c, end in zip(blocks, chosen, ends, strict=True):
        values[end - np.count_nonzero(c) : end] = block[c]
    return values


def _are_equal(M: Blocks, observed: Blocks) -> bool:
    """Return whether all positive weights are the same: then nobody needs a copy of them."""
    some = next((block[o][0] for block, o in zip(M, observed, strict=True) if o.any()), 0)
    return all(np.all(block[o] == some) for block, o in zip(M, observed, strict=True))


def _row_quantiles(A: Array, M: Array | None, *, q: float, xp: Any) -> Array:
    """Return the weighted quantile of each row."""
    if M is None:
        k = max(ceil(q * A.shape[1]) - 1, 0)
        return np.partition(A, k, axis=1)[:, k]
    return np.array([_quantile(a[m > 0], m[m > 0], q) for a, m in zip(A, M, strict=True)])


def _quantile(values: Array, weights: Array | None, q: float) -> Any:
    """Return the q-quantile of `values` (destroyed) with positive weights; 0 if there are none."""
    if values.size == 0:
        return values.dtype.type(0)
    if weights is None or np.all(weights == weights[0]):
        k = max(ceil(q * values.size) - 1, 0)
        values.partition(k)
        return values[k]
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order], dtype=np.float64)
    # Weights such as 1/3 are rounded: a sum that reaches the share to within that rounding has reached it.
    share = (q - 4 * np.finfo(weights.dtype).eps) * cumulated[-1]
    return values[order[np.searchsorted(cumulated, share)]]
