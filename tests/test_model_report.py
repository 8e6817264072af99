"""The page of a fitted model: what it says, and what a browser makes of it."""

import io
import re
import subprocess
import sys
import warnings
from base64 import b64decode
from copy import copy
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

import browser
from robustnmf import RobustNMF, TruncatedCauchyNMF, report
from robustnmf.data.blocks import Observations
from robustnmf.errors import DataQualityWarning, MissingExtraError
from robustnmf.formats import Axis, LabelledMatrix
from robustnmf.report import diagnoses, page, pictures
from robustnmf.report.drawing import pool
from robustnmf.report.facts import Facts
from robustnmf.utils.files import sealed
from robustnmf.version import __version__
from test_report_page import CONTRAST, Elements

matplotlib.use("Agg")

HOSTILE = '</script><script>alert("1")</script>'
NAMES = [HOSTILE, "$\\frac{", "]]><b>", "a\x00b", "\udc80", "", "x" * 500, *(f"pixel {k}" for k in range(7, 64))]


def make(rank=3, n=160, m=64, noise=0.02, wrong=0.0, seed=0):
    """Return low-rank data of which a share is grossly wrong."""
    rng = np.random.default_rng(seed)
    X = (rng.random((n, rank)) * (rng.random((n, rank)) < 0.7)) @ (
        rng.random((rank, m)) * (rng.random((rank, m)) < 0.7)
    )
    X = np.maximum(X + 0.2 + noise * rng.standard_normal((n, m)), 0)
    mask = rng.random((n, m)) < wrong
    X[mask] = rng.uniform(5, 20, mask.sum())
    return X


def spoil(X, situation):
    """Return data with a fault of one kind."""
    rng = np.random.default_rng(1)
    if situation == "dead":
        X[:, 7] = rng.uniform(0, 50, len(X))  # gets a component of its own
        X[11] = rng.uniform(0, 50, X.shape[1])
        X[:, 9] = 0
    if situation == "gaps":
        X[rng.random(X.shape) < 0.1] = np.nan
        X[5, 10:20] = 30.0
    return X


@cache
def fitted(rank=4, situation="clean", **parameters):
    """Return a model and its data. The level of 0.2 below is one component more than the rank says."""
    X = spoil(make(wrong={"half": 0.5, "nearly half": 0.45}.get(situation, 0.0)), situation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", DataQualityWarning)
        return TruncatedCauchyNMF(rank, random_state=0, **parameters).fit(X), X


def judge(model, X, *, images=False):
    """Return the diagnoses of a fit by name."""
    names = [[f"{letter}{place}" for place in range(count)] for letter, count in zip("sf", X.shape, strict=True)]
    return {d.name: d for d in diagnoses.diagnose(Facts.of(model, X, None), names[1], names[0], images=images)}


def test_a_good_fit_of_clean_data_gets_no_warning():
    found = judge(*fitted())
    assert list(found) == ["convergence", "explanation", "scale", "outliers", "lines", "rank-high", "rank-low"]
    assert not {"bad", "doubt"} & {diagnosis.verdict for diagnosis in found.values()}


def test_a_fit_that_did_not_converge_is_told_how_to():
    found = judge(*fitted(max_iter=10))["convergence"]
    assert found.verdict == "bad"
    assert "max_iter=20" in found.advice


@pytest.mark.parametrize("parameters", [{}, {"scale": 0.02}, {"outliers": "mad"}])
def test_a_fit_that_needs_not_all_iterations_at_its_end_was_not_ended_by_a_callback(parameters):
    # Of the iterations that are kept for two relaxations it makes only those that it tries.
    model, X = fitted(max_iter=40, tol=0.0, **parameters)
    assert not model.converged_
    assert parameters == {} or model.n_iter_ < model.max_iter
    assert judge(model, X)["convergence"].finding == "The fit did not converge"


def test_a_fit_that_a_callback_ended_says_so():
    found = judge(*fitted(callback=lambda iteration: iteration.n_iter == 15))["convergence"]
    assert found.finding == "The fit was ended by the callback"


def test_too_many_components_are_counted():
    found = judge(*fitted(7))
    assert found["rank-high"].verdict == "doubt"
    assert "3 of the 7 directions" in found["rank-high"].reason
    assert "n_components=4" in found["rank-high"].advice
    assert found["rank-low"].verdict == "good"


def test_too_few_components_leave_structure():
    found = judge(*fitted(2))
    assert found["rank-low"].verdict == "bad"
    assert found["rank-high"].verdict == "good"


def test_dead_features_and_strange_samples_are_named():
    model, X = fitted(situation="dead")
    found = judge(model, X)["lines"]
    assert found.verdict == "doubt"
    assert "1 feature lost 50\xa0% or more of the entries: f7" in found.reason
    assert "1 sample lost 50\xa0% or more of the entries: s11" in found.reason
    assert "1 feature zero throughout: f9" in found.reason
    # The margin of an image is often black.
    assert "zero throughout" not in judge(model, X, images=True)["lines"].reason


def made_up(mask, **attributes):
    """Return facts of a model of ones that has these outliers."""
    n, m = mask.shape
    model = SimpleNamespace(outliers_=mask, components_=np.ones((1, m)), **attributes)
    return Facts(model, Observations(np.ones(mask.shape), None), np.ones((n, 1)))


def test_a_feature_that_is_cut_whole_is_named():
    mask = np.zeros((160, 64), dtype=bool)
    mask[20:, 5] = True
    found = diagnoses.whole_lines(made_up(mask), range(64), range(160), images=False)
    assert found.verdict == "doubt"
    assert found.reason == "1 feature lost 50\xa0% or more of the entries: 5."


def test_a_component_of_one_feature_is_named():
    mask = np.zeros((160, 64), dtype=bool)
    facts = made_up(mask)
    facts.model.components_ = np.eye(1, 64, 7) * 100 + 1e-3
    found = diagnoses.whole_lines(facts, range(64), range(160), images=False)
    assert found.verdict == "doubt"
    assert "is about one feature only: 7" in found.reason


def test_data_that_is_half_wrong_is_suspicious():
    found = judge(*fitted(situation="nearly half"))
    assert (found["outliers"].verdict, found["explanation"].verdict) == ("doubt", "good")
    # With half of it wrong the fit takes the errors for data, and cuts nothing.
    model, X = fitted(situation="half", noise=None)
    assert not model.outliers_.any()
    assert judge(model, X)["explanation"].verdict == "bad"


def test_a_share_of_outliers_is_judged():
    def verdict(share, thresholds=1.0):
        mask = np.arange(100).reshape(10, 10) < 100 * share
        parts = SimpleNamespace(outliers=None)
        return diagnoses.outlier_share(made_up(mask, thresholds_=np.full(10, thresholds), parts_=parts)).verdict

    shares = {0.0: "good", 0.01: "good", 0.3: "good", 0.4: "doubt", 0.6: "bad"}
    assert {share: verdict(share) for share in shares} == shares
    assert verdict(0.0, np.inf) == "open"  # a model that cuts nothing


def test_a_scale_that_still_moves_is_seen():
    model, X = fitted(schedule="plain")
    facts = Facts.of(model, X, None)

    def verdict(*values):
        history = {**model.history_, "scale": np.array(values) * model.scale_}
        parts = {"parts_": model.parts_, "scale_": model.scale_, "converged_": True, "history_": history}
        return diagnoses.scale(replace(facts, model=SimpleNamespace(**parts))).verdict

    assert verdict(9, 1, 1, 1, 1, 1) == "good"
    assert verdict(9, 1.05, 1, 1, 1, 1) == "doubt"
    assert verdict(9, 1.5, 1.4, 1.2, 1.1, 1) == "bad"
    assert verdict(1) == "open"


@pytest.mark.slow
@pytest.mark.parametrize("X", [np.eye(6)[:, :4], np.eye(6), 1e200 * make(n=20, m=12), make(n=20, m=1)])
def test_odd_data_has_a_page(X):
    model = RobustNMF(1, random_state=0).fit(X)
    assert Elements(page.render(model, X)).open == []


def test_components_that_are_alike_or_unused_are_seen():
    C = np.array([[1.0, 0.5, 0.0, 0.2], [1.0, 0.501, 0.0, 0.2], [0.0, 0.0, 1.0, 0.0]])
    H = np.abs(np.random.default_rng(0).normal(size=(30, 3))) * [1, 1, 1e-6]
    X = H @ C
    model = SimpleNamespace(components_=C, outliers_=np.zeros(X.shape, dtype=bool), converged_=True)
    found = diagnoses.rank_too_high(Facts(model, Observations(X, None), H))
    assert found.verdict == "doubt"
    assert "1 component (3) give next to nothing" in found.reason
    assert "omponents 1 and 2 are nearly the same (cosine 1.000)" in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("method", ["l2", "cauchy", "heavy-noise", "rnmf-l1", "capped"])
def test_every_kind_of_model_has_a_page(method):
    X = make(n=40, m=20)
    model = RobustNMF(3, method=method, random_state=0, tol=1e-2).fit(X)
    html = page.render(model, X)
    assert Elements(html).open == []
    verdicts = dict(re.findall(r'data-diagnosis="([^"]+)" data-verdict="([^"]+)"', html))
    assert len(verdicts) == 7
    if method == "heavy-noise":
        assert verdicts["convergence"] == verdicts["scale"] == verdicts["outliers"] == "open"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    model, X = fitted(situation="gaps")
    file = tmp_path_factory.mktemp("report") / "report.html"
    returned = report.write(
        model, X, str(file), image_shape=(8, 8), feature_names=NAMES, title="A & <b>", sample_names=[HOSTILE] * 160
    )
    assert returned == file
    return file


@pytest.fixture(scope="module")
def html(path):
    return path.read_text(encoding="utf-8")


def test_elements_are_closed_and_identifiers_are_there_once(html):
    elements = Elements(html)
    assert elements.open == []
    identifiers = elements.all("id")
    assert len(identifiers) == len(set(identifiers))
    targets = {link[1:] for name in ("href", "xlink:href") for link in elements.all(name) if link.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", html))
    assert targets | set(elements.all("aria-labelledby")) <= set(identifiers)
    assert all(dict(attributes).get("alt") for tag, attributes in elements.found if tag == "img")


def test_nothing_comes_from_elsewhere(html):
    assert all(link.startswith(("#", "data:")) for name in ("src", "href") for link in Elements(html).all(name))
    assert not re.search(r"@import|url\((?!#)", html)
    assert not re.search(r"https?://", re.sub(r'xmlns(:\w+)?="[^"]*"', "", html))
    assert "default-src 'none'" in html


def test_names_are_escaped_wherever_they_are(html):
    assert HOSTILE not in html
    assert "<b>" not in html
    assert html.count("<script") == 2  # the page's own
    assert "<title>A &amp; &lt;b&gt;</title>" in html
    X = make(n=30, m=20)
    model = RobustNMF(2, random_state=0).fit(X)
    bars = page.render(model, X, feature_names=NAMES[:20])  # names below the bars, inside the drawings
    assert HOSTILE not in bars
    assert bars.count("<script") == 2
    assert Elements(bars).open == []


def test_the_summary_is_that_of_the_fit(html):
    model, X = fitted(situation="gaps")
    text = " ".join(re.sub(r"<[^>]+>", " ", html).split()).replace("\xa0", " ")
    observed = np.isfinite(X).sum()
    assert f"160 samples × 64 features, {100 * (1 - observed / X.size):.1f} % missing" in text
    assert f"{100 * model.outliers_.sum() / observed:.1f} % of the observed entries" in text
    kept = np.isfinite(X) & ~model.outliers_
    error = model.reconstruction_err_ / np.linalg.norm(X[kept])
    assert f"{100 * error:.1f} % over the entries that are kept" in text
    assert f"{model.n_iter_} in" in text


def test_the_noise_is_told_in_words_and_drawn(html):
    model, X = fitted(situation="gaps")
    assert 'id="noise"' in html and "residual / level" in html
    sentences = list(page.noise_in_words(Facts.of(model, X, None), [str(k) for k in range(64)]))
    assert f"by the power {model.noise_.exponent:.2g} (0: constant, 0.5: as of counts" in sentences[0]
    assert "of an entry in a typical feature" in sentences[1]
    assert f"over {model.noise_.threshold:.3g} widths" in sentences[-2]
    assert sentences[-1] == model.comparison_.reason


def test_features_with_unusual_noise_are_named():
    model, X = copy(fitted()[0]), fitted()[1]
    factors = np.where(np.arange(64) == 5, 10.0, 1.0)
    model.noise_ = replace(model.noise_, widths=np.median(model.noise_.relative_widths) * model.noise_.levels * factors)
    sentences = list(page.noise_in_words(Facts.of(model, X, None), [f"f{k}" for k in range(64)]))
    assert "Of 1 of 64 features it is over 3 times larger or smaller: f5." in sentences


def test_a_model_without_a_noise_model_has_no_picture_of_it():
    assert 'id="noise"' not in page.render(*fitted(noise=None))


def pixels(uri):
    """Return the picture in a data URI, (height, width, 4) from 0 to 255."""
    image = matplotlib.image.imread(io.BytesIO(b64decode(uri.split(",")[1])))
    return np.round(255 * image).astype(int)


def test_the_map_shows_outliers_and_gaps_where_they_are(html):
    model, X = fitted(situation="gaps")
    picture = pixels(re.search(r'id="map".*?src="([^"]+)"', html, flags=re.DOTALL)[1])
    picture = picture[:: picture.shape[0] // 160, :: picture.shape[1] // 64]
    assert picture.shape == (160, 64, 4)
    red = (picture == [214, 39, 40, 255]).all(axis=2)
    grey = (picture == [138, 138, 138, 150]).all(axis=2)
    np.testing.assert_array_equal(red, model.outliers_)
    np.testing.assert_array_equal(grey, np.isnan(X))
    assert (picture[~red & ~grey] == 0).all()


def test_components_are_pictures_of_the_shape_given(html):
    model, _ = fitted(situation="gaps")
    images = re.findall(r'<img src="([^"]+)" alt="Component (\d)', html)
    assert [int(number) for _, number in images] == [1, 2, 3, 4]
    for uri, number in images:
        grey = pixels(uri)[..., 0]
        np.testing.assert_allclose(grey, 255 * model.components_[int(number) - 1].reshape(8, 8), atol=1.01)


def images_of(html, what):
    return [pixels(uri) for uri, _ in re.findall(rf'<img src="([^"]+)" alt="{what} (\d)', html)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_components_in_colour_are_drawn_in_colour():
    X = np.repeat(make(n=40, m=16), 3, axis=1)[:, :48]
    model = TruncatedCauchyNMF(2, random_state=0, max_iter=5, schedule="plain").fit(X)
    html = page.render(model, X, image_shape=(4, 4, 3))
    for component, image in zip(model.components_, images_of(html, "Component"), strict=True):
        np.testing.assert_allclose(image[..., :3], 255 * component.reshape(4, 4, 3) / component.max(), atol=0.51)
    samples = re.findall(r'<img src="([^"]+)" alt="Sample \d+, data', html)
    assert len(samples) == page.PICTURED and {pixels(uri).shape for uri in samples} == {(4, 4, 4)}


def test_outliers_of_every_sample_are_pictures_unless_they_are_many(monkeypatch):
    model, X = fitted(situation="gaps")
    monkeypatch.setattr(page, "MOST_MASKS", len(X))
    found = re.findall(r'<img src="([^"]+)" alt="Outliers of sample (\d+)"', page.render(model, X, image_shape=(8, 8)))
    assert [int(number) for _, number in found] == list(range(len(X)))
    for uri, number in found[:9]:
        red = (pixels(uri)[..., :3] == (214, 39, 40)).all(axis=-1)
        np.testing.assert_array_equal(red, model.outliers_[int(number)].reshape(8, 8))
    monkeypatch.setattr(page, "MOST_MASKS", len(X) - 1)
    assert "Outliers of every sample" not in page.render(model, X, image_shape=(8, 8))


def test_a_table_tells_the_unit_of_its_entries_and_a_cube_that_of_its_scale_does_not(tmp_path):
    X = make(n=30, m=12)
    model = RobustNMF(2, random_state=0).fit(X)
    units, names = ["ng/m³"] * 12, [str(400 + k) for k in range(12)]
    for is_scale, is_told in ((False, True), (True, False)):
        table = LabelledMatrix(X, features=Axis(names, units=units, is_scale=is_scale))
        html = model.report(table, tmp_path / f"{is_scale}.html").read_text()
        assert ("all features (ng/m³)" in html) == is_told
        assert "Residuals of each feature" in html


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_channels_of_components_stand_side_by_side():
    X = make(n=40, m=32)
    model = TruncatedCauchyNMF(2, random_state=0, max_iter=5, schedule="plain").fit(X)
    html = page.render(model, X, image_shape=(2, 4, 4))
    for component, image in zip(model.components_, images_of(html, "Component"), strict=True):
        left, right = (255 * channel / component.max() for channel in component.reshape(2, 4, 4))
        assert image.shape[:2] == (4, 9) and not image[:, 4, 3].any()
        np.testing.assert_allclose(image[:, :4, 0], left, atol=1.01)
        np.testing.assert_allclose(image[:, 5:, 0], right, atol=1.01)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_codes_of_pixels_are_maps(tmp_path):
    X = make(n=40, m=16)
    model = TruncatedCauchyNMF(2, random_state=0, max_iter=5, schedule="plain").fit(X)
    names = [str(400 + 10 * band) for band in range(16)]
    table = LabelledMatrix(X, Axis(grid=(5, 8), grid_names=("y", "x")), Axis(names, "wavelength"))
    html = model.report(table, tmp_path / "report.html").read_text()
    maps = images_of(html, "Map of component")
    codes = model.transform(X)
    for code, image in zip(codes.T, maps, strict=True):
        np.testing.assert_allclose(image[..., 0], 255 * (code / code.max()).reshape(5, 8), atol=1.01)
    assert re.search(r">y \d, x \d<", html)
    assert "What components give to each sample" not in html
    with pytest.raises(ValueError, match=r"map_shape must be .* 40 pixels in all; got \(5, 7\)"):
        page.render(model, X, map_shape=(5, 7))


def test_a_map_of_large_data_is_pooled_and_no_outlier_is_lost():
    mask = np.zeros((2500, 3000), dtype=bool)
    mask[1203, 2999] = True
    mask[:3, :3] = True
    facts = Facts(SimpleNamespace(outliers_=mask), Observations(np.zeros(mask.shape), None), np.zeros((2500, 1)))
    found = page.outlier_map(facts)
    assert (found.per_cell, found.rows, found.columns) == ((3, 3), 834, 1000)
    opacity = pixels(found.image)[..., 3]
    assert np.argwhere(opacity).tolist() == [[0, 0], [401, 999]]
    assert opacity[0, 0] == 255 > opacity[401, 999] > 100


def test_pooling_joins_entries_that_share_a_cell():
    X = np.arange(30.0).reshape(5, 6)
    np.testing.assert_array_equal(pool(X, (2, 3), np.max), [[13, 15, 17], [25, 27, 29]])
    assert pool(X, (5, 6), np.max) is X


def test_large_data_gives_a_page_of_bounded_size_that_says_so():
    rng = np.random.default_rng(0)
    X = rng.random((1030, 2)) @ rng.random((2, 1030))
    X[rng.random(X.shape) < 0.1] = 5.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = TruncatedCauchyNMF(2, random_state=0, max_iter=3, solver="shared-gram", schedule="plain").fit(X)
    html = page.render(model, X, feature_names=rng.permutation(1030).astype(str))
    assert "each cell stands for 2 × 2 entries" in html
    assert len(html) < 2e6


@pytest.mark.parametrize("named", [True, False])
def test_samples_keep_their_numbers_where_some_are_left_out(monkeypatch, named):
    monkeypatch.setattr(pictures, "MOST_SAMPLES", 50)
    model, X = fitted()
    names = {"feature_names": [str(k) for k in range(64)], "index": [f"s{k}" for k in range(160)] if named else None}
    cards = pictures.explaining_cards(Facts.of(model, X, None), X, None, None, **names, units="", images=True)
    ticks = {
        int(number) for number in re.findall(r">(\d+)</text>", next(cards).svg.split('id="contributions-ytick')[0])
    }
    assert max(ticks) > 100 and max(ticks) < 160


def test_of_many_components_those_that_give_most_are_shown(monkeypatch):
    monkeypatch.setattr(page, "MOST_CARDS", 2)
    model, X = fitted()
    facts = Facts.of(model, X, None)
    shown = [int(card.caption.split()[0]) for card in page.component_cards(facts, (8, 8), [])]
    assert shown == sorted(1 + np.argsort(-facts.contributions)[:2])
    assert "Of the 4 components those 2 are shown" in page.render(model, X, image_shape=(8, 8))


def test_the_worst_samples_and_features_are_listed():
    model, X = fitted(situation="dead")
    facts = Facts.of(model, X, None)
    rows = page.worst(facts.features, [str(k) for k in range(64)], facts.typical_residual)
    assert (rows[0].place, rows[0].name) == (7, "7")
    assert rows[0].cut == pytest.approx(model.outliers_[:, 7].mean())
    residual = np.abs(X - model.transform(X) @ model.components_)
    typical = np.median(np.median(residual, axis=1))
    assert rows[0].residual == pytest.approx(np.median(residual[:, 7]) / typical)
    assert page.worst(facts.samples, [""] * 160, facts.typical_residual)[0].place == 11


def test_names_come_from_a_data_frame():
    X = pd.DataFrame(make(n=30, m=12), index=[f"day {k}" for k in range(30)], columns=[f"gas {k}" for k in range(12)])
    X.iloc[4, 3] = 99.0
    model = RobustNMF(2, random_state=0).fit(X)
    html = page.render(model, X)
    assert ">day 4<" in html
    assert html.count("gas 3<") >= 3  # below the bars of both components, and in the table


@pytest.mark.filterwarnings("ignore:.*have no observed entry")
def test_weights_of_the_fit_are_needed_if_it_had_any():
    X = make(n=40, m=20)
    X[:, :4] = np.random.default_rng(0).uniform(0, 9, (40, 4))
    weights = np.ones(X.shape)
    weights[:, :4] = 0
    model = RobustNMF(3, random_state=0).fit(X, weights=weights)
    assert "20 % missing" in page.render(model, X, weights=weights).replace("\xa0", " ")
    with pytest.raises(ValueError, match="If the fit had weights or uncertainties, pass them too"):
        page.render(model, X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_shape": (3, 3)}, "64 pixels in all"),
        ({"feature_names": ["a"]}, "feature_names must have 64 entries"),
        ({"sample_names": ["a"]}, "sample_names must have 160 entries"),
    ],
)
def test_the_old_page_stays_if_the_new_one_fails(tmp_path, options, message):
    file, old = tmp_path / "report.html", sealed(b"old").decode()
    file.write_text(old)
    with pytest.raises(ValueError, match=message):
        report.write(*fitted(), file, **options)
    assert [child.read_text() for child in tmp_path.iterdir()] == [old]


def test_only_a_fitted_model_with_its_own_data_has_a_page(tmp_path):
    model, X = fitted()
    for wrong, message in (
        (X[:50], r"the data of the fit, of shape \(160, 64\)"),
        (X[::-1] ** 2, "data of the fit: its"),
    ):
        with pytest.raises(ValueError, match=message):
            report.write(model, wrong, tmp_path / "report.html")
    with pytest.raises(ValueError, match="not fitted yet"):
        report.write(RobustNMF(), X, tmp_path / "report.html")


@pytest.mark.parametrize(("module", "hidden"), [("jinja2", "jinja2"), ("matplotlib", "matplotlib.figure")])
def test_a_missing_extra_is_named(monkeypatch, tmp_path, module, hidden):
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(MissingExtraError, match=rf"{module}.*robustnmf\[report\]"):
        report.write(*fitted(), tmp_path / "report.html")


def test_a_report_changes_no_setting_and_opens_no_window():
    before, windows = dict(matplotlib.rcParams), plt.get_fignums()
    page.render(*fitted())
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == windows


def test_a_notebook_shows_parameters_before_the_fit_and_the_outcome_afterwards():
    before = report.summary_html(RobustNMF(5, method="l1", init=f"<b>{HOSTILE}", max_iter=7))
    assert "not fitted" in before
    assert "max_iter" in before
    assert "verbose" not in before  # as it always is
    assert "<b>" not in before and "<script" not in before
    model, _ = fitted(situation="gaps")
    after = report.summary_html(model)
    assert "160 samples × 64 features" in after
    assert f"{model.scale_:.4g}" in after
    assert f"yes, {model.n_iter_} iterations" in after
    for text in (before, after):
        assert Elements(text).open == []


def test_a_notebook_shows_a_model_whose_training_arrays_were_deleted():
    model = copy(fitted(situation="gaps")[0])
    del model.weights_, model.outliers_
    assert "160 samples × 64 features" in report.summary_html(model)
    assert "not kept" in report.summary_html(model)


@pytest.mark.parametrize(
    "title",
    [
        "a\x1b[2J\u202eb",
        *(pytest.param(title, marks=pytest.mark.slow) for title in ("caf\udce9.csv", "\ud800", "x" * 1000)),
    ],
)
def test_any_title_and_any_text_of_a_model_can_be_written(title, tmp_path):
    model, X = fitted()
    model = copy(model)
    model.method, model.preset = title, title  # as a file of a stranger may say
    file = report.write(model, X, tmp_path / "r.html", title=title, sample_names=[title] * len(X))
    html = file.read_text(encoding="utf-8")
    assert re.search("<title>(caf�.csv|�|a�\\[2J�b|x{199}…)</title>", html)
    assert not set("\x1b\u202e") & set(html)
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_page_with_halves_of_surrogate_pairs_is_written_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "render", lambda *_, **__: "<p>caf\udce9</p>")
    written = report.write(None, None, tmp_path / "r.html").read_text(encoding="utf-8")
    assert written.startswith("<p>caf\\udce9</p>")


def test_a_model_of_which_parts_were_deleted_is_refused(tmp_path):
    model, X = fitted()
    for name, value in (("outliers_", None), ("history_", {"scale": np.ones(2)})):
        changed = copy(model)
        delattr(changed, name)
        if value is not None:
            changed.history_ = value
        with pytest.raises(ValueError, match=rf"lacks {name}.*Fit again"):
            report.write(changed, X, tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_a_notebook_needs_neither_matplotlib_nor_jinja():
    code = (
        "import sys; sys.modules.update(matplotlib=None, jinja2=None); "
        "from robustnmf.report import summary_html; from robustnmf import RobustNMF; print(summary_html(RobustNMF()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "n_components" in run.stdout


# From here on in a browser.


@pytest.fixture(scope="module")
def chromium():
    with browser.start() as running:
        yield running


@pytest.fixture
def show(chromium, path):
    pages = []

    def show(**options):
        pages.append(browser.show(chromium, path, **options))
        return pages[-1]

    yield show
    for tab in pages:
        tab.close()


ZOOM = "Number(document.getElementById('map').dataset.zoom)"
WIDTH = "document.querySelector('#map img').getBoundingClientRect().width"


def test_browser_finds_no_fault_and_loads_every_picture(show):
    tab = show()
    assert browser.errors(tab) == []
    assert tab.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)") == [True] * (4 + 1 + 3 * 10)
    assert tab.evaluate("[...document.querySelectorAll('figure svg')].every(s => s.clientWidth > 200)")


def test_pictures_and_drawings_can_be_taken_along(show):
    tab = show()
    for section, start in (("#components", b"\x89PNG"), ("#explained", b"<svg")):
        with tab.expect_download() as download:
            tab.locator(f"{section} figure .download").first.click()
        assert download.value.path().read_bytes().startswith(start)
    assert tab.locator(".cards img").count() == tab.locator("figure .download", has_text="PNG").count()


def test_the_map_is_zoomed_by_buttons(show):
    tab = show()
    whole = tab.evaluate(WIDTH)
    tab.click("#zoom-in")
    tab.click("#zoom-in")
    assert tab.evaluate(ZOOM) == 4
    assert tab.evaluate(WIDTH) == pytest.approx(4 * whole)
    tab.click("#zoom-out")
    assert tab.evaluate("document.getElementById('zoom').textContent") == "2×"
    tab.click("#zoom-all")
    tab.click("#zoom-out")  # not further than the whole
    assert tab.evaluate(WIDTH) == pytest.approx(whole)
    assert browser.errors(tab) == []


def test_the_map_obeys_the_keyboard(show):
    tab = show()
    tab.focus("#map")
    left = "document.querySelector('#map img').getBoundingClientRect().left"
    start = tab.evaluate(left)
    for key, zoom in [("+", 2), ("+", 4), ("-", 2)]:
        tab.keyboard.press(key)
        assert tab.evaluate(ZOOM) == zoom
    middle = tab.evaluate(left)
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate(left) < middle < start
    tab.keyboard.press("0")
    assert tab.evaluate(left) == pytest.approx(start)
    for _ in range(20):
        tab.keyboard.press("+")
    assert tab.evaluate(ZOOM) == 160 / 8  # some cells stay in view


def turn_wheel(tab):
    box = tab.locator("#map").bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 4)
    tab.mouse.wheel(0, -200)
    tab.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")


def test_the_wheel_zooms_the_map_once_it_was_clicked_and_the_pointer_is_told_its_place(show):
    tab = show()
    tab.evaluate("document.getElementById('map').scrollIntoView({block: 'center', behavior: 'instant'})")
    turn_wheel(tab)
    assert tab.evaluate(ZOOM) == 1  # the page scrolls, as everywhere
    tab.click("#map")
    turn_wheel(tab)
    assert tab.evaluate(ZOOM) == 2
    tab.mouse.move(640, 450)
    place = tab.evaluate("document.getElementById('place').textContent")
    assert re.fullmatch(r"Pointer on sample \d+ \(</script>.*\), feature \d+ \(pixel \d+\)", place)


def test_tables_sort(show):
    tab = show()
    column = "[...document.querySelectorAll('#worst tbody')[1].rows].map(row => Number(row.cells[{}].dataset.key))"
    shares = tab.evaluate(column.format(1))
    assert shares == sorted(shares, reverse=True)
    tab.click("#worst .table:nth-child(2) th:nth-child(3) button")
    residuals = tab.evaluate(column.format(2))
    assert residuals == sorted(residuals)
    assert residuals[0] < residuals[-1]


def test_colours_follow_the_system_until_the_button_says_otherwise(show):
    tab = show(dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = tab.evaluate(ground)
    tab.click("#theme")
    assert tab.evaluate(ground) == "rgb(255, 255, 255)"
    tab.click("#theme")
    assert tab.evaluate(ground) == dark != "rgb(255, 255, 255)"


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read_on_its_ground(show, dark):
    contrasts = show(dark=dark).evaluate(CONTRAST)
    assert len(contrasts) > 15
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_move_sideways(show, width):
    tab = show(width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("innerWidth") == width  # a phone would zoom out
    wide = tab.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .drawing, .hidden, .map')"
        f" && e.getBoundingClientRect().right > {width}).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


def test_a_report_needs_no_installed_package(monkeypatch):
    def installed(package):
        if package == "robustnmf":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(page, "version", installed)
    assert page.versions()["robustnmf"] == __version__
