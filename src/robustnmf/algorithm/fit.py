"""From data to a fitted basis: the start, the alternation, and what is made of where it ends.

The same for data in memory and for data that is worked on block by block; `estimator` is one of `robustnmf.estimators`,
of which the parameters are read and nothing is changed.
"""

import warnings
from dataclasses import replace
from math import ceil, inf, sqrt
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from robustnmf.algorithm import block_initializers
from robustnmf.algorithm.checkpoint import Checkpoint
from robustnmf.algorithm.clones import where_data_is
from robustnmf.algorithm.encoding import Basis, Description, basis_of, typical_code
from robustnmf.algorithm.fingerprints import fit_fingerprint
from robustnmf.algorithm.halfquadratic import Iteration, Result, State, comparable, penalty_value, take_start
from robustnmf.algorithm.initializers import draw_start
from robustnmf.algorithm.parts import Parts
from robustnmf.algorithm.progress import progress_bar
from robustnmf.algorithm.rank_search import find_rank
from robustnmf.data import blockwise
from robustnmf.data.outofcore import Data, even_rows, row_totals, totals
from robustnmf.data.units import power_of_two_below
from robustnmf.data.validation import Observations, check_components, check_rank, check_start, put_known
from robustnmf.engines import Engine, NumPyEngine
from robustnmf.errors import IncompatibleError, OutOfRangeError
from robustnmf.model.penalties import ElasticNet, Penalties
from robustnmf.model.scales import FixedScale
from robustnmf.solvers import solvers_that
from robustnmf.utils.arrays import Array, Blocks, Namespace, device, size, to_host
from robustnmf.utils.random_state import generator

Matrix = NDArray[Any]

# Entries, of an even choice of the samples, with which the rank of data that is not in memory is found: 32 MiB.
RANK_ENTRIES = 2**22


class Fitted(NamedTuple):
    """What a fit has found, on the host."""

    parts: Parts
    components: Matrix
    """(n_components, n_features), in units of X."""
    basis: Basis
    unit: float
    """What the data was divided by."""
    noise: Matrix | None
    """What the features were divided by, (n_features,)."""
    objective: float
    inlier_squares: float
    """Sum of squared residuals of observed entries that are no outliers, in the unit of the data."""
    n_samples: int
    result: Result

    @property
    def scale(self) -> float:
        """Scale of clean residuals, in units of X."""
        return min(float(self.basis.weighting.scale * self.unit), float(np.finfo(np.float64).max))

    @property
    def reconstruction_error(self) -> float:
        """Frobenius norm of the residuals of entries that are no outliers, in units of X."""
        return min(sqrt(self.inlier_squares) * self.unit, float(np.finfo(np.float64).max))

    @property
    def history(self) -> dict[str, Matrix]:
        """The iterations, as one array per column."""
        columns = ("objective", "scale", "outlier_share", "seconds", "relative_change")
        return {name: np.array([getattr(iteration, name) for iteration in self.result.history]) for name in columns}

    def check_finite(self) -> None:
        """Raise OutOfRangeError if anything is not finite."""
        results = {
            "components": self.components,
            "the basis": self.basis.W,
            "the typical code": self.basis.code,
            "the scale": [self.basis.weighting.scale, *self.history["scale"]],
            "the objective": [self.objective, self.inlier_squares, *self.history["objective"]],
        }
        for what, values in results.items():
            if not np.isfinite(values).all():
                raise OutOfRangeError(what, self.components.dtype)


def check_codes(codes: Array, xp: Namespace) -> Array:
    """Return codes of samples, which must be finite."""
    if not xp.all(xp.isfinite(codes)):
        raise OutOfRangeError("codes", codes.dtype)
    return codes


# --- In memory --------------------------------------------------------------------------------------------------------


def fit_in_memory(
    estimator: Any, given: Observations, noise: Matrix | None, rank: int, parts: Parts, engine: Engine
) -> tuple[Fitted, Array, Description]:
    """Fit data in memory; return also its codes (n, r) in the unit of the data, and what the fit says of its entries.

    Parameters
    ----------
    noise : (n_features,) or None
        What the features are to be divided by.
    """
    known = check_components(estimator.fixed_components, given.X, rank)
    unit = data_unit(given.X, noise, engine)
    parts = replace(parts, penalties=_penalties(estimator, parts, given.X.shape, unit, known.dtype))
    data = given.in_unit(unit, given.X.dtype, engine, noise)
    V, M = data.blocks(engine)
    start = draw_start(parts.init, data.X, data.M, rank, generator(estimator.random_state))
    W, H = check_start(start, data, rank, engine)
    put_known(W, H, known if noise is None else known / noise)
    Ht = engine.split(engine.place(np.ascontiguousarray(H.T)), like=V)
    result = _alternate(estimator, V, M, W, Ht, parts, len(known), unit, noise, engine)
    components, basis = _basis(estimator, result, _importance(data, result.state, engine), known, noise, parts, engine)
    limits = encoding_limits(estimator)
    codes, about = describe(data, basis.placed(engine.place), limits, engine, may_overwrite=data.X is not given.X)
    objective = _objective(basis, to_host(codes), about, result.state.first_scale)
    squares = float(about.inlier_squares.sum())
    fitted = Fitted(parts, components, basis, unit, noise, objective, squares, len(given.X), result)
    return fitted, codes, about


def data_unit(X: Array, noise: Matrix | None, engine: Engine) -> float:
    """Return the largest power of two that is not above the median of the positive entries, in units of the noise.

    Data is divided by it so that squares neither overflow nor vanish, whatever the unit of X. A power of two divides
    without rounding; a median is not moved by a minority of outliers, however large. Of many entries some will do.
    """
    positive = _some_positive(X, noise, max(1, size(X) // blockwise.UNIT_ENTRIES), engine.xp)
    if not size(positive):
        positive = _some_positive(X, noise, 1, engine.xp)
    if not size(positive):
        return 1.0
    return power_of_two_below(float(engine.quantile([positive[:, None]], None, 0.5)))


def _some_positive(X: Array, noise: Matrix | None, every: int, xp: Namespace) -> Array:
    """Return every so many entries, in units of the noise, those that are positive, as a vector."""
    some = xp.reshape(X, (-1,))[::every]
    if noise is not None:
        features = np.arange(0, size(X), every) % X.shape[1]
        with np.errstate(over="ignore"):
            some = xp.astype(some, xp.float64) / xp.asarray(noise[features], dtype=xp.float64, device=device(X))
    return some[some > 0]


def encoding_limits(estimator: Any) -> dict[str, Any]:
    """Return how far codes are to be improved."""
    # Codes are compared coordinate by coordinate, which is stricter than the objective: ten times its tolerance.
    return {"max_iter": estimator.max_iter, "tol": 10 * estimator.tol}


def describe(
    data: Observations, basis: Basis, limits: dict[str, Any], engine: Engine, *, may_overwrite: bool
) -> tuple[Array, Description]:
    """Return codes of data in its unit, (n, r), and what the basis says of the entries.

    If the data `may_overwrite` itself, the weights take its place: it can be as large as memory allows.
    """
    xp = engine.xp
    V, M = data.blocks(engine)
    Ht = basis.encode(V, M, engine, **limits)
    weights = data.X if may_overwrite else xp.empty_like(data.X)
    outliers = xp.empty_like(data.X, dtype=xp.bool)
    sums = basis.describe(V, M, Ht, engine.split(weights, like=V), engine.split(outliers, like=V), engine)
    return engine.join(Ht), Description(weights, outliers, *(engine.join(blocks) for blocks in sums))


def _importance(data: Observations, state: State, engine: Engine) -> Blocks | None:
    """Return the total weight of each sample, in blocks as the codes; None if all are the same."""
    if data.M is None:
        return None
    total = engine.xp.sum(data.M, axis=1, dtype=engine.xp.float64)
    return engine.split(engine.place(total), like=state.Ht)


def _objective(basis: Basis, Ht: Matrix, about: Description, first_scale: float) -> float:
    """Return the objective of encoded training data, as the history has it."""
    weighting = basis.weighting
    fit = comparable(
        float(about.losses.sum()), float(about.totals.sum()), weighting.loss, weighting.scale / first_scale
    )
    return fit + penalty_value(basis.penalties, basis.W, [Ht], float(weighting.scale), NumPyEngine(n_threads=1))


# --- Block by block ---------------------------------------------------------------------------------------------------


def fit_blocks(estimator: Any, X: Any, weights: Any, uncertainties: Any, parts: Parts, engine: Any) -> Fitted:
    """Fit data that is not in memory, or lies on a cluster."""
    name = type(estimator).__name__
    data = Data.of(X, weights, uncertainties, engine, name)
    _warn_of_empty_blocks(data, name)
    rank = choose_rank(estimator, data, *_for_rank(estimator, X, weights, uncertainties, engine))
    known = check_components(estimator.fixed_components, data, rank)
    parts = replace(parts, penalties=_penalties(estimator, parts, data.shape, data.unit, known.dtype))
    W, Ht = block_initializers.start(parts.init, data.V, data.M, rank, generator(estimator.random_state), engine)
    W, Ht = block_initializers.unseen_to_zero(W, Ht, data.M, data.seen, engine)
    W, Ht = block_initializers.with_known(W, Ht, known if data.noise is None else known / data.noise, engine)
    result = _alternate(estimator, data.V, data.M, W, Ht, parts, len(known), data.unit, data.noise, engine)
    state = result.state
    importance = None if data.M is None else engine.map(row_totals, data.M)
    components, basis = _basis(estimator, result, importance, known, data.noise, parts, engine)
    losses, total, squares = engine.sum(totals, data.V, data.M, state.Ht, W=state.W, weighting=state.weighting)
    scale = float(state.weighting.scale)
    objective = comparable(losses, total, parts.loss, scale / state.first_scale)
    objective += penalty_value(parts.penalties, state.W, state.Ht, scale, engine)
    result = result._replace(state=state._replace(Ht=[]))  # blocks of an engine that will be gone
    return Fitted(parts, components, basis, data.unit, data.noise, objective, squares, data.shape[0], result)


def check_can_be_blocks(estimator: Any, parts: Parts) -> None:
    """Refuse what needs all data in one memory."""
    if parts.algorithm is take_start:
        raise IncompatibleError(f"Method {estimator.method!r} needs all data in memory; 'truncated-cauchy' does not.")
    if not parts.method.solver.works_by_sums:
        raise IncompatibleError(
            f"solver {parts.solver} needs all samples of a feature at once, and this data is not in memory. Use "
            f"one that works with sums over samples: {solvers_that('works_by_sums')}."
        )


def _warn_of_empty_blocks(data: Data, name: str) -> None:
    """Warn of samples and features that hold nothing: their codes and components will be zero."""
    empty = int(np.count_nonzero(data.seen == 0))
    for count, what, result in ((data.n_empty, "sample", "codes"), (empty, "feature", "components")):
        if count:
            warnings.warn(
                f"{name}: {count} {what}(s) have no observed entry; their {result} are set to zero. Drop them to "
                "silence this warning.",
                UserWarning,
                stacklevel=6,
            )


def _for_rank(estimator: Any, X: Any, weights: Any, uncertainties: Any, engine: Any) -> tuple[Any, Any, Any]:
    """Return samples in memory to find the rank with, if it is to be found: data, weights and uncertainties."""
    if not isinstance(estimator.n_components, str):
        return None, None, None
    n_rows = ceil(RANK_ENTRIES / X.shape[1])
    some, its_weights, its_uncertainties = even_rows((X, weights, uncertainties), n_rows, engine)
    return some, its_weights, its_uncertainties


# --- Both -------------------------------------------------------------------------------------------------------------


def choose_rank(estimator: Any, data: Any, X: Any, weights: Any, uncertainties: Any) -> int:
    """Return the number of components of `data`; if it is to be found, by cross-validation of X, in memory."""
    if not isinstance(estimator.n_components, str) or estimator.n_components != "auto":
        return check_rank(estimator.n_components, data, type(estimator).__name__)
    seed = estimator.random_state if isinstance(estimator.random_state, Integral) else 0
    alone = where_data_is(clone(estimator), data)
    alone.set_params(n_components=1, verbose=0, callback=None, checkpoint=None)
    if not isinstance(estimator.engine, str) or estimator.engine in ("dask", "stream"):
        alone.set_params(engine="auto", device=None)
    options: dict[str, Any] = {"weights": weights, "uncertainties": uncertainties}
    return int(find_rank(X, alone, search=True, random_state=seed, **options).chosen)


def _alphas(estimator: Any) -> tuple[float, float]:
    """Return the weights of the penalties on the codes and on the components."""
    alpha_H = estimator.alpha_W if estimator.alpha_H == "same" else estimator.alpha_H
    return float(estimator.alpha_W), float(alpha_H)


def is_penalised(estimator: Any) -> bool:
    """Return whether there are penalties."""
    return any(_alphas(estimator))


def _penalties(estimator: Any, parts: Parts, shape: tuple[int, ...], unit: float, dtype: Any) -> Penalties:
    """Return the penalties for data that is divided by its unit, and codes with it.

    In that unit the data is about 1. A penalty beyond the limit makes a factor zero, and so does one at the limit.
    """
    limit = float(np.finfo(dtype).eps) ** -2
    (n_samples, n_features), (on_codes, on_components) = shape, _alphas(estimator)
    on_codes, on_components = on_codes * n_features, on_components * n_samples
    lasso, ridge = float(estimator.l1_ratio), 1 - float(estimator.l1_ratio)
    # The loss is divided by unit**2, and so must be what is added to it.
    codes = ElasticNet(min(on_codes * lasso / unit, limit), min(on_codes * ridge, limit))
    both = (on_components * share / unit / unit for share in (lasso, ridge))
    components = ElasticNet(*(min(weight, limit) for weight in both))
    return replace(parts.penalties, codes=codes, basis=components)


def _alternate(
    estimator: Any,
    V: Blocks,
    M: Blocks | None,
    W: Matrix,
    Ht: Blocks,
    parts: Parts,
    fixed: int,
    unit: float,
    noise: Matrix | None,
    engine: Any,
) -> Result:
    """Run Algorithm 2; what the user sees of it is in the units of X."""

    def in_units_of_X(iteration: Iteration) -> Iteration:
        return iteration._replace(scale=iteration.scale * unit)

    method = replace(parts.method, fixed=fixed)
    if isinstance(method.scale, FixedScale):
        # In units of the data it may overflow or vanish; so far out the weights are all 1, or the floor counts.
        number = np.finfo(W.dtype)
        scale = min(max(method.scale.value / unit, float(number.tiny)), float(number.max) ** 0.5)
        method = replace(method, scale=FixedScale(scale))
    options: dict[str, Any] = {}
    if estimator.checkpoint is not None:
        of = fit_fingerprint(estimator, V, M, unit, noise, engine)
        options["checkpoint"] = Checkpoint(estimator.checkpoint, of)
    with progress_bar(type(estimator).__name__, estimator.max_iter, shown=bool(estimator.verbose)) as show:

        def watch(iteration: Iteration) -> bool:
            iteration = in_units_of_X(iteration)
            show(iteration)
            return estimator.callback is not None and bool(estimator.callback(iteration))

        result = parts.algorithm(
            V,
            M,
            engine.place(W),
            Ht,
            method,
            engine,
            max_iter=estimator.max_iter,
            tol=estimator.tol,
            scale_floor=float(np.finfo(W.dtype).eps),
            callback=watch,
            **options,
        )
    return result._replace(history=[in_units_of_X(iteration) for iteration in result.history])


def _basis(
    estimator: Any,
    result: Result,
    importance: Blocks | None,
    known: Matrix,
    noise: Matrix | None,
    parts: Parts,
    engine: Any,
) -> tuple[Matrix, Basis]:
    """Return the components, and all that is needed to encode a sample, on the host."""
    state = result.state
    kept = state.W.shape[1] if is_penalised(estimator) else len(known)
    components, code = _normalise(state, importance, kept, noise, engine)
    components[: len(known)] = known
    basis = Basis(basis_of(components, noise), code, state.weighting, parts.penalties, result.code_sweeps)
    return components, basis.placed(to_host)


def _normalise(
    state: State, importance: Blocks | None, kept: int, noise: Matrix | None, engine: Any
) -> tuple[Matrix, Array]:
    """Return the components, W' in units of X with maximum 1 in each row but the first `kept`, and their typical code.

    `noise` is what the features were divided by, (n_features,). A sample counts by its `importance`, (n,) in all.
    """
    W = to_host(state.W)
    in_units = W if noise is None else W * noise[:, None].astype(W.dtype)
    largest = in_units.max(axis=0)
    largest[largest == 0] = 1
    largest[:kept] = 1
    # A copy has the strides of an array that is read from a file, even of one row: Torch orders its sums by them.
    components = (in_units / largest).T.copy()
    code = typical_code(state.W, state.Ht, importance, engine)
    return components, code * engine.place(largest, state.W.dtype)


def thresholds(basis: Basis, unit: float, noise: Matrix | None) -> Matrix:
    """Return the residual in units of X beyond which an entry of each feature has weight zero, by rule or by loss."""
    by_loss = basis.weighting.scale * sqrt(getattr(basis.weighting.loss, "cap", inf))
    by_rule = inf if basis.weighting.cut is None else basis.weighting.cut
    residuals = np.broadcast_to(np.minimum(by_rule, by_loss), basis.W.shape[:1]).astype(np.float64)
    with np.errstate(over="ignore"):  # a threshold beyond the largest number cuts nothing
        in_units = residuals * unit if noise is None else residuals * unit * noise
        return in_units.astype(basis.W.dtype)
