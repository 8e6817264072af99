"""What each field draws first: contributions, profiles, shares of features, residuals, measured entries."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from robustnmf import plots
from robustnmf.data.sparse import as_rows
from robustnmf.plots.base import OUTLIER_COLOUR, positions_of
from robustnmf.report.card import Card
from robustnmf.report.drawing import draw
from robustnmf.report.facts import Facts

# Entries of the samples that are drawn; of more, every few samples are.
ENOUGH_ENTRIES = 2**21
# Points of each picture, and samples along the axis of contributions.
MOST_POINTS, MOST_SAMPLES = 800, 1500
# Features whose profiles and shares can be read.
MOST_FEATURES = 60
# Components whose profiles are drawn above each other.
MOST_PROFILES = 24


def explaining_cards(
    facts: Facts,
    X: Any,
    weights: Any,
    uncertainties: Any,
    *,
    feature_names: Sequence[str],
    index: Any,
    units: str,
    images: bool,
    maps: bool = False,
) -> Iterator[Card]:
    """Yield pictures of what components give and of what is left.

    Parameters
    ----------
    facts : Facts
        The model, its data and the codes.
    X, weights, uncertainties
        As in the fit.
    feature_names : sequence of str
        Names of the features.
    index : sequence or None
        Names of the samples, dates perhaps.
    units : str
        Unit of the data.
    images : bool
        Whether samples are images, whose features nobody reads one by one.
    maps : bool
        Whether samples are pixels, of which there are maps.
    """
    model, codes = facts.model, facts.codes_in_units
    names: dict[str, Any] = {"feature_names": feature_names}
    every = ceil(len(codes) / MOST_SAMPLES)
    shown = list(positions_of(index, len(codes))[0][::every])

    def contributions(figure: Any) -> None:
        ax = framed(figure, right=1.35, top=0.2)  # above large numbers stands a power of ten
        how: dict[str, Any] = {"kind": "lines" if images else "stacked", "index": shown, "units": units}
        plots.contributions(model, codes=codes[::every], **how, **names, ax=ax)

    if not maps:
        yield _card("What components give to each sample", contributions, "contributions", (9.0, 2.9))
    if images:
        yield _card("Pixels rejected in each sample", partial(_rejected, facts, index), "rejected", (9.0, 2.0))
    step = ceil(facts.shape[0] * facts.shape[1] / ENOUGH_ENTRIES)
    some = [None if rows is None else _every(rows, step) for rows in (X, weights, uncertainties)]
    about: dict[str, Any] = {"weights": some[1], "uncertainties": some[2]}
    if not images and facts.shape[1] <= MOST_FEATURES:
        yield from _table_cards(facts, X, weights, uncertainties, names, units)
        yield _feature_residuals(facts, some[0], about, names)

    def residuals(figure: Any) -> None:
        plots.residual_histogram(model, some[0], **about, ax=framed(figure))

    yield _card("Residuals in the units in which they were judged", residuals, "residuals", (4.6, 3.0))

    def points(figure: Any) -> None:
        options: dict[str, Any] = {"codes": codes[::step], "most_points": MOST_POINTS}
        plots.observed_vs_explained(model, some[0], **options, **about, ax=framed(figure))

    yield _card("Measured over explained entries", points, "explained", (4.6, 3.0))


def _rejected(facts: Facts, index: Any, figure: Any) -> None:
    """Draw the share of outliers of each sample; of many, the largest of each few."""
    (x, is_time), ax = positions_of(index, facts.shape[0]), framed(figure, right=1.35)
    every = ceil(facts.shape[0] / MOST_SAMPLES)
    shares = np.maximum.reduceat(facts.samples.cut, np.arange(0, facts.shape[0], every))
    ax.fill_between(x[::every], 100 * shares, color=OUTLIER_COLOUR, linewidth=0, step="mid")
    ax.set(xlabel="" if is_time else "sample", ylabel="%", ylim=(0, None))
    ax.margins(x=0)


def framed(figure: Any, left: float = 0.75, right: float = 0.12, bottom: float = 0.45, top: float = 0.1) -> Any:
    """Return the axes of a figure with margins in inches: to find them out takes longer than to draw."""
    set_margins(figure, left, right, bottom, top)
    return figure.subplots()


def set_margins(figure: Any, left: float, right: float, bottom: float, top: float) -> None:
    """Set the margins of a figure, in inches."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height, hspace=0.15)


def _card(caption: str, paint: Callable[[Any], None], name: str, size: tuple[float, float]) -> Card:
    return Card(caption, svg=draw(paint, name, size, layout=None))


def _every(X: Any, step: int) -> Any:
    """Return every few rows; a data frame stays one, with its names."""
    return X.iloc[::step] if hasattr(X, "iloc") else as_rows(X)[::step]


def _table_cards(
    facts: Facts, X: Any, weights: Any, uncertainties: Any, names: dict[str, Any], units: str
) -> Iterator[Card]:
    """Yield the profile of each component, and which part of each feature components explain."""
    model, codes = facts.model, facts.codes_in_units
    width, below = _sizes_of_names(facts, names)
    rank = len(codes.T)

    def profiles(figure: Any) -> None:
        set_margins(figure, 1.0, 0.55, below, 0.1)
        plots.profiles(model, codes=codes, units=units, **names, figure=figure)

    if rank <= MOST_PROFILES:
        caption = "What components give to an average sample (bars), and their share of each feature (dots)"
        yield _card(caption, profiles, "profiles", (width, below + 0.1 + 1.05 * rank))

    def shares(figure: Any) -> None:
        about = {"codes": codes, "weights": weights, "uncertainties": uncertainties}
        plots.explained_share(model, X, **about, **names, ax=framed(figure, right=1.35, bottom=below))

    yield _card("Which part of each feature is explained", shares, "shares", (width + 1.2, below + 2.2))


def _feature_residuals(facts: Facts, X: Any, about: dict[str, Any], names: dict[str, Any]) -> Card:
    """Return how large the residuals of each feature are."""
    width, below = _sizes_of_names(facts, names)

    def histograms(figure: Any) -> None:
        plots.residuals(facts.model, X, kind="features", **about, **names, ax=framed(figure, right=0.3, bottom=below))

    return _card("Residuals of each feature", histograms, "residuals-of-features", (width + 1.2, below + 2.2))


def _sizes_of_names(facts: Facts, names: dict[str, Any]) -> tuple[float, float]:
    """Return how wide a picture is that has the names of features below it, and how high they are, in inches."""
    return 1.75 + 0.26 * facts.shape[1], 0.2 + 0.075 * min(max(map(len, names["feature_names"])), 30)


def q_ratio(facts: Facts, uncertainties: Any) -> str | None:
    """Return the sum of squared residuals in units of their uncertainties, over what is expected, in words.

    Both are of the entries that are kept: Q is about their number less that of the parameters, if the uncertainties are
    right and the rank is. None without uncertainties.
    """
    if uncertainties is None:
        return None
    U = np.asarray(as_rows(uncertainties), dtype=np.float64)
    Q, count = 0.0, 0
    for rows in facts.blocks():
        kept = facts.observed(rows) & ~facts.model.outliers_[rows]
        left = facts.residual_in_units(rows)[kept] / U[rows][kept]
        Q, count = Q + float(left @ left), count + int(kept.sum())
    expected = count - len(facts.model.components_) * sum(facts.shape)
    if expected <= 0:
        return None
    return f"{Q / expected:.3g} (1 if uncertainties and rank are right; {count} entries are kept)"
