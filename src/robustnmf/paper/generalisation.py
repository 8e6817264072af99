"""The bound of Theorem 1 against the number of samples, and a measured gap beside it."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf import RobustNMF
from robustnmf.paper import figures
from robustnmf.paper.results import Results
from robustnmf.paper.section import Check, Figure, Section, Table
from robustnmf.paper.task import Experiment, Matrix, Outcome, Task, all_tasks
from robustnmf.paper.theory import generalization_bound

FEATURES, RANK = 16, 2
SCALE, TRUNCATION = 0.5, 4.0
"""gamma and sigma."""
CONFIDENCE = 0.05
"""delta: the bound holds with probability 1 - delta."""
NEW_SAMPLES = 4000
"""Samples that stand for the distribution."""


def samples(n: int, rng: np.random.Generator, basis: Matrix) -> Matrix:
    """Return samples of low rank with noise and a tenth of wrong entries, each of norm at most 1, (n, 16)."""
    X = rng.random((n, RANK)) @ basis + 0.02 * rng.random((n, FEATURES))
    X[rng.random(X.shape) < 0.1] = 2.0
    bounded: Matrix = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    return bounded


def risk(model: RobustNMF, X: Matrix) -> float:
    """Return the mean over samples of half the truncated Cauchy loss at the best code: R of section 2.1."""
    residuals = X - model.transform(X) @ model.components_
    return float(0.5 * np.log1p(np.minimum((residuals / SCALE) ** 2, TRUNCATION)).sum() / len(X))


def plan(choices: Mapping[str, Any]) -> list[Task]:
    """Return one fit for each number of samples."""
    settings = [(f"{n} samples", n) for n in choices["levels"]]
    return all_tasks("generalisation", settings, ["truncated-cauchy"], choices)


def run(task: Task, data: Path | None) -> Outcome:
    """Measure the loss of a fit on its own samples and on new ones, and evaluate the bound."""
    n = int(task.level)
    rng = np.random.default_rng([n, task.trial])
    basis = rng.random((RANK, FEATURES))
    X, new = samples(n, rng, basis), samples(NEW_SAMPLES, rng, basis)
    model = RobustNMF(
        RANK, preset="published", scale=SCALE, outliers=TRUNCATION, random_state=task.trial, **task.parameters
    ).fit(X)
    known, unknown = risk(model, X), risk(model, new)
    bound = partial(
        generalization_bound, n, m=FEATURES, r=RANK, alpha=1.0, sigma=TRUNCATION, gamma=SCALE, delta=CONFIDENCE
    )
    return Outcome(
        {
            "loss": known,
            "loss of new samples": unknown,
            "gap": abs(unknown - known),
            "bound": bound(),
            "bound, consistent reading": bound(reading="consistent"),
        }
    )


def section(results: Results) -> Section:
    """Return the bound and the gap."""
    measures = ("loss", "loss of new samples", "gap", "bound", "bound, consistent reading")
    rows = [(setting, [results.cell(m, setting=setting) for m in measures]) for setting in results.settings]
    levels = results.levels
    gaps = [results.mean("gap", level=n) for n in levels]
    ratios = [gap / results.mean("bound", level=n) for n, gap in zip(levels, gaps, strict=True)]
    rate = float(np.polyfit(np.log(levels), np.log(gaps), 1)[0]) if len(levels) > 1 else float("nan")
    return Section(
        "generalisation",
        "How well it generalises",
        ("theorem1",),
        (
            "Samples of 16 features and rank 2, with noise and a tenth of wrong entries, scaled to norm at most 1; "
            f"gamma {SCALE:g}, sigma {TRUNCATION:g}, confidence {1 - CONFIDENCE:g}.",
            f"The gap is that between the mean loss of the training samples and of {NEW_SAMPLES} new ones, at the "
            "components that were learnt. The theorem bounds the largest gap over all components, so ours may be, and "
            "is, far smaller.",
        ),
        remarks=(
            "The theorem promises a fall like sqrt(ln n / n). The bound is larger than any loss could be until n "
            "reaches millions: true, but of no use for data of ordinary size.",
            "The printed constants r^2, r^3, r^4 look like gamma^2, gamma^3, gamma^4; the last column reads them so.",
        ),
        tables=[Table("Loss, gap and bound", "samples", measures, rows, digits=4)],
        figures=[Figure("Measured gap and bound of Theorem 1 against the number of samples.", _drawing(results))],
        checks=[
            Check(
                "The measured gap is below the bound for every n",
                bool(max(ratios) < 1) if ratios else None,
                f"at most {max(ratios):.2g} of the bound" if ratios else "no results",
            ),
            Check(
                "The gap falls about as n^(-1/2)",
                None if np.isnan(rate) else bool(-0.9 < rate < -0.2),
                f"fitted exponent {rate:.2f}",
            ),
        ],
    )


def _drawing(results: Results) -> str:
    def paint(figure: Any) -> None:
        axis, levels = figure.subplots(), results.levels
        for measure, look in (("gap", "o-"), ("bound", "s-"), ("bound, consistent reading", "^-")):
            axis.loglog(levels, [results.mean(measure, level=n) for n in levels], look, label=measure, ms=4)
        axis.set(xlabel="number of samples", ylabel="mean loss per sample")
        axis.grid(alpha=0.25, lw=0.5)
        axis.legend(fontsize=8)

    return figures.draw(paint, "generalisation", (5.5, 3.4))


ITEMS = {"theorem1": "the bound against the number of samples, and a measured gap"}

EXPERIMENTS: Sequence[Experiment] = (Experiment("generalisation", ITEMS, plan, run, section),)
