"""
Materials in a hyperspectral scene
==================================

Each pixel of the scene is a mixture of three materials, and one entry in twenty is hit by a spike. The components are
the spectra of the materials, the codes show where they are, and the spikes end up in the mask.

With ``samson.npz`` in the folder that the environment variable ``ROBUSTNMF_DATA`` names, the scene is Samson; without
it, a small **simulated** one. The output says which.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.utils import Bunch

from robustnmf import TruncatedCauchyNMF
from robustnmf.datasets import load_samson
from robustnmf.metrics import match_components, outlier_scores

# %%
# Data
# ----
# The simulated spectra overlap little. Where they overlap much, several factorisations fit equally well.


def simulate(rng, shape=(40, 40), n_bands=80):
    """Return a scene with the fields of :func:`robustnmf.datasets.load_samson`."""
    fields = np.exp(3 * np.array([gaussian_filter(rng.standard_normal(shape), 3) for _ in range(3)]) / 0.1)
    shares = (fields / fields.sum(axis=0)).reshape(3, -1).T
    band = np.linspace(0, 1, n_bands)
    spectra = np.array([band**6, np.exp(-(((band - 0.5) / 0.12) ** 2)), 0.8 * np.exp(-6 * band)])
    data = shares @ spectra + 0.01 * rng.standard_normal((len(shares), n_bands))
    names = np.array(["soil", "tree", "water"])
    return Bunch(data=np.maximum(data, 0), endmembers=spectra, endmember_names=names, image_shape=shape)


rng = np.random.default_rng(0)
file = Path(os.environ.get("ROBUSTNMF_DATA", "")) / "samson.npz"
scene = load_samson(file) if file.is_file() else simulate(rng)
spikes = rng.random(scene.data.shape) < 0.05
X = np.where(spikes, scene.data + rng.uniform(0.5, 3.0, spikes.shape), scene.data)

# %%
# Fit
# ---
model = TruncatedCauchyNMF(3, random_state=0)
codes = model.fit_transform(X)

match = match_components(scene.endmembers, model.components_)
scores = outlier_scores(spikes, model.outliers_)
print("scene:", file.name if file.is_file() else "simulated")
print("cosine with the reference spectra:", *(f"{value:.3f}" for value in match.similarities))
print(f"spikes: precision {scores.precision:.1%}, recall {scores.recall:.1%}")

# %%
# Result
# ------
figure, axes = plt.subplots(2, 3, figsize=(8, 5), layout="constrained")
for place, (name, found) in enumerate(zip(scene.endmember_names, match.permutation, strict=True)):
    reference, spectrum = scene.endmembers[place], model.components_[found]
    axes[0, place].plot(reference / reference.max(), color="0.6", linewidth=4, label="reference")
    axes[0, place].plot(spectrum / spectrum.max(), color="C3", label="found")
    axes[0, place].set(title=name, xlabel="band")
    axes[1, place].imshow(codes[:, found].reshape(scene.image_shape), cmap="viridis")
    axes[1, place].set(xticks=[], yticks=[])
axes[0, 0].legend()

# %%
# The spectra found are close to those of the materials, although every pixel has several spikes in it.
