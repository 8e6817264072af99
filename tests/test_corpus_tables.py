"""Claims about tables as people have them: read to the last digit and label, fitted, written, and the same again."""

import warnings

import numpy as np
import pytest

from corpus_tables import CORPUS
from robustnmf import RobustNMF
from robustnmf.formats import read_table, write_table
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
    about = {name: value for name, value in matrix.source.about.items() if name != "encoding"}
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
