"""Windows, macOS and containers: what differs is in one module, and works under the rules of the others."""

import ast
import ctypes
import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import robustnmf
from conftest import make_data
from robustnmf import RobustNMF, load
from robustnmf.cli.app import app
from robustnmf.formats import read_table, write_table
from robustnmf.utils import files, platforms
from robustnmf.utils.files import write_atomically, write_folder

windows_rules = pytest.importorskip("windows_rules", reason="the rules are imposed on Linux", exc_type=ImportError)

ROOT = Path(robustnmf.__file__).parent
X = make_data(n=30, m=12).X
FAST = {"n_components": 2, "random_state": 0, "max_iter": 20}
# What only some systems have, or what means another thing on each.
DIFFERENT = {
    *("os.sysconf", "os.fork", "os.register_at_fork", "os.kill", "os.fsync", "os.name", "os.getuid", "os.uname"),
    *("sys.platform", "signal.SIGKILL", "signal.SIGALRM", "signal.SIGHUP", "platform.system", "ctypes.CDLL"),
    *("os.getrlimit", "os.sched_getaffinity", "os.killpg", "os.setsid", "os.statvfs", "os.mkfifo"),
}
POSIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "posix"}


@pytest.fixture
def windows(monkeypatch):
    windows_rules.impose(monkeypatch)


# --- The source -------------------------------------------------------------------------------------------------------


def names_of_systems(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if name in DIFFERENT:
                yield name
        if isinstance(node, ast.Import):
            yield from ({alias.name for alias in node.names} & POSIX_ONLY)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_one_module_asks_for_the_system(path):
    found = set(names_of_systems(ast.parse(path.read_text(encoding="utf-8"))))
    allowed = {
        "platforms.py": DIFFERENT,
        "files.py": {"os.fsync"},  # of a file that is open for writing
        "environment.py": {"platform.system"},  # to be shown
    }
    assert found <= set(allowed.get(path.name, ()))


def texts_without_encoding(tree):
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        modes = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        is_text = node.func.attr in ("read_text", "write_text") or (
            node.func.attr == "open" and any(set(mode) <= set("rwaxt+") and "b" not in mode for mode in modes)
        )
        if is_text and not any(keyword.arg == "encoding" for keyword in node.keywords):
            yield ast.unparse(node)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_text_files_have_an_encoding_that_is_not_that_of_the_system(path):
    ours = {"formats/text.py", "formats/text_writing.py"}  # which have functions of these names
    if path.relative_to(ROOT).as_posix() not in ours:
        assert list(texts_without_encoding(ast.parse(path.read_text(encoding="utf-8")))) == []


# --- The rules themselves ---------------------------------------------------------------------------------------------


def test_the_rules_refuse_what_windows_refuses(windows, tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"a")
    with path.open("rb") as file:
        with pytest.raises(OSError) as refused:
            os.fsync(file.fileno())
        assert refused.value.errno == errno.EBADF
        for change in (lambda: os.replace(path, other), path.unlink):
            with pytest.raises(PermissionError):
                change()
    with pytest.raises(PermissionError):
        os.open(tmp_path, os.O_RDONLY)
    assert not hasattr(os, "sysconf") and not hasattr(os, "fork")
    mapped = np.memmap(path, mode="r")
    with pytest.raises(PermissionError):
        path.unlink()
    del mapped
    path.unlink()


# --- What users do ----------------------------------------------------------------------------------------------------


def test_save_report_and_checkpoint_work_under_the_rules_of_windows(windows, tmp_path):
    model = RobustNMF(**FAST, checkpoint=tmp_path / "state").fit(X)
    for _ in range(2):  # the second one replaces the first
        model.save(tmp_path / "m.robustnmf", overwrite=True)
        model.report(X, tmp_path / "fit.html")
    loaded = load(tmp_path / "m.robustnmf")
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
    again = RobustNMF(**FAST, checkpoint=tmp_path / "state").fit(X)
    np.testing.assert_array_equal(again.components_, model.components_)


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet", ".h5", ".zarr", ".xlsx", ".mat", ".fits"])
def test_commands_write_every_format_under_the_rules_of_windows(windows, tmp_path, suffix):
    (tmp_path / "data.csv").write_text("\n".join(",".join(map(str, row)) for row in X), encoding="utf-8")
    source = tmp_path / f"source{suffix}"
    write_table(source, read_table(tmp_path / "data.csv"))
    out = str(tmp_path / "out")
    for more in ([], ["--force"]):
        done = CliRunner().invoke(
            app, ["fit", str(source), "-k", "2", "-o", out, "--max-iter", "5", "--seed", "0", *more]
        )
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["clean", out, str(source), "-o", str(tmp_path / f"clean{suffix}")])
    assert done.exit_code == 0, done.output


def test_memory_mapped_data_is_fitted_under_the_rules_of_windows(windows, tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = RobustNMF(**FAST).fit(mapped)
    np.testing.assert_array_equal(model.components_, RobustNMF(**FAST).fit(X).components_)


def test_folder_of_results_takes_the_place_of_an_empty_one_under_the_rules_of_windows(windows, tmp_path):
    (tmp_path / "out").mkdir()
    with write_folder(tmp_path / "out") as folder:
        (folder / "a.txt").write_text("1")
    assert (tmp_path / "out" / "a.txt").read_text() == "1"
    with pytest.raises(FileExistsError), write_folder(tmp_path / "out") as folder:
        (folder / "a.txt").write_text("2")
    assert (tmp_path / "out" / "a.txt").read_text() == "1"


def test_a_file_that_another_program_has_open_is_replaced_when_it_is_closed(windows, tmp_path, monkeypatch):
    monkeypatch.setattr(platforms, "PAUSES", (0.05,) * 100)
    path = tmp_path / "a.txt"
    path.write_text("old")
    file = path.open()
    threading.Timer(0.2, file.close).start()
    begin = time.monotonic()
    with write_atomically(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new" and time.monotonic() - begin > 0.1


def test_a_file_that_stays_open_is_kept_and_named(windows, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with path.open(), pytest.raises(PermissionError, match=r"a\.txt"), write_atomically(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_scratch_file_that_is_mapped_goes_with_its_folder(windows, tmp_path):
    folder = files.new_scratch_folder(tmp_path)
    path = folder / f"array-{'0' * 32}.npy"
    np.save(path, X)
    mapped = np.load(path, mmap_mode="r")
    files.remove_scratch(path)
    assert path.exists() and np.array_equal(mapped, X)
    del mapped
    files.remove_scratch_folder(folder)
    assert not folder.exists()


# --- Processes --------------------------------------------------------------------------------------------------------


def test_a_process_runs_until_it_has_ended():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert platforms.is_running(process.pid)
    process.communicate(b"\n")
    assert not platforms.is_running(process.pid)


def test_processes_are_asked_for_without_a_signal_on_windows(windows, monkeypatch):
    assert platforms.is_running(os.getpid()) and not platforms.is_running(os.getpid() + 1)
    monkeypatch.setattr(ctypes, "get_last_error", lambda: 5)  # access denied: it is there
    assert platforms.is_running(os.getpid() + 1)


def test_an_orphan_is_noticed_where_it_keeps_the_number_of_its_parent(windows, monkeypatch):
    parent = os.getppid()
    monkeypatch.setattr(platforms, "is_running", lambda process: True)
    assert not platforms.has_lost_parent(parent)
    monkeypatch.setattr(platforms, "is_running", lambda process: process != parent)
    assert platforms.has_lost_parent(parent)


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_memory_is_that_of_windows(windows, tmp_path):
    assert platforms.memory(tmp_path) == windows_rules.MEMORY


def cgroups(root, lines, limits):
    for name, text in {"proc/self/cgroup": lines, **limits}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return platforms.memory(root)


MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V1 = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n"
BOTH = "9:memory:/a\n0::/a\n"


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        pytest.param("0::/\n", {"sys/fs/cgroup/memory.max": "1048576\n"}, 2**20, id="2, of a container"),
        pytest.param("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "4096\n"}, 4096, id="2, of the group above"),
        pytest.param(
            "0::/a/b\n",
            {"sys/fs/cgroup/a/memory.max": "8192\n", "sys/fs/cgroup/a/b/memory.max": "max\n"},
            8192,
            id="2, without a limit of its own",
        ),
        pytest.param("0::/a\n", {"sys/fs/cgroup/a/memory.max": "max\n"}, MACHINE, id="2, none"),
        pytest.param(V1, {"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "5000\n"}, 5000, id="1"),
        pytest.param(V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "6000\n"}, 6000, id="1, of a container"),
        pytest.param(
            V1, {"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, MACHINE, id="1, none"
        ),
        pytest.param(
            BOTH,
            {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "7000\n", "sys/fs/cgroup/a/memory.max": "6000\n"},
            6000,
            id="both",
        ),
        pytest.param("nothing that is known\n", {}, MACHINE, id="another text"),
    ],
)
def test_memory_is_that_of_the_container(tmp_path, lines, limits, expected):
    assert cgroups(tmp_path, lines, limits) == expected


def test_memory_without_control_groups_is_that_of_the_machine(tmp_path):
    assert platforms.memory(tmp_path) == MACHINE


def test_data_on_disk_is_streamed_if_it_is_large_for_the_container(tmp_path, monkeypatch):
    from robustnmf.data import out_of_core

    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert not out_of_core.is_out_of_core(mapped, "auto")
    lines, limits = "0::/\n", {"sys/fs/cgroup/memory.max": str(2 * X.nbytes)}
    limit = cgroups(tmp_path, lines, limits)
    monkeypatch.setattr(out_of_core, "memory", lambda: limit)
    assert out_of_core.is_out_of_core(mapped, "auto")


# --- Consoles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["--help", "fit --help", "info"])
def test_commands_print_to_a_console_that_is_not_unicode(command):
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252:strict", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "robustnmf.cli", *command.split()], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode("cp1252")


def test_names_that_a_console_has_no_signs_for_do_not_end_a_command(tmp_path):
    names = ",".join(f"\u03b1{i}" for i in range(X.shape[1]))
    np.savetxt(tmp_path / "\u03a9data.csv", X, delimiter=",", header=names, comments="", encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252:strict", "PYTHONUTF8": "0"}
    command = ["fit", "\u03a9data.csv", "-k", "2", "--max-iter", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "robustnmf.cli", *command],
        env=environment,
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode("cp1252")
    assert "\\u03a9" in done.stdout.decode("cp1252") + done.stderr.decode("cp1252")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of a process is read from /proc")
def test_freed_memory_is_given_back():
    code = (
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from robustnmf.utils.platforms import give_back_freed_memory\n"
        "def held(): return int(Path('/proc/self/statm').read_text().split()[1])\n"
        "arrays = [np.ones(2**13) for _ in range(1000)]\n"  # too small to be mapped one by one
        "last = np.ones(2**13)\n"
        "full = held()\n"
        "del arrays\n"
        "give_back_freed_memory()\n"
        "print(4096 * (full - held()))"
    )
    given = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(given) > 30e6


def test_other_c_libraries_keep_freed_memory(monkeypatch):
    monkeypatch.setattr(platforms.ctypes, "CDLL", lambda name: object())
    platforms.give_back_freed_memory()
