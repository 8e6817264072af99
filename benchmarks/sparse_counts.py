"""Sparse counts from planted components, with gross errors: time, memory and what is found, beside scikit-learn.

``python benchmarks/sparse_counts.py`` (``make sparse``) fits counts of 100 000 samples and 20 000 features, of which
2 % are stored, and writes ``benchmarks/results/sparse_counts.md``. Each fit runs in a process of its own, so that its
peak of memory is its own; ``--small`` takes data of a hundredth of the entries. Data: components of which a fifth of
the features are positive, codes of which a third are, Poisson noise; 1 % of the stored entries are then 20 to 200 times
as large as a large count is.
"""

import argparse
import json
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import NMF

from robustnmf import RobustNMF

RESULTS = Path(__file__).parent / "results" / "sparse_counts.md"
METHODS = ("robustnmf", "scikit-learn", "scikit-learn, without errors")
# Shapes and densities of data that is fitted as it is and made dense.
BREAK_EVEN, DENSITIES = ((500, 400), (1500, 1000), (4000, 2500), (8000, 5000)), (0.01, 0.05, 0.1, 0.2)
SHAPES = {"large": (100_000, 20_000, 20, 0.02), "small": (10_000, 2_000, 10, 0.02)}

Matrix = NDArray[Any]


def planted(n: int, m: int, rank: int, stored: float, seed: int = 0) -> tuple[Any, Any, Matrix]:
    """Return counts with gross errors and without, and the components, (rank, m).

    A Poisson variable is a sum of Poisson variables, one for each component, whose counts fall on features at random:
    so no dense matrix is needed.
    """
    rng = np.random.default_rng(seed)
    W = rng.gamma(0.5, 1, (rank, m)) * (rng.random((rank, m)) < 0.2)
    H = rng.gamma(0.5, 1, (n, rank)) * (rng.random((n, rank)) < 0.3)
    some = H[rng.choice(n, min(n, 300), replace=False)] @ W
    low, high = 1e-6, 1e6
    for _ in range(50):
        size = np.sqrt(low * high)
        low, high = (size, high) if (1 - np.exp(-size * some)).mean() < stored else (low, size)
    total = sparse.csr_array((n, m), dtype=np.float32)
    for w, h in zip(W, H.T, strict=True):
        counts = rng.poisson(size * h * w.sum())
        columns = np.searchsorted(np.cumsum(w) / w.sum(), rng.random(counts.sum()))
        rows = np.repeat(np.arange(n), counts)
        ones = np.ones(len(rows), dtype=np.float32)
        total = total + sparse.coo_array((ones, (rows, np.minimum(columns, m - 1))), shape=(n, m)).tocsr()
    total.sum_duplicates()
    wrong = total.copy()
    which = rng.random(wrong.nnz) < 0.01
    wrong.data[which] = rng.uniform(20, 200, which.sum()) * np.quantile(total.data, 0.99)
    return wrong, total, W


def cosines(found: Matrix, planted: Matrix) -> Matrix:
    """Return the cosine of each planted component with the one that was found for it."""
    a, b = (F / np.maximum(np.linalg.norm(F, axis=1, keepdims=True), 1e-30) for F in (found, planted))
    rows, columns = linear_sum_assignment(-(b @ a.T))
    return (b @ a.T)[rows, columns]


class Memory:
    """The largest memory of this process beyond what it had at the beginning, in bytes."""

    def __enter__(self) -> "Memory":
        self.first, self.largest, self.over = _resident(), 0, False
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over = True
        self.thread.join()

    def _watch(self) -> None:
        while not self.over:
            self.largest = max(self.largest, _resident() - self.first)
            sleep(0.02)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fit(method: str, size: str) -> dict[str, Any]:
    """Return what one fit took and found."""
    n, m, rank, stored = SHAPES[size]
    wrong, right, W = planted(n, m, rank, stored)
    X = right if method.endswith("without errors") else wrong
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)  # as SciPy stores them
    is_wrong = (wrong != right).tocsr()
    del wrong, right
    nbytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    model: Any = NMF(rank, init="random", max_iter=200, tol=0, random_state=0)
    if method == "robustnmf":
        model = RobustNMF(rank, random_state=0)
    begin = perf_counter()
    with Memory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit_transform(X)
    seconds = perf_counter() - begin
    found = cosines(model.components_, W)
    result = {
        "method": method,
        "seconds": seconds,
        "memory": (memory.largest + nbytes) / nbytes,
        "gigabytes": nbytes / 2**30,
        "stored": X.nnz / (n * m),
        "median": float(np.median(found)),
        "smallest": float(found.min()),
    }
    if method == "robustnmf":
        hits = model.outliers_.multiply(is_wrong).nnz
        result |= {"recall": hits / is_wrong.nnz, "precision": hits / max(model.outliers_.nnz, 1)}
    return result


def page(results: list[dict[str, Any]], size: str) -> str:
    """Return the results as a page."""
    n, m, rank, _ = SHAPES[size]
    plain = next(result["seconds"] for result in results if result["method"] == "scikit-learn")
    lines = [
        "# Sparse counts from planted components",
        "",
        f"`python benchmarks/sparse_counts.py`: {n} samples, {m} features, {results[0]['stored']:.1%} stored "
        f"({results[0]['gigabytes']:.2f} GiB as CSR, single precision), {rank} components, 1 % of the stored entries "
        "wrong. scikit-learn's NMF makes 200 iterations from a random start. Memory is the peak, data included, "
        "relative to the data; cosines are those of planted components with the ones found.",
        "",
        "| | seconds | relative to scikit-learn | memory | cosine, median | smallest | recall | precision |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        found = [f"{result[name]:.1%}" if name in result else "" for name in ("recall", "precision")]
        numbers = [f"{result['seconds']:.0f}", f"{result['seconds'] / plain:.2f}", f"{result['memory']:.2f}"]
        numbers += [f"{result['median']:.4f}", f"{result['smallest']:.4f}", *found]
        lines.append(f"| {result['method']} | " + " | ".join(numbers) + " |")
    return "\n".join([*lines, ""])


def break_even() -> str:
    """Return a page of how long fits of stored entries take, relative to fits of the same data made dense."""
    lines = [
        "# Sparse or dense",
        "",
        "`python benchmarks/sparse_counts.py --break-even`: seconds of a fit by stored entries, `engine='sparse'`, "
        "relative to one of the data made dense, `engine='numpy'`, in one process, one after the other (single "
        "precision, 8 components, 1 % of the stored entries wrong).",
        "",
        "| samples x features | entries | " + " | ".join(f"{stored:.0%} stored" for stored in DENSITIES) + " |",
        "| --- | --- |" + " --- |" * len(DENSITIES),
    ]
    for n, m in BREAK_EVEN:
        ratios = []
        for stored in DENSITIES:
            X, _, _ = planted(n, m, 8, stored)
            seconds = {engine: min(_seconds(X, engine) for _ in range(2)) for engine in ("numpy", "sparse")}
            ratios.append(seconds["sparse"] / seconds["numpy"])
        lines.append(f"| {n} x {m} | 2^{np.log2(n * m):.1f} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
        print(lines[-1], file=sys.stderr)
    return "\n".join([*lines, ""])


def _seconds(X: Any, engine: str) -> float:
    begin = perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        RobustNMF(8, engine=engine, random_state=0).fit(X)
    return perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="data of a hundredth of the entries; nothing is written")
    parser.add_argument("--methods", nargs="*", default=METHODS, choices=METHODS)
    parser.add_argument("--break-even", action="store_true", help="when data is better made dense (minutes)")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.break_even:
        RESULTS.with_name("sparse_break_even.md").write_text(break_even())
        return
    size = "small" if options.small else "large"
    if options.fit:
        print(json.dumps(fit(options.fit, size)))
        return
    results = []
    for method in options.methods:
        command = [sys.executable, __file__, "--fit", method, *(["--small"] if options.small else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        print(results[-1], file=sys.stderr)
    text = page(results, size)
    print(text)
    if not options.small and tuple(options.methods) == METHODS:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
