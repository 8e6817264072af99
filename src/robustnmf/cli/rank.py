"""Commands that choose the number of components, and the model."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from robustnmf.cli import folder
from robustnmf.cli.console import echo, say, show
from robustnmf.cli.options import AsJson, Force, Jobs, Method, Quiet, Seed, path
from robustnmf.cli.source import Source, reads_data, reads_data_if_any
from robustnmf.utils.files import write_owned


@reads_data
def rank(
    source: Source,
    ranks: Annotated[str, typer.Option(help="Such as 1-10 or 2,4,8; 'auto' searches.")] = "auto",
    splits: Annotated[int, typer.Option(min=2, help="Splits of the entries.")] = 5,
    plot: Annotated[Path | None, typer.Option(parser=path, help="Picture of the curve, .png, .svg or .pdf.")] = None,
    method: Method = "truncated-cauchy",
    seed: Seed = 0,
    jobs: Jobs = None,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Choose the number of components by how well hidden entries are predicted."""
    from robustnmf import RobustNMF
    from robustnmf.selection import auto_rank, select_rank

    folder.check_result(plot, force, source.files)
    table, arrays = source.read()
    options: dict[str, Any] = {"n_splits": splits, "random_state": seed, "n_jobs": jobs}
    model: dict[str, Any] = {"method": method}  # a text until the fit checks it
    options["estimator"] = RobustNMF(**model, verbose=int(not quiet))
    chosen = _ranks(ranks, table.shape)
    search = auto_rank if chosen is None else partial(select_rank, ranks=chosen)
    found = search(table, **options, **arrays)
    if plot is not None:
        _draw(found, plot, force)
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


def _draw(found: Any, plot: Path, force: bool) -> None:
    from robustnmf import plots

    axes = plots.rank_curve(found.ranks, found.mean, found.standard_error, chosen=found.chosen)
    with write_owned(plot, replace=force) as temporary:
        axes.figure.savefig(temporary, format=plot.suffix.removeprefix(".") or "png")


def _ranks(text: str, shape: tuple[int, int]) -> list[int] | None:
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


@reads_data_if_any
def compare(
    source: Source | None,
    components: Annotated[int, typer.Option("--components", "-k", min=1, help="Number of components.")] = 10,
    method: Annotated[list[str] | None, typer.Option(help="Models to compare; by default all.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Fit several models to the same data, one line each."""
    from robustnmf import METHODS
    from robustnmf.paper import compare as comparison

    methods = comparison.check_methods(method or list(METHODS))
    rows: Any
    if source is None:
        rows = comparison.compare_on_faces(methods, random_state=seed)
    else:
        values: Any = source.read()[0].values
        values = values.toarray() if hasattr(values, "toarray") else values
        skip = None if method else say  # those that were asked for are not left out
        rows = comparison.compare_on_data(values, components, methods, random_state=seed, skip=skip)
    if as_json:
        for row in rows:
            show(asdict(row), True)
    else:
        for line in comparison.lines(rows):
            echo(line)
