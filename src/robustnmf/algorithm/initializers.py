"""WHERE it starts: initial factors, drawn on the host so that every engine starts alike.

An initialiser gets V (m features x n samples), the weight M of every entry (same shape, 0 where it is missing;
None if all are 1), the rank r and a random generator, and returns W (m x r) and H (r x n) in V's dtype.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robustnmf.utils.arrays import Array, Namespace, device, to_host

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


def draw_start(init: Initializer, X: Array, M: Array | None, rank: int, rng: np.random.Generator) -> Any:
    """Return the start for samples in rows; data on a device is brought to the host for those who need it there."""
    if not getattr(init, "takes_any_array", False):
        X, M = to_host(X), to_host(M)
    return init(X.T, None if M is None else M.T, rank, rng)


@dataclass(frozen=True, slots=True)
class RandomStart:
    """Uniform random factors whose product has the level of the data.

    The paper does not say how its random start is scaled; here the mean of WH is the median of the observed
    entries (their mean if that is zero), because a mean would follow the outliers.
    """

    name: ClassVar[str] = "random"
    takes_any_array: ClassVar[bool] = True

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return factors uniform on [0, c] with c**2 * rank / 4 equal to the level of V."""
        xp = array_namespace(V)
        observed = xp.reshape(V, (1, -1)) if M is None else V[M > 0][None, :]
        level = float(_median(observed)[0]) or float(xp.mean(observed))
        c = 2.0 * np.sqrt(level / rank)
        W = c * rng.random((V.shape[0], rank))
        H = c * rng.random((rank, V.shape[1]))
        dtype = to_host(V[:0]).dtype
        return W.astype(dtype), H.astype(dtype)


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
    most : float
        No size is more than so many times the median one, and levels are `credible`. Whole samples and features may be
        wrong: a huge code would be a lever by which its sample moves every feature. Those that are right but large do
        not count at first, and are found again from the others.
    """

    spread: float = 0.2
    n_iter: int = 3
    enough: int = 2000
    most: float = 3.0

    name: ClassVar[str] = "median"
    takes_any_array: ClassVar[bool] = True

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return W = w (1 + jitter) and H = s (1 + jitter) / rank."""
        w, s = map(to_host, _median_rank_one(V, M, self.n_iter, self.enough, self.most))
        if not (np.any(w > 0) and np.any(s > 0)):  # more than half zeros in every feature: no picture to start from
            return RandomStart()(V, M, rank, rng)
        spread = self.spread if rank > 1 else 0.0  # one column need not differ from others
        W = w[:, None] * (1.0 + spread * (rng.random((len(w), rank)) - 0.5))
        H = s / rank * (1.0 + spread * (rng.random((rank, len(s))) - 0.5))
        dtype = to_host(V[:0]).dtype
        return W.astype(dtype), H.astype(dtype)


# Samples so much smaller than the typical one say nothing of features that the others do not, and ratios overflow.
_FAINT = 1e-12
# The standard deviation of normal data is so many times its median absolute deviation.
_DEVIATION = 1.4826


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


def _median_rank_one(V: Array, M: Array | None, n_iter: int, enough: int, most: float) -> tuple[Array, Array]:
    """Return w (m,) and s (n,) such that V is about w s', by medians of ratios over some rows or columns.

    No size is more than `most` times the median one, and levels are credible.
    """
    xp = array_namespace(V)
    columns = slice(None, None, max(1, V.shape[1] // enough))
    some_samples = _observed(V[:, columns], None if M is None else M[:, columns], xp)
    w = _median(some_samples, complete=M is None)
    s = xp.ones(V.shape[1], dtype=some_samples.dtype, device=device(V))
    for _ in range(n_iter):
        bright = xp.nonzero(bright_features(w))[0]
        if not len(bright):
            break
        bright = bright[:: max(1, len(bright) // enough)]
        s = _sizes(V, M, w, bright, xp)
        lit = s[columns] > 0
        if not xp.any(lit):
            break
        lit &= s[columns] > _FAINT * _median(s[columns][lit][None, :], complete=True)[0]
        w = _median(some_samples[:, lit] / s[columns][lit], complete=M is None)
    return credible(w), xp.minimum(s, most * middle_level(s[columns]))


def bright_features(levels: Array) -> Array:
    """Return which features are bright enough to tell a sample's size, from their typical levels, (m,).

    Ratios to a dark feature are mostly noise. Dark is what is so beside the median feature, not beside the largest: a
    few features that are wrong in every sample would leave nothing else bright.
    """
    return levels > 0.05 * middle_level(levels)


def middle_level(levels: Array) -> Array:
    """Return the median of those levels that are positive, 0 if none is, ()."""
    positive = levels > 0
    if not array_namespace(levels).any(positive):
        return 0 * levels[0]
    return _median(levels[positive][None, :], complete=True)[0]


def credible(levels: Array) -> Array:
    """Return levels (m,) in which a few that are far above the others are replaced by the median one.

    Far is three robust standard deviations of the logarithm: where features differ widely, as those in different units
    do, a large one is nothing strange. Nor are they where more than a fifth of all would be.
    """
    xp, middle = array_namespace(levels), middle_level(levels)
    if middle == 0:
        return levels
    positive = levels > 0
    above = xp.log(xp.where(positive, levels, middle) / middle)
    far = above > 3 * _DEVIATION * _median(xp.abs(above[positive])[None, :], complete=True)[0]
    return levels if xp.count_nonzero(far) > len(levels) / 5 else xp.where(far, middle, levels)


def _sizes(V: Array, M: Array | None, w: Array, bright: Array, xp: Namespace) -> Array:
    """Return the median ratio of each sample to w, over bright features, (n,)."""
    n_samples = V.shape[1]
    size = max(1, _COPIED_ENTRIES // len(bright))
    sizes = []
    for samples in (slice(i, i + size) for i in range(0, n_samples, size)):
        rows = _observed(V.T[samples][:, bright], None if M is None else M.T[samples][:, bright], xp)
        sizes.append(_median(rows / w[bright], complete=M is None))
    return xp.concat(sizes)


def _observed(V: Array, M: Array | None, xp: Namespace) -> Array:
    """Return a copy in which missing entries are NaN, in double precision where there is one."""
    wide = V.dtype if getattr(device(V), "type", "cpu") == "mps" else xp.float64
    copy = xp.astype(V, wide)
    return copy if M is None else xp.where(M > 0, copy, np.nan)


def _median(rows: Array, *, complete: bool = False) -> Array:
    """Return the median of each row (destroyed), ignoring NaN; 0 where nothing is observed.

    It is found with fewer steps if rows are known to be complete, without NaN.
    """
    if isinstance(rows, np.ndarray):
        return _median_on_host(rows)
    xp = array_namespace(rows)
    if complete and rows.shape[1]:
        ordered = xp.sort(rows, axis=1)
        return (ordered[:, (rows.shape[1] - 1) // 2] + ordered[:, rows.shape[1] // 2]) / 2
    seen = ~xp.isnan(rows)
    ordered = xp.sort(xp.where(seen, rows, np.inf), axis=1)
    count = xp.sum(xp.astype(seen, xp.int64), axis=1)[:, None]
    below, above = (xp.where(count > 0, middle, 0) for middle in ((count - 1) // 2, count // 2))
    middles = [xp.take_along_axis(ordered, middle, axis=1)[:, 0] for middle in (below, above)]
    return xp.where(count[:, 0] > 0, (middles[0] + middles[1]) / 2, 0)


def _median_on_host(rows: Matrix) -> Matrix:
    """Return the same for arrays of NumPy, which can do it without sorting."""
    rows = np.array(rows, order="C")
    missing = np.isnan(rows)
    if missing.any():
        rows[missing.all(axis=1)] = 0.0
        return np.asarray(np.nanmedian(rows, axis=1))
    middle = [(rows.shape[1] - 1) // 2, rows.shape[1] // 2]
    rows.partition(middle, axis=1)
    return np.asarray(rows[:, middle].mean(axis=1))
