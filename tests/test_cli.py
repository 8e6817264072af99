"""The command line, as a user runs it: every command on real files, many in a process of their own."""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import chdir, redirect_stderr
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import typer
from scipy import sparse
from scipy.io import mmwrite
from typer.testing import CliRunner

import robustnmf
import robustnmf.formats
import robustnmf.paper.compare
import robustnmf.report
from robustnmf.cli import app, console

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


def test_fit_writes_model_codes_components_cleaned_data_mask_and_report(fitted, table, truth, values):
    names = {path.name for path in fitted.iterdir()}
    assert names == {
        "model.robustnmf", "codes.csv", "components.csv", "cleaned.csv", "outliers.csv", "report.html", "summary.json",
        ".robustnmf-files.json",
    }  # fmt: skip
    cleaned, mask = read_csv(fitted / "cleaned.csv"), read_csv(fitted / "outliers.csv")
    assert np.linalg.norm(cleaned - truth) < 0.05 * np.linalg.norm(truth)
    np.testing.assert_array_equal(mask[values == 9.0], 1)
    product = read_csv(fitted / "codes.csv") @ read_csv(fitted / "components.csv")
    np.testing.assert_allclose(cleaned[3, 4], product[3, 4])
    tops = {path.stem: path.read_text(encoding="utf-8-sig").splitlines()[0] for path in fitted.glob("*.csv")}
    species = ",".join(f"species {j}" for j in range(15))
    assert tops == {
        **dict.fromkeys(("cleaned", "outliers"), f"day,{species}"),
        "codes": "day,component 1,component 2",
        "components": f"component,{species}",
    }
    assert "day 39" in (fitted / "codes.csv").read_text()
    assert "species 7" in (fitted / "report.html").read_text()


def test_the_summary_says_what_was_done(fitted):
    summary = json.loads((fitted / "summary.json").read_text())
    assert (summary["samples"], summary["features"], summary["components"]) == (40, 15, 2)
    assert summary["missing"] == pytest.approx(1 / 600)
    assert 0.05 < summary["outlier_share"] < 0.2


def test_a_result_is_not_replaced_unasked(fitted, table):
    before = (fitted / "model.robustnmf").read_bytes()
    said = run_here("fit", table, "-k", 3, "-o", "out", "--missing-value", -999, folder=table.parent, code=2).stderr
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
    shares = [sample["share"] for sample in answer["worst"]]
    assert shares == sorted(shares, reverse=True)
    assert all(sample["name"] == f"day {sample['index']}" for sample in answer["worst"])
    said = run_here("transform", fitted, table, "-o", "codes.npy", *options, folder=place, code=2).stderr
    assert "--force" in said


def test_samples_and_columns_without_any_measurement_stay_empty(tmp_path):
    rows = [f"day {i},{1.5 * i + 1.5},{2 * i + 2},,{3 * i + 3}" for i in range(12)]
    for name, extra in (("a.csv", []), ("b.csv", ["day 12,,,,"])):
        (tmp_path / name).write_text("\n".join(["day,Al,Fe,S,Pb", *rows, *extra]) + "\n")
    run_here("fit", "a.csv", "-k", 1, "-o", "m", "--no-report", "--max-iter", 5, folder=tmp_path)
    said = run_here("clean", "m", "b.csv", "-o", "c.csv", folder=tmp_path).stderr
    assert "have no observed entry (sample 'day 12')" in said and "0.00% of the entries were replaced" in said
    for path in (tmp_path / "c.csv", tmp_path / "m" / "cleaned.csv"):
        missing = np.isnan(robustnmf.formats.read_table(path).values)
        assert missing[:, 2].all() and missing[12:].all() and not missing[:12, [0, 1, 3]].any()


def test_doubts_about_a_table_name_the_options_before_the_fit(tmp_path):
    rows = [f"2004-07-{i + 1:02d},{i + 1},{i + 1.5},{2 * i + 3}" for i in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["date,nr,Al,Fe", *rows, "Mean,6.5,7,14"]) + "\n")
    arguments = ("fit", "a.csv", "-k", 1, "--max-iter", 2, "--no-report", "--force")
    said = run_here(*arguments, folder=tmp_path).stderr.splitlines()
    assert said[0].startswith("Warning: Rows at the end") and "--skip-footer 1 does so" in said[0]
    said = run_here(*arguments, "--skip-footer", 1, folder=tmp_path).stderr.splitlines()
    assert "'nr'" in said[0] and "with --drop-columns, or take one for the names with --index-column." in said[0]
    assert said[1] == "Note: 1 rows below the table were left out: 'Mean'."


def test_a_result_that_cannot_be_written_is_refused_before_the_data_is_read(tmp_path):
    (tmp_path / "a.csv").write_text("no table")
    for out in ("/proc/x", "a.csv/out", "a.csv/more/out"):
        said = run_here("fit", "a.csv", "-k", 1, "-o", out, folder=tmp_path, code=2).stderr
        assert said.startswith(f"Error: {out} cannot be written (") and said.endswith("with --out.\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.csv"]


def test_a_report_of_a_table_with_names_does_not_warn_of_them(tmp_path):
    rows = [f"day {i},{i + 1.5},{2 * i + 3},{3 * i + 4.5}" for i in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["day,Al,Fe,S", *rows]) + "\n")
    said = run_here("fit", "a.csv", "-k", 1, "--max-iter", 5, folder=tmp_path).stderr
    assert (tmp_path / "a-robustnmf" / "report.html").exists() and "valid feature names" not in said


def test_report_of_a_model(fitted, table):
    run_here("report", fitted, table, "-o", "again.html", "--missing-value", -999, folder=table.parent)
    assert "species 7" in (table.parent / "again.html").read_text()


def test_rank_finds_the_number_of_components(table):
    arguments = ("rank", table, "--ranks", "1-4", "--splits", 3, "--missing-value", -999)
    answer = json.loads(run_here(*arguments, "--json", folder=table.parent).stdout)
    assert answer["chosen"] == 2
    assert [point["rank"] for point in answer["curve"]] == [1, 2, 3, 4]
    few = ("rank", table, "--ranks", "1-2", "--splits", 2, "--missing-value", -999)
    text = run_here(*few, "--plot", "curve.png", folder=table.parent).stdout
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


@pytest.mark.slow
def test_help_names_every_command(tmp_path):
    text = run("--help", folder=tmp_path).stdout
    for command in ("fit", "transform", "clean", "outliers", "rank", "compare", "report", "demo", "reproduce", "info"):
        assert command in text
        told = CliRunner().invoke(app.app, [command, "--help"])  # not one process each: they start slowly
        assert told.exit_code == 0
        assert "Usage" in told.stdout


@pytest.mark.slow
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


def dense(values):
    return values.toarray() if sparse.issparse(values) else values


def read_result(folder, name):
    """Return a result, whatever its format."""
    (path,) = folder.glob(f"{name}*")
    return robustnmf.formats.read_table(path)


def test_images_keep_their_shape(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    faces = robustnmf.datasets.load_orl().images[:12]
    (tmp_path / "faces").mkdir()
    for i, face in enumerate(faces):
        Image.fromarray(face).save(tmp_path / "faces" / f"face{i}.png")
    run_here("fit", "faces", "-k", 2, "--max-iter", 40, folder=tmp_path)
    results = tmp_path / "faces-robustnmf"
    shapes = {name: read_result(results, name).array().shape for name in ("cleaned", "outliers", "components")}
    assert shapes == {"cleaned": (12, 32, 32), "outliers": (12, 32, 32), "components": (2, 32, 32)}
    assert "32" in (tmp_path / "faces-robustnmf" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "nothing.csv", "-k", "2"), "no file or folder"),
        (("fit", "x.npy", "-k", "0"), "positive number or 'auto'"),
        (("fit", "x.npy", "-k", "9999"), r"n_components of RobustNMF must be an integer"),
        (("fit", "x.npy", "-k", "2", "--method", "magic"), "method must be one of"),
        (("fit", "negative.npy", "-k", "2"), "--negative clip"),
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


@pytest.mark.slow
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
    X = rng.random((1000, 30)) @ rng.random((30, 200))
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


@pytest.mark.slow
def test_a_killed_fit_leaves_no_result(tmp_path):
    process = start_long_fit(tmp_path)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not Path(tmp_path / "out").exists()


def test_strict_tells_of_warnings_by_its_exit_code(tmp_path, values):
    np.save(tmp_path / "x.npy", values)
    done = run_here("fit", "x.npy", "-k", 2, "--max-iter", 2, "--no-report", "--strict", folder=tmp_path, code=3)
    assert "did not converge" in done.stderr


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU")
def test_a_device_that_is_not_there_is_an_error_in_one_line(table):
    options = ("-k", 2, "--missing-value", -999, "--device", "cuda", "-o", "gpu")
    done = run_here("fit", table, *options, folder=table.parent, code=2)
    assert "needs a CUDA GPU" in done.stderr
    assert not (table.parent / "gpu").exists()


# --- Names that are alike ---


def write_table(path, values, samples, features):
    """Write a CSV file with any names."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["", *features])
        writer.writerows([name, *row] for name, row in zip(samples, values.tolist(), strict=True))


def test_samples_that_share_a_name_are_all_listed(tmp_path, fitted, values):
    species = [f"species {j}" for j in range(15)]
    write_table(tmp_path / "same.csv", np.nan_to_num(values, nan=1.0), ["rose"] * 40, species)
    answer = json.loads(run_here("outliers", fitted, "same.csv", "--worst", 99, "--json", folder=tmp_path).stdout)
    assert [sorted(sample) for sample in answer["worst"]] == [["features", "index", "name", "outliers", "share"]] * 40
    assert {sample["index"] for sample in answer["worst"]} == set(range(40))
    assert {sample["name"] for sample in answer["worst"]} == {"rose"}
    assert np.mean([sample["share"] for sample in answer["worst"]]) == pytest.approx(answer["outlier_share"])
    text = run_here("outliers", fitted, "same.csv", "--worst", 99, "--features", 0, folder=tmp_path).stdout
    assert sum("rose (sample " in line for line in set(text.splitlines())) == 40
    run_here("fit", "same.csv", "-k", 2, "-q", folder=tmp_path)
    assert (tmp_path / "same-robustnmf" / "codes.csv").read_text().count("rose") == 40


# --- Names that are no names ---

WICKED = [
    "\x1b[2J",
    "\r",
    "a\nError: all is lost",
    "\x9b31m",
    "\u202e",
    "\u2066",
    "\x00",
    "\x07",
    "\u2028",
    "\ufeff",
    "\x7f",
]
SHOWN = [
    "São Paulo",
    "日本",
    "Ω²",
    "e\u0301",
    "\U0001f9d1\u200d\U0001f680",
    "\u00a0",
    "\u3000",
    r"C:\new",
    "نمی\u200cشود",
]


@pytest.mark.parametrize("text", [*WICKED, "\ud800", "caf\udce9"])
def test_signs_that_do_something_to_a_terminal_are_written_as_escapes(text):
    safe = console.harmless(f"a{text}b")
    assert all(sign.isprintable() for sign in safe)
    assert safe.encode().decode("unicode_escape").encode("utf-8", "surrogatepass") == f"a{text}b".encode(
        "utf-8", "surrogatepass"
    )


@pytest.mark.parametrize("text", SHOWN)
def test_letters_of_all_languages_stay_as_they_are(text):
    assert console.harmless(text) == text


def harmless(done):
    """Return whether everything that a command has printed is text, in lines that it has begun itself."""
    return all(sign.isprintable() or sign in "\n\u00a0" for sign in done.stdout + done.stderr)


@pytest.fixture(scope="module")
def wicked(tmp_path_factory, truth):
    """A folder with a table, a model and files of wicked names."""
    place = tmp_path_factory.mktemp("wicked")
    values = np.where(np.random.default_rng(2).random(truth.shape) < 0.1, 9.0, truth)
    write_table(
        place / "x.csv", values, [f"{WICKED[i % 11]}{i}→é" for i in range(40)], [*WICKED, "$x^$", "<b>", "a", "b"]
    )
    write_table(place / "words.csv", np.array([["1", WICKED[0]], ["2", "3"]]), ["a", "b"], WICKED[:2])
    (place / "esc\x1b[2J\u202e.csv").write_bytes((place / "x.csv").read_bytes())
    (place / os.fsdecode(b"caf\xe9.csv")).write_bytes((place / "x.csv").read_bytes())
    run_here("fit", "x.csv", "-k", 2, "-o", "m", "--max-iter", 20, "--no-report", "-q", folder=place)
    return place


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("fit", "x.csv", "-k", 2, "-o", "f\x1b[2J", "--max-iter", 5), 0),
        (("fit", "esc\x1b[2J\u202e.csv", "-k", 2, "--max-iter", 5, "--no-report"), 0),
        (("fit", "caf\udce9.csv", "-k", 2, "--max-iter", 5, "--json"), 0),
        (("fit", "words.csv", "-k", 1), 2),
        (("fit", "no\x1b[2J\udce9.csv", "-k", 1), 2),
        (("fit", "x.csv", "-k", "\x1b[2J"), 2),
        (("fit", "x.csv", "-k", 1, "--method", "\x1b[2J"), 2),
        (("fit", "x.csv", "-k", 1, "--key", "\x1b[2J"), 2),
        (("fit", "x.csv", "-k", 1, "--device", "\x1b[2J"), 2),
        (("fit", "x.csv", "--\x1b[2J\u202e"), 2),
        (("fit", "x.csv", "y\x1b[2J\udce9\u202e"), 2),
        (("--\x1b[2J\u202e",), 2),
        (("\x1b[2J\u202e",), 2),
        (("transform", "m", "x.csv", "-o", "c\x1b\udce9.csv"), 0),
        (("clean", "m", "x.csv", "-o", "d\r.npy"), 0),
        (("clean", "m", "x.csv", "-o", "\x1b/d.npy"), 2),
        (("outliers", "m", "x.csv", "--worst", 40), 0),
        (("outliers", "m", "x.csv", "--worst", 40, "--json"), 0),
        (("outliers", "x.csv\x1b", "x.csv"), 2),
        (("outliers", "x.csv", "x.csv"), 2),
        (("report", "m", "x.csv", "-o", "r\u202e.html"), 0),
        (("rank", "x.csv", "--ranks", "\x1b[2J"), 2),
        (("compare", "x.csv", "--method", "\x1b[2J"), 2),
        (("reproduce", "\x1b[2J"), 2),
    ],
    ids=str,
)
def test_nothing_that_is_printed_does_something_to_the_terminal(wicked, arguments, code):
    done = run_here(*arguments, folder=wicked, code=code)
    assert harmless(done)
    if "--json" in arguments:
        assert isinstance(json.loads(done.stdout), dict)


def test_warnings_of_every_command_are_printed_without_what_could_do_harm(wicked, monkeypatch):
    def warn(*_, **__):
        warnings.warn("look \x1b[2J\nhere", stacklevel=2)
        raise ValueError("wrong \x1b[2J")

    monkeypatch.setattr(robustnmf.formats, "read_table", warn)
    for command in (("rank", "x.csv"), ("compare", "x.csv"), ("transform", "m", "x.csv", "-o", "w.csv")):
        done = run_here(*command, folder=wicked, code=2)
        assert done.stderr == "Warning: look \\x1b[2J\\nhere\nError: wrong \\x1b[2J\n"


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "utf-8", "cp1252"])
def test_any_encoding_of_the_terminal_will_do(wicked, charset):
    with chdir(wicked):
        for options in ((), ("--json",)):
            done = CliRunner(charset=charset).invoke(app.app, ["outliers", "m", "x.csv", *options])
            assert done.exit_code == 0
            assert "\\u2192" in done.stdout or charset == "utf-8"
    assert json.loads(done.stdout)["worst"][0]["name"].endswith("→é")


def test_json_knows_neither_nan_nor_halves_of_surrogate_pairs():
    text = console.json_text({"a": [float("nan"), -float("inf"), 1.5], "b\ud800": {"c": ("caf\udce9", None, True, 3)}})
    assert text.isascii() and "NaN" not in text and "Infinity" not in text
    assert json.loads(text) == {"a": [None, None, 1.5], "b\\ud800": {"c": ["caf\\udce9", None, True, 3]}}
    json.loads(text).__repr__().encode("utf-8")  # no halves have come back


def test_files_are_written_whatever_the_names(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    (tmp_path / "faces").mkdir()
    for i in range(8):  # bytes of a path that are no text
        picture = Image.fromarray(rng.integers(0, 255, (4, 4), dtype=np.uint8))
        picture.save(tmp_path / "faces" / os.fsdecode(b"f\xe9%d.png" % i), format="png")
    data = os.fsdecode(b"faces\xff")
    (tmp_path / "faces").rename(tmp_path / data)
    run_here("fit", data, "-k", 1, "-q", "--max-iter", 5, folder=tmp_path)
    results = tmp_path / f"{data}-robustnmf"
    assert "faces" in (results / "report.html").read_text(encoding="utf-8")
    json.loads((results / "summary.json").read_text(encoding="utf-8"))
    run_here("transform", results, data, "-o", "codes.csv", folder=tmp_path)
    assert "f\\udce90" in (tmp_path / "codes.csv").read_text(encoding="utf-8")


# --- Weights: a command says what the library says ---


@pytest.fixture(scope="module")
def weighted(tmp_path_factory, truth):
    """Data of which some is missing, some has no weight, some stands for a gap; weights and uncertainties."""
    place = tmp_path_factory.mktemp("weighted")
    rng = np.random.default_rng(3)
    X = np.where(rng.random(truth.shape) < 0.05, 9.0, truth)
    X[rng.random(X.shape) < 0.05] = np.nan
    X[5, 6] = -999.0  # stands for a gap with --missing-value
    weights = rng.choice([0.0, 0.5, 1.0], X.shape, p=[0.2, 0.3, 0.5])
    weights[5, 6] = 0.0  # and has no weight, so that it may stand there without
    X[7, 8], weights[7, 8] = -7.0, 0.0
    arrays = {"weights": weights, "uncertainties": 0.02 * rng.uniform(1, 3, X.shape)}
    for name, array in (("x", X), *arrays.items()):
        np.save(place / f"{name}.npy", array)
    return place, X, arrays


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("names", "missing"),
    [
        pytest.param(("weights",), (), id="weights", marks=pytest.mark.slow),
        pytest.param(("weights", "uncertainties"), ("--missing-value", -999), id="weights and uncertainties"),
    ],
)
def test_commands_take_weights_as_the_library_does(weighted, names, missing, request):
    place, X, arrays = weighted
    X = np.where(X == -999, np.nan, X) if missing else X
    given = {name: arrays[name] for name in names}
    options = [*missing, *(part for name in names for part in (f"--{name}", f"{name}.npy"))]
    out = request.node.callspec.id
    run_here("fit", "x.npy", "-k", 2, "-o", out, "-q", *options, folder=place)
    model = robustnmf.load(place / out / "model.robustnmf")
    results = {
        "codes": model.transform(X, **given),
        "cleaned": model.clean(X, **given),
        "outliers": model.outlier_mask(X, **given),
    }
    for name, result in results.items():
        np.testing.assert_array_equal(np.load(place / out / f"{name}.npy"), result)
    assert np.isfinite(results["cleaned"]).all() and results["cleaned"].min() >= 0
    for command, name in (("transform", "codes"), ("clean", "cleaned"), ("outliers", "outliers")):
        run_here(command, out, "x.npy", "-o", f"{out}-{name}.npy", *options, folder=place)
        np.testing.assert_array_equal(np.load(place / f"{out}-{name}.npy"), results[name])
    run_here("report", out, "x.npy", "-o", f"{out}.html", *options, folder=place)
    model.report(X, place / f"{out}-library.html", **given)
    pages = [(place / f"{out}{end}.html").read_text(encoding="utf-8") for end in ("", "-library")]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("names", [(), ("uncertainties",)], ids=["alone", "uncertainties"])
def test_without_weights_cleaned_data_is_that_of_the_library_too(weighted, names):
    place, X, arrays = weighted
    np.save(place / "y.npy", np.where(X < 0, np.nan, X))
    options = [part for name in names for part in (f"--{name}", f"{name}.npy")]
    run_here("fit", "y.npy", "-k", 2, "-o", "y", "-q", "--no-report", "--force", *options, folder=place)
    model = robustnmf.load(place / "y" / "model.robustnmf")
    given = {name: arrays[name] for name in names}
    np.testing.assert_array_equal(np.load(place / "y" / "cleaned.npy"), model.clean(np.load(place / "y.npy"), **given))


# --- Whatever the data and the arguments: one line, no traceback, no half of a result ---

_rng = np.random.default_rng(4)
_X = _rng.random((12, 2)) @ _rng.random((2, 6)) + 0.01 * _rng.random((12, 6))
ARRAYS = {
    "all-nan": _X * np.nan,
    "zeros": 0 * _X,
    "constant": 0 * _X + 1,
    "huge": 1e307 * _X,
    "infinite": np.inf * _X,
    "tiny": 1e-310 * _X,
    "negative": -_X,
    "row": _X[:1],
    "column": _X[:, :1],
    "cell": _X[:1, :1],
    "far-apart": _X * np.logspace(-100, 100, 12)[:, None],
    "gross": np.where(_rng.random(_X.shape) < 0.2, 1e300, _X),
    "alike": np.repeat(_X[:, :1], 6, axis=1),
    "empty-feature": np.where(np.arange(6) == 3, np.nan, _X),
    "empty-sample": np.where(np.arange(12)[:, None] == 3, np.nan, _X),
    "vector": _X[0],
    "scalar": np.array(3.0),
    "four-axes": np.zeros((2, 2, 2, 2)),
    "nothing": np.zeros((0, 3)),
    "complex": _X + 1j,
    "words": np.array([["a", "b"]]),
    "half": _X.astype(np.float16),
}
CONTENTS = {
    "empty.csv": b"",
    "empty.npy": b"",
    "one.csv": b"1\n",
    "headings.csv": b"a,b,c\n",
    "latin.csv": "näme,a,b\nx,1,2\ny,2,3\n".encode("latin-1"),
    "nul.csv": b"a,b\n1,\0\n",
    "half.csv": b"\xff\xfe\x00\xd8,\x001\x00\n\x00",
    "forged.robustnmf": b"robustnmf-model 1 5 " + b"0" * 64 + b"\nhello",
    "later.robustnmf": b"robustnmf-model 99 5 \n",
}
PLACES = ["folder", "nothing.csv", ".", "/dev/null", "/dev/zero", "x.npy/y", "a" * 300 + ".csv", "m.robustnmf"]
HOSTILE = [*(f"{name}.npy" for name in ARRAYS), *CONTENTS, *PLACES]
ON_DATA = {
    "fit": ("fit", "DATA", "-k", 1, "-o", "OUT", "--max-iter", 3, "-q", "--no-report"),
    "near-separable": ("fit", "DATA", "-k", 1, "-o", "OUT", "--method", "near-separable", "-q", "--no-report"),
    "transform": ("transform", "m.robustnmf", "DATA", "-o", "OUT.csv"),
    "clean": ("clean", "m.robustnmf", "DATA", "-o", "OUT.csv"),
    "outliers": ("outliers", "m.robustnmf", "DATA", "--json"),
    "report": ("report", "m.robustnmf", "DATA", "-o", "OUT.html"),
    "rank": ("rank", "DATA", "--ranks", "1", "--splits", 2, "--json"),
    "compare": ("compare", "DATA", "-k", 1, "--method", "l2", "--json"),
}
WEIGHTS = {
    "zero": 0 * _X,
    "negative": -_X,
    "nan": np.nan * _X,
    "infinite": np.inf * _X,
    "tiny": 0 * _X + 1e-320,
    "other-shape": _X[:3],
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder of hostile files."""
    place = tmp_path_factory.mktemp("hostile")
    for name, array in {**ARRAYS, "x": _X}.items():
        np.save(place / f"{name}.npy", array)
    for name, array in WEIGHTS.items():
        np.save(place / f"weights-{name}.npy", array)
    for name, content in CONTENTS.items():
        (place / name).write_bytes(content)
    np.savez(place / "two.npz", a=_X, b=_X)
    (place / "folder").mkdir()
    (place / "folder" / "notes.txt").write_text("x")
    (place / "results").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = robustnmf.RobustNMF(2, random_state=0, max_iter=10).fit(_X)
        model.save(place / "m.robustnmf")
        robustnmf.RobustNMF(2, random_state=0, max_iter=10).fit(_X, uncertainties=_X).save(place / "noisy.robustnmf")
    model.set_output(transform="pandas").save(place / "frames.robustnmf")
    del model.weights_, model.outliers_
    model.save(place / "small.robustnmf")
    return place


def ends_well(folder, *arguments):
    """Run a command; it has to end with a result or with one line, and to leave no file that nobody asked for."""
    names = {path.name for path in folder.iterdir()}
    with chdir(folder):
        done = CliRunner().invoke(app.app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert harmless(done)
    new = {path.name for path in folder.iterdir()} - names - {".robustnmf-files.json"}
    assert not any(name.startswith(".") for name in new)
    if done.exit_code:
        assert done.exit_code == 2 and not new
        beside = ("Warning: ", "Note: ", "iteration ", "fit ")
        told = [line for line in done.stderr.splitlines() if not line.startswith(beside)]
        assert len(told) == 1 and len(told[0]) > len("Error: ....") and told[0].startswith("Error: "), done.stderr
    elif "--json" in arguments:
        for line in done.stdout.splitlines():
            json.loads(line, parse_constant=pytest.fail)
    return done


def fast(command, name):
    """Whether a case is done in some hundredths of a second."""
    return name not in {f"{array}.npy" for array in ARRAYS} or command in ("transform", "clean", "outliers", "compare")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(command, name, marks=[] if fast(command, name) else [pytest.mark.slow])
        for command in ON_DATA
        for name in HOSTILE
    ],
)
def test_hostile_data_ends_in_a_result_or_in_one_line(hostile, command, name):
    out = re.sub(r"\W", "-", f"{command}-{name[:20]}")
    words = {"DATA": name, "OUT": out, "OUT.csv": f"{out}.csv", "OUT.html": f"{out}.html"}
    ends_well(hostile, *(words.get(argument, argument) for argument in ON_DATA[command]))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("near-separable", "far-apart.npy"),
        ("near-separable", "zeros.npy"),
        ("near-separable", "all-nan.npy"),
        ("fit", "cell.npy"),
        ("fit", "huge.npy"),
        ("rank", "cell.npy"),
        ("rank", "huge.npy"),
        ("rank", "constant.npy"),
        ("compare", "cell.npy"),
        ("report", "zeros.npy"),
    ],
)
def test_some_hostile_data_ends_in_a_result_or_in_one_line(hostile, command, name):
    out = re.sub(r"\W", "-", f"some-{command}-{name}")
    words = {"DATA": name, "OUT": out, "OUT.html": f"{out}.html"}
    ends_well(hostile, *(words.get(argument, argument) for argument in ON_DATA[command]))


def test_linear_program_that_is_not_solved_is_one_line(hostile):
    options = ("--method", "near-separable", "--no-report", "-q")
    said = ends_well(hostile, "fit", "far-apart.npy", "-k", 2, "-o", "unsolved", *options).stderr
    assert "was not solved" in said and "use another method" in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["transform", "clean", "outliers", "report"])
@pytest.mark.parametrize(
    "model",
    ["frames.robustnmf", "small.robustnmf", "noisy.robustnmf", "x.npy", *CONTENTS, "folder", "none", "/dev/zero"],
)
def test_hostile_models_end_in_a_result_or_in_one_line(hostile, command, model):
    out = re.sub(r"\W", "-", f"{command}-by-{model}")
    ends_well(hostile, command, model, "x.npy", "-o", out + (".html" if command == "report" else ".csv"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "transform", "clean", "outliers", "report", "rank"])
@pytest.mark.parametrize("option", ["--weights", "--uncertainties"])
@pytest.mark.parametrize("name", [*(f"weights-{name}.npy" for name in WEIGHTS), "empty.csv", "folder", "none.npy"])
def test_hostile_weights_end_in_a_result_or_in_one_line(hostile, command, option, name):
    out = re.sub(r"\W", "-", f"{command}{option}-{name}")
    arguments = {
        "fit": ("fit", "x.npy", "-k", 1, "-o", out, "-q", "--max-iter", 3, "--no-report"),
        "rank": ("rank", "x.npy", "--ranks", 1, "--splits", 2),
        "report": ("report", "noisy.robustnmf", "x.npy", "-o", f"{out}.html"),
    }
    usual = (command, "noisy.robustnmf", "x.npy", "-o", f"{out}.npy")
    ends_well(hostile, *arguments.get(command, usual), option, name)


ONE_FIT = ("fit", "x.npy", "-k", 1, "--max-iter", 3, "-q", "--no-report")


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ("fit", "x.npy", "-k", rank, "-o", "k", "-q")
            for rank in ("0", "-1", "2.5", "²", "9" * 30, "9" * 5000, "", "7")
        ),
        *(("rank", "x.npy", "--ranks", ranks) for ranks in ("5-2", "1-99999999999", "0", "", "-", "1-", "²", "1,,2")),
        *(("rank", "x.npy", "--ranks", ranks) for ranks in ("1-2-3", "9" * 5000, "1-7")),
        *(("rank", "x.npy", "--ranks", "1", "--splits", splits) for splits in (1000, "9" * 12)),
        *((*ONE_FIT, "-o", "s", "--seed", seed) for seed in (-1, "4294967296", "9" * 40)),
        *((*ONE_FIT, "-o", "d", "--device", device) for device in ("foo", "", "meta", "cpu:3", "cuda:9999")),
        *((*ONE_FIT, "-o", out) for out in ("x.npy", "folder", "/proc/x", "/", ".", "/dev/full", "a" * 300, "x.npy/y")),
        *(
            ("transform", "m.robustnmf", "x.npy", "-o", out, *force)
            for out in ("x.npy", "folder", "/proc/x.csv", "/", "no/x.csv", "x.doc", "/dev/full", "a" * 300 + ".csv", "")
            for force in ((), ("--force",))
        ),
        *(("report", "m.robustnmf", "x.npy", "-o", out) for out in ("folder", "no/x.html", "/proc/x.html", "")),
        *(("rank", "x.npy", "--ranks", 1, "--splits", 2, "--plot", plot) for plot in ("no/x.png", "x.odd", "folder")),
        *(("fit", "two.npz", "-k", 1, "-o", "n", *key) for key in ((), ("--key", "c"), ("--key", ""))),
        ("compare", "x.npy", "-k", 99),
        ("compare", "x.npy", "-k", 1, "--method", "near-separable"),
    ],
    ids=lambda arguments: " ".join(str(argument)[:20] for argument in arguments),
)
def test_hostile_arguments_end_in_one_line(hostile, arguments):
    assert ends_well(hostile, *arguments).exit_code == 2


def test_compare_leaves_out_models_that_need_all_entries_unless_they_are_asked_for(hostile, monkeypatch):
    monkeypatch.setattr(robustnmf.paper.compare, "METHODS", few := {"near-separable": None, "l2": None})
    monkeypatch.setattr(robustnmf, "METHODS", few)
    done = ends_well(hostile, "compare", "x.npy", "-k", 1, "--json")
    assert [json.loads(line)["method"] for line in done.stdout.splitlines()] == ["l2"]
    assert "near-separable is left out" in done.stderr


def test_a_fit_whose_results_cannot_be_written_leaves_nothing(hostile, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no page today")

    monkeypatch.setattr(robustnmf.report, "write", fail)
    said = ends_well(hostile, "fit", "x.npy", "-k", 1, "-o", "none", "-q", "--max-iter", 3).stderr
    assert said.endswith("Error: RuntimeError: no page today\n")


def test_errors_without_words_still_say_something():
    for error, words in ((MemoryError(), "Out of memory"), (OSError(), "OSError"), (OverflowError("x"), "x")):
        with pytest.raises(typer.Exit), redirect_stderr(StringIO()) as said, console.errors_in_one_line():
            raise error
        assert words in said.getvalue()
    with pytest.raises(KeyError), console.errors_in_one_line():  # a fault of the program may be seen
        raise KeyError("a fault")


RUN = shlex.join(COMMAND)
ONE_LINE = f"{RUN} fit x.npy -k 1 --max-iter 3 --no-report"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a shell of Unix")
@pytest.mark.parametrize(
    ("line", "code", "result"),
    [
        (f"{ONE_LINE} -o read1 2>&1 | head -0; exit ${{PIPESTATUS[0]}}", 1, "read1"),
        pytest.param(f"{ONE_LINE} -o read2 >&- 2>&-", 0, "read2", marks=pytest.mark.slow),
        pytest.param(f"{RUN} methods | head -0; exit ${{PIPESTATUS[0]}}", 1, "", marks=pytest.mark.slow),
        pytest.param(f"{RUN} info > /dev/full", 2, "", marks=pytest.mark.slow),
    ],
    ids=["pipe that is closed", "streams that are closed", "pipe that is closed, no fit", "disk that is full"],
)
def test_nobody_has_to_read_what_is_printed(hostile, line, code, result):
    done = subprocess.run(["bash", "-c", line], cwd=hostile, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert not result or (hostile / result / "model.robustnmf").exists()


# --- Sparse data ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counts():
    """Counts of low rank, a third of them positive, and one far too large."""
    rng = np.random.default_rng(0)
    X = rng.poisson(rng.gamma(0.5, 1, (80, 3)) @ rng.gamma(0.5, 1, (3, 30))).astype(float)
    X[3, 4] = 500
    return X


def write_counts(path, X):
    if path.suffix == ".npz":
        sparse.save_npz(path, sparse.csc_matrix(X))
    elif path.suffix == ".mtx":
        mmwrite(path, sparse.coo_array(X))
    else:
        matrix = sparse.csr_array(X)
        with pytest.importorskip("h5py").File(path, "w") as file:
            group = file.create_group("X")
            group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", X.shape
            for name in ("data", "indices", "indptr"):
                group[name] = getattr(matrix, name)
            for axis, letter, count in (("obs", "cell", 80), ("var", "gene", 30)):
                file.create_group(axis).attrs["_index"] = "_index"
                file[axis]["_index"] = [f"{letter} {i}" for i in range(count)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stays_sparse", [False, True])
@pytest.mark.parametrize("name", ["x.npz", "x.mtx", "x.h5ad"])
def test_sparse_files_are_fitted_and_cleaned_and_results_are_sparse(tmp_path, counts, monkeypatch, name, stays_sparse):
    if stays_sparse:
        monkeypatch.setattr("robustnmf.engines.LARGE", 0)
        monkeypatch.setattr("robustnmf.engines.SPARSE", 1)
        monkeypatch.setattr("robustnmf.report.facts.MOST_ENTRIES", 0)
    write_counts(tmp_path / name, counts)
    done = run_here("fit", name, "-k", 3, "-o", "out", folder=tmp_path)
    assert (tmp_path / "out" / "report.html").exists() is not stays_sparse
    assert ("No report: A report looks at all entries" in done.output) is stays_sparse
    model = robustnmf.RobustNMF(3, random_state=0, engine="numpy").fit(counts)
    assert model.outliers_[3, 4]
    expected = {"outliers": model.outliers_, "cleaned": model.clean(counts)}
    for what, values in expected.items():
        found = read_result(tmp_path / "out", what).values
        assert sparse.issparse(found)
        np.testing.assert_allclose(found.toarray(), values, rtol=1e-6, atol=1e-9)
    components = dense(read_result(tmp_path / "out", "components").values)
    np.testing.assert_allclose(components, model.components_, rtol=1e-6)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["missing"] == 0 and summary["outlier_share"] == pytest.approx(model.outliers_.mean())
    for command, what in (("clean", "cleaned"), ("outliers", "outliers")):
        for suffix in (".npz", ".npy"):
            done = run_here(command, "out", name, "-o", what + suffix, folder=tmp_path)
            assert f"{model.outliers_.mean():.2%} of the entries" in done.output
        found = sparse.load_npz(tmp_path / f"{what}.npz")
        np.testing.assert_array_equal(found.toarray(), np.load(tmp_path / f"{what}.npy"))
        np.testing.assert_array_equal(found.toarray(), read_result(tmp_path / "out", what).values.toarray())
    assert ("cell 3" if name == "x.h5ad" else "sample 3") in done.output


def test_large_sparse_file_of_anndata_is_streamed(tmp_path, counts, monkeypatch):
    write_counts(tmp_path / "x.h5ad", counts)
    monkeypatch.setattr("robustnmf.data.out_of_core.LARGE", 0)
    monkeypatch.setattr("robustnmf.formats.h5ad.SparseHDF5Rows.load", None)  # it is not taken into memory
    done = run_here("fit", "x.h5ad", "-k", 3, "-o", "out", folder=tmp_path)
    assert "it is read block by block" in done.output
    assert "Cleaned data and report are left out" in done.output
    model = robustnmf.RobustNMF(3, random_state=0, engine="numpy").fit(counts)
    found = read_result(tmp_path / "out", "outliers").values.toarray()
    assert found[3, 4]
    np.testing.assert_array_equal(found, model.outliers_)
    components = dense(read_result(tmp_path / "out", "components").values)
    np.testing.assert_allclose(components, model.components_, rtol=1e-3, atol=1e-6)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["missing"] == 0
    assert summary["outlier_share"] == pytest.approx(model.outliers_.mean())
    assert summary["samples"] == len(counts)
    run_here("transform", "out", "x.h5ad", "-o", "codes.npy", folder=tmp_path)
    codes = dense(read_result(tmp_path / "out", "codes").values)
    np.testing.assert_allclose(np.load(tmp_path / "codes.npy"), codes, atol=1e-6)
    done = run_here("outliers", "out", "x.h5ad", "-o", "mask.npz", folder=tmp_path)
    assert "cell 3" in done.output
    np.testing.assert_array_equal(sparse.load_npz(tmp_path / "mask.npz").toarray(), found)


def test_entries_of_sparse_files_that_are_not_stored_may_be_missing(tmp_path, counts):
    write_counts(tmp_path / "x.npz", counts)
    run_here("fit", "x.npz", "-k", 1, "-o", "out", "--zeros", "missing", "--no-report", folder=tmp_path)
    gaps = np.where(counts > 0, counts, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = robustnmf.RobustNMF(1, random_state=0).fit(gaps)
    components = dense(read_result(tmp_path / "out", "components").values)
    np.testing.assert_allclose(components, model.components_, rtol=1e-6)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["missing"] == pytest.approx(np.mean(counts == 0))
    cleaned = read_result(tmp_path / "out", "cleaned").values.toarray()
    np.testing.assert_allclose(cleaned, np.where(counts > 0, model.clean(gaps), 0), rtol=1e-6)


def test_commands_that_compare_and_choose_take_sparse_files(tmp_path, counts):
    write_counts(tmp_path / "x.npz", counts)
    assert "l2" in run_here("compare", "x.npz", "-k", 3, "--method", "l2", folder=tmp_path).output
    assert "<- chosen" in run_here("rank", "x.npz", "--ranks", "1-2", "--splits", 2, folder=tmp_path).output


# --- Progress, warnings, versions -------------------------------------------------------------------------------------


def test_version(tmp_path):
    assert run_here("--version", folder=tmp_path).stdout == f"robustnmf {robustnmf.__version__}\n"


def test_a_warning_is_printed_once(tmp_path, values):
    X = values.copy()
    X[5] = np.nan  # of which fit, report and clean would all say that nothing is observed
    np.save(tmp_path / "x.npy", X)
    said = run_here("fit", "x.npy", "-k", 2, "--max-iter", 3, folder=tmp_path).stderr.splitlines()
    warned = [line for line in said if line.startswith("Warning: ")]
    assert any("no observed entry" in line for line in warned)
    assert len(warned) == len(set(warned))


def test_a_search_for_the_rank_shows_its_progress_unless_it_is_quiet(tmp_path, truth):
    np.save(tmp_path / "x.npy", truth[:20])
    arguments = ("rank", "x.npy", "--ranks", "1,2", "--splits", 2, "--json")
    said = run_here(*arguments, folder=tmp_path).stderr.splitlines()
    assert said[0] == "fit 1 of 4: rank 1, split 1 of 2"
    assert run_here(*arguments, "--quiet", folder=tmp_path).stderr == ""


def test_fit_takes_tolerance_starts_and_jobs(tmp_path, truth):
    np.save(tmp_path / "x.npy", truth)
    options = ("--tol", 0.1, "--n-init", 2, "--jobs", 2, "--no-report", "-q")
    run_here("fit", "x.npy", "-k", 2, *options, folder=tmp_path)
    model = robustnmf.load(tmp_path / "x-robustnmf" / "model.robustnmf")
    expected = robustnmf.RobustNMF(2, tol=0.1, n_init=2, random_state=0).fit(truth)
    np.testing.assert_array_equal(model.components_, expected.components_)
    assert (model.tol, model.n_init) == (0.1, 2)
    summary = json.loads((tmp_path / "x-robustnmf" / "summary.json").read_text())
    assert summary["interrupted"] is False
    assert {name: summary["options"][name] for name in ("components", "tol", "n_init", "jobs", "quiet")} == {
        "components": "2", "tol": 0.1, "n_init": 2, "jobs": 2, "quiet": True,
    }  # fmt: skip


def test_folders_of_results_do_not_collide(tmp_path, truth):
    for year in (2022, 2023):
        np.savetxt(tmp_path / f"site.{year}.csv", truth[:15], delimiter=",")
        run_here("fit", f"site.{year}.csv", "-k", 1, "--no-report", "-q", folder=tmp_path)
    assert {path.name for path in tmp_path.glob("*-robustnmf")} == {"site.2022-robustnmf", "site.2023-robustnmf"}


# --- Guesses and places by name ---------------------------------------------------------------------------------------


def test_a_code_for_missing_is_named_with_its_option_and_its_place(table):
    said = run_here("fit", table, "-k", 2, folder=table.parent, code=2).stderr
    assert "sample 'day 3', feature 'species 4'" in said
    assert "--negative clip" in said
    X = np.ones((20, 6))
    X[:5, 2] = -999
    np.save(table.parent / "many.npy", X)
    said = run_here("fit", "many.npy", "-k", 2, folder=table.parent, code=2).stderr
    assert "5 entries are exactly -999" in said and "--missing-value -999" in said


def test_outliers_of_images_and_cubes_are_listed_by_their_places(tmp_path, truth):
    X = truth[:, :12].copy()
    X[3, 6] = 90.0
    np.save(tmp_path / "x.npy", X.reshape(-1, 3, 4))
    np.savez(tmp_path / "y.npz", scene=X.reshape(5, -1, 12), wavelength=np.arange(400, 412))
    places = {}
    for name in ("x.npy", "y.npz"):
        run_here("fit", name, "-k", 2, "--no-report", "-q", "-o", name[0], folder=tmp_path)
        said = run_here("outliers", name[0], name, "--worst", 1, "--json", "-q", folder=tmp_path).stdout
        (worst,) = json.loads(said)["worst"]
        places[name] = worst["name"], worst["features"][0]["name"]
    assert places == {"x.npy": ("sample 3", "pixel (1, 2)"), "y.npz": ("pixel (0, 3)", "406")}


@pytest.mark.parametrize("kind", ["rows", "columns", "sparse"])
def test_clipped_entries_that_are_right_keep_their_values_in_cleaned_data(tmp_path, truth, kind):
    X = truth - np.quantile(truth, 0.05)
    X[3, 4], X[5, 6] = 90.0, np.nan if kind != "sparse" else 1.0
    path = tmp_path / ("x.npz" if kind == "sparse" else "x.npy")
    options = ["--negative", "clip", *(["--transpose"] if kind == "columns" else [])]
    if kind == "sparse":
        sparse.save_npz(path, sparse.csr_array(X))
    else:
        np.save(path, X.T if kind == "columns" else X)
    run_here("fit", path, "-k", 3, *options, "--no-report", "-q", "-o", "out", folder=tmp_path)
    run_here("clean", "out", path, "-q", "-o", f"again{path.suffix}", folder=tmp_path)
    for cleaned in (f"out/cleaned{path.suffix}", f"again{path.suffix}"):
        found, mask = (
            robustnmf.formats.read_table(tmp_path / name).values for name in (cleaned, f"out/outliers{path.suffix}")
        )
        found, mask = (getattr(each, "toarray", lambda each=each: each)() for each in (found, mask))
        found, mask = (found.T, mask.T) if kind == "columns" else (found, mask)
        kept = (mask == 0) & ~np.isnan(X)
        np.testing.assert_array_equal(found[kept], X[kept])
        assert (X[kept] < 0).sum() > 5 and found[3, 4] < 9 and mask[3, 4]


def test_guesses_are_said_once_with_the_option_that_says_otherwise(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "cube.npy", rng.random((6, 5, 4)))
    said = run_here("fit", "cube.npy", "-k", 1, "--no-report", "-q", folder=tmp_path).stderr
    notes = [line for line in said.splitlines() if line.startswith("Note: ")]
    assert len(notes) == 1 and "--samples pixels" in notes[0]
    run_here("fit", "cube.npy", "-k", 1, "--samples", "pixels", "-o", "p", "--no-report", "-q", folder=tmp_path)
    shapes = {name: np.load(tmp_path / "p" / f"{name}.npy").shape for name in ("cleaned", "outliers")}
    assert shapes == {"cleaned": (6, 5, 4), "outliers": (6, 5, 4)}
    assert json.loads((tmp_path / "p" / "summary.json").read_text())["samples"] == 30
    run_here("fit", "cube.npy", "-k", 1, "--sample-axes", "0,2", "-o", "a", "--no-report", "-q", folder=tmp_path)
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["features"] == 5
    said = run_here("fit", "cube.npy", "--sample-axes", "a,b", folder=tmp_path, code=2).stderr
    assert "--sample-axes must be numbers" in said


def test_all_reading_options_are_options():
    from dataclasses import fields

    from robustnmf.cli.source import READING
    from robustnmf.formats import ReadOptions

    assert {field.name for field in fields(ReadOptions)} == {*READING, "max_bytes"}


# --- What a model remembers -------------------------------------------------------------------------------------------


def reordered(table, path, order, names=None):
    """Write the columns of a table in another order, or some of them, or with other names."""
    rows = list(csv.reader(table.open()))
    rows = [[row[0], *(row[1 + j] for j in order)] for row in rows]
    if names is not None:
        rows[0][1:] = names
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_a_model_reads_new_data_as_its_own_and_finds_columns_by_name(fitted, table, tmp_path):
    order = np.random.default_rng(5).permutation(15)
    mixed = reordered(table, tmp_path / "mixed.csv", order)
    run_here("transform", fitted, mixed, "-o", "codes.csv", folder=tmp_path)  # it knows that -999 is missing
    np.testing.assert_allclose(read_csv(tmp_path / "codes.csv"), read_csv(fitted / "codes.csv"))
    for command, name in (("clean", "cleaned"), ("outliers", "outliers")):
        run_here(command, fitted, mixed, "-o", f"{name}.csv", folder=tmp_path)
        np.testing.assert_array_equal(read_csv(tmp_path / f"{name}.csv"), read_csv(fitted / f"{name}.csv")[:, order])
        top = (tmp_path / f"{name}.csv").read_text(encoding="utf-8-sig").splitlines()[0]
        assert top == "day," + ",".join(f"species {j}" for j in order)
    listed = [
        json.loads(run_here("outliers", fitted, data, "--json", folder=tmp_path).stdout)["worst"]
        for data in (table, mixed)
    ]
    for one, other in zip(*listed, strict=True):
        assert one["name"] == other["name"]
        for what in ("measured", "explained"):
            values = [{entry["name"]: entry[what] for entry in sample["features"]} for sample in (one, other)]
            assert values[0] == pytest.approx(values[1])


def test_what_the_command_line_says_counts_more_than_what_a_model_remembers(fitted, table, tmp_path):
    text = table.read_text().replace("-999", "-888")
    (tmp_path / "new.csv").write_text(text)
    said = run_here("transform", fitted, "new.csv", "-o", "c.csv", folder=tmp_path, code=2).stderr
    assert "-888" in said
    run_here("transform", fitted, "new.csv", "-o", "c.csv", "--missing-value", -888, folder=tmp_path)
    np.testing.assert_allclose(read_csv(tmp_path / "c.csv"), read_csv(fitted / "codes.csv"))


@pytest.mark.parametrize("command", ["transform", "clean", "outliers", "report"])
@pytest.mark.parametrize(
    ("order", "names", "named"),
    [(range(14), None, "species 14"), (range(15), [f"s {j}" for j in range(15)], "species 0")],
    ids=["a column is missing", "columns have other names"],
)
def test_other_columns_are_refused_by_name(fitted, table, tmp_path, command, order, names, named):
    reordered(table, tmp_path / "new.csv", order, names)
    out = "r.html" if command == "report" else "r.csv"
    said = run_here(command, fitted, "new.csv", "-o", out, folder=tmp_path, code=2).stderr
    assert named in said
    assert not (tmp_path / out).exists()


def test_missing_values_may_be_several(tmp_path, table):
    text = table.read_text().replace("-999", "-888", 1).splitlines()
    text[5] = re.sub(r",[^,]*$", ",lost", text[5])
    (tmp_path / "x.csv").write_text("\n".join(text) + "\n")
    options = ("--missing-value", -888, "--missing-value", "lost", "-q", "--no-report")
    run_here("fit", "x.csv", "-k", 2, *options, folder=tmp_path)
    summary = json.loads((tmp_path / "x-robustnmf" / "summary.json").read_text())
    assert summary["missing"] == pytest.approx(2 / 600)
    assert summary["options"]["missing_value"] == ["-888", "lost"]


def test_outliers_lists_features_with_what_was_measured_and_explained(fitted, table, values):
    answer = json.loads(run_here("outliers", fitted, table, "--features", 99, "--json", folder=table.parent).stdout)
    mask, model = read_csv(fitted / "outliers.csv"), robustnmf.load(fitted / "model.robustnmf")
    product = read_csv(fitted / "codes.csv") @ model.components_
    for sample in answer["worst"]:
        places = [entry["index"] for entry in sample["features"]]
        assert sorted(places) == np.flatnonzero(mask[sample["index"]]).tolist()
        assert sample["outliers"] == len(places)
        for entry in sample["features"]:
            assert entry["name"] == f"species {entry['index']}"
            assert entry["measured"] == pytest.approx(values[sample["index"], entry["index"]])
            assert entry["explained"] == pytest.approx(product[sample["index"], entry["index"]])
    text = run_here("outliers", fitted, table, "--worst", 1, "--features", 1, folder=table.parent).stdout
    name = answer["worst"][0]["features"][0]["name"]
    assert f"{name}: 9, explained " in text
    assert f"and {answer['worst'][0]['outliers'] - 1} more" in text


def test_every_command_that_writes_a_result_says_where_as_json(fitted, table, tmp_path):
    for command, key, out in (
        ("transform", "codes", "c.csv"),
        ("clean", "cleaned", "d.csv"),
        ("report", "report", "r.html"),
    ):
        answer = json.loads(run_here(command, fitted, table, "-o", out, "--json", folder=tmp_path).stdout)
        assert answer[key] == out and (tmp_path / out).exists()
    assert isinstance(json.loads(run_here("reproduce", "--json", folder=tmp_path).stdout), dict)


def test_samples_in_columns_come_back_in_columns(tmp_path, table):
    rows = [list(column) for column in zip(*csv.reader(table.open()), strict=True)]
    with (tmp_path / "wide.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    options = ("--transpose", "--missing-value", -999, "-q", "--no-report")
    run_here("fit", "wide.csv", "-k", 2, *options, folder=tmp_path)
    lines = (tmp_path / "wide-robustnmf" / "cleaned.csv").read_text(encoding="utf-8-sig").splitlines()
    assert len(lines) == 16 and lines[0].endswith(",day 39") and lines[1].startswith("species 0,")


# --- Configuration ----------------------------------------------------------------------------------------------------

STUDY = """
data = "data/air.csv"  # relative to this file
missing-value = [-999]

[fit]
components = 2
out = "results"
no-report = true
quiet = true

[rank]
ranks = "1-2"
splits = 2
json = true
quiet = true

[outliers]
model = "results"
worst = 2
"""


@pytest.fixture
def study(tmp_path, table):
    (tmp_path / "study" / "data").mkdir(parents=True)
    (tmp_path / "study" / "data" / "air.csv").write_bytes(table.read_bytes())
    (tmp_path / "study" / "air.toml").write_text(STUDY)
    return tmp_path / "study"


def test_a_study_is_one_file(study, fitted):
    elsewhere = study.parent  # paths are relative to the file, wherever one is
    run_here("fit", "--config", "study/air.toml", folder=elsewhere)
    np.testing.assert_array_equal(read_csv(study / "results" / "codes.csv"), read_csv(fitted / "codes.csv"))
    answer = json.loads(run_here("--config=study/air.toml", "rank", folder=elsewhere).stdout)
    assert [row["rank"] for row in answer["curve"]] == [1, 2]
    text = run_here("outliers", "--config", study / "air.toml", "--features", 0, folder=elsewhere).stdout
    assert sum("day " in line for line in text.splitlines()) == 2


def test_the_command_line_counts_more_than_the_file(study):
    run_here("fit", "--config", "air.toml", "-k", 1, "-o", "one", folder=study)
    assert json.loads((study / "one" / "summary.json").read_text())["components"] == 1


def test_a_file_of_the_usual_name_is_read_and_that_is_said(study):
    (study / "air.toml").rename(study / "robustnmf.toml")
    done = run_here("fit", folder=study)
    assert "options are read from robustnmf.toml" in done.stderr
    assert (study / "results" / "model.robustnmf").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fit]\ncomponets = 2", "Did you mean 'components'?"),
        ("[fitt]\ncomponents = 2", "Did you mean 'fit'?"),
        ("missing_values = 3", "Did you mean 'missing-value'?"),
        ("[fit]\nranks = '1-2'", "there is no [fit] 'ranks'"),
        ("[fit]\ncomponents = 2020-01-01", "must give texts, numbers"),
        ("[fit", "must be a TOML file"),
        ("[fit]\nmax-iter = 'many'", "max-iter"),
    ],
)
def test_mistakes_in_a_configuration_are_one_line(tmp_path, text, message):
    (tmp_path / "a.toml").write_text(text)
    said = run_here("fit", "x.npy", "--config", "a.toml", folder=tmp_path, code=2).stderr
    assert message in " ".join(said.split())
    assert list(tmp_path.iterdir()) == [tmp_path / "a.toml"]


def test_a_configuration_must_be_there_and_small(tmp_path):
    assert "there is no file" in run_here("fit", "--config", "none.toml", folder=tmp_path, code=2).stderr
    assert "there is no file" in run_here("fit", "--config", "/dev/zero", folder=tmp_path, code=2).stderr
    assert "followed by a file" in run_here("fit", "--config", folder=tmp_path, code=2).stderr
    (tmp_path / "large.toml").write_bytes(b"#" * 2**21)
    assert "larger than" in run_here("fit", "--config", "large.toml", folder=tmp_path, code=2).stderr


def test_all_paths_of_commands_are_relative_to_the_configuration():
    from inspect import signature

    from robustnmf.cli import config

    callbacks = [command.callback for command in app.app.registered_commands]
    kinds = {name: kind.annotation for call in callbacks for name, kind in signature(call).parameters.items()}
    assert {name for name, kind in kinds.items() if "Path" in str(kind)} == config.PATHS


# --- The guide --------------------------------------------------------------------------------------------------------

GUIDE = (Path(__file__).parents[1] / "docs" / "guide" / "command_line.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\$ robustnmf (.*)$", GUIDE, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """The files that commands of the guide read."""
    place = tmp_path_factory.mktemp("guide")
    rng = np.random.default_rng(0)
    X = rng.random((25, 5)) @ rng.random((5, 12)) + 0.01 * rng.random((25, 12))
    for name, values in (("data", X), ("new", X[:8]), ("air", X), ("errors", 0 * X + 0.01)):
        write_table(place / f"{name}.csv", values, [f"day {i}" for i in range(len(values))], "ABCDEFGHIJKL")
    (place / "study.toml").write_text(re.search(r"```toml\n(.*?)```", GUIDE, flags=re.DOTALL)[1])
    run_here("fit", "data.csv", "-k", 5, "-q", folder=place)
    run_here("fit", "--config", "study.toml", "-q", folder=place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("line", [pytest.param(s, marks=[pytest.mark.slow] * s.startswith("rank")) for s in LINES])
def test_commands_of_the_guide_run(guide, line):
    with chdir(guide):
        done = CliRunner().invoke(
            app.app, [*shlex.split(line), *["--force"] * line.startswith(("fit", "rep", "trans"))]
        )
    assert done.exit_code == 0, done.output
