"""Every loss under the same solver: that it is the loss, not the optimiser, that makes the difference (supplement)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from robustnmf import RobustNMF
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion, salt_and_pepper
from robustnmf.paper.clustering import AR_FILE, Labelled, draw, faces
from robustnmf.paper.comparison import comparison_table
from robustnmf.paper.measures import clustering_measures, fit_measures
from robustnmf.paper.results import Results
from robustnmf.paper.section import Section
from robustnmf.paper.task import Experiment, Matrix, Outcome, Task

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
    return _tasks("same-solver", [(setting, NOISES[setting]) for setting in choices["settings"]], choices)


def plan_ar(choices: Mapping[str, Any]) -> list[Task]:
    """Return every loss on faces of a few people."""
    return _tasks("same-solver-ar", [(f"{level} people", level) for level in choices["levels"]], choices)


def _tasks(name: str, settings: Sequence[tuple[str, float]], choices: Mapping[str, Any]) -> list[Task]:
    limits = {"max_iter": choices["max_iter"], "tol": choices["tol"]}
    return [
        Task(name, setting, level, method, trial, limits)
        for trial in range(choices["trials"])
        for setting, level in settings
        for method in LOSSES
    ]


def _model(task: Task, rank: int) -> RobustNMF:
    """Return a model with the solver and the start that all have in common."""
    return RobustNMF(
        rank,
        method=LOSSES[task.method],
        preset="published",
        solver="nesterov",
        init="random",
        random_state=task.trial,
        **task.parameters,
    )


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
    measures = {"accuracy": ("Clustering accuracy %", "higher"), "nmi": ("Normalised mutual information %", "higher")}
    if name == "same-solver":
        measures["error"] = ("Relative error % to the clean faces", "lower")
    tables = [
        comparison_table(results, measure, {}, f"{caption}, {source}", "data", tuple(LOSSES), better)  # type: ignore[arg-type]
        for measure, (caption, better) in measures.items()
    ]
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
