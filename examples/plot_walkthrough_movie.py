"""
Walk-through: a movie with passers-by
=====================================

A camera stands still, daylight fades, a lamp goes on, and people walk by. The components are the room in either light,
their traces tell when the light changed, and the passers-by are outliers, which are taken out of the movie. The movie
is **simulated** by the code below.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import robustnmf
from robustnmf import plots
from robustnmf.formats import read_table

# %%
# A movie in a file
# -----------------
rng, n_frames, shape = np.random.default_rng(0), 60, (48, 64)
row, column = np.mgrid[: shape[0], : shape[1]]
room = 90 + 30 * np.sin(column / 7) + 40 * (row > 36) - 35 * ((row // 12 + column // 16) % 2)
lamp = 120 * np.exp(-((column - 50) ** 2 + (row - 8) ** 2) / 300)
time = np.arange(n_frames)
daylight, lamplight = 1 - 0.5 * time / n_frames, (time > 30).astype(float)
frames = daylight[:, None, None] * room + lamplight[:, None, None] * lamp + 2 * rng.standard_normal((n_frames, *shape))
truth = np.zeros(frames.shape, bool)
for start, speed, height in ((0, 1.6, 26), (18, -2.1, 20), (36, 2.8, 30)):
    for number in range(start, n_frames):
        middle = (0 if speed > 0 else shape[1]) + speed * (number - start)
        truth[number] |= (abs(column - middle) < 4) & (row > 44 - height) & (row < 46)
frames[truth] = 215
folder = tempfile.TemporaryDirectory()
here = Path(folder.name)
np.save(here / "movie.npy", np.clip(frames, 0, 255).astype("uint8"))

# %%
# One command
# -----------
command = "fit movie.npy --samples frames -k 2 --quiet"
program = [sys.executable, "-m", "robustnmf.cli"]  # in a shell: robustnmf
done = subprocess.run([*program, *command.split()], cwd=here, capture_output=True, text=True, check=True)
print(f"$ robustnmf {command}\n{done.stdout}")
results = here / "movie-robustnmf"
model = robustnmf.load(results / "model.robustnmf")
mask, cleaned = np.load(results / "outliers.npy") > 0, np.load(results / "cleaned.npy")
print(f"the cleaned movie has the shape {cleaned.shape} and the type {cleaned.dtype}")
print(f"{mask[truth].mean():.1%} of the passers-by are found; {mask[~truth].mean():.2%} of the rest is taken for them")

# %%
# Raw, clean and mask
# -------------------
movie = read_table(here / "movie.npy", samples="frames")
shown = np.linspace(4, n_frames - 8, 6).astype(int)
stages = {"frame": movie.values[shown], "cleaned": cleaned[shown].reshape(6, -1), "mask": mask[shown].reshape(6, -1)}
figure = plots.before_after(list(stages.items()), shape, vmax=255)

# %%
# The light, and who walked by
# ----------------------------
figure, axes = plt.subplots(2, 1, figsize=(8, 4.4), layout="constrained", sharex=True)
plots.contributions(model, movie.values, ax=axes[0])
axes[1].fill_between(time, 100 * mask.reshape(n_frames, -1).mean(axis=1), color="C3")
axes[1].set(xlabel="frame", ylabel="pixels rejected, %")
folder.cleanup()
