"""How far entries of components can move before the fit becomes clearly worse: displacement, as in EPA PMF and ESAT.

The bootstrap tells how much depends on which samples there are. Displacement tells how much is open with the samples
as they are: an entry of a component is held at other values, and all other entries and codes are fitted again, until
Q has grown by a given amount. Bootstrap-displacement does that for resampled data, and so covers both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.clones import at_least
from robustnmf.plots.base import feature_names_of, place_of
from robustnmf.refinement.squares import Factors, Squares, squares_of
from robustnmf.utils.parallel import Workers, delayed, run_all
from robustnmf.utils.random_state import generator

Matrix = NDArray[Any]

# Increases of Q that EPA PMF reports, for displacement and for displacement of resampled data.
INCREASES = (4.0, 8.0, 15.0, 25.0)
INCREASES_OF_RESAMPLED = (0.5, 1.0, 2.0, 4.0)
# Refits at most for each end of an interval, and how near Q has to come to what is asked for, relative.
MOST_REFITS, NEAR = 12, 0.05
# A step that has been doubled so often leads nowhere: the entry has no upper end.
MOST_DOUBLINGS = 20


@dataclass(frozen=True)
class Displacement:
    """How far entries of components can be displaced.

    Parameters
    ----------
    components : ndarray (rank, n_features)
        Components at the minimum of Q next to those of the model, with which the intervals begin.
    increases : tuple of float
        Increases of Q, in rising order.
    low, high : ndarray (n_increases, rank, n_features)
        Ends of the interval of each entry for each increase; NaN for features that were not displaced, and infinity
        where Q does not grow.
    swaps : ndarray of int (n_increases, rank)
        How many displaced solutions have codes of a component that are more like those of another.
    Q : float
        Sum of squared residuals at `components`.
    largest_decrease : float
        How far Q fell below that in a displaced fit: if it is more than a percent of Q, the model is not at the
        minimum, and intervals mean little.
    feature_names : tuple of str
        Names of the features.
    """

    components: Matrix
    increases: tuple[float, ...]
    low: Matrix
    high: Matrix
    swaps: Matrix
    Q: float
    largest_decrease: float
    feature_names: tuple[str, ...]

    def table(self, increase: float | None = None) -> list[dict[str, Any]]:
        """Return a row for each displaced entry, for an increase of Q, by default the smallest; for a data frame.

        Components are counted from 1, as in reports.

        Parameters
        ----------
        increase : float or None
            One of `increases`, by default the smallest.

        Returns
        -------
        list of dict
            The rows.
        """
        return _rows(self, _place_of_increase(self.increases, increase))


@dataclass(frozen=True)
class BootstrapDisplacement:
    """How far entries of components can be displaced in resampled data.

    Parameters
    ----------
    components : ndarray (rank, n_features)
        Components at the minimum of Q for all samples.
    increases : tuple of float
        Increases of Q, in rising order.
    low, high : ndarray (n_increases, rank, n_features)
        Quantiles of the ends of the intervals of the accepted resamplings; NaN for features that were not displaced.
    swaps : ndarray of int (n_increases, rank)
        Swaps while entries were displaced, over the accepted resamplings.
    swaps_in_best_fit : int
        Resamplings whose best fit has components of another identity: they are not accepted.
    accepted : int
        Resamplings that the intervals come from.
    n_boot : int
        Resamplings.
    level : float
        Level of the quantiles.
    Q : float
        Sum of squared residuals at `components`.
    largest_decrease : float
        The largest decrease of Q while an entry was displaced, over the accepted resamplings.
    feature_names : tuple of str
        Names of the features.
    """

    components: Matrix
    increases: tuple[float, ...]
    low: Matrix
    high: Matrix
    swaps: Matrix
    swaps_in_best_fit: int
    accepted: int
    n_boot: int
    level: float
    Q: float
    largest_decrease: float
    feature_names: tuple[str, ...]

    def table(self, increase: float | None = None) -> list[dict[str, Any]]:
        """Return a row for each displaced entry, as `Displacement.table` does.

        Parameters
        ----------
        increase : float or None
            One of `increases`, by default the smallest.

        Returns
        -------
        list of dict
            The rows.
        """
        return _rows(self, _place_of_increase(self.increases, increase))


def displace_components(
    X: Any,
    model: Any,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    increases: Sequence[float] = INCREASES,
    features: Sequence[int | str] | None = None,
    n_jobs: int | None = None,
) -> Displacement:
    """Return how far each entry of the components can move before Q grows by a given amount.

    Q is the sum of squared residuals in units of the uncertainties, over entries that the model does not reject. An
    entry is what its component gives to a feature where the code is as it is in the fit on average: the means of the
    codes are held, so that an entry cannot grow because its codes shrink.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        The data that the model was fitted to, in memory.
    model : RobustNMF
        A fitted model.
    weights : array-like (n_samples, n_features) or None
        The weights that it was fitted with.
    uncertainties : array-like (n_samples, n_features) or None
        The uncertainties that it was fitted with. Without, the noise that the fit has found takes their place.
    increases : sequence of float
        Increases of Q.
    features : sequence of int or str, or None
        Features to displace, by default all.
    n_jobs : int or None
        Number of entries that are displaced in parallel, as in joblib; None means 1.

    Returns
    -------
    Displacement
        The intervals.

    References
    ----------
    P. Paatero, S. Eberly, S. G. Brown, G. A. Norris, "Methods for estimating uncertainty in factor analytic solutions",
    Atmospheric Measurement Techniques, 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf import RobustNMF
    >>> from robustnmf.refinement import displace_components
    >>> rng = np.random.default_rng(0)
    >>> clean = rng.gamma(1.0, size=(60, 2)) @ np.array([[1.0, 0.5, 0.0, 0.2, 0.0], [0.0, 0.4, 1.0, 0.0, 0.3]])
    >>> X = np.abs(clean + 0.02 * rng.standard_normal(clean.shape))
    >>> noise = np.full(X.shape, 0.02)
    >>> model = RobustNMF(2, random_state=0).fit(X, uncertainties=noise)
    >>> moved = displace_components(X, model, uncertainties=noise, increases=[4.0])
    >>> bool(np.all(moved.low <= moved.components) and np.all(moved.components <= moved.high))
    True
    """
    asked = _checked_increases(increases)
    squares, base = squares_of(model, X, weights, uncertainties)
    names, places = _features(model, features)
    return _displacement(squares, base, asked, places, names, n_jobs)


def bootstrap_displacement(
    X: Any,
    model: Any,
    *,
    weights: Any = None,
    uncertainties: Any = None,
    increases: Sequence[float] = INCREASES_OF_RESAMPLED,
    features: Sequence[int | str] | None = None,
    n_boot: int = 20,
    block_size: int = 1,
    level: float = 0.9,
    random_state: Any = None,
    n_jobs: int | None = None,
) -> BootstrapDisplacement:
    """Return how far entries of the components can be displaced in resampled data.

    The samples are drawn anew, Q is minimised from the factors of the model, and the entries are displaced as in
    `displace_components`. What the model rejects stays rejected. A resampling in which codes of a component are more
    like those of another one of the model is counted and left out.

    Parameters
    ----------
    X, model, weights, uncertainties
        As in `displace_components`.
    increases : sequence of float
        Increases of Q.
    features : sequence of int or str, or None
        Features to displace, by default all: the time grows with their number.
    n_boot : int
        Resamplings.
    block_size : int
        Samples that are drawn together, for series in which neighbours are alike.
    level : float
        The ends of the intervals are quantiles ``(1 - level) / 2`` of low ends and ``(1 + level) / 2`` of high ends.
    random_state : int, RandomState, Generator or None
        Seed of the resampling.
    n_jobs : int or None
        Number of entries that are displaced in parallel, as in joblib; None means 1.

    Returns
    -------
    BootstrapDisplacement
        The intervals.
    """
    asked, n_boot = _checked_increases(increases), at_least("n_boot", n_boot, 1)
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"level must be a number in (0, 1), such as 0.9; got {level!r}.")
    squares, base = squares_of(model, X, weights, uncertainties)
    block_size = at_least("block_size", block_size, 1)
    if block_size > len(base.codes):
        raise ValueError(f"block_size must be at most the number of samples, {len(base.codes)}; got {block_size}.")
    names, places = _features(model, features)
    rng, found, swapped = generator(random_state), [], 0
    for _ in range(n_boot):
        resampled, start = squares.drawn(_drawn(len(base.codes), block_size, rng), base)
        best = resampled.minimum(start)
        if not (resampled.means > 0).all() or _swapped(best.codes, start.codes).any():
            swapped += 1
        else:
            found.append(_displacement(resampled, best, asked, places, names, n_jobs))
    if not found:
        raise ValueError(
            f"In all {n_boot} resamplings components have changed their identity, so there are no intervals: the "
            "components are not determined by this data. Fit fewer components."
        )
    ends = (1 - level) / 2, (1 + level) / 2
    return BootstrapDisplacement(
        components=base.components,
        increases=asked,
        low=np.quantile([one.low for one in found], ends[0], axis=0),
        high=np.quantile([one.high for one in found], ends[1], axis=0),
        swaps=np.sum([one.swaps for one in found], axis=0),
        swaps_in_best_fit=swapped,
        accepted=len(found),
        n_boot=n_boot,
        level=float(level),
        Q=base.Q,
        largest_decrease=max(one.largest_decrease for one in found),
        feature_names=names,
    )


def _displacement(
    squares: Squares, base: Factors, increases: tuple[float, ...], places: list[int], names: tuple[str, ...],
    n_jobs: int | None,
) -> Displacement:  # fmt: skip
    """Displace entries of components from a minimum of Q."""
    rank, m = base.components.shape
    entries = [(k, j, up) for k in range(rank) for j in places for up in (False, True)]
    calls = (delayed(_displaced_entry)(squares, base, k, j, up, increases) for k, j, up in entries)
    low, high = (np.full((len(increases), rank, m), np.nan) for _ in range(2))
    swaps, lowest = np.zeros((len(increases), rank), dtype=int), base.Q
    for (k, j, up), (ends, swapped, least) in zip(entries, run_all(calls, n_jobs, Workers()), strict=True):
        (high if up else low)[:, k, j] = ends
        swaps += swapped
        lowest = min(lowest, least)
    return Displacement(base.components, increases, low, high, swaps, base.Q, base.Q - lowest, names)


def _displaced_entry(
    squares: Squares, base: Factors, k: int, j: int, up: bool, increases: tuple[float, ...]
) -> tuple[Matrix, Matrix, float]:
    """Return how far an entry can go in one direction, which components have swapped there, and the lowest Q seen."""
    profile = _Profile(squares, base, k, j)
    ends, swaps = [], []
    for increase in increases:
        place, factors = profile.reach(increase, up)
        ends.append(place)
        swaps.append(_swapped(factors.codes, base.codes))
    return np.array(ends), np.array(swaps, dtype=int), profile.lowest


class _Profile:
    """The least Q for each value of one entry of the components."""

    def __init__(self, squares: Squares, base: Factors, k: int, j: int) -> None:
        self.squares, self.base, self.k, self.j = squares, base, k, j
        self.origin = float(base.components[k, j])
        self.tried: dict[float, Factors] = {self.origin: base}

    @property
    def lowest(self) -> float:
        return min(factors.Q for factors in self.tried.values())

    def increase(self, value: float) -> float:
        """Return by how much Q grows if the entry has this value; the fit begins with the nearest one so far."""
        if value not in self.tried:
            nearest = self.tried[min(self.tried, key=lambda known: abs(known - value))]
            low, high = np.zeros_like(nearest.components), np.full_like(nearest.components, np.inf)
            low[self.k, self.j] = high[self.k, self.j] = value
            self.tried[value] = self.squares.refitted(nearest, low, high)
        return self.tried[value].Q - self.base.Q

    def reach(self, wanted: float, up: bool) -> tuple[float, Factors]:
        """Return the value at which Q has grown as far as wanted, by secants: its root is about linear in the value."""
        inside, outside = self._bracket(wanted, up)
        for _ in range(MOST_REFITS):
            if outside is None or abs(self.increase(inside) - wanted) <= NEAR * wanted:
                break
            roots = [sqrt(max(self.increase(value), 0.0)) for value in (inside, outside)]
            part = (sqrt(wanted) - roots[0]) / (roots[1] - roots[0])
            middle = inside + float(np.clip(part, 0.1, 0.98)) * (outside - inside)
            inside, outside = (middle, outside) if self.increase(middle) <= wanted else (inside, middle)
        return inside, self.tried.get(inside, self.base)

    def _bracket(self, wanted: float, up: bool) -> tuple[float, float | None]:
        """Return a value at which Q has not grown as far as wanted, and one at which it has; None if there is none."""
        towards = [value for value in self.tried if (value >= self.origin if up else value <= self.origin)]
        inside = max((v for v in towards if self.increase(v) <= wanted), key=lambda v: abs(v - self.origin))
        beyond = [value for value in towards if self.increase(value) > wanted]
        if beyond:
            return inside, min(beyond, key=lambda value: abs(value - self.origin))
        if not up and inside == 0:
            return 0.0, None
        # Steps begin short: from a value far away a fit may lead to the same components in another order.
        curvature = float(self.base.codes[:, self.k] ** 2 @ self.squares.precision[:, self.j])
        if curvature == 0:  # nothing is observed: any value is as good
            return np.inf if up else 0.0, None
        step = max(sqrt(wanted / curvature), 1e-6 * self.origin)
        for _ in range(MOST_DOUBLINGS):
            value = inside + step if up else max(inside - step, 0.0)
            if self.increase(value) > wanted:
                return inside, value
            inside, step = value, 2 * step
            if not up and inside == 0:
                return 0.0, None
        return np.inf if up else 0.0, None


def _swapped(codes: Matrix, reference: Matrix) -> Matrix:
    """Return which components have codes that correlate more with those of another component, (r,)."""
    rank = reference.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = np.corrcoef(codes.T, reference.T)[:rank, rank:]  # NaN of constant codes
    return np.asarray(np.nan_to_num(correlations, nan=-1).argmax(axis=1) != np.arange(rank))


def _drawn(n_samples: int, block_size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return how often each sample is drawn, (n,), in blocks that wrap around the end."""
    starts = rng.integers(n_samples, size=-(-n_samples // block_size))
    drawn = (starts[:, None] + np.arange(block_size)).ravel()[:n_samples] % n_samples
    return np.bincount(drawn, minlength=n_samples)


def _checked_increases(increases: Sequence[float]) -> tuple[float, ...]:
    """Return increases of Q in rising order, or say what is wrong with them."""
    values = np.asarray(increases, dtype=np.float64)
    if values.ndim != 1 or not values.size or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"increases must be positive numbers, such as {INCREASES}; got {increases!r}.")
    return tuple(sorted(values.tolist()))


def _features(model: Any, features: Sequence[int | str] | None) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of all features, and the places of those to displace."""
    names = feature_names_of(model, None)
    places = range(len(names)) if features is None else [place_of(feature, names) for feature in features]
    return tuple(names), list(dict.fromkeys(places))


def _place_of_increase(increases: tuple[float, ...], increase: float | None) -> int:
    if increase is not None and increase not in increases:
        raise ValueError(f"increase must be one of {increases}; got {increase!r}.")
    return 0 if increase is None else increases.index(increase)


def _rows(found: Displacement | BootstrapDisplacement, place: int) -> list[dict[str, Any]]:
    """Return a row for each displaced entry."""
    return [
        {
            "component": int(k) + 1,
            "feature": found.feature_names[j],
            "value": float(found.components[k, j]),
            "low": float(found.low[place, k, j]),
            "high": float(found.high[place, k, j]),
        }
        for k, j in zip(*np.nonzero(~np.isnan(found.low[place])), strict=True)
    ]
