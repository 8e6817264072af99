"""Entries as a fitted model judges them: the size of their residuals beside the noise that they should have."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.fit import encoding_limits
from robustnmf.data.blocks import Data, Observations
from robustnmf.data.sparse import as_rows, is_sparse
from robustnmf.engines import NumPyEngine
from robustnmf.model.noise import INFORMATIVE

Vector = NDArray[Any]

# Entries that are encoded, of an even choice of the samples.
ENOUGH_ENTRIES = 2**18


class JudgedEntries(NamedTuple):
    """Some entries, in units of the level of their feature, (k,) each."""

    sizes: Vector
    """Predictions by which they are judged."""
    magnitudes: Vector
    """Distances from these predictions."""
    is_wrong: Vector

    def some(self, most: int) -> "JudgedEntries":
        """Return at most so many of the right entries, and of the wrong ones, chosen at random."""
        rng = np.random.default_rng(0)
        parts = [rng.permutation(np.flatnonzero(self.is_wrong == wrong))[:most] for wrong in (False, True)]
        chosen = np.sort(np.concatenate(parts))
        return JudgedEntries(*(part[chosen] for part in self))


def judged_entries(model: Any, X: Any, weights: Any = None, uncertainties: Any = None) -> JudgedEntries:
    """Return entries of some samples of X; those that say nothing of the noise, as all is small, are left out.

    Parameters
    ----------
    model : RobustNMF
        Fitted, with a `noise_`.
    X, weights, uncertainties : array-like (n_samples, n_features)
        As in `fit`.
    """
    with NumPyEngine(n_threads=1).running() as engine:
        given: tuple[Any, ...] = (X, weights, uncertainties)
        if is_sparse(X):  # it need not be made dense as a whole
            step = max(1, X.shape[0] * X.shape[1] // ENOUGH_ENTRIES)
            given = tuple(None if rows is None else as_rows(rows)[::step] for rows in given)
        X, M = model._check_new(*given, engine).whole
        step = max(1, X.size // ENOUGH_ENTRIES)
        some = Observations(X[::step], None if M is None else M[::step])
        basis = model._basis.placed(engine.place)
        judge = basis if basis.judge is None else basis.judge
        data = model._in_unit(Data.of(some, engine), engine)
        codes = engine.join(judge.encode(data.X, data.M, engine, **encoding_limits(model)))
    Y, noise, predicted = data.whole.X, judge.noise, codes @ judge.W.T
    is_wrong = noise.ratios(Y, predicted, np) > 1
    predicted = np.minimum(predicted, noise.largest)
    informative = (np.maximum(Y, predicted) > INFORMATIVE * noise.levels) | is_wrong
    shown = informative if some.M is None else informative & (some.M > 0)
    parts = (predicted / noise.levels, np.abs(Y - predicted) / noise.levels, is_wrong)
    return JudgedEntries(*(part[shown] for part in parts))
