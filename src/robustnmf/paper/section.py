"""What an experiment contributes to the report: words, tables and figures, without any markup."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Cell:
    """One number of a table, and the paper's beside it."""

    value: float
    """Ours; NaN if there is none."""
    deviation: float = float("nan")
    """Standard deviation between trials; NaN if it is not known."""
    paper: float = float("nan")
    """Printed in the paper; NaN if it is not there."""
    note: str = ""
    """What the reader should know of this very number, such as a misprint."""


@dataclass(frozen=True)
class Table:
    """Numbers with a row for each setting and a column for each method."""

    caption: str
    corner: str
    """What the rows are."""
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    better: Literal["lower", "higher", "neither"] = "neither"
    """Which way is better, for colours."""
    digits: int = 2

    @property
    def notes(self) -> list[str]:
        """The notes of the cells, each once, in their order."""
        return list(dict.fromkeys(cell.note for _, cells in self.rows for cell in cells if cell.note))


@dataclass(frozen=True)
class Figure:
    """A drawing."""

    caption: str
    svg: str
    """The drawing as an ``<svg>`` element whose lines and letters have the colour of the text around it."""


@dataclass(frozen=True)
class Check:
    """A claim about the paper's numbers and ours, and whether it holds in these results."""

    claim: str
    holds: bool | None
    """None if there are not enough results to tell."""
    detail: str


@dataclass(frozen=True)
class Section:
    """One experiment in the report."""

    identifier: str
    title: str
    items: Sequence[str]
    """Identifiers of the paper's tables and figures that it reproduces."""
    protocol: Sequence[str]
    """How it was done, one sentence each: the paper's choices and ours."""
    remarks: Sequence[str] = ()
    """What the reader should take from it: where and why numbers differ."""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    checks: Sequence[Check] = field(default_factory=tuple)
