"""The noises of the experiments, seeded; each says which entries it has touched."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_random_state

__all__ = ["Corrupted", "block_occlusion", "gaussian", "laplace", "salt_and_pepper"]

Floats = NDArray[np.floating[Any]]
RandomState = int | np.random.Generator | np.random.RandomState | None


class Corrupted(NamedTuple):
    """Corrupted data and the entries that were corrupted.

    Parameters
    ----------
    data : ndarray (n_samples, n_features)
        A copy of the data: float32 if it was, else float64.
    mask : ndarray of bool (n_samples, n_features)
        True marks a corrupted entry.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.datasets.corruptions import salt_and_pepper
    >>> corrupted = salt_and_pepper(np.full((3, 4), 7.0), 0.5, random_state=0)
    >>> bool((corrupted.data[~corrupted.mask] == 7.0).all())
    True
    """

    data: Floats
    """Array of shape (n_samples, n_features): a copy, float32 if the input was, else float64."""
    mask: NDArray[np.bool_]
    """Array of shape (n_samples, n_features): True marks a corrupted entry."""


def salt_and_pepper(
    X: ArrayLike,
    fraction: float,
    *,
    salt: float | None = None,
    pepper: float = 0.0,
    random_state: RandomState = None,
) -> Corrupted:
    """Return a copy of X with a fraction of its entries set to extreme values.

    Exactly ``round(fraction * X.size)`` entries are drawn from the whole of X without replacement. Half
    of them become salt and half pepper; of an odd number, the odd one is salt.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The data. NaN entries stay NaN: they are neither drawn nor counted in ``X.size``.
    fraction : float
        Share of corrupted entries, salt and pepper together, in [0, 1].
    salt : float or None
        The high value; None means the largest entry of X.
    pepper : float
        The low value.
    random_state : int, Generator, RandomState or None
        Source of chance; the same int gives the same result.

    Returns
    -------
    Corrupted
        The data, and a mask that marks every drawn entry, even one that already had its new value.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.datasets.corruptions import salt_and_pepper
    >>> X = np.arange(1.0, 13.0).reshape(3, 4)
    >>> data, mask = salt_and_pepper(X, 0.5, random_state=0)
    >>> int(mask.sum()), int((data[mask] == 12.0).sum()), int((data[mask] == 0.0).sum())
    (6, 3, 3)
    """
    _check_number("fraction", fraction, 0, 1)
    _check_number("pepper", pepper)
    if salt is not None:
        _check_number("salt", salt)
    data = _copy(X)
    observed = np.flatnonzero(~np.isnan(data))
    mask = np.zeros(data.shape, dtype=bool)
    drawn = _generator(random_state).choice(observed, size=round(fraction * observed.size), replace=False)
    if drawn.size:
        n_pepper = drawn.size // 2
        entries = data.reshape(-1)  # a view: _copy returns C order
        highest = entries[observed].max() if salt is None else salt
        entries[drawn[:n_pepper]] = pepper
        entries[drawn[n_pepper:]] = highest
        mask.reshape(-1)[drawn] = True
    return Corrupted(data, mask)


def laplace(X: ArrayLike, deviation: float, *, clip: bool = True, random_state: RandomState = None) -> Corrupted:
    """Return a copy of X with Laplace noise added to every entry.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The data. NaN entries stay NaN.
    deviation : float
        Standard deviation of the noise, whose density is ``exp(-|x| / b) / (2 b)`` with
        ``b = deviation / sqrt(2)``.
    clip : bool
        Whether to raise negative results to zero, so that they can be factorised.
    random_state : int, Generator, RandomState or None
        Source of chance; the same int gives the same result.

    Returns
    -------
    Corrupted
        The data, and a mask that marks every entry whose value changed.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.datasets.corruptions import laplace
    >>> data, mask = laplace(np.full((200, 100), 1000.0), 40.0, random_state=0)
    >>> round(float(data.std()))
    40
    """
    _check_number("deviation", deviation, 0)
    data = _copy(X)
    # The variance of a Laplace variable is 2 b**2.
    noise = _generator(random_state).laplace(scale=deviation / np.sqrt(2), size=data.shape)
    return _add_noise(data, noise, clip)


def gaussian(X: ArrayLike, deviation: float, *, clip: bool = True, random_state: RandomState = None) -> Corrupted:
    """Return a copy of X with Gaussian noise of a standard deviation added to every entry; else as `laplace`.

    Parameters
    ----------
    X : array-like (n_samples, n_features)
        The data. NaN entries stay NaN.
    deviation : float
        Standard deviation of the noise.
    clip : bool
        Whether to raise negative results to zero, so that they can be factorised.
    random_state : int, Generator, RandomState or None
        Source of chance; the same int gives the same result.

    Returns
    -------
    Corrupted
        The data, and a mask that marks every entry whose value changed.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.datasets.corruptions import gaussian
    >>> data, mask = gaussian(np.zeros((200, 100)), 1.0, random_state=0)
    >>> float(data.min()), round(float(mask.mean()), 1)  # negative half: clipped back to zero
    (0.0, 0.5)
    """
    _check_number("deviation", deviation, 0)
    data = _copy(X)
    return _add_noise(data, _generator(random_state).normal(scale=deviation, size=data.shape), clip)


def block_occlusion(
    X: ArrayLike,
    size: int,
    image_shape: tuple[int, int],
    *,
    value: float = 550.0,
    random_state: RandomState = None,
) -> Corrupted:
    """Return a copy of X with one square block of every image painted over.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The data, one image per row, its pixels line by line. NaN entries stay NaN and are not marked.
    size : int
        Rows and columns of the block, which lies wholly inside the image; every position is equally
        likely. Zero leaves the images as they are.
    image_shape : tuple of two ints
        Rows and columns of an image; their product is n_features.
    value : float
        What the block is painted with; the default lies outside the range of 8-bit images.
    random_state : int, Generator, RandomState or None
        Source of chance; the same int gives the same result.

    Returns
    -------
    Corrupted
        The data, and a mask that marks the blocks.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.datasets.corruptions import block_occlusion
    >>> data, mask = block_occlusion(np.zeros((1, 20)), 2, (4, 5), random_state=0)
    >>> int(mask.sum()), float(data.max())
    (4, 550.0)
    """
    _check_number("value", value)
    data = _copy(X)
    rows, columns = _check_image_shape(image_shape, data.shape[1])
    limit = min(rows, columns)
    if not isinstance(size, Integral) or not 0 <= size <= limit:
        raise ValueError(f"size must be an integer in [0, {limit}] for images of {rows} x {columns}; got {size!r}.")
    generator = _generator(random_state)
    in_rows = _intervals(rows, size, len(data), generator)
    in_columns = _intervals(columns, size, len(data), generator)
    mask = (in_rows[:, :, np.newaxis] & in_columns[:, np.newaxis, :]).reshape(data.shape)
    mask &= ~np.isnan(data)
    data[mask] = value
    return Corrupted(data, mask)


def _intervals(length: int, size: int, n: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Return n rows of booleans, each True on one random run of the given size; shape (n, length)."""
    first = generator.integers(length - size, size=(n, 1), endpoint=True)
    position = np.arange(length)
    return (first <= position) & (position < first + size)


def _add_noise(data: Floats, noise: Floats, clip: bool) -> Corrupted:
    """Return data plus noise in the dtype of data, and where it differs from data."""
    noisy = (data + noise).astype(data.dtype)
    if clip:
        np.maximum(noisy, 0, out=noisy)  # maximum keeps NaN
    return Corrupted(noisy, (noisy != data) & ~np.isnan(data))


def _copy(X: ArrayLike) -> Floats:
    """Return a copy of X in C order, float32 or float64, after checking that it is a finite matrix."""
    copy: Floats = check_array(
        X, dtype=[np.float64, np.float32], order="C", copy=True, ensure_all_finite="allow-nan", input_name="X"
    )
    return copy


def _generator(random_state: RandomState) -> np.random.Generator:
    """Return the generator given, or one seeded from what scikit-learn accepts."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    # Drawing the seed moves a RandomState on, so that two calls with the same one differ.
    return np.random.default_rng(check_random_state(random_state).randint(2**32, size=4, dtype=np.uint32))


def _check_number(name: str, value: float, low: float = -np.inf, high: float = np.inf) -> None:
    """Raise ValueError unless value is a finite real number in [low, high]."""
    if not isinstance(value, Real) or not np.isfinite(value) or not low <= value <= high:
        interval = "" if low == -np.inf else f" of at least {low}" if high == np.inf else f" in [{low}, {high}]"
        raise ValueError(f"{name} must be a finite number{interval}; got {value!r}.")


def _check_image_shape(image_shape: tuple[int, int], n_features: int) -> tuple[int, int]:
    """Return rows and columns, or raise ValueError unless their product is n_features."""
    rows, columns = image_shape if len(image_shape) == 2 else (0, 0)
    if rows < 1 or columns < 1 or rows * columns != n_features:
        raise ValueError(
            f"image_shape must be (rows, columns) with rows * columns = n_features = {n_features}; got {image_shape!r}."
        )
    return rows, columns
