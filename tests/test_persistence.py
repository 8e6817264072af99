"""Claims about model files: the same model comes back, no file of a stranger does harm, no crash costs a model."""

import errno
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.exceptions import NotFittedError

from conftest import make_data
from robustnmf import METHODS, RobustNMF, TruncatedCauchyNMF
from robustnmf.algorithm.halfquadratic import run
from robustnmf.algorithm.initializers import MedianStart
from robustnmf.algorithm.staged import InitialStage, Staged
from robustnmf.methods import INITIALIZERS, OUTLIERS, SCALES, SCHEDULES, SOLVERS
from robustnmf.metrics import relative_error
from robustnmf.model.losses import Cauchy, Huber, Truncated
from robustnmf.model.outliers import MADRule
from robustnmf.model.scales import MAD, FirstScale, FixedScale
from robustnmf.model.spatial import MedianFilterRule, MRFRule
from robustnmf.persistence import ModelFileError, contents, load, save, writing
from robustnmf.solvers import HALS

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::robustnmf.errors.DataQualityWarning"),
]

RANK, N_SAMPLES, N_FEATURES = 2, 14, 12
NAMES = [f"Kanal {j} µ" for j in range(N_FEATURES)]
X = make_data(N_SAMPLES, N_FEATURES, RANK).X
X.setflags(write=False)


def fitted(data=X, *, cls=RobustNMF, weights=None, **parameters):
    return cls(**{"n_components": RANK, "random_state": 0, "max_iter": 4} | parameters).fit(data, weights=weights)


def saved(model, folder, name="m.robustnmf"):
    save(model, folder / name)
    return folder / name


def returned(model, folder):
    return load(saved(model, folder))


def assert_same(one, other):
    """Compare all attributes, private ones included, with their types."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif hasattr(one, "__dict__") and type(one).__module__.startswith("robustnmf"):
        assert vars(one).keys() == vars(other).keys()
        for name in vars(one):
            assert_same(getattr(one, name), getattr(other, name))
    elif is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other


def assert_same_answers(one, other, data):
    codes = one.transform(data)
    for mine, yours in (
        (codes, other.transform(data)),
        (one.clean(data), other.clean(data)),
        (one.inverse_transform(codes), other.inverse_transform(codes)),
        (one.outlier_mask(data), other.outlier_mask(data)),
        (one.score_samples(data), other.score_samples(data)),
    ):
        mine, yours = np.asarray(mine), np.asarray(yours)
        assert mine.dtype == yours.dtype and np.array_equal(mine, yours)


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture
def file(model, tmp_path):
    return saved(model, tmp_path)


def sections(path):
    """Return text, as an object, and arrays, as bytes, of a model file."""
    head, rest = path.read_bytes().split(b"\n", 1)
    length = int(head.split()[2])
    document, arrays, rest = json.loads(rest[:length]), [], rest[length:]
    for entry in document["arrays"]:
        size = int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize
        arrays.append(rest[:size])
        rest = rest[size:]
    assert not rest
    return document, arrays


def forge(path, document, arrays, version=1):
    """Write a model file with any content whose checksums are right."""
    if not isinstance(document, bytes):
        for entry, array in zip(document["arrays"], arrays, strict=False):
            if isinstance(entry, dict) and "sha256" in entry:
                entry["sha256"] = hashlib.sha256(array).hexdigest()
        document = json.dumps(document).encode()
    head = f"robustnmf-model {version} {len(document)} {hashlib.sha256(document).hexdigest()}\n".encode()
    path.write_bytes(b"".join([head, document, *arrays]))


# --- The same model comes back ---


@pytest.mark.thinned(2)
@pytest.mark.parametrize("preset", ["default", "published"])
@pytest.mark.parametrize("method", METHODS)
def test_model_of_every_method_comes_back(method, preset, tmp_path):
    model = fitted(method=method, preset=preset)
    same = returned(model, tmp_path)
    assert_same(same, model)
    assert_same_answers(same, model, X)
    assert hasattr(same, "sparse_errors_") == (method == "rnmf-l1")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cls", [RobustNMF, TruncatedCauchyNMF])
def test_model_comes_back_with_its_class_and_precision(cls, dtype, tmp_path):
    model = fitted(X.astype(dtype), cls=cls)
    same = returned(model, tmp_path)
    assert_same(same, model)
    assert same.components_.dtype == dtype
    assert_same_answers(same, model, X.astype(dtype))
    assert np.shares_memory(same.components_, same._basis.W)


def test_model_of_missing_and_weighted_data_comes_back(tmp_path):
    rng = np.random.default_rng(1)
    data = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    model = fitted(data, weights=rng.random(X.shape))
    same = returned(model, tmp_path)
    assert_same(same, model)
    assert_same_answers(same, model, data)


@pytest.mark.parametrize("data", [np.zeros(X.shape), 1e-310 * X, 1e300 * X, 1e30 * X.astype(np.float32)])
def test_model_of_extreme_data_comes_back(data, tmp_path):
    model = fitted(data)
    same = returned(model, tmp_path)
    assert_same(same, model)
    assert_same_answers(same, model, data)


@pytest.mark.parametrize(
    "names",
    [NAMES, ["a\0", "", "\n", *NAMES[3:]], ["caf\udce9", "\ud83d", "\x1b[2J\u202e", *NAMES[3:]]],
    ids=["text", "odd text", "hostile text"],
)
def test_feature_names_come_back(names, tmp_path):
    frame = pd.DataFrame(X, columns=pd.Index(names, dtype=object))
    model = fitted(frame).set_output(transform="pandas")
    same = returned(model, tmp_path)
    assert_same(same, model)
    assert list(same.feature_names_in_) == names
    pd.testing.assert_frame_equal(same.transform(frame), model.transform(frame))
    pd.testing.assert_frame_equal(same.clean(frame), model.clean(frame))


@pytest.mark.parametrize(
    "parameters",
    [
        {"init": MedianStart(spread=0.3), "scale": MAD(factor=2.0), "outliers": MADRule(axis="feature")},
        {"method": "l1", "scale": FirstScale(FixedScale(np.float32(0.1))), "solver": HALS(max_iter=3)},
        {"scale": 0.1, "outliers": 4.0, "schedule": "plain", "preset": "published"},
        {
            "schedule": Staged(
                (InitialStage(Truncated(Cauchy(), 9.0)), InitialStage(Huber(), threshold=3.0)), patience=5
            )
        },
        {"schedule": run, "tol": np.float64(1e-3), "max_iter": np.int64(3), "n_components": np.int32(2)},
        {"outliers": "mrf", "image_shape": (3, 4)},
        {"outliers": "median-filter", "image_shape": [3, 4]},
        {"outliers": MRFRule((3, 4), base=MADRule(5.0), smoothness=1)},
        {"outliers": MedianFilterRule((3, 4)), "tol": np.float32(1e-3)},
    ],
    ids=", ".join,
)
def test_parameters_come_back(parameters, tmp_path):
    data = X.astype(np.float32)
    model = fitted(data, **parameters)
    same = returned(model, tmp_path)
    assert_same(same, model)
    for name, value in model.get_params().items():
        assert_same(same.get_params()[name], value)
    assert_same_answers(same, model, data)


def test_every_part_of_the_package_comes_back(model, tmp_path):
    parts = [
        (name, part)
        for name, registry in (
            ("init", INITIALIZERS),
            ("scale", SCALES),
            ("outliers", OUTLIERS),
            ("solver", SOLVERS),
            ("schedule", SCHEDULES),
        )
        for part in registry.values()
    ]
    for name, part in parts:
        changed = pickle.loads(pickle.dumps(model)).set_params(**{name: part})
        save(changed, tmp_path / "part", overwrite=True)
        assert load(tmp_path / "part").get_params()[name] == part


def test_callback_and_generator_are_none_in_the_loaded_model(tmp_path):
    for random_state in (np.random.default_rng(0), np.random.RandomState(0)):
        model = fitted(random_state=random_state, callback=lambda iteration: False)
        save(model, tmp_path / "m", overwrite=True)
        same = load(tmp_path / "m")
        assert same.callback is None and same.random_state is None
        assert model.callback is not None and model.random_state is random_state
        assert_same_answers(same, model, X)


def test_loaded_model_can_be_fitted_and_saved_again(model, tmp_path):
    same = returned(model, tmp_path)
    assert saved(same, tmp_path, "twice").read_bytes() == (tmp_path / "m.robustnmf").read_bytes()
    again = same.fit(X)
    assert np.array_equal(again.components_, model.components_)


def test_training_attributes_may_be_left_out(tmp_path):
    model = fitted()
    whole = saved(model, tmp_path).stat().st_size
    del model.weights_, model.outliers_
    save(model, tmp_path / "small")
    assert (tmp_path / "small").stat().st_size < whole - X.nbytes
    assert_same(load(tmp_path / "small"), model)


def test_requests_for_metadata_are_not_stored(tmp_path):
    with sklearn.config_context(enable_metadata_routing=True):
        model = fitted().set_fit_request(weights=True)
    assert "_metadata_request" in vars(model)
    assert_same_answers(returned(model, tmp_path), model, X)


# --- What cannot be saved is not ---


def test_unfitted_or_foreign_models_are_refused(tmp_path):
    class Own(RobustNMF):
        pass

    with pytest.raises(NotFittedError, match="call fit first"):
        save(RobustNMF(), tmp_path / "m")
    for other in (fitted(cls=Own), np.zeros(3), None):
        with pytest.raises(TypeError, match="RobustNMF"):
            save(other, tmp_path / "m")
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class OwnMAD(MAD):
    """A part of the user's own."""


class OwnRule(MADRule):
    """Another."""


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"scale": OwnMAD()}, "parameter scale is .*OwnMAD"),
        ({"init": lambda V, M, rank, rng: MedianStart()(V, M, rank, rng)}, "parameter init is .*function"),
        ({"outliers": MRFRule((3, 4), base=OwnRule())}, "parameter outliers.base is .*OwnRule"),
        ({"scale": FirstScale(OwnMAD())}, "parameter scale.rule is .*OwnMAD"),
        ({"random_state": np.random}, "parameter random_state"),
        ({"image_shape": np.array([3, 4])}, "parameter image_shape is .*ndarray"),
        ({"tol": np.longdouble(1e-4)}, "parameter tol"),
        ({"scale": MAD(factor="x")}, "MAD does not take 'factor'"),
        ({"max_iter": 0}, "max_iter"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_parameters_that_cannot_be_stored_are_named(parameters, named, model, tmp_path):
    changed = pickle.loads(pickle.dumps(model)).set_params(**parameters)
    with pytest.raises(ModelFileError, match=named):
        save(changed, tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("components_", np.ones((RANK, N_FEATURES)), "changed after the fit"),
        ("note", "mine", r"\['note'\]"),
        ("weights_", [[1.0]], "weights_"),
        ("weights_", np.full(X.shape, np.nan), "weights_"),
        ("thresholds_", np.ones(3), "thresholds_"),
        ("outliers_", np.zeros(X.shape, dtype=object), "outliers_"),
        ("n_iter_", "four", "n_iter_"),
    ],
)
def test_changed_attributes_are_named(name, value, message, model, tmp_path):
    changed = pickle.loads(pickle.dumps(model))
    setattr(changed, name, value)
    with pytest.raises(ModelFileError, match=message):
        save(changed, tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["components_", "history_", "objective_", "parts_", "_basis", "_unit"])
def test_missing_attributes_are_named(name, model, tmp_path):
    changed = pickle.loads(pickle.dumps(model))
    delattr(changed, name)
    with pytest.raises(ModelFileError, match=name):
        save(changed, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_more_feature_names_than_can_be_read_are_not_written(model, tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "LONGEST_TEXT", 1000)
    with pytest.raises(ModelFileError, match="feature names"):
        save(model, tmp_path / "m")


def test_feature_names_of_which_the_file_would_make_others_are_not_written(tmp_path):
    names = pd.Index(["\ud83d\ude00", "\N{GRINNING FACE}", *NAMES[2:]], dtype=object)
    model = fitted(pd.DataFrame(X, columns=names))
    with pytest.raises(ModelFileError, match=r"surrogates\. Rename"):
        save(model, tmp_path / "m")
    assert not list(tmp_path.iterdir())


# --- Paths ---


def test_existing_file_is_replaced_only_if_asked(file, model):
    before = file.read_bytes()
    other = fitted(n_components=1)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save(other, file)
    assert file.read_bytes() == before
    save(other, file, overwrite=True)
    assert_same(load(file), other)


def test_bad_paths_are_told(model, tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        save(model, tmp_path / "none" / "m")
    with pytest.raises(IsADirectoryError, match="folder"):
        save(model, tmp_path, overwrite=True)
    with pytest.raises(IsADirectoryError, match="folder"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file"):
        load(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="regular file"):
        load(tmp_path / "pipe")


def test_home_and_text_paths_work(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(model, "~/m.robustnmf")
    assert_same(load("~/m.robustnmf"), model)
    assert [path.name for path in tmp_path.iterdir()] == ["m.robustnmf"]


def test_missing_permission_is_told(model, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("robustnmf.utils.files.os.open", refuse)
    with pytest.raises(PermissionError, match="another folder"):
        save(model, tmp_path / "m")


# --- Damage ---


def test_every_flipped_byte_is_found(file):
    """All bytes of the first line, and 400 of the others."""
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    positions = [*range(100), *rng.integers(100, len(whole), 400)]
    for position in positions:
        damaged = bytearray(whole)
        damaged[position] ^= rng.integers(1, 256)
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="cannot be read as a model"):
            load(file)


def test_every_truncation_and_extension_is_found(file):
    whole = file.read_bytes()
    lengths = {*range(120), *np.linspace(0, len(whole) - 1, 150).astype(int), len(whole) - 1}
    for length in sorted(lengths):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            load(file)
    for extra in (b"\0", b"\n", whole):
        file.write_bytes(whole + extra)
        with pytest.raises(ModelFileError, match="bytes"):
            load(file)


def test_swapped_arrays_are_found(file):
    arrays = sections(file)[1]
    whole = file.read_bytes()
    file.write_bytes(whole[: -sum(map(len, arrays))] + b"".join(arrays[::-1]))
    with pytest.raises(ModelFileError, match="checksum"):
        load(file)


def test_checksum_that_does_not_fit_is_told(file):
    document, arrays = sections(file)
    forge(file, document, arrays)
    load(file)
    text = json.dumps(document).encode().replace(document["arrays"][0]["sha256"].encode(), b"0" * 64)
    forge(file, text, arrays)
    with pytest.raises(ModelFileError, match=r"damaged: components_ .* checksum"):
        load(file)


def test_newer_format_is_told_with_both_versions(file):
    document, arrays = sections(file)
    forge(file, document, arrays, version=2)
    with pytest.raises(ModelFileError, match=r"format 2, and robustnmf 0\.\S+ reads formats up to 1\. Install a later"):
        load(file)


# --- Files of strangers ---


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def foreign_files(canary):
    """Return the content of files that are no models, some of which run code in a careless reader."""
    bomb = np.array([Bomb(canary)], dtype=object)
    npy, npz, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, bomb, allow_pickle=True)
    np.savez(npz, components_=np.ones((2, 3)))
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("model.json", '{"magic": "robustnmf-model"}')
        members.writestr("../components_.npy", npy.getvalue())
        members.writestr("data.pkl", pickle.dumps(Bomb(canary)))
    random = np.random.default_rng(0).bytes(5000)
    line = f"robustnmf-model 1 100 {'0' * 64}\n".encode()
    return {
        "empty": b"",
        "random": random,
        "pickle": pickle.dumps(Bomb(canary)),
        "npy": npy.getvalue(),
        "npz": npz.getvalue(),
        "zip": archive.getvalue(),
        "text": "Grüße\n".encode("latin-1") * 1000,
        "line": line,
        "line and pickle": line + pickle.dumps(Bomb(canary)),
        "no line": b"robustnmf-model 1 " + b"9" * 5000,
        "version 0": line.replace(b" 1 ", b" 0 "),
        "huge version": line.replace(b" 1 ", b" " + b"9" * 60 + b" "),
    }


@pytest.mark.parametrize("kind", foreign_files("/nowhere"))
def test_foreign_file_is_refused_and_runs_nothing(kind, tmp_path):
    canary = tmp_path / "canary"
    (tmp_path / "m").write_bytes(foreign_files(canary)[kind])
    with pytest.raises(ModelFileError, match="cannot be read as a model"):
        load(tmp_path / "m")
    assert not canary.exists()


def test_array_of_objects_is_refused_and_runs_nothing(file, tmp_path):
    canary = tmp_path / "canary"
    document, arrays = sections(file)
    payload = pickle.dumps(np.array([Bomb(canary)] * 8, dtype=object))
    for dtype in ("object", "O", "|O", "<U4", "float128", "<f8", "int64", "V8", "bool", "complex128", "float64,O"):
        document["arrays"][0] |= {"dtype": dtype, "shape": [1, len(payload)]}
        forge(file, document, [payload, *arrays[1:]])
        with pytest.raises(ModelFileError, match="dtype"):
            load(file)
    assert not canary.exists()


@pytest.mark.parametrize(
    "shape",
    [[10**12, 10**6], [2**63, 2], [2**64, 2**64], [2**32, 2**32], [10**9, 1], [-1, -24], [0, 24], [24], [1] * 40],
)
def test_declared_shapes_take_no_memory(file, shape):
    document, arrays = sections(file)
    document["arrays"][0]["shape"] = shape
    forge(file, document, arrays)
    tracemalloc.start()
    with pytest.raises(ModelFileError):
        load(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_declared_text_takes_no_memory(file):
    whole = file.read_bytes()
    head, rest = whole.split(b"\n", 1)
    for length in (b"9999999999", b"%d" % 2**26):
        words = head.split()
        words[2] = length
        file.write_bytes(b" ".join(words) + b"\n" + rest)
        tracemalloc.start()
        with pytest.raises(ModelFileError, match="text"):
            load(file)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


@pytest.mark.parametrize(
    "name", ["../components_", "/etc/passwd", "history_.../x", "history_.", "__class__", "_basis", "C:\\x", "weights_"]
)
def test_unknown_or_repeated_array_names_are_refused(file, name):
    document, arrays = sections(file)
    document["arrays"][0]["name"] = name
    forge(file, document, arrays)
    with pytest.raises(ModelFileError):
        load(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("components_", -1.0),
        ("components_", np.nan),
        ("components_", np.inf),
        ("thresholds_", np.nan),
        ("thresholds_", -1.0),
        ("typical_code", np.inf),
        ("cut", np.nan),
        ("weights_", -1.0),
        ("outliers_", None),
    ],
)
def test_impossible_values_are_refused(file, name, value):
    document, arrays = sections(file)
    (index,) = (i for i, entry in enumerate(document["arrays"]) if entry["name"] == name)
    first = b"\x02" if value is None else np.float64(value).tobytes()
    arrays[index] = first + arrays[index][len(first) :]
    forge(file, document, arrays)
    with pytest.raises(ModelFileError, match=name):
        load(file)


def test_arrays_that_do_not_fit_together_are_refused(file):
    whole, arrays = sections(file)
    for index, entry in enumerate(whole["arrays"]):
        document = json.loads(json.dumps(whole))
        document["arrays"][index]["shape"] = (
            entry["shape"][::-1] if len(entry["shape"]) == 2 else [entry["shape"][0] - 1]
        )
        size = int(np.prod(document["arrays"][index]["shape"])) * np.dtype(entry["dtype"]).itemsize
        forge(file, document, [a[:size] if i == index else a for i, a in enumerate(arrays)])
        with pytest.raises(ModelFileError, match=r"must have|shape"):
            load(file)
        if entry["name"] in ("components_", "thresholds_", "typical_code"):
            del document["arrays"][index]
            forge(file, document, arrays[:index] + arrays[index + 1 :])
            with pytest.raises(ModelFileError, match="lacks"):
                load(file)


@pytest.mark.parametrize(
    "value",
    [
        {"part": "os.system", "fields": {"command": "true"}},
        {"part": "builtins.open", "fields": {"file": "canary", "mode": "w"}},
        {"part": "robustnmf.utils.files.write_atomically", "fields": {}},
        {"part": "robustnmf.losses._RoundedNorm", "fields": {}},
        {"part": "robustnmf.solvers.Problem", "fields": {}},
        {"part": "robustnmf.scales.MAD", "fields": {"__class__": "x"}},
        {"part": "robustnmf.scales.MAD", "fields": {"name": "x"}},
        {
            "part": "robustnmf.scales.MAD",
            "fields": {"factor": {"part": "robustnmf.scales.MAD", "fields": {}}},
        },
        {"part": "robustnmf.scales.FixedScale", "fields": {"value": -1.0}},
        {"part": "robustnmf.scales.FixedScale", "fields": {}},
        {
            "part": "robustnmf.scales.FirstScale",
            "fields": {"rule": {"part": "robustnmf.outliers.MADRule", "fields": {}}},
        },
        {"part": "robustnmf.outliers.MADRule", "fields": {"axis": ["feature"]}},
        {"part": "robustnmf.schedules.Staged", "fields": {"openings": {"tuple": [1]}}},
        {"function": "os.system"},
        {"number": "object", "value": 1},
        {"number": "int8", "value": 1000},
        {"number": "float64", "value": [1, 2]},
        {"number": "float", "value": "eval"},
        {"tuple": 3},
        {"": None},
        {},
    ],
    ids=str,
)
def test_values_that_name_anything_else_are_refused(file, value, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    document, arrays = sections(file)
    document["parameters"]["scale"] = value
    forge(file, document, arrays)
    with pytest.raises(ModelFileError):
        load(file)
    assert not (tmp_path / "canary").exists()


def test_odd_json_is_refused(file):
    document, arrays = sections(file)
    text = json.dumps(document)
    for odd in (
        text.replace('"class": "RobustNMF"', '"class": "RobustNMF", "class": "TruncatedCauchyNMF"'),
        text.replace('"class": "RobustNMF"', '"class": "Pipeline"'),
        text.replace('"tol": 0.0001', '"tol": NaN'),
        text.replace('"tol": 0.0001', '"tol": 1e999'),
        text.replace('"tol": 0.0001', '"tol": 1, "callback": null'),
        text.replace('"tol": 0.0001', '"tol": 1, "steps": null'),
        text.replace('"tol": 0.0001', f'"tol": {"1" * 5000}'),
        text.replace('"scale": "auto"', '"scale": ' + "[" * 100_000 + "]" * 100_000),
        text.replace('"scale": "auto"', '"scale": ' + '{"tuple": [' * 600 + "]}" * 600),
        text.replace('"set_output": null', '"set_output": "evil"'),
        "[]",
        "null",
        "{}",
        text[:-1],
        text + "}",
        "\0" * 100,
    ):
        assert odd != text
        forge(file, odd.encode(), arrays)
        with pytest.raises(ModelFileError):
            load(file)
    forge(file, text.encode("utf-16"), arrays)
    with pytest.raises(ModelFileError):
        load(file)


def leaves(value, path=()):
    """Yield the paths to all entries of nested lists and dicts."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))


def test_no_change_of_the_text_leads_to_another_error(file):
    """Every entry in turn is left out, or replaced by one of another type."""
    whole, arrays = sections(file)
    odd = [None, True, -1, 2**70, 0.5, "x", [], [1], {}, {"part": "robustnmf.losses.Cauchy", "fields": {}}]
    refused = 0
    rng = np.random.default_rng(0)
    paths = [path for path in leaves(whole) if path]
    for *path, last in paths:
        for kind in rng.choice(len(odd) + 1, 5, replace=False):
            document = json.loads(json.dumps(whole))
            place = document
            for key in path:
                place = place[key]
            if kind == len(odd):
                del place[last]
            else:
                place[last] = odd[kind]
            forge(file, json.dumps(document).encode(), arrays)
            try:
                load(file)
            except ModelFileError:
                refused += 1
    assert refused > 3 * len(paths)


# --- Crashes ---


def test_old_file_stays_when_writing_fails(file, model, tmp_path, monkeypatch):
    before, n_arrays, calls = file.read_bytes(), len(sections(file)[1]), []
    whole = writing.bytes_of

    def fail_half_way(array):
        calls.append(array)
        if len(calls) > 1.5 * n_arrays:  # the first time for the checksums
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(array)

    monkeypatch.setattr(writing, "bytes_of", fail_half_way)
    with pytest.raises(OSError, match="No space left"):
        save(fitted(n_components=1), file, overwrite=True)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


KILLING = """
import os, signal, sys, time
import numpy as np
from robustnmf.persistence import load, save

folder, rng = sys.argv[1], np.random.default_rng(0)
models = [load(f"{folder}/{name}") for name in "ab"]
save(models[0], f"{folder}/m")
seen = set()
for _ in range(20):
    child = os.fork()
    if child == 0:
        while True:
            for model in models[::-1]:
                save(model, f"{folder}/m", overwrite=True)
    time.sleep(rng.uniform(0.002, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seen.add(load(f"{folder}/m").n_components_)
print(sorted(seen))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_during_save_leaves_the_old_or_the_new_file(tmp_path):
    many = np.tile(X, (200, 1))  # so that writing takes a while
    for rank, name in ((1, "a"), (2, "b")):
        saved(fitted(many, n_components=rank, max_iter=1), tmp_path, name)
    done = subprocess.run([sys.executable, "-c", KILLING, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("[1]", "[2]", "[1, 2]")


def test_penalties_and_known_components_come_back(tmp_path):
    rng = np.random.default_rng(0)
    known = rng.random((1, 20))
    X = rng.random((30, 2)) @ np.vstack([known, rng.random((1, 20))])
    model = RobustNMF(2, alpha_W=1e-3, l1_ratio=0.5, fixed_components=known, random_state=0).fit(X)
    model.save(tmp_path / "m.robustnmf")
    same = load(tmp_path / "m.robustnmf")
    np.testing.assert_array_equal(same.fixed_components, known)
    np.testing.assert_array_equal(same.transform(X), model.transform(X))
    assert same._basis.penalties == model._basis.penalties


def test_a_loaded_model_begins_a_new_stream_from_its_components(tmp_path):
    rng = np.random.default_rng(0)
    components = rng.random((2, 20))
    batches = [rng.random((30, 2)) @ components for _ in range(3)]
    model = RobustNMF(2, random_state=0)
    for batch in batches:
        model.partial_fit(batch)
    model.save(tmp_path / "m.robustnmf")
    same = load(tmp_path / "m.robustnmf")
    np.testing.assert_array_equal(same.components_, model.components_)
    same.partial_fit(batches[0])
    before, after = (relative_error(batches[1], m.transform(batches[1]) @ m.components_) for m in (model, same))
    assert after < 1.1 * before


@pytest.mark.parametrize("method", ["truncated-cauchy", "rnmf-l1"])
def test_compact_copies_do_the_same_without_what_is_as_large_as_the_data(method):
    X = make_data(n=200, m=30).X
    model = RobustNMF(3, method=method, random_state=0, max_iter=20, tol=1.0).fit(X)
    light = pickle.loads(pickle.dumps(model.compact()))
    assert len(pickle.dumps(light)) < X.nbytes / 2 < X.nbytes < len(pickle.dumps(model))
    np.testing.assert_array_equal(light.transform(X), model.transform(X))
    np.testing.assert_array_equal(light.outlier_mask(X), model.outliers_)
    assert hasattr(model, "weights_") and not hasattr(light, "weights_")
    with pytest.raises(AttributeError, match=r"compact.*outlier_mask\(X\)"):
        _ = light.outliers_
    with pytest.raises(AttributeError, match="no attribute 'foo'"):
        _ = light.foo
