"""The page of a fitted model: one HTML file, complete in itself."""

import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustnmf import plots
from robustnmf.methods import METHODS
from robustnmf.plots.grids import check_picture_shape, image_of, panel_columns
from robustnmf.report.card import Card
from robustnmf.report.diagnoses import Diagnosis, Verdict, diagnose, some_names
from robustnmf.report.drawing import draw, picture, png, pool, shrunk
from robustnmf.report.facts import UNUSUAL, Facts, Lines
from robustnmf.report.pictures import explaining_cards, framed, q_ratio, set_margins
from robustnmf.report.summary import percent, seconds, short
from robustnmf.report.template import template
from robustnmf.utils.files import is_sealed, sealed, write_proven
from robustnmf.version import __version__

Matrix = NDArray[Any]

# Bounds of the page, whatever the size of the data.
MOST_CARDS = 48  # components that are drawn
MOST_POINTS = 400  # of a line
MOST_ENTRIES = 800  # that are drawn, and as many outliers
LEAST_CELLS = 512  # fewer are drawn larger: a browser that shrinks rows must not blur broad columns
LONGEST_SIDE = 160  # of an image, in pixels
MOST_CELLS = 1024  # of the map, along each side
MOST_NAMES = 1000  # that the map knows, along each side
LONGEST_NAME = 60
LONGEST_TITLE = 200
WORST = 10  # samples and features by each measure
PICTURED = 10  # samples that are shown as images
MOST_MASKS = 120  # samples whose outliers are shown as images

# Mark, and words for one and for several, of each verdict.
VERDICTS: Mapping[Verdict, tuple[str, str, str]] = {
    "bad": ("✗", "problem", "problems"),
    "doubt": ("!", "point to look at", "points to look at"),
    "good": ("✓", "point is fine", "points are fine"),
    "open": ("–", "cannot be told", "cannot be told"),
}

# Colours of the map: kept entries let the page shine through, cells with few outliers are paler than those with many.
SHADES = 8
PALETTE = np.array(
    [(0, 0, 0, 0), (138, 138, 138, 150), *((214, 39, 40, 120 + 135 * k // (SHADES - 1)) for k in range(SHADES))],
    dtype=np.uint8,
)


@dataclass(frozen=True)
class Row:
    """A sample or a feature in a table."""

    place: int
    name: str
    cut: float
    residual: float
    """In units of the typical one; NaN if nothing is observed."""
    missing: float


@dataclass(frozen=True)
class OutlierMap:
    """The outliers of all entries, or of cells of several."""

    image: str
    rows: int
    columns: int
    n_samples: int
    n_features: int

    @property
    def per_cell(self) -> tuple[int, int]:
        """Samples and features of one cell."""
        return -(-self.n_samples // MOST_CELLS), -(-self.n_features // MOST_CELLS)

    @property
    def ratio(self) -> float:
        """Width of the map divided by its height: cells are square if that fits a page."""
        return float(np.clip(self.columns / self.rows, 1.2, 3.0))


def write(
    model: Any,
    X: Any,
    path: Path | str,
    *,
    image_shape: tuple[int, ...] | None = None,
    map_shape: tuple[int, ...] | None = None,
    feature_names: Sequence[Any] | None = None,
    sample_names: Sequence[Any] | None = None,
    title: str | None = None,
    units: str = "",
    weights: Any = None,
    uncertainties: Any = None,
) -> Path:
    """Write a report of a fitted model: one HTML page that works offline, and return its path.

    It shows what came of the fit, what speaks for and against it, the components, the outliers, the worst samples and
    features, the course of the fit and its parameters. Needs the extra ``report``.

    Parameters
    ----------
    model : RobustNMF
        A fitted estimator.
    X : array-like (n_samples, n_features)
        The data it was fitted to; NaN is missing.
    path : path-like
        The file. An earlier report is replaced in one step; any other file is refused.
    image_shape : (height, width), (height, width, 3), (channels, height, width) or None
        Shape of the image that each sample is, by default that of the model; None draws components as lines or bars.
    map_shape : (height, width), (slices, height, width) or None
        Shape of the image whose pixels the samples are; the page then has a map of each component.
    feature_names, sample_names : sequence or None
        Names, by default those of a data frame, or numbers from 0.
    title : str or None
        Heading of the page.
    units : str
        Unit of the data, for labels.
    weights, uncertainties : array-like (n_samples, n_features) or None
        The weights and uncertainties of the fit, if it had any. With uncertainties, residuals are in units of them.

    Returns
    -------
    Path
        The file.
    """
    path = Path(path)
    with write_proven(path, is_sealed) as temporary:
        names: dict[str, Any] = {"feature_names": feature_names, "sample_names": sample_names}
        of_entries = {"weights": weights, "uncertainties": uncertainties}
        shapes: dict[str, Any] = {"image_shape": image_shape, "map_shape": map_shape}
        page = render(model, X, title=title, units=units, **shapes, **names, **of_entries)
        # A name or a parameter may hold half of a surrogate pair, of which UTF-8 knows nothing.
        temporary.write_bytes(sealed(page.encode("utf-8", "backslashreplace")))
    return path


def render(
    model: Any,
    X: Any,
    *,
    image_shape: tuple[int, ...] | None = None,
    map_shape: tuple[int, ...] | None = None,
    feature_names: Sequence[Any] | None = None,
    sample_names: Sequence[Any] | None = None,
    title: str | None = None,
    units: str = "",
    weights: Any = None,
    uncertainties: Any = None,
) -> str:
    """Return the report as HTML; see `write`."""
    page = template("robustnmf.report", "model.html.j2")  # first of all: without Jinja2 the work would be in vain
    check_complete(model)
    facts = Facts.of(model, X, weights, uncertainties)
    n_samples, n_features = facts.shape
    image_shape = model.image_shape if image_shape is None else image_shape
    shape = None if image_shape is None else check_picture_shape(image_shape, n_features)
    map_shape = None if map_shape is None else check_picture_shape(map_shape, n_samples, "map_shape")
    features = names_of(feature_names, getattr(model, "feature_names_in_", None), n_features, "feature")
    samples = names_of(sample_names, getattr(X, "index", None), n_samples, "sample")
    worst_samples = worst(facts.samples, samples, facts.typical_residual)
    diagnoses = diagnose(facts, features, samples, images=shape is not None)
    known = sample_names if sample_names is not None else getattr(X, "index", None)
    labels: dict[str, Any] = {"feature_names": features, "units": printable(units)}
    labels["index"] = None if known is None or callable(known) else samples
    labels |= {"images": shape is not None, "maps": map_shape is not None}
    explained = explaining_cards(facts, X, weights, uncertainties, **labels)
    text = page.render(
        title=printable(title or "", LONGEST_TITLE)
        or f"{type(model).__name__} of {n_samples} × {n_features} entries, rank {model.n_components_}",
        summary=overview(facts, uncertainties),
        diagnoses=diagnoses,
        verdicts=VERDICTS,
        percent=percent,
        counts=tally(diagnoses),
        components=list(component_cards(facts, shape, features)),
        maps=[] if map_shape is None else list(map_cards(facts, map_shape)),
        explained=list(explained),
        shown=MOST_CARDS,
        panels=0 if shape is None else panel_columns(shape),
        map_panels=0 if map_shape is None else panel_columns(map_shape),
        history=list(history_cards(model)),
        map=outlier_map(facts),
        names={
            "sample": samples if n_samples <= MOST_NAMES else [],
            "feature": features if n_features <= MOST_NAMES else [],
        },
        pictures=list(sample_cards(facts, shape, worst_samples)) if shape else [],
        masks=mask_cards(facts, shape, samples) if shape else [],
        noise=noise_card(facts, X, weights, uncertainties, features) if getattr(model, "noise_", None) else None,
        tables={"Sample": worst_samples, "Feature": worst(facts.features, features, facts.typical_residual)},
        sizes={"Sample": n_samples, "Feature": n_features},
        gaps=facts.missing_share > 0,
        parameters={name: short(value) for name, value in model.get_params(deep=False).items()},
        parts={field.name: short(getattr(model.parts_, field.name)) for field in fields(model.parts_)},
        versions=versions(),
    )
    return str(text)


def check_complete(model: Any) -> None:
    """Raise unless a model has all that the page shows: parts of it may be deleted to make its file smaller."""
    plots.check_fitted(model)
    missing = [] if hasattr(model, "outliers_") else ["outliers_"]
    columns = ("objective", "scale", "outlier_share", "seconds", "relative_change")
    missing += [f"history_[{name!r}]" for name in columns if name not in model.history_]
    if missing:
        raise ValueError(
            f"A report needs a model as the fit left it; this one lacks {', '.join(missing)}. Fit again, and write the "
            "report before deleting anything."
        )


def names_of(given: Any, known: Any, count: int, what: str) -> list[str]:
    """Return names of samples or features that can be shown: those given, or known, or numbers."""
    known = given if given is not None else None if callable(known) else known  # a list has a method `index`
    if known is None:
        return [str(place) for place in range(count)]
    texts = plots.check_names([f"{n:.8g}" if isinstance(n, float) else n for n in known], count, what)
    return [printable(text) or f"({place})" for place, text in enumerate(texts)]


def printable(text: str, longest: int = LONGEST_NAME) -> str:
    r"""Return a text that can be shown: nothing invisible, not endless.

    Examples
    --------
    >>> printable("a\x00b"), len(printable("x" * 1000))
    ('a�b', 60)
    """
    text = "".join(letter if letter.isprintable() else "�" for letter in text[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"


def overview(facts: Facts, uncertainties: Any = None) -> dict[str, str]:
    """Return the fit in a few lines."""
    model = facts.model
    n_samples, n_features = facts.shape
    residual, data = facts.norms
    missing = f", {percent(facts.missing_share)} missing" if facts.missing_share else ""
    q = q_ratio(facts, uncertainties)
    return {
        "Data": f"{n_samples} samples × {n_features} features{missing}",
        "Method": _method(model),
        "Rank": str(model.n_components_),
        "Iterations": f"{model.n_iter_} in {seconds(model):.2g} s",
        "Scale of the noise": f"{model.scale_:.4g}",
        "Outliers": f"{percent(facts.outlier_share)} of the observed entries",
        "Relative error": f"{percent(residual / data if data else 0.0)} over the entries that are kept",
        **({} if q is None else {"Q / expected": q}),
    }


def _method(model: Any) -> str:
    """Return the method in words; a file of another version may name one that this does not know."""
    known = METHODS.get(str(model.method))
    title = "" if known is None else f"{known.title} "
    return f"{title}({printable(str(model.method))}), preset {printable(str(model.preset))}"


def tally(diagnoses: Sequence[Diagnosis]) -> list[tuple[Verdict, str]]:
    """Return how often each verdict was given, in words, the gravest first."""
    counts = Counter(diagnosis.verdict for diagnosis in diagnoses)
    return [(v, f"{counts[v]} {VERDICTS[v][2 if counts[v] > 1 else 1]}") for v in VERDICTS if counts[v]]


def component_cards(facts: Facts, shape: tuple[int, ...] | None, names: list[str]) -> Iterator[Card]:
    """Yield pictures of the components, of many those that give most."""
    C = facts.model.components_
    for number, caption in _captions(facts):
        if shape is not None:
            image = image_of(C[number], shape, _pooled)
            yield Card(caption, image=picture(image, float(np.nanmax(image))))
        else:
            yield Card(caption, svg=_curve(C[number], names, f"component-{number}"))


def map_cards(facts: Facts, shape: tuple[int, ...]) -> Iterator[Card]:
    """Yield where components are: their codes as images, of many components those that give most."""
    codes = facts.codes_in_units
    for number, caption in _captions(facts):
        image = image_of(codes[:, number], shape, _pooled)
        yield Card(caption, image=picture(image, float(np.nanmax(image))))


def _captions(facts: Facts) -> list[tuple[int, str]]:
    """Return number and caption of the components that are drawn."""
    most = np.sort(np.argsort(-facts.contributions, kind="stable")[:MOST_CARDS])
    return [(int(place), f"{place + 1} · {percent(float(facts.contributions[place]))}") for place in most]


def _pooled(image: Matrix) -> Matrix:
    return shrunk(image, LONGEST_SIDE)


def _curve(component: Matrix, names: list[str], identifier: str) -> str:
    kind: plots.Kind = "bars" if component.size <= plots.MOST_BARS else "spectra"
    numbered = names == [str(place) for place in range(component.size)]
    step = -(-component.size // MOST_POINTS)
    if step > 1:  # peaks must not get lost
        component, names, numbered = pool(component[None], (1, MOST_POINTS), np.max)[0], names[::step], False

    longest = 0 if numbered or kind != "bars" else min(max(map(len, names)), 30)
    width, below = 3.4, 0.22 + 0.053 * longest
    height = 1.25 + below

    def paint(figure: Any) -> None:
        figure.subplots_adjust(left=0.08 / width, right=1 - 0.08 / width, top=0.98, bottom=below / height)
        ax = figure.subplots()
        plots.components(component[None], kind=kind, feature_names=None if numbered else names, ax=ax)
        ax.set(xlabel="", ylabel="", yticks=[])
        ax.tick_params(labelsize=7)

    return draw(paint, identifier, (width, height), layout=None)


def history_cards(model: Any) -> Iterator[Card]:
    """Yield how objective, scale and share of outliers went."""
    for name in ("objective", "scale", "outlier_share"):

        def paint(figure: Any, name: str = name) -> None:
            set_margins(figure, 0.65, 0.1, 0.42, 0.1)
            plots.history(model, columns=(name,), figure=figure)
            figure.axes[0].set_ylabel("")  # the caption says it

        yield Card(plots.HISTORY_LABELS[name].capitalize(), svg=draw(paint, name, (3.4, 2.2), layout=None))


def noise_card(facts: Facts, X: Any, weights: Any, uncertainties: Any, names: Sequence[str]) -> Card:
    """Return how large the noise is, in words and in a picture."""

    def paint(figure: Any) -> None:
        options = {"weights": weights, "uncertainties": uncertainties, "most_points": MOST_ENTRIES}
        plots.noise_width(facts.model, X, **options, ax=framed(figure))

    return Card(" ".join(noise_in_words(facts, names)), svg=draw(paint, "noise", (5.6, 3.6), layout=None))


def noise_in_words(facts: Facts, names: Sequence[str]) -> Iterator[str]:
    """Yield sentences about the noise; the names are those of the features."""
    noise, unusual, n_features = facts.model.noise_, facts.unusual_widths, facts.shape[1]
    meaning = "(0: constant, 0.5: as of counts, 1: in proportion)"
    yield f"The noise grows with the size of an entry by the power {noise.exponent:.2g} {meaning}."
    width = percent(facts.typical_width)
    yield f"Its width, the median size of clean residuals, is {width} of an entry in a typical feature."
    if unusual.size:
        named = some_names(names[place] for place in unusual)
        yield f"Of {unusual.size} of {n_features} features it is over {UNUSUAL:g} times larger or smaller: {named}."
    is_outlier = f"An entry is an outlier if its residual is over {noise.threshold:.3g} widths."
    yield "No entry is an outlier." if noise.lenient else is_outlier
    if facts.model.comparison_ is not None:
        yield facts.model.comparison_.reason


def sample_cards(facts: Facts, shape: tuple[int, ...], rows: Sequence[Row]) -> Iterator[tuple[str, list[Card]]]:
    """Yield name and pictures of some samples: the data, what the model makes of it, and the outliers."""
    for row in rows[:PICTURED]:
        data = np.where(facts.observed([row.place])[0], facts.data.X[row.place], np.nan)
        of_pixels = (data, facts.codes[row.place] @ facts.model.components_)
        measured, fit = (image_of(values, shape, _pooled) for values in of_pixels)
        top = float(np.nanmax(fit))
        images = {"data": picture(measured, top), "model": picture(fit, top)}
        images["outliers"] = outlier_image(facts, shape, row.place)
        yield row.name, [Card(caption, image=image) for caption, image in images.items()]


def mask_cards(facts: Facts, shape: tuple[int, ...], names: Sequence[str]) -> list[Card]:
    """Return the outliers of every sample as images, of many samples none: the page would be too large."""
    if facts.shape[0] > MOST_MASKS:
        return []
    return [Card(name, image=outlier_image(facts, shape, place)) for place, name in enumerate(names)]


def outlier_image(facts: Facts, shape: tuple[int, ...], place: int) -> str:
    """Return the outliers and missing entries of a sample as PNG; of a pixel in colour, the share of its colours."""
    of_pixels = (facts.model.outliers_[place], ~facts.observed([place])[0])
    images = [image_of(values, shape, _pooled) for values in of_pixels]
    return png(levels(*(image if image.ndim == 2 else image.mean(axis=-1) for image in images)), PALETTE)


def outlier_map(facts: Facts) -> OutlierMap:
    """Return the map of outliers and missing entries."""
    n_samples, n_features = facts.shape
    limit = (MOST_CELLS, MOST_CELLS)
    cut = pool(facts.model.outliers_, limit, np.mean)
    missing = np.zeros_like(cut) if facts.data.M is None else pool(facts.data.M == 0, limit, np.mean)
    rows, columns = cut.shape
    picture = levels(cut, missing)
    for axis, count in enumerate(cut.shape):
        picture = picture.repeat(-(-LEAST_CELLS // count), axis)
    return OutlierMap(png(picture, PALETTE), rows, columns, n_samples, n_features)


def levels(cut: Matrix, missing: Matrix) -> Matrix:
    """Return places in the palette for shares of outliers and of missing entries; any outlier at all can be seen."""
    shade = 2 + np.ceil(cut * SHADES) - 1
    return np.where(cut > 0, shade, np.where(missing > 0.5, 1, 0)).astype(np.uint8)


def worst(lines: Lines, names: Sequence[str], typical: float) -> list[Row]:
    """Return the samples or features with most outliers, and those with the largest residuals."""
    residual = lines.residual / typical if typical > 0 else np.where(np.isnan(lines.residual), np.nan, 0.0)
    known = np.nan_to_num(residual, nan=-1.0)
    by_residual = np.argsort(-known, kind="stable")[:WORST]
    by_cut = np.lexsort((-known, -lines.cut))[:WORST]
    chosen = sorted({*by_residual.tolist(), *by_cut.tolist()}, key=lambda place: (-lines.cut[place], -known[place]))
    return [
        Row(place, names[place], float(lines.cut[place]), float(residual[place]), float(lines.missing[place]))
        for place in chosen
    ]


def versions() -> dict[str, str]:
    """Return what the page was made with, and when."""
    packages = ("numpy", "scipy", "scikit-learn")
    return {
        "Report of": date.today().isoformat(),
        "Python": platform.python_version(),
        "robustnmf": __version__,  # which need not be installed to be used
        **{package: version(package) for package in packages},
    }
