"""Type aliases for arrays and their namespaces, used throughout the core.

The core is written against the array API, so an `Array` may be a NumPy array, a Torch tensor or
anything else that ``array_api_compat`` understands; static typing cannot say more than that.
Shapes are given in docstrings, in the letters of the paper.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

Array: TypeAlias = Any
Namespace: TypeAlias = Any
Blocks: TypeAlias = Sequence[Array]
