"""scikit-learn's own tests of NMF, with our estimator in place of theirs.

    python benchmarks/peers/sklearn_nmf_tests.py

The test file that is installed with scikit-learn runs as it is. What it imports as NMF, MiniBatchNMF,
non_negative_factorization and _initialize_nmf are the adapters below: they translate names of parameters and
attributes, and nothing else. Tests of functions inside scikit-learn that no estimator of ours stands for are left out.
Prints the counts, and what fails with the reason.
"""

import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.decomposition as decomposition
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from robustnmf import RobustNMF
from robustnmf.methods import INITIALIZERS

INTERNAL = ("test_beta_divergence", "test_special_sparse_dot", "test_nmf_underflow")
SOLVERS = {"cd": "hals", "mu": "multiplicative"}
theirs = decomposition._nmf


class NMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """RobustNMF with the parameters of scikit-learn's NMF, by their names there."""

    def __init__(
        self, n_components="auto", *, init=None, solver="cd", beta_loss="frobenius", tol=1e-4, max_iter=200,
        random_state=None, alpha_W=0.0, alpha_H="same", l1_ratio=0.0, verbose=0, shuffle=False,
    ):  # fmt: skip
        self.n_components, self.init, self.solver, self.beta_loss = n_components, init, solver, beta_loss
        self.tol, self.max_iter, self.random_state = tol, max_iter, random_state
        self.alpha_W, self.alpha_H, self.l1_ratio = alpha_W, alpha_H, l1_ratio
        self.verbose, self.shuffle = verbose, shuffle

    def _translated(self, X, W, H):
        same = ("tol", "max_iter", "random_state", "alpha_W", "alpha_H", "l1_ratio", "verbose")
        options = {name: getattr(self, name) for name in same}
        rank = self.n_components
        if rank == "auto":  # there: as many as the start has, or as features
            rank = np.shape(X)[1] if H is None else len(H)
        init = "auto" if self.init is None else self.init
        if init == "custom":
            init = (W, H)
        if self.beta_loss not in (2, "frobenius"):
            options["beta_loss"] = self.beta_loss  # which says what to do instead
        return RobustNMF(rank, method="l2", init=init, solver=SOLVERS[self.solver], **options)

    def fit_transform(self, X, y=None, W=None, H=None):
        self.model_ = self._translated(X, W, H)
        extra = {} if self.init == "custom" else {k: v for k, v in (("W", W), ("H", H)) if v is not None}
        return self.model_.fit_transform(X, **extra)

    def fit(self, X, y=None, **start):
        self.fit_transform(X, **start)
        return self

    def transform(self, X):
        return self.model_.transform(X)

    def inverse_transform(self, X):
        return self.model_.inverse_transform(X)

    def __getattr__(self, name):
        if name.startswith("__") or name == "model_":
            raise AttributeError(name)
        return getattr(self.model_, {"_n_components": "n_components_"}.get(name, name))


class MiniBatchNMF(NMF):
    """The same, which learns from batches by partial_fit."""

    def __init__(
        self, n_components="auto", *, init=None, batch_size=1024, beta_loss="frobenius", tol=1e-4,
        max_no_improvement=10, max_iter=200, alpha_W=0.0, alpha_H="same", l1_ratio=0.0, forget_factor=0.7,
        fresh_restarts=False, fresh_restarts_max_iter=30, transform_max_iter=None, random_state=None, verbose=0,
    ):  # fmt: skip
        super().__init__(
            n_components, init=init, solver="mu", beta_loss=beta_loss, tol=tol, max_iter=max_iter, alpha_W=alpha_W,
            alpha_H=alpha_H, l1_ratio=l1_ratio, random_state=random_state, verbose=verbose,
        )  # fmt: skip
        self.batch_size, self.max_no_improvement, self.forget_factor = batch_size, max_no_improvement, forget_factor
        self.fresh_restarts, self.fresh_restarts_max_iter = fresh_restarts, fresh_restarts_max_iter
        self.transform_max_iter = transform_max_iter

    def partial_fit(self, X, y=None, W=None, H=None):
        if not hasattr(self, "model_"):
            self.model_ = self._translated(X, W, H).set_params(forget_factor=self.forget_factor)
        self.model_.partial_fit(X)
        return self


def non_negative_factorization(X, W=None, H=None, n_components="auto", *, init=None, update_H=True, **options):
    if update_H:
        model = NMF(n_components, init=init, **options)
        codes = model.fit_transform(X, W=W, H=H)
        return codes, model.components_, model.n_iter_
    model = NMF(len(H), init=init, **options)._translated(X, W, H).set_params(fixed_components=H)
    return model.fit_transform(X), model.components_, model.n_iter_


def initialize_nmf(X, n_components, init=None, eps=1e-6, random_state=None):
    rng = np.random.default_rng(random_state)
    basis, codes = INITIALIZERS[init](np.asarray(X).T, None, n_components, rng)
    return codes.T, basis.T


class Reasons:
    """A plug-in of pytest that keeps what failed, and why."""

    def __init__(self):
        self.outcomes, self.failures = Counter(), {}

    def pytest_collection_modifyitems(self, config, items):
        items[:] = [item for item in items if item.originalname not in INTERNAL]

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome == "failed":
            self.outcomes[report.outcome] += 1
            if report.outcome == "failed":
                crash = report.longrepr.reprcrash
                self.failures[report.nodeid.rpartition("::")[2]] = crash.message.replace("\n", " ")[:160]


def main():
    decomposition.NMF, decomposition.MiniBatchNMF = NMF, MiniBatchNMF
    decomposition.non_negative_factorization = non_negative_factorization
    decomposition._nmf = SimpleNamespace(_initialize_nmf=initialize_nmf, _beta_divergence=theirs._beta_divergence,
                                         _special_sparse_dot=theirs._special_sparse_dot)  # fmt: skip
    reasons, path = Reasons(), find_spec("sklearn.decomposition.tests.test_nmf").origin
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rootdir", folder, "-c", "/dev/null", "--noconftest", "-p", "no:cacheprovider", "--no-header"]
        pytest.main([path, "-q", "--tb=short", "--no-summary", "-W", "ignore::UserWarning", *options], [reasons])
    print(f"\npassed {reasons.outcomes['passed']}, failed {reasons.outcomes['failed']}")
    for test, reason in reasons.failures.items():
        print(f"- {test}: {reason}")


if __name__ == "__main__":
    sys.exit(main())
