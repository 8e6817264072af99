"""WHERE it starts: initial factors.

An initialiser gets V (m features x n samples), the weight M of every entry (same shape, 0 where it is missing;
None if all are 1), the rank r and a random generator, on the host, and returns W (m x r) and H (r x n) in V's dtype.

Those of this module work on blocks of samples, by any engine: sums, counts and a sample of bounded size travel, never
the data. The random numbers are drawn on the host, so that every engine starts alike.
"""

from dataclasses import dataclass
from math import ceil, inf
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from robustnmf.algorithm.singular_start import from_singular_vectors
from robustnmf.data.blocks import Data
from robustnmf.engines import Engine, NumPyEngine
from robustnmf.engines.lazy import ReadBlock, is_lazy
from robustnmf.engines.protocol import block_function
from robustnmf.errors import IncompatibleError
from robustnmf.kernels.predictions import predictions
from robustnmf.model.mixture import SAMPLE, densest_part
from robustnmf.model.scales import weighted_sum
from robustnmf.utils.arrays import Array, Blocks, Namespace, dtype_of, size, subsample, to_host
from robustnmf.utils.entries import Entries
from robustnmf.utils.medians import densest, median
from robustnmf.utils.observed import Observed, count_observed

Matrix = NDArray[Any]

# Entries that are copied or gathered at a time: 16 MiB.
_COPIED_ENTRIES = 2**21
# The level of complete data with more entries than the first is told by about as many of them as the second.
_LEVEL_OF_ALL, _LEVEL_ENTRIES = 2**22, 2**19


@runtime_checkable
class Initializer(Protocol):
    """Draws initial factors."""

    name: ClassVar[str]

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return initial factors.

        Parameters
        ----------
        V : ndarray (m, n)
            Data with features in rows, in its unit; 0 where missing.
        M : ndarray (m, n) or None
            Weights, 0 where missing; None if all are 1.
        rank : int
            Number of components r.
        rng : numpy.random.Generator
            Where random numbers come from.

        Returns
        -------
        W, H : ndarray (m, r), ndarray (r, n)
            The factors, non-negative and finite.
        """
        ...


def initial_factors(
    init: Initializer, data: Data, rank: int, rng: np.random.Generator, engine: Engine
) -> tuple[Matrix, Blocks]:
    """Return W (m, rank) on the host and blocks of H', zero for features and samples of which nothing is observed."""
    over_blocks = getattr(init, "factors", None)
    if over_blocks is not None:
        W, Ht = over_blocks(data.X, data.M, rank, rng, engine)
        W, Ht = W.astype(data.dtype), engine.map(_as_type, Ht, dtype=data.dtype)
    else:
        W, H = _own_factors(init, data, rank, rng)
        Ht = engine.split(engine.place(np.ascontiguousarray(H.T)), like=data.X)
    if data.M is not None:
        W[data.seen == 0] = 0
        Ht = engine.map(_zero_unseen, Ht, data.M)
    return W, Ht


def _own_factors(init: Initializer, data: Data, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Return what an initialiser of the user's own draws, checked."""
    if data.arrays is None:
        raise IncompatibleError(
            f"init {init!r} needs the whole of X, and this data is not in memory. Use init='median', 'random' or "
            "'published'."
        )
    X, M = map(to_host, data.whole)
    W, H = (np.array(to_host(factor), dtype=data.dtype) for factor in init(X.T, None if M is None else M.T, rank, rng))
    for name, factor, shape in (("W", W, (X.shape[1], rank)), ("H", H, (rank, X.shape[0]))):
        if factor.shape != shape:
            raise ValueError(f"init must return {name} of shape {shape}; got {factor.shape}.")
        if not (np.isfinite(factor).all() and (factor >= 0).all()):
            raise ValueError(f"init must return finite, non-negative factors; {name} has other entries.")
    return W, H


def with_known(W: Matrix, Ht: Blocks, known: Matrix, engine: Engine) -> tuple[Matrix, Blocks]:
    """Put known components in place of the first of the initial ones, with codes that keep their share."""
    if not len(known):
        return W, Ht
    factors = np.ones(W.shape[1], dtype=W.dtype)
    for k, component in enumerate(known):
        factors[k] = W[:, k].sum() / component.sum() if component.any() else 1
        W[:, k] = component
    return W, engine.map(_times, Ht, factor=engine.place(factors))


class BlockInitializer:
    """An initialiser that works on blocks of samples."""

    __slots__ = ()

    def factors(
        self, V: Blocks, M: Blocks | None, rank: int, rng: np.random.Generator, engine: Engine
    ) -> tuple[Matrix, Blocks]:
        """Return initial factors of data in blocks.

        Parameters
        ----------
        V : blocks
            Data, blocks of samples in rows, (n, m) in all; 0 where missing.
        M : blocks or None
            Weights, cut alike, 0 where missing; None if all are 1.
        rank : int
            Number of components r.
        rng : numpy.random.Generator
            Where random numbers come from.
        engine : Engine
            What works on the blocks.

        Returns
        -------
        W, Ht : ndarray (m, r), blocks
            The basis on the host, and codes with samples in rows, (n, r) in all, cut as V.
        """
        raise NotImplementedError

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return initial factors of data on the host.

        Parameters
        ----------
        V : ndarray (m, n)
            Data with features in rows; 0 where missing.
        M : ndarray (m, n) or None
            Weights, 0 where missing; None if all are 1.
        rank : int
            Number of components r.
        rng : numpy.random.Generator
            Where random numbers come from.

        Returns
        -------
        W, H : ndarray (m, r), ndarray (r, n)
            What `factors` returns for data in memory.
        """
        engine, V = NumPyEngine(n_threads=1), to_host(V)
        blocks = engine.split(V.T)
        W, Ht = self.factors(blocks, None if M is None else engine.split(to_host(M).T, like=blocks), rank, rng, engine)
        return W.astype(V.dtype), engine.join(Ht).T.astype(V.dtype)


@dataclass(frozen=True, slots=True)
class RandomStart(BlockInitializer):
    """Uniform random factors whose product has the level of the data.

    The paper does not say how its random start is scaled; here the mean of WH is the median of the observed
    entries (their mean if that is zero), because a mean would follow the outliers.
    """

    name: ClassVar[str] = "random"

    def factors(
        self, V: Blocks, M: Blocks | None, rank: int, rng: np.random.Generator, engine: Engine
    ) -> tuple[Matrix, Blocks]:
        """Return factors uniform on [0, c] with c**2 * rank / 4 equal to the level of V."""
        c = 2.0 * float(np.sqrt(_level(V, M, engine) / rank))
        W = c * rng.random((V[0].shape[1], rank))
        return W, engine.map(_times, _random_codes(V, rank, rng, engine), factor=c)


@dataclass(frozen=True, slots=True)
class PublishedStart(BlockInitializer):
    """The start of the authors' code: low uniform factors, then one update of each with correntropy weights.

    Their factors are uniform on [0, 1] whatever the data; for images in 0..255 and rank 40 the product then lies at a
    tenth of the data. Here it does so for data in any unit. The width of the correntropy weights is a mean square,
    which gross outliers (a thousand times the data and more) inflate until they decide the start.

    Parameters
    ----------
    level : float
        Level of the product of the factors, relative to that of the data.
    """

    level: float = 0.1

    name: ClassVar[str] = "published"

    def factors(
        self, V: Blocks, M: Blocks | None, rank: int, rng: np.random.Generator, engine: Engine
    ) -> tuple[Matrix, Blocks]:
        """Return random factors after one weighted multiplicative update of H, then of W."""
        dtype, low = dtype_of(V[0]), self.level**0.5
        basis, Ht = RandomStart().factors(V, M, rank, rng, engine)
        Ht = engine.map(_times, engine.map(_as_type, Ht, dtype=dtype), factor=low)
        W = engine.place(basis.astype(dtype) * low)
        Ht = engine.map(_updated_codes, V, M, Ht, W=W, variance=_variance(V, M, W, Ht, engine))
        above, below = engine.sum(_basis_terms, V, M, Ht, W=W, variance=_variance(V, M, W, Ht, engine))
        return np.asarray(to_host(_multiplied(W, above, below, engine.xp))), Ht


@dataclass(frozen=True, slots=True)
class MedianStart(BlockInitializer):
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
    densest : float or None
        None takes medians. A share takes the middle of the shortest interval that holds so much of the entries: more
        than half of a row or column may then be wrong, if the wrong entries are spread. Medians tell more of clean
        data.
    """

    spread: float = 0.2
    n_iter: int = 3
    enough: int = 2000
    most: float = 3.0
    densest: float | None = None

    name: ClassVar[str] = "median"

    @property
    def fewest_positive(self) -> float:
        """Share of positive entries below which the typical entry of a row is zero."""
        return 0.5 if self.densest is None else min(self.densest, 1 - self.densest)

    def center(self, rows: Array, *, complete: bool) -> Array:
        """Return the typical entry of each row (B, k), ignoring NaN, (B,).

        Parameters
        ----------
        rows : array (B, k)
            Entries; NaN where missing.
        complete : bool
            Whether there is no NaN.

        Returns
        -------
        array (B,)
            The median, or the middle of the densest part.
        """
        return median(rows, complete=complete) if self.densest is None else densest(rows, self.densest)

    def factors(
        self, V: Blocks, M: Blocks | None, rank: int, rng: np.random.Generator, engine: Engine
    ) -> tuple[Matrix, Blocks]:
        """Return W = w (1 + jitter) and H = s (1 + jitter) / rank."""
        w, sizes = _median_rank_one(V, M, self, engine)
        if not (np.any(w > 0) and engine.sum(_count_positive, sizes)):
            # More than half of every feature is zero: there is no picture to start from.
            return RandomStart().factors(V, M, rank, rng, engine)
        spread = self.spread if rank > 1 else 0.0  # one column need not differ from others
        W = w[:, None] * (1.0 + spread * (rng.random((len(w), rank)) - 0.5))
        return W, engine.map(_jittered, sizes, _random_codes(V, rank, rng, engine), spread=spread)


@dataclass(frozen=True, slots=True)
class SingularStart:
    """Non-negative parts of singular vectors (NNDSVD), as scikit-learn has them: not robust.

    Missing entries are taken for the mean of their feature.

    Parameters
    ----------
    zeros : {"keep", "mean", "random"}
        What zeros of the factors become: they stay, or become the mean of the data, or small random numbers.
        Multiplicative updates cannot change a zero.

    References
    ----------
    C. Boutsidis, E. Gallopoulos, "SVD based initialization: A head start for nonnegative matrix factorization", Pattern
    Recognition, 2008.
    """

    zeros: Literal["keep", "mean", "random"] = "keep"

    name: ClassVar[str] = "nndsvd"

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return W (m, rank) and H (rank, n)."""
        if rank > min(V.shape):
            suffix = {"keep": "", "mean": "a", "random": "ar"}[self.zeros]
            raise ValueError(
                f"init = '{self.name}{suffix}' can only be used when n_components <= min(n_samples, n_features), here "
                f"{min(V.shape)}; got {rank}. Use init='random' or 'median'."
            )
        dtype, V = V.dtype, np.asarray(V, dtype=np.float64)
        V = V if M is None else _with_means(V, M)
        factors = from_singular_vectors(V, rank)
        if self.zeros != "keep":
            for factor in factors:
                empty = factor == 0
                filler = 1.0 if self.zeros == "mean" else np.abs(rng.standard_normal(int(empty.sum()))) / 100
                factor[empty] = V.mean() * filler
        W, H = (factor.astype(dtype) for factor in factors)
        return W, H


def _with_means(V: Matrix, M: Matrix) -> Matrix:
    """Return V (m, n) with the mean of the feature where M is zero; zero for features of which nothing is observed."""
    observed = M > 0
    totals = np.where(observed, V, 0).sum(axis=1, keepdims=True)
    return np.where(observed, V, totals / np.maximum(observed.sum(axis=1, keepdims=True), 1))


@dataclass(frozen=True, slots=True, eq=False)
class GivenStart:
    """Codes and components that the user gives, in units of X.

    Parameters
    ----------
    codes : array-like (n_samples, n_components)
        Codes of the samples.
    components : array-like (n_components, n_features)
        Components.
    """

    codes: Any
    components: Any

    name: ClassVar[str] = "given"

    def in_unit(self, unit: float, noise: Matrix | None, sizes: Matrix | None) -> "GivenStart":
        """Return the start of data that is divided by a unit, features by noise (m,), and samples by sizes (n,).

        Parameters
        ----------
        unit : float
            What the data is divided by.
        noise : ndarray (m,) or None
            What features are divided by.
        sizes : ndarray (n,) or None
            What samples are divided by.

        Returns
        -------
        GivenStart
            The start in that unit.
        """
        codes, components = (np.asarray(to_host(factor), dtype=np.float64) for factor in (self.codes, self.components))
        if sizes is not None and len(codes) == len(np.ravel(sizes)):  # another shape is refused by the call
            codes = codes / np.reshape(sizes, (-1, 1))
        if noise is not None and components.ndim == 2 and components.shape[1] == len(noise):
            components = components / noise
        return GivenStart(codes / unit, components)

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return W (m, rank) and H (rank, n): the components and codes, transposed."""
        wanted = {"codes": (V.shape[1], rank), "components": (rank, V.shape[0])}
        factors = {"codes": np.asarray(self.codes), "components": np.asarray(self.components)}
        for name, shape in wanted.items():
            factor = factors[name]
            if factor.shape != shape:
                what = "(n_samples, n_components)" if name == "codes" else "(n_components, n_features)"
                raise ValueError(
                    f"{name} of init=(codes, components) must be {what}, here {shape}; got {factor.shape}."
                )
            if not (np.isfinite(factor).all() and (factor >= 0).all()):
                raise ValueError(f"{name} of init=(codes, components) must be finite and non-negative.")
            if not factor.any():
                raise ValueError(f"{name} of init=(codes, components) are full of zeros, which no update can leave.")
        return factors["components"].T, factors["codes"].T


# --- Random numbers ---------------------------------------------------------------------------------------------------


def _random_codes(V: Blocks, rank: int, rng: np.random.Generator, engine: Engine) -> Blocks:
    """Return uniform random numbers for H', in blocks as V: those of ``rng.random((rank, n))``.

    Where the data is not in memory, every block draws its own part, if the generator can skip numbers.
    """
    lengths = [len(block) for block in V]
    n_samples = sum(lengths)
    if not is_lazy(V) or not hasattr(rng.bit_generator, "advance"):
        numbers = np.ascontiguousarray(rng.random((rank, n_samples)).T)
        return engine.split(engine.place(numbers, engine.xp.float64), like=V)
    kind, state = type(rng.bit_generator).__name__, rng.bit_generator.state
    blocks = [
        ReadBlock(
            _Draw(kind, state, int(end) - length, length, n_samples, rank), None, (length, rank), np.dtype(np.float64)
        )
        for end, length in zip(np.cumsum(lengths), lengths, strict=True)
    ]
    return engine.persist(blocks)


@dataclass(frozen=True)
class _Draw:
    """Draws the numbers of some columns of H; calling it returns them as rows."""

    kind: str
    state: Any
    start: int
    length: int
    n_samples: int
    rank: int

    def __call__(self) -> Matrix:
        rows = np.empty((self.length, self.rank))
        for k in range(self.rank):
            generator = getattr(np.random, self.kind)()
            generator.state = self.state
            generator.advance(k * self.n_samples + self.start)
            rows[:, k] = np.random.Generator(generator).random(self.length)
        return rows


# --- The level of the data --------------------------------------------------------------------------------------------


def _level(V: Blocks, M: Blocks | None, engine: Engine) -> float:
    """Return the median of the observed entries; if that is zero, the typical positive one times their share."""
    n_entries = sum(len(block) for block in V) * int(V[0].shape[1])
    if M is None and n_entries > _LEVEL_OF_ALL and isinstance(engine, NumPyEngine) and not engine.keeps_sparse:
        sizes = [len(block) * int(block.shape[1]) for block in V]
        some = engine.join(engine.map(_some_of_all, V, subsample(sizes, n_entries // _LEVEL_ENTRIES)))
        level = float(np.median(some))
        if level > 0:
            return level
    observed = None if M is None else engine.map(_is_observed, M)
    count, n_positive = engine.sum(_count_positive_entries, V, observed)
    middle = [(count + 1) // 2, count // 2 + 1]  # one and the same, if their number is odd
    both = [to_host(engine.quantile(V, observed, (k - 0.5) / count)) for k in dict.fromkeys(middle)]
    level = float(np.mean(both))
    if level > 0 or n_positive == 0:
        return level
    counts = to_host(engine.join(engine.map(_n_positive, V, observed))).tolist()
    some = subsample(counts, max(1, ceil(sum(counts) / SAMPLE)))
    values = to_host(engine.join(engine.map(_some_positive, V, observed, some))).astype(np.float64, copy=False)
    return densest_part(values) * float(n_positive / count)


def _some_of_all(Y: Array, some: slice, *, xp: Namespace) -> Array:
    """Return some entries of a block, line by line, as a vector."""
    return xp.reshape(Y, (-1,))[some]


@block_function(recomputed=True)
def _is_observed(M: Array, *, xp: Namespace) -> Array:
    return xp.astype(M > 0, M.dtype)


def _n_positive_stored(Y: Entries, observed: None, *, xp: Namespace) -> Array:
    return _n_positive(Y.values, None, xp=xp)


@block_function(stored=_n_positive_stored)
def _n_positive(Y: Array, observed: Array | None, *, xp: Namespace) -> Array:
    """Return the number of observed entries that are positive, (1,)."""
    return xp.count_nonzero(_is_positive(Y, observed))[None]


def _some_positive_stored(Y: Entries, observed: None, some: slice, *, xp: Namespace) -> Array:
    return _some_positive(Y.values, None, some, xp=xp)


@block_function(stored=_some_positive_stored)
def _some_positive(Y: Array, observed: Array | None, some: slice, *, xp: Namespace) -> Array:
    """Return some of the observed entries that are positive, as a vector."""
    return Y[_is_positive(Y, observed)][some]


def _is_positive(Y: Array, observed: Array | None) -> Array:
    return Y > 0 if observed is None else (Y > 0) & (observed > 0)


def _count_positive_of_stored(Y: Entries, observed: None, *, xp: Namespace) -> tuple[int, int]:
    return len(Y) * Y.n_columns, int(np.count_nonzero(Y.values > 0))


@block_function(stored=_count_positive_of_stored)
def _count_positive_entries(Y: Array, observed: Array | None, *, xp: Namespace) -> tuple[int, int]:
    """Return the numbers of observed and of positive entries."""
    positive = _is_positive(Y, observed)
    count = size(Y) if observed is None else int(xp.count_nonzero(observed))
    return count, int(xp.count_nonzero(positive))


# --- A robust picture of rank one -------------------------------------------------------------------------------------

# Samples so much smaller than the typical one say nothing of features that the others do not, and ratios overflow.
_FAINT = 1e-12
# The standard deviation of normal data is so many times its median absolute deviation.
_DEVIATION = 1.4826


def _median_rank_one(V: Blocks, M: Blocks | None, init: MedianStart, engine: Engine) -> tuple[Matrix, Blocks]:
    """Return w (m,) on the host and blocks of s (n,) such that V is about w s', by medians of ratios over some samples.

    No size is more than `init.most` times the median one, and levels are credible.
    """
    lengths, xp = [len(block) for block in V], engine.xp
    # Of data with gaps, as many observed entries of each feature are enough.
    enough = init.enough if M is None else int(init.enough / _observed_share(M, engine))
    every = max(1, sum(lengths) // enough)
    chosen = subsample(lengths, every)
    if M is None:
        n_positive, n_rows = engine.sum(_count_positive_rows, V, chosen)
        if xp.all(n_positive < init.fewest_positive * n_rows):  # sparse data need not be made dense to see that
            return np.zeros(V[0].shape[1]), engine.split(engine.place(np.ones(sum(lengths)), xp.float64), like=V)
    some = engine.map(_some_rows, V, M, chosen)
    w: Array = _feature_centers(some, None, M is None, init, engine)
    sizes: Array = None
    last: dict[str, Any] | None = None
    for _ in range(init.n_iter):
        bright = xp.nonzero(bright_features(w))[0]
        if not len(bright):
            break
        last = {"bright": bright[:: max(1, len(bright) // enough)], "w": w}
        sizes = engine.join(engine.map(_sizes, some, None, **last, complete=M is None, init=init))
        lit = sizes > 0
        if not xp.any(lit):
            break
        lit &= sizes > _FAINT * median(sizes[lit][None, :], complete=True)[0]
        w = _feature_centers(some, xp.where(lit, sizes, 0), M is None, init, engine)
    if last is None:
        return to_host(w), engine.split(engine.place(np.ones(sum(lengths)), xp.float64), like=V)  # w is zero
    most = init.most * float(middle_level(sizes))
    if every == 1:
        return to_host(credible(w)), engine.split(xp.where(sizes > most, most, sizes), like=V)
    return to_host(credible(w)), engine.map(_sizes, V, M, **last, complete=M is None, init=init, most=most)


def _feature_centers(some: Blocks, sizes: Array | None, complete: bool, init: MedianStart, engine: Engine) -> Array:
    """Return the typical entry of each feature over samples of positive size, divided by it, (m,); a few at a time."""
    n_features = some[0].shape[1]
    step = _at_a_time(sum(len(block) for block in some), n_features, some[0])
    centers = []
    if step < n_features and isinstance(engine, NumPyEngine) and isinstance(some[0], np.ndarray):
        step = max(1, step // engine.n_threads)  # together threads copy no more than one would
        starts = [np.array([start]) for start in range(0, n_features, step)]
        how: dict[str, Any] = {"some": some, "sizes": sizes, "step": step, "complete": complete, "init": init}
        return engine.join(engine.map(_centers_from, starts, **how))
    for start in range(0, n_features, step):
        columns = engine.join(engine.map(_columns, some, start=start, stop=start + step)).T
        if sizes is not None:
            columns = columns[:, sizes > 0] / sizes[sizes > 0]
        centers.append(init.center(columns, complete=complete))
    return engine.xp.concat(centers)


def _centers_from(
    start: Array,
    *,
    some: Blocks,
    sizes: Array | None,
    step: int,
    complete: bool,
    init: MedianStart,
    xp: Namespace,
) -> Array:
    """Return what `_feature_centers` does of some features, from one on."""
    columns = xp.concat([rows[:, int(start[0]) : int(start[0]) + step] for rows in some]).T
    if sizes is not None:
        columns = columns[:, sizes > 0] / sizes[sizes > 0]
    return init.center(columns, complete=complete)


def _at_a_time(n_entries: int, n_rows: int, like: Array) -> int:
    """Return how many of the rows, with so many entries each, are copied at a time; all, if most is missing."""
    return max(n_rows, 1) if isinstance(like, Observed) else max(1, _COPIED_ENTRIES // max(n_entries, 1))


def _observed_share(M: Blocks, engine: Engine) -> float:
    """Return the share of the entries that have a positive weight, which is that of one entry at least."""
    n_entries = sum(len(block) for block in M) * M[0].shape[1]
    return float(max(engine.sum(count_observed, M), 1) / n_entries)


def bright_features(levels: Array) -> Array:
    """Return which features are bright enough to tell a sample's size, from their typical levels, (m,).

    Ratios to a dark feature are mostly noise. Dark is what is so beside the median feature, not beside the largest: a
    few features that are wrong in every sample would leave nothing else bright.
    """
    return levels > 0.05 * middle_level(levels)


def middle_level(levels: Array) -> Array:
    """Return the median of those levels that are positive, 0 if none is, ()."""
    ordered = array_namespace(levels).sort(levels[levels > 0])
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2 if n else 0 * levels[0]


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
    far = above > 3 * _DEVIATION * median(xp.abs(above[positive])[None, :], complete=True)[0]
    return levels if xp.count_nonzero(far) > len(levels) / 5 else xp.where(far, middle, levels)


def _count_positive_stored_rows(Y: Entries, rows: slice, *, xp: Namespace) -> tuple[Array, int]:
    some = Y[rows]
    return np.bincount(some.columns[some.values > 0], minlength=Y.n_columns), len(some)


@block_function(stored=_count_positive_stored_rows)
def _count_positive_rows(Y: Array, rows: slice, *, xp: Namespace) -> tuple[Array, int]:
    """Return the number of positive entries of each feature in some rows, (m,), and the number of rows."""
    return xp.sum(xp.astype(Y[rows] > 0, xp.int64), axis=0), Y[rows].shape[0]


def _some_rows_stored(Y: Entries, M: None, rows: slice, *, xp: Namespace) -> Array:
    return Y[rows].dense().astype(np.float64)


@block_function(stored=_some_rows_stored)
def _some_rows(Y: Array, M: Array | None, rows: slice, *, xp: Namespace) -> Array:
    """Return some rows in double precision, NaN where missing."""
    return _with_gaps(Y[rows], None if M is None else M[rows], xp)


def _columns(rows: Array, *, start: int, stop: int, xp: Namespace) -> Array:
    return rows[:, start:stop]


def _sizes(
    Y: Array,
    M: Array | None,
    *,
    bright: Array,
    w: Array,
    complete: bool,
    init: MedianStart,
    most: float = inf,
    xp: Namespace,
) -> Array:
    """Return the typical ratio of each sample to w, over bright features, no larger than `most`, (B,)."""
    step = _at_a_time(len(bright), len(Y), Y)
    sizes = []
    for start in range(0, Y.shape[0], step):
        rows = slice(start, start + step)
        some = _with_gaps(Y[rows][:, bright], None if M is None else M[rows][:, bright], xp)
        sizes.append(init.center(some / w[bright], complete=complete))
    found = xp.concat(sizes)
    return xp.where(found > most, most, found)


def _with_gaps(Y: Array, M: Array | None, xp: Namespace) -> Array:
    """Return a copy in double precision in which missing entries are NaN."""
    copy = xp.astype(Y, xp.float64)
    return copy if M is None else xp.where(M > 0, copy, np.nan)


# --- Codes on a block -------------------------------------------------------------------------------------------------


def _count_positive(sizes: Array, *, xp: Namespace) -> int:
    return int(xp.count_nonzero(sizes > 0))


def _jittered(sizes: Array, numbers: Array, *, spread: float, xp: Namespace) -> Array:
    return sizes[:, None] / numbers.shape[1] * (1.0 + spread * (numbers - 0.5))


def _times(X: Array, *, factor: Any, xp: Namespace) -> Array:
    return factor * X


def _as_type(X: Array, *, dtype: np.dtype[Any], xp: Namespace) -> Array:
    return xp.astype(X, getattr(xp, dtype.name), copy=False)


def _zero_unseen(X: Array, M: Array, *, xp: Namespace) -> Array:
    return xp.where(xp.any(M > 0, axis=1)[:, None], X, 0)


# --- Correntropy ------------------------------------------------------------------------------------------------------


def _variance(V: Blocks, M: Blocks | None, W: Array, Ht: Blocks, engine: Engine) -> float:
    """Return the weighted mean of squared residuals."""
    squares, weight = engine.sum(_squares, V, M, Ht, W=W)
    return float(squares / weight)


def _squares(Y: Array, M: Array | None, X: Array, *, W: Array, xp: Namespace) -> tuple[float, float]:
    return weighted_sum((Y - predictions(X, W, Y)) ** 2, M, xp)


def _correntropy(Y: Array, M: Array | None, X: Array, W: Array, variance: float, xp: Namespace) -> tuple[Array, Array]:
    """Return Q * Y and Q * (X @ W'), with weights Q = exp(-e**2 / 2 variance), times M."""
    product = predictions(X, W, Y)
    Q = xp.exp(-0.5 * (Y - product) ** 2 / variance) if variance > 0 else xp.ones_like(Y)
    Q = Q if M is None else Q * M
    return Q * Y, Q * product


def _updated_codes(Y: Array, M: Array | None, X: Array, *, W: Array, variance: float, xp: Namespace) -> Array:
    """Return codes after a multiplicative update."""
    data, product = _correntropy(Y, M, X, W, variance, xp)
    return _multiplied(X, data @ W, product @ W, xp)


def _basis_terms(
    Y: Array, M: Array | None, X: Array, *, W: Array, variance: float, xp: Namespace
) -> tuple[Array, Array]:
    """Return numerator and denominator of a multiplicative update of the basis, (m, r) each."""
    data, product = _correntropy(Y, M, X, W, variance, xp)
    return data.T @ X, product.T @ X


def _multiplied(factor: Array, numerator: Array, denominator: Array, xp: Namespace) -> Array:
    """Return a factor times a ratio, as it was where the denominator is zero."""
    positive = denominator > 0
    return xp.where(positive, factor * numerator / xp.where(positive, denominator, 1), factor)
