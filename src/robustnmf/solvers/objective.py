"""What a solver lowers: by a sweep over both factors, or by a half-step over the rows of one."""

from typing import NamedTuple

from robustnmf.model.penalties import NO_PENALTIES, Penalties, Penalty
from robustnmf.model.weighting import Weighting


class Objective(NamedTuple):
    """The weighted squares of the residuals, and penalties on both factors."""

    weighting: Weighting
    penalties: Penalties = NO_PENALTIES
    fixed: int = 0
    """Columns of W, the first ones, that stay as they are."""


class Terms(NamedTuple):
    """The same for one factor, the other being known."""

    weighting: Weighting
    penalty: Penalty | None = None
    fixed: int = 0
    """Columns of this factor, the first ones, that stay as they are."""
