"""The results: a log that survives being killed at any moment, and the tidy table made of it.

Every finished task is one line of JSON, written in one piece and flushed to the disk. A line that was cut off by a
crash is dropped when the log is opened; all others are kept.
"""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf.paper.section import Cell
from robustnmf.paper.task import Matrix, Outcome, Task
from robustnmf.utils.files import append_line, make_folder, read_lines, write_owned

COLUMNS = ("experiment", "setting", "level", "method", "trial", "seed", "measure", "value", "seconds", "version")


@dataclass(frozen=True)
class Record:
    """A finished task."""

    task: Task
    version: str
    seconds: float
    measures: Mapping[str, float]
    arrays: str | None = None
    """Name of the file that holds its arrays."""
    failure: str | None = None
    """What went wrong, if it did."""

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return self.task.key(self.version)

    def to_json(self) -> str:
        """Return it as one line."""
        line = asdict(self)
        return json.dumps(line.pop("task") | line)

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Read one line."""
        values = json.loads(line)
        task = Task(**{field.name: values[field.name] for field in fields(Task)})
        rest = {field.name: values[field.name] for field in fields(cls) if field.name != "task"}
        if rest["arrays"] is not None and not re.fullmatch(r"\w[\w-]*\.npz", rest["arrays"]):
            raise ValueError(f"arrays must be the name of a file in the same folder; got {rest['arrays']!r}")
        return cls(task, **rest)


class Log:
    """The results of one reproduction, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "runs.jsonl"
        make_folder(folder)
        self._records = {record.key: record for record in self._read()}

    def _read(self) -> Iterator[Record]:
        """Yield what was finished, and cut off the line that was not."""
        if os.path.lexists(self.path):
            yield from (Record.from_json(line.decode()) for line in read_lines(self.path, self._check_line))

    def _check_line(self, number: int, line: bytes) -> None:
        try:
            Record.from_json(line.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Line {number} of {self.path} is not a result: {error}. Remove that line or choose another folder."
            ) from error

    def __contains__(self, key: str) -> bool:
        """Return whether a task has succeeded."""
        return key in self._records and self._records[key].failure is None

    def add(self, task: Task, version: str, seconds: float, outcome: Outcome | None, failure: str | None) -> Record:
        """Write down a finished task."""
        outcome = outcome or Outcome({})
        arrays = None
        if outcome.arrays:
            # Named after the task: a second attempt takes the place of the first, and of no other.
            arrays = f"{task.experiment}-{sha256(task.key(version).encode()).hexdigest()[:12]}.npz"
            with write_owned(self.folder / arrays) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **outcome.arrays)
        record = Record(task, version, round(seconds, 3), outcome.measures, arrays, failure)
        append_line(self.path, record.to_json().encode())
        self._records[record.key] = record
        return record

    def results(self) -> "Results":
        """Return all that is known."""
        return Results(list(self._records.values()), self.folder)


class Results:
    """Finished tasks, and questions to them."""

    def __init__(self, records: Iterable[Record], folder: Path) -> None:
        self.records = list(records)
        self.folder = folder

    def of(self, experiment: str) -> "Results":
        """Return those of one experiment that succeeded."""
        chosen = (r for r in self.records if r.task.experiment == experiment and r.failure is None)
        return Results(chosen, self.folder)

    def where(self, **wanted: Any) -> "Results":
        """Return those whose tasks have these fields, or one of these values in a list."""

        def fits(task: Task) -> bool:
            return all(
                getattr(task, name) in value if isinstance(value, list | tuple) else getattr(task, name) == value
                for name, value in wanted.items()
            )

        return Results((r for r in self.records if fits(r.task)), self.folder)

    @property
    def failures(self) -> list[Record]:
        """What went wrong."""
        return [record for record in self.records if record.failure is not None]

    @property
    def settings(self) -> list[str]:
        """The settings in order of their levels."""
        levels = {r.task.setting: r.task.level for r in self.records}
        return sorted(levels, key=lambda setting: levels[setting])

    @property
    def levels(self) -> list[float]:
        """The levels in order."""
        return sorted({r.task.level for r in self.records})

    @property
    def methods(self) -> list[str]:
        """The methods in order of first appearance."""
        return list(dict.fromkeys(r.task.method for r in self.records))

    def values(self, measure: str, **wanted: Any) -> list[float]:
        """Return one measure of the tasks with these fields, in order of the trials."""
        records = sorted(self.where(**wanted).records, key=lambda r: r.task.trial)
        return [r.measures[measure] for r in records if measure in r.measures]

    def mean(self, measure: str, **wanted: Any) -> float:
        """Return the mean of a measure, NaN if there is none."""
        values = self.values(measure, **wanted)
        return float(np.mean(values)) if values else float("nan")

    def deviation(self, measure: str, **wanted: Any) -> float:
        """Return the standard deviation of a measure between trials, NaN for fewer than two."""
        values = self.values(measure, **wanted)
        return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")

    def cell(self, measure: str, **wanted: Any) -> Cell:
        """Return mean and standard deviation of a measure as a cell of a table."""
        return Cell(self.mean(measure, **wanted), self.deviation(measure, **wanted))

    def arrays(self, **wanted: Any) -> dict[str, Matrix]:
        """Return the arrays of the first task with these fields."""
        for record in self.where(**wanted).records:
            if record.arrays is not None:
                with np.load(self.folder / record.arrays, allow_pickle=False) as archive:
                    return dict(archive)
        return {}

    def write_table(self, path: Path) -> None:
        """Write one line for each measure of each task, in an order that does not depend on which finished first."""
        rows = []
        for record in self.records:
            task = record.task
            start = (task.experiment, task.setting, task.level, task.method, task.trial, task.trial)
            for measure, value in record.measures.items():
                parameters = json.dumps(dict(task.parameters), sort_keys=True)
                rows.append((*start, measure, value, record.seconds, record.version, parameters))
        rows.sort(key=lambda row: (row[0], row[2], row[1], *row[3:7], row[10]))
        with write_owned(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow((*COLUMNS, "parameters"))
            writer.writerows(rows)
