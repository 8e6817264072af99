"""
The background of a video
=========================

The camera stands still, so every frame is the same picture in changing light, with somebody walking across it. One
component is the background, and the mask is the person.

With ``video_hall.npz`` in the folder that the environment variable ``ROBUSTNMF_DATA`` names, that is the video; without
it, a **simulated** one. The output says which.
"""

import os
import warnings
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from robustnmf import TruncatedCauchyNMF, plots
from robustnmf.datasets import load_video_hall
from robustnmf.errors import DataQualityWarning

# %%
# Data
# ----


def simulate(rng, n_frames=40, shape=(48, 64)):
    """Return a video with the fields of :func:`robustnmf.datasets.load_video_hall`."""
    row, column = np.mgrid[: shape[0], : shape[1]]
    wall = 120 + 40 * np.sin(column / 9.0) + 60 * (row > 34) - 50 * ((row // 12 + column // 16) % 2)
    light = 1 + 0.15 * np.sin(np.arange(n_frames) / 6)
    images = light[:, None, None] * wall + 3 * rng.standard_normal((n_frames, *shape))
    for number, image in enumerate(images):
        middle = 4 + 1.4 * number
        body = (abs(column - middle) < 4) & (row > 14) & (row < 42)
        head = (column - middle) ** 2 + (row - 11) ** 2 < 12
        image[body], image[head] = 35, 215
    images = np.clip(images, 0, 255)
    return Bunch(data=images.reshape(n_frames, -1), image_shape=shape)


file = Path(os.environ.get("ROBUSTNMF_DATA", "")) / "video_hall.npz"
video = load_video_hall(file) if file.is_file() else simulate(np.random.default_rng(0))

# %%
# Fit
# ---
warnings.filterwarnings("ignore", ".*over half of the entries", DataQualityWarning)  # some places are mostly hidden
model = TruncatedCauchyNMF(1, random_state=0)
background = model.inverse_transform(model.fit_transform(video.data))
print("video:", file.name if file.is_file() else "simulated")
print(f"{model.outliers_.mean():.1%} of the pixels are not background")

# %%
# Result
# ------
shown = np.linspace(2, len(video.data) - 3, 5).astype(int)
figure = plots.before_after(
    [
        ("frame", video.data[shown]),
        ("background", background[shown]),
        ("mask", model.outliers_[shown]),
    ],
    video.image_shape,
)

# %%
# Each place is free in most frames, so its background is the majority there and is learnt; the walker is cut off.
