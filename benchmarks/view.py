"""How long the page of ``robustnmf view`` takes to answer, on data of 100 000 x 2000 entries, and to be shown.

    python benchmarks/view.py                 # --samples 10000 for less

Three tables: the functions behind the server; pages of the embedded faces and of the large data, and clicks on them, in
Chromium, from the server of this machine; and *Refit* beside *Fit anew* after one entry was rejected.
"""

import argparse
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robustnmf import RobustNMF
from robustnmf.datasets import load_baltimore, load_orl
from robustnmf.datasets.corruptions import block_occlusion
from robustnmf.formats import Axis, LabelledMatrix
from robustnmf.view import Study, views
from robustnmf.view.server import HOST, Studies, application, uploads
from robustnmf.view.study import Fit, Job

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
        "click: samples beside it": lambda i: views.feature(study, 13 * i, 97 * i, 97 * i + 101),
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


def faces() -> Study:
    """Return the embedded faces with a white block on each, and their components."""
    found = load_orl()
    X, _ = block_occlusion(found.data, 12, found.image_shape, random_state=0)
    study = Study(LabelledMatrix(X, features=Axis(grid=found.image_shape)), "faces")
    finish(study.start_fit(20))
    return study


def air() -> Study:
    """Return the air of Baltimore with five sources."""
    found = load_baltimore()
    measured = ~found.filled_in.all(axis=1)
    study = Study(LabelledMatrix(found.data[measured]), "air", uncertainties=found.uncertainties[measured])
    finish(study.start_fit(5))
    return study


def finish(job: Job) -> None:
    while job.state == "running":
        time.sleep(0.01)
    assert job.state == "done", job.message


@contextmanager
def served(study: Study) -> Iterator[str]:
    """Serve the page of a study; give its address."""
    import uvicorn

    studies, token = Studies(), secrets.token_urlsafe(24)
    studies.add(study)
    with socket.socket() as listener, uploads() as folder:
        listener.bind((HOST, 0))
        server = uvicorn.Server(uvicorn.Config(application(studies, token, folder), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://{HOST}:{listener.getsockname()[1]}/#token={token}"
        server.should_exit = True
        thread.join()


def in_browser(study: Study, repeats: int = 7) -> dict[str, float]:
    """Return milliseconds until Chromium has painted the page, has drawn all, and has answered a click."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"first paint": [], "all drawn": [], "click": []}
    with served(study) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"))
        for _ in range(repeats):
            page = browser.new_page()
            page.goto(address)
            page.wait_for_selector("#entry-facts dd")
            found["all drawn"].append(page.evaluate("performance.now()"))
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            found["first paint"].append(page.evaluate(paint))
            found["click"] += [page.evaluate(CLICK, 7 * i + 1) for i in range(3)]
            page.close()
        browser.close()
    return {name: float(np.median(times)) for name, times in found.items()}


CLICK = """async (i) => {
  const [n, m] = state.about.shape, begin = performance.now();
  await select((97 * i) % n, (13 * i) % m);
  return performance.now() - begin;
}"""


def refits(study: Study, repeats: int = 3) -> dict[str, Any]:
    """Return seconds of a fit anew and of a refit after one entry was rejected, and what they leave of squares.

    Squares are those of entries that neither rejects, of the refit relative to the fit anew; in units of uncertainties
    where there are any.
    """
    assert study.fitted is not None
    before, place = study.fitted, tuple(np.argwhere(~study.fitted.outliers)[1000].tolist())
    study.judge(*place, "reject")
    spent: dict[str, list[float]] = {"refit": [], "anew": []}
    fits: dict[str, Fit] = {}
    for _ in range(repeats):
        for name in spent:
            study.fitted, begin = before, time.perf_counter()
            finish(study.start_refit() if name == "refit" else study.start_fit(before.components.shape[0]))
            spent[name].append(time.perf_counter() - begin)
            fits[name] = study.fitted
    kept = ~(fits["refit"].outliers | fits["anew"].outliers)
    kept[place] = False
    unit = 1.0 if study.uncertainties is None else study.uncertainties
    squares = {n: (((study.matrix.values - f.codes @ f.components) / unit)[kept] ** 2).sum() for n, f in fits.items()}
    differ = float(np.mean(fits["refit"].outliers != fits["anew"].outliers))
    times = {name: float(np.median(one)) for name, one in spent.items()}
    return times | {"squares": float(squares["refit"] / squares["anew"]), "differ": differ}


def table(heading: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in (heading, ["---"] * len(heading), *rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=2000)
    options = parser.parse_args()
    large, small = large_study(options.samples, options.features), {"400 faces": faces(), "air of Baltimore": air()}
    lines = [f"Functions behind the server, data of {options.samples} x {options.features} entries, medians of 7.", ""]
    lines += table(["answer", "ms"], [[name, f"{spent:.0f}"] for name, spent in measure(large).items()])
    shown = {f"{options.samples} x {options.features}": large, "400 faces": small["400 faces"]}
    rows = [[name, *(f"{value:.0f}" for value in in_browser(study).values())] for name, study in shown.items()]
    lines += ["", "The page in Chromium, from the server of the same machine, medians of 7 visits.", ""]
    lines += table(["data", "first paint, ms", "all drawn, ms", "click, ms"], rows)
    rows = []
    for name, study in small.items():
        found = refits(study)
        times = [f"{found['refit']:.2f}", f"{found['anew']:.2f}"]
        rows.append([name, *times, f"{found['squares']:.4f}", f"{found['differ']:.2%}"])
    lines += [
        "",
        "After one entry was rejected. Squares are those of entries that both accept, refit over fit anew.",
        "",
    ]
    lines += table(["data", "refit, s", "fit anew, s", "squares", "entries judged differently"], rows)
    print("\n".join(lines))
    if (options.samples, options.features) == (100_000, 2000):
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
