"""WHERE it starts: initial factors, drawn on the host so that every engine starts alike.

An initialiser gets V (m features x n samples), the weight M of every entry (same shape, 0 where it is missing;
None if all are 1), the rank r and a random generator, and returns W (m x r) and H (r x n) in V's dtype.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]

# Entries that are copied at a time: 16 MiB.
_COPIED_ENTRIES = 2**21


@runtime_checkable
class Initializer(Protocol):
    """Draws initial factors."""

    name: ClassVar[str]

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return W (m, rank) and H (rank, n), non-negative and finite."""
        ...


@dataclass(frozen=True, slots=True)
class RandomStart:
    """Uniform random factors whose product has the level of the data.

    The paper does not say how its random start is scaled; here the mean of WH is the median of the observed
    entries (their mean if that is zero), because a mean would follow the outliers.
    """

    name: ClassVar[str] = "random"

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return factors uniform on [0, c] with c**2 * rank / 4 equal to the level of V."""
        observed = V.ravel() if M is None else V[M > 0]
        level = float(np.median(observed)) or float(np.mean(observed))
        c = 2.0 * np.sqrt(level / rank)
        W = c * rng.random((V.shape[0], rank))
        H = c * rng.random((rank, V.shape[1]))
        return W.astype(V.dtype), H.astype(V.dtype)


@dataclass(frozen=True, slots=True)
class PublishedStart:
    """The start of the authors' code: low uniform factors, then one update of each with correntropy weights.

    Their factors are uniform on [0, 1] whatever the data; for images in 0..255 and rank 40 the product then lies at a
    tenth of the data. Here it does so for data in any unit. The width of the correntropy weights is a mean square,
    which gross outliers (a thousand times the data and more) inflate until they decide the start.
    """

    level: float = 0.1

    name: ClassVar[str] = "published"

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return random factors after one weighted multiplicative update of H, then of W."""
        W, H = (factor * self.level**0.5 for factor in RandomStart()(V, M, rank, rng))
        H = _correntropy_update(V, M, W, H)
        W = _correntropy_update(V.T, None if M is None else M.T, H.T, W.T).T
        return W.astype(V.dtype), H.astype(V.dtype)


@dataclass(frozen=True, slots=True)
class MedianStart:
    """A robust rank-one picture of the data, jittered into `rank` columns.

    Each feature's typical level w and each sample's typical size s are fitted by alternating medians of ratios,
    V ~ w s', which up to half of wrong entries in any row and column cannot move. From a random start the residuals of
    clean and occluded entries cannot be told apart; from this one they can.

    Parameters
    ----------
    spread : float
        Relative width of the jitter that makes the columns differ, if there are several.
    n_iter : int
        Alternations of the medians.
    enough : int
        A median is taken over no more than about this many entries, evenly spread: a start need not be exact.
    """

    spread: float = 0.2
    n_iter: int = 3
    enough: int = 2000

    name: ClassVar[str] = "median"

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return W = w (1 + jitter) and H = s (1 + jitter) / rank."""
        w, s = _median_rank_one(V, M, self.n_iter, self.enough)
        if not (np.any(w > 0) and np.any(s > 0)):  # more than half zeros in every feature: no picture to start from
            return RandomStart()(V, M, rank, rng)
        spread = self.spread if rank > 1 else 0.0  # one column need not differ from others
        W = w[:, None] * (1.0 + spread * (rng.random((len(w), rank)) - 0.5))
        H = s / rank * (1.0 + spread * (rng.random((rank, len(s))) - 0.5))
        return W.astype(V.dtype), H.astype(V.dtype)


# Samples so much smaller than the typical one say nothing of features that the others do not, and ratios overflow.
_FAINT = 1e-12


def _correntropy_update(V: Matrix, M: Matrix | None, W: Matrix, H: Matrix) -> Matrix:
    """Return H after a multiplicative update with weights exp(-e**2 / 2 d**2), d**2 the mean squared residual."""
    product = W @ H
    squares = (V - product) ** 2
    variance = np.average(squares, weights=M)
    Q = np.exp(-0.5 * squares / variance) if variance > 0 else np.ones_like(V)
    if M is not None:
        Q = Q * M
    denominator = W.T @ (Q * product)
    positive = denominator > 0
    return np.where(positive, H * (W.T @ (Q * V)) / np.where(positive, denominator, 1), H)


def _median_rank_one(V: Matrix, M: Matrix | None, n_iter: int, enough: int) -> tuple[Matrix, Matrix]:
    """Return w (m,) and s (n,) such that V is about w s', by medians of ratios over some rows or columns."""
    columns = slice(None, None, max(1, V.shape[1] // enough))
    some_samples = _observed(V[:, columns], None if M is None else M[:, columns])
    w = _median(some_samples)
    s = np.ones(V.shape[1])
    for _ in range(n_iter):
        bright = np.flatnonzero(w > 0.05 * w.max())  # ratios to a dark feature are mostly noise
        if not bright.size:
            break
        bright = bright[:: max(1, bright.size // enough)]
        s = _sizes(V, M, w, bright)
        lit = s[columns] > 0
        if not lit.any():
            break
        lit &= s[columns] > _FAINT * np.median(s[columns][lit])
        w = _median(some_samples[:, lit] / s[columns][lit])
    return w, s


def _sizes(V: Matrix, M: Matrix | None, w: Matrix, bright: Matrix) -> Matrix:
    """Return the median ratio of each sample to w, over bright features, (n,)."""
    s = np.empty(V.shape[1])
    size = max(1, _COPIED_ENTRIES // bright.size)
    for samples in (slice(i, i + size) for i in range(0, s.size, size)):
        rows = _observed(V.T[samples, bright], None if M is None else M.T[samples, bright])
        s[samples] = _median(rows / w[bright])
    return s


def _observed(V: Matrix, M: Matrix | None) -> Matrix:
    """Return a copy in which missing entries are NaN."""
    return np.array(V, dtype=np.float64) if M is None else np.where(M > 0, V, np.nan)


def _median(rows: Matrix) -> Matrix:
    """Return the median of each row (destroyed), ignoring NaN; 0 where nothing is observed."""
    rows = np.ascontiguousarray(rows)
    missing = np.isnan(rows)
    if missing.any():
        rows[missing.all(axis=1)] = 0.0
        return np.asarray(np.nanmedian(rows, axis=1))
    middle = [(rows.shape[1] - 1) // 2, rows.shape[1] // 2]
    return np.asarray(np.partition(rows, middle, axis=1)[:, middle].mean(axis=1))
