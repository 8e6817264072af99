"""Algorithm 2 of the paper: half-quadratic programming by alternating weighted least squares.

The data are blocks of samples in rows (pieces of V'), with a weight for every entry, M, that is 0 where the
entry is missing; the codes are blocks of H'. Both half-steps are one function, called with the roles exchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt
from time import perf_counter
from typing import Any, NamedTuple

from robustnmf.algorithm.checkpoint import Checkpoint, factor, is_finite, number, positive
from robustnmf.engines import NumPyEngine
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.errors import OutOfRangeError
from robustnmf.kernels.predictions import predictions
from robustnmf.model.losses import Loss
from robustnmf.model.noise import NoiseModel
from robustnmf.model.outliers import OutlierRule
from robustnmf.model.penalties import NO_PENALTIES, ElasticNet, Penalties
from robustnmf.model.scales import ScaleRule, reads
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import SharedGram, Solver
from robustnmf.solvers.objective import Objective
from robustnmf.utils.arrays import Array, Blocks, Namespace, size

# A change is measured beside what is left, and so much of the fall, as exact data leaves nothing. So many changes have
# to be small in turn: where the scale is learnt as well, single ones are by chance.
SMALL_PART, SMALL_CHANGES = 1e-3, 3
# Least squares of data with so many entries has momentum, at first this one, which grows up to a limit; and needs no
# residuals, unless hardly more is left than rounding, which of so many entries is that of a number.
LARGE_SQUARES, FIRST_MOMENTUM, MOMENTUM_GROWTH, MOST_MOMENTUM, ROUNDED_ENTRIES = 2**23, 0.5, 1.05, 0.9, 2**15
# It may end so many steps after momentum has begun.
FEWEST_STEPS = 5


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a half-quadratic model.

    Parameters
    ----------
    loss : Loss
        What is minimised.
    scale : ScaleRule
        Finds the scale of clean residuals.
    outliers : OutlierRule
        Finds the thresholds.
    solver : Solver
        Improves the factors.
    penalties : Penalties
        On codes, basis and their product, in the unit of the data.
    fixed : int
        Columns of W, the first ones, that are known and stay as they are.
    """

    loss: Loss
    scale: ScaleRule
    outliers: OutlierRule
    solver: Solver
    penalties: Penalties = NO_PENALTIES
    fixed: int = 0


class State(NamedTuple):
    """Where the alternation stands: what the next step needs.

    Parameters
    ----------
    W : array (m, r)
        Basis.
    Ht : blocks
        Codes, blocks of H' with samples in rows, (n, r) in all.
    weighting : Weighting
        Scale (the paper's gamma) and outlier thresholds of the current residuals.
    objective : float
        Eq. (2-4) in a form that can be compared between scales, plus the penalty.
    first_scale : float
        Scale at the start.
    outlier_share : float
        Share of the observed entries that have weight zero.
    """

    W: Array
    Ht: Blocks
    weighting: Weighting
    objective: float
    first_scale: float
    outlier_share: float


class Iteration(NamedTuple):
    """What happened in one iteration; iteration 0 is the start.

    Parameters
    ----------
    n_iter : int
        Its number.
    objective : float
        Eq. (2-4); of a staged fit, the mean loss of entries held out of it.
    scale : float
        Scale of clean residuals, the paper's gamma, in units of X for a callback.
    outlier_share : float
        Share of the observed entries that have weight zero.
    seconds : float
        Time since the start.
    relative_change : float
        That of the objective, as the stopping rule measures it; infinite in iteration 0.
    """

    n_iter: int
    objective: float
    scale: float
    outlier_share: float
    seconds: float
    relative_change: float

    def in_units_of(self, unit: float) -> "Iteration":
        """Return it with the scale in units of X, for data that was divided by a unit.

        Parameters
        ----------
        unit : float
            What the data was divided by.

        Returns
        -------
        Iteration
            The same iteration.
        """
        return self._replace(scale=self.scale * unit)


class Result(NamedTuple):
    """The outcome of a run.

    Parameters
    ----------
    state : State
        Where it ended.
    history : list of Iteration
        All iterations, the start first.
    converged : bool
        Whether the stopping rule was met.
    stopped : bool
        Whether the callback ended it.
    code_sweeps : int or None
        Sweeps after which the codes of samples should stop, before they follow the noise; None lets them converge.
    warning : str or None
        What the user should know of the data.
    noise : NoiseModel or None
        The noise by which entries are judged, and the accepted ones weighted alike; None judges by the weighting.
    judge : Basis or None
        The basis in which entries are judged by that noise; None for W.
    comparison : Comparison or None
        How the fit compares with least squares on all entries; None if it was not compared.
    pattern : tuple or None
        Entries that are rejected with a pattern and may be right; None if there are none, or no doubt.
    """

    state: State
    history: list[Iteration]
    converged: bool
    stopped: bool = False
    code_sweeps: int | None = None
    warning: str | None = None
    noise: NoiseModel | None = None
    judge: Any = None
    comparison: Any = None
    pattern: Any = None

    @property
    def recent_change(self) -> float:
        """The largest of the last changes, of which more than one have to be small."""
        return _last_change(self.history)


Callback = Callable[[Iteration], Any]
Algorithm = Callable[..., Result]
"""A function with the signature of `run`."""


def run(
    V: Blocks,
    M: Blocks | None,
    W: Array,
    Ht: Blocks,
    method: Method,
    engine: Engine,
    *,
    max_iter: int,
    tol: float,
    scale_floor: float,
    callback: Callback | None = None,
    checkpoint: Checkpoint | None = None,
    as_published: bool = False,
) -> Result:
    """Alternate until the objective stops falling, or the callback returns True.

    With a `checkpoint` that holds the state of an earlier run it goes on from there.

    Parameters
    ----------
    V : blocks
        Data, blocks of samples in rows, (n, m) in all; 0 where missing.
    M : blocks or None
        Weights, cut alike, 0 where missing; None if all are 1.
    W : array (m, r)
        Basis.
    Ht : blocks
        Codes, (n, r) in all, cut as V.
    method : Method
        The parts of the model.
    engine : Engine
        What works on the blocks.
    max_iter : int
        Most iterations.
    tol : float
        Relative change at which it has converged, if a few changes in turn are no larger.
    scale_floor : float
        Smallest scale: that of rounding errors.
    callback : callable or None
        Called with every `Iteration`; ends the run if it returns True.
    checkpoint : Checkpoint or None
        Where the state is saved, and read from.
    as_published : bool
        Whether one small change ends it, measured beside the fall since the start, eq. (3-9).

    Returns
    -------
    Result
        Where it ended, and its history.
    """
    begin, stop = perf_counter(), False
    n_small = 1 if as_published else SMALL_CHANGES
    resumed = None if checkpoint is None else _resume(checkpoint, V, W, method, engine)
    if resumed is not None:
        state, history = resumed
        begin -= history[-1].seconds
    else:
        state = assess(V, M, W, Ht, None, method, engine, scale_floor)
        history = [_iteration([], state, begin)]
        stop = callback is not None and bool(callback(history[0]))
    converged = _last_change(history, n_small) <= tol
    is_fast = method.loss.is_quadratic and method.solver.sweeps_by_kernel and not as_published
    squares = LargeSquares.of(V, M, method, engine, tol) if is_fast and checkpoint is None else None
    while not (converged or stop) and len(history) <= max_iter:
        if squares is None:
            state = step(V, M, state, method, engine, scale_floor)
        else:
            state = squares.step(V, state, method, engine)
        history.append(_iteration(history, state, begin, beside_rest=not as_published))
        converged = _last_change(history, n_small) <= tol and (squares is None or squares.is_under_way)
        stop = callback is not None and bool(callback(history[-1]))
        if checkpoint is not None and checkpoint.is_due():
            _save(checkpoint, state, history, engine)
    return Result(state, history, converged, stopped=stop and not converged)


def _save(checkpoint: Checkpoint, state: State, history: list[Iteration], engine: Engine) -> None:
    """Save where a run stands."""
    name, threshold = f"state-{len(history):06d}", state.weighting.threshold
    checkpoint.put(name, {"W": state.W} | ({} if threshold is None else {"cut": threshold}), state.Ht, engine)
    numbers = {"scale": float(state.weighting.scale), "first_scale": float(state.first_scale)}
    checkpoint.commit(numbers | {"name": name, "history": history}, [name])


def _resume(
    checkpoint: Checkpoint, V: Blocks, start: Array, method: Method, engine: Engine
) -> tuple[State, list[Iteration]] | None:
    """Return state and history of an earlier run, None if there was none; its basis is of the shape of the start."""
    saved = checkpoint.load()
    if saved is None:
        return None
    with checkpoint.reading():
        arrays = checkpoint.arrays(saved["name"])
        history = [Iteration(int(numbers[0]), *map(number, numbers[1:])) for numbers in saved["history"]]
        if not all(is_finite(iteration.objective) and is_finite(iteration.scale) for iteration in history):
            raise ValueError("objective and scale of iterations must be finite")
        n_thresholds = 1 if method.loss.group == "sample" else start.shape[0]
        threshold = engine.place(factor(arrays["cut"], (n_thresholds,), bounded=False)) if "cut" in arrays else None
        weighting = Weighting(method.loss, positive(saved["scale"]), threshold, method.outliers)
        W, last = engine.place(factor(arrays["W"], tuple(start.shape))), history[-1]
        Ht = checkpoint.blocks(saved["name"], V, start.shape[1], engine)
        state = State(W, Ht, weighting, last.objective, positive(saved["first_scale"]), last.outlier_share)
    return state, history


def _last_change(history: list[Iteration], number: int = SMALL_CHANGES) -> float:
    """Return the largest of so many last changes."""
    return max(iteration.relative_change for iteration in history[-number:])


def run_as_published(*parts: Any, **options: Any) -> Result:
    """Alternate with the stopping rule of the papers, eq. (3-9).

    Parameters
    ----------
    *parts, **options
        Those of `run`.

    Returns
    -------
    Result
        Where it ended, and its history.
    """
    return run(*parts, **options, as_published=True)


def take_start(*parts: Any, **options: Any) -> Result:
    """Return the start of `run` as its result: for models whose factors come from elsewhere than an alternation."""
    return run(*parts, **options | {"max_iter": 0})._replace(converged=True)


def step(V: Blocks, M: Blocks | None, state: State, method: Method, engine: Engine, scale_floor: float) -> State:
    """Make one iteration of Algorithm 2 and measure the residuals it leaves.

    Parameters
    ----------
    V : blocks
        Data, blocks of samples in rows, (n, m) in all; 0 where missing.
    M : blocks or None
        Weights, cut alike, 0 where missing; None if all are 1.
    state : State
        Where the alternation stands.
    method : Method
        The parts of the model.
    engine : Engine
        What works on the blocks.
    scale_floor : float
        Smallest scale: that of rounding errors.

    Returns
    -------
    State
        Where it stands after the iteration.
    """
    W, Ht = sweep(V, M, state.W, state.Ht, state.weighting, method, engine)
    return assess(V, M, W, engine.truncate_lineage(Ht), state, method, engine, scale_floor)


class LargeSquares:
    """Makes iterations of least squares on all entries of large data: with momentum, and without residuals.

    Momentum grows while the objective falls, and begins anew if it would rise. The objective is what a sweep knows
    anyway: the squares of the data less what the factors explain of them.
    """

    def __init__(self, squares: float, smallest: float) -> None:
        self.squares, self.smallest = squares, smallest
        self.last: State | None = None
        self.momentum, self.n_steps = FIRST_MOMENTUM, 0

    @classmethod
    def of(cls, V: Blocks, M: Blocks | None, method: Method, engine: Engine, tol: float) -> "LargeSquares | None":
        """Return it for some data; None if that is not large, or something else than least squares is wanted."""
        n_entries = sum(len(block) for block in V) * int(V[0].shape[1])
        is_plain = M is None and not method.fixed and not method.penalties
        is_plain = is_plain and reads(method.scale) == reads(method.outliers) == "nothing"
        if not is_plain or n_entries < LARGE_SQUARES or not isinstance(method.solver, SharedGram):
            return None
        if not isinstance(engine, NumPyEngine) or engine.keeps_sparse:
            return None
        # Rounding must stay far below the change that ends a fit; of more entries it averages out.
        rounding = float(engine.xp.finfo(V[0].dtype).eps) * sqrt(ROUNDED_ENTRIES / n_entries)
        return cls(float(engine.sum(_sum_of_squares, V)), 10 * rounding / max(tol, 1e-300))

    def step(self, V: Blocks, state: State, method: Method, engine: Engine) -> State:
        """Return the state after an iteration; its objective is not above that of the last one, but for rounding."""
        momentum = self.momentum if self.last is not None else 0.0
        new = self._moved(V, state, momentum, method, engine)
        if momentum and new.objective > state.objective:
            self.momentum, self.n_steps = FIRST_MOMENTUM, 0
            new = self._moved(V, state, 0.0, method, engine)
        else:
            self.momentum = min(MOMENTUM_GROWTH * self.momentum, MOST_MOMENTUM)
        self.last, self.n_steps = state, self.n_steps + 1
        return new

    @property
    def is_under_way(self) -> bool:
        """Whether momentum has had some steps since it began: until then small steps say nothing."""
        return self.n_steps >= FEWEST_STEPS

    def _moved(self, V: Blocks, state: State, momentum: float, method: Method, engine: Engine) -> State:
        """Return the state after a sweep from where momentum leads."""
        W, Ht = state.W, state.Ht
        if momentum and self.last is not None:
            how: dict[str, Any] = {"momentum": momentum, "engine": engine}
            W, Ht = (
                extrapolate(W, self.last.W, **how, xp=engine.xp),
                engine.map(extrapolate, Ht, self.last.Ht, **how),
            )
        solver = method.solver
        assert isinstance(solver, SharedGram)
        W, Ht, explained = solver.sweep_and_explain(V, W, Ht, state.weighting, engine)
        left, scale = self.squares - explained, float(state.weighting.scale)
        if left < self.smallest * self.squares:
            sums = engine.sum(_measure, V, None, Ht, W=W, weighting=state.weighting, engine=engine)
            left = sums[0] * scale * scale
        objective = comparable(left / scale / scale, float(sum(map(size, V))), method.loss, scale / state.first_scale)
        return state._replace(W=W, Ht=Ht, objective=objective)


def _sum_of_squares(Y: Array, *, xp: Namespace) -> float:
    return float(xp.sum(xp.linalg.vecdot(Y, Y), dtype=xp.float64))


def sweep(
    V: Blocks,
    M: Blocks | None,
    W: Array,
    Ht: Blocks,
    weighting: Weighting,
    method: Method,
    engine: Engine,
    hidden: Blocks | None = None,
) -> tuple[Array, Blocks]:
    """Return W and the codes after one iteration of Algorithm 2.

    Parameters
    ----------
    V : blocks
        Data, blocks of samples in rows, (n, m) in all; 0 where missing.
    M : blocks or None
        Weights, cut alike, 0 where missing; None if all are 1.
    W : array (m, r)
        Basis.
    Ht : blocks
        Codes, (n, r) in all, cut as V.
    weighting : Weighting
        Loss, scale and thresholds.
    method : Method
        The parts of the model.
    engine : Engine
        What works on the blocks.
    hidden : blocks or None
        Sample, within its block, and feature of entries that do not count, (k, 2) in all.

    Returns
    -------
    W, Ht : array (m, r), blocks
        The factors.
    """
    kept = M
    if weighting.is_spatial:  # found once for both half-steps: it takes whole samples, and time
        kept = engine.map(_kept, V, M, Ht, W=W, weighting=weighting)
        weighting = weighting.without_rule()
    return method.solver.sweep(V, kept, W, Ht, Objective(weighting, method.penalties, method.fixed), engine, hidden)


def assess(
    V: Blocks,
    M: Blocks | None,
    W: Array,
    Ht: Blocks,
    previous: State | None,
    method: Method,
    engine: Engine,
    scale_floor: float,
) -> State:
    """Measure the residuals of W and H: their scale (3-11), outliers (section 3.3) and objective (2-4).

    Parameters
    ----------
    V : blocks
        Data, blocks of samples in rows, (n, m) in all; 0 where missing.
    M : blocks or None
        Weights, cut alike, 0 where missing; None if all are 1.
    W : array (m, r)
        Basis.
    Ht : blocks
        Codes, (n, r) in all, cut as V.
    previous : State or None
        The state before, whose scale the scale rule starts from; None at the start.
    method : Method
        The parts of the model.
    engine : Engine
        What works on the blocks.
    scale_floor : float
        Smallest scale: that of rounding errors.

    Returns
    -------
    State
        The factors with what was measured.
    """
    if reads(method.scale) == reads(method.outliers) == "nothing":
        weighting = apply_rules([], None, None, method, engine, scale_floor, V[0])
        # No rule has to see all residuals at once.
        sums = engine.sum(_measure, V, M, Ht, W=W, weighting=weighting, engine=engine)
    else:
        magnitudes = magnitudes_of(V, M, W, Ht, method.loss, engine)
        counts = None if M is None else engine.map(_counts, M, weighting=Weighting(method.loss, 1.0))
        last = None if previous is None else previous.weighting.scale
        weighting = apply_rules(magnitudes, counts, last, method, engine, scale_floor, V[0])
        sums = engine.sum(_summarise, magnitudes, counts, M, weighting=weighting)
    losses, n_outliers, n_observed, weight = sums
    scale = weighting.scale
    first_scale = scale if previous is None else previous.first_scale
    objective = comparable(losses, weight, method.loss, scale / first_scale)
    if method.penalties:
        objective += penalty_value(method.penalties, W, Ht, scale, engine)
    return State(W, Ht, weighting, objective, first_scale, n_outliers / max(n_observed, 1))


def magnitudes_of(V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, loss: Loss, engine: Engine) -> Blocks:
    """Return the magnitudes of the residuals in blocks: of each entry, or of each sample if the loss says so."""
    blocks: Blocks = engine.map(_magnitudes, V, M, Ht, W=W, weighting=Weighting(loss, 1.0))
    return blocks


def apply_rules(
    magnitudes: Blocks,
    counts: Blocks | None,
    last: float | None,
    method: Method,
    engine: Engine,
    scale_floor: float,
    like: Array,
) -> Weighting:
    """Return the scale and the thresholds that the rules of the method find for the magnitudes of the residuals.

    `last` is the scale before, and `like` a block of the data.
    """
    scale = method.scale(magnitudes, counts, last, engine)
    if not 0 <= scale < inf:
        _check_magnitudes(magnitudes, engine)
        raise ValueError(
            f"A scale rule must return a non-negative, finite number; {method.scale!r} returned {scale!r}."
        )
    scale = max(float(scale), scale_floor)
    threshold = method.outliers(magnitudes, counts, scale, engine)
    if threshold is None:
        return Weighting(method.loss, scale, None, method.outliers)
    # A number is checked before it is placed: to look at it on a device is to wait for that.
    if not (threshold >= 0 if isinstance(threshold, float) else engine.xp.all(engine.place(threshold) >= 0)):
        _check_magnitudes(magnitudes, engine)
        raise ValueError(
            f"An outlier rule must return non-negative thresholds; {method.outliers!r} returned {threshold}."
        )
    n_magnitudes = 1 if method.loss.group == "sample" else like.shape[1]
    threshold = engine.xp.broadcast_to(engine.place(threshold, like.dtype), (n_magnitudes,))
    return Weighting(method.loss, scale, threshold, method.outliers)


def _check_magnitudes(magnitudes: Blocks, engine: Engine) -> None:
    """Raise OutOfRangeError if residuals are not finite: then a rule is not to blame for what it returns."""
    if len(magnitudes) and engine.sum(_count_not_finite, magnitudes):
        raise OutOfRangeError("residuals", magnitudes[0].dtype)


def _count_not_finite(A: Array, *, xp: Namespace) -> int:
    return int(xp.count_nonzero(~xp.isfinite(A)))


def comparable(losses: float, weight: float, loss: Loss, ratio: float) -> float:
    """Return the objective from the sum of rho, for residuals whose scale is `ratio` times that at the start.

    At a fixed scale it is eq. (2-4). Where the scale is estimated, sums of rho at different scales mean different
    things: what can be compared is the loss in units of the data, or the negative log-likelihood, `weight` being the
    number of entries that have one.
    """
    return float(0.5 * (ratio**loss.scale_power * losses + loss.log_scale_coef * weight * log(ratio)))


@block_function(recomputed=True, rowwise=True)
def _kept(Vt: Array, M: Array | None, Ht: Array, *, W: Array, weighting: Weighting, xp: Namespace) -> Array:
    """Return the weights M of a block of samples without outliers, (n, m)."""
    return weighting.kept(Vt - predictions(Ht, W, Vt), M, xp)


@block_function(recomputed=True, rowwise=True)
def _magnitudes(Vt: Array, M: Array | None, Ht: Array, *, W: Array, weighting: Weighting, xp: Namespace) -> Array:
    """Return the magnitudes of V - WH, samples in rows: of each entry, or of each sample."""
    return weighting.magnitudes(Vt - predictions(Ht, W, Vt), M, xp)


@block_function(recomputed=True)
def _counts(M: Array, *, weighting: Weighting, xp: Namespace) -> Array | None:
    """Return the weight with which each magnitude counts."""
    return weighting.counts(M, xp)


def penalty_value(penalties: Penalties, W: Array, Ht: Blocks, scale: float, engine: Engine) -> float:
    """Return the penalties in units of the objective, in which the square of the scale is 1."""
    total, on_codes = engine.sum(_penalty_sums, Ht, W=W, net=penalties.codes)
    return float(penalties.product / scale * total + (on_codes + penalties.basis.value(W, engine.xp)) / scale**2)


def _penalty_sums(Ht: Array, *, W: Array, net: ElasticNet, xp: Namespace) -> tuple[float, float]:
    """Return the sum of the entries of WH, and the penalty on the codes."""
    return float(xp.sum(Ht @ xp.sum(W, axis=0), dtype=xp.float64)), net.value(Ht, xp)


@block_function(rowwise=True)
def _measure(
    Vt: Array, M: Array | None, Ht: Array, *, W: Array, weighting: Weighting, engine: Engine, xp: Namespace
) -> tuple[float, int, int, float]:
    """Return what `_summarise` does, from the data."""
    kernel = engine.kernels.squares
    if M is None and kernel is not None and weighting.loss.is_quadratic and weighting.threshold is None:
        losses = kernel(Vt, M, Ht, W) / weighting.scale / weighting.scale
        if losses < inf:
            return losses, 0, size(Vt), float(size(Vt))
    A = weighting.magnitudes(Vt - predictions(Ht, W, Vt), M, xp)
    return _summarise(A, None if M is None else weighting.counts(M, xp), M, weighting=weighting, xp=xp)


def _summarise(
    A: Array, counts: Array | None, M: Array | None, *, weighting: Weighting, xp: Namespace
) -> tuple[float, int, int, float]:
    """Return the sum of rho with its counts, the numbers of outliers and of magnitudes, and the sum of the counts.

    Where a rule rejects entries, its threshold moves from one iteration to the next and with it the truncated
    objective; the untruncated one stays comparable. Truncation at a fixed cap is part of the loss and so of it.
    """
    rho = weighting.losses(A, xp)
    never = weighting.loss.is_quadratic and weighting.threshold is None
    outlier = xp.zeros_like(A, dtype=xp.bool) if never else weighting.outliers(A, M, xp)
    if counts is None:
        return float(xp.sum(rho, dtype=xp.float64)), int(xp.count_nonzero(outlier)), size(A), float(size(A))
    observed = counts > 0
    return (
        float(xp.sum(counts * rho, dtype=xp.float64)),
        int(xp.count_nonzero(outlier & observed)),
        int(xp.count_nonzero(observed)),
        float(xp.sum(counts, dtype=xp.float64)),
    )


def _iteration(history: list[Iteration], state: State, begin: float, *, beside_rest: bool = False) -> Iteration:
    """Return where an iteration led; its change is relative to the fall so far, or to what is left, if that is less."""
    change = inf
    if history:
        change = abs(state.objective - history[-1].objective)
        fall = abs(history[0].objective - state.objective)
        fall = min(fall, abs(state.objective) + SMALL_PART * fall) if beside_rest else fall
        change = change / fall if fall > 0 else (0.0 if change == 0 else inf)
    seconds = perf_counter() - begin
    scale, share = float(state.weighting.scale), float(state.outlier_share)
    return Iteration(len(history), state.objective, scale, share, seconds, change)


@block_function(light=True)
def extrapolate(new: Array, last: Array, *, momentum: float, engine: Engine, xp: Namespace) -> Array:
    """Return a factor moved on by a share of its last move, non-negative."""
    if engine.kernels.extrapolate is not None:
        return engine.kernels.extrapolate(new, last, momentum)
    moved = new + momentum * (new - last)
    return xp.where(moved > 0, moved, 0)
