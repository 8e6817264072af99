"""The command line: ``robustnmf``."""

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from robustnmf.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit('The command line needs typer. Run: pip install "robustnmf[cli]"')
    app()
