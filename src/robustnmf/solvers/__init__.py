"""HOW the factors are improved: weighted non-negative least squares, and losses by themselves; one file per solver."""

from robustnmf.solvers.absolute import Smoothing, WeightedMedian
from robustnmf.solvers.armijo import Armijo
from robustnmf.solvers.base import LeastSquaresSolver, LossSolver, Solver
from robustnmf.solvers.hals import HALS
from robustnmf.solvers.multiplicative import Multiplicative
from robustnmf.solvers.nesterov import Nesterov
from robustnmf.solvers.problem import Problem
from robustnmf.solvers.shared_gram import SharedGram
from robustnmf.solvers.sparse_error import SparseError

__all__ = [
    "HALS",
    "Armijo",
    "LeastSquaresSolver",
    "LossSolver",
    "Multiplicative",
    "Nesterov",
    "Problem",
    "SharedGram",
    "Smoothing",
    "Solver",
    "SparseError",
    "WeightedMedian",
]
