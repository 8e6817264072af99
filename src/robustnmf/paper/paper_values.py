"""The numbers that the paper prints, as data."""

import csv
from collections.abc import Mapping
from importlib.resources import files
from math import isnan, nan

# Columns of the files and ours.
_METHODS = {
    "kmeans": "kmeans",
    "l2-nmf": "nenmf",
    "l21-nmf": "l21",
    "rnmf-l1": "rnmf-l1",
    "l1-nmf": "mahnmf",
    "huber-nmf": "huber",
    "cim-nmf": "cim",
    "cauchy": "cauchy",
    "truncated-cauchy": "truncated-cauchy",
}

MISPRINTS: Mapping[tuple[str, str, float], tuple[float, str]] = {
    ("table2", "nenmf", 60.0): (
        34.28,
        "The paper prints 24.28, less than at 40 %; our L2-NMF and the trend of the column say 34.28.",
    ),
    ("table3 nmi", "cauchy", 16.0): (
        39.01,
        "The paper prints 19.01, half of its neighbours, with an accuracy like theirs; 39.01 is meant.",
    ),
}
"""Numbers that are believed to be misprints: what is meant, and why."""

Printed = Mapping[str, Mapping[float, float]]


def as_meant(printed: Printed, table: str, method: str, level: float) -> tuple[float, str]:
    """Return the paper's number, or what is meant by a misprint, and a note on that; NaN if the paper has none."""
    paper = printed.get(method, {}).get(level, nan)
    return (paper, "") if isnan(paper) else MISPRINTS.get((table, method, level), (paper, ""))


def _rows(name: str) -> list[dict[str, str]]:
    with files("robustnmf.paper").joinpath("tables", name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _by_method(name: str, suffix: str = "") -> Printed:
    """Return the values of a table by our name of the method and by level."""
    rows = _rows(name)
    level, *_ = rows[0]
    return {
        ours: {float(row[level]): float(row[theirs + suffix]) for row in rows}
        for theirs, ours in _METHODS.items()
        if theirs + suffix in rows[0]
    }


def laplace_errors() -> Printed:
    """Return the relative errors in percent of the table of Laplace noise, by method and deviation."""
    return _by_method("table1_laplace_error.csv")


def salt_and_pepper_errors() -> Printed:
    """Return the relative errors in percent of the table of salt and pepper, by method and share in percent."""
    return _by_method("table2_saltpepper_error.csv")


def occlusion_accuracies() -> Printed:
    """Return the accuracies in percent of the table of occlusion, by method and size of the block."""
    return _by_method("table3_occlusion_acc_nmi.csv", "_acc")


def occlusion_nmi() -> Printed:
    """Return the normalised mutual information in percent of the table of occlusion, by method and size."""
    return _by_method("table3_occlusion_acc_nmi.csv", "_nmi")


def recognition_accuracies() -> Mapping[str, Mapping[str, float]]:
    """Return the accuracies in percent of the table of recognition, by method (or "sec") and condition."""
    table = {}
    for row in _rows("table4_ar_recognition.csv"):
        theirs = row.pop("method").removesuffix("+src")
        table[_METHODS.get(theirs, theirs)] = {condition: float(value) for condition, value in row.items()}
    return table
