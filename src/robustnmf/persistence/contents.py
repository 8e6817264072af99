"""What a model file may hold: names, types and parts; everything else is refused, by who writes and by who reads."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from types import FunctionType, ModuleType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from robustnmf import methods, solvers
from robustnmf.algorithm import halfquadratic, initializers, staged
from robustnmf.baselines import starts
from robustnmf.model import losses, noise, outliers, penalties, scales, spatial

Matrix = NDArray[Any]
C = TypeVar("C", bound=type)

MAGIC = b"robustnmf-model"
"""What a model file begins with."""
FORMAT = 1
"""Number of the format that is written; higher ones cannot be read."""
# Bytes of text that are parsed; a million features with long names stay below.
LONGEST_TEXT = 2**26

DTYPES: Mapping[str, np.dtype[Any]] = {
    "bool": np.dtype(bool),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}

NOISE_NUMBERS: Mapping[str, Any] = {
    "exponent": float,
    "threshold": float,
    "lenient": bool,
    "weights_entries": bool,
    "of_counts": bool,
    "softness": float,
    "level_prior": float,
}
"""What a noise model has beside its arrays."""

OF_ONE_MACHINE = ("max_bytes",)
"""Options of reading that are not stored: how much memory there is does not concern the data."""

FEATURES: Mapping[str, Any] = {
    "title": str | None,
    "grid": tuple[int, ...] | None,
    "grid_names": tuple[str, ...] | None,
    "units": tuple[str, ...] | None,
}
"""What is stored of the features beside their names and columns of text."""

AXES: Mapping[str, tuple[str, ...]] = {
    "components_": ("n_components_", "n_features_in_"),
    "thresholds_": ("n_features_in_",),
    "typical_code": ("n_components_",),
    "cut": ("n_cuts",),
    "fixed_components": ("n_fixed", "n_features_in_"),
    "noise": ("n_features_in_",),
    "units": ("n_features_in_",),
    "unseen": ("n_features_in_",),
    "rejected_values_": ("n_values", "n_features_in_"),
    "sample_levels": ("n_features_in_",),
    "sample_means": ("n_features_in_",),
    "judge_components": ("n_components_", "n_features_in_"),
    "judge_code": ("n_components_",),
    **{f"noise_{name}": ("n_features_in_",) for name in noise.ARRAYS},
    "weights_": ("n_samples", "n_features_in_"),
    "outliers_": ("n_samples", "n_features_in_"),
    "outlier_places": ("n_places", "n_coordinates"),
    "sparse_errors_": ("n_samples", "n_features_in_"),
}
"""Arrays and their axes. "typical_code" and "cut" belong to the basis, names with HISTORY to a column of history_;
"fixed_components" is a parameter, "noise" what the features are divided by, and "units" what they are multiplied by in
least squares. "unseen" features had no observed entry in the fit. Names with "sample_" say what samples are divided by.
"outlier_places" are the shape of sparse outliers, and row and column of each. Names with "noise_" belong to the noise
model, with "judge_" to the basis in which entries are judged."""
HISTORY = "history_."
NEEDED = ("components_", "thresholds_", "typical_code")
OF_TRUTH = ("outliers_", "unseen")
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
    "_samples",
    "_with_uncertainties",
    "_unseen",
    "rejected_values_",
    "noise_",
    "comparison_",
    "input_",
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


# Names in files are those of format 1 and stay, wherever the modules are.
NAMES: Mapping[ModuleType, str] = {
    losses: "robustnmf.losses",
    scales: "robustnmf.scales",
    outliers: "robustnmf.outliers",
    spatial: "robustnmf.spatial",
    initializers: "robustnmf.initializers",
    starts: "robustnmf.baselines.starts",
    solvers: "robustnmf.solvers",
    staged: "robustnmf.schedules",
    penalties: "robustnmf.penalties",
    noise: "robustnmf.model.noise",
    methods: "robustnmf.methods",
}


def _parts_of(*modules: ModuleType) -> dict[str, type]:
    """Return the parts that modules define, frozen dataclasses, by their names in files."""
    return {
        f"{NAMES[module]}.{name}": part
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
    halfquadratic.Algorithm: _parts_of(staged),
    staged.InitialStage: {"robustnmf.schedules.Opening": staged.InitialStage},
    noise.Noise: {"robustnmf.model.noise.Noise": noise.Noise},
    penalties.Penalties: {"robustnmf.penalties.Penalties": penalties.Penalties},
    penalties.ElasticNet: {"robustnmf.penalties.ElasticNet": penalties.ElasticNet},
    methods.Parts: {"robustnmf.methods.Parts": methods.Parts},
}
"""The parts that are accepted where a field or attribute has this type, by name."""
PARTS: Mapping[str, type] = {name: part for parts in KINDS.values() for name, part in parts.items()}
FUNCTIONS: Mapping[str, Any] = {
    f"robustnmf.halfquadratic.{function.__name__}": function
    for function in (halfquadratic.run, halfquadratic.run_as_published, halfquadratic.take_start)
}

FIELDS: Mapping[type, Mapping[str, str]] = {
    staged.Staged: {"initial_stages": "openings", "initial_iter": "opening_iter"},
    staged.InitialStage: {"threshold": "cut"},
}
"""Fields that have another name in files, that of format 1."""


def field_in_file(part: Any, field: str) -> str:
    """Return the name that a field of a part has in files."""
    return FIELDS.get(part, {}).get(field, field)


ESTIMATORS: dict[str, type] = {}
"""Estimators that can be stored, by name."""


def storable(estimator: C) -> C:
    """Register an estimator whose models can be stored; a decorator of its class."""
    ESTIMATORS[estimator.__name__] = estimator
    return estimator


def fits(value: Any, hint: Any) -> bool:
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
        return any(fits(value, choice) for choice in choices)
    if origin is tuple and isinstance(value, tuple):
        kinds = choices[:1] * len(value) if choices[-1] is Ellipsis else choices
        return len(value) == len(kinds) and all(map(fits, value, kinds))
    return False


def field_names(part: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass or named tuple."""
    return tuple(field.name for field in fields(part)) if is_dataclass(part) else tuple(part._fields)


def bytes_of(array: Matrix) -> memoryview:
    """Return the memory of a contiguous array, which can be written to."""
    return array.reshape(-1).view(np.uint8).data


def checksum(content: bytes | memoryview) -> str:
    """Return what tells damaged content from whole."""
    return hashlib.sha256(content).hexdigest()


def type_name(value: Any) -> str:
    """Return the type of a value as an error names it."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
