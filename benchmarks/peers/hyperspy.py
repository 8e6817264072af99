"""Estimators of robustnmf inside HyperSpy: decompositions of signals, masks, lazy signals, spikes.

HyperSpy is under the GPL and no dependency of this package. Install it in an environment of its own:

    python -m venv /tmp/hyperspy && /tmp/hyperspy/bin/pip install hyperspy .
    /tmp/hyperspy/bin/python benchmarks/peers/hyperspy.py
"""

import sys

sys.path.append(sys.path.pop(0))  # this file has the name of the package: the package comes first

import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
from checks import Checks
from sklearn.decomposition import NMF
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from robustnmf import RobustNMF, TruncatedCauchyNMF
from robustnmf.formats import read_table, write_table
from robustnmf.metrics import match_components, outlier_scores, relative_error

try:
    import hyperspy
    import hyperspy.api as hs
except ImportError as error:
    raise SystemExit(f"{error}. Install HyperSpy in an environment of its own; see the head of this file.") from error

hs.set_log_level("ERROR")
RANK, SHAPE, CHANNELS = 3, (14, 12), 60
check = Checks()


def spectra(shape=SHAPE, spikes=0.02, seed=0):
    """Return mixtures of three peaks with noise and cosmic rays, what they are without, and where the rays are."""
    rng = np.random.default_rng(seed)
    peaks = np.exp(-0.5 * ((np.arange(CHANNELS) - np.array([[12], [30], [48]])) / 6) ** 2) + 0.05
    clean = 100 * rng.dirichlet(np.ones(RANK), size=shape) @ peaks
    rays = rng.random(clean.shape) < spikes
    data = np.maximum(clean + rng.normal(size=clean.shape), 0)
    return np.where(rays, data + rng.uniform(500, 3000, clean.shape), data), clean, rays, peaks


DATA, CLEAN, RAYS, PEAKS = spectra()


def signal(data=DATA, kind=hs.signals.Signal1D):
    return kind(data.copy())


def decomposed(model=None, data=DATA, kind=hs.signals.Signal1D, **arguments):
    """Return a signal after decomposition by a model, and the model."""
    s, model = signal(data, kind), RobustNMF(RANK, random_state=0) if model is None else model
    s.decomposition(algorithm=model, output_dimension=RANK, print_info=False, **arguments)
    return s, model


ROBUST, MODEL = decomposed()


def as_navigation(mask):
    """Return a mask of pixels as HyperSpy wants it; for an array it asks for the axes in reverse."""
    return hs.signals.BaseSignal(mask).T


def error_of(s, clean=CLEAN):
    return relative_error(clean, s.get_decomposition_model().data)


@check
def factors_have_the_shape_of_the_signal():
    assert ROBUST.get_decomposition_factors().data.shape == (RANK, CHANNELS)


@check
def loadings_have_the_shape_of_the_navigation():
    assert ROBUST.get_decomposition_loadings().data.shape == (RANK, *SHAPE)


@check
def learning_results_hold_factors_and_loadings_that_multiply_to_the_model():
    results = ROBUST.learning_results
    product = (results.loadings @ results.factors.T).reshape(DATA.shape)
    np.testing.assert_allclose(ROBUST.get_decomposition_model().data, product, rtol=1e-6)


@check
def model_without_cosmic_rays():
    assert error_of(ROBUST) < 0.02
    return f"error {error_of(ROBUST):.1%}"


@check
def own_nmf_of_hyperspy_follows_the_rays():
    s = signal()
    s.decomposition(algorithm="NMF", output_dimension=RANK, print_info=False)
    assert error_of(s) > 10 * error_of(ROBUST)
    return f"HyperSpy's NMF: error {error_of(s):.0%}, RobustNMF: {error_of(ROBUST):.1%}"


@check
def own_robust_pca_of_hyperspy_beside_it():
    s = signal()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s.decomposition(algorithm="RPCA", output_dimension=RANK, print_info=False)
    assert error_of(ROBUST) < error_of(s) * 2
    return f"HyperSpy's RPCA: error {error_of(s):.1%}, RobustNMF: {error_of(ROBUST):.1%}"


@check
def without_rays_it_is_as_good_as_own_nmf():
    data, clean, *_ = spectra(spikes=0.0)
    ours, _ = decomposed(data=data)
    theirs = signal(data)
    theirs.decomposition(algorithm="NMF", output_dimension=RANK, print_info=False)
    assert error_of(ours, clean) < 1.1 * error_of(theirs, clean)
    return f"HyperSpy's NMF: error {error_of(theirs, clean):.2%}, RobustNMF: {error_of(ours, clean):.2%}"


@check
def mask_finds_the_rays():
    scores = outlier_scores(RAYS, MODEL.outliers_.reshape(DATA.shape))
    assert scores.precision > 0.98 and scores.recall > 0.98
    return f"precision {scores.precision:.1%}, recall {scores.recall:.1%}"


@check
def factors_are_the_true_spectra():
    cosine = match_components(PEAKS, ROBUST.get_decomposition_factors().data).similarities.min()
    assert cosine > 0.99
    return f"least cosine {cosine:.4f}"


@check
def data_of_the_signal_is_unchanged():
    np.testing.assert_array_equal(ROBUST.data, DATA)


@check
def model_is_fitted_in_place():
    assert MODEL.components_.shape == (RANK, CHANNELS)


@check
def cleaned_signal_keeps_what_is_right():
    cleaned = MODEL.clean(DATA.reshape(-1, CHANNELS)).reshape(DATA.shape)
    mask = MODEL.outliers_.reshape(DATA.shape)
    np.testing.assert_array_equal(cleaned[~mask], DATA[~mask])
    assert relative_error(CLEAN, cleaned) < 0.05


@check
def navigation_mask_keeps_pixels_out():
    mask = np.zeros(SHAPE, dtype=bool)
    mask[:3] = True
    s, model = decomposed(navigation_mask=as_navigation(mask))
    assert model.outliers_.shape == ((~mask).sum(), CHANNELS)
    loadings = s.get_decomposition_loadings().data
    assert np.isnan(loadings[:, mask]).all() and np.isfinite(loadings[:, ~mask]).all()


@check
def signal_mask_keeps_channels_out():
    mask = np.zeros(CHANNELS, dtype=bool)
    mask[:5] = True
    s, model = decomposed(signal_mask=mask)
    assert model.n_features_in_ == CHANNELS - 5
    assert np.isnan(s.get_decomposition_factors().data[:, mask]).all()


@check
def both_masks_together():
    navigation, channels = np.zeros(SHAPE, dtype=bool), np.zeros(CHANNELS, dtype=bool)
    navigation[0], channels[-4:] = True, True
    s, _ = decomposed(navigation_mask=as_navigation(navigation), signal_mask=channels)
    inside = np.ix_(~navigation.ravel(), ~channels)
    found = s.get_decomposition_model().data.reshape(-1, CHANNELS)[inside]
    assert relative_error(CLEAN.reshape(-1, CHANNELS)[inside], found) < 0.02


@check
def mask_that_is_an_array():
    data, *_ = spectra((60,))
    mask = np.arange(60) < 7
    _, model = decomposed(data=data, navigation_mask=mask)
    assert len(model.outliers_) == 53


@check
def missing_values():
    data = DATA.copy()
    data[2, 3, 4:9] = np.nan
    s, model = decomposed(data=data)
    assert np.isfinite(s.get_decomposition_model().data).all()
    assert not model.outliers_.reshape(data.shape)[2, 3, 4:9].any()


@check
def single_precision_stays_single():
    _, model = decomposed(data=DATA.astype(np.float32))
    assert model.components_.dtype == np.float32


@check
def integers_are_refused_by_hyperspy_and_taken_after_change_dtype():
    s, model = signal(DATA.astype(np.uint16)), RobustNMF(RANK, random_state=0)
    try:
        s.decomposition(algorithm=model, output_dimension=RANK, print_info=False)
    except TypeError:
        s.change_dtype("float32")
        s.decomposition(algorithm=model, output_dimension=RANK, print_info=False)
    assert error_of(s) < 0.02


@check
def poissonian_scaling_of_hyperspy():
    s, _ = decomposed(normalize_poissonian_noise=True)
    assert error_of(s) < 0.03
    return f"error {error_of(s):.1%}"


@check
def poisson_noise_of_robustnmf():
    rng = np.random.default_rng(1)
    counts = rng.poisson(CLEAN).astype(float)
    counts[RAYS] += 2000
    s, _ = decomposed(RobustNMF(RANK, noise="poisson", random_state=0), data=counts)
    assert error_of(s) < 0.06
    return f"error {error_of(s):.1%}"


@check
def lazy_signals_in_chunks():
    s, model = signal().as_lazy(), RobustNMF(RANK, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        s.decomposition(algorithm=model, output_dimension=RANK, print_info=False)
    found = s.get_decomposition_model()
    found.compute()
    error = relative_error(CLEAN, found.data)
    assert error < 0.05
    return f"error {error:.1%}"


@check
def line_of_spectra():
    data, clean, *_ = spectra((60,))
    s, _ = decomposed(data=data)
    assert s.get_decomposition_loadings().data.shape == (RANK, 60)
    assert error_of(s, clean) < 0.03


@check
def stack_of_spectrum_images():
    data, clean, *_ = spectra((3, 6, 5))
    s, _ = decomposed(data=data)
    assert s.get_decomposition_loadings().data.shape == (RANK, 3, 6, 5)
    assert error_of(s, clean) < 0.03


@check
def images_as_signals():
    data, clean, *_ = spectra((40,))
    s, _ = decomposed(data=data.reshape(40, 6, 10), kind=hs.signals.Signal2D)
    assert s.get_decomposition_factors().data.shape == (RANK, 6, 10)
    assert relative_error(clean.reshape(40, 6, 10), s.get_decomposition_model().data) < 0.03


@check
def axes_of_factors_are_those_of_the_signal():
    s = signal()
    s.axes_manager[-1].scale, s.axes_manager[-1].units, s.axes_manager[-1].offset = 0.5, "eV", 100.0
    s.decomposition(algorithm=RobustNMF(RANK, random_state=0), output_dimension=RANK, print_info=False)
    axis = s.get_decomposition_factors().axes_manager.signal_axes[0]
    assert (axis.scale, axis.units, axis.offset) == (0.5, "eV", 100.0)


@check
def model_of_fewer_components():
    found = ROBUST.get_decomposition_model([0, 1]).data
    assert relative_error(CLEAN, found) > error_of(ROBUST)


@check
def estimator_is_returned_on_request():
    s, model = signal(), RobustNMF(RANK, random_state=0)
    found = s.decomposition(algorithm=model, output_dimension=RANK, print_info=False, return_info=True)
    assert found is model


@check
def decomposition_can_be_plotted():
    import matplotlib
    import matplotlib.pyplot

    matplotlib.use("Agg")
    ROBUST.plot_decomposition_factors()
    ROBUST.plot_decomposition_loadings()
    matplotlib.pyplot.close("all")


@check
def blind_source_separation_starts_from_the_factors():
    s, _ = decomposed()
    s.blind_source_separation(RANK, algorithm="orthomax", print_info=False)
    assert s.get_bss_factors().data.shape == (RANK, CHANNELS)


@check
def estimator_of_the_truncated_cauchy_model():
    s, _ = decomposed(TruncatedCauchyNMF(RANK, random_state=0))
    assert error_of(s) < 0.02


@check
def estimator_in_a_pipeline():
    pipeline = make_pipeline(FunctionTransformer(), RobustNMF(RANK, random_state=0))
    s, _ = decomposed(pipeline)
    assert error_of(s) < 0.02


@check
def known_components_stay():
    s, _ = decomposed(RobustNMF(RANK, fixed_components=PEAKS[:1], random_state=0))
    np.testing.assert_allclose(s.get_decomposition_factors().data[0], PEAKS[0])


@check
def wrong_number_of_components_is_no_silent_error():
    s = signal()
    s.decomposition(algorithm=RobustNMF(2, random_state=0), output_dimension=2, print_info=False)
    assert s.get_decomposition_factors().data.shape == (2, CHANNELS)


@check
def negative_data_is_refused_in_words():
    try:
        decomposed(data=DATA - 50)
    except ValueError as error:
        assert "negative" in str(error).lower()
        return
    raise AssertionError("negative data was taken")


@check
def plain_nmf_of_scikit_learn_goes_the_same_way():
    s, _ = decomposed(NMF(RANK, init="nndsvda", max_iter=500, random_state=0))
    assert s.get_decomposition_factors().data.shape == ROBUST.get_decomposition_factors().data.shape
    return f"scikit-learn's NMF: error {error_of(s):.0%}"


@check
def saved_signal_is_read_again():
    s, _ = decomposed()
    s.learning_results.decomposition_algorithm = "RobustNMF"
    with tempfile.TemporaryDirectory() as folder:
        s.save(Path(folder) / "signal.hspy")
        again = hs.load(Path(folder) / "signal.hspy")
    np.testing.assert_allclose(again.get_decomposition_model().data, s.get_decomposition_model().data)


@check
def files_of_hyperspy_are_read_by_robustnmf_and_back():
    with tempfile.TemporaryDirectory() as folder:
        signal().save(Path(folder) / "signal.hspy")
        matrix = read_table(Path(folder) / "signal.hspy")
        assert matrix.values.shape == (np.prod(SHAPE), CHANNELS)
        np.testing.assert_array_equal(np.asarray(matrix.values), DATA.reshape(-1, CHANNELS))
        write_table(Path(folder) / "cleaned.hspy", RobustNMF(RANK, random_state=0).fit(matrix).clean(matrix))
        again = hs.load(Path(folder) / "cleaned.hspy")
    assert again.data.shape == DATA.shape
    assert relative_error(CLEAN, again.data) < 0.05


@check
def model_is_pickled_after_the_decomposition():
    again = pickle.loads(pickle.dumps(MODEL))
    np.testing.assert_array_equal(again.components_, MODEL.components_)


if __name__ == "__main__":
    sys.exit(check.run("HyperSpy", f"HyperSpy {hyperspy.__version__}", "peers_hyperspy") > 0)
