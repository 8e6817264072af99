"""What an iteration on a Dask cluster costs: bytes that are sent, and seconds, with one worker and with two.

``python benchmarks/dask_cost.py [--megabytes 400] [--rank 20] [--repeats 3]`` fits a float32 matrix of 2000 features
that the workers keep in memory, by the plain schedule of the default model with a fixed scale: one pass over the data
in each iteration, and one for the objective. Bytes are counted where they are sent, in every process, heartbeats
included. The clusters take turns, so that what else the machine does strikes both; what is printed is the median.
With ``--inside torch`` Torch works inside the workers, on a GPU where they see one; ``--block-mib`` sizes the blocks.

``python benchmarks/dask_cost.py --entry`` prints the nanoseconds of processor time that an entry takes in an iteration.
``python benchmarks/dask_cost.py --model NANOSECONDS`` prints what an iteration on 10 TB would cost with 100 and with
1000 workers, if an entry takes one core so many nanoseconds; the other assumptions are the constants of `Cluster`.
"""

import argparse
import json
import os
from dataclasses import dataclass
from math import ceil, log, log2
from statistics import median
from time import process_time

import numpy as np
from distributed import Client, LocalCluster

from robustnmf import RobustNMF
from robustnmf.engines import DaskEngine, StreamingEngine
from robustnmf.engines.dask.engine import FAN_IN, n_groups

N_FEATURES = 2000
# Bytes by which a block that is read adds to the graph of a call: its file, its rows, and what stands for its codes.
SOURCE_BYTES = 100


class RandomRows:
    """Rows of a low-rank matrix with gross errors, which depend on their place alone."""

    def __init__(self, n_rows: int, rank: int) -> None:
        self.shape, self.dtype, self.rank = (n_rows, N_FEATURES), np.dtype(np.float32), rank

    def read(self, start: int, stop: int) -> np.ndarray:
        rng = np.random.default_rng(start)
        bumps = np.random.default_rng(0).random((self.rank, N_FEATURES), dtype=np.float32) ** 4
        rows = rng.standard_exponential((stop - start, self.rank), dtype=np.float32) @ bumps
        rows[rng.random(rows.shape, dtype=np.float32) < 0.05] = 10.0
        return rows

    def cuts(self, block_bytes: int) -> list[tuple[int, int]]:
        step = max(1, block_bytes // (4 * N_FEATURES))
        return [(start, min(start + step, self.shape[0])) for start in range(0, self.shape[0], step)]


def count_sent_bytes() -> None:
    """Count in this process what is written to other processes."""
    from distributed.comm import tcp

    if hasattr(tcp, "robustnmf_sent"):
        return
    tcp.robustnmf_sent = 0
    write = tcp.TCP.write

    async def counting(self, *args, **options):
        n_bytes = await write(self, *args, **options)
        tcp.robustnmf_sent += n_bytes if isinstance(n_bytes, int) else 0
        return n_bytes

    tcp.TCP.write = counting


def sent_bytes() -> int:
    from distributed.comm import tcp

    return int(tcp.robustnmf_sent)


def measure(rows: RandomRows, n_workers: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the medians over the iterations of a fit."""
    limits = {"n_workers": n_workers, "threads_per_worker": 1, "memory_limit": "8GiB", "dashboard_address": ":0"}
    with LocalCluster(**limits) as cluster, Client(cluster) as client:
        count_sent_bytes()
        client.run(count_sent_bytes)
        marks: list[tuple[float, int]] = []

        def mark(iteration) -> None:
            marks.append((iteration.seconds, sent_bytes() + sum(client.run(sent_bytes).values())))

        engine = DaskEngine(client, keep=True, block_bytes=int(options.block_mib * 2**20), inside=options.inside)
        plain = {"schedule": "plain", "scale": 0.2, "outliers": 9.0, "init": "random", "tol": 0.0}
        model = RobustNMF(
            options.rank, random_state=0, max_iter=options.iterations, engine=engine, callback=mark, **plain
        )
        model.fit(rows)
        seconds, sent = (np.diff([m[i] for m in marks])[2:] for i in range(2))
    return {"seconds": float(np.median(seconds)), "bytes": float(np.median(sent))}


def entry_nanoseconds(rank: int) -> float:
    """Return the nanoseconds of one core for an entry in an iteration, by processor time, which others do not take."""
    seconds: list[float] = []
    options = {"schedule": "plain", "scale": 0.2, "outliers": 9.0, "init": "random", "max_iter": 8, "tol": 0.0}
    rows = RandomRows(10_000, rank)
    X, engine = rows.read(0, rows.shape[0]), StreamingEngine(n_threads=1)
    RobustNMF(rank, engine=engine, callback=lambda _: seconds.append(process_time()), **options).fit(X)
    return 1e9 * float(np.median(np.diff(seconds)[2:])) / (rows.shape[0] * N_FEATURES)


@dataclass(frozen=True)
class Cluster:
    """Assumptions about machines and network, and a matrix of 10 TB."""

    n_workers: int
    cores: int = 8
    bandwidth: float = 1.25e9
    """Bytes per second of each machine: 10 Gbit/s."""
    latency: float = 1e-3
    """Seconds of a message, Dask's own time included."""
    storage: float = 1e9
    """Bytes per second that each machine reads, where the data does not fit in memory."""
    scheduled: float = 2000.0
    """Tasks that the scheduler handles in a second."""
    block_bytes: float = 2.0**28
    n_features: int = 10_000
    rank: int = 20
    n_bytes: float = 1e13

    def seconds(self, nanoseconds: float) -> dict[str, float]:
        """Return the parts of an iteration: one pass over the data that improves both factors."""
        entries, threads = self.n_bytes / 4, self.n_workers * self.cores
        basis = 4.0 * self.n_features * self.rank
        sums = 2 * basis + 4.0 * self.rank**2
        groups = n_groups(threads)
        levels = ceil(log(groups, FAN_IN))
        tasks = 4 * groups + groups / (FAN_IN - 1)
        graph = SOURCE_BYTES * self.n_bytes / self.block_bytes
        return {
            "read": self.n_bytes / (self.n_workers * self.storage),
            "compute": 1e-9 * nanoseconds * entries / threads,
            "send the basis": ceil(log2(self.n_workers)) * (self.latency + basis / self.bandwidth),
            "add up": levels * (self.latency + FAN_IN * sums / self.bandwidth),
            "graph": 2 * graph / self.bandwidth,
            "scheduler": tasks / self.scheduled,
        }


def print_model(nanoseconds: float) -> None:
    """Print the parts of an iteration as a table."""
    clusters = [Cluster(100), Cluster(1000)]
    columns = [cluster.seconds(nanoseconds) for cluster in clusters]
    print("| seconds of an iteration | " + " | ".join(f"{c.n_workers} workers" for c in clusters) + " |")
    print("| --- " * (len(clusters) + 1) + "|")
    for part in columns[0]:
        print(f"| {part} | " + " | ".join(f"{column[part]:.3g}" for column in columns) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=400.0)
    parser.add_argument("--rank", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--inside", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--block-mib", type=float, default=8.0)
    parser.add_argument("--entry", action="store_true")
    parser.add_argument("--model", type=float, metavar="NANOSECONDS")
    options = parser.parse_args()
    if options.entry:
        print(f"{entry_nanoseconds(options.rank):.1f} ns per entry and iteration, one core, rank {options.rank}")
        return
    if options.model is not None:
        print_model(options.model)
        return
    n_rows = int(options.megabytes * 1e6 / (4 * N_FEATURES))
    rows = RandomRows(n_rows, options.rank)
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _ in range(options.repeats):
        for n_workers in found:
            found[n_workers].append(measure(rows, n_workers, options))
    basis = N_FEATURES * options.rank * 4
    outcome = {
        "matrix": f"{n_rows} x {N_FEATURES} float32, rank {options.rank}",
        "inside the workers": options.inside,
        "cores": os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "bytes of the data": n_rows * N_FEATURES * 4,
        "bytes of the basis": basis,
    }
    for n_workers, runs in found.items():
        seconds, sent = (median(run[what] for run in runs) for what in ("seconds", "bytes"))
        outcome[f"{n_workers} workers, seconds per iteration"] = round(seconds, 3)
        outcome[f"{n_workers} workers, nanoseconds per entry and iteration"] = round(
            1e9 * seconds * n_workers / (n_rows * N_FEATURES), 2
        )
        outcome[f"{n_workers} workers, bytes sent per iteration"] = round(sent)
        outcome[f"{n_workers} workers, the same in bases"] = round(sent / basis, 1)
    ratios = [one["seconds"] / two["seconds"] for one, two in zip(found[1], found[2], strict=True)]
    outcome["times faster with two workers than with one"] = round(median(ratios), 2)
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
