"""How data is cut into blocks: by its shape alone."""

from math import ceil


def cuts_of(n_rows: int, n_columns: int, entries: int) -> list[slice]:
    """Return slices of rows with about so many entries each, all of nearly the same length."""
    n_blocks = min(n_rows, max(1, ceil(n_rows * n_columns / entries)))
    ends = [n_rows * (i + 1) // n_blocks for i in range(n_blocks)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
