"""The scikit-learn face: the only file that turns X into V = X' and W into ``components_``."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from math import inf, log, prod
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from robustnmf.algorithm.continuing import PreviousFit
from robustnmf.algorithm.encoding import Description, basis_of, noise_in_units, outliers_of_block
from robustnmf.algorithm.fit import (
    Fitted,
    can_learn_by_tiles,
    check_can_be_blocks,
    check_codes,
    choose_rank,
    describe,
    encoding_limits,
    fit,
    improve_fit,
    is_penalised,
    thresholds,
)
from robustnmf.algorithm.halfquadratic import Callback, Result, take_start
from robustnmf.algorithm.least_squares import DAMAGES, Comparison
from robustnmf.algorithm.streaming import Stream, clean_samples
from robustnmf.algorithm.undetermined import Factors, undetermined_entries
from robustnmf.baselines.starts import refuse_gaps
from robustnmf.data import mask_quality, quality
from robustnmf.data.blocks import Data, Observations, data_elsewhere, data_in_memory
from robustnmf.data.lazy_results import LazyMatrix, is_lazy_result
from robustnmf.data.lazy_results import result as lazy_result
from robustnmf.data.out_of_core import as_data, engine_of, in_memory, is_out_of_core, stored_weights
from robustnmf.data.repeated_values import mark_values, without_values
from robustnmf.data.sparse import as_sparse, is_sparse, sparse_of
from robustnmf.engines import Engine, NumPyEngine, StreamingEngine, engine_for
from robustnmf.engines.protocol import block_function
from robustnmf.errors import DataQualityWarning, IncompatibleError, OutOfRangeError
from robustnmf.formats.alignment import (
    aligned_input,
    axes_of,
    check_grid,
    check_order,
    features_of,
    known_names,
    put_back,
    values_of,
)
from robustnmf.formats.containers import put_into, taken_in
from robustnmf.formats.device_rows import UnchangedRows
from robustnmf.formats.kinds import InMemory, Labelled, Numbers
from robustnmf.formats.labelled_matrix import Input, LabelledMatrix
from robustnmf.formats.sparse_rows import SparseRows
from robustnmf.kernels.predictions import predictions
from robustnmf.methods import METHODS, Parts, resolve
from robustnmf.model.losses import Loss
from robustnmf.model.noise import NOISES, Noise
from robustnmf.model.scales import reads
from robustnmf.persistence import save
from robustnmf.persistence.contents import OF_TRAINING, storable
from robustnmf.solvers import SharedGram, Solver
from robustnmf.solvers.sparse_error import sparse_error
from robustnmf.utils.arrays import (
    Array,
    Namespace,
    dtype_of,
    is_foreign,
    is_on_host,
    is_sparse_tensor,
    same_kind,
    to_host,
)
from robustnmf.utils.names import (
    Auto,
    EngineName,
    FeatureScalingName,
    InitName,
    LossName,
    MethodName,
    NoiseName,
    OutliersName,
    PresetName,
    RepeatedValuesName,
    SampleScalingName,
    ScaleName,
    ScheduleName,
    SolverName,
    ZerosName,
)
from robustnmf.utils.process_state import ignored_warnings
from robustnmf.utils.progress import is_silenced
from robustnmf.utils.scikit_learn_words import with_hints

Matrix = NDArray[Any]

# With a smaller share of rejected entries, nothing is said of their part in the sum of squares.
FEWEST_REJECTED = 0.003


class NonNegativeInput(BaseEstimator):
    """What scikit-learn is told of all estimators here: data is non-negative, may have gaps and be sparse."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = tags.input_tags.allow_nan = tags.input_tags.sparse = True
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)


def _learns_from_batches(estimator: Any) -> bool:
    """Return whether `partial_fit` is there for the method; parameters that are wrong are left to it to refuse."""
    try:
        parts = estimator._check_parameters()
    except ValueError:
        return True
    if parts.loss.group == "sample" or parts.algorithm is take_start or not parts.method.solver.solves_least_squares:
        raise AttributeError(f"Method {estimator.method!r} cannot learn from batches; 'truncated-cauchy' can.")
    return True


@storable
class RobustNMF(NonNegativeInput, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Non-negative matrix factorisation of data that is partly wrong or missing.

    Finds non-negative codes and components whose product approximates X, gives every entry of X a weight, and rejects
    entries that do not fit. NaN in X means missing.

    Parameters
    ----------
    n_components : int or "auto"
        Number of components. More than ``min(n_samples, n_features)`` can explain anything, errors included, unless
        some are known (`fixed_components`) or penalised. "auto" finds it by cross-validation, which takes many fits,
        see `robustnmf.selection.auto_rank`; if the data is not in memory, it uses some of the samples.
    method : str
        The model, one of `robustnmf.METHODS`.
    preset : {"default", "published"}
        What "auto" stands for below. "published" runs the algorithm of the paper to the letter: random start, Nagy's
        scale on all residuals, the three-sigma rule, Nesterov's method.
    loss : "auto", a name or object
        What is minimised, "auto" is that of the method: "squared", "absolute", "sample-norm", "huber", "hypersurface",
        "correntropy", "cauchy", or a loss of your own; see `robustnmf.model.losses`.
    init : "auto", {"median", "random", "published", "nndsvd", "nndsvda", "nndsvdar"}, (codes, components) or object
        Where the fit starts, see `robustnmf.algorithm.initializers`. A pair of arrays, (n_samples, n_components) and
        (n_components, n_features) in units of X, is the start itself.
    scale : "auto", {"mixture", "nagy", "mad", "rms", "first"}, float or object
        How the noise scale is found, see `robustnmf.model.scales`. A number fixes it (the paper's gamma, in
        units of X).
    outliers : "auto", a name, float or object
        Which entries are rejected: "none", "mixture", "mad", "mad-feature", "three-sigma", "three-sigma-feature",
        "spread", or for images "mrf" and "median-filter"; see `robustnmf.model.outliers` and `robustnmf.model.spatial`.
        A number is the paper's sigma: entries whose residual exceeds ``scale * sqrt(sigma)`` are rejected. With scale
        and sigma fixed and a plain schedule the objective falls monotonically.
    solver : "auto", a name or object
        How the factors are improved: "hals", "nesterov" or "multiplicative" for every model, others for some; see
        `robustnmf.solvers`.
    schedule : "auto", {"staged", "plain"} or object
        How the fit proceeds: "plain" repeats Algorithm 2; "staged", what "auto" stands for with the Cauchy models of
        the default preset, chooses between two initial stages, takes scale and thresholds from entries that it holds
        out, and stops before it follows the noise; see `robustnmf.algorithm.staged`.
    noise : "auto", {"constant", "poisson", "proportional"}, Noise or None
        How the width of the noise grows with the size of an entry. A staged fit decides what is wrong in units of that
        width, which is estimated for each feature, and fits the rest by least squares. "auto" finds how it grows; None
        judges and weights entries by the loss alone. See `robustnmf.model.noise`.
    weight_by_noise : "auto" or bool
        Whether right entries are weighted by one over their expected variance, which is more efficient where noise
        differs; otherwise they count alike, as in plain NMF. "auto" weights them with ``noise="poisson"``: the variance
        of a count is its expected value, and the fit is then the robust relative of NMF with the Kullback-Leibler
        divergence. With `uncertainties`, which say the same, "auto" does not.
    feature_scaling : {"auto", "robust"} or None
        What features are divided by. "robust" is the median positive entry of each: features then count alike, and
        components and codes are in units of X all the same. "auto" does that only to find what is wrong, where sizes of
        features differ and it leaves smaller residuals; least squares is that of X.
    sample_scaling : {"total"} or None
        What samples are divided by, for cells or documents of very different sizes. "total" is the total of each
        relative to the typical one, where gross errors hardly count: all samples then count alike. Codes are in units
        of X all the same, and ``codes @ components_`` approximates X; `noise_`, `thresholds_`, `scale_`,
        `reconstruction_err_` and penalties are those of the divided samples. None leaves them as they are, as plain NMF
        does; weights of counts (``noise="poisson"``) need no scaling. It has no effect with `uncertainties`, which say
        how much each sample counts.
    zeros : {"data", "missing"}
        What entries of a sparse X stand for that are not stored: zeros, or missing values, such as ratings that nobody
        gave.
    repeated_values : {"auto", "data"}
        What a value is that far too many entries share. With "auto", a trial fit leaves them out, and if the other
        entries do not predict the value, entries that have it are outliers: something of one colour covers parts of
        images, a detector saturates, or a number stands for missing. A warning names the value. "data" takes every
        value for data.
    image_shape : (rows, columns) or None
        Shape of the image that each sample is, for the rules "mrf" and "median-filter".
    max_iter : int
        Maximum number of iterations.
    tol : float
        Stop when the objective changes three times in turn by less than `tol` times itself and a thousandth of its fall
        so far, or times the fall if that is less; with ``preset="published"`` once, by less than `tol` times the fall,
        eq. (3-9). The objective of a staged fit is the mean Cauchy loss of entries held out of it; it stops when that
        falls by less than `tol` times itself.
    n_init : int
        Number of starts, each with a seed drawn from `random_state`; the fit whose loss is lowest is kept. A fit takes
        that many times as long. A `callback` that ends a fit ends the others too.
    warm_start : bool
        Whether `fit` starts from the `components_` of the last one, and from the codes that the samples have in them,
        rather than from `init`; see Notes. The first fit starts from `init`.
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
        any, are learnt. One that is zero everywhere stays so.
    forget_factor : float
        What is left of the influence of earlier batches after each `partial_fit`, between 0 and 1.
    engine : {"auto", "numpy", "sparse", "torch", "stream", "dask"} or object
        What does the work: NumPy and Numba on the processor, "sparse" for sparse matrices that stay sparse, there or on
        a GPU, Torch on a GPU, or for data that is larger than memory "stream", which reads it block by block, and
        "dask", the cluster of the active Dask client, else threads. "auto" is Torch for data on a GPU or a `device`
        that is one, "sparse" for sparse matrices of more than 2**24 entries, on a GPU 2**28, of which at most 30 % are
        stored (others are made dense), Dask for Dask arrays, and "stream" for data on disk (`numpy.memmap`, HDF5, Zarr)
        that is larger than a quarter of the memory. Dense data of 2**23 entries or more, of which some samples are
        enough to learn the components, is worked on by tiles, which takes less memory than the data has; "numpy" keeps
        copies of it, which is faster. Or a `DaskEngine`, `SparseEngine` or `StreamingEngine` of `robustnmf.engines`.
    device : str, torch.device or None
        Where the work is done: "cpu", "cuda", "cuda:1", "mps". None is where X is. With Dask, "cuda" is the GPU of
        each worker.
    checkpoint : path or None
        Folder in which the state of the fit is saved every few iterations or minutes; `fit` with the same data and
        parameters goes on from there, and ends where it would have ended.
    verbose : int
        1 shows the progress, with objective, scale and share of outliers: as a line that changes on a terminal or in a
        notebook, as a few lines elsewhere. If `logging` is set up for messages of level INFO of the logger
        "robustnmf", they go there instead, whatever `verbose` is.
    callback : callable or None
        Called with every `robustnmf.algorithm.halfquadratic.Iteration`; returning True ends the fit. Iterations are
        counted anew for each start, and if the fit is made again: without values that turned out to be wrong wherever
        they occur, or in double precision, because the residuals of large data turned out to be tiny.

    Attributes
    ----------
    components_ : ndarray (n_components, n_features)
        Non-negative components, each with maximum 1 (or 0 if it is not used). With penalties they are as large as the
        penalties want them; known ones are as they were given.
    scale_ : float
        Scale of clean residuals, in units of X.
    thresholds_ : ndarray (n_features,)
        Residual magnitude beyond which an entry is rejected; infinite if nothing is.
    rejected_values_ : ndarray (n_values, n_features) or None
        Values of each feature that are outliers wherever they occur, NaN where a value is not; see `repeated_values`.
        None if there is no such value.
    comparison_ : robustnmf.algorithm.least_squares.Comparison or None
        How the fit compares with least squares on all entries. ``comparison_.takes_all`` says whether that was taken,
        because it explains what looked wrong; ``comparison_.reason`` says it in words. None if it was not compared.
    noise_ : robustnmf.model.noise.NoiseModel or None
        The noise by which entries were judged, in units of X: ``noise_.width(predicted, numpy)`` is the width of
        entries with these predictions, and an entry is wrong beyond ``noise_.threshold`` widths. None if the fit did
        not judge by it.
    outliers_ : ndarray of bool (n_samples, n_features)
        True where an observed entry of the training data was rejected.
    weights_ : ndarray (n_samples, n_features)
        Weight of every training entry relative to that of a perfect fit: 0 for outliers and missing entries. User
        weights are not multiplied in. If the data is worked on by tiles (see `engine`), rows are computed from X when
        they are asked for, ``weights_[:100]``. X must not be changed until then; an error says so if it was.
        ``numpy.asarray(weights_)`` computes all rows.
    objective_ : float
        Objective (2-4) at the returned codes and components; where the scale is estimated, half the negative
        log-likelihood up to a constant.
    history_ : dict of ndarray
        Per iteration, the start first: "objective", "scale", "outlier_share", "seconds", "relative_change". A staged
        fit lists both initial stages, one after the other.
    reconstruction_err_ : float
        Frobenius norm of the residual over observed entries that are not outliers.
    sparse_errors_ : array (n_samples, n_features)
        Sparse error matrix S of X ~ codes @ components + S, for the method "rnmf-l1" only.
    n_iter_ : int
        Iterations made; 1 for methods that do not iterate.
    converged_ : bool
        Whether the stopping rule was met.
    parts_ : robustnmf.methods.Parts
        The parts that "auto" and the names stood for.
    n_components_ : int
        Number of components.
    n_samples_seen_ : int
        Samples seen by `fit`, and by all calls of `partial_fit` since.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of str
        Names of the features, if X had any.
    input_ : robustnmf.formats.Input or None
        How the file that X comes from was read (`options`), and what is known of its features (`features`: names,
        units, grid), if X is a `LabelledMatrix` of `robustnmf.formats.read_table`.

    Notes
    -----
    The codes that `fit_transform` returns are those of `transform`: with the components, scale and thresholds fixed,
    each sample is encoded by itself, so the same sample always gets the same code, but for rounding.

    ``warm_start=True`` suits data that has grown or changed, and other parameters, such as another `method`. Samples
    may be others, and of any number; features must be the same. Another number of features, other names of them, or
    another `n_components` raise a ValueError, as a start of that shape is of no use; ``n_components="auto"`` keeps the
    number that was found. There is one start, so `n_init` and `random_state` have no effect. Noise, scale and outliers
    are found anew, which takes most of the time of a fit: after small changes, `refit` is faster. A component that the
    last fit did not use, full of zeros, stays unused. Models that `robustnmf.load` and `compact` return start from
    their components too; a `clone` starts anew.

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

    @with_hints
    def __init__(
        self,
        n_components: int | Auto = 2,
        *,
        method: MethodName = "truncated-cauchy",
        preset: PresetName = "default",
        loss: Auto | LossName | Loss = "auto",
        init: Auto | InitName | tuple[Any, Any] | Callable[..., Any] = "auto",
        scale: Auto | ScaleName | float | Callable[..., Any] = "auto",
        outliers: Auto | OutliersName | float | Callable[..., Any] = "auto",
        solver: Auto | SolverName | Solver = "auto",
        schedule: Auto | ScheduleName | Callable[..., Any] = "auto",
        noise: NoiseName | Noise | None = "auto",
        weight_by_noise: Auto | bool = "auto",
        feature_scaling: FeatureScalingName | None = "auto",
        sample_scaling: SampleScalingName | None = None,
        zeros: ZerosName = "data",
        repeated_values: RepeatedValuesName = "auto",
        image_shape: tuple[int, int] | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        n_init: int = 1,
        warm_start: bool = False,
        random_state: Any = None,
        alpha_W: float = 0.0,
        alpha_H: float | Literal["same"] = "same",
        l1_ratio: float = 0.0,
        fixed_components: Any = None,
        forget_factor: float = 0.95,
        engine: EngineName | Engine = "auto",
        device: Any = None,
        checkpoint: Any = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.preset = preset
        self.loss = loss
        self.init = init
        self.scale = scale
        self.outliers = outliers
        self.solver = solver
        self.schedule = schedule
        self.noise = noise
        self.weight_by_noise = weight_by_noise
        self.feature_scaling = feature_scaling
        self.sample_scaling = sample_scaling
        self.zeros = zeros
        self.repeated_values = repeated_values
        self.image_shape = image_shape
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.warm_start = warm_start
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

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        model = METHODS.get(self.method) if isinstance(self.method, str) else None
        if model is not None and model.default.algorithm is take_start:
            tags.input_tags.allow_nan = False  # it compares whole samples
        return tags

    @with_hints
    def fit(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Self:
        """Learn the components of X.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing. Large sparse matrices of SciPy, sparse tensors of Torch and sparse
            chunks of Dask arrays stay sparse, see `engine`; their `outliers_` are sparse too, and `weights_` are
            computed when rows of them are asked for. Data may be in a file: an array of h5py or zarr, a sparse group of
            HDF5, X of an AnnData object that is backed. Tables of pyarrow, matrices of xarray and lazy frames of polars
            are taken into memory, and bfloat16 into single precision.
        y : None
            Ignored.
        weights : array-like (n_samples, n_features) or None
            Non-negative weight of every entry; an entry of weight zero has no influence whatever it holds. If both
            weights and X have names (a data frame, a table of pyarrow, a matrix of xarray, a `LabelledMatrix`), they
            are put in the order of X by name. Of a sparse matrix, weights that are not stored are zero.
        uncertainties : array-like (n_samples, n_features) or None
            Standard deviation of the noise of every entry, positive. Features are then compared in units of their
            typical uncertainty, the median, and entries weighted by how far they differ from it; `scale_` is in those
            units too. They are put in the order of X by name, like weights. A `LabelledMatrix` may have uncertainties
            of its own: these are used where the given ones are NaN, and if none are given and it has one for each
            observed entry.

        Returns
        -------
        self
            The fitted estimator.
        """
        X, weights, uncertainties = self._aligned(X, weights, uncertainties, training=True)
        _, result, findings = self._fit(X, weights, uncertainties)
        self._warn(result, findings, stacklevel=4)  # `with_hints` is between
        return self

    @overload
    def fit_transform(self, X: InMemory, y: Any = ..., *, weights: Any = ..., uncertainties: Any = ...) -> Matrix: ...
    @overload
    def fit_transform(self, X: Any, y: Any = ..., *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    @with_hints
    def fit_transform(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Learn the components of X and return its codes, (n_samples, n_components).

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        y : None
            Ignored.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray (n_samples, n_components)
            The codes, as an array of the library of X.
        """
        X, weights, uncertainties = self._aligned(X, weights, uncertainties, training=True)
        codes, result, findings = self._fit(X, weights, uncertainties)
        self._warn(result, findings, stacklevel=5)  # one more than `fit`: scikit-learn wraps this method
        return self._lazily("codes", X, weights, uncertainties) if codes is None else same_kind(X, codes)

    def _fit(self, X: Any, weights: Any, uncertainties: Any) -> tuple[Array | None, Result, list[str]]:
        """Learn the components of X; return its codes, if they are in memory, what the run came to, and warnings."""
        parts = self._check_parameters()
        X = in_memory(X, self.engine)
        if is_out_of_core(X, self.engine):
            return None, *self._fit_elsewhere(X, weights, uncertainties, parts)
        zeros = "data" if uncertainties is not None else self._zeros_of_engine
        how: dict[str, Any] = {"zeros": zeros, "by_tiles": can_learn_by_tiles(self, values_of(X), parts)}
        with (
            _unchanged_on_failure(self),
            engine_for(values_of(X), self.engine, self.device, **how).running() as engine,
        ):
            names = getattr(self, "feature_names_in_", None)
            data = data_in_memory(self, X, weights, uncertainties, engine=engine, reset=True)
            if PreviousFit.of(self) is not None:
                _check_same_names(names, getattr(self, "feature_names_in_", None))
            _check_can_be_sparse(self, data, parts)
            rank = choose_rank(self, data, X, weights, uncertainties, engine)
            fitted = fit(self, data, rank, parts, engine)
            self.input_ = Input.of(X)
            codes = self._take_in_memory(fitted, data, X, weights, uncertainties, engine)
            if parts.method.solver.models_sparse_errors:
                self.sparse_errors_ = same_kind(values_of(X), self._sparse_errors(data.whole, to_host(codes)))
            findings = self._findings(X, data, fitted, engine, codes)
        return codes, fitted.result._replace(warning=_warning_of(fitted)), findings

    def _take_in_memory(
        self, fitted: Fitted, data: Data, X: Any, weights: Any, uncertainties: Any, engine: Engine
    ) -> Array:
        """Set the attributes of a fit to data in memory, and return its codes."""
        assert fitted.about is not None
        self._take(fitted)
        mark_values(fitted.about.outliers, data, self.rejected_values_, engine)
        self._take_entries(fitted.about, X, weights, uncertainties)
        return self._codes_in_units(fitted.codes, data, engine)

    def _fit_elsewhere(self, X: Any, weights: Any, uncertainties: Any, parts: Parts) -> tuple[Result, list[str]]:
        """Learn the components of data that is not in memory; return what the run came to, and warnings."""
        check_can_be_blocks(self, parts)
        labelled = X
        X, weights, uncertainties = self._as_data(X, weights, uncertainties)
        runner = engine_of(X, self.engine, self.device, self.checkpoint)
        with _unchanged_on_failure(self), runner.running() as engine:
            data = data_elsewhere(X, weights, uncertainties, engine, type(self).__name__, labelled)
            rank = choose_rank(self, data, X, weights, uncertainties, engine)
            fitted = fit(self, data, rank, parts, engine)
            self._take(fitted)
            self.n_features_in_ = self.components_.shape[1]
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
            self.input_ = Input.of(labelled)
            names = known_names(axes_of(labelled)[1]) if self.input_ is None else self.input_.features.names
            if names is not None:
                self.feature_names_in_ = np.array(list(names), dtype=object)
            self.weights_, self.outliers_ = (
                lazy_result(self, what, X, weights, uncertainties, engine) for what in ("weights", "outliers")
            )
            findings = self._findings(X, data, fitted, engine)
        return fitted.result, findings

    def _findings(self, X: Any, data: Data, fitted: Fitted, engine: Engine, codes: Array | None = None) -> list[str]:
        """Return what the user should know of the data, and of what the fit rejects; nothing of one of many fits."""
        if is_silenced():
            return []
        sample_names, feature_names = map(known_names, axes_of(X))
        feature_names = getattr(self, "feature_names_in_", feature_names)
        others = without_values(data, fitted.rejected_values, engine)
        sample = quality.Sample.of(others, engine, feature_names, sample_names)
        scaled = self.feature_scaling is not None
        # Components that are known may be many.
        most = inf if self.fixed_components is None else min(data.shape)
        found = quality.findings(sample, data, int(min(self.n_components_, most)), features_are_scaled=scaled)
        if fitted.result.pattern is not None and (fitted.about is None or fitted.about.outliers.sum() > 0):
            found.append(mask_quality.rejected_with_pattern(sample, *fitted.result.pattern))
        # Of data that is not in memory the outliers are not known yet. Other rules than that of the mixture reject a
        # share of clean data by design.
        if fitted.about is not None and reads(fitted.parts.outliers) == "mixture":
            factors = (codes, fitted.components)
            how: dict[str, Any] = {"factors": factors, "fit_warns": fitted.result.warning is not None}
            how["sizes_count_alike"] = self.feature_scaling == "robust"
            how["unexplained"] = _borne_unexplained(fitted.result.comparison)
            found += mask_quality.rejected(sample, data, fitted.about.outliers, engine, found=found, **how)
            if data.counts_alike(engine):
                found += _undetermined(replace(sample, known=sample.without(found).known), fitted, codes)
        if fitted.rejected_values is not None:
            found.append(mask_quality.rejected_values(fitted.rejected_values, data, engine))
        return [finding.message for finding in found]

    def _take(self, fitted: Fitted) -> None:
        """Set the attributes of every fit, once all that can fail is done: it is fitted in whole or not at all."""
        fitted.check_finite()
        self.parts_ = fitted.parts
        self.components_ = fitted.components
        self.n_components_ = len(fitted.components)
        self._basis, self._unit, self._noise = fitted.basis, fitted.unit, fitted.noise
        self._samples = fitted.samples
        self._with_uncertainties = fitted.with_uncertainties
        self._unseen = fitted.unseen
        self.rejected_values_ = fitted.rejected_values
        self.scale_ = fitted.scale
        self.thresholds_ = thresholds(fitted.basis, fitted.unit, fitted.noise)
        self.noise_ = fitted.noise_model
        self.comparison_ = fitted.result.comparison
        self.objective_ = fitted.objective
        self.reconstruction_err_ = fitted.reconstruction_error
        self.history_ = fitted.history
        self.n_iter_ = 1 if fitted.parts.algorithm is take_start else len(fitted.result.history) - 1
        self.converged_ = fitted.result.converged
        self.n_samples_seen_ = fitted.n_samples
        self._stream: Stream | None = None
        self.__dict__.pop("sparse_errors_", None)  # of an earlier fit with another method

    def _take_entries(self, about: Description, X: Any, weights: Any, uncertainties: Any) -> None:
        """Set what is known of the entries of X, as arrays of its kind.

        Of sparse data, where hardly any weight is 0, and of data that takes much of the memory of a device, weights are
        computed when they are asked for.
        """
        self.outliers_ = same_kind(values_of(X), about.outliers)
        if about.weights is not None:
            self.weights_ = same_kind(values_of(X), about.weights)
        else:
            given = X, weights, uncertainties
            given = self._as_data(*given) if self.zeros == "missing" else tuple(map(_rows_of_entries, given))
            self.weights_ = lazy_result(self, "weights", *given, StreamingEngine())

    def _as_data(self, X: Any, weights: Any, uncertainties: Any) -> tuple[Any, Any, Any]:
        """Return data that is worked on block by block, with weights that say what is missing."""
        if self.zeros == "missing":
            weights = stored_weights(X, weights)
        return as_data(X), as_data(weights), as_data(uncertainties)

    def _lazily(self, what: str, X: Any, weights: Any, uncertainties: Any) -> Any:
        """Return a result for data that is not in memory."""
        check_is_fitted(self)
        self._check_has_noise(uncertainties)
        check_order(X, features_of(self).names, type(self).__name__)
        X, weights, uncertainties = self._as_data(X, weights, uncertainties)
        return lazy_result(self, what, X, weights, uncertainties, engine_of(X, self.engine, self.device, None))

    def _aligned(self, X: Any, weights: Any, uncertainties: Any, *, training: bool = False) -> tuple[Any, Any, Any]:
        """Return data with the features of this model, in its order, and weights and uncertainties in that of X."""
        has_features = not training or PreviousFit.of(self) is not None
        remembered = getattr(self, "input_", None) if has_features else None
        if remembered is not None:
            check_grid(axes_of(X)[1], remembered.features, "X", f"the data that {type(self).__name__} was fitted to")
        features = features_of(self) if has_features else None
        may_use_file = training or getattr(self, "_with_uncertainties", False)
        known: dict[str, Any] = {"features": features, "model": type(self).__name__, "may_use_file": may_use_file}
        return aligned_input(X, weights, uncertainties, **known)

    def _describe_entries(
        self, X: Any, weights: Any = None, uncertainties: Any = None, *, with_weights: bool = False
    ) -> Description:
        """Return what the fit says of entries in memory; of large data, weights only if they are wanted."""
        with self._engine_for(X, by_tiles=not with_weights) as engine:
            return self._encode_and_describe(self._check_new(X, weights, uncertainties, engine), engine)[1].on_host()

    def refit(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> Self:
        """Go on from where the fit of X ended, after a few entries or weights have changed.

        Components are improved by least squares on what is right, and what is right is decided by the noise that the
        fit has found. That takes a part of the time of a fit, and changes no more than it has to: a fit would begin
        with a random start, and may end elsewhere. After large changes, fit anew.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            The data that was fitted, in memory.
        y : None
            Ignored.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._refit(X, weights, uncertainties)
        return self

    def _refit(self, X: Any, weights: Any = None, uncertainties: Any = None) -> Array:
        """Go on from where the fit ended, and return the codes."""
        check_is_fitted(self)
        parts = self._check_parameters()
        X, weights, uncertainties = self._aligned(X, weights, uncertainties)
        X = in_memory(X, self.engine)
        if is_out_of_core(X, self.engine):
            raise IncompatibleError("refit takes data in memory: use fit, from a checkpoint if it was interrupted.")
        with _unchanged_on_failure(self), self._engine_for(X) as engine:
            data = self._check_new(X, weights, uncertainties, engine)
            fitted = improve_fit(self, data, parts, engine)
            return self._take_in_memory(fitted, data, X, weights, uncertainties, engine)

    @available_if(_learns_from_batches)
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

        Returns
        -------
        self
            The fitted estimator.
        """
        parts = self._check_parameters()
        is_first = not hasattr(self, "components_")
        if not is_first and self.n_components not in ("auto", self.n_components_):
            raise ValueError(
                f"n_components={self.n_components!r} of a model with {self.n_components_} components. partial_fit "
                "keeps their number; call fit for another."
            )
        X, weights, uncertainties = self._aligned(X, weights, uncertainties, training=is_first)
        X = in_memory(X, self.engine)
        if is_out_of_core(X, self.engine):
            raise IncompatibleError("partial_fit learns from batches in memory: pass X block by block, or use fit.")
        if is_first:
            self.fit(X, weights=weights, uncertainties=uncertainties)
        with _unchanged_on_failure(self):  # a batch is small: it is worked on by the host wherever it comes from
            data = self._check_new(X, weights, uncertainties, NumPyEngine(n_threads=1))
            left_out, about = self._learn(data, parts, 0 if is_first else self.n_samples_seen_)
            self._take_entries(about, X, weights, uncertainties)
        if left_out.mean() > 0.5:
            warnings.warn(
                f"{type(self).__name__}: {left_out.sum()} of {len(left_out)} samples of this batch are mostly outliers "
                "and were left out. If that goes on, the stream has changed: fit anew.",
                DataQualityWarning,
                stacklevel=2,
            )
        return self

    def _learn(self, data: Data, parts: Parts, n_before: int) -> tuple[Matrix, Description]:
        """Improve the components by a batch, and return which samples were left out, (n_samples,), and about it.

        The components were learnt from `n_before` other samples.
        """
        with NumPyEngine().running() as engine:
            codes, about = self._encode_and_describe(data, engine)
        seen = None if self._unseen is None else ~self._unseen
        if self._unseen is not None:
            still = self._unseen & (np.asarray(data.seen) == 0)
            self._unseen = still if still.any() else None
        clean = clean_samples(about.outliers, None if data.whole.M is None else data.whole.M > 0)
        if clean.any():
            batch = self._in_unit(data, engine).whole
            M = np.ones_like(batch.X) if batch.M is None else batch.M
            fixed = 0 if self.fixed_components is None else len(self.fixed_components)
            method = replace(parts.method, penalties=self._basis.penalties, fixed=fixed, solver=SharedGram())
            kept = ~about.outliers & (M > 0)
            # Single precision may not hold the unit.
            Ht = (codes / (np.float64(self._unit) * self._sample_factors(data.whole))).astype(codes.dtype)
            Y, M, Ht, kept = (array[clean] for array in (batch.X, M, Ht, kept))
            with NumPyEngine().running() as engine:
                stream = self._stream or Stream.start(self._basis, n_before, seen)
                self._stream = stream.learn(Y, M, Ht, kept, float(self.forget_factor), method, engine)
            W = self._stream.basis.W
            if not np.isfinite(W).all():
                raise OutOfRangeError("components", W.dtype)
            self.components_ = (W if self._noise is None else W * self._noise[:, None].astype(W.dtype)).T.copy()
            self._basis = replace(self._stream.basis, W=basis_of(self.components_, self._noise))
            self.scale_ = self._basis.weighting.scale * self._unit
            self.thresholds_ = thresholds(self._basis, self._unit, self._noise)
            self.noise_ = noise_in_units(self._basis, self._unit, self._noise)
        self.n_samples_seen_ = n_before + len(codes)
        return np.asarray(~clean), about

    @overload
    def transform(self, X: InMemory, *, weights: Any = ..., uncertainties: Any = ...) -> Matrix: ...
    @overload
    def transform(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def transform(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return the codes of samples, (n_samples, n_components).

        Robust: a corrupted sample gets the code of its clean part. Each sample is encoded by itself. Without
        `uncertainties`, those of a model that was fitted with them are the typical ones of its features. The features
        of a `LabelledMatrix`, a table of pyarrow and a matrix of xarray are found by name, in any order. A sample
        without observed entries gets the code zero, and raises a warning.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray (n_samples, n_components)
            The codes, as an array of the library of X.
        """
        X, weights, uncertainties = self._aligned(X, weights, uncertainties)
        X = in_memory(X, self.engine)
        if is_out_of_core(X, self.engine):
            return self._lazily("codes", X, weights, uncertainties)
        with self._engine_for(X) as engine:
            data = self._check_new(X, weights, uncertainties, engine, tells_empty=True)
            basis = self._basis.placed(engine.place)
            scaled = self._in_unit(data, engine)
            Ht = basis.encode(scaled.X, scaled.M, engine, **encoding_limits(self))
            return same_kind(X, self._codes_in_units(engine.join(Ht), data, engine))

    @overload
    def inverse_transform(self, X: InMemory) -> Matrix: ...
    @overload
    def inverse_transform(self, X: Any) -> Any: ...

    def inverse_transform(self, X: Any) -> Any:
        """Return the reconstruction of codes (n_samples, n_components), in the space of the data.

        Parameters
        ----------
        X : array-like (n_samples, n_components)
            Codes.

        Returns
        -------
        ndarray (n_samples, n_features)
            Codes times components.
        """
        check_is_fitted(self)
        codes = check_array(to_host(values_of(taken_in(X, "X"))), dtype=(np.float64, np.float32))
        if codes.shape[1] != self.n_components_:
            raise ValueError(f"Codes must have {self.n_components_} columns, one per component; got {codes.shape[1]}.")
        return same_kind(X, _product(codes, self.components_, np))

    @overload
    def clean(self, X: Numbers, *, weights: Any = ..., uncertainties: Any = ...) -> Matrix: ...
    @overload
    def clean(self, X: Labelled, *, weights: Any = ..., uncertainties: Any = ...) -> Labelled: ...
    @overload
    def clean(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def clean(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return X with outliers and missing entries replaced by the reconstruction, all others untouched.

        A data frame, a table of pyarrow, a matrix of xarray and a `LabelledMatrix` come back as such, in their order of
        features. Where nothing is known there is no reconstruction: a sample without observed entries becomes NaN, with
        a warning, and so do missing entries of a feature that had none in the fit.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        array or table (n_samples, n_features)
            The cleaned data, in the form of X.
        """
        given = X
        X, weights, uncertainties = self._aligned(X, weights, uncertainties)
        X = in_memory(X, self.engine)
        if is_out_of_core(X, self.engine):
            return like_lazy(X, self._lazily("clean", X, weights, uncertainties), given)
        with self._engine_for(X) as engine:
            data = self._check_new(X, weights, uncertainties, engine, tells_empty=True)
            if engine.keeps_masks:
                return like(X, self._cleaned_by_tiles(data, engine), given)
            codes, about = self._encode_and_describe(data, engine)
            unseen = None if self._unseen is None else engine.place(self._unseen)
            shared = {"components": engine.place(self.components_, codes.dtype), "unseen": unseen}
            arguments = (engine.split(codes, like=data.X), data.X, data.M)
            if engine.keeps_sparse and data.arrays is None:
                outliers = engine.split(SparseRows(about.outliers), like=data.X)
                shared["keeps_zeros"] = self.zeros == "missing"
                cleaned = engine.map(_cleaned_sparsely, outliers, *arguments, **shared)
                return like(X, sparse_of(cleaned, dtype_of(codes)), given)
            dtype, cleaned = engine.xp.result_type(codes.dtype, data.X[0].dtype), about.weights
            if cleaned is None or cleaned.dtype != dtype:  # else it takes the place of the weights, which nobody needs
                cleaned = engine.empty(data.shape, dtype)
            target, outliers = (engine.split(array, like=data.X) for array in (cleaned, about.outliers))
            engine.fill((target,), _cleaned, outliers, *arguments, **shared)
            return like(X, cleaned, given)

    def _cleaned_by_tiles(self, data: Data, engine: Engine) -> Array:
        """Return data with what is wrong or missing replaced; beside it, memory is taken by tiles and codes alone."""
        basis, scaled, limits = self._basis.placed(engine.place), self._in_unit(data, engine), encoding_limits(self)
        Ht = basis.encode(scaled.X, scaled.M, engine, **limits)
        codes = engine.split(self._codes_in_units(engine.join(Ht), data, engine), like=data.X)
        shared = {"basis": basis, "engine": engine, **limits, "components": self.components_, "unseen": self._unseen}
        cleaned = engine.empty(data.shape, engine.xp.result_type(codes[0].dtype, data.X[0].dtype))
        blocks = (scaled.X, scaled.M, Ht, codes, data.X)
        engine.fill((engine.split(cleaned, like=data.X),), _described_and_cleaned, *blocks, **shared)
        return cleaned

    @overload
    def outlier_mask(self, X: Numbers, *, weights: Any = ..., uncertainties: Any = ...) -> NDArray[np.bool_]: ...
    @overload
    def outlier_mask(self, X: Labelled, *, weights: Any = ..., uncertainties: Any = ...) -> Labelled: ...
    @overload
    def outlier_mask(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def outlier_mask(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return True where an observed entry is an outlier, (n_samples, n_features), in the form of `clean`.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        array or table of bool (n_samples, n_features)
            The mask, in the form of X.
        """
        given = X
        X, weights, uncertainties = self._aligned(X, weights, uncertainties)
        X = in_memory(X, self.engine)
        if is_out_of_core(X, self.engine):
            return like_lazy(X, self._lazily("outliers", X, weights, uncertainties), given)
        with self._engine_for(X) as engine:
            data = self._check_new(X, weights, uncertainties, engine)
            return like(X, self._encode_and_describe(data, engine)[1].outliers, given)

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the fitted model to a file without pickle, see `robustnmf.persistence`; `robustnmf.load` reads it.

        Parameters
        ----------
        path : path-like
            The file.
        overwrite : bool
            Whether to replace a model that is there.
        """
        save(self._on_host(), path, overwrite=overwrite)

    def compact(self) -> Self:
        """Return a copy of the fitted model without what is as large as the training data, to be pickled or sent.

        These are `weights_`, `outliers_` and `sparse_errors_`. The copy encodes, cleans and judges data as this model
        does, so ``outlier_mask(X)`` of the training data is `outliers_` again; `report` needs the whole model.

        Returns
        -------
        RobustNMF
            The copy.

        Examples
        --------
        >>> import pickle
        >>> import numpy as np
        >>> from robustnmf import RobustNMF
        >>> X = np.random.default_rng(0).random((500, 20))
        >>> model = RobustNMF(2, method="l2", random_state=0).fit(X)
        >>> len(pickle.dumps(model)) > X.nbytes > 4 * len(pickle.dumps(model.compact()))
        True
        """
        check_is_fitted(self)
        light = copy(self)
        for name in OF_TRAINING:
            light.__dict__.pop(name, None)
        return light

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: without results that are computed from the data when asked for, which is not."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if not isinstance(value, LazyMatrix)}

    def __copy__(self) -> Self:
        """Return a copy that has these results too."""
        made = type(self).__new__(type(self))
        made.__dict__.update(vars(self))
        return made

    if not TYPE_CHECKING:  # else every attribute would be one that may exist

        def __getattr__(self, name: str) -> Any:
            if name in OF_TRAINING and "components_" in vars(self):
                raise AttributeError(
                    f"This model has no {name}: `compact` leaves it out, and pickles do if the data is large; or only "
                    "other methods have it. "
                    "outlier_mask(X) returns the outliers of the training data once more."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @overload
    def score_samples(self, X: InMemory, *, weights: Any = ..., uncertainties: Any = ...) -> NDArray[np.float64]: ...
    @overload
    def score_samples(self, X: Any, *, weights: Any = ..., uncertainties: Any = ...) -> Any: ...

    def score_samples(self, X: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return how well each sample fits, (n_samples,): minus the mean loss of its entries, higher is better.

        For the Cauchy losses this is the mean log-likelihood of the entries, up to a constant; for the others the loss
        is in units of the data. So models with different scales can be compared. A sample without observed entries
        scores zero.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        ndarray (n_samples,)
            The score of each sample.
        """
        X, weights, uncertainties = self._aligned(X, weights, uncertainties)
        X = in_memory(X, self.engine)
        if is_out_of_core(X, self.engine):
            return self._lazily("scores", X, weights, uncertainties)
        about = self._describe_entries(X, weights, uncertainties)
        observed = about.totals > 0
        mean_loss = about.losses / np.where(observed, about.totals, 1)
        log_scale = log(self._basis.weighting.scale) + log(self._unit)  # scale_ itself may vanish for denormal data
        loss = self.parts_.loss
        with np.errstate(over="ignore"):  # squares of data beyond 1e150 leave the range of numbers, and of their means
            squared = np.minimum(np.float64(self.scale_) ** loss.scale_power, 1e300)
            in_units = np.minimum(mean_loss * squared, 1e300)
        return np.where(observed, -in_units - loss.log_scale_coef * log_scale, 0.0)

    def score(self, X: Any, y: Any = None, *, weights: Any = None, uncertainties: Any = None) -> float:
        """Return the mean of `score_samples`, for model selection.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            Non-negative data; NaN means missing.
        y : None
            Ignored.
        weights, uncertainties : array-like (n_samples, n_features) or None
            As in `fit`.

        Returns
        -------
        float
            The mean score.
        """
        return float(np.mean(self.score_samples(X, weights=weights, uncertainties=uncertainties)))

    def report(self, X: Any, path: Any, **options: Any) -> Path:
        """Write an HTML page about this fit and the data X it was fitted to; see `robustnmf.report.write`.

        Parameters
        ----------
        X : array-like or LabelledMatrix (n_samples, n_features)
            The data that was fitted.
        path : path-like
            The file.
        **options
            Others of `robustnmf.report.write`.

        Returns
        -------
        Path
            The file.
        """
        from robustnmf.report import write

        X = taken_in(X, "X")
        if isinstance(X, LabelledMatrix):
            X, options["weights"], options["uncertainties"] = self._aligned(
                X, options.get("weights"), options.get("uncertainties")
            )
            names = {"sample_names": X.samples.shown_names, "feature_names": X.features.shown_names}
            shapes = {"image_shape": X.features.picture_shape, "map_shape": X.samples.picture_shape}
            options = names | shapes | {"units": X.unit} | options
            with ignored_warnings((UserWarning, "X does not have valid feature names")):  # they are those of the model
                return write(self._on_host(), X.values, path, **options)
        model = self._on_host()
        if is_lazy_result(model.outliers_):  # of data that was read block by block, and is here now
            model = copy(model)
            model.outliers_ = np.asarray(model.outliers_)
        return write(model, to_host(X) if is_foreign(X) else X, path, **options)

    def _html_repr(self) -> str:
        """Return what a notebook shows; scikit-learn asks for it by this name."""
        from robustnmf.report.summary import summary_html

        return summary_html(self._on_host())

    def _on_host(self) -> Self:
        """Return this model with all its arrays as arrays of NumPy; itself if they are."""
        if not any(is_foreign(value) for value in vars(self).values()):
            return self
        model = copy(self)
        for name, value in vars(self).items():
            setattr(model, name, to_host(value) if is_foreign(value) else value)
        return model

    def _check_parameters(self) -> Parts:
        """Check the constructor's parameters and return the parts they stand for."""
        for name in ("max_iter", "n_init"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer; got {value!r}.")
        if not isinstance(self.tol, Real) or isinstance(self.tol, bool) or not 0 <= self.tol < inf:
            raise ValueError(f"tol must be a finite, non-negative number; got {self.tol!r}.")
        if self.callback is not None and not callable(self.callback):
            raise ValueError(f"callback must be a function of one iteration, or None; got {self.callback!r}.")
        for name, most in (("alpha_W", inf), ("l1_ratio", 1.0), ("forget_factor", 1.0)):
            _check_number(name, getattr(self, name), most)
        if not isinstance(self.alpha_H, str) or self.alpha_H != "same":  # an array has no truth value
            _check_number("alpha_H", self.alpha_H, inf, or_else=" or 'same'")
        if self.feature_scaling not in ("auto", "robust", None):
            raise ValueError(f"feature_scaling must be 'auto', 'robust' or None; got {self.feature_scaling!r}.")
        if self.sample_scaling not in ("total", None):
            raise ValueError(f"sample_scaling must be 'total' or None; got {self.sample_scaling!r}.")
        if self.zeros not in ("data", "missing"):
            raise ValueError(f"zeros must be 'data' or 'missing'; got {self.zeros!r}.")
        if self.repeated_values not in ("auto", "data"):
            raise ValueError(f"repeated_values must be 'auto' or 'data'; got {self.repeated_values!r}.")
        if not isinstance(self.weight_by_noise, bool | np.bool_) and self.weight_by_noise != "auto":
            raise ValueError(f"weight_by_noise must be 'auto', True or False; got {self.weight_by_noise!r}.")
        if not isinstance(self.warm_start, bool | np.bool_):
            raise ValueError(f"warm_start must be True or False; got {self.warm_start!r}.")
        parts = ("loss", "init", "scale", "outliers", "solver", "schedule", "image_shape")
        given = {name: getattr(self, name) for name in parts} | {"noise": self._noise_assumed()}
        fixed = self.fixed_components is not None
        found = resolve(self.method, self.preset, **given, penalised=is_penalised(self), fixed=fixed)
        if self.warm_start and found.algorithm is take_start:
            raise IncompatibleError(f"Method {self.method!r} does not iterate: warm_start must be False; got True.")
        return found

    def _noise_assumed(self) -> Any:
        """Return the parameter `noise`, with right entries weighted by it if they are to be."""
        if isinstance(self.weight_by_noise, str):
            weighted = isinstance(self.noise, str) and self.noise == "poisson"
        else:
            weighted = bool(self.weight_by_noise)
        if not weighted:
            return self.noise
        if self.noise is None:
            raise IncompatibleError("weight_by_noise=True weights entries by a noise model; noise=None has none.")
        known = NOISES.get(self.noise) if isinstance(self.noise, str) else self.noise
        return replace(known, weights_entries=True) if isinstance(known, Noise) else self.noise

    def _sparse_errors(self, data: Observations, codes: Matrix) -> Matrix:
        """Return the error matrix S of RNMF-L1 in units of X, zero where the data is missing."""
        noise = 1.0 if self._noise is None else self._noise
        X, M = to_host(data.X), to_host(data.M)
        S = noise * sparse_error((X - _product(codes, self.components_, np)) / noise, self.scale_, np)
        return np.asarray(S if M is None else np.where(M > 0, S, 0))

    @contextmanager
    def _engine_for(self, X: Any, *, by_tiles: bool = True) -> Iterator[Engine]:
        """Run the engine for new data, which may be worked on by tiles if it is large."""
        check_is_fitted(self)
        zeros = "data" if self._with_uncertainties else self._zeros_of_engine
        how: dict[str, Any] = {"zeros": zeros, "by_tiles": by_tiles}
        with engine_for(values_of(X), self.engine, self.device, **how).running() as engine:
            yield engine

    @property
    def _zeros_of_engine(self) -> str:
        """What an engine may take entries for that are not stored: weights and scaled samples need dense rows."""
        assumed = self._noise_assumed()
        weighted = NOISES.get(assumed) if isinstance(assumed, str) else assumed
        needs_rows = getattr(weighted, "weights_entries", False) or self.sample_scaling is not None
        return "data" if needs_rows else self.zeros

    def _check_new(
        self, X: Any, weights: Any, uncertainties: Any, engine: Engine, *, tells_empty: bool = False
    ) -> Data:
        check_is_fitted(self)
        self._check_has_noise(uncertainties)
        known: dict[str, Any] = {"noise": self._noise, "tells_empty": tells_empty}
        data = data_in_memory(self, X, weights, uncertainties, engine=engine, reset=False, **known)
        if data.M is not None and weights is None and uncertainties is None and self.parts_.algorithm is take_start:
            refuse_gaps(self.parts_.init.name)
        return data

    def _check_has_noise(self, uncertainties: Any) -> None:
        if uncertainties is not None and not self._with_uncertainties:
            raise ValueError("This model was fitted without uncertainties: fit it with them, or leave them out.")

    def _encode_and_describe(self, data: Data, engine: Engine) -> tuple[Array, Description]:
        """Return the codes of new samples, and what the fit says of their entries."""
        basis = self._basis.placed(engine.place)
        scaled = self._in_unit(data, engine)
        Ht, about = describe(scaled, basis, encoding_limits(self), engine, may_overwrite=scaled is not data)
        mark_values(about.outliers, data, self.rejected_values_, engine)
        return self._codes_in_units(Ht, data, engine), about

    def _in_unit(self, data: Data, engine: Engine) -> Data:
        """Return data in units of X as the fit works on it: without wrong values, divided, in its unit."""
        data = without_values(data, self.rejected_values_, engine)
        data = data if self._samples is None else self._samples.divided(data, engine)
        return data.in_unit(self._unit, self._noise, self._basis.W.dtype, engine)

    def _codes_in_units(self, codes: Array, data: Data, engine: Engine) -> Array:
        """Return codes (n, r) in units of X; data is that of their samples, in units of X."""
        xp = engine.xp
        if self._samples is not None:
            factors = self._samples.factors(data, engine)
            codes = xp.astype(codes * factors, codes.dtype, copy=False)
        return check_codes(codes * self._unit, xp)

    def _sample_factors(self, data: Observations) -> Any:
        """Return what samples are divided by, (n, 1), of data on the host; 1.0 if by nothing."""
        return 1.0 if self._samples is None else self._samples.block_factors(data.X, data.M, np)[:, None]

    def _warn(self, result: Result, findings: list[str], stacklevel: int) -> None:
        """Tell the user, at the line of their call, what is doubtful about a fit and its data."""
        for finding in ([result.warning] if result.warning else []) + findings:
            warnings.warn(f"{type(self).__name__}: {finding}", DataQualityWarning, stacklevel=stacklevel)
        if result.converged or result.stopped:
            return
        last, is_alternation = result.history[-1].relative_change, result.noise is None
        if last <= self.tol and is_alternation:
            last = result.recent_change
        change = f"the relative change of the objective was still {last:.1e}, and " if self.tol < last < inf else ""
        if last <= self.tol and not is_alternation:  # then it is the end of the default, which has no history
            change = "least squares on the accepted entries, its last stage, still improved, and "
        warnings.warn(
            f"{type(self).__name__} did not converge in {self.max_iter} iterations: {change}tol is {self.tol:.1e}. "
            "Increase max_iter, or tol if the result is good enough.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


@storable
class TruncatedCauchyNMF(RobustNMF):
    """Truncated Cauchy NMF: `RobustNMF` with ``method="truncated-cauchy"``.

    Every entry gets the weight 1 / (1 + (residual / scale)**2), or 0 if it is an outlier.

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

    method: MethodName = "truncated-cauchy"
    loss: Auto | LossName | Loss = "auto"

    # A copy of RobustNMF's, without two parameters: tests compare them. Type checkers and help read it.
    @with_hints
    def __init__(
        self,
        n_components: int | Auto = 2,
        *,
        preset: PresetName = "default",
        init: Auto | InitName | tuple[Any, Any] | Callable[..., Any] = "auto",
        scale: Auto | ScaleName | float | Callable[..., Any] = "auto",
        outliers: Auto | OutliersName | float | Callable[..., Any] = "auto",
        solver: Auto | SolverName | Solver = "auto",
        schedule: Auto | ScheduleName | Callable[..., Any] = "auto",
        noise: NoiseName | Noise | None = "auto",
        weight_by_noise: Auto | bool = "auto",
        feature_scaling: FeatureScalingName | None = "auto",
        sample_scaling: SampleScalingName | None = None,
        zeros: ZerosName = "data",
        repeated_values: RepeatedValuesName = "auto",
        image_shape: tuple[int, int] | None = None,
        max_iter: int = 200,
        tol: float = 1e-4,
        n_init: int = 1,
        warm_start: bool = False,
        random_state: Any = None,
        alpha_W: float = 0.0,
        alpha_H: float | Literal["same"] = "same",
        l1_ratio: float = 0.0,
        fixed_components: Any = None,
        forget_factor: float = 0.95,
        engine: EngineName | Engine = "auto",
        device: Any = None,
        checkpoint: Any = None,
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        super().__init__(
            n_components,
            method=self.method,
            loss=self.loss,
            preset=preset,
            init=init,
            scale=scale,
            outliers=outliers,
            solver=solver,
            schedule=schedule,
            noise=noise,
            weight_by_noise=weight_by_noise,
            feature_scaling=feature_scaling,
            sample_scaling=sample_scaling,
            zeros=zeros,
            repeated_values=repeated_values,
            image_shape=image_shape,
            max_iter=max_iter,
            tol=tol,
            n_init=n_init,
            warm_start=warm_start,
            random_state=random_state,
            alpha_W=alpha_W,
            alpha_H=alpha_H,
            l1_ratio=l1_ratio,
            fixed_components=fixed_components,
            forget_factor=forget_factor,
            engine=engine,
            device=device,
            checkpoint=checkpoint,
            verbose=verbose,
            callback=callback,
        )
        del self.method, self.loss  # those of the class are not parameters


def _take_documentation(cls: Any, of: Any, without: tuple[str, ...]) -> None:
    """Give a class the documentation of parameters and attributes of another, but for some parameters."""
    if cls.__doc__:  # python -OO has none
        described = of.__doc__[of.__doc__.index("    Parameters\n") : of.__doc__.index("    Notes\n")]
        for name in without:
            described = re.sub(rf"^    {name} : .*\n(        .*\n)+", "", described, count=1, flags=re.MULTILINE)
        cls.__doc__ = cls.__doc__.replace("    Examples\n", f"{described}    Examples\n", 1)


_take_documentation(TruncatedCauchyNMF, RobustNMF, without=("method", "loss"))


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


def _warning_of(fitted: Fitted) -> str | None:
    """Return what a fit warns of, with the share of the entries that are outliers in the end."""
    warning, compared, about = fitted.result.warning, fitted.result.comparison, fitted.about
    if warning is None or compared is None or about is None:
        return warning
    if warning not in (compared.doubt, compared.much_is_wrong):
        return warning
    share = float(about.outliers.sum()) / prod(about.outliers.shape)
    if share == 0 and not compared.takes_all:  # in the end, nothing is rejected that least squares would explain
        return None
    final: Comparison = compared._replace(rejected=share)
    return final.doubt or final.much_is_wrong or warning  # what was in doubt stays so, whatever the share became


def _check_same_names(known: Any, given: Any) -> None:
    """Refuse features with other names than those of the components that a fit is to start from."""
    if known is None or given is None or list(known) == list(given):
        return
    i = next((i for i, names in enumerate(zip(known, given, strict=False)) if names[0] != names[1]), None)
    if i is None:  # another number of features is another error
        return
    raise ValueError(
        f"warm_start=True starts from the components of the last fit, so features must have the same names in the same "
        f"order; feature {i} was {known[i]!r}, and is {given[i]!r} now. Put them in that order, or fit with "
        "warm_start=False."
    )


def _borne_unexplained(compared: Comparison | None) -> float:
    """Return what least squares on all entries leaves of the residuals of rejected ones, if the others bear it.

    A few entries, however large, get a component of their own: they say nothing.
    """
    if compared is None or compared.takes_all or compared.damage > DAMAGES or compared.rejected < FEWEST_REJECTED:
        return inf
    return compared.unexplained


def _check_can_be_sparse(estimator: Any, data: Data, parts: Parts) -> None:
    """Refuse what needs dense data, if this is sparse."""
    if data.arrays is not None:
        return
    solver = parts.method.solver
    if parts.algorithm is take_start or solver.models_sparse_errors or not solver.works_by_sums:
        raise IncompatibleError(
            f"Method {estimator.method!r} with solver {parts.solver} needs dense data, and X stays sparse here. Pass "
            "X.toarray() (X.to_dense() of a tensor), or use engine='numpy', which makes it dense; "
            "method='truncated-cauchy' works on sparse data."
        )


def _check_number(name: str, value: Any, most: float, or_else: str = "") -> None:
    """Refuse what is not a finite number from 0 to `most`."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= most or value == inf:
        limit = "non-negative and finite" if most == inf else f"between 0 and {most:g}"
        raise ValueError(f"{name} must be a number, {limit}{or_else}; got {value!r}.")


@block_function(rowwise=True)
def _cleaned(
    outliers: Array,
    codes: Array,
    X: Array,
    M: Array | None,
    *,
    components: Array,
    unseen: Array | None,
    xp: Namespace,
) -> tuple[Array]:
    """Return a block of data with outliers and missing entries replaced by their reconstruction.

    What is missing is NaN in samples without observed entries, and in features that are `unseen` in the fit, (m,).
    """
    product = _product(codes, components, xp, X)
    if M is None:
        return (xp.where(outliers, product, X),)
    missing = M == 0
    unknown = xp.all(missing, axis=1, keepdims=True)
    unknown = unknown if unseen is None else unknown | unseen[None, :]
    filled = xp.where(outliers | missing, product, X)
    return (xp.where(missing & unknown, xp.nan, filled),)


def _described_and_cleaned(
    scaled: Array,
    M: Array | None,
    Ht: Array,
    codes: Array,
    X: Array,
    *,
    components: Array,
    unseen: Array | None,
    xp: Namespace,
    **how: Any,
) -> tuple[Array]:
    """Return a block of data with outliers and missing entries replaced; its outliers are found on the way."""
    outliers, *_ = outliers_of_block(scaled, M, Ht, **how, xp=xp)
    return _cleaned(outliers, codes, X, M, components=components, unseen=unseen, xp=xp)


def _cleaned_sparsely(
    outliers: Array, codes: Array, X: Array, M: Array | None, *, keeps_zeros: bool, **shared: Any
) -> Any:
    """Return a block of sparse data with outliers replaced, as a sparse matrix; missing entries may stay zero."""
    M = None if keeps_zeros else M
    return as_sparse(_cleaned(outliers, codes, X, M, **shared)[0])


def _undetermined(sample: quality.Sample, fitted: Fitted, codes: Any) -> list[quality.Finding]:
    """Return what the user should know of dense data that was fitted by least squares, and is not told by the fit."""
    about, comparison = fitted.about, fitted.result.comparison
    if about is None or comparison is None or is_sparse(about.outliers):
        return []
    outliers, some = (to_host(array[:: sample.every]) for array in (about.outliers, codes))
    return undetermined_entries(Factors(sample, outliers, some, fitted.components), comparison)


def _rows_of_entries(values: Any) -> Any:
    """Return data in memory from which something is computed when it is asked for: without a copy, if it can be."""
    values = None if values is None else values_of(values)
    is_plain = isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray)
    is_plain = is_plain or (is_foreign(values) and not is_sparse_tensor(values))
    return UnchangedRows(values) if is_plain else as_data(values)


def _product(codes: Array, components: Array, xp: Namespace, like: Array = None) -> Array:
    """Return codes @ components; of data at the end of the range of numbers it is limited to that range.

    If data `like` this is given of which most entries are missing, the product has the others.
    """
    with np.errstate(over="ignore"):
        product = predictions(codes, components.T, like)
    most = float(xp.finfo(product.dtype).max)
    return xp.where(product > most, most, product)


def like_lazy(X: Any, result: Any, given: Any) -> Any:
    """Return a result that is computed when asked for; of a `LabelledMatrix`, which is in memory, the values of it."""
    return like(X, np.asarray(result), given) if isinstance(X, LabelledMatrix) else result


def like(X: Any, values: Array, given: Any = None) -> Any:
    """Return values as a data frame with the labels of X, if X is one, or as an array of its library.

    Data with names comes in the container, and the order of features, that it was `given` in.
    """
    if isinstance(X, LabelledMatrix):
        labelled = replace(X, values=to_host(values), uncertainties=None, notes=())
        if given is None:
            return labelled
        in_order = put_back(labelled, taken_in(given, "X"))
        return in_order if isinstance(given, LabelledMatrix) else put_into(given, in_order)
    if is_on_host(X):
        values = to_host(values)
    if hasattr(X, "columns") and hasattr(X, "index"):  # pandas
        return type(X)(values, index=X.index, columns=X.columns)
    if hasattr(X, "columns") and hasattr(X, "schema"):  # polars
        frame = type(X)(values, schema=list(X.columns), orient="row")
        return frame if given is None or isinstance(given, type(X)) else frame.lazy()
    return same_kind(X, values)
