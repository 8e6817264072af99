"""Pictures of a factorisation, with Matplotlib (extra ``plots``)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robustnmf.errors import MissingExtraError

OUTLIER_COLOUR = "#d62728"


def before_after(
    rows: Sequence[tuple[str, ArrayLike]], image_shape: tuple[int, int], *, vmax: float | None = None, title: str = ""
) -> Any:
    """Draw samples as images, one row for each stage, and return the figure.

    Parameters
    ----------
    rows : sequence of (label, array (n_images, n_pixels))
        What to show from top to bottom. Boolean arrays are drawn as masks.
    image_shape : (height, width)
        Shape of one image.
    vmax : float or None
        Value drawn white; by default the maximum of the first row.
    title : str
        Title of the figure.
    """
    plt = _pyplot()
    arrays = [np.asarray(images) for _, images in rows]
    first = arrays[0]
    vmax = float(first.max()) if vmax is None else vmax
    height, width = len(arrays), len(first)
    figure, axes = plt.subplots(
        height, width, figsize=(1.6 + 0.95 * width, 0.5 + 1.0 * height), squeeze=False, layout="constrained"
    )
    for line, (label, _), images in zip(axes, rows, arrays, strict=True):
        for axis, image in zip(line, images, strict=True):
            axis.imshow(_picture(image.reshape(image_shape), vmax))
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.suptitle(title)
    return figure


def _picture(image: Any, vmax: float) -> Any:
    """Return an image as RGB: grey values, or a mask in colour on white."""
    from matplotlib.colors import to_rgb

    if image.dtype == bool:
        return np.where(image[..., None], to_rgb(OUTLIER_COLOUR), (1.0, 1.0, 1.0))
    return np.repeat(np.clip(image / vmax, 0, 1)[..., None], 3, axis=2)


def _pyplot() -> Any:
    """Import Matplotlib late: it is an extra."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return plt
