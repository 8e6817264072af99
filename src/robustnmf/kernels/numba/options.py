"""How kernels for the CPU are compiled: they release the interpreter lock and run in one thread, on a block of its own.

Reductions may be reordered (so that they vectorise), but infinities and NaN keep their meaning.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from numba import njit
from numba.core.compiler_lock import global_compiler_lock

from robustnmf.kernels.numba.compilation import watch_compilation
from robustnmf.utils.process_state import hold_while_forking

hold_while_forking(global_compiler_lock)


def _can_cache() -> bool:
    """Return whether there is a folder for compiled kernels: the package's, the user's, or ``NUMBA_CACHE_DIR``."""
    try:
        njit(cache=True)(_can_cache)  # nothing is compiled before the first call
    except RuntimeError:
        return False
    return True


EXACT: dict[str, Any] = {"cache": _can_cache(), "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
watch_compilation(are_kept=EXACT["cache"])
FAST: dict[str, Any] = {**EXACT, "fastmath": {"reassoc", "contract", "arcp", "nsz"}}


def contiguous(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Give a kernel contiguous copies of arrays that are not: it is compiled for one layout only."""

    @wraps(kernel)
    def call(*arguments: Any) -> Any:
        return kernel(*(np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in arguments))

    return call


def inputs(*arrays: Any) -> list[Any]:
    """Return arrays as contiguous views that cannot be written to, None as it is.

    A kernel is compiled for one layout only, and not once more for data that is read-only.
    """
    views = []
    for array in arrays:
        view = None if array is None else np.ascontiguousarray(array).view()
        if view is not None:
            view.setflags(write=False)
        views.append(view)
    return views
