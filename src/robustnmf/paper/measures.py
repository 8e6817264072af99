"""How results are measured: the same for every method."""

from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from robustnmf.metrics import clustering_accuracy, normalized_mutual_information, outlier_scores, relative_error
from robustnmf.paper.task import Matrix
from robustnmf.utils.process_state import ignored_warnings

REPEATS = 10
"""K-means runs from so many random starts, as in the paper."""


def clustering_measures(codes: Matrix, labels: Matrix, seed: int) -> dict[str, float]:
    """Return how well K-means on the codes finds the classes, in percent.

    ``accuracy`` and ``nmi`` are means over ten runs of K-means, as the paper reports them; ``accuracy tightest`` and
    ``nmi tightest`` are those of the run whose clusters are tightest, which is what a user of scikit-learn would keep.
    """
    n_classes = len(np.unique(labels))
    accuracies, information, inertias = [], [], []
    for repeat in range(REPEATS):
        with ignored_warnings((ConvergenceWarning, "")):  # fewer distinct codes than classes
            clusters = KMeans(n_classes, n_init=1, random_state=seed * REPEATS + repeat).fit(codes)
        accuracies.append(100 * clustering_accuracy(labels, clusters.labels_))
        information.append(100 * normalized_mutual_information(labels, clusters.labels_))
        inertias.append(clusters.inertia_)
    tightest = int(np.argmin(inertias))
    return {
        "accuracy": float(np.mean(accuracies)),
        "nmi": float(np.mean(information)),
        "accuracy tightest": accuracies[tightest],
        "nmi tightest": information[tightest],
    }


def fit_measures(
    model: Any, codes: Matrix | None = None, clean: Matrix | None = None, mask: Matrix | None = None
) -> dict[str, float]:
    """Return iterations and, where the truth is known, the error and how well outliers were found, in percent."""
    measures = {} if clean is None else {"error": 100 * relative_error(clean, codes @ model.components_)}
    measures["iterations"] = float(model.n_iter_)
    if np.isfinite(model.thresholds_).any():
        measures["cut"] = 100 * float(model.outliers_.mean())
        if mask is not None:
            scores = outlier_scores(mask, model.outliers_)
            measures |= {"precision": 100 * scores.precision, "recall": 100 * scores.recall}
    return measures
