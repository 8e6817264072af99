"""The columns of the tables: what each method is called, and the estimator behind it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from robustnmf import RobustNMF, TruncatedCauchyNMF

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "kmeans": "K-means",
        "nenmf": "L2-NMF",
        "l21": "L2,1-NMF",
        "rnmf-l1": "RNMF-L1",
        "mahnmf": "L1-NMF",
        "huber": "Huber-NMF",
        "cim": "CIM-NMF",
        "cauchy": "CauchyNMF",
        "truncated-cauchy": "Truncated CauchyNMF",
        "default": "robustnmf default",
    }
)
"""Methods as the paper calls them, ours last. L2-NMF is solved by NeNMF and L1-NMF by MahNMF, as in the paper."""

MODELS = tuple(name for name in TITLES if name != "kmeans")


def model(method: Any, rank: int, trial: int, **limits: Any) -> RobustNMF:
    """Return the estimator of a column.

    All but the last run as they were published, for the same number of iterations and to the same tolerance
    (`limits`); the default is run as a user would, without any argument.
    """
    if method == "default":
        return TruncatedCauchyNMF(rank, random_state=trial)
    return RobustNMF(rank, method=method, preset="published", random_state=trial, **limits)
