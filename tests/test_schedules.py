"""Held-out entries, the validation monitor, and the staged schedule of the default."""

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from conftest import make_data
from robustnmf import RobustNMF
from robustnmf.algorithm import stage
from robustnmf.algorithm import staged as staged_module
from robustnmf.algorithm.halfquadratic import run, sweep
from robustnmf.algorithm.holdout import FEWEST, SHARE, TOO_FEW, HeldOut, Point
from robustnmf.algorithm.initializers import MedianStart
from robustnmf.algorithm.monitor import SMOOTHED, Monitor
from robustnmf.algorithm.staged import HUBER, TRUNCATED_L1, Staged
from robustnmf.datasets.corruptions import block_occlusion
from robustnmf.engines import NumPyEngine, numpy_engine
from robustnmf.errors import DataQualityWarning, IncompatibleError
from robustnmf.methods import resolve
from robustnmf.model.losses import Cauchy
from robustnmf.model.outliers import MADRule
from robustnmf.model.scales import MAD, FirstScale
from robustnmf.model.weighting import Weighting
from robustnmf.solvers import HALS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N, M_FEATURES, RANK = 100, 60, 3  # enough to hold some out
data = make_data(N, M_FEATURES, RANK)
BLOCK_ENTRIES = [60, 500, 10**6]


def make(**parameters):
    return RobustNMF(**{"n_components": RANK, "random_state": 0} | parameters)


def error(model, X=data.X, clean=data.clean, **options):
    """Return the relative error of a fit to the truth."""
    return np.linalg.norm(model.fit_transform(X, **options) @ model.components_ - clean) / np.linalg.norm(clean)


def draw(X=data.X, M=None, block_entries=None):
    engine = NumPyEngine(block_entries=block_entries)
    V = engine.split(X)
    return HeldOut.draw(V, None if M is None else engine.split(M, like=V), engine)


def drawn(held):
    """Return where entries are held out, (n, m)."""
    masks = [np.zeros(block.shape, dtype=bool) for block in held.V]
    for mask, positions in zip(masks, held.positions, strict=True):
        mask[tuple(positions.T)] = True
    return np.concatenate(masks)


def weights_with_gaps(shape=data.X.shape):
    return np.random.default_rng(1).integers(0, 4, shape) / 3.0


# Which entries are held out.


@pytest.mark.parametrize("M", [None, weights_with_gaps()], ids=["complete", "weighted"])
def test_held_out_entries_have_weight_zero_and_all_others_keep_theirs(M):
    held = draw(M=M)
    assert held.hidden
    expected = np.where(drawn(held), 0, 1 if M is None else M)
    np.testing.assert_array_equal(np.concatenate(held.M), expected)


def test_no_held_out_entry_is_missing():
    M = weights_with_gaps()
    held = draw(M=M)
    assert np.all(M[drawn(held)] > 0)
    assert held.weights.size > TOO_FEW


def test_weights_of_the_data_are_not_overwritten():
    M = weights_with_gaps()
    before = M.copy()
    draw(M=M)
    np.testing.assert_array_equal(M, before)


@pytest.mark.parametrize("block_entries", BLOCK_ENTRIES)
def test_held_out_values_and_weights_are_those_of_the_data(block_entries):
    M = weights_with_gaps()
    held = draw(M=M, block_entries=block_entries)
    np.testing.assert_array_equal(held.values, data.X[drawn(held)])
    np.testing.assert_array_equal(held.weights, M[drawn(held)])


@pytest.mark.parametrize("M", [None, weights_with_gaps()], ids=["complete", "weighted"])
@pytest.mark.parametrize("block_entries", [60, 500])
def test_held_out_positions_do_not_depend_on_the_blocks(block_entries, M):
    held = draw(M=M, block_entries=block_entries)
    assert len(held.V) > 5
    np.testing.assert_array_equal(drawn(held), drawn(draw(M=M)))


def test_held_out_positions_do_not_depend_on_the_values():
    other = make_data(N, M_FEATURES, RANK, seed=1).X
    np.testing.assert_array_equal(drawn(draw(other)), drawn(draw()))


def test_held_out_entries_are_spread_over_samples_and_features():
    mask = drawn(draw())
    assert np.all(mask.any(axis=0))
    assert mask.any(axis=1).mean() > 0.95
    assert mask.mean(axis=1).max() < 0.3


@pytest.mark.parametrize(
    ("shape", "expected"), [((100, 60), 600), ((400, 250), FEWEST), ((1000, 300), SHARE * 300_000)], ids=str
)
def test_number_held_out_is_a_tenth_of_little_data_and_a_fiftieth_of_much(shape, expected):
    held = draw(np.random.default_rng(0).random(shape).astype(np.float32))
    assert 0.9 * expected < held.values.size <= expected


def test_number_held_out_follows_the_observed_entries():
    M = (np.random.default_rng(1).random(data.X.shape) < 0.7).astype(float)
    assert draw(M=M).values.size == pytest.approx(0.1 * M.sum(), rel=0.15)


@pytest.mark.parametrize("M", [None, weights_with_gaps((30, 20))], ids=["complete", "weighted"])
def test_nothing_is_hidden_of_too_little_data(M):
    X = make_data(30, 20).X
    held = draw(X, M)
    assert not held.hidden
    np.testing.assert_array_equal(drawn(held), np.ones(X.shape) if M is None else M > 0)
    assert held.M is None if M is None else np.array_equal(np.concatenate(held.M), M)


def test_features_with_one_value_in_most_samples_are_never_drawn():
    X = data.X.copy()
    X[:, 0] = 3.0
    X[: N // 2 + 1, 1] = 0.0
    X[: N // 2 - 10, 2] = 0.0
    counts = drawn(draw(X)).sum(axis=0)
    assert (counts[0], counts[1]) == (0, 0)
    assert np.all(counts[2:] > 0)


def test_missing_entries_do_not_make_a_feature_constant():
    X, M = data.X.copy(), np.ones(data.X.shape)
    X[: N // 2 + 10, 0] = M[: N // 2 + 10, 0] = 0.0
    assert drawn(draw(X, M))[:, 0].any()


def test_all_features_are_drawn_where_none_varies():
    X = np.where(np.random.default_rng(0).random((N, M_FEATURES)) < 0.2, data.X, 0.0)
    assert np.all(drawn(draw(X)).any(axis=0))


def test_nothing_is_hidden_where_few_features_vary():
    X = np.ones((N, M_FEATURES))
    X[:, :2] = data.X[:, :2]
    held = draw(X)
    assert not held.hidden or held.values.size >= TOO_FEW


@pytest.mark.parametrize("block_entries", BLOCK_ENTRIES)
def test_predictions_are_the_product_at_the_held_out_entries(block_entries):
    rng = np.random.default_rng(0)
    W, H = rng.random((M_FEATURES, RANK)), rng.random((RANK, N))
    held = draw(block_entries=block_entries)
    point = held.point(W, held.engine.split(H.T, like=held.V))
    np.testing.assert_allclose(point.predictions, (H.T @ W.T)[drawn(held)], rtol=1e-12)
    np.testing.assert_allclose(held.magnitudes(point), np.abs(data.X - H.T @ W.T)[drawn(held)], rtol=1e-12)


def test_iteration_does_not_see_the_values_held_out():
    held = draw()
    rng = np.random.default_rng(0)
    W, Ht = rng.random((M_FEATURES, RANK)), [rng.random((N, RANK))]
    spoiled = np.where(drawn(held), 1e6, data.X)
    weighting, method = Weighting(Cauchy(), 0.1), resolve("truncated-cauchy", "default").method
    expected, found = (sweep([X], held.M, W, Ht, weighting, method, held.engine) for X in (data.X, spoiled))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1][0], expected[1][0])


def test_gross_error_in_a_held_out_entry_is_found_and_moves_nothing():
    mask = drawn(draw()) & ~data.outliers
    row, column = np.argwhere(mask)[0]
    X = data.X.copy()
    X[row, column] = 1e6
    model = make()
    assert error(model, X) < 1.1 * error(make())
    assert model.outliers_[row, column]


def test_width_is_that_of_positive_entries_and_share_that_of_all():
    values = np.repeat([0.0, 1.0], 2000)
    held = HeldOut([], None, [], values, np.ones(4000), True, 4000, NumPyEngine())
    magnitudes = np.abs(np.random.default_rng(0).laplace(0, np.where(values > 0, 0.1, 1e-6)))
    magnitudes[:1000] = 50.0
    found = held.mixture(Point(None, [], values + magnitudes))
    assert found.width == pytest.approx(0.1, rel=0.1)
    assert found.share == pytest.approx(0.75, rel=0.02)


# The validation monitor.


def monitored(residuals, scale=1.0, hidden=True, weights=None):
    """Return a monitor that has seen points of these residuals, and the points."""
    values = np.zeros(len(residuals[0]))
    weights = np.ones_like(values) if weights is None else weights
    held = HeldOut([], None, [], values, weights, hidden, values.size, NumPyEngine())
    points = [Point(None, [], np.asarray(residual, dtype=float)) for residual in residuals]
    monitor = Monitor.begin(held, scale, points[0])
    for point in points[1:]:
        monitor, _ = monitor.see(point)
    return monitor, points


def kept(residuals, **options):
    """Return the number of the point that is kept."""
    found, points = monitored(residuals, **options)
    return next(i for i, point in enumerate(points) if point is found.kept)


def uneven(level, errors, n=400):
    """Return residuals whose Cauchy losses exceed those of ones by so many standard errors, and vary by `level`."""
    excess = level * np.where(np.arange(n) % 2, 1.0, -1.0)
    excess += errors * level / np.sqrt(n)
    return np.sqrt(np.expm1(np.log(2) + excess))


def test_loss_is_that_of_cauchy_at_the_scale():
    residuals = np.random.default_rng(0).random((2, 50))
    found, _ = monitored(residuals, scale=0.3)
    assert found.path == pytest.approx([np.mean(np.log1p((r / 0.3) ** 2)) for r in residuals])


def test_loss_counts_weights_as_copies():
    residuals, copies = np.random.default_rng(0).random((2, 50)), np.arange(50) % 4
    weighted, _ = monitored(residuals, weights=copies / 3)
    assert weighted.path == pytest.approx(monitored([np.repeat(r, copies) for r in residuals])[0].path)


@pytest.mark.parametrize("errors", [0.1, 0.9])
def test_monitor_keeps_the_latest_point_within_one_standard_error(errors):
    assert kept([np.ones(400), uneven(0.2, errors)]) == 1


@pytest.mark.parametrize("errors", [1.1, 5.0])
def test_monitor_does_not_keep_a_point_worse_by_more_than_one_standard_error(errors):
    assert kept([np.ones(400), uneven(0.2, errors)]) == 0


def test_monitor_compares_with_the_best_and_not_with_the_last():
    assert kept([np.ones(400), uneven(0.2, 0.6), uneven(0.2, 0.9), uneven(0.2, 1.2)]) == 2


def test_monitor_keeps_a_point_within_a_twentieth_of_the_gain():
    start, best = np.log1p(25.0), np.log(2)
    slightly, clearly = (np.sqrt(np.expm1(best + share * (start - best))) for share in (0.049, 0.051))
    assert kept([[5.0] * 9, [1.0] * 9, [slightly] * 9]) == 2
    assert kept([[5.0] * 9, [1.0] * 9, [clearly] * 9]) == 1


def test_monitor_ignores_what_all_points_miss_alike():
    errors = np.where(np.arange(400) % 4, 0.0, 1e3)
    assert kept([1 + errors, 1.05 + errors]) == 0


def test_monitor_keeps_the_latest_point_where_nothing_is_hidden():
    assert kept([np.ones(400), 3 * np.ones(400)], hidden=False) == 1


def test_monitor_counts_the_points_since_the_best():
    found, _ = monitored([[3.0], [1.0], [2.0], [1.001], [4.0]])
    assert found.unimproved == 3
    assert monitored([[3.0], [2.0], [1.0]])[0].unimproved == 0


def test_change_is_the_mean_fall_of_the_lowest_loss_as_a_share_of_it():
    losses = [*np.linspace(3.0, 1.0, 2 * SMOOTHED + 1), 1.5, 0.8]
    found, _ = monitored([[np.sqrt(np.expm1(loss))] for loss in losses])
    assert found.change == pytest.approx((losses[-1 - SMOOTHED] - 0.8) / SMOOTHED / 0.8)


def test_change_is_not_known_at_first_nor_while_the_loss_rises():
    assert monitored([[1 / (1 + i)] for i in range(SMOOTHED)])[0].change == np.inf
    assert monitored([[1 / (1 + i)] for i in range(SMOOTHED + 1)])[0].change < np.inf
    assert monitored([[1.0 + i] for i in range(SMOOTHED + 1)])[0].change == np.inf


# The stages.


def staged(X, rank=RANK, plan=None, **options):
    """Return the result of a schedule, called like `run`."""
    engine = NumPyEngine()
    parts = resolve("truncated-cauchy", "default")
    V = engine.split(X)
    W, H = parts.init(X.T, None, rank, np.random.default_rng(0))
    options = {"max_iter": 200, "tol": 1e-4, "scale_floor": 1e-15} | options
    return (plan or Staged())(V, None, W, [np.ascontiguousarray(H.T)], parts.method, engine, **options)


def noise(n=N, m=M_FEATURES):
    """Return data of one component and as much noise."""
    rng = np.random.default_rng(0)
    return np.maximum(np.outer(1 + rng.random(n), 1 + rng.random(m)) + 2 * rng.laplace(size=(n, m)), 0)


def test_number_of_threads_does_not_change_a_bit(monkeypatch):
    monkeypatch.setattr(numpy_engine, "BLOCK_ENTRIES", 500)
    fits = []
    for n_threads in (1, 3):
        monkeypatch.setattr(numpy_engine, "_default_threads", lambda n=n_threads: n)
        fits.append(make().fit(data.X))
    np.testing.assert_array_equal(fits[0].components_, fits[1].components_)
    np.testing.assert_array_equal(fits[0].weights_, fits[1].weights_)
    np.testing.assert_array_equal(fits[0].history_["objective"], fits[1].history_["objective"])


@pytest.mark.slow
@pytest.mark.parametrize("block_entries", [60, 500])
def test_size_of_the_blocks_changes_no_more_than_rounding(block_entries, monkeypatch):
    whole = make().fit(data.X)
    monkeypatch.setattr(numpy_engine, "BLOCK_ENTRIES", block_entries)
    cut = make().fit(data.X)
    assert cut.n_iter_ == whole.n_iter_
    np.testing.assert_allclose(cut.components_, whole.components_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(cut.scale_, whole.scale_, rtol=1e-6)


@pytest.mark.parametrize("max_iter", [1, 2, 5, 8, 20, 50])
def test_max_iter_is_the_most_iterations_of_all_stages_together(max_iter):
    seen = []
    with pytest.warns(ConvergenceWarning, match=f"did not converge in {max_iter} iterations"):
        model = make(max_iter=max_iter, tol=0, callback=lambda iteration: seen.append(iteration.n_iter)).fit(data.X)
    assert seen == list(range(model.n_iter_ + 1))
    assert 1 <= model.n_iter_ <= max_iter
    assert np.isfinite(model.components_).all()


def test_history_lists_both_stages():
    one, two = (staged(data.X, plan=Staged(initial_stages=stages)) for stages in ((HUBER,), (TRUNCATED_L1, HUBER)))
    assert len(two.history) - len(one.history) == 12 + 4


def test_last_iterations_have_their_share_of_max_iter():
    """They have the scale fixed; in the main stage it moves."""
    scales = make(max_iter=100, tol=0, schedule=Staged(patience=100, noise=None)).fit(data.X).history_["scale"]
    assert len(set(scales[-10:])) == 1
    assert len(set(scales[-40:-20])) == 20


@dataclass(frozen=True)
class Witness:
    """A solver that notes how many of its entries have no weight."""

    seen: list

    name = "witness"

    def solve(self, problem, X0, engine):
        self.seen.append(int(np.count_nonzero(problem.Q == 0)))
        return HALS(max_iter=2).solve(problem, X0, engine)


def test_held_out_entries_are_given_back_for_the_last_iterations():
    seen = []
    make(solver=Witness(seen), scale=0.1, outliers="none").fit(data.X)
    in_last = 2 * 10  # two half-steps each
    assert set(seen[-in_last:]) == {0}
    assert set(seen[:-in_last]) == {draw().values.size}


def test_main_stage_ends_when_patience_is_at_its_end():
    short, long = (staged(noise(), 10, Staged(patience=patience), tol=0) for patience in (5, 12))
    assert len(long.history) - len(short.history) == 12 - 5
    assert short.converged and long.converged
    np.testing.assert_array_equal(short.state.W, long.state.W)


STAGES = {"start": 0, "first opening": 4, "first trial": 17, "second opening": 25, "second trial": 38, "main": 45}


@pytest.mark.parametrize("last", STAGES.values(), ids=STAGES)
def test_callback_stops_every_stage_and_the_fit_is_usable(last):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("ignore", DataQualityWarning)
        model = make(callback=lambda iteration: iteration.n_iter == last)
        codes = model.fit_transform(data.X)
    assert model.n_iter_ == last
    assert len(model.history_["objective"]) == last + 1
    assert np.isfinite(codes).all() and np.isfinite(model.components_).all()
    np.testing.assert_array_equal(model.transform(data.X), codes)


def test_fit_stopped_in_its_opening_has_not_converged():
    stops = range(1, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataQualityWarning)
        fits = [make(callback=lambda iteration, k=k: iteration.n_iter == k).fit(data.X) for k in stops]
    assert not any(model.converged_ for model in fits)


@pytest.mark.parametrize(
    "options", [{"callback": lambda iteration: iteration.n_iter == 1}, {"max_iter": 1}], ids=["callback", "max_iter"]
)
def test_fit_that_had_no_time_does_not_blame_the_data(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataQualityWarning)
        make(**options).fit(data.X)


def families(n_minority=25):
    """Return samples on a common ground, some with features of one kind and the others with those of another kind."""
    rng = np.random.default_rng(2)
    n, m = 100, 60
    clean = np.full((n, m), 0.25)
    clean[n_minority:, :30] += rng.random((n - n_minority, 2)) @ rng.random((2, 30))
    clean[:n_minority, 30:] += rng.random((n_minority, 2)) @ rng.random((2, 30))
    return np.maximum(clean + 0.01 * rng.standard_normal((n, m)), 0), clean, None


def occluded(size=7):
    """Return smooth images of 16 x 16, each with a square block as bright as the brightest pixel."""
    rng = np.random.default_rng(0)
    x = np.arange(16)
    spots = [np.exp(-((x[:, None] - a) ** 2 + (x - b) ** 2) / 30).ravel() for a, b in rng.uniform(0, 16, (6, 2))]
    clean = 100 * (0.3 + rng.random((100, 6))) @ np.array(spots)
    X, blocks = block_occlusion(clean, size, (16, 16), value=clean.max(), random_state=0)
    return np.maximum(X + 2 * rng.standard_normal(X.shape), 0), clean, blocks


@pytest.mark.parametrize(
    ("problem", "rank", "better", "worse"),
    [(families, 5, HUBER, TRUNCATED_L1), (occluded, 6, TRUNCATED_L1, HUBER)],
    ids=["families huber", "blocks truncated-l1"],
)
def test_better_opening_is_followed(problem, rank, better, worse):
    X, clean, _ = problem()
    right, wrong, both = (
        make(n_components=rank, schedule=Staged(initial_stages=stages, noise=None), max_iter=400)
        for stages in ((better,), (worse,), (HUBER, TRUNCATED_L1))
    )
    assert error(right, X, clean) < 0.9 * error(wrong, X, clean)
    both.fit(X)
    np.testing.assert_array_equal(both.components_, right.components_)


def in_units(seed=0):
    """Return low-rank data whose features have levels over two decades, a tenth of the entries wrong."""
    rng = np.random.default_rng(seed)
    clean = rng.gamma(1.0, 1.0, (200, 4)) @ (rng.gamma(1.0, 1.0, (4, 60)) * 10 ** rng.uniform(-1, 1, 60))
    wrong = rng.random(clean.shape) < 0.1
    X = np.where(wrong, clean + rng.uniform(1, 10, clean.shape) * clean.mean(axis=0), clean)
    return np.maximum(X + 0.02 * clean.mean() * rng.standard_normal(X.shape), 0), clean


def test_features_that_were_lost_are_found_again():
    """Started far too small, the largest features are beyond the cut from the beginning."""
    X, clean = in_units()
    X[:, :5], clean[:, :5] = X[:, :5] + 4 * clean[:, :5], 5 * clean[:, :5]  # the noise stays as it was

    def start(V, M, rank, rng):
        W, H = MedianStart()(V, M, rank, rng)
        W[:5] *= 0.01
        return W, H

    model = make(n_components=4, init=start, schedule=Staged(initial_stages=(TRUNCATED_L1,), noise=None), max_iter=400)
    assert error(model, X, clean) < 0.03
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_module, "rejected_features", lambda *_: np.array([], dtype=np.intp))
        assert error(model, X, clean) > 0.1


@pytest.mark.parametrize("value", [20.0, 1e3])
def test_features_stuck_at_one_value_stay_cut(value):
    rng = np.random.default_rng(0)
    clean = rng.gamma(1.0, 1.0, (200, 4)) @ rng.gamma(1.0, 1.0, (4, 60))
    X = np.maximum(clean + 0.02 * clean.mean() * rng.standard_normal(clean.shape), 0)
    X[:, :5] = value * clean.mean()
    model = make(n_components=4, max_iter=400)
    fitted = model.inverse_transform(model.fit_transform(X))
    assert np.linalg.norm((fitted - clean)[:, 5:]) < 0.01 * np.linalg.norm(clean[:, 5:])
    assert model.outliers_[:, :5].all() and not model.outliers_[:, 5:].any()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_features_in_different_units(seed):
    X, clean = in_units(seed)
    assert error(make(n_components=4, max_iter=400), X, clean) < 0.01


def test_fit_of_dense_noise_stops_the_codes_early():
    result = staged(noise(), 10)
    assert result.converged
    assert result.code_sweeps is not None


def test_fit_of_clean_data_lets_codes_converge():
    result = staged(data.X)
    assert (result.code_sweeps, result.warning) == (None, None)


def test_fit_of_dense_noise_warns():
    with pytest.warns(DataQualityWarning, match="hardly better than by its start.*as well as 10"):
        make(n_components=10).fit(noise())


@pytest.mark.parametrize("outliers", [0, 0.3])
def test_fit_of_good_data_does_not_warn(outliers):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataQualityWarning)
        make().fit(make_data(N, M_FEATURES, RANK, outliers=outliers).X)


def test_one_component_that_is_enough_is_no_reason_to_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataQualityWarning)
        make(n_components=1).fit(noise())


# Parts of the user.


def test_own_schedule_is_used():
    calls = []

    def own(*parts, **options):
        calls.append(options["max_iter"])
        return run(*parts, **options)

    model, plain = make(schedule=own, max_iter=7).fit(data.X), make(schedule="plain", max_iter=7).fit(data.X)
    assert calls == [7]
    assert model.parts_.algorithm is own
    np.testing.assert_array_equal(model.components_, plain.components_)


def test_staged_schedule_of_other_lengths_is_used():
    seen = []
    plan = Staged(initial_stages=(HUBER,), initial_iter=3, trial_iter=2, last_iter=0)
    make(schedule=plan, callback=lambda i: seen.append(i.relative_change)).fit(data.X)
    # The main stage has a monitor of its own, which knows no change before it has seen some points.
    assert np.flatnonzero(np.isfinite(seen))[0] == 3 + 2 + SMOOTHED - 1


@pytest.mark.parametrize("method", ["l21", "capped"])
def test_staged_schedule_is_refused_for_losses_of_whole_samples(method):
    with pytest.raises(IncompatibleError, match=r"weighs whole samples, schedule='staged' entries: use 'plain'"):
        make(method=method, schedule="staged").fit(data.X)


@pytest.mark.parametrize("schedule", ["staged", "plain"])
@pytest.mark.parametrize("method", ["heavy-noise", "near-separable"])
def test_schedules_are_refused_for_methods_that_do_not_iterate(method, schedule):
    with pytest.raises(IncompatibleError, match=r"does not iterate: schedule must be 'auto'; got '(staged|plain)'"):
        make(method=method, schedule=schedule).fit(data.X)


@pytest.mark.parametrize("given", ["unheard-of", 3, None, Staged])
def test_unusable_schedule_gives_an_error_that_lists_the_choices(given):
    with pytest.raises(ValueError, match=r"schedule must be one of 'auto', 'plain', 'staged' or an object like.*got"):
        make(schedule=given).fit(data.X)


@pytest.mark.parametrize("method", ["l1", "huber", "cim", "cauchy"])
def test_staged_schedule_serves_every_loss_of_entries(method):
    assert error(make(method=method, schedule="staged")) < 0.12


def test_number_for_the_scale_is_kept_in_the_main_stage():
    model = make(scale=0.05)
    assert error(model) < 0.02
    assert model.scale_ == pytest.approx(0.05)
    assert set(model.history_["scale"][-10:]) == {model.scale_}


@pytest.mark.parametrize("outliers", ["none", "mad", "mad-feature", "three-sigma", "spread", 9.0])
def test_outlier_rules_of_the_user_serve_the_staged_schedule(outliers):
    model = make(outliers=outliers)
    assert error(model) < 0.03
    high = data.outliers & (data.X == 10)
    assert np.all(model.outliers_[high] == (outliers != "none"))


def test_number_for_outliers_cuts_beyond_its_root_times_the_scale():
    model = make(outliers=9.0).fit(data.X)
    np.testing.assert_allclose(model.thresholds_, 3 * model.scale_)


def test_rule_for_images_serves_the_staged_schedule():
    X, _, blocks = occluded(size=5)
    model = make(n_components=6, outliers="median-filter", image_shape=(16, 16), max_iter=40).fit(X)
    assert model.outliers_[blocks].mean() > 0.75  # a median filter takes the corners off
    assert model.outliers_[~blocks].mean() < 0.05


@pytest.mark.parametrize(("scale", "outliers"), [(MAD(), "auto"), (MAD(), MADRule())], ids=["scale", "both"])
def test_rules_of_the_user_are_not_relaxed(scale, outliers):
    model = make(scale=scale, outliers=outliers)
    residual = np.abs(data.X - model.fit_transform(data.X) @ model.components_)
    assert model.scale_ == pytest.approx(1.4826 * np.median(residual), rel=0.2)


def test_scale_of_the_start_is_kept_where_the_user_wants_it():
    main = make(scale=FirstScale()).fit(data.X).history_["scale"][45:]
    assert len(set(main)) == 1


# Data.


@pytest.mark.thinned(2)
@pytest.mark.parametrize("filler", [0.0, 1e300, -5.0, np.inf, np.nan], ids=str)
def test_entries_of_weight_zero_have_no_influence_whatever_they_hold(filler):
    weights = np.where(np.random.default_rng(1).random(data.X.shape) < 0.2, 0.0, 1.0)
    expected = make(max_iter=60).fit(np.where(weights == 0, 7.0, data.X), weights=weights)
    found = make(max_iter=60).fit(np.where(weights == 0, filler, data.X), weights=weights)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.weights_, expected.weights_)
    assert found.scale_ == expected.scale_


def test_missing_entries_and_weights_leave_the_fit_good():
    rng = np.random.default_rng(1)
    X = np.where(rng.random(data.X.shape) < 0.3, np.nan, data.X)
    model = make()
    assert error(model, X, weights=rng.integers(1, 5, X.shape)) < 0.02
    assert not model.outliers_[np.isnan(X)].any()


def test_outliers_of_little_weight_count_little_in_the_share_of_the_clean():
    data = make_data(N, M_FEATURES, RANK, outliers=0.3)
    weights = np.where(data.outliers, 0.01, 1.0)
    full, little = (make(noise=None).fit(data.X, weights=w).history_["scale"][40] for w in (None, weights))
    assert little / full == pytest.approx(1 / 0.7**2, rel=0.3)  # scale = 5 * width * share**2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_precisions_give_a_good_fit_in_their_own(dtype):
    model = make()
    codes = model.fit_transform(data.X.astype(dtype))
    assert codes.dtype == model.components_.dtype == model.thresholds_.dtype == dtype
    assert np.linalg.norm(codes @ model.components_ - data.clean) < 0.02 * np.linalg.norm(data.clean)


@pytest.mark.parametrize("axis", [0, 1], ids=["samples", "features"])
def test_order_does_not_matter_for_the_error(axis):
    order = np.random.default_rng(3).permutation(data.X.shape[axis])
    X, clean = np.take(data.X, order, axis), np.take(data.clean, order, axis)
    assert error(make(), X, clean) == pytest.approx(error(make()), rel=0.2)


@pytest.mark.parametrize("factor", [2.0**-100, 2.0**100])
def test_unit_of_the_data_changes_no_bit(factor):
    expected, found = make(max_iter=60).fit(data.X), make(max_iter=60).fit(factor * data.X)
    np.testing.assert_array_equal(found.components_, expected.components_)
    assert found.scale_ == factor * expected.scale_


# Large data: all but the last iterations work with some of the samples.


@pytest.fixture
def few_are_enough(monkeypatch):
    monkeypatch.setattr(stage, "ENOUGH_ENTRIES", 100 * M_FEATURES)
    monkeypatch.setattr(stage, "ENOUGH_SAMPLES", 5)


LARGE = make_data(400, M_FEATURES, RANK, outliers=0.2, seed=3)


def error_of_large(**weights):
    model = make()
    codes = model.fit_transform(LARGE.X, **weights)
    assert codes.shape == (400, RANK)
    return np.linalg.norm(codes @ model.components_ - LARGE.clean) / np.linalg.norm(LARGE.clean)


def test_some_samples_are_enough_to_find_the_components(few_are_enough):
    part_and_all = error_of_large()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ENOUGH_ENTRIES", 10**9)
        every_time_all = error_of_large()
    assert part_and_all < 1.1 * every_time_all


def test_last_iterations_have_all_samples(few_are_enough, monkeypatch):
    seen = []
    monkeypatch.setattr(staged_module, "sweep", lambda V, *a: (seen.append(sum(map(len, V))), sweep(V, *a))[1])
    make(noise=None).fit(LARGE.X)
    assert set(seen[:-10]) == {100}
    assert seen[-10:] == [400] * 10


def test_weights_and_gaps_of_large_data_count(few_are_enough):
    weights = np.where(LARGE.outliers, 0.0, 1.0)
    assert error_of_large(weights=weights) < error_of_large()


def test_codes_of_large_data_stop_before_they_follow_the_noise(few_are_enough):
    X = noise(400)
    model = RobustNMF(RANK, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataQualityWarning)
        codes = model.fit_transform(X)
    assert codes.shape == (400, RANK)
    assert model._basis.sweeps is not None


def test_cut_of_large_data_into_blocks_does_not_matter(few_are_enough, monkeypatch):
    whole = make(max_iter=40).fit(LARGE.X)
    monkeypatch.setattr(numpy_engine, "BLOCK_ENTRIES", 300)
    cut = make(max_iter=40).fit(LARGE.X)
    np.testing.assert_allclose(cut.components_, whole.components_, rtol=0, atol=1e-6)


class Asked(NumPyEngine):
    """An engine that is asked to make whole iterations, and cannot; it counts how often."""

    asked = 0

    @property
    def kernels(self):
        return replace(super().kernels, iterate=self.iterate)

    def iterate(self, V, M, held, hide, method, now, before, momentum, weighting, monitor):
        self.asked += 1
        assert 0 <= momentum < 1 and weighting.scale > 0


@pytest.mark.parametrize(
    ("parts", "asked"),
    [
        ({}, "always"),
        ({"scale": MAD(), "outliers": MADRule()}, "always"),
        ({"solver": HALS(max_iter=2)}, "in the initial stages"),  # which have a solver of their own
    ],
)
def test_engines_are_asked_for_whole_iterations_where_they_could(parts, asked):
    engine, method = Asked(), replace(resolve("truncated-cauchy", "default").method, **parts)
    W, H = MedianStart()(data.X.T, None, RANK, np.random.default_rng(0))
    start = W, [np.ascontiguousarray(H.T)]
    options = {"max_iter": 60, "tol": 0.0, "scale_floor": 1e-15}
    result = Staged(patience=60)(engine.split(data.X), None, *start, method, engine, **options)
    expected = {"always": len(result.history) - 1, "in the initial stages": 2 * 7}
    assert engine.asked == expected[asked]
