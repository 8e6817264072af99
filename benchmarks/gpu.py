"""How fast a robust sweep is on a CUDA GPU, against multiplicative NMF and the algorithm of torchnmf.

    python benchmarks/gpu.py [--out benchmarks/results/gpu.md] [--stream-gb 16]
        [--parts sweeps profile objective fit host first many compiled streaming]

Every time is a median, by CUDA events. The floor of a sweep is two reads of the data at the bandwidth that a copy on
the same GPU reaches. Before it is timed, a sweep is compared with one in double precision by NumPy's reference code.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from robustnmf import TruncatedCauchyNMF
from robustnmf.algorithm.staged import Staged
from robustnmf.engines import NumPyEngine
from robustnmf.engines.torch_engine import TorchEngine
from robustnmf.engines.torch_tile_engine import TorchTileEngine
from robustnmf.methods import resolve
from robustnmf.metrics import match_components
from robustnmf.model.losses import Cauchy
from robustnmf.model.penalties import NO_PENALTIES
from robustnmf.model.weighting import Weighting
from robustnmf.selection.stability import consensus
from robustnmf.solvers import SharedGram
from robustnmf.solvers.objective import Objective

SIZES = [(16384, 16384, 16), (16384, 16384, 32), (16384, 16384, 64), (200_000, 2_000, 32), (400, 1024, 40)]
DOUBLE_SIZES = [(16384, 16384, 16), (16384, 16384, 32), (16384, 16384, 64), (400, 1024, 40)]
SCALE, THRESHOLD, OUTLIERS = 0.1, 1.0, 0.2
# From a random start residuals are larger: a scale and a threshold that let clean entries in.
WIDE_SCALE, WIDE_THRESHOLD = 1.0, 8.0
PARTS = ("sweeps", "profile", "objective", "fit", "host", "first", "many", "compiled", "streaming")
# Momentum grows while the objective of some entries falls, and shrinks when it rises. It is worth most where each
# half-step comes close to the best for the other factor, which takes more coordinate sweeps than the default makes.
MOMENTUM, GROWTH, SHRINKAGE, MOST_SWEEPS = 0.5, 1.2, 1.5, 250
# As the default does, it begins with some of the samples: so many for each component. Then codes of all are found, from
# the mean code.
SOME_PER_COMPONENT = 64


class Schedule(NamedTuple):
    """How many steps of each kind are made."""

    coordinate_sweeps: int
    """Those of a half-step."""
    some_sweeps: int
    """Sweeps with some of the samples."""
    encodings: int
    """Half-steps that find codes of all; they make as many coordinate sweeps as those of `REFERENCE`."""
    compressed_sweeps: int = 0
    """Sweeps with some of the samples, in place of whose data there is a product of two factors of that rank."""


SCHEDULES = {16: Schedule(96, 140, 4), 32: Schedule(96, 140, 4), 64: Schedule(16, 20, 6, 500)}
"""By rank."""
REFERENCE = Schedule(96, 0, 0)
"""What leads to the best objective that is known."""
# Times that what is rejected is replaced by what a product of the rank predicts, before data is compressed.
FILLINGS = 3
# Seeds of the starts; the numbers above were chosen by others.
STARTS = range(5, 10)
# Samples and features whose entries tell whether a step was good.
CHECKED = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--stream-gb", type=float, default=16.0, help="gigabytes of host memory that are streamed")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA GPU, and Torch sees none.")
    name = torch.cuda.get_device_name()
    lines = [f"# On one GPU\n\n{name}, Torch {torch.__version__}, `python benchmarks/gpu.py`.\n"]
    for part in options.parts:
        for line in streaming(options.stream_gb) if part == "streaming" else globals()[part]():
            print(line, flush=True)
            lines.append(line)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make(n: int, m: int, r: int, device: str = "cuda") -> torch.Tensor:
    """Return low-rank data with noise and gross outliers, (n, m)."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device=device)

    X = draw(n, r) @ draw(m, r).T + 0.05 * draw(n, m)
    X[draw(n, m) < OUTLIERS] = float(r)
    return X


def start(n: int, m: int, r: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    return tuple(torch.rand((size, r), generator=generator, device="cuda") for size in (m, n))


def weighting(m: int, like: torch.Tensor) -> Weighting:
    return Weighting(Cauchy(), SCALE, _one_threshold(THRESHOLD, m, like))


def _one_threshold(value: float, m: int, like: torch.Tensor) -> torch.Tensor:
    """Return one threshold for all features, as the default makes it: one number, made longer."""
    return torch.tensor(value, dtype=like.dtype, device=like.device).broadcast_to((m,))


def one_pass(V, M, hidden, W, Ht, *, solver: SharedGram, engine, **parts) -> tuple:
    """Return the factors after a sweep."""
    return solver.sweep(V, M, W, Ht, Objective(**parts), engine, hidden)


def sweep(X: torch.Tensor, W: torch.Tensor, H: torch.Tensor, rule: Weighting, engine: TorchEngine) -> tuple:
    parts = {"solver": SharedGram(), "penalties": NO_PENALTIES, "fixed": 0, "engine": engine}
    W, Ht = one_pass([X], None, None, W, [H], **parts, weighting=rule)
    return W, Ht[0]


def milliseconds(function, repeats: int = 15, calls: int = 10) -> float:
    """Return the median time of a call among several in a row, by events."""
    function()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def bandwidth() -> float:
    """Return bytes per second that a copy on the device moves, reads and writes together."""
    A = torch.empty(2**30, dtype=torch.float32, device="cuda").normal_()
    B = torch.empty_like(A)
    return 2 * A.nbytes / (1e-3 * milliseconds(lambda: B.copy_(A)))


def multiplicative(X: torch.Tensor, W: torch.Tensor, H: torch.Tensor) -> None:
    """Lee and Seung's updates, as a recorded graph replays them."""
    H.mul_((X @ W).div_((H @ (W.T @ W)).add_(1e-12)))
    W.mul_((X.T @ H).div_((W @ (H.T @ H)).add_(1e-12)))


def torchnmf_update(X: torch.Tensor, W: torch.Tensor, H: torch.Tensor) -> None:
    """What torchnmf does for the squared loss: both parts of the gradient by automatic differentiation of WH."""
    for factor in (H, W):
        a, b = (t.detach().requires_grad_(t is factor) for t in (H, W))
        product = a @ b.T
        target = a if factor is H else b
        negative, positive = (
            torch.autograd.grad(product, target, output, retain_graph=True)[0] for output in (X, product.detach())
        )
        factor.mul_(negative.div_(positive.add_(1e-12)))


def recorded(function) -> torch.cuda.CUDAGraph:
    """Return a graph of a function, so that launches do not count."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        function()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def error(n: int, m: int, r: int, dtype: torch.dtype) -> float:
    """Return how far a sweep is from one in double precision by the reference code of NumPy, relative."""
    X, W, H = (a.to(dtype) for a in (make(n, m, r), *start(n, m, r)))
    engine, exact = TorchEngine("cuda"), NumPyEngine()
    with engine.running():
        ours = sweep(X, W, H, weighting(m, X), engine)
    doubles = [a.double().cpu().numpy() for a in (X, W, H)]
    thresholds = np.full(m, THRESHOLD)
    with exact.running():
        theirs = one_pass(
            [doubles[0]], None, None, doubles[1], [doubles[2]], weighting=Weighting(Cauchy(), SCALE, thresholds),
            solver=SharedGram(), penalties=NO_PENALTIES, fixed=0, engine=exact,
        )  # fmt: skip
    pairs = ((ours[0], theirs[0]), (ours[1], theirs[1][0]))
    return max(float(np.linalg.norm(a.cpu().numpy() - b) / np.linalg.norm(b)) for a, b in pairs)


def sweeps():
    """Yield the time of one sweep of each algorithm."""
    speed = bandwidth()
    yield "## Milliseconds per sweep\n"
    yield f"A copy moves {speed / 1e12:.2f} TB/s; the floor is two reads of the data. The error is that of the factors"
    yield "after one sweep from a random start, against NumPy's in double precision.\n"
    for dtype, sizes in ((torch.float32, SIZES), (torch.float64, DOUBLE_SIZES)):
        columns = "floor | robust (Triton) | of the floor | robust (plain Torch) | multiplicative | torchnmf | error"
        yield f"| {str(dtype).removeprefix('torch.')} | {columns} |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        for n, m, r in sizes:
            yield "| " + " | ".join(_row(n, m, r, speed, dtype)) + " |"
        yield ""


def _row(n: int, m: int, r: int, speed: float, dtype: torch.dtype) -> list[str]:
    X, W, H = (a.to(dtype) for a in (make(n, m, r), *start(n, m, r)))
    rule = weighting(m, X)
    floor = 2e3 * X.nbytes / speed
    fast, plain = TorchEngine("cuda"), TorchEngine("cuda", use_triton=False)
    with fast.running():
        ours = milliseconds(lambda: sweep(X, W, H, rule, fast))
        portable = milliseconds(lambda: sweep(X, W, H, rule, plain), 2, 2)
        graph = recorded(lambda: multiplicative(X, W.clone(), H.clone()))
        rival = milliseconds(graph.replay)
    del graph
    other = milliseconds(lambda: torchnmf_update(X, W.clone(), H.clone()), 5, 3)
    wrong = error(min(n, 2048), min(m, 2048), r, dtype)
    share = f"{ours / floor:.2f}" if floor > 0.01 else "-"
    numbers = [f"{value:.3f}" for value in (floor, ours)] + [share] + [f"{v:.3f}" for v in (portable, rival, other)]
    return [f"{n} x {m}, r = {r}", *numbers, f"{wrong:.0e}"]


def profile(n_sweeps: int = 5):
    """Yield which kernels a sweep is made of, by the profiler of Torch."""
    yield "## Milliseconds of each kernel of a sweep, 16384 x 16384\n"
    for dtype, r in ((torch.float32, 32), (torch.float32, 64), *((torch.float64, r) for r in (16, 32, 64))):
        X, W, H = (a.to(dtype) for a in (make(16384, 16384, r), *start(16384, 16384, r)))
        rule, engine = weighting(16384, X), TorchEngine("cuda")
        with engine.running():
            milliseconds(lambda: sweep(X, W, H, rule, engine), 1, 5)  # noqa: B023, it is called here
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
                for _ in range(n_sweeps):
                    sweep(X, W, H, rule, engine)
                torch.cuda.synchronize()
        events = sorted(found.key_averages(), key=lambda event: -event.device_time_total)[:8]
        parts = [f"{event.key[:40]} {event.device_time_total / (1e3 * n_sweeps):.3f}" for event in events]
        yield f"- {str(dtype).removeprefix('torch.')}, r = {r}: {'; '.join(parts)}"
    yield ""


def objective():
    """Yield how long it takes to come within 0.1 % of the best objective, with momentum."""
    yield "## Milliseconds to within 0.1 % of the best objective, 16384 x 16384\n"
    yield f"Scale {WIDE_SCALE}, threshold {WIDE_THRESHOLD}."
    yield f"Sweeps with {SOME_PER_COMPONENT} r samples, sweeps with the product of rank r that is closest to these,"
    yield f"half-steps for codes of all, sweeps with all; momentum of both factors. By rank: {SCHEDULES}."
    yield f"Median, lowest and highest of {len(STARTS)} random starts. The best objective is the lowest of"
    yield f"{MOST_SWEEPS} sweeps with all samples from each of them, with {REFERENCE.coordinate_sweeps} coordinate"
    yield "sweeps a half-step. Nothing is compiled or recorded in this time.\n"
    yield "| r | sweeps with all | ms | the same with all samples from the start: sweeps | ms |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for r in (16, 32, 64):
        yield "| " + " | ".join([str(r), *_ways_down(r)]) + " |"
    yield ""


def _ways_down(r: int, close: float = 1e-3) -> list[str]:
    X = make(16384, 16384, r)
    descents = [_Descent(X, r, schedule) for schedule in (SCHEDULES[r], REFERENCE)]
    paths = [[descent.path(seed) for seed in STARTS] for descent in descents]
    best, cells = min(map(min, paths[1])), []
    for descent, of_starts in zip(descents, paths, strict=True):
        found = [next((i for i, value in enumerate(path) if value <= (1 + close) * best), None) for path in of_starts]
        if None in found:
            cells += [f"more than {MOST_SWEEPS}", ""]
            continue
        times = []
        for seed, n_sweeps in zip(STARTS, found, strict=True):
            descent.begin(seed)
            times.append(milliseconds(lambda n=n_sweeps, descent=descent: descent.go(n), 5, 1))
        cells += [_spread(found), _spread(times)]
    return cells


class _Descent:
    """From a random start down, first with some of the samples."""

    def __init__(self, X: torch.Tensor, r: int, schedule: Schedule):
        self.X, self.shape, self.schedule = X, (*X.shape, r), schedule
        self.chosen = slice(None, None, max(1, len(X) // (SOME_PER_COMPONENT * r)))
        W, H = start(*self.shape)
        self.some = _Momentum(X[self.chosen].contiguous(), W, H[self.chosen], schedule.coordinate_sweeps)
        self.all = _Momentum(X, W, H, schedule.coordinate_sweeps)
        product = _Product(self.some.H.clone(), W.clone())
        self.compressed = _Momentum(product, W, self.some.H, schedule.coordinate_sweeps)
        with self.some.engine.running():
            self.sweep_some, self.sweep_all = recorded(self.some.go_on), recorded(self.all.go_on)
            self.sweep_compressed = recorded(self.compressed.go_on)
            self.encode = recorded(self._encode)

    def begin(self, seed: int) -> None:
        """Choose a start."""
        W, H = start(*self.shape, seed)
        for walk, codes in ((self.some, H[self.chosen].contiguous()), (self.all, H)):
            walk.first = (W, codes, W, codes, *walk.first[4:])

    def go(self, n_all: int, watch=lambda: None) -> None:
        """Make sweeps with some of the samples, then with all; `watch` before the first of these and after each."""
        self.all.begin()
        if self.schedule.some_sweeps:
            self.some.begin()
            for _ in range(self.schedule.some_sweeps):
                self.sweep_some.replay()
            if self.schedule.compressed_sweeps:
                self._go_compressed()
            self.encode.replay()
        watch()
        for _ in range(n_all):
            self.sweep_all.replay()
            watch()

    def path(self, seed: int) -> list[float]:
        """Return the objective after each sweep with all samples."""
        path: list[float] = []
        self.begin(seed)
        with self.all.engine.running():
            self.go(MOST_SWEEPS, lambda: path.append(_objective(self.X, self.all.W, self.all.H)))
        return path

    def _go_compressed(self) -> None:
        """Make sweeps with the product that is closest to the samples, in which rejected entries are predicted.

        A few steps find it. To find factors of it that are not negative takes hundreds, which need not read the data.
        """
        X, W, H = self.some.X, self.some.W, self.some.H
        predicted, right = H @ W.T, W
        for _ in range(FILLINGS):
            filled = torch.where((X - predicted).abs_() > WIDE_THRESHOLD, predicted, X)
            left = torch.linalg.qr(filled @ right).Q
            right = filled.T @ left
            predicted = left @ right.T
        self.compressed.begin_with(_Product(left, right), (W, H, W, H, *self.compressed.first[4:]))
        for _ in range(self.schedule.compressed_sweeps):
            self.sweep_compressed.replay()
        self.some.keep(self.compressed.state)

    def _encode(self) -> None:
        """Go on with the basis that some samples gave, and codes of all."""
        W, H = self.some.W, self.some.H.mean(dim=0).expand(len(self.X), -1).contiguous()
        for _ in range(self.schedule.encodings):
            H = self.all.half_step(self.X, W, H, SharedGram(REFERENCE.coordinate_sweeps))
        self.all.keep((W, H, W, H, *self.all.first[4:]))


def _spread(values: list[float]) -> str:
    """Return median, lowest and highest."""
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


class _Product:
    """Data that is a product of two factors, left right', (n, r) and (m, r)."""

    def __init__(self, left: torch.Tensor, right: torch.Tensor):
        self.left, self.right, self.shape = left, right, (len(left), len(right))

    @property
    def T(self) -> "_Product":
        return _Product(self.right, self.left)

    def __getitem__(self, cut: tuple[slice, slice]) -> torch.Tensor:
        return self.left[cut[0]] @ self.right[cut[1]].T


class _Momentum:
    """Half-steps that repeat a share of the last move of each factor, after Ang and Gillis (2019).

    Some of the entries are checked: when their objective rises, the next sweep repeats nothing. What is known is kept
    in the same arrays, so that a sweep can be recorded.
    """

    def __init__(self, X: torch.Tensor | _Product, W: torch.Tensor, H: torch.Tensor, coordinate_sweeps: int):
        self.X, self.engine, self.solver = X, TorchEngine("cuda"), SharedGram(coordinate_sweeps)
        self.threshold = _one_threshold(WIDE_THRESHOLD, 1, W)
        every = [-(-size // CHECKED) for size in X.shape]
        self.checked = tuple(slice(None, None, step) for step in every)
        self.checked_data = X[self.checked] / WIDE_SCALE
        numbers = (torch.tensor(value, device="cuda") for value in (torch.inf, MOMENTUM, 1.0))
        self.first = (W, H, W, H, *numbers)
        self.state = tuple(array.clone() for array in self.first)

    @property
    def W(self) -> torch.Tensor:
        return self.state[0]

    @property
    def H(self) -> torch.Tensor:
        return self.state[1]

    def begin(self) -> None:
        """Go to the start."""
        self.keep(self.first)

    def begin_with(self, product: _Product, state: tuple[torch.Tensor, ...]) -> None:
        """Go to a state, with other data."""
        self.X.left.copy_(product.left)
        self.X.right.copy_(product.right)
        self.checked_data.copy_(self.X[self.checked]).div_(WIDE_SCALE)
        self.keep(state)

    def go_on(self) -> None:
        """Make a sweep."""
        W, H, ahead_W, ahead_H, last_loss, share, limit = self.state
        new_H = self.half_step(self.X, ahead_W, ahead_H)
        onward_H = _onward(new_H, H, share)
        new_W = self.half_step(self.X.T, onward_H, ahead_W)
        loss = self._loss(new_W, onward_H)
        falls = loss < last_loss
        repeated = share * falls
        _onward(new_W, W, repeated, out=ahead_W)
        _onward(new_H, H, repeated, out=ahead_H)
        new_share = torch.where(falls, torch.minimum(GROWTH * share, limit), share / SHRINKAGE)
        new_limit = torch.where(falls, torch.clamp(1.01 * limit, max=1.0), share)
        self.keep((new_W, new_H, ahead_W, ahead_H, loss, new_share, new_limit))

    def keep(self, state: tuple[torch.Tensor, ...]) -> None:
        """Take a state for one's own."""
        for kept, array in zip(self.state, state, strict=True):
            if kept is not array:
                kept.copy_(array)

    def half_step(
        self, X: torch.Tensor | _Product, basis: torch.Tensor, codes: torch.Tensor, solver=None
    ) -> torch.Tensor:
        """Return codes of the rows of X, improved in a basis that stays."""
        if isinstance(X, _Product):
            return self._half_step_of_product(X, basis, codes)
        parts = {"solver": solver or self.solver, "penalties": NO_PENALTIES, "fixed": basis.shape[1]}
        weighting = Weighting(Cauchy(), WIDE_SCALE, self.threshold.expand(X.shape[1]))
        parts |= {"weighting": weighting, "engine": self.engine}
        return one_pass([X], None, None, basis, [codes], **parts)[1][0]

    def _half_step_of_product(self, X: _Product, basis: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return the same by least squares: all entries of a product are right."""
        gram, products = (basis.T @ torch.cat([basis, X.right], dim=1)).tensor_split(2, dim=1)
        descent = torch.addmm(X.left @ products.T, codes, gram, alpha=-1)
        curvature = torch.diagonal(gram).expand_as(descent)
        move = self.engine.kernels.propose(gram, descent, curvature, codes, self.solver.max_iter)
        return (codes + move).clamp_(min=0)

    def _loss(self, W: torch.Tensor, H: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of some entries."""
        rows, columns = self.checked
        ratio = torch.addmm(self.checked_data, H[rows], W[columns].T, alpha=-1 / WIDE_SCALE)
        limit = WIDE_THRESHOLD / WIDE_SCALE
        return ratio.clamp_(-limit, limit).square_().log1p_().mean()


def _onward(
    new: torch.Tensor, last: torch.Tensor, share: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a factor moved on by a share of its last move."""
    return torch.lerp(last, new, 1 + share, out=out).clamp_(min=0)


def _objective(X: torch.Tensor, W: torch.Tensor, H: torch.Tensor) -> float:
    """Return the truncated Cauchy objective of all entries."""
    totals = []
    for rows, codes in zip(X.split(4096), H.split(4096), strict=True):
        E = torch.addmm(rows, codes, W.T, alpha=-1).abs_().clamp_(max=WIDE_THRESHOLD)
        totals.append(E.div_(WIDE_SCALE).square_().log1p_().sum(dtype=torch.float64))
    return float(sum(totals))


def fit():
    """Yield the time of whole fits."""
    yield "## Seconds of a whole fit: `TruncatedCauchyNMF(r).fit(X)`, 20 % outliers\n"
    yield "| size | float32 | float64 | error to the clean data |"
    yield "| --- | ---: | ---: | ---: |"
    for n, m, r in ((400, 1024, 10), (8192, 8192, 32), (16384, 16384, 32), (16384, 16384, 64)):
        X = make(n, m, r)
        doubles, _ = _fitted(X.double(), r, 3)
        seconds, model = _fitted(X, r, 3)
        yield f"| {n} x {m}, r = {r} | {seconds:.2f} | {doubles:.2f} | {_excess(model, X, n, m, r):.2%} |"
    yield ""


def host(n: int = 8192, m: int = 8192, r: int = 32):
    """Yield the time of a whole fit by the CPU engine with two threads, beside that of the GPU (minutes)."""
    X = make(n, m, r)
    (seconds, ours), (slow, other) = _fitted(X, r, 3), _fitted(X.cpu().numpy(), r, 1)
    errors = " and ".join(f"{_excess(model, X, n, m, r):.2%}" for model in (ours, other))
    yield f"## The same of {n} x {m}, r = {r}, by two threads of the CPU\n"
    yield f"{slow:.1f} s, {slow / seconds:.0f} times as long as the GPU takes; errors of GPU and CPU {errors}.\n"


def _fitted(X, r: int, repeats: int):
    """Return the median seconds of a fit, and the model; before, a fit of all or, on the CPU, less data compiles."""
    from threadpoolctl import threadpool_limits

    times, on_gpu = [], isinstance(X, torch.Tensor)
    with warnings.catch_warnings(), threadpool_limits(limits=2):
        warnings.simplefilter("ignore")
        for data in [X if on_gpu else X[: len(X) // 4]] + [X] * repeats:
            begin = time.perf_counter()
            model = TruncatedCauchyNMF(r, random_state=0).fit(data)
            if on_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]), model


def _excess(model, X: torch.Tensor, n: int, m: int, r: int) -> float:
    """Return the relative error of the reconstruction to the data without noise and outliers, of some samples."""
    generator = torch.Generator("cuda").manual_seed(0)
    codes, basis = (torch.rand((size, r), generator=generator, device="cuda") for size in (n, m))
    truth = codes[:500] @ basis.T + 0.025
    found = torch.as_tensor(model.inverse_transform(model.transform(X[:500].cpu().numpy())), device="cuda")
    return float((found - truth).norm() / truth.norm())


def many(n_fits: int = 9):
    """Yield how long many fits take, by the number that run at a time."""
    n_init = n_fits - 1  # and the one that is most like the others once more
    yield f"## Seconds of {n_fits} fits: `consensus(X, r, n_init={n_init}, n_jobs=...)`\n"
    yield "The components are the same, bit by bit, however many run at a time.\n"
    yield "| size | one after the other | 2 at a time | 4 at a time | CPU, 2 threads |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for n, m, r in ((400, 1024, 10), (4096, 4096, 32)):
        X = make(n, m, r)
        _, *found = (_agreed(X, r, n_init, n_jobs) for n_jobs in (1, 1, 2, 4))  # the first compiles
        assert all(np.array_equal(components, found[0][1]) for _, components in found)
        slow = f"{_on_host(X, r, n_init):.1f}" if n < 4096 else ""
        yield f"| {n} x {m}, r = {r} | " + " | ".join([*(f"{seconds:.2f}" for seconds, _ in found), slow]) + " |"
    yield ""


def _agreed(X, r: int, n_init: int, n_jobs: int):
    """Return the seconds that a consensus takes, and its components."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    components = consensus(X, r, n_init=n_init, random_state=0, n_jobs=n_jobs).components
    return time.perf_counter() - begin, components


def _on_host(X: torch.Tensor, r: int, n_init: int) -> float:
    """Return the seconds that a consensus takes with two threads of the CPU; the first compiles and does not count."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=2):
        return [_agreed(X.cpu().numpy(), r, n_init, 1)[0] for _ in range(2)][-1]


FIRST_FIT = """
import time, torch
from robustnmf import TruncatedCauchyNMF
X = torch.rand((400, 10), device="cuda") @ torch.rand((10, 1024), device="cuda")
X += 0.05 * torch.rand(X.shape, device="cuda")
X[torch.rand(X.shape, device="cuda") < 0.05] = 10.0
torch.cuda.synchronize()
begin = time.perf_counter()
TruncatedCauchyNMF(10, random_state=0).fit(X)
torch.cuda.synchronize()
print(f"{time.perf_counter() - begin:.2f}")
"""


def first():
    """Yield how long the first fit of a process takes."""
    yield "## Seconds of the first fit of a process, 400 x 1024, r = 10, 5 % outliers\n"
    yield "| kernels | seconds |"
    yield "| --- | ---: |"
    with tempfile.TemporaryDirectory() as folder:
        for kernels in ("to be compiled", "on disk from an earlier process"):
            command = [sys.executable, "-W", "ignore", "-c", FIRST_FIT]
            environment = os.environ | {"TRITON_CACHE_DIR": folder}
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            yield f"| {kernels} | {run.stdout.strip()} |"
    yield ""


def compiled():
    """Yield what `torch.compile` would make of the portable path: the passes over the data of a half-step."""
    yield "## What torch.compile would save the portable path: one half-step's pass over float64 data, r = 32\n"
    yield "| size | Torch, ms | compiled, ms | seconds to compile | half-steps that take as long |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for size in (1024, 4096, 8192):
        yield "| " + " | ".join(_compiled_row(size)) + " |"
    yield ""


def _compiled_row(size: int) -> list[str]:
    X, (W, H) = make(size, size, 32).double(), (factor.double() for factor in start(size, size, 32))
    rule = weighting(size, X)

    def half_step() -> tuple:
        residual = X - H @ W.T
        Q = rule.weights(residual, None, torch)
        return (Q * residual) @ W, Q @ (W * W)

    torch.compiler.reset()
    faster = torch.compile(half_step)
    begin = time.perf_counter()
    faster()
    torch.cuda.synchronize()
    spent = time.perf_counter() - begin
    eager, quick = (milliseconds(function, 5, 5) for function in (half_step, faster))
    return [f"{size} x {size}", f"{eager:.2f}", f"{quick:.2f}", f"{spent:.1f}", f"{1e3 * spent / (eager - quick):.0f}"]


def streaming(gigabytes: float = 16.0):
    """Yield how long a pass over data of the host takes, beside copying it, and how well a fit of it ends."""
    m, r = 16384, 32
    n = int(gigabytes * 1e9 / 4 / m)
    X, basis = torch.empty((n, m)), torch.rand((m, r), generator=torch.Generator("cuda").manual_seed(3), device="cuda")
    torch.cuda.cudart().cudaHostRegister(X.data_ptr(), X.nbytes, 0)  # pages come faster locked than one by one
    for i, rows in enumerate(torch.arange(n).split(2**13)):
        X[rows[0] : rows[-1] + 1] = _planted(len(rows), basis, i)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    engine = TorchTileEngine("cuda")
    W, H = start(n, m, r)
    H *= X[:256].median() / (H[:256] @ W.T).median().cpu()  # of the size of the data
    parts = {"solver": SharedGram(), "penalties": NO_PENALTIES, "fixed": 0, "engine": engine}
    with engine.running():
        V = engine.split(X)
        Ht = engine.split(H, like=V)

        def timed(function) -> float:
            function()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            function()
            torch.cuda.synchronize()
            return time.perf_counter() - begin

        copying = timed(lambda: engine.map(lambda Y, *, xp: Y[:1, :1].clone(), V))
        whole = timed(lambda: one_pass(V, None, None, W, Ht, weighting=weighting(m, W), **parts))
        begin = time.perf_counter()
        plan, method = Staged(), resolve("truncated-cauchy", "default").method
        result = plan(V, None, W, Ht, method, engine, max_iter=200, tol=1e-4, scale_floor=1e-7)
        torch.cuda.synchronize()
        fitting = time.perf_counter() - begin
        most = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.cudart().cudaHostUnregister(X.data_ptr())
    cosines = match_components(basis.T.cpu().numpy(), result.state.W.T.cpu().numpy()).similarities
    yield f"## Streaming {X.nbytes / 1e9:.0f} GB from the host: {n} x {m}, r = {r}, 20 % outliers\n"
    yield "| | seconds |"
    yield "| --- | ---: |"
    yield f"| copying alone ({X.nbytes / copying / 1e9:.0f} GB/s) | {copying:.2f} |"
    yield f"| a sweep over all of it | {whole:.2f} |"
    yield f"| a whole alternation of the default, {len(result.history) - 1} iterations | {fitting:.1f} |"
    yield f"\nMost memory of the device that arrays took: {most:.1f} GB. The components that were planted are found"
    yield f"with cosines of {cosines.min():.4f} and more.\n"


def _planted(n: int, basis: torch.Tensor, seed: int) -> torch.Tensor:
    """Return samples made of known components, with noise and gross outliers, (n, m)."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, device="cuda")

    # Codes with zeros, so that no other components would do as well.
    codes = draw(n, basis.shape[1]) * (draw(n, basis.shape[1]) < 0.3)
    X = codes @ basis.T + 0.05 * draw(n, len(basis))
    X[draw(n, len(basis)) < OUTLIERS] = float(basis.shape[1])
    return X


if __name__ == "__main__":
    main()
