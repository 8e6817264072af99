"""``robustnmf reproduce`` as a whole: from names to a report, whatever happens on the way."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest
from typer.testing import CliRunner

import browser
import robustnmf
from robustnmf.cli import app
from robustnmf.paper import reproduce as reproduction
from robustnmf.paper.reproduce import reproduce, select, why_not
from robustnmf.paper.section import Cell, Check, Section, Table
from robustnmf.paper.task import Experiment, Outcome, Task
from robustnmf.utils.files import make_folder, write_atomically

PATIENCE = 120  # seconds; a busy machine is slow
COMMAND = [sys.executable, "-c", "from robustnmf.cli import main; main()", "reproduce"]


def call(*arguments):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def start(*arguments):
    """Start it as the leader of a process group of its own, as a shell does."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background hear no Ctrl-C
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process, enough):
    limit = time.monotonic() + PATIENCE
    while not enough():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.005)


def lines(path):
    """Return the finished lines of a log that may not be there yet."""
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def rows_without_seconds(path):
    rows = list(csv.DictReader(path.read_text().splitlines()))
    for row in rows:
        assert float(row.pop("seconds")) >= 0
    return rows


# The command line.


def test_without_items_they_are_listed():
    done = call()
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(reproduction.items())


def call_here(*arguments):
    """Run it in this process: another one takes seconds to start."""
    return CliRunner().invoke(app.app, ["reproduce", *map(str, arguments)])


def test_an_unknown_item_is_refused_with_the_known_ones(tmp_path):
    done = call_here("table2", "table9", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "got table9" in done.stderr
    assert all(item in done.stderr for item in reproduction.items())
    assert not (tmp_path / "out").exists()


def test_an_item_that_needs_data_is_refused_without(tmp_path):
    done = call_here("table4", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "table4 (recognition) needs ar_42x30.npz: pass the folder that holds it with --data." in done.stderr
    assert not (tmp_path / "out").exists()


# A small set of experiments of our own.


class Tiny:
    """Experiments that take no time, one of which needs a file; `broken` is what fails."""

    def __init__(self):
        self.ran, self.broken = [], set()
        self.experiments = {
            "free": self.experiment("free", {"one": "the first", "two": "the second"}),
            "bound": self.experiment("bound", {"two": "the second", "three": "the third"}, "some.npz"),
        }

    def experiment(self, name, items, needs=None):
        def plan(choices):
            return [Task(name, "all", 0, "nenmf", trial, {}) for trial in range(choices["trials"])]

        def section(results):
            cells = [Cell(results.mean("error"))]
            return Section(name, name.title(), tuple(items), (), tables=[Table("Errors", "", ["a"], [("all", cells)])])

        return Experiment(name, items, plan, self.run, section, needs)

    def run(self, task, data):
        self.ran.append((task.experiment, task.trial))
        if task.trial in self.broken:
            raise RuntimeError(f"trial {task.trial} is broken")
        return Outcome({"error": 2.0 + task.trial})


@pytest.fixture
def tiny(monkeypatch):
    tiny = Tiny()
    trials = {"full": 3, "quick": 1}
    monkeypatch.setattr(reproduction, "EXPERIMENTS", tiny.experiments)
    monkeypatch.setattr(
        reproduction, "protocol", lambda scale: {name: {"trials": trials[scale]} for name in tiny.experiments}
    )
    return tiny


def run(names, out, **options):
    return reproduce(names, out, n_jobs=1, quiet=True, **options)


def test_an_item_chooses_all_experiments_that_it_is_made_of(tiny):
    assert [e.name for e in select(["one"])] == ["free"]
    assert [e.name for e in select(["two"])] == ["free", "bound"]
    assert [e.name for e in select(["all"])] == ["free", "bound"]
    with pytest.raises(ValueError, match=r"one, two, three, or all; got none"):
        select([])


def test_why_not_says_what_is_missing_and_where(tiny, tmp_path):
    bound = tiny.experiments["bound"]
    assert why_not(tiny.experiments["free"], None) == ""
    assert why_not(bound, None).startswith("two, three (bound) needs some.npz: pass the folder")
    assert why_not(bound, tmp_path) == f"two, three (bound) needs some.npz, which is not in {tmp_path}."
    (tmp_path / "some.npz").touch()
    assert why_not(bound, tmp_path) == ""


@pytest.mark.parametrize("names", [["all"], ["two"]])
def test_what_needs_data_is_skipped_with_a_message_and_the_rest_is_run(names, tiny, tmp_path):
    outcome = run(names, tmp_path)
    assert tiny.ran == [("free", 0), ("free", 1), ("free", 2)]
    assert [skip.experiment.name for skip in outcome.skipped] == ["bound"]
    page = outcome.report.read_text()
    assert "two, three (bound) needs some.npz" in page
    assert 'id="free"' in page
    assert 'id="bound"' not in page
    assert {row["experiment"] for row in rows_without_seconds(outcome.table)} == {"free"}


def test_with_data_everything_is_run_and_first_trials_come_first(tiny, tmp_path):
    (tmp_path / "some.npz").touch()
    outcome = run(["all"], tmp_path / "out", data=tmp_path)
    assert tiny.ran == [(name, trial) for trial in range(3) for name in ("free", "bound")]
    assert (outcome.skipped, outcome.failed) == ([], 0)
    assert 'id="bound"' in outcome.report.read_text()


def test_only_items_that_need_data_are_an_error_without_and_leave_no_folder(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="--data"):
        run(["three"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_run_adds_to_the_first_and_the_report_has_both(tiny, tmp_path):
    run(["one"], tmp_path)
    tiny.ran.clear()
    (tmp_path / "some.npz").touch()
    outcome = run(["three"], tmp_path, data=tmp_path)
    assert {name for name, _ in tiny.ran} == {"bound"}
    page = outcome.report.read_text()
    assert 'id="free"' in page
    assert 'id="bound"' in page


def test_a_run_with_nothing_left_to_do_changes_no_result(tiny, tmp_path):
    outcome = run(["one"], tmp_path)
    before = outcome.table.read_bytes(), (tmp_path / "runs.jsonl").read_bytes()
    tiny.ran.clear()
    run(["one"], tmp_path)
    assert tiny.ran == []
    assert (outcome.table.read_bytes(), (tmp_path / "runs.jsonl").read_bytes()) == before


def test_failures_are_counted_told_in_the_report_and_run_again(tiny, tmp_path):
    tiny.broken = {1}
    outcome = run(["one"], tmp_path)
    assert outcome.failed == 1
    assert "RuntimeError: trial 1 is broken" in outcome.report.read_text()
    assert [row["value"] for row in rows_without_seconds(outcome.table)] == ["2.0", "4.0"]
    tiny.ran.clear()
    tiny.broken.clear()
    outcome = run(["one"], tmp_path)
    assert tiny.ran == [("free", 1)]
    assert outcome.failed == 0
    assert "is broken" not in outcome.report.read_text()
    assert [row["value"] for row in rows_without_seconds(outcome.table)] == ["2.0", "3.0", "4.0"]


def test_results_of_another_version_are_kept_and_not_counted(tiny, tmp_path, monkeypatch):
    run(["one"], tmp_path)
    before = (tmp_path / "runs.jsonl").read_bytes()
    monkeypatch.setattr(robustnmf, "__version__", "99")
    outcome = run(["one"], tmp_path)
    assert len(tiny.ran) == 6
    assert [row["version"] for row in rows_without_seconds(outcome.table)] == ["99"] * 3
    assert (tmp_path / "runs.jsonl").read_bytes().startswith(before)


def test_a_folder_of_another_scale_is_refused_and_stays(tiny, tmp_path):
    run(["one"], tmp_path, scale="quick")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"{tmp_path} holds a quick reproduction, not a full one"):
        run(["one"], tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert len(tiny.ran) == 1


def test_the_command_ends_with_the_outcome(tiny, tmp_path):
    from typer.testing import CliRunner

    from robustnmf.cli.app import app

    command = ["reproduce", "all", "--out", str(tmp_path), "--jobs", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "Skipped: two, three (bound) needs some.npz" in done.output
    assert f"Report:  {tmp_path / 'report.html'}" in done.output
    done = CliRunner().invoke(app, [*command, "--quick"])
    assert done.exit_code == 2
    assert "Error:" in done.output
    tiny.broken = {0}
    done = CliRunner().invoke(app, ["reproduce", "one", "--out", str(tmp_path / "new"), "--jobs", "1"])
    assert done.exit_code == 1
    assert "1 fits failed" in done.output


# Runs that are ended from outside.


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return reproduce(["fig1", "theorem1"], tmp_path_factory.mktemp("undisturbed"), scale="quick", n_jobs=1, quiet=True)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was_and_ends_with_the_same_results(jobs, undisturbed, tmp_path):
    log = tmp_path / "runs.jsonl"
    command = ["fig1", "theorem1", "--quick", "--out", tmp_path, "--jobs", jobs]
    process = start(*command)
    wait_for(process, lambda: any(b"generalisation" in line for line in lines(log)))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    before = [line for line in lines(log) if line.endswith(b"\n")]
    everything = lines(undisturbed.table.with_name("runs.jsonl"))
    assert 3 <= len(before) < len(everything)
    assert not (tmp_path / "results.csv").exists()

    done = call(*command)
    assert done.returncode == 0, done.stderr
    after = lines(log)
    assert after[: len(before)] == before
    assert len(after) == len(everything)
    assert rows_without_seconds(tmp_path / "results.csv") == rows_without_seconds(undisturbed.table)
    assert (tmp_path / "report.html").exists()


def test_the_report_opens_without_faults_and_with_every_figure_drawn(undisturbed):
    with browser.start() as chromium:
        page = browser.show(chromium, undisturbed.report)
        assert browser.errors(page) == []
        sizes = page.evaluate("[...document.querySelectorAll('figure svg')].map(s => [s.clientWidth, s.clientHeight])")
        headings = page.evaluate("[...document.querySelectorAll('section[id]')].map(section => section.id)")
    assert len(sizes) == 2
    assert all(width > 300 and height > 100 for width, height in sizes)
    assert {"losses", "generalisation"} <= set(headings)


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.slow
def test_ctrl_c_ends_with_130_and_keeps_what_is_finished(jobs, tmp_path):
    log = tmp_path / "runs.jsonl"
    process = start("theorem1", "fig5", "--out", tmp_path, "--jobs", jobs)  # in full: it would take minutes
    wait_for(process, lambda: len(lines(log)) >= 3)
    before = lines(log)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"Finished fits are kept in {tmp_path}" in errors
    assert "Traceback" not in errors
    after = lines(log)
    assert after[: len(before) - 1] == before[:-1]  # the last one may have been caught half written
    assert all(json.loads(line)["failure"] is None for line in after)
    assert not (tmp_path / "results.csv").exists()


# Files.


def test_the_old_content_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with write_atomically(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_old_content_stays_and_nothing_is_left_behind_if_writing_fails(error, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), write_atomically(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_first_file_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), write_atomically(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_a_file_has_the_permissions_of_any_new_one(mask, tmp_path):
    before = os.umask(mask)
    try:
        with write_atomically(tmp_path / "ours") as temporary:
            temporary.write_text("")
        (tmp_path / "usual").touch()
    finally:
        assert os.umask(before) == mask
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_quick_run_refutes_nothing_and_says_so(monkeypatch, tmp_path):
    def section(results):
        return Section("one", "One", ["fig1"], ["As in the paper."], checks=[Check("It holds.", False, "0 of 1")])

    experiment = Experiment("one", {"fig1": "one"}, lambda choices: [], None, section, needs="ar_42x30.npz")
    monkeypatch.setattr(reproduction, "EXPERIMENTS", {"one": experiment})
    skipped = [reproduction.Skipped(experiment, "fig1 needs ar_42x30.npz.")]

    class SomeResults:
        records, failures = [types.SimpleNamespace(seconds=1.0)], []

        def of(self, name):
            return self

    pages = {}
    for scale in ("full", "quick"):
        make_folder(tmp_path / scale)
        reproduction.build_report(SomeResults(), tmp_path / scale / "report.html", scale, skipped)
        pages[scale] = (tmp_path / scale / "report.html").read_text()
        assert "Martinez and R. Benavente" in pages[scale]
    assert "1 does not hold" in pages["full"]
    assert "1 does not hold" not in pages["quick"] and "1 with not enough results" in pages["quick"]
    assert "too few to refute a claim" in pages["quick"]
