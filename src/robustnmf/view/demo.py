"""A finished exploration as a page that needs no server: the same front end on answers that are stored beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from robustnmf.utils.files import write_folder, write_owned
from robustnmf.view import views
from robustnmf.view.server import STATIC
from robustnmf.view.study import Study

LARGEST_STORED = 2**20
"""Entries of data whose answers can be stored: all samples and features are."""


def write_page(study: Study, folder: Path, *, replace: bool = False) -> Path:
    """Write the page of a fitted study into a new folder, and return the path of the page.

    Parameters
    ----------
    study : Study
        With a model.
    folder : Path
        A folder that does not exist, or one that this function has written.
    replace : bool
        Whether to replace it.

    Returns
    -------
    Path
        The page.
    """
    if study.shape[0] * study.shape[1] > LARGEST_STORED:
        raise ValueError(f"A stored page takes data of up to {LARGEST_STORED} entries; got {study.shape}.")
    files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir())}
    answers = json.dumps(stored_answers(study), allow_nan=False, separators=(",", ":"))
    # A script, not a request: browsers refuse to read other files beside a page that is opened from a disk.
    files["stored.js"] = f"globalThis.storedAnswers = {_harmless(answers)};\n".encode()
    with write_folder(folder, replace=replace) as place:
        for name, content in files.items():
            with write_owned(place / name) as temporary:
                temporary.write_bytes(content)
    return folder / "index.html"


def _harmless(text: str) -> str:
    """Return JSON that can stand in a script: two ends of lines of Unicode and the end of an element are escaped."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def stored_answers(study: Study) -> dict[str, Any]:
    """Return the answers to all that the page asks for, by what it asks.

    Lines of samples and features are made by the page from all entries, so that each entry is stored once.
    """
    n_samples, n_features = study.shape
    cells = views.MOST_CELLS
    return {
        "": views.overview(study),
        "components": views.components(study),
        "contributions": views.contributions(study),
        "outliers": views.outlier_list(study),
        "histogram": views.residual_histogram(study),
        "map": views.outlier_map(study, (0, n_samples), (0, n_features), (cells, cells)),
        "entries": views.all_entries(study),
        "pictures": [views.sample(study, i).get("pictures") for i in range(n_samples)],
    }
