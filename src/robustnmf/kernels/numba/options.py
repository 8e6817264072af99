"""How kernels for the CPU are compiled: they release the interpreter lock and run in one thread, on a block of its own.

Reductions may be reordered (so that they vectorise), but infinities and NaN keep their meaning.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numba import njit
from numba.core.compiler_lock import global_compiler_lock

from robustnmf.utils.process_state import hold_while_forking

hold_while_forking(global_compiler_lock)


def _can_cache() -> bool:
    """Return whether there is a folder for compiled kernels: the package's, the user's, or ``NUMBA_CACHE_DIR``."""
    try:
        njit(cache=True)(_can_cache)  # nothing is compiled before the first call
    except RuntimeError:
        return False
    return True


EXACT: dict[str, Any] = {"cache": _can_cache(), "nogil": True, "error_model": "numpy"}
FAST: dict[str, Any] = {**EXACT, "fastmath": {"reassoc", "contract", "arcp", "nsz"}}


def contiguous(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Give a kernel contiguous copies of arrays that are not: it is compiled for one layout only."""

    @wraps(kernel)
    def call(*arguments: Any) -> Any:
        return kernel(*(np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments))

    return call


def reading(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Give a kernel arrays that it must not write to: it is not compiled once more for data that is read-only."""

    @wraps(kernel)
    def call(*arguments: Any) -> Any:
        return kernel(*(read_only(a) if isinstance(a, np.ndarray) else a for a in arguments))

    return call


def read_only(a: Any) -> Any:
    """Return a view of an array that cannot be written to."""
    view = a.view()
    view.flags.writeable = False
    return view
