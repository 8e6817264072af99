"""A start from singular vectors, for data of which most entries are zero.

From a random start, and with most entries zero, an alternation may leave components out: two of those that it finds
share one, and the objective, most of which is noise, hardly tells. Singular vectors tell them apart. They are not
robust, so they are those of data in which an entry exceeds its prediction by a robust fit by no more than a limit: an
error counts little, and a component that the fit left out is seen.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.extmath import randomized_svd

from robustnmf.engines.protocol import Engine, block_function
from robustnmf.utils.arrays import Array, Blocks, Namespace, to_host
from robustnmf.utils.entries import Entries

Matrix = NDArray[Any]


def singular_start(V: Blocks, rank: int, engine: Engine) -> tuple[Array, Blocks]:
    """Return W and the codes from singular vectors of data."""
    shape, dtype = (sum(len(block) for block in V), V[0].shape[1]), V[0].dtype
    numbers = engine.split(engine.place(np.arange(shape[0])[:, None]), like=V)
    samples, features, values = to_host(engine.join(engine.map(_positive, V, numbers))).T
    places = (samples.astype(np.int64), features.astype(np.int64))
    codes, components = from_singular_vectors(sparse.csr_array((values, places), shape=shape), rank)
    return engine.place(components.T, dtype), engine.split(engine.place(codes, dtype), like=V)


def from_singular_vectors(X: Any, rank: int) -> tuple[Matrix, Matrix]:
    """Return non-negative codes (n, rank) and components (rank, m) from singular vectors of X.

    Each pair of singular vectors gives the larger of the products of its positive and of its negative parts.

    References
    ----------
    C. Boutsidis, E. Gallopoulos, "SVD based initialization: A head start for nonnegative matrix factorization", Pattern
    Recognition, 2008.
    """
    U, S, Vt = randomized_svd(X, rank, random_state=0)
    codes, components = np.zeros((X.shape[0], rank)), np.zeros((rank, X.shape[1]))
    for k in range(len(S)):
        parts = [(np.maximum(sign * U[:, k], 0), np.maximum(sign * Vt[k], 0)) for sign in (1, -1)]
        sizes = [float(np.linalg.norm(u) * np.linalg.norm(v)) for u, v in parts]
        size, (u, v) = max(zip(sizes, parts, strict=True), key=lambda found: found[0])
        if size > 0:
            codes[:, k] = np.sqrt(S[k] * size) * u / np.linalg.norm(u)
            components[k] = np.sqrt(S[k] * size) * v / np.linalg.norm(v)
    return codes, components


def _positive_stored(Y: Entries, numbers: Array, *, xp: Namespace) -> Any:
    parts = (numbers[Y.rows, 0], Y.columns, Y.values)
    return np.stack([part.astype(np.float64) for part in parts], axis=1)


@block_function(stored=_positive_stored)
def _positive(Y: Array, numbers: Array, *, xp: Namespace) -> Array:
    """Return the positive entries of a block, whose samples have numbers (B, 1): sample, feature, value, (k, 3)."""
    rows, columns = xp.nonzero(Y)
    return xp.stack([xp.astype(part, xp.float64) for part in (numbers[rows, 0], columns, Y[rows, columns])], axis=1)


def _winsorised_stored(
    Y: Entries, X: Array, *, W: Array, largest: float, beyond: float, engine: Engine, xp: Namespace
) -> Any:
    kernels = engine.kernels.stored
    if kernels is None:
        return NotImplemented
    most = np.minimum(kernels.predict(Y.indptr, Y.columns, X, W), largest) + beyond
    return Y.with_values(np.minimum(Y.values, most).astype(Y.dtype, copy=False))


@block_function(recomputed=True, rowwise=True, stored=_winsorised_stored, keeps_stored=True)
def winsorised(Y: Array, X: Array, *, W: Array, largest: float, beyond: float, engine: Engine, xp: Namespace) -> Array:
    """Return a block in which no entry is far beyond its prediction, nor the prediction beyond the `largest`."""
    most = xp.clip(X @ W.T, max=largest) + beyond
    return xp.where(Y < most, Y, most)
