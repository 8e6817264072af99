"""Breakdown points, small and seeded; `make breakdown` makes the whole table."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import breakdown

each_kind = pytest.mark.parametrize("kind", breakdown.KINDS)


@each_kind
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_contamination_is_what_it_says(kind, share):
    data = breakdown.contaminate(kind, share, 10.0, seed=0)
    assert data.wrong.mean() == pytest.approx(share, abs=0.02)
    noise = np.abs(data.X - data.clean)[~data.wrong]
    assert noise.max() < 6 * breakdown.NOISE * data.clean.mean()
    if share:
        size = np.abs(data.X - data.clean)[data.wrong]
        assert np.median(size) > 0.5 * data.clean.mean()
    np.testing.assert_array_equal(data.judged, ~data.wrong if kind in ("rows", "columns") else np.ones(data.X.shape))


@pytest.mark.thinned(2)
@each_kind
@pytest.mark.parametrize("amplitude", [10.0, 1e6])
def test_default_holds_out(kind, amplitude):
    """With a tenth of gross errors the error is at most twice that without."""
    point = breakdown.breakdown_point("truncated-cauchy", kind, amplitude, [0.1], [0], 200)
    assert point.share == 0.1


def test_least_squares_does_not():
    point = breakdown.breakdown_point("l2", "dense", 10.0, [0.02], [0], 200)
    assert point.share == 0.0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["dense", "one-sided", "blocks"])
@pytest.mark.parametrize("amplitude", [1.0, 1e6])
def test_no_gross_error_escapes_the_mask(kind, amplitude):
    found = breakdown.mask_of(kind, amplitude, [0], 200)
    assert found.recall >= 0.99
    assert found.precision >= 0.95
