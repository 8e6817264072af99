"""Q, the sum of squared residuals in units of the uncertainties, and its minimum over codes and components.

Q does not change if a component grows and its codes shrink. So that an entry of a component has a meaning by itself,
the mean of the codes of each component is held at that of the fit: an entry is what the component gives to the feature
on average, over that mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from robustnmf.algorithm.clones import given
from robustnmf.data.blocks import check_observations
from robustnmf.refinement import newton
from robustnmf.utils.arrays import to_host

Matrix = NDArray[Any]
Term = Callable[[Matrix, Matrix], tuple[float, Matrix, Matrix]]
"""What is added to Q: from codes and components to a value and its two gradients."""

# Corrections that L-BFGS remembers. Directions in which Q hardly changes decide how far entries can move, and are found
# sooner with more.
MEMORY = 30
# Iterations at most, and the relative fall of Q at which it is at its minimum.
MOST_ITERATIONS, SMALLEST_FALL = 5000, 1e-10
# Descents that follow the first, which may end in a flat valley, and the relative fall of Q at which they end.
MOST_RESTARTS, SETTLED = 20, 1e-8


class Factors(NamedTuple):
    """Codes (n, r) and components (r, m), and their Q."""

    codes: Matrix
    components: Matrix
    Q: float


@dataclass(frozen=True)
class Squares:
    """The data of Q.

    Attributes
    ----------
    X : ndarray (n_samples, n_features)
        Data, 0 where it does not count.
    precision : ndarray (n_samples, n_features)
        Weight of each squared residual: one over the variance; 0 where an entry is missing or rejected.
    shares : ndarray (n_samples,)
        How much each sample counts in the means of the codes, 1 in all; 0 for one of which fewer entries count than
        there are components: its code is not determined, and could make any mean.
    means : ndarray (rank,)
        Means of the codes of each component, which are held.
    """

    X: Matrix
    precision: Matrix
    shares: Matrix
    means: Matrix

    @classmethod
    def of(cls, X: Matrix, precision: Matrix, counts: Matrix, codes: Matrix) -> "Squares":
        """Return the data of samples that count so often, (n,), with the means of given codes."""
        n_entries = np.count_nonzero(precision, axis=1)
        determined = n_entries >= min(codes.shape[1], n_entries.max(initial=1))
        usable = counts * determined * (n_entries > 0)
        shares = usable / max(usable.sum(), 1)
        return cls(X, precision * counts[:, None], shares, shares @ codes)

    def Q(self, codes: Matrix, components: Matrix) -> float:
        """Return the sum of squared residuals."""
        return float(np.sum(self.precision * (self.X - codes @ components) ** 2))

    def drawn(self, counts: Matrix, base: Factors) -> tuple["Squares", Factors]:
        """Return the data and the factors of samples that were drawn, and count as often as that, (n,)."""
        (rows,) = np.nonzero(counts)
        codes = base.codes[rows]
        squares = Squares.of(self.X[rows], self.precision[rows], counts[rows], codes)
        return squares, Factors(codes, base.components, squares.Q(codes, base.components))

    def minimum(
        self,
        start: Factors,
        *,
        low: Matrix | None = None,
        high: Matrix | None = None,
        zero_codes: Matrix | None = None,
        term: Term | None = None,
    ) -> Factors:
        """Return the factors of the local minimum that descent from a start leads to, by L-BFGS-B.

        Parameters
        ----------
        start : Factors
            Where the descent begins.
        low, high : ndarray (rank, n_features) or None
            Bounds of the components; by default 0 and infinity.
        zero_codes : ndarray of bool (n_samples, rank) or None
            Codes that stay zero.
        term : callable or None
            What is added to Q.
        """
        shape, cut = start.codes.shape, start.codes.size
        low = np.zeros_like(start.components) if low is None else low
        high = np.full_like(start.components, np.inf) if high is None else high
        # Units in which the curvature is about the same for all.
        units = np.concatenate(
            [_units(self.precision @ (start.components**2).T), _units((start.codes**2).T @ self.precision)], axis=None
        )
        most_codes = np.full(shape, np.inf) if zero_codes is None else np.where(zero_codes, 0.0, np.inf)
        least = np.concatenate([np.zeros(shape), low], axis=None) / units
        most = np.concatenate([most_codes, high], axis=None) / units
        bounds: Any = Bounds(least, most)

        def value(scaled: Matrix) -> tuple[float, Matrix]:
            free, components = np.split(scaled * units, [cut])
            free, components = free.reshape(shape), components.reshape(start.components.shape)
            factor = self._factor(free)
            codes = free * factor
            weighted = self.precision * (self.X - codes @ components)
            Q = float(np.sum(weighted * (self.X - codes @ components)))
            of_codes, of_components = -2 * weighted @ components.T, -2 * codes.T @ weighted
            if term is not None:
                more, more_codes, more_components = term(codes, components)
                Q, of_codes, of_components = Q + more, of_codes + more_codes, of_components + more_components
            # The chain rule through the division by the mean.
            of_free = factor * (of_codes - np.outer(self.shares, (of_codes * codes).sum(axis=0) / self.means))
            return Q, np.concatenate([of_free, of_components], axis=None) * units

        first = np.concatenate([start.codes, np.clip(start.components, low, high)], axis=None) / units
        options: Any = {
            "maxiter": MOST_ITERATIONS,
            "maxfun": 2 * MOST_ITERATIONS,
            "maxcor": MEMORY,
            "ftol": SMALLEST_FALL,
        }
        found = minimize(value, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x * units
        free, components = found[:cut].reshape(shape), found[cut:].reshape(start.components.shape)
        codes = free * self._factor(free)
        return Factors(codes, components, self.Q(codes, components))

    def refitted(self, start: Factors, low: Matrix | None = None, high: Matrix | None = None) -> Factors:
        """Return the minimum next to a start that is near it: by Newton's method, and as `minimum` where that fails.

        Parameters
        ----------
        start : Factors
            Where the descent begins.
        low, high : ndarray (rank, n_features) or None
            Bounds of the components; by default 0 and infinity.

        Returns
        -------
        Factors
            The minimum.
        """
        if start.components.size > newton.MOST_ENTRIES:
            return self.minimum(start, low=low, high=high)
        low = np.zeros_like(start.components) if low is None else low
        high = np.full_like(start.components, np.inf) if high is None else high
        codes, components, is_minimum = newton.minimum(self, start.codes, start.components, low, high)
        found = Factors(codes, components, self.Q(codes, components))
        return found if is_minimum else self.minimum(found, low=low, high=high)

    def _factor(self, free: Matrix) -> Matrix:
        """Return what codes of any means are multiplied by, (r,)."""
        return np.asarray(self.means / np.maximum(self.shares @ free, np.finfo(float).tiny))


def _units(curvature: Matrix) -> Matrix:
    """Return the unit of each variable: one over the root of its curvature, 1 where that is 0."""
    return np.where(curvature > 0, 1 / np.sqrt(np.where(curvature > 0, curvature, 1)), 1.0)


def squares_of(model: Any, X: Any, weights: Any, uncertainties: Any) -> tuple[Squares, Factors]:
    """Return the data of Q as a fitted model sees it, and the minimum of Q next to its factors.

    Entries that the model rejects do not count. Without uncertainties the width of the noise that the fit has found
    takes their place, as a standard deviation.
    """
    check_is_fitted(model)
    if model._with_uncertainties and uncertainties is None:
        raise ValueError("The model was fitted with uncertainties: pass them too.")
    data = check_observations(clone(model), X, weights, reset=True)
    values = np.asarray(to_host(data.X), dtype=np.float64)
    M = np.ones_like(values) if data.M is None else np.asarray(to_host(data.M), dtype=np.float64)
    known = given(weights, uncertainties)
    codes = np.asarray(to_host(model.transform(X, **known)), dtype=np.float64)
    components = np.asarray(to_host(model.components_), dtype=np.float64)
    kept = M * ~np.asarray(to_host(model.outlier_mask(X, **known)), dtype=bool)
    deviations = _deviations(model, uncertainties, codes @ components)
    usable = kept > 0
    precision = np.where(usable, kept, 0) / np.where(usable, deviations, 1) ** 2
    squares = Squares.of(np.where(usable, values, 0.0), precision, np.ones(len(values)), codes)
    unused = ~((squares.means > 0) & components.any(axis=1))
    if unused.any():
        numbers = ", ".join(str(k + 1) for k in np.flatnonzero(unused))
        raise ValueError(f"Every component must be in use; components {numbers} are zero. Fit fewer components.")
    start = Factors(codes, components, squares.Q(codes, components))
    return squares, _settled(squares, squares.minimum(start))


def _settled(squares: Squares, factors: Factors) -> Factors:
    """Descend again until Q does not fall any more: what is compared with the minimum must not fall below it."""
    for _ in range(MOST_RESTARTS):
        lower = squares.refitted(factors)
        if factors.Q - lower.Q <= SETTLED * factors.Q:
            return lower
        factors = lower
    return factors


def _deviations(model: Any, uncertainties: Any, predicted: Matrix) -> Matrix:
    """Return the standard deviation of each entry, (n, m)."""
    if uncertainties is not None:
        given = np.asarray(to_host(uncertainties), dtype=np.float64)
        if given.shape != predicted.shape:
            raise ValueError(f"uncertainties must have the shape of X, {predicted.shape}; got {given.shape}.")
        return given
    noise = model.noise_
    if noise is None:
        raise ValueError(
            "Q needs the uncertainty of every entry: pass uncertainties, or fit with a noise model (noise='auto')."
        )
    # The width of the noise is the median magnitude of clean residuals.
    return np.asarray(noise.width(predicted, np), dtype=np.float64) / NORMAL_MEDIAN


NORMAL_MEDIAN = 0.6744897501960817
"""Median magnitude of a normal variable of variance 1."""
