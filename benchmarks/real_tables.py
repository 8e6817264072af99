"""The tables of `real_data`, as Markdown; of the seeds of a set the worst counts."""

from collections.abc import Callable, Iterable, Sequence
from math import inf, isnan
from statistics import median
from typing import Any

from planted_errors import CLEAN, ERRORS

Record = dict[str, Any]

BAD_IN_BOTH, BAD_IN_SQUARES = 1.15, 2.0
GOOD, HELD = 1.05, 2.5


def ratio(record: Record, of: str = "squares") -> float:
    """Return the error relative to the reference; infinite if the fit failed."""
    value = float(record.get(of, inf))
    return inf if isnan(value) else value


def is_bad(record: Record) -> bool:
    in_both = min(ratio(record), ratio(record, "absolute")) > BAD_IN_BOTH
    return in_both or ratio(record) > BAD_IN_SQUARES


def is_silent(record: Record) -> bool:
    """Return whether a fit gives no sign that something is wrong."""
    return "error" not in record and record["converged"] and not record["warnings"]


def worst(records: Iterable[Record]) -> Record:
    return max(records, key=ratio)


def by(records: Iterable[Record], *names: str) -> dict[Any, list[Record]]:
    """Return the records in groups, by one entry or by a tuple of several."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        values = tuple(record[name] for name in names)
        groups.setdefault(values if len(names) > 1 else values[0], []).append(record)
    return groups


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def percent(part: float, whole: float = 1) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def clean_cell(records: Sequence[Record]) -> str:
    """Return both ratios of the worst seed: bold if one is bad, with a star if a bad one is silent."""
    if not records:
        return ""
    record = worst(records)
    text = f"{ratio(record):.3g} / {ratio(record, 'absolute'):.3g}" if "error" not in record else "failed"
    bad = [each for each in records if is_bad(each)]
    return f"**{text}**{' *' if any(map(is_silent, bad)) else ''}" if bad else text


def clean_table(records: Sequence[Record], methods: Sequence[str]) -> list[str]:
    rows = []
    for name, of_set in sorted(by(records, "set").items()):
        of_method, (n, m) = by(of_set, "method"), of_set[0]["shape"]
        cells = [clean_cell(of_method.get(method, [])) for method in methods]
        rows.append([name, f"{n} x {m}", str(of_set[0]["rank"]), *cells])
    return markdown(["set", "shape", "rank", *methods], rows)


def counts_table(records: Iterable[Record], methods: Sequence[str]) -> list[str]:
    of_method = by(records, "method")
    head = ["method", "fits", "bad", "bad and silent", "within 1.05", "of these warned", "not converged"]
    return markdown(head, [counts_row(name, of_method[name]) for name in methods if name in of_method])


def counts_row(method: str, records: Sequence[Record]) -> list[str]:
    bad, good = [r for r in records if is_bad(r)], [r for r in records if ratio(r) <= GOOD]
    silent, warned = sum(map(is_silent, bad)), sum(bool(r["warnings"]) for r in good)
    return [
        method,
        str(len(records)),
        f"{len(bad)} ({percent(len(bad), len(records))})",
        str(silent),
        str(len(good)),
        f"{warned} ({percent(warned, len(good))})" if good else "",
        str(sum(not r.get("converged", False) for r in records)),
    ]


def in_order(records: Iterable[Record], cells: Callable[[dict[Any, list[Record]]], list[str]]) -> list[list[str]]:
    """Return a row for each kind of error, made of its records by method."""
    groups = by(records, "errors")
    return [[kind, *cells(by(groups[kind], "method"))] for kind in ERRORS if kind in groups]


def error_cell(records: Sequence[Record]) -> str:
    ratios = [ratio(worst(of_set)) for of_set in by(records, "set").values()]
    within = sum(value <= HELD for value in ratios)
    return f"{median(ratios):.3g}, {percent(within, len(ratios))} of {len(ratios)}" if ratios else ""


def mask_cells(records: Sequence[Record]) -> list[str]:
    """Return medians over sets of recall, precision and good entries cut, and what became of the sets that broke."""
    sets = [worst(of_set) for of_set in by(records, "set").values()]
    shares = ([r[name] for r in sets if name in r] for name in ("recall", "precision", "good_cut"))
    broken = [r for r in sets if ratio(r) > HELD]
    return [*(percent(median(s)) if s else "" for s in shares), str(len(broken)), str(sum(map(is_silent, broken)))]


def tables(records: Sequence[Record], most_entries: int) -> str:
    """Return the page."""
    methods = list(by(records, "method"))
    clean = [record for record in records if record["errors"] == CLEAN]
    halves = {"tuned": [r for r in clean if r["tuned"]], "untuned": [r for r in clean if not r["tuned"]]}
    lines = ["# Real data", "", introduction(records, most_entries)]
    for name, half in halves.items():
        if half:
            lines += ["", f"## Clean data, {name} sets", "", *counts_table(half, methods)]
            lines += ["", CLEAN_LEGEND, "", *clean_table(half, methods)]
    lines += ["", "## Planted errors", "", ERROR_LEGEND, ""]
    lines += markdown(["errors", *methods], in_order(records, lambda of: [error_cell(of.get(m, [])) for m in methods]))
    lines += ["", MASK_LEGEND, ""]
    head = ["errors", "recall", "precision", "good entries cut", "sets above 2.5", "of these silent"]
    default = [record for record in records if record["method"] == "default"]
    lines += markdown(head, in_order(default, lambda of: mask_cells(of["default"])))
    failed = sorted({f"{r['set']}, {r['errors']}, {r['method']}: {r['error']}" for r in records if "error" in r})
    lines += ["", "## Fits that failed", "", *(f"- {line}" for line in failed or ["none"])]
    return "\n".join(lines) + "\n"


def introduction(records: Sequence[Record], most_entries: int) -> str:
    seeds, sets = {record["seed"] for record in records}, {record["set"] for record in records}
    codes = {record["sources"] for record in records}
    return (
        f"`benchmarks/real_data.py`: {len(records)} fits of {len(sets)} sets with at most {most_entries} "
        f"entries, {len(seeds)} seeds, by sources of robustnmf with the checksum {', '.join(sorted(codes))}. It "
        "says what is done, `benchmarks/real_sets.py` where the data is from, `benchmarks/planted_errors.py` what the "
        "errors are. Errors are those to the clean data, relative to scikit-learn's NMF of the clean data (the better "
        "of two starts, tolerance 1e-6, at most 2000 iterations). Constants of the default may be chosen on the tuned "
        "sets, never on the others."
    )


CLEAN_LEGEND = (
    "Error in squares / in absolute values, of the worst seed. **Bad** is above 1.15 in both, or above 2 in squares; a "
    "star: without a warning, and said to have converged."
)
ERROR_LEGEND = (
    "Median over sets of the error in squares, and the share of sets in which it is at most 2.5. Samples and features "
    "that are wrong as a whole are not judged, the others are. Of the seeds of a set the worst counts."
)
MASK_LEGEND = "What the mask of the default finds, medians over sets, and the sets in which the error is above 2.5."
