"""How data is cut into blocks, and large blocks on a device into parts: by their shapes alone."""

from collections.abc import Callable
from math import ceil
from typing import Any

from array_api_compat import is_torch_array

# A large block is worked on in parts where arrays of its size would only be needed in between. A part has at least so
# many entries, for launches take time too, and a block has at most so many parts.
PART_ENTRIES, MOST_PARTS = 2**22, 16


def cuts_of(n_rows: int, n_columns: int, entries: int) -> list[slice]:
    """Return slices of rows with about so many entries each, all of nearly the same length."""
    n_blocks = max(1, min(n_rows, ceil(n_rows * n_columns / entries)))
    ends = [n_rows * (i + 1) // n_blocks for i in range(n_blocks)]
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def parts_of(*arrays: Any) -> list[slice]:
    """Return slices of the rows of arrays, of which the first that is not None is a block (B, p).

    What is no tensor is one part: blocks of the host are small anyway.

    Examples
    --------
    >>> import numpy as np
    >>> parts_of(None, np.ones((3, 2)))
    [slice(None, None, None)]
    """
    block = next(array for array in arrays if array is not None)
    if not is_torch_array(block) or block.ndim != 2 or len(block) == 0:
        return [slice(None)]
    n_rows, n_columns = block.shape
    return cuts_of(n_rows, n_columns, max(PART_ENTRIES, ceil(n_rows * n_columns / MOST_PARTS)))


def rows_of(arrays: Any, rows: slice) -> tuple[Any, ...]:
    """Return some rows of arrays that may be None."""
    return tuple(None if array is None else array[rows] for array in arrays)


def in_parts(function: Callable[..., Any], *arrays: Any) -> Any:
    """Return what a function returns for some arrays, which it is given a part of the rows at a time.

    So what it computes on the way takes little memory. Its result has a row for each row of the arrays, or is a tuple
    of such results; the first array that is not None is a block (B, p).

    Examples
    --------
    >>> import numpy as np
    >>> in_parts(lambda A, B: A + B, np.ones((1, 2)), np.ones(2))
    array([[2., 2.]])
    """
    first, *others = parts_of(*arrays)
    if not others:
        return function(*arrays)
    found = function(*rows_of(arrays, first))
    is_one = not isinstance(found, tuple)
    results = tuple(A.new_empty((others[-1].stop, *A.shape[1:])) for A in ((found,) if is_one else found))
    for rows in (first, *others):
        found = found if rows is first else function(*rows_of(arrays, rows))
        for whole, part in zip(results, (found,) if is_one else found, strict=True):
            whole[rows] = part
    return results[0] if is_one else results
