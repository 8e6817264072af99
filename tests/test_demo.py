"""The demonstration and the picture it draws."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from robustnmf.errors import MissingExtraError
from robustnmf.plots import before_after

matplotlib.use("Agg")


def test_demo_prints_errors_beside_nmf_and_writes_a_picture(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "robustnmf.paper.demo", str(tmp_path / "faces.png")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "faces.png").read_bytes().startswith(b"\x89PNG")
    rows = re.findall(r"^(40 %|12 x 12).*?([\d.]+)% +([\d.]+)% +([\d.]+)%", run.stdout, flags=re.MULTILINE)
    assert len(rows) == 2
    for _, data, plain, robust in rows:
        assert float(robust) < 0.6 * float(plain) < 0.6 * float(data)


def test_before_after_draws_one_row_per_stage():
    images = np.arange(12.0).reshape(3, 4)
    figure = before_after([("data", images), ("mask", images > 5)], (2, 2))
    assert len(figure.axes) == 6
    assert [axis.get_ylabel() for axis in figure.axes[::3]] == ["data", "mask"]
    mask = figure.axes[3].get_images()[0].get_array()
    assert np.all(mask[0, 0] == 1)  # an inlier is white


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r'pip install "robustnmf\[plots\]"'):
        before_after([("data", np.ones((1, 4)))], (2, 2))


def test_the_example_of_the_readme_runs():
    readme = Path(__file__).parents[1] / "README.md"
    (example,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        exec(example, {})
