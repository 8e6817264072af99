"""Going on from where a fit ended, after the weights of a few entries have changed.

A whole fit begins with a robust search from a random start. It is not needed again where hardly anything has changed:
components, and how wide the noise of each entry is, are known. What is left is the end of a fit: least squares on what
is right, from the present components. Entries are judged anew by the same noise every few sweeps.

To begin a whole fit at the present components instead would not do: its stages hold entries out and widen the scale,
which leads it away from a good start before it comes back, or to somewhere worse.
"""

from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from robustnmf.algorithm.encoding import Basis
from robustnmf.algorithm.halfquadratic import Iteration, Method, Result, State
from robustnmf.algorithm.holdout import Point
from robustnmf.algorithm.least_squares import Accepted, Judged, LeastSquares
from robustnmf.data.blocks import Data
from robustnmf.engines.protocol import Engine
from robustnmf.errors import IncompatibleError
from robustnmf.utils.arrays import Array, Blocks

# Sweeps of least squares before entries are judged anew, and how often that is done at most: little has changed.
SWEEPS, MOST_ROUNDS = 20, 6


class Limits(NamedTuple):
    """How far codes of samples are improved."""

    max_iter: int
    tol: float


def can_go_on(basis: Basis) -> bool:
    """Return whether a fit ended with least squares on what is right: others have more than one thing to find."""
    return basis.noise is not None and basis.sweeps is None


def go_on(
    data: Data, basis: Basis, method: Method, limits: Limits, tol: float, engine: Engine, callback: Any
) -> Result:
    """Return where least squares on what is right leads from the present components.

    Parameters
    ----------
    data : Data
        In the unit of the fit.
    basis : Basis
        Where the fit ended, on the engine.
    callback : function of an Iteration
        Is called after every few sweeps; ends them if it returns True.
    """
    if not can_go_on(basis):
        raise IncompatibleError("This fit did not end with least squares, so it cannot be gone on with: fit anew.")
    squares = LeastSquares(data.X, data.M, method, engine, tol, units=basis.units)
    W, Ht = basis.W, basis.encode(data.X, data.M, engine, **limits._asdict())
    begin, is_steady, stopped, history = perf_counter(), False, False, list[Iteration]()
    while len(history) < MOST_ROUNDS and not (is_steady or stopped):
        judged = _judged(data, basis, W, Ht, limits, engine)
        accepted = squares.accepted(judged)
        W, Ht, is_steady = squares.improved(accepted, W, Ht, SWEEPS)
        history.append(_iteration(history, squares, accepted, (W, Ht), judged, float(basis.weighting.scale), begin))
        stopped = bool(callback(history[-1]))
    last, scale = history[-1], float(basis.weighting.scale)
    state = State(W, Ht, basis.weighting, last.objective, scale, last.outlier_share)
    return Result(state, history, is_steady, stopped, noise=basis.noise, judge=basis.judge)


def _judged(data: Data, basis: Basis, W: Array, Ht: Blocks, limits: Limits, engine: Engine) -> Judged:
    """Return the point at which entries are judged: the present one, or that of the basis that judges."""
    if basis.judge is not None:
        W, Ht = basis.judge.W, basis.judge.encode(data.X, data.M, engine, **limits._asdict())
    model = basis.noise if basis.judge is None else basis.judge.noise
    assert model is not None
    return Judged(Point(W, Ht, W[:0, 0]), model)


def _iteration(
    history: list[Iteration],
    squares: LeastSquares,
    accepted: Accepted,
    factors: tuple[Array, Blocks],
    judged: Judged,
    scale: float,
    begin: float,
) -> Iteration:
    objective = squares.objective(accepted, *factors)
    change = abs(history[-1].objective - objective) / max(objective, 1e-300) if history else inf
    share = squares.rejected_share(judged)
    return Iteration(len(history), objective, scale, share, perf_counter() - begin, change)
