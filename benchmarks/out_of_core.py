"""A fit of data that is larger than memory, on one machine.

``python benchmarks/out_of_core.py [--gigabytes 20] [--engine dask] [--folder FOLDER]`` writes a float32 matrix of that
size to FOLDER, block by block: a known low-rank matrix with noise, and gross errors in 5 % of the entries. It then fits
the default model by the given engine, and prints the time of each stage, the most memory that all processes had
together (sampled four times a second), and the angles between the components that it found and the known ones. The
matrix is removed at the end unless ``--keep``.
"""

import argparse
import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

import numpy as np
import psutil

from robustnmf import RobustNMF
from robustnmf.engines import DaskEngine, StreamingEngine
from robustnmf.formats.numpy_files import FileRows
from robustnmf.metrics import spectral_angle

N_FEATURES, RANK, NOISE, OUTLIERS = 2000, 10, 0.02, 0.05
ROWS = 10_000


def components() -> np.ndarray:
    """Return bumps that overlap their neighbours, (r, m)."""
    centres = (np.arange(RANK)[:, None] + 0.5) * N_FEATURES / RANK
    return np.exp(-0.5 * ((np.arange(N_FEATURES) - centres) / (0.5 * N_FEATURES / RANK)) ** 2).astype(np.float32)


def block(start: int, n_rows: int, bumps: np.ndarray) -> np.ndarray:
    """Return some rows; they depend on their place alone."""
    rng = np.random.default_rng(start)
    codes = rng.standard_exponential((n_rows, RANK), dtype=np.float32) * (rng.random((n_rows, RANK)) < 0.6)
    rows = codes.astype(np.float32) @ bumps
    rows += np.float32(NOISE) * rng.standard_normal(rows.shape, dtype=np.float32)
    wrong = rng.random(rows.shape, dtype=np.float32)
    rows[wrong < OUTLIERS] = 10.0
    rows[wrong < OUTLIERS / 2] = 0.0
    return np.maximum(rows, 0, out=rows)


def write(path: Path, n_rows: int) -> FileRows:
    """Write the matrix and return its rows."""
    bumps = components()
    with path.open("wb") as file:
        for start in range(0, n_rows, ROWS):
            block(start, min(ROWS, n_rows - start), bumps).tofile(file)
    dtype = np.dtype(np.float32)
    return FileRows(str(path), (n_rows, N_FEATURES), dtype, 0, (N_FEATURES * dtype.itemsize, dtype.itemsize))


class Memory:
    """Watches the memory of this process and its children."""

    def __init__(self) -> None:
        self.workers = self.all = 0
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        here = psutil.Process()
        while not self._done.wait(0.25):
            children = 0
            for child in here.children(recursive=True):
                try:
                    children += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.workers = max(self.workers, children)
            self.all = max(self.all, children + here.memory_info().rss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--engine", choices=("dask", "stream"), default="dask")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-iter", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--keep", action="store_true", help="leave the matrix, and use it if it is there")
    options = parser.parse_args()
    n_rows = int(options.gigabytes * 1e9 / (4 * N_FEATURES))
    path = options.folder / f"robustnmf-{n_rows}.f32"
    begin = perf_counter()
    if path.exists() and options.keep:
        dtype = np.dtype(np.float32)
        rows = FileRows(str(path), (n_rows, N_FEATURES), dtype, 0, (N_FEATURES * 4, 4))
    else:
        rows = write(path, n_rows)
    print(
        f"{n_rows} x {N_FEATURES} float32, {path.stat().st_size / 1e9:.1f} GB, {perf_counter() - begin:.0f} s to write"
    )
    try:
        fit(rows, options)
    finally:
        if not options.keep:
            path.unlink()


def fit(rows: FileRows, options: argparse.Namespace) -> None:
    """Fit and print what came of it."""
    begin = perf_counter()
    with ExitStack() as stack:
        memory = stack.enter_context(Memory())
        if options.engine == "dask":
            from distributed import Client, LocalCluster

            limits = {"n_workers": options.workers, "threads_per_worker": 1, "memory_limit": "1.8GB"}
            cluster = stack.enter_context(LocalCluster(dashboard_address=":0", **limits))
            engine = DaskEngine(stack.enter_context(Client(cluster)), keep=False)
        else:
            engine = StreamingEngine(n_threads=options.workers)

        def say(iteration) -> None:
            if iteration.n_iter % 5 == 0 or iteration.seconds > 600:
                now = perf_counter() - begin
                print(f"  {now:6.0f} s  iteration {iteration.n_iter}, loss {iteration.objective:.6g}", flush=True)

        model = RobustNMF(RANK, random_state=0, max_iter=options.max_iter, engine=engine, callback=say)
        model.fit(rows)
        seconds = perf_counter() - begin
    known = components()
    angles = [min(spectral_angle(found, bump) for found in model.components_) for bump in known]
    outcome = {
        "gigabytes": options.gigabytes,
        "engine": options.engine,
        "workers": options.workers,
        "cores": os.cpu_count(),
        "seconds": round(seconds, 1),
        "iterations": model.n_iter_,
        "peak memory of all processes, GB": round(memory.all / 1e9, 2),
        "peak memory of workers, GB": round(memory.workers / 1e9, 2),
        "largest angle to a known component, degrees": round(float(np.degrees(max(angles))), 3),
    }
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
