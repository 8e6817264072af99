"""The steps of a fit on a CUDA GPU: how the kernels of `robustnmf.kernels.cuda.functions` are launched.

Both half-steps of `solvers.SharedGram` are one function here, called with the roles exchanged: rows are samples
and X their codes, or rows are features and X the basis. So an iteration reads the data twice, and some of it once more.

Sums over the data are split between programs and added up in a fixed order: the same data give the same bits.

Precision: residuals come from products of factors split into two bfloat16 numbers each, of which three of four products
are kept, good to 2e-5 of the reconstruction; descent and curvature from weights and residuals rounded to bfloat16,
which are averages over so many entries that this does not show. Where there are few, all is single precision. Data in
double precision is worked on in double precision.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import ceil, inf
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from robustnmf.kernels.cuda import doubles
from robustnmf.kernels.cuda.compilation import launch, shared_memory, worked_on
from robustnmf.kernels.cuda.descent import MOST_PARTS, kernel_for
from robustnmf.kernels.cuda.functions import accumulate, advance, check, descend, padded_rank, split
from robustnmf.kernels.cuda.graphs import beside, record
from robustnmf.kernels.interface import Form, Rule
from robustnmf.kernels.line_search import checked_features

# With no more samples, or features, products are of single-precision numbers: rounding errors would not average out.
PRECISE = 1024
# Rows and columns of the data that a program works on at a time, its warps, tiles on their way, and programs that a
# multiprocessor of an H200 has room for, by padded rank.
TILES = {
    torch.bfloat16: {16: (64, 128, 4, 3, 2), 32: (64, 64, 4, 3, 2), 64: (64, 32, 4, 3, 3), 128: (64, 32, 4, 2, 2)},
    torch.float32: {16: (32, 64, 4, 2, 4), 32: (32, 64, 4, 2, 3), 64: (32, 64, 4, 2, 2), 128: (32, 32, 4, 2, 2)},
    torch.float64: {16: (32, 32, 4, 2, 4), 32: (32, 32, 4, 2, 3), 64: (32, 32, 4, 2, 2)},
}
# Share of the memory of a multiprocessor that tiles on their way may take; the rest is for products.
TILE_SHARE = 0.75
# Rows and checks that a program works on at a time, and its warps: for more rows than so many, and for fewer, where
# small tiles keep more multiprocessors busy.
CHECK_TILE, SMALL_CHECK_TILE, FEW_ROWS = (64, 32, 4), (16, 64, 4), 4096
# Rows that a program moves, once they are checked, and rows that it splits.
ADVANCING_ROWS, SPLIT_ROWS = 16, 64
# Numbers of a factor that a program can hold for its checks, several times.
MOST_CHECKED = {torch.float32: 2**13, torch.float64: 2**10}
# Checks at a time of the smallest matrix product.
FEWEST_CHECKS = 16
# Programs that a check should have at least, to keep all multiprocessors busy.
ENOUGH_PROGRAMS = 1056
# More parts of a sum take longer to add up than they save.
MOST_SPLITS = 40
# Columns that a program could sum over in the time that it takes to begin and to end.
COLUMNS_TO_BEGIN = 512
# Multiprocessors that kernels are planned for where there is no GPU: those of an H200.
MULTIPROCESSORS = 132


class Data(NamedTuple):
    """A block of data with its entries' weights, scale and threshold; rows are what is to be improved."""

    Y: Any
    M: Any
    scale: Any
    """(n_rows,) or (1,)."""
    threshold: Any
    """For each feature, or (1,)."""
    features_in_rows: bool = False
    gaps: bool = False
    """Whether entries of Y may be NaN."""

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Steps from row to row and from column to column of Y, and from row to row of scale and threshold."""
        return (*self.Y.stride(), int(len(self.scale) > 1), int(len(self.threshold) > 1 and self.features_in_rows))

    @property
    def column_thresholds(self) -> bool:
        """Whether columns differ in their threshold."""
        return len(self.threshold) > 1 and not self.features_in_rows

    @property
    def by_columns(self) -> bool:
        """Whether it is the columns of Y whose entries lie together in memory."""
        return bool(self.Y.stride(0) == 1 < self.Y.stride(1))

    @property
    def is_even(self) -> bool:
        """Whether several rows at a time can be read: their entries lie together, in multiples of 16."""
        return self.by_columns and len(self.Y) % 16 == 0

    @property
    def transposed(self) -> "Data":
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
        is_single = self.Y.dtype == torch.float32
        if not is_single or not _has_copy_engine(self.Y) or not all(_is_aligned(A) for A in matrices):
            return None
        found = [TensorDescriptor(A, list(A.shape), list(A.stride()), block) for A in matrices]
        return found[0], found[-1]


def _has_copy_engine(A: Any) -> bool:
    """Return whether the device has Hopper's copy engine; the interpreter has one too."""
    device = worked_on(A)
    return device.type != "cuda" or bool(torch.cuda.get_device_capability(device) >= (9, 0))


def _is_aligned(A: Any) -> bool:
    """Return whether rows begin at multiples of 16 bytes, as the copy engine wants."""
    return bool(A.stride(1) == 1 and A.stride(0) * A.element_size() % 16 == 0 and A.data_ptr() % 16 == 0)


def precision_of(dtype: torch.dtype, *sizes: int) -> torch.dtype:
    """Return the type of the numbers that products over so many samples, or features, are made of."""
    return torch.bfloat16 if dtype == torch.float32 and min(sizes) > PRECISE else dtype


def split_factors(F: Any, G: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return two factors (n, r) as high and low parts and squares, (3, n, padded r).

    What is not split, in single precision, has no low part. Both at once: a launch takes longer than a small factor.
    """
    rank, rows = F.shape[1], SPLIT_ROWS
    padded = padded_rank(rank)
    of_F, of_G = (torch.empty((3, len(A), padded), dtype=dtype, device=A.device) for A in (F, G))
    programs = triton.cdiv(len(F), rows) + triton.cdiv(len(G), rows)
    F, G = F.contiguous(), G.contiguous()
    launch(split, (programs,), F, of_F, len(F), G, of_G, len(G), rank, RANK=padded, ROWS=rows)
    return of_F, of_G


def half_step(
    blocks: Sequence[Data],
    X: Any,
    of_X: Any,
    of_A: Sequence[Any],
    A: Sequence[tuple[Any, Any]],
    checks_on: Data,
    of_checks: Any,
    checked: tuple[int, int, int] | None,
    rule: Rule,
    penalty: Any,
    sweeps: int,
    fixed: int = 0,
) -> tuple[Any, Any, Any]:
    """Return X improved in Y ~ X A', row by row, its parts, and the curvature of every row; data is in column blocks.

    Parameters
    ----------
    of_X, of_A : parts of the factors; of A those for each block.
    A : the factor itself, for each block, with how far its rows are trusted, see `_write_gram`.
    checks_on, of_checks : data and parts of the factor for the columns on which a step is checked.
    checked : which of these, (run, skip, count); None if all entries count alike, for then no step raises squares.
    penalty : (r + 1,), see `as_array`.
    """
    n_rows, rank = X.shape
    X, gram = X.contiguous(), torch.empty((rank, rank), dtype=X.dtype, device=X.device)
    with beside(X.device, lambda: _write_gram(gram, A)):
        sums = _sums(blocks, of_X, of_A, rule)
    moves = moves_of(X, gram, sums, penalty, sweeps, fixed)
    if checked is None:
        bends = sums.new_zeros(2, 1, n_rows)
    else:
        bends = _bends_of(checks_on, of_X, of_checks, moves[0], checked, rule, rank)
    new, of_new = (torch.empty(A.shape, dtype=A.dtype, device=A.device) for A in (X, of_X))
    rows = ADVANCING_ROWS
    launch(
        advance, (triton.cdiv(n_rows, rows),),
        X, *moves, *bends, penalty, new, of_new, n_rows, bends.shape[1], rank, RANK=of_X.shape[2], ROWS=rows,
    )  # fmt: skip
    return new, of_new, moves[-1]


def _write_gram(gram: Any, factors: Sequence[tuple[Any, Any]]) -> None:
    """Write the sum of A' D A over factors A, (n, r), with D how far rows are trusted, (n,); None for equally."""
    if gram.is_meta:  # it is planned what is to be compiled, and Torch would import for seconds to multiply nothing
        return
    gram.zero_()
    for A, trust in factors:
        gram.addmm_(A.T, A if trust is None else trust[:, None] * A)


def _bends_of(
    data: Data, of_X: Any, of_checks: Any, move: Any, checked: tuple[int, int, int], rule: Rule, rank: int
) -> Any:
    """Return the curvature of the objective along the moves, and that of all coordinates, (2, splits, n_rows)."""
    n_rows, count = of_X.shape[1], checked[2]
    rows, checks, warps = CHECK_TILE if n_rows > FEW_ROWS else SMALL_CHECK_TILE
    kind = (
        worked_on(of_X),
        of_X.dtype,
        of_X.shape[2],
        rows,
        data.M is None,
        data.column_thresholds,
        data.is_even,
        rule.loss,
    )
    checks = _fitting_checks.get(kind, min(checks, MOST_CHECKED[move.dtype] // of_X.shape[2]))
    while True:
        n_splits, width = _splits(n_rows, count, rows, checks)
        bends = torch.empty((2, n_splits, n_rows), dtype=move.dtype, device=of_X.device)
        try:
            _launch_check(data, of_X, of_checks, move, checked, rule, rank, bends, width, (rows, checks, warps))
        except OutOfResources:  # how much memory the compiler takes is known only when it has compiled
            if checks <= FEWEST_CHECKS:
                raise
            checks //= 2
        else:
            _fitting_checks[kind] = checks
            return bends


_fitting_checks: dict[tuple[Any, ...], int] = {}
"""Checks at a time for which a multiprocessor has the memory, by what a kernel is compiled for."""


def _launch_check(
    data: Data,
    of_X: Any,
    of_checks: Any,
    move: Any,
    checked: tuple[int, int, int],
    rule: Rule,
    rank: int,
    bends: Any,
    width: int,
    tile: tuple[int, int, int],
) -> None:
    """Write the curvatures, in splits of so many checks; the tile is rows, checks at a time, and warps."""
    (_, n_rows, padded), (run, skip, count), (rows, checks, warps) = of_X.shape, checked, tile
    row_stride, column_stride, *others = data.strides
    launch(
        check, (triton.cdiv(n_rows, rows), bends.shape[1]),
        *data.pointers, of_X, of_checks, move, data.scale, data.threshold, constants_of(rule.loss, data.Y), *bends,
        n_rows, data.Y.shape[1], count, width, row_stride, column_stride, run, skip, rank, rule.form, *others,
        # Of few rows it takes longer to compile a kernel for each form than they save.
        RANK=padded, ROWS=rows, CHECKS=checks, FORM=rule.form if n_rows > FEW_ROWS else -1,
        CAPPED=n_rows > FEW_ROWS and rule.support < inf, WEIGHTED=data.M is not None,
        COLUMN_THRESHOLDS=data.column_thresholds, EVEN=data.is_even, num_warps=warps,
        job=partial(_bends_of, data, of_X, of_checks, move, checked, rule, rank),
    )  # fmt: skip


def _sums(blocks: Sequence[Data], of_X: Any, of_A: Sequence[Any], rule: Rule) -> Any:
    """Return descent and curvature of every row, in parts that are to be added up, (2, parts, n_rows, padded r)."""
    n_rows, weighted = of_X.shape[1], blocks[0].M is not None
    in_doubles = [_in_doubles(data, of_X, rule) for data in blocks]
    if all(in_doubles):
        tile = (doubles.ROWS, doubles.COLUMNS[of_X.shape[2]], 0, 0, doubles.AT_A_TIME[of_X.shape[2]])
    else:
        tile, in_doubles = _tile_for(of_X, weighted), [None] * len(blocks)
    at_a_time = tile[-1] * _multiprocessors(worked_on(of_X))
    plans = [_fewest_waves(n_rows, data.Y.shape[1], *tile[:2], at_a_time) for data in blocks]
    shape, done = (2, sum(n for n, _ in plans), *of_X.shape[1:]), 0
    sums = torch.empty(shape, dtype=blocks[0].Y.dtype, device=of_X.device)
    for data, parts, (n, width), kernel in zip(blocks, of_A, plans, in_doubles, strict=True):
        into = sums[:, done : done + n]
        done += n
        if kernel is None:
            _accumulate(data, of_X, parts, rule, into, width, tile)
            continue
        pointers = [*data.pointers, of_X, parts, data.scale, data.threshold, constants_of(rule.loss, data.Y), *into]
        kernel((triton.cdiv(n_rows, tile[0]), n), [*pointers, n_rows, data.Y.shape[1], *data.strides, width])
    is_short = sums.shape[1] <= MOST_PARTS or sums.is_meta  # see `_write_gram`
    return sums if is_short else sums.sum(dim=1, keepdim=True)


def _in_doubles(data: Data, of_X: Any, rule: Rule) -> Callable[..., None] | None:
    """Return the kernel that sums up in double precision, or None for other data and other GPUs."""
    if of_X.dtype != torch.float64:
        return None
    pairs = not data.by_columns and all(A is None or _is_aligned(A) for A in (data.Y, data.M))
    kinds = (rule.form, rule.support < inf, data.M is not None, data.column_thresholds)
    return doubles.kernel_for(worked_on(of_X), doubles.Kind(of_X.shape[2], *kinds, pairs and data.Y.shape[1] % 2 == 0))


def _accumulate(
    data: Data, of_X: Any, of_A: Any, rule: Rule, into: Any, width: int, tile: tuple[int, int, int, int, int]
) -> None:
    """Write sums of a block, in splits of so many columns; the tile is as in the table."""
    (_, n_rows, padded), (rows, columns, warps, stages, _) = of_X.shape, tile
    described, strides, is_even = data.described(rows, columns), data.strides, data.is_even
    if described is not None:
        of_A = TensorDescriptor(of_A, list(of_A.shape), list(of_A.stride()), [1, columns, padded])
        strides, is_even = (0, 0, *strides[2:]), False  # of no use, and not to be compiled for
    launch(
        accumulate, (triton.cdiv(n_rows, rows), into.shape[1]),
        *(described or data.pointers), of_X, of_A, data.scale, data.threshold, constants_of(rule.loss, data.Y),
        *into, n_rows, data.Y.shape[1], *strides, width,
        RANK=padded, ROWS=rows, COLUMNS=columns, FORM=rule.form, CAPPED=rule.support < inf,
        # Of small data there is one kernel, with gaps or without.
        WEIGHTED=data.M is not None, GAPS=data.gaps or of_X.dtype != torch.bfloat16,
        COLUMN_THRESHOLDS=data.column_thresholds, DESCRIBED=described is not None, TRANSPOSED=data.by_columns,
        EVEN=is_even, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _tile_for(parts: Any, weighted: bool) -> tuple[int, int, int, int, int]:
    """Return the tile for a factor's parts: as in the table, or narrower where those on their way would not fit."""
    rows, columns, warps, stages, at_a_time = TILES[parts.dtype][parts.shape[2]]
    per_entry = max(4, parts.element_size()) * (1 + weighted)
    per_column = rows * per_entry + 3 * parts.shape[2] * parts.element_size()
    while stages * columns * per_column > TILE_SHARE * shared_memory(worked_on(parts)):
        columns //= 2
    return rows, columns, warps, stages, at_a_time


def moves_of(X: Any, gram: Any, sums: Any, penalty: Any, sweeps: int, fixed: int) -> tuple[Any, Any, Any]:
    """Return the move of each row by coordinate descent, padded, its gain and the total curvature; see `descend`."""
    (n_rows, rank), padded = X.shape, padded_rank(X.shape[1])
    move = torch.empty((n_rows, padded), dtype=X.dtype, device=X.device)
    gain, total = torch.empty((2, n_rows), dtype=X.dtype, device=X.device)
    arguments = [X, gram, sums[0], sums[1], penalty, move, gain, total]
    arguments += [n_rows, sums.shape[1], sums.shape[3], padded, rank, fixed, sweeps]
    device = worked_on(X)
    kernel = kernel_for(device, rank, X.dtype, n_rows) if device.type == "cuda" else None
    if kernel is not None:
        kernel(n_rows, arguments)
    else:
        rows = max(1, 512 // padded)
        launch(descend, (triton.cdiv(n_rows, rows),), *arguments, RANK=padded, ROWS=rows)
    return move, gain, total


def _splits(n_rows: int, n_columns: int, rows: int, columns: int) -> tuple[int, int]:
    """Return into how many parts the columns of a check are split, and how many columns each has."""
    width = _width(n_columns, columns, max(1, min(ceil(ENOUGH_PROGRAMS / triton.cdiv(n_rows, rows)), MOST_SPLITS)))
    return triton.cdiv(n_columns, width), width


@cache
def _fewest_waves(n_rows: int, n_columns: int, rows: int, columns: int, at_a_time: int) -> tuple[int, int]:
    """Return how the columns of a sum are split, into how many parts and of how many columns, to be done earliest.

    So many programs run at a time, in waves that take equally long: a last one with few takes as long as the others.
    """

    def duration(n: int) -> int:
        return ceil(programs * n / at_a_time) * (_width(n_columns, columns, n) + COLUMNS_TO_BEGIN)

    programs = ceil(n_rows / rows)
    width = _width(n_columns, columns, min(range(1, MOST_SPLITS + 1), key=duration))
    return ceil(n_columns / width), width


def _width(n_columns: int, columns: int, n: int) -> int:
    """Return how many columns each of n parts has, a multiple of those of a tile."""
    return columns * max(1, ceil(n_columns / columns / n))


@cache
def _multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors the device has."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def sweep(
    V: Sequence[Any],
    M: Sequence[Any],
    W: Any,
    Ht: Sequence[Any],
    rule: Rule,
    penalties: tuple[Any, Any],
    fixed: int,
    sweeps: int,
    gaps: bool,
    checks: Sequence[slice],
) -> tuple[Any, list[Any]]:
    """Improve the codes of all blocks, then the basis; the penalties are those of both, see `as_array`.

    The checks are the samples of each block that check a step of the basis.
    """
    samples = [Data(Y, m, rule.scale, rule.threshold, gaps=gaps) for Y, m in zip(V, M, strict=True)]
    on_codes, on_basis = penalties
    precision = precision_of(W.dtype, len(W), sum(len(Y) for Y in V))
    counts_alike = rule.counts_alike and M[0] is None and not gaps
    how, improved = None if counts_alike else checked_features(V[0].shape[1]), []
    for data, X in zip(samples, Ht, strict=True):
        of_W, of_X = split_factors(W, X, precision)
        improved.append(half_step([data], X, of_X, [of_W], [(W, None)], data, of_W, how, rule, on_codes, sweeps))
    codes, of_codes, curvature = (list(found) for found in zip(*improved, strict=True))
    if fixed == W.shape[1]:
        return W, codes
    checks_on = Data(
        _gather(V, checks), None if M[0] is None else _gather(M, checks), rule.scale, rule.threshold, gaps=gaps
    )
    chosen = [parts[:, rows] for parts, rows in zip(of_codes, checks, strict=True)]
    of_checks = chosen[0].contiguous() if len(chosen) == 1 else torch.cat(chosen, dim=1)
    everyone = None if counts_alike else (of_checks.shape[1],) * 3
    features = [data.transposed for data in samples]
    # Samples are trusted by their mean weight, which is their curvature but for a factor that does not matter.
    trusted = list(zip(codes, curvature, strict=True))
    known = (rule, on_basis, sweeps, fixed)
    new, *_ = half_step(features, W, of_W, of_codes, trusted, checks_on.transposed, of_checks, everyone, *known)
    return new, codes


def as_array(penalty: tuple[Any, float] | None, X: Any) -> Any:
    """Return a penalty on the rows of X, a linear part for each coordinate and a ridge, as one array, (r + 1,)."""
    if penalty is None:
        return torch.zeros(X.shape[1] + 1, dtype=X.dtype, device=X.device)
    linear, ridge = penalty
    return torch.cat([linear, torch.full_like(linear[:1], ridge)])


@cache
def _constants(loss: Form, dtype: torch.dtype, device: torch.device) -> Any:
    return torch.tensor([loss.support, loss.constant], dtype=dtype, device=device)


def constants_of(loss: Form, Y: Any) -> Any:
    """Return the support and the constant of a loss where the data is: as numbers they would be single precision."""
    return _constants(loss, Y.dtype, Y.device)


def _gather(blocks: Sequence[Any], rows: Sequence[slice]) -> Any:
    """Return some rows of all blocks; of a single block without a copy."""
    chosen = [block[some] for block, some in zip(blocks, rows, strict=True)]
    return chosen[0] if len(chosen) == 1 else torch.cat(chosen)


class Recorded:
    """Work on some arrays, recorded and then launched as a whole. It must have been done before.

    Parameters
    ----------
    work : function
        Returns a list of arrays. It keeps what else it reads, the data above all, where it is.
    arrays : list of arrays that will differ in value
    """

    def __init__(self, work: Callable[..., list[Any]], arrays: Sequence[Any]) -> None:
        self.work = work
        self.inputs = joined(arrays)  # one array, so that all are copied at once
        parts = apart(self.inputs, arrays)
        self.graph, self.outputs = record(lambda: work(*parts))

    def __call__(self, *arrays: Any) -> list[Any]:
        """Return what the work returns, in arrays of their own."""
        joined(arrays, out=self.inputs)
        self.graph.replay()
        return apart(joined(self.outputs), self.outputs)


def joined(arrays: Sequence[Any], out: Any = None) -> Any:
    """Return the numbers of some arrays one after the other."""
    return torch.cat([a.reshape(-1) for a in arrays], out=out)


def apart(whole: Any, like: Sequence[Any]) -> list[Any]:
    """Return arrays of the shapes of others, whose numbers are joined."""
    pieces = torch.split(whole, [a.numel() for a in like])
    return [piece.view(a.shape) for piece, a in zip(pieces, like, strict=True)]
