"""Counts with planted components, gross errors, drop-outs and samples of different sizes, beside scikit-learn's NMF.

``python benchmarks/counts.py`` (``make counts``) writes ``benchmarks/results/counts.md`` (less than ten minutes on one
core). Simulated counts are Poisson, but for those that are overdispersed. Constants of ``noise="poisson"`` were chosen
with seeds 0 to 2 of the first two kinds; here are others. Real counts are split in two by thinning: a fit to one half
is judged by how well it predicts the other.
"""

import argparse
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from real_sets import SETS
from scipy.optimize import linear_sum_assignment
from scipy.special import kl_div
from sklearn.decomposition import NMF

from robustnmf import RobustNMF

Matrix = NDArray[np.float64]
Model = Callable[[int], Any]

RESULTS = Path(__file__).parent / "results" / "counts.md"
FIRST_SEED, RANK = 10, 5
# Shape of data of which so much is positive: components need enough counts to be found at all.
SHAPES = {0.02: (1500, 400), 0.1: (600, 200), 0.5: (600, 200)}
REAL = ("lee-news", "reuters", "wikipedia", "pancreas", "tumour-t-cells", "pbmc-small", "twins", "breast-substitutions")


def plain(loss: str) -> Model:
    solver = {"frobenius": "cd", "kullback-leibler": "mu"}[loss]
    return lambda rank: NMF(rank, init="nndsvda", beta_loss=loss, solver=solver, max_iter=500, random_state=0)


def ours(**parameters: Any) -> Model:
    return lambda rank: RobustNMF(rank, random_state=0, **parameters)


AUTO, POISSON = "ours, noise='auto'", "ours, noise='poisson'"
FROBENIUS, KL = "scikit-learn, Frobenius", "scikit-learn, Kullback-Leibler"
MODELS: dict[str, Model] = {
    AUTO: ours(),
    POISSON: ours(noise="poisson"),
    FROBENIUS: plain("frobenius"),
    KL: plain("kullback-leibler"),
}
SCALED: dict[str, Model] = {
    AUTO: MODELS[AUTO],
    f"{AUTO}, sample_scaling='total'": ours(sample_scaling="total"),
    POISSON: MODELS[POISSON],
    f"{POISSON}, sample_scaling='total'": ours(noise="poisson", sample_scaling="total"),
    FROBENIUS: MODELS[FROBENIUS],
    KL: MODELS[KL],
}


class Case(NamedTuple):
    """A kind of simulated counts."""

    kind: str = "gamma"
    """"gamma" for factors of which half are zero, "topics" for Dirichlet's, "overdispersed" for gamma ones with
    negative binomial counts, "small cells" for a component that only the smallest samples have."""
    positive: float = 0.1
    """Share of positive entries, before drop-outs."""
    sizes: float = 1.0
    """Ratio of the largest to the smallest sample."""
    errors: float = 0.0
    """Share of the stored entries that are then 20 to 200 times as large as a large count."""
    drop_outs: float = 0.0
    """Share of the entries that are then zero."""

    def draw(self, seed: int) -> tuple[Matrix, Matrix]:
        """Return counts and components."""
        rng = np.random.default_rng(seed)
        H, W = self.factors(rng)
        H = H * np.exp(rng.uniform(0, np.log(self.sizes), (len(H), 1)))
        if self.kind == "small cells":
            H = only_in_small(H)
        P = H @ W
        P = P * density_factor(P, self.positive)
        X = rng.poisson(P * rng.gamma(2, 0.5, P.shape) if self.kind == "overdispersed" else P).astype(float)
        X[rng.random(X.shape) < self.drop_outs] = 0
        X = with_errors(X, self.errors, rng)
        return X[X.any(axis=1)], W

    def factors(self, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        n, m = SHAPES[self.positive]
        if self.kind == "topics":
            return rng.dirichlet(np.full(RANK, 0.3), n), rng.dirichlet(np.full(m, 0.1), RANK)
        H, W = (rng.gamma(0.5, 1, shape) * (rng.random(shape) < 0.5) for shape in ((n, RANK), (RANK, m)))
        return H, W


def only_in_small(H: Matrix) -> Matrix:
    """Return codes in which the smallest fifth of the samples has the last component alone, and no others have it."""
    small = H.sum(axis=1) <= np.quantile(H.sum(axis=1), 0.2)
    H = H.copy()
    H[~small, -1] = 0
    H[small] = H[small].sum(axis=1, keepdims=True) * np.eye(H.shape[1])[-1]
    return H


def density_factor(P: Matrix, share: float) -> float:
    """Return the factor of expected counts with which a share of the counts is positive."""
    low, high = 1e-6, 1e7
    for _ in range(60):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if (1 - np.exp(-middle * P)).mean() < share else (low, middle)
    return float(middle)


def with_errors(X: Matrix, share: float, rng: np.random.Generator) -> Matrix:
    """Return counts with gross errors among those that are positive."""
    wrong = (X > 0) & (rng.random(X.shape) < share)
    return np.where(wrong, rng.uniform(20, 200, X.shape) * np.quantile(X[X > 0], 0.99), X)


def cosines(found: Matrix, planted: Matrix) -> Matrix:
    """Return the cosine of each planted component with the one that was found for it."""
    a, b = (F / np.maximum(np.linalg.norm(F, axis=1, keepdims=True), 1e-30) for F in (found, planted))
    rows, columns = linear_sum_assignment(-(b @ a.T))
    return np.asarray((b @ a.T)[rows, columns])


def found_components(model: Model, case: Case, seed: int) -> Matrix:
    X, W = case.draw(seed)
    return cosines(model(RANK).fit(X).components_, W)


def row(name: str, values: Iterable[str]) -> str:
    return f"| {name} | " + " | ".join(values) + " |"


def head(name: str, columns: Sequence[str]) -> str:
    return row(name, columns) + "\n" + row("---", ["---"] * len(columns))


def table(cases: dict[str, Case], models: dict[str, Model], n_seeds: int) -> Iterator[str]:
    """Yield the median over seeds of the median cosine, and the smallest of these, in brackets."""
    yield head("counts", list(models))
    for name, case in cases.items():
        cells = []
        for model in models.values():
            medians = [np.median(found_components(model, case, FIRST_SEED + seed)) for seed in range(n_seeds)]
            cells.append(f"{np.median(medians):.3f} ({min(medians):.2f})")
        yield row(name, cells)


def simulated() -> dict[str, Case]:
    cases = {}
    for kind, shares in (("gamma", SHAPES), ("topics", SHAPES), ("overdispersed", (0.1, 0.5))):
        for positive in shares:
            for sizes in (1, 100) if kind != "overdispersed" else (10,):
                for errors in (0, 0.01):
                    wrong = ", 1 % errors" if errors else ""
                    name = f"{kind}, {positive:.0%} positive, sizes 1 to {sizes}{wrong}"
                    cases[name] = Case(kind, positive, sizes, errors)
    return cases


def inflated() -> dict[str, Case]:
    return {
        f"{kind}, {positive:.0%} positive, {share:.0%} drop-outs{', 1 % errors' if errors else ''}": Case(
            kind, positive, 10, errors, share
        )
        for kind in ("gamma", "topics")
        for positive in (0.1, 0.5)
        for share, errors in ((0.1, 0), (0.3, 0), (0.3, 0.01), (0.5, 0))
    }


def of_sizes() -> dict[str, Case]:
    return {
        f"gamma, {positive:.0%} positive, sizes 1 to {sizes}": Case("gamma", positive, sizes)
        for positive in (0.1, 0.5)
        for sizes in (10, 100)
    }


def small_cells(n_seeds: int) -> Iterator[str]:
    """Yield the cosine of the component that only small samples have."""
    yield head("counts", list(SCALED))
    for sizes in (10, 100):
        case, cells = Case("small cells", 0.5, sizes), []
        for model in SCALED.values():
            found = [found_components(model, case, FIRST_SEED + seed)[-1] for seed in range(n_seeds)]
            cells.append(f"{np.median(found):.3f} ({min(found):.2f})")
        yield row(f"sizes 1 to {sizes}", cells)


def real(n_seeds: int) -> Iterator[str]:
    """Yield the divergence of one half of the counts from what a fit to the other half predicts."""
    yield head("counts", ["samples x features, positive", "errors", *MODELS])
    for name in REAL:
        X, rank = np.asarray(SETS[name].load()), SETS[name].rank
        shape = f"{X.shape[0]} x {X.shape[1]}, {(X > 0).mean():.0%}"
        for errors in (0, 0.01):
            scores = {
                model: [left(X, rank, errors, make, seed) for seed in range(n_seeds)] for model, make in MODELS.items()
            }
            cells = [f"{np.median(values):.3f}" for values in scores.values()]
            yield row(name, [shape, f"{errors:.0%}", *cells])


def left(X: Matrix, rank: int, errors: float, model: Model, seed: int) -> float:
    """Return the divergence of the half that a fit has not seen, relative to that from products of means."""
    rng = np.random.default_rng(FIRST_SEED + seed)
    seen = rng.binomial(X.astype(int), 0.5).astype(float)
    unseen, clean = X - seen, seen
    seen = with_errors(seen, errors, rng)
    offset = 0.1 * clean.mean()
    fit = model(rank)
    codes = fit.fit_transform(seen)
    independent = np.outer(clean.sum(axis=1), clean.sum(axis=0)) / clean.sum()
    found, by_means = (kl_div(unseen + offset, P + offset).sum() for P in (codes @ fit.components_, independent))
    return float(found / by_means)


def report(n_seeds: int) -> Iterator[str]:
    yield "# Counts\n"
    yield (
        f"`python benchmarks/counts.py`: median over {n_seeds} data sets (seeds {FIRST_SEED} to "
        f"{FIRST_SEED + n_seeds - 1}) of the median cosine of {RANK} planted components with the ones that were found; "
        "in brackets the smallest of these medians. Errors are 1 % of the positive entries, 20 to 200 times as large "
        "as a large count. Sizes are the ratio of the largest to the smallest sample. scikit-learn starts from nndsvda "
        "and makes at most 500 iterations.\n"
    )
    yield from table(simulated(), MODELS, n_seeds)
    yield "\n## Drop-outs\n\nThis share of all entries is zero, on top of Poisson noise; sizes 1 to 10.\n"
    yield from table(inflated(), MODELS, n_seeds)
    yield "\n## Sizes of samples\n"
    yield from table(of_sizes(), SCALED, n_seeds)
    yield "\nThe cosine of a component that only the smallest fifth of the samples has (gamma, 50 % positive):\n"
    yield from small_cells(n_seeds)
    yield (
        "\n## Real counts\n\nEach count is split in two at random (thinning). Divergence (Kullback-Leibler) of the "
        "half that a fit has not seen from its predictions, relative to that from products of the means of samples and "
        "features: lower is better. Errors are in the half that it has seen.\n"
    )
    yield from real(1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    begin, lines = perf_counter(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in report(options.seeds):
            print(line, flush=True)
            lines.append(line)
    print(f"\n{perf_counter() - begin:.0f} seconds")
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
