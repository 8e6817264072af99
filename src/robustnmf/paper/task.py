"""What an experiment is made of: tasks that can be run one by one, in any order, in any process."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

Matrix = NDArray[Any]


@dataclass(frozen=True)
class Task:
    """One method on one corrupted data set: what becomes one line of the log."""

    experiment: str
    setting: str
    """What was done to the data, in words: a row of a table."""
    level: float
    """The same as a number: the place on an axis."""
    method: str
    """A column; see `robustnmf.paper.columns`."""
    trial: int
    """Which repetition; it is the seed of everything random in it."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Choices of the protocol that this result depends on, as JSON would write them."""

    def key(self, version: str) -> str:
        """Return what tells this task from all others, results of other versions of the code included."""
        parts = [version, self.experiment, self.setting, self.method, self.trial, dict(self.parameters)]
        return json.dumps(parts, sort_keys=True)


class Outcome(NamedTuple):
    """What a task gave."""

    measures: Mapping[str, float]
    arrays: Mapping[str, Matrix] = {}
    """Pictures and curves that a figure is drawn from."""


@dataclass(frozen=True)
class Experiment:
    """Runs that share a protocol, and the tables and figures of the paper that are made of them."""

    name: str
    items: Mapping[str, str]
    """Identifiers of tables and figures, and what they are."""
    plan: Callable[[Mapping[str, Any]], Sequence[Task]]
    """From the choices in ``protocol.toml`` to tasks."""
    run: Callable[[Task, Path | None], Outcome]
    section: Callable[[Any], Any]
    """From the `Results` to a `Section` of the report."""
    needs: str | None = None
    """File in the folder ``--data`` without which it cannot run."""


def all_tasks(
    name: str,
    settings: Iterable[tuple[str, float]],
    methods: Iterable[str],
    choices: Mapping[str, Any],
    **parameters: Any,
) -> list[Task]:
    """Return every method in every setting (words and level); all trials of one number before those of the next."""
    limits = {name: choices[name] for name in ("max_iter", "tol") if name in choices} | parameters
    combinations = product(range(choices.get("trials", 1)), settings, methods)
    return [Task(name, setting, level, method, trial, limits) for trial, (setting, level), method in combinations]
