"""Faces of one person, some of them hidden: Figures 2 and 3."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf import RobustNMF
from robustnmf.datasets import load_ar, load_orl
from robustnmf.paper import figures
from robustnmf.paper.clustering import AR_FILE
from robustnmf.paper.columns import TITLES, model
from robustnmf.paper.results import Results
from robustnmf.paper.section import Figure, Section
from robustnmf.paper.task import Experiment, Matrix, Outcome, Task, all_tasks

RANK = 2
"""Two sessions, two basis images."""
METHODS = ("nenmf", "truncated-cauchy", "default")
MOMENTS = (0, 1, 2, 4, 8, 16)
"""Iterations after which the weights are shown."""


def disguised(images: Matrix) -> Matrix:
    """Return ten faces: four as they are, two lit from one side, two with sunglasses, two with a scarf."""
    faces = images.astype(np.float64)
    height, width = faces.shape[1:]
    light = np.linspace(0.25, 1.6, width)
    faces[4] *= light
    faces[5] *= light[::-1]
    eyes, mouth = slice(round(0.22 * height), round(0.45 * height)), slice(round(0.62 * height), height)
    faces[6:8, eyes] = 8.0  # darker than any part of these faces
    stripes = np.where(np.arange(width) // 3 % 2, 225.0, 160.0)
    faces[8:10, mouth] = stripes
    return faces


def orl_person(number: int, data: Path | None) -> Matrix:
    """Return the ten faces of one person of ORL, six of them disguised."""
    orl = load_orl()
    return disguised(orl.images[orl.target == number])


def ar_person(number: int, data: Path | None) -> Matrix:
    """Return the 26 faces of one person of AR."""
    assert data is not None, "the runner gives no task that needs data to an experiment without"
    ar = load_ar(data / AR_FILE)
    return np.asarray(ar.images[ar.target == number], dtype=np.float64)


SOURCES = {"person": orl_person, "person-ar": ar_person}


def plan(name: str, choices: Mapping[str, Any]) -> list[Task]:
    """Return each method on the faces of one person."""
    number = choices["person"]
    return all_tasks(name, [(f"person {number}", 0)], METHODS, choices, person=number)


def run(task: Task, data: Path | None) -> Outcome:
    """Factorise the faces; keep pictures of what came of them, and of the weights on the way."""
    images = SOURCES[task.experiment](task.parameters["person"], data)
    limits = {name: task.parameters[name] for name in ("max_iter", "tol")}
    X, shape = images.reshape(len(images), -1), images.shape[1:]
    fitted = model(task.method, RANK, task.trial, **limits)
    product = fitted.fit_transform(X) @ fitted.components_
    arrays = {
        "images": X,
        "reconstructions": product,
        "errors": np.abs(X - product),
        "basis": fitted.components_,
        "weights": fitted.weights_,
    }
    if task.method == "truncated-cauchy":
        arrays |= {f"weights after {n}": _weights_after(n, X, limits["tol"]) for n in MOMENTS}
    measures = {"cut": 100 * float(fitted.outliers_.mean()), "iterations": float(fitted.n_iter_)}
    pictures = {name: array.reshape(-1, *shape).astype(np.float32) for name, array in arrays.items()}
    return Outcome(measures, pictures)


def _weights_after(n_iter: int, X: Matrix, tol: float) -> Matrix:
    """Return the weights of the published model stopped after some iterations, those of its start after none."""

    def stop(iteration: Any) -> bool:
        return bool(iteration.n_iter >= n_iter)

    fitted = RobustNMF(RANK, preset="published", random_state=0, tol=tol, max_iter=max(n_iter, 1), callback=stop)
    return np.asarray(fitted.fit(X).weights_)


def section(name: str, source: str, results: Results) -> Section:
    """Return pictures of the faces, their reconstructions, errors, basis and weights."""
    found = {m: arrays for m in METHODS if (arrays := results.arrays(method=m))}
    drawings = []
    for method, arrays in found.items():
        rows = [
            ("faces", arrays["images"]),
            ("reconstructions", arrays["reconstructions"]),
            ("errors", arrays["errors"]),
            ("weights", 255 * arrays["weights"]),
        ]
        svg = figures.pictures(rows, f"{name}-{method}", vmax=255)
        drawings.append(Figure(f"{TITLES[method]}: faces, reconstructions, errors and weights (white is 1).", svg))
    if found:
        rows = [(TITLES[m], arrays["basis"]) for m, arrays in found.items()]
        drawings.append(Figure("The two basis images of each method.", figures.pictures(rows, f"{name}-basis")))
    if "truncated-cauchy" in found:
        drawings.append(_sequence(name, found["truncated-cauchy"]))
    return Section(
        name,
        f"One person, some faces hidden ({source})",
        ("fig2", "fig3"),
        (
            f"All faces of one person of {source}, rank 2, as in the paper.",
            "ORL has no disguises: light from one side, dark glasses and a striped scarf are painted on six of the "
            "ten faces."
            if name == "person"
            else "42 x 30 pixels (the paper: 165 x 120).",
        ),
        figures=drawings,
    )


def _sequence(name: str, arrays: Mapping[str, Matrix]) -> Figure:
    """Return the weights of the published model on its way (Figure 3)."""
    rows = [("faces", arrays["images"] / 255), *((f"after {n}", arrays[f"weights after {n}"]) for n in MOMENTS)]
    caption = "Weights of the published model at its start and after 1, 2, 4, 8 and 16 iterations (white is 1)."
    return Figure(caption, figures.pictures(rows, f"{name}-weights", vmax=1))


ITEMS = {"fig2": "faces of one person and what becomes of them", "fig3": "the weights over the iterations"}

EXPERIMENTS: Sequence[Experiment] = (
    Experiment("person", ITEMS, partial(plan, "person"), run, partial(section, "person", "ORL")),
    Experiment("person-ar", ITEMS, partial(plan, "person-ar"), run, partial(section, "person-ar", "AR"), needs=AR_FILE),
)
