"""What the package depends on is declared, locked and permitted."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "requirements"))

import lock

DECLARED = lock.declared()


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_lock_has_a_version_that_is_declared(requirement):
    """`requirements/lock.py` writes it anew when a dependency is added."""
    version = lock.locked().get(lock.canonicalize_name(requirement.name))
    assert version is not None and requirement.specifier.contains(version)


def test_everything_has_a_licence_that_permits_this_one():
    unknown = [name for name in lock.needed() if not any(w in lock.licence(name).upper() for w in lock.PERMISSIVE)]
    assert unknown == []


def test_security_policy_says_how_to_report():
    text = (lock.ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Reporting" in text and "docs/promises.md" in text
