"""Measures of quality."""

import numpy as np
import pytest

from robustnmf.metrics import outlier_scores, relative_error


def test_relative_error_is_the_ratio_of_frobenius_norms():
    rng = np.random.default_rng(0)
    A, B = rng.random((5, 4)), rng.random((5, 4))
    assert relative_error(A, B) == pytest.approx(np.sqrt(((A - B) ** 2).sum() / (A**2).sum()))
    assert relative_error(A, A) == 0


@pytest.mark.parametrize(
    ("clean", "estimate"), [(np.ones((2, 2)), np.ones((2, 3))), (np.zeros((2, 2)), np.ones((2, 2)))]
)
def test_relative_error_refuses_what_has_no_answer(clean, estimate):
    with pytest.raises(ValueError, match=r"same shape|not defined"):
        relative_error(clean, estimate)


def test_outlier_scores_count_hits():
    truth = np.array([1, 1, 1, 0, 0, 0], dtype=bool)
    mask = np.array([1, 1, 0, 1, 0, 0], dtype=bool)
    scores = outlier_scores(truth, mask)
    assert scores == pytest.approx((2 / 3, 2 / 3, 2 / 3))


def test_outlier_scores_of_an_empty_mask_are_zero():
    assert outlier_scores(np.ones(3, bool), np.zeros(3, bool)) == (0, 0, 0)


def test_outlier_scores_need_equal_shapes():
    with pytest.raises(ValueError, match="same shape"):
        outlier_scores(np.ones(3, bool), np.ones(4, bool))
