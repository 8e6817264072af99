"""robustnmf with scanpy: AnnData in and out, layers, backed files, neighbours of codes, highly variable genes.

    pip install scanpy
    python benchmarks/peers/scanpy.py

The cells come with scanpy: 700 blood cells.
"""

import sys

sys.path.append(sys.path.pop(0))  # this file has the name of the package: the package comes first

import tempfile
import warnings
from pathlib import Path

import numpy as np
from checks import Checks
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF
from sklearn.metrics import adjusted_rand_score

from robustnmf import RobustNMF
from robustnmf.formats import read_table
from robustnmf.labelled import factorise_anndata
from robustnmf.metrics import feature_scores, specific_features
from robustnmf.selection.pooled import pool_components
from robustnmf.selection.stability import consensus

try:
    import anndata
    import scanpy as sc
except ImportError as error:
    raise SystemExit(f"{error}. Install it: pip install scanpy") from error

warnings.simplefilter("ignore")
RANK = 8
check = Checks()
CELLS = sc.datasets.pbmc68k_reduced().raw.to_adata()
GENES = CELLS[:, :200].copy()


def damaged(adata, share=0.01):
    """Return stored entries of which some are 10 to 100 times as large, and which."""
    rng = np.random.default_rng(0)
    X = adata.X.copy()
    wrong = rng.random(X.nnz) < share
    X.data[wrong] *= rng.uniform(10, 100, wrong.sum())
    return X, wrong


def agreement(codes, components, adata):
    groups = KMeans(10, n_init=10, random_state=0).fit_predict(codes * np.linalg.norm(components, axis=1))
    return adjusted_rand_score(adata.obs["bulk_labels"], groups)


FITTED = CELLS.copy()
FITTED.layers["measured"], WRONG = damaged(CELLS)
MODEL = factorise_anndata(FITTED, RANK, layer="measured", outlier_layer="outliers", random_state=0)


@check
def codes_are_in_obsm():
    assert FITTED.obsm["X_robustnmf"].shape == (700, RANK)


@check
def components_are_in_varm():
    np.testing.assert_array_equal(FITTED.varm["robustnmf"], MODEL.components_.T)


@check
def parameters_are_in_uns():
    assert FITTED.uns["robustnmf"]["params"]["layer"] == "measured"


@check
def outliers_are_a_sparse_layer_of_truth_values():
    layer = FITTED.layers["outliers"]
    assert sparse.issparse(layer) and layer.dtype == bool and layer.shape == FITTED.shape


@check
def mask_finds_the_errors():
    found = np.asarray(FITTED.layers["outliers"][CELLS.X.nonzero()]).ravel()
    recall, precision = found[WRONG].mean(), WRONG[found].mean()
    assert recall > 0.95 and precision > 0.95
    return f"recall {recall:.1%}, precision {precision:.1%}"


@check
def groups_agree_with_cell_types_as_without_errors():
    ours = agreement(FITTED.obsm["X_robustnmf"], MODEL.components_, CELLS)
    plain = NMF(RANK, init="nndsvda", max_iter=500, random_state=0)
    theirs = agreement(plain.fit_transform(FITTED.layers["measured"]), plain.components_, CELLS)
    assert ours > 0.35 > theirs
    return f"adjusted Rand index: RobustNMF {ours:.2f}, scikit-learn's NMF {theirs:.2f}"


@check
def data_is_unchanged():
    assert (FITTED.X != CELLS.X).nnz == 0


@check
def object_with_results_is_written_and_read():
    with tempfile.TemporaryDirectory() as folder:
        FITTED.write_h5ad(Path(folder) / "cells.h5ad")
        again = anndata.read_h5ad(Path(folder) / "cells.h5ad")
    np.testing.assert_array_equal(again.obsm["X_robustnmf"], FITTED.obsm["X_robustnmf"])
    assert (again.layers["outliers"] != FITTED.layers["outliers"]).nnz == 0


@check
def backed_object_gives_the_same():
    with tempfile.TemporaryDirectory() as folder:
        GENES.write_h5ad(Path(folder) / "cells.h5ad")
        backed = anndata.read_h5ad(Path(folder) / "cells.h5ad", backed="r")
        model = factorise_anndata(backed, 4, random_state=0)
        codes = np.asarray(backed.obsm["X_robustnmf"])
        backed.file.close()
    memory = GENES.copy()
    expected = factorise_anndata(memory, 4, random_state=0)
    np.testing.assert_allclose(model.components_, expected.components_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(codes, memory.obsm["X_robustnmf"], rtol=1e-3, atol=1e-3)


@check
def file_is_read_without_anndata():
    with tempfile.TemporaryDirectory() as folder:
        GENES.write_h5ad(Path(folder) / "cells.h5ad")
        matrix = read_table(Path(folder) / "cells.h5ad")
    assert list(matrix.feature_names) == list(GENES.var_names)


@check
def dense_and_sparse_give_the_same():
    dense = GENES.copy()
    dense.X = dense.X.toarray()
    one, other = (factorise_anndata(adata, 4, random_state=0) for adata in (dense, GENES.copy()))
    np.testing.assert_allclose(one.components_, other.components_, rtol=1e-5, atol=1e-7)


@check
def columns_first_and_rows_first_give_the_same():
    by_columns = GENES.copy()
    by_columns.X = sparse.csc_matrix(by_columns.X)
    one, other = (factorise_anndata(adata, 4, random_state=0) for adata in (by_columns, GENES.copy()))
    np.testing.assert_allclose(one.components_, other.components_, rtol=1e-5, atol=1e-7)


@check
def highly_variable_genes_only():
    adata = CELLS.copy()
    sc.pp.highly_variable_genes(adata, n_top_genes=150)
    model = factorise_anndata(adata, 4, random_state=0)
    used = adata.var["highly_variable"].to_numpy()
    assert model.n_features_in_ == used.sum() and not adata.varm["robustnmf"][~used].any()


@check
def highly_variable_genes_can_be_ignored():
    adata = GENES.copy()
    sc.pp.highly_variable_genes(adata, n_top_genes=50)
    assert factorise_anndata(adata, 4, use_highly_variable=False, random_state=0).n_features_in_ == 200


@check
def view_becomes_an_object_of_its_own():
    view = CELLS[:300, :100]
    factorise_anndata(view, 3, random_state=0)
    assert view.obsm["X_robustnmf"].shape == (300, 3) and "X_robustnmf" not in CELLS.obsm


@check
def name_of_results_can_be_chosen():
    adata = GENES.copy()
    factorise_anndata(adata, 3, key_added="programs", random_state=0)
    assert "X_programs" in adata.obsm and "programs" in adata.varm and "programs" in adata.uns


@check
def neighbours_from_codes():
    sc.pp.neighbors(FITTED, use_rep="X_robustnmf", random_state=0)
    assert FITTED.obsp["distances"].shape == (700, 700)


@check
def umap_from_codes():
    sc.tl.umap(FITTED, random_state=0, maxiter=20)
    assert np.isfinite(FITTED.obsm["X_umap"]).all()


@check
def embedding_is_plotted_by_scanpy():
    import matplotlib

    matplotlib.use("Agg")
    sc.pl.embedding(FITTED, "X_robustnmf", color="bulk_labels", show=False)


@check
def genes_are_ranked_for_groups_of_codes():
    FITTED.obs["program"] = FITTED.obsm["X_robustnmf"].argmax(axis=1).astype(str)
    FITTED.obs["program"] = FITTED.obs["program"].astype("category")
    counts = FITTED.obs["program"].value_counts()
    sc.tl.rank_genes_groups(FITTED, "program", groups=list(counts.index[counts > 5]), method="t-test")
    assert "rank_genes_groups" in FITTED.uns


@check
def dendrogram_of_codes():
    sc.tl.dendrogram(FITTED, "bulk_labels", use_rep="X_robustnmf")


@check
def counts_with_poisson_noise():
    counts = sc.AnnData(sparse.csr_matrix(np.random.default_rng(0).poisson(np.expm1(GENES.X.toarray()))).astype(float))
    assert factorise_anndata(counts, 4, noise="poisson", random_state=0).components_.shape == (4, 200)


@check
def normalised_and_logarithmic_counts():
    counts = sc.AnnData(np.random.default_rng(0).poisson(np.expm1(GENES.X.toarray())).astype(np.float32))
    sc.pp.normalize_total(counts)
    sc.pp.log1p(counts)
    assert factorise_anndata(counts, 4, random_state=0).components_.dtype == np.float32


@check
def scaled_data_is_refused_in_words():
    adata = GENES.copy()
    sc.pp.scale(adata)
    try:
        factorise_anndata(adata, 4)
    except ValueError as error:
        assert "negative" in str(error).lower()
        return
    raise AssertionError("negative data was taken")


@check
def layer_that_is_not_there_is_named():
    try:
        factorise_anndata(GENES.copy(), 4, layer="spliced")
    except (KeyError, ValueError) as error:
        assert "spliced" in str(error)
        return
    raise AssertionError("a layer that is not there was taken")


@check
def estimator_takes_the_matrix_and_the_data_frame():
    one = RobustNMF(4, random_state=0).fit(GENES.to_df())
    assert list(one.feature_names_in_) == list(GENES.var_names)


@check
def new_cells_are_encoded():
    model = factorise_anndata(GENES[:500].copy(), 4, random_state=0)
    assert model.transform(GENES[500:].X).shape == (200, 4)


@check
def cleaned_layer_is_near_the_data_without_errors():
    FITTED.layers["cleaned"] = MODEL.clean(FITTED.layers["measured"])  # dense: it is too small to stay sparse
    clean, before, after = CELLS.X.toarray(), FITTED.layers["measured"].toarray(), np.asarray(FITTED.layers["cleaned"])
    errors = [np.linalg.norm(values - clean) / np.linalg.norm(clean) for values in (before, after)]
    assert errors[1] < 0.1
    return f"relative error {errors[0]:.0%} before, {errors[1]:.1%} after"


@check
def specific_genes_of_programs():
    names = FITTED.var_names[specific_features(MODEL.components_)]
    assert 0 < len(names) < FITTED.n_vars and feature_scores(MODEL.components_).max() <= 1
    return f"{len(names)} genes"


@check
def consensus_of_cells():
    found = consensus(GENES.X, 4, n_init=3, estimator=RobustNMF(init="random"), random_state=0)
    assert 0 <= found.dispersion <= 1 and found.cophenetic <= 1
    return f"dispersion {found.dispersion:.2f}, cophenetic correlation {found.cophenetic:.2f}"


@check
def programs_are_pooled_as_in_cnmf():
    pooled = pool_components(GENES.X, 4, n_init=4, estimator=RobustNMF(init="random"), random_state=0)
    assert pooled.components.shape == (4, 200)
    return f"{pooled.kept.sum()} of {len(pooled.kept)} kept, silhouette {pooled.silhouette:.2f}"


@check
def concatenated_objects_keep_codes():
    joined = anndata.concat([FITTED[:100], FITTED[100:200]])
    assert joined.obsm["X_robustnmf"].shape == (200, RANK)


if __name__ == "__main__":
    sys.exit(check.run("scanpy", f"scanpy {sc.__version__}, anndata {anndata.__version__}", "peers_scanpy") > 0)
