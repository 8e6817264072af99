"""Random generators for what scikit-learn accepts as `random_state`."""

from typing import Any

import numpy as np
from sklearn.utils import check_random_state


def generator(random_state: Any) -> np.random.Generator:
    """Return a generator for what scikit-learn accepts as random_state, or the generator given."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(check_random_state(random_state).randint(2**31))


def seeds(rng: np.random.Generator, number: int) -> list[int]:
    """Return seeds, drawn before any work is shared out: who does it does not matter."""
    return [int(seed) for seed in rng.integers(2**31, size=number)]
