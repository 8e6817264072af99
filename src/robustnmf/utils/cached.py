"""Properties that are computed once."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class cached_property(Generic[Value]):  # noqa: N801  # named like the one of functools
    """A property that is computed when it is first asked for.

    `functools.cached_property` of Python 3.11 holds a lock meanwhile, one for all instances: a process that is forked
    in that moment waits for it for ever. Here, two threads that ask at the same time may both compute the value.

    Examples
    --------
    >>> class Square:
    ...     def __init__(self, side):
    ...         self.side = side
    ...
    ...     @cached_property
    ...     def area(self):
    ...         print("computed")
    ...         return self.side**2
    >>> square = Square(3)
    >>> square.area, square.area
    computed
    (9, 9)
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "cached_property[Value]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> "cached_property[Value] | Value":
        if instance is None:
            return self
        # In the dictionary of the instance it is found before this method is.
        value: Value = instance.__dict__.setdefault(self.name, self.compute(instance))
        return value
