"""The models that do not alternate, as initialisers: their factors are the answer, or a start for another model."""

from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np

from robustnmf.algorithm.initializers import Matrix
from robustnmf.baselines.heavy_noise import heavy_noise_nmf
from robustnmf.baselines.near_separable import near_separable_nmf
from robustnmf.errors import IncompatibleError


@dataclass(frozen=True, slots=True)
class HeavyNoiseStart:
    """Factors of `robustnmf.baselines.heavy_noise.heavy_noise_nmf`: averages of samples dominated by one component."""

    name: ClassVar[str] = "heavy-noise"

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return W (m, rank), averages of columns of V, and H (rank, n)."""
        if M is not None:
            refuse_gaps(self.name)
        if not V.any():
            return np.zeros((V.shape[0], rank), dtype=V.dtype), np.zeros((rank, V.shape[1]), dtype=V.dtype)
        result = heavy_noise_nmf(V, rank, rng)
        return result.W, result.H


@dataclass(frozen=True, slots=True)
class NearSeparableStart:
    """Factors of `robustnmf.baselines.near_separable.near_separable_nmf`: some of the samples, and how to mix them."""

    name: ClassVar[str] = "near-separable"

    def __call__(self, V: Matrix, M: Matrix | None, rank: int, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Return W (m, rank), columns of V, and H (rank, n)."""
        if M is not None:
            refuse_gaps(self.name)
        full = V.any(axis=0)  # an empty sample is the sum of no others
        W = np.zeros((V.shape[0], rank), dtype=V.dtype)
        H = np.zeros((rank, V.shape[1]), dtype=V.dtype)
        found = min(rank, int(full.sum()))
        if found:
            result = near_separable_nmf(V[:, full], rank=found, rng=rng)
            W[:, :found] = result.W
            H[:found, full] = result.H
        return W, H


def refuse_gaps(name: str) -> NoReturn:
    """Refuse data with gaps or weights for such a model, by its name."""
    raise IncompatibleError(
        f"{name!r} compares whole samples and needs complete data without weights; this has missing (NaN) or "
        "weighted entries. Fill the gaps first, for example by TruncatedCauchyNMF(k).fit(X).clean(X), or use "
        "another method."
    )
