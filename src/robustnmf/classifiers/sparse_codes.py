"""Sparse codes: the shortest representations of a vector by the columns of a matrix, in the l1 norm."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.optimize import linprog
from sklearn.exceptions import ConvergenceWarning

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Relative rounding with which two correlations, or the two sides of an optimality condition, count as equal.
TIE = 1e-9
# Distance from the span of others within which an atom, of unit length, counts as one of their combinations.
DEPENDENT = 1e-6
# Relative duality gap at which an l1 fit is optimal.
GAP = 1e-8


def shortest_code(A: Floats, y: Floats, max_steps: int) -> Floats:
    """Return the x of least ||x||_1 with A x = y, by linear programming; A (m, n) has atoms in columns, y is (m,)."""
    n = A.shape[1]
    result = linprog(np.ones(2 * n), A_eq=np.hstack([A, -A]), b_eq=y, method="highs", options={"maxiter": max_steps})
    if result.status == 2:
        raise ValueError(
            'constraint="equality" requires that every sample is a combination of the training samples; of these '
            f'{n}, in {A.shape[0]} features, no combination equals the sample. Use constraint="noise" or '
            '"sparse-error", or fewer features.'
        )
    if result.status != 0 or result.x is None:
        raise ValueError(f"No code was found within max_steps = {max_steps}; increase it. {result.message}")
    return np.asarray(result.x[:n] - result.x[n:])


class Dictionary(NamedTuple):
    """Atoms, and what many samples need of them."""

    A: Floats
    """Atoms in columns, of unit length or zero, (m, n)."""
    gram: Floats
    """A' A, (n, n)."""
    factor: Any
    """Cholesky factor of the Gram matrix if the atoms are clearly independent, else None."""

    @classmethod
    def of(cls, A: Floats) -> Self:
        """Return the dictionary of atoms in columns."""
        gram = A.T @ A
        try:
            factor = cho_factor(gram)
        except LinAlgError:
            return cls(A, gram, None)
        # The diagonal holds the distance of each atom from the span of those before.
        return cls(A, gram, factor if factor[0].diagonal().min() > DEPENDENT else None)


def shortest_code_within(dictionary: Dictionary, y: Floats, tolerance: float, max_steps: int) -> Floats:
    """Return the x of least ||x||_1 with ||A x - y|| <= tolerance, by the homotopy of the lasso.

    The solutions of min 1/2 ||A x - y||**2 + penalty * ||x||_1 are a piecewise linear path in the penalty, followed
    from x = 0 to where the distance reaches the tolerance: a solution there is one of the problem with the constraint.
    If no x comes so close, the least-squares solution of least l1 norm is returned. `max_steps` limits the pieces of
    the path; y is (m,).

    scikit-learn's `lars_path_gram` follows the same path as fast, but stops short where atoms are repeated or tied.

    References
    ----------
    M. R. Osborne, B. Presnell, B. A. Turlach, "A new approach to variable selection in least squares problems", IMA
    Journal of Numerical Analysis 20(3), 2000.
    """
    A, G, factor = dictionary
    b = A.T @ y
    if factor is not None:
        closest = cho_solve(factor, b)
        if np.linalg.norm(A @ closest - y) >= tolerance:
            return np.asarray(closest)  # the only least-squares solution
    x, moving = np.zeros(A.shape[1]), _Independent(G)
    first = penalty = float(np.abs(b).max())
    for _ in range(max_steps):
        excess = float(np.sum((y - _product(A.T, x)) ** 2)) - tolerance**2
        if excess <= 0 or penalty <= TIE * first:
            return x
        # Optimality: correlations c of atoms and residual are penalty * sign(x) where x is not 0, and never larger.
        c = b - _product(G, x)
        sign = np.where(x != 0, np.sign(x), np.sign(c))
        d = _path_direction(moving, sign, x != 0, np.abs(c) >= penalty * (1 - TIE))
        # As the penalty falls by s, x moves to x + s d, c to c - s G d, and the squared distance falls by
        # (2 penalty - s) s q, with q = d' G d = d' sign. The first of four events ends the piece: the penalty or a
        # coefficient vanishes, the correlation of another atom ties with the penalty, or the tolerance is reached.
        q = float(d @ sign)
        to_tolerance = penalty - np.sqrt(penalty**2 - excess / q) if penalty**2 * q > excess else np.inf
        shrinking = np.flatnonzero(x * d < 0)
        to_zero = -x[shrinking] / d[shrinking]
        step = min(penalty, float(to_zero.min(initial=np.inf)), _step_to_tie(c, _product(G, d), penalty, d == 0))
        if to_tolerance <= step:
            return np.asarray(x + to_tolerance * d)
        x += step * d
        x[shrinking[to_zero <= step]] = 0.0
        penalty -= step
    warnings.warn(
        f"A sparse code was not found in {max_steps} steps: its distance is {np.sqrt(excess + tolerance**2):.2g}, the "
        f"tolerance {tolerance:.2g}. Increase max_steps or tolerance.",
        ConvergenceWarning,
        stacklevel=2,
    )
    return x


def _product(rows: Floats, x: Floats) -> Floats:
    """Return x' rows for a sparse x; by a full product, reading a large Gram matrix would take most of the time."""
    used = np.flatnonzero(x)
    return np.asarray(x[used] @ rows[used])


def _step_to_tie(c: Floats, rate: Floats, penalty: float, resting: Mask) -> float:
    """Return how far the penalty falls before a correlation c - s * rate of a resting atom is as large."""
    step = np.inf
    for side in (1, -1):
        # Not those that are tied already: they rest because theirs will fall as fast.
        closing = resting & (side * c < penalty * (1 - TIE)) & (side * rate < 1 - TIE)
        times = (penalty - side * c[closing]) / (1 - side * rate[closing])
        step = min(step, float(times.min(initial=np.inf)))
    return step


def _path_direction(moving: "_Independent", sign: Floats, nonzero: Mask, tied: Mask) -> Floats:
    """Return the derivative of the path: the least 1/2 d' G d - sign' d, where coefficients that are zero may grow.

    The problem is one of non-negative least squares, by Lawson and Hanson's method: with several atoms tied, some may
    have to rest. Zero except on `nonzero` and `tied`, and on the latter of the given sign.
    """
    for atom in [atom for atom in moving.atoms if not nonzero[atom]]:
        moving.remove(atom)
    candidates = tied & ~nonzero
    d = moving.solve(sign)
    while candidates.any():
        slack = np.where(candidates, 1 - sign * _product(moving.gram, d), -np.inf)
        entering = int(slack.argmax())
        if slack[entering] <= TIE:
            break
        candidates[entering] = False  # at most once, lest rounding makes it come and go for ever
        if not moving.add(entering):
            continue
        new = moving.solve(sign)
        while (wrong := np.flatnonzero(~nonzero & (new * sign < 0))).size:
            # Go towards the new point as far as signs allow, and let rest what has become zero.
            ratio = d[wrong] / (d[wrong] - new[wrong])
            d += float(ratio.min()) * (new - d)
            for atom in wrong[ratio <= ratio.min()]:
                moving.remove(int(atom))
                d[atom] = 0.0
            new = moving.solve(sign)
        d = new
    return d


class _Independent:
    """A set of linearly independent atoms and the Cholesky factor of their Gram matrix."""

    def __init__(self, gram: Floats) -> None:
        self.gram = gram
        self.atoms: list[int] = []
        self._factor = np.zeros((0, 0))

    def add(self, atom: int) -> bool:
        """Add an atom, unless it depends on the others; return whether it was added."""
        n, row = len(self.atoms), self.gram[self.atoms, atom]
        if n:
            row = solve_triangular(self._factor[:n, :n], row, lower=True, check_finite=False)
        squared_distance = self.gram[atom, atom] - float(row @ row)
        if squared_distance <= DEPENDENT**2:
            return False
        if n == len(self._factor):
            self._factor = np.pad(self._factor, (0, n + 8))
        self._factor[n, :n], self._factor[n, n] = row, np.sqrt(squared_distance)
        self.atoms.append(atom)
        return True

    def remove(self, atom: int) -> None:
        """Remove an atom: a fresh factor, which also forgets what rounding has piled up."""
        self.atoms.remove(atom)
        n = len(self.atoms)
        self._factor[:n, :n] = np.linalg.cholesky(self.gram[np.ix_(self.atoms, self.atoms)])

    def solve(self, right: Floats) -> Floats:
        """Return the solution of G d = right on these atoms, zero elsewhere."""
        n, solution = len(self.atoms), np.zeros(len(right))
        if n:
            factor = self._factor[:n, :n]
            solution[self.atoms] = cho_solve((factor, True), right[self.atoms], check_finite=False)
        return solution


def sparse_error_code(A: Floats, y: Floats, max_steps: int = 200) -> Floats:
    """Return the x of least ||x||_1 + ||y - A x||_1, by an interior point method.

    Written as the l1 regression min ||g - B x||_1 with B = [A; I] and g = [y; 0], whose dual is max g' d subject to
    B' d = 0 and -1 <= d <= 1. Mehrotra's predictor-corrector steps from points that satisfy both sets of constraints
    keep to them, so that the duality gap bounds the error. A step costs one matrix A' D A, or A E A' if that is
    smaller; about 15 are needed. SciPy's `linprog` takes five times as long. A (m, n) has atoms in columns, y is (m,).

    References
    ----------
    S. Portnoy, R. Koenker, "The Gaussian hare and the Laplacian tortoise", Statistical Science 12(4), 1997.
    """
    if not y.any():
        return np.zeros(A.shape[1])
    unit = float(np.median(np.abs(y[y != 0])))
    g = np.concatenate([y / unit, np.zeros(A.shape[1])])
    # The size of y apart from gross errors, however large: they must not blur what is asked of the other entries.
    size = float(np.minimum(np.abs(g), 10.0).sum())
    margin, ones = float(np.abs(g).mean()), np.ones(len(g))
    point = _Point(np.zeros(A.shape[1]), np.maximum(g, 0) + margin, np.maximum(-g, 0) + margin, ones, ones)
    for _ in range(max_steps):
        if point.gap <= GAP * size:
            return point.x * unit
        newton = _newton_steps(A, g, point)
        if newton is None:  # rounding has the better of it
            break
        up, vq = point.u * point.p, point.v * point.q
        predictor = newton(-up, -vq)
        # The faster the gap falls without, the less the step need keep away from the boundary.
        target = (point.moved(predictor).gap / point.gap) ** 3 * point.gap / (2 * len(g))
        corrected = newton(target - up - predictor.u * predictor.p, target - vq - predictor.v * predictor.q)
        point = point.moved(corrected, 0.9995)  # close to the boundary, never on it
    warnings.warn(
        f"A sparse code is not exact: its relative duality gap is {point.gap / size:.1e}, {GAP:.0e} was required. "
        f"Increase max_steps if it was the limit; it is {max_steps}.",
        ConvergenceWarning,
        stacklevel=2,
    )
    return point.x * unit


class _Point(NamedTuple):
    """Where an l1 regression stands, or a step of it: g - B x = u - v, p = 1 - d and q = 1 + d.

    All but x are positive, and u p = v q = 0 at the optimum.
    """

    x: Floats
    u: Floats
    v: Floats
    p: Floats
    q: Floats

    @property
    def gap(self) -> float:
        """The duality gap, ||g - B x||_1 - g' d, or more."""
        return float(self.u @ self.p + self.v @ self.q)

    def moved(self, step: "_Point", fraction: float = 1.0) -> "_Point":
        """Return the point after the given fraction of the longest step that keeps it positive, 1 at most."""
        primal = fraction * min(_longest(self.u, step.u), _longest(self.v, step.v))
        dual = fraction * min(_longest(self.p, step.p), _longest(self.q, step.q))
        return _Point(
            self.x + primal * step.x,
            self.u + primal * step.u,
            self.v + primal * step.v,
            self.p + dual * step.p,
            self.q + dual * step.q,
        )


def _longest(values: Floats, change: Floats) -> float:
    """Return the longest step, at most 1, that keeps positive values from falling below zero."""
    return 1 / max(1.0, float(np.max(-change / values)))


def _newton_steps(A: Floats, g: Floats, point: _Point) -> Callable[[Floats, Floats], _Point] | None:
    """Return a function that finds the step which changes u p and v q, to first order, by the amounts given.

    The steps dx and dd solve B dx + T dd = right, with T diagonal, and B' dd = other. Of the smaller of dx and the
    first part of dd, which belongs to A, all else follows.
    """
    x, u, v, p, q = point
    m, n = A.shape
    T = u / p + v / q
    of_A, of_I = T[:m], T[m:]
    scaled = A / np.sqrt(of_A)[:, np.newaxis] if n <= m else (A * np.sqrt(of_I)).T
    matrix = scaled.T @ scaled
    diagonal = np.diag_indices(min(m, n))
    matrix[diagonal] += 1 / of_I if n <= m else of_A
    matrix[diagonal] *= 1 + 1e-12  # stays positive definite where rounding would have it otherwise
    try:
        factor = cho_factor(matrix, check_finite=False)
    except LinAlgError:
        return None

    # Zero but for rounding, which is corrected here.
    d = (q - p) / 2
    primal_error, dual_error = g - np.concatenate([A @ x, x]) - u + v, A.T @ d[:m] + d[m:]

    def step(of_up: Floats, of_vq: Floats) -> _Point:
        right = primal_error - of_up / p + of_vq / q
        first, second = right[:m], right[m:]
        if n <= m:
            dx = cho_solve(factor, A.T @ (first / of_A) + second / of_I + dual_error, check_finite=False)
            dd = np.concatenate([(first - A @ dx) / of_A, (second - dx) / of_I])
        else:
            dd_A = cho_solve(factor, first - A @ (second + of_I * dual_error), check_finite=False)
            dd = np.concatenate([dd_A, -dual_error - A.T @ dd_A])
            dx = second - of_I * dd[m:]
        return _Point(dx, (of_up + u * dd) / p, (of_vq - v * dd) / q, -dd, dd)

    return step
