"""What the pictures share: colours, checks, axes, and what is drawn of a model."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from robustnmf.data.sparse import is_sparse
from robustnmf.errors import MissingExtraError
from robustnmf.utils.arrays import to_host

Matrix = NDArray[Any]

OUTLIER_COLOUR = "#d62728"
MISSING_COLOUR = "#8a8a8a"
# With more features than this, bars and their names are too narrow to be told apart.
MOST_BARS = 30
# Names along an axis, at most.
MOST_TICKS = 12


def check_fitted(model: Any) -> None:
    """Raise an error if an estimator is not fitted."""
    if not hasattr(model, "components_"):
        name = type(model).__name__
        if not hasattr(model, "fit"):
            raise ValueError(f"A fitted estimator is needed; got {name}.")
        raise NotFittedError(f"This {name} is not fitted yet: call fit(X) first.")


def check_image_shape(image_shape: Any, n_features: int) -> tuple[int, int]:
    """Return the shape of an image, or say what is wrong with it."""
    if image_shape is None:
        raise ValueError("Images need their shape: pass image_shape=(height, width).")
    shape = tuple(image_shape) if isinstance(image_shape, Iterable) else ()
    whole = all(isinstance(side, Integral) for side in shape)
    if len(shape) != 2 or not whole or min(shape) < 1 or shape[0] * shape[1] != n_features:
        raise ValueError(
            f"image_shape must be (height, width) with height * width = {n_features}, the number of features; "
            f"got {image_shape!r}."
        )
    return int(shape[0]), int(shape[1])


def check_names(names: Any, count: int, what: str) -> list[str]:
    """Return names of samples or features as text, or say that their number is wrong."""
    texts = [str(name) for name in names]
    if len(texts) != count:
        raise ValueError(f"{what}_names must have {count} entries, one for each {what}; got {len(texts)}.")
    return texts


def matrix_of(model: Any, attribute: str, what: str, dtype: Any = None) -> Matrix:
    """Return the array of a fitted estimator, or the array given in its place."""
    if hasattr(model, "fit"):
        check_fitted(model)
        array = getattr(model, attribute)
        return array.toarray() if is_sparse(array) else np.asarray(to_host(array))
    array = np.asarray(to_host(model))
    if array.ndim != 2 or not array.size or (dtype is bool and array.dtype != bool):
        kind = "boolean " if dtype is bool else ""
        raise ValueError(
            f"{what} must be a fitted estimator or a {kind}matrix; got {array.dtype} of shape {array.shape}."
        )
    return array


def axes_of(ax: Any) -> Any:
    """Return the axes given, or new ones."""
    return _pyplot().subplots(layout="constrained")[1] if ax is None else ax


def figure_of(figure: Any, size: tuple[float, float]) -> Any:
    """Return the figure given, or a new one."""
    return _pyplot().figure(figsize=size, layout="constrained") if figure is None else figure


def _pyplot() -> Any:
    """Import Matplotlib late: it is an extra."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots") from error
    return plt


def label(ax: Any, names: list[str], every: int) -> None:
    """Write names below the axis; a dollar sign in them is no mathematics."""
    shown = range(0, len(names), every)
    ax.set_xticks(shown, [names[place] for place in shown], rotation=90, parse_math=False)
    ax.set_xlabel("")


def numbers_of(names: list[str] | None) -> Matrix | None:
    """Return names as numbers, if they are numbers in order."""
    try:
        values = np.array([float(name) for name in names or ()])
    except ValueError:
        return None
    steps = np.diff(values)
    return values if values.size and np.isfinite(values).all() and (np.all(steps > 0) or np.all(steps < 0)) else None


def plain_numbers(*axes: Any) -> None:
    """Write the numbers along logarithmic axes as 0.01, not as powers of ten, which take ten times as long to draw."""
    from matplotlib.ticker import NullFormatter

    for axis in axes:
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


def colour_of(component: int) -> str:
    """Return the colour of a component: the same in all pictures."""
    return f"C{component % 10}"


def codes_of(model: Any, X: Any, codes: Any, weights: Any = None, uncertainties: Any = None) -> Matrix:
    """Return the codes of samples, (n, r): those given, or what the model makes of X."""
    check_fitted(model)
    if codes is not None:
        given = np.asarray(to_host(codes))
        if given.ndim != 2 or given.shape[1] != len(model.components_):
            wanted = f"(n_samples, {len(model.components_)})"
            raise ValueError(f"codes must have shape {wanted}, as transform returns them; got {given.shape}.")
        return given
    if X is None:
        raise ValueError("Codes are not kept by the model: pass the samples, X, or their codes.")
    about = {"weights": weights, "uncertainties": uncertainties}
    given_about = {name: values for name, values in about.items() if values is not None}
    return np.asarray(to_host(model.transform(X, **given_about)))  # a data frame, if scikit-learn is set so


def feature_names_of(model: Any, feature_names: Sequence[Any] | None) -> list[str]:
    """Return the names of the features: those given, those of the fit, or numbers."""
    n_features = model.components_.shape[1]
    names = getattr(model, "feature_names_in_", None) if feature_names is None else feature_names
    return list(map(str, range(n_features))) if names is None else check_names(names, n_features, "feature")


def place_of(feature: int | str, names: Sequence[str]) -> int:
    """Return the place of a feature that is given by its name or number."""
    if isinstance(feature, str) and feature in names:
        return list(names).index(feature)
    if isinstance(feature, Integral) and not isinstance(feature, bool) and -len(names) <= int(feature) < len(names):
        return int(feature) % len(names)
    raise ValueError(f"feature must be the name of a feature, or a number below {len(names)}; got {feature!r}.")


def component_place(component: Any, rank: int) -> int:
    """Return the place of a component that is given by its number, from 1 on."""
    if isinstance(component, Integral) and not isinstance(component, bool) and 1 <= int(component) <= rank:
        return int(component) - 1
    raise ValueError(f"component must be a number from 1 to {rank}; got {component!r}.")


def positions_of(index: Any, count: int) -> tuple[Matrix, bool]:
    """Return where samples are drawn, (n,), and whether as times: dates, rising numbers, or their numbers from 0."""
    places = np.arange(count)
    if index is None:
        return places, False
    names = check_names(index, count, "sample")
    values = numbers_of(names)
    if values is not None:
        return values, False
    try:
        times = np.array([np.datetime64(name.strip().replace(" ", "T")) for name in names], dtype="datetime64[s]")
    except ValueError:
        return places, False
    return (places, False) if np.isnat(times).any() else (times, True)


def index_of(X: Any, index: Any) -> Any:
    """Return names of samples: those given, or those of a data frame or labelled matrix."""
    if index is not None:
        return index
    found = getattr(X, "sample_names", None)
    found = getattr(X, "index", None) if found is None else found
    return None if callable(found) else found  # a list has a method `index`
