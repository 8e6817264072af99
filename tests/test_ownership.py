"""Nothing of the user's is replaced or removed: only what the package wrote, and can prove that it wrote."""

import ast
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import robustnmf
from conftest import make_data
from robustnmf import RobustNMF, load
from robustnmf.algorithm import checkpoint
from robustnmf.cli.app import app
from robustnmf.engines.dask.files import Files
from robustnmf.errors import CheckpointError
from robustnmf.paper.results import Log
from robustnmf.paper.task import Outcome, Task
from robustnmf.utils import files
from robustnmf.utils.files import MANIFEST, ForeignFileError, write_folder, write_owned

ROOT = Path(robustnmf.__file__).parent
X = make_data(n=30, m=12).X
FAST = {"n_components": 1, "method": "l2", "random_state": 0, "max_iter": 2, "tol": 1.0}


def command(folder, *arguments):
    """Run a command in this process and return its exit code and what it said."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    finally:
        os.chdir(before)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def contents(folder):
    """Return the bytes of every file below a folder, by its path."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- The source -------------------------------------------------------------------------------------------------------

# Calls that write, replace or remove. Those of the first kind belong to `files` alone; the others may write to the
# temporary path that `files` gives, or to memory.
OF_FILES_ALONE = {
    *("unlink", "rmtree", "rename", "renames", "rmdir", "removedirs", "mkdir", "makedirs", "truncate", "touch"),
    *("mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory", "TemporaryFile", "symlink_to", "hardlink_to"),
    *("chmod", "link", "symlink", "copy2", "copyfile", "copytree", "move"),
}
TO_A_GIVEN_PLACE = {
    *("write_text", "write_bytes", "save", "savez", "savez_compressed"),
    *("savefig", "open", "to_csv", "dump"),
}
GIVEN = {"temporary", "buffer", "file", "text"}


def name_of(node):
    return node.id if isinstance(node, ast.Name) else None


def writes(call):
    """Return whether a call of the second kind writes, and not to a place that `files` has given."""
    what = call.func.attr
    owner = name_of(call.func.value)
    if what == "open":
        options = [*call.args, *(keyword.value for keyword in call.keywords)]
        modes = [str(node.value) for node in options if isinstance(node, ast.Constant)]
        return owner not in GIVEN and any(re.fullmatch("[wax]b?[+]?", mode) for mode in modes)
    if what in ("save", "savez", "savez_compressed", "dump"):
        return owner in ("np", "numpy", "json", "pickle", "joblib") and name_of(call.args[0]) not in GIVEN
    if what in ("savefig", "to_csv"):
        return name_of(call.args[0]) not in GIVEN
    return owner not in GIVEN


def offences(tree):
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "open":
            yield f"open in line {node.lineno}"
        if not isinstance(node.func, ast.Attribute):
            continue
        what, owner = node.func.attr, name_of(node.func.value)
        removes = what in OF_FILES_ALONE or (owner == "os" and what in ("remove", "replace"))
        if removes or (what in TO_A_GIVEN_PLACE and writes(node)):
            yield f"{owner}.{what} in line {node.lineno}"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_module_writes_and_removes(path):
    if path != ROOT / "utils" / "files.py":
        assert not list(offences(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    "line",
    [
        *("path.unlink()", "shutil.rmtree(folder)", "os.replace(a, b)", "os.remove(a)", "open(path)", "path.mkdir()"),
        *("path.open('w')", "path.open(mode='ab')", "np.save(path, x)", "path.write_text('')", "figure.savefig(path)"),
    ],
)
def test_the_source_is_searched_for_all_of_these(line):
    assert list(offences(ast.parse(line)))


# --- Files and folders ------------------------------------------------------------------------------------------------


def test_a_file_of_ours_is_replaced_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("one", "two"):
        with write_owned(path) as temporary:
            temporary.write_text(text)
    assert path.read_text() == "two"
    path.write_text("changed by hand")
    with pytest.raises(ForeignFileError, match="was changed since"), write_owned(path) as temporary:
        temporary.write_text("three")
    assert path.read_text() == "changed by hand"


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_only_has_the_name_of_ours_is_refused(kind, tmp_path):
    path, mine = tmp_path / "a.txt", tmp_path / "mine.txt"
    with write_owned(path) as temporary:
        temporary.write_text("ours")
    path.rename(mine)
    if kind == "file":
        path.write_text("mine")
    elif kind == "link":
        path.symlink_to(mine)
    else:
        path.mkdir()
    before = contents(tmp_path)
    with pytest.raises(ForeignFileError), write_owned(path) as temporary:
        temporary.write_text("new")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', '{"files": {"a": 3}}', "[" * 100_000])
def test_a_manifest_of_somebody_else_is_refused(text, tmp_path):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ForeignFileError, match="no manifest"), write_owned(tmp_path / "a") as temporary:
        temporary.write_text("a")
    assert contents(tmp_path) == {Path(MANIFEST): text.encode()}


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_file_that_comes_while_a_folder_is_written_is_kept(tmp_path, monkeypatch, can_exchange, beside):
    out = tmp_path / "out"
    with write_folder(out, listed_beside=beside) as place:
        (place / "a.txt").write_text("1")
    exchange = files.platforms.exchange
    monkeypatch.setattr(files.platforms, "exchange", exchange if can_exchange else lambda one, other: False)
    refused = pytest.raises(ForeignFileError, match=r"thesis\.txt")
    with refused, write_folder(out, replace=True, listed_beside=beside) as place:
        (place / "a.txt").write_text("2")
        (out / "thesis.txt").write_text("years of work")
    assert (out / "thesis.txt").read_text() == "years of work"
    assert (out / "a.txt").read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ([MANIFEST, "out"] if beside else ["out"])
    (out / "thesis.txt").unlink()
    with write_folder(out, replace=True, listed_beside=beside) as place:  # it is still known whose it is
        (place / "b.txt").write_text("3")
    assert {path.name for path in out.iterdir()} == ({"b.txt"} if beside else {"b.txt", MANIFEST})


def test_a_folder_that_did_not_get_its_place_is_not_listed(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(FileExistsError), write_folder(out, listed_beside=True) as place:
        (place / "a.txt").write_text("1")
        out.mkdir()
        (out / "thesis.txt").write_text("years of work")
    assert contents(tmp_path) == {Path("out/thesis.txt"): b"years of work"}


def race(write, n=8):
    """Return how many of several writers that start at once succeed."""
    barrier, succeeded = threading.Barrier(n), []

    def work(k):
        barrier.wait()
        try:
            write(k)
            succeeded.append(k)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return succeeded


def test_of_several_writers_of_a_model_one_succeeds(tmp_path):
    model = RobustNMF(**FAST).fit(X)
    for trial in range(50):
        path = tmp_path / f"{trial}.robustnmf"
        assert len(race(lambda k, path=path: model.save(path))) == 1
        load(path)


def test_of_several_writers_of_a_folder_one_succeeds(tmp_path):
    def write(k, out):
        with write_folder(out) as place:
            (place / "a.txt").write_text(str(k))

    for trial in range(10):
        out = tmp_path / str(trial)
        succeeded = race(lambda k, out=out: write(k, out))
        assert len(succeeded) == 1
        assert (out / "a.txt").read_text() == str(succeeded[0])
    assert len(list(tmp_path.iterdir())) == 10


def test_without_hard_links_a_file_is_still_not_replaced(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError("not supported")

    monkeypatch.setattr(files.os, "link", link)
    with files.write_atomically(tmp_path / "a", replace=False) as temporary:
        temporary.write_text("a")
    with pytest.raises(FileExistsError), files.write_atomically(tmp_path / "a", replace=False) as temporary:
        temporary.write_text("b")
    assert contents(tmp_path) == {Path("a"): b"a"}


# --- Models, reports, experiments -------------------------------------------------------------------------------------


def test_save_replaces_a_model_and_nothing_else(tmp_path):
    model = RobustNMF(**FAST).fit(X)
    path = tmp_path / "m.robustnmf"
    model.save(path)
    model.save(path, overwrite=True)
    (tmp_path / "data.csv").write_text("1,2\n")
    with pytest.raises(FileExistsError, match="not written by robustnmf"):
        model.save(tmp_path / "data.csv", overwrite=True)
    assert (tmp_path / "data.csv").read_text() == "1,2\n"


@pytest.mark.parametrize("change", ["appended", "cut", "a byte", "archive", "mentioned"])
def test_save_keeps_what_only_looks_like_a_model(change, tmp_path):
    model, path = RobustNMF(**FAST).fit(X), tmp_path / "m.robustnmf"
    model.save(path)
    content = path.read_bytes()
    mine = {
        "appended": content + b"mine",
        "cut": content[:-1],
        "a byte": content[:-1] + bytes([content[-1] ^ 1]),
        "archive": b"thesis" * 40 + content,
        "mentioned": b"my notes: the file begins with robustnmf-model 1\n",
    }[change]
    path.write_bytes(mine)
    with pytest.raises(ForeignFileError, match="or was changed since"):
        model.save(path, overwrite=True)
    assert path.read_bytes() == mine


def test_report_replaces_a_report_and_nothing_else(tmp_path):
    model = RobustNMF(**FAST).fit(X)
    for _ in range(2):
        model.report(X, tmp_path / "report.html")
    (tmp_path / "page.html").write_text("<html>mine</html>")
    with pytest.raises(FileExistsError, match="not written by robustnmf"):
        model.report(X, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "<html>mine</html>"


def test_a_report_with_notes_of_the_user_is_kept(tmp_path):
    model, page = RobustNMF(**FAST).fit(X), tmp_path / "report.html"
    model.report(X, page)
    noted = page.read_bytes().replace(b"</body>", b"<!-- mine --></body>")
    page.write_bytes(noted)
    with pytest.raises(ForeignFileError, match="or was changed since"):
        model.report(X, page)
    assert page.read_bytes() == noted


def test_what_comes_while_a_file_is_written_is_kept(tmp_path):
    owned, sealed = tmp_path / "a.csv", tmp_path / "a.html"
    with pytest.raises(ForeignFileError), write_owned(owned) as temporary:
        temporary.write_text("ours")
        owned.write_text("mine")
    with pytest.raises(ForeignFileError), files.write_proven(sealed, files.is_sealed) as temporary:
        temporary.write_bytes(files.sealed(b"ours"))
        sealed.write_text("mine")
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}


@pytest.mark.parametrize(
    "mine",
    [
        "all of my notes",
        "{",
        '{"experiment": "e"}\nnotes',
        '{"experiment": "mouse 7", "measured": [1, 2, 3]}',
        '{"experiment": "mouse 7"}\n{"experiment": "mouse 8"}',
    ],
)
def test_a_log_of_somebody_else_is_not_cut(mine, tmp_path):
    (tmp_path / "runs.jsonl").write_text(mine)
    with pytest.raises(ValueError, match="not a result"):
        Log(tmp_path)
    assert (tmp_path / "runs.jsonl").read_text() == mine


def test_a_log_that_is_a_link_is_refused(tmp_path):
    target = tmp_path / "mine.jsonl"
    target.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "runs.jsonl").symlink_to(target)
    with pytest.raises(ForeignFileError, match="is a link"):
        Log(tmp_path / "out")
    assert target.read_text() == "mine"


def test_a_log_loses_only_a_line_that_a_kill_has_cut_short(tmp_path):
    log = Log(tmp_path)
    for trial in range(2):
        log.add(Task("e", "s", 0.0, "l2", trial, {}), "1", 0.1, Outcome({"error": 1.0}, {}), None)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + b'{"experiment": "e", "sett')
    assert len(Log(tmp_path).results().records) == 2
    assert log.path.read_bytes() == whole
    log.path.write_bytes(whole[:-1])  # only the end of the line is missing
    assert len(Log(tmp_path).results().records) == 2


def test_results_of_experiments_replace_no_other_files(tmp_path):
    (tmp_path / "results.csv").write_text("mine")
    log = Log(tmp_path)
    log.add(Task("e", "s", 0.0, "l2", 0, {}), "1", 0.1, Outcome({"error": 1.0}, {}), None)
    with pytest.raises(ForeignFileError, match=r"results\.csv"):
        log.results().write_table(tmp_path / "results.csv")
    assert (tmp_path / "results.csv").read_text() == "mine"


# --- The command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    """A folder with data, and results of a fit."""
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    code, said = command(tmp_path, *FIT, "-o", "out")
    assert code == 0, said
    return tmp_path


FIT = ("fit", "x.csv", "-k", 1, "--method", "l2", "--max-iter", 2, "--no-report", "-q")


@pytest.mark.parametrize("name", ["notes.txt", "cleaned.csv", "summary.json", "sub"])
def test_force_keeps_a_folder_with_anything_else_in_it(name, place):
    if name == "sub":
        (place / "out" / name).mkdir()
        (place / "out" / name / "x").write_text("mine")
    else:
        (place / "out" / name).write_text("mine")
    before = contents(place)
    code, said = command(place, *FIT, "-o", "out", "--force")
    assert code == 2
    assert name in said
    assert contents(place) == before


def test_force_keeps_a_folder_that_only_has_a_summary(place):
    (place / "mine").mkdir()
    (place / "mine" / "summary.json").write_text("{}")
    code, said = command(place, *FIT, "-o", "mine", "--force")
    assert code == 2
    assert "summary.json" in said
    assert (place / "mine" / "summary.json").read_text() == "{}"


@pytest.mark.parametrize("out", ["x.csv", "keep.csv", "link"])
def test_force_makes_no_folder_of_a_file(out, place):
    (place / "keep.csv").write_text("mine")
    (place / "link").symlink_to(place / "out")
    before = contents(place)
    assert command(place, *FIT, "-o", out, "--force")[0] == 2
    assert contents(place) == before


def test_force_keeps_the_input(place):
    """Even if this package wrote it: a result must not take the place of what it is made of."""
    data = ("out/cleaned.csv", "-k", 1, "--method", "l2", "--max-iter", 2, "--no-report", "-q")
    before = contents(place)
    code, said = command(place, "fit", *data, "-o", "out", "--force")
    assert (code, "holds the input" in said) == (2, True)
    code, said = command(place, "clean", "out", "out/cleaned.csv", "-o", "out/cleaned.csv", "--force")
    assert (code, "holds the input" in said) == (2, True)
    assert contents(place) == before


def test_force_keeps_an_input_that_is_named_from_the_home_folder(place, monkeypatch):
    """The shell leaves a tilde in quotes as it is, and readers do not."""
    monkeypatch.setenv("HOME", str(place))
    before = contents(place)
    code, said = command(place, "clean", "out", "~/out/cleaned.csv", "-o", "out/cleaned.csv", "--force")
    assert (code, "holds the input" in said) == (2, True)
    code, said = command(place, "fit", "~/out/cleaned.csv", *FIT[2:], "-o", "out", "--force")
    assert (code, "holds the input" in said) == (2, True)
    assert contents(place) == before
    code, said = command(place, *FIT, "-o", "~/other")
    assert (code, (place / "other" / "summary.json").is_file()) == (0, True)
    assert not (place / "~").exists()


def test_force_keeps_a_folder_that_cannot_be_written(place, monkeypatch):
    before, access = contents(place), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "out" and access(path, mode))
    code, said = command(place, *FIT, "-o", "out", "--force")
    assert (code, "cannot be written to" in said) == (2, True)
    assert contents(place) == before


def test_a_replaced_folder_keeps_its_permissions(place):
    (place / "out").chmod(0o700)
    assert command(place, *FIT, "-o", "out", "--force")[0] == 0
    assert (place / "out").stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_a_report_in_a_folder_of_results_can_be_made_anew(place):
    assert command(place, "report", "out", "x.csv", "-o", "out/report.html")[0] == 0
    assert command(place, "fit", "x.csv", *FIT[2:-2], "-q", "-o", "with", "--force")[0] == 0
    for _ in range(2):
        code, said = command(place, "report", "with", "x.csv", "-o", "with/report.html", "--force")
        assert code == 0, said
    code, said = command(place, *FIT, "-o", "with", "--force")
    assert code == 0, said


@pytest.mark.parametrize("what", ["transform", "clean", "outliers"])
def test_force_replaces_a_result_of_a_command_and_no_other_file(what, place):
    (place / "mine.csv").write_text("1,2\n")
    for force in ([], ["--force"]):
        assert command(place, what, "out", "x.csv", "-o", "result.csv", *force)[0] == 0
    assert command(place, what, "out", "x.csv", "-o", "result.csv")[0] == 2
    code, said = command(place, what, "out", "x.csv", "-o", "mine.csv", "--force")
    assert (code, "mine.csv was not written by robustnmf" in said) == (2, True)
    assert (place / "mine.csv").read_text() == "1,2\n"


def test_a_model_is_not_replaced_by_a_result(place):
    before = contents(place)
    assert command(place, "transform", "out", "x.csv", "-o", "out/model.robustnmf", "--force")[0] == 2
    assert contents(place) == before


# --- Scratch folders of Dask ------------------------------------------------------------------------------------------


class Cluster:
    """A cluster whose workers see all files."""

    def run(self, function, *arguments):
        return {"worker": function(*arguments)}


def test_scratch_folders_that_a_kill_has_left_are_removed_and_no_others(tmp_path):
    left, used = files.new_scratch_folder(tmp_path), files.new_scratch_folder(tmp_path)
    for folder in (left, used):
        (folder / f"array-{'0' * 32}.npy").write_bytes(b"")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    marker = left / files._SCRATCH
    marker.write_text(marker.read_text().replace(f"process {os.getpid()} ", f"process {ended.pid} "))
    folders = {
        "robustnmf-results": {"thesis.txt": "mine"},
        "robustnmf-empty": {},
        "robustnmf-scratch": {".robustnmf-scratch": "", "thesis.txt": "mine"},
        "robustnmf-mine": {".robustnmf-scratch": "", "2024.npy": "mine"},
    }
    for name, inside in folders.items():
        (tmp_path / name).mkdir()
        for file, text in inside.items():
            (tmp_path / name / file).write_text(text)
    opened = Files(Cluster(), tmp_path)
    assert not left.exists()
    assert opened.are_shared
    opened.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*folders, used.name])
    assert {len(list((tmp_path / name).iterdir())) for name in folders} == {0, 1, 2}
    files.remove_scratch_folder(used)
    assert not used.exists()


# --- Checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_keeps_files_whose_names_only_contain_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", np.inf)
    monkeypatch.setattr(checkpoint.Checkpoint.__init__, "__defaults__", (1,))
    mine = []

    def take_names(iteration):
        for path in list(tmp_path.glob("s*.npz")) if not mine else []:
            mine.extend(tmp_path / name for name in (f"norms-of-{path.name}", f"mine-{path.stem.split('-')[-1]}.npy"))
        for path in mine:
            path.write_bytes(b"mine")

    RobustNMF(2, random_state=0, checkpoint=tmp_path, max_iter=30, callback=take_names).fit(X)
    assert mine
    assert {path.read_bytes() for path in mine} == {b"mine"}


def test_a_checkpoint_that_somebody_else_writes_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", np.inf)
    monkeypatch.setattr(checkpoint.Checkpoint.__init__, "__defaults__", (1,))

    def write(iteration):
        (tmp_path / "checkpoint.json").write_text("mine")

    with pytest.raises(CheckpointError, match="changed while this fit was running"):
        RobustNMF(2, random_state=0, checkpoint=tmp_path, max_iter=30, callback=write).fit(X)
    assert (tmp_path / "checkpoint.json").read_text() == "mine"


def test_a_checkpoint_leaves_other_files_alone(tmp_path):
    mine = {"data.npy": b"mine", "data.npz": b"mine", "point-000000.npz": b"mine", "steps-000001.npz": b"mine"}
    for name, content in mine.items():
        (tmp_path / name).write_bytes(content)
    RobustNMF(2, random_state=0, checkpoint=tmp_path, max_iter=30).fit(X)
    assert (tmp_path / "checkpoint.json").exists()
    assert {name: (tmp_path / name).read_bytes() for name in mine} == mine


def test_a_checkpoint_does_not_replace_another_manifest(tmp_path):
    (tmp_path / "checkpoint.json").write_text(json.dumps({"mine": 1}))
    with pytest.raises(robustnmf.errors.CheckpointError, match="not a checkpoint"):
        RobustNMF(2, random_state=0, checkpoint=tmp_path, max_iter=30).fit(X)
    assert contents(tmp_path) == {Path("checkpoint.json"): b'{"mine": 1}'}
