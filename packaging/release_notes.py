"""Print what CHANGELOG.md says of a version: ``python packaging/release_notes.py 0.2.0``."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def notes(text: str, version: str) -> str:
    """Return the section of a version without its title; raise if there is none."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        if title.split()[0].strip("[]") == version:
            return body.strip()
    raise SystemExit(f"{CHANGELOG.name} has no section for {version}. Rename 'Unreleased' before the tag.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(notes(CHANGELOG.read_text(encoding="utf-8"), sys.argv[1]))
