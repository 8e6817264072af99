"""Which entries check a step: whether the objective rises along it is told by some of many."""

from collections.abc import Sequence
from math import ceil

from robustnmf.utils.arrays import subsample

# A step of the basis is checked on all samples, or on a regular subsample of so many.
MOST_ROWS = 256
# If those have weights in fewer of their entries, all samples check it.
FEWEST_SEEN = 0.25
# A step of a code is checked on all entries of its sample if there are no more than so many, else on fewer, in runs.
ALL_FEATURES, SOME_FEATURES, RUN = 1024, 512, 16


def checked_rows(lengths: Sequence[int], share: float = 1.0) -> list[slice]:
    """Return the rows that check a step of the basis, in blocks of these lengths.

    If no more than a small share of their entries has weights, they are as many more.
    """
    some = ceil(sum(lengths) / MOST_ROWS)
    return subsample(lengths, some if share >= FEWEST_SEEN else max(1, int(some * share)))


def checked_features(p: int) -> tuple[int, int, int]:
    """Return which of p entries of a sample check a step of its code: (run, skip, count).

    All, or in very wide data `count` of them, in `run` consecutive ones of every `skip`, which memory gives up
    together. The count is a multiple of `run`, rounded up, so that the last entries are checked too.
    """
    if p <= ALL_FEATURES:
        return p, p, p
    skip = RUN * ceil(p / SOME_FEATURES)
    return RUN, skip, RUN * (1 + (p - RUN) // skip)
