"""The commands."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse
from typer.core import TyperGroup

from robustnmf.cli import console, folder
from robustnmf.cli.console import echo, errors_in_one_line, say, show, warnings_in_one_line
from robustnmf.utils.files import check_owned, check_owned_folder, is_sealed, write_folder, write_owned


class Commands(TyperGroup):
    """All commands; errors in them, and in their arguments, are all reported in the same way."""

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
        parser=path,
        help="npy, npz, csv, tsv, parquet, mat, h5, h5ad, mtx or zarr file, image stack, or folder of images.",
    ),
]
# Features whose typical sizes differ by more than this factor are divided by them, unless the user says otherwise.
WIDELY_DIFFERENT = 30.0
# Bytes that a part of data that is not in memory has when it is dense.
BLOCK_BYTES = 2**26

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
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
ModelFile = Annotated[Path, typer.Argument(parser=path, help="Model file that 'fit' has written, or its folder.")]


@dataclass(frozen=True)
class Source:
    """Data and how to read it: each field is an argument or option of the commands that `reads_data` decorates."""

    data: Data
    key: Key = None
    missing_value: Missing = None
    transpose: Transpose = False
    header: Header = None
    weights: Weights = None
    uncertainties: Uncertainties = None

    @property
    def files(self) -> tuple[Path | None, ...]:
        """All files that are read."""
        return self.data, self.weights, self.uncertainties

    def read(self, *, streams: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return the table, and the weights and uncertainties of its entries that are given.

        If the command `streams`, a sparse matrix that is large is not read yet.
        """
        from robustnmf.formats import read_like, read_table

        streamed = self._streamed() if streams else None
        if streamed is not None:
            return streamed, {}
        options: dict[str, Any] = {"key": self.key, "transpose": self.transpose, "header": self.header}
        table = read_table(self.data, missing_value=self.missing_value, **options)
        given = {"weights": self.weights, "uncertainties": self.uncertainties}
        return table, {name: read_like(file, table, **options) for name, file in given.items() if file is not None}

    def _streamed(self) -> Any:
        """Return a table whose values are read block by block; None if they are taken into memory."""
        from robustnmf.data.out_of_core import is_large
        from robustnmf.formats.h5ad import open_h5ad

        is_plain = not self.transpose and self.missing_value is None and self.weights is self.uncertainties is None
        if not is_plain or self.data.suffix.lower() != ".h5ad" or not self.data.is_file():
            return None
        table = open_h5ad(self.data, self.key)
        if table is None or not is_large(table.values):
            return None
        say(f"{self.data.name} takes over a quarter of the memory: it is read block by block.")
        return table


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `source` of a command by the fields of `Source`: Typer has no groups of options."""
    shared, own = signature(Source).parameters, signature(command).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        command(source=Source(**{name: given.pop(name) for name in shared}), **given)

    every = [new for old in own.values() for new in (shared.values() if old.name == "source" else [old])]
    vars(run)["__signature__"] = Signature([new.replace(kind=Parameter.KEYWORD_ONLY) for new in every])
    return run


@app.callback()
def start() -> None:
    """Non-negative matrix factorisation for data that is partly wrong."""


@app.command()
@reads_data
def fit(
    source: Source,
    components: Rank = "auto",
    out: Annotated[Path | None, typer.Option("--out", "-o", parser=path, help="Folder of the results.")] = None,
    method: Method = "truncated-cauchy",
    preset: Annotated[
        str, typer.Option(help="'default', or 'published' for the algorithms of the papers.")
    ] = "default",
    feature_scaling: Annotated[
        str | None,
        typer.Option(
            help="'robust' divides features by their typical size, 'auto' does so to find what is wrong, 'none' never.",
            show_default="'robust' if sizes differ by more than 30 times, else 'auto'",
        ),
    ] = None,
    zeros: Annotated[
        str, typer.Option(help="What entries of sparse data are that are not stored: 'data' or 'missing'.")
    ] = "data",
    max_iter: Annotated[int, typer.Option(min=1, help="Most iterations.")] = 200,
    seed: Seed = 0,
    device: Annotated[
        str | None, typer.Option(help="Where the work is done: 'cpu', 'cuda', 'cuda:1' or 'mps'.", show_default="cpu")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML report.")] = False,
    force: Force = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if the fit warns.")] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Factorise DATA and write model, codes, components, cleaned data, outlier mask and a report.

    Cleaned data and mask of sparse data are sparse: scipy.sparse.load_npz reads them.

    Ctrl-C ends the fit after the present iteration and keeps what it has found so far; a second one keeps nothing.
    """
    from robustnmf import RobustNMF

    out = out or Path(f"{source.data.absolute().name.split('.')[0] or 'data'}-robustnmf")
    folder.check_free(out, force, source.files)
    check_owned_folder(out)
    table, arrays = source.read(streams=True)
    interruption = console.Interruption()
    model = RobustNMF(
        _rank(components),
        method=method,
        preset=preset,
        feature_scaling=_feature_scaling(feature_scaling, table.values, source.uncertainties is not None),
        zeros=zeros,
        max_iter=max_iter,
        random_state=seed,
        device=_device(device),
        verbose=int(console.on_terminal() and not quiet),
        callback=console.watcher(interruption, max_iter, quiet),
    )
    begin = perf_counter()
    with warnings_in_one_line() as warned, interruption.awaited():
        codes = np.asarray(model.fit_transform(table.values, **arrays))
    if interruption.asked and model.n_iter_ == 0:
        raise KeyboardInterrupt  # nothing was found: an earlier result is worth more
    model.callback = None
    mask = _like_data(model.outliers_, table)
    summary = _summary(model, table, codes, mask, perf_counter() - begin, warned)
    with write_folder(out, replace=force) as place:
        _write_results(place, model, codes, table, arrays, mask, folder.format_of(source.data))
        if not no_report and not _is_streamed(table):
            _report_if_it_fits(model, table, arrays, place / "report.html", title=source.data.name)
        folder.write_json(place / "summary.json", summary)
    show(summary | {"results": str(out)}, as_json)
    if interruption.asked:
        say(f"Stopped after {model.n_iter_} iterations; what was found until then is in {out}.")
        raise typer.Exit(console.INTERRUPTED)
    if strict and warned:
        raise typer.Exit(console.DOUBTFUL)


@app.command()
@reads_data
def transform(
    model: ModelFile,
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", parser=path, help="File of the codes, .csv, .tsv or .npy.")],
    force: Force = False,
) -> None:
    """Write the codes of new samples."""
    fitted, table, arrays = _prepare(model, source, out, force, streams=True)
    codes = np.asarray(fitted.transform(table.values, **arrays))  # a model may have been told to return data frames
    folder.write_matrix(out, codes, table.sample_names, folder.component_names(codes.shape[1]), replace=force)
    say(f"Codes of {len(codes)} samples: {out}")


@app.command()
@reads_data
def clean(
    model: ModelFile,
    source: Source,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", parser=path, help="File of the cleaned data, .csv, .tsv or .npy; of sparse data also .npz."
        ),
    ],
    force: Force = False,
) -> None:
    """Write new samples with outliers and missing entries replaced, all others untouched.

    An entry of weight zero is a missing one.
    """
    fitted, table, arrays = _prepare(model, source, out, force)
    cleaned = _cleaned(fitted, table, arrays)
    folder.write_matrix(out, cleaned, *folder.names(table), replace=force)
    changed = float((cleaned != table.values).sum() / prod(cleaned.shape))
    say(f"{changed:.2%} of the entries were replaced: {out}")


@app.command()
@reads_data
def outliers(
    model: ModelFile,
    source: Source,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", parser=path, help="File of the mask, .csv, .tsv or .npy; of sparse data also .npz."
        ),
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="Samples to list.")] = 10,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say which entries of samples are outliers, and list the samples that have most."""
    fitted, table, arrays = _prepare(model, source, out, force, streams=True)
    mask = _like_data(fitted.outlier_mask(table.values, **arrays), table)
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
@reads_data
def rank(
    source: Source,
    ranks: Annotated[str, typer.Option(help="Such as 1-10 or 2,4,8; 'auto' searches.")] = "auto",
    splits: Annotated[int, typer.Option(min=2, help="Splits of the entries.")] = 5,
    plot: Annotated[Path | None, typer.Option(parser=path, help="Picture of the curve, .png, .svg or .pdf.")] = None,
    method: Method = "truncated-cauchy",
    seed: Seed = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Fits at a time.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Choose the number of components by how well hidden entries are predicted."""
    from robustnmf import RobustNMF
    from robustnmf.selection import auto_rank, select_rank

    _check_free(plot, force, source.files)
    table, arrays = source.read()
    options: dict[str, Any] = {"n_splits": splits, "random_state": seed, "n_jobs": jobs}
    options["estimator"] = RobustNMF(method=method, verbose=int(console.on_terminal()))
    chosen = _ranks(ranks, table.values.shape)
    search = auto_rank if chosen is None else partial(select_rank, ranks=chosen)
    found = search(table.values, **options, **arrays)
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
        table, _ = Source(data, key, missing_value, transpose, header).read()
        skip = None if method else say  # those that were asked for are not left out
        values: Any = table.values
        values = values.toarray() if hasattr(values, "toarray") else values
        rows = comparison.compare_on_data(values, components, methods, random_state=seed, skip=skip)
    if as_json:
        for row in rows:
            show(asdict(row), True)
    else:
        for line in comparison.lines(rows):
            echo(line)


@app.command()
@reads_data
def report(
    model: ModelFile,
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", parser=path, help="The page.")] = Path("report.html"),
    force: Force = False,
) -> None:
    """Write an HTML page about a model and the data that it was fitted to."""
    _write_report(*_prepare(model, source, out, force), out)
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


def _prepare(
    model: Path, source: Source, out: Path | None, force: bool, *, streams: bool = False
) -> tuple[Any, Any, dict[str, Any]]:
    """Return a model, new data and what is given of its entries, provided that the result may be written."""
    from robustnmf import load

    _check_free(out, force, (model, *source.files))
    table, arrays = source.read(streams=streams)
    return load(model / "model.robustnmf" if model.is_dir() else model), table, arrays


def _check_free(out: Path | None, force: bool, inputs: Sequence[Path | None]) -> None:
    """Refuse a result that would replace a file, before the work begins."""
    if out is not None:
        folder.check_free(out, force, inputs)
        if not (out.is_file() and is_sealed(out)):  # a report says itself who wrote it
            check_owned(out)


def _feature_scaling(given: str | None, values: Any, has_uncertainties: bool) -> str | None:
    """Return how features are scaled: as the user says, else by size if sizes differ widely."""
    from robustnmf.algorithm.feature_scaling import size_ratio

    if given is not None:
        return None if given == "none" else given
    # In sparse data a few errors may be the typical entry of a feature.
    ratio = 1.0 if has_uncertainties or not isinstance(values, np.ndarray) else size_ratio(values)
    if ratio <= WIDELY_DIFFERENT:
        return "auto"
    say(
        f"Typical sizes of features differ by a factor of {ratio:.0f}: each is divided by its own. "
        "--feature-scaling auto lets large features count more."
    )
    return "robust"


def _rank(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--components must be a positive number or 'auto'; got {text!r}.")
    return int(text)


def _device(text: str | None) -> str | None:
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


def _missing_share(values: Any, zeros: str) -> float:
    """Return the share of the entries that are missing; of sparse data, perhaps all that are not stored."""
    if isinstance(values, np.ndarray):
        return float(np.isnan(values).mean())
    parts = [values]
    if not sparse.issparse(values):
        parts = [values.stored(*cut) for cut in values.cuts(BLOCK_BYTES)]
    n_missing = sum(np.count_nonzero(np.isnan(part.data)) for part in parts)
    if zeros == "missing":
        n_missing += prod(values.shape) - sum(part.nnz for part in parts)
    return float(n_missing / prod(values.shape))


def _is_streamed(table: Any) -> bool:
    """Return whether the data is not in memory."""
    return not isinstance(table.values, np.ndarray) and not sparse.issparse(table.values)


def _like_data(values: Any, table: Any) -> Any:
    """Return a matrix that is sparse if the data is: small sparse data is worked on densely, and large in blocks."""
    if _is_streamed(table):
        return sparse.vstack([sparse.csr_array(block) for _, block in values.blocks()], format="csr")
    is_as_data = sparse.issparse(values) or not sparse.issparse(table.values)
    return values if is_as_data else sparse.csr_array(values)


def _cleaned(model: Any, table: Any, arrays: dict[str, Any]) -> Any:
    """Return the cleaned data, sparse if the data is; what is missing because it is not stored is left out."""
    from robustnmf.data.validation import weights_of_stored

    cleaned = model.clean(table.values, **arrays)
    if sparse.issparse(table.values) and not sparse.issparse(cleaned) and model.zeros == "missing":
        cleaned = np.where(weights_of_stored(table.values, None).toarray() > 0, cleaned, 0)
    return _like_data(cleaned, table)


def _summary(model: Any, table: Any, codes: Any, mask: Any, seconds: float, warned: list[str]) -> dict[str, Any]:
    return {
        "samples": int(codes.shape[0]),
        "features": int(model.n_features_in_),
        "missing": _missing_share(table.values, model.zeros),
        "method": model.method,
        "components": int(model.n_components_),
        "iterations": int(model.n_iter_),
        "converged": bool(model.converged_),
        "scale": float(model.scale_),
        "outlier_share": float(mask.mean()),
        "seconds": round(seconds, 3),
        "warnings": list(dict.fromkeys(warned)),
    }


def _write_results(
    place: Path, model: Any, codes: Any, table: Any, arrays: Any, mask: Any, kind: folder.Format
) -> None:
    portable = copy(model)
    portable.device = None  # the file is for any machine
    portable.save(place / "model.robustnmf")
    components = folder.component_names(model.n_components_)
    folder.write_matrix(place / f"codes.{kind}", codes, table.sample_names, components)
    folder.write_matrix(place / f"components.{kind}", model.components_, components, table.feature_names)
    of_entries = kind if isinstance(table.values, np.ndarray) else "npz"
    folder.write_matrix(place / f"outliers.{of_entries}", mask, *folder.names(table))
    if _is_streamed(table):
        say("Cleaned data and report are left out: they need all data in memory.")
        return
    folder.write_matrix(place / f"cleaned.{of_entries}", _cleaned(model, table, arrays), *folder.names(table))


def _report_if_it_fits(model: Any, table: Any, arrays: dict[str, Any], path: Path, **options: Any) -> None:
    """Write a report, or say why there is none: it looks at all entries of sparse data, zeros included."""
    from robustnmf.errors import IncompatibleError

    try:
        _write_report(model, table, arrays, path, **options)
    except IncompatibleError as error:
        if not sparse.issparse(table.values):
            raise
        say(f"No report: {error}")


def _write_report(model: Any, table: Any, arrays: dict[str, Any], path: Path, **options: Any) -> None:
    from robustnmf.report import write

    names = {"feature_names": table.feature_names, "sample_names": table.sample_names}
    write(model, table.values, path, image_shape=table.image_shape, **names, **arrays, **options)
