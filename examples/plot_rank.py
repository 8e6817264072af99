"""
How many components
===================

The rank is chosen by hiding entries and predicting them. Where entries are wrong, squared errors of the hidden ones
say which rank happens to lie closer to the outliers; a bounded loss does not listen to them.
"""

import matplotlib.pyplot as plt
import numpy as np

from robustnmf import plots, select_rank

# %%
# Data
# ----
# Four components, a little noise, and one entry in ten replaced.
rng = np.random.default_rng(0)
X = rng.gamma(1.0, size=(120, 4)) @ rng.gamma(1.0, size=(4, 60))
X += 0.1 * rng.random(X.shape)
X = np.where(rng.random(X.shape) < 0.1, rng.uniform(0, 100, X.shape), X)

# %%
# Fit
# ---
# Both searches fit the same models to the same splits, and differ in how they score them.
results = {
    scoring: select_rank(X, range(1, 8), n_splits=3, scoring=scoring, random_state=0)
    for scoring in ("robust", "squared")
}
for scoring, result in results.items():
    print(f"{scoring}: {result.chosen} components, standard errors up to {result.standard_error.max():.2g}")

# %%
# Result
# ------
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for ax, (scoring, result) in zip(axes, results.items(), strict=True):
    plots.rank_curve(result.ranks, result.mean, result.standard_error, chosen=result.chosen, ax=ax)
    ax.set_title(f'scoring="{scoring}"')

# %%
# The robust score has its knee at the true rank, four.
