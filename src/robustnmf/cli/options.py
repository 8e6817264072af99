"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer


def path(text: str) -> Path:
    """Return a path; a tilde that the shell has left stands for the home folder."""
    return Path(text).expanduser()


Method = Annotated[str, typer.Option(help="Model; see 'robustnmf methods'.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Fits at a time, in a search for the rank.", show_default="1")]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier result.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
ModelFile = Annotated[Path, typer.Argument(parser=path, help="Model file that 'fit' has written, or its folder.")]
