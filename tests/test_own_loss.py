"""``loss=``: a name, or an object of the user's own, on every engine."""

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.base import clone

from conftest import make_data
from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.errors import IncompatibleError
from robustnmf.methods import LOSSES, METHODS
from robustnmf.model.losses import Cauchy, Huber, Loss, check_loss

data = make_data(60, 40, 3)


@dataclass(frozen=True)
class OwnCauchy(Loss):
    """Cauchy's loss, written by a user: no kernel knows it."""

    log_scale_coef = 1.0

    def rho(self, s, xp):
        return xp.log1p(s)

    def weight(self, s, xp):
        return 1 / (1 + s)


@pytest.mark.parametrize("name", LOSSES)
def test_a_name_is_the_loss_of_that_name(name):
    schedule = "plain" if name == "sample-norm" else "auto"
    models = [
        RobustNMF(3, loss=loss, schedule=schedule, random_state=0, max_iter=20).fit(data.X)
        for loss in (name, LOSSES[name])
    ]
    assert models[0].parts_ == models[1].parts_
    assert models[0].parts_.loss == LOSSES[name]
    np.testing.assert_array_equal(models[0].components_, models[1].components_)


@pytest.mark.parametrize("engine", ["numpy", "torch", "stream", pytest.param("dask", marks=pytest.mark.slow)])
def test_a_loss_of_the_users_own_is_minimised_as_the_same_loss_with_kernels(engine, tmp_path):
    if engine in ("torch", "dask"):
        pytest.importorskip("torch" if engine == "torch" else "distributed")
    X = data.X
    if engine == "stream":
        np.save(tmp_path / "X.npy", X)
        X = np.load(tmp_path / "X.npy", mmap_mode="r")
    if engine == "dask":
        distributed = pytest.importorskip("distributed")
        with distributed.Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
            own = RobustNMF(3, loss=OwnCauchy(), random_state=0, max_iter=30, engine=engine).fit(X)
    else:
        own = RobustNMF(3, loss=OwnCauchy(), random_state=0, max_iter=30, engine=engine).fit(X)
    known = RobustNMF(3, loss=Cauchy(), random_state=0, max_iter=30).fit(data.X)
    np.testing.assert_allclose(own.components_, known.components_, rtol=1e-6, atol=1e-8)
    assert own.n_iter_ == known.n_iter_


def test_auto_is_the_loss_of_the_method():
    model = RobustNMF(3, method="huber", random_state=0, max_iter=5).fit(data.X)
    assert model.parts_.loss == METHODS["huber"].default.loss


def test_a_loss_is_a_parameter_like_others():
    model = RobustNMF(3, loss=OwnCauchy())
    assert clone(model).loss == OwnCauchy()
    assert model.get_params()["loss"] == OwnCauchy()
    assert "loss" not in TruncatedCauchyNMF().get_params()  # its name says which
    with pytest.raises(TypeError, match="loss"):
        TruncatedCauchyNMF(loss=Huber())


def test_a_truncated_loss_of_the_users_own():
    model = RobustNMF(3, loss=OwnCauchy(), scale=0.1, outliers=9.0, random_state=0, max_iter=20).fit(data.X)
    assert model.parts_.loss.loss == OwnCauchy()
    assert model.outliers_[data.outliers].mean() > 0.9


class Convex(Loss):
    def rho(self, s, xp):
        return s**2

    def weight(self, s, xp):
        return 2 * s


class WrongWeight(OwnCauchy):
    def weight(self, s, xp):
        return 2 / (1 + s)


class NotZero(OwnCauchy):
    def rho(self, s, xp):
        return 1 + xp.log1p(s)


class OfResiduals(Loss):
    """Written as a function of r, not of its square."""

    def rho(self, s, xp):
        return xp.log1p(s**2)

    def weight(self, s, xp):
        return 2 * s / (1 + s**2)


@pytest.mark.parametrize("loss", [Convex(), WrongWeight(), NotZero(), OfResiduals()], ids=lambda loss: loss.name)
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(ValueError, match="concave and non-decreasing"):
        RobustNMF(3, loss=loss).fit(data.X)


def test_a_loss_that_is_not_finite_is_refused():
    class Infinite(OwnCauchy):
        def weight(self, s, xp):
            with np.errstate(divide="ignore"):
                return 1 / s

    with pytest.raises(ValueError, match="finite number for each s"):
        RobustNMF(3, loss=Infinite()).fit(data.X)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=lambda loss: loss.name)
def test_losses_of_this_package_pass_the_check(loss):
    check_loss(loss)


@pytest.mark.parametrize("loss", ["nothing", 3.0, None, Huber, object()])
def test_anything_else_is_refused_with_the_names(loss):
    with pytest.raises(ValueError, match="loss must be one of 'auto', 'squared'"):
        RobustNMF(3, loss=loss).fit(data.X)


def test_solvers_that_cannot_lower_a_loss_refuse_it():
    with pytest.raises(IncompatibleError, match=r"cannot lower the loss .* 'shared-gram', 'nesterov' and 'multiplica"):
        RobustNMF(3, loss=OwnCauchy(), solver="weighted-median", schedule="plain").fit(data.X)


def test_methods_that_do_not_iterate_have_no_loss():
    with pytest.raises(IncompatibleError, match="does not iterate: loss must be 'auto'"):
        RobustNMF(3, method="near-separable", loss="huber").fit(data.X)
