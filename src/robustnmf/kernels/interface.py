"""What the algorithm and its kernels agree on: how a kernel reads a weighting, and the table of an engine's kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from robustnmf.utils.arrays import Array, Blocks

# Features whose largest prediction is bounded at once.
FEATURES_OF_TILE = 16
# How kernels compute the weight of a ratio; `robustnmf.model.losses` has the formulas.
SQUARED, CAUCHY, HUBER, ROUNDED, CORRENTROPY = range(5)


class Form(NamedTuple):
    """What kernels have to know of a loss."""

    form: int
    constant: float = 0.0
    support: float = inf
    """Ratio of a residual to the scale beyond which the weight is zero."""


class Rule(NamedTuple):
    """How residuals become weights: a loss, a scale and thresholds, as kernels read them."""

    form: int
    constant: float
    scale: Any
    """(B,), or (1,) for all rows."""
    threshold: Any
    """Magnitudes beyond which the weight is zero, (p,), or (1,) for all columns,"""
    support: float
    """and ratios to the scale."""
    counts_alike: bool = False
    """Whether all entries count alike, whatever their residuals: it is least squares."""

    @property
    def loss(self) -> Form:
        """What it says of the loss."""
        return Form(self.form, self.constant, self.support)


def form_of(loss: Any) -> Form | None:
    """Return what kernels have to know of a loss, its ``kernel_form``; None if it has none.

    A subclass may compute something else than its base, so it counts only if the class itself defines it.
    """
    form: Form | None = loss.kernel_form if "kernel_form" in vars(type(loss)) else None
    return form


class PredictionBounds(NamedTuple):
    """Limits of predictions X W', and what tells at once that some of them are not reached."""

    limits: Any
    """(m,)."""
    ratios: Any
    """The largest ratio of W to its limit, for tiles of features, (n_tiles, r)."""

    @classmethod
    def of(cls, W: Any, limits: Any) -> "PredictionBounds":
        """Return the bounds for limits (m,)."""
        ratios = np.divide(W, limits[:, None], out=np.zeros(W.shape), where=W > 0)
        largest = np.maximum.reduceat(ratios, np.arange(0, len(W), FEATURES_OF_TILE), axis=0)
        return cls(limits.astype(W.dtype), largest.astype(W.dtype))


@dataclass(frozen=True)
class StoredKernels:
    """The kernels of an engine for rows of which only some entries are stored, `robustnmf.utils.entries`."""

    predict: Callable[[Array, Array, Array, Array], Array]
    """(indptr, columns, X, W): stored entries of X W', (k,)."""
    predict_at: Callable[[Array, Array, Array], Array]
    """(X, positions, W): entries of X W' at positions (k, 2)."""
    zeros_beyond: Callable[[Array, Array, Array, Array, PredictionBounds], tuple[Array, Array]]
    """(indptr, columns, X, W, bounds): entries that are not stored and are predicted above their limits."""
    sweep: Callable[..., tuple[Array, Array, Array, Array, Array]]
    """(entries, X, checks, W, linear, ridge, max_iter): `Kernels.sweep_block` by least squares."""
    least_squares: Callable[..., Array]
    """(entries, X, A, linear, ridge, max_iter, tol): `Kernels.least_squares`."""
    squares: Callable[[Any, Array, Array], float]
    """(entries, X, W): sum of squared residuals, `algorithm.least_squares`."""


class Planned(NamedTuple):
    """Sweeps that a fit will make, or half-steps of the codes alone."""

    loss: Any
    shape: tuple[int, int]
    """Samples and features."""
    dtype: Any
    weighted: bool
    gaps: bool = False
    """Whether entries are hidden."""
    of_codes: bool = False


def _no_rule(weighting: Any, Y: Array, rank: int) -> Rule | None:
    return None


def _nothing_to_forget() -> None:
    return None


@dataclass(frozen=True)
class Kernels:
    """The kernels of an engine: faster copies of reference functions, None where it has none.

    Shapes are those of the reference functions: Y, M (B, p) data and weights of entries, M may be None; X (B, r) codes;
    A or W (p, r) the other factor; linear (r,) and ridge the penalty.
    """

    rule_of: Callable[[Any, Array, int], Rule | None] = _no_rule
    """(weighting, Y, rank) as a rule, or None if kernels cannot follow it: the following three then do not."""
    half_step: Callable[[Array, Any, Array, Array, Array, float, Rule, int], Array] | None = None
    """(Y, M, X, A, linear, ridge, rule, max_iter): `SharedGram.improve_rows`."""
    sweep_block: Callable[..., tuple[Array, Array, Array, Array, Array]] | None = None
    """(Y, M, hidden, X, checks, W, linear, ridge, rule, max_iter): `solvers.shared_gram` on a block of samples."""
    sweep_filled: Callable[..., tuple[Array, Array, Array, Array, Array, Array]] | None = None
    """(Y, M, X, checks, W, linear, ridge, max_iter): the same by least squares that fills in, `SharedGram`.

    The sixth result is C (r, r), of which W C is to be added to the descent."""
    basis_bend: Callable[..., Array] | None = None
    """(Y, M, hidden, X, W, move, rule): curvature of each feature along its move, `solvers.shared_gram`."""
    sweep: Callable[..., tuple[Array, Blocks] | None] | None = None
    """(V, M, hidden, W, Ht, penalties, fixed, rule, max_iter): `SharedGram.sweep`, or None on other blocks."""
    propose: Callable[[Array, Array, Array, Array, int], Array] | None = None
    """(G, descent, curvature, X0, max_iter): `solvers.shared_gram.propose`."""
    hals: Callable[..., None] | None = None
    """(At, Y, Q, linear, ridge, X, max_iter, tol) overwrites X: `HALS.solve`."""
    nesterov: Callable[[Array, Array, Array, Array, float, int], Array] | None = None
    """(G, rhs, X0, step, tol, max_iter): `Nesterov.solve`."""
    weighted_medians: Callable[[Array, Array, Array, Array, int], None] | None = None
    """(At, Y, M, X, max_iter) overwrites X: `WeightedMedian`."""
    cauchy_sum: Callable[[Array, Any, float], tuple[float, float]] | None = None
    """(A, M, scale): the sums of Nagy's iteration, `model.scales`."""
    row_medians: Callable[[Array], Array] | None = None
    """(A): the median of each row."""
    order_statistics: Callable[[Array, Array], Array] | None = None
    """(A, ranks): the entry of a given rank of each row."""
    predict: Callable[[Array, Array, Array], Array] | None = None
    """(X, positions, W): entries of X W' at positions (k, 2)."""
    least_squares: Callable[[Array, Any, Array, Array, Any, float, int, float], Array] | None = None
    """(Y, Q, X, A, linear, ridge, max_iter, tol): codes by weighted least squares, `algorithm.encoding.settle`."""
    squares: Callable[[Array, Any, Array, Array], float] | None = None
    """(Y, M, X, W): the weighted sum of squared residuals, `algorithm.least_squares`."""
    without_wrong: Callable[[Array, Array, Array, Array], tuple[Array, Array]] | None = None
    """(Y, wrong, centers, anchors): complete samples with wrong entries replaced, `algorithm.least_squares`."""
    stored: StoredKernels | None = None
    """Those for rows whose zeros are not stored."""
    extrapolate: Callable[[Array, Array, float], Array] | None = None
    """(new, last, momentum): a factor moved on by a share of its last move."""
    converge: Callable[..., Array] | None = None
    """(step, Y, M, X, max_iter, tol, few): rows of X improved until each is at rest, `algorithm.encoding`."""
    repeat: Callable[..., Array] | None = None
    """(step, Y, M, X, numbers): rows of X after a step with each of the numbers, `algorithm.encoding`."""
    statistics: Callable[..., Any] | None = None
    """(weights, informative, hidden, compare): statistics of held-out residuals, `algorithm.holdout`."""
    iterate: Callable[..., Any] | None = None
    """(V, M, held, hide, method, now, before, momentum, weighting, monitor): an iteration of `algorithm.staged`."""
    prepare: Callable[[int, Sequence[Planned]], None] | None = None
    """(rank, planned): compile what a fit will need, all at a time."""
    forget: Callable[[], None] = _nothing_to_forget
    """Drop what is kept of the data between two calls."""


NO_KERNELS = Kernels()
