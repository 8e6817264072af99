"""A corpus of arrays, images, cubes and movies as people have them, each made by the library that writes such files.

A case has the array in the file, and what must be read from it. `make` writes it to a path. `test_corpus_arrays.py`
reads each, compares, fits, writes back and compares again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import sparse
from scipy.io import mmwrite, savemat

RNG = np.random.default_rng(0)
WAVELENGTHS = np.array([400.0, 452.5, 505.0, 557.5, 610.0, 662.5])
BANDS = ["400", "452.5", "505", "557.5", "610", "662.5"]
NONE: Mapping[str, Any] = MappingProxyType({})


def low_rank(*shape, dtype=np.uint8, scale=200):
    """Return an array of rank two between its first axes and the last one, with few outliers, as most data is."""
    n = int(np.prod(shape[:-1]))
    X = RNG.random((n, 2)) @ RNG.random((2, shape[-1])) / 2 * scale
    X[RNG.random(X.shape) < 0.02] = scale
    array = X.reshape(shape)
    return array.astype(dtype) if np.dtype(dtype).kind == "f" else np.rint(array).astype(dtype)


class Case(NamedTuple):
    """A file: how it is made, and what must be read from it."""

    name: str
    format: str
    make: Callable[[Path], Any]
    values: Any
    """(n_samples, n_features)"""
    read: Mapping[str, Any] = NONE
    """Options of `read_table`."""
    features: Any = None
    """Names of the features."""
    samples: Any = None
    """Names of the samples."""
    grid: Any = None
    """Grid of the features."""
    note: str = ""
    """Words of a note; "" if there must be none."""
    written: str = ""
    """Suffix that it is written with, if it is another."""
    dtype: Any = None


CASES: list[Case] = []


def case(name, format, values, make, **about):
    CASES.append(Case(name, format, make, values, **about))


def frames_of(array, axis=0):
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def pixels_of(array, axis=-1):
    return np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])


# --- NumPy, MATLAB, HDF5, zarr ----------------------------------------------------------------------------------------

TABLE = low_rank(12, 6, dtype=np.float64)
COUNTS = low_rank(12, 6, dtype=np.int16, scale=30)
CUBE = low_rank(5, 4, 6, dtype=np.uint16, scale=4000)
FLOAT_CUBE = low_rank(5, 4, 6, dtype=np.float32, scale=1)
STACK = low_rank(6, 5, 7)
SPARSE = sparse.csr_array(np.where(COUNTS > 14, COUNTS, 0))

case("table.npy", "npy", TABLE, lambda p: np.save(p, TABLE))
case("counts.npy", "npy", COUNTS, lambda p: np.save(p, COUNTS))
case("transposed.npy", "npy", COUNTS.T, lambda p: np.save(p, COUNTS), read={"transpose": True})
case("fortran.npy", "npy", pixels_of(CUBE), lambda p: np.save(p, np.asfortranarray(CUBE)), read={"samples": "pixels"})
case("stack.npy", "npy", frames_of(STACK), lambda p: np.save(p, STACK), grid=(5, 7), note="6 frames")
case("coded.npy", "npy", np.where(COUNTS == 0, np.nan, COUNTS), lambda p: np.save(p, COUNTS), read={"missing_value": 0})
case(
    "mask.npy",
    "npy",
    frames_of(STACK) > 80,
    lambda p: np.save(p, STACK > 80),
    grid=(5, 7),
    read={"samples": "frames"},
    note="",
)
case(
    "four.npy",
    "npy",
    CUBE.reshape(5, 2, 2, 6).transpose(0, 2, 1, 3).reshape(10, 12),
    lambda p: np.save(p, CUBE.reshape(5, 2, 2, 6)),
    read={"sample_axes": (0, 2)},
    grid=(2, 6),
)
case(
    "cube.npz",
    "npz",
    pixels_of(CUBE),
    lambda p: np.savez(p, cube=CUBE, wavelength=WAVELENGTHS),
    features=BANDS,
    note="pixels, 6 features",
)
case(
    "bands-first.npz",
    "npz",
    pixels_of(CUBE.transpose(2, 0, 1), 0),
    lambda p: np.savez_compressed(p, cube=CUBE.transpose(2, 0, 1), wl=WAVELENGTHS),
    features=BANDS,
    note="pixels",
)
case("spectra.npz", "npz", TABLE, lambda p: np.savez(p, X=TABLE, energy_eV=WAVELENGTHS), features=BANDS)
case("sparse.npz", "npz", SPARSE.toarray(), lambda p: sparse.save_npz(p, SPARSE))
case("counts.mtx", "mtx", SPARSE.toarray(), lambda p: mmwrite(p, SPARSE.tocoo()))
case("packed.mtx.gz", "mtx", SPARSE.toarray(), lambda p: _gzipped(p, SPARSE))
case(
    "scene.mat",
    "mat",
    pixels_of(CUBE),
    lambda p: savemat(p, {"scene": CUBE, "wavelengths": WAVELENGTHS}),
    features=BANDS,
    note="pixels",
)
case(
    "packed.mat",
    "mat",
    frames_of(STACK),
    lambda p: savemat(p, {"movie": STACK}, do_compression=True),
    read={"samples": "frames"},
    grid=(5, 7),
)


def mat73(path):
    """As MATLAB 7.3 writes: HDF5, axes in reverse."""
    with pytest.importorskip("h5py").File(path, "w", userblock_size=512) as file:
        for name, values in (("scene", CUBE), ("lambda", WAVELENGTHS[None])):
            file.create_dataset(name, data=values.T).attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")


case("v73.mat", "mat", pixels_of(CUBE), mat73, features=BANDS, note="pixels")


def _gzipped(path, matrix):
    import gzip

    with gzip.open(path, "wb") as file:
        mmwrite(file, matrix.tocoo())


def hdf5(path, scales=False, labels=None):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        cube = file.create_dataset("scan/cube", data=CUBE, chunks=(5, 2, 3), compression="gzip")
        vector = file.create_dataset("scan/wavelength", data=WAVELENGTHS)
        vector.attrs["units"] = "nm"
        if scales:
            vector.make_scale("wavelength")
            cube.dims[2].attach_scale(vector)
        for axis, label in enumerate(labels or ()):
            cube.dims[axis].label = label


case("beside.h5", "hdf5", pixels_of(CUBE), hdf5, features=BANDS, note="pixels")
case(
    "scales.h5",
    "hdf5",
    pixels_of(CUBE),
    lambda p: hdf5(p, True, ("y", "x", "wavelength")),
    features=BANDS,
    note="pixels",
)
case("frames.h5", "hdf5", frames_of(CUBE, 2), lambda p: hdf5(p, False, ("row", "column", "time")), grid=(5, 4))


def netcdf(path):
    """A file with dimension scales on all axes, as netCDF-4 and xarray write them."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        data = file.create_dataset("radiance", data=FLOAT_CUBE)
        for axis, (name, size) in enumerate(zip(("lat", "lon", "wavelength"), FLOAT_CUBE.shape, strict=True)):
            scale = file.create_dataset(name, data=WAVELENGTHS if axis == 2 else np.arange(size) / 10)
            scale.make_scale(name)
            data.dims[axis].attach_scale(scale)


case("netcdf.h5", "hdf5", pixels_of(FLOAT_CUBE), netcdf, features=BANDS, note="pixels")


def zarr_xarray(path, version):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    data = xarray.DataArray(FLOAT_CUBE, dims=("y", "x", "wavelength"), coords={"wavelength": WAVELENGTHS})
    data.wavelength.attrs["units"] = "nm"
    data.to_dataset(name="reflectance").to_zarr(path, zarr_format=version, consolidated=version == 2)


case("xarray2.zarr", "zarr", pixels_of(FLOAT_CUBE), lambda p: zarr_xarray(p, 2), features=BANDS, note="pixels")
case("xarray3.zarr", "zarr", pixels_of(FLOAT_CUBE), lambda p: zarr_xarray(p, 3), features=BANDS, note="pixels")
case("plain.zarr", "zarr", COUNTS, lambda p: pytest.importorskip("zarr").save(str(p), COUNTS))

GENES, CELLS = [f"gene-{i}" for i in range(6)], [f"cell {i}" for i in range(12)]


def h5ad(path, X):
    """As AnnData 0.8 and later write."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        if sparse.issparse(X):
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": X.shape})
            for name in ("data", "indices", "indptr"):
                group[name] = getattr(X, name)
        else:
            file["X"] = X
        for axis, names in (("obs", CELLS), ("var", GENES)):
            frame = file.create_group(axis)
            frame.attrs.update({"encoding-type": "dataframe", "_index": "_index", "encoding-version": "0.2.0"})
            frame.create_dataset("_index", data=names, dtype=h5py.string_dtype())


DENSE_CELLS = COUNTS.astype(np.float32)
case("dense.h5ad", "h5ad", DENSE_CELLS, lambda p: h5ad(p, DENSE_CELLS), features=GENES, samples=CELLS)
case(
    "sparse.h5ad", "h5ad", SPARSE.toarray(), lambda p: h5ad(p, SPARSE.astype(np.float32)), features=GENES, samples=CELLS
)

# --- Images -----------------------------------------------------------------------------------------------------------

RGB = low_rank(5, 7, 3)
RGB_STACK = low_rank(6, 5, 7, 3)
DEEP = low_rank(6, 5, 7, dtype=np.uint16, scale=50_000)
TCYX = low_rank(6, 2, 5, 7, dtype=np.uint16, scale=50_000)
ZCYX = low_rank(4, 3, 5, 7)
CYX = low_rank(3, 8, 9, dtype=np.float32, scale=1)
TZCYX = low_rank(3, 2, 2, 5, 7)


def picture(values, mode=None, **options):
    return lambda p: pytest.importorskip("PIL.Image").fromarray(values, mode).save(p, **options)


def pages(values, **options):
    def make(path):
        image = pytest.importorskip("PIL.Image")
        first, *others = [image.fromarray(page) for page in values]
        first.save(path, save_all=True, append_images=others, **options)

    return make


def tiff(values, **options):
    return lambda p: pytest.importorskip("tifffile").imwrite(p, values, **options)


COLOUR = "three colours"
GREY = {"photometric": "minisblack"}
case("grey.png", "image", STACK[:1].reshape(1, -1), picture(STACK[0]), grid=(5, 7))
case("deep.png", "image", DEEP[:1].reshape(1, -1), picture(DEEP[0]), grid=(5, 7), dtype=np.uint16)
case("colour.png", "image", RGB.reshape(1, -1), picture(RGB), grid=(5, 7, 3), note=COLOUR)
case(
    "opaque.png",
    "image",
    RGB.reshape(1, -1),
    picture(np.dstack([RGB, np.full((5, 7), 255, np.uint8)])),
    grid=(5, 7, 3),
    note="alpha",
)
case("grey.bmp", "image", STACK[:1].reshape(1, -1), picture(STACK[0]), grid=(5, 7))
case("colour.ppm", "image", RGB.reshape(1, -1), picture(RGB), grid=(5, 7, 3), note=COLOUR)
case(
    "lossless.webp",
    "image",
    RGB.reshape(1, -1),
    picture(RGB, lossless=True),
    grid=(5, 7, 3),
    note=COLOUR,
    written=".png",
)
case("movie.gif", "image", frames_of(STACK), pages(STACK, optimize=False), grid=(5, 7), written=".tif")
case("pages.tif", "tiff", frames_of(DEEP), pages(DEEP), grid=(5, 7))
case("lzw.tif", "tiff", frames_of(STACK), pages(STACK, compression="tiff_lzw"), grid=(5, 7))
case("shaped.tif", "tiff", frames_of(STACK), tiff(STACK, **GREY), grid=(5, 7))
case("deflated.tiff", "tiff", frames_of(DEEP), tiff(DEEP, compression="zlib", predictor=True, **GREY), grid=(5, 7))
case("tiled.tif", "tiff", frames_of(STACK), tiff(STACK, tile=(16, 16), **GREY), grid=(5, 7))
case("big.tif", "tiff", frames_of(DEEP), tiff(DEEP, bigtiff=True, byteorder=">", **GREY), grid=(5, 7))
case(
    "rgb16.tif",
    "tiff",
    RGB.reshape(1, -1) * 257.0,
    tiff(RGB.astype(np.uint16) * 257, photometric="rgb"),
    grid=(5, 7, 3),
    note=COLOUR,
)
case(
    "planar.tif",
    "tiff",
    RGB.reshape(1, -1),
    tiff(RGB.transpose(2, 0, 1).copy(), photometric="rgb", planarconfig="separate"),
    grid=(5, 7, 3),
    note=COLOUR,
)
case(
    "imagej-t.tif",
    "tiff",
    frames_of(DEEP),
    tiff(DEEP, imagej=True, metadata={"axes": "TYX", "finterval": 0.5, "unit": "um"}, resolution=(10, 10)),
    grid=(5, 7),
)
case("imagej-tcyx.tif", "tiff", frames_of(TCYX), tiff(TCYX, imagej=True, metadata={"axes": "TCYX"}), grid=(2, 5, 7))
case(
    "imagej-zcyx.tif",
    "tiff",
    frames_of(ZCYX),
    tiff(ZCYX, imagej=True, metadata={"axes": "ZCYX", "spacing": 0.3}),
    grid=(3, 5, 7),
)
case(
    "imagej-cyx.tif",
    "tiff",
    pixels_of(CYX, 0),
    tiff(CYX, imagej=True, metadata={"axes": "CYX"}),
    note="pixels, 3 features",
)
case(
    "imagej-channel.tif",
    "tiff",
    TCYX.transpose(0, 1, 2, 3).reshape(12, -1),
    tiff(TCYX, imagej=True, metadata={"axes": "TCYX"}),
    read={"sample_axes": (0, 1)},
    grid=(5, 7),
)
case(
    "imagej-rgb.tif",
    "tiff",
    frames_of(RGB_STACK),
    tiff(RGB_STACK, imagej=True, metadata={"axes": "TYXS"}),
    grid=(5, 7, 3),
    note=COLOUR,
)
case(
    "ome.ome.tif",
    "tiff",
    frames_of(TZCYX),
    tiff(
        TZCYX,
        ome=True,
        metadata={
            "axes": "TZCYX",
            "PhysicalSizeX": 0.1,
            "PhysicalSizeXUnit": "µm",
            "Channel": {"Name": ["DAPI", "GFP"]},
        },
        **GREY,
    ),
    grid=(2, 2, 5, 7),
)
case(
    "ome-cyx.tif",
    "tiff",
    pixels_of(CYX, 0),
    tiff(CYX, ome=True, metadata={"axes": "CYX", "Channel": {"Name": ["a", "b", "c"]}}, **GREY),
    features=("a", "b", "c"),
    note="pixels",
)


LONG = low_rank(70, 5, 7)
# Without axes tifffile notes the frames as channels.
case("unnamed.tif", "tiff", frames_of(LONG), tiff(LONG, imagej=True), grid=(5, 7), note="70 frames")


def folder(images, suffix="png", **options):
    """Images in nested folders, in natural order."""

    def make(path):
        pillow = pytest.importorskip("PIL.Image")
        for name, image in zip(names_in_folder(len(images), suffix), images, strict=True):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            pillow.fromarray(image).save(path / name, **options)
        (path / "notes.txt").write_text("not an image")

    return make


def names_in_folder(count, suffix):
    return [f"plate {1 + place // 3}/well {8 + place}.{suffix}" for place in range(count)]


case("nested", "image-folder", frames_of(STACK), folder(STACK), grid=(5, 7), samples=names_in_folder(6, "png"))
case(
    "deep folder", "image-folder", frames_of(DEEP), folder(DEEP, "tif"), grid=(5, 7), samples=names_in_folder(6, "tif")
)
case(
    "colours",
    "image-folder",
    frames_of(RGB_STACK),
    folder(RGB_STACK, "bmp"),
    grid=(5, 7, 3),
    note=COLOUR,
    samples=names_in_folder(6, "bmp"),
)

# --- ENVI, FITS, HyperSpy ---------------------------------------------------------------------------------------------


def envi(array, interleave, **options):
    def make(path):
        pytest.importorskip("spectral")
        from spectral.io import envi

        metadata = {"wavelength": list(WAVELENGTHS), "wavelength units": "Nanometers", "sensor type": "AVIRIS"}
        envi.save_image(str(path), array, dtype=array.dtype, interleave=interleave, metadata=metadata, **options)

    return make


def envi_data(path):
    envi(CUBE, "bil", ext="dat")(path.with_suffix(".hdr"))


for order in ("bip", "bil", "bsq"):
    case(f"{order}.hdr", "envi", pixels_of(CUBE), envi(CUBE, order, byteorder=int(order == "bsq")), features=BANDS)
case("float.hdr", "envi", pixels_of(FLOAT_CUBE), envi(FLOAT_CUBE, "bsq", ext="img"), features=BANDS)
case("by-data.dat", "envi", pixels_of(CUBE), envi_data, features=BANDS, written=".hdr")


def library(path):
    pytest.importorskip("spectral")
    from spectral.io import envi

    header = {"wavelength": list(WAVELENGTHS), "spectra names": [f"mineral {i}" for i in range(12)]}
    header |= {"samples": 6, "lines": 12, "bands": 1, "data type": 5, "interleave": "bsq", "byte order": 0}
    envi.write_envi_header(str(path), header | {"header offset": 0}, is_library=True)
    path.with_suffix(".sli").write_bytes(TABLE.astype("<f8").tobytes())


case("library.hdr", "envi", TABLE, library, features=BANDS, samples=[f"mineral {i}" for i in range(12)])


def fits(array, **cards):
    def make(path):
        module = pytest.importorskip("astropy.io.fits")
        hdu = module.PrimaryHDU(array)
        for name, value in cards.items():
            hdu.header[name] = value
        hdu.writeto(path)

    return make


SPECTRAL = {"CTYPE3": "WAVE", "CRVAL3": 400.0, "CDELT3": 52.5, "CRPIX3": 1.0, "CUNIT3": "nm", "OBJECT": "M 31"}
BANDS_FIRST = np.ascontiguousarray(FLOAT_CUBE.transpose(2, 0, 1))
case("cube.fits", "fits", pixels_of(FLOAT_CUBE), fits(BANDS_FIRST, **SPECTRAL), features=BANDS, note="pixels")
case("image.fits", "fits", TABLE, fits(TABLE))
case("unsigned.fits", "fits", frames_of(DEEP), fits(DEEP), grid=(5, 7), note="6 frames")


def blank_fits(path):
    fits(COUNTS, BLANK=0, BSCALE=0.5, BZERO=10.0)(path)


def several_fits(path):
    module = pytest.importorskip("astropy.io.fits")
    module.HDUList(
        [module.PrimaryHDU(), module.ImageHDU(TABLE, name="SCI"), module.ImageHDU(TABLE + 1, name="ERR")]
    ).writeto(path)


case("blank.fits", "fits", np.where(COUNTS == 0, np.nan, COUNTS * 0.5 + 10), blank_fits)
case("parts.fits", "fits", TABLE, several_fits, read={"key": "SCI"})
case("number.fit", "fits", TABLE, several_fits, read={"key": "1"})


def hspy(array, axes):
    """As HyperSpy 2 writes."""

    def make(path):
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file.attrs.update({"file_format": "HyperSpy", "file_format_version": "3.3"})
            group = file.create_group("Experiments/eels map")
            group.create_dataset("data", data=array, chunks=True, compression="gzip")
            for number, (name, units, scale, offset, navigate) in enumerate(axes):
                axis = group.create_group(f"axis-{number}")
                axis.attrs.update({"_type": "UniformDataAxis", "name": name, "units": units, "scale": scale})
                axis.attrs.update({"offset": offset, "navigate": navigate, "size": array.shape[number]})
            group.create_group("metadata/Signal").attrs["signal_type"] = "EELS"
            group.create_group("metadata/General").attrs["title"] = "map"
            group.create_group("original_metadata")

    return make


MAP = [("y", "nm", 0.5, 0.0, True), ("x", "nm", 0.5, 0.0, True), ("Energy loss", "eV", 52.5, 400.0, False)]
case("eels.hspy", "hspy", pixels_of(FLOAT_CUBE), hspy(FLOAT_CUBE, MAP), features=BANDS)
SERIES = [("t", "s", 2.0, 0.0, True), ("y", "nm", 1.0, 0.0, False), ("x", "nm", 1.0, 0.0, False)]
case("series.hspy", "hspy", frames_of(STACK), hspy(STACK, SERIES), grid=(5, 7), samples=["0", "2", "4", "6", "8", "10"])

# --- Movies -----------------------------------------------------------------------------------------------------------

GREY_MOVIE = np.kron(low_rank(6, 4, 6), np.ones((1, 4, 4), np.uint8))
COLOUR_MOVIE = np.kron(low_rank(6, 4, 6, 3), np.ones((1, 4, 4, 1), np.uint8))


def movie(frames, code):
    def make(path):
        cv2 = pytest.importorskip("cv2")
        is_colour = frames.ndim == 4
        size = (frames.shape[2], frames.shape[1])
        writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter_fourcc(*code), 12.5, size, is_colour)
        assert writer.isOpened()
        for frame in frames:
            writer.write(np.ascontiguousarray(frame[..., ::-1] if is_colour else frame))
        writer.release()

    return make


case("ffv1.avi", "video", frames_of(GREY_MOVIE), movie(GREY_MOVIE, "FFV1"), grid=(16, 24), written=".mkv")
case("ffv1.mkv", "video", frames_of(COLOUR_MOVIE), movie(COLOUR_MOVIE, "FFV1"), grid=(16, 24, 3), note=COLOUR)
LOSSY = {
    "lossy.mp4": movie(COLOUR_MOVIE, "mp4v"),
    "lossy.mov": movie(COLOUR_MOVIE, "mp4v"),
    "lossy.webm": movie(COLOUR_MOVIE, "VP80"),
    "lossy.avi": movie(COLOUR_MOVIE, "MJPG"),
    "photo.jpg": picture(np.kron(RGB, np.ones((4, 4, 1), np.uint8)), quality=95),
}
"""Files whose values come back nearly: what they must be close to is in the test."""
