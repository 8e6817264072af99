"""WHICH pixels are rejected, together with their neighbours: outlier rules for images.

Occlusions are connected. A rule of this file takes its thresholds from another, its `base`, and then decides about
all pixels of an image at once, instead of comparing each by itself with its threshold: holes in an occlusion are
filled, and single pixels just beyond the threshold kept. Samples are images, their pixels line by line.
"""

from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from robustnmf.engines.protocol import Engine
from robustnmf.model.markov import median_filtered_support, minimum_energy_labels
from robustnmf.model.outliers import MADRule, OutlierRule
from robustnmf.utils.arrays import Array, Blocks, Namespace


@dataclass(frozen=True, slots=True)
class MRFRule:
    """The most likely outliers under a Markov random field: connected regions are likely.

    The outliers of an image with residual magnitudes |r| and thresholds t minimise, exactly,

        sum over inliers of |r| / t  +  number of outliers  +  smoothness * (number of neighbours of unequal kind),

    where missing pixels cost nothing, as inlier or outlier, and so only join what lies around them; they are never
    marked. With smoothness 0 outliers are the pixels with |r| > t. A pixel on its own among inliers is an outlier only
    if |r| > (1 + 4 * smoothness) t, and one with residual 0 among outliers is one if smoothness exceeds 1/4.

    Parameters
    ----------
    image_shape : tuple of two ints
        Rows and columns of an image; their product is the number of features.
    base : OutlierRule
        Gives the thresholds.
    smoothness : float
        Cost of a pair of neighbours of unequal kind.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.model.spatial import MRFRule
    >>> magnitudes = np.zeros((1, 35))
    >>> image = magnitudes.reshape(5, 7)
    >>> image[1:4, 1:4], image[2, 2], image[3, 6] = 5.0, 0.0, 1.5  # an occlusion with a hole, and a speck
    >>> MRFRule((5, 7)).mask(magnitudes, None, 1.0, np).reshape(5, 7).astype(int)
    array([[0, 0, 0, 0, 0, 0, 0],
           [0, 1, 1, 1, 0, 0, 0],
           [0, 1, 1, 1, 0, 0, 0],
           [0, 1, 1, 1, 0, 0, 0],
           [0, 0, 0, 0, 0, 0, 0]])
    """

    image_shape: tuple[int, int]
    base: OutlierRule = field(default_factory=MADRule)
    smoothness: float = 0.5

    name: ClassVar[str] = "mrf"

    def __post_init__(self) -> None:
        _check_parts(self.image_shape, self.base)
        if isinstance(self.smoothness, bool) or not 0 <= self.smoothness < float("inf"):
            raise ValueError(f"smoothness must be a finite number of at least 0; got {self.smoothness!r}.")

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        """Return the thresholds of the base rule."""
        return self.base(magnitudes, M, scale, engine)

    def mask(self, magnitudes: Array, M: Array | None, thresholds: Any, xp: Namespace) -> Array:
        """Return True where an entry is an outlier, (n, m).

        Parameters
        ----------
        magnitudes : array (n, m)
            Residual magnitudes |R| of a block of samples in rows.
        M : array (n, m) or None
            Weights; entries of weight zero are missing.
        thresholds : array (m,), number or None
            Magnitudes beyond which an entry by itself would be an outlier; None if nothing is rejected.
        xp : namespace
            Of the arrays.

        Returns
        -------
        array of bool (n, m)
            The outliers, where the magnitudes are.
        """
        images, observed, limits = _images(self.image_shape, magnitudes, M, thresholds)
        cost_inlier = np.where(observed, _ratio(images, limits), 0.0)
        outliers = minimum_energy_labels(cost_inlier, observed.astype(np.float64), self.smoothness)
        return _like(magnitudes, outliers & observed, xp)


@dataclass(frozen=True, slots=True)
class MedianFilterRule:
    """Outliers are the pixels around which most are beyond their threshold.

    Missing pixels, and those outside the image, have no vote; where votes are equal the pixel itself decides.

    Parameters
    ----------
    image_shape : tuple of two ints
        Rows and columns of an image; their product is the number of features.
    base : OutlierRule
        Gives the thresholds.
    size : int
        Odd; a pixel is compared with the window of size * size pixels around it, itself included.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.model.spatial import MedianFilterRule
    >>> magnitudes = np.zeros((1, 24))
    >>> image = magnitudes.reshape(4, 6)
    >>> image[:, :3], image[1, 1], image[2, 5] = 5.0, 0.0, 1.5  # an occlusion with a hole, and a speck
    >>> MedianFilterRule((4, 6)).mask(magnitudes, None, 1.0, np).reshape(4, 6).astype(int)
    array([[1, 1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0, 0]])
    """

    image_shape: tuple[int, int]
    base: OutlierRule = field(default_factory=MADRule)
    size: int = 3

    name: ClassVar[str] = "median-filter"

    def __post_init__(self) -> None:
        _check_parts(self.image_shape, self.base)
        if not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 1 or self.size % 2 == 0:
            raise ValueError(f"size must be an odd positive integer, so that a window has a middle; got {self.size!r}.")

    def __call__(self, magnitudes: Blocks, M: Blocks | None, scale: float, engine: Engine) -> Array | None:
        """Return the thresholds of the base rule."""
        return self.base(magnitudes, M, scale, engine)

    def mask(self, magnitudes: Array, M: Array | None, thresholds: Any, xp: Namespace) -> Array:
        """Return True where an entry is an outlier, (n, m).

        Parameters
        ----------
        magnitudes : array (n, m)
            Residual magnitudes |R| of a block of samples in rows.
        M : array (n, m) or None
            Weights; entries of weight zero are missing, and do not count in a window.
        thresholds : array (m,), number or None
            Magnitudes beyond which an entry by itself would be an outlier; None if nothing is rejected.
        xp : namespace
            Of the arrays.

        Returns
        -------
        array of bool (n, m)
            The outliers, where the magnitudes are.
        """
        images, observed, limits = _images(self.image_shape, magnitudes, M, thresholds)
        return _like(magnitudes, median_filtered_support(images > limits, self.size, observed), xp)


def _check_parts(image_shape: Any, base: Any) -> None:
    """Raise an error unless these are rows and columns, and a rule."""
    if not isinstance(image_shape, tuple) or len(image_shape) != 2 or not all(_is_size(size) for size in image_shape):
        raise ValueError(f"image_shape must be a tuple of two positive integers, (rows, columns); got {image_shape!r}.")
    if not isinstance(base, OutlierRule):
        raise TypeError(f"base must be an outlier rule, such as MADRule(); got {base!r}.")


def _is_size(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def _images(
    image_shape: tuple[int, int], magnitudes: Array, M: Array | None, thresholds: Any
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """Return magnitudes, which pixels are observed, and thresholds, as images (n, height, width) on the host."""
    n_samples, n_features = magnitudes.shape
    height, width = image_shape
    if height * width != n_features:
        raise ValueError(
            f"image_shape must be (rows, columns) with rows * columns = n_features = {n_features}; got "
            f"{image_shape!r}. The rule looks at whole images, one per sample."
        )
    shape = (n_samples, height, width)
    observed = np.ones(shape, dtype=bool) if M is None else (_host(M) > 0).reshape(shape)
    limits = np.broadcast_to(np.inf if thresholds is None else _host(thresholds).astype(np.float64), (n_features,))
    return _host(magnitudes).astype(np.float64).reshape(shape), observed, limits.reshape(height, width)


def _ratio(images: NDArray[np.float64], limits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return |r| / t: zero where r is zero or t infinite, and else infinite where t is zero."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where((images > 0) & (limits < np.inf), images / limits, 0.0)


def _host(values: Any) -> NDArray[Any]:
    """Return an array of any library, or a number, as a NumPy array."""
    if array_api_compat.is_array_api_obj(values):
        values = array_api_compat.to_device(values, "cpu")
    return np.asarray(values)


def _like(magnitudes: Array, outliers: NDArray[np.bool_], xp: Namespace) -> Array:
    """Return images of booleans as a matrix, where the magnitudes are."""
    return xp.asarray(outliers.reshape(magnitudes.shape), device=array_api_compat.device(magnitudes))
