"""
Faces under white blocks
========================

Every one of 400 faces has a white block painted over it, somewhere else in each. Ordinary NMF learns the blocks;
:class:`robustnmf.TruncatedCauchyNMF` cuts them off and shows where they were.
"""

import numpy as np
from sklearn.decomposition import NMF

from robustnmf import TruncatedCauchyNMF, plots
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion
from robustnmf.metrics import outlier_scores, relative_error

# %%
# Data
# ----
# The ORL faces come with the package. The truth is known here, and used for nothing but to score the results.
faces = load_orl()
X, blocks = block_occlusion(faces.data, 12, faces.image_shape, random_state=0)

# %%
# Fit
# ---
# Both models have 40 components. Nothing is tuned.
ordinary = NMF(40, init="random", max_iter=200, tol=0, random_state=0)
by_ordinary = ordinary.inverse_transform(ordinary.fit_transform(X))

robust = TruncatedCauchyNMF(40, random_state=0)
by_robust = robust.inverse_transform(robust.fit_transform(X))

scores = outlier_scores(blocks, robust.outliers_)
print(f"error of NMF        {relative_error(faces.data, by_ordinary):.1%}")
print(f"error of robustnmf  {relative_error(faces.data, by_robust):.1%}")
print(f"mask: precision {scores.precision:.1%}, recall {scores.recall:.1%}")

# %%
# Result
# ------
shown = np.arange(0, 400, 50)
figure = plots.before_after(
    [
        ("original", faces.data[shown]),
        ("given", X[shown]),
        ("NMF", by_ordinary[shown]),
        ("robustnmf", by_robust[shown]),
        ("its mask", robust.outliers_[shown]),
    ],
    faces.image_shape,
)

# %%
# The blocks are in the mask and not in the components, so the faces behind them can be seen again.
