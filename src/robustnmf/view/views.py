"""What the page shows of a study, as plain objects for JSON; of large data at the resolution of a screen."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf.formats import Axis
from robustnmf.plots.base import numbers_of, positions_of
from robustnmf.plots.grids import image_of, panel_columns
from robustnmf.report.drawing import shrunk
from robustnmf.view.study import Study, dense_column

Matrix = NDArray[Any]

MOST_POINTS = 1200
"""Points of a line, at most."""
MOST_NAMES = 5000
"""Names that are sent with the overview, at most, of samples and of features."""
MOST_CELLS = 640
"""Cells of a map along each side, at most."""
LONGEST_SIDE, WIDEST_PICTURE = 256, 512
"""Pixels of an image along each side, at most, and of channels side by side together."""
DENSE_ENTRIES = 2**21
"""Entries of a map that are looked at for one picture, at most; of more, every few samples are taken."""
MOST_PROFILE = 300
"""Features of a table whose shares are sent, at most."""
LISTED = 200
"""Outliers that are listed."""
LONGEST_NAME = 80
MOST_DIGITS = 10
"""Signs of a name that is a number, at most."""
SHOWN_DIGITS = 4
"""Digits of a number on the page."""


def overview(study: Study) -> dict[str, Any]:
    """Return what the data is, and what came of the fit."""
    n_samples, n_features = study.shape
    samples, features = study.matrix.samples, study.matrix.features
    positions, is_time = positions_of(samples.names, n_samples)
    return {
        "name": study.name,
        "revision": study.revision,
        "shape": [n_samples, n_features],
        "samples": _names(samples.names, n_samples),
        "features": _names(features.names, n_features),
        "units": study.matrix.unit,
        "times": positions.astype("datetime64[ms]").astype(np.int64).tolist() if is_time else None,
        "sample_axis": _axis(samples),
        "feature_axis": _axis(features),
        "notes": list(study.matrix.notes),
        "verdicts": [[i, j, verdict] for (i, j), verdict in sorted(study.verdicts.items())],
        "fit": _fit(study),
        "ranks": _ranks(study),
        "job": job(study),
    }


def _axis(axis: Axis) -> dict[str, Any]:
    """Return what samples or features are: points of a grid, of a scale, or neither."""
    few = axis.names is not None and len(axis.names) <= MOST_NAMES
    numbers = numbers_of(list(axis.names)) if few and axis.names is not None else None
    return {
        "title": axis.title if axis.is_scale else None,
        "grid": axis.grid,
        "grid_names": axis.grid_names,
        "picture": axis.picture_shape,
        "numbers": None if numbers is None else _numbers(numbers),
        "units": axis.units if few else None,
        "is_scale": axis.is_scale,
    }


def job(study: Study) -> dict[str, Any] | None:
    """Return how far the work in the background has come."""
    found = study.job
    if found is None:
        return None
    return {
        "kind": found.kind,
        "state": found.state,
        "progress": round(found.progress, 3),
        "message": found.message,
        "revision": study.revision,
        "ranks": _ranks(study) if found.kind == "rank" else None,
    }


def _fit(study: Study) -> dict[str, Any] | None:
    if study.fitted is None:
        return None
    model = study.fitted.model
    totals = study.fitted.codes.sum(axis=0, dtype=np.float64) * study.fitted.components.sum(axis=1, dtype=np.float64)
    return {
        "rank": int(model.n_components_),
        "method": str(model.method),
        "scale": _number(model.scale_),
        "iterations": int(model.n_iter_),
        "converged": bool(model.converged_),
        "outlier_share": study.fitted.outlier_share,
        "shares": _numbers(totals / (totals.sum() or 1.0)),
        "warnings": list(study.fitted.warnings),
        "reason": getattr(getattr(model, "comparison_", None), "reason", None),
        "unit": "widths of the noise" if getattr(model, "noise_", None) is not None else "scales",
        "threshold": _typical_threshold(model),
    }


def _ranks(study: Study) -> dict[str, Any] | None:
    found = study.ranks
    if found is None:
        return None
    return {
        "ranks": found.ranks.tolist(),
        "scores": _numbers(found.mean),
        "errors": _numbers(found.standard_error),
        "chosen": int(found.chosen),
    }


def components(study: Study) -> dict[str, Any]:
    """Return the components: images of a screen's size, or lines."""
    fit = study.need_fit()
    C = fit.components
    given = fit.codes.sum(axis=0, dtype=np.float64)[:, None] * C
    total = given.sum(axis=0)
    percent = 100 * given / np.where(total > 0, total, 1)
    return {
        "lines": [_pooled_line(line) for line in C],
        "images": _images(C, study.matrix.features.picture_shape),
        # Of what all components give to a feature; for tables, whose features one can read.
        "percent": [_numbers(line) for line in percent] if C.shape[1] <= MOST_PROFILE else None,
    }


def contributions(study: Study) -> dict[str, Any]:
    """Return what each component gives to each sample, as lines; and as maps, where samples are points of a grid."""
    fit = study.need_fit()
    given = fit.codes * fit.components.sum(axis=1)
    return {
        "lines": [_pooled_line(line) for line in given.T],
        "images": _images(fit.codes.T, study.matrix.samples.picture_shape),
    }


def sample(study: Study, place: int, start: int = 0, stop: int | None = None) -> dict[str, Any]:
    """Return the entries of a sample; where samples are images, also its pictures: data, cleaned and outliers."""
    fit, part = study.need_fit(), slice(max(start, 0), stop)
    measured, explained = study.rows([place])[0], fit.codes[place] @ fit.components
    wrong, features = study.is_outlier([place])[0], np.arange(study.shape[1])
    found = _entries(study, measured[part], explained[part], wrong[part], features[part], part.start)
    shape = study.matrix.features.picture_shape
    if shape is not None:
        found["pictures"] = _pictures(measured, explained, wrong, shape)
    return found


def _pictures(measured: Matrix, explained: Matrix, wrong: Matrix, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a sample as images: data, cleaned and outliers."""
    cleaned = np.where(wrong | np.isnan(measured), explained, measured)
    top = float(np.nanmax(np.where(wrong, np.nan, measured), initial=0.0)) or 1.0
    return {
        "data": _picture(_image(measured, shape), top),
        "clean": _picture(_image(cleaned, shape), top),
        "outliers": _mask(_image(wrong.astype(float), shape)),
    }


def feature(study: Study, place: int, start: int = 0, stop: int | None = None) -> dict[str, Any]:
    """Return the entries of a feature over all samples; where samples are pixels, also as pictures."""
    fit, part = study.need_fit(), slice(max(start, 0), stop)
    measured, explained = dense_column(study.matrix.values[part], place), fit.codes[part] @ fit.components[:, place]
    wrong = dense_column(fit.outliers[part], place).astype(bool)
    for (i, j), verdict in study.verdicts.items():
        if j == place and 0 <= i - part.start < len(wrong):
            wrong[i - part.start] = verdict == "reject"
    found = _entries(study, measured, explained, wrong, np.full(len(measured), place), part.start)
    shape = study.matrix.samples.picture_shape
    if shape is not None and len(measured) == study.shape[0]:
        found["pictures"] = _pictures(measured, explained, wrong, shape)
    return found


def _entries(
    study: Study, measured: Matrix, explained: Matrix, wrong: Matrix, features: Matrix, start: int
) -> dict[str, Any]:
    """Return entries along a line from a place on, (k,) each; of many, of each few the one that fits worst."""
    ratios = _ratios(study, measured, explained, features)
    count = len(ratios)
    step = max(1, ceil(count / MOST_POINTS))
    places = np.arange(count)
    if step > 1:
        strength = np.nan_to_num(np.abs(ratios)) + 1e6 * wrong
        padded = np.append(strength, np.full(-count % step, -1.0)).reshape(-1, step)
        places = np.arange(0, count, step) + padded.argmax(axis=1)
    return {
        "start": start,
        "places": (places + start).tolist(),
        "measured": _numbers(measured[places]),
        "explained": _numbers(explained[places]),
        "ratio": _numbers(ratios[places]),
        "outlier": wrong[places].astype(int).tolist(),
    }


def all_entries(study: Study) -> dict[str, Any]:
    """Return every entry, as rows of samples, with the digits that are shown."""
    measured, explained, ratios = _with_ratios(study, slice(None))
    rows = {"measured": measured, "explained": explained, "ratio": ratios}
    outliers = study.is_outlier(slice(None)).astype(int).tolist()
    return {name: [_numbers(row, SHOWN_DIGITS) for row in values] for name, values in rows.items()} | {
        "outlier": outliers
    }


def _with_ratios(study: Study, rows: slice) -> tuple[Matrix, Matrix, Matrix]:
    """Return what was measured and explained in some samples, and residuals in units of the noise, (k, m) each."""
    fit = study.need_fit()
    measured, explained = study.rows(rows), fit.codes[rows] @ fit.components
    features = np.broadcast_to(np.arange(study.shape[1]), measured.shape)
    ratios = _ratios(study, measured.ravel(), explained.ravel(), features.ravel())
    return measured, explained, ratios.reshape(measured.shape)


def _ratios(study: Study, measured: Matrix, explained: Matrix, features: Matrix) -> Matrix:
    """Return residuals in units of the noise, (k,)."""
    model = study.need_fit().model
    noise = getattr(model, "noise_", None)
    if noise is None:
        typical = getattr(model, "_noise", None)
        width = float(model.scale_) * (np.ones(len(features)) if typical is None else np.asarray(typical)[features])
    else:
        chosen = {name: np.asarray(getattr(noise, name))[features] for name in ("widths", "levels", "largest")}
        width = replace(noise, **chosen).width(explained, np)
    return np.asarray((measured - explained) / np.where(width > 0, width, np.inf))


def _typical_threshold(model: Any) -> float | None:
    noise = getattr(model, "noise_", None)
    if noise is not None:
        return None if noise.lenient else _number(noise.threshold)
    typical = getattr(model, "_noise", None)
    limits = model.thresholds_ / (model.scale_ * (1.0 if typical is None else typical))
    finite = limits[np.isfinite(limits)]
    return _number(np.median(finite)) if finite.size else None


def outlier_map(study: Study, rows: tuple[int, int], columns: tuple[int, int], size: tuple[int, int]) -> dict[str, Any]:
    """Return the share of outliers in cells of a part of the data, as bytes; missing entries count as none.

    Parameters
    ----------
    rows, columns : (int, int)
        First, and behind the last, sample and feature.
    size : (int, int)
        Height and width of the map on the screen.
    """
    study.need_fit()
    top, bottom = _limits(rows, study.shape[0])
    left, right = _limits(columns, study.shape[1])
    height, width = (max(1, min(side, MOST_CELLS)) for side in size)
    step = max(1, (bottom - top) * (right - left) // DENSE_ENTRIES)
    taken = slice(top, bottom, step)
    mask = study.is_outlier(taken, slice(left, right))
    shares = pooled_share(mask, (height, width))
    return {
        "rows": [top, bottom],
        "columns": [left, right],
        "height": shares.shape[0],
        "width": shares.shape[1],
        "sampled": step,
        "cells": _bytes(np.ceil(255 * shares)),
    }


def outlier_list(study: Study) -> list[dict[str, Any]]:
    """Return the outliers that are furthest from what is explained, the furthest first."""
    fit = study.need_fit()
    step = max(1, study.shape[0] * study.shape[1] // (8 * DENSE_ENTRIES))
    rows = np.arange(0, study.shape[0], step)
    mask = fit.outliers[::step]
    places = np.stack(mask.nonzero(), axis=1) if not hasattr(mask, "tocoo") else _coordinates(mask)
    if len(places) == 0:
        return []
    samples, features = rows[places[:, 0]], places[:, 1]
    measured = _at(study.matrix.values, samples, features)
    explained = np.einsum("ik,ki->i", fit.codes[samples], fit.components[:, features])
    ratios = _ratios(study, measured, explained, features)
    order = np.argsort(-np.abs(ratios), kind="stable")[:LISTED]
    columns = {"measured": measured, "explained": explained, "ratio": ratios}
    return [
        {"sample": int(samples[i]), "feature": int(features[i])}
        | {name: _number(values[i]) for name, values in columns.items()}
        for i in order
    ]


def _coordinates(mask: Any) -> Matrix:
    found = mask.tocoo()
    return np.stack([found.row, found.col], axis=1)


def _at(values: Any, samples: Matrix, features: Matrix) -> Matrix:
    return np.asarray(values[samples, features]).reshape(-1).astype(np.float64)


def residual_histogram(study: Study, bins: int = 61) -> dict[str, Any]:
    """Return how many entries have which residual, in units of the noise: all, and outliers."""
    fit = study.need_fit()
    step = max(1, study.shape[0] * study.shape[1] // DENSE_ENTRIES)
    rows = slice(None, None, step)
    ratios, wrong = _with_ratios(study, rows)[2], study.is_outlier(rows)
    end = 3 * (_typical_threshold(fit.model) or 5.0)
    edges = np.linspace(-end, end, bins + 1)
    seen = np.isfinite(ratios)
    counts = [np.histogram(np.clip(ratios[seen & part], -end, end), edges)[0] for part in (~wrong, wrong)]
    return {"edges": _numbers(edges), "kept": counts[0].tolist(), "outliers": counts[1].tolist(), "sampled": step}


def pooled_share(mask: Matrix, size: tuple[int, int]) -> Matrix:
    """Return the share of True in the cells of a mask: at most `size` cells, each of several entries.

    Examples
    --------
    >>> pooled_share(np.array([[True, False, False, False]]), (1, 2))
    array([[0.5, 0. ]])
    """
    shares: Matrix = mask.astype(np.float32)
    for axis, most in enumerate(size):
        step = ceil(shares.shape[axis] / most)
        if step > 1:
            starts = np.arange(0, shares.shape[axis], step)
            counts = np.diff(np.append(starts, shares.shape[axis]))
            sums = np.add.reduceat(shares, starts, axis=axis)
            shares = sums / (counts[:, None] if axis == 0 else counts)
    return shares


def _limits(given: tuple[int, int], count: int) -> tuple[int, int]:
    first = min(max(given[0], 0), count - 1)
    return first, min(max(given[1], first + 1), count)


def _images(lines: Matrix, shape: tuple[int, ...] | None) -> list[dict[str, Any]] | None:
    """Return rows of a matrix as images, if its columns are pixels."""
    if shape is None:
        return None
    return [_picture(_image(line, shape), float(line.max()) or 1.0) for line in lines]


def _image(values: Matrix, shape: tuple[int, ...]) -> Matrix:
    """Return pixels as an image no larger than a screen needs: in grey, in colour, or with channels side by side."""
    longest = max(32, min(LONGEST_SIDE, WIDEST_PICTURE // panel_columns(shape)))
    return image_of(values, shape, partial(shrunk, longest=longest))


def _picture(image: Matrix, top: float) -> dict[str, Any]:
    """Return an image as bytes: grey from 1 to 255, which is `top`, 0 where missing; or red, green, blue, opacity."""
    levels, seen = np.round(255 * np.clip(np.nan_to_num(image) / top, 0, 1)), ~np.isnan(image)
    if image.ndim == 2:
        return _sized(np.where(seen, np.maximum(levels, 1), 0))
    opacity = 255 * seen.all(axis=-1, keepdims=True)
    return _sized(np.concatenate([levels, opacity], axis=-1))


def _mask(image: Matrix) -> dict[str, Any]:
    """Return shares of outliers as bytes, 0 none and 255 all; of a pixel in colour the share of its colours."""
    shares = np.nan_to_num(image)
    return _sized(np.ceil(255 * (shares if image.ndim == 2 else shares.mean(axis=-1))))


def _sized(pixels: Matrix) -> dict[str, Any]:
    return {"height": pixels.shape[0], "width": pixels.shape[1], "colour": pixels.ndim == 3, "bytes": _bytes(pixels)}


def _bytes(values: Matrix) -> str:
    return b64encode(np.ascontiguousarray(values, dtype=np.uint8).tobytes()).decode("ascii")


def _pooled_line(values: Matrix) -> dict[str, Any]:
    """Return a line of at most so many points; of each few the largest, so that no peak gets lost."""
    step = max(1, ceil(len(values) / MOST_POINTS))
    if step > 1:
        values = np.maximum.reduceat(values, np.arange(0, len(values), step))
    return {"step": step, "values": _numbers(values)}


def _numbers(values: Any, digits: int = 6) -> list[float | None]:
    """Return numbers with so many digits; None for what is none."""
    return [_number(value, digits) for value in np.asarray(values, dtype=np.float64).ravel().tolist()]


def _number(value: Any, digits: int = 6) -> float | None:
    return float(f"{value:.{digits}g}") if isfinite(value) else None


def _names(names: Sequence[str] | None, count: int) -> list[str] | None:
    if names is None or count > MOST_NAMES:
        return None
    return [_short_name(name) for name in names]


def _short_name(name: str) -> str:
    """Return a name that is not endless; a number with many digits is rounded, as in reports.

    Examples
    --------
    >>> _short_name("476.56129032258065"), _short_name("Sulphate")
    ('476.56129', 'Sulphate')
    """
    if MOST_DIGITS < len(name) <= LONGEST_NAME and name.replace(".", "", 1).isdecimal() and "." in name:
        return f"{float(name):.8g}"
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
