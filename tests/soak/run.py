"""``python tests/soak/run.py`` (``make soak``): fits of random configurations, for a bounded time.

Each configuration is a function of one integer: data, weights, parameters, engine and what is done with the model. It
must end in a sound result or a clear refusal, keep what is promised (`invariants.py`), leave the process as it was, and
take no more than a minute. ``--replay SEED`` runs one of them again, with all that it draws and the traceback.
"""

import argparse
import faulthandler
import re
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from time import monotonic
from typing import Any

from drawing import Configuration, configuration
from invariants import examine
from laboratory import Refusal, close_cluster, cluster
from surroundings import BrokenError, Used

# Seconds after which a configuration counts as slow, and after which the process ends: code that is not Python's cannot
# be interrupted.
PATIENCE, HANG = 60.0, 600.0
# Configurations until all is compiled and every pool has its size, and between looks at what the process holds.
WARM_UP, EVERY = 2000, 500
# Seeds of one run are neighbours, those of different runs far apart.
APART = 10_000_000


class Slow(BaseException):
    """Not an error that code could catch by chance."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Slow` after some time; end the process much later."""

    def ring(number: int, frame: Any) -> None:
        raise Slow

    before = signal.signal(signal.SIGALRM, ring)
    faulthandler.dump_traceback_later(HANG, exit=True, file=sys.__stderr__)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def attempt(case: Configuration, patience: float | None = None) -> Refusal | None:
    """Examine a configuration; raise `BrokenError` for whatever is wrong with it."""
    patience = PATIENCE if patience is None else patience
    try:
        with limited(patience):
            return examine(case)
    except Slow as slow:
        raise BrokenError("slow", f"more than {patience:g} s") from slow
    except Exception as error:
        if isinstance(error, BrokenError):
            raise
        raise BrokenError("the soak test itself", f"{type(error).__name__}: {error}") from error


# Numbers, but for those of lines, and what is quoted or in brackets.
VARIABLE = re.compile(r"(?<!py:)(?<!py:\d)(?<!py:\d\d)[-+]?\d[\d.]*(e[-+]?\d+)?|'[^']*'|\[[^]]*\]|\([^)]*\)")


def kind_of(message: str) -> str:
    """Return a message without its numbers and names, to be counted."""
    return VARIABLE.sub("#", message)[:110]


@dataclass
class Tally:
    """What came of the configurations."""

    tried: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)
    """The first seed of each kind of failure or refusal."""
    refusals: Counter[str] = field(default_factory=Counter)
    of_ordinary: Counter[str] = field(default_factory=Counter)

    def fail(self, kind: str, seed: int) -> None:
        self.failures[kind] += 1
        self.first.setdefault(kind, seed)

    def refuse(self, case: Configuration, found: Refusal) -> None:
        kind = f"{found.kind}: {kind_of(found.message)}"
        self.refusals[kind] += 1
        self.first.setdefault(kind, case.seed)
        if case.is_ordinary and found.kind != "IncompatibleError":
            self.of_ordinary[kind] += 1
            self.first[kind] = case.seed

    def __str__(self) -> str:
        n_failures, n_refusals = self.failures.total(), self.refusals.total()
        lines = [f"{self.tried} configurations, {n_refusals} refused, {n_failures} failures"]
        for title, counts in (
            ("failures", self.failures),
            ("refusals", self.refusals),
            ("refusals of ordinary data", self.of_ordinary),
        ):
            lines += [f"\n{title}:"] if counts else []
            lines += [f"{n:>7}  {kind}{self._example(kind)}" for kind, n in counts.most_common()]
        return "\n".join(lines)

    def _example(self, kind: str) -> str:
        return f"  [seed {self.first[kind]}]" if kind in self.first else ""


def try_one(seed: int, tally: Tally, say: Callable[[str], None]) -> None:
    """Try one configuration and note what came of it."""
    case = configuration(seed)
    tally.tried += 1
    try:
        found = attempt(case)
    except BrokenError as broken:
        tally.fail(f"{broken.invariant}: {kind_of(broken.detail)}", seed)
        say(f"FAILURE seed {seed} | {broken} | {case}")
    else:
        if found is not None:
            tally.refuse(case, found)


def replay(seed: int) -> int:
    """Run one configuration, and say all about it."""
    case = configuration(seed)
    print(f"seed {seed}: {case}")
    try:
        found = attempt(case)
    except BrokenError as broken:
        traceback.print_exc(file=sys.stdout)
        print(f"FAILURE seed {seed} | {broken}")
        return 1
    print("sound" if found is None else f"refused, {found.kind}: {found.message}")
    return 0


def soak(seeds: Iterator[int], seconds: float, say: Callable[[str], None] = print) -> Tally:
    """Try configurations until the time is over, or the seeds are."""
    tally, begin, before = Tally(), monotonic(), None
    for seed in seeds:
        if monotonic() - begin > seconds:
            break
        try_one(seed, tally, say)
        if tally.tried % EVERY == 0:
            close_cluster()
            used = Used.now()
            rate = tally.tried / (monotonic() - begin)
            n_failures = tally.failures.total()
            say(f"{tally.tried} tried, {rate:.1f} per second, {n_failures} failures; {used}; next {seed + 1}")
            if before is not None and used.grown_since(before):
                tally.fail("flat: the process holds more than it did", seed)
                say(f"FAILURE seed {seed} | flat: {before} after the warm-up, {used} now")
            if before is None and tally.tried >= WARM_UP:
                before = used
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="time for all configurations together")
    parser.add_argument("--configurations", type=int, help="how many, if the time suffices")
    parser.add_argument("--seed", type=int, default=0, help="which run: another number is other configurations")
    parser.add_argument("--start", type=int, default=0, help="configurations of the run to leave out")
    parser.add_argument("--replay", type=int, metavar="SEED", help="only this configuration, as a failure named it")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay)
    first = options.seed * APART + options.start
    seeds = count(first) if options.configurations is None else iter(range(first, first + options.configurations))
    if find_spec("distributed"):
        cluster()  # what it imports is part of the warm-up
    tally = soak(seeds, options.seconds, lambda line: print(line, flush=True))
    print(f"\n{tally}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
