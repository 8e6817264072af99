"""What the default ``TruncatedCauchyNMF(k).fit(X)`` does, in numbers.

``python benchmarks/robust_default.py [TABLE ...]`` runs the tables named, or all that the data at hand allow. Every fit
becomes a few lines of a CSV file, one for each measure; means over fits, with the standard deviation between seeds, are
printed as Markdown, and progress goes to the standard error.

salt-pepper, blocks, laplace   the corruptions of the paper on the ORL faces
toy                            the line of section 5.1, and how much contamination its slope bears
mask                           how well outliers are found, where they are known
clean                          what robustness costs where nothing is wrong: error against plain NMF
cost                           seconds, against a fit that is told scale and cut
ablation                       every part of the default switched off in turn
ar-recognition                 sparse representation in the subspace of the unoccluded first session (needs --data)
hard-cases                     odd shapes, gaps, counts, dead features: error against weighted least squares

Tables of the paper, AR and Caltech-101 among them, are those of ``robustnmf reproduce``.

``--data DIR`` holds ar_42x30.npz, caltech101_effnetlite0.npz and samson.npz, see `robustnmf.datasets`.
"""

import argparse
import csv
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from robustnmf import METHODS, RobustNMF, TruncatedCauchyNMF
from robustnmf.algorithm.staged import HUBER, TRUNCATED_L1, Staged
from robustnmf.classifiers import SparseRepresentationClassifier
from robustnmf.datasets import load_ar, load_baltimore, load_caltech101, load_orl, load_samson
from robustnmf.datasets.corruptions import block_occlusion, laplace, salt_and_pepper
from robustnmf.errors import DataQualityWarning
from robustnmf.metrics import clustering_accuracy, normalized_mutual_information, outlier_scores, relative_error
from robustnmf.paper import toy

Matrix = NDArray[Any]
Generator = np.random.Generator

QUICK_ITER = 40
ONE_SHOT = ("near-separable", "heavy-noise")


# --------------------------------------------------------------------------------------------- cases, fits and measures


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    seeds: Sequence[int]
    """Seeds of the corruptions."""
    starts: Sequence[int]
    """Seeds of the starts."""
    quick: bool
    published: bool
    """Whether to run the published configuration too: a minute or more for each fit of the faces."""
    alone: bool
    """Whether to leave out the other models under Laplace noise."""
    data: Path | None

    def some(self, settings: Sequence[Any]) -> Sequence[Any]:
        """Return all settings, or a first and a last one."""
        return settings if not self.quick or len(settings) < 3 else (settings[0], settings[-1])

    def limit(self, max_iter: int | None = None) -> dict[str, int]:
        """Return the limit on iterations as an argument; none means the estimator's own."""
        if self.quick:
            return {"max_iter": min(QUICK_ITER, max_iter or QUICK_ITER)}
        return {} if max_iter is None else {"max_iter": max_iter}

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield every seed of the corruption with every seed of the start."""
        return ((seed, start) for seed in self.seeds for start in self.starts)

    def file(self, name: str) -> Path:
        """Return a file of the data folder."""
        if self.data is None:
            raise SystemExit(f"{name} is needed: pass --data.")
        return self.data / name


class Case(NamedTuple):
    """Data to fit and what is known of it."""

    X: Matrix
    rank: int
    truth: Matrix
    """What the fit should return: clean data, or X itself where that is not known."""
    mask: Matrix | None = None
    """True where an entry was corrupted."""
    labels: Matrix | None = None
    judged: Any = slice(None)
    """Which entries count for the error, as an index."""
    beneath: Matrix | None = None
    """What lies beneath the noise, where `truth` is the data."""


class Fit(NamedTuple):
    """A fitted model."""

    model: Any
    codes: Matrix
    seconds: float
    warned: int
    """How often it warned of the quality of the data."""


class Run(NamedTuple):
    """What one fit gave."""

    setting: str
    method: str
    corruption_seed: int | str
    init_seed: int | str
    measures: Mapping[str, float]
    warned: int = 0


def fit(model: Any, X: Matrix, **arguments: Any) -> Fit:
    """Fit a model; warnings of convergence are dropped, those of data quality counted, others shown."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin = perf_counter()
        codes = model.fit_transform(X, **arguments)
        seconds = perf_counter() - begin
    others = [w for w in caught if not issubclass(w.category, ConvergenceWarning | DataQualityWarning)]
    for warning in others:
        print(f"{warning.category.__name__}: {warning.message}", file=sys.stderr)
    return Fit(model, codes, seconds, sum(issubclass(w.category, DataQualityWarning) for w in caught))


def attempt(
    setting: str,
    method: str,
    case: Case,
    model: Any,
    corruption_seed: int,
    init_seed: int,
    weights: Matrix | None = None,
) -> Run:
    """Fit a model to a case and measure it."""
    fitted = fit(model, case.X, **({} if weights is None else {"weights": weights}))
    measures = {"seconds": fitted.seconds}
    if hasattr(model, "components_"):
        product = fitted.codes @ model.components_
        measures["error %"] = 100 * relative_error(case.truth[case.judged], product[case.judged])
        measures["iterations"] = model.n_iter_
        if case.beneath is not None:
            measures["error to the truth %"] = 100 * relative_error(case.beneath, product)
    if hasattr(model, "outliers_") and np.isfinite(model.thresholds_).any():
        measures |= mask_measures(case, model.outliers_)
    if case.labels is not None:
        measures |= clustering_measures(fitted.codes, case.labels, init_seed)
    return Run(setting, method, corruption_seed, init_seed, measures, fitted.warned)


def mask_measures(case: Case, outliers: Matrix) -> dict[str, float]:
    """Return the share of observed entries that were cut, and whether they were the right ones."""
    observed = ~np.isnan(case.X)
    measures = {"cut %": 100 * float(outliers.sum() / observed.sum())}
    if case.mask is not None:
        scores = outlier_scores(case.mask & observed, outliers)
        measures["recall %"] = 100 * scores.recall
        if outliers.any():
            measures["precision %"] = 100 * scores.precision
    return measures


def clustering_measures(codes: Matrix, labels: Matrix, seed: int) -> dict[str, float]:
    """Return how well K-means on the codes finds the classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct codes than classes
        found = KMeans(len(np.unique(labels)), n_init=10, random_state=seed).fit_predict(codes)
    return {
        "accuracy %": 100 * clustering_accuracy(labels, found),
        "NMI %": 100 * normalized_mutual_information(labels, found),
    }


# --------------------------------------------------------------------------------------------------------------- models


def default(rank: int, start: int, options: Options, **changes: Any) -> TruncatedCauchyNMF:
    """Return what this is all about, or a variant of it."""
    return TruncatedCauchyNMF(rank, random_state=start, **{**options.limit(), **changes})


def published(rank: int, start: int, options: Options, method: str = "truncated-cauchy", **changes: Any) -> RobustNMF:
    """Return a model as the paper has it."""
    limit = options.limit(100)
    return RobustNMF(rank, method=method, preset="published", random_state=start, **limit, **changes)


def other(method: str, rank: int, start: int, options: Options, max_iter: int) -> RobustNMF:
    """Return another model of the literature."""
    return RobustNMF(rank, method=method, random_state=start, **options.limit(max_iter))


def least_squares(rank: int, start: int, options: Options) -> RobustNMF:
    """Return weighted least squares: plain NMF, and with the weights of the clean entries an oracle."""
    return RobustNMF(rank, method="l2", random_state=start, tol=1e-7, **options.limit(500))


def plain_nmf(rank: int, start: int, options: Options) -> NMF:
    """Return the NMF of scikit-learn, converged."""
    return NMF(rank, init="random", tol=1e-6, random_state=start, **options.limit(1000))


def oracle_run(setting: str, case: Case, seed: int, start: int, options: Options) -> Run:
    """Return least squares on the entries that are known to be clean."""
    model = least_squares(case.rank, start, options)
    return attempt(setting, "oracle", case, model, seed, start, weights=np.where(case.mask, 0.0, 1.0))


# ------------------------------------------------------------------------------------------------------- simulated data


def low_rank(n_samples: int, n_features: int, rank: int, rng: Generator) -> Case:
    """Return a product of uniform factors, with noise of 2 % of its mean."""
    truth = rng.random((n_samples, rank)) @ rng.random((rank, n_features))
    noise = 0.02 * truth.mean() * rng.normal(size=truth.shape)
    return Case(np.maximum(truth + noise, 0), rank, truth)


def counts(n_samples: int, n_features: int, rank: int, rng: Generator, level: float) -> Case:
    """Return Poisson counts with rates of low rank and a given mean."""
    rates = low_rank(n_samples, n_features, rank, rng).truth
    rates *= level / rates.mean()
    return Case(rng.poisson(rates).astype(float), rank, rates)


def zero_inflated(n_samples: int, n_features: int, rank: int, rng: Generator) -> Case:
    """Return counts of which half were lost; what a fit can find is half the rates."""
    case = counts(n_samples, n_features, rank, rng, level=10.0)
    return case._replace(X=case.X * (rng.random(case.X.shape) < 0.5), truth=case.truth / 2)


def sparse_factors(n_samples: int, n_features: int, rank: int, rng: Generator) -> Case:
    """Return a product of factors that are mostly zero, with noise where it is not zero."""
    codes = rng.random((n_samples, rank)) * (rng.random((n_samples, rank)) < 0.3)
    components = rng.random((rank, n_features)) * (rng.random((rank, n_features)) < 0.3)
    truth = codes @ components
    return Case(truth * np.maximum(1 + 0.05 * rng.normal(size=truth.shape), 0), rank, truth)


def scattered(shape: tuple[int, ...], share: float, rng: Generator) -> Matrix:
    """Return a mask of entries drawn one by one."""
    return rng.random(shape) < share


def clustered(shape: tuple[int, ...], share: float, rng: Generator) -> Matrix:
    """Return a mask of one run of features in every other sample."""
    length = round(2 * share * shape[1])
    first = rng.integers(shape[1] - length, size=(shape[0], 1), endpoint=True)
    position = np.arange(shape[1])
    run = (first <= position) & (position < first + length)
    return run & (rng.permutation(shape[0]) % 2 == 0)[:, None]


def spoil(case: Case, mask: Matrix, rng: Generator, zeros: float = 0.0) -> Case:
    """Replace the entries of a mask by 5 to 10 times the mean level, or a share of them by zeros."""
    values = case.truth.mean() * rng.uniform(5, 10, size=mask.shape) * (rng.random(mask.shape) >= zeros)
    return case._replace(X=np.where(mask, values, case.X), mask=mask)


def with_outliers(case: Case, rng: Generator, share: float = 0.1, zeros: float = 0.0) -> Case:
    """Spoil a share of the entries, drawn one by one."""
    return spoil(case, scattered(case.X.shape, share, rng), rng, zeros)


def with_gaps(case: Case, rng: Generator, share: float) -> Case:
    """Remove a share of the entries."""
    return case._replace(X=np.where(scattered(case.X.shape, share, rng), np.nan, case.X))


# ------------------------------------------------------------------------------------------------------------ real data


def faces(X: Matrix, mask: Matrix | None = None, labelled: bool = False) -> Case:
    """Return the ORL faces, seen as X."""
    orl = load_orl()
    return Case(X, 40, orl.data, mask, orl.target if labelled else None)


def salted(percent: float, seed: int) -> Case:
    """Return the faces under salt and pepper."""
    return faces(*salt_and_pepper(load_orl().data, percent / 100, random_state=seed))


def occluded(size: int, seed: int) -> Case:
    """Return the faces with a white block on each."""
    orl = load_orl()
    return faces(*block_occlusion(orl.data, size, orl.image_shape, random_state=seed), labelled=True)


def noisy(deviation: float, seed: int) -> Case:
    """Return the faces under Laplace noise."""
    return faces(laplace(load_orl().data, deviation, random_state=seed).data)


def as_is(X: Matrix, rank: int) -> Case:
    """Return data whose truth is not known."""
    return Case(X, rank, X)


def baltimore() -> Case:
    """Return the species at Baltimore, each in units of its standard deviation."""
    air = load_baltimore().data
    return as_is(air / air.std(axis=0), 6)


def samson(options: Options) -> Case:
    """Return the Samson scene."""
    return as_is(load_samson(options.file("samson.npz")).data, 3)


def spiked(case: Case, seed: int, share: float = 0.3) -> Case:
    """Return data in which a share of the entries are one to three times the largest."""
    rng = np.random.default_rng(seed)
    mask = scattered(case.X.shape, share, rng)
    spikes = case.X.max() * rng.uniform(1, 3, size=mask.shape)
    return case._replace(X=np.where(mask, spikes, case.X), mask=mask)


def ar_faces(options: Options) -> tuple[Matrix, Matrix]:
    """Return the AR faces and who they are."""
    ar = load_ar(options.file("ar_42x30.npz"))
    return ar.data, ar.target


def caltech_features(options: Options) -> tuple[Matrix, Matrix]:
    """Return the features of the Caltech images and their categories; one of the two framings of faces is left out."""
    objects = load_caltech101(options.file("caltech101_effnetlite0.npz"))
    kept = objects.target_names[objects.target] != "Faces_easy"
    return objects.data[kept], objects.target[kept]


def some_classes(data: Matrix, target: Matrix, n_classes: int, seed: int) -> Case:
    """Return the samples of classes drawn at random, one component for each."""
    chosen = np.random.default_rng(seed).choice(np.unique(target), n_classes, replace=False)
    members = np.isin(target, chosen)
    return as_is(data[members], n_classes)._replace(labels=target[members])


# --------------------------------------------------------------------------------------------------------------- tables


def salt_pepper_runs(options: Options) -> Iterator[Run]:
    for percent in options.some((5, 10, 20, 30, 40, 50, 60)):
        setting = f"p = {percent} %"
        for seed, start in options.pairs():
            yield attempt(setting, "default", salted(percent, seed), default(40, start, options), seed, start)
        case = salted(percent, 0)
        if options.published:
            yield attempt(setting, "published", case, published(40, 0, options), 0, 0)
        yield oracle_run(setting, case, 0, 0, options)


def block_runs(options: Options) -> Iterator[Run]:
    for size in options.some(range(10, 23, 2)):
        setting = f"b = {size}"
        for seed, start in options.pairs():
            yield attempt(setting, "default", occluded(size, seed), default(40, start, options), seed, start)
        case = occluded(size, 0)
        if options.published:
            yield attempt(setting, "published", case, published(40, 0, options), 0, 0)
        yield oracle_run(setting, case, 0, 0, options)


def laplace_runs(options: Options) -> Iterator[Run]:
    others = [name for name in METHODS if name not in (*ONE_SHOT, "truncated-cauchy") and not options.alone]
    for deviation in options.some(range(40, 281, 40)):
        setting = f"delta = {deviation}"
        for seed, start in options.pairs():
            yield attempt(setting, "default", noisy(deviation, seed), default(40, start, options), seed, start)
        case = noisy(deviation, 0)
        for name in others:
            yield attempt(setting, name, case, other(name, 40, 0, options, 200), 0, 0)
        for name in ("cauchy", "truncated-cauchy") if options.published else ():
            yield attempt(setting, f"{name} published", case, published(40, 0, options, method=name), 0, 0)


def slope_run(setting: str, method: str, model: Any, n_in_x: int, n_in_y: int, seed: int, prefix: str = "") -> Run:
    """Return how far the slope of a rank-one fit is from that of the line."""
    fitted = fit(model, toy.points(toy.Case(n_in_x, n_in_y), seed))
    along_x, along_y = model.components_[0]
    error = 100 * abs(along_y / along_x - toy.SLOPE) / toy.SLOPE if along_x > 0 else np.inf
    measures = {f"{prefix}slope error %": error, f"{prefix}within 2 %": float(error <= 2), "seconds": fitted.seconds}
    return Run(setting, method, seed, seed, measures, fitted.warned)


def line_models(seed: int, options: Options) -> dict[str, Any]:
    """Return what is fitted to points on a line."""
    return {
        "default": default(1, seed, options),
        "l2": least_squares(1, seed, options),
        "l1": other("l1", 1, seed, options, 200),
        "published": published(1, seed, options),
    }


def toy_runs(options: Options) -> Iterator[Run]:
    seeds = range(3 if options.quick else 20)
    cases = {"clean": (0, 0), "20 in x": (20, 0), "40 in x": (40, 0), "40 in x, 40 in y": (40, 40)}
    for setting, moved in cases.items():
        for seed in seeds:
            for method, model in line_models(seed, options).items():
                yield slope_run(setting, method, model, *moved, seed)
    for direction in ("x", "both"):
        for method in line_models(0, options):
            yield from breakdown_runs(direction, method, seeds, options)


def breakdown_runs(direction: str, method: str, seeds: Sequence[int], options: Options) -> Iterator[Run]:
    """Raise the share of moved points until the slope is lost, and yield the last shares before, NaN for none."""
    reached = {"by the median of seeds": np.nan, "by all seeds but one in twenty": np.nan}
    holding = set(reached)
    for percent in options.some(range(0, 61, 2)):
        n_moved = round(percent / 100 * toy.N_POINTS)
        n_in_x = n_moved if direction == "x" else n_moved // 2
        runs = []
        for seed in seeds:
            model = line_models(seed, options)[method]
            setting = f"{percent} % in {direction}"
            runs.append(slope_run(setting, method, model, n_in_x, n_moved - n_in_x, seed, prefix="sweep "))
        yield from runs
        errors = np.array([run.measures["sweep slope error %"] for run in runs])
        held = {
            "by the median of seeds": np.median(errors) <= 2,
            "by all seeds but one in twenty": np.mean(errors <= 2) >= 0.95,
        }
        holding = {rule for rule in holding if held[rule]}
        reached |= dict.fromkeys(holding, float(percent))
        if not holding:
            break
    for rule, percent in reached.items():
        yield Run(f"points moved in {direction}, {rule}", method, "all", "all", {"breakdown point %": percent})


def mask_runs(options: Options) -> Iterator[Run]:
    share = 0.2
    shapes = options.some(((200, 100, 5), (500, 80, 3), (60, 400, 10)))
    for n_samples, n_features, rank in shapes:
        for kind, draw, zeros in (
            ("high", scattered, 0.0),
            ("zeros and high", scattered, 0.5),
            ("clustered", clustered, 0.0),
        ):
            setting = f"{n_samples} x {n_features} rank {rank}, {kind}"
            for seed, start in options.pairs():
                rng = np.random.default_rng(seed)
                case = low_rank(n_samples, n_features, rank, rng)
                case = spoil(case, draw(case.X.shape, share, rng), rng, zeros)
                yield attempt(setting, "default", case, default(rank, start, options), seed, start)
                if start == options.starts[0]:
                    yield oracle_run(setting, case, seed, start, options)
                    yield attempt(setting, "l2", case, least_squares(rank, start, options), seed, start)


def clean_cases(options: Options) -> Iterator[tuple[str, Case]]:
    rng = np.random.default_rng(0)
    yield "ORL, rank 40", faces(load_orl().data)
    yield "Baltimore, rank 6", baltimore()
    simulated = {
        "uniform factors": low_rank(200, 100, 5, rng),
        "Poisson counts": counts(200, 100, 5, rng, level=10.0),
        "zero-inflated counts": zero_inflated(200, 100, 5, rng),
        "sparse factors": sparse_factors(200, 100, 5, rng),
    }
    for name, case in simulated.items():
        yield f"{name}, 200 x 100, rank 5", case._replace(truth=case.X, beneath=case.truth)
    if options.data is not None:
        yield "Samson, rank 3", samson(options)
        images, people = ar_faces(options)
        yield "AR, 10 people, rank 10", as_is(images[people < 10], 10)
        yield "Caltech, 12 categories, rank 10", as_is(some_classes(*caltech_features(options), 12, seed=0).X, 10)


def clean_runs(options: Options) -> Iterator[Run]:
    for setting, case in clean_cases(options):
        for start in options.starts:
            for method, make in (("default", default), ("plain NMF", plain_nmf)):
                yield attempt(setting, method, case, make(case.rank, start, options), 0, start)


def cost_runs(options: Options) -> Iterator[Run]:
    for setting, case in (("clean", faces(load_orl().data)), ("p = 40 %", salted(40, 0))):
        first = fit(default(40, 0, options), case.X).model  # compiles, too
        models = {"default": default(40, 0, options), **told_models(first)}
        for _ in range(1 if options.quick else 3):
            for method, model in models.items():
                fitted = fit(model, case.X)
                loop = float(model.history_["seconds"][-1])
                measures = {"seconds": fitted.seconds, "seconds without codes": loop, "iterations": model.n_iter_}
                yield Run(setting, method, 0, 0, measures, fitted.warned)


def told_models(fitted: TruncatedCauchyNMF) -> dict[str, TruncatedCauchyNMF]:
    """Return fits that are told the scale and the cut that another has found, and how many iterations to make."""
    told = {
        "scale": fitted.scale_,
        "outliers": (float(np.median(fitted.thresholds_)) / fitted.scale_) ** 2,
        "schedule": "plain",
        "init": "median",
        "tol": 0,
        "max_iter": fitted.n_iter_,
        "random_state": 0,
    }
    return {
        "told scale and cut": TruncatedCauchyNMF(fitted.n_components_, solver="hals", **told),
        "told, same solver": TruncatedCauchyNMF(fitted.n_components_, solver="shared-gram", **told),
    }


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "random start": {"init": "random"},
    "Nagy's scale": {"scale": "nagy"},
    "MAD scale": {"scale": "mad"},
    "no threshold": {"outliers": "none"},
    "three-sigma threshold": {"outliers": "three-sigma"},
    "plain schedule": {"schedule": "plain"},
    "Huber stage only": {"schedule": Staged(initial_stages=(HUBER,))},
    "truncated L1 stage only": {"schedule": Staged(initial_stages=(TRUNCATED_L1,))},
    "no momentum": {"schedule": Staged(momentum=0.0)},
    "published": {"preset": "published", "max_iter": 100},
}


def ablation_cases(options: Options) -> dict[str, Callable[[int], Case]]:
    """Return functions of the seed of the corruption."""
    cases: dict[str, Callable[[int], Case]] = {
        "salt and pepper, 5 %": lambda seed: salted(5, seed),
        "salt and pepper, 40 %": lambda seed: salted(40, seed),
        "salt and pepper, 60 %": lambda seed: salted(60, seed),
        "blocks, b = 14": lambda seed: occluded(14, seed),
        "blocks, b = 22": lambda seed: occluded(22, seed),
        "Laplace, delta = 120": lambda seed: noisy(120, seed),
        "Baltimore": lambda _: baltimore(),
        "10 % wrong samples": lambda seed: hard_case("10 % wrong samples, error of the others", seed),
        "5 % wrong features": lambda seed: hard_case("5 % wrong features, error of the others", seed),
    }
    if options.data is not None:
        cases["Samson"] = lambda _: samson(options)
        cases["Samson, 30 % spikes"] = lambda seed: spiked(samson(options), seed)
    return cases


def ablation_runs(options: Options) -> Iterator[Run]:
    cases = ablation_cases(options)
    for setting in options.some(tuple(cases)):
        for seed in options.seeds[:2]:
            case = cases[setting](seed)
            for method, changes in VARIANTS.items():
                if "preset" in changes and not options.published:
                    continue
                limit = options.limit(changes.get("max_iter"))
                model = default(case.rank, seed, options, **{**changes, **limit})
                yield attempt(setting, method, case, model, seed, seed)


# Shots of the second session.
CONDITIONS = {
    "all": range(14, 27),
    "normal": range(14, 15),
    "expressions": range(15, 18),
    "illuminations": range(18, 21),
    "sunglasses": range(21, 24),
    "scarves": range(24, 27),
}


def recognition_models(options: Options) -> dict[str, Any]:
    """Return the models in whose subspaces people are recognised."""
    rank = 20 if options.quick else 200
    rivals = {name: other(name, rank, 0, options, 100) for name in ("nenmf", "l1", "huber", "cim")}
    # Nesterov's method takes most of an hour at this rank; the solver does not change what is minimised.
    rivals["published, HALS"] = published(rank, 0, options, solver="hals")
    return {"default": default(rank, 0, options), **rivals}


def ar_recognition_runs(options: Options) -> Iterator[Run]:
    """Recognise people of the second session by sparse representation in terms of the first."""
    ar = load_ar(options.file("ar_42x30.npz"))
    people = ar.target < (10 if options.quick else 100)
    training = people & (ar.session == 1) & (ar.occlusion == "none")
    testing = people & (ar.session == 2)
    for method, model in recognition_models(options).items():
        fitted = fit(model, ar.data[training])
        codes = model.transform(ar.data[testing])
        right = recognise(fitted.codes, ar.target[training], codes) == ar.target[testing]
        for condition, shots in CONDITIONS.items():
            accuracy = 100 * float(right[np.isin(ar.shot[testing], shots)].mean())
            measures = {"accuracy %": accuracy, "seconds": fitted.seconds}
            yield Run(condition, method, 0, 0, measures, fitted.warned)


def recognise(atoms: Matrix, people: Matrix, codes: Matrix) -> Matrix:
    """Classify codes by sparse representation, in as many processes as there are cores."""
    classifier = SparseRepresentationClassifier().fit(atoms, people)
    parts = np.array_split(codes, max(1, len(codes) // 25))
    return np.concatenate(Parallel(n_jobs=-1)(delayed(classifier.predict)(part) for part in parts))


def with_dead_features(case: Case) -> Case:
    """Set every tenth feature to zero, as a broken sensor does."""
    alive = np.arange(case.X.shape[1]) % 10 != 0
    mask = None if case.mask is None else case.mask & alive
    return case._replace(X=case.X * alive, truth=case.truth * alive, mask=mask)


def with_wrong_samples(case: Case, rng: Generator) -> Case:
    """Replace the first tenth of the samples; the others are judged."""
    n_wrong = len(case.X) // 10
    mask = np.zeros(case.X.shape, dtype=bool)
    mask[:n_wrong] = True
    return spoil(case, mask, rng)._replace(judged=slice(n_wrong, None))


def with_wrong_features(case: Case, rng: Generator) -> Case:
    """Replace the first twentieth of the features; the others are judged."""
    n_wrong = case.X.shape[1] // 20
    mask = np.zeros(case.X.shape, dtype=bool)
    mask[:, :n_wrong] = True
    return spoil(case, mask, rng)._replace(judged=(slice(None), slice(n_wrong, None)))


def single_precision(case: Case) -> Case:
    """Return the data in single precision."""
    return case._replace(X=case.X.astype(np.float32))


HARD_CASES: Mapping[str, Callable[[Generator], Case]] = {
    "rank 1, 10 % outliers": lambda rng: with_outliers(low_rank(200, 100, 1, rng), rng),
    "20 x 10 rank 3, 10 % outliers": lambda rng: with_outliers(low_rank(20, 10, 3, rng), rng),
    "tall 2000 x 12 rank 3, 10 % outliers": lambda rng: with_outliers(low_rank(2000, 12, 3, rng), rng),
    "wide 12 x 2000 rank 3, 10 % outliers": lambda rng: with_outliers(low_rank(12, 2000, 3, rng), rng),
    "float32, 10 % outliers": lambda rng: single_precision(with_outliers(low_rank(200, 100, 5, rng), rng)),
    "counts, 10 % outliers": lambda rng: with_outliers(counts(200, 100, 5, rng, level=20.0), rng),
    "half missing, 10 % outliers": lambda rng: with_gaps(with_outliers(low_rank(200, 100, 5, rng), rng), rng, 0.5),
    "dead features, 10 % outliers": lambda rng: with_dead_features(with_outliers(low_rank(200, 100, 5, rng), rng)),
    "10 % wrong samples, error of the others": lambda rng: with_wrong_samples(low_rank(200, 100, 5, rng), rng),
    "5 % wrong features, error of the others": lambda rng: with_wrong_features(low_rank(200, 100, 5, rng), rng),
    "20 % outliers, all zero": lambda rng: with_outliers(low_rank(200, 100, 5, rng), rng, 0.2, zeros=1.0),
    "20 % outliers, all high": lambda rng: with_outliers(low_rank(200, 100, 5, rng), rng, 0.2),
    "ORL, 30 % missing": lambda rng: with_gaps(faces(load_orl().data), rng, 0.3),
    "ORL, 30 % missing, 20 % salt and pepper": lambda rng: with_gaps(salted(20, int(rng.integers(2**31))), rng, 0.3),
}


def hard_case(setting: str, seed: int) -> Case:
    """Return one of the hard cases."""
    return HARD_CASES[setting](np.random.default_rng(seed))


def hard_case_runs(options: Options) -> Iterator[Run]:
    for setting in HARD_CASES:
        for seed, start in options.pairs():
            case = hard_case(setting, seed)
            yield attempt(setting, "default", case, default(case.rank, start, options), seed, start)
            if start == options.starts[0]:
                yield attempt(setting, "l2", case, least_squares(case.rank, start, options), seed, start)


# ------------------------------------------------------------------------------------------------- columns beside means

Values = Mapping[str, Sequence[float]]
"""What each method got in one setting."""
Columns = Callable[[str, Values], dict[str, str]]
"""More columns, from the setting and the values in it."""


def target(values: Mapping[str, float], *, at_most: bool) -> Columns:
    """Return a column with the target of each setting, and whether the default meets it."""

    def columns(setting: str, got: Values) -> dict[str, str]:
        wanted, mean = values[setting], np.mean(got["default"])
        met = mean <= wanted if at_most else mean >= wanted
        return {f"target (at {'most' if at_most else 'least'})": f"{wanted:g}", "met": "yes" if met else "no"}

    return columns


def best_other(limit: float) -> Columns:
    """Return columns with the best of the other methods, and whether the default is as good, and below a limit."""

    def columns(setting: str, got: Values) -> dict[str, str]:
        mean = {method: float(np.mean(values)) for method, values in got.items()}
        others = [method for method in mean if method != "default"]
        if not others:
            return {}
        best = min(others, key=mean.__getitem__)
        met = mean["default"] <= mean[best] and mean["default"] < limit
        head = f"met (at most the best other, below {limit:g})"
        return {"best other": f"{mean[best]:.4g}", "which": best, head: "yes" if met else "no"}

    return columns


def ratio_to_best(rival: str) -> Columns:
    """Return a column with the mean of the default over the best of a rival."""
    return lambda _, got: {f"default / {rival}": f"{np.mean(got['default']) / np.min(got[rival]):.3f}"}


def ratio_of_medians(_: str, got: Values) -> dict[str, str]:
    """Return columns with the median of the default over that of each other method."""
    medians = {method: np.median(values) for method, values in got.items()}
    return {
        f"default / {method}": f"{medians['default'] / median:.2f}"
        for method, median in medians.items()
        if method != "default"
    }


# -------------------------------------------------------------------------------------------------------- the tables


@dataclass(frozen=True)
class Table:
    """A set of runs and how it is shown."""

    title: str
    runs: Callable[[Options], Iterable[Run]]
    shown: Sequence[str]
    """Measures that are printed; all are in the CSV file."""
    beside: Mapping[str, Columns] = field(default_factory=dict)
    """Columns beside the means of a measure."""
    needs_data: bool = False


def by_setting(pattern: str, settings: Iterable[int], values: Iterable[float]) -> dict[str, float]:
    return {pattern.format(setting): value for setting, value in zip(settings, values, strict=True)}


SALT_PEPPER_TARGETS = by_setting("p = {} %", (5, 10, 20, 30, 40, 50, 60), (10.2, 10.5, 11.0, 11.4, 12.2, 14.5, 18.0))
BLOCK_TARGETS = by_setting("b = {}", range(10, 23, 2), (60, 60, 60, 60, 59, 58, 56))

TABLES: Mapping[str, Table] = {
    "salt-pepper": Table(
        "ORL faces under salt and pepper, rank 40",
        salt_pepper_runs,
        ("error %", "precision %", "recall %"),
        {"error %": target(SALT_PEPPER_TARGETS, at_most=True)},
    ),
    "blocks": Table(
        "ORL faces with white blocks, rank 40: K-means on the codes",
        block_runs,
        ("accuracy %", "NMI %", "error %"),
        {"accuracy %": target(BLOCK_TARGETS, at_most=False)},
    ),
    "laplace": Table(
        "ORL faces under Laplace noise, rank 40",
        laplace_runs,
        ("error %",),
        {"error %": best_other(26.0)},
    ),
    "toy": Table(
        f"Slope of a line through {toy.N_POINTS} points",
        toy_runs,
        ("slope error %", "within 2 %", "breakdown point %"),
    ),
    "mask": Table(
        "Simulated data of low rank, 20 % outliers", mask_runs, ("error %", "precision %", "recall %", "cut %")
    ),
    "clean": Table(
        "Data without corruptions",
        clean_runs,
        ("error %", "error to the truth %", "cut %"),
        dict.fromkeys(("error %", "error to the truth %"), ratio_to_best("plain NMF")),
    ),
    "cost": Table(
        "Seconds of a fit to the ORL faces, rank 40",
        cost_runs,
        ("seconds", "seconds without codes", "iterations"),
        dict.fromkeys(("seconds", "seconds without codes"), ratio_of_medians),
    ),
    "ablation": Table("The default with one part changed", ablation_runs, ("error %", "accuracy %", "NMI %", "cut %")),
    "ar-recognition": Table(
        "AR faces, rank 200, subspace of the unoccluded first session: people recognised in the second",
        ar_recognition_runs,
        ("accuracy %",),
        needs_data=True,
    ),
    "hard-cases": Table(
        "Odd shapes, gaps, counts, dead features", hard_case_runs, ("error %", "precision %", "recall %")
    ),
}


# --------------------------------------------------------------------------------------------------------------- output


COUNTED = ("within 2 %",)
"""Measures of which the hits are counted instead of averaged."""


def write_csv(path: Path, table: str, runs: Iterable[Run]) -> None:
    """Write one line for each measure of each fit; the file is there in whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("table", "setting", "method", "corruption_seed", "init_seed", "measure", "value", "warned"))
        for run in runs:
            for measure, value in run.measures.items():
                seeds = (run.corruption_seed, run.init_seed)
                lines.writerow((table, run.setting, run.method, *seeds, measure, f"{value:.6g}", run.warned))
    os.replace(unfinished, path)


def collect(runs: Iterable[Run], measure: str) -> dict[str, dict[str, list[float]]]:
    """Return the values of a measure by setting and method."""
    collected: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if measure in run.measures:
            collected.setdefault(run.setting, {}).setdefault(run.method, []).append(float(run.measures[measure]))
    return collected


def summary(values: Sequence[float], measure: str) -> str:
    """Return mean and standard deviation, or the number of hits."""
    if measure in COUNTED:
        return f"{sum(values):.0f} of {len(values)}"
    if np.isnan(values).all():
        return "none"
    mean = f"{np.mean(values):.4g}"
    return f"{mean} ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else mean


def measure_cells(runs: Sequence[Run], measure: str, beside: Columns | None) -> dict[str, dict[str, str]]:
    """Return the cells of a measure by setting and column, a column for each method."""
    cells = {}
    for setting, got in collect(runs, measure).items():
        cells[setting] = {method: summary(values, measure) for method, values in got.items()}
        if beside is not None:
            cells[setting] |= beside(setting, got)
    return cells


def markdown_table(cells: Mapping[str, Mapping[str, str]], corner: str) -> str:
    """Return a table with the settings in rows."""
    heads = list(dict.fromkeys(head for row in cells.values() for head in row))
    lines = [(corner, *heads), ("---",) * (len(heads) + 1)]
    lines += [(setting, *(row.get(head, "") for head in heads)) for setting, row in cells.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(table: Table, runs: Sequence[Run]) -> str:
    """Return a table for each measure, those of a single method side by side in one."""
    blocks, side_by_side = [], {}
    for measure in table.shown:
        cells = measure_cells(runs, measure, table.beside.get(measure))
        methods = {method for row in cells.values() for method in row}
        if len(methods) > 1:
            blocks.append(markdown_table(cells, measure))
        for method in methods if len(methods) == 1 else ():
            for setting, row in cells.items():
                side_by_side.setdefault(setting, {})[f"{method}: {measure}"] = row[method]
    if side_by_side:
        blocks.append(markdown_table(side_by_side, "setting"))
    return "\n\n".join([f"## {table.title}", *blocks, warnings_line(runs)])


def warnings_line(runs: Sequence[Run]) -> str:
    """Return a sentence on the fits that warned of the quality of the data."""
    warned: dict[str, list[bool]] = {}
    for run in runs:
        warned.setdefault(f"{run.method} at {run.setting}", []).append(run.warned > 0)
    named = [f"{name} ({sum(flags)} of {len(flags)})" for name, flags in warned.items() if any(flags)]
    return f"Warnings of data quality: {', '.join(named) if named else 'none'}."


def report(run: Run, table: str) -> None:
    """Show that a fit is done."""
    measures = ", ".join(f"{name} {value:.4g}" for name, value in run.measures.items())
    seeds = f"{run.corruption_seed}, {run.init_seed}"
    print(f"{table} | {run.setting} | {run.method} | {seeds} | {measures}", file=sys.stderr, flush=True)


def produce(name: str, options: Options, out: Path) -> None:
    """Run a table, write it and print it."""
    runs = []
    for run in TABLES[name].runs(options):
        report(run, name)
        runs.append(run)
    write_csv(out / f"{name}.csv", name, runs)
    print(markdown(TABLES[name], runs), end="\n\n", flush=True)


def chosen_tables(named: Sequence[str], have_data: bool) -> list[str]:
    """Return the tables named, or all that can be made without being asked for."""
    unknown = [name for name in named if name not in TABLES]
    if unknown:
        raise SystemExit(f"Unknown table(s) {', '.join(unknown)}; choose from {', '.join(TABLES)}.")
    chosen = list(named) or list(TABLES)
    left_out = [name for name in chosen if TABLES[name].needs_data and not have_data]
    if left_out and named:
        raise SystemExit(f"Pass --data for {', '.join(left_out)}.")
    if left_out:
        print(f"Left out, because they need --data: {', '.join(left_out)}.", file=sys.stderr)
    return [name for name in chosen if name not in left_out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"among {', '.join(TABLES)}")
    parser.add_argument("--quick", action="store_true", help="few settings, one seed, few iterations: a test")
    parser.add_argument("--alone", action="store_true", help="without the other models under Laplace noise (faster)")
    parser.add_argument("--published", action="store_true", help="also the published configuration (slow)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each corruption (3)")
    parser.add_argument("--starts", type=int, default=2, help="starts for each of them (2)")
    parser.add_argument("--data", type=Path, help="folder of the data sets that do not come with the package")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the CSV files")
    given = parser.parse_args()
    if min(given.seeds, given.starts) < 1:
        parser.error("--seeds and --starts must be at least 1.")
    seeds, starts = (range(1) if given.quick else range(n) for n in (given.seeds, given.starts))
    options = Options(seeds, starts, given.quick, given.published, given.alone, given.data)
    out = given.out / "quick" if given.quick else given.out  # a test must not replace results
    for name in chosen_tables(given.tables, given.data is not None):
        produce(name, options, out)


if __name__ == "__main__":
    main()
