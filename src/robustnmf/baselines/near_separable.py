"""Robust near-separable NMF by linear programming: the basis is chosen among the columns of the data.

V (m features x n samples) is near-separable if, up to noise, r of its columns span the cone of all the others:

    V = W [I, H'] P + N,        W = V[:, K],        P a permutation,        ||N||_1 <= epsilon,

where ||.||_1 is the largest l1 norm of a column. A matrix X (n x n) with V ~ V X and few non-zero rows then says which
columns are needed: the diagonal of X is about 1 on K and 0 elsewhere. Gillis and Luce find it by the linear program

    min p' diag(X)  subject to  ||V - V X||_1 <= rho * epsilon,   w_i x_ij <= w_j x_ii,   x_ii <= 1,   X >= 0,

with w_j the l1 norm of column j. It needs no normalised columns (the w do that) and no rank (the diagonal tells it),
only the noise level; entries of p that differ break the ties between equal columns. Where the rank is known but the
noise level is not, the same constraints with tr X = r and the smallest possible error need no parameter at all.

Taken from the source: both programs, p, the two noise models, the restriction to preselected columns, and the reading
of the diagonal in two ways of which the better is kept. Filled in here: the counting of the rank (`threshold`; their
program rounds the trace of X up), which columns are preselected, the sums of features, the measure by which outliers
are dropped, and that clusters have no members in common (theirs fade with the distance) and are represented by their
heaviest member (theirs by the centre).

References
----------
N. Gillis and R. Luce, "Robust near-separable nonnegative matrix factorization using linear optimization", Journal of
Machine Learning Research 15 (2014) 1249-1280, arXiv:1302.4385: the method.

V. Bittorf, B. Recht, C. Re and J. Tropp, "Factoring nonnegative matrices with linear programs", NIPS 2012: Hottopixx,
the program with a given rank.

N. Gillis and S. A. Vavasis, "Fast and robust recursive algorithms for separable nonnegative matrix factorization", IEEE
Transactions on Pattern Analysis and Machine Intelligence 36 (2014) 698-714: successive projection.
"""

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.optimize import linprog, nnls
from scipy.spatial.distance import cdist

from robustnmf.errors import UnsolvedError

Matrix = NDArray[Any]
Indices = NDArray[np.intp]
NoiseModel: TypeAlias = Literal["absolute", "relative"]

# Columns whose directions agree to this many decimals are one column to the program; rounding of float64 lies below.
_DUPLICATE_DECIMALS = 9
# The solver's feasibility tolerance (1e-7) lets a trace of exactly r come out a little above r.
_TRACE_SLACK = 1e-4
# Steps of the active-set method for each column of the basis; it takes about one.
_STEPS = 30


class SelfDictionary(NamedTuple):
    """Coefficients of the columns of the data in one another."""

    X: Matrix
    """(n, n), non-negative; a large x_ii marks a column that the others need."""
    epsilon: float
    """The largest error of a column: its l1 norm, relative to the column's own in the relative noise model."""


class NearSeparableNMF(NamedTuple):
    """A factorisation whose basis consists of columns of the data."""

    W: Matrix
    """(m, r), the selected columns of V."""
    H: Matrix
    """(r, n), non-negative least squares coefficients of every column."""
    columns: Indices
    """(r,), which columns of V were selected, ascending."""
    epsilon: float
    """The noise level: as given, or the smallest at which the program, reduced if need be, allows this rank."""
    rank: int
    """The number of selected columns."""


def self_dictionary(
    V: ArrayLike,
    epsilon: float,
    *,
    rho: float = 1.0,
    noise: NoiseModel = "absolute",
    rng: np.random.Generator | None = None,
) -> Matrix:
    """Return the X of smallest weighted trace that reproduces V up to the noise.

    Solves, with w_j = ||v_j||_1 and p close to 1, the linear program of the module's docstring. In directions
    u_j = v_j / w_j and y_ij = w_i x_ij / w_j it reads

        min sum_i p_i y_ii   subject to   ||u_j - U y_j||_1 <= rho * epsilon / w_j,   0 <= y_ij <= y_ii <= 1,

    which is how it is solved: the units of the columns do not reach the solver. As the u_j sum to 1, the l1 norm of
    a residual a is 2 sum(max(a, 0)) - sum(a) with sum(a) linear in y, so it takes one slack per entry, not two.

    Parameters
    ----------
    V : array_like of shape (m, n)
        Non-negative data without columns of zeros.
    epsilon : float
        The noise level, an l1 norm of columns.
    rho : float
        Factor of the noise level. The source uses 1 and 2: in normalised data the true columns have errors of up to
        twice the noise, because they are noisy themselves.
    noise : {"absolute", "relative"}
        Whether the error of a column is at most rho * epsilon, or that share of the column's own l1 norm.
    rng : numpy.random.Generator, optional
        Draws p = 1 + 0.01 (uniform - 1/2), as the source; None for a fixed draw.

    Returns
    -------
    ndarray of shape (n, n)
        X; the identity if no column can be spared.

    Examples
    --------
    The third column is the sum of the first two, in any unit.

    >>> V = [[1.0, 0.0, 2.0], [0.0, 3.0, 6.0]]
    >>> self_dictionary(V, epsilon=0.0).round(6) + 0.0
    array([[1., 0., 2.],
           [0., 1., 2.],
           [0., 0., 0.]])
    """
    V = check_data(V, "self_dictionary")
    epsilon, rho = _check_level(epsilon, "epsilon"), _check_level(rho, "rho")
    U, w = _directions(V)
    n = w.size
    p = 1 + 0.01 * ((rng or np.random.default_rng(0)).random(n) - 0.5)
    Y, _ = _solve(U, p, bound=rho * epsilon / _unit(w, noise), rank=None)
    return Y * w / w[:, None]


def self_dictionary_of_rank(V: ArrayLike, rank: int, *, noise: NoiseModel = "absolute") -> SelfDictionary:
    """Return the X of trace `rank` whose largest error is smallest, and that error.

    Solves  min_X max_j ||v_j - V x_j||_1  subject to  tr X = rank,  w_i x_ij <= w_j x_ii,  x_ii <= 1,  X >= 0:  the
    program of `self_dictionary` turned round, so that the rank is given and the noise level found. It is the
    Hottopixx model with the constraints of Gillis and Luce, which need no normalised columns.

    Parameters
    ----------
    V : array_like of shape (m, n)
        Non-negative data without columns of zeros.
    rank : int
        The trace of X, at most n.
    noise : {"absolute", "relative"}
        Whether errors of columns are measured by their l1 norm, or relative to the column's own.

    Returns
    -------
    SelfDictionary
        X and the smallest error.

    Examples
    --------
    >>> V = [[1.0, 0.0, 2.0], [0.0, 3.0, 6.0]]
    >>> X, epsilon = self_dictionary_of_rank(V, rank=2)
    >>> X.diagonal().round(6) + 0.0, round(epsilon, 6)
    (array([1., 1., 0.]), 0.0)
    """
    V = check_data(V, "self_dictionary_of_rank")
    rank = check_rank(rank, V)
    U, w = _directions(V)
    unit = _unit(w, noise)
    level = float(np.median(unit))  # the error enters the program in this unit, so that it is of the order of 1
    Y, error = _solve(U, np.ones(w.size), bound=level / unit, rank=rank)
    return SelfDictionary(Y * w / w[:, None], level * error)


def select_columns(
    V: ArrayLike,
    epsilon: float | Literal["auto"] = "auto",
    rank: int | None = None,
    *,
    rho: float = 1.0,
    noise: NoiseModel = "absolute",
    threshold: float | None = 0.5,
    n_outliers: int = 0,
    max_columns: int = 100,
    max_features: int = 50,
    rng: np.random.Generator | None = None,
) -> Indices:
    """Return the indices of the columns of V that span the others.

    The weights diag(X) of the linear program are read in both ways of the source, and the one whose columns leave the
    smaller Frobenius residual is kept: (1) the r largest weights; (2) clusters: of the columns within a radius of a
    centre the weights are added, the r heaviest clusters without common members are taken, and their heaviest members
    stand for them. The radius is 2 epsilon, or the smallest distance of two columns, halved as long as there are fewer
    than r clusters. The second way finds columns whose weight the program spread over near duplicates.

    If no rank is given it is the largest number of disjoint clusters whose weight exceeds `threshold`, at radii of at
    most 2 rho epsilon (the distance of two noisy copies of a column).

    Proportional columns are joined before anything else; the one of largest norm stands for them.

    Parameters
    ----------
    V : array_like of shape (m, n)
        Non-negative data without columns of zeros.
    epsilon : float or "auto"
        The noise level, an l1 norm of columns. "auto" needs the rank and fixes the trace of X instead.
    rank : int, optional
        How many columns to select; None to detect it at the given noise level.
    rho, noise, rng
        As for `self_dictionary`.
    threshold : float, optional
        Weight above which a cluster counts as a basis column. None for the rule of the source's code,
        r = ceil(tr X), which counts too many if epsilon is at or below the noise and too few far above it.
    n_outliers : int
        Columns that no others are made of. They need a basis column each, so they are selected on top of the rank (a
        detected rank counts them), and then as many are dropped as the other columns contain the least of.
    max_columns : int
        The program has n**2 variables. Of more (distinct) columns than this, or than twice the rank, candidates are
        taken by rounds of the successive projection algorithm on the directions, each of 2 rank columns, or of m
        if the rank is unknown, and the program sees them alone. The residuals that decide between (1) and (2) are
        those of all columns.
    max_features : int
        If V has more features than this, and than twice the rank, and epsilon is "auto", the program sees sums over as
        many random groups of features. That keeps separable data separable and raises no noise. With a given noise
        level all features are used, because sums have another one.

    Returns
    -------
    ndarray of int
        Column indices, ascending.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> basis = rng.random((6, 3))
    >>> mixtures = basis @ rng.dirichlet(np.ones(3), 12).T
    >>> V = np.hstack([mixtures, basis]) * rng.uniform(1, 9, 15)
    >>> select_columns(V, epsilon=0.0)
    array([12, 13, 14])
    >>> select_columns(V, rank=3)
    array([12, 13, 14])
    """
    V = check_data(V, "select_columns")
    columns, _ = _select(V, epsilon, rank, rho, noise, threshold, n_outliers, max_columns, max_features, rng)
    return columns


def near_separable_nmf(
    V: ArrayLike,
    rank: int | None = None,
    epsilon: float | Literal["auto"] = "auto",
    *,
    rho: float = 1.0,
    noise: NoiseModel = "absolute",
    threshold: float | None = 0.5,
    n_outliers: int = 0,
    max_columns: int = 100,
    max_features: int = 50,
    rng: np.random.Generator | None = None,
) -> NearSeparableNMF:
    """Factorise V into some of its columns and non-negative coefficients.

    W = V[:, K] with K from `select_columns`, where the parameters are explained; then
    H = argmin_{H >= 0} ||V - W H||_F, column by column.

    One of `rank` and `epsilon` must be given. With the rank alone, epsilon is found as the smallest error at which
    the trace of X can be `rank` (`self_dictionary_of_rank`); with epsilon alone, the rank is detected; with both, the
    program uses epsilon and `rank` columns are read off its diagonal.

    Parameters
    ----------
    V, rank, epsilon, rho, noise, threshold, n_outliers, max_columns, max_features, rng
        As for `select_columns`.

    Returns
    -------
    NearSeparableNMF
        W (m, r) and H (r, n) in the dtype of V, the selected columns, the noise level and the rank.

    Notes
    -----
    The time is that of the linear program: it grows about linearly in m, faster than quadratically in n, and with the
    distance of the data from separability. At the default limits it is below a second without noise, and between
    seconds and half a minute with it. With a given epsilon the program is several times faster than with a given
    rank, but it sees all features: of a thousand, use sums or a selection.

    Noise of a few per cent of the columns' norms leaves the selected columns and a detected rank as they are, if basis
    columns differ by half their norm or more and no other column is nearly pure. An outlier in one entry of a basis
    column moves that column: the l1 norm bounds the noise of whole columns and discards no entries.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> basis = rng.random((6, 3))
    >>> V = np.hstack([basis, basis @ rng.dirichlet(np.ones(3), 12).T])
    >>> result = near_separable_nmf(V, rank=3)
    >>> result.columns, np.allclose(result.W @ result.H, V)
    (array([0, 1, 2]), True)
    >>> near_separable_nmf(V, epsilon=0.0).rank
    3
    """
    data = check_data(V, "near_separable_nmf")
    columns, level = _select(data, epsilon, rank, rho, noise, threshold, n_outliers, max_columns, max_features, rng)
    W = data[:, columns]
    dtype = floating(V)
    return NearSeparableNMF(W.astype(dtype), encode(data, W).astype(dtype), columns, level, columns.size)


def check_data(V: ArrayLike, name: str) -> Matrix:
    """Return V as a float64 matrix, or say why `name` cannot use it."""
    V = np.asarray(V, dtype=np.float64)
    if V.ndim != 2 or V.size == 0:
        raise ValueError(f"{name} needs a matrix V of features x samples, neither of them none; got shape {V.shape}.")
    for bad, what, advice in (
        (~np.isfinite(V), "finite", "Fill in or drop missing values; this method has no weights for entries."),
        (V < 0, "non-negative", "Shift or clip the data."),
    ):
        if bad.any():
            row, column = np.argwhere(bad)[0]
            raise ValueError(
                f"V of {name} must be {what}; {bad.sum()} of {V.size} entries are not, the first is "
                f"{V[row, column]} at feature {row}, sample {column}. {advice}"
            )
    return V


def check_rank(rank: Any, V: Matrix) -> int:
    """Return the rank as an int, or say which ranks V (m, n) allows."""
    is_integer = isinstance(rank, int | np.integer) and not isinstance(rank, bool)
    if not is_integer or not 1 <= rank <= V.shape[1]:
        raise ValueError(
            f"rank must be an integer in [1, {V.shape[1]}], the number of columns of V of shape {V.shape}, because "
            f"basis vectors are made of columns; got {rank!r}."
        )
    return int(rank)


def encode(V: Matrix, W: Matrix) -> Matrix:
    """Return H (r, n) = argmin_{H >= 0} ||V - W H||_F."""
    try:
        return np.stack([nnls(W, v, maxiter=_STEPS * W.shape[1])[0] for v in V.T], axis=1)
    except RuntimeError as error:
        raise UnsolvedError(
            f"The least squares of {V.shape[1]} samples in {W.shape[1]} components were not solved: {error} Use fewer "
            "components, bring features and samples to a similar size, or use another method."
        ) from error


def floating(V: ArrayLike) -> np.dtype[Any]:
    """Return the dtype of results for V: its own if it is floating, float64 otherwise."""
    dtype = np.asarray(V).dtype
    return dtype if dtype.kind == "f" else np.dtype(np.float64)


def _check_level(value: Any, name: str) -> float:
    """Return a non-negative finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value < np.inf:
        raise ValueError(f"{name} must be a finite number of at least 0; got {value!r}.")
    return float(value)


def _directions(V: Matrix) -> tuple[Matrix, Matrix]:
    """Return U and w with columns v_j = w_j u_j and ||u_j||_1 = 1."""
    with np.errstate(over="ignore"):
        w = V.sum(axis=0)
    if not w.all():
        zeros = np.flatnonzero(w == 0)
        raise ValueError(
            f"Every column of V must have a positive entry, because columns are compared by direction; {zeros.size} of "
            f"{w.size} are zero, the first is column {zeros[0]}. Drop them and set their coefficients to zero."
        )
    if not np.isfinite(w).all():
        raise ValueError(
            f"The sum of every column of V must be a finite number; {np.count_nonzero(~np.isfinite(w))} of {w.size} "
            f"are larger than the largest, {np.finfo(float).max:.2g}. Divide V by its largest entry."
        )
    return V / w, w


def _unit(w: Matrix, noise: str) -> Matrix:
    """Return what an error of size 1 means for the directions of columns of norm w."""
    if noise not in ("absolute", "relative"):
        raise ValueError(f'noise must be "absolute" or "relative"; got {noise!r}.')
    return w if noise == "absolute" else np.ones_like(w)


def _solve(U: Matrix, p: Matrix, bound: Matrix, rank: int | None) -> tuple[Matrix, float]:
    """Return Y (n, n) and the factor of the bounds on the columns' errors at which it was found.

    min p' diag(Y) with the error of column j at most bound_j; or, if a rank is given, min e with tr Y = rank and the
    error of column j at most e * bound_j. In both cases 0 <= y_ij <= y_ii <= 1.
    """
    m, n = U.shape
    diagonal = np.arange(n) * (n + 1)  # the variables are y_1, ..., y_n, then the slacks s_1, ..., s_n, then e
    n_variables = n * n + m * n + 1
    lower, upper, cost = np.zeros(n_variables), np.full(n_variables, np.inf), np.zeros(n_variables)
    upper[diagonal] = 1.0
    program: dict[str, Any] = {}
    if rank is None:
        lower[-1] = upper[-1] = 1.0
        cost[diagonal] = p
    else:
        cost[-1] = 1.0
        trace = sparse.csr_array((np.ones(n), (np.zeros(n, dtype=int), diagonal)), shape=(1, n_variables))
        program.update(A_eq=trace, b_eq=[rank])
    constraints, limits = _constraints(U, bound)
    program.update(A_ub=constraints, b_ub=limits, bounds=np.stack([lower, upper], axis=1))
    solution = _solution(f"{n} columns and {m} features", cost, program)
    Y = np.clip(solution.x[: n * n].reshape(n, n).T, 0.0, None)
    return Y, max(float(solution.x[-1]), 0.0)


def _solution(size: str, cost: Matrix, program: dict[str, Any]) -> Any:
    """Return the solution of a linear program of some size, or raise UnsolvedError."""
    try:
        solution = linprog(cost, method="highs", **program)
        why = "" if solution.status == 0 and solution.x is not None else solution.message
    except ValueError as error:  # coefficients that are not finite: the noise level in units of a tiny column
        why = str(error)
    if why:
        raise UnsolvedError(
            f"The linear program of {size} was not solved: {why} Samples whose sums differ by ten orders of magnitude "
            "or more are the usual cause: divide each by its sum, or drop those that hold next to nothing. Otherwise "
            "lower max_columns or max_features of near_separable_nmf, or use another method."
        )
    return solution


def _constraints(U: Matrix, bound: Matrix) -> tuple[Any, Matrix]:
    """Return A and b such that A (y, s, e) <= b says that Y is a dictionary of U with errors of at most e * bound."""
    m, n = U.shape
    each = sparse.eye_array(n)
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    pair = np.arange(i.size)
    below_diagonal = sparse.csr_array(  # y_ij <= y_ii
        (np.repeat([1.0, -1.0], i.size), (np.tile(pair, 2), np.concatenate([j * n + i, i * (n + 1)]))),
        shape=(i.size, n * n),
    )
    A = sparse.block_array(
        [
            [-sparse.kron(each, U), -sparse.eye_array(m * n), None],  # s_j >= u_j - U y_j, the residual's positive part
            # ||u_j - U y_j||_1 = 2 sum(s_j) + sum(y_j) - 1 <= e * bound_j
            [
                sparse.kron(each, np.ones((1, n))),
                sparse.kron(each, np.full((1, m), 2.0)),
                -sparse.csr_array(bound[:, None]),
            ],
            [below_diagonal, None, None],
        ],
        format="csc",
    )
    return A, np.concatenate([-U.T.ravel(), np.ones(n), np.zeros(i.size)])


def _select(
    V: Matrix,
    epsilon: Any,
    rank: int | None,
    rho: float,
    noise: NoiseModel,
    threshold: float | None,
    n_outliers: int,
    max_columns: int,
    max_features: int,
    rng: np.random.Generator | None,
) -> tuple[Indices, float]:
    """Return the selected columns, ascending, and the noise level."""
    rng = rng or np.random.default_rng(0)
    automatic = isinstance(epsilon, str) and epsilon == "auto"
    if rank is None and automatic:
        raise ValueError(
            "Either rank or epsilon must be given: the noise level tells the rank, and the rank the noise level; got "
            'rank=None and epsilon="auto".'
        )
    wanted = None if rank is None else check_rank(rank, V) + n_outliers
    if n_outliers < 0 or (wanted or n_outliers + 1) > V.shape[1]:
        raise ValueError(
            f"rank + n_outliers must be at most the {V.shape[1]} columns of V, and n_outliers at least 0; got "
            f"rank={rank} and n_outliers={n_outliers}."
        )
    if max_columns < 1 or max_features < 1:
        raise ValueError(f"max_columns and max_features must be at least 1; got {max_columns} and {max_features}.")
    least = 2 * (wanted or n_outliers + 1)  # what is left of the data should not decide which columns are selected
    U, w = _directions(V)
    candidates = _candidates(U, w, max(max_columns, least), V.shape[0] if wanted is None else least)
    if wanted is not None and candidates.size < wanted:  # fewer directions than columns to select
        candidates = np.sort(np.concatenate([candidates, np.setdiff1d(np.arange(w.size), candidates)])[:wanted])
    part = V[:, candidates]
    if automatic:
        X, level = self_dictionary_of_rank(_sums(part, max(max_features, least), rng), wanted or 1, noise=noise)
    else:
        level = _check_level(epsilon, "epsilon")
        X = self_dictionary(part, level, rho=rho, noise=noise, rng=rng)
    weights = np.diagonal(X)
    distances = cdist(U[:, candidates].T, U[:, candidates].T, metric="cityblock")
    radius = 2 * float(np.median(level * (1.0 if automatic else rho) / _unit(w[candidates], noise)))
    if wanted is None:
        wanted = min(max(_count(distances, weights, radius, threshold), n_outliers + 1), candidates.size)
    columns = candidates[_read(part, V, weights, distances, radius, wanted)]
    if n_outliers:
        columns = columns[_most_used(V, columns)[: columns.size - n_outliers]]
    return np.sort(columns), level


def _candidates(U: Matrix, w: Matrix, limit: int, per_round: int) -> Indices:
    """Return, ascending, at most `limit` columns of distinct direction, extreme ones first."""
    by_norm = np.argsort(-w, kind="stable")
    _, first = np.unique(U[:, by_norm].round(_DUPLICATE_DECIMALS), axis=1, return_index=True)
    remaining = np.sort(by_norm[first])
    if remaining.size <= limit:
        return remaining
    chosen: list[int] = []
    while len(chosen) < limit:
        picked = _successive_projection(U[:, remaining], min(per_round, limit - len(chosen)))
        chosen.extend(remaining[picked])
        remaining = np.delete(remaining, picked)
    return np.sort(np.array(chosen, dtype=np.intp))


def _successive_projection(U: Matrix, count: int) -> list[int]:
    """Return at most `count` columns: each the largest after those before it are projected out; at least one."""
    R, picked = U.copy(), list[int]()
    first = np.max(np.sum(R**2, axis=0))
    for _ in range(count):
        squares = np.sum(R**2, axis=0)
        k = int(np.argmax(squares))
        if squares[k] <= 1e-20 * first:  # rounding: what was picked spans all columns
            break
        picked.append(k)
        direction = R[:, k] / np.sqrt(squares[k])
        R -= np.outer(direction, direction @ R)
    return picked


def _sums(V: Matrix, n_groups: int, rng: np.random.Generator) -> Matrix:
    """Return sums over random groups of features, if there are more features than groups."""
    m = V.shape[0]
    if m <= n_groups:
        return V
    order = rng.permutation(m)
    return np.add.reduceat(V[order], np.arange(n_groups) * m // n_groups, axis=0)


def _clusters(distances: Matrix, weights: Matrix, radius: float, count: int) -> tuple[list[int], list[float]]:
    """Return at most `count` disjoint clusters, heaviest first: their heaviest members and their weights."""
    near = distances <= radius
    free = weights.copy()
    heaviest, sizes = list[int](), list[float]()
    while len(heaviest) < count and free.any():
        totals = near @ free
        centre = int(np.lexsort((free, totals))[-1])  # of equally good centres the one that is heaviest itself
        heaviest.append(int(np.argmax(np.where(near[centre], free, -1.0))))
        sizes.append(float(totals[centre]))
        free[near[centre]] = 0.0
    return heaviest, sizes


def _count(distances: Matrix, weights: Matrix, radius: float, threshold: float | None) -> int:
    """Return the rank that the weights tell, at least 1."""
    if threshold is None:
        return max(int(np.ceil(weights.sum() - _TRACE_SLACK)), 1)
    # Large clusters swallow neighbours, small ones miss near duplicates: both count too few, so the most is right.
    counts = [
        sum(size > threshold for size in _clusters(distances, weights, fraction * radius, weights.size)[1])
        for fraction in (0.0, 0.25, 0.5, 1.0)
    ]
    return max(*counts, 1)


def _read(V: Matrix, everything: Matrix, weights: Matrix, distances: Matrix, radius: float, rank: int) -> Indices:
    """Return `rank` columns of V by the better of the two post-processings, compared on all data."""
    by_weight = np.argsort(-weights, kind="stable")
    between = distances[~np.eye(len(distances), dtype=bool)]
    radius = max(radius, float(between.min())) if between.size else radius
    clustered, _ = _clusters(distances, weights, radius, rank)
    while len(clustered) < min(rank, int(np.count_nonzero(weights))) and radius > 1e-12:
        radius /= 2
        clustered, _ = _clusters(distances, weights, radius, rank)
    heaviest = [int(k) for k in by_weight]
    options = [heaviest[:rank], (clustered + [k for k in heaviest if k not in clustered])[:rank]]
    if set(options[0]) == set(options[1]):
        return by_weight[:rank]
    residuals = [np.linalg.norm(everything - V[:, K] @ encode(everything, V[:, K])) for K in options]
    return np.array(options[int(np.argmin(residuals))], dtype=np.intp)


def _most_used(V: Matrix, columns: Indices) -> Indices:
    """Return positions in `columns`, ordered by how much of the other columns' norms they explain."""
    others = np.setdiff1d(np.arange(V.shape[1]), columns)
    if not others.size:
        return np.arange(columns.size)
    W, rest = V[:, columns], V[:, others]
    shares = encode(rest, W) * W.sum(axis=0)[:, None] / rest.sum(axis=0)
    return np.argsort(-shares.sum(axis=1), kind="stable")
