"""Faults at any moment: a kill, a full disk, a folder that cannot be written, Ctrl-C, no memory.

Whatever happens, there is the old result or the new one, in full; and a process that survives goes on as if nothing had
been. How many faults are injected stands in `FEW` and `MANY`.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numba.np.ufunc import parallel as numba_threads
from typer.testing import CliRunner

from conftest import make_data
from robustnmf import RobustNMF, load
from robustnmf.algorithm import checkpoint as checkpoint_module
from robustnmf.algorithm.checkpoint import Checkpoint
from robustnmf.cli import folder as results
from robustnmf.cli.app import app
from robustnmf.engines import NumPyEngine, StreamingEngine
from robustnmf.engines.lazy import ReadBlock
from robustnmf.formats import LabelledMatrix
from robustnmf.paper.results import Log, Record
from robustnmf.paper.task import Outcome, Task
from robustnmf.utils import files
from robustnmf.utils.files import write_atomically, write_folder

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

FEW, MANY = 25, 300
each_effort = pytest.mark.parametrize(
    "n_faults", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
COMMAND = [sys.executable, "-c", "from robustnmf.cli import main; main()"]


def python(program, *arguments, **options):
    """Run a program that uses this package in a process of its own."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


# --- Kills ------------------------------------------------------------------------------------------------------------


def kill_at_random(work, check, n_faults, longest=None, rng=None, after=lambda: True):
    """Fork, let the child do its work over and over, kill it at a random moment and check what is left; many times.

    It is killed within so many seconds after `after` is true, by default twice what the work takes on this machine now.
    """
    if longest is None:
        begin = time.perf_counter()
        work()
        longest = 2 * (time.perf_counter() - begin)
    rng = rng or np.random.default_rng(0)
    for _ in range(n_faults):
        child = os.fork()
        if child == 0:
            # Numba's lock is shared with the parent: a child that dies with it would stop the parent for ever.
            numba_threads._backend_init_process_lock = nullcontext()
            try:
                while True:
                    work()
            finally:
                os._exit(1)  # the work failed: no kill
        while not after():
            time.sleep(0.001)
        time.sleep(rng.uniform(0.001, longest))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the work itself failed"
        check()


@each_effort
def test_kill_while_a_file_is_written_leaves_the_old_or_the_new(tmp_path, n_faults):
    path = tmp_path / "a.bin"
    contents = [bytes([k]) * (200_000 + k) for k in range(3)]

    def write(content):
        with write_atomically(path) as temporary:
            temporary.write_bytes(content)

    def work():
        for content in contents:
            write(content)

    write(contents[0])
    kill_at_random(work, lambda: path.read_bytes() in contents or pytest.fail("half a file"), n_faults)


@pytest.mark.slow  # a short version stands in test_persistence.py
def test_kill_while_a_model_is_saved_leaves_the_old_or_the_new(tmp_path, n_faults=MANY):
    X = np.tile(make_data().X, (40, 1))  # so that writing takes a while
    models = [RobustNMF(k, method="l2", random_state=0, max_iter=2).fit(X) for k in (1, 2)]
    path = tmp_path / "m.robustnmf"
    models[0].save(path)

    def work():
        for model in models:
            model.save(path, overwrite=True)

    kill_at_random(work, lambda: load(path), n_faults)


@each_effort
def test_kill_while_a_folder_of_results_is_replaced_leaves_the_old_or_the_new(tmp_path, n_faults):
    """What `robustnmf fit --force` does when the fit is done."""
    out = tmp_path / "out"

    def write(version):
        with write_folder(out, replace=True) as place:
            results.write_matrix(place / "codes.npy", LabelledMatrix(np.full((20, 3), float(version))))
            results.write_json(place / "summary.json", {"version": version})

    def work():
        for version in range(3):
            write(version)

    def check():
        version = json.loads((out / "summary.json").read_text())["version"]
        np.testing.assert_array_equal(np.load(out / "codes.npy"), np.full((20, 3), version))

    write(0)
    kill_at_random(work, check, n_faults)


@pytest.mark.slow
@each_effort
def test_kill_while_experiments_run_loses_no_finished_one(tmp_path, n_faults):
    """What `robustnmf reproduce` keeps while it runs."""
    known = set()

    def work():
        log = Log(tmp_path)
        done = len(log.results().records)
        for trial in range(done, done + 5):
            task = Task("e", "s", 0.0, "l2", trial, {})
            log.add(task, "1", 0.1, Outcome({"error": float(trial)}, {"A": np.full(500, trial)}), None)

    def check():
        records = {record.task.trial: record for record in Log(tmp_path).results().records}
        assert set(records) == set(range(len(records)))
        assert known <= set(records)
        for trial, record in records.items():
            with np.load(tmp_path / record.arrays, allow_pickle=False) as archive:
                assert record.measures["error"] == trial == archive["A"][0]
        known.update(records)

    kill_at_random(work, check, n_faults)
    assert len(known) > 5  # what one piece of work adds


N_BLOCKS = 4


def put_version(folder, version, kind):
    """Commit a checkpoint all of whose numbers are the version."""
    checkpoint = Checkpoint(folder, {"data": "X"})
    checkpoint.load()
    name, engine = f"state-{version}", StreamingEngine(n_threads=1)
    blocks = [np.full((50, 30), float(version)) for _ in range(N_BLOCKS)]
    if kind == "blocks":  # not in memory, and so each in a file of its own
        blocks = [ReadBlock(lambda block=block: block, None, block.shape, block.dtype) for block in blocks]
    checkpoint.put(name, {"W": np.full((200, 5), float(version))}, blocks, engine)
    checkpoint.commit({"name": name, "version": version}, [name])


def version_in(folder):
    """Return the version that a checkpoint holds, after a check that it is of one piece."""
    checkpoint, engine = Checkpoint(folder, {"data": "X"}), NumPyEngine(n_threads=1)
    state = checkpoint.load()
    like = [np.empty((50, 30))] * N_BLOCKS
    found = [checkpoint.arrays(state["name"])["W"], *checkpoint.blocks(state["name"], like, 30, engine)]
    assert all((array == state["version"]).all() for array in found)
    return state["version"]


@pytest.mark.slow
@each_effort
@pytest.mark.parametrize("kind", ["joined", "blocks"])
def test_kill_while_a_checkpoint_is_written_leaves_the_old_or_the_new(tmp_path, kind, n_faults):
    put_version(tmp_path, 0, kind)
    last = 0

    def work():
        begin = version_in(tmp_path)
        for version in range(begin + 1, begin + 6):
            put_version(tmp_path, version, kind)

    def check():
        nonlocal last
        version = version_in(tmp_path)
        assert version >= last
        last = version

    kill_at_random(work, check, n_faults)
    before = last
    work()
    check()
    assert last == before + 5


STRANGERS = {"data.npy": b"mine", "point-000003.npz": b"mine", "steps-000002.npz": b"mine", "notes.txt": b"mine"}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["staged", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize("n_kills", [pytest.param(5, id="few"), pytest.param(250, id="many", marks=pytest.mark.slow)])
def test_fit_that_is_killed_goes_on_to_the_same_result_beside_files_of_others(tmp_path, monkeypatch, schedule, n_kills):
    monkeypatch.setattr(checkpoint_module, "SHARE", np.inf)
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (1,))
    X = make_data(n=60, m=40).X
    options = {"n_components": 3, "random_state": 0, "max_iter": 60, "tol": 1e-6, "schedule": schedule}
    expected = RobustNMF(**options).fit(X)
    begin = time.perf_counter()
    RobustNMF(**options, checkpoint=tmp_path / "timed").fit(X)
    longest = time.perf_counter() - begin
    rng, n_resumed = np.random.default_rng(0), 0
    for k in range(n_kills):
        folder, first = tmp_path / str(k), []
        folder.mkdir()
        for name, content in STRANGERS.items():
            (folder / name).write_bytes(content)
        fit = partial(RobustNMF(**options, checkpoint=folder).fit, X)
        # Every other kill waits until there is something to go on from.
        moment = (
            {"after": (folder / "checkpoint.json").exists, "longest": longest / 4} if k % 2 else {"longest": longest}
        )
        kill_at_random(fit, lambda: None, 1, rng=rng, **moment)
        watch = {"checkpoint": folder, "callback": lambda iteration, first=first: first.append(iteration.n_iter)}
        resumed = RobustNMF(**options, **watch).fit(X)
        np.testing.assert_array_equal(resumed.components_, expected.components_)
        np.testing.assert_array_equal(resumed.weights_, expected.weights_)
        assert {name: (folder / name).read_bytes() for name in STRANGERS} == STRANGERS
        n_resumed += not first or first[0] > 0
    assert n_resumed > 0.1 * n_kills


def spectra(path, seed=0):
    """Write data whose fit takes a moment."""
    np.save(path, make_data(n=60, m=40, seed=seed).X)


def result_of(out):
    """Return what a folder of results holds, after a check that it is complete."""
    names = {"model.robustnmf", "codes.npy", "components.npy", "cleaned.npy", "outliers.npy", "summary.json"}
    assert {path.name for path in out.iterdir()} == names
    model, summary = load(out / "model.robustnmf"), json.loads((out / "summary.json").read_text())
    assert model.n_components_ == summary["components"] == np.load(out / "codes.npy").shape[1]
    assert np.load(out / "cleaned.npy").shape == (60, 40)
    return model.n_components_


def fit_command(rank, *options):
    return [*COMMAND, "fit", "x.npy", "-k", str(rank), "-o", "out", "--no-report", "-q", *options]


@pytest.mark.slow
def test_kill_of_a_command_at_any_moment_leaves_the_old_or_the_new_result(tmp_path, n_faults=25):
    spectra(tmp_path / "x.npy")
    begin = time.perf_counter()
    subprocess.run(fit_command(2), cwd=tmp_path, check=True, timeout=300)
    whole = time.perf_counter() - begin
    rng = np.random.default_rng(0)
    for _ in range(n_faults):
        process = subprocess.Popen(fit_command(3, "--force"), cwd=tmp_path)
        # Most of the time goes to imports; the end, where files are written, is what matters.
        time.sleep(rng.uniform(0.6, 1.1) * whole)
        process.kill()
        process.wait(timeout=60)
        assert result_of(tmp_path / "out") in (2, 3)


# --- Disks ------------------------------------------------------------------------------------------------------------

FULL_DISK = """
import resource, signal, sys
from robustnmf import load
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails like on a full disk, with OSError
new, old = load(sys.argv[1]), sys.argv[2]
before = open(old, "rb").read()
for room in (0, 1, 200, 3000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        new.save(old, overwrite=True)
    except OSError as error:
        assert open(old, "rb").read() == before
        print("refused", error.errno)
"""


def test_full_disk_keeps_the_old_model(tmp_path):
    X = make_data(n=200).X
    for rank, name in ((1, "old"), (2, "new")):
        RobustNMF(rank, method="l2", random_state=0, max_iter=2).fit(X).save(tmp_path / name)
    done = python(FULL_DISK, tmp_path / "new", tmp_path / "old")
    assert done.stdout.count("refused") == 4, done.stderr
    assert load(tmp_path / "old").n_components_ == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


FULL_DISK_OF_A_CHECKPOINT = """
import resource, signal, sys
import numpy as np
from robustnmf import RobustNMF
from robustnmf.algorithm import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails like on a full disk, with OSError
checkpoint.SHARE = np.inf
checkpoint.Checkpoint.__init__.__defaults__ = (1,)
X = np.load(sys.argv[1])
options = dict(n_components=2, random_state=0, max_iter=40, tol=1e-6, schedule=sys.argv[3])
expected = RobustNMF(**options).fit(X)
def fill(iteration):
    if iteration.n_iter == 7:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
model = RobustNMF(**options, checkpoint=sys.argv[2], callback=fill)
try:
    model.fit(X)
except OSError as error:
    print("refused", error.errno, hasattr(model, "components_"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
told = []
model.set_params(callback=lambda iteration: told.append(iteration.n_iter)).fit(X)
print(told[0], bool((model.components_ == expected.components_).all()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [pytest.param("plain", marks=pytest.mark.slow), "staged"])
def test_full_disk_keeps_the_last_checkpoint(schedule, tmp_path):
    spectra(tmp_path / "x.npy")
    done = python(FULL_DISK_OF_A_CHECKPOINT, tmp_path / "x.npy", tmp_path / "state", schedule)
    assert done.stdout.splitlines() == ["refused 27 False", "7 True"], done.stderr
    assert all(path.suffix in (".json", ".npz") for path in (tmp_path / "state").iterdir())


FULL_DISK_OF_A_LOG = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from robustnmf.paper.results import Log
from robustnmf.paper.task import Outcome, Task
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = Log(Path(sys.argv[1]))
def add(trial):
    log.add(Task("e", "s", 0.0, "l2", trial, {}), "1", 0.1, Outcome({"error": 1.0}, {"A": np.ones(500)}), None)
for trial in range(3):
    add(trial)
for room in (0, 100, log.path.stat().st_size + 3):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        add(3)
    except OSError:
        print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log = Log(Path(sys.argv[1]))
add(3)
print(*sorted(record.task.trial for record in Log(Path(sys.argv[1])).results().records))
"""


@pytest.mark.slow
def test_full_disk_keeps_the_results_of_experiments(tmp_path):
    done = python(FULL_DISK_OF_A_LOG, tmp_path)
    assert done.stdout.splitlines() == ["refused"] * 3 + ["0 1 2 3"], done.stderr


SMALL_DISK = """
mount -t tmpfs -o size=64k tmpfs "$1" || exit 77
cp "$2" "$1/x.npy" && cd "$1" || exit 78
shift 2
"$@"
code=$?
ls -A
exit $code
"""


@pytest.mark.slow
def test_full_disk_ends_a_command_with_one_line_and_no_result(tmp_path):
    """On a disk of 64 kB of its own, where the system lets us have one."""
    np.save(tmp_path / "x.npy", make_data(n=100, m=30).X)
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "--mount", "--map-root-user", "bash", "-c", SMALL_DISK, "small", disk, tmp_path / "x.npy"]
    try:
        done = subprocess.run([*command, *fit_command(2)], capture_output=True, text=True, timeout=300)
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    if done.returncode not in (0, 2):
        pytest.skip(f"no disk of our own: {done.stderr}")
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.split() == ["x.npy"]


READ_ONLY = """
import os, sys
from pathlib import Path
import numpy as np
from robustnmf import load
from robustnmf.cli import folder  # all that is needed, before the rights are given up
from robustnmf.paper.results import Log
from robustnmf.utils.files import write_folder
from robustnmf.algorithm import checkpoint
from robustnmf.formats import LabelledMatrix
checkpoint.Checkpoint.__init__.__defaults__ = (1,)
model = load(sys.argv[1])
model.fit(np.ones((9, 9)))  # compiled
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)  # the administrator may write anywhere
place = Path(sys.argv[2])
def to_folder():
    with write_folder(place / "out") as new:
        folder.write_json(new / "summary.json", {})
writes = [
    lambda: model.save(place / "m", overwrite=True),
    lambda: folder.write_matrix(place / "a.csv", LabelledMatrix(np.ones((2, 2)))),
    lambda: folder.write_json(place / "a.json", {}),
    to_folder,
    lambda: Log(place / "log"),
    lambda: model.set_params(checkpoint=place / "new").fit(np.ones((9, 9))),
    lambda: model.set_params(checkpoint=place / "state").fit(np.ones((9, 9))),
]
for write in writes:
    try:
        write()
    except PermissionError:
        print("refused")
"""


@pytest.mark.slow
def test_folder_that_cannot_be_written_keeps_what_it_holds():
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        RobustNMF(1, method="l2", random_state=0, max_iter=2).fit(make_data().X).save(place / "m")
        for folder in (place, place.parent):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
        (place / "state").mkdir()
        before = (place / "m").read_bytes()
        for folder in (place / "state", place):
            folder.chmod(0o555)
        try:
            done = python(READ_ONLY, place / "m", place)
        finally:
            place.chmod(0o755)
        assert done.stdout.split() == ["refused"] * 7, done.stderr
        assert (place / "m").read_bytes() == before
        assert sorted(path.name for path in place.iterdir()) == ["m", "state"]
        assert not list((place / "state").iterdir())


def test_new_files_have_the_permissions_of_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        with write_atomically(tmp_path / "a") as temporary:
            temporary.write_text("a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_writing_in_many_threads_leaves_the_umask_alone(tmp_path):
    """Two threads that ask for the umask by setting it can leave the process without one."""
    before = os.umask(0o022)
    seen = set()

    def write(k):
        for i in range(30):
            with write_atomically(tmp_path / f"{k}-{i}") as temporary:
                temporary.write_text("a")
            seen.add(stat.S_IMODE((tmp_path / f"{k}-{i}").stat().st_mode))

    try:
        threads = [threading.Thread(target=write, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == {0o644}
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError])
def test_interrupted_replacement_of_a_folder_keeps_the_old_one(tmp_path, monkeypatch, can_exchange, fault):
    """Where folders cannot be exchanged in one step, an interrupt between the two steps must not lose both."""
    out = tmp_path / "out"
    with write_folder(out) as place:
        results.write_json(place / "summary.json", {"version": 1})
    if not can_exchange:
        monkeypatch.setattr(files.platforms, "exchange", lambda one, other: False)
    replace, is_put_aside = os.replace, []

    def fail_at_the_second(source, target):
        if Path(target) == out and out in is_put_aside and None not in is_put_aside:
            is_put_aside.append(None)
            raise fault
        is_put_aside.append(Path(source))
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", fail_at_the_second)
    expected = 1
    try:
        with write_folder(out, replace=True) as place:
            results.write_json(place / "summary.json", {"version": 2})
        expected = 2
    except fault:
        pass
    assert expected == (2 if can_exchange and sys.platform == "linux" else 1)
    assert json.loads((out / "summary.json").read_text())["version"] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_picture_of_ranks_is_not_replaced_unasked(tmp_path):
    picture = tmp_path / "ranks.png"
    picture.write_text("mine")
    spectra(tmp_path / "x.npy")
    arguments = ["rank", str(tmp_path / "x.npy"), "--ranks", "1,2", "--splits", "2", "--plot", str(picture)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert picture.read_text() == "mine"
    refused = CliRunner().invoke(app, [*arguments, "--force"])
    assert refused.exit_code == 2
    assert picture.read_text() == "mine"
    picture.unlink()
    for force in ([], ["--force"]):
        done = CliRunner().invoke(app, [*arguments, *force])
        assert done.exit_code == 0, done.output
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_log_of_experiments_names_no_file_elsewhere(tmp_path):
    log = Log(tmp_path)
    log.add(Task("e", "s", 0.0, "l2", 0, {}), "1", 0.1, Outcome({}, {"A": np.ones(2)}), None)
    line = json.loads(log.path.read_text())
    for name in ("../a.npz", "/tmp/a.npz", "a/b.npz", "..", "a.npz\n", "a.pkl"):
        log.path.write_text(json.dumps(line | {"arrays": name}) + "\n")
        with pytest.raises(ValueError, match="name of a file in the same folder"):
            Log(tmp_path)
    assert Record.from_json(json.dumps(line)).arrays == line["arrays"]


NO_CACHE = """
from numba.core import caching
caching.CacheImpl._locator_classes = []  # as where neither the package nor the home folder can be written to
import numpy as np
from robustnmf import RobustNMF
rng = np.random.default_rng(0)
print(RobustNMF(2, random_state=0).fit(rng.random((20, 2)) @ rng.random((2, 10))).n_components_)
"""


@pytest.mark.slow
def test_fit_works_where_no_compiled_code_can_be_kept():
    done = python(NO_CACHE)
    assert done.stdout.strip() == "2", done.stderr


# --- Interrupts -------------------------------------------------------------------------------------------------------


@contextmanager
def interrupted_after(seconds):
    """Raise KeyboardInterrupt in this thread after a while, as Ctrl-C does."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def state_of(model):
    """Return what a fit has left in an estimator."""
    return {name: value.copy() for name, value in vars(model).items() if isinstance(value, np.ndarray)}


def same(one, other):
    return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.thinned(2)
@each_effort
@pytest.mark.parametrize(
    "fitted_before", [pytest.param(False, id="unfitted", marks=pytest.mark.slow), pytest.param(True, id="fitted")]
)
@pytest.mark.parametrize("step", ["fit", "partial_fit"])
def test_interrupted_fit_leaves_the_estimator_as_it_was(step, fitted_before, n_faults):
    """Or as it is after the fit; nothing in between. And the next fit gives what it always gives."""
    first, second = make_data(seed=1).X, make_data(seed=2).X

    start = RobustNMF(2, random_state=0, max_iter=40)
    if fitted_before:
        start.fit(first)

    def begun():
        return deepcopy(start)

    fitted = RobustNMF(2, random_state=0, max_iter=40).fit(second)
    # The first batch of a stream is a fit, complete in itself before the batch is learnt from.
    allowed = [state_of(begun()), state_of(getattr(begun(), step)(second)), state_of(fitted)]
    rng = np.random.default_rng(0)
    interrupted = 0
    for _ in range(n_faults):
        model = begun()
        begin = time.perf_counter()
        try:
            with interrupted_after(rng.uniform(1e-4, 0.04)):
                getattr(model, step)(second)
        except KeyboardInterrupt:
            interrupted += 1
        assert any(same(state_of(model), state) for state in allowed)
        assert time.perf_counter() - begin < 30
        np.testing.assert_array_equal(model.fit(second).components_, fitted.components_)
    assert interrupted  # a busy machine is often done, or not yet begun, by then


def test_interrupt_is_one_whatever_numba_makes_of_it():
    """While a kernel is called it becomes a SystemError, whose cause is another, whose cause is the interrupt."""
    with pytest.raises(KeyboardInterrupt), NumPyEngine().running():
        try:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as interrupt:
                raise SystemError("returned a result with an exception set") from interrupt
        except SystemError as error:
            raise SystemError("returned a result with an exception set") from error
    with pytest.raises(SystemError, match="something else"), NumPyEngine().running():
        raise SystemError("something else")


# --- Memory -----------------------------------------------------------------------------------------------------------

LITTLE_MEMORY = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from robustnmf import RobustNMF
rng = np.random.default_rng(0)
small, large = rng.random((30, 20)), rng.random((1500, 800))
# Buffers of BLAS are taken once, one for each thread that multiplies at the same time. Where there is no memory for
# them, OpenBLAS waits for ever, gives up or crashes, and nobody can help that.
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda _: large.T @ large, range(32)))
RobustNMF(2, method=sys.argv[1], random_state=0, max_iter=3).fit(large)
model = RobustNMF(2, method=sys.argv[1], random_state=0, max_iter=3).fit(small)  # compiled, threads started
before = model.components_.copy()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
survived = 0
for room in (2, 5, 12, 25, 40, 80):
    resource.setrlimit(resource.RLIMIT_AS, (used + room * 2**20, resource.RLIM_INFINITY))
    try:
        model.fit(large)
    except MemoryError:
        survived += 1
        assert (model.components_ == before).all()
    except RuntimeError as error:  # no memory for the stack of a thread
        assert "thread" in str(error), error
        assert (model.components_ == before).all()
        survived += 1
    else:
        model.fit(small)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert (model.fit(small).components_ == before).all()
print(survived)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of memory")
@pytest.mark.parametrize("method", ["truncated-cauchy", pytest.param("huber", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_lack_of_memory_is_survived(method):
    # With one arena: others reserve memory that a fit could then use beyond the limit.
    done = python(LITTLE_MEMORY, method, env={**os.environ, "MALLOC_ARENA_MAX": "1"})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2
