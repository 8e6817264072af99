"""Errors with a meaning of their own."""

SMALLEST_UNCERTAINTY = 1e-150
"""Squares of uncertainties, and the data in units of them, are to be numbers too."""


LARGEST_CODE = -1.0
"""Largest negative number that may be a code for missing, if it is repeated."""


class IncompatibleError(ValueError):
    """Two parts that cannot work together."""


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or belongs to another fit."""


class UnsolvedError(ValueError, RuntimeError):
    """A problem within a method that its solver could not solve for this data."""


class OutOfRangeError(ValueError, ArithmeticError):
    """A result that floating-point numbers cannot hold.

    Parameters
    ----------
    what : str
        What would not be finite.
    dtype : object
        The type of the numbers.
    """

    def __init__(self, what: str, dtype: object) -> None:
        dtype = str(dtype).removeprefix("torch.")
        super().__init__(
            f"The fit overflows {dtype}: {what} would not be finite. Scale X to about 1, remove entries that differ "
            "from the others by many orders of magnitude, use float64, and check penalties, uncertainties and "
            "fixed_components."
        )


class ChangedDataError(ValueError):
    """Data in memory that was changed before something was computed from it."""

    def __init__(self) -> None:
        super().__init__(
            "Weights of large data are computed from X, weights and uncertainties when they are asked for, and these "
            "have been changed since the fit. Read weights_ before you change them, or fit a copy."
        )


class DataQualityWarning(UserWarning):
    """Data that is doubtful, or so contaminated that the fit should not be trusted."""


class MissingExtraError(ImportError):
    """An optional dependency that is not installed.

    Parameters
    ----------
    module : str
        The module that is missing.
    extra : str
        The extra that brings it.
    """

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f'This needs {module}, which is not installed. Run: pip install "robustnmf[{extra}]"')


def uncertainty_error(value: float, place: str) -> ValueError:
    """Return the error for an uncertainty that cannot be used, at a sample and feature."""
    return ValueError(
        f"uncertainties must be positive and finite where X is observed, between {SMALLEST_UNCERTAINTY:g} and "
        f"{1 / SMALLEST_UNCERTAINTY:g}; got {value} at {place}. Set entries of unknown "
        "uncertainty to NaN in X, or give them a large one."
    )
