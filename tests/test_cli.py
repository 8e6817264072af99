"""The command line, as a user runs it: every command on real files, many in a process of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import robustnmf
from robustnmf.cli import app

COMMAND = [sys.executable, "-c", "from robustnmf.cli import main; main()"]


def run(*arguments, folder, code=0):
    """Run a command in a folder and return what it printed; the exit code must be as expected."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def run_here(*arguments, folder, code=0):
    """Do the same in this process: another one takes seconds to start."""
    with chdir(folder):
        done = CliRunner().invoke(app.app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def truth():
    rng = np.random.default_rng(0)
    return rng.random((40, 2)) @ rng.random((2, 15)) + 0.01 * rng.random((40, 15))


@pytest.fixture(scope="module")
def values(truth):
    rng = np.random.default_rng(1)
    X = np.where(rng.random(truth.shape) < 0.1, 9.0, truth)
    X[3, 4] = np.nan
    return X


@pytest.fixture(scope="module")
def table(tmp_path_factory, values):
    """A CSV file with names of samples and features, and a code for missing."""
    path = tmp_path_factory.mktemp("data") / "air.csv"
    lines = ["day," + ",".join(f"species {j}" for j in range(15))]
    for i, row in enumerate(values):
        lines.append(f"day {i}," + ",".join("-999" if np.isnan(x) else repr(float(x)) for x in row))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def fitted(table):
    """The results of a fit of that table."""
    run("fit", table, "-k", 2, "-o", "out", "--missing-value", -999, folder=table.parent)
    return table.parent / "out"


def read_csv(path):
    return np.genfromtxt(path, delimiter=",", skip_header=1)[:, 1:]


def test_fit_writes_model_codes_components_cleaned_data_mask_and_report(fitted, truth, values):
    names = {path.name for path in fitted.iterdir()}
    assert names == {
        "model.robustnmf", "codes.csv", "components.csv", "cleaned.csv", "outliers.csv", "report.html", "summary.json",
    }  # fmt: skip
    cleaned, mask = read_csv(fitted / "cleaned.csv"), read_csv(fitted / "outliers.csv")
    assert np.linalg.norm(cleaned - truth) < 0.05 * np.linalg.norm(truth)
    np.testing.assert_array_equal(mask[values == 9.0], 1)
    product = read_csv(fitted / "codes.csv") @ read_csv(fitted / "components.csv")
    np.testing.assert_allclose(cleaned[3, 4], product[3, 4])
    assert (fitted / "cleaned.csv").read_text().startswith(",species 0,")
    assert "day 39" in (fitted / "codes.csv").read_text()
    assert "species 7" in (fitted / "report.html").read_text()


def test_the_summary_says_what_was_done(fitted):
    summary = json.loads((fitted / "summary.json").read_text())
    assert (summary["samples"], summary["features"], summary["components"]) == (40, 15, 2)
    assert summary["missing"] == pytest.approx(1 / 600)
    assert 0.05 < summary["outlier_share"] < 0.2


def test_a_result_is_not_replaced_unasked(fitted, table):
    before = (fitted / "model.robustnmf").read_bytes()
    said = run("fit", table, "-k", 3, "-o", "out", "--missing-value", -999, folder=table.parent, code=2).stderr
    assert "exists" in said
    assert "--force" in said
    assert (fitted / "model.robustnmf").read_bytes() == before


def test_force_replaces_a_result_but_no_folder_of_others(tmp_path, values):
    np.save(tmp_path / "x.npy", values)
    arguments = ("fit", "x.npy", "-k", 1, "-o", "out", "--no-report", "--quiet")
    run_here(*arguments, folder=tmp_path)
    first = (tmp_path / "out" / "codes.npy").read_bytes()
    run_here(*arguments[:2], "-k", 2, *arguments[4:], "--force", folder=tmp_path)
    assert (tmp_path / "out" / "codes.npy").read_bytes() != first
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    said = run_here("fit", "x.npy", "-k", 1, "-o", "mine", "--force", "--no-report", folder=tmp_path, code=2).stderr
    assert "robustnmf did not write" in said
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_transform_clean_and_outliers_of_new_data(fitted, table, values):
    place = table.parent
    options = ("--missing-value", -999)
    run_here("transform", fitted, table, "-o", "codes.npy", *options, folder=place)
    np.testing.assert_allclose(np.load(place / "codes.npy"), read_csv(fitted / "codes.csv"))
    run_here("clean", fitted / "model.robustnmf", table, "-o", "clean.csv", *options, folder=place)
    np.testing.assert_allclose(read_csv(place / "clean.csv"), read_csv(fitted / "cleaned.csv"))
    done = run_here("outliers", fitted, table, "-o", "mask.npy", *options, "--json", folder=place)
    np.testing.assert_array_equal(np.load(place / "mask.npy"), read_csv(fitted / "outliers.csv").astype(bool))
    answer = json.loads(done.stdout)
    assert answer["outlier_share"] == pytest.approx(np.load(place / "mask.npy").mean())
    assert list(answer["worst"].values()) == sorted(answer["worst"].values(), reverse=True)
    said = run_here("transform", fitted, table, "-o", "codes.npy", *options, folder=place, code=2).stderr
    assert "--force" in said


def test_report_of_a_model(fitted, table):
    run_here("report", fitted, table, "-o", "again.html", "--missing-value", -999, folder=table.parent)
    assert "species 7" in (table.parent / "again.html").read_text()


def test_rank_finds_the_number_of_components(table):
    arguments = ("rank", table, "--ranks", "1-4", "--splits", 3, "--missing-value", -999)
    answer = json.loads(run_here(*arguments, "--json", folder=table.parent).stdout)
    assert answer["chosen"] == 2
    assert [point["rank"] for point in answer["curve"]] == [1, 2, 3, 4]
    text = run_here(*arguments, "--plot", "curve.png", folder=table.parent).stdout
    assert "<- chosen" in text
    assert (table.parent / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_compare_gives_a_line_for_each_model(table):
    arguments = ("compare", table, "-k", 2, "--method", "l2", "--method", "truncated-cauchy", "--missing-value", -999)
    rows = [json.loads(line) for line in run_here(*arguments, "--json", folder=table.parent).stdout.splitlines()]
    assert [row["method"] for row in rows] == ["l2", "truncated-cauchy"]
    assert rows[1]["median"] < rows[0]["median"]
    assert "truncated-cauchy" in run_here(*arguments, folder=table.parent).stdout


def test_info_and_methods(tmp_path):
    about = json.loads(run_here("info", "--json", folder=tmp_path).stdout)
    assert about["robustnmf"] == robustnmf.__version__
    assert about["threads of a fit"] >= 1
    assert "gpu" in about
    assert set(json.loads(run_here("methods", "--json", folder=tmp_path).stdout)) == set(robustnmf.METHODS)


def test_help_names_every_command(tmp_path):
    text = run("--help", folder=tmp_path).stdout
    for command in ("fit", "transform", "clean", "outliers", "rank", "compare", "report", "demo", "reproduce", "info"):
        assert command in text
        told = CliRunner().invoke(app.app, [command, "--help"])  # not one process each: they start slowly
        assert told.exit_code == 0
        assert "Usage" in told.stdout


def test_weights_and_uncertainties_are_read_from_files(tmp_path, values):
    X = np.nan_to_num(values, nan=1.0)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "u.npy", 0.01 + 0 * X)
    np.save(tmp_path / "w.npy", (X != 9.0).astype(float))
    run_here("fit", "x.npy", "-k", 2, "-o", "u", "--uncertainties", "u.npy", folder=tmp_path)
    run_here("transform", "u", "x.npy", "-o", "c.npy", "--uncertainties", "u.npy", folder=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), np.load(tmp_path / "u" / "codes.npy"))
    run_here("report", "u", "x.npy", "--uncertainties", "u.npy", folder=tmp_path)
    run_here("outliers", "u", "x.npy", "-o", "o.npy", "--uncertainties", "u.npy", folder=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), np.load(tmp_path / "u" / "outliers.npy"))
    run_here("fit", "x.npy", "-k", 2, "-o", "w", "--weights", "w.npy", "--no-report", folder=tmp_path)
    assert not np.load(tmp_path / "w" / "outliers.npy")[X == 9.0].any()
    np.save(tmp_path / "bad.npy", X[:, :3])
    said = run_here("fit", "x.npy", "-k", 2, "-o", "b", "--weights", "bad.npy", folder=tmp_path, code=2).stderr
    assert "same shape as the data" in said
    assert not (tmp_path / "b").exists()


def test_rank_takes_weights_and_uncertainties(tmp_path, values):
    X = np.nan_to_num(values, nan=1.0)
    noise, weights = 0.01 * np.linspace(1, 3, X.shape[1]) * np.ones_like(X), (X != 9.0).astype(float)
    for name, array in (("x", X), ("u", noise), ("w", weights)):
        np.save(tmp_path / f"{name}.npy", array)
    arguments = ("rank", "x.npy", "--ranks", "1-2", "--splits", 2, "--json")
    arrays = ("--uncertainties", "u.npy", "--weights", "w.npy")
    said = json.loads(run_here(*arguments, *arrays, folder=tmp_path).stdout)
    estimator = robustnmf.RobustNMF()
    options = {"n_splits": 2, "random_state": 0, "estimator": estimator}
    found = robustnmf.select_rank(X, [1, 2], uncertainties=noise, weights=weights, **options)
    np.testing.assert_allclose([row["score"] for row in said["curve"]], found.mean)
    wrong = run_here(*arguments, "--uncertainties", "w.npy", folder=tmp_path, code=2).stderr
    assert "positive and finite" in wrong


def test_images_keep_their_shape(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    faces = robustnmf.datasets.load_orl().images[:12]
    (tmp_path / "faces").mkdir()
    for i, face in enumerate(faces):
        Image.fromarray(face).save(tmp_path / "faces" / f"face{i}.png")
    run_here("fit", "faces", "-k", 2, "--max-iter", 40, folder=tmp_path)
    assert np.load(tmp_path / "faces-robustnmf" / "cleaned.npy").shape == (12, 32 * 32)
    assert "32" in (tmp_path / "faces-robustnmf" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "nothing.csv", "-k", "2"), "no file or folder"),
        (("fit", "x.npy", "-k", "0"), "positive number or 'auto'"),
        (("fit", "x.npy", "-k", "99"), r"n_components of RobustNMF must be an integer"),
        (("fit", "x.npy", "-k", "2", "--method", "magic"), "method must be one of"),
        (("fit", "negative.npy", "-k", "2"), "Negative values"),
        (("transform", "x.npy", "x.npy", "-o", "c.npy"), "cannot be read as a model"),
        (("rank", "x.npy", "--ranks", "two"), "--ranks must be like"),
        (("compare", "x.npy", "--method", "magic"), "Unknown model magic"),
    ],
)
def test_wrong_use_ends_with_one_line_and_code_2(tmp_path, values, arguments, message):
    np.save(tmp_path / "x.npy", np.nan_to_num(values, nan=1.0))
    np.save(tmp_path / "negative.npy", -np.ones((5, 5)))
    before = sorted(tmp_path.iterdir())
    said = run_here(*arguments, folder=tmp_path, code=2).stderr
    assert message in said
    assert sorted(tmp_path.iterdir()) == before


def test_in_a_pipe_progress_comes_as_lines(tmp_path, values):
    np.save(tmp_path / "x.npy", values)
    done = run("fit", "x.npy", "-k", 2, "--no-report", "--json", folder=tmp_path)
    assert done.stderr.count("iteration ") >= 2
    assert "\r" not in done.stderr
    assert json.loads(done.stdout)["components"] == 2
    assert run("fit", "x.npy", "-k", 2, "-o", "q", "--no-report", "-q", folder=tmp_path).stderr == ""


def start_long_fit(folder, *arguments):
    """Start a fit that takes long, and wait until it iterates."""
    rng = np.random.default_rng(0)
    X = rng.random((3000, 30)) @ rng.random((30, 400))
    X[rng.random(X.shape) < 0.1] = 99.0
    np.save(folder / "x.npy", X)
    command = [*COMMAND, "fit", "x.npy", "-k", "30", "--no-report", "--max-iter", "100000", "-o", "out", *arguments]
    process = subprocess.Popen(
        [*command, "--preset", "published"], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while "iteration" not in (line := process.stderr.readline()):
        assert line, "the fit has ended"
    return process


def test_ctrl_c_keeps_what_was_found(tmp_path):
    process = start_long_fit(tmp_path)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert "Stopped after" in said
    assert robustnmf.load(tmp_path / "out" / "model.robustnmf").n_components_ == 30


def test_a_killed_fit_leaves_no_result(tmp_path):
    process = start_long_fit(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not Path(tmp_path / "out").exists()


def test_strict_tells_of_warnings_by_its_exit_code(tmp_path, values):
    np.save(tmp_path / "x.npy", values)
    done = run("fit", "x.npy", "-k", 2, "--max-iter", 2, "--no-report", "--strict", folder=tmp_path, code=3)
    assert "did not converge" in done.stderr


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU")
def test_a_device_that_is_not_there_is_an_error_in_one_line(table):
    options = ("-k", 2, "--missing-value", -999, "--device", "cuda", "-o", "gpu")
    done = run("fit", table, *options, folder=table.parent, code=2)
    assert "needs a CUDA GPU" in done.stderr
    assert not (table.parent / "gpu").exists()
