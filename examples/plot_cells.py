"""
Types of blood cells with wrong counts
======================================

Expression of 765 genes in 700 blood cells is a sparse matrix. One of a hundred stored entries is made 10 to 100 times
as large. Groups of cells by ordinary NMF then have nothing to do with cell types; those by
:class:`robustnmf.RobustNMF` do.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.decomposition import NMF
from sklearn.metrics import adjusted_rand_score

from robustnmf import RobustNMF

try:
    import scanpy as sc
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("This example takes its cells from the package scanpy: pip install scanpy") from error

# %%
# Data
# ----
# The cells come with ``scanpy`` (BSD-3-Clause). ``adata.X`` is scaled and so negative here and there;
# ``adata.raw`` holds the logarithms, which are not.
adata = sc.datasets.pbmc68k_reduced()
clean, types = sparse.csr_array(adata.raw.X, dtype=float), adata.obs["bulk_labels"]

rng = np.random.default_rng(0)
wrong = rng.random(clean.nnz) < 0.01
X = clean.copy()
X.data[wrong] *= rng.uniform(10, 100, wrong.sum())

# %%
# Fit
# ---
# Groups are those of k-means on the codes, as many as there are types.
models = {"NMF": NMF(8, init="nndsvda", max_iter=1000, random_state=0), "robustnmf": RobustNMF(8, random_state=0)}
groups = {}
for name, model in models.items():
    codes = model.fit_transform(X) * np.linalg.norm(model.components_, axis=1)
    groups[name] = KMeans(types.nunique(), n_init=10, random_state=0).fit_predict(codes)
    print(f"{name}: adjusted Rand index {adjusted_rand_score(types, groups[name]):.2f}")

robust = models["robustnmf"]
found = sparse.csr_array(robust.outliers_).toarray()[clean.nonzero()]
print(f"mask: {found[wrong].mean():.1%} of the wrong entries, {found[~wrong].mean():.1%} of the others")
for component in robust.components_ / robust.components_.sum(axis=0):  # genes that are in one component only
    component = component * (robust.components_.max(axis=0) > np.median(robust.components_.max(axis=0)))
    print("marker genes:", *adata.raw.var_names[np.argsort(-component)[:5]])

# %%
# Result
# ------
# The map (UMAP) was computed by the authors of the data. Colours of groups have no meaning of their own.
figure, axes = plt.subplots(1, 3, figsize=(11, 4.4), sharex=True, sharey=True, layout="constrained")
place = adata.obsm["X_umap"].T
for number, name in enumerate(types.cat.categories):
    axes[0].plot(*place[:, types == name], ".", color=f"C{number}", markersize=4, label=name)
axes[0].set_title("cell types")
for ax, (name, group) in zip(axes[1:], groups.items(), strict=True):
    ax.scatter(*place, s=5, c=group, cmap="tab10")
    ax.set_title(f"{name}: agreement {adjusted_rand_score(types, group):.2f}")
for ax in axes:
    ax.set(xticks=[], yticks=[])
figure.legend(loc="outside lower center", ncols=4, markerscale=2, frameon=False)

# %%
# NMF spends its components on the errors: nearly all cells are in one group.
