"""The statistics of held-out residuals on a CUDA GPU: the kernels of `model.mixture` and `algorithm.holdout`.

A fit asks for them after every iteration, and the host would take longer to answer than the GPU to iterate. Residuals
are sorted once: then a histogram, whatever its support, is a few searches.
"""

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from robustnmf.kernels.cuda.compilation import launch
from robustnmf.kernels.cuda.functions import padded_rank
from robustnmf.kernels.mixture_constants import (
    BINS,
    MAX_STEPS,
    ROUNDING,
    ROUNDS,
    SMALLEST_SHARE,
    SUPPORT,
    TOLERANCE,
    WIDEST,
)

# Weights are counted in such parts of the largest possible one, 1: sums of integers do not depend on their order.
TICK = 2.0**-30
# A width that falls so low, in data whose unit is a typical entry, is on its way to zero, and out of single precision.
NOTHING = 1e-20

# Each stands on the right of a product: to its left, the interpreter of Triton 3.7 makes another constant of a tensor.
_BINS, _LANES = tl.constexpr(BINS), tl.constexpr(triton.next_power_of_2(BINS))
_MAX_STEPS, _ROUNDS = tl.constexpr(MAX_STEPS), tl.constexpr(ROUNDS)
_SUPPORT, _WIDEST, _TOLERANCE = tl.constexpr(SUPPORT), tl.constexpr(WIDEST), tl.constexpr(TOLERANCE)
_NOTHING, _SMALLEST_SHARE, _HALF = tl.constexpr(NOTHING), tl.constexpr(SMALLEST_SHARE), tl.constexpr(0.5 - ROUNDING)


@triton.jit
def _number_below(values, limits, closed, n, halvings):  # type: ignore[no-untyped-def]
    """Return how many sorted values are below each limit, or equal to it where it is `closed`."""
    low = tl.zeros(limits.shape, tl.int32)
    high = low + n
    for _ in range(halvings):
        middle = (low + high) // 2
        value = tl.load(values + middle, mask=middle < n, other=float("inf"))
        below = (value < limits) | (closed & (value == limits))
        low = tl.where((low < high) & below, middle + 1, low)
        high = tl.where((low < high) & (below == 0), middle, high)
    return low


@triton.jit
def _counts(values, weights, n, halvings, support):  # type: ignore[no-untyped-def]
    """Return the weight of values in each of the bins of equal size on [0, support], (_LANES,); cumulated weights."""
    i = tl.arange(0, 2 * _LANES)  # both ends of all bins are searched for at once: it is waiting that takes time
    at_end = i // _LANES
    k = i % _LANES
    # The last edge is the support itself, which belongs to the last bin.
    closed = (at_end == 1) & (k == _BINS - 1)
    edges = tl.where(closed, support, (k + at_end) * (support / _BINS))
    ticks = tl.load(weights + _number_below(values, edges, closed, n, halvings))
    inside = tl.sum(tl.reshape(tl.where(at_end == 1, ticks, -ticks), (2, _LANES)), axis=0)
    return tl.where(tl.arange(0, _LANES) < _BINS, inside, 0).to(tl.float32)


@triton.jit
def _value_at(values, weights, goal, n, halvings):  # type: ignore[no-untyped-def]
    """Return the first of the sorted values up to which the weights add up to a goal."""
    low = tl.full((), 0, tl.int32)
    high = low + n - 1
    for _ in range(halvings):
        middle = (low + high) // 2
        reached = tl.load(weights + middle + 1).to(tl.float64) >= goal
        low = tl.where(reached, low, tl.minimum(middle + 1, high))
        high = tl.where(reached, middle, high)
    return tl.load(values + low)


@triton.jit
def _weighted_sum(values, weights, n):  # type: ignore[no-untyped-def]
    """Return the sum of the values times their weights."""
    sums = tl.zeros((_LANES,), tl.float32)
    for start in range(0, n, _LANES):
        i = start + tl.arange(0, _LANES)
        ticks = tl.load(weights + i + 1, mask=i < n, other=0) - tl.load(weights + i, mask=i < n, other=0)
        sums += tl.load(values + i, mask=i < n, other=0.0) * ticks.to(tl.float32)
    return tl.sum(sums, axis=0)


@triton.jit
def _laplace_and_uniform(counts, support, width, FIXED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return width and share of the Laplace component in a histogram; see `kernels.numba.functions`."""
    centres = (tl.arange(0, _LANES) + 0.5) * (support / _BINS)
    inside = tl.sum(counts, axis=0)
    widest = support * _WIDEST
    share = inside * 0 + 0.8
    last = share + 1.0
    step = 0
    while (step < _MAX_STEPS) & (tl.abs(share - last) > _TOLERANCE):
        laplace = share / (width * (1.0 - tl.exp(-support / width))) * tl.exp(-centres / width)
        part = counts * laplace / (laplace + (1.0 - share) / support)
        belong = tl.sum(part, axis=0)
        last = share
        share = belong / inside
        if not FIXED:
            mean = tl.sum(part * centres, axis=0) / belong
            for _ in range(5):
                width = tl.minimum(mean + support / (tl.exp(tl.minimum(support / width, 50.0)) - 1.0), widest)
        step += 1
    return width, share


@triton.jit(do_not_specialize=["values", "all_weights", "weights", "n", "halvings"])
def _fit(values, all_weights, weights, results, n, halvings, HIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write width, share and uniform density of the mixture of sorted values, and their median; one program.

    Weights are cumulated, (n + 1,): those of all values, and those of the values that tell of the width.
    """
    largest = tl.load(values + n - 1)
    whole = tl.load(weights + n).to(tl.float64)
    # The largest value that counts, and the median.
    outermost = _value_at(values, weights, whole, n, halvings)
    median = _value_at(values, weights, whole * _HALF, n, halvings)
    support = median
    if median == 0:
        zero = tl.zeros((1,), tl.float32)
        zeros = tl.load(weights + tl.sum(_number_below(values, zero, zero == 0, n, halvings), axis=0)).to(tl.float64)
        support = _value_at(values, weights, zeros + (whole - zeros) * _HALF, n, halvings)
    width, share = support, support * 0 + 1.0
    going = (support > 0).to(tl.int32)
    rounds = 0
    while (rounds < _ROUNDS) & (going > 0):
        counts = _counts(values, weights, n, halvings, support)
        if tl.sum(counts, axis=0) > 0:
            width, share = _laplace_and_uniform(counts, support, width, False)
        last = support
        support = tl.minimum(width * _SUPPORT, outermost)
        going = ((tl.abs(support - last) > 0.05 * last) & (support > _NOTHING)).to(tl.int32)
        rounds += 1
    if (support > 0) & (width >= support * _WIDEST):  # no Laplace component to be seen: all are alike, and clean
        width = _weighted_sum(values, weights, n) / whole.to(tl.float32)
    if not HIDDEN:
        width = tl.maximum(width, 0.5 * median)
    # Now the share among all values, for this width.
    window = tl.minimum(width * _SUPPORT, largest)
    share = support * 0 + 1.0
    uniform = support * 0
    if window > 0:
        counts = _counts(values, all_weights, n, halvings, window)
        inside = tl.sum(counts, axis=0)
        share = share * _SMALLEST_SHARE
        if inside > 0:
            width, belongs = _laplace_and_uniform(counts, window, width, True)
            within = inside / tl.load(all_weights + n).to(tl.float32)
            share = tl.minimum(belongs * within / (1.0 - tl.exp(-window / width)), 1.0)
            share = tl.maximum(share, _SMALLEST_SHARE)
            uniform = (1.0 - belongs) * within / window
    tl.store(results, width)
    tl.store(results + 1, share)
    tl.store(results + 2, uniform)
    tl.store(results + 3, median)


@triton.jit(do_not_specialize=["X", "W", "positions", "n", "rank"])
def _products(X, W, positions, results, n, rank, RANK: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write some entries of X W'."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, RANK)
    here = rows < n
    used = here[:, None] & (k < rank)[None, :]
    sample = tl.load(positions + 2 * rows, mask=here, other=0)[:, None]
    feature = tl.load(positions + 2 * rows + 1, mask=here, other=0)[:, None]
    x = tl.load(X + sample * rank + k[None, :], mask=used, other=0.0)
    w = tl.load(W + feature * rank + k[None, :], mask=used, other=0.0)
    tl.store(results + rows, tl.sum(x * w, axis=1), mask=here)


def predict(X: Any, positions: Any, W: Any) -> Any:
    """Return entries of X W' at positions (k, 2), (k,)."""
    results = torch.empty(len(positions), dtype=X.dtype, device=X.device)
    padded = padded_rank(X.shape[1])
    rows = max(1, 2048 // padded)
    launch(
        _products, (triton.cdiv(max(len(positions), 1), rows),),
        X.contiguous(), W.contiguous(), positions.contiguous(), results, len(positions), X.shape[1],
        RANK=padded, ROWS=rows,
    )  # fmt: skip
    return results


class Summary(NamedTuple):
    """What magnitudes tell: the mixture of clean and other ones, and the median of those that set its width."""

    width: float
    share: float
    uniform_density: float
    median: float


class Known(NamedTuple):
    """What was found for some predictions."""

    predictions: Any
    losses: Any
    best: Any
    """The losses that they were compared with,"""
    scale: float
    """and the scale of both."""
    numbers: list[float]
    """Those of a `Summary`, and of the comparison."""


class Statistics:
    """What residuals of the same entries tell, again and again; it is fetched from the device at once.

    Parameters
    ----------
    weights : (k,), at most 1
    informative : (k,), boolean
        Which of the entries set the width.
    hidden : bool
        Whether the fit does not see the entries; else the width is at least half of the median.
    look : function
        Returns, for predictions and best losses, (k,), a scale and a threshold, the magnitudes of residuals and their
        losses, (k,), and four numbers that compare them with the best.
    """

    def __init__(self, weights: Any, informative: Any, hidden: bool, look: Callable[..., tuple[Any, Any, Any]]) -> None:
        self.ticks = torch.round(torch.stack([weights, weights * informative]) / TICK).to(torch.int64)
        self.hidden, self.look = hidden, look
        self.cumulated = torch.zeros((2, len(weights) + 1), dtype=torch.int64, device=weights.device)
        self.nothing = torch.zeros_like(weights)
        """Losses to compare with where that does not matter."""
        self.known: dict[int, Known] = {}
        """What was found last, by the identity of predictions."""

    def of(self, predictions: Any) -> Summary:
        """Return what the residuals of predictions (k,) tell."""
        known = self.known.get(id(predictions)) or self._find(predictions, self.nothing, 1.0, inf)
        return Summary(*known.numbers[:4])

    def compare(self, predictions: Any, best: Any, scale: float, threshold: Any) -> tuple[Any, list[float]]:
        """Return the losses of predictions and how they compare; see `look`."""
        known = self.known.get(id(predictions))
        if known is None or known.best is not best or known.scale != scale:
            known = self._find(predictions, best, scale, threshold)
        return known.losses, known.numbers[4:]

    def _find(self, predictions: Any, best: Any, scale: float, threshold: Any) -> Known:
        losses, numbers = self.measure(predictions, best, scale, threshold)
        self.known.clear()
        return self.know(predictions, losses, best, scale, numbers.tolist())

    def know(self, predictions: Any, losses: Any, best: Any, scale: float, numbers: list[float]) -> Known:
        """Keep what was found for predictions, until something else is."""
        known = self.known[id(predictions)] = Known(predictions, losses, best, scale, numbers)
        return known

    def measure(self, predictions: Any, best: Any, scale: Any, threshold: Any) -> tuple[Any, Any]:
        """Return the losses of predictions, (k,), and what they tell, (8,), without waiting for them."""
        magnitudes, losses, numbers = self.look(predictions, best, scale, threshold)
        values, order = torch.sort(magnitudes.to(torch.float32))
        torch.cumsum(self.ticks[:, order], dim=1, out=self.cumulated[:, 1:])
        return losses, torch.cat([fit_sorted(values, self.cumulated, self.hidden).to(numbers.dtype), numbers])


def fit_sorted(values: Any, cumulated: Any, hidden: bool) -> Any:
    """Return the numbers of a `Summary` of sorted magnitudes (k,), whose weights are cumulated, (2, k + 1)."""
    n, found = len(values), torch.empty(4, dtype=torch.float32, device=values.device)
    launch(_fit, (1,), values, *cumulated, found, n, n.bit_length(), HIDDEN=hidden, num_warps=1)
    return found
