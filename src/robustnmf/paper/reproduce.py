"""From names of tables and figures to a report: ``robustnmf reproduce``."""

import json
import platform
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
import sklearn

import robustnmf
from robustnmf.paper import (
    clustering,
    generalisation,
    interpretations,
    losses_and_weights,
    noisy_faces,
    person,
    recognition,
    report,
    same_solver,
    toy,
)
from robustnmf.paper import summary as summary_of_all
from robustnmf.paper.results import Log, Results
from robustnmf.paper.runner import run_tasks
from robustnmf.paper.section import Section
from robustnmf.paper.task import Experiment, Task
from robustnmf.utils.files import make_folder, write_owned

Scale = Literal["full", "quick"]

QUICK = (
    "quick: fewer levels, trials and iterations than the paper. They are too few to refute a claim: one that does not "
    "hold here counts as one with not enough results"
)

MODULES = (
    losses_and_weights,
    generalisation,
    person,
    toy,
    noisy_faces,
    clustering,
    recognition,
    same_solver,
    interpretations,
)
"""Modules of this folder that have `EXPERIMENTS`, in the order of the report."""

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment for module in MODULES for experiment in module.EXPERIMENTS
}


HOLDERS = {
    clustering.AR_FILE: "AR faces: from their authors, A. M. Martinez and R. Benavente (CVC Technical Report 24, "
    "1998), on request and for research only. Neither the images nor pictures made of them may be passed on.",
    clustering.CALTECH_FILE: "Caltech-101: from the California Institute of Technology (CaltechDATA), by L. Fei-Fei, "
    "R. Fergus and P. Perona, 2004. The features are outputs of EfficientNet-Lite0 for these images.",
}
"""Who has the data that is not part of the package, by the file that is made of it; `robustnmf.datasets` says how."""


class Skipped(NamedTuple):
    """An experiment that cannot be run here."""

    experiment: Experiment
    reason: str


class Outcome(NamedTuple):
    """What a reproduction left behind."""

    report: Path
    table: Path
    failed: int
    skipped: Sequence[Skipped]


def items() -> dict[str, str]:
    """Return the identifiers of all tables and figures, and what they are.

    Returns
    -------
    dict of str to str
        What each identifier stands for.

    Examples
    --------
    >>> items()["table2"]
    'ORL, salt and pepper: relative error'
    """
    return {item: text for experiment in EXPERIMENTS.values() for item, text in experiment.items.items()}


def reproduce(
    names: Sequence[str],
    out: Path,
    *,
    scale: Scale = "full",
    data: Path | None = None,
    n_jobs: int | None = None,
    quiet: bool = False,
) -> Outcome:
    """Run what the named items need and the folder does not have yet, and build the report of all it has.

    Parameters
    ----------
    names : identifiers of `items`, or "all".
    out : folder of the results; made if it is not there.
    scale : "full", or "quick" for a small version of everything.
    data : folder with the data sets that are not part of the package.
    n_jobs : processes; None takes one for each core.
    quiet : whether to show no progress.

    Returns
    -------
    Outcome
        Where the report and the table are, and what failed or was skipped.
    """
    chosen = select(names)
    skipped = [Skipped(e, reason) for e in chosen if (reason := why_not(e, data))]
    missing = {skip.experiment.name for skip in skipped}
    if names != ["all"] and len(missing) == len(chosen):
        raise FileNotFoundError(" ".join(skip.reason for skip in skipped))
    log = _open(out, scale)
    tasks = [task for e in chosen if e.name not in missing for task in plan(e, scale)]
    # First trials first: whenever it is stopped, every method and level has about as many.
    tasks.sort(key=lambda task: task.trial)
    version = robustnmf.__version__
    failed = run_tasks(tasks, dict(EXPERIMENTS), log, version=version, data=data, n_jobs=n_jobs, quiet=quiet)
    results = current(log.results(), scale)
    table = out / "results.csv"
    results.write_table(table)
    page = out / "report.html"
    build_report(results, page, scale, skipped)
    return Outcome(page, table, failed, skipped)


def select(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments that the named items are made of."""
    known = items()
    unknown = [name for name in names if name != "all" and name not in known]
    if unknown or not names:
        raise ValueError(f"Items are {', '.join(known)}, or all; got {', '.join(unknown) or 'none'}.")
    return [e for e in EXPERIMENTS.values() if "all" in names or set(names) & set(e.items)]


def why_not(experiment: Experiment, data: Path | None) -> str:
    """Return why an experiment cannot be run, or nothing if it can."""
    if experiment.needs is None:
        return ""
    what = f"{', '.join(experiment.items)} ({experiment.name}) needs {experiment.needs}"
    if data is None:
        return f"{what}: pass the folder that holds it with --data."
    if not (data / experiment.needs).is_file():
        return f"{what}, which is not in {data}."
    return ""


def protocol(scale: Scale) -> dict[str, Any]:
    """Return the choices of ``protocol.toml``."""
    text = files("robustnmf.paper").joinpath("protocol.toml").read_text(encoding="utf-8")
    choices: dict[str, Any] = tomllib.loads(text)[scale]
    return choices


def plan(experiment: Experiment, scale: Scale) -> Sequence[Task]:
    """Return the tasks of an experiment."""
    return experiment.plan(protocol(scale)[experiment.name])


def current(results: Results, scale: Scale) -> Results:
    """Return the results that the present protocol and version ask for; others may be left from before."""
    version = robustnmf.__version__
    wanted = {task.key(version) for experiment in EXPERIMENTS.values() for task in plan(experiment, scale)}
    return Results((record for record in results.records if record.key in wanted), results.folder)


def build_report(results: Results, page: Path, scale: Scale, skipped: Iterable[Skipped] = ()) -> None:
    """Write the report of all experiments that have results, as a page and as Markdown; nothing else goes into it."""
    sections = [e.section(results.of(e.name)) for e in EXPERIMENTS.values() if results.of(e.name).records]
    skipped = list(skipped)
    sections = sections if scale == "full" else [_of_quick_run(section) for section in sections]
    hours = sum(record.seconds for record in results.records) / 3600
    summary = {
        "robustnmf": robustnmf.__version__,
        "scale": "full" if scale == "full" else QUICK,
        "fits": f"{len(results.records)}, {hours:.1f} core hours",
        "not run": " ".join(skip.reason for skip in skipped) or "nothing",
        **_holders(skipped),
        "software": f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
        f"scikit-learn {sklearn.__version__}",
        "report of": date.today().isoformat(),
    }
    failures = [f"{r.task.experiment}, {r.task.setting}, {r.task.method}: {r.failure}" for r in results.failures]
    summary_of_all.write(sections, page.parent)
    report.build(
        sections, page, title="Truncated Cauchy NMF: the paper and robustnmf", summary=summary, failures=failures
    )


def _of_quick_run(section: Section) -> Section:
    """Return a section in which no claim is refuted: a quick run is too small for that."""
    checks = [check if check.holds else replace(check, holds=None) for check in section.checks]
    return replace(section, checks=checks)


def _holders(skipped: Iterable[Skipped]) -> dict[str, str]:
    """Return where data can be had that was not there, as a line of the summary, if there is such data."""
    found = dict.fromkeys(HOLDERS.get(skip.experiment.needs or "", "") for skip in skipped)
    words = " ".join(filter(None, found))
    return {"where to get it": words} if words else {}


def _open(out: Path, scale: Scale) -> Log:
    """Return the log in a folder, if the folder is of this scale."""
    make_folder(out)
    marker = out / "reproduction.json"
    if marker.exists():
        there = json.loads(marker.read_text(encoding="utf-8"))["scale"]
        if there != scale:
            raise ValueError(f"{out} holds a {there} reproduction, not a {scale} one: choose another folder.")
    else:
        with write_owned(marker) as temporary:
            temporary.write_text(json.dumps({"scale": scale}), encoding="utf-8")
    return Log(out)
