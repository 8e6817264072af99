"""Claims about the embedded data and the loaders of files."""

from importlib.resources import files

import numpy as np
import pytest

from robustnmf.datasets import (
    load_ar,
    load_baltimore,
    load_caltech101,
    load_orl,
    load_samson,
    load_video_hall,
)

# Embedded data.


def test_package_ships_no_other_data():
    """Data whose terms forbid redistribution must never slip in."""
    shipped = {file.name for file in files("robustnmf.datasets").iterdir() if not file.name.endswith(".py")}
    assert shipped - {"__pycache__"} == {"NOTICE.md", "orl_32x32.npz", "pm25_baltimore.npz"}


def test_notice_names_all_data_that_is_shipped():
    folder = files("robustnmf.datasets")
    notice = (folder / "NOTICE.md").read_text(encoding="utf-8")
    assert all(f"`{file.name}`" in notice for file in folder.iterdir() if file.name.endswith(".npz"))


@pytest.mark.parametrize("load", [load_orl, load_baltimore])
def test_embedded_loaders_return_fresh_arrays(load):
    first = load()
    first.data[:] = -1
    assert load().data.min() >= 0


def test_orl_has_the_documented_arrays():
    faces = load_orl()
    assert faces.data.shape == (400, 1024)
    assert faces.data.dtype == np.float64
    assert faces.images.shape == (400, 32, 32)
    assert faces.images.dtype == np.uint8
    assert faces.image_shape == (32, 32)
    assert (faces.data.min(), faces.data.max()) == (2, 235)


def test_orl_rows_are_the_images_line_by_line():
    faces = load_orl()
    np.testing.assert_array_equal(faces.data[7].reshape(faces.image_shape), faces.images[7])


def test_orl_has_ten_images_of_each_of_forty_people():
    target = load_orl().target
    assert np.issubdtype(target.dtype, np.integer)
    np.testing.assert_array_equal(np.bincount(target), np.full(40, 10))


def test_orl_images_of_a_person_resemble_each_other():
    """Labels belong to their images: the nearest other image is mostly of the same person."""
    faces = load_orl()
    square = (faces.data**2).sum(axis=1)
    distance = square[:, None] + square - 2 * faces.data @ faces.data.T
    np.fill_diagonal(distance, np.inf)
    assert (faces.target[distance.argmin(axis=1)] == faces.target).mean() > 0.9


def test_orl_gives_credit():
    assert "AT&T Laboratories Cambridge" in load_orl().DESCR
    assert "Samaria" in load_orl().DESCR


@pytest.mark.parametrize(("drop_totals", "n_features"), [(True, 24), (False, 26)])
def test_baltimore_has_the_documented_arrays(drop_totals, n_features):
    air = load_baltimore(drop_totals=drop_totals)
    assert air.data.shape == air.uncertainties.shape == air.filled_in.shape == (630, n_features)
    assert air.data.dtype == air.uncertainties.dtype == np.float64
    assert air.filled_in.dtype == bool
    assert len(air.feature_names) == n_features
    assert air.data.min() > 0
    assert air.uncertainties.min() > 0


def test_baltimore_drops_the_totals_and_nothing_else():
    every, species = load_baltimore(drop_totals=False), load_baltimore()
    kept = ~np.isin(every.feature_names, ["PM2.5", "OM"])
    assert set(every.feature_names) - set(species.feature_names) == {"PM2.5", "OM"}
    for key in ("data", "uncertainties", "filled_in"):
        np.testing.assert_array_equal(species[key], every[key][:, kept])


def test_baltimore_organic_matter_repeats_organic_carbon():
    """Why OM is dropped: where measured, it is 1.4 times another column."""
    air = load_baltimore(drop_totals=False)
    column = {name: air.data[:, j] for j, name in enumerate(air.feature_names)}
    ratio = column["OM"] / column["Organic Carbon"]
    assert np.median(ratio) == pytest.approx(1.4, rel=1e-3)


def test_baltimore_days_run_forward():
    dates = load_baltimore().dates
    assert dates.dtype == "datetime64[D]"
    assert (dates[0], dates[-1]) == (np.datetime64("2000-12-14"), np.datetime64("2007-07-05"))
    assert (np.diff(dates) > np.timedelta64(0, "D")).all()


def test_baltimore_marks_filled_in_values():
    air = load_baltimore(drop_totals=False)
    assert air.filled_in.sum() == 1071
    assert not air.filled_in[:, list(air.feature_names).index("PM2.5")].any()
    np.testing.assert_allclose(air.uncertainties[air.filled_in], 4 * air.data[air.filled_in], rtol=1e-4)


def test_baltimore_filled_in_values_are_one_constant_per_species():
    air = load_baltimore()
    for values, filled_in in zip(air.data.T, air.filled_in.T, strict=True):
        assert len(set(values[filled_in])) == 1


def test_baltimore_has_39_samples_without_a_measurement():
    assert load_baltimore().filled_in.all(axis=1).sum() == 39


@pytest.mark.parametrize(
    ("species", "day", "times_median"),
    [("Potassium Ion", "2005-01-01", 72), ("Chlorine", "2002-02-28", 427), ("Chromium", "2007-05-18", 272)],
)
def test_baltimore_has_its_dated_outliers(species, day, times_median):
    air = load_baltimore()
    values = air.data[:, list(air.feature_names).index(species)]
    assert air.dates[values.argmax()] == np.datetime64(day)
    assert values.max() / np.median(values) == pytest.approx(times_median, rel=0.01)


# Files that the caller names.


def make_ar():
    images = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)
    return {
        "images": images,
        "labels": np.array([1, 1, 1, 2, 2, 2], dtype=np.int16),
        "shot": np.array([1, 8, 11, 1, 8, 11], dtype=np.int16),
        "session": np.ones(6, dtype=np.int16),
        "occlusion": np.array(["none", "sunglasses", "scarf"] * 2),
    }


def make_caltech101():
    return {
        "features": np.arange(20, dtype=np.uint8).reshape(5, 4),
        "scale": np.float32(0.5),
        "labels": np.array([1, 1, 2, 2, 3], dtype=np.int16),
        "class_names": np.array(["Faces", "Leopards", "ant"]),
        "image_number": np.array([1, 2, 1, 2, 1], dtype=np.int16),
    }


def make_samson():
    """A scene of 2 x 3 pixels whose first band is 10 * row + column."""
    scene = 10 * np.arange(2)[:, None] + np.arange(3)
    first = scene.ravel(order="F").astype(np.float32)
    return {
        "Y": np.stack([first, first + 100, first + 200, first + 300]),
        "endmembers": np.arange(8, dtype=np.float32).reshape(4, 2),
        "abundances": np.stack([first, 1 - first]),
        "names": np.array(["soil", "water"]),
        "shape": np.array([2, 3]),
    }


def make_video_hall():
    return {"images": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "shape": np.array([3, 4])}


LOADERS = {
    "ar": (load_ar, make_ar),
    "caltech101": (load_caltech101, make_caltech101),
    "samson": (load_samson, make_samson),
    "video_hall": (load_video_hall, make_video_hall),
}


@pytest.fixture(params=LOADERS.values(), ids=LOADERS.keys())
def loader(request):
    return request.param


def save(folder, arrays):
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "Path"])
def test_file_loaders_return_float64_samples_in_rows(loader, tmp_path, kind):
    load, make = loader
    bunch = load(kind(save(tmp_path, make())))
    assert bunch.data.dtype == np.float64
    assert bunch.data.ndim == 2
    assert bunch.DESCR


def test_file_loaders_name_a_missing_file(loader, tmp_path):
    load, _ = loader
    with pytest.raises(FileNotFoundError, match=r"must name an \.npz archive with the arrays .*; there is no file"):
        load(tmp_path / "absent.npz")


def test_file_loaders_refuse_a_folder(loader, tmp_path):
    load, _ = loader
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(tmp_path)


def test_file_loaders_refuse_another_format(loader, tmp_path):
    load, _ = loader
    np.save(tmp_path / "data.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"data\.npy is not one"):
        load(tmp_path / "data.npy")


def test_file_loaders_name_a_missing_array(loader, tmp_path):
    load, make = loader
    arrays = make()
    first = next(iter(arrays))
    del arrays[first]
    with pytest.raises(ValueError, match=f"lacks {first} and holds "):
        load(save(tmp_path, {"other": np.ones(1), **arrays}))


def test_file_loaders_refuse_arrays_of_the_wrong_dimension(loader, tmp_path):
    load, make = loader
    arrays = make()
    first = next(iter(arrays))
    arrays[first] = arrays[first].ravel()
    with pytest.raises(ValueError, match=rf"array {first} must have shape \(.*it has shape \(\d+,\)"):
        load(save(tmp_path, arrays))


def test_file_loaders_never_unpickle(loader, tmp_path):
    load, make = loader
    arrays = make()
    first = next(iter(arrays))
    arrays[first] = arrays[first].astype(object)
    with pytest.raises(ValueError, match=r"declares .* of object"):
        load(save(tmp_path, arrays))


@pytest.mark.parametrize(
    ("loader_name", "array"), [("ar", "labels"), ("caltech101", "image_number"), ("samson", "abundances")]
)
def test_file_loaders_refuse_arrays_that_disagree(loader_name, array, tmp_path):
    load, make = LOADERS[loader_name]
    arrays = make()
    arrays[array] = arrays[array][..., :-1]
    with pytest.raises(ValueError, match=rf"array {array} must have shape .* = \d"):
        load(save(tmp_path, arrays))


def test_ar_carries_its_labels(tmp_path):
    faces = load_ar(save(tmp_path, make_ar()))
    assert faces.image_shape == (4, 3)
    np.testing.assert_array_equal(faces.data.reshape(6, 4, 3), faces.images)
    np.testing.assert_array_equal(faces.target, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(faces.shot, [1, 8, 11, 1, 8, 11])
    np.testing.assert_array_equal(faces.session, np.ones(6))
    np.testing.assert_array_equal(faces.occlusion[:3], ["none", "sunglasses", "scarf"])


def test_ar_says_that_it_is_restricted(tmp_path):
    assert "not to be redistributed" in load_ar(save(tmp_path, make_ar())).DESCR
    assert "must not be redistributed" in load_ar.__doc__


def test_caltech101_is_in_network_units(tmp_path):
    objects = load_caltech101(save(tmp_path, make_caltech101()))
    np.testing.assert_array_equal(objects.data, np.arange(20).reshape(5, 4) / 2)
    np.testing.assert_array_equal(objects.target_names[objects.target], ["Faces"] * 2 + ["Leopards"] * 2 + ["ant"])
    np.testing.assert_array_equal(objects.image_number, [1, 2, 1, 2, 1])


def test_samson_pixels_run_line_by_line(tmp_path):
    scene = load_samson(save(tmp_path, make_samson()))
    expected = [[0, 1, 2], [10, 11, 12]]
    np.testing.assert_array_equal(scene.data[:, 0].reshape(scene.image_shape), expected)
    np.testing.assert_array_equal(scene.abundances[:, 0].reshape(scene.image_shape), expected)


def test_samson_spectra_run_along_rows(tmp_path):
    scene = load_samson(save(tmp_path, make_samson()))
    np.testing.assert_array_equal(scene.data[0], [0, 100, 200, 300])
    np.testing.assert_array_equal(scene.endmembers, [[0, 2, 4, 6], [1, 3, 5, 7]])
    np.testing.assert_array_equal(scene.endmember_names, ["soil", "water"])


def test_samson_refuses_a_shape_that_does_not_match(tmp_path):
    with pytest.raises(ValueError, match=r"scene of n_pixels = 6; .* holds 2, 4"):
        load_samson(save(tmp_path, {**make_samson(), "shape": np.array([2, 4])}))


def test_video_hall_frames_are_rows(tmp_path):
    video = load_video_hall(save(tmp_path, make_video_hall()))
    assert video.image_shape == (3, 4)
    np.testing.assert_array_equal(video.data, np.arange(24).reshape(2, 12))
