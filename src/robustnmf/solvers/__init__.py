"""HOW weighted non-negative least squares is solved: the problem, and one file per solver."""

from robustnmf.solvers.hals import HALS
from robustnmf.solvers.nesterov import Nesterov
from robustnmf.solvers.problem import Problem
from robustnmf.solvers.protocol import Solver

__all__ = ["HALS", "Nesterov", "Problem", "Solver"]
