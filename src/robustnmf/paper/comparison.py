"""Ours beside the paper's: tables, and claims that can fail."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

import numpy as np

from robustnmf.paper.columns import TITLES
from robustnmf.paper.paper_values import Printed, as_meant
from robustnmf.paper.results import Results
from robustnmf.paper.section import Check, Table


def comparison_table(
    results: Results,
    measure: str | Sequence[str],
    printed: Printed,
    caption: str,
    corner: str,
    methods: Sequence[str],
    better: Literal["lower", "higher", "neither"],
    misprints: str = "",
    digits: int = 2,
) -> Table:
    """Return a table of means with a row for each setting and a column for each method, or method and measure."""
    measures = (measure,) if isinstance(measure, str) else tuple(measure)
    present = [m for m in methods if m in results.methods]
    columns = [(method, name) for method in present for name in measures]
    rows = []
    for setting, level in zip(results.settings, results.levels, strict=True):
        cells = []
        for method, name in columns:
            paper, note = as_meant(printed, misprints, method, level)
            cells.append(replace(results.cell(name, setting=setting, method=method), paper=paper, note=note))
        rows.append((setting, cells))
    titles = [TITLES[method] + (f", {name}" if len(measures) > 1 else "") for method, name in columns]
    return Table(caption, corner, titles, rows, better, digits)


def clustering_tables(
    results: Results, what: str, corner: str, methods: Sequence[str] = tuple(TITLES), **printed: Printed
) -> list[Table]:
    """Return accuracy and mutual information, beside those that the paper prints, by measure."""
    captions = {"accuracy": "Clustering accuracy %", "nmi": "Normalised mutual information %"}
    return [
        comparison_table(
            results, measure, printed.get(measure, {}), caption + what, corner, methods, "higher", f"table3 {measure}"
        )
        for measure, caption in captions.items()
    ]


def within(
    results: Results,
    measure: str,
    method: str,
    printed: Printed,
    tolerance: float,
    title: str,
    *,
    misprints: str = "",
    printed_as: str | None = None,
    levels: Sequence[float] | None = None,
) -> Check:
    """Say whether a column of ours agrees with one of the paper on every row, or on those of some levels."""
    differences = {}
    for level in printed[printed_as or method]:
        paper, _ = as_meant(printed, misprints, printed_as or method, level)
        ours = results.mean(measure, level=level, method=method)
        if (levels is None or level in levels) and not np.isnan(ours):
            differences[level] = ours - paper
    at = "" if levels is None else f" at {', '.join(f'{level:g}' for level in levels)}"
    claim = f"{title} within {tolerance:g} of the paper{at or ' on every row'}"
    if not differences:
        return Check(claim, None, "no results")
    worst = max(differences, key=lambda level: abs(differences[level]))
    detail = f"largest difference {differences[worst]:+.2f}, at {worst:g}"
    return Check(claim, abs(differences[worst]) <= tolerance, detail)


def ordering(results: Results, measure: str, printed: Printed, level: float, better: str, apart: float = 0.5) -> Check:
    """Say whether pairs of methods that the paper tells apart are in the same order in ours.

    Pairs that are closer than `apart` in the paper are ties; differences of less than a tenth of that are no
    reversal. The published Truncated CauchyNMF of Table 2 and our CauchyNMF are the same thing (see the remarks), so
    where both are run it is the better of the two that is ranked.
    """
    ours = {m: results.mean(measure, level=level, method=m) for m in printed if m in results.methods}
    sign = 1 if better == "lower" else -1
    if "cauchy" in results.methods and "cauchy" not in printed and "truncated-cauchy" in ours:
        rivals = (ours["truncated-cauchy"], results.mean(measure, level=level, method="cauchy"))
        ours["truncated-cauchy"] = sign * min(sign * value for value in rivals)
    ours = {method: value for method, value in ours.items() if not np.isnan(value)}
    claim = f"The order of the models at {level:g} is that of the paper"
    pairs = [
        (a, b) if sign * printed[a][level] < sign * printed[b][level] else (b, a)
        for a, b in combinations(ours, 2)
        if abs(printed[a][level] - printed[b][level]) >= apart
    ]
    if not pairs:
        return Check(claim, None, "no results")
    reversed_pairs = [f"{TITLES[a]} and {TITLES[b]}" for a, b in pairs if sign * (ours[a] - ours[b]) > apart / 10]
    detail = f"{len(pairs) - len(reversed_pairs)} of {len(pairs)} pairs"
    return Check(
        claim, not reversed_pairs, detail + (f"; reversed: {'; '.join(reversed_pairs)}" if reversed_pairs else "")
    )


def best_of_all(results: Results, measure: str, tie: float = 0.0) -> Check:
    """Say on how many rows the default is the best column, or within `tie` of it."""
    sign = 1 if measure == "error" else -1
    won, lost = 0, []
    for setting in results.settings:
        means = {m: sign * results.mean(measure, setting=setting, method=m) for m in results.methods}
        means = {m: value for m, value in means.items() if not np.isnan(value)}
        if "default" not in means or len(means) < 2:
            continue
        best = min(means, key=lambda m: means[m])
        if means["default"] <= means[best] + tie:
            won += 1
        else:
            lost.append(f"{setting} ({TITLES[best]} is better by {means['default'] - means[best]:.1f})")
    claim = "The default is the best column on every row" + (f", or within {tie:g} of it" if tie else "")
    detail = f"{won} of {won + len(lost)} rows" + (f"; not on {'; '.join(lost)}" if lost else "")
    return Check(claim, not lost if won or lost else None, detail)
