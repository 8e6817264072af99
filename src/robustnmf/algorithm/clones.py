"""Fits that are tried: copies of an estimator with another rank and seed, without their warnings."""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from robustnmf.errors import DataQualityWarning
from robustnmf.utils.arrays import is_on_host
from robustnmf.utils.process_state import ignored_warnings
from robustnmf.utils.progress import without_progress


def variant(estimator: Any, rank: int, seed: int) -> Any:
    """Return an unfitted copy with another rank and seed."""
    parameters = {"n_components": rank, "random_state": seed, "checkpoint": None}  # a folder is for one fit
    known = estimator.get_params()
    return clone(estimator).set_params(**{name: value for name, value in parameters.items() if name in known})


def given(weights: Any, uncertainties: Any = None) -> dict[str, Any]:
    """Return what is given of the entries as arguments: estimators that know of neither will do without them."""
    arguments = {"weights": weights, "uncertainties": uncertainties}
    return {name: array for name, array in arguments.items() if array is not None}


@contextmanager
def quietly() -> Iterator[None]:
    """Silence trial fits: that some rank explains nothing is what the comparison is to find out."""
    empty = (UserWarning, ".*have no observed entry")
    with ignored_warnings((ConvergenceWarning, ""), (DataQualityWarning, ""), empty), without_progress():
        yield


def where_data_is(estimator: Any, X: Any) -> Any:
    """Return an estimator that works on the device of X, if X is on one and the estimator has no device yet."""
    if is_on_host(X) or "device" not in estimator.get_params() or estimator.device is not None:
        return estimator
    from robustnmf.engines.torch_engine import device_of

    return clone(estimator).set_params(device=str(device_of(X)))


def works_on_device(estimator: Any) -> bool:
    """Return whether fits of an estimator run on a device other than the CPU."""
    return getattr(estimator, "device", None) not in (None, "cpu")


def at_least(name: str, value: Any, least: int) -> int:
    """Return a number as an int, or say how large it must be."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
    return int(value)
