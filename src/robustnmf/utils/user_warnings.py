"""Warnings that name the line of the user."""

import sys
import warnings
from types import FrameType


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    """Return whether code is that of this package, or of what it is called through."""
    return str(frame.f_globals.get("__name__")).startswith(("robustnmf.", "sklearn."))  # `exec` need not have a name
