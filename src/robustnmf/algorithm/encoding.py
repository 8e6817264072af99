"""Codes of samples in a known basis: the robust `transform`.

With the basis W, the scale and the outlier thresholds of a fit held fixed, samples are independent: the code of a
sample depends on that sample alone. The loss is not convex, so the start decides. Each sample starts from the typical
code of the fit, at the size that its median ratio to the typical sample gives, and the scale falls from the level of
those first residuals to the scale of the fit: outliers that a least-squares start would follow never get hold of it.
For samples unlike the typical one a second attempt begins with a few steps in which every entry pulls; the code with
the lower loss stays.

Where the fit knows the noise of each entry, residuals are taken in units of it, and what is accepted in the end is
encoded by least squares.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from robustnmf.algorithm.beyond import Beyond, replaced
from robustnmf.algorithm.initializers import bright_features
from robustnmf.algorithm.leverage import leverages, sample_factors, without_own
from robustnmf.data.sparse import as_sparse
from robustnmf.data.units import in_range
from robustnmf.engines.protocol import Engine, block_function
from robustnmf.kernels.interface import StoredKernels, form_of
from robustnmf.kernels.predictions import predictions
from robustnmf.model.losses import Cauchy, Huber, squared_ratio
from robustnmf.model.noise import NoiseModel
from robustnmf.model.penalties import NO_PENALTIES, Penalties, Penalty
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import SharedGram
from robustnmf.solvers.base import UNIFORM as SQUARES
from robustnmf.solvers.objective import Terms
from robustnmf.utils.arrays import Array, Blocks, Namespace, device, mapped, taken, to_host
from robustnmf.utils.cached import cached_property
from robustnmf.utils.entries import Entries
from robustnmf.utils.slices import in_parts

# Reweightings while the scale falls: from ten scales down it then changes by a fifth each time.
ANNEALING_STEPS = 10
# Reweightings of Huber's loss at the start of the second attempt.
FOLLOWING_STEPS = 5
# How often a rule for whole images, which takes its time, is asked for the outliers of a sample.
SPATIAL_ROUNDS = 5


# Annealing in units of the noise takes so many steps and ends at this scale. Then entries are judged so many times, and
# codes improved so often before each judgement.
NOISE_STEPS, LAST_SCALE, JUDGEMENTS, SETTLING_STEPS = 24, 3.0, 3, 20
# A sample is explained if its median residual is below so many times the median of clean ones: a third may be wrong.
LIKE_NOISE = 1.5
# Annealing finds a start, for which some of the features are enough: at least so many, and so many for each component.
START_FEATURES, START_FEATURES_PER_COMPONENT = 256, 8
# If there are not twice as many, but so many for each component, and a product of a sample with the components takes so
# many multiplications, annealing takes far longer than to look first whether it is needed.
QUICK_FEATURES_PER_COMPONENT, QUICK_PRODUCTS = 4, 2**17
# Most times that weights which follow the predictions are computed anew.
REWEIGHTINGS = 20
# Least squares converges to this part of the tolerance: what is left would count as noise.
EXACT = 0.01

# Sweeps of coordinate descent in which least squares has converged, if it ever does, and the part of the tolerance by
# which coordinates still move then: slow progress goes on for long.
MOST_SWEEPS, AT_REST = 1000, 1e-3

# Which solver learnt the basis does not matter for the best code of a sample; this one is fast and starts anywhere.
SOLVER = SharedGram(max_iter=4)
# While the weights stay, sweeps over the coordinates are cheap beside reading the data.
THOROUGH = SharedGram(max_iter=50)


class Description(NamedTuple):
    """What a fitted basis says of samples."""

    weights: Array | None
    """Weight of each entry relative to that of a perfect fit, 0 for outliers and missing entries, (n, m); None for
    sparse data."""
    outliers: Any
    """True where an observed entry has weight zero, (n, m); sparse for sparse data."""
    losses: Array
    """Sum over a sample's entries of M * rho, or rho of the whole sample, (n,)."""
    totals: Array
    """Sum over a sample's entries of M, or 1 for a sample as a whole, (n,)."""
    inlier_squares: Array
    """Sum over a sample's observed entries that are no outliers of the squared residual, (n,)."""

    def on_host(self) -> "Description":
        """Return it in arrays of NumPy."""
        return Description(*map(to_host, self))


@dataclass(frozen=True)
class Basis:
    """The outcome of a fit, and all that is needed to encode a sample."""

    W: Array
    """Basis, (m, r)."""
    code: Array
    """Typical code, (r,)."""
    weighting: Weighting
    """Loss, scale and outlier thresholds."""
    penalties: Penalties = NO_PENALTIES
    sweeps: int | None = None
    """Sweeps after which codes stop short of following the noise; None lets them converge."""
    noise: NoiseModel | None = None
    """By which entries are judged, the accepted ones being encoded by least squares; None judges by the weighting."""
    units: Array | None = None
    """What features are multiplied by in least squares, (m,); None if they are in its units."""
    judge: "Basis | None" = None
    """The basis in which entries are judged, with all features in one unit; None for this one."""

    @cached_property
    def leverages(self) -> Array:
        """The part that an entry of each feature has in its own prediction by least squares, (m,)."""
        W = self.W if self.units is None else self.W * self.units[:, None]
        return leverages(W, array_namespace(W))

    @cached_property
    def beyond(self) -> Beyond:
        """Finds entries that are too far from their predictions, where zeros are not stored."""
        assert self.noise is not None
        return Beyond(self.W, self.noise)

    @cached_property
    def beyond_without(self) -> Beyond:
        """The same of predictions without the entry itself, if it is so that entries are judged."""
        return self.beyond if self.beyond.noise.lenient else replace(self.beyond, leverage=self.leverages)

    def encode(self, V: Blocks, M: Blocks | None, engine: Engine, *, max_iter: int, tol: float) -> Blocks:
        """Return the codes of samples, blocks of H'.

        Parameters
        ----------
        V, M : blocks of samples in rows, (n, m) in all, and the weights of their entries.
        max_iter : int
            Most reweightings after the scale has fallen.
        tol : float
            A sample is done when no coordinate of its code moves by more than `tol` times the largest.
        """
        engine.kernels.forget()  # what they keep of data that was worked on before
        if self.sweeps is None:
            Ht: Blocks = engine.map(encode, V, M, basis=self, engine=engine, max_iter=max_iter, tol=tol)
        else:
            *_, Ht = self.path_of_codes(V, M, self.sweeps, engine)
        engine.kernels.forget()
        used = engine.xp.any(self.W > 0, axis=0)
        if not engine.xp.all(used):  # no data says anything of the code of a component that is zero
            Ht = engine.map(_where_used, Ht, used=used)
        return Ht

    def placed(self, place: Callable[[Any], Array]) -> "Basis":
        """Return the basis with its arrays elsewhere: `engine.place` takes them to an engine, `to_host` back."""
        threshold = self.weighting.threshold
        weighting = replace(self.weighting, threshold=None if threshold is None else mapped(threshold, place))
        noise = None if self.noise is None else self.noise.placed(place)
        units = None if self.units is None else place(self.units)
        judge = None if self.judge is None else self.judge.placed(place)
        parts: dict[str, Any] = {"weighting": weighting, "noise": noise, "units": units, "judge": judge}
        return replace(self, W=place(self.W), code=place(self.code), **parts)

    def penalty(self, xp: Namespace) -> Penalty | None:
        """Return the penalty on the codes."""
        return self.penalties.of(self.penalties.codes, self.W, self.weighting.scale, xp)

    def path_of_codes(self, V: Blocks, M: Blocks | None, sweeps: int, engine: Engine) -> Iterator[Blocks]:
        """Yield the typical code at the size of each sample, then the codes after each sweep of coordinate descent."""
        Ht = engine.map(_start, V, M, basis=self, engine=engine)
        yield Ht
        parts: dict[str, Any] = {"A": self.W, "penalty": self.penalty(engine.xp), "weighting": self.weighting}
        for _ in range(sweeps):
            Ht = engine.map(SharedGram(max_iter=1).half_step, V, M, Ht, **parts, engine=engine)
            yield Ht

    def describe(
        self,
        V: Blocks,
        M: Blocks | None,
        Ht: Blocks,
        weights: Blocks | None,
        outliers: Blocks,
        engine: Engine,
        **limits: Any,
    ) -> tuple[Blocks, Blocks, Blocks]:
        """Write weights, if they are wanted, and outliers of encoded samples, and return sums over each sample.

        See `Description`. Both have the shape of V; the weights may take the place of V itself. The limits are those of
        `encode`: if another basis says what is wrong, samples are encoded in that one too.
        """
        wrong = None
        if self.judge is not None:
            engine.fill((outliers,), _wrong_alone, V, M, basis=self.judge, engine=engine, **limits)
            wrong = outliers
        function, targets = (_describe, (weights, outliers)) if weights is not None else (_outliers, (outliers,))
        sums: tuple[Blocks, Blocks, Blocks] = engine.fill(targets, function, V, M, Ht, wrong, basis=self)
        return sums

    def describe_sparsely(self, V: Blocks, M: Blocks | None, Ht: Blocks, engine: Engine, **limits: Any) -> Any:
        """Return the sums of `Description` over each sample, and outliers as sparse blocks."""
        return engine.map(_describe_sparsely, V, M, Ht, basis=self, engine=engine, **limits)


def basis_of(components: Array, noise: Array | None) -> Array:
    """Return the basis W (n_features, n_components) that data in units of its noise is encoded in."""
    return components.T if noise is None else components.T / in_range(noise[:, None], components.dtype)


def noise_in_units(basis: Basis, unit: float, noise: Array | None) -> NoiseModel | None:
    """Return the noise by which a basis judges entries, in units of X; None if it does not."""
    model = basis.noise if basis.judge is None else basis.judge.noise
    return None if model is None else model.in_units(unit if noise is None else unit * noise)


def _where_used(X: Array, *, used: Array, xp: Namespace) -> Array:
    """Return codes (B, r) with zeros where a component is not used, (r,)."""
    return xp.where(used, X, 0)


def typical_code(W: Array, Ht: Blocks, importance: Blocks | None, engine: Engine) -> Array:
    """Return the mean of the codes, each divided by the size of its reconstruction, (r,).

    Without the division a few huge, wrong samples would decide. A sample counts by its `importance`, (n,): the total
    weight of its entries.
    """
    code, total = engine.sum(_relative_codes, Ht, importance, sums=engine.xp.sum(W, axis=0))
    return code / total if total > 0 else code


def _relative_codes(X: Array, importance: Array | None, *, sums: Array, xp: Namespace) -> tuple[Array, float]:
    """Return the sum of codes divided by the sizes of their reconstructions, and the weight of those that have one."""
    size = X @ sums
    # What is nothing beside data of about 1 counts as nothing: codes of dead components divided by it would overflow.
    size = xp.where(size >= float(xp.finfo(X.dtype).smallest_normal) ** 0.5, size, 0)
    weight = xp.astype(size > 0, X.dtype) * (1 if importance is None else xp.astype(importance, X.dtype))
    return weight / xp.where(size > 0, size, 1) @ X, float(xp.sum(weight))


def _encode_stored(
    Y: Entries, M: None, *, basis: Basis, engine: Engine, max_iter: int, tol: float, xp: Namespace
) -> Any:
    """Return codes of a block whose zeros are not stored, if they are found by least squares on what is right."""
    if not judges_stored(basis, engine):
        return NotImplemented
    judge = StoredJudge(basis, engine)
    if basis.judge is None:
        return _encode_by_noise(Y, None, judge, max_iter, tol)
    wrong = _wrong_stored(Y, basis.judge, engine, max_iter, tol)
    return judge.fitted(Y, None, judge.begin(Y, None), wrong if len(wrong.values) else None, max_iter, tol)


@block_function(stored=_encode_stored)
def encode(
    Y: Array, M: Array | None, *, basis: Basis, engine: Engine, max_iter: int, tol: float, xp: Namespace
) -> Array:
    """Encode one block, twice: sceptical of what is far from the typical sample, and following it; the better stays.

    Then iterate at the scale of the fit until each sample is done; a rule for whole images is asked a few times.
    """
    weighting = basis.weighting
    if basis.judge is not None:
        wrong = _wrong(Y, M, basis=basis.judge, engine=engine, max_iter=max_iter, tol=tol, xp=xp)
        judge = Judge(basis, engine)
        is_any = xp.any(judge.samples_with(wrong, M))
        return judge.fitted(Y, M, judge.begin(Y, M), wrong if is_any else None, max_iter, tol)
    if basis.noise is not None:
        return _encode_by_noise(Y, M, Judge(basis, engine), max_iter, tol)
    typical = _start(Y, M, basis=basis, engine=engine, xp=xp)
    if weighting.is_least_squares:  # which is convex: any start will do
        return settle(Y, M, typical, basis, engine, max_iter, tol)
    sceptical = _anneal(Y, M, typical, basis, engine)
    following = _anneal(Y, M, _follow(Y, M, typical, basis, engine), basis, engine)
    is_better = losses(Y, M, following, basis, xp) < losses(Y, M, sceptical, basis, xp)
    X = xp.where(is_better[:, None], following, sceptical)
    if not weighting.is_spatial:
        return settle(Y, M, X, basis, engine, max_iter, tol)
    alone = replace(basis, weighting=weighting.without_rule())
    for _ in range(SPATIAL_ROUNDS):
        kept = weighting.kept(Y - predictions(X, basis.W, Y), M, xp)
        X = settle(Y, kept, X, alone, engine, max_iter // SPATIAL_ROUNDS, tol)
    return X


def _encode_by_noise(Y: Any, M: Array | None, judge: "Judge", max_iter: int, tol: float) -> Array:
    """Return codes by least squares on what is right; samples that all of which is right are soon done."""
    xp = judge.xp
    if max_iter == 0 and M is None:  # sweeps over all samples will go on from here
        start = judge.start_of_sweeps(Y, tol)
        if start is not None:
            return start
    with_all = WithAll(Y, M, judge, max_iter, tol)
    doubtful = xp.nonzero(with_all.are_doubtful())[0]
    if doubtful.shape[0] == 0:
        return with_all.X
    found = _encode_without_wrong(with_all[doubtful], judge, max_iter, tol)
    # A sample of which all that is positive is rejected would have no code; then it is that of all its entries.
    is_lost = ~xp.any(found > 0, axis=1)
    if xp.any(is_lost):
        found[is_lost] = with_all[doubtful[is_lost]].codes()
    with_all.X[doubtful] = found
    return with_all.X


class WithAll:
    """Codes of samples with all of their entries, by least squares.

    Those of samples that have wrong entries for sure, whatever their codes, are found where they are needed.
    """

    def __init__(self, Y: Any, M: Array | None, judge: "Judge", max_iter: int, tol: float) -> None:
        self.Y, self.M, self.judge, self.limits = Y, M, judge, (max_iter, tol)
        self.X, self.is_sure = judge.begin(Y, M), judge.are_surely_wrong(Y, M)

    def __getitem__(self, rows: Array) -> "WithAll":
        """Return that of some of the samples."""
        some = copy(self)
        some.Y, some.M = taken(self.Y, rows), taken(self.M, rows)
        some.X, some.is_sure = self.X[rows], self.is_sure[rows]
        return some

    def are_doubtful(self) -> Array:
        """Return which samples have wrong entries, (B,)."""
        xp, doubtful = self.judge.xp, self.judge.xp.asarray(self.is_sure, copy=True)
        rest = xp.nonzero(~self.is_sure)[0]
        if rest.shape[0] > 0:
            some, observed = taken(self.Y, rest), taken(self.M, rest)
            X = self._fitted(some, observed, self.X[rest])
            self.X[rest] = X
            doubtful[rest] = self.judge.samples_with(self.judge.wrong(some, observed, X, None), observed)
        return doubtful

    def codes(self) -> Array:
        """Return the codes of all samples, (B, r)."""
        sure = self.judge.xp.nonzero(self.is_sure)[0]
        if sure.shape[0] == 0:
            return self.X
        X = self.judge.xp.asarray(self.X, copy=True)
        X[sure] = self._fitted(taken(self.Y, sure), taken(self.M, sure), X[sure])
        return X

    def _fitted(self, Y: Any, M: Array | None, X: Array) -> Array:
        return self.judge.fitted(Y, M, X, None, *self.limits)


def _encode_without_wrong(with_all: WithAll, judge: "Judge", max_iter: int, tol: float) -> Array:
    """Return codes of samples with wrong entries; a sample of which nothing else turns out to be wrong is done.

    Codes that are not to be improved, by a `max_iter` of 0, are a start for more, and judged once.
    """
    Y, M, steps = with_all.Y, with_all.M, max(max_iter, SETTLING_STEPS)
    X, wrong = judge.judged_once(Y, M, judge.start(Y, M, with_all, tol), None, tol, steps)
    rows = judge.xp.arange(X.shape[0], device=device(X))
    for _ in range(JUDGEMENTS - 1 if max_iter else 0):
        some, observed = taken(Y, rows), taken(M, rows)
        last, wrong = wrong, judge.wrong(some, observed, X[rows], wrong)
        if can_solve(judge.plain.W, judge.engine):  # else codes may be improved further
            changed = judge.xp.nonzero(judge.differ(last, wrong, observed))[0]
            if changed.shape[0] == 0:
                break
            rows, some, observed, wrong = (taken(A, changed) for A in (rows, some, observed, wrong))
        X[rows] = judge.fitted(some, observed, X[rows], wrong, steps, tol)
    return X


def _wrong(
    Y: Array, M: Array | None, *, basis: Basis, engine: Engine, max_iter: int, tol: float, xp: Namespace
) -> Array:
    """Return which entries of a block are wrong, by a basis that knows the noise, (B, m)."""
    assert basis.noise is not None
    X = encode(Y, M, basis=basis, engine=engine, max_iter=max_iter, tol=tol, xp=xp)
    return Judge(basis, engine).beyond(Y, X)


def _wrong_alone(Y: Array, M: Array | None, **how: Any) -> tuple[Array]:
    """Return `_wrong`, for `Engine.fill`."""
    return (_wrong(Y, M, **how),)


def _wrong_stored(Y: Entries, basis: Basis, engine: Engine, max_iter: int, tol: float) -> Any:
    """Return which entries of a block are wrong, zeros that are not stored among them."""
    judge = StoredJudge(basis, engine)
    return judge.beyond(Y, _encode_by_noise(Y, None, judge, max_iter, tol))


def n_features_of_start(n_features: int, rank: int) -> int | None:
    """Return how many features are enough to find the start of a code; None for all."""
    wanted = max(START_FEATURES, START_FEATURES_PER_COMPONENT * rank)
    return None if n_features < 2 * wanted else wanted


class Judge:
    """Says of entries of samples with some codes whether they are wrong, by a basis that knows the noise."""

    def __init__(self, basis: Basis, engine: Engine) -> None:
        assert basis.noise is not None
        self.basis, self.W, self.noise, self.units = basis, basis.W, basis.noise, basis.units
        self.engine, self.xp = engine, engine.xp
        W = basis.W if basis.units is None else basis.W * basis.units[:, None]
        self.plain = replace(basis, W=W, weighting=SQUARES)
        """The basis in the units of least squares."""
        self.leverage = basis.leverages

    def fitted(self, Y: Array, M: Array | None, X: Array, wrong: Array | None, max_iter: int, tol: float) -> Array:
        """Return codes by least squares in which what is wrong hardly counts; None for nothing."""
        if wrong is None and M is None and not self.noise.follows_predictions:
            return settle(self.in_units(Y), M, X, self.plain, self.engine, max_iter, EXACT * tol)
        wrong = self.xp.zeros_like(Y, dtype=self.xp.bool) if wrong is None else wrong
        if self.noise.follows_predictions:
            return self.reweighted(Y, M, X, wrong, max_iter, tol)
        return self.fitted_once(Y, M, X, wrong, max_iter, tol)

    def fitted_once(self, Y: Array, M: Array | None, X: Array, wrong: Array, max_iter: int, tol: float) -> Array:
        """Return codes by least squares with the weights that codes X give."""

        def settled(wrong: Array, Y: Array, M: Array | None, X: Array) -> Array:
            predicted = predictions(X, self.W, Y) if self.noise.follows_predictions else None
            filled, weights = without(wrong, Y, M, predicted, self.noise, self.xp)
            return settle(self.in_units(filled), weights, X, self.plain, self.engine, max_iter, EXACT * tol)

        return in_parts(settled, wrong, Y, M, X)

    def reweighted(self, Y: Array, M: Array | None, X: Array, wrong: Array, max_iter: int, tol: float) -> Array:
        """Return codes by least squares with weights that follow the predictions, until each sample is at rest."""
        xp, X = self.xp, self.xp.asarray(X, copy=True)
        rows = xp.arange(X.shape[0], device=device(X))
        for _ in range(REWEIGHTINGS):
            some = (taken(Y, rows), taken(M, rows), xp.asarray(X[rows], copy=True), taken(wrong, rows))
            new = self.fitted_once(*some, max_iter, tol)
            moved = xp.max(xp.abs(new - X[rows]), axis=1) > tol * xp.max(new, axis=1)
            X[rows] = new
            rows = rows[moved]
            if rows.shape[0] == 0:
                break
        return X

    def in_units(self, Y: Array) -> Array:
        """Return samples in the units of least squares."""
        return Y if self.units is None else Y * self.units

    def leverage_of(self, Y: Array, M: Array | None) -> Array:
        """Return the part that entries have in their own predictions, (B, m) or (m,): larger, the more is missing."""
        if M is None:
            return self.leverage
        factors = sample_factors(M, self.noise.anchors, Y.dtype, self.xp)[:, None]
        return self.xp.ones_like(Y) * self.leverage * factors

    def predictions(self, Y: Array, M: Array | None, X: Array, wrong: Array | None) -> Array:
        """Return the prediction of each entry without it; those that are wrong have had no part in theirs."""
        predicted = predictions(X, self.W, Y)
        if self.noise.lenient:
            return predicted
        alone = without_own(predicted, Y, self.leverage_of(Y, M), self.xp)
        return alone if wrong is None else self.xp.where(wrong, predicted, alone)

    def ratios(self, Y: Array, M: Array | None, X: Array, wrong: Array | None) -> Array:
        """Return residuals by predictions without the entries themselves, in units of the threshold, (B, m)."""
        return self.noise.ratios(Y, self.predictions(Y, M, X, wrong), self.xp)

    def wrong(self, Y: Array, M: Array | None, X: Array, wrong: Array | None) -> Array:
        """Return which entries are wrong, (B, m), where it is known which were until now."""
        return in_parts(lambda *rows: self.ratios(*rows) > 1, Y, M, X, wrong)

    def beyond(self, Y: Array, X: Array) -> Array:
        """Return which entries are too far from their predictions, (B, m)."""
        return in_parts(lambda Y, X: self.noise.ratios(Y, predictions(X, self.W, Y), self.xp) > 1, Y, X)

    def samples_with(self, wrong: Array, M: Array | None) -> Array:
        """Return which samples have wrong entries that are not missing, (B,)."""
        return self.xp.any(wrong if M is None else wrong & (M > 0), axis=1)

    def differ(self, first: Array, second: Array, M: Array | None) -> Array:
        """Return for which samples something else that is not missing is wrong, (B,)."""
        return self.samples_with(first != second, M)

    def judged_once(
        self, Y: Array, M: Array | None, X: Array, wrong: Array | None, tol: float, steps: int = SETTLING_STEPS
    ) -> tuple[Array, Array]:
        """Return codes by least squares on what is right, and what is wrong, where it is known what was until now."""
        wrong = self.wrong(Y, M, X, wrong)
        return self.fitted(Y, M, X, wrong, steps, tol), wrong

    def of_features(self, chosen: Array) -> "Judge":
        """Return the judge of samples that have some of the features, (k,)."""
        noise, units = self.noise.placed(lambda array: array[chosen]), self.units
        units = None if units is None else units[chosen]
        return Judge(replace(self.basis, W=self.W[chosen], noise=noise, units=units), self.engine)

    def features_of_start(self) -> Array | None:
        """Return features that are enough to find a start, (k,), or None for all.

        Half of them are those that tell most of the codes, the others are evenly chosen.
        """
        n_features, rank = self.W.shape
        wanted = n_features_of_start(n_features, rank)
        if wanted is None:
            return None
        order = np.argsort(-to_host(self.leverage), kind="stable")
        some = np.linspace(0, n_features - wanted // 2 - 1, wanted - wanted // 2).astype(np.int64)
        chosen = np.concatenate([order[: wanted // 2], np.sort(order[wanted // 2 :])[some]])
        return self.engine.place(np.sort(chosen))

    def begin(self, Y: Array, M: Array | None) -> Array:
        """Return codes from which least squares begins; where it is solved at once, any will do."""
        if can_solve(self.plain.W, self.engine):
            return self.xp.zeros((Y.shape[0], self.W.shape[1]), dtype=Y.dtype, device=device(Y))
        return self.typical(Y, M)

    def typical(self, Y: Array, M: Array | None) -> Array:
        """Return the typical code, at the size of each sample."""
        return _start(Y, M, basis=self.basis, engine=self.engine, xp=self.xp)

    def start(self, Y: Array, M: Array | None, with_all: WithAll, tol: float) -> Array:
        """Return codes from which wrong entries can be told.

        Of sparse samples it is least squares without entries that are larger than any that the fit accepted; errors
        among few positive entries are seldom smaller. Of others it is found by steps with weights that become stricter,
        or from the codes with all entries, whichever leads to the lower loss.
        """
        if self.is_sparse:
            start = self.fitted(Y, M, with_all.codes(), Y > self.noise.largest, SETTLING_STEPS, tol)
            return self.better(Y, M, start, with_all.codes(), tol)
        if M is not None or not self.starts_quickly:  # a sample with gaps may have observed entries in none of them
            return self.patient_start(Y, M, with_all.codes(), tol)
        chosen = self.features_of_start()
        if chosen is None:
            return self.quick_start(Y, with_all, tol)
        return self.of_features(chosen).quick_start(Y[:, chosen], with_all, tol)

    def are_surely_wrong(self, Y: Array, M: Array | None) -> Array:
        """Return which samples have entries that no code predicts, (B,), if codes with these are not wanted as a start.

        No prediction counts as more than some multiple of the largest entry that the fit accepted.
        """
        xp = self.xp
        if M is not None or self.is_sparse or not self.starts_quickly or not can_solve(self.plain.W, self.engine):
            return xp.zeros(Y.shape[0], dtype=xp.bool, device=device(Y))
        return xp.any(Y > self.noise.largest_right(xp), axis=1)

    def start_of_sweeps(self, Y: Any, tol: float) -> Array | None:
        """Return codes that some of the features tell, or None if all of them are needed: least squares goes on there.

        What is wrong is then told by them too, and by the codes of the whole fit in the end.
        """
        chosen = None if self.is_sparse or self.noise.follows_predictions else self.features_of_start()
        is_dense = isinstance(Y, np.ndarray) or is_torch_array(Y)
        if chosen is None or not is_dense or not can_solve(self.plain.W, self.engine):
            return None
        some, of_some = Y[:, chosen], self.of_features(chosen)
        with_all = WithAll(some, None, of_some, SETTLING_STEPS, tol)
        doubtful = self.xp.nonzero(with_all.are_doubtful())[0]
        X = self.xp.asarray(with_all.X, copy=True)
        if doubtful.shape[0]:
            X[doubtful] = of_some.quick_start(some[doubtful], with_all[doubtful], tol)
        return X

    @property
    def starts_quickly(self) -> bool:
        """Whether annealing of complete samples is the last resort: some features are enough, or it would take long."""
        n_features, rank = map(int, self.W.shape)
        if n_features_of_start(n_features, rank) is not None:
            return True
        return n_features >= QUICK_FEATURES_PER_COMPONENT * rank and n_features * rank >= QUICK_PRODUCTS

    def patient_start(self, Y: Array, M: Array | None, with_all: Array, tol: float) -> Array:
        """Return the better of codes that annealing finds and of those with all entries."""
        return self.better(Y, M, self.annealed(Y, M, self.typical(Y, M)), with_all, tol)

    def quick_start(self, Y: Array, with_all: WithAll, tol: float) -> Array:
        """Return codes from which wrong entries can be told, of complete samples with many features.

        First what is larger than all that the fit accepted is left out. A code by which most of many entries are as far
        off as noise is the right one; of samples for which that fails, patience finds one.
        """
        if not can_solve(self.plain.W, self.engine):
            return self.patient_start(Y, None, with_all.codes(), tol)
        X = self.fitted(Y, None, with_all.X, Y > self.noise.largest, SETTLING_STEPS, tol)
        X, _ = self.judged_once(Y, None, X, None, tol)
        typical = in_parts(lambda *rows: row_medians(self.ratios(*rows), None, self.engine), Y, None, X, None)
        unclear = self.xp.nonzero(typical * self.noise.threshold > LIKE_NOISE)[0]
        if unclear.shape[0]:
            X[unclear] = self.patient_start(Y[unclear], None, with_all[unclear].codes(), tol)
        return X

    def better(self, Y: Any, M: Array | None, sceptical: Array, following: Array, tol: float) -> Array:
        """Return those of two starts that lead to the lower loss, sample by sample."""
        (X, first), (other, second) = (self.judged_once(Y, M, X, None, tol) for X in (sceptical, following))
        # Where both reject the same, they lead to the same codes.
        differ = self.xp.nonzero(self.differ(first, second, M))[0]
        if differ.shape[0]:
            some, observed, X_some, other = taken(Y, differ), taken(M, differ), X[differ], other[differ]
            is_better = self.losses(some, observed, other) < self.losses(some, observed, X_some)
            X[differ] = self.xp.where(is_better[:, None], other, X_some)
        return X

    @property
    def is_sparse(self) -> bool:
        """Whether most entries of the training data were zero."""
        return bool(self.xp.any(self.noise.least > 0))

    def annealed(self, Y: Array, M: Array | None, X: Array) -> Array:
        """Return codes after steps with Cauchy's weights in units of the noise, whose scale falls."""
        xp, terms = self.xp, Terms(SQUARES, self.plain.penalty(self.xp))

        def typical(Y: Array, M: Array | None, X: Array) -> Array:
            ratios = self.noise.threshold * self.noise.ratios(Y, predictions(X, self.W, Y), xp)
            return row_medians(ratios, M, self.engine)

        def weights(Y: Array, M: Array | None, X: Array, scale: Array) -> Array:
            ratios = self.noise.threshold * self.ratios(Y, M, X, None)
            Q = xp.astype(Cauchy().weight(squared_ratio(ratios, scale, xp), xp), Y.dtype)
            return Q if M is None else Q * M

        first = in_parts(typical, Y, M, X)
        excess = xp.where(first > LAST_SCALE, first / LAST_SCALE, 1)[:, None]

        def step(Y: Array, M: Array | None, X: Array, power: Any) -> Array:
            Q = in_parts(weights, Y, M, X, LAST_SCALE * excess**power)
            # A sweep, not a solution: that would follow errors further than they can be left.
            return THOROUGH.improve_rows(self.in_units(Y), Q, X, self.plain.W, terms, self.engine)

        powers, kernels = [1 - (i + 1) / NOISE_STEPS for i in range(NOISE_STEPS)], self.engine.kernels
        if kernels.repeat is not None and kernels.rule_of(SQUARES, Y, X.shape[1]) is not None:
            return kernels.repeat(step, Y, M, X, powers)
        for power in powers:
            X = step(Y, M, X, power)
        return X

    def losses(self, Y: Array, M: Array | None, X: Array) -> Array:
        """Return the negative log-likelihood of each sample, up to a constant, with Cauchy's distribution, (B,)."""
        return in_parts(self._losses, Y, M, X)

    def _losses(self, Y: Array, M: Array | None, X: Array) -> Array:
        """Return the same of a part of the samples."""
        xp = self.xp
        predicted = self.predictions(Y, M, X, self.noise.ratios(Y, predictions(X, self.W, Y), xp) > 1)
        ratios = self.noise.threshold * self.noise.ratios(Y, predicted, xp)
        width = xp.log(self.noise.width(predicted, xp)) * xp.ones_like(Y)
        most = float(xp.finfo(Y.dtype).max) ** 0.25
        parts = width + xp.log1p(xp.where(ratios > most, most, ratios) ** 2)
        return xp.sum(parts if M is None else M * parts, axis=1, dtype=xp.float64)


class StoredJudge(Judge):
    """Says the same of samples whose zeros are not stored; what is wrong are `Entries`, with the values that they have.

    Zeros are wrong where their prediction is large, which is so for few.
    """

    def __init__(self, basis: Basis, engine: Engine) -> None:
        super().__init__(basis, engine)
        assert engine.kernels.stored is not None
        self.kernels = engine.kernels.stored

    def fitted(self, Y: Any, M: Array | None, X: Array, wrong: Any, max_iter: int, tol: float) -> Array:
        """Return codes by least squares in which what is wrong hardly counts; None for nothing."""
        changes = None if wrong is None else replaced(wrong, self.noise, self.units)
        return solve_stored(replace(self.in_units(Y), changes=changes), X, self.plain, self.kernels, EXACT * tol)

    def in_units(self, Y: Any) -> Any:
        """Return samples in the units of least squares."""
        return Y if self.units is None else Y.with_values(Y.values * self.units[Y.columns])

    def wrong(self, Y: Any, M: None, X: Array, wrong: Any) -> Any:
        """Return which entries are wrong, where it is known which were until now."""
        return self.basis.beyond_without(Y, X, self.kernels, wrong)

    def beyond(self, Y: Any, X: Array) -> Any:
        """Return which entries are too far from their predictions."""
        return self.basis.beyond(Y, X, self.kernels)

    def samples_with(self, wrong: Any, M: None) -> Array:
        """Return which samples have wrong entries, (B,)."""
        return np.diff(wrong.indptr) > 0

    def differ(self, first: Any, second: Any, M: None) -> Array:
        """Return for which samples something else is wrong, (B,)."""
        lost, found = second.find(first.rows, first.columns) < 0, first.find(second.rows, second.columns) < 0
        differ = np.zeros(len(first), dtype=bool)
        differ[first.rows[lost]] = differ[second.rows[found]] = True
        return differ

    def begin(self, Y: Any, M: Array | None) -> Array:
        """Return codes from which least squares begins."""
        return np.zeros((len(Y), self.W.shape[1]), dtype=Y.dtype)

    def are_surely_wrong(self, Y: Any, M: Array | None) -> Array:
        """Return that of none it is known."""
        return np.zeros(len(Y), dtype=bool)

    def start(self, Y: Any, M: Array | None, with_all: WithAll, tol: float) -> Array:
        """Return codes from which wrong entries can be told."""
        if not self.is_sparse:
            return Judge(self.basis, self.engine).start(Y.dense(), None, with_all, tol)
        large = Y.values > to_host(self.noise.largest)[Y.columns]
        start = self.fitted(Y, None, with_all.X, Y.where(large), SETTLING_STEPS, tol)
        return self.better(Y, None, start, with_all.X, tol)

    def losses(self, Y: Any, M: Array | None, X: Array) -> Array:
        """Return the negative log-likelihood of each sample, up to a constant, with Cauchy's distribution, (B,)."""
        return Judge(self.basis, self.engine).losses(Y.dense(), None, X)


def judges_stored(basis: Basis, engine: Engine) -> bool:
    """Return whether samples can be encoded by what is stored of them: by least squares, whose weights are alike."""
    if basis.sweeps is not None or engine.kernels.stored is None:
        return False
    judge = basis if basis.judge is None else basis.judge
    noises = (judge.noise, basis.noise)
    if judge.noise is None or any(noise is not None and noise.follows_predictions for noise in noises):
        return False
    return can_solve(judge.W, engine) and can_solve(basis.W, engine)


def solve_stored(Y: Entries, X: Array, basis: Basis, kernels: StoredKernels, tol: float) -> Array:
    """Return codes by least squares, as `settle` does of a block with its zeros."""
    linear, ridge = basis.penalty(np) or (0.0, 0.0)
    smallest = 4 * float(np.finfo(Y.dtype).eps)
    return kernels.least_squares(Y, X, basis.W, linear, ridge, MOST_SWEEPS, max(AT_REST * tol, smallest))


def without(
    wrong: Array, Y: Array, M: Array | None, predicted: Array | None, noise: NoiseModel, xp: Namespace
) -> tuple[Array, Array]:
    """Return entries and weights in which a wrong or missing entry is the mean of its feature, with that of an anchor.

    Without them, codes of samples with many of them would be free to grow. What is missing counts like a typical entry
    of its sample. Of data with gaps, means are multiplied by the level of the sample.
    """
    if M is None and not noise.follows_predictions:
        right, left = xp.astype(~wrong, Y.dtype), xp.astype(wrong, Y.dtype)  # products are faster than choices
        filled = Y * right
        filled += noise.centers * left
        left *= noise.anchors
        right += left
        return filled, right
    weights = xp.ones_like(Y) if M is None else M
    missing = weights == 0
    n_observed = xp.sum(xp.astype(~missing, weights.dtype), axis=1, keepdims=True)
    typical = xp.sum(weights, axis=1, keepdims=True) / xp.where(n_observed > 0, n_observed, 1)
    anchored = wrong | missing
    centers = noise.centers * xp.ones_like(Y)
    if M is not None and noise.level_prior < np.inf:
        centers = centers * noise.sample_levels(Y, xp.where(anchored, 0, weights), xp)
    weights = xp.where(missing, typical, weights)
    filled = xp.where(anchored, centers, Y)
    if noise.weights_entries:
        filled, factors = noise.working_response(filled, predicted, xp)
        weights = weights * xp.astype(factors, Y.dtype)
    of_right = weights
    if noise.softness < np.inf:
        of_right = weights * noise.soft_weights(Y, predicted, xp)
    return filled, xp.where(anchored, noise.anchors * weights, of_right)


def _follow(Y: Array, M: Array | None, X: Array, basis: Basis, engine: Engine) -> Array:
    """Return codes after a few steps with Huber's loss, which lets every entry pull: for samples unlike the typical."""
    xp, penalty = engine.xp, basis.penalty(engine.xp)
    for _ in range(FOLLOWING_STEPS):
        median = row_medians(xp.abs(Y - predictions(X, basis.W, Y)), M, engine)[:, None]
        weighting = Weighting(Huber(), xp.where(median > 0, median, 1))
        X = SOLVER.improve_rows(Y, M, X, basis.W, Terms(weighting, penalty), engine)
    return X


def _anneal(Y: Array, M: Array | None, X: Array, basis: Basis, engine: Engine) -> Array:
    """Return codes after steps in which the scale falls from the level of the first residuals to its own."""
    xp, penalty, scale = engine.xp, basis.penalty(engine.xp), basis.weighting.scale
    first = row_medians(xp.abs(Y - predictions(X, basis.W, Y)), M, engine)
    excess = xp.where(first > scale, first / scale, 1)[:, None]
    number = xp.finfo(Y.dtype)
    for i in range(ANNEALING_STEPS):
        falling = xp.astype(scale * excess ** (1 - i / ANNEALING_STEPS), Y.dtype)
        falling = xp.clip(falling, float(number.tiny), float(number.max) ** 0.5)
        terms = Terms(Weighting(basis.weighting.loss, falling), penalty)
        X = SOLVER.improve_rows(Y, M, X, basis.W, terms, engine)
    return X


def losses(Y: Array, M: Array | None, X: Array, basis: Basis, xp: Namespace) -> Array:
    """Return the loss of each sample, (B,)."""
    return basis.weighting.row_losses(Y - predictions(X, basis.W, Y), M, xp)


def settle(Y: Array, M: Array | None, X: Array, basis: Basis, engine: Engine, max_iter: int, tol: float) -> Array:
    """Reweight and improve X until each sample is done."""
    xp, kernel, few = engine.xp, engine.kernels.converge, engine.few_rows
    terms = Terms(basis.weighting, basis.penalty(xp))
    solve = engine.kernels.least_squares
    squares = basis.weighting.is_least_squares
    if squares and solve is not None and can_solve(basis.W, engine):
        linear, ridge = terms.penalty or (0.0, 0.0)
        smallest = 4 * float(xp.finfo(Y.dtype).eps)
        return solve(Y, M, X, basis.W, linear, ridge, MOST_SWEEPS, max(AT_REST * tol, smallest))
    solver = THOROUGH if squares else SOLVER
    if kernel is not None and form_of(basis.weighting.loss) is not None:  # of other losses nobody knows what they do

        def improve(Y: Array, M: Array | None, X: Array) -> Array:
            return solver.improve_rows(Y, M, X, basis.W, terms, engine)

        return kernel(improve, Y, M, X, max_iter=max_iter, tol=tol, few=few)
    rows = xp.arange(X.shape[0], device=device(X))  # the samples that are worked on,
    moving = xp.ones_like(rows, dtype=xp.bool)  # and which of them still move
    some, observed = Y, M
    for _ in range(max_iter):
        new = solver.improve_rows(some, observed, X[rows], basis.W, terms, engine)
        new = xp.where(moving[:, None], new, X[rows])
        moving = moving & (xp.max(xp.abs(new - X[rows]), axis=1) > tol * xp.max(new, axis=1))
        X[rows] = new
        n_moving = int(xp.count_nonzero(moving))
        if n_moving == 0:
            break
        if n_moving <= few * rows.shape[0]:
            rows, moving = rows[moving], moving[moving]
            some, observed = Y[rows], None if M is None else M[rows]
    return X


def can_solve(W: Array, engine: Engine) -> bool:
    """Return whether codes in a basis can be solved for: there is a kernel, and its squares do not vanish."""
    xp = engine.xp
    squares, largest = xp.sum(W * W, axis=0), xp.max(W, axis=0)
    normal = (squares > float(xp.finfo(W.dtype).smallest_normal)) | (largest == 0)
    return engine.kernels.least_squares is not None and bool(xp.all(normal))


def totals(Y: Array, M: Array | None, X: Array, *, xp: Namespace, **how: Any) -> tuple[float, ...]:
    """Return the losses, totals and inlier squares of `Description`, summed over a block of samples with codes X."""
    return tuple(float(xp.sum(part)) for part in outliers_of_block(Y, M, X, **how, xp=xp)[1:])


def _describe_stored(
    Y: Entries, M: None, X: Array, *, basis: Basis, engine: Engine, max_iter: int, tol: float, xp: Namespace
) -> Any:
    """Return what `_describe_sparsely` does; losses are not quadratic, and so they are those of a dense block."""
    kernels = engine.kernels.stored
    if kernels is None or not judges_stored(basis, engine) or basis.weighting.loss.group != "entry":
        return NotImplemented
    judge = basis.judge
    wrong = basis.beyond(Y, X, kernels) if judge is None else _wrong_stored(Y, judge, engine, max_iter, tol)
    residual = wrong.values - kernels.predict_at(X, wrong.places, basis.W)
    of_wrong = np.bincount(wrong.rows, residual.astype(np.float64) ** 2, minlength=len(Y))
    squares = np.maximum(_row_squares(Y, X, basis.W, kernels) - of_wrong, 0)
    counts = np.full(len(Y), float(Y.n_columns))
    outliers = wrong.with_values(np.ones(len(wrong.values), dtype=bool)).matrix()
    return losses(Y.dense(), None, X, basis, xp), counts, squares, outliers


def _row_squares(Y: Entries, X: Array, W: Array, kernels: StoredKernels) -> Array:
    """Return the sum of squared residuals of each sample, zeros included, (B,)."""
    predicted = kernels.predict(Y.indptr, Y.columns, X, W).astype(np.float64)
    gram = W.T.astype(np.float64) @ W
    stored = np.bincount(Y.rows, Y.values * (Y.values - 2 * predicted), minlength=len(Y))
    return np.sum((X @ gram) * X, axis=1) + stored


@block_function(stored=_describe_stored)
def _describe_sparsely(Y: Array, M: Array | None, X: Array, *, xp: Namespace, **how: Any) -> tuple[Any, ...]:
    """Return the sums of `Description` for one block, and its outliers, few of its entries, as a sparse matrix."""
    outliers, *sums = outliers_of_block(Y, M, X, **how, xp=xp)
    return *sums, as_sparse(outliers)


def outliers_of_block(
    Y: Array, M: Array | None, X: Array, *, basis: Basis, engine: Engine, xp: Namespace, **limits: Any
) -> tuple[Array, ...]:
    """Return outliers and the sums of `Description` for one block with codes X; the limits are those of `encode`."""
    judge = basis.judge
    wrong = None if judge is None else _wrong(Y, M, basis=judge, engine=engine, **limits, xp=xp)
    return _outliers(Y, M, X, wrong, basis=basis, xp=xp)


@block_function(rowwise=True)
def _outliers(*block: Any, basis: Basis, xp: Namespace) -> tuple[Array, ...]:
    """Return what `_describe` does, without weights."""
    return _describe(*block, basis=basis, weighs=False, xp=xp)[1:]


@block_function(rowwise=True)
def _describe(
    Y: Array, M: Array | None, X: Array, wrong: Array | None, *, basis: Basis, weighs: bool = True, xp: Namespace
) -> tuple[Any, ...]:
    """Return weights, if they are wanted, outliers and the sums of `Description` for one block with codes X.

    What is wrong (B, m) is known, or None if the basis itself tells.
    """
    R = Y - predictions(X, basis.W, Y)
    loss = basis.weighting.loss
    A = basis.weighting.magnitudes(R, M, xp)
    s = squared_ratio(A, basis.weighting.scale, xp)
    counts = xp.ones_like(A) if M is None else basis.weighting.counts(M, xp)
    observed = xp.ones_like(Y, dtype=xp.bool) if M is None else M > 0
    if wrong is None and basis.noise is not None:
        wrong = basis.noise.ratios(Y, Y - R, xp) > 1
    elif wrong is None:
        wrong = basis.weighting.outliers(A, M, xp)
    outliers = observed & wrong
    inlier = observed & ~outliers
    weights = None
    if weighs:
        largest = loss.weight(xp.zeros((1, 1), dtype=Y.dtype, device=device(Y)), xp)
        weights = xp.astype(inlier, Y.dtype) * (loss.weight(s, xp) / largest)
    return (
        weights,
        outliers,
        xp.sum(counts * loss.rho(s, xp), axis=1, dtype=xp.float64),
        xp.sum(counts, axis=1, dtype=xp.float64),
        xp.sum(xp.where(inlier, R, 0) ** 2, axis=1, dtype=xp.float64),
    )


def _start(Y: Array, M: Array | None, *, basis: Basis, engine: Engine, xp: Namespace) -> Array:
    """Return the typical code times each sample's size, the median ratio to the typical sample, (B, r)."""
    typical = basis.W @ basis.code
    bright = bright_features(typical)
    if not xp.any(bright):
        return xp.zeros((Y.shape[0], basis.W.shape[1]), dtype=Y.dtype, device=device(Y))

    def sizes(Y: Array, M: Array | None) -> Array:
        return row_medians(Y[:, bright] / typical[bright], None if M is None else M[:, bright], engine)

    size = in_parts(sizes, Y, M)
    return xp.astype(size[:, None] * basis.code, Y.dtype)


def row_medians(A: Array, M: Array | None, engine: Engine) -> Array:
    """Return the median of the observed entries of each row, 0 where there is none, (B,).

    The weights in M decide only which entries count: a start need not be exact.
    """
    xp = engine.xp
    if M is None:
        kernel = engine.kernels.row_medians
        if kernel is not None:
            return kernel(A)
        return order_statistics(A, xp.full_like(A[:, 0], (A.shape[1] - 1) // 2, dtype=xp.int64), engine)
    observed = M > 0
    count = xp.sum(xp.astype(observed, xp.int64), axis=1)
    middle = xp.where(count > 0, (count - 1) // 2, 0)
    return xp.where(count > 0, order_statistics(xp.where(observed, A, np.inf), middle, engine), 0)


def order_statistics(A: Array, ranks: Array, engine: Engine) -> Array:
    """Return of each row of non-negative A (B, p) the entry that has so many smaller ones, ranks (B,)."""
    xp, kernel = engine.xp, engine.kernels.order_statistics
    if kernel is not None:
        return kernel(A, ranks)
    return xp.take_along_axis(xp.sort(A, axis=1), ranks[:, None], axis=1)[:, 0]
