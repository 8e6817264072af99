"""Every model side by side: ``python -m robustnmf.compare [METHOD ...]``.

Factorises the ORL faces under 40 % salt-and-pepper noise with every model of `robustnmf.METHODS`, and prints for each
the relative error to the clean faces, accuracy and normalised mutual information of K-means on the codes, iterations
and seconds.
"""

import sys
import warnings
from collections.abc import Iterator
from time import perf_counter
from typing import Any, NamedTuple

from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from robustnmf import METHODS, RobustNMF
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import salt_and_pepper
from robustnmf.metrics import clustering_accuracy, normalized_mutual_information, relative_error

MAX_ITER = 300


class Row(NamedTuple):
    """One line of the comparison."""

    method: str
    error: float
    accuracy: float
    nmi: float
    iterations: int
    seconds: float


def compare(
    X: NDArray[Any], clean: NDArray[Any], labels: NDArray[Any], methods: list[str], *, random_state: int = 0
) -> Iterator[Row]:
    """Fit every method to X with one component per class, and yield its row.

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
        begin = perf_counter()
        model = RobustNMF(n_classes, method=method, max_iter=MAX_ITER, random_state=random_state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            codes = model.fit_transform(X)
        seconds = perf_counter() - begin
        found = KMeans(n_classes, n_init=10, random_state=random_state).fit_predict(codes)
        yield Row(
            method,
            relative_error(clean, codes @ model.components_),
            clustering_accuracy(labels, found),
            normalized_mutual_information(labels, found),
            model.n_iter_,
            seconds,
        )


def main(methods: list[str]) -> None:
    """Run the comparison and print the table."""
    unknown = set(methods) - set(METHODS)
    if unknown:
        raise SystemExit(f"Unknown method(s) {', '.join(sorted(unknown))}; choose from {', '.join(METHODS)}.")
    faces = load_orl()
    X = salt_and_pepper(faces.data, 0.4, random_state=0).data
    print("ORL faces, 40 % salt and pepper, rank 40; error is relative to the clean faces.\n")
    print(f"{'method':<18}{'error':>8}{'accuracy':>10}{'NMI':>8}{'iterations':>12}{'seconds':>9}")
    for row in compare(X, faces.data, faces.target, methods):
        print(
            f"{row.method:<18}{row.error:>8.1%}{row.accuracy:>10.1%}{row.nmi:>8.1%}{row.iterations:>12}{row.seconds:>9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or list(METHODS))
