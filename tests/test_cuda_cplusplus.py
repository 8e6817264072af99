"""Kernels in CUDA C++ are those of a device, are kept on disk, and are replaced with a warning where they fail."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
ON_GPU = torch.cuda.is_available()

from robustnmf import RobustNMF  # noqa: E402
from robustnmf.kernels.cuda import cplusplus, descent, doubles  # noqa: E402
from robustnmf.kernels.cuda.compilation import Plan, _ahead  # noqa: E402
from robustnmf.kernels.interface import CAUCHY  # noqa: E402

FIRST, SECOND = (torch.device("cuda", k) for k in range(2))
KIND = doubles.Kind(16, CAUCHY, False, False, False, True)
BROKEN = "this is no program"


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch, tmp_path):
    """Begin and end with no kernel, and tell of failures again."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cplusplus, "_failed", {})
    monkeypatch.setattr(cplusplus, "_told", set())
    if not ON_GPU:
        monkeypatch.setattr(descent, "shared_memory", lambda device: 2**17)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for module in (descent, doubles):
        module._compiled.cache_clear()
    yield
    for module in (descent, doubles):
        module._compiled.cache_clear()


def test_each_device_has_kernels_of_its_own(monkeypatch):
    monkeypatch.setattr(cplusplus, "_binary", lambda source, name, capability: b"")
    monkeypatch.setattr(cplusplus, "_load", lambda binary, name: object())  # loading is what belongs to a device
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(descent, "shared_memory", lambda device: 2**17)
    for kernel_for in (
        lambda device: descent.kernel_for(device, 10, torch.float32, 100),
        lambda device: doubles.kernel_for(device, KIND),
    ):
        assert kernel_for(FIRST) is not None
        assert kernel_for(FIRST) is kernel_for(FIRST)
        assert kernel_for(FIRST) is not kernel_for(SECOND)


def test_each_device_has_plans_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    jobs = []
    for device in (FIRST, SECOND):
        plan = Plan(device)
        with plan.planning():
            descent.kernel_for(device, 10, torch.float32, 100)
            doubles.kernel_for(device, KIND)
        jobs.append(set(plan.jobs))
    assert [len(of_device) for of_device in jobs] == [2, 2]
    assert not jobs[0] & jobs[1]


def test_a_kernel_that_needs_more_shared_memory_than_there_is_is_no_failure(monkeypatch):
    monkeypatch.setattr(descent, "shared_memory", lambda device: 2**10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert descent.kernel_for(FIRST, 10, torch.float32, 100) is None


def test_a_failure_is_told_once_where_the_kernel_is_used(monkeypatch):
    """Torch for the CPU fails by itself: it has no compiler for CUDA."""
    monkeypatch.setattr(descent, "SOURCE", BROKEN)
    monkeypatch.setattr(doubles, "SOURCE", BROKEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with _ahead(FIRST):  # by threads that compile ahead, whose warnings would name no line of the user
            assert descent.kernel_for(FIRST, 10, torch.float32, 100) is None
            assert doubles.kernel_for(FIRST, KIND) is None
    with pytest.warns(RuntimeWarning, match=r"Torch .* could not compile .*'descend' \(.*Error.*Triton.*pip install"):
        assert descent.kernel_for(FIRST, 10, torch.float32, 100) is None
    with pytest.warns(RuntimeWarning, match="'accumulate'"):
        assert doubles.kernel_for(FIRST, KIND) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert descent.kernel_for(FIRST, 50, torch.float64, 100) is None
        assert doubles.kernel_for(FIRST, KIND._replace(weighted=True)) is None


def test_what_is_compiled_is_kept_for_other_processes(monkeypatch):
    compiled = []

    def compile_it(source, name, capability):
        compiled.append((source, name, capability))
        return source.encode()

    monkeypatch.setattr(cplusplus, "_compile", compile_it)
    for _ in range(2):
        for source, capability in (("a", (9, 0)), ("b", (9, 0)), ("a", (8, 0))):
            assert cplusplus._binary(source, "descend", capability) == source.encode()
    assert len(compiled) == 3


def test_without_a_folder_all_is_compiled_anew(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "folder"))
    monkeypatch.setattr(cplusplus, "_compile", lambda source, name, capability: b"1")
    assert cplusplus._binary("a", "descend", (9, 0)) == b"1"


@pytest.mark.gpu
def test_kernels_from_disk_are_those_that_were_compiled(monkeypatch):
    def moved():
        descent._compiled.cache_clear()
        X, G = torch.rand((50, 7), device="cuda", generator=draw), torch.eye(7, device="cuda")
        sums, penalty = torch.rand((2, 1, 50, 16), device="cuda", generator=draw), torch.zeros(8, device="cuda")
        move, gain, total = torch.zeros((50, 16), device="cuda"), *torch.zeros((2, 50), device="cuda")
        arguments = [X, G, sums[0], sums[1], penalty, move, gain, total, 50, 1, 16, 16, 7, 0, 3]
        descent.kernel_for(FIRST, 7, torch.float32, 50)(50, arguments)
        return move.cpu().numpy()

    draw = torch.Generator("cuda").manual_seed(0)
    compiled = moved()
    monkeypatch.setattr(cplusplus, "_compile", None)  # it is not called
    draw.manual_seed(0)
    assert np.any(compiled)
    assert np.array_equal(compiled, moved())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_without_them_is_warned_of_and_gives_the_same(monkeypatch, dtype):
    rng = np.random.default_rng(0)
    X = rng.random((90, 4)) @ rng.random((4, 60)) + 0.01 * rng.random((90, 60))
    X[rng.random(X.shape) < 0.1] = 10.0
    there = torch.asarray(X.astype(dtype), device="cuda")

    def fit():
        return RobustNMF(4, random_state=0).fit(there)

    expected = fit()
    for module in (descent, doubles):
        module._compiled.cache_clear()
        monkeypatch.setattr(module, "SOURCE", BROKEN)
    with pytest.warns(RuntimeWarning, match="'descend'") as found:
        model = fit()
    names = sorted(str(warning.message).split("'")[1] for warning in found if warning.category is RuntimeWarning)
    assert names == (["descend"] if dtype == "float32" else ["accumulate", "descend"])
    assert found[0].filename == __file__
    assert np.array_equal(model.outliers_.cpu(), expected.outliers_.cpu())
    assert np.allclose(model.components_, expected.components_, rtol=0.01, atol=0.01)
