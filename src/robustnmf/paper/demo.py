"""The main job on embedded data: ``python -m robustnmf.paper.demo [PICTURE.png]``.

Corrupts the ORL faces in two ways, factorises them with scikit-learn's NMF and with `TruncatedCauchyNMF`, prints the
errors to the clean faces, and draws what each made of them.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from numpy.typing import NDArray
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from robustnmf import TruncatedCauchyNMF
from robustnmf.datasets import load_orl
from robustnmf.datasets.corruptions import Corrupted, block_occlusion, salt_and_pepper
from robustnmf.metrics import outlier_scores, relative_error
from robustnmf.plots import before_after
from robustnmf.utils.files import write_owned
from robustnmf.utils.process_state import ignored_warnings

RANK = 40
SHOWN = [0, 53, 86, 124, 171, 255, 303, 392]


class Outcome(NamedTuple):
    """What the two factorisations made of corrupted data."""

    plain: NDArray[Any]
    robust: NDArray[Any]
    outliers: NDArray[Any]
    seconds_plain: float
    seconds_robust: float


def factorise(X: NDArray[Any]) -> Outcome:
    """Reconstruct X by NMF and by Truncated Cauchy NMF."""
    # Both are run for a fixed number of iterations here; that one may not have converged is no news.
    with ignored_warnings((ConvergenceWarning, "")):
        begin = perf_counter()
        # A random start: the default one stops after two iterations on images in 0..255.
        nmf = NMF(RANK, init="random", max_iter=200, random_state=0)
        plain = nmf.inverse_transform(nmf.fit_transform(X))
        middle = perf_counter()
        model = TruncatedCauchyNMF(RANK, random_state=0)
        robust = model.inverse_transform(model.fit_transform(X))
        end = perf_counter()
    return Outcome(plain, robust, model.outliers_, middle - begin, end - middle)


def report(name: str, clean: NDArray[Any], corrupted: Corrupted, outcome: Outcome) -> str:
    """Return one line of the table."""
    scores = outlier_scores(corrupted.mask, outcome.outliers)
    return (
        f"{name:<28}{relative_error(clean, corrupted.data):>10.1%}{relative_error(clean, outcome.plain):>14.1%}"
        f"{relative_error(clean, outcome.robust):>12.1%}{scores.precision:>13.0%}{scores.recall:>9.0%}"
        f"{outcome.seconds_plain:>11.1f} s{outcome.seconds_robust:>8.1f} s"
    )


def main(picture: Path, echo: Callable[[str], None] = print) -> None:
    """Run the demonstration and write the picture."""
    faces = load_orl()
    clean = faces.data
    cases = {
        "40 % salt and pepper": salt_and_pepper(clean, 0.4, random_state=0),
        "12 x 12 blocks of 550": block_occlusion(clean, 12, faces.image_shape, random_state=0),
    }
    echo(f"{len(clean)} faces of {faces.image_shape[0]} x {faces.image_shape[1]} pixels, rank {RANK}.")
    echo("Errors are relative to the clean faces; precision and recall are those of the outlier mask.")
    echo("")
    echo(
        f"{'':<28}{'data':>10}{'sklearn NMF':>14}{'robustnmf':>12}{'precision':>13}{'recall':>9}{'NMF':>13}{'ours':>10}"
    )
    rows = [("original", clean[SHOWN])]
    for name, corrupted in cases.items():
        outcome = factorise(corrupted.data)
        echo(report(name, clean, corrupted, outcome))
        rows += [
            (name, corrupted.data[SHOWN]),
            ("scikit-learn NMF", outcome.plain[SHOWN]),
            ("robustnmf", outcome.robust[SHOWN]),
            ("outliers found", outcome.outliers[SHOWN]),
        ]
    figure = before_after(rows, faces.image_shape)
    with write_owned(picture) as temporary:
        figure.savefig(temporary, dpi=80, format=picture.suffix.removeprefix(".") or "png")
    echo("")
    echo(f"The picture is in {picture}.")


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("Agg")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("robustnmf-demo.png"))
