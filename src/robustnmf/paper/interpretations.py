"""Where the paper is silent: how much our choices matter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import laplace, salt_and_pepper
from robustnmf.metrics import relative_error
from robustnmf.paper import paper_values
from robustnmf.paper.columns import MODELS, TITLES, model
from robustnmf.paper.comparison import comparison_table
from robustnmf.paper.results import Results
from robustnmf.paper.section import Cell, Section, Table
from robustnmf.paper.task import Experiment, Matrix, Outcome, Task, all_tasks

RANK = 40
METHODS = ("nenmf", "default")
Noise = Callable[[Matrix, float, int], Matrix]


def _per_image_salt(X: Matrix, level: float, seed: int) -> Matrix:
    """Return salt and pepper whose salt is the largest pixel of each image."""
    mask = salt_and_pepper(X, level / 100, salt=-1.0, random_state=seed).data
    return np.where(mask < 0, X.max(axis=1, keepdims=True), mask)


def _clipped(X: Matrix, level: float, seed: int) -> Matrix:
    """Return Laplace noise cut at both ends of the range of a pixel."""
    return np.minimum(laplace(X, level, random_state=seed).data, 255.0)


READINGS: Mapping[str, Mapping[str, Noise]] = {
    "salt and pepper": {
        "salt 235, the largest pixel": lambda X, level, seed: salt_and_pepper(X, level / 100, random_state=seed).data,
        "salt 255": lambda X, level, seed: salt_and_pepper(X, level / 100, salt=255.0, random_state=seed).data,
        "salt the largest pixel of each image": _per_image_salt,
    },
    "Laplace": {
        "standard deviation delta": lambda X, level, seed: laplace(X, level, random_state=seed).data,
        "scale delta": lambda X, level, seed: laplace(X, np.sqrt(2) * level, random_state=seed).data,
        "standard deviation delta, cut at 255": _clipped,
    },
}
LEVELS = {"salt and pepper": (5, 30, 60), "Laplace": (40, 120, 280)}


def plan_noises(choices: Mapping[str, Any]) -> list[Task]:
    """Return L2-NMF, which needs no tuning, and the default under every reading of the noises."""
    settings = [
        (f"{noise}, {reading}, {level}", level)
        for noise in choices["noises"]
        for reading in READINGS[noise]
        for level in LEVELS[noise]
    ]
    return all_tasks("readings", settings, METHODS, choices)


def run_noises(task: Task, data: Path | None) -> Outcome:
    """Fit faces under one reading of a noise."""
    noise, rest = task.setting.split(", ", 1)
    reading, _ = rest.rsplit(", ", 1)
    return _fit(task, READINGS[noise][reading](load_orl().data, task.level, task.trial))


def _fit(task: Task, X: Matrix) -> Outcome:
    """Return the relative error of a fit to corrupted faces in percent, and its iterations."""
    fitted = model(task.method, RANK, task.trial, **task.parameters)
    error = relative_error(load_orl().data, fitted.fit_transform(X) @ fitted.components_)
    return Outcome({"error": 100 * error, "iterations": float(fitted.n_iter_)})


def noises_section(results: Results) -> Section:
    """Return the errors under every reading beside the paper's L2-NMF."""
    printed = {"salt and pepper": paper_values.salt_and_pepper_errors(), "Laplace": paper_values.laplace_errors()}
    tables = []
    for noise, readings in READINGS.items():
        misprints = "table2" if noise == "salt and pepper" else ""
        rows = []
        for reading, level in product(readings, LEVELS[noise]):
            setting = f"{noise}, {reading}, {level}"
            if setting in results.settings:
                l2, ours = (Cell(results.mean("error", setting=setting, method=method)) for method in METHODS)
                paper, note = paper_values.as_meant(printed[noise], misprints, "nenmf", level)
                rows.append((f"{reading}: {level}", [replace(l2, paper=paper, note=note), ours]))
        if rows:
            titles = [TITLES[method] for method in METHODS]
            tables.append(Table(f"Relative error %, readings of {noise}", "reading: level", titles, rows, "neither"))
    return Section(
        "readings",
        "What the paper leaves open: the noises",
        (),
        ("L2-NMF depends on no choice of ours but the noise, so its column tells which noise the paper had.",),
        tables=tables,
    )


def plan_stopping(choices: Mapping[str, Any]) -> list[Task]:
    """Return every published model stopped at various tolerances."""
    published = [method for method in MODELS if method != "default"]
    by_tolerance = [
        all_tasks("stopping", [(f"tolerance {tol:g}", -np.log10(tol))], published, choices, tol=tol)
        for tol in choices["tolerances"]
    ]
    return [task for tasks in by_tolerance for task in tasks]


def run_stopping(task: Task, data: Path | None) -> Outcome:
    """Fit faces under 30 % salt and pepper."""
    return _fit(task, salt_and_pepper(load_orl().data, 0.3, random_state=task.trial).data)


def stopping_section(results: Results) -> Section:
    """Return errors and iterations by tolerance, beside the paper."""
    at_30 = {m: values[30.0] for m, values in paper_values.salt_and_pepper_errors().items()}
    printed = {m: dict.fromkeys(results.levels, value) for m, value in at_30.items()}
    return Section(
        "stopping",
        "What the paper leaves open: when to stop",
        (),
        ("ORL faces, 30 % salt and pepper; every published model stopped when an iteration changes the objective by "
         "less than the tolerance times its fall so far, or at the limit.",),
        remarks=(
            "Multiplicative updates (L2,1-, Huber- and CIM-NMF, RNMF-L1) are far from converged where the paper's "
            "numbers are; Nesterov's and HALS are not. No single rule gives all columns of the paper.",
        ),
        tables=[
            comparison_table(results, "error", printed, "Relative error %, 30 %", "stop", MODELS, "lower"),
            comparison_table(results, "iterations", {}, "Iterations made", "stop", MODELS, "neither", digits=0),
        ],
    )  # fmt: skip


NOISES = {"readings": "what other readings of the noises would give"}
STOPPING = {"stopping": "what other tolerances would give"}

EXPERIMENTS: Sequence[Experiment] = (
    Experiment("readings", NOISES, plan_noises, run_noises, noises_section),
    Experiment("stopping", STOPPING, plan_stopping, run_stopping, stopping_section),
)
