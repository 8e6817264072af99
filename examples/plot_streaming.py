"""
A stream that drifts, and a burst of garbage
============================================

Samples arrive in batches, the components drift slowly, and for a while most of each sample is wrong. `partial_fit`
follows the drift and lets the burst pass by.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from robustnmf import RobustNMF
from robustnmf.errors import DataQualityWarning
from robustnmf.metrics import match_components

# %%
# Data
# ----
# Three peaks on a low background, which move by a tenth of a feature per batch. In batches 20 to 24 six entries of ten
# are garbage.
N_BATCHES, BURST = 45, range(20, 25)
rng = np.random.default_rng(0)
feature = np.arange(60)


def components_at(time):
    """Return the true components, (3, 60)."""
    return 0.05 + np.exp(-(((feature - np.array([[10], [25], [40]]) - 0.1 * time) / 5) ** 2))


def batch_at(time):
    """Return 100 samples."""
    clean = rng.gamma(1.0, size=(100, 3)) @ components_at(time) + 0.02 * rng.random((100, 60))
    wrong = rng.random(clean.shape) < (0.6 if time in BURST else 0.02)
    return np.where(wrong, rng.uniform(0, 20, clean.shape), clean)


# %%
# Fit
# ---
# One model learns from every batch, the other from the first alone.
first = RobustNMF(3, max_iter=500, random_state=0)
stream = RobustNMF(3, forget_factor=0.8, max_iter=500, random_state=0)
likeness, left_out = [], []
for time in range(N_BATCHES):
    X = batch_at(time)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stream.partial_fit(X)
    if any(issubclass(warning.category, DataQualityWarning) for warning in caught):
        left_out.append(time)
    if time == 0:
        first.fit(X)
    truth = components_at(time)
    likeness.append([match_components(truth, m.components_).similarities.mean() for m in (stream, first)])
print("batches that raised a DataQualityWarning:", *left_out)
print(f"cosine at the end: {likeness[-1][0]:.3f} with partial_fit, {likeness[-1][1]:.3f} without")

# %%
# Result
# ------
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.axvspan(BURST[0] - 0.5, BURST[-1] + 0.5, color="C3", alpha=0.2, label="60 % garbage")
ax.plot(likeness, label=["partial_fit", "first batch only"])
ax.set(xlabel="batch", ylabel="mean cosine with the truth", ylim=(None, 1.02))
ax.legend(loc="lower left")

# %%
# The burst leaves no trace in the components, and a warning tells that it was there.
