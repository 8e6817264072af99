"""The progress of a fit and of a search for the rank, in words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from robustnmf.algorithm.halfquadratic import Iteration
from robustnmf.utils.progress import progress


@contextmanager
def fit_progress(name: str, max_iter: int, *, shown: bool) -> Iterator[Callable[[Iteration], None]]:
    """Give a function that shows an iteration."""
    with progress(name, max_iter, "iteration", shown=shown) as show:
        yield lambda iteration: show(
            iteration.n_iter,
            f"objective {iteration.objective:.6g}, scale {iteration.scale:.3g}, outliers {iteration.outlier_share:.1%}",
        )


class SearchProgress:
    """How far a search for the rank has come.

    Parameters
    ----------
    show : function
        See `robustnmf.utils.progress.progress`.
    n_splits : int
        Fits of each rank.
    """

    def __init__(self, show: Callable[..., None], n_splits: int) -> None:
        self._show, self._n_splits = show, n_splits
        self._before, self._found = 0, ""

    def fitted(self, ranks: list[int], done: int) -> None:
        """Say that so many of the fits of some ranks are done, rank by rank."""
        place, split = divmod(done - 1, self._n_splits)
        self._show(self._before + done, f"rank {ranks[place]}, split {split + 1} of {self._n_splits}{self._found}")

    def found(self, ranks: list[int], chosen: int) -> None:
        """Say what is chosen of all ranks so far."""
        self._before, self._found = len(ranks) * self._n_splits, f", chosen so far {chosen}"
        tried = ", ".join(map(str, ranks))
        self._show(self._before, f"ranks {tried}{self._found}", milestone=True)


@contextmanager
def search_progress(n_ranks: int | None, n_splits: int, *, shown: bool) -> Iterator[SearchProgress]:
    """Give what shows how far a search has come; the number of ranks may be unknown."""
    total = None if n_ranks is None else n_ranks * n_splits
    with progress("Rank", total, "fit", shown=shown) as show:
        yield SearchProgress(show, n_splits)
