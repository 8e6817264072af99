"""Clusters of real data: people of AR (Figure 8) and categories of Caltech-101 (Figure 11)."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robustnmf.datasets import load_ar, load_caltech101
from robustnmf.paper import figures
from robustnmf.paper.columns import TITLES, model
from robustnmf.paper.comparison import best_of_all, clustering_tables
from robustnmf.paper.measures import clustering_measures, fit_measures
from robustnmf.paper.results import Results
from robustnmf.paper.section import Figure, Section
from robustnmf.paper.task import Experiment, Matrix, Outcome, Task, all_tasks

AR_FILE = "ar_42x30.npz"
CALTECH_FILE = "caltech101_effnetlite0.npz"


class Labelled(NamedTuple):
    """Samples and their classes."""

    data: Matrix
    target: Matrix


@cache
def faces(folder: Path) -> Labelled:
    """Return the AR faces and who they are."""
    ar = load_ar(folder / AR_FILE)
    return Labelled(ar.data, ar.target)


@cache
def objects(folder: Path) -> Labelled:
    """Return features of the Caltech images and their categories; of two framings of the same faces, one."""
    caltech = load_caltech101(folder / CALTECH_FILE)
    kept = caltech.target_names[caltech.target] != "Faces_easy"
    return Labelled(caltech.data[kept], caltech.target[kept])


LOADERS: Mapping[str, Callable[[Path], Labelled]] = {"ar-clustering": faces, "caltech-clustering": objects}


def draw(samples: Labelled, n_classes: int, trial: int) -> Labelled:
    """Return all samples of classes drawn at random; the same classes for every method of a trial."""
    rng = np.random.default_rng([n_classes, trial])
    members = np.isin(samples.target, rng.choice(np.unique(samples.target), n_classes, replace=False))
    return Labelled(samples.data[members], samples.target[members])


def plan(name: str, noun: str, choices: Mapping[str, Any]) -> list[Task]:
    """Return every method for every number of classes."""
    return all_tasks(name, [(f"{level} {noun}", level) for level in choices["levels"]], TITLES, choices)


def run(task: Task, data: Path | None) -> Outcome:
    """Factorise the samples of some classes, and see whether clusters of the codes are those classes."""
    assert data is not None, "the runner gives no task that needs data to an experiment without"
    samples = draw(LOADERS[task.experiment](data), int(task.level), task.trial)
    if task.method == "kmeans":
        return Outcome(clustering_measures(samples.data, samples.target, task.trial))
    fitted = model(task.method, int(task.level), task.trial, **task.parameters)
    codes = fitted.fit_transform(samples.data)
    return Outcome(clustering_measures(codes, samples.target, task.trial) | fit_measures(fitted))


PROTOCOL = (
    "Rank and number of clusters are the number of classes; K-means on the codes, mean over ten runs of K-means and "
    "then over trials. Every trial draws new classes and new starts; all methods of a trial see the same samples.",
    "All published models with the same limit on iterations and the same tolerance.",
)


def section(name: str, item: str, title: str, noun: str, protocol: str, remark: str, results: Results) -> Section:
    """Return tables and curves of accuracy and mutual information."""
    labels = {"accuracy": "accuracy %", "nmi": "NMI %"}
    n_trials = len({record.task.trial for record in results.records})
    svg = figures.curves(results, labels, name, f"number of {noun}")
    return Section(
        name,
        title,
        (item,),
        (*PROTOCOL, protocol, f"Trials in these results: {n_trials}."),
        (remark,),
        tables=clustering_tables(results, "", noun),
        figures=[Figure("Means and standard deviations over trials.", svg)],
        checks=[best_of_all(results, "accuracy", tie=1.0)],
    )


def experiment(
    name: str, item: str, what: str, needs: str, title: str, noun: str, protocol: str, remark: str
) -> Experiment:
    """Return the clustering of one data set."""
    of_results = partial(section, name, item, title, noun, protocol, remark)
    return Experiment(name, {item: what}, partial(plan, name, noun), run, of_results, needs)


EXPERIMENTS: Sequence[Experiment] = (
    experiment(
        "ar-clustering",
        "fig8",
        "AR clustering, 2 to 10 people",
        AR_FILE,
        "Clusters of AR faces",
        "people",
        "All 26 shots of each person, at 42 x 30 pixels (the paper: 55 x 40). The text says “between two and ten "
        "images of each individual”, the figure “number of clusters between 2 and 10”: read as two to ten individuals.",
        "The paper gives a figure without numbers; there is nothing to hold ours against but its shape.",
    ),
    experiment(
        "caltech-clustering",
        "fig11",
        "Caltech-101 clustering, 2 to 10 categories",
        CALTECH_FILE,
        "Clusters of Caltech-101 objects",
        "categories",
        "All images of each category, 31 to 800 of them; Faces_easy, a second framing of Faces, is left out. Features: "
        "1280 outputs of EfficientNet-Lite0 (the paper: 4096 of AlexNet, which could not be had).",
        "These features separate the categories far better than those of 2014 did: K-means without any factorisation "
        "finds most of them, which leaves little for a factorisation to add.",
    ),
)
