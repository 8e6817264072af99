"""Runs tasks on all cores, keeps what is finished, and says how long the rest will take."""

import os
import signal
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import NamedTuple

from joblib import Parallel
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from robustnmf.paper.results import Log
from robustnmf.paper.task import Experiment, Outcome, Task
from robustnmf.utils.parallel import delayed
from robustnmf.utils.process_state import ignored_warnings


class Finished(NamedTuple):
    """What a worker sends back."""

    task: Task
    outcome: Outcome | None
    failure: str | None
    seconds: float


def run_tasks(
    tasks: Sequence[Task],
    experiments: dict[str, Experiment],
    log: Log,
    *,
    version: str,
    data: Path | None = None,
    n_jobs: int | None = None,
    quiet: bool = False,
) -> int:
    """Run the tasks that the log does not have yet, and return how many failed.

    Results are written down as they come: whatever ends this process, no finished task is lost or run again. A task
    that fails is noted and does not stop the others.
    """
    left = [task for task in tasks if task.key(version) not in log]
    n_jobs = n_jobs or os.cpu_count() or 1
    outlook = Outlook(left, n_jobs)
    failed = 0
    # On a terminal a bar, elsewhere a line now and then.
    often = {} if sys.stderr.isatty() else {"mininterval": 20.0}
    # The bar's own estimate counts fits, which differ a hundredfold in length; ours is in the postfix.
    layout = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} fits, {elapsed} so far{postfix}"
    bar = tqdm(total=len(tasks), initial=len(tasks) - len(left), disable=quiet, bar_format=layout, **often)
    with bar:
        for finished in _in_parallel(left, experiments, data, n_jobs):
            log.add(finished.task, version, finished.seconds, finished.outcome, finished.failure)
            outlook.note(finished)
            failed += finished.failure is not None
            bar.set_postfix_str(f"{outlook} left", refresh=False)
            bar.update()
    return failed


def _in_parallel(
    tasks: Sequence[Task], experiments: dict[str, Experiment], data: Path | None, n_jobs: int
) -> Iterator[Finished]:
    """Yield results as they come, from processes with one thread each, which end with this one."""
    do = attempt if n_jobs == 1 else _attempt_in_worker
    jobs = (delayed(do)(experiments[task.experiment], task, data) for task in tasks)
    if n_jobs == 1:
        with threadpool_limits(1):  # as in the workers: the last digits depend on the number of threads
            yield from (function(*arguments) for function, arguments, _ in jobs)
    elif tasks:
        # One task at a time goes to a worker: they differ too much in length to be sent in batches.
        workers = Parallel(
            n_jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="2*n_jobs", inner_max_num_threads=1
        )
        yield from workers(jobs)


def _attempt_in_worker(experiment: Experiment, task: Task, data: Path | None) -> Finished:
    """Run one task in a process that leaves Ctrl-C to the one that it works for, and is ended by it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return attempt(experiment, task, data)


def attempt(experiment: Experiment, task: Task, data: Path | None) -> Finished:
    """Run one task, whatever comes of it."""
    begin = perf_counter()
    outcome, failure = None, None
    try:
        # Every model is run for the iterations of the protocol; contamination beyond repair is what some settings are
        # about.
        with ignored_warnings((UserWarning, "")):
            outcome = experiment.run(task, data)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    return Finished(task, outcome, failure, perf_counter() - begin)


class Outlook:
    """How long the rest will take: the mean time of what ran, by experiment and method, on all cores."""

    def __init__(self, tasks: Sequence[Task], n_jobs: int) -> None:
        self.n_jobs = n_jobs
        self.waiting: dict[tuple[str, str], int] = defaultdict(int)
        self.spent: dict[tuple[str, str], list[float]] = defaultdict(list)
        for task in tasks:
            self.waiting[task.experiment, task.method] += 1

    def note(self, finished: Finished) -> None:
        """Take one off the list."""
        kind = (finished.task.experiment, finished.task.method)
        self.waiting[kind] -= 1
        self.spent[kind].append(finished.seconds)

    @property
    def seconds(self) -> float:
        """Seconds that are left, NaN before anything is known.

        A kind not run yet is taken to be like the others of its experiment, or of all if nothing of that ran.
        """
        if not self.spent:
            return float("nan")
        means = {kind: fmean(times) for kind, times in self.spent.items()}

        def expected(kind: tuple[str, str]) -> float:
            alike = [mean for (experiment, _), mean in means.items() if experiment == kind[0]]
            return means[kind] if kind in means else fmean(alike or means.values())

        return sum(count * expected(kind) for kind, count in self.waiting.items() if count) / self.n_jobs

    def __str__(self) -> str:
        minutes, seconds = divmod(round(self.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"about {hours} h {minutes:02d} min" if hours else f"about {minutes} min {seconds:02d} s"
