"""Which entries judge a step: whether the objective rises along it is told by some of many."""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

# A step of the basis is judged by all samples, or by so many that are evenly spread.
MOST_JUDGES = 256
# A step of a code is judged by all entries of its sample if there are no more than so many, else by fewer, in runs.
ALL_JUDGE, SOME_JUDGE, RUN = 1024, 512, 16


def judging_rows(lengths: Sequence[int]) -> list[slice]:
    """Return which rows judge a step of the basis, in blocks of these lengths."""
    every = -(-sum(lengths) // MOST_JUDGES)
    return [slice(-first % every, None, every) for first in accumulate([0, *lengths[:-1]])]


def judging_features(p: int) -> tuple[int, int, int]:
    """Return by which of p entries of a sample a step of its code is judged: (run, skip, count).

    By all, or in very wide data by `count` in `run` consecutive ones of every `skip`, which memory gives up together:
    a multiple of `run`, rounded up, so that the last entries have their judges too.
    """
    if p <= ALL_JUDGE:
        return p, p, p
    skip = RUN * ceil(p / SOME_JUDGE)
    return RUN, skip, RUN * (1 + (p - RUN) // skip)
