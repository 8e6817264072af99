"""What the page says of a fit, in numbers. Data may be large: it is read in blocks of samples, and some will do."""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from robustnmf.data.blocks import Observations
from robustnmf.data.sparse import is_sparse
from robustnmf.engines import NumPyEngine
from robustnmf.errors import IncompatibleError
from robustnmf.plots import check_fitted
from robustnmf.utils.cached import cached_property
from robustnmf.utils.process_state import ignored_warnings

Matrix = NDArray[Any]

# Entries that are worked on at once, and from which medians of features are taken.
BLOCK = 2**22
# Entries of sparse data, zeros included, up to which it is made dense for a report: 1 GiB.
MOST_ENTRIES = 2**27
# The square of how much stronger than noise of the same size the strongest direction of noise may be.
STRONGEST = 1.3
# Entries of the part of the residual whose singular values are compared with those of noise.
STRUCTURE = 2**20
# A component with so much of its energy in one of many features serves that feature alone.
ALONE, MANY_FEATURES = 0.95, 10
# The width of the noise of a feature is unusual beyond so many times the typical one, or one over it.
UNUSUAL = 3.0
# Draws of random signs; their leading singular values hardly differ.
DRAWS = 3
# How far the norm of the residual may be from that of the fit: relative to itself, and to the data (rounding).
SAME, ROUNDING = 1e-2, 1e-5


@dataclass(frozen=True)
class Lines:
    """What is known of every sample, or of every feature."""

    cut: Matrix
    """Share of the observed entries that are outliers; 0 if none is observed."""
    residual: Matrix
    """Median magnitude of the residual; NaN if nothing is observed."""
    missing: Matrix
    """Share of the entries that are missing."""

    @classmethod
    def of(cls, n_cut: Matrix, n_observed: Matrix, residual: Matrix, length: int) -> "Lines":
        """Return the shares of what is counted among `length` entries."""
        return cls(n_cut / np.maximum(n_observed, 1), residual, 1 - n_observed / length)


@dataclass(frozen=True)
class Structure:
    """Singular values of the fit and of what it leaves, beside those of noise."""

    share: float
    """Share of the inlier residual's energy along its leading direction."""
    noise: float
    """The same after each residual has got a random sign: what noise of this size would have."""
    weak: int
    """Directions of the fit that are no stronger than the leading one of that noise."""


@dataclass(frozen=True)
class Facts:
    """A fitted model, its data, and what follows from both."""

    model: Any
    data: Observations
    """Divided by uncertainties or levels of features, and by factors of samples, as in the fit."""
    codes: Matrix
    sizes: Any = 1.0
    """What samples were divided by, (n, 1) or 1."""

    @classmethod
    def of(cls, model: Any, X: Any, weights: Any, uncertainties: Any = None) -> "Facts":
        """Return the facts of a model and the data that it was fitted to, or say that it was not."""
        check_fitted(model)
        _check_size(X)
        data = model._check_new(X, weights, uncertainties, NumPyEngine(n_threads=1)).whole
        if is_sparse(model.outliers_):
            model = copy(model)
            model.outliers_ = model.outliers_.toarray()
        if model._noise is not None:
            data = data._replace(X=data.X / model._noise)
        sizes = model._sample_factors(data)
        data = data._replace(X=data.X / sizes)
        given, fitted = data.X.shape, model.outliers_.shape
        if given != fitted:
            raise ValueError(f"X must be the data of the fit, of shape {fitted}; got shape {given}.")
        codes = np.asarray(model.transform(X, weights=weights, uncertainties=uncertainties))
        facts = cls(model, data, codes / sizes, sizes)
        norm, of_data = facts.norms
        if abs(norm - model.reconstruction_err_) > SAME * norm + ROUNDING * of_data:
            raise ValueError(
                f"X must be the data of the fit: its residual has norm {norm:.6g}, that of the fit "
                f"{model.reconstruction_err_:.6g}. If the fit had weights or uncertainties, pass them too."
            )
        return facts

    @property
    def shape(self) -> tuple[int, int]:
        """Samples and features."""
        n_samples, n_features = self.data.X.shape
        return n_samples, n_features

    @property
    def components(self) -> Matrix:
        """The components in the units of the data."""
        noise = getattr(self.model, "_noise", None)
        return np.asarray(self.model.components_ if noise is None else self.model.components_ / noise)

    def observed(self, rows: Any) -> Matrix:
        """Return which entries of some samples are there."""
        return np.ones(self.data.X[rows].shape, dtype=bool) if self.data.M is None else self.data.M[rows] > 0

    def residual(self, rows: Any) -> Matrix:
        """Return residuals of some samples, NaN where missing."""
        return np.where(self.observed(rows), self.data.X[rows] - self.codes[rows] @ self.components, np.nan)

    @property
    def codes_in_units(self) -> Matrix:
        """The codes in units of X, (n, r)."""
        return np.asarray(self.codes * self.sizes)

    def residual_in_units(self, rows: Any) -> Matrix:
        """Return residuals of some samples in units of X, NaN where missing."""
        noise = getattr(self.model, "_noise", None)
        sizes = self.sizes if np.ndim(self.sizes) == 0 else self.sizes[rows]
        return np.asarray(self.residual(rows) * (1.0 if noise is None else noise) * sizes)

    @cached_property
    def norms(self) -> tuple[float, float]:
        """Frobenius norms of residual and data over the observed entries that are not outliers."""
        unit = float(self.codes.max()) or 1.0  # squares in units of X may overflow
        squares = np.zeros(2)
        for rows in self.blocks():
            kept = self.observed(rows) & ~self.model.outliers_[rows]
            for place, values in enumerate((self.residual(rows), self.data.X[rows])):
                part = values[kept].astype(np.float64) / unit
                squares[place] += part @ part
        return unit * sqrt(squares[0]), unit * sqrt(squares[1])

    @cached_property
    def explained(self) -> float:
        """Share of what varies among the entries that are kept, about the mean of each feature, in the model."""
        unit = float(self.codes.max()) or 1.0
        counts, sums, squares = np.zeros((3, self.shape[1]))
        for rows in self.blocks():
            kept = self.observed(rows) & ~self.model.outliers_[rows]
            part = np.where(kept, self.data.X[rows], 0) / unit
            counts += kept.sum(axis=0)
            sums += part.sum(axis=0, dtype=np.float64)
            squares += (part * part).sum(axis=0, dtype=np.float64)
        varies = float(np.sum(squares - sums**2 / np.maximum(counts, 1)))
        return 1 - (self.norms[0] / unit) ** 2 / varies if varies > 0 else 0.0

    @cached_property
    def soloists(self) -> list[tuple[int, int]]:
        """Components that serve a single feature, and which."""
        energy = self.model.components_.astype(np.float64) ** 2
        leading = energy.argmax(axis=1)
        alone = energy.max(axis=1) > ALONE * energy.sum(axis=1)
        enough = self.shape[1] >= MANY_FEATURES
        return [(int(k), int(leading[k])) for k in np.flatnonzero(alone)] if enough else []

    @cached_property
    def missing_share(self) -> float:
        """Share of the entries that are not there."""
        return float(self.samples.missing.mean())

    @cached_property
    def outlier_share(self) -> float:
        """Share of the observed entries that are cut."""
        return float(self.model.outliers_.mean() / (1 - self.missing_share))

    @cached_property
    def typical_residual(self) -> float:
        """Median magnitude of the residual over all samples: what a normal one leaves."""
        return float(np.nanmedian(self.samples.residual))

    @cached_property
    def samples(self) -> Lines:
        """What is known of every sample."""
        observed = np.concatenate([self.observed(rows).sum(axis=1) for rows in self.blocks()])
        medians = np.concatenate([_medians(self.residual(rows), axis=1) for rows in self.blocks()])
        return Lines.of(self.model.outliers_.sum(axis=1), observed, medians, self.shape[1])

    @cached_property
    def features(self) -> Lines:
        """What is known of every feature; of large data, the medians are those of some samples."""
        observed = np.sum([self.observed(rows).sum(axis=0) for rows in self.blocks()], axis=0)
        medians = _medians(self.residual(slice(None, None, ceil(self.data.X.size / BLOCK))), axis=0)
        return Lines.of(self.model.outliers_.sum(axis=0), observed, medians, self.shape[0])

    @cached_property
    def typical_width(self) -> float:
        """Width of the noise of a typical feature, relative to its level."""
        return float(np.median(self.model.noise_.relative_widths))

    @cached_property
    def unusual_widths(self) -> Matrix:
        """Features whose noise is far wider, or narrower, than that of the typical feature, relative to their level."""
        ratio = self.model.noise_.relative_widths / self.typical_width
        return np.flatnonzero((ratio > UNUSUAL) | (ratio < 1 / UNUSUAL))

    @cached_property
    def zero_features(self) -> Matrix:
        """Whether a feature is zero wherever it is observed."""
        return np.asarray(~np.any(self.data.X, axis=0) & (self.features.missing < 1))

    @cached_property
    def contributions(self) -> Matrix:
        """Share of the sum of the reconstruction that each component gives, (n_components,)."""
        sums = self.codes.sum(axis=0, dtype=np.float64) * self.model.components_.sum(axis=1, dtype=np.float64)
        return np.asarray(sums / (sums.sum() or 1.0))

    @cached_property
    def largest_cosines(self) -> tuple[float, tuple[int, int]]:
        """Largest cosine between two components, and which; 0 if there is one component only."""
        C = self.model.components_.astype(np.float64)
        norms = np.linalg.norm(C, axis=1, keepdims=True)
        C = C / np.where(norms > 0, norms, 1)
        cosines = np.triu(C @ C.T, 1)
        first, second = np.unravel_index(cosines.argmax(), cosines.shape)
        return float(cosines[first, second]), (int(first), int(second))

    @cached_property
    def structure(self) -> Structure:
        """Singular values of the fit and of what it leaves, of a part of the data if it is large."""
        # A part as square as the data allows.
        side = max(sqrt(STRUCTURE), STRUCTURE / min(self.shape))
        rows, columns = (slice(None, None, ceil(size / side)) for size in self.shape)
        kept = (self.observed(rows) & ~self.model.outliers_[rows])[:, columns]
        precision = self._precision(rows)[:, columns]
        E = np.where(kept, self.residual(rows)[:, columns] * precision, 0).astype(np.float64)
        unit = float(np.abs(E).max())
        if unit == 0:
            return Structure(0.0, 0.0, 0)
        E /= unit  # for squares not to overflow
        energy = float(np.sum(E * E))
        rng = np.random.default_rng(0)
        noise = float(np.mean([_leading(E * rng.choice([-1.0, 1.0], E.shape)) for _ in range(DRAWS)]))
        # The closest matrix of rank one stands for the precisions: codes and components can be multiplied by it.
        of_samples, of_features = (np.sqrt(np.mean(precision**2, axis=axis)) for axis in (1, 0))
        overall = float(np.sqrt(np.mean(precision**2))) or 1.0
        codes, components = self.codes[rows] * of_samples[:, None], self.components[:, columns] * of_features / overall
        strengths = _singular_values(codes / unit, components)
        # A fit takes the strongest directions of the noise, and leaves the rest.
        free = 1 - len(self.components) * sum(E.shape) / E.size
        return Structure(
            _leading(E) / energy, noise / energy, int(np.sum(strengths < sqrt(STRONGEST * noise / max(free, 0.1))))
        )

    def _precision(self, rows: Any) -> Matrix:
        """Return how much more precise than typical of their feature entries of some samples are, 1 for typical ones.

        That is known where uncertainties were given; user weights say how much entries count, not how precise they are.
        """
        if self.data.M is None or not self.model._with_uncertainties:
            return np.ones((1, self.shape[1]))
        return np.sqrt(np.asarray(self.data.M[rows], dtype=np.float64))

    def blocks(self) -> Iterator[slice]:
        """Yield parts of the samples that fit in memory."""
        n_samples, n_features = self.shape
        step = max(1, BLOCK // n_features)
        yield from (slice(start, start + step) for start in range(0, n_samples, step))


def _medians(residual: Matrix, axis: int) -> Matrix:
    with ignored_warnings((RuntimeWarning, "All-NaN slice")):  # where nothing is observed, NaN is the answer
        return np.asarray(np.nanmedian(np.abs(residual), axis=axis))


def _leading(E: Matrix) -> float:
    """Return the square of the largest singular value."""
    gram = E @ E.T if E.shape[0] <= E.shape[1] else E.T @ E
    last = len(gram) - 1
    return float(eigh(gram, eigvals_only=True, subset_by_index=(last, last))[0])


def _singular_values(A: Matrix, B: Matrix) -> Matrix:
    """Return the singular values of A @ B, without the product."""
    _, left = np.linalg.qr(A.astype(np.float64))
    _, right = np.linalg.qr(B.T.astype(np.float64))
    return np.asarray(np.linalg.svd(left @ right.T, compute_uv=False))


def _check_size(X: Any) -> None:
    """Refuse sparse data that would not fit in memory with its zeros, which a report looks at."""
    if is_sparse(X) and X.shape[0] * X.shape[1] > MOST_ENTRIES:
        raise IncompatibleError(
            f"A report looks at all entries of X, zeros included, and a sparse X of shape {tuple(X.shape)} has more "
            f"than {MOST_ENTRIES}. Fit and report some of the samples, or select features."
        )
