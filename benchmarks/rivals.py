"""Other programs for non-negative matrix factorisation by least squares, as functions with one signature.

Each takes X (n, m), the rank, the number of iterations, a seed and the number of threads, and returns its own seconds
and the factors: codes (n, r) and components (r, m). All of them make as many iterations as they are asked for.

nimfa is under the BSD licence, torchnmf and wNMF under the MIT licence. RcppML is a package of R under the GPL: it runs
in a process of its own, and nothing of it is part of this library. On Debian it is r-cran-rcppml.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

Matrix = NDArray[Any]
Factors = tuple[float, Matrix, Matrix]
Run = Callable[[Matrix, int, int, int, int], Factors]


def scikit_learn(X: Matrix, rank: int, n_iter: int, seed: int, n_threads: int) -> Factors:
    from sklearn.decomposition import NMF

    model = NMF(rank, init="random", max_iter=n_iter, tol=0.0, random_state=seed)
    with threadpool_limits(n_threads, user_api="blas"):
        begin = perf_counter()
        codes = model.fit_transform(X)
        return perf_counter() - begin, codes, model.components_


def torchnmf(X: Matrix, rank: int, n_iter: int, seed: int, n_threads: int) -> Factors:
    import torch
    from torchnmf.nmf import NMF

    before, V = torch.get_num_threads(), torch.from_numpy(X)
    torch.manual_seed(seed)
    torch.set_num_threads(n_threads)
    try:
        begin = perf_counter()
        model = NMF(V.shape, rank=rank).to(V.dtype)
        model.fit(V, beta=2, tol=-inf, max_iter=n_iter)
        seconds = perf_counter() - begin
    finally:
        torch.set_num_threads(before)
    return seconds, model.H.detach().numpy(), model.W.detach().numpy().T


def nimfa(X: Matrix, rank: int, n_iter: int, seed: int, n_threads: int) -> Factors:
    """Run its alternating least squares by projected gradients; it was written for NumPy 1, which had `mat`."""
    from nimfa import Lsnmf

    rng, level = np.random.default_rng(seed), np.sqrt(X.mean() / rank)
    W, H = level * rng.random((len(X), rank)), level * rng.random((rank, X.shape[1]))
    with threadpool_limits(n_threads, user_api="blas"), patch.object(np, "mat", np.asmatrix, create=True):
        begin = perf_counter()
        found = Lsnmf(X, W=W, H=H, rank=rank, max_iter=n_iter, min_residuals=0.0)()
        seconds = perf_counter() - begin
    return seconds, np.asarray(found.basis()), np.asarray(found.coef())


def wnmf(X: Matrix, rank: int, n_iter: int, seed: int, n_threads: int) -> Factors:
    """Run it with weights of one; it has features in rows, and writes into what it is given."""
    from wNMF import wNMF

    V, ones = X.T.copy(), np.ones_like(X.T)
    model = wNMF(rank, max_iter=n_iter, random_state=seed, verbose=0)
    with threadpool_limits(n_threads, user_api="blas"):
        begin = perf_counter()
        model.fit(V, ones)
        return perf_counter() - begin, model.V.T, model.U.T


RCPPML = """
given <- commandArgs(trailingOnly = TRUE)
sizes <- as.integer(given[2:6])
suppressMessages(library(RcppML))
setRcppMLthreads(sizes[5])
set.seed(as.integer(given[7]))
X <- matrix(readBin(file.path(given[1], "X"), "double", sizes[1] * sizes[2]), sizes[1], sizes[2])
begin <- proc.time()[["elapsed"]]
found <- nmf(X, sizes[3], tol = 0, maxit = sizes[4], verbose = FALSE)
seconds <- proc.time()[["elapsed"]] - begin
factors <- c(as.vector(found$w %*% diag(as.vector(found$d), sizes[3])), as.vector(found$h))
writeBin(c(seconds, factors), file.path(given[1], "factors"))
"""


def rcppml(X: Matrix, rank: int, n_iter: int, seed: int, n_threads: int) -> Factors:
    """Run the package of R in a process of its own, which takes its time itself; features are in rows there."""
    if shutil.which("Rscript") is None:
        raise ImportError("There is no Rscript.")
    (n, m), sizes = X.shape, [X.shape[1], X.shape[0], rank, n_iter, n_threads, seed]
    with tempfile.TemporaryDirectory() as folder:
        np.ascontiguousarray(X, dtype=np.float64).tofile(Path(folder, "X"))  # rows here are columns there
        command = ["Rscript", "-e", RCPPML, folder, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImportError(f"RcppML does not run: {done.stderr.strip()[-200:]}")
        seconds, *factors = np.fromfile(Path(folder, "factors"))
    components, codes = np.array(factors[: rank * m]).reshape(rank, m), np.array(factors[rank * m :]).reshape(n, rank)
    return float(seconds), codes, components


RIVALS: Mapping[str, Run] = {
    "scikit-learn": scikit_learn,
    "RcppML": rcppml,
    "torchnmf": torchnmf,
    "nimfa": nimfa,
    "wNMF": wnmf,
}
