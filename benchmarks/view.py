"""How long the page of ``robustnmf view`` takes to answer, on data of 100 000 x 2000 entries.

    python benchmarks/view.py            # --samples 10000 for less
    python benchmarks/view.py --paint FOLDER  # first paint of the embedded faces, in Chromium

Answers are those of the functions behind the server, as JSON: the server and the browser are on the same machine.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from robustnmf import RobustNMF
from robustnmf.datasets import load_orl
from robustnmf.formats import Axis, LabelledMatrix
from robustnmf.view import Study, views, write_page
from robustnmf.view.study import Fit

RESULTS = Path(__file__).parent / "results" / "view.md"


def large_study(n_samples: int, n_features: int, rank: int = 8) -> Study:
    """Return a study of samples that repeat: what is measured is the page, not the fit and its codes."""
    rng = np.random.default_rng(0)
    few = rng.random((1000, rank), dtype=np.float32) @ rng.random((rank, n_features), dtype=np.float32)
    few *= 1 + 0.05 * np.abs(rng.standard_normal(few.shape, dtype=np.float32))
    few[rng.random(few.shape, dtype=np.float32) < 0.01] *= 8
    model = RobustNMF(rank, random_state=0)
    codes = model.fit_transform(few)
    times = n_samples // len(few)
    study = Study(LabelledMatrix(np.tile(few, (times, 1))), "large")
    mask = np.tile(model.outliers_, (times, 1))
    study.fitted = Fit(model, np.tile(codes, (times, 1)), mask, (), {"n_components": rank})
    return study


def measure(study: Study) -> dict[str, float]:
    """Return the median time of each answer, in milliseconds."""
    n, m = study.shape
    asked = {
        "overview": lambda i: views.overview(study),
        "components": lambda i: views.components(study),
        "contributions": lambda i: views.contributions(study),
        "histogram": lambda i: views.residual_histogram(study),
        "list of outliers": lambda i: views.outlier_list(study),
        "map of all": lambda i: views.outlier_map(study, (0, n), (0, m), (352, 1200)),
        "map of a part": lambda i: views.outlier_map(study, (100 * i, 100 * i + 1000), (0, m), (352, 1200)),
        "click: sample": lambda i: views.sample(study, 97 * i),
        "click: feature": lambda i: views.feature(study, 13 * i),
    }
    times = {}
    for name, ask in asked.items():
        spent = []
        for i in range(7):
            begin = time.perf_counter()
            json.dumps(ask(i), allow_nan=False)
            spent.append(1000 * (time.perf_counter() - begin))
        times[name] = float(np.median(spent))
    return times


def first_paint(folder: Path) -> float:
    """Return the milliseconds until Chromium has painted the page of the embedded faces."""
    from playwright.sync_api import sync_playwright

    faces = load_orl()
    study = Study(LabelledMatrix(faces.data, features=Axis(grid=faces.image_shape)), "faces")
    job = study.start_fit(20)
    while job.state == "running":
        time.sleep(0.1)
    page_file = write_page(study, folder, replace=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
        page = browser.new_page()
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector("#outliers tbody tr")
        found = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        browser.close()
    return float(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=2000)
    parser.add_argument("--paint", type=Path, help="folder for the page of the faces; measures its first paint")
    options = parser.parse_args()
    if options.paint:
        print(f"first paint of the faces: {first_paint(options.paint):.0f} ms")
        return
    times = measure(large_study(options.samples, options.features))
    lines = [
        f"Data of {options.samples} x {options.features} entries, medians of 7.",
        "",
        "| answer | ms |",
        "| --- | --- |",
    ]
    lines += [f"| {name} | {spent:.0f} |" for name, spent in times.items()]
    print("\n".join(lines))
    if (options.samples, options.features) == (100_000, 2000):
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
