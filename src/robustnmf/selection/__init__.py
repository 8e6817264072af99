"""Which model: the number of components, and whether components can be relied on."""

from robustnmf.algorithm.rank_search import RankSelection
from robustnmf.selection.rank import RobustNMFCV, auto_rank, select_rank

__all__ = ["RankSelection", "RobustNMFCV", "auto_rank", "select_rank"]
