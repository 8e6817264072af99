"""Which entries judge a step: whether the objective rises along it is told by some of many."""

# A step of the basis is judged by all samples, or by so many that are evenly spread.
MOST_JUDGES = 256
# A step of a code is judged by all entries of its sample if there are no more than so many, else by some, in runs.
ALL_JUDGE, SOME_JUDGE, RUN = 1024, 512, 16


def judging_samples(n: int) -> int:
    """Return by which of n samples a step of the basis is judged: every so many."""
    return -(-n // MOST_JUDGES)


def judging_features(p: int) -> tuple[int, int, int]:
    """Return by which of p entries of a sample a step of its code is judged: (run, skip, count).

    By all, or in very wide data by `count` in `run` consecutive ones of every `skip`, which memory gives up together.
    """
    if p <= ALL_JUDGE:
        return p, p, p
    skip = p // (SOME_JUDGE // RUN)
    return RUN, skip - skip % RUN, SOME_JUDGE
