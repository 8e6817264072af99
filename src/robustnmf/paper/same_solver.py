"""Every loss under the same solver: that it is the loss, not the optimiser, that makes the difference (supplement)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from robustnmf import RobustNMF
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion, salt_and_pepper
from robustnmf.paper.clustering import AR_FILE, Labelled, draw, faces
from robustnmf.paper.comparison import clustering_tables, comparison_table
from robustnmf.paper.measures import clustering_measures, fit_measures
from robustnmf.paper.results import Results
from robustnmf.paper.section import Section
from robustnmf.paper.task import Experiment, Matrix, Outcome, Task, all_tasks

LOSSES: Mapping[str, str] = {
    "nenmf": "l2",
    "l21": "l21",
    "mahnmf": "l1",
    "huber": "huber",
    "cim": "cim",
    "cauchy": "cauchy",
    "truncated-cauchy": "truncated-cauchy",
}
"""Columns and the models whose loss, scale and outlier rule they take."""
RANK = 40
NOISES = {"40 % salt and pepper": 0.0, "12 x 12 blocks": 1.0}


def plan_orl(choices: Mapping[str, Any]) -> list[Task]:
    """Return every loss on faces under two corruptions."""
    return all_tasks("same-solver", [(setting, NOISES[setting]) for setting in choices["settings"]], LOSSES, choices)


def plan_ar(choices: Mapping[str, Any]) -> list[Task]:
    """Return every loss on faces of a few people."""
    return all_tasks("same-solver-ar", [(f"{level} people", level) for level in choices["levels"]], LOSSES, choices)


def _model(task: Task, rank: int) -> RobustNMF:
    """Return a model with the solver and the start that all have in common."""
    shared: dict[str, Any] = {"preset": "published", "solver": "nesterov", "init": "random", "random_state": task.trial}
    shared["method"] = LOSSES[task.method]
    return RobustNMF(rank, **shared, **task.parameters)


def run_orl(task: Task, data: Path | None) -> Outcome:
    """Fit corrupted faces of ORL."""
    orl = load_orl()
    X = _corrupted(orl.data, orl.image_shape, task)
    model = _model(task, RANK)
    codes = model.fit_transform(X)
    return Outcome(fit_measures(model, codes, orl.data, None) | clustering_measures(codes, orl.target, task.trial))


def _corrupted(X: Matrix, shape: tuple[int, int], task: Task) -> Matrix:
    if task.setting == "40 % salt and pepper":
        return salt_and_pepper(X, 0.4, random_state=task.trial).data
    return block_occlusion(X, 12, shape, random_state=task.trial).data


def run_ar(task: Task, data: Path | None) -> Outcome:
    """Fit faces of a few people of AR."""
    assert data is not None, "the runner gives no task that needs data to an experiment without"
    samples: Labelled = draw(faces(data), int(task.level), task.trial)
    codes = _model(task, int(task.level)).fit_transform(samples.data)
    return Outcome(clustering_measures(codes, samples.target, task.trial))


def section(name: str, source: str, results: Results) -> Section:
    """Return accuracy, mutual information and, where the truth is known, error."""
    methods = tuple(LOSSES)
    tables = clustering_tables(results, f", {source}", "data", methods)
    if name == "same-solver":
        caption = f"Relative error % to the clean faces, {source}"
        tables.append(comparison_table(results, "error", {}, caption, "data", methods, "lower"))
    return Section(
        name,
        f"All losses under one solver ({source})",
        ("supplement",),
        (
            "Loss, scale and outlier rule of each model with Algorithm 2, weighted least squares by Nesterov's method, "
            "from the same uniform random start. RNMF-L1 has the loss of Huber-NMF and is left out.",
            "The supplement of the paper was not at hand: corruptions and numbers of people are our choice.",
        ),
        tables=tables,
    )


ITEMS = {"supplement": "all losses under the same Nesterov half-quadratic solver"}

EXPERIMENTS: Sequence[Experiment] = (
    Experiment("same-solver", ITEMS, plan_orl, run_orl, partial(section, "same-solver", "ORL")),
    Experiment("same-solver-ar", ITEMS, plan_ar, run_ar, partial(section, "same-solver-ar", "AR"), needs=AR_FILE),
)
