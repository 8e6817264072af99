"""Checkpoints: a fit that is interrupted goes on to the same result, and only the same fit does."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conftest import make_data
from robustnmf import RobustNMF, load
from robustnmf.algorithm import checkpoint, stage
from robustnmf.algorithm.checkpoint import Checkpoint, CheckpointError
from robustnmf.algorithm.fingerprints import content, data_fingerprint
from robustnmf.engines import NumPyEngine, StreamingEngine, numpy_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = make_data(120, 40).X
GAPS = np.where(np.random.default_rng(2).random(X.shape) < 0.05, np.nan, X)
WEIGHTS = np.random.default_rng(1).integers(1, 4, X.shape).astype(float)
STREAM = {"engine": StreamingEngine(block_bytes=3000)}
OLD = Path(__file__).parent / "data" / "v0.1.0"


def fitted(x, weights=None, uncertainties=None, **options):
    options = {"n_components": 3, "random_state": 0, "max_iter": 60} | options
    return RobustNMF(**options).fit(x, weights=weights, uncertainties=uncertainties)


class CrashError(Exception):
    pass


def crash_at(n_iter):
    def callback(iteration):
        if iteration.n_iter == n_iter:
            raise CrashError

    return callback


def run_and_crash(n_iter, x, folder, **options):
    with pytest.raises(CrashError):
        fitted(x, callback=crash_at(n_iter), checkpoint=folder, **options)


@pytest.fixture
def saved_often(monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", np.inf)
    monkeypatch.setattr(checkpoint.Checkpoint.__init__, "__defaults__", (1,))


CASES = {
    "staged": {},
    "staged, other rules": {"scale": "mad", "outliers": "mad-feature"},
    "plain": {"schedule": "plain"},
    "norms of samples": {"method": "l21"},
    "few samples": {"n_components": 10},
    "part of the samples": {},
}


SLOW = {"norms of samples", "few samples", "staged, other rules"}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES])
def test_a_resumed_fit_is_the_same_to_the_last_bit(case, tmp_path, saved_often, monkeypatch):
    monkeypatch.setattr(numpy_engine, "BLOCK_ENTRIES", 500)
    if case == "part of the samples":
        monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 800)
        monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 5)
    options = CASES[case] | {"tol": 1e-6}
    expected = fitted(GAPS, **options)
    for n_iter in (2, 9, 20, expected.n_iter_ - 1):
        folder = tmp_path / str(n_iter)
        run_and_crash(n_iter, GAPS, folder, **options)
        told = []
        resumed = fitted(GAPS, checkpoint=folder, callback=lambda i, told=told: told.append(i.n_iter), **options)
        assert min(told) >= n_iter
        np.testing.assert_array_equal(resumed.components_, expected.components_)
        np.testing.assert_array_equal(resumed.weights_, expected.weights_)
        for column in ("objective", "scale", "outlier_share", "relative_change"):
            np.testing.assert_array_equal(resumed.history_[column], expected.history_[column])
        assert np.all(np.diff(resumed.history_["seconds"]) >= 0)


def test_a_streamed_fit_is_resumed_too(tmp_path, saved_often):
    np.save(tmp_path / "X.npy", GAPS)
    stored = np.load(tmp_path / "X.npy", mmap_mode="r")
    run_and_crash(30, stored, tmp_path / "state", **STREAM)
    resumed = fitted(stored, checkpoint=tmp_path / "state", **STREAM)
    np.testing.assert_array_equal(resumed.components_, fitted(stored, **STREAM).components_)


def test_a_finished_fit_is_not_made_again(tmp_path, saved_often):
    expected, told = fitted(X, checkpoint=tmp_path / "state", schedule="plain"), []
    again = fitted(X, checkpoint=tmp_path / "state", schedule="plain", callback=lambda i: told.append(i))
    assert not told
    np.testing.assert_array_equal(again.components_, expected.components_)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tol": 1e-3}, "parameter tol is 0.0001, here it is 0.001"),
        ({"random_state": 1}, "parameter random_state is 0"),
        ({"x": X + 1e-9}, "its data is 120 x 40 float64"),
        ({"x": X[:-1]}, "here it is 119 x 40"),
        ({"weights": WEIGHTS}, "its data"),
        ({"fixed_components": np.ones((1, 40))}, "parameter fixed_components is None"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused_with_a_reason(change, reason, tmp_path, saved_often):
    run_and_crash(3, X, tmp_path / "state")
    with pytest.raises(CheckpointError, match=reason):
        fitted(**{"x": X, "checkpoint": tmp_path / "state"} | change)


# What a fit is interrupted with, what it is then tried to go on with, and what is said of it.
KNOWN = np.random.default_rng(0).random((1, 4000))
OTHER = np.where(np.arange(4000) == 2000, 0.5, KNOWN)
WIDE = make_data(12, 4000).X
SIGMA = np.full(X.shape, 0.02)
CHANGES = {
    "a data frame": (
        {"x": WIDE, "fixed_components": pd.DataFrame(KNOWN)},
        {"fixed_components": pd.DataFrame(OTHER)},
        "parameter fixed_components",
    ),
    "the unit of the data, fixed scale": ({"scale": 0.1}, {"x": 2 * X}, "unit of the data"),
    "the unit of the data, penalties": ({"alpha_W": 1e-3}, {"x": 2 * X}, "unit of the data"),
    "a generator": (
        {"random_state": np.random.default_rng(0)},
        {"random_state": np.random.default_rng(1)},
        "parameter random_state",
    ),
    "an old generator": (
        {"random_state": np.random.RandomState(0)},
        {"random_state": np.random.RandomState(1)},
        "parameter random_state",
    ),
    "uncertainties": ({"uncertainties": SIGMA}, {"uncertainties": 2 * SIGMA}, "noise of the features|unit of the data"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_everything_that_changes_the_result_is_compared_by_its_content(case, tmp_path, saved_often):
    first, change, reason = CHANGES[case]
    first = {"x": X, "max_iter": 20} | first
    run_and_crash(3, folder=tmp_path / "state", **first)
    with pytest.raises(CheckpointError, match=reason):
        fitted(**first | {"checkpoint": tmp_path / "state"} | change)


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_a_generator_in_the_same_state_is_the_same(make, tmp_path, saved_often):
    expected = fitted(X, random_state=make(0))
    run_and_crash(9, X, tmp_path / "state", random_state=make(0))
    resumed = fitted(X, checkpoint=tmp_path / "state", random_state=make(0))
    np.testing.assert_array_equal(resumed.components_, expected.components_)


@dataclass
class Rule:
    levels: np.ndarray


class Plain:
    def __init__(self, levels):
        self.levels = levels


@pytest.mark.parametrize(
    "wrap", [lambda x: x, list, pd.DataFrame, Rule, Plain, lambda x: (1, {"a": x}), lambda x: lambda: x]
)
def test_content_is_that_of_the_numbers_and_not_of_the_object(wrap):
    numbers = np.arange(5000.0)[:, None]
    changed = np.where(numbers == 2500, 0, numbers)
    assert content(wrap(numbers)) == content(wrap(numbers.copy()))
    assert content(wrap(numbers)) != content(wrap(changed))


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(CheckpointError, match="cannot be compared"):
        content(os.scandir("."))


def test_what_does_not_change_the_result_may_change(tmp_path, saved_often):
    run_and_crash(3, X, tmp_path / "state")
    fitted(X, checkpoint=tmp_path / "state", verbose=0, callback=lambda iteration: None)


@pytest.mark.parametrize("name", ["checkpoint.json", "point-*.npz", "steps-*.npz"])
def test_damage_is_found(name, tmp_path, saved_often):
    run_and_crash(5, X, tmp_path / "state")
    path = sorted((tmp_path / "state").glob(name))[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged|not a checkpoint"):
        fitted(X, checkpoint=tmp_path / "state")


def write_manifest(folder, body):
    """Write a manifest whose checksum is right."""
    text = json.dumps({"body": body, "sha256": checkpoint._checksum(checkpoint._text(body))})
    (folder / "checkpoint.json").write_text(text)


def places(value, path=()):
    """Yield the path of everything in a document of JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


STRANGE = [None, True, -1, 0, 1e999, float("nan"), "", "../secret.npz", "/etc/passwd", [], {}, [[]], {"a": 1}, 10**30]


def mutated(body, rng):
    """Return the document with something in it removed, replaced or nested deeply."""
    body = json.loads(json.dumps(body))
    paths = [path for path in places(body) if path]
    path = paths[rng.integers(len(paths))]
    parent = body
    for key in path[:-1]:
        parent = parent[key]
    kind = rng.integers(4)
    if kind == 0:
        del parent[path[-1]]
    else:
        parent[path[-1]] = STRANGE[rng.integers(len(STRANGE))]
    return body


@pytest.mark.parametrize("n_mutants", [25, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("schedule", ["staged", "plain"])
def test_wrong_content_with_a_right_checksum_is_a_checkpoint_error(schedule, n_mutants, tmp_path, saved_often):
    x, options = make_data(20, 8).X, {"schedule": schedule, "scale": "mad", "outliers": "mad-feature", "max_iter": 24}
    run_and_crash(15, x, tmp_path / "state", **options)
    body = json.loads((tmp_path / "state" / "checkpoint.json").read_text())["body"]
    rng, refused = np.random.default_rng(0), 0
    for _ in range(n_mutants):
        shutil.copytree(tmp_path / "state", tmp_path / "mutant")
        write_manifest(tmp_path / "mutant", mutated(body, rng))
        try:
            model = fitted(x, checkpoint=tmp_path / "mutant", **options)
            assert np.isfinite(model.components_).all()
        except CheckpointError:
            refused += 1
        shutil.rmtree(tmp_path / "mutant")
    assert refused > 0.3 * n_mutants


@pytest.mark.parametrize("name", ["../secret.npz", "/tmp/secret.npz", "a/b.npz", "..", "", "point.npz\n", 3])
def test_a_checkpoint_names_no_file_elsewhere(name, tmp_path):
    np.savez(tmp_path / "secret.npz", W=np.ones((2, 2)))
    folder = tmp_path / "state"
    folder.mkdir()
    data = (tmp_path / "secret.npz").read_bytes()
    record = {"arrays": {"file": name, "sha256": checkpoint._checksum(data)}, "blocks": [], "lengths": []}
    body = {"format": 2, "id": "0" * 12, "of": {}, "values": {}, "records": {"a": record}}
    write_manifest(folder, body)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        Checkpoint(folder, {})


@pytest.mark.parametrize("what", ["arrays", "manifest"])
def test_links_are_not_followed(what, tmp_path, saved_often):
    run_and_crash(5, X, tmp_path / "state")
    pattern = "checkpoint.json" if what == "manifest" else "steps-*.npz"
    path = sorted((tmp_path / "state").glob(pattern))[-1]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError):
        fitted(X, checkpoint=tmp_path / "state")
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("arrays", [{"W": np.full((40, 3), np.nan)}, {"W": np.ones(3)}, {"W": np.array(["a"])}, {}])
def test_arrays_of_another_kind_are_refused(arrays, tmp_path, saved_often):
    run_and_crash(5, X, tmp_path / "state", schedule="plain")
    folder = tmp_path / "state"
    body = json.loads((folder / "checkpoint.json").read_text())["body"]
    (record,) = body["records"].values()
    with np.load(folder / record["arrays"]["file"]) as file:
        others = {name: file[name] for name in file.files if name != "W"}
    np.savez(folder / record["arrays"]["file"], **others, **arrays)
    record["arrays"]["sha256"] = checkpoint._checksum((folder / record["arrays"]["file"]).read_bytes())
    write_manifest(folder, body)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        fitted(X, checkpoint=folder, schedule="plain")


@pytest.mark.parametrize("schedule", ["staged", "plain"])
def test_a_checkpoint_of_the_first_version_goes_on(schedule, tmp_path, saved_often):
    shutil.copytree(OLD / f"checkpoint-{schedule}", tmp_path / "state")
    named = [path.name for path in (tmp_path / "state").glob("*.npz")]
    (tmp_path / "state" / "mine.npz").write_bytes(b"mine")
    with np.load(OLD / "expected.npz") as file:
        x = file["X"]
    options = {"n_components": 2, "tol": 1e-6, "schedule": schedule}
    told, expected = [], fitted(x, **options)
    resumed = fitted(x, checkpoint=tmp_path / "state", callback=lambda i: told.append(i.n_iter), **options)
    assert told[0] >= 20
    np.testing.assert_allclose(resumed.components_, expected.components_, rtol=1e-6)
    left = [name for name in named if (tmp_path / "state" / name).exists()]
    assert len(left) < len(named)
    assert all(name in (tmp_path / "state" / checkpoint.TEXT).read_text() for name in left)
    assert (tmp_path / "state" / "mine.npz").read_bytes() == b"mine"
    with pytest.raises(CheckpointError, match="parameter tol"):
        fitted(x, checkpoint=tmp_path / "state", **options | {"tol": 1e-5})


def test_a_model_of_the_first_version_loads():
    with np.load(OLD / "expected.npz") as file:
        model, x = load(OLD / "model.robustnmf"), file["X"]
        np.testing.assert_array_equal(model.components_, file["components"])
        np.testing.assert_allclose(model.transform(x), file["codes"], rtol=1e-6, atol=1e-9)


def test_later_formats_and_other_files_are_refused(tmp_path):
    (tmp_path / "checkpoint.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        Checkpoint(tmp_path, {}).load()
    write_manifest(tmp_path, {"format": 99, "of": {}, "values": {}, "records": {}})
    with pytest.raises(CheckpointError, match="format 99"):
        Checkpoint(tmp_path, {}).load()
    with pytest.raises(CheckpointError, match="must be a folder"):
        Checkpoint(tmp_path / "checkpoint.json", {})


def test_a_crash_while_saving_leaves_the_state_before(tmp_path, saved_often, monkeypatch):
    expected = fitted(X)
    run_and_crash(6, X, tmp_path / "state")
    commit = checkpoint.Checkpoint.commit

    def broken(self, values, names):
        raise CrashError

    monkeypatch.setattr(checkpoint.Checkpoint, "commit", broken)
    with pytest.raises(CrashError):
        fitted(X, checkpoint=tmp_path / "state")
    monkeypatch.setattr(checkpoint.Checkpoint, "commit", commit)
    resumed = fitted(X, checkpoint=tmp_path / "state")
    np.testing.assert_array_equal(resumed.components_, expected.components_)


def test_the_folder_does_not_grow_with_iterations(tmp_path, saved_often):
    sizes = []

    def count(iteration):
        sizes.append(len(list((tmp_path / "state").glob("*"))))

    fitted(X, checkpoint=tmp_path / "state", schedule="plain", callback=count)
    assert max(sizes) <= 3


def test_fingerprints_tell_data_apart_and_do_not_depend_on_threads():
    with NumPyEngine(n_threads=3, block_entries=400).running() as engine:
        V = engine.split(X)
        here = data_fingerprint(V, None, engine)
        assert here == data_fingerprint(V, None, NumPyEngine(n_threads=1))
        others = [data_fingerprint(engine.split(x), None, engine) for x in (X[::-1], X + 1e-12, X[:, ::-1])]
        assert len({here, *others}) == 4
        assert data_fingerprint(V, V, engine) != here
