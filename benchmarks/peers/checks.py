"""What the runs with other packages share: a list of checks, and a page of how they ended."""

import argparse
import time
import traceback
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"


class Checks:
    """Functions that each check one thing, in the order in which they are written."""

    def __init__(self):
        self.functions = []

    def __call__(self, function):
        self.functions.append(function)
        return function

    def run(self, title, versions, name, note=""):
        """Run all of them, print how each ended, and write the page with a note; return the number of failures."""
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.md", help="page to write")
        out = parser.parse_args().out
        lines, failed = [], 0
        for function in self.functions:
            start = time.perf_counter()
            claim = function.__name__.replace("_", " ")
            try:
                found = function() or ""
                ended = "passes"
            except Exception as error:
                traceback.print_exc()
                failed, found, ended = failed + 1, f"{type(error).__name__}: {error}".splitlines()[0], "**fails**"
            print(f"{ended:9} {time.perf_counter() - start:5.1f} s  {claim}  {found}", flush=True)
            lines.append(f"| {claim} | {ended} | {found} |")
        count = f"{len(self.functions) - failed} of {len(self.functions)} checks pass, with {versions}."
        head = [f"# {title}", "", f"`python benchmarks/peers/{name.removeprefix('peers_')}.py` writes this page.", ""]
        head += [count, *([note] if note else []), "", "| check | | measured |", "| --- | --- | --- |"]
        out.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")
        print(count)
        return failed
