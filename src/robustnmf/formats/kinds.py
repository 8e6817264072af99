"""Kinds of data that users pass, for type checkers: what a method returns depends on what it gets.

Only data in memory is listed. For arrays of other libraries, and for data on disk or on a cluster, type checkers see
`Any`. With ``engine="stream"`` results are computed when they are asked for, also those of an array in memory. Type
checkers cannot know that; ``numpy.asarray`` makes an array of such a result.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from numpy.typing import NDArray

from robustnmf.formats.labelled_matrix import LabelledMatrix


class Frame(Protocol):
    """A data frame of pandas or polars."""

    @property
    def columns(self) -> Any:
        """Names of the features."""
        ...


Numbers: TypeAlias = NDArray[Any] | Sequence[Any]
"""An array of NumPy, or a list of rows."""
InMemory: TypeAlias = Numbers | LabelledMatrix | Frame
"""What has codes that are an array of NumPy."""
Labelled = TypeVar("Labelled", bound=LabelledMatrix | Frame)
"""What `clean` and `outlier_mask` return with the labels that it came with."""
