"""The unit in which data is worked on: a power of two near its typical entry, and the noise of each feature."""

from math import frexp, inf, ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]

# How much more, or less, certain an entry can be than is typical of its feature.
MOST_PRECISE = 1e9
# Weights that can be multiplied by the square of that.
LARGEST_WEIGHT = 1e280


def power_of_two_below(typical: float) -> float:
    """Return the largest power of two that is not above a typical entry of the data, in units of its noise.

    Examples
    --------
    >>> power_of_two_below(10.0)
    8.0
    """
    if not 0 < typical < inf:
        raise ValueError(
            f"X divided by its uncertainties must be finite and positive; its median is {typical:g}. Check the units "
            "of X and uncertainties."
        )
    return ldexp(1.0, frexp(typical)[1] - 1)


def in_range(values: Matrix, dtype: Any) -> Matrix:
    """Return positive numbers, limited to the range of a type, in that type: one may divide by them.

    Examples
    --------
    >>> in_range(np.array([1e-60, 2.0, 1e60]), np.float32)
    array([1.1754944e-38, 2.0000000e+00, 3.4028235e+38], dtype=float32)
    """
    number = np.finfo(dtype)
    return np.clip(values, float(number.tiny), float(number.max)).astype(dtype)


def precise(typical: Matrix, given: Matrix, observed: Matrix, weights: Matrix | None) -> Matrix:
    """Return weights of entries by their uncertainties and the weights that they have, 0 where missing, (n, m).

    The ratio of an uncertainty to that of its feature is limited to 1e-9 .. 1e9. Beyond that an entry decides alone, or
    has no influence, anyway; within it, weights stay in the range of single precision.

    Parameters
    ----------
    typical : (m,), uncertainty of each feature.
    given : (n, m), uncertainties, positive.
    observed : (n, m) of bool.
    weights : (n, m) or None.
    """
    with np.errstate(over="ignore"):
        precision = np.clip(typical / given, 1 / MOST_PRECISE, MOST_PRECISE) ** 2
    if weights is not None:
        precision = precision * np.minimum(np.asarray(weights, dtype=np.float64), LARGEST_WEIGHT)
    return np.where(observed, precision, 0.0)
