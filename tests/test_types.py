"""Types of names are those of the registries, and help lists every parameter."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from sklearn.base import clone

from robustnmf import METHODS, RobustNMF, RobustNMFCV, RobustNMFOutlierDetector, TruncatedCauchyNMF
from robustnmf.classifiers import SparseErrorCorrectionClassifier, SparseRepresentationClassifier
from robustnmf.engines import ENGINES
from robustnmf.methods import INITIALIZERS, LOSSES, OUTLIERS, SCALES, SCHEDULES, SOLVERS, SPATIAL
from robustnmf.model.noise import NOISES
from robustnmf.utils import names

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "typo"),
    [
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
    ],
)
def test_typo_fails_in_mypy(right, typo, tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(f"from robustnmf import RobustNMF\n\nRobustNMF(2, {right})\nRobustNMF(2, {typo})\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if "program.py" in line and "error" in line]
    assert len(errors) == 1, done.stdout
    assert "program.py:4" in errors[0]
    assert "arg-type" in errors[0]


def listed_for_users():
    """Yield the names in the first part of the reference, for users."""
    text = (Path(__file__).parent.parent / "docs" / "api.rst").read_text(encoding="utf-8")
    module = ""
    for line in text.partition("\nFor extenders")[0].splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   \w+", line):
            yield f"{module}.{line.strip()}"


def with_methods(name):
    """Yield a name, and those of the public methods of a class that are ours."""
    yield name
    module, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(module), last)
    for base in found.__mro__ if inspect.isclass(found) else ():
        if base.__module__.startswith("robustnmf"):
            yield from (f"{name}.{key}" for key, value in vars(base).items() if key[0] != "_" and is_method(value))


def is_method(value):
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def test_reference_lists_names_for_users():
    assert {"robustnmf.RobustNMF", "robustnmf.metrics.dispersion"} <= set(listed_for_users())
    assert "robustnmf.RobustNMF.transform" in with_methods("robustnmf.RobustNMF")


@pytest.mark.parametrize("name", list(listed_for_users()))
def test_docstring_tells_parameters_and_what_is_returned(name):
    validate = pytest.importorskip("numpydoc.validate").validate
    wanted = {"PR01", "PR02", "RT01"}  # not documented, unknown, no section Returns
    faults = [(each, *fault) for each in with_methods(name) for fault in validate(each)["errors"] if fault[0] in wanted]
    assert not faults
