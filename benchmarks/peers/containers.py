"""Data, weights and uncertainties in many containers of other packages, through all methods of estimators.

A container passes if every method gives what it gives for the same numbers as a NumPy array, in the form that the
documentation promises, or if it is refused by an error that says what is required, what was given and what to pass.

AnnData and JAX are not among the packages that the tests need:

    python -m venv /tmp/containers && /tmp/containers/bin/pip install anndata jax ".[dev]"
    /tmp/containers/bin/python benchmarks/peers/containers.py
"""

import array
import re
import sys
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch
import xarray as xr
import zarr
from checks import Checks
from scipy import sparse

from robustnmf import RobustNMF, TruncatedCauchyNMF

try:
    import anndata
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise SystemExit(f"{error}. Install anndata and jax; see the head of this file.") from error

warnings.simplefilter("ignore")
jax.config.update("jax_enable_x64", True)
FOLDER = Path(tempfile.mkdtemp(prefix="containers-"))
RANK, SHAPE = 2, (24, 8)
ORDER = [5, 2, 7, 0, 3, 6, 1, 4]
NAMES = [f"gene{j}" for j in range(SHAPE[1])]
ROWS = [f"cell{i}" for i in range(SHAPE[0])]
OTHER_ROWS = ROWS[::-1]
METHODS = ("transform", "clean", "outlier_mask", "score_samples", "inverse_transform", "partial_fit")
IN_BLOCKS = {"skip": ("partial_fit",), "rtol": 1e-4}
OTHERS = [NAMES[i] for i in ORDER]
check = Checks()


def example():
    """Return data with two gross errors, weights and uncertainties."""
    rng = np.random.default_rng(0)
    X = rng.random((SHAPE[0], RANK)) @ rng.random((RANK, SHAPE[1])) + 0.02 * rng.random(SHAPE)
    X[3, 5], X[11, 2] = 30.0, 25.0
    weights = np.where(rng.random(SHAPE) < 0.2, 0.0, rng.uniform(0.2, 3.0, SHAPE))
    return X, weights, rng.uniform(0.005, 0.05, SHAPE)


X, WEIGHTS, SIGMAS = example()
GAPS = X.copy()
GAPS[[1, 4, 9], [2, 2, 6]] = np.nan
COUNTS = np.round(20 * X)
SPARSE = np.where(np.random.default_rng(1).random(SHAPE) < 0.4, 0.0, X)
FRAME = pd.DataFrame(X, index=ROWS, columns=NAMES)
AIR = xr.DataArray(X, dims=("cell", "gene"), coords={"cell": ROWS, "gene": NAMES})
STACK = X.reshape(SHAPE[0], 2, 4)

# --- What is compared ------------------------------------------------------------------------------------------------


def numbers(values):
    """Return results of any kind as an array of NumPy."""
    if isinstance(values, torch.Tensor):
        values = values.detach()
        values = values.to_dense().numpy() if values.layout is not torch.strided else values.numpy()
    if hasattr(values, "toarray"):
        values = values.toarray()
    if isinstance(values, pl.LazyFrame):
        values = values.collect()
    if isinstance(values, pa.Table | pa.RecordBatch):
        values = np.column_stack([column.to_numpy(zero_copy_only=False) for column in values.columns])
    return np.asarray(values)


def results(model, X, new=None, about=None, of_new=None, skip=()):
    """Return what all methods give: a fit to X, and the others of new data, by default the same."""
    new, about = X if new is None else new, about or {}
    of_new = about if of_new is None else of_new
    found = {"fit_transform": model.fit_transform(X, **about), "components": model.components_}
    for name in (name for name in METHODS if name not in skip and hasattr(model, name)):
        try:
            if name == "inverse_transform":
                found[name] = model.inverse_transform(found["transform"])
            elif name == "partial_fit":
                found[name] = model.partial_fit(new, **of_new).components_
            else:
                found[name] = getattr(model, name)(new, **of_new)
        except Exception as error:
            error.add_note(f"in {name}")
            raise
    return found


def compare(found, expected, kind=None, back=None, rtol=1e-6):
    """Raise an error unless results are the expected ones; cleaned data and masks must be of a kind."""
    for name, values in found.items():
        if kind is not None and name in ("clean", "outlier_mask"):
            assert isinstance(values, kind), f"{name} gives {type(values).__name__}, not {kind.__name__}"
        ours = numbers(values)
        if back is not None and name in ("clean", "outlier_mask", "inverse_transform"):
            ours = back(name, ours)
        np.testing.assert_allclose(ours, numbers(expected[name]), rtol=rtol, atol=1e-9, err_msg=name)


def models(**options):
    options = {"random_state": 0, "max_iter": 40} | options
    return TruncatedCauchyNMF(RANK, **options), RobustNMF(RANK, method="l2", **options)


def is_clear(error, words):
    """Return whether an error is one for the user: of a type for wrong arguments, with all these words."""
    text = str(error)
    return isinstance(error, TypeError | ValueError) and bool(words) and all(re.search(word, text) for word in words)


def case(claim, make, plain=X, *, words=(), refused_in=None, **how):
    """Add a check: the container gives what the array `plain` gives, or is refused with an error that has the words.

    Parameters
    ----------
    make : function () -> container, or (container, container for the methods after the fit)
        Made when it is checked: some are files.
    plain : array or (array, array)
        The same numbers.
    words : tuple of str
        Patterns of what an error must say: what is required, what was given, what to pass. None: it must work.
    refused_in : str or None
        The method that may refuse it; None is the fit.
    how : dict
        `about`, `of_new` (functions that return weights and uncertainties), `plain_about`, `plain_of_new`, `kind`,
        `back`, `skip`, `rtol`, `options` of the estimator, `must_refuse`: no result would be right.
    """

    def run():
        ended = "works"
        for ours, theirs in zip(models(**how.get("options", {})), models(), strict=True):
            made = make()
            pair = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
            plains = plain if isinstance(plain, tuple) else (plain, None)
            about = how.get("about", dict)()
            of_new = how["of_new"]() if "of_new" in how else None
            expected = results(theirs, *plains, how.get("plain_about"), how.get("plain_of_new"), how.get("skip", ()))
            try:
                found = results(ours, *pair, about, of_new, how.get("skip", ()))
            except Exception as error:
                notes = getattr(error, "__notes__", ["in fit"])
                if not is_clear(error, words) or notes[0] != f"in {refused_in or 'fit'}":
                    raise
                ended = "refused: " + str(error).splitlines()[0].replace("|", "/").replace(str(FOLDER), "folder")
                continue
            assert not how.get("must_refuse"), "a result, where an error is due"
            compare(found, expected, how.get("kind"), how.get("back"), how.get("rtol", 1e-6))
        return ended

    run.__name__ = claim.replace(" ", "_")
    check(run)


def stored(name, values=X):
    """Return a path and write an array there as .npy."""
    np.save(FOLDER / name, values)
    return FOLDER / name


# --- NumPy -----------------------------------------------------------------------------------------------------------


def read_only():
    values = X.copy()
    values.flags.writeable = False
    return values


def masked():
    values = GAPS.copy()
    values[np.isnan(GAPS)] = 1e6
    return np.ma.masked_array(values, mask=np.isnan(GAPS))


def records():
    return np.rec.fromarrays(X.T, names=NAMES)


def strided():
    wide = np.full((2 * SHAPE[0], 3 * SHAPE[1]), -1.0)
    wide[::2, ::3] = X
    return wide[::2, ::3]


TWO_D = ("(?i)(2|two)[- ]?d", "reshape|Pass a DataFrame")
STACKED = ("(?i)two dimensions|matrix|samples and features", "3|\\(24, 2, 4\\)", "reshape|factorise_xarray|read_table")
NUMERIC = ("(?i)numbers|numeric|real", "(?i)drop|convert|select|encode|pass", "gene|text|str|'a'|object|record|complex")

case("numpy in C order", lambda: X.copy(), kind=np.ndarray)
case("numpy in Fortran order", lambda: np.asfortranarray(X))
case("numpy strided view", strided)
case("numpy reversed view", lambda: X[::-1, ::-1], X[::-1, ::-1].copy())
case("numpy read-only", read_only)
case("numpy memmap", lambda: np.load(stored("memmap.npy"), mmap_mode="r"))
case("numpy masked array", masked, GAPS)
case("numpy masked array of integers", lambda: np.ma.masked_array(COUNTS.astype(int), mask=np.isnan(GAPS)),
     np.where(np.isnan(GAPS), np.nan, COUNTS))  # fmt: skip
case("numpy float16", lambda: X.astype(np.float16), X.astype(np.float16).astype(np.float64), rtol=1e-4)
case("numpy float32", lambda: X.astype(np.float32), X.astype(np.float32))
case("numpy long double", lambda: X.astype(np.longdouble))
case("numpy big-endian", lambda: X.astype(">f8"))
case("numpy uint8", lambda: COUNTS.clip(max=255).astype(np.uint8), COUNTS.clip(max=255))
case("numpy bool", lambda: X > 0.3, (X > 0.3).astype(float))
case("numpy objects that are numbers", lambda: X.astype(object))
case("numpy objects with None", lambda: np.where(np.isnan(GAPS), None, GAPS), GAPS)
case("numpy objects that are text", lambda: np.array([["a", "b"], ["c", "d"]], dtype=object), words=NUMERIC)
case("numpy structured", lambda: np.array(records()), words=NUMERIC)
case("numpy record array", records, words=NUMERIC)
case("numpy complex", lambda: X + 0j, words=("(?i)complex", "real", "abs"))
case("numpy of times", lambda: X.astype("m8[s]"), words=("numbers", "timedelta64", "Convert"))
case("numpy of no dimension", lambda: np.array(3.0), words=TWO_D)
case("numpy of one dimension", lambda: X[0], words=TWO_D)
case("numpy stack of images", lambda: STACK, words=STACKED)
case(
    "numpy stack of colour images", lambda: X.reshape(-1, 2, 2, 2), words=("(?i)two dimensions|matrix", "4", "reshape")
)
case("numpy archive", lambda: np.load(_archive()), words=("must be", "NpzFile|archive", "X|\\["))


def _archive():
    np.savez(FOLDER / "archive.npz", X=X)
    return FOLDER / "archive.npz"


# --- SciPy -----------------------------------------------------------------------------------------------------------


def duplicated():
    rows, columns = np.nonzero(SPARSE)
    values = SPARSE[rows, columns] / 2
    return sparse.coo_array((np.tile(values, 2), (np.tile(rows, 2), np.tile(columns, 2))), shape=SHAPE)


for make in (sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, sparse.dia_array, sparse.bsr_array,
             sparse.lil_matrix, sparse.dok_array):  # fmt: skip
    case(f"scipy {make.__name__}", lambda make=make: make(SPARSE), SPARSE)
case("scipy coo array with duplicates", duplicated, SPARSE)
case("scipy csc array of integers", lambda: sparse.csc_array(COUNTS.astype(int)), COUNTS)
case("scipy csr array of float32", lambda: sparse.csr_array(SPARSE.astype(np.float32)), SPARSE.astype(np.float32))
case(
    "scipy array of three dimensions", lambda: sparse.coo_array(STACK), words=("two dimensions|matrix", "3", "reshape")
)

# --- pandas ----------------------------------------------------------------------------------------------------------


def with_na():
    frame = pd.DataFrame(COUNTS.astype(int), columns=NAMES).astype("Int64")
    for i, j in zip(*np.nonzero(np.isnan(GAPS)), strict=True):
        frame.iloc[i, j] = pd.NA
    return frame


def two_levels(frame=FRAME):
    levels = pd.MultiIndex.from_product([["a", "b"], ["w", "x", "y", "z"]])
    return frame.set_axis(levels, axis=1)


def numbered(first=400, step=10):
    return pd.DataFrame(X, columns=first + step * np.arange(SHAPE[1]))


def unordered(name, values):
    """Return results for columns in another order in the order of the fit."""
    return values if name == "inverse_transform" else values[:, np.argsort(ORDER)]


NAMED = ("(?i)names", "(?i)order|must", "X\\[list|feature_names_in_|[Rr]ename")
case("pandas frame", FRAME.copy, kind=pd.DataFrame)
case("pandas Int64 with NA", with_na, np.where(np.isnan(GAPS), np.nan, COUNTS), kind=pd.DataFrame)
case("pandas Arrow types", lambda: FRAME.astype("double[pyarrow]"), kind=pd.DataFrame)
case("pandas sparse types", lambda: pd.DataFrame(SPARSE, columns=NAMES).astype(pd.SparseDtype("float", 0.0)), SPARSE)
case("pandas categories that are numbers", lambda: pd.DataFrame(COUNTS, columns=NAMES).astype("category"), COUNTS)
case("pandas two levels of columns", two_levels, kind=pd.DataFrame)
case("pandas duplicate names", lambda: FRAME.set_axis(["a"] * 8, axis=1), kind=pd.DataFrame)
case("pandas index of dates", lambda: FRAME.set_axis(pd.date_range("2024-01-01", periods=24)), kind=pd.DataFrame)
case("pandas columns in another order", lambda: (FRAME, FRAME[[NAMES[i] for i in ORDER]]), words=NAMED,
     refused_in="transform", back=unordered)  # fmt: skip
case("pandas numbers as names in another order", lambda: (numbered(), numbered().iloc[:, ORDER]), words=NAMED,
     refused_in="transform", back=unordered)  # fmt: skip
case("pandas two levels in another order", lambda: (two_levels(), two_levels().iloc[:, ORDER]), words=NAMED,
     refused_in="transform", back=unordered)  # fmt: skip
case("pandas mixed names", lambda: FRAME.set_axis([1, *NAMES[1:]], axis=1), words=("str", "(?i)columns", "astype"))
case("pandas column of text", lambda: FRAME.assign(gene3="text"), words=NUMERIC)
case("pandas column of dates", lambda: FRAME.assign(gene3=pd.Timestamp("2024-01-01")), words=NUMERIC)
case("pandas frame of dates", lambda: pd.DataFrame({name: pd.date_range("2024", periods=24) for name in NAMES}),
     words=NUMERIC)  # fmt: skip
case("pandas frame, streamed", FRAME.copy, options={"engine": "stream"}, **IN_BLOCKS)
case("pandas columns in another order, streamed", lambda: (FRAME, FRAME[OTHERS]), words=NAMED, refused_in="transform",
     back=unordered, options={"engine": "stream"}, **IN_BLOCKS)  # fmt: skip
case("pandas series", lambda: FRAME["gene0"], words=TWO_D)

# --- polars, pyarrow -------------------------------------------------------------------------------------------------


def polars(values=X, names=NAMES):
    return pl.DataFrame(values, schema=names, orient="row")


def polars_gaps():
    return polars(GAPS).fill_nan(None)


def arrow(values=X, names=NAMES):
    return pa.table(dict(zip(names, values.T, strict=True)))


def arrow_gaps():
    return pa.table({name: pa.array(column, from_pandas=True) for name, column in zip(NAMES, GAPS.T, strict=True)})


case("polars frame", polars, kind=pl.DataFrame)
case("polars frame with nulls", polars_gaps, GAPS, kind=pl.DataFrame)
case("polars lazy frame", lambda: polars().lazy(), kind=pl.LazyFrame | pl.DataFrame)
case("polars lazy frame of a file", lambda: _scanned(), kind=pl.LazyFrame | pl.DataFrame)
case("polars columns in another order", lambda: (polars(), polars().select(OTHERS)), words=NAMED,
     refused_in="transform", back=unordered)  # fmt: skip
case("polars lazy frame in another order", lambda: (polars(), polars().lazy().select(OTHERS)), words=NAMED,
     refused_in="transform", back=unordered)  # fmt: skip
case("polars column of text", lambda: polars().with_columns(gene3=pl.lit("text")), words=NUMERIC)
case("polars column of dates", lambda: polars().with_columns(gene3=pd.Timestamp("2024-01-01")), words=NUMERIC)
case("polars series", lambda: polars()["gene0"], words=TWO_D)
case("pyarrow table", arrow, kind=pa.Table)
case("pyarrow table with nulls", arrow_gaps, GAPS, kind=pa.Table)
case("pyarrow table of float32", lambda: arrow(X.astype(np.float32)), X.astype(np.float32), kind=pa.Table)
case("pyarrow table of integers", lambda: arrow(COUNTS.astype(int)), COUNTS, kind=pa.Table)
case("pyarrow record batch", lambda: arrow().to_batches()[0], kind=pa.RecordBatch)
case("pyarrow table in another order", lambda: (arrow(), arrow().select(OTHERS)), words=NAMED, refused_in="transform",
     back=unordered, kind=pa.Table)  # fmt: skip
case("pyarrow column of text", lambda: arrow().set_column(3, "gene3", pa.array(["text"] * 24)), words=NUMERIC)
case("pyarrow chunked array", lambda: arrow()["gene0"], words=TWO_D)
case("pyarrow reader of batches", lambda: arrow().to_reader(), words=("must", "RecordBatchReader", "read_all"))


def _scanned():
    polars().write_parquet(FOLDER / "frame.parquet")
    return pl.scan_parquet(FOLDER / "frame.parquet")


# --- xarray, AnnData -------------------------------------------------------------------------------------------------


def cells(values=X):
    return anndata.AnnData(values, obs=pd.DataFrame(index=ROWS), var=pd.DataFrame(index=NAMES))


def backed(values=X):
    path = FOLDER / f"{len(list(FOLDER.iterdir()))}.h5ad"
    cells(values).write_h5ad(path)
    return anndata.read_h5ad(path, backed="r")


ANNDATA = ("matrix|array", "AnnData", "adata.X|\\.X|to_memory|factorise_anndata")
case("xarray matrix", AIR.copy, kind=xr.DataArray)
case("xarray matrix without coordinates", lambda: xr.DataArray(X), kind=xr.DataArray)
case("xarray coordinates in another order", lambda: (AIR, AIR.isel(gene=ORDER)), words=NAMED, refused_in="transform",
     back=unordered)  # fmt: skip
case("xarray matrix that is turned", lambda: (AIR, AIR.transpose()), words=("dimension", "'cell'", "transpose"),
     refused_in="transform", back=lambda name, values: values if name == "inverse_transform" else values.T)  # fmt: skip
case("xarray cube", lambda: xr.DataArray(STACK, dims=("t", "y", "x")), words=("two dim", "3", "factorise_xarray"))
case("xarray dataset", lambda: AIR.to_dataset("gene"), words=("DataArray|matrix", "Dataset", "to_dataarray|variable"))
case("anndata", cells, words=ANNDATA)
case("anndata backed", backed, words=ANNDATA)
case("anndata view", lambda: cells()[:20], X[:20], words=ANNDATA)
case("anndata X of a backed object", lambda: backed().X)
case("anndata sparse X of a backed object", lambda: backed(sparse.csr_matrix(SPARSE)).X, SPARSE)
case("anndata as a data frame", lambda: cells().to_df(), kind=pd.DataFrame)

# --- Files -----------------------------------------------------------------------------------------------------------


def hdf5():
    file = h5py.File(FOLDER / f"{len(list(FOLDER.iterdir()))}.h5", "w")
    file["X"], file["cube"] = X, STACK
    file.create_group("inner")["X"] = X
    return file


def zarr_group():
    group = zarr.group()
    group.create_array("X", data=X)
    group.create_array("cube", data=STACK)
    return group


case("h5py dataset", lambda: hdf5()["X"])
case("h5py stack", lambda: hdf5()["cube"], words=STACKED)
case("h5py group", lambda: hdf5()["inner"], words=("must be", "group", "\\['X'\\]"))
case("h5py file", hdf5, words=("must be", "group|file", "\\['X'\\]"))
case("zarr array", lambda: zarr_group()["X"])
case("zarr stack", lambda: zarr_group()["cube"], words=STACKED)
case("zarr group", zarr_group, words=("must be", "group", "\\['X'\\]"))
case("path as text", lambda: str(stored("data.npy")), words=("must be", "text|path|str", "read_table"))
case("path", lambda: stored("data.npy"), words=("must be", "path|Path", "read_table"))

# --- Dask ------------------------------------------------------------------------------------------------------------


def dask_array(values=X):
    return da.from_array(values, chunks=(8, -1))


def dask_frame(frame=FRAME):
    return dd.from_pandas(frame, npartitions=3, sort=False)


case("dask array", dask_array, **IN_BLOCKS)
case("dask frame", dask_frame, **IN_BLOCKS)
case("dask frame in another order", lambda: (dask_frame(), dask_frame()[OTHERS]), words=NAMED, refused_in="transform",
     back=unordered, **IN_BLOCKS)  # fmt: skip
case("dask frame after a fit to pandas in another order", lambda: (FRAME, dask_frame()[OTHERS]), words=NAMED,
     refused_in="transform", back=unordered, **IN_BLOCKS)  # fmt: skip
case("dask stack", lambda: da.from_array(STACK), words=STACKED)
case("dask delayed", lambda: dask.delayed(X), words=("array or a data frame", "Delayed", "from_delayed"))

# --- Tensors ---------------------------------------------------------------------------------------------------------


def half(dtype):
    """Return the data in a type of 16 bits, and what it is then: bfloat16, which NumPy lacks, in single precision."""
    tensor = torch.asarray(X).to(dtype)
    return tensor, tensor.float().numpy() if dtype is torch.bfloat16 else tensor.double().numpy()


case("torch float64", lambda: torch.asarray(X), kind=torch.Tensor)
case("torch float32", lambda: torch.asarray(X).float(), X.astype(np.float32), kind=torch.Tensor)
case("torch float16", lambda: half(torch.float16)[0], half(torch.float16)[1], kind=torch.Tensor)
case("torch bfloat16", lambda: half(torch.bfloat16)[0], half(torch.bfloat16)[1], kind=torch.Tensor)
case("torch integers", lambda: torch.asarray(COUNTS).int(), COUNTS, kind=torch.Tensor)
case("torch part of a graph", lambda: torch.asarray(X).requires_grad_(), kind=torch.Tensor)
case("torch sparse by coordinates", lambda: torch.asarray(SPARSE).to_sparse(), SPARSE)
case("torch sparse by rows", lambda: torch.asarray(SPARSE).to_sparse_csr(), SPARSE)
case("torch sparse bfloat16", lambda: half(torch.bfloat16)[0].to_sparse(), half(torch.bfloat16)[1])
case("torch stack of images", lambda: torch.asarray(STACK), words=STACKED)
case("jax float64", lambda: jnp.asarray(X))
case("jax bfloat16", lambda: jnp.asarray(X, dtype=jnp.bfloat16), half(torch.bfloat16)[1], rtol=1e-3)
case("numpy bfloat16 of ml_dtypes", lambda: np.asarray(jnp.asarray(X, dtype=jnp.bfloat16)), half(torch.bfloat16)[1],
     rtol=1e-3)  # fmt: skip

# --- Python ----------------------------------------------------------------------------------------------------------

PASSES = ("must be", "array|list|stack")
case("list of lists", X.tolist)
case("tuple of arrays", lambda: tuple(X))
case("list of series", lambda: [FRAME.loc[row] for row in ROWS])
case("ragged list", lambda: [[1.0, 2.0], [3.0]], words=("(?i)length|same number|2", "NaN|pad|equal"))
case("generator", lambda: (row for row in X), words=(*PASSES, "generator"))
case("dictionary of columns", lambda: dict(zip(NAMES, X.T, strict=True)), words=("must be", "dict", "DataFrame|stack"))
case("list of dictionaries", lambda: FRAME.to_dict("records"), words=("must be", "dict", "DataFrame"))
case("nothing", lambda: None, words=("must be", "None"))
case("buffer of Python", lambda: memoryview(array.array("d", X.ravel().tolist())).cast("B").cast("d", SHAPE))

# --- Weights ---------------------------------------------------------------------------------------------------------

W_FRAME = pd.DataFrame(WEIGHTS, index=ROWS, columns=NAMES)
W_AIR = AIR.copy(data=WEIGHTS)
SHUFFLED = W_FRAME.loc[OTHER_ROWS, OTHERS]
MATCHED = ("weights must have the (features|samples|columns) of X|names", "[Rr]ename|names")


def weighted(claim, weights, X=FRAME, plain_weights=WEIGHTS, plain=None, **how):
    """Add a check of weights, of a fit and of all methods."""
    plain = globals()["X"] if plain is None else plain
    given = X if callable(X) else lambda: X
    case(f"weights: {claim}", given, plain, about=lambda: {"weights": weights()},
         plain_about={"weights": plain_weights}, **how)  # fmt: skip


weighted("array", lambda: WEIGHTS)
weighted("list", WEIGHTS.tolist, X.copy)
weighted("scipy csr", lambda: sparse.csr_matrix(WEIGHTS))
weighted("scipy coo array", lambda: sparse.coo_array(WEIGHTS), X.copy)
weighted("scipy dia array", lambda: sparse.dia_array(WEIGHTS), X.copy)
weighted("scipy with sparse data", lambda: sparse.csc_array(WEIGHTS), lambda: sparse.csr_array(SPARSE), plain=SPARSE)
weighted("scipy with Dask", lambda: sparse.csr_array(WEIGHTS), dask_array, words=("weights must", "toarray|dask"),
         **IN_BLOCKS)  # fmt: skip
weighted("pandas in another order", lambda: SHUFFLED)
weighted("pandas in another order, polars data", lambda: W_FRAME[OTHERS].reset_index(drop=True), polars)
weighted("pandas of other names", lambda: W_FRAME.rename(columns={"gene3": "x"}), words=MATCHED)
weighted("pandas of other samples", lambda: W_FRAME.rename(index={"cell3": "x"}), words=MATCHED)
weighted("pandas of two levels in another order", lambda: two_levels(W_FRAME).iloc[:, ORDER], two_levels)
weighted("pandas nullable in another order", lambda: SHUFFLED.astype("Float64"))
weighted("polars in another order", lambda: polars(WEIGHTS).select(OTHERS))
weighted("polars lazy in another order", lambda: polars(WEIGHTS).lazy().select(OTHERS), polars)
weighted("pyarrow in another order", lambda: arrow(WEIGHTS).select(OTHERS), arrow)
weighted("pyarrow of other names", lambda: arrow(WEIGHTS, [*NAMES[1:], "x"]), arrow, words=MATCHED)
weighted("xarray in another order", lambda: W_AIR.isel(gene=ORDER, cell=slice(None, None, -1)), AIR.copy)
weighted("xarray in another order, pandas data", lambda: W_AIR.isel(gene=ORDER))
weighted("xarray that is turned", W_AIR.transpose, AIR.copy, words=("dim", "transpose"))
weighted("xarray of some dimensions", lambda: W_AIR[0], AIR.copy, words=("weights must have", "\\(8,\\)|gene"))
weighted("dask frame in another order", lambda: dask_frame(W_FRAME)[OTHERS], dask_frame, words=MATCHED, **IN_BLOCKS)
weighted("pandas in another order with a Dask frame", lambda: W_FRAME[OTHERS], dask_frame, words=MATCHED, **IN_BLOCKS)
weighted("dask frame of other samples", lambda: dask_frame(W_FRAME.loc[OTHER_ROWS]), dask_frame,
         words=("samples|index", "order|names"), **IN_BLOCKS)  # fmt: skip
weighted("masked array", lambda: np.ma.masked_array(np.where(WEIGHTS == 0, 1e6, WEIGHTS), mask=WEIGHTS == 0))
weighted("torch bfloat16", lambda: torch.asarray(WEIGHTS).bfloat16(), lambda: torch.asarray(X),
         plain_weights=torch.asarray(WEIGHTS).bfloat16().double().numpy())  # fmt: skip
weighted("h5py dataset", lambda: hdf5()["X"], X.copy, plain_weights=X)
weighted("zarr group", zarr_group, X.copy, words=("weights must be", "group", "\\['X'\\]"))
weighted("one for each sample", lambda: WEIGHTS[:, 0], words=("weights must have the shape", "\\(24,\\)"))
weighted("stack", lambda: WEIGHTS.reshape(STACK.shape), words=("weights must have the shape", "\\(24, 2, 4\\)"))
weighted("path", lambda: str(FOLDER / "weights.csv"), words=("weights must be", "path|text|str", "read_table"))
weighted("anndata", lambda: cells(WEIGHTS), words=("weights must be", "AnnData", "to_df|\\.X"))

# --- Uncertainties ---------------------------------------------------------------------------------------------------

S_FRAME = pd.DataFrame(SIGMAS, index=ROWS, columns=NAMES)
S_AIR = AIR.copy(data=SIGMAS)


def uncertain(claim, sigmas, X=FRAME, **how):
    given = X if callable(X) else lambda: X
    case(f"uncertainties: {claim}", given, about=lambda: {"uncertainties": sigmas()},
         plain_about={"uncertainties": SIGMAS}, **how)  # fmt: skip


uncertain("array", lambda: SIGMAS)
uncertain("pandas in another order", lambda: S_FRAME.loc[OTHER_ROWS, OTHERS])
uncertain("pandas of other names", lambda: S_FRAME.rename(columns={"gene3": "x"}),
          words=("uncertainties must have", "[Rr]ename"))  # fmt: skip
uncertain("polars in another order", lambda: polars(SIGMAS).select(OTHERS), polars)
uncertain("polars lazy in another order", lambda: polars(SIGMAS).lazy().select(OTHERS), polars)
uncertain("pyarrow in another order", lambda: arrow(SIGMAS).select(OTHERS), arrow)
uncertain("pyarrow in another order, pandas data", lambda: arrow(SIGMAS).select(OTHERS))
uncertain("xarray in another order", lambda: S_AIR.isel(gene=ORDER, cell=slice(None, None, -1)), AIR.copy)
uncertain("xarray that is turned", S_AIR.transpose, AIR.copy, words=("dim", "transpose"))
uncertain("dask frame in another order", lambda: dask_frame(S_FRAME)[OTHERS], dask_frame,
          words=("uncertainties must have", "[Rr]ename|names"), **IN_BLOCKS)  # fmt: skip
uncertain("masked where data is there", lambda: np.ma.masked_array(SIGMAS, mask=WEIGHTS == 0),
          words=("(?i)uncertaint", "positive|finite|masked|NaN"), must_refuse=True)  # fmt: skip
uncertain("sparse", lambda: sparse.csr_matrix(np.where(WEIGHTS == 0, 0, SIGMAS)), X.copy,
          words=("(?i)uncertaint", "positive|sparse"), must_refuse=True)  # fmt: skip


BEFORE = """
A check passes if a fit and all other methods give what they give for the same numbers as a NumPy array, or if an error
says what is required, what was given and what to pass. The same run with the package before containers were looked at,
commit 8eb8fbd, passed 96 of 166: 51 ended in an error that did not say what to pass, 17 in a wrong result without a
word (14 ignored names in another order, two took dates for numbers, one ignored a mask), and 2 lost the container."""
PACKAGES = "numpy scipy pandas polars pyarrow xarray anndata zarr h5py dask torch jax"

if __name__ == "__main__":
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES.split())
    sys.exit(check.run("Containers of other packages", versions, "peers_containers", BEFORE) > 0)
