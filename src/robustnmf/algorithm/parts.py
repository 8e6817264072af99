"""The parts of a model, with what starts it and what runs it."""

from dataclasses import dataclass

from robustnmf.algorithm.halfquadratic import Algorithm, Method, run
from robustnmf.algorithm.initializers import Initializer
from robustnmf.model.losses import Loss
from robustnmf.model.outliers import OutlierRule
from robustnmf.model.penalties import NO_PENALTIES, Penalties
from robustnmf.model.scales import ScaleRule
from robustnmf.solvers import Solver
from robustnmf.solvers.base import as_solver


@dataclass(frozen=True, slots=True)
class Parts:
    """What a model is made of.

    Parameters
    ----------
    loss : Loss
        What is minimised.
    init : Initializer
        Where it starts.
    scale : ScaleRule
        Finds the scale of clean residuals.
    outliers : OutlierRule
        Finds the thresholds.
    solver : Solver
        Improves the factors.
    penalties : Penalties
        On codes, basis and their product.
    algorithm : callable
        What runs the iterations: `robustnmf.algorithm.halfquadratic.run` for Algorithm 2, or a schedule.
    """

    loss: Loss
    init: Initializer
    scale: ScaleRule
    outliers: OutlierRule
    solver: Solver
    penalties: Penalties = NO_PENALTIES
    algorithm: Algorithm = run

    @property
    def method(self) -> Method:
        """The parts that Algorithm 2 uses."""
        return Method(self.loss, self.scale, self.outliers, as_solver(self.solver), self.penalties)
