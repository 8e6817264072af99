"""All commands in one: ``robustnmf COMMAND``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from robustnmf.cli import config, console
from robustnmf.cli.about import demo, info, methods, reproduce
from robustnmf.cli.apply import clean, outliers, report, transform
from robustnmf.cli.console import errors_in_one_line, warnings_in_one_line
from robustnmf.cli.fit import fit, told_of
from robustnmf.cli.options import path
from robustnmf.cli.rank import compare, rank
from robustnmf.cli.view import view
from robustnmf.version import __version__


class Commands(TyperGroup):
    """All commands; errors in them, and in their arguments, are all reported in the same way."""

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **options: Any) -> Any:
        """Read the configuration and the arguments that stand before the command."""
        with errors_in_one_line():
            rest, defaults = config.defaults(args, self.commands)
            return super().make_context(info_name, rest, *others, default_map=defaults, **options)

    def invoke(self, ctx: Any) -> Any:
        """Read the arguments of the command, and run it."""
        with errors_in_one_line(), warnings_in_one_line(told_of(ctx)):
            return super().invoke(ctx)


app = typer.Typer(
    name="robustnmf",
    cls=Commands,
    help="Non-negative matrix factorisation for data that is partly wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.echo(f"robustnmf {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    # `Commands.make_context` takes it, wherever it stands; it is here for --help.
    config: Annotated[
        Path | None,
        typer.Option(
            parser=path, help="TOML file with options of the commands.", show_default="robustnmf.toml, if it is here"
        ),
    ] = None,
) -> None:
    """Non-negative matrix factorisation for data that is partly wrong."""


for command in (fit, transform, clean, outliers, rank, compare, report, view, methods, info, demo, reproduce):
    app.command()(command)
