"""Classifiers that represent a sample by few of the training samples: SRC and SEC (paper section 5.3).

The training samples, each scaled to unit length, are the columns of a matrix A, the *atoms*. A test sample y is
represented as A x with a sparse code x, and belongs to the class whose atoms alone come closest to it.
"""

from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from robustnmf.classifiers.sparse_codes import (
    Dictionary,
    Floats,
    Mask,
    shortest_code,
    shortest_code_within,
    sparse_error_code,
)
from robustnmf.estimators import like
from robustnmf.model.markov import minimum_energy_labels

__all__ = ["SparseErrorCorrectionClassifier", "SparseRepresentationClassifier"]

# Share of the pixels that must be left to tell one person from another; our choice.
LEAST_VISIBLE = 0.25


class _DictionaryClassifier(ClassifierMixin, BaseEstimator):
    """What both classifiers share: atoms, and the class of smallest residual."""

    def fit(self, X: Any, y: Any) -> Self:
        """Keep the training samples as atoms.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Training samples; finite numbers.
        y : array-like (n_samples,)
            Their classes.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        self._check_features(X.shape[1])
        X = X.astype(np.float64, copy=False)
        self.classes_, self.atom_classes_ = np.unique(y, return_inverse=True)
        self.atoms_ = _unit_rows(X)
        self._largest = float(np.abs(X).max()) or 1.0
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of smallest residual of each sample, (n_samples,).

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Samples; finite numbers.

        Returns
        -------
        ndarray (n_samples,)
            A class for each sample.
        """
        best = np.argmin(self.residuals(X), axis=1)
        return np.asarray(self.classes_[best])

    def decision_function(self, X: Any) -> Floats:
        """Return scores that are higher for better classes.

        Minus the residuals, (n_samples, n_classes); with two classes, by how much the residual of the first exceeds
        that of the second, (n_samples,).

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Samples; finite numbers.

        Returns
        -------
        ndarray (n_samples, n_classes) or (n_samples,)
            The scores.
        """
        residuals = self.residuals(X)
        return residuals[:, 0] - residuals[:, 1] if len(self.classes_) == 2 else -residuals

    def residuals(self, X: Any) -> Floats:
        raise NotImplementedError

    def _check_parameters(self) -> None:
        """Raise ValueError unless the constructor's parameters are in their range."""
        raise NotImplementedError

    def _check_features(self, n_features: int) -> None:
        """Raise ValueError unless the parameters suit the number of features."""

    def _check_new(self, X: Any) -> Floats:
        check_is_fitted(self)
        checked: Floats = validate_data(self, X, reset=False, dtype=(np.float64, np.float32)).astype(np.float64)
        return checked

    def _class_parts(self, code: Floats) -> Floats:
        """Return A delta_c(x), what the atoms of each class contribute, (n_features, n_classes)."""
        used = np.flatnonzero(code)
        of_class = np.zeros((len(used), len(self.classes_)))
        of_class[np.arange(len(used)), self.atom_classes_[used]] = code[used]
        return np.asarray(self.atoms_[used].T @ of_class)


class SparseRepresentationClassifier(_DictionaryClassifier):
    """Classification by the sparsest representation in terms of the training samples (SRC).

    A sample y, scaled to unit length, gets the code x of least l1 norm, subject to a constraint, and the class c of
    smallest residual ||y - A delta_c(x)||, where delta_c keeps the coefficients of class c.

    Parameters
    ----------
    constraint : {"noise", "sparse-error", "equality"}
        What is asked of the code:

        "noise"
            ||A x - y|| <= `tolerance`.
        "sparse-error"
            y = A x + e with least ||x||_1 + ||e||_1: a part of the entries may be wrong by any amount. The residual is
            then ||y - e - A delta_c(x)||.
        "equality"
            A x = y. Needs at least as many independent training samples as features.
    tolerance : float
        Of "noise", between 0 and 1. If even the least-squares fit is farther from y, the code is that fit of least l1
        norm.
    max_steps : int
        Most steps of the solver for one sample: pieces of the path for "noise", where one atom enters or leaves at
        each, and else iterations of an interior point method or of linear programming.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
        The classes.
    atoms_ : ndarray (n_atoms, n_features)
        The training samples, scaled to unit length.
    atom_classes_ : ndarray of int (n_atoms,)
        The position of the class of each atom in `classes_`.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of str
        Names of the features, if X had any.

    References
    ----------
    J. Wright, A. Y. Yang, A. Ganesh, S. S. Sastry, Y. Ma, "Robust Face Recognition via Sparse Representation", IEEE
    TPAMI 31(2), 2009.

    Examples
    --------
    >>> from robustnmf.classifiers import SparseRepresentationClassifier
    >>> from robustnmf.datasets import load_orl
    >>> faces = load_orl()
    >>> X, y = faces.data[:100], faces.target[:100]  # ten people, ten images of each
    >>> model = SparseRepresentationClassifier().fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    """

    def __init__(self, *, constraint: str = "noise", tolerance: float = 0.05, max_steps: int = 10_000) -> None:
        self.constraint = constraint
        self.tolerance = tolerance
        self.max_steps = max_steps

    def codes(self, X: Any) -> Floats:
        """Return the sparse code of each sample scaled to unit length, (n_samples, n_atoms).

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Samples; finite numbers.

        Returns
        -------
        ndarray (n_samples, n_atoms)
            The codes.
        """
        return self._encode(_unit_rows(self._check_new(X)))

    def residuals(self, X: Any) -> Floats:
        """Return how far each sample, scaled to unit length, is from each class, (n_samples, n_classes).

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Samples; finite numbers.

        Returns
        -------
        ndarray (n_samples, n_classes)
            The residuals.
        """
        Y = _unit_rows(self._check_new(X))
        residuals = np.empty((len(Y), len(self.classes_)))
        for y, code, row in zip(Y, self._encode(Y), residuals, strict=True):
            target = self.atoms_.T @ code if self.constraint == "sparse-error" else y
            row[:] = np.linalg.norm(target[:, np.newaxis] - self._class_parts(code), axis=0)
        return residuals

    def _encode(self, Y: Floats) -> Floats:
        """Return the codes of samples of unit length."""
        A, max_steps = self.atoms_.T, int(self.max_steps)
        if self.constraint == "noise":
            dictionary = Dictionary.of(A)
            return np.array([shortest_code_within(dictionary, y, float(self.tolerance), max_steps) for y in Y])
        solve = shortest_code if self.constraint == "equality" else sparse_error_code
        return np.array([solve(A, y, max_steps) for y in Y])

    def _check_parameters(self) -> None:
        allowed = ("noise", "sparse-error", "equality")
        if self.constraint not in allowed:
            raise ValueError(f"constraint must be one of {', '.join(allowed)}; got {self.constraint!r}.")
        if not isinstance(self.tolerance, Real) or isinstance(self.tolerance, bool) or not 0 <= self.tolerance < 1:
            raise ValueError(
                "tolerance must be a number in [0, 1), the distance allowed from a sample of unit length; "
                f"got {self.tolerance!r}."
            )
        if not isinstance(self.max_steps, Integral) or isinstance(self.max_steps, bool) or self.max_steps < 1:
            raise ValueError(f"max_steps must be a positive integer; got {self.max_steps!r}.")


class Explanation(NamedTuple):
    """What `SparseErrorCorrectionClassifier` makes of one sample.

    Parameters
    ----------
    code : ndarray (n_atoms,)
        Coefficients of the atoms.
    occluded : ndarray of bool (n_features,)
        True where a pixel is occluded.
    residuals : ndarray (n_classes,)
        Relative distance of the visible pixels from each class.
    """

    code: Floats
    """Coefficients of the atoms, (n_atoms,)."""
    occluded: Mask
    """True where a pixel is occluded, (n_features,)."""
    residuals: Floats
    """Relative distance of the visible pixels from each class, (n_classes,)."""


class SparseErrorCorrectionClassifier(_DictionaryClassifier):
    """Classification of images of which a connected part is hidden (sparse error correction, SEC).

    Alternates between a sparse code of the pixels that are believed to be visible, with sparse errors (least
    ||x||_1 + ||e||_1 with y = A x + e on those pixels), and a belief about which pixels are occluded. That is a binary
    Markov random field: of a pixel with error |e| <= t, the logarithm of the likelihood is -log t if it is visible
    and log t if it is occluded; of one with a larger error, log t and 0; and every pair of unequal neighbours costs
    `smoothness`. The threshold t falls from one iteration to the next. The result is that of the iteration whose best
    class has the smallest residual, relative to the length of what is visible; at least a quarter of the pixels must
    be.

    Parameters
    ----------
    image_shape : tuple of two ints or None
        Rows and columns of an image; None means one row.
    thresholds : sequence of float
        The threshold t of each iteration, relative to the largest magnitude in the training data; between 0 and 1.
    smoothness : float
        Cost of a pair of neighbours of which one is occluded, in units of log-likelihood.

    Attributes
    ----------
    classes_ : ndarray (n_classes,)
        The classes.
    atoms_ : ndarray (n_atoms, n_features)
        The training samples, scaled to unit length.
    atom_classes_ : ndarray of int (n_atoms,)
        The position of the class of each atom in `classes_`.
    image_shape_ : tuple of two ints
        Rows and columns of an image.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of str
        Names of the features, if X had any.

    References
    ----------
    Z. Zhou, A. Wagner, H. Mobahi, J. Wright, Y. Ma, "Face Recognition with Contiguous Occlusion Using Markov Random
    Fields", ICCV, 2009.

    Examples
    --------
    >>> from robustnmf.classifiers import SparseErrorCorrectionClassifier
    >>> from robustnmf.datasets import load_orl
    >>> from robustnmf.datasets.corruptions import block_occlusion
    >>> faces = load_orl()
    >>> X, y = faces.data[:50], faces.target[:50]  # five people, ten images of each
    >>> model = SparseErrorCorrectionClassifier(image_shape=faces.image_shape).fit(X[::2], y[::2])
    >>> hidden = block_occlusion(X[1::2], 12, faces.image_shape, random_state=0)
    >>> model.score(hidden.data, y[1::2]) > 0.9
    True
    >>> bool((model.occlusion_mask(hidden.data) == hidden.mask).mean() > 0.9)
    True
    """

    def __init__(
        self,
        image_shape: tuple[int, int] | None = None,
        *,
        thresholds: tuple[float, ...] = (0.4, 0.3, 0.2, 0.15, 0.1),
        smoothness: float = 2.0,
    ) -> None:
        self.image_shape = image_shape
        self.thresholds = thresholds
        self.smoothness = smoothness

    def codes(self, X: Any) -> Floats:
        """Return the sparse code of the visible part of each sample, (n_samples, n_atoms).

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Samples; finite numbers.

        Returns
        -------
        ndarray (n_samples, n_atoms)
            The codes.
        """
        return np.array([explanation.code for explanation in self._explain(X)])

    def residuals(self, X: Any) -> Floats:
        """Return the distance of what is visible of each sample from each class, (n_samples, n_classes).

        It is relative to the length of what is visible.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Samples; finite numbers.

        Returns
        -------
        ndarray (n_samples, n_classes)
            The residuals.
        """
        return np.array([explanation.residuals for explanation in self._explain(X)])

    def occlusion_mask(self, X: Any) -> Any:
        """Return True where a pixel is occluded, shaped like X.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Samples; finite numbers.

        Returns
        -------
        array of bool (n_samples, n_features)
            The mask, in the form of X.
        """
        return like(X, np.array([explanation.occluded for explanation in self._explain(X)]))

    def _explain(self, X: Any) -> list[Explanation]:
        return [self._explain_one(y) for y in self._check_new(X)]

    def _explain_one(self, y: Floats) -> Explanation:
        """Alternate between code and occlusion, and return the best iteration."""
        best = last = self._represent(y, np.zeros(len(y), dtype=bool))
        for threshold in self.thresholds:
            error = np.abs(y - self.atoms_.T @ last.code) / self._largest
            occluded = self._occlusion(error, threshold)
            if np.count_nonzero(~occluded) < LEAST_VISIBLE * len(y):
                break
            if np.any(occluded != last.occluded):
                last = self._represent(y, occluded)
                best = min(best, last, key=lambda explanation: explanation.residuals.min())
        return best

    def _represent(self, y: Floats, occluded: Mask) -> Explanation:
        """Find the code of the visible pixels and its residuals."""
        visible = ~occluded
        code = sparse_error_code(self.atoms_.T[visible], y[visible])
        difference = y[visible, np.newaxis] - self._class_parts(code)[visible]
        length = float(np.linalg.norm(y[visible])) or 1.0
        return Explanation(code, occluded, np.linalg.norm(difference, axis=0) / length)

    def _occlusion(self, error: Floats, threshold: float) -> Mask:
        """Return the most likely occlusion, given errors relative to the range of the data."""
        large, weight = error > threshold, -np.log(threshold)
        cost_visible = np.where(large, weight, -weight).reshape(self.image_shape_)
        cost_occluded = np.where(large, 0.0, weight).reshape(self.image_shape_)
        return minimum_energy_labels(cost_visible, cost_occluded, self.smoothness).ravel()

    def _check_parameters(self) -> None:
        thresholds = np.asarray(self.thresholds, dtype=object)
        if thresholds.ndim != 1 or not all(isinstance(t, Real) and 0 < float(t) < 1 for t in thresholds):
            raise ValueError(
                "thresholds must be a sequence of numbers in (0, 1), fractions of the largest training magnitude; "
                f"got {self.thresholds!r}."
            )
        number = self.smoothness
        if not isinstance(number, Real) or isinstance(number, bool) or not 0 <= number < np.inf:
            raise ValueError(f"smoothness must be a finite number of at least 0; got {number!r}.")

    def _check_features(self, n_features: int) -> None:
        shape = (1, n_features) if self.image_shape is None else tuple(self.image_shape)
        if len(shape) != 2 or any(not isinstance(size, Integral) or size < 1 for size in shape):
            raise ValueError(f"image_shape must be two positive integers, (rows, columns); got {self.image_shape!r}.")
        if shape[0] * shape[1] != n_features:
            raise ValueError(
                f"image_shape must be (rows, columns) with rows * columns = n_features = {n_features}; "
                f"got {self.image_shape!r}."
            )
        self.image_shape_ = int(shape[0]), int(shape[1])


def _unit_rows(X: Floats) -> Floats:
    """Return the rows scaled to unit length; rows of zeros stay."""
    largest = np.abs(X).max(axis=1, keepdims=True)
    scaled = X / np.where(largest > 0, largest, 1)  # squares neither overflow nor vanish
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.asarray(scaled / np.where(length > 0, length, 1))
