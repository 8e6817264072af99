"""Non-negative matrix factorisation for data that is partly wrong."""

from robustnmf import datasets
from robustnmf.estimators import RobustNMF, TruncatedCauchyNMF
from robustnmf.methods import METHODS

__version__ = "0.1.0"

__all__ = ["METHODS", "RobustNMF", "TruncatedCauchyNMF", "__version__", "datasets"]
