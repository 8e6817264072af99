"""Pictures of a factorisation: what is drawn is what was given, and errors say what to do."""

import sys

import matplotlib
import numpy as np
import pytest
from sklearn import datasets

from conftest import make_data
from robustnmf import RobustNMF, TruncatedCauchyNMF, plots
from robustnmf.algorithm import judged_entries
from robustnmf.errors import MissingExtraError
from robustnmf.model.losses import Absolute, Cauchy, Squared, Truncated
from robustnmf.selection import select_rank
from robustnmf.utils.process_state import ignored_warnings

matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


NAMES = [f"f{place}" for place in range(24)]


@pytest.fixture(scope="module")
def data():
    sample = make_data(40, 24)
    sample.X[3, 5:9] = np.nan
    return sample


@pytest.fixture(scope="module")
def model(data):
    return TruncatedCauchyNMF(3, random_state=0).fit(data.X)


@pytest.fixture(autouse=True)
def nothing_global():
    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before


@pytest.fixture
def ax():
    return plt.figure().subplots()


def drawn(axes, place=0):
    return np.ma.filled(axes.get_images()[place].get_array().astype(float), np.nan)


def test_components_as_images_are_a_mosaic(model, ax):
    assert plots.components(model, image_shape=(4, 6), ax=ax) is ax
    sheet = drawn(ax)
    assert sheet.shape == (9, 13)  # two rows of two, a line between them
    for number, (top, left) in enumerate([(0, 0), (0, 7), (5, 0)]):
        np.testing.assert_array_equal(
            sheet[top : top + 4, left : left + 6], model.components_[number].reshape(4, 6).astype(float)
        )
    assert np.isnan(sheet[5:, 7:]).all()


def test_components_as_lines_stand_above_each_other_over_wavelengths(model, ax):
    waves = np.linspace(400, 700, 24)
    plots.components(model, kind="spectra", feature_names=waves, ax=ax)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["1", "2", "3"]
    for line, base, component in zip(ax.get_lines(), ax.get_yticks(), model.components_, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), waves)
        np.testing.assert_allclose(line.get_ydata() - base, component, atol=1e-12)


def test_components_as_bars_have_the_names_of_the_features(model, ax):
    names = [f"$species {number}" for number in range(24)]  # one dollar each: no mathematics
    plots.components(model, feature_names=names, ax=ax)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == names
    heights = np.array([bar.get_height() for bars in ax.containers for bar in bars])
    np.testing.assert_allclose(heights.reshape(3, 24), model.components_)
    ax.figure.canvas.draw()


def test_the_kind_follows_the_data(model):
    assert plots.components(model).containers  # 24 features: bars
    assert not plots.components(np.ones((2, 31))).containers
    assert plots.components(np.ones((2, 6)), image_shape=(2, 3)).get_images()


def test_the_image_shape_may_be_that_of_the_model(data):
    fitted = RobustNMF(2, image_shape=(4, 6), random_state=0).fit(data.X)
    assert plots.components(fitted).get_images()


def test_codes_are_drawn_as_they_are(model, data, ax):
    assert plots.codes(model, data.X, ax=ax) is ax
    np.testing.assert_array_equal(drawn(ax), model.transform(data.X))
    other = plots.codes(np.eye(3))
    np.testing.assert_array_equal(drawn(other), np.eye(3))
    assert (other.get_xlabel(), other.get_ylabel()) == ("component", "sample")


def test_the_map_of_residuals_is_in_widths_of_the_noise_and_leaves_missing_entries_out(model, data, ax):
    plots.residuals(model, data.X, kind="map", ax=ax)
    predicted = np.minimum(model.transform(data.X) @ model.components_, model.noise_.largest)
    expected = (data.X - predicted) / model.noise_.width(predicted, np)
    np.testing.assert_allclose(drawn(ax), expected, atol=1e-6)
    assert np.isnan(drawn(ax)[3, 5:9]).all()


@pytest.mark.parametrize("draw", [plots.residuals, plots.residual_histogram])
def test_the_histogram_of_residuals_counts_every_observed_entry(model, data, ax, draw):
    draw(model, data.X, ax=ax)
    counts = [[bar.get_height() for bar in bars] for bars in ax.containers]
    assert sum(counts[0]) == np.isfinite(data.X).sum() - model.outliers_.sum()
    assert sum(counts[1]) == model.outliers_.sum()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert set(labels) == {"kept", "outliers", "threshold"}
    assert max(line.get_xdata()[0] for line in ax.lines) == pytest.approx(model.noise_.threshold)


def test_the_histogram_of_a_feature_counts_its_entries(model, data, ax):
    plots.residual_histogram(model, data.X, feature=6, ax=ax)
    counts = [sum(bar.get_height() for bar in bars) for bars in ax.containers]
    assert counts == [np.isfinite(data.X[:, 6]).sum() - model.outliers_[:, 6].sum(), model.outliers_[:, 6].sum()]


def test_histograms_of_all_features_have_the_shares_of_their_entries(model, data, ax):
    assert plots.residuals(model, data.X, kind="features", ax=ax) is ax
    cells = ax.images[0].get_array().filled(0)
    np.testing.assert_allclose(cells.sum(axis=0), 100)
    top, counts = ax.images[0].get_extent()[3], np.isfinite(data.X).sum(axis=0)
    limit = model.noise_.threshold
    outer = np.abs(np.linspace(-top, top, 61)[:-1] + top / 60) > limit + top / 60
    found = np.round(cells[outer].sum(axis=0) * counts / 100)
    assert np.all(np.abs(found - model.outliers_.sum(axis=0)) <= 2)  # one cell holds the threshold
    assert found.sum() > 0.8 * model.outliers_.sum() > 0


@pytest.mark.parametrize("method", ["cauchy", "l2", "truncated-cauchy"])
def test_residuals_of_a_fit_with_uncertainties_are_in_units_of_them(data, ax, method):
    U = 0.02 + 0.05 * np.nan_to_num(data.X)
    options = {"noise": None} if method == "truncated-cauchy" else {}
    model = RobustNMF(3, method=method, random_state=0, **options).fit(data.X, uncertainties=U)
    plots.residuals(model, data.X, uncertainties=U, kind="map", ax=ax)
    codes = model.transform(data.X, uncertainties=U)
    typical = np.nanmedian(np.where(np.isfinite(data.X), U, np.nan), axis=0)
    expected = (data.X - codes @ model.components_) / typical / model.scale_
    np.testing.assert_allclose(drawn(ax), expected, atol=1e-6 * np.nanmax(np.abs(expected)))


def areas(axes):
    """Return the upper edges of stacked areas, from left to right, one row each."""
    edges = []
    for area in axes.collections:
        points = area.get_paths()[0].vertices
        n = (len(points) - 3) // 2
        edges.append(points[n + 2 : 2 * n + 2, 1][::-1])
    return np.array(edges)


def test_contributions_add_up_to_the_reconstruction_of_each_sample(model, data, ax):
    codes = model.transform(data.X)
    assert plots.contributions(model, codes=codes, ax=ax) is ax
    np.testing.assert_allclose(areas(ax)[-1], (codes @ model.components_).sum(axis=1), rtol=1e-6)


def test_contributions_to_a_feature_lie_on_an_axis_of_time(model, data, ax):
    dates = [f"2024-01-{day:02d}" for day in range(1, 29)] + [f"2024-02-{day:02d}" for day in range(1, 13)]
    plots.contributions(model, data.X, feature="f5", index=dates[::-1], kind="lines", ax=ax, feature_names=NAMES)
    codes = model.transform(data.X)[::-1]  # drawn in the order of time
    for k, line in enumerate(ax.lines):
        np.testing.assert_allclose(line.get_ydata(), codes[:, k] * model.components_[k, 5])
        assert line.get_xdata().astype(str)[[0, -1]].tolist() == ["2024-01-01T00:00:00", "2024-02-12T00:00:00"]
    assert ax.get_ylabel() == "f5"


def test_profiles_are_what_an_average_sample_gets(model, data):
    codes = model.transform(data.X)
    panels = plots.profiles(model, codes=codes)
    given = codes.mean(axis=0)[:, None] * model.components_
    for k, panel in enumerate(panels):
        np.testing.assert_allclose([bar.get_height() for bar in panel.containers[0]], given[k])
    (dots,) = panels[1].figure.axes[len(panels) + 1].lines
    np.testing.assert_allclose(dots.get_ydata(), 100 * given[1] / given.sum(axis=0))
    single = plots.profiles(model, codes=codes, component=2)
    np.testing.assert_allclose([bar.get_height() for bar in single.containers[0]], given[1])


def test_shares_and_what_is_not_explained_are_all_of_a_feature(model, data, ax):
    plots.explained_share(model, data.X, ax=ax)
    heights = np.array([[bar.get_height() for bar in bars] for bars in ax.containers])
    kept = np.isfinite(data.X) & ~model.outliers_
    codes = model.transform(data.X)
    feature = 6
    total = data.X[kept[:, feature], feature].sum()
    expected = 100 * codes[kept[:, feature]].sum(axis=0) * model.components_[:, feature] / total
    np.testing.assert_allclose(heights[:3, feature], expected)
    assert np.all(heights.sum(axis=0) >= 100 - 1e-9)


def test_measured_entries_are_drawn_over_explained_ones(model, data, ax):
    plots.observed_vs_explained(model, data.X, feature=6, ax=ax)
    found = points(ax)
    explained = model.transform(data.X) @ model.components_[:, 6]
    kept = np.isfinite(data.X[:, 6]) & ~model.outliers_[:, 6]
    pairs = np.stack([explained, data.X[:, 6]], axis=1)[kept]
    np.testing.assert_allclose(np.sort(found["kept"], axis=0), np.sort(pairs, axis=0))


def test_images_of_components_are_as_bright_as_in_samples(model, data, ax):
    codes = model.transform(data.X)
    plots.component_images(model, (4, 6), codes=codes, ax=ax)
    positive = codes[:, 0][codes[:, 0] > 0]
    np.testing.assert_allclose(drawn(ax)[:4, :6], np.median(positive) * model.components_[0].reshape(4, 6))
    assert [text.get_text() for text in ax.texts] == ["1", "2", "3"]


def test_components_are_drawn_in_colour_or_with_channels_side_by_side(model, ax):
    plots.component_images(model, (2, 4, 3), ax=ax)
    np.testing.assert_allclose(drawn(ax)[:2, :4], model.components_[0].reshape(2, 4, 3) / model.components_.max())
    figure, other = plt.subplots()
    plots.component_images(model, (2, 3, 4), ax=other)
    left, right = model.components_[0].reshape(2, 3, 4)
    np.testing.assert_allclose(drawn(other)[:3, :4], left)
    np.testing.assert_allclose(drawn(other)[:3, 5:9], right)
    plt.close(figure)


def test_the_image_of_a_sample_has_its_outliers_in_colour(model, data, ax):
    sample = int(model.outliers_.sum(axis=1).argmax())
    plots.outlier_image(model, data.X, sample, (4, 6), ax=ax)
    red = np.all(np.round(255 * drawn(ax)) == [214, 39, 40], axis=2)
    np.testing.assert_array_equal(red, model.outliers_[sample].reshape(4, 6))


def test_the_image_of_a_sample_is_drawn_in_colour_or_with_channels_side_by_side(model, data, ax):
    sample = int(model.outliers_.sum(axis=1).argmax())
    wrong, values = model.outliers_[sample], data.X[sample]
    top = values[~wrong & np.isfinite(values)].max()
    plots.outlier_image(model, data.X, sample, (2, 4, 3), ax=ax)
    right = ~(wrong | np.isnan(values)).reshape(2, 4, 3).any(axis=2)
    assert right.any() and not right.all()
    np.testing.assert_allclose(drawn(ax)[right], values.reshape(2, 4, 3)[right] / top)
    figure, other = plt.subplots()
    plots.outlier_image(model, data.X, sample, (2, 3, 4), ax=other)
    red = np.all(np.round(255 * drawn(other)) == [214, 39, 40], axis=2)
    np.testing.assert_array_equal(red[:, [0, 1, 2, 3, 5, 6, 7, 8]], np.hstack(wrong.reshape(2, 3, 4)))
    plt.close(figure)


def test_given_codes_are_not_computed_again(model, data, monkeypatch):
    codes = model.transform(data.X)
    monkeypatch.setattr(type(model), "transform", lambda *_, **__: pytest.fail("encoded again"))
    plots.contributions(model, codes=codes)
    plots.profiles(model, codes=codes)
    plots.observed_vs_explained(model, data.X, codes=codes)


def points(axes):
    """Return sizes and magnitudes of the points of a picture of the noise by their label, (k, 2) each."""
    return {
        dots.get_label(): np.asarray(dots.get_offsets()) for dots in axes.collections if len(dots.get_offsets()) > 1
    }


def test_points_of_the_noise_are_the_entries_that_were_judged(model, data, ax):
    assert plots.noise_width(model, data.X, ax=ax) is ax
    noise, found = model.noise_, points(ax)
    predicted = np.minimum(model.transform(data.X) @ model.components_, noise.largest)
    observed = np.isfinite(data.X)
    informative = observed & (np.fmax(data.X, predicted) > 0.05 * noise.levels)
    assert len(found["outliers"]) == model.outliers_.sum() > 0
    assert len(found["kept"]) == (informative & ~model.outliers_).sum()
    magnitudes = (np.abs(data.X - predicted) / noise.levels)[model.outliers_]
    np.testing.assert_allclose(np.sort(found["outliers"][:, 1]), np.sort(magnitudes))


def test_lines_of_the_noise_are_those_of_a_typical_feature(model, data, ax):
    plots.noise_width(model, data.X, ax=ax)
    noise, (width, threshold) = model.noise_, ax.lines
    sizes, heights = width.get_data()
    typical = np.median(noise.widths / noise.levels)
    np.testing.assert_allclose(heights, typical * ((sizes + 0.1) / 1.1) ** noise.exponent)
    np.testing.assert_allclose(threshold.get_ydata(), noise.threshold * heights)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["kept", "outliers", "width", f"threshold, {noise.threshold:.3g} widths"]


def test_noise_of_large_data_is_drawn_by_some_entries(model, data, ax, monkeypatch):
    monkeypatch.setattr(judged_entries, "ENOUGH_ENTRIES", 240)  # every fourth sample
    entries = judged_entries.judged_entries(model, data.X)
    assert len(entries.sizes) <= 240
    assert entries.is_wrong.sum() == model.outliers_[::4].sum()
    plots.noise_width(model, data.X, most_points=5, ax=ax)
    assert len(points(ax)["kept"]) == 5


def test_entries_are_drawn_as_a_fit_with_scaled_features_judged_them():
    X = datasets.load_breast_cancer().data
    with ignored_warnings((UserWarning, "")):
        model = TruncatedCauchyNMF(3, random_state=0).fit(X)
    assert model._basis.judge is not None
    assert judged_entries.judged_entries(model, X).is_wrong.sum() == model.outliers_.sum() > 0


def test_outliers_are_red_and_missing_entries_grey(model, ax):
    plots.outlier_map(model, ax=ax)
    picture = drawn(ax)
    np.testing.assert_array_equal(np.all(picture == [214, 39, 40], axis=2), model.outliers_)
    assert np.all(picture[3, 5:9] == 138)
    assert "% outliers" in ax.get_title()
    np.testing.assert_array_equal(np.all(drawn(plots.outlier_map(model.outliers_)) == 255, axis=2), ~model.outliers_)


def test_weight_maps_have_a_column_for_each_iteration():
    weights = np.linspace(0, 1, 36).reshape(3, 2, 6)
    figure = plots.weight_maps(weights, (2, 3), titles=["1", "2", "3"])
    assert len(figure.axes) == 6
    assert [axis.get_title() for axis in figure.axes[:3]] == ["1", "2", "3"]
    np.testing.assert_array_equal(drawn(figure.axes[5]), weights[2, 1].reshape(2, 3))
    assert len(plots.weight_maps([weights[0, 0]], (2, 3), figure=plt.figure()).axes) == 1


def test_history_has_a_panel_for_each_column(model):
    figure = plots.history(model)
    assert [axis.get_ylabel() for axis in figure.axes] == ["objective", "scale", "share of outliers"]
    np.testing.assert_array_equal(figure.axes[1].get_lines()[0].get_ydata(), model.history_["scale"])
    changes = plots.history(model.history_, columns=["relative_change"], figure=plt.figure()).axes[0]
    assert not np.isinf(changes.get_lines()[0].get_ydata()).any()  # that of the start is infinite
    figure.canvas.draw()


def test_rank_curve_is_drawn_in_order_with_errors_and_the_choice(ax):
    assert plots.rank_curve([4, 2, 3], [0.3, 0.1, 0.2], [0.03, 0.01, 0.02], chosen=3, ax=ax) is ax
    line = ax.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), [2, 3, 4])
    np.testing.assert_array_equal(line.get_ydata(), [0.1, 0.2, 0.3])
    (bars,) = ax.containers[0].lines[2]
    np.testing.assert_allclose([np.ptp(segment[:, 1]) / 2 for segment in bars.get_segments()], [0.01, 0.02, 0.03])
    assert ax.get_legend().get_texts()[0].get_text() == "chosen: 3"


def test_rank_curve_takes_what_select_rank_returns(ax):
    found = select_rank(make_data(30, 20).X, [1, 2, 3], n_splits=2, random_state=0)
    plots.rank_curve(found, ax=ax)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), found.mean)
    assert ax.get_legend().get_texts()[0].get_text() == f"chosen: {found.chosen}"


def test_every_public_picture_is_listed():
    drawing = {name for name, value in vars(plots).items() if callable(value) and not name.startswith(("_", "check_"))}
    assert drawing - {"Kind"} == set(plots.__all__)


def test_curves_are_those_of_the_losses(ax):
    plots.loss_curves([Cauchy(), Truncated(Cauchy(), 4.0)], ax=ax)
    first, second = ax.get_lines()
    np.testing.assert_allclose(first.get_ydata(), np.log1p(first.get_xdata() ** 2))
    assert second.get_ydata().max() == pytest.approx(np.log(5))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["cauchy", "truncated-cauchy"]
    weights = plots.weight_curves({"mine": Cauchy(), "norm": Absolute(), "plain": Squared()})
    x = weights.get_lines()[0].get_xdata()
    np.testing.assert_allclose(weights.get_lines()[0].get_ydata(), 1 / (1 + x**2))
    assert weights.get_ylim() == (0, pytest.approx(1.1))  # the tip of the norm, 500 high, is left out


def test_before_after_draws_into_a_figure_and_missing_pixels_in_grey():
    figure = plt.figure()
    images = np.array([[0.0, 1.0, 2.0, np.nan]])
    assert plots.before_after([("data", images), ("mask", images > 1)], (2, 2), figure=figure) is figure
    picture = drawn(figure.axes[0])
    np.testing.assert_allclose(picture[0], [[0, 0, 0], [0.5, 0.5, 0.5]])
    assert picture[1, 1] == pytest.approx(138 / 255)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, X: plots.components(RobustNMF()), "RobustNMF is not fitted yet: call fit"),
        (lambda m, X: plots.codes(RobustNMF(), X), "not fitted"),
        (lambda m, X: plots.residuals(RobustNMF(), X), "not fitted"),
        (lambda m, X: plots.outlier_map(RobustNMF()), "not fitted"),
        (lambda m, X: plots.history(RobustNMF()), "not fitted"),
        (lambda m, X: plots.history(3), "A fitted estimator is needed; got int"),
        (lambda m, X: plots.components(m, kind="images"), r"pass image_shape=\(height, width\)"),
        (lambda m, X: plots.components(m, image_shape=(5, 5)), r"24 pixels in all; got \(5, 5\)"),
        (lambda m, X: plots.components(m, image_shape=24), "24 pixels in all"),
        (lambda m, X: plots.components(m, image_shape=(-4, -6)), "24 pixels in all"),
        (lambda m, X: plots.components(m, kind="pie"), "'auto', 'images', 'spectra' or 'bars'; got 'pie'"),
        (lambda m, X: plots.components(m, feature_names=["a"]), "feature_names must have 24 entries.*got 1"),
        (lambda m, X: plots.components(np.ones(3)), r"components must be.*shape \(3,\)"),
        (lambda m, X: plots.codes(m), "pass the samples, X, or their codes"),
        (lambda m, X: plots.codes(m, X[:, :3]), "3 features"),
        (lambda m, X: plots.residuals(m, X, kind="pie"), "'histogram', 'features' or 'map'"),
        (lambda m, X: plots.noise_width(RobustNMF(), X), "not fitted"),
        (lambda m, X: plots.noise_width(RobustNMF(2, method="l2", tol=1.0).fit(X), X), "Fit with noise='auto'"),
        (lambda m, X: plots.noise_width(m, X, most_points=0), "positive integer; got 0"),
        (lambda m, X: plots.outlier_map(X), "boolean matrix; got float64"),
        (lambda m, X: plots.weight_maps([], (2, 2)), "one or more arrays"),
        (lambda m, X: plots.weight_maps([np.ones(4), np.ones(6)], (2, 2)), "one shape"),
        (lambda m, X: plots.weight_maps([np.ones(4)], (2, 3)), r"height \* width = 4"),
        (lambda m, X: plots.weight_maps([np.ones(4)], (2, 2), titles=[]), "titles must have 1"),
        (lambda m, X: plots.history(m, columns=["speed"]), "among objective, scale.*got speed"),
        (lambda m, X: plots.rank_curve([1, 2], [1.0]), "of one length"),
        (lambda m, X: plots.rank_curve([1, 2]), "what select_rank returns"),
        (lambda m, X: plots.contributions(m), "pass the samples, X, or their codes"),
        (lambda m, X: plots.contributions(m, codes=np.ones((4, 2))), r"shape \(n_samples, 3\).*got \(4, 2\)"),
        (lambda m, X: plots.contributions(m, X, feature="gold"), "name of a feature.*got 'gold'"),
        (lambda m, X: plots.contributions(m, X, kind="pie"), "'stacked' or 'lines'"),
        (lambda m, X: plots.profiles(m, X, component=0), "from 1 to 3; got 0"),
        (lambda m, X: plots.profiles(m, X, ax=object()), "for a single component"),
        (lambda m, X: plots.outlier_image(m, X, 40, (4, 6)), "below 40; got 40"),
        (lambda m, X: plots.observed_vs_explained(m, X, most_points=0), "positive integer; got 0"),
        (lambda m, X: plots.rank_curve([1, 2], [1.0, 2.0], chosen=3), r"one of the ranks \[1, 2\]; got 3"),
        (lambda m, X: plots.loss_curves(["cauchy"]), "objects like those of robustnmf.model.losses"),
        (lambda m, X: plots.weight_curves([]), "at least one loss"),
        (lambda m, X: plots.loss_curves([Cauchy()], limit=0), "positive"),
        (lambda m, X: plots.before_after([], (2, 2)), "of one shape"),
        (lambda m, X: plots.before_after([("a", np.ones((1, 4)))], (2, 3)), r"height \* width = 4"),
    ],
)
def test_errors_say_what_to_do(model, data, call, message):
    with pytest.raises(ValueError, match=message):
        call(model, data.X)


@pytest.mark.parametrize("call", [lambda: plots.codes(np.eye(2)), lambda: plots.weight_maps([np.ones(4)], (2, 2))])
def test_a_missing_extra_is_named(monkeypatch, call):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r'pip install "robustnmf\[plots\]"'):
        call()


def test_contributions_lead_no_line_across_a_long_gap_of_time():
    model = RobustNMF(2, method="l2", max_iter=3, random_state=0).fit(np.ones((6, 4)))
    dates = ["2024-01-01", "2024-01-02", "2024-01-03", "2024-06-01", "2024-06-02", "2024-06-03"]
    ax = plots.contributions(model, codes=np.ones((6, 2)), index=dates, kind="lines")
    drawn = ax.lines[0].get_ydata()
    assert len(drawn) == 7 and np.flatnonzero(np.isnan(drawn)).tolist() == [3]
    plt.close("all")
