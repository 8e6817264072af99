"""Predictions of a model, for dense data and for data of which most entries are missing."""

from robustnmf.utils.arrays import Array
from robustnmf.utils.observed import Observed


def predictions(X: Array, W: Array, like: Array) -> Array:
    """Return X W', (B, m), of codes X (B, r) and a basis W (m, r); of `Observed` data, where its entries are stored."""
    if not isinstance(like, Observed):
        return X @ W.T
    from robustnmf.kernels.numba.stored import predict  # imported late: Numba costs a third of a second

    pattern = like.pattern
    return Observed(pattern, predict(pattern.indptr, pattern.columns, X, W), None)
