"""``python requirements/lock.py`` writes ``ci.lock``: the versions, installed here, of all that the tests need.

Versions and no hashes: one lock serves Python 3.11 to 3.13 and every platform, whose wheels differ. ``--check`` (``make
audit``) compares instead: whether the lock has everything that ``.[dev]`` needs, in the versions that are installed,
under a licence that is known. It knows nothing of vulnerabilities; that takes a database of them, and so the network:
``pip-audit -r requirements/ci.lock``.
"""

import argparse
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "ci.lock"
# Words of licences that leave users free to use this package as its own licence says.
PERMISSIVE = (
    "MIT",
    "BSD",
    "APACHE",
    "PSF",
    "PYTHON SOFTWARE",
    "ISC",
    "HPND",
    "MPL",
    "MOZILLA",
    "ZLIB",
    "UNLICENSE",
    "CC0",
)
# What only some builds of Torch bring along, for a GPU, under licences of their maker.
OF_A_BUILD = ("nvidia-", "cuda-")


def declared() -> list[Requirement]:
    """Return what the package and its tests ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]]


def needed() -> dict[str, str]:
    """Return the version of everything that is needed, directly or not, by name."""
    found: dict[str, str] = {}
    waiting = [(requirement.name, frozenset(requirement.extras)) for requirement in declared()]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (canonicalize_name(name), extras) in seen or name.startswith(OF_A_BUILD):
            continue
        seen.add((canonicalize_name(name), extras))
        found[canonicalize_name(name)] = metadata.version(name)
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in extras | {""}):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return dict(sorted(found.items()))


def locked() -> dict[str, str]:
    """Return the versions in the lock by name."""
    lines = (line.split("#")[0].strip() for line in LOCK.read_text(encoding="utf-8").splitlines())
    return dict(line.split("==") for line in lines if line)


def licence(name: str) -> str:
    """Return what a package says of its licence."""
    about = metadata.metadata(name)
    classifiers = [c.split("::")[-1] for c in about.get_all("Classifier") or [] if c.startswith("License ::")]
    text = about.get("License-Expression") or " ".join(classifiers) or (about.get("License") or "").split("\n")[0]
    return " ".join(text.split())


def problems() -> list[str]:
    """Return what is wrong with the lock, or with what is installed."""
    lock, wrong = locked(), []
    for name, version in needed().items():
        if lock.get(name) != version:
            wrong.append(f"{name} {version} is installed; the lock has {lock.get(name, 'none')}")
        if not any(word in licence(name).upper() for word in PERMISSIVE):
            wrong.append(f"{name} has the licence {licence(name)!r}")
    return wrong


def main() -> None:
    """Write the lock, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the lock does not fit")
    if parser.parse_args().check:
        wrong = problems()
        print(
            "\n".join(wrong) or f"{len(locked())} packages as locked; licences known. Vulnerabilities were not checked."
        )
        sys.exit(bool(wrong))
    lines = ["# Made by requirements/lock.py: what the tests were run with. A constraints file for pip."]
    LOCK.write_text("\n".join([*lines, *(f"{n}=={v}" for n, v in needed().items()), ""]), encoding="utf-8")
    print(f"{len(locked())} packages: {LOCK.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
