"""Real text and real single cells, sparse, clean and with planted errors: topics, cell types and time.

``python benchmarks/sparse_real.py`` (``make sparse-real``) takes three corpora and three sets of cells out of packages,
fits `RobustNMF` and scikit-learn's NMF to them as CSR, and writes ``benchmarks/results/sparse_real.md``.

Each repeat leaves out a tenth of the samples at random, so that methods with a fixed start have a spread too. Errors
are planted in 1 % and 5 % of the stored entries, which become 10 to 100 times as large. Topics are measured by the
coherence of their ten strongest words in the clean corpus. Groups are those of k-means on the codes, as many as there
are types; codes are in units of the data (times the norm of their component).
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray
from package_files import package_file
from real_readers import h5ad, r_object
from real_sets import SETS
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics import adjusted_rand_score

from robustnmf import RobustNMF

Array = NDArray[Any]
RESULTS = Path(__file__).parent / "results" / "sparse_real.md"
TOP_WORDS = 10
SHARES = (0.0, 0.01, 0.05)
LARGER = (10, 100)
OURS = "robustnmf, default"
POISSON = 'robustnmf, `noise="poisson"`'
SQUARES = 'robustnmf, `method="l2"`'
NEURONS = ("pip:cellrank==2.3.3", "cellrank-2.3.3/tests/_ground_truth_adatas/adata_200.h5ad")


class Sparse(NamedTuple):
    """A data set that is mostly zero."""

    about: str
    X: sparse.csr_array
    rank: int
    counts: sparse.csr_array | None = None
    """Words of documents, for the coherence of topics; cells have none."""
    types: Array | None = None
    """What each sample is, as a number."""


# ---------------------------------------------------------------------------------------------------------------- text


def corpus(name: str, about: str, types: Array | None = None) -> Sparse:
    counts = sparse.csr_array(SETS[name].load())
    X = sparse.csr_array(TfidfTransformer().fit_transform(counts))
    return Sparse(about, X, SETS[name].rank, counts, types)


def lee_news() -> Sparse:
    return corpus("lee-news", "Lee corpus: 300 short news texts, tf-idf")


def reuters() -> Sparse:
    return corpus("reuters", "Reuters: 395 news texts of `lda`, tf-idf")


def jane_austen() -> Sparse:
    novels = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")
    path = package_file(SETS["jane-austen"].package, SETS["jane-austen"].file)
    lengths = [-(-len(list(r_object(path, novel))) // 200) for novel in novels]
    about = "Jane Austen: stretches of 200 lines of six novels, tf-idf; types are the novels"
    return corpus("jane-austen", about, np.repeat(np.arange(6), lengths))


# --------------------------------------------------------------------------------------------------------------- cells


def categories(path: Path, column: str) -> Array:
    with h5py.File(path) as file:
        return np.asarray(file[f"obs/{column}/codes"])


def blood(of_counts: bool = False) -> Sparse:
    path = package_file(SETS["pbmc68k"].package, SETS["pbmc68k"].file)
    X = sparse.csr_array(h5ad("raw/X")(path), dtype=np.float64)
    if of_counts:
        X = counts_of_logarithms(X)
    about = f"pbmc68k_reduced: 700 blood cells of `scanpy`, {'counts' if of_counts else 'logarithms'}; ten cell types"
    return Sparse(about, X, 8, types=categories(path, "bulk_labels"))


def counts_of_logarithms(X: sparse.csr_array) -> sparse.csr_array:
    """Return the counts of which these are log(1 + c x): the smallest of a cell is 1."""
    counts = X.copy()
    counts.data = np.expm1(X.data)
    ones = np.minimum.reduceat(counts.data, counts.indptr[:-1])
    counts.data = np.round(counts.data / np.repeat(ones, np.diff(counts.indptr)))
    return counts


def neurons() -> Sparse:
    path = package_file(*NEURONS)
    X = sparse.csr_array(h5ad("X")(path), dtype=np.float64)
    about = "Dentate gyrus: 200 cells of `cellrank`, logarithms; 14 cell types"
    return Sparse(about, X, 6, types=categories(path, "clusters"))


def tumour() -> Sparse:
    """Return logarithms of normalised counts, of the 1500 genes that vary most for their mean."""
    path = package_file(SETS["tumour-t-cells"].package, SETS["tumour-t-cells"].file)
    X = sparse.csr_array(h5ad("X")(path), dtype=np.float64)
    X = X[:, (X > 0).sum(axis=0) >= 10]
    X = sparse.csr_array(X.multiply(1e4 / X.sum(axis=1)[:, None])).log1p()
    mean = X.mean(axis=0)
    dispersion = ((X * X).mean(axis=0) - mean**2) / mean
    about = "Tumour T cells: 200 cells of `scirpy`, logarithms; 16 clusters of the authors"
    return Sparse(about, X[:, np.sort(np.argsort(-dispersion)[:1500])], 8, types=categories(path, "cluster_orig"))


MAKERS: dict[str, Callable[[], Sparse]] = {
    "lee-news": lee_news,
    "reuters": reuters,
    "jane-austen": jane_austen,
    "pbmc68k": blood,
    "pbmc68k-counts": lambda: blood(of_counts=True),
    "dentate-gyrus": neurons,
    "tumour-t-cells": tumour,
}


# ------------------------------------------------------------------------------------------------------------ measures


def coherence(components: Array, counts: sparse.csr_array) -> float:
    """Return the mean normalised pointwise mutual information of pairs of top words; -1 if they never meet."""
    occurs = (counts > 0).astype(np.float64).toarray()
    first, second = np.triu_indices(TOP_WORDS, 1)
    values = []
    for component in components:
        words = np.argsort(-component, kind="stable")[:TOP_WORDS]
        together = occurs[:, words].T @ occurs[:, words] / len(occurs)
        alone, both = np.diag(together), together[first, second]
        safe = np.clip(both, 1e-12, 1 - 1e-12)
        values.append(np.where(both > 0, np.log(safe / (alone[first] * alone[second])) / -np.log(safe), -1).mean())
    return float(np.mean(values))


def agreement(codes: Array, components: Array, types: Array, seed: int) -> float:
    groups = KMeans(len(set(types)), n_init=10, random_state=seed)
    return float(adjusted_rand_score(types, groups.fit_predict(codes * np.linalg.norm(components, axis=1))))


def planted(X: sparse.csr_array, share: float, seed: int) -> tuple[sparse.csr_array, Array]:
    """Return the data with errors, and which of the stored entries are wrong."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(X.nnz) < share
    damaged = X.copy()
    damaged.data = np.where(wrong, rng.uniform(*LARGER, X.nnz) * X.data, X.data)
    return damaged, wrong


def models(rank: int, seed: int, of_text: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"max_iter": 1000, "random_state": seed}
    kullback = {"beta_loss": "kullback-leibler", "solver": "mu"}
    ours: dict[str, Any] = {SQUARES: {"method": "l2"}} if of_text else {POISSON: {"noise": "poisson"}}
    return {
        OURS: RobustNMF(rank, random_state=seed),
        **{name: RobustNMF(rank, random_state=seed, **choice) for name, choice in ours.items()},
        "scikit-learn, Frobenius, nndsvda": NMF(rank, init="nndsvda", **options),
        "scikit-learn, Frobenius, random": NMF(rank, init="random", **options),
        "scikit-learn, Kullback-Leibler, nndsvda": NMF(rank, init="nndsvda", **kullback, **options),
    }


class Score(NamedTuple):
    """What one fit is worth; NaN where it cannot be measured."""

    coherence: float
    agreement: float
    error: float
    """Norm of the clean data less the fit, relative to that of the clean data."""
    seconds: float
    """Of the processor, so that other programs do not count; it runs on one core."""
    warned: float
    rejected: float
    """Share of the sum of squares of the right entries that is rejected."""
    recall: float
    precision: float


def score(model: Any, data: Sparse, share: float, seed: int) -> Score:
    rng = np.random.default_rng([seed, 1])
    kept = np.sort(rng.choice(data.X.shape[0], round(0.9 * data.X.shape[0]), replace=False))
    clean = data.X[kept]
    X, wrong = planted(clean, share, seed)
    begin = process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        codes = model.fit_transform(X)
    seconds = process_time() - begin
    topics = np.nan if data.counts is None else coherence(model.components_, data.counts[kept])
    groups = np.nan if data.types is None else agreement(codes, model.components_, data.types[kept], seed)
    dense = clean.toarray()
    error = np.linalg.norm(dense - codes @ model.components_) / np.linalg.norm(dense)
    found = [np.nan, np.nan, np.nan]
    if hasattr(model, "outliers_"):
        mask = sparse.csr_array(model.outliers_).toarray()
        stored = mask[clean.nonzero()]  # of X a fit may sort the entries
        hits, right = stored[wrong].sum(), ~wrong
        found[0] = np.square(clean.data[stored & right]).sum() / np.square(clean.data[right]).sum()
        found[1:] = [hits / wrong.sum(), hits / max(mask.sum(), 1)] if share else [np.nan, np.nan]
    return Score(topics, groups, float(error), seconds, float(len(caught) > 0), *found)


# ---------------------------------------------------------------------------------------------------------- the report


def spread(values: Array) -> str:
    middle, low, high = (f"{round(x, 2) + 0.0:.2f}" for x in (np.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def repeated(data: Sparse, n_repeats: int) -> dict[tuple[str, float], Score]:
    """Return the scores of each method and share of errors, as arrays over the repeats."""
    rows: dict[tuple[str, float], list[Score]] = {}
    for share in SHARES:
        for seed in range(n_repeats):
            for method, model in models(data.rank, seed, of_text=data.counts is not None).items():
                rows.setdefault((method, share), []).append(score(model, data, share, seed))
    return {key: Score(*map(np.array, zip(*row, strict=True))) for key, row in rows.items()}


def measured(scores: dict[tuple[str, float], Score]) -> dict[str, str]:
    """Return the measures that a set has, with their titles."""
    titles = {"coherence": "coherence", "agreement": "adjusted Rand index"}
    return {name: title for name, title in titles.items() if not np.isnan(getattr(scores[OURS, 0.0], name)).all()}


def summary(name: str, scores: dict[tuple[str, float], Score]) -> Iterator[str]:
    """Return a line for each measure: the medians of the default and of the best of scikit-learn's."""
    others = dict.fromkeys(method for method, _ in scores if method.startswith("scikit-learn"))
    for measure, title in measured(scores).items():
        cells = []
        for share in SHARES:
            best = max(others, key=lambda method: np.median(getattr(scores[method, share], measure)))
            loss = "KL" if "Kullback" in best else "Frobenius"
            ours, theirs = (np.median(getattr(scores[method, share], measure)) for method in (OURS, best))
            cells += [f"{round(ours, 2) + 0.0:.2f}", f"{round(theirs, 2) + 0.0:.2f} ({loss})"]
        yield f"| {name} | {title} | " + " | ".join(cells) + " |"


def tables(name: str, data: Sparse, scores: dict[tuple[str, float], Score]) -> Iterator[str]:
    n_repeats = len(scores[OURS, 0.0].error)
    fitted = dict.fromkeys(method for method, _ in scores)
    n, m = data.X.shape
    yield f"## {name}\n"
    yield f"{data.about}. {n} x {m}, {data.X.nnz / (n * m):.1%} stored, {data.rank} components.\n"
    for measure, title in measured(scores).items():
        yield f"| {title} | clean | 1 % wrong | 5 % wrong |"
        yield "| --- | --- | --- | --- |"
        for method in fitted:
            cells = [spread(getattr(scores[method, share], measure)) for share in SHARES]
            yield f"| {method} | " + " | ".join(cells) + " |"
        yield ""
    titles = ("error, clean", "1 %", "5 %", "seconds, clean", "5 %", "rejected, clean", "recall, 5 %", "precision, 5 %")
    yield " | ".join(("|", *titles, "warned |"))
    yield "|" + 10 * " --- |"
    for method in fitted:
        errors = [f"{np.median(scores[method, share].error):.3f}" for share in SHARES]
        seconds = [f"{np.median(scores[method, share].seconds):.2f}" for share in (0.0, 0.05)]
        first, last = scores[method, 0.0], scores[method, 0.05]
        shares = (first.rejected, last.recall, last.precision)
        found = ["" if np.isnan(x).all() else f"{np.median(x):.1%}" for x in shares]
        warned = f"{sum(scores[method, share].warned.sum() for share in SHARES):.0f} of {len(SHARES) * n_repeats}"
        yield f"| {method} | " + " | ".join([*errors, *seconds, *found, warned]) + " |"
    yield ""


def report(names: Sequence[str], n_repeats: int) -> Iterator[str]:
    yield "# Results of `make sparse-real`\n"
    yield (
        f"`python benchmarks/sparse_real.py`: {n_repeats} repeats, each without another tenth of the samples; medians, "
        "and the range in brackets. Errors are planted in the stored entries, which become 10 to 100 times as large. "
        "Coherence is the normalised pointwise mutual information of the ten strongest words of a topic, in the clean "
        "corpus. The adjusted Rand index compares groups of k-means on the codes with the types. Error is that to the "
        "clean data, relative to its norm. Rejected is the share of the sum of squares of right entries that is in the "
        "outlier mask; recall and precision are those of the mask. Warned: fits with a warning. Seconds are of one "
        "core.\n"
    )
    lines, details = [], []
    for name in names:
        data = MAKERS[name]()
        scores = repeated(data, n_repeats)
        lines += summary(name, scores)
        details += tables(name, data, scores)
        print(*lines[-len(measured(scores)) :], sep="\n", file=sys.stderr, flush=True)
    yield "Medians of the default, and of the best of scikit-learn's three:\n"
    yield "| | measure | clean, ours | best of scikit-learn | 1 % wrong, ours | best | 5 % wrong, ours | best |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    yield from lines
    yield ""
    yield from details


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="sets; all by default, and only then a file is written")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    RobustNMF(2, random_state=0).fit(rng.random((200, 2)) @ rng.random((2, 40)) + 0.1)  # compiles the kernels
    text = "\n".join(report(options.names or list(MAKERS), options.repeats))
    print(text)
    if not options.names:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
