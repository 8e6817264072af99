"""Names, tables and counts in the documentation are those of the registries."""

import re
from pathlib import Path

import pytest

from robustnmf import METHODS, RobustNMF
from robustnmf.methods import INITIALIZERS, LOSSES, OUTLIERS, SCALES, SOLVERS, SPATIAL
from robustnmf.solvers import solvers_that

ROOT = Path(__file__).parent.parent
WORDS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")


def word(number):
    return WORDS[number - 10]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("README.md", f"{word(len(METHODS)).capitalize()} models"),
        ("docs/guide/methods.md", f"{word(len(METHODS)).capitalize()} models"),
        ("docs/index.md", f"{word(len(METHODS) - 1)} other models"),
    ],
)
def test_pages_count_the_models_right(page, sentence):
    assert sentence in (ROOT / page).read_text(encoding="utf-8")


def described(parameter):
    """Return what the help of `RobustNMF` says of a parameter."""
    text = RobustNMF.__doc__.partition(f"    {parameter} : ")[2]
    return re.split(r"^    \w", text, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("parameter", "registry"),
    [("loss", LOSSES), ("scale", SCALES), ("outliers", {**OUTLIERS, **SPATIAL})],
)
def test_help_names_all_that_can_be_chosen(parameter, registry):
    assert set(re.findall(r'"([a-z-]+)"', described(parameter))) - {"auto"} == set(registry)


@pytest.mark.parametrize(("parameter", "registry"), [("init", INITIALIZERS), ("solver", SOLVERS)])
def test_help_names_nothing_that_cannot_be_chosen(parameter, registry):
    assert set(re.findall(r'"([a-z-]+)"', described(parameter))) - {"auto"} <= set(registry)


@pytest.mark.parametrize(
    ("parameter", "registry"),
    [("loss", LOSSES), ("init", INITIALIZERS), ("scale", SCALES), ("outliers", OUTLIERS), ("solver", SOLVERS)],
)
def test_errors_name_all_that_can_be_chosen(parameter, registry):
    with pytest.raises(ValueError, match=f"^{parameter} must be one of") as caught:
        RobustNMF(2, **{parameter: "nothing"}).fit([[1.0, 2.0], [3.0, 4.0]])
    assert {repr(name) for name in registry} <= set(re.findall(r"'[a-z-]+'", str(caught.value)))


@pytest.mark.parametrize("ability", ["solves_least_squares", "keeps_fixed", "works_by_sums"])
def test_solvers_with_an_ability_are_named_by_their_flags(ability):
    named = set(re.findall(r"'([a-z-]+)'", solvers_that(ability)))
    assert named == {name for name, solver in SOLVERS.items() if getattr(solver, ability)}


def test_no_message_lists_solvers_by_hand():
    for path in (ROOT / "src").rglob("*.py"):
        text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"'hals'.{0,20}'nesterov'", text, flags=re.DOTALL), path
