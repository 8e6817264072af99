"""A fitted model in a file: text, numbers and arrays, of which nothing is ever run.

A model file has three sections, one right after the other:

    a line      ``robustnmf-model FORMAT LENGTH SHA256``: number of the format, bytes and checksum of the text
    a text      JSON: class, parameters, attributes; name, dtype, shape and checksum of each array
    arrays      in the order of the text, row by row, little-endian

Every byte is covered by a checksum, and the size of the file is known from its text before memory is taken for an
array. Classes and parts are looked up in tables of this package, so a file can name nothing else; their fields, the
shapes and the values are checked. A file of a stranger is therefore safe to open, though it may hold a useless model:
checksums tell damage, not intent.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from io import BufferedReader
from math import inf, isfinite, prod
from numbers import Integral, Real
from pathlib import Path
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from robustnmf import (
    halfquadratic,
    initializers,
    losses,
    methods,
    outliers,
    penalties,
    scales,
    schedules,
    solvers,
    spatial,
)
from robustnmf.baselines import starts
from robustnmf.encoding import Basis, basis_of
from robustnmf.files import write_atomically
from robustnmf.outofcore import is_lazy_result
from robustnmf.weighting import Weighting

if TYPE_CHECKING:
    from robustnmf import RobustNMF

Matrix = NDArray[Any]

FORMAT = 1
"""Number of the format that is written; higher ones cannot be read."""
# Bytes of text that are parsed; a million features with long names stay below.
LONGEST_TEXT = 2**26

# --- What a file may hold ---------------------------------------------------------------------------------------------

DTYPES: Mapping[str, np.dtype[Any]] = {
    "bool": np.dtype(bool),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}

AXES: Mapping[str, tuple[str, ...]] = {
    "components_": ("n_components_", "n_features_in_"),
    "thresholds_": ("n_features_in_",),
    "typical_code": ("n_components_",),
    "cut": ("n_cuts",),
    "fixed_components": ("n_fixed", "n_features_in_"),
    "noise": ("n_features_in_",),
    "weights_": ("n_samples", "n_features_in_"),
    "outliers_": ("n_samples", "n_features_in_"),
    "sparse_errors_": ("n_samples", "n_features_in_"),
}
"""Arrays and their axes. "typical_code" and "cut" belong to the basis, names with HISTORY to a column of history_;
"fixed_components" is a parameter, and "noise" what the features are divided by."""
HISTORY = "history_."
NEEDED = ("components_", "thresholds_", "typical_code")
OF_TRAINING = ("weights_", "outliers_", "sparse_errors_")

SCALARS: Mapping[str, Any] = {
    "n_components_": int,
    "n_features_in_": int,
    "n_iter_": int,
    "n_samples_seen_": int,
    "converged_": bool,
    "scale_": float,
    "objective_": float,
    "reconstruction_err_": float,
    "_unit": float,
}
"""Attributes that are one value, and their types."""

BASIS: Mapping[str, Any] = {
    "loss": losses.Loss,
    "scale": float,
    "rule": outliers.OutlierRule | None,
    "penalties": penalties.Penalties,
    "sweeps": int | None,
}
"""What the basis has beside arrays."""

NEEDED_ATTRIBUTES = ("components_", "thresholds_", "history_", "parts_", "_basis")
# The last two are not stored: requests of scikit-learn's metadata routing, and the window of a stream.
OPTIONAL_ATTRIBUTES = (
    *OF_TRAINING,
    "feature_names_in_",
    "_sklearn_output_config",
    "_metadata_request",
    "_stream",
    "_noise",
)

NUMBERS: Mapping[str, Any] = {
    "float": float,
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits}").type for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{name: np.dtype(name).type for name in ("bool", "float16", "float32", "float64")},
}
"""Numbers that JSON has no way to write. The type counts: it decides in which precision a model computes."""

TYPES: Mapping[Any, Any] = {
    **{hint: hint for hint in (str, list, dict, NoneType)},
    int: Integral,
    float: Real,
    bool: bool | np.bool_,
}
"""What is accepted for these types in fields and attributes; True is no number."""


class ModelFileError(ValueError):
    """A model that a file cannot hold, or a file that does not hold a model."""


def _parts_of(*modules: ModuleType) -> dict[str, type]:
    """Return the parts that modules define, frozen dataclasses, by the name under which they are imported."""
    return {
        f"{module.__name__}.{name}": part
        for module in modules
        for name, part in vars(module).items()
        if isinstance(part, type)
        and is_dataclass(part)
        and part.__dataclass_params__.frozen  # type: ignore[attr-defined]
        and part.__module__.startswith(module.__name__)
        and not name.startswith("_")
    }


# The protocols look alike, so which parts suit where is known by where they are defined.
_SOLVERS = _parts_of(solvers)
KINDS: Mapping[Any, Mapping[str, type]] = {
    losses.Loss: _parts_of(losses),
    scales.ScaleRule: _parts_of(scales),
    outliers.OutlierRule: _parts_of(outliers, spatial),
    initializers.Initializer: _parts_of(initializers, starts),
    solvers.Solver: _SOLVERS,
    solvers.LossSolver: _SOLVERS,
    halfquadratic.Algorithm: _parts_of(schedules),
    schedules.Opening: {"robustnmf.schedules.Opening": schedules.Opening},
    penalties.Penalties: {"robustnmf.penalties.Penalties": penalties.Penalties},
    penalties.ElasticNet: {"robustnmf.penalties.ElasticNet": penalties.ElasticNet},
    methods.Parts: {"robustnmf.methods.Parts": methods.Parts},
}
"""The parts that are accepted where a field or attribute has this type, by name."""
PARTS: Mapping[str, type] = {name: part for parts in KINDS.values() for name, part in parts.items()}
FUNCTIONS: Mapping[str, Any] = {
    f"robustnmf.halfquadratic.{function.__name__}": function
    for function in (halfquadratic.run, halfquadratic.take_start)
}


# --- Save and load ----------------------------------------------------------------------------------------------------


def save(model: "RobustNMF", path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model to a file.

    The file is there in full or not at all: whatever happens meanwhile, an older one stays as it was until the new one
    takes its place.

    Parameters
    ----------
    model : RobustNMF or TruncatedCauchyNMF
        A fitted model.
    path : str or path-like
        The file, such as "faces.robustnmf"; ``~`` stands for the home folder.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    ModelFileError
        If the model has something that a file cannot hold, such as a part of the user's own; nothing is written.
    FileExistsError
        If there is such a file and it may not be replaced.

    Notes
    -----
    What is not stored: `callback`, and a `random_state` that is a generator, are None in the loaded model, since the
    former is code and the latter has moved on during the fit; `checkpoint`, and an `engine` that is an object, belong
    to one machine; results that are computed when asked for, to data that is not in the file; requests for metadata
    routing; and the samples that `partial_fit` remembers, so that a loaded model begins a new stream from its
    components.

    The largest attributes describe the training data and are not needed to encode new samples. For a smaller file
    delete them first: ``del model.weights_, model.outliers_``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from robustnmf import RobustNMF
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((30, 2)) @ rng.random((2, 20))
    >>> model = RobustNMF(n_components=2, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/two.robustnmf")
    ...     same = load(f"{folder}/two.robustnmf")
    >>> np.array_equal(same.transform(X), model.transform(X))
    True
    """
    if type(model) not in _classes().values():
        raise TypeError(f"model must be a {' or a '.join(_classes())}; got {_type_name(model)}.")
    check_is_fitted(model, msg="This %(name)s is not fitted, so there is nothing to save: call fit first.")
    path = Path(path).expanduser()
    _check_target(path, overwrite)
    try:
        text, arrays = _written(model)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"This {type(model).__name__} cannot be saved: {error}") from error
    try:
        with write_atomically(path) as temporary, temporary.open("wb") as file:
            file.write(f"robustnmf-model {FORMAT} {len(text)} {_checksum(text)}\n".encode())
            file.write(text)
            for array in arrays.values():
                file.write(_bytes_of(array))
    except PermissionError as error:
        raise PermissionError(f"Writing {path} is not permitted. Choose another folder.") from error


def load(path: str | os.PathLike[str]) -> "RobustNMF":
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


def _classes() -> dict[str, type["RobustNMF"]]:
    """Return the estimators by name; they come late because they may import this module themselves."""
    import robustnmf

    return {cls.__name__: cls for cls in (robustnmf.RobustNMF, robustnmf.TruncatedCauchyNMF)}


def _version() -> str:
    import robustnmf

    return robustnmf.__version__


def _check_target(path: Path, overwrite: bool) -> None:
    """Raise OSError unless a file may be written there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} to write {path.name} to. Make it first.")
    if path.is_dir():
        raise IsADirectoryError(f"path must name a file; {path} is a folder.")
    if os.path.lexists(path) and not overwrite:
        raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it, or choose another name.")


# --- From a model to text and arrays ----------------------------------------------------------------------------------


def _written(model: "RobustNMF") -> tuple[bytes, dict[str, Matrix]]:
    """Return text and arrays of a model, after a check that they can be read."""
    document, arrays = _document_of(model), _arrays_of(model)
    document["arrays"] = [
        {"name": name, "dtype": array.dtype.name, "shape": array.shape, "sha256": _checksum(_bytes_of(array))}
        for name, array in arrays.items()
    ]
    text = json.dumps(document, allow_nan=False).encode() + b"\n"
    if len(text) > LONGEST_TEXT:
        raise ModelFileError(f"its text takes {len(text)} bytes of at most {LONGEST_TEXT}. Use shorter feature names.")
    # What cannot be read must not be written.
    document = _parse(text)
    _array_entries(document)
    _restored(document, arrays)
    return text, arrays


def _document_of(model: "RobustNMF") -> dict[str, Any]:
    """Return all of a model but its arrays, in a form that JSON can hold."""
    parameters = model.get_params(deep=False)
    attributes = vars(model)
    _check_attributes(set(attributes) - set(parameters))
    del parameters["callback"], parameters["fixed_components"]  # the latter is an array
    if isinstance(parameters["random_state"], np.random.Generator | np.random.RandomState):
        parameters["random_state"] = None
    parameters["checkpoint"] = None
    if not isinstance(parameters["engine"], str):
        parameters["engine"] = "auto"
    weighting = model._basis.weighting
    basis = {"loss": weighting.loss, "scale": weighting.scale, "rule": weighting.rule}
    basis |= {"penalties": model._basis.penalties, "sweeps": model._basis.sweeps}
    names = attributes.get("feature_names_in_")
    return {
        "robustnmf": _version(),
        "class": type(model).__name__,
        "parameters": {name: _encoded(value, f"the parameter {name}") for name, value in parameters.items()},
        "attributes": {name: _encoded(getattr(model, name), name) for name in (*SCALARS, "parts_")},
        "basis": {name: _encoded(value, name) for name, value in basis.items()},
        "feature_names_in_": None if names is None else [str(name) for name in names],
        "set_output": attributes.get("_sklearn_output_config", {}).get("transform"),
    }


def _check_attributes(present: set[str]) -> None:
    """Raise ModelFileError if a fit has left something else than a file holds: nothing may get lost in silence."""
    missing = {*SCALARS, *NEEDED_ATTRIBUTES} - present
    if missing:
        raise ModelFileError(f"the attributes {sorted(missing)} are missing. Fit again.")
    unknown = present - {*SCALARS, *NEEDED_ATTRIBUTES, *OPTIONAL_ATTRIBUTES}
    if unknown:
        raise ModelFileError(f"a model file has no place for the attributes {sorted(unknown)}. Delete them first.")


def _arrays_of(model: "RobustNMF") -> dict[str, Matrix]:
    """Return the arrays of a model by the names they have in a file."""
    basis = model._basis
    if not np.array_equal(basis.W, basis_of(model.components_, model._noise)):
        raise ModelFileError("components_ was changed after the fit and is not what transform uses. Fit again.")
    arrays = {"components_": model.components_, "thresholds_": model.thresholds_, "typical_code": basis.code}
    if basis.weighting.cut is not None:
        arrays["cut"] = basis.weighting.cut
    of_training = {name: getattr(model, name) for name in OF_TRAINING if hasattr(model, name)}
    # Results that are computed when asked for belong to data that the file does not hold.
    arrays |= {name: value for name, value in of_training.items() if not is_lazy_result(value)}
    if model._noise is not None:
        arrays["noise"] = model._noise
    if model.fixed_components is not None:
        arrays["fixed_components"] = np.asarray(model.fixed_components, dtype=np.float64)
    arrays |= {f"{HISTORY}{name}": column for name, column in model.history_.items()}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
            raise ModelFileError(f"{name} must be an array of {' or '.join(DTYPES)}.")
    return {name: np.ascontiguousarray(array, DTYPES[array.dtype.name]) for name, array in arrays.items()}


def _encoded(value: Any, what: str) -> Any:
    """Return a value in a form that JSON can hold; `what` it is, for the error if there is none."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic) and value.dtype.name in NUMBERS:
        return {"number": value.dtype.name, "value": _finite_or_text(value.item())}
    if isinstance(value, float):
        return value if isfinite(value) else {"number": "float", "value": _finite_or_text(value)}
    if value is None or isinstance(value, int):
        return value
    if type(value) in (list, tuple):
        items = [_encoded(item, what) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    for name, part in PARTS.items():
        if type(value) is part:
            of_part = {field: _encoded(getattr(value, field), f"{what}.{field}") for field in _field_names(part)}
            return {"part": name, "fields": of_part}
    for name, function in FUNCTIONS.items():
        if value is function:
            return {"function": name}
    raise ModelFileError(
        f"a model file holds text, numbers and parts of robustnmf; {what} is of the type {_type_name(value)}. Fit with "
        "one of those, or use joblib.dump, whose files can hold, and run, any code."
    )


def _finite_or_text(number: Any) -> Any:
    return repr(number) if isinstance(number, float) and not isfinite(number) else number


def _field_names(part: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass or named tuple."""
    return tuple(field.name for field in fields(part)) if is_dataclass(part) else tuple(part._fields)


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


def _read(file: BufferedReader) -> "RobustNMF":
    """Return the model of an open file; its errors say what is wrong with the file, and not which it is."""
    length, checksum = _read_head(file)
    size = os.fstat(file.fileno()).st_size
    if length > min(LONGEST_TEXT, size):
        raise ModelFileError(f"its text should have {length} bytes; the file has {size}, and {LONGEST_TEXT} are read.")
    text = file.read(length)
    if _checksum(text) != checksum:
        raise ModelFileError("it is damaged: its text does not have the checksum that it should.")
    document = _parse(text)
    entries = _array_entries(document)
    expected = file.tell() + sum(entry.size for entry in entries)
    if size != expected:
        raise ModelFileError(f"it should have {expected} bytes and has {size}: it is incomplete, or has been changed.")
    return _restored(document, {entry.name: _read_array(file, entry) for entry in entries})


def _read_head(file: BufferedReader) -> tuple[int, str]:
    """Return length and checksum of the text."""
    line = file.readline(128)
    head = re.match(rb"robustnmf-model ([1-9][0-9]{0,8})[ \n]", line)
    if head is None:
        raise ModelFileError("it does not begin like one. Model files are written by robustnmf.")
    if int(head[1]) > FORMAT:
        raise ModelFileError(
            f"it has format {int(head[1])}, and robustnmf {_version()} reads formats up to {FORMAT}. Install a later "
            "robustnmf."
        )
    rest = re.fullmatch(rb"([0-9]{1,10}) ([0-9a-f]{64})\n", line[head.end() :])
    if rest is None:
        raise ModelFileError("its first line is damaged.")
    return int(rest[1]), rest[2].decode()


def _parse(text: bytes) -> dict[str, Any]:
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


def _array_entries(document: Mapping[str, Any]) -> list[_Entry]:
    """Return what the text says of the arrays."""
    entries = [_array_entry(fields) for fields in _entry(document, "arrays", list)]
    if len({entry.name for entry in entries}) < len(entries):
        raise ModelFileError("it has two arrays of the same name.")
    return entries


def _array_entry(given: Any) -> _Entry:
    if not isinstance(given, dict):
        raise ModelFileError("an array has no description.")
    name, dtype, shape = _entry(given, "name", str), _entry(given, "dtype", str), _entry(given, "shape", list)
    column = name.removeprefix(HISTORY)
    if name not in AXES and not (name.startswith(HISTORY) and column.isidentifier()):
        raise ModelFileError(f"it has an array of unknown name, {name[:80]!r}.")
    if dtype not in DTYPES or (dtype == "bool") != (name == "outliers_"):
        raise ModelFileError(f"{name} must not have the dtype {dtype[:80]!r}.")
    if len(shape) != len(_axes(name)) or not all(_fits(size, int) and size > 0 for size in shape):
        raise ModelFileError(f"{name} must have the axes {_axes(name)}; its shape is {str(shape)[:80]}.")
    return _Entry(name, DTYPES[dtype], tuple(shape), _entry(given, "sha256", str))


def _read_array(file: BufferedReader, entry: _Entry) -> Matrix:
    """Return the next array of a file that is known to be large enough."""
    flat = np.empty(prod(entry.shape), entry.dtype)
    if file.readinto(_bytes_of(flat)) != entry.size or _checksum(_bytes_of(flat)) != entry.sha256:
        raise ModelFileError(f"it is damaged: {entry.name} does not have the checksum that it should.")
    if entry.dtype == bool and flat.view(np.uint8).max() > 1:
        raise ModelFileError(f"{entry.name} must hold 0 and 1 only.")
    return flat.reshape(entry.shape).astype(entry.dtype.newbyteorder("="), copy=False)


def _bytes_of(array: Matrix) -> memoryview:
    """Return the memory of a contiguous array, which can be written to."""
    return array.reshape(-1).view(np.uint8).data


def _checksum(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


# --- From text and arrays to a model ----------------------------------------------------------------------------------


def _restored(document: Mapping[str, Any], arrays: Mapping[str, Matrix]) -> "RobustNMF":
    """Return the model, every part of it checked."""
    attributes = {name: _value(_entry(document, "attributes", dict), name, hint) for name, hint in SCALARS.items()}
    attributes["parts_"] = _value(document["attributes"], "parts_", methods.Parts)
    scalars = {name: _value(_entry(document, "basis", dict), name, hint) for name, hint in BASIS.items()}
    _check_shapes(arrays, attributes)
    _check_values(arrays, attributes, scalars)
    model = _unfitted(document)
    model.fixed_components = arrays.get("fixed_components")
    weighting = Weighting(scalars["loss"], scalars["scale"], arrays.get("cut"), scalars["rule"])
    W, code = basis_of(arrays["components_"], arrays.get("noise")), arrays["typical_code"]
    attributes["_basis"] = Basis(W, code, weighting, scalars["penalties"], scalars["sweeps"])
    attributes |= {"_stream": None, "_noise": arrays.get("noise")}
    attributes |= {name: array for name, array in arrays.items() if name.endswith("_")}
    columns = [name for name in arrays if name.startswith(HISTORY)]
    attributes["history_"] = {name.removeprefix(HISTORY): arrays[name] for name in columns}
    names = _entry(document, "feature_names_in_", list | None)
    if names is not None:
        attributes["feature_names_in_"] = _feature_names(names, attributes["n_features_in_"])
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def _unfitted(document: Mapping[str, Any]) -> "RobustNMF":
    """Return an estimator with the parameters of the model."""
    cls = _classes().get(_entry(document, "class", str))
    if cls is None:
        raise ModelFileError(f"its class must be one of {', '.join(_classes())}; it is {document['class'][:80]!r}.")
    given = _entry(document, "parameters", dict)
    unknown = set(given) - set(cls().get_params()) | {"callback", "fixed_components"} & set(given)
    if unknown:
        raise ModelFileError(f"{cls.__name__} has no parameters {sorted(unknown)} that could be stored.")
    model = cls(**{name: _decoded(value) for name, value in given.items()})
    # The only ones that a fitted model still uses; fit checks all.
    if not (_fits(model.max_iter, int) and model.max_iter > 0 and _fits(model.tol, float) and 0 <= model.tol < inf):
        raise ModelFileError("max_iter must be a positive integer and tol a finite, non-negative number.")
    output = _entry(document, "set_output", Literal["default", "pandas", "polars", None])
    return model if output is None else model.set_output(transform=output)


def _decoded(value: Any) -> Any:
    """Return what `_encoded` was given."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    match list(value), list(value.values()):
        case ["tuple"], [list(items)]:
            return tuple(_decoded(item) for item in items)
        case ["number", "value"], [str(kind), bool() | int() | float() | str() as number] if kind in NUMBERS:
            return NUMBERS[kind](number)
        case ["function"], [str(name)] if name in FUNCTIONS:
            return FUNCTIONS[name]
        case ["part", "fields"], [str(name), dict(of_part)] if name in PARTS:
            return _part(PARTS[name], {field: _decoded(item) for field, item in of_part.items()})
    raise ModelFileError(f"it has an entry of unknown meaning, {str(value)[:80]}. It may need a later robustnmf.")


def _part(part: type, of_part: Mapping[str, Any]) -> Any:
    """Return a part with these fields; those that are not given have their default."""
    names, hints = _field_names(part), get_type_hints(part)
    for field, value in of_part.items():
        if field not in names or not _fits(value, hints[field]):
            raise ModelFileError(f"{part.__name__} does not take {field[:80]!r} = {repr(value)[:80]}.")
    return part(**of_part)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has a type, as far as types occur in parts and files."""
    if hint in KINDS:
        is_function = hint == halfquadratic.Algorithm and isinstance(value, FunctionType)
        return value in FUNCTIONS.values() if is_function else type(value) in KINDS[hint].values()
    if hint in TYPES:
        return isinstance(value, TYPES[hint]) and (hint is bool or not isinstance(value, bool))
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str | None) and value in choices
    if origin in (Union, UnionType):
        return any(_fits(value, choice) for choice in choices)
    if origin is tuple and isinstance(value, tuple):
        kinds = choices[:1] * len(value) if choices[-1] is Ellipsis else choices
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    return False


def _entry(mapping: Mapping[str, Any], name: str, hint: Any) -> Any:
    """Return an entry of the text as it is."""
    if name not in mapping or not _fits(mapping[name], hint):
        raise ModelFileError(f"its text lacks the entry {name!r}, or has one of another type.")
    return mapping[name]


def _value(mapping: Mapping[str, Any], name: str, hint: Any) -> Any:
    """Return the value that an entry of the text stands for."""
    value = _decoded(mapping.get(name))
    if name not in mapping or not _fits(value, hint):
        raise ModelFileError(f"its text lacks the entry {name!r}, or has one of another type.")
    return value


def _feature_names(names: list[Any], n_features: int) -> Matrix:
    if len(names) != n_features or not all(isinstance(name, str) for name in names):
        raise ModelFileError(f"feature_names_in_ must be {n_features} texts.")
    return np.array(names, dtype=object)


def _axes(name: str) -> tuple[str, ...]:
    return ("n_iterations",) if name.startswith(HISTORY) else AXES[name]


def _check_shapes(arrays: Mapping[str, Matrix], attributes: Mapping[str, Any]) -> None:
    """Raise ModelFileError unless the arrays are complete and fit together."""
    missing = [name for name in NEEDED if name not in arrays]
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
    wrong = [name for name in (*NEEDED, "cut", "weights_") if name in arrays and not arrays[name].min() >= 0]
    finite = ("components_", "typical_code", "weights_")
    wrong += [name for name in finite if name in arrays and arrays[name].max() == inf]
    wrong += ["noise"] if "noise" in arrays and not (0 < arrays["noise"].min() <= arrays["noise"].max() < inf) else []
    nets = (basis["penalties"].codes, basis["penalties"].basis, (basis["penalties"].product,))
    numbers["penalties"] = min(weight for net in nets for weight in net)
    wrong += [name for name in ("scale_", "penalties", "n_iter_", "sweeps") if not (numbers[name] or 0) >= 0]
    wrong += [name for name in ("scale", "_unit") if not 0 < numbers[name] < inf]
    if wrong:
        raise ModelFileError(f"these are negative, or not finite, or not a number: {', '.join(wrong)}.")


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
