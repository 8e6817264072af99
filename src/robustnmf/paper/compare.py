"""Models side by side: ``robustnmf compare`` or ``python -m robustnmf.paper.compare [METHOD ...]``.

On faces under salt and pepper, whose truth is known, by the error to the clean faces and by clusters of the codes; on
any other data by how well entries are predicted that the fit has not seen.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from robustnmf import METHODS, RobustNMF
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import salt_and_pepper
from robustnmf.errors import IncompatibleError
from robustnmf.metrics import clustering_accuracy, normalized_mutual_information, relative_error
from robustnmf.utils.process_state import ignored_warnings

MAX_ITER = 300
# Share of the entries of data that are hidden from the fits.
HIDDEN = 0.1


@dataclass(frozen=True)
class FacesRow:
    """A model on corrupted faces; shares in percent."""

    method: str
    error: float
    accuracy: float
    nmi: float
    iterations: int
    seconds: float


@dataclass(frozen=True)
class DataRow:
    """A model on data: quantiles of the residuals of hidden entries, in units of the data."""

    method: str
    median: float
    upper_decile: float
    outliers: float
    """In percent."""
    iterations: int
    seconds: float


def check_methods(methods: Sequence[str]) -> list[str]:
    """Return the names, if they are names of models."""
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise ValueError(f"Unknown model {', '.join(unknown)}; choose from {', '.join(METHODS)}.")
    return list(methods)


def compare(
    X: NDArray[Any], clean: NDArray[Any], labels: NDArray[Any], methods: Sequence[str], *, random_state: int = 0
) -> Iterator[FacesRow]:
    """Fit every method to corrupted data X with one component per class, and yield its row.

    Parameters
    ----------
    X, clean : (n_samples, n_features)
        Corrupted and clean data.
    labels : (n_samples,)
        True classes.
    methods : names in `robustnmf.METHODS`.
    random_state : int
        Seed of the starts and of K-means.
    """
    n_classes = len(set(labels.tolist()))
    for method in methods:
        model, codes, seconds = _fit(X, n_classes, method, random_state)
        found = KMeans(n_classes, n_init=10, random_state=random_state).fit_predict(codes)
        yield FacesRow(
            method,
            100 * relative_error(clean, codes @ model.components_),
            100 * clustering_accuracy(labels, found),
            100 * normalized_mutual_information(labels, found),
            model.n_iter_,
            seconds,
        )


def compare_on_faces(methods: Sequence[str], *, random_state: int = 0) -> Iterator[FacesRow]:
    """Compare models on the ORL faces under 40 % salt and pepper, rank 40."""
    faces = load_orl()
    X = salt_and_pepper(faces.data, 0.4, random_state=random_state).data
    return compare(X, faces.data, faces.target, methods, random_state=random_state)


def compare_on_data(
    X: NDArray[Any],
    n_components: int,
    methods: Sequence[str],
    *,
    random_state: int = 0,
    skip: Callable[[str], None] | None = None,
) -> Iterator[DataRow]:
    """Fit every method to data of which a tenth of the observed entries is hidden, and yield how it predicts them.

    The median is that of clean entries; outliers among the hidden ones are in the tail, whatever the model. A model
    that cannot do without the hidden entries is an error, or left out, and `skip` is told why.
    """
    rng = np.random.default_rng(random_state)
    hidden = ~np.isnan(X) & (rng.random(X.shape) < HIDDEN)
    if not hidden.any():
        raise ValueError(
            f"A comparison hides about a tenth of the observed entries, and of {np.count_nonzero(~np.isnan(X))} it has "
            "drawn none. Give it more data."
        )
    seen = np.where(hidden, np.nan, X)
    for method in methods:
        try:
            model, codes, seconds = _fit(seen, n_components, method, random_state)
        except IncompatibleError as error:
            if skip is None:
                raise
            skip(f"{method} is left out: {error}")
            continue
        residuals = np.abs(X - codes @ model.components_)[hidden]
        median, decile = (float(q) for q in np.quantile(residuals, (0.5, 0.9)))
        yield DataRow(method, median, decile, 100 * float(model.outliers_.mean()), model.n_iter_, seconds)


def _fit(X: NDArray[Any], n_components: int, method: Any, random_state: int) -> tuple[Any, NDArray[Any], float]:
    """Return a fitted model, the codes and the seconds it took."""
    begin = perf_counter()
    model = RobustNMF(n_components, method=method, max_iter=MAX_ITER, random_state=random_state)
    with ignored_warnings((UserWarning, "")):  # all get the same iterations, and some are made for other data
        codes = model.fit_transform(X)
    return model, codes, perf_counter() - begin


def lines(rows: Iterable[FacesRow | DataRow]) -> Iterator[str]:
    """Yield the lines of a table, the headings first, each as soon as it is known."""
    headed = False
    for row in rows:
        if not headed:
            yield "".join(f"{field.name:<18}" if i == 0 else f"{field.name:>14}" for i, field in enumerate(fields(row)))
            headed = True
        cells = [f"{value:>14.4g}" for value in list(asdict(row).values())[1:]]
        yield f"{row.method:<18}" + "".join(cells)


def main(methods: Sequence[str]) -> None:
    """Run the comparison on faces and print the table."""
    try:
        methods = check_methods(methods)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print("ORL faces, 40 % salt and pepper, rank 40; error to the clean faces, accuracy and NMI in percent.\n")
    for line in lines(compare_on_faces(methods)):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(METHODS))
