"""Checks of what the user passes: data, weights, rank; every error says what to do."""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from robustnmf.arrays import Blocks, to_host
from robustnmf.engines import Engine

Matrix = NDArray[Any]

SMALLEST_UNCERTAINTY = 1e-150


class Observations(NamedTuple):
    """Data that is ready to be worked on, samples in rows."""

    X: Matrix
    """(n_samples, n_features), floating, C-contiguous, finite, non-negative; 0 where missing."""
    M: Matrix | None
    """Weight of every entry, at most 1 and 0 where missing; None if all are 1."""

    def in_unit(self, unit: float, dtype: Any, noise: Matrix | None = None) -> "Observations":
        """Return the data divided by a unit, and by the `noise` (n_features,) if there is one, in the dtype of the fit.

        Entries are limited to a magnitude whose square, even in units of the smallest scale, does not overflow: 4e9 in
        single and 1e77 in double precision. The unit is a typical entry, so only gross outliers are.
        """
        limit = 2.0 ** (np.finfo(dtype).maxexp // 4)
        X = self.X.astype(np.result_type(self.X, dtype), copy=False)
        if unit != 1.0:
            with np.errstate(over="ignore"):
                X = X / X.dtype.type(unit)
        if noise is not None:
            X = X / noise.astype(X.dtype)
        if X.max() > limit:
            X = np.minimum(X, limit)
        M = None if self.M is None else self.M.astype(dtype, copy=False)
        return Observations(X.astype(dtype, copy=False), M)

    def blocks(self, engine: Engine) -> tuple[Blocks, Blocks | None]:
        """Return data and weights as blocks of an engine."""
        V = engine.split(self.X)
        return V, None if self.M is None else engine.split(self.M, like=V)


def check_observations(estimator: Any, X: Any, weights: Any, *, reset: bool) -> Observations:
    """Return the data of an estimator's method, with missing entries and user weights in one array."""
    name = type(estimator).__name__
    X, weights = to_host(X), to_host(weights)
    _refuse_times(X, "X")
    if isinstance(X, np.ma.MaskedArray):
        X = np.ma.filled(X.astype(np.float64 if X.dtype.kind in "iub" else X.dtype), np.nan)
    X = validate_data(
        estimator,
        X,
        reset=reset,
        accept_sparse=("csr", "csc"),
        dtype=(np.float64, np.float32),
        order="C",
        ensure_all_finite=False,
        ensure_min_features=1,
    )
    if sparse.issparse(X):
        X = _dense(X)
    user_weights = None if weights is None else _check_weights(weights, X, needed=reset)
    missing = np.isnan(X)
    if user_weights is not None:
        missing |= user_weights == 0  # an entry without weight may hold anything
    _check_values(X, missing, name)
    if not missing.any():
        return Observations(X, user_weights)
    if reset and missing.all():
        raise ValueError(f"{name} needs at least one observed entry; all {X.size} entries of X are missing (NaN).")
    if reset:
        _warn_of_empty(missing, name)
    M = np.asarray(~missing, dtype=X.dtype)
    return Observations(np.where(missing, 0, X), M if user_weights is None else M * user_weights)


def check_uncertainties(
    uncertainties: Any, X: Any, weights: Any, typical: Matrix | None = None
) -> tuple[Matrix, Matrix]:
    """Return the typical uncertainty of each feature, (n_features,), and weights that say how each entry differs.

    An entry with half the uncertainty that is typical of its feature has four times the weight. What is typical is the
    median, unless it is given.
    """
    uncertainties, X, weights = (to_host(array) for array in (uncertainties, X, weights))
    values = np.asarray(_dense(X) if sparse.issparse(X) else X, dtype=np.float64)
    shape: dict[str, Any] = {"ensure_2d": False, "allow_nd": True, "ensure_min_samples": 0}
    given = check_array(uncertainties, dtype=np.float64, ensure_all_finite=False, input_name="uncertainties", **shape)
    if given.shape != values.shape:
        raise ValueError(f"uncertainties must have the shape of X, {values.shape}; got {given.shape}.")
    observed = ~np.isnan(values)
    if weights is not None:
        weights = np.ma.filled(weights, 0) if isinstance(weights, np.ma.MaskedArray) else np.asarray(weights)
        if weights.shape != values.shape:
            raise ValueError(f"weights must have the shape of X, {values.shape}; got {weights.shape}.")
        observed &= weights > 0
    # Their squares, and the data in units of them, are to be numbers too.
    wrong = observed & ~((given > SMALLEST_UNCERTAINTY) & (given < 1 / SMALLEST_UNCERTAINTY))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"uncertainties must be positive and finite where X is observed, between {SMALLEST_UNCERTAINTY:g} and "
            f"{1 / SMALLEST_UNCERTAINTY:g}; got {given[row, column]} at sample {row}, feature {column}. Set entries of "
            "unknown uncertainty to NaN in X, or give them a large one."
        )
    if typical is None:
        seen = observed.any(axis=0)
        typical = np.ones(values.shape[1])
        typical[seen] = np.nanmedian(np.where(observed, given, np.nan)[:, seen], axis=0)
    precision = (typical / np.where(observed, given, 1.0)) ** 2
    return typical, np.where(observed, precision if weights is None else precision * weights, 0.0)


def _refuse_times(values: Any, name: str) -> None:
    """Refuse dates and durations, which NumPy would take for numbers of nanoseconds."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "mM":
        raise TypeError(f"{name} must hold numbers; got {dtype}. Convert times to numbers in a unit of your choice.")


def check_rank(n_components: Any, X: Matrix, name: str) -> int:
    """Return the rank as an int, or say which ranks the data allows."""
    limit = min(X.shape)
    is_integer = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool)
    if not is_integer or not 1 <= n_components <= limit:
        raise ValueError(
            f"n_components of {name} must be an integer in [1, {limit}] for data with n_samples={X.shape[0]} and "
            f"n_features={X.shape[1]}; got {n_components!r}."
        )
    return int(n_components)


def check_start(start: Any, V: Matrix, M: Matrix | None, rank: int) -> tuple[Matrix, Matrix]:
    """Return initial factors in the dtype of V, zero for features and samples of which nothing is observed."""
    W, H = (np.array(factor, dtype=V.dtype) for factor in start)
    for name, factor, shape in (("W", W, (V.shape[0], rank)), ("H", H, (rank, V.shape[1]))):
        if factor.shape != shape:
            raise ValueError(f"init must return {name} of shape {shape}; got {factor.shape}.")
        if not (np.isfinite(factor).all() and (factor >= 0).all()):
            raise ValueError(f"init must return finite, non-negative factors; {name} has other entries.")
    if M is not None:
        W[~M.any(axis=1)] = 0
        H[:, ~M.any(axis=0)] = 0
    return W, H


def check_components(components: Any, X: Matrix, rank: int) -> Matrix:
    """Return known components in the dtype of X, (n_fixed, n_features); none for None."""
    if components is None:
        return np.empty((0, X.shape[1]), dtype=X.dtype)
    known: Matrix = check_array(components, dtype=X.dtype, input_name="fixed_components", copy=True)
    if known.shape[1] != X.shape[1]:
        raise ValueError(f"fixed_components must have {X.shape[1]} columns, one per feature; got {known.shape[1]}.")
    if len(known) > rank:
        raise ValueError(f"fixed_components must be at most n_components={rank}; got {len(known)}.")
    if known.min() < 0 or not known.any(axis=1).all():
        raise ValueError("fixed_components must be non-negative, and none of them zero everywhere.")
    return known


def put_known(W: Matrix, H: Matrix, known: Matrix) -> None:
    """Put known components in place of the first of a start, with codes that keep their share of it."""
    for k, component in enumerate(known):
        H[k] *= W[:, k].sum() / component.sum()
        W[:, k] = component


def _dense(X: Any) -> Matrix:
    """Return a sparse matrix as an array; its zeros are observed values, so every entry has a weight."""
    try:
        return np.ascontiguousarray(X.toarray())
    except MemoryError as error:
        size = X.shape[0] * X.shape[1] * X.dtype.itemsize / 2**30
        raise MemoryError(
            f"A robust fit gives every entry of X a weight, zeros included, so a sparse X of shape {X.shape} is worked "
            f"on densely and needs {size:.1f} GiB. Select features or samples, or use float32."
        ) from error


def _check_weights(weights: Any, X: Matrix, *, needed: bool) -> Matrix:
    """Return the user's weights, scaled to at most 1, in the dtype of X; if `needed`, some must be positive."""
    _refuse_times(weights, "weights")
    if isinstance(weights, np.ma.MaskedArray):
        weights = weights.filled(0)
    any_shape: dict[str, Any] = {"ensure_2d": False, "allow_nd": True, "ensure_min_samples": 0}
    weights = check_array(weights, dtype=np.float64, input_name="weights", **any_shape)
    if weights.shape != X.shape:
        raise ValueError(f"weights must have the shape of X, {X.shape}; got {weights.shape}.")
    if weights.min() < 0:
        row, column = np.argwhere(weights < 0)[0]
        raise ValueError(
            f"weights must be non-negative; got {weights[row, column]} at sample {row}, feature {column}. "
            "Use 0 for entries that should not count."
        )
    largest = weights.max()
    if largest == 0:
        if needed:
            raise ValueError("weights must not all be zero: no entry of X would count.")
        largest = 1.0
    return np.ascontiguousarray(weights / largest, dtype=X.dtype)


def _check_values(X: Matrix, missing: Matrix, name: str) -> None:
    """Refuse infinite and negative entries, and name the first."""
    for bad, what, advice in (
        (np.isinf(X), "Infinite values", "Replace infinity by NaN if it means missing."),
        (X < 0, "Negative values", "Shift or clip the data, or set them to NaN if they are missing."),
    ):
        bad &= ~missing
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(
                f"{what} in data passed to {name}: X must be finite and non-negative (NaN means missing, inf is not "
                f"allowed); {bad.sum()} of {X.size} entries are not, the first is {X[row, column]} at sample {row}, "
                f"feature {column}. {advice}"
            )


def _warn_of_empty(missing: Matrix, name: str) -> None:
    """Warn of samples and features that hold nothing: their codes and components will be zero."""
    for axis, what, result in ((1, "sample", "codes"), (0, "feature", "components")):
        empty = np.flatnonzero(missing.all(axis=axis))
        if empty.size:
            shown = ", ".join(map(str, empty[:5])) + (", ..." if empty.size > 5 else "")
            warnings.warn(
                f"{name}: {empty.size} {what}(s) have no observed entry ({what} {shown}); their {result} are set to "
                "zero. Drop them to silence this warning.",
                UserWarning,
                stacklevel=4,
            )
