"""Arrays of all libraries: type aliases used throughout the core, and the way to NumPy and back.

The core is written against the array API, so an `Array` may be a NumPy array, a Torch tensor or
anything else that ``array_api_compat`` understands; static typing cannot say more than that.
Shapes are given in docstrings, in the letters of the paper.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import array_api_compat
import numpy as np

Array: TypeAlias = Any
Namespace: TypeAlias = Any
Blocks: TypeAlias = Sequence[Array]


def is_foreign(X: Any) -> bool:
    """Return whether X is an array of another library than NumPy, such as a tensor of Torch."""
    return not isinstance(X, np.ndarray | np.generic) and array_api_compat.is_array_api_obj(X)


def to_host(X: Any) -> Any:
    """Return an array of another library as one of NumPy; anything else as it is.

    Examples
    --------
    >>> to_host([1.0, 2.0])
    [1.0, 2.0]
    """
    if not is_foreign(X):
        return X
    if array_api_compat.is_torch_array(X):
        return X.detach().cpu().numpy()
    return X.get() if array_api_compat.is_cupy_array(X) else np.asarray(X)


def same_kind(X: Any, values: Any) -> Any:
    """Return values as an array of the library of X, where X is; if that is NumPy or no array library, as they are."""
    if not is_foreign(X):
        return values
    return array_api_compat.array_namespace(X).asarray(values, device=array_api_compat.device(X))
