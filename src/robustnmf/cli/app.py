"""The commands."""

import re
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from typer.core import TyperGroup

from robustnmf.cli import console, folder
from robustnmf.cli.console import echo, errors_in_one_line, say, show, warnings_in_one_line
from robustnmf.utils.files import check_owned, check_owned_folder, is_sealed, write_folder, write_owned


class Commands(TyperGroup):
    """All commands; whatever goes wrong in one of them, or with its arguments, is said in the same way."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the arguments that stand before the command."""
        with errors_in_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the arguments of the command, and run it."""
        with errors_in_one_line(), warnings_in_one_line():
            return super().invoke(ctx)


app = typer.Typer(
    name="robustnmf",
    cls=Commands,
    help="Non-negative matrix factorisation for data that is partly wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def path(text: str) -> Path:
    """Return a path; a tilde that the shell has left stands for the home folder."""
    return Path(text).expanduser()


Data = Annotated[
    Path,
    typer.Argument(
        parser=path, help="npy, npz, csv, tsv, parquet, mat, h5 or zarr file, image stack, or folder of images."
    ),
]
Rank = Annotated[str, typer.Option("--components", "-k", help="Number of components, or 'auto'.")]
Method = Annotated[str, typer.Option(help="Model; see 'robustnmf methods'.")]
Key = Annotated[str | None, typer.Option(help="Name of the array, in a file that holds several.")]
Missing = Annotated[str | None, typer.Option("--missing-value", help="What stands for a missing entry, besides NaN.")]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether a text table begins with headings.", show_default=False),
]
Transpose = Annotated[bool, typer.Option("--transpose", help="Samples are in columns.")]
Weights = Annotated[
    Path | None, typer.Option(parser=path, help="File with a weight for every entry; 0 for what does not count.")
]
Uncertainties = Annotated[Path | None, typer.Option(parser=path, help="File with an uncertainty for every entry.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Device = Annotated[
    str | None, typer.Option(help="Where the work is done: 'cpu', 'cuda', 'cuda:1' or 'mps'.", show_default="cpu")
]
ModelFile = Annotated[Path, typer.Argument(parser=path, help="Model file that 'fit' has written, or its folder.")]


@app.callback()
def start() -> None:
    """Non-negative matrix factorisation for data that is partly wrong."""


@app.command()
def fit(
    data: Data,
    components: Rank = "auto",
    out: Annotated[Path | None, typer.Option("--out", "-o", parser=path, help="Folder of the results.")] = None,
    method: Method = "truncated-cauchy",
    preset: Annotated[
        str, typer.Option(help="'default', or 'published' for the algorithms of the papers.")
    ] = "default",
    weights: Weights = None,
    uncertainties: Uncertainties = None,
    key: Key = None,
    missing_value: Missing = None,
    transpose: Transpose = False,
    header: Header = None,
    max_iter: Annotated[int, typer.Option(min=1, help="Most iterations.")] = 200,
    seed: Seed = 0,
    device: Device = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML report.")] = False,
    force: Force = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if the fit warns.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Factorise DATA and write model, codes, components, cleaned data, outlier mask and a report.

    Ctrl-C ends the fit after the present iteration and keeps what it has found so far; a second one keeps nothing.
    """
    from robustnmf import RobustNMF

    out = out or Path(f"{data.absolute().name.split('.')[0] or 'data'}-robustnmf")
    folder.check_free(out, force, (data, weights, uncertainties))
    check_owned_folder(out)
    table = _read(data, key, missing_value, transpose, header)
    arrays = _read_arrays(table, weights, uncertainties, key, transpose, header)
    interruption = console.Interruption()
    model = RobustNMF(
        _rank(components),
        method=method,
        preset=preset,
        max_iter=max_iter,
        random_state=seed,
        device=_device(device),
        verbose=int(console.on_terminal() and not quiet),
        callback=console.watcher(interruption, max_iter, quiet),
    )
    begin = perf_counter()
    with warnings_in_one_line() as warned, interruption.awaited():
        codes = model.fit_transform(table.values, **arrays)
    if interruption.asked and model.n_iter_ == 0:
        raise KeyboardInterrupt  # nothing was found: an earlier result is worth more
    model.callback = None
    summary = _summary(model, table, codes, perf_counter() - begin, warned)
    with write_folder(out, replace=force) as place:
        _write_results(place, model, codes, table, arrays, folder.format_of(data), no_report, data.name)
        folder.write_json(place / "summary.json", summary)
    show(summary | {"results": str(out)}, as_json)
    if interruption.asked:
        say(f"Stopped after {model.n_iter_} iterations; what was found until then is in {out}.")
        raise typer.Exit(console.INTERRUPTED)
    if strict and warned:
        raise typer.Exit(console.DOUBTFUL)


@app.command()
def transform(
    model: ModelFile,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", parser=path, help="File of the codes, .csv, .tsv or .npy.")],
    key: Key = None,
    missing_value: Missing = None,
    transpose: Transpose = False,
    header: Header = None,
    weights: Weights = None,
    uncertainties: Uncertainties = None,
    force: Force = False,
) -> None:
    """Write the codes of new samples."""
    files = Files(model, data, out, weights, uncertainties)
    fitted, table, arrays = _prepare(files, key, missing_value, transpose, header, force)
    codes = np.asarray(fitted.transform(table.values, **arrays))  # a model may have been told to return data frames
    folder.write_matrix(out, codes, table.sample_names, folder.component_names(codes.shape[1]), replace=force)
    say(f"Codes of {len(codes)} samples: {out}")


@app.command()
def clean(
    model: ModelFile,
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", "-o", parser=path, help="File of the cleaned data, .csv, .tsv or .npy.")
    ],
    key: Key = None,
    missing_value: Missing = None,
    transpose: Transpose = False,
    header: Header = None,
    weights: Weights = None,
    uncertainties: Uncertainties = None,
    force: Force = False,
) -> None:
    """Write new samples with outliers and missing entries replaced, all others untouched.

    An entry of weight zero is a missing one.
    """
    files = Files(model, data, out, weights, uncertainties)
    fitted, table, arrays = _prepare(files, key, missing_value, transpose, header, force)
    cleaned = fitted.clean(table.values, **arrays)
    folder.write_matrix(out, cleaned, *folder.names(table), replace=force)
    changed = float(np.mean(cleaned != table.values))
    say(f"{changed:.2%} of the entries were replaced: {out}")


@app.command()
def outliers(
    model: ModelFile,
    data: Data,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", parser=path, help="File of the mask, .csv, .tsv or .npy.")
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Samples to list.")] = 10,
    key: Key = None,
    missing_value: Missing = None,
    transpose: Transpose = False,
    header: Header = None,
    weights: Weights = None,
    uncertainties: Uncertainties = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say which entries of samples are outliers, and list the samples that have most."""
    files = Files(model, data, out, weights, uncertainties)
    fitted, table, arrays = _prepare(files, key, missing_value, transpose, header, force)
    mask = fitted.outlier_mask(table.values, **arrays)
    if out is not None:
        folder.write_matrix(out, mask, *folder.names(table), replace=force)
    shares = mask.mean(axis=1)
    order = np.argsort(-shares, kind="stable")[:worst]
    names = table.sample_names or [f"sample {i}" for i in range(len(shares))]
    if as_json:
        listed = [{"index": int(i), "name": names[i], "share": float(shares[i])} for i in order]
        show({"outlier_share": float(mask.mean()), "worst": listed}, True)
        return
    echo(f"{mask.mean():.2%} of the entries are outliers.")
    often = Counter(names)
    for i in order:
        echo(f"{shares[i]:>8.1%}  {names[i]}" + (f" (sample {i})" if often[names[i]] > 1 else ""))


@app.command()
def rank(
    data: Data,
    ranks: Annotated[str, typer.Option(help="Such as 1-10 or 2,4,8; 'auto' searches.")] = "auto",
    splits: Annotated[int, typer.Option(min=2, help="Splits of the entries.")] = 5,
    plot: Annotated[Path | None, typer.Option(parser=path, help="Picture of the curve, .png, .svg or .pdf.")] = None,
    method: Method = "truncated-cauchy",
    weights: Weights = None,
    uncertainties: Uncertainties = None,
    key: Key = None,
    missing_value: Missing = None,
    transpose: Transpose = False,
    header: Header = None,
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Fits at a time.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Choose the number of components by how well hidden entries are predicted."""
    from robustnmf import RobustNMF
    from robustnmf.selection import auto_rank, select_rank

    _check_free(plot, force, (data, weights, uncertainties))
    table = _read(data, key, missing_value, transpose, header)
    options: dict[str, Any] = {"n_splits": splits, "random_state": seed, "n_jobs": jobs}
    options["estimator"] = RobustNMF(method=method)
    chosen = _ranks(ranks, table.values.shape)
    search = auto_rank if chosen is None else partial(select_rank, ranks=chosen)
    found = search(table.values, **options, **_read_arrays(table, weights, uncertainties, key, transpose, header))
    if plot is not None:
        from robustnmf import plots

        axes = plots.rank_curve(found.ranks, found.mean, found.standard_error, chosen=found.chosen)
        with write_owned(plot, replace=force) as temporary:
            axes.figure.savefig(temporary, format=plot.suffix.removeprefix(".") or "png")
    if as_json:
        curve = [
            {"rank": int(r), "score": float(m), "standard_error": float(s)}
            for r, m, s in zip(found.ranks, found.mean, found.standard_error, strict=True)
        ]
        show({"chosen": int(found.chosen), "best": int(found.best), "curve": curve}, True)
        return
    echo(f"{'rank':>6}{'score':>12}{'error':>10}")
    for r, m, s in zip(found.ranks, found.mean, found.standard_error, strict=True):
        mark = " <- chosen" if r == found.chosen else " <- best" if r == found.best else ""
        echo(f"{r:>6}{m:>12.5g}{s:>10.2g}{mark}")


@app.command()
def compare(
    data: Annotated[
        Path | None, typer.Argument(parser=path, help="Data; without it, corrupted faces whose truth is known.")
    ] = None,
    components: Annotated[int, typer.Option("--components", "-k", min=1, help="Number of components.")] = 10,
    method: Annotated[list[str] | None, typer.Option(help="Models to compare; by default all.")] = None,
    key: Key = None,
    missing_value: Missing = None,
    transpose: Transpose = False,
    header: Header = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fit several models to the same data, one line each."""
    from robustnmf import METHODS
    from robustnmf.paper import compare as comparison

    methods = comparison.check_methods(method or list(METHODS))
    rows: Any
    if data is None:
        rows = comparison.compare_on_faces(methods, random_state=seed)
    else:
        table = _read(data, key, missing_value, transpose, header)
        skip = None if method else say  # those that were asked for are not left out
        rows = comparison.compare_on_data(table.values, components, methods, random_state=seed, skip=skip)
    if as_json:
        for row in rows:
            show(asdict(row), True)
    else:
        for line in comparison.lines(rows):
            echo(line)


@app.command()
def report(
    model: ModelFile,
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", parser=path, help="The page.")] = Path("report.html"),
    key: Key = None,
    missing_value: Missing = None,
    transpose: Transpose = False,
    header: Header = None,
    weights: Weights = None,
    uncertainties: Uncertainties = None,
    force: Force = False,
) -> None:
    """Write an HTML page about a model and the data that it was fitted to."""
    from robustnmf.report import write

    files = Files(model, data, out, weights, uncertainties)
    fitted, table, arrays = _prepare(files, key, missing_value, transpose, header, force)
    write(
        fitted,
        table.values,
        out,
        image_shape=table.image_shape,
        feature_names=table.feature_names,
        sample_names=table.sample_names,
        **arrays,
    )
    say(f"Report: {out}")


@app.command()
def methods(as_json: AsJson = False) -> None:
    """List the models."""
    from robustnmf import METHODS

    show({name: row.title for name, row in METHODS.items()}, as_json)


@app.command()
def info(as_json: AsJson = False) -> None:
    """Show versions, threads and accelerators."""
    from robustnmf.cli.environment import describe

    show(describe(), as_json)


@app.command()
def demo(
    picture: Annotated[Path, typer.Argument(parser=path, help="Where to write the picture.")] = Path(
        "robustnmf-demo.png"
    ),
) -> None:
    """Factorise corrupted faces with scikit-learn and with this package, and draw both."""
    from robustnmf.paper import demo as demonstration

    demonstration.main(picture, echo)


@app.command()
def reproduce(
    items: Annotated[list[str] | None, typer.Argument(help="Tables and figures of the paper, or 'all'.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", parser=path, help="Folder; what it has is not run again.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version of everything, in minutes.")] = False,
    data: Annotated[Path | None, typer.Option(parser=path, help="Folder with AR and Caltech-101 archives.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
) -> None:
    """Run the paper's experiments and build a report beside the paper's numbers.

    Without items, list them. Whatever ends the run, finished fits are kept: start it again to go on.
    """
    from robustnmf.paper import reproduce as experiments

    if not items:
        for name, text in experiments.items().items():
            echo(f"{name:<16}{text}")
        return
    out = out or Path("reproduction-quick" if quick else "reproduction")
    try:
        outcome = experiments.reproduce(items, out, scale="quick" if quick else "full", data=data, n_jobs=jobs)
    except KeyboardInterrupt:
        say(f"Stopped. Finished fits are kept in {out}; run the same command to go on.")
        raise typer.Exit(console.INTERRUPTED) from None
    for skip in outcome.skipped:
        echo(f"Skipped: {skip.reason}")
    echo(f"Results: {outcome.table}")
    echo(f"Report:  {outcome.report}")
    if outcome.failed:
        say(f"{outcome.failed} fits failed; the report says which and why.")
        raise typer.Exit(console.FAILED)


def _read(data: Path, key: str | None, missing_value: str | None, transpose: bool, header: bool | None) -> Any:
    """Read a table; a missing value that looks like a number is one."""
    from robustnmf.formats import read_table

    return read_table(data, key=key, missing_value=missing_value, transpose=transpose, header=header)


def _read_arrays(
    table: Any, weights: Path | None, uncertainties: Path | None, key: str | None, transpose: bool, header: bool | None
) -> dict[str, Any]:
    """Read what is given of the entries of a table."""
    from robustnmf.formats import read_like

    files = {"weights": weights, "uncertainties": uncertainties}
    return {
        name: read_like(path, table, key=key, transpose=transpose, header=header)
        for name, path in files.items()
        if path is not None
    }


class Files(NamedTuple):
    """What a command reads and writes that uses a model."""

    model: Path
    data: Path
    out: Path | None
    weights: Path | None
    uncertainties: Path | None


def _prepare(
    files: Files, key: str | None, missing: str | None, transpose: bool, header: bool | None, force: bool
) -> tuple[Any, Any, dict[str, Any]]:
    """Return a model, new data and what is given of its entries, provided that the result may be written."""
    from robustnmf import load

    model, data, out, weights, uncertainties = files
    _check_free(out, force, (model, data, weights, uncertainties))
    table = _read(data, key, missing, transpose, header)
    arrays = _read_arrays(table, weights, uncertainties, key, transpose, header)
    return load(model / "model.robustnmf" if model.is_dir() else model), table, arrays


def _check_free(out: Path | None, force: bool, inputs: Sequence[Path | None]) -> None:
    """Refuse a result that would replace a file, before the work begins."""
    if out is not None:
        folder.check_free(out, force, inputs)
        if not (out.is_file() and is_sealed(out)):  # a report says itself who wrote it
            check_owned(out)


def _rank(text: str) -> int | str:
    """Return the number of components as the estimator takes it."""
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--components must be a positive number or 'auto'; got {text!r}.")
    return int(text)


def _device(text: str | None) -> str | None:
    """Return a device as the estimator takes it."""
    if text is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?|mps", text):
        raise ValueError(f"--device must be 'cpu', 'cuda', a GPU such as 'cuda:1', or 'mps'; got {text!r}.")
    return text


def _ranks(text: str, shape: tuple[int, ...]) -> list[int] | None:
    """Return the ranks that a text such as 1-4,8 stands for, of data of a shape; None for 'auto'."""
    if text == "auto":
        return None
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--ranks must be like 1-10 or 2,4,8, or 'auto'; got {text!r}.")
        if not 1 <= int(first) <= int(last or first) <= min(shape):
            raise ValueError(
                f"--ranks must rise from 1 to at most {min(shape)}, the lesser of {shape[0]} samples and {shape[1]} "
                f"features; got {part.strip()!r}."
            )
        ranks += range(int(first), int(last or first) + 1)
    return ranks


def _summary(model: Any, table: Any, codes: Any, seconds: float, warned: list[str]) -> dict[str, Any]:
    """Return what a fit came to, for people and programs."""
    return {
        "samples": int(codes.shape[0]),
        "features": int(model.n_features_in_),
        "missing": float(np.isnan(table.values).mean()),
        "method": model.method,
        "components": int(model.n_components_),
        "iterations": int(model.n_iter_),
        "converged": bool(model.converged_),
        "scale": float(model.scale_),
        "outlier_share": float(model.outliers_.mean()),
        "seconds": round(seconds, 3),
        "warnings": list(dict.fromkeys(warned)),
    }


def _write_results(
    place: Path,
    model: Any,
    codes: Any,
    table: Any,
    arrays: dict[str, Any],
    kind: folder.Format,
    no_report: bool,
    title: str,
) -> None:
    """Write all files of a fit."""
    portable = copy(model)
    portable.device = None  # the file is for any machine
    portable.save(place / "model.robustnmf")
    components = folder.component_names(model.n_components_)
    folder.write_matrix(place / f"codes.{kind}", codes, table.sample_names, components)
    folder.write_matrix(place / f"components.{kind}", model.components_, components, table.feature_names)
    folder.write_matrix(place / f"cleaned.{kind}", model.clean(table.values, **arrays), *folder.names(table))
    folder.write_matrix(place / f"outliers.{kind}", model.outliers_, *folder.names(table))
    if no_report:
        return
    from robustnmf.report import write

    write(
        model,
        table.values,
        place / "report.html",
        image_shape=table.image_shape,
        feature_names=table.feature_names,
        sample_names=table.sample_names,
        title=title,
        **arrays,
    )
