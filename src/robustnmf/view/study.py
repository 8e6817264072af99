"""Data, the model that was fitted to it, and what the user has decided about single entries."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf.algorithm.feature_scaling import WIDELY_DIFFERENT, size_ratio
from robustnmf.errors import IncompatibleError
from robustnmf.estimators import RobustNMF
from robustnmf.formats import LabelledMatrix, read_like, read_table
from robustnmf.formats.alignment import uncertainties_of
from robustnmf.persistence import load
from robustnmf.selection import auto_rank
from robustnmf.utils.cached import cached_property

Matrix = NDArray[Any]
Verdict = Literal["accept", "reject"]

# Iterations that stand for a whole fit on the bar: few fits take all that they may.
TYPICAL_ITERATIONS = 120


class StudyError(ValueError):
    """What a user asks of a study cannot be done; says why and what to do."""


class CancelledError(Exception):
    """The user has ended a job."""


@dataclass
class Job:
    """Work in the background: a fit, or a search for the rank."""

    kind: Literal["fit", "rank"]
    state: Literal["running", "done", "failed", "cancelled"] = "running"
    progress: float = 0.0
    message: str = ""
    cancel: Event = field(default_factory=Event)

    def check(self) -> None:
        """Raise if the user has ended the job."""
        if self.cancel.is_set():
            raise CancelledError

    def watch(self, iteration: Any) -> bool:
        """Show an iteration of a fit, which goes on unless the user has ended the job."""
        self.check()
        self.progress = max(self.progress, min(0.95, iteration.n_iter / TYPICAL_ITERATIONS))
        self.message = f"iteration {iteration.n_iter}"
        return False


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model and what it says of the data."""

    model: RobustNMF
    codes: Matrix
    outliers: Any
    warnings: tuple[str, ...]
    options: dict[str, Any]
    steps: tuple[tuple[tuple[int, int], ...], ...] = ((),)
    """The entries that the user had rejected at the fit, and at each time that it was gone on with."""

    @property
    def components(self) -> Matrix:
        """(n_components, n_features)."""
        return np.asarray(self.model.components_)

    @cached_property
    def outlier_share(self) -> float:
        """Share of the entries that are outliers."""
        return float(self.outliers.mean())


class Study:
    """Data that is explored.

    Parameters
    ----------
    matrix : LabelledMatrix
        The data.
    name : str
        What it is called: the name of its file.
    path, uncertainties_path : Path or None
        Where data and uncertainties are, for the script that repeats the exploration.
    weights, uncertainties : array-like (n_samples, n_features) or None
        As in `RobustNMF.fit`: uncertainties that the file of the data tells are used too.
    """

    def __init__(
        self,
        matrix: LabelledMatrix,
        name: str,
        path: Path | None = None,
        *,
        weights: Any = None,
        uncertainties: Any = None,
        uncertainties_path: Path | None = None,
    ) -> None:
        self.matrix, self.name, self.path, self.uncertainties_path = matrix, name, path, uncertainties_path
        self.weights = weights
        self.uncertainties = uncertainties_of(matrix, uncertainties)
        self.fitted: Fit | None = None
        self.verdicts: dict[tuple[int, int], Verdict] = {}
        self.ranks: Any = None
        self.job: Job | None = None
        self.revision = 0
        """Rises with every change, so that a window can tell that another one has changed something."""
        self._lock = Lock()

    @classmethod
    def read(cls, path: Path, name: str | None = None, **options: Any) -> Study:
        """Read data from a file, see `robustnmf.formats.read_table`; with a name from a copy that will not stay.

        Parameters
        ----------
        path : Path
            The file.
        name : str or None
            What to call a copy that will not stay.
        **options
            Those of `read_table`.

        Returns
        -------
        Study
            The study.
        """
        return cls(read_table(path, **options), name or path.name, None if name else path)

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        return self.matrix.shape

    def rows(self, places: Any) -> Matrix:
        """Return some samples, dense.

        Parameters
        ----------
        places : index
            Which samples.

        Returns
        -------
        ndarray (n, n_features)
            The samples.
        """
        return dense(self.matrix.values[places])

    def need_fit(self) -> Fit:
        """Return the fit, or say that there is none yet.

        Returns
        -------
        Fit
            The fit.
        """
        if self.fitted is None:
            raise StudyError("There is no model yet. Choose a number of components and press Fit.")
        return self.fitted

    def is_outlier(self, rows: Any, columns: Any = slice(None)) -> Matrix:
        """Return which entries of some samples are outliers, as the model and the user say.

        Parameters
        ----------
        rows, columns : index
            Which samples and features.

        Returns
        -------
        ndarray of bool
            The mask.
        """
        mask = dense(self.need_fit().outliers[rows]).astype(bool)  # a copy
        numbers = np.arange(self.shape[0])[rows]
        where = {int(number): place for place, number in enumerate(np.atleast_1d(numbers))}
        for (sample, feature), verdict in self.verdicts.items():
            if sample in where:
                mask[where[sample], feature] = verdict == "reject"
        return np.asarray(mask[:, columns])

    def judge(self, sample: int, feature: int, verdict: Verdict | None) -> None:
        """Take what the user says of an entry; None leaves it to the model.

        Parameters
        ----------
        sample, feature : int
            Where the entry is.
        verdict : {"accept", "reject"} or None
            What the user says.
        """
        n_samples, n_features = self.shape
        if not (0 <= sample < n_samples and 0 <= feature < n_features):
            raise StudyError(f"There is no entry ({sample}, {feature}) in data of {n_samples} x {n_features}.")
        with self._lock:
            self.verdicts.pop((sample, feature), None)
            if verdict is not None:
                self.verdicts[sample, feature] = verdict
            self.revision += 1

    def start_fit(self, n_components: int | Literal["auto"], **options: Any) -> Job:
        """Fit a model in the background, without the entries that the user has rejected.

        Parameters
        ----------
        n_components : int or "auto"
            Number of components.
        **options
            Other parameters of `RobustNMF`.

        Returns
        -------
        Job
            The work in the background.
        """
        limit = min(self.shape)
        if n_components != "auto" and not 1 <= n_components <= limit:
            raise StudyError(f"The number of components must be from 1 to {limit}; got {n_components}.")
        return self._start(Job("fit"), lambda job: self._fit(job, n_components, options))

    def start_refit(self) -> Job:
        """Go on from the present components in the background, without the entries that the user has rejected.

        Returns
        -------
        Job
            The work in the background.
        """
        self.need_fit()
        return self._start(Job("fit"), self._refit)

    def start_rank(self, **options: Any) -> Job:
        """Search the number of components in the background.

        Parameters
        ----------
        **options
            Those of `robustnmf.selection.auto_rank`.

        Returns
        -------
        Job
            The work in the background.
        """
        return self._start(Job("rank"), lambda job: self._rank(job, options))

    def stop(self) -> None:
        """End the job that is running."""
        if self.job is not None:
            self.job.cancel.set()

    def _start(self, job: Job, work: Callable[[Job], None]) -> Job:
        with self._lock:
            if self.job is not None and self.job.state == "running":
                raise StudyError("A fit is running. Wait for it, or cancel it.")
            self.job = job
        Thread(target=self._run, args=(job, work), daemon=True).start()
        return job

    def _run(self, job: Job, work: Callable[[Job], None]) -> None:
        try:
            work(job)
            job.progress, job.state = 1.0, "done"
        except CancelledError:
            kept = "The model is as it was before." if job.kind == "fit" else "The curve shows what was tried."
            job.state, job.message = "cancelled", f"Cancelled. {kept}"
        except Exception as error:  # whatever a fit raises is for the user to read
            job.state, job.message = "failed", str(error) or type(error).__name__

    def _fit(self, job: Job, n_components: int | Literal["auto"], options: dict[str, Any]) -> None:
        options, rejected = self._scaling() | options, self.rejected
        model = RobustNMF(n_components, callback=job.watch, **({"random_state": 0} | options))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            codes = np.asarray(model.fit_transform(self.matrix.values, **self._about(rejected)))
        told = tuple(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)))
        options = {"n_components": model.n_components_} | options
        self._take(Fit(model, codes, model.outliers_, told, options, (rejected,)))

    def _refit(self, job: Job) -> None:
        before, rejected = self.need_fit(), self.rejected
        model, values, about = copy(before.model), self.matrix.values, self._about(rejected)
        model.callback = job.watch
        try:
            codes = np.asarray(model._refit(values, **about))  # as `refit`, but it returns the codes
        except IncompatibleError:  # by another method, or stopped early: it cannot be gone on with
            self._fit(job, before.components.shape[0], {k: v for k, v in before.options.items() if k != "n_components"})
            return
        steps = (*before.steps, rejected)
        self._take(replace(before, model=model, codes=codes, outliers=model.outliers_, steps=steps))

    def _take(self, fit: Fit) -> None:
        fit.model.callback = None
        with self._lock:
            self.fitted = fit
            self.revision += 1

    def _rank(self, job: Job, options: dict[str, Any]) -> None:
        fits = 0

        def watch(iteration: Any) -> bool:
            nonlocal fits
            job.check()
            if iteration.n_iter == 0:
                fits += 1
                job.message, job.progress = f"fit {fits}", min(0.95, fits / 60)
            return False

        def show(found: Any) -> None:
            with self._lock:
                self.ranks = found
                self.revision += 1

        options = {"estimator": RobustNMF(callback=watch, **(self._scaling() | options)), "n_splits": 3}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each of many fits would warn of the same
            auto_rank(self.matrix.values, **options, random_state=0, callback=show, **self._about(self.rejected))

    def _scaling(self) -> dict[str, Any]:
        """Return how features are scaled, as the command line does it: by size if sizes differ widely."""
        values = self.matrix.values
        # In sparse data a few errors may be the typical entry of a feature, and uncertainties scale by themselves.
        if sparse.issparse(values) or self.uncertainties is not None or size_ratio(values) <= WIDELY_DIFFERENT:
            return {}
        return {"feature_scaling": "robust"}

    @property
    def rejected(self) -> tuple[tuple[int, int], ...]:
        """Entries that the user has rejected, sorted."""
        return tuple(sorted(place for place, verdict in self.verdicts.items() if verdict == "reject"))

    def _about(self, rejected: tuple[tuple[int, int], ...]) -> dict[str, Any]:
        """Return weights, zero where the user has rejected an entry, and uncertainties."""
        weights = self.weights
        if rejected:
            weights = np.ones(self.shape) if weights is None else np.array(weights, dtype=float)
            weights[tuple(np.array(rejected).T)] = 0
        about = {"weights": weights, "uncertainties": self.uncertainties}
        return {name: values for name, values in about.items() if values is not None}

    def take_model(self, model: RobustNMF) -> None:
        """Take a model that was fitted before; the data is encoded in it.

        Parameters
        ----------
        model : RobustNMF
            A fitted model with the features of the data.
        """
        if model.components_.shape[1] != self.shape[1]:
            raise StudyError(f"The model has {model.components_.shape[1]} features, the data {self.shape[1]}.")
        codes = np.asarray(model.transform(self.matrix.values, **self._about(self.rejected)))
        mask = model.outlier_mask(self.matrix.values, **self._about(self.rejected))
        self.fitted = Fit(model, codes, mask, (), {"n_components": int(model.n_components_)})
        self.revision += 1

    @classmethod
    def open(cls, path: Path, uncertainties: Path | None = None) -> Study:
        """Return the study of a file of data, or of a folder that ``robustnmf fit`` has written.

        Parameters
        ----------
        path : Path
            The file or folder.
        uncertainties : Path or None
            A file of uncertainties.

        Returns
        -------
        Study
            The study.
        """
        model = path / "model.robustnmf"
        if not (path.is_dir() and model.is_file()):
            matrix = read_table(path)
            return cls(matrix, path.name, path, **_read_uncertainties(uncertainties, matrix))
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        source = Path(str(summary.get("options", {}).get("data", "")))
        if not source.exists() or source == Path():
            raise StudyError(
                f"{path} holds a model, and the data that it was fitted to, {source}, is not there. Open the data "
                "instead, or run the command in the folder in which the model was fitted."
            )
        fitted = load(model)
        known = getattr(fitted, "input_", None)
        matrix = read_table(source) if known is None else read_table(source, known.options)
        given = uncertainties or summary["options"].get("uncertainties")
        study = cls(matrix, path.name, source, **_read_uncertainties(given and Path(given), matrix))
        study.take_model(fitted)
        return study


def _read_uncertainties(path: Path | None, matrix: LabelledMatrix) -> dict[str, Any]:
    return {} if path is None else {"uncertainties": read_like(path, matrix), "uncertainties_path": path}


def dense_column(values: Any, place: int) -> Matrix:
    """Return a column, sparse or not, as an array, (n,)."""
    column = values[:, [place]] if hasattr(values, "toarray") else values[:, place]
    return np.array(dense(column)).reshape(-1)


def dense(values: Any) -> Matrix:
    """Return some rows or columns, sparse or not, as an array."""
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values)
