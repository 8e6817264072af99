"""Commands about the package: models, versions, the demonstration and the experiments of the paper."""

from pathlib import Path
from typing import Annotated

import typer

from robustnmf.cli import console
from robustnmf.cli.console import echo, say, show
from robustnmf.cli.options import AsJson, Quiet, path


def methods(as_json: AsJson = False) -> None:
    """List the models."""
    from robustnmf import METHODS

    show({name: row.title for name, row in METHODS.items()}, as_json)


def info(as_json: AsJson = False) -> None:
    """Show versions, threads and accelerators."""
    from robustnmf.cli.environment import describe

    show(describe(), as_json)


def demo(
    picture: Annotated[Path, typer.Argument(parser=path, help="Where to write the picture.")] = Path(
        "robustnmf-demo.png"
    ),
) -> None:
    """Factorise corrupted faces with scikit-learn and with this package, and draw both."""
    from robustnmf.paper import demo as demonstration

    demonstration.main(picture, echo)


def reproduce(
    items: Annotated[list[str] | None, typer.Argument(help="Tables and figures of the paper, or 'all'.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", parser=path, help="Folder; what it has is not run again.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version of everything, in minutes.")] = False,
    data: Annotated[Path | None, typer.Option(parser=path, help="Folder with AR and Caltech-101 archives.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiments and build a report beside the paper's numbers.

    Without items, list them. Whatever ends the run, finished fits are kept: start it again to go on.
    """
    from robustnmf.paper import reproduce as experiments

    if not items:
        show(experiments.items(), as_json)
        return
    out = out or Path("reproduction-quick" if quick else "reproduction")
    scale: experiments.Scale = "quick" if quick else "full"
    try:
        outcome = experiments.reproduce(items, out, scale=scale, data=data, n_jobs=jobs, quiet=quiet)
    except KeyboardInterrupt:
        say(f"Stopped. Finished fits are kept in {out}; run the same command to go on.")
        raise typer.Exit(console.INTERRUPTED) from None
    skipped = [skip.reason for skip in outcome.skipped]
    if as_json:
        results = {"results": str(outcome.table), "report": str(outcome.report)}
        show(results | {"failed": outcome.failed, "skipped": skipped}, True)
    else:
        for reason in skipped:
            echo(f"Skipped: {reason}")
        echo(f"Results: {outcome.table}")
        echo(f"Report:  {outcome.report}")
    if outcome.failed:
        say(f"{outcome.failed} fits failed; the report says which and why.")
        raise typer.Exit(console.FAILED)
