"""How often cross-validation finds the true rank, with and without gross errors.

``python benchmarks/rank_selection.py`` simulates data of a rank between 2 and 8 (120 samples, 80 features, noise of 5 %
of the mean level, factors uniform or, in about half of the data sets, half zeros), once clean and once with 20 % of the
entries replaced by five to ten times the mean level, and lets three procedures choose among the ranks 1 to 12:

robust     `robustnmf.selection.select_rank`
squared    the same fits, but judged by the squared errors of the hidden entries
NMF        scikit-learn's NMF judged by squared errors; hidden entries are imputed and the model refitted, in turn

All use the same splits and the one-standard-error rule. Rows go to the standard output as Markdown. The scoring was
tuned on seeds from 1000 on.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from robustnmf import TruncatedCauchyNMF
from robustnmf.selection import select_rank

Matrix = NDArray[Any]

N_SAMPLES, N_FEATURES = 120, 80
NOISE, OUTLIERS = 0.05, 0.2
LOWEST, HIGHEST = 2, 8
RANKS = range(1, 13)


class Simulated(NamedTuple):
    X: Matrix
    rank: int
    factors: str


def simulate(seed: int, outliers: float) -> Simulated:
    """Return low-rank data with noise and gross errors; the clean part depends on the seed alone."""
    rng = np.random.default_rng(seed)
    rank, sparse = int(rng.integers(LOWEST, HIGHEST + 1)), rng.random() < 0.5
    codes, components = rng.random((N_SAMPLES, rank)), rng.random((rank, N_FEATURES))
    if sparse:
        codes, components = (factor * (rng.random(factor.shape) < 0.5) for factor in (codes, components))
    clean = codes @ components
    level = clean.mean()
    X = np.maximum(clean + NOISE * level * rng.standard_normal(clean.shape), 0)
    wrong = rng.random(clean.shape) < outliers
    X = np.where(wrong, level * rng.uniform(5, 10, clean.shape), X)
    return Simulated(X, rank, "half zeros" if sparse else "uniform")


class ImputedNMF(BaseEstimator):
    """scikit-learn's NMF for data with gaps: they are filled by the last model, and the model is fitted again."""

    def __init__(self, n_components: int = 2, n_rounds: int = 20, max_iter: int = 20, random_state: Any = None) -> None:
        self.n_components = n_components
        self.n_rounds = n_rounds
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Matrix, y: Any = None) -> Self:
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Matrix, y: Any = None) -> Matrix:
        gaps = np.isnan(X)
        filled = np.where(gaps, np.nanmean(X, axis=0), X)
        first = NMF(self.n_components, init="nndsvda", max_iter=200, random_state=self.random_state)
        again = NMF(self.n_components, init="custom", max_iter=self.max_iter)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            codes, components = first.fit_transform(filled), first.components_
            for _ in range(self.n_rounds):
                filled = np.where(gaps, codes @ components, X)
                codes = again.fit_transform(filled, W=codes.copy(), H=components.copy())
                components = again.components_
        self.components_ = components
        return codes


PROCEDURES = {
    "robust": {"estimator": TruncatedCauchyNMF(), "scoring": "robust"},
    "squared": {"estimator": TruncatedCauchyNMF(), "scoring": "squared"},
    "NMF": {"estimator": ImputedNMF(), "scoring": "squared"},
}


def choices(X: Matrix, options: argparse.Namespace) -> dict[str, int]:
    """Return the rank that each procedure chooses."""
    common = {"n_splits": options.splits, "random_state": 0, "n_jobs": options.jobs}
    return {name: select_rank(X, RANKS, **common, **PROCEDURES[name]).chosen for name in options.procedures}


def rows(options: argparse.Namespace) -> Iterator[tuple[int, Simulated, dict[str, int], dict[str, int]]]:
    """Yield seed, data and choices, without outliers and with them."""
    for seed in range(options.first, options.first + options.seeds):
        clean, wrong = simulate(seed, 0.0), simulate(seed, options.outliers)
        yield seed, wrong, choices(clean.X, options), choices(wrong.X, options)


def main() -> None:
    options = parse()
    names = [f"{name}, {kind}" for kind in ("clean", "outliers") for name in options.procedures]
    print(f"| seed | factors | true rank | {' | '.join(names)} |\n|{' --- |' * (3 + len(names))}")
    right = np.zeros(len(names), dtype=int)
    for seed, data, clean, wrong in rows(options):
        chosen = [*clean.values(), *wrong.values()]
        right += np.array(chosen) == data.rank
        print(f"| {seed} | {data.factors} | {data.rank} | {' | '.join(map(str, chosen))} |", flush=True)
    print(f"| right | | {options.seeds} | {' | '.join(map(str, right))} |")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="number of data sets")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--outliers", type=float, default=OUTLIERS, help="share of gross errors")
    parser.add_argument("--splits", type=int, default=5, help="splits of the cross-validation")
    parser.add_argument("--jobs", type=int, default=None, help="fits at a time")
    parser.add_argument("--procedures", nargs="+", choices=PROCEDURES, default=list(PROCEDURES))
    return parser.parse_args()


if __name__ == "__main__":
    main()
