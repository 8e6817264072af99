"""Imports point one way: from the estimators down to the losses, never back; extras are imported late."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import robustnmf

ROOT = Path(robustnmf.__file__).parent

# A module may import those before it in this list, and those of its own folder.
ORDER = [
    "cached",
    "process_state",
    "arrays",
    "errors",
    "files",
    "reading",
    "losses",
    "engines",
    "mixture",
    "scales",
    "outliers",
    "markov",
    "spatial",
    "weighting",
    "heldout",
    "fingerprints",
    "checkpoint",
    "initializers",
    "units",
    "blockwise",
    "penalties",
    "solvers",
    "baselines",
    "halfquadratic",
    "progress",
    "encoding",
    "lost_features",
    "schedules",
    "methods",
    "streaming",
    "validation",
    "outofcore",
    "plots",
    "report",
    "persistence",
    "metrics",
    "trials",
    "workers",
    "selection",
    "stability",
    "fitting",
    "estimators",
    "ecosystem",
    "sparse_codes",
    "classifiers",
    "detectors",
    "theory",
    "datasets",
    "compare",
    "demo",
    "experiments",
    "cli",
]
OPTIONAL = {
    *("matplotlib", "torch", "dask", "distributed", "typer", "pandas", "polars", "jinja2", "h5py", "zarr", "PIL"),
    *("pyarrow", "anndata", "xarray", "hyperspy"),
}


def modules():
    return [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]


def layer(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.col_offset) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.col_offset


def test_every_module_has_a_place():
    assert {layer(path) for path in modules()} == set(ORDER)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    here = layer(path)
    for name, _ in imports(ast.parse(path.read_text())):
        if name.startswith("robustnmf."):
            there = name.split(".")[1]
            assert there == here or ORDER.index(there) < ORDER.index(here), f"{here} imports {there}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_optional_dependencies_are_imported_inside_functions(path):
    # The commands are themselves imported late, by `cli.main`, and modules for a GPU by `engines.engine_for`.
    allowed = {"typer"} if path.parent == ROOT / "cli" and path.name != "__init__.py" else set()
    if path.parent == ROOT / "engines" and path.stem.startswith(("torch_", "triton_", "cuda_")):
        allowed = {"torch", "triton"}
    for name, indent in imports(ast.parse(path.read_text())):
        assert indent > 0 or name.split(".")[0] in allowed or name.split(".")[0] not in OPTIONAL, (
            f"{name} is imported at the top of {path}"
        )


def test_importing_the_package_imports_neither_numba_nor_an_extra():
    code = "import sys, robustnmf; print(*{m.split('.')[0] for m in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & (OPTIONAL - {"pandas", "polars", "pyarrow"} | {"numba"})
