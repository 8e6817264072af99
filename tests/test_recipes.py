"""The recipes of CONTRIBUTING.md: what they add works, in as many files as they say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import robustnmf

ROOT = Path(__file__).parent.parent
SOURCE = Path(robustnmf.__file__).parent


def code_of(recipe, language="python"):
    """Return the code of a recipe, which is named in bold letters."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(f"**{recipe}**")[2]
    text = re.split(r"^\*\*", text, flags=re.MULTILINE)[0]
    return re.search(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)[1]


class Copy:
    """A copy of the package, of which some files are changed."""

    def __init__(self, folder):
        self.root = folder / "robustnmf"
        self.changed = set()
        shutil.copytree(SOURCE, self.root, ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, name, text):
        self.changed.add(name)
        (self.root / name).write_text(text, encoding="utf-8")

    def replace(self, name, old, new):
        text = (self.root / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, (name, old)
        self.write(name, text.replace(old, new))

    def run(self, program):
        command = [sys.executable, "-W", "ignore", "-c", program]
        environment = {"PYTHONPATH": str(self.root.parent), "PATH": "", "NUMBA_CACHE_DIR": str(self.root / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def package(tmp_path):
    return Copy(tmp_path)


PLANTED = """
import numpy as np
from robustnmf import RobustNMF
rng = np.random.default_rng(0)
clean = rng.random((40, 2)) @ rng.random((2, 30))
X = np.where(rng.random(clean.shape) < 0.1, 8.0, clean)
"""


@pytest.mark.slow
def test_a_loss_takes_one_file(package):
    name = "model/losses.py"
    package.replace(name, "\n\nLOSSES: Mapping", f"\n\n{code_of('A loss')}\n\nLOSSES: Mapping")
    package.replace(name, "Correntropy(), Cauchy())", "Correntropy(), Cauchy(), GemanMcClure())")
    error = package.run(
        PLANTED
        + """
model = RobustNMF(2, loss="geman-mcclure", random_state=0).fit(X)
print(np.linalg.norm(model.clean(X) - clean) / np.linalg.norm(clean))
"""
    )
    assert float(error) < 0.05
    assert package.changed == {name}


@pytest.mark.slow
def test_a_solver_takes_two_files(package):
    package.write("solvers/projected_gradient.py", code_of("A solver"))
    package.replace(
        "solvers/__init__.py",
        "from robustnmf.solvers.problem",
        "from robustnmf.solvers.projected_gradient import ProjectedGradient\nfrom robustnmf.solvers.problem",
    )
    package.replace(
        "solvers/__init__.py", "            SparseError(),\n", "            SparseError(), ProjectedGradient(),\n"
    )
    found = package.run(
        PLANTED
        + """
from scipy.optimize import nnls
from robustnmf.engines import NumPyEngine
from robustnmf.solvers import SOLVERS, Problem
A, Y = rng.random((12, 3)), rng.random((5, 12))
engine = NumPyEngine()
solver = type(SOLVERS["projected-gradient"])(max_iter=5000)
X0 = solver.solve(Problem(A, Y, None, engine.xp), np.ones((5, 3)), engine)
print(np.abs(X0 - [nnls(A, y)[0] for y in Y]).max())
model = RobustNMF(2, solver="projected-gradient", random_state=0).fit(X)
print(np.linalg.norm(model.clean(X) - clean) / np.linalg.norm(clean))
"""
    )
    apart, error = map(float, found.split())
    assert apart < 1e-6
    assert error < 0.1
    assert package.changed == {"solvers/__init__.py", "solvers/projected_gradient.py"}


def test_a_file_format_takes_two_files(package, tmp_path):
    package.write("formats/raw.py", code_of("A file format"))
    registry = "formats/registry.py"
    package.replace(registry, "    parquet,\n", "    parquet,\n    raw,\n")
    package.replace(registry, "    *(text, excel", "    *(raw, text, excel")
    (tmp_path / "table.raw").write_bytes(bytes(range(12)))
    path = str(tmp_path / "table.raw")
    program = f"from robustnmf.formats import read_table; print(read_table({path!r}).values.tolist())"
    assert package.run(program) == "[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]"
    assert package.changed == {"formats/raw.py", registry}


@pytest.mark.slow
def test_an_experiment_takes_two_files_and_its_choices(package, tmp_path):
    package.write("paper/low_rank.py", code_of("An experiment"))
    package.replace(
        "paper/reproduce.py", "    interpretations,\n    losses", "    interpretations,\n    low_rank,\n    losses"
    )
    package.replace("paper/reproduce.py", "    interpretations,\n)", "    interpretations,\n    low_rank,\n)")
    protocol = (package.root / "paper/protocol.toml").read_text(encoding="utf-8")
    package.write("paper/protocol.toml", protocol + "\n" + code_of("An experiment", "toml"))
    package.run(
        "from pathlib import Path; from robustnmf.paper.reproduce import reproduce; "
        f"reproduce(['low-rank'], out=Path({str(tmp_path / 'out')!r}), scale='quick')"
    )
    assert "Data of low rank" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert package.changed == {"paper/low_rank.py", "paper/reproduce.py", "paper/protocol.toml"}
