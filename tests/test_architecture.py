"""Imports point one way: from the estimators down to the losses, never back; extras are imported late."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import robustnmf

ROOT = Path(robustnmf.__file__).parent

# A layer is a folder or a module at the root, and may import those before it. Modules of one folder may import each
# other, but not in a circle.
LAYERS = [
    "version",
    "errors",
    "_moved",
    "utils",
    "formats",
    "kernels",
    "engines",
    "model",
    "solvers",
    "data",
    "algorithm",
    "baselines",
    "methods",
    "persistence",
    "metrics",
    "plots",
    "report",
    "estimators",
    "labelled",
    "refinement",
    "selection",
    "classifiers",
    "detectors",
    "datasets",
    "paper",
    "view",
    "cli",
]
OPTIONAL = {
    *("matplotlib", "torch", "dask", "distributed", "typer", "pandas", "polars", "jinja2", "h5py", "zarr", "PIL"),
    *("pyarrow", "anndata", "xarray", "hyperspy", "tifffile", "spectral", "astropy", "cv2", "python_calamine"),
    *("openpyxl", "starlette", "uvicorn"),
}


def modules():
    return [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in ROOT.rglob("*.py")}


def imports(tree):
    """Yield the modules that are imported anywhere, late or not, and how far their import is indented."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.col_offset) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name if name in NAMES else node.module, node.col_offset) for name in inside)


def own_imports(path):
    found = {name for name, _ in imports(ast.parse(path.read_text())) if name.split(".")[0] == "robustnmf"}
    return found - {name_of(path)}


def test_every_module_has_a_layer():
    assert {name_of(path).split(".")[1] for path in modules()} == set(LAYERS)


def test_the_root_is_a_map():
    assert len(list(ROOT.glob("*.py"))) <= 10


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_one_way(path):
    here = name_of(path).split(".")[1]
    for name in own_imports(path):
        # The public names of the package are those of its estimators and what is below them.
        there = name.split(".")[1] if "." in name else "detectors"
        assert there == here or LAYERS.index(there) < LAYERS.index(here), f"{here} imports {name}"


def test_no_module_imports_itself_through_others():
    graph = {name_of(path): own_imports(path) for path in ROOT.rglob("*.py")}
    # To import a module is to import the folders that it is in.
    parents = {name: {name.rsplit(".", n)[0] for n in range(1, name.count("."))} for name in graph}
    done: set[str] = set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for imported in graph[name]:
                for target in {imported, *parents[imported]} - {name, *parents[name]}:
                    visit(target, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_optional_dependencies_are_imported_inside_functions(path):
    # The commands are themselves imported late, by `cli.main`, and modules for a GPU by `engines.engine_for`.
    allowed = {"typer"} if path.parent == ROOT / "cli" and path.name != "__init__.py" else set()
    if path.parent == ROOT / "kernels" / "cuda" or path.stem.startswith("torch_"):
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
