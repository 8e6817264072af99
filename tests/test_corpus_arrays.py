"""Every file of the corpus of arrays is read as what it is, can be fitted, and is written back in its shape."""

import warnings

import numpy as np
import pytest
from scipy import sparse

import corpus_arrays as corpus
from corpus_arrays import CASES
from robustnmf import RobustNMF
from robustnmf.formats import read_table, write_table, written_suffix

by_name = {"ids": [case.name for case in CASES]}
every_case = pytest.mark.parametrize("case", CASES, **by_name)


def dense(values):
    return values.toarray() if sparse.issparse(values) else np.asarray(values)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("corpus")


def made(place, case):
    """Return the path of the file of a case, made once, and its table."""
    path = place / case.name
    if not path.exists() and not path.with_suffix(".hdr").exists():
        case.make(path)
    return path, read_table(path, **case.read)


def test_corpus_is_large_enough():
    assert len(CASES) >= 30 and len({case.format for case in CASES}) >= 12
    assert len({case.name for case in CASES}) == len(CASES)


@every_case
def test_file_is_read_as_what_it_is(place, case):
    _, table = made(place, case)
    np.testing.assert_array_equal(dense(table.values), dense(case.values))
    assert table.source.format == case.format
    assert table.features.grid in (case.grid, (table.shape[1],)) or case.grid is None
    if case.features is not None:
        assert list(table.feature_names) == list(case.features)
    if case.samples is not None:
        assert list(table.sample_names) == list(case.samples)
    notes = " ".join(table.notes)
    assert (case.note in notes) if case.note else not notes, notes


@every_case
def test_file_is_written_back_in_its_shape_and_type(place, tmp_path, case):
    _, table = made(place, case)
    suffix = written_suffix(table)
    if case.written:
        assert suffix == case.written
    path = write_table(tmp_path / "back", table)
    assert path.name == f"back{suffix}"
    again = read_table(path, **_again(case, table))
    np.testing.assert_array_equal(dense(again.values), dense(table.values))
    assert again.features == table.features and again.samples == table.samples
    assert again.source.dtype == table.source.dtype
    assert sparse.issparse(again.values) == sparse.issparse(table.values)


def _again(case, table):
    """Return the options with which what was written is read: parts have no names any more."""
    return {name: value for name, value in case.read.items() if name != "key"}


@every_case
def test_file_can_be_fitted_and_its_results_are_written(place, tmp_path, case):
    _, table = made(place, case)
    model = RobustNMF(1, method="l2", random_state=0, max_iter=2, tol=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two iterations are few
        codes = dense(model.fit_transform(table.values))
    fitted = codes @ model.components_
    path = write_table(tmp_path / "fitted", table.with_values(fitted))
    back = read_table(path, **_again(case, table))
    kind = table.source.dtype
    limits = np.iinfo(kind) if kind.kind in "iu" else None
    wanted = fitted if limits is None else np.clip(fitted, limits.min, limits.max)
    steps = 0.25 if case.name == "blank.fits" else 0.5 if kind.kind in "biu" else 1e-5 * np.abs(fitted).max()
    values = dense(back.values)
    seen = ~np.isnan(values)  # what is rounded to the code of a missing value
    np.testing.assert_allclose(values[seen], wanted[seen], atol=steps + 1e-9)
    assert seen.mean() > 0.5 and not np.array_equal(wanted, dense(table.values))
    assert back.features == table.features and back.samples == table.samples


@every_case
def test_mask_is_written_and_comes_back(place, tmp_path, case):
    _, table = made(place, case)
    values = dense(table.values)
    mask = values > np.nanmedian(values)
    path = write_table(tmp_path / "mask", table.with_values(mask))
    options = {name: value for name, value in _again(case, table).items() if name != "missing_value"}
    back = dense(read_table(path, **options).values)
    assert back.shape == mask.shape
    np.testing.assert_array_equal(back > 0, mask)
    assert set(np.unique(back)) <= {0, 1, 255}


IMAGES = [case for case in CASES if case.grid is not None and len(case.grid) in (2, 3)]


@pytest.mark.parametrize("case", IMAGES, ids=[case.name for case in IMAGES])
def test_components_are_written_as_images(place, tmp_path, case):
    _, table = made(place, case)
    components = np.random.default_rng(0).random((3, table.shape[1]))
    path = write_table(tmp_path / "parts.tif", table.other_samples(components, ["a", "b", "c"]))
    tifffile = pytest.importorskip("tifffile")
    pages = tifffile.imread(path)
    assert pages.shape == (3, *case.grid) or sorted(pages.shape) == sorted((3, *case.grid))
    np.testing.assert_allclose(read_table(path).values, components, rtol=1e-6)


@pytest.mark.parametrize("name", corpus.LOSSY)
def test_lossy_files_are_close_and_written_without_loss(tmp_path, name):
    corpus.LOSSY[name](tmp_path / name)
    table = read_table(tmp_path / name)
    wanted = corpus.COLOUR_MOVIE if "lossy" in name else np.kron(corpus.RGB, np.ones((1, 4, 4, 1), np.uint8))
    assert table.array().shape == wanted.shape
    assert np.abs(table.array() - wanted).mean() < 25
    path = write_table(tmp_path / "back", table)
    assert path.suffix == (".png" if name == "photo.jpg" else ".mkv")
    np.testing.assert_array_equal(read_table(path).values, table.values)
    assert read_table(path).source.about.get("fps") == table.source.about.get("fps")


# --- Formats exchanged ------------------------------------------------------------------------------------------------

CUBES = ["scene.mat", "cube.npz", "scales.h5", "xarray3.zarr", "bil.hdr", "cube.fits", "eels.hspy"]


@pytest.mark.parametrize("suffix", [".npz", ".mat", ".h5", ".zarr", ".hdr", ".fits", ".hspy"])
@pytest.mark.parametrize("name", CUBES)
def test_cube_of_one_format_becomes_one_of_another(place, tmp_path, name, suffix):
    _, table = made(place, next(case for case in CASES if case.name == name))
    back = read_table(write_table(tmp_path / f"cube{suffix}", table))
    np.testing.assert_array_equal(back.values, table.values)
    assert list(back.feature_names) == corpus.BANDS
    assert back.source.dtype == table.source.dtype
