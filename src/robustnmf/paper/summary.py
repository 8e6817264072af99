"""The report as Markdown, and its figures as files, for documentation that is kept under version control."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path

from robustnmf.paper.section import Cell, Check, Section, Table
from robustnmf.utils.files import make_folder, write_owned

VERDICTS = {True: "holds", False: "**does not hold**", None: "not enough results"}


def write(sections: Sequence[Section], folder: Path) -> None:
    """Write ``summary.md`` and the figures, one SVG file each, into a folder."""
    figures = folder / "figures"
    make_folder(figures)
    for section in sections:
        for number, figure in enumerate(section.figures, start=1):
            with write_owned(figures / f"{section.identifier}-{number}.svg") as temporary:
                temporary.write_text(standalone(figure.svg), encoding="utf-8")
    with write_owned(folder / "summary.md") as temporary:
        temporary.write_text(markdown(sections), encoding="utf-8")


def standalone(svg: str) -> str:
    """Return a drawing that shows by itself: black on white, wherever it is."""
    return svg.replace("<svg ", '<svg style="background: #fff; color: #000" ', 1)


def markdown(sections: Sequence[Section]) -> str:
    """Return words, checks and tables of all sections."""
    parts = ["Ours, with the standard deviation between trials, and the paper's in brackets.\n"]
    for section in sections:
        parts.append(f"## {section.title}\n")
        parts += [f"{remark}\n" for remark in section.remarks]
        if section.checks:
            parts.append("\n".join(f"- {_check(check)}" for check in section.checks) + "\n")
        parts += [_table(table) for table in section.tables]
    return "\n".join(parts)


def _check(check: Check) -> str:
    return f"{check.claim}: {VERDICTS[check.holds]} ({check.detail})"


def _table(table: Table) -> str:
    """Return a table with its caption above and the notes below."""
    lines = [f"*{table.caption}*\n", _line([table.corner, *table.columns]), _line(["---"] * (len(table.columns) + 1))]
    lines += [_line([label, *(_cell(cell, table.digits) for cell in cells)]) for label, cells in table.rows]
    return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in table.notes)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cell(cell: Cell, digits: int) -> str:
    ours = "–" if isnan(cell.value) else f"{cell.value:.{digits}f}"
    spread = "" if isnan(cell.deviation) or isnan(cell.value) else f" ± {cell.deviation:.{digits}f}"
    paper = "" if isnan(cell.paper) else f" ({cell.paper:.{digits}f})"
    return ours + spread + paper
