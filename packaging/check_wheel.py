"""Build the package, look at what is in it, and try the wheel in an empty environment that reaches no index.

``python packaging/check_wheel.py [--oldest]`` builds sdist and wheel and prints their sizes. It gathers the wheels of
the dependencies (the newest, or the oldest that pyproject.toml admits), installs from that folder alone, and fits,
saves and loads a model.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = {"wheel": 2_000_000, "sdist": 4_000_000}
"""A release that is larger holds something that it should not."""
TRY = """
import sys
import numpy as np
import robustnmf
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion

assert "site-packages" in robustnmf.__file__, robustnmf.__file__
assert "torch" not in sys.modules
faces = load_orl()
X, truth = block_occlusion(faces.data, 12, faces.image_shape, random_state=0)
model = robustnmf.TruncatedCauchyNMF(10, random_state=0).fit(X)
model.save("model.robustnmf")
again = robustnmf.load("model.robustnmf")
assert np.array_equal(model.transform(X[:5]), again.transform(X[:5]))
recall = model.outliers_[truth].mean()
assert recall > 0.9, recall
print(f"fit, save and load work; recall {recall:.2f}")
"""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command and stop if it fails."""
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def build(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist."""
    run(sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Print the sizes, and raise if something is missing or should not be there."""
    names = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as archive:
        sources = archive.getnames()
    for kind, path, listed in (("wheel", wheel, names), ("sdist", sdist, sources)):
        size = path.stat().st_size
        print(f"{kind}: {path.name}, {size / 1e6:.2f} MB, {len(listed)} files")
        if size > MOST_BYTES[kind]:
            raise SystemExit(f"The {kind} should have at most {MOST_BYTES[kind] / 1e6} MB. What is too large in it?")
        if any(Path(name).name.startswith("ar_") for name in listed):
            raise SystemExit(f"The {kind} holds AR faces, which may not be distributed.")
    for needed in ("py.typed", "datasets/NOTICE.md", "datasets/orl_32x32.npz"):
        if f"robustnmf/{needed}" not in names:
            raise SystemExit(f"The wheel lacks robustnmf/{needed}.")
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    if "](docs/" in text or 'src="docs/' in text:
        raise SystemExit("The description of the package has relative links; see fancy-pypi-readme in pyproject.toml.")


def try_offline(wheel: Path, folder: Path, *, oldest: bool) -> None:
    """Install the wheel where no index is reached, and use it."""
    resolution = "lowest-direct" if oldest else "highest"
    pins, house, python = folder / "pins.txt", folder / "wheelhouse", folder / "env" / "bin" / "python"
    run(
        *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"),
        *("--resolution", resolution, "--output-file", pins, ROOT / "pyproject.toml"),
    )
    run(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", house, "-r", pins)
    venv.create(folder / "env", with_pip=True)
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", house, "-r", pins, wheel)
    print(" ".join(pins.read_text().split()))
    run(python, "-I", "-c", TRY, cwd=folder)


def main() -> None:
    """Build, check and try."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oldest", action="store_true", help="with the oldest dependencies that are admitted")
    oldest = parser.parse_args().oldest
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder / "dist")
        check_contents(wheel, sdist)
        try_offline(wheel, folder, oldest=oldest)


if __name__ == "__main__":
    main()
