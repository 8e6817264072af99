"""Non-negative least squares of many rows in step: against SciPy, and against the kernel of NumPy's arrays."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from conftest import make_data
from robustnmf import RobustNMF
from robustnmf.kernels.numba import functions

torch = pytest.importorskip("torch")
from robustnmf.engines import torch_engine  # noqa: E402  (needs Torch)
from robustnmf.kernels.cuda import pivoting  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def problem(n=40, p=60, r=5, *, weighted=True, seed=0):
    """Return data, weights of which a tenth is small, a start, and components, of which the first half is used."""
    rng = np.random.default_rng(seed)
    A, X = rng.gamma(1.0, size=(p, r)), rng.gamma(1.0, size=(n, r)) * (rng.random((n, r)) < 0.6)
    Y = np.abs(X @ A.T + 0.3 * rng.standard_normal((n, p)))
    Q = np.where(rng.random(Y.shape) < 0.1, 0.01, 1.0)
    return Y, Q if weighted else None, rng.random((n, r)), A


def pivoted(Y, Q, X, A, *, device="cpu", linear=0.0, ridge=0.0):
    """Return the codes of the kernel, as an array of NumPy."""
    arrays = [None if a is None else torch.as_tensor(a, device=device) for a in (Y, Q, X, A)]
    linear = torch.full_like(arrays[3][0], linear)
    return pivoting.least_squares(*arrays, linear, ridge, 1000, 1e-9).cpu().numpy()


def squares(Y, Q, X, A):
    """Return the weighted sum of squares of each row, in double precision."""
    E = Y.astype(float) - X.astype(float) @ A.T.astype(float)
    return np.sum((1.0 if Q is None else Q) * E**2, axis=1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("linear, ridge", [(0.0, 0.0), (0.5, 2.0)])
def test_codes_are_those_of_scipy(device, weighted, linear, ridge):
    Y, Q, X, A = problem(weighted=weighted)
    found = pivoted(Y, Q, X, A, device=device, linear=linear, ridge=ridge)
    r = A.shape[1]
    for y, q, x in zip(Y, np.ones_like(Y) if Q is None else Q, found, strict=True):
        # |R x - z|^2 with R' R = A' D A + ridge and R' z = A' D y - linear
        R = np.linalg.cholesky(A.T @ (q[:, None] * A) + ridge * np.eye(r)).T
        expected, _ = nnls(R, np.linalg.solve(R.T, A.T @ (q * y) - linear))
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(30, 200, 40), (10, 150, 130)])
def test_many_coordinates_have_the_codes_of_the_host(device, shape):
    Y, Q, X, A = problem(*shape)
    expected = functions.least_squares(Y, Q, X, A, np.zeros(shape[2]), 0.0, 1000, 1e-12)
    np.testing.assert_allclose(pivoted(Y, Q, X, A, device=device), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype, rtol", [("float64", 1e-9), ("float32", 1e-5)])
def test_components_that_are_alike_or_zero_share_or_take_nothing(device, dtype, rtol):
    Y, Q, X, A = (a.astype(dtype) for a in problem(r=8))
    A[:, 1], A[:, 2], A[:, 4] = A[:, 0], A[:, 0] + A[:, 3], 0
    X[:, 4] = 0
    found = pivoted(Y, Q, X, A, device=device)
    best = functions.least_squares(*(a.astype(float) for a in (Y, Q, X, A)), np.zeros(8), 0.0, 100_000, 1e-14)
    assert found.dtype == Y.dtype and (found >= 0).all() and (found[:, 4] == 0).all()
    np.testing.assert_allclose(squares(Y, Q, found, A), squares(Y, Q, best, A), rtol=rtol)


def test_equal_components_are_solved_for_in_double_precision(monkeypatch):
    Y, Q, X, A = problem(r=8)
    A[:, 1], A[:, 2], A[:, 5] = A[:, 0], A[:, 0], 3 * A[:, 4]
    best = functions.least_squares(Y, Q, X, A, np.zeros(8), 0.0, 100_000, 1e-14)
    monkeypatch.setattr(pivoting, "_descended", lambda *_: pytest.fail("rows were left to coordinate descent"))
    found = pivoted(Y, Q, X, A)
    np.testing.assert_allclose(squares(Y, Q, found, A), squares(Y, Q, best, A), rtol=1e-9)


@pytest.mark.parametrize("weighted", [True, False])
def test_no_rows_have_no_codes(weighted):
    Y, Q, X, A = problem(weighted=weighted)
    assert pivoted(Y[:0], Q if Q is None else Q[:0], X[:0], A).shape == (0, A.shape[1])


def test_rows_that_weigh_nothing_or_hardly_anything():
    Y, Q, X, A = problem()
    Q[0], Q[1] = 0, 1e-12 * Q[1]
    found, expected = pivoted(Y, Q, X, A), pivoted(Y, np.where(Q < 1e-10, 1e12 * Q, Q), X, A)
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-8)


def test_parts_of_rows_and_of_products_make_no_difference(monkeypatch):
    Y, Q, X, A = problem()
    whole = pivoted(Y, Q, X, A)
    monkeypatch.setattr(pivoting, "AT_A_TIME", 7 * 25)
    monkeypatch.setattr(pivoting, "BLOCK_SHARE", 0.0)
    monkeypatch.setattr(pivoting, "PRODUCT_ENTRIES", 2 * 60 * 5)
    np.testing.assert_allclose(pivoted(Y, Q, X, A), whole, rtol=1e-10)


@pytest.mark.parametrize("pivots", [0, 1])
def test_rows_that_pivoting_leaves_are_descended(monkeypatch, pivots):
    Y, Q, X, A = problem(r=12)
    expected = pivoted(Y, Q, X, A)
    monkeypatch.setattr(pivoting, "MOST_PIVOTS", pivots)
    np.testing.assert_allclose(pivoted(Y, Q, X, A), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("rank", [3, 10])
def test_fits_and_masks_are_those_of_numpy(monkeypatch, weights, rank):
    """Samples of which few entries are right, whose codes depend on all of them, among others."""
    sample = make_data(n=80, m=50, rank=3, outliers=0.05)
    X, rng = sample.X.copy(), np.random.default_rng(2)
    X[:4, :30] = rng.choice([0.0, 10.0], (4, 30))
    X[5:8, 10:] = np.nan
    M = rng.uniform(0.5, 2, X.shape) if weights else None
    kernels = torch_engine._kernels_for(torch.device("cpu"))
    on_gpu = replace(kernels, least_squares=pivoting.least_squares)
    monkeypatch.setattr(torch_engine, "_kernels_for", lambda device: on_gpu)
    ours, theirs = (RobustNMF(rank, random_state=0, engine=engine, device="cpu") for engine in ("torch", "numpy"))
    codes = ours.fit_transform(torch.as_tensor(X), weights=None if M is None else torch.as_tensor(M))
    expected = theirs.fit_transform(X, weights=M)
    np.testing.assert_array_equal(ours.outliers_, theirs.outliers_)
    np.testing.assert_allclose(codes @ ours.components_, expected @ theirs.components_, rtol=1e-4, atol=1e-4)
