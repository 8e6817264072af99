"""Checks of what the user passes: values, weights, uncertainties, rank; every error says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from robustnmf.data.sparse import canonical, checked, is_sparse
from robustnmf.data.uncertainties import is_observed
from robustnmf.engines import Engine, TileEngine
from robustnmf.engines.protocol import block_function
from robustnmf.errors import LARGEST_CODE, SMALLEST_UNCERTAINTY, IncompatibleError, uncertainty_error
from robustnmf.formats.alignment import axes_of, known_names, place_of, values_of
from robustnmf.formats.containers import not_numbers
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.formats.registry import rows_of
from robustnmf.formats.rows import FloatRows
from robustnmf.formats.sparse_rows import Pattern, SparseRows, StoredSparsely
from robustnmf.utils.arrays import Array, Blocks, Namespace, device, to_host
from robustnmf.utils.entries import Entries
from robustnmf.utils.user_warnings import warn_user

Matrix = NDArray[Any]

# A negative value that stands for missing is there so often.
FEWEST_CODES = 2


# --- Arguments in memory ----------------------------------------------------------------------------------------------


def check_matrix(estimator: Any, X: Any, engine: Engine, *, reset: bool) -> Array:
    """Return X as a floating matrix where the engine works; entries are not looked at yet.

    A `LabelledMatrix` has the features of the estimator, in its order, see `robustnmf.formats.alignment`.
    """
    names = None
    if isinstance(X, LabelledMatrix):
        X, names = X.values, X.feature_names
    tensor = engine.from_dlpack(X)
    if tensor is not None:  # it is there already, and scikit-learn's checks would take it to the host and back
        if tensor.ndim != 2 or not all(tensor.shape):
            raise ValueError(
                f"X must be a matrix of samples and features, neither empty; its shape is {tuple(X.shape)}."
            )
        validate_data(estimator, tensor, reset=reset, skip_check_array=True)
        return tensor
    return _placed(
        _check_host_matrix(estimator, X, names, reset=reset, by_tiles=isinstance(engine, TileEngine)), engine
    )


def check_sparse(estimator: Any, X: Any) -> Any:
    """Return a sparse matrix that is to be learnt from by rows, without duplicates, of floating numbers."""
    return canonical(_check_host_matrix(estimator, X, None, reset=True))


def _check_host_matrix(estimator: Any, X: Any, names: Any, *, reset: bool, by_tiles: bool = False) -> Any:
    X = to_host(X)
    _refuse_types(X, "X")
    if isinstance(X, np.ma.MaskedArray):
        X = np.ma.filled(X.astype(np.float64 if X.dtype.kind in "iub" else X.dtype), np.nan)
    if is_sparse(X):
        X = checked(X)  # before anything is converted: that would follow wrong indices
    return _checked_by_sklearn(estimator, X, names, reset=reset, by_tiles=by_tiles)


def _checked_by_sklearn(estimator: Any, X: Any, names: Any, *, reset: bool, by_tiles: bool = False) -> Any:
    """Return X as a floating matrix; an estimator that learns learns the number of features, and their names.

    By tiles, X of any type and order remains what it is: each becomes a floating block where it is worked on.
    """
    options: dict[str, Any] = {"accept_sparse": ("csr", "csc"), "dtype": (np.float64, np.float32), "order": "C"}
    options |= {"dtype": "numeric", "order": None} if by_tiles and not is_sparse(X) else {}
    options |= {"ensure_all_finite": False, "ensure_min_features": 1}
    if names is not None and not reset and hasattr(estimator, "feature_names_in_"):
        with _numbers_expected(X, "X"):
            return check_array(X, estimator=estimator, **options)  # names that are aligned need no check
    try:
        with _numbers_expected(X, "X"):
            X = validate_data(estimator, X, reset=reset, **options)
    except ValueError as error:
        if "feature names should match" not in str(error):
            raise
        advice = "X[list(model.feature_names_in_)] of pandas has the columns of the fit, in its order."
        raise ValueError(f"{error}{advice}") from None
    if reset and names is not None:
        estimator.feature_names_in_ = np.array(list(names), dtype=object)
    return X


def check_like(values: Any, name: str, X: Array, engine: Engine) -> Array | None:
    """Return the "weights" or "uncertainties" of all entries of X as a matrix where the engine works; None for None."""
    if values is None:
        return None
    given = engine.from_dlpack(values)
    if given is None:
        values = to_host(values)
        _refuse_types(values, name)
        if isinstance(values, np.ma.MaskedArray):  # what is masked does not count, and its uncertainty is unknown
            values = values.filled(0) if name == "weights" else np.ma.filled(values.astype(np.float64), np.nan)
        if is_sparse(values):
            values = checked(values, name)
        any_shape: dict[str, Any] = {"ensure_2d": False, "allow_nd": True, "ensure_min_samples": 0}
        is_finite = name == "weights"  # the uncertainty of a missing entry is unknown
        options = any_shape | {"accept_sparse": "csr", "ensure_all_finite": is_finite, "input_name": name}
        by_tiles = isinstance(engine, TileEngine) and not is_sparse(values)
        with _numbers_expected(values, name):
            values = check_array(values, dtype="numeric" if by_tiles else np.float64, **options)
        check_shape(values, name, X)
        given = _placed(values, engine)
        return FloatRows(given) if by_tiles else given
    check_shape(given, name, X)
    return given


def check_shape(values: Any, name: str, X: Any) -> None:
    """Refuse weights or uncertainties that do not have the shape of X."""
    if tuple(values.shape) != tuple(X.shape):
        raise ValueError(f"{name} must have the shape of X, {tuple(X.shape)}; got {tuple(values.shape)}.")


def weights_of_stored(X: Any, weights: Any) -> Any:
    """Return weights of the stored entries of a sparse matrix, 1 or what is given, as a sparse matrix.

    Explicit zeros are stored entries like others.
    """
    rows = rows_of(X)
    if isinstance(rows, StoredSparsely):
        if weights is not None:
            raise IncompatibleError(
                "zeros='missing' of sparse data in a file leaves no room for weights: take X into memory, or pass "
                "weights that are 0 where nothing is stored, with zeros='data'."
            )
        return Pattern(rows)
    X = to_host(values_of(X))
    if not is_sparse(X):
        raise TypeError(
            f"zeros='missing' is for sparse matrices, of which entries that are not stored are missing; got "
            f"{type(X).__name__}. Set missing entries to NaN, or convert X by scipy.sparse.csr_array."
        )
    X = canonical(X)
    stored = sparse.csr_array((np.ones(X.nnz), X.indices, X.indptr), shape=X.shape)
    if weights is None:
        return stored
    check_shape(weights if hasattr(weights, "shape") else np.asarray(weights), "weights", X)
    if is_sparse(weights):
        weights = checked(weights, "weights")
    return stored.multiply(weights).tocsr()


def check_rank(n_components: Any, X: Any, name: str, *, may_exceed: bool = False) -> int:
    """Return the rank as an int, or say which ranks the data allows.

    Ranks above the smaller side of the data cannot be told from it; with `may_exceed`, a fit is up to the user and has
    at most as many components as there are entries.
    """
    limit = X.shape[0] * X.shape[1] if may_exceed else min(X.shape)
    is_integer = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool)
    if not is_integer or not 1 <= n_components <= limit:
        raise ValueError(
            f"n_components of {name} must be an integer in [1, {limit}] for data with n_samples={X.shape[0]} and "
            f"n_features={X.shape[1]}; got {n_components!r}."
        )
    return int(n_components)


def check_components(components: Any, n_features: int, dtype: Any, rank: int) -> Matrix:
    """Return known components, (n_fixed, n_features), on the host; none for None."""
    if components is None:
        return np.empty((0, n_features), dtype=dtype)
    known: Matrix = check_array(to_host(components), dtype=dtype, input_name="fixed_components", copy=True)
    if known.shape[1] != n_features:
        raise ValueError(f"fixed_components must have {n_features} columns, one per feature; got {known.shape[1]}.")
    if len(known) > rank:
        raise ValueError(f"fixed_components must be at most n_components={rank}; got {len(known)}.")
    if known.min() < 0:
        raise ValueError(f"fixed_components must be non-negative; the smallest entry is {known.min()}.")
    return known


def _refuse_types(values: Any, name: str) -> None:
    """Refuse complex numbers, records, and times, which NumPy would take for numbers of nanoseconds."""
    dtype = getattr(values, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return
    must = f"{name} must hold numbers"
    if dtype.kind in "mM":
        raise TypeError(f"{must}; got {dtype}. Convert times to numbers in a unit of your choice.")
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {must} that are real; got {dtype}. Pass the magnitude, abs(X).")
    if dtype.names is not None:
        raise TypeError(
            f"{must}; got records with the fields {', '.join(dtype.names[:5])}. Convert them: "
            "numpy.lib.recfunctions.structured_to_unstructured(X)."
        )


# What scikit-learn and NumPy say of entries that are no numbers.
_NOT_NUMBERS = (
    "could not convert",
    "must be a string or a real number",
    "could not be promoted",
    "setting an array element with a sequence",
)


@contextmanager
def _numbers_expected(values: Any, name: str) -> Iterator[None]:
    """Say what must be passed, and which column is wrong, where an error of NumPy says what it cannot convert."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not any(words in str(error) for words in _NOT_NUMBERS):
            raise
        raise not_numbers(values, name, error) from error


def _placed(X: Any, engine: Engine) -> Any:
    """Return a checked matrix where the engine works: a sparse one as rows or, as its zeros count, as a dense array."""
    if not is_sparse(X):
        return engine.to_device(X)
    try:
        return engine.to_device(SparseRows(canonical(X)))
    except MemoryError as error:
        size = X.shape[0] * X.shape[1] * X.dtype.itemsize / 2**30
        raise MemoryError(
            f"A robust fit gives every entry of X a weight, zeros included, so a sparse X of shape {X.shape} is worked "
            f"on densely and needs {size:.1f} GiB. Use engine='sparse', select features or samples, or use float32."
        ) from error


# --- Entries, block by block ------------------------------------------------------------------------------------------


class Survey(NamedTuple):
    """What one look at all entries tells."""

    seen: Matrix
    """Observed entries of each feature, (m,)."""
    n_missing: int
    """Entries that are NaN or have weight zero."""
    largest_weight: float
    """The largest weight that the user gave, 1 if there are none or all are zero."""
    empty_samples: NDArray[np.intp]
    """Samples of which nothing is observed."""


def survey(
    X: Blocks,
    weights: Blocks | None,
    uncertainties: Blocks | None,
    engine: Engine,
    name: str,
    *,
    labelled: Any = None,
    training: bool,
) -> Survey:
    """Look at all entries once, and refuse data that cannot be worked on.

    Parameters
    ----------
    X, weights, uncertainties : blocks, (n, m) in all.
    name : str
        Name of the estimator.
    labelled : LabelledMatrix, data frame or other
        Tells the names of samples and features.
    training : bool
        Whether data is to be learnt from: then some entry must be observed.
    """
    given = (X, weights, uncertainties)
    problems = [problem for problem, of in _PROBLEMS.items() if given[of] is not None]
    (found, empty), seen = engine.map_and_sum(_look, *given, problems=problems)
    n_missing, largest, *counts = to_host(engine.join(found)).T
    for problem, count in zip(problems, counts, strict=True):
        if count.any():
            raise _error(problem, count, given, engine, name, labelled)
    largest_weight = float(largest.max())
    if training and largest_weight == 0:
        raise ValueError("weights must not all be zero: no entry of X would count.")
    seen = to_host(seen)
    if training and not seen.any():
        size = int(n_missing.sum())
        raise ValueError(f"{name} needs at least one observed entry; all {size} entries of X are missing (NaN).")
    samples = np.flatnonzero(to_host(engine.join(empty))) if n_missing.any() else np.empty(0, dtype=np.intp)
    return Survey(seen, int(n_missing.sum()), largest_weight or 1.0, samples)


def warn_of_empty(found: Survey, name: str, labelled: Any = None, *, training: bool = True) -> None:
    """Warn of samples and, in training, features that hold nothing: their codes and components will be zero.

    Parameters
    ----------
    labelled : LabelledMatrix, data frame or other
        Tells the names of samples and features.
    """
    features = np.flatnonzero(found.seen == 0)
    empty = (found.empty_samples, "sample", "codes"), (features, "feature", "components")
    for (places, what, result), axis in zip(empty, axes_of(labelled), strict=True):
        if places.size and (training or what == "sample"):
            names = known_names(axis)
            called = [str(place) if names is None else repr(names[place]) for place in places[:5]]
            more = ", ..." if places.size > 5 else ""
            warn_user(
                f"{name}: {places.size} {what}(s) have no observed entry ({what} {', '.join(called)}{more}); their "
                f"{result} are set to zero, and `clean` leaves them missing. Drop them to silence this warning."
            )


# What can be wrong with entries, and with which matrix: the data, the weights or the uncertainties.
_PROBLEMS = {
    "weights must be finite": 1,
    "weights must be non-negative": 1,
    "Infinite values": 0,
    "Negative values": 0,
    "uncertainties": 2,
}
_ADVICE = {
    "Infinite values": "Replace infinity by NaN if it means missing.",
    "Negative values": "Shift or clip the data, or set them to NaN if they are missing; for files, "
    "set negative to 'clip' or 'missing' when they are read.",
}


def _look_at_stored(Y: Entries, weights: None, uncertainties: None, *, problems: list[str], xp: Namespace) -> Any:
    """Return the same of a block whose zeros are not stored; there is nothing wrong with zeros."""
    if np.isnan(Y.values).any():
        return NotImplemented
    (row, _), _ = _look(Y.values[None, :], None, None, problems=problems, xp=xp)
    return (row, np.zeros(len(Y), dtype=bool)), np.full(Y.n_columns, len(Y))


@block_function(on_host=True, stored=_look_at_stored)
def _look(
    Y: Array, weights: Array | None, uncertainties: Array | None, *, problems: list[str], xp: Namespace
) -> tuple[tuple[Array, Array], Array]:
    """Return numbers about a block, (1, k), and which samples are empty, (B,); and the observed entries of features.

    The numbers are how many entries are missing, the largest weight, and how many entries have each of the problems.
    """
    observed = is_observed(Y, weights, xp)
    seen = xp.count_nonzero(observed, axis=0)
    n_missing = Y.shape[0] * Y.shape[1] - xp.sum(seen)
    largest = xp.ones_like(n_missing) if weights is None else xp.max(weights)
    given = (Y, weights, uncertainties)
    counts = [xp.count_nonzero(_wrong(problem, given[_PROBLEMS[problem]], observed, xp)) for problem in problems]
    row = xp.stack([xp.asarray(number, dtype=xp.float64, device=device(Y)) for number in (n_missing, largest, *counts)])
    return (row[None, :], ~xp.any(observed, axis=1)), seen


def _wrong(problem: str, values: Array, observed: Array, xp: Namespace) -> Array:
    """Return where values have a problem, (B, m) of bool."""
    if problem == "weights must be finite":
        return ~xp.isfinite(values)
    if problem == "weights must be non-negative":
        return values < 0
    if problem == "Infinite values":
        return xp.isinf(values) & observed
    if problem == "Negative values":
        return (values < 0) & observed
    usable = (values > SMALLEST_UNCERTAINTY) & (values < 1 / SMALLEST_UNCERTAINTY)
    return ~usable & observed


def _error(
    problem: str, counts: Matrix, given: tuple[Any, ...], engine: Engine, name: str, labelled: Any
) -> ValueError:
    """Return the error for a problem that so many entries of each block have; it names the first."""
    block = int(np.flatnonzero(counts)[0])
    one = [None if blocks is None else blocks[block : block + 1] for blocks in given]
    position, value = (to_host(engine.join(found))[0] for found in engine.map(_first, *one, problem=problem))
    lengths, n_features = [len(rows) for rows in given[0]], given[0][0].shape[1]
    row, column = divmod(int(position), n_features)
    row += sum(lengths[:block])
    if problem == "uncertainties":
        return uncertainty_error(float(value), place_of(labelled, row, column))
    place = f"{float(value)} at {place_of(labelled, row, column)}"
    if problem not in _ADVICE:
        return ValueError(f"{problem}; got {place}. Use 0 for entries that should not count.")
    return ValueError(
        f"{problem} in data passed to {name}: X must be finite and non-negative (NaN means missing, inf is not "
        f"allowed); {int(counts.sum())} of {sum(lengths) * n_features} entries are not, the first is {place}. "
        f"{_repeated(problem, one, given, engine)}{_ADVICE[problem]}"
    )


def _repeated(problem: str, one: list[Any], given: tuple[Any, ...], engine: Engine) -> str:
    """Return how often the most common negative value occurs, in words, if it is a code for missing by its look.

    It is the most common one of `one` block in which there is some. Small negative values are measurements.
    """
    if problem != "Negative values":
        return ""
    value = float(to_host(engine.join(engine.map(_most_common, *one)))[0])
    count = int(engine.sum(_count_of, *given, value=value))
    if count < FEWEST_CODES or value > LARGEST_CODE:
        return ""
    return (
        f"{count} entries are exactly {value:g}: if that stands for missing, use missing_value={value:g} when the file "
        "is read. "
    )


@block_function(on_host=True)
def _most_common(Y: Array, weights: Array | None, uncertainties: Array | None, *, xp: Namespace) -> Array:
    """Return the most common negative value of a block, (1,)."""
    values = to_host(Y[(Y < 0) & is_observed(Y, weights, xp)])
    found, counts = np.unique(values, return_counts=True)
    return found[counts.argmax()][None].astype(np.float64)


@block_function(on_host=True)
def _count_of(Y: Array, weights: Array | None, uncertainties: Array | None, *, value: float, xp: Namespace) -> int:
    """Return how many entries of a block have a value."""
    return int(xp.count_nonzero((Y == value) & is_observed(Y, weights, xp)))


@block_function(on_host=True)
def _first(
    Y: Array, weights: Array | None, uncertainties: Array | None, *, problem: str, xp: Namespace
) -> tuple[Array, Array]:
    """Return position and value of the first entry of a block that has a problem, (1,) each."""
    values = (Y, weights, uncertainties)[_PROBLEMS[problem]]
    wrong = _wrong(problem, values, is_observed(Y, weights, xp), xp)
    position = xp.nonzero(xp.reshape(wrong, (-1,)))[0][:1]
    return position, xp.reshape(values, (-1,))[position]
