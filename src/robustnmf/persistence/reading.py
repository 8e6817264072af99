"""From a file to a fitted model, of which nothing is believed before it has been checked."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BufferedReader
from math import inf, prod
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from robustnmf import methods
from robustnmf.algorithm.encoding import Basis, basis_of, noise_in_units
from robustnmf.algorithm.least_squares import MEASURED, Comparison
from robustnmf.data.sample_scaling import SampleScaling
from robustnmf.formats.labelled_matrix import Axis, Input
from robustnmf.formats.options import ReadOptions
from robustnmf.model.noise import ARRAYS, NoiseModel
from robustnmf.model.weighting import Weighting
from robustnmf.persistence import contents
from robustnmf.persistence.contents import ModelFileError, bytes_of, checksum, field_in_file, field_names, fits
from robustnmf.version import __version__

Matrix = NDArray[Any]


def load(path: str | os.PathLike[str]) -> Any:
    """Return the model in a file that `save` has written.

    Parameters
    ----------
    path : str or path-like
        The file; ``~`` stands for the home folder.

    Returns
    -------
    RobustNMF or TruncatedCauchyNMF
        The fitted model; see `save` for what it lacks.

    Raises
    ------
    ModelFileError
        If the file is not a model, is damaged or incomplete, or was written by a later version. Nothing in it is run.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}. Check the path.")
    if path.is_dir():
        raise IsADirectoryError(f"path must name a model file; {path} is a folder.")
    try:
        if not path.is_file():  # a device or a pipe may have no end
            raise ModelFileError("it is not a regular file.")
        with path.open("rb") as file:
            return _read(file)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read as a model: {error}") from error


# --- From a file to text and arrays -----------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """What the text says of an array."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sha256: str

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize


def _read(file: BufferedReader) -> Any:
    """Return the model of an open file; its errors say what is wrong with the file, and not which it is."""
    length, sha256 = _read_head(file)
    size = os.fstat(file.fileno()).st_size
    if length > min(size, contents.LONGEST_TEXT):
        most = f"the file has {size}, and {contents.LONGEST_TEXT} are read"
        raise ModelFileError(f"its text should have {length} bytes; {most}.")
    text = file.read(length)
    if checksum(text) != sha256:
        raise ModelFileError("it is damaged: its text does not have the checksum that it should.")
    document = parse(text)
    entries = array_entries(document)
    expected = file.tell() + sum(entry.size for entry in entries)
    if size != expected:
        raise ModelFileError(f"it should have {expected} bytes and has {size}: it is incomplete, or has been changed.")
    return restored(document, {entry.name: _read_array(file, entry) for entry in entries})


def _read_head(file: BufferedReader) -> tuple[int, str]:
    """Return length and checksum of the text, which the first line tells."""
    line = file.readline(128)
    head = re.match(rb"robustnmf-model ([1-9][0-9]{0,8})[ \n]", line)
    if head is None:
        raise ModelFileError("it does not begin like one. Model files are written by robustnmf.")
    if int(head[1]) > contents.FORMAT:
        known = f"robustnmf {__version__} reads formats up to {contents.FORMAT}"
        raise ModelFileError(f"it has format {int(head[1])}, and {known}. Install a later robustnmf.")
    rest = re.fullmatch(rb"([0-9]{1,10}) ([0-9a-f]{64})\n", line[head.end() :])
    if rest is None:
        raise ModelFileError("its first line is damaged.")
    return int(rest[1]), rest[2].decode()


def parse(text: bytes) -> dict[str, Any]:
    """Return the text as an object."""
    document = json.loads(text.decode(), object_pairs_hook=_without_repetition, parse_constant=_refuse_constant)
    if not isinstance(document, dict):
        raise ModelFileError("its text is not a JSON object.")
    return document


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ModelFileError("its text has two entries of the same name.")
    return entries


def _refuse_constant(name: str) -> None:
    raise ModelFileError(f"its text has a number that JSON does not know: {name}.")


def array_entries(document: Mapping[str, Any]) -> list[_Entry]:
    """Return what the text says of the arrays."""
    entries = [_array_entry(fields) for fields in _entry(document, "arrays", list)]
    if len({entry.name for entry in entries}) < len(entries):
        raise ModelFileError("it has two arrays of the same name.")
    return entries


def _array_entry(given: Any) -> _Entry:
    if not isinstance(given, dict):
        raise ModelFileError("an array has no description.")
    name, dtype, shape = _entry(given, "name", str), _entry(given, "dtype", str), _entry(given, "shape", list)
    column = name.removeprefix(contents.HISTORY)
    if name not in contents.AXES and not (name.startswith(contents.HISTORY) and column.isidentifier()):
        raise ModelFileError(f"it has an array of unknown name, {name[:80]!r}.")
    if dtype not in contents.DTYPES or (dtype == "bool") != (name in contents.OF_TRUTH):
        raise ModelFileError(f"{name} must not have the dtype {dtype[:80]!r}.")
    if len(shape) != len(_axes(name)) or not all(fits(size, int) and size > 0 for size in shape):
        raise ModelFileError(f"{name} must have the axes {_axes(name)}; its shape is {str(shape)[:80]}.")
    return _Entry(name, contents.DTYPES[dtype], tuple(shape), _entry(given, "sha256", str))


def _read_array(file: BufferedReader, entry: _Entry) -> Matrix:
    """Return the next array of a file that is known to be large enough."""
    flat = np.empty(prod(entry.shape), entry.dtype)
    if file.readinto(bytes_of(flat)) != entry.size or checksum(bytes_of(flat)) != entry.sha256:
        raise ModelFileError(f"it is damaged: {entry.name} does not have the checksum that it should.")
    if entry.dtype == bool and flat.view(np.uint8).max() > 1:
        raise ModelFileError(f"{entry.name} must hold 0 and 1 only.")
    return flat.reshape(entry.shape).astype(entry.dtype.newbyteorder("="), copy=False)


# --- From text and arrays to a model ----------------------------------------------------------------------------------


def restored(document: Mapping[str, Any], arrays: Mapping[str, Matrix]) -> Any:
    """Return the model, every part of it checked."""
    hints = {"attributes": {**contents.SCALARS, "parts_": methods.Parts}, "basis": contents.BASIS}
    attributes, scalars = (
        {name: _entry(_entry(document, group, dict), name, hint, _decoded) for name, hint in of_group.items()}
        for group, of_group in hints.items()
    )
    _check_shapes(arrays, attributes)
    _check_values(arrays, attributes, scalars)
    model = _unfitted(document)
    model.fixed_components = arrays.get("fixed_components")
    weighting = Weighting(scalars["loss"], scalars["scale"], arrays.get("cut"), scalars["rule"])
    W, code = basis_of(arrays["components_"], arrays.get("noise")), arrays["typical_code"]
    units = None if "units" not in arrays else arrays["units"].astype(W.dtype)  # version 0.1 always had doubles
    basis = Basis(W, code, weighting, scalars["penalties"], scalars["sweeps"], units=units)
    attributes["_basis"] = _with_noise(basis, document, arrays)
    attributes |= {"_stream": None, "_noise": arrays.get("noise"), "_samples": _sample_scaling(arrays)}
    attributes |= {"_unseen": arrays.get("unseen"), "rejected_values_": None}
    # In files of version 0.1, features are divided by nothing but uncertainties.
    given = _entry(document, "uncertainties", bool) if "uncertainties" in document else "noise" in arrays
    attributes["_with_uncertainties"] = given
    attributes["noise_"] = noise_in_units(attributes["_basis"], attributes["_unit"], arrays.get("noise"))
    attributes["comparison_"] = _comparison(document)
    attributes |= {name: array for name, array in arrays.items() if name.endswith("_")}
    if "outlier_places" in arrays:
        attributes["outliers_"] = _sparse_outliers(arrays["outlier_places"], attributes["n_features_in_"])
    columns = [name for name in arrays if name.startswith(contents.HISTORY)]
    attributes["history_"] = {name.removeprefix(contents.HISTORY): arrays[name] for name in columns}
    names = _entry(document, "feature_names_in_", list | None)
    if names is not None:
        if len(names) != attributes["n_features_in_"] or not all(isinstance(name, str) for name in names):
            raise ModelFileError(f"feature_names_in_ must be {attributes['n_features_in_']} texts.")
        attributes["feature_names_in_"] = np.array(names, dtype=object)
    attributes["input_"] = _input(document, names, attributes["n_features_in_"])
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def _input(document: Mapping[str, Any], names: list[str] | None, n_features: int) -> Input | None:
    """Return how the data was read, if the file says so: those of version 0.1 do not."""
    known = _entry(document, "input", dict | None) if "input" in document else None
    if known is None:
        return None
    given = {name: _decoded(value) for name, value in _entry(known, "options", dict).items()}
    hints = get_type_hints(ReadOptions)
    for name, value in given.items():
        if name not in hints or name in contents.OF_ONE_MACHINE or not _fits_option(value, hints[name]):
            raise ModelFileError(f"its options of reading have {name[:80]!r}. It may need a later robustnmf.")
    about = _entry(known, "features", dict)
    found = {name: _entry(about, name, hint, _decoded) for name, hint in contents.FEATURES.items()}
    grid, grid_names, units = found["grid"], found["grid_names"], found["units"]
    columns = _entry(known, "columns", dict)
    are_texts = all(_is_texts(column, n_features) for column in columns.values())
    is_grid = grid is None or (prod(grid) == n_features and min(grid, default=1) > 0)
    is_named = grid_names is None or (grid is not None and len(grid_names) == len(grid))
    if not (are_texts and is_grid and is_named and (units is None or len(units) == n_features)):
        raise ModelFileError(f"what it says of its features does not fit the {n_features} that it has.")
    return Input(ReadOptions(**given), Axis(names, found["title"], grid, grid_names, units, columns))


def _is_texts(column: Any, count: int) -> bool:
    return isinstance(column, list) and len(column) == count and all(isinstance(text, str) for text in column)


def _fits_option(value: Any, hint: Any) -> bool:
    """Return whether an option of reading has its type."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits_option(value, choice) for choice in choices)
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(_fits_option(item, choices[0]) for item in value)
    return fits(value, hint)


def _sparse_outliers(places: Matrix, n_features: int) -> Any:
    """Return outliers as a sparse matrix, of their shape, and of row and column of each."""
    shape, *_ = places.astype(np.int64)
    is_whole = places.shape[1] == 2 and np.array_equal(places, np.floor(places)) and shape[0] > 0
    if not is_whole or shape[1] != n_features or not ((places >= 0).all() and (places[1:] < shape).all()):
        raise ModelFileError("outlier_places must be rows and columns of the data.")
    rows, columns = places[1:].astype(np.int64).T
    return sparse.csr_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=tuple(shape.tolist()))


def _sample_scaling(arrays: Mapping[str, Matrix]) -> SampleScaling | None:
    """Return what samples are divided by, if the file says so: those of version 0.1 do not."""
    found = [arrays.get(f"sample_{name}") for name in SampleScaling._fields]
    known = [array for array in found if array is not None]
    if not known:
        return None
    if len(known) < len(found):
        raise ModelFileError("it lacks a part of what samples are divided by.")
    levels, means = known
    if not (0 < levels.min() <= levels.max() < inf and 0 <= means.min() <= means.max() < inf):
        raise ModelFileError("what samples are divided by is not positive, or not finite.")
    return SampleScaling(levels, means)


def _comparison(document: Mapping[str, Any]) -> Comparison | None:
    """Return how the fit compared with least squares, if the file says so: those of version 0.1 do not."""
    fields = _entry(document, "comparison", dict | None) if "comparison" in document else None
    if fields is None:
        return None
    names = (*MEASURED, *(name for name in ("unseen_damage",) if name in fields))  # files of version 0.1 lack it
    found = {name: _entry(fields, name, float, _decoded) for name in names}
    if any(not number >= 0 for number in found.values()):
        raise ModelFileError("its comparison with least squares has numbers that no fit can have found.")
    return Comparison(**found, takes_all=_entry(fields, "takes_all", bool))


def _with_noise(basis: Basis, document: Mapping[str, Any], arrays: Mapping[str, Matrix]) -> Basis:
    """Return the basis with the noise by which it judges entries, if the file has one: those of version 0.1 do not."""
    numbers = _entry(document, "noise", dict | None) if "noise" in document else None
    named = {name: arrays[f"noise_{name}"] for name in ARRAYS if f"noise_{name}" in arrays}
    judged = [name for name in ("judge_components", "judge_code") if name in arrays]
    if len(named) != (0 if numbers is None else len(ARRAYS)) or len(judged) == 1:
        raise ModelFileError("it lacks a part of its noise model.")
    if numbers is None:
        return basis
    numbers = {
        "of_counts": False,
        "softness": "inf",
        "level_prior": "inf",
        **numbers,
    }  # files of version 0.1 do not say
    found = {name: _entry(numbers, name, hint, _decoded) for name, hint in contents.NOISE_NUMBERS.items()}
    positive = all((named[name] > 0).all() for name in ("widths", "levels")) and found["threshold"] > 0
    if not (
        positive
        and all((array >= 0).all() for array in named.values())
        and 0 <= found["exponent"] <= 1
        and found["level_prior"] >= 0 < found["softness"]
    ):
        raise ModelFileError("its noise model has numbers that no fit can have found.")
    fields: dict[str, Any] = {**named, **found}
    noise = NoiseModel(**fields)
    if not judged:
        return replace(basis, noise=noise)
    W, code = arrays["judge_components"].T, arrays["judge_code"]
    if not all((array >= 0).all() and np.isfinite(array).all() for array in (W, code)):
        raise ModelFileError("its basis for judgements is negative, or not finite.")
    return replace(basis, noise=noise, judge=replace(basis, W=W, code=code, noise=noise, units=None))


def _unfitted(document: Mapping[str, Any]) -> Any:
    cls = contents.ESTIMATORS.get(_entry(document, "class", str))
    if cls is None:
        known = ", ".join(contents.ESTIMATORS)
        raise ModelFileError(f"its class must be one of {known}; it is {document['class'][:80]!r}.")
    given = _entry(document, "parameters", dict)
    unknown = set(given) - set(cls().get_params()) | {"callback", "fixed_components"} & set(given)
    if unknown:
        raise ModelFileError(f"{cls.__name__} has no parameters {sorted(unknown)} that could be stored.")
    model = cls(**{name: _decoded(value) for name, value in given.items()})
    # The only ones that a fitted model still uses; fit checks all.
    if not (fits(model.max_iter, int) and model.max_iter > 0 and fits(model.tol, float) and 0 <= model.tol < inf):
        raise ModelFileError("max_iter must be a positive integer and tol a finite, non-negative number.")
    output = _entry(document, "set_output", Literal["default", "pandas", "polars", None])
    return model if output is None else model.set_output(transform=output)


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    match list(value), list(value.values()):
        case ["tuple"], [list(items)]:
            return tuple(_decoded(item) for item in items)
        case ["number", "value"], [str(kind), bool() | int() | float() | str() as number] if kind in contents.NUMBERS:
            return contents.NUMBERS[kind](number)
        case ["function"], [str(name)] if name in contents.FUNCTIONS:
            return contents.FUNCTIONS[name]
        case ["part", "fields"], [str(name), dict(of_part)] if name in contents.PARTS:
            return _part(contents.PARTS[name], {field: _decoded(item) for field, item in of_part.items()})
    raise ModelFileError(f"it has an entry of unknown meaning, {str(value)[:80]}. It may need a later robustnmf.")


def _part(part: type, of_part: Mapping[str, Any]) -> Any:
    """Return a part with these fields; those that are not given have their default."""
    names, hints = {field_in_file(part, field): field for field in field_names(part)}, get_type_hints(part)
    for field, value in of_part.items():
        if field not in names or not fits(value, hints[names[field]]):
            raise ModelFileError(f"{part.__name__} does not take {field[:80]!r} = {repr(value)[:80]}.")
    return part(**{names[field]: value for field, value in of_part.items()})


def _entry(mapping: Mapping[str, Any], name: str, hint: Any, decode: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return an entry of the text, as it is or decoded, if it has the type."""
    value = decode(mapping.get(name))
    if name not in mapping or not fits(value, hint):
        raise ModelFileError(f"its text lacks the entry {name!r}, or has one of another type.")
    return value


def _axes(name: str) -> tuple[str, ...]:
    return ("n_iterations",) if name.startswith(contents.HISTORY) else contents.AXES[name]


def _check_shapes(arrays: Mapping[str, Matrix], attributes: Mapping[str, Any]) -> None:
    """Raise ModelFileError unless the arrays are complete and fit together."""
    missing = [name for name in contents.NEEDED if name not in arrays]
    if missing:
        raise ModelFileError(f"it lacks the arrays {', '.join(missing)}.")
    sizes = dict(attributes)
    for name, array in arrays.items():
        axes = _axes(name)
        # An axis that the attributes do not know gets its size from the first array that has it.
        if array.ndim != len(axes) or any(
            sizes.setdefault(axis, n) != n for axis, n in zip(axes, array.shape, strict=True)
        ):
            known = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes)
            raise ModelFileError(f"{name} must have the axes {axes}, with {known}; its shape is {array.shape}.")
    if sizes.get("n_cuts", 1) not in (1, sizes["n_features_in_"]):
        raise ModelFileError(f"cut must have one entry, or one per feature; it has {sizes['n_cuts']}.")


def _check_values(arrays: Mapping[str, Matrix], attributes: Mapping[str, Any], basis: Mapping[str, Any]) -> None:
    """Raise ModelFileError for numbers that no fit can have found."""
    numbers = {**attributes, **basis}
    # The smallest of numbers with NaN among them is NaN, which compares as False.
    wrong = [name for name in (*contents.NEEDED, "cut", "weights_") if name in arrays and not arrays[name].min() >= 0]
    finite = ("components_", "typical_code", "weights_")
    wrong += [name for name in finite if name in arrays and arrays[name].max() == inf]
    wrong += ["noise"] if "noise" in arrays and not (0 < arrays["noise"].min() <= arrays["noise"].max() < inf) else []
    nets = (basis["penalties"].codes, basis["penalties"].basis, (basis["penalties"].product,))
    numbers["penalties"] = min(weight for net in nets for weight in net)
    wrong += [name for name in ("scale_", "penalties", "n_iter_", "sweeps") if not (numbers[name] or 0) >= 0]
    wrong += [name for name in ("scale", "_unit") if not 0 < numbers[name] < inf]
    if wrong:
        raise ModelFileError(f"these are negative, or not finite, or not a number: {', '.join(wrong)}.")
