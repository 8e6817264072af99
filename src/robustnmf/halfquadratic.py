"""Algorithm 2 of the paper: half-quadratic programming by alternating weighted least squares.

The data are blocks of samples in rows (pieces of V'), with a weight for every entry, M, that is 0 where the
entry is missing; the codes are blocks of H'. Both half-steps are one function, called with the roles exchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from time import perf_counter
from typing import Any, NamedTuple

from robustnmf.arrays import Array, Blocks, Namespace
from robustnmf.engines.protocol import Engine
from robustnmf.losses import Loss
from robustnmf.outliers import OutlierRule
from robustnmf.scales import ScaleRule
from robustnmf.solvers import Problem, Solver


@dataclass(frozen=True, slots=True)
class Method:
    """The parts of a half-quadratic model."""

    loss: Loss
    scale: ScaleRule
    outliers: OutlierRule
    solver: Solver


class State(NamedTuple):
    """Where the alternation stands: what the next step needs."""

    W: Array
    """Basis, (m, r)."""
    Ht: Blocks
    """Codes, blocks of H' with samples in rows, (n, r) in all."""
    scale: float
    """The paper's gamma."""
    cut: Array | None
    """Magnitude beyond which an entry of each feature is an outlier, (m,); None if no rule cuts."""
    objective: float
    """Eq. (2-4), plus half the weight of all entries times c * log(scale / first_scale).

    At a fixed scale that is eq. (2-4); where the scale is estimated, the negative log-likelihood up to a factor and a
    constant, which alone can be compared between scales.
    """
    first_scale: float
    """Scale at the start."""
    outlier_share: float
    """Share of the observed entries that have weight zero."""


class Iteration(NamedTuple):
    """What happened in one iteration; iteration 0 is the start."""

    n_iter: int
    objective: float
    scale: float
    outlier_share: float
    seconds: float
    relative_change: float
    """The left side of the stopping rule (3-9)."""


class Result(NamedTuple):
    """The outcome of a run."""

    state: State
    history: list[Iteration]
    converged: bool


Callback = Callable[[Iteration], Any]


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
) -> Result:
    """Alternate until the objective stops falling, eq. (3-9), or the callback returns True."""
    begin = perf_counter()
    state = assess(V, M, W, Ht, None, method, engine, scale_floor)
    history = [_iteration(0, state, None, None, begin)]
    first, converged, stop = state, False, callback is not None and bool(callback(history[0]))
    while not (converged or stop) and len(history) <= max_iter:
        last, state = state, step(V, M, state, method, engine, scale_floor)
        history.append(_iteration(len(history), state, last, first, begin))
        converged = history[-1].relative_change <= tol
        stop = callback is not None and bool(callback(history[-1]))
    return Result(state, history, converged)


def step(V: Blocks, M: Blocks | None, state: State, method: Method, engine: Engine, scale_floor: float) -> State:
    """Make one iteration of Algorithm 2.

    Lines 2 and 3 of the paper leave open which scale the weights use; it is the one of the current residuals.
    Line 7 does not repeat the truncation; here weights are always truncated, as eq. (3-5) says.
    """
    parts = {"loss": method.loss, "scale": state.scale, "solver": method.solver, "engine": engine}
    cut = state.cut
    Ht = engine.map(half_step, V, M, state.Ht, A=state.W, cut=cut, **parts)  # lines 2 to 6
    cut_rows = None if cut is None else cut[:, None]
    W = engine.map_features(half_step, V, M, state.W, cut_rows, A=engine.join(Ht), **parts)  # lines 7 to 9
    return assess(V, M, W, Ht, state, method, engine, scale_floor)


def half_step(
    Y: Array,
    M: Array | None,
    X: Array,
    cut: Array | None = None,
    *,
    A: Array,
    loss: Loss,
    scale: Any,
    solver: Solver,
    engine: Engine,
    xp: Namespace,
) -> Array:
    """Reweight by the current residuals and improve X in Y ~ X A', row by row.

    H is updated with Y = V' (a block of samples), X = H', A = W; W with Y = V, X = W, A = H'.
    """
    Q = entry_weights(Y - X @ A.T, M, loss=loss, scale=scale, cut=cut, xp=xp)
    return solver.solve(Problem(A, Y, Q, xp), X, engine)


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
    """Measure the residuals of W and H: their scale (3-11), outliers (section 3.3) and objective (2-4)."""
    magnitudes = engine.map(residual_magnitudes, V, Ht, W=W)
    scale = max(method.scale(magnitudes, M, None if previous is None else previous.scale, engine), scale_floor)
    first_scale = scale if previous is None else previous.first_scale
    cut = method.outliers(magnitudes, M, scale, engine)
    if cut is not None:
        cut = engine.xp.broadcast_to(engine.xp.asarray(cut, dtype=W.dtype), (W.shape[0],))
    losses, n_outliers, n_observed, weight = engine.sum(
        _summarise, magnitudes, M, loss=method.loss, scale=scale, cut=cut
    )
    objective = 0.5 * (losses + method.loss.log_scale_coef * weight * log(scale / first_scale))
    return State(W, Ht, scale, cut, objective, first_scale, n_outliers / max(n_observed, 1))


def entry_weights(R: Array, M: Array | None, *, loss: Loss, scale: Any, cut: Array | None, xp: Namespace) -> Array:
    """Return the weights Q of the residuals R (or of their magnitudes): eq. (3-5), zero on outliers, times M."""
    Q = loss.weight(squared_ratio(R, scale, xp), xp)
    if cut is not None:
        Q = xp.where(xp.abs(R) > cut, 0, Q)
    return Q if M is None else Q * M


def squared_ratio(R: Array, scale: Any, xp: Namespace) -> Array:
    """Return s = (R / scale)**2, kept finite."""
    largest = scale * (float(xp.finfo(R.dtype).max) ** 0.5 / 2)
    ratio = xp.clip(R, -largest, largest) / scale
    return ratio * ratio


def residual_magnitudes(Vt: Array, Ht: Array, *, W: Array, xp: Namespace) -> Array:
    """Return |V - WH|, samples in rows."""
    return xp.abs(Vt - Ht @ W.T)


def _summarise(
    A: Array, M: Array | None, *, loss: Loss, scale: float, cut: Array | None, xp: Namespace
) -> tuple[float, int, int, float]:
    """Return the sum of M * rho, the numbers of outliers and of observed entries, and the sum of M.

    Where a rule cuts, the cut moves from one iteration to the next and with it the truncated objective; the
    untruncated one stays comparable. Truncation at a fixed cap is part of the loss and so of the objective.
    """
    s = squared_ratio(A, scale, xp)
    rho = loss.rho(s, xp)
    outlier = loss.weight(s, xp) == 0
    if cut is not None:
        outlier = outlier | (A > cut)
    if M is None:
        return float(xp.sum(rho, dtype=xp.float64)), int(xp.count_nonzero(outlier)), A.size, float(A.size)
    observed = M > 0
    return (
        float(xp.sum(M * rho, dtype=xp.float64)),
        int(xp.count_nonzero(outlier & observed)),
        int(xp.count_nonzero(observed)),
        float(xp.sum(M, dtype=xp.float64)),
    )


def _iteration(n_iter: int, state: State, last: State | None, first: State | None, begin: float) -> Iteration:
    change = float("inf")
    if last is not None and first is not None:
        change = abs(state.objective - last.objective)
        fall = abs(first.objective - state.objective)
        change = change / fall if fall > 0 else (0.0 if change == 0 else float("inf"))
    return Iteration(n_iter, state.objective, state.scale, state.outlier_share, perf_counter() - begin, change)
