"""Readers of many kinds of file as matrices, samples by features; most of them are made by a function here.

A reader takes the path of a file. Data of R need ``rdata`` (MIT): ``pip install rdata``.
"""

import base64
import bz2
import gzip
import lzma
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.io import wavfile
from scipy.signal import stft

Matrix = NDArray[np.float64]
Reader = Callable[[Path], Any]


def numbers(table: pd.DataFrame) -> Matrix:
    """Return the columns of numbers, (rows without gaps, columns)."""
    columns = table.select_dtypes("number").astype(np.float64)
    return np.asarray(columns.replace([np.inf, -np.inf], np.nan).dropna())


def csv(columns: slice = slice(None), **options: Any) -> Reader:
    """Return a reader of the numbers in some columns of a table in text."""
    return lambda path: numbers(pd.read_csv(path, **options).iloc[:, columns])


def r_object(path: Path, name: str) -> Any:
    """Return one object of an R data file (``.rda``, ``.RData``, ``.rds``) or of a lazy-load database (``.rdb``)."""
    import rdata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes of which only the contents are wanted
        if path.suffix == ".rds":
            return rdata.read_rds(path)
        if path.suffix != ".rdb":
            return rdata.read_rda(path)[name]
        start, size = (int(number) for number in rdata.read_rds(path.with_suffix(".rdx"))["variables"][name])
        parsed = rdata.parser.parse_data(unpacked(path.read_bytes()[start : start + size]))
        return rdata.conversion.convert(parsed, lenient_frames(rdata))


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


def r(name: str, *parts: str, columns: slice = slice(None)) -> Reader:
    """Return a reader of an R object, or of a part of it (item of a list or slot), in some of its columns."""

    def read(path: Path) -> Matrix:
        item = r_object(path, name)
        for part in parts:
            item = item[part] if isinstance(item, dict) else getattr(item, part)
        return numbers(item.iloc[:, columns]) if isinstance(item, pd.DataFrame) else np.asarray(item)[:, columns]

    return read


def h5ad(group: str) -> Reader:
    """Return a reader of a sparse matrix, cells by genes, of an AnnData file."""

    def read(path: Path) -> sparse.csr_array:
        import h5py

        with h5py.File(path) as file:
            stored = file[group]
            parts = tuple(stored[part][:] for part in ("data", "indices", "indptr"))
            return sparse.csr_array(parts, shape=tuple(stored.attrs["shape"]))

    return read


def most_frequent(read: Reader, n_columns: int = 2000) -> Reader:
    """Return a reader of the columns with the largest sums."""

    def select(path: Path) -> Matrix:
        X = read(path)
        columns = np.sort(np.argsort(-np.asarray(X.sum(axis=0)).ravel(), kind="stable")[:n_columns])
        return X[:, columns].toarray() if sparse.issparse(X) else X[:, columns]

    return select


def above_zero(read: Reader) -> Reader:
    """Return a reader that leaves out the columns in which noise falls below zero."""

    def select(path: Path) -> Matrix:
        X = read(path)
        return X[:, (X >= 0).all(axis=0)]

    return select


def transposed(read: Reader) -> Reader:
    return lambda path: read(path).T


def evenly(X: Matrix, n_rows: int) -> Matrix:
    """Return at most `n_rows` rows, spread evenly."""
    return X if len(X) <= n_rows else X[np.linspace(0, len(X) - 1, n_rows).astype(int)]


# -------------------------------------------------------------------------------------------------- documents by words


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


# -------------------------------------------------------------------------------------------------- sounds and signals


def spectrogram(signal: NDArray[Any], width: int = 512) -> Matrix:
    """Return magnitudes of the short-time Fourier transform, (frames, frequencies)."""
    return np.abs(stft(np.asarray(signal, dtype=np.float64), nperseg=width)[2]).T


def wav(path: Path) -> Matrix:
    _, signal = wavfile.read(path)
    return spectrogram(signal if signal.ndim == 1 else signal.mean(axis=1))


def r_signal(name: str, width: int) -> Reader:
    return lambda path: spectrogram(np.asarray(r_object(path, name)), width)


# -------------------------------------------------------------------------------------------------- images and volumes


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


# ------------------------------------------------------------------------------------- mass spectra and flow cytometry


def binned(spectra: Iterable[tuple[Matrix, Matrix]], edges: Matrix) -> Matrix:
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


# --------------------------------------------------------------------------------------------- tables that need a turn


def movie_ratings(path: Path) -> Matrix:
    """Return stars, zero where a user has not rated, of the films and users with most ratings, (users, films)."""
    table = pd.read_csv(path)
    for column, n_kept in (("movieId", 600), ("userId", 400)):
        table = table[table[column].isin(table[column].value_counts().index[:n_kept])]
    return table.pivot_table(index="userId", columns="movieId", values="rating", fill_value=0).to_numpy()


def without_gaps(read: Reader) -> Reader:
    """Return a reader that leaves out the rows in which a number is missing."""

    def complete(path: Path) -> Matrix:
        X = read(path)
        return X[~np.isnan(X).any(axis=1)]

    return complete


def r_months(name: str) -> Reader:
    """Return a reader of a map over time, (times, places), that is stored as latitudes by longitudes by times."""
    return lambda path: np.moveaxis(np.asarray(r_object(path, name)), -1, 0).reshape(-1, 24 * 24)


def kola(path: Path) -> Matrix:
    """Return elements of soil that were dissolved and measured in the same way, (sites, elements)."""
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
