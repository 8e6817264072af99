"""The hostile corpus: data, weights and parameters that nobody should pass, and somebody will.

Each case is a name, what is passed, and what must come of it: `FITS`, or words of the error.
`test_hostile.py` runs them.
"""

import array
import datetime
import decimal
import fractions
import re
from collections import OrderedDict, UserList, deque
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import array_api_strict
import numpy as np
import pandas as pd
import polars as pl
import xarray as xr
from scipy import sparse

FITS = None
"""A fit with finite results is the only accepted outcome."""

N, M = 12, 9
_RNG = np.random.default_rng(0)
X = _RNG.random((N, 2)) @ _RNG.random((2, M)) + 0.01 * _RNG.random((N, M))
X[3, 4] = 7.0
X.setflags(write=False)


class Case(NamedTuple):
    """What is passed to a fit, and what must come of it."""

    name: str
    X: Any
    expected: str | None = FITS
    """Words of the error, a regular expression; None if the fit must succeed."""
    fit: Mapping[str, Any] = MappingProxyType({})
    """Arguments of `fit`: weights, uncertainties."""
    parameters: Mapping[str, Any] = MappingProxyType({})
    """Arguments of the estimator."""


def changed(where, value, dtype=float):
    """Return the data with a value somewhere."""
    Y = X.astype(dtype)
    Y[where] = value
    return Y


def data(prefix, cases, **common):
    return [Case(f"{prefix}: {name}", *(c if isinstance(c, tuple) else (c,)), **common) for name, c in cases.items()]


# --- Shapes -----------------------------------------------------------------------------------------------------------

EMPTY = r"0 (sample|feature)\(s\) .* while a minimum of 1 is required"
RANK_1 = {"n_components": 1}

SIZES = [(1, 1), (1, 2), (2, 1), (1, 400), (400, 1), (2, 2), (2, 3000), (3000, 2), (3, 3)]
SHAPES = data("shape", {f"{n} x {m}": 1.0 + np.arange(n * m).reshape(n, m) % 7 for n, m in SIZES}, parameters=RANK_1)
SHAPES += data(
    "shape",
    {
        "no samples": (np.ones((0, 3)), EMPTY),
        "no features": (np.ones((3, 0)), EMPTY),
        "nothing": (np.ones((0, 0)), EMPTY),
        "empty list": ([], "Expected 2D array"),
        "list of an empty list": ([[]], EMPTY),
        "number": (3.0, "Expected 2D array, got scalar"),
        "vector": (np.ones(5), "Expected 2D array, got 1D"),
        "vector in a list": ([1.0, 2.0], "Expected 2D array, got 1D"),
        "three axes": (np.ones((2, 3, 4)), "two dimensions, samples and features; got 3"),
        "four axes": (np.ones((1, 1, 1, 1)), "two dimensions, samples and features; got 4"),
        "ragged": ([[1.0, 2.0], [3.0]], "inhomogeneous"),
        "ragged the other way": ([[1.0], [2.0, 3.0]], "inhomogeneous"),
        "list of a number and a list": ([1.0, [2.0]], "inhomogeneous"),
    },
    parameters=RANK_1,
)

# --- Values -----------------------------------------------------------------------------------------------------------

TINY, MAX = 5e-324, 1.7976931348623157e308
BIG_32, TINY_32 = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
VALUES = data(
    "values",
    {
        "zeros": np.zeros((N, M)),
        "negative zeros": np.full((N, M), -0.0),
        "zeros of both signs": np.where(np.arange(N * M).reshape(N, M) % 2, 0.0, -0.0),
        "ones": np.ones((N, M)),
        "smallest denormal everywhere": np.full((N, M), TINY),
        "some denormal": changed((slice(None, None, 2), 1), TINY),
        "denormal multiples": np.arange(N * M).reshape(N, M) * TINY,
        "smallest normal": np.full((N, M), np.finfo(float).tiny),
        "largest everywhere": np.full((N, M), MAX),
        "largest once": changed((2, 3), MAX),
        "largest in a row": changed(2, MAX),
        "largest in a column": changed((slice(None), 2), MAX),
        "1e300": X * 1e300,
        "1e-300": X * 1e-300,
        "1e-320": X * 1e-320,
        "every magnitude": 10.0 ** np.linspace(-320, 308, N * M).reshape(N, M),
        "magnitudes by rows": X * 10.0 ** np.linspace(-300, 300, N)[:, None],
        "magnitudes by columns": X * 10.0 ** np.linspace(-300, 300, M),
        "two magnitudes": np.where(np.arange(N * M).reshape(N, M) % 2, 1e-200, 1e200),
        "half huge": np.where(np.arange(N * M).reshape(N, M) % 2, X, 1e200),
        "mostly huge": np.where(np.arange(N * M).reshape(N, M) % 4, 1e200, X),
        "identity": np.eye(N),
        "diagonal of magnitudes": np.diag(10.0 ** np.arange(-150, 150, 25.0)),
        "permutation": np.eye(N)[::-1],
        "triangle": np.tril(np.ones((N, M))),
        "checkerboard": np.indices((N, M)).sum(axis=0) % 2.0,
        "one positive": changed(..., 0.0) + np.eye(N, M) * (np.arange(N)[:, None] == 3),
        "one row": changed(slice(1, None), 0.0),
        "one column": changed((slice(None), slice(1, None)), 0.0),
        "equal rows": np.tile(X[0], (N, 1)),
        "equal columns": np.tile(X[:, :1], (1, M)),
        "exact rank one": np.outer(np.arange(1.0, N + 1), np.arange(1.0, M + 1)),
        "binary": (X > 0.5).astype(float),
        "counts": np.floor(X * 3),
        "next to one": 1 + np.arange(N * M).reshape(N, M) * np.finfo(float).eps,
        "integers beyond 2**53": np.floor(X * 2**60),
        "mostly zeros": np.where(np.arange(N * M).reshape(N, M) % 13, 0.0, X),
        "sawtooth": np.arange(N * M).reshape(N, M) % 5.0,
        "all outliers but one row": changed(slice(1, None), 1e9),
        "half of the rows wrong": changed(slice(0, N // 2), 1e9),
        "every second column wrong": changed((slice(None), slice(None, None, 2)), 1e9),
        "largest of single precision": np.full((N, M), BIG_32, dtype=np.float32),
        "denormal of single precision": np.full((N, M), TINY_32, dtype=np.float32),
        "1e38 of single precision": (X * 1e37).astype(np.float32),
        "largest of single precision once": changed((2, 3), BIG_32, np.float32),
        "infinite": (changed((2, 3), np.inf), "Infinite values.*inf at sample 2, feature 3.*NaN if it means missing"),
        "all infinite": (np.full((N, M), np.inf), "Infinite values.*108 of 108"),
        "minus infinite": (changed((2, 3), -np.inf), "Infinite values.*-inf at sample 2, feature 3"),
        "negative": (changed((2, 3), -1.0), "Negative values.*-1.0 at sample 2, feature 3"),
        "just negative": (changed((2, 3), -TINY), "Negative values.*-5e-324 at sample 2, feature 3"),
        "all negative": (-X, "Negative values.*108 of 108"),
        "infinite and missing": (np.where(X > 0.5, np.inf, np.nan), "Infinite values"),
        "infinite of single precision": (changed((2, 3), np.inf, np.float32), "Infinite values"),
    },
)
ROWS, COLUMNS = np.indices((N, M))
MISSING = data(
    "missing",
    {
        "one entry": changed((2, 3), np.nan),
        "first and last": changed(([0, -1], [0, -1]), np.nan),
        "a row": changed(2, np.nan),
        "a column": changed((slice(None), 2), np.nan),
        "a row and a column": np.where((ROWS == 2) | (COLUMNS == 2), np.nan, X),
        "the diagonal": np.where(ROWS == COLUMNS, np.nan, X),
        "all but the diagonal": np.where(ROWS == COLUMNS, X, np.nan),
        "a triangle": np.where(ROWS < COLUMNS, np.nan, X),
        "a checkerboard": np.where((ROWS + COLUMNS) % 2, np.nan, X),
        "a block": np.where((ROWS < 6) & (COLUMNS < 5), np.nan, X),
        "two blocks that share nothing": np.where((ROWS < 6) ^ (COLUMNS < 5), np.nan, X),
        "all but one entry": np.where((ROWS == 2) & (COLUMNS == 3), X, np.nan),
        "all but a row": np.where(ROWS == 2, X, np.nan),
        "all but a column": np.where(COLUMNS == 2, X, np.nan),
        "all but a zero": np.where((ROWS == 2) & (COLUMNS == 3), 0.0, np.nan),
        "all but the largest number": np.where((ROWS == 2) & (COLUMNS == 3), MAX, np.nan),
        "most, the rest huge": np.where((ROWS * COLUMNS) % 5 == 1, 1e300, np.nan),
        "with another payload": changed((2, 3), np.array(0x7FF8DEADBEEF0001, np.uint64).view(float)),
        "with a sign": changed((2, 3), -np.nan),
        "of single precision": changed((2, 3), np.nan, np.float32),
        "in zeros": np.where(ROWS == COLUMNS, np.nan, 0.0),
        "everything": (np.full((N, M), np.nan), "at least one observed entry; all 108 entries"),
    },
)

# --- Types ------------------------------------------------------------------------------------------------------------

NUMERIC = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float16", "float32"]
TYPES = data("dtype", {name: (10 * X).astype(name) for name in [*NUMERIC, "float64", "longdouble"]})
TYPES += data("dtype", {f"{name} of other byte order": (10 * X).astype(name) for name in (">f8", ">f4", ">i4", ">u2")})
TYPES += data(
    "dtype",
    {
        "objects of floats": X.astype(object),
        "objects of decimals": np.array([[decimal.Decimal(repr(float(x))) for x in row] for row in X], dtype=object),
        "objects of fractions": np.array([[fractions.Fraction(float(x)) for x in row] for row in X], dtype=object),
        "objects with None": changed((2, 3), None, object),
        "objects with huge integers": changed((2, 3), 10**300, object),
        "objects with integers beyond floats": (changed((2, 3), 10**400, object), "too large|float"),
        "objects with text": (changed((2, 3), "x", object), "could not convert string to float: 'x'"),
        "objects with a dict": (changed((2, 3), SimpleNamespace(), object), "real number"),
        "text": (np.full((N, M), "a"), "could not convert string to float"),
        "bytes": (np.full((N, M), b"a"), "could not convert|bytes"),
        "dates": (np.full((N, M), np.datetime64("2020-01-01")), "X must hold numbers; got datetime64"),
        "durations": (np.full((N, M), np.timedelta64(3, "s")), "X must hold numbers; got timedelta64"),
        "complex": (X * 1j, "Complex data not supported"),
        "complex without imaginary part": (X.astype(complex), "Complex data not supported"),
        "complex of single precision": (X.astype(np.complex64), "Complex data not supported"),
        "records": (
            np.zeros((N, M), dtype=[("a", float), ("b", float)]),
            "X must hold numbers; got records with the fields a, b",
        ),
        "void": (np.zeros((N, M), dtype="V8"), "setting an array element with a sequence"),
        "None": (None, "X must be a matrix of samples and features.*got NoneType"),
        "text alone": ("data.csv", "got str 'data.csv'.*read_table"),
        "path": (Path("data.csv"), "got .*Path.*read_table"),
        "dict": ({"a": [1.0]}, "got dict. pandas.DataFrame"),
        "set": ({1.0, 2.0}, "got set. Pass an array"),
        "generator": ((row for row in X), "got generator. numpy.stack"),
        "function": (len, "got builtin_function_or_method. Pass an array"),
        "class": (np.ndarray, "got type. Pass an array"),
        "date": (datetime.date(2020, 1, 1), "a string or a real number, not"),
    },
)

# --- Containers -------------------------------------------------------------------------------------------------------


class Tagged(np.ndarray):
    """A subclass of arrays."""


class HasArray:
    """Something that can be made an array."""

    def __array__(self, dtype=None, copy=None):
        return np.array(X, dtype=dtype)


class HasInterface:
    """Memory that is described the old way."""

    def __init__(self):
        self.kept = np.array(X)
        self.__array_interface__ = self.kept.__array_interface__


def misaligned():
    raw = np.empty(X.nbytes + 1, dtype=np.uint8)
    Y = raw[1:].view(float).reshape(X.shape)
    Y[...] = X
    return Y


def read_only():
    Y = X.copy()
    Y.setflags(write=False)
    return Y


LAYOUTS = data(
    "layout",
    {
        "Fortran": np.asfortranarray(X),
        "transposed": np.ascontiguousarray(X.T).T,
        "every second row": np.repeat(X, 2, axis=0)[::2],
        "every third column": np.repeat(X, 3, axis=1)[:, ::3],
        "reversed": np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
        "one row many times": np.broadcast_to(X[0], (N, M)),
        "one number many times": np.broadcast_to(3.0, (N, M)),
        "misaligned": misaligned(),
        "read-only": read_only(),
        "matrix": (np.matrix(X), "np.matrix is not supported"),
        "subclass": X.view(Tagged),
        "lists": X.tolist(),
        "tuples": (tuple(map(tuple, X)), FITS),
        "list of arrays": list(X),
        "list of lists of arrays of no axes": [[np.array(x) for x in row] for row in X],
        "deque of lists": (deque(X.tolist()), FITS),
        "own kind of list": UserList(X.tolist()),
        "integers of Python": [[int(9 * x) for x in row] for row in X],
        "truth values": [[bool(x > 0.5) for x in row] for row in X],
        "memoryview": memoryview(np.array(X)),
        "list of arrays of the standard library": [array.array("d", row) for row in X],
        "object with __array__": HasArray(),
        "object with __array_interface__": HasInterface(),
        "array of the array API": array_api_strict.asarray(np.array(X)),
        "xarray": xr.DataArray(np.array(X), dims=("sample", "feature")),
        "xarray of three axes": (xr.DataArray(np.ones((2, 3, 4))), "two dimensions, samples and features; got 3"),
        "ordered dict of rows": (OrderedDict(enumerate(X.tolist())), "got OrderedDict"),
    },
)
POSITIVE = np.where(X > 0.5, X, 0.0)


def with_duplicates():
    rows, columns = np.nonzero(POSITIVE)
    values = POSITIVE[rows, columns] / 2
    return sparse.coo_array((np.tile(values, 2), (np.tile(rows, 2), np.tile(columns, 2))), shape=X.shape)


def with_explicit_zeros():
    S = sparse.csr_array(POSITIVE)
    S.data[::3] = 0
    return S


def unsorted():
    S = sparse.csr_array(POSITIVE)
    for start, end in zip(S.indptr[:-1], S.indptr[1:], strict=True):
        S.indices[start:end], S.data[start:end] = S.indices[start:end][::-1].copy(), S.data[start:end][::-1].copy()
    S.has_sorted_indices = False
    return S


SPARSE = data(
    "sparse",
    {
        **{
            name: getattr(sparse, f"{name}_array")(POSITIVE)
            for name in ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")
        },
        **{f"{name} matrix": getattr(sparse, f"{name}_matrix")(POSITIVE) for name in ("csr", "csc", "coo")},
        "single precision": sparse.csr_array(POSITIVE.astype(np.float32)),
        "integers": sparse.csr_array((9 * POSITIVE).astype(int)),
        "truth values": sparse.csr_array(POSITIVE > 0),
        "duplicates": with_duplicates(),
        "explicit zeros": with_explicit_zeros(),
        "unsorted": unsorted(),
        "empty": sparse.csr_array((N, M)),
        "full": sparse.csr_array(X),
        "one entry": sparse.coo_array(([3.0], ([2], [3])), shape=(N, M)),
        "missing": sparse.csr_array(np.where((ROWS == 2) & (COLUMNS == 3), np.nan, POSITIVE)),
        "negative": (sparse.csr_array(-POSITIVE), "Negative values"),
        "infinite": (sparse.csr_array(np.where(X > 0.5, np.inf, 0.0)), "Infinite values"),
        "complex": (sparse.csr_array(POSITIVE * 1j), "Complex data not supported"),
        "no samples": (sparse.csr_array((0, M)), EMPTY),
        "one axis": (sparse.coo_array(np.ones(5)), "Expected 2D input"),
    },
)
MASK = X > 0.8
MASKED = data(
    "masked",
    {
        "nothing": np.ma.masked_array(X),
        "nothing, in full": np.ma.masked_array(X, np.zeros(X.shape, bool)),
        "some": np.ma.masked_array(X, MASK),
        "a row": np.ma.masked_array(X, ROWS == 2),
        "infinite below": np.ma.masked_array(np.where(MASK, np.inf, X), MASK),
        "negative below": np.ma.masked_array(np.where(MASK, -1.0, X), MASK),
        "missing below": np.ma.masked_array(np.where(MASK, np.nan, X), MASK),
        "missing beside": np.ma.masked_array(np.where(ROWS == COLUMNS, np.nan, X), MASK),
        "integers": np.ma.masked_array((9 * X).astype(int), MASK),
        "single precision": np.ma.masked_array(X.astype(np.float32), MASK),
        "hard": np.ma.masked_array(X, MASK, hard_mask=True),
        "fill value": np.ma.masked_array(X, MASK, fill_value=-999),
        "truth values": np.ma.masked_array(X > 0.5, MASK),
        "all": (np.ma.masked_array(X, True), "at least one observed entry"),
        "infinite beside": (np.ma.masked_array(np.where(ROWS == COLUMNS, np.inf, X), False), "Infinite values"),
        "text": (np.ma.masked_array(np.full((N, M), "a"), False), "could not convert"),
    },
)


def frame(**changes):
    """Return a data frame with some columns replaced."""
    table = pd.DataFrame(np.array(X), columns=list("abcdefghi"))
    for name, column in changes.items():
        table[name] = column
    return table


FRAMES = data(
    "pandas",
    {
        "plain": frame(),
        "numbers of several types": frame(a=np.arange(N), b=np.arange(N) % 2 == 0, c=X[:, 2].astype(np.float32)),
        "nullable integers": frame(a=pd.array([None, *range(1, N)], dtype="Int64")),
        "nullable floats": frame(a=pd.array([None, *X[1:, 0]], dtype="Float64")),
        "nullable truth values": frame(a=pd.array([None] + [True] * (N - 1), dtype="boolean")),
        "objects of numbers": frame(a=X[:, 0].astype(object)),
        "objects with None": frame(a=[None, *X[1:, 0]]),
        "categories of numbers": frame(a=pd.Categorical(np.arange(N) % 3)),
        "categories without entries": frame(a=pd.Categorical(np.arange(N) % 3, categories=range(6))),
        "categories all empty": frame(a=pd.Categorical([None] * N, categories=[1, 2])),
        "sparse columns": frame(a=pd.arrays.SparseArray(POSITIVE[:, 0])),
        "arrow columns": frame(a=pd.array(X[:, 0], dtype="float64[pyarrow]")),
        "columns of one name": pd.DataFrame(np.array(X), columns=["a"] * M),
        "columns with numbers for names": pd.DataFrame(np.array(X), columns=range(M)),
        "columns of several levels": pd.DataFrame(
            np.array(X), columns=pd.MultiIndex.from_product([["u", "v", "w"], [1, 2, 3]])
        ),
        "rows of one name": pd.DataFrame(np.array(X), index=[0] * N),
        "dates for row names": pd.DataFrame(np.array(X), index=pd.date_range("2020", periods=N)),
        "text": (frame(a=["x"] * N), "could not convert string to float: 'x'"),
        "categories of text": (frame(a=pd.Categorical(["x", "y"] * (N // 2))), "could not convert string to float"),
        "dates": (frame(a=pd.date_range("2020", periods=N)), "column 'a' has the type datetime64"),
        "durations": (frame(a=pd.to_timedelta(np.arange(N), unit="s")), "column 'a' has the type timedelta64"),
        "complex": (frame(a=X[:, 0] * 1j), "Complex data not supported"),
        "lists in cells": (frame(a=[[1.0, 2.0]] * N), "setting an array element with a sequence"),
        "names of several types": (pd.DataFrame(np.array(X), columns=[*range(M - 1), "z"]), "(?i)feature names"),
        "no rows": (frame().iloc[:0], EMPTY),
        "no columns": (frame()[[]], "at least one array"),
        "a column alone": (frame()["a"], "Expected (a )?2-?(D|dimensional)"),
        "polars": pl.DataFrame(np.array(X), schema=list("abcdefghi")),
        "polars with null": pl.DataFrame({"a": [None, 1.0, 2.0], "b": [3.0, 4.0, 5.0]}),
        "polars text": (pl.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]}), "could not convert|string"),
    },
)

# --- Weights and uncertainties ----------------------------------------------------------------------------------------

ONES = np.ones((N, M))


def of_weights(cases):
    pairs = {name: case if isinstance(case, tuple) else (case, FITS) for name, case in cases.items()}
    return [Case(f"weights: {name}", X, expected, {"weights": w}) for name, (w, expected) in pairs.items()]


WEIGHTS = of_weights(
    {
        "ones": ONES,
        "integers": (9 * X).astype(int) + 1,
        "truth values": X > 0.3,
        "lists": ONES.tolist(),
        "single precision": ONES.astype(np.float32),
        "half precision": ONES.astype(np.float16),
        "data frame": frame(),
        "masked": np.ma.masked_array(ONES, MASK),
        "Fortran": np.asfortranarray(X),
        "one number many times": np.broadcast_to(2.0, (N, M)),
        "one positive": np.where((ROWS == 2) & (COLUMNS == 3), 1.0, 0.0),
        "a row of zeros": np.where(ROWS == 2, 0.0, 1.0),
        "a column of zeros": np.where(COLUMNS == 2, 0.0, 1.0),
        "negative zeros": np.where(COLUMNS == 2, -0.0, 1.0),
        "smallest": np.full((N, M), TINY),
        "largest": np.full((N, M), MAX),
        "smallest and largest": np.where(ROWS % 2, TINY, MAX),
        "every magnitude": 10.0 ** np.linspace(-320, 308, N * M).reshape(N, M),
        "text of numbers": (ONES.astype(str), FITS),
        "zeros": (0 * ONES, "weights must not all be zero"),
        "negative": (changed((2, 3), -0.5), "non-negative; got -0.5 at sample 2, feature 3"),
        "missing": (changed((2, 3), np.nan), "weights contains NaN"),
        "infinite": (changed((2, 3), np.inf), "weights contains infinity"),
        "of other shape": (np.ones((M, N)), r"shape of X, \(12, 9\); got \(9, 12\)"),
        "of samples": (np.ones(N), r"shape of X, \(12, 9\); got \(12,\)"),
        "of features": (np.ones(M), r"shape of X, \(12, 9\); got \(9,\)"),
        "a column": (np.ones((N, 1)), r"shape of X, \(12, 9\); got \(12, 1\)"),
        "a number": (1.0, r"shape of X, \(12, 9\); got \(\)"),
        "nothing": (np.ones((0, M)), r"shape of X, \(12, 9\); got \(0, 9\)"),
        "text": (np.full((N, M), "heavy"), "could not convert string"),
        "the word balanced": ("balanced", "weights must be a matrix .* got str 'balanced'"),
        "complex": (ONES * 1j, "Complex data not supported"),
        "dict": ({0: 1.0}, "weights must be a matrix .* got dict"),
        "dates": (np.full((N, M), np.datetime64("2020-01-01")), "weights must hold numbers"),
    }
)
UNCERTAINTIES = [
    Case(f"uncertainties: {name}", X, expected, fit={"uncertainties": value})
    for name, value, expected in [
        ("ones", ONES, FITS),
        ("by features", ONES * 10.0 ** np.linspace(-100, 100, M), FITS),
        ("smallest", np.full((N, M), TINY), "between 1e-150 and 1e\\+150; got 5e-324"),
        ("largest", np.full((N, M), MAX), "between 1e-150 and 1e\\+150; got 1.79"),
        ("every magnitude", 10.0 ** np.linspace(-140, 140, N * M).reshape(N, M), FITS),
        ("integers", np.ones((N, M), dtype=int), FITS),
        ("zero", changed((2, 3), 0.0), "positive and finite where X is observed.*got 0.0 at sample 2, feature 3"),
        ("negative", changed((2, 3), -1.0), "positive and finite.*got -1.0"),
        ("missing", changed((2, 3), np.nan), "positive and finite.*got nan"),
        ("infinite", changed((2, 3), np.inf), "positive and finite.*got inf"),
        ("of other shape", np.ones((M, N)), r"shape of X, \(12, 9\); got \(9, 12\)"),
        ("a number", 1.0, r"shape of X"),
        ("text", np.full((N, M), "a"), "could not convert string"),
        ("complex", ONES * 1j, "Complex data not supported"),
    ]
]
UNCERTAINTIES.append(
    Case(
        "uncertainties: missing where the data is",
        changed((2, 3), np.nan),
        fit={"uncertainties": changed((2, 3), np.nan)},
    )
)

# --- Parameters -------------------------------------------------------------------------------------------------------

NOT_NUMBERS = [None, "a", [1], {}, object(), 1j, True, np.True_, np.array([1.0, 2.0]), np.nan, len]
POSITIVE_INTEGER = "must be a positive integer"
NUMBER = "must be a (finite, non-negative )?number"
IN_RANGE = r"must be an integer in \[1, \d+\]"
ONE_OF = "must be one of"
WRONG = {
    "n_components": [(value, IN_RANGE) for value in [*NOT_NUMBERS, 0, -1, 2.0, 10**30, np.inf, "2", b"2"]],
    "max_iter": [(value, POSITIVE_INTEGER) for value in [*NOT_NUMBERS, 0, -1, 1.5, 10.0, np.inf]],
    "tol": [(value, NUMBER) for value in [*NOT_NUMBERS, -1e-9, np.inf, -np.inf, "1e-4"]],
    "method": [(value, ONE_OF) for value in [None, "", "nmf", "L2", 3, ["l2"], len, object()]],
    "preset": [(value, "must be 'default' or 'published'") for value in [None, "", "fast", 3, ["default"], object()]],
    "init": [(value, ONE_OF) for value in [None, "", "custom", 3, [1], (1, 2), {}, np.ones((2, 2)), str]],
    "scale": [
        (value, f"{ONE_OF}|must be positive") for value in [None, "", "std", 0, -1, np.nan, np.inf, True, [1], 1j, {}]
    ],
    "outliers": [
        (value, f"{ONE_OF}|must be positive") for value in [None, "", "iqr", 0, -1, np.nan, True, [1], 1j, {}]
    ],
    "solver": [(value, ONE_OF) for value in [None, "", "cd", 3, [1], {}, len, object]],
    "schedule": [(value, ONE_OF) for value in [None, "", "cosine", 3, [1], {}, object()]],
    "alpha_W": [(value, NUMBER) for value in [*NOT_NUMBERS, -1.0, np.inf, "same"]],
    "alpha_H": [(value, NUMBER) for value in [*NOT_NUMBERS, -1.0, np.inf]],
    "l1_ratio": [(value, NUMBER) for value in [*NOT_NUMBERS, -0.1, 1.1, np.inf]],
    "forget_factor": [(value, NUMBER) for value in [*NOT_NUMBERS, -0.1, 1.1]],
    "callback": [(value, "must be a function") for value in [3, "print", [], {}]],
    "random_state": [(value, "(?i)seed") for value in ["seed", 1.5, -1, [1.5], object(), {}]],
    "fixed_components": [
        (np.ones((1, M + 1)), "must have 9 columns"),
        (np.ones((3, M)), "at most n_components=2"),
        (-np.ones((1, M)), "non-negative"),
        (np.full((1, M), np.nan), "NaN"),
        (np.full((1, M), np.inf), "infinity"),
        (np.ones(M), "Expected 2D array"),
        (np.ones((0, M)), r"0 sample\(s\)"),
        ("a", "could not convert"),
        (3, "Expected 2D array"),
        ([["x"] * M], "could not convert"),
    ],
    "image_shape": [
        ((3, 4), "rows \\* columns = n_features = 9"),
        ((0, 9), "tuple of two positive integers"),
        ((-1, -9), "tuple of two positive integers"),
        ((9,), "tuple of two positive integers"),
        ("ab", "tuple of two positive integers"),
        (9, "tuple of two positive integers"),
        ((1.5, 6), "tuple of two positive integers"),
        (None, "pass image_shape"),
    ],
}
PARAMETERS = [
    Case(
        f"{name}: {re.sub(' at 0x.*>', '>', repr(value))[:40]} ({k})",
        X,
        expected,
        parameters={name: value} | ({"outliers": "mrf"} if name == "image_shape" else {}),
    )
    for name, cases in WRONG.items()
    for k, (value, expected) in enumerate(cases)
]

CORPUS = [
    *SHAPES,
    *VALUES,
    *MISSING,
    *TYPES,
    *LAYOUTS,
    *SPARSE,
    *MASKED,
    *FRAMES,
    *WEIGHTS,
    *UNCERTAINTIES,
    *PARAMETERS,
]
