"""The engine for Torch tensors: one GPU (CUDA, or Apple's MPS), or the CPU.

The functions of the core run as they are, with Torch as their array library: the portable path. On CUDA the steps that
read the data have kernels in Triton (`robustnmf.kernels.cuda`), where that is installed.

Data that takes much of the memory of the device is for `robustnmf.engines.torch_tile_engine`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, reduce
from math import ceil, prod
from threading import current_thread, main_thread
from typing import Any, Literal

import array_api_compat.torch as xp
import numpy as np
import torch

from robustnmf.engines.lazy import resolve
from robustnmf.engines.protocol import InMemoryEngine, traits_of
from robustnmf.engines.torch_tiles import TileRows
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.cuda import pivoting
from robustnmf.kernels.cuda.graphs import Captures, side_stream
from robustnmf.kernels.interface import NO_KERNELS, Kernels
from robustnmf.kernels.mixture import without_numba
from robustnmf.utils.arrays import (
    Array,
    Blocks,
    Namespace,
    add,
    check_layout,
    is_foreign,
    is_on_host,
    is_sparse_tensor,
    to_host,
    transposed,
    zip_blocks,
)
from robustnmf.utils.process_state import SharedSetting, unwatched_arithmetic
from robustnmf.utils.slices import cuts_of, in_parts, parts_of, rows_of
from robustnmf.utils.user_warnings import warn_user

# Entries of X in a block: what the portable path needs beside the data is a few times that. On CUDA it is so many, or
# fewer if the device has less than this many bytes for each.
BLOCK_ENTRIES = {"cuda": 2**28, "mps": 2**24, "cpu": 2**20}
BYTES_PER_ENTRY = 256
# Data of more than this share of the memory is worked on in tiles: a fit of less takes about four times its size.
MUCH_OF_MEMORY = 0.025
# Up to so many entries are sorted to find a quantile: dozens of launches take longer.
SORTED_ENTRIES = 2**22


class TorchEngine(InMemoryEngine):
    """Tensors on one device.

    Parameters
    ----------
    device : str or torch.device
        Where the work is done: "cuda", "cuda:1", "mps", "cpu".
    block_entries : int or None
        Entries of the data matrix in one block; None takes `BLOCK_ENTRIES`.
    use_triton : bool
        Whether to use kernels: in Triton on CUDA, where they can be, and of NumPy on the CPU.
    """

    most_entries, bytes_per_entry = BLOCK_ENTRIES, BYTES_PER_ENTRY

    def __init__(self, device: Any = "cuda", block_entries: int | None = None, *, use_triton: bool = True) -> None:
        self.device = _available(device)
        self.xp: Namespace = _WithoutDoubles() if self.device.type == "mps" else xp
        most = entries_of_block(self.device, self.most_entries[self.device.type], self.bytes_per_entry)
        self.block_entries = most if block_entries is None else block_entries
        self.rows_at_a_time: int | None = None
        self.kernels = _kernels_for(self.device) if use_triton else NO_KERNELS
        self.few_rows = 0.25 if self.path == "triton" else 0.5  # there, other rows need other graphs

    @property
    def path(self) -> str:
        """How steps that read the data are computed: "triton" or "torch"."""
        return "torch" if self.kernels.iterate is None else "triton"

    @contextmanager
    def running(self) -> Iterator["TorchEngine"]:
        """Multiply matrices in full precision, not in that of an autocast, and keep no record for derivatives.

        A fit on a GPU does without Numba, which takes longer to load than the fit. In a thread of its own it has a
        stream of its own, so that several can be on the device at a time.
        """
        with (
            torch.no_grad(),
            _without_autocast(self.device),
            unwatched_arithmetic(),
            _full_precision.changed(),
            nullcontext() if self.device.type == "cpu" else without_numba(),
            _stream_of_thread(self.device),
            Captures(self.device),
        ):
            try:
                yield self
            finally:
                self.kernels.forget()

    def place(self, values: Any, dtype: Any = None) -> Array:
        if type(values) in (int, float):
            return torch.full((), values, dtype=dtype, device=self.device)  # a copy would wait for the device
        if isinstance(values, np.ndarray) and not values.flags.writeable:
            values = values.copy()  # Torch has no read-only tensors
        return torch.as_tensor(values, dtype=dtype, device=self.device)

    def from_dlpack(self, X: Any) -> Array | None:
        """Return a tensor, or an array of another library on a device, as a floating tensor on this device."""
        if not is_foreign(X):
            return None
        if not isinstance(X, torch.Tensor):
            if is_on_host(X):
                return None
            X = torch.utils.dlpack.from_dlpack(X)
        if is_sparse_tensor(X):
            check_layout(X)
            if self.device.type == "mps":
                return None  # it is made dense on the host
            X = X.detach().to(self.device).to_dense()
        dtype = torch.float32 if floating_type(X) == torch.float32 else self.xp.float64
        return X.detach().to(self.device, dtype).contiguous()

    def to_device(self, X: Any) -> Array:
        if isinstance(X, SparseRows):
            return self._dense(X)
        if isinstance(X, np.ndarray):
            X = torch.from_numpy(X if X.flags.writeable else X.copy())  # Torch has no read-only tensors
        if self.device.type == "mps":
            X = X.to(torch.float32)
        return X.to(self.device)

    def _dense(self, X: SparseRows) -> Array:
        """Return sparse data as a dense tensor, made on the device if that can: its zeros need not travel."""
        if self.device.type == "mps":
            return self.to_device(X.read(0, X.shape[0]))
        return TileRows.of(X.matrix, self.device).read(0, X.shape[0])

    def split(self, X: Array, like: Blocks | None = None) -> Blocks:
        """Return blocks of rows on the device."""
        if like is None:
            X = self.to_device(X)
            return [X[rows] for rows in cuts_of(len(X), X.shape[1], self.block_entries)]
        return list(torch.split(self.place(X), [len(block) for block in like]))

    def join(self, blocks: Blocks) -> Array:
        return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))

    def regroup(self, blocks: Blocks, n_rows: int) -> Blocks:
        return list(torch.split(self.join(blocks), n_rows))

    def persist(self, blocks: Blocks) -> Blocks:
        return [self.place(resolve(block, {}, self)) for block in blocks]

    def map(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        work = partial(function, **shared, xp=self.xp)
        work = partial(in_parts, work) if traits_of(function).rowwise else work
        return transposed([work(*block) for block in self._arriving(zip_blocks(blocks))])

    def fill(
        self, targets: Sequence[Blocks], function: Callable[..., Any], *blocks: Blocks | None, **shared: Any
    ) -> Any:
        rest = []
        for block, *into in zip(self._arriving(zip_blocks(blocks)), *targets, strict=True):
            found = []
            for rows in parts_of(*block) if traits_of(function).rowwise else [slice(None)]:
                results = function(*rows_of(block, rows), **shared, xp=self.xp)
                for target, result in zip(into, results, strict=False):
                    target[rows].copy_(result)
                found.append(results[len(into) :])
            rest.append(tuple(map(self.join, zip(*found, strict=True))))
        return transposed(rest)

    def map_features(
        self, function: Callable[..., Any], V: Blocks, M: Blocks | None, *rows: Array | None, **shared: Any
    ) -> Array:
        n_samples, n_features = sum(len(block) for block in V), V[0].shape[1]
        results = []
        for cut in cuts_of(n_features, n_samples, self.block_entries):
            observed = None if M is None else self._feature_rows(M, cut)
            sliced = [None if a is None else a[cut] for a in rows]
            results.append(function(self._feature_rows(V, cut), observed, *sliced, **shared, xp=self.xp))
        return self.join(results)

    def map_and_sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> tuple[Any, Any]:
        results = [function(*block, **shared, xp=self.xp) for block in self._arriving(zip_blocks(blocks))]
        return transposed([kept for kept, _ in results]), reduce(add, [part for _, part in results])

    def sum(self, function: Callable[..., Any], *blocks: Blocks | None, **shared: Any) -> Any:
        if not traits_of(function).rowwise:
            return super().sum(function, *blocks, **shared)
        arriving = self._arriving(zip_blocks(blocks))
        some = (rows_of(block, rows) for block in arriving for rows in parts_of(*block))
        return reduce(add, [function(*part, **shared, xp=self.xp) for part in some])

    def quantile(self, A: Blocks, M: Blocks | None, q: float, *, axis: Literal["feature"] | None = None) -> Array:
        """Return an exact weighted quantile of non-negative entries, of many by bisection: nothing is gathered.

        Non-negative floating-point numbers are ordered like their bits, so that 31 or 63 halvings find the entry.
        """
        if M is None and len(A) == 1 and 0 < prod(A[0].shape) <= SORTED_ENTRIES:
            columns = A[0] if axis == "feature" else A[0].reshape(-1, 1)
            found = torch.sort(torch.abs(columns), dim=0).values[max(ceil(q * len(columns)), 1) - 1]
            return found if axis == "feature" else found[0]
        over = {"dim": 0} if axis == "feature" else {}
        weight = self._weight(A, M, None, over)
        # Weights such as 1/3 are rounded: a sum that reaches the share to within that rounding has reached it.
        rounding = 0.0 if M is None else 4 * torch.finfo(M[0].dtype).eps
        share = torch.ceil(q * weight) if M is None else (q - rounding) * weight
        share = share.clamp(min=torch.finfo(share.dtype).tiny)  # at least one entry
        bits = torch.int32 if A[0].dtype == torch.float32 else torch.int64
        zeros = torch.zeros_like(weight, dtype=bits)
        # Most quantiles of sparse data are zero, and every look at it means to make it dense.
        if self.keeps_sparse and bool(torch.all(self._weight(A, M, zeros, over) >= share)):
            return zeros.view(A[0].dtype)
        low = torch.full_like(weight, -1, dtype=torch.int64)
        high = torch.full_like(low, int(_bits(torch.tensor(torch.inf, dtype=A[0].dtype, device="cpu"))))
        for _ in range(torch.iinfo(bits).bits):
            middle = low + torch.div(high - low, 2, rounding_mode="floor")
            reached = self._weight(A, M, middle.to(bits), over) >= share
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        value = high.to(bits).view(A[0].dtype)
        return torch.where(weight > 0, value, torch.zeros_like(value))

    def _weight(self, A: Blocks, M: Blocks | None, limit: Any, over: dict[str, int]) -> Any:
        """Return the weight of entries whose bits are not above the limit, of all for None."""

        def of_block(a: Array, m: Array | None, *, xp: Namespace) -> Array:
            weights = torch.ones_like(a, dtype=torch.bool) if m is None else m.to(self.xp.float64)
            if limit is not None:
                below = _bits(a) <= limit
                weights = below if m is None else weights * below
            return torch.sum(weights, dtype=torch.int64 if m is None else self.xp.float64, **over)

        return self.sum(of_block, A, M).to(self.xp.float64)

    def _arriving(self, arguments: Sequence[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        """Return the blocks that a function is called with, as tensors on the device."""
        return arguments

    def empty(self, shape: tuple[int, int], dtype: Any) -> Array:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _feature_rows(self, blocks: Blocks, cut: slice) -> Array:
        """Return features `cut` of all samples, features in rows."""
        return torch.cat([block[:, cut].T.to(self.device) for block in blocks], dim=1)


@contextmanager
def _highest_precision() -> Iterator[None]:
    """Multiply matrices in full precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


_full_precision = SharedSetting(_highest_precision)


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Let no autocast of the user multiply in half precision; on MPS not every version of Torch has one."""
    return nullcontext() if device.type == "mps" else torch.autocast(device.type, enabled=False)


@contextmanager
def _stream_of_thread(device: torch.device) -> Iterator[None]:
    """Work on a device, in the main thread as Torch does, in another thread on another stream."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        if current_thread() is main_thread():
            yield
            return
        with side_stream(device) as stream:
            stream.wait_stream(torch.cuda.current_stream(device))  # what the data was made on
            with torch.cuda.stream(stream):
                yield
            stream.synchronize()  # results are for whatever stream asks for them


class _WithoutDoubles:
    """Torch as an array library for devices that have no double precision: sums are single there."""

    float64 = torch.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(xp, name)


def entries_of_block(device: torch.device, most: int, bytes_per_entry: int) -> int:
    """Return how many entries a block has: at most so many, and fewer if the device has less memory for each."""
    if device.type != "cuda":
        return most
    return min(most, int(torch.cuda.get_device_properties(device).total_memory) // bytes_per_entry)


def device_of(X: Any) -> torch.device:
    """Return the device of an array of any library; the default one for None."""
    if X is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return X.device if isinstance(X, torch.Tensor) else torch.utils.dlpack.from_dlpack(X).device


def takes_much(X: Any, device: torch.device) -> bool:
    """Return whether a matrix takes so much of the memory of a GPU that copies of it may not fit."""
    if device.type != "cuda" or len(getattr(X, "shape", ())) != 2:
        return False
    size = prod(X.shape) * (4 if "float32" in str(getattr(X, "dtype", "")) else 8)
    return bool(size > MUCH_OF_MEMORY * torch.cuda.get_device_properties(device).total_memory)


def _available(device: Any) -> torch.device:
    """Return the device, as tensors name it, or say why it cannot be used."""
    known = f"device must be 'cpu', 'cuda', 'cuda:<number>' or 'mps'; got {device!r}."
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(known) from error
    if found.type not in BLOCK_ENTRIES:
        raise ValueError(known)
    if found.type == "cpu":
        return torch.device("cpu")  # tensors of "cpu:0" say that they are on "cpu", and would be copied again and again
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={str(device)!r} needs a CUDA GPU and a Torch built for it; Torch sees none.")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={str(device)!r} is not there: Torch sees {torch.cuda.device_count()} CUDA GPU(s).")
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps' needs an Apple GPU; Torch sees none.")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _kernels_for(device: torch.device) -> Kernels:
    """Return the kernels that run on the device."""
    if device.type == "cpu":
        return Kernels(propose=_propose_on_cpu, least_squares=_least_squares_on_cpu)
    if device.type != "cuda":
        return NO_KERNELS
    plain = Kernels(least_squares=pivoting.least_squares)
    if torch.cuda.get_device_capability(device) < (8, 0):
        _tell_slow(f"{torch.cuda.get_device_name(device)} is older than those that kernels are written for (Ampere).")
        return plain
    try:
        from robustnmf.kernels.cuda.kernels import CudaKernels
    except ImportError as error:
        _tell_slow(f"Triton could not be imported ({error}). On Linux: pip install triton; Windows: triton-windows.")
        return plain
    kernels = CudaKernels(device)
    kernels.start_up()
    return kernels.table


def _tell_slow(reason: str) -> None:
    """Warn, once in a process, that a GPU is used without kernels."""
    if reason not in _told:
        _told.add(reason)
        warn_user(
            "This GPU is used by plain Torch: with the same results, but tens of times slower than with kernels. "
            + reason,
            RuntimeWarning,
        )


_told: set[str] = set()
"""Reasons that the user knows."""


def _propose_on_cpu(G: Array, descent: Array, curvature: Array, X0: Array, max_iter: int) -> Array:
    """Return the move of `solvers.shared_gram.propose` by the kernel of NumPy's arrays, which share their memory.

    It is a loop over coordinates: thousands of small steps in Torch.
    """
    from robustnmf.kernels.numba.sweep import propose  # imported late: Numba costs a third of a second

    move = propose(to_host(G), to_host(descent), to_host(curvature), to_host(X0), max_iter)
    return torch.from_numpy(move)


def _least_squares_on_cpu(
    Y: Array, Q: Array | None, X: Array, A: Array, linear: Any, ridge: float, max_iter: int, tol: float
) -> Array:
    """Return the codes of `algorithm.encoding.settle` by the kernel of NumPy's arrays."""
    from robustnmf.kernels.numba.functions import least_squares  # imported late, see above

    linear = to_host(linear) if isinstance(linear, torch.Tensor) else linear
    weights = None if Q is None else to_host(Q)
    return torch.from_numpy(least_squares(to_host(Y), weights, to_host(X), to_host(A), linear, ridge, max_iter, tol))


def floating_type(X: Any) -> torch.dtype:
    """Return the type in which the entries of a tensor are worked on: double precision for whole numbers too."""
    if X.is_complex():
        raise ValueError(f"Complex data not supported: X must be real and non-negative; its dtype is {X.dtype}.")
    return torch.float32 if X.is_floating_point() and X.dtype != torch.float64 else torch.float64


def _bits(values: Array) -> Array:
    """Return non-negative numbers as integers in the same order; a negative zero counts as zero."""
    return torch.abs(values).view(torch.int32 if values.dtype == torch.float32 else torch.int64)
