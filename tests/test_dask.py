"""A real cluster of processes: agreement with one machine, faults, checkpoints, what is moved and what is kept."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import has_gpu, make_data
from robustnmf import RobustNMF
from robustnmf.algorithm import checkpoint, stage
from robustnmf.algorithm.checkpoint import Checkpoint, CheckpointError
from robustnmf.data import units
from robustnmf.engines import DaskEngine, NumPyEngine, StreamingEngine
from robustnmf.engines.dask import engine as dask_engine
from robustnmf.engines.dask import files as dask_files
from robustnmf.engines.dask.workers import device_of
from robustnmf.engines.lazy import LazyBlock
from robustnmf.engines.protocol import block_function
from robustnmf.errors import IncompatibleError
from robustnmf.formats import rows_of
from robustnmf.methods import resolve

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")

pytestmark = pytest.mark.dask

N, M_FEATURES, RANK = 60, 25, 3
X = make_data(N, M_FEATURES, RANK).X
WEIGHTS = np.random.default_rng(1).integers(0, 4, X.shape) / 3.0
# L1 weights make rounding grow by a factor of ten in five iterations: of more, no two orders of summation agree.
ITERATIONS = 8
PLAIN = ["l2", "nenmf", "l1", "l21", "capped", "cim", "huber", "cauchy", "truncated-cauchy", "rndl", "rnmf-l1"]


@pytest.fixture(scope="module")
def client():
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    limit = "8GiB" if has_gpu() else "2GiB"  # CUDA itself takes 3 GiB, Torch and compiled kernels nearly 1
    with distributed.LocalCluster(memory_limit=limit, **options) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch):
    monkeypatch.setattr(dask_engine, "TASKS_PER_THREAD", 1)


def parts_of(method="truncated-cauchy", preset="default", **parts):
    auto = dict.fromkeys(("scale", "outliers", "solver", "schedule"), "auto")
    fixed = {"image_shape": None, "penalised": False, "fixed": False}
    return resolve(method, preset, **{"init": "random"} | auto | fixed | parts)


def fit(engine, V, M, parts, *, x=X, weights=None, max_iter=ITERATIONS, **options):
    """Run a method from a random start; with the same arguments the start is the same."""
    W, H = parts.init(x.T, None if weights is None else weights.T, RANK, np.random.default_rng(0))
    Ht = engine.split(np.ascontiguousarray(H.T), like=V)
    limits = {"max_iter": max_iter, "tol": 0.0, "scale_floor": 1e-16}
    result = parts.algorithm(V, M, W, Ht, parts.method, engine, **limits | options)
    return result, engine.join(result.state.Ht)


def fit_here(parts, x=X, weights=None, **options):
    with NumPyEngine().running() as engine:
        V = engine.split(x)
        M = None if weights is None else engine.split(weights, like=V)
        return fit(engine, V, M, parts, x=x, weights=weights, **options)


def on_disk(folder, array, name="X.npy"):
    np.save(folder / name, array)
    return rows_of(np.load(folder / name, mmap_mode="r"))


def fit_there(engine, parts, folder, x=X, weights=None, **options):
    with engine.running():
        V = engine.read(on_disk(folder, x))
        M = None if weights is None else engine.read(on_disk(folder, weights, "M.npy"))
        return fit(engine, V, M, parts, x=x, weights=weights, **options)


def assert_agree(found, expected, tolerance=1e-8):
    (result, codes), (reference, reference_codes) = found, expected
    np.testing.assert_allclose(result.state.W, reference.state.W, rtol=0, atol=tolerance)
    np.testing.assert_allclose(codes, reference_codes, rtol=0, atol=tolerance)
    assert result.state.objective == pytest.approx(reference.state.objective, rel=tolerance)


# --- What an engine has to do -----------------------------------------------------------------------------------------


@block_function(recomputed=True)
def doubled(x, *, xp):
    return 2 * x


def column_sums(x, *, xp):
    return x.sum(axis=0), len(x)


def rows_and_sums(x, other, *, by, xp):
    return (x * by + other, x[:, 0]), (x.sum(axis=0), len(x))


def transposed_sum(v, m, rows, *, xp):
    return v.sum(axis=1, keepdims=True) + rows


@pytest.fixture(params=["streaming", "dask reading", "dask keeping"])
def engine(request, client):
    if request.param == "streaming":
        made = StreamingEngine(block_bytes=2000)
    else:
        made = DaskEngine(client, block_bytes=2000, keep=request.param == "dask keeping")
    with made.running():
        yield made


@pytest.fixture
def blocks(engine, tmp_path):
    return engine.read(on_disk(tmp_path, X))


def test_blocks_know_their_shape_and_join_to_the_data(engine, blocks):
    assert len(blocks) > 4
    assert all(isinstance(block, LazyBlock) for block in blocks)
    assert sum(len(block) for block in blocks) == N
    assert {(block.shape[1], block.dtype) for block in blocks} == {(M_FEATURES, X.dtype)}
    np.testing.assert_array_equal(engine.join(blocks), X)


def test_functions_reach_every_block_once(engine, blocks):
    other = engine.split(np.arange(float(N))[:, None], like=blocks)
    (rows, firsts), (total, count) = engine.map_and_sum(rows_and_sums, blocks, other, by=3)
    np.testing.assert_array_equal(engine.join(rows), 3 * X + np.arange(N)[:, None])
    np.testing.assert_array_equal(engine.join(firsts), X[:, 0])
    np.testing.assert_allclose(total, X.sum(axis=0))
    assert count == N
    np.testing.assert_allclose(engine.sum(column_sums, engine.map(doubled, blocks))[0], 2 * X.sum(axis=0))


def test_regrouped_blocks_hold_the_same_rows(engine, blocks):
    again = engine.regroup(engine.map(doubled, blocks), 17)
    assert [len(block) for block in again] == [17, 17, 17, 9]
    np.testing.assert_array_equal(engine.join(again), 2 * X)


def test_features_of_little_data_are_gathered_and_of_much_are_refused(engine, blocks, monkeypatch):
    rows = np.arange(M_FEATURES)[:, None]
    found = engine.map_features(transposed_sum, blocks, None, rows)
    np.testing.assert_allclose(found, X.T.sum(axis=1, keepdims=True) + rows)
    monkeypatch.setattr("robustnmf.engines.streaming_engine.GATHERED_ENTRIES", X.size - 1)
    with pytest.raises(IncompatibleError, match="such as the default, 'shared-gram'"):
        engine.map_features(transposed_sum, blocks, None, rows)


@pytest.mark.parametrize("few", [2**14, 3], ids=["finished one by one", "to the last bit"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [None, "feature"])
def test_quantiles_are_exact(axis, dtype, weighted, few, tmp_path, monkeypatch):
    monkeypatch.setattr("robustnmf.engines.quantiles.FEW", few)
    values = (X - 1).round(2).astype(dtype)  # negative ones too, and ties
    M = WEIGHTS.astype(dtype) if weighted else None
    here, streaming = NumPyEngine(), StreamingEngine(block_bytes=2000)
    V = streaming.read(on_disk(tmp_path, values))
    lazy = streaming.read(on_disk(tmp_path, M, "M.npy")) if weighted else None
    for q in (0.0, 0.1, 0.5, 0.9, 1.0):
        expected = here.quantile([values], [M] if weighted else None, q, axis=axis)
        np.testing.assert_array_equal(streaming.quantile(V, lazy, q, axis=axis), expected)


def test_quantiles_of_a_cluster_are_exact(engine, blocks):
    here = NumPyEngine()
    assert engine.quantile(blocks, None, 0.5) == here.quantile([X], None, 0.5)
    expected = here.quantile([X], None, 0.5, axis="feature")
    np.testing.assert_array_equal(engine.quantile(blocks, None, 0.5, axis="feature"), expected)


# --- Agreement with one machine ---------------------------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("method", PLAIN)
def test_streamed_fits_agree_with_those_in_memory(method, tmp_path):
    parts = parts_of(method, "published")
    for weights in (None, WEIGHTS):
        expected = fit_here(parts, weights=weights)
        assert_agree(fit_there(StreamingEngine(block_bytes=1700), parts, tmp_path, weights=weights), expected)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.slow] * (m == "cauchy")) for m in PLAIN])
def test_fits_on_a_cluster_agree_with_those_of_one_machine(method, client, tmp_path):
    parts = parts_of(method, "published")
    engine = DaskEngine(client, block_bytes=1700, keep=False)
    options = {"weights": WEIGHTS, "max_iter": 4}
    assert_agree(fit_there(engine, parts, tmp_path, **options), fit_here(parts, **options))


@pytest.mark.parametrize("block_bytes", [5000, *(pytest.param(size, marks=pytest.mark.slow) for size in (200, 10**6))])
@pytest.mark.parametrize("keep", [pytest.param(False, marks=pytest.mark.slow), True])
def test_how_the_data_is_cut_and_kept_does_not_matter(keep, block_bytes, client, tmp_path):
    parts = parts_of(schedule="plain", scale="mad", outliers="three-sigma-feature")
    engine = DaskEngine(client, block_bytes=block_bytes, keep=keep)
    assert_agree(fit_there(engine, parts, tmp_path, max_iter=4), fit_here(parts, max_iter=4))


@pytest.mark.parametrize("make", ["streaming", pytest.param("dask", marks=pytest.mark.slow)])
def test_staged_fits_agree_and_take_in_all_samples(make, client, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 1500)
    monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 20)
    x = make_data(200, 30, RANK).X
    parts = parts_of()
    engine = StreamingEngine(block_bytes=5000) if make == "streaming" else DaskEngine(client, block_bytes=9000)
    options = {"x": x, "max_iter": 40}
    assert_agree(fit_there(engine, parts, tmp_path, **options), fit_here(parts, **options), 1e-7)


def test_known_components_stay_and_others_agree(client, tmp_path):
    from dataclasses import replace

    for solver in ("hals", "nesterov", "shared-gram"):
        parts = parts_of(schedule="plain", scale="mad", solver=solver)
        method = replace(parts.method, fixed=2)
        parts = replace(parts, algorithm=lambda *a, run=parts.algorithm, m=method, **o: run(*a[:4], m, *a[5:], **o))
        expected = fit_here(parts)
        assert_agree(fit_there(StreamingEngine(block_bytes=1700), parts, tmp_path), expected)


def test_solvers_that_need_whole_features_are_refused_with_those_that_do_not(tmp_path):
    with pytest.raises(IncompatibleError, match="works with sums over samples"):
        fit_there(StreamingEngine(block_bytes=1700), parts_of("mahnmf"), tmp_path)


# --- Torch inside of workers ------------------------------------------------------------------------------------------


def kind_of(x, *, by, xp):
    return np.array([type(x).__name__, type(by).__name__])


@pytest.mark.slow
def test_blocks_and_what_they_share_are_tensors_inside_of_workers(client, tmp_path):
    pytest.importorskip("torch")
    for inside, kind in (("numpy", "ndarray"), ("torch", "Tensor")):
        with DaskEngine(client, block_bytes=5000, keep=False, inside=inside).running() as engine:
            found = engine.join(engine.map(kind_of, engine.read(on_disk(tmp_path, X)), by=np.ones(3)))
            assert set(found) == {kind}


QUICK = ("l21",)


@pytest.mark.parametrize("method", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in PLAIN])
def test_torch_inside_of_workers_gives_the_factors_of_numpy(method, client, tmp_path):
    pytest.importorskip("torch")
    parts = parts_of(method, "published")
    engine = DaskEngine(client, block_bytes=5000, keep=False, inside="torch", device="cpu")
    assert_agree(fit_there(engine, parts, tmp_path, weights=WEIGHTS), fit_here(parts, weights=WEIGHTS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_an_estimator_is_fitted_by_torch_inside_of_workers(client):
    pytest.importorskip("torch")
    engine = DaskEngine(client, inside="torch")
    model, expected = model_of(da.from_array(GAPS, chunks=(17, -1)), engine=engine), model_of(GAPS)
    np.testing.assert_allclose(model.components_, expected.components_, atol=1e-8)
    assert model.objective_ == pytest.approx(model_of(da.from_array(GAPS, chunks=(17, -1))).objective_, rel=1e-8)


@pytest.mark.parametrize(
    ("device", "worker", "n_gpus", "first_is_its_own", "expected"),
    [
        (None, 0, 0, False, "cpu"),
        ("cpu", 0, 4, False, "cpu"),
        ("cuda:1", 3, 4, False, "cuda:1"),
        ("cuda", 3, 4, False, "cuda:3"),
        (None, "SLURMCluster-7-5", 4, False, "cuda:1"),
        (None, "tcp://10.0.0.1:40002", 2, False, "cuda:0"),
        ("cuda", 3, 4, True, "cuda:0"),
    ],
)
def test_a_worker_finds_its_device(device, worker, n_gpus, first_is_its_own, expected):
    assert device_of(device, worker, n_gpus, first_is_its_own) == expected


def test_workers_of_a_machine_share_its_gpus_evenly():
    found = [device_of("cuda", worker, 4, False) for worker in range(8)]
    assert sorted(found) == sorted(2 * [f"cuda:{k}" for k in range(4)])
    assert device_of("cuda", "a name", 4, False) == device_of("cuda", "a name", 4, False)


def test_counts_are_fitted_as_in_memory(client):
    """Most entries are zero: the default has a second start, from singular vectors."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.3, size=(120, RANK)) @ rng.gamma(0.3, size=(RANK, 30))).astype(float)
    options = {"n_components": RANK, "max_iter": 10, "random_state": 0}
    expected = RobustNMF(**options).fit(counts)
    found = RobustNMF(**options, engine=DaskEngine(client, keep=True)).fit(da.from_array(counts, chunks=(60, -1)))
    np.testing.assert_allclose(found.components_, expected.components_, rtol=1e-6, atol=1e-9)


def test_devices_that_are_not_there_are_refused(client):
    with pytest.raises(ValueError, match="worker 3 sees none"):
        device_of("cuda", 3, 0, False)
    with pytest.raises(ValueError, match="inside must be"):
        DaskEngine(inside="cupy")
    with pytest.raises(ValueError, match="works on the CPU"):
        DaskEngine(device="cuda")
    array = da.from_array(X, chunks=(20, -1))
    with pytest.raises(ValueError, match="knows its device"):
        model_of(array, engine=DaskEngine(client), device="cuda")
    with pytest.raises(ValueError, match="engine='dask'"):
        model_of(X, engine="stream", device="cuda")


def test_a_gpu_for_each_worker_is_asked_of_each(client):
    pytest.importorskip("torch")
    if has_gpu():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match=r"worker \d sees none"):
        model_of(da.from_array(X, chunks=(20, -1)), device="cuda")


# --- Arrays of Dask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: da.from_array(X, chunks=(7, 10)),
        lambda: da.from_array(X, chunks=(N, -1)).map_blocks(np.sqrt) ** 2,
        lambda: (lambda a: a / a.max() * X.max())(da.from_array(X, chunks=(20, -1))),
    ],
    ids=["chunks of features", "computed", "chunks with work in common"],
)
def test_dask_arrays_are_read_however_they_are_made(make, keep, client):
    with DaskEngine(client, keep=keep).running() as engine:
        blocks = engine.read_dask(make())
        np.testing.assert_allclose(engine.join(blocks), X)
        np.testing.assert_allclose(engine.sum(column_sums, blocks)[0], X.sum(axis=0))


def test_persisted_dask_arrays_stay_where_they_are(client):
    array = client.persist(da.from_array(X, chunks=(20, -1)))
    with DaskEngine(client, keep=False).running() as engine:
        blocks = engine.read_dask(array)
        assert {block.future.key for block in blocks} == {key for (key,) in array.__dask_keys__()}
        np.testing.assert_array_equal(engine.join(blocks), X)


# --- Graphs, faults, checkpoints --------------------------------------------------------------------------------------


def n_tasks(client):
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


@pytest.mark.slow
def test_graphs_do_not_grow_with_iterations(client, tmp_path):
    seen = []
    parts = parts_of(schedule="plain", scale="mad", outliers="none")
    engine = DaskEngine(client, block_bytes=5000, keep=False)
    fit_there(engine, parts, tmp_path, max_iter=40, callback=lambda _: seen.append(n_tasks(client)))
    # Tasks are let go a little later than they are done with; were they remembered, there would be four more each time.
    assert max(seen[25:]) <= max(seen[:20]) + 50


@pytest.mark.parametrize("keep", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_killed_worker_costs_time_and_not_the_result(keep, client, tmp_path):
    parts = parts_of(schedule="plain", scale="mad", outliers="none")
    expected = fit_here(parts, max_iter=14)
    client.wait_for_workers(2, timeout=60)
    victims = dict(zip((4, 9), client.run(os.getpid).values(), strict=True))

    def kill_soon(iteration):
        if iteration.n_iter in victims:
            client.wait_for_workers(2, timeout=60)  # a worker that dies while it starts is not replaced by Dask
            Timer(0.03, os.kill, (victims[iteration.n_iter], signal.SIGKILL)).start()  # in the middle of an iteration

    engine = DaskEngine(client, block_bytes=5000, keep=keep)
    found = fit_there(engine, parts, tmp_path, max_iter=14, callback=kill_soon)
    assert_agree(found, expected)
    client.wait_for_workers(2, timeout=60)
    assert not set(victims.values()) & set(client.run(os.getpid).values())


@pytest.mark.slow
def test_a_fit_that_has_lost_all_workers_says_so_and_goes_on_with_new_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_engine, "LONG_WAIT", 0.5)
    parts = parts_of(schedule="plain", scale="mad", outliers="none")
    expected = fit_here(parts, max_iter=6)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster, set_as_default=False) as client:

        def leave_alone(iteration):
            if iteration.n_iter == 3:
                cluster.scale(0)
                while client.nthreads():
                    sleep(0.05)
                Timer(3.0, cluster.scale, (1,)).start()

        engine = DaskEngine(client, block_bytes=5000, keep=False)
        with pytest.warns(RuntimeWarning, match="no workers left") as told:
            found = fit_there(engine, parts, tmp_path, max_iter=6, callback=leave_alone)
    assert_agree(found, expected)
    assert sum("no workers left" in str(warning.message) for warning in told) == 1


def test_a_fit_whose_workers_have_no_memory_left_ends(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_engine, "LONG_WAIT", 0.5)
    limits = dict.fromkeys((f"distributed.worker.memory.{what}" for what in ("target", "spill", "terminate")), False)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with (
        dask.config.set({**limits, "distributed.worker.memory.pause": 1e-6}),
        distributed.LocalCluster(memory_limit="2GiB", **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        pytest.raises(MemoryError, match=r"paused.*2\.00 GiB each.*higher memory_limit"),
    ):
        engine = DaskEngine(client, block_bytes=5000, keep=False)
        fit_there(engine, parts_of(schedule="plain", scale="mad", outliers="none"), tmp_path, max_iter=6)


CLIENT = """
import sys
import numpy as np
sys.path.insert(0, {tests!r})
import test_dask as t
from pathlib import Path
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    options = {{"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}}
    with t.distributed.LocalCluster(**options) as cluster, t.distributed.Client(cluster) as client:
        checkpoint = t.Checkpoint(folder / "state", {{"data": "X"}}, every=2)
        engine = t.DaskEngine(client, block_bytes=5000, keep=False)
        say = lambda i: print(i.n_iter, flush=True)
        t.fit_there(engine, t.parts_of(**{parts!r}), folder, max_iter=30, checkpoint=checkpoint, callback=say)
"""


@pytest.mark.slow
@pytest.mark.parametrize("parts", [{"schedule": "plain", "scale": "mad"}, {}], ids=["plain", "staged"])
def test_a_killed_client_is_resumed_from_its_checkpoint(parts, client, tmp_path):
    script = tmp_path / "client.py"
    script.write_text(CLIENT.format(tests=str(Path(__file__).parent), parts=parts))
    process = subprocess.Popen(
        [sys.executable, script, tmp_path], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in process.stdout:
        if int(line) >= 7 and (tmp_path / "state" / "checkpoint.json").exists():
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    told = []
    checkpoint = Checkpoint(tmp_path / "state", {"data": "X"}, every=2)
    options = {"max_iter": 30, "checkpoint": checkpoint, "callback": lambda i: told.append(i.n_iter)}
    engine = DaskEngine(client, block_bytes=5000, keep=False)
    found = fit_there(engine, parts_of(**parts), tmp_path, **options)
    assert told[0] > 2
    assert_agree(found, fit_here(parts_of(**parts), max_iter=30))


@contextmanager
def running(*command):
    """Run a command of Dask in processes of their own, until the end or until they are killed."""
    process = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def own_cluster(folder, n_workers, *options):
    """Run a cluster whose processes a test may kill; yield that of the scheduler, and a client."""
    address = str(folder / "scheduler.json")
    scheduler = ("distributed.cli.dask_scheduler", "--scheduler-file", address, "--port", "0", "--no-dashboard")
    workers = ("distributed.cli.dask_worker", "--scheduler-file", address, "--nworkers", str(n_workers), *options)
    with (
        running(*scheduler) as process,
        running(*workers, "--nthreads", "1", "--no-dashboard", "--death-timeout", "20"),
        distributed.Client(scheduler_file=address, timeout=60, set_as_default=False) as client,
    ):
        client.wait_for_workers(n_workers, timeout=60)
        yield process, client


@pytest.mark.slow
@pytest.mark.parametrize("parts", [{"schedule": "plain", "scale": "mad"}, {}], ids=["plain", "staged"])
def test_a_lost_scheduler_leaves_the_last_checkpoint_valid(parts, client, tmp_path):
    """Workers and client live on; the fit ends with an error, and another cluster goes on from the checkpoint."""
    folder = tmp_path / "state"
    with own_cluster(tmp_path, 2) as (scheduler, other):

        def kill(iteration):
            if iteration.n_iter >= 7 and (folder / "checkpoint.json").exists():
                scheduler.kill()

        options = {"max_iter": 30, "checkpoint": Checkpoint(folder, {"data": "X"}, every=2), "callback": kill}
        with pytest.raises(ConnectionError, match="same checkpoint folder"):
            fit_there(DaskEngine(other, block_bytes=5000, keep=False), parts_of(**parts), tmp_path, **options)
    told = []
    checkpoint = Checkpoint(folder, {"data": "X"}, every=2)
    options = {"max_iter": 30, "checkpoint": checkpoint, "callback": lambda i: told.append(i.n_iter)}
    found = fit_there(DaskEngine(client, block_bytes=5000, keep=False), parts_of(**parts), tmp_path, **options)
    assert told[0] > 2
    assert_agree(found, fit_here(parts_of(**parts), max_iter=30))


def exhaust(x, *, xp):
    kept = [np.ones(2**24) for _ in range(20)]
    return x + kept[0][0]


@pytest.mark.slow
def test_running_out_of_memory_names_the_chunk_size_to_use(client, tmp_path):
    with DaskEngine(client, keep=False).running() as engine:
        blocks = engine.read(on_disk(tmp_path, X))
        with pytest.raises(MemoryError, match=r"chunks, of about \d+ MiB"):
            engine.map(exhaust, blocks)
    client.wait_for_workers(2, timeout=60)


def ask_for_too_much(x, *, xp):
    return np.ones((2**30, 2**20))


def test_memory_that_is_not_there_names_the_chunk_size_too(client, tmp_path):
    told = pytest.raises(
        MemoryError, match=r"workers ran out of memory \(\d.00 GiB each\). Use smaller chunks, of about"
    )
    with DaskEngine(client, keep=False).running() as engine, told:
        engine.map(ask_for_too_much, engine.read(on_disk(tmp_path, X)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_chunks_that_workers_have_no_memory_for_are_fitted_with_the_size_that_the_error_names(tmp_path):
    def made_of(chunk_bytes):
        return da.random.default_rng(0).random((120_000, 400), chunks=(chunk_bytes // (8 * 400), -1))

    reason = r"killed several times .* \(0.59 GiB each\)"
    with (
        own_cluster(tmp_path, 1, "--memory-limit", "600MiB") as (_, small),
        pytest.raises(MemoryError, match=reason) as told,
    ):
        model_of(made_of(2**27), engine=DaskEngine(small, keep=False), max_iter=3)
    size = int(re.search(r"block_size_limit=(\d+)", str(told.value))[1])
    (tmp_path / "again").mkdir()
    with own_cluster(tmp_path / "again", 1, "--memory-limit", "600MiB") as (_, small):
        assert model_of(made_of(size), engine=DaskEngine(small, keep=False), max_iter=3).n_samples_seen_ == 120_000


def test_codes_go_through_the_client_where_no_folder_is_shared(client, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_files, "all_see", lambda client, folder: False)
    parts = parts_of(schedule="plain", scale="mad", outliers="none")
    checkpoint = Checkpoint(tmp_path / "state", {"data": "X"}, every=3)
    engine = DaskEngine(client, block_bytes=5000, keep=False)
    found = fit_there(engine, parts, tmp_path, max_iter=8, checkpoint=checkpoint)
    assert_agree(found, fit_here(parts, max_iter=8))
    again = Checkpoint(tmp_path / "state", {"data": "X"})
    assert_agree(fit_there(engine, parts, tmp_path, max_iter=10, checkpoint=again), fit_here(parts, max_iter=10))


def test_tasks_have_names_that_a_dashboard_can_show(client, tmp_path):
    names = set()

    def look(iteration):
        names.update(client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.task_prefixes)))

    parts = parts_of(schedule="plain", scale="mad", outliers="none")
    fit_there(DaskEngine(client, block_bytes=5000, keep=False), parts, tmp_path, max_iter=2, callback=look)
    assert {"sweep-block", "sweep-block-kept", "summarise"} <= names


# --- The estimator ----------------------------------------------------------------------------------------------------

GAPS = np.where(np.random.default_rng(2).random(X.shape) < 0.05, np.nan, X)


def model_of(x, weights=None, **options):
    return RobustNMF(**{"n_components": RANK, "random_state": 0, "max_iter": 20} | options).fit(x, weights=weights)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
class TestEstimator:
    def test_a_dask_array_is_fitted_and_its_results_are_lazy(self, client):
        array, expected = da.from_array(GAPS, chunks=(17, 10)), model_of(GAPS)
        model = model_of(array)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-8)
        assert model.scale_ == pytest.approx(expected.scale_, rel=1e-8)
        results = {
            "transform": (model.transform(array), expected.transform(GAPS)),
            "clean": (model.clean(array), expected.clean(GAPS)),
            "outlier_mask": (model.outlier_mask(array), expected.outliers_),
            "weights_": (model.weights_, expected.weights_),
            "outliers_": (model.outliers_, expected.outliers_),
            "score_samples": (model.score_samples(array), expected.score_samples(GAPS)),
        }
        for name, (found, wanted) in results.items():
            assert isinstance(found, da.Array), name
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), name
            np.testing.assert_allclose(found.compute(), wanted, rtol=1e-5, atol=1e-5, err_msg=name)

    @pytest.mark.slow
    def test_weights_count_whatever_their_chunks(self, client):
        array = da.from_array(X, chunks=(17, 10))
        expected = model_of(X, WEIGHTS)
        for weights in (WEIGHTS, da.from_array(WEIGHTS, chunks=(11, -1))):
            np.testing.assert_allclose(model_of(array, weights).components_, expected.components_, atol=1e-8)
        found = model_of(array, WEIGHTS).transform(array, weights=da.from_array(WEIGHTS, chunks=(11, -1)))
        np.testing.assert_allclose(found.compute(), expected.transform(X, weights=WEIGHTS), atol=1e-6)

    @pytest.mark.slow
    def test_uncertainties_count_and_the_rank_is_found(self, client):
        given = np.random.default_rng(3).uniform(0.01, 0.05, X.shape)
        array, chunks = da.from_array(GAPS, chunks=(17, 10)), da.from_array(given, chunks=(20, -1))
        model = RobustNMF("auto", random_state=0).fit(array, uncertainties=chunks)
        expected = RobustNMF("auto", random_state=0).fit(GAPS, uncertainties=given)
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-7)
        np.testing.assert_allclose(model.weights_.compute(), expected.weights_, atol=1e-6)
        codes = model.transform(array, uncertainties=chunks)
        assert isinstance(codes, da.Array)
        wanted = expected.transform(GAPS, uncertainties=given)
        np.testing.assert_allclose(codes.compute(), wanted, atol=1e-6)

    @pytest.mark.slow
    def test_other_data_is_fitted_by_the_cluster_on_request(self, client, tmp_path):
        expected = model_of(GAPS)
        np.save(tmp_path / "X.npy", GAPS)
        for x in (GAPS, np.load(tmp_path / "X.npy", mmap_mode="r"), GAPS.tolist()):
            model = model_of(x, engine="dask")
            np.testing.assert_allclose(model.components_, expected.components_, atol=1e-8)
            assert isinstance(model.outliers_, da.Array)

    @pytest.mark.slow
    def test_data_frames_of_dask_are_fitted(self, client):
        pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
        frame = dd.from_pandas(pd.DataFrame(GAPS, columns=[f"c{i}" for i in range(M_FEATURES)]), npartitions=4)
        np.testing.assert_allclose(model_of(frame).components_, model_of(GAPS).components_, atol=1e-8)

    @pytest.mark.slow
    def test_zarr_goes_in_and_out(self, client, tmp_path):
        pytest.importorskip("zarr")
        da.from_array(GAPS, chunks=(17, -1)).to_zarr(str(tmp_path / "x.zarr"))
        stored = da.from_zarr(str(tmp_path / "x.zarr"))
        model = model_of(stored)
        model.clean(stored).to_zarr(str(tmp_path / "clean.zarr"))
        cleaned = da.from_zarr(str(tmp_path / "clean.zarr")).compute()
        np.testing.assert_allclose(cleaned, model_of(GAPS).clean(GAPS), atol=1e-6)

    @pytest.mark.slow
    def test_a_fit_goes_on_from_its_checkpoint(self, client, tmp_path):
        class CrashError(Exception):
            pass

        def crash(iteration):
            if iteration.n_iter == 9:
                raise CrashError

        array = da.from_array(GAPS, chunks=(17, -1))
        with pytest.raises(CrashError):
            model_of(array, checkpoint=tmp_path, callback=crash)
        told = []
        model = model_of(array, checkpoint=tmp_path, callback=lambda i: told.append(i.n_iter))
        assert min(told) > 3
        np.testing.assert_allclose(model.components_, model_of(GAPS).components_, atol=1e-8)
        with pytest.raises(CheckpointError, match="parameter n_components is 3, here it is 2"):
            model_of(array, checkpoint=tmp_path, n_components=2)

    def test_wrong_data_is_named_by_its_place(self, client):
        x = X.copy()
        x[44, 7] = -1
        with pytest.raises(ValueError, match="sample 44, feature 7"):
            model_of(da.from_array(x, chunks=(17, -1)))

    @pytest.mark.slow
    def test_a_local_cluster_is_started_where_there_is_none(self):
        code = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "import test_dask as t\n"
            "if __name__ == '__main__':\n"
            "    model = t.model_of(t.da.from_array(t.X, chunks=(20, -1)), schedule='plain', max_iter=3)\n"
            "    print(abs(model.components_ - t.model_of(t.X, schedule='plain', max_iter=3).components_).max())\n"
        )
        command = [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parent)]
        assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 1e-8


# --- Chunks of no rows, sizes that are not known, entries of all types ------------------------------------------------


def filtered(x, sizes, known=True):
    """Return data as a filter leaves it, in chunks of these sizes, some of them 0."""
    rows = np.insert(x, np.repeat(np.cumsum(sizes), 2), 7 * np.ones((), x.dtype), axis=0)  # two after each chunk
    keep = np.concatenate([np.arange(size + 2) < size for size in sizes])
    chunks = tuple(size + 2 for size in sizes)
    array = da.from_array(rows, chunks=(chunks, -1))[da.from_array(keep, chunks=(chunks,))]
    return array.compute_chunk_sizes() if known else array


EMPTY = {
    "at the beginning": (0, 17, 43),
    "in the middle": (17, 0, 43),
    "several": (0, 17, 0, 0, 20, 23, 0),
    "at the end": (17, 43, 0),
    "all but one": (0, 0, 60, 0),
}
FILLED = {name: tuple(size for size in sizes if size) for name, sizes in EMPTY.items()}
QUICKLY = {"n_components": RANK, "random_state": 0, "max_iter": 3, "tol": 0.0}


def everything_of(model, x, **of_entries):
    """Return all that a model says of data."""
    results = {
        "transform": model.transform(x, **of_entries),
        "clean": model.clean(x, **of_entries),
        "outlier_mask": model.outlier_mask(x, **of_entries),
        "score_samples": model.score_samples(x, **of_entries),
        "weights_": model.weights_,
        "outliers_": model.outliers_,
    }
    assert {name: len(result) for name, result in results.items()} == dict.fromkeys(results, len(x))
    return {"components_": model.components_} | {name: np.asarray(result) for name, result in results.items()}


def assert_same(found, expected):
    for name in expected:
        assert found[name].dtype == expected[name].dtype, name
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
class TestEmptyChunks:
    @pytest.mark.slow
    @pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
    @pytest.mark.parametrize("name", EMPTY)
    def test_chunks_of_no_rows_change_nothing(self, name, known):
        model = RobustNMF(**QUICKLY, engine="stream")
        array = filtered(GAPS, EMPTY[name], known)
        found = everything_of(model.fit(array), array)
        assert array.chunks[0] == EMPTY[name]
        plain = da.from_array(GAPS, chunks=(FILLED[name], -1))
        assert_same(found, everything_of(model.fit(plain), plain))

    @pytest.mark.slow
    @pytest.mark.parametrize("keep", [False, True], ids=["read", "kept"])
    def test_chunks_of_no_rows_change_nothing_on_a_cluster(self, keep, client):
        model = RobustNMF(**QUICKLY | {"schedule": "plain"}, engine=DaskEngine(client, keep=keep))
        array, plain = filtered(GAPS, EMPTY["several"], False), da.from_array(GAPS, chunks=(FILLED["several"], -1))
        weights = filtered(WEIGHTS, (30, 0, 30))
        codes = model.fit_transform(array, weights=weights)
        assert (codes.shape, codes.chunks[0]) == ((N, RANK), EMPTY["several"])
        found = everything_of(model, array, weights=weights)
        np.testing.assert_array_equal(codes.compute(), found["transform"])
        assert_same(found, everything_of(model.fit(plain, weights=WEIGHTS), plain, weights=WEIGHTS))

    @pytest.mark.thinned(3)
    @pytest.mark.parametrize("kind", ["alike", "not known", "in memory"])
    @pytest.mark.parametrize("what", ["weights", pytest.param("uncertainties", marks=pytest.mark.slow)])
    def test_what_entries_have_may_be_chunked_in_any_way(self, what, kind):
        values = WEIGHTS if what == "weights" else np.random.default_rng(3).uniform(0.01, 0.05, X.shape)
        array, plain = filtered(GAPS, EMPTY["several"]), da.from_array(GAPS, chunks=(FILLED["several"], -1))
        given = {
            "alike": lambda: filtered(values, EMPTY["several"]),
            "not known": lambda: filtered(values, EMPTY["several"], known=False),
            "in memory": lambda: values,
        }[kind]()
        model = RobustNMF(**QUICKLY, engine="stream")
        found = everything_of(model.fit(array, **{what: given}), array, **{what: given})
        assert_same(found, everything_of(model.fit(plain, **{what: values}), plain, **{what: values}))

    def test_a_checkpoint_is_that_of_the_data_without_them(self, tmp_path, monkeypatch):
        monkeypatch.setattr(checkpoint, "SHARE", np.inf)

        class CrashError(Exception):
            pass

        def crash(iteration):
            if iteration.n_iter == 7:
                raise CrashError

        options = QUICKLY | {"max_iter": 9, "engine": "stream", "schedule": "plain", "checkpoint": tmp_path}
        with pytest.raises(CrashError):
            RobustNMF(**options, callback=crash).fit(filtered(GAPS, EMPTY["several"]))
        told = []
        model = RobustNMF(**options, callback=lambda i: told.append(i.n_iter))
        model.fit(da.from_array(GAPS, chunks=(FILLED["several"], -1)))
        assert min(told) > 4
        alone = RobustNMF(**options | {"checkpoint": None}).fit(GAPS)
        np.testing.assert_allclose(model.components_, alone.components_, atol=1e-8)

    def test_the_rank_is_found_with_the_rows_that_are_there(self, monkeypatch):
        given = []

        def find_rank(x, estimator, weights, **options):
            given.append((x, weights))
            return SimpleNamespace(chosen=RANK)

        monkeypatch.setattr("robustnmf.algorithm.fit.find_rank", find_rank)
        weights = filtered(WEIGHTS, EMPTY["several"])
        model = RobustNMF("auto", max_iter=2, engine="stream")
        model.fit(filtered(GAPS, EMPTY["several"], known=False), weights=weights)
        np.testing.assert_array_equal(given[0][0], GAPS)
        np.testing.assert_array_equal(given[0][1], WEIGHTS)

    def test_persisted_chunks_of_no_rows_are_passed_over(self, client):
        array = client.persist(filtered(X, EMPTY["several"]))
        with DaskEngine(client).running() as engine:
            blocks = engine.read_dask(array)
            assert [len(block) for block in blocks] == list(FILLED["several"])
            np.testing.assert_array_equal(engine.join(blocks), X)

    @pytest.mark.slow
    def test_partitions_of_no_rows_are_passed_over(self):
        pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
        table = pd.DataFrame(X, columns=[f"c{i}" for i in range(M_FEATURES)]).assign(row=np.arange(N))
        frame = dd.from_pandas(table, npartitions=6)
        frame = frame[(frame.row < 10) | (frame.row >= 30)].drop(columns="row")
        wanted = np.delete(X, slice(10, 30), axis=0)
        model = RobustNMF(**QUICKLY, engine="stream").fit(frame, weights=frame * 0 + 1)
        np.testing.assert_allclose(model.components_, RobustNMF(**QUICKLY).fit(wanted).components_, atol=1e-8)
        assert model.transform(frame).shape == (40, RANK)

    @pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
    @pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
    def test_data_of_nothing_is_refused(self, shape, known, client):
        array = da.zeros(shape)
        array = array if known else array[da.ones(shape[0], dtype=bool)]
        what = "sample" if shape[0] == 0 else "feature"
        model = RobustNMF(1, max_iter=2)
        for engine in ("stream", "dask"):
            with pytest.raises(ValueError, match=rf"0 {what}\(s\) .* while a minimum of 1 is required"):
                model.set_params(engine=engine).fit(array)
        model.set_params(engine="stream").fit(da.ones((5, 5)))
        with pytest.raises(ValueError, match=rf"0 {what}\(s\)"):
            model.transform(array)

    def test_columns_that_a_filter_leaves_are_counted(self):
        array = da.from_array(X, chunks=(20, -1))[:, da.from_array(np.arange(M_FEATURES) % 3 > 0)]
        assert np.isnan(array.shape[1])
        found = RobustNMF(**QUICKLY, engine="stream").fit(array).components_
        expected = RobustNMF(**QUICKLY).fit(X[:, np.arange(M_FEATURES) % 3 > 0]).components_
        np.testing.assert_allclose(found, expected, atol=1e-8)

    @pytest.mark.parametrize("make", ["delayed", "bag", "vector", "cube"])
    def test_other_collections_of_dask_are_refused_with_what_to_do(self, make):
        import dask

        given, words = {
            "delayed": lambda: (dask.delayed(X), "from_delayed"),
            "bag": lambda: (pytest.importorskip("dask.bag").from_sequence([1, 2]), "array or a data frame; got Bag"),
            "vector": lambda: (da.ones(5), "two dimensions"),
            "cube": lambda: (da.ones((5, 4, 3)), "two dimensions"),
        }[make]()
        with pytest.raises((TypeError, ValueError), match=words):
            RobustNMF(2, engine="stream").fit(given)


TEN = np.random.default_rng(2).integers(1, 90, (24, 6)) / 4.0
TYPES = {name: TEN.astype(name) for name in ("bool", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")}
TYPES |= {name: TEN.astype(name) for name in (">f8", ">f4", ">i4", ">u2", "longdouble", "O", "U8", "S8")}
TYPES |= {
    "objects with None": np.where(TEN > 20, None, TEN.astype(object)),
    "text": np.full(TEN.shape, "a"),
    "objects with text": np.where(TEN > 20, "x", TEN.astype(object)),
    "complex": TEN.astype(complex),
    "complex of single precision": TEN.astype(np.complex64),
    "dates": np.full(TEN.shape, np.datetime64("2020-01-01")),
    "durations": np.full(TEN.shape, np.timedelta64(3, "s")),
    "records": np.zeros(TEN.shape, dtype=[("a", float), ("b", float)]),
    "records of one": TEN.astype([("a", float)]),
    "void": np.zeros(TEN.shape, dtype="V8"),
    "masked": np.ma.masked_array(TEN, TEN > 20),
    "masked integers": np.ma.masked_array(TEN.astype("u1"), TEN > 20),
}


def as_chunks(x, folder):
    return da.from_array(x, chunks=(10, -1), asarray=False)


def as_a_map(x, folder):
    path = folder / "x.bin"
    x.tofile(path)
    return np.memmap(path, x.dtype, "r", shape=x.shape)


def as_hdf5(x, folder):
    h5py = pytest.importorskip("h5py")
    file = h5py.File(folder / "x.h5", "w")
    return file.create_dataset("X", data=x if x.dtype.kind != "U" else x.astype("S"), chunks=(5, 6))


def as_zarr(x, folder):
    return pytest.importorskip("zarr").create_array(folder / "x.zarr", data=x, chunks=(5, 6))


def as_itself(x, folder):
    return x


CANNOT_HOLD = {
    as_a_map: {"O", "objects with None", "objects with text", "masked", "masked integers"},
    # h5py writes objects as text of any length, which have no numbers, and no times, None or masks.
    as_hdf5: {"O", "objects with None", "objects with text", "dates", "durations", "masked", "masked integers"},
    as_zarr: {
        *("O", "objects with None", "objects with text", "masked", "masked integers"),
        *("longdouble", "records", "records of one", "void"),
    },
}


def outcome(x, **options):
    """Return the components, or the error and the word that it is known by."""
    try:
        return RobustNMF(2, max_iter=2, tol=0.0, random_state=0, **options).fit(x).components_
    except (TypeError, ValueError) as error:
        return error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.*FixedLengthUTF32")
@pytest.mark.filterwarnings("ignore:The data type:Warning", "ignore:.*no observed entry")
@pytest.mark.parametrize("make", [as_chunks, as_a_map, as_hdf5, as_zarr, as_itself])
@pytest.mark.parametrize("name", TYPES)
def test_types_of_entries_count_as_in_memory(name, make, tmp_path):
    if name in CANNOT_HOLD.get(make, ()):
        pytest.skip("cannot hold such entries")
    expected, found = outcome(TYPES[name]), outcome(make(TYPES[name], tmp_path), engine="stream")
    if not isinstance(expected, Exception):
        assert not isinstance(found, Exception), found
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-4 if expected.dtype == np.float32 else 1e-9)
        return
    assert type(found) is type(expected), found
    for words in ("Complex data not supported", "must hold numbers; got", "could not convert string to float"):
        if words in str(expected):
            assert words in str(found)
    if make is not as_itself and TYPES[name].dtype.kind in "cmMV":
        assert str(TYPES[name].dtype) in str(found)


@pytest.mark.parametrize("what", ["weights", "uncertainties"])
@pytest.mark.parametrize(("name", "words"), [("complex", "Complex data not supported"), ("dates", "must hold numbers")])
def test_what_entries_have_must_be_numbers(what, name, words):
    with pytest.raises((TypeError, ValueError), match=words):
        RobustNMF(2, engine="stream").fit(da.from_array(TEN), **{what: da.from_array(TYPES[name])})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.*no observed entry")
def test_unit_of_few_positive_counts_is_found(tmp_path, monkeypatch):
    """None of the entries that the unit is taken from is positive, and whole numbers have no order of bits."""
    monkeypatch.setattr(units, "UNIT_ENTRIES", 72)
    for dtype in ("u1", "i2", "bool", "f2"):
        x = TEN.astype(dtype)
        x[:, ::2] = 0
        found = outcome(as_a_map(x, tmp_path), engine="stream")
        np.testing.assert_allclose(found, outcome(x), rtol=1e-9)


def test_a_plain_script_without_client_or_guard_is_worked_on_by_threads(tmp_path):
    """Processes would import the script anew, and fail; a chunk without samples is skipped."""
    script = tmp_path / "script.py"
    script.write_text(
        "import dask.array as da, numpy as np\n"
        "from robustnmf import RobustNMF\n"
        "data = np.random.default_rng(0).random((40, 6))\n"
        "X = da.concatenate([da.from_array(data[:20]), da.zeros((0, 6)), da.from_array(data[20:])])\n"
        "options = dict(n_components=2, method='l2', random_state=0, max_iter=5, tol=0)\n"
        "model, there = RobustNMF(**options).fit(X), RobustNMF(**options).fit(data)\n"
        "np.testing.assert_allclose(model.components_, there.components_, rtol=1e-6)\n"
        "print(model.outliers_.compute().shape)\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, "-W", "ignore", str(script)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "(40, 6)", done.stderr
