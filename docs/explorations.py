"""Two finished explorations as pages that need no server, beside the documentation: ``demo/faces`` and ``demo/air``.

`docs/conf.py` calls `write_explorations` when the pages are built.
"""

from __future__ import annotations

import time
from pathlib import Path

from robustnmf.datasets import load_baltimore, load_orl
from robustnmf.datasets.corruptions import block_occlusion
from robustnmf.formats import Axis, LabelledMatrix
from robustnmf.view import Study, write_page
from robustnmf.view.study import Job

N_FACES = 60


def faces() -> Study:
    """Return six people, ten faces each, with a white block on every face, and their components."""
    found = load_orl()
    X, _ = block_occlusion(found.data[:N_FACES], 12, found.image_shape, random_state=0)
    names = [f"person {person + 1}, face {face + 1}" for person in range(N_FACES // 10) for face in range(10)]
    features = Axis(grid=found.image_shape, grid_names=("y", "x"))
    study = Study(LabelledMatrix(X, Axis(names), features), "Faces with white blocks")
    finish(study.start_fit(20))
    return study


def air() -> Study:
    """Return fine particles in the air of Baltimore, the search for the number of sources, and five of them."""
    found = load_baltimore()
    measured = ~found.filled_in.all(axis=1)
    days = Axis([str(date) for date in found.dates[measured]])
    species = Axis([str(name) for name in found.feature_names], units=["µg/m³"] * found.data.shape[1])
    matrix = LabelledMatrix(found.data[measured], days, species)
    study = Study(matrix, "Fine particles at Baltimore", uncertainties=found.uncertainties[measured])
    finish(study.start_rank())
    finish(study.start_fit(5))
    return study


EXPLORATIONS = {"faces": faces, "air": air}


def finish(job: Job) -> None:
    """Wait for a job of a study."""
    while job.state == "running":
        time.sleep(0.05)
    if job.state != "done":
        raise RuntimeError(job.message)


def write_explorations(folder: Path) -> list[Path]:
    """Write all pages into a folder, and return their paths."""
    return [write_page(make(), folder / name, replace=True) for name, make in EXPLORATIONS.items()]
