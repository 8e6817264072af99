"""Do two versions of the code give the same results? Run it with each, then compare the files.

    PYTHONPATH=old/src python benchmarks/same_results.py write old.npz
    PYTHONPATH=src python benchmarks/same_results.py write new.npz
    python benchmarks/same_results.py compare old.npz new.npz

Faces (ORL, with 30 % salt and pepper), the days of Baltimore (with gaps), planted factors with up to 50 % gross errors
(the breakdown table, in small), and the toy of the paper; on every engine that the machine has. It uses nothing but the
public interface of version 0.1.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from robustnmf import RobustNMF, datasets
from robustnmf.datasets import corruptions

METHODS = (
    "truncated-cauchy",
    "l2",
    "l1",
    "huber",
    "cim",
    "hypersurface",
    "l21",
    "rnmf-l1",
    "truncated-cauchy/published",
)


def planted(share: float, seed: int = 0, n: int = 120, m: int = 80, rank: int = 4) -> np.ndarray:
    """Return data of low rank with 2 % noise, in which a share of the entries is grossly wrong."""
    rng = np.random.default_rng(seed)
    clean = rng.random((n, rank)) @ rng.random((rank, m))
    noisy = np.maximum(clean + 0.02 * rng.standard_normal((n, m)), 0)
    return np.where(rng.random((n, m)) < share, 10 * rng.random((n, m)), noisy)


def toy() -> np.ndarray:
    """Return points near a line, a few of them far away."""
    rng = np.random.default_rng(1)
    along = rng.random(200)
    points = np.stack([along, 0.5 * along], axis=1) + 0.01 * rng.random((200, 2))
    points[::20] = [[0.1, 3.0]]
    return points


def problems() -> dict[str, tuple[np.ndarray, int]]:
    """Return data and ranks."""
    faces = datasets.load_orl().data.astype(np.float64)
    spoiled = corruptions.salt_and_pepper(faces[:80], 0.3, random_state=0).data
    baltimore = np.asarray(datasets.load_baltimore().data, dtype=np.float64)
    shares = {f"planted {share:.0%}": (planted(share), 4) for share in (0.0, 0.2, 0.5)}
    return {"faces": (spoiled, 10), "baltimore": (baltimore, 5), "toy": (toy(), 1), **shares}


def chosen_problems(engine: str) -> dict[str, tuple[np.ndarray, int]]:
    """Return all problems; for Dask, which starts a cluster for each fit, one."""
    return {"planted 20%": problems()["planted 20%"]} if engine == "dask" else problems()


def engines(folder: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield the name of each engine, the parameters that choose it, and what makes data for it."""

    def on_disk(X: np.ndarray) -> Any:
        path = folder / f"{abs(hash(X.tobytes()))}.npy"
        np.save(path, X)
        return np.load(path, mmap_mode="r")

    yield "numpy", {"engine": "numpy"}, lambda X: X
    yield "single", {"engine": "numpy"}, lambda X: X.astype(np.float32)
    yield "stream", {"engine": "stream"}, on_disk
    if find_spec("torch"):
        import torch

        yield "torch", {"engine": "torch", "device": "cpu"}, lambda X: X
        if torch.cuda.is_available():
            yield "cuda", {"device": "cuda"}, lambda X: X
            yield "cuda single", {"device": "cuda"}, lambda X: X.astype(np.float32)
    if find_spec("distributed"):
        import dask.array as da

        yield "dask", {"engine": "dask"}, lambda X: da.from_array(X, chunks=(50, -1))


def write(path: Path) -> None:
    """Fit everything and write what was found."""
    warnings.simplefilter("ignore")
    found: dict[str, np.ndarray] = {}
    with TemporaryDirectory() as folder:
        for engine, chosen, made in engines(Path(folder)):
            for problem, (X, rank) in chosen_problems(engine).items():
                for name in METHODS if engine == "numpy" else METHODS[:1]:
                    method, _, preset = name.partition("/")
                    options = {"method": method, "preset": preset or "default", "random_state": 0, "max_iter": 60}
                    model = RobustNMF(rank, **options, **chosen).fit(made(X))
                    key = f"{engine}/{problem}/{name.replace('/', ' ')}"
                    found[f"{key}/components"] = np.asarray(model.components_)
                    numbers = [model.objective_, model.scale_, model.reconstruction_err_, model.n_iter_]
                    found[f"{key}/numbers"] = np.array(numbers, dtype=np.float64)
                    print(key, model.n_iter_, flush=True)
    np.savez(path, **found)


def compare(paths: list[Path]) -> int:
    """Print how far two results are apart; return 1 if anything is beyond rounding."""
    old, new = (np.load(path) for path in paths)
    worst = 0
    for key in sorted(set(old.files) & set(new.files)):
        a, b = old[key], new[key]
        largest = np.abs(a).max() if a.shape == b.shape else np.inf
        apart = float(np.abs(a - b).max() / max(largest, 1e-300)) if a.shape == b.shape else np.inf
        limit = 1e-3 if "single" in key else 1e-6
        if apart > 0:
            print(f"{apart:9.1e}  {'' if apart <= limit else 'BEYOND '}{key}")
        worst |= apart > limit
    print(
        f"{len(set(old.files) & set(new.files))} results compared, {len(set(old.files) ^ set(new.files))} in one only"
    )
    return int(worst)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()
    if options.what == "compare":
        return compare(options.paths)
    write(options.paths[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
