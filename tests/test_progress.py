"""Progress: one line that changes where a line can, a few lines elsewhere, a log if there is one."""

import io
import logging
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

import robustnmf
from robustnmf import RobustNMF
from robustnmf.algorithm.clones import quietly, workers_for
from robustnmf.data import quality
from robustnmf.errors import IncompatibleError
from robustnmf.selection import auto_rank, select_rank
from robustnmf.utils import progress
from robustnmf.utils.parallel import Workers, delayed, run_all

rng = np.random.default_rng(0)
X = rng.random((30, 2)) @ rng.random((2, 12)) + 0.01 * rng.random((30, 12))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(text):
    """Return what stands on a terminal: of what begins with a carriage return only the last is seen."""
    return [line.rpartition("\r")[2].strip() for line in text.split("\n") if line.strip()]


def fit(**parameters):
    return RobustNMF(2, random_state=0, verbose=1, tol=0, max_iter=50, schedule="plain", **parameters).fit(X)


pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::robustnmf.errors.DataQualityWarning"
    )
]


def test_a_terminal_shows_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    model = fit()
    (line,) = lines(screen.getvalue())
    assert f" {model.n_iter_}/50 " in line
    assert f"objective {model.history_['objective'][-1]:.6g}" in line


def test_a_pipe_gets_a_few_lines_with_the_first_and_the_last_iteration(capsys):
    model = fit()
    shown = capsys.readouterr().err.splitlines()
    assert 3 <= len(shown) <= progress.LINES + 2
    assert shown[0].startswith("iteration 0 of 50: objective")
    assert shown[-1].startswith(f"iteration {model.n_iter_} of 50: objective {model.history_['objective'][-1]:.6g}")


def test_a_log_gets_the_lines_and_the_screen_gets_none(caplog, capsys):
    with caplog.at_level(logging.INFO, logger="robustnmf"):
        fit()
        RobustNMF(2, random_state=0, max_iter=5).fit(X)  # not only if it is verbose: the log says what it wants
    assert capsys.readouterr().err == ""
    assert {record.name for record in caplog.records} == {"robustnmf"}
    assert "RobustNMF: iteration 0 of 50: objective" in caplog.text
    assert "RobustNMF: iteration 5 of 5: objective" in caplog.text


def test_a_log_of_warnings_only_is_no_place_for_progress(caplog, capsys):
    with caplog.at_level(logging.WARNING, logger="robustnmf"):
        fit()
    assert caplog.records == []
    assert capsys.readouterr().err.startswith("iteration 0")


class Display:
    """What a notebook shows: texts, of which some are changed later."""

    def __init__(self):
        self.shown, self.changes = [], 0

    def display(self, data, raw, display_id):
        assert raw and display_id
        self.shown.append(data["text/plain"])
        return self

    def update(self, data, raw):
        self.shown[-1], self.changes = data["text/plain"], self.changes + 1


@pytest.fixture
def notebook(monkeypatch):
    """The part of IPython that is used, in a process that is the kernel of a notebook."""
    screen = Display()
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=screen.display))
    return screen


def test_a_notebook_shows_one_line_without_widgets(notebook, capsys):
    model = fit()
    (line,) = notebook.shown
    assert line.startswith(
        f"RobustNMF: iteration {model.n_iter_} of 50: objective {model.history_['objective'][-1]:.6g}"
    )
    assert 1 <= notebook.changes <= 50
    assert capsys.readouterr() == ("", "")


def test_the_terminal_of_ipython_is_no_notebook(notebook, monkeypatch):
    assert progress.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: object()))
    assert not progress.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not progress.in_notebook()


def test_nothing_warns_of_missing_widgets():
    code = "import robustnmf.utils.progress as p; p._bar_class(); import sys; print('tqdm.auto' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_closed_streams_do_no_harm(monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        fit()


def test_a_search_says_at_which_rank_and_split_it_is(monkeypatch, capsys):
    estimator = RobustNMF(max_iter=5, verbose=1)
    select_rank(X, [1, 3], n_splits=2, estimator=estimator, random_state=0)
    shown = capsys.readouterr().err.splitlines()
    assert shown[:3] == [f"fit {n} of 4: rank {r}, split {s} of 2" for n, r, s in ((1, 1, 1), (2, 1, 2), (3, 3, 1))]
    assert shown[-1].startswith("fit 4 of 4: ranks 1, 3, chosen so far ")
    auto_rank(X, n_splits=2, max_rank=4, estimator=estimator, random_state=0)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "fit 2: ranks 1, chosen so far 1"
    assert len(shown) <= 5
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    auto_rank(X, n_splits=2, max_rank=4, estimator=estimator, random_state=0)
    assert len(lines(screen.getvalue())) == 1
    assert re.search(r"rank \d, split \d of 2", screen.getvalue())  # quick changes may go unseen


def test_fits_of_a_search_are_not_logged(caplog):
    with caplog.at_level(logging.INFO, logger="robustnmf"):
        found = auto_rank(X, n_splits=2, max_rank=2, estimator=RobustNMF(max_iter=5), random_state=0)
    assert "iteration" not in caplog.text
    assert f"Rank {found.chosen} is chosen" in caplog.text


def test_tasks_are_counted_as_they_are_done():
    for n_jobs, workers in ((None, Workers(True)), (2, Workers(True)), (None, Workers()), (2, Workers(kind="counted"))):
        seen = []
        tasks = (delayed(pow)(2, exponent) for exponent in range(4))
        assert run_all(tasks, n_jobs, workers, seen.append) == [1, 2, 4, 8]
        assert seen == [1, 2, 3, 4]


def test_the_first_task_of_a_kind_is_done_here_and_others_load_what_it_compiles():
    first, second, third, _ = run_all((delayed(os.getpid)() for _ in range(4)), 2, Workers(kind="new"))
    assert first == os.getpid()
    assert first not in (second, third)
    assert first not in run_all((delayed(os.getpid)() for _ in range(4)), 2, Workers(kind="new"))[:2]
    assert {first} == set(run_all((delayed(os.getpid)() for _ in range(4)), 2, Workers(in_threads=True)))


def slow_elsewhere(here, number):
    """Return a number and the process that was given it, late if that is another."""
    if os.getpid() != here:
        time.sleep(1)
    return number, os.getpid() == here


def test_until_workers_have_begun_tasks_are_done_here_from_the_back():
    tasks = (delayed(slow_elsewhere)(os.getpid(), number) for number in range(8))
    numbers, where = zip(*run_all(tasks, 2, Workers(kind="slow")), strict=True)
    assert numbers == tuple(range(8))
    assert where == (True, False, False, True, True, True, True, True)


def test_workers_that_are_quick_do_most():
    here = os.getpid()
    run_all((delayed(os.getpid)() for _ in range(5)), 2, Workers(kind="quick"))
    tasks = (delayed(time.sleep)(1) if number == 39 else delayed(os.getpid)() for number in range(40))
    found = run_all(tasks, 2, Workers(kind="quick"))
    assert found[-1] is None and found.count(here) < 10


def fail(log, *, here, fails_here):
    """Fail here or elsewhere; where it does not, take a while and note that."""
    if (os.getpid() == here) == fails_here:
        raise MemoryError("no room for this")
    time.sleep(0.1)
    with log.open("a") as notes:
        notes.write("done\n")


@pytest.mark.parametrize("fails_here", [False, True])
def test_after_an_error_nobody_does_the_rest(tmp_path, fails_here):
    here, log = os.getpid(), tmp_path / "log"
    log.touch()
    run_all((delayed(time.sleep)(1) for _ in range(5)), 2, Workers(kind="ready"))  # workers are there
    tasks = (delayed(fail)(log, here=here, fails_here=fails_here) for _ in range(60))
    with pytest.raises(MemoryError) as error:  # a notebook, too, keeps the error and with it what was going on
        run_all(tasks, 2, Workers(kind="ready"))
    n_done = len(log.read_text().split())
    assert n_done < 20
    time.sleep(0.5)
    assert len(log.read_text().split()) == n_done
    assert "no room" in str(error.value)


def test_what_fails_in_a_process_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        run_all((delayed(divmod)(1, divisor) for divisor in (1, 1, 0, 1)), 2, Workers(kind="failing"))
    assert run_all((delayed(pow)(2, exponent) for exponent in range(4)), 2, Workers(kind="failing")) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("device", "n_jobs", "size", "in_threads"),
    [
        (None, 8, 10, False),
        ("cpu", 8, 10, False),
        ("cuda", None, 10, True),
        ("cuda", 2, 10, True),
        ("cuda:0", 8, 10, False),
        ("cuda", 8, 2**21 + 1, True),
        ("mps", 8, 10, True),
    ],
)
def test_many_fits_of_small_data_on_a_gpu_are_processes(device, n_jobs, size, in_threads):
    data = np.broadcast_to(1.0, (size, 1))
    assert workers_for(RobustNMF(3, device=device), data, n_jobs, [3]).in_threads is in_threads


def test_trial_fits_look_for_nothing_to_warn_of(monkeypatch):
    looked = []
    monkeypatch.setattr(quality, "findings", lambda *arguments, **options: looked.append(1) or [])
    with quietly():
        RobustNMF(3, max_iter=5).fit(X)
    assert not looked
    RobustNMF(3, max_iter=5).fit(X)
    assert looked


# --- Several starts ---------------------------------------------------------------------------------------------------


def start(seed, n_init=1, **parameters):
    return RobustNMF(3, random_state=seed, n_init=n_init, init="random", max_iter=15, **parameters)


HARD = np.random.default_rng(3).gamma(0.3, 1.0, (40, 20))


@pytest.mark.parametrize("method", ["l2", "truncated-cauchy"])
def test_of_several_starts_the_best_is_kept(method, caplog):
    with caplog.at_level(logging.INFO, logger="robustnmf"):
        best = start(0, 4, method=method).fit(HARD)
    losses = [float(r.getMessage().rpartition(" ")[2]) for r in caplog.records if ": loss " in r.getMessage()]
    assert len(losses) == 4 and len(set(losses)) > 1
    from robustnmf.utils.random_state import generator, seeds

    singles = [start(seed, method=method).fit(HARD) for seed in seeds(generator(0), 4)]
    np.testing.assert_array_equal(best.components_, singles[int(np.argmin(losses))].components_)
    score = best.score(HARD)
    assert score == pytest.approx(max(model.score(HARD) for model in singles))


def test_one_start_is_the_default_and_what_it_was():
    one = start(0).fit(HARD)
    assert one.n_init == 1
    np.testing.assert_array_equal(one.components_, start(0, 1).fit(HARD).components_)


@pytest.mark.parametrize("n_init", [0, -1, 1.5, True, "auto"])
def test_the_number_of_starts_is_checked(n_init):
    with pytest.raises(ValueError, match=r"n_init must be a positive integer; got"):
        start(0, n_init).fit(HARD)


def test_a_checkpoint_is_for_one_start(tmp_path):
    with pytest.raises(IncompatibleError, match="checkpoint keeps the state of one fit; n_init=2"):
        start(0, 2, checkpoint=tmp_path / "state").fit(HARD)


def test_a_callback_that_ends_a_fit_ends_the_other_starts():
    calls = []
    start(0, 5, callback=lambda iteration: calls.append(iteration) or iteration.n_iter >= 2).fit(HARD)
    assert sum(iteration.n_iter == 0 for iteration in calls) == 1


def test_starts_are_stored_with_the_model(tmp_path):
    from robustnmf import load

    start(0, 2).fit(HARD).save(tmp_path / "m.robustnmf")
    assert load(tmp_path / "m.robustnmf").n_init == 2


def test_library_has_one_logger_and_leaves_what_becomes_of_it_to_the_user():
    """`logging.lastResort` would write to stderr otherwise, in a form that the user has not asked for."""
    code = (
        "import logging, numpy as np, robustnmf\n"
        "from robustnmf.utils.progress import advise, is_logged, logger\n"
        "robustnmf.RobustNMF(2, method='l2', random_state=0, max_iter=3, tol=1.0).fit(np.random.rand(9, 6))\n"
        "ours = [n for n in logging.root.manager.loggerDict if n.split('.')[0] == 'robustnmf']\n"
        "assert ours == ['robustnmf'] and [type(h).__name__ for h in logger.handlers] == ['NullHandler'], ours\n"
        "logger.setLevel('INFO')\n"
        "assert not is_logged()\n"
        "advise('one')\n"
        "logging.basicConfig(format='%(name)s %(levelname)s %(message)s')\n"
        "assert is_logged()\n"
        "advise('two')\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "one\nrobustnmf WARNING two\n")


@pytest.mark.parametrize("path", sorted(Path(robustnmf.__file__).parent.rglob("*.py")), ids=lambda path: path.name)
def test_only_one_module_logs(path):
    assert path.name == "progress.py" or "getLogger" not in path.read_text(encoding="utf-8")
