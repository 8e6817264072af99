"""Types of names are those of the registries, and help lists every parameter."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone

from robustnmf import METHODS, RobustNMF, RobustNMFCV, RobustNMFOutlierDetector, TruncatedCauchyNMF
from robustnmf.classifiers import SparseErrorCorrectionClassifier, SparseRepresentationClassifier
from robustnmf.engines import ENGINES
from robustnmf.formats import LabelledMatrix
from robustnmf.methods import INITIALIZERS, LOSSES, OUTLIERS, SCALES, SCHEDULES, SOLVERS, SPATIAL
from robustnmf.model.noise import NOISES
from robustnmf.utils import names

ROOT = Path(__file__).parent.parent
ESTIMATORS = [
    RobustNMF,
    TruncatedCauchyNMF,
    RobustNMFCV,
    RobustNMFOutlierDetector,
    SparseRepresentationClassifier,
    SparseErrorCorrectionClassifier,
]


@pytest.mark.parametrize(
    ("literal", "registry"),
    [
        (names.MethodName, METHODS),
        (names.LossName, LOSSES),
        (names.InitName, INITIALIZERS),
        (names.ScaleName, SCALES),
        (names.OutliersName, {**OUTLIERS, **SPATIAL}),
        (names.SolverName, SOLVERS),
        (names.ScheduleName, SCHEDULES),
        (names.NoiseName, NOISES),
        (names.EngineName, ENGINES),
    ],
)
def test_type_of_a_name_lists_the_registry(literal, registry):
    assert get_args(literal) == tuple(registry)


@pytest.mark.parametrize(
    ("parameter", "literal"),
    [
        ("preset", names.PresetName),
        ("feature_scaling", names.FeatureScalingName),
        ("sample_scaling", names.SampleScalingName),
        ("zeros", names.ZerosName),
        ("repeated_values", names.RepeatedValuesName),
    ],
)
def test_type_of_a_name_lists_what_the_check_accepts(parameter, literal):
    for name in get_args(literal):
        RobustNMF(2, **{parameter: name})._check_parameters()
    with pytest.raises(ValueError, match=f"^{parameter} must be") as caught:
        RobustNMF(2, **{parameter: "nothing"})._check_parameters()
    assert str(caught.value).count("'") == 2 * (len(get_args(literal)) + 1)  # no name is left out


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_help_lists_every_parameter(estimator):
    parameters = inspect.getdoc(estimator).partition("\nParameters\n")[2].partition("\nAttributes\n")[0]
    listed = {name for line in parameters.splitlines() if " : " in line and line[0] != " "
              for name in line.split(" : ")[0].split(", ")}  # fmt: skip
    assert listed == set(estimator().get_params(deep=False))


def test_types_leave_clone_as_it_was():
    model = TruncatedCauchyNMF(3, scale=2.0, outliers="mad")
    assert clone(model).get_params() == model.get_params()


def test_truncated_cauchy_has_the_parameters_of_robust_nmf_but_method_and_loss():
    ours, all_of_them = (dict(inspect.signature(cls.__init__).parameters) for cls in (TruncatedCauchyNMF, RobustNMF))
    assert all_of_them.pop("method").default == TruncatedCauchyNMF.method
    assert all_of_them.pop("loss").default == TruncatedCauchyNMF.loss
    assert list(ours.values()) == list(all_of_them.values())  # names, defaults, kinds and types, in order


def test_truncated_cauchy_passes_every_parameter_on():
    """Two that are mixed up, or one that is forgotten, would be seen."""
    names = list(inspect.signature(TruncatedCauchyNMF).parameters)
    values = {name: object() for name in names}
    model = TruncatedCauchyNMF(values["n_components"], **{name: values[name] for name in names[1:]})
    assert model.get_params(deep=False) == values
    assert (model.method, model.loss) == ("truncated-cauchy", "auto")
    assert not {"method", "loss"} & set(vars(model))


@pytest.mark.parametrize("estimator", [RobustNMF, TruncatedCauchyNMF])
def test_typo_in_a_name_is_refused_with_the_name_that_was_meant(estimator):
    name = estimator.__name__
    with pytest.raises(TypeError, match=rf"^{name}\(\) has no argument 'max_itr'\. Did you mean 'max_iter'\?$"):
        estimator(2, max_itr=3)
    with pytest.raises(TypeError, match=rf"^{name}\(\) has no argument 'zzz'\. It has n_components, .*callback\.$"):
        estimator(2, zzz=3)
    with pytest.raises(TypeError, match=r"fit\(\) has no argument 'weight'\. Did you mean 'weights'\?"):
        estimator(2).fit([[1.0]], weight=None)


RIGHT_AND_WRONG = [
    ('method="l1"', 'method="l11"'),
    ('loss="huber"', 'loss="hubert"'),
    ('init="nndsvd"', 'init="nndsv"'),
    ('scale="mad"', 'scale="made"'),
    ('outliers="mrf"', 'outliers="mrg"'),
    ('solver="hals"', 'solver="cd"'),
    ('schedule="plain"', 'schedule="plane"'),
    ('noise="poisson"', 'noise="fish"'),
    ('feature_scaling="robust"', 'feature_scaling="robus"'),
    ('zeros="missing"', 'zeros="mising"'),
    ('engine="torch"', 'engine="touch"'),
    ("max_iter=3", "max_itr=3"),
]
CHECKERS = {
    "mypy": ["--follow-imports=silent", "--ignore-missing-imports", "--strict"],
    "pyright": ["--pythonpath", sys.executable],
}


@pytest.fixture(scope="module", params=CHECKERS)
def checked(request, tmp_path_factory):
    """Return a function that checks a program by a type checker, and returns what it says of each line."""
    checker = request.param
    pytest.importorskip(checker)

    def check(*lines):
        program = tmp_path_factory.mktemp(checker) / "program.py"
        program.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", checker, *CHECKERS[checker], str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = {}
        for line in done.stdout.splitlines():
            if found := re.search(r"program\.py:(\d+)(?::\d+)?(?: -|:) (\w+): (.*)", line):
                said.setdefault(int(found[1]), []).append(f"{found[2]}: {found[3]}")
        return [" ".join(said.get(number, [])) for number in range(1, len(lines) + 1)]

    return check


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["RobustNMF", "TruncatedCauchyNMF"])
def test_typo_fails_in_type_checkers(estimator, checked):
    """At run time it fails when the model is fitted, or made."""
    has = [pair for pair in RIGHT_AND_WRONG if estimator == "RobustNMF" or pair[0][:4] not in ("meth", "loss")]
    lines = [f"{estimator}(2, {argument})" for pair in has for argument in pair]
    said = checked(f"from robustnmf import {estimator}", *lines)[1:]
    assert said[0::2] == [""] * len(has)
    assert all(line.startswith("error") for line in said[1::2]), said


PROGRAM = """\
import numpy as np
import polars as pl
from robustnmf import RobustNMF, RobustNMFCV, TruncatedCauchyNMF, load
from robustnmf.formats import read_table
X = np.ones((9, 4))
frame = pl.DataFrame(X)
table = read_table("data.csv")
model = RobustNMF(2)
""".splitlines()
ARRAY, MASK, NUMBERS = r"ndarray\[.*Any", r"ndarray\[.*bool", r"ndarray\[.*(float64|floating)"
TYPES = {
    "TruncatedCauchyNMF(2).fit(X)": r"TruncatedCauchyNMF\b",
    'load("model.robustnmf")': r"RobustNMF\b",
    "model.components_": ARRAY,
    "model.fit_transform(X)": ARRAY,
    "model.fit_transform([[1.0]])": ARRAY,
    "model.transform(frame)": ARRAY,
    "model.transform(table)": ARRAY,
    "model.inverse_transform(X)": ARRAY,
    "model.clean(X)": ARRAY,
    "model.clean(frame)": r"polars\S*DataFrame\b|\bDataFrame\b",
    "model.clean(table)": r"LabelledMatrix\b",
    "model.outlier_mask(X)": MASK,
    "model.outlier_mask(table)": r"LabelledMatrix\b",
    "model.score_samples(frame)": NUMBERS,
    "model.score(X)": r"\bfloat\b",
    'model.report(X, "page.html")': r"Path\b",
    "RobustNMFCV().fit(X).transform(X)": ARRAY,
    "RobustNMFCV().clean(frame)": r"\bDataFrame\b",
}


@pytest.mark.slow
def test_results_have_types_that_depend_on_the_data(checked):
    said = checked(*PROGRAM, *(f"reveal_type({call})" for call in TYPES))
    assert not any(said[: len(PROGRAM)])
    for (call, wanted), line in zip(TYPES.items(), said[len(PROGRAM) :], strict=True):
        assert re.search(wanted, line.partition(" is ")[2]), (call, line)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_results_are_of_the_types_that_they_are_said_to_be():
    """What the type checkers are told of, at run time."""
    X = np.random.default_rng(0).random((9, 4))
    frame, table = pl.DataFrame(X, schema=list("abcd")), LabelledMatrix(X)
    for data, labelled in ((X, np.ndarray), (X.tolist(), np.ndarray), (frame, pl.DataFrame), (table, LabelledMatrix)):
        for model in (RobustNMF(2, max_iter=5), RobustNMFCV((1, 2), estimator=RobustNMF(max_iter=5), n_splits=2)):
            codes = model.fit_transform(data)
            assert {type(codes), type(model.transform(data)), type(model.score_samples(data))} == {np.ndarray}
            assert type(model.inverse_transform(codes)) is np.ndarray
            assert model.score_samples(data).dtype == np.float64
            assert type(model.clean(data)) is labelled
            assert type(model.outlier_mask(data)) is labelled


USERS, _, EXTENDERS = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8").partition("\nFor extenders")
# What parts implement: their methods are documented there, and nowhere else.
CONTRACTS = (
    "robustnmf.model.losses.Loss",
    "robustnmf.model.scales.ScaleRule",
    "robustnmf.model.outliers.OutlierRule",
    "robustnmf.algorithm.initializers.Initializer",
    "robustnmf.algorithm.initializers.BlockInitializer",
    "robustnmf.solvers.Solver",
    "robustnmf.solvers.LeastSquaresSolver",
    "robustnmf.solvers.LossSolver",
    "robustnmf.engines.Engine",
)


def listed(reference):
    """Yield the names in a part of the reference."""
    module = ""
    for line in reference.splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   \w+", line):
            yield f"{module}.{line.strip()}"


def imported(name):
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def with_methods(name):
    """Yield a name, and those of the public methods of a class that are ours."""
    found = imported(name)
    if not getattr(found, "_is_protocol", False):  # a protocol has no parameters
        yield name
    for base in found.__mro__ if inspect.isclass(found) else ():
        if base.__module__.startswith("robustnmf"):
            yield from (f"{name}.{key}" for key, value in vars(base).items() if key[0] != "_" and is_method(value))
    if name in CONTRACTS and "__call__" in vars(found):
        yield f"{name}.__call__"


def is_method(value):
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def contracts_of(name):
    """Yield what a part of the reference implements, as far as its module lists it; nothing for a contract itself."""
    if name not in CONTRACTS:
        yield from (imported(each) for each in CONTRACTS if each.rpartition(".")[0] == name.rpartition(".")[0])


def test_reference_lists_names_for_users():
    assert {"robustnmf.RobustNMF", "robustnmf.metrics.dispersion"} <= set(listed(USERS))
    assert "robustnmf.RobustNMF.transform" in with_methods("robustnmf.RobustNMF")


def test_reference_lists_what_extenders_implement():
    assert set(CONTRACTS) <= set(listed(EXTENDERS))
    methods = {method for name in CONTRACTS for method in with_methods(name)}
    assert {"robustnmf.solvers.Solver.sweep", "robustnmf.model.scales.ScaleRule.__call__"} <= methods


@pytest.mark.parametrize("name", [*listed(USERS), *listed(EXTENDERS)])
def test_docstring_tells_parameters_and_what_is_returned(name):
    validate = pytest.importorskip("numpydoc.validate").validate
    wanted = {"PR01", "PR02", "RT01"}  # not documented, unknown, no section Returns
    elsewhere = {key for contract in contracts_of(name) for key in dir(contract)}
    own = [each for each in with_methods(name) if each == name or each.rpartition(".")[2] not in elsewhere]
    assert all(inspect.getdoc(imported_method(each, name)) for each in own)
    faults = [(each, *fault) for each in own for fault in validate(each)["errors"] if fault[0] in wanted]
    assert not faults


def imported_method(each, name):
    return imported(name) if each == name else inspect.getattr_static(imported(name), each.rpartition(".")[2])
