"""Containers of other packages: those whose names would be lost become a `LabelledMatrix`, and results go back.

Arrays, sparse matrices, and data frames of pandas and polars with texts for names are left as they are: scikit-learn
checks these. What cannot be taken for a matrix is refused by an error that says what to pass. None of the packages is
imported here, but by a caller who has passed one of their objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array

from robustnmf.formats.errors import shortened
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix
from robustnmf.formats.registry import rows_of
from robustnmf.utils.arrays import without_narrow_floats
from robustnmf.utils.extras import optional

_MATRIX = "must be a matrix of samples and features, such as a NumPy array or a data frame"
_TIMES = "times are no numbers"
_STACK = (
    "For a stack of images, X.reshape(len(X), -1) makes each image a sample; for a cube whose last axis is a spectrum, "
    "X.reshape(-1, X.shape[-1]) makes each pixel one. robustnmf.labelled.factorise_xarray takes arrays with named "
    "dimensions, and robustnmf.formats.read_table files of either."
)


def taken_in(values: Any, name: str) -> Any:
    """Return data, weights or uncertainties in a container that all of this package knows.

    Parameters
    ----------
    values : any
        What the user has passed. None stays None, but for X.
    name : str
        "X", "weights" or "uncertainties".

    Returns
    -------
    LabelledMatrix, data frame, array, rows on disk, or anything that NumPy may take for an array
        Tables of pyarrow, matrices of xarray, and frames of pandas whose names scikit-learn would not look at are a
        `LabelledMatrix`; a lazy frame of polars is collected; floats of 16 bits and less that NumPy does not know are
        of single precision.

    Raises
    ------
    TypeError, ValueError
        If it is no matrix; the error says what to pass.
    """
    if values is None and name != "X":
        return None
    _refuse_what_is_no_matrix(values, name)
    if _is(values, "polars", "LazyFrame"):
        values = values.collect()
    if _is(values, "pyarrow", "Table", "RecordBatch"):
        return _of_arrow(values, name)
    if _is(values, "xarray", "DataArray"):
        return _of_xarray(values, name)
    if _is(values, "pandas", "DataFrame") or _is(values, "polars", "DataFrame"):
        _refuse_times(values, name)
    if _is(values, "pandas", "DataFrame") and _hides_names(values):
        return LabelledMatrix(_numbers_of_frame(values, name), *axes_of_frame(values))
    if name == "X":
        _refuse_more_dimensions(values)
    return without_narrow_floats(values)


def _is(values: Any, package: str, *types: str) -> bool:
    """Return whether an object is of one of these types of a package, which need not be installed."""
    return any(
        kind.__name__ in types and kind.__module__.split(".")[0].removeprefix("_") == package
        for kind in type(values).__mro__
    )


# --- What is refused --------------------------------------------------------------------------------------------------


def _refuse_what_is_no_matrix(values: Any, name: str) -> None:
    """Raise TypeError for what is known to hold a matrix, but is none."""
    got, advice = _object_of_package(values, name) or _object_of_python(values, name) or ("", "")
    if advice:
        raise TypeError(f"{name} {_MATRIX}; got {got}. {advice}")


def _object_of_package(values: Any, name: str) -> tuple[str, str] | None:
    """Return what an object of another package is, and what to pass in its place; None if it may be a matrix."""
    kind = type(values).__name__
    if _is(values, "anndata", "AnnData"):
        takes_all = "; robustnmf.labelled.factorise_anndata takes the object, also one that is backed by a file"
        return kind, f"Pass adata.X, or adata.to_df(), which keeps the names{takes_all if name == 'X' else ''}."
    if _is(values, "xarray", "Dataset"):
        return kind, f"Take one variable, or all by {name}.to_dataarray()."
    if _is(values, "pyarrow", "RecordBatchReader"):
        return kind, f"Pass {name}.read_all()."
    if _is_group(values) or _is(values, "numpy", "NpzFile"):
        held = sorted(shortened(str(key)) for key in values)
        what = "a group" if _is_group(values) else "an archive of NumPy"
        got = f"{what}, with {', '.join(held[:5]) or 'nothing in it'}"
        return got, f"Take what is in it: {name}[{held[0]!r}]." if held else "Pass an array."
    return None


def _object_of_python(values: Any, name: str) -> tuple[str, str] | None:
    """Return what an object of Python is, and what to pass in its place; None if it may be a matrix."""
    kind = type(values).__name__
    if values is None:
        return kind, "Pass the data."
    if isinstance(values, str | bytes | os.PathLike):
        got = f"{kind} {shortened(str(values))!r}"
        return got, "If it is the path of a file, pass robustnmf.formats.read_table(path)."
    if isinstance(values, Mapping) and not _is_stored_sparsely(values):
        return kind, f"pandas.DataFrame({name}) makes a data frame of columns."
    if isinstance(values, Iterator):
        return kind, "numpy.stack(list(rows)) makes an array of rows."
    if isinstance(values, Set | type | FunctionType | BuiltinFunctionType):
        return kind, "Pass an array."
    if isinstance(values, list | tuple) and values and isinstance(values[0], Mapping):
        got = f"{kind} of {type(values[0]).__name__}"
        return got, f"pandas.DataFrame({name}) makes a data frame of records."
    return None


def _is_group(values: Any) -> bool:
    """Return whether an object is a group of HDF5 or zarr that does not stand for one matrix."""
    is_group = _is(values, "h5py", "Group") or _is(values, "zarr", "Group")
    return is_group and not _is_stored_sparsely(values)


def _is_stored_sparsely(values: Any) -> bool:
    """Return whether a mapping is a matrix: a dictionary of keys of SciPy, or a group that AnnData has written."""
    return bool(sparse.issparse(values)) or rows_of(values) is not None


def _refuse_more_dimensions(X: Any) -> None:
    """Raise ValueError for a stack; scikit-learn says what to do with one dimension or none."""
    known = getattr(X, "shape", ())
    shape = tuple(known) if isinstance(known, tuple) else ()  # what is delayed has all attributes, delayed
    if isinstance(X, list | tuple):  # not all of a long list is made an array for that
        shape = (len(X), *np.shape(X[0])) if X and not _is_ragged(X[0]) else ()
    if len(shape) > 2:
        raise ValueError(
            f"X must have two dimensions, samples and features; got {len(shape)}, the shape is {shape}. {_STACK}"
        )


def _is_ragged(row: Any) -> bool:
    """Return whether a row of a list holds sequences of several lengths, of which NumPy makes no array."""
    try:
        np.shape(row)
    except (TypeError, ValueError):
        return True
    return False


def not_numbers(values: Any, name: str, error: Exception) -> Exception:
    """Return an error that says what must be passed in place of values that NumPy cannot make numbers of.

    Parameters
    ----------
    values : any
        The values. The column of a data frame that is wrong is named.
    name : str
        "X", "weights" or "uncertainties".
    error : Exception
        What NumPy says.
    """
    if isinstance(values, list | tuple) and "inhomogeneous" in str(error):
        problem, advice = "rows have different lengths", "Make them equally long; NaN means missing."
        return ValueError(f"{name} must be a matrix; {problem} ({_first_line(error)}). {advice}")
    if hasattr(values, "columns"):
        for place, title in enumerate(values.columns):
            column = values.iloc[:, place] if hasattr(values, "iloc") else values[title]
            reason = _reason(column)
            if reason is not None:
                return _wrong_column(column, name, str(title), reason)
    words = f"{name} must hold numbers; {_first_line(error)}. Drop what is none, or convert it"
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"{words}.")


def _refuse_times(frame: Any, name: str) -> None:
    """Raise TypeError if a column of pandas or polars holds times, which may be taken for large numbers in silence."""
    for place, (title, dtype) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        if _is_time(dtype):
            column = frame.iloc[:, place] if hasattr(frame, "iloc") else frame[title]
            raise _wrong_column(column, name, str(title), TypeError(_TIMES))


def _is_time(dtype: Any) -> bool:
    """Return whether a type of NumPy, pandas or polars is one of dates, times or durations."""
    return getattr(dtype, "kind", "") in ("m", "M") or bool(getattr(dtype, "is_temporal", lambda: False)())


def _reason(column: Any) -> Exception | None:
    """Return why a column does not hold numbers; None if it does."""
    try:
        np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError) as error:
        return error
    return None


def _wrong_column(column: Any, name: str, title: str, error: Exception) -> Exception:
    dtype = getattr(column, "dtype", getattr(column, "type", "unknown"))
    problem = f"column {shortened(title)!r} has the type {dtype} ({_first_line(error)})"
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{name} must hold numbers; {problem}. Drop it, or convert it to numbers.")


def _first_line(error: Exception) -> str:
    return shortened(str(error).strip().splitlines()[0].rstrip("."), 200) if str(error).strip() else "no reason given"


# --- What becomes a labelled matrix -----------------------------------------------------------------------------------


def _of_arrow(table: Any, name: str) -> LabelledMatrix:
    """Return a table or a batch of pyarrow; null is NaN."""
    names = [str(title) for title in table.schema.names]
    columns = [_arrow_column(column, name, title) for column, title in zip(table.columns, names, strict=True)]
    is_single = bool(columns) and all(column.dtype == np.float32 for column in columns)
    values = np.empty((table.num_rows, len(columns)), np.float32 if is_single else np.float64)
    for place, column in enumerate(columns):
        values[:, place] = column
    return LabelledMatrix(values, features=Axis(names))


def _arrow_column(column: Any, name: str, title: str) -> NDArray[Any]:
    try:
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind in "mM":
            raise TypeError(_TIMES)
        return np.asarray(values, np.float32 if values.dtype == np.float32 else np.float64)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _wrong_column(column, name, title, error) from error


def _of_xarray(array: Any, name: str) -> LabelledMatrix:
    """Return a matrix of xarray; its coordinates are names, and its dimensions titles."""
    if array.ndim != 2:
        adapter = "robustnmf.labelled.factorise_xarray(X, sample_dims) takes others: name those that are samples."
        advice = adapter if name == "X" else f"Broadcast it: {name}.broadcast_like(X)."
        raise ValueError(
            f"{name} must have two dimensions, samples and features; got {array.ndim}, {tuple(array.dims)} of shape "
            f"{tuple(array.shape)}. {advice}"
        )
    samples, features = (_xarray_axis(array, dim) for dim in array.dims)
    return LabelledMatrix(without_narrow_floats(np.asarray(array.values)), samples, features)


def _xarray_axis(array: Any, dim: Any) -> Axis:
    names = labels_of(array.indexes[dim]) if dim in array.indexes else None
    return Axis(names, None if str(dim).startswith("dim_") else str(dim))


def axes_of_frame(frame: Any) -> tuple[Axis, Axis]:
    """Return the names of samples and features of a data frame of pandas."""
    return Axis(labels_of(frame.index)), Axis(labels_of(frame.columns))


def labels_of(index: Any) -> list[str]:
    """Return the labels of an index of pandas as texts: dates as in files that pandas writes."""
    if getattr(index, "nlevels", 1) > 1:
        return [" / ".join(map(str, label)) for label in index]
    is_date = getattr(index.dtype, "kind", "") == "M"
    return [str(label) for label in (index.astype(str) if is_date else index)]


def is_numbered(names: Sequence[str]) -> bool:
    """Return whether names are numbers from 0 on, which pandas gives to what has none."""
    return all(name == str(place) for place, name in enumerate(names))


def _hides_names(frame: Any) -> bool:
    """Return whether columns have names that scikit-learn does not look at, or refuses: no texts, or not unique."""
    columns = frame.columns
    if not len(columns) or is_numbered([str(label) for label in columns]):
        return False
    return not columns.is_unique or not any(isinstance(label, str) for label in columns)


def _numbers_of_frame(frame: Any, name: str) -> NDArray[Any]:
    plain = frame.set_axis(range(frame.shape[1]), axis=1)
    try:
        numbers: NDArray[Any] = check_array(
            plain, dtype=(np.float64, np.float32), ensure_all_finite=False, ensure_min_samples=0, input_name=name
        )
    except (TypeError, ValueError) as error:
        raise not_numbers(frame, name, error) from error
    return numbers


# --- What goes back ---------------------------------------------------------------------------------------------------


def put_into(given: Any, results: LabelledMatrix) -> Any:
    """Return results for some or all features of data in the container that the data was given in.

    Parameters
    ----------
    given : any
        What `taken_in` has made a `LabelledMatrix` of.
    results : LabelledMatrix
        Values of its samples, of features in its order.
    """
    values = results.values
    if _is(given, "pyarrow", "Table", "RecordBatch"):
        return type(given).from_arrays(
            [_contiguous(column) for column in values.T], names=list(results.feature_names or ())
        )
    kept = _places(given, results)
    if _is(given, "xarray", "DataArray"):
        chosen = given if kept is None else given.isel({given.dims[1]: kept})
        attributes = given.attrs if values.dtype != bool else {}
        return type(given)(values, coords=chosen.coords, dims=chosen.dims, name=given.name, attrs=attributes)
    columns = given.columns if kept is None else given.columns[kept]
    return type(given)(values, index=given.index, columns=columns)


def _contiguous(column: NDArray[Any]) -> Any:
    return optional("pyarrow", "io").array(np.ascontiguousarray(column))


def _places(given: Any, results: LabelledMatrix) -> list[int] | None:
    """Return which features of the data results are for; None for all."""
    if results.shape[1] == given.shape[1]:
        return None
    known = set(results.feature_names or ())
    named = _xarray_axis(given, given.dims[1]) if hasattr(given, "dims") else axes_of_frame(given)[1]
    return [place for place, name in enumerate(named.names or ()) if name in known]
