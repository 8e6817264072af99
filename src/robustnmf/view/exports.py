"""Pictures, tables and the script of a study."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from robustnmf import plots
from robustnmf.utils.extras import optional
from robustnmf.view.study import Study, StudyError

KINDS = {"svg": "image/svg+xml", "png": "image/png", "csv": "text/csv", "py": "text/x-python"}
MOST_CELLS = 2**24
"""Cells of a table that is made in memory."""


def export(study: Study, what: str, kind: str) -> tuple[bytes, str]:
    """Return a picture, a table or the script, and its media type."""
    if kind == "py" and what == "script":
        return script(study).encode("utf-8", "backslashreplace"), KINDS[kind]
    if kind == "csv" and what in TABLES:
        return TABLES[what](study).encode("utf-8", "backslashreplace"), KINDS[kind]
    if kind in ("svg", "png") and what in PICTURES:
        return picture(study, what, kind), KINDS[kind]
    raise LookupError(f"There is no {what}.{kind} to export.")


def picture(study: Study, what: str, kind: str) -> bytes:
    """Draw a picture with Matplotlib, as a file."""
    figures = optional("matplotlib.figure", "view", "matplotlib")
    figure = figures.Figure(figsize=(8, 4.5), layout="constrained")
    PICTURES[what](study, figure.subplots())
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=200)
    return buffer.getvalue()


def _about(study: Study) -> dict[str, Any]:
    return {"weights": study.weights, "uncertainties": study.uncertainties}


def _names(study: Study) -> dict[str, Any]:
    return {"feature_names": study.matrix.feature_names}


def _components(study: Study, ax: Any) -> Any:
    shape = study.matrix.features.picture_shape
    return plots.components(study.need_fit().model, image_shape=shape, **_names(study), ax=ax)


def _contributions(study: Study, ax: Any) -> Any:
    fit = study.need_fit()
    options: dict[str, Any] = {"codes": fit.codes, "index": study.matrix.sample_names, "units": study.matrix.unit}
    return plots.contributions(fit.model, **options, **_names(study), ax=ax)


def _explained(study: Study, ax: Any) -> Any:
    fit = study.need_fit()
    options = {"codes": fit.codes} | _about(study) | _names(study)
    return plots.explained_share(fit.model, study.matrix.values, **options, ax=ax)


def _histogram(study: Study, ax: Any) -> Any:
    return plots.residual_histogram(study.need_fit().model, study.matrix.values, **_about(study), ax=ax)


def _points(study: Study, ax: Any) -> Any:
    fit = study.need_fit()
    return plots.observed_vs_explained(fit.model, study.matrix.values, codes=fit.codes, **_about(study), ax=ax)


def _map(study: Study, ax: Any) -> Any:
    return plots.outlier_map(study.is_outlier(slice(None)), ax=ax)


def _ranks(study: Study, ax: Any) -> Any:
    if study.ranks is None:
        raise StudyError("No rank was searched yet.")
    return plots.rank_curve(study.ranks, ax=ax)


PICTURES: dict[str, Callable[[Study, Any], Any]] = {
    "components": _components,
    "contributions": _contributions,
    "explained_share": _explained,
    "residual_histogram": _histogram,
    "observed_vs_explained": _points,
    "outlier_map": _map,
    "rank_curve": _ranks,
}


def _table(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return text.getvalue()


def _samples(study: Study) -> Sequence[str]:
    return study.matrix.samples.shown_names or [str(i) for i in range(study.shape[0])]


def _features(study: Study) -> Sequence[str]:
    return study.matrix.features.shown_names or [str(j) for j in range(study.shape[1])]


def _title(study: Study) -> str:
    return study.matrix.samples.title or "sample"


def _component_names(study: Study) -> list[str]:
    return [f"component {k + 1}" for k in range(len(study.need_fit().components))]


def _components_table(study: Study) -> str:
    rows = zip(_component_names(study), study.need_fit().components.tolist(), strict=True)
    return _table(["component", *_features(study)], ([name, *values] for name, values in rows))


def _codes_table(study: Study) -> str:
    rows = zip(_samples(study), study.need_fit().codes.tolist(), strict=True)
    return _table([_title(study), *_component_names(study)], ([name, *values] for name, values in rows))


def _outliers_table(study: Study) -> str:
    """Return each outlier with what was measured and what is explained."""
    fit, names, features = study.need_fit(), _samples(study), _features(study)

    def rows() -> Iterable[Sequence[Any]]:
        for i in range(study.shape[0]):
            (wrong,) = np.nonzero(study.is_outlier([i])[0])
            if wrong.size:
                measured, explained = study.rows([i])[0], fit.codes[i] @ fit.components
                yield from ([names[i], features[j], float(measured[j]), float(explained[j])] for j in wrong.tolist())

    return _table([_title(study), "feature", "measured", "explained"], rows())


def _cleaned_table(study: Study) -> str:
    """Return the data with outliers and missing entries replaced by what is explained."""
    if study.shape[0] * study.shape[1] > MOST_CELLS:
        raise StudyError(f"The table has more than {MOST_CELLS} cells. Use 'robustnmf clean' instead.")
    fit, names = study.need_fit(), _samples(study)

    def rows() -> Iterable[Sequence[Any]]:
        for i in range(study.shape[0]):
            measured, explained = study.rows([i])[0], fit.codes[i] @ fit.components
            replaced = study.is_outlier([i])[0] | np.isnan(measured)
            yield [names[i], *np.where(replaced, explained, measured).tolist()]

    return _table([_title(study), *_features(study)], rows())


TABLES: dict[str, Callable[[Study], str]] = {
    "components": _components_table,
    "codes": _codes_table,
    "outliers": _outliers_table,
    "cleaned": _cleaned_table,
}


def script(study: Study) -> str:
    """Return a program that repeats the study: reading, what the user rejected, and the fit."""
    fit = study.need_fit()
    source = study.matrix.source
    options = {} if source is None else _given(source.options)
    arguments = "".join(f", {name}={value!r}" for name, value in options.items())
    accepted = sorted(place for place, verdict in study.verdicts.items() if verdict == "accept")
    parameters = ", ".join(f"{name}={value!r}" for name, value in ({"random_state": 0} | fit.options).items())
    path = study.name if study.path is None else str(study.path)
    again = "".join(f"model.refit(matrix.values, **about_all_but({list(step)}))\n" for step in fit.steps[1:])
    return f"""# What was explored with 'robustnmf view', as a program; give it the path of the data if that has moved.
import sys

import numpy as np

from robustnmf import RobustNMF
from robustnmf.formats import read_like, read_table
from robustnmf.formats.alignment import uncertainties_of

path = sys.argv[1] if len(sys.argv) > 1 else {path!r}
matrix = read_table(path{arguments})
uncertainties = {_uncertainties(study)}
rejected = {list(study.rejected)!r}  # (sample, feature): left out by hand
accepted = {accepted!r}  # (sample, feature): outliers that are right


def about_all_but(places):
    weights = np.ones(matrix.shape)
    for place in places:
        weights[place] = 0
    return {{"weights": weights, "uncertainties": uncertainties}}


model = RobustNMF({parameters})
model.fit(matrix.values, **about_all_but({list(fit.steps[0])}))
{again}codes = model.transform(matrix.values, **about_all_but({list(fit.steps[-1])}))
outliers = np.array(model.outliers_)
for place in rejected:
    outliers[place] = True
for place in accepted:
    outliers[place] = False
cleaned = np.where(outliers | np.isnan(matrix.values), codes @ model.components_, matrix.values)
print(f"{{outliers.mean():.2%}} of the entries are outliers; components have shape {{model.components_.shape}}.")
"""


def _uncertainties(study: Study) -> str:
    """Return how the program comes by the uncertainties of the entries."""
    if study.uncertainties_path is not None:
        return f"uncertainties_of(matrix, read_like({str(study.uncertainties_path)!r}, matrix))"
    if study.uncertainties is not None and study.matrix.uncertainties is None:
        return 'read_like("uncertainties.csv", matrix)  # a file of those that were given in Python'
    return "uncertainties_of(matrix, None)  # those that the file tells"


def _given(options: Any) -> dict[str, Any]:
    """Return the options of reading that are not the default."""
    default = type(options)()
    return {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if getattr(options, field.name) != getattr(default, field.name) and field.name != "max_bytes"
    }
