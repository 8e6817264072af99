"""Claims about cubes, stacks and movies made to do harm: none fills the memory, leaves its folder or hangs."""

import gzip
import json
import struct
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corpus_arrays as corpus
from robustnmf.formats import DataFileError, envi, fits, read_table, tiff, video

X = np.random.default_rng(0).random((6, 5))
BLAST = 2**26
LIMIT = 2**20


def refused(path, *words, **options):
    with pytest.raises(DataFileError) as caught:
        read_table(path, **options)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return message


# --- Files of some bytes that declare much, or unpack to much ---------------------------------------------------------


def packed_strip(path):
    """A strip of Deflate that becomes more than a strip."""
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(path, np.zeros((100, 100), np.uint8), photometric="minisblack", compression="zlib", metadata=None)
    content = path.read_bytes()
    with tifffile.TiffFile(path) as tif:
        place, length = tif.pages[0].dataoffsets[0], tif.pages[0].databytecounts[0]
        tag = tif.pages[0].tags[279].valueoffset
        at = tif.pages[0].tags[273].valueoffset
    bomb = zlib.compress(bytes(10_000)) if length > BLAST else zlib.compress(bytes(BLAST), 9)
    new = content[:at] + struct.pack("<I", len(content)) + content[at + 4 :] + bomb
    new = bytearray(new)
    new[tag : tag + (2 if len(bomb) < 2**16 else 4)] = struct.pack("<H" if len(bomb) < 2**16 else "<I", len(bomb))
    assert place
    path.write_bytes(new)


def endless_tiff(path):
    """A page that comes after itself."""
    pytest.importorskip("tifffile").imwrite(path, X, photometric="minisblack", metadata=None)
    content = bytearray(path.read_bytes())
    start = struct.unpack("<I", content[4:8])[0]
    count = struct.unpack("<H", content[start : start + 2])[0]
    content[start + 2 + 12 * count : start + 6 + 12 * count] = struct.pack("<I", start)
    path.write_bytes(content)


def described(text, values=X):
    def make(path):
        tifffile = pytest.importorskip("tifffile")
        tifffile.imwrite(path, values.astype(np.float32), photometric="minisblack", description=text, metadata=None)

    return make


SIZE = 'DimensionOrder="XYZCT" SizeX="5" SizeY="6" SizeZ="1" SizeC="1"'
OME = f'<OME><Image><Pixels {SIZE} SizeT="{{}}">{{}}</Pixels></Image></OME>'
PARTS = "".join(f'<TiffData><UUID FileName="{name}.tif">1</UUID></TiffData>' for name in "ab")
ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'


def big_page(path):
    """A page of zeros that are not stored."""
    pytest.importorskip("tifffile")
    tags = [(256, 20_000), (257, 20_000), (258, 8), (259, 8), (262, 1), (273, 8), (277, 1), (278, 20_000), (279, 1)]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    path.write_bytes(b"II*\0" + struct.pack("<I", 16) + bytes(8) + directory + bytes(4))


def envi_header(**entries):
    known = {"samples": 3, "lines": 2, "bands": 4, "data type": 1, "interleave": "bsq", "header offset": 0}
    return "ENVI\n" + "".join(f"{name} = {value}\n" for name, value in (known | entries).items())


def envi_cube(data=bytes(24), text=None, **entries):
    def make(path):
        pytest.importorskip("spectral")
        path.write_text(envi_header(**entries) if text is None else text)
        path.with_suffix(".img").write_bytes(data)

    return make


def card(name, value):
    return f"{name:8}= {value:>20}".ljust(80).encode()


def fits_file(*cards, data=b"", end=True):
    def make(path):
        pytest.importorskip("astropy")
        head = b"".join([card("SIMPLE", "T"), *(card(*pair) for pair in cards), b"END".ljust(80) if end else b""])
        path.write_bytes(head.ljust(-(-len(head) // 2880) * 2880) + data)

    return make


def many_parts(path):
    fits_file(("BITPIX", 8), ("NAXIS", 0))(path)
    part = b"XTENSION= 'IMAGE   '".ljust(80) + card("BITPIX", 8) + card("NAXIS", 0) + b"END".ljust(80)
    path.write_bytes(path.read_bytes() + part.ljust(2880) * 5000)


def packed_fits(path):
    fits_file(("BITPIX", 8), ("NAXIS", 2), ("NAXIS1", 5), ("NAXIS2", 5), data=bytes(2880))(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def tiled_fits(path):
    """Compressed tiles, which may unpack to any size."""
    module = pytest.importorskip("astropy.io.fits")
    module.HDUList([module.PrimaryHDU(), module.CompImageHDU(np.zeros((99, 99), np.int16))]).writeto(path)


SIZES = (("BITPIX", 8), ("NAXIS", 2), ("NAXIS1", 10**6), ("NAXIS2", 10**6))


def linked_hspy(path):
    """Values that are in another file."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path.with_name("secret.h5"), "w") as file:
        file["data"] = X
    with h5py.File(path, "w") as file:
        file.create_group("Experiments/a")["data"] = h5py.ExternalLink("secret.h5", "data")


def empty_hspy(path):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file.create_dataset("Experiments/a/data", (30_000, 30_000), float, chunks=(1000, 1000))


def packed_axis(path):
    """Points of an axis that unpack to more than they are."""
    corpus.hspy(corpus.FLOAT_CUBE, corpus.MAP)(path)
    with pytest.importorskip("h5py").File(path, "a") as file:
        axis = file["Experiments/eels map/axis-2"]
        points = axis.create_dataset("axis", (6,), float, chunks=(6,), compression="gzip")
        points.id.write_direct_chunk((0,), zlib.compress(bytes(BLAST)))


def playlist(text):
    return lambda path: path.write_text(text)


def wide_avi(path):
    """A movie whose header says that frames are huge."""
    corpus.movie(corpus.GREY_MOVIE, "FFV1")(path)
    content = path.read_bytes()
    for form in ("<II", "<ii"):
        content = content.replace(struct.pack(form, 24, 16), struct.pack(form, 30_000, 30_000))
    path.write_bytes(content)


def long_movie(path):
    """Many frames of nothing."""
    frames = np.zeros((300, 256, 256), np.uint8)
    corpus.movie(frames, "FFV1")(path)


def cut_movie(path):
    corpus.movie(corpus.COLOUR_MOVIE, "FFV1")(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


HOSTILE = {
    "strip.tif": (packed_strip, "unpack", {"max_bytes": LIMIT}),
    "circle.tif": (endless_tiff, "more than 65536 pages", {}),
    "page.tif": (big_page, "pixels", {}),
    "stack.tif": (described("ImageJ=1.53\nimages=100000000\nslices=100000000\n"), "100000000 images", {}),
    "planes.tif": (described(OME.format(10**9, "")), "1000000000 pages", {}),
    "entities.tif": (described(ENTITIES + OME.format(1, "")), "entities", {}),
    "others.tif": (
        described(OME.format(2, PARTS), np.ones((2, 6, 5))),
        "some are in others",
        {},
    ),
    "size.hdr": (envi_cube(samples=10**6, lines=10**6), "no larger than", {}),
    "more.hdr": (envi_cube(samples=1000, lines=1000), "values that its header declares", {}),
    "offset.hdr": (envi_cube(**{"header offset": 10**14}), "has 0", {}),
    "negative.hdr": (envi_cube(samples=-3), "samples is '-3'", {}),
    "complex.hdr": (envi_cube(**{"data type": 6}), "real numbers", {}),
    "packed.hdr": (envi_cube(**{"file compression": 1}), "not compressed", {}),
    "long.hdr": (envi_cube(text="ENVI\n" + ";" * (2**22 + 1)), "bytes, and the most", {}),
    "lines.hdr": (envi_cube(text="ENVI\n" + "a = {\n" * 20_000), "more than 16384 lines", {}),
    "other.hdr": (envi_cube(text="NIfTI"), "a cube of ENVI", {}),
    "size.fits": (fits_file(*SIZES), "no larger than", {}),
    "short.fits": (fits_file(("BITPIX", 8), ("NAXIS", 2), ("NAXIS1", 900), ("NAXIS2", 900)), "810000 bytes", {}),
    "end.fits": (fits_file(*SIZES, end=False, data=b" " * 2**23), "header", {}),
    "parts.fits": (many_parts, "more than 4096 parts", {}),
    "packed.fits": (packed_fits, "unpack it", {}),
    "tiles.fits": (tiled_fits, "funpack", {}),
    "axes.fits": (fits_file(("BITPIX", 8), ("NAXIS", 10**6)), "NAXIS", {}),
    "link.hspy": (linked_hspy, "no signal", {}),
    "empty.hspy": (empty_hspy, "a file that holds its values", {}),
    "axis.hspy": (packed_axis, "should unpack to 48", {"max_bytes": LIMIT}),
    "none.hspy": (lambda path: pytest.importorskip("h5py").File(path, "w").close(), "no signal", {}),
    "list.mp4": (playlist("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"), "begins like none", {}),
    "concat.mkv": (playlist("ffconcat version 1.0\nfile /etc/passwd\n"), "begins like none", {}),
    "wide.avi": (wide_avi, "finds no movie", {}),
    "long.mkv": (long_movie, "no larger than", {"max_bytes": 2**24}),
    "cut.mkv": (cut_movie, "whole movie", {}),
    "empty.webm": (lambda path: path.write_bytes(b"\x1a\x45\xdf\xa3" + bytes(100)), "movie", {}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_in_words(tmp_path, name):
    make, words, options = HOSTILE[name]
    make(tmp_path / name)
    refused(tmp_path / name, words, **options)


MEASURE = """
import json, resource, sys, time
from pathlib import Path
import astropy.io.fits, cv2, h5py, PIL.Image, spectral.io.envi, tifffile
from robustnmf.formats import DataFileError, read_table
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)
resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))  # if all fails, this process does and not the machine
for name, options in json.loads(sys.argv[2]).items():
    before, start, message = peak(), time.perf_counter(), "was read"
    try:
        read_table(Path(sys.argv[1]) / name, **options)
    except DataFileError as error:
        message = str(error)
    print(json.dumps([name, peak() - before, time.perf_counter() - start, message]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the largest memory of a process")
def test_hostile_files_take_little_memory_and_time(tmp_path):
    for name, (make, _, _) in HOSTILE.items():
        make(tmp_path / name)
    options = json.dumps({name: options for name, (_, _, options) in HOSTILE.items()})
    command = [sys.executable, "-c", MEASURE, str(tmp_path), options]
    done = subprocess.run(command, capture_output=True, text=True)
    measured = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert set(measured) == set(HOSTILE), done.stderr
    for name, (mebibytes, seconds, message) in measured.items():
        assert message != "was read", name
        assert mebibytes < 100, name
        assert seconds < 10, name


# --- Links and folders ------------------------------------------------------------------------------------------------


def test_numbers_of_envi_that_are_elsewhere_are_refused(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret.img").write_bytes(bytes(24))
    path = tmp_path / "inside" / "a.hdr"
    envi_cube()(path)
    path.with_suffix(".img").unlink()
    refused(path, "there is no file a")
    path.with_suffix(".img").symlink_to(tmp_path / "secret.img")
    refused(path, "a link that leads out")


def test_nested_folders_hold_their_files(tmp_path):
    corpus.folder(corpus.STACK)(tmp_path / "images")
    corpus.folder(corpus.STACK)(tmp_path / "others")
    (tmp_path / "images" / "linked").symlink_to(tmp_path / "others")
    refused(tmp_path / "images", "linked is a link that leads out of it")
    (tmp_path / "images" / "linked").unlink()
    (tmp_path / "images" / "plate 1" / "again").symlink_to(tmp_path / "images")
    assert read_table(tmp_path / "images").shape[0] == 6  # links to folders inside are not followed in circles
    (tmp_path / "images" / ".hidden").mkdir()
    (tmp_path / "images" / ".hidden" / "a.png").write_bytes(b"not an image")
    assert read_table(tmp_path / "images").shape[0] == 6


def test_images_of_other_sizes_in_nested_folders_are_named(tmp_path):
    corpus.folder(corpus.STACK)(tmp_path)
    corpus.picture(corpus.STACK[0, :4])(tmp_path / "plate 2" / "odd.png")
    refused(tmp_path, "plate 1/well 8.png is 5 x 7, plate 2/odd.png is 4 x 7")


def test_names_of_samples_do_not_name_files_outside(tmp_path):
    from robustnmf.formats import write_table

    corpus.folder(corpus.STACK)(tmp_path / "images")
    table = read_table(tmp_path / "images")
    components = np.ones((3, table.shape[1]))
    names = ["../../escape", "/etc/passwd", ".."]
    written = write_table(tmp_path / "out" / "parts", table.other_samples(components, names))
    files = list(tmp_path.rglob("*.tif"))
    assert len(files) == 3 and all(path.is_relative_to(written) for path in files)


# --- Bytes changed here and there -------------------------------------------------------------------------------------

MUTATED = [
    "imagej-tcyx.tif",
    "ome.ome.tif",
    "deflated.tiff",
    "cube.fits",
    "blank.fits",
    "eels.hspy",
    "ffv1.avi",
    "ffv1.mkv",
    "bil.hdr",
]


@cache
def contents(name):
    """Return the bytes of the files of a case."""
    case = next(case for case in corpus.CASES if case.name == name)
    with TemporaryDirectory() as folder:
        case.make(Path(folder) / name)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("name", MUTATED)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), min_size=1, max_size=5)
)
def test_changed_file_is_read_or_refused(name, changes):
    with TemporaryDirectory() as folder:
        for other, content in contents(name).items():
            changed = bytearray(content)
            for where, value in changes if other == name else ():
                place = int(where * min(len(changed), 4000))
                changed[place : place + len(value)] = value
            (Path(folder) / other).write_bytes(changed)
        try:
            table = read_table(Path(folder) / name, max_bytes=2**24)
        except DataFileError:
            return
    assert table.values.ndim == 2 and table.values.dtype in (np.float32, np.float64)


def test_limits_are_what_the_guide_says():
    """The numbers in docs/guide/files.md."""
    assert (tiff.MAX_PAGES, tiff.MAX_SEGMENTS, tiff.MAX_DESCRIPTION) == (65_536, 131_072, 2**24)
    assert tiff.MAX_PIXELS == 89_478_485 == pytest.importorskip("PIL.Image").MAX_IMAGE_PIXELS
    assert (envi.MAX_HEADER, envi.MAX_HEADER_LINES, fits.MAX_HDUS, fits.MAX_HEADER) == (2**22, 2**14, 4096, 2**22)
    assert video.MAX_FRAMES == 2**20
