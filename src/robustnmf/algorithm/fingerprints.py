"""What a fit is of, as text that is another for other data or parameters: a checkpoint is only used by the same fit."""

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.errors import CheckpointError
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host

# Parameters that may change between a fit and the one that goes on with it; fits from several starts have none. Where a
# warm start begins is compared by the components themselves.
FREE_PARAMETERS = ("verbose", "callback", "checkpoint", "engine", "device", "n_init", "warm_start")


def fit_fingerprint(
    estimator: Any, V: Blocks, M: Blocks | None, unit: float, noise: Array | None, engine: Engine
) -> dict[str, str]:
    """Return what a fit is of, by name: the data, and every parameter that matters.

    Parameters
    ----------
    V, M : blocks
        The data in its unit, and the weights of its entries.
    unit : float
        What the data was divided by: penalties and a fixed scale are in units of X.
    noise : (n_features,) or None
        What the features were divided by.
    """
    parameters = estimator.get_params(deep=False)
    named = {name: value for name, value in parameters.items() if name not in FREE_PARAMETERS}
    if isinstance(named.get("loss"), str) and named["loss"] == "auto":  # checkpoints of version 0.1 do not know it
        del named["loss"]
    of = {f"parameter {name}": content(value) for name, value in named.items()}
    of |= {"class": type(estimator).__name__, "data": data_fingerprint(V, M, engine)}
    return of | {"unit of the data": repr(float(unit)), "noise of the features": content(noise)}


def data_fingerprint(V: Blocks, M: Blocks | None, engine: Engine) -> str:
    """Return a text that is another for other data, or data that is cut otherwise."""
    numbers = [np.array([i]) for i in range(len(V))]
    high, low = engine.sum(_digest, V, M, numbers)
    kind = str(V[0].dtype).removeprefix("torch.")
    return f"{sum(len(block) for block in V)} x {V[0].shape[1]} {kind} {int(high):x}-{int(low):x}"


@block_function(on_host=True)
def _digest(Y: Array, M: Array | None, number: Array, *, xp: Namespace) -> tuple[int, int]:
    """Return a checksum of a block and its place, as two numbers whose sums over blocks do not overflow."""
    digest = hashlib.blake2b(str(int(number[0])).encode(), digest_size=8)
    for array in (Y, M):
        digest.update(b"-" if array is None else np.ascontiguousarray(to_host(array)).data)
    return int.from_bytes(digest.digest()[:4], "little"), int.from_bytes(digest.digest()[4:], "little")


def content(value: Any) -> str:
    """Return a text that is another for another value of a parameter, whatever its repr leaves out.

    Examples
    --------
    >>> content(0.5), content("hals")
    ('0.5', "'hals'")
    >>> content(np.arange(5000.0)) == content(np.where(np.arange(5000) == 2500, 0, np.arange(5000.0)))
    False
    """
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return repr(value)
    if isinstance(value, np.random.Generator):
        return f"generator {content(value.bit_generator.state)}"
    if isinstance(value, np.random.RandomState):
        return f"generator {content(value.get_state(legacy=False))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(content, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {content(item)}' for name, item in value.items())}}}"
    if is_dataclass(value) and not isinstance(value, type):
        of = ", ".join(f"{field.name}={content(getattr(value, field.name))}" for field in fields(value))
        return f"{type(value).__qualname__}({of})"
    if isinstance(value, FunctionType):
        return f"function {value.__qualname__} {_checksum(_function_content(value).encode())}"
    return _array_content(value) or _pickled_content(value)


def _array_content(value: Any) -> str:
    """Return shape and checksum of an array, a list of numbers or a data frame; nothing for any other object."""
    if not isinstance(value, list) and not hasattr(value, "__array__"):
        return ""
    array = np.asarray(to_host(value))
    data = np.ascontiguousarray(array).tobytes() if array.dtype != object else repr(array.tolist()).encode()
    return f"array {array.shape} {_checksum(data)}"


def _function_content(function: FunctionType) -> str:
    """Return code, defaults and what it encloses: what makes a function do what it does."""
    enclosed = [content(cell.cell_contents) for cell in function.__closure__ or ()]
    return f"{_code_content(function.__code__)} {content(function.__defaults__)} {enclosed}"


def _code_content(code: CodeType) -> str:
    constants = [_code_content(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def _pickled_content(value: Any) -> str:
    try:
        return f"{type(value).__qualname__} {_checksum(pickle.dumps(value, protocol=4))}"
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"A checkpoint has to tell whether parameters are the same, and {value!r} cannot be compared by its "
            "content. Make it a dataclass, or fit without a checkpoint."
        ) from error


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
