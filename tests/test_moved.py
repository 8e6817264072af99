"""Modules that have moved can be imported by their old names, for one release."""

import importlib
import pickle
import subprocess
import sys

import pytest

import robustnmf
from robustnmf._moved import MOVED, new_name


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_module_of_the_new_name(old, monkeypatch):
    monkeypatch.delitem(sys.modules, f"robustnmf.{old}", raising=False)
    new = importlib.import_module(f"robustnmf.{MOVED[old]}")
    spec = new.__spec__
    with pytest.warns(DeprecationWarning, match=rf"robustnmf\.{old} is now robustnmf\.{MOVED[old]}") as caught:
        assert importlib.import_module(f"robustnmf.{old}") is new
    assert new.__spec__ is spec
    assert caught[0].filename == importlib.__file__  # whoever imports it


def test_a_module_of_a_folder_that_moved_is_not_executed_again():
    from robustnmf.paper import theory  # isort: skip

    with pytest.warns(DeprecationWarning):
        assert importlib.import_module("robustnmf.experiments.theory") is theory


def test_old_names_are_found_as_attributes_and_by_pickle():
    program = """
import pickle, sys, warnings
warnings.simplefilter("ignore")
loss = pickle.loads(bytes.fromhex(sys.argv[1]))
import robustnmf.losses
print(robustnmf.losses.Cauchy is type(loss))
"""
    stored = pickle.dumps(robustnmf.METHODS["truncated-cauchy"].default.loss, protocol=0)
    old = stored.replace(b"robustnmf.model.losses", b"robustnmf.losses")
    assert old != stored
    done = subprocess.run([sys.executable, "-c", program, old.hex()], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("name", ["robustnmf", "robustnmf.metrics", "robustnmf.nothing", "numpy.losses", "losses"])
def test_other_names_have_not_moved(name):
    assert new_name(name) is None


@pytest.mark.slow
def test_the_package_does_not_import_old_names():
    subprocess.run([sys.executable, "-W", "error", "-c", "import robustnmf.cli, robustnmf.paper.reproduce"], check=True)
