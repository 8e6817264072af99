"""Arrays of other libraries come in, and results go out as the same kind."""

import numpy as np
import pytest

from robustnmf import RobustNMF
from robustnmf.utils.arrays import same_kind, to_host

LIBRARIES = ["array_api_strict", "torch"]


@pytest.fixture(params=LIBRARIES)
def xp(request):
    return pytest.importorskip(request.param)


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    X = rng.random((40, 3)) @ rng.random((3, 20)) + 0.01 * rng.random((40, 20))
    X[rng.random(X.shape) < 0.1] = 9.0
    X[2, 3] = np.nan
    return X


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_of_the_kind_of_the_data(xp, X, dtype):
    X = X.astype(dtype)
    given = xp.asarray(X)
    model, plain = RobustNMF(3, random_state=0), RobustNMF(3, random_state=0)
    expected = plain.fit_transform(X)
    results = {
        "codes": (model.fit_transform(given), expected),
        "transform": (model.transform(given), plain.transform(X)),
        "clean": (model.clean(given), plain.clean(X)),
        "mask": (model.outlier_mask(given), plain.outlier_mask(X)),
        "product": (model.inverse_transform(xp.asarray(expected)), plain.inverse_transform(expected)),
    }
    for name, (ours, theirs) in results.items():
        assert type(ours) is type(given), name
        assert to_host(ours).dtype == theirs.dtype, name
        np.testing.assert_array_equal(to_host(ours), theirs, err_msg=name)


def test_weights_and_uncertainties_may_be_of_another_kind_too(xp, X):
    weights, uncertainties = np.where(X == 9.0, 0.0, 1.0), np.full(X.shape, 0.01)
    arrays = {"weights": weights, "uncertainties": uncertainties}
    plain = RobustNMF(3, random_state=0).fit(X, **arrays)
    model = RobustNMF(3, random_state=0).fit(xp.asarray(X), **{name: xp.asarray(a) for name, a in arrays.items()})
    np.testing.assert_array_equal(model.components_, plain.components_)
    model.partial_fit(xp.asarray(X))
    assert model.n_samples_seen_ == 2 * len(X)


def test_tensors_that_are_part_of_a_graph_can_be_fitted(X):
    torch = pytest.importorskip("torch")
    given = torch.asarray(X).requires_grad_()
    assert not RobustNMF(3, random_state=0).fit_transform(given).requires_grad


def test_other_things_stay_as_they_are():
    values = np.arange(3.0)
    assert to_host([1, 2]) == [1, 2]
    assert to_host(values) is values
    assert same_kind([1, 2], values) is values
    assert to_host(None) is None
