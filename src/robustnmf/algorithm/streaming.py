"""Learning from batches: a window on the stream.

The samples of recent batches are kept, older ones counting less, and with every batch the basis is improved by a few
iterations on all of them. Sums over past samples would take less memory; but they hold the codes that those samples had
in the basis of their time, and so hold the basis back where it was.

A sample most of which is rejected is not let in: a burst of corrupted batches passes by without a trace.
"""

from dataclasses import dataclass, replace

import numpy as np

from robustnmf.algorithm.encoding import Basis, typical_code
from robustnmf.algorithm.halfquadratic import Method, sweep
from robustnmf.engines.protocol import Engine
from robustnmf.utils.arrays import Array

# Share of a sample's entries beyond which it says nothing of the basis.
MOST_CUT = 0.5
# Iterations for every batch.
ITERATIONS = 5
# Most samples in the window, or so many for each component; and the influence below which a sample is dropped.
MOST_SAMPLES, MOST_PER_COMPONENT, LEAST_INFLUENCE = 2000, 100, 0.01
# The scale follows residuals that change by at most so much from one batch to the next.
LARGEST_CHANGE = 1.2


@dataclass(frozen=True)
class Stream:
    """The basis so far, and the window that it is learnt from."""

    basis: Basis
    Y: Array
    """Samples in their unit, the oldest first, (N, m)."""
    M: Array
    """Weights of their entries, 0 where missing, (N, m)."""
    X: Array
    """Their codes, (N, r)."""
    influence: Array
    """How much each counts, (N,)."""
    typical: float | None = None
    """Median magnitude of the residuals that were not rejected; None before the first batch."""

    @classmethod
    def start(cls, basis: Basis, n_samples: int, seen: Array | None = None) -> "Stream":
        """Return a stream with a basis that was learnt from so many samples, which are no longer there.

        In their place are a few that the basis predicts: the typical one, with each component doubled in turn. They
        have the features that were `seen`, (m,), None for all. Noise was that of the data of the fit. A stream changes:
        entries are judged by the loss alone, as scale and threshold follow it.
        """
        basis = replace(basis, noise=None, judge=None)
        (m, r), dtype = basis.W.shape, basis.W.dtype
        code = np.where(basis.code > 0, basis.code, basis.code.max() / r)
        X = code * (1 + np.eye(r, dtype=dtype))
        Y = X @ basis.W.T
        unit = Y.mean(axis=1, keepdims=True)
        is_some = unit[:, 0] > 0 if n_samples else np.zeros(r, dtype=bool)
        X, Y = X[is_some] / unit[is_some], Y[is_some] / unit[is_some]
        influence = np.full(len(X), min(n_samples, _most_samples(r)) / r, dtype=dtype)
        M = np.ones((len(X), m), dtype=dtype)
        return cls(basis, Y, M if seen is None else M * seen, X, influence)

    def learn(
        self, Y: Array, M: Array, X: Array, kept: Array, forget: float, method: Method, engine: Engine
    ) -> "Stream":
        """Return the stream after a batch.

        Parameters
        ----------
        Y, M : (B, m)
            Data in its unit, and the weights of its entries.
        X : (B, r)
            Codes.
        kept : (B, m)
            Whether an entry is no outlier.
        forget : float
            What is left of the influence of earlier batches.
        """
        stream = self._let_in(Y, M, X, forget)._follow(np.abs(Y - X @ self.basis.W.T)[kept], forget)
        V = engine.split(stream.Y)
        Ht, weights = (engine.split(a, like=V) for a in (stream.X, stream.M * stream.influence[:, None]))
        W = stream.basis.W
        for _ in range(ITERATIONS):
            W, Ht = sweep(V, weights, W, Ht, stream.basis.weighting, method, engine)
        return stream._normalised(W, engine.join(Ht), method, engine)

    def _let_in(self, Y: Array, M: Array, X: Array, forget: float) -> "Stream":
        """Return the stream with a batch in its window, others faded and the oldest dropped."""
        influence = np.concatenate([forget * self.influence, np.ones(len(Y), dtype=self.influence.dtype)])
        most = max(_most_samples(X.shape[1]), len(Y))
        stays = influence >= LEAST_INFLUENCE
        stays[:-most] = False
        Y, M, X = (np.concatenate(pair)[stays] for pair in ((self.Y, Y), (self.M, M), (self.X, X)))
        return replace(self, Y=Y, M=M, X=X, influence=influence[stays])

    def _follow(self, residuals: Array, forget: float) -> "Stream":
        """Return the stream with scale and threshold that follow the size of the residuals, slowly."""
        of_batch = float(np.median(residuals)) if residuals.size else 0.0
        if self.typical is None or not self.typical > 0 or not of_batch > 0:
            return replace(self, typical=of_batch)
        ratio = min(max(of_batch / self.typical, 1 / LARGEST_CHANGE), LARGEST_CHANGE) ** (1 - forget)
        weighting = self.basis.weighting
        threshold = None if weighting.threshold is None else weighting.threshold * weighting.threshold.dtype.type(ratio)
        weighting = replace(weighting, scale=weighting.scale * ratio, threshold=threshold)
        return replace(self, basis=replace(self.basis, weighting=weighting), typical=self.typical * ratio)

    def _normalised(self, W: Array, X: Array, method: Method, engine: Engine) -> "Stream":
        """Return the stream with components of maximum 1, but for those that are known or penalised."""
        largest = W.max(axis=0)
        largest[largest == 0] = 1
        largest[: W.shape[1] if method.penalties else method.fixed] = 1
        W, X = W / largest, X * largest
        basis = replace(self.basis, W=W, code=typical_code(W, [X], [self.influence], engine))
        return replace(self, basis=basis, X=X)


def _most_samples(rank: int) -> int:
    return max(MOST_SAMPLES, MOST_PER_COMPONENT * rank)


def clean_samples(outliers: Array, observed: Array | None) -> Array:
    """Return which samples are clean enough to learn from, (B,)."""
    n_observed = outliers.shape[1] if observed is None else observed.sum(axis=1)
    return outliers.sum(axis=1) <= MOST_CUT * n_observed
