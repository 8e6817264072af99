"""How much of the data may be wrong: breakdown points of every method, and what the outlier mask finds.

``python benchmarks/breakdown.py`` (``make breakdown``) plants gross errors in low-rank data with noise (80 samples, 60
features, rank 3, noise of 2 % of the mean level) and raises their share until a method breaks down: until the error to
the clean data is more than twice what the same method reaches without gross errors. The error is the relative Frobenius
norm, the median over seeds. The breakdown point is the largest share of the grid up to which that did not happen.

Five kinds of contamination:

dense       entries at random, half of them too high by up to the amplitude, half zero
one-sided   entries at random, all too high
blocks      a run of neighbouring features, elsewhere in each sample, too high
rows        whole samples, each entry drawn anew; the error is that of the other samples
columns     whole features, each entry drawn anew; the error is that of the other features

The default is run from its own start, the median one, and from a random one.

and four amplitudes: 1, 10, 1e3 and 1e6 times the mean level of the data.

A second table is that of the outlier mask of the default at 20 % contamination: its recall, of planted errors that
exceed ten standard deviations of the noise, and its precision, over all planted errors. Data for it is larger (300 x
200). Both are written to ``benchmarks/results/breakdown.md``, with the command and the version.
"""

import argparse
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

import robustnmf
from robustnmf import METHODS, RobustNMF

Matrix = NDArray[Any]

N_SAMPLES, N_FEATURES, RANK, NOISE = 80, 60, 3, 0.02
SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
AMPLITUDES = (1.0, 10.0, 1e3, 1e6)
SEEDS = (0, 1, 2)
RANDOM_START = "truncated-cauchy, random start"
FITS: dict[str, dict[str, Any]] = {name: {"method": name} for name in METHODS}
FITS[RANDOM_START] = {"method": "truncated-cauchy", "init": "random"}
"""What is compared: every method as it is, and the default from another start."""
FACTOR = 2.0
"""How many times the error without gross errors is a breakdown."""
MASK_SHARE, MASK_SHAPE, TEN = 0.2, (300, 200), 10.0
RESULTS = Path(__file__).parent / "results" / "breakdown.md"


class Contaminated(NamedTuple):
    """Data with planted errors."""

    X: Matrix
    clean: Matrix
    wrong: Matrix
    """Where errors were planted."""
    judged: Matrix
    """Entries over which the error is taken."""


def clean_data(seed: int, shape: tuple[int, int] = (N_SAMPLES, N_FEATURES)) -> tuple[Matrix, Matrix, float]:
    """Return low-rank data, the same with noise, and the standard deviation of the noise."""
    rng = np.random.default_rng(seed)
    clean = rng.gamma(1.0, 1.0, (shape[0], RANK)) @ rng.gamma(1.0, 1.0, (RANK, shape[1]))
    deviation = NOISE * clean.mean()
    return clean, np.maximum(clean + deviation * rng.standard_normal(shape), 0), deviation


def contaminate(kind: str, share: float, amplitude: float, seed: int, shape: Any = None) -> Contaminated:
    """Return data with a share of errors of one kind."""
    clean, X, _ = clean_data(seed, shape or (N_SAMPLES, N_FEATURES))
    (n, m), rng = X.shape, np.random.default_rng([seed, round(1000 * share)])
    size = amplitude * clean.mean()
    too_high = clean + size * rng.uniform(0.5, 1.5, X.shape)
    judged = np.ones(X.shape, dtype=bool)
    if kind in ("dense", "one-sided"):
        wrong = _some(rng, X.size, share).reshape(X.shape)
        values = np.where(rng.random(X.shape) < 0.5, too_high, 0.0) if kind == "dense" else too_high
    elif kind == "blocks":
        start = rng.integers(m, size=(n, 1))
        wrong, values = (np.arange(m) - start) % m < round(share * m), too_high
    else:
        rows = kind == "rows"
        some = _some(rng, n if rows else m, share)
        wrong = np.broadcast_to(some[:, None] if rows else some, X.shape)
        values, judged = size * rng.uniform(0, 2, X.shape), ~wrong
    return Contaminated(np.where(wrong, values, X), clean, np.array(wrong), np.array(judged))


def _some(rng: np.random.Generator, size: int, share: float) -> Matrix:
    """Return which of some things are chosen: a share, to the nearest number."""
    return np.isin(np.arange(size), rng.choice(size, round(share * size), replace=False))


KINDS = ("dense", "one-sided", "blocks", "rows", "columns")


def error_of(method: str, data: Contaminated, seed: int, max_iter: int) -> float:
    """Return the relative error of a fit over the entries that are judged."""
    model = RobustNMF(RANK, **FITS[method], max_iter=max_iter, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fitted = model.inverse_transform(model.fit_transform(data.X))
        except RuntimeError:  # no solution of a linear program
            return float("inf")
    difference = (fitted - data.clean)[data.judged]
    return float(np.linalg.norm(difference) / np.linalg.norm(data.clean[data.judged]))


class Point(NamedTuple):
    """How far a method holds out."""

    method: str
    kind: str
    amplitude: float
    share: float
    """Largest share of the grid at which it has not broken down, 0 if it has at all."""
    without: float
    """Error without gross errors."""
    n_fits: int


def breakdown_point(
    method: str, kind: str, amplitude: float, shares: Sequence[float], seeds: Sequence[int], max_iter: int
) -> Point:
    """Raise the share of errors until the method breaks down."""

    def error(share: float) -> float:
        data = (contaminate(kind, share, amplitude, seed) for seed in seeds)
        return float(np.median([error_of(method, d, seed, max_iter) for d, seed in zip(data, seeds, strict=True)]))

    without, reached, n_fits = error(0.0), 0.0, len(seeds)
    for share in shares:
        n_fits += len(seeds)
        if not error(share) <= FACTOR * without:
            break
        reached = share
    return Point(method, kind, amplitude, reached, without, n_fits)


class Found(NamedTuple):
    """What a mask has found."""

    kind: str
    amplitude: float
    recall: float
    precision: float


def mask_of(kind: str, amplitude: float, seeds: Iterable[int], max_iter: int) -> Found:
    """Return recall and precision of the mask of the default, over all seeds together."""
    found = planted = hits = claimed = 0
    for seed in seeds:
        data = contaminate(kind, MASK_SHARE, amplitude, seed, MASK_SHAPE)
        deviation = NOISE * data.clean.mean()
        gross = data.wrong & (np.abs(data.X - data.clean) > TEN * deviation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mask = RobustNMF(RANK, max_iter=max_iter, random_state=seed).fit(data.X).outliers_
        found, planted = found + np.sum(mask & gross), planted + np.sum(gross)
        hits, claimed = hits + np.sum(mask & data.wrong), claimed + np.sum(mask)
    return Found(kind, amplitude, float(found / planted), float(hits / max(claimed, 1)))


def table(points: Iterable[Point], kinds: Sequence[str], amplitudes: Sequence[float]) -> list[str]:
    """Return the breakdown points as Markdown: a row for each method, the lowest over all amplitudes in each column."""
    by_method: dict[str, dict[tuple[str, float], Point]] = {}
    for point in points:
        by_method.setdefault(point.method, {})[point.kind, point.amplitude] = point
    lines = ["| method | error without | " + " | ".join(kinds) + " |", "| --- " * (2 + len(kinds)) + "|"]
    for method, found in by_method.items():
        cells = []
        for kind in kinds:
            shares = [found[kind, amplitude].share for amplitude in amplitudes]
            each = " / ".join(f"{100 * share:.0f}" for share in shares)
            cells.append(f"**{100 * min(shares):.0f} %** ({each})")
        without = next(iter(found.values())).without
        lines.append(f"| `{method}` | {100 * without:.1f} % | " + " | ".join(cells) + " |")
    return lines


def mask_table(found: Iterable[Found]) -> list[str]:
    """Return what the mask has found as Markdown."""
    lines = ["| kind | amplitude | recall | precision |", "| --- | --- | --- | --- |"]
    return lines + [f"| {f.kind} | {f.amplitude:g} | {f.recall:.4f} | {f.precision:.4f} |" for f in found]


def run(
    methods: Sequence[str],
    kinds: Sequence[str] = KINDS,
    amplitudes: Sequence[float] = AMPLITUDES,
    shares: Sequence[float] = SHARES,
    seeds: Sequence[int] = SEEDS,
    max_iter: int = 200,
    n_jobs: int = 1,
) -> list[Point]:
    """Return all breakdown points, in order."""
    wanted = [(method, kind, amplitude) for method in methods for kind in kinds for amplitude in amplitudes]
    task: Callable[..., Any] = delayed(breakdown_point)
    return list(Parallel(n_jobs)(task(*which, shares, seeds, max_iter) for which in wanted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(FITS), choices=list(FITS), metavar="METHOD")
    parser.add_argument("--jobs", type=int, default=2, help="fits at a time")
    parser.add_argument("--max-iter", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to write; - for the screen alone")
    options = parser.parse_args()
    begin = perf_counter()
    points = run(options.methods, max_iter=options.max_iter, n_jobs=options.jobs)
    kinds = [kind for kind in KINDS if kind not in ("rows", "columns")]
    masks = Parallel(options.jobs)(
        delayed(mask_of)(kind, amplitude, SEEDS, options.max_iter) for kind in kinds for amplitude in AMPLITUDES
    )
    text = "\n".join(
        [
            "# Breakdown points",
            "",
            f"`make breakdown` with robustnmf {robustnmf.__version__}: {sum(point.n_fits for point in points)} fits of "
            f"{N_SAMPLES} x {N_FEATURES}, rank {RANK}, {len(SEEDS)} seeds, {perf_counter() - begin:.0f} s. "
            "`benchmarks/breakdown.py` says what is done.",
            "",
            "In each cell: the largest share of errors at which the error to the clean data is at most twice that "
            "without errors, the lowest over all amplitudes, and in brackets at amplitudes of "
            + ", ".join(f"{amplitude:g}" for amplitude in AMPLITUDES)
            + f" times the level of the data. The grid ends at {100 * SHARES[-1]:.0f} %.",
            "",
            *table(points, KINDS, AMPLITUDES),
            "",
            "# The outlier mask of the default",
            "",
            f"At {100 * MASK_SHARE:.0f} % contamination of {MASK_SHAPE[0]} x {MASK_SHAPE[1]}: recall of planted errors "
            "of more than ten standard deviations of the noise, precision over all planted errors.",
            "",
            *mask_table(masks),
            "",
        ]
    )
    print(text)
    if str(options.out) != "-":
        options.out.parent.mkdir(exist_ok=True)
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
