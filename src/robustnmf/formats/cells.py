"""Cells of tables: numbers, missing entries, entries below a limit of detection, words."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from robustnmf.formats.errors import shortened

MISSING_WORDS = frozenset({"", "na", "nan", "null", "n/a", "#n/a", "<na>"})
"""Cells that are missing entries, in lower case."""

LIMIT_WORDS = frozenset(
    {"bdl", "<bdl", "b.d.l.", "bd", "b.d.", "nd", "n.d.", "<lod", "<mdl", "<dl", "<loq", "<lloq", "<ld"}
)
"""Cells that are below a limit of detection which they do not tell, in lower case and without spaces."""

# Numbers that may have commas or spaces between thousands: to be refused, but not to be taken for names.
LIKE_A_NUMBER = re.compile(r"[-+]?[0-9][0-9., ]*")

_LIMIT = re.compile(r"(?:<=?|\u2264)\s*([0-9.,]+(?:[eE][-+]?[0-9]+)?)")


class Row(NamedTuple):
    """A row of a table, and the line of the file where it ends."""

    line: int
    cells: Sequence[str]


class Footer:
    """Leaves out the last rows of a table.

    Parameters
    ----------
    count : int
        How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._last: deque[Row] = deque()

    def above(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows above the last ones."""
        for row in rows:
            self._last.append(row)
            if len(self._last) > self.count:
                yield self._last.popleft()

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, in words."""
        if not self._last:
            return ()
        cells = [next(filter(None, map(str.strip, row.cells)), "") for row in self._last]
        shown = ", ".join(repr(shortened(cell)) for cell in cells[:5]) + (" ..." if len(cells) > 5 else "")
        return (f"{len(cells)} rows below the table were left out: {shown}.",)


class Numbers:
    """Turns cells into numbers.

    Parameters
    ----------
    missing : iterable of float and str
        Further words for a missing entry.
    commas : bool
        Whether the decimal mark may be a comma; it is the same in all cells.
    """

    def __init__(self, missing: Iterable[float | str], commas: bool) -> None:
        self.missing = frozenset(word.strip() for word in missing if isinstance(word, str))
        self.commas = commas
        self.mark = ""

    def __call__(self, cell: str) -> float | None:
        """Return the number in a cell, NaN for a missing entry, None for anything else."""
        try:
            number = float(cell.replace(",", ".") if self.commas else cell)
        except ValueError:
            cell = cell.strip()
            return math.nan if cell.lower() in MISSING_WORDS or cell in self.missing else None
        # Python reads 1_000 as a number, other programs do not: it is a name.
        return None if "_" in cell or (self.commas and self._mixes_marks(cell)) else number

    def _mixes_marks(self, cell: str) -> bool:
        """Return whether a decimal mark is another one than before: then one of them parts thousands."""
        mark = "," if "," in cell else "." if "." in cell else ""
        self.mark = self.mark or mark
        return mark not in ("", self.mark)

    def limit(self, cell: str) -> float | None:
        """Return the limit that an entry is below, NaN if it is not told; None for a cell that says no such thing."""
        found = _LIMIT.fullmatch(cell.strip())
        if found is None:
            return math.nan if "".join(cell.split()).lower() in LIMIT_WORDS else None
        number = self(found[1])
        return number if number is not None and number > 0 else None

    def is_number(self, cell: str) -> bool:
        """Return whether a cell holds a number, or says that an entry is below one."""
        number = self(cell)
        number = self.limit(cell) if number is None else number
        return number is not None and not math.isnan(number)

    def is_heading(self, cell: str) -> bool:
        """Return whether a cell may be a heading; unlike below headings, ND is neodymium there."""
        return self.is_word(cell) or ("<" not in cell and self(cell) is None and self.limit(cell) is not None)

    def is_word(self, cell: str) -> bool:
        """Return whether a cell is a word; 1,234.5 is none even if it cannot be read."""
        return self(cell) is None and self.limit(cell) is None and not LIKE_A_NUMBER.fullmatch(cell.strip())

    def is_known(self, cell: str) -> bool:
        """Return whether a cell is not missing."""
        number = self(cell)
        return number is None or not math.isnan(number)
