"""Does a handful of firework days change the sources of particles that are found at Baltimore?

``python benchmarks/fireworks.py`` factorises the concentrations of 24 species with their uncertainties, once with and
once without the days about New Year and the 4th of July, and prints one line for each model as Markdown (minutes;
``--starts 2 --runs 2 --ranks 7`` for a look).

A run is the best of a few starts by the model's own objective, as is the custom in source apportionment; the default of
`TruncatedCauchyNMF`, whose objectives cannot be compared between starts, makes one. Its line tells how many of its fits
warn that they should not be trusted. Columns:

without the days   cosine similarities of matched components, in units of the median uncertainty, of the fits with and
                   without the firework days, by the same seeds: the least, the mean over runs; and the mean of all
other starts       the same for two runs on the same data: what is below this is not the fireworks' doing
mass moved         how much of the mass changes its source on the other days: half the sum of the absolute differences
                   of the mean contributions, as a share of their sum
potassium cut      on how many of the days on which it exceeds five medians, and on how many of all other days, the
                   entry of potassium is in the mask of outliers

Samples with a filled-in value are dropped.
"""

import argparse
import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.datasets import load_baltimore
from robustnmf.errors import DataQualityWarning
from robustnmf.metrics import match_components

Matrix = NDArray[Any]

# Month and days on which fireworks are let off, or still in the air. Not the 7th and 8th of July: in 2002 the smoke of
# forest fires in Quebec reached Baltimore then.
FIREWORKS = {12: (31,), 1: (1,), 7: (1, 2, 3, 4, 5)}
# Medians of potassium from which on fireworks can be seen.
VISIBLE = 5.0
CONVERGED = {"tol": 1e-7, "max_iter": 3000}


class Air(NamedTuple):
    """Samples in rows, species in columns."""

    X: Matrix
    U: Matrix
    dates: Matrix
    potassium: int
    """Its column."""

    @property
    def fireworks(self) -> Matrix:
        """Whether a day is one of fireworks, by the calendar alone, (n,)."""
        return np.array([day.day in FIREWORKS.get(day.month, ()) for day in self.dates.astype(object)])

    def choose(self, samples: Matrix) -> "Air":
        """Return some of the samples."""
        return self._replace(X=self.X[samples], U=self.U[samples], dates=self.dates[samples])


class Fit(NamedTuple):
    """What a model found."""

    components: Matrix
    """(n_components, n_species), micrograms."""
    codes: Matrix
    outliers: Matrix
    objective: float
    distrusted: bool = False
    """Whether the model warned of the quality of the data."""


class Model(NamedTuple):
    """One line of the table."""

    name: str
    fit: Callable[[Air, int, int], Fit]
    """Of data, rank and seed."""
    one_start: bool = False


# ----------------------------------------------------------------------------------------------------------- the models


def read() -> Air:
    """Return the samples that were measured in full."""
    data = load_baltimore()
    potassium = list(data.feature_names).index("Potassium Ion")
    air = Air(data.data, data.uncertainties, data.dates, potassium)
    return air.choose(~data.filled_in.any(axis=1))


def scikit_learn(air: Air, rank: int, seed: int) -> Fit:
    """Fit scikit-learn's NMF, which knows one uncertainty for each species."""
    typical = np.median(air.U, axis=0)
    model = NMF(rank, init="random", random_state=seed, tol=1e-6, max_iter=3000)
    codes = model.fit_transform(air.X / typical)
    nothing = np.zeros(air.X.shape, dtype=bool)
    return Fit(model.components_ * typical, codes, nothing, model.reconstruction_err_)


def ours(**options: Any) -> Callable[[Air, int, int], Fit]:
    """Return a fit of one of our models with the uncertainty of every entry."""

    def fit(air: Air, rank: int, seed: int) -> Fit:
        model = RobustNMF(rank, random_state=seed, **options)
        codes = model.fit_transform(air.X, uncertainties=air.U)
        return Fit(model.components_, codes, model.outliers_, model.objective_)

    return fit


def default(air: Air, rank: int, seed: int) -> Fit:
    """Fit the default, which finds scale and cut by itself."""
    model = TruncatedCauchyNMF(rank, random_state=seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataQualityWarning)
        codes = model.fit_transform(air.X, uncertainties=air.U)
    distrusted = any(issubclass(each.category, DataQualityWarning) for each in caught)
    return Fit(model.components_, codes, model.outliers_, model.objective_, distrusted)


def models(scales: Sequence[float], sigma: float) -> list[Model]:
    """Return the lines of the table; scales are in typical uncertainties."""
    fixed = [
        Model(
            f"truncated Cauchy, scale {scale:g}, cut {scale * sigma**0.5:g}",
            ours(scale=scale, outliers=sigma, schedule="plain", **CONVERGED),
        )
        for scale in scales
    ]
    return [
        Model("NMF of scikit-learn", scikit_learn),
        Model("weighted least squares", ours(method="l2", **CONVERGED)),
        Model("truncated Cauchy, default", default, one_start=True),
        *fixed,
    ]


# --------------------------------------------------------------------------------------------------------- the measures


def best(model: Model, air: Air, rank: int, run: int, starts: int) -> Fit:
    """Return the best fit of a run."""
    starts = 1 if model.one_start else starts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [model.fit(air, rank, starts * run + start) for start in range(starts)]
    return min(fits, key=lambda fit: fit.objective)


def similarities(a: Fit, b: Fit, typical: Matrix) -> Matrix:
    """Return the cosines of matched components, (n_components,)."""
    return match_components(a.components / typical, b.components / typical).similarities


def summary(cosines: Sequence[Matrix]) -> str:
    """Return the smallest cosine of a comparison, the mean over comparisons with its spread, and the mean of all."""
    least = [float(each.min()) for each in cosines]
    return f"{np.mean(least):.2f} ({min(least):.2f}–{max(least):.2f}), {np.mean(cosines):.3f}"


def mass_moved(a: Fit, b: Fit, common: Matrix, typical: Matrix) -> float:
    """Return how much of the mean mass of common samples changes its source; `common` are those of `a` in `b`."""
    order = match_components(a.components / typical, b.components / typical).permutation
    before = a.codes[common].mean(axis=0) * a.components.sum(axis=1)
    after = (b.codes.mean(axis=0) * b.components.sum(axis=1))[order]
    return float(np.abs(before - after).sum() / (before.sum() + after.sum()))


def line(model: Model, air: Air, rank: int, runs: int, starts: int) -> str:
    """Return a line of the table."""
    days, typical = air.fireworks, np.median(air.U, axis=0)
    with_days = [best(model, air, rank, run, starts) for run in range(runs)]
    without = [best(model, air.choose(~days), rank, run, starts) for run in range(runs)]
    effect = [similarities(a, b, typical) for a, b in zip(with_days, without, strict=True)]
    chance = [similarities(a, b, typical) for fits in (with_days, without) for a, b in combinations(fits, 2)]
    moved = [mass_moved(a, b, ~days, typical) for a, b in zip(with_days, without, strict=True)]
    potassium = air.X[:, air.potassium]
    visible = days & (potassium > VISIBLE * np.median(potassium))
    cut = np.mean([fit.outliers[:, air.potassium] for fit in with_days], axis=0)
    masked = f"{cut[visible].sum():.1f} of {visible.sum()}, {cut[~days].sum():.1f} of {(~days).sum()}"
    if not any(fit.outliers.any() for fit in with_days):
        masked = "no mask"
    warned = sum(fit.distrusted for fit in with_days + without)
    name = f"{model.name} ({warned} of {2 * runs} warn)" if warned else model.name
    return f"| {rank} | {name} | {summary(effect)} | {summary(chance)} | {np.mean(moved):.1%} | {masked} |"


def parse() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[6, 7], help="numbers of components (default: 6 7)")
    parser.add_argument("--runs", type=int, default=4, help="runs of every model, at least 2 (default: 4)")
    parser.add_argument("--starts", type=int, default=8, help="starts of each run (default: 8)")
    parser.add_argument(
        "--scales", type=float, nargs="*", default=[4, 8, 16], help="fixed scales, in uncertainties (default: 4 8 16)"
    )
    parser.add_argument("--sigma", type=float, default=9, help="cut at scale * sqrt(sigma) (default: 9)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    options = parser.parse_args()
    if options.runs < 2:
        parser.error("--runs must be at least 2, to tell the effect of the days from that of the start")
    return options


def main() -> None:
    """Print the table."""
    options = parse()
    air = read()
    visible = air.X[:, air.potassium] > VISIBLE * np.median(air.X[:, air.potassium])
    print(f"{len(air.X)} samples; {air.fireworks.sum()} firework days, potassium above {VISIBLE:g} medians on:")
    print(", ".join(map(str, air.dates[air.fireworks & visible])), end="\n\n")
    print("| rank | model | without the days: least, mean | other starts: least, mean | mass moved | potassium cut |")
    print("| --- | --- | --- | --- | --- | --- |")
    cases = [(model, rank) for rank in options.ranks for model in models(options.scales, options.sigma)]
    work = Parallel(n_jobs=options.jobs, return_as="generator")(
        delayed(line)(model, air, rank, options.runs, options.starts) for model, rank in cases
    )
    for text in work:
        print(text, flush=True)


if __name__ == "__main__":
    main()
