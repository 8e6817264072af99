"""Going on from where a fit ended, after the weights of a few entries have changed.

A whole fit begins with a robust search from a random start. It is not needed again where hardly anything has changed:
components, and how wide the noise of each entry is, are known. What is left is the end of a fit: least squares on what
is right, from the present components. Entries are judged anew by the same noise every few sweeps.

To begin a whole fit at the present components instead would not do: its stages hold entries out and widen the scale,
which leads it away from a good start before it comes back, or to somewhere worse.

A whole fit begins there all the same if the user asks for it with ``warm_start=True``, for data that has changed: then
the noise is not known, and `PreviousFit` is where it starts.
"""

from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.encoding import Basis
from robustnmf.algorithm.halfquadratic import Iteration, Method, Result, State
from robustnmf.algorithm.holdout import Point
from robustnmf.algorithm.initializers import BlockInitializer
from robustnmf.algorithm.least_squares import Accepted, Judged, LeastSquares
from robustnmf.data.blocks import Data
from robustnmf.data.sample_scaling import SampleScaling
from robustnmf.engines.protocol import Engine
from robustnmf.errors import IncompatibleError
from robustnmf.utils.arrays import Array, Blocks, Namespace

Matrix = NDArray[Any]

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


# --- A whole fit that starts where an earlier one ended ---------------------------------------------------------------


@dataclass(frozen=True)
class WarmStart(BlockInitializer):
    """Components and codes of an earlier fit, in the unit of this one."""

    W: Matrix
    """(m, r)."""
    Ht: Blocks
    """Codes, (n, r) in all."""

    name: ClassVar[str] = "previous"

    def factors(
        self, V: Blocks, M: Blocks | None, rank: int, rng: np.random.Generator, engine: Engine
    ) -> tuple[Matrix, Blocks]:
        """Return the factors, whatever the random numbers."""
        return self.W, self.Ht


class PreviousFit(NamedTuple):
    """Where an earlier fit ended, and what its data was divided by."""

    components: Matrix
    """(r, m), in units of X."""
    basis: Basis
    unit: float
    noise: Matrix | None
    """What the features were divided by, (m,)."""
    samples: SampleScaling | None

    @classmethod
    def of(cls, estimator: Any) -> Self | None:
        """Return where the fit of an estimator ended, if its next one is to start there; else None."""
        if not (estimator.warm_start and hasattr(estimator, "components_")):
            return None
        return cls(estimator.components_, estimator._basis, estimator._unit, estimator._noise, estimator._samples)

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        """What a checkpoint compares: fits that start elsewhere are others."""
        return (self.components, self.basis.code, float(self.unit), self.noise)

    def check_matches(self, n_components: int, n_features: int) -> None:
        """Refuse data and ranks that the components are not made for."""
        for what, old, new in (
            ("n_components", len(self.components), n_components),
            ("the number of features", self.components.shape[1], n_features),
        ):
            if old != new:
                raise ValueError(
                    f"warm_start=True starts from the components of the last fit, and {what} was {old} there; got "
                    f"{new}. Keep it, or fit with warm_start=False, which starts anew."
                )

    def start(
        self,
        given: Data,
        unit: float,
        noise: Matrix | None,
        samples: SampleScaling | None,
        limits: Limits,
        engine: Engine,
    ) -> WarmStart:
        """Return the start of a fit to data that will be divided by other units.

        Codes are those of the samples in the components of the earlier fit: for the same data, where that fit ended.

        Parameters
        ----------
        given : Data
            In units of X, of as many samples as there are.
        unit : float
            What the new fit divides the data by.
        noise : (m,) or None
            What the new fit divides the features by.
        samples : SampleScaling or None
            What the new fit divides the samples by.
        limits : Limits
            How far codes are improved.
        engine : Engine
            What works on the data.

        Returns
        -------
        WarmStart
            The components, divided as the data, and codes.
        """
        data = given if self.samples is None else self.samples.divided(given, engine)
        data = data.in_unit(self.unit, self.noise, self.basis.W.dtype, engine)
        Ht = self.basis.placed(engine.place).encode(data.X, data.M, engine, **limits._asdict())
        before, now = (
            None if scaling is None else engine.split(scaling.factors(given, engine), like=given.X)
            for scaling in (self.samples, samples)
        )
        Ht = engine.map(_in_other_unit, Ht, before, now, factor=self.unit / unit)
        W = self.components.T
        return WarmStart(W if noise is None else W / noise[:, None], Ht)


def _in_other_unit(X: Array, before: Array | None, now: Array | None, *, factor: float, xp: Namespace) -> Array:
    """Return codes (B, r) in another unit; samples were divided by `before` and will be by `now`, (B, 1) each."""
    X = X * factor
    X = X if before is None else X * before
    return X if now is None else X / now
