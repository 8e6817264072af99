"""The commands."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="robustnmf",
    help="Non-negative matrix factorisation for data that is partly wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def start() -> None:
    """Non-negative matrix factorisation for data that is partly wrong."""


@app.command()
def reproduce(
    items: Annotated[list[str] | None, typer.Argument(help="Tables and figures of the paper, or 'all'.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; what it has is not run again.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version of everything, in minutes.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with AR and Caltech-101 archives.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
) -> None:
    """Run the paper's experiments and build a report beside the paper's numbers.

    Without items, list them. Whatever ends the run, finished fits are kept: start it again to go on.
    """
    from robustnmf.experiments import reproduce as experiments

    if not items:
        for name, text in experiments.items().items():
            typer.echo(f"{name:<16}{text}")
        return
    out = out or Path("reproduction-quick" if quick else "reproduction")
    try:
        outcome = experiments.reproduce(items, out, scale="quick" if quick else "full", data=data, n_jobs=jobs)
    except (ValueError, OSError, ImportError, RuntimeError) as error:  # the last: a worker that the system has ended
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Finished fits are kept in {out}; run the same command to go on.", err=True)
        raise typer.Exit(130) from None
    for skip in outcome.skipped:
        typer.echo(f"Skipped: {skip.reason}")
    typer.echo(f"Results: {outcome.table}\nReport:  {outcome.report}")
    if outcome.failed:
        typer.echo(f"{outcome.failed} fits failed; the report says which and why.", err=True)
        raise typer.Exit(1)


@app.command()
def demo(
    picture: Annotated[Path, typer.Argument(help="Where to write the picture.")] = Path("demo.png"),
) -> None:
    """Factorise corrupted faces with scikit-learn and with this package, and draw both."""
    from robustnmf import demo as demonstration

    demonstration.main(picture)


@app.command()
def compare(
    methods: Annotated[list[str] | None, typer.Argument(help="Names of models; by default all.")] = None,
) -> None:
    """Fit every model to corrupted faces, one line each."""
    from robustnmf import METHODS
    from robustnmf import compare as comparison

    comparison.main(methods or list(METHODS))
