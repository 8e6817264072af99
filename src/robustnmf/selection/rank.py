"""The number of components, chosen by how well entries that were held out are predicted."""

from collections.abc import Callable, Iterable
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from robustnmf.algorithm.clones import given, variant, where_data_is
from robustnmf.algorithm.rank_search import RankSelection, find_rank
from robustnmf.estimators import NonNegativeInput, TruncatedCauchyNMF
from robustnmf.formats.kinds import InMemory, Labelled, Numbers
from robustnmf.formats.labelled_matrix import LabelledMatrix
from robustnmf.utils.random_state import generator, seeds

Matrix = NDArray[Any]


def default_if_none(estimator: Any) -> Any:
    """Return the estimator, or a `TruncatedCauchyNMF` with its defaults."""
    return TruncatedCauchyNMF() if estimator is None else estimator


def select_rank(
    X: Any,
    ranks: Iterable[int],
    *,
    weights: Any = None,
    uncertainties: Any = None,
    n_splits: int = 5,
    estimator: Any = None,
    rule: str = "one-standard-error",
    scoring: str = "robust",
    random_state: Any = None,
    n_jobs: int | None = None,
) -> RankSelection:
    """Choose the number of components by how well hidden entries are predicted.

    In each split a tenth of the observed entries is hidden from the fits. A sample's other entries give its code, and
    the code predicts what is hidden. Splits share no entries. The result does not depend on `n_jobs`.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        Non-negative data; NaN means missing.
    ranks : iterable of int
        Ranks to try, each in [1, min(n_samples, n_features)].
    weights : array-like (n_samples, n_features) or None
        Non-negative weight of every entry, in the fits and in the scores.
    uncertainties : array-like (n_samples, n_features) or None
        Standard deviation of the noise of every entry, positive, as for `RobustNMF.fit`. The estimator is fitted with
        them, and what it misses counts in units of them.
    n_splits : int
        Number of splits, at least 2.
    estimator : estimator or None
        What is fitted: it has ``n_components`` and ``components_`` and takes NaN for missing. By default
        `TruncatedCauchyNMF`.
    rule : {"one-standard-error", "best"}
        The smallest rank whose score is within one standard error, or 2 % of the loss of clean entries, of the best
        one; or the best.
    scoring : {"robust", "squared"}
        The loss: squared errors, each capped where the best rank takes an entry for wrong, and features alike if they
        differ much in size; or plain squared errors, which a few outliers dominate.
    random_state : int, RandomState, Generator or None
        Seed of splits and starts. Every rank starts from the same seeds.
    n_jobs : int or None
        Number of fits that run in parallel, as in joblib; None means 1. On a GPU, more than 2 pay
        for many fits of small data; see the guide, *Many fits*.

    Returns
    -------
    RankSelection
        The scores of all ranks that were tried, and the rank that was chosen.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection import select_rank
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((60, 3)) @ rng.random((3, 40)) + 0.02 * rng.random((60, 40))
    >>> X[rng.random(X.shape) < 0.1] = 10.0
    >>> select_rank(X, range(1, 6), n_splits=3, random_state=0).chosen
    3
    """
    return find_rank(
        X,
        default_if_none(estimator),
        ranks=ranks,
        weights=weights,
        uncertainties=uncertainties,
        n_splits=n_splits,
        rule=rule,
        scoring=scoring,
        random_state=random_state,
        n_jobs=n_jobs,
    )


def auto_rank(
    X: Any,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    max_rank: int | None = None,
    n_splits: int = 5,
    estimator: Any = None,
    rule: str = "one-standard-error",
    scoring: str = "robust",
    random_state: Any = None,
    n_jobs: int | None = None,
    callback: Callable[[RankSelection], Any] | None = None,
) -> RankSelection:
    """Search the number of components: `select_rank` over ranks that need not be named.

    Doubles the rank, at least up to 8, until that no longer helps; then halves the gaps beside the chosen rank. An
    estimator with ``verbose=1`` shows what is found so far.

    Parameters
    ----------
    max_rank : int or None
        Highest rank to try. By default the highest at which a fit sees as many positive entries as unknowns.
    X, weights, uncertainties, n_splits, estimator, rule, scoring, random_state, n_jobs
        See `select_rank`.
    callback : function of a RankSelection, or None
        Is called after each rank with what is found so far. An exception that it raises ends the search.

    Returns
    -------
    RankSelection
        The scores of all ranks that were tried, and the rank that was chosen.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection import auto_rank
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((50, 2)) @ rng.random((2, 40)) + 0.02 * rng.random((50, 40))
    >>> auto_rank(X, n_splits=2, random_state=0).chosen
    2
    """
    return find_rank(
        X,
        default_if_none(estimator),
        search=True,
        max_rank=max_rank,
        weights=weights,
        uncertainties=uncertainties,
        n_splits=n_splits,
        rule=rule,
        scoring=scoring,
        random_state=random_state,
        n_jobs=n_jobs,
        callback=callback,
    )


class RobustNMFCV(NonNegativeInput, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Non-negative matrix factorisation that finds its number of components by cross-validation.

    Parameters
    ----------
    ranks : "auto" or iterable of int
        Ranks to try; "auto" searches, see `auto_rank`.
    estimator : estimator or None
        What is fitted, a `RobustNMF` with any parameters; by default `TruncatedCauchyNMF`.
    n_splits : int
        Number of splits of the entries.
    rule : {"one-standard-error", "best"}
        How a rank is chosen, see `select_rank`.
    scoring : {"robust", "squared"}
        The loss of hidden entries, see `select_rank`.
    random_state : int, RandomState, Generator or None
        Seed of splits and starts.
    n_jobs : int or None
        Number of fits that run in parallel.

    Attributes
    ----------
    best_estimator_ : estimator
        Fitted to all entries, with the rank that was chosen.
    best_rank_, n_components_ : int
        That rank.
    components_ : ndarray (n_components_, n_features)
        Its components.
    selection_ : RankSelection
        Scores of all ranks.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of str
        Names of the features, if X had any.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.selection import RobustNMFCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((60, 3)) @ rng.random((3, 40)) + 0.02 * rng.random((60, 40))
    >>> X[rng.random(X.shape) < 0.1] = 10.0
    >>> RobustNMFCV(ranks=(2, 3, 4), n_splits=3, random_state=0).fit_transform(X).shape
    (60, 3)
    """

    def __init__(
        self,
        ranks: Any = "auto",
        *,
        estimator: Any = None,
        n_splits: int = 5,
        rule: str = "one-standard-error",
        scoring: str = "robust",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.ranks = ranks
        self.estimator = estimator
        self.n_splits = n_splits
        self.rule = rule
        self.scoring = scoring
        self.random_state = random_state
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Self:
        """Choose the rank and learn the components of X.

        Parameters
        ----------
        X, weights, uncertainties
            See `select_rank`.
        y : None
            Ignored.

        Returns
        -------
        self
            The fitted estimator.
        """
        self.fit_transform(X, weights=weights, uncertainties=uncertainties)
        return self

    @overload
    def fit_transform(self, X: InMemory, y: Any = ..., *, weights: Any = ..., uncertainties: Any = ...) -> Matrix: ...
    @overload
    def fit_transform(self, X: Any, y: Any = ..., *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def fit_transform(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Choose the rank, learn the components of X and return its codes, (n_samples, n_components_).

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
        ndarray (n_samples, n_components)
            The codes, as an array of the library of X.
        """
        estimator, rng = where_data_is(default_if_none(self.estimator), X), generator(self.random_state)
        selection = find_rank(
            X,
            estimator,
            ranks=self.ranks,
            search=isinstance(self.ranks, str) and self.ranks == "auto",
            weights=weights,
            uncertainties=uncertainties,
            n_splits=self.n_splits,
            rule=self.rule,
            scoring=self.scoring,
            random_state=rng,
            n_jobs=self.n_jobs,
            learner=self,
        )
        model = variant(estimator, selection.chosen, seeds(rng, 1)[0])
        codes = model.fit_transform(X, **given(weights, uncertainties))
        self.best_estimator_, self.selection_ = model, selection
        self.best_rank_ = self.n_components_ = selection.chosen
        self.components_ = model.components_
        return codes

    @overload
    def transform(self, X: InMemory, *, weights: Any = ..., uncertainties: Any = ...) -> Matrix: ...
    @overload
    def transform(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def transform(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return the codes of samples, (n_samples, n_components_).

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray (n_samples, n_components)
            The codes, as an array of the library of X.
        """
        return self._fitted(X).transform(X, **given(weights, uncertainties))

    @overload
    def inverse_transform(self, X: InMemory) -> Matrix: ...
    @overload
    def inverse_transform(self, X: Any) -> Any: ...

    def inverse_transform(self, X: Any) -> Any:
        """Return the reconstruction of codes (n_samples, n_components_), in the space of the data.

        Parameters
        ----------
        X : array-like (n_samples, n_components)
            Codes.

        Returns
        -------
        ndarray (n_samples, n_features)
            Codes times components.
        """
        return self._fitted().inverse_transform(X)

    @overload
    def clean(self, X: Numbers, *, weights: Any = ..., uncertainties: Any = ...) -> Matrix: ...
    @overload
    def clean(self, X: Labelled, *, weights: Any = ..., uncertainties: Any = ...) -> Labelled: ...
    @overload
    def clean(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def clean(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return X with outliers and missing entries replaced by the reconstruction, all others untouched.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        array or data frame (n_samples, n_features)
            The cleaned data, in the form of X.
        """
        return self._fitted(X).clean(X, **given(weights, uncertainties))

    @overload
    def outlier_mask(self, X: Numbers, *, weights: Any = ..., uncertainties: Any = ...) -> NDArray[np.bool_]: ...
    @overload
    def outlier_mask(self, X: Labelled, *, weights: Any = ..., uncertainties: Any = ...) -> Labelled: ...
    @overload
    def outlier_mask(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def outlier_mask(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return True where an observed entry is an outlier, (n_samples, n_features).

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        array or data frame of bool (n_samples, n_features)
            The mask, in the form of X.
        """
        return self._fitted(X).outlier_mask(X, **given(weights, uncertainties))

    @overload
    def score_samples(self, X: InMemory, *, weights: Any = ..., uncertainties: Any = ...) -> NDArray[np.float64]: ...
    @overload
    def score_samples(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def score_samples(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return how well each sample fits, (n_samples,), see `RobustNMF.score_samples`.

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
        return self._fitted(X).score_samples(X, **given(weights, uncertainties))

    def score(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> float:
        """Return the mean of `score_samples`.

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
        float
            The mean score.
        """
        return float(np.mean(self.score_samples(X, weights=weights, uncertainties=uncertainties)))

    def _fitted(self, X: Any = None) -> Any:
        """Return the estimator that was chosen, if X has the features that it knows."""
        check_is_fitted(self, "best_estimator_")
        # Features of a labelled matrix are found by name, and what is no matrix is refused, by the estimator.
        if len(getattr(X, "shape", ())) == 2 and not isinstance(X, LabelledMatrix):
            validate_data(self, X, reset=False, skip_check_array=True)
        return self.best_estimator_
