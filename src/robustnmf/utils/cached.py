"""Properties that are computed once."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801  # named like the one of functools
    """A property that is computed when it is first asked for.

    In Python 3.11 the one of functools holds a lock meanwhile, one for all instances: a process that is forked in that
    moment waits for it for ever. Without the lock, two threads that ask at the same time may both compute the value.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        super().__init__(compute)
        self.lock = nullcontext()
