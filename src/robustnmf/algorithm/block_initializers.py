"""Initial factors of data in blocks: what `robustnmf.algorithm.initializers` draws for all of it at once, to rounding.

Sums, counts and a sample of bounded size travel, never the data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.initializers import (
    Initializer,
    MedianStart,
    PublishedStart,
    RandomStart,
    _median_on_host,
    bright_features,
    credible,
    middle_level,
)
from robustnmf.engines.lazy import ReadBlock
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.errors import IncompatibleError
from robustnmf.utils.arrays import Array, Blocks, Namespace, evenly

Matrix = NDArray[Any]

# Entries that are gathered at a time: 32 MiB.
GATHERED_ENTRIES = 2**22


def start(
    init: Initializer, V: Blocks, M: Blocks | None, rank: int, rng: np.random.Generator, engine: Engine
) -> tuple[Matrix, Blocks]:
    """Return W (m, r) and blocks of H' that an initialiser would draw for all data at once."""
    make = _STARTS.get(type(init))
    if make is None:
        raise IncompatibleError(
            f"init {init!r} needs the whole of X, and this data is not in memory. Use init='median', 'random' or "
            "'published'."
        )
    W, Ht = make(init, V, M, rank, _Draws(rng, V, rank), engine)
    dtype = np.dtype(V[0].dtype)
    return W.astype(dtype), engine.map(_as_type, Ht, dtype=dtype)


def unseen_to_zero(W: Matrix, Ht: Blocks, M: Blocks | None, seen: Matrix, engine: Engine) -> tuple[Matrix, Blocks]:
    """Return factors that are zero for features and samples of which nothing is observed."""
    if M is None:
        return W, Ht
    W[seen == 0] = 0
    return W, engine.map(_zero_unseen, Ht, M)


def with_known(W: Matrix, Ht: Blocks, known: Matrix, engine: Engine) -> tuple[Matrix, Blocks]:
    """Put known components in place of the first of a start, with codes that keep their share of it."""
    if not len(known):
        return W, Ht
    factors = np.ones(W.shape[1], dtype=W.dtype)
    for k, component in enumerate(known):
        factors[k] = W[:, k].sum() / component.sum()
        W[:, k] = component
    return W, engine.map(_scaled, Ht, factors=factors)


class _Draws:
    """Random numbers of W and H, as one generator gives them: those of W, then H row by row.

    A generator that can skip numbers lets every block draw its own part of H; of another all are drawn here.
    """

    def __init__(self, rng: np.random.Generator, V: Blocks, rank: int) -> None:
        self.rng, self.rank = rng, rank
        self.n_features, self.lengths = V[0].shape[1], [len(block) for block in V]

    def basis(self) -> Matrix:
        """Return the numbers of W, (m, r)."""
        return self.rng.random((self.n_features, self.rank))

    def codes(self, V: Blocks, engine: Engine) -> Blocks:
        """Return those of H', in blocks."""
        n_samples = sum(self.lengths)
        if not hasattr(self.rng.bit_generator, "advance"):
            return engine.split(np.ascontiguousarray(self.rng.random((self.rank, n_samples)).T), like=V)
        ends, state = np.cumsum(self.lengths), self.rng.bit_generator.state
        blocks = [
            ReadBlock(
                _Draw(type(self.rng.bit_generator).__name__, state, int(end) - length, length, n_samples, self.rank),
                None,
                (length, self.rank),
                np.dtype(np.float64),
            )
            for end, length in zip(ends, self.lengths, strict=True)
        ]
        return engine.hold(blocks)


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


def _random_start(
    init: Any, V: Blocks, M: Blocks | None, rank: int, draws: _Draws, engine: Engine
) -> tuple[Matrix, Blocks]:
    """Return what `RandomStart` draws."""
    c = 2.0 * np.sqrt(_level(V, M, engine) / rank)
    return c * draws.basis(), engine.map(_times, draws.codes(V, engine), factor=c)


def _level(V: Blocks, M: Blocks | None, engine: Engine) -> float:
    """Return the median of the observed entries, their mean if that is zero."""
    observed = None if M is None else engine.map(_is_observed, M)
    count, total = engine.sum(_count_and_sum, V, observed)
    count = int(count)
    middle = [(count + 1) // 2, count // 2 + 1]  # one and the same, if their number is odd
    both = [engine.quantile(V, observed, (k - 0.5) / count) for k in dict.fromkeys(middle)]
    return float(np.mean(both)) or float(total / count)


def _published_start(
    init: PublishedStart, V: Blocks, M: Blocks | None, rank: int, draws: _Draws, engine: Engine
) -> tuple[Matrix, Blocks]:
    """Return what `PublishedStart` draws: one update of each factor with correntropy weights."""
    W, Ht = _random_start(init, V, M, rank, draws, engine)
    dtype, factor = np.dtype(V[0].dtype), init.level**0.5
    W, Ht = W.astype(dtype) * factor, engine.map(_lowered, Ht, dtype=dtype, factor=factor)
    Ht = engine.map(_update_codes, V, M, Ht, W=W, variance=_variance(V, M, W, Ht, engine))
    numerator, denominator = engine.sum(_basis_terms, V, M, Ht, W=W, variance=_variance(V, M, W, Ht, engine))
    positive = denominator > 0
    return np.where(positive, W * numerator / np.where(positive, denominator, 1), W), Ht


def _variance(V: Blocks, M: Blocks | None, W: Matrix, Ht: Blocks, engine: Engine) -> float:
    """Return the weighted mean of squared residuals."""
    squares, weight = engine.sum(_squares, V, M, Ht, W=W)
    return float(squares / weight)


def _median_start(
    init: MedianStart, V: Blocks, M: Blocks | None, rank: int, draws: _Draws, engine: Engine
) -> tuple[Matrix, Blocks]:
    """Return what `MedianStart` draws."""
    w, sizes = _median_rank_one(V, M, init, engine)
    positive = engine.sum(_any_positive, sizes)
    if not (np.any(w > 0) and positive > 0):
        return _random_start(init, V, M, rank, draws, engine)
    spread = init.spread if rank > 1 else 0.0
    W = w[:, None] * (1.0 + spread * (draws.basis() - 0.5))
    return W, engine.map(_jittered, sizes, draws.codes(V, engine), spread=spread)


def _median_rank_one(V: Blocks, M: Blocks | None, init: MedianStart, engine: Engine) -> tuple[Matrix, Blocks]:
    """Return w (m,) and blocks of s (n,) such that V is about w s', by medians of ratios over some samples."""
    lengths = [len(block) for block in V]
    every = max(1, sum(lengths) // init.enough)
    some = engine.map(_chosen_rows, V, M, evenly(lengths, every))
    sizes_of_some = None
    w = _feature_medians(some, None, V[0].shape[1], engine)
    last: dict[str, Any] | None = None
    for _ in range(init.n_iter):
        bright = np.flatnonzero(bright_features(w))
        if not bright.size:
            break
        last = {"bright": bright[:: max(1, bright.size // init.enough)], "w": w}
        sizes_of_some = engine.join(engine.map(_row_sizes, some, None, **last))
        if not (sizes_of_some > 0).any():
            break
        w = _feature_medians(some, sizes_of_some, V[0].shape[1], engine)
    w = credible(w)
    if last is None:
        return w, engine.split(np.ones(sum(lengths)), like=V)
    return w, engine.map(_row_sizes, V, M, **last, most=init.most * middle_level(sizes_of_some))


def _feature_medians(some: Blocks, sizes: Matrix | None, n_features: int, engine: Engine) -> Matrix:
    """Return the median of each feature over some samples, divided by their sizes; a few features are gathered."""
    n_samples = sum(len(block) for block in some)
    step = max(1, GATHERED_ENTRIES // max(1, n_samples))
    medians = []
    for start in range(0, n_features, step):
        columns = engine.join(engine.map(_columns, some, start=start, stop=start + step)).T
        if sizes is not None:
            columns = columns[:, sizes > 0] / sizes[sizes > 0]
        medians.append(_median_on_host(columns))
    return np.concatenate(medians)


_STARTS: dict[type, Callable[..., tuple[Matrix, Blocks]]] = {
    RandomStart: _random_start,
    PublishedStart: _published_start,
    MedianStart: _median_start,
}


@block_function(on_host=True)
def _chosen_rows(Y: Array, M: Array | None, chosen: Array, *, xp: Namespace) -> Array:
    """Return some rows, NaN where missing."""
    rows = np.asarray(Y[chosen], dtype=np.float64)
    return rows if M is None else np.where(M[chosen] > 0, rows, np.nan)


@block_function(on_host=True)
def _columns(rows: Array, *, start: int, stop: int, xp: Namespace) -> Array:
    return rows[:, start:stop]


@block_function(on_host=True)
def _row_sizes(Y: Array, M: Array | None, *, bright: Array, w: Array, most: float = inf, xp: Namespace) -> Array:
    """Return the median ratio of each sample to w, over bright features, no larger than some size, (B,)."""
    rows = np.asarray(Y[:, bright], dtype=np.float64)
    if M is not None:
        rows = np.where(M[:, bright] > 0, rows, np.nan)
    return np.minimum(_median_on_host(rows / w[bright]), most) if len(rows) else np.empty(0)


@block_function(on_host=True)
def _any_positive(sizes: Array, *, xp: Namespace) -> int:
    return int(np.count_nonzero(sizes > 0))


@block_function(on_host=True)
def _jittered(sizes: Array, numbers: Array, *, spread: float, xp: Namespace) -> Array:
    return sizes[:, None] / numbers.shape[1] * (1.0 + spread * (numbers - 0.5))


@block_function(on_host=True)
def _times(numbers: Array, *, factor: float, xp: Namespace) -> Array:
    return factor * numbers


@block_function(on_host=True)
def _lowered(numbers: Array, *, dtype: Any, factor: float, xp: Namespace) -> Array:
    return numbers.astype(dtype) * factor


@block_function(on_host=True)
def _as_type(X: Array, *, dtype: Any, xp: Namespace) -> Array:
    return np.ascontiguousarray(X, dtype=dtype)


@block_function(on_host=True)
def _scaled(X: Array, *, factors: Array, xp: Namespace) -> Array:
    return X * factors


@block_function(on_host=True)
def _zero_unseen(X: Array, M: Array, *, xp: Namespace) -> Array:
    return np.where((M > 0).any(axis=1)[:, None], X, 0)


@block_function(recomputed=True, on_host=True)
def _is_observed(M: Array, *, xp: Namespace) -> Array:
    return (M > 0).astype(M.dtype)


@block_function(on_host=True)
def _count_and_sum(Y: Array, observed: Array | None, *, xp: Namespace) -> tuple[int, float]:
    if observed is None:
        return Y.size, float(Y.sum(dtype=np.float64))
    return int(np.count_nonzero(observed)), float((observed * Y).sum(dtype=np.float64))


@block_function(on_host=True)
def _squares(Y: Array, M: Array | None, X: Array, *, W: Array, xp: Namespace) -> tuple[float, float]:
    squares = (Y - X @ W.T) ** 2
    if M is None:
        return float(squares.sum(dtype=np.float64)), float(Y.size)
    return float((M * squares).sum(dtype=np.float64)), float(M.sum(dtype=np.float64))


def _correntropy(Y: Array, M: Array | None, product: Array, variance: float) -> Array:
    """Return weights exp(-e**2 / 2 variance), times M."""
    Q = np.exp(-0.5 * (Y - product) ** 2 / variance) if variance > 0 else np.ones_like(Y)
    return Q if M is None else Q * M


@block_function(on_host=True)
def _update_codes(Y: Array, M: Array | None, X: Array, *, W: Array, variance: float, xp: Namespace) -> Array:
    product = X @ W.T
    Q = _correntropy(Y, M, product, variance)
    denominator = (Q * product) @ W
    positive = denominator > 0
    return np.where(positive, X * ((Q * Y) @ W) / np.where(positive, denominator, 1), X)


@block_function(on_host=True)
def _basis_terms(
    Y: Array, M: Array | None, X: Array, *, W: Array, variance: float, xp: Namespace
) -> tuple[Array, Array]:
    product = X @ W.T
    Q = _correntropy(Y, M, product, variance)
    return (Q * Y).T @ X, (Q * product).T @ X
