"""The GPU engine in use: other types, interrupts, memory of large data and of many fits, compilation of each kind.

    python benchmarks/gpu_use.py [--parts types interrupts growth thousand memory kinds batch large stream]

It prints tables; `benchmarks/results/gpu_use.md` holds those that were measured.
"""

import argparse
import gc
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from robustnmf import TruncatedCauchyNMF
from robustnmf.engines import clear_cache
from robustnmf.selection import select_rank
from robustnmf.selection.stability import bootstrap_components, consensus

PARTS = ("types", "interrupts", "growth", "thousand", "memory", "kinds", "batch", "large", "stream")
N_INTERRUPTS, N_FITS = 30, 64
GIGABYTE = 1e9


def data(n: int, m: int, r: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return data of low rank with noise and 5 % gross errors on the GPU, (n, m), made block by block."""
    generator = torch.Generator("cuda").manual_seed(seed)
    basis = torch.rand((r, m), generator=generator, device="cuda")
    X = torch.empty((n, m), dtype=dtype, device="cuda")
    for block in X.split(max(1, 2**26 // m)):
        clean = torch.rand((len(block), r), generator=generator, device="cuda") @ basis
        clean += 0.05 * torch.rand(block.shape, generator=generator, device="cuda")
        wrong = torch.rand(block.shape, generator=generator, device="cuda") < 0.05
        block.copy_(clean.masked_fill_(wrong, float(r)))
    torch.cuda.synchronize()
    return X


def fitted(X: torch.Tensor, r: int, **options) -> TruncatedCauchyNMF:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TruncatedCauchyNMF(r, random_state=0, **options).fit(X)


def types():
    """Yield what a notebook does: batches on the GPU, another default type."""
    yield "## Batches on the GPU, and another default type\n"
    X = data(400, 256, 5)
    for name, work in {
        "partial_fit of tensors on the GPU": lambda: TruncatedCauchyNMF(5).partial_fit(X).partial_fit(X),
        "torch.set_default_dtype(torch.float64)": lambda: _with_default(X),
    }.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work()
            yield f"- {name}: works"
        except Exception as error:
            yield f"- {name}: {type(error).__name__}: {str(error)[:300]}"


def _with_default(X: torch.Tensor) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        fitted(X, 5)
        fitted(X.double(), 5)
    finally:
        torch.set_default_dtype(torch.float32)


def interrupts():
    """Yield what is left after interrupts at random moments of a fit."""
    yield f"\n## {N_INTERRUPTS} interrupts at random moments of a fit\n"
    X, rng = data(2000, 1000, 10), random.Random(0)
    reference = fitted(X, 10).components_
    begin = time.perf_counter()
    fitted(X, 10)
    seconds, hit, same, failed = time.perf_counter() - begin, 0, 0, []
    for _ in range(N_INTERRUPTS):
        timer = threading.Timer(rng.uniform(0, seconds), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            fitted(X, 10)
            timer.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            hit += 1
        timer.cancel()
        try:
            same += bool((fitted(X, 10).components_ == reference).all())
        except Exception as error:
            failed.append(f"{type(error).__name__}: {str(error)[:200]}")
    yield f"A fit takes {seconds:.2f} s. {hit} fits were interrupted; {same} times the next was the same bit for bit."
    yield from failed[:3]
    yield f"Memory after that: {_in_use()}"


def _in_use() -> str:
    gc.collect()
    allocated, reserved = torch.cuda.memory_allocated() / GIGABYTE, torch.cuda.memory_reserved() / GIGABYTE
    return f"{allocated:.2f} GB allocated, {reserved:.2f} GB reserved"


def growth():
    """Yield how much memory the process holds after many fits of different kinds."""
    yield "\n## Memory held after many fits\n"
    X = data(400, 1024, 10)
    fitted(X, 10)
    yield f"- after one fit of 400 x 1024: {_in_use()}"
    begin = time.perf_counter()
    for _ in range(100):
        fitted(X, 10)
    yield f"- after 100 more ({(time.perf_counter() - begin) / 100:.3f} s each): {_in_use()}"
    for r in range(2, 40):
        fitted(X, r)
    yield f"- after ranks 2 to 39: {_in_use()}"
    for k in range(40):
        fitted(data(300 + 7 * k, 400 + 13 * k, 5), 5)
    yield f"- after forty shapes: {_in_use()}"


def thousand():
    """Yield how much memory the process holds along a thousand fits, each of another shape and rank."""
    yield "\n## Memory held along a thousand fits of different shapes and ranks\n"
    rng, begin = random.Random(0), time.perf_counter()
    for k in range(1, 1001):
        n, m, r = rng.randint(100, 600), rng.randint(100, 1200), rng.randint(2, 39)
        fitted(data(n, m, r, seed=k), r)
        if k in (1, 10, 30) or k % 100 == 0:
            yield f"- after {k}: {_in_use()}, {time.perf_counter() - begin:.0f} s"


def memory(sizes=((20_000, 2_000, 20), (100_000, 5_000, 100), (120_000, 10_000, 8), (500_000, 10_000, 8))):
    """Yield the most memory that a fit takes beyond its data."""
    yield "\n## Memory beyond the data\n"
    yield "| size | data, GB | beyond it | after the fit | seconds |\n| --- | ---: | ---: | ---: | ---: |"
    yield from _memory_of_each(sizes)


def large():
    """Yield the same of data that takes most of the device."""
    yield from _memory_of_each([(3_000_000, 10_000, 8)])


def _memory_of_each(sizes):
    for n, m, r in sizes:
        gc.collect()
        clear_cache()
        X = data(n, m, r)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        begin = time.perf_counter()
        model = fitted(X, r)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        beyond, after = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
        yield (
            f"| {n} x {m}, r = {r} | {X.nbytes / GIGABYTE:.2f} | {beyond / X.nbytes:.2f} | "
            f"{after / X.nbytes:.2f} | {seconds:.1f} |"
        )
        del X, model


def kinds():
    """Yield how long the first fit of each kind takes in this process."""
    yield "\n## Seconds of the first fit of each kind\n"
    yield "| kind | first | second |\n| --- | ---: | ---: |"
    X = data(1000, 600, 8)
    gaps = X.clone()
    gaps[::7, ::5] = torch.nan
    cases = {
        "rank 8": (X, 8, {}),
        "rank 20": (X, 20, {}),
        "rank 50": (X, 50, {}),
        "rank 100": (X, 100, {}),
        "gaps": (gaps, 8, {}),
        "float64": (X.double(), 8, {}),
        "uint8": ((20 * X).to(torch.uint8), 8, {}),
        "odd shape": (X[:997, :599], 8, {}),
        "large": (data(4000, 3000, 8), 8, {}),
        "large, gaps": (_with_gaps(4000, 3000, 8), 8, {}),
    }
    for name, (A, r, options) in cases.items():
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            fitted(A, r, **options)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        yield f"| {name} | {times[0]:.2f} | {times[1]:.2f} |"


def batch():
    """Yield how long a small fit takes, and many of them, one after the other and at a time.

    Without NVIDIA's service, which is not started if CUDA_VISIBLE_DEVICES is set, processes use the GPU in turn.
    """
    cores = os.cpu_count()
    yield f"\n## {N_FITS} fits of 400 x 1024, r = 10, by `consensus`\n"
    X, found, one_by_one = data(400, 1024, 10), {}, 0.0
    yield f"- a fit alone: {median(_seconds(fitted, X, 10) for _ in range(12)):.3f} s"
    jobs = {"one after the other": 1, "processes, which start": cores, "processes again": cores}
    how: dict[str, Any] = {"n_init": N_FITS, "estimator": TruncatedCauchyNMF(), "random_state": 0}
    for name, n_jobs in jobs.items():
        seconds = _seconds(lambda n_jobs=n_jobs: found.update({n_jobs: consensus(X, 10, n_jobs=n_jobs, **how)}))
        one_by_one = one_by_one or seconds
        yield f"- {name}, n_jobs={n_jobs}: {seconds:.2f} s, {one_by_one / seconds:.1f} times as fast"
    alone, together = found[1], found[cores]
    same = (alone.similarity == together.similarity).all() and (alone.components == together.components).all()
    yield f"- the fits are the same bit for bit: {bool(same)}"
    boot = partial(bootstrap_components, X, alone.model, n_boot=N_FITS, random_state=0)
    splits = partial(select_rank, X, range(6, 14), n_splits=8, estimator=how["estimator"], random_state=0)
    for name, work in {"bootstrap_components": boot, "select_rank, 8 ranks and 8 splits": splits}.items():
        seconds, times = _seconds(work), [_seconds(work, n_jobs=cores) for _ in range(2)][1]
        yield f"- {name}: {seconds:.2f} s, with n_jobs={cores} {times:.2f} s, {seconds / times:.1f} times as fast"


def _seconds(work: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    begin = time.perf_counter()
    work(*arguments, **options)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def stream(n: int = 500_000, m: int = 10_000, r: int = 8):
    """Yield how data of the host is fitted by the GPU, tile by tile."""
    yield "\n## Data of the host, tile by tile\n"
    X = data(n, m, r).cpu()
    clear_cache()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    fitted(X, r, device="cuda")
    seconds, peak = time.perf_counter() - begin, torch.cuda.max_memory_allocated()
    yield f"- {n} x {m}, r = {r}: {seconds:.1f} s, at most {peak / X.nbytes:.2f} times the data on the GPU"


def _with_gaps(n: int, m: int, r: int) -> torch.Tensor:
    return data(n, m, r).masked_fill_(torch.rand(n, m, device="cuda") < 0.05, torch.nan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA GPU, and Torch sees none.")
    for part in options.parts:
        for line in globals()[part]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
