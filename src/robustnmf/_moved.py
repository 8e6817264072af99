"""Names of modules that have moved into a folder: the old names work for one release, with a warning."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

MOVED = MappingProxyType(
    {
        "checkpoint": "algorithm.checkpoint",
        "ecosystem": "labelled",
        "experiments": "paper",
        "halfquadratic": "algorithm.halfquadratic",
        "initializers": "algorithm.initializers",
        "losses": "model.losses",
        "mixture": "model.mixture",
        "outliers": "model.outliers",
        "penalties": "model.penalties",
        "reading": "formats",
        "scales": "model.scales",
        "schedules": "algorithm.staged",
        "spatial": "model.spatial",
        "stability": "selection.stability",
        "theory": "paper.theory",
        "weighting": "model.weighting",
    }
)
"""Old and new names of the modules that the documentation of version 0.1 listed, without ``robustnmf.``."""


def new_name(old: str) -> str | None:
    """Return the full name that a module, or the folder that it is in, has now; None if it has not moved."""
    package, _, rest = old.partition(".")
    first, _, inside = rest.partition(".")
    if package != "robustnmf" or first not in MOVED:
        return None
    return ".".join(filter(None, (package, MOVED[first], inside)))


class MovedFinder(MetaPathFinder, Loader):
    """Imports a module under its old name as the module that it is now."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return how to import a module that has moved."""
        return None if new_name(fullname) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of the new name, and warn."""
        name = new_name(spec.name)
        assert name is not None
        message = f"{spec.name} is now {name}; the old name will go with the next release."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        module = import_module(name)
        spec.loader_state = module.__spec__  # which importlib is about to replace
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has been executed under its new name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Have the old names imported, once in a process."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())  # before the one that looks into folders
