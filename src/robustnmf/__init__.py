"""Non-negative matrix factorisation for data that is partly wrong."""

from os import PathLike

from robustnmf import _moved, datasets
from robustnmf.detectors import RobustNMFOutlierDetector
from robustnmf.estimators import RobustNMF, TruncatedCauchyNMF
from robustnmf.methods import METHODS
from robustnmf.selection import RobustNMFCV, select_rank
from robustnmf.version import __version__

__all__ = [
    "METHODS",
    "RobustNMF",
    "RobustNMFCV",
    "RobustNMFOutlierDetector",
    "TruncatedCauchyNMF",
    "__version__",
    "datasets",
    "load",
    "select_rank",
]

_moved.install()


def load(path: str | PathLike[str]) -> RobustNMF:
    """Return the model in a file that its method `save` has written; see `robustnmf.persistence.load`.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    RobustNMF
        The fitted model.
    """
    from robustnmf import persistence

    model: RobustNMF = persistence.load(path)
    return model
