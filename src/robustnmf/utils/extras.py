"""Packages that an extra installs: imported where they are needed, and named where they are not there."""

from importlib import import_module
from typing import Any

from robustnmf.errors import MissingExtraError


def optional(module: str, extra: str, package: str | None = None) -> Any:
    """Return a module that an extra installs; `package` is what pip calls it, if that is not its first name."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(package or module.split(".")[0], extra) from error
