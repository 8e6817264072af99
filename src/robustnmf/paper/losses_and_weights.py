"""The losses (Figure 1) and the robustness weights of all models (Table 1 of section 2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.paper import figures, theory
from robustnmf.paper.results import Results
from robustnmf.paper.section import Cell, Check, Figure, Section, Table
from robustnmf.paper.task import Experiment, Outcome, Task

SHAPES = ((1.0, 200.0), (0.1, 100.0), (0.01, 50.0), (0.001, 25.0))
"""(gamma, epsilon) of Figure 1 (b)."""
RESIDUALS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 100.0)
WEIGHTED = tuple(theory.ROBUSTNESS_WEIGHTS)


def plan(choices: Mapping[str, Any]) -> list[Task]:
    """Return one task for the losses and one for the weights of each model."""
    tasks = [Task("losses", "losses", 0, "truncated-cauchy", 0)]
    return tasks + [Task("losses", "weights", 1, method, 0) for method in WEIGHTED]


def run(task: Task, data: Path | None) -> Outcome:
    """Evaluate formulas."""
    if task.setting == "weights":
        return Outcome({f"weight at {x:g}": float(theory.robustness_weight(task.method, x)) for x in RESIDUALS})
    x, wide = np.linspace(-10, 10, 401), np.linspace(-250, 250, 1001)
    curves = {
        "x": x,
        "e2": theory.e2(x),
        "e1": theory.e1(x),
        "ec": theory.cauchy(x, 1.0),
        "et": theory.truncated_cauchy(x, 1.0, 5.0),
        "e0": theory.e0(x),
        "wide": wide,
    }
    measures = {}
    for gamma, epsilon in SHAPES:
        curves[f"shape {gamma:g}"] = theory.normalised_truncated_cauchy(wide, gamma, epsilon)
        # How far the shape is from the L0 loss where neither is trivial: at |x| of one unit and more.
        away = np.abs(wide) >= 1
        measures[f"distance to L0 at gamma {gamma:g}"] = float(np.mean(1 - curves[f"shape {gamma:g}"][away]))
    return Outcome(measures, curves)


def section(results: Results) -> Section:
    """Return Figure 1 and the table of weights."""
    present = [m for m in WEIGHTED if m in results.where(setting="weights").methods]
    rows = [
        (m, [Cell(results.mean(f"weight at {x:g}", setting="weights", method=m)) for x in RESIDUALS]) for m in present
    ]
    weights = Table(
        "Weight of an entry by its residual, 1 at residual 0 (scales 1, cuts at 5; of l1, l21 and capped the weight "
        "1 / |r| is rounded at 0.001 and divided by its largest value)",
        "model",
        [f"{x:g}" for x in RESIDUALS],
        rows,
        digits=4,
    )
    distances = [results.mean(f"distance to L0 at gamma {gamma:g}", setting="losses") for gamma, _ in SHAPES]
    shape = Table(
        "Mean distance of the normalised truncated Cauchy loss to the L0 loss for 1 ≤ |x| ≤ 250",
        "loss",
        [f"gamma {gamma:g}, epsilon {epsilon:g}" for gamma, epsilon in SHAPES],
        [("distance", [Cell(distance) for distance in distances])],
        "lower",
        4,
    )
    known = not np.isnan(distances).any()
    return Section(
        "losses",
        "Losses and robustness weights",
        ("fig1", "table1-weights"),
        (
            "Formulas only, nothing is fitted. The weights are written down from Table 1 and tested against the losses "
            "that the estimators use.",
            "In (b) every loss is divided by its largest value: as printed, e_t grows without bound as gamma falls, "
            "and only its shape tends to the L0 loss.",
        ),
        remarks=(
            "Two misprints of Table 1: the weight of CIM-NMF has its exponential in the denominator, where it would "
            "grow with the error, and the loss of CauchyNMF lacks a square.",
        ),
        tables=[weights, shape],
        figures=[Figure("(a) losses; (b) shapes of the truncated Cauchy loss as gamma falls.", _drawing(results))],
        checks=[
            Check(
                "The shape of e_t comes closer to the L0 loss as gamma falls",
                bool(np.all(np.diff(distances) < 0)) if known else None,
                ", ".join(f"{distance:.3f}" for distance in distances),
            )
        ],
    )


def _drawing(results: Results) -> str:
    curves = results.arrays(setting="losses")
    names = {"e2": "squared", "e1": "absolute", "ec": "Cauchy", "et": "truncated Cauchy", "e0": "L0"}

    def paint(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        if curves:
            for name, label in names.items():
                left.plot(curves["x"], curves[name], label=label)
            for gamma, epsilon in SHAPES:
                right.plot(curves["wide"], curves[f"shape {gamma:g}"], label=f"gamma {gamma:g}, epsilon {epsilon:g}")
        left.set(ylim=(0, 8), xlabel="x", ylabel="loss", title="(a)")
        left.legend(fontsize=8)
        right.set(xlabel="x", ylabel="loss / its maximum", title="(b)")
        right.legend(fontsize=8, loc="lower right")

    return figures.draw(paint, "losses", (9, 3.4))


ITEMS = {"fig1": "the losses, and e_t as gamma falls", "table1-weights": "robustness weights of all models"}

EXPERIMENTS: Sequence[Experiment] = (Experiment("losses", ITEMS, plan, run, section),)
