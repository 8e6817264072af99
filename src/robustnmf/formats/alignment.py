"""Samples and features found by their names: what belongs together is never put together by its place alone.

Names are those of a `LabelledMatrix`, the index and columns of a data frame, the columns of a table of pyarrow, or the
coordinates of a matrix of xarray, see `robustnmf.formats.containers`. Names in the same order are left as
they are. In another order they are put in order. Other names are refused, by name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse

from robustnmf.formats.axes import role_of
from robustnmf.formats.containers import axes_of_frame, is_numbered, labels_of, taken_in
from robustnmf.formats.errors import shortened, times
from robustnmf.formats.labelled_matrix import Axis, LabelledMatrix
from robustnmf.formats.rows import is_dask, package_of
from robustnmf.utils.extras import optional
from robustnmf.utils.user_warnings import warn_user


class UnalignedError(ValueError):
    """Samples, features or units that do not belong together: what is wrong, and what to do."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}. {advice}")
        self.problem, self.advice = problem, advice


Places = list[int] | None
"""Where each of the wanted is among those that are given; None if they are in order."""


# --- Names ------------------------------------------------------------------------------------------------------------


def values_of(X: Any) -> Any:
    """Return the values of a labelled matrix; anything else as it is."""
    return X.values if isinstance(X, LabelledMatrix) else X


def axes_of(X: Any) -> tuple[Axis, Axis]:
    """Return what is known of samples and features of data: a `LabelledMatrix`, a data frame, or anything else."""
    if isinstance(X, LabelledMatrix):
        return X.samples, X.features
    if package_of(X) == "pandas" and hasattr(X, "columns"):
        return axes_of_frame(X)
    if _is_dask_frame(X):  # its index is computed only where it is needed
        return Axis(), Axis(labels_of(X.columns))
    if package_of(X) == "polars" and hasattr(X, "columns"):
        return Axis(), Axis([str(name) for name in X.columns])
    return Axis(), Axis()


def place_of(X: Any, sample: int, feature: int) -> str:
    """Return what an entry is called: by names where there are some, else by numbers from 0 on.

    Examples
    --------
    >>> place_of(np.ones((2, 2)), 1, 0)
    'sample 1, feature 0'
    """
    samples, features = (Axis(known_names(axis)) for axis in axes_of(X))
    return LabelledMatrix(np.empty((0, 0)), samples, features).place(sample, feature)


def known_names(axis: Axis) -> Sequence[str] | None:
    """Return names or places on a grid, None for names that pandas gives to what has none."""
    names = axis.shown_names
    return None if names is None or is_numbered(names) else names


# --- Weights and uncertainties ----------------------------------------------------------------------------------------


def aligned_values(values: Any, name: str, X: Any, *, has_units: bool = False) -> Any:
    """Return weights or uncertainties in the order of the data.

    Parameters
    ----------
    values : LabelledMatrix, data frame, array-like of shape (n_samples, n_features) or None
        With names, if they have some.
    name : str
        What they are, for errors.
    X : LabelledMatrix, data frame or array-like of shape (n_samples, n_features)
        The data.
    has_units : bool
        Whether the units must be those of the data, where both have some: uncertainties have them, weights do not.

    Returns
    -------
    array-like of shape (n_samples, n_features) or None
        Without names. As they are given if one of the two has no names.
    """
    values, X = taken_in(values, name), taken_in(X, "X")
    if values is None:
        return None
    if _is_turned(values, X):
        values = values.transposed
    given, wanted = _aligned_axes(values, X)
    for axis, known in zip(given, wanted, strict=True):
        check_grid(axis, known, name, "X")
    places = [
        _matched(f"{name} must have the {what} of X", what, axis, known)
        for what, axis, known in zip(("samples", "features"), given, wanted, strict=True)
    ]
    if has_units:
        ordered = given[1] if places[1] is None else given[1].some(places[1])
        check_units(replace(ordered, names=wanted[1].names), wanted[1], f"{name} must have the units of X")
    if places[0] is not None and is_dask(values):
        problem = f"{name} must have the samples of X, in the same order; they are in another one"
        raise UnalignedError(problem, "A frame of Dask is not sorted by its index here: sort both, or leave names out.")
    return taken(taken(values_of(values), places[0], axis=0), places[1], axis=1)


def _is_turned(values: Any, X: Any) -> bool:
    """Return whether the dimensions of a labelled matrix are those of the data, the other way round."""
    if not isinstance(values, LabelledMatrix) or not isinstance(X, LabelledMatrix):
        return False
    titles, known = ((matrix.samples.title, matrix.features.title) for matrix in (values, X))
    return titles != known and titles == known[::-1] and None not in titles


def _aligned_axes(values: Any, X: Any) -> tuple[tuple[Axis, Axis], tuple[Axis, Axis]]:
    """Return what is known of the axes of both; an index of Dask is computed if both have names of samples."""
    axes, frames = [axes_of(values), axes_of(X)], [_is_dask_frame(values), _is_dask_frame(X)]
    if all(axis[0].names is not None or frame for axis, frame in zip(axes, frames, strict=True)):
        for place, matrix in enumerate((values, X)):
            if frames[place]:
                axes[place] = Axis(_dask_labels(matrix)), axes[place][1]
    return axes[0], axes[1]


def _is_dask_frame(X: Any) -> bool:
    return is_dask(X) and hasattr(type(X), "columns")


def _dask_labels(frame: Any) -> list[str] | None:
    """Return the index of a frame of Dask; None if its partitions are numbered from 0 on, as those of files are."""
    labels = [labels_of(part) for part in optional("dask", "dask").compute(*(p.index for p in frame.partitions))]
    return None if all(map(is_numbered, labels)) else [label for part in labels for label in part]


def taken(values: Any, places: Places, axis: int) -> Any:
    """Return some rows or columns of a matrix, dense, sparse or of Dask; None takes all as they are."""
    if values is None or places is None:
        return values
    if is_dask(values):  # only columns are taken
        return values[[values.columns[place] for place in places]]
    plain: Any = values if sparse.issparse(values) else np.asarray(values)
    return plain[places] if axis == 0 else plain[:, places]


def _matched(expected: str, what: str, given: Axis, wanted: Axis) -> Places:
    if given.names is None or wanted.names is None:
        return None
    names, known = _without_suffix(given.names, wanted.names), list(wanted.names)
    if len(set(known)) < len(known):
        names, known = _with_columns(names, known, given, wanted)
    if names == known:
        return None
    # What has the numbers of pandas has no names, unless some of them are names of the other.
    if (is_numbered(names) or is_numbered(known)) and not set(names) & set(known):
        return None
    return places_of(names, known, expected, what)


def _with_columns(names: list[str], known: list[str], given: Axis, wanted: Axis) -> tuple[list[str], list[str]]:
    """Return names that repeat together with the other texts that both have, such as the date beside a station."""
    titles = [title for title in wanted.columns if title in given.columns]
    beside = ([axis.columns[title] for title in titles] for axis in (given, wanted))
    both = (zip(first, *columns, strict=True) for first, columns in zip((names, known), beside, strict=True))
    longer, known_longer = ([" / ".join(texts) for texts in each] for each in both)
    return longer, known_longer


def places_of(given: Sequence[str], wanted: Sequence[str], expected: str, what: str) -> list[int]:
    """Return where each of the wanted names is among those that are given; raise UnalignedError if some are others.

    Parameters
    ----------
    given, wanted : sequence of str
        Names.
    expected : str
        What is required, for the error.
    what : str
        "samples" or "features".
    """
    missing, additional = differences(given, wanted)
    if missing or additional:
        problems = [
            f"{len(names)} {problem} ({shown(names)})"
            for names, problem in ((missing, "are missing"), (additional, "are others"))
            if names
        ]
        advice = f"Rename or choose the {what}, or leave names out if all are in order."
        raise UnalignedError(f"{expected}; of {len(wanted)}, {' and '.join(problems)}", advice)
    if len(set(given)) < len(given):
        repeated = [name for name, count in Counter(given).items() if count > 1]
        problem = f"they are in another order, and {shown(repeated)} repeat"
        advice = f"Give each of the {what} a name of its own."
        raise UnalignedError(f"{expected}, in the same order where names repeat; {problem}", advice)
    order = {name: place for place, name in enumerate(given)}
    return [order[name] for name in wanted]


def differences(given: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which of the wanted names are missing, and which names are given beside them."""
    has, needs = set(given), set(wanted)
    return [name for name in wanted if name not in has], [name for name in given if name not in needs]


def shown(names: Sequence[str], most: int = 5) -> str:
    """Return some names in a sentence."""
    return ", ".join(repr(shortened(name)) for name in islice(names, most)) + (" ..." if len(names) > most else "")


def _without_suffix(given: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return names without what they all have behind those that are wanted, such as "_error" in "Al_error".

    Examples
    --------
    >>> _without_suffix(["Fe_unc", "Al_unc"], ["Al", "Fe"])
    ['Fe', 'Al']
    """
    needs = set(wanted)
    if not given or needs == set(given):
        return list(given)
    for name in sorted((name for name in needs if name and given[0].startswith(name)), key=len, reverse=True):
        suffix = given[0][len(name) :]
        stripped = [other.removesuffix(suffix) for other in given]
        if suffix and all(other.endswith(suffix) for other in given) and set(stripped) == needs:
            return stripped
    return list(given)


def uncertainties_of(X: Any, given: Any, *, may_use_file: bool = True) -> Any:
    """Return the uncertainties of all entries: those that are given, and where these are NaN, those of the file.

    A file may tell the uncertainty of some entries only: of those below a limit of detection, say, that were set to
    half of it. Alone these say nothing, as a fit weighs entries against each other. So without uncertainties that are
    given, those of the file are used if it has one for each entry that is observed.

    Parameters
    ----------
    X : LabelledMatrix, data frame or array-like of shape (n_samples, n_features)
        The data.
    given : LabelledMatrix, data frame, array-like of shape (n_samples, n_features) or None
        What the user gives; aligned by name.
    may_use_file : bool
        Whether uncertainties of the file may be used where none are given at all.

    Returns
    -------
    array-like of shape (n_samples, n_features) or None
        Uncertainties in the order of X.
    """
    given = aligned_values(given, "uncertainties", X, has_units=True)
    known = X.uncertainties if isinstance(X, LabelledMatrix) else None
    if known is None:
        return given
    if given is None:
        is_complete = not sparse.issparse(X.values) and not (np.isnan(known) & ~np.isnan(X.values)).any()
        return known if may_use_file and is_complete else None
    plain = np.asarray(given, dtype=np.float64)
    # Arrays of another shape are refused where all are checked.
    return np.where(np.isnan(plain), known, plain) if plain.shape == known.shape else given


# --- Units ------------------------------------------------------------------------------------------------------------


def check_units(given: Axis, wanted: Axis, expected: str) -> None:
    """Raise UnalignedError if features have other units than they must have; what has no unit fits any.

    Parameters
    ----------
    given, wanted : Axis
        The same features, in the same order.
    expected : str
        What is required, for the error.

    Examples
    --------
    >>> check_units(Axis(["Fe"], units=["ug / m^3"]), Axis(["Fe"], units=["µg/m³"]), "X must have the units of Y")
    >>> check_units(Axis(["Fe"], units=["ng"]), Axis(["Fe"], units=["µg"]), "It must have these")
    Traceback (most recent call last):
    robustnmf...UnalignedError: It must have these; 1 of 1 features have others ('Fe' is in 'ng', not in 'µg'). ...
    """
    if given.units is None or wanted.units is None or len(given.units) != len(wanted.units):
        return
    pairs = list(enumerate(zip(given.units, wanted.units, strict=True)))
    others = [(place, *pair) for place, pair in pairs if all(pair) and len(set(map(_spelt, pair))) > 1]
    if not others:
        return
    names = wanted.names or [f"feature {place}" for place, _ in pairs]
    some = [
        f"{shortened(names[place])!r} is in {shortened(has)!r}, not in {shortened(needs)!r}"
        for place, has, needs in others[:3]
    ]
    more = " ..." if len(others) > len(some) else ""
    problem = f"{len(others)} of {len(pairs)} features have others ({'; '.join(some)}{more})"
    raise UnalignedError(f"{expected}; {problem}", "Convert the values, and write the units alike.")


def _spelt(unit: str) -> str:
    """Return a unit in one spelling; upper case is kept, as mW is not MW.

    Examples
    --------
    >>> [_spelt(unit) for unit in ("µg/m³", "[ug m-3]", "μg · m⁻³", "UG/m**3")]
    ['ug.m-3', 'ug.m-3', 'ug.m-3', 'UG.m-3']
    """
    plain = unicodedata.normalize("NFKC", unit).replace("\u2212", "-").replace("\u03bc", "u").strip(" []()")
    plain = re.sub(r"\^|\*\*", "", plain)
    plain = re.sub(r"\s*/\s*([^\W\d_]+)(\d*)", lambda found: f" {found[1]}-{found[2] or 1}", plain)
    return re.sub(r"[\s\u00b7\u22c5*.]+", ".", plain).strip(".")


# --- New data of a model ----------------------------------------------------------------------------------------------


def aligned_input(
    X: Any,
    weights: Any,
    uncertainties: Any,
    *,
    features: Axis | None,
    model: str,
    may_use_file: bool = False,
) -> tuple[Any, Any, Any]:
    """Return data with the features that a model knows, in its order, and what is known of its entries in that order.

    Parameters
    ----------
    X : LabelledMatrix, data frame or array-like of shape (n_samples, n_features)
        The data. Only a `LabelledMatrix` is put in order: scikit-learn refuses data frames in another one.
    weights, uncertainties : LabelledMatrix, data frame, array-like of shape (n_samples, n_features) or None
        Aligned with X by name; without names, in its order.
    features : Axis or None
        Features that the model was fitted to, see `features_of`; None if it learns from X.
    model : str
        Name of its class.
    may_use_file : bool
        Whether uncertainties of the file may be used where none are given, see `uncertainties_of`.

    Returns
    -------
    X, weights, uncertainties
        Weights and uncertainties without names.
    """
    given, X = X, taken_in(X, "X")
    weights = aligned_values(weights, "weights", X)
    uncertainties = uncertainties_of(X, uncertainties, may_use_file=may_use_file)
    if features is None or not isinstance(X, LabelledMatrix):
        return X, weights, uncertainties
    _check_turned(X, features, model)
    names = features.names
    if names is None and given is not X and _are_numbers(X.feature_names):
        names = _numbers(X.feature_names)  # pandas has numbered the features, before they were moved
    if names is not None and X.feature_names is not None and list(X.feature_names) != list(names):
        places = model_places(X.feature_names, list(names), model)
        X, weights, uncertainties = (
            X.some_features(places),
            *(taken(values, places, axis=1) for values in (weights, uncertainties)),
        )
    check_units(X.features, features, f"X must have the units of the data that {model} was fitted to")
    return X, weights, uncertainties


def check_order(X: Any, names: Sequence[str] | None, model: str) -> None:
    """Raise ValueError if columns of data that is not in memory are not those of a model, in its order.

    Results of such data have no names, so columns are not put in order. Of data in memory, scikit-learn says so.

    Parameters
    ----------
    X : data frame, LabelledMatrix or any other
        The data; nothing is checked if its features have no names.
    names : sequence of str or None
        Names of the features that the model was fitted to, if it knows them.
    model : str
        Name of its class.
    """
    given = known_names(axes_of(X)[1])
    if names is None and _are_numbers(given):
        names = _numbers(given)
    if given is None or names is None or list(given) == list(names):
        return
    missing, additional = differences(given, names)
    problem = f"{len(missing)} are missing ({shown(missing)})" if missing else "they are in another order"
    problem += f", and {shown(additional)} are others" if additional else ""
    raise ValueError(
        f"The feature names should match those that {model} was fitted to, in the same order; {problem}. "
        "X[list(model.feature_names_in_)] has the columns of the fit, in its order."
    )


def _check_turned(X: LabelledMatrix, features: Axis, model: str) -> None:
    """Raise ValueError if the dimension of a model's features is that of the samples of X."""
    title, titles = features.title, (X.samples.title, X.features.title)
    if title is not None and titles[0] == title != titles[1]:
        raise ValueError(
            f"The second dimension of X must be {title!r}, the features that {model} was fitted to; the dimensions "
            f"are {titles}. Pass X.transpose()."
        )


def _are_numbers(names: Sequence[str] | None) -> bool:
    """Return whether names are all numbers from 0 on, in some order."""
    return names is not None and set(names) == set(_numbers(names))


def _numbers(names: Sequence[str] | None) -> list[str]:
    """Return the numbers that pandas gives to so many columns, as texts."""
    return [str(place) for place in range(len(names or ()))]


def features_of(estimator: Any) -> Axis:
    """Return names, units and title of the features that an estimator was fitted to, as far as it knows them."""
    names, known = getattr(estimator, "feature_names_in_", None), getattr(estimator, "input_", None)
    about = Axis() if known is None else known.features
    return Axis(None if names is None else list(names), about.title, units=about.units)


def model_places(given: Sequence[str], names: Sequence[str], model: str) -> list[int]:
    """Return where the features of a model are among those of new data; warn of others, and raise if some are missing.

    Examples
    --------
    >>> model_places(["Fe", "Al"], ["Al", "Fe"], "RobustNMF")
    [1, 0]
    """
    missing, additional = differences(given, names)
    if missing:
        others = f"X has others ({shown(additional)})" if additional else "X has no others"
        raise ValueError(
            f"X must have all {len(names)} features that {model} was fitted to; {len(missing)} are missing "
            f"({shown(missing)}), and {others}. Add them (NaN means missing), or rename those of X."
        )
    if additional:
        warn_user(
            f"{model}: features of X that the model was not fitted to are not used, {len(additional)} in all: "
            f"{shown(additional)}."
        )
    known = set(names)
    kept = [place for place, name in enumerate(given) if name in known]
    order = places_of([given[place] for place in kept], names, f"X must have the features of {model}", "features")
    return [kept[place] for place in order]


def put_back(results: LabelledMatrix, X: LabelledMatrix) -> LabelledMatrix:
    """Return results for the features of a model in the order that these have in the data; others stay left out."""
    given, wanted = results.feature_names, X.feature_names
    if given is None or wanted is None or list(given) == list(wanted):
        return results
    place = {name: i for i, name in enumerate(given)}
    order = [place[name] for name in wanted if name in place]
    in_order = results.some_features(order)
    return replace(in_order, features=X.features, source=X.source) if len(order) == X.shape[1] else in_order


# --- Grids ------------------------------------------------------------------------------------------------------------


def check_grid(given: Axis, wanted: Axis, what: str, owner: str) -> None:
    """Raise UnalignedError if pixels lie on another grid than they must: one of another size, or turned.

    Axes of length 1 do not count, and an axis without a known name may be any.

    Parameters
    ----------
    given, wanted : Axis
        Samples or features. Nothing is checked if the grid of one is not known, or has names for its points.
    what : str
        What is given, for the error.
    owner : str
        What the grid must be that of.

    Examples
    --------
    >>> check_grid(Axis(grid=(88, 72)), Axis(grid=(72, 88), grid_names=("y", "x")), "weights", "X")
    Traceback (most recent call last):
    robustnmf.formats.alignment.UnalignedError: Pixels of weights must lie as those of X, 72 x 88 (y, x); they ...
    """
    if given.grid is None or wanted.grid is None or (given.names is not None and wanted.names is not None):
        return
    sizes, names = _long_axes(given)
    known_sizes, known_names = _long_axes(wanted)
    roles = zip(map(role_of, names), map(role_of, known_names), strict=False)
    is_renamed = any(role and known and role != known for role, known in roles)
    is_turned = names != known_names and sorted(names) == sorted(known_names)
    # A single axis cannot be turned: a spectrum may be one of bands here and of energies there.
    if max(len(sizes), len(known_sizes)) < 2 or (sizes == known_sizes and not is_renamed and not is_turned):
        return
    raise UnalignedError(
        f"Pixels of {what} must lie as those of {owner}, {_grid_text(wanted)}; they lie as {_grid_text(given)}",
        "Crop or turn the images, or give their axes the order that is required.",
    )


def _long_axes(axis: Axis) -> tuple[list[int], list[str]]:
    """Return sizes and names of the axes of a grid that are longer than 1."""
    grid = axis.grid or ()
    named = zip(grid, axis.grid_names or ("",) * len(grid), strict=True)
    kept = [(size, name.strip().lower()) for size, name in named if size > 1]
    return [size for size, _ in kept], [name for _, name in kept]


def _grid_text(axis: Axis) -> str:
    names = axis.grid_names if axis.grid_names and any(axis.grid_names) else ()
    known = f" ({', '.join(shortened(name) or '?' for name in names)})" if names else ""
    return f"{times(axis.grid or ())}{known}"
