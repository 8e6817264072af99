"""Arrays of which only some entries are stored, the others being missing.

An `Observed` array takes the place of a dense one, (B, m), in functions of blocks: NumPy's functions and operators act
on what is stored. Of the other entries it is known what they are as long as that takes little memory: one number, a
number for each row or column, or products of those. The data and its weights are 0 where missing, an anchor has a value
and a weight of its feature. Predictions are not known there. What would have to know them raises
`UnknownEntriesError`; most often they are multiplied by a weight of zero before, which gives a zero that is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.utils.cached import cached_property
from robustnmf.utils.entries import Entries

Vector = NDArray[Any]


class UnknownEntriesError(TypeError):
    """A function needs entries that are neither stored nor known otherwise: its data has to be dense."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which entries of some rows are stored, (B, m); columns rise within a row, and none is there twice."""

    indptr: Vector
    """Where the entries of each row begin, (B + 1,)."""
    columns: Vector
    """(k,)."""
    n_columns: int
    _last: list[Any] = field(default_factory=lambda: [None, None], repr=False)
    """The rows that were taken last, and what that gave: data and weights are cut alike."""
    _found: list[Any] = field(default_factory=lambda: [None, None], repr=False)
    """The positions that were looked for last, and where they are."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.indptr) - 1, self.n_columns

    @cached_property
    def rows(self) -> Vector:
        """Row of each stored entry, (k,)."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    @property
    def row_counts(self) -> Vector:
        """Number of stored entries of each row, (B,)."""
        return np.diff(self.indptr)

    @cached_property
    def column_counts(self) -> Vector:
        """Number of stored entries of each column, (m,)."""
        return np.bincount(self.columns, minlength=self.n_columns)

    @property
    def is_full(self) -> bool:
        """Whether all entries are stored."""
        return len(self.columns) == self.shape[0] * self.n_columns

    def is_same(self, other: "Pattern") -> bool:
        """Return whether another one has the same entries."""
        if self is other:
            return True
        is_alike = self.shape == other.shape and np.array_equal(self.indptr, other.indptr)
        return is_alike and np.array_equal(self.columns, other.columns)

    def matrix(self, values: Vector) -> Any:
        """Return values of the stored entries, (k,), as a sparse matrix."""
        return sparse.csr_array((values, self.columns, self.indptr), shape=self.shape)

    def some_rows(self, chosen: Any) -> tuple["Pattern", Vector]:
        """Return some rows, by a slice, their numbers or booleans, and which stored entries those have."""
        if self._last[0] is not chosen:
            wanted = np.arange(self.shape[0])[chosen]
            counts = self.row_counts[wanted]
            indptr = np.concatenate([[0], np.cumsum(counts)])
            order = np.repeat(self.indptr[wanted] - indptr[:-1], counts) + np.arange(indptr[-1])
            found = Pattern(indptr.astype(np.int64), self.columns[order], self.n_columns)
            self._last[:] = [chosen, (found, order)]
        part: tuple[Pattern, Vector] = self._last[1]
        return part

    def some_columns(self, chosen: Vector) -> tuple["Pattern", Vector]:
        """Return some columns, by their rising numbers or booleans, and which stored entries those have."""
        wanted = np.arange(self.n_columns)[chosen]
        number = np.full(self.n_columns, -1)
        number[wanted] = np.arange(len(wanted))
        order = np.flatnonzero(number[self.columns] >= 0)
        indptr = np.searchsorted(order, self.indptr)
        return Pattern(indptr, number[self.columns[order]].astype(np.int32), len(wanted)), order

    @cached_property
    def transposed(self) -> tuple["Pattern", Vector]:
        """Columns as rows, and the stored entries in their order."""
        order = np.argsort(self.columns, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(self.column_counts)])
        return Pattern(indptr.astype(np.int64), self.rows[order].astype(np.int32), self.shape[0]), order

    def find(self, rows: Vector, columns: Vector) -> Vector:
        """Return where the entries at some places are stored, -1 where they are not, (c,)."""
        last = self._found
        if last[0] is None or not (np.array_equal(last[0][0], rows) and np.array_equal(last[0][1], columns)):
            keys = self.rows * self.n_columns + self.columns
            wanted = rows.astype(np.int64) * self.n_columns + columns
            found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
            found = np.where(keys[found] == wanted, found, -1) if len(keys) else np.full(len(rows), -1)
            last[:] = [(rows.copy(), columns.copy()), found]
        result: Vector = last[1]
        return result


@dataclass(frozen=True, eq=False)
class Outer:
    """A product of numbers of rows and of columns."""

    rows: Vector
    """(B, 1)."""
    columns: Vector
    """(1, m)."""


class Observed(NDArrayOperatorsMixin):
    """An array (B, m) of which only some entries are stored.

    Parameters
    ----------
    pattern : Pattern
        Which.
    values : ndarray (k,)
        Those.
    rest : number, ndarray (1, m) or (B, 1), Outer, or None
        The other entries; None if they are not known.
    """

    __array_priority__ = 1000
    device = "cpu"
    ndim = 2

    def __init__(self, pattern: Pattern, values: Vector, rest: Any = 0) -> None:
        self.pattern, self.values = pattern, values
        self.rest = 0 if pattern.is_full else rest

    # --- What it is ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.pattern.shape[0]

    def __repr__(self) -> str:
        return f"Observed({len(self.values)} entries of {self.shape}, dtype={self.dtype})"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.pattern.shape

    @property
    def dtype(self) -> Any:
        """Type of the numbers."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of what is stored."""
        return int(self.values.nbytes)

    @property
    def T(self) -> "Observed":
        """Columns as rows."""
        pattern, order = self.pattern.transposed
        return Observed(pattern, self.values[order], _transposed(self.rest))

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise UnknownEntriesError("Entries that are missing cannot be part of a dense array.")

    def astype(self, dtype: Any, copy: bool = True) -> "Observed":
        """Return it with numbers of another type."""
        rest = self.rest.astype(dtype) if isinstance(self.rest, np.ndarray | np.generic) else self.rest
        return Observed(self.pattern, self.values.astype(dtype, copy=copy), rest)

    def copy(self) -> "Observed":
        """Return a copy, whose entries can be changed."""
        return Observed(self.pattern, self.values.copy(), self.rest)

    def matrix(self) -> Any:
        """Return what is stored as a sparse matrix."""
        return self.pattern.matrix(self.values)

    @property
    def entries(self) -> Entries:
        """What is stored, as that of rows whose other entries are zero."""
        return Entries(self.pattern.indptr, self.pattern.columns, self.values, self.shape[1])

    def dense(self) -> Vector:
        """Return it as a dense array, if all entries are known."""
        array = np.zeros(self.shape, dtype=self.dtype)
        array[...] = _full(self._known())
        array[self.pattern.rows, self.pattern.columns] = self.values
        return array

    def weighted_with(self, matrix: Any) -> "Observed":
        """Return the entries of a sparse matrix at the same places, 0 where it has none."""
        if np.array_equal(matrix.indptr - matrix.indptr[0], self.pattern.indptr) and np.array_equal(
            matrix.indices, self.pattern.columns
        ):
            return Observed(self.pattern, matrix.data)
        other = Pattern(matrix.indptr.astype(np.int64), matrix.indices, self.shape[1])
        found = other.find(self.pattern.rows, self.pattern.columns)
        padded = np.append(matrix.data, matrix.data.dtype.type(0))
        return Observed(self.pattern, padded[found])

    # --- Some of its entries ------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        """Return some rows; of `[:, columns]` some columns; of rows and columns (c,) the entries there, (c,)."""
        if not isinstance(key, tuple):
            pattern, order = self.pattern.some_rows(key)
            return Observed(pattern, self.values[order], _some_rows(self.rest, key))
        rows, columns = key
        if isinstance(rows, slice):
            pattern, order = self.pattern.some_columns(columns)
            return Observed(pattern, self.values[order], _some_columns(self.rest, columns))
        found, rest = self.pattern.find(rows, columns), self._known()
        if np.ndim(rest):
            raise UnknownEntriesError("Entries at positions must be stored, or one number elsewhere.")
        return np.append(self.values, np.asarray(rest, dtype=self.dtype))[found]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set entries at rows and columns (c,) that are stored; the others stay what they are."""
        found = self.pattern.find(*key)
        self.values[found[found >= 0]] = value

    # --- Functions of all entries -------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.matmul and method == "__call__":
            return _matmul(*inputs)
        if method != "__call__" or options:
            return NotImplemented
        values, rests = zip(*(self._as_parts(part) for part in inputs), strict=True)
        return Observed(self.pattern, ufunc(*values), _combined(ufunc, rests))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function not in _FUNCTIONS:
            raise UnknownEntriesError(f"numpy.{function.__name__} is not known for data with entries that are missing.")
        return _FUNCTIONS[function](*args, **options)

    def _as_parts(self, part: Any) -> tuple[Any, Any]:
        """Return what a number or array that has this shape, or becomes it, has where entries are stored; its rest."""
        if isinstance(part, Observed):
            if not self.pattern.is_same(part.pattern):
                raise ValueError("Arrays of which only some entries are stored must have stored the same ones.")
            return part.values, part.rest
        if np.ndim(part) == 0:
            return part, part
        array = np.atleast_2d(part)
        if array.shape[0] == 1:
            return (array[0, 0], array[0, 0]) if array.shape[1] == 1 else (array[0, self.pattern.columns], array)
        if array.shape[1] != 1:
            raise UnknownEntriesError("A dense array would have entries that are missing elsewhere.")
        return array[self.pattern.rows, 0], array

    def _known(self) -> Any:
        """Return the entries that are not stored."""
        if self.rest is None:
            raise UnknownEntriesError("Entries that are missing have no predictions: there would be too many of them.")
        return self.rest

    def each_row(self, function: Callable[[Vector], Vector]) -> Vector:
        """Return a function of dense rows, which ignores NaN, of what is stored of each row, (B,).

        Rows of similar length are put side by side, and the shorter ones end with NaN.
        """
        counts, starts = self.pattern.row_counts, self.pattern.indptr[:-1]
        results = np.zeros(len(self), dtype=self.dtype)
        lengths = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            places = np.arange(length)
            is_there = places < counts[rows, None]
            dense = np.full(is_there.shape, np.nan, dtype=self.dtype)
            dense[is_there] = self.values[(starts[rows, None] + places)[is_there]]
            results[rows] = function(dense)
        return results

    def row_order_statistics(self, ranks: Vector) -> Vector:
        """Return of each row the entry that has so many smaller ones; those that are not stored must be the largest."""
        order = np.lexsort((self.values, self.pattern.rows))
        places = self.pattern.indptr[:-1] + ranks
        padded = np.append(self.values[order], np.asarray(self._known(), dtype=self.dtype))
        return padded[np.where(ranks < self.pattern.row_counts, places, len(order))]


# --- What is not stored -----------------------------------------------------------------------------------------------


def _full(rest: Any) -> Any:
    return rest.rows * rest.columns if isinstance(rest, Outer) else rest


def _transposed(rest: Any) -> Any:
    if isinstance(rest, Outer):
        return Outer(rest.columns.T, rest.rows.T)
    return rest.T if isinstance(rest, np.ndarray) else rest


def _some_rows(rest: Any, rows: Any) -> Any:
    if isinstance(rest, Outer):
        return Outer(rest.rows[rows], rest.columns)
    return rest[rows] if _is_of_rows(rest) else rest


def _some_columns(rest: Any, columns: Any) -> Any:
    if isinstance(rest, Outer):
        return Outer(rest.rows, rest.columns[:, columns])
    return rest[:, columns] if _is_of_columns(rest) else rest


def _is_of_rows(rest: Any) -> bool:
    return np.ndim(rest) == 2 and rest.shape[1] == 1


def _is_of_columns(rest: Any) -> bool:
    return np.ndim(rest) == 2 and rest.shape[0] == 1


def _is_number(rest: Any) -> bool:
    return rest is not None and not isinstance(rest, Outer) and np.ndim(rest) == 0


def _combined(ufunc: Any, rests: Sequence[Any]) -> Any:
    """Return what a function of entries gives where they are not stored; None if that is not known."""
    absorbs = _ABSORBING.get(ufunc)
    if absorbs is not None and any(_is_number(rest) and bool(rest == absorbs) for rest in rests):
        return absorbs
    if ufunc is np.divide and _is_number(rests[0]) and rests[0] == 0:  # nothing is divided by zero where it counts
        return 0
    if any(rest is None for rest in rests):
        return None
    if ufunc is np.multiply:
        return _product(*rests)
    if any(isinstance(rest, Outer) for rest in rests):
        return None
    if any(map(_is_of_rows, rests)) and any(map(_is_of_columns, rests)):
        return None
    with np.errstate(all="ignore"):
        return ufunc(*rests)


_ABSORBING = {np.multiply: 0, np.bitwise_and: False, np.logical_and: False, np.bitwise_or: True, np.logical_or: True}
"""What makes the other argument of a function irrelevant: predictions are finite."""


def _product(first: Any, second: Any) -> Any:
    """Return the product of two rests; 0 if it vanishes everywhere."""
    product = _any_product(first, second)
    columns = product.columns if isinstance(product, Outer) else product
    return product if np.any(columns) else 0


def _any_product(first: Any, second: Any) -> Any:
    if isinstance(first, Outer) and isinstance(second, Outer):
        return Outer(first.rows * second.rows, first.columns * second.columns)
    if isinstance(second, Outer):
        first, second = second, first
    if isinstance(first, Outer):
        by_columns = _is_of_columns(second)
        return Outer(first.rows, first.columns * second) if by_columns else Outer(first.rows * second, first.columns)
    if _is_of_rows(first) and _is_of_columns(second):
        return Outer(first, second)
    if _is_of_columns(first) and _is_of_rows(second):
        return Outer(second, first)
    return first * second


def _where(condition: Any, first: Any, second: Any) -> Observed:
    """Return `numpy.where`."""
    like = next(part for part in (condition, first, second) if isinstance(part, Observed))
    parts = [like._as_parts(part) for part in (condition, first, second)]
    values = np.broadcast_to(np.where(*(part[0] for part in parts)), like.values.shape)
    return Observed(like.pattern, values, _chosen(*(part[1] for part in parts)))


def _chosen(condition: Any, first: Any, second: Any) -> Any:
    """Return `numpy.where` of rests."""
    if _is_number(condition):
        return first if condition else second
    if _is_number(first) and _is_number(second) and first == second:
        return first
    if condition is None or first is None or second is None:
        return None
    if isinstance(first, Outer) and isinstance(second, Outer):
        is_alike = _is_of_rows(condition) and np.array_equal(first.columns, second.columns)
        return Outer(np.where(condition, first.rows, second.rows), first.columns) if is_alike else None
    if isinstance(first, Outer) or isinstance(second, Outer):
        return None
    parts = (condition, first, second)
    is_mixed = any(map(_is_of_rows, parts)) and any(map(_is_of_columns, parts))
    return None if is_mixed else np.where(*parts)


# --- Sums and other reductions ----------------------------------------------------------------------------------------


def _sum(A: Observed, axis: int | None = None, dtype: Any = None, keepdims: bool = False, out: Any = None) -> Any:
    """Return `numpy.sum`, in the type that it has for a dense array."""
    kind = np.dtype(dtype) if dtype is not None else np.sum(A.values[:0]).dtype
    if axis is None:
        total = np.sum(A.values, dtype=kind)
        rest = A._known()
        return total if _is_number(rest) and rest == 0 else total + _sum_of_rest(A, 1).sum().astype(kind)
    of_entries, n = (A.pattern.columns, A.shape[1]) if axis == 0 else (A.pattern.rows, A.shape[0])
    sums = np.bincount(of_entries, weights=A.values, minlength=n)
    rest = A._known()
    if not (_is_number(rest) and rest == 0):
        sums = sums + _sum_of_rest(A, axis)
    sums = sums.astype(kind)
    return np.expand_dims(sums, axis) if keepdims else sums


def _sum_of_rest(A: Observed, axis: int) -> Vector:
    """Return sums over what is not stored, of each column (axis 0) or row."""
    if axis == 0:
        return _sum_of_rest(A.T, 1)
    rest, pattern = A._known(), A.pattern
    if not isinstance(rest, Outer) and not _is_of_columns(rest):
        n_missing: Vector = (pattern.n_columns - pattern.row_counts).astype(np.float64)
        return np.asarray(n_missing * (rest[:, 0] if _is_of_rows(rest) else rest))
    columns = (rest.columns if isinstance(rest, Outer) else rest)[0].astype(np.float64)
    stored = np.bincount(pattern.rows, weights=columns[pattern.columns], minlength=len(A))
    sums = columns.sum() - stored
    return np.asarray(sums * rest.rows[:, 0] if isinstance(rest, Outer) else sums)


def _reduced(ufunc: Any, A: Observed, axis: int | None, keepdims: bool) -> Any:
    """Return the largest entry, or whether any or all are true, of all entries, columns (axis 0) or rows."""
    rest = A._known()
    if not _is_number(rest):
        raise UnknownEntriesError("Only sums are known of entries that differ where they are missing.")
    if axis is None:
        parts = list(A.values) if len(A.values) == 0 else [ufunc.reduce(A.values)]
        return ufunc.reduce(np.asarray([*parts, *([] if A.pattern.is_full else [rest])], dtype=A.dtype))
    if axis == 0:
        return _reduced(ufunc, A.T, 1, False)[None, :] if keepdims else _reduced(ufunc, A.T, 1, False)
    indptr, counts = A.pattern.indptr, A.pattern.row_counts
    found = np.full(len(A), rest, dtype=A.dtype)
    some = counts > 0
    if some.any():
        of_stored = ufunc.reduceat(A.values, indptr[:-1][some])
        with_rest = ufunc(of_stored, np.asarray(rest, dtype=A.dtype))
        found[some] = np.where(counts[some] < A.shape[1], with_rest, of_stored)
    return found[:, None] if keepdims else found


def _max(A: Observed, axis: int | None = None, keepdims: bool = False, out: Any = None) -> Any:
    return _reduced(np.maximum, A, axis, keepdims)


def _any(A: Observed, axis: int | None = None, keepdims: bool = False, out: Any = None) -> Any:
    return _reduced(np.logical_or, A != 0, axis, keepdims)


def _all(A: Observed, axis: int | None = None, keepdims: bool = False, out: Any = None) -> Any:
    return _reduced(np.logical_and, A != 0, axis, keepdims)


def _count_nonzero(A: Observed, axis: int | None = None, *, keepdims: bool = False) -> Any:
    counted = _sum((A != 0).astype(np.int64), axis=axis, keepdims=keepdims)
    return int(counted) if axis is None else counted


def _like(number: Any) -> Callable[..., Observed]:
    def made(A: Observed, dtype: Any = None, **options: Any) -> Observed:
        values = np.full(len(A.values), number, dtype=A.dtype if dtype is None else dtype)
        return Observed(A.pattern, values, values.dtype.type(number))

    return made


def _concatenate(blocks: Sequence[Observed], axis: int = 0) -> Observed:
    """Return blocks of rows as one."""
    numbers = [block.rest for block in blocks if _is_number(block.rest)]
    is_alike = len(numbers) == len(blocks) and len(np.unique(numbers)) == 1  # of which NaN may be one
    ends = np.cumsum([0, *(len(block.values) for block in blocks)])
    indptr = np.concatenate([[0], *(block.pattern.indptr[1:] + end for block, end in zip(blocks, ends, strict=False))])
    columns = np.concatenate([block.pattern.columns for block in blocks])
    pattern = Pattern(indptr.astype(np.int64), columns, blocks[0].shape[1])
    return Observed(pattern, np.concatenate([block.values for block in blocks]), numbers[0] if is_alike else None)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.sum: _sum,
    np.max: _max,
    np.any: _any,
    np.all: _all,
    np.count_nonzero: _count_nonzero,
    np.ones_like: _like(1),
    np.zeros_like: _like(0),
    np.concatenate: _concatenate,
}


# --- Products ---------------------------------------------------------------------------------------------------------


def _matmul(A: Any, B: Any) -> Any:
    """Return A @ B, of which A is `Observed` and B is a vector (m,) or matrix (m, r)."""
    if not isinstance(A, Observed) or not isinstance(B, np.ndarray):
        raise UnknownEntriesError("Only products of rows that are partly stored with a dense matrix are known.")
    rest, pattern = A._known(), A.pattern
    if _is_number(rest) and rest == 0:
        return A.matrix() @ B
    of_columns = rest.columns if isinstance(rest, Outer) else rest if _is_of_columns(rest) else 1.0
    of_rows = rest.rows if isinstance(rest, Outer) else 1.0 if _is_of_columns(rest) else np.asarray(rest)
    columns = np.broadcast_to(of_columns, (1, A.shape[1]))[0]
    everywhere = (columns @ B) - pattern.matrix(columns[pattern.columns]) @ B
    scaled = of_rows * everywhere if B.ndim == 2 else np.ravel(of_rows) * everywhere
    return A.matrix() @ B + scaled.astype(B.dtype, copy=False)


def copied(A: Any, xp: Any) -> Any:
    """Return a copy of an array."""
    return A.copy() if isinstance(A, Observed) else xp.asarray(A, copy=True)


def observed_places(M: Any, xp: Any) -> tuple[Any, Any]:
    """Return row and column of each entry with a positive weight, in the order of rows, (k,) each."""
    if not isinstance(M, Observed):
        rows, columns = xp.nonzero(M > 0)
        return rows, columns
    chosen = M.values > 0
    return M.pattern.rows[chosen], M.pattern.columns[chosen].astype(np.int64)


def count_observed(M: Any, *, xp: Any) -> int:
    """Return the number of entries of a block that have a weight."""
    return int(xp.count_nonzero(M))
