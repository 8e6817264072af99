"""The line of section 5.1 (Figure 5), and how much contamination its slope bears."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robustnmf.paper import figures
from robustnmf.paper.columns import TITLES, model
from robustnmf.paper.results import Results
from robustnmf.paper.section import Cell, Check, Figure, Section, Table
from robustnmf.paper.task import Experiment, Matrix, Outcome, Task, all_tasks

SLOPE = 0.2
N_POINTS = 180
CLOSE = 2.0
"""A slope is found if it is within so many percent."""
METHODS = ("nenmf", "mahnmf", "truncated-cauchy", "default")


class Case(NamedTuple):
    """Points moved along x, and along y."""

    in_x: int
    in_y: int


CASES: Mapping[str, Case] = {
    "clean": Case(0, 0),
    "20 in x": Case(20, 0),
    "40 in x": Case(40, 0),
    "40 in x, 40 in y": Case(40, 40),
}
DIRECTIONS: Mapping[str, str] = {"breakdown in x": "x", "breakdown in both": "both"}


def points(case: Case, seed: int) -> Matrix:
    """Return points with x uniform up to 10 and y = 0.2 x with slight noise, some moved far along an axis, (180, 2)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, size=N_POINTS)
    y = np.maximum(SLOPE * x + rng.normal(scale=0.02, size=N_POINTS), 0)
    moved = rng.permutation(N_POINTS)
    x[moved[: case.in_x]] += rng.uniform(10, 30, size=case.in_x)
    y[moved[case.in_x : case.in_x + case.in_y]] += SLOPE * rng.uniform(10, 30, size=case.in_y)
    return np.column_stack([x, y])


def share_of_points(percent: int, direction: str) -> Case:
    """Return so many percent of the points moved, along x or half along each axis."""
    moved = round(percent / 100 * N_POINTS)
    in_x = moved if direction == "x" else moved // 2
    return Case(in_x, moved - in_x)


def slope(case: Case, method: str, seed: int, limits: Mapping[str, Any]) -> float:
    """Return the slope that a rank-one fit finds; infinite if its component is the y axis."""
    fitted = model(method, 1, seed, **limits).fit(points(case, seed))
    along_x, along_y = fitted.components_[0]
    return float(along_y / along_x) if along_x > 0 else np.inf


def deviation_percent(found: float) -> float:
    """Return by how many percent a slope is off, at most 1000: a finite number can be averaged and drawn."""
    return min(100 * abs(found - SLOPE) / SLOPE, 1000.0)


def plan(choices: Mapping[str, Any]) -> list[Task]:
    """Return the four cases, and a curve for each direction, method and trial."""
    cases = [(setting, level) for level, setting in enumerate(CASES)]
    curves = [(setting, level) for level, setting in enumerate(DIRECTIONS, start=len(CASES))]
    tasks = all_tasks("toy", cases, METHODS, choices)
    return tasks + all_tasks("toy", curves, METHODS, choices, step=choices["step"])


def run(task: Task, data: Path | None) -> Outcome:
    """Fit one case, or a curve of growing contamination."""
    limits = {name: task.parameters[name] for name in ("max_iter", "tol")}
    if task.setting in CASES:
        case = CASES[task.setting]
        found = slope(case, task.method, task.trial, limits)
        off = deviation_percent(found)
        shown = task.trial == 0 and task.method == METHODS[0]
        arrays = {"points": points(case, task.trial)} if shown else {}
        return Outcome({"slope": min(found, 1e6), "off": off, "found": float(off <= CLOSE)}, arrays)
    measures = {}
    for percent in range(0, 61, task.parameters["step"]):
        case = share_of_points(percent, DIRECTIONS[task.setting])
        measures[f"off at {percent:02d} %"] = deviation_percent(slope(case, task.method, task.trial, limits))
    return Outcome(measures)


def breakdown_curve(results: Results, setting: str, method: str) -> dict[int, list[float]]:
    """Return by how many percent the slopes are off, for each share of moved points."""
    curve: dict[int, list[float]] = {}
    for record in results.where(setting=setting, method=method).records:
        for measure, value in record.measures.items():
            curve.setdefault(int(measure.split()[2]), []).append(value)
    return dict(sorted(curve.items()))


def breakdown_point(curve: Mapping[int, Sequence[float]], needed: float) -> float:
    """Return the last share up to which at least `needed` of the fits find the slope; NaN for none."""
    reached = float("nan")
    for percent, values in curve.items():
        if np.mean(np.asarray(values) <= CLOSE) < needed:
            break
        reached = percent
    return reached


def section(results: Results) -> Section:
    """Return Figure 5 and the breakdown curve."""
    n_trials = len({record.task.trial for record in results.records})
    return Section(
        "toy",
        "A line through contaminated points",
        ("fig5",),
        (
            "180 points with x uniform in 0 to 10 and y = 0.2 x, Gaussian noise of deviation 0.02 on y. Moved points "
            "get 10 to 30 added to x, or 2 to 6 to y, uniformly. The paper says neither how points are spread nor how "
            "far they move.",
            "Rank one; the slope is the ratio of the two entries of the component. Found means within 2 % of 0.2. "
            "Slopes that are off by more than 1000 % count as 1000 %.",
            f"Trials: {n_trials}, each with new points and a new start.",
        ),
        remarks=(
            "The paper claims a breakdown point above 44.4 %, the share of its last case. Where all points move along "
            "x, no method can go beyond 50 %: then the moved points are the majority.",
        ),
        tables=[_slope_table(results), _breakdown_table(results)],
        figures=[
            Figure("One trial of each case and the lines that were found.", _lines(results)),
            Figure(
                "Median over trials of how far the slope is off, against the share of moved points; dashed, the 2 % "
                "that count as found.",
                _curves(results),
            ),
        ],
        checks=_checks(results, n_trials),
    )


def _slope_table(results: Results) -> Table:
    rows = [(case, [Cell(100 * results.mean("found", setting=case, method=m)) for m in METHODS]) for case in CASES]
    titles = [TITLES[m] for m in METHODS]
    return Table("Trials in which the slope is found, %", "points moved", titles, rows, "higher", 0)


def _breakdown_table(results: Results) -> Table:
    rows = []
    for setting, direction in DIRECTIONS.items():
        for rule, needed in (("half of the trials", 0.5), ("19 of 20 trials", 0.95)):
            cells = [Cell(breakdown_point(breakdown_curve(results, setting, m), needed)) for m in METHODS]
            rows.append((f"moved in {direction}; found in {rule}", cells))
    caption = "Breakdown point: the largest share of moved points, %, up to which the slope is found"
    return Table(caption, "points", [TITLES[m] for m in METHODS], rows, "higher", 0)


def _checks(results: Results, n_trials: int) -> list[Check]:
    found = [100 * results.mean("found", setting=setting, method="default") for setting in CASES]
    share = min(found) if found and not np.isnan(found).any() else float("nan")
    curve = breakdown_curve(results, "breakdown in both", "default")
    point = breakdown_point(curve, 0.5)
    wrong = results.mean("found", setting="20 in x", method="nenmf")
    return [
        Check(
            "The default finds the slope in 19 of 20 trials of every case",
            None if np.isnan(share) else bool(share >= 95),
            f"{share:.0f} % of {n_trials} trials in the worst case",
        ),
        Check(
            "Its breakdown point is above the paper's 44.4 %",
            bool(point > 44.4) if curve else None,
            f"{point:g} % of the points, moved in both directions, by the median of trials",
        ),
        Check(
            "L2-NMF is lost with 20 contaminated points, as in the paper",
            None if np.isnan(wrong) else bool(wrong < 0.5),
            f"found in {100 * wrong:.0f} % of trials",
        ),
    ]


def _lines(results: Results) -> str:
    def paint(figure: Any) -> None:
        axes = figure.subplots(1, len(CASES), sharey=True)
        for axis, setting in zip(axes, CASES, strict=True):
            cloud = results.arrays(setting=setting, trial=0).get("points")
            if cloud is None:
                continue
            axis.plot(*cloud.T, ".", ms=3, color="#8a8a8a")
            right, top = cloud.max(axis=0)
            for method in METHODS:
                end = results.mean("slope", setting=setting, method=method, trial=0) * right
                axis.plot([0, right], [0, end], color=figures.COLOURS[method], label=TITLES[method])
            axis.set(title=setting, xlabel="x", ylim=(0, 1.05 * top), xlim=(0, right))
        axes[0].set_ylabel("y")
        figures.legend_below(figure)

    return figures.draw(paint, "toy-lines", (11, 3.2))


def _curves(results: Results) -> str:
    def paint(figure: Any) -> None:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (setting, direction) in zip(axes, DIRECTIONS.items(), strict=True):
            for method in METHODS:
                curve = breakdown_curve(results, setting, method)
                medians = [max(float(np.median(values)), 1e-2) for values in curve.values()]
                axis.semilogy(list(curve), medians, ".-", color=figures.COLOURS[method], label=TITLES[method], ms=4)
            axis.axhline(CLOSE, ls="--", lw=1, color=figures.INK)
            moved = "along x" if direction == "x" else "half along x, half along y"
            axis.set(title=f"points moved {moved}", xlabel="share of moved points, %")
            axis.grid(alpha=0.25, lw=0.5)
        axes[0].set_ylabel("slope off by, %")
        figures.legend_below(figure)

    return figures.draw(paint, "toy-breakdown", (9, 3.4))


ITEMS = {"fig5": "the line with contaminated points, and the breakdown curve"}

EXPERIMENTS: Sequence[Experiment] = (Experiment("toy", ITEMS, plan, run, section),)
