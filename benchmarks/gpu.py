"""How fast a robust sweep is on a CUDA GPU, against multiplicative NMF and the algorithm of torchnmf.

    python benchmarks/gpu.py [--out benchmarks/results/gpu.md] [--parts sweeps objective fit streaming]

Every time is a median, by CUDA events. The floor of a sweep is two reads of the data at the bandwidth that a copy on
the same GPU reaches. Before it is timed, a sweep is compared with one in double precision by NumPy's reference code.
"""

import argparse
import statistics
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from robustnmf import TruncatedCauchyNMF
from robustnmf.engines import NumPyEngine
from robustnmf.engines.torch_engine import TorchEngine
from robustnmf.halfquadratic import Method
from robustnmf.losses import Cauchy
from robustnmf.outliers import NoRejection
from robustnmf.penalties import NO_PENALTIES
from robustnmf.scales import FixedScale
from robustnmf.solvers import SharedGram, one_pass
from robustnmf.weighting import Weighting

SIZES = [(16384, 16384, 16), (16384, 16384, 32), (16384, 16384, 64), (200_000, 2_000, 32), (400, 1024, 40)]
SCALE, CUT, OUTLIERS = 0.1, 1.0, 0.2
# From a random start residuals are larger: a scale and a cut that let clean entries in.
WIDE_SCALE, WIDE_CUT = 1.0, 8.0
PARTS = ("sweeps", "objective", "fit", "streaming")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA GPU, and Torch sees none.")
    lines = [
        f"# On one GPU\n\n{torch.cuda.get_device_name()}, Torch {torch.__version__}, `python benchmarks/gpu.py`.\n"
    ]
    for part in options.parts:
        for line in globals()[part]():
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


def start(n: int, m: int, r: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(1)
    return tuple(torch.rand((size, r), generator=generator, device="cuda") for size in (m, n))


def weighting(m: int, like: torch.Tensor) -> Weighting:
    return Weighting(Cauchy(), SCALE, torch.full((m,), CUT, dtype=like.dtype, device=like.device))


def sweep(X: torch.Tensor, W: torch.Tensor, H: torch.Tensor, engine: TorchEngine, **options) -> tuple:
    parts = {"solver": SharedGram(), "penalties": NO_PENALTIES, "fixed": 0, "engine": engine}
    parts |= {"weighting": weighting(X.shape[1], X)} | options
    V = [X]
    W, Ht = one_pass.sweep(V, None, None, W, [H], **parts)
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
    """Lee and Seung's updates in single precision, as a recorded graph replays them."""
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


def error(n: int, m: int, r: int) -> float:
    """Return how far a sweep is from one in double precision by the reference code of NumPy, relative."""
    X, (W, H) = make(n, m, r), start(n, m, r)
    engine, exact = TorchEngine("cuda"), NumPyEngine()
    with engine.running():
        ours = sweep(X, W, H, engine)
    doubles = [a.double().cpu().numpy() for a in (X, W, H)]
    cut = np.full(m, CUT)
    with exact.running():
        theirs = one_pass.sweep(
            [doubles[0]], None, None, doubles[1], [doubles[2]], weighting=Weighting(Cauchy(), SCALE, cut),
            solver=SharedGram(), penalties=NO_PENALTIES, fixed=0, engine=exact,
        )  # fmt: skip
    pairs = ((ours[0], theirs[0]), (ours[1], theirs[1][0]))
    return max(float(np.linalg.norm(a.cpu().numpy() - b) / np.linalg.norm(b)) for a, b in pairs)


def sweeps():
    """Yield the time of one sweep of each algorithm."""
    speed = bandwidth()
    yield "## Milliseconds per sweep, float32\n"
    yield f"A copy moves {speed / 1e12:.2f} TB/s; the floor is two reads of the data. The error is that of the factors"
    yield "after one sweep from a random start, against double precision.\n"
    yield "| size | floor | robust (Triton) | of the floor | robust (plain Torch) | multiplicative | torchnmf | error |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for n, m, r in SIZES:
        yield "| " + " | ".join(_row(n, m, r, speed)) + " |"
    yield ""


def _row(n: int, m: int, r: int, speed: float) -> list[str]:
    X, (W, H) = make(n, m, r), start(n, m, r)
    floor = 2e3 * X.nbytes / speed
    fast, plain = TorchEngine("cuda"), TorchEngine("cuda", use_triton=False)
    with fast.running():
        ours = milliseconds(lambda: sweep(X, W, H, fast))
        portable = milliseconds(lambda: sweep(X, W, H, plain), 2, 2)
        graph = recorded(lambda: multiplicative(X, W.clone(), H.clone()))
        rival = milliseconds(graph.replay)
    del graph
    other = milliseconds(lambda: torchnmf_update(X, W.clone(), H.clone()), 5, 3)
    wrong = error(min(n, 2048), min(m, 2048), r)
    share = f"{ours / floor:.2f}" if floor > 0.01 else "-"
    numbers = [f"{value:.3f}" for value in (floor, ours)] + [share] + [f"{v:.3f}" for v in (portable, rival, other)]
    return [f"{n} x {m}, r = {r}", *numbers, f"{wrong:.0e}"]


def objective():
    """Yield how long it takes to come within 0.1 % of the best objective, with momentum and restarts."""
    yield f"## Milliseconds to within 0.1 % of the best objective, 16384 x 16384, scale {WIDE_SCALE}, cut {WIDE_CUT}\n"
    yield "| r | sweeps | ms |"
    yield "| --- | ---: | ---: |"
    for r in (16, 32, 64):
        path = list(_descent(16384, 16384, r))
        best = min(value for value, _ in path)
        first = path[0][0]
        reached = next(i for i, (value, _) in enumerate(path) if value - best <= 1e-3 * best)
        yield f"| {r} | {reached} | {path[reached][1]:.0f} |"
        assert best < first
    yield ""


def _descent(n: int, m: int, r: int, iterations: int = 250):
    """Yield the objective after each sweep, and the milliseconds spent on sweeps and momentum until then."""
    X, (W, H) = make(n, m, r), start(n, m, r)
    some = torch.randint(n * m, (2**17,), device="cuda")
    entries = torch.stack([some // m, some % m])
    values = X[entries[0], entries[1]]
    engine, spent = TorchEngine("cuda"), 0.0

    def sampled(W, H):  # what the momentum is judged by
        E = (values - (H[entries[0]] * W[entries[1]]).sum(1)).abs().clamp(max=WIDE_CUT)
        return torch.log1p((E / WIDE_SCALE) ** 2).mean()

    with engine.running():
        wide = Weighting(Cauchy(), WIDE_SCALE, torch.full((m,), WIDE_CUT, device="cuda"))
        sweep(X, W, H, engine, weighting=wide)  # compiles
        last, momentum, lowest = (W, H), 0.5, torch.inf
        yield _objective(X, W, H), 0.0
        for i in range(iterations):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            moved = [(new + momentum * (new - old)).clamp(min=0) for new, old in zip((W, H), last, strict=True)]
            last = (W, H)
            W, H = sweep(X, *moved, engine, weighting=wide)
            if i % 4 == 0:
                value = float(sampled(W, H))
                momentum = min(1.2 * momentum, 0.95) if value < lowest else 0.3
                lowest = value
            end.record()
            end.synchronize()
            spent += begin.elapsed_time(end)
            yield _objective(X, W, H), spent


def _objective(X: torch.Tensor, W: torch.Tensor, H: torch.Tensor) -> float:
    """Return the truncated Cauchy objective of all entries."""
    total = 0.0
    for rows in torch.arange(len(X), device="cuda").split(4096):
        E = (X[rows] - H[rows] @ W.T).abs().clamp(max=WIDE_CUT)
        total += float(torch.log1p((E / WIDE_SCALE) ** 2).sum(dtype=torch.float64))
    return total


def fit():
    """Yield the time of whole fits, and that of the CPU engine with two threads."""
    yield "## Seconds of a whole fit: `TruncatedCauchyNMF(r).fit(X)`, 20 % outliers\n"
    yield "| size | GPU | CPU, 2 threads | ratio | error to the clean data, GPU and CPU |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for n, m, r, with_cpu in ((16384, 16384, 32, False), (16384, 16384, 64, False), (4096, 4096, 32, True)):
        X = make(n, m, r)
        seconds, model = _fitted(X, r, 3)
        cells = [f"{n} x {m}, r = {r}", f"{seconds:.2f}", "", "", f"{_excess(model, X, n, m, r):.2%}"]
        if with_cpu:
            host = X.cpu().numpy()
            slow, other = _fitted(host, r, 1)
            cells[2:4] = f"{slow:.1f}", f"{slow / seconds:.0f}"
            cells[4] += f", {_excess(other, X, n, m, r):.2%}"
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _fitted(X, r: int, repeats: int):
    """Return the median seconds of a fit, and the model; the first fit on a GPU compiles and does not count."""
    from threadpoolctl import threadpool_limits

    times = []
    with warnings.catch_warnings(), threadpool_limits(limits=2):
        warnings.simplefilter("ignore")
        for _ in range(repeats + isinstance(X, torch.Tensor)):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            model = TruncatedCauchyNMF(r, random_state=0).fit(X)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    return statistics.median(times[-repeats:]), model


def _excess(model, X: torch.Tensor, n: int, m: int, r: int) -> float:
    """Return the relative error of the reconstruction to the data without noise and outliers, of some samples."""
    generator = torch.Generator("cuda").manual_seed(0)
    codes, basis = (torch.rand((size, r), generator=generator, device="cuda") for size in (n, m))
    truth = codes[:500] @ basis.T + 0.025
    found = torch.as_tensor(model.inverse_transform(model.transform(X[:500].cpu().numpy())), device="cuda")
    return float((found - truth).norm() / truth.norm())


def streaming(gigabytes: float = 16.0):
    """Yield how much of the time of a pass over data of the host is copying, and how much is hidden behind it."""
    m, r = 16384, 32
    n = int(gigabytes * 2**30 / 4 / m)
    block = make(2**14, m, r, "cuda").cpu()
    X = block.repeat(n // len(block), 1)
    engine = TorchEngine("cuda", memory=2**30)
    W, H = start(len(X), m, r)
    method = Method(Cauchy(), FixedScale(SCALE), NoRejection(), SharedGram())
    parts = {"solver": method.solver, "penalties": NO_PENALTIES, "fixed": 0, "engine": engine}
    torch.cuda.reset_peak_memory_stats()
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

        copying = timed(lambda: engine.map(lambda Y, *, xp: Y[:1, :1], V))
        whole = timed(lambda: one_pass.sweep(V, None, None, W, Ht, weighting=weighting(m, W), **parts))
        here = [V[0].cuda()]
        working = len(V) * timed(
            lambda: one_pass.sweep(here, None, None, W, Ht[:1], weighting=weighting(m, W), **parts)
        )
        most = torch.cuda.max_memory_allocated() / 2**30
    yield f"## Streaming {X.nbytes / 2**30:.0f} GiB from the host, at most 1 GiB of data on the device\n"
    yield "| | seconds |"
    yield "| --- | ---: |"
    yield f"| copying alone ({X.nbytes / copying / 1e9:.0f} GB/s) | {copying:.2f} |"
    yield f"| a sweep of what is on the device already, as many times | {working:.2f} |"
    yield f"| a sweep over all of it | {whole:.2f} |"
    yield f"\nOf the shorter of the two, {100 * (copying + working - whole) / min(copying, working):.0f} % is hidden. "
    yield f"Most memory of the device, a block for the comparison included: {most:.1f} GiB.\n"


if __name__ == "__main__":
    main()
