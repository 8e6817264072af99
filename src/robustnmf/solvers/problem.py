"""Weighted non-negative least squares (WNLS), many problems at a time, eq. (3-6) and (3-7).

    min_{x >= 0}  1/2 * sum_i q_i * (y - A x)_i**2 + c' x + 1/2 * ridge * ||x||**2  for every row (x, y, q) of (X, Y, Q)

With A = W and the rows of V' this is the update of H; with A = H' and the rows of V the update of W. The last two
terms, the same for all problems, are a penalty; the paper has none.
"""

from dataclasses import dataclass

import numpy as np

from robustnmf.model.penalties import Penalty
from robustnmf.utils.arrays import Array, Namespace, device
from robustnmf.utils.cached import cached_property

# Entries of the largest temporary array when Gram matrices are formed: 64 MiB in float64.
_TEMPORARY_ENTRIES = 2**23


@dataclass
class Problem:
    """B problems that share the matrix A.

    Parameters
    ----------
    A : array (p, r)
        The matrix.
    Y : array (B, p)
        What is to be approximated, one row for each problem.
    Q : array (B, p) or None
        Weights, (B, p); None if all are 1.
    xp : namespace
        Of the arrays.
    penalty : Penalty or None
        Linear and ridge terms, the same for all problems; None for no penalty.
    residual : array (B, p) or None
        Y - X0 A' at the start X0, if it is known already, (B, p).
    sums : (array, array) or None
        A' D A (B, r, r) or (1, r, r), and A' D y (B, r), where they are all that is known; then A, Y and Q are None.
    """

    A: Array
    Y: Array
    Q: Array | None
    xp: Namespace
    penalty: Penalty | None = None
    residual: Array | None = None
    sums: tuple[Array, Array] | None = None

    @classmethod
    def normal(cls, gram: Array, correlation: Array, xp: Namespace, penalty: Penalty | None = None) -> "Problem":
        """Return problems of which the normal equations are known, without the penalty.

        Parameters
        ----------
        gram : array (B, r, r) or (1, r, r)
            A' D A; one matrix if it is the same for all problems.
        correlation : array (B, r)
            A' D y.
        xp : namespace
            Of the arrays.
        penalty : Penalty or None
            Added to the normal equations by `gram` and `rhs`.

        Returns
        -------
        Problem
            Problems without A, Y and Q.
        """
        return cls(None, None, None, xp, penalty, sums=(gram, correlation))

    @cached_property
    def correlation(self) -> Array:
        """A' D y for every problem, with D = diag(q); shape (B, r)."""
        if self.sums is not None:
            return self.sums[1]
        return (self.Y if self.Q is None else self.Q * self.Y) @ self.A

    @property
    def rhs(self) -> Array:
        """A' D y - c for every problem, (B, r)."""
        return self.correlation if self.penalty is None else self.correlation - self.penalty.linear

    def applied(self, X: Array) -> Array:
        """Return A' D A x for every problem, (B, r).

        Parameters
        ----------
        X : array (B, r)
            Some x for each problem.

        Returns
        -------
        array (B, r)
            The products, without the ridge.
        """
        if self.sums is not None:
            gram = self.sums[0]
            return X @ gram[0] if gram.shape[0] == 1 else (gram @ X[:, :, None])[:, :, 0]
        product = X @ self.A.T
        return (product if self.Q is None else self.Q * product) @ self.A

    @cached_property
    def gram(self) -> Array:
        """A' D A + ridge I for every problem, (B, r, r); (1, r, r) if there are no weights and all are the same."""
        gram = self._gram()
        if self.penalty is None or not self.penalty.ridge:
            return gram
        return gram + self.penalty.ridge * self.xp.eye(gram.shape[1], dtype=gram.dtype, device=device(gram))

    def _gram(self) -> Array:
        if self.sums is not None:
            return self.sums[0]
        xp, r = self.xp, self.A.shape[1]
        if self.Q is None:
            return (self.A.T @ self.A)[None, :, :]
        if not self._square_is_small:
            root = self.A * xp.sqrt(self.Q)[:, :, None]  # a product with itself: BLAS computes half of it
            return xp.matmul(xp.matrix_transpose(root), root)
        # All Gram matrices at once, as one product with the row-wise Khatri-Rao square of A.
        return unpacked(self.Q @ packed_square(self.A, xp), r, xp)

    @property
    def _square_is_small(self) -> bool:
        p, r = self.A.shape
        return bool(p * r * (r + 1) // 2 <= _TEMPORARY_ENTRIES)

    def chunks(self) -> list[slice]:
        """Return slices of problems whose Gram matrices, and what forms them, are of bounded size.

        Returns
        -------
        list of slice
            What to index the problems with, in order.
        """
        if self.sums is not None:
            return [slice(0, len(self.sums[1]))]
        n_problems, (p, r) = self.Y.shape[0], self.A.shape
        if self.Q is None:
            return [slice(0, n_problems)]
        entries = r * (r if self._square_is_small else max(p, r))
        size = max(1, min(n_problems, _TEMPORARY_ENTRIES // entries))
        return [slice(i, i + size) for i in range(0, n_problems, size)]

    def __getitem__(self, rows: slice) -> "Problem":
        """Return some of the problems."""
        if self.sums is not None:
            gram, correlation = self.sums
            return Problem.normal(gram if len(gram) == 1 else gram[rows], correlation[rows], self.xp, self.penalty)
        return Problem(self.A, self.Y[rows], None if self.Q is None else self.Q[rows], self.xp, self.penalty)


def smallest_curvature(X: Array, xp: Namespace) -> float:
    """Return the curvature, beside others of about 1, below which nothing depends on a coordinate.

    To divide by less would overflow.
    """
    number = xp.finfo(X.dtype)
    return float(number.tiny) / float(number.eps)


def packed_square(A: Array, xp: Namespace) -> Array:
    """Return the products of all pairs of columns of A (p, r), each pair once, (p, r (r + 1) / 2)."""
    first, second = (xp.take(A, xp.asarray(side, device=device(A)), axis=1) for side in np.triu_indices(A.shape[1]))
    return first * second


def unpacked(packed: Array, r: int, xp: Namespace) -> Array:
    """Return symmetric matrices (B, r, r) of which each pair was given once, (B, r (r + 1) / 2)."""
    left, right = np.triu_indices(r)
    position = np.zeros((r, r), dtype=np.int64)
    position[left, right] = position[right, left] = np.arange(left.size)
    places = xp.asarray(position.ravel(), device=device(packed))
    return xp.reshape(xp.take(packed, places, axis=1), (-1, r, r))
