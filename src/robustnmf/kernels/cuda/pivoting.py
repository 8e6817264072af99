"""Non-negative least squares of many rows at a time, in plain Torch: all of them walk in step.

Where a device solves a batch of small systems as fast as one, it is faster to solve for the positive coordinates of
each row than to descend: the data is read once, and a few solutions later it is known which coordinates are positive.
"""

from typing import Any

import torch

from robustnmf.utils.slices import cuts_of

# Numbers of the data, or of Gram matrices, that are worked on at a time, or so much of the block if that is more. A few
# arrays of that size are made.
AT_A_TIME, BLOCK_SHARE = 2**23, 1 / 16
# Numbers of products of features from which Gram matrices are formed at a time.
PRODUCT_ENTRIES = 2**25
# As `numba.functions.pivoted` does: how often coordinates may change sides, and without success.
MOST_PIVOTS, PIVOT_CHANCES = 100, 3
# A coordinate whose square is below this is not used.
DEAD = {torch.float32: 1e-30, torch.float64: 1e-290}
# What counts as zero beside numbers of 1: a part of the gradient, and a pivot.
SMALLEST = {torch.float32: (2e-6, 1e-6), torch.float64: (1e-12, 1e-13)}


def least_squares(Y: Any, Q: Any, X: Any, A: Any, linear: Any, ridge: float, max_iter: int, tol: float) -> Any:
    """Return the codes of weighted non-negative least squares; the kernel of `algorithm.encoding.settle`.

    The best code is found, or the best one is approached by descent of so many sweeps where that fails.

    Parameters
    ----------
    Y, Q : (B, p), Q None for ones; X : (B, r), where to begin; A : (p, r); linear : (r,) and ridge, the penalty.
    max_iter, tol : most sweeps, and the largest change relative to the largest coordinate that ends them.
    """
    found, r = torch.empty_like(X), A.shape[1]
    ridges = ridge * torch.eye(r, dtype=A.dtype, device=A.device)
    for rows in cuts_of(len(Y), max(r * r, A.shape[0]), max(AT_A_TIME, int(BLOCK_SHARE * Y.numel()))):
        some, q = Y[rows], None if Q is None else Q[rows]
        gram = (A.T @ A).expand(len(some), r, r) if q is None else weighted_grams(q, A)
        rhs = (some if q is None else q * some) @ A - linear
        found[rows] = solved(gram + ridges, rhs, X[rows], max_iter, tol)
    return found


def weighted_grams(Q: Any, A: Any) -> Any:
    """Return A' diag(q) A of each row q of Q (B, p), (B, r, r), by matrix products."""
    p, r = A.shape
    At, grams = A.T.contiguous(), torch.empty((len(Q), r, r), dtype=A.dtype, device=A.device)
    for some in cuts_of(r, r * p, PRODUCT_ENTRIES):
        products = At[some, None] * At[some.start :]
        found = (Q @ products.reshape(-1, p).T).reshape(len(Q), some.stop - some.start, r - some.start)
        grams[:, some, some.start :] = found
        grams[:, some.start :, some] = found.transpose(1, 2)
    return grams


def solved(gram: Any, rhs: Any, X: Any, max_iter: int, tol: float) -> Any:
    """Return the non-negative solutions of gram x = rhs, (B, r, r) and (B, r), by block principal pivoting from X.

    Coordinates that are positive are solved for; those that have the wrong sign then change sides, all at a time, and
    one at a time if that does not help three times in a row. Systems are solved in double precision: of components that
    are much alike, single precision would tell little.

    References
    ----------
    J. Kim, H. Park, "Fast nonnegative matrix factorization: an active-set-like method and comparisons", SIAM Journal on
    Scientific Computing, 2011.
    """
    (smallest, eps), (n_rows, r) = SMALLEST[X.dtype], X.shape
    alive = torch.diagonal(gram, dim1=1, dim2=2) > DEAD[X.dtype]
    free = alive & ((X > 0) | ~torch.any(X > 0, dim=1, keepdim=True))
    gram, rhs = gram.to(torch.float64), rhs.to(torch.float64)
    # The gradient of a coordinate is as large as its component.
    sizes = torch.sqrt(torch.diagonal(gram, dim1=1, dim2=2).clamp(min=DEAD[X.dtype]))
    limits = smallest * sizes * torch.amax(torch.abs(rhs) / sizes, dim=1, keepdim=True)
    found, places = torch.zeros_like(X), torch.arange(n_rows, device=X.device)
    chances, fewest = (torch.full_like(places, number) for number in (PIVOT_CHANCES, r + 1))
    coordinates = torch.arange(r, device=X.device)
    for _ in range(MOST_PIVOTS):
        new = _solved_where(gram, rhs, free, eps)
        descent = rhs - (gram @ new[:, :, None])[:, :, 0]
        is_wrong = alive & (torch.where(free, new < 0, descent > limits) | ~torch.isfinite(new))
        n_wrong = torch.count_nonzero(is_wrong, dim=1)
        found[places] = new.to(X.dtype)
        left = torch.nonzero(n_wrong)[:, 0]
        if len(left) == 0:
            return found
        is_better = n_wrong < fewest
        fewest, chances = torch.where(is_better, n_wrong, fewest), torch.where(is_better, PIVOT_CHANCES, chances - 1)
        last = torch.amax(torch.where(is_wrong, coordinates, -1), dim=1, keepdim=True)
        free = free ^ (is_wrong & ((chances >= 0)[:, None] | (coordinates == last)))
        if len(left) < len(places):
            gram, rhs, free, alive, limits, places, chances, fewest = (
                part[left] for part in (gram, rhs, free, alive, limits, places, chances, fewest)
            )
    found[places] = _descended(gram, rhs, X[places], max_iter, tol)
    return found


def _solved_where(gram: Any, rhs: Any, free: Any, eps: float) -> Any:
    """Return solutions for the coordinates that are free, the others being zero, (B, r)."""
    system = torch.where(free[:, :, None] & free[:, None, :], gram, 0.0)
    diagonal = torch.diagonal(system, dim1=1, dim2=2)
    diagonal += (~free).to(system.dtype)
    factor, failed = torch.linalg.cholesky_ex(system)
    is_weak = (failed > 0) | ~torch.all(torch.diagonal(factor, dim1=1, dim2=2) ** 2 > eps * diagonal, dim=1)
    if bool(torch.any(is_weak)):  # components that are alike share what they explain
        diagonal *= 1 + 10 * eps * is_weak.to(system.dtype)[:, None]
        factor, failed = torch.linalg.cholesky_ex(system)
        factor = torch.where((failed > 0)[:, None, None], torch.nan, factor)  # else it would be anything
    return torch.cholesky_solve(torch.where(free, rhs, 0.0)[:, :, None], factor)[:, :, 0]


def _descended(gram: Any, rhs: Any, X: Any, max_iter: int, tol: float) -> Any:
    """Return what coordinate descent makes of the few rows that are left, on the host."""
    from robustnmf.kernels.numba.functions import solve_rows  # imported late: Numba costs a third of a second

    systems = torch.cat([gram, rhs[:, None]], dim=1).to("cpu", X.dtype).numpy()
    codes = X.cpu().numpy()

    def set_up(rows: slice, into: Any) -> None:
        into[:] = systems[rows]

    solve_rows(set_up, codes, max_iter, tol)
    return torch.from_numpy(codes).to(X.device)
