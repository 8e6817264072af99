"""How deep is a default fit? Files, functions and the longest chain of calls from `fit_transform`, within the package.

python benchmarks/trace_fit.py
"""

import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import robustnmf
from robustnmf import RobustNMF

SOURCE = str(Path(robustnmf.__file__).parent)


class Trace:
    """Looks at every call."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.deepest: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        self.functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))
        chain, up = [], frame
        while up is not None:
            if up.f_code.co_filename.startswith(SOURCE):
                where = Path(up.f_code.co_filename).relative_to(SOURCE).with_suffix("").as_posix()
                chain.append(f"{where}: {up.f_code.co_qualname}")
            up = up.f_back
        if len(chain) > len(self.deepest):
            self.deepest = chain[::-1]


def main() -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.random((60, 3)) @ rng.random((3, 40))
    X[rng.random(X.shape) < 0.1] = 5.0
    RobustNMF(3, random_state=0).fit_transform(X)  # what is imported and compiled is no part of the way
    trace = Trace()
    sys.setprofile(trace)
    RobustNMF(3, random_state=0).fit_transform(X)
    sys.setprofile(None)
    files = {name for name, _ in trace.functions}
    print(f"{len(files)} files, {len(trace.functions)} functions, depth {len(trace.deepest)}:")
    print(*(f"  {call}" for call in trace.deepest), sep="\n")


if __name__ == "__main__":
    main()
