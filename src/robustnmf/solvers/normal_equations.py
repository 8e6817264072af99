"""The update of the basis from sums over samples, for data whose features cannot be gathered.

The problem of a feature depends on its samples through A' D A and A' D y alone, with A = H'. Both are sums over
samples, so blocks of samples are visited where they are and only the sums travel: (m, r (r + 1) / 2) and (m, r)
numbers, for so many features at a time that they stay below a bound.
"""

from collections.abc import Callable
from typing import Any

from robustnmf.engines.protocol import Engine
from robustnmf.kernels.predictions import predictions
from robustnmf.model.weighting import Weighting
from robustnmf.solvers.objective import Objective
from robustnmf.solvers.problem import Problem, packed_square, unpacked
from robustnmf.utils.arrays import Array, Blocks, Namespace

# Numbers in the sums of a block: 32 MiB in float64.
MOST_SUMMED = 2**22


def basis_by_sums(
    V: Blocks,
    M: Blocks | None,
    W: Array,
    Ht: Blocks,
    objective: Objective,
    solve: Callable[[Problem, Array, Engine], Array],
    engine: Engine,
) -> Array:
    """Return W (m, r) improved by a solver of problems, its fixed columns as they were."""
    weighting, penalties, fixed = objective
    n_features, r = W.shape
    total = engine.sum(_code_sums, Ht) if penalties.product else None
    penalty = penalties.given_sum(penalties.basis, total, W, weighting.scale, engine.xp)
    if penalty is not None and fixed:
        penalty = penalty._replace(linear=penalty.linear[fixed:])
    is_shared = weighting.loss.is_quadratic and weighting.threshold is None and M is None
    size = n_features if is_shared else max(1, MOST_SUMMED // (r * (r + 3) // 2))
    improved = []
    for start in range(0, n_features, size):
        features = slice(start, start + size)
        gram, rhs = engine.sum(_sums, V, M, Ht, W=W, weighting=weighting, features=features)
        gram, X = unpacked(gram, r, engine.xp), W[features]
        if fixed:
            rhs = rhs[:, fixed:] - (gram[:, fixed:, :fixed] @ X[:, :fixed, None])[:, :, 0]
            gram = gram[:, fixed:, fixed:]
        problem = Problem.normal(gram, rhs, engine.xp, penalty)
        found = solve(problem, X[:, fixed:], engine)
        improved.append(engine.xp.concat([X[:, :fixed], found], axis=1) if fixed else found)
    return engine.xp.concat(improved, axis=0)


def _sums(
    Y: Array, M: Array | None, X: Array, *, W: Array, weighting: Weighting, features: slice, xp: Namespace
) -> tuple[Array, Array]:
    """Return what a block of samples adds to the normal equations of some features.

    Returns
    -------
    A' D A for each feature, the upper triangle in a row, (f, r (r + 1) / 2), or (1, ...) if there are no weights;
    A' D y, (f, r).
    """
    Q = weighting.weights(Y - predictions(X, W, Y), M, xp)
    Y = Y[:, features]
    if Q is None:
        return xp.sum(packed_square(X, xp), axis=0, keepdims=True), Y.T @ X
    Q = Q[:, features]
    return Q.T @ packed_square(X, xp), (Q * Y).T @ X


def _code_sums(X: Array, *, xp: Namespace) -> Any:
    """Return the sum of the codes of a block, (r,)."""
    return xp.sum(X, axis=0)
