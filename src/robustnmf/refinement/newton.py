"""The minimum of Q by Newton's method on the components, with the best codes for each of them.

Codes are eliminated: for given components each sample is a small non-negative least-squares problem, which is solved
exactly. The means of the codes are held by a multiplier for each component. What is left are the r m entries of the
components, with bounds. Their Hessian is that of Q without what the codes make up for (the Schur complement), and few
steps are needed: a refit of the Baltimore data after one entry was displaced takes about five, where L-BFGS on codes
and components takes about a hundred.

A step is only made if it brings about what the quadratic model promises: another minimum may be near, such as that of
the same components in another order.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import nnls

Matrix = NDArray[Any]

# Entries of the components at most: the Hessian has the square of that, and is factorised.
MOST_ENTRIES = 600
# Entries of the largest temporary array: 32 MiB.
MOST_TEMPORARY = 2**22
MOST_STEPS, MOST_EXCHANGES, MOST_MULTIPLIERS = 60, 30, 50
# Relative fall of Q that a step promises, below which it is at the minimum; and if the step does not bring it.
SMALLEST_FALL, NEGLIGIBLE_FALL = 1e-11, 1e-8
# What a step must bring of the fall that it promises. What is added to the diagonal of the Hessian, relative to it, is
# at first `DAMPING`; less after each such step and more after any other, up to a limit.
TRUSTED, DAMPING, MOST_DAMPING = (0.25, 4.0), 1e-3, 1e4
# What is added to the diagonal of the Hessian, relative to it, at least; and to those of small systems.
RIDGE, TINY = 1e-10, 1e-9
# Relative difference up to which means of codes are those that are held.
SAME_MEAN = 1e-12


class Squares(Protocol):
    """The data of Q, see `robustnmf.refinement.squares.Squares`."""

    @property
    def X(self) -> Matrix:
        """Data, (n, m)."""
        ...

    @property
    def precision(self) -> Matrix:
        """Weights of squared residuals, (n, m)."""
        ...

    @property
    def shares(self) -> Matrix:
        """How much samples count in means of codes, (n,)."""
        ...

    @property
    def means(self) -> Matrix:
        """Means of codes, (r,)."""
        ...

    def Q(self, codes: Matrix, components: Matrix) -> float:
        """Return the sum of squared residuals."""
        ...


def minimum(
    squares: Squares, codes: Matrix, components: Matrix, low: Matrix, high: Matrix
) -> tuple[Matrix, Matrix, bool]:
    """Return codes (n, r) and components (r, m) at the local minimum of Q that descent from a start leads to.

    Parameters
    ----------
    squares : Squares
        The data of Q.
    codes : ndarray (n, r)
        Codes of the start, which tell which of them are positive.
    components : ndarray (r, m)
        Components of the start.
    low, high : ndarray (r, m)
        Bounds of the components.

    Returns
    -------
    codes, components : ndarray (n, r), ndarray (r, m)
        The factors; codes have the means of `squares`.
    is_minimum : bool
        False if it is still on the way after many steps, or has met a kink, where codes of samples that are hardly
        determined become zero.
    """
    problem = _Reduced.of(squares, components)
    point, is_minimum, damping = problem.at(np.clip(components, low, high), codes > 0), False, DAMPING
    gradient, hessian = problem.gradient(point), problem.hessian(point)
    for _ in range(MOST_STEPS):
        step, promised = _newton_step(gradient, hessian, low, high, point.components, damping)
        if promised <= SMALLEST_FALL * point.Q:
            is_minimum = True
            break
        found = problem.at(np.clip(point.components + step, low, high), point.codes > 0)
        kept = (point.Q - found.Q) / promised
        # A step that brings much less than the model promises, or much more, may lead to the slope of another minimum.
        if not TRUSTED[0] <= kept <= TRUSTED[1]:
            damping = 10 * damping
            if damping > MOST_DAMPING:
                is_minimum = promised <= NEGLIGIBLE_FALL * point.Q
                break
            continue
        damping = max(damping / 10, RIDGE)
        point, gradient, hessian = found, problem.gradient(found), problem.hessian(found)
    is_free = np.asarray(squares.precision.any(axis=1) == 0)
    return np.where(is_free[:, None], codes, point.codes), point.components, is_minimum


class _Point(NamedTuple):
    """Components, their best codes, and what was needed to find these."""

    components: Matrix
    codes: Matrix
    Q: float
    inverses: Matrix
    """Of the Gram matrices of positive codes, (n, r, r), 0 for the others."""


def _newton_step(
    gradient: Matrix, hessian: Matrix, low: Matrix, high: Matrix, components: Matrix, damping: float
) -> tuple[Matrix, float]:
    """Return the step to the minimum of the quadratic model within the bounds, (r, m), and the fall that it promises.

    Where the model is not convex in the entries that are free, something is added to its diagonal.
    """
    diagonal = np.maximum(np.diag(hessian), RIDGE * np.max(np.diag(hessian)) + np.finfo(float).tiny)
    g, least, most, ridge = gradient.ravel(), (low - components).ravel(), (high - components).ravel(), damping
    while True:
        model = hessian + np.diag(ridge * diagonal)
        try:
            step = _within(g, model, least, most)
        except LinAlgError:
            ridge *= 10
        else:
            return step.reshape(gradient.shape), -float(g @ step + step @ model @ step / 2)


def _within(g: Matrix, model: Matrix, least: Matrix, most: Matrix) -> Matrix:
    """Return the minimum of g' x + x' model x / 2 for x from `least` to `most`, (r m,).

    Sets of entries at their bounds are exchanged until each is right, from those that are there and should stay.
    """
    at_low, at_high = (least >= 0) & (g >= 0), (most <= 0) & (g <= 0)
    for _ in range(MOST_EXCHANGES):
        is_free = ~(at_low | at_high)
        x = _minimiser(g, model, np.where(at_low, least, np.where(at_high, most, 0.0)), is_free)
        slope = g + model @ x
        below, above = is_free & (x < least), is_free & (x > most)
        let_go = (least < most) & ((at_low & (slope < 0)) | (at_high & (slope > 0)))
        if not (below | above | let_go).any():
            return x
        at_low, at_high = (at_low & ~let_go) | below, (at_high & ~let_go) | above
    return _one_by_one(g, model, least, most)


def _minimiser(g: Matrix, model: Matrix, x: Matrix, is_free: Matrix) -> Matrix:
    """Return x with the entries that are free at the minimum of g' x + x' model x / 2."""
    (free,) = np.nonzero(is_free)
    x = np.where(is_free, 0.0, x)
    if free.size:
        x[free] = -cho_solve(cho_factor(model[np.ix_(free, free)]), g[free] + model[free] @ x)
    return x


def _one_by_one(g: Matrix, model: Matrix, least: Matrix, most: Matrix) -> Matrix:
    """Return a lower point of the same, where exchanges go round in circles: bounds are met and left one at a time."""
    x = np.zeros_like(g)
    is_free = ~(((least >= 0) & (g >= 0)) | ((most <= 0) & (g <= 0)))
    for _ in range(4 * len(g)):
        towards = _minimiser(g, model, x, is_free) - x
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(towards < 0, least - x, most - x) / towards
        room = np.where(is_free & (towards != 0), room, np.inf)
        first = int(np.argmin(room))
        x = np.clip(x + min(float(room[first]), 1.0) * towards, least, most)
        if room[first] < 1:
            is_free[first] = False
            continue
        slope = np.where(is_free | (least == most), 0.0, g + model @ x)
        slope = np.where(x <= least, -slope, slope)  # how much is gained by leaving a bound
        if slope.max() <= 1e-12 * np.abs(g).max():
            break
        is_free[int(np.argmax(slope))] = True
    return x


@dataclass(frozen=True)
class _Reduced:
    """Q as a function of the components, with the best codes."""

    squares: Squares
    ridges: Matrix
    """What is added to Q for each sample, times its squared codes, (n,): next to nothing, but where too few entries
    count many codes would be best."""

    @classmethod
    def of(cls, squares: Squares, components: Matrix) -> "_Reduced":
        """Return it for components near these."""
        sizes = TINY * (squares.precision @ (components**2).T).max(axis=1)
        return cls(squares, np.where(sizes > 0, sizes, 1.0))

    def at(self, components: Matrix, positive: Matrix) -> _Point:
        """Return a point; `positive` (n, r) tells which codes are positive nearby."""
        squares = self.squares
        rank = len(components)
        left, right = np.triu_indices(rank)
        grams = np.empty((len(positive), rank, rank))
        grams[:, left, right] = grams[:, right, left] = squares.precision @ (components[left] * components[right]).T
        grams += self.ridges[:, None, None] * np.eye(rank)
        rhs = (squares.precision * squares.X) @ components.T
        multipliers = np.zeros(rank)
        for _ in range(MOST_MULTIPLIERS):
            codes, inverses = _best_codes(grams, rhs - np.outer(squares.shares, multipliers), positive)
            positive = codes > 0
            missed = squares.shares @ codes - squares.means
            if np.all(np.abs(missed) <= SAME_MEAN * squares.means):
                break
            multipliers += np.linalg.solve(self._slopes(inverses), missed)  # means fall with them, in straight pieces
        Q = squares.Q(codes, components) + float(self.ridges @ (codes**2).sum(axis=1))
        return _Point(components, codes, Q, inverses)

    def gradient(self, point: _Point) -> Matrix:
        """Return the gradient, (r, m): that of Q with the codes as they are, for these are best."""
        squares = self.squares
        return np.asarray(-2 * point.codes.T @ (squares.precision * (squares.X - point.codes @ point.components)))

    def hessian(self, point: _Point) -> Matrix:
        """Return the Hessian, (r m, r m): that of Q without what the codes make up for."""
        squares, (rank, m) = self.squares, point.components.shape
        total, of_held = np.zeros((rank, m, rank, m)), np.zeros((rank, rank * m))
        own = np.einsum("ij,ik,il->jkl", squares.precision, point.codes, point.codes, optimize=True)
        for j in range(m):
            total[:, j, :, j] = own[j]
        reduced = total.reshape(rank * m, rank * m)
        size = max(1, MOST_TEMPORARY // (rank * rank * m))
        for start in range(0, len(point.codes), size):
            rows = slice(start, start + size)
            crossed = self._crossed(point, rows)
            solved = point.inverses[rows] @ crossed
            reduced -= np.tensordot(crossed, solved, axes=([0, 1], [0, 1]))
            of_held += np.tensordot(squares.shares[rows], solved, axes=(0, 0))
        reduced += of_held.T @ np.linalg.solve(self._slopes(point.inverses), of_held)  # the means are held
        return np.asarray(reduced + reduced.T)  # half of it was summed

    def _slopes(self, inverses: Matrix) -> Matrix:
        """Return by how much means of codes fall with the multipliers, (r, r)."""
        shares = self.squares.shares
        slopes = np.tensordot(shares**2, inverses, axes=(0, 0))
        return np.asarray(slopes + TINY * (np.trace(slopes) + np.finfo(float).tiny) * np.eye(len(slopes)))

    def _crossed(self, point: _Point, rows: slice) -> Matrix:
        """Return half the derivatives of Q by codes of some samples and by components, (B, r, r m)."""
        squares, codes = self.squares, point.codes[rows]
        precision, (rank, m) = squares.precision[rows], point.components.shape
        residual = precision * (squares.X[rows] - codes @ point.components)
        crossed = np.einsum("ij,kj,il->iklj", precision, point.components, codes, optimize=True)
        for k in range(rank):
            crossed[:, k, k] -= residual
        return np.asarray(crossed.reshape(len(codes), rank, rank * m))


def _best_codes(grams: Matrix, rhs: Matrix, positive: Matrix) -> tuple[Matrix, Matrix]:
    """Return non-negative least-squares solutions (n, r), and inverses of the Gram matrices of what is positive.

    Sets of positive codes are exchanged until each is right, from a guess (block principal pivoting).
    """
    rank = rhs.shape[1]
    identity = np.eye(rank, dtype=bool)
    for _ in range(MOST_EXCHANGES):
        both = positive[:, :, None] & positive[:, None, :]
        inverses = np.where(both, np.linalg.inv(np.where(both, grams, identity)), 0.0)
        codes = (inverses @ rhs[:, :, None])[:, :, 0]
        duals = (grams @ codes[:, :, None])[:, :, 0] - rhs
        slack = 1e-12 * (np.abs(rhs).max(axis=1, keepdims=True) + np.finfo(float).tiny)
        is_wrong = np.where(positive, codes < 0, duals < -slack)
        if not is_wrong.any():
            return np.where(positive, np.maximum(codes, 0), 0.0), inverses
        positive = positive ^ is_wrong
    for i in np.flatnonzero(is_wrong.any(axis=1)):  # sets that go round in circles
        root = np.linalg.cholesky(grams[i]).T
        positive[i] = nnls(root, np.linalg.solve(root.T, rhs[i]))[0] > 0
    both = positive[:, :, None] & positive[:, None, :]
    inverses = np.where(both, np.linalg.inv(np.where(both, grams, identity)), 0.0)
    return np.maximum((inverses @ rhs[:, :, None])[:, :, 0], 0), inverses
