"""The command that shows data and its model in the browser."""

from pathlib import Path
from typing import Annotated

import typer

from robustnmf.cli.console import echo
from robustnmf.cli.options import path

What = Annotated[
    Path | None,
    typer.Argument(parser=path, help="Data, or a folder that 'fit' has written; without it, drop a file on the page."),
]


def view(
    data: What = None,
    uncertainties: Annotated[
        Path | None, typer.Option(parser=path, help="File with an uncertainty for every entry.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open no browser.")] = False,
) -> None:
    """Explore data in the browser: fit, look at components and outliers, accept or reject entries, fit again.

    The page is served on this machine alone, and needs no network. Ctrl-C ends it.
    """
    from robustnmf.view import serve

    serve(data, uncertainties=uncertainties, port=port, show=not no_browser, say=echo)
