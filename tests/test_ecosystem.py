"""Labelled data of other packages: hyperspy, AnnData, xarray, pandas; tests of a package that is absent are skipped."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.data.lazy_results import LazyMatrix
from robustnmf.formats.h5ad import SparseHDF5Rows
from robustnmf.labelled import XarrayAdapter, factorise_anndata, factorise_xarray
from robustnmf.metrics import relative_error

RANK = 3
OPTIONS = {"random_state": 0}


def spectra(*shape, channels=40, seed=0, spikes=0.02):
    """Mixtures of three peaks with noise, and spikes of twenty times their height."""
    rng = np.random.default_rng(seed)
    peaks = np.exp(-0.5 * ((np.arange(channels) - np.array([[8], [20], [32]])) / 4) ** 2) + 0.05
    clean = 100 * rng.dirichlet(np.ones(RANK), size=shape) @ peaks
    hit = rng.random(clean.shape) < spikes
    noisy = np.maximum(clean + rng.normal(size=clean.shape), 0)
    return np.where(hit, noisy + 2000, noisy), clean, hit


# ---------------------------------------------------------------------------------------------------------- hyperspy


@pytest.fixture
def hyperspy():
    """Not a requirement of any kind: its licence is the GPL."""
    return pytest.importorskip("hyperspy.api")


def decompose(hyperspy, data, **arguments):
    """Return a signal after a decomposition as a user would type it, and the model."""
    signal, model = hyperspy.signals.Signal1D(data.copy()), RobustNMF(RANK, **OPTIONS)
    signal.decomposition(algorithm=model, output_dimension=RANK, print_info=False, **arguments)
    return signal, model


def test_hyperspy_decomposes_and_its_model_is_free_of_spikes(hyperspy):
    data, clean, hit = spectra(12, 10)
    signal, model = decompose(hyperspy, data)
    assert relative_error(clean, signal.get_decomposition_model().data) < 0.02
    assert signal.get_decomposition_factors().data.shape == (RANK, 40)
    assert signal.get_decomposition_loadings().data.shape == (RANK, 12, 10)
    np.testing.assert_array_equal(signal.data, data)
    np.testing.assert_array_equal(model.outliers_.reshape(data.shape), hit)
    plain = hyperspy.signals.Signal1D(data.copy())
    plain.decomposition(algorithm="NMF", output_dimension=RANK, print_info=False)
    assert relative_error(clean, plain.get_decomposition_model().data) > 1


def test_hyperspy_signal_is_cleaned_as_the_notes_say(hyperspy):
    data, clean, hit = spectra(12, 10)
    signal, model = decompose(hyperspy, data)
    cleaned = signal.deepcopy()
    cleaned.data = model.clean(signal.data.reshape(-1, signal.data.shape[-1])).reshape(signal.data.shape)
    np.testing.assert_array_equal(cleaned.data[~hit], data[~hit])
    assert relative_error(clean, cleaned.data) < 0.05


def test_hyperspy_masks_and_missing_values_are_left_out(hyperspy):
    data, clean, _ = spectra(12, 10)
    data[0, 0, 10:14] = np.nan
    pixels, channels = np.zeros((12, 10), dtype=bool), np.zeros(40, dtype=bool)
    pixels[3:5, 2:4] = channels[:5] = True
    # hyperspy names axes x first: a mask of pixels is transposed.
    signal, model = decompose(hyperspy, data, navigation_mask=pixels.T, signal_mask=channels)
    result = signal.get_decomposition_model().data
    assert model.outliers_.shape == (116, 35)
    assert np.isnan(result[pixels]).all() and np.isnan(result[..., channels]).all()
    assert relative_error(clean[~pixels][:, ~channels], result[~pixels][:, ~channels]) < 0.02


def test_hyperspy_learns_lazy_signals_chunk_by_chunk(hyperspy):
    array = pytest.importorskip("dask.array")
    data, clean, _ = spectra(30, 12)
    signal, _ = decompose(hyperspy, array.from_array(data, chunks=(10, 12, 40)))
    assert relative_error(clean, np.asarray(signal.get_decomposition_model().data)) < 0.02


# ----------------------------------------------------------------------------------------------------------- AnnData


@pytest.fixture
def anndata():
    module = pytest.importorskip("anndata")
    if hasattr(module.settings, "allow_write_nullable_strings"):  # of names, as pandas 3 makes them
        module.settings.allow_write_nullable_strings = True
    return module


def cells(anndata, matrix=np.asarray, dtype=np.float64):
    """Return 80 cells with 40 genes, every fifth of which is not marked as highly variable."""
    X, _, hit = spectra(80)
    var = pd.DataFrame({"highly_variable": np.arange(40) % 5 > 0}, index=[f"gene{i}" for i in range(40)])
    return anndata.AnnData(
        matrix(X.astype(dtype)), var=var, obs=pd.DataFrame(index=[f"cell{i}" for i in range(80)])
    ), hit


def test_anndata_receives_codes_components_mask_and_parameters(anndata, tmp_path):
    adata, hit = cells(anndata)
    model = factorise_anndata(adata, RANK, use_highly_variable=False, outlier_layer="outliers", **OPTIONS)
    reference = RobustNMF(RANK, **OPTIONS)
    np.testing.assert_array_equal(adata.obsm["X_robustnmf"], reference.fit_transform(adata.X))
    np.testing.assert_array_equal(adata.varm["robustnmf"], reference.components_.T)
    np.testing.assert_array_equal(adata.layers["outliers"], hit)
    assert adata.uns["robustnmf"]["scale"] == model.scale_
    adata.write_h5ad(tmp_path / "cells.h5ad")
    stored = anndata.read_h5ad(tmp_path / "cells.h5ad")
    np.testing.assert_array_equal(stored.obsm["X_robustnmf"], adata.obsm["X_robustnmf"])
    parameters = stored.uns["robustnmf"]["params"]
    assert (parameters["n_components"], parameters["random_state"], parameters["method"]) == (3, 0, "truncated-cauchy")


def test_anndata_highly_variable_genes_are_used_if_marked(anndata):
    adata, hit = cells(anndata)
    marked = adata.var["highly_variable"].to_numpy()
    model = factorise_anndata(adata, RANK, outlier_layer="wrong", **OPTIONS)
    assert model.n_features_in_ == marked.sum()
    np.testing.assert_array_equal(adata.varm["robustnmf"][marked], model.components_.T)
    assert not adata.varm["robustnmf"][~marked].any()
    np.testing.assert_array_equal(adata.layers["wrong"], hit & marked)
    del adata.var["highly_variable"]
    assert factorise_anndata(adata, RANK, **OPTIONS).n_features_in_ == 40
    with pytest.raises(ValueError, match="highly_variable_genes"):
        factorise_anndata(adata, RANK, use_highly_variable=True)


@pytest.mark.parametrize("engine", ["auto", "sparse"])
@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array])
def test_anndata_sparse_data_stays_sparse_and_gives_what_dense_data_gives(anndata, kind, engine):
    adata, _ = cells(anndata, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = factorise_anndata(adata, RANK, outlier_layer="outliers", engine=engine, **OPTIONS)
    assert sparse.issparse(adata.X) and sparse.issparse(adata.layers["outliers"])
    assert sparse.issparse(model.outliers_) is (engine == "sparse")
    dense, hit = cells(anndata)
    factorise_anndata(dense, RANK, outlier_layer="outliers", **OPTIONS)
    np.testing.assert_allclose(adata.obsm["X_robustnmf"], dense.obsm["X_robustnmf"], rtol=1e-9)
    np.testing.assert_array_equal(adata.layers["outliers"].toarray(), dense.layers["outliers"])
    np.testing.assert_array_equal(adata.layers["outliers"].toarray(), hit & adata.var["highly_variable"].to_numpy())


def test_anndata_sparse_data_keeps_its_precision_and_layers(anndata, tmp_path):
    adata, _ = cells(anndata, sparse.csr_matrix, np.float32)
    adata.layers["half"] = (adata.X / 2).astype(np.float32)  # SciPy divides in double precision
    factorise_anndata(adata, RANK, layer="half", outlier_layer="outliers", engine="sparse", **OPTIONS)
    assert adata.obsm["X_robustnmf"].dtype == adata.varm["robustnmf"].dtype == np.float32
    half = RobustNMF(RANK, **OPTIONS).fit(adata.layers["half"][:, adata.var["highly_variable"].to_numpy()])
    found = adata.varm["robustnmf"][adata.var["highly_variable"]]
    np.testing.assert_allclose(found, half.components_.T, rtol=1e-3, atol=3e-3)  # both end within the tolerance of fits
    adata.write_h5ad(tmp_path / "cells.h5ad")
    stored = anndata.read_h5ad(tmp_path / "cells.h5ad")
    assert (stored.layers["outliers"] != adata.layers["outliers"]).nnz == 0


def test_anndata_entries_that_are_not_stored_may_be_missing(anndata):
    adata, _ = cells(anndata)
    gone = np.random.default_rng(3).random(adata.shape) < 0.3
    gaps = np.where(gone, np.nan, adata.X)
    adata.X = sparse.csr_matrix(np.where(gone, 0, adata.X))
    factorise_anndata(adata, RANK, use_highly_variable=False, zeros="missing", **OPTIONS)
    expected = RobustNMF(RANK, **OPTIONS).fit(gaps)
    np.testing.assert_allclose(adata.varm["robustnmf"], expected.components_.T, rtol=1e-6)
    assert adata.uns["robustnmf"]["params"]["zeros"] == "missing"


def test_anndata_view_becomes_an_object_of_its_own(anndata):
    adata, _ = cells(anndata)
    adata.layers["half"] = adata.X / 2
    view = adata[10:70]
    with pytest.warns(anndata.ImplicitModificationWarning):
        factorise_anndata(view, RANK, layer="half", key_added="nmf", outlier_layer="outliers", **OPTIONS)
    assert not view.is_view and view.obsm["X_nmf"].shape == (60, RANK) and view.uns["nmf"]["params"]["layer"] == "half"
    assert not adata.obsm and "outliers" not in adata.layers
    codes = RobustNMF(RANK, **OPTIONS).fit_transform(adata.layers["half"][10:70, adata.var["highly_variable"]])
    np.testing.assert_array_equal(view.obsm["X_nmf"], codes)


@pytest.mark.parametrize("marked", [False, True], ids=["all genes", "marked genes"])
@pytest.mark.parametrize("options", [{}, {"engine": "stream"}, {"engine": "stream", "zeros": "missing"}])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
def test_anndata_in_a_file_is_read(anndata, tmp_path, kind, options, marked):
    adata, _ = cells(anndata, kind)
    if "zeros" in options and kind is not sparse.csr_matrix:
        pytest.skip("zeros are missing in sparse data, and columns are not streamed")
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    given = {"use_highly_variable": marked, "outlier_layer": "outliers"} | options
    model = factorise_anndata(backed, RANK, **given, **OPTIONS)
    factorise_anndata(adata, RANK, **given | {"engine": "auto"}, **OPTIONS)
    assert isinstance(model.outliers_, LazyMatrix) is ("engine" in options)
    np.testing.assert_allclose(backed.obsm["X_robustnmf"], adata.obsm["X_robustnmf"], rtol=1e-6)
    np.testing.assert_allclose(backed.varm["robustnmf"], adata.varm["robustnmf"], rtol=1e-6)
    masks = (backed.layers["outliers"], adata.layers["outliers"])
    np.testing.assert_array_equal(*(mask.toarray() if sparse.issparse(mask) else mask for mask in masks))
    assert sparse.issparse(backed.layers["outliers"]) is (kind is not np.asarray or "engine" in options)
    backed.file.close()


@pytest.mark.parametrize("marked", [False, True], ids=["all genes", "marked genes"])
def test_anndata_in_a_large_file_stays_there(anndata, tmp_path, monkeypatch, marked):
    adata, _ = cells(anndata, sparse.csr_matrix)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    monkeypatch.setattr("robustnmf.data.out_of_core.LARGE", 0)
    monkeypatch.setattr(SparseHDF5Rows, "load", None)
    monkeypatch.setattr(type(backed.X), "to_memory", None)
    model = factorise_anndata(backed, RANK, use_highly_variable=marked, **OPTIONS)
    assert isinstance(model.outliers_, LazyMatrix)
    factorise_anndata(adata, RANK, use_highly_variable=marked, **OPTIONS)
    np.testing.assert_allclose(backed.obsm["X_robustnmf"], adata.obsm["X_robustnmf"], rtol=1e-6)
    backed.file.close()


def test_anndata_of_columns_in_a_large_file_says_what_to_do(anndata, tmp_path, monkeypatch):
    adata, _ = cells(anndata, sparse.csc_matrix)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    monkeypatch.setattr("robustnmf.data.out_of_core.LARGE", 0)
    with pytest.raises(ValueError, match=r"stored by columns \(CSC\).*tocsr"):
        factorise_anndata(backed, RANK, **OPTIONS)
    with pytest.raises(ValueError, match="must not be a view of an object that is backed"):
        factorise_anndata(backed[:50], RANK, **OPTIONS)
    backed.file.close()


def test_anndata_mistakes_are_explained(anndata):
    adata, _ = cells(anndata)
    with pytest.raises(ValueError, match="layer must be one of"):
        factorise_anndata(adata, RANK, layer="counts")
    with pytest.raises(TypeError, match="AnnData"):
        factorise_anndata(adata.X, RANK)
    with pytest.raises(ValueError, match="empty"):
        factorise_anndata(anndata.AnnData(obs=adata.obs, var=adata.var), RANK)


class LikeAnnData(SimpleNamespace):
    """What is used of AnnData, for where it is not installed."""

    def __init__(self, X, marked):
        super().__init__(X=X, layers={}, obsm={}, varm={}, uns={}, n_vars=X.shape[1], is_view=False)
        self.var = pd.DataFrame({"highly_variable": marked})


@pytest.mark.thinned(3)
@pytest.mark.parametrize("engine", ["auto", "sparse", "stream"])
@pytest.mark.parametrize("in_file", [False, True])
def test_sparse_data_of_what_is_like_anndata_stays_sparse(tmp_path, engine, in_file):
    X, _, hit = spectra(80)
    marked, matrix = np.arange(40) % 5 > 0, sparse.csr_matrix(X)
    given = matrix
    if in_file:
        file = pytest.importorskip("h5py").File(tmp_path / "cells.h5ad", "w")
        given = file.create_group("X")
        given.attrs["encoding-type"], given.attrs["shape"] = "csr_matrix", matrix.shape
        for name in ("data", "indices", "indptr"):
            given[name] = getattr(matrix, name)
        file.flush()
    adata = LikeAnnData(matrix, marked)
    adata.X = given
    model = factorise_anndata(adata, RANK, outlier_layer="wrong", engine=engine, **OPTIONS)
    expected = RobustNMF(RANK, **OPTIONS).fit(X[:, marked])
    np.testing.assert_allclose(adata.varm["robustnmf"][marked], expected.components_.T, rtol=1e-6)
    assert not adata.varm["robustnmf"][~marked].any() and model.n_features_in_ == marked.sum()
    assert sparse.issparse(adata.layers["wrong"])
    np.testing.assert_array_equal(adata.layers["wrong"].toarray(), hit & marked)


# ------------------------------------------------------------------------------------------------------------ xarray


@pytest.fixture
def cube():
    """Return y x band x, in an order that must be rearranged, with coordinates of every kind, and what is clean."""
    xarray = pytest.importorskip("xarray")
    data, clean, hit = spectra(10, 8)
    coords = {
        "y": np.arange(10) * 30.0,
        "band": np.linspace(400, 790, 40),
        "latitude": (("y", "x"), np.random.default_rng(1).random((10, 8))),
        "instrument": ("band", ["A"] * 20 + ["B"] * 20),
    }
    arrays = (np.moveaxis(values, 2, 1) for values in (data, clean, hit))
    return [xarray.DataArray(x, dims=("y", "band", "x"), coords=coords, attrs={"units": "W"}) for x in arrays]


def test_xarray_results_are_those_of_the_estimator_with_labels(cube):
    data, clean, hit = cube
    result = factorise_xarray(data, ("y", "x"), RANK, **OPTIONS)
    model = RobustNMF(RANK, **OPTIONS)
    table = data.transpose("y", "x", "band").values.reshape(80, 40)
    np.testing.assert_array_equal(result["codes"], model.fit_transform(table).reshape(10, 8, RANK))
    np.testing.assert_array_equal(result["components"], model.components_)
    np.testing.assert_array_equal(
        result["cleaned"].transpose("y", "x", "band").values.reshape(80, 40), model.clean(table)
    )
    np.testing.assert_array_equal(result["outliers"], hit)
    assert result["codes"].dims == ("y", "x", "component") and result["components"].dims == ("component", "band")
    assert result["cleaned"].dims == result["outliers"].dims == data.dims
    assert result.attrs["scale"] == model.scale_
    assert relative_error(clean, result["cleaned"]) < 0.05


def test_xarray_coordinates_and_units_are_kept(cube):
    data, _, _ = cube
    result = factorise_xarray(data, ["y", "x"], RANK, **OPTIONS)
    for name, coordinate in data.coords.items():
        assert result.coords[name].identical(coordinate)
    assert set(result["codes"].coords) == {"y", "latitude", "component"}
    assert set(result["components"].coords) == {"band", "instrument", "component"}
    assert result["cleaned"].attrs == result["codes"].attrs == {"units": "W"}
    assert result["components"].sel(band=400, component=1).ndim == 0


def test_xarray_many_feature_dimensions_are_stacked(cube):
    data, _, _ = cube
    result = factorise_xarray(data.transpose("x", "band", "y"), "y", 2, method="l2", **OPTIONS)
    assert result["codes"].dims == ("y", "component")
    assert result["components"].dims == ("component", "x", "band")
    assert result["outliers"].dims == ("x", "band", "y")
    product = (result["codes"] * result["components"]).sum("component").transpose("x", "band", "y")
    fitted = RobustNMF(2, method="l2", **OPTIONS).fit(data.transpose("y", "x", "band").values.reshape(10, -1))
    np.testing.assert_allclose(np.linalg.norm(product - data.transpose(*product.dims)), fitted.reconstruction_err_)


def test_xarray_gaps_are_filled_and_what_is_empty_stays_empty(cube):
    data, clean, _ = cube
    land = (data.y > 200) & (data.x < 3)
    gaps = data.where(~land).where(data.band != 400)
    gaps[0, 5:8, 0] = np.nan
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no observed entry")
        result = factorise_xarray(gaps, ("y", "x"), RANK, **OPTIONS)
    np.testing.assert_array_equal(result["codes"].isnull().all("component"), land)
    assert bool(result["components"].sel(band=400).isnull().all())
    np.testing.assert_array_equal(result["cleaned"].isnull(), (land | (data.band == 400)).transpose(*data.dims))
    assert not result["outliers"].where(gaps.isnull(), False).any()
    np.testing.assert_allclose(result["cleaned"][0, 5:8, 0], clean[0, 5:8, 0], rtol=0.1, atol=1)


def test_xarray_weights_and_uncertainties_may_have_some_of_the_dimensions(cube):
    data, _, _ = cube
    useful = (data.band > 450).astype(float)
    ignored = data.where(data.band > 450, 1e6)
    results = [XarrayAdapter(RobustNMF(RANK, **OPTIONS), ("y", "x")).fit(x, weights=useful) for x in (data, ignored)]
    assert results[0].drop_vars("cleaned").identical(results[1].drop_vars("cleaned"))
    noise = 0.5 + data.band / 1000
    adapter = XarrayAdapter(RobustNMF(RANK, **OPTIONS), ("y", "x"))
    labelled = adapter.fit(data, uncertainties=noise)
    whole = adapter.fit(data, uncertainties=np.broadcast_to(noise.values[:, None], data.shape))
    assert labelled.identical(whole)
    with pytest.raises(ValueError, match="coordinates of the array along 'band'"):
        adapter.fit(data, weights=useful.assign_coords(band=useful.band[::-1]))
    with pytest.raises(ValueError, match="shape of the array"):
        adapter.fit(data, weights=np.ones(3))


def test_xarray_new_samples_are_encoded_by_their_labels(cube):
    data, _, hit = cube
    adapter = XarrayAdapter(RobustNMF(RANK, **OPTIONS), ("y", "x"))
    with pytest.raises(NotFittedError):
        adapter.transform(data)
    fitted = adapter.fit(data)
    new = adapter.transform(data.isel(y=slice(2, 5)).transpose("band", "x", "y"))
    np.testing.assert_allclose(new["codes"], fitted["codes"].isel(y=slice(2, 5)), rtol=1e-12)
    assert new["codes"].y.equals(data.y[2:5])
    assert "components" not in new
    np.testing.assert_array_equal(new["outliers"].transpose(*hit.dims), hit.isel(y=slice(2, 5)))
    with pytest.raises(ValueError, match="coordinates of the fit along 'band'"):
        adapter.transform(data.isel(band=slice(None, None, -1)))


def test_xarray_mistakes_are_explained(cube):
    data, _, _ = cube
    for dims in ((), ("y", "x", "band"), ("time",)):
        with pytest.raises(ValueError, match="sample_dims must be some"):
            factorise_xarray(data, dims, RANK)
    with pytest.raises(TypeError, match="DataArray"):
        factorise_xarray(data.values, ("y", "x"), RANK)
    with pytest.raises(TypeError, match="to_dataarray"):
        factorise_xarray(data.to_dataset(name="a"), ("y", "x"), RANK)
    with pytest.raises(ValueError, match="rename"):
        factorise_xarray(data.rename(band="component"), ("y", "x"), RANK)


# ------------------------------------------------------------------------------------------------------------ pandas


def test_pandas_labels_go_all_the_way_through():
    values, _, hit = spectra(60)
    days = pd.date_range("2024-01-01", periods=60, name="day")
    frame = pd.DataFrame(values, index=days, columns=[f"channel{i}" for i in range(40)])
    model = TruncatedCauchyNMF(RANK, **OPTIONS).set_output(transform="pandas")
    codes = model.fit_transform(frame)
    assert codes.index.equals(days) and list(codes.columns) == [f"truncatedcauchynmf{k}" for k in range(RANK)]
    cleaned, mask = model.clean(frame), model.outlier_mask(frame)
    for result in (cleaned, mask):
        assert result.index.equals(days) and result.columns.equals(frame.columns)
    np.testing.assert_array_equal(mask, hit)
    pd.testing.assert_frame_equal(cleaned.where(~mask), frame.where(~mask))
    later = model.transform(frame.iloc[-5:])
    pd.testing.assert_frame_equal(later, codes.iloc[-5:])
