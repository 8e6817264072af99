"""From a fitted model to a file."""

import json
import os
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from robustnmf.algorithm.encoding import Basis, basis_of
from robustnmf.data.lazy_results import is_lazy_result
from robustnmf.data.sparse import is_sparse
from robustnmf.formats.labelled_matrix import Input
from robustnmf.formats.options import ReadOptions
from robustnmf.model.noise import ARRAYS, NoiseModel
from robustnmf.persistence import contents
from robustnmf.persistence.contents import ModelFileError, bytes_of, checksum, field_in_file, field_names, type_name
from robustnmf.persistence.reading import array_entries, parse, restored
from robustnmf.utils.arrays import device_name
from robustnmf.utils.files import write_proven
from robustnmf.version import __version__

Matrix = NDArray[Any]


def save(model: Any, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
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
        Whether an earlier model of that name may be replaced. Any other file never is.

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
    leave them out: ``model.compact().save(path)``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from robustnmf import RobustNMF, load
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((30, 2)) @ rng.random((2, 20))
    >>> model = RobustNMF(n_components=2, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/two.robustnmf")
    ...     same = load(f"{folder}/two.robustnmf")
    >>> np.array_equal(same.transform(X), model.transform(X))
    True
    """
    if type(model) not in contents.ESTIMATORS.values():
        raise TypeError(f"model must be a {' or a '.join(contents.ESTIMATORS)}; got {type_name(model)}.")
    check_is_fitted(model, msg="This %(name)s is not fitted, so there is nothing to save: call fit first.")
    path = Path(path).expanduser()
    _check_target(path, overwrite)
    try:
        text, arrays = _written(model)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"This {type(model).__name__} cannot be saved: {error}") from error
    try:
        with write_proven(path, is_model, replace=overwrite) as temporary, temporary.open("wb") as file:
            file.write(contents.MAGIC + f" {contents.FORMAT} {len(text)} {checksum(text)}\n".encode())
            file.write(text)
            for array in arrays.values():
                file.write(bytes_of(array))
    except PermissionError as error:
        raise PermissionError(f"Writing {path} is not permitted. Choose another folder.") from error


def _check_target(path: Path, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {path.parent} to write {path.name} to. Make it first.")
    if path.is_dir():
        raise IsADirectoryError(f"path must name a file; {path} is a folder.")
    if os.path.lexists(path) and not overwrite:
        raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it, or choose another name.")


def is_model(path: Path) -> bool:
    """Return whether a file is a model as this package wrote it, by its checksums."""
    from robustnmf.persistence.reading import load

    with path.open("rb") as file:
        if file.read(len(contents.MAGIC)) != contents.MAGIC:
            return False
    try:
        load(path)
    except (ValueError, TypeError, ImportError):
        return False
    return True


def _written(model: Any) -> tuple[bytes, dict[str, Matrix]]:
    """Return text and arrays of a model, after a check that they can be read."""
    document, arrays = _document_of(model), _arrays_of(model)
    document["arrays"] = [
        {"name": name, "dtype": array.dtype.name, "shape": array.shape, "sha256": checksum(bytes_of(array))}
        for name, array in arrays.items()
    ]
    text = json.dumps(document, allow_nan=False).encode() + b"\n"
    if len(text) > contents.LONGEST_TEXT:
        size = f"{len(text)} bytes of at most {contents.LONGEST_TEXT}"
        raise ModelFileError(f"its text takes {size}. Use shorter feature names.")
    # What cannot be read must not be written.
    written, document = document, parse(text)
    for part in ("feature_names_in_", "input"):
        if document[part] != written[part]:  # two halves of a surrogate pair, each a letter to Python, are one there
            raise ModelFileError("names of features must be text that JSON can hold; one has surrogates. Rename it.")
    array_entries(document)
    restored(document, arrays)
    return text, arrays


def _document_of(model: Any) -> dict[str, Any]:
    """Return all of a model but its arrays, in a form that JSON can hold."""
    parameters = model.get_params(deep=False)
    attributes = vars(model)
    _check_attributes(set(attributes) - set(parameters))
    del parameters["callback"], parameters["fixed_components"]  # the latter is an array
    if isinstance(parameters["random_state"], np.random.Generator | np.random.RandomState):
        parameters["random_state"] = None
    parameters["checkpoint"] = None
    parameters["device"] = device_name(parameters["device"])
    if not isinstance(parameters["engine"], str):
        parameters["engine"] = "auto"
    weighting = model._basis.weighting
    basis = {"loss": weighting.loss, "scale": weighting.scale, "rule": weighting.rule}
    basis |= {"penalties": model._basis.penalties, "sweeps": model._basis.sweeps}
    model_of_noise = _noise_of(model._basis)
    names = attributes.get("feature_names_in_")
    return {
        "robustnmf": __version__,
        "class": type(model).__name__,
        "parameters": {name: _encoded(value, f"the parameter {name}") for name, value in parameters.items()},
        "attributes": {name: _encoded(getattr(model, name), name) for name in (*contents.SCALARS, "parts_")},
        "basis": {name: _encoded(value, name) for name, value in basis.items()},
        "noise": None
        if model_of_noise is None
        else {name: _encoded(getattr(model_of_noise, name), name) for name in contents.NOISE_NUMBERS},
        "comparison": None
        if model.comparison_ is None
        else {name: _encoded(value, name) for name, value in model.comparison_._asdict().items()},
        "uncertainties": bool(model._with_uncertainties),
        "input": _input_of(attributes.get("input_")),
        "feature_names_in_": None if names is None else [str(name) for name in names],
        "set_output": attributes.get("_sklearn_output_config", {}).get("transform"),
    }


def _input_of(known: Input | None) -> dict[str, Any] | None:
    """Return how data was read, and what is known of its features; their names are stored anyway."""
    if known is None:
        return None
    options = {name: getattr(known.options, name) for name in field_names(ReadOptions)}
    of_features = {name: getattr(known.features, name) for name in contents.FEATURES}
    of_features = {name: tuple(value) if isinstance(value, list) else value for name, value in of_features.items()}
    return {
        "options": {
            name: _encoded(value, f"the option {name}")
            for name, value in options.items()
            if name not in contents.OF_ONE_MACHINE
        },
        "features": {name: _encoded(value, name) for name, value in of_features.items()},
        "columns": {str(title): list(map(str, column)) for title, column in known.features.columns.items()},
    }


def _noise_of(basis: Basis) -> NoiseModel | None:
    """Return the noise by which entries are judged."""
    return basis.noise if basis.judge is None else basis.judge.noise


def _check_attributes(present: set[str]) -> None:
    """Raise ModelFileError if a fit has left something else than a file holds: nothing may get lost in silence."""
    missing = {*contents.SCALARS, *contents.NEEDED_ATTRIBUTES} - present
    if missing:
        raise ModelFileError(f"the attributes {sorted(missing)} are missing. Fit again.")
    unknown = present - {*contents.SCALARS, *contents.NEEDED_ATTRIBUTES, *contents.OPTIONAL_ATTRIBUTES}
    if unknown:
        raise ModelFileError(f"a model file has no place for the attributes {sorted(unknown)}. Delete them first.")


def _arrays_of(model: Any) -> dict[str, Matrix]:
    """Return the arrays of a model by the names they have in a file."""
    basis = model._basis
    if not np.array_equal(basis.W, basis_of(model.components_, model._noise)):
        raise ModelFileError("components_ was changed after the fit and is not what transform uses. Fit again.")
    arrays = {"components_": model.components_, "thresholds_": model.thresholds_, "typical_code": basis.code}
    if basis.weighting.threshold is not None:
        arrays["cut"] = basis.weighting.threshold
    of_training = {name: getattr(model, name) for name in contents.OF_TRAINING if hasattr(model, name)}
    # Results that are computed when asked for belong to data that the file does not hold.
    arrays |= {name: value for name, value in of_training.items() if not is_lazy_result(value)}
    if is_sparse(arrays.get("outliers_")):
        outliers = arrays.pop("outliers_").tocoo()
        arrays["outlier_places"] = np.vstack([outliers.shape, np.column_stack(outliers.coords)]).astype(np.float64)
    if model._noise is not None:
        arrays["noise"] = model._noise
    if model._samples is not None:
        arrays |= {f"sample_{name}": array for name, array in model._samples._asdict().items()}
    noise = _noise_of(basis)
    if noise is not None:
        arrays |= {f"noise_{name}": getattr(noise, name) for name in ARRAYS}
    if basis.units is not None:
        arrays["units"] = basis.units
    if model._unseen is not None:
        arrays["unseen"] = model._unseen
    if model.rejected_values_ is not None:
        arrays["rejected_values_"] = model.rejected_values_
    if basis.judge is not None:
        arrays |= {"judge_components": basis.judge.W.T, "judge_code": basis.judge.code}
    if model.fixed_components is not None:
        arrays["fixed_components"] = np.asarray(model.fixed_components, dtype=np.float64)
    arrays |= {f"{contents.HISTORY}{name}": column for name, column in model.history_.items()}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.name not in contents.DTYPES:
            raise ModelFileError(f"{name} must be an array of {' or '.join(contents.DTYPES)}.")
    return {name: np.ascontiguousarray(array, contents.DTYPES[array.dtype.name]) for name, array in arrays.items()}


def _encoded(value: Any, what: str) -> Any:
    """Return a value in a form that JSON can hold; `what` it is, for the error if there is none."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic) and value.dtype.name in contents.NUMBERS:
        return {"number": value.dtype.name, "value": _finite_or_text(value.item())}
    if isinstance(value, float):
        return value if isfinite(value) else {"number": "float", "value": _finite_or_text(value)}
    if value is None or isinstance(value, int):
        return value
    if type(value) in (list, tuple):
        items = [_encoded(item, what) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    for name, part in contents.PARTS.items():
        if type(value) is part:
            of_part = {
                field_in_file(part, field): _encoded(getattr(value, field), f"{what}.{field}")
                for field in field_names(part)
            }
            return {"part": name, "fields": of_part}
    for name, function in contents.FUNCTIONS.items():
        if value is function:
            return {"function": name}
    raise ModelFileError(
        f"a model file holds text, numbers and parts of robustnmf; {what} is of the type {type_name(value)}. Fit with "
        "one of those, or use joblib.dump, whose files can hold, and run, any code."
    )


def _finite_or_text(number: Any) -> Any:
    return repr(number) if isinstance(number, float) and not isfinite(number) else number
