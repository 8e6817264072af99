"""The scikit-learn face: the only file that turns X into V = X' and W into ``components_``."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from math import frexp, inf, ldexp, log, sqrt
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted
from tqdm.auto import tqdm

from robustnmf import blockwise
from robustnmf.arrays import Array, Blocks, Namespace, device, is_on_host, same_kind, size, to_host
from robustnmf.checkpoint import Checkpoint
from robustnmf.encoding import Basis, Description, basis_of, typical_code
from robustnmf.engines import Engine, NumPyEngine, engine_for
from robustnmf.errors import DataQualityWarning, IncompatibleError
from robustnmf.halfquadratic import Callback, Iteration, Result, State, comparable, penalty_value, take_start
from robustnmf.initializers import draw_start
from robustnmf.methods import Parts, resolve
from robustnmf.outofcore import Data, as_data, engine_of, fingerprint, is_out_of_core, row_totals, totals
from robustnmf.outofcore import result as lazy_result
from robustnmf.penalties import ElasticNet, Penalties
from robustnmf.scales import FixedScale
from robustnmf.solvers import LossSolver, SharedGram, SparseError
from robustnmf.solvers.sparse_error import sparse_error
from robustnmf.streaming import Stream, clean_samples
from robustnmf.trials import generator
from robustnmf.validation import (
    Observations,
    check_components,
    check_observations,
    check_rank,
    check_start,
    check_uncertainties,
    put_known,
)

Matrix = NDArray[Any]

# Results with a value for each entry of X.
_OF_ENTRIES = ("weights", "outliers")
# Entries from which the unit of the data is taken.
UNIT_ENTRIES = 2**18


class RobustNMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Non-negative matrix factorisation of data that is partly wrong or missing.

    Finds non-negative codes and components whose product approximates X, gives every entry of X a weight, and cuts off
    entries that do not fit. NaN in X means missing.

    Parameters
    ----------
    n_components : int or "auto"
        Number of components, at most ``min(n_samples, n_features)``; "auto" finds it by cross-validation, which takes
        many fits, see `robustnmf.selection.auto_rank`.
    method : str
        The model, one of `robustnmf.METHODS`.
    preset : {"default", "published"}
        What "auto" stands for below. "published" runs the algorithm of the paper to the letter: random start, Nagy's
        scale on all residuals, the three-sigma rule, Nesterov's method.
    init : "auto", {"median", "random", "published"} or object
        Where the fit starts, see `robustnmf.initializers`.
    scale : "auto", {"mixture", "nagy", "mad", "rms", "first"}, float or object
        How the noise scale is found, see `robustnmf.scales`. A number fixes it (the paper's gamma, in units of X).
    outliers : "auto", a name, float or object
        Which entries are cut: "none", "mixture", "mad", "mad-feature", "three-sigma", "three-sigma-feature", "spread",
        or for images "mrf" and "median-filter"; see `robustnmf.outliers` and `robustnmf.spatial`. A number is the
        paper's sigma: entries whose residual exceeds ``scale * sqrt(sigma)`` are cut. With scale and sigma fixed and a
        plain schedule the objective falls monotonically.
    solver : "auto", a name or object
        How the factors are improved: "hals", "nesterov" or "multiplicative" for every model, others for some; see
        `robustnmf.solvers`.
    schedule : "auto", {"staged", "plain"} or object
        How the fit proceeds: "plain" repeats Algorithm 2; "staged", what "auto" stands for with the Cauchy models of
        the default preset, chooses between two openings, takes scale and cut from entries that it holds out, and stops
        before it follows the noise; see `robustnmf.schedules`.
    image_shape : (rows, columns) or None
        Shape of the image that each sample is, for the rules "mrf" and "median-filter".
    max_iter : int
        Most iterations.
    tol : float
        Stop when the objective changes by less than `tol` times its fall so far, eq. (3-9). The objective of a staged
        fit is the mean Cauchy loss of entries held out of it; it stops when that falls by less than `tol` times itself.
    random_state : int, RandomState, Generator or None
        Seed of the start.
    alpha_W, alpha_H : float, float or "same"
        Weight of the penalty on the codes and on the components, as in scikit-learn's NMF, whose W are the codes:

            alpha_W * n_features * (l1_ratio * ||codes||_1 + (1 - l1_ratio) / 2 * ||codes||^2)
            + alpha_H * n_samples * (l1_ratio * ||components||_1 + (1 - l1_ratio) / 2 * ||components||^2)

        is added to the loss in units of X squared, in which an entry that fits costs half its squared residual.
    l1_ratio : float
        Share of the L1 norm in the penalties, between 0 and 1.
    fixed_components : array-like (n_fixed, n_features) or None
        Components that are known: they become the first rows of `components_` as they are, and only the others, if
        any, are learnt.
    forget_factor : float
        What is left of the influence of earlier batches after each `partial_fit`, between 0 and 1.
    engine : {"auto", "numpy", "torch", "stream", "dask"} or object
        What does the work: NumPy and Numba on the processor, Torch on a GPU, or for data that is larger than memory
        "stream", which reads it block by block, and "dask", the cluster of the active Dask client, or a local one.
        "auto" is Torch for data on a GPU or a `device` that is one, Dask for Dask arrays, and "stream" for data on disk
        (`numpy.memmap`, HDF5, Zarr) that is larger than a quarter of the memory. Or a `DaskEngine` or `StreamingEngine`
        of `robustnmf.engines`.
    device : str or None
        Where the work is done: "cpu", "cuda", "cuda:1", "mps". None is where X is. With Dask, "cuda" is the GPU of
        each worker.
    checkpoint : path or None
        Folder in which the state of the fit is saved every few iterations or minutes; `fit` with the same data and
        parameters goes on from there. See `robustnmf.checkpoint`.
    verbose : int
        1 shows a progress bar with objective, scale and share of outliers.
    callback : callable or None
        Called with every `robustnmf.halfquadratic.Iteration`; returning True ends the fit.

    Attributes
    ----------
    components_ : ndarray (n_components, n_features)
        Non-negative components, each with maximum 1 (or 0 if it is not used). With penalties they are as large as the
        penalties want them; known ones are as they were given.
    scale_ : float
        Scale of clean residuals, in units of X.
    thresholds_ : ndarray (n_features,)
        Residual magnitude beyond which an entry is cut; infinite if nothing is.
    outliers_ : ndarray of bool (n_samples, n_features)
        True where an observed entry of the training data was cut.
    weights_ : ndarray (n_samples, n_features)
        Weight of every training entry relative to that of a perfect fit: 0 for outliers and missing entries. User
        weights are not multiplied in.
    objective_ : float
        Objective (2-4) at the returned codes and components; where the scale is estimated, half the negative
        log-likelihood up to a constant.
    history_ : dict of ndarray
        Per iteration, the start first: "objective", "scale", "outlier_share", "seconds", "relative_change". A staged
        fit lists both openings, one after the other.
    reconstruction_err_ : float
        Frobenius norm of the residual over observed entries that are not outliers.
    sparse_errors_ : ndarray (n_samples, n_features)
        Sparse error matrix S of X ~ codes @ components + S, for the method "rnmf-l1" only.
    n_iter_ : int
        Iterations made.
    converged_ : bool
        Whether the stopping rule was met.
    parts_ : robustnmf.methods.Parts
        The parts that "auto" and the names stood for.
    n_components_ : int
        Number of components.
    n_samples_seen_ : int
        Samples seen by `fit`, or by all calls of `partial_fit`.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of str
        Names of the features, if X had any.

    Notes
    -----
    The codes that `fit_transform` returns are those of `transform`: with the components, scale and thresholds fixed,
    each sample is encoded by itself, so the same sample always gets the same code.

    References
    ----------
    N. Guan, T. Liu, Y. Zhang, D. Tao, L. S. Davis, "Truncated Cauchy Non-negative Matrix Factorization", IEEE TPAMI,
    2017.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf import RobustNMF
    >>> rng = np.random.default_rng(0)
    >>> clean = rng.random((60, 3)) @ rng.random((3, 40))
    >>> X = clean.copy()
    >>> X[rng.random(X.shape) < 0.1] = 50.0
    >>> model = RobustNMF(n_components=3, random_state=0).fit(X)
    >>> bool(np.linalg.norm(model.clean(X) - clean) < 0.05 * np.linalg.norm(clean))
    True
    """

    def __init__(
        self,
        n_components: int | str = 2,
        *,
        method: str = "truncated-cauchy",
        preset: str = "default",
        init: Any = "auto",
        scale: Any = "auto",
        outliers: Any = "auto",
        solver: Any = "auto",
        schedule: Any = "auto",
        image_shape: tuple[int, int] | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: Any = None,
        alpha_W: float = 0.0,
        alpha_H: float | str = "same",
        l1_ratio: float = 0.0,
        fixed_components: Any = None,
        forget_factor: float = 0.95,
        engine: Any = "auto",
        device: str | None = None,
        checkpoint: Any = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.preset = preset
        self.init = init
        self.scale = scale
        self.outliers = outliers
        self.solver = solver
        self.schedule = schedule
        self.image_shape = image_shape
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.alpha_W = alpha_W
        self.alpha_H = alpha_H
        self.l1_ratio = l1_ratio
        self.fixed_components = fixed_components
        self.forget_factor = forget_factor
        self.engine = engine
        self.device = device
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.callback = callback

    def fit(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Self:
        """Learn the components of X.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Non-negative data; NaN means missing. Sparse matrices are worked on densely.
        y : None
            Ignored.
        weights : array-like (n_samples, n_features) or None
            Non-negative weight of every entry; an entry of weight zero has no influence whatever it holds.
        uncertainties : array-like (n_samples, n_features) or None
            Standard deviation of the noise of every entry, positive. Features are then compared in units of their
            typical uncertainty, the median, and entries weighted by how far they differ from it; `scale_` is in those
            units too.
        """
        _, result = self._fit(X, weights, uncertainties)
        self._warn(result, stacklevel=3)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Learn the components of X and return its codes, (n_samples, n_components)."""
        codes, result = self._fit(X, weights, uncertainties)
        self._warn(result, stacklevel=4)  # one more than `fit`: scikit-learn wraps this method
        return self._lazily("codes", X, weights, uncertainties) if codes is None else same_kind(X, codes)

    def _fit(self, X: Any, weights: Any, uncertainties: Any) -> tuple[Array | None, Result]:
        """Learn the components of X; return its codes, if they are in memory, and what the run came to."""
        parts = self._check_parameters()
        if is_out_of_core(X, self.engine):
            result = self._fit_blocks(X, weights, uncertainties, parts)
            return None, result
        noise, entry_weights = None, weights
        if uncertainties is not None:
            noise, entry_weights = check_uncertainties(uncertainties, X, weights)
        with _unchanged_on_failure(self), engine_for(X, self.engine, self.device).running() as engine:
            data = check_observations(self, X, entry_weights, engine, reset=True)
            rank = self._choose_rank(data, weights, uncertainties)
            known = check_components(self.fixed_components, data.X, rank)
            unit = data_unit(data.X, noise, engine)
            parts = replace(parts, penalties=self._penalties(parts, data.X.shape, unit))
            given, data = data, data.in_unit(unit, data.X.dtype, engine, noise)
            result = self._run(data, rank, parts, known if noise is None else known / noise, unit, engine)
            kept = rank if self._is_penalised else len(known)
            components, code = _normalise(result.state, _importance(data, result.state, engine), kept, noise, engine)
            components[: len(known)] = known
            weighting = result.state.weighting
            basis = Basis(basis_of(components, noise), code, weighting, parts.penalties, result.code_sweeps)
            basis = basis.placed(engine.place)
            Ht, about = self._describe(data, basis, engine, may_overwrite=data.X is not given.X)
            basis = basis.placed(to_host)
            if is_on_host(X):
                about = about.on_host()
            # All that can fail or be interrupted is done: an estimator is fitted in whole or not at all.
            self.parts_ = parts
            self.components_ = components
            self.n_components_ = rank
            self._basis, self._unit, self._noise = basis, unit, noise
            self.scale_ = min(weighting.scale * unit, float(np.finfo(np.float64).max))
            self.thresholds_ = self._in_units_of_X(_thresholds(basis))
            self.weights_ = about.weights
            self.outliers_ = about.outliers
            self.objective_ = _objective(basis, to_host(Ht), about, result.state.first_scale)
            self.reconstruction_err_ = sqrt(float(about.inlier_squares.sum())) * unit
            self.history_ = _table(result.history)
            self.n_iter_ = len(result.history) - 1
            self.converged_ = result.converged
            self.n_samples_seen_ = len(given.X)
            self._stream: Stream | None = None
            codes = Ht * unit
            if isinstance(parts.solver, SparseError):
                self.sparse_errors_ = self._sparse_errors(given, to_host(codes))
            elif hasattr(self, "sparse_errors_"):  # of an earlier fit with another method
                del self.sparse_errors_
        return codes, result

    def _fit_blocks(self, X: Any, weights: Any, uncertainties: Any, parts: Parts) -> Result:
        """Learn the components of data that is not in memory; return what the run came to."""
        name = type(self).__name__
        self._check_out_of_core(parts, uncertainties)
        X, weights = as_data(X), as_data(weights)
        runner = engine_of(X, self.engine, self.device, self.checkpoint)
        with _unchanged_on_failure(self), runner.running() as engine:
            data = Data.of(X, weights, engine, name)
            _warn_of_empty_blocks(data, name)
            rank = check_rank(self.n_components, data, name)
            known = check_components(self.fixed_components, data, rank)
            parts = replace(parts, penalties=self._penalties(parts, data.shape, data.unit))
            W, Ht = blockwise.start(parts.init, data.V, data.M, rank, generator(self.random_state), engine)
            W, Ht = blockwise.unseen_to_zero(W, Ht, data.M, data.seen, engine)
            W, Ht = blockwise.with_known(W, Ht, known, engine)
            result = self._alternate(data.V, data.M, W, Ht, parts, len(known), data.unit, engine)
            state = result.state
            importance = None if data.M is None else engine.map(row_totals, data.M)
            components, code = _normalise(state, importance, rank if self._is_penalised else len(known), None, engine)
            components[: len(known)] = known
            losses, total, squares = engine.sum(totals, data.V, data.M, state.Ht, W=state.W, weighting=state.weighting)
            scale = float(state.weighting.scale)
            objective = comparable(losses, total, parts.loss, scale / state.first_scale)
            objective += penalty_value(parts.penalties, state.W, state.Ht, scale, engine)
            basis = Basis(components.T, code, state.weighting, parts.penalties, result.code_sweeps)
            self.parts_, self.components_, self.n_components_ = parts, components, rank
            self._basis, self._unit, self._noise = basis, data.unit, None
            self.n_features_in_ = data.shape[1]
            self.scale_ = scale * data.unit
            self.thresholds_ = self._in_units_of_X(_thresholds(basis))
            self.objective_ = objective
            self.reconstruction_err_ = sqrt(squares) * data.unit
            self.history_ = _table(result.history)
            self.n_iter_, self.converged_ = len(result.history) - 1, result.converged
            self.n_samples_seen_ = data.shape[0]
            self._stream = None
            for attribute in ("sparse_errors_", "feature_names_in_"):  # of an earlier fit
                if hasattr(self, attribute):
                    delattr(self, attribute)
            self.weights_, self.outliers_ = (lazy_result(self, what, X, weights, engine) for what in _OF_ENTRIES)
        return result._replace(state=state._replace(Ht=[]))  # blocks of an engine that is gone

    def _check_out_of_core(self, parts: Parts, uncertainties: Any) -> None:
        """Refuse what needs all data in one memory."""
        if uncertainties is not None:
            raise IncompatibleError(
                "uncertainties need all data in memory. For data that is not, pass weights=1 / uncertainties**2."
            )
        if isinstance(self.n_components, str):
            raise IncompatibleError("n_components='auto' takes many fits: choose it on a part of X that is in memory.")
        if parts.algorithm is take_start:
            raise IncompatibleError(f"Method {self.method!r} needs all data in memory; 'truncated-cauchy' does not.")
        if isinstance(parts.solver, LossSolver) and not isinstance(parts.solver, SparseError):
            raise IncompatibleError(
                f"solver {parts.solver} needs all samples of a feature at once, and this data is not in memory. Use "
                "solver='hals', 'nesterov' or 'multiplicative'."
            )

    def _lazily(self, what: str, X: Any, weights: Any, uncertainties: Any) -> Any:
        """Return a result for data that is not in memory."""
        check_is_fitted(self)
        if uncertainties is not None:
            raise IncompatibleError("uncertainties need all data in memory.")
        return lazy_result(self, what, as_data(X), as_data(weights), engine_of(X, self.engine, self.device, None))

    def _describe_entries(self, X: Any, weights: Any = None) -> Description:
        """Return what the fit says of entries in memory."""
        with self._engine_for(X) as engine:
            return self._encode_and_describe(self._check_new(X, weights, None, engine), engine)[1].on_host()

    def partial_fit(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Self:
        """Learn from one batch of a stream.

        The first batch is fitted like any data, and should be typical. Every later one is encoded in the components
        so far, and improves them together with a window of the samples before it, at most 2000 or 100 per component,
        which fade by `forget_factor`. Outliers add nothing, samples that are mostly outliers are left out, and so a
        burst of corrupted batches passes by; it raises a `DataQualityWarning`. `weights_` and `outliers_` are those of
        the last batch.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Non-negative data; NaN means missing.
        y : None
            Ignored.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`. What uncertainty is typical of a feature is taken from the first batch.
        """
        parts = self._check_parameters()
        if parts.loss.group == "sample" or parts.algorithm is take_start or isinstance(parts.solver, LossSolver):
            raise IncompatibleError(f"Method {self.method!r} cannot learn from batches; 'truncated-cauchy' can.")
        if is_out_of_core(X, self.engine):
            raise IncompatibleError("partial_fit learns from batches in memory: pass X block by block, or use fit.")
        if not hasattr(self, "components_"):
            self.fit(X, weights=weights, uncertainties=uncertainties)
        with _unchanged_on_failure(self):  # a batch is small: it is worked on by the host wherever it comes from
            left_out = self._learn(self._check_new(X, weights, uncertainties, NumPyEngine(n_threads=1)), parts)
        if left_out.mean() > 0.5:
            warnings.warn(
                f"{type(self).__name__}: {left_out.sum()} of {len(left_out)} samples of this batch are mostly outliers "
                "and were left out. If that goes on, the stream has changed: fit anew.",
                DataQualityWarning,
                stacklevel=2,
            )
        return self

    def _learn(self, data: Observations, parts: Parts) -> Matrix:
        """Improve the components by a batch, and return which samples were left out, (n_samples,)."""
        with NumPyEngine().running() as engine:
            codes, about = self._encode_and_describe(data, engine)
        clean = clean_samples(about.outliers, None if data.M is None else data.M > 0)
        first = self._stream is None
        if clean.any():
            batch = data.in_unit(self._unit, self.components_.dtype, engine, self._noise)
            M = np.ones_like(batch.X) if batch.M is None else batch.M
            fixed = 0 if self.fixed_components is None else len(self.fixed_components)
            method = replace(parts.method, penalties=self._basis.penalties, fixed=fixed, solver=SharedGram())
            kept = ~about.outliers & (M > 0)
            Y, M, Ht, kept = (array[clean] for array in (batch.X, M, codes / self._unit, kept))
            with NumPyEngine().running() as engine:
                stream = self._stream or Stream.start(self._basis)
                self._stream = stream.learn(Y, M, Ht, kept, float(self.forget_factor), method, engine)
            W = self._stream.basis.W
            self.components_ = np.ascontiguousarray(W.T if self._noise is None else W.T * self._noise.astype(W.dtype))
            self._basis = replace(self._stream.basis, W=basis_of(self.components_, self._noise))
            self.scale_ = self._basis.weighting.scale * self._unit
            self.thresholds_ = self._in_units_of_X(_thresholds(self._basis))
        self.weights_, self.outliers_ = about.weights, about.outliers
        self.n_samples_seen_ = len(codes) + (0 if first else self.n_samples_seen_)
        return np.asarray(~clean)

    def transform(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return the codes of samples, (n_samples, n_components).

        Robust: a corrupted sample gets the code of its clean part. Each sample is encoded by itself. Without
        `uncertainties`, those of a model that was fitted with them are the typical ones of its features.
        """
        if is_out_of_core(X, self.engine):
            return self._lazily("codes", X, weights, uncertainties)
        with self._engine_for(X) as engine:
            data = self._check_new(X, weights, uncertainties, engine)
            basis = self._basis.placed(engine.place)
            V, M = data.in_unit(self._unit, basis.W.dtype, engine, self._noise).blocks(engine)
            Ht = basis.encode(V, M, engine, **self._encoding_limits())
            return same_kind(X, engine.join(Ht) * self._unit)

    def inverse_transform(self, X: Any) -> Any:
        """Return the reconstruction of codes (n_samples, n_components), in the space of the data."""
        check_is_fitted(self)
        codes = check_array(to_host(X), dtype=(np.float64, np.float32))
        if codes.shape[1] != self.n_components_:
            raise ValueError(f"Codes must have {self.n_components_} columns, one per component; got {codes.shape[1]}.")
        return same_kind(X, _product(codes, self.components_, np))

    def clean(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return X with outliers and missing entries replaced by the reconstruction, all others untouched.

        A data frame comes back as a data frame.
        """
        if is_out_of_core(X, self.engine):
            return self._lazily("clean", X, weights, uncertainties)
        with self._engine_for(X) as engine:
            data = self._check_new(X, weights, uncertainties, engine)
            codes, about = self._encode_and_describe(data, engine)
            replaced = about.outliers if data.M is None else about.outliers | (data.M == 0)
            cleaned = engine.xp.empty_like(data.X, dtype=engine.xp.result_type(codes.dtype, data.X.dtype))
            V = engine.split(data.X)
            target, *others = (engine.split(array, like=V) for array in (cleaned, replaced, codes))
            engine.fill((target,), _cleaned, *others, V, components=engine.place(self.components_, codes.dtype))
            return like(X, cleaned)

    def outlier_mask(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return True where an observed entry is an outlier, (n_samples, n_features)."""
        if is_out_of_core(X, self.engine):
            return self._lazily("outliers", X, weights, uncertainties)
        with self._engine_for(X) as engine:
            data = self._check_new(X, weights, uncertainties, engine)
            return like(X, self._encode_and_describe(data, engine)[1].outliers)

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the fitted model to a file without pickle, see `robustnmf.persistence`; `robustnmf.load` reads it."""
        from robustnmf.persistence import save

        save(self._on_host(), path, overwrite=overwrite)

    def score_samples(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return how well each sample fits, (n_samples,): minus the mean loss of its entries, higher is better.

        For the Cauchy losses this is the mean log-likelihood of the entries, up to a constant; for the others the loss
        is in units of the data. So models with different scales can be compared. A sample without observed entries
        scores zero.
        """
        if is_out_of_core(X, self.engine):
            return self._lazily("scores", X, weights, uncertainties)
        with self._engine_for(X) as engine:
            about = self._encode_and_describe(self._check_new(X, weights, uncertainties, engine), engine)[1].on_host()
        observed = about.totals > 0
        mean_loss = about.losses / np.where(observed, about.totals, 1)
        log_scale = log(self._basis.weighting.scale) + log(self._unit)  # scale_ itself may vanish for denormal data
        loss = self.parts_.loss
        with np.errstate(over="ignore"):  # squares of data beyond 1e150 leave the range of numbers, and of their means
            squared = np.minimum(np.float64(self.scale_) ** loss.scale_power, 1e300)
            in_units = np.minimum(mean_loss * squared, 1e300)
        return np.where(observed, -in_units - loss.log_scale_coef * log_scale, 0.0)

    def score(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> float:
        """Return the mean of `score_samples`, for model selection."""
        return float(np.mean(self.score_samples(X, weights=weights, uncertainties=uncertainties)))

    def report(self, X: Any, path: Any, **options: Any) -> Any:
        """Write an HTML page about this fit and the data X it was fitted to; see `robustnmf.report.write`."""
        from robustnmf.report import write

        return write(self._on_host(), X if is_on_host(X) else to_host(X), path, **options)

    def _html_repr(self) -> str:
        """Return what a notebook shows; scikit-learn asks for it by this name."""
        from robustnmf.report.summary import summary_html

        return summary_html(self._on_host())

    def _on_host(self) -> Self:
        """Return this model with all its arrays in the memory of the host; itself if they are."""
        if all(is_on_host(value) for value in vars(self).values()):
            return self
        model = copy(self)
        for name, value in vars(self).items():
            setattr(model, name, value if is_on_host(value) else to_host(value))
        return model

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _check_parameters(self) -> Parts:
        """Check the constructor's parameters and return the parts they stand for."""
        if not isinstance(self.max_iter, Integral) or isinstance(self.max_iter, bool) or self.max_iter < 1:
            raise ValueError(f"max_iter must be a positive integer; got {self.max_iter!r}.")
        if not isinstance(self.tol, Real) or isinstance(self.tol, bool) or not 0 <= self.tol < inf:
            raise ValueError(f"tol must be a finite, non-negative number; got {self.tol!r}.")
        if self.callback is not None and not callable(self.callback):
            raise ValueError(f"callback must be a function of one iteration, or None; got {self.callback!r}.")
        for name, value, most in (
            ("alpha_W", self.alpha_W, inf),
            ("l1_ratio", self.l1_ratio, 1.0),
            ("forget_factor", self.forget_factor, 1.0),
        ):
            _check_number(name, value, most)
        if not isinstance(self.alpha_H, str) or self.alpha_H != "same":  # an array has no truth value
            _check_number("alpha_H", self.alpha_H, inf, or_else=" or 'same'")
        return resolve(
            self.method,
            self.preset,
            init=self.init,
            scale=self.scale,
            outliers=self.outliers,
            solver=self.solver,
            schedule=self.schedule,
            image_shape=self.image_shape,
            penalised=self._is_penalised,
            fixed=self.fixed_components is not None,
        )

    @property
    def _alphas(self) -> tuple[float, float]:
        """Weights of the penalties on the codes and on the components."""
        return float(self.alpha_W), float(self.alpha_W if self.alpha_H == "same" else self.alpha_H)

    @property
    def _is_penalised(self) -> bool:
        return any(self._alphas)

    def _penalties(self, parts: Parts, shape: tuple[int, ...], unit: float) -> Penalties:
        """Return the penalties for data that is divided by its unit, and codes with it."""
        (n_samples, n_features), (on_codes, on_components) = shape, self._alphas
        on_codes, on_components = on_codes * n_features, on_components * n_samples
        lasso, ridge = float(self.l1_ratio), 1 - float(self.l1_ratio)
        # The loss is divided by unit**2, and so must be what is added to it.
        codes = ElasticNet(on_codes * lasso / unit, on_codes * ridge)
        components = ElasticNet(on_components * lasso / unit / unit, on_components * ridge / unit / unit)
        return replace(parts.penalties, codes=codes, basis=components)

    def _run(self, data: Observations, rank: int, parts: Parts, known: Matrix, unit: float, engine: Engine) -> Result:
        """Draw the start and run Algorithm 2."""
        V, M = data.blocks(engine)
        start = draw_start(parts.init, data.X, data.M, rank, generator(self.random_state))
        W, H = check_start(start, data, rank, engine)
        put_known(W, H, known)
        Ht = engine.split(engine.place(np.ascontiguousarray(H.T)), like=V)
        return self._alternate(V, M, W, Ht, parts, len(known), unit, engine)

    def _alternate(
        self, V: Blocks, M: Blocks | None, W: Matrix, Ht: Blocks, parts: Parts, fixed: int, unit: float, engine: Any
    ) -> Result:
        """Run Algorithm 2; what the user sees of it is in the units of X."""

        def in_units_of_X(iteration: Iteration) -> Iteration:
            return iteration._replace(scale=iteration.scale * unit)

        method = replace(parts.method, fixed=fixed)
        if isinstance(method.scale, FixedScale):
            # In units of the data it may overflow or vanish; so far out the weights are all 1, or the floor counts.
            number = np.finfo(W.dtype)
            scale = min(max(method.scale.value / unit, float(number.tiny)), float(number.max) ** 0.5)
            method = replace(method, scale=FixedScale(scale))
        options: dict[str, Any] = {}
        if self.checkpoint is not None:
            options["checkpoint"] = Checkpoint(self.checkpoint, fingerprint(self, V, M, engine))
        with tqdm(total=self.max_iter, disable=not self.verbose, desc=type(self).__name__) as bar:

            def watch(iteration: Iteration) -> bool:
                iteration = in_units_of_X(iteration)
                bar.update(iteration.n_iter - bar.n)
                bar.set_postfix_str(
                    f"objective {iteration.objective:.6g}, scale {iteration.scale:.3g}, "
                    f"outliers {iteration.outlier_share:.1%}"
                )
                return self.callback is not None and bool(self.callback(iteration))

            result = parts.algorithm(
                V,
                M,
                engine.place(W),
                Ht,
                method,
                engine,
                max_iter=self.max_iter,
                tol=self.tol,
                scale_floor=float(np.finfo(W.dtype).eps),
                callback=watch,
                **options,
            )
        return result._replace(history=[in_units_of_X(iteration) for iteration in result.history])

    def _sparse_errors(self, data: Observations, codes: Matrix) -> Matrix:
        """Return the error matrix S of RNMF-L1 in units of X, zero where the data is missing."""
        noise = 1.0 if self._noise is None else self._noise
        X, M = to_host(data.X), to_host(data.M)
        S = noise * sparse_error((X - _product(codes, self.components_, np)) / noise, self.scale_, np)
        return np.asarray(S if M is None else np.where(M > 0, S, 0))

    def _encoding_limits(self) -> dict[str, Any]:
        # Codes are compared coordinate by coordinate, which is stricter than the objective: ten times its tolerance.
        return {"max_iter": self.max_iter, "tol": 10 * self.tol}

    @contextmanager
    def _engine_for(self, X: Any) -> Iterator[Engine]:
        """Run the engine for new data."""
        check_is_fitted(self)
        with engine_for(X, self.engine, self.device).running() as engine:
            yield engine

    def _check_new(self, X: Any, weights: Any, uncertainties: Any, engine: Engine) -> Observations:
        check_is_fitted(self)
        if uncertainties is not None:
            if self._noise is None:
                raise ValueError("This model was fitted without uncertainties: fit it with them, or leave them out.")
            _, weights = check_uncertainties(uncertainties, X, weights, self._noise)
        return check_observations(self, X, weights, engine, reset=False)

    def _in_units_of_X(self, residuals: Matrix) -> Matrix:
        """Return magnitudes (n_features,) that count in the unit of the data, and its noise."""
        with np.errstate(over="ignore"):  # a threshold beyond the largest number cuts nothing
            in_units = residuals * self._unit
        return in_units if self._noise is None else in_units * self._noise.astype(in_units.dtype)

    def _choose_rank(self, data: Observations, weights: Any, uncertainties: Any) -> int:
        """Return the number of components, by cross-validation if it is to be found."""
        if not isinstance(self.n_components, str) or self.n_components != "auto":
            return check_rank(self.n_components, data.X, type(self).__name__)
        from robustnmf.selection import auto_rank

        X, M = to_host(data.X), to_host(data.M)
        X = X if M is None else np.where(M > 0, X, np.nan)
        # With uncertainties, the weights of the data hold those too; the search makes its own of what the user gave.
        weights = M if uncertainties is None else weights
        seed = self.random_state if isinstance(self.random_state, Integral) else 0
        estimator = clone(self).set_params(n_components=1, verbose=0, callback=None, checkpoint=None)
        options: dict[str, Any] = {"weights": weights, "uncertainties": uncertainties}
        return int(auto_rank(X, estimator=estimator, random_state=seed, **options).chosen)

    def _encode_and_describe(self, data: Observations, engine: Engine) -> tuple[Array, Description]:
        """Return the codes of new samples, and what the fit says of their entries."""
        basis = self._basis.placed(engine.place)
        scaled = data.in_unit(self._unit, basis.W.dtype, engine, self._noise)
        Ht, about = self._describe(scaled, basis, engine, may_overwrite=scaled.X is not data.X)
        return Ht * self._unit, about

    def _describe(
        self, data: Observations, basis: Basis, engine: Engine, *, may_overwrite: bool
    ) -> tuple[Array, Description]:
        """Return codes of data in its unit, (n, r), and what the basis says of the entries.

        If the data `may_overwrite` itself, the weights take its place: it can be as large as memory allows.
        """
        xp = engine.xp
        V, M = data.blocks(engine)
        Ht = basis.encode(V, M, engine, **self._encoding_limits())
        weights = data.X if may_overwrite else xp.empty_like(data.X)
        outliers = xp.empty_like(data.X, dtype=xp.bool)
        sums = basis.describe(V, M, Ht, engine.split(weights, like=V), engine.split(outliers, like=V), engine)
        return engine.join(Ht), Description(weights, outliers, *(engine.join(blocks) for blocks in sums))

    def _warn(self, result: Result, stacklevel: int) -> None:
        """Tell the user, at the line of their call, what is doubtful about a fit."""
        if result.warning:
            message = f"{type(self).__name__}: {result.warning}"
            warnings.warn(message, DataQualityWarning, stacklevel=stacklevel)
        if result.converged or result.stopped:
            return
        known = [iteration.relative_change for iteration in result.history if iteration.relative_change < inf]
        change = f"the relative change of the objective was still {known[-1]:.1e}, and " if known else ""
        warnings.warn(
            f"{type(self).__name__} did not converge in {self.max_iter} iterations: {change}tol is {self.tol:.1e}. "
            "Increase max_iter, or tol if the result is good enough.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


class TruncatedCauchyNMF(RobustNMF):
    """Truncated Cauchy NMF: `RobustNMF` with ``method="truncated-cauchy"``.

    Every entry gets the weight 1 / (1 + (residual / scale)**2), or 0 if it is an outlier. See `RobustNMF` for the
    parameters and attributes.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf import TruncatedCauchyNMF
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((30, 2)) @ rng.random((2, 20))
    >>> X[3, 5] = 100.0
    >>> model = TruncatedCauchyNMF(n_components=2, random_state=0).fit(X)
    >>> bool(model.outliers_[3, 5])
    True
    """

    method = "truncated-cauchy"

    def __init__(
        self,
        n_components: int | str = 2,
        *,
        preset: str = "default",
        init: Any = "auto",
        scale: Any = "auto",
        outliers: Any = "auto",
        solver: Any = "auto",
        schedule: Any = "auto",
        image_shape: tuple[int, int] | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: Any = None,
        alpha_W: float = 0.0,
        alpha_H: float | str = "same",
        l1_ratio: float = 0.0,
        fixed_components: Any = None,
        forget_factor: float = 0.95,
        engine: Any = "auto",
        device: str | None = None,
        checkpoint: Any = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_components = n_components
        self.preset = preset
        self.init = init
        self.scale = scale
        self.outliers = outliers
        self.solver = solver
        self.schedule = schedule
        self.image_shape = image_shape
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.alpha_W = alpha_W
        self.alpha_H = alpha_H
        self.l1_ratio = l1_ratio
        self.fixed_components = fixed_components
        self.forget_factor = forget_factor
        self.engine = engine
        self.device = device
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.callback = callback


@contextmanager
def _unchanged_on_failure(estimator: Any) -> Iterator[None]:
    """Restore the attributes of an estimator if fitting it fails or is interrupted."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def data_unit(X: Array, noise: Matrix | None, engine: Engine) -> float:
    """Return the largest power of two that is not above the median of the positive entries, in units of the noise.

    Data is divided by it so that squares neither overflow nor vanish, whatever the unit of X. A power of two divides
    without rounding; a median is not moved by a minority of outliers, however large. Of many entries some will do.
    """
    xp = engine.xp
    X = X if noise is None else X / xp.asarray(noise, dtype=X.dtype, device=device(X))
    some = xp.reshape(X, (-1,))[:: max(1, size(X) // UNIT_ENTRIES)]
    positive = some[some > 0]
    if not size(positive):
        positive = X[X > 0]
    if not size(positive):
        return 1.0
    return ldexp(1.0, frexp(float(engine.quantile([positive[:, None]], None, 0.5)))[1] - 1)


def _check_number(name: str, value: Any, most: float, or_else: str = "") -> None:
    """Refuse what is not a finite number from 0 to `most`."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= most or value == inf:
        limit = "non-negative and finite" if most == inf else f"between 0 and {most:g}"
        raise ValueError(f"{name} must be a number, {limit}{or_else}; got {value!r}.")


def _cleaned(replaced: Array, codes: Array, X: Array, *, components: Array, xp: Namespace) -> tuple[Array]:
    """Return a block of data with some entries replaced by their reconstruction."""
    return (xp.where(replaced, _product(codes, components, xp), X),)


def _objective(basis: Basis, Ht: Matrix, about: Description, first_scale: float) -> float:
    """Return the objective of encoded training data, as the history has it."""
    weighting = basis.weighting
    fit = comparable(
        float(about.losses.sum()), float(about.totals.sum()), weighting.loss, weighting.scale / first_scale
    )
    return fit + penalty_value(basis.penalties, basis.W, [Ht], float(weighting.scale), NumPyEngine(n_threads=1))


def _thresholds(basis: Basis) -> Matrix:
    """Return the magnitude beyond which an entry of each feature has weight zero, by the rule or by the loss."""
    by_loss = basis.weighting.scale * sqrt(getattr(basis.weighting.loss, "cap", inf))
    by_rule = inf if basis.weighting.cut is None else basis.weighting.cut
    return np.broadcast_to(np.minimum(by_rule, by_loss), basis.W.shape[:1]).astype(basis.W.dtype)


def _warn_of_empty_blocks(data: Data, name: str) -> None:
    """Warn of samples and features that hold nothing: their codes and components will be zero."""
    empty = int(np.count_nonzero(data.seen == 0))
    for count, what, result in ((data.n_empty, "sample", "codes"), (empty, "feature", "components")):
        if count:
            warnings.warn(
                f"{name}: {count} {what}(s) have no observed entry; their {result} are set to zero. Drop them to "
                "silence this warning.",
                UserWarning,
                stacklevel=5,
            )


def _importance(data: Observations, state: State, engine: Engine) -> Blocks | None:
    """Return the total weight of each sample, in blocks as the codes; None if all are the same."""
    if data.M is None:
        return None
    total = engine.xp.sum(data.M, axis=1, dtype=engine.xp.float64)
    return engine.split(engine.place(total), like=state.Ht)


def _normalise(
    state: State, importance: Blocks | None, kept: int, noise: Matrix | None, engine: Any
) -> tuple[Matrix, Array]:
    """Return the components, W' in units of X with maximum 1 in each row but the first `kept`, and their typical code.

    `noise` is what the features were divided by, (n_features,). A sample counts by its `importance`, (n,) in all.
    """
    W = to_host(state.W)
    in_units = W if noise is None else W * noise[:, None].astype(W.dtype)
    largest = in_units.max(axis=0)
    largest[largest == 0] = 1
    largest[:kept] = 1
    components = np.ascontiguousarray((in_units / largest).T)
    code = typical_code(state.W, state.Ht, importance, engine)
    return components, code * engine.place(largest, state.W.dtype)


def _product(codes: Array, components: Array, xp: Namespace) -> Array:
    """Return codes @ components; of data at the end of the range of numbers it is limited to that range."""
    with np.errstate(over="ignore"):
        product = codes @ components
    return xp.clip(product, max=float(xp.finfo(product.dtype).max))


def _table(history: list[Iteration]) -> dict[str, Matrix]:
    """Return the history as one array per column."""
    columns = ("objective", "scale", "outlier_share", "seconds", "relative_change")
    return {name: np.array([getattr(iteration, name) for iteration in history]) for name in columns}


def like(X: Any, values: Array) -> Any:
    """Return values as a data frame with the labels of X, if X is one, or as an array of its library."""
    if is_on_host(X):
        values = to_host(values)
    if hasattr(X, "columns") and hasattr(X, "index"):  # pandas
        return type(X)(values, index=X.index, columns=X.columns)
    if hasattr(X, "columns") and hasattr(X, "schema"):  # polars
        return type(X)(values, schema=list(X.columns), orient="row")
    return same_kind(X, values)
