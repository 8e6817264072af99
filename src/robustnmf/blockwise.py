"""Data that is not in memory, on its way into a fit: checked, brought to its unit, and started from, block by block.

Everything here gives what `robustnmf.validation` and `robustnmf.initializers` give for the same data in memory, to
rounding: sums, counts and a sample of bounded size travel, never the data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.arrays import Array, Blocks, Namespace, evenly
from robustnmf.engines.lazy import ReadBlock
from robustnmf.engines.protocol import Engine, recomputed
from robustnmf.errors import SMALLEST_UNCERTAINTY, IncompatibleError, uncertainty_error
from robustnmf.initializers import (
    Initializer,
    MedianStart,
    PublishedStart,
    RandomStart,
    _median_on_host,
    bright_features,
    credible,
    middle_level,
)
from robustnmf.units import in_range, power_of_two_below, precise

Matrix = NDArray[Any]

FOR_HOST = True
# Entries from which the unit of the data is taken.
UNIT_ENTRIES = 2**18
# Entries that are gathered at a time: 32 MiB.
GATHERED_ENTRIES = 2**22


# --- What the data is like --------------------------------------------------------------------------------------------


class Survey(NamedTuple):
    """What one look at all entries tells."""

    seen: Matrix
    """Observed entries of each feature, (m,)."""
    n_empty: int
    """Samples of which nothing is observed."""
    has_gaps: bool
    """Whether anything is missing."""
    largest_weight: float


_WRONG = (
    ("Infinite values", "Replace infinity by NaN if it means missing."),
    ("Negative values", "Shift or clip the data, or set them to NaN if they are missing."),
)


def survey(raw: Blocks, weights: Blocks | None, engine: Engine, name: str) -> Survey:
    """Look at all entries once, and refuse data that cannot be fitted; `name` is that of the estimator."""
    found, (seen, n_empty, n_gaps) = engine.map_and_sum(_look, raw, weights)
    found = engine.join(found)
    _check(found, [len(block) for block in raw], raw[0].shape[1], name)
    largest = float(found[:, -1].max())
    if weights is not None and largest == 0:
        raise ValueError("weights must not all be zero: no entry of X would count.")
    if not seen.any():
        n_entries = sum(len(block) for block in raw) * raw[0].shape[1]
        raise ValueError(f"{name} needs at least one observed entry; all {n_entries} entries of X are missing (NaN).")
    return Survey(seen, int(n_empty), bool(n_gaps), largest)


def _check(found: Matrix, lengths: list[int], n_features: int, name: str) -> None:
    """Raise an error for what the survey found wrong."""
    firsts, size = np.cumsum([0, *lengths[:-1]]), sum(lengths) * n_features
    for i, (what, advice) in enumerate(_WRONG):
        count, place, value = found[:, 3 * i], found[:, 3 * i + 1], found[:, 3 * i + 2]
        if count.any():
            block = int(np.flatnonzero(count)[0])
            row, column = divmod(int(place[block]), n_features)
            raise ValueError(
                f"{what} in data passed to {name}: X must be finite and non-negative (NaN means missing, inf is not "
                f"allowed); {int(count.sum())} of {size} entries are not, the first is {value[block]} at sample "
                f"{row + firsts[block]}, feature {column}. {advice}"
            )
    if found[:, 6].min() < 0 or not np.isfinite(found[:, 6:]).all():
        raise ValueError("weights must be non-negative and finite. Use 0 for entries that should not count.")


def _look(Y: Array, weights: Array | None, *, xp: Namespace) -> tuple[Matrix, tuple[Matrix, int, int]]:
    """Return number, place and value of what is wrong in a block and the range of its weights; and what to add up."""
    missing = _missing(Y, weights)
    row: list[float] = []
    for wrong in (np.isinf(Y), Y < 0):
        wrong &= ~missing
        first = int(wrong.argmax()) if wrong.any() else 0
        row += [float(np.count_nonzero(wrong)), first, float(Y.flat[first]) if Y.size else 0.0]
    if weights is None:
        row += [0.0, 1.0]
    else:
        row += [float(weights.min(initial=0.0)), float(weights.max(initial=0.0))]
    seen = np.count_nonzero(~missing, axis=0)
    return np.array([row]), (seen, int(missing.all(axis=1).sum()), int(np.count_nonzero(missing)))


def _missing(Y: Array, weights: Array | None) -> Array:
    missing = np.isnan(Y) if Y.dtype.kind == "f" else np.zeros(Y.shape, dtype=bool)
    return missing if weights is None else missing | (weights == 0)


def unit_of(raw: Blocks, weights: Blocks | None, engine: Engine) -> float:
    """Return the largest power of two not above the median of positive entries, as `robustnmf.fitting.data_unit`."""
    n_features = raw[0].shape[1]
    sizes = [len(block) * n_features for block in raw]
    every = max(1, sum(sizes) // UNIT_ENTRIES)
    firsts = [np.array([-before % every]) for before in np.cumsum([0, *sizes[:-1]])]
    some = engine.join(engine.map(_every_so_many, raw, weights, firsts, every=every))
    positive = some[some > 0]
    if positive.size:
        middle = (positive.size - 1) // 2
        positive.partition(middle)
        median = float(positive[middle])
    else:
        doubles = engine.map(_times_as, raw, factor=1.0, dtype=np.dtype(np.float64))  # whole numbers are not counted
        median = float(engine.quantile(doubles, engine.map(_is_positive, raw, weights), 0.5))
    return power_of_two_below(median) if median > 0 else 1.0


def _every_so_many(Y: Array, weights: Array | None, first: Array, *, every: int, xp: Namespace) -> Array:
    """Return some entries, 0 where missing."""
    some = slice(int(first[0]), None, every)
    values = Y.reshape(-1)[some]
    missing = _missing(values, None if weights is None else weights.reshape(-1)[some])
    return np.where(missing, 0, values)


@recomputed
def _is_positive(Y: Array, weights: Array | None, *, xp: Namespace) -> Array:
    """Return 1 where an observed entry is positive, else 0."""
    return (~_missing(Y, weights) & (Y > 0)).astype(Y.dtype if Y.dtype.kind == "f" else np.float64)


def noise_of(raw: Blocks, weights: Blocks | None, given: Blocks, engine: Engine) -> tuple[Matrix, Blocks]:
    """Return the typical uncertainty of each feature, (m,), and weights that say how each entry differs.

    As `robustnmf.validation.check_uncertainties`, for the uncertainties `given` of each entry.
    """
    found = engine.join(engine.map(_look_at_uncertainties, raw, weights, given))
    if found[:, 0].any():
        block = int(np.flatnonzero(found[:, 0])[0])
        row, column = divmod(int(found[block, 1]), raw[0].shape[1])
        raise uncertainty_error(found[block, 2], row + sum(len(b) for b in raw[:block]), column)
    doubles = np.dtype(np.float64)
    observed = engine.map(_as_observed, raw, weights, dtype=doubles)
    # Of an even number of entries the median is between the two in the middle: the lower of them in both directions.
    ways = (engine.map(_times_as, given, factor=factor, dtype=doubles) for factor in (1.0, -1.0))
    lower, upper = (engine.quantile(way, observed, 0.5, axis="feature") for way in ways)
    typical = 0.5 * (lower - upper)
    typical[typical == 0] = 1.0  # nothing of the feature is observed
    return typical, engine.map(_precise, raw, weights, given, typical=typical, dtype=doubles)


def _look_at_uncertainties(Y: Array, weights: Array | None, given: Array, *, xp: Namespace) -> Matrix:
    """Return the number of uncertainties that cannot be used, and place and value of the first."""
    usable = (given > SMALLEST_UNCERTAINTY) & (given < 1 / SMALLEST_UNCERTAINTY)
    wrong = ~_missing(Y, weights) & ~usable
    first = int(wrong.argmax()) if wrong.any() else 0
    return np.array([[float(np.count_nonzero(wrong)), first, float(given.flat[first]) if given.size else 0.0]])


@recomputed
def _as_observed(Y: Array, weights: Array | None, *, dtype: Any, xp: Namespace) -> Array:
    """Return 1 where an entry is observed, else 0."""
    return (~_missing(Y, weights)).astype(dtype)


@recomputed
def _times_as(Y: Array, *, factor: float, dtype: Any, xp: Namespace) -> Array:
    return factor * Y.astype(dtype, copy=False)


@recomputed
def _precise(Y: Array, weights: Array | None, given: Array, *, typical: Array, dtype: Any, xp: Namespace) -> Array:
    """Return weights of entries by their uncertainties and the weights that they have, 0 where missing."""
    observed = ~_missing(Y, weights)
    return precise(typical, np.where(observed, given, 1.0).astype(dtype), observed, weights)


@recomputed
def divided(Y: Array, *, by: Array, dtype: Any, xp: Namespace) -> Array:
    """Return entries divided by a number for each feature, in a floating type."""
    with np.errstate(over="ignore"):
        return Y.astype(dtype, copy=False) / in_range(by, dtype)


def even_rows(blocks: Blocks, n_rows: int, engine: Engine) -> Matrix:
    """Return about so many rows, evenly spread over all blocks."""
    lengths = [len(block) for block in blocks]
    every = max(1, sum(lengths) // n_rows)
    return np.asarray(engine.join(engine.map(_rows, blocks, evenly(lengths, every))))


def _rows(Y: Array, chosen: Array, *, xp: Namespace) -> Array:
    return Y[chosen]


def prepared(
    raw: Blocks,
    weights: Blocks | None,
    about: Survey,
    unit: float,
    dtype: Any,
    engine: Engine,
    noise: Matrix | None = None,
) -> tuple[Blocks, Blocks | None]:
    """Return data in its unit and the weights of its entries, None if all are 1; see `Observations.in_unit`."""
    dtype = np.dtype(dtype)
    parts = {"unit": unit, "noise": noise, "dtype": dtype, "limit": 2.0 ** (np.finfo(dtype).maxexp // 4)}
    if weights is None and not about.has_gaps:
        return engine.map(_in_unit, raw, **parts), None
    V, M = engine.map(_in_unit_with_weights, raw, weights, largest=about.largest_weight, **parts)
    return V, M


@recomputed
def _in_unit(Y: Array, *, unit: float, noise: Array | None, dtype: Any, limit: float, xp: Namespace) -> Array:
    """Return entries in their unit, and that of the noise, limited to a magnitude whose square does not overflow."""
    V = Y.astype(np.result_type(Y, dtype), copy=False)
    with np.errstate(over="ignore"):
        V = V / (V.dtype.type(unit) if noise is None else in_range(noise * unit, V.dtype))
    return np.minimum(V, limit).astype(dtype, copy=False)


@recomputed(parts=2)
def _in_unit_with_weights(
    Y: Array, weights: Array | None, *, dtype: Any, largest: float, xp: Namespace, **unit: Any
) -> tuple[Array, Array]:
    """Return entries in their unit, 0 where missing, and their weights, at most 1."""
    missing = _missing(Y, weights)
    M = (~missing).astype(dtype)
    if weights is not None:
        scaled = (np.asarray(weights, dtype=np.float64) / largest).astype(dtype)
        M *= np.where(weights > 0, np.maximum(scaled, np.finfo(dtype).tiny), scaled)  # small is not missing
    return _in_unit(np.where(missing, 0, Y), dtype=dtype, xp=xp, **unit), M


# --- Where it starts --------------------------------------------------------------------------------------------------


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


# --- On a block -------------------------------------------------------------------------------------------------------


def _chosen_rows(Y: Array, M: Array | None, chosen: Array, *, xp: Namespace) -> Array:
    """Return some rows, NaN where missing."""
    rows = np.asarray(Y[chosen], dtype=np.float64)
    return rows if M is None else np.where(M[chosen] > 0, rows, np.nan)


def _columns(rows: Array, *, start: int, stop: int, xp: Namespace) -> Array:
    return rows[:, start:stop]


def _row_sizes(Y: Array, M: Array | None, *, bright: Array, w: Array, most: float = inf, xp: Namespace) -> Array:
    """Return the median ratio of each sample to w, over bright features, no larger than some size, (B,)."""
    rows = np.asarray(Y[:, bright], dtype=np.float64)
    if M is not None:
        rows = np.where(M[:, bright] > 0, rows, np.nan)
    return np.minimum(_median_on_host(rows / w[bright]), most) if len(rows) else np.empty(0)


def _any_positive(sizes: Array, *, xp: Namespace) -> int:
    return int(np.count_nonzero(sizes > 0))


def _jittered(sizes: Array, numbers: Array, *, spread: float, xp: Namespace) -> Array:
    return sizes[:, None] / numbers.shape[1] * (1.0 + spread * (numbers - 0.5))


def _times(numbers: Array, *, factor: float, xp: Namespace) -> Array:
    return factor * numbers


def _lowered(numbers: Array, *, dtype: Any, factor: float, xp: Namespace) -> Array:
    return numbers.astype(dtype) * factor


def _as_type(X: Array, *, dtype: Any, xp: Namespace) -> Array:
    return np.ascontiguousarray(X, dtype=dtype)


def _scaled(X: Array, *, factors: Array, xp: Namespace) -> Array:
    return X * factors


def _zero_unseen(X: Array, M: Array, *, xp: Namespace) -> Array:
    return np.where((M > 0).any(axis=1)[:, None], X, 0)


@recomputed
def _is_observed(M: Array, *, xp: Namespace) -> Array:
    return (M > 0).astype(M.dtype)


def _count_and_sum(Y: Array, observed: Array | None, *, xp: Namespace) -> tuple[int, float]:
    if observed is None:
        return Y.size, float(Y.sum(dtype=np.float64))
    return int(np.count_nonzero(observed)), float((observed * Y).sum(dtype=np.float64))


def _squares(Y: Array, M: Array | None, X: Array, *, W: Array, xp: Namespace) -> tuple[float, float]:
    squares = (Y - X @ W.T) ** 2
    if M is None:
        return float(squares.sum(dtype=np.float64)), float(Y.size)
    return float((M * squares).sum(dtype=np.float64)), float(M.sum(dtype=np.float64))


def _correntropy(Y: Array, M: Array | None, product: Array, variance: float) -> Array:
    """Return weights exp(-e**2 / 2 variance), times M."""
    Q = np.exp(-0.5 * (Y - product) ** 2 / variance) if variance > 0 else np.ones_like(Y)
    return Q if M is None else Q * M


def _update_codes(Y: Array, M: Array | None, X: Array, *, W: Array, variance: float, xp: Namespace) -> Array:
    product = X @ W.T
    Q = _correntropy(Y, M, product, variance)
    denominator = (Q * product) @ W
    positive = denominator > 0
    return np.where(positive, X * ((Q * Y) @ W) / np.where(positive, denominator, 1), X)


def _basis_terms(
    Y: Array, M: Array | None, X: Array, *, W: Array, variance: float, xp: Namespace
) -> tuple[Array, Array]:
    product = X @ W.T
    Q = _correntropy(Y, M, product, variance)
    return (Q * Y).T @ X, (Q * product).T @ X
