"""Figures of the report: Matplotlib drawings as SVG elements that follow the colours of the page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robustnmf.paper.columns import TITLES
from robustnmf.paper.results import Results
from robustnmf.paper.task import Matrix
from robustnmf.report.drawing import INK, draw

__all__ = ["COLOURS", "INK", "curves", "draw", "legend_below", "pictures"]

# Told apart also by those who do not see red and green, and on a dark page (Okabe and Ito, lightened).
COLOURS = {
    "kmeans": "#8a8a8a",
    "nenmf": "#5a8fc8",
    "l2": "#5a8fc8",
    "l21": "#78c4ea",
    "rnmf-l1": "#b79f00",
    "mahnmf": "#e69f00",
    "l1": "#e69f00",
    "huber": "#cc79a7",
    "cim": "#9467bd",
    "cauchy": "#3fae7f",
    "truncated-cauchy": "#d9622b",
    "default": "#d62728",
}
MARKERS = {"kmeans": "x", "default": "o", "truncated-cauchy": "s", "cauchy": "^"}


def legend_below(figure: Any, ncols: int = 5) -> None:
    """Name all that is drawn in any panel once, below them: not every method has every measure."""
    named: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    order = list(TITLES.values())
    named = dict(sorted(named.items(), key=lambda item: order.index(item[0]) if item[0] in order else 0))
    figure.legend(named.values(), named, loc="outside lower center", ncols=min(ncols, len(named) or 1), fontsize=8)


def curves(
    results: Results,
    measures: Mapping[str, str],
    name: str,
    xlabel: str,
    printed: Mapping[str, Mapping[float, float]] | None = None,
) -> str:
    """Draw means with standard deviations against the level, one panel for each measure.

    Parameters
    ----------
    results : those of one experiment.
    measures : names of the measures and labels of their axes.
    name : identifier of the figure.
    xlabel : label of the levels.
    printed : the paper's values by method and level, drawn dotted in the first panel.
    """

    def paint(figure: Any) -> None:
        axes = figure.subplots(1, len(measures), squeeze=False)[0]
        for axis, (measure, label) in zip(axes, measures.items(), strict=True):
            for method in (m for m in TITLES if m in results.methods):
                levels = [x for x in results.levels if results.values(measure, level=x, method=method)]
                if not levels:
                    continue
                means = [results.mean(measure, level=x, method=method) for x in levels]
                deviations = [results.deviation(measure, level=x, method=method) for x in levels]
                look = {"color": COLOURS[method], "marker": MARKERS.get(method, "."), "ms": 4}
                heavy = {"lw": 2.4, "zorder": 5} if method == "default" else {"lw": 1.2}
                axis.errorbar(levels, means, yerr=np.nan_to_num(deviations), label=TITLES[method], **look, **heavy)
                if printed is not None and axis is axes[0] and method in printed:
                    dotted = [printed[method].get(x, np.nan) for x in levels]
                    axis.plot(levels, dotted, ":", color=COLOURS[method], lw=1)
            axis.set(xlabel=xlabel, ylabel=label)
            axis.grid(alpha=0.25, lw=0.5)
        legend_below(figure)

    return draw(paint, name, (4.6 * len(measures), 3.6))


def pictures(rows: Sequence[tuple[str, Matrix]], name: str, *, vmax: float | None = None) -> str:
    """Draw images in a grid, one row for each stage; values are mapped to grey from 0 to `vmax`.

    Parameters
    ----------
    rows : label and array (n_images, height, width) of each row.
    name : identifier of the figure.
    vmax : value drawn white; None takes the largest of each row.
    """
    n_columns = max(len(images) for _, images in rows)
    height, width = rows[0][1].shape[1:]
    size = (1.5 + 0.62 * n_columns, 0.35 + 0.62 * height / width * len(rows))
    margins = {"left": 1.45 / size[0], "right": 0.995, "top": 1 - 0.3 / size[1], "bottom": 0.01}

    def paint(figure: Any) -> None:
        figure.subplots_adjust(**margins, wspace=0.04, hspace=0.04)
        axes = figure.subplots(len(rows), n_columns, squeeze=False)
        for line, (label, images) in zip(axes, rows, strict=True):
            top = vmax or float(np.max(images)) or 1.0
            for axis in line[len(images) :]:
                axis.axis("off")
            for axis, image in zip(line, images, strict=False):
                axis.set(xticks=[], yticks=[])
                axis.imshow(image, cmap="gray", vmin=0, vmax=top, interpolation="nearest")
            line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)

    return draw(paint, name, size, layout=None)
