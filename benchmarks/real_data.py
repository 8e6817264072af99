"""What the default makes of real data, clean and with planted errors, beside other methods.

``python benchmarks/real_data.py`` (``make real``) fits every method of `METHODS` to every set of `real_sets`, as it is
and with every kind of error of `planted_errors`. Each fit becomes a line of ``benchmarks/results/real_data.jsonl``, so
that a run can be stopped and taken up again; `real_tables` makes ``benchmarks/results/real_data.md`` of these lines.

Errors are those to the clean data, relative to the clean reference: scikit-learn's NMF of the clean data, the better of
two starts after at most 2000 iterations, which do not always converge. ``squares`` is the ratio of the Frobenius norms
of the residuals, ``absolute`` that of the sums of their magnitudes.

A fit that was made by other sources of robustnmf counts as made; ``--again`` repeats it.
"""

import argparse
import hashlib
import json
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import isqrt
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from package_files import PackageError
from package_files import cache as cache_folder
from planted_errors import ERRORS, Mask, Matrix, Planted
from real_readers import evenly
from real_sets import SETS, RealSet
from real_tables import tables
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

import robustnmf
from robustnmf import RobustNMF, TruncatedCauchyNMF

RESULTS = Path(__file__).parent / "results" / "real_data.jsonl"
MAX_ITER = 2000

# ------------------------------------------------------------------------------------------------------------- methods


class Fitted(NamedTuple):
    predicted: Matrix
    converged: bool
    outliers: Mask | None = None
    comparison: Any = None
    """How the fit compares with least squares on all entries, `RobustNMF.comparison_`."""


Method = Callable[[Planted, int, int], Fitted]
"""Of data, rank and seed."""


def robust(estimator: Callable[..., Any] = RobustNMF, **options: Any) -> Method:
    def fit(data: Planted, rank: int, seed: int) -> Fitted:
        model = estimator(rank, random_state=seed, **options)
        predicted = model.fit_transform(data.X) @ model.components_
        return Fitted(predicted, bool(model.converged_), model.outliers_, model.comparison_)

    return fit


def oracle(data: Planted, rank: int, seed: int) -> Fitted:
    """Fit by least squares what is right: as if somebody had told which entries are wrong."""
    model = RobustNMF(rank, method="l2", random_state=seed)
    codes = model.fit_transform(data.X, weights=(~data.wrong).astype(np.float64))
    return Fitted(codes @ model.components_, bool(model.converged_))


def plain(prepare: Callable[[Matrix], Matrix] = lambda X: X) -> Method:
    return lambda data, rank, seed: scikit_learn(prepare(data.X), rank, seed)


def scikit_learn(X: Matrix, rank: int, seed: int) -> Fitted:
    """Return scikit-learn's fit, the better in squares of two starts."""
    fits = []
    for init in ("random", "nndsvda") if rank <= min(X.shape) else ("random",):
        model = NMF(rank, init=init, solver="cd", tol=1e-6, max_iter=MAX_ITER, random_state=seed)
        fits.append(Fitted(model.fit_transform(X) @ model.components_, model.n_iter_ < MAX_ITER))
    return min(fits, key=lambda fit: float(np.linalg.norm(X - fit.predicted)))


def winsorised(X: Matrix) -> Matrix:
    """Return the data with each feature clipped to its quantiles at 2.5 and 97.5 %."""
    return np.clip(X, *np.percentile(X, [2.5, 97.5], axis=0))


def hampel(X: Matrix) -> Matrix:
    """Return the data with the median of the feature wherever an entry is further from it than 3 scaled MADs.

    A feature of which most entries are equal has no MAD and stays as it is.
    """
    median = np.median(X, axis=0)
    distance = np.abs(X - median)
    mad = 1.4826 * np.median(distance, axis=0)
    return np.where((distance > 3 * mad) & (mad > 0), median, X)


METHODS: dict[str, Method] = {
    "default": robust(TruncatedCauchyNMF),
    "l2": robust(method="l2"),
    "huber": robust(method="huber"),
    "cauchy": robust(method="cauchy"),
    "scikit-learn": plain(),
    "winsorised": plain(winsorised),
    "hampel": plain(hampel),
    "oracle": oracle,
}


def warm_up(method: str) -> None:
    """Compile what a method needs, so that it is not timed."""
    X = np.random.default_rng(0).random((12, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        METHODS[method](ERRORS["spikes-2"](X, 0), 2, 0)


# ---------------------------------------------------------------------------------------------------------- one fit


def thinned(X: Matrix, most_entries: int) -> Matrix:
    """Return the data with samples left out evenly until it has few enough entries.

    Of wide data features are left out too, where otherwise less than a square would remain.
    """
    X = evenly(X, max(most_entries // X.shape[1], isqrt(most_entries)))
    X = evenly(X.T, most_entries // len(X)).T
    X = X[X.any(axis=1)]
    return np.ascontiguousarray(X[:, X.any(axis=0)])


def reference_of(real: RealSet, X: Matrix) -> Matrix:
    """Return what scikit-learn's fit of the clean data predicts, from the cache if it is there."""
    path = cache_folder() / "references" / f"{real.name}-{zlib.crc32(X.tobytes()):08x}-{real.rank}.npz"
    if not path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = scikit_learn(X, real.rank, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{os.getpid()}-{path.name}")
        np.savez(partial, predicted=fitted.predicted)
        partial.replace(path)
    with np.load(path) as stored:
        predicted: Matrix = stored["predicted"]
        return predicted


def measured(method: str, data: Planted, clean: Matrix, reference: Matrix, rank: int, seed: int) -> dict[str, Any]:
    """Fit and return all measures, or the error that the fit raised."""
    begin = perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fitted: Fitted | Exception = METHODS[method](data, rank, seed)
        except Exception as error:
            fitted = error
    seconds = perf_counter() - begin
    measures: dict[str, Any] = {
        "warnings": [f"{each.category.__name__}: {str(each.message)[:60]}" for each in caught],
        "seconds": rounded(seconds),
    }
    if isinstance(fitted, Exception):
        return {**measures, "error": f"{type(fitted).__name__}: {str(fitted)[:200]}"}
    measures |= {"converged": fitted.converged, **errors_of(fitted, data.judged, clean, reference)}
    if fitted.comparison is not None:
        measures |= {name: rounded(getattr(fitted.comparison, name)) for name in ("damage", "unexplained", "takes_all")}
    return measures if fitted.outliers is None else {**measures, **found_by(fitted.outliers, data.wrong)}


def errors_of(fitted: Fitted, judged: Mask, clean: Matrix, reference: Matrix) -> dict[str, float]:
    ours, theirs = ((clean - predicted)[judged] for predicted in (fitted.predicted, reference))
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.linalg.norm(ours) / np.linalg.norm(theirs)
        absolute = np.abs(ours).sum() / np.abs(theirs).sum()
    return {"squares": rounded(squares), "absolute": rounded(absolute)}


def rounded(number: Any) -> float:
    return float(f"{number:.5g}")


def found_by(outliers: Mask, wrong: Mask) -> dict[str, float]:
    """Return what the mask is worth; recall and precision only where there is something to find."""
    shares = {"planted": wrong.mean(), "cut": outliers.mean(), "good_cut": outliers[~wrong].mean()}
    if wrong.any():
        shares["recall"] = outliers[wrong].mean()
    if wrong.any() and outliers.any():
        shares["precision"] = wrong[outliers].mean()
    return {name: rounded(share) for name, share in shares.items()}


# --------------------------------------------------------------------------------------------------------- all fits

KEY = ("set", "errors", "method", "seed", "most_entries")
Key = tuple[Any, ...]
Record = dict[str, Any]


def sources() -> str:
    """Return a checksum of the code of robustnmf: which default it was."""
    files = sorted(Path(robustnmf.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def recorded(path: Path) -> dict[Key, Record]:
    """Return the lines of a file of results; of several of the same fit the last."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {tuple(record[name] for name in KEY): record for record in map(json.loads, lines)}


def missing(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[Key]]:
    """Return by set the fits that are asked for and not yet made."""
    done, now = recorded(options.results), sources()
    if options.again:
        done = {key: record for key, record in done.items() if record["sources"] == now}
    each = product(options.errors, options.seeds, options.methods)
    wanted = [(errors, method, seed, options.most_entries) for errors, seed, method in each]
    return {name: [(name, *rest) for rest in wanted if (name, *rest) not in done] for name in names}


def records(real: RealSet, keys: Sequence[Key]) -> Iterator[Record]:
    """Make fits of one set, one after the other."""
    code, clean = sources(), thinned(real.load(), keys[0][-1])
    reference = reference_of(real, clean)
    for method in {method for _, _, method, *_ in keys}:
        warm_up(method)
    for key in keys:
        _, errors, method, seed, _ = key
        data = ERRORS[errors](clean, [seed, zlib.crc32(f"{real.name} {errors}".encode())])
        about = {"tuned": real.tuned, "shape": clean.shape, "rank": real.rank, "sources": code}
        measures = measured(method, data, clean, reference, real.rank, seed)
        yield {**dict(zip(KEY, key, strict=True)), **about, **measures}


def run_set(real: RealSet, keys: Sequence[Key], path: Path) -> None:
    """Make the fits of one set; append each as one line, so that several processes may write."""
    try:
        for record in records(real, keys):
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    except (PackageError, ModuleNotFoundError) as error:
        print(f"left out {real.name}: {error}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if not options.table:
        halves = {"tuned": (True,), "untuned": (False,), "all": (True, False)}[options.half]
        names = [name for name in options.sets or SETS if SETS[name].tuned in halves]
        todo = {name: keys for name, keys in missing(names, options).items() if keys}
        Parallel(options.jobs, verbose=5)(
            delayed(run_set)(SETS[name], keys, options.results) for name, keys in todo.items()
        )
    found = [record for record in recorded(options.results).values() if record["most_entries"] == options.most_entries]
    options.results.with_suffix(".md").write_text(tables(found, options.most_entries), encoding="utf-8")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), metavar="SET", help="names in real_sets")
    parser.add_argument("--errors", nargs="+", choices=list(ERRORS), default=list(ERRORS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--most-entries", type=int, default=200_000, help="larger sets are thinned evenly")
    parser.add_argument("--jobs", type=int, default=2, help="sets at a time")
    parser.add_argument("--again", action="store_true", help="repeat fits that other sources of robustnmf made")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of lines; the tables lie beside it")
    parser.add_argument("--table", action="store_true", help="write the tables only")
    half = parser.add_mutually_exclusive_group()
    for name in ("tuned", "untuned", "all"):
        half.add_argument(f"--{name}", dest="half", action="store_const", const=name, default="all")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
