"""The estimator that is used where none is given."""

from typing import Any

from robustnmf.estimators import TruncatedCauchyNMF


def default_if_none(estimator: Any) -> Any:
    """Return the estimator, or a `TruncatedCauchyNMF` with its defaults."""
    return TruncatedCauchyNMF() if estimator is None else estimator
