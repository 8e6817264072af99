"""SRC and SEC: codes against optimality conditions and linear programming, classes on faces, and conventions."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from robustnmf.classifiers import SparseErrorCorrectionClassifier, SparseRepresentationClassifier
from robustnmf.classifiers.sparse_codes import Dictionary, shortest_code, shortest_code_within, sparse_error_code
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import block_occlusion

SRC, SEC = SparseRepresentationClassifier, SparseErrorCorrectionClassifier
CONSTRAINTS = ["noise", "sparse-error", "equality"]


@parametrize_with_checks([SRC()])
def test_follows_the_conventions_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([SEC(), *(SRC(constraint=constraint) for constraint in CONSTRAINTS[1:])])
def test_follows_the_conventions_of_scikit_learn_of_the_slower_kinds(estimator, check):
    check(estimator)


def unit(vectors):
    """Columns of unit length; columns of zeros stay."""
    length = np.linalg.norm(vectors, axis=0)
    return vectors / np.where(length > 0, length, 1)


def dictionaries():
    """Atoms in columns: in general position, fewer than features, many and alike, repeated, and full of ties."""
    rng = np.random.default_rng(0)
    several = rng.random((12, 8))
    return {
        "wide": unit(rng.standard_normal((8, 30))),
        "tall": unit(rng.standard_normal((40, 10))),
        "digits": unit(load_digits().data[:80].T),
        "repeated": unit(np.hstack([several, several, -several[:, :3]])),
        "ties": unit(rng.integers(-1, 2, (5, 60)).astype(float)),
        "plane": unit(rng.standard_normal((2, 100))),
        "line": np.ones((1, 7)),
    }


DICTIONARIES = dictionaries()
each_dictionary = pytest.mark.parametrize("A", DICTIONARIES.values(), ids=DICTIONARIES)


def samples(A):
    """An atom, the sum of two, and chance."""
    rng = np.random.default_rng(1)
    return unit(np.column_stack([A[:, 0], A[:, 1] + A[:, -1], *rng.standard_normal((3, len(A)))])).T


def least_l1(A, y):
    """The least ||x||_1 with A x = y, by linear programming."""
    n = A.shape[1]
    result = linprog(np.ones(2 * n), A_eq=np.hstack([A, -A]), b_eq=y)
    assert result.status == 0
    return result.fun


class TestCodes:
    @each_dictionary
    @pytest.mark.parametrize("tolerance", [0.05, 0.4])
    def test_code_within_a_tolerance_meets_the_optimality_conditions(self, A, tolerance):
        """On the tolerance, and correlations of atoms and residual equal, up to sign, where x is not zero."""
        for y in samples(A):
            distance = np.linalg.norm(y - A @ np.linalg.lstsq(A, y)[0])
            if distance >= tolerance:
                continue
            x = shortest_code_within(Dictionary.of(A), y, tolerance, 1000)
            residual = y - A @ x
            assert np.linalg.norm(residual) == pytest.approx(tolerance, rel=1e-9)
            correlation = A.T @ residual
            largest = np.abs(correlation).max()
            used = x != 0
            np.testing.assert_allclose(correlation[used], largest * np.sign(x[used]), rtol=0, atol=1e-7 * largest)

    @each_dictionary
    @pytest.mark.parametrize("tolerance", [0.0, 0.05])
    def test_code_that_cannot_reach_the_tolerance_is_the_shortest_closest(self, A, tolerance):
        for y in samples(A):
            closest = A @ np.linalg.lstsq(A, y)[0]
            if np.linalg.norm(y - closest) < tolerance:
                continue
            x = shortest_code_within(Dictionary.of(A), y, tolerance, 1000)
            np.testing.assert_allclose(A @ x, closest, rtol=0, atol=1e-6)
            assert np.abs(x).sum() == pytest.approx(least_l1(A, A @ x), rel=1e-6)

    @each_dictionary
    def test_code_with_sparse_errors_is_the_optimum_of_the_linear_programme(self, A):
        n = A.shape[1]
        for y in samples(A):
            dual = linprog(-y, A_ub=np.vstack([A.T, -A.T]), b_ub=np.ones(2 * n), bounds=(-1, 1))
            x = sparse_error_code(A, y)
            assert np.abs(x).sum() + np.abs(y - A @ x).sum() == pytest.approx(-dual.fun, rel=2e-7)

    @pytest.mark.parametrize("size", [10.0, 1e4, 1e8])
    def test_code_with_sparse_errors_is_the_same_however_large_the_errors(self, size):
        A = DICTIONARIES["tall"]
        clean = A @ np.linspace(0.5, 1, A.shape[1])
        wrong = np.zeros(len(A))
        wrong[[3, 17, 30]] = 1, -1, 1
        x, reference = (sparse_error_code(A, clean + scale * wrong) for scale in (size, 5.0))
        np.testing.assert_allclose(x, reference, rtol=0, atol=1e-6)

    def test_shortest_code_is_the_optimum_and_exact(self):
        A = DICTIONARIES["wide"]
        for y in samples(A):
            x = shortest_code(A, y, 1000)
            np.testing.assert_allclose(A @ x, y, rtol=0, atol=1e-7)
            assert np.abs(x).sum() == pytest.approx(least_l1(A, y), rel=1e-7)

    @pytest.mark.parametrize("constraint", CONSTRAINTS)
    def test_planted_sparse_code_is_recovered(self, constraint):
        rng = np.random.default_rng(2)
        A = unit(rng.standard_normal((60, 100)))
        planted = np.zeros(100)
        planted[[4, 40, 77]] = 1.0, -0.8, 0.6
        y = A @ planted
        if constraint == "sparse-error":
            y[[5, 50]] += 3.0, -2.0
        model = SRC(constraint=constraint, tolerance=1e-6).fit(A.T, np.arange(100) % 2)
        found = model.codes(y[np.newaxis])[0] * np.linalg.norm(y)
        np.testing.assert_allclose(found, planted, rtol=0, atol=1e-5)

    def test_too_few_steps_are_reported(self):
        A = DICTIONARIES["wide"]
        with pytest.warns(ConvergenceWarning, match="in 2 steps"):
            shortest_code_within(Dictionary.of(A), samples(A)[2], 0.01, 2)
        with pytest.warns(ConvergenceWarning, match="duality gap"):
            sparse_error_code(A, samples(A)[2], 2)

    def test_sample_beyond_the_span_is_refused_by_equality(self):
        A = DICTIONARIES["tall"]
        model = SRC(constraint="equality").fit(A.T, np.arange(10) % 2)
        with pytest.raises(ValueError, match="no combination equals the sample"):
            model.predict(np.eye(40)[:1])


class TestResiduals:
    @pytest.mark.parametrize("constraint", CONSTRAINTS)
    def test_residuals_of_src_follow_from_the_codes(self, constraint):
        A = DICTIONARIES["wide"]
        labels = np.arange(A.shape[1]) % 3
        Y = samples(A)
        model = SRC(constraint=constraint).fit(3 * A.T, labels)
        codes = model.codes(7 * Y)
        for y, code, residuals in zip(Y, codes, model.residuals(7 * Y), strict=True):
            target = A @ code if constraint == "sparse-error" else y
            expected = [np.linalg.norm(target - A[:, labels == c] @ code[labels == c]) for c in range(3)]
            np.testing.assert_allclose(residuals, expected, atol=1e-12)

    def test_contributions_of_all_classes_add_up_to_the_representation(self):
        A = DICTIONARIES["wide"]
        model = SRC().fit(A.T, np.arange(A.shape[1]) % 3)
        code = model.codes(samples(A))[2]
        np.testing.assert_allclose(model._class_parts(code).sum(axis=1), A @ code, atol=1e-12)

    def test_residuals_of_sec_are_those_of_the_visible_pixels(self, faces):
        model = SEC(faces.shape).fit(faces.train, faces.train_people)
        X = block_occlusion(faces.test[:3], 12, faces.shape, random_state=0).data
        for y, code, hidden, residuals in zip(
            X, model.codes(X), model.occlusion_mask(X), model.residuals(X), strict=True
        ):
            parts = [
                model.atoms_[model.atom_classes_ == c].T @ code[model.atom_classes_ == c]
                for c in range(len(model.classes_))
            ]
            expected = [np.linalg.norm((y - part)[~hidden]) / np.linalg.norm(y[~hidden]) for part in parts]
            np.testing.assert_allclose(residuals, expected, atol=1e-10)

    @pytest.mark.parametrize("n_classes", [1, 2, 3])
    def test_class_is_that_of_the_smallest_residual_and_largest_score(self, n_classes):
        A = DICTIONARIES["wide"]
        names = np.array(["b", "a", "c"])[np.arange(A.shape[1]) % n_classes]
        for model in (SRC().fit(A.T, names), SEC().fit(A.T, names)):
            residuals, scores = model.residuals(samples(A)), model.decision_function(samples(A))
            predicted = model.predict(samples(A))
            np.testing.assert_array_equal(predicted, model.classes_[residuals.argmin(axis=1)])
            best = (scores > 0).astype(int) if n_classes == 2 else scores.argmax(axis=1)
            np.testing.assert_array_equal(predicted, model.classes_[best])


class Faces:
    """People of the ORL set, five images of each to train and five to test."""

    def __init__(self, n_people):
        orl = load_orl()
        chosen, training = orl.target < n_people, np.arange(400) % 10 < 5
        self.shape = orl.image_shape
        self.train, self.train_people = orl.data[chosen & training], orl.target[chosen & training]
        self.test, self.test_people = orl.data[chosen & ~training], orl.target[chosen & ~training]

    def accuracy(self, model, X):
        return model.fit(self.train, self.train_people).score(X, self.test_people)


@pytest.fixture(scope="module")
def faces():
    return Faces(15)


@pytest.fixture(scope="module")
def hidden(faces):
    """A white block of 14 x 14 pixels, a fifth of the image, in every test image."""
    return block_occlusion(faces.test, 14, faces.shape, value=235.0, random_state=0)


@pytest.fixture(scope="module")
def accuracies(faces, hidden):
    """Measured: 0.48, 0.63, 0.85, 0.91."""
    models = {
        "nearest neighbour": KNeighborsClassifier(1),
        "noise": SRC(),
        "sparse-error": SRC(constraint="sparse-error"),
        "sec": SEC(faces.shape),
    }
    return {name: faces.accuracy(model, hidden.data) for name, model in models.items()}


class TestFaces:
    def test_src_knows_clean_faces(self):
        """Of 40 people; measured: 0.895, the nearest neighbour 0.87."""
        faces = Faces(40)
        assert faces.accuracy(SRC(), faces.test) > max(0.88, faces.accuracy(KNeighborsClassifier(1), faces.test))

    @pytest.mark.parametrize(
        "model",
        [
            pytest.param(SRC(constraint="sparse-error"), id="sparse-error"),
            pytest.param(SEC((32, 32)), id="sec", marks=pytest.mark.slow),
        ],
    )
    def test_allowing_for_errors_costs_little_on_clean_faces(self, model, faces):
        """Measured: 0.91 and 0.91."""
        assert faces.accuracy(clone(model), faces.test) > 0.88

    @pytest.mark.slow
    def test_src_beats_the_nearest_neighbour_on_occluded_faces(self, accuracies):
        assert accuracies["noise"] > accuracies["nearest neighbour"]
        assert accuracies["sparse-error"] > accuracies["nearest neighbour"] + 0.2

    @pytest.mark.slow
    def test_sec_beats_src_on_occluded_faces(self, accuracies):
        assert accuracies["sec"] > accuracies["sparse-error"] + 0.03

    def test_sec_finds_the_occlusion(self, faces, hidden):
        model = SEC(faces.shape).fit(faces.train, faces.train_people)
        found, truth = model.occlusion_mask(hidden.data[::5]), hidden.mask[::5]
        assert 2 * np.sum(found & truth) / (found.sum() + truth.sum()) > 0.8

    def test_sec_does_not_depend_on_the_unit_of_the_data(self, faces, hidden):
        X = hidden.data[:4]
        one = SEC(faces.shape).fit(faces.train, faces.train_people)
        other = SEC(faces.shape).fit(faces.train / 1024, faces.train_people)
        np.testing.assert_array_equal(one.occlusion_mask(X), other.occlusion_mask(X / 1024))
        np.testing.assert_allclose(one.residuals(X), other.residuals(X / 1024), atol=1e-6)

    def test_sec_without_thresholds_hides_nothing(self, faces, hidden):
        model = SEC(faces.shape, thresholds=()).fit(faces.train, faces.train_people)
        assert not model.occlusion_mask(hidden.data[:2]).any()


class TestConventions:
    @pytest.mark.parametrize("model", [SRC(), SEC()], ids=["src", "sec"])
    def test_sample_is_judged_by_itself(self, model):
        A = DICTIONARIES["digits"]
        model = clone(model).fit(A.T, np.arange(A.shape[1]) % 4)
        X = samples(A)
        np.testing.assert_allclose(model.residuals(X)[2], model.residuals(X[2:3])[0], rtol=1e-5)

    @pytest.mark.parametrize("model", [SRC(), SRC(constraint="sparse-error"), SEC()], ids=["src", "error", "sec"])
    def test_samples_of_zeros_are_classified(self, model):
        X = np.array([[1.0, 0, 2], [0, 0, 0], [0, 1, 1]])
        model = clone(model).fit(X, [0, 1, 1])
        assert model.predict(np.zeros((1, 3))).shape == (1,)
        assert np.isfinite(model.residuals(X)).all()

    @pytest.mark.parametrize("factor", [1e-200, 1e200])
    def test_src_does_not_depend_on_the_unit_of_the_data(self, factor):
        A = DICTIONARIES["digits"]
        model = SRC().fit(factor * A.T, np.arange(A.shape[1]) % 4)
        expected = SRC().fit(A.T, np.arange(A.shape[1]) % 4).residuals(samples(A))
        np.testing.assert_allclose(model.residuals(samples(A) * factor), expected, rtol=1e-5)

    def test_mask_of_a_data_frame_is_a_data_frame(self):
        frame = pd.DataFrame(np.eye(4) + 0.1, columns=list("abcd"), index=list("wxyz"))
        mask = SEC((2, 2)).fit(frame, [0, 0, 1, 1]).occlusion_mask(frame)
        assert isinstance(mask, pd.DataFrame)
        assert list(mask.columns) == list("abcd") and list(mask.index) == list("wxyz")
        assert all(dtype.kind == "b" for dtype in mask.dtypes)

    @pytest.mark.parametrize("model", [SRC(), SEC()], ids=["src", "sec"])
    def test_fitted_model_can_be_pickled(self, model):
        A = DICTIONARIES["wide"]
        model = clone(model).fit(A.T, np.arange(A.shape[1]) % 3)
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(model)).residuals(samples(A)), model.residuals(samples(A))
        )

    @pytest.mark.parametrize("model", [SRC(), SEC()], ids=["src", "sec"])
    @pytest.mark.parametrize("method", ["predict", "decision_function", "residuals", "codes"])
    def test_methods_ask_to_fit_first(self, model, method):
        with pytest.raises(NotFittedError):
            getattr(clone(model), method)(np.ones((1, 3)))

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    @pytest.mark.parametrize("model", [SRC(), SEC()], ids=["src", "sec"])
    def test_entries_that_are_not_finite_are_refused(self, model, bad):
        X = np.eye(3)
        model = clone(model).fit(X, [0, 1, 1])
        X[1, 2] = bad
        for call in (lambda: model.predict(X), lambda: clone(model).fit(X, [0, 1, 1])):
            with pytest.raises(ValueError, match=r"NaN|infinity"):
                call()

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (SRC(constraint="lasso"), "constraint must be one of noise, sparse-error, equality; got 'lasso'"),
            (SRC(tolerance=-0.1), r"tolerance must be a number in \[0, 1\).*got -0.1"),
            (SRC(tolerance=1.0), "tolerance"),
            (SRC(tolerance="small"), "tolerance"),
            (SRC(max_steps=0), "max_steps must be a positive integer; got 0"),
            (SEC((2, 2)), r"n_features = 6; got \(2, 2\)"),
            (SEC((6,)), "two positive integers"),
            (SEC((-2, -3)), "two positive integers"),
            (SEC((2.0, 3.0)), "two positive integers"),
            (SEC(thresholds=(0.5, 1.5)), r"thresholds must be a sequence of numbers in \(0, 1\)"),
            (SEC(thresholds=0.5), "thresholds"),
            (SEC(smoothness=-1), "smoothness"),
            (SEC(smoothness=np.inf), "smoothness"),
        ],
    )
    def test_bad_parameters_are_refused_in_words(self, model, words):
        with pytest.raises(ValueError, match=words):
            model.fit(np.random.default_rng(0).random((4, 6)), [0, 0, 1, 1])
