"""Shared data: small non-negative low-rank matrices with noise, outliers and gaps."""

import gc
import os
import signal
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

# Without a GPU, Triton's kernels are run by its interpreter, which is chosen when they are imported, whoever does that.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell lets what it starts in the background, and all that this starts, ignore Ctrl-C: its tests would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def has_gpu() -> bool:
    """Return whether there is a CUDA GPU, and a Torch that can use it."""
    if find_spec("torch") is None:
        return False
    from torch.cuda import is_available  # imported late: few tests need Torch

    return is_available()


class Sample(NamedTuple):
    """Data with known truth, samples in rows."""

    X: np.ndarray
    clean: np.ndarray
    outliers: np.ndarray


def make_data(n=30, m=20, rank=3, noise=0.02, outliers=0.1, seed=0) -> Sample:
    """Return low-rank data with Gaussian noise and gross outliers, at 0 or at ten times the level of the data."""
    rng = np.random.default_rng(seed)
    clean = rng.random((n, rank)) @ rng.random((rank, m))
    mask = rng.random((n, m)) < outliers
    noisy = np.maximum(clean + noise * rng.standard_normal((n, m)), 0)
    return Sample(np.where(mask, rng.choice([0.0, 10.0], (n, m)), noisy), clean, mask)


@pytest.fixture
def data() -> Sample:
    return make_data()


if os.environ.get("ROBUSTNMF_WINDOWS_RULES"):

    @pytest.fixture(autouse=True)
    def rules_of_windows(monkeypatch):
        """Run every test under the rules of `windows_rules`."""
        import windows_rules

        windows_rules.impose(monkeypatch)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none, and mark variants of tests marked ``thinned(k)`` as slow."""
    skip_without_gpu([item for item in items if item.get_closest_marker("gpu")])
    thin(items)


def skip_without_gpu(items: list[pytest.Item]) -> None:
    if items and not has_gpu():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))


def thin(items: list[pytest.Item]) -> None:
    """Leave all variants of a test but every k-th to test-all."""
    counts: Counter[str] = Counter()
    for item in items:
        thinned = item.get_closest_marker("thinned")
        if thinned is None:
            continue
        test = item.nodeid.split("[")[0]
        if counts[test] % thinned.args[0]:
            item.add_marker(pytest.mark.slow)
        counts[test] += 1


def pytest_collection() -> None:
    """Keep the garbage collector from looking at thousands of tests and modules again and again: none is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let it look, from now on, at what tests make."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let modules be garbage when the process ends: extensions complain of objects that are left."""
    gc.unfreeze()


def pytest_sessionfinish() -> None:
    """Save what coverage has seen, if it looks: a process of the tests that takes long to end is killed."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage else None
    if current is not None:
        current.save()
