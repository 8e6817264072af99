"""What is written has the shape, the type, the names and the scales of what was read, or is refused in words."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import corpus_arrays as corpus
from robustnmf.formats import Axis, LabelledMatrix, read_table, write_table, written_suffix
from robustnmf.utils import files
from robustnmf.utils.files import MANIFEST, ForeignFileError


@pytest.fixture
def stack(tmp_path):
    """A stack of ImageJ with scales."""
    metadata = {"axes": "TCYX", "finterval": 0.5, "unit": "um", "spacing": 0.25}
    corpus.tiff(corpus.TCYX, imagej=True, metadata=metadata, resolution=(12.5, 12.5))(tmp_path / "a.tif")
    return read_table(tmp_path / "a.tif")


# --- Stacks -----------------------------------------------------------------------------------------------------------


def test_channels_are_kept_apart_and_can_be_samples(tmp_path, stack):
    assert stack.features.grid == (2, 5, 7) and stack.features.grid_names == ("c", "y", "x")
    np.testing.assert_array_equal(stack.values[3].reshape(2, 5, 7), corpus.TCYX[3])
    each = read_table(tmp_path / "a.tif", sample_axes=(0, 1))
    assert each.image_shape == (5, 7) and each.samples.grid_names == ("t", "c")
    pixels = read_table(tmp_path / "a.tif", samples="pixels")
    assert pixels.samples.grid == (5, 7) and pixels.features.grid_names == ("t", "c")
    np.testing.assert_array_equal(pixels.array(), corpus.TCYX)


def test_stack_keeps_the_axes_and_scales_of_imagej(tmp_path, stack):
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffFile(write_table(tmp_path / "b.tif", stack)) as tif:
        assert tif.is_imagej and tif.series[0].axes == "TCYX"
        about = tif.imagej_metadata
        assert (about["frames"], about["channels"]) == (6, 2)
        assert (about["finterval"], about["unit"], about["spacing"]) == (0.5, "um", 0.25)
        x = tif.pages[0].tags["XResolution"].value
        assert x[0] / x[1] == 12.5
        np.testing.assert_array_equal(tif.asarray(), corpus.TCYX)


def test_stack_keeps_the_labels_and_the_mode_of_imagej(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    labels = [f"label {k}" for k in range(int(np.prod(corpus.TCYX.shape[:2])))]
    metadata = {"axes": "TCYX", "Labels": labels, "mode": "composite"}
    corpus.tiff(corpus.TCYX, imagej=True, metadata=metadata)(tmp_path / "a.tif")
    table = read_table(tmp_path / "a.tif")
    found = {}
    results = {"mask": table.with_values(table.values > 9), "parts": table.other_samples(np.ones(table.shape))}
    for name, matrix in {"same": table, **results}.items():
        with tifffile.TiffFile(write_table(tmp_path / f"{name}.tif", matrix)) as tif:
            found[name] = tif.imagej_metadata.get("Labels"), tif.imagej_metadata["mode"]
    assert found == {"same": (labels, "composite"), "mask": (labels, "composite"), "parts": (None, "composite")}


def test_stack_keeps_the_scales_and_channels_of_ome(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    case = next(case for case in corpus.CASES if case.name == "ome.ome.tif")
    case.make(tmp_path / "a.ome.tif")
    with tifffile.TiffFile(write_table(tmp_path / "b.tif", read_table(tmp_path / "a.ome.tif"))) as tif:
        assert tif.is_ome and tif.series[0].axes == "TZCYX"
        for words in ('PhysicalSizeX="0.1"', 'Name="DAPI"', 'Name="GFP"'):
            assert words in tif.ome_metadata
        np.testing.assert_array_equal(tif.asarray(), corpus.TZCYX)


def test_stack_that_imagej_stores_behind_one_page_is_read(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    frames = corpus.DEEP
    about = f"ImageJ=1.53t\nimages={len(frames)}\nslices={len(frames)}\n"
    tifffile.imwrite(tmp_path / "a.tif", frames[0], byteorder=">", metadata=None, description=about, photometric=1)
    with tifffile.TiffFile(tmp_path / "a.tif") as tif:
        end = tif.pages[0].dataoffsets[0] + frames[0].nbytes
    content = (tmp_path / "a.tif").read_bytes()[:end]
    (tmp_path / "a.tif").write_bytes(content + frames[1:].astype(">u2").tobytes())
    table = read_table(tmp_path / "a.tif")
    np.testing.assert_array_equal(table.array(), frames)
    assert table.features.grid_names == ("y", "x")


def test_one_frame_with_channels_stays_one_frame(tmp_path, stack):
    one = stack.other_samples(stack.values[:1])
    again = read_table(write_table(tmp_path / "b.tif", one))
    assert again.shape == one.shape and again.features.grid == (2, 5, 7)


def test_images_of_ome_are_chosen_by_key(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as tif:
        tif.write(corpus.STACK, metadata={"axes": "TYX", "Name": "first"}, photometric="minisblack")
        tif.write(corpus.DEEP, metadata={"axes": "TYX", "Name": "second"}, photometric="minisblack")
    with pytest.raises(ValueError, match=r"it has 2: 0 \('first'\), 1 \('second'\)"):
        read_table(tmp_path / "a.ome.tif")
    for key in ("second", "1"):
        np.testing.assert_array_equal(read_table(tmp_path / "a.ome.tif", key=key).array(), corpus.DEEP)


# --- Types ------------------------------------------------------------------------------------------------------------


def test_values_are_rounded_and_clipped_into_the_type_of_the_file_unless_another_is_asked_for(tmp_path, stack):
    values = np.full(stack.shape, 70_000.0)
    values[0], values[1] = -3.0, 7.6
    changed = stack.with_values(values)
    kept = read_table(write_table(tmp_path / "b.tif", changed))
    assert kept.source.dtype == np.uint16
    assert (kept.values[0] == 0).all() and (kept.values[1] == 8).all() and (kept.values[2] == 65_535).all()
    asked = read_table(write_table(tmp_path / "c.tif", changed, dtype="float32"))
    assert asked.source.dtype == np.float32
    np.testing.assert_allclose(asked.values, values, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64", "uint64"])
def test_largest_numbers_of_a_type_are_kept(tmp_path, dtype):
    limits = np.iinfo(dtype)
    np.save(tmp_path / "a.npy", np.array([[limits.min, limits.max], [1, 2]], dtype))
    table = read_table(tmp_path / "a.npy")
    write_table(tmp_path / "b.npy", table.with_values(table.values * 1.5))
    back = np.load(tmp_path / "b.npy")
    assert back.dtype == dtype and back[0, 0] == limits.min and back[0, 1] == limits.max


def test_missing_values_of_whole_numbers_get_their_code_or_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, -999], [2, 3]]))
    table = read_table(tmp_path / "a.npy", missing_value=["NaN", -999])
    assert np.load(write_table(tmp_path / "b.npy", table)).tolist() == [[1, -999], [2, 3]]
    missing = read_table(tmp_path / "a.npy")
    missing = missing.with_values(np.where(missing.values < 0, np.nan, missing.values))
    with pytest.raises(ValueError, match=r"some are missing.*dtype='float32'"):
        write_table(tmp_path / "c.npy", missing)
    assert not (tmp_path / "c.npy").exists() and not list(tmp_path.glob(".c*"))
    assert np.isnan(np.load(write_table(tmp_path / "c.npy", missing, dtype=float))).sum() == 1


# --- Components and codes ---------------------------------------------------------------------------------------------


def test_codes_of_pixels_are_maps(tmp_path):
    np.savez(tmp_path / "a.npz", cube=corpus.CUBE, wavelength=corpus.WAVELENGTHS)
    table = read_table(tmp_path / "a.npz")
    codes = np.random.default_rng(0).random((table.shape[0], 3))
    maps = np.load(write_table(tmp_path / "maps.npy", table.other_features(codes, ["a", "b", "c"])))
    np.testing.assert_allclose(maps, codes.T.reshape(3, 5, 4), rtol=1e-6)
    spectra = table.other_samples(np.ones((3, 6)), ["a", "b", "c"])
    back = read_table(write_table(tmp_path / "spectra.npz", spectra))
    assert list(back.feature_names) == corpus.BANDS and back.shape == (3, 6)


def test_components_in_colour_are_images_in_colour(tmp_path):
    corpus.folder(corpus.RGB_STACK)(tmp_path / "images")
    table = read_table(tmp_path / "images")
    parts = table.other_samples(np.random.default_rng(0).random((2, table.shape[1])), ["one", "two"])
    folder = write_table(tmp_path / "parts", parts)
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["one.tif", "two.tif"]
    np.testing.assert_allclose(read_table(folder).values, parts.values, rtol=1e-6)


# --- Folders and files ------------------------------------------------------------------------------------------------


def test_photographs_come_back_as_png_under_their_names(tmp_path):
    corpus.folder(np.kron(corpus.STACK, np.ones((1, 4, 4), np.uint8)), "jpg")(tmp_path / "images")
    table = read_table(tmp_path / "images")
    folder = write_table(tmp_path / "clean", table)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.png")]
    assert sorted(names) == sorted(corpus.names_in_folder(6, "png"))
    np.testing.assert_array_equal(read_table(folder).values, table.values)
    mask = write_table(tmp_path / "mask", table.with_values(table.values > 50))
    pixels = np.asarray(pytest.importorskip("PIL.Image").open(mask / "plate 1" / "well 8.png"))
    assert set(np.unique(pixels)) == {0, 255}


def test_only_what_was_written_is_replaced(tmp_path, stack):
    corpus.folder(corpus.STACK)(tmp_path / "images")
    images = read_table(tmp_path / "images")
    for name, table in {"stack.tif": stack, "folder": images, "cube.zarr": stack, "cube.hspy": stack}.items():
        path = write_table(tmp_path / "out" / name, table)
        assert write_table(path, table) == path
        with pytest.raises(FileExistsError):
            write_table(path, table, replace=False)
    with pytest.raises(ForeignFileError):
        write_table(tmp_path / "a.tif", stack)
    (tmp_path / "out" / "folder" / "plate 1" / "mine.txt").write_text("notes")
    with pytest.raises(ForeignFileError, match=r"plate 1/mine\.txt"):
        write_table(tmp_path / "out" / "folder", images)
    (tmp_path / "out" / "folder" / "plate 1" / "mine.txt").unlink()
    (tmp_path / "out" / "folder" / "empty").mkdir()
    with pytest.raises(ForeignFileError, match="empty"):
        write_table(tmp_path / "out" / "folder", images)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_folders_hold_nothing_but_what_their_format_has(tmp_path, stack, monkeypatch, can_exchange):
    exchange = files.platforms.exchange
    monkeypatch.setattr(files.platforms, "exchange", exchange if can_exchange else lambda one, other: False)
    path = write_table(tmp_path / "cube.zarr", stack)
    assert not [inside for inside in path.rglob("*") if inside.name == MANIFEST]
    write_table(path, stack.with_values(stack.values + 1))
    np.testing.assert_array_equal(read_table(path).values, stack.values + 1)
    assert sorted(inside.name for inside in tmp_path.iterdir()) == [MANIFEST, "a.tif", "cube.zarr"]
    files.Manifest(path).add_all()  # where earlier versions had it
    write_table(path, stack)
    assert not (path / MANIFEST).exists()
    (path / "zarr.json").write_text("mine")
    with pytest.raises(ForeignFileError, match=r"zarr\.json"):
        write_table(path, stack)


def test_array_of_zarr_stays_one(tmp_path):
    zarr = pytest.importorskip("zarr")
    cube = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
    zarr.create_array(str(tmp_path / "cube.zarr"), data=cube, dimension_names=["y", "x", "wavelength"])
    table = read_table(tmp_path / "cube.zarr")
    results = {
        "cleaned": table,
        "maps": table.other_features(np.ones((6, 2))),
        "spectra": table.other_samples(np.ones((2, 4))),
    }
    written = {name: zarr.open(str(write_table(tmp_path / f"{name}.zarr", each))) for name, each in results.items()}
    np.testing.assert_array_equal(written["cleaned"][:], cube)
    assert written["cleaned"].dtype == cube.dtype
    assert written["cleaned"].metadata.dimension_names == ("y", "x", "wavelength")
    assert [written[name].shape for name in ("maps", "spectra")] == [(2, 2, 3), (2, 4)]


def test_xarray_opens_a_store_without_warnings(tmp_path):
    xarray = pytest.importorskip("xarray")
    corpus.zarr_xarray(tmp_path / "a.zarr", 3)
    table = read_table(tmp_path / "a.zarr")
    path = write_table(tmp_path / "b.zarr", table)
    with warnings.catch_warnings(action="error"):
        found = xarray.open_zarr(path, consolidated=False)
    np.testing.assert_array_equal(found["reflectance"].values, table.array())


def test_numbers_of_somebody_else_beside_a_header_are_kept(tmp_path):
    corpus.envi(corpus.CUBE, "bil")(tmp_path / "a.hdr")
    table = read_table(tmp_path / "a.hdr")
    (tmp_path / "b.img").write_bytes(b"mine")
    with pytest.raises(ForeignFileError, match=r"b\.img"):
        write_table(tmp_path / "b.hdr", table)
    assert (tmp_path / "b.img").read_bytes() == b"mine" and not (tmp_path / "b.hdr").exists()
    write_table(tmp_path / "c.hdr", table)
    write_table(tmp_path / "c.hdr", table.with_values(table.values / 2))
    np.testing.assert_array_equal(read_table(tmp_path / "c.hdr").values, np.rint(table.values / 2))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") and path.name != MANIFEST]


def test_what_a_format_cannot_hold_is_refused_in_words(tmp_path, stack):
    table = LabelledMatrix(np.ones((3, 4)))
    with pytest.raises(ValueError, match="format must be one that is written"):
        write_table(tmp_path / "a", table)
    with pytest.raises(ValueError, match="format must be one that is written"):
        write_table(tmp_path / "a.nothing", table)
    with pytest.raises(ValueError, match="must be images"):
        write_table(tmp_path / "b.tif", table)
    with pytest.raises(ValueError, match=r"one image.*\.tif"):
        write_table(tmp_path / "a.png", stack)
    with pytest.raises(ValueError, match="without loss"):
        write_table(tmp_path / "a.mp4", stack)
    with pytest.raises(ValueError, match="must be frames"):
        write_table(tmp_path / "a.mkv", stack)
    uneven = LabelledMatrix(np.ones((3, 3)), features=Axis(["1", "2", "4"], "wavelength"))
    with pytest.raises(ValueError, match="evenly spaced"):
        write_table(tmp_path / "a.fits", uneven)
    assert list(read_table(write_table(tmp_path / "a.hspy", uneven)).feature_names) == ["1", "2", "4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([MANIFEST, "a.hspy", "a.tif"])


def test_points_in_a_name_are_no_suffix(tmp_path, stack):
    assert write_table(tmp_path / "site.2022", stack) == tmp_path / "site.2022.tif"
    assert write_table(tmp_path / "site.2022", stack, format="zarr") == tmp_path / "site.2022.zarr"


def test_suffix_is_that_of_the_format_or_of_one_that_holds_the_values(tmp_path, stack):
    assert written_suffix(stack) == ".tif"
    corpus.movie(corpus.GREY_MOVIE, "FFV1")(tmp_path / "a.avi")
    movie = read_table(tmp_path / "a.avi")
    assert written_suffix(movie) == written_suffix(movie.with_values(movie.values > 9)) == ".mkv"
    assert written_suffix(movie.other_samples(movie.values[:2])) == ".tif"
    components = write_table(tmp_path / "parts", movie.other_samples(movie.values[:2]))
    assert components.suffix == ".tif" and read_table(components).shape == (2, movie.shape[1])


# --- Tables of other kinds --------------------------------------------------------------------------------------------


def test_anndata_opens_what_is_written(tmp_path):
    anndata = pytest.importorskip("anndata")
    corpus.h5ad(tmp_path / "a.h5ad", corpus.SPARSE.astype(np.float32))
    back = anndata.read_h5ad(write_table(tmp_path / "b.h5ad", read_table(tmp_path / "a.h5ad")))
    assert list(back.obs_names) == corpus.CELLS and list(back.var_names) == corpus.GENES
    assert sparse.issparse(back.X) and back.X.dtype == np.float32
    np.testing.assert_array_equal(back.X.toarray(), corpus.SPARSE.toarray())


def test_layers_are_written_beside_the_matrix(tmp_path):
    from robustnmf.formats.h5ad import write_h5ad

    corpus.h5ad(tmp_path / "a.h5ad", corpus.DENSE_CELLS)
    table = read_table(tmp_path / "a.h5ad")
    mask = table.values > 10
    write_h5ad(tmp_path / "b.h5ad", table, {"outliers": mask, "sparse": sparse.csr_array(mask)})
    for key in ("outliers", "sparse"):
        values = read_table(tmp_path / "b.h5ad", key=key).values
        np.testing.assert_array_equal(values.toarray() if sparse.issparse(values) else values, mask)


def test_wavelengths_that_fit_two_axes_are_not_guessed(tmp_path):
    cube = np.ones((6, 4, 6))
    np.savez(tmp_path / "a.npz", cube=cube, wavelength=corpus.WAVELENGTHS)
    table = read_table(tmp_path / "a.npz")
    assert table.shape == (6, 24) and "axes [0, 2]" in table.notes[0]


def test_header_of_fits_is_kept(tmp_path):
    module = pytest.importorskip("astropy.io.fits")
    corpus.fits(corpus.BANDS_FIRST, **corpus.SPECTRAL)(tmp_path / "a.fits")
    header = module.getheader(write_table(tmp_path / "b.fits", read_table(tmp_path / "a.fits")))
    assert header["OBJECT"] == "M 31" and header["CUNIT3"] == "nm" and header["CDELT3"] == 52.5


SKY = {"CTYPE1": "RA---TAN", "CTYPE2": "DEC--TAN", "CRVAL1": 10.0, "CRVAL2": 20.0, "CDELT1": -0.01, "CDELT2": 0.01}
SKY |= {"CRPIX1": 2.0, "CRPIX2": 3.0, "CUNIT1": "deg", "CUNIT2": "deg", "PC1_2": 0.1, "PC3_3": 1.0, "BUNIT": "mJy"}


def test_maps_keep_the_sky_and_nothing_of_the_spectrum(tmp_path):
    module, wcs = pytest.importorskip("astropy.io.fits"), pytest.importorskip("astropy.wcs")
    corpus.fits(corpus.BANDS_FIRST, **corpus.SPECTRAL, **SKY)(tmp_path / "a.fits")
    table = read_table(tmp_path / "a.fits")
    n_pixels, n_bands = table.shape
    for count in (2, n_bands):
        maps = table.other_features(np.ones((n_pixels, count)), [f"component {k}" for k in range(count)])
        header = module.getheader(write_table(tmp_path / "maps.fits", maps))
        assert not {"CTYPE3", "CRVAL3", "CDELT3", "CUNIT3", "PC3_3", "BUNIT"} & {*header}
        assert header["OBJECT"] == "M 31" and header["PC1_2"] == 0.1
        place = wcs.WCS(header).celestial.pixel_to_world_values(1, 2)
        np.testing.assert_allclose(place, (10, 20))
    header = module.getheader(write_table(tmp_path / "spectra.fits", table.other_samples(np.ones((2, n_bands)))))
    assert header["CTYPE1"] == "WAVE" and header["CRVAL1"] == 400 and not {"CTYPE2", "PC1_2", "BUNIT"} & {*header}
    header = module.getheader(write_table(tmp_path / "mask.fits", table.with_values(table.values > 1)))
    assert header["CTYPE3"] == "WAVE" and header["CTYPE1"] == "RA---TAN" and "BUNIT" not in header


def test_sky_is_kept_where_spectra_come_last(tmp_path):
    module = pytest.importorskip("astropy.io.fits")
    cards = {"CTYPE1": "WAVE", "CTYPE2": "RA---TAN", "CTYPE3": "DEC--TAN", "CRVAL2": 10.0, "CRVAL3": 20.0, "PC2_3": 0.1}
    corpus.fits(corpus.FLOAT_CUBE, **cards)(tmp_path / "a.fits")
    table = read_table(tmp_path / "a.fits")
    header = module.getheader(
        write_table(tmp_path / "maps.fits", table.other_features(np.ones((len(table.values), 2))))
    )
    found = {name: header.get(name) for name in ("CTYPE1", "CTYPE2", "CTYPE3", "CRVAL1", "CRVAL2", "PC1_2", "PC2_3")}
    expected = {"CTYPE1": "RA---TAN", "CTYPE2": "DEC--TAN", "CRVAL1": 10.0, "CRVAL2": 20.0, "PC1_2": 0.1}
    assert found == expected | {"CTYPE3": None, "PC2_3": None}


def test_headers_of_envi_hold_for_the_values_beside_them(tmp_path):
    envi = pytest.importorskip("spectral.io.envi")
    header = {"wavelength": list(corpus.WAVELENGTHS), "data ignore value": 0, "reflectance scale factor": 10000}
    header |= {"fwhm": [3.0] * len(corpus.WAVELENGTHS), "default bands": [3, 2, 1], "map info": ["UTM", "1", "1"]}
    envi.save_image(str(tmp_path / "a.hdr"), corpus.CUBE, metadata=header)
    table = read_table(tmp_path / "a.hdr")

    def written(name, matrix):
        return envi.read_envi_header(str(write_table(tmp_path / name, matrix)))

    cleaned, mask = written("cleaned.hdr", table), written("mask.hdr", table.with_values(table.values > 9))
    assert cleaned["data ignore value"] == "0" and cleaned["fwhm"] == ["3.0"] * 6
    about_values = {"data ignore value", "reflectance scale factor"}
    assert not about_values & {*mask} and mask["wavelength"] == cleaned["wavelength"] and "fwhm" in mask
    for count in (2, len(corpus.WAVELENGTHS)):
        names = [f"component {k + 1}" for k in range(count)]
        codes = written("codes.hdr", table.other_features(np.ones((table.shape[0], count)), names))
        assert codes["band names"] == names and codes["map info"] == ["UTM", "1", "1"]
        assert not (about_values | {"fwhm", "wavelength", "default bands"}) & {*codes}


def test_axes_of_hyperspy_are_kept(tmp_path):
    h5py = pytest.importorskip("h5py")
    corpus.hspy(corpus.FLOAT_CUBE, corpus.MAP)(tmp_path / "a.hspy")
    with h5py.File(write_table(tmp_path / "b.hspy", read_table(tmp_path / "a.hspy"))) as file:
        signal = file["Experiments/eels map"]
        about = [dict(signal[f"axis-{axis}"].attrs) for axis in range(3)]
        assert signal["metadata/Signal"].attrs["signal_type"] == "EELS"
    assert [(axis["name"], axis["units"], bool(axis["navigate"])) for axis in about] == [
        ("y", "nm", True),
        ("x", "nm", True),
        ("Energy loss", "eV", False),
    ]
    assert [(axis["scale"], axis["offset"]) for axis in about] == [(0.5, 0.0), (0.5, 0.0), (52.5, 400.0)]


@pytest.mark.parametrize("hours", [24, 1])
@pytest.mark.parametrize("file", ["x.xlsx", "x.parquet", "index.parquet", "index.feather"])
def test_dates_and_categories_come_back_as_they_were(file, hours, tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).random((6, 3)), columns=list("abc"))
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=6, freq=f"{hours}h"))
    frame["site"] = pd.Categorical(list("ABABAB"))
    path, written = tmp_path / file, tmp_path / f"written-{file}"
    if file == "x.xlsx":
        frame.to_excel(path, index=False)
    elif file == "index.feather":
        frame.set_index("date").to_feather(path)
    else:
        (frame.set_index("date") if file.startswith("index") else frame).to_parquet(path)
    write_table(written, read_table(path))
    options = {"engine": "openpyxl"} if file == "x.xlsx" else {}
    read = {".xlsx": pd.read_excel, ".parquet": pd.read_parquet, ".feather": pd.read_feather}[path.suffix]
    pd.testing.assert_frame_equal(read(written, **options), read(path, **options), check_freq=False)
