"""What the package depends on is declared, locked and permitted."""

import re
import runpy
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
LINES = (ROOT / "requirements" / "ci.lock").read_text(encoding="utf-8").splitlines()
LOCKED = [Requirement(line) for line in LINES if not line.startswith("#")]
# Words of licences that leave users free to use this package as its own licence says.
PERMISSIVE = r"\b(MIT|BSD|Apache|PSF|Python Software|ISC|HPND|MPL|Mozilla|Zlib|Unlicense|CC0)\b"
# What only some builds of Torch bring along, for a GPU, under licences of their maker.
OF_A_BUILD = ("nvidia-", "cuda-")


@pytest.mark.parametrize("text", DECLARED)
def test_every_locked_version_is_one_that_is_declared(text):
    """`make lock` writes the lock anew when a dependency is added."""
    declared = Requirement(text)
    locked = [one for one in LOCKED if one.name == canonicalize_name(declared.name)]
    versions = [pin.version for one in locked for pin in one.specifier]
    assert versions and all(map(declared.specifier.contains, versions))


def test_lock_names_versions_and_no_place_to_get_them_from():
    assert [str(one) for one in LOCKED if one.url or [pin.operator for pin in one.specifier] != ["=="]] == []


def licence(name):
    about = metadata.metadata(name)
    classifiers = [c.split("::")[-1] for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    return about.get("License-Expression") or " ".join(classifiers) or (about.get("License") or "").split("\n")[0]


def test_everything_has_a_licence_that_permits_this_one():
    """Of what is locked, what is installed here is asked: the rest is for other platforms."""
    locked = {one.name for one in LOCKED if not one.name.startswith(OF_A_BUILD)}
    installed = {canonicalize_name(one.name) for one in metadata.distributions()} & locked
    licences = {name: licence(name) for name in installed}
    assert {name: text for name, text in licences.items() if not re.search(PERMISSIVE, text, re.IGNORECASE)} == {}
    assert len(licences) > len(DECLARED)


def test_security_policy_says_how_to_report():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Reporting" in text and "docs/promises.md" in text


def test_recipe_for_conda_asks_for_what_the_package_does():
    recipe = (ROOT / "packaging" / "conda-forge" / "recipe.yaml").read_text(encoding="utf-8")
    listed = re.findall(
        r"^    - ([a-z-]+) >=([\d.]+)$", recipe.partition("  run:")[2].partition("tests:")[0], re.MULTILINE
    )
    declared = [Requirement(text) for text in PROJECT["dependencies"]]
    assert dict(listed) == {one.name: next(iter(one.specifier)).version for one in declared}
    assert f'version: "{PROJECT["version"]}"' in recipe


def test_all_extras_bring_no_torch():
    (everything,) = map(Requirement, PROJECT["optional-dependencies"]["all"])
    chosen = [Requirement(text) for extra in everything.extras for text in PROJECT["optional-dependencies"][extra]]
    assert chosen and "torch" not in {one.name for one in chosen}


def test_release_notes_are_the_section_of_the_changelog():
    path = ROOT / "packaging" / "release_notes.py"
    namespace = runpy.run_path(str(path))
    text = "# Changelog\n\n## Unreleased\n- new\n\n## 0.2.0 (2027-01-01)\n- old\n\n## 0.1.0\n- first\n"
    assert namespace["notes"](text, "0.2.0") == "- old"
    with pytest.raises(SystemExit, match=r"no section for 0\.3\.0"):
        namespace["notes"](text, "0.3.0")


def test_version_is_the_same_wherever_it_is_written():
    version = PROJECT["version"]
    assert f'__version__ = "{version}"' in (ROOT / "src/robustnmf/version.py").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_workflows_test_the_oldest_and_newest_python_on_three_systems():
    text = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    minors = [c.split("::")[-1].strip() for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert f'python: ["{minors[0]}", "{minors[-1]}"]' in text and f">={minors[0]}" == PROJECT["requires-python"]
    assert "os: [ubuntu-latest, macos-latest, windows-latest]" in text
