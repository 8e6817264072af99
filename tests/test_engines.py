"""The contract of engines: blocks, reductions, threads."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from threading import get_ident

import numpy as np
import pytest
from joblib import Parallel, delayed
from numba import get_num_threads
from threadpoolctl import threadpool_info, threadpool_limits

from conftest import make_data
from robustnmf import RobustNMF
from robustnmf.engines import NumPyEngine, numpy_engine
from robustnmf.engines.protocol import block_function

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


@pytest.mark.slow
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


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_map_and_sum_keeps_the_first_and_adds_up_the_second(n_threads):
    engine = NumPyEngine(n_threads=n_threads, block_entries=20)
    with engine.running():
        (doubled, rows), (total, count) = engine.map_and_sum(
            lambda x, none, *, by, xp: ((x * by, x[:, 0]), (x.sum(axis=0), len(x))), engine.split(X), None, by=2
        )
    np.testing.assert_array_equal(engine.join(doubled), 2 * X)
    np.testing.assert_array_equal(engine.join(rows), X[:, 0])
    np.testing.assert_allclose(total, X.sum(axis=0))
    assert count == len(X)


@pytest.mark.parametrize("n_blocks", [1, 31, 32, 33, 100])
def test_sums_do_not_depend_on_the_number_of_threads(n_blocks):
    data = np.random.default_rng(0).random((200, 3))
    totals = []
    for n_threads in (1, 4):
        engine = NumPyEngine(n_threads=n_threads)
        with engine.running():
            totals.append(engine.sum(lambda x, *, xp: x.sum(axis=0), np.array_split(data, n_blocks)))
    np.testing.assert_array_equal(*totals)
    np.testing.assert_allclose(totals[0], data.sum(axis=0))


def test_error_in_any_block_is_raised_and_ends_the_work():
    engine, begun = NumPyEngine(n_threads=3), []

    def fail(x, *, xp):
        begun.append(x)
        raise RuntimeError("broken block")

    with engine.running(), pytest.raises(RuntimeError, match="broken block"):
        engine.map(fail, [np.ones(1)] * 50)
    assert len(begun) <= 3


def test_light_functions_stay_in_the_calling_thread():
    engine = NumPyEngine(n_threads=3)
    here = block_function(light=True)(lambda x, *, xp: get_ident())
    with engine.running():
        assert set(engine.map(here, [X] * 20)) == {get_ident()}


@pytest.mark.parametrize("limit", [1, 2])
def test_threads_follow_threadpoolctl(limit):
    with threadpool_limits(limits=limit, user_api="blas"):
        assert NumPyEngine().n_threads == min(limit, get_num_threads())


def test_fits_side_by_side_have_one_thread_each():
    with threadpool_limits(limits=2, user_api="blas"), NumPyEngine().running():
        assert NumPyEngine().n_threads == 1


def components_of(seed):
    return RobustNMF(3, random_state=seed).fit(X).components_


@pytest.mark.skipif("fork" not in get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fits_in_forked_processes_are_those_of_this_one():
    expected = [components_of(seed) for seed in range(4)]
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        for found, wanted in zip(pool.map(components_of, range(4)), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_fits_in_workers_of_joblib_are_those_of_this_process():
    found = Parallel(n_jobs=2)(delayed(components_of)(seed) for seed in range(4))
    for seed, components in enumerate(found):
        np.testing.assert_array_equal(components, components_of(seed))


@pytest.mark.parametrize("weighted", [False, True])
def test_read_only_data_can_be_fitted(weighted):
    """As joblib hands large arrays to its workers; with entries between 1 and 2 the data is not even copied."""
    rng = np.random.default_rng(0)
    X = 1 + rng.random((60, 30))
    X.setflags(write=False)
    weights = np.ones_like(X)
    weights.setflags(write=False)
    fits = [
        RobustNMF(2, random_state=0).fit(data, weights=its_weights if weighted else None)
        for data, its_weights in ((X, weights), (X.copy(), weights.copy()))
    ]
    np.testing.assert_array_equal(fits[0].components_, fits[1].components_)


@pytest.mark.parametrize("n_ranks", [1, 3, 30])
def test_order_statistics_are_those_of_sorted_rows(n_ranks):
    rng = np.random.default_rng(0)
    A, ranks = rng.random((40, 31)), rng.integers(n_ranks, size=40)
    A[rng.random(A.shape) < 0.3] = np.inf
    found = NumPyEngine().kernels.order_statistics(A, ranks)
    np.testing.assert_array_equal(found, np.sort(A, axis=1)[np.arange(40), ranks])
