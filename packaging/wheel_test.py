"""Build the package, check what is in it, and use it in an empty environment that has no network.

    python packaging/wheel_test.py [--resolution highest|lowest-direct] [--python 3.11]

The wheelhouse is filled from the index; the installation itself sees nothing but the wheelhouse.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
# Bytes that the wheel and the sdist must not exceed.
LARGEST_WHEEL, LARGEST_SDIST = 2 * 2**20, 4 * 2**20

USE = """
import sys
import numpy as np
import robustnmf
from robustnmf import TruncatedCauchyNMF, load
from robustnmf.datasets import load_orl

assert sys.prefix in robustnmf.__file__, robustnmf.__file__
X = np.asarray(load_orl().data[:60], dtype=float)
wrong = np.random.default_rng(0).random(X.shape) < 0.05
X[wrong] = 1000
model = TruncatedCauchyNMF(5, random_state=0, max_iter=50).fit(X)
assert model.outliers_[wrong].mean() > 0.99
model.save("m.robustnmf")
np.testing.assert_array_equal(load("m.robustnmf").transform(X), model.transform(X))
import importlib.metadata as about
names = ("robustnmf", "numpy", "scipy", "scikit-learn", "numba", "joblib", "threadpoolctl")
print("fitted, saved and loaded with", ", ".join(f"{name} {about.version(name)}" for name in names))
"""


def run(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


def build(folder):
    """Return the wheel and the sdist, built in a folder and then put into dist."""
    run("uv", "build", "--quiet", "--out-dir", folder, ROOT)
    run("uvx", "--quiet", "twine", "check", "--strict", *folder.glob("robustnmf-*"))
    DIST.mkdir(exist_ok=True)
    return [Path(shutil.copy(next(folder.glob(kind)), DIST)) for kind in ("*.whl", "*.tar.gz")]


def check_contents(wheel, sdist):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    for wanted in ("robustnmf/py.typed", "robustnmf/datasets/orl_32x32.npz", "robustnmf/datasets/NOTICE.txt"):
        assert wanted in names, f"{wanted} is not in the wheel"
    assert "](docs/" not in about and 'src="docs/' not in about, "PyPI would show broken links"
    assert "Project-URL: Source" in about
    all_extra = [line for line in about.splitlines() if line.startswith("Requires-Dist") and "'all'" in line]
    assert all_extra and not any("torch" in line for line in all_extra), all_extra
    with tarfile.open(sdist) as archive:
        records = [name for name in archive.getnames() if "/benchmarks/results/" in name and not name.endswith(".md")]
    print(f"wheel {wheel.stat().st_size:,} bytes, sdist {sdist.stat().st_size:,} bytes; other results: {records}")
    assert wheel.stat().st_size < LARGEST_WHEEL and sdist.stat().st_size < LARGEST_SDIST


def use_without_network(wheel, folder, resolution, python):
    house, environment = folder / "wheelhouse", folder / "environment"
    requirements = folder / "requirements.txt"
    options = ["--quiet", "--resolution", resolution, "--python-version", python]
    run("uv", "pip", "compile", *options, "--output-file", requirements, ROOT / "pyproject.toml")
    run("uv", "venv", "--quiet", "--python", python, "--seed", environment)
    interpreter = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = (interpreter, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "download", "--only-binary", ":all:", "--dest", house, "--requirement", requirements)
    shutil.copy(wheel, house)
    run(*pip, "install", "--no-index", "--find-links", house, "--requirement", requirements, "robustnmf")
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(interpreter, "-W", "ignore", "-c", USE, cwd=folder, env=alone)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resolution", choices=("highest", "lowest-direct"), default="highest")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}")
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where uv is
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "built").mkdir()
        wheel, sdist = build(folder / "built")
        check_contents(wheel, sdist)
        use_without_network(wheel, folder, options.resolution, options.python)


if __name__ == "__main__":
    main()
