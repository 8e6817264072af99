"""Spoilt files of every kind are read or refused, and do nothing else; `make fuzz` tries them at random for minutes."""

import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "fuzz"))

import run
from guard import Trespass
from targets import Target, everything

TARGETS = everything()
pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # of the libraries that read; that ours are silent is tested elsewhere


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("n_examples", [10, pytest.param(300, marks=pytest.mark.slow)])
def test_spoilt_file_is_read_or_refused_and_nothing_else(name, n_examples):
    tried, _ = run.fuzz(TARGETS[name], n_examples, None)
    assert tried > 0


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
