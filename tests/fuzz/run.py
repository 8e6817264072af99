"""``python tests/fuzz/run.py`` (``make fuzz``): spoil files of every kind, at random, for a bounded time.

A reader may return or raise the errors it documents. Anything else is a failure: another error, an act that
`guard.py` forbids, more memory than allowed, or a hang. The file that failed is kept in ``fuzz-failures``.
"""

import argparse
import faulthandler
import sys
from itertools import cycle
from pathlib import Path
from time import monotonic
from typing import Any

from guard import guarded
from hypothesis import HealthCheck, Phase, given, seed, settings
from targets import MOST_BYTES, Content, Target, everything

# What a reader and its libraries may take beside the values.
BESIDE = 2**26
# Seconds after which one file counts as a hang.
PATIENCE = 60
FAILURES = Path("fuzz-failures")


def write(folder: Path, name: str, content: Content) -> Path:
    """Write a file, or the files of a folder."""
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
        return path
    for inner, part in content.items():
        place = path / inner.replace("\0", "0")
        if place.resolve().is_relative_to(folder):  # a folder cannot hold a file outside of itself
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(part)
    return path


def attempt(target: Target, content: Content) -> bool:
    """Read a file; return whether it was accepted."""
    with guarded(MOST_BYTES * 4 + BESIDE) as (folder, watching):
        path = write(folder, target.name, content)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            with watching:
                target.read(path)
        except target.errors as error:
            assert str(error)
            return False
        finally:
            faulthandler.cancel_dump_traceback_later()
    return True


def fuzz(target: Target, n_examples: int, number: int | None) -> tuple[int, int]:
    """Try some files, those of a seed or the same in every run; return how many were tried and accepted."""
    counts = [0, 0]

    def holds(content: Any) -> None:
        counts[0] += 1
        try:
            counts[1] += attempt(target, content)
        except BaseException:  # the last that is kept is the smallest
            FAILURES.mkdir(exist_ok=True)
            write(FAILURES.resolve(), target.name, content)
            raise

    test = given(content=target.contents)(holds)
    phases = (Phase.generate, Phase.shrink)
    checks = list(HealthCheck)
    options = {"deadline": None, "database": None, "phases": phases, "suppress_health_check": checks}
    if number is not None:
        test = seed(number)(test)
    settings(max_examples=n_examples, derandomize=number is None, **options)(test)()
    return counts[0], counts[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="time for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--only", help="targets whose names contain this")
    options = parser.parse_args()
    targets = {name: t for name, t in everything().items() if options.only is None or options.only in name}
    tried, end, number = {name: [0, 0] for name in targets}, monotonic() + options.seconds, options.seed
    for name in cycle(targets):
        if monotonic() > end:
            break
        number += 1
        try:
            counts = fuzz(targets[name], 50, number)
        except BaseException:
            print(f"{name}: failed with seed {number}; run again with --only {name!r} --seed {number - 1}", flush=True)
            raise
        tried[name] = [a + b for a, b in zip(tried[name], counts, strict=True)]
    for name, (files, accepted) in tried.items():
        print(f"{name:<24}{files:>8} files, {accepted:>8} accepted")
    print(f"{'all':<24}{sum(files for files, _ in tried.values()):>8} files")


if __name__ == "__main__":
    sys.exit(main())
