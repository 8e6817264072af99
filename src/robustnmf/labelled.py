"""Fits of data that carries labels: AnnData in biology, xarray in the earth sciences, signals of HyperSpy.

None of these packages is imported here: a caller who passes one of their objects has it.

HyperSpy needs nothing from this module, because it takes estimators of scikit-learn as they are::

    model = RobustNMF(3, random_state=0)
    s.change_dtype("float32")  # HyperSpy wants floating-point data; counts often are not
    s.decomposition(algorithm=model, output_dimension=3)
    s.get_decomposition_model()  # without the spikes; plot_decomposition_results() shows the factors

The model is fitted in place: ``model.outliers_.reshape(s.data.shape)`` are the spikes. To replace nothing but them::

    cleaned = s.deepcopy()
    cleaned.data = model.clean(s.data.reshape(-1, s.data.shape[-1])).reshape(s.data.shape)

Pixels and channels under ``navigation_mask`` and ``signal_mask`` do not reach the model (its arrays are smaller then),
NaN in the data means missing, and lazy signals are learnt chunk by chunk with ``partial_fit``. HyperSpy cannot write an
estimator to a file: set ``s.learning_results.decomposition_algorithm = "RobustNMF"`` before ``s.save``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from robustnmf.data.lazy_results import LazyMatrix
from robustnmf.estimators import RobustNMF
from robustnmf.formats.registry import rows_of
from robustnmf.formats.sparse_rows import StoredSparsely, some_columns
from robustnmf.utils.names import Auto

Matrix = NDArray[Any]

# Name of the new dimension.
COMPONENT = "component"


def factorise_anndata(
    adata: Any,
    n_components: int | Auto = 2,
    *,
    layer: str | None = None,
    key_added: str = "robustnmf",
    use_highly_variable: bool | None = None,
    outlier_layer: str | None = None,
    **options: Any,
) -> RobustNMF:
    """Factorise an AnnData object, write the result into it, and return the fitted model.

    Parameters
    ----------
    adata : anndata.AnnData
        Observations (cells) x variables (genes), non-negative; NaN means missing. Sparse data stays sparse if it is
        large, see `engine` of `RobustNMF`. Of an object that is backed by a file, X stays there if it is large, and is
        read block by block. A view becomes an object of its own.
    n_components : int or "auto"
        Number of components.
    layer : str or None
        Layer to factorise; None means ``adata.X``.
    key_added : str
        What the results are called, see Notes.
    use_highly_variable : bool or None
        Whether to use only the variables marked in ``adata.var["highly_variable"]``; None does so if there are marks,
        as scanpy does.
    outlier_layer : str or None
        Layer that receives the mask of outliers, sparse if the data is sparse or read block by block; None writes none.
    **options
        Parameters of `RobustNMF`, such as ``zeros="missing"`` for sparse data.

    Returns
    -------
    RobustNMF
        The fitted model; its features are the variables that were used.

    Notes
    -----
    Written are, for ``key_added="robustnmf"``:

    - ``adata.obsm["X_robustnmf"]``: codes, (n_obs, n_components).
    - ``adata.varm["robustnmf"]``: components, (n_vars, n_components), each with maximum 1; zero for variables that were
      not used.
    - ``adata.uns["robustnmf"]``: "params" (those of the model, "layer" and "use_highly_variable", None left out),
      "scale", "n_iter" and "converged".

    Examples
    --------
    After the usual normalisation and logarithm::

        sc.pp.highly_variable_genes(adata)
        model = factorise_anndata(adata, 20, random_state=0, outlier_layer="outliers")
        sc.pp.neighbors(adata, use_rep="X_robustnmf")
        adata.varm["robustnmf"][:, 0].argsort()[-10:]  # the genes of the first component
    """
    if not all(hasattr(adata, name) for name in ("obsm", "varm", "uns", "layers")):
        raise TypeError(f"adata must be an AnnData object; got {type(adata).__name__}. Arrays go to RobustNMF.fit.")
    used = _variables(adata, use_highly_variable)
    X = _matrix(adata, layer, used)
    model = RobustNMF(n_components, **options)
    codes = np.asarray(model.fit_transform(X))  # a data frame, if scikit-learn is set so
    adata.obsm[f"X_{key_added}"] = codes
    adata.varm[key_added] = _placed(model.components_.T, used, (len(used), codes.shape[1]), fill=0)
    adata.uns[key_added] = {
        "params": _writable({"layer": layer, "use_highly_variable": not used.all(), **model.get_params()}),
        **_summary(model),
    }
    if outlier_layer is not None:
        is_sparse = sparse.issparse(X) or isinstance(rows_of(X), StoredSparsely)
        adata.layers[outlier_layer] = _widen(model.outliers_, used, is_sparse)
    return model


def factorise_xarray(array: Any, sample_dims: Any, n_components: int | Auto = 2, **options: Any) -> Any:
    """Factorise a DataArray; return its codes, components, cleaned values and outliers as a Dataset.

    Parameters
    ----------
    array : xarray.DataArray
        Non-negative data; NaN means missing.
    sample_dims : str or iterable of str
        Dimensions whose points are samples; those of the others are features.
    n_components : int or "auto"
        Number of components.
    **options
        Parameters of `RobustNMF`; for weights and uncertainties, and for new data, see `XarrayAdapter`.

    Returns
    -------
    xarray.Dataset
        See `XarrayAdapter.fit`.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from robustnmf.labelled import factorise_xarray
    >>> rng = np.random.default_rng(0)
    >>> spectra = rng.random((8, 10, 3)) @ rng.random((3, 30)) + 0.01 * rng.random((8, 10, 30))
    >>> spectra[2, 3, 4] = 50.0
    >>> cube = xr.DataArray(spectra, dims=("y", "x", "band"), coords={"band": np.linspace(400, 700, 30)})
    >>> result = factorise_xarray(cube, ("y", "x"), 3, random_state=0)
    >>> result["codes"].dims, result["components"].dims
    (('y', 'x', 'component'), ('component', 'band'))
    >>> bool(result["outliers"].sel(y=2, x=3).isel(band=4)), float(result["cleaned"].max()) < 5
    (True, True)
    """
    return XarrayAdapter(RobustNMF(n_components, **options), sample_dims).fit(array)


class XarrayAdapter:
    """A `RobustNMF` that takes labelled arrays of any number of dimensions and returns such arrays.

    Parameters
    ----------
    estimator : RobustNMF
        The model; `fit` fits it in place.
    sample_dims : str or iterable of str
        Dimensions whose points are samples; those of the others are features.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from robustnmf import RobustNMF
    >>> from robustnmf.labelled import XarrayAdapter
    >>> rng = np.random.default_rng(0)
    >>> values = rng.random((60, 3)) @ rng.random((3, 20)) + 0.01 * rng.random((60, 20))
    >>> air = xr.DataArray(values, dims=("day", "species"), coords={"species": list("abcdefghijklmnopqrst")})
    >>> adapter = XarrayAdapter(RobustNMF(3, random_state=0), "day")
    >>> adapter.fit(air[:50])["components"].sel(species="b").shape
    (3,)
    >>> adapter.transform(air[50:])["codes"].shape
    (10, 3)
    """

    def __init__(self, estimator: RobustNMF, sample_dims: str | Iterable[str]) -> None:
        self.estimator = estimator
        self.sample_dims = (sample_dims,) if isinstance(sample_dims, str) else tuple(sample_dims)

    def fit(self, array: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Learn the components of an array.

        Parameters
        ----------
        array : xarray.DataArray
            Non-negative data; NaN means missing. Samples and features of which nothing is observed (the land on a map
            of the sea) are left out, and NaN in the result.
        weights, uncertainties : DataArray, array of the same shape or None
            As in `RobustNMF.fit`; a DataArray may have some of the dimensions only.

        Returns
        -------
        xarray.Dataset
            With all coordinates of the array: "codes" (sample dimensions and "component"), "components" ("component"
            and feature dimensions, each with maximum 1), "cleaned" (the array with outliers and gaps filled in) and
            "outliers" (bool), both with the dimensions of the array. Scale, iterations and convergence are attributes.
        """
        features = self._feature_dims(array)
        data = _Table.of(array, self.sample_dims, features, weights, uncertainties)
        seen = np.asarray(data.observed.any(axis=0))
        result = self._result(array, data, seen, learn=True)
        self._seen = seen
        self._features = array.isel(dict.fromkeys(self.sample_dims, 0), drop=True)
        components = _placed(self.estimator.components_, np.s_[:, seen], (self.estimator.n_components_, len(seen)))
        shape = (len(components), *self._features.shape)
        result = result.assign(components=((COMPONENT, *features), components.reshape(shape)))
        return result[["codes", "components", "cleaned", "outliers"]]

    def transform(self, array: Any, *, weights: Any = None, uncertainties: Any = None) -> Any:
        """Return the Dataset of `fit`, less the components, for new samples; nothing is learnt.

        Parameters
        ----------
        array : DataArray
            New samples, with the feature dimensions of the fit.
        weights, uncertainties : DataArray or None
            As in `fit`.

        Returns
        -------
        Dataset
            Codes, cleaned data and outliers.
        """
        check_is_fitted(self.estimator)
        given = self._feature_dims(array)
        if set(given) != set(self._features.dims):
            raise ValueError(
                f"The array must have the feature dimensions {self._features.dims} of the fit; got {given}."
            )
        _check_labels(array, self._features, self._features.dims, "the array", "the fit")
        data = _Table.of(array, self.sample_dims, self._features.dims, weights, uncertainties)
        return self._result(array, data, self._seen, learn=False)

    def _feature_dims(self, array: Any) -> tuple[str, ...]:
        """Return the dimensions that are not of samples, if the array is one that can be factorised."""
        if not all(hasattr(array, name) for name in ("dims", "coords", "to_dataset")):
            raise TypeError(
                f"array must be an xarray.DataArray; got {type(array).__name__}. Of a Dataset, take one variable, or "
                "all by to_dataarray()."
            )
        features = tuple(name for name in array.dims if name not in self.sample_dims)
        if not self.sample_dims or not features or not set(self.sample_dims) <= set(array.dims):
            raise ValueError(
                f"sample_dims must be some, but not all, of the dimensions {tuple(array.dims)}; got {self.sample_dims}."
            )
        if COMPONENT in array.dims or COMPONENT in array.coords:
            raise ValueError(f"The name {COMPONENT!r} is needed for the result: rename that of the array.")
        return features

    def _result(self, array: Any, data: "_Table", seen: Matrix, *, learn: bool) -> Any:
        """Fit or encode the samples that hold something, and return what is known of all."""
        samples = np.asarray(data.observed[:, seen].any(axis=1))
        inside = np.ix_(samples, seen)
        X, model = data.X[inside], self.estimator
        about = {name: values[inside] for name, values in data.about.items()}
        some_codes = np.asarray(model.fit_transform(X, **about) if learn else model.transform(X, **about))
        some_outliers = model.outliers_ if learn else model.outlier_mask(X, **about)
        # What `clean` returns, without encoding all samples once more.
        replaced = some_outliers | ~data.observed[inside]
        some_cleaned = np.where(replaced, some_codes @ model.components_, X).astype(some_codes.dtype, copy=False)
        codes = _placed(some_codes, samples, (len(samples), model.n_components_))
        cleaned = _placed(some_cleaned, inside, data.X.shape)
        outliers = _placed(np.asarray(some_outliers), inside, data.X.shape, fill=False)
        return self._dataset(array, data, codes, cleaned, outliers)

    def _dataset(self, array: Any, data: "_Table", codes: Matrix, cleaned: Matrix, outliers: Matrix) -> Any:
        sizes = tuple(array.sizes[name] for name in self.sample_dims)
        # Components have maximum 1, so codes are in the unit of the data.
        unit = {name: value for name, value in array.attrs.items() if name == "units"}
        result = array.coords.to_dataset().assign(
            codes=((*self.sample_dims, COMPONENT), codes.reshape(*sizes, -1), unit),
            cleaned=(array.dims, data.untable(cleaned, array), array.attrs),
            outliers=(array.dims, data.untable(outliers, array)),
        )
        # Files of netCDF know no truth values.
        about = {name: int(x) if isinstance(x, bool) else x for name, x in _summary(self.estimator).items()}
        return result.assign_coords({COMPONENT: np.arange(codes.shape[1])}).assign_attrs(about)


@dataclass(frozen=True)
class _Table:
    """A labelled array as a matrix, samples in rows."""

    dims: tuple[str, ...]
    """The dimensions of the array, those of samples first."""
    X: Matrix
    """(n_samples, n_features)."""
    about: dict[str, Matrix]
    """Weights and uncertainties, of the same shape."""
    observed: Matrix
    """Which entries count."""

    @classmethod
    def of(
        cls, array: Any, sample_dims: tuple[str, ...], feature_dims: tuple[str, ...], weights: Any, uncertainties: Any
    ) -> "_Table":
        """Stack the dimensions of an array and what is known of its entries."""
        dims = (*sample_dims, *feature_dims)
        shape = tuple(prod(array.sizes[name] for name in some) for some in (sample_dims, feature_dims))

        def table(values: Any) -> Matrix:
            return np.asarray(values.transpose(*dims).values).reshape(shape)

        given = {"weights": weights, "uncertainties": uncertainties}
        about = {name: table(_spread(x, array, name)) for name, x in given.items() if x is not None}
        X = table(array)
        observed = ~np.isnan(X)
        return cls(dims, X, about, observed & (about["weights"] > 0) if "weights" in about else observed)

    def untable(self, values: Matrix, array: Any) -> Matrix:
        """Return a matrix like X with the shape of the array."""
        unstacked = values.reshape([array.sizes[name] for name in self.dims])
        return unstacked.transpose([self.dims.index(name) for name in array.dims])


def _spread(values: Any, array: Any, name: str) -> Any:
    """Return weights or uncertainties as an array with all dimensions of the data."""
    if not hasattr(values, "broadcast_like"):
        values = np.asarray(values)
        if values.shape != array.shape:
            raise ValueError(f"{name} must have the shape of the array, {array.shape}; got {values.shape}.")
        return array.copy(data=values)
    if not set(values.dims) <= set(array.dims):
        raise ValueError(f"{name} must have dimensions of the array, {tuple(array.dims)}; got {tuple(values.dims)}.")
    _check_labels(values, array, values.dims, name, "the array")
    return values.broadcast_like(array)


def _check_labels(given: Any, wanted: Any, dims: tuple[str, ...], what: str, of_what: str) -> None:
    """Refuse an array whose size or coordinates along some dimensions are others: they would be aligned silently."""
    for dim in dims:
        same = given.sizes[dim] == wanted.sizes[dim]
        if same and dim in given.indexes and dim in wanted.indexes:
            same = given.indexes[dim].equals(wanted.indexes[dim])
        if not same:
            raise ValueError(
                f"{what[0].upper()}{what[1:]} must have the coordinates of {of_what} along {dim!r}, in the same order; "
                "select or reindex them."
            )


def _variables(adata: Any, use_highly_variable: bool | None) -> Matrix:
    marked = "highly_variable" in adata.var
    if use_highly_variable and not marked:
        raise ValueError(
            'use_highly_variable=True needs marks in adata.var["highly_variable"]; run '
            "scanpy.pp.highly_variable_genes, or pass False."
        )
    if not marked or use_highly_variable is False:
        return np.ones(adata.n_vars, dtype=bool)
    return np.asarray(adata.var["highly_variable"], dtype=bool)


def _matrix(adata: Any, layer: str | None, used: Matrix) -> Any:
    """Return the values of some variables of an AnnData object, where they are: in memory, or in its file."""
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"layer must be one of {list(adata.layers)}, or None for adata.X; got {layer!r}.")
    if getattr(adata, "isbacked", False) and adata.is_view:
        raise ValueError(
            "adata must not be a view of an object that is backed by a file: results cannot be written into it. Use "
            "adata.to_memory(), or adata.copy(filename=...)."
        )
    X = adata.X if layer is None else adata.layers[layer]
    if X is None:
        raise ValueError(f"adata.X is empty; name one of the layers, {list(adata.layers)}.")
    if used.all():
        return X
    rows = rows_of(X)
    return X[:, used] if rows is None else some_columns(rows, np.flatnonzero(used))


def _widen(outliers: Any, used: Matrix, as_sparse: bool) -> Any:
    """Return a mask of some variables as one of all, False elsewhere, (n_obs, n_vars)."""
    if isinstance(outliers, LazyMatrix):
        outliers = sparse.vstack([sparse.csr_matrix(block) for _, block in outliers.blocks()], format="csr")
    shape = (outliers.shape[0], len(used))
    if not as_sparse and not sparse.issparse(outliers):
        return _placed(outliers, np.s_[:, used], shape, fill=False)
    found = sparse.coo_matrix(outliers)
    places = (found.row, np.flatnonzero(used)[found.col])
    return sparse.csr_matrix((np.ones(found.nnz, dtype=bool), places), shape=shape)


def _placed(values: Matrix, places: Any, shape: tuple[int, ...], fill: float = np.nan) -> Matrix:
    """Return an array of a shape that has values in some places, and is filled elsewhere."""
    whole = np.full(shape, fill, dtype=values.dtype)
    whole[places] = values
    return whole


def _summary(model: RobustNMF) -> dict[str, Any]:
    return {"scale": float(model.scale_), "n_iter": int(model.n_iter_), "converged": bool(model.converged_)}


def _writable(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters that are set, in types that files of AnnData can hold."""
    return {
        name: value if isinstance(value, str | Number | np.ndarray) else repr(value)
        for name, value in parameters.items()
        if value is not None
    }
