"""The command line, as ``python -m robustnmf.cli``."""

from robustnmf.cli import main

main()
