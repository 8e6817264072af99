"""Binary labels of pixels that prefer to agree with their neighbours: Markov random fields and majority filters.

A labelling of the pixels p of an image with 0 and 1 has the energy

    E(labels) = sum_p cost_labels[p](p) + smoothness * (number of neighbours with unequal labels),

where the neighbours of a pixel are those above, below, left and right of it (Ising's model). Its minimum is a minimum
cut of a graph with a node for every pixel, and is found exactly by a maximum flow.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import correlate1d
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

__all__ = ["median_filtered_support", "minimum_energy_labels"]

# SciPy's flows are 32-bit integers. An edge and its reverse together must stay below 2**31.
LARGEST_CAPACITY = 2**30 - 1
# A pixel has at most 4 neighbours: a preference above 4 * smoothness decides its label whatever theirs.
DECISIVE = 5


def minimum_energy_labels(cost_zero: ArrayLike, cost_one: ArrayLike, smoothness: float) -> NDArray[np.bool_]:
    """Return the labels of least energy, by a minimum cut.

    Parameters
    ----------
    cost_zero, cost_one : array-like (height, width) or (n, height, width)
        Cost of giving each pixel the label 0 or 1, of one image or of n separate ones. Infinity forbids a label.
    smoothness : float
        Cost of each pair of neighbours with unequal labels; zero labels every pixel by itself.

    Returns
    -------
    ndarray of bool, shaped like the costs
        True where the label is 1. Among labellings of equal energy, the one with the fewest ones; it is unique.

    Notes
    -----
    Only the preference of a pixel, ``cost_zero - cost_one``, matters. The flow needs integers. So preferences are
    clipped at 5 * smoothness, which is more than the neighbours of a pixel can outvote, and smoothness at the sum of
    all preferences, beyond which all labels are equal; neither changes the minimum. Then one energy unit is chosen such
    that smoothness is a whole number of units and the largest edge close to 2**30 of them, and preferences are rounded
    to units. The energy found exceeds the least by at most one unit, 5 * smoothness / 2**30 or less, per pixel.

    References
    ----------
    D. M. Greig, B. T. Porteous, A. H. Seheult, "Exact maximum a posteriori estimation for binary images", Journal of
    the Royal Statistical Society B 51(2), 1989.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.model.markov import minimum_energy_labels
    >>> score = np.zeros((5, 7))
    >>> score[1:4, 1:4] = 2.0  # a bright square ...
    >>> score[2, 2] = 0.0  # ... with a hole
    >>> score[3, 6] = 2.0  # and a speck
    >>> minimum_energy_labels(score, np.ones((5, 7)), smoothness=0.4).astype(int)
    array([[0, 0, 0, 0, 0, 0, 0],
           [0, 1, 1, 1, 0, 0, 0],
           [0, 1, 1, 1, 0, 0, 0],
           [0, 1, 1, 1, 0, 0, 0],
           [0, 0, 0, 0, 0, 0, 0]])
    """
    preference = _check_costs(cost_zero, cost_one)
    if not 0 <= smoothness < np.inf:
        raise ValueError(f"smoothness must be a finite number of at least 0; got {smoothness!r}.")
    if smoothness == 0:
        return np.asarray(preference > 0)
    images = preference.reshape(-1, *preference.shape[-2:])
    labels = np.empty(images.shape, dtype=bool)
    for image, of_image in zip(images, labels, strict=True):
        of_image[...] = _cut(image, float(smoothness))
    return labels.reshape(preference.shape)


def median_filtered_support(mask: ArrayLike, size: int = 3, observed: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Return the mask in which every pixel has the value of most pixels around it.

    Parameters
    ----------
    mask : array-like of bool (height, width) or (n, height, width)
        One image or n separate ones.
    size : int
        Odd; a pixel is compared with the window of size * size pixels around it, itself included.
    observed : array-like of bool shaped like mask, or None
        False marks pixels that have no vote and are False in the result; None means that all are observed.

    Returns
    -------
    ndarray of bool, shaped like mask
        Pixels outside the image have no vote. Where votes are equal, which needs such pixels, the mask is kept.

    Examples
    --------
    >>> import numpy as np
    >>> from robustnmf.model.markov import median_filtered_support
    >>> mask = np.zeros((4, 6), dtype=bool)
    >>> mask[:, :3] = True
    >>> mask[1, 1], mask[2, 5] = False, True  # a hole and a speck
    >>> median_filtered_support(mask).astype(int)
    array([[1, 1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0, 0],
           [1, 1, 1, 0, 0, 0]])
    """
    votes = np.asarray(mask, dtype=bool)
    if votes.ndim not in (2, 3):
        raise ValueError(f"mask must have shape (height, width) or (n, height, width); got {votes.shape}.")
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1 or size % 2 == 0:
        raise ValueError(f"size must be an odd positive integer, so that a window has a middle; got {size!r}.")
    voters = np.ones(votes.shape, dtype=bool) if observed is None else np.asarray(observed, dtype=bool)
    if voters.shape != votes.shape:
        raise ValueError(f"observed must have the shape of mask, {votes.shape}; got {voters.shape}.")
    votes = votes & voters
    balance = _window_sum(2 * votes.astype(np.int64) - voters, int(size))
    return np.asarray(((balance > 0) | ((balance == 0) & votes)) & voters)


def _window_sum(values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the sum over the window around each pixel, within the image."""
    for axis in (-2, -1):
        # A window wider than the image holds all of it; SciPy asks for the part that can matter.
        half = min(size // 2, values.shape[axis])
        values = correlate1d(values, np.ones(2 * half + 1, dtype=np.int64), axis=axis, mode="constant")
    return values


def _check_costs(cost_zero: ArrayLike, cost_one: ArrayLike) -> NDArray[np.float64]:
    """Return cost_zero - cost_one: how much each pixel prefers the label 1."""
    zero, one = np.asarray(cost_zero, dtype=np.float64), np.asarray(cost_one, dtype=np.float64)
    if zero.shape != one.shape or zero.ndim not in (2, 3):
        raise ValueError(
            "cost_zero and cost_one must have one shape, (height, width) or (n, height, width); "
            f"got {zero.shape} and {one.shape}."
        )
    with np.errstate(invalid="ignore", over="ignore"):
        preference = zero - one
    if np.isnan(preference).any():
        raise ValueError(
            "Costs must not be NaN, and a pixel must have a finite cost for one label at least; give a pixel without "
            "data the same cost for both."
        )
    return np.asarray(preference)


class _Graph(NamedTuple):
    """Structure of the flow network of one image shape, in the order of a CSR matrix.

    Nodes are the pixels line by line, then the source and the sink.
    """

    indices: NDArray[np.int32]
    indptr: NDArray[np.int32]
    neighbours: NDArray[np.intp]
    """Where the capacities between neighbours are stored."""
    from_source: NDArray[np.intp]
    """Where those from the source to each pixel are stored."""
    to_sink: NDArray[np.intp]
    """Where those from each pixel to the sink are stored."""


@lru_cache(maxsize=32)
def _graph(height: int, width: int) -> _Graph:
    """Return the network for images of a shape, every edge with its reverse."""
    n_pixels = height * width
    pixel = np.arange(n_pixels, dtype=np.int64)
    grid = pixel.reshape(height, width)
    first = np.concatenate([grid[:, :-1].ravel(), grid[:-1].ravel()])
    second = np.concatenate([grid[:, 1:].ravel(), grid[1:].ravel()])
    source, sink = np.full(n_pixels, n_pixels), np.full(n_pixels, n_pixels + 1)
    tails = np.concatenate([first, second, source, pixel, pixel, sink])
    heads = np.concatenate([second, first, pixel, sink, source, pixel])
    order = np.lexsort((heads, tails))
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    n_neighbours = 2 * len(first)
    neighbours, from_source, to_sink, _ = np.split(place, n_neighbours + n_pixels * np.arange(3))
    indptr = np.searchsorted(tails[order], np.arange(n_pixels + 3))
    return _Graph(heads[order].astype(np.int32), indptr.astype(np.int32), neighbours, from_source, to_sink)


def _cut(preference: NDArray[np.float64], smoothness: float) -> NDArray[np.bool_] | bool:
    """Return the labels of one image: the pixels that the source still reaches when the flow is at its maximum."""
    if not (preference > 0).any():
        return False
    units, weight = _in_units(preference.ravel(), smoothness)
    n_pixels, graph = preference.size, _graph(*preference.shape)
    capacity = np.zeros(len(graph.indices), dtype=np.int32)
    capacity[graph.neighbours] = weight
    capacity[graph.from_source] = np.maximum(units, 0)
    capacity[graph.to_sink] = np.maximum(-units, 0)
    network = csr_array((capacity, graph.indices, graph.indptr), shape=(n_pixels + 2, n_pixels + 2))
    residual = csr_array(network - maximum_flow(network, n_pixels, n_pixels + 1).flow)
    residual.eliminate_zeros()  # a stored zero would count as an edge
    reached = np.zeros(n_pixels + 2, dtype=bool)
    reached[breadth_first_order(residual, n_pixels, return_predecessors=False)] = True
    return reached[:n_pixels].reshape(preference.shape)


def _in_units(preference: NDArray[np.float64], smoothness: float) -> tuple[NDArray[np.int32], int]:
    """Return preferences and smoothness as whole numbers of one energy unit (Notes of `minimum_energy_labels`)."""
    with np.errstate(over="ignore"):  # infinity is clipped like all that is large
        smoothness = min(smoothness, float(np.abs(np.clip(preference, -smoothness, smoothness)).sum()))
        ratio = np.clip(preference / smoothness, -DECISIVE, DECISIVE)
    weight = int(LARGEST_CAPACITY / max(1.0, float(np.abs(ratio).max())))
    return np.rint(ratio * weight).astype(np.int32), weight
