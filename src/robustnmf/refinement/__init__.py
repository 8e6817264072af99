"""Weighted least squares beyond a fit: factors under constraints, and how far entries of components can move.

Both minimise Q, the sum of squared residuals in units of the uncertainties, over codes and components at once; see
`robustnmf.refinement.squares`.
"""

from robustnmf.refinement.constraints import Constrained, Constraint, bound, constrain, fix, fix_code, ratio
from robustnmf.refinement.displacement import (
    BootstrapDisplacement,
    Displacement,
    bootstrap_displacement,
    displace_components,
)

__all__ = [
    "BootstrapDisplacement",
    "Constrained",
    "Constraint",
    "Displacement",
    "bootstrap_displacement",
    "bound",
    "constrain",
    "displace_components",
    "fix",
    "fix_code",
    "ratio",
]
