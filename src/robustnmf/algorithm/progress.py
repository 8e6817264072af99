"""The progress bars of a fit and of a search for the rank."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import Any

from robustnmf.algorithm.halfquadratic import Iteration
from robustnmf.utils.process_state import hold_while_forking, no_fork


@contextmanager
def progress_bar(name: str, max_iter: int, *, shown: bool) -> Iterator[Callable[[Iteration], None]]:
    """Give a function that shows an iteration; it does nothing if the bar is not to be shown."""
    if not shown:
        yield lambda iteration: None
        return
    with _bar_class()(total=max_iter, desc=name) as bar:

        def show(iteration: Iteration) -> None:
            bar.update(iteration.n_iter - bar.n)
            bar.set_postfix_str(
                f"objective {iteration.objective:.6g}, scale {iteration.scale:.3g}, "
                f"outliers {iteration.outlier_share:.1%}"
            )

        yield show


@contextmanager
def search_bar(*, shown: bool) -> Iterator[Callable[[Any], None]]:
    """Give a function that shows what a search for the rank has found so far; it does nothing if that is not wanted.

    What it takes is a `robustnmf.algorithm.rank_search.RankSelection`.
    """
    if not shown:
        yield lambda selection: None
        return
    with _bar_class()(desc="Rank", unit="rank") as bar:

        def show(selection: Any) -> None:
            bar.update(len(selection.ranks) - bar.n)
            bar.set_postfix_str(f"highest {selection.ranks[-1]}, chosen so far {selection.chosen}")

        yield show


@cache
def _bar_class() -> Any:
    """Return tqdm's bar for a terminal or a notebook, without what it shares with other processes.

    The lock of tqdm is one for all forked processes: if one of them is killed while it holds it, the others wait for
    ever. And its thread that looks at bars now and then would outlive the fit.
    """
    with no_fork:
        from tqdm.auto import tqdm

    lock = RLock()
    bar: Any = type("Bar", (tqdm,), {"monitor_interval": 0})
    bar.set_lock(lock)
    hold_while_forking(lock)
    return bar
