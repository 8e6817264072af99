"""From data to a fitted basis: the start, the alternation, and what is made of where it ends.

The same for data in memory and for data that is worked on block by block; `estimator` is one of `robustnmf.estimators`,
of which the parameters are read and nothing is changed.
"""

from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from math import ceil, inf, log, prod, sqrt
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from robustnmf.algorithm.checkpoint import Checkpoint
from robustnmf.algorithm.clones import where_data_is
from robustnmf.algorithm.continuing import Limits, PreviousFit, WarmStart, go_on
from robustnmf.algorithm.encoding import Basis, Description, basis_of, noise_in_units, totals, typical_code
from robustnmf.algorithm.feature_scaling import choose_levels, feature_levels
from robustnmf.algorithm.fingerprints import content, fit_fingerprint
from robustnmf.algorithm.halfquadratic import (
    Callback,
    Iteration,
    Result,
    comparable,
    penalty_value,
    take_start,
)
from robustnmf.algorithm.initializers import GivenStart, initial_factors, with_known
from robustnmf.algorithm.parts import Parts
from robustnmf.algorithm.progress import fit_progress
from robustnmf.algorithm.rank_search import find_rank
from robustnmf.algorithm.stage import AllSamples, has_more_than_enough
from robustnmf.algorithm.staged import Staged
from robustnmf.algorithm.trials import some_rows, some_samples
from robustnmf.algorithm.value_trial import rejected_values
from robustnmf.data.blocks import Data, Observations
from robustnmf.data.out_of_core import as_data, even_rows
from robustnmf.data.repeated_values import without_values
from robustnmf.data.sample_scaling import SampleScaling
from robustnmf.data.sparse import as_rows, is_sparse, sparse_of
from robustnmf.data.units import unit_of
from robustnmf.data.validation import check_components, check_rank
from robustnmf.engines import Engine, NumPyEngine
from robustnmf.errors import IncompatibleError, OutOfRangeError
from robustnmf.model.noise import NoiseModel
from robustnmf.model.penalties import ElasticNet, Penalties
from robustnmf.model.scales import in_unit, reads
from robustnmf.solvers import SharedGram, solvers_that
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host
from robustnmf.utils.platforms import give_back_freed_memory
from robustnmf.utils.progress import tell
from robustnmf.utils.random_state import generator, seeds

Matrix = NDArray[Any]

# Entries, of an even choice of the samples, with which the rank of data that is not in memory is found: 32 MiB.
RANK_ENTRIES = 2**22
RANK_STORED = 2**20
# Data of so many entries, of which a product with the components takes so many multiplications, is worth kernels for
# single precision. Its residuals must be this part of a typical entry, and of the predictions: then rounding does not
# matter.
SINGLE_ENTRIES, SINGLE_PRODUCTS, SINGLE_RESIDUAL = 2**20, 2**26, 1e-3


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
    samples: SampleScaling | None
    """What the samples were divided by."""
    n_samples: int
    result: Result
    with_uncertainties: bool = False
    unseen: Matrix | None = None
    """Features of which no entry was observed, (n_features,); None if there are none."""
    rejected_values: Matrix | None = None
    """Values of each feature that were left out of the fit, NaN for none, (n_values, n_features); None without any."""
    objective: float = inf
    n_entries: float = 0.0
    """Sum of the weights of all entries."""
    inlier_squares: float = inf
    """Sum of squared residuals of observed entries that are no outliers, in the unit of the data."""
    codes: Any = None
    """Codes in the unit of the data, (n, r), where the engine works; None for data that is not in memory."""
    about: Description | None = None
    """What the fit says of the entries, where the engine works; None for data that is not in memory."""

    @property
    def scale(self) -> float:
        """Scale of clean residuals, in units of X."""
        return min(float(self.basis.weighting.scale * self.unit), float(np.finfo(np.float64).max))

    @property
    def noise_model(self) -> NoiseModel | None:
        """The noise of each entry, in units of X; None if the fit has not judged by it."""
        return noise_in_units(self.basis, self.unit, self.noise)

    @property
    def loss(self) -> float:
        """The objective, in units that are the same for all starts: its own unit is the scale at the start."""
        loss, first_scale = self.basis.weighting.loss, self.result.state.first_scale
        log_scale = log(first_scale) if first_scale > 0 else 0.0
        return float(
            self.objective * first_scale**loss.scale_power + 0.5 * loss.log_scale_coef * self.n_entries * log_scale
        )

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


def fit(estimator: Any, given: Data, rank: int, parts: Parts, engine: Engine) -> Fitted:
    """Fit data that is in units of X.

    If the data is in memory, it is also encoded and described. If values that are wrong wherever they occur were fitted
    like data, or features rejected beside them, it is fitted again without these values.
    """
    fitted = _fit_all(estimator, given, rank, parts, engine)
    if fitted.result.stopped:  # by the user's callback
        return fitted
    find_outliers = partial(_outliers_of_samples, estimator, fitted, given, rank, engine)
    values = rejected_values(estimator, given, rank, parts, engine, find_outliers)
    if values is None:
        return fitted
    alone = copy(estimator)
    alone.checkpoint = None  # it is that of the fit to all entries, which comes first if this one is interrupted
    fitted = _fit_all(alone, without_values(given, values, engine), rank, parts, engine)
    return fitted._replace(rejected_values=values)


def _outliers_of_samples(
    estimator: Any, fitted: Fitted, given: Data, rank: int, engine: Engine, X: Matrix, M: Matrix | None
) -> Matrix:
    """Return which entries of some samples of the data a fit takes for outliers, (n, m); X and M are theirs."""
    if fitted.about is not None:  # the same, of all samples
        return some_rows(engine.split(fitted.about.outliers, like=given.X), rank, engine)
    with NumPyEngine().running() as host:
        data = Data.of(Observations(X, M), host)
        data = data if fitted.samples is None else fitted.samples.divided(data, host)
        data = data.in_unit(fitted.unit, fitted.noise, fitted.basis.W.dtype, host)
        basis, limits = fitted.basis.placed(host.place), encoding_limits(estimator)
        outliers: Matrix = describe(data, basis, limits, host, may_overwrite=False)[1].outliers
        return outliers


def _fit_all(estimator: Any, given: Data, rank: int, parts: Parts, engine: Engine) -> Fitted:
    """Fit all of the data from one start or several, of which the best is kept.

    If a fit starts where the last one ended, that is the only start.
    """
    name, rng = type(estimator).__name__, generator(estimator.random_state)
    if estimator.n_init == 1 or PreviousFit.of(estimator) is not None:
        return _fit_from(rng, estimator, given, rank, parts, engine, name)
    if estimator.checkpoint is not None:
        raise IncompatibleError(f"checkpoint keeps the state of one fit; n_init={estimator.n_init} makes several.")
    best: Fitted | None = None
    for number, seed in enumerate(seeds(rng, estimator.n_init), start=1):
        title = f"{name}, start {number} of {estimator.n_init}"
        fitted = _fit_from(generator(seed), estimator, given, rank, parts, engine, title)
        tell(f"{title}: loss {fitted.loss:.6g}")
        best = fitted if best is None or fitted.loss < best.loss else best
        if fitted.result.stopped:  # by the user's callback
            break
    assert best is not None
    return best


def _fit_from(
    rng: np.random.Generator, estimator: Any, given: Data, rank: int, parts: Parts, engine: Engine, title: str
) -> Fitted:
    """Fit from one start; `title` is what its progress is called.

    Of much data in double precision the factors are found in single precision, which takes half the time. Codes and
    all that is said of entries are computed in double precision. If residuals are so small that rounding might count
    among them, the fit is made again.
    """
    if not _may_be_single(estimator, given, rank, parts, engine):
        return _fit_in(given.dtype, rng, estimator, given, rank, parts, engine, title)
    again = deepcopy(rng)
    fitted = _fit_in(np.dtype(np.float32), rng, estimator, given, rank, parts, engine, title)
    if fitted.result.stopped or _is_far_from_rounding(fitted, given.shape, engine):
        return fitted
    del fitted  # codes and masks, for which memory has other uses
    tell(f"{title}: residuals are too small for single precision, so the fit is made again in double precision.")
    return _fit_in(given.dtype, again, estimator, given, rank, parts, engine, title)


def _is_far_from_rounding(fitted: Fitted, shape: tuple[int, ...], engine: Engine) -> bool:
    """Return whether the residuals of a fit in single precision are not those of rounding.

    Rounding grows with the predictions. If entries are missing or rejected, the mean is too small: the fit is rather
    made again.
    """
    W, codes, n_entries = engine.place(fitted.basis.W), fitted.codes, prod(shape)
    predicted = sqrt(float(engine.xp.sum((codes.T @ codes) * (W.T @ W))) / n_entries)
    return sqrt(fitted.inlier_squares / n_entries) >= SINGLE_RESIDUAL * max(1.0, predicted)


def _may_be_single(estimator: Any, given: Data, rank: int, parts: Parts, engine: Engine) -> bool:
    """Return whether factors of data in double precision may be found in single precision."""
    is_default = isinstance(parts.algorithm, Staged) and isinstance(parts.method.solver, SharedGram)
    in_reach = (given.arrays is not None or engine.has_tiles) and not engine.keeps_sparse
    if given.dtype != np.float64 or not (is_default and in_reach):
        return False
    if estimator.fixed_components is not None or estimator.checkpoint is not None:
        return False  # those components are to stay as they are, and a checkpoint is that of one fit
    n_entries = given.shape[0] * given.shape[1]
    return n_entries >= SINGLE_ENTRIES and n_entries * rank >= SINGLE_PRODUCTS


def _fit_in(
    working: np.dtype[Any],
    rng: np.random.Generator,
    estimator: Any,
    given: Data,
    rank: int,
    parts: Parts,
    engine: Engine,
    title: str,
) -> Fitted:
    """Fit from one start, with factors of the type `working`."""
    parts, original = _with_known_noise(estimator, given, parts), given
    samples = _sample_scaling(estimator, given, rank, engine)
    given = given if samples is None else samples.divided(given, engine)
    noise, units = _feature_scaling(estimator, given, rank, parts, engine)
    unit = unit_of(given.X, noise, engine)
    known = check_components(estimator.fixed_components, given.shape[1], given.dtype, rank)
    parts = replace(parts, penalties=_penalties(estimator, parts, given.shape, unit, known.dtype))
    data = given.in_unit(unit, noise, working, engine)
    init, previous = parts.init, PreviousFit.of(estimator)
    if previous is not None:
        init = previous.start(original, unit, noise, samples, Limits(**encoding_limits(estimator)), engine)
    elif isinstance(init, GivenStart):
        init = init.in_unit(unit, noise, None if samples is None else to_host(samples.factors(original, engine)))
    whole = _learnt_from(data, init, rank, parts, engine)
    some = data if whole is None else replace(data, X=whole.some[0], M=whole.some[1])
    W, Ht = initial_factors(init, some, rank, rng, engine)
    W, Ht = with_known(W, Ht, known if noise is None else known / noise, engine)
    units = None if units is None else np.asarray(units, dtype=W.dtype)
    if engine.has_tiles:
        give_back_freed_memory()
    with fit_progress(title, estimator.max_iter, shown=bool(estimator.verbose)) as show:
        result = parts.algorithm(
            data.X,
            data.M,
            engine.place(W),
            Ht,
            replace(parts.method, fixed=len(known), scale=in_unit(parts.scale, unit, W.dtype)),
            engine,
            max_iter=estimator.max_iter,
            tol=estimator.tol,
            scale_floor=float(np.finfo(W.dtype).eps),
            callback=_Watch(show, estimator.callback, unit),
            **({} if units is None else {"units": engine.place(units)}),
            **({} if whole is None else {"whole": whole}),
            **({} if working == given.dtype else {"codes_dtype": getattr(engine.xp, given.dtype.name)}),
            **_checkpoint(estimator, data, unit, engine),
        )
    del whole, some  # copies of samples, for which memory has other uses
    if engine.has_tiles:
        give_back_freed_memory()
    result = result._replace(history=[iteration.in_units_of(unit) for iteration in result.history])
    totals_of_samples = None if data.M is None else engine.map(_row_totals, data.M)
    unseen = _unseen(original, known)
    components, basis = _basis(estimator, result, totals_of_samples, known, noise, unseen, parts, engine)
    basis, by_uncertainties = replace(basis, units=units), given.noise is not None
    if working != given.dtype:
        components = components.astype(given.dtype)
        basis = basis.placed(lambda array: np.asarray(to_host(array), dtype=given.dtype))
        basis = replace(basis, W=basis_of(components, noise))
        data = given.in_unit(unit, noise, given.dtype, engine)
    fitted = Fitted(parts, components, basis, unit, noise, samples, given.shape[0], result, by_uncertainties, unseen)
    if data.arrays is None and not (engine.keeps_sparse or engine.has_tiles):
        return _evaluated(fitted, data, encoding_limits(estimator), engine)
    return _described(fitted, data, encoding_limits(estimator), engine, may_overwrite=data is not original)


def _learnt_from(data: Data, init: Any, rank: int, parts: Parts, engine: Engine) -> AllSamples | None:
    """Return the data with a choice of samples that are enough to learn components, and need initial codes; or None."""
    # A warm start has the codes of all samples already.
    is_block_by_block = getattr(init, "factors", None) is not None and not isinstance(init, WarmStart)
    chooses = isinstance(parts.algorithm, Staged) and is_block_by_block
    return AllSamples.of(data.X, data.M, rank, engine) if chooses else None


def improve_fit(estimator: Any, given: Data, parts: Parts, engine: Engine) -> Fitted:
    """Go on from where the fit of an estimator ended, with data in units of X that has hardly changed.

    Components, the unit, what features and samples are divided by, and the noise are those of the estimator.
    """
    before, unit, noise = estimator._basis, estimator._unit, estimator._noise
    scaled = estimator._in_unit(given, engine)
    known = check_components(estimator.fixed_components, given.shape[1], given.dtype, before.W.shape[1])
    parts = replace(parts, penalties=before.penalties)
    method = replace(parts.method, fixed=len(known), solver=SharedGram())
    with fit_progress(type(estimator).__name__, estimator.max_iter, shown=bool(estimator.verbose)) as show:
        watch, limits = _Watch(show, estimator.callback, unit), Limits(**encoding_limits(estimator))
        result = go_on(scaled, before.placed(engine.place), method, limits, estimator.tol, engine, watch)
    result = result._replace(comparison=getattr(estimator, "comparison_", None))
    result = result._replace(history=[iteration.in_units_of(unit) for iteration in result.history])
    importance = None if scaled.M is None else engine.map(_row_totals, scaled.M)
    unseen = estimator._unseen
    components, basis = _basis(estimator, result, importance, known, noise, unseen, parts, engine)
    basis = replace(basis, units=before.units)
    about = (estimator._samples, given.shape[0], result, estimator._with_uncertainties, unseen)
    fitted = Fitted(parts, components, basis, unit, noise, *about, estimator.rejected_values_)
    return _described(fitted, scaled, encoding_limits(estimator), engine, may_overwrite=False)


def _sample_scaling(estimator: Any, given: Data, rank: int, engine: Engine) -> SampleScaling | None:
    """Return what samples are divided by, found with some of them; None for nothing.

    Squares in units of uncertainties are the same if a sample and its uncertainties are divided by a factor: then there
    is nothing to do.
    """
    if estimator.sample_scaling is None or given.noise is not None:
        return None
    return SampleScaling.of(*some_samples(given, rank, engine))


def _feature_scaling(
    estimator: Any, given: Data, rank: int, parts: Parts, engine: Engine
) -> tuple[Matrix | None, Matrix | None]:
    """Return what features are divided by, and multiplied by in least squares, each (m,) or None.

    Least squares is that of X, unless the user wants features to count alike, or weights entries by their noise: then
    the unit of a feature does not matter. Counts are all in one unit. Where there are uncertainties, they are what
    features are divided by.
    """
    if given.noise is not None or estimator.feature_scaling is None:
        return given.noise, None
    if estimator.feature_scaling == "robust":
        return feature_levels(*some_samples(given, rank, engine)), None
    assumed = parts.algorithm.noise if isinstance(parts.algorithm, Staged) else None
    if assumed is None or reads(parts.outliers) != "mixture" or estimator.fixed_components is not None:
        return None, None
    if assumed.weights_entries and assumed.of_counts:
        return None, None
    levels = choose_levels(given, rank, parts, estimator.max_iter, engine)
    if levels is None or assumed.weights_entries:
        return levels, None
    return levels, levels / levels.max()


def _with_known_noise(estimator: Any, given: Data, parts: Parts) -> Parts:
    """Return the parts without weights by noise, if those are nobody's wish and uncertainties say the same."""
    algorithm = parts.algorithm
    is_wished = not isinstance(estimator.weight_by_noise, str) or not isinstance(estimator.noise, str)
    if given.noise is None or is_wished or not isinstance(algorithm, Staged) or algorithm.noise is None:
        return parts
    return replace(parts, algorithm=replace(algorithm, noise=replace(algorithm.noise, weights_entries=False)))


class _Watch(NamedTuple):
    """What an algorithm calls after each iteration: it shows the iteration, and asks the user's callback."""

    show: Callback
    callback: Callback | None
    unit: float

    def __call__(self, iteration: Iteration) -> bool:
        iteration = iteration.in_units_of(self.unit)
        self.show(iteration)
        return self.callback is not None and bool(self.callback(iteration))


def _checkpoint(estimator: Any, data: Data, unit: float, engine: Engine) -> dict[str, Checkpoint]:
    """Return the checkpoint of a fit as an argument of its algorithm, if it has one: others need not know of any."""
    if estimator.checkpoint is None:
        return {}
    of = fit_fingerprint(estimator, data.X, data.M, unit, data.noise, engine)
    previous = PreviousFit.of(estimator)
    if previous is not None:
        of |= {"components of the last fit": content(previous.fingerprint)}
    return {"checkpoint": Checkpoint(estimator.checkpoint, of)}


def _evaluated(fitted: Fitted, data: Data, limits: dict[str, Any], engine: Engine) -> Fitted:
    """Return a fit to data that is not in memory with its objective, by the codes where it ended."""
    state = fitted.result.state
    basis = fitted.basis.placed(engine.place)
    where_it_ended = Basis(state.W, basis.code, state.weighting, noise=basis.noise, judge=basis.judge)
    how: dict[str, Any] = {"basis": where_it_ended, "engine": engine, **limits}
    losses, total, squares = engine.sum(totals, data.X, data.M, state.Ht, **how)
    penalty = penalty_value(fitted.parts.penalties, state.W, state.Ht, float(state.weighting.scale), engine)
    result = fitted.result._replace(state=state._replace(Ht=[]))  # blocks of an engine that will be gone
    objective = _loss(fitted, losses, total) + penalty
    return fitted._replace(result=result, objective=objective, n_entries=total, inlier_squares=squares)


def _described(fitted: Fitted, data: Data, limits: dict[str, Any], engine: Engine, *, may_overwrite: bool) -> Fitted:
    """Return a fit to data in memory with its objective, codes as `transform` returns them, and what it says of it."""
    basis = fitted.basis
    codes, about = describe(data, basis.placed(engine.place), limits, engine, may_overwrite=may_overwrite)
    losses, total, squares = (float(sums.sum()) for sums in (about.losses, about.totals, about.inlier_squares))
    host = NumPyEngine(n_threads=1)
    penalty = penalty_value(basis.penalties, basis.W, [to_host(codes)], float(basis.weighting.scale), host)
    objective = _loss(fitted, losses, total) + penalty
    return fitted._replace(codes=codes, about=about, objective=objective, n_entries=total, inlier_squares=squares)


def _loss(fitted: Fitted, losses: float, total: float) -> float:
    """Return the loss of the training data, as the history has it, from the sums of losses and of weights."""
    weighting = fitted.basis.weighting
    return comparable(losses, total, weighting.loss, weighting.scale / fitted.result.state.first_scale)


def _row_totals(M: Array, *, xp: Namespace) -> Array:
    """Return the total weight of each sample of a block, (B,)."""
    return xp.sum(M, axis=1, dtype=xp.float64)


def encoding_limits(estimator: Any) -> dict[str, Any]:
    """Return how far codes are to be improved."""
    # Codes are compared coordinate by coordinate, which is stricter than the objective: ten times its tolerance.
    return {"max_iter": estimator.max_iter, "tol": 10 * estimator.tol}


def describe(
    data: Data, basis: Basis, limits: dict[str, Any], engine: Engine, *, may_overwrite: bool
) -> tuple[Array, Description]:
    """Return codes of data in memory, in its unit, (n, r), and what the basis says of the entries.

    Of sparse data, outliers are sparse and weights None; weights of data in tiles are None too. If the data
    `may_overwrite` itself, the weights take its place: it can be as large as memory allows.
    """
    xp = engine.xp
    Ht = basis.encode(data.X, data.M, engine, **limits)
    if engine.keeps_sparse and data.arrays is None:
        *sums, outliers = basis.describe_sparsely(data.X, data.M, Ht, engine, **limits)
        return engine.join(Ht), Description(None, sparse_of(outliers, bool), *map(engine.join, sums))
    outliers, weights = engine.empty(data.shape, xp.bool), None
    if data.arrays is not None:  # else it takes much of the memory, and so would the weights
        X = data.whole.X
        weights = X if may_overwrite else xp.empty_like(X)
    weights_into = None if weights is None else engine.split(weights, like=data.X)
    into = weights_into, engine.split(outliers, like=data.X)
    sums = basis.describe(data.X, data.M, Ht, *into, engine, **limits)
    return engine.join(Ht), Description(weights, outliers, *(engine.join(blocks) for blocks in sums))


def can_learn_by_tiles(estimator: Any, X: Any, parts: Parts) -> bool:
    """Return whether a fit visits all of large data a few times only, and asks for nothing but blocks of samples."""
    is_default = isinstance(parts.algorithm, Staged) and isinstance(parts.method.solver, SharedGram)
    has_rank = isinstance(estimator.n_components, Integral) and estimator.n_init == 1
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if not is_default or not has_rank or len(shape) != 2 or getattr(parts.init, "factors", None) is None:
        return False
    # What samples are divided by takes longer to find than a sweep.
    is_dear = hasattr(parts.outliers, "mask") or estimator.sample_scaling is not None
    return not is_dear and has_more_than_enough(shape[0], shape[1], int(estimator.n_components))


def check_can_be_blocks(estimator: Any, parts: Parts) -> None:
    """Refuse what needs all data in one memory."""
    if parts.algorithm is take_start:
        raise IncompatibleError(f"Method {estimator.method!r} needs all data in memory; 'truncated-cauchy' does not.")
    if not parts.method.solver.works_by_sums:
        raise IncompatibleError(
            f"solver {parts.solver} needs all samples of a feature at once, and this data is not in memory. Use "
            f"one that works with sums over samples: {solvers_that('works_by_sums')}."
        )


def choose_rank(estimator: Any, data: Data, X: Any, weights: Any, uncertainties: Any, engine: Engine) -> int:
    """Return the number of components; if it is to be found, by cross-validation of X, or of some of its samples.

    `data` is what has been made of X, weights and uncertainties. A fit that starts from the components of the last one
    keeps their number.
    """
    previous = PreviousFit.of(estimator)
    is_given = not isinstance(estimator.n_components, str) or estimator.n_components != "auto"
    if previous is not None:
        wanted = estimator.n_components if is_given else len(previous.components)
        previous.check_matches(wanted, data.shape[1])
        return len(previous.components)
    if is_given:
        return check_rank(estimator.n_components, data, type(estimator).__name__, may_exceed=True)
    if is_sparse(X) and weights is None and uncertainties is None and estimator.zeros == "data":
        X = as_rows(X)
        X = X[:: max(1, X.nnz // RANK_STORED)]  # the search keeps it sparse
    elif data.arrays is None:
        n_rows = ceil(RANK_ENTRIES / data.shape[1])
        X, weights, uncertainties = even_rows(list(map(as_data, (X, weights, uncertainties))), n_rows, engine)
    else:
        X, M = map(to_host, data.whole)
        X = X if M is None else np.where(M > 0, X, np.nan)
        # With uncertainties, the weights of the data hold those too; the search makes its own of what the user gave.
        weights = M if uncertainties is None else weights
    seed = estimator.random_state if isinstance(estimator.random_state, Integral) else 0
    alone = where_data_is(clone(estimator), data.X[0])
    alone.set_params(n_components=1, callback=None, checkpoint=None)
    if not isinstance(estimator.engine, str) or estimator.engine in ("dask", "sparse", "stream"):
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


def _unseen(given: Data, known: Matrix) -> Matrix | None:
    """Return the features of which no entry is observed, (n_features,); None if there are none, or components tell."""
    if given.seen is None or len(known) or np.all(given.seen):
        return None
    unseen: Matrix = np.asarray(given.seen) == 0
    return unseen


def _basis(
    estimator: Any,
    result: Result,
    importance: Blocks | None,
    known: Matrix,
    noise: Matrix | None,
    unseen: Matrix | None,
    parts: Parts,
    engine: Engine,
) -> tuple[Matrix, Basis]:
    """Return the components, and all that is needed to encode a sample, on the host.

    Components are W' in units of X, with maximum 1 in each row but those that are known or penalised. `noise` is what
    the features were divided by, (n_features,). A sample counts by its `importance`, (n,) in all. Nothing is known of
    features that are `unseen`: what they had at the start is no result.
    """
    state = result.state
    W = to_host(state.W)
    in_units = W if noise is None else W * noise[:, None].astype(W.dtype)
    if unseen is not None:
        in_units = np.where(unseen[:, None], W.dtype.type(0), in_units)
    largest = in_units.max(axis=0)
    largest[largest == 0] = 1
    largest[: W.shape[1] if is_penalised(estimator) else len(known)] = 1
    # A copy has the strides of an array that is read from a file, even of one row: Torch orders its sums by them.
    components = (in_units / largest).T.copy()
    components[: len(known)] = known
    code = typical_code(state.W, state.Ht, importance, engine) * engine.place(largest, state.W.dtype)
    W = basis_of(components, noise)
    basis = Basis(W, code, state.weighting, parts.penalties, result.code_sweeps, result.noise, judge=result.judge)
    return components, basis.placed(to_host)


def thresholds(basis: Basis, unit: float, noise: Matrix | None) -> Matrix:
    """Return the residual in units of X beyond which an entry of each feature has weight zero, by rule or by loss.

    Where entries are judged by their noise, it is that of an entry of typical size.
    """
    judge = basis if basis.judge is None else basis.judge
    by_loss = basis.weighting.scale * sqrt(getattr(basis.weighting.loss, "cap", inf))
    by_rule = inf if basis.weighting.threshold is None else basis.weighting.threshold
    limits = np.minimum(by_rule, by_loss) if judge.noise is None else judge.noise.threshold * judge.noise.widths
    residuals = np.broadcast_to(limits, basis.W.shape[:1]).astype(np.float64)
    with np.errstate(over="ignore"):  # a threshold beyond the largest number rejects nothing
        in_units = residuals * unit if noise is None else residuals * unit * noise
        return in_units.astype(basis.W.dtype)
