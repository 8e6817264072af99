"""Sparse matrices that stay sparse give what dense data gives."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from robustnmf import RobustNMF, RobustNMFOutlierDetector, TruncatedCauchyNMF, load
from robustnmf.algorithm import stage
from robustnmf.engines import NumPyEngine, SparseEngine, engine_for
from robustnmf.engines.lazy import LazyBlock
from robustnmf.formats.sparse_rows import SparseRows

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

HALF_QUADRATIC = ["truncated-cauchy", "cauchy", "l2", "l1", "huber", "l21", "capped"]


def counts(density, seed=0, shape=(150, 60), rank=3):
    """Return counts of low rank, about so many of them positive, 2 % of these 50 times too large; and which."""
    rng = np.random.default_rng(seed)
    P = rng.gamma(0.5, 1, (shape[0], rank)) @ rng.gamma(0.5, 1, (rank, shape[1]))
    X = rng.poisson(P * -np.log1p(-density) / P.mean()).astype(float)
    wrong = (X > 0) & (rng.random(X.shape) < 0.02)
    X[wrong] *= 50
    return X, wrong


def pair(X, rank=3, *, fit=None, **options):
    """Return models fitted to dense and to sparse data."""
    fit = fit or {}
    options = {"random_state": 0, "max_iter": 60} | options
    dense = RobustNMF(rank, engine="numpy", **options).fit(X, **fit)
    return dense, RobustNMF(rank, engine="sparse", **options).fit(sparse.csr_array(X), **fit)


def assert_same(dense, found, X):
    S = sparse.csr_array(X)
    assert_allclose(found.components_, dense.components_, rtol=1e-6, atol=1e-9)
    assert found.objective_ == pytest.approx(dense.objective_, rel=1e-9)
    assert sparse.issparse(found.outliers_) and found.outliers_.dtype == bool
    assert_array_equal(found.outliers_.toarray(), dense.outliers_)
    assert_allclose(found.transform(S), dense.transform(X), rtol=1e-6, atol=1e-9)
    assert_allclose(found.score_samples(S), dense.score_samples(X), rtol=1e-6, atol=1e-9)
    cleaned, mask = found.clean(S), found.outlier_mask(S)
    assert sparse.issparse(cleaned) and sparse.issparse(mask)
    assert_allclose(cleaned.toarray(), dense.clean(X), rtol=1e-6, atol=1e-9)
    assert_array_equal(mask.toarray(), dense.outlier_mask(X))
    assert_allclose(np.asarray(found.weights_), dense.weights_, rtol=1e-6, atol=1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.5])
def test_sparse_data_gives_what_dense_data_gives(density):
    X, _ = counts(density, shape=(300, 100))
    assert_same(*pair(X), X)


@pytest.mark.parametrize("method", HALF_QUADRATIC)
def test_every_method_gives_what_it_gives_for_dense_data(method):
    X, _ = counts(0.2)
    assert_same(*pair(X, method=method), X)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "options",
    [
        {"noise": None},
        {"noise": "poisson", "weight_by_noise": True},
        {"preset": "published"},
        {"alpha_W": 0.01, "l1_ratio": 0.5},
        {"fixed_components": np.ones((1, 60))},
        {"feature_scaling": "robust"},
        {"n_components": "auto"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_do_what_they_do_for_dense_data(options):
    X, _ = counts(0.2)
    rank = options.get("n_components", 3)
    assert_same(*pair(X, rank, **{name: value for name, value in options.items() if name != "n_components"}), X)


@pytest.mark.parametrize("as_sparse", [False, True], ids=["dense weights", "sparse weights"])
def test_weights_count_and_may_be_sparse(as_sparse):
    X, _ = counts(0.3)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0], X.shape)
    dense, found = pair(X, fit={"weights": sparse.csr_array(weights) if as_sparse else weights})
    assert_allclose(found.components_, dense.components_, rtol=1e-6)
    assert_allclose(
        found.transform(sparse.csr_array(X), weights=weights), dense.transform(X, weights=weights), rtol=1e-6, atol=1e-9
    )


def test_entries_that_are_not_stored_may_be_missing():
    rng = np.random.default_rng(0)
    P = rng.gamma(1, 1, (120, 2)) @ rng.gamma(1, 1, (2, 40))
    stored = rng.random(P.shape) < 0.3
    ratings = np.where(stored, P, 0)
    gaps = np.where(stored, P, np.nan)
    for engine in ("numpy", "sparse"):
        model = RobustNMF(2, zeros="missing", engine=engine, random_state=0).fit(sparse.csr_array(ratings))
        expected = RobustNMF(2, engine="numpy", random_state=0).fit(gaps)
        assert_allclose(model.components_, expected.components_, rtol=1e-6)
        codes = model.transform(sparse.csr_array(ratings))
        assert_allclose(codes, expected.transform(gaps), rtol=1e-6)
        predicted = codes @ model.components_
        assert np.abs(predicted - P)[~stored].mean() < 0.05 * P.mean()
    cleaned = model.clean(sparse.csr_array(ratings))
    assert_allclose(cleaned.toarray()[stored], expected.clean(gaps)[stored], rtol=1e-6)
    assert cleaned.nnz == stored.sum()
    assert_allclose(np.asarray(model.weights_), expected.weights_, rtol=1e-6)
    streamed = RobustNMF(2, zeros="missing", engine="stream", random_state=0).fit(sparse.csr_array(ratings))
    assert_allclose(streamed.components_, expected.components_, rtol=1e-6)
    with pytest.raises(TypeError, match="Set missing entries to NaN"):
        RobustNMF(2, zeros="missing").fit(ratings)
    with pytest.raises(ValueError, match="zeros must be"):
        RobustNMF(2, zeros="ignored").fit(ratings)


def test_explicit_zeros_are_ratings_of_zero():
    data = sparse.csr_array(([1.0, 0.0, 2.0], ([0, 0, 1], [0, 1, 1])), shape=(2, 3))
    from robustnmf.data.validation import weights_of_stored

    assert_array_equal(weights_of_stored(data, None).toarray(), [[1, 1, 0], [0, 1, 0]])
    assert_array_equal(weights_of_stored(data, np.full((2, 3), 0.5)).toarray(), [[0.5, 0.5, 0], [0, 0.5, 0]])
    with pytest.raises(ValueError, match="weights must have the shape of X"):
        weights_of_stored(data, np.ones((3, 2)))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("container", [sparse.csr_matrix, sparse.csc_matrix, sparse.csc_array, sparse.coo_array])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, bool])
def test_all_kinds_of_sparse_matrices_are_taken(container, dtype):
    X = (counts(0.2, shape=(60, 30))[0] > 0).astype(dtype)
    given = container(X)
    model = RobustNMF(2, engine="sparse", random_state=0, max_iter=20).fit(given)
    assert model.components_.dtype == (np.float32 if dtype == np.float32 else np.float64)
    expected = RobustNMF(2, engine="numpy", random_state=0, max_iter=20).fit(given)
    # Sums over stored entries and over dense rows are rounded in another order, and hundreds of sweeps follow.
    tolerance = {"rtol": 1e-3, "atol": 5e-4} if dtype == np.float32 else {"rtol": 1e-8, "atol": 1e-9}
    assert_allclose(model.components_, expected.components_, **tolerance)


def test_unsorted_indices_and_duplicates_are_taken_and_the_matrix_is_not_changed():
    X, _ = counts(0.2, shape=(40, 20))
    tidy = sparse.csr_array(X)
    halves = [np.concatenate([row[::-1], row]) for row in np.split(tidy.data / 2, tidy.indptr[1:-1])]
    places = [np.concatenate([row[::-1], row]) for row in np.split(tidy.indices, tidy.indptr[1:-1])]
    messy = sparse.csr_array((np.concatenate(halves), np.concatenate(places), 2 * tidy.indptr), shape=X.shape)
    assert messy.nnz == 2 * tidy.nnz and not messy.has_canonical_format
    before = messy.data.copy()
    model = RobustNMF(2, engine="sparse", random_state=0, max_iter=20).fit(messy)
    assert_array_equal(messy.data, before)
    expected = RobustNMF(2, engine="numpy", random_state=0, max_iter=20).fit(X)
    assert_allclose(model.components_, expected.components_, rtol=1e-8)


def test_rows_are_read_as_they_are_and_duplicates_in_rows_are_summed():
    duplicates = sparse.csr_array((np.array([1.0, 2.0, 5.0]), np.array([2, 2, 0]), np.array([0, 2, 3])), shape=(2, 3))
    model_rows = SparseRows(sparse.csr_array(duplicates.toarray()))
    assert_array_equal(model_rows.read(0, 2), [[0, 0, 3], [5, 0, 0]])
    assert_array_equal(model_rows.read(1, 2), [[5, 0, 0]])
    from robustnmf.data.sparse import canonical

    assert_array_equal(SparseRows(canonical(duplicates)).read(0, 2), [[0, 0, 3], [5, 0, 0]])
    assert duplicates.nnz == 3


@pytest.mark.parametrize("value", [-1.0, np.inf])
def test_wrong_entries_are_named(value):
    X, _ = counts(0.2)
    X[7, 5] = value
    with pytest.raises(ValueError, match="at sample 7, feature 5"):
        RobustNMF(2, engine="sparse").fit(sparse.csr_array(X))


def broken(container, harm):
    """Return a sparse matrix with one mistake in its arrays, which SciPy does not notice."""
    X = container(counts(0.3, shape=(30, 20))[0])
    if harm == "index too large":
        X.indices[5] = 99
    elif harm == "negative index":
        X.indices[5] = -1
    elif harm == "falling indptr":
        X.indptr[3] = X.indptr[4] + 2
    elif harm == "overflow":
        X.indptr[4:] -= np.int32(2**31 - 1)
    elif harm == "indptr too long":
        X.indptr[-1] += 4
    elif harm == "indptr does not begin with 0":
        X.indptr[0] = 1
    elif harm == "few indices":
        X.indices = X.indices[:-1]
    elif harm == "few values":
        X.data = X.data[:-1]
    elif harm == "short indptr":
        X.indptr = X.indptr[:-1]
    return X


HARMS = {
    "index too large": "has an entry in .* 99, and there are",
    "negative index": "has an entry in .* -1, and there are",
    "falling indptr": "indptr falls from",
    "overflow": "32-bit numbers overflow",
    "indptr too long": "indptr ends with",
    "indptr does not begin with 0": "indptr begins with 1",
    "few indices": "indptr ends with",
    "few values": "indptr ends with",
    "short indptr": "indptr has",
}


@pytest.mark.parametrize("engine", ["numpy", "sparse", "stream"])
@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csc_matrix, sparse.bsr_array])
@pytest.mark.parametrize("harm", HARMS)
def test_arrays_that_do_not_fit_together_are_refused(container, harm, engine):
    X = broken(container, harm)
    with pytest.raises(ValueError, match=f"X must be a sparse matrix whose arrays fit together; .*{HARMS[harm]}"):
        RobustNMF(2, engine=engine, max_iter=5).fit(X)


def test_arrays_of_weights_and_of_new_data_are_checked_too():
    X, _ = counts(0.3, shape=(30, 20))
    bad = broken(sparse.csr_array, "index too large")
    model = RobustNMF(2, engine="sparse", max_iter=5, random_state=0)
    with pytest.raises(ValueError, match="weights must be a sparse matrix whose arrays fit together"):
        model.fit(sparse.csr_array(X), weights=bad)
    with pytest.raises(ValueError, match="weights must be a sparse matrix whose arrays fit together"):
        RobustNMF(2, zeros="missing").fit(sparse.csr_array(X), weights=bad)
    model.fit(sparse.csr_array(X))
    for method in (model.transform, model.clean, model.outlier_mask, model.score_samples):
        with pytest.raises(ValueError, match="arrays fit together"):
            method(bad)


@pytest.mark.parametrize("axis", ["row", "col"])
def test_coordinates_beyond_the_matrix_are_refused(axis):
    X = sparse.coo_matrix(counts(0.3, shape=(30, 20))[0])
    getattr(X, axis)[2] = 77
    with pytest.raises(ValueError, match=r"entry 2 is in (row|column) 77, and there are (30|20)"):
        RobustNMF(2).fit(X)


@pytest.mark.parametrize("engine", ["numpy", "sparse", "stream"])
@pytest.mark.parametrize("container", [sparse.csr_array, sparse.coo_array])
def test_duplicates_of_small_integers_do_not_overflow(container, engine):
    X = 200 * (counts(0.3, shape=(30, 20))[0] > 0)
    tidy = sparse.coo_array(X)
    places = (np.tile(tidy.row, 2), np.tile(tidy.col, 2))
    twice = sparse.coo_array((np.tile(tidy.data, 2).astype(np.uint8), places), shape=X.shape)
    if container is sparse.csr_array:
        order = np.argsort(places[0], kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(places[0], minlength=30))])
        twice = sparse.csr_array((twice.data[order], places[1][order], indptr), shape=X.shape)
    model = RobustNMF(2, engine=engine, random_state=0, max_iter=20).fit(twice)
    expected = RobustNMF(2, engine="numpy", random_state=0, max_iter=20).fit(2.0 * X)
    assert_allclose(model.components_, expected.components_, rtol=1e-8, atol=1e-12)
    assert_allclose(model.transform(twice), expected.transform(2.0 * X), rtol=1e-8, atol=1e-12)


def test_duplicates_are_found_where_scipy_remembers_none():
    X = sparse.csr_array(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert X.has_canonical_format
    X.indices[:3] = [2, 0, 2]
    from robustnmf.data.sparse import canonical

    assert_array_equal(SparseRows(canonical(X)).read(0, 2), [[2, 0, 4], [4, 5, 6]])


def test_missing_entries_may_be_stored():
    X, _ = counts(0.3)
    X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    dense, found = pair(X)
    assert_allclose(found.components_, dense.components_, rtol=1e-6)
    assert_allclose(found.clean(sparse.csr_array(X)).toarray(), dense.clean(X), rtol=1e-6, atol=1e-9)


def test_errors_among_counts_are_found():
    X, wrong = counts(0.05, shape=(600, 200))
    found = TruncatedCauchyNMF(3, engine="sparse", random_state=0).fit(sparse.csr_array(X)).outliers_.toarray()
    assert found[wrong].mean() > 0.95 and found[~wrong].mean() < 0.001


def test_some_of_many_samples_are_chosen_and_stay_sparse(monkeypatch):
    monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 1000)
    monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 5)
    X, _ = counts(0.3, shape=(900, 40))
    assert_same(*pair(X, rank=3), X)
    engine = SparseEngine(n_threads=1)
    V = engine.split(SparseRows(sparse.csr_array(X)))
    whole = stage.AllSamples.of(V, None, 3, engine)
    chosen = whole.part(V)
    assert_array_equal(engine.join(chosen), X[:: -(-len(X) // sum(map(len, chosen)))])
    assert all(isinstance(block, LazyBlock) for block in chosen)
    # Of sparse data more samples are needed: each feature has few positive entries.
    rare = engine.split(SparseRows(sparse.csr_array(counts(0.02, shape=(900, 40))[0])))
    assert stage.AllSamples.of(rare, None, 3, engine) is None


def test_large_sparse_matrices_stay_sparse_and_small_ones_do_not():
    large = sparse.random_array((5000, 5000), density=0.001, rng=0)
    assert isinstance(engine_for(large), SparseEngine)
    for other in (large[:500], sparse.random_array((4200, 4200), density=0.5, rng=0)):
        assert type(engine_for(other)) is NumPyEngine
    assert type(engine_for(large, "numpy")) is NumPyEngine
    with pytest.raises(ValueError, match="works on sparse matrices"):
        RobustNMF(2, engine="sparse").fit(np.ones((5, 4)))


def test_detectors_batches_and_searches_take_sparse_data():
    X, _ = counts(0.2, shape=(80, 30))
    S = sparse.csr_array(X)
    dense, found = (
        RobustNMFOutlierDetector(estimator=RobustNMF(2, engine=engine, max_iter=30, random_state=0))
        .fit(data)
        .score_samples(data)
        for engine, data in (("numpy", X), ("sparse", S))
    )
    assert_allclose(found, dense, rtol=1e-6, atol=1e-9)
    streams = [RobustNMF(2, random_state=0, max_iter=30, engine=engine) for engine in ("numpy", "sparse")]
    for start in (0, 40):
        streams[0].partial_fit(X[start : start + 40])
        streams[1].partial_fit(S[start : start + 40])
    assert_allclose(streams[1].components_, streams[0].components_, rtol=1e-6)


def test_a_checkpoint_goes_on(tmp_path):
    X, _ = counts(0.2)
    whole = RobustNMF(3, engine="sparse", random_state=0).fit(sparse.csr_array(X))

    def stop(iteration):
        return iteration.n_iter == 10

    options = {"engine": "sparse", "random_state": 0, "checkpoint": tmp_path / "state"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        RobustNMF(3, callback=stop, **options).fit(sparse.csr_array(X))
    model = RobustNMF(3, **options).fit(sparse.csr_array(X))
    assert_array_equal(model.components_, whole.components_)


@pytest.mark.parametrize("method", ["truncated-cauchy", "l2"])
def test_a_file_keeps_sparse_outliers(method, tmp_path):
    X, _ = counts(0.2)
    model = RobustNMF(3, method=method, engine="sparse", random_state=0).fit(sparse.csr_array(X))
    model.save(tmp_path / "model")
    same = load(tmp_path / "model")
    assert same.outliers_.shape == X.shape and same.outliers_.dtype == bool
    assert_array_equal(same.outliers_.toarray(), model.outliers_.toarray())
    assert_array_equal(same.transform(sparse.csr_array(X)), model.transform(sparse.csr_array(X)))


@pytest.mark.slow
def test_summaries_plots_and_reports_take_sparse_data(tmp_path):
    pytest.importorskip("matplotlib")
    from robustnmf import plots

    X, _ = counts(0.6)
    dense, found = pair(X)
    S = sparse.csr_array(X)
    assert f"{found.outliers_.nnz} entries" in found._html_repr()
    found.report(S, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    ax = plots.outlier_map(found)
    assert ax.get_title() == plots.outlier_map(dense).get_title()
    plots.noise_width(found, S)


def test_a_report_of_what_does_not_fit_in_memory_is_refused():
    from robustnmf.errors import IncompatibleError
    from robustnmf.report.facts import _check_size

    with pytest.raises(IncompatibleError, match="zeros included"):
        _check_size(sparse.csr_array((100_000, 20_000)))
