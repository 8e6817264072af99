"""Claims about tables as people have them: read to the last digit and label, fitted, written, and the same again."""

import warnings

import numpy as np
import pandas as pd
import pytest

from corpus_tables import AIR, CORPUS, DAYS, SPECIES, frame
from robustnmf import RobustNMF
from robustnmf.errors import DataQualityWarning
from robustnmf.formats import DataFileError, read_table, write_table
from robustnmf.formats.labelled_matrix import CLIPPED
from robustnmf.formats.registry import FORMATS

pytestmark = pytest.mark.filterwarnings("error")

each_file = pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)

STAYS = ("header", "index_column", "transpose")
"""Options that are needed to read again what was written; the others have had their effect."""


def written(folder, file):
    path = folder / file.name
    file.write(path)
    return path


def listed(names):
    return None if names is None else list(names)


def check_labels(matrix, file):
    assert listed(matrix.sample_names) == listed(file.names)
    assert matrix.samples.title == file.title
    assert listed(matrix.feature_names) == listed(file.features)
    assert listed(matrix.features.units) == listed(file.units)
    assert {title: list(column) for title, column in matrix.samples.columns.items()} == dict(file.columns)


def test_the_corpus_has_many_files_and_formats():
    assert len(CORPUS) >= 35 and len({file.name for file in CORPUS}) == len(CORPUS)
    suffixes = {".".join(file.name.split(".")[1:]) for file in CORPUS}
    assert suffixes >= {"csv", "tsv", "txt", "csv.gz", "tsv.gz", "txt.gz", "xlsx", "ods", "feather", "arrow", "parquet"}


@each_file
def test_table_is_read_value_by_value(tmp_path, file):
    matrix = read_table(written(tmp_path, file), **file.options)
    np.testing.assert_array_equal(matrix.values, file.values, strict=True)
    check_labels(matrix, file)
    assert len(matrix.notes) == len(file.notes)
    assert all(words in note for words, note in zip(file.notes, matrix.notes, strict=True)), matrix.notes
    if file.uncertainties is None:
        assert matrix.uncertainties is None
    else:
        expected = np.full(file.values.shape, np.nan)
        for place, value in file.uncertainties.items():
            expected[place] = value
        np.testing.assert_allclose(matrix.uncertainties, expected, rtol=1e-15)


@each_file
def test_table_that_is_written_is_read_as_the_same(tmp_path, file):
    matrix = read_table(written(tmp_path, file), **file.options)
    form = next(form for form in FORMATS if form.name == matrix.source.format)
    suffix = form.suffix_written or file.name[file.name.index(".") :]
    again = tmp_path / f"again{suffix}"
    write_table(again, matrix)
    same = read_table(again, **{name: value for name, value in file.options.items() if name in STAYS})
    np.testing.assert_array_equal(same.values, matrix.values, strict=True)
    check_labels(same, file)
    about = {name: value for name, value in matrix.source.about.items() if name not in ("encoding", CLIPPED)}
    assert {name: same.source.about[name] for name in about} == about
    write_table(tmp_path / f"twice{suffix}", same)
    if not suffix.endswith("xlsx"):  # workbooks tell the time
        assert (tmp_path / f"twice{suffix}").read_bytes() == again.read_bytes()


@each_file
def test_table_is_fitted_and_cleaned_with_its_labels(tmp_path, file):
    matrix = read_table(written(tmp_path, file), **file.options)
    with warnings.catch_warnings(action="ignore"):
        model = RobustNMF(1, max_iter=3, random_state=0, schedule="plain").fit(matrix)
        cleaned, mask = model.clean(matrix), model.outlier_mask(matrix)
    assert list(model.feature_names_in_) == list(file.features)
    assert (listed(model.input_.features.units), model.input_.options) == (listed(file.units), matrix.source.options)
    for result in (cleaned, mask):
        assert result.shape == file.values.shape
        check_labels(result, file)
    kept = ~np.isnan(file.values) & ~mask.values
    np.testing.assert_array_equal(cleaned.values[kept], matrix.values[kept])
    assert np.isfinite(cleaned.values).all()


# --- What may be no measurement ---------------------------------------------------------------------------------------

NO_MEASUREMENTS = {
    "yyyymmdd": ("Date", [20040701 + i for i in range(10)]),
    "days over the end of a month": ("when", [20040727, 20040728, 20040731, *range(20040801, 20040808)]),
    "years": ("Year", [2004] * 5 + [2005] * 5),
    "months": ("month", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12]),
    "days": ("Day", [1, 4, 7, 10, 13, 16, 19, 22, 25, 28]),
    "numbers from 1 on": ("run", list(range(1, 11))),
    "numbers from 1000 on": ("SampleID", list(range(1000, 1010))),
    "numbers with gaps": ("sample id", [3, 4, 7, 8, 12, 13, 15, 20, 21, 22]),
}
MEASUREMENTS = {
    "nitrogen monoxide": ("NO", [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]),
    "how often a word occurs": ("day", [0, 2, 1, 0, 0, 3, 1, 0, 0, 1]),
    "fractions of a year": ("year", [0.5 * i for i in range(10)]),
    "counts": ("counts", [14, 3, 8, 7, 1, 0, 2, 9, 30, 4]),
    "temperatures": ("T", [2004, 2003, 2010, 2004, 2002, 2001, 2004, 2008, 2003, 2002]),
}


@pytest.mark.parametrize("suffix", ["csv", "xlsx", "parquet"])
@pytest.mark.parametrize("name", NO_MEASUREMENTS)
def test_columns_of_dates_and_numbers_of_samples_are_warned_of(tmp_path, name, suffix):
    title, column = NO_MEASUREMENTS[name]
    path = tmp_path / f"a.{suffix}"
    data = pd.DataFrame({title: column} | dict(zip(SPECIES, AIR.T, strict=True)))
    data.to_parquet(path) if suffix == "parquet" else getattr(data, f"to_{suffix.replace('xlsx', 'excel')}")(
        path, index=False
    )
    with pytest.warns(DataQualityWarning, match=f"features, 1 in all: '{title}'.*drop_columns.*index_column") as caught:
        read_table(path)
    assert caught[0].filename == __file__
    assert read_table(path, drop_columns=[title]).feature_names == SPECIES
    assert read_table(path, index_column=title).sample_names == list(map(str, column))


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_columns_of_whole_numbers_that_are_measured_are_not_warned_of(tmp_path, name):
    title, column = MEASUREMENTS[name]
    pd.DataFrame({title: column} | dict(zip(SPECIES, AIR.T, strict=True))).to_csv(tmp_path / "a.csv", index=False)
    assert read_table(tmp_path / "a.csv").feature_names == [title, *SPECIES]


@pytest.mark.parametrize("suffix", ["csv", "xlsx", "parquet", "feather"])
def test_truth_values_are_flags_beside_numbers_and_a_mask_alone(tmp_path, suffix):
    def write(data):
        path = tmp_path / f"a.{suffix}"
        getattr(data, f"to_{suffix.replace('xlsx', 'excel')}")(path, **{} if "a" in suffix else {"index": False})
        return path

    flags = [True, False] * 5
    table = read_table(write(pd.DataFrame({"valid": flags, "date": DAYS} | dict(zip(SPECIES, AIR.T, strict=True)))))
    assert (table.sample_names, table.feature_names) == (DAYS, SPECIES)
    assert table.samples.columns == {"valid": list(map(str, flags))}
    if suffix != "csv":
        mask = read_table(write(pd.DataFrame(AIR > 1, columns=SPECIES)))
        np.testing.assert_array_equal(mask.values, AIR > 1)


def with_rows_below(path, *names):
    below = frame(days=names, values=np.tile(AIR.mean(axis=0), (len(names), 1)))
    both = pd.concat([frame(days=DAYS), below])
    both.to_csv(path) if path.suffix == ".csv" else both.to_excel(path)


@pytest.mark.parametrize("suffix", ["csv", "xlsx"])
@pytest.mark.parametrize("names", [("Mean",), ("Mean", "Max", "Count"), ("Note: values below MDL/2",)])
def test_rows_below_dated_samples_are_warned_of_and_can_be_left_out(tmp_path, suffix, names):
    path = tmp_path / f"a.{suffix}"
    with_rows_below(path, *names)
    with pytest.warns(DataQualityWarning, match=rf"{len(names)} in all: '{names[0]}.*skip_footer={len(names)} does so"):
        assert read_table(path).shape == (10 + len(names), 4)
    table = read_table(path, skip_footer=len(names))
    np.testing.assert_array_equal(table.values, AIR)
    assert len(table.notes) == 1 and f"{len(names)} rows below the table were left out: '{names[0]}" in table.notes[0]
    with warnings.catch_warnings(action="ignore"):
        assert RobustNMF(1, max_iter=2, schedule="plain").fit(table).input_.options.skip_footer == 0


def test_samples_of_many_names_are_not_warned_of(tmp_path):
    for days in ([f"site {i}" for i in range(10)], ["Mean", *DAYS[1:]], [*DAYS[:5], *"abcde"], ["total"] * 10):
        frame(days=days).to_csv(tmp_path / "a.csv")
        assert read_table(tmp_path / "a.csv").sample_names == days


def test_all_rows_cannot_be_left_out(tmp_path):
    for suffix in ("csv", "xlsx"):
        with_rows_below(tmp_path / f"a.{suffix}", "Mean")
        with pytest.raises(DataFileError, match="rows"):
            read_table(tmp_path / f"a.{suffix}", skip_footer=100)


def test_rows_of_delimiters_are_no_samples(tmp_path):
    text = frame().to_csv()
    lines = text.splitlines(keepends=True)
    (tmp_path / "a.csv").write_text("".join([*lines[:5], ",,,,\n", *lines[5:], ",,,,\n", " , ,,,\n"]))
    table = read_table(tmp_path / "a.csv")
    np.testing.assert_array_equal(table.values, AIR)
    assert (table.sample_names, table.notes) == (DAYS, ("3 empty rows within the table were left out.",))


def test_samples_without_name_and_entries_are_written_so_that_they_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("Al,Fe\n1,2\nNA,\n3,4\n")
    table = read_table(tmp_path / "a.csv")
    assert table.shape == (3, 2)
    write_table(tmp_path / "b.csv", table)
    np.testing.assert_array_equal(read_table(tmp_path / "b.csv").values, table.values)


# --- Decimal commas and times -----------------------------------------------------------------------------------------


def test_decimal_commas_are_read_between_tabs(tmp_path):
    frame(days=DAYS).to_csv(tmp_path / "a.txt", sep="\t", decimal=",")
    table = read_table(tmp_path / "a.txt")
    np.testing.assert_array_equal(table.values, AIR)
    write_table(tmp_path / "b.txt", table)
    np.testing.assert_array_equal(read_table(tmp_path / "b.txt").values, AIR)


def test_commas_between_thousands_are_refused_between_tabs(tmp_path):
    (tmp_path / "a.txt").write_text("Al\tFe\n1,234\t2\n3,456\t12,345\n")
    with pytest.raises(DataFileError, match="'1,234'"):
        read_table(tmp_path / "a.txt")


def test_midnight_keeps_its_time_among_other_hours_of_a_workbook(tmp_path):
    hours = pd.date_range("2004-07-01 22:00", periods=10, freq="h")
    frame(days=hours).to_excel(tmp_path / "a.xlsx")
    assert read_table(tmp_path / "a.xlsx").sample_names == [str(hour) for hour in hours]
