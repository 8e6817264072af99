"""The beginning of a fit, on the host and with some of the samples: enough to compare what could be done with data."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.algorithm.initializers import GivenStart, MedianStart, initial_factors
from robustnmf.algorithm.parts import Parts
from robustnmf.algorithm.staged import Staged
from robustnmf.data.blocks import Data, Observations
from robustnmf.data.units import unit_of
from robustnmf.engines import Engine, NumPyEngine
from robustnmf.engines.lazy import chosen_rows
from robustnmf.model.scales import in_unit
from robustnmf.utils.arrays import Blocks, subsample, to_host

Matrix = NDArray[Any]

# Entries, of an even choice of the samples, that are tried; but at least so many samples per component.
TRIAL_ENTRIES, SAMPLES_PER_COMPONENT = 2**17, 10


def some_samples(data: Data, rank: int, engine: Engine) -> Observations:
    """Return some of the samples, evenly spread, on the host."""
    X = some_rows(data.X, rank, engine).astype(np.float64)
    return Observations(X, None if data.M is None else some_rows(data.M, rank, engine).astype(np.float64))


def some_rows(blocks: Blocks, rank: int, engine: Engine) -> Matrix:
    """Return the rows of these samples, of blocks that have a column for each feature, on the host."""
    lengths = [len(block) for block in blocks]
    wanted = max(TRIAL_ENTRIES / blocks[0].shape[1], SAMPLES_PER_COMPONENT * rank)
    chosen = subsample(lengths, max(1, int(sum(lengths) / wanted)))
    rows: Matrix = to_host(engine.join(engine.map(chosen_rows, blocks, chosen)))
    return rows


def trial_predictions(X: Matrix, M: Matrix | None, by: Matrix, rank: int, parts: Parts, max_iter: int) -> Matrix:
    """Return the predictions of all entries after the initial stages, (n, m).

    Parameters
    ----------
    X, M : (n, m), data and weights of some samples; M may be None.
    by : (m,), what features are divided by for the fit.
    """
    assert isinstance(parts.algorithm, Staged)
    init = MedianStart() if isinstance(parts.init, GivenStart) else parts.init  # a start is that of all samples
    with NumPyEngine().running() as engine:
        data = Data.of(Observations(X, M), engine)
        unit = unit_of(data.X, by, engine)
        data = data.in_unit(unit, by, np.float64, engine)
        W, Ht = initial_factors(init, data, rank, np.random.default_rng(0), engine)
        method = replace(parts.method, scale=in_unit(parts.scale, unit, W.dtype))
        floor = float(np.finfo(W.dtype).eps)
        W, Ht = parts.algorithm.opening(data.X, data.M, W, Ht, method, engine, max_iter=max_iter, scale_floor=floor)
        return np.asarray(np.vstack(Ht) @ W.T * (by * unit))
