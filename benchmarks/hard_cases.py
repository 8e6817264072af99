"""Where robust factorisation is easily wrong in silence: what the default makes of it, beside scikit-learn's NMF.

``python benchmarks/hard_cases.py`` simulates data with hardly any noise, tables with units, repeated samples, stuck
detectors, ratings, faces that are partly covered and sparse counts, and takes the topics of news and the types of blood
cells from packages. It writes ``benchmarks/results/hard_cases.md``. ``--seeds`` says how many data sets there are of
each kind.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray
from package_files import package_file
from real_sets import SETS
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics import adjusted_rand_score

from robustnmf import RobustNMF
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
RESULTS = Path(__file__).parent / "results" / "hard_cases.md"
# Words of a topic by which its coherence is measured.
TOP_WORDS = 10


class Case(NamedTuple):
    """Data of which some entries are wrong."""

    clean: Matrix
    X: Matrix
    wrong: Mask
    rank: int
    counted: Mask
    """Entries over which the error counts."""


class Score(NamedTuple):
    """What a fit is worth."""

    false_alarms: float
    """Share of the right entries that are rejected."""
    recall: float
    """Share of the wrong entries that are rejected; NaN if there are none."""
    worst_recall: float
    """That of the feature in which it is lowest."""
    precision: float
    error: float
    """Error to the clean data, relative to that of scikit-learn's NMF of the clean data."""


# ---------------------------------------------------------------------------------------------------------- simulated


def low_rank(rng: np.random.Generator, shape: tuple[int, int], rank: int) -> Matrix:
    return rng.gamma(1, 1, (shape[0], rank)) @ rng.gamma(1, 1, (rank, shape[1]))


def case(clean: Matrix, X: Matrix, rank: int, counted: Mask | None = None) -> Case:
    return Case(clean, X, clean != X, rank, np.ones(X.shape, dtype=bool) if counted is None else counted)


def hardly_any_noise(noise: float, spikes: float) -> Callable[[int], Case]:
    def make(seed: int) -> Case:
        rng = np.random.default_rng(seed)
        P = low_rank(rng, (100, 60), 5)
        clean = np.maximum(P + noise * P.mean() * rng.normal(size=P.shape), 0)
        X = np.where(rng.random(P.shape) < spikes, rng.uniform(1, 10, P.shape) * clean.max(), clean)
        return case(clean, X, 5)

    return make


def table_with_units(seed: int) -> Case:
    """Return a table whose columns range over six decades, with spikes of 15 times the entry in 3 % of them."""
    rng = np.random.default_rng(seed)
    P = low_rank(rng, (400, 20), 4)
    clean = P * np.maximum(1 + 0.1 * rng.normal(size=P.shape), 0) * 10.0 ** rng.uniform(-3, 3, 20)
    return case(clean, np.where(rng.random(P.shape) < 0.03, 15 * clean, clean), 4)


def repeated(shape: tuple[int, int], share: float, kind: str) -> Callable[[int], Case]:
    """Return data of which some samples are constant, identical, or copies of a good one."""

    def make(seed: int) -> Case:
        rng = np.random.default_rng(seed)
        P = low_rank(rng, shape, 5)
        clean = np.maximum(P + 0.05 * P.mean() * rng.normal(size=P.shape), 0)
        rows = rng.choice(shape[0], int(share * shape[0]), replace=False)
        X = clean.copy()
        X[rows] = {"constant": clean.mean(), "identical": rng.permutation(clean[0]), "copies": clean[0]}[kind]
        counted = np.ones(X.shape, dtype=bool)
        counted[rows] = False
        made = case(clean, X, 5, counted)
        return made._replace(clean=X, wrong=np.zeros(X.shape, dtype=bool)) if kind == "copies" else made

    return make


def stuck_detectors(seed: int) -> Case:
    """Return data in which a tenth of the features repeat one value in half of the samples."""
    rng = np.random.default_rng(seed)
    P = low_rank(rng, (300, 60), 5)
    clean = np.maximum(P + 0.05 * P.mean() * rng.normal(size=P.shape), 0)
    X = clean.copy()
    for feature in rng.choice(60, 6, replace=False):
        X[:150, feature] = clean[0, feature]
    return case(clean, X, 5)


def ratings(seed: int) -> Case:
    """Return ratings from 1 to 5."""
    rng = np.random.default_rng(seed)
    P = low_rank(rng, (300, 60), 4)
    X = np.clip(np.round(1 + 4 * P / np.quantile(P, 0.95) + 0.3 * rng.normal(size=P.shape)), 1, 5)
    return case(X, X, 4)


def covered_faces(value: float, spread: int = 0) -> Callable[[int], Case]:
    """Return faces with a square on each, of one value or of integers up to a spread above it."""

    def make(seed: int) -> Case:
        faces = load_orl()
        clean = faces.data[:200].astype(np.float64)
        X, covered = block_occlusion(clean, 8, faces.image_shape, value=value, random_state=seed)
        return case(clean, X + covered * np.random.default_rng(seed).integers(0, spread + 1, X.shape), 20)

    return make


def shaded_faces(seed: int) -> Case:
    """Return faces of which the lower half is black in a fifth."""
    faces = load_orl()
    clean = faces.data[:200].astype(np.float64)
    shaded = np.zeros((200, *faces.image_shape), dtype=bool)
    shaded[seed % 5 :: 5, faces.image_shape[0] // 2 :] = True
    return case(clean, np.where(shaded.reshape(200, -1), 0.0, clean), 20)


def sparse_counts(seed: int) -> Case:
    """Return counts of which an eighth is positive, with spikes in a fifth of the entries."""
    rng = np.random.default_rng(seed)
    H, W = (rng.gamma(1, 1, shape) * (rng.random(shape) < 0.25) for shape in ((200, 4), (4, 150)))
    clean = rng.poisson(2 * H @ W).astype(np.float64)
    return case(clean, np.where(rng.random(clean.shape) < 0.2, rng.uniform(1, 10, clean.shape) * clean.max(), clean), 4)


CASES: dict[str, Callable[[int], Case]] = {
    **{
        f"noise {noise:g}, {spikes:.0%} spikes": hardly_any_noise(noise, spikes)
        for noise in (0.0, 1e-4, 1e-3)
        for spikes in (0.0, 0.02)
    },
    "table with units, 3 % spikes": table_with_units,
    **{
        f"{share:.0%} {kind} samples, {shape[0]} x {shape[1]}": repeated(shape, share, kind)
        for share, kind in ((0.1, "constant"), (0.2, "constant"), (0.2, "identical"), (0.2, "copies"))
        for shape in ((1000, 50), (300, 200))
    },
    "stuck detectors": stuck_detectors,
    "ratings": ratings,
    **{f"faces, squares of {value:g}": covered_faces(value) for value in (0.0, 128.0, 255.0)},
    "faces, squares of 0 to 4": covered_faces(0.0, spread=4),
    "faces, lower half black in a fifth": shaded_faces,
    "sparse counts, 20 % spikes": sparse_counts,
}


def score(made: Case, seed: int) -> Score:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RobustNMF(made.rank, random_state=seed)
        predicted = model.fit_transform(made.X) @ model.components_
        plain = NMF(made.rank, init="nndsvda", max_iter=2000, tol=1e-6, random_state=seed)
        reference = plain.fit_transform(made.clean) @ plain.components_
    found, wrong = model.outliers_, made.wrong
    errors = (np.linalg.norm((made.clean - fit)[made.counted]) for fit in (predicted, reference))
    recalls = [found[wrong[:, j], j].mean() for j in range(wrong.shape[1]) if wrong[:, j].any()]
    return Score(
        found[~wrong & made.counted].mean(),
        found[wrong].mean() if wrong.any() else np.nan,
        min(recalls, default=np.nan),
        wrong[found].mean() if found.any() else np.nan,
        next(errors) / max(next(errors), 1e-6 * np.linalg.norm(made.clean)),
    )


def simulated(n_seeds: int, only: str = "") -> Iterator[str]:
    alarms = ("right entries rejected, mean", "largest")
    found = ("recall, mean", "lowest in a feature", "precision, lowest")
    yield " | ".join(("| data", *alarms, *found, "error, median", "largest |"))
    yield "|" + 8 * " --- |"
    for name, make in CASES.items():
        if only not in name:
            continue
        scores = Score(*map(np.array, zip(*(score(make(seed), seed) for seed in range(n_seeds)), strict=True)))
        alarms = (f"{scores.false_alarms.mean():.2%}", f"{scores.false_alarms.max():.2%}")
        kinds = ((scores.recall, np.nanmean), (scores.worst_recall, np.nanmin), (scores.precision, np.nanmin))
        known = not np.isnan(scores.recall).all()
        found = tuple(f"{of(part):.1%}" if known and not np.isnan(part).all() else "" for part, of in kinds)
        error = (f"{np.median(scores.error):.3g}", f"{scores.error.max():.3g} |")
        yield " | ".join((f"| {name}", *alarms, *found, *error))


# --------------------------------------------------------------------------------------------------- topics and cells


def coherence(components: Matrix, counts: Matrix) -> float:
    """Return the mean normalised pointwise mutual information of pairs of top words, over all documents."""
    occurs = counts > 0
    values = []
    for component in components:
        words = np.argsort(component)[::-1][:TOP_WORDS]
        together = occurs[:, words].T.astype(float) @ occurs[:, words] / len(counts)
        alone = np.diag(together)
        first, second = np.triu_indices(TOP_WORDS, 1)
        both = np.maximum(together[first, second], 1e-12)
        values.append(np.mean(np.log(both / (alone[first] * alone[second])) / -np.log(both)))
    return float(np.mean(values))


def models(rank: int, seed: int) -> dict[str, Any]:
    options: dict[str, Any] = {"max_iter": 1000, "random_state": seed}
    return {
        "robustnmf, default": RobustNMF(rank, random_state=seed),
        "scikit-learn, Frobenius": NMF(rank, init="nndsvdar", **options),
        "scikit-learn, Frobenius, random start": NMF(rank, init="random", **options),
        "scikit-learn, Kullback-Leibler": NMF(
            rank, init="nndsvdar", beta_loss="kullback-leibler", solver="mu", **options
        ),
    }


def topics(seed: int) -> Iterator[tuple[str, float]]:
    counts = np.asarray(SETS["lee-news"].load())
    X = TfidfTransformer().fit_transform(counts).toarray()
    for name, model in models(10, seed).items():
        yield name, coherence(model.fit(X).components_, counts)


def cells(seed: int) -> Iterator[tuple[str, float]]:
    X, labels = np.asarray(SETS["pbmc68k"].load()), cell_types()
    for name, model in models(8, seed).items():
        codes = model.fit_transform(X)
        codes = codes * np.linalg.norm(model.components_, axis=1)
        groups = KMeans(len(set(labels)), n_init=10, random_state=seed).fit_predict(codes)
        yield name, adjusted_rand_score(labels, groups)


def cell_types() -> list[int]:
    """Return the type of each blood cell, as a number."""
    cells = SETS["pbmc68k"]
    with h5py.File(package_file(cells.package, cells.file)) as file:
        return [int(code) for code in file["obs/bulk_labels/codes"]]


def compared(measure: Callable[[int], Iterator[tuple[str, float]]], what: str, n_seeds: int) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [dict(measure(seed)) for seed in range(n_seeds)]
    yield f"| method | {what}, mean | standard deviation over {n_seeds} seeds |"
    yield "| --- | --- | --- |"
    for name in runs[0]:
        values = [run[name] for run in runs]
        yield f"| {name} | {np.mean(values):.3f} | {np.std(values):.3f} |"


def report(n_seeds: int, only: str) -> Iterator[str]:
    yield f"{'Planted errors' if only else 'Simulated'}, {n_seeds} data sets of each kind:\n"
    yield from simulated(n_seeds, only)
    if only:
        return
    yield "\nTen topics of the Lee corpus (tf-idf): coherence of the ten strongest words.\n"
    yield from compared(topics, "coherence", min(n_seeds, 5))
    yield "\nBlood cells (pbmc68k, 8 components): agreement of groups of codes with cell types, adjusted Rand index.\n"
    yield from compared(cells, "adjusted Rand index", min(n_seeds, 5))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="kinds whose names contain this text")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    lines = []
    for line in report(options.seeds, options.only):
        print(line, flush=True)
        lines.append(line)
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
