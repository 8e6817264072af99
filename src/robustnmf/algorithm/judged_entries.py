"""Entries as a fitted model judges them: their residuals in units of the noise that they should have."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.encoding import Basis
from robustnmf.algorithm.fit import encoding_limits
from robustnmf.data.blocks import Data, Observations
from robustnmf.data.sparse import as_rows, is_sparse
from robustnmf.engines import NumPyEngine
from robustnmf.model.noise import INFORMATIVE

Matrix = NDArray[Any]
Vector = NDArray[Any]

# Entries that are encoded, of an even choice of the samples.
ENOUGH_ENTRIES = 2**18


class JudgedSamples(NamedTuple):
    """Entries of some samples, (k, m) each, in units of the level of their feature."""

    step: int
    """They are every so many of the samples."""
    sizes: Matrix
    """Predictions by which entries are judged."""
    residuals: Matrix
    """Data minus prediction."""
    ratios: Matrix
    """Residuals in units of the noise: its width at the prediction, or the scale of a model without noise model."""
    limits: Matrix
    """Ratios beyond which entries are wrong, infinite where none is; broadcastable to (k, m)."""
    is_wrong: Matrix
    is_observed: Matrix


class JudgedEntries(NamedTuple):
    """Some entries, (k,) each; see `JudgedSamples`."""

    sizes: Vector
    residuals: Vector
    ratios: Vector
    is_wrong: Vector
    features: Vector
    """Number of the feature."""

    @property
    def magnitudes(self) -> Vector:
        """Distances from the predictions."""
        return np.abs(self.residuals)

    def some(self, most: int) -> "JudgedEntries":
        """Return at most so many of the right entries, and of the wrong ones, chosen at random."""
        rng = np.random.default_rng(0)
        parts = [rng.permutation(np.flatnonzero(self.is_wrong == wrong))[:most] for wrong in (False, True)]
        chosen = np.sort(np.concatenate(parts))
        return JudgedEntries(*(part[chosen] for part in self))


def judged_samples(model: Any, X: Any, weights: Any = None, uncertainties: Any = None) -> JudgedSamples:
    """Return the entries of some samples of X as the model judges them.

    Parameters
    ----------
    model : RobustNMF
        Fitted.
    X, weights, uncertainties : array-like (n_samples, n_features)
        As in `fit`.
    """
    step = max(1, int(np.prod(np.shape(X))) // ENOUGH_ENTRIES)
    with NumPyEngine(n_threads=1).running() as engine:
        given: tuple[Any, ...] = (X, weights, uncertainties)
        if is_sparse(X):  # it need not be made dense as a whole
            given = tuple(None if rows is None else as_rows(rows)[::step] for rows in given)
        X, M = model._check_new(*given, engine).whole
        rows = slice(None) if is_sparse(given[0]) else slice(None, None, step)
        some = Observations(X[rows], None if M is None else M[rows])
        basis = model._basis.placed(engine.place)
        judge = basis if basis.judge is None else basis.judge
        data = model._in_unit(Data.of(some, engine), engine)
        codes = engine.join(judge.encode(data.X, data.M, engine, **encoding_limits(model)))
    return _judged(judge, data.whole, np.asarray(codes), step)


def _judged(judge: Basis, data: Observations, codes: Matrix, step: int) -> JudgedSamples:
    Y, noise, predicted = data.X, judge.noise, codes @ judge.W.T
    observed = np.ones(Y.shape, dtype=bool) if data.M is None else data.M > 0
    if noise is None:
        weighting, R = judge.weighting, Y - predicted
        is_wrong = weighting.outliers(weighting.magnitudes(R, data.M, np), data.M, np)
        limits = np.inf if weighting.threshold is None else np.asarray(weighting.threshold) / weighting.scale
        limits, is_wrong = np.asarray(limits), np.broadcast_to(is_wrong, Y.shape)
        return JudgedSamples(step, predicted, R, R / weighting.scale, limits, is_wrong, observed)
    is_wrong = noise.ratios(Y, predicted, np) > 1
    predicted = np.minimum(predicted, noise.largest)
    sizes, R = predicted / noise.levels, (Y - predicted) / noise.levels
    widths = noise.width(predicted, np) / noise.levels
    limits = np.asarray(np.inf if noise.lenient else noise.threshold)
    return JudgedSamples(step, sizes, R, R / widths, limits, is_wrong, observed)


def judged_entries(model: Any, X: Any, weights: Any = None, uncertainties: Any = None) -> JudgedEntries:
    """Return entries of some samples of X; those that say nothing of the noise, as all is small, are left out.

    Parameters are those of `judged_samples`.
    """
    judged = judged_samples(model, X, weights, uncertainties)
    shown = judged.is_observed
    if model._basis.noise is not None or model._basis.judge is not None:
        largest = np.maximum(judged.sizes + judged.residuals, judged.sizes)
        shown = shown & ((largest > INFORMATIVE) | judged.is_wrong)
    features = np.broadcast_to(np.arange(shown.shape[1]), shown.shape)
    parts = (judged.sizes, judged.residuals, judged.ratios, judged.is_wrong, features)
    return JudgedEntries(*(part[shown] for part in parts))
