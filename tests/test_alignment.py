"""Claims about names: data, weights and uncertainties are put together by name or refused by name, never by place."""

import hashlib
import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import robustnmf
from robustnmf import RobustNMF
from robustnmf.detectors import RobustNMFOutlierDetector
from robustnmf.errors import DataQualityWarning
from robustnmf.formats import Axis, LabelledMatrix, ReadOptions, Source, read_like, read_table
from robustnmf.formats.alignment import aligned_values, check_grid, check_units, uncertainties_of
from robustnmf.formats.labelled_matrix import GridNames
from robustnmf.persistence.contents import ModelFileError
from robustnmf.selection import RobustNMFCV, select_rank

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "error:.*feature names")

NAMES = ["Al", "Fe", "S", "Pb", "Zn"]
DAYS = [f"2004-07-{day:02d}" for day in range(1, 21)]
ORDER = [3, 0, 4, 2, 1]
_RNG = np.random.default_rng(0)
X = _RNG.random((20, 2)) @ _RNG.random((2, 5)) + 0.01 * _RNG.random((20, 5))
X[3, 2] = 9.0
WEIGHTS = np.where(X == 9.0, 0.0, 1.0)
AIR = LabelledMatrix(
    X, Axis(DAYS, "date"), Axis(NAMES, units=["ng"] * 5), source=Source("text", ReadOptions(header=True))
)
FRAME = pd.DataFrame(X, index=pd.to_datetime(DAYS), columns=NAMES)
QUICK = {"max_iter": 5, "random_state": 0, "schedule": "plain"}


@pytest.fixture(scope="module")
def model():
    with warnings.catch_warnings(action="ignore"):
        return RobustNMF(2, **QUICK).fit(AIR)


def reordered(matrix=AIR, order=ORDER):
    return matrix.some_features(order)


def more(matrix=AIR):
    names = [*matrix.feature_names, "Cd"]
    return LabelledMatrix(np.hstack([matrix.values, np.ones((len(X), 1))]), matrix.samples, Axis(names))


METHODS = ["transform", "clean", "outlier_mask", "score_samples", "score"]


def dense(values):
    return values.toarray() if sparse.issparse(values) else values


def plain(result):
    return result.values if isinstance(result, LabelledMatrix) else np.asarray(result)


def test_names_and_reading_options_are_learnt(model):
    assert list(model.feature_names_in_) == NAMES
    assert model.input_.options == ReadOptions(header=True)
    assert model.input_.features == AIR.features
    assert RobustNMF(2, **QUICK).fit(X).input_ is None


def test_a_labelled_matrix_is_fitted_as_its_values(model):
    np.testing.assert_array_equal(model.components_, RobustNMF(2, **QUICK).fit(X).components_)


@pytest.mark.parametrize("method", METHODS)
def test_new_data_in_another_order_gives_the_same(model, method):
    expected, found = (getattr(model, method)(data) for data in (AIR, reordered()))
    if isinstance(found, LabelledMatrix):
        assert list(found.feature_names) == [NAMES[i] for i in ORDER]
        assert (found.samples.title, list(found.sample_names)) == ("date", DAYS)
        expected = expected.some_features(ORDER)
    np.testing.assert_array_equal(plain(found), plain(expected))


@pytest.mark.parametrize("method", METHODS)
def test_additional_features_are_left_out_with_a_warning_that_names_them(model, method):
    with pytest.warns(UserWarning, match="features of X .* are not used, 1 in all: 'Cd'") as caught:
        found = getattr(model, method)(more(reordered()))
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(plain(found), plain(getattr(model, method)(reordered())))


@pytest.mark.parametrize("method", [*METHODS, "partial_fit"])
def test_missing_and_renamed_features_are_refused_by_name(model, method):
    few = AIR.some_features([0, 1, 2])
    renamed = AIR.with_names(features=["Al", "Fe", "S", "lead", "Zn"])
    for data, words in ((few, "2 are missing .'Pb', 'Zn'"), (renamed, r"'Pb'\), and X has others \('lead'\)")):
        with pytest.raises(ValueError, match=words):
            getattr(model, method)(data)


def test_data_without_names_is_taken_by_place_as_scikit_learn_does(model):
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        found = model.transform(X)
    np.testing.assert_array_equal(found, model.transform(AIR))


@pytest.mark.parametrize("frame", [FRAME, pl.DataFrame(dict(zip(NAMES, X.T, strict=True)))], ids=["pandas", "polars"])
def test_data_frames_in_another_order_are_refused_and_told_what_to_write(frame):
    fitted = RobustNMF(2, **QUICK).fit(frame)
    with pytest.raises(ValueError, match=r"(?s)feature names should match.*X\[list\(model.feature_names_in_\)\]"):
        fitted.transform(frame[[NAMES[i] for i in ORDER]])


def test_weights_as_an_array_follow_the_order_of_their_data(model):
    expected = model.transform(AIR, weights=WEIGHTS)
    np.testing.assert_array_equal(model.transform(reordered(), weights=WEIGHTS[:, ORDER]), expected)


KINDS = {
    "labelled": lambda values: LabelledMatrix(values, AIR.samples, AIR.features),
    "pandas": lambda values: pd.DataFrame(values, index=pd.to_datetime(DAYS), columns=NAMES),
    "texts": lambda values: pd.DataFrame(values, index=DAYS, columns=NAMES),
    "sparse": lambda values: LabelledMatrix(sparse.csr_array(values), AIR.samples, AIR.features),
}


def turned(weights):
    """Return weights in another order of samples and features."""
    if isinstance(weights, LabelledMatrix):
        rows = list(range(len(DAYS)))[::-1]
        values = weights.values[rows][:, ORDER]
        return LabelledMatrix(values, Axis(DAYS[::-1]), Axis([NAMES[i] for i in ORDER]))
    return weights.iloc[::-1, ORDER]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [AIR, FRAME], ids=["labelled", "pandas"])
def test_weights_in_another_order_are_put_in_order(kind, data):
    found = aligned_values(turned(KINDS[kind](WEIGHTS)), "weights", data)
    found = found.toarray() if sparse.issparse(found) else np.asarray(found)
    np.testing.assert_array_equal(found, WEIGHTS)


@pytest.mark.parametrize("name", ["weights", "uncertainties"])
@pytest.mark.parametrize("kind", ["labelled", "pandas"])
def test_fits_use_weights_and_uncertainties_by_name(name, kind):
    values = WEIGHTS if name == "weights" else 0.01 + 0.1 * X
    expected = RobustNMF(2, **QUICK).fit(X, **{name: values}).components_
    for data in (AIR, FRAME):
        found = RobustNMF(2, **QUICK).fit(data, **{name: turned(KINDS[kind](values))})
        np.testing.assert_array_equal(found.components_, expected)


@pytest.mark.parametrize("name", ["weights", "uncertainties"])
def test_weights_of_others_are_refused_by_name(name):
    frame = pd.DataFrame(1 + X, index=FRAME.index, columns=NAMES)
    with pytest.raises(ValueError, match=rf"{name} must have the features of X.*'Pb'.*'lead'"):
        RobustNMF(2).fit(FRAME, **{name: frame.rename(columns={"Pb": "lead"})})
    with pytest.raises(ValueError, match=rf"{name} must have the samples of X.*2004-07-01.*2005-07-01"):
        RobustNMF(2).fit(AIR, **{name: frame.set_index(frame.index + pd.DateOffset(years=1))})


def test_numbers_that_pandas_gives_are_names_only_if_they_fit():
    plain_weights = pd.DataFrame(WEIGHTS, columns=NAMES)
    np.testing.assert_array_equal(aligned_values(plain_weights, "weights", FRAME), WEIGHTS)
    shuffled = pd.DataFrame(X, columns=NAMES).sample(frac=1, random_state=0)
    np.testing.assert_array_equal(aligned_values(plain_weights, "weights", shuffled), WEIGHTS[shuffled.index])


def test_numbers_of_pandas_that_agree_in_part_are_refused():
    frame, weights = pd.DataFrame(X, columns=NAMES), pd.DataFrame(WEIGHTS, columns=NAMES)
    for data, others in ((frame.drop(index=19), weights.drop(index=0)), (frame[5:], weights[:15])):
        with pytest.raises(ValueError, match=r"weights must have the samples of X.*are missing .*are others"):
            aligned_values(others, "weights", data)
    later = frame.set_index(frame.index + 100)
    np.testing.assert_array_equal(aligned_values(weights, "weights", later), WEIGHTS)


# --- Names that repeat ------------------------------------------------------------------------------------------------

STATIONS = ["A"] * 10 + ["B"] * 10
TWO = Axis(STATIONS, "station", columns={"date": DAYS[:10] * 2, "remark": [""] * 20})


def at_two_stations(order, **columns):
    dates = {"date": [TWO.columns["date"][i] for i in order]}
    return LabelledMatrix(WEIGHTS[order], Axis([STATIONS[i] for i in order], "station", columns={**dates, **columns}))


@pytest.mark.parametrize("order", [[*range(9, -1, -1), *range(19, 9, -1)], list(range(19, -1, -1))])
def test_samples_whose_names_repeat_are_found_by_the_other_columns(order):
    found = aligned_values(at_two_stations(order), "weights", LabelledMatrix(X, TWO))
    np.testing.assert_array_equal(found, WEIGHTS)


def test_samples_whose_names_repeat_are_refused_if_other_columns_differ():
    data, in_order = LabelledMatrix(X, TWO), list(range(20))
    with pytest.raises(ValueError, match=r"20 are missing .'A / 2004-07-01'.*are others .'A / 2005-07-01'"):
        dates = [day.replace("2004", "2005") for day in TWO.columns["date"]]
        aligned_values(at_two_stations(in_order, date=dates), "weights", data)
    twice = LabelledMatrix(X, Axis(STATIONS, columns={"date": DAYS[:5] * 4}))
    shuffled = LabelledMatrix(WEIGHTS, Axis(STATIONS, columns={"date": DAYS[4::-1] * 4}))
    with pytest.raises(ValueError, match=r"'A / 2004-07-05'.* repeat"):
        aligned_values(shuffled, "weights", twice)
    plain_names = LabelledMatrix(WEIGHTS, Axis(STATIONS))
    np.testing.assert_array_equal(aligned_values(plain_names, "weights", data), WEIGHTS)


# --- Units ------------------------------------------------------------------------------------------------------------


def in_units(*units, matrix=AIR):
    return replace(matrix, features=replace(matrix.features, units=units))


@pytest.mark.parametrize("method", [*METHODS, "partial_fit"])
def test_new_data_in_other_units_is_refused(model, method):
    words = r"units of the data that RobustNMF.*; 2 of 5 .*'Fe' is in 'µg', not in 'ng'; 'Zn' is in 'mg'.*Convert"
    for order in (list(range(5)), ORDER):
        with pytest.raises(ValueError, match=words):
            getattr(model, method)(reordered(in_units("ng", "µg", "", "ng", "mg"), order))


def test_units_of_detectors_and_loaded_models_are_compared(tmp_path, model):
    model.save(tmp_path / "a.robustnmf")
    detector = RobustNMFOutlierDetector(2, estimator=RobustNMF(**QUICK)).fit(AIR)
    for ask in (robustnmf.load(tmp_path / "a.robustnmf").clean, detector.predict):
        with pytest.raises(ValueError, match="5 of 5 features have others"):
            ask(in_units(*["µg"] * 5))


def test_uncertainties_in_other_units_are_refused_and_weights_are_not():
    data, others = in_units(*["µg/m³"] * 5), in_units(*["ng/m³"] * 5)
    with pytest.raises(ValueError, match="uncertainties must have the units of X; 5 of 5"):
        RobustNMF(2, **QUICK).fit(data, uncertainties=reordered(others))
    assert aligned_values(others, "weights", data) is others.values
    suffixed = in_units("ug m-3", "", "", "", "", matrix=AIR.with_names(features=[f"{name}_unc" for name in NAMES]))
    np.testing.assert_array_equal(uncertainties_of(data, suffixed), X)


def test_uncertainties_of_a_file_in_other_units_are_refused(tmp_path):
    for name, unit in (("a.csv", "ng/m3"), ("b.csv", "ng m-3"), ("c.csv", "µg/m3")):
        (tmp_path / name).write_text(f"date,Al,Fe\n,{unit},{unit}\nMon,1,2\nTue,3,4\n")
    table = read_table(tmp_path / "a.csv")
    np.testing.assert_array_equal(read_like(tmp_path / "b.csv", table), table.values)
    with pytest.raises(ValueError, match=r"units of the data; .* 2 of 2 .*\. Convert the values[^.]*\.$"):
        read_like(tmp_path / "c.csv", table)
    np.testing.assert_array_equal(read_like(tmp_path / "c.csv", table, has_units=False), table.values)


SAME_UNITS = [("µg/m³", "μg/m3"), ("ug m-3", "[µg / m^3]"), ("ng·m⁻³", "ng m**-3"), ("ug/mL", "ug mL-1"), ("%", "(%)")]


@pytest.mark.parametrize("pair", SAME_UNITS)
def test_spellings_of_one_unit_are_the_same(pair):
    check_units(*(Axis(units=[unit]) for unit in pair), "X must have the units of Y")


@pytest.mark.parametrize("pair", [("mW", "MW"), ("ng/m3", "ug/m3"), ("m s", "ms"), ("ug/m2", "ug/m3"), ("%", "ppm")])
def test_units_that_differ_are_told_apart(pair):
    with pytest.raises(ValueError, match="feature 0"):
        check_units(*(Axis(units=[unit]) for unit in pair), "X must have the units of Y")


def test_names_that_repeat_are_refused_in_another_order():
    data = LabelledMatrix(X, features=Axis(["a", "a", "b", "c", "d"]))
    np.testing.assert_array_equal(
        aligned_values(LabelledMatrix(WEIGHTS, features=data.features), "weights", data), WEIGHTS
    )
    with pytest.raises(ValueError, match="'a' repeat"):
        aligned_values(LabelledMatrix(WEIGHTS, features=Axis(["b", "a", "a", "c", "d"])), "weights", data)


def test_uncertainties_of_a_file_fill_gaps_of_those_that_are_given():
    known = np.full(X.shape, np.nan)
    known[0, 0] = 0.5
    data = LabelledMatrix(X, AIR.samples, AIR.features, known)
    given = np.full(X.shape, 0.1)
    assert uncertainties_of(data, None) is None
    np.testing.assert_array_equal(uncertainties_of(data, given), given)
    given[0, 0] = np.nan
    assert uncertainties_of(data, given)[0, 0] == 0.5
    whole = LabelledMatrix(X, uncertainties=np.full(X.shape, 0.2))
    np.testing.assert_array_equal(uncertainties_of(whole, None), whole.uncertainties)
    fitted = RobustNMF(2, **QUICK).fit(whole)
    expected = RobustNMF(2, **QUICK).fit(X, uncertainties=whole.uncertainties)
    np.testing.assert_array_equal(fitted.components_, expected.components_)
    assert RobustNMF(2, **QUICK).fit(X).transform(whole).shape == (20, 2)


def test_detectors_find_features_by_name():
    detector = RobustNMFOutlierDetector(2, estimator=RobustNMF(**QUICK)).fit(AIR)
    assert list(detector.feature_names_in_) == NAMES
    np.testing.assert_array_equal(detector.score_samples(reordered()), detector.score_samples(AIR))
    with pytest.raises(ValueError, match="'Pb', 'Zn'"):
        detector.predict(AIR.some_features([0, 1, 2]))


def test_searches_of_the_rank_take_names():
    estimator = RobustNMF(**QUICK)
    weights = pd.DataFrame(WEIGHTS, index=FRAME.index, columns=NAMES)
    options = {"n_splits": 2, "random_state": 0, "estimator": estimator}
    expected = select_rank(X, (1, 2), weights=WEIGHTS, **options).scores
    np.testing.assert_array_equal(
        select_rank(AIR, (1, 2), weights=weights.iloc[::-1, ORDER], **options).scores, expected
    )
    searched = RobustNMFCV((1, 2), **options).fit(AIR)
    assert list(searched.feature_names_in_) == NAMES
    assert list(searched.clean(reordered()).feature_names) == [NAMES[i] for i in ORDER]


@pytest.mark.parametrize("engine", ["stream", "sparse"])
def test_names_are_kept_by_other_engines(engine):
    data = AIR.with_values(sparse.csr_array(X)) if engine == "sparse" else AIR
    fitted = RobustNMF(2, engine=engine, max_iter=5, random_state=0).fit(data)
    assert list(fitted.feature_names_in_) == NAMES and fitted.input_.features.units == ["ng"] * 5
    np.testing.assert_allclose(fitted.transform(reordered(data)), fitted.transform(data))
    found, expected = (fitted.outlier_mask(each) for each in (reordered(data), data))
    assert list(found.feature_names) == [NAMES[i] for i in ORDER]
    np.testing.assert_array_equal(dense(found.values), dense(expected.values)[:, ORDER])


@pytest.mark.parametrize("value", [-1.5, np.inf, -np.inf])
def test_errors_name_sample_and_feature(value):
    wrong = X.copy()
    wrong[4, 3] = value
    for data in (AIR.with_values(wrong), pd.DataFrame(wrong, index=FRAME.index, columns=NAMES)):
        with pytest.raises(ValueError, match="at sample '2004-07-05', feature 'Pb'"):
            RobustNMF(2).fit(data)
    with pytest.raises(ValueError, match="at sample 4, feature 'Pb'"):
        RobustNMF(2).fit(pd.DataFrame(wrong, columns=NAMES))


def test_errors_name_the_place_of_an_uncertainty_and_a_code_for_missing():
    with pytest.raises(ValueError, match="at sample '2004-07-01', feature 'Al'"):
        RobustNMF(2).fit(AIR, uncertainties=np.zeros(X.shape))
    wrong = np.where(X > 1, -999.0, X)
    with pytest.raises(ValueError, match=rf"{(X > 1).sum()} entries are exactly -999"):
        RobustNMF(2).fit(AIR.with_values(wrong))


def test_reading_errors_name_place_option_and_code(tmp_path):
    wrong = FRAME.copy()
    wrong.iloc[[2, 5], 1] = -999
    wrong.to_csv(tmp_path / "a.csv")
    assert read_table(tmp_path / "a.csv").values[2, 1] == -999
    words = (
        r"2 of 100 entries are negative, the first is -999 at sample '2004-07-03', feature 'Fe'\. 2 are exactly -999"
    )
    with pytest.raises(ValueError, match=words + r".*missing_value to -999.*negative to 'clip'"):
        read_table(tmp_path / "a.csv", negative="error")


def test_warnings_of_empty_features_name_them():
    empty = X.copy()
    empty[:, 3] = np.nan
    with pytest.warns(UserWarning, match="1 feature.* have no observed entry .feature 'Pb'"):
        RobustNMF(2, **QUICK).fit(AIR.with_values(empty))


# --- On grids ---------------------------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(1).random((12, 2)) @ np.random.default_rng(2).random((2, 12))


def images(grid, names=None):
    values = np.tile(IMAGES, (1, 2))[:, : int(np.prod(grid))]
    return LabelledMatrix(values, features=Axis(grid=grid, grid_names=names))


OTHER_GRIDS = [
    ((2, 2, 3), ("c", "y", "x"), (2, 3, 2), ("c", "y", "x")),
    ((2, 2, 3), ("c", "y", "x"), (2, 2, 3), ("y", "c", "x")),
    ((2, 2, 3), ("c", "y", "x"), (2, 3, 3), ("c", "y", "x")),
    ((3, 4), None, (4, 3), ("y", "x")),
    ((2, 6), ("one", "other"), (2, 6), ("other", "one")),
]


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
@pytest.mark.parametrize(("grid", "names", "other", "other_names"), OTHER_GRIDS)
def test_images_of_another_size_or_order_of_axes_are_refused_with_both_sizes(grid, names, other, other_names):
    fitted = RobustNMF(2, **QUICK).fit(images(grid, names))
    detector = RobustNMFOutlierDetector(2, estimator=RobustNMF(**QUICK)).fit(images(grid, names))
    sizes = [" x ".join(map(str, sizes)) for sizes in (grid, other)]
    required = rf"fitted to, {sizes[0]}.*; they lie as {sizes[1]} \({', '.join(other_names)}\)\. Crop or turn"
    new = images(other, other_names)
    for method in [getattr(fitted, name) for name in METHODS] + [detector.predict]:
        with pytest.raises(ValueError, match=required):
            method(new)


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
@pytest.mark.parametrize(
    ("grid", "names"), [((3, 4), None), ((3, 4), ("row", "column")), ((1, 3, 4), ("c", "y", "x")), ((3, 4), ("", "x"))]
)
def test_images_that_lie_alike_are_taken(grid, names):
    fitted = RobustNMF(2, **QUICK).fit(images((3, 4), ("y", "x")))
    np.testing.assert_array_equal(fitted.transform(images(grid, names)), fitted.transform(IMAGES))


def test_spectra_need_no_grid_of_the_same_name():
    check_grid(Axis(grid=(5,), grid_names=("energy",)), Axis(grid=(5,), grid_names=("channel",)), "X", "others")


@pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning")
def test_places_on_a_grid_are_named_by_its_axes():
    wrong, empty = images((3, 4), ("y", "x")), images((3, 4))
    wrong.values[2, 6], empty.values[:, 6] = -1.0, np.nan
    with pytest.raises(ValueError, match="at sample 2, feature 'y 1, x 2'"):
        RobustNMF(2).fit(wrong)
    with pytest.raises(ValueError, match="at sample 'y 0, x 2', feature 6"):
        RobustNMF(2).fit(replace(wrong, samples=Axis(grid=(3, 4), grid_names=("y", "x")), features=Axis(grid=(12,))))
    with pytest.warns(UserWarning, match=r"1 feature.* have no observed entry .feature 'pixel \(1, 2\)'"):
        RobustNMF(2, **QUICK).fit(empty)
    doubtful = images((3, 4), ("y", "x"))
    doubtful.values[:, 6] = 1e4 * np.random.default_rng(0).random(12)
    with pytest.warns(DataQualityWarning, match="the median of 'y 1, x 2' is"):
        RobustNMF(2, random_state=0, feature_scaling=None).fit(doubtful)


def test_names_of_a_grid_are_a_sequence():
    names = GridNames((2, 3), ("y", "x"))
    assert names[-1] == names[5] == "y 1, x 2" and names[4:] == ["y 1, x 1", "y 1, x 2"] and len(list(names)) == 6
    with pytest.raises(IndexError):
        names[6]


def test_weights_of_turned_images_and_cubes_are_refused():
    turned_images, cube, turned_cube = images((4, 3)), Axis(grid=(3, 4)), Axis(grid=(4, 3))
    with pytest.raises(
        ValueError, match=r"Pixels of weights must lie as those of X, 3 x 4 \(y, x\); they lie as 4 x 3"
    ):
        aligned_values(turned_images, "weights", images((3, 4), ("y", "x")))
    with pytest.raises(ValueError, match="Pixels of uncertainties must lie as those of X"):
        aligned_values(LabelledMatrix(IMAGES, turned_cube), "uncertainties", LabelledMatrix(IMAGES, cube))


# --- In saved models --------------------------------------------------------------------------------------------------


def test_saved_models_know_names_units_grid_and_options(tmp_path, model):
    options = ReadOptions(
        missing_value=(-999.0, "n/a"), skip_rows=3, index_column="date", drop_columns=["x", 3], below_limit="half"
    )
    source = Source("text", options)
    features = Axis(NAMES, "species", (5,), ("band",), ["ng", "", "µg", "ng", "°C"], {"kind": list("abcde")})
    data = LabelledMatrix(X, AIR.samples, features, source=source)
    RobustNMF(2, **QUICK).fit(data).save(tmp_path / "a.robustnmf")
    loaded = robustnmf.load(tmp_path / "a.robustnmf")
    assert loaded.input_.options == options and list(loaded.input_.features.units) == features.units
    assert (loaded.input_.features.title, loaded.input_.features.grid) == ("species", (5,))
    assert loaded.input_.features.columns == features.columns
    np.testing.assert_array_equal(loaded.transform(reordered(data)), loaded.transform(data))
    RobustNMF(2, **QUICK).fit(X).save(tmp_path / "b.robustnmf")
    assert robustnmf.load(tmp_path / "b.robustnmf").input_ is None


def test_options_of_one_machine_are_not_saved(tmp_path):
    data = LabelledMatrix(X, source=Source("text", ReadOptions(max_bytes=10)))
    RobustNMF(2, **QUICK).fit(data).save(tmp_path / "a.robustnmf")
    assert robustnmf.load(tmp_path / "a.robustnmf").input_.options == ReadOptions()


HOSTILE = {
    "no object": lambda known: [],
    "an unknown option": lambda known: known["options"].update(run="code"),
    "an option of another type": lambda known: known["options"].update(key=3),
    "an option of another choice": lambda known: known["options"].update(negative="drop"),
    "an option of one machine": lambda known: known["options"].update(max_bytes=2**60),
    "an encoding that unpacks": lambda known: known["options"].update(encoding="zlib"),
    "a list of lists": lambda known: known["options"].update(drop_columns=[["a"]]),
    "units of other features": lambda known: known["features"].update(units={"tuple": ["ng"]}),
    "units that are numbers": lambda known: known["features"].update(units={"tuple": [1] * 5}),
    "a grid of other features": lambda known: known["features"].update(grid={"tuple": [2, 3]}),
    "a grid of negative size": lambda known: known["features"].update(grid={"tuple": [-1, -5]}),
    "names of another grid": lambda known: known["features"].update(grid_names={"tuple": ["x"]}),
    "no features": lambda known: known.pop("features"),
    "columns that are too short": lambda known: known["columns"].update(kind=["a"]),
    "columns that are no texts": lambda known: known["columns"].update(kind=[1] * 5),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_saved_models_with_other_input_are_refused(tmp_path, model, change):
    path = tmp_path / "a.robustnmf"
    model.save(path)
    _, text, arrays = path.read_bytes().split(b"\n", 2)
    document = json.loads(text)
    changed = HOSTILE[change](document["input"])
    document["input"] = changed if isinstance(changed, list) and not changed else document["input"]
    text = json.dumps(document).encode() + b"\n"
    digest = hashlib.sha256(text).hexdigest()
    path.write_bytes(f"robustnmf-model 1 {len(text)} {digest}\n".encode() + text + arrays)
    with pytest.raises(ModelFileError):
        robustnmf.load(path)


def test_saved_models_of_before_have_no_input(tmp_path, model):
    path = tmp_path / "a.robustnmf"
    model.save(path)
    _, text, arrays = path.read_bytes().split(b"\n", 2)
    document = json.loads(text)
    del document["input"]
    text = json.dumps(document).encode() + b"\n"
    path.write_bytes(f"robustnmf-model 1 {len(text)} {hashlib.sha256(text).hexdigest()}\n".encode() + text + arrays)
    loaded = robustnmf.load(path)
    assert loaded.input_ is None and list(loaded.feature_names_in_) == NAMES
