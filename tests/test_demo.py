"""The demonstration and the picture it draws."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest

from robustnmf.datasets import load_orl
from robustnmf.errors import MissingExtraError
from robustnmf.paper import demo
from robustnmf.plots import before_after

matplotlib.use("Agg")


def test_demo_prints_errors_beside_nmf_and_writes_a_picture(tmp_path, monkeypatch):
    # Half of the faces and of the components: quicker, and the same claims hold.
    faces = load_orl()
    few = SimpleNamespace(data=faces.data[::2], image_shape=faces.image_shape)
    monkeypatch.setattr(demo, "load_orl", lambda: few)
    monkeypatch.setattr(demo, "RANK", 20)
    monkeypatch.setattr(demo, "SHOWN", [0, 27, 43, 196])
    printed = []
    demo.main(tmp_path / "faces.png", echo=printed.append)
    assert (tmp_path / "faces.png").read_bytes().startswith(b"\x89PNG")
    pattern = r"^(40 %|12 x 12).*?([\d.]+)% +([\d.]+)% +([\d.]+)%"
    rows = re.findall(pattern, "\n".join(printed), flags=re.MULTILINE)
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


def test_the_example_of_the_readme_is_short():
    """That it runs is tested with the other pages."""
    readme = Path(__file__).parents[1] / "README.md"
    (example,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 16
