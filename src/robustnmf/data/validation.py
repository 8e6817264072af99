"""Checks of what the user passes: data, weights, rank; every error says what to do."""

import warnings
from math import frexp
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from robustnmf.data.units import in_range, precise
from robustnmf.engines import Engine, NumPyEngine
from robustnmf.errors import SMALLEST_UNCERTAINTY, uncertainty_error
from robustnmf.utils.arrays import Array, Blocks, Namespace, device, is_foreign, size, to_host

Matrix = NDArray[Any]


class Observations(NamedTuple):
    """Data that is ready to be worked on by an engine, samples in rows."""

    X: Array
    """(n_samples, n_features), floating, C-contiguous, finite, non-negative; 0 where missing."""
    M: Array | None
    """Weight of every entry, at most 1 and 0 where missing; None if all are 1."""

    def in_unit(self, unit: float, dtype: Any, engine: Engine, noise: Matrix | None = None) -> "Observations":
        """Return the data divided by a unit, and by the `noise` (n_features,) if there is one, in the dtype of the fit.

        Entries are limited to a magnitude whose square, even in units of the smallest scale, does not overflow: 4e9 in
        single and 1e77 in double precision. The unit is a typical entry, so only gross outliers are.
        """
        xp = engine.xp
        limit = 2.0 ** (frexp(float(xp.finfo(dtype).max))[1] // 4)
        X = xp.astype(self.X, xp.result_type(self.X.dtype, dtype), copy=False)
        with np.errstate(over="ignore"):
            if noise is not None:
                divisor = in_range(noise * unit, to_host(X[:0]).dtype)
                X = X / xp.asarray(divisor, device=device(X))
            elif unit != 1.0:
                X = X / unit
        if xp.max(X) > limit:
            X = xp.clip(X, max=limit)
        M = None if self.M is None else xp.astype(self.M, dtype, copy=False)
        return Observations(xp.astype(X, dtype, copy=False), M)

    def blocks(self, engine: Engine) -> tuple[Blocks, Blocks | None]:
        """Return data and weights as blocks of an engine."""
        V = engine.split(self.X)
        return V, None if self.M is None else engine.split(self.M, like=V)


def check_observations(
    estimator: Any, X: Any, weights: Any, engine: Engine | None = None, *, reset: bool
) -> Observations:
    """Return the data of an estimator's method where the engine works, missing entries and weights in one array.

    Without an engine they are arrays of NumPy.
    """
    engine = NumPyEngine(n_threads=1) if engine is None else engine
    name, xp = type(estimator).__name__, engine.xp
    X = _matrix(estimator, X, engine, reset)
    user_weights = None if weights is None else _check_weights(weights, X, engine, needed=reset)
    missing = xp.isnan(X)
    if user_weights is not None:
        missing |= user_weights == 0  # an entry without weight may hold anything
    _check_values(X, missing, name, xp)
    if not xp.any(missing):
        return Observations(X, user_weights)
    if reset and xp.all(missing):
        raise ValueError(f"{name} needs at least one observed entry; all {size(X)} entries of X are missing (NaN).")
    if reset:
        _warn_of_empty(missing, name, xp)
    M = xp.astype(~missing, X.dtype)
    return Observations(xp.where(missing, xp.zeros_like(X), X), M if user_weights is None else M * user_weights)


def _matrix(estimator: Any, X: Any, engine: Engine, reset: bool) -> Array:
    """Return X as a floating matrix where the engine works; entries are not looked at yet."""
    tensor = engine.adopt(X)
    if tensor is not None:  # it is there already, and scikit-learn's checks would take it to the host and back
        if tensor.ndim != 2 or not all(tensor.shape):
            raise ValueError(
                f"X must be a matrix of samples and features, neither empty; its shape is {tuple(X.shape)}."
            )
        validate_data(estimator, tensor, reset=reset, skip_check_array=True)
        return tensor
    X = to_host(X)
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
    return engine.house(_dense(X) if sparse.issparse(X) else X)


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
    wrong = observed & ~((given > SMALLEST_UNCERTAINTY) & (given < 1 / SMALLEST_UNCERTAINTY))
    if wrong.any():
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        raise uncertainty_error(given[row, column], row, column)
    if typical is None:
        seen = observed.any(axis=0)
        typical = np.ones(values.shape[1])
        typical[seen] = np.nanmedian(np.where(observed, given, np.nan)[:, seen], axis=0)
    return typical, precise(typical, np.where(observed, given, 1.0), observed, weights)


def _refuse_times(values: Any, name: str) -> None:
    """Refuse dates and durations, which NumPy would take for numbers of nanoseconds."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "mM":
        raise TypeError(f"{name} must hold numbers; got {dtype}. Convert times to numbers in a unit of your choice.")


def check_rank(n_components: Any, X: Array, name: str) -> int:
    """Return the rank as an int, or say which ranks the data allows."""
    limit = min(X.shape)
    is_integer = isinstance(n_components, int | np.integer) and not isinstance(n_components, bool)
    if not is_integer or not 1 <= n_components <= limit:
        raise ValueError(
            f"n_components of {name} must be an integer in [1, {limit}] for data with n_samples={X.shape[0]} and "
            f"n_features={X.shape[1]}; got {n_components!r}."
        )
    return int(n_components)


def check_start(start: Any, data: Observations, rank: int, engine: Engine) -> tuple[Matrix, Matrix]:
    """Return initial factors on the host, zero for features and samples of which nothing is observed."""
    dtype = to_host(data.X[:0]).dtype
    W, H = (np.array(to_host(factor), dtype=dtype) for factor in start)
    n_samples, n_features = data.X.shape
    for name, factor, shape in (("W", W, (n_features, rank)), ("H", H, (rank, n_samples))):
        if factor.shape != shape:
            raise ValueError(f"init must return {name} of shape {shape}; got {factor.shape}.")
        if not (np.isfinite(factor).all() and (factor >= 0).all()):
            raise ValueError(f"init must return finite, non-negative factors; {name} has other entries.")
    if data.M is not None:
        seen = data.M > 0
        W[~to_host(engine.xp.any(seen, axis=0))] = 0
        H[:, ~to_host(engine.xp.any(seen, axis=1))] = 0
    return W, H


def check_components(components: Any, X: Array, rank: int) -> Matrix:
    """Return known components in the dtype of X, (n_fixed, n_features), on the host; none for None."""
    dtype = to_host(X[:0]).dtype if is_foreign(X) else X.dtype
    if components is None:
        return np.empty((0, X.shape[1]), dtype=dtype)
    known: Matrix = check_array(to_host(components), dtype=dtype, input_name="fixed_components", copy=True)
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


def _check_weights(weights: Any, X: Array, engine: Engine, *, needed: bool) -> Array:
    """Return the user's weights, scaled to at most 1, in the dtype of X; if `needed`, some must be positive."""
    xp, given = engine.xp, engine.adopt(weights)
    if given is None:
        weights = to_host(weights)
        _refuse_times(weights, "weights")
        if isinstance(weights, np.ma.MaskedArray):
            weights = weights.filled(0)
        any_shape: dict[str, Any] = {"ensure_2d": False, "allow_nd": True, "ensure_min_samples": 0}
        given = engine.house(check_array(weights, dtype=np.float64, input_name="weights", **any_shape))
    if tuple(given.shape) != tuple(X.shape):
        raise ValueError(f"weights must have the shape of X, {tuple(X.shape)}; got {tuple(given.shape)}.")
    if not xp.all(xp.isfinite(given)):
        raise ValueError("weights must be finite; some are NaN or infinite. Use 0 for entries that should not count.")
    if xp.min(given) < 0:
        row, column, value = _first(given < 0, given, xp)
        raise ValueError(
            f"weights must be non-negative; got {value} at sample {row}, feature {column}. "
            "Use 0 for entries that should not count."
        )
    largest = float(xp.max(given))
    if largest == 0:
        if needed:
            raise ValueError("weights must not all be zero: no entry of X would count.")
        largest = 1.0
    scaled = xp.astype(given / largest, X.dtype)
    # A small weight is not that of a missing entry.
    lost = (given > 0) & (scaled < float(xp.finfo(X.dtype).tiny))
    return xp.where(lost, xp.full_like(scaled, float(xp.finfo(X.dtype).tiny)), scaled) if xp.any(lost) else scaled


def _check_values(X: Array, missing: Array, name: str, xp: Namespace) -> None:
    """Refuse infinite and negative entries, and name the first."""
    for bad, what, advice in (
        (xp.isinf(X), "Infinite values", "Replace infinity by NaN if it means missing."),
        (X < 0, "Negative values", "Shift or clip the data, or set them to NaN if they are missing."),
    ):
        bad &= ~missing
        if xp.any(bad):
            row, column, value = _first(bad, X, xp)
            raise ValueError(
                f"{what} in data passed to {name}: X must be finite and non-negative (NaN means missing, inf is not "
                f"allowed); {int(xp.count_nonzero(bad))} of {size(X)} entries are not, the first is {value} at sample "
                f"{row}, feature {column}. {advice}"
            )


def _first(chosen: Array, values: Array, xp: Namespace) -> tuple[int, int, float]:
    """Return row, column and value of the first entry that is chosen."""
    row, column = (int(positions[0]) for positions in xp.nonzero(chosen))
    return row, column, float(values[row, column])


def _warn_of_empty(missing: Array, name: str, xp: Namespace) -> None:
    """Warn of samples and features that hold nothing: their codes and components will be zero."""
    for axis, what, result in ((1, "sample", "codes"), (0, "feature", "components")):
        empty = np.flatnonzero(to_host(xp.all(missing, axis=axis)))
        if empty.size:
            shown = ", ".join(map(str, empty[:5])) + (", ..." if empty.size > 5 else "")
            warnings.warn(
                f"{name}: {empty.size} {what}(s) have no observed entry ({what} {shown}); their {result} are set to "
                "zero. Drop them to silence this warning.",
                UserWarning,
                stacklevel=4,
            )
