"""How much of the data each component explains, in numbers."""

from typing import Any

import numpy as np

from robustnmf.data.blocks import check_observations
from robustnmf.plots.base import Matrix, codes_of
from robustnmf.utils.arrays import to_host


def explained_shares(
    model: Any, X: Any, *, codes: Any = None, weights: Any = None, uncertainties: Any = None
) -> Matrix:
    """Return the part of the total of each feature that each component explains, (n_components, n_features).

    Totals are those of observed entries that are no outliers; see `robustnmf.plots.explained_share` for the parameters.

    Parameters
    ----------
    model : fitted estimator
        The model.
    X : array-like (n_samples, n_features)
        Samples; NaN is missing.
    codes : array-like (n_samples, n_components) or None
        Their codes, if they are known.
    weights, uncertainties : array-like (n_samples, n_features) or None
        As in the fit.

    Returns
    -------
    ndarray (n_components, n_features)
        The shares.
    """
    H = codes_of(model, X, codes, weights, uncertainties)
    data = check_observations(model, X, weights, reset=False)
    kept = ~mask_of(model, X, weights, uncertainties)
    kept = kept if data.M is None else kept & (data.M > 0)
    total = np.where(kept, data.X, 0).sum(axis=0, dtype=np.float64)
    given = (H.T.astype(np.float64) @ kept) * model.components_
    return np.asarray(given / np.where(total > 0, total, np.inf))


def mask_of(model: Any, X: Any, weights: Any = None, uncertainties: Any = None) -> Matrix:
    """Return which entries of X are outliers, (n, m); True only for observed ones."""
    about = {"weights": weights, "uncertainties": uncertainties}
    given = {name: values for name, values in about.items() if values is not None}
    mask = to_host(model.outlier_mask(X, **given))
    mask = mask.toarray() if hasattr(mask, "toarray") else getattr(mask, "values", mask)
    return np.asarray(mask, dtype=bool)
