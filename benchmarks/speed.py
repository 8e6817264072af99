"""How fast the library is, against its rivals on the same machine in the same process.

``python benchmarks/speed.py [--only CASE ...]`` runs all cases or those named. After a warm-up of each, the contestants
take turns, and every second repeat reverses their order; what counts is the ratio of their times in the same repeat.
``speed.csv`` has a line for each run, ``speed.md`` the ratios with their targets and what they were measured on. Both
are written after every case, and hold the cases of one call.

A rival runs with BLAS on one thread or on all cores, whichever short trials find faster: on a busy machine the threads
of BLAS wait for each other, and all cores may take ten times as long as one. Our fits look after their own threads.

orl-200      ORL faces under 40 % salt and pepper, rank 40: the default fit against 200 iterations of scikit-learn
orl-1000     the same against scikit-learn's fit until it converges, at most 1000 iterations
orl-literal  the same faces: time to the objective that Algorithm 2 of the paper reaches, written down in NumPy
large        20000 x 2000 in single precision, rank 20, 10 % gross outliers, against scikit-learn
large-clean  the same without errors, by the default and by method="l2"
square       8192 x 8192 in single precision, rank 32, 10 % gross outliers, beside products of the data with a factor,
             and the least number of them that a fit needs
memory       most memory in use during that fit beyond the data itself, for data of several kinds
ar-size      2600 x 1260, rank 200, against scikit-learn
real-sets    real data of many kinds and ordinary size, as it is: the median over the sets, against scikit-learn
rivals       least squares on clean data: time to the same error, against other programs for NMF
weighted     least squares with 30 % of the entries missing: time to the error of other weighted NMFs
scaling      seconds of a fit with twice the samples, and with twice the components
transform    codes of 1000 new faces, against scikit-learn
start-up     seconds of the import and of the first fit, with and without compiled kernels on disk
profile      where the time of a fit goes, on the faces and on the large data

The other packages are nimfa, torchnmf, wNMF and NonnegMFPy, which the extra `bench` installs, and RcppML of R, which
Debian has (r-cran-rcppml); one that is missing is left out. nimfa is under the BSD licence, the others of Python under
the MIT licence; that of NonnegMFPy is in its source file only.
"""

import argparse
import csv
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite, nan, sqrt
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple
from unittest.mock import patch

import numba
import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info, threadpool_limits

from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.algorithm import encoding, initializers, staged
from robustnmf.algorithm import least_squares as squares_stage
from robustnmf.algorithm.initializers import RandomStart
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import salt_and_pepper
from robustnmf.errors import DataQualityWarning
from robustnmf.metrics import relative_error

Matrix = NDArray[Any]

OURS = "robustnmf"
SKLEARN = "scikit-learn"
ERROR = "relative error"
LEAST_SQUARES = 'robustnmf, method="l2"'
# Products of the data with a factor, beside which the time of a fit is shown.
N_PRODUCTS = 200
PRODUCTS = f"{N_PRODUCTS} products of the data with a factor"
PEERS = ("torch", "nimfa", "torchnmf", "wNMF", "NonnegMFPy")
STATM = Path("/proc/self/statm")

# What fits are timed by: seconds, or with --processor-time those of the processor.
CLOCK = [perf_counter]
# Iterations of a trial.
TRIAL_ITER = 10
# Rows of synthetic data that are made at a time: a few megabytes, which leave no trace in the peak of memory.
BLOCK_ROWS = 100


# ------------------------------------------------------------------------------------------- contestants and their runs


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    quick: bool
    repeats: int | None

    def times(self, usual: int = 5) -> int:
        """Return how often a case is repeated."""
        if self.repeats is not None:
            return self.repeats
        return min(usual, 2) if self.quick else usual


class Outcome(NamedTuple):
    """One run of a contestant."""

    seconds: float
    quality: float = nan
    path: tuple[Matrix, Matrix] | None = None
    """Seconds and objective after each iteration, where the time to an objective is to be found."""


class Contestant(NamedTuple):
    """Something that can be timed."""

    name: str
    run: Callable[[int], Outcome]
    """Run with a seed and return the outcome; what is not to be timed, it leaves out itself."""
    trial: Callable[[], Any] | None = None
    """A short run to warm up with; None takes a whole one."""
    limit: Callable[[int], AbstractContextManager[Any]] | None = None
    """Limits its threads; None for one that looks after them itself."""


class Run(NamedTuple):
    """A line of the CSV file."""

    case: str
    contestant: str
    repeat: int
    seconds: float
    quality: str = ""
    """What `value` is."""
    value: float = nan


class Line(NamedTuple):
    """A line of the table of targets."""

    case: str
    ours: str
    rival: str
    ours_took: str
    rival_took: str
    result: str
    target: str = ""
    met: str = ""
    our_quality: str = ""
    rival_quality: str = ""


HEADS = Line(
    "case",
    "ours",
    "rival",
    "ours took",
    "rival took",
    "ours / rival (range)",
    "target",
    "met",
    "our quality",
    "quality of the rival",
)


@dataclass
class Report:
    """What a case gave."""

    case: str
    runs: list[Run] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    threads: dict[str, int] = field(default_factory=dict)
    """Threads that suit a rival best."""

    def say(self, text: str) -> None:
        print(f"{self.case}: {text}", flush=True)

    def note(self, text: str) -> None:
        """Put a sentence below the table."""
        self.notes.append(text)
        self.say(text)

    def add(self, contestant: str, repeat: int, outcome: Outcome, quality: str = "") -> None:
        """Keep a run, and show it."""
        self.runs.append(Run(self.case, contestant, repeat, outcome.seconds, quality, outcome.quality))
        tail = f", {quality} {outcome.quality:.4g}" if quality else ""
        self.say(f"repeat {repeat}: {contestant} {outcome.seconds:.3f} s{tail}")

    def of(self, contestant: str) -> list[Run]:
        return [run for run in self.runs if run.contestant == contestant]

    def compare(self, ours: str, rival: str, limit: float | None = None) -> None:
        """Add the line of two contestants; `limit` is the largest ratio of their times that is good enough."""
        mine, theirs = self.of(ours), self.of(rival)
        each = theirs * len(mine) if len(theirs) == 1 else theirs  # a slow rival runs once
        ratios = [a.seconds / b.seconds for a, b in zip(mine, each, strict=True)]
        middle = float(np.median(ratios))
        self.lines.append(
            Line(
                self.case,
                ours,
                rival,
                seconds_cell(mine),
                seconds_cell(theirs),
                ratio_cell(ratios),
                *verdict(middle, limit),
                quality_cell(mine),
                quality_cell(theirs),
            )
        )


def verdict(value: float, limit: float | None, unit: str = "") -> tuple[str, str]:
    """Return the cells that say what was aimed at, and whether it was met."""
    if limit is None:
        return "", ""
    times = f" ({1 / limit:.0f} times faster)" if limit < 0.2 and not unit else ""
    return f"≤ {limit:.3g}{unit}{times}", "yes" if value <= limit else "no"


def seconds_cell(runs: Sequence[Run]) -> str:
    middle = np.median([run.seconds for run in runs])
    return f"{middle:.3g} s" if isfinite(middle) else "not reached"


def ratio_cell(ratios: Sequence[float]) -> str:
    """Return the median of ratios with their range; infinite times are those of runs that did not get there."""
    middle = float(np.median(ratios))
    if middle == 0:
        return "the rival did not get there"
    return f"{middle:.3g} ({min(ratios):.3g} to {max(ratios):.3g})" if isfinite(middle) else "not reached"


def quality_cell(runs: Sequence[Run]) -> str:
    named = [run for run in runs if run.quality]
    return f"{named[0].quality} {np.median([run.value for run in named]):.4g}" if named else ""


@contextmanager
def silenced() -> Iterator[None]:
    """Drop warnings of convergence and data quality: limits on iterations are part of the cases."""
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, DataQualityWarning):
            warnings.simplefilter("ignore", category)
        yield


def blas_threads(n_threads: int) -> AbstractContextManager[Any]:
    """Limit the threads of BLAS for a while."""
    return threadpool_limits(n_threads, user_api="blas")


def warmed_up(report: Report, contestant: Contestant) -> Contestant:
    """Return a contestant that has run before, and from now on with as many threads as suit it."""
    report.say(f"warm-up of {contestant.name}")
    trial = contestant.trial or partial(contestant.run, 0)
    trial()
    if contestant.limit is None:
        return contestant
    choices = (1,) if CLOCK[0] is process_time else (1, usable_cores(), 1, usable_cores())
    best = min((trial_seconds(trial, contestant.limit(n)), n) for n in choices)[1]
    report.threads[contestant.name] = best
    report.say(f"{contestant.name} runs on {best} of {usable_cores()} threads")
    return contestant._replace(run=partial(run_limited, contestant, best))


def trial_seconds(trial: Callable[[], Any], limited: AbstractContextManager[Any]) -> float:
    with limited:
        begin = perf_counter()
        trial()
        return perf_counter() - begin


def run_limited(contestant: Contestant, n_threads: int, seed: int) -> Outcome:
    assert contestant.limit is not None
    with contestant.limit(n_threads):
        return contestant.run(seed)


def compete(
    report: Report, contestants: Sequence[Contestant], repeats: int
) -> Iterator[tuple[int, dict[str, Outcome]]]:
    """Warm all up, then yield the outcomes of each repeat by name; every second repeat reverses the order."""
    ready = [warmed_up(report, contestant) for contestant in contestants]
    for repeat in range(repeats):
        order = ready if repeat % 2 == 0 else ready[::-1]
        yield repeat, {contestant.name: contestant.run(repeat) for contestant in order}


def duel(report: Report, contestants: Sequence[Contestant], repeats: int, quality: str) -> None:
    """Let contestants compete and keep their runs as they are."""
    for repeat, outcomes in compete(report, contestants, repeats):
        for name, outcome in outcomes.items():
            report.add(name, repeat, outcome, quality)


def peers(report: Report, makers: Mapping[str, Callable[[], Contestant]]) -> list[Contestant]:
    """Return the contestants whose packages are installed, and note the others."""
    found = []
    for name, make in makers.items():
        try:
            found.append(make())
        except ImportError:
            report.note(f"{name} is not installed: left out.")
    return found


def fit(model: Any, X: Matrix) -> tuple[Matrix, float]:
    """Return the codes of a fit and its seconds."""
    with silenced():
        begin = CLOCK[0]()
        codes = model.fit_transform(X)
        return codes, CLOCK[0]() - begin


def ours(make: Callable[[int], RobustNMF], data: "Faces | Synthetic | Real") -> Contestant:
    """Return our estimator as a contestant; it warms up with some samples, to go through all stages."""
    some = data.X[: max(100, 2 * make(0).n_components)]
    return Contestant(OURS, partial(fit_and_judge, make, data), lambda: fit(make(0), some))


def rival(name: str, make: Callable[[int], NMF], data: "Faces | Synthetic | Real") -> Contestant:
    """Return an estimator of scikit-learn as a contestant; trials of its threads are a few iterations with all data."""

    def trial() -> None:
        fit(make(0).set_params(max_iter=TRIAL_ITER), data.X)

    return Contestant(name, partial(fit_and_judge, make, data), trial, blas_threads)


def fit_and_judge(make: Callable[[int], Any], data: "Faces | Synthetic | Real", seed: int) -> Outcome:
    model = make(seed)
    codes, seconds = fit(model, data.X)
    return Outcome(seconds, data.error(codes, model.components_))


def default_fit(rank: int, **changes: Any) -> Callable[[int], TruncatedCauchyNMF]:
    """Return what makes our default estimator of a seed."""
    return lambda seed: TruncatedCauchyNMF(rank, random_state=seed, **changes)


def plain_nmf(rank: int, **changes: Any) -> Callable[[int], NMF]:
    """Return what makes the estimator of scikit-learn of a seed."""
    return lambda seed: NMF(rank, init="random", random_state=seed, **changes)


# ----------------------------------------------------------------------------------------------------------------- data


class Faces(NamedTuple):
    """Faces under salt and pepper."""

    X: Matrix
    clean: Matrix
    rank: int

    def error(self, codes: Matrix, components: Matrix) -> float:
        return relative_error(self.clean, codes @ components)


def faces(options: Options) -> Faces:
    """Return all of the ORL faces, or the first ten people."""
    n_people = 10 if options.quick else 40
    clean = load_orl().data[: 10 * n_people]
    return Faces(salt_and_pepper(clean, 0.4, random_state=0).data, clean, n_people)


class Synthetic(NamedTuple):
    """Data of low rank with noise and gross errors."""

    X: Matrix
    left: Matrix
    right: Matrix

    def error(self, codes: Matrix, components: Matrix) -> float:
        """Return the relative error to the product of the true factors; no matrix of the size of X is formed."""
        left = np.hstack([self.left, codes.astype(np.float64)])
        right = np.vstack([self.right, -components.astype(np.float64)])
        return sqrt(product_norm2(left, right) / product_norm2(self.left, self.right))


def product_norm2(left: Matrix, right: Matrix) -> float:
    """Return the squared Frobenius norm of a product."""
    return max(float(np.sum((left.T @ left) * (right @ right.T))), 0.0)


class Size(NamedTuple):
    """Shape and rank of synthetic data."""

    n_samples: int
    n_features: int
    rank: int


def synthetic(size: Size, *, noise: float, outliers: float = 0.0, dtype: Any = np.float64) -> Synthetic:
    """Return a product of gamma-distributed factors with noise, some entries replaced by uniform gross errors.

    Noise is relative to the entry; errors reach ten times the largest entry. Made block by block, see `BLOCK_ROWS`.
    """
    rng = np.random.default_rng(0)
    left = rng.gamma(1.0, size=(size.n_samples, size.rank))
    right = rng.gamma(1.0, size=(size.rank, size.n_features))
    blocks = [slice(i, i + BLOCK_ROWS) for i in range(0, size.n_samples, BLOCK_ROWS)]
    largest = max(float((left[rows] @ right).max()) for rows in blocks)
    X = np.empty((size.n_samples, size.n_features), dtype=dtype)
    for rows in blocks:
        clean = left[rows] @ right
        block = np.maximum(clean * (1 + noise * rng.standard_normal(clean.shape)), 0)
        wrong = rng.random(clean.shape) < outliers
        block[wrong] = rng.uniform(0, 10 * largest, size=np.count_nonzero(wrong))
        X[rows] = block
    return Synthetic(X, left, right)


def large_size(options: Options) -> Size:
    return Size(2000, 500, 20) if options.quick else Size(20000, 2000, 20)


def large_data(options: Options) -> Synthetic:
    return synthetic(large_size(options), noise=0.05, outliers=0.1, dtype=np.float32)


# -------------------------------------------------------------------------------------------- faces, against other NMFs


def orl_200(options: Options) -> Report:
    report, data = Report("orl-200"), faces(options)
    cd, mu = f"{SKLEARN}, 200 iterations", f"{SKLEARN} solver mu, 200 iterations"
    contestants = [
        ours(default_fit(data.rank), data),
        rival(cd, plain_nmf(data.rank, max_iter=200), data),
        rival(mu, plain_nmf(data.rank, max_iter=200, solver="mu"), data),
    ]
    contestants += peers(report, {"torchnmf": lambda: torch_nmf(data, 200)})
    duel(report, contestants, options.times(), ERROR)
    for other in contestants[1:]:
        report.compare(OURS, other.name, 1.0 if other.name == cd else None)
    return report


def orl_1000(options: Options) -> Report:
    report, data = Report("orl-1000"), faces(options)
    name = f"{SKLEARN}, at most 1000 iterations"
    contestants = [
        ours(default_fit(data.rank), data),
        rival(name, plain_nmf(data.rank, max_iter=1000, tol=1e-4), data),
    ]
    duel(report, contestants, options.times(), ERROR)
    report.compare(OURS, name, 0.2)
    return report


def torch_nmf(data: Faces, max_iter: int) -> Contestant:
    """Return torchnmf, made to run all its iterations."""
    import torch
    from torchnmf.nmf import NMF as TorchNMF  # noqa: N811

    V = torch.from_numpy(data.X)

    @contextmanager
    def torch_threads(n_threads: int) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(n_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def run(seed: int, n_iter: int = max_iter) -> Outcome:
        torch.manual_seed(seed)
        begin = perf_counter()
        model = TorchNMF(V.shape, rank=data.rank).to(V.dtype)
        model.fit(V, beta=2, tol=-inf, max_iter=n_iter)
        seconds = perf_counter() - begin
        return Outcome(seconds, relative_error(data.clean, model().detach().numpy()))

    return Contestant(f"torchnmf, {max_iter} iterations", run, partial(run, 0, TRIAL_ITER), torch_threads)


# ------------------------------------------------------------------------------------ Algorithm 2 of the paper in NumPy


# Scale and truncation of both: about what the default finds on these faces.
GAMMA, SIGMA = 15.0, 6.0
# Stopping rule (3-8), and most iterations of Algorithm 1.
INNER_TOL, INNER_ITER = 1e-3, 500


def orl_literal(options: Options) -> Report:
    report, data = Report("orl-literal"), faces(options)
    n_iter, repeats = 2 if options.quick else 10, options.times()
    literal = Contestant(
        f"Algorithm 2 in NumPy, {n_iter} iterations",
        lambda seed: literal_algorithm_2(data, n_iter),
        lambda: literal_algorithm_2(data, 1, every=20),
        blas_threads,
    )
    literal = warmed_up(report, literal)
    mine = warmed_up(report, Contestant(OURS, lambda seed: our_algorithm_2(data, max_iter=10 * n_iter)))
    # The literal version takes minutes: it runs once, in the middle of ours.
    outcomes = [mine.run(0) for _ in range(repeats // 2)]
    slow = literal.run(0)
    outcomes += [mine.run(0) for _ in range(repeats - repeats // 2)]
    for repeat, outcome in enumerate(outcomes):
        require_same_start(outcome, slow)
        report.add(OURS, repeat, reaching(outcome, slow.quality), "objective")
    report.add(literal.name, 0, slow, "objective")
    report.compare(OURS, literal.name, 1 / 30)
    report.note(
        f"Scale and truncation are fixed, gamma {GAMMA:g} and sigma {SIGMA:g}, and the start is the same. The literal "
        "version ran once. Ours is the time until the objective is as low, without checks of the data and the encoding "
        "after the last iteration."
    )
    return report


def our_algorithm_2(data: Faces, max_iter: int) -> Outcome:
    """Return the path of our plain alternation."""
    model = RobustNMF(
        data.rank,
        method="truncated-cauchy",
        scale=GAMMA,
        outliers=SIGMA,
        schedule="plain",
        init=RandomStart(),
        tol=0.0,
        max_iter=max_iter,
        random_state=np.random.default_rng(0),
    )
    seconds = fit(model, data.X)[1]
    return Outcome(seconds, path=(model.history_["seconds"], model.history_["objective"]))


def literal_algorithm_2(data: Faces, n_iter: int, every: int = 1) -> Outcome:
    """Return seconds, objective at the end and, as its path, that of the start of a literal Algorithm 2."""
    V = data.X.T
    W, H = RandomStart()(V, None, data.rank, np.random.default_rng(0))
    first = truncated_cauchy(V - W @ H)
    begin = perf_counter()
    algorithm_2(V, W, H, n_iter, every)
    seconds = perf_counter() - begin
    return Outcome(seconds, truncated_cauchy(V - W @ H), (np.zeros(1), np.array([first])))


def algorithm_2(V: Matrix, W: Matrix, H: Matrix, n_iter: int, every: int) -> None:
    """Change W and H by half-quadratic programming with fixed scale and truncation; a trial leaves most of them out."""
    for _ in range(n_iter):
        Q = truncated_cauchy_weights(V - W @ H)
        for j in range(0, V.shape[1], every):
            H[:, j] = algorithm_1(W, V[:, j], Q[:, j], H[:, j])
        Q = truncated_cauchy_weights(V - W @ H)
        for i in range(0, V.shape[0], every):
            W[i] = algorithm_1(H.T, V[i], Q[i], W[i])


def algorithm_1(A: Matrix, y: Matrix, d: Matrix, x0: Matrix) -> Matrix:
    """Return x >= 0 that lowers (y - A x)' diag(d) (y - A x) by the optimal gradient method.

    Literal but not foolish: the diagonal matrix is never formed, and A' diag(d) A only once.
    """
    gram, linear = A.T @ (d[:, None] * A), A.T @ (d * y)
    lipschitz = np.linalg.norm(gram, 2)
    x, z, alpha = x0, x0, 1.0
    first = projected_norm(gram @ x - linear, x)
    if lipschitz == 0 or first == 0:
        return x0
    for _ in range(INNER_ITER):
        last, x = x, np.maximum(z - (gram @ z - linear) / lipschitz, 0)
        last_alpha, alpha = alpha, (1 + sqrt(4 * alpha**2 + 1)) / 2
        z = x + (last_alpha - 1) / alpha * (x - last)
        if projected_norm(gram @ x - linear, x) <= INNER_TOL * first:
            break
    return np.maximum(z, 0)


def projected_norm(gradient: Matrix, x: Matrix) -> float:
    return float(np.linalg.norm(np.where(x > 0, gradient, np.minimum(gradient, 0))))


def truncated_cauchy(E: Matrix) -> float:
    """Return the objective (2-4) of residuals."""
    return 0.5 * float(np.log1p(np.minimum((E / GAMMA) ** 2, SIGMA)).sum())


def truncated_cauchy_weights(E: Matrix) -> Matrix:
    s = (E / GAMMA) ** 2
    return np.where(s <= SIGMA, 1 / (1 + s), 0)


def require_same_start(one: Outcome, other: Outcome) -> None:
    """Make sure that objectives are in the same unit: at the same start they are equal."""
    starts = [outcome.path[1][0] for outcome in (one, other) if outcome.path is not None]
    if not np.isclose(*starts, rtol=1e-6):
        raise AssertionError(f"Objectives cannot be compared: at the start they are {starts}.")


def reaching(outcome: Outcome, objective: float) -> Outcome:
    """Return when the path first was at an objective or below, and what it was there; infinite if it never was."""
    assert outcome.path is not None
    seconds, objectives = outcome.path
    below = np.flatnonzero(objectives <= objective)
    return Outcome(seconds[below[0]], objectives[below[0]]) if below.size else Outcome(inf, objectives[-1])


# ------------------------------------------------------------------------------------------ large data, many components


def large(options: Options) -> Report:
    report, data = Report("large"), large_data(options)
    rank, name = large_size(options).rank, f"{SKLEARN}, 200 iterations"
    contestants = [ours(default_fit(rank), data), rival(name, plain_nmf(rank, max_iter=200, tol=1e-4), data)]
    duel(report, contestants, options.times(3), ERROR)
    report.compare(OURS, name, 0.7)
    return report


def large_clean(options: Options) -> Report:
    report, size = Report("large-clean"), large_size(options)
    data, name = synthetic(size, noise=0.05, dtype=np.float32), f"{SKLEARN}, 200 iterations"
    squares = ours(lambda seed: RobustNMF(size.rank, method="l2", random_state=seed), data)
    contestants = [
        ours(default_fit(size.rank), data),
        squares._replace(name=LEAST_SQUARES),
        rival(name, plain_nmf(size.rank, max_iter=200, tol=1e-4), data),
    ]
    duel(report, contestants, options.times(3), ERROR)
    report.compare(OURS, name, 1.0)
    report.compare(LEAST_SQUARES, name, 0.7)
    return report


def square(options: Options) -> Report:
    report = Report("square")
    size = Size(1024, 1024, 8) if options.quick else Size(8192, 8192, 32)
    data = synthetic(size, noise=0.05, outliers=0.1, dtype=np.float32)
    factor = np.random.default_rng(0).random((size.n_features, size.rank), dtype=np.float32)
    products = Contestant(PRODUCTS, lambda seed: seconds_of_products(data.X, factor))
    sweeps = SweepCount(more_than=100)
    with sweeps.counting():
        duel(report, [ours(default_fit(size.rank), data), products], options.times(1), ERROR)
    report.compare(OURS, PRODUCTS, None)
    n_fits = len(report.of(OURS))
    needed = sweeps.products(size, n_fits)
    for run in report.of(PRODUCTS):
        report.add(FLOOR, run.repeat, Outcome(needed * run.seconds / N_PRODUCTS))
    report.compare(OURS, FLOOR, 3.0)
    report.note(
        f"The least that a fit does is {needed:.0f} products of the data with a factor, at the rate measured here: "
        f"{sweeps.robust / n_fits:.0f} sweeps of a robust loss, of {ROBUST_PRODUCTS} products with samples that the "
        f"components are learnt from, sweeps of least squares over {sweeps.squared_rows / n_fits / size.n_samples:.1f} "
        f"times all samples, of {FILLED_PRODUCTS} products, and the codes of all samples once."
    )
    return report


# Products of the data with a factor that a sweep needs: of a robust loss, with the check of the step; of least squares
# where what is wrong is filled in. To encode a sample takes as many as that, and its Gram matrix, of which wrong
# entries are a tenth and half is the same as the other half.
ROBUST_PRODUCTS, FILLED_PRODUCTS, GRAM_SHARE = 7, 3, 0.05
FLOOR = "the least that a fit does, at the measured rate"


class SweepCount:
    """Counts the sweeps of fits with more than so many samples, and the samples that they visit."""

    def __init__(self, more_than: int) -> None:
        self.more_than = more_than
        self.robust = self.robust_rows = self.squared_rows = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while something runs; fits with few samples, to warm up, do not count."""
        robust, squares = staged.next_point, squares_stage.sweep

        def count_robust(fit: Any, *arguments: Any) -> Any:
            counts = fit.n_samples > self.more_than
            self.robust += counts
            self.robust_rows += fit.n_samples if counts else 0
            return robust(fit, *arguments)

        def count_squares(V: Any, *arguments: Any) -> Any:
            n_rows = sum(len(block) for block in V)
            self.squared_rows += n_rows if n_rows > self.more_than else 0
            return squares(V, *arguments)

        with patch.object(staged, "next_point", count_robust), patch.object(squares_stage, "sweep", count_squares):
            yield

    def products(self, size: Size, n_fits: int) -> float:
        """Return how many products of all data with a factor the sweeps of a fit come to, with codes of all samples."""
        rows = (ROBUST_PRODUCTS * self.robust_rows + FILLED_PRODUCTS * self.squared_rows) / n_fits
        return rows / size.n_samples + FILLED_PRODUCTS + GRAM_SHARE * size.rank


def seconds_of_products(X: Matrix, factor: Matrix) -> Outcome:
    """Return how long it takes to multiply the data by a factor `N_PRODUCTS` times, with all threads of BLAS."""
    begin = perf_counter()
    for _ in range(N_PRODUCTS // 10):
        X @ factor
    return Outcome(10 * (perf_counter() - begin), nan)


def ar_size(options: Options) -> Report:
    report = Report("ar-size")
    size = Size(400, 200, 20) if options.quick else Size(2600, 1260, 200)
    data, name = synthetic(size, noise=0.05, outliers=0.1), f"{SKLEARN}, 200 iterations"
    contestants = [
        ours(default_fit(size.rank, max_iter=200), data),
        rival(name, plain_nmf(size.rank, max_iter=200), data),
    ]
    duel(report, contestants, options.times(1), ERROR)
    report.compare(OURS, name, 1.0)
    return report


# Sets of `real_sets` of all kinds, from a thousand to half a million entries.
REAL_SETS = (
    *("el-nino", "glass", "wine", "olive-oil", "heartbeat", "supernova", "meat", "cat-alleles", "diseases", "twins"),
    *(
        "ozone-layer",
        "arctic",
        "mayonnaise",
        "big-five",
        "diffusion-64",
        "faces",
        "digits",
        "tissues",
        "coffee",
        "moods",
    ),
    *("pancreas", "leukaemia", "movie-ratings", "pbmc68k", "shares"),
)


class Real(NamedTuple):
    """Real data, whose true factors nobody knows."""

    X: Matrix

    def error(self, codes: Matrix, components: Matrix) -> float:
        return relative_error(self.X, codes @ components)


def real_data(options: Options) -> Report:
    from package_files import PackageError  # imported late: they read packages that are fetched
    from real_sets import SETS

    report, short, long = Report("real-sets"), f"{SKLEARN}, its default", f"{SKLEARN}, converged"
    single = f"{OURS}, float32"
    for number, name in enumerate(REAL_SETS[::5] if options.quick else REAL_SETS):
        try:
            data, rank = Real(SETS[name].load()), SETS[name].rank
        except (PackageError, ImportError) as error:
            report.note(f"{name} is left out: {error}")
            continue
        contestants = [
            Contestant(OURS, partial(fit_and_judge, default_fit(rank), data)),
            Contestant(single, partial(fit_and_judge, default_fit(rank), Real(data.X.astype(np.float32)))),
            rival(short, lambda seed, rank=rank: NMF(rank, random_state=seed), data),
            rival(long, lambda seed, rank=rank: NMF(rank, max_iter=1000, tol=1e-6, random_state=seed), data),
        ]
        taken: dict[str, list[Outcome]] = {contestant.name: [] for contestant in contestants}
        for _, outcomes in compete(report, contestants, options.times(3)):
            for contestant, outcome in outcomes.items():
                taken[contestant].append(outcome)
        for contestant, several in taken.items():
            middle = Outcome(float(np.median([run.seconds for run in several])), several[0].quality)
            report.add(contestant, number, middle, ERROR)
    report.compare(OURS, long, 1.0)
    report.compare(OURS, short, 4.0)
    report.compare(single, OURS)
    report.note("A repeat is a set, with the median of its runs; scikit-learn converges at 1000 iterations or 1e-6.")
    return report


def memory(options: Options) -> Report:
    report = Report("memory")
    if not STATM.exists():
        report.note("Memory in use is read from /proc, which is not there: left out.")
        return report
    for kind in MEMORY_KINDS:
        command = [sys.executable, __file__, "--probe-memory", kind, *(["--quick"] if options.quick else [])]
        got = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        size = got.pop("input")
        for what, (peak, seconds) in got.items():
            name, ratio = f"{OURS}, {what}, {kind}", peak / size
            report.add(name, 0, Outcome(seconds, ratio), "peak beyond the data / data")
            sizes = (f"peak {peak / 2**20:.0f} MiB", f"data {size / 2**20:.0f} MiB")
            met = verdict(ratio, 1.0) if (what, kind) == ("fit", "float32") else ("", "")
            report.lines.append(Line(report.case, name, "size of the data", *sizes, f"{ratio:.2f}", *met))
    return report


# Kinds of data of which the memory is measured: the same entries, in other types, with gaps and with weights.
MEMORY_KINDS = ("float32", "float64 with gaps", "float32 with weights", "uint16")


def probe_memory(options: Options, kind: str) -> None:
    """Print the most memory in use during a fit of the large data, and what follows it, beyond what was before."""
    X, rank, given = large_data(options).X, large_size(options).rank, {}
    rng = np.random.default_rng(1)
    if kind == "float64 with gaps":
        X = X.astype(np.float64)
        X.reshape(-1)[rng.integers(X.size, size=X.size // 10)] = np.nan
    if kind == "float32 with weights":
        given["weights"] = rng.uniform(0.2, 1.0, X.shape[1]).astype(np.float32) * np.ones_like(X)
    if kind == "uint16":
        X = np.minimum(X, 60000).astype(np.uint16)
    model, some = default_fit(rank)(0), {name: values[:100] for name, values in given.items()}
    with silenced():
        default_fit(rank)(0).fit(X[:100], **some)  # compiled code and thread pools are no part of the fit
        peaks: dict[str, Any] = {"input": X.nbytes}
        for what in ("fit", "transform", "clean", "outlier_mask"):
            before, watch, begin = resident(), MemoryWatch(), perf_counter()
            watch.start()
            result = getattr(model, what)(X, **given)
            peaks[what] = watch.stop() - before, perf_counter() - begin
            del result
    print(json.dumps(peaks))


class MemoryWatch(threading.Thread):
    """Looks at the memory in use every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.peak = resident()

    def run(self) -> None:
        while not self.done.wait(0.002):
            self.peak = max(self.peak, resident())

    def stop(self) -> int:
        """Return the most bytes seen."""
        self.done.set()
        self.join()
        return self.peak


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ------------------------------------------------------------------------------- other programs, to the same error


# Iterations that rivals make, until they reach the error. It is so many times that of least squares that has converged.
RIVAL_ITER, NEAR_THE_BEST = (25, 50, 100, 200, 400, 800), 1.01


def other_programs(options: Options) -> Report:
    from rivals import RIVALS

    report = Report("rivals")
    clean = load_orl().data.astype(np.float64)
    sets = {"faces": (clean[:100] if options.quick else clean, 10 if options.quick else 40)}
    if not options.quick:
        sets["4000 x 1000"] = (synthetic(Size(4000, 1000, 20), noise=0.05).X, 20)
    for what, (X, rank) in sets.items():
        data = Real(X)
        best = fit_and_judge(plain_nmf(rank, max_iter=1000, tol=1e-6), data, 0).quality
        report.note(f"{what}: the error to be reached is {NEAR_THE_BEST:g} times {best:.5f}.")
        mine = {
            OURS: default_fit(rank),
            LEAST_SQUARES: lambda seed, rank=rank: RobustNMF(rank, method="l2", random_state=seed),
        }
        contestants = [
            Contestant(f"{what}: {name}", partial(reach, partial(our_factors, make), X, NEAR_THE_BEST * best, (0,)))
            for name, make in mine.items()
        ]
        for name, run in RIVALS.items():
            try:
                trials = {n: run(X, rank, 2, 0, n)[0] for n in (usable_cores(), 1)}
            except ImportError as error:
                report.note(f"{name} is left out: {error}")
                continue
            n_threads = min(trials, key=trials.__getitem__)
            report.threads[f"{what}: {name}"] = n_threads
            factors = partial(rival_factors, run, rank, n_threads)
            run_to = partial(reach, factors, X, NEAR_THE_BEST * best, RIVAL_ITER)
            contestants.append(Contestant(f"{what}: {name}", run_to, partial(factors, X, TRIAL_ITER, 0)))
        duel(report, contestants, options.times(1), ERROR)
        for rival in contestants[2:]:
            for ours in contestants[:2]:
                report.compare(ours.name, rival.name)
    report.note(
        f"Rivals make {', '.join(map(str, RIVAL_ITER))} iterations, each from the start: the time is that of the first "
        "run that reaches the error. Ours is that of a whole fit."
    )
    return report


def our_factors(make: Callable[[int], RobustNMF], X: Matrix, n_iter: int, seed: int) -> tuple[float, Matrix, Matrix]:
    """Return the seconds and the factors of a fit until it converges, whatever the number of iterations."""
    model = make(seed)
    codes, seconds = fit(model, X)
    return seconds, codes, model.components_


def rival_factors(
    run: Callable[..., Any], rank: int, n_threads: int, X: Matrix, n_iter: int, seed: int
) -> tuple[float, Matrix, Matrix]:
    """Return the seconds and the factors of so many iterations of another program."""
    with silenced():
        seconds, codes, components = run(X, rank, n_iter, seed, n_threads)
    return seconds, codes, components


def reach(factors: Callable[..., Any], X: Matrix, target: float, counts: Sequence[int], seed: int) -> Outcome:
    """Return the first of several runs with more and more iterations whose error is as low as the target."""
    for n_iter in counts:
        seconds, codes, components = factors(X, n_iter, seed)
        error = relative_error(X, codes @ components)
        if error <= target:
            return Outcome(seconds, error)
    return Outcome(inf, error)


# ------------------------------------------------------------------------------------------------------ missing entries


class Gaps(NamedTuple):
    """Data with missing entries and a start."""

    X: Matrix
    """0 where missing."""
    M: Matrix
    """1 where observed, else 0."""
    rank: int
    peer_iter: int

    def error(self, product: Matrix) -> float:
        """Return the sum of squares over observed entries."""
        return float(np.sum((self.M * (self.X - product)) ** 2))

    def start(self, seed: int) -> tuple[Matrix, Matrix]:
        return RandomStart()(self.X.T, self.M.T, self.rank, np.random.default_rng(seed))


def weighted(options: Options) -> Report:
    report, data = Report("weighted"), gaps(options)
    name, run = f"{OURS} l2", partial(least_squares, data)
    others = peers(report, {"NonnegMFPy": lambda: nonneg_mf(data), "wNMF": lambda: weighted_nmf(data)})
    measure = "weighted squared error"
    for repeat, outcomes in compete(
        report, [Contestant(name, run, partial(run, 0, TRIAL_ITER)), *others], options.times()
    ):
        for peer in others:
            report.add(peer.name, repeat, outcomes[peer.name], measure)
            reached = reaching(outcomes[name], outcomes[peer.name].quality)
            report.add(f"{name}, to the error of {peer.name}", repeat, reached, measure)
    for peer in others:
        report.compare(f"{name}, to the error of {peer.name}", peer.name, 1 / 10)
    report.note(
        "The peer runs a fixed number of iterations; ours is the time until the error is as low, without checks of the "
        "data and the encoding after the last iteration. NonnegMFPy has our start, wNMF draws its own."
    )
    return report


def gaps(options: Options) -> Gaps:
    size = Size(200, 100, 5) if options.quick else Size(1000, 500, 10)
    X = synthetic(size, noise=0.02).X
    observed = np.random.default_rng(1).random(X.shape) >= 0.3
    return Gaps(np.where(observed, X, 0), observed.astype(np.float64), size.rank, 50 if options.quick else 500)


def least_squares(data: Gaps, seed: int, max_iter: int | None = None) -> Outcome:
    """Return our fit, with the weighted squared error after each iteration as its path."""
    X = np.where(data.M > 0, data.X, np.nan)
    start = {"init": RandomStart(), "random_state": np.random.default_rng(seed)}
    limits = {"tol": 0.0, "max_iter": max_iter or 2 * data.peer_iter}
    model = RobustNMF(data.rank, method="l2", **limits, **start)
    seconds = fit(model, X)[1]
    errors = 2 * model.history_["objective"]
    W, H = data.start(seed)
    if not np.isclose(errors[0], data.error((W @ H).T), rtol=1e-6):
        raise AssertionError("The objective is not half the weighted squared error.")
    return Outcome(seconds, path=(model.history_["seconds"], errors))


def nonneg_mf(data: Gaps) -> Contestant:
    """Return NonnegMFPy, made to run all its iterations."""
    from NonnegMFPy import nmf

    def run(seed: int, n_iter: int = data.peer_iter) -> Outcome:
        W, H = data.start(seed)
        with redirect_stdout(io.StringIO()):  # it reports every twenty iterations
            begin = perf_counter()
            model = nmf.NMF(data.X, V=data.M, W=H.T, H=W.T, n_components=data.rank)
            model.SolveNMF(maxiters=n_iter, tol=-inf)
            seconds = perf_counter() - begin
        return Outcome(seconds, data.error(model.W @ model.H))

    return Contestant(f"NonnegMFPy, {data.peer_iter} iterations", run, partial(run, 0, TRIAL_ITER), blas_threads)


def weighted_nmf(data: Gaps) -> Contestant:
    """Return wNMF, which always runs all its iterations; it has features in rows."""
    from wNMF import wNMF

    def run(seed: int, n_iter: int = data.peer_iter) -> Outcome:
        X, M = data.X.T.copy(), data.M.T.copy()  # it writes into what it is given
        model = wNMF(data.rank, max_iter=n_iter, random_state=seed, verbose=0)
        begin = perf_counter()
        model.fit(X, M)
        seconds = perf_counter() - begin
        return Outcome(seconds, data.error((model.U @ model.V).T))

    return Contestant(f"wNMF, {data.peer_iter} iterations", run, partial(run, 0, TRIAL_ITER), blas_threads)


# -------------------------------------------------------------------------------- scaling, transform, start-up, profile


def scaling(options: Options) -> Report:
    report = Report("scaling")
    base = Size(500, 250, 10) if options.quick else Size(2000, 1000, 20)
    wider, deeper = base._replace(n_samples=2 * base.n_samples), base._replace(rank=2 * base.rank)
    sizes = (base, wider, deeper)
    names = [f"{n} x {m}, rank {r}" for n, m, r in sizes]
    data = [synthetic(size, noise=0.05, outliers=0.1) for size in sizes]
    fits = [ours(default_fit(size.rank), some) for size, some in zip(sizes, data, strict=True)]
    contestants = [fitting._replace(name=name) for fitting, name in zip(fits, names, strict=True)]
    duel(report, contestants, options.times(), ERROR)
    report.compare(names[1], names[0], 2.05)
    report.compare(names[2], names[0], 2.1)
    report.note("These are seconds of whole fits, of data that has as many components as are fitted.")
    return report


def transform(options: Options) -> Report:
    report, data = Report("transform"), faces(options)
    seeds = range(1, 4)
    new = np.vstack([salt_and_pepper(data.clean, 0.4, random_state=seed).data for seed in seeds])
    clean, n_new = np.tile(data.clean, (len(seeds), 1)), 250 if options.quick else 1000
    models = {OURS: default_fit(data.rank)(0), SKLEARN: plain_nmf(data.rank, max_iter=200)(0)}
    for model in models.values():
        fit(model, data.X)

    def run(model: Any, seed: int) -> Outcome:
        with silenced():
            begin = perf_counter()
            codes = model.transform(new[:n_new])
            seconds = perf_counter() - begin
        return Outcome(seconds, relative_error(clean[:n_new], codes @ model.components_))

    contestants = [
        Contestant(OURS, partial(run, models[OURS])),
        Contestant(SKLEARN, partial(run, models[SKLEARN]), limit=blas_threads),
    ]
    duel(report, contestants, options.times(), ERROR)
    report.compare(OURS, SKLEARN, 3.0)
    return report


IMPORT = "from time import perf_counter; begin = perf_counter(); {}; print(perf_counter() - begin)"

FIRST_AND_SECOND_FIT = """
import sys, warnings
from time import perf_counter, process_time
import numpy as np
dtype, kind, cache = sys.argv[1:]
if cache == "without":
    from numba.core import caching
    caching.CacheImpl._locator_classes = []  # as where no folder is writable
    import logging
    logging.getLogger("robustnmf").setLevel(logging.ERROR)
from robustnmf import RobustNMF
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = (rng.random((100, 3)) @ rng.random((3, 50)) * rng.uniform(0.95, 1.05, (100, 50))).astype(dtype)
given = {"weights": rng.uniform(0.2, 1, X.shape).astype(dtype)} if kind == "weights" else {}
if kind == "gaps":
    X[rng.random(X.shape) < 0.1] = np.nan
for _ in range(2):
    begin = perf_counter()
    RobustNMF(3, random_state=0).fit(X, **given)
    print(perf_counter() - begin)
"""
# What the first fit of a process is made of: dtype, kind of data, and whether compiled kernels are on disk.
FIRST_FITS = (
    ("float64", "dense", "warm"),
    ("float64", "dense", "cold"),
    ("float32", "dense", "cold"),
    ("float64", "gaps", "cold"),
    ("float32", "gaps", "cold"),
    ("float64", "weights", "cold"),
    ("float32", "weights", "cold"),
    ("float64", "weights", "without"),
)


def start_up(options: Options) -> Report:
    report = Report("start-up")
    import_times(report, 3 if options.quick else 7)
    for dtype, kind, cache in FIRST_FITS:
        first_fits(report, dtype, kind, cache, 1 if options.quick else 3, limit=0.2 if cache == "warm" else 3.0)
    return report


def import_times(report: Report, n_runs: int) -> None:
    """Measure our import against that of what it needs of scikit-learn, each in a process of its own."""
    names = [f"import {module}" for module in ("robustnmf", "sklearn.decomposition")]
    duel(report, [Contestant(name, partial(import_once, name)) for name in names], n_runs, "")
    add_difference(report, *names, limit=0.3)


def import_once(statement: str, seed: int) -> Outcome:
    return Outcome(*in_process(IMPORT.format(statement)))


def first_fits(report: Report, dtype: str, kind: str, cache: str, n_runs: int, limit: float) -> None:
    """Measure the first fit of a process against the second, with compiled kernels on disk or without."""
    first, second = (f"{which} fit, {dtype}, {kind}, {cache} cache" for which in ("first", "second"))
    measure = partial(in_process, FIRST_AND_SECOND_FIT, dtype, kind, cache)
    if cache == "warm":
        measure()  # leaves its kernels on disk
    for repeat in range(n_runs):
        with tempfile.TemporaryDirectory() as folder:
            times = measure(environment={"NUMBA_CACHE_DIR": folder} if cache == "cold" else {})
        for name, seconds in zip((first, second), times, strict=True):
            report.add(name, repeat, Outcome(seconds))
    add_difference(report, first, second, limit=limit)


def in_process(code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> list[float]:
    """Return the numbers that a program prints in a new process, which keeps bytecode as Python does by default."""
    kept = {"PYTHONDONTWRITEBYTECODE": ""}
    command, whole = [sys.executable, "-c", code, *arguments], {**os.environ, **kept, **(environment or {})}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=whole)
    return [float(word) for word in done.stdout.split()]


def add_difference(report: Report, ours: str, rival: str, *, limit: float) -> None:
    """Add a line for two medians whose difference is what counts."""
    mine, theirs = report.of(ours), report.of(rival)
    medians = [float(np.median([run.seconds for run in runs])) for runs in (mine, theirs)]
    difference = medians[0] - medians[1]
    took = (seconds_cell(mine), seconds_cell(theirs))
    result = f"difference {difference:.3g} s"
    report.lines.append(Line(report.case, ours, rival, *took, result, *verdict(difference, limit, " s")))


STAGES = (
    ("start", initializers.MedianStart, "factors"),
    ("start", initializers.RandomStart, "factors"),
    ("stages", staged.Staged, "__call__"),
    ("encoding", encoding.Basis, "encode"),
    ("description", encoding.Basis, "describe"),
)
REST = "the rest: checks, unit, entries held out, joining"
STAGE_NAMES = (*dict.fromkeys(stage for stage, *_ in STAGES), REST)


class Stopwatch:
    """Seconds by stage; a stage within another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.within: list[float] = []
        """For each stage under way, the seconds of stages within it."""

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its seconds added to a stage."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.within.append(0.0)
            begin = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = perf_counter() - begin
                self.seconds[stage] += seconds - self.within.pop()
                if self.within:
                    self.within[-1] += seconds

        return wrapper


def profile(options: Options) -> Report:
    report = Report("profile")
    small, big = faces(options), large_data(options)
    cells: dict[str, list[str]] = {stage: [] for stage in (*STAGE_NAMES, "whole fit")}
    for name, X, rank, n_fits in (
        ("ORL", small.X, small.rank, options.times(3)),
        ("large", big.X, large_size(options).rank, 1),
    ):
        fit(default_fit(rank)(0), X[:100])
        stages = [stage_seconds(X, rank, seed) for seed in range(n_fits)]
        whole = sum(sum(seconds.values()) for seconds in stages) / n_fits
        for stage, row in cells.items():
            mean = whole if stage == "whole fit" else sum(seconds[stage] for seconds in stages) / n_fits
            row.append(f"{mean:.3g} s ({mean / whole:.0%})")
        for repeat, seconds in enumerate(stages):
            for stage in STAGE_NAMES:
                report.add(f"{name}: {stage}", repeat, Outcome(seconds[stage]))
    table = markdown_table(("stage", "ORL", "large"), [(stage, *row) for stage, row in cells.items()])
    report.tables.append(f"## Where the time of a fit goes\n\n{table}")
    return report


def stage_seconds(X: Matrix, rank: int, seed: int) -> Counter[str]:
    """Return the seconds of a fit by stage."""
    watch = Stopwatch()
    with ExitStack() as stack:
        for stage, owner, name in STAGES:
            stack.enter_context(patch.object(owner, name, watch.timed(stage, getattr(owner, name))))
        seconds = fit(default_fit(rank)(seed), X)[1]
    watch.seconds[REST] = seconds - sum(watch.seconds.values())
    return watch.seconds


CASES: Mapping[str, Callable[[Options], Report]] = {
    "orl-200": orl_200,
    "orl-1000": orl_1000,
    "orl-literal": orl_literal,
    "large": large,
    "large-clean": large_clean,
    "square": square,
    "memory": memory,
    "ar-size": ar_size,
    "real-sets": real_data,
    "rivals": other_programs,
    "weighted": weighted,
    "scaling": scaling,
    "transform": transform,
    "start-up": start_up,
    "profile": profile,
}


# --------------------------------------------------------------------------------------------------------------- output


def write(path: Path, text: str) -> None:
    """Write a file that is there in whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


def csv_text(reports: Iterable[Report]) -> str:
    """Return one line for each run."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(Run._fields)
    for run in (run for report in reports for run in report.runs):
        value = f"{run.value:.6g}" if run.quality else ""
        lines.writerow((run.case, run.contestant, run.repeat, f"{run.seconds:.6g}", run.quality, value))
    return text.getvalue()


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(reports: Sequence[Report], options: Options, load: str) -> str:
    """Return the table of targets, the notes, other tables and what it was measured on."""
    blocks = ["# Speed"]
    if options.quick:
        blocks.append("A quick run with reduced sizes: it tests the benchmark, and the targets mean nothing.")
    blocks.append(
        "Medians over repeats in which the contestants took turns; the ratio is the median of the ratios within a "
        "repeat. Lines without a target are for information."
    )
    blocks.append(markdown_table(HEADS, [line for report in reports for line in report.lines]))
    notes = [f"- {report.case}: {note}" for report in reports for note in (*report.notes, *thread_notes(report))]
    blocks += ["\n".join(notes)] if notes else []
    blocks += [table for report in reports for table in report.tables]
    blocks.append("## Measured on\n\n" + "\n".join(f"- {line}" for line in (*environment(), load)))
    return "\n\n".join(blocks) + "\n"


def thread_notes(report: Report) -> Iterator[str]:
    """Yield a sentence on the threads of the rivals, if there are any."""
    if report.threads:
        yield "Threads that suited the rivals: " + "; ".join(f"{name}: {n}" for name, n in report.threads.items()) + "."


def environment() -> Iterator[str]:
    """Yield what the times depend on."""
    yield f"{cpu_model()}, {os.cpu_count()} cores, {usable_cores()} of them usable; {platform.system()}"
    yield f"Python {platform.python_version()}"
    for name in ("robustnmf", "numpy", "scipy", "scikit-learn", "numba", "threadpoolctl", *PEERS):
        yield f"{name} {version(name)}"
    yield f"threads of Numba, which our fits take: {numba.get_num_threads()}"
    for pool in threadpool_info():
        about = [pool.get(key) for key in ("internal_api", "version", "threading_layer", "architecture")]
        yield f"{pool['user_api']}: {', '.join(map(str, filter(None, about)))}, {pool['num_threads']} threads"


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> str:
    """Return how many processes wanted a core, over the last minute."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="reduced sizes, two repeats: a test of the benchmark")
    parser.add_argument("--repeats", type=int, help="repeats of each case (5; 3 for large, 1 for ar-size)")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=f"among {', '.join(CASES)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    parser.add_argument(
        "--processor-time", action="store_true", help="time fits by the processor, on one thread: for a busy machine"
    )
    parser.add_argument("--probe-memory", choices=MEMORY_KINDS, help=argparse.SUPPRESS)  # the process of case memory
    given = parser.parse_args()
    if given.repeats is not None and given.repeats < 1:
        parser.error("--repeats must be at least 1.")
    options = Options(given.quick, given.repeats)
    if given.probe_memory:
        probe_memory(options, given.probe_memory)
        return
    if given.processor_time:
        CLOCK[0] = process_time
        numba.set_num_threads(1)
    out = given.out / "quick" if given.quick else given.out  # a test must not replace results
    before, reports = load_average(), []
    for name in given.only or CASES:
        reports.append(CASES[name](options))
        load = (
            f"load of the machine (mean over a minute): {before} before the first case, {load_average()} after the last"
        )
        write(out / "speed.csv", csv_text(reports))
        write(out / "speed.md", markdown(reports, options, load))
    print(f"\n{(out / 'speed.md').read_text(encoding='utf-8')}")


if __name__ == "__main__":
    main()
