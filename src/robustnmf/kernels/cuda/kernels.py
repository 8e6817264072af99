"""The kernels of a CUDA GPU, in Triton and CUDA, with what they keep between two calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import torch
import triton

from robustnmf.kernels.cuda.compilation import Plan, launch, start_up
from robustnmf.kernels.cuda.descent import kernel_for
from robustnmf.kernels.cuda.functions import select
from robustnmf.kernels.cuda.graphs import MOST_RECORDED, converge, repeat
from robustnmf.kernels.cuda.iteration import Iteration
from robustnmf.kernels.cuda.pivoting import least_squares
from robustnmf.kernels.cuda.statistics import Statistics, fit_sorted, predict
from robustnmf.kernels.cuda.steps import (
    Data,
    Recorded,
    as_array,
    half_step,
    moves_of,
    precision_of,
    split_factors,
    sweep,
)
from robustnmf.kernels.interface import Kernels, Planned, Rule, form_of
from robustnmf.kernels.line_search import checked_features, checked_rows
from robustnmf.utils.arrays import is_uniform

# Beyond this rank there are too few registers. Earlier versions cannot multiply matrices of doubles.
HIGHEST_RANK = {torch.float32: 128}
if tuple(int(number) for number in triton.__version__.split(".")[:2]) >= (3, 6):
    HIGHEST_RANK[torch.float64] = 64
# Rows of more bytes do not fit in the registers of a program.
LONGEST_ROW = 2**17

# Sweeps, and steps of codes, that are kept as graphs: a fit works on the same data for a while, then on other data.
MOST_GRAPHS = 2

_prepared: set[tuple[Any, ...]] = set()
"""Fits that this process has compiled kernels for."""


@dataclass
class CudaKernels:
    """The kernels of one engine, and what it keeps between two calls of them."""

    device: torch.device
    masked: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Data in which hidden entries are NaN, by the identity of their positions."""
    checks: dict[int, tuple[Any, list[slice]]] = field(default_factory=dict)
    """Weights, and which samples check a step of the basis, by the identity of the weights."""
    graphs: dict[Any, Recorded] = field(default_factory=dict)
    """Sweeps that were recorded, by their kind."""
    steps: dict[Any, Recorded] = field(default_factory=dict)
    """The step of codes that was recorded last."""
    iterations: dict[Any, Iteration] = field(default_factory=dict)
    """Whole iterations, by their kind."""
    last: tuple[Any, ...] = ()
    """The kind of what was done last, and its data."""
    predicted: list[tuple[Any, ...]] = field(default_factory=list)
    """Codes of each block after the last sweep, positions, basis, and what they predict there."""

    @property
    def table(self) -> Kernels:
        """The kernels as the engine has them."""
        return Kernels(
            rule_of=self.rule_of,
            half_step=self.half_step,
            sweep=self.sweep,
            propose=self.propose,
            order_statistics=self.order_statistics,
            predict=self.predict,
            least_squares=least_squares,
            extrapolate=self.extrapolate,
            converge=converge,
            repeat=repeat,
            statistics=Statistics,
            iterate=self.iterate,
            prepare=self.prepare,
            forget=self.forget,
        )

    def start_up(self) -> None:
        """Begin to load what compiles kernels, and kernels of Torch, before the first fit needs them."""
        empty = partial(torch.empty, device="meta")
        of_one = partial(predict, empty(1, 1), empty(1, 2, dtype=torch.int64), empty(1, 1))
        descending = partial(kernel_for, self.device, 1, torch.float32, 1)
        start_up(self.device, [of_one], [descending], [partial(_load_torch, self.device)])

    def forget(self) -> None:
        """Drop copies of the data and graphs, which hold memory of the device, at the end of a fit."""
        for kept in (self.masked, self.checks, self.graphs, self.steps, self.iterations, self.predicted):
            kept.clear()
        self.last = ()

    def rule_of(self, weighting: Any, Y: Any, rank: int) -> Rule | None:
        """Return the rule of a weighting for data Y (B, p), or None if kernels cannot follow it.

        They know some losses, and ranks up to `HIGHEST_RANK`; Y must be on their device.
        """
        form, scale, threshold = form_of(weighting.loss), weighting.scale, weighting.threshold
        fits = self._is_here(Y) and rank <= HIGHEST_RANK.get(Y.dtype, 0)
        if form is None or weighting.is_spatial or (threshold is not None and threshold.ndim > 1) or not fits:
            return None
        if isinstance(scale, torch.Tensor):
            scale = scale.to(Y.dtype).reshape(-1)
        else:
            scale = torch.full((1,), float(scale), dtype=Y.dtype, device=Y.device)
        if threshold is None:
            threshold = torch.full((1,), inf, dtype=Y.dtype, device=Y.device)
        elif is_uniform(threshold):  # one number in memory, which kernels take for all features
            threshold = threshold.reshape(-1)[:1]
        return Rule(form.form, form.constant, scale, threshold, form.support, weighting.is_least_squares)

    def _is_here(self, Y: Any) -> bool:
        """Return whether a block is a tensor on the device; one that is not computed yet is nowhere."""
        return bool(getattr(Y, "device", None) == self.device)

    def half_step(self, Y: Any, M: Any, X: Any, A: Any, linear: Any, ridge: float, rule: Rule, sweeps: int) -> Any:
        """Reweight and improve X in Y ~ X A'; the kernel of `SharedGram.improve_rows`.

        Parameters
        ----------
        Y, M : (B, p), M may be None; X : (B, r); A : (p, r); linear : (r,) and ridge, the penalty.
        """

        def work(X: Any, penalty: Any, scale: Any, threshold: Any) -> list[Any]:
            following = rule._replace(scale=scale, threshold=threshold)
            return [_half_step(Y, M, X, A, following, penalty, sweeps)]

        arrays = (X, as_array((linear, ridge), X), rule.scale, rule.threshold)
        kind = (rule.loss, rule.counts_alike, sweeps)
        key = ("half_step", id(Y), id(M), id(A), *(a.shape for a in arrays), *kind)
        return self._do(work, arrays, key, (Y, M, A), self.steps)[0]

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
        """Improve the codes of all blocks and the basis; the kernel of `SharedGram.sweep`.

        Parameters
        ----------
        penalties : (linear (r,), ridge) of the codes, and of the basis; None for none.
        """
        gaps = hidden is not None
        if hidden is not None:
            V = [self._masked_out(Y, positions) for Y, positions in zip(V, hidden, strict=True)]
        checks = self._checks(V, M)
        M = [None] * len(V) if M is None else M

        def work(W: Any, scale: Any, threshold: Any, *Ht: Any) -> list[Any]:
            following = rule._replace(scale=scale, threshold=threshold)
            data = (V, M, hidden or [], gaps, penalties, fixed, checks)
            new, codes, predictions = _swept(*data, sweeps, following, W, Ht)
            return [new, *codes, *predictions]

        arrays = (W, rule.scale, rule.threshold, *Ht)
        ridges = (None if penalty is None else penalty.ridge for penalty in penalties)
        kind = (rule.loss, rule.counts_alike, fixed, sweeps)
        key = ("sweep", *map(id, (*V, *M)), *(a.shape for a in arrays), *kind, *ridges)
        W, *others = self._do(work, arrays, key, (V, M), self.graphs)
        Ht, predictions = others[: len(V)], others[len(V) :]
        self.predicted = list(zip(Ht, hidden or [], [W] * len(Ht), predictions, strict=False))
        return W, Ht

    def iterate(
        self,
        V: Sequence[Any],
        M: Sequence[Any] | None,
        held: Any,
        hide: bool,
        method: Any,
        now: list[Any],
        before: list[Any],
        momentum: float,
        weighting: Any,
        monitor: Any,
    ) -> tuple[Any, list[Any]] | None:
        """Return the factors after an iteration of `algorithm.staged`, made as a whole; None if that cannot be.

        Parameters
        ----------
        held : HeldOut
            Entries that are predicted; the iteration does not see them if they are to be hidden.
        now, before : W and blocks of codes, and what they were before the last iteration.
        monitor : Monitor
            What the predictions are compared with.
        """
        (Y, *others), form, threshold = V, form_of(method.loss), weighting.threshold
        is_simple = not (others or method.penalties.product or weighting.is_spatial)
        can_compare = held.statistics is not None and len(held.values) and (threshold is None or is_uniform(threshold))
        if form is None or not is_simple or not can_compare or not self._is_here(Y) or Y.nbytes > MOST_RECORDED:
            return None
        seen = self._masked_out(Y, held.positions[0]) if hide else Y
        how = (hide, form, weighting.is_least_squares, method.solver, method.penalties, method.fixed)
        key = (id(seen), M is None or id(M[0]), *how)
        if key not in self.iterations:
            W = now[0]
            rule = self.rule_of(weighting, Y, W.shape[1])
            if rule is None:
                return None
            nets = (method.penalties.codes, method.penalties.basis)
            on_both = tuple(method.penalties.of(net, W, 1.0, torch) for net in nets)
            weights, checks = [None] if M is None else M, self._checks([seen], M)
            data = ([seen], weights, held.positions, hide, on_both, method.fixed, checks)
            layouts = (_layout(seen), M is None or _layout(M[0]), checks[0].step)
            kind = (self.device, *layouts, W.shape, len(held.values), *how)
            sweeping = partial(_swept, *data, method.solver.max_iter)
            self.iterations[key] = Iteration(sweeping, rule, held.statistics, now, kind)
        compared = (monitor.best, monitor.scale)
        made = self.iterations[key].make(now, before, momentum, float(weighting.scale), threshold, *compared)
        W, Ht, predictions = made
        self.predicted = [(Ht[0], held.positions[0], W, predictions)]
        return W, Ht

    def prepare(self, rank: int, planned: Sequence[Planned]) -> None:
        """Compile what a fit will need, side by side."""
        planned = [work for work in planned if rank <= HIGHEST_RANK.get(work.dtype, 0)]
        key = (self.device, rank, *((form_of(work.loss), *work[1:]) for work in planned))
        if self.device.type == "cuda" and planned and key not in _prepared:
            self.plan(rank, planned).compile()
            _prepared.add(key)

    def plan(self, rank: int, planned: Sequence[Planned]) -> Plan:
        """Return what is to be compiled for a fit."""
        plan = Plan(self.device)
        with plan.planning(), torch.device("meta"):
            for work in planned:
                _plan_for(work, rank)
            for dtype, size in {(work.dtype, work.shape[1]) for work in planned}:
                self.order_statistics(torch.empty(2, size, dtype=dtype), torch.empty(2, dtype=torch.int64))
            for dtype in {work.dtype for work in planned}:
                X, W = (torch.empty(1, rank, dtype=dtype) for _ in range(2))
                predict(X, torch.empty(1, 2, dtype=torch.int64), W)
            fit_sorted(torch.empty(1), torch.empty(2, 2, dtype=torch.int64), hidden=True)
        return plan

    def _do(
        self,
        work: Callable[..., list[Any]],
        arrays: Sequence[Any],
        key: tuple[Any, ...],
        data: tuple[Any, ...],
        recorded: dict[Any, Recorded],
    ) -> list[Any]:
        """Do some work; if it is what was done last, record it: a graph goes on reading the same data.

        Graphs of other data are dropped, and with them the data. The launches of large data take no time beside it.
        """
        is_large = sum(A.nbytes for A in _arrays_in(data)) > MOST_RECORDED
        if is_large or self.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return work(*arrays)
        if self._is_done_again(key, data) and key not in recorded:
            while len(recorded) >= MOST_GRAPHS:
                del recorded[next(iter(recorded))]
            recorded[key] = Recorded(work, arrays)
        return recorded.get(key, work)(*arrays)

    def _is_done_again(self, key: tuple[Any, ...], data: tuple[Any, ...]) -> bool:
        """Return whether this is what was done last.

        The key tells data by its identity, which nothing else can have while it is kept.
        """
        again, self.last = self.last[:1] == (key,), (key, data)
        return again

    def extrapolate(self, new: Any, last: Any, momentum: float) -> Any:
        """Return a factor moved on by a share of its last move; the kernel of `algorithm.staged`."""
        return torch.lerp(last, new, 1 + momentum).clamp_(min=0)

    def predict(self, X: Any, positions: Any, W: Any) -> Any:
        """Return entries of X W' at positions (k, 2); the kernel of `algorithm.holdout`."""
        for *of, known in self.predicted:  # hidden entries were predicted by the sweep
            if all(a is b for a, b in zip(of, (X, positions, W), strict=True)):
                return known
        return predict(X, positions, W)

    def propose(self, G: Any, descent: Any, curvature: Any, X0: Any, max_iter: int) -> Any:
        """Return the move of coordinate descent with one Gram matrix, in any precision: `shared_gram.propose`."""
        sums = torch.stack([descent, curvature])[:, None]
        move, *_ = moves_of(X0.contiguous(), G.contiguous(), sums, as_array(None, X0), max_iter, 0)
        return move[:, : X0.shape[1]]

    def order_statistics(self, A: Any, ranks: Any) -> Any:
        """Return the entry of a given rank of each row of non-negative A, (B,); the kernel of `algorithm.encoding`."""
        n_rows, n_columns = A.shape
        if n_columns * A.element_size() > LONGEST_ROW:
            return torch.take_along_dim(torch.sort(A, dim=1).values, ranks[:, None], dim=1)[:, 0]
        values = torch.empty(n_rows, dtype=A.dtype, device=A.device)
        A = A if A.stride(1) == 1 else A.contiguous()
        columns = triton.next_power_of_2(n_columns)
        warps = min(max(columns * A.element_size() // 4096, 1), 16)
        launch(select, (n_rows,), A, ranks, values, n_columns, A.stride(0), COLUMNS=columns, num_warps=warps)
        return values

    def _checks(self, V: Sequence[Any], M: Sequence[Any] | None) -> list[slice]:
        """Return which samples of each block check a step of the basis, more of them if many entries are missing."""
        lengths = [len(Y) for Y in V]
        checks = checked_rows(lengths)
        if M is None:
            return checks
        if id(M[0]) not in self.checks:
            seen = [torch.count_nonzero(A[rows]) / A[rows].numel() for A, rows in zip(M, checks, strict=True)]
            self.checks[id(M[0])] = (M, checked_rows(lengths, share=float(sum(seen) / len(seen))))
        return self.checks[id(M[0])][1]

    def _masked_out(self, Y: Any, positions: Any) -> Any:
        """Return a copy of Y in which entries at some positions (k, 2) are NaN, and so have no weight."""
        if id(positions) not in self.masked:
            copy = Y.clone()
            copy[positions[:, 0], positions[:, 1]] = torch.nan
            self.masked[id(positions)] = (positions, copy)  # who holds the positions keeps their identity
        return self.masked[id(positions)][1]


def _load_torch(device: torch.device) -> None:
    """Use once what a fit uses of Torch, which loads a kernel when it is first used: a hundred take 0.3 seconds."""
    for dtype in (torch.float32, torch.float64):
        a = torch.ones((64, 32), dtype=dtype, device=device)
        some, whole = a > 0.5, a.to(torch.int64)
        for reduced in (torch.sum, torch.mean, torch.std, torch.amax, torch.amin, torch.count_nonzero, torch.any):
            reduced(a), reduced(a, dim=0), reduced(a, dim=1)
        for function in (torch.abs, torch.sqrt, torch.exp, torch.log, torch.log1p, torch.isnan, torch.isfinite):
            function(a)
        torch.all(some), torch.where(some, a, 0.0), torch.where(some, a, a), a[some], torch.maximum(a, a)
        torch.sort(a, dim=0), torch.sort(a.reshape(-1)), torch.round(a), torch.cumsum(whole, dim=1)
        torch.lerp(a, a, 0.5).clamp_(min=0), torch.cat([a, a]), torch.stack([a, a]), a.clone()
        torch.cholesky_solve(a[:1, :1, None], torch.linalg.cholesky_ex(a[:1, :1, None]).L)
        a * a + a - a / a, 1 - a, 1 / a, a**2, a @ a.T, torch.arange(4, device=device)


def _half_step(Y: Any, M: Any, X: Any, A: Any, rule: Rule, penalty: Any, sweeps: int) -> Any:
    """Return codes X of samples Y, improved in a basis A that stays."""
    data = Data(Y, M, rule.scale, rule.threshold)
    how = None if rule.counts_alike and M is None else checked_features(Y.shape[1])
    of_A, of_X = split_factors(A, X, precision_of(A.dtype, len(A)))
    return half_step([data], X, of_X, [of_A], [(A, None)], data, of_A, how, rule, penalty, sweeps)[0]


def _swept(
    V: Sequence[Any],
    M: Sequence[Any],
    positions: Sequence[Any],
    gaps: bool,
    penalties: Sequence[Any],
    fixed: int,
    checks: Sequence[slice],
    sweeps: int,
    rule: Rule,
    W: Any,
    Ht: Sequence[Any],
) -> tuple[Any, list[Any], list[Any]]:
    """Return W and codes after a sweep, and what they predict at positions (k, 2) of each block, if there are any."""
    on_codes, on_basis = (as_array(penalty, W) for penalty in penalties)
    W, codes = sweep(V, M, W, Ht, rule, (on_codes, on_basis), fixed, sweeps, gaps, checks)
    return W, codes, [predict(X, some, W) for X, some in zip(codes, positions, strict=False)]


def _plan_for(work: Planned, rank: int) -> None:
    """Do some work on tensors of the default device, while what it launches is noted."""
    dtype = work.dtype
    form, one = form_of(work.loss), torch.empty(1, dtype=dtype)
    if form is None:
        return
    rule, penalty = Rule(form.form, form.constant, one, one, form.support), torch.empty(rank + 1, dtype=dtype)
    Y, X, W = (torch.empty(*shape, dtype=dtype) for shape in (work.shape, (work.shape[0], rank), (work.shape[1], rank)))
    M = Y if work.weighted else None
    if work.of_codes:
        _half_step(Y, M, X, W, rule, penalty, 1)
    else:
        sweep([Y], [M], W, [X], rule, (penalty, penalty), 0, 1, work.gaps, checked_rows([len(Y)]))


def _arrays_in(data: tuple[Any, ...]) -> list[Any]:
    """Return the arrays in a tuple of arrays, lists of them, and None."""
    parts = [part if isinstance(part, Sequence) else [part] for part in data]
    return [A for part in parts for A in part if A is not None]


def _layout(a: Any) -> tuple[Any, ...]:
    """Return type and layout in memory of an array, as far as kernels are compiled for them."""
    return a.dtype, a.shape, a.stride(), a.data_ptr() % 16
