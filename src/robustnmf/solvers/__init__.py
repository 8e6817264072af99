"""HOW the factors are improved: weighted non-negative least squares, and losses by themselves; one file per solver."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
    "SOLVERS",
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
    "solvers_that",
]

SOLVERS: Mapping[str, Any] = MappingProxyType(
    {
        solver.name: solver
        for solver in (
            HALS(),
            SharedGram(),
            Nesterov(),
            Multiplicative(),
            Armijo(),
            Smoothing(),
            WeightedMedian(),
            SparseError(),
        )
    }
)
"""The solvers that have a name."""


def solvers_that(ability: str) -> str:
    """Return the names of the solvers that have an ability, a flag of `Solver`, for a message.

    Examples
    --------
    >>> solvers_that("keeps_fixed")
    "'hals', 'shared-gram', 'nesterov' and 'multiplicative'"
    """
    *names, last = (repr(name) for name, solver in SOLVERS.items() if getattr(solver, ability))
    return f"{', '.join(names)} and {last}"
