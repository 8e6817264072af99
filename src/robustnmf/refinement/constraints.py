"""Factors of a fit under linear constraints, as in EPA PMF and ESAT: what is known of single entries is imposed."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from robustnmf.plots.base import component_place, feature_names_of, place_of
from robustnmf.refinement.squares import Factors, Squares, Term, squares_of

Matrix = NDArray[Any]

# How exactly a linear relation holds, relative to its largest term, and outer iterations at most.
TOLERANCE, MOST_ROUNDS = 1e-6, 30
# Bisections of the logarithm of the strength of a pull, and between which strengths, in units of Q.
BISECTIONS, STRENGTHS = 25, (1e-4, 1e10)


@dataclass(frozen=True)
class Constraint:
    """A linear form of entries of the factors, and the interval that it has to be in.

    Make one with `fix`, `bound`, `ratio` or `fix_code`, or from terms of your own: ``low <= sum of coefficient * entry
    <= high``.

    Parameters
    ----------
    terms : tuple of (str, int or sample, int or str, float)
        For each entry ``("component", component, feature, coefficient)`` or ``("code", sample, component,
        coefficient)``. Components are counted from 1, as in plots and reports; samples from 0.
    low, high : float
        The interval.
    """

    terms: tuple[tuple[str, Any, Any, float], ...]
    low: float
    high: float

    def __post_init__(self) -> None:
        numbers = [self.low, self.high, *(term[3] for term in self.terms)]
        if not self.terms or any(np.isnan(number) for number in numbers) or self.low > self.high:
            raise ValueError(f"A constraint needs terms, and numbers low <= high; got {self!r}.")


class Constrained(NamedTuple):
    """Factors under constraints.

    Parameters
    ----------
    components : ndarray (rank, n_features)
        The components.
    codes : ndarray (n_samples, rank)
        The codes.
    Q : float
        Sum of squared residuals.
    Q_before : float
        That of the free minimum.
    violations : ndarray (n_constraints,)
        By how much each constraint is missed: 0 but for rounding, unless `max_increase` was given.
    """

    components: Matrix
    codes: Matrix
    Q: float
    Q_before: float
    violations: Matrix

    @property
    def increase(self) -> float:
        """How much Q has grown."""
        return self.Q - self.Q_before


def fix(component: int, feature: int | str, value: float) -> Constraint:
    """Return the constraint that an entry of a component has a value, such as 0.

    An entry is what the component gives to the feature where its code is as in the fit on average: the means of the
    codes are held.

    Parameters
    ----------
    component : int
        Number of the component, from 1 on.
    feature : int or str
        Number or name of the feature.
    value : float
        The value of the entry.

    Returns
    -------
    Constraint
        For `constrain`.
    """
    return bound(component, feature, value, value)


def bound(component: int, feature: int | str, low: float = 0.0, high: float = inf) -> Constraint:
    """Return the constraint that an entry of a component is in an interval.

    Parameters
    ----------
    component : int
        Number of the component, from 1 on.
    feature : int or str
        Number or name of the feature.
    low, high : float
        Ends of the interval.

    Returns
    -------
    Constraint
        For `constrain`.
    """
    return Constraint((("component", component, feature, 1.0),), float(low), float(high))


def ratio(component: int, numerator: int | str, denominator: int | str, value: float) -> Constraint:
    """Return the constraint that two features of a component have a ratio: ``numerator = value * denominator``.

    Parameters
    ----------
    component : int
        Number of the component, from 1 on.
    numerator, denominator : int or str
        Numbers or names of the features.
    value : float
        Their ratio, finite and non-negative.

    Returns
    -------
    Constraint
        For `constrain`.
    """
    if not isfinite(value) or value < 0:
        raise ValueError(f"value must be a finite, non-negative number; got {value!r}.")
    terms = (("component", component, numerator, 1.0), ("component", component, denominator, -float(value)))
    return Constraint(terms, 0.0, 0.0)


def fix_code(sample: int, component: int, value: float) -> Constraint:
    """Return the constraint that a code has a value, such as 0 for a source that was not there.

    Parameters
    ----------
    sample : int
        Number of the sample, from 0 on.
    component : int
        Number of the component, from 1 on.
    value : float
        The value of the code.

    Returns
    -------
    Constraint
        For `constrain`.
    """
    return Constraint((("code", sample, component, 1.0),), float(value), float(value))


def constrain(
    X: Any,
    model: Any,
    constraints: Iterable[Constraint],
    *,
    weights: Any = None,
    uncertainties: Any = None,
    max_increase: float | None = None,
) -> Constrained:
    """Return the factors next to those of a model that meet constraints and have the least Q.

    Q is the sum of squared residuals in units of the uncertainties, over entries that the model does not reject. The
    model does not change: ``RobustNMF(rank, fixed_components=found.components)`` fits codes, noise and outliers to the
    components that were found.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        The data that the model was fitted to, in memory.
    model : RobustNMF
        A fitted model.
    constraints : iterable of Constraint
        What has to hold.
    weights, uncertainties : array-like (n_samples, n_features) or None
        Those that the model was fitted with. Without uncertainties, the noise that the fit has found takes their place.
    max_increase : float or None
        By how much Q may grow. Constraints then pull: they are met as well as that allows, by least squares of what
        they are missed by. None meets them exactly, whatever that costs.

    Returns
    -------
    Constrained
        The factors, and what they cost.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf import RobustNMF
    >>> from robustnmf.refinement import constrain, fix, ratio
    >>> rng = np.random.default_rng(0)
    >>> clean = rng.gamma(1.0, size=(60, 2)) @ np.array([[1.0, 0.5, 0.1, 0.2, 0.0], [0.1, 0.4, 1.0, 0.0, 0.3]])
    >>> X = np.abs(clean + 0.02 * rng.standard_normal(clean.shape))
    >>> noise = np.full(X.shape, 0.02)
    >>> model = RobustNMF(2, random_state=0).fit(X, uncertainties=noise)
    >>> found = constrain(X, model, [fix(1, 3, 0.0), ratio(2, 0, 1, 2.0)], uncertainties=noise)
    >>> float(found.components[0, 3]), round(float(found.components[1, 0] / found.components[1, 1]), 4)
    (0.0, 2.0)
    >>> bool(found.increase >= 0)
    True
    """
    wanted = list(constraints)
    if not wanted or not all(isinstance(constraint, Constraint) for constraint in wanted):
        raise ValueError(f"constraints must be a list of what fix, bound, ratio or fix_code return; got {wanted!r}.")
    if max_increase is not None and not 0 < max_increase < inf:
        raise ValueError(f"max_increase must be a positive number, or None; got {max_increase!r}.")
    squares, base = squares_of(model, X, weights, uncertainties)
    system = _System.of(wanted, feature_names_of(model, None), base)
    found = _exact(squares, base, system)
    if max_increase is not None and found.Q - base.Q > max_increase:
        found = _pulled(squares, base, system, float(max_increase))
    distances = np.abs(system.distances(found.codes, found.components))
    return Constrained(found.components, found.codes, found.Q, base.Q, distances)


@dataclass(frozen=True)
class _System:
    """Constraints as rows of a matrix: low <= A z <= high, where z are all codes and then all components."""

    A: Matrix
    """Coefficients of the entries that occur, (n_constraints, n_entries)."""
    entries: NDArray[np.intp]
    """Where these are in z, (n_entries,)."""
    low: Matrix
    high: Matrix

    @classmethod
    def of(cls, constraints: list[Constraint], names: list[str], base: Factors) -> "_System":
        """Find the entries that constraints name, and whether there are factors that meet all of them."""
        (n, rank), m = base.codes.shape, base.components.shape[1]

        def place(term: tuple[str, Any, Any, float]) -> int:
            kind, first, second, _ = term
            if kind == "component":
                return int(n * rank + component_place(first, rank) * m + place_of(second, names))
            if kind != "code" or not isinstance(first, int | np.integer) or not 0 <= first < n:
                raise ValueError(
                    f"A term must be ('component', component, feature, coefficient), or ('code', sample, component, "
                    f"coefficient) with a sample from 0 to {n - 1}; got {term!r}."
                )
            return int(first * rank + component_place(second, rank))

        places = [[place(term) for term in constraint.terms] for constraint in constraints]
        entries = np.unique([place for some in places for place in some])
        A = np.zeros((len(constraints), len(entries)))
        for row, (constraint, some) in enumerate(zip(constraints, places, strict=True)):
            np.add.at(A[row], np.searchsorted(entries, some), [term[3] for term in constraint.terms])
        low, high = (np.array([getattr(c, end) for c in constraints], dtype=float) for end in ("low", "high"))
        system = cls(A, entries, low, high)
        system.check_possible()
        return system

    def check_possible(self) -> None:
        """Refuse constraints that no non-negative factors meet."""
        rows, ends = np.concatenate([self.A, -self.A]), np.concatenate([self.high, -self.low])
        limited = np.isfinite(ends)
        found = linprog(np.zeros(self.A.shape[1]), A_ub=rows[limited], b_ub=ends[limited], bounds=(0, None))
        if limited.any() and found.status == 2:
            raise ValueError("No non-negative factors meet all constraints at once: leave out some, or widen them.")

    def distances(self, codes: Matrix, components: Matrix) -> Matrix:
        """Return by how much each constraint is missed, negative below and positive above its interval."""
        return self.missed(self.A @ np.concatenate([codes, components], axis=None)[self.entries])

    def missed(self, values: Matrix) -> Matrix:
        """Return how far values are from their intervals, with sign."""
        return np.asarray(np.minimum(values - self.low, 0) + np.maximum(values - self.high, 0))

    def part(self, rows: Matrix) -> "_System":
        """Return some of the constraints."""
        return _System(self.A[rows], self.entries, self.low[rows], self.high[rows])

    def penalty(self, strengths: Matrix, multipliers: Matrix) -> Term:
        """Return the sum of strength * (distance of form + multiplier / (2 strength) from its interval)**2."""

        def term(codes: Matrix, components: Matrix) -> tuple[float, Matrix, Matrix]:
            z = np.concatenate([codes, components], axis=None)
            missed = self.missed(self.A @ z[self.entries] + multipliers / (2 * strengths))
            gradient = np.zeros_like(z)
            gradient[self.entries] = 2 * (strengths * missed) @ self.A
            of_codes, of_components = np.split(gradient, [codes.size])
            value = float(strengths @ missed**2)
            return value, of_codes.reshape(codes.shape), of_components.reshape(components.shape)

        return term

    def sizes(self, base: Factors) -> Matrix:
        """Return the size of each form, by its largest term in the free minimum."""
        z = np.concatenate([base.codes, base.components], axis=None)[self.entries]
        largest = np.abs(self.A * z).max(axis=1)
        ends = np.maximum(np.where(np.isfinite(self.low), np.abs(self.low), 0), largest)
        sizes = np.maximum(ends, np.where(np.isfinite(self.high), np.abs(self.high), 0))
        return np.where(sizes > 0, sizes, 1.0)


def _exact(squares: Squares, base: Factors, system: _System) -> Factors:
    """Return the least Q under all constraints: bounds of single entries as such, others by augmented Lagrangians."""
    low, high = np.zeros_like(base.components), np.full_like(base.components, inf)
    zero_codes, as_bounds = np.zeros(base.codes.shape, dtype=bool), np.zeros(len(system.A), dtype=bool)
    for row, form in enumerate(system.A):
        (used,) = np.nonzero(form)
        if len(used) != 1:
            continue
        place, coefficient = int(system.entries[used[0]]), float(form[used[0]])
        least, most = sorted((system.low[row] / coefficient, system.high[row] / coefficient))
        if place >= base.codes.size:
            spot = np.unravel_index(place - base.codes.size, low.shape)
            low[spot], high[spot] = max(low[spot], least), min(high[spot], most)
            as_bounds[row] = True
        elif least <= 0 and most == 0:
            zero_codes[np.unravel_index(place, zero_codes.shape)] = as_bounds[row] = True
    bounds: dict[str, Any] = {"low": low, "high": high, "zero_codes": zero_codes}
    factors = squares.minimum(base._replace(codes=np.where(zero_codes, 0.0, base.codes)), **bounds)
    return factors if as_bounds.all() else _augmented(squares, base, factors, system.part(~as_bounds), bounds)


def _augmented(squares: Squares, base: Factors, start: Factors, system: _System, bounds: dict[str, Any]) -> Factors:
    """Return the least Q under constraints by the method of multipliers; strengths grow until it converges."""
    sizes, factors = system.sizes(base), start
    strengths = max(base.Q, 1.0) / sizes**2
    multipliers, last = np.zeros(len(sizes)), inf
    for _ in range(MOST_ROUNDS):
        factors = squares.minimum(factors, **bounds, term=system.penalty(strengths, multipliers))
        missed = float(np.max(np.abs(system.distances(factors.codes, factors.components)) / sizes))
        if missed <= TOLERANCE:
            return factors
        values = system.A @ np.concatenate([factors.codes, factors.components], axis=None)[system.entries]
        multipliers = 2 * strengths * system.missed(values + multipliers / (2 * strengths))
        strengths = strengths * (10.0 if missed > 0.25 * last else 1.0)
        last = missed
    raise ValueError(
        f"The constraints could not be met: one is still missed by {missed:.1e} of its size. The means of codes are "
        "held, which may exclude them; allow to miss them with max_increase."
    )


def _pulled(squares: Squares, base: Factors, system: _System, max_increase: float) -> Factors:
    """Return factors that miss constraints as little as an increase of Q allows, by bisection of the strength."""
    none, sizes = np.zeros(len(system.A)), system.sizes(base)
    inside, (weak, strong) = base, np.log(STRENGTHS)
    for _ in range(BISECTIONS):
        middle = (weak + strong) / 2
        pull = system.penalty(np.exp(middle) / sizes**2, none)
        found = squares.minimum(inside, term=pull)
        if found.Q - base.Q <= max_increase:
            inside, weak = found, middle
        else:
            strong = middle
    return inside
