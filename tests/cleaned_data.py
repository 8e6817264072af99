"""What cleaned data must be, for tests of all kinds of data."""

import numpy as np


def assert_cleaned(cleaned, codes, components):
    """Cleaned data is finite; it is missing where nothing was observed: there a factor is zero."""
    cleaned, codes = (np.asarray(values, dtype=float) for values in (cleaned, codes))
    assert not np.isinf(cleaned).any()
    may_be_missing = ~codes.any(axis=1)[:, None] | ~np.asarray(components).any(axis=0)
    assert not (np.isnan(cleaned) & ~may_be_missing).any()
