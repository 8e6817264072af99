"""Which samples are wrong: an outlier detector that asks how much of each sample a robust fit had to cut off."""

from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.utils.validation import check_is_fitted

from robustnmf.algorithm.encoding import Description
from robustnmf.data.blocks import Data, Observations, check_observations
from robustnmf.data.sparse import dense_chunks, is_sparse
from robustnmf.data.validation import weights_of_stored
from robustnmf.engines import NumPyEngine
from robustnmf.errors import DataQualityWarning
from robustnmf.estimators import NonNegativeInput, RobustNMF
from robustnmf.formats.alignment import aligned_input, axes_of, check_grid, features_of, values_of
from robustnmf.utils.arrays import to_host
from robustnmf.utils.process_state import ignored_warnings

Vector = NDArray[np.float64]

# A sample is called an outlier if normal ones have as much cut off no more often than this.
FALSE_ALARMS = 0.001
# Normal samples may differ by more than chance does: so many standard deviations, by the median deviation, are allowed.
DEVIATIONS = 3.0
# Median absolute deviation of a normal distribution, in standard deviations.
MAD_OF_NORMAL = 0.6745


class RobustNMFOutlierDetector(NonNegativeInput, OutlierMixin, BaseEstimator):
    """Detector of samples of which a large part is wrong.

    A `RobustNMF` is fitted, which rejects entries that do not fit. A sample is scored by the share of its entries that
    are rejected, and among samples with the same share by how well the others fit.

    Parameters
    ----------
    n_components : int or None
        Number of components, at most ``min(n_samples, n_features)``; None leaves it to the estimator.
    contamination : "auto" or float in (0, 0.5]
        Share of outliers among the training samples. "auto" needs no share: a sample is an outlier if more of it is
        rejected than of all but one in a thousand normal samples, see Notes.
    estimator : RobustNMF or None
        What is fitted, with any parameters; by default ``RobustNMF()``. A model that rejects nothing can score samples
        by their residuals alone.
    random_state : int, RandomState, Generator or None
        Seed of the start; None leaves it to the estimator.

    Attributes
    ----------
    model_ : RobustNMF
        The fit; its ``outliers_`` tell which entries of a sample are wrong.
    offset_ : float
        Score below which a sample is an outlier.
    n_components_ : int
        Number of components.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of str
        Names of the features, if X had any.

    Notes
    -----
    With "auto", the median over the training samples of the share that is rejected is taken for that of normal samples,
    which up to half of wrong samples cannot move far. If entries are rejected independently of each other, the number
    rejected in a normal sample is binomial, with one entry more than the median as its mean to be on the safe side;
    the threshold is its quantile at 99.9 %. Where normal samples differ by more than that, it is the median plus three
    standard deviations, as the median absolute deviation gives them.

    The fit rejects entries by the typical uncertainty of their feature. Where uncertainties are given, a rejected entry
    counts only if it is beyond the threshold in units of its own uncertainty too: a sample that was measured badly, and
    is known to be, is no outlier for that.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.detectors import RobustNMFOutlierDetector
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((60, 3)) @ rng.random((3, 40)) + 0.02 * rng.random((60, 40))
    >>> X[:3, ::3] = 10.0
    >>> detector = RobustNMFOutlierDetector(n_components=3, random_state=0)
    >>> np.flatnonzero(detector.fit_predict(X) == -1)
    array([0, 1, 2])
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        contamination: Any = "auto",
        estimator: Any = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.contamination = contamination
        self.estimator = estimator
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Self:
        """Fit the model and find the threshold.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Non-negative data; NaN means missing.
        y : None
            Ignored.
        weights : array-like (n_samples, n_features) or None
            Non-negative weight of every entry, in the fit and in the shares.
        uncertainties : array-like (n_samples, n_features) or None
            Standard deviation of the noise of every entry, positive, as for `RobustNMF.fit`.

        Returns
        -------
        self
            The fitted estimator.
        """
        contamination = _check_contamination(self.contamination)
        X, weights, uncertainties = self._aligned(X, weights, uncertainties, training=True)
        if not is_sparse(values_of(X)):
            check_observations(self, X, weights, reset=True)
        with ignored_warnings((DataQualityWarning, r".*over half of the entries of \d+ sample")):  # they are looked for
            model = self._estimator().fit(X, weights=weights, uncertainties=uncertainties)
        shares, misfit, counts = self._looked_at(model, X, weights, uncertainties, reset=True)
        n_features = self.n_features_in_
        if contamination is None:
            # Half an entry more: the misfit of a sample at the threshold must not make it an outlier.
            offset = -_threshold(shares, max(int(np.median(counts)), 1)) - 0.5 / n_features
        else:
            offset = float(np.percentile(_scores(shares, misfit, n_features), 100.0 * contamination))
        self.model_, self.offset_, self.n_components_ = model, offset, model.n_components_
        return self

    def score_samples(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Vector:
        """Return how normal each sample is, (n_samples,), higher is more normal.

        Minus the (weighted) share of its entries that are rejected, less half of an entry's share times the misfit of
        the others, which is between 0 and 1: so the misfit decides between samples with the same number of rejected
        entries. A sample without observed entries scores zero. Without `uncertainties`, those of a model that was
        fitted with them are the typical ones of its features.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray (n_samples,)
            The score of each sample.
        """
        check_is_fitted(self, "model_")
        X, weights, uncertainties = self._aligned(X, weights, uncertainties)
        shares, misfit, _ = self._looked_at(self.model_, X, weights, uncertainties, reset=False)
        return _scores(shares, misfit, self.n_features_in_)

    def decision_function(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Vector:
        """Return ``score_samples(X) - offset_``: negative for outliers, (n_samples,).

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray (n_samples,)
            The difference for each sample.
        """
        return np.asarray(self.score_samples(X, weights=weights, uncertainties=uncertainties) - self.offset_)

    def predict(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> NDArray[np.intp]:
        """Return 1 for normal samples and -1 for outliers, (n_samples,).

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray of int (n_samples,)
            1 for normal samples, -1 for outliers.
        """
        return np.where(self.decision_function(X, weights=weights, uncertainties=uncertainties) >= 0, 1, -1)

    def fit_predict(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> NDArray[np.intp]:
        """Fit to X and return 1 for its normal samples and -1 for outliers, (n_samples,).

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        y : None
            Ignored.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray of int (n_samples,)
            1 for normal samples, -1 for outliers.
        """
        arguments = {"weights": weights, "uncertainties": uncertainties}
        return self.fit(X, **arguments).predict(X, **arguments)

    def _aligned(self, X: Any, weights: Any, uncertainties: Any, *, training: bool = False) -> tuple[Any, Any, Any]:
        """Return data with the features of this detector, in its order, and what is known of its entries."""
        remembered = None if training else self.model_.input_
        if remembered is not None:
            check_grid(axes_of(X)[1], remembered.features, "X", f"the data that {type(self).__name__} was fitted to")
        features = None if training else features_of(self.model_)
        may_use_file = training or self.model_._with_uncertainties
        known: dict[str, Any] = {"features": features, "model": type(self).__name__, "may_use_file": may_use_file}
        return aligned_input(X, weights, uncertainties, **known)

    def _looked_at(
        self, model: RobustNMF, X: Any, weights: Any, uncertainties: Any, *, reset: bool
    ) -> tuple[Vector, Vector, Vector]:
        """Return for each sample the share of its wrong entries, the misfit and the number of its entries, (n,)."""
        weights = weights_of_stored(X, weights) if model.zeros == "missing" else weights
        found: list[tuple[Vector, ...]] = []
        for some in dense_chunks(X, weights, uncertainties):
            data = check_observations(self, *some[:2], reset=reset and not found)
            n_samples, n_features = data.X.shape
            counts = np.full(n_samples, n_features) if data.M is None else np.count_nonzero(data.M, axis=1)
            found.append((*self._shares_and_misfit(model, data, *some), counts))
        shares, misfit, counts = (np.concatenate(part) for part in zip(*found, strict=True))
        return shares, misfit, counts

    def _shares_and_misfit(
        self, model: RobustNMF, data: Observations, X: Any, weights: Any, uncertainties: Any
    ) -> tuple[Vector, Vector]:
        """Return for each sample the share of its entries that are wrong, and the misfit of the others, (n,)."""
        if uncertainties is None:
            about = _described(model, data)[1]
            return _shares(about.outliers, about.weights, data.M)
        if model._noise is None or not model._with_uncertainties:
            raise ValueError("This detector was fitted without uncertainties: fit it with them, or leave them out.")
        options: dict[str, Any] = {"uncertainties": uncertainties, "noise": model._noise}
        codes, about = _described(model, check_observations(self, X, weights, **options, reset=False))
        spread = np.asarray(to_host(uncertainties), dtype=np.float64) / model._noise
        predicted = codes @ model.components_
        if model.noise_ is None:
            ratios = np.abs(data.X - predicted) / model.thresholds_
        else:
            ratios = model.noise_.ratios(data.X, predicted, np)
        explained = np.isfinite(model.thresholds_) & (ratios <= spread)
        return _shares(about.outliers & ~explained, about.weights, data.M)

    def _estimator(self) -> RobustNMF:
        """Return an unfitted estimator with the parameters that are set here."""
        estimator: RobustNMF = RobustNMF() if self.estimator is None else clone(self.estimator)
        own = {"n_components": self.n_components, "random_state": self.random_state}
        estimator.set_params(**{name: value for name, value in own.items() if value is not None})
        return estimator


def _described(model: RobustNMF, data: Observations) -> tuple[NDArray[Any], Description]:
    """Return codes of samples, and what the model says of their entries, on the host."""
    with NumPyEngine().running() as engine:
        return model._encode_and_describe(Data.of(data, engine), engine)


def _shares(wrong: NDArray[Any], weights: Any, M: NDArray[Any] | None) -> tuple[Vector, Vector]:
    """Return the share of the entries of each sample that are wrong, and the misfit of the others in [0, 1], (n,)."""
    M = np.ones_like(weights) if M is None else M
    return _share(wrong, M), _share(1 - weights, np.where(wrong, 0, M))


def _scores(shares: Vector, misfit: Vector, n_features: int) -> Vector:
    """Return scores in which the misfit weighs less than one entry that is cut."""
    return np.asarray(-shares - 0.5 * misfit / n_features)


def _share(values: NDArray[Any], M: NDArray[Any]) -> Vector:
    """Return the weighted mean of each row, 0 where nothing counts, (n,)."""
    totals = M.sum(axis=1, dtype=np.float64)
    sums = np.sum(M * values, axis=1, dtype=np.float64)
    return np.asarray(sums / np.where(totals > 0, totals, 1))


def _threshold(shares: Vector, n_entries: int) -> float:
    """Return the share that is exceeded in hardly any normal sample of so many entries."""
    typical = float(np.median(shares))
    spread = float(np.median(np.abs(shares - typical))) / MAD_OF_NORMAL
    probability = min(typical + 1 / n_entries, 1.0)
    by_chance = float(binom.isf(FALSE_ALARMS, n_entries, probability)) / n_entries
    return max(by_chance, typical + DEVIATIONS * spread)


def _check_contamination(contamination: Any) -> float | None:
    """Return the share of outliers, or None if it is not given."""
    if isinstance(contamination, str) and contamination == "auto":
        return None
    if not isinstance(contamination, Real) or not 0 < float(contamination) <= 0.5:
        raise ValueError(f'contamination must be "auto" or a share in (0, 0.5]; got {contamination!r}.')
    return float(contamination)
