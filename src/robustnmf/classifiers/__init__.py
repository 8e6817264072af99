"""Classifiers of the paper: sparse representation (SRC) and sparse error correction (SEC)."""

from robustnmf.classifiers.sparse import (
    Explanation,
    SparseErrorCorrectionClassifier,
    SparseRepresentationClassifier,
)

__all__ = ["Explanation", "SparseErrorCorrectionClassifier", "SparseRepresentationClassifier"]
