"""Triton kernels: what reads the data on a CUDA GPU, found by name through ``TorchEngine.kernel``.

Both half-steps of `robustnmf.solvers.one_pass` are one function here, called with the roles exchanged: rows are samples
and X their codes, or rows are features and X the basis. One kernel passes over the data and sums up, for every row,
descent and curvature; residuals and weights never leave the registers. Others make of them a step of coordinate
descent, judge it by some entries, and shorten it where the objective would rise. So an iteration reads the data twice,
and some of it once more.

Sums over the data are split between programs and added up in a fixed order: the same data give the same bits.

Precision: residuals come from products of factors split into two bfloat16 numbers each, of which three of four products
are kept, good to 2e-5 of the reconstruction; descent and curvature from weights and residuals rounded to bfloat16,
which are averages over so many entries that this does not show. Where there are few, all is single precision.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, inf
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from robustnmf.arrays import is_uniform
from robustnmf.engines.cuda_descent import MOST_PARTS, kernel_for
from robustnmf.engines.cuda_graphs import beside, record, settle
from robustnmf.engines.judging import judging_features, judging_rows
from robustnmf.engines.rules import CAUCHY, CORRENTROPY, HUBER, ROUNDED, Rule, form_of
from robustnmf.engines.triton_statistics import Statistics, predict

# With no more samples, or features, products are of single-precision numbers: rounding errors would not average out.
PRECISE = 1024
# Beyond this rank there are too few registers.
HIGHEST_RANK = 128
# Rows and columns of the data that a program works on at a time, its warps, and tiles on their way, by padded rank.
TILES = {16: (64, 128, 4, 3), 32: (64, 64, 4, 3), 64: (64, 32, 4, 3), 128: (64, 32, 4, 2)}
PRECISE_TILES = {16: (32, 64, 4, 2), 32: (32, 64, 4, 2), 64: (32, 64, 4, 2), 128: (32, 32, 4, 2)}
# Share of the memory of a multiprocessor that tiles on their way may take; the rest is for products.
TILE_SHARE = 0.75
# Rows and judges that a program works on at a time, and its warps: for more rows than so many, and for fewer, where
# small tiles keep more multiprocessors busy.
JUDGING_TILE, SMALL_JUDGING_TILE, FEW_ROWS = (64, 32, 4), (16, 128, 8), 4096
# Rows that a program moves, once they are judged.
ADVANCING_ROWS = 16
# Numbers of a factor that a program can hold for its judges, several times.
MOST_JUDGED = 2**13
# Programs that a pass over the data should have at least, to keep all multiprocessors busy.
ENOUGH_PROGRAMS = 1056
# More parts of a sum take longer to add up than they save.
MOST_SPLITS = 40
# Rows that are longer do not fit in the registers of a program.
LONGEST_ROW = 2**15


_CAUCHY, _HUBER, _ROUNDED, _CORRENTROPY = map(tl.constexpr, (CAUCHY, HUBER, ROUNDED, CORRENTROPY))


@triton.jit
def _weigh(E, inverse, limit, reach, constant, FORM: tl.constexpr, CAPPED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the weights of residuals E, of the shape of E; 0 for NaN."""
    ratio = E * inverse
    if FORM == _CAUCHY:
        root = tl.rsqrt(1.0 + ratio * ratio)  # an instruction of its own, as a division is not
        q = root * root
    elif FORM == _HUBER:
        q = 1.0 / tl.maximum(tl.abs(ratio), 1.0)
    elif FORM == _ROUNDED:
        q = 0.5 * tl.rsqrt(ratio * ratio + constant)
    elif FORM == _CORRENTROPY:
        q = 0.5 * tl.exp(-0.5 * ratio * ratio)
    else:
        q = tl.full(E.shape, 1.0, tl.float32)
    if CAPPED:
        q = tl.where(tl.abs(ratio) <= reach, q, 0.0)
    return tl.where(tl.abs(E) <= limit, q, 0.0)


@triton.jit
def _residuals(y, high, low, a, a_low):  # type: ignore[no-untyped-def]
    """Return y - x a' for factors x = high + low and a + a_low: the product of both small parts is left out."""
    product = tl.dot(high, tl.trans(a), input_precision="tf32x3")
    if a.dtype != tl.float32:  # in single precision there are no low parts
        product = tl.dot(high, tl.trans(a_low), acc=product)
        product = tl.dot(low, tl.trans(a), acc=product)
    return y - product


@triton.jit
def _tile(Y, at, row, column, here, there, DESCRIBED: tl.constexpr, TRANSPOSED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a tile of the data, zero beyond its edges, by the copy engine or by addresses."""
    if DESCRIBED:
        tile = tl.trans(Y.load([column, row])) if TRANSPOSED else Y.load([row, column])
    else:
        tile = tl.load(Y + at, mask=here[:, None] & there[None, :], other=0.0)
    return tile


@triton.jit
def _load_parts(A, rows, n_rows, there, RANK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return some rows of the high and low parts of a factor and of its squares, zero beyond its edge."""
    at, mask = A + rows[:, None] * RANK + tl.arange(0, RANK)[None, :], there[:, None]
    a = tl.load(at, mask=mask, other=0.0)
    a_low = tl.load(at + n_rows * RANK, mask=mask, other=0.0)
    squares = tl.load(at + 2 * n_rows * RANK, mask=mask, other=0.0)
    return a, a_low, squares


@triton.jit
def _accumulate(  # type: ignore[no-untyped-def]
    Y, M, X, A, scale, cut, descent, curvature,
    n_rows, n_columns, row_stride, column_stride, scale_stride, cut_row_stride, cut_column_stride,
    columns_per_split, reach, constant,
    RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, CAPPED: tl.constexpr,
    WEIGHTED: tl.constexpr, GAPS: tl.constexpr, CUTS_COLUMNS: tl.constexpr, DESCRIBED: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Sum up descent (Q E) A and curvature Q A^2 of some rows over some columns of the data.

    X (3, n_rows, RANK) and A (3, n_columns, RANK) are the parts of the factors, see `_parts`; Y, M and A are described
    to the copy engine, or pointers. What lies beyond the last column adds nothing, because A is zero there.
    """
    row = tl.program_id(0) * ROWS
    rows = row + tl.arange(0, ROWS)
    first = tl.program_id(1) * columns_per_split
    last = tl.minimum(first + columns_per_split, n_columns)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    x = X + rows[:, None] * RANK + k[None, :]
    high = tl.load(x, mask=here[:, None], other=0.0)
    low = tl.load(x + n_rows * RANK, mask=here[:, None], other=0.0)
    inverse = 1.0 / tl.load(scale + rows * scale_stride, mask=here, other=1.0)[:, None]
    limit_of_row = tl.load(cut + rows * cut_row_stride, mask=here, other=0.0)[:, None]
    wide = rows.to(tl.int64)[:, None] * row_stride
    d = tl.zeros((ROWS, RANK), dtype=tl.float32)
    c = tl.zeros((ROWS, RANK), dtype=tl.float32)
    for start in range(first, last, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        there = columns < n_columns
        at = wide + columns.to(tl.int64)[None, :] * column_stride
        y = _tile(Y, at, row, start, here, there, DESCRIBED, TRANSPOSED)
        if DESCRIBED:
            a = tl.reshape(A.load([0, start, 0]), (COLUMNS, RANK))
            a_low = tl.reshape(A.load([1, start, 0]), (COLUMNS, RANK))
            squares = tl.reshape(A.load([2, start, 0]), (COLUMNS, RANK))
        else:
            a, a_low, squares = _load_parts(A, columns, n_columns, there, RANK)
        if CUTS_COLUMNS:
            limit = tl.load(cut + columns * cut_column_stride, mask=there, other=0.0)[None, :]
        else:
            limit = limit_of_row
        E = _residuals(y, high, low, a, a_low)
        q = _weigh(E, inverse, limit, reach, constant, FORM, CAPPED)
        if WEIGHTED:
            q *= _tile(M, at, row, start, here, there, DESCRIBED, TRANSPOSED)
        s = tl.where(q > 0, q * E, 0.0) if GAPS else q * E
        d = tl.dot(s.to(a.dtype), a, acc=d, input_precision="tf32x3")
        c = tl.dot(q.to(a.dtype), squares, acc=c, input_precision="tf32x3")
    out = (tl.program_id(1).to(tl.int64) * n_rows + rows[:, None]) * RANK + k[None, :]
    tl.store(descent + out, d, mask=here[:, None])
    tl.store(curvature + out, c, mask=here[:, None])


@triton.jit
def _descend(  # type: ignore[no-untyped-def]
    X, G, descent, curvature, linear, move, gain, total,
    n_rows, n_parts, stride, padded, rank, fixed, ridge, sweeps, RANK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the move (n_rows, padded) that coordinate descent on a model of the objective makes from X (n_rows, rank).

    The model has the descent and the curvature of each coordinate, sums of `n_parts` arrays whose rows are `stride`
    apart, and takes the correlations between coordinates from the Gram matrix G, whose scale does not matter. Also
    written are how far the objective would fall along the move if it were a plane, `gain`, and the curvature of all
    coordinates together, `total`, both (n_rows,).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    used = here[:, None] & (k < rank)[None, :]
    x = tl.load(X + rows[:, None].to(tl.int64) * rank + k[None, :], mask=used, other=0.0)
    at = rows[:, None].to(tl.int64) * stride + k[None, :]
    slope, c = tl.zeros_like(x), tl.zeros_like(x)
    for part in range(n_parts):
        offset = tl.cast(part, tl.int64) * n_rows * stride
        slope += tl.load(descent + offset + at, mask=used, other=0.0)
        c += tl.load(curvature + offset + at, mask=used, other=0.0)
    slope -= tl.load(linear + k, mask=k < rank, other=0.0)[None, :] + ridge * x
    tl.store(total + rows, tl.sum(c, axis=1), mask=here)
    c = tl.where((k < fixed)[None, :], 0.0, c + ridge)
    diagonal = tl.load(G + k * rank + k, mask=k < rank, other=0.0)[None, :]
    # In the variables z = root x every coordinate has the curvature of the Gram matrix. Coordinates that no entry of
    # positive weight depends on stay.
    seen = used & (c > 0) & (diagonal > 0)
    root = tl.sqrt(tl.where(seen, c / tl.where(seen, diagonal, 1.0), 1.0))
    step = tl.where(seen, 1.0 / tl.where(seen, diagonal, 1.0), 0.0)
    z = x * root
    g = slope / root
    for _ in range(sweeps):
        for j in range(rank):
            chosen = (k == j)[None, :]
            change = tl.sum(tl.where(chosen, tl.maximum(z + g * step, 0.0) - z, 0.0), axis=1)[:, None]
            z += tl.where(chosen, change, 0.0)
            g -= change * tl.load(G + j * rank + k, mask=k < rank, other=0.0)[None, :]
    m = tl.where(seen, z / root - x, 0.0)
    tl.store(move + rows[:, None].to(tl.int64) * padded + k[None, :], m, mask=here[:, None])
    tl.store(gain + rows, tl.sum(slope * m, axis=1), mask=here)


@triton.jit
def _judge(  # type: ignore[no-untyped-def]
    Y, M, X_parts, A_parts, move, scale, cut, bends, weights,
    n_rows, n_columns, n_judges, judges_per_split, row_stride, column_stride, run, skip, rank,
    scale_stride, cut_row_stride, cut_column_stride, reach, constant,
    RANK: tl.constexpr, ROWS: tl.constexpr, JUDGES: tl.constexpr, FORM: tl.constexpr, CAPPED: tl.constexpr,
    WEIGHTED: tl.constexpr, CUTS_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum up the curvature along the moves of some rows, `bends`, and that of all coordinates, `weights`, of judges.

    Judges are some columns of the data: `run` consecutive ones of every `skip`, `n_judges` in all. The sums of each
    split are written, (splits, n_rows).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * judges_per_split
    last = tl.minimum(first + judges_per_split, n_judges)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    parts = rows[:, None] * RANK + k[None, :]
    inverse = 1.0 / tl.load(scale + rows * scale_stride, mask=here, other=1.0)[:, None]
    limit_of_row = tl.load(cut + rows * cut_row_stride, mask=here, other=0.0)[:, None]
    high = tl.load(X_parts + parts, mask=here[:, None], other=0.0)
    low = tl.load(X_parts + n_rows * RANK + parts, mask=here[:, None], other=0.0)
    rounded = tl.load(move + parts, mask=here[:, None] & (k < rank)[None, :], other=0.0).to(high.dtype)
    bend = tl.zeros((ROWS,), dtype=tl.float32)
    c = tl.zeros((ROWS, RANK), dtype=tl.float32)
    wide = rows.to(tl.int64)[:, None] * row_stride
    for start in range(first, last, JUDGES):
        judges = start + tl.arange(0, JUDGES)
        columns = (judges // run) * skip + judges % run
        there = (judges < n_judges) & (columns < n_columns)
        place = wide + columns.to(tl.int64)[None, :] * column_stride
        y = tl.load(Y + place, mask=here[:, None] & there[None, :], other=0.0)
        a, a_low, squares = _load_parts(A_parts, columns, n_columns, there, RANK)
        if CUTS_COLUMNS:
            limit = tl.load(cut + columns * cut_column_stride, mask=there, other=0.0)[None, :]
        else:
            limit = limit_of_row
        q = _weigh(_residuals(y, high, low, a, a_low), inverse, limit, reach, constant, FORM, CAPPED)
        if WEIGHTED:
            q *= tl.load(M + place, mask=here[:, None] & there[None, :], other=0.0)
        along = tl.dot(rounded, tl.trans(a), input_precision="tf32x3")
        bend += tl.sum(q * along * along, axis=1)
        c = tl.dot(q.to(a.dtype), squares, acc=c, input_precision="tf32x3")  # data for a product comes ahead of time
    out = tl.program_id(1) * n_rows + rows
    tl.store(bends + out, bend, mask=here)
    tl.store(weights + out, tl.sum(c, axis=1), mask=here)


@triton.jit
def _advance(  # type: ignore[no-untyped-def]
    X, move, gain, total, bends, weights, new, new_parts,
    n_rows, n_splits, rank, ridge, RANK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write X after its move, shortened where it would raise the objective, and its parts; see `_descend`, `_judge`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    used = here[:, None] & (k < rank)[None, :]
    at = rows[:, None] * rank + k[None, :]
    x = tl.load(X + at, mask=used, other=0.0)
    parts = rows[:, None] * RANK + k[None, :]
    m = tl.load(move + parts, mask=used, other=0.0)
    bend, weight = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for split in range(n_splits):
        bend += tl.load(bends + split * n_rows + rows, mask=here, other=0.0)
        weight += tl.load(weights + split * n_rows + rows, mask=here, other=0.0)
    everything = tl.load(total + rows, mask=here, other=0.0)  # for which the judges stand
    bend = bend * everything / tl.where(weight > 0, weight, 1.0) + ridge * tl.sum(m * m, axis=1)
    fall = tl.load(gain + rows, mask=here, other=0.0)
    shorter = tl.maximum(fall / tl.where(bend > 0, bend, 1.0), 0.0)
    length = tl.where((bend > 0) & (fall < 0.5 * bend), shorter, 1.0)
    x = tl.maximum(x + length[:, None] * m, 0.0)
    tl.store(new + at, x, mask=used)
    _store_parts(new_parts, parts, n_rows * RANK, x, here[:, None])


@triton.jit
def _store_parts(F, at, part, x, mask):  # type: ignore[no-untyped-def]
    """Write x as a high part, a low part, and squares."""
    high = x.to(F.dtype.element_ty)
    tl.store(F + at, high, mask=mask)
    tl.store(F + part + at, (x - high.to(tl.float32)).to(F.dtype.element_ty), mask=mask)
    tl.store(F + 2 * part + at, (x * x).to(F.dtype.element_ty), mask=mask)


@triton.jit
def _split(F, parts, n_rows, rank, RANK: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the parts of a factor."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    x = tl.load(F + rows[:, None] * rank + k[None, :], mask=here[:, None] & (k < rank)[None, :], other=0.0)
    _store_parts(parts, rows[:, None] * RANK + k[None, :], n_rows * RANK, x, here[:, None])


@triton.jit
def _select(A, ranks, values, n_columns, row_stride, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the entry of a given rank of each row of non-negative single-precision numbers.

    They are ordered like their bits: 31 halvings of the range of integers find the entry.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    a = tl.load(A + row.to(tl.int64) * row_stride + columns, mask=columns < n_columns, other=float("inf"))
    bits = a.to(tl.int32, bitcast=True)
    wanted = tl.load(ranks + row)
    low, high = tl.full((), -1, tl.int32), tl.full((), 0x7F800000, tl.int32)
    for _ in range(31):
        middle = low + (high - low) // 2
        reached = tl.sum((bits <= middle).to(tl.int32), axis=0) > wanted
        low = tl.where(reached, low, middle)
        high = tl.where(reached, middle, high)
    tl.store(values + row, high.to(tl.float32, bitcast=True))


@dataclass
class Kernels:
    """The kernels of one engine, and what it keeps between two calls of them."""

    device: torch.device
    veiled: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Data in which hidden entries are NaN, by the identity of their positions."""
    graphs: dict[Any, "_Graph"] = field(default_factory=dict)
    last: tuple[Any, ...] = ()
    """Data and weights of the last sweep."""

    def rule_of(self, loss: Any, scale: Any, cut: Any, Y: Any, rank: int) -> Rule | None:
        """Return the rule of a weighting for data Y (B, p), or None if kernels cannot follow it.

        They know some losses, single precision, and ranks up to `HIGHEST_RANK`; Y must be on their device.
        """
        form, flat = form_of(loss), cut is None or cut.ndim < 2
        fits = Y.dtype == torch.float32 and Y.device == self.device and rank <= HIGHEST_RANK
        if form is None or not flat or not fits:
            return None
        if isinstance(scale, torch.Tensor):
            scale = scale.to(Y.dtype).reshape(-1)
        else:
            scale = torch.full((1,), float(scale), device=Y.device)
        if cut is None:
            cut = torch.full((1,), inf, device=Y.device)
        elif is_uniform(cut):  # one number in memory, which kernels take for all features
            cut = cut.reshape(-1)[:1]
        return Rule(form.form, form.constant, scale, cut, form.reach)

    def improve(self, Y: Any, M: Any, X: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int) -> Any:
        """Reweight and improve X in Y ~ X A'; twin of ``robustnmf.solvers.one_pass.improve``.

        Parameters
        ----------
        Y, M : (B, p), M may be None; X : (B, r); A : (p, r); linear : (r,) and ridge, the penalty.
        """
        data = _Data(Y, M, rule.scale, rule.cut)
        of_A, how = _parts(A, _precision(*A.shape[:1])), judging_features(Y.shape[1])
        of_X = _parts(X, of_A.dtype)
        return _half_step([data], X, of_X, [of_A], [(A, None)], data, of_A, how, rule, linear, ridge, sweeps)[0]

    def sweep(
        self,
        V: Sequence[Any],
        M: Sequence[Any] | None,
        hidden: Sequence[Any] | None,
        W: Any,
        Ht: Sequence[Any],
        penalties: tuple[Any, Any],
        fixed: int,
        rule: Rule,
        sweeps: int,
    ) -> tuple[Any, list[Any]]:
        """Improve the codes of all blocks and the basis; twin of ``robustnmf.solvers.one_pass.sweep``.

        Parameters
        ----------
        penalties : (linear (r,), ridge) of the codes, and of the basis; None for none.
        """
        gaps = hidden is not None
        if hidden is not None:
            V = [self._veil(Y, positions) for Y, positions in zip(V, hidden, strict=True)]
        M = [None] * len(V) if M is None else M
        if not self._stays((*V, *M)) or not V[0].is_cuda:
            return _sweep(V, M, W, Ht, rule, _given(penalties, W), fixed, sweeps, gaps)
        key: tuple[Any, ...] = (*map(id, (*V, *M)), rule.form, rule.constant, rule.reach, len(rule.cut))
        key += (fixed, sweeps, W.shape, *(None if penalty is None else penalty.ridge for penalty in penalties))
        graph = self.graphs.get(key)
        if graph is None:
            options = (_given(penalties, W), fixed, sweeps, gaps)
            graph = self.graphs[key] = _Graph(V, M, W, Ht, rule, options)
        return graph(W, Ht, rule)

    def _stays(self, data: tuple[Any, ...]) -> bool:
        """Return whether these are the arrays of the last call: a graph reads those that it was recorded with."""
        same = len(data) == len(self.last) and all(a is b for a, b in zip(data, self.last, strict=True))
        self.last = data
        return same

    def settle(self, improve: Any, Y: Any, M: Any, X: Any, *, max_iter: int, tol: float, few: float) -> Any:
        """Improve rows of X until each is at rest; twin of ``robustnmf.encoding``'s."""
        return settle(improve, Y, M, X, max_iter=max_iter, tol=tol, few=few)

    def onward(self, new: Any, last: Any, momentum: float) -> Any:
        """Return a factor moved on by a share of its last move; twin of ``robustnmf.schedules``'s."""
        return torch.lerp(last, new, 1 + momentum).clamp_(min=0)

    def statistics(self, weights: Any, telling: Any, hidden: bool) -> Statistics:
        """Return what computes the statistics of held-out residuals; twin of ``robustnmf.heldout``'s."""
        return Statistics(weights, telling, hidden)

    def predict(self, X: Any, positions: Any, W: Any) -> Any:
        """Return entries of X W' at positions (k, 2); twin of ``robustnmf.heldout``'s."""
        return predict(X, positions, W)

    def propose(self, G: Any, descent: Any, curvature: Any, X0: Any, max_iter: int) -> Any:
        """Return the move of coordinate descent with one Gram matrix, in any precision; twin of ``shared_gram``'s."""
        sums = torch.stack([descent, curvature])[:, None]
        move, *_ = _moves(X0.contiguous(), G.contiguous(), sums, torch.zeros_like(X0[0]), 0.0, max_iter, 0)
        return move[:, : X0.shape[1]]

    def order_statistics(self, A: Any, ranks: Any) -> Any:
        """Return the entry of a given rank of each row of non-negative A, (B,); twin of ``encoding``'s."""
        n_rows, n_columns = A.shape
        if A.dtype != torch.float32 or n_columns > LONGEST_ROW:
            return torch.take_along_dim(torch.sort(A, dim=1).values, ranks[:, None], dim=1)[:, 0]
        values = torch.empty(n_rows, dtype=A.dtype, device=A.device)
        A = A if A.stride(1) == 1 else A.contiguous()
        columns = triton.next_power_of_2(n_columns)
        warps = min(max(columns // 1024, 1), 16)
        _select[(n_rows,)](A, ranks, values, n_columns, A.stride(0), COLUMNS=columns, num_warps=warps)
        return values

    def _veil(self, Y: Any, positions: Any) -> Any:
        """Return a copy of Y in which entries at some positions (k, 2) are NaN, and so have no weight."""
        if id(positions) not in self.veiled:
            copy = Y.clone()
            copy[positions[:, 0], positions[:, 1]] = torch.nan
            self.veiled[id(positions)] = (positions, copy)  # who holds the positions keeps their identity
        return self.veiled[id(positions)][1]


class _Data(NamedTuple):
    """A block of data with its entries' weights, scale and cut; rows are what is to be improved."""

    Y: Any
    M: Any
    scale: Any
    """(n_rows,) or (1,)."""
    cut: Any
    """For each feature, or (1,)."""
    features_in_rows: bool = False
    gaps: bool = False
    """Whether entries of Y may be NaN."""

    @property
    def strides(self) -> tuple[int, int, int, int, int]:
        """Steps from row to row and from column to column of Y, from row to row of the scale, and for the cut."""
        per_feature = int(len(self.cut) > 1)
        cut = (per_feature, 0) if self.features_in_rows else (0, per_feature)
        return (*self.Y.stride(), int(len(self.scale) > 1), *cut)

    @property
    def cuts_columns(self) -> bool:
        """Whether columns differ in their cut."""
        return len(self.cut) > 1 and not self.features_in_rows

    @property
    def by_columns(self) -> bool:
        """Whether it is the columns of Y whose entries lie together in memory."""
        return bool(self.Y.stride(0) == 1 < self.Y.stride(1))

    @property
    def transposed(self) -> "_Data":
        """The same with the roles of rows and columns exchanged."""
        M = None if self.M is None else self.M.T
        return self._replace(Y=self.Y.T, M=M, features_in_rows=not self.features_in_rows)

    @property
    def pointers(self) -> tuple[Any, Any]:
        """Y and M, or something in its place."""
        return self.Y, self.Y if self.M is None else self.M

    def described(self, rows: int, columns: int) -> tuple[Any, Any] | None:
        """Return Y and M for the copy engine, in tiles of rows x columns; None if it cannot read them."""
        block = [columns, rows] if self.by_columns else [rows, columns]
        matrices = [A.T if self.by_columns else A for A in (self.Y, self.M) if A is not None]
        if not _has_copy_engine(self.Y) or not all(_is_aligned(A) for A in matrices):
            return None
        found = [TensorDescriptor(A, list(A.shape), list(A.stride()), block) for A in matrices]
        return found[0], found[-1]


def _has_copy_engine(A: Any) -> bool:
    """Return whether the device has Hopper's copy engine; the interpreter has one too."""
    return not A.is_cuda or torch.cuda.get_device_capability(A.device) >= (9, 0)


def _is_aligned(A: Any) -> bool:
    """Return whether rows begin at multiples of 16 bytes, as the copy engine wants."""
    return bool(A.stride(1) == 1 and A.stride(0) * A.element_size() % 16 == 0 and A.data_ptr() % 16 == 0)


def _precision(*sizes: int) -> torch.dtype:
    """Return the type of the numbers that products over so many samples, or features, are made of."""
    return torch.float32 if min(sizes) <= PRECISE else torch.bfloat16


def _parts(F: Any, dtype: torch.dtype) -> Any:
    """Return a factor (n, r) as high and low parts and squares, (3, n, padded r); what is not split has no low part."""
    n_rows, rank = F.shape
    padded = _padded(rank)
    parts = torch.empty((3, n_rows, padded), dtype=dtype, device=F.device)
    _split[(triton.cdiv(n_rows, 64),)](F.contiguous(), parts, n_rows, rank, RANK=padded, ROWS=64)
    return parts


def _padded(rank: int) -> int:
    """Return the rank that kernels work with."""
    return max(16, int(triton.next_power_of_2(rank)))


def _half_step(
    blocks: Sequence[_Data],
    X: Any,
    of_X: Any,
    of_A: Sequence[Any],
    A: Sequence[tuple[Any, Any]],
    judged: _Data,
    of_judges: Any,
    judging: tuple[int, int, int],
    rule: Rule,
    linear: Any,
    ridge: float,
    sweeps: int,
    fixed: int = 0,
) -> tuple[Any, Any, Any]:
    """Return X improved in Y ~ X A', row by row, its parts, and the curvature of every row; data is in column blocks.

    Parameters
    ----------
    of_X, of_A : parts of the factors; of A those for each block.
    A : the factor itself, for each block, with how far its rows are trusted, see `_write_gram`.
    judged, of_judges : data and parts of the factor for the columns by which a step is judged.
    judging : which of these, (run, skip, count).
    """
    n_rows, rank = X.shape
    X, gram = X.contiguous(), torch.empty((rank, rank), dtype=X.dtype, device=X.device)
    with beside(X.device, lambda: _write_gram(gram, A)):
        sums = _sums(blocks, of_X, of_A, rule)
    moves = _moves(X, gram, sums, linear, ridge, sweeps, fixed)
    verdicts = _verdicts(judged, of_X, of_judges, moves[0], judging, rule, rank)
    new, of_new, rows = torch.empty_like(X), torch.empty_like(of_X), ADVANCING_ROWS
    _advance[(triton.cdiv(n_rows, rows),)](
        X, *moves, *verdicts, new, of_new, n_rows, verdicts.shape[1], rank, ridge, RANK=of_X.shape[2], ROWS=rows,
    )  # fmt: skip
    return new, of_new, moves[-1]


def _write_gram(gram: Any, factors: Sequence[tuple[Any, Any]]) -> None:
    """Write the sum of A' D A over factors A, (n, r), with D how far rows are trusted, (n,); None for equally."""
    gram.zero_()
    for A, trust in factors:
        gram.addmm_(A.T, A if trust is None else trust[:, None] * A)


def _verdicts(
    data: _Data, of_X: Any, of_judges: Any, move: Any, judging: tuple[int, int, int], rule: Rule, rank: int
) -> Any:
    """Return the curvature of the objective along the moves, and that of all coordinates, (2, splits, n_rows)."""
    (_, n_rows, padded), (run, skip, count) = of_X.shape, judging
    rows, judges, warps = JUDGING_TILE if n_rows > FEW_ROWS else SMALL_JUDGING_TILE
    judges = min(judges, MOST_JUDGED // padded)
    n_splits, width = _splits(n_rows, count, rows, judges)
    row_stride, column_stride, *others = data.strides
    verdicts = torch.empty((2, n_splits, n_rows), dtype=torch.float32, device=of_X.device)
    _judge[(triton.cdiv(n_rows, rows), n_splits)](
        *data.pointers, of_X, of_judges, move, data.scale, data.cut, *verdicts,
        n_rows, data.Y.shape[1], count, width, row_stride, column_stride, run, skip, rank, *others,
        rule.reach, rule.constant, RANK=padded, ROWS=rows, JUDGES=judges, FORM=rule.form,
        CAPPED=rule.reach < inf, WEIGHTED=data.M is not None, CUTS_COLUMNS=data.cuts_columns, num_warps=warps,
    )  # fmt: skip
    return verdicts


def _sums(blocks: Sequence[_Data], of_X: Any, of_A: Sequence[Any], rule: Rule) -> Any:
    """Return descent and curvature of every row, in parts that are to be added up, (2, parts, n_rows, padded r)."""
    _, n_rows, padded = of_X.shape
    rows, columns, warps, stages = _tile_for(of_X, blocks[0].M is not None)
    plans = [_splits(n_rows, data.Y.shape[1], rows, columns) for data in blocks]
    sums = torch.empty((2, sum(n for n, _ in plans), n_rows, padded), dtype=torch.float32, device=of_X.device)
    done = 0
    for data, parts, (n, width) in zip(blocks, of_A, plans, strict=True):
        into, described = sums[:, done : done + n], data.described(rows, columns)
        done += n
        factor = parts
        if described is not None:
            factor = TensorDescriptor(parts, list(parts.shape), list(parts.stride()), [1, columns, padded])
        _accumulate[(triton.cdiv(n_rows, rows), n)](
            *(described or data.pointers), of_X, factor, data.scale, data.cut, into[0], into[1],
            n_rows, data.Y.shape[1], *data.strides, width, rule.reach, rule.constant,
            RANK=padded, ROWS=rows, COLUMNS=columns, FORM=rule.form, CAPPED=rule.reach < inf,
            WEIGHTED=data.M is not None, GAPS=data.gaps, CUTS_COLUMNS=data.cuts_columns,
            DESCRIBED=described is not None, TRANSPOSED=data.by_columns, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return sums if sums.shape[1] <= MOST_PARTS else sums.sum(dim=1, keepdim=True)


def _tile_for(parts: Any, weighted: bool) -> tuple[int, int, int, int]:
    """Return the tile for a factor's parts: as in the table, or narrower where those on their way would not fit."""
    rows, columns, warps, stages = (TILES if parts.dtype == torch.bfloat16 else PRECISE_TILES)[parts.shape[2]]
    per_column = 4 * rows * (1 + weighted) + 3 * parts.shape[2] * parts.element_size()
    while stages * columns * per_column > TILE_SHARE * _shared_memory(parts.device):
        columns //= 2
    return rows, columns, warps, stages


@cache
def _shared_memory(device: torch.device) -> float:
    """Return the bytes of memory that programs on a multiprocessor can use; any number in the interpreter."""
    if device.type != "cuda":
        return inf
    return float(triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


def _moves(X: Any, gram: Any, sums: Any, linear: Any, ridge: float, sweeps: int, fixed: int) -> tuple[Any, Any, Any]:
    """Return the move of each row by coordinate descent, padded, its gain and the total curvature; see `_descend`."""
    (n_rows, rank), padded = X.shape, _padded(X.shape[1])
    move = torch.empty((n_rows, padded), dtype=X.dtype, device=X.device)
    gain, total = torch.empty((2, n_rows), dtype=X.dtype, device=X.device)
    arguments = [X, gram, sums[0], sums[1], linear, move, gain, total]
    arguments += [n_rows, sums.shape[1], sums.shape[3], padded, rank, fixed, float(ridge), sweeps]
    launch = kernel_for(rank, X.dtype, n_rows) if X.is_cuda else None
    if launch is not None:
        launch(n_rows, arguments)
    else:
        rows = max(1, 512 // padded)
        _descend[(triton.cdiv(n_rows, rows),)](*arguments, RANK=padded, ROWS=rows)
    return move, gain, total


def _splits(n_rows: int, n_columns: int, rows: int, columns: int) -> tuple[int, int]:
    """Return into how many parts the columns are split, and how many columns each has."""
    wanted = min(ceil(ENOUGH_PROGRAMS / triton.cdiv(n_rows, rows)), MOST_SPLITS)
    width = columns * max(1, ceil(n_columns / columns / max(1, wanted)))
    return triton.cdiv(n_columns, width), width


def _sweep(
    V: Sequence[Any],
    M: Sequence[Any],
    W: Any,
    Ht: Sequence[Any],
    rule: Rule,
    penalties: tuple[Any, Any],
    fixed: int,
    sweeps: int,
    gaps: bool,
) -> tuple[Any, list[Any]]:
    """Improve the codes of all blocks, then the basis."""
    samples = [_Data(Y, m, rule.scale, rule.cut, gaps=gaps) for Y, m in zip(V, M, strict=True)]
    (linear, ridge), (basis_linear, basis_ridge) = penalties
    precision = _precision(len(W), sum(len(Y) for Y in V))
    of_W, how = _parts(W, precision), judging_features(V[0].shape[1])
    improved = [
        _half_step([data], X, _parts(X, precision), [of_W], [(W, None)], data, of_W, how, rule, linear, ridge, sweeps)
        for data, X in zip(samples, Ht, strict=True)
    ]
    codes, of_codes, curvature = (list(found) for found in zip(*improved, strict=True))
    if fixed == W.shape[1]:
        return W, codes
    judges = judging_rows([len(Y) for Y in V])
    judged = _Data(_gather(V, judges), None if M[0] is None else _gather(M, judges), rule.scale, rule.cut, gaps=gaps)
    of_judges = torch.cat([parts[:, rows] for parts, rows in zip(of_codes, judges, strict=True)], dim=1)
    everyone = (of_judges.shape[1],) * 3
    features = [data.transposed for data in samples]
    # Samples are trusted by their mean weight, which is their curvature but for a factor that does not matter.
    trusted = list(zip(codes, curvature, strict=True))
    known = (basis_linear, basis_ridge, sweeps, fixed)
    new, *_ = _half_step(features, W, of_W, of_codes, trusted, judged.transposed, of_judges, everyone, rule, *known)
    return new, codes


def _given(penalties: tuple[Any, Any], W: Any) -> tuple[Any, Any]:
    """Return the penalties of both factors, (linear (r,), ridge), zero where there is none."""
    nothing = (torch.zeros_like(W[0]), 0.0)
    codes, basis = (penalty or nothing for penalty in penalties)
    return codes, basis


def _gather(blocks: Sequence[Any], rows: Sequence[slice]) -> Any:
    """Return some rows of all blocks; of a single block without a copy."""
    chosen = [block[some] for block, some in zip(blocks, rows, strict=True)]
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen)


class _Graph:
    """A sweep that is recorded once and launched as a whole."""

    def __init__(self, V: Any, M: Any, W: Any, Ht: Any, rule: Rule, options: tuple[Any, ...]) -> None:
        arrays = [W, *Ht, rule.cut, rule.scale]
        self.inputs = _joined(arrays)  # one array, so that all are copied at once
        W, *Ht, cut, scale = _apart(self.inputs, arrays)
        self.kept = (V, M, options)  # the graph reads their memory

        def work() -> list[Any]:
            new, codes = _sweep(V, M, W, Ht, rule._replace(scale=scale, cut=cut), *options)
            return [new, *codes]

        work()
        self.graph, self.outputs = record(work)

    def __call__(self, W: Any, Ht: Any, rule: Rule) -> tuple[Any, list[Any]]:
        """Return basis and codes after the sweep."""
        _joined([W, *Ht, rule.cut, rule.scale], out=self.inputs)
        self.graph.replay()
        W, *Ht = _apart(_joined(self.outputs), self.outputs)
        return W, Ht


def _joined(arrays: Sequence[Any], out: Any = None) -> Any:
    """Return the numbers of some arrays one after the other."""
    return torch.cat([a.reshape(-1) for a in arrays], out=out)


def _apart(joined: Any, like: Sequence[Any]) -> list[Any]:
    """Return arrays of the shapes of others, whose numbers are joined."""
    pieces = torch.split(joined, [a.numel() for a in like])
    return [piece.view(a.shape) for piece, a in zip(pieces, like, strict=True)]
