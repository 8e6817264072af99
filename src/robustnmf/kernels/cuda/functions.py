"""What runs on a CUDA GPU where the data is read: Triton kernels, launched by `robustnmf.kernels.cuda.steps`.

One kernel passes over the data and sums up, for every row, descent and curvature; residuals and weights never leave the
registers. Others make of them a step of coordinate descent, check it by some entries, and shorten it where the
objective would rise.

Triton makes a kernel for what it is first called with, and another one where an integer is 1 or no multiple of 16, or
an address is no multiple of 16. Where that would not be faster it must not be: a kernel takes a second to compile, and
numbers of rows vary within a fit, ranks between fits.
"""

import triton
import triton.language as tl

from robustnmf.kernels.interface import CAUCHY, CORRENTROPY, HUBER, ROUNDED

# What differs between rules: one scale and one threshold, or those of each row.
_OF_RULES = ["scale", "threshold", "constants", "scale_stride", "threshold_stride"]

_CAUCHY, _HUBER, _ROUNDED, _CORRENTROPY = map(tl.constexpr, (CAUCHY, HUBER, ROUNDED, CORRENTROPY))


def padded_rank(rank: int) -> int:
    """Return the rank that kernels work with."""
    return max(16, int(triton.next_power_of_2(rank)))


@triton.jit
def _known_even(n, EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a number of which the compiler is to know, if EVEN, that it is a multiple of 16: loads become wider."""
    return n // 16 * 16 if EVEN else n


@triton.jit
def _weigh(E, inverse, limit, support, constant, FORM: tl.constexpr, CAPPED: tl.constexpr):  # type: ignore[no-untyped-def]
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
        q = tl.full(E.shape, 1.0, E.dtype)
    if CAPPED:
        q = tl.where(tl.abs(ratio) <= support, q, 0.0)
    return tl.where(tl.abs(E) <= limit, q, 0.0)


@triton.jit
def _weigh_by(E, inverse, limit, support, constant, form):  # type: ignore[no-untyped-def]
    """Return what `_weigh` does for a form that is known when the kernel runs: slower, and compiled once for all."""
    ratio = E * inverse
    if form == _CAUCHY:
        root = tl.rsqrt(1.0 + ratio * ratio)
        q = root * root
    elif form == _HUBER:
        q = 1.0 / tl.maximum(tl.abs(ratio), 1.0)
    elif form == _ROUNDED:
        q = 0.5 * tl.rsqrt(ratio * ratio + constant)
    elif form == _CORRENTROPY:
        q = 0.5 * tl.exp(-0.5 * ratio * ratio)
    else:
        q = tl.full(E.shape, 1.0, E.dtype)
    return tl.where((tl.abs(ratio) <= support) & (tl.abs(E) <= limit), q, 0.0)


@triton.jit
def _residuals(y, high, low, a, a_low):  # type: ignore[no-untyped-def]
    """Return y - x a' for factors x = high + low and a + a_low: the product of both small parts is left out."""
    product = tl.dot(high, tl.trans(a), input_precision="tf32x3", out_dtype=y.dtype)
    if a.dtype == tl.bfloat16:  # others have no low parts
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


@triton.jit(do_not_specialize=[*_OF_RULES, "n_rows"])
def accumulate(  # type: ignore[no-untyped-def]
    Y, M, X, A, scale, threshold, constants, descent, curvature,
    n_rows, n_columns, row_stride, column_stride, scale_stride, threshold_stride, columns_per_split,
    RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, CAPPED: tl.constexpr,
    WEIGHTED: tl.constexpr, GAPS: tl.constexpr, COLUMN_THRESHOLDS: tl.constexpr, DESCRIBED: tl.constexpr,
    TRANSPOSED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sum up descent (Q E) A and curvature Q A^2 of some rows over some columns of the data.

    X (3, n_rows, RANK) and A (3, n_columns, RANK) are the parts of the factors, see `_parts`; Y, M and A are described
    to the copy engine, or pointers. What lies beyond the last column adds nothing, because A is zero there.
    """
    n_rows = _known_even(n_rows, EVEN)
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
    limit_of_row = tl.load(threshold + rows * threshold_stride, mask=here, other=0.0)[:, None]
    support, constant = tl.load(constants), tl.load(constants + 1)
    wide = rows.to(tl.int64)[:, None] * row_stride
    d = tl.zeros((ROWS, RANK), dtype=descent.dtype.element_ty)
    c = tl.zeros((ROWS, RANK), dtype=descent.dtype.element_ty)
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
        limit = tl.load(threshold + columns, mask=there, other=0.0)[None, :] if COLUMN_THRESHOLDS else limit_of_row
        E = _residuals(y, high, low, a, a_low)
        q = _weigh(E, inverse, limit, support, constant, FORM, CAPPED)
        if WEIGHTED:
            q *= _tile(M, at, row, start, here, there, DESCRIBED, TRANSPOSED)
        s = tl.where(q > 0, q * E, 0.0) if GAPS else q * E
        d = tl.dot(s.to(a.dtype), a, acc=d, input_precision="tf32x3", out_dtype=d.dtype)
        c = tl.dot(q.to(a.dtype), squares, acc=c, input_precision="tf32x3", out_dtype=c.dtype)
    out = (tl.program_id(1).to(tl.int64) * n_rows + rows[:, None]) * RANK + k[None, :]
    tl.store(descent + out, d, mask=here[:, None])
    tl.store(curvature + out, c, mask=here[:, None])


@triton.jit(do_not_specialize=["penalty", "gain", "total", "n_rows", "n_parts", "rank", "fixed", "sweeps"])
def descend(  # type: ignore[no-untyped-def]
    X, G, descent, curvature, penalty, move, gain, total,
    n_rows, n_parts, stride, padded, rank, fixed, sweeps, RANK: tl.constexpr, ROWS: tl.constexpr,
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
    ridge = tl.load(penalty + rank)
    slope -= tl.load(penalty + k, mask=k < rank, other=0.0)[None, :] + ridge * x
    tl.store(total + rows, tl.sum(c, axis=1), mask=here)
    c = tl.where((k < fixed)[None, :], 0.0, c + ridge)
    diagonal = tl.load(G + k * rank + k, mask=k < rank, other=0.0)[None, :]
    # In the variables z = root x every coordinate has the curvature of the Gram matrix. Coordinates that no entry of
    # positive weight depends on stay.
    smallest = 1e-292 if X.dtype.element_ty == tl.float64 else 1e-31  # see `smallest_curvature`
    seen = used & (c > smallest) & (diagonal > smallest)
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


@triton.jit(do_not_specialize=[*_OF_RULES, "bends", "weights", "n_rows", "rank", "form"])
def check(  # type: ignore[no-untyped-def]
    Y, M, X_parts, A_parts, move, scale, threshold, constants, bends, weights,
    n_rows, n_columns, n_checks, checks_per_split, row_stride, column_stride, run, skip, rank, form,
    scale_stride, threshold_stride,
    RANK: tl.constexpr, ROWS: tl.constexpr, CHECKS: tl.constexpr, FORM: tl.constexpr, CAPPED: tl.constexpr,
    WEIGHTED: tl.constexpr, COLUMN_THRESHOLDS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sum up the curvature along the moves of some rows, `bends`, and that of all coordinates, `weights`, of checks.

    Checks are some columns of the data: `run` consecutive ones of every `skip`, `n_checks` in all. The sums of each
    split are written, (splits, n_rows). A FORM below 0 stands for any `form`.
    """
    n_rows = _known_even(n_rows, EVEN)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * checks_per_split
    last = tl.minimum(first + checks_per_split, n_checks)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    parts = rows[:, None] * RANK + k[None, :]
    inverse = 1.0 / tl.load(scale + rows * scale_stride, mask=here, other=1.0)[:, None]
    limit_of_row = tl.load(threshold + rows * threshold_stride, mask=here, other=0.0)[:, None]
    high = tl.load(X_parts + parts, mask=here[:, None], other=0.0)
    low = tl.load(X_parts + n_rows * RANK + parts, mask=here[:, None], other=0.0)
    rounded = tl.load(move + parts, mask=here[:, None] & (k < rank)[None, :], other=0.0).to(high.dtype)
    support, constant = tl.load(constants), tl.load(constants + 1)
    bend = tl.zeros((ROWS,), dtype=bends.dtype.element_ty)
    c = tl.zeros((ROWS, RANK), dtype=bends.dtype.element_ty)
    wide = rows.to(tl.int64)[:, None] * row_stride
    for start in range(first, last, CHECKS):
        checks = start + tl.arange(0, CHECKS)
        columns = (checks // run) * skip + checks % run
        there = (checks < n_checks) & (columns < n_columns)
        place = wide + columns.to(tl.int64)[None, :] * column_stride
        y = tl.load(Y + place, mask=here[:, None] & there[None, :], other=0.0)
        a, a_low, squares = _load_parts(A_parts, columns, n_columns, there, RANK)
        limit = tl.load(threshold + columns, mask=there, other=0.0)[None, :] if COLUMN_THRESHOLDS else limit_of_row
        E = _residuals(y, high, low, a, a_low)
        if FORM < 0:
            q = _weigh_by(E, inverse, limit, support, constant, form)
        else:
            q = _weigh(E, inverse, limit, support, constant, FORM, CAPPED)
        if WEIGHTED:
            q *= tl.load(M + place, mask=here[:, None] & there[None, :], other=0.0)
        along = tl.dot(rounded, tl.trans(a), input_precision="tf32x3", out_dtype=y.dtype)
        bend += tl.sum(q * along * along, axis=1)
        # Data for a product comes ahead of time.
        c = tl.dot(q.to(a.dtype), squares, acc=c, input_precision="tf32x3", out_dtype=c.dtype)
    out = tl.program_id(1) * n_rows + rows
    tl.store(bends + out, bend, mask=here)
    tl.store(weights + out, tl.sum(c, axis=1), mask=here)


@triton.jit(
    do_not_specialize=["X", "gain", "total", "bends", "weights", "penalty", "new", "n_rows", "n_splits", "rank"]
)
def advance(  # type: ignore[no-untyped-def]
    X, move, gain, total, bends, weights, penalty, new, new_parts,
    n_rows, n_splits, rank, RANK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write X after its move, shortened where it would raise the objective, and its parts; see `descend`, `check`."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    used = here[:, None] & (k < rank)[None, :]
    at = rows[:, None] * rank + k[None, :]
    x = tl.load(X + at, mask=used, other=0.0)
    parts = rows[:, None] * RANK + k[None, :]
    m = tl.load(move + parts, mask=used, other=0.0)
    bend, weight = tl.zeros((ROWS,), x.dtype), tl.zeros((ROWS,), x.dtype)
    for part in range(n_splits):
        bend += tl.load(bends + part * n_rows + rows, mask=here, other=0.0)
        weight += tl.load(weights + part * n_rows + rows, mask=here, other=0.0)
    everything = tl.load(total + rows, mask=here, other=0.0)  # for which the checks stand
    ridge = tl.load(penalty + rank)
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
    tl.store(F + part + at, (x - high.to(x.dtype)).to(F.dtype.element_ty), mask=mask)
    tl.store(F + 2 * part + at, (x * x).to(F.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["F", "n_F", "G", "n_G", "rank"])
def split(  # type: ignore[no-untyped-def]
    F, F_parts, n_F, G, G_parts, n_G, rank, RANK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write the parts of two factors."""
    program, of_F = tl.program_id(0), tl.cdiv(n_F, ROWS)
    if program < of_F:
        _split_rows(F, F_parts, program * ROWS, n_F, rank, RANK, ROWS)
    else:
        _split_rows(G, G_parts, (program - of_F) * ROWS, n_G, rank, RANK, ROWS)


@triton.jit
def _split_rows(F, parts, first, n_rows, rank, RANK: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the parts of some rows of a factor."""
    rows = first + tl.arange(0, ROWS)
    k = tl.arange(0, RANK)
    here = rows < n_rows
    x = tl.load(F + rows[:, None] * rank + k[None, :], mask=here[:, None] & (k < rank)[None, :], other=0.0)
    _store_parts(parts, rows[:, None] * RANK + k[None, :], n_rows * RANK, x, here[:, None])


@triton.jit(do_not_specialize=["A", "ranks", "n_columns", "row_stride"])
def select(A, ranks, values, n_columns, row_stride, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write the entry of a given rank of each row of non-negative numbers.

    They are ordered like their bits: 31 or 63 halvings of the range of integers find the entry.
    """
    INTEGER: tl.constexpr = tl.int64 if A.dtype.element_ty == tl.float64 else tl.int32
    HALVINGS: tl.constexpr = INTEGER.primitive_bitwidth - 1
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    a = tl.load(A + row.to(tl.int64) * row_stride + columns, mask=columns < n_columns, other=float("inf"))
    bits = a.to(INTEGER, bitcast=True)
    wanted = tl.load(ranks + row)
    low, high = tl.full((), -1, INTEGER), tl.full((), float("inf"), a.dtype).to(INTEGER, bitcast=True)
    for _ in range(HALVINGS):
        middle = low + (high - low) // 2
        reached = tl.sum((bits <= middle).to(tl.int32), axis=0) > wanted
        low = tl.where(reached, low, middle)
        high = tl.where(reached, middle, high)
    tl.store(values + row, high.to(a.dtype, bitcast=True))
