"""Fits that are tried: copies of an estimator with another rank and seed, without their warnings."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from numbers import Integral
from typing import Any

from joblib import effective_n_jobs
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from robustnmf.errors import DataQualityWarning
from robustnmf.utils.arrays import device_name, is_on_host
from robustnmf.utils.parallel import Workers
from robustnmf.utils.process_state import ignored_warnings
from robustnmf.utils.progress import without_progress

# Up to so many bytes of data, the GPU waits for Python. So many threads are as good as processes then: these take
# seconds to start.
SMALL_ON_DEVICE, FEW_JOBS = 2**24, 2


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


def workers_for(
    estimator: Any, X: Any, n_jobs: int | None, ranks: Sequence[int], arrays: Collection[str] = ()
) -> Workers:
    """Return who makes fits of an estimator, of some ranks, to data X at a time; `arrays` are given beside the data.

    On a device other than the CPU that is threads, which share the data; many fits of small data are for processes.
    """
    device = device_name(getattr(estimator, "device", None)) or "cpu"
    if device == "cpu":
        return Workers()
    many = device.startswith("cuda") and effective_n_jobs(n_jobs) > FEW_JOBS
    if not many or getattr(X, "nbytes", inf) > SMALL_ON_DEVICE:
        return Workers(in_threads=True)
    padded = {(int(rank) - 1).bit_length() for rank in ranks}  # kernels are compiled for powers of two
    kind = (device, tuple(X.shape), str(X.dtype), *sorted(padded), *arrays, str(estimator.get_params()))
    return Workers(kind=kind)


def at_least(name: str, value: Any, least: int) -> int:
    """Return a number as an int, or say how large it must be."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
    return int(value)
