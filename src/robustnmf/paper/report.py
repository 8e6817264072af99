"""The report: one HTML page with what the paper printed beside what was measured here, complete in itself."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from robustnmf.paper.section import Cell, Check, Section, Table
from robustnmf.report.drawing import natural_width
from robustnmf.report.template import template
from robustnmf.utils.files import write_owned

FULL_TINT = 0.25
"""Relative difference from the paper at which a cell has its full colour."""

# Mark, words and style of a check that holds, that does not, and that cannot be told.
VERDICTS: Mapping[bool | None, tuple[str, str, str]] = {
    True: ("✓", "holds", "good"),
    False: ("✗", "does not hold", "bad"),
    None: ("–", "not enough results", "open"),
}


@dataclass(frozen=True)
class Entry:
    """A cell as it is shown."""

    key: str
    """What it is sorted by, as JavaScript reads it; empty if there is no number."""
    value: str
    deviation: str
    """Empty, like the next two, if it is not known."""
    paper: str
    difference: str
    """Between the two numbers as they are shown: the page must add up."""
    tint: str
    """``good``, ``bad`` or nothing."""
    strength: float
    """Of the tint, from 0 to 1."""
    best: bool
    """Whether no other number of the row is better."""
    mark: str
    """Letter of the note below the table, or nothing."""
    first: bool
    """Whether it is the first with this note, which leads back to it."""


def build(
    sections: Sequence[Section],
    path: Path,
    *,
    title: str,
    summary: Mapping[str, str],
    failures: Sequence[str] = (),
) -> None:
    """Write the report.

    Parameters
    ----------
    sections : the experiments, in the order of the page.
    path : file to write; if anything goes wrong, what was there stays.
    title : heading of the page.
    summary : what was run, when and with what, by name.
    failures : runs that gave no result, one line each.
    """
    page = render(sections, title=title, summary=summary, failures=failures)
    with write_owned(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(sections: Sequence[Section], *, title: str, summary: Mapping[str, str], failures: Sequence[str] = ()) -> str:
    """Return the report as HTML; see `build`."""
    repeated = [name for name, count in Counter(s.identifier for s in sections).items() if count > 1]
    if repeated:
        raise ValueError(f"Each section needs an identifier of its own, but {repeated[0]!r} is that of several.")
    checks = [check for section in sections for check in section.checks]
    page = template("robustnmf.paper", "report.html.j2").render(
        sections=sections,
        title=title,
        summary=summary,
        failures=failures,
        counts=tally(checks),
        anchors=anchors(sections),
        verdicts=VERDICTS,
        entries=entries,
        letter=letter,
        label_key=label_key,
        natural_width=natural_width,
        full_tint=FULL_TINT,
    )
    return str(page)


def tally(checks: Sequence[Check]) -> list[tuple[bool | None, str]]:
    """Return how many checks came out in each way, in words; ways that do not occur are left out.

    Examples
    --------
    >>> tally([Check("a", True, ""), Check("b", None, ""), Check("c", True, "")])
    [(True, '2 hold'), (None, '1 with not enough results')]
    """
    counts = Counter(check.holds for check in checks)
    words = {True: ("holds", "hold"), False: ("does not hold", "do not hold"), None: ("with not enough results",) * 2}
    return [(holds, f"{counts[holds]} {words[holds][counts[holds] > 1]}") for holds in VERDICTS if counts[holds]]


def anchors(sections: Sequence[Section]) -> dict[str, list[tuple[str, str]]]:
    """Return the items of each section with an anchor each, empty where an earlier section has that item."""
    seen: set[str] = set()
    found: dict[str, list[tuple[str, str]]] = {}
    for section in sections:
        found[section.identifier] = []
        for item in section.items:
            anchor = "item-" + re.sub(r"[^A-Za-z0-9_-]+", "-", item)
            found[section.identifier].append((item, "" if anchor in seen else anchor))
            seen.add(anchor)
    return found


def entries(table: Table) -> Iterator[tuple[str, list[Entry]]]:
    """Yield the rows of a table as they are shown: label and cells."""
    marks = {note: letter(number) for number, note in enumerate(table.notes)}
    unused = set(marks)
    for label, cells in table.rows:
        if len(cells) != len(table.columns):
            raise ValueError(f"Row {label!r} of {table.caption!r} has {len(cells)} cells, not {len(table.columns)}.")
        top = best(cells, table)
        shown = []
        for cell in cells:
            shown.append(_entry(cell, table, top, marks.get(cell.note, ""), cell.note in unused))
            unused.discard(cell.note)
        yield label, shown


def _entry(cell: Cell, table: Table, top: float, mark: str, first: bool) -> Entry:
    """Return one cell as it is shown."""
    digits = table.digits
    ours, paper = round(cell.value, digits), round(cell.paper, digits)
    tint, strength = shade(cell, table)
    return Entry(
        key=_key(cell.value),
        value=number(cell.value, digits),
        deviation="" if math.isnan(cell.deviation) else number(cell.deviation, digits),
        paper="" if math.isnan(paper) else number(paper, digits),
        difference="" if math.isnan(ours - paper) else number(ours - paper, digits, sign=True),
        tint=tint,
        strength=strength,
        best=ours == top,
        mark=mark,
        first=first,
    )


def letter(number: int) -> str:
    """Return the mark of a note; a digit behind a number would look like a power.

    Examples
    --------
    >>> letter(0), letter(25), letter(26)
    ('a', 'z', 'aa')
    """
    rounds, place = divmod(number, len(ascii_lowercase))
    return ascii_lowercase[place] * (rounds + 1)


def number(value: float, digits: int, *, sign: bool = False) -> str:
    """Return a number in letters, NaN as a dash.

    Examples
    --------
    >>> (
    ...     number(2.345, 1),
    ...     number(-2.345, 1),
    ...     number(0.04, 1, sign=True),
    ...     number(2, 1, sign=True),
    ...     number(float("nan"), 1),
    ... )
    ('2.3', '−2.3', '0.0', '+2.0', '–')
    """
    if math.isnan(value):
        return "–"
    text = f"{abs(value):.{digits}f}" if math.isfinite(value) else "∞"
    rounded = round(value, digits)  # what is shown as nothing has no sign
    return ("−" if rounded < 0 else "+" if sign and rounded > 0 else "") + text


def best(cells: Sequence[Cell], table: Table) -> float:
    """Return the best number of a row to the digits that are shown, NaN if no number stands out."""
    values = [round(cell.value, table.digits) for cell in cells if not math.isnan(cell.value)]
    if len(values) < 2 or table.better == "neither":
        return math.nan
    return min(values) if table.better == "lower" else max(values)


def shade(cell: Cell, table: Table) -> tuple[str, float]:
    """Return the colour of a cell: whether ours is better or worse than the paper's, and how strongly, from 0 to 1."""
    difference = cell.value - cell.paper
    if table.better == "neither" or math.isnan(difference) or difference == 0:
        return "", 0.0
    relative = abs(difference / cell.paper) if cell.paper else math.inf
    tint = "good" if (difference < 0) == (table.better == "lower") else "bad"
    return tint, round(min(relative / FULL_TINT, 1.0), 3)


def label_key(label: str) -> str:
    """Return what a row is sorted by: the first number of its label, if there is one.

    Examples
    --------
    >>> label_key("40 %"), label_key("-5 dB"), label_key("block of 10-12"), label_key("none")
    ('40.0', '-5.0', '10.0', '')
    """
    # A hyphen is a minus only at the start of a word.
    found = re.search(r"(?:(?<!\S)[-−])?\d+(?:\.\d+)?", label)
    return _key(float(found[0].replace("−", "-"))) if found else ""


def _key(value: float) -> str:
    """Return a number as JavaScript reads it, nothing for NaN."""
    if math.isnan(value):
        return ""
    return str(value).replace("inf", "Infinity")
