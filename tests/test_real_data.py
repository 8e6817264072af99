"""The benchmark on real data, run on one small set that is made up; `make real` makes the whole table."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import real_data
from planted_errors import ERRORS, laplace_noise


def made_up():
    rng = np.random.default_rng(0)
    return rng.random((30, 2)) @ rng.random((2, 20)) + 0.01 * rng.random((30, 20))


@pytest.fixture
def run(tmp_path, monkeypatch):
    real = SimpleNamespace(name="made-up", rank=2, tuned=True, load=made_up)
    monkeypatch.setattr(real_data, "SETS", {"made-up": real})
    monkeypatch.setenv("ROBUSTNMF_REAL_DATA", str(tmp_path))
    results = tmp_path / "real_data.jsonl"
    options = ["--methods", "scikit-learn", "oracle", "--errors", "clean", "spikes-20", "--jobs", "1"]

    def run(*more):
        real_data.main([*options, "--results", str(results), *more])
        return results

    return run


def test_every_fit_becomes_a_line_and_is_not_repeated(run):
    lines = run("--seeds", "0").read_text().splitlines()
    assert len(lines) == 4
    more = run("--seeds", "0", "1").read_text().splitlines()
    assert more[:4] == lines
    assert len(more) == 8
    by_method = {(r["method"], r["errors"], r["seed"]): r["squares"] for r in map(json.loads, more)}
    assert by_method["scikit-learn", "clean", 0] == pytest.approx(1)
    assert by_method["oracle", "spikes-20", 1] < 2.5 < by_method["scikit-learn", "spikes-20", 1]


def test_tables_hold_every_set_and_kind_of_error(run):
    text = run("--seeds", "0").with_suffix(".md").read_text()
    assert "## Clean data, tuned sets" in text
    assert "| made-up | 30 x 20 | 2 | 1 / 1 |" in text
    assert "| spikes-20 |" in text


def test_a_fit_that_fails_is_recorded(run, monkeypatch):
    def fail(data, rank, seed):
        if len(data.X) == 30:
            raise ValueError("no")
        return real_data.oracle(data, rank, seed)

    monkeypatch.setitem(real_data.METHODS, "oracle", fail)
    text = run("--seeds", "0").with_suffix(".md").read_text()
    assert "- made-up, clean, oracle: ValueError: no" in text
    assert "**failed**" in text


@pytest.mark.parametrize("kind", ERRORS)
def test_planted_errors_are_where_they_say(kind):
    X = made_up()
    data = ERRORS[kind](X, [0, 1])
    np.testing.assert_array_equal(data.X, ERRORS[kind](X, [0, 1]).X)
    assert data.X.min() >= 0
    if ERRORS[kind] is not laplace_noise:
        np.testing.assert_array_equal(data.wrong, data.X != X)
        assert data.judged[~data.wrong].mean() > 0.9
    assert data.wrong.any() == (kind not in ("clean", "laplace-20"))


def test_wide_data_keep_samples():
    assert real_data.thinned(np.ones((50, 4000)), 10_000).shape == (50, 200)
    assert real_data.thinned(np.ones((5000, 40)), 10_000).shape == (250, 40)
    assert real_data.thinned(np.ones((5, 4)), 10_000).shape == (5, 4)
