"""The command that fits a model and writes a folder of results."""

import re
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from scipy import sparse

from robustnmf.cli import console, folder
from robustnmf.cli.apply import cleaned_data, with_clipped, write_report
from robustnmf.cli.console import say, show, stage, warnings_in_one_line
from robustnmf.cli.options import AsJson, Force, Jobs, Method, Quiet, Seed, path
from robustnmf.cli.source import Source, as_input, is_streamed, reads_data
from robustnmf.formats import LabelledMatrix
from robustnmf.utils.files import check_owned_folder, write_folder
from robustnmf.utils.names import Auto

# Bytes that a part of data that is not in memory has when it is dense.
BLOCK_BYTES = 2**26


@reads_data
def fit(
    context: typer.Context,
    source: Source,
    components: Annotated[str, typer.Option("--components", "-k", help="Number of components, or 'auto'.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", parser=path, help="Folder of the results.", show_default="DATA-robustnmf"),
    ] = None,
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
    repeated_values: Annotated[
        str, typer.Option(help="'auto' looks for a value that is wrong wherever it occurs, 'data' does not.")
    ] = "auto",
    max_iter: Annotated[int, typer.Option(min=1, help="Most iterations.")] = 200,
    tol: Annotated[float, typer.Option(min=0.0, help="Relative change of the objective at which a fit stops.")] = 1e-4,
    n_init: Annotated[int, typer.Option(min=1, help="Starts, of which the best is kept.")] = 1,
    seed: Seed = 0,
    jobs: Jobs = None,
    device: Annotated[
        str | None, typer.Option(help="Where the work is done: 'cpu', 'cuda', 'cuda:1' or 'mps'.", show_default="cpu")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no HTML report.")] = False,
    force: Force = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if the fit warns.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Factorise DATA and write model, codes, components, cleaned data, outlier mask and a report.

    Results have the shape and, where it can be written, the format of the data.

    Ctrl-C ends the fit after the present iteration and keeps what it has found so far; a second one keeps nothing.
    """
    from robustnmf import RobustNMF

    out = out or folder.default_folder(source.data)
    folder.check_free(out, force, source.files)
    check_owned_folder(out)
    table, arrays = source.read(streams=True)
    interruption = console.Interruption()
    # They are texts until the fit checks them.
    names: dict[str, Any] = {"method": method, "preset": preset, "zeros": zeros, "repeated_values": repeated_values}
    names["feature_scaling"] = _feature_scaling(feature_scaling, table, source.uncertainties is not None)
    model = RobustNMF(
        _rank(components),
        **names,
        max_iter=max_iter,
        tol=tol,
        n_init=n_init,
        random_state=seed,
        device=_device(device),
        verbose=int(not quiet),
        callback=interruption.watch,
    )
    begin = perf_counter()
    with warnings_in_one_line(told_of(context)) as warned, interruption.awaited(), _fits_at_a_time(jobs):
        codes = np.asarray(model.fit_transform(as_input(table), **arrays))
    if interruption.asked and model.n_iter_ == 0:
        raise KeyboardInterrupt  # nothing was found: an earlier result is worth more
    model.callback = None
    if is_streamed(table) and table.feature_names is not None:
        model.feature_names_in_ = np.array(table.feature_names, dtype=object)
    mask = folder.mask_of(table, model.outliers_)
    summary = _summary(model, table, mask, perf_counter() - begin, warned)
    summary |= {"interrupted": interruption.asked, "options": _options(context)}
    with write_folder(out, replace=force) as place:
        with stage("Writing the results", quiet=quiet, size=prod(table.shape)):
            _write_results(place, model, codes, table, arrays, mask)
        if not no_report and not is_streamed(table):
            with stage("Writing the report", quiet=quiet, size=prod(table.shape)):
                _report_if_it_fits(model, table, arrays, place / "report.html", title=source.data.name)
        folder.write_json(place / "summary.json", summary)
    show({name: summary[name] for name in summary if as_json or name != "options"} | {"results": str(out)}, as_json)
    if interruption.asked:
        say(f"Stopped after {model.n_iter_} iterations; what was found until then is in {out}.")
        raise typer.Exit(console.INTERRUPTED)
    if strict and warned:
        raise typer.Exit(console.DOUBTFUL)


def told_of(context: typer.Context) -> set[str]:
    """Return the warnings that this command has printed: each is printed once."""
    told: set[str] = context.find_root().meta.setdefault("robustnmf.told", set())
    return told


def _fits_at_a_time(jobs: int | None) -> AbstractContextManager[Any]:
    """Let a search for the rank make so many fits at a time."""
    if jobs is None:
        return nullcontext()
    import joblib

    config: AbstractContextManager[Any] = joblib.parallel_config(n_jobs=jobs)
    return config


def _options(context: typer.Context) -> dict[str, Any]:
    """Return the options of the command, as JSON and a configuration can hold them."""
    return {
        name.removeprefix("as_"): value if isinstance(value, int | float | str | list | tuple) else str(value)
        for name, value in context.params.items()
        if value is not None and value != [] and value != ()
    }


def _feature_scaling(given: str | None, table: LabelledMatrix, has_uncertainties: bool) -> str | None:
    """Return how features are scaled: as the user says, else by size if sizes differ widely."""
    from robustnmf.algorithm.feature_scaling import WIDELY_DIFFERENT, size_ratio

    if given is not None:
        return None if given == "none" else given
    # In sparse data a few errors may be the typical entry of a feature.
    ratio = 1.0 if has_uncertainties or not isinstance(table.values, np.ndarray) else size_ratio(table.values)
    if ratio <= WIDELY_DIFFERENT:
        return "auto"
    say(
        f"Typical sizes of features differ by a factor of {ratio:.0f}: each is divided by its own. "
        "--feature-scaling auto lets large features count more."
    )
    return "robust"


def _rank(text: str) -> int | Auto:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--components must be a positive number or 'auto'; got {text!r}.")
    return int(text)


def _device(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?|mps", text):
        raise ValueError(f"--device must be 'cpu', 'cuda', a GPU such as 'cuda:1', or 'mps'; got {text!r}.")
    return text


def _missing_share(values: Any, zeros: str) -> float:
    """Return the share of the entries that are missing; of sparse data, perhaps all that are not stored."""
    if isinstance(values, np.ndarray):
        return float(np.isnan(values).mean())
    parts: list[Any] = (
        [values] if sparse.issparse(values) else [values.stored(*cut) for cut in values.cuts(BLOCK_BYTES)]
    )
    n_missing = sum(int(np.count_nonzero(np.isnan(part.data))) for part in parts)
    if zeros == "missing":
        n_missing += prod(values.shape) - sum(part.nnz for part in parts)
    return float(n_missing / prod(values.shape))


def _summary(model: Any, table: LabelledMatrix, mask: Any, seconds: float, warned: list[str]) -> dict[str, Any]:
    return {
        "samples": table.shape[0],
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


def _write_results(place: Path, model: Any, codes: Any, table: LabelledMatrix, arrays: Any, mask: Any) -> None:
    portable = copy(model)
    portable.device = None  # the file is for any machine
    portable.verbose = 0  # and for other programs
    portable.save(place / "model.robustnmf")
    results = {
        "codes": folder.codes_of(table, codes),
        "components": folder.components_of(table, model.components_),
        "outliers": table.with_values(mask),
    }
    if is_streamed(table):
        say("Cleaned data and report are left out: they need all data in memory.")
    else:
        results["cleaned"] = with_clipped(cleaned_data(model, table, model.clean(table, **arrays)), table)
    for name, matrix in results.items():
        folder.write_matrix(place / name, matrix)


def _report_if_it_fits(model: Any, table: LabelledMatrix, arrays: dict[str, Any], page: Path, **options: Any) -> None:
    """Write a report, or say why there is none: it looks at all entries of sparse data, zeros included."""
    from robustnmf.errors import IncompatibleError

    try:
        write_report(model, table, arrays, page, **options)
    except IncompatibleError as error:
        if not sparse.issparse(table.values):
            raise
        say(f"No report: {error}")
