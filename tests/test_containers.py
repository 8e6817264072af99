"""Claims about containers: each gives what the same numbers give as an array, by name, or is refused in words."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest

from robustnmf import RobustNMF
from robustnmf.detectors import RobustNMFOutlierDetector
from robustnmf.formats.alignment import aligned_values
from robustnmf.selection import select_rank

pa = pytest.importorskip("pyarrow")
xr = pytest.importorskip("xarray")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

NAMES = ["Al", "Fe", "S", "Pb", "Zn"]
DAYS = [f"day {i}" for i in range(20)]
ORDER = [3, 0, 4, 2, 1]
RENAMED = [*NAMES[:4], "Cd"]
OTHERS = [NAMES[i] for i in ORDER]
_RNG = np.random.default_rng(0)
X = _RNG.random((20, 2)) @ _RNG.random((2, 5)) + 0.01 * _RNG.random((20, 5))
X[3, 2] = 9.0
WEIGHTS = np.where(_RNG.random(X.shape) < 0.2, 0.0, _RNG.uniform(0.5, 2.0, X.shape))
QUICK = {"max_iter": 5, "random_state": 0, "schedule": "plain"}


def arrow(values=X, names=NAMES):
    return pa.table(dict(zip(names, values.T, strict=True)))


def air(values=X):
    return xr.DataArray(values, dims=("day", "species"), coords={"day": DAYS, "species": NAMES}, attrs={"units": "ng"})


def frame(values=X, columns=NAMES):
    return pd.DataFrame(values, index=DAYS, columns=columns)


def lazy(values=X):
    return pl.DataFrame(values, schema=NAMES, orient="row").lazy()


def fitted(given=X, **arguments):
    with warnings.catch_warnings(action="ignore"):
        return RobustNMF(2, **QUICK).fit(given, **arguments)


@pytest.fixture(scope="module")
def model():
    return fitted()


def columns_of(table):
    return np.column_stack([column.to_numpy(zero_copy_only=False) for column in table.columns])


# --- Tables of pyarrow ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [arrow(), arrow().to_batches()[0]], ids=["table", "batch"])
def test_pyarrow_comes_back_as_pyarrow(model, given):
    ours = fitted(given)
    np.testing.assert_array_equal(ours.components_, model.components_)
    assert list(ours.feature_names_in_) == NAMES
    for method in ("clean", "outlier_mask"):
        found = getattr(ours, method)(given)
        assert type(found) is type(given) and found.schema.names == NAMES
        np.testing.assert_array_equal(columns_of(found), getattr(model, method)(X))


def test_pyarrow_columns_are_found_by_name(model):
    ours = fitted(arrow())
    found = ours.clean(arrow().select(OTHERS))
    assert found.schema.names == OTHERS
    np.testing.assert_array_equal(columns_of(found.select(NAMES)), model.clean(X))
    np.testing.assert_array_equal(ours.transform(arrow().select(OTHERS)), model.transform(X))
    with pytest.warns(UserWarning, match="not used, 1 in all: 'Cd'"):
        more = ours.clean(arrow().select(OTHERS).append_column("Cd", pa.array(np.ones(20))))
    assert more.equals(found)


def test_pyarrow_null_is_missing_and_single_precision_stays():
    gaps = X.copy()
    gaps[2, 3] = np.nan
    nulls = pa.table({name: pa.array(column, from_pandas=True) for name, column in zip(NAMES, gaps.T, strict=True)})
    assert nulls["Pb"].null_count == 1
    np.testing.assert_array_equal(fitted(nulls).components_, fitted(gaps).components_)
    assert fitted(arrow(X.astype(np.float32))).components_.dtype == np.float32


# --- Lazy frames of polars --------------------------------------------------------------------------------------------


def test_lazy_frames_are_collected_and_come_back_lazy(model):
    ours = fitted(lazy())
    np.testing.assert_array_equal(ours.transform(lazy()), model.transform(X))
    found = ours.clean(lazy())
    assert isinstance(found, pl.LazyFrame)
    np.testing.assert_array_equal(found.collect().to_numpy(), model.clean(X))
    assert isinstance(ours.outlier_mask(lazy().collect()), pl.DataFrame)
    with pytest.raises(ValueError, match="feature names should match"):
        ours.transform(lazy().select(OTHERS))


# --- Matrices of xarray -----------------------------------------------------------------------------------------------


def test_xarray_comes_back_with_its_coordinates(model):
    ours = fitted(air())
    found = ours.clean(air().isel(species=ORDER))
    assert found.dims == ("day", "species") and list(found["species"].values) == OTHERS and found.attrs["units"] == "ng"
    np.testing.assert_array_equal(found.sel(species=NAMES).values, model.clean(X))
    assert ours.outlier_mask(air()).dtype == bool and not ours.outlier_mask(air()).attrs


def test_xarray_that_is_turned_is_refused_also_without_coordinates():
    square = xr.DataArray(X[:5], dims=("day", "species"))
    ours = fitted(square)
    with pytest.raises(ValueError, match=r"second dimension of X must be 'species'.*transpose"):
        ours.transform(square.transpose())


# --- pandas -----------------------------------------------------------------------------------------------------------

LEVELS = pd.MultiIndex.from_product([["a"], NAMES])


@pytest.mark.parametrize("columns", [[400, 410, 420, 430, 440], LEVELS, range(5)], ids=["numbers", "levels", "default"])
def test_names_of_pandas_that_are_no_text_are_looked_at(model, columns):
    given = frame(columns=columns)
    moved, ours = given.iloc[:, ORDER], fitted(given)
    np.testing.assert_array_equal(ours.transform(moved), model.transform(X))
    found = ours.clean(moved)
    assert found.columns.equals(moved.columns) and found.index.equals(moved.index)
    np.testing.assert_array_equal(found[given.columns].to_numpy(), model.clean(X))


def test_repeated_names_are_taken_in_order_and_refused_in_another(model):
    given = frame(columns=["a", "a", "b", "c", "d"])
    ours = fitted(given)
    np.testing.assert_array_equal(ours.clean(given).to_numpy(), model.clean(X))
    with pytest.raises(ValueError, match="'a' repeat"):
        ours.transform(given.iloc[:, ORDER])


# --- Weights and uncertainties ----------------------------------------------------------------------------------------

NAMED = {
    "pandas": lambda values: frame(values).loc[DAYS[::-1], OTHERS],
    "polars": lambda values: lazy(values).select(OTHERS),
    "pyarrow": lambda values: arrow(values).select(OTHERS),
    "xarray": lambda values: air(values).isel(species=ORDER, day=slice(None, None, -1)),
    "xarray turned": lambda values: air(values).isel(species=ORDER).transpose(),
}


@pytest.mark.parametrize("what", ["weights", "uncertainties"])
@pytest.mark.parametrize("kind", NAMED)
def test_names_in_another_order_are_put_in_order(kind, what):
    values = WEIGHTS if what == "weights" else WEIGHTS + 0.1
    given = air() if kind.startswith("xarray") else frame()
    np.testing.assert_array_equal(aligned_values(NAMED[kind](values), what, given), values)
    ours, theirs = fitted(given, **{what: NAMED[kind](values)}), fitted(X, **{what: values})
    np.testing.assert_array_equal(ours.components_, theirs.components_)
    found, expected = (m.outlier_mask(x, **{what: w}) for m, x, w in
                       ((ours, given, NAMED[kind](values)), (theirs, X, values)))  # fmt: skip
    np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize(
    "weights",
    [frame(WEIGHTS, RENAMED), arrow(WEIGHTS, RENAMED), air(WEIGHTS).assign_coords(species=RENAMED)],
    ids=["pandas", "pyarrow", "xarray"],
)
def test_other_names_are_refused(weights):
    with pytest.raises(ValueError, match=r"weights must have the features of X.*Rename"):
        fitted(frame(), weights=weights)


def test_masked_uncertainties_are_unknown():
    with pytest.raises(ValueError, match=r"uncertainties must be positive.*got nan"):
        fitted(uncertainties=np.ma.masked_array(WEIGHTS + 0.1, X == 9.0))


# --- Frames of Dask ---------------------------------------------------------------------------------------------------


def test_columns_and_index_of_dask_frames_are_looked_at():
    dd = pytest.importorskip("dask.dataframe")

    def dask(table, npartitions=2):
        return dd.from_pandas(table, npartitions=npartitions, sort=False)

    given, weights = dask(frame()), frame(WEIGHTS)
    found = aligned_values(dask(weights[OTHERS]), "weights", given)
    np.testing.assert_array_equal(found.compute().to_numpy(), WEIGHTS)
    np.testing.assert_array_equal(aligned_values(weights.loc[DAYS[::-1], OTHERS], "weights", given), WEIGHTS)
    with pytest.raises(ValueError, match="in the same order; they are in another one"):
        aligned_values(dask(weights.loc[DAYS[::-1]]), "weights", given)
    # Files that Dask reads are numbered from 0 on in each partition: these are no names.
    numbered = dd.concat([dask(pd.DataFrame(rows, columns=NAMES), 1) for rows in (X[:8], X[8:])])
    np.testing.assert_array_equal(aligned_values(weights[OTHERS], "weights", numbered), WEIGHTS)
    ours = fitted(frame())
    with pytest.raises(ValueError, match=r"another order\. X\[list\(model.feature_names_in_\)\]"):
        ours.transform(given[OTHERS])


def test_names_of_frames_that_are_streamed_are_looked_at(model):
    ours = RobustNMF(2, **QUICK | {"engine": "stream"}).fit(frame())
    assert list(ours.feature_names_in_) == NAMES
    np.testing.assert_allclose(ours.transform(frame()), model.transform(X), rtol=1e-6)
    with pytest.raises(ValueError, match="in the same order; they are in another order"):
        ours.clean(frame()[OTHERS])


# --- Narrow floats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_bfloat16_is_worked_on_in_single_precision(sparse):
    torch = pytest.importorskip("torch")
    narrow = torch.asarray(X).bfloat16()
    expected = fitted(narrow.float().numpy())
    given = narrow.to_sparse() if sparse else narrow
    ours = fitted(given, weights=torch.ones(X.shape, dtype=torch.bfloat16))
    np.testing.assert_allclose(ours.components_, expected.components_, rtol=1e-5)
    codes = ours.transform(given)
    assert codes.dtype == torch.float32
    product = ours.inverse_transform(codes.bfloat16())
    np.testing.assert_allclose(product, codes.bfloat16().float().numpy() @ ours.components_, rtol=1e-5)


# --- What is refused --------------------------------------------------------------------------------------------------


class AnnData(SimpleNamespace):
    """An object that has the name of AnnData's."""


AnnData.__module__ = "anndata._core.anndata"


def zarr_group():
    group = pytest.importorskip("zarr").group()
    group.create_array("counts", data=X)
    return group


STACK = X.reshape(4, 5, 5)
REFUSED = {
    "stack": (lambda: STACK, r"two dimensions.*got 3.*\(4, 5, 5\).*reshape"),
    "stack of lists": (STACK.tolist, r"two dimensions.*got 3"),
    "cube of xarray": (lambda: xr.DataArray(STACK), "factorise_xarray"),
    "dataset of xarray": (lambda: air().to_dataset("species"), "got Dataset.*to_dataarray"),
    "AnnData": (lambda: AnnData(X=X), r"got AnnData\. Pass adata\.X.*to_df.*factorise_anndata"),
    "group of zarr": (zarr_group, r"got a group, with counts\. Take what is in it: X\['counts'\]"),
    "path": (lambda: "data.csv", "got str 'data.csv'.*read_table"),
    "generator": (lambda: iter(X), "numpy.stack"),
    "records": (lambda: [{"a": 1.0}], "got list of dict.*DataFrame"),
    "reader of pyarrow": (lambda: arrow().to_reader(), "read_all"),
    "column of pyarrow": (lambda: arrow().set_column(1, "Fe", pa.array(["x"] * 20)), "column 'Fe' has the type string"),
    "column of pandas": (lambda: frame().assign(Fe="x"), "column 'Fe' has the type.*convert it to numbers"),
    "column of polars": (lambda: lazy().with_columns(Fe=pl.lit("x")), "column 'Fe' has the type String"),
    "times": (lambda: frame().assign(Fe=pd.Timestamp("2024-01-01")), "column 'Fe' has the type datetime64"),
    "times of polars": (
        lambda: lazy().with_columns(Fe=pd.Timestamp("2024-01-01")),
        "column 'Fe' has the type Datetime",
    ),
    "rows of several lengths": (lambda: [[1.0, 2.0], [3.0]], "rows have different lengths"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_matrix_of_numbers_is_refused_with_advice(case):
    make, words = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=rf"(?s)X must .*{words}"):
        fitted(make())


def test_weights_in_a_group_or_file_are_refused_with_advice():
    for weights, words in ((zarr_group(), r"weights\['counts'\]"), ("w.csv", "read_table"), (AnnData(), "to_df")):
        with pytest.raises(TypeError, match=rf"weights must be a matrix.*{words}"):
            fitted(weights=weights)


# --- Other estimators -------------------------------------------------------------------------------------------------


def test_the_detector_and_the_choice_of_a_rank_take_them_too():
    with warnings.catch_warnings(action="ignore"):
        expected = RobustNMFOutlierDetector(2, random_state=0).fit(X)
        ours = RobustNMFOutlierDetector(2, random_state=0).fit(arrow())
        scores = [select_rank(x, [1, 2], random_state=0, n_splits=2).scores for x in (X, air(), lazy())]
    np.testing.assert_array_equal(ours.score_samples(arrow().select(OTHERS)), expected.score_samples(X))
    for found in scores[1:]:
        np.testing.assert_array_equal(found, scores[0])
