"""Commands that use a fitted model: transform, clean, outliers, report."""

from collections import Counter
from collections.abc import Sequence
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
from robustnmf.cli.source import Source, reads_data
from robustnmf.formats import LabelledMatrix

FILE = "in the format of the suffix: .csv, .tsv, .npy or that of the data"
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
    work = prepare(model, source, out, force)
    codes = np.asarray(work.ask("transform", quiet))  # a model may have been told to return data frames
    folder.write_matrix(out, folder.codes_of(work.table, codes), replace=force)
    if as_json:
        show({"samples": len(codes), "components": codes.shape[1], "codes": str(out)}, True)
    else:
        say(f"Codes of {len(codes)} samples: {out}")


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

    An entry of weight zero is a missing one.
    """
    work = prepare(model, source, out, force)
    cleaned = work.cleaned(quiet)
    folder.write_matrix(out, folder.entries_of(work.table, cleaned), replace=force)
    changed = float((cleaned != work.table.values).sum() / prod(cleaned.shape))
    if as_json:
        show({"samples": cleaned.shape[0], "replaced_share": changed, "cleaned": str(out)}, True)
    else:
        say(f"{changed:.2%} of the entries were replaced: {out}")


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
    work = prepare(model, source, out, force)
    mask = work.in_file_order(work.ask("outlier_mask", quiet))
    if out is not None:
        folder.write_matrix(out, folder.entries_of(work.table, mask), replace=force)
    shares = np.asarray(mask.mean(axis=1)).ravel()
    order = np.argsort(-shares, kind="stable")[:worst]
    listed = _listed(work, mask, shares, order, features)
    if as_json:
        show({"outlier_share": float(mask.mean()), "worst": listed}, True)
        return
    echo(f"{mask.mean():.2%} of the entries are outliers.")
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
        write_report(work.model, work.aligned, work.arrays, out)
    if as_json:
        show({"report": str(out)}, True)
    else:
        say(f"Report: {out}")


# --- A model and new data ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A model and data that has its features.

    Parameters
    ----------
    model : estimator
        Fitted.
    table : LabelledMatrix
        The data as it is in its file.
    places : sequence of int or None
        Where the features of the model are in the data; None if they are as in the model.
    arrays : dict
        Weights and uncertainties, with features as in the model.
    """

    model: Any
    table: LabelledMatrix
    places: Sequence[int] | None
    arrays: dict[str, Any]

    @property
    def aligned(self) -> LabelledMatrix:
        """The data with features as in the model."""
        return self.table if self.places is None else self.table.some_features(self.places)

    def ask(self, method: str, quiet: bool) -> Any:
        """Return what a method of the model says of the data, with features as in the model."""
        text = f"Encoding {self.table.shape[0]} samples"
        with stage(text, quiet=quiet, size=prod(self.table.shape)):
            return getattr(self.model, method)(self.aligned.values, **self.arrays)

    def in_file_order(self, values: Any) -> Any:
        """Return values with features as in the file."""
        return values if self.places is None else values[:, np.argsort(self.places)]

    def cleaned(self, quiet: bool) -> Any:
        """Return the cleaned data as it is in the file; what is missing because it is not stored is left out."""
        return self.in_file_order(without_unstored(self.model, self.aligned, self.ask("clean", quiet)))


def without_unstored(model: Any, table: LabelledMatrix, cleaned: Any) -> Any:
    """Return cleaned data; of sparse data of which entries that are not stored are missing, only those that are."""
    from robustnmf.data.validation import weights_of_stored

    if sparse.issparse(table.values) and not sparse.issparse(cleaned) and model.zeros == "missing":
        return np.where(weights_of_stored(table.values, None).toarray() > 0, cleaned, 0)
    return cleaned


def prepare(model: Path, source: Source, out: Path | None, force: bool) -> Work:
    """Return a model and new data, provided that the result may be written and the data has the model's features."""
    from robustnmf import load

    folder.check_result(out, force, (model, *source.files))
    fitted = load(model / "model.robustnmf" if model.is_dir() else model)
    remembered = getattr(fitted, "input_", None)
    table, arrays = source.read(None if remembered is None else remembered.options)
    places = feature_places(known_features(fitted), table.feature_names, source.data)
    # Features are aligned here, so the values are passed without their names.
    fitted.__dict__.pop("feature_names_in_", None)
    if places is not None:
        arrays = {name: values[:, np.asarray(places)] for name, values in arrays.items()}
    return Work(fitted, table, places, arrays)


def known_features(model: Any) -> list[str] | None:
    """Return the names of the features that a model was fitted to, if it remembers them."""
    remembered = getattr(model, "input_", None)
    names = getattr(model, "feature_names_in_", None) if remembered is None else remembered.features.names
    return None if names is None else [str(name) for name in names]


def feature_places(wanted: Sequence[str] | None, given: Sequence[str] | None, data: Path) -> list[int] | None:
    """Return where the features of a model are in new data, None if both are alike; refuse others by their names.

    Examples
    --------
    >>> feature_places(["Al", "Si"], ["Si", "Al"], Path("new.csv"))
    [1, 0]
    """
    if wanted is None or given is None or list(wanted) == list(given):
        return None
    expected = f"{data} must have the features that the model was fitted to"
    for what, here, there in (("lacks", wanted, given), ("also has", given, wanted)):
        other = list(dict.fromkeys(name for name in here if name not in set(there)))
        if other:
            shown = ", ".join(map(repr, other[:5])) + (", ..." if len(other) > 5 else "")
            raise ValueError(f"{expected}; it {what} {len(other)}: {shown}. Rename, add or drop columns.")
    if len(set(given)) < len(given) or len(given) != len(wanted):
        often = next(name for name, count in Counter(given).items() if count > 1 or Counter(wanted)[name] > 1)
        raise ValueError(f"{expected}; it has {often!r} several times, in another order. Give features one name each.")
    where = {name: place for place, name in enumerate(given)}
    return [where[name] for name in wanted]


def _listed(work: Work, mask: Any, shares: Any, order: Any, n_features: int) -> list[dict[str, Any]]:
    """Return samples with their outliers: what was measured, what the model explains; those farthest off first."""
    table, of_samples = work.table, {name: values[order] for name, values in work.arrays.items()}
    if not len(order):
        return []
    values = work.aligned.values[order]
    codes = np.asarray(work.model.transform(values, **of_samples))
    explained = work.in_file_order(codes @ np.asarray(work.model.components_))
    measured, wrong = folder.dense(table.values[order]), folder.dense(mask[order])
    limits = work.in_file_order(np.asarray(work.model.thresholds_)[None])[0]
    listed = []
    for row, sample in enumerate(order):
        places = np.flatnonzero(wrong[row])
        distance = np.abs(measured[row] - explained[row])[places] / np.where(limits > 0, limits, 1)[places]
        entries = [
            {
                "index": int(place),
                "name": table.feature_names[place] if table.feature_names else f"feature {place}",
                "measured": float(measured[row, place]),
                "explained": float(explained[row, place]),
            }
            for place in places[np.argsort(-distance, kind="stable")[:n_features]]
        ]
        name = table.sample_names[sample] if table.sample_names else f"sample {sample}"
        about = {"index": int(sample), "name": name, "share": float(shares[sample])}
        listed.append(about | {"outliers": len(places), "features": entries})
    return listed


def write_report(model: Any, table: LabelledMatrix, arrays: dict[str, Any], page: Path, **options: Any) -> None:
    """Write a report of data with features as in the model."""
    from robustnmf.report import write

    names: dict[str, Any] = {"feature_names": table.feature_names, "sample_names": table.sample_names}
    write(model, table.values, page, image_shape=table.image_shape, **names, **arrays, **options)
