"""The contract of engines: blocks, reductions, threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from conftest import make_data
from robustnmf import RobustNMF
from robustnmf.engines import NumPyEngine, numpy_engine

X = make_data().X


@pytest.mark.parametrize("block_entries", [1, 20, 50, 10**6])
class TestBlocks:
    def test_join_undoes_split(self, block_entries):
        engine = NumPyEngine(block_entries=block_entries)
        np.testing.assert_array_equal(engine.join(engine.split(X)), X)

    def test_blocks_are_views_of_bounded_size(self, block_entries):
        engine = NumPyEngine(block_entries=block_entries)
        blocks = engine.split(X)
        assert all(np.shares_memory(block, X) for block in blocks)
        assert all(len(block) == 1 or block.size <= block_entries + X.shape[1] for block in blocks)

    def test_other_arrays_are_cut_alike(self, block_entries):
        engine = NumPyEngine(block_entries=block_entries)
        blocks = engine.split(X)
        codes = engine.split(np.arange(len(X)), like=blocks)
        assert [len(c) for c in codes] == [len(b) for b in blocks]
        np.testing.assert_array_equal(engine.join(codes), np.arange(len(X)))

    def test_map_and_sum_reach_every_block_once(self, block_entries):
        engine = NumPyEngine(block_entries=block_entries)
        blocks = engine.split(X)
        doubled, rows = engine.map(lambda x, none, *, by, xp: (x * by, xp.sum(x, axis=1)), blocks, None, by=2)
        np.testing.assert_array_equal(engine.join(doubled), 2 * X)
        np.testing.assert_allclose(engine.join(rows), X.sum(axis=1))
        total, count = engine.sum(lambda x, *, xp: (x.sum(axis=0), x.shape[0]), blocks)
        np.testing.assert_allclose(total, X.sum(axis=0))
        assert count == len(X)

    def test_map_features_sees_features_in_rows(self, block_entries):
        engine = NumPyEngine(block_entries=block_entries)
        blocks, M = engine.split(X), engine.split(X + 1)
        offset = np.arange(X.shape[1])[:, None]
        result = engine.map_features(lambda v, m, o, none, *, xp: v + m + o, blocks, M, offset, None)
        np.testing.assert_allclose(result, X.T + (X + 1).T + offset)


def fit(**options):
    return RobustNMF(3, random_state=0, **options).fit(X)


def test_the_number_of_threads_does_not_change_a_bit(monkeypatch):
    monkeypatch.setattr(numpy_engine, "BLOCK_ENTRIES", 100)
    results = []
    for n_threads in (1, 2, 5):
        monkeypatch.setattr(numpy_engine, "_default_threads", lambda n=n_threads: n)
        with threadpool_limits(limits=n_threads, user_api="blas"):
            results.append(fit())
    for other in results[1:]:
        np.testing.assert_array_equal(other.components_, results[0].components_)
        np.testing.assert_array_equal(other.weights_, results[0].weights_)


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_overlapping_fits_leave_the_threads_of_blas_as_they_were():
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        with ThreadPoolExecutor(8) as pool:
            models = list(pool.map(lambda _: fit(), range(24)))
        assert blas_threads() == before
    for model in models[1:]:
        np.testing.assert_array_equal(model.components_, models[0].components_)


def test_an_error_in_a_block_ends_the_fit_and_restores_blas():
    def broken(magnitudes, M, previous, engine):
        raise RuntimeError("broken rule")

    before = blas_threads()
    with pytest.raises(RuntimeError, match="broken rule"):
        fit(scale=broken)
    assert blas_threads() == before
