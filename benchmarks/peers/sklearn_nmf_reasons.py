"""Why some of scikit-learn's tests of NMF fail with our estimator: the numbers in docs/scikit_learn.md.

    python benchmarks/peers/sklearn_nmf_reasons.py

Repeats what these tests do, with other tolerances, and with what they compare beside it.
"""

import warnings

import numpy as np
from sklearn.decomposition import NMF as THEIRS
from sklearn.decomposition import non_negative_factorization as their_factorization
from sklearn_nmf_tests import NMF, initialize_nmf, non_negative_factorization


def consistency():
    """Codes of a fit with known components, and of transform; and the products of both with the components."""
    A = np.abs(np.random.RandomState(42).randn(10, 10))
    A[:, 2 * np.arange(5)] = 0
    cases = [(0.0, "cd", "random"), (0.0, "mu", "nndsvd"), (1.0, "cd", "nndsvd"), (1.0, "mu", "nndsvd")]
    for alpha_W, solver, init in cases:
        for tol in (1e-2, 1e-5, 1e-10):
            options = {"init": init, "solver": solver, "max_iter": 20000, "tol": tol, "random_state": 1}
            model = NMF(**options, alpha_W=alpha_W, alpha_H=0.0).fit(A)
            H = model.components_
            known, _, _ = non_negative_factorization(
                A, H=H, update_H=False, **options, alpha_W=alpha_W, alpha_H=0.0
            )  # fmt: skip
            codes = model.transform(A)
            differ = np.abs(known - codes).max(), np.abs((known - codes) @ H).max()
            print(f"  alpha_W={alpha_W:g} {solver} {init} tol={tol:g}: codes {differ[0]:.1e}, products {differ[1]:.1e}")


def reconstruction():
    """The worst entry of 6 x 4 with four components."""
    A = np.abs(np.random.RandomState(0).randn(6, 4))
    for solver in ("cd", "mu"):
        for tol in (1e-4, 1e-6, 1e-8):
            for name, cls in (("ours", NMF), ("theirs", THEIRS)):
                model = cls(4, solver=solver, init="random", random_state=0, max_iter=1000, tol=tol)
                worst = np.abs(model.inverse_transform(model.fit_transform(A)) - A).max()
                print(f"  {solver} tol={tol:g} {name}: worst entry {worst:.1e} after {model.n_iter_} iterations")


def decreasing():
    """Steps of chained fits of one iteration that raise the objective, and the sum that the test computes."""
    X = np.abs(np.random.RandomState(42).randn(20, 15))
    alpha, l1_ratio = 0.1, 0.5

    def loss(W, H, ridge):
        lasso = alpha * l1_ratio * (15 * W.sum() + 20 * H.sum())
        return (
            0.5 * ((X - W @ H) ** 2).sum()
            + lasso
            + ridge * alpha * (1 - l1_ratio) * (15 * (W**2).sum() + 20 * (H**2).sum())
        )

    for name, factorize in (("ours", non_negative_factorization), ("theirs", their_factorization)):
        W, H = initialize_nmf(X, 10, init="random", random_state=42)
        found = []
        for _ in range(30):
            W, H, _ = factorize(X, W, H, init="custom", n_components=10, max_iter=1, alpha_W=alpha, solver="cd",
                                tol=0.0, l1_ratio=l1_ratio, random_state=0)  # fmt: skip
            found.append((loss(W, H, 0.5), loss(W, H, 1.0)))
        rises = [(np.flatnonzero(np.diff(column) >= 0) + 1).tolist() for column in zip(*found, strict=True)]
        print(f"  {name}: the objective rises in steps {rises[0]}, the test's sum in steps {rises[1]}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for part in (consistency, reconstruction, decreasing):
        print(part.__doc__)
        part()
