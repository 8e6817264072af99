"""
Walk-through: a spectrum image with cosmic rays
===============================================

A map of spectra has a spectrum in each pixel. Cosmic rays hit the detector and leave spikes, one or two channels wide,
at random. Here they are found and replaced, and the map is written as it was read. The map is **simulated**: three
substances, counts with Poisson noise, and a spike in every second pixel.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.decomposition import NMF

from robustnmf import RobustNMF
from robustnmf.formats import read_table, write_table
from robustnmf.metrics import match_components, outlier_scores

# %%
# A cube in a file
# ----------------
rng, shape, n_channels = np.random.default_rng(0), (32, 32), 160
channel = np.arange(n_channels)
peaks = [[(30, 4), (90, 8)], [(60, 5), (120, 6)], [(45, 10), (140, 4)]]
spectra = np.array([sum(np.exp(-(((channel - at) / width) ** 2)) for at, width in lines) for lines in peaks])
amounts = np.exp(25 * np.array([gaussian_filter(rng.standard_normal(shape), 3) for _ in spectra]))
clean = (200 * amounts / amounts.sum(axis=0)).reshape(3, -1).T @ spectra + 5  # and a background
rays, counts = np.zeros(clean.shape, bool), rng.poisson(clean)
for pixel in rng.choice(len(clean), len(clean) // 2, replace=False):
    rays[pixel, rng.integers(n_channels - 1) + np.arange(rng.integers(1, 3))] = True
counts[rays] += rng.integers(300, 4000, rays.sum())

folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "map.npy"
np.save(file, counts.reshape(*shape, n_channels).astype("uint16"))

# %%
# Read, fit, clean, write
# -----------------------
# Pixels are the samples.
table = read_table(file, samples="pixels")
model = RobustNMF(3, random_state=0)
codes = model.fit_transform(table.values)
cleaned = model.clean(table)
written = write_table(file.with_name("cleaned.npy"), cleaned)
scores = outlier_scores(rays, model.outliers_)
print(f"read {np.load(file).shape}, written {np.load(written).shape}, {np.load(written).dtype}")
print(f"spikes: precision {scores.precision:.1%}, recall {scores.recall:.1%}")

# %%
# Spectra of the substances
# -------------------------
# Beside those of plain NMF. Spikes are many and large here; on a map with fewer and smaller ones it did as well.
plain = NMF(3, init="nndsvda", max_iter=500, random_state=0).fit(counts)
figure, axes = plt.subplots(2, 3, figsize=(8, 4.6), layout="constrained")
for row, (name, found) in enumerate({"plain NMF": plain, "robustnmf": model}.items()):
    match = match_components(spectra, found.components_)
    print(f"{name}: cosine with the true spectra", *(f"{value:.3f}" for value in match.similarities))
    for ax, truth, place in zip(axes[row], spectra, match.permutation, strict=True):
        ax.plot(channel, truth / truth.max(), color="0.7", linewidth=4)
        ax.plot(channel, found.components_[place] / found.components_[place].max(), color="C3")
        ax.set(yticks=[], title=name)

# %%
# A pixel and the maps
# --------------------
figure, axes = plt.subplots(1, 4, figsize=(9, 2.4), layout="constrained", width_ratios=(2, 1, 1, 1))
pixel = np.flatnonzero(rays.any(axis=1))[3]
axes[0].plot(channel, counts[pixel], color="C3", label="measured")
axes[0].plot(channel, cleaned.values[pixel], color="C0", label="cleaned")
axes[0].set(yscale="log", xlabel="channel", ylabel="counts")
axes[0].legend()
for ax, place in zip(axes[1:], match_components(spectra, model.components_).permutation, strict=True):
    ax.imshow(codes[:, place].reshape(shape))
    ax.set(xticks=[], yticks=[], title=f"component {place + 1}")
folder.cleanup()
