"""The mixture of Laplace and uniform residuals of a histogram: by Numba, or by NumPy where Numba is not wanted.

Numba is five times as fast, but takes most of a second to load, longer than a small fit on a GPU. There the dozen
mixtures that the host fits take NumPy a few milliseconds; see `kernels.cuda.statistics` for the many others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import expm1
from typing import Any

import numpy as np

from robustnmf.kernels.mixture_constants import BINS, MAX_STEPS, SETTLED, SUPPORT, TOLERANCE, WIDEST
from robustnmf.utils.process_state import no_fork

_is_wanted: ContextVar[bool] = ContextVar("robustnmf_numba_is_wanted", default=True)


@contextmanager
def without_numba() -> Iterator[None]:
    """Let NumPy fit mixtures inside."""
    before = _is_wanted.set(False)
    try:
        yield
    finally:
        _is_wanted.reset(before)


def laplace_and_uniform(
    values: Any, weights: Any, support: float, width: float, largest: float = 0.0, rounds: int = 0
) -> tuple[float, float, float, float]:
    """Return width and share of the Laplace component among values on [0, support], the weight of these, the support.

    Parameters
    ----------
    values, weights : (k,), values not below 0
    width : float
        Where the search begins, or, without rounds, the width.
    largest, rounds : float and int
        Most rounds, after each of which the support follows the width, up to the largest.
    """
    if not _is_wanted.get():
        return laplace_and_uniform_by_numpy(values, weights, support, width, largest, rounds)
    with no_fork:
        from robustnmf.kernels.numba import functions  # imported late: Numba costs a third of a second

    return functions.laplace_and_uniform(values, weights, support, width, largest, rounds)


def laplace_and_uniform_by_numpy(
    values: Any, weights: Any, support: float, width: float, largest: float, rounds: int
) -> tuple[float, float, float, float]:
    """Return the same by NumPy; see `kernels.numba.functions` for the algorithm."""
    for _ in range(max(rounds, 1)):
        width, share, inside = _maximised(values, weights, support, width, fixed=rounds == 0)
        if rounds == 0 or inside == 0:
            break
        last, support = support, min(SUPPORT * width, largest)
        if abs(support - last) <= SETTLED * last:
            break
    return width, share, inside, support


def _maximised(values: Any, weights: Any, support: float, width: float, *, fixed: bool) -> tuple[float, float, float]:
    """Return width, share and weight on one support, by expectation-maximisation."""
    within = values <= support
    places = np.minimum((values[within] / support * BINS).astype(np.intp), BINS - 1)
    counts = np.bincount(places, weights[within], BINS)
    inside, share = float(counts.sum()), 0.8
    if inside == 0:
        return width, share, inside
    centres = (np.arange(BINS) + 0.5) * (support / BINS)
    moments = np.stack([counts, counts * centres])
    for _ in range(MAX_STEPS):
        height, uniform = share / (width * -expm1(-support / width)), (1 - share) / support
        laplace = height * np.exp(-centres / width)
        belong, moment = (moments @ (laplace / (laplace + uniform))).tolist()
        last, share = share, belong / inside
        if not fixed:
            for _ in range(5):
                width = min(moment / belong + support / expm1(min(support / width, 50.0)), WIDEST * support)
        if abs(share - last) <= TOLERANCE:
            break
    return width, share, inside
