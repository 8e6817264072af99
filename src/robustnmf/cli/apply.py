"""Commands that use a fitted model: transform, clean, outliers, report."""

from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse

from robustnmf.cli import folder
from robustnmf.cli.console import echo, say, show, stage
from robustnmf.cli.options import AsJson, Force, ModelFile, Quiet, path
from robustnmf.cli.source import Source, as_input, is_streamed, reads_data
from robustnmf.formats import Axis, LabelledMatrix
from robustnmf.formats import Source as FileSource
from robustnmf.formats.alignment import put_back
from robustnmf.formats.labelled_matrix import CLIPPED

FILE = "in the format of its suffix, or without one in that of the data"
OutFile = Annotated[Path, typer.Option("--out", "-o", parser=path, help=f"File of the result, {FILE}.")]


@reads_data
def transform(
    model: ModelFile,
    source: Source,
    out: OutFile,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write the codes of new samples."""
    work = prepare(model, source, out, force, streams=True)
    codes = np.asarray(work.ask("transform", quiet))  # a model may have been told to return data frames
    written = folder.write_matrix(out, folder.codes_of(work.table, codes), replace=force)
    if as_json:
        show({"samples": len(codes), "components": codes.shape[1], "codes": str(written)}, True)
    else:
        say(f"Codes of {len(codes)} samples: {written}")


@reads_data
def clean(
    model: ModelFile,
    source: Source,
    out: OutFile,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write new samples with outliers and missing entries replaced, all others untouched.

    An entry of weight zero is a missing one. A sample without other entries stays empty.
    """
    work = prepare(model, source, out, force)
    cleaned = cleaned_data(work.model, work.table, work.ask("clean", quiet))
    changed = _replaced_share(put_back(work.table, cleaned).values, cleaned.values)
    written = folder.write_matrix(out, with_clipped(cleaned, work.table), replace=force)
    if as_json:
        show({"samples": cleaned.shape[0], "replaced_share": changed, "cleaned": str(written)}, True)
    else:
        say(f"{changed:.2%} of the entries were replaced: {written}")


@reads_data
def outliers(
    model: ModelFile,
    source: Source,
    out: Annotated[Path | None, typer.Option("--out", "-o", parser=path, help=f"File of the mask, {FILE}.")] = None,
    worst: Annotated[int, typer.Option(min=0, help="Samples to list.")] = 10,
    features: Annotated[int, typer.Option(min=0, help="Features to list of each sample.")] = 5,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say which entries of samples are outliers, and list the samples that have most, with what was measured there."""
    work = prepare(model, source, out, force, streams=True)
    mask = work.mask(quiet)
    if out is not None:
        folder.write_matrix(out, folder.entries_of(mask, mask.values, like=work.table), replace=force)
    shares, share = np.asarray(mask.values.mean(axis=1)).ravel(), float(mask.values.mean())
    order = np.argsort(-shares, kind="stable")[:worst]
    listed = _listed(work, mask, shares, order, features)
    if as_json:
        show({"outlier_share": share, "worst": listed}, True)
        return
    echo(f"{share:.2%} of the entries are outliers.")
    often = Counter(sample["name"] for sample in listed)
    for sample in listed:
        same = f" (sample {sample['index']})" if often[sample["name"]] > 1 else ""
        echo(f"{sample['share']:>8.1%}  {sample['name']}{same}")
        for entry in sample["features"]:
            echo(f"{'':10}{entry['name']}: {entry['measured']:.4g}, explained {entry['explained']:.4g}")
        if more := sample["outliers"] - len(sample["features"]):
            echo(f"{'':10}and {more} more")


@reads_data
def report(
    model: ModelFile,
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", parser=path, help="The page.")] = Path("report.html"),
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write an HTML page about a model and the data that it was fitted to."""
    work = prepare(model, source, out, force)
    with stage("Writing the report", quiet=quiet, size=prod(work.table.shape)):
        write_report(work.model, work.table, work.arrays, out)
    if as_json:
        show({"report": str(out)}, True)
    else:
        say(f"Report: {out}")


# --- A model and new data ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A model and new data, whose features the model finds by name.

    Parameters
    ----------
    model : estimator
        Fitted.
    table : LabelledMatrix
        The data.
    arrays : dict
        Weights and uncertainties of its entries.
    """

    model: Any
    table: LabelledMatrix
    arrays: dict[str, Any]

    def ask(self, method: str, quiet: bool) -> Any:
        """Return what a method of the model says of the data."""
        with stage(f"Encoding {self.table.shape[0]} samples", quiet=quiet, size=prod(self.table.shape)):
            return getattr(self.model, method)(as_input(self.table), **self.arrays)

    def mask(self, quiet: bool) -> LabelledMatrix:
        """Return the outliers of the data."""
        found = self.ask("outlier_mask", quiet)
        if not isinstance(found, LabelledMatrix):
            found = self.table.with_values(folder.mask_of(self.table, found))
        return found

    def some(self, samples: Any) -> LabelledMatrix:
        """Return some of the samples, in memory."""
        rows = self.table.values
        if is_streamed(self.table):
            values: Any = sparse.vstack([rows.stored(i, i + 1) for i in samples.tolist()], format="csr")
        else:
            values = rows[samples]
        return LabelledMatrix(values, features=self.table.features)


def prepare(model: Path, source: Source, out: Path | None, force: bool, *, streams: bool = False) -> Work:
    """Return a model and new data, read as the model remembers, provided that the result may be written.

    If the command `streams`, a large sparse matrix is not read yet, unless its features have to be put in order.
    """
    from robustnmf import load

    folder.check_result(out, force, (model, *source.files))
    fitted = load(model / "model.robustnmf" if model.is_dir() else model)
    remembered = getattr(fitted, "input_", None)
    options = None if remembered is None else remembered.options
    table, arrays = source.read(options, streams=streams)
    if is_streamed(table) and list(table.feature_names or ()) != list(getattr(fitted, "feature_names_in_", ())):
        table, arrays = source.read(options)
    return Work(fitted, table, arrays)


def cleaned_data(model: Any, table: LabelledMatrix, cleaned: LabelledMatrix) -> LabelledMatrix:
    """Return cleaned data; of sparse data of which entries that are not stored are missing, only those that are."""
    from robustnmf.data.validation import weights_of_stored

    values = cleaned.values
    if sparse.issparse(table.values) and not sparse.issparse(values) and model.zeros == "missing":
        values = np.where(weights_of_stored(put_back(table, cleaned).values, None).toarray() > 0, values, 0)
    if table.source is not None and table.source.dtype is not None and table.source.dtype.kind in "biu":
        values = _known(put_back(table, cleaned).values, values)
    return folder.entries_of(cleaned, values, like=table)


def _known(measured: Any, cleaned: Any) -> Any:
    """Return cleaned whole numbers: these have no NaN, so what has weight zero in all of a sample stays as it is."""
    if sparse.issparse(cleaned) or not np.isnan(cleaned).any():
        return cleaned
    return np.where(np.isnan(cleaned), folder.dense(measured), cleaned)


def _replaced_share(measured: Any, cleaned: Any) -> float:
    """Return the share of entries that were replaced; what is still missing was not."""
    stored: Any = cleaned
    n_missing = np.isnan(stored.data if sparse.issparse(cleaned) else cleaned).sum()
    n_replaced = (cleaned != measured).sum() - n_missing
    return float(n_replaced / prod(cleaned.shape))


def with_clipped(cleaned: LabelledMatrix, table: LabelledMatrix) -> LabelledMatrix:
    """Return cleaned data in which negative entries that `--negative clip` set to zero are back, if they are right.

    They are right if they are still zero: where the model explains another value, an outlier was replaced.
    """
    source = table.source or FileSource()
    if CLIPPED not in source.about:
        return cleaned
    given = source.about[CLIPPED]
    negative = table.with_values((given.T if source.options.transpose else given).tocsr())
    clipped: Any = put_back(negative, cleaned).values.tocoo()
    values: Any = cleaned.values
    rows, columns = clipped.coords
    is_right = np.asarray(values[rows, columns]).ravel() == 0
    places = rows[is_right], columns[is_right]
    back = sparse.csr_array((clipped.data[is_right].astype(values.dtype), places), shape=cleaned.shape)
    return cleaned.with_values(values + (back if sparse.issparse(values) else back.toarray()))


def _listed(work: Work, mask: LabelledMatrix, shares: Any, order: Any, n_features: int) -> list[dict[str, Any]]:
    """Return samples with their outliers: what was measured, what the model explains; those farthest off first."""
    if not len(order):
        return []
    some = work.some(order)
    codes = np.asarray(work.model.transform(some, **{name: values[order] for name, values in work.arrays.items()}))
    components, limits = np.asarray(work.model.components_), np.asarray(work.model.thresholds_)
    known = Axis(getattr(work.model, "feature_names_in_", None))
    explained, limit = (
        put_back(LabelledMatrix(rows, features=known), mask).values for rows in (codes @ components, limits[None])
    )
    measured, wrong = folder.dense(put_back(some, mask).values), folder.dense(mask.values[order])
    scaled = np.abs(measured - explained) / np.where(limit > 0, limit, 1)
    listed = []
    for row, sample in enumerate(order):
        places = np.flatnonzero(wrong[row])
        farthest = places[np.argsort(-scaled[row, places], kind="stable")[:n_features]]
        entries = [
            {
                "index": int(place),
                "name": _name("feature", mask.features, place),
                "measured": float(measured[row, place]),
                "explained": float(explained[row, place]),
            }
            for place in farthest
        ]
        name = _name("sample", work.table.samples, sample)
        about = {"index": int(sample), "name": name, "share": float(shares[sample])}
        listed.append(about | {"outliers": len(places), "features": entries})
    return listed


def _name(what: str, axis: Axis, place: int) -> str:
    names = axis.shown_names
    return f"{what} {place}" if names is None else names[place]


def write_report(model: Any, table: LabelledMatrix, arrays: dict[str, Any], page: Path, **options: Any) -> None:
    """Write a report of a model and its data."""
    model.report(table, page, **arrays, **options)
