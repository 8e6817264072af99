"""Random configurations end as promised; `make soak` tries them for as long as one likes. And the soak test notices."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "soak"))

from drawing import Configuration, configuration
from laboratory import Laboratory
from surroundings import BrokenError, Used

from robustnmf import RobustNMF

FOLDER = Path(__file__).parent / "soak"
# Under a name of its own: the fuzzer has a run.py too.
_spec = spec_from_file_location("soak_run", FOLDER / "run.py")
run = module_from_spec(_spec)
sys.modules["soak_run"] = run
_spec.loader.exec_module(run)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and SIGALRM")
QUICK = range(15)
# An ordinary fit with NumPy, all of whose results are looked at.
PLAIN = {"n_components": 2, "random_state": 0, "max_iter": 4, "schedule": "plain"}


def ordinary(**changes):
    X = np.random.default_rng(0).random((9, 7)) + 0.1
    return replace(Configuration(0, X, parameters=dict(PLAIN), said={"data": "ordinary"}), **changes)


@pytest.mark.parametrize("seed", QUICK)
def test_configuration_ends_as_promised(seed):
    case = configuration(seed)
    if case.engine == "dask":
        pytest.skip("starts a cluster; the long run has some")
    run.attempt(case)


def test_configuration_is_a_function_of_its_seed_alone():
    for seed in QUICK:
        np.random.seed(seed + 1)
        one, two = configuration(seed), configuration(seed)
        assert str(one) == str(two)
        for name in ("X", "weights", "uncertainties"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert len({str(configuration(seed)) for seed in QUICK}) == len(QUICK)


def test_ordinary_configuration_is_sound():
    follow_ups = ("clean", "mask", "scores", "save", "partial_fit", "resume", "ranks")
    assert run.attempt(ordinary(claims=frozenset({"deterministic", "unit", "order"}), follow_ups=follow_ups)) is None


# --- It notices -------------------------------------------------------------------------------------------------------


def after_fit(monkeypatch, deed):
    """Let every fit do something more: `deed` gets the model, the data and the codes, and may return other codes."""
    fit = RobustNMF.fit_transform

    def spoilt(self, X, y=None, **options):
        codes = fit(self, X, y, **options)
        found = deed(self, X, codes)
        return codes if found is None else found

    monkeypatch.setattr(RobustNMF, "fit_transform", spoilt)


def put_nan(model, X, codes):
    model.components_ = model.components_ * np.nan


def put_negative(model, X, codes):
    return -codes - 1


def use_other_dtype(model, X, codes):
    return codes.astype(np.float32)


def change_data(model, X, codes):
    X[0, 0] += 1


def change_parameter(model, X, codes):
    model.max_iter = 5


def change_environment(model, X, codes):
    os.environ["ROBUSTNMF_SOAK"] = str(time.monotonic())


def change_random_state(model, X, codes):
    np.random.random()


def warn(model, X, codes):
    np.float64(1e300) * np.array([1e300])


def divide_by_zero(model, X, codes):
    return 1 / 0


def fail_by_accident(model, X, codes):
    return np.ones(3) + np.ones(4)


def raise_objective(model, X, codes):
    model.history_["objective"] = np.arange(3.0)


DEEDS = {
    put_nan: "finite: components_",
    put_negative: "finite: codes",
    use_other_dtype: "dtype: codes",
    change_data: "unchanged: X",
    change_parameter: "unchanged: parameters max_iter",
    change_environment: "unchanged: os.environ",
    change_random_state: "unchanged: np.random",
    warn: "no stray warning: RuntimeWarning",
    divide_by_zero: "finite or refused: ZeroDivisionError",
    fail_by_accident: "finite or refused: ValueError",
}


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_soak_notices(deed, monkeypatch):
    monkeypatch.delenv("ROBUSTNMF_SOAK", raising=False)
    after_fit(monkeypatch, deed)
    with pytest.raises(BrokenError, match=DEEDS[deed]):
        run.attempt(ordinary())
    os.environ.pop("ROBUSTNMF_SOAK", None)


def test_soak_notices_an_objective_that_rises(monkeypatch):
    after_fit(monkeypatch, raise_objective)
    parameters = PLAIN | {"scale": 0.5, "outliers": "none"}
    with pytest.raises(BrokenError, match=r"objective never rises: .*0\..*1\..* after iteration 0"):
        run.attempt(ordinary(parameters=parameters))


def test_soak_notices_that_a_fit_is_not_repeated(monkeypatch):
    calls = []

    def differ(model, X, codes):
        calls.append(1)
        model.objective_ += len(calls)

    after_fit(monkeypatch, differ)
    with pytest.raises(BrokenError, match="deterministic: objective_ differ"):
        run.attempt(ordinary(claims=frozenset({"deterministic"})))


def test_soak_notices_a_result_that_depends_on_the_unit(monkeypatch):
    def depend(model, X, codes):
        model.components_ = model.components_ if X.max() < 2 else model.components_ * 0

    after_fit(monkeypatch, depend)
    with pytest.raises(BrokenError, match="unit: components_"):
        run.attempt(ordinary(X=np.random.default_rng(0).random((9, 7)) + 0.1, claims=frozenset({"unit"}), seed=3))


def test_soak_notices_a_transform_that_differs(monkeypatch):
    monkeypatch.setattr(RobustNMF, "transform", lambda self, X, **options: np.zeros((len(X), 2)))
    with pytest.raises(BrokenError, match="transform"):
        run.attempt(ordinary())


def test_soak_notices_wrong_data_that_is_accepted():
    with pytest.raises(BrokenError, match="wrong data is refused"):
        run.attempt(ordinary(is_wrong=True))


def wait():
    time.sleep(30)


def work():
    return [k for k in range(10**9) if k < 0]


@pytest.mark.parametrize("deed", [wait, work], ids=["waits", "works"])
def test_soak_notices_a_slow_configuration(deed, monkeypatch):
    after_fit(monkeypatch, lambda model, X, codes: deed())
    begin = time.monotonic()
    with pytest.raises(BrokenError, match=r"slow: more than 0\.5 s"):
        run.attempt(ordinary(), patience=0.5)
    assert time.monotonic() - begin < 10


def test_soak_counts_refusals_and_does_not_fail_for_them():
    found = run.attempt(ordinary(parameters=PLAIN | {"n_components": 99}))
    assert found.kind == "ValueError" and "n_components" in found.message
    tally = run.Tally()
    tally.refuse(ordinary(), found)
    assert not tally.failures and tally.refusals.total() == tally.of_ordinary.total() == 1


def test_soak_notices_what_grows():
    now = Used(2**28, 10, 5)
    assert not now._replace(bytes=2**28 + 2**20).grown_since(now)
    for grown in (now._replace(bytes=2**29), now._replace(files=30), now._replace(threads=20)):
        assert grown.grown_since(now)


def test_soak_looks_at_what_grows_and_reports_it(monkeypatch):
    sizes = iter([Used(2**28, 10, 5), Used(2**29, 10, 5)])
    monkeypatch.setattr(run, "EVERY", 1)
    monkeypatch.setattr(run, "WARM_UP", 1)
    monkeypatch.setattr(Used, "now", lambda: next(sizes))
    monkeypatch.setattr(run, "examine", lambda case: None)
    lines = []
    tally = run.soak(iter(range(2)), 60, lines.append)
    assert list(tally.failures) == ["flat: the process holds more than it did"]
    assert any("256 MiB" in line and "512 MiB" in line for line in lines)


def test_soak_goes_on_after_a_failure_and_names_the_seed(monkeypatch, capsys):
    def fail(case):
        raise BrokenError("finite", "codes")

    monkeypatch.setattr(run, "examine", fail)
    lines = []
    tally = run.soak(iter(range(7, 10)), 60, lines.append)
    assert tally.tried == 3 and tally.failures.total() == 3
    assert [line.split(" | ")[:2] for line in lines] == [[f"FAILURE seed {k}", "finite: codes"] for k in (7, 8, 9)]
    for _ in range(2):
        assert run.replay(7) == 1
    one, two = capsys.readouterr().out.split("seed 7: ")[1:]
    assert one == two and str(configuration(7)) in one and "FAILURE seed 7 | finite: codes" in one


@pytest.mark.slow
def test_command_exits_with_what_it_found():
    command = [sys.executable, str(FOLDER / "run.py"), "--configurations", "2", "--start", "2", "--seconds", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 1) == ("FAILURE" in done.stdout), done.stderr
    assert "2 configurations" in done.stdout


def test_laboratory_can_do_without_optional_engines(monkeypatch, tmp_path):
    monkeypatch.setattr("laboratory.find_spec", lambda name: None)
    assert Laboratory("torch", None, tmp_path).engine == Laboratory("dask", None, tmp_path).engine == "numpy"
