"""The documentation tells the truth: examples and code on its pages run, and name what there is."""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

import browser
import robustnmf
from robustnmf.errors import DataQualityWarning

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HTML = DOCS / "_build" / "html"
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
# Take more than three seconds on one core.
SLOW = {
    *("plot_cells", "plot_faces", "plot_hyperspectral", "plot_rank", "plot_streaming", "plot_text"),
    *("plot_video_background", "plot_walkthrough_air", "plot_walkthrough_movie", "plot_walkthrough_spectra"),
}
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "guide").glob("*.md"))]
SLOW_PAGES = {"air", "cells", "choosing", "dask", "ecosystem", "index", "rank", "text"}
# Packages of the docs extra that data comes with.
DATA = {"plot_cells": "scanpy", "cells": "scanpy", "plot_text": "lda", "text": "lda"}
REFERENCE = (DOCS / "api.rst").read_text(encoding="utf-8")
# What modules of the reference share with others of the package, and nobody else needs.
INTERNAL = {
    "robustnmf.algorithm.halfquadratic": {
        *("LargeSquares", "apply_rules", "comparable", "extrapolate", "magnitudes_of", "penalty_value", "take_start"),
    },
    "robustnmf.errors": {"uncertainty_error"},
    "robustnmf.algorithm.initializers": {
        *("bright_features", "credible", "initial_factors", "middle_level", "with_known"),
    },
    "robustnmf.engines": {"engine_for"},
    "robustnmf.methods": {"resolve"},
    "robustnmf.solvers": {"SOLVERS", "solvers_that"},
    "robustnmf.model.losses": {"squared_ratio"},
    "robustnmf.model.mixture": {
        *("densest_part", "fit_mixture", "fit_width", "median", "mixture_of_width", "quantile", "sample"),
        "typical_positive",
    },
    "robustnmf.model.noise": {"Sampled", "estimate"},
    "robustnmf.model.scales": {"in_unit", "reads", "weighted_sum"},
    "robustnmf.plots": {"check_fitted", "check_image_shape", "check_names"},
    "robustnmf.paper.reproduce": {
        *("Outcome", "Skipped", "build_report", "current", "plan", "protocol", "select", "why_not"),
    },
}

# Modules of which nothing is public, and folders that have no public module.
INTERNAL_MODULES = {"_moved", "baselines", "cli", "data", "estimators", "kernels", "utils", "version"}


def marked(items, slow, name=lambda item: item.stem):
    return [pytest.param(i, id=name(i), marks=[pytest.mark.slow] if name(i) in slow else []) for i in items]


def documented():
    """Return the names in the reference, by module."""
    names, module = {}, None
    for line in REFERENCE.splitlines():
        if found := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = found[1]
        elif module and re.fullmatch(r"   [A-Za-z]\w*", line):
            names.setdefault(module, set()).add(line.strip())
    return names


# --- Examples ---------------------------------------------------------------------------------------------------------


def run_example(path, folder, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "ROBUSTNMF_DATA"}
    environment |= {"MPLBACKEND": "Agg", **variables}
    command = [sys.executable, "-W", "error::UserWarning", str(path)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", marked(EXAMPLES, SLOW))
def test_example_runs_and_says_what_it_found(path, tmp_path):
    if path.stem in DATA:
        pytest.importorskip(DATA[path.stem])
    assert run_example(path, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"), [("plot_hyperspectral", "samson.npz"), ("plot_video_background", "video_hall.npz")]
)
def test_example_takes_the_data_from_a_folder(name, file, tmp_path):
    data = Path(os.environ.get("ROBUSTNMF_DATA", ROOT.parent / "shared" / "data"))
    if not (data / file).is_file():
        pytest.skip(f"no {file}: say where it is with ROBUSTNMF_DATA=…")
    assert file in run_example(ROOT / "examples" / f"{name}.py", tmp_path, ROBUSTNMF_DATA=str(data))


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem in DATA], ids=lambda path: path.stem)
def test_example_names_the_package_that_it_lacks(path, tmp_path):
    package = DATA[path.stem]
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError({package!r})")
    command = [sys.executable, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "MPLBACKEND": "Agg"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert f"pip install {package}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_uses_public_names_only(path):
    public = documented()
    public["robustnmf"] |= {*robustnmf.__all__, *(name.partition(".")[2] for name in public if name.count(".") == 1)}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("robustnmf"):
            assert {alias.name for alias in node.names} <= public[node.module]
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("robustnmf.") for alias in node.names)
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_has_a_title(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    title, line, gap, *_ = ast.get_docstring(ast.parse(text)).splitlines()
    assert line == "=" * len(title)
    assert gap == ""


# --- Code on pages ----------------------------------------------------------------------------------------------------


def blocks(path, language="python"):
    """Return the code of a page, each with the output that is shown below it, or None.

    Blocks of the language "py" need packages that no extra has, so that pages can be read without them.
    """
    found = re.findall(
        rf"^( *)```{language}\n(.*?)^\1```\n(?:\s*^\1```text\n(.*?)^\1```)?",
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return [(inspect.cleandoc("\n" + code), inspect.cleandoc("\n" + shown)) for _, code, shown in found]


def run_blocks(path, folder, monkeypatch, language="python"):
    """Run the code of a page in a folder, one block after the other, and compare what they print."""
    monkeypatch.chdir(folder)
    namespace = {}
    for code, shown in blocks(path, language):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            for category in (DataQualityWarning, ConvergenceWarning):
                warnings.simplefilter("error", category)
            exec(compile(code, str(path), "exec"), namespace)
        if shown:
            wanted, options = shown + "\n", doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
            assert doctest.OutputChecker().check_output(wanted, printed.getvalue(), options), printed.getvalue()
    plt.close("all")


@pytest.mark.parametrize("path", marked([page for page in PAGES if blocks(page)], SLOW_PAGES))
def test_code_on_a_page_runs_and_prints_what_is_shown(path, tmp_path, monkeypatch):
    if path.stem in DATA:
        pytest.importorskip(DATA[path.stem])
    run_blocks(path, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("path", [page for page in PAGES if blocks(page, "py")], ids=lambda path: path.stem)
def test_code_for_other_packages_runs_where_they_are_installed(path, tmp_path, monkeypatch):
    """All of a page, in order: what is for other packages uses what comes before it."""
    for code, _ in blocks(path, "py"):
        for node in ast.walk(ast.parse(code)):
            for name in imported_names(node):
                pytest.importorskip(name)
    run_blocks(path, tmp_path, monkeypatch, "py(?:thon)?")


def imported_names(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) else []


def test_every_guide_has_code_unless_it_is_about_something_else():
    without = {page.stem for page in DOCS.glob("guide/*.md") if not blocks(page)}
    assert without == {"index", "command_line"}


# --- What pages name --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", sorted(documented()))
def test_reference_lists_all_public_names_of_a_module(module):
    imported = importlib.import_module(module)
    names = {
        name
        for name, value in vars(imported).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module
    }
    names = set(getattr(imported, "__all__", names)) - {"METHODS", "__version__", "datasets", "corruptions"}
    names = {name for name in names if not name.startswith("_")} - INTERNAL.get(module, set())
    elsewhere = {
        name
        for name in names
        for other, listed in documented().items()
        if name in listed and getattr(importlib.import_module(other), name) is getattr(imported, name)
    }
    assert names - elsewhere <= documented()[module]
    assert all(hasattr(imported, name) for name in documented()[module])


def test_every_module_is_in_the_reference_or_internal():
    root = Path(robustnmf.__file__).parent
    modules = {p.relative_to(root).with_suffix("").parts[0] for p in root.rglob("*.py")} - {"__init__"}
    assert modules - {name.split(".")[1] for name in documented() if "." in name} == INTERNAL_MODULES


def test_the_page_on_methods_lists_all_of_them():
    text = (DOCS / "guide" / "methods.md").read_text(encoding="utf-8")
    table = text.partition("## The models")[2].partition("```")[0]
    assert set(re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)) == set(robustnmf.METHODS)


def test_the_page_on_scikit_learn_lists_all_parameters_of_both():
    text = (DOCS / "scikit_learn.md").read_text(encoding="utf-8").partition("## Parameters")[2].partition("## Data")[0]
    named = set(re.findall(r"`(\w+)`", text))
    theirs, ours = (set(inspect.signature(cls).parameters) for cls in (NMF, robustnmf.RobustNMF))
    assert theirs | ours <= named
    public = {name for name, value in vars(robustnmf.RobustNMF).items() if callable(value) and name[0] != "_"}
    assert {name for name in public if not name.endswith("_request")} <= named
    attributes = set(re.findall(r"^    (\w+_) :", robustnmf.RobustNMF.__doc__, flags=re.MULTILINE))
    assert len(attributes) > 12
    assert attributes <= named


def test_the_page_on_the_command_line_names_commands_and_options_that_exist():
    typer = pytest.importorskip("typer")
    from robustnmf.cli.app import app

    group = typer.main.get_command(app)
    commands = group.commands
    text = (DOCS / "guide" / "command_line.md").read_text(encoding="utf-8")
    assert set(commands) <= set(re.findall(r"robustnmf (\w+)", text))
    text += (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?<!-)robustnmf ([a-z]+)\b", text)) <= set(commands)
    options = {o for c in (group, *commands.values()) for p in c.params for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= options | {"--help"}


def test_the_page_on_reproduction_lists_all_items():
    from robustnmf.paper.reproduce import items

    text = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([^`]+)` \| (.*?) \|", text, flags=re.MULTILINE))
    assert listed == items()


@pytest.mark.parametrize("path", [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")], ids=str)
def test_links_to_files_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


# --- Pages in a browser -----------------------------------------------------------------------------------------------

SHOWN = ["index", "guide/rank", "theory", "api", "generated/robustnmf.RobustNMF", "auto_examples/plot_faces"]


@pytest.fixture(scope="module")
def chromium():
    if not (HTML / "index.html").is_file():
        pytest.skip("no pages: make docs")
    with browser.start() as running:
        yield running


@pytest.fixture
def show(chromium):
    pages = []

    def show(name, **options):
        pages.append(browser.show(chromium, HTML / f"{name}.html", **options))
        return pages[-1]

    yield show
    for page in pages:
        page.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_page_has_no_errors_loads_its_pictures_and_can_be_searched(show, name):
    page = show(name)
    assert browser.errors(page) == []
    assert page.evaluate("[...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src)") == []
    assert page.evaluate("document.querySelectorAll('input[type=search]').length") >= 1
    assert page.evaluate("document.querySelectorAll('h1').length") == 1


@pytest.mark.slow
def test_gallery_page_shows_its_figure(show):
    page = show("auto_examples/plot_faces")
    assert page.evaluate("document.querySelector('article img.sphx-glr-single-img').clientWidth") > 300


@pytest.mark.slow
def test_equations_are_drawn_without_a_network(show):
    page = show("theory")
    assert (
        page.evaluate("MathJax.startup.promise.then(() => document.querySelectorAll('mjx-container svg').length)") > 20
    )
    assert page.evaluate("document.querySelectorAll('mjx-merror, [data-mml-node=merror]').length") == 0
    outside = "performance.getEntriesByType('resource').map(r => r.name).filter(n => n.startsWith('http'))"
    assert page.evaluate(outside) == []
    assert browser.errors(page) == []


@pytest.mark.slow
def test_pages_are_dark_where_the_system_is(show):
    ground = "getComputedStyle(document.body).backgroundColor"
    light, dark = (show("index", dark=dark).evaluate(ground) for dark in (False, True))
    assert light == "rgb(255, 255, 255)"
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 150


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHOWN, "speed", "scikit_learn"])
def test_page_does_not_move_sideways_on_a_phone(show, name):
    page = show(name, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
