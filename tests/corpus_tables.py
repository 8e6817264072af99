"""Tables as people have them, written by the libraries that write such files, and what must be read of them.

`test_corpus_tables.py` reads, fits and writes each of them.
"""

import csv
import gzip
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import openpyxl
import pandas as pd
import polars as pl

NONE: Mapping[str, Any] = MappingProxyType({})
SPECIES = ["Al", "Fe", "S", "Pb"]
DAYS = [f"2004-07-{day:02d}" for day in range(1, 11)]
SITES = ["ATL", "BHM"] * 5
UNITS = ["ng/m3", "ng/m3", "ug/m3", "ng/m3"]

_RNG = np.random.default_rng(5)
AIR = (_RNG.random((10, 2)) @ _RNG.random((2, 4)) + 0.05).round(4)
AIR.setflags(write=False)


def frame(columns=SPECIES, values=AIR, days=None, title="date"):
    """Return the data as a data frame of pandas, with dates as index."""
    index = pd.to_datetime(DAYS) if days is None else pd.Index(days)
    return pd.DataFrame(np.array(values), index=index.rename(title), columns=columns)


def changed(places, values=AIR):
    """Return the data with other values at some places."""
    table = np.array(values, dtype=float)
    for place, value in places.items():
        table[place] = value
    return table


class File(NamedTuple):
    """A file, and what must be read of it."""

    name: str
    write: Callable[[Path], None]
    options: Mapping[str, Any] = NONE
    values: np.ndarray = AIR
    names: Any = tuple(DAYS)
    title: str | None = "date"
    features: Any = tuple(SPECIES)
    units: Any = None
    columns: Mapping[str, Any] = NONE
    uncertainties: Any = None
    notes: tuple[str, ...] = ()
    """Words that the notes must have, one for each note."""


def lines(*rows, delimiter=",", encoding="utf-8", newline="\n"):
    """Return a function that writes rows as text, with the csv module of Python."""

    def write(path):
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "wt", encoding=encoding, newline="") as file:
            csv.writer(file, delimiter=delimiter, lineterminator=newline).writerows(rows)

    return write


def with_cells(cells):
    """Return the data as text cells, some replaced."""
    table = [[repr(float(x)) for x in row] for row in AIR]
    for (i, j), cell in cells.items():
        table[i][j] = cell
    return [[day, *row] for day, row in zip(DAYS, table, strict=True)]


HEAD = ["date", *SPECIES]
ROWS = with_cells({})

# --- Text -------------------------------------------------------------------------------------------------------------

QUOTED = ["Al, total", 'so-called "Fe"', "S\n(sulphur)", "Pb"]
GREEK = ["Größe µm", "T °C", "PM₁₀ – Σ", "Temperatur"]
WESTERN = ["Größe µm", "T °C", "Straße ±", "débit"]
RUSSIAN = ["алюминий", "железо", "сера общая", "свинец"]  # noqa: RUF001
PREAMBLE = [
    ["Instrument: XRF 2000, serial 17"],
    ["Operator", "A. Smith"],
    ["Site", "Atlanta, GA", "33.78", "-84.41"],
    [],
]

TEXT = [
    File("pandas.csv", lambda path: frame().to_csv(path)),
    File("no_index.csv", lambda path: frame().to_csv(path, index=False), names=None, title=None),
    File("index_without_name.csv", lambda path: frame(title=None).to_csv(path), title=None),
    File("german.csv", lambda path: frame().to_csv(path, sep=";", decimal=",")),
    File("tabs.tsv", lambda path: frame().to_csv(path, sep="\t")),
    File("quotes.csv", lambda path: frame(QUOTED).to_csv(path, quoting=csv.QUOTE_ALL), features=QUOTED),
    File("windows.csv", lambda path: frame().to_csv(path, lineterminator="\r\n")),
    File(
        "polars.csv",
        lambda path: pl.DataFrame({"date": DAYS, **dict(zip(SPECIES, AIR.T, strict=True))}).write_csv(path),
    ),
    File(
        "numpy.txt",
        lambda path: np.savetxt(path, AIR, header=" ".join(SPECIES), fmt="%.4f"),
        names=None,
        title=None,
    ),
    File(  # as write.table of R: no heading above the names
        "r_table.txt",
        lambda path: frame(days=DAYS).to_csv(path, sep=" ", quoting=csv.QUOTE_NONNUMERIC, index_label=False),
        title=None,
    ),
    File(  # as write.csv2 of R
        "r_csv2.csv",
        lambda path: frame(days=DAYS, title="").to_csv(path, sep=";", decimal=",", quoting=csv.QUOTE_NONNUMERIC),
        title=None,
    ),
    File("packed.csv.gz", lambda path: frame().to_csv(path)),
    File("packed.tsv.gz", lambda path: frame().to_csv(path, sep="\t")),
    File("packed.txt.gz", lambda path: frame().to_csv(path, sep=" ")),
    File("bom.csv", lambda path: frame(GREEK).to_csv(path, encoding="utf-8-sig"), features=GREEK),
    File("unicode_text.txt", lambda path: frame(GREEK).to_csv(path, sep="\t", encoding="utf-16"), features=GREEK),
    File(
        "latin1.csv",
        lambda path: frame(WESTERN).to_csv(path, encoding="latin-1"),
        features=WESTERN,
        notes=("cp1252",),
    ),
    File(
        "cp1252.csv.gz",
        lambda path: frame([*WESTERN[:3], "10 – 20 €"]).to_csv(path, encoding="cp1252"),
        features=[*WESTERN[:3], "10 – 20 €"],
        notes=("cp1252",),
    ),
    File(
        "russian.csv",
        lambda path: frame(RUSSIAN).to_csv(path, encoding="cp1251"),
        {"encoding": "cp1251"},
        features=RUSSIAN,
    ),
    File("preamble.csv", lines(*PREAMBLE, HEAD, *ROWS), notes=("Lines 1 to 3",)),
    File("preamble.txt", lines(*PREAMBLE, HEAD, *ROWS, delimiter="\t"), {"skip_rows": 4}),
    File(
        "preamble_units.csv",
        lines(*PREAMBLE, HEAD, ["YYYY-MM-DD", *UNITS], *ROWS, delimiter=";"),
        units=UNITS,
        notes=("Lines 1 to 3", "units"),
    ),
    File("comments.csv", lines(["# exported by a logger"], ["# calibrated"], HEAD, *ROWS)),
    File("units.csv", lines(HEAD, ["", *UNITS], *ROWS), units=UNITS, notes=("units",)),
    File(
        "brackets.csv",
        lines(HEAD, ["", "[ng m-3]", "[ng m-3]", "(%)", ""], *ROWS),
        units=["[ng m-3]", "[ng m-3]", "(%)", ""],
        notes=("units",),
    ),
    File(
        "site_and_flag.csv",
        lambda path: frame().assign(flag="ok").reset_index().assign(site=SITES).to_csv(path, index=False),
        columns={"flag": ["ok"] * 10, "site": SITES},
        notes=("'flag', 'site'",),
    ),
    File(
        "site_first.csv",
        lambda path: frame().reset_index().set_index(pd.Index(SITES, name="site")).to_csv(path),
        {"index_column": "date"},
        columns={"site": SITES},
        notes=("'site'",),
    ),
    File(
        "numbered.csv",
        lambda path: frame(days=range(101, 111), title="id").to_csv(path),
        {"index_column": 1},
        names=[str(number) for number in range(101, 111)],
        title="id",
    ),
    File(
        "dropped.csv",
        lambda path: frame().assign(year=2004.0, note="x").to_csv(path),
        {"drop_columns": ["year", "note"]},
    ),
    File(
        "below_limit.csv",
        lines(HEAD, *with_cells({(1, 0): "<0.05", (2, 0): "BDL", (3, 1): "< 0.1", (4, 1): "<LOD"})),
        {"below_limit": "half"},
        values=changed({(1, 0): 0.025, (2, 0): 0.025, (3, 1): 0.05, (4, 1): 0.05}),
        uncertainties={(1, 0): 0.05 * 5 / 6, (2, 0): 0.05 * 5 / 6, (3, 1): 0.1 * 5 / 6, (4, 1): 0.1 * 5 / 6},
        notes=("4 entries",),
    ),
    File(
        "german_limits.csv",
        lines(["date", "Al", "Fe"], ["a", "1,5", "<0,2"], ["b", "2,5", "3"], ["c", "0,5", "1"], delimiter=";"),
        {"below_limit": "half"},
        values=np.array([[1.5, 0.1], [2.5, 3], [0.5, 1]]),
        names=list("abc"),
        features=["Al", "Fe"],
        uncertainties={(0, 1): 0.2 * 5 / 6},
        notes=("1 entries",),
    ),
    File(
        "not_detected.csv",
        lines(HEAD, *with_cells({(1, 0): "ND", (5, 3): "n.d."})),
        {"below_limit": "missing"},
        values=changed({(1, 0): np.nan, (5, 3): np.nan}),
        notes=("2 entries",),
    ),
    File(
        "codes.csv",
        lines(HEAD, *with_cells({(1, 0): "-999", (2, 0): "-99.9", (3, 1): "n.a.", (4, 1): "", (5, 2): "NA"})),
        {"missing_value": (-999, -99.9, "n.a.")},
        values=changed({(1, 0): np.nan, (2, 0): np.nan, (3, 1): np.nan, (4, 1): np.nan, (5, 2): np.nan}),
    ),
    File(
        "blank_corrected.csv",
        lambda path: frame(values=changed({(1, 0): -0.01, (7, 3): -0.002})).to_csv(path),
        {"negative": "clip"},
        values=changed({(1, 0): 0, (7, 3): 0}),
        notes=("2 negative entries were set to zero",),
    ),
    File(
        "no_negative.csv",
        lambda path: frame(values=changed({(1, 0): -0.01})).to_csv(path),
        {"negative": "missing"},
        values=changed({(1, 0): np.nan}),
        notes=("1 negative entries are missing",),
    ),
    File(
        "species_in_rows.csv",
        lambda path: frame(days=DAYS, title=None).T.to_csv(path, index_label="species"),
        {"transpose": True, "header": True},
        title=None,
    ),
    File(  # as for EPA PMF: dates of the United States, no units
        "epa_pmf.csv",
        lambda path: frame(days=[f"07/{day:02d}/04" for day in range(1, 11)], title="Sample Date").to_csv(path),
        names=[f"07/{day:02d}/04" for day in range(1, 11)],
        title="Sample Date",
    ),
]

# --- Workbooks --------------------------------------------------------------------------------------------------------


def write_report(path):
    """A report of a laboratory: a title, settings, headings, units, results below the limit."""
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "Results"
    for row in [["Report 17"], ["Method", "XRF"], [], HEAD, [None, *UNITS]]:
        sheet.append(row)
    for i, row in enumerate(AIR):
        cells = ["<0.1" if (i, j) == (2, 1) else float(x) for j, x in enumerate(row)]
        sheet.append([pd.Timestamp(DAYS[i]).to_pydatetime(), *cells])
    book.create_sheet("empty")
    book.save(path)


def write_sheets(path):
    with pd.ExcelWriter(path) as writer:
        frame(values=2 * AIR).to_excel(writer, sheet_name="2003")
        frame().to_excel(writer, sheet_name="2004", startrow=3, startcol=2)


def write_gaps(path):
    frame(values=changed({(1, 0): np.nan, (2, 1): np.nan})).assign(site=SITES).to_excel(path)


def ods_cell(kind, text, **value):
    about = "".join(f' office:{name}-value="{given}"' for name, given in value.items()).replace("number-", "")
    return f'<table:table-cell office:value-type="{kind}"{about}><text:p>{text}</text:p></table:table-cell>'


def write_ods(path):
    """What LibreOffice writes: repeated cells, and rows to the end of the sheet."""
    rows = ["".join(ods_cell("string", word) for word in HEAD)]
    for day, values in zip(DAYS, AIR.tolist(), strict=True):
        numbers = "".join(ods_cell("float", f"{x:.1f}", number=repr(x)) for x in values)
        rows.append(ods_cell("date", "x", date=day) + numbers)
    content = "".join(f"<table:table-row>{row}{ODS_REST}</table:table-row>" for row in rows)
    write_ods_rows(path, f'{content}<table:table-row table:number-rows-repeated="1048565">{ODS_REST}</table:table-row>')


ODS_REST = '<table:table-cell table:number-columns-repeated="16379"/>'
ODS_NAMES = " ".join(
    f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{short}:1.0"' for short in ("office", "table", "text")
)


def write_ods_rows(path, rows):
    """Write a workbook of LibreOffice with one sheet."""
    sheet = f'<office:spreadsheet><table:table table:name="air">{rows}</table:table></office:spreadsheet>'
    body = f"<office:body>{sheet}</office:body>"
    manifest = '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>'
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet", zipfile.ZIP_STORED)
        archive.writestr("META-INF/manifest.xml", manifest)
        archive.writestr("content.xml", f"<office:document-content {ODS_NAMES}>{body}</office:document-content>")


def biff(kind, content=b""):
    return struct.pack("<HH", kind, len(content)) + content


def write_xls(path):
    """The records of Excel 97 in a compound file, as few as there may be: numbers and texts of one sheet."""
    cells = [biff(0x0204, struct.pack("<HHHHB", 0, j, 0, len(word), 0) + word.encode()) for j, word in enumerate(HEAD)]
    for i, (day, values) in enumerate(zip(DAYS, AIR.tolist(), strict=True), 1):
        cells.append(biff(0x0204, struct.pack("<HHHHB", i, 0, 0, len(day), 0) + day.encode()))
        cells += [biff(0x0203, struct.pack("<HHHd", i, j, 0, x)) for j, x in enumerate(values, 1)]
    size = biff(0x0200, struct.pack("<IIHHH", 0, len(DAYS) + 1, 0, len(HEAD), 0))
    sheet = biff(0x0809, struct.pack("<HHHHII", 0x0600, 0x0010, 0, 0, 0, 0)) + size + b"".join(cells) + biff(0x000A)
    start = biff(0x0809, struct.pack("<HHHHII", 0x0600, 0x0005, 0, 0, 0, 0))
    place = len(start) + len(biff(0x0085, bytes(8 + 3))) + len(biff(0x000A))
    book = start + biff(0x0085, struct.pack("<IHBB", place, 0, 3, 0) + b"air") + biff(0x000A) + sheet
    path.write_bytes(compound_file("Workbook", book.ljust(4096, b"\0")))


def compound_file(name, stream):
    """Return a compound file of Microsoft with one stream of at least 4096 bytes."""
    n_sectors = -(-len(stream) // 512)
    end, free = 0xFFFFFFFE, 0xFFFFFFFF
    table = [0xFFFFFFFD, end, *range(3, 2 + n_sectors), end]
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH6x", 0x3E, 3, 0xFFFE, 9, 6)
    header += struct.pack("<IIIIIIIIII", 0, 1, 1, 0, 4096, end, 0, end, 0, 0) + b"\xff" * 4 * 108
    entries = [("Root Entry", 5, 1, end, 0), (name, 2, free, 2, len(stream))]
    folder = b""
    for title, kind, child, start, size in entries:
        text = f"{title}\0".encode("utf-16-le")
        folder += text.ljust(64, b"\0") + struct.pack("<HBBIII", len(text), kind, 1, free, free, child)
        folder += bytes(36) + struct.pack("<IQ", start, size)
    sectors = struct.pack(f"<{len(table)}I", *table).ljust(512, b"\xff") + folder.ljust(512, b"\0")
    return header + sectors + stream.ljust(512 * n_sectors, b"\0")


WORKBOOKS = [
    File("pandas.xlsx", lambda path: frame().to_excel(path)),
    File("no_index.xlsx", lambda path: frame().to_excel(path, index=False), names=None, title=None),
    File(
        "report.xlsx",
        write_report,
        {"below_limit": "half"},
        values=changed({(2, 1): 0.05}),
        units=UNITS,
        uncertainties={(2, 1): 0.1 * 5 / 6},
        notes=("Lines 1 to 2", "units", "1 entries"),
    ),
    File("sheets.xlsx", write_sheets, {"sheet": "2004"}),
    File("second_sheet.xlsx", write_sheets, {"sheet": 2}),
    File(
        "gaps.xlsx",
        write_gaps,
        values=changed({(1, 0): np.nan, (2, 1): np.nan}),
        columns={"site": SITES},
        notes=("'site'",),
    ),
    File("libreoffice.ods", write_ods),
    File("excel97.xls", write_xls),
    File(
        "negative.xlsx",
        lambda path: frame(values=changed({(0, 0): -0.5})).to_excel(path),
        {"negative": "missing"},
        values=changed({(0, 0): np.nan}),
        notes=("1 negative",),
    ),
]

# --- Arrow ------------------------------------------------------------------------------------------------------------


def plain_frame():
    return frame(days=DAYS).reset_index()


ARROW = [
    File("pandas.feather", lambda path: plain_frame().to_feather(path)),
    File("packed.feather", lambda path: plain_frame().to_feather(path, compression="zstd")),
    File("plain.feather", lambda path: plain_frame().to_feather(path, compression="uncompressed")),
    File(
        "categories.feather",
        lambda path: plain_frame().assign(site=pd.Categorical(SITES)).to_feather(path),
        columns={"site": SITES},
        notes=("'site'",),
    ),
    File("polars.arrow", lambda path: pl.DataFrame(plain_frame()).write_ipc(path)),
    File("dates.parquet", lambda path: frame().to_parquet(path)),
    File("without_title.parquet", lambda path: frame(title=None).to_parquet(path), title=None),
    File("no_index.parquet", lambda path: frame().reset_index(drop=True).to_parquet(path), names=None, title=None),
    File("polars.parquet", lambda path: pl.DataFrame(plain_frame()).write_parquet(path)),
    File(
        "single.parquet",
        lambda path: frame(values=AIR.astype(np.float32)).to_parquet(path),
        values=AIR.astype(np.float32),
    ),
    File(
        "site.parquet",
        lambda path: frame().assign(site=SITES).to_parquet(path),
        {"drop_columns": ["site"]},
    ),
]

CORPUS = [*TEXT, *WORKBOOKS, *ARROW]
