"""Spoilt files of every kind are read or refused, and do nothing else; `make fuzz` tries them at random for minutes."""

import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "fuzz"))

import run
import targets
from guard import Trespass
from targets import Target, everything

TARGETS = everything()
pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # of the libraries that read; that ours are silent is tested elsewhere


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("n_examples", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_spoilt_file_is_read_or_refused_and_nothing_else(name, n_examples):
    tried, _ = run.fuzz(TARGETS[name], n_examples, None)
    assert tried > 0


KNOWN = {
    "MATLAB 4 with a name of a gigabyte": ("mat bytes", lambda: b"\0" + targets.mat()[1:]),
    "array with a header of a gigabyte": ("npy bytes", lambda: b"\x93NUMPY\x02\0\0\0\0\x50" + targets.npy()[10:]),
    "array of an unknown version": ("npy bytes", lambda: b"\x93NUMPY" + targets.npy()),
    "archive whose directory is broken": (
        "video archive",
        lambda: targets.archive({"images.npy": b""})[:-9] + bytes(9),
    ),
    "archive that declares more than it has": (
        "video archive",
        lambda: targets.archive({"images.npy": targets._npy_with_header([2**20, 2**10, 8], "<f8", False, 64)}),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_file_that_was_once_a_problem_is_refused(name):
    target, content = KNOWN[name]
    assert not run.attempt(TARGETS[target], content())


class Evil:
    def __reduce__(self):
        return (Path, ("x",))


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        (lambda path: pickle.loads(pickle.dumps(Evil())), "pickle.find_class"),
        (lambda path: (path.parent.parent / "robustnmf-out.txt").write_text("x"), "robustnmf-out.txt"),
        (lambda path: Path("/opt/robustnmf-secret").read_text(), "robustnmf-secret"),
        (lambda path: __import__("socket").create_connection(("127.0.0.1", 9)), "socket.connect"),
        (lambda path: __import__("subprocess").run(["true"]), "subprocess.Popen"),
        (lambda path: np.ones(2**25), "MiB of memory were taken"),
    ],
    ids=["pickle", "write", "read", "socket", "process", "memory"],
)
def test_guard_sees_what_must_not_be_done(deed, words, monkeypatch):
    """A test of the tests: a reader that did such a thing would be caught."""
    monkeypatch.setattr(run, "BESIDE", 2**20)
    target = Target("a.csv", None, deed, (OSError,))
    with pytest.raises(Trespass, match=words):
        run.attempt(target, b"a,b\n1,2\n")
    Path(tempfile.gettempdir(), "robustnmf-out.txt").unlink(missing_ok=True)
